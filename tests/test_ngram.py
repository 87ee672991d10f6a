"Contexts of the last tokens, over keys (from end to end: test_protocols.py); and texts in other scripts, whose smooth contexts are all alike"
import pytest
from quick import Letters, toy_host

from dew_nb import DEW, DEWConfig, SecretKey
from dew_nb.mark.sources import reference_texts
from dew_nb.read.over_keys import scores_over_keys

KEY = SecretKey(b'an example key: never use this one')
CONFIG = DEWConfig(contexts='ngram', m=64, n=32, screen=False)         # sixty keys, as they are drawn
OTHER = dict(
    ja='港は何年も静かだった。ある朝、一隻の船が霧の中から現れ、漁師たちは網を置いて岸へ走った。子どもたちは石の上に立ち、帆の色を数えた。誰もその旗を知らなかった。夕方になると船長が町へ来て、井戸の水を一杯求めた。',
    ru='Гавань много лет была тихой. Однажды утром из тумана вышел корабль, и рыбаки бросили сети и побежали к берегу. Дети стояли на камнях и считали паруса. Никто не знал этого флага. Вечером капитан пришёл в город и попросил стакан воды.',
    zh='港口安静了许多年。一天早晨,一艘船从雾中驶来,渔民们放下渔网跑向岸边。孩子们站在石头上数着船帆的颜色。没有人认得那面旗。傍晚,船长来到镇上,要了一杯井水。')


@pytest.fixture(scope='module')
def wm(): return DEW.build(toy_host(), Letters(), KEY, CONFIG, progress=False)


def test_scan_and_sub_keys(wm):
    many = DEW.build(wm.host, Letters(), KEY, DEWConfig(contexts='ngram', m=64, n=32, keys=4), progress=False)
    human = [t for t in reference_texts() if len(t.split()) > 80][:2]
    for w in (wm, many):
        text = w.generate('The old harbour', max_new_tokens=80, seed=1)
        assert w.detector().scan(' '.join([human[0], text, human[1]]), replicates=199).p_value < .01


def test_p_value_is_true_over_keys(wm):
    texts = [t for t in reference_texts() if len(t.split()) > 60][:12] + list(OTHER.values())
    keys = [SecretKey(i.to_bytes(16, 'big')) for i in range(60)]
    z = scores_over_keys(wm, keys, texts, progress=False)['z']
    assert abs(z.mean() + .1) < .15 and .85 < z.std(0).mean() < 1.15    # a little below 0: the allowance
    assert (z > 2.326).mean() < .02


@pytest.mark.parametrize('language', OTHER)
def test_contexts_do_not_collapse(wm, language):
    "A text in another script is worth nearly as many independent scores as it has; with smooth contexts it is not"
    r = wm.detector().detect(OTHER[language])
    assert r.n_scored > 60 and r.l_eff > .6*r.n_scored
