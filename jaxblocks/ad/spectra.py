r"""Spectra of symmetric operators from their products alone: traces, largest eigenvalues, densities.

    A          a symmetric operator v -> Av on pytrees like ``like``, with n numbers in all
    products   how many products with A are spent
    steps      of Lanczos' recurrence, one product each: k below
    Q, T       its basis (k rows of n) and its tridiagonal matrix: Q A Q' = T

Any operator will do: ``hessian_operator(f, x)``, ``gauss_newton_operator(...)``, a product over minibatches.
Vectors are kept in float32 at least. Where a whole function here stands under ``jit``, it is compiled once.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import register_dataclass
from jaxtyping import Array, Float, Key, PyTree

from jaxblocks.ad.jaxlib_check import warn_if_jaxlib_is_wrong
from jaxblocks.ad.loops import chunk_size_for, map_in_chunks, order_convolutions
from jaxblocks.ad.products import floating_like
from jaxblocks.axes import axes_or_new
from jaxblocks.checks import check_values, describe_any, require_key, require_whole
from jaxblocks.precision import wide_dtype

__all__ = [
    "Eigenvalues",
    "Lanczos",
    "SpectralDensity",
    "TraceEstimate",
    "estimate_trace",
    "lanczos",
    "largest_eigenvalues",
    "spectral_density",
]


# ---- traces -------------------------------------------------------------------------------


@functools.partial(register_dataclass, data_fields=["value", "standard_error"], meta_fields=["method", "products"])
@dataclasses.dataclass(frozen=True, repr=False)
class TraceEstimate:
    """An estimate with the standard error that it states of itself.

    Attributes:
        value: the estimate.
        standard_error: of the value, from the spread of its own samples.
        method: how it was made.
        products: how many products with the operator it took.

    >>> TraceEstimate(jnp.float32(12.34), jnp.float32(0.51), "hutchinson", 32)
    TraceEstimate(12.34 ± 0.51, hutchinson, 32 products)
    """

    value: Any
    standard_error: Any
    method: str
    products: int

    def __repr__(self):
        value = f"{_show(self.value)} ± {_show(self.standard_error, 2)}"
        return f"TraceEstimate({value}, {self.method}, {self.products} products)"


def estimate_trace(
    operator: Callable[[PyTree], PyTree],
    like: PyTree,
    key: Key[Array, ""] | None = None,
    products: int = 32,
    method: str = "hutchinson",
    chunk_size: int | str = "auto",
) -> TraceEstimate:
    r"""The trace of an operator, estimated from a given number of products, with its standard error.

    * ``"hutchinson"``: the mean of :math:`z^\top A z` over random signs :math:`z`. Its error falls as
      :math:`1/\sqrt{m}`; the right one for few products (below about 64).
    * ``"hutch++"``: a third of the products finds the directions in which :math:`A` is large, a third takes the trace
      there exactly, a third estimates the rest.
    * ``"xtrace"``: each vector serves both purposes, by leaving out one at a time. Both of these fall as
      :math:`1/m` where few eigenvalues are large, as those of a Hessian; for many products (above about 64). Its error
      is smaller than that of ``"hutch++"``, but stated (by the jackknife) two or three times too large.

    All three are unbiased.

    Args:
        operator: :math:`A`, symmetric, takes and returns a pytree like ``like``. For ``"hutchinson"`` also a
            function that returns the number :math:`v^\top A v` itself, such as
            ``lambda v: directional_curvature(f, x, v)``, which costs less than a product (``like`` may then not be a scalar).
        like: a pytree of floating-point arrays (or ``jax.ShapeDtypeStruct``); only shapes and dtypes are read.
        key: what the vectors are drawn from.
        products: :math:`m`, how many products are spent: at least 2 for ``"hutchinson"``, 6 for ``"hutch++"``
            (which spends a multiple of 3), 4 for ``"xtrace"`` (a multiple of 2).
        chunk_size: how many products at once.

    Raises:
        TypeError: without a key.
        ValueError: for a method that is not known, too few products for it, or more than it can use with n numbers.

    >>> estimate_trace(lambda v: 2 * v, jnp.zeros(100), jax.random.key(0))
    TraceEstimate(200 ± 0, hutchinson, 32 products)

    Source: Hutchinson 1989; Meyer, Musco, Musco & Woodruff 2021, Hutch++; Epperly, Tropp & Webber 2024, XTrace.
    """
    warn_if_jaxlib_is_wrong()
    where = "estimate_trace"
    if method not in _METHODS:
        raise ValueError(f"{where} knows the methods {', '.join(map(repr, _METHODS))}, but {method!r} came.")
    require_key(where, key)
    estimate, least, per_column = _METHODS[method]
    products = require_whole(where, "products", products)
    if products < least:
        raise ValueError(
            f"{where} expects at least {least} products for {method!r}, since the standard error needs two "
            f"vectors, but {products} came."
        )
    space = _space(where, operator, like, form=method == "hutchinson")
    if products // per_column > space.n and method != "hutchinson":
        raise ValueError(
            f"{where} expects at most {per_column * space.n} products for {method!r} of an operator on {space.n} "
            f"numbers, but {products} came; {space.n} products give the whole matrix, as_matrix(operator, like)."
        )
    number = products if method == "hutchinson" else products // per_column
    size = chunk_size_for(where, chunk_size, number, operator, space.like)
    value, error, spent = estimate(space, key, products, size)
    return TraceEstimate(value, error, method, spent)


def _mean_and_error(samples):
    return jnp.mean(samples), jnp.std(samples, ddof=1) / len(samples) ** 0.5


def _hutchinson(space, key, products, size):
    def sample(key):
        z = _signs(key, space)
        y = space.operator(space.to_tree(z))
        return y.astype(space.dtype) if space.form else _dot(z, space.to_vector(y))

    return *_mean_and_error(map_in_chunks(sample, jax.random.split(key, products), size)), products


def _hutch_plus_plus(space, key, products, size):
    """The trace inside of the range of A Ω, and samples of what is left outside."""
    third = products // 3
    for_sketch, for_rest = jax.random.split(key)
    sketch = jax.vmap(lambda key: _signs(key, space))(jax.random.split(for_sketch, third))
    basis = jnp.linalg.qr(map_in_chunks(space.apply, sketch, size).T)[0].T  # orthonormal rows
    inside = jnp.sum(basis * map_in_chunks(space.apply, basis, size))
    z = jax.vmap(lambda key: _signs(key, space))(jax.random.split(for_rest, third))
    z = z - _dot(_dot(z, basis.T), basis)
    outside, error = _mean_and_error(jnp.sum(z * map_in_chunks(space.apply, z, size), axis=1))
    return inside + outside, error, 3 * third


def _xtrace(space, key, products, size):
    """One sample for each vector: the trace in the range of A times the others, and the rest from the vector itself.

    With A Ω = Q R and s_i the normalized columns of R's inverse transposed, Q (I - s_i s_i') Q' projects on the range
    without column i, and two columns are left out alike: no sample needs a factorization of its own. Samples share
    vectors, so their spread says too little; the error is that of the jackknife, which leaves out one vector of all.
    """
    half = products // 2
    omega = jax.vmap(lambda key: _signs(key, space))(jax.random.split(key, half)).T  # (n, m)
    y = map_in_chunks(space.apply, omega.T, size).T
    q, r = jnp.linalg.qr(y)
    z = map_in_chunks(space.apply, q.T, size).T  # A Q
    largest = jnp.max(jnp.abs(r))
    r = r / jnp.where(largest > 0, largest, 1)  # s does not feel it
    floor = jnp.finfo(r.dtype).eps
    r = r + jnp.diag(jnp.where(jnp.abs(jnp.diagonal(r)) < floor, floor, 0))  # an operator of low rank
    s = jax.scipy.linalg.solve_triangular(r, jnp.eye(half, dtype=r.dtype), trans="T")
    s = s / jnp.linalg.norm(s, axis=0, keepdims=True)
    h, w, t = _dot(q.T, z), _dot(q.T, omega), _dot(z.T, omega)

    def sample(i, j):
        """From vector i, without the columns i and j."""
        u = s[:, j] - s[:, i] * _dot(s[:, i], s[:, j])
        u = jnp.where(i == j, 0, u / jnp.maximum(jnp.linalg.norm(u), floor))
        x = (
            w[:, i] - s[:, i] * _dot(s[:, i], w[:, i]) - u * _dot(u, w[:, i])
        )  # Q x is the part of vector i in the range
        inside = jnp.trace(h) - sum(_dot(out, _dot(h, out)) for out in (s[:, i], u))
        return inside + _dot(omega[:, i], y[:, i]) - 2 * _dot(x, t[:, i]) + _dot(x, _dot(h, x))

    each = jnp.arange(half)
    samples = lax.map(lambda j: jax.vmap(lambda i: sample(i, j))(each), each).T  # [i, j]
    own = jnp.diagonal(samples)
    without = (jnp.sum(samples, axis=0) - own) / (half - 1)  # the estimate that has not seen vector j
    return jnp.mean(own), jnp.std(without) * (half - 1) ** 0.5, 2 * half


# What makes the estimate, how few products it can do with, and how many it takes for each vector of a factorization.
_METHODS = {"hutchinson": (_hutchinson, 2, 1), "hutch++": (_hutch_plus_plus, 6, 3), "xtrace": (_xtrace, 4, 2)}


# ---- Lanczos ------------------------------------------------------------------------------


class Lanczos(NamedTuple):
    """What `lanczos` returns: the operator in a basis of k orthonormal vectors, as a tridiagonal matrix.

    Args:
        diagonal, off_diagonal: of T: k and k - 1 numbers.
        residual: what the last step leaves over: ``A Q' = Q' T + residual`` times a unit vector in the last column;
            NaN where A turned out not to be symmetric under ``jit``.
        basis: Q, one basis vector in each of k rows, raveled in the order of ``jax.tree.leaves``.
    """

    diagonal: Float[Array, " k"]
    off_diagonal: Float[Array, " k-1"]
    residual: Float[Array, ""]
    basis: Float[Array, "k n"]


def lanczos(
    operator: Callable[[PyTree], PyTree], like: PyTree, key: Key[Array, ""] | None = None, steps: int = 30
) -> Lanczos:
    r"""Lanczos' recurrence with full reorthogonalization, from a random vector: :math:`Q A Q^\top = T`.

    Each step takes one product and makes it orthogonal to all vectors before it, twice. Where the
    vectors so far span an invariant space (as they do after r + 1 steps for an operator of rank r), it goes on with a
    fresh random vector, so that multiple eigenvalues are found too. Memory: ``steps`` vectors like ``like``.

    Args:
        operator: symmetric, takes and returns a pytree like ``like``. From the second step on it is seen whether
            it is: :math:`q_i^\top A q_j` and :math:`q_j^\top A q_i` are compared, to the cube root of the precision
            (that of matrix products may be less than that of their dtype).
        like: a pytree of floating-point arrays (or ``jax.ShapeDtypeStruct``); only shapes and dtypes are read.
        key: what the first vector is drawn from.
        steps: k, at most n.

    Raises:
        TypeError: without a key.
        ValueError: for ``steps`` < 1 or above n, and an operator that is not symmetric. Under ``jit``, where that
            cannot raise, ``residual`` is NaN.

    >>> A = jnp.diag(jnp.array([1.0, 2.0, 4.0]))
    >>> tridiagonal = lanczos(lambda v: A @ v, jnp.zeros(3), jax.random.key(0), steps=3)
    >>> bool(jnp.allclose(tridiagonal.diagonal.sum(), 7.0))
    True

    Source: Golub & Van Loan, Matrix computations, chapter 10.
    """
    warn_if_jaxlib_is_wrong()
    where = "lanczos"
    require_key(where, key)
    space = _space(where, operator, like)
    found, asymmetry, scale = _lanczos(space, key, _steps(where, steps, space.n))
    return found._replace(residual=_if_symmetric(where, space, asymmetry, scale, found.residual))


def _steps(where, steps, n):
    steps = require_whole(where, "steps", steps)
    if steps > n:
        raise ValueError(
            f"{where} expects at most as many steps as the operator has rows, {n}, but steps={steps} came; pass "
            f"steps={n} for the whole spectrum."
        )
    return steps


def _if_symmetric(where, space, asymmetry, scale, promise):
    """What is promised of a symmetric operator alone: raises where the operator is known not to be, NaN under jit.

    Products may be made in less precision than their dtype has (bfloat16 in a net, TF32 on a GPU): the cube root of
    its precision leaves room for that, and an operator that is not symmetric at all is far beyond it.
    """
    precision = max(float(jnp.finfo(leaf.dtype).eps) for leaf in jax.tree.leaves(space.like))
    ok = ~(asymmetry > precision ** (1 / 3) * scale)  # NaN is let through
    check_values(
        ok,
        f"{where} expects a symmetric operator, but v'Aw and w'Av differ by {{asymmetry}} for two vectors of length 1, "
        "where the longest Av is {scale}; pass one that is symmetric, as lambda v: (A @ v + A.T @ v) / 2, linear, and "
        "the same at each product (with a fixed key).",
        asymmetry=asymmetry,
        scale=scale,
    )
    return jnp.where(ok, promise, jnp.nan) if isinstance(ok, jax.core.Tracer) else promise


def _lanczos(space, key, steps):
    """With it, the greatest difference between q_i'Aq_j and q_j'Aq_i, and the greatest length of Aq_j."""
    start = jax.random.normal(jax.random.fold_in(key, steps), (space.n,), space.dtype)
    tiny = jnp.finfo(space.dtype).tiny

    def step(i, carry):
        basis, diagonal, off_diagonal, asymmetry, scale = carry
        y = space.apply(basis[i])
        alpha = _dot(basis[i], y)
        # q_j'Aq_i of earlier vectors is the last beta for j = i - 1, else zero (and in step 0 there is none: row -1,
        # the last, is zero still, and so is its beta).
        away = _dot(basis, y).at[i].set(0).at[i - 1].add(-off_diagonal[i - 1])
        asymmetry = jnp.maximum(asymmetry, jnp.max(jnp.abs(away)))
        scale = jnp.maximum(scale, jnp.linalg.norm(y))
        y = _outside(y, basis)
        beta = jnp.linalg.norm(y)
        stuck = beta <= 10 * jnp.finfo(space.dtype).eps * scale  # the space is invariant: nothing but rounding is left
        beta = jnp.where(stuck, 0, beta)
        fresh = jax.random.normal(jax.random.fold_in(key, i), y.shape, y.dtype)
        y = _outside(jnp.where(stuck, fresh, y), basis)
        y = y / jnp.maximum(jnp.linalg.norm(y), tiny)
        return basis.at[i + 1].set(y), diagonal.at[i].set(alpha), off_diagonal.at[i].set(beta), asymmetry, scale

    basis = jnp.zeros((steps + 1, space.n), space.dtype).at[0].set(start / jnp.linalg.norm(start))
    numbers = jnp.zeros(steps, space.dtype)
    carry = basis, numbers, numbers, jnp.zeros((), space.dtype), jnp.zeros((), space.dtype)
    basis, diagonal, off_diagonal, asymmetry, scale = lax.fori_loop(0, steps, order_convolutions(step), carry)
    found = Lanczos(diagonal, off_diagonal[:-1], off_diagonal[-1], basis[:-1])
    return found, *map(lax.stop_gradient, (asymmetry, scale))


def _outside(y, basis):
    """What is orthogonal to all rows of the basis; those that are not there yet are zero."""
    for _ in range(2):
        y = y - _dot(_dot(basis, y), basis)
    return y


def _ritz(lanczos):
    """Eigenvalues of T, rising, and its eigenvectors as columns."""
    off = lanczos.off_diagonal
    return jnp.linalg.eigh(jnp.diag(lanczos.diagonal) + jnp.diag(off, 1) + jnp.diag(off, -1))


@functools.partial(register_dataclass, data_fields=["values", "vectors", "bounds"], meta_fields=["products"])
@dataclasses.dataclass(frozen=True, repr=False)
class Eigenvalues:
    """The largest eigenvalues of an operator, the largest first.

    Attributes:
        values: the eigenvalues, falling.
        vectors: their eigenvectors, of length 1: a pytree like the operator's argument, one vector in each row.
        bounds: within this distance of each value there is an eigenvalue of the operator for certain, but for rounding:
            the length of :math:`Av - \\lambda v`. (The error itself is far smaller, of the order of its square.)
            NaN where the operator turned out not to be symmetric under ``jit``: the values are then of no use.
        products: how many products with the operator it took.

    >>> Eigenvalues(jnp.array([3.0, 1.0]), jnp.eye(2), jnp.array([0.0, 0.01]), 2)
    Eigenvalues(3 ± 0, 1 ± 0.01, 2 products)
    """

    values: Any
    vectors: PyTree
    bounds: Any
    products: int

    def __repr__(self):
        if jnp.ndim(self.values) != 1 or isinstance(self.values, jax.core.Tracer):
            return f"Eigenvalues({describe_any(self.values)}, {self.products} products)"
        pairs = [f"{_show(v)} ± {_show(b, 2)}" for v, b in zip(self.values, self.bounds, strict=True)]
        return f"Eigenvalues({', '.join(pairs)}, {self.products} products)"


def largest_eigenvalues(
    operator: Callable[[PyTree], PyTree],
    like: PyTree,
    key: Key[Array, ""] | None = None,
    count: int = 1,
    steps: int = 30,
) -> Eigenvalues:
    r"""The ``count_flops`` largest eigenvalues of a symmetric operator and their eigenvectors, by Lanczos.

    The upper end of a Hessian's spectrum, where eigenvalues lie far apart, converges in 10 to 30 steps; its lower end
    does not, and its smallest eigenvalues (``largest_eigenvalues`` of ``lambda v: -Av``) only where they
    stand out as well. The ``bounds`` tell.

    Args:
        operator, like, key: as in `lanczos`.
        count: how many, at most ``steps``.
        steps: products that are spent, at most n; the first ones asked for are the first to be right.

    Raises:
        TypeError: without a key.
        ValueError: for ``steps`` above n, ``count_flops`` above ``steps``, either < 1, and an operator that is not symmetric
            (as in `lanczos`; under ``jit`` the ``bounds`` are NaN).

    >>> A = jnp.diag(jnp.array([1.0, 2.0, 4.0]))
    >>> largest_eigenvalues(lambda v: A @ v, jnp.zeros(3), jax.random.key(0), steps=3).values.round(4)
    Array([4.], dtype=float32)

    Source: Golub & Van Loan, Matrix computations, chapter 10.
    """
    warn_if_jaxlib_is_wrong()
    where = "largest_eigenvalues"
    require_key(where, key)
    count = require_whole(where, "count", count)
    space = _space(where, operator, like)
    steps = _steps(where, steps, space.n)
    if count > steps:
        raise ValueError(f"{where} expects count <= steps, but count={count} and steps={steps} came; take more steps.")
    found, asymmetry, scale = _lanczos(space, key, steps)
    values, vectors = _ritz(found)
    values, vectors = values[::-1][:count], vectors[:, ::-1][:, :count]
    bounds = _if_symmetric(where, space, asymmetry, scale, found.residual * jnp.abs(vectors[-1]))
    return Eigenvalues(values, jax.vmap(space.to_tree)(_dot(vectors.T, found.basis)), bounds, steps)


# ---- densities ----------------------------------------------------------------------------


@functools.partial(register_dataclass, data_fields=["nodes", "weights"], meta_fields=["n"])
@dataclasses.dataclass(frozen=True, repr=False)
class SpectralDensity:
    r"""The distribution of the n eigenvalues of an operator, each with weight :math:`1/n`, by quadrature.

    Attributes:
        nodes: for each of p random vectors k places on the axis of eigenvalues, (p, k).
        weights: what lies there: each row is positive and sums to 1.
        n: how many eigenvalues there are.

    >>> density = SpectralDensity(jnp.array([[0.0, 2.0]]), jnp.array([[0.75, 0.25]]), 8)
    >>> density
    SpectralDensity(8 eigenvalues from 0 to 2, mean 0.5, 1 vector, 2 steps)
    >>> print(f"{density(2.0, width=0.1):.3f}")  # a quarter of a normal distribution of this width
    0.997
    """

    nodes: Any
    weights: Any
    n: int

    def __call__(self, points: Any, width: Any = None) -> Float[Array, "*points"]:
        """The density at ``points``, smoothed by a normal distribution of standard deviation ``width``.

        Without ``width`` it is a fiftieth of the range of the nodes. It integrates to 1.
        """
        width = self._width() if width is None else jnp.asarray(width, self.nodes.dtype)
        points = jnp.asarray(points, self.nodes.dtype)
        away = (points[..., None] - self.nodes.reshape((1,) * points.ndim + (-1,))) / width
        bells = jnp.exp(-(away**2) / 2) / (width * (2 * jnp.pi) ** 0.5)
        return _dot(bells, self.weights.reshape(-1)) / self.weights.shape[0]

    def trace(self, function: Callable[[Array], Array] = lambda eigenvalue: eigenvalue) -> TraceEstimate:
        r"""The trace of a function of the operator, :math:`\operatorname{tr} g(A) = \sum_i g(\lambda_i)`.

        ``density.trace(jnp.log)`` is the logarithm of a determinant, ``density.trace(jnp.square)`` a squared
        Frobenius norm. The standard error is that of the random vectors (with one vector it is NaN), which a function
        that k steps do not resolve adds to.

        >>> SpectralDensity(jnp.array([[0.0, 2.0]] * 2), jnp.array([[0.75, 0.25]] * 2), 8).trace(jnp.square).value
        Array(8., dtype=float32)
        """
        samples = self.n * jnp.sum(function(self.nodes) * self.weights, axis=-1)
        rows, steps = self.nodes.shape
        error = jnp.std(samples, ddof=1) / rows**0.5 if rows > 1 else jnp.full((), jnp.nan, samples.dtype)
        return TraceEstimate(jnp.mean(samples), error, "lanczos quadrature", rows * steps)

    def plot(self, ax=None, width=None, points: int = 400):
        """Draw the smoothed density on a logarithmic axis (few large eigenvalues show on no other); returns the axes.

        >>> import pytest
        >>> matplotlib = pytest.importorskip("matplotlib")
        >>> matplotlib.use("agg")
        >>> SpectralDensity(jnp.array([[0.0, 2.0]]), jnp.array([[0.75, 0.25]]), 8).plot().get_xlabel()
        'eigenvalue'
        """
        ax = axes_or_new(ax)
        width = self._width() if width is None else width
        low, high = jnp.min(self.nodes) - 4 * width, jnp.max(self.nodes) + 4 * width
        places = jnp.linspace(low, high, points)
        ax.semilogy(places, self(places, width))
        ax.set_ylim(bottom=1e-2 / (self.n * float(high - low)))  # a hundredth of one eigenvalue spread over all
        ax.set_xlabel("eigenvalue")
        ax.set_ylabel(f"density of {self.n} eigenvalues")
        return ax

    def _width(self):
        span = jnp.max(self.nodes) - jnp.min(self.nodes)
        return jnp.where(span > 0, span / 50, 1)

    def __repr__(self):
        if jnp.ndim(self.nodes) != 2 or isinstance(self.nodes, jax.core.Tracer):
            return f"SpectralDensity({describe_any(self.nodes)}, {self.n} eigenvalues)"
        rows, steps = self.nodes.shape
        mean = jnp.mean(jnp.sum(self.nodes * self.weights, axis=-1))
        return (
            f"SpectralDensity({self.n} eigenvalues from {_show(jnp.min(self.nodes))} to {_show(jnp.max(self.nodes))}, "
            f"mean {_show(mean)}, {rows} vector{'s' * (rows > 1)}, {steps} steps)"
        )


def spectral_density(
    operator: Callable[[PyTree], PyTree],
    like: PyTree,
    key: Key[Array, ""] | None = None,
    steps: int = 50,
    vectors: int = 8,
    chunk_size: int = 1,
) -> SpectralDensity:
    r"""The density of eigenvalues of a symmetric operator by stochastic Lanczos quadrature.

    From each random vector :math:`z` of length 1, ``steps`` of Lanczos give a Gauss quadrature of its spectral measure:
    nodes are the eigenvalues of :math:`T`, weights the squared first entries of its eigenvectors. Polynomials up to
    degree 2 k - 1 are integrated exactly, and the mean over :math:`z` is the density of all eigenvalues.

    Args:
        operator, like, key: as in `lanczos`.
        steps: k, how finely it is resolved; at most n.
        vectors: how many random vectors; they take ``steps * vectors`` products in all.
        chunk_size: vectors at once; each holds ``steps`` vectors like ``like``.

    Raises:
        TypeError: without a key.
        ValueError: for ``steps`` above n, whatever is < 1, and an operator that is not symmetric (as in `lanczos`;
            under ``jit`` the nodes are NaN).

    >>> A = jnp.diag(jnp.array([1.0, 2.0, 6.0]))
    >>> density = spectral_density(lambda v: A @ v, jnp.zeros(3), jax.random.key(0), steps=3)
    >>> density.nodes[0].round(4)
    Array([1., 2., 6.], dtype=float32)

    Source: Ubaru, Chen & Saad 2017, Fast estimation of tr f(A) via stochastic Lanczos quadrature; Ghorbani, Krishnan &
    Xiao 2019, An investigation into neural net optimization via Hessian eigenvalue density.
    """
    warn_if_jaxlib_is_wrong()
    where = "spectral_density"
    require_key(where, key)
    vectors = require_whole(where, "vectors", vectors)
    chunk_size = require_whole(where, "chunk_size", chunk_size)
    space = _space(where, operator, like)
    steps = _steps(where, steps, space.n)

    def quadrature(key):
        found, asymmetry, scale = _lanczos(space, key, steps)
        nodes, basis = _ritz(found)
        return nodes, basis[0] ** 2, asymmetry, scale

    nodes, weights, asymmetry, scale = map_in_chunks(
        quadrature, jax.random.split(key, vectors), min(chunk_size, vectors)
    )
    nodes = _if_symmetric(where, space, jnp.max(asymmetry), jnp.max(scale), nodes)  # of all vectors: one operator
    return SpectralDensity(nodes, weights, space.n)


# ---- vectors and trees --------------------------------------------------------------------


class _Space(NamedTuple):
    """An operator on raveled vectors."""

    operator: Callable
    like: PyTree
    n: int
    dtype: Any
    form: bool  # the operator returns v'Av

    def to_vector(self, tree):
        return jnp.concatenate([leaf.reshape(-1).astype(self.dtype) for leaf in jax.tree.leaves(tree)])

    def to_tree(self, vector):
        leaves, structure = jax.tree.flatten(self.like)
        parts, first = [], 0
        for leaf in leaves:
            parts.append(vector[first : first + leaf.size].reshape(leaf.shape).astype(leaf.dtype))
            first += leaf.size
        return structure.unflatten(parts)

    def apply(self, vector):
        return self.to_vector(self.operator(self.to_tree(vector)))


def _space(where, operator, like, form=False):
    if not callable(operator):
        raise TypeError(
            f"{where} expects an operator, a function v -> A v, but {describe_any(operator)} came; "
            + (f"write {where}(operator, like, ...)." if callable(like) else "for a matrix pass lambda v: A @ v.")
        )
    like = floating_like(where, like)
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), like)
    returned = jax.eval_shape(operator, like)
    leaves = jax.tree.leaves(like)
    n = sum(leaf.size for leaf in leaves)
    dtype = max((wide_dtype(leaf.dtype) for leaf in leaves), key=lambda dtype: dtype.itemsize)
    same = jax.tree.structure(returned) == jax.tree.structure(like) and all(
        a.shape == b.shape for a, b in zip(jax.tree.leaves(returned), leaves, strict=True)
    )
    if not same:
        if form and getattr(returned, "shape", None) == ():
            return _Space(operator, like, n, dtype, True)
        came, wanted = (", ".join(map(describe_any, jax.tree.leaves(tree))) for tree in (returned, like))
        raise ValueError(
            f"{where} expects an operator that returns a pytree like its argument, {wanted}, but {came} came; pass a "
            "function v -> A v, and its argument as like."
        )
    return _Space(operator, like, n, dtype, False)


def _signs(key, space):
    return jax.random.rademacher(key, (space.n,), space.dtype)


def _dot(a, b):
    return jnp.matmul(a, b, precision="highest")


def _show(x, digits=4) -> str:
    if isinstance(x, jax.core.Tracer) or jnp.ndim(x):
        return describe_any(x)
    return f"{float(x):.{digits}g}"
