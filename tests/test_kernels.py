"The kernels of a marking step against the tensor operations; without a GPU by Triton's interpreter, in a process of its own, since Triton chooses when it is imported"
import importlib.util, os, subprocess, sys
from functools import lru_cache

import pytest


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton: make scale-test")
def test_kernels():
    "The kernels do what the tensor operations do"
    done = subprocess.run([sys.executable, __file__], env=os.environ | dict(TRITON_INTERPRET="1"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


@lru_cache
def scheme():
    from dew_nb import DEW, SecretKey, load_encoder, load_host

    return DEW.build(load_host(device="cpu"), load_encoder(device="cpu"), SecretKey(b"kernels are tested under this key"), progress=False).detector().scheme


def texts():
    "Texts with earlier windows that are the same, alike and others; where answers begin and end"
    import torch

    g = torch.Generator().manual_seed(0)
    text = torch.randint(1000, 1400, (4, 64), generator=g)
    text[1, 20:40] = text[1, :20]  # its last window has stood before
    text[2] = torch.randint(500, 512, (64,), generator=g)  # few tokens: many windows are alike
    text[3, 50] = 0  # a special token within the last window
    return text, torch.tensor([5, 0, 3, 0]), torch.tensor([40, 33, 64, 52])


def check_likeliest():
    import torch
    from dew_nb.mark.kernels import likeliest

    for V in (5000, 49_190):
        x = torch.randn(4, V, generator=torch.Generator().manual_seed(V))*3
        x[1] = x[1].bfloat16().float()  # ties
        x[2, 100:] = -torch.inf  # fewer tokens than candidates
        x[3] = x[3].sort(descending=True)[0]  # all candidates side by side
        logp = x.double().log_softmax(-1).float()
        values, ids = likeliest(x, 256)
        torch.testing.assert_close(values.sort(1)[0], logp.topk(256)[0].sort(1)[0], atol=1e-5, rtol=0)
        torch.testing.assert_close(logp.gather(1, ids), values, atol=1e-5, rtol=0)
        assert all(len(row.unique()) == 256 for row in ids)


def placed(s, ids):
    from dew_nb.mark.compiled import TURN
    from dew_nb.mark.kernels import next_contexts
    from dew_nb.mark.protocols import MarkState
    from dew_nb.mark.windows import special_mask

    text, start, end = texts()
    state = MarkState(start, end, special_mask(s.contexts.units.special))
    c, on = s.contexts.place(text, ids, s.rule, state)
    return (c, on.expand_as(ids)), next_contexts(text, ids, state, s.contexts, s.rule, TURN), (text, state)


def candidates():
    import torch

    ids = torch.randint(500, 1400, (4, 256), generator=torch.Generator().manual_seed(1))
    ids[:, :64], ids[0, 70] = texts()[0], 60_000  # what stands in the text, and an id beyond the table
    return ids


def check_contexts():
    import torch

    (c, on), (got, got_on), _ = placed(scheme(), candidates())
    torch.testing.assert_close(got, c, atol=1e-5, rtol=0)
    assert torch.equal(got_on, on)
    assert not on[1].any() and not on[3].any() and .9 < on[0].float().mean() < 1 and on[2].float().mean() < .95


def check_projection():
    import torch
    from dew_nb.mark.kernels import project_contexts

    s = scheme()
    c = placed(s, candidates())[0][0]
    torch.testing.assert_close(project_contexts(c, s.rule.M, s.rule.a), s.rule.project(c), atol=1e-4, rtol=0)


def check_tournament():
    import torch
    from dew_nb.mark.kernels import play_candidates

    s, ids = scheme(), candidates()
    (c, on), *_ = placed(s, ids)
    logp = (torch.randn(4, 256, generator=torch.Generator().manual_seed(2))*2).log_softmax(-1) - .1
    logp[2, 50:] = -torch.inf
    q = s.rule.project(c)
    for where in (on, on[:, :1]):
        want, got = s.rule.play(logp, ids, q, where), play_candidates(logp, ids, q, where, s.rule.table.rows)
        torch.testing.assert_close(got.exp(), want.exp(), atol=1e-5, rtol=0)
    assert (want[0] - torch.nn.functional.pad(logp[0], (0, 1))).abs().max() > .1  # there was something to play


def check_step():
    import torch
    from dew_nb.mark.kernels import add_changes, likeliest, play_candidates, project_contexts
    from dew_nb.mark.marking import mark_step

    s = scheme()
    x = torch.randn(4, 49_152, generator=torch.Generator().manual_seed(3))*3
    values, ids = likeliest(x, 256)
    _, (c, on), (text, state) = placed(s, ids)
    want = mark_step(s, text, x, state).softmax(-1)
    new = play_candidates(values, ids, project_contexts(c, s.rule.M, s.rule.a), on, s.rule.table.rows)
    got = add_changes(x.clone(), values, ids, new).softmax(-1)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=0)
    assert (got - x.softmax(-1)).abs().max() > .01


def check_whole():
    "A whole step in place, and rows that may not be marked"
    import torch
    from dew_nb.mark.compiled import TURN
    from dew_nb.mark.kernels import mark_logits
    from dew_nb.mark.marking import mark_step

    s = scheme()
    x = torch.randn(4, 49_152, generator=torch.Generator().manual_seed(4))*3
    text, state = placed(s, candidates())[2]
    for allowed in (None, torch.tensor([True, True, False, True])):
        state.allowed = allowed
        got, want = mark_logits(x.clone(), 256, text, state, s.contexts, s.rule, TURN).softmax(-1), mark_step(s, text, x, state).softmax(-1)
        torch.testing.assert_close(got, want, atol=1e-5, rtol=0)
        assert ((got - x.softmax(-1)).abs().amax(1) > .01).tolist() == [True, False, allowed is None, False]


def check_layers():
    "More layers than one integer has bits, and an odd number"
    import torch
    from dew_nb.mark.kernels import play_candidates
    from dew_nb.mark.tournament import tournament

    g = torch.Generator().manual_seed(5)
    p, ids, rows = torch.randn(2, 200, generator=g).mul(2).softmax(-1)*.9, torch.stack([torch.randperm(500, generator=g)[:200] for _ in range(2)]), torch.randn(500, 40, generator=g)
    for layers in (7, 32, 37):
        q, on = torch.randn(2, layers, 40, generator=g), torch.rand(2, 200, generator=g) < .9
        beta = torch.nn.functional.pad(torch.sign(q @ rows[ids].transpose(1, 2))*on[:, None], (0, 1))
        want = tournament(torch.cat([p, 1 - p.sum(1, keepdim=True)], 1), beta, 2)
        got = play_candidates(p.log(), ids, q, on, rows).exp()
        torch.testing.assert_close(got[:, :-1], want[:, :-1], atol=1e-5, rtol=0)
        torch.testing.assert_close(got[:, -1], want[:, -1]/(1 - p.sum(1)), atol=1e-4, rtol=1e-4)


def check_taking():
    import torch
    from dew_nb.mark.kernels import take_texts

    ids = torch.arange(5*1100).view(5, 1100)
    want = ids.clone()
    step = torch.tensor([[4, 0, 2], [1050, 1, 0], [1048, 0, 0], [7, 9, 0], [1049, 0, 0], [8, 9, 0]])
    for rows,_,*tokens in [step.tolist()]:
        for at,token in (tokens[:2], tokens[2:]): want[rows, at] = torch.tensor(token)
    text = take_texts(ids, step, 1056)
    assert torch.equal(ids, want) and torch.equal(text, want[[4, 0, 2], :1056])
    assert ids[4, 1048:1050].tolist() == [7, 8] and ids[0, 0] == 9


if __name__ == "__main__":
    for check in (check_taking, check_likeliest, check_contexts, check_projection, check_tournament, check_layers, check_step, check_whole): check()
