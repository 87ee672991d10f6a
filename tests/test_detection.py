"What the detection notebook tests badly: very long texts, with an encoder that is quick because it means nothing"
import math

import numpy as np
import pytest

from dew_nb import DEW, DEWConfig, SecretKey, load_host


class Quick:
    "Vectors from letter counts"
    name, digest = 'letters', 'letters-1'
    def encode(self, texts):
        x = np.zeros((len(texts), 32), np.float32)
        for i,t in enumerate(texts):
            for j,c in enumerate(t[:40]): x[i, (ord(c)*7 + j) % 32] += 1
        return x + .01


@pytest.fixture(scope='module')
def detector():
    key = SecretKey(b'an example key: never use this one')
    return DEW.build(load_host(), Quick(), key, DEWConfig(k=3), progress=False).detector()


def test_megabyte(detector):
    rng = np.random.default_rng(0)
    words = ['harbour', 'river', 'old', 'the', 'of', 'a', 'morning', 'paper', 'was', 'blue', 'seven', 'and', 'city', 'never', 'bread']
    text = ' '.join(rng.choice(words, 185_000))
    assert len(text) > 900_000
    r = detector.detect(text)
    assert r.n_tokens > 150_000 and 0 < r.n_scored <= r.n_tokens and math.isfinite(r.z) and 0 < r.p_value <= 1
    assert r.n_scored < 60_000                                  # repeated pairs count once: 15 words make 15**4 pairs at most
    assert '<span' in r.to_html() and len(r.to_html()) < 2_000_000


def test_long_and_short_form_agree(detector, monkeypatch):
    "Above a length the pairwise sum takes a linear form; near the border both give about the same z"
    import dew_nb.detection as d
    rng = np.random.default_rng(1)
    text = ' '.join(''.join(chr(97+c) for c in rng.integers(0, 26, 5)) for _ in range(400))
    exact = detector.detect(text)
    monkeypatch.setattr(d, '_EXACT', 10)
    linear = detector.detect(text)
    assert exact.score == pytest.approx(linear.score) and exact.z == pytest.approx(linear.z, rel=.05, abs=.05)


def test_stream_is_lazy(detector):
    "detect_iter asks for texts as it goes, and gives results in order"
    seen = []
    def texts():
        for i in range(300):
            seen.append(i)
            yield f'text number {i} of a long stream of little texts'
    it = detector.detect_iter(texts())
    detector.max_windows, old = 100, detector.max_windows
    first = next(it)
    detector.max_windows = old
    assert first.text.startswith('text number 0') and len(seen) < 300
