"""False positives away from home: texts of another kind and in other languages than the reference
sample, under 50 keys. Read by *False positive rates of the presets under 50 keys*.

    apt-get download debian-handbook && dpkg -x debian-handbook_*.deb handbook
    python nbs/studies/domains.py --handbook handbook --out nbs/studies/data
    python nbs/studies/domains.py --handbook handbook --presets tournament multilingual --name domains_tournament --out nbs/studies/data

The Debian Administrator's Handbook (GPL-2+ or CC-BY-SA-3.0) is technical prose by people, in many
languages. It is cut into pieces of about 200 tokens; neither pieces nor keys were used when the
presets were chosen. Writes NAME.parquet (language, preset, key: rates and moments of z) and
NAME.json. With --pieces FILE the pieces are written to, or read from, a file of their own.
"""
import argparse, html, json, re, time
from pathlib import Path

import pandas as pd

from dew_nb import DEW, DEWConfig, load_encoder, load_host
from dew_nb.read.over_keys import scores_over_keys
from dew_nb.evaluation.texts.content import machine, read_texts, study_key, write_texts
from dew_nb.models.tokenization import backend
from null_over_keys import Z, rates

LANGUAGES = 'en-US', 'fr-FR', 'de-DE', 'es-ES', 'zh-CN'

def paragraphs(folder):
    "Plain paragraphs of a folder of HTML pages, in order"
    for f in sorted(folder.glob('*.html')):
        for p in re.findall(r'<div class="para">(.*?)</div>', f.read_text(encoding='utf-8'), re.S):
            t = ' '.join(html.unescape(re.sub(r'<[^>]+>', ' ', p)).split())
            if len(t) > 40: yield re.sub(r' ([.,;:!?)])', r'\1', t)

def pieces(tok, texts, n, tokens):
    "Runs of whole paragraphs of at least so many tokens, cut there"
    out, run = [], ''
    for t in dict.fromkeys(texts):
        run = f'{run} {t}'.strip()
        off = tok.encode(run, add_special_tokens=False).offsets
        if len(off) < tokens: continue
        out.append(run[:off[tokens-1][1]])
        run = ''
        if len(out) == n: break
    return out

def handbook(root, tok, n, tokens):
    "Pieces in every language; paragraphs of a translation that are still English are left out"
    english, rows = set(paragraphs(root/LANGUAGES[0])), []
    for l in LANGUAGES:
        texts = (t for t in paragraphs(root/l) if l == LANGUAGES[0] or t not in english)
        rows += [dict(language=l, text=t) for t in pieces(tok, texts, n, tokens)]
    return rows

def find_pieces(a, tok):
    "The pieces, from the handbook or from a file that has them"
    if a.pieces and a.pieces.exists(): return read_texts(a.pieces)
    if not a.handbook: raise SystemExit('give the unpacked package with --handbook, or --pieces')
    rows = handbook(a.handbook/'usr/share/doc/debian-handbook/html', tok, a.texts, a.tokens)
    if a.pieces: write_texts(a.pieces, rows)
    return rows

def arguments():
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--handbook', type=Path, help='the unpacked package')
    ap.add_argument('--pieces', type=Path)
    ap.add_argument('--presets', nargs='+', default=['paper', 'calibrated'])
    ap.add_argument('--name', default='domains', help='of the files')
    ap.add_argument('--texts', type=int, default=600)
    ap.add_argument('--every', type=int, default=1, help='take one piece in so many, over the whole book')
    ap.add_argument('--tokens', type=int, default=200)
    ap.add_argument('--keys', type=int, default=50)
    ap.add_argument('--device')
    ap.add_argument('--out', type=Path, required=True)
    return ap.parse_args()

def main():
    a, t0 = arguments(), time.time()
    a.out.mkdir(parents=True, exist_ok=True)
    host = load_host(device=a.device)
    T = pd.DataFrame(find_pieces(a, backend(host.tokenizer)))
    T = T[T.groupby('language').cumcount() % a.every == 0]
    print(T.language.value_counts().to_dict(), flush=True)
    keys, out = [study_key(i, 'domains') for i in range(a.keys)], []
    for preset in a.presets:
        config = DEWConfig.preset(preset, **(dict(screen=False) if preset == 'multilingual' else {}))      # as it was when this was measured
        enc = load_encoder('use-multilingual' if preset == 'multilingual' else 'minilm', device=a.device)
        wm = DEW.build(host, enc, keys[0], config, progress=False)
        r = scores_over_keys(wm, keys, T.text.tolist(), progress=False, reading='raw')
        for lang in T.language.unique():
            z = (r['z'] if config.null == 'key' else r['z_iid'])[:, (T.language == lang).to_numpy()]
            out.append(pd.DataFrame(dict(preset=preset, language=lang, key=range(a.keys),
                texts=z.shape[1], l_eff=r['l_eff'][:, (T.language == lang).to_numpy()].mean(1), mean_z=z.mean(1), sd_z=z.std(1), **rates(z))))
            hit = (z > Z[.01]).mean(1)
            print(f'{time.time()-t0:.0f} s: {preset:10} {lang}: FPR at 1% {hit.mean():.4f}, '
                  f'worst key {hit.max():.4f}', flush=True)
    pd.concat(out).to_parquet(a.out/f'{a.name}.parquet', compression='zstd', index=False)
    (a.out/f'{a.name}.json').write_text(json.dumps(dict(
        command=f'python nbs/studies/domains.py --handbook handbook{f" --every {a.every}" if a.every > 1 else ""} --presets {" ".join(a.presets)} --name {a.name} --out nbs/studies/data',
        source="Debian Administrator's Handbook, package debian-handbook 11.20220922",
        texts=T.language.value_counts().to_dict(), tokens=a.tokens, keys=a.keys,
        seconds=round(time.time()-t0), **machine(host, enc)), indent=1) + '\n')

if __name__ == '__main__': main()
