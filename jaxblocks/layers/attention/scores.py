"""Scores of queries and keys, their softmax, and the averages of the values.

The axes of batch and heads come first, those of the matrix products last: queries are (*batch, heads, time_q,
head_dim), keys and values (*batch, kv_heads, time_k, features). In a loop over tiles (``time_last``), keys and values
are (*batch, kv_heads, features, time_k), and products have one axis for batch and heads: XLA on CPU then computes the
gradients of keys and values without transposing weights, in half of the time.
"""

import functools
import math
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

from jaxblocks.activations import softplus
from jaxblocks.ad.checkpointing import scans
from jaxblocks.backend.precision import wide_dtype
from jaxblocks.checks.errors import require
from jaxblocks.checks.layer_inputs import FROM_TORCH, check_groups_of_heads
from jaxblocks.layers.attention.masks import allowed_keys, broadcasts_to, segments

__all__ = ["ScoreOptions", "attention_of_rows", "averages_of", "beside_sink", "score_arrays"]


class ScoreOptions(NamedTuple):
    """What the scores and weights depend on, apart from arrays of their axes."""

    scale: Any  # a number, None, or "inverse_sqrt"
    causal: bool
    window: tuple[int, int] | None  # keys before and after the position of a query
    soft_cap: float | None
    offset: Any  # the position of the first query
    bias: Any = None  # a function; an array of biases is one of the arrays
    dropout: float = 0.0
    score_fn: Any = None  # a function of the scores


def score_arrays(q, k, v, options: ScoreOptions, mask, bias, segment_ids, sink=None) -> tuple[dict, ScoreOptions]:
    """All arrays that scores and averages depend on, with the axes of batch and heads first, and the other options.

    The arrays are ``q``, ``k``, ``v`` (unless it is ``None``) and, where they are given, ``mask``, ``bias``, ``sink``,
    ``q_segments`` and ``k_segments``, whose axes may have size one. A function as ``bias`` is one of the options. They
    have ``scale=None`` where the queries are scaled, which is cheaper than scaling the scores.
    """
    _check_scores(q, k, mask, bias)
    if callable(bias):
        options, bias = options._replace(bias=bias), None
    factor = options.scale
    if isinstance(factor, str):
        factor = max(q.shape[-1], 1) ** -0.5
    if factor is not None and q.dtype == wide_dtype(jnp.result_type(q, k)):  # in half precision it would round
        q, factor = q * jnp.asarray(factor, q.dtype), None
    arrays = {"q": jnp.moveaxis(q, -3, -2), "k": jnp.moveaxis(k, -3, -2)}
    arrays |= {"v": None if v is None else jnp.moveaxis(v, -3, -2), "mask": mask, "bias": bias}
    if sink is not None:
        arrays["sink"] = sink.reshape(*[1] * (q.ndim - 3), q.shape[-2], 1, 1)
    arrays |= segments(q, k, segment_ids)
    return {name: x for name, x in arrays.items() if x is not None}, options._replace(scale=factor)


def attention_of_rows(arrays, options: ScoreOptions, key=None, *, first=0, time_last=False, stored=False, parts=False):
    """Prepare a function ``attend(start, rows, keys)`` for some queries, and the ``rows`` of all queries.

    ``rows`` are the arrays with an axis of queries (-2), which can be split. ``attend`` takes those of the queries from
    ``start`` on, and two positions of keys outside of which all are masked (by default all keys). It returns the
    weighted average of the values (the weights, without ``v``); with ``parts``, which have no sink, also the sum of the
    unnormalized weights and the score whose weight is 1.

    Args:
        arrays, options: of `score_arrays`; the arrays may be a part of all examples and heads.
        key: for dropout.
        first: the number of the first head among those of all examples.
        time_last: whether time is the last axis of keys and values, not that before it.
        stored: whether results are marked to be stored where the weights are computed again.
        parts: whether the keys are a part of all, so that the averages are those of this part.
    """
    k, v, window, time = arrays["k"], arrays.get("v"), options.window, -1 if time_last else -2
    n_q, n_k = arrays["q"].shape[-2], k.shape[time]
    # Axis -2 is split into parts of the queries, axis -1 is sliced to the keys that these attend to.
    rows, columns = {"q": arrays["q"]}, {}
    for name in ("mask", "bias", "q_segments", "k_segments"):
        if name in arrays:
            # A mask or bias of one row serves all queries; it is not split.
            whole = name == "k_segments" or (name != "q_segments" and not arrays[name].shape[-2] == n_q != 1)
            (columns if whole else rows)[name] = arrays[name]

    def visible_keys(start, size, keys):
        """The first key that some queries attend to, and a function that slices an axis to these keys."""
        begin, end = keys
        static = isinstance(size, int) and isinstance(n_k, int)  # not the symbolic sizes of jax.export
        # With dropout all keys stay, and the draw is that of the other implementations.
        if window and static and v is not None and not options.dropout and (span := size + sum(window)) < end - begin:
            in_window = jnp.asarray(options.offset + start - window[0], jnp.int32)
            begin = jnp.clip(in_window, begin, end - span)
            return begin, lambda x, axis=-1: lax.dynamic_slice_in_dim(x, begin, span, axis)
        if keys == (0, n_k):
            return begin, lambda x, axis=-1: x
        return begin, lambda x, axis=-1: lax.slice_in_dim(x, begin, end, axis=axis)

    def attend(start, rows, keys=(0, n_k)) -> Any:
        size = rows["q"].shape[-2]
        begin, visible = visible_keys(start, size, keys)
        of_features = -2 if time_last else -1  # (*batch, heads, size, visible keys)
        scores = _per_head(rows["q"], visible(k, time), of_features, merged=time_last)
        # Arrays of rows were split by queries already, so only their key axis is sliced; q_segments has no key axis.
        own = {**{name: visible(x) for name, x in columns.items()}, **rows}
        own |= {name: visible(rows[name]) for name in ("mask", "bias") if name in rows}
        scores = _masked(scores, own, options, options.offset + start - begin)
        # exp(-inf) is a weight of zero; a row where all scores are -inf must not become -inf - (-inf).
        top = lax.stop_gradient(jnp.max(scores, -1, keepdims=True, initial=-jnp.inf))
        weights = jnp.exp(scores - jnp.where(top == -jnp.inf, 0.0, top))
        total = jnp.sum(weights, -1, keepdims=True)  # (*batch, heads, size, 1); zero where all keys are masked
        # Dropped weights leave the sum `total` unchanged: the others are divided by 1 - dropout instead.
        if options.dropout:
            kept = visible(_kept(key, first, start, (*weights.shape[:-1], n_k), options.dropout))
            weights = jnp.where(kept, weights / (1 - options.dropout), 0.0)
        some = jnp.where(total == 0, 1.0, total)
        out = weights / some if v is None else _averages_of_sums(weights, some, visible(v, time), time_last)
        if stored:
            out, total = map(scans.stored, (out, total))
        if parts:
            return out, total, top
        return out if "sink" not in arrays else out * beside_sink(total, top, arrays["sink"]).astype(out.dtype)

    return attend, rows


@functools.partial(jax.custom_jvp, nondiff_argnums=(3,))
def _averages_of_sums(weights, total, v, time_last: bool):
    """Averages of the values with weights of the sum ``total``.

    The division after the product is one of (size, value_dim) numbers, not of (size, keys).
    """
    out = averages_of(weights.astype(v.dtype), v, time_last)
    return out / total.astype(out.dtype)


@functools.partial(_averages_of_sums.defjvp, symbolic_zeros=True)
def _push_averages(time_last, primals, tangents):
    """With tangents of weights of the sum 1: for a weight near 1 it is a difference, which cancels before the product.

    After it, the rounding of two large terms would hide those of the values, and in half precision all digits.
    """
    (weights, total, v), (d_weights, d_total, d_v) = primals, tangents
    average = lambda weights, v: averages_of(weights.astype(v.dtype), v, time_last)
    terms = []
    if not isinstance(d_weights, SymbolicZero):
        if not isinstance(d_total, SymbolicZero):  # it is one where there are no entries
            d_weights = d_weights - weights * (d_total / total)
        terms.append(average(d_weights, v))
    if not isinstance(d_v, SymbolicZero):
        terms.append(average(weights, d_v))
    change = functools.reduce(operator.add, terms)
    return _averages_of_sums(weights, total, v, time_last), change / total.astype(change.dtype)


def beside_sink(total, top, sink):
    """What a sink z leaves of the weights, sigmoid(-d) with d = z - log sum_l exp(s_l).

    With ``total`` the sum of exp(s_l - top). A weight exp(s_j) / (exp(z) + sum_l exp(s_l)) is that without the sink
    times this number: no sum over keys contains the sink, and neither a large nor a small one overflows.
    """
    total = jnp.where(total == 0, 1.0, total)
    ahead = sink.astype(total.dtype) - jnp.where(top == -jnp.inf, 0.0, top) - jnp.log(total)
    # sigmoid(-d), whose derivative would lose all digits of a sink far below the scores.
    return jnp.exp(-softplus(ahead))


def _masked(scores, own, options: ScoreOptions, ahead):
    """The scores with scale, cap, function and bias, and -inf for masked keys.

    ``own`` are the mask, bias and segments of these queries and keys; the first query is ``ahead`` of the first key.
    """
    if options.scale is not None:
        scores = scores * jnp.asarray(options.scale, scores.dtype)
    if options.soft_cap is not None:
        scores = options.soft_cap * jnp.tanh(scores / options.soft_cap)
    if options.score_fn is not None:
        scores = _call_score_fn(options.score_fn, scores, ahead)
    bias = own.get("bias") if options.bias is None else _call_bias(options.bias, scores.shape, ahead)
    if bias is not None:
        scores = scores + bias.astype(scores.dtype)
    allowed = allowed_keys(own, scores.shape, ahead, options.causal, options.window)
    return scores if allowed is None else jnp.where(allowed, scores, -jnp.inf)


def _call_score_fn(score_fn, scores, offset):
    from jaxblocks.checks.signatures import arguments_of, takes  # not at import, which stays fast

    if not takes(score_fn, 2):
        repair = "compute heads and positions from the shape of scores and from offset"
        require(False, "score_fn(scores, offset)", arguments_of(score_fn), repair, error=TypeError)
    y = score_fn(scores, offset)
    _check_returned(y, scores.shape, f"score_fn(scores, offset) to return real scores of the shape {scores.shape}")
    return y.astype(scores.dtype)


def _call_bias(bias, shape, offset):
    *batch, heads, size, n_keys = shape
    y = bias(heads, size, n_keys, offset)
    whole = (heads, size, n_keys)
    expected = f"bias({heads}, {size}, {n_keys}, offset) to return real (heads, time_q, time_k) = {whole}"
    _check_returned(y, whole, expected)
    return y.reshape(*[1] * len(batch), *whole)


def _check_returned(y, shape, expected):
    """Raise unless a function of the caller has returned an array of real numbers of this shape."""
    real = jnp.issubdtype(getattr(y, "dtype", bool), jnp.number) and not jnp.iscomplexobj(y)
    fits = real and y.shape == shape
    require(fits, expected, y, "return such an array")


def averages_of(weights, v, time_last: bool = False):
    """The sums of values with these weights: ``(*batch, heads, time_q, value_dim)``."""
    return _per_head(weights, v, -1 if time_last else -2, merged=time_last)


def _per_head(a, b, axis: int, merged: bool):
    """Sums over the last axis of a, ``(*batch, heads, n, m)``, and over ``axis`` of b, ``(*batch, kv_heads, ., .)``.

    Each group of heads shares the b of one head. ``merged`` joins batch and heads to one axis, which must be whole on
    each device.
    """
    *batch, heads, n, m = a.shape
    kv_heads, features = b.shape[-3], b.shape[-3 - axis]
    wide = wide_dtype(jnp.result_type(a, b))
    r = heads // kv_heads
    if r != 1:  # split heads, then join with n: in one reshape, an explicit mesh would require shardings
        a = a.reshape(*batch, kv_heads, r, n, m).reshape(*batch, kv_heads, r * n, m)
    if merged:
        # Sizes, since one of them may be zero. `jnp.matmul` would remove an axis of size one, and checkpoint="dots"
        # stores products without a batch axis: the scores.
        a, b = (x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:]) for x in (a, b))
        out = lax.dot_general(a, b, (((2,), (3 + axis,)), ((0,), (0,))), preferred_element_type=wide)
        out = out.reshape(*batch, kv_heads, r * n, features)
    else:
        out = jnp.matmul(a, b if axis == -2 else b.mT, preferred_element_type=wide)
    return out if r == 1 else out.reshape(*batch, kv_heads, r, n, features).reshape(*batch, heads, n, features)


def _kept(key, first, start, shape, dropout):
    """The dropout mask of the weights, drawn for each head and query by their numbers, so that parts do not matter."""
    *front, size, n_k = shape
    # One key for each row of weights; a draw for a whole part would depend on its size.
    draw = lambda key, i: jax.random.bernoulli(jax.random.fold_in(key, i), 1 - dropout, (n_k,))
    of_head = lambda i: jax.vmap(draw, (None, 0))(jax.random.fold_in(key, i), jnp.arange(size, dtype=jnp.int32) + start)
    return jax.vmap(of_head)(jnp.arange(math.prod(front), dtype=jnp.int32) + first).reshape(shape)


def _check_scores(q, k, mask, bias) -> None:
    """Check that heads form groups, and that a mask and an array of biases have the axes of the scores."""
    check_groups_of_heads(q, k)
    full = (*q.shape[:-3], q.shape[-2], q.shape[-3], k.shape[-3])
    swapped = (*q.shape[:-3], q.shape[-3], q.shape[-2], k.shape[-2])
    for name, x in {"mask": mask, "bias": bias}.items():
        if x is not None and not callable(x) and not broadcasts_to(x.shape, full):
            expected = (
                f"{name} of shape (*batch, heads, time_q, time_k) = {full}, any axis but the last of size 1 or equal"
            )
            forms = [
                (full[-2:], f"jnp.broadcast_to({name}, {full}) for axes (time_q, time_k)"),
                ((*full[:-3], full[-1]), f"{name}[..., None, None, :] for axes (*batch, time_k)"),
            ]
            # Both, where batch and time_q have one size.
            fitting = " or ".join(form for shape, form in forms if x.shape == shape)
            repair = f"write {fitting}" if fitting else f"add a missing axis: {name}[..., None, :, :]"
            require(False, expected, x, FROM_TORCH if broadcasts_to(x.shape, swapped) else repair)
