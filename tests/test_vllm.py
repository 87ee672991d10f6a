"The mark in vLLM, with stand-ins for its interfaces: `make serve-test` tries it with a real server"
import importlib.util
import os
import random
import shutil
import sys
from abc import ABC, abstractmethod
from dataclasses import replace
from enum import Enum
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

import dew_nb.serving.vllm as served
from dew_nb import DEW, DEWConfig, Detector, SecretKey
from dew_nb.mark.processor import DEWLogitsProcessor, DEWWatermarkingConfig
from dew_nb.serving.options import take_over
from dew_nb.serving.vllm_rows import sorted_cut
from dew_nb.serving.vllm import ListBatch, RowMarker, SlotBatch, file_choices, load_scheme, processor_class
from quick import Letters, toy_host

KEYS = dict(default=SecretKey(b'an example key: never use this one'), bob=SecretKey(b'another example: never use this one'))
CONFIG = DEWConfig(m=64, n=32, layers=12, k=3, context_width=32, context_decay=1., context_damping=None)
Move = Enum('Move', 'UNIDIRECTIONAL SWAP')


class Params(SimpleNamespace):
    "What is used of vLLM's SamplingParams"
    def __init__(self, **kw): super().__init__(**dict(temperature=1., top_k=0, top_p=1., min_p=0., extra_args=None) | kw)


@pytest.fixture(scope='module')
def wm(): return DEW.build(toy_host(), Letters(), KEYS['default'], CONFIG, progress=False)


@pytest.fixture(scope='module')
def files(wm, tmp_path_factory):
    folder = tmp_path_factory.mktemp('schemes')
    return {n: wm.rekey(k).detector().save(folder/f'{n}.dew') for n,k in KEYS.items()}


@pytest.fixture(scope='module')
def markers(files): return {n: RowMarker(load_scheme(f)) for n,f in files.items()}


def test_sub_keys_stay_with_their_text(wm, tmp_path, monkeypatch):
    "Each request draws a sub-key once; it keeps it when it is stopped, moved and taken up again, and the library's own draw is the same"
    many = DEW.build(wm.host, Letters(), KEYS['default'], replace(CONFIG, keys=8), progress=False)
    path = many.detector().save(tmp_path/'many.dew')
    monkeypatch.setenv('DEW_SCHEME', str(path))
    monkeypatch.setenv('DEW_ALLOW_TEXT_NAME', '1')
    g, Served = torch.Generator().manual_seed(1), processor_class()
    tokens, logits = torch.randint(100, 9000, (20,), generator=g).tolist(), 4*torch.randn(1, wm.host.vocab_size, generator=g)
    named, free = [Params(extra_args=dict(dew_text=f'order {i}')) for i in range(6)], Params()
    for p in named: Served.validate_params(p)
    drawn = set()
    for _ in range(40):                                     # one object for many requests, as LLM.generate uses it
        Served.validate_params(free)
        drawn.add(RowMarker(many).subkey(free))
    assert len(drawn) > 4
    batch, change = ListBatch(dict(default=RowMarker(load_scheme(path)))), lambda **k: SimpleNamespace(**dict(removed=(), added=(), moved=()) | k)
    want = [many.processor(0, [f'order {i}'])(torch.tensor([tokens]), logits)[0].softmax(-1) for i in range(6)]
    assert len({tuple(w.topk(3).values.tolist()) for w in want}) > 1
    batch.update(change(added=[(i, p, None, list(tokens)) for i,p in enumerate(named)]))
    torch.testing.assert_close(batch.apply(logits.repeat(6, 1)).softmax(-1), torch.stack(want), atol=1e-6, rtol=0)
    batch.update(change(removed=[0, 3], moved=[(1, 4, Move.SWAP)]))
    batch.update(change(added=[(0, named[3], None, list(tokens)), (3, named[0], None, list(tokens))]))
    torch.testing.assert_close(batch.apply(logits.repeat(6, 1)).softmax(-1), torch.stack([want[i] for i in (3, 4, 2, 0, 1, 5)]), atol=1e-6, rtol=0)
    with pytest.raises(ValueError, match='dew_text must be a string'): Served.validate_params(Params(extra_args=dict(dew_text=[1])))


def test_cuts_reach_a_kernel_side_by_side(monkeypatch):
    "vLLM's kernel for top-k and top-p takes pointers: columns of a table would be read wrongly"
    from dew_nb.serving import vllm_rows as rows
    seen = []
    def cut(logits, k, p):
        seen.append((k.is_contiguous(), p.is_contiguous(), k.tolist(), p.tolist()))
        return sorted_cut(logits, k, p)
    monkeypatch.setattr(rows, 'find_cut', lambda: cut)
    rows.cut_tails(torch.randn(4, 50), torch.tensor([[0, .5, 0.], [7, .25, 0.], [0, 1., 0.], [9, .75, 0.]]))
    assert seen == [(True, True, [50, 7, 50, 9], [.5, .25, 1., .75])]


def transformers_law(scheme, tokens, logits, params):
    "The distribution that transformers' generate would draw from: its warpers, then the mark"
    steps = [TemperatureLogitsWarper(params.temperature)]
    if params.top_k: steps.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1: steps.append(TopPLogitsWarper(params.top_p))
    ids = torch.tensor([tokens]).reshape(1, -1)
    return LogitsProcessorList([*steps, DEWLogitsProcessor(scheme, 0)])(ids, logits[None])[0].softmax(-1)


def sampler(logits, batch, params):
    "vLLM's V1 sampler from temperature on: processors, then what is left of top-k and top-p"
    logits = batch.apply(logits/torch.tensor([[p.temperature] for p in params]))
    top_k = torch.tensor([p.top_k if p.top_k > 0 else logits.shape[1] for p in params])
    return sorted_cut(logits, top_k, torch.tensor([p.top_p for p in params])).softmax(-1)


def test_the_law_is_that_of_transformers(markers):
    "Any temperature, top-k and top-p, any history: what vLLM's sampler draws from is what transformers' would"
    g, rng = torch.Generator().manual_seed(0), random.Random(0)
    asked = [Params(temperature=rng.choice([.5, .8, 1., 1.3]), top_k=rng.choice([0, 20, 200]), top_p=rng.choice([1., .95, .6])) for _ in range(12)]
    texts = [torch.randint(200, 400, (rng.choice([0, 3, 4, 30]),), generator=g).tolist() for _ in asked]
    logits = torch.randn(12, 49152, generator=g)*4
    want = torch.stack([transformers_law(markers['default'].scheme, t, x, p) for t,x,p in zip(texts, logits, asked)])
    for p in asked: take_over(p)
    batch = ListBatch(dict(default=markers['default']))
    batch.update(SimpleNamespace(removed=[], moved=[], added=[(i, p, None, t) for i,(p,t) in enumerate(zip(asked, texts))]))
    got = sampler(logits.clone(), batch, asked)
    assert torch.allclose(got, want, atol=1e-6)
    assert ((got - (logits/torch.tensor([[p.temperature] for p in asked])).softmax(-1)).abs().sum(1) > .01).sum() >= 6


def test_cut_after_the_mark_would_be_another_law(markers):
    "Why top-p is taken over: left to the sampler, it cuts the marked distribution"
    g = torch.Generator().manual_seed(0)
    text, x = torch.randint(200, 400, (30,), generator=g).tolist(), torch.randn(49152, generator=g)*4
    p = Params(top_p=.8)
    want = transformers_law(markers['default'].scheme, text, x, p)
    late = sorted_cut(markers['default'].mark_rows(x[None], torch.tensor([text]), torch.tensor([0]), torch.tensor([0]), torch.tensor([30]), 30),
                      torch.tensor([49152]), torch.tensor([.8]))[0].softmax(-1)
    assert (late - want).abs().sum() > .05


def test_tokens_that_are_known_late(markers):
    "Under asynchronous scheduling a list ends in -1 until just before the step that needs the token; also if that is read meanwhile"
    marker, g = markers['default'], torch.Generator().manual_seed(3)
    tokens = torch.randint(200, 260, (3, 24), generator=g).tolist()
    lists, batch = [[] for _ in tokens], ListBatch(dict(default=marker))
    batch.update(SimpleNamespace(removed=[], added=[(i, Params(top_k=20*(i == 1)), None, t) for i,t in enumerate(lists)], moved=[]))
    for n in range(24):
        logits = 4*torch.randn(3, marker.scheme.table.rows.shape[0], generator=g)
        for t,own in zip(lists, tokens): t.append(-1)
        if n % 5 == 4: batch.apply(logits.clone())             # a step that nobody draws from
        for t,own in zip(lists, tokens): t[-1] = own[n]        # the same list, as vLLM changes it
        batch.update(None)
        got = batch.apply(logits.clone()).softmax(-1)
        for i,own in enumerate(tokens):
            x = sorted_cut(logits[i:i+1], torch.tensor([20]), None) if i == 1 else logits[i:i+1]
            want = DEWLogitsProcessor(marker.scheme, 0)(torch.tensor([own[:n+1]]), x)[0].softmax(-1)
            torch.testing.assert_close(got[i], want, atol=1e-6, rtol=0)


def test_requests_come_go_and_move(markers):
    "A thousand random events; after each, every row is what its request would have alone"
    rng, g = random.Random(1), torch.Generator().manual_seed(1)
    kinds = [dict(), dict(extra_args=dict(dew='bob')), dict(extra_args=dict(dew=0)), dict(temperature=0)]
    batch, truth = ListBatch(markers), {}                       # place in the batch: name of the scheme or None, tokens
    logits = torch.randn(8, 600, generator=g)*3
    for step in range(120):
        removed, added, moved = [], [], []
        for i in list(truth):
            if rng.random() < .1: removed.append(i); del truth[i]
        for i in range(8):
            if i not in truth and rng.random() < .3:
                kind = rng.randrange(4)
                tokens = [rng.randrange(200, 206) for _ in range(rng.choice([0, 0, 5, 20]))]    # those with tokens come back
                truth[i] = ['default', 'bob', None, None][kind], tokens
                added.append((i, Params(**kinds[kind]), None, tokens))
        for _ in range(rng.choice([0, 0, 1, 2])):
            a, b = rng.sample(range(8), 2)
            swap = rng.random() < .5
            if not (a in truth and (b in truth or not swap)): continue
            moved.append((a, b, Move.SWAP if swap else Move.UNIDIRECTIONAL))
            first, second = truth.pop(a), truth.pop(b, None)
            truth[b] = first
            if swap: truth[a] = second
        changed = removed or added or moved
        batch.update(SimpleNamespace(removed=removed, added=added, moved=moved) if changed else None)
        got = batch.apply(logits.clone())
        for i in range(8):
            name, tokens = truth.get(i, (None, []))
            if name is None: assert torch.equal(got[i], logits[i])
            else:
                want = DEWLogitsProcessor(markers[name].scheme, 0)(torch.tensor([tokens]).long().reshape(1, -1), logits[i:i+1])[0]
                assert torch.allclose(got[i].softmax(-1), want.softmax(-1), atol=1e-6), (step, i)
        for _,tokens in truth.values(): tokens.append(rng.randrange(200, 206))
    assert len(batch.texts) == sum(n is not None for n,_ in truth.values())


@pytest.mark.parametrize('switch, args', [('DEW_ALLOW_OPT_OUT', dict(dew=False)), ('DEW_ALLOW_OPT_OUT', dict(dew='off')), ('DEW_ALLOW_OPT_OUT', dict(dew=0)),
                                          ('DEW_ALLOW_TEXT_NAME', dict(dew_text='always the same')), ('DEW_ALLOW_TEXT_NAME', dict(dew='bob', dew_text=7))])
def test_what_a_server_must_allow(files, monkeypatch, switch, args):
    "Nobody switches the mark off or names the text, unless the server's own environment says so; the answer names the switch"
    monkeypatch.setenv('DEW_SCHEMES', ','.join(f'{n}={f}' for n,f in files.items()))
    cls = processor_class()
    for off in (None, '', '0', 'no'):
        if off is not None: monkeypatch.setenv(switch, off)
        with pytest.raises(ValueError, match=f'does not allow.*{switch}=1'): cls.validate_params(Params(extra_args=dict(args)))
    for n in ('DEW_ALLOW_OPT_OUT', 'DEW_ALLOW_TEXT_NAME'): monkeypatch.setenv(n, '1' if n != switch else '0')
    with pytest.raises(ValueError, match=f'{switch}=1'): cls.validate_params(Params(extra_args=dict(args)))      # the other one does not do
    monkeypatch.setenv(switch, '1')
    cls.validate_params(Params(extra_args=dict(args)))
    monkeypatch.setenv(switch, 'perhaps')
    with pytest.raises(ValueError, match=f"{switch} must be 1 or 0.*'perhaps'"): cls(SimpleNamespace(speculative_config=None, model_config=None), torch.device('cpu'))


def test_a_name_of_the_server_is_not_the_clients(wm, tmp_path, monkeypatch):
    "dew_name, which the server sets, pins no sub-key when a client sends it"
    many = DEW.build(wm.host, Letters(), KEYS['default'], replace(CONFIG, keys=8), progress=False)
    monkeypatch.setenv('DEW_SCHEME', str(many.detector().save(tmp_path/'many.dew')))
    drawn = set()
    for _ in range(40):
        p = Params(extra_args=dict(dew_name='always the same'))
        processor_class().validate_params(p)
        drawn.add(RowMarker(many).subkey(p))
    assert len(drawn) > 4


def test_a_replaced_file_is_read_again(wm, files, tmp_path):
    "Also where its size and its time are those of the old one"
    path = tmp_path/'harbour.dew'
    shutil.copy2(files['default'], path)
    before = path.stat()
    assert file_choices(path).rule.m == 64
    other = tmp_path/'other.dew'
    DEW.build(wm.host, Letters(), KEYS['default'], replace(CONFIG, m=65), progress=False).detector().save(other)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(other, path)
    now = path.stat()
    assert (now.st_size, now.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert file_choices(path).rule.m == 65


class Noting(RowMarker):
    "A marker that notes how much of the texts it was given"
    def mark(self, logits, text, *args, **kwargs):
        self.width = text.shape[1]
        return super().mark(logits, text, *args, **kwargs)


def test_a_long_prompt_is_not_copied(markers):
    "The V2 runner keeps prompt and answer in one row: a step takes the answer, and marks as if there were no prompt"
    scheme, g = markers['default'].scheme, torch.Generator().manual_seed(4)
    P, n, V = [20_000, 7], [30, 12], scheme.table.rows.shape[0]
    ids, logits = torch.randint(200, 260, (3, 20_100), generator=g, dtype=torch.int32), 4*torch.randn(2, V, generator=g)
    kept = lambda x: SimpleNamespace(gpu=x, np=x.numpy())
    states = SimpleNamespace(device='cpu', max_num_reqs=3, all_token_ids=kept(ids), prompt_len=kept(torch.tensor([P[0], 0, P[1]], dtype=torch.int32)),
                             total_len=kept(torch.tensor([P[0]+n[0], 0, P[1]+n[1]], dtype=torch.int32)))
    noting, order = Noting(scheme), np.array([2, 0])
    batch = SlotBatch(dict(default=noting), states)
    for slot in order: batch.add(slot, Params())
    batch.send()
    ctx = SimpleNamespace(idx_mapping_np=order, expanded_idx_mapping=torch.tensor(order), seq_lens_upper_bound_np=states.total_len.np[order])
    got = batch.apply(logits.clone(), ctx)
    assert noting.width <= max(n)
    for i,(slot,p,m) in enumerate(zip(order, P[::-1], n[::-1])):
        want = DEWLogitsProcessor(scheme, 0)(ids[slot:slot+1, p:p+m].long(), logits[i:i+1])[0]
        torch.testing.assert_close(got[i].softmax(-1), want.softmax(-1), atol=1e-6, rtol=0)


@pytest.mark.parametrize('bad', ['eve', 2, [], None])
def test_bad_requests_are_refused(files, monkeypatch, bad):
    monkeypatch.setenv('DEW_SCHEME', str(files['default']))
    monkeypatch.setenv('DEW_SCHEMES', f'bob={files["bob"]}')
    cls = processor_class()
    with pytest.raises(ValueError, match='default, bob'): cls.validate_params(Params(extra_args=dict(dew=bad)))


def fake_vllm(monkeypatch):
    "vLLM's two interfaces, as modules"
    class First(ABC):
        @abstractmethod
        def __init__(self, vllm_config, device, is_pin_memory): ...
        @abstractmethod
        def apply(self, logits): ...
        @abstractmethod
        def is_argmax_invariant(self): ...
        @abstractmethod
        def update_state(self, batch_update): ...
    class Second(ABC):
        @abstractmethod
        def apply(self, logits, ctx): ...
    for name,cls in zip(served.INTERFACES, (First, Second)):
        for i in range(len(name.split('.'))): monkeypatch.setitem(sys.modules, '.'.join(name.split('.')[:i+1]), ModuleType('fake'))
        sys.modules[name].LogitsProcessor = cls
    monkeypatch.delitem(served.__dict__, 'DEW', raising=False)
    return First, Second


def test_loaded_by_name(files, monkeypatch):
    "getattr of the module gives a class of both interfaces, the same one each time, that starts with the file of the environment"
    first, second = fake_vllm(monkeypatch)
    cls = getattr(served, 'DEW')
    assert issubclass(cls, first) and issubclass(cls, second) and cls is served.DEW and cls.__module__ == 'dew_nb.serving.vllm'
    monkeypatch.setenv('DEW_SCHEME', str(files['default']))
    proc = cls(SimpleNamespace(speculative_config=None, model_config=None), torch.device('cpu'), False)
    assert proc.is_argmax_invariant() and 'default' in repr(proc)
    monkeypatch.delitem(served.__dict__, 'DEW')


def test_without_vllm_the_module_imports_and_says_what_is_missing(monkeypatch):
    for m in ('vllm', 'vllm.v1'): monkeypatch.setitem(sys.modules, m, None)
    spec = importlib.util.spec_from_file_location('dew_nb.serving.vllm_again', served.__file__)
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    with pytest.raises(ImportError, match='pip install vllm'): again.DEW
    assert not hasattr(again, 'Nothing')


def test_transformers_door_from_a_file(wm, files):
    "A file alone marks in model.generate: no key, no encoder, no scheme object with a host"
    tok, model = wm.host.tokenizer, wm.host.model
    inp = tok(['The old harbour', 'Bread'], return_tensors='pt', padding=True)
    det = Detector.load(files['bob'])
    torch.manual_seed(0)
    with torch.no_grad(): out = model.generate(**inp, watermarking_config=DEWWatermarkingConfig(det.scheme), max_new_tokens=48, do_sample=True,
                                               temperature=.9, top_k=0, top_p=.98, pad_token_id=tok.pad_token_id)
    texts = tok.batch_decode(out[:, inp['input_ids'].shape[1]:], skip_special_tokens=True)
    assert all(r.p_value < 1e-3 for r in det.detect(texts)) and not any(r.p_value < 1e-3 for r in wm.detector().detect(texts))


def test_processor_before_warpers_is_refused(wm):
    "A tournament as a plain logits processor would stand before top-p: generate says so instead of writing"
    tok, model = wm.host.tokenizer, wm.host.model
    inp = tok('The old harbour', return_tensors='pt')
    how = dict(max_new_tokens=24, do_sample=True, pad_token_id=tok.pad_token_id)
    torch.manual_seed(0)
    with pytest.raises(ValueError, match='watermarking_config'): model.generate(**inp, logits_processor=[wm.processor()], top_p=.9, **how)
    assert model.generate(**inp, logits_processor=[wm.processor()], top_k=0, **how).shape[1] <= inp['input_ids'].shape[1] + 24
