r"""Spectra of symmetric operators from their products: the largest eigenvalues, and the spectral density.

    A       a symmetric operator v -> Av on pytrees like ``like``, with n numbers in all
    steps   k, the number of steps of the Lanczos recurrence (`jaxblocks.ad.lanczos`), one product each

Any symmetric operator can be used: ``hessian_operator(f, x)``, ``gauss_newton_operator(...)``, a mean of products over
minibatches. Under ``jit`` each function is one compiled program.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_dataclass
from jaxtyping import Array, Float, Key, PyTree

from jaxblocks.ad.curvature.krylov import if_symmetric, quadratures, ritz_pairs, steps_for, tridiagonalize
from jaxblocks.ad.curvature.trace_estimation import TraceEstimate, mean_and_error
from jaxblocks.ad.vectors.raveled import dot, raveled, short
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.checks.values import has_values
from jaxblocks.plotting.axes import axes_or_new

__all__ = ["Eigenvalues", "SpectralDensity", "largest_eigenvalues", "spectral_density"]


@functools.partial(register_dataclass, data_fields=["values", "vectors", "bounds"], meta_fields=["products"])
@dataclasses.dataclass(frozen=True, repr=False)
class Eigenvalues:
    """The largest eigenvalues of an operator, in decreasing order.

    Attributes:
        values: the eigenvalues, decreasing.
        vectors: the eigenvectors, of length 1: a pytree like the operator's argument, one vector in each row.
        bounds: the norm of $Av - λ v$: up to rounding, an eigenvalue of the operator lies within this
            distance of each value. (The error itself is much smaller, of the order of its square.)
            NaN if the operator is not symmetric, under ``jit``: the values are then meaningless.
        products: the number of products with the operator.

    >>> Eigenvalues(jnp.array([3.0, 1.0]), jnp.eye(2), jnp.array([0.0, 0.01]), 2)
    Eigenvalues(3 ± 0, 1 ± 0.01, 2 products)
    """

    values: Any
    vectors: PyTree
    bounds: Any
    products: int

    def __repr__(self):
        if not (has_values(self.values, 1) and has_values(self.bounds, 1)):
            return f"Eigenvalues({describe(self.values)}, {self.products} products)"
        values, bounds = np.asarray(self.values), np.asarray(self.bounds)
        pairs = [f"{short(v)} ± {short(b, 2)}" for v, b in zip(values, bounds, strict=True)]
        return f"Eigenvalues({', '.join(pairs)}, {self.products} products)"


@checked
def largest_eigenvalues(
    key: Key[Array, ""],
    operator: Callable[[PyTree], PyTree],
    like: PyTree,
    *,
    count: PositiveInt = 1,
    steps: PositiveInt | None = None,
) -> Eigenvalues:
    r"""The largest eigenvalues of a symmetric operator and their eigenvectors, by the Lanczos recurrence.

    Well-separated eigenvalues, such as the largest ones of a Hessian, converge in 10 to 30 steps. The smallest
    eigenvalues are the largest of ``lambda v: -Av``; they converge as fast only where they are separated as well. The
    ``bounds`` of the result show how far each value has converged.

    Args:
        key, operator, like: as for `lanczos`.
        count: the number of eigenvalues, at most ``steps``.
        steps: the number of products, at most n; the largest eigenvalues converge first. By default 30, or n if that
            is less.

    Raises:
        TypeError: without a key.
        ValueError: for ``steps`` above n, ``count`` above ``steps``, either < 1, and an operator that is not symmetric
            (as for `lanczos`; under ``jit`` the ``bounds`` are NaN).

    >>> A = jnp.diag(jnp.array([1.0, 2.0, 4.0]))
    >>> largest_eigenvalues(
    ...     jax.random.key(0), lambda v: A @ v, jnp.zeros(3), steps=3
    ... ).values.round(4)
    Array([4.], dtype=float32)

    Source: Golub & Van Loan 2013, Matrix Computations, chapter 10.
    """
    space = raveled(operator, like)
    steps = steps_for(space.n, steps)
    require(count <= steps, "count <= steps", f"count={count} and steps={steps}", "use more steps")
    found, asymmetry, scale = tridiagonalize(key, space, steps)
    values, vectors = ritz_pairs(found)
    values, vectors = values[::-1][:count], vectors[:, ::-1][:, :count]
    # The residual of a Ritz pair is the next off-diagonal entry of T times the last entry of its vector.
    bounds = if_symmetric(space, asymmetry, scale, found.residual * jnp.abs(vectors[-1]))
    return Eigenvalues(values, jax.vmap(space.to_tree)(dot(vectors.T, found.basis)), bounds, steps)


@functools.partial(register_dataclass, data_fields=["nodes", "weights"], meta_fields=["n"])
@dataclasses.dataclass(frozen=True, repr=False)
class SpectralDensity:
    r"""The distribution of the n eigenvalues of an operator, each with weight $1/n$, by quadrature.

    Attributes:
        nodes: for each of p random vectors k points on the axis of eigenvalues, (p, k).
        weights: the weights of the nodes, (p, k): nonnegative, each row sums to 1.
        n: the number of eigenvalues.

    >>> density = SpectralDensity(jnp.array([[0.0, 2.0]]), jnp.array([[0.75, 0.25]]), 8)
    >>> density
    SpectralDensity(8 eigenvalues from 0 to 2, mean 0.5, 1 vector, 2 steps)
    >>> # a quarter of a normal distribution of this width
    >>> print(f"{density(2.0, width=0.1):.3f}")
    0.997
    """

    nodes: Any
    weights: Any
    n: int

    def __call__(self, points: Any, *, width: Any = None) -> Float[Array, "*points"]:
        """The density at ``points``, smoothed by a normal distribution of standard deviation ``width``.

        By default ``width`` is a fiftieth of the range of the nodes. The density integrates to 1.
        """
        width = self._width() if width is None else jnp.asarray(width, self.nodes.dtype)
        points = jnp.asarray(points, self.nodes.dtype)
        away = (points[..., None] - self.nodes.reshape((1,) * points.ndim + (-1,))) / width
        bells = jnp.exp(-(away**2) / 2) / (width * (2 * jnp.pi) ** 0.5)
        return dot(bells, self.weights.reshape(-1)) / self.weights.shape[0]

    def trace(self, function: Callable[[Array], Array] = lambda eigenvalue: eigenvalue) -> TraceEstimate:
        r"""The trace of a function of the operator, $tr g(A) = ∑_i g(λ_i)$.

        ``density.trace(jnp.log)`` is the logarithm of a determinant, ``density.trace(jnp.square)`` a squared
        Frobenius norm. The standard error is that of the random vectors (NaN for one vector); a function
        that k steps do not resolve has an additional error.

        >>> SpectralDensity(
        ...     jnp.array([[0.0, 2.0]] * 2), jnp.array([[0.75, 0.25]] * 2), 8
        ... ).trace(jnp.square).value
        Array(8., dtype=float32)
        """
        samples = self.n * jnp.sum(function(self.nodes) * self.weights, axis=-1)
        rows, steps = self.nodes.shape
        return TraceEstimate(*mean_and_error(samples), "lanczos quadrature", rows * steps)

    def plot(self, ax: Any = None, *, width: Any = None, points: int = 400) -> Any:
        """Draw the smoothed density on a logarithmic axis, which shows single large eigenvalues; returns the axes.

        >>> SpectralDensity(
        ...     jnp.array([[0.0, 2.0]]), jnp.array([[0.75, 0.25]]), 8
        ... ).plot().get_xlabel()
        'eigenvalue'
        """
        ax = axes_or_new(ax)
        width = self._width() if width is None else width
        low, high = jnp.min(self.nodes) - 4 * width, jnp.max(self.nodes) + 4 * width
        values = jnp.linspace(low, high, points)
        ax.semilogy(values, self(values, width=width))
        ax.set_ylim(bottom=1e-2 / (self.n * float(high - low)))  # a hundredth of one eigenvalue, spread over the range
        ax.set_xlabel("eigenvalue")
        ax.set_ylabel(f"density of {self.n} eigenvalues")
        return ax

    def _width(self):
        span = jnp.max(self.nodes) - jnp.min(self.nodes)
        return jnp.where(span > 0, span / 50, 1)

    def __repr__(self):
        if not (has_values(self.nodes, 2) and has_values(self.weights, 2) and self.nodes.size):
            return f"SpectralDensity({describe(self.nodes)}, {self.n} eigenvalues)"
        rows, steps = self.nodes.shape
        nodes = np.asarray(self.nodes)
        mean = np.mean(np.sum(nodes * np.asarray(self.weights), axis=-1))
        return (
            f"SpectralDensity({self.n} eigenvalues from {short(nodes.min())} to {short(nodes.max())}, "
            f"mean {short(mean)}, {rows} vector{'s' * (rows > 1)}, {steps} steps)"
        )


@checked
def spectral_density(
    key: Key[Array, ""],
    operator: Callable[[PyTree], PyTree],
    like: PyTree,
    *,
    steps: PositiveInt | None = None,
    samples: PositiveInt = 8,
    chunk_size: PositiveInt = 1,
) -> SpectralDensity:
    r"""The density of eigenvalues of a symmetric operator by stochastic Lanczos quadrature.

    For each random vector $z$ of length 1, the Lanczos recurrence gives a Gauss quadrature of its spectral
    measure: the nodes are the eigenvalues of $T$, the weights the squared first entries of its eigenvectors.
    Polynomials up to degree 2 k - 1 are integrated exactly, and the mean over $z$ is the density of all eigenvalues.

    Args:
        key, operator, like: as for `lanczos`.
        steps: k, at most n; more steps resolve the density more finely. By default 50, or n if that is less.
        samples: the number of random vectors; ``steps * samples`` products are computed in total.
        chunk_size: the number of random vectors processed at once; each needs ``steps`` vectors like ``like``.

    Raises:
        TypeError: without a key.
        ValueError: for ``steps`` above n, a number < 1, and an operator that is not symmetric (as for `lanczos`;
            under ``jit`` the nodes are NaN).

    >>> A = jnp.diag(jnp.array([1.0, 2.0, 6.0]))
    >>> density = spectral_density(
    ...     jax.random.key(0), lambda v: A @ v, jnp.zeros(3), steps=3
    ... )
    >>> density.nodes[0].round(4)
    Array([1., 2., 6.], dtype=float32)

    Source: Ubaru, Chen & Saad 2017, Fast estimation of tr f(A) via stochastic Lanczos quadrature; Ghorbani, Krishnan &
    Xiao 2019, An investigation into neural net optimization via Hessian eigenvalue density (arXiv:1901.10159).
    """
    space = raveled(operator, like)
    steps = steps_for(space.n, steps, default=50)
    nodes, weights, _ = quadratures(key, space, steps, samples, chunk_size)
    return SpectralDensity(nodes, weights, space.n)
