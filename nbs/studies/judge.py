"""Can a language model judge texts? It is asked about pairs whose answer is known.

    python nbs/studies/judge.py --out nbs/studies/data                       the instructed model of 1.5 billion weights, on a GPU
    python nbs/studies/judge.py --judge smollm2-135m --texts 4 --tokens 20 --out toy

People's texts (film reviews) against the same texts with their words shuffled, their first quarter, and what SmolLM2-135M writes after
the same prompts. Writes judge.json: wins, losses and ties of each trial, and whether the judge passes. Answers are kept in answers.sqlite
in the folder of --work, so that a run that was stopped goes on where it was.
"""
import argparse, json
from pathlib import Path

from dew_nb import load_host
from dew_nb.evaluation.texts.content import machine
from dew_nb.evaluation.texts.corpora import build_corpus
from dew_nb.evaluation.attacks.localchat import LocalChat
from dew_nb.evaluation.studies.quality import can_judge, judge_trials
from dew_nb.evaluation.texts.sampling import complete


def counts(r):
    return dict(nps=r.nps, interval=list(r.interval), wins=r.wins, losses=r.losses, ties=r.ties, split=r.split,
                unparsable=r.unparsable)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--judge', default='qwen2.5-coder-1.5b-instruct', help='an asset, a folder or a hub id')
    ap.add_argument('--texts', type=int, default=200)
    ap.add_argument('--tokens', type=int, default=200, help='of a text')
    ap.add_argument('--batch', type=int, default=None, help='questions at a time')
    ap.add_argument('--work', type=Path, default=None, help='folder for answers; as --out if left out')
    ap.add_argument('--out', type=Path, required=True)
    a = ap.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    host, small = load_host(a.judge), load_host()
    corpus = build_corpus(host, n=a.texts, n_text=a.tokens)
    worse = complete(small, corpus.prompts, a.tokens, batch_size=100 if small.device.type == 'cuda' else 8)
    chat = LocalChat(host, a.batch, max_tokens=4, cache=(a.work or a.out)/'answers.sqlite')
    trials = judge_trials(chat, corpus.prompts, corpus.human, dict(smollm2=worse))
    for name,r in trials.items(): print(f'{name:10}', r, flush=True)
    found = dict(passes=can_judge(trials), trials={k: counts(r) for k,r in trials.items()}, texts=a.texts, tokens=a.tokens)
    (a.out/'judge.json').write_text(json.dumps(found | machine(host), indent=1) + '\n')
    print('can judge:', found['passes'])


if __name__ == '__main__': main()
