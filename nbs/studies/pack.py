"""Results of the runner as the few files that notebooks read and the repository keeps.

    python nbs/studies/pack.py results/evaluation results/strength results/cool --out nbs/studies/data

Each folder becomes one of the same name under OUT: all scores, and the first texts of each unit. With --add, what is in
OUT already stays, and what was computed since joins it (a row more, an attack more); with --renew what was computed again
takes the place of what is there. --instead names schemes whose older units all go, since they were other choices.
"""
import argparse, copy
from pathlib import Path

from dew_nb.evaluation.studies.store import load_results

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

def main():
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('results', nargs='+', type=Path, help='folders of dew_eval')
    ap.add_argument('--texts', type=int, default=100, help='texts to keep of each unit')
    ap.add_argument('--attacked', type=int, default=10, help='and of each attacked one')
    ap.add_argument('--add', action='store_true', help='to the packs that are there')
    ap.add_argument('--renew', action='store_true', help='the same, but new units take the place of old ones')
    ap.add_argument('--instead', nargs='+', default=(), help='schemes of which no old unit stays')
    ap.add_argument('--out', type=Path, required=True)
    a = ap.parse_args()
    for folder in a.results:
        new, pack = load_results(folder), a.out/folder.name
        if a.add or a.renew: new = joined(load_results(pack), new, a.renew, a.instead)
        print(new.pack(pack, a.attacked, texts=a.texts))

if __name__ == '__main__': main()
