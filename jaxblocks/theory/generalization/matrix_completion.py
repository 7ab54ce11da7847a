"""Matrix completion by products of matrices: the implicit bias of depth toward low rank."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Array, Key

from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.plotting.axes import GRAY, PALETTE, axes_or_new
from jaxblocks.theory.arrays import real_array
from jaxblocks.theory.generalization.data import Numbers, integers
from jaxblocks.theory.generalization.matrix_products import factor_gradients, product

__all__ = ["Completion", "matrix_completion"]


@dataclass(frozen=True, repr=False)
class Completion:
    """The record of `matrix_completion`.

    Attributes:
        depths: numbers of factors, ``(depths,)``.
        singular_values: the singular values of the completed matrix, divided by the largest one of the target,
            ``(depths, n)``.
        target_values: the singular values of the target, divided by the largest one, ``(n,)``.
        effective_rank: the exponential of the entropy of the normalized singular values, ``(depths,)``.
        observed_error, unobserved_error: root mean square errors, divided by the root mean square of the entries of the
            target, ``(depths,)``.
        matrices: the completed matrices, ``(depths, rows, columns)``.
    """

    depths: np.ndarray
    singular_values: np.ndarray
    target_values: np.ndarray
    effective_rank: np.ndarray
    observed_error: np.ndarray
    unobserved_error: np.ndarray
    matrices: np.ndarray

    def plot(self, ax=None):
        """Plot the singular values for each depth; returns the axes.

        >>> options = dict(depths=(1,), steps=10, key=jax.random.key(0))
        >>> found = matrix_completion(np.ones((2, 2)), np.eye(2) > 0, **options)
        >>> found.plot().get_ylabel()
        'singular value'
        """
        ax = axes_or_new(ax)
        number = np.arange(1, len(self.target_values) + 1)
        ax.plot(number, self.target_values, "k*", markersize=10, label="target")
        looks = itertools.cycle(
            zip((PALETTE[0], PALETTE[1], PALETTE[2], GRAY), "o^sD", ("-", "--", "-.", ":"), strict=True)
        )
        for depth, values in zip(self.depths, self.singular_values, strict=True):
            color, marker, style = next(looks)
            look = dict(color=color, marker=marker, linestyle=style, markersize=4, linewidth=1)
            ax.plot(number, values, label=_factors(depth), **look)
        ax.set(xlabel="number", ylabel="singular value")
        ax.legend()
        return ax

    def __repr__(self):
        each = zip(self.depths, self.effective_rank, self.unobserved_error, strict=True)
        return "Completion(" + "; ".join(f"{_factors(d)}: rank {r:.3g}, unobserved {e:.2g}" for d, r, e in each) + ")"


def _factors(depth):
    return "1 factor" if depth == 1 else f"{depth} factors"


@checked
def matrix_completion(
    target: Numbers,
    observed: Numbers,
    *,
    key: Key[Array, ""],
    depths: Sequence[int] = (1, 2, 3),
    scale: float = 1e-3,
    steps: PositiveInt = 4000,
) -> Completion:
    r"""Matrix completion by gradient descent on a product of square matrices: depth is biased toward low rank.

    It minimizes half the squared error on the observed entries of $W_1 ⋯ W_L$. With one factor the
    unobserved entries keep their initial values. With several factors, large singular values grow faster than small
    ones. This effect increases with depth, so only few singular values grow: a bias of the algorithm, not of the loss.

    Args:
        target: the matrix to complete, ``(n, n)``.
        observed: ``True`` where the entry is known, ``(n, n)``.
        key: the random key of the initial factors.
        depths: numbers of factors.
        scale: the scale of the initial product, relative to the largest singular value of the target.
        steps: the maximal number of steps, of size 1 / (2 depth) for a target whose largest singular value is 1; the
            run stops when the observed entries fit.

    >>> target = np.outer([1.0, 2.0, 3.0], [1.0, 1.0, 2.0])
    >>> found = matrix_completion(target, target != 1, key=jax.random.key(0))
    >>> (found.unobserved_error < 0.05).tolist()
    [False, True, True]

    Source: Arora, Cohen, Hu & Luo 2019, Implicit regularization in deep matrix factorization,
    arXiv:1905.13655; Huszar, DeepNN lecture 3.
    """
    target, observed = real_array("target", target), np.asarray(observed, bool)
    is_square = target.ndim == 2 and target.shape[0] == target.shape[1] and bool(target.any())
    fits = is_square and observed.shape == target.shape
    repair = f"pass for instance np.ones({target.shape}, bool) as the mask"
    if not is_square:
        repair = "pass for instance target=np.outer([1.0, 2.0], [1.0, 3.0])"
        if target.ndim == 2 and target.any():
            repair = f"pad it with zeros to shape {(max(target.shape),) * 2}, which are not observed"
    expected = "a square matrix other than 0 and a mask of its shape"
    require(fits, expected, f"{target.shape} and {observed.shape}", repair)
    require(scale > 0, "scale > 0", scale, "pass for instance 1e-3, as at 0 a product of factors has gradient 0")
    n, unit = len(target), np.linalg.norm(target, 2)
    # With a largest singular value of 1, one step size is stable for every target.
    goal, found = target / unit, []
    for depth in integers("depths", depths):
        draws = np.asarray(jax.random.normal(jax.random.fold_in(key, depth), (depth, n, n)), np.float64)
        # The factors are proportional to scale^(1 / depth), so that the products of all depths begin at about the same
        # size.
        factors = list(draws * scale ** (1 / depth) / math.sqrt(n))
        for _ in range(steps):
            error = np.where(observed, product(factors) - goal, 0)
            # Exact on the observed entries: the gradient is 0 from here on.
            if np.abs(error).max() < 1e-6:
                break
            gradients = factor_gradients(factors, error)
            # The smoothness near a product of norm 1 grows with the number of factors.
            factors = [w - g / (2 * depth) for w, g in zip(factors, gradients, strict=True)]
        found.append(product(factors))
    values = np.array([np.linalg.svd(w, compute_uv=False) for w in found])
    # The effective rank is the exponential of the entropy of the singular values; a share of 0 adds 0 to it.
    shares = values / values.sum(1, keepdims=True)
    rank = np.exp(-np.sum(np.where(shares > 0, shares * np.log(np.where(shares > 0, shares, 1)), 0), 1))
    size = lambda mask: np.array(
        [np.sqrt(np.mean((w - goal)[mask] ** 2) / np.mean(goal**2)) if mask.any() else 0.0 for w in found]
    )
    own = np.linalg.svd(goal, compute_uv=False)
    return Completion(np.array(depths), values, own, rank, size(observed), size(~observed), unit * np.array(found))
