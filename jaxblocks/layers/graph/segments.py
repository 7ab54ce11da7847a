"""Segment reductions: group the rows of an array by an index and reduce each group."""

import functools
import operator
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Integer

from jaxblocks.backend.precision import widen
from jaxblocks.backend.symbolic_sizes import Size, at_most
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import NonNegativeInt, checked
from jaxblocks.checks.values import as_int32, check_values, checkable, concrete

__all__ = [
    "How",
    "aggregate",
    "all_in_range",
    "check_indices",
    "nan_unless",
    "reduce_segments",
    "take_rows",
    "where_rows",
]

How: TypeAlias = Literal["sum", "mean", "max", "softmax"]


@checked
def aggregate(
    values: Float[Array, "entries *features"],
    receivers: Integer[Array, "entries"],
    n: NonNegativeInt,
    *,
    how: How = "sum",
    logits: Float[Array, "entries *heads"] | None = None,
    mask: Bool[Array, "entries"] | None = None,
    check: bool = False,
) -> Float[Array, "n *features"]:
    r"""Aggregate values by the node that receives them: $y_i = Agg(v_k : r_k = i)$.

    $v_k$ is ``values[k]``, $r_k$ is ``receivers[k]``, and ``how`` is

    - ``"sum"``: $∑_k v_k$; ``"mean"``: the sum divided by the number of values;
    - ``"max"``: the maximum per feature; on ties the largest share the gradient evenly;
    - ``"softmax"``: $∑_k w_k v_k$ with $w_k = e^{s_k} / ∑_{l : r_l = i} e^{s_l}$ and $s$
      the ``logits``. Their axes are the first ones of ``values``: one score for each entry, (e,), or for each of its
      heads, (e, heads). Without ``logits`` each feature is its own score.

    A node without entries gets 0. Half precision is summed in float32.

    Args:
        values: (e, ...features), one row for each entry (edge).
        receivers: (e,), the node that receives each entry.
        n: number of nodes.
        how: the reduction.
        logits: of the softmax.
        mask: (e,), True at valid entries; the others have no effect, even if they are NaN.
        check: report receivers out of range from inside ``jit`` to ``checkify``.

    Returns:
        (n, ...features).

    Raises:
        ValueError: for a receiver outside 0 ... n - 1 (of entries that are not masked). Under ``jit`` the whole output
            is NaN then, or with ``check=True`` the error is reported to ``jax.experimental.checkify``.

    >>> aggregate(jnp.array([1.0, 2.0, 5.0]), jnp.array([0, 0, 2]), n=4, how="mean")
    Array([1.5, 0. , 5. , 0. ], dtype=float32)

    Source: Battaglia et al. 2018, Relational inductive biases, deep learning, and graph networks, arXiv:1806.01261,
    section 3.2; Cevher, Mathematics of Data, "Graphical layers".
    """
    if logits is not None:
        require(how == "softmax", 'how="softmax" where logits are passed', repr(how), "omit logits")
        fits = 0 < logits.ndim <= values.ndim and logits.shape == values.shape[: logits.ndim]
        expected = "logits with the first axes of values, (e,) or (e, heads)"
        repair = f"pass logits.reshape({len(values)}, -1)[:, 0]"
        require(fits, expected, f"{describe(logits)} for values {describe(values)}", repair)
    check_indices("receivers", receivers, n, mask, check=check)
    y = reduce_segments(values, receivers.astype(jnp.int32), n, how, logits, mask)
    return nan_unless(all_in_range(mask, n, receivers), y)


def reduce_segments(values, receivers, n: Size, how: How, logits=None, mask=None):
    """`aggregate` for receivers that are known to be in range."""
    if at_most(n, 0):
        return jnp.zeros((0, *values.shape[1:]), values.dtype)
    dtype, values = values.dtype, widen(values)
    if mask is not None:
        receivers = jnp.where(mask, receivers, n)  # out of range, so that the sums skip it

    def total(x):
        return jax.ops.segment_sum(x, receivers, n)

    def count():  # (n, 1, ...)
        return _expand_like(total(jnp.ones(receivers.shape, values.dtype)), values)

    if how == "sum":
        y = total(values)
    elif how == "mean":
        # At least 1: a node without entries gets 0 and not NaN.
        y = total(values) / jnp.maximum(count(), 1)
    elif how == "max":
        # segment_max gives -inf where there is no entry.
        y = jnp.where(count() > 0, jax.ops.segment_max(values, receivers, n), 0)
    else:
        logits = values if logits is None else widen(logits)
        # The largest score is subtracted, so that no exponential overflows; the result does not depend on it, and
        # neither does the gradient.
        top = jax.ops.segment_max(jax.lax.stop_gradient(logits), receivers, n)  # (n, *heads)
        top = jnp.where(jnp.isfinite(top), top, 0)  # -inf for nodes without entries
        above = where_rows(mask, logits - take_rows(top, receivers))  # (e, *heads)
        sums = total(jnp.exp(above))
        logs = (
            jnp.log(jnp.where(sums > 0, sums, 1))
            .at[receivers]
            .get(mode="fill", fill_value=0, wrap_negative_indices=False)
        )
        # Of the sum 1, not divided by it after the sum of the values: where a weight is near 1, its derivative is a
        # difference that cancels, and the rounding of two large terms would hide the derivative of the values.
        weights = jnp.exp(above - logs)
        y = total(_expand_like(weights.astype(values.dtype), values) * values)
    return y.astype(dtype)


def take_rows(x, indices):
    """Rows of ``x``; indices out of range are clipped, so callers combine it with `nan_unless`."""
    if at_most(x.shape[0], 0):  # of no rows JAX takes none; those of masked entries are not read
        return jnp.zeros((*indices.shape, *x.shape[1:]), x.dtype)
    return x.at[indices].get(mode="clip", wrap_negative_indices=False)


def _expand_like(x, like):
    """Values for each row, with axes of size one appended up to the rank of ``like``."""
    return x.reshape(x.shape + (1,) * (like.ndim - x.ndim))


def where_rows(mask, x):
    """``x`` in the rows where the mask is True (everywhere for ``None``), else 0."""
    return x if mask is None else jnp.where(_expand_like(mask, x), x, jnp.zeros((), x.dtype))


def nan_unless(ok, y):
    """``y``, or an array of NaN where ``ok`` is False."""
    if isinstance(ok, np.bool_) and ok:  # of concrete indices
        return y
    return y + jnp.where(ok, 0, jnp.nan).astype(y.dtype) if jnp.issubdtype(y.dtype, jnp.inexact) else y


def all_in_range(mask, count: Size, *indices):
    """Whether all valid indices are from 0 to ``count - 1``; one reduction, since several are slower."""
    known = [as_int32(concrete(i)) for i in indices]  # an integer of 8 bits cannot be compared with a count of 300
    inside = functools.reduce(operator.and_, [(i >= 0) & (i < count) for i in known])
    return (inside if mask is None else inside | ~concrete(mask)).all()


def check_indices(name: str, indices, count: Size, mask=None, kind: str = "node", *, check: bool = False) -> None:
    """Raise a ``ValueError`` for an index outside 0 ... ``count - 1``, if values are concrete or ``check`` is True."""
    known, valid = checkable(indices, check), True if mask is None else checkable(mask, check)
    if known is None or valid is None or not known.size:
        return
    known = as_int32(known) if known.dtype.itemsize < 4 else known
    bad = ((known < 0) | (known >= count)) & valid
    message = f"{name} from 0 to {count - 1} (there are {count} {kind}s), got {{worst}}; number the {kind}s from 0"
    check_values(~bad, message, check=check, worst=known[bad.argmax()])
