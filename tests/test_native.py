"The tournament behind vLLM's own watermarker: what needs no vLLM; `make serve-test` tries it with vLLM's classes"
import sys
from collections import namedtuple
from types import ModuleType

import pytest
import torch

from dew_nb import DEW, DEWConfig, SecretKey
from dew_nb.serving import native
from dew_nb.serving.native import DualTournamentMark, TournamentMark, draw_last, mark_contexts, native_mark, native_rejection, register, residual_logits
from quick import Letters, toy_host

KEY = SecretKey(b'an example key: never use this one')
CONFIG = dict(m=64, n=32, layers=12, k=3, context_width=32, context_decay=1., context_damping=None, token_repeat=1.)
Sample = namedtuple('Sample', 'token_ids logits')
Single = type('Single', (TournamentMark,), dict(Sample=Sample))
Dual = type('Dual', (DualTournamentMark,), dict(Sample=Sample, Single=Single))


def build(without=(), **changes): return DEW.build(toy_host(), Letters(), KEY, DEWConfig(**{k: v for k,v in (CONFIG | changes).items() if k not in without}), progress=False)


@pytest.fixture(scope='module')
def wm(): return build()


@pytest.fixture(scope='module')
def two(): return build(keys=2)


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    "No scheme or policy of another test"
    for name in ('DEW_NATIVE', 'DEW_POLICY', 'DEW_POLICY_DIGEST'): monkeypatch.delenv(name, raising=False)
    native_mark.cache_clear()
    yield
    native_mark.cache_clear()


def batch(V=400, B=5, k=3, seed=0):
    g = torch.Generator().manual_seed(seed)
    return 4*torch.randn(B, V, generator=g), torch.randint(300, 9000, (B, k), generator=g), g


# ---------------------------------------------------------------- one key
def test_rows_that_are_not_marked_keep_their_logits(wm):
    "No full window, a special token in it, or a row to skip"
    z, c, g = batch(wm.host.vocab_size)
    c[1, 0], c[2, 2] = -1, int(wm.contexts.units.special[0])
    seen = []
    def draw(x): seen.append(x); return x.argmax(-1)
    out = Single(wm).sample(z, c, draw, torch.tensor([False, False, False, True, False]))
    moved = (seen[0].softmax(-1) - z.softmax(-1)).abs().sum(1) > 1e-4
    assert moved.tolist() == [True, False, False, False, True]
    assert torch.equal(out.logits, z)                                           # what a client or a draft is compared with is the host's


def test_without_random_numbers_it_says_so(wm):
    z, c, _ = batch(wm.host.vocab_size)
    for call in (lambda: Single(wm).sample(z, c), lambda: Single(wm)._sample_watermarked(z, c)):
        with pytest.raises(ValueError, match='0.30 or newer'): call()


def test_sub_keys_differ(two):
    "Drafts and replacements are marked under different keys, each as the scheme's rule does"
    z, c, _ = batch(two.host.vocab_size)
    dual = Dual(two)
    a, b = (w.marked(z, c).softmax(-1) for w in (dual.draft_watermarker, dual.target_watermarker))
    assert torch.equal(a, dual.marked(z, c).softmax(-1)) and (a - b).abs().sum(1).min() > .01
    assert torch.equal(a, mark_contexts(two, dual.special, z, c, 0).softmax(-1)) and dual.context_width == 3


def test_one_sub_key_is_not_enough(wm):
    with pytest.raises(ValueError, match='two sub-keys'): Dual(wm)


# ---------------------------------------------------------------- speculative decoding
@pytest.mark.parametrize('seed', range(8))
def test_the_residual_is_what_the_theory_says(seed):
    "(p - q)+ for a refused draft, p where none was; without the draft's probabilities, p less the draft"
    g = torch.Generator().manual_seed(seed)
    p, q = (5*torch.randn(6, 50, generator=g)).softmax(-1), (5*torch.randn(6, 40, generator=g)).softmax(-1)
    p[0, :10], q[1, :10] = 0, 0
    p, q = p/p.sum(1, keepdim=True), q/q.sum(1, keepdim=True)
    wide = torch.nn.functional.pad(q, (0, 10))
    refused = torch.tensor([3, 3, 39, -1, 0, -1])
    want = (p - wide).clamp_min(0)
    want = torch.where(refused[:, None] < 0, p, want/want.sum(1, keepdim=True))
    torch.testing.assert_close(residual_logits(p.log(), q.log(), refused).softmax(-1), want, atol=1e-5, rtol=1e-3)
    left = p.scatter(1, refused.clamp_min(0)[:, None], 0)
    want = torch.where(refused[:, None] < 0, p, left/left.sum(1, keepdim=True))
    torch.testing.assert_close(residual_logits(p.log(), None, refused).softmax(-1), want, atol=1e-5, rtol=1e-3)


def test_nothing_remains_by_rounding():
    "A host that was sure of the draft, and a draft model that says the same: something is drawn all the same"
    sure = torch.tensor([[-torch.inf, 0., -torch.inf]])
    for draft in (sure, None): assert residual_logits(sure, draft, torch.tensor([1])).softmax(-1).tolist() == [[0, 1, 0]]


def rounds(two, S=2, B=6, V=400, seed=0):
    "The arguments of `draw_last` for B requests of S drafts each, the last of which are greedy, not marked and without a token"
    g = torch.Generator().manual_seed(seed)
    rows = B*(S + 1)
    n = torch.tensor([1, 2, 3, 3, 2, 0])
    T = torch.tensor([1., .7, 1., 0., 1., 1.])
    slots = torch.tensor([4, 2, 5, 0, 1, 3])                                    # in any order
    of_slot = torch.empty(B)
    of_slot[slots] = T
    on = torch.ones(rows, dtype=torch.bool)
    on[4*(S + 1):5*(S + 1)] = False
    return dict(mark=Dual(two).target_watermarker, sampled=torch.randint(0, V, (B, S + 1), generator=g), num_sampled=n, target_logits=3*torch.randn(rows, V, generator=g),
                draft_logits=3*torch.randn(B, S, V, generator=g), draft_sampled=torch.randint(0, V, (rows,), generator=g), cu_num_logits=torch.arange(B + 1)*(S + 1),
                slots=slots.repeat_interleave(S + 1), temperature=of_slot, contexts=torch.randint(300, 9000, (rows, 3), generator=g), on=on)


def test_only_the_last_token_is_drawn_again(two):
    "From the residual under the target's key where a draft was refused, from the host's distribution after all drafts; greedy rows and rows without a mark or a token keep theirs"
    r, seen = rounds(two), {}
    before = r['sampled'].clone()
    def draw(x, at):
        seen.update(zip(at.tolist(), x))
        return torch.full((len(x),), 399)
    draw_last(**r, draw=draw)
    changed = (r['sampled'] != before).nonzero().tolist()
    assert changed == [[i, j] for i,j in ((0, 0), (1, 1), (2, 2)) if before[i, j] != 399]
    assert sorted(seen) == [0, 4, 8, 11, 13]                                    # the row of each last token; the request without tokens has none
    q = r['draft_logits'][4, 0]                                                 # the first request: its first draft was refused
    want = mark_contexts(two, r['mark'].special, residual_logits(r['target_logits'][:1], q[None], r['draft_sampled'][1:2]), r['contexts'][:1], 1)
    torch.testing.assert_close(seen[0].softmax(-1), want[0].softmax(-1))
    q = r['draft_logits'][2, 1]/.7                                              # the second: the second of two, at its temperature
    want = mark_contexts(two, r['mark'].special, residual_logits(r['target_logits'][4:5], q[None], r['draft_sampled'][5:6]), r['contexts'][4:5], 1)
    torch.testing.assert_close(seen[4].softmax(-1), want[0].softmax(-1))
    want = mark_contexts(two, r['mark'].special, r['target_logits'][8:9].log_softmax(-1), r['contexts'][8:9], 1)
    torch.testing.assert_close(seen[8].softmax(-1), want[0].softmax(-1))        # the third: a token after all drafts
    torch.testing.assert_close(seen[13].softmax(-1), residual_logits(r['target_logits'][13:14], r['draft_logits'][1, 1:2], r['draft_sampled'][14:15])[0].softmax(-1))   # not marked


def test_drafts_that_were_not_drawn(two):
    "An n-gram's drafts have no probabilities"
    r = rounds(two)
    r['draft_logits'] = None
    seen = {}
    draw_last(**r, draw=lambda x, at: seen.update(zip(at.tolist(), x)) or torch.zeros(len(x), dtype=torch.long))
    assert seen[0].softmax(-1)[r['draft_sampled'][1]] == 0


# ---------------------------------------------------------------- in place
def fake_vllm(monkeypatch):
    "Modules with the names that the tournament is put in the place of"
    made = {n: ModuleType(n) for n in {'vllm', 'vllm.v1', 'vllm.v1.worker', 'vllm.v1.worker.gpu', 'vllm.v1.worker.gpu.spec_decode', *native.FACTORIES, *native.NEEDED}}
    for name,module in made.items(): monkeypatch.setitem(sys.modules, name, module)
    wm = made['vllm.v1.watermarking.watermarker']
    wm.Watermarker, wm.SupportsSpeculativeDecoding, wm.WatermarkSample = type('Watermarker', (), {}), type('SupportsSpeculativeDecoding', (), {}), Sample
    class RandomSampler:
        def __init__(self, *args, use_fp64=False): self.args = args
        def __call__(self, x): return x.argmax(-1)
    wm.RandomSampler = RandomSampler
    for name in native.FACTORIES[:4]: made[name].create_watermarker = 'vLLM'
    made['vllm.v1.watermarking.spec_decode'].speculative_target_watermark_key = 'vLLM'
    made['vllm.v1.worker.gpu.spec_decode.rejection_sampler'].rejection_sample = lambda *a, **k: 'vLLM'
    return made


def test_nothing_happens_unless_it_is_asked_for(monkeypatch):
    made = fake_vllm(monkeypatch)
    register()
    assert made['vllm.v1.watermarking'].create_watermarker == 'vLLM'


def test_factories_are_replaced_once(monkeypatch, two, tmp_path):
    "Wherever vLLM has imported them; and a second call, as vLLM makes it in each process, changes nothing"
    made = fake_vllm(monkeypatch)
    monkeypatch.setenv('DEW_NATIVE', str(two.detector().save(tmp_path/'two.dew')))
    register()
    place = made['vllm.v1.worker.gpu.spec_decode.rejection_sampler']
    once = place.rejection_sample
    register()
    assert place.rejection_sample is once and once.__wrapped__() == 'vLLM'
    marks = {made[n].create_watermarker(None) for n in native.FACTORIES[:4]}
    assert len(marks) == 1 and isinstance(marks.pop(), made['vllm.v1.watermarking.watermarker'].SupportsSpeculativeDecoding)
    assert not hasattr(made[native.FACTORIES[4]], 'create_watermarker')
    assert [made['vllm.v1.watermarking.spec_decode'].speculative_target_watermark_key(x) for x in (None, object())] == [None, 0]


@pytest.mark.parametrize('module', list(native.NEEDED))
def test_another_release_is_refused(monkeypatch, module):
    "By name, before a word is served without a mark"
    made = fake_vllm(monkeypatch)
    monkeypatch.setenv('DEW_NATIVE', 'x.dew')
    delattr(made[module], native.NEEDED[module])
    with pytest.raises(RuntimeError, match=native.NEEDED[module]): register()


def test_policy_and_native_exclude_each_other(monkeypatch):
    "A policy would not be kept: nobody would see a request"
    fake_vllm(monkeypatch)
    monkeypatch.setenv('DEW_NATIVE', 'x.dew')
    monkeypatch.setenv('DEW_POLICY', 'policy.toml')
    with pytest.raises(ValueError, match='DEW_POLICY beside DEW_NATIVE'): register()


@pytest.mark.parametrize('changes, why', [(dict(token_repeat=.3), 'token_repeat'), (dict(rule='bias', without=['layers']), 'use a tournament')])
def test_files_that_cannot_be_served_so(monkeypatch, tmp_path, changes, why):
    monkeypatch.setenv('DEW_NATIVE', str(build(**changes).detector().save(tmp_path/'x.dew')))
    with pytest.raises(ValueError, match=why): native_mark()


def test_a_server_without_watermarks_draws_as_before(two):
    "No contexts: vLLM's tokens, untouched"
    inner = lambda *a, **k: (torch.tensor([[1]]), torch.tensor([1]))
    sampled, n = native_rejection(inner, lambda: None)(*[None]*10)
    assert sampled.tolist() == [[1]] and n.tolist() == [1]


def test_rejection_draws_with_the_requests_random_numbers(monkeypatch, two):
    "Slots, temperatures, seeds and places of the rows that are drawn go to vLLM's sampler"
    made, r, seen = fake_vllm(monkeypatch), rounds(two), []
    class Sampler:
        def __init__(self, *args, use_fp64=False): seen.append((*args, use_fp64))
        def __call__(self, x): return torch.full((len(x),), 399)
    made['vllm.v1.watermarking.watermarker'].RandomSampler = Sampler
    pos, seed, S = torch.arange(18)*10, torch.arange(6), r['sampled'].clone()
    wrapped = native_rejection(lambda *a, **k: (S, r['num_sampled']), lambda: Dual(two))
    marks = torch.tensor([True, False, True, True, True, True])                 # by slot: that of the fifth request is off
    got, _ = wrapped(r['target_logits'], r['draft_logits'], r['draft_sampled'], r['cu_num_logits'], pos, None, r['slots'], None, r['temperature'], seed, 2,
                     contexts=r['contexts'], watermarking=marks, watermarking_skip_mask=torch.arange(18) == 8, use_fp64=True)
    (slots, temperature, seeds, at, fp64), = seen
    assert slots.tolist() == [4, 2, 5, 0, 1] and at.tolist() == [0, 40, 80, 110, 130] and torch.equal(temperature, r['temperature']) and torch.equal(seeds, seed) and fp64
    assert [got[0, 0], got[1, 1]] == [399, 399] and got[2, 2] == r['sampled'][2, 2] and got[4, 1] == r['sampled'][4, 1]


def test_with_vllm_itself():
    "Its classes take ours, where it is installed"
    wm = pytest.importorskip('vllm.v1.watermarking.watermarker')
    single, dual = native.watermarker_classes()
    assert issubclass(single, wm.Watermarker) and issubclass(dual, wm.SupportsSpeculativeDecoding)
