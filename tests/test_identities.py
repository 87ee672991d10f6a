"Encoders are who they say: caches, saved detectors and named keys tell them apart by what they do"
import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from dew_nb import DEW, DEWConfig, Detector, SecretKey, load_encoder, load_host
from dew_nb.mark.context import ContextEncoder
from dew_nb.models.encoders import wrap_encoder
from dew_nb.models.hosts import wrap_host
from dew_nb.read.identification import shared_work
from dew_nb.mark.sources import Reference, TokenSpace
from dew_nb.read.verdicts import scheme_digest
from quick import Letters, toy_host

TEXTS = ['The museum opened a new wing on Saturday, with paintings that had been in storage for forty years.',
         'Rain fell over the northern hills for a third day, and two roads were closed until the evening.']


class Vectors:
    "Vectors that depend on letters and on a seed: a class with many encoders"
    def __init__(self, seed, noise=0., scale=1.):
        self.W, self.noise, self.scale = np.random.default_rng(seed).standard_normal((64, 24)), noise, scale
    def encode(self, texts):
        x = np.array([np.bincount([ord(c) % 64 for c in t], minlength=64) for t in texts])*1.
        e = self.scale*(x @ self.W)
        return e*(1 + self.noise*np.random.default_rng(1).standard_normal(e.shape))


@pytest.fixture(scope='module')
def host(): return load_host()


@pytest.fixture(scope='module')
def tokens(host):
    ids = np.concatenate([host.tokenizer(t)['input_ids'] for t in TEXTS])
    return TokenSpace.of_host(host, None).narrow(ids)


def build(host, encoder, tokens):
    config = DEWConfig.preset('calibrated', token_whitening=None, context_transform=None)
    return DEW.build(host, encoder, SecretKey(b'an example key: never use this one'), config, reference=TEXTS, tokens=tokens)


def test_two_encoders_of_a_class_have_two_names():
    a, b = (wrap_encoder(Vectors(s)) for s in (0, 1))
    assert a.digest != b.digest and a.identity != b.identity
    assert a.digest == wrap_encoder(Vectors(0)).digest and a.identity == wrap_encoder(Vectors(0)).identity


def test_cached_reference_vectors_are_the_encoders_own(host, tmp_path, monkeypatch):
    "Twice the same class: the second must not be given what the first one left in the cache"
    tokenizer = host.tokenizer                            # loaded from the usual cache
    monkeypatch.setenv('DEW_CACHE', str(tmp_path))
    config = DEWConfig.preset('calibrated', k=3)
    sample = Reference.read(TEXTS, tokenizer, 3, len(host.embeddings), 100)
    for seed in (0, 1, 0):
        encoder = Vectors(seed)
        contexts, reference = ContextEncoder.prepare(wrap_encoder(encoder), host, config, sample, False)
        own = encoder.encode(contexts.texts.decode(sample.windows))
        np.testing.assert_allclose(reference.vectors, own, rtol=1e-4, atol=1e-3)
    assert len(list(tmp_path.glob('contexts-*.safetensors'))) == 2


def test_loading_refuses_another_of_the_class(host, tokens, tmp_path):
    p = build(host, Vectors(0), tokens).detector().save(tmp_path/'a.dew')
    for same in (Vectors(0), Vectors(0, noise=.01)):      # what half precision does
        assert Detector.load(p, encoder=same).detect(TEXTS[0]).n_scored > 5
    with pytest.raises(ValueError, match="'Vectors', has vectors in other directions.*pooling.*check=False"):
        Detector.load(p, encoder=Vectors(1))
    with pytest.raises(ValueError, match='3 times as long in the same directions .normalised'):
        Detector.load(p, encoder=Vectors(0, scale=3.))
    assert Detector.load(p, encoder=Vectors(1), check=False).key


def test_files_without_a_fingerprint_load_as_before(host, tokens, tmp_path):
    "Their encoder is known by its digest, an object by its class and width if it says no more"
    import dataclasses
    wm = build(host, Vectors(0), tokens)
    enc = wm.contexts.encoder
    old = {k: v for k,v in wm.meta.items() if k != 'encoder_probe'}
    for digest,fits in ((enc.old_digest, True), (enc.digest, True), ('f'*64, False)):
        table = dataclasses.replace(wm.table, meta=old | dict(encoder_digest=digest))
        was = dataclasses.replace(wm, rule=dataclasses.replace(wm.rule, table=table))
        p = was.detector().save(tmp_path/'old.dew')
        if fits: assert Detector.load(p, encoder=Vectors(0)).detect(TEXTS[0]).n_scored > 5
        else:
            with pytest.raises(ValueError, match='has the digest .* not ffffffffffff'): Detector.load(p, encoder=Vectors(0))


@pytest.fixture(scope='module')
def minilm(): return load_encoder(device='cpu')


def with_modules(enc, *modules):
    from sentence_transformers import SentenceTransformer
    return wrap_encoder(SentenceTransformer(modules=list(modules), device='cpu'), prefix='')


def test_pooling_and_normalisation_count(minilm):
    "Models of the same weights that pool otherwise, or leave vectors as long as they are"
    transformer, pooling, unit = minilm.backend.model
    first = type(pooling)(384, pooling_mode='cls')
    twin, other, bare = (with_modules(minilm, *m) for m in ((transformer, pooling, unit), (transformer, first, unit), (transformer, pooling)))
    names = {x.identity for x in (twin, other, bare)}
    assert len(names) == 3 and minilm.fingerprint.difference(twin.fingerprint) is None
    assert 'other directions' in minilm.fingerprint.difference(other.fingerprint)
    assert 'as long' in minilm.fingerprint.difference(bare.fingerprint)


def test_half_precision_is_the_same_encoder(minilm):
    "Weights in half precision: another digest, the same vectors but for a per cent"
    import copy
    model = copy.deepcopy(minilm.backend.model)
    for dtype in (torch.float16, torch.bfloat16):
        half = wrap_encoder(model.to(dtype), prefix='')
        assert half.digest != minilm.digest and minilm.fingerprint.difference(half.fingerprint) is None


def test_named_keys_share_no_contexts_of_different_encoders(host, tokens):
    "identify encodes windows once for detectors whose encoders do the same, and only for these"
    a, b, c = (build(host, Vectors(s), tokens).detector() for s in (0, 0, 1))
    assert shared_work(a) == shared_work(b) != shared_work(c)


def test_embedded_encoders_keep_their_caches(minilm):
    assert minilm.pinned and minilm.identity == minilm.digest


def test_one_model_in_two_precisions_is_one_scheme(host, tmp_path):
    "float32 and bfloat16: the same scheme digest, also of files from before there was one for both; and each reads what the other marks"
    key, config = SecretKey(b'an example key: never use this one'), DEWConfig(rule='tournament', contexts='compiled', candidates='top_m', m=64, n=64, layers=12, context_width=32)
    low = wrap_host(copy.deepcopy(host.model).bfloat16(), host.tokenizer)
    assert low.digest != host.digest
    full, half = (DEW.build(h, Letters(), key, config, progress=False) for h in (host, low))
    assert scheme_digest(full.meta) == scheme_digest(half.meta)
    path = half.detector().save(tmp_path/'half.dew')
    assert scheme_digest(Detector.load(path).meta) == scheme_digest(full.meta)
    earlier = {k: v for k,v in full.meta.items() if k != 'host_model'}                # as files had it
    assert scheme_digest(earlier) == scheme_digest(full.meta)
    texts = replace(full, host=toy_host()).generate(['The old harbour', 'Bread and salt'], max_new_tokens=60)
    z = [[r.z for r in wm.detector().detect(texts)] for wm in (full, half)]
    assert min(z[1]) > 4 and z[1] == pytest.approx(z[0], abs=.5), z
