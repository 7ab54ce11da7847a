"""Attention over a sequence that is sharded along a mesh axis: devices send keys and values, and keep queries.

Axis letters as in `jaxblocks.layers.attention`; ``time`` positions on each device, of ``devices * time`` in all.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Integer

from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveFloat, PositiveInt, checked
from jaxblocks.layers.attention.dot_product import Scale, attention
from jaxblocks.layers.attention.scores import ScoreOptions, attention_of_rows, beside_sink, score_arrays
from jaxblocks.layers.attention.tiles import by_chunks

__all__ = ["ring_attention"]


@checked
def ring_attention(
    q: Float[Array, "*batch time heads head_dim"],
    k: Float[Array, "*batch time kv_heads head_dim"],
    v: Float[Array, "*batch time kv_heads value_dim"],
    *,
    axis_name: str,
    scale: Scale = "inverse_sqrt",
    causal: bool = False,
    soft_cap: PositiveFloat | None = None,
    score_fn: Callable | None = None,
    chunk: PositiveInt = 128,
    mask: Bool[Array, "..."] | None = None,
    bias: Callable | None = None,
    sink: Float[Array, "heads"] | None = None,
    segment_ids: Integer[Array, "*batch time"] | None = None,
) -> Float[Array, "*batch time heads value_dim"]:
    r"""`attention` over a sequence in parts, one on each device of a mesh axis.

    The keys j of device r contribute the averages $y_i^r = (1 / d_i^r) ∑_j e^{s_{ij} - m_i^r} v_j$ with
    $d_i^r = ∑_j e^{s_{ij} - m_i^r}$, where $m_i^r$ is their largest score. The result is

    .. math::

        (∑_r e^{m_i^r - m_i} d_i^r y_i^r) / (∑_r e^{m_i^r - m_i} d_i^r),
        m_i = max_r m_i^r,

    up to rounding that of one device. The queries stay. In step s each device gets the keys and values of the device
    s places before it on the ring, so that no device holds more than two parts at once. They are sent again in the
    backward pass instead of being stored, and scores are computed in chunks of queries as by ``"chunked"`` in
    `attention`: the memory of a device is that of its part. Forward mode and second derivatives are exact.

    With ``causal`` and parts in the order of the sequence, the last device would compute most of the scores, and the
    others would wait. So each device exchanges halves first: of 2n halves on n devices, device i gets the halves i and
    2n - 1 - i, one from the front and one from the back (zigzag order). Of the keys of any other device, two
    products of halves are then unmasked, on every device, and only these are computed. The result is returned in the
    original order.

    Args:
        q, k, v: queries, keys and values of the same positions, grouped heads included, as in `attention`.
        axis_name: the mesh axis along which the sequence is sharded.
        scale, causal, soft_cap, score_fn: as in `attention`.
        chunk: the number of queries whose scores are in memory at the same time.
        mask: of keys, boolean ``(*batch, time)``, or ``(*batch, 1, 1, time)`` as the layer `Attention` passes it; True
            at valid keys.
        bias: a function ``bias(heads, time_q, time_k, offset)``, as in `attention`.
        sink: ``(heads,)``, the same on all devices, as in `attention`.
        segment_ids: integers ``(*batch, time)``, as in `attention`.

    In `jax.shard_map` the arrays are the parts of a device. Elsewhere they are the whole arrays, sharded over the mesh
    in context (of a training step, or of ``jax.set_mesh`` with automatic axes); without a mesh the result is that of
    `attention`. So a net trains on long sequences with ``Attention(...,
    attention_fn=functools.partial(ring_attention, axis_name="time"))`` and ``fit(..., mesh=jax.make_mesh((2, 4),
    ("data", "time")))``, and runs on one device too.

    Raises:
        ValueError: for a mesh without this axis, a length that its devices do not divide, and an odd number of
            positions on each device with ``causal``.

    >>> x = jax.random.normal(jax.random.key(0), (8, 2, 4))  # (time, heads, head_dim)
    >>> with jax.set_mesh(
    ...     jax.make_mesh((1,), ("time",), axis_types=(jax.sharding.AxisType.Auto,))
    ... ):
    ...     y = jax.jit(lambda x: ring_attention(x, x, x, axis_name="time", causal=True))(x)
    >>> expected = jax.jit(lambda x: attention(x, x, x, causal=True))(x)
    >>> bool(jnp.allclose(y, expected, atol=1e-6))
    True

    Source: Liu, Zaharia, Abbeel 2023, Ring attention with blockwise transformers for near-infinite context,
    arXiv:2310.01889; the order of halves: Dubey et al. 2024, The Llama 3 herd of models, section 3.3.2,
    arXiv:2407.21783.
    """
    # Only masks of keys move with the keys around the ring; a mask of queries and keys would be quadratic.
    if mask is not None:
        expected = f"a mask of keys, {(*k.shape[:-3], k.shape[-3])} or {(*k.shape[:-3], 1, 1, k.shape[-3])}"
        fits = mask.shape in ((*k.shape[:-3], k.shape[-3]), (*k.shape[:-3], 1, 1, k.shape[-3]))
        require(fits, expected, mask, "write other rules as bias, -inf where a key is forbidden")
        mask = mask.reshape(*k.shape[:-3], k.shape[-3])
    # The offset is set for each pair of devices, so it is 0 here.
    options = ScoreOptions(scale, causal, None, soft_cap, 0, score_fn=score_fn)
    run = functools.partial(_on_each_device, axis_name, options, bias, chunk)
    # All arrays are split along time and are passed as one tree: shard_map takes one spec for it.
    arrays = {"q": q, "k": k, "v": v, "mask": mask, "segments": segment_ids}
    arrays = {name: x for name, x in arrays.items() if x is not None}
    # Inside a shard_map or vmap of the caller, the arrays are already the parts of one device.
    if _is_bound(axis_name):
        return run(arrays, sink)
    mesh = jax.sharding.get_abstract_mesh()
    # Without a mesh there is one device, and attention over the whole sequence computes the same.
    if mesh.empty:
        allowed = None if mask is None else mask[..., None, None, :]
        same: dict[str, Any] = dict(scale=scale, causal=causal, soft_cap=soft_cap, score_fn=score_fn, bias=bias)
        return attention(q, k, v, chunk=chunk, mask=allowed, segment_ids=segment_ids, sink=sink, **same)
    if axis_name not in mesh.axis_names:
        expected = f"an axis of the mesh ({', '.join(map(repr, mesh.axis_names))})"
        require(False, expected, repr(axis_name), "pass the name of one of its axes")
    devices = mesh.shape[axis_name]
    expected = f"a length that the {devices} devices of {axis_name!r} divide"
    require(q.shape[-3] % devices == 0, expected, q, "pad the sequence, with mask= or with causal=True")
    # The axis of time is that after the batch axes, in q, k, v and in masks and segments alike.
    spec = PartitionSpec(*[None] * (q.ndim - 3), axis_name)
    specs = spec, PartitionSpec()  # each device has the whole sink
    return jax.shard_map(run, in_specs=specs, out_specs=spec, axis_names={axis_name})(arrays, sink)


def _is_bound(axis_name: str) -> bool:
    """Whether `jax.shard_map` or ``jax.vmap`` has bound this name."""
    try:
        lax.axis_size(axis_name)
    except NameError:
        return False
    return True


def _on_each_device(axis_name, options: ScoreOptions, bias, chunk: int, arrays, sink):
    """The result for the queries of this device, from the parts of all devices."""
    n, here = lax.axis_size(axis_name), lax.axis_index(axis_name)
    batch, time = arrays["q"].ndim - 3, arrays["q"].shape[-3]

    def averages(queries, keys, offset, causal=False):
        """Averages of queries over keys that begin ``offset`` positions before them, with the weights of these keys."""
        # attention_of_rows takes a pair of segment ids, for the queries and for the keys.
        two = (queries["segments"], keys["segments"]) if "segments" in keys else None
        mask = keys["mask"][..., None, None, :] if "mask" in keys else None
        given = options._replace(offset=offset, causal=causal)
        arrays, given = score_arrays(queries["q"], keys["k"], keys["v"], given, mask, bias, two)
        attend, rows = attention_of_rows(arrays, given, stored=True, parts=True)
        return by_chunks(attend, 0, rows, chunk=chunk)

    def route(steps):
        """Send the keys of each device to the device that is this number of places after it."""
        # lax.ppermute needs a static permutation, so each number of steps has its own, chosen by lax.switch in `step`.
        ring = [(i, (i + steps) % n) for i in range(n)]
        return lambda keys: jax.tree.map(lambda x: lax.ppermute(x, axis_name, ring), keys)

    def step(state, steps):
        there = (here - steps) % n
        # What is sent is sent again in the backward pass; as a carry of the loop it would be stored for each step.
        visit = lambda: others(there, lax.switch(steps - 1, [route(s) for s in range(1, n)], keys))
        return tuple(map(_add, state, jax.checkpoint(visit, prevent_cse=False)())), None

    queries = {name: x for name, x in arrays.items() if name in ("q", "segments")}
    keys = {name: x for name, x in arrays.items() if name != "q"}
    if options.causal:
        require(time % 2 == 0, "an even number of positions on each device", arrays["q"], "pad the sequence")
        # In causal order, halves i and 2 n - 1 - i on each device make the work of all devices equal.
        queries, keys = (_to_zigzag(tree, axis_name=axis_name, axis=batch) for tree in (queries, keys))
        own, others = _of_halves(averages, queries, keys, n, here, time // 2)
    else:
        # The device itself comes first; it needs no communication.
        own = (averages(queries, keys, 0),)
        # Positions of these queries minus positions of those keys, for biases that depend on distance.
        others = lambda there, keys: (averages(queries, keys, (here - there) * time),)
    state = lax.scan(step, own, jnp.arange(1, n, dtype=jnp.int32))[0] if n > 1 else own
    sink = None if sink is None else sink.reshape(*[1] * batch, len(sink), 1, 1)
    dtype = arrays["v"].dtype
    share = lambda total, top: 1 if sink is None else beside_sink(total, top, sink)
    parts = [jnp.moveaxis(out * share(total, top), -3, -2).astype(dtype) for out, total, top in state]
    return _from_zigzag(*parts, axis_name=axis_name, axis=batch) if options.causal else parts[0]


def _of_halves(averages, queries, keys, n, here, half):
    """Averages of the front and the back of this device over its own keys, and a function of those of another."""
    front, back = queries
    between = lambda a, b: (a - b) * half
    last = 2 * n - 1  # the number of the last half
    # A causal product within one half; the back half attends to all keys of the front half.
    own = (
        averages(front, keys[0], 0, causal=True),
        _add(averages(back, keys[0], between(last - here, here)), averages(back, keys[1], 0, causal=True)),
    )

    def others(there, keys):
        """The front attends to a front before it, the back to each front and to a back before it."""
        is_before = there < here
        # One product of selected operands instead of a lax.cond between two products of equal shapes.
        pick = lambda a, b: jax.tree.map(lambda a, b: jnp.where(is_before, a, b), a, b)
        # The back half is later than any front half: no mask is needed.
        of_each = averages(back, keys[0], between(last - here, there))
        other = averages(pick(front, back), pick(*keys), between(jnp.maximum(here, there), jnp.minimum(here, there)))
        return _only_where(is_before, other), _add(of_each, _only_where(~is_before, other))

    return own, others


def _add(a, b):
    """The averages over two sets of keys, each with the sum of its weights and the score whose weight is 1."""
    top = jnp.maximum(a[2], b[2])  # a constant for derivatives, since the average does not depend on it
    # Where both have no unmasked key, -inf - (-inf) would be NaN.
    finite = jnp.where(top == -jnp.inf, 0.0, top)
    of_a, of_b = a[1] * jnp.exp(a[2] - finite), b[1] * jnp.exp(b[2] - finite)
    total = of_a + of_b
    some = jnp.where(total == 0, 1.0, total)
    return a[0] * (of_a / some) + b[0] * (of_b / some), total, top


def _only_where(condition, averages):
    """These averages, or those of no keys."""
    # A largest score of -inf gives these keys the weight exp(-inf) = 0 in `_add`.
    return *averages[:2], jnp.where(condition, averages[2], -jnp.inf)


def _routes(n: int):
    """The devices to which each device sends its first and its second half."""
    # Half h of the sequence belongs on device min(h, 2 n - 1 - h). Device i has the halves 2 i (first) and 2 i + 1.
    return [[(i, min(half, 2 * n - 1 - half)) for i, half in enumerate(range(first, 2 * n, 2))] for first in (0, 1)]


def _to_zigzag(tree, *, axis_name, axis):
    """The halves i and 2 n - 1 - i of the sequence on device i, from the halves 2 i and 2 i + 1."""
    routes = _routes(lax.axis_size(axis_name))
    # Device i needs the halves i and 2 n - 1 - i: one is even, the other odd; for an even i, the even one is the front.
    is_even = lax.axis_index(axis_name) % 2 == 0

    def exchange(x):
        even, odd = (lax.ppermute(x, axis_name, route) for x, route in zip(jnp.split(x, 2, axis), routes, strict=True))
        return jnp.where(is_even, even, odd), jnp.where(is_even, odd, even)

    pairs = {name: exchange(x) for name, x in tree.items()}
    return tuple({name: pair[side] for name, pair in pairs.items()} for side in (0, 1))


def _from_zigzag(front, back, *, axis_name, axis):
    """The inverse of ``_to_zigzag``."""
    routes = _routes(lax.axis_size(axis_name))
    is_even = lax.axis_index(axis_name) % 2 == 0
    even, odd = jnp.where(is_even, front, back), jnp.where(is_even, back, front)
    reversed_routes = [[(to, start) for start, to in route] for route in routes]
    parts = [lax.ppermute(x, axis_name, route) for x, route in zip((even, odd), reversed_routes, strict=True)]
    return jnp.concatenate(parts, axis)
