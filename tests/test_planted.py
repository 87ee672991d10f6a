"A long text whose nearly equal pairs stand where a sample of its positions that everybody knows would never look"
import numpy as np
import pytest
import torch
from scipy import stats

from dew_nb import DEWConfig, Detector, Scheme, SecretKey, load_host
from dew_nb.mark.compiled import CompiledContexts
from dew_nb.read.evidence import measure
from dew_nb.stats.keynull import TextSums, block_sum
from dew_nb.mark.sources import TokenSpace
from dew_nb.mark.tournament import TournamentRule
from dew_nb.models.vectors import unit_rows

WIDTH, POSITIONS, LOOKS, KEYS = 16, 1500, 300, 60
PHRASE = [' house', ' river', ' paper', ' bread']


@pytest.fixture(scope='module')
def parts():
    "A configuration, random vectors for the host's tokens, and contexts that are made of them"
    host = load_host()
    V, g = len(host.tokenizer), torch.Generator().manual_seed(0)
    config = DEWConfig.preset('tournament', n=WIDTH, context_width=WIDTH)
    tokens = TokenSpace(torch.randn(V, WIDTH, generator=g), None, np.zeros(V, bool), {})
    table = torch.randn(V, WIDTH, generator=g)
    return config, tokens, CompiledContexts(table, host.tokenizer, config.k, config.contexts.decay)


def under(parts, i):
    "The scheme under one of many keys"
    config, tokens, contexts = parts
    return Scheme(config, TournamentRule.make(SecretKey(i.to_bytes(16, 'big')), config, tokens, WIDTH), contexts)


def known_sample(L, n):
    "n of L positions, drawn with a seed that follows from the length"
    return torch.randperm(L, generator=torch.Generator().manual_seed(L))[:n].sort().values


def planted_text(contexts, L, n):
    "A text of L positions that count, in which a phrase stands wherever none of n sampled ones is"
    seen, vocab = np.zeros(L+9, bool), contexts.units.tok.get_vocab()
    seen[known_sample(L, n).numpy()] = True
    words = sorted(' ' + t[1:] for t in vocab if t[0] == 'Ġ' and t[1:].isascii() and t[1:].isalpha() and len(t) > 4)
    others = iter(np.random.default_rng(0).permutation(np.setdiff1d(words, PHRASE)).tolist())
    text, at, phrases = ['The'] + [next(others) for _ in range(contexts.k)], 1, 0
    while at < L:
        plant = at+4 <= L and not seen[at:at+4].any()
        text += [*PHRASE, next(others)] if plant else [next(others)]
        phrases += plant
        at += 4 + (phrases == 1) if plant else 1                 # a window of the phrase counts once
    return ''.join(text), phrases


@pytest.fixture(scope='module')
def planted(parts):
    "The document, and where its positions stand; of texts above LOOKS positions sums are estimated"
    text, phrases = planted_text(parts[2], POSITIONS, LOOKS)
    doc, = Detector(under(parts, 0)).reader.read([text])
    assert doc.first.sum() == POSITIONS and phrases > 150
    return doc, TextSums([doc.first], 'cpu', exact=LOOKS)


def rows_and_contexts(scheme, doc):
    "Unit vectors of the positions that count"
    r = scheme.rule.rows(torch.from_numpy(doc.tokens[doc.first]))
    return unit_rows(r), unit_rows(scheme.contexts.encode(doc.windows[doc.first]))


def test_the_known_sample_sees_nothing(parts, planted):
    "What the text is made for: the sum over pairs is many times what the sample says"
    scheme = under(parts, 0)
    r, c = rows_and_contexts(scheme, planted[0])
    at, kernel = known_sample(POSITIONS, LOOKS), scheme.rule.kernel
    between = (block_sum(kernel, r[at], c[at]) - LOOKS)*POSITIONS*(POSITIONS-1)/(LOOKS*(LOOKS-1))
    assert block_sum(kernel, r, c) > 5*(POSITIONS + between)


def test_planted_pairs_do_not_make_false_positives(parts, planted):
    "Under sixty keys, none of which the text knows: z spreads by 1, and p-values are what they say"
    (doc, sums), z = planted, []
    for i in range(KEYS):
        scheme = under(parts, i)
        x, = (m.evidence() for m in measure([scheme], [doc], sums=sums))
        z.append(scheme.null(x.L, x.pairs).z(x.mean)[0])
    p = stats.norm.sf(z)
    assert .7 < np.std(z) < 1.2 and (p <= .01).mean() <= .03 and (p <= 1e-4).sum() == 0


def test_estimates_lie_just_above_the_truth(parts, planted):
    "Under each key another estimate, above the exact sum by the margin; the same text has the same one again"
    doc, sums = planted
    ratio = []
    for i in range(8):
        scheme = under(parts, i)
        seen = [measure([scheme], [doc], sums=sums)[0].evidence().pairs[0] for _ in range(1 + (i == 0))]
        assert len(set(seen)) == 1
        ratio.append(seen[0]/block_sum(scheme.rule.kernel, *rows_and_contexts(scheme, doc)).item())
    assert .97 < min(ratio) and max(ratio) < 1.45 and 1.08 < np.mean(ratio) < 1.3
