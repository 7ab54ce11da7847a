"""Deep linear nets: the conserved quantities of gradient flow, and their drift under gradient descent."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxblocks.checks.errors import require
from jaxblocks.theory.arrays import real_array
from jaxblocks.theory.generalization.data import Numbers
from jaxblocks.theory.generalization.matrix_products import factor_gradients, product

__all__ = ["Drift", "balancedness", "conservation_drift"]


def balancedness(kernels: Sequence[Numbers]) -> list[np.ndarray]:
    r"""The matrices that gradient flow conserves in a deep linear net, $W_{l+1}ᵀ W_{l+1} - W_l W_lᵀ$.

    The net is $x ↦ W_L ⋯ W_1 x$; the loss is arbitrary. The traces are also conserved in nets with
    rectifiers (``norm_differences``).

    Args:
        kernels: (in, out) each; $W_l$ is the transpose of the l-th.

    >>> balancedness([np.array([[2.0]]), np.array([[3.0]])])
    [array([[5.]])]

    Source: Arora, Cohen, Golowich & Hu 2019, A convergence analysis of gradient descent for deep linear neural
    networks, arXiv:1810.02281; Huszar, DeepNN lecture 3.
    """
    kernels = _chain(kernels)
    return [after @ after.T - before.T @ before for before, after in itertools.pairwise(kernels)]


@dataclass(frozen=True, repr=False)
class Drift:
    """The record of `conservation_drift`.

    Attributes:
        step_sizes: eta, ``(sizes,)``.
        drifts: the largest change of an entry of the conserved matrices, ``(sizes,)``.
        losses: the final losses, ``(sizes,)``.
        time: steps times eta.
    """

    step_sizes: np.ndarray
    drifts: np.ndarray
    losses: np.ndarray
    time: float

    @property
    def order(self) -> float:
        """The power of eta to which the drift is proportional, estimated from the two smallest step sizes."""
        # The slope between two points on logarithmic axes.
        (d1, d2), (e1, e2) = (v[np.argsort(self.step_sizes)[:2]] for v in (self.drifts, self.step_sizes))
        return float(np.log(d2 / d1) / np.log(e2 / e1))

    def __repr__(self):
        pairs = ", ".join(f"{d:.2g} at {e:g}" for d, e in zip(self.drifts, self.step_sizes, strict=True))
        return f"Drift({pairs})"


def conservation_drift(
    kernels: Sequence[Numbers],
    x: Numbers,
    y: Numbers,
    *,
    step_sizes: Sequence[float] = (1e-2, 1e-3, 1e-4),
    time: float = 1.0,
) -> Drift:
    r"""The drift, under gradient descent, of the matrices that gradient flow conserves: proportional to the step size.

    The loss is $(1 / (2n)) ‖X W - Y‖^2$, W the product of the kernels; see `balancedness`. A step changes
    the conserved matrices by $η^2$ times products of gradients, and there are time / eta steps.

    Args:
        kernels: (in, out) each.
        x, y: ``(n, in)`` and ``(n, out)``.
        step_sizes: step sizes eta; each run has round(time / eta) steps.
        time: steps times eta.

    >>> drift = conservation_drift(
    ...     [np.eye(2), np.eye(2)], np.eye(2), 2 * np.eye(2), step_sizes=(1e-1, 1e-2)
    ... )
    >>> bool(drift.drifts[0] < 1e-12)  # balanced and symmetric: no drift
    True

    Source: Arora, Cohen, Golowich & Hu 2019, arXiv:1810.02281; Huszar, DeepNN lecture 3.
    """
    kernels = _chain(kernels)
    x, y = real_array("x", x), real_array("y", y)
    fits = x.size > 0 and x.shape[1:] == kernels[0].shape[:1] and y.shape == (len(x), kernels[-1].shape[1])
    wanted = f"x (n, {kernels[0].shape[0]}) and y (n, {kernels[-1].shape[1]}), as for the kernels"
    repair = "write x[:, None] for one input, and y[:, None] for one output"
    if x.ndim == y.ndim == 2:
        repair = f"pass kernels from {x.shape[1]} to {y.shape[1]} features"
        repair = "pass as many rows in x as in y" if len(x) != len(y) else repair if len(x) else "pass a row of each"
    require(fits, wanted, f"{x.shape} and {y.shape}", repair)
    positive = np.ndim(step_sizes) == 1 and len(step_sizes) > 0 and min(step_sizes) > 0 and time > 0
    repair = "pass for instance step_sizes=(0.01, 0.001) and time=1.0"
    require(positive, "step sizes > 0 and a time > 0", f"{step_sizes} and {time}", repair)
    # The gradient depends on the data only through these two, so a step costs nothing per example.
    gram, cross = x.T @ x / len(x), x.T @ y / len(x)
    drifts, losses = [], []
    for eta in step_sizes:
        moved = list(kernels)
        # Gradient flow until this time: more steps for smaller step sizes.
        for _ in range(max(1, round(time / eta))):
            gradients = factor_gradients(moved, gram @ product(moved) - cross)
            moved = [w - eta * g for w, g in zip(moved, gradients, strict=True)]
        pairs = zip(balancedness(moved), balancedness(kernels), strict=True)
        drifts.append(max((float(np.abs(a - b).max()) for a, b in pairs), default=0.0))
        losses.append(float(np.sum((x @ product(moved) - y) ** 2) / (2 * len(x))))
    return Drift(np.array(step_sizes, float), np.array(drifts), np.array(losses), time)


def _chain(kernels):
    kernels = [real_array("each kernel", kernel) for kernel in kernels]
    matrices = len(kernels) > 0 and all(kernel.ndim == 2 for kernel in kernels)
    fits = matrices and all(a.shape[1] == b.shape[0] for a, b in itertools.pairwise(kernels))
    got = f"shapes {[kernel.shape for kernel in kernels]}"
    turned = matrices and all(a.shape[0] == b.shape[1] for a, b in itertools.pairwise(kernels))
    repair = "transpose each, kernel.T" if turned else "pass for instance [np.eye(2), np.ones((2, 1))]"
    require(fits, "kernels (in, out) of layers in series", got, repair)
    return kernels
