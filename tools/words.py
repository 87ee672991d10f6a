"""Make dew_nb/data/words.safetensors, the projection of the word space, from bilingual dictionaries.

    for l in deu fra ita nld por spa; do apt-get download dict-freedict-eng-$l dict-freedict-$l-eng; done
    for d in *.deb; do dpkg -x $d unpacked; done
    python tools/words.py --dictionaries unpacked/usr/share/dictd --version 2022.04.21-1

The dictionaries are FreeDict's (GPL 2 and later, German: GPL 3 and later), both directions of each language, in the format of dictd: an index
with the place and length of each entry in base 64, and the entries. A pair of words counts if both directions know it. What goes into the package
are 64 directions, and no word of a dictionary.
"""
import argparse, gzip, re, string
from collections import Counter
from pathlib import Path

import torch
from safetensors.torch import save_file

from dew_nb import load_encoder
from dew_nb.mark.sources import reference_texts
from dew_nb.models.vectors import unit_rows
from dew_nb.mark.words import fold, words
from dew_nb.mark.wordspace import WordProjection

WORDS, MOST = 6000, 8                                       # English words, and translations of one
FIT = dict(alike=.5, shrinkage=.03)
BASE_64 = string.ascii_uppercase + string.ascii_lowercase + string.digits + '+/'
DIGITS = {c: i for i,c in enumerate(BASE_64)}
REMARK = re.compile(r'<[^>]*>|\[[^]]*\]|\([^)]*\)')         # <fem> [obs.] (of a house)


def number(s):
    "A number as dictd writes it"
    n = 0
    for c in s: n = 64*n + DIGITS[c]
    return n


def translations(entry):
    "Translations of one word in an entry: its lines that are not indented"
    for line in entry.split('\n')[1:]:
        if line.startswith(' '): continue
        for part in re.split('[,;]', REMARK.sub('', re.sub(r'^\d+\. ', '', line))):
            w = words(part)
            if len(w) == 1 and w[0].isalpha(): yield w[0]


def read_dictionary(index, wanted):
    "{word: its translations of one word, in order}, of the words that are wanted"
    data, found = gzip.open(index.with_suffix('.dict.dz')).read(), {}
    for line in index.read_text(encoding='utf8').splitlines():
        head, at, n = line.split('\t')
        if (word := fold(head)) not in wanted: continue
        entry = data[number(at):number(at) + number(n)].decode('utf8')
        first = re.split(' [</]', entry.split('\n')[0])[0]
        if fold(first) == word: found.setdefault(word, []).extend(translations(entry))   # else a part of a longer headword
    return {w: list(dict.fromkeys(t)) for w,t in found.items()}


def pairs_of(folder, language, wanted):
    "(English word, translation, how many translations it has), in both dictionaries"
    there = read_dictionary(folder/f'freedict-eng-{language}.index', wanted)
    back = read_dictionary(folder/f'freedict-{language}-eng.index', {t for ts in there.values() for t in ts})
    for w,ts in there.items():
        ts = [t for t in ts if w in back.get(t, ())][:MOST]
        for t in ts: yield w, t, len(ts)


def languages(folder):
    "Languages that a folder has both dictionaries of"
    have = sorted(p.stem[-3:] for p in folder.glob('freedict-eng-*.index'))
    if not have: raise SystemExit(f'No freedict-eng-*.index in {folder}: see the first lines of this file')
    return [l for l in have if (folder/f'freedict-{l}-eng.index').exists()]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--dictionaries', type=Path, required=True, help='folder with freedict-*.index and freedict-*.dict.dz')
    ap.add_argument('--version', default='', help='of the dictionaries, for the record')
    ap.add_argument('--out', type=Path, default=Path(__file__).resolve().parent.parent/'dew_nb'/'data'/'words.safetensors')
    a = ap.parse_args()
    encoder = load_encoder('use-multilingual')
    count = Counter(w for t in reference_texts() for w in words(t))
    units, n = zip(*count.items())
    p = torch.tensor(n).float()
    mean = (p/p.sum()) @ unit_rows(torch.from_numpy(encoder.encode(units)))
    wanted = set([w for w,_ in count.most_common() if w.isalpha()][:WORDS])
    have = languages(a.dictionaries)
    english, others, of = zip(*(x for l in have for x in pairs_of(a.dictionaries, l, wanted)))
    e, f = (torch.from_numpy(encoder.encode(x)) for x in (english, others))
    weight = torch.tensor([count[w]/k**2 for w,k in zip(english, of)])          # `fit` takes the root
    P = WordProjection.fit(e, f, weight, mean, **FIT)
    save_file(dict(mean=P.mean.half(), P=P.P.half().contiguous()), a.out, metadata=dict(
        encoder=encoder.digest, name=encoder.name, pairs=str(len(english)), languages=' '.join(have),
        source=f'FreeDict {a.version}'.strip(), fit=' '.join(f'{k}={v}' for k,v in FIT.items())))
    print(f'{len(english):,} pairs, {" ".join(have)}; {a.out}: {a.out.stat().st_size/1e3:.0f} kB')


if __name__ == '__main__': main()
