"""The differentiable part of a layer, and its derivatives in float64."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxblocks.testing.case import Case, Tree, as_dtype, cast_to, init_of, partition

__all__ = ["dot", "in_float64", "random_like"]


class _Derivatives(NamedTuple):
    """The results of `Case._jitted_derivatives`, as lists of NumPy arrays."""

    direction: list
    cotangent: list
    outputs: list
    other_outputs: list
    tangent: list
    pulled: list


def in_float64(case: Case, params: Tree, state: Tree, moves: Sequence[float] = (0.0,)) -> list[_Derivatives]:
    """Outputs and derivatives in float64, at params and inputs that are moved along a random direction."""
    with jax.enable_x64(True):
        wide, outputs = case._wide, partition(case._eager.outputs)[0]
        cotangent = random_like([jax.ShapeDtypeStruct(y.shape, np.float64) for y in outputs], 2)
        if jax.tree.leaves(state):  # in the dtypes that init gives it for float64 inputs
            like = jax.eval_shape(lambda inputs: init_of(dataclasses.replace(wide, inputs=inputs))[1], wide.inputs)
            state = jax.tree.map(lambda leaf, like: as_dtype(leaf, like.dtype), state, like)
        x = partition((cast_to(params, jnp.float64), wide.inputs))[0]
        direction, found = random_like(x, 1), []
        for move in moves:
            place = [np.asarray(a) + move * b for a, b in zip(x, direction, strict=True)]
            (y, rest), *derivatives = wide._jitted_derivatives(case._initial[0], state, place, direction, cotangent)
            results = jax.tree.map(np.asarray, (y, rest, *derivatives))
            found.append(_Derivatives(direction, cotangent, *results))
    return found


def random_like(tree: Tree, seed: int) -> Tree:
    """Normal numbers of the shapes and dtypes of a tree."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: rng.normal(size=x.shape).astype(x.dtype), tree)


def dot(a: list, b: list) -> float:
    """The sum of the products of all entries."""
    return sum(float((x * y).sum()) for x, y in zip(a, b, strict=True))
