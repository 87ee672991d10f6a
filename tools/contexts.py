"Make dew_nb/data/contexts.safetensors, the token vectors that come with the package: python tools/contexts.py"
from pathlib import Path

import torch
from safetensors.torch import save_file

from dew_nb import load_encoder, load_host
from dew_nb.mark.compiled import cached_token_vectors, quantise, squeeze, token_texts

WIDTH = 64


def main():
    host, encoder = load_host(), load_encoder()
    vectors = squeeze(cached_token_vectors(encoder, host), WIDTH)
    path = Path(__file__).resolve().parent.parent/'dew_nb'/'data'/'contexts.safetensors'
    texts = torch.from_numpy(token_texts(host.tokenizer, len(vectors)))
    save_file(quantise(vectors) | dict(texts=texts), path, metadata=dict(
        encoder=encoder.digest, tokenizer=host.tokenizer_digest, shape=str(tuple(vectors.shape))))
    print(f'{path}: {path.stat().st_size/1e6:.1f} MB')


if __name__ == '__main__': main()
