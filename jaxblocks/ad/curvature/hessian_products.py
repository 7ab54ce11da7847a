r"""Products of a vector with the Hessian of a scalar-valued function; the Hessian itself is never formed.

    x    the point, any pytree of floating-point arrays with n numbers in all
    v    the direction, a pytree of the same structure, shapes and dtypes
    g    the gradient of f at x
    H    the Hessian of f at x, n by n

A product with H costs a small multiple of a gradient, for any n; `jaxblocks.ad.count_flops` counts it.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import Partial
from jaxtyping import Array, Float, PyTree

from jaxblocks.ad.counting.counts import equations
from jaxblocks.ad.higher.taylor import directional_derivatives
from jaxblocks.ad.programs.arguments import Tree, at_point, scalar_valued
from jaxblocks.ad.programs.linearization import linearize, missing_mode, with_forward_mode
from jaxblocks.ad.vectors.raveled import as_vector
from jaxblocks.backend.precision import full_precision
from jaxblocks.backend.varying import varying_like
from jaxblocks.checks.expectations import checked

__all__ = ["directional_curvature", "hvp", "linearize_gradient"]


@checked
def hvp(f: Callable[[Tree], Float[Array, ""]], x: Tree, v: Tree) -> Tree:
    r"""The Hessian-vector product $Hv = ((∂) / (∂ x)) (g(x)ᵀ v)$.

    Forward over reverse mode: the gradient is differentiated once more along ``v``. This costs what ``jax.jvp`` of
    ``jax.grad`` costs, two gradients (dense and convolutional nets) to two and a half (transformers), and the memory
    of two. ``jax.jvp(jax.value_and_grad(f), (x,), (v,))`` returns the value and the gradient too. For many directions
    at one point use `jaxblocks.ad.hessian_operator`. A while loop has no reverse mode; a function that contains one
    takes n passes of forward over forward mode.

    Args:
        f: takes a pytree, returns a scalar.
        x: the point, a pytree of floating-point arrays.
        v: the direction, like ``x``.

    Returns:
        $Hv$, like ``x``.

    Raises:
        TypeError: if a leaf of ``x`` is not floating-point, or ``f`` does not return a floating-point array.
        ValueError: if ``f`` is not scalar-valued, or ``v`` is not like ``x`` (the error names the leaf).

    >>> hvp(lambda x: jnp.prod(x), jnp.array([2.0, 5.0]), jnp.array([1.0, -2.0]))
    Array([-2.,  1.], dtype=float32)

    Source: Pearlmutter 1994, Fast exact multiplication by the Hessian (doi:10.1162/neco.1994.6.1.147); Huszar, DeepNN
    lecture 3 (the Hessian-vector product).
    """
    f = scalar_valued(f)
    x, v = at_point(x, v)
    try:
        if _has_loops(jax.grad(f), x):  # a loop that carries value and tangent together takes half the memory
            return jax.jvp(with_forward_mode(jax.grad(f), x), (x,), (v,))[1]
    except Exception as error:
        if missing_mode(error) is None:
            raise
    return linearize_gradient(f, x)(v)


@checked
def directional_curvature(f: Callable[[Tree], Float[Array, ""]], x: Tree, v: Tree) -> Float[Array, ""]:
    r"""The curvature $vᵀ H v = (d^2 / (dt^2)) f(x + tv)$ at $t = 0$ along ``v``.

    Taylor mode of order two: no intermediate value is stored, so this takes less time than `hvp`, and its memory does
    not grow with the depth of ``f``. A product of matrices takes five products, where a gradient takes three and nested
    ``jax.jvp`` eight. Arguments and errors are those of `hvp`.

    >>> directional_curvature(jnp.prod, jnp.array([2.0, 5.0]), jnp.array([1.0, -2.0]))
    Array(-4., dtype=float32)

    Source: Griewank & Walther 2008, Evaluating Derivatives (univariate Taylor propagation, degree two;
    doi:10.1137/1.9780898717761).
    """
    return directional_derivatives(scalar_valued(f), x, v, order=2)[2]


def linearize_gradient(f: Callable, x: PyTree) -> Callable:
    """The Hessian at x as a linear function: the linearized gradient, or its pullback, or forward over forward mode.

    A rule of reverse mode that reads traced values besides its arguments has no forward mode. A while loop has no
    reverse mode, so that there is no gradient to linearize. Then entry i of a product is the second derivative along
    the unit vector i and v, one pass of forward mode each.
    """
    try:
        return _stored(linearize(jax.grad(f), x)[1])
    except Exception as error:
        mode = missing_mode(error)
        if mode is None:
            raise
    if mode == "forward":  # the Hessian is symmetric
        return _stored(Partial(_pulled, jax.vjp(jax.grad(f), x)[1]))
    return Partial(functools.partial(_forward_over_forward, with_forward_mode(f, x)), x)


def _pulled(pull, v):
    return pull(v)[0]


def _stored(linear: Callable) -> Callable:
    """The same linear function with a barrier around its floating-point arrays.

    Without it XLA recomputes exponentials at each use instead of storing them: a transformer with gelu then takes a
    third more time. In other cases it has no cost. Around the index of a `jax.lax.cond` JAX cannot differentiate it.
    """
    leaves, structure = jax.tree.flatten(linear)
    moving = [place for place, leaf in enumerate(leaves) if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)]
    for place, leaf in zip(moving, lax.optimization_barrier([leaves[place] for place in moving]), strict=True):
        leaves[place] = leaf
    return structure.unflatten(leaves)


@full_precision()
def _forward_over_forward(f, x, v):
    flat, to_tree = as_vector(x)
    along_v = lambda flat: jax.jvp(f, (to_tree(flat),), (v,))[1]
    # Half-precision leaves have tangents in their own dtype, as a product by reverse mode has.
    units = varying_like(jnp.eye(flat.size, dtype=flat.dtype), flat)
    return to_tree(jax.vmap(lambda e: jax.jvp(along_v, (flat,), (e,))[1])(units).astype(flat.dtype))


def _has_loops(f: Callable, x: PyTree) -> bool:
    try:
        program = jax.make_jaxpr(f)(x)
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError):  # f reads numbers of x, which an eager call has
        return False
    return any(equation.primitive.name in ("scan", "while") for equation, _, _ in equations(program))
