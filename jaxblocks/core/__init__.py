"""The contract of layers: the two pairs, functions as layers, and the children of combinators.

Read `pairs` first: `Layer`, `StatefulLayer` and `builder`. `lifting` makes layers of functions and stateful layers of
layers; `children` has what combinators do with their children, with the path of the layer in errors, `keys` their
keys, and `shapes` what is known without computing; `selection` finds params by path. `recording` and `expressions`
make a layer print and pickle as the call that built it. `misuse` has the errors for layers as functions, `lazy`
imports names at their first use, and `types` has what an editor shows.
"""

from jaxblocks.core.keys import child_key
from jaxblocks.core.lifting import as_layer, side_inputs, stateful
from jaxblocks.core.pairs import ArrayOrShape, Layer, LayerLike, StatefulLayer, builder
from jaxblocks.core.selection import paths, select

__all__ = [
    "ArrayOrShape",
    "Layer",
    "LayerLike",
    "StatefulLayer",
    "as_layer",
    "builder",
    "child_key",
    "paths",
    "select",
    "side_inputs",
    "stateful",
]
