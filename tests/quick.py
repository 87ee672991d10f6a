"What several tests need"
import json, signal
from contextlib import contextmanager
from functools import cache

import numpy as np
import torch
from tokenizers import Tokenizer

from dew_nb import load_host
from dew_nb.models.assets import DEFAULT_HOST, asset_path
from dew_nb.mark.sources import reference_texts


@contextmanager
def ends_within(seconds):
    "A guard against what never ends, many times as long as it needs on a slow and busy machine: no measure of speed"
    def stop(*a): raise TimeoutError(f'not done after {seconds} seconds')
    was = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try: yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, was)


class Letters:
    "An encoder that is quick because it means nothing: vectors from letter counts"
    name, digest = 'letters', 'letters-1'
    def encode(self, texts):
        n, length = len(texts), np.array([len(t) for t in texts], int)
        letters = ''.join(t[:40].ljust(40) for t in texts).encode('utf-32-le', 'surrogatepass')
        place = (np.frombuffer(letters, np.uint32).reshape(n, 40).astype(int)*7 + np.arange(40)) % 32 + 32*np.arange(n)[:,None]
        counts = np.bincount(place[np.arange(40) < length[:,None]], minlength=32*n)
        return counts.reshape(n, 32).astype(np.float32) + np.float32(.01)


@cache
def small_model():
    "A model with the default host's vocabulary, of one narrow layer with random weights: it writes frequent words without sense"
    from transformers import LlamaConfig, LlamaForCausalLM
    folder, width = asset_path(DEFAULT_HOST), 32
    tok, has = Tokenizer.from_file(str(folder/'tokenizer.json')), json.loads((folder/'config.json').read_text())
    n = has['vocab_size']
    counts = np.bincount(np.concatenate([e.ids for e in tok.encode_batch(reference_texts()[:300])]), minlength=n)
    names = [tok.id_to_token(i) or ' ' for i in range(n)]
    words = np.array([t[0] == 'Ġ' and t[1:].isalpha() and t[1:].isascii() for t in names])
    best = np.argsort(-counts*words, kind='stable')[:160]            # whole words alone, so that a text is read as it was written
    size = dict(hidden_size=width, intermediate_size=width, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2)
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        ids = {k: has.get(k) for k in ('vocab_size', 'bos_token_id', 'eos_token_id', 'pad_token_id')}
        model = LlamaForCausalLM(LlamaConfig(**ids, **size)).eval()
        model.lm_head = torch.nn.Linear(width, n)
        torch.nn.init.normal_(model.lm_head.weight, std=1/width**.5)
    model.lm_head.bias.data = torch.full((n,), -30.).index_fill_(0, torch.from_numpy(best), 0.)
    return model.requires_grad_(False)


def toy_host(**kw):
    "The default host, its tokenizer and its table, with a model that costs next to nothing"
    host = load_host(**kw)
    host.model = small_model().to(host.device)
    return host
