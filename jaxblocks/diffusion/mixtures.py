r"""Gaussian mixtures: data with closed forms for the density, the score and the optimal denoiser at each time.

A mixture of Gaussians with noise is a mixture of Gaussians with means $αμ_k$ and covariances
$α^2 C_k + σ^2 I$. Samplers are tested on them, and learned denoisers are compared with them.

Axis letters: ``k`` components, ``d`` features of a point, ``...`` batch.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from jaxblocks.backend.matrix_functions import eigenvectors
from jaxblocks.backend.precision import widen
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.checks.values import checkable
from jaxblocks.diffusion.prediction_types import PredictionType, combine
from jaxblocks.diffusion.schedules import Schedule, check_schedule, checked_time
from jaxblocks.probabilities import logsumexp, softmax

__all__ = ["GaussianMixture", "gaussian_mixture"]


class GaussianMixture(NamedTuple):
    r"""A mixture of Gaussians, $p(x) = ∑_k w_k N(x; μ_k, C_k)$, the result of `gaussian_mixture`.

    It is a pytree of arrays.

    Args:
        weights: $w_k$, of sum 1.
        means: $μ_k$.
        variances, axes: the $c_k$, and the $U_k$, whose columns are the principal axes, of the covariances
            $C_k = U_k diag(c_k) U_kᵀ$.
    """

    weights: Float[Array, " k"]
    means: Float[Array, "k d"]
    variances: Float[Array, "k d"]
    axes: Float[Array, "k d d"]

    @checked
    def sample(self, key: Key[Array, ""], n: PositiveInt) -> Float[Array, "n d"]:
        """``n`` independent points."""
        which, noise = jax.random.split(key)
        k = jax.random.choice(which, len(self.weights), (n,), p=self.weights)
        z = jax.random.normal(noise, (n, self.means.shape[1]), self.means.dtype) * jnp.sqrt(self.variances)[k]
        return self.means[k] + _apply(self.axes[k], z)

    def mean(self) -> Float[Array, " d"]:
        """The mean of the whole mixture."""
        return _apply(self.means.T, self.weights)

    def covariance(self) -> Float[Array, "d d"]:
        """The covariance of the whole mixture, including the covariance of its means."""
        centered = self.means - jnp.broadcast_to(self.mean(), self.means.shape)
        # Sum of w_k A_k diag(c_k) A_k^T, with the axes as columns of A_k.
        within = jnp.einsum("k,kij,kj,klj->il", self.weights, self.axes, self.variances, self.axes, precision="highest")
        return within + jnp.einsum("k,ki,kj->ij", self.weights, centered, centered, precision="highest")

    @checked
    def at(self, t: float | int | Float[Array, ""], schedule: Schedule) -> "GaussianMixture":
        r"""The mixture at one time: the distribution of $x_t$."""
        check_schedule(schedule)
        t = checked_time(t, self.means)
        a, s = (c.astype(self.means.dtype).reshape(()) for c in (schedule.signal(t), schedule.noise(t)))
        # The noise has the same variance in all directions, so that the axes stay.
        return self._replace(means=a * self.means, variances=a * a * self.variances + s * s)

    @checked
    def log_density(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch"]:
        r"""$log p(x)$, in nats."""
        return logsumexp(self._log_joint(x)[0])

    @checked
    def responsibilities(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch k"]:
        r"""The probability of each component, given x: $w_k N(x; μ_k, C_k) / p(x)$."""
        return softmax(self._log_joint(x)[0], -1)

    @checked
    def score(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        r"""The gradient of the log density: $∇_x log p(x) = ∑_k r_k C_k^{-1} (μ_k - x)$."""
        log_joint, z = self._log_joint(x)
        # C_k^-1 (mu_k - x) in the coordinates of the axes, where C_k is diagonal.
        return self._mix(log_joint, -z / jnp.broadcast_to(self.variances, z.shape))

    @checked
    def predictor(self, schedule: Schedule, prediction_type: PredictionType) -> Callable:
        r"""The optimal denoiser for these data: ``predict(x, t)``, the conditional mean of the predicted quantity.

        With $r_k$ the responsibilities and $Λ_k = (α^2 C_k + σ^2 I)^{-1}$,

        .. math::

            E[x_0 ∣ x] = ∑_k r_k ( μ_k + α C_k Λ_k (x - αμ_k) ),
            E[ε ∣ x] = σ ∑_k r_k Λ_k (x - αμ_k)

        and the other types follow from these two. Both are computed without division by $α$ or
        $σ$, so they are exact at both ends; only the velocity is NaN where the rate of the noise is
        infinite.
        """
        check_schedule(schedule)

        def predict(x, t):
            self._require_points(x)
            wide = widen(x)
            t = checked_time(t, wide)
            one = lambda value: value.reshape(value.shape + (1,) * (x.ndim + 1 - value.ndim)).astype(wide.dtype)
            a, s = one(schedule.signal(t)), one(schedule.noise(t))  # (..., 1, 1)
            means, c = (jnp.expand_dims(m.astype(wide.dtype), range(x.ndim - 1)) for m in (self.means, self.variances))
            variances = a * a * c + s * s  # (..., k, d)
            log_joint, z = self._log_joint(wide, a * means, variances)
            scaled = z / variances
            a, s = a[..., 0], s[..., 0]  # (..., 1)
            if prediction_type == "score":
                return self._mix(log_joint, -scaled).astype(x.dtype)
            eps = s * self._mix(log_joint, scaled)
            if prediction_type == "eps":
                return eps.astype(x.dtype)
            at_means = jnp.broadcast_to(means, z.shape)
            along = jnp.broadcast_to(c, z.shape) * scaled
            x0 = self._mix(log_joint, a[..., None] * along, at_means)
            return combine(x0, eps, t, schedule, prediction_type).astype(x.dtype)

        return predict

    def _require_points(self, x):
        floating = jnp.issubdtype(x.dtype, jnp.floating)
        require(floating, "floating-point points", x, "convert them with x.astype(jnp.float32)", error=TypeError)
        d = self.means.shape[1]
        repair = "pass points whose last axis holds the features"
        require(len(x.shape) > 0 and x.shape[-1] == d, f"points of {d} features", x, repair)

    def _log_joint(self, x, means=None, variances=None):
        """The logarithm of w_k N(x; ...) (..., k), and x - mean along the axes of each component (..., k, d)."""
        self._require_points(x)
        lead = range(x.ndim - 1)
        means = jnp.expand_dims(self.means, lead) if means is None else means
        variances = jnp.expand_dims(self.variances, lead) if variances is None else variances
        differences = x[..., None, :] - means
        # In the coordinates of the axes of a component its covariance is diagonal at every time, so nothing is
        # factorized again.
        z = jnp.einsum("...ki,kij->...kj", differences, self.axes.astype(differences.dtype), precision="highest")
        logs = -0.5 * (z * (z / variances) + jnp.log(variances) + math.log(2 * math.pi)).sum(-1)
        return logs + jnp.expand_dims(jnp.log(self.weights.astype(differences.dtype)), lead), z

    def _mix(self, log_joint, along, plain=None):
        """The mean over components of vectors in the coordinates of their axes (plus the mean of plain vectors)."""
        r = softmax(log_joint, -1)
        mixed = jnp.einsum("...k,...kj,kij->...i", r, along, self.axes.astype(along.dtype), precision="highest")
        return mixed if plain is None else mixed + jnp.einsum("...k,...ki->...i", r, plain, precision="highest")


@checked
def gaussian_mixture(
    means: Float[Array, "k d"],
    covariances: Float[Array, "..."],
    weights: Float[Array, " k"] | None = None,
) -> GaussianMixture:
    r"""A mixture of Gaussians: $p(x) = ∑_k w_k N(x; μ_k, C_k)$.

    Args:
        means: $μ_k$.
        covariances: matrices $C_k$, ``(k, d, d)``, or variances ``(k,)`` of isotropic components.
        weights: $w_k$, by default equal.

    Derivatives with respect to matrices $C_k$ are NaN where two eigenvalues of one are equal; those with respect to
    variances exist.

    Raises:
        ValueError: for incompatible shapes, covariances that are not symmetric and positive definite, weights that are
            not positive with sum 1.
        TypeError: for integers.

    >>> from jaxblocks.diffusion import flow_matching_schedule
    >>> data = gaussian_mixture(jnp.array([[-2.0], [2.0]]), jnp.array([0.25, 0.25]))
    >>> print(data.mean(), data.covariance())
    [0.] [[4.25]]
    >>> predict = jax.jit(data.predictor(flow_matching_schedule(), "x0"))
    >>> print(predict(jnp.array([[1.0], [0.0]]), 0.5).round(1))  # x = 1 is half of x0 = 2
    [[2.]
     [0.]]

    Source: the closed forms follow from Gaussian conditioning; as a test case, Karras et al. 2022, arXiv:2206.00364.
    """
    k, d = means.shape
    expected = f"covariances of shape ({k},) or ({k}, {d}, {d}) for means ({k}, {d})"
    require(covariances.shape in ((k,), (k, d, d)), expected, covariances, "give each component its own")
    weights = jnp.full(k, 1 / k, means.dtype) if weights is None else weights
    known = checkable(weights, False)
    if known is not None and not ((known > 0).all() and abs(known.sum() - 1) < 1e-5):
        require(False, "positive weights of sum 1", str(weights), "divide by their sum")
    if covariances.ndim == 1:
        variances = jnp.broadcast_to(covariances[:, None], (k, d))
        # Any orthonormal axes fit equal variances.
        axes = jnp.broadcast_to(jnp.eye(d, dtype=means.dtype), (k, d, d))
    else:
        known = checkable(covariances, False)
        symmetric = known is None or (abs(known - known.mT) <= 1e-6 + 1e-5 * abs(known.mT)).all()
        repair = "pass (covariances + covariances.mT) / 2"
        require(symmetric, "symmetric covariances", "some that differ from their transposes", repair)
        variances, axes = eigenvectors(covariances)
    known = checkable(variances, False)
    if known is not None and not (known > 0).all():
        got = f"one with a variance of {known.min()}"
        require(False, "positive definite covariances", got, "add a small multiple of the identity")
    return GaussianMixture(weights.astype(means.dtype), means, variances.astype(means.dtype), axes.astype(means.dtype))


def _apply(matrix, vector):
    return jnp.einsum("...ij,...j->...i", matrix, vector, precision="highest")
