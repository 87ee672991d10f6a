"""Results of the runner as the few files that notebooks read and the repository keeps.

    python nbs/studies/pack.py results/evaluation results/strength results/cool --out nbs/studies/data

Each folder becomes one of the same name under OUT: all scores, and a sample of the texts. What is kept of each study stands
in KEEP: the texts that a page reads, and the columns and digits that its figures need; --all keeps 100 texts of each unit, 10 of
each attacked one, and every column. With --add, what is in OUT already stays, and what was computed since joins it (a row more,
an attack more); with --renew what was computed again takes the place of what is there. --instead names schemes whose older units
all go, since they were other choices. With --again the folders are packs already, and are packed once more as KEEP has it now:

    python nbs/studies/pack.py --again nbs/studies/data/*/ --out nbs/studies/data

With --squeeze, every parquet file under the folders is compressed anew where that makes it smaller; what it holds stays, to the last bit:

    python nbs/studies/pack.py --squeeze nbs/studies/data
"""
import argparse, copy, io
from pathlib import Path

import pandas as pd

from dew_nb.evaluation.studies.store import load_results
from dew_nb.evaluation.texts.frames import parquet_bytes

# Texts: the first two of each unit, so that they can be scored again, and more where a page counts words or tokens in them
READ = ('none', 'Unigram', 'DEW paper lam=2.0', 'DEW paper lam=2.5', 'DEW calibrated lam=2.0', 'DEW calibrated lam=2.5',
        'DEW calibrated lam=2.5 mode=context_only', 'SynthID', 'KGW')          # "What many marked texts give away"
def most(unit):
    "A hundred of what pages read tokens of, under the encoder of the main table"
    if unit.source in READ: return 100 if unit.encoder in ('', 'minilm') else 2
    return {'DEW tournament': 100, 'DEW multilingual': 100, 'human': 60}.get(unit.source, 2)

def turned(unit):
    "Sixty of each strength and width that \"What many marked texts give away\" reads; those of λ = 2 and 2.5 are in the main table"
    base = 'DEW paper lam=2.0'
    read = [f'DEW {p} lam={l}' for p in ('paper', 'calibrated') for l in (1.0, 1.5, 3.0)] + [f'{base} k={k}' for k in (1, 2, 5)]
    return 60 if unit.source in read else 2

def attacked(unit):
    "One, and ten of those that scan_ends.py and words_proxy.py read"
    return 10 if (unit.source, unit.attack) in [('DEW tournament', 'deletion-0.3'), ('none', 'French'), ('human', 'French')] else 1

# Columns: the score and the p-value of every text, rounded (no rate changes: p-values keep their power of two and the side of each
# level, scores the side of each threshold); what else a scheme says of a text, for texts that are
# kept, and for all where a page reads it. Similarity and changes are there where a page reads them, or not at all.
DETAIL = dict.fromkeys(('z', 'z_iid', 'mean_score', 'l_eff', 'green', 'n_scored'), 'kept')
CHANGES = dict(edit_rate=5, length_ratio=5, cosine=5)                         # means of hundreds are read
QUALITY = dict(ppl=19, distinct_2=11, repetition_4=9, similarity=14)     # medians, and means of hundreds
USUAL = dict(texts=2, attacked=1, detail=DETAIL, drop=('similarity', *CHANGES), bits=CHANGES | QUALITY | dict(score=10, p_value=0), other_keys=('none',))
def keep(read=(), unattacked=(), bits={}, **more):
    "What is usual, but columns that a page reads are whole, or there for all unattacked texts"
    detail = {c: w for c,w in (DETAIL | dict.fromkeys(unattacked, 'unattacked')).items() if c not in read}
    return USUAL | dict(detail=detail, drop=[c for c in USUAL['drop'] if c not in read], bits=USUAL['bits'] | dict(bits)) | more
KEEP = dict(
    evaluation=keep(('similarity', *CHANGES), ('mean_score', 'green'), texts=most, attacked=attacked),
    cool=keep(('edit_rate', 'l_eff'), ('mean_score', 'green', 'n_scored'), dict(l_eff=11), texts=most),
    ablation_tournament=keep(unattacked=('l_eff',)),
    real=keep(('edit_rate', 'length_ratio'), bits=dict(edit_rate=11, length_ratio=11), attacked=2, other_keys=None), real_use=keep(other_keys=None), schemes_real=keep(attacked=2),
    strength=keep(texts=turned), real_length=keep(('n_scored',)), schemes_few=keep(('n_scored',), bits=dict(score=23), texts=lambda u: 12 if u.seed == 0 else 2))

def joined(old, new, renew, instead):
    "Both results as one, without the old units of some schemes"
    u, card = old.units, copy.deepcopy(old.study)                         # the card's order stays
    gone = set(u.id[u['source'].isin(instead) | u.get('scheme', u['source']).isin(instead)]) - set(new.units.id)
    for name in instead: old.study['schemes'].pop(name, None)
    both = new.join(old) if renew else old.join(new)
    for k in ('schemes', 'attacks'): both.study[k] = {x: both.study[k][x] for x in dict.fromkeys([*card[k], *both.study[k]])}
    for k in ('hosts', 'encoders', 'seeds'): both.study[k] = list(dict.fromkeys([*card[k], *both.study[k]]))
    both.metas = [m for m in both.metas if m['id'] not in gone]
    return both

def squeeze(path):
    "Compress a parquet file anew if that makes it smaller, and check that it holds the same; the bytes that were gained"
    old, before = pd.read_parquet(path), path.stat().st_size
    new = parquet_bytes(old)
    if len(new) >= before: return 0
    pd.testing.assert_frame_equal(pd.read_parquet(io.BytesIO(new)), old, check_exact=True)
    path.write_bytes(new)
    return before - len(new)

def main():
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('results', nargs='+', type=Path, help='folders of dew_eval')
    ap.add_argument('--all', action='store_true', help='more texts, and every column with all digits')
    ap.add_argument('--add', action='store_true', help='to the packs that are there')
    ap.add_argument('--renew', action='store_true', help='the same, but new units take the place of old ones')
    ap.add_argument('--again', action='store_true', help='the folders are packs: make them smaller, as KEEP has it')
    ap.add_argument('--instead', nargs='+', default=(), help='schemes of which no old unit stays')
    ap.add_argument('--squeeze', action='store_true', help='only compress the parquet files anew, with the same content')
    ap.add_argument('--out', type=Path)
    a = ap.parse_args()
    if a.squeeze:
        files = sorted(f for o in a.results for f in (o.rglob('*.parquet') if o.is_dir() else [o]))
        return print(f'{sum(map(squeeze, files))/1e3:,.0f} kB less in {len(files)} files')
    if a.out is None: ap.error('the following arguments are required: --out')
    for folder in a.results:
        new, pack = load_results(folder), a.out/folder.name
        if new.packed != a.again: ap.error(f'{folder} is {"" if new.packed else "not "}a pack: --again is for packs')
        if a.add or a.renew: new = joined(load_results(pack), new, a.renew, a.instead)
        print(new.pack(pack, **(dict(texts=100, attacked=10) if a.all else KEEP.get(folder.name, USUAL))))

if __name__ == '__main__': main()
