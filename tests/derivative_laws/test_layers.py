"""Second derivatives and nestings of every layer of the zoo; first derivatives are laws of `check_layer`."""

import jax
import ml_dtypes
import numpy as np
import pytest
from derivative_laws.laws import Case, finite_differences, hessian, nestings
from derivative_laws.row import Row
from zoo import ZOO

import jaxblocks
from jaxblocks import stateful

LAYERS = {row.public: row for row in reversed(ZOO.values()) if row.public}
"""The first row of each builder."""


def is_moving(leaf) -> bool:
    return jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating)


def case_of(name: str) -> Case | None:
    """The layer as a function of its floating-point params and inputs, or None if there are none."""
    specimen = LAYERS[name]
    layer, key = stateful(specimen.layer), jax.random.key(0)
    inputs = specimen.inputs()
    declared = jaxblocks.side_inputs(specimen.layer)
    of_init = {n: v for n, v in specimen.side.items() if n in jaxblocks.side_inputs(specimen.layer.init)}
    params, state = layer.init(jax.random.fold_in(key, 1), *inputs, **of_init)
    leaves, tree = jax.tree.flatten((params, inputs))
    moving = [i for i, leaf in enumerate(leaves) if is_moving(leaf)]
    point = tuple(np.asarray(leaves[i]).astype(ml_dtypes.bfloat16).astype(np.float64) for i in moving)

    def call(_, *args):
        filled = list(leaves)
        for i, leaf in zip(moving, args, strict=True):
            filled[i] = leaf
        params, inputs = jax.tree.unflatten(tree, filled)
        fitted = jax.tree.map(lambda s: s.astype(args[0].dtype) if is_moving(s) else s, state)
        keys = {"key": jax.random.clone(key)} if "key" in declared else {}  # a clone, since loops call it twice
        outputs, _ = layer.apply(params, fitted, *inputs, **specimen.side, **keys)
        return outputs

    return Case(None, Row(point, call, exponents=())) if moving else None


@pytest.fixture(scope="module", params=LAYERS)
def case(request):
    """The case of a layer; its laws share its programs."""
    return case_of(request.param)


COLUMNS = {law.__name__: law for law in (finite_differences, hessian, nestings)}


@pytest.mark.parametrize("column", COLUMNS)
def test_law_holds(case, column):
    """Each law holds for each layer."""
    if case is not None:
        COLUMNS[column](case)
