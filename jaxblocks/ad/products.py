r"""Products with the Hessian of a scalar-valued function, without the Hessian.

    x    the point, any pytree of floating-point arrays with n numbers in all
    v    the direction, a pytree of the same structure, shapes and dtypes
    g    the gradient of f at x
    H    the Hessian of f at x, n by n and never formed

A product with H costs a small multiple of a gradient, whatever n is: `jaxblocks.ad.count_flops` shows it.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PyTree

from jaxblocks.ad.counting import equations
from jaxblocks.ad.jaxlib_check import warn_if_jaxlib_is_wrong
from jaxblocks.checks import describe, describe_any

__all__ = [
    "as_point",
    "at_point",
    "directional_curvature",
    "floating_like",
    "hvp",
    "linearize_once",
    "scalar_valued",
    "value_grad_hvp",
]


def hvp(f: Callable[[Any], Float[Array, ""]], x: PyTree, v: PyTree) -> PyTree:
    r"""The Hessian-vector product :math:`Hv = \frac{\partial}{\partial x}(g(x)^\top v)`.

    Forward over reverse: the gradient is differentiated once more along ``v``, which costs
    about two and a half gradients and the memory of two. For many directions at one point take
    `jaxblocks.ad.hessian_operator`.

    Args:
        f: takes a pytree, returns a scalar.
        x: the point, a pytree of floating-point arrays.
        v: the direction, like ``x``.

    Returns:
        :math:`Hv`, like ``x``.

    Raises:
        TypeError: where a leaf of ``x`` is not floating-point, or ``f`` does not return a floating-point array.
        ValueError: where ``f`` is not scalar-valued, or ``v`` is not like ``x`` (the leaf is named).

    >>> hvp(lambda x: jnp.prod(x), jnp.array([2.0, 5.0]), jnp.array([1.0, -2.0]))
    Array([-2.,  1.], dtype=float32)

    Source: Huszar, DeepNN lecture 3 (the Hessian-vector product); Pearlmutter 1994, Fast exact multiplication
    by the Hessian.
    """
    warn_if_jaxlib_is_wrong()
    f = scalar_valued("hvp", f, arguments="f, x, v")
    x, v = at_point("hvp", x, v)
    gradient = jax.grad(f)
    if _has_loops(gradient, x):  # whose steps take value and direction together, in half the memory
        return jax.jvp(gradient, (x,), (v,))[1]
    return linearize_once(gradient, x)(v)


def value_grad_hvp(
    f: Callable[[Any], Float[Array, ""]], x: PyTree, v: PyTree
) -> tuple[Float[Array, ""], PyTree, PyTree]:
    r"""The value :math:`f(x)`, the gradient :math:`g` and :math:`Hv` in one pass.

    Cheaper than a product and a gradient one after the other, for they share the forward sweep.

    Arguments and errors are those of `hvp`.

    >>> value, gradient, product = value_grad_hvp(jnp.prod, jnp.array([2.0, 5.0]), jnp.array([1.0, -2.0]))
    >>> value, gradient, product
    (Array(10., dtype=float32), Array([5., 2.], dtype=float32), Array([-2.,  1.], dtype=float32))

    Source: Pearlmutter 1994, Fast exact multiplication by the Hessian.
    """
    warn_if_jaxlib_is_wrong()
    f = scalar_valued("value_grad_hvp", f, arguments="f, x, v")
    x, v = at_point("value_grad_hvp", x, v)
    (value, gradient), (_, product) = jax.jvp(jax.value_and_grad(f), (x,), (v,))
    return value, gradient, product


def directional_curvature(f: Callable[[Any], Float[Array, ""]], x: PyTree, v: PyTree) -> Float[Array, ""]:
    r"""The curvature :math:`v^\top H v = \frac{d^2}{dt^2} f(x + tv)` at :math:`t = 0` along ``v``.

    Forward over forward: no tape is kept, so it costs less time than `hvp`, and its memory
    does not grow with the depth of ``f``. Arguments and errors are those of `hvp`.

    >>> directional_curvature(jnp.prod, jnp.array([2.0, 5.0]), jnp.array([1.0, -2.0]))
    Array(-4., dtype=float32)

    Source: Griewank & Walther, Evaluating Derivatives (univariate Taylor propagation, degree two).
    """
    warn_if_jaxlib_is_wrong()
    f = scalar_valued("curvature", f, arguments="f, x, v")
    x, v = at_point("curvature", x, v)

    def slope(x):
        return jax.jvp(f, (x,), (v,))[1]

    return jax.jvp(slope, (x,), (v,))[1]


def linearize_once(gradient: Callable, x: PyTree) -> Callable:
    """The derivative of a gradient as a linear function, with what it needs of the point held for certain.

    XLA would rather compute exponentials anew in each place that reads them than hold them: a transformer with
    ``gelu`` then takes a third more time. The barrier costs nothing where that does not happen.

    >>> linearize_once(jax.grad(jnp.prod), jnp.array([2.0, 5.0]))(jnp.array([1.0, -2.0]))
    Array([-2.,  1.], dtype=float32)
    """
    return lax.optimization_barrier(jax.linearize(gradient, x)[1])


def _has_loops(f, x) -> bool:
    return any(equation.primitive.name in ("scan", "while") for equation, _, _ in equations(jax.make_jaxpr(f)(x)))


# ---- what every derivative of a scalar-valued function asks for ----------------------------


def scalar_valued(where: str, f: Callable, name: str = "f", arguments: str = "f, x", point: str = "x") -> Callable:
    """The same function; while it is traced, a ``ValueError`` or ``TypeError`` unless it returns a real scalar array.

    The sentences call it ``name``, a function of ``point``, and the call that they ask for is ``where(arguments)``.

    >>> scalar_valued("hvp", lambda x: x)(jnp.zeros(3))
    Traceback (most recent call last):
    ...
    ValueError: hvp expects f to return a scalar, but float32 (3,) came; reduce it first (as in f(x).sum()), \
take one output at a time, or ask jax.jacobian for all first derivatives.
    """

    if not callable(f):
        place = " first" if arguments.startswith(name) else ""
        raise TypeError(
            f"{where} expects a function {name}{place}, but {describe_any(f)} came; write {where}({arguments})."
        )

    def checked(*args):
        y = f(*args)
        leaves = jax.tree.leaves(y)
        if len(leaves) != 1 or leaves[0] is not y:
            raise TypeError(
                f"{where} expects {name} to return one scalar array, but a {type(y).__name__} came; "
                f"return the value alone, as in lambda {point}: {name}({point})[0]."
            )
        y = jnp.asarray(y)
        if y.shape:
            raise ValueError(
                f"{where} expects {name} to return a scalar, but {y.dtype} {y.shape} came; reduce it first (as in "
                f"{name}({point}).sum()), take one output at a time, or ask jax.jacobian for all first derivatives."
            )
        if not jnp.issubdtype(y.dtype, jnp.floating):
            raise TypeError(f"{where} expects {name} to return a floating-point scalar, but {y.dtype} came.")
        return y

    return checked


def as_point(where: str, x: PyTree) -> PyTree:
    """A point as a pytree of arrays; an error that names the leaf with respect to which nothing can be differentiated.

    >>> as_point("hessian", {"w": 1.5})["w"].dtype
    dtype('float32')
    """
    x = jax.tree.map(_as_array, x)
    points = jax.tree_util.tree_leaves_with_path(x)
    if not points:
        raise ValueError(f"{where} expects x to hold at least one array, but {x!r} came.")
    for path, leaf in points:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise TypeError(
                f"{where} differentiates with respect to floating-point arrays, but x{jax.tree_util.keystr(path)} is "
                f"{describe(leaf)}; convert it with .astype(jnp.float32), or close over it as a constant of f."
            )
    return x


def at_point(where: str, x: PyTree, v: PyTree) -> tuple[PyTree, PyTree]:
    """Point and direction as pytrees of arrays; an error that names the leaf where they do not belong together.

    >>> at_point("hvp", {"w": jnp.zeros(2)}, {"w": jnp.zeros(3)})
    Traceback (most recent call last):
    ...
    ValueError: hvp expects v like x, but x['w'] is float32 (2,) and v['w'] is float32 (3,).
    """
    x, v = as_point(where, x), jax.tree.map(_as_array, v)
    points = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(x)}
    directions = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(v)}
    for path in [*points, *directions]:
        if path not in directions:
            raise ValueError(
                f"{where} expects v like x, but v has no leaf v{path} for x{path}, {describe(points[path])}."
            )
        if path not in points:
            raise ValueError(f"{where} expects v like x, but v{path}, {describe(directions[path])}, has no x{path}.")
    if jax.tree.structure(x) != jax.tree.structure(v):
        raise ValueError(
            f"{where} expects v like x, but their containers differ: {jax.tree.structure(x)} for x and "
            f"{jax.tree.structure(v)} for v; build v with jax.tree.map(..., x)."
        )
    for path, leaf in points.items():
        other = directions[path]
        if (leaf.shape, leaf.dtype) != (other.shape, other.dtype):
            raise ValueError(
                f"{where} expects v like x, but x{path} is {describe(leaf)} and v{path} is {describe(other)}."
            )
    return x, v


def floating_like(where: str, like: PyTree) -> PyTree:
    """``like`` as a pytree of arrays; an error that names the leaf that is not one of floating-point numbers.

    >>> floating_like("estimate_trace", {"w": jnp.arange(2)})
    Traceback (most recent call last):
    ...
    TypeError: estimate_trace expects like to hold floating-point arrays, but like['w'] is int32 (2,); convert it with \
.astype(jnp.float32).
    """
    if callable(like):
        raise TypeError(
            f"{where} expects like, a pytree of arrays such as the operator takes, but {describe_any(like)} came; "
            f"write {where}(operator, like, ...)."
        )
    leaves = jax.tree_util.tree_leaves_with_path(like)
    if not leaves:
        raise ValueError(f"{where} expects like to hold at least one array, but {like!r} came.")
    for path, leaf in leaves:
        known = hasattr(leaf, "dtype") or isinstance(leaf, bool | int | float | complex)
        dtype = jnp.result_type(leaf) if known else None
        if not (known and jnp.issubdtype(dtype, jnp.floating)):
            repair = "convert it with .astype(jnp.float32)" if known else "pass arrays alone"
            raise TypeError(
                f"{where} expects like to hold floating-point arrays, but like{jax.tree_util.keystr(path)} is "
                f"{describe_any(leaf)}; {repair}."
            )
    return jax.tree.map(_as_array, like)


def _as_array(leaf):
    if isinstance(leaf, float):
        return jnp.asarray(leaf, jnp.result_type(float))
    return leaf if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct) else jnp.asarray(leaf)
