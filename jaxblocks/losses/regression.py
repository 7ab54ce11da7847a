"""Losses of regression: of predictions and targets over the features of the last axis.

`mse` and `mae` also take complex numbers; the loss is a real number.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Inexact

from jaxblocks.backend.quotients import divide, log
from jaxblocks.checks.expectations import checked
from jaxblocks.checks.values import check_entries
from jaxblocks.losses.arrays import check_last_axis, magnitude, product, squared_magnitude, widen_both
from jaxblocks.losses.masks import as_entries, fill, mask_of_entries

__all__ = ["gaussian_nll", "huber_loss", "mae", "mse", "poisson_nll"]


def _match(predictions, targets, where):
    """Predictions and targets in the dtype to compute in, a mask of their entries, and the dtype of the result."""
    check_last_axis(predictions)
    where = mask_of_entries(where, predictions)
    # A masked entry has prediction 0 and target 0: a difference of 0, with a derivative of 0.
    predictions, targets, dtype = widen_both(fill(where, predictions, 0), fill(where, targets, 0))
    return predictions, targets, where, jnp.finfo(dtype).dtype


def _mean(x, where):
    """The mean over the features that count; 0 where none does."""
    if where is None:
        return jnp.mean(x, -1)
    # At least 1, so that an example without features that count has the loss 0.
    return jnp.sum(x, -1, where=where) / jnp.maximum(jnp.sum(where, -1, dtype=x.dtype), 1)


@checked
def mse(
    predictions: Inexact[Array, "*batch features"],
    targets: Inexact[Array, "*batch features"],
    *,
    where: Bool[Array, "..."] | None = None,
) -> Float[Array, "*batch"]:
    """Mean squared error: the mean over the last axis.

    (1/d) sum_j |v_j - w_j|^2 with v = ``predictions``, w = ``targets`` and d features; real for complex numbers too.
    The constant that minimizes it over a data set is the mean. (Krapac & Segvic print sums over features under this
    name: 1.28 for an error of (0.8, 0, -0.8), where the mean is 0.427.) For two arrays of shape (n,), the mean over all
    n.

    ``where`` masks examples (*batch) or entries (*batch, features): the mean is over the features that count, 0 where
    none does.

    Raises:
        ValueError: for unequal shapes.

    >>> print(mse(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([[1.0, 0.0], [3.0, 3.0]])))
    [2.  0.5]

    Sources: Goodfellow, Bengio & Courville 2016, Deep learning, section 5.1.4; Diehl 2023, section 1.3; Cevher,
    Mathematics of Data.
    """
    predictions, targets, where, dtype = _match(predictions, targets, where)
    return _mean(squared_magnitude(predictions - targets), where).astype(dtype)


@checked
def mae(
    predictions: Inexact[Array, "*batch features"],
    targets: Inexact[Array, "*batch features"],
    *,
    where: Bool[Array, "..."] | None = None,
) -> Float[Array, "*batch"]:
    """Mean absolute error: the mean over the last axis.

    (1/d) sum_j |v_j - w_j| with v = ``predictions``, w = ``targets`` and d features; of moduli for complex numbers. The
    constant that minimizes it over a data set of real numbers is the median. The subgradient at an error of 0 is 0.

    ``where`` masks examples (*batch) or entries (*batch, features): the mean is over the features that count, 0 where
    none does.

    Raises:
        ValueError: for unequal shapes.

    >>> print(mae(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([[1.0, 0.0], [3.0, 3.0]])))
    [1.  0.5]

    Source: Hastie, Tibshirani & Friedman 2009, The elements of statistical learning, section 10.6; Diehl 2023, section
    1.3.
    """
    predictions, targets, where, dtype = _match(predictions, targets, where)
    return _mean(magnitude(predictions - targets), where).astype(dtype)


@checked
def huber_loss(
    predictions: Float[Array, "*batch features"],
    targets: Float[Array, "*batch features"],
    *,
    delta: float | int | Float[Array, "..."] = 1.0,
    where: Bool[Array, "..."] | None = None,
) -> Float[Array, "*batch"]:
    """Huber loss: quadratic for small errors, linear for large ones; the mean over the last axis.

    (1/d) sum_j h(v_j - w_j) with h(e) = e^2 / 2 for |e| <= delta and delta (|e| - delta / 2) beyond: v =
    ``predictions``, w = ``targets``. Value and slope agree at |e| = delta; the second derivative jumps from 1 to 0, and
    is 1 there. ``delta`` is a number, or one per feature.

    ``where`` masks examples (*batch) or entries (*batch, features), as in ``mse``.

    Raises:
        ValueError: for unequal shapes or a ``delta`` that is not positive.

    >>> print(huber_loss(jnp.array([[0.5], [3.0]]), jnp.zeros((2, 1))))
    [0.125 2.5  ]

    Source: Huber 1964, Robust estimation of a location parameter.
    """
    predictions, targets, where, dtype = _match(predictions, targets, where)
    error = predictions - targets
    delta = as_entries("delta", delta, error)
    small = (-delta <= error) & (error <= delta)
    # Each branch gets 0 where the other one holds: no large number is squared, and no infinite one is multiplied by 0.
    inner, outer = jnp.where(small, error, 0), jnp.where(small, 0, error)
    slope = jnp.where(small, 0, delta)
    loss = 0.5 * jnp.square(inner) + slope * (magnitude(outer) - 0.5 * slope)
    return _mean(loss, where).astype(dtype)


@checked
def gaussian_nll(
    predictions: Float[Array, "*batch features"],
    targets: Float[Array, "*batch features"],
    *,
    variance: float | int | Float[Array, "..."] = 1.0,
    where: Bool[Array, "..."] | None = None,
) -> Float[Array, "*batch"]:
    """Negative log-likelihood of the targets under a Gaussian with independent features; the sum over the last axis.

    -log N(y; f, diag(v)) = 1/2 sum_j ((y_j - f_j)^2 / v_j + log v_j + log 2 pi) with f = ``predictions``, y =
    ``targets`` and v = ``variance``, in nats: a number, one number per feature, or one per entry, such as a second
    output of the net, ``softplus(s) + 1e-6``. With v = 1 it equals the squared error up to the factor 1/2 and the
    constant (D/2) log 2 pi, D features, and so has the same minimizers.

    ``where`` masks examples (*batch) or entries (*batch, features): the sum is over the features that count.

    Raises:
        ValueError: for unequal shapes, or a variance that is not positive (known values).

    >>> mean, y = jnp.array([0.5, 1.0]), jnp.array([1.0, 2.0])
    >>> print(f"{gaussian_nll(mean, y):.4f}")
    2.4629
    >>> print(f"{gaussian_nll(mean, y, variance=0.25):.4f}")
    2.9516

    Source: Goodfellow, Bengio & Courville 2016, Deep learning, section 6.2.2; Krapac & Segvic, Deep feed-forward models
    (without the factor and the constant).
    """
    mean, y, where, dtype = _match(predictions, targets, where)
    # Only an array with an entry for each prediction has masked entries.
    if jnp.shape(variance) == mean.shape:
        # Masked variances may be anything, such as 0 for padding, and must pass the check and have finite gradients.
        variance = fill(where, variance, 1)
    variance = as_entries("variance", variance, mean)
    error = y - mean  # divided before it is squared: the square alone may leave the range
    terms = 0.5 * (error * divide(error, variance) + log(variance) + math.log(2 * math.pi))
    return jnp.sum(terms, -1, where=where).astype(dtype)


@checked
def poisson_nll(
    log_rates: Float[Array, "*batch features"],
    targets: Float[Array, "*batch features"],
    *,
    where: Bool[Array, "..."] | None = None,
    check: bool = False,
) -> Float[Array, "*batch"]:
    """Negative log-likelihood of counts under Poisson distributions; the sum over the last axis.

    -log P(y; r) = sum_j (exp(f_j) - y_j f_j + log y_j!) with f = ``log_rates``, the logarithms of the rates r, and
    y = ``targets``, counts as floating-point numbers; in nats. Gradient: exp(f) - y. (PyTorch omits log y!, which does
    not depend on f.)

    ``where`` masks examples (*batch) or entries (*batch, features): the sum is over the features that count.

    Raises:
        ValueError: for unequal shapes, or targets below 0 (known values, or ``check=True``).

    >>> print(f"{poisson_nll(jnp.log(jnp.array([2.0])), jnp.array([3.0])):.4f}")
    1.7123

    Source: Nelder & Wedderburn 1972, Generalized linear models (not in the lectures).
    """
    f, y, where, dtype = _match(log_rates, targets, where)
    # A negative count has no likelihood; lgamma(y + 1) is log(y!) for integers, and continues it.
    message = "targets >= 0, got a minimum of {low}; pass counts, or jnp.exp(targets) of their logarithms"
    check_entries(y, lambda known: known >= 0, message, check=check)
    # product(y, f): a rate of 0 (f = -inf) with a count of 0 has probability 1.
    return jnp.sum(jnp.exp(f) - product(y, f) + jax.lax.lgamma(y + 1), -1, where=where).astype(dtype)
