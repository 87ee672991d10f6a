"What several tests need"
import numpy as np


class Letters:
    "An encoder that is quick because it means nothing: vectors from letter counts"
    name, digest = 'letters', 'letters-1'
    def encode(self, texts):
        x = np.zeros((len(texts), 32), np.float32)
        for i,t in enumerate(texts):
            for j,c in enumerate(t[:40]): x[i, (ord(c)*7 + j) % 32] += 1
        return x + .01
