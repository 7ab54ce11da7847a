r"""The Laplace approximation: a normal distribution of the params around their estimate, from the curvature there.

θ      the params that maximize the posterior density, n numbers in all
K      the mean of the Gauss-Newton matrices of the N examples, in a structure (`structured_curvature`)
τ      the prior precision: the prior is normal with mean 0 and covariance I / τ
P      the precision of the posterior, N K + τ I
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import register_dataclass
from jaxtyping import Array, Float, Key, PyTree

from jaxblocks.ad.curvature.kronecker_factors import WeightSharing
from jaxblocks.ad.curvature.risks import over_minibatches
from jaxblocks.ad.curvature.structures import Structure, StructuredCurvature, structured_curvature
from jaxblocks.ad.programs.arguments import explained_model, floating_params
from jaxblocks.ad.vectors.raveled import dot, raveled
from jaxblocks.backend.precision import widen
from jaxblocks.backend.varying import varying_like
from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.checks.values import check_values

__all__ = ["LaplacePosterior", "laplace_approximation"]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class LaplacePosterior:
    r"""The normal distribution $N(θ, P^{-1})$ of params; returned by `laplace_approximation`.

    Attributes:
        params: $θ$, the mean.
        curvature: $K$.
        log_likelihood: the sum of $-ℓ$ over the examples at $θ$.
        prior_precision: $τ$.
        examples: $N$.
    """

    params: PyTree
    curvature: StructuredCurvature
    log_likelihood: Float[Array, ""]
    prior_precision: Any
    examples: int = dataclasses.field(metadata={"static": True})

    @property
    def precision(self) -> StructuredCurvature:
        r"""$P = N K + τ I$."""
        return self.curvature.map(lambda values: self.examples * values + self.prior_precision)

    @property
    def _root(self) -> StructuredCurvature:
        """The root of the covariance, the power -1/2 of the precision."""
        return self.precision.map(lambda values: values**-0.5)

    @checked
    def sample(self, key: Key[Array, ""], *, samples: PositiveInt = 1) -> PyTree:
        r"""Params drawn from the posterior, $θ + P^{-1/2} ε$: like them, with ``samples`` rows.

        `predictive_covariance` is that of the linearized model at these params; the outputs of the model itself may
        vary far more.
        """
        root, space = self._root, raveled(self.curvature, self.params)

        def draw(key):
            noise = space.to_tree(jax.random.normal(key, (space.n,), space.dtype))
            return jax.tree.map(jnp.add, self.params, root(noise))

        return jax.vmap(draw)(jax.random.split(key, samples))

    @checked
    def predictive_covariance(self, model: Callable, x: PyTree) -> Array:
        r"""The covariance $J P^{-1} Jᵀ$ of the outputs of the linearized model at each example of ``x``.

        Returns:
            (M, C, C) for M examples with C outputs each. For regression add the variance of the noise.
        """
        params = varying_like(self.params, x)  # else JAX sums the gradients over the devices
        root, space = self._root, raveled(self.curvature, params)

        def one(x):
            outputs, pullback = jax.vjp(lambda params: explained_model(model)(params, x).reshape(-1), params)
            units = varying_like(jnp.eye(outputs.size, dtype=outputs.dtype), outputs)
            # J P^(-1/2) times its transpose: symmetric and without negative eigenvalues, up to rounding, unlike a
            # product with P^(-1).
            rows = jax.vmap(lambda unit: space.to_vector(root(*pullback(unit))))(units)
            return dot(rows, rows.T)

        return jax.vmap(one)(x)

    @checked
    def log_evidence(self, prior_precision: Any = None) -> Float[Array, ""]:
        r"""The logarithm of the marginal likelihood, $log p(y ∣ x, τ)$, differentiable in $τ$.

        .. math::

            log p(y ∣ x, θ) - (τ/2) |θ|^2 + (n/2) log τ - (1/2) log det(N K + τ I)

        Raises:
            ValueError: for a ``prior_precision`` that is not positive.
        """
        tau = self.prior_precision if prior_precision is None else prior_precision
        _check_precision(tau)
        at_tau = dataclasses.replace(self, prior_precision=tau)
        n = sum(leaf.size for leaf in jax.tree.leaves(self.params))
        prior = n / 2 * jnp.log(tau) - tau / 2 * _square(self.params)
        # The constants (2 pi)^(n / 2) of the prior and of the integral cancel.
        return self.log_likelihood + prior - at_tau.precision.log_determinant() / 2

    @checked
    def with_best_prior(self, *, steps: PositiveInt = 20) -> "LaplacePosterior":
        r"""The posterior with the prior precision that maximizes the evidence at these params.

        Fixed-point iteration $τ ← γ / |θ|^2$ with the effective number of params
        $γ = ∑_j Nλ_j / (Nλ_j + τ)$ (MacKay 1992).

        Raises:
            ValueError: for params that are all 0, where the evidence has no maximum; under ``jit`` the result is NaN.
        """
        message = "params that are not all 0, where the best prior precision is infinite; train the params first"
        check_values(_square(self.params) > 0, message)

        def update(_, tau):
            share = self.curvature.map(lambda values: self.examples * values / (self.examples * values + tau))
            return share.trace() / _square(self.params)

        dtype = jnp.result_type(*(block.values for block in self.curvature.blocks))
        start = jnp.asarray(self.prior_precision, dtype)
        start = varying_like(start, self.params, self.curvature)
        return dataclasses.replace(self, prior_precision=lax.fori_loop(0, steps, update, start))


def _check_precision(tau):
    message = "prior_precision > 0, got {tau}; it is the inverse of the variance of the prior"
    check_values(jnp.asarray(tau) > 0, message, tau=tau)


def _square(params):
    return sum(jnp.sum(jnp.square(widen(leaf))) for leaf in jax.tree.leaves(params))


@checked
def laplace_approximation(
    model: Callable[..., Any],
    loss: Callable[..., Any],
    params: PyTree,
    x: PyTree,
    y: PyTree,
    *,
    prior_precision: float | Float[Array, ""] = 1.0,
    structure: Structure = "kfac",
    weight_sharing: WeightSharing = "expand",
    max_size: PositiveInt = 2048,
    chunk_size: PositiveInt | None = None,
) -> LaplacePosterior:
    r"""The posterior of the params as a normal distribution around their estimate, with precision $N K + τ I$.

    For a model that is linear in the params and a Gaussian likelihood, ``structure="full"`` is the exact posterior, and
    `LaplacePosterior.log_evidence` the exact marginal likelihood.

    Args:
        model: ``model(params, x)``, the outputs for one example.
        loss: ``loss(outputs, y)``, the negative log-likelihood of one example: cross entropy, or ``gaussian_nll`` with
            the variance of the noise. The evidence contains its constants.
        params: $θ$, which minimize the summed loss plus $τ|θ|^2/2$: of the mean loss that
            training minimizes, the penalty is $τ|θ|^2/(2N)$.
        x, y: the training data, with the N examples on the first axis of each array.
        prior_precision: $τ$; `LaplacePosterior.with_best_prior` finds it from the data.
        structure, weight_sharing, max_size, chunk_size: as for `structured_curvature`.

    Raises:
        ValueError, TypeError: as for `structured_curvature`; and for a ``prior_precision`` that is not positive.

    >>> x, y = jnp.array([[1.0], [2.0]]), jnp.array([[1.0], [2.0]])
    >>> nll = lambda outputs, y: jnp.sum((outputs - y) ** 2) / 2 + jnp.log(2 * jnp.pi) / 2
    >>> model = lambda w, x: x @ w
    >>> @jax.jit
    ... def variance_and_evidence(w):
    ...     posterior = laplace_approximation(model, nll, w, x, y)
    ...     return posterior.predictive_covariance(
    ...         model, jnp.array([[3.0]])
    ...     ), posterior.log_evidence()
    >>> # the variance is 9 / (1 + 4 + 1)
    >>> variance, evidence = variance_and_evidence(jnp.array([[5 / 6]]))
    >>> print(f"{variance.item():.4f} {evidence:.4f}")
    1.5000 -3.1504

    Source: MacKay 1992, A practical Bayesian framework for backpropagation networks (doi:10.1162/neco.1992.4.3.448);
    Daxberger et al. 2021, Laplace redux (arXiv:2106.14806); Immer, Korzepa & Bauer 2021, the linearized model
    (arXiv:2008.08400).
    """
    params = varying_like(floating_params(params), x, y)
    _check_precision(prior_precision)
    options: dict = dict(structure=structure, weight_sharing=weight_sharing, max_size=max_size, chunk_size=chunk_size)
    curvature = structured_curvature(model, loss, params, x, y, **options)
    examples = jax.tree.leaves(x)[0].shape[0]

    def log_likelihood(batch):
        return -jnp.mean(widen(jax.vmap(lambda x, y: loss(model(params, x), y))(*batch)))

    mean = over_minibatches(log_likelihood, (x, y), batch_size=chunk_size or examples)()
    return LaplacePosterior(params, curvature, examples * mean, prior_precision, examples)
