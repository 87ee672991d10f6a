"Eight threads get what one thread gets: encoders, contexts, detection, insertion, and on a GPU recorded graphs"
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from threading import Event, Thread

import numpy as np
import pytest
import torch

from dew_nb import DEW, DEWConfig, SecretKey, load_encoder
from dew_nb.mark.context import ContextEncoder
from dew_nb.models.graphs import FixedShapeEncoder
from dew_nb.models.vectors import tf32
from dew_nb.mark.processor import marker_of
from dew_nb.mark.protocols import MarkState, insert
from dew_nb.serving.vllm_rows import more_rows
from dew_nb.mark.sources import TokenSpace, reference_texts
from dew_nb.mark.tournament import tournament
from dew_nb.serving.vllm import RowMarker
from dew_nb.mark.windows import special_mask
from quick import toy_host

DEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'
CLOSE = dict(atol=1e-3 if DEVICE == 'cuda' else 1e-5, rtol=0)      # one thread and eight may make other batches


@contextmanager
def unwaiting():
    "On a GPU, an error where something waits for it"
    if DEVICE == 'cuda': torch.cuda.set_sync_debug_mode('error')
    try: yield
    finally:
        if DEVICE == 'cuda': torch.cuda.set_sync_debug_mode('default')


def all_at_once(f, items):
    with ThreadPoolExecutor(8) as threads: return list(threads.map(f, items))


@pytest.fixture(scope='module')
def texts(): return [' '.join(t.split()[:14]) for t in reference_texts()[:12]]


@pytest.fixture(scope='module')
def scheme(texts):
    host, enc = toy_host(device=DEVICE), load_encoder(device=DEVICE)
    tokens = TokenSpace.of_host(host, None).narrow(np.concatenate([host.tokenizer(t)['input_ids'] for t in texts]))
    return DEW.build(host, enc, SecretKey(b'an example key: never use this one'), DEWConfig.preset('calibrated', token_whitening=None),
                     reference=texts, tokens=tokens, progress=False)


def fresh(scheme, cache):
    "The scheme with a context space of its own around the same encoder"
    c = scheme.contexts
    return replace(scheme, contexts=ContextEncoder(c.encoder, scheme.host.tokenizer, c.k, c.transform, cache))


def test_one_encoder_for_all(scheme):
    "Texts of all lengths, so that the tokenizer is told to pad otherwise each time"
    enc = scheme.contexts.encoder
    lots = [[f'{"very "*(i*j % 7)}long number {i}' for j in range(3)] for i in range(16)]
    for a,b in zip(all_at_once(enc.encode, lots), map(enc.encode, lots)): np.testing.assert_allclose(a, b, **CLOSE)


def test_one_context_encoder_with_a_busy_memory(scheme):
    rng = np.random.default_rng(0)
    w = rng.integers(100, 40_000, (60, 3))
    asked = [rng.integers(0, 60, 12) for _ in range(24)]
    shared, alone = fresh(scheme, 64).contexts, fresh(scheme, 0).contexts
    answer = alone.encode(w)
    for i,v in zip(asked, all_at_once(lambda i: shared.encode(w[i]), asked)):
        torch.testing.assert_close(v, answer[torch.as_tensor(i, device=v.device)], **CLOSE)


def same(a, b):
    for x,y in zip(a, b): assert [x.z, x.score] == pytest.approx([y.z, y.score], abs=1e-3) and x.n_scored == y.n_scored


def test_one_detector(scheme, texts):
    det = fresh(scheme, 256).detector()
    same(all_at_once(det.detect, texts), [det.detect(t) for t in texts])


def test_detectors_that_share_an_encoder(scheme, texts):
    "As a server has them: many files, one encoder"
    dets = [fresh(scheme, 256).detector() for _ in range(8)]
    same(all_at_once(lambda i: dets[i % 8].detect(texts[i]), range(12)), [dets[0].detect(t) for t in texts])


def test_processors(scheme, texts):
    "Eight calls of generate, step by step"
    wm, tok = fresh(scheme, 256), scheme.host.tokenizer
    def steps(i):
        g = torch.Generator().manual_seed(i)
        ids, p = torch.tensor([tok(texts[i])['input_ids'][:11]]), wm.processor(2)
        return torch.stack([p(ids[:, :T], torch.randn(1, len(scheme.table), generator=g)) for T in range(2, 11)])
    for a,b in zip(all_at_once(steps, range(8)), map(steps, range(8))): torch.testing.assert_close(a, b, **CLOSE)


def test_generate(scheme):
    "Seeds hold in threads, whoever else draws; prompts are of many lengths"
    def write(i): return scheme.generate(['The old harbour', 'It was '*(i + 1)], max_new_tokens=4, seed=i)
    assert all_at_once(write, range(8)) == [write(i) for i in range(8)]


@pytest.mark.skipif(DEVICE == 'cpu', reason='needs a GPU')
def test_recorded_graphs(scheme):
    "One set of graphs, eight threads, each with its stream; shapes are recorded while others replay"
    enc, rng = scheme.contexts.encoder, np.random.default_rng(0)
    fast, words = FixedShapeEncoder(enc), 'the old harbour was quiet when they came home'.split()
    lots = [[' '.join(rng.choice(words, 3)) for _ in range(rng.integers(1, 40))] for _ in range(400)]
    def encode(texts):
        with torch.cuda.stream(torch.cuda.Stream()): return fast.encode(texts)
    for a,b in zip(all_at_once(encode, lots), map(enc.encode, lots)): np.testing.assert_allclose(a, b, **CLOSE)
    assert fast.model.record and len(fast.model.graphs) > 3


@pytest.fixture(scope='module')
def tour():
    host, enc = toy_host(device=DEVICE), load_encoder(device=DEVICE)
    return DEW.build(host, enc, SecretKey(b'an example key: never use this one'), progress=False)


def step(wm, i, dtype=torch.float32):
    "Ids and logits of a step, some of them masked; the batch and the length go by i"
    g = torch.Generator().manual_seed(i)
    ids, s = torch.randint(300, 330, (1 + i % 5, 7 + i), generator=g), torch.randn(1 + i % 5, len(wm.table), generator=g)*4
    s[:, i::7] = -torch.inf
    return ids.to(DEVICE), s.to(DEVICE, dtype)


def plainly(wm, ids, s, start=None, end=None):
    "The marked logits without a recorded step: where each answer is, then `insert`"
    at = lambda x, n: torch.full((len(ids),), n, device=ids.device) if x is None else x
    state = MarkState(at(start, 2), at(end, ids.shape[1]), special_mask(wm.contexts.special).to(ids.device))
    c, on = wm.contexts.place(ids, None, wm.rule, state)
    return insert(wm.rule, s, wm.rule.project(c), on)


def test_steps_of_the_tournament(tour):
    "Eight threads mark steps of five batch sizes; on a GPU each has its stream, and shapes are recorded while others replay"
    def mark(i):
        ids, s = step(tour, i)
        if DEVICE == 'cpu': return tour.processor(2, drawn=True)(ids, s)
        own = torch.cuda.Stream()
        own.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(own): out = tour.processor(2, drawn=True)(ids, s)
        own.synchronize()
        return out
    for i,x in enumerate(all_at_once(mark, range(20))):
        want = plainly(tour, *step(tour, i))
        if DEVICE == 'cpu': assert torch.equal(x, want)
        else: torch.testing.assert_close(x.softmax(-1), want.softmax(-1), atol=1e-5, rtol=0)
    if DEVICE == 'cuda': assert marker_of(tour).whole.record and len(marker_of(tour).whole.graphs) >= 5


@pytest.mark.skipif(DEVICE == 'cpu', reason='needs a GPU')
def test_a_recorded_step_is_the_plain_one(tour):
    "Growing texts, half precision, rows left alone; and nothing waits for the GPU"
    p = tour.watermarking_config().construct_processor(len(tour.table), DEVICE)
    ids, s = step(tour, 24)
    p(ids[:, :2], s)
    for T in range(3, 31):
        with unwaiting() if T == 12 else nullcontext(): out = p(ids[:, :T], s)
        want = plainly(tour, ids[:, :T], s) if T > 5 else s
        torch.testing.assert_close(out.softmax(-1), want.softmax(-1), atol=1e-5, rtol=0)
        assert not out.isnan().any()
    ids, s = step(tour, 3, torch.bfloat16)
    assert tour.processor(2, drawn=True)(ids, s).dtype == torch.bfloat16
    assert marker_of(tour).whole.record


def test_a_served_step_is_the_plain_one(tour):
    "Rows of a server's batch as `insert` marks them; rows that fill a shape change nothing; on a GPU it is recorded, and nothing waits"
    marker, g = RowMarker(tour), torch.Generator().manual_seed(0)
    for B in (1, 3, 16, 128 if DEVICE == 'cuda' else 32, 3):
        ids, s = torch.randint(300, 330, (B, 512), generator=g).to(DEVICE), (torch.randn(B, len(tour.table), generator=g)*4).to(DEVICE)
        ends = torch.randint(2, 300, (B,), generator=g)
        rows, start, end, longest = torch.arange(B).flip(0).to(DEVICE), torch.zeros(B, dtype=torch.long, device=DEVICE), ends.to(DEVICE), int(ends.max())
        want = plainly(tour, ids[rows], s, start, end).softmax(-1)
        for waits in (True, False):
            with nullcontext() if waits else unwaiting(): out = marker.mark_rows(s, ids, rows, start, end, longest)
            torch.testing.assert_close(out.softmax(-1), want, atol=1e-5, rtol=0)
        _, values, at = tour.rule.candidates(s)
        given = values, at, ids[rows], start, end
        torch.testing.assert_close(marker.inner(*more_rows(given, B + 5))[:B], marker.inner(*given), atol=1e-4, rtol=1e-4)
    if DEVICE == 'cuda': assert marker.inner.record and marker.whole.record and len(marker.whole.graphs) > 2


@pytest.mark.skipif(DEVICE == 'cpu', reason='needs a GPU')
def test_the_layers_on_a_gpu(tour):
    "One kernel, or tensor operations where there is no Triton: what a CPU computes; also where the host is sure"
    g = torch.Generator().manual_seed(0)
    for B,V,scale in ((1, 257, 3.), (64, 257, 3.), (5, 1000, .5), (3, 33, 40.)):
        p = (torch.randn(B, V, generator=g)*scale).softmax(-1)
        beta = torch.randint(-1, 2, (B, 30, V), generator=g).float()
        out = tournament(p.to(DEVICE), beta.to(DEVICE))
        assert (out >= 0).all()
        torch.testing.assert_close(out.cpu(), tournament(p, beta), atol=1e-5, rtol=0)


@pytest.mark.skipif(DEVICE == 'cpu', reason='needs a GPU')
def test_a_compiled_host_with_a_static_cache(tour):
    "Texts of a host whose step transformers compiles carry the mark"
    how = dict(max_new_tokens=96, seed=3, cache_implementation='static')
    texts = tour.generate(['The old harbour', 'In the middle of the night, the'], **how)
    assert max(r.p_value for r in tour.detector().detect(texts)) < 1e-3


def test_digits_of_products_in_threads():
    "The precision of products is one for the process: threads that leave in another order take nothing from each other, and what the program had set comes back"
    mine = torch.get_float32_matmul_precision()
    a_in, b_in, a_out, seen = Event(), Event(), Event(), {}
    def a():
        with tf32(False):
            a_in.set()
            b_in.wait(20)
        a_out.set()
    def b():
        a_in.wait(20)
        with tf32(False):
            b_in.set()
            a_out.wait(20)
            seen['b alone'] = torch.get_float32_matmul_precision()
    def allows(i):
        "Many threads of both kinds: whoever asks for all digits has them"
        with tf32(bool(i % 3)): seen[i] = torch.get_float32_matmul_precision() == 'highest' or bool(i % 3)
    try:
        torch.set_float32_matmul_precision('high')
        both = [Thread(target=f) for f in (a, b)]
        for t in both: t.start()
        for t in both: t.join()
        assert seen.pop('b alone') == 'highest'
        all_at_once(allows, range(300))
        assert all(seen.values()) and torch.get_float32_matmul_precision() == 'high'
    finally: torch.set_float32_matmul_precision(mine)
