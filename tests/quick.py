"What several tests need"
import numpy as np
import torch

from dew_nb import load_host


class Letters:
    "An encoder that is quick because it means nothing: vectors from letter counts"
    name, digest = 'letters', 'letters-1'
    def encode(self, texts):
        n, length = len(texts), np.array([len(t) for t in texts], int)
        letters = ''.join(t[:40].ljust(40) for t in texts).encode('utf-32-le', 'surrogatepass')
        place = (np.frombuffer(letters, np.uint32).reshape(n, 40).astype(int)*7 + np.arange(40)) % 32 + 32*np.arange(n)[:,None]
        counts = np.bincount(place[np.arange(40) < length[:,None]], minlength=32*n)
        return counts.reshape(n, 32).astype(np.float32) + np.float32(.01)


def quick_host(**kw):
    "The default host with seven of its thirty layers: its tokenizer and its table, two fifths of the work a token, words without sense"
    host = load_host(**kw)
    host.model.model.layers = torch.nn.ModuleList(host.model.model.layers[i] for i in (0, 1, 2, 26, 27, 28, 29))
    for i,layer in enumerate(host.model.model.layers): layer.self_attn.layer_idx = i
    host.model.config.num_hidden_layers = 7
    return host
