"""The linear recurrence along time, for all steps in parallel, with derivatives that store no intermediate products."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Inexact

from jaxblocks.backend.precision import widen
from jaxblocks.backend.varying import varying_like
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import checked

__all__ = ["linear_recurrence"]


@checked
def linear_recurrence(
    a: Inexact[Array, "..."],
    b: Inexact[Array, "..."],
    initial: Inexact[Array, "..."] | None = None,
    *,
    axis: int = -2,
    reverse: bool = False,
) -> Inexact[Array, "..."]:
    r"""All steps of $h_t = a_t h_{t-1} + b_t$, entry by entry, by an associative scan.

    The scan takes about $2 log₂$ time dependent operations instead of time. The result is the solution of a linear
    system $h - a ⊙ shift(h) = b$, and its derivatives, in every mode and of every order, are recurrences too: that
    of b is the same one, its transpose the same in the other direction. So a gradient stores a and h only, which is
    linear in time, and in `jax.checkpoint` its arguments only.

    Args:
        a: real or complex, with as many axes as ``b``; an axis of size 1 is repeated. Where $|a| > 1$, products of many
            a leave the range of the dtype, as h itself does.
        b: of the dtype of ``a``; half precision is computed in float32.
        initial: $h_0$, of the shape of ``b`` without its time axis; by default 0.
        axis: that of time; by default the last but one.
        reverse: from the last step to the first, $h_t = a_t h_{t+1} + b_t$.

    Raises:
        ValueError: for shapes that do not fit together.
        TypeError: for different dtypes of the arguments.

    >>> a, b = jnp.full((3, 1), 0.5), jnp.ones((3, 1))
    >>> linear_recurrence(a, b).ravel()
    Array([1.  , 1.5 , 1.75], dtype=float32)
    >>> linear_recurrence(a, b, jnp.array([2.0])).ravel()
    Array([2., 2., 2.], dtype=float32)

    Source: Blelloch 1990, Prefix sums and their applications, section 1.4; Martin & Cundy 2018, Parallelizing linear
    recurrent neural nets over sequence length, arXiv:1709.04057.
    """
    got = f"{describe(a)} and {describe(b)}"
    has_axis = -b.ndim <= axis < b.ndim
    require(has_axis, f"b with the time axis {axis}", b, "give b a time axis, or pass another axis")
    axis %= b.ndim
    fits = a.ndim == b.ndim and all(n in (m, 1) for n, m in zip(a.shape, b.shape, strict=True))
    require(fits, "a of the shape of b, or with axes of size 1", got, "give a as many axes as b: a[None]")
    same = a.dtype == b.dtype and (initial is None or initial.dtype == b.dtype)
    require(same, "arguments of one dtype", f"{got}, initial {describe(initial)}", "cast them", error=TypeError)
    if initial is not None:
        shape = b.shape[:axis] + b.shape[axis + 1 :]
        require(initial.shape == shape, f"initial of shape {shape}", initial, "give it one entry for each recurrence")
    dtype, time = b.dtype, b.shape[axis]
    a, b = varying_like((widen(a), widen(b)), a, b, initial)  # the sides of a system have one type
    a = jnp.broadcast_to(a, (*a.shape[:axis], time, *a.shape[axis + 1 :]))
    if initial is not None and time:
        first = jnp.expand_dims(widen(initial), axis)
        b = _with_initial(a, b, varying_like(first, b), axis, reverse)
    return (_solve(a, b, axis, reverse) if time else b).astype(dtype)


def _with_initial(a, b, initial, axis, reverse):
    """b with a_1 h_0 added at the first step, or at the last one in reverse."""
    time = b.shape[axis]
    first = time - 1 if reverse else 0
    cut = lambda x, start, stop: lax.slice_in_dim(x, start, stop, axis=axis)
    own = cut(b, first, first + 1) + cut(a, first, first + 1) * initial
    parts = [cut(b, 0, first), own] if reverse else [own, cut(b, 1, time)]
    return jnp.concatenate(parts, axis)


def _solve(a, b, axis, reverse):
    # As a solution of a linear system: its derivatives solve it again, from a and h alone. Those of the associative
    # scan would store the products of a at every level.
    return lax.custom_linear_solve(
        lambda h: h - a * _shifted(h, axis, reverse),
        b,
        lambda _, b: _scan(a, b, axis, reverse),
        # The transposed system is y_t = b_t + a_{t+1} y_{t+1}.
        lambda _, b: _scan(_shifted(a, axis, not reverse), b, axis, not reverse),
    )


def _scan(a, b, axis, reverse):
    def joined(first, second):
        return second[0] * first[0], second[0] * first[1] + second[1]

    if isinstance(b.shape[axis], int):
        return lax.associative_scan(joined, (a, b), reverse=reverse, axis=axis)[1]
    # The associative scan has no form for a symbolic size of `jax.export`.
    first = varying_like(jnp.zeros((*b.shape[:axis], *b.shape[axis + 1 :]), b.dtype), a, b)
    step = lambda h, now: (now[0] * h + now[1],) * 2
    each = tuple(jnp.moveaxis(x, axis, 0) for x in (a, b))
    return jnp.moveaxis(lax.scan(step, first, each, reverse=reverse)[1], 0, axis)


def _shifted(x, axis, reverse):
    """The entries of the step before, and 0 at the first step; in reverse those of the step after."""
    zero = jnp.zeros_like(lax.slice_in_dim(x, 0, 1, axis=axis))
    rest = lax.slice_in_dim(x, 1, None, axis=axis) if reverse else lax.slice_in_dim(x, 0, x.shape[axis] - 1, axis=axis)
    return jnp.concatenate([rest, zero] if reverse else [zero, rest], axis)
