"""Products that are computed in the order in which they are returned.

The gradient of a kernel is a product of cotangents and inputs, which JAX transposes. For a batch of gradients, XLA on
CPU writes all products in the first order, and then copies them into the second.
"""

import collections
import weakref
from collections.abc import Callable

import jax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, jaxpr_as_fun

from jaxblocks.ad.programs.jaxprs import shape_of

__all__ = ["with_products_in_order"]


def with_products_in_order(f: Callable) -> Callable:
    """The same function, where a product that is transposed at once takes its operands in the other order.

    Jitted functions inside stay jitted; loops, branches and custom rules are not changed.

    >>> gradient = jax.grad(lambda kernel: jnp.ones(2) @ kernel @ jnp.ones(3))
    >>> program_of = lambda f: jax.make_jaxpr(f)(jnp.ones((2, 3)))
    >>> [equation.primitive.name for equation in program_of(gradient).eqns[-2:]]
    ['dot_general', 'transpose']
    >>> ordered = program_of(with_products_in_order(gradient))
    >>> [equation.primitive.name for equation in ordered.eqns[-2:]]
    ['dot_general', 'dot_general']
    """

    def ordered(*args):
        program, shapes = jax.make_jaxpr(f, return_shape=True)(*args)
        outputs = jaxpr_as_fun(_in_order(program))(*jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shapes), outputs)

    return ordered


# The rewritten programs of jitted functions, so that an eager call has those of the call before, and compiles nothing.
# A program may contain params, or tracers of a call in progress, so that none is kept longer than JAX keeps it.
_known: weakref.WeakKeyDictionary[ClosedJaxpr, ClosedJaxpr] = weakref.WeakKeyDictionary()


def _known_in_order(program: ClosedJaxpr) -> ClosedJaxpr:
    if program not in _known:
        _known[program] = _in_order(program)
    return _known[program]


def _in_order(program: ClosedJaxpr) -> ClosedJaxpr:
    reads = collections.Counter(v for e in program.jaxpr.eqns for v in e.invars if not isinstance(v, Literal))
    reads.update(v for v in program.jaxpr.outvars if not isinstance(v, Literal))
    equations: list[JaxprEqn] = []
    for equation in program.jaxpr.eqns:
        if equation.primitive.name == "jit":
            equation = equation.replace(params=equation.params | {"jaxpr": _known_in_order(equation.params["jaxpr"])})
        if equations and _swaps_axes(equations[-1], equation):
            product = equations[-1] if reads[equations[-1].outvars[0]] > 1 else equations.pop()
            equation = _swapped(product, equation)
        equations.append(equation)
    return program.replace(jaxpr=program.jaxpr.replace(eqns=equations))


def _swaps_axes(product: JaxprEqn, equation: JaxprEqn) -> bool:
    """Whether an equation transposes a product: axes of the second operand come before those of the first."""
    if product.primitive.name != "dot_general" or equation.primitive.name != "transpose":
        return False
    (contracted, _), (batched, _) = product.params["dimension_numbers"]
    # A sharding names axes in the old order, and an algorithm the dtypes of its operands.
    sharding, precision = (product.params[name] for name in ("out_sharding", "precision"))
    plain = sharding is None and not isinstance(precision, jax.lax.DotAlgorithm)
    n, rank = len(batched), len(shape_of(product.outvars[0]))
    n_x = len(shape_of(product.invars[0])) - len(contracted)
    order = (*range(n), *range(n_x, rank), *range(n, n_x))
    return plain and equation.invars == product.outvars and tuple(equation.params["permutation"]) == order


def _swapped(product: JaxprEqn, transposition: JaxprEqn) -> JaxprEqn:
    """The product of the operands in the other order, in place of a transposition."""
    (contracted, batched), precision = product.params["dimension_numbers"], product.params["precision"]
    changed = {
        "dimension_numbers": (contracted[::-1], batched[::-1]),
        "precision": precision[::-1] if isinstance(precision, tuple) else precision,
    }
    return product.replace(invars=product.invars[::-1], outvars=transposition.outvars, params=product.params | changed)
