r"""The Jacobian of any function, by the cheapest bracketing of its chain rule.

    x     the point, any pytree of floating-point arrays with n numbers in all
    y     the value f(x), any pytree of floating-point arrays with m numbers in all
    J     the Jacobian dy/dx, m by n; J = J_L ... J_2 J_1 where f is a chain of L stages

Forward mode multiplies from the right and pushes n seeds through f, reverse mode multiplies from the left and pulls
m seeds. If f has a narrow intermediate value, neither is optimal. `jaxblocks.ad.planning` finds the cheapest order,
and `jaxblocks.ad.jacobians.sweeps` executes it.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, overload

import jax
from jax import lax
from jaxtyping import Array, PyTree

from jaxblocks.ad.counting.counts import count_jaxpr
from jaxblocks.ad.jacobians.blocks import Held, transposed
from jaxblocks.ad.jacobians.execution import execute, in_one_batch
from jaxblocks.ad.planning import JacobianPlan, linearized, make_plan
from jaxblocks.ad.programs.arguments import floating_leaves
from jaxblocks.ad.programs.linearization import missing_mode
from jaxblocks.backend.varying import inside_shard_map, varying_like
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.checks.foreign_arrays import reject_foreign

__all__ = ["jacobian", "jacobian_plan"]


Mode = Literal["auto", "forward", "reverse"]
ChunkSize = PositiveInt | Literal["auto"] | None
Argnums = int | tuple[int, ...]
Arguments = ParamSpec("Arguments")
Point = TypeVar("Point", bound=Any)  # of the bound, so that the argument of a lambda may be used as any array


@overload  # of one array: the structure is that of x
def jacobian(
    f: Callable[Concatenate[Point, Arguments], Array],
    *,
    argnums: Literal[0] = 0,
    has_aux: Literal[False] = False,
    mode: Mode = "auto",
    chunk_size: ChunkSize = "auto",
) -> Callable[Concatenate[Point, Arguments], Point]: ...
@overload
def jacobian(
    f: Callable[Arguments, Any],
    *,
    argnums: Argnums = 0,
    has_aux: bool = False,
    mode: Mode = "auto",
    chunk_size: ChunkSize = "auto",
) -> Callable[Arguments, Any]: ...
@checked
def jacobian(
    f: Callable,
    *,
    argnums: Argnums = 0,
    has_aux: bool = False,
    mode: Mode = "auto",
    chunk_size: ChunkSize = "auto",
) -> Callable:
    r"""A function that returns the Jacobian $J = ∂ f / ∂ x$ with respect to the first argument.

    $f = f_L ∘ … ∘ f_1$ has $J = J_L ⋯ J_2 J_1$, and the product may be bracketed in any
    order. ``f`` is linearized once and cut where few numbers are live, and the cheapest bracketing is executed; if
    its predicted gain is less than 30 %, the program is that of ``jax.jacfwd`` or ``jax.jacrev``. Every value is exact
    to rounding.

    Args:
        f: takes a pytree x (and any other arguments, which are passed on) and returns a pytree, both of floating-point
            arrays; for complex numbers use ``jax.jacfwd`` or ``jax.jacrev``.
        argnums: the positional argument that is x, or a tuple of them.
        has_aux: whether ``f`` returns a pair of the value and of auxiliary data, which are not differentiated.
        mode: ``"auto"``, ``"forward"`` (as ``jax.jacfwd``) or ``"reverse"`` (as ``jax.jacrev``).
        chunk_size: the number of seeds in one batch: an integer, ``None`` for all, or ``"auto"`` for the largest
            batch whose temporaries are below 256 MiB, or below twice the size of the Jacobian if that is more.

    Returns:
        ``derivative(x, *rest, **kwargs)``: as ``jax.jacfwd`` returns it, the structure of ``f(x)`` with that of
        ``x`` in each leaf, and arrays of shape ``(*leaf of f(x), *leaf of x)`` in the dtype of the leaf of f(x),
        whatever the mode (``jax.jacrev`` returns that of the leaf of x); with ``has_aux`` a pair of this and
        the auxiliary data. It works under ``jit``, ``vmap`` and ``grad``. `jacobian_plan` describes the method.

    Where entries of a window of ``lax.reduce_window`` are equal, a maximum of at most 32 entries has the derivative of
    ``jax.jacrev`` in every mode: that of the first of them.

    Batches run in a loop. A while loop has only forward mode, a custom vjp rule only reverse mode; the plan takes this
    into account. A while loop that contains a custom vjp rule has neither.

    Inside `jax.shard_map` the Jacobian is that of the value on each device with respect to x on this device. If
    ``f`` communicates between devices, the modes sum over different devices, as those of JAX do; ``"auto"`` is then
    reverse mode.

    Raises:
        TypeError: where x or f(x) holds a leaf that is not floating-point (the error names it), or where the mode, or
            each of both, cannot differentiate ``f``.
        ValueError: where an argument of ``argnums`` does not exist.

    >>> import jax.numpy as jnp
    >>> J = jacobian(lambda x: jnp.stack([x[0] * x[1], x[0] + x[2]]))
    >>> J(jnp.array([2.0, 3.0, 5.0]))
    Array([[3., 2., 0.],
           [1., 0., 1.]], dtype=float32)

    Source: Naumann, Matrix-free Jacobian chaining (arXiv 2406.11862); Huszar, DeepNN lecture 3 (the order of
    the factors).
    """

    def derivative(*args, **kwargs):
        value = _FlatValue(f, args, kwargs, argnums, has_aux)
        leaves = value.leaves()
        try:
            linear = linearized(value, leaves)
        except TypeError as error:  # a while loop inside of another derivative
            if missing_mode(error) != "reverse":
                raise
            expected, repair = "f to be differentiable in reverse mode", "pass mode='forward' or 'auto'"
            require(mode != "reverse", expected, "a while loop, which has forward mode only", repair, error=TypeError)
            # Without a linear program there is nothing to plan; jacfwd only pushes seeds.
            return jax.jacfwd(f, argnums, has_aux)(*args, **kwargs)
        route = make_plan(linear, mode=mode, chunk_size=chunk_size)
        # One batch in one mode is the program of jax.jacfwd or jax.jacrev: no stages, no loop.
        if route.plan.mode in ("forward", "reverse") and route.plan.chunk_size is None:
            found = in_one_batch(linear, route.plan.mode)
        else:
            found = execute(linear, route)
        found = _assembled(found, leaves, value)
        return (found, linear.aux) if has_aux else found

    return derivative


@checked
def jacobian_plan(
    f: Callable,
    *args: PyTree,
    argnums: Argnums = 0,
    has_aux: bool = False,
    mode: Mode = "auto",
    chunk_size: ChunkSize = "auto",
    **kwargs: Any,
) -> JacobianPlan:
    r"""The plan of `jacobian` for these arguments, and its reason; no arrays are computed.

    Args:
        f, argnums, has_aux, mode, chunk_size: as for `jacobian`.
        args: the arguments of ``f``: arrays, or ``jax.ShapeDtypeStruct`` where only shapes are known.
        kwargs: keyword arguments of ``f``.

    Returns:
        A `JacobianPlan`; it prints as its `explain`.

    Raises:
        TypeError, ValueError: as `jacobian` does.

    >>> import jax.numpy as jnp
    >>> w, v = jnp.ones((512, 4)), jnp.ones((4, 512))
    >>> plan = jacobian_plan(lambda x: jnp.tanh(jnp.tanh(x @ w @ v) @ w) @ v, jnp.ones(512))
    >>> plan.mode, plan.gain > 1
    ('mixed', True)

    Source: Naumann, Matrix-free Jacobian chaining (arXiv 2406.11862).
    """
    require(args or kwargs, "the arguments of f, at which it is planned", "none", "write jacobian_plan(f, x)")
    # Arguments that contain arrays are traced, so that shapes suffice; all others (flags, sizes) are static.
    leaves, structure = jax.tree.flatten((args, kwargs))
    traced = [i for i, leaf in enumerate(leaves) if hasattr(leaf, "shape") and hasattr(leaf, "dtype")]
    plans = []

    def planned(arrays):
        filled = list(leaves)
        for i, array in zip(traced, arrays, strict=True):
            filled[i] = array
        args, kwargs = structure.unflatten(filled)
        value = _FlatValue(f, args, kwargs, argnums, has_aux)
        linear = linearized(value, value.leaves())
        route = make_plan(linear, mode=mode, chunk_size=chunk_size)
        operations = dict(route.plan.operations)
        if route.plan.mode not in ("forward", "reverse"):  # a bracketing
            run = lambda constants: execute(linear._replace(constants=constants), route).arrays
            operations["chosen"] = count_jaxpr(jax.make_jaxpr(run)(list(linear.constants)).jaxpr).flops
        plans.append(dataclasses.replace(route.plan, operations=operations))
        return arrays

    # The plan is returned through the list, because a traced function returns arrays only.
    jax.eval_shape(planned, [leaves[i] for i in traced])
    return plans[0]


# ---- from f to arrays and back --------------------------------------------------------------


class _FlatValue:
    """f as a function of the leaves of x that returns the leaves of y and the auxiliary data."""

    def __init__(self, f, args, kwargs, argnums, has_aux):
        self.single = isinstance(argnums, int)
        numbers = (argnums,) if self.single else argnums
        for i in numbers:
            if not -len(args) <= i < len(args):
                repair = "pass the arguments that are differentiated by position"
                require(False, f"argnums below {len(args)}, the number of positional arguments", i, repair)
        self.f, self.args, self.kwargs, self.numbers = f, args, kwargs, [i % len(args) for i in numbers]
        distinct = len(set(self.numbers)) == len(self.numbers)
        require(distinct, "argnums without repetition", str(argnums), "name each argument once")
        self.has_aux = has_aux
        self.x = _point(args[argnums] if self.single else tuple(args[i] for i in numbers))
        self.structure = jax.tree.structure(self.x)

    def leaves(self) -> list[jax.Array]:
        """The leaves of x; inside of `jax.shard_map` they vary over the devices over which f(x) varies."""
        leaves = jax.tree.leaves(self.x)
        if inside_shard_map():
            leaves = varying_like(leaves, jax.eval_shape(lambda *leaves: self(*leaves)[0], *leaves))
        return leaves

    def __call__(self, *leaves):
        x, args = self.structure.unflatten(leaves), list(self.args)
        for i, own in zip(self.numbers, [x] if self.single else x, strict=True):
            args[i] = own
        y, aux = self.f(*args, **self.kwargs), None
        if self.has_aux:
            is_pair = isinstance(y, tuple | list) and len(y) == 2
            repair = "write return value, aux, or leave has_aux out"
            require(is_pair, "f to return a pair (value, aux) for has_aux=True", y, repair, error=TypeError)
            y, aux = y
        repair = "return what is to be differentiated"
        require(jax.tree.leaves(y), "f to return at least one array", y, repair, error=TypeError)
        y = floating_leaves("f(x)", y, "omit it from the value of f")
        # Kept for `_assembled`, which runs after the trace.
        self.outputs = jax.tree.leaves(y)
        self.made = jax.tree.structure(y)
        return self.outputs, aux


def _assembled(held: Held, leaves, value: _FlatValue) -> PyTree:
    """The Jacobian as `jax.jacfwd` returns it: the structure of y, and in each leaf that of x, in the dtype of y."""
    outputs = jax.tree.unflatten(value.made, value.outputs)
    cast = lambda y, blocks: jax.tree.map(lambda block: block.astype(y.dtype), blocks)  # reverse mode has that of x
    return jax.tree.map(cast, outputs, _arranged(held, leaves, value))


def _arranged(held: Held, leaves, value: _FlatValue) -> PyTree:
    by, arrays = held.by, held.arrays
    if by == "whole":  # of a single leaf with respect to a single one
        return value.made.unflatten([value.structure.unflatten(arrays)])
    ins, outs = [leaf.shape for leaf in leaves], [leaf.shape for leaf in value.outputs]
    # Blocks (entries of y, entries of x) are cut along x; rows, one for each entry of y, along y; columns, each stored
    # as the row of an entry of x, along x.
    axis, lengths = (1, ins) if by == "blocks" else (0, outs if by == "rows" else ins)
    blocks, start = [], 0
    for shape in lengths:
        stop = start + math.prod(shape)
        blocks.append([lax.slice_in_dim(array, start, stop, axis=axis) for array in arrays])
        start = stop
    if by == "columns":  # blocks[input][output] is (inputs, *shape of the output)
        blocks = [
            [transposed(block.reshape(block.shape[0], math.prod(block.shape[1:]))) for block in column]
            for column in blocks
        ]
    # From [input][output] to [output][input], the order of nesting in JAX.
    if by != "rows":
        blocks = [list(row) for row in zip(*blocks, strict=True)]
    rows = [
        value.structure.unflatten([block.reshape(*outs[o], *ins[i]) for i, block in enumerate(blocks[o])])
        for o in range(len(outs))
    ]
    return value.made.unflatten(rows)


def _point(x) -> PyTree:
    reject_foreign("x", x)
    x = floating_leaves("x", x, "pass it after x")
    # Without weak types.
    return jax.tree.map(lambda leaf: lax.convert_element_type(leaf, leaf.dtype), x)
