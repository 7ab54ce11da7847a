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
from jaxblocks.backend.varying import varying_like
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
    method: Literal["hutchinson", "hutch++", "xtrace"] = "hutchinson",
    chunk_size: ChunkSize = "auto",
) -> TraceEstimate:
    r"""The trace of an operator, estimated from a given number of products, with its standard error.

    * ``"hutchinson"``: the mean of $zᵀ A z$ over vectors $z$ of random signs. Its error falls as
      $1/√m$; the best method for few products (below about 64).
    * ``"hutch++"``: a third of the products finds the directions in which $A$ is large, a third computes the
      trace in these directions exactly, a third estimates the remaining trace.
    * ``"xtrace"``: each vector is used for both, by a leave-one-out scheme. The errors of ``"hutch++"`` and
      ``"xtrace"`` fall as $1/m$ if few eigenvalues are large, as is typical of a Hessian; use them for many products
      (above about 64). The error of ``"xtrace"`` is smaller than that of ``"hutch++"``, but its standard error (by the
      jackknife) is two or three times too large.

    All three are unbiased, and so are their derivatives with respect to the arrays in ``operator``: the basis of the
    range in which ``"hutch++"`` and ``"xtrace"`` compute exactly is a constant in them.

    Args:
        key: the key of the random vectors.
        operator: $A$, symmetric, takes and returns a pytree like ``like``. For ``"hutchinson"`` it may also
            return the number $vᵀ A v$, such as ``lambda v: directional_curvature(f, x, v)``, which costs less
            than a product (``like`` must then not be a scalar).
        like: a pytree of floating-point arrays (or ``jax.ShapeDtypeStruct``); only shapes and dtypes are read.
        samples: $m$, the number of vectors that $A$ is multiplied with: at least 2 for ``"hutchinson"``, 6
            for ``"hutch++"`` (which uses a multiple of 3), 4 for ``"xtrace"`` (a multiple of 2). By default 32,
            for the last two at most as many as n allows.
        chunk_size: the number of products computed at once.

    Raises:
        TypeError: without a key.
        ValueError: for an unknown method, and for fewer samples than it needs or more than n allows.

    >>> estimate_trace(jax.random.key(0), lambda v: 2 * v, jnp.zeros(100))
    TraceEstimate(200 ± 0, hutchinson, 32 products)

    Source: Hutchinson 1989, A stochastic estimator of the trace of the influence matrix; Meyer, Musco, Musco & Woodruff
    2021, Hutch++ (arXiv:2010.09649); Epperly, Tropp & Webber 2024, XTrace (arXiv:2301.07825).
    """
    estimate, least, per_column = _METHODS[method]
    space = raveled(operator, like, allow_form=method == "hutchinson")
    most = per_column * space.n
    if samples is None:
        samples = 32 if method == "hutchinson" else max(least, min(32, most))
    whole = f"{space.n} products give the whole matrix, as_matrix(operator, like)"
    repair = f"pass samples={least}" if least <= most or method == "hutchinson" else whole
    require(samples >= least, f"at least {least} samples for {method!r}, for its standard error", samples, repair)
    if samples // per_column > space.n and method != "hutchinson":
        require(False, f"at most {most} samples for {method!r} of an operator on {space.n} numbers", samples, whole)
    number = samples if method == "hutchinson" else samples // per_column
    size = chunk_size_for(chunk_size, number, operator, space.like)
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


def _xtrace(operator, key, samples, size):
    """One sample for each vector: the trace in the range of A times the other vectors, and the rest from this vector.

    With A Ω = Q R and s_i the normalized columns of R's inverse transposed, Q (I - s_i s_i') Q' projects on the range
    without column i. Two columns are omitted in the same way, so no sample needs a factorization of its own. The
    samples share vectors, so their variance is too small; the jackknife, which omits one vector, gives the error.
    """
    half = samples // 2
    # Not random signs: in few dimensions these are often dependent, and then no sample omits the range of its vector.
    omega = jax.vmap(lambda key: _random_direction(key, operator))(jax.random.split(key, half)).T  # (n, m)
    y = map_in_chunks(operator.apply, omega.T, size).T
    q, r = jnp.linalg.qr(lax.stop_gradient(y))  # as in `_hutch_plus_plus`
    z = map_in_chunks(operator.apply, q.T, size).T  # A Q
    largest = jnp.max(jnp.abs(r))
    r = r / jnp.where(largest > 0, largest, 1)  # s does not depend on the scale
    floor = jnp.finfo(r.dtype).eps
    r = r + jnp.diag(jnp.where(jnp.abs(jnp.diagonal(r)) < floor, floor, 0))  # an operator of low rank
    s = jax.scipy.linalg.solve_triangular(r, jnp.eye(half, dtype=r.dtype), trans="T")
    s = s / norm(s, 0, keepdims=True)
    # All samples are computed from these small matrices, without further products with A.
    h, w, t = dot(q.T, z), dot(q.T, omega), dot(z.T, omega)

    def sample(i, j):
        """The sample of vector i, without the columns i and j."""
        u = s[:, j] - s[:, i] * dot(s[:, i], s[:, j])
        u = jnp.where(i == j, 0, u / jnp.maximum(norm(u), floor))
        x = w[:, i] - s[:, i] * dot(s[:, i], w[:, i]) - u * dot(u, w[:, i])  # Q x is the part of vector i in the range
        inside = jnp.trace(h) - sum(dot(out, dot(h, out)) for out in (s[:, i], u))
        return inside + dot(omega[:, i], y[:, i]) - 2 * dot(x, t[:, i]) + dot(x, dot(h, x))

    each = jnp.arange(half)
    values = lax.map(lambda j: jax.vmap(lambda i: sample(i, j))(each), each).T  # [i, j]
    own = jnp.diagonal(values)
    without = (jnp.sum(values, axis=0) - own) / (half - 1)  # the estimate that does not use vector j
    return jnp.mean(own), norm(without - jnp.mean(without)) * (1 - 1 / half) ** 0.5, 2 * half


def _random_direction(key, operator):
    """A vector of length √n in a random direction."""
    z = jax.random.normal(key, (operator.n,), operator.dtype)
    return varying_like(operator.n**0.5 / norm(z) * z, operator.like)


# The estimator, its minimal number of products, and its number of products for each vector.
_METHODS = {"hutchinson": (_hutchinson, 2, 1), "hutch++": (_hutch_plus_plus, 6, 3), "xtrace": (_xtrace, 4, 2)}
