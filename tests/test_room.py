"""Room weights: the null stays exact, nothing changes without them, and every way of reading agrees."""
import json
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from quick import Letters, toy_host
from tokenizers import Tokenizer, models

from dew_nb import DEW, DEWConfig, Detector, SecretKey, load_encoder, load_host
from dew_nb.mark.room import AHEAD, AROUND, STAGES, RoomTable, check_units, position_weights, weights_so_far
from dew_nb.mark.sources import reference_texts
from dew_nb.models.artefacts import load_artefact, save_artefact
from dew_nb.models.tokenization import TokenUnits
from dew_nb.read.evidence import measure, measure_long, position_scores, positions
from dew_nb.read.fused import fuse
from dew_nb.read.identification import identify
from dew_nb.read.host_view import Pairs
from dew_nb.read.over_keys import scores_over_keys
from dew_nb.read.room_learning import learn_room, note_room
from dew_nb.stats.calibration import NullCalibration
from dew_nb.stats.evalues import ScoreBets
from dew_nb.stats.keynull import TextSums

KEY = SecretKey(bytes(range(32)))
TEXTS = [t[:700] for t in reference_texts()[:4]]

ANSWER = ('Regular exercise has a number of benefits for both physical and mental health. It can help to reduce the risk of heart disease, improve the quality of sleep, and reduce the symptoms of anxiety and depression. '
          'In addition, it is important to choose an activity that you enjoy, as this will make it easier to stick to your routine. Here are some of the most common types of exercise that you can do at home.')
FOREIGN = ['Im Hafen lag an jenem Morgen kein einziges Schiff, und die Fischer sassen schweigend vor ihren Netzen, als warteten sie auf etwas, das schon lange vorbei war. Niemand wollte der Erste sein, der nach Hause ging.']

def uneven_table(units, texts, seed=0):
    "A table that makes something of every token: strong weights without any meaning"
    ids = [np.array(units.tok.encode(t).ids) for t in texts]
    rng = np.random.default_rng(seed)
    of = rng.random(1 << 16)**3
    return RoomTable.fit(units, ids, [np.arange(len(x)) for x in ids], [of[x] for x in ids], about=dict(host='made up'))

def flat_table(units, value=1.):
    "A table that says the same of every position"
    return RoomTable(value, {k: np.zeros(1 << bits, np.int8) for k,(_,bits) in STAGES.items()}, RoomTable.fit(units, [[1]], [[0]], [[1.]]).codes)

@pytest.fixture(scope='module')
def plain(): return DEW.build(toy_host(), Letters(), KEY, DEWConfig(screen=False, room=None), progress=False)     # hundreds of keys, as they are drawn

@pytest.fixture(scope='module')
def wm(plain): return plain.with_room(uneven_table(plain.contexts.units, reference_texts()[:100]))

def numbers(results): return [[r.score, r.z, r.p_value, r.l_eff, r.expected, r.sd] for r in results]

def test_null_is_exact_over_keys(wm):
    "A fixed text under 120 keys: z has mean 0 and sd 1, with weights that are very uneven"
    keys = [SecretKey(bytes([i % 256, i//256])*16) for i in range(120)]
    z = scores_over_keys(wm, keys, TEXTS, progress=False)
    lean = wm.rule.allowance_short*np.sqrt(z['l_eff'])                 # the null's mean is a little above 0, by design
    z = z['z'] + lean
    assert np.abs(z.mean(0)).max() < 4/120**.5 and np.abs(z.std(0) - 1).max() < 4/240**.5
    assert abs(z.std() - 1) < .05
    one = wm.detector().detect(TEXTS[0])
    assert one.n_weighted < .8*one.n_scored and one.l_eff <= one.n_weighted*1.2

def test_flat_weights_change_no_bit(plain):
    "Weights of 1 give the numbers of no weights, bit by bit; so do detectors that are told to leave weights out"
    flat = plain.with_room(flat_table(plain.contexts.units))
    a, b = (numbers(w.detector().detect(TEXTS)) for w in (plain, flat))
    assert a == b
    assert numbers(flat.detector().unweighted().detect(TEXTS)) == a
    s, t = (w.detector().scan(TEXTS[0], replicates=99) for w in (plain, flat))
    assert s.to_dict() == t.to_dict()

def test_any_detector_can_be_weighted(plain, tmp_path):
    "A packaged table by its name, without the scheme that marked: the numbers of a scheme built with it, and a file that keeps them"
    det, texts = plain.detector(), [*TEXTS, ANSWER]
    mine = det.weighted('everyday')
    assert numbers(mine.detect(texts)) == numbers(plain.with_room(RoomTable.packaged(plain.contexts.units, 'everyday')).detector().detect(texts)) != numbers(det.detect(texts))
    assert numbers(mine.detect(FOREIGN)) == numbers(det.detect(FOREIGN))                                # of a kind that the table does not know
    assert numbers(mine.unweighted().detect(TEXTS)) == numbers(det.detect(TEXTS)) and det.scheme.room is None
    mine.save(tmp_path/'everyday.dew')
    again = Detector.load(tmp_path/'everyday.dew')
    assert numbers(again.detect(TEXTS)) == numbers(mine.detect(TEXTS)) and again.scheme.room.span == (.4, .6)
    with pytest.raises(ValueError, match="no table of room is called 'kitchen'"): det.weighted('kitchen')

def test_by_hand(wm):
    "Score, spread and effective length of one text, from the formulas"
    det = wm.detector()
    doc, = det.reader.read(TEXTS[:1])
    w = position_weights(wm.room, [doc], TextSums([doc.first]))[doc.first]
    r = det.detect(TEXTS[0])
    s = r.token_scores[doc.pos][doc.first]
    rows = torch.nn.functional.normalize(wm.rule.rows(torch.from_numpy(doc.tokens[doc.first])).float(), dim=1)
    c = torch.nn.functional.normalize(wm.contexts.encode(doc.windows[doc.first]).float(), dim=1)
    K = wm.rule.kernel(rows @ rows.T, c @ c.T).double().numpy()
    np.fill_diagonal(K, 1.)
    pairs = w @ K @ w
    assert w.mean() == pytest.approx(1) and r.score == pytest.approx((w*s).mean())
    assert r.l_eff == pytest.approx(w.sum()**2/pairs, rel=1e-3)
    assert r.sd == pytest.approx(wm.rule.sd*pairs**.5/w.sum(), rel=1e-3)

def test_every_way_of_reading_agrees(wm, plain):
    "Scan, identify, many keys, long texts and pieces have the z of detect"
    det = wm.detector()
    want = [r.z for r in det.detect(TEXTS)]
    assert [det.scan(t, replicates=99).z_text for t in TEXTS] == pytest.approx(want, abs=1e-3)
    other = wm.rekey(SecretKey(bytes(32)))
    assert other.room is wm.room and other.config.room == wm.room.digest
    found = identify(TEXTS, dict(mine=det, other=other.detector(), plain=plain.detector()))
    assert [x.results[0].z for x in found] == pytest.approx(want) and [x.results[2].z for x in found] == pytest.approx([r.z for r in plain.detector().detect(TEXTS)])
    assert scores_over_keys(wm, [KEY], TEXTS, progress=False)['z'][0] == pytest.approx(want, abs=1e-3)
    doc, = det.reader.read([' '.join(TEXTS)])
    sums = TextSums([doc.first])
    whole, long = measure([wm], [doc])[0].evidence(), measure_long([wm], doc, sums)[0].evidence()
    assert long.mean == pytest.approx(whole.mean) and long.pairs == pytest.approx(whole.pairs, rel=1e-4)
    few = TextSums([doc.first], exact=10)                                         # layers that nobody knows: an estimate with a margin
    assert .95 < measure_long([wm], doc, few)[0].evidence().pairs[0]/whole.pairs[0] < 1.6

def test_a_marked_passage_is_found(wm):
    text = wm.generate('The', max_new_tokens=120, seed=1)
    r, s = wm.detector().detect(text), wm.detector().scan(f'{TEXTS[0]} {text} {TEXTS[1]}', replicates=99)
    assert r.p_value < 1e-4 and s.marked() and s.spans[0].z > 4

def test_subkeys(plain, wm):
    "The best sub-key is that of the weighted sum; fused detectors weight positions too"
    many = DEW.build(plain.host, Letters(), KEY, DEWConfig(k=3, keys=2, room=None), progress=False).with_room(wm.room)
    det = many.detector()
    docs = list(det.reader.read(TEXTS))
    m, = measure([many], docs)
    scores, w = m.fetch()[0], m.weights
    totals = np.stack([m.sums.total(s*w) for s in scores.T], 1)
    assert m.evidence().subkey.tolist() == totals.argmax(1).tolist()
    assert [r.z for r in fuse(det, (1., 0.)).detect(TEXTS)] != pytest.approx([r.z for r in fuse(det.unweighted(), (1., 0.)).detect(TEXTS)], abs=.01)

# ---------------------------------------------------------------- texts that are partly of the table's kind
MIXED = [f'{ANSWER} {t}' for t in TEXTS[:3]]

@pytest.fixture(scope='module')
def mixed(plain):
    "The default's table and strong weights without meaning, both with the condition, and texts between its ends"
    everyday, docs = RoomTable.packaged(plain.contexts.units, 'everyday'), list(plain.detector().reader.read(MIXED))
    uneven = uneven_table(plain.contexts.units, reference_texts()[:100])
    share = [uneven.known(d.ids, d.pos) for d in docs]
    tables = everyday, replace(uneven, span=(min(share) - .1, max(share) + .1))
    for t in tables: assert all(t.span[0] + .01 < t.known(d.ids, d.pos) < t.span[1] - .01 for d in docs)
    return [plain.with_room(t) for t in tables], docs

def test_between_the_ends_of_the_condition(mixed, plain):
    "Weights are partly those of the table; detect, scan, a long text and pieces agree"
    for wm in mixed[0]:
        t, det = wm.room, wm.detector()
        for d in mixed[1]:
            full, own = replace(t, span=None).expected(d.ids, d.pos), t.expected(d.ids, d.pos)
            share = (t.known(d.ids, d.pos) - t.span[0])/(t.span[1] - t.span[0])
            assert own == pytest.approx(share*full + (1 - share)*full.mean()) and .05 < share < .95 and 0 < own.std() < full.std()
        want = det.detect(MIXED)
        assert [r.z for r in want] != pytest.approx([r.z for r in plain.detector().detect(MIXED)], abs=.01)
        assert [r.z for r in want] != pytest.approx([r.z for r in plain.with_room(replace(t, span=None)).detector().detect(MIXED)], abs=.01)
        assert [det.scan(x, replicates=99).z_text for x in MIXED] == pytest.approx([r.z for r in want], abs=1e-3)
        assert scores_over_keys(wm, [KEY], MIXED, progress=False)['z'][0] == pytest.approx([r.z for r in want], abs=1e-3)
        sums = TextSums([mixed[1][0].first])
        whole, long = measure([wm], mixed[1][:1])[0].evidence(), measure_long([wm], mixed[1][0], sums)[0].evidence()
        assert long.mean == pytest.approx(whole.mean) and long.pairs == pytest.approx(whole.pairs, rel=1e-4) and long.weights == pytest.approx(whole.weights)

def test_a_window_has_the_weights_of_its_text(mixed, plain):
    "A scan asks the whole text how far weights count; a passage's score is the weighted mean of its positions"
    text = f'{TEXTS[0]} {plain.generate("The", max_new_tokens=120, seed=1)} {TEXTS[1]}'
    doc, = plain.detector().reader.read([text])
    for wm in mixed[0]:
        share = wm.room.known(doc.ids, doc.pos)
        wm = plain.with_room(replace(wm.room, span=(max(0., share - .1), share + .1)))
        det = wm.detector()
        r, s = det.detect(text), det.scan(text, replicates=99).spans[0]
        w = position_weights(wm.room, [doc], TextSums([doc.first]))
        at = doc.first & (doc.pos >= s.tokens[0]) & (doc.pos < s.tokens[1])
        assert s.score == pytest.approx((w*r.token_scores[doc.pos])[at].sum()/w[at].sum(), abs=1e-4) and w[at].std() > .05

def test_sub_keys_between_the_ends(mixed, plain):
    "The best sub-key is that of the sum with these weights, in detect and in a scan"
    many = DEW.build(plain.host, Letters(), KEY, DEWConfig(k=3, keys=2, room=None), progress=False)
    for wm in mixed[0]:
        both = many.with_room(wm.room)
        m, = measure([both], mixed[1])
        w = position_weights(wm.room, mixed[1], m.sums)
        totals = np.stack([m.sums.total(s*w) for s in m.fetch()[0].T], 1)
        found = both.detector().detect(MIXED)
        assert [r.subkey for r in found] == totals.argmax(1).tolist() and [r.score for r in found] == pytest.approx(totals.max(1)/m.sums.L)
        scans = [both.detector().scan(x, replicates=99) for x in MIXED[:2]]
        assert [x.z_text for x in scans] == pytest.approx([r.z for r in found[:2]], abs=1e-3)

def test_a_stream_has_weights(wm, plain):
    "Bets are as large as the weights of the text so far; pieces do not matter; the mean of E over keys is 1"
    det, text = wm.detector(reading='raw'), ' '.join(TEXTS[:2])[:900]
    whole, parts = det.stream(), det.stream()
    whole.feed(text + ' ')
    for i in range(0, len(text) + 1, 13): parts.feed((text + ' ')[i:i+13])
    assert parts.running == pytest.approx(whole.running, abs=1e-3)
    assert not np.allclose(whole.running, _read(plain.detector(reading='raw').stream(), text + ' '), atol=.1)
    doc, = det.reader.read([text])
    for t in (wm.room, replace(wm.room, span=(0., 1.)), replace(wm.room, span=(.6, .9))):
        assert weights_so_far(t, doc)[-1] == pytest.approx(position_weights(t, [doc], TextSums([doc.first]))[-1])
    p = positions(wm, doc.windows[doc.first][:60], doc.tokens[doc.first][:60])
    K, a, g, e = Pairs().kernels(wm, p.ids, p.u).numpy(), weights_so_far(wm.room, doc)[doc.first][:60], torch.Generator().manual_seed(0), []
    for _ in range(400):
        k, bets = wm.rule.redraw(g), ScoreBets(tilts=[.06])
        bets.add(position_scores(k, p).numpy()/k.sd, K, a)
        e.append(np.exp(bets.log_e[-1]))
    assert a.std() > .5 and abs(np.mean(e) - 1) < 4*np.std(e)/20 < .2

def _read(stream, text):
    stream.feed(text)
    return stream.running

def test_files(wm, plain, tmp_path):
    "A file keeps the table; one without reads as before; one that lost its table is refused"
    wm.detector().save(tmp_path/'a.dew')
    again = Detector.load(tmp_path/'a.dew', encoder=Letters())
    assert numbers(again.detect(TEXTS)) == pytest.approx(np.array(numbers(wm.detector().detect(TEXTS))), rel=1e-5, abs=1e-6)
    assert again.scheme.room.digest == wm.room.digest == again.config.room and again.scheme.room.about['host'] == 'made up'
    again.save(tmp_path/'b.dew')
    assert load_artefact(tmp_path/'b.dew', 'detector')[1] == load_artefact(tmp_path/'a.dew', 'detector')[1]
    again.unweighted().save(tmp_path/'c.dew')
    off = Detector.load(tmp_path/'c.dew', encoder=Letters())
    assert off.scheme.room is None and off.config == plain.config
    assert numbers(off.detect(TEXTS)) == pytest.approx(np.array(numbers(plain.detector().detect(TEXTS))), rel=1e-5, abs=1e-6)

def test_old_files_load(plain, tmp_path):
    "A file that was written before there were weights has no such field"
    plain.detector().save(tmp_path/'new.dew')
    t, meta = load_artefact(tmp_path/'new.dew', 'detector')
    assert meta['config'].pop('room') is None and not any(k.startswith('room') for k in [*t, *meta])
    save_artefact(tmp_path/'old.dew', 'detector', t, meta)
    old = Detector.load(tmp_path/'old.dew', encoder=Letters())
    assert old.scheme.room is None and numbers(old.detect(TEXTS)) == numbers(Detector.load(tmp_path/'new.dew', encoder=Letters()).detect(TEXTS))
    meta['config']['room'] = 'packaged'
    save_artefact(tmp_path/'bad.dew', 'detector', t, meta)
    with pytest.raises(ValueError, match='lacks or garbles'): Detector.load(tmp_path/'bad.dew', encoder=Letters())

def test_files_with_softer_weights(plain, tmp_path):
    "For a short while `everyday` was the table of `chat` with .3 added to each weight: a file saved then reads as it read then"
    chat = RoomTable.packaged(plain.contexts.units, 'chat')
    plain.with_room(chat).detector().save(tmp_path/'chat.dew')
    t, meta = load_artefact(tmp_path/'chat.dew', 'detector')
    meta['config']['room'], meta['room'] = 'everyday', meta['room'] | dict(soft=.3)
    save_artefact(tmp_path/'early.dew', 'detector', t, meta)
    early = Detector.load(tmp_path/'early.dew', encoder=Letters())
    doc, = early.reader.read(TEXTS[:1])
    w = position_weights(early.scheme.room, [doc], TextSums([doc.first]))[doc.first]
    raw = (chat.expected(doc.ids, doc.pos) + .3)[doc.first]
    assert w == pytest.approx(raw/raw.mean()) and early.config.room == 'everyday'
    assert numbers(early.detect(TEXTS)) != numbers(Detector.load(tmp_path/'chat.dew', encoder=Letters()).detect(TEXTS))
    early.save(tmp_path/'again.dew')
    assert numbers(Detector.load(tmp_path/'again.dew', encoder=Letters()).detect(TEXTS)) == numbers(early.detect(TEXTS))

def test_what_is_refused(plain, wm):
    with pytest.raises(ValueError, match='learn_room'): DEW.build(plain.host, Letters(), KEY, wm.config, progress=False)
    with pytest.raises(ValueError, match='prompts'): plain.learn_room()
    with pytest.raises(ValueError, match='no host'): learn_room(plain.bare(), ['a'])
    with pytest.raises(ValueError, match="null='key'"): DEWConfig.preset('paper', room='packaged')
    with pytest.raises(ValueError, match='room=None'): check_units(object())                # words, for example

def test_packaged_table():
    "It is small, says where it comes from, and another tokenizer's tokens find their texts in it"
    host = toy_host()
    units = TokenUnits(host.tokenizer)
    table = RoomTable.packaged(units)
    assert sum(v.nbytes for v in table.deltas.values()) < 1e6 and table.about['host'] == 'smollm2-135m' and table.about['positions'] > 20_000
    words = Tokenizer(models.WordLevel({'▁the': 0, '▁of': 1, '▁zyzzyva': 2, ',': 3}, unk_token=','))
    other, own = RoomTable.packaged(TokenUnits(words)), [units.tok.token_to_id(t) for t in ('Ġthe', 'Ġof', ',')]
    assert other.expected(np.array([0, 1, 3]), np.arange(3)) == pytest.approx(table.expected(np.array(own), np.arange(3)))
    assert np.isfinite(other.expected(np.array([2, 9, 2]), np.arange(3))).all()        # never seen, beyond the table

@pytest.mark.long
def test_stored_scores_of_the_study():
    "Some stored texts, read again without and with the packaged table, have their stored z"
    pd = pytest.importorskip('pandas')
    from dew_nb.evaluation.texts.content import read_texts, study_key
    D = Path(__file__).parents[1]/'nbs'/'studies'/'data'
    d, said = pd.read_parquet(D/'room.parquet'), json.loads((D/'room.json').read_text())
    texts = [r['text'] for r in read_texts(D/'room_texts.jsonl.xz') if r['key'] == 1][:6]
    wm = DEW.build(load_host(), load_encoder(), study_key(1, 'room'), DEWConfig.preset('standard', room='packaged'), progress=False)
    assert wm.room.digest == said['table']
    stored = d.query('set == "answers" and key == 1 and attack == "none" and i < 6').pivot(index='i', columns='reading', values='z')
    det = wm.detector(reading='raw')
    assert [r.z for r in det.detect(texts)] == pytest.approx(stored['room'].tolist(), abs=.02)
    assert [r.z for r in det.unweighted().detect(texts)] == pytest.approx(stored['plain'].tolist(), abs=.02)

def test_learning(plain):
    "The host writes texts, notes room, and the scheme has a table; what it writes stays the same"
    own = plain.learn_room(['The', 'A'], max_new_tokens=30, batch_size=2)
    assert own.room.about['texts'] == 2 and own.room.about['positions'] > 40 and own.config.room == own.room.digest
    assert own.generate('The', max_new_tokens=20) == plain.generate('The', max_new_tokens=20)
    texts = [' sea was quiet and the boats were home', ' man stood at the harbour']
    notes = note_room(plain.host, texts, ['The', 'A'])
    given = plain.learn_room(['The', 'A'], texts)
    assert given.room.about['positions'] == len(notes) and given.room.base == pytest.approx(np.mean(1 - np.concatenate(notes.own)), abs=1e-6)
    with torch.no_grad(): logits = plain.host.model(torch.tensor([plain.host.tokenizer('The' + texts[0])['input_ids']])).logits[0, 0].double()/.7
    p = logits.softmax(-1).sort(descending=True).values
    p = p[:int((p.cumsum(0) < .9).sum()) + 1]
    assert notes.room[0][0] == pytest.approx(1 - float(((p/p.sum())**2).sum()), abs=1e-4)

def test_calibration_is_of_its_table(wm, plain):
    "A calibration of the unweighted score is refused; one of its own is kept, and left behind without weights"
    rng = np.random.default_rng(0)
    fit = lambda w: NullCalibration.fit(rng.normal(0, .01, 200), np.full(200, 150), config_digest=w.config.digest, key_fingerprint=w.detector().key)
    with pytest.raises(ValueError): wm.detector().calibrated(fit(plain))
    own = wm.detector().calibrated(fit(wm))
    assert own.calibration.token_var == pytest.approx(wm.rule.sd**2*wm.room.uneven) and wm.room.uneven > 1.1
    assert own.unweighted().calibration is None and own.unweighted().p_kind == 'analytic'
    assert own.weighted(own.scheme.room).calibration is own.calibration and own.weighted('chat').calibration is None

def test_the_declared_table_is_found_anew():
    "`replace` keeps what was said of weights, and finds anew what was not; the borrowed spaces of `transfer` use it so"
    assert replace(DEWConfig(), null='iid') == DEWConfig(null='iid') and replace(DEWConfig(), mode='token_only').room is None
    assert replace(DEWConfig(null='iid'), null='key') == DEWConfig() and replace(DEWConfig(room=None), k=5).room is None
    assert replace(DEWConfig(null='iid'), null='key', room=None).room is None                  # said in this very call
    assert pickle.loads(pickle.dumps(DEWConfig())) == DEWConfig.from_flat(DEWConfig().to_flat()) == DEWConfig(room='everyday') != DEWConfig(room=None)
    with pytest.raises(ValueError, match="null='key'"): replace(DEWConfig(room='chat'), null='iid')
    with pytest.raises(ValueError, match="null='key'"): replace(DEWConfig(), room='everyday', null='iid')

def test_a_table_that_looks_ahead(plain, tmp_path):
    "It goes through a file, weighs by the next token, keeps the null exact, and a stream does without the stages that look ahead"
    units = plain.contexts.units
    ids = [np.array(units.tok.encode(t).ids) for t in reference_texts()[:60]]
    after = [np.append(x[1:] % 7 == 0, False)*.8 + .1 for x in ids]                   # told by the next token alone
    pos = [np.arange(len(x)) for x in ids]
    table, back = (RoomTable.fit(units, ids[:45], pos[:45], after[:45], **how) for how in (dict(stages=AROUND, rounds=2), {}))
    fits = [np.corrcoef(np.concatenate([t.expected(x, p) for x,p in zip(ids[45:], pos[45:])]), np.concatenate(after[45:]))[0, 1] for t in (table, back)]
    assert fits[0] > .6 and fits[0] > fits[1] + .1 and set(AHEAD) == set(AROUND) - set(STAGES)
    wm = plain.with_room(table)
    det = wm.detector()
    again = Detector.load(det.save(tmp_path/'a.dew'))
    assert again.scheme.room.digest == table.digest and numbers(again.detect(TEXTS)) == numbers(det.detect(TEXTS))
    z = scores_over_keys(wm, [SecretKey(bytes([i])*32) for i in range(60)], TEXTS, progress=False)
    z = z['z'] + wm.rule.allowance_short*np.sqrt(z['l_eff'])
    assert np.abs(z.mean(0)).max() < 4/60**.5 and abs(z.std() - 1) < .1
    doc, = det.reader.read(TEXTS[:1])
    other = replace(doc, ids=np.append(doc.ids[:-1], doc.ids[0]))
    assert np.array_equal(weights_so_far(table, doc)[:-1], weights_so_far(table, other)[:-1])
    tensors, meta = table.state()
    with pytest.raises(ValueError, match='does not know'): RoomTable.from_state(tensors, meta | dict(sideways=True), units)
    with pytest.raises(ValueError, match='garbled'): RoomTable.from_state(tensors | {'room.after': tensors['room.pair']}, meta, units)
