"""False positives by key in many languages and kinds of text, before and after keys are screened. Read by "Screened keys".

    python nbs/studies/kinds.py --out kinds                                   # makes test.jsonl and running.jsonl from packages
    python nbs/studies/screening.py pieces --texts kinds/test.jsonl --running kinds/running.jsonl --out pieces.jsonl.gz
    python nbs/studies/screening.py rates --pieces pieces.jsonl.gz --out nbs/studies/data
    python nbs/studies/screening.py familiarity --pieces pieces.jsonl.gz --out nbs/studies/data

None of the texts is in the sample that keys are screened on, and their sources are others. They are cut into pieces
of 50 to 12,800 tokens of the embedded host. Where a kind has fewer than 6 texts of 3,200 or 12,800 tokens, pieces
of that length are cut from the running text of its sources, paragraphs in their order, and are called joined.
Writes screening.parquet (variant, kind, length, key: rates and moments of z, pieces and how many of them are joined, the shares with too few positions to be refused and that a detector judges at all, and `called`: the share that is judged, with p <= 1%) and screening.json; variants and lengths that are not asked for stay as they are.

Keys can be shared out over processes, each with a folder of its own; `collect` joins them. Long texts of the default, under the keys that it was measured with at the other lengths:

    for i in 0 5 10 15 20 25 30 35 40 45; do
        python nbs/studies/screening.py rates --pieces pieces.jsonl.gz --name 'screened again' --variants standard --lengths 3200 12800 --least 6 --first-key $i --keys 5 --long-keys 5 --out parts/$i & done; wait
    python nbs/studies/screening.py collect --parts parts/* --out nbs/studies/data

Many short pieces, from any place of the texts, so that the rate under the worst key can be counted:

    python nbs/studies/screening.py pieces --texts kinds/test.jsonl --running kinds/running.jsonl --each 400 --lengths 25 50 200 --out many.jsonl.gz
    python nbs/studies/screening.py rates --pieces many.jsonl.gz --name 'screened again' --variants weighted_everyday --lengths 25 50 200 --out many
    python nbs/studies/screening.py rates --pieces many.jsonl.gz --name 'screened again' --variants subkeys --lengths 50 --most 60 --keys 20 --out subkeys
    python nbs/studies/screening.py rates --pieces many.jsonl.gz --name 'screened again' --variants subkeys --lengths 200 --most 30 --kinds en tech code de fr es it pt ru zh ja ar hi --keys 10 --out subkeys

With the table of room that looks ahead, at 800 tokens, and with the preset `multilingual`, screened and not:

    python nbs/studies/screening.py pieces --texts kinds/test.jsonl --running kinds/running.jsonl --each 100 --lengths 800 --out long.jsonl.gz
    python nbs/studies/screening.py rates --pieces long.jsonl.gz --name 'screened again' --variants weighted_everyday --lengths 800 --kinds en tech code de fr es it pt ru zh ja ar hi --out long/1
    python nbs/studies/screening.py rates --pieces long.jsonl.gz --name 'screened again' --variants weighted_everyday --lengths 800 --most 40 --kinds am bg bn cs el fa fi gu hu id ka kk ko ml mr nl pa pl ro si sv sw ta te th tr uk ur vi --out long/2
    python nbs/studies/screening.py collect --parts many --file screening_many --out nbs/studies/data
    python nbs/studies/screening.py collect --parts long/1 long/2 --file screening_many --out nbs/studies/data
    python nbs/studies/screening.py rates --pieces many.jsonl.gz --name 'screened again' --variants weighted_assistant --lengths 50 --out ahead/1
    python nbs/studies/screening.py rates --pieces many.jsonl.gz --name 'screened again' --variants weighted_assistant --lengths 200 --kinds en tech code de fr es it pt ru zh ja ar hi --out ahead/2
    python nbs/studies/screening.py collect --parts ahead/1 ahead/2 --file room_assistant_fpr --out nbs/studies/data
    python nbs/studies/screening.py rates --pieces many.jsonl.gz --name 'screened words' --variants multilingual multilingual_plain --lengths 200 --most 60 --out words
    python nbs/studies/screening.py collect --parts words --out nbs/studies/data

What is taken off in Arabic and Hindi beyond the rest, and each source of these:

    python nbs/studies/screening.py rates --pieces many.jsonl.gz --name 'screened again' --variants weighted_before weighted_everyday --lengths 50 --kinds en fr ja ar hi fa mr --out near/1
    python nbs/studies/screening.py rates --pieces many.jsonl.gz --name 'screened again' --variants weighted_before weighted_everyday --lengths 200 --kinds ar hi --out near/2
    python nbs/studies/screening.py rates --pieces many.jsonl.gz --name 'screened again' --variants weighted_before weighted_everyday --lengths 25 --kinds ar hi --out near/3
    python nbs/studies/screening.py pieces --texts kinds/test.jsonl --running kinds/running.jsonl --each 200 --lengths 50 --kinds ar hi --by-source --out sources.jsonl.gz
    python nbs/studies/screening.py rates --pieces sources.jsonl.gz --name 'screened again' --variants weighted_before weighted_everyday --lengths 50 --out near/5

Languages judged with a table of familiarity that was never shown them, and how many positions of long texts count:

    python nbs/studies/screening.py unseen --pieces many.jsonl.gz --name 'screened again' --lengths 50 --most 100 --out nbs/studies/data
    python nbs/studies/screening.py scored --texts kinds/test.jsonl --running kinds/running.jsonl --lengths 3200 12800 --out nbs/studies/data

Texts that are read while they arrive, whose running e-value may be looked at after every token:

    python nbs/studies/screening.py pieces --texts kinds/test.jsonl --running kinds/running.jsonl --each 20 --lengths 800 --out many800.jsonl.gz
    python nbs/studies/screening.py streams --pieces many.jsonl.gz --name 'screened again' --lengths 200 --most 60 --out nbs/studies/data
    python nbs/studies/screening.py streams --pieces many800.jsonl.gz --name 'screened again' --lengths 800 --most 15 --out nbs/studies/data
    python nbs/studies/screening.py cost --out nbs/studies/data
"""
import argparse, json, random, re, time
from dataclasses import replace
from itertools import chain, islice, zip_longest
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import norm
from tqdm.auto import tqdm

from dew_nb import DEW, DEWConfig, load_encoder, load_host
from dew_nb.evaluation.texts.content import machine, read_texts, study_key, write_texts
from dew_nb.evaluation.texts.frames import rounded
from dew_nb.mark.familiarity import Familiarity, expected_lean, is_unfamiliar, other_languages
from dew_nb.mark.room import weights_so_far
from dew_nb.mark.screening import screening_texts
from dew_nb.mark.sources import reference_texts
from dew_nb.models.stopping import no_bar
from dew_nb.models.tokenization import TokenUnits, backend
from dew_nb.read.evidence import position_scores, positions
from dew_nb.read.host_view import Pairs
from dew_nb.read.over_keys import scores_over_keys
from dew_nb.read.streams import leans_so_far
from dew_nb.read.text import Reader
from dew_nb.stats.evalues import ScoreBets, first_crossing
from dew_nb.stats.judging import FEWEST, can_judge
from dew_nb.stats.keynull import UNLIKE_FAR, TextLeans, allowance, sidak
from null_over_keys import Remembered, Z, rates, without_anchor

VARIANTS = dict(tournament=dict(name='tournament'), unscreened=dict(name='standard', screen=False, room=None), screened=dict(name='standard', room=None), standard=dict(name='standard', room=None),
                weighted=dict(name='standard', room='packaged'), weighted_chat=dict(name='standard', room='chat'), weighted_everyday=dict(name='standard', room='everyday'), weighted_assistant=dict(name='standard', room='assistant'), weighted_before=dict(name='standard', room='everyday'),
                calibrated=dict(name='calibrated'), calibrated_plain=dict(name='calibrated'), calibrated_sample=dict(name='calibrated'), multilingual=dict(name='multilingual'), multilingual_plain=dict(name='multilingual', screen=False), subkeys=dict(name='standard', keys=8))
FIRST = 'tournament', 'unscreened', 'screened', 'standard'   # of all lengths, without other presets
PIECES = {50: 60, 200: 60, 800: 30, 3200: 12, 12800: 8}      # length: pieces of a kind
FEW = 6                                                      # with fewer, long pieces are cut from running text
LONG = 3200                                                  # from here on fewer keys

def cut(tok, text, tokens):
    "The beginning of a text, so many tokens long; None: it is shorter"
    spans = tok.encode(text[:12*tokens], add_special_tokens=False).offsets
    return text[:spans[tokens-1][1]] if len(spans) >= tokens else None

def runs(tok, text, tokens):
    "A source's running text in pieces of so many tokens, one after another"
    while piece := cut(tok, text, tokens):
        yield piece
        text = text[len(piece):].lstrip()

def from_running(tok, texts, tokens):
    "Pieces of running text, from each source in turn"
    return filter(None, chain.from_iterable(zip_longest(*(runs(tok, t, tokens) for t in texts))))

def from_anywhere(spans, texts, tokens, rng):
    "Pieces from any place of texts, from each in turn: many texts of a source begin with the same words. spans: (T, 2) of each text, in characters"
    def shuffled(at, text):
        starts = range(0, len(at) - tokens + 1, tokens)
        for i in rng.sample(starts, len(starts)): yield text[at[i][0]:at[i+tokens-1][1]].strip()
    return filter(None, chain.from_iterable(zip_longest(*(shuffled(*x) for x in zip(spans, texts)))))

def many_pieces(a):
    "So many pieces of each kind and length, from any place of its texts and running texts"
    tok, rows = backend(load_host().tokenizer), []
    T, running = (pd.DataFrame(read_texts(f)).query('source.str.contains("udhr") == False') for f in (a.texts, a.running))
    if a.by_source: T, running = (x.assign(kind=x.kind + ': ' + x.source.str.split(':').str[0]) for x in (T, running))
    for kind,some in T.groupby('kind', sort=False):
        if a.kinds and kind.split(':')[0] not in a.kinds: continue
        texts = [*some.sample(frac=1, random_state=0).text, *running.text[running.kind == kind]]
        spans = [np.array(e.offsets, np.int32).reshape(-1, 2) for e in tok.encode_batch(texts, add_special_tokens=False)]
        for tokens in a.lengths:
            found = islice(from_anywhere(spans, texts, tokens, random.Random(tokens)), a.each)
            rows += [dict(kind=kind, length=tokens, joined=False, text=t) for t in found]
    write_texts(a.out, rows)
    print(pd.DataFrame(rows).groupby(['kind', 'length']).size().unstack(fill_value='').to_string())

def pieces(a):
    "Pieces of every kind and length; kinds with fewer than 30 pieces of 200 tokens are left out"
    if a.each: return many_pieces(a)
    tok, rows = backend(load_host().tokenizer), []
    T, running = (pd.DataFrame(read_texts(f)).query('source.str.contains("udhr") == False') for f in (a.texts, a.running or a.texts))      # a table of the package is made of these
    for kind,some in T.groupby('kind', sort=False):
        own = []
        for tokens,n in PIECES.items():
            order = some.sample(frac=1, random_state=tokens)
            found = list(islice(filter(None, (cut(tok, t, tokens) for t in order.text)), n))
            joined = bool(a.running) and tokens >= LONG and len(found) < FEW
            if joined: found = islice(from_running(tok, running.text[running.kind == kind], tokens), n)
            own += [dict(kind=kind, length=tokens, joined=joined, text=t) for t in found]
        if sum(r['length'] == 200 for r in own) >= 30: rows += own
    write_texts(a.out, rows)
    R = pd.DataFrame(rows).groupby(['kind', 'length']).joined.agg(['size', 'any'])
    print((R['size'].astype(str) + R['any'].map({True: ' joined', False: ''})).unstack(fill_value='').to_string())

def measure(wm, keys, T):
    "A row of rates for each kind, length and key"
    r = scores_over_keys(wm, keys, T.text.tolist(), progress=False, reading='raw')
    for (kind,length),at in T.groupby(['kind', 'length'], sort=False).indices.items():
        z, l_eff, n = r['z'][:, at], r['l_eff'][:, at], r['n_scored'][at]
        if wm.rule.keys > 1: z = norm.isf(np.minimum(sidak(norm.sf(z), wm.rule.keys), 1 - 1e-12))      # of the best sub-key; its p-value counts them all
        judged, share = can_judge(n, l_eff, r['n_weighted'][at]), (l_eff/np.maximum(n, 1)).mean(1)
        yield pd.DataFrame(dict(kind=kind, length=length, key=range(len(keys)), texts=len(at), joined=int(T.joined.iloc[at].sum()), l_eff_share=share,
                                mean_z=z.mean(1), sd_z=z.std(1), short=(n < FEWEST).mean(), judged=judged.mean(1), called=(judged & (z > Z[.01])).mean(1), **rates(z)))

def chosen(a):
    "The pieces that were asked for: of some lengths, and of kinds with enough of them"
    T = pd.DataFrame(read_texts(a.pieces)).query('length in @a.lengths')
    if 'joined' not in T: T['joined'] = False
    if a.kinds: T = T[T.kind.isin(a.kinds)]
    if a.most: T = T.groupby(['kind', 'length'], sort=False).head(a.most)
    return T[T.groupby(['kind', 'length']).text.transform('size') >= a.least]

def run_name(a, variant):
    "What a run is called in screening.json: the variant, the lengths if not all were asked for, and the first key if others were there"
    some = variant if a.lengths == list(PIECES) else f'{variant}, {" and ".join(map(str, a.lengths))} tokens'
    return some + (f', from key {a.first_key}' if a.first_key else '')

def stamp(a, host, enc, T, seconds):
    "What the figures were made with"
    some = '' if a.lengths == list(PIECES) else f'--lengths {" ".join(map(str, a.lengths))} '
    if a.kinds: some += f'--kinds {" ".join(a.kinds)} '
    if a.most: some += f'--most {a.most} '
    return dict(command=f'python nbs/studies/screening.py rates --pieces {a.pieces.name} --name {a.name!r} --variants {" ".join(a.variants)} {some}--least {a.least} --first-key {a.first_key} --keys {a.keys} --long-keys {a.long_keys} --out nbs/studies/data',
                texts=int(len(T)), keys=a.keys, long_keys=a.long_keys, seconds=round(seconds), **machine(host, enc))

def write(path, d):
    "Rates as they are; means and spreads with 13 binary digits"
    few = {c: rounded(d[c], 12).astype(float) for c in ('mean_z', 'sd_z', 'l_eff_share')}
    d.assign(**few).to_parquet(path, index=False, compression='zstd', compression_level=19,
                               use_dictionary=[c for c in d if c not in few], use_byte_stream_split=list(few))

def built(name, host, key, device):
    "The scheme of a variant, and its encoder"
    enc = load_encoder('use-multilingual' if name.startswith('multilingual') else 'minilm', device=device)
    sample = [t for texts in screening_texts().values() for t in texts] if name == 'calibrated_sample' else None
    wm = DEW.build(host, enc, key, DEWConfig.preset(**VARIANTS[name]), reference=sample, progress=False)
    if name == 'screened': wm = replace(wm, familiar=None, blueprint=replace(wm.blueprint, familiar=None))   # all texts are taken for familiar
    if name == 'weighted_before':                                                                                # nothing more is taken off in Arabic and Hindi
        table = replace(wm.familiar, near=None)
        wm = replace(wm, familiar=table, blueprint=replace(wm.blueprint, familiar=table))
    if name == 'calibrated_plain': wm = without_anchor(wm)
    if wm.config.contexts.name == 'encoder': wm = replace(wm, contexts=Remembered(wm.contexts))              # encoded once for all variants
    return wm, enc

def study(a):
    "Rates of all variants"
    a.out.mkdir(parents=True, exist_ok=True)
    t0, host = time.time(), load_host(a.host, device=a.device)
    T = chosen(a)
    keys, out, path = [study_key(i, a.name) for i in range(a.first_key, a.first_key+a.keys)], [], a.out/'screening.parquet'
    if path.exists(): out.append(pd.read_parquet(path).query('variant not in @a.variants or length not in @a.lengths or key < @a.first_key'))
    for name in a.variants:
        wm, enc = built(name, host, keys[0], a.device)
        for some,some_keys in ((T[T.length < LONG], keys), (T[T.length >= LONG], keys[:a.long_keys])):
            if len(some) and some_keys: out += [x.assign(variant=name, key=x.key+a.first_key) for x in measure(wm, some_keys, some.reset_index(drop=True))]
        shown = 200 if 200 in a.lengths else a.lengths[0]
        R = pd.concat(out).query('variant == @name and length == @shown').groupby('kind')['fpr_0.01']
        print(f'{time.time()-t0:.0f} s: {name}: mean {R.mean().mean():.4f}, worst key of the worst kind {R.max().max():.3f}', flush=True)
        write(path, pd.concat(out, ignore_index=True))
    said = a.out/'screening.json'
    runs = json.loads(said.read_text()) if said.exists() else {}
    said.write_text(json.dumps(runs | {run_name(a, v): stamp(a, host, enc, T, time.time()-t0) for v in a.variants}, indent=1) + '\n')

def collect(a):
    "Rates that several processes have measured, each under its own keys, beside the stored ones of other variants and lengths"
    R = pd.concat([pd.read_parquet(p/'screening.parquet') for p in a.parts]).sort_values(['variant', 'length', 'kind', 'key'], kind='stable')
    if R.duplicated(['variant', 'length', 'kind', 'key']).any(): raise SystemExit('two parts have rows of the same key')
    if (R.groupby(['variant', 'length', 'kind']).key.agg(set).map(len) != R.key.nunique()).any(): raise SystemExit('some kinds lack some keys: is a part unfinished?')
    path, said, new = a.out/f'{a.file}.parquet', a.out/f'{a.file}.json', set(zip(R.variant, R.length))
    old = pd.read_parquet(path) if path.exists() else R[:0]
    old = old[[x not in new for x in zip(old.variant, old.length)]]
    write(path, pd.concat([old, R], ignore_index=True).fillna(dict(joined=0)).astype(dict(joined=int)))
    runs = [json.loads((p/'screening.json').read_text()) for p in a.parts]
    told = json.loads(said.read_text()) if said.exists() else {}
    for variant in R.variant.unique():
        each = [v for r in runs for k,v in r.items() if k.split(', ')[0] == variant]
        name = f'{variant}, {" and ".join(map(str, sorted(R.length[R.variant == variant].unique())))} tokens'
        gone = {str(n) for n in R.length[R.variant == variant]}                 # runs whose rows are replaced
        told = {k: v for k,v in told.items() if not k.startswith(variant + ', ') or not set(re.findall(r'\d+', k.split(' tokens')[0])) <= gone}
        told[name] = each[0] | dict(command=each[0]['command'] if len(each) == 1 else [e['command'] for e in each], keys=R.key.nunique(), long_keys=R.key.nunique(), seconds=max(e['seconds'] for e in each))
    said.write_text(json.dumps(told, indent=1) + '\n')
    print(R.groupby(['variant', 'length']).agg(kinds=('kind', 'nunique'), keys=('key', 'nunique'), fpr=('fpr_0.01', 'mean'), worst=('fpr_0.01', 'max')).to_string())

def scored(a):
    "How many positions of long pieces count, by kind: repetitions do not. Pieces as of `pieces`, but for texts with fewer characters than half of the tokens asked for, which are passed over"
    host, rows = load_host(a.host), []
    tok, reader = backend(host.tokenizer), Reader(TokenUnits(host.tokenizer), DEWConfig().k, np.ones(len(host.embeddings), bool), repeats='window', reading='raw')
    T, running = (pd.DataFrame(read_texts(f)).query('source.str.contains("udhr") == False') for f in (a.texts, a.running))
    for kind,some in T.groupby('kind', sort=False):
        for tokens in a.lengths:
            order = (t for t in some.sample(frac=1, random_state=tokens).text if len(t) > tokens/2)
            found = list(islice(filter(None, (cut(tok, t, tokens) for t in order)), PIECES[tokens]))
            joined = len(found) < FEW
            if joined: found = list(islice(from_running(tok, running.text[running.kind == kind], tokens), PIECES[tokens]))
            n = [int(d.first.sum()) for d in reader.stream(found)]
            rows.append(dict(kind=kind, length=tokens, texts=len(n), joined=joined, mean=np.mean(n), least=min(n)))
            print(rows[-1], flush=True)
    pd.DataFrame(rows).to_parquet(a.out/'screening_scored.parquet', index=False)

OWN = dict(am='amh', bg='bul', bn='ben', cs='ces', el='ell_monotonic', fa='pes_1', fi='fin', gu='guj', hu='hun', id='ind', ka='kat', kk='kaz', ko='kor', ml='mal',
           mr='mar', nl='nld', pa='pan', pl='pol', ro='ron_2006', si='sin', sv='swe', sw='swh', ta='tam', te='tel', th='tha', tr='tur', uk='ukr', ur='urd', vi='vie')

def familiarity(a):
    "Familiarity of texts of 200 tokens: with the packaged table, and with one that was never shown their language"
    host, T = load_host(), pd.DataFrame(read_texts(a.pieces)).query('length == 200')
    known, others, tok, rows = screening_texts() | dict(reviews=reference_texts()), other_languages(), backend(load_host().tokenizer), []
    learn = lambda without: Familiarity.learn(known, {k: v for k,v in others.items() if k != without}, host.tokenizer, len(host.embeddings), host.tokenizer_digest)
    whole = learn(None)
    for kind,some in T.groupby('kind', sort=False):
        ids = [np.array(e.ids) for e in tok.encode_batch(some.text.tolist(), add_special_tokens=False)]
        fewer = learn(OWN[kind]) if kind in OWN else whole
        rows += [dict(kind=kind, familiarity=whole.at(i).mean(), unknown=fewer.at(i).mean()) for i in ids]
    R = pd.DataFrame(rows).astype(dict(familiarity='float32', unknown='float32'))
    R.to_parquet(a.out/'familiarity.parquet', compression='zstd', index=False)
    print(R.groupby('kind').median().round(2).sort_values('unknown').T.to_string())

def leave_one_out(wm, host):
    "Tables of familiarity: the packaged one, and for each language one that was never shown it"
    known, others = screening_texts() | dict(reviews=reference_texts()), other_languages()
    learn = lambda kind: Familiarity.learn(known, {k: v for k,v in others.items() if k != OWN[kind]}, host.tokenizer, len(host.embeddings), host.tokenizer_digest)
    return dict(packaged=lambda kind: wm.familiar, unseen=learn)

def unseen(a):
    "Rates in languages that keys are not screened on, each judged with a table of familiarity that was never shown it"
    t0, host, T = time.time(), load_host(a.host, device=a.device), chosen(a)
    T = T[T.kind.isin(OWN)].reset_index(drop=True)
    keys, out = [study_key(i, a.name) for i in range(a.first_key, a.first_key+a.keys)], []
    wm, enc = built('weighted_everyday', host, keys[0], a.device)
    tables, rule = leave_one_out(wm, host), wm.rule
    for length,some in T.groupby('length'):
        r = scores_over_keys(wm, keys, some.text.tolist(), progress=False, reading='raw')
        docs = list(wm.detector(reading='raw').reader.stream(some.text.tolist()))
        for kind,at in some.reset_index(drop=True).groupby('kind', sort=False).indices.items():
            for name,table in tables.items():
                familiar = table(kind)
                mean = lambda of: np.array([of(docs[i].tokens)[docs[i].first].mean() for i in at])
                l_eff, lean, near = r['l_eff'][:, at], expected_lean(mean(familiar.at)), mean(familiar.near_at)
                z = (r['score'][:, at]/rule.sd - allowance(l_eff, rule.allowance_short, rule.allowance_long, TextLeans(lean, near)))*np.sqrt(l_eff)
                if name == 'packaged': np.testing.assert_allclose(z, r['z'][:, at], atol=1e-6)
                out.append(pd.DataFrame(dict(table=name, kind=kind, length=length, key=range(a.first_key, a.first_key+len(keys)), texts=len(at), lean=lean.mean(), unfamiliar=is_unfamiliar(lean).mean(), l_eff_share=(l_eff/np.maximum(r['n_scored'][at], 1)).mean(1), mean_z=z.mean(1), sd_z=z.std(1), **rates(z))))
        R = pd.concat(out).query('length == @length').groupby(['table', 'kind'])['fpr_0.01'].agg(['mean', 'max']).unstack(0)
        print(f'{time.time()-t0:.0f} s\n{R.round(4).to_string()}', flush=True)
    R = pd.concat(out, ignore_index=True)
    few = {c: rounded(R[c], 12).astype(float) for c in ('lean', 'unfamiliar', 'l_eff_share', 'mean_z', 'sd_z')}
    run = stamp(a, host, enc, T, time.time()-t0)
    add(a, 'screening_unseen', R.assign(**few), ['kind', 'length', 'texts'], run | dict(command=run['command'].replace('screening.py rates', 'screening.py unseen').replace(f'--variants {" ".join(a.variants)} ', '')))

def add(a, name, R, by, run):
    "Rows and what they were made with, beside those that are stored; rows with the same values of the columns `by` are replaced"
    a.out.mkdir(parents=True, exist_ok=True)
    path, said, new = a.out/f'{name}.parquet', a.out/f'{name}.json', set(zip(*(R[c] for c in by)))
    if path.exists():
        old = pd.read_parquet(path)
        R = pd.concat([old[[x not in new for x in zip(*(old[c] for c in by))]], R], ignore_index=True).astype(R.dtypes)
    R.to_parquet(path, index=False, compression='zstd', compression_level=19)
    runs = json.loads(said.read_text()) if said.exists() else {}
    said.write_text(json.dumps(runs | {f'{" and ".join(map(str, a.lengths))} tokens' + (', ' + ' '.join(a.kinds) if a.kinds else ''): run}, indent=1) + '\n')

TAKEN = 0., .25, .5, .75, 1.                                 # shares of the lean that are taken off

def running(scheme, doc, y, ids, u, lean):
    "(N, keys) logarithms of the running e-value, for each share of the lean that is taken off. y: (N, keys) standardised scores of the positions that count; ids, u, lean: of the same"
    bets = ScoreBets()
    bets.add(y, Pairs().kernels(scheme, ids, u).cpu().double().numpy(), weights_so_far(scheme.room, doc)[doc.first], lean)
    whole = bets.u
    for taken in TAKEN:
        bets.u = taken*whole
        yield bets.by_key

def streams(a):
    "Texts that are read while they arrive: how often the running e-value is ever 20, or 100, by key; with and without what `ScoreStream` takes off for a key that leans"
    t0, host, T = time.time(), load_host(a.host, device=a.device), chosen(a).reset_index(drop=True)
    keys, rows = [study_key(i, a.name) for i in range(a.first_key, a.first_key+a.keys)], []
    wm, enc = built('weighted_everyday', host, keys[0], a.device)
    docs = list(wm.detector(reading='raw').reader.stream(T.text.tolist()))
    few = wm.narrow(np.concatenate([d.ids for d in docs]))
    rules = [few.rekey(k).rule for k in tqdm(keys, desc='keys', disable=no_bar(True))]
    top = np.empty((len(TAKEN), len(docs), len(keys)))           # logarithm of the largest running e-value
    for some in tqdm(np.array_split(np.arange(len(docs)), max(1, len(docs)*max(a.lengths)//40_000)), desc='texts', disable=no_bar(True)):
        p = positions(few, *(np.concatenate([getattr(docs[i], name)[docs[i].first] for i in some]) for name in ('windows', 'tokens')))
        y, end = np.stack([position_scores(r, p).cpu().numpy()/r.sd for r in rules], 1), 0
        for i in some:
            at = slice(end, end := end + docs[i].first.sum())
            for j,log_e in enumerate(running(few, docs[i], y[at], p.ids[at], p.u[at], leans_so_far(few, docs[i])[docs[i].first])): top[j, i] = log_e.max(0, initial=0.)
    for (kind,length),at in T.groupby(['kind', 'length'], sort=False).indices.items():
        for taken,x in zip(TAKEN, top[:, at]):
            rows.append(pd.DataFrame(dict(taken=taken, kind=kind, length=length, key=range(a.first_key, a.first_key+len(keys)), texts=len(at),
                                          ever_20=(x >= np.log(20)).mean(0), ever_100=(x >= np.log(100)).mean(0))))
    R, run = pd.concat(rows, ignore_index=True).astype(dict(taken='float32', texts='int16', key='int16', length='int16')), stamp(a, host, enc, T, time.time()-t0)
    del run['long_keys']
    add(a, 'screening_streams', R, ['kind', 'length'], run | dict(command=run['command'].replace('screening.py rates', 'screening.py streams').replace(f'--variants {" ".join(a.variants)} ', '').replace(f'--long-keys {a.long_keys} ', '')))
    for c in ('ever_20', 'ever_100'): print(c, R.groupby(['taken', 'length', 'kind'])[c].agg(['mean', 'max']).unstack(0).round(4).to_string(), sep='\n')

def cost(a):
    "What taking off a lean costs on marked text, the stored answers of the page on room weights: logarithm of the e-value at the end of each, and positions scored until it is 100. With the lean of its own language, and with that of the least familiar"
    t0, host, rows = time.time(), load_host(a.host, device=a.device), []
    stored = pd.DataFrame(read_texts(Path(__file__).parent/'data'/'room_texts.jsonl.xz'))
    wm, enc = built('weighted_everyday', host, study_key(0, 'room'), a.device)
    for key,some in stored.groupby('key'):
        own = wm.rekey(study_key(key, 'room'))
        for i,doc in zip(some.i, own.detector(reading='raw').reader.stream(some.text.tolist())):
            if not doc.first.any(): continue
            p = positions(own, doc.windows[doc.first], doc.tokens[doc.first])
            y = position_scores(own.rule, p).cpu().numpy()[:, None]/own.rule.sd
            for language,lean in dict(own=leans_so_far(own, doc)[doc.first], far=np.full(len(y), UNLIKE_FAR)).items():
                for taken,log_e in zip(TAKEN, running(own, doc, y, p.ids, p.u, lean)):
                    first = first_crossing(log_e[:, 0], .01)
                    rows.append(dict(key=key, text=i, scored=len(y), lean=language, taken=taken, log_e=round(log_e[-1, 0], 3), first=np.nan if first is None else first + 1))
    a.out.mkdir(parents=True, exist_ok=True)
    R = pd.DataFrame(rows).astype(dict(key='int16', text='int16', scored='int16', taken='float32', log_e='float32', first='float32'))
    R.to_parquet(a.out/'screening_streams_marked.parquet', index=False, compression='zstd')
    said = stamp(a, host, enc, stored, time.time()-t0) | dict(command='python nbs/studies/screening.py cost --out nbs/studies/data', keys=stored.key.nunique())
    del said['long_keys']
    (a.out/'screening_streams_marked.json').write_text(json.dumps(said, indent=1) + '\n')
    print(R.assign(found=R['first'].notna()).groupby(['lean', 'taken'])[['log_e', 'found', 'first']].mean().round(2).to_string(), R.scored.mean())

def arguments():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('what', choices=['pieces', 'rates', 'collect', 'familiarity', 'unseen', 'scored', 'streams', 'cost'])
    ap.add_argument('--texts', type=Path, help='test.jsonl of kinds.py')
    ap.add_argument('--running', type=Path, help='running.jsonl of kinds.py; without it no piece is joined')
    ap.add_argument('--pieces', type=Path)
    ap.add_argument('--parts', nargs='+', type=Path, help='folders of `rates`, to collect')
    ap.add_argument('--file', default='screening', help='that they are collected in, without its ending')
    ap.add_argument('--variants', nargs='+', default=FIRST, choices=list(VARIANTS))
    ap.add_argument('--lengths', nargs='+', type=int, default=list(PIECES), choices=[25, *PIECES], help='of pieces; rows of other lengths stay')
    ap.add_argument('--least', type=int, default=1, help='pieces of a kind and length; with fewer it is left out')
    ap.add_argument('--most', type=int, help='pieces of a kind and length; None: all')
    ap.add_argument('--kinds', nargs='+', help='None: all')
    ap.add_argument('--each', type=int, help='pieces of each kind and length, from any place of the texts; None: as many as PIECES says, from beginnings')
    ap.add_argument('--by-source', action='store_true', help='of `pieces --each`: each source of a kind is a kind of its own')
    ap.add_argument('--name', default='screening', help='of the keys; the allowances were chosen on those of the default')
    ap.add_argument('--keys', type=int, default=50)
    ap.add_argument('--first-key', type=int, default=0, help='number of the first; rows of earlier ones stay')
    ap.add_argument('--long-keys', type=int, default=16)
    ap.add_argument('--host', default='smollm2-135m')
    ap.add_argument('--device')
    ap.add_argument('--out', type=Path, required=True)
    return ap.parse_args()

if __name__ == '__main__':
    a = arguments()
    dict(pieces=pieces, rates=study, collect=collect, familiarity=familiarity, unseen=unseen, scored=scored, streams=streams, cost=cost)[a.what](a)
