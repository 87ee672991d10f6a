"Make dew_nb/data/words.safetensors, the projection of the word space: DEW_MODELS=FOLDER python tools/words.py"
from collections import Counter
from pathlib import Path

import torch
from safetensors.torch import save_file

from dew_nb import load_encoder
from dew_nb.evaluation.translation import Translate
from dew_nb.sources import reference_texts
from dew_nb.whitening import unit_rows
from dew_nb.words import words
from dew_nb.wordspace import WordProjection

WORDS = 4000


def main():
    encoder = load_encoder('use-multilingual')
    count = Counter(w for t in reference_texts() for w in words(t))
    units, n = zip(*count.items())
    p = torch.tensor(n).float()
    mean = (p/p.sum()) @ unit_rows(torch.from_numpy(encoder.encode(units)))
    english = [w for w,_ in count.most_common() if w.isalpha()][:WORDS]
    french = [w.lower().strip('. ') for w in Translate('opus-mt-en-fr-int8')(english, 0)]
    e, f = (torch.from_numpy(encoder.encode(x)) for x in (english, french))
    P = WordProjection.fit(e, f, torch.tensor([count[w] for w in english]), mean)
    path = Path(__file__).resolve().parent.parent/'dew_nb'/'data'/'words.safetensors'
    save_file(dict(mean=P.mean.half(), P=P.P.half().contiguous()), path,
              metadata=dict(encoder=encoder.digest, name=encoder.name))
    print(f'{path}: {path.stat().st_size/1e3:.0f} kB')


if __name__ == '__main__': main()
