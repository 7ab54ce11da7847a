"""A layer under test: its params, inputs and outputs, and calls of its init and apply."""

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun
from jax.typing import DTypeLike

from jaxblocks.checks.errors import describe
from jaxblocks.core.children import require_pair
from jaxblocks.core.keys import keys_for
from jaxblocks.core.lifting import side_inputs, stateful
from jaxblocks.core.pairs import Layer, StatefulLayer
from jaxblocks.core.shapes import split_side

__all__ = [
    "Case",
    "Tree",
    "apply_jitted",
    "apply_of",
    "as_dtype",
    "as_numpy",
    "cast_to",
    "differentiable_part",
    "evaluated",
    "has_running_statistics",
    "init_of",
    "init_side",
    "is_floating",
    "out_shapes",
    "partition",
    "run_of",
    "side_axes",
    "traced_of",
]

Tree: TypeAlias = Any

"""A pytree of arrays."""


class _Run(NamedTuple):
    """The results of one call of ``init`` and one of ``apply``."""

    params: Tree
    state: Tree
    outputs: Tree
    next_state: Tree


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A layer with example inputs, whose first axis is a batch of at least two.

    The laws share the results and the compiled functions of a case: each is computed at its first use.

    >>> case = Case(Dense(3), (jnp.ones((2, 4)),), {}, jax.random.key(0))
    >>> LAWS["jit_is_eager"](case), LAWS["no_retrace"](case)
    (None, None)
    """

    layer: Layer[Any] | StatefulLayer[Any]
    inputs: tuple
    side: dict[str, Any]
    key: Any
    mixes_batch: bool = False

    @functools.cached_property
    def _initial(self) -> tuple[Tree, Tree]:
        return init_of(self)

    @functools.cached_property
    def _eager(self) -> _Run:
        return run_of(self, *self._initial)

    @functools.cached_property
    def _jitted_init(self) -> Callable:
        return jax.jit(lambda key, inputs: init_of(dataclasses.replace(self, inputs=inputs, key=key)))

    @functools.cached_property
    def _traces(self) -> list[None]:
        return []  # an entry for each time that `_jitted_apply` was traced

    @functools.cached_property
    def _jitted_apply(self) -> Callable:
        def apply(key, params, state, inputs):
            self._traces.append(None)
            return apply_of(self, params, state, inputs, key)

        return jax.jit(apply)

    @functools.cached_property
    def _jitted_pullbacks(self) -> Callable:
        """Outputs and the pullback of a cotangent, in a plain call and inside a loop, under ``jit``.

        Outputs are a `partition`. One program computes both, since each compilation takes long.
        """

        def pullbacks(params, inputs, cotangent):
            f, x = differentiable_part(self, params, self._eager.state, inputs)

            def looped(x):
                # A clone, which the check for keys that are used twice does not count.
                keys = jax.random.clone(self.key)[None]
                _, found = jax.lax.scan(lambda carry, key: (carry, jax.checkpoint(f)(x, key)), None, keys)
                return jax.tree.map(lambda y: y[0], found)

            results = []
            for g in (f, looped):
                y, pull, rest = jax.vjp(g, x, has_aux=True)
                results.append(((y, rest), pull(cotangent)[0]))
            return results

        return jax.jit(pullbacks)

    @functools.cached_property
    def _jitted_derivatives(self) -> Callable:
        """Outputs, Jacobian times direction, and the pullback of a cotangent, under ``jit``.

        The function takes params and state, the floating-point params and inputs, in place of those of the case, their
        directions, and the cotangents of the floating-point outputs.
        """

        def derivatives(params, state, x, direction, cotangent):
            f, _ = differentiable_part(self, params, state, self.inputs)
            y, tangent, _ = jax.jvp(f, (x,), (direction,), has_aux=True)
            _, pull, _ = jax.vjp(f, x, has_aux=True)
            # The cotangent has the dtypes of the outputs, which may be narrower.
            pulled = pull([u.astype(leaf.dtype) for u, leaf in zip(cotangent, y, strict=True)])[0]
            return y, tangent, pulled

        return jax.jit(derivatives)

    @functools.cached_property
    def _program(self) -> tuple[str, list[np.ndarray]]:
        """The jaxprs of ``init`` and ``apply`` as text without memory addresses, and their constants."""
        programs = [traced.jaxpr for traced in traced_of(self)]
        text = "\n".join(str(program.jaxpr) for program in programs)
        constants = [as_numpy(value) for program in programs for value in program.consts]
        # Functions in jaxprs print with their addresses.
        return re.sub(r"0x[0-9a-f]+", "", text), constants

    @functools.cached_property
    def _wide(self) -> "Case":
        with jax.enable_x64(True):
            return self._as(jnp.float64)

    def _as(self, dtype: DTypeLike) -> "Case":
        """The case for floating-point inputs of a dtype, which is the case itself if they have it."""
        cast = cast_to((self.inputs, self.side), dtype)
        # The case itself keeps its compiled programs.
        if all(a is b for a, b in zip(*map(jax.tree.leaves, (cast, (self.inputs, self.side))), strict=True)):
            return self
        return dataclasses.replace(self, inputs=cast[0], side=cast[1])


def evaluated(traced: jax.stages.Traced, key: Any, inputs: tuple) -> Tree:
    """The results of a traced function, by the programs of its single operations, which eager calls have compiled."""
    leaves = jax.tree.leaves((jax.random.clone(key), inputs))  # a clone: the eager calls use the same key
    return jax.tree.unflatten(jax.tree.structure(traced.out_info), jaxpr_as_fun(traced.jaxpr)(*leaves))


def out_shapes(traced: jax.stages.Traced) -> Tree:
    """The shapes and dtypes of the results."""
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in traced.jaxpr.out_avals]
    return jax.tree.unflatten(jax.tree.structure(traced.out_info), shapes)


def traced_of(case: Case) -> list[jax.stages.Traced]:
    """``init`` and ``apply``; before evaluation, also the call in training mode that updates the state."""
    init = case._jitted_init.trace(case.key, case.inputs)
    made = out_shapes(init)
    calls = [case, *([_in_training(case)] if has_running_statistics(case, made[1]) else [])]
    return [init, *(call._jitted_apply.trace(case.key, *made, case.inputs) for call in calls)]


def init_side(case: Case) -> dict[str, Any]:
    """The side inputs of the case that ``init`` reads."""
    declared = side_inputs(case.layer.init)
    return {name: value for name, value in case.side.items() if name in declared}


def init_of(case: Case) -> tuple[Tree, Tree]:
    """Params and state."""
    made = stateful(case.layer).init(jax.random.clone(case.key), *case.inputs, **init_side(case))
    params, state = require_pair("init", "(params, state)", made)
    for leaf in jax.tree.leaves(made):
        assert hasattr(leaf, "dtype"), (
            f"init made {describe(leaf)} among params and state; make arrays, as in jnp.zeros((), jnp.int32)."
        )
    return params, state


def apply_of(case: Case, params: Tree, state: Tree, inputs: tuple, key: Any = None) -> tuple[Tree, Tree]:
    """Outputs and next state, with a clone of the key (of the case, unless given) where the layer reads one."""
    side = dict(case.side) | keys_for(side_inputs(case.layer), jax.random.clone(case.key if key is None else key))
    return require_pair("apply", "(outputs, state)", stateful(case.layer).apply(params, state, *inputs, **side))


def apply_jitted(case: Case, params: Tree, state: Tree, inputs: tuple, key: Any = None) -> tuple[Tree, Tree]:
    """The same under ``jit``."""
    return case._jitted_apply(jax.random.clone(case.key if key is None else key), params, state, inputs)


def run_of(case: Case, *initial: Tree) -> _Run:
    """Params, state, outputs and next state; before evaluation, one call in training mode updates the state."""
    params, state = initial or init_of(case)
    if has_running_statistics(case, state):
        _, state = apply_of(_in_training(case), params, state, case.inputs)
    state = _counted(state)
    return _Run(params, state, *apply_of(case, params, state, case.inputs))


def _counted(state: Tree) -> Tree:
    """The state with running statistics that count as trained, also those inside of a `Frozen`, which never are."""
    is_running = lambda tree: isinstance(tree, dict) and tree.keys() == {"mean", "variance", "updates"}
    count = lambda tree: tree | {"updates": jnp.maximum(tree["updates"], 1)} if is_running(tree) else tree
    return jax.tree.map(count, state, is_leaf=is_running)


def _in_training(case: Case) -> Case:
    return dataclasses.replace(case, side={**case.side, "train": True})


def has_running_statistics(case: Case, state: Tree) -> bool:
    """Whether the case evaluates a layer whose state is measured in training."""
    return bool(jax.tree.leaves(state)) and "train" in side_inputs(case.layer) and not case.side.get("train")


def side_axes(case: Case) -> dict[str, int | None]:
    """For ``vmap``: 0 for the side inputs that hold one entry per example, ``None`` for other arrays."""
    batch = case.inputs[0].shape[0]
    arrays = split_side(case.side)[0]
    return {
        name: 0 if all(leaf.shape[:1] == (batch,) for leaf in jax.tree.leaves(value)) else None
        for name, value in arrays.items()
    }


def is_floating(tree: Tree) -> bool:
    """Whether a tree has a floating-point array."""
    return any(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(tree))


def partition(outputs: Tree) -> tuple[list, list]:
    """The floating-point leaves, and the others."""
    leaves = jax.tree.leaves(outputs)
    return [y for y in leaves if is_floating(y)], [y for y in leaves if not is_floating(y)]


def differentiable_part(
    case: Case, params: Tree, state: Tree, inputs: tuple, apply: Callable = apply_jitted
) -> tuple[Callable, list]:
    """The layer as a function of its floating-point params and inputs, which returns a `partition`; and these."""
    leaves, tree = jax.tree.flatten((params, inputs))
    moving = [i for i, leaf in enumerate(leaves) if is_floating(leaf)]

    def f(x, key=None):
        filled = list(leaves)
        for i, leaf in zip(moving, x, strict=True):
            filled[i] = leaf
        params, inputs = jax.tree.unflatten(tree, filled)
        return partition(apply(case, params, state, inputs, key)[0])

    return f, [leaves[i] for i in moving]


def as_numpy(x) -> np.ndarray:
    """The array, or the numbers of keys."""
    return np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)


def as_dtype(leaf, dtype: DTypeLike):
    """The leaf in another dtype, without a program."""
    return leaf if leaf.dtype == dtype else jax.device_put(np.asarray(leaf).astype(dtype))


def cast_to(tree: Tree, dtype: DTypeLike) -> Tree:
    """The tree with its floating-point arrays in another dtype."""

    def cast(leaf):
        return as_dtype(leaf, dtype) if hasattr(leaf, "dtype") and is_floating(leaf) else leaf

    return jax.tree.map(cast, tree)
