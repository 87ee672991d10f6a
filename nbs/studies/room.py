"""Room weights on low-entropy text: TPR and FPR with and without them. Makes the packaged table too. Read by "Room weights".

    python nbs/studies/room.py write --what marked --batches 5 --out room          # texts under five keys, 32 answers each
    python nbs/studies/room.py write --what unmarked --batches 20 --out room       # two batches to test on, the others to learn from
"""
import argparse
from pathlib import Path

from dew_nb import DEW, DEWConfig, load_encoder, load_host
from dew_nb.evaluation.texts.content import read_texts, study_key, write_texts
from dew_nb.evaluation.texts.corpora import build_corpus

SAMPLER = dict(temperature=.7, top_p=.9, no_repeat_ngram_size=0, min_new_tokens=50)
BATCH, TOKENS, TEST = 32, 150, 2              # texts of a batch, tokens of a text, unmarked batches to test on
KINDS = 'questions', 'movie-reviews', 'questions', 'topics'          # to learn from, in turn

def batch_prompts(host, what, i):
    "Prompts of one batch: a kind, a split and 32 strings"
    test = what == 'marked' or i < TEST
    kind, split = ('questions', 'evaluation') if test else (KINDS[(i-TEST) % len(KINDS)], 'calibration')
    place = i + 5 if what == 'unmarked' and test else i if test else [j for j in range(TEST, i+1) if KINDS[(j-TEST) % len(KINDS)] == kind].index(i)
    corpus = build_corpus(host, kind, split, n=(place+1)*BATCH)
    return kind, split, list(corpus.prompts[-BATCH:])

def write(a):
    "Texts of each batch that is not there yet, one file a batch"
    host = load_host()
    wm = DEW.build(host, load_encoder(), study_key(0, 'room'), DEWConfig.preset('standard'), progress=False)
    a.out.mkdir(parents=True, exist_ok=True)
    for i in range(a.batches):
        path = a.out/f'{a.what}-{i:02}.jsonl'
        if path.is_file(): continue
        kind, split, prompts = batch_prompts(host, a.what, i)
        own = wm.rekey(study_key(i, 'room')) if a.what == 'marked' else wm
        texts = own.generate(prompts, TOKENS, seed=1000*(a.what == 'marked') + i, mark=a.what == 'marked', batch_size=BATCH, **SAMPLER)
        write_texts(path, [dict(kind=kind, split=split, key=i if a.what == 'marked' else -1, prompt=p, text=t) for p,t in zip(prompts, texts)])

def arguments():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('do', choices=['write'])
    ap.add_argument('--what', choices=['marked', 'unmarked'])
    ap.add_argument('--batches', type=int, default=5)
    ap.add_argument('--out', type=Path, required=True)
    return ap.parse_args()

if __name__ == '__main__':
    a = arguments()
    dict(write=write)[a.do](a)
