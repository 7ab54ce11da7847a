"""The differentiable part of a layer, and its derivatives in float64."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxblocks.ad.counting.primitive_costs import MOVED
from jaxblocks.ad.programs.jaxprs import Step, as_closed, interpret
from jaxblocks.testing.case import Case, Tree, as_dtype, cast_to, init_of, is_floating, partition

__all__ = ["dot", "in_float64", "random_like"]


class _Derivatives(NamedTuple):
    """The results of `Case._jitted_derivatives`, as lists of NumPy arrays."""

    direction: list
    cotangent: list
    outputs: list
    tangent: list
    pulled: list


def in_float64(case: Case, params: Tree, state: Tree, moves: Sequence[float]) -> list[_Derivatives]:
    """Outputs and derivatives in float64, at params and inputs that are moved along a random direction.

    What the layer freezes stays where it is: entries of params that it passes to ``jax.lax.stop_gradient`` and that
    have no gradient.
    """
    with jax.enable_x64(True):
        wide, outputs = case._wide, partition(case._eager.outputs)[0]
        cotangent = random_like([jax.ShapeDtypeStruct(y.shape, np.float64) for y in outputs], 2)
        if jax.tree.leaves(state):  # in the dtypes that init gives it for float64 inputs
            like = jax.eval_shape(lambda inputs: init_of(dataclasses.replace(wide, inputs=inputs))[1], wide.inputs)
            state = jax.tree.map(lambda leaf, like: as_dtype(leaf, like.dtype), state, like)
        x = partition((cast_to(params, jnp.float64), wide.inputs))[0]
        direction, found = random_like(x, 1), []
        constant, along = _constants_of(case), direction
        for move in moves:
            place = [np.asarray(a) + move * b for a, b in zip(x, along, strict=True)]
            results = wide._jitted_derivatives(case._initial[0], state, place, direction, cotangent)
            found.append(_Derivatives(direction, cotangent, *jax.tree.map(np.asarray, results)))
            along = [
                np.where(found[0].pulled[i] == 0, 0, each) if i in constant else each
                for i, each in enumerate(direction)
            ]
    return found


def _constants_of(case: Case) -> frozenset[int]:
    """The places, among the floating-point params and inputs, of params that the layer passes to ``stop_gradient``."""
    params, state, _, _ = case._eager
    program = case._jitted_apply.trace(case.key, params, state, case.inputs).jaxpr
    # The meaning of a variable is the set of the params of which it is a part, as they are: sliced, cast, gathered.
    floating = [i for i, leaf in enumerate(jax.tree.leaves(params)) if is_floating(leaf)]
    meanings = [frozenset()] * len(program.in_avals)
    for place, i in enumerate(floating):
        meanings[1 + i] = frozenset({place})  # after the key
    found: set[int] = set()

    def part(step: Step):
        if step.name == "stop_gradient":
            found.update(*step.operands)
        united = frozenset().union(*step.operands) if step.name in MOVED else frozenset()
        return [united] * len(step.equation.outvars)

    def of_branches(step: Step):
        return [step.interpret(as_closed(body), step.operands[1:]) for body in step.params["branches"]][-1]

    rules = {"scan": lambda step: step.interpret(as_closed(step.params["jaxpr"]), step.operands), "cond": of_branches}
    interpret(program, meanings, part, rules=rules, constant=lambda value: frozenset())
    return frozenset(found)


def random_like(tree: Tree, seed: int) -> Tree:
    """Normal numbers of the shapes and dtypes of a tree."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: rng.normal(size=x.shape).astype(x.dtype), tree)


def dot(a: list, b: list) -> float:
    """The sum of the products of all entries."""
    return sum(float((x * y).sum()) for x, y in zip(a, b, strict=True))
