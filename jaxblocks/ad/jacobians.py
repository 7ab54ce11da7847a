r"""The Jacobian of any function, by the cheapest bracketing of its chain rule.

    x     the point, any pytree of floating-point arrays with n numbers in all
    y     the value f(x), any pytree of floating-point arrays with m numbers in all
    J     the Jacobian dy/dx, m by n; J = J_L ... J_2 J_1 where f is a chain of L stages

Forward mode multiplies from the right and pushes n seeds through f, reverse mode multiplies from the left and pulls
m seeds. If f has a narrow intermediate value, neither is optimal. `jaxblocks.ad.planning` finds the cheapest order,
and `jaxblocks.ad.sweeps` executes it.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import PyTree

from jaxblocks.ad.planning import JacobianPlan, linearized, make_plan
from jaxblocks.ad.sweeps import Held, execute, transposed
from jaxblocks.checks import PositiveFloat, PositiveInt, checked, describe, require

__all__ = ["jacobian", "jacobian_plan"]


Mode = Literal["auto", "forward", "reverse"]
ChunkSize = PositiveInt | Literal["auto"] | None


@checked
def jacobian(
    f: Callable,
    *,
    mode: Mode = "auto",
    chunk_size: ChunkSize = "auto",
    memory: PositiveInt | PositiveFloat | None = None,
) -> Callable:
    r"""A function that returns the Jacobian :math:`J = \partial f / \partial x` with respect to the first argument.

    :math:`f = f_L \circ \dots \circ f_1` has :math:`J = J_L \cdots J_2 J_1`, and the product may be bracketed in any
    order. ``f`` is linearized once and cut where few numbers are live, and the cheapest bracketing is executed; if
    its predicted gain is less than 15 %, ``jax.jacfwd`` or ``jax.jacrev`` is used. Every value is exact to rounding.

    Args:
        f: takes a pytree x (and any other arguments, which are passed on) and returns a pytree.
        mode: ``"auto"``, ``"forward"`` (as ``jax.jacfwd``) or ``"reverse"`` (as ``jax.jacrev``).
        chunk_size: the number of seeds in one batch: an integer, ``None`` for all, or ``"auto"`` for the largest
            batch whose temporaries are below 256 MiB, or below twice the size of the Jacobian if that is more.
        memory: a bound on the temporaries in bytes, an integer such as ``1e9``, estimated with a margin, in addition
            to the memory of ``f`` itself.

    Returns:
        ``derivative(x, *rest, **kwargs)``: as ``jax.jacfwd`` returns it, the structure of ``f(x)`` with that of
        ``x`` in each leaf, and arrays of shape ``(*leaf of f(x), *leaf of x)``. It works under ``jit``, ``vmap``
        and ``grad``. `jacobian_plan` describes the method.

    Batches run in a loop; on CPU, where the gradient of a convolution is slow in loops, they are unrolled if ``f``
    convolves. A while loop has only forward mode, a custom vjp rule only reverse mode; the plan takes this into
    account. A while loop that contains a custom vjp rule has neither.

    Raises:
        TypeError: where x or f(x) holds a leaf that is not floating-point (the error names it), or where neither mode
            can differentiate ``f``.
        ValueError: where ``memory`` is too small (the error states the smallest valid value).

    >>> J = jacobian(lambda x: jnp.stack([x[0] * x[1], x[0] + x[2]]))
    >>> J(jnp.array([2.0, 3.0, 5.0]))
    Array([[3., 2., 0.],
           [1., 0., 1.]], dtype=float32)

    Source: Naumann, Matrix-free Jacobian chaining (arXiv 2406.11862); Huszar, DeepNN lecture 3 (the order of
    the factors).
    """
    _check_memory(memory)
    stock = {"forward": jax.jacfwd, "reverse": jax.jacrev}

    def derivative(x, *rest, **kwargs):
        x = _point(x)
        leaves, structure = jax.tree.flatten(x)
        value = _FlatValue(f, structure, rest, kwargs)
        if mode != "auto" and chunk_size is None and memory is None:
            return stock[mode](lambda x: value.checked(x))(x)
        _, linear = linearized(value, leaves)
        route = make_plan(linear, mode=mode, chunk_size=chunk_size, memory=memory)
        if route.plan.mode in stock and route.plan.chunk_size is None:
            return stock[route.plan.mode](lambda x: f(x, *rest, **kwargs))(x)
        return _assembled(execute(linear, route), leaves, structure, value)

    return derivative


@checked
def jacobian_plan(
    f: Callable,
    x: PyTree,
    *rest: Any,
    mode: Mode = "auto",
    chunk_size: ChunkSize = "auto",
    memory: PositiveInt | PositiveFloat | None = None,
    **kwargs: Any,
) -> JacobianPlan:
    r"""The plan of `jacobian` for these arguments, and its reason; no arrays are computed.

    Args:
        f: as for `jacobian`.
        x: the point: arrays, or ``jax.ShapeDtypeStruct`` where only shapes are known.
        rest: further arguments of ``f``.
        mode: as for `jacobian`.
        chunk_size: as for `jacobian`.
        memory: as for `jacobian`.
        kwargs: keyword arguments of ``f``.

    Returns:
        A `JacobianPlan`; it prints as its `explain`.

    Raises:
        TypeError: as `jacobian` does.
        ValueError: as `jacobian` does.

    >>> w, v = jnp.ones((512, 4)), jnp.ones((4, 512))
    >>> plan = jacobian_plan(lambda x: jnp.tanh(jnp.tanh(x @ w @ v) @ w) @ v, jnp.ones(512))
    >>> plan.mode, plan.gain > 1
    ('mixed', True)

    Source: Naumann, Matrix-free Jacobian chaining (arXiv 2406.11862).
    """
    _check_memory(memory)
    x = _point(x)
    # Arguments that contain arrays are traced, so that shapes suffice; all others (flags, sizes) are static.
    leaves, structure = jax.tree.flatten((x, rest, kwargs))
    traced = [i for i, leaf in enumerate(leaves) if hasattr(leaf, "shape") and hasattr(leaf, "dtype")]
    plans = []

    def planned(arrays):
        filled = list(leaves)
        for i, array in zip(traced, arrays, strict=True):
            filled[i] = array
        x, rest, kwargs = structure.unflatten(filled)
        flat, inner = jax.tree.flatten(x)
        _, linear = linearized(_FlatValue(f, inner, rest, kwargs), flat)
        plans.append(make_plan(linear, mode=mode, chunk_size=chunk_size, memory=memory).plan)
        return arrays

    jax.eval_shape(planned, [leaves[i] for i in traced])
    return plans[0]


def _check_memory(memory):
    require(memory is None or memory == int(memory), "memory to be an integer >= 1", memory, "pass bytes, such as 1e9")


# ---- from f to arrays and back --------------------------------------------------------------


class _FlatValue:
    """f as a function of the leaves of x that returns the leaves of y; both structures are stored."""

    def __init__(self, f, structure, rest, kwargs):
        self.f, self.structure, self.rest, self.kwargs = f, structure, rest, kwargs

    def checked(self, x):
        y = self.f(x, *self.rest, **self.kwargs)
        leaves = jax.tree_util.tree_leaves_with_path(y)
        require(leaves, "f to return at least one array", y, "return what is to be differentiated", error=TypeError)
        for path, leaf in leaves:
            if not _is_floating(leaf):
                name = f"f(x){jax.tree_util.keystr(path)}"
                repair = f"{_conversion(leaf)}omit it from the value of f"
                require(False, f"floating-point values, {name}", describe(leaf), repair, error=TypeError)
        return jax.tree.map(lambda leaf: leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf), y)

    def __call__(self, *leaves):
        y, self.made = jax.tree.flatten(self.checked(self.structure.unflatten(leaves)))
        self.shapes = [leaf.shape for leaf in y]
        return y


def _assembled(held: Held, leaves, structure, value: _FlatValue) -> PyTree:
    """The Jacobian as `jax.jacfwd` returns it: the structure of y, and in each leaf that of x."""
    by, arrays = held.by, held.arrays
    ins, outs = [leaf.shape for leaf in leaves], value.shapes
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
    if by != "rows":
        blocks = [list(row) for row in zip(*blocks, strict=True)]
    rows = [
        structure.unflatten([block.reshape(*outs[o], *ins[i]) for i, block in enumerate(blocks[o])])
        for o in range(len(outs))
    ]
    return value.made.unflatten(rows)


def _point(x) -> PyTree:
    leaves = jax.tree_util.tree_leaves_with_path(x)
    require(leaves, "x to hold at least one array", repr(x), "pass the point of the derivative")
    for path, leaf in leaves:
        if not _is_floating(leaf):
            name = f"x{jax.tree_util.keystr(path)}"
            repair = f"{_conversion(leaf)}pass it after x"
            require(False, f"floating-point {name}", describe(leaf), repair, error=TypeError)
    return jax.tree.map(_strong, x)


def _is_floating(leaf) -> bool:
    if not hasattr(leaf, "dtype") or not hasattr(leaf, "shape"):
        return isinstance(leaf, float)
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def _conversion(leaf) -> str:
    """The conversion of a leaf to floating point, for an error message."""
    if hasattr(leaf, "dtype") and hasattr(leaf, "shape"):
        return "convert it with .astype(jnp.float32), or "
    return f"write {float(leaf)!r}, or " if isinstance(leaf, int) and abs(leaf) < 1e6 else "give an array, or "


def _strong(leaf):
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    return lax.convert_element_type(leaf, jnp.result_type(leaf))
