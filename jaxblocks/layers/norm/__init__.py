r"""Normalization layers over batches and over single examples. (`weight_norm` normalizes weights.)

All compute $(x - mean) / √(var + ϵ)$; they differ in the axes
of the mean and the (biased) variance. For $T_{bnc}$ with b batch, n positions, c channels:

    batch norm       over b and n, for each c; the lecture's form over b, for each (n, c)
    layer norm       over c, for each (b, n); the lecture's form over (n, c), for each b
    group norm       over n and a group of channels, for each b
    instance norm    over n, for each (b, c)

Statistics of bfloat16 and float16 are computed in float32 (`jaxblocks.statistics`).

Read `per_example` first: layer, RMS, group and instance norm. `lengths` divides by lengths, without a mean: of vectors,
and of neighboring channels. `batch` has batch norm, `running_statistics` the state of norms in evaluation, and `shared`
what all of them share.
"""

from jaxblocks.layers.norm import batch, lengths, per_example
from jaxblocks.layers.norm.batch import *
from jaxblocks.layers.norm.lengths import *
from jaxblocks.layers.norm.per_example import *

__all__: list[str] = []
__all__ += batch.__all__
__all__ += lengths.__all__
__all__ += per_example.__all__
