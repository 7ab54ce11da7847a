"""The noise of minibatch gradients, and the stationary variance that results from it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Key, PyTree

from jaxblocks.ad.per_example.gradients import per_example_gradients
from jaxblocks.ad.per_example.noise import gradient_noise
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.plotting.axes import GRAY, PALETTE, axes_or_new
from jaxblocks.theory.generalization.data import integers

__all__ = ["BatchNoise", "batch_noise", "stationary_variance"]


@dataclass(frozen=True, repr=False)
class BatchNoise:
    """The record of `batch_noise`.

    Attributes:
        batch_sizes: B, ``(sizes,)``.
        predicted: the mean squared distance of the gradient of a batch from the gradient of all data, by the formula.
        measured: the same distance, measured over random batches.
        squared_norm: the squared norm of the gradient of all data.
    """

    batch_sizes: np.ndarray
    predicted: np.ndarray
    measured: np.ndarray
    squared_norm: float

    def plot(self, ax=None):
        """Plot the noise and the squared gradient over the batch size, both axes logarithmic; returns the axes.

        >>> of_sizes = np.array([1, 2]), np.array([2.0, 1.0]), np.array([2.1, 0.9])
        >>> BatchNoise(*of_sizes, 1.0).plot().get_xlabel()
        'batch size'
        """
        ax = axes_or_new(ax)
        ax.loglog(self.batch_sizes, self.predicted, "-", color=PALETTE[1], label="formula")
        ax.loglog(self.batch_sizes, self.measured, "o", color=PALETTE[0], markersize=4, label="random batches")
        ax.axhline(self.squared_norm, color=GRAY, linestyle=":", label="squared norm of the gradient")
        ax.set(xlabel="batch size", ylabel="variance of the gradient")
        ax.legend()
        return ax

    def __repr__(self):
        return (
            f"BatchNoise(variance {self.predicted[0]:.4g} at batch size {self.batch_sizes[0]} to "
            f"{self.predicted[-1]:.4g} at {self.batch_sizes[-1]}, squared gradient {self.squared_norm:.4g})"
        )


@checked
def batch_noise(
    loss: Callable[..., Any],
    params: PyTree,
    *data: PyTree,
    key: Key[Array, ""],
    batch_sizes: Sequence[int] | None = None,
    samples: PositiveInt = 500,
) -> BatchNoise:
    r"""The variance of minibatch gradients for each batch size, by formula and over random batches.

    Without replacement $E ‖g_B - g‖^2 = ((tr Σ) / B) ((N - B) / (N - 1))$; see ``gradient_noise``.

    Args:
        loss, params, data: as for ``gradient_noise``: the loss of one example.
        key: the random key.
        batch_sizes: by default the powers of two below N.
        samples: the number of batches of each size.

    >>> x, key = jnp.arange(4.0), jax.random.key(0)
    >>> noise = batch_noise(lambda w, x: w * x, 1.0, x, key=key, batch_sizes=[1, 2])
    >>> noise.predicted.round(6).tolist()
    [1.25, 0.416667]

    Source: McCandlish et al. 2018, An empirical model of large-batch training (arXiv:1812.06162); Huszar, DeepNN
    lecture 3 (the effect of gradient noise).
    """
    full = gradient_noise(loss, params, *data, batch_size=1)
    count = full.examples
    sizes = [2**k for k in range(count.bit_length()) if 2**k < count] if batch_sizes is None else batch_sizes
    sizes = np.array(integers("batch_sizes", sizes))
    repair = f"pass batch_sizes={sizes[sizes <= count].tolist() or [count]}"
    require(sizes.max() <= count, f"batch sizes from 1 to {count}, the number of examples", str(sizes), repair)
    # Var = (n - B) / (B (n - 1)) trace for batches without replacement: 0 for the whole data.
    shares = (count - sizes) / (sizes * max(1, count - 1))
    leaves = jax.tree.leaves(per_example_gradients(loss, params, *data))
    gradients = np.concatenate([np.asarray(leaf, np.float64).reshape(count, -1) for leaf in leaves], 1)
    # Deviations from the full gradient, whose mean over a batch is the noise.
    gradients = gradients - gradients.mean(0)
    # One permutation for each sample; its first B entries are a batch without replacement, for every B.
    orders = np.argsort(np.asarray(jax.random.uniform(key, (samples, count))), 1)
    measured = [np.mean(np.sum(gradients[orders[:, :size]].mean(1) ** 2, -1)) for size in sizes]
    return BatchNoise(sizes, shares * float(full.trace), np.array(measured), float(full.squared_norm))


def stationary_variance(step_size: float, curvature: float, noise: float) -> float:
    r"""The stationary variance of stochastic gradient descent on $(λ/2) x^2$.

    .. math::

        x_{t+1} = x_t - η (λ x_t + ξ_t),
        Var x_∞ = (η σ^2) / (λ (2 - η λ))

    with noise of variance $σ^2$. It is approximately proportional to the step size: the iterates converge
    only if the step size decreases to 0, or the batch size grows.

    Args:
        step_size, curvature, noise: eta, lambda and sigma^2.

    Raises:
        ValueError: unless 0 < step_size < 2 / curvature; otherwise no stationary variance exists.

    >>> stationary_variance(0.5, 2.0, 4.0)
    1.0

    Source: Mandt, Hoffman & Blei 2017, Stochastic gradient descent as approximate Bayesian inference, arXiv:1704.04289.
    """
    require(curvature > 0, "curvature > 0", curvature, "without curvature the variance grows without bound")
    require(noise >= 0, "noise >= 0, a variance", noise, "pass sigma^2, such as 1.0")
    repair = f"pass for instance {1 / curvature:.3g}; from the limit on the variance grows without bound"
    require(0 < step_size < 2 / curvature, f"0 < step_size < 2 / curvature = {2 / curvature:.6g}", step_size, repair)
    # From v = (1 - eta lambda)^2 v + eta^2 noise.
    return step_size * noise / (curvature * (2 - step_size * curvature))
