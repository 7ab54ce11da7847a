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

from jaxblocks.layers.norm.batch import BatchNorm, batch_norm
from jaxblocks.layers.norm.lengths import LocalResponseNorm, UnitNorm, local_response_norm, unit_norm
from jaxblocks.layers.norm.per_example import (
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    RMSNorm,
    group_norm,
    instance_norm,
    layer_norm,
    rms_norm,
)

__all__ = [
    "BatchNorm",
    "GroupNorm",
    "InstanceNorm",
    "LayerNorm",
    "LocalResponseNorm",
    "RMSNorm",
    "UnitNorm",
    "batch_norm",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "local_response_norm",
    "rms_norm",
    "unit_norm",
]
