r"""Maxima and minima by rectifiers: max(0, x, y), which needs two hidden layers, and narrow deep nets for strings."""

from collections.abc import Iterable

import numpy as np
from jax.typing import DTypeLike

from jaxblocks.activations import relu
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import checked
from jaxblocks.core.pairs import Layer
from jaxblocks.theory.arrays import ArrayLike, real_array
from jaxblocks.theory.explicit_weights import explicit_mlp

__all__ = ["max_min_string", "max_zero_x_y"]


@checked
def max_zero_x_y(*, param_dtype: DTypeLike | None = None) -> tuple[Layer, tuple]:
    r"""A net for max(0, x, y) with two hidden layers, of 3 and 1 rectifiers; one hidden layer is not enough.

    .. math::

        max(0, x, y) = ReLU(ReLU(x - y) + ReLU(y) - ReLU(-y))

    A unit of a single hidden layer has a kink along a whole line, with the same jump of the gradient everywhere on it.
    The kinks of max(0, x, y) are half-lines: on x = 0 there is a kink at y = -1, and none at y = 1.

    Args:
        param_dtype: by default float64 where JAX has it enabled, else float32.

    Returns:
        A pair ``(..., 2)`` to ``(..., 1)``, and its params.

    >>> net, params = max_zero_x_y()
    >>> net.apply(params, jnp.array([[-1.0, -2.0], [3.0, 1.0], [-1.0, 4.0]]))[:, 0]
    Array([0., 3., 4.], dtype=float32)

    Source: Arora et al. 2018, Understanding deep neural networks with rectified linear units (arXiv:1611.01491); Diehl
    2023, Remark 1.4.
    """
    # max(x, y) = relu(x - y) + relu(y) - relu(-y); the last activation takes the maximum with 0.
    maps = ([[1, 0, 0], [-1, 1, -1]], [0, 0, 0]), ([[1], [1], [-1]], [0])
    return explicit_mlp(*maps, last_activation=relu, param_dtype=param_dtype)


@checked
def max_min_string(
    kernel: ArrayLike,
    bias: ArrayLike,
    operations: Iterable[str],
    *,
    radius: int | float,
    param_dtype: DTypeLike | None = None,
) -> tuple[Layer, tuple]:
    r"""A string of maxima and minima of affine functions by a net whose hidden layers have d + 1 units.

    $y_0 = ℓ_0(x)$ and $y_i = max(y_{i-1}, ℓ_i(x))$ or $min(y_{i-1}, ℓ_i(x))$, where $ℓ_i(x) = ⟨w_i, x⟩ + b_i$. Since
    $max(y, ℓ) = ℓ + ReLU(y - ℓ)$ and $min(y, ℓ) = ℓ - ReLU(ℓ - y)$, each takes one hidden layer: one unit for y, and d
    units for x + ``radius``, which is positive. Such strings approximate every continuous function, so width d + 1 is
    enough for scalar outputs.

    Args:
        kernel: the $w_i$ in its columns, ``(d, n + 1)``.
        bias: the $b_i$, ``(n + 1,)``.
        operations: n operations, each ``"max"`` or ``"min"``.
        radius: the largest $|x_j|$ for which the net computes the string.
        param_dtype: by default float64 where JAX has it enabled, else float32.

    Returns:
        A pair ``(..., d)`` to ``(..., 1)``, and its params.

    Raises:
        ValueError: if shapes and operations do not match, an operation is unknown, or the radius is negative or not
            finite.

    >>> net, params = max_min_string(
    ...     [[1.0, -1.0, 0.0]], [0.0, 0.0, 2.0], ["max", "min"], radius=8.0
    ... )
    >>> net.apply(params, jnp.array([[-1.0], [0.5], [5.0]]))[:, 0]  # min(max(x, -x), 2)
    Array([1. , 0.5, 2. ], dtype=float32)

    Source: Hanin & Sellke 2017, Approximating continuous functions by ReLU nets of minimal width,
    arXiv:1710.11278; Diehl 2023, Theorem 1.7, which omits "scalar": several outputs need width up to d + d_out.
    """
    w, b, operations = real_array("kernel", kernel), real_array("bias", bias), list(operations)
    fits = w.ndim == 2 and b.shape == w.shape[1:] and len(operations) == len(b) - 1 >= 1
    got = f"shapes {w.shape}, {b.shape} and {len(operations)} operations"
    n = max(1, len(operations))
    repair = f"for {n} operations pass a kernel of {n + 1} columns and a bias of {n + 1} entries"
    require(fits, "a kernel (d, n + 1), a bias (n + 1,) and n >= 1 operations", got, repair)
    repair = f"write {['min' if 'min' in str(one).lower() else 'max' for one in operations]}"
    require(set(operations) <= {"max", "min"}, 'operations among "max" and "min"', str(operations), repair)
    require(0 <= radius < np.inf, "a finite radius >= 0", radius, "pass the largest |x_j|")
    d = len(w)
    # Affine functions of the hidden units h of the previous layer, as (matrix, offset): x = X h + x0 and y = y h + y0.
    X, x0, y, y0 = np.eye(d), np.zeros(d), w[:, 0], b[0]
    maps: list = []
    for i, operation in enumerate(operations, 1):
        sign = 1 if operation == "max" else -1
        unit, offset = sign * (y - X @ w[:, i]), sign * (y0 - x0 @ w[:, i] - b[i])
        # x + radius >= 0 passes through the rectifiers unchanged.
        maps.append((np.column_stack([X, unit]), np.append(x0 + radius, offset)))
        # x is recovered from the units of x + radius.
        X, x0 = np.vstack([np.eye(d), np.zeros(d)]), np.full(d, -float(radius))
        y, y0 = np.append(w[:, i], sign), b[i] - radius * w[:, i].sum()
    return explicit_mlp(*maps, (y[:, None], [y0]), param_dtype=param_dtype)
