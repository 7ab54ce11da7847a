"""Second derivatives of the layers of the zoo; first derivatives are laws of `check_layer`.

A layer that is one function of the table, or a composition of other layers, is left out, and one whose program has no
rules of derivatives and no loops: its second derivatives are JAX's alone.
"""

import jax
import numpy as np
import pytest
from derivative_laws import layer_functions
from derivative_laws.laws import Case, finite_differences, hessian
from derivative_laws.row import Row, array
from zoo import ZOO

import jaxblocks
from jaxblocks import stateful

FUNCTIONS = {name for name, row in layer_functions.ROWS.items() if isinstance(row, Row)}
FUNCTIONS = {name.replace("_step", "_cell").replace("_", "") for name in FUNCTIONS}
COMPOSED = {"MLP", "Bidirectional", "RecurrentDropout", "Frozen"}  # Frozen: differences would move its params
ONE_FUNCTION = set(
    """AvgPool BatchNorm Conv ConvGRUCell ConvLSTMCell ConvTranspose Flatten GRUCell GlobalAvgPool GlobalMaxPool
    GroupNorm InstanceNorm LSTMCell LayerNorm LocalResponseNorm LpPool MaxPool ModReLU Pad
    PixelShuffle PixelUnshuffle RMSNorm RNNCell RandomFourierFeatures RelativePositionBias Resize Swish
    UpSample""".split()
)
LAYERS = {row.public: row for row in reversed(ZOO.values()) if row.public not in COMPOSED | ONE_FUNCTION | {""}}
"""The first row of each builder."""


WITH_RULES = set(
    """Attention CachedAttention GRU LSTM MixtureOfExperts RNN Recurrent Repeat SelectiveSSM SpectralNorm
    UnitNorm""".split()
)
"""Those whose programs have rules of derivatives or loops."""


def is_moving(leaf) -> bool:
    return jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating)


def case_of(name: str) -> Case | None:
    """The layer as a function of four numbers, or None if it has no floating-point params and inputs.

    They move all params and inputs along four random directions: the laws of all entries would take long.
    """
    specimen, key, rng = LAYERS[name], jax.random.key(0), np.random.default_rng(0)
    layer, inputs = stateful(specimen.layer), specimen.inputs()
    declared = {which: jaxblocks.side_inputs(getattr(specimen.layer, which)) for which in ("init", "apply")}
    of_init = {side: value for side, value in specimen.side.items() if side in declared["init"]}
    params, state = layer.init(jax.random.fold_in(key, 1), *inputs, **of_init)
    leaves, tree = jax.tree.flatten((params, inputs))
    directions = {i: rng.normal(size=(4, *leaf.shape)) / 4 for i, leaf in enumerate(leaves) if is_moving(leaf)}

    def call(_, numbers):
        of_dtype = lambda x: jax.numpy.asarray(x, numbers.dtype)
        moved = list(leaves)
        for i, direction in directions.items():
            moved[i] = of_dtype(leaves[i]) + jax.numpy.tensordot(numbers, of_dtype(direction), 1)
        params, inputs = jax.tree.unflatten(tree, moved)
        kept = jax.tree.map(lambda leaf: of_dtype(leaf) if is_moving(leaf) else leaf, state)
        keys = {"key": jax.random.key(2)} if "key" in declared["apply"] else {}  # made here, since loops call it twice
        return layer.apply(params, kept, *inputs, **specimen.side, **keys)[0]

    row = Row((array(0.25, -0.5, 0.75, 1.25),), call, exponents=())
    return Case(None, row, dtypes=(), higher=False) if directions else None


def test_the_layers_that_are_left_out_exist():
    """In the zoo, and those that are one function in the table."""
    assert {row.public for row in ZOO.values()} >= COMPOSED | ONE_FUNCTION
    assert {name.lower() for name in ONE_FUNCTION} <= FUNCTIONS


@pytest.mark.parametrize("name", LAYERS)
def test_second_derivatives(name):
    """They are differences of gradients, and symmetric."""
    case = case_of(name)
    has_rules = case is not None and bool(case.rules)
    assert has_rules == (name in WITH_RULES)
    if has_rules:
        finite_differences(case)
        hessian(case)
