"""Operators on pytrees as operators on vectors: the leaves of a pytree raveled and joined in the order of the tree."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from jaxblocks.ad.programs.arguments import floating_like
from jaxblocks.backend.precision import full_precision, wide_dtype
from jaxblocks.backend.varying import as_structs, replicated, sharded_like, varying_like
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.values import has_values

__all__ = ["RaveledOperator", "as_vector", "common_dtype", "dot", "offsets", "random_signs", "raveled", "short"]


class RaveledOperator(NamedTuple):
    """An operator on pytrees, applied to raveled vectors.

    Attributes:
        operator: the operator on pytrees.
        like: shapes and dtypes of its argument.
        n: the number of entries of the argument.
        dtype: of the raveled vectors, float32 at least.
        is_form: whether the operator returns the number v'Av instead of Av.
    """

    operator: Callable
    like: PyTree
    n: int
    dtype: Any
    is_form: bool

    def to_vector(self, tree: PyTree) -> Float[Array, " n"]:
        """The leaves of a pytree as one vector."""
        leaves = [replicated(jnp.asarray(leaf)) for leaf in jax.tree.leaves(tree)]
        return jnp.concatenate([leaf.reshape(-1).astype(self.dtype) for leaf in leaves])

    def to_tree(self, vector: Float[Array, " n"]) -> PyTree:
        """A vector as a pytree like ``like``."""
        leaves, structure = jax.tree.flatten(self.like)
        parts = []
        for first, leaf in offsets(leaves):
            part = vector[first : first + leaf.size].reshape(leaf.shape).astype(leaf.dtype)
            parts.append(sharded_like(varying_like(part, leaf), leaf))
        return structure.unflatten(parts)

    def apply(self, vector: Float[Array, " n"]) -> Float[Array, " n"]:
        """The product of the operator with a vector."""
        return self.to_vector(self.operator(self.to_tree(vector)))


def offsets(leaves: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """Each leaf with the index of its first entry among those of all leaves."""
    first = 0
    for leaf in leaves:
        yield first, leaf
        first += leaf.size


def raveled(
    operator: Callable[[PyTree], PyTree], like: PyTree, *, allow_form: bool = False, name: str = "like"
) -> RaveledOperator:
    """An operator on raveled vectors; raises an error unless it returns a pytree like its argument.

    It is evaluated in full precision on every device. With ``allow_form`` the operator may also return the number v'Av.
    The errors call the argument ``name``.
    """
    like = floating_like(like, name)
    like = as_structs(like)
    operator = full_precision()(operator)
    returned = jax.eval_shape(operator, like)
    leaves = jax.tree.leaves(like)
    n = sum(leaf.size for leaf in leaves)
    dtype = max((wide_dtype(leaf.dtype) for leaf in leaves), key=lambda dtype: dtype.itemsize)
    same = jax.tree.structure(returned) == jax.tree.structure(like) and all(
        a.shape == b.shape for a, b in zip(jax.tree.leaves(returned), leaves, strict=True)
    )
    like = jax.eval_shape(lambda like: varying_like(like, returned), like)
    is_form = not same and allow_form and getattr(returned, "shape", None) == ()
    if not (same or is_form):
        got, wanted = (", ".join(map(describe, jax.tree.leaves(tree))) for tree in (returned, like))
        repair = f"pass a function v -> A v, and its argument as {name}"
        require(False, f"an operator that returns a pytree like its argument, {wanted}", got, repair)
    return RaveledOperator(operator, like, n, dtype, is_form)


def as_vector(tree: PyTree) -> tuple[Float[Array, " n"], Callable[[Array], PyTree]]:
    """The leaves of a tree as one vector, and its inverse: ``ravel_pytree``, also where promotion is strict.

    >>> as_vector((jnp.ones(1, jnp.float16), jnp.zeros(2)))[0]
    Array([1., 0., 0.], dtype=float32)
    """
    with jax.numpy_dtype_promotion("standard"):
        return ravel_pytree(tree)


def common_dtype(tree: PyTree) -> Any:
    """The dtype to which all leaves of a tree can be promoted, also where promotion is strict."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(*jax.tree.leaves(tree))


def random_signs(key: Array, operator: RaveledOperator) -> Float[Array, " n"]:
    """A vector of independent random signs, an argument of the operator."""
    return varying_like(jax.random.rademacher(key, (operator.n,), operator.dtype), operator.like)


def dot(a: Array, b: Array) -> Array:
    """A product of vectors and matrices in the full precision of their dtype."""
    with full_precision():
        return jnp.matmul(a, b)


def short(x: Any, digits: int = 4) -> str:
    """A number in few digits; an array or a traced value by its dtype and shape.

    >>> short(1.23456), short(jnp.zeros(3))
    ('1.235', 'float32 (3,)')
    """
    return f"{float(x):.{digits}g}" if has_values(x, 0) else describe(x)
