r"""Maxima and minima by rectifiers: what needs two hidden layers, and what narrow nets can do when they are deep."""

import numpy as np

from jaxblocks.activations import relu
from jaxblocks.core import Layer
from jaxblocks.layers.combinators import Serial
from jaxblocks.layers.dense import Dense
from jaxblocks.layers.mlp import MLP
from jaxblocks.theory.constructions import dense_params

__all__ = ["max_min_string", "max_zero_x_y"]


def max_zero_x_y(*, param_dtype=None) -> tuple[Layer, tuple]:
    r"""max(0, x, y), which no net with one hidden layer computes, with two: 3 rectifiers and 1.

    .. math:: \max(0, x, y) = \mathrm{ReLU}\big(\mathrm{ReLU}(x - y) + \mathrm{ReLU}(y) - \mathrm{ReLU}(-y)\big)

    A unit of one hidden layer bends its function along a whole line, by the same jump of gradient everywhere on it;
    max(0, x, y) is bent along half-lines: across x = 0 it is at y = -1, and not at y = 1.

    Returns:
        A pair ``(..., 2)`` to ``(..., 1)``, and its params.

    >>> net, params = max_zero_x_y()
    >>> net.apply(params, jnp.array([[-1.0, -2.0], [3.0, 1.0], [-1.0, 4.0]]))[:, 0]
    Array([0., 3., 4.], dtype=float32)

    Source: Diehl 2023, Remark 1.4.
    """
    hidden = dense_params([[1, 0, 0], [-1, 1, -1]], [0, 0, 0], param_dtype)
    return MLP(3, 1, last_activation=relu), (hidden, (), dense_params([[1], [1], [-1]], [0], param_dtype), ())


def max_min_string(kernel, bias, operations, *, radius: int | float, param_dtype=None) -> tuple[Layer, tuple]:
    r"""A string of maxima and minima of affine functions by a net whose hidden layers have d + 1 units.

    :math:`y_0 = \ell_0(x)` and :math:`y_i = \max(y_{i-1}, \ell_i(x))` or :math:`\min(y_{i-1}, \ell_i(x))`, where
    :math:`\ell_i(x) = \langle w_i, x\rangle + b_i`. Since :math:`\max(y, \ell) = \ell + \mathrm{ReLU}(y - \ell)` and
    :math:`\min(y, \ell) = \ell - \mathrm{ReLU}(\ell - y)`, each takes one hidden layer: one unit for y, and d that
    carry x + ``radius``, which is positive. Such strings approximate every continuous function, so width d + 1
    is enough for scalar outputs.

    Args:
        kernel: the :math:`w_i` in its columns, ``(d, n + 1)``.
        bias: the :math:`b_i`, ``(n + 1,)``.
        operations: n words, ``"max"`` or ``"min"``.
        radius: the net computes the string where :math:`|x_j|` is at most this.
        param_dtype: float64 where JAX has it switched on, else float32.

    Returns:
        A pair ``(..., d)`` to ``(..., 1)``, and its params.

    Raises:
        ValueError: where shapes and operations do not match, an operation is another word, or the radius is negative.

    >>> net, params = max_min_string([[1.0, -1.0, 0.0]], [0.0, 0.0, 2.0], ["max", "min"], radius=8.0)
    >>> net.apply(params, jnp.array([[-1.0], [0.5], [5.0]]))[:, 0]  # min(max(x, -x), 2)
    Array([1. , 0.5, 2. ], dtype=float32)

    Source: Hanin & Sellke 2017, Approximating continuous functions by ReLU nets of minimal width; Diehl 2023,
    Theorem 1.7, which states it without "scalar": for several outputs up to d + d_out are needed.
    """
    w, b, operations = np.asarray(kernel, np.float64), np.asarray(bias, np.float64), list(operations)
    if w.ndim != 2 or b.shape != w.shape[1:] or len(operations) != len(b) - 1 or not operations:
        raise ValueError(
            "max_min_string expects a kernel (d, n + 1), a bias (n + 1,) and n >= 1 operations, but shapes "
            f"{w.shape}, {b.shape} and {len(operations)} operations came."
        )
    if not set(operations) <= {"max", "min"}:
        raise ValueError(f'max_min_string knows the operations "max" and "min", but {operations} came.')
    if not radius >= 0:
        raise ValueError(f"max_min_string expects radius >= 0, but {radius} came; give the largest |x_j|.")
    d = len(w)
    # What is affine in the hidden units h before it, as (matrix, offset): x = X h + x0 and y = y h + y0.
    X, x0, y, y0 = np.eye(d), np.zeros(d), w[:, 0], b[0]
    params: list = []
    for i, operation in enumerate(operations, 1):
        sign = 1 if operation == "max" else -1
        unit, offset = sign * (y - X @ w[:, i]), sign * (y0 - x0 @ w[:, i] - b[i])
        params += [dense_params(np.column_stack([X, unit]), np.append(x0 + radius, offset), param_dtype), ()]
        X, x0 = np.vstack([np.eye(d), np.zeros(d)]), np.full(d, -float(radius))
        y, y0 = np.append(w[:, i], sign), b[i] - radius * w[:, i].sum()
    layers = [layer for _ in operations for layer in (Dense(d + 1), relu)]
    return Serial(*layers, Dense(1)), (*params, dense_params(y[:, None], [y0], param_dtype))
