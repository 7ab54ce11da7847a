"""The contract of layers: the two pairs, functions as layers, and the children of combinators.

Read `pairs` first: `Layer`, `StatefulLayer` and `builder`. `lifting` makes layers of functions and stateful layers of
layers; `children` has what combinators do with their children; `selection` finds params by path. `recording` and
`expressions` make a layer print and pickle as the call that built it.
"""

from jaxblocks.core.children import (
    apply_child,
    as_shapes,
    child_key,
    eval_shape,
    init_child,
    make_combinator,
    named_outputs,
    output_shapes,
    split_side,
)
from jaxblocks.core.lifting import as_layer, side_inputs, stateful
from jaxblocks.core.pairs import ArrayOrShape, Layer, LayerLike, StatefulLayer, builder, layer_name
from jaxblocks.core.selection import paths, select

__all__ = [
    "ArrayOrShape",
    "Layer",
    "LayerLike",
    "StatefulLayer",
    "apply_child",
    "as_layer",
    "as_shapes",
    "builder",
    "child_key",
    "eval_shape",
    "init_child",
    "layer_name",
    "make_combinator",
    "named_outputs",
    "output_shapes",
    "paths",
    "select",
    "side_inputs",
    "split_side",
    "stateful",
]
