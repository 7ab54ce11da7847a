"""Masks and weights of examples: what is masked changes neither the loss nor its gradient."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Real

from jaxblocks.backend.powers_of_two import divided, unit_of
from jaxblocks.backend.precision import wide_dtype
from jaxblocks.backend.quotients import divide, vanishes
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import checked
from jaxblocks.checks.values import check_entries

__all__ = ["as_entries", "fill", "mask_of_entries", "weighted_mean", "zero"]


@checked
def weighted_mean(
    values: Real[Array, "*shape"] | Bool[Array, "*shape"],
    weights: Real[Array, "*shape"] | Bool[Array, "*shape"],
    *,
    check: bool = False,
) -> Float[Array, ""]:
    r"""Weighted mean $∑_i w_i ℓ_i / ∑_i w_i$ of all entries, such as the losses of examples.

    With a mask as weights it is the mean over the entries that count. Entries of weight 0 may have any value, NaN
    included; for a finite gradient there pass the mask to the loss too, as ``where``. If all weights are 0, as in a
    batch of padding alone, the mean and its gradient are 0. In the derivative with respect to a weight of 0, a value
    that is not finite counts as 0, and one that is finite as a constant. The sums are in float32, or float64 for
    float64 ``values``.

    Args:
        values: $ℓ_i$.
        weights: $w_i ≥ 0$, numbers or booleans of the same shape. For weights of classes write
            ``class_weights[labels]``.

    Raises:
        ValueError: for unequal shapes, or weights that are negative, infinite or NaN (known values, or ``check=True``;
            else the mean of such weights is wrong or NaN).

    >>> print(weighted_mean(jnp.array([1.0, 4.0, jnp.inf]), jnp.array([2.0, 1.0, 0.0])))
    2.0

    Source: Goodfellow, Bengio & Courville 2016, Deep learning, section 8.1.1; Cevher, Mathematics of Data (weighted
    empirical risk).
    """
    # At least float32, in which sums of many losses keep their digits.
    dtype = jnp.float64 if values.dtype == jnp.float64 else jnp.float32
    weights = weights.astype(jnp.float64 if weights.dtype == jnp.float64 else dtype)
    message = "finite weights >= 0, got weights from {low} to {high}; give values that do not count the weight 0"
    check_entries(weights, lambda known: (known >= 0) & (known < jnp.inf), message, check=check)
    # In a unit of the largest weight, so that no product or sum leaves the range; a mask stays as it is.
    weights = divided(weights, unit_of(jnp.max(weights, initial=0))).astype(dtype)
    total = jnp.sum(weights)
    # A weight of 0 removes the value, also where it is NaN or infinite, and its tangent; where all weights are 0 the
    # mean is 0. A finite value stays, since it is in the derivative with respect to its weight.
    values = values.astype(dtype)
    constant = jax.lax.stop_gradient(jnp.where(jnp.isfinite(values), values, 0))
    products = weights * jnp.where(weights == 0, constant, values)
    return divide(jnp.sum(products), jnp.where(vanishes(total), 1, total))


def fill(where, x, value):
    """``x`` with ``value`` at the examples that ``where`` excludes.

    The loss is then finite there, and so is its derivative; NaN times a cotangent of 0 would be NaN.

    >>> print(fill(jnp.array([True, False]), jnp.array([[1.0, 2.0], [jnp.inf, 3.0]]), 0.5))
    [[1.  2. ]
     [0.5 0.5]]
    """
    if where is None:
        return x
    # With axes of size 1 for the features.
    return jnp.where(where.reshape(where.shape + (1,) * (x.ndim - where.ndim)), x, value)


def zero(where, loss):
    """The loss with 0 at the examples that ``where`` excludes.

    >>> print(zero(jnp.array([True, False]), jnp.array([1.0, 2.0])))
    [1. 0.]
    """
    return loss if where is None else jnp.where(where, loss, 0)


def mask_of_entries(where, x):
    """A mask of examples or of entries as a mask of all entries of ``x``.

    >>> print(mask_of_entries(jnp.array([True, False]), jnp.ones((2, 2))))
    [[ True  True]
     [False False]]
    """
    if where is None or where.shape == x.shape:
        return where
    expected = f"where of shape {x.shape[:-1]}, one per example, or {x.shape}, one per entry"
    require(where.shape == x.shape[:-1], expected, where, "give it one of these shapes")
    return jnp.broadcast_to(where[..., None], x.shape)


def as_entries(name: str, value, x, *, least: int | None = None):
    """A number, one number per feature, or one per entry, as an array that broadcasts to the entries of ``x``.

    The numbers are positive, or not below ``least``.

    >>> print(as_entries("delta", jnp.array([1.0, 2.0]), jnp.ones((3, 2))))
    [[1. 2.]]
    """
    # A traced value cannot be compared here; its sign is not checked.
    if not isinstance(value, Tracer):
        numbers = np.asarray(value)
        expected = f"{name} > 0" if least is None else f"{name} >= {least}"
        ok = numbers > 0 if least is None else numbers >= least
        if not ok.all():
            require(False, expected, f"{numbers.min()}", "pass for example 1.0")
    value = jnp.asarray(value, wide_dtype(x.dtype))
    shapes = ((), x.shape[-1:], x.shape)
    if value.shape not in shapes:
        expected = f"{name} to be a number or of shape {shapes[1]} or {shapes[2]}"
        require(False, expected, value, "give it one of these shapes, for example with jnp.broadcast_to")
    return value.reshape((1,) * (x.ndim - value.ndim) + value.shape)
