r"""The trace of a symmetric operator, estimated from a few of its products.

    A          a symmetric operator v -> Av on pytrees like ``like``, with n numbers in all
    m          the number of products with A

Vectors have float32 precision at least. Under ``jit`` each estimate is one compiled program.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import register_dataclass
from jaxtyping import Array, Float, Key, PyTree

from jaxblocks.ad.vectors.chunks import ChunkSize, chunk_size_for, map_in_chunks
from jaxblocks.ad.vectors.raveled import dot, random_signs, raveled, short
from jaxblocks.backend.quotients import norm
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveInt, checked

__all__ = ["TraceEstimate", "estimate_trace", "mean_and_error"]


@functools.partial(register_dataclass, data_fields=["value", "standard_error"], meta_fields=["method", "products"])
@dataclasses.dataclass(frozen=True, repr=False)
class TraceEstimate:
    """An estimate of a trace, and an estimate of its standard error.

    Attributes:
        value: the estimate.
        standard_error: of the value, from the variance of its samples.
        method: the method of estimation.
        products: the number of products with the operator.

    >>> TraceEstimate(jnp.float32(12.34), jnp.float32(0.51), "hutchinson", 32)
    TraceEstimate(12.34 ± 0.51, hutchinson, 32 products)
    """

    value: Any
    standard_error: Any
    method: str
    products: int

    def __repr__(self):
        value = f"{short(self.value)} ± {short(self.standard_error, 2)}"
        return f"TraceEstimate({value}, {self.method}, {self.products} products)"


@checked
def estimate_trace(
    key: Key[Array, ""],
    operator: Callable[[PyTree], PyTree],
    like: PyTree,
    *,
    samples: PositiveInt | None = None,
    method: Literal["hutchinson", "hutch++"] = "hutchinson",
    chunk_size: ChunkSize = "auto",
) -> TraceEstimate:
    r"""The trace of an operator, estimated from a given number of products, with its standard error.

    * ``"hutchinson"``: the mean of $zᵀ A z$ over vectors $z$ of random signs. Its error falls as
      $1/√m$; the best method for few products (below about 64).
    * ``"hutch++"``: a third of the products finds the directions in which $A$ is large, a third computes the
      trace in these directions exactly, a third estimates the remaining trace. Its error falls as $1/m$ if few
      eigenvalues are large, as is typical of a Hessian; use it for many products (above about 64).

    Both are unbiased, and so are their derivatives with respect to the arrays in ``operator``: the basis of the range
    in which ``"hutch++"`` computes exactly is a constant in them.

    Args:
        key: the key of the random vectors.
        operator: $A$, symmetric, takes and returns a pytree like ``like``. For ``"hutchinson"`` it may also
            return the number $vᵀ A v$, such as ``lambda v: directional_curvature(f, x, v)``, which costs less
            than a product (``like`` must then not be a scalar).
        like: a pytree of floating-point arrays (or ``jax.ShapeDtypeStruct``); only shapes and dtypes are read.
        samples: $m$, the number of vectors that $A$ is multiplied with: at least 2 for ``"hutchinson"``, 6
            for ``"hutch++"`` (which uses a multiple of 3). By default 32, for ``"hutch++"`` at most as many as n
            allows.
        chunk_size: the number of products computed at once.

    Raises:
        TypeError: without a key.
        ValueError: for an unknown method, and for fewer samples than it needs or more than n allows.

    >>> estimate_trace(jax.random.key(0), lambda v: 2 * v, jnp.zeros(100))
    TraceEstimate(200 ± 0, hutchinson, 32 products)

    Source: Hutchinson 1989, A stochastic estimator of the trace of the influence matrix; Meyer, Musco, Musco & Woodruff
    2021, Hutch++ (arXiv:2010.09649).
    """
    estimate, least, per_column = _METHODS[method]
    space = raveled(operator, like, allow_form=method == "hutchinson")
    most = per_column * space.n
    whole = "compute the whole matrix, as_matrix(operator, like)"
    if method == "hutch++":
        require(least <= most, f"an operator on at least {least // per_column} numbers for {method!r}", space.n, whole)
        samples = min(32, most) if samples is None else samples
        fits = samples // per_column <= space.n
        require(fits, f"at most {most} samples for {method!r} of an operator on {space.n} numbers", samples, whole)
    samples = 32 if samples is None else samples
    expected = f"at least {least} samples for {method!r}, for its standard error"
    require(samples >= least, expected, samples, f"pass samples={least}")
    size = chunk_size_for(chunk_size, samples // per_column, operator, space.like)
    value, error, computed = estimate(space, key, samples, size)
    return TraceEstimate(value, error, method, computed)


def mean_and_error(samples: Float[Array, " n"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The mean of independent samples, and its standard error, with the derivative 0 where all samples are equal."""
    n, mean = len(samples), jnp.mean(samples)
    # One sample has no deviation; NaN instead of 0 states that the error is unknown.
    return mean, norm(samples - mean) / (n * (n - 1)) ** 0.5 if n > 1 else jnp.full_like(mean, jnp.nan)


def _hutchinson(operator, key, samples, size):
    def sample(key):
        z = random_signs(key, operator)
        y = operator.operator(operator.to_tree(z))
        return y.astype(operator.dtype) if operator.is_form else dot(z, operator.to_vector(y))

    return *mean_and_error(map_in_chunks(sample, jax.random.split(key, samples), size)), samples


def _hutch_plus_plus(operator, key, samples, size):
    """The trace in the range of A Ω, and samples of the remaining trace."""
    # A third of the products each for the sketch, for its trace, and for the rest, as in the paper.
    third = samples // 3
    for_sketch, for_rest = jax.random.split(key)
    sketch = jax.vmap(lambda key: random_signs(key, operator))(jax.random.split(for_sketch, third))
    # With any fixed basis the estimate and its derivative are unbiased; that of a low rank has no derivative itself.
    basis = jnp.linalg.qr(lax.stop_gradient(map_in_chunks(operator.apply, sketch, size)).T)[0].T  # orthonormal rows
    inside = jnp.sum(basis * map_in_chunks(operator.apply, basis, size))
    z = jax.vmap(lambda key: random_signs(key, operator))(jax.random.split(for_rest, third))
    z = z - dot(dot(z, basis.T), basis)
    outside, error = mean_and_error(jnp.sum(z * map_in_chunks(operator.apply, z, size), axis=1))
    return inside + outside, error, 3 * third


# The estimator, its minimal number of products, and its number of products for each vector.
_METHODS = {"hutchinson": (_hutchinson, 2, 1), "hutch++": (_hutch_plus_plus, 6, 3)}
