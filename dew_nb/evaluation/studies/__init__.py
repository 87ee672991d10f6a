"What a study is, how it is run, and what it found"
from . import packing, plots  # they give `Results` its methods `pack` and `plot`
