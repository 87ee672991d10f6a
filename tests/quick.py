"What several tests need"
import numpy as np


class Letters:
    "An encoder that is quick because it means nothing: vectors from letter counts"
    name, digest = 'letters', 'letters-1'
    def encode(self, texts):
        n, length = len(texts), np.array([len(t) for t in texts], int)
        letters = ''.join(t[:40].ljust(40) for t in texts).encode('utf-32-le', 'surrogatepass')
        place = (np.frombuffer(letters, np.uint32).reshape(n, 40).astype(int)*7 + np.arange(40)) % 32 + 32*np.arange(n)[:,None]
        counts = np.bincount(place[np.arange(40) < length[:,None]], minlength=32*n)
        return counts.reshape(n, 32).astype(np.float32) + np.float32(.01)
