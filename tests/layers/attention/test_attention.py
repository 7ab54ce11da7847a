"""Attention of heads: every option against a triple loop, parts against the whole, accelerators, meshes and errors."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from accelerators import code_of
from arrays import normal
from compiled import compiled
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxblocks import attention, attention_weights
from jaxblocks.ad import count_flops, scan
from jaxblocks.layers import attention_with_weights, hard_lookup, soft_lookup
from jaxblocks.layers.attention import dot_product
from jaxblocks.layers.attention import tiles as tiling

# One program for each call, where its values are not checked.
attention_weights = compiled(attention_weights)
attention_with_weights = compiled(attention_with_weights)
hard_lookup = compiled(hard_lookup)
soft_lookup = compiled(soft_lookup)

attend = compiled(attention)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def heads(seed, batch=(2,), time_q=3, time_k=4, n=2, d=5, v=6, dtype=np.float64):
    """Random q, k, v."""
    return (
        normal(seed, *batch, time_q, n, d, dtype=dtype),
        normal(seed + 1, *batch, time_k, n, d, dtype=dtype),
        normal(seed + 2, *batch, time_k, n, v, dtype=dtype),
    )


def loops(
    q,
    k,
    v,
    scale,
    mask=None,
    causal=False,
    sliding_window=None,
    soft_cap=None,
    bias=None,
    segments=None,
    bent=False,
    sink=None,
):
    """Attention of arrays without batch axes, in scalar loops; mask and bias are (heads, time_q, time_k).

    ``bent`` is the function of scores `bend`; the ``sink`` of each head is one more logit of the softmax.
    """
    (time_q, n, d), (time_k, n_kv, width) = q.shape, v.shape
    out, weights = np.zeros((time_q, n, width)), np.zeros((n, time_q, time_k))
    for h, i in itertools.product(range(n), range(time_q)):
        position, scores, own = i + time_k - time_q, {}, h // (n // n_kv)
        for j in range(time_k):
            late = causal and j > position
            far = sliding_window is not None and abs(position - j) >= sliding_window
            other = segments is not None and segments[0][i] != segments[1][j]
            if late or far or other or (mask is not None and not mask[h, i, j]):
                continue
            score = scale * sum(q[i, h, c] * k[j, own, c] for c in range(d))
            score = score if soft_cap is None else soft_cap * math.tanh(score / soft_cap)
            score = score + (h + 1) * abs(position - j) / 8 * score**2 if bent else score
            scores[j] = score + (0 if bias is None else float(bias[h, i, j]))
        total = sum(math.exp(s) for s in scores.values()) + (0 if sink is None else math.exp(sink[h]))
        for j, s in scores.items():
            weights[h, i, j] = math.exp(s) / total
            out[i, h] += weights[h, i, j] * v[j, own]
    return out, weights


def derivatives(f, cotangent, *x):
    """Value and gradients, compiled once."""

    @jax.jit
    def both(cotangent, *x):
        value, pullback = jax.vjp(f, *x)
        return value, *pullback(cotangent)

    return jax.tree.map(np.asarray, both(cotangent, *x))


TABLE = np.arange(10, dtype=np.float32).reshape(5, 2)

# Lookup tables


def test_hard_lookup_returns_values_of_keys():
    keys = np.eye(5, dtype=np.float32)
    np.testing.assert_array_equal(hard_lookup(keys[2], keys, TABLE), [4, 5])
    np.testing.assert_array_equal(hard_lookup(keys[2] + 2 * keys[4], keys, TABLE), [20, 23])
    np.testing.assert_array_equal(hard_lookup(keys, keys, TABLE), TABLE)
    np.testing.assert_array_equal(
        jax.jit(jax.jacobian(hard_lookup.__wrapped__))(keys[0], keys, TABLE), TABLE.T
    )  # d/dq_i is v_i


@pytest.mark.parametrize("lookup", [hard_lookup, soft_lookup])
def test_lookups_broadcast_over_queries_and_tables(lookup):
    query, keys, values = (normal(i, *s, dtype=np.float32) for i, s in enumerate([(3, 2, 4, 5), (3, 6, 5), (3, 6, 7)]))
    grid = lookup(query, keys, values)
    assert grid.shape == (3, 2, 4, 7)
    for b, i, j in itertools.product(range(3), range(2), range(4)):
        close = {"rtol": 1e-5, "atol": 1e-6}
        np.testing.assert_allclose(lookup(query[b, i, j], keys[b], values[b]), grid[b, i, j], **close)
    np.testing.assert_allclose(lookup(query[:, 0, 0], keys, values), grid[:, 0, 0], **close)
    mapped = jax.jit(jax.vmap(lookup.__wrapped__))(query, keys, values)
    np.testing.assert_allclose(mapped, grid, **close)


def test_soft_lookup_published_weights():
    keys = np.eye(5, dtype=np.float32)

    def weights(q):
        return soft_lookup(q, keys, keys)  # with values e_i the output is the weights

    rest, third = 0.1488476, 0.4046097
    np.testing.assert_allclose(weights(keys[2]), [rest, rest, third, rest, rest], atol=5e-8)
    both = [0.0762931, 0.0762931, 0.2073863, 0.0762931, 0.5637343]
    np.testing.assert_allclose(weights(keys[2] + 2 * keys[4]), both, atol=1e-7)
    np.testing.assert_allclose(weights(10 * keys[2])[2], 0.9998184, atol=1e-7)
    expected = np.array([rest, rest, third, rest, rest]) @ TABLE
    np.testing.assert_allclose(soft_lookup(keys[2], keys, TABLE), expected, rtol=1e-6)


def test_soft_lookup_is_in_the_convex_hull_and_tends_to_the_best_value():
    """All keys except the best match have a total weight below (n - 1) exp(-scale gap)."""
    with jax.enable_x64(True):
        query, keys, values = normal(0, 4), normal(1, 6, 4), normal(2, 6, 3)
        matches = np.sort(keys @ query)
        gap, best = matches[-1] - matches[-2], values[np.argmax(keys @ query)]
        spread = np.abs(values[:, None] - values[None]).max()
        lookup = jax.jit(soft_lookup.__wrapped__)
        for scale in (0.0, 1.0, 3.0, 10.0, 30.0, 100.0):
            found = lookup(scale * query, keys, values)
            assert np.all(found >= values.min(0) - 1e-14) and np.all(found <= values.max(0) + 1e-14)
            assert np.abs(found - best).max() <= 5 * math.exp(-scale * gap) * spread + 1e-14
            by_option = lookup(query, keys, values, scale=scale)
            np.testing.assert_allclose(by_option, found, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(soft_lookup(np.zeros(4), keys, values), values.mean(0))


def test_example_2_4_of_the_lecture():
    """One query, three keys, values 1..12; the entries that the lecture does not print."""
    query, keys = np.float32([[1, 0]]), np.float32([[1, 0], [0, 1], [1, 1]])
    values = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    for scale, expected in [
        (None, [0.4223188, 0.1553624, 0.4223188]),
        ("inverse_sqrt", [0.4011121, 0.1977758, 0.4011121]),
    ]:
        weights = attention_weights(query[:, None], keys[:, None], scale=scale)
        np.testing.assert_allclose(weights, [[expected]], atol=6e-8)
        np.testing.assert_allclose(soft_lookup(query, keys, values, scale=scale), [[5, 6, 7, 8]], rtol=1e-6)
        heads_out = attend(query[:, None], keys[:, None], values[:, None], scale=scale)
        np.testing.assert_array_equal(heads_out[:, 0], soft_lookup(query, keys, values, scale=scale))
    # as printed, (Q W^Q)^T (K W^K) multiplies 2 x 1 by 3 x 2
    with pytest.raises(ValueError, match="mismatch"):
        query.T @ keys


# The formula


def sides(q, k):
    """Random masks and biases for the grid below."""
    full = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    rng = np.random.default_rng(7)
    mask, bias = rng.random(full) < 0.6, rng.normal(size=full)
    mask[0, :, 1] = False
    return mask, bias


def leaning(heads, n_q, n_k, offset):
    """A bias given as a function: -(h + 1) |i + offset - j| / 8."""
    places = jnp.arange(n_q, dtype=jnp.int32)[:, None] + offset
    distance = jnp.abs(places - np.arange(n_k, dtype=np.int32)[None])
    return (np.arange(heads, dtype=np.int32)[:, None, None] + 1) * distance[None] / -8


def bend(scores, offset):
    """A function of scores, heads and positions: s + (h + 1) |i + offset - j| / 8 s^2."""
    steepness = -leaning(*scores.shape[-3:], offset)
    return scores + steepness.reshape(*[1] * (scores.ndim - 3), *steepness.shape).astype(scores.dtype) * scores**2


CHUNKS, BLOCKS, TILES, HEADS = "chunks", "blocks", "tiles of blocks of chunks", "tiles of several heads"

# A tile has keys of at least two heads, and contains blocks of chunks; where these are tiled, one of both is enough.
GRID = {  # time_q, time_k, heads, kv_heads, options, forms
    "causal, grouped heads, mask of keys": (
        5,
        7,
        4,
        2,
        {"causal": True, "mask": "keys", "scale": None, "sink": True},
        (CHUNKS, TILES),
    ),
    "causal, more queries": (
        7,
        5,
        4,
        4,
        {"causal": True, "soft_cap": 1.5, "mask": "heads", "score_fn": bend},
        (CHUNKS, BLOCKS),
    ),
    "window, one head of keys, bias": (7, 7, 3, 1, {"sliding_window": 2, "bias": "full"}, (CHUNKS, BLOCKS)),
    "causal window, segments, function": (
        9,
        9,
        2,
        2,
        {
            "causal": True,
            "sliding_window": 3,
            "segments": True,
            "bias": leaning,
            "soft_cap": 0.7,
        },
        (CHUNKS, BLOCKS),
    ),
    "window at an offset, mask, segments": (
        5,
        11,
        4,
        4,
        {"sliding_window": 2, "mask": "full", "bias": "heads", "sink": True, "segments": True},
        (BLOCKS, TILES),
    ),
    "plain": (5, 7, 4, 4, {}, (CHUNKS, HEADS)),
}


# Sizes that make parts of small arrays: the arguments of attention, and the constants that choose the parts.
SMALL = {"_SPLIT": 1, "_BLOCK": 1, "_TILE": 1}
PARTS = {
    CHUNKS: ({"implementation": "chunked", "chunk": 1}, {}),
    BLOCKS: ({}, {**SMALL, "_TILED": 10**9}),
    TILES: ({"chunk": 1}, {**SMALL, "_TILED": 0, "_CHUNKED": 0}),
    HEADS: ({}, {**SMALL, "_TILED": 0, "_TILE": 160}),
}


def test_offsets_of_eager_calls_share_their_programs():
    """A loop over a cache of one size has another offset in each call."""
    q, k = normal(0, 1, 2, 4).astype(np.float32), normal(1, 7, 2, 4).astype(np.float32)
    size = dot_product._jitted_parts._cache_size()
    outputs = [attention(q, k, k, causal=True, offset=i) for i in range(1, 5)]
    assert dot_product._jitted_parts._cache_size() == size
    for i, out in enumerate(outputs, 1):
        np.testing.assert_allclose(out, attention(q, k[: i + 1], k[: i + 1]), rtol=1e-5, atol=1e-6)


@pytest.mark.cpu
@pytest.mark.parametrize("name", GRID)
def test_every_option_equals_loops_in_all_parts(name, monkeypatch):
    """einsum equals the triple loop; all parts equal einsum in values and gradients, and one in second derivatives."""
    monkeypatch.setattr(tiling, "_cores", lambda: 1)
    chosen = {}  # the parts of each form
    time_q, time_k, n, n_kv, options, forms = GRID[name]
    second = name == "causal, grouped heads, mask of keys"
    q, v = normal(0, 2, time_q, n, 4), normal(2, 2, time_k, n_kv, 3)
    k = normal(1, 2, time_k, n_kv, 4)
    mask, bias = sides(q, k)
    part = {"full": np.s_[:], "heads": np.s_[:1, :, :1], "keys": np.s_[:, :1, :1]}
    mask = mask[part[options["mask"]]] if "mask" in options else None
    bias = bias[part[options["bias"]]] if isinstance(options.get("bias"), str) else options.get("bias")
    segments = [np.arange(2 * t).reshape(2, t) * 2 // t for t in (time_q, time_k)] if "segments" in options else None
    numbers = {name: options[name] for name in ("causal", "sliding_window", "soft_cap", "scale") if name in options}
    functions = {"score_fn": bend} if "score_fn" in options else {}
    given = {} if mask is None else {"mask": jnp.asarray(mask)}
    given |= {"segment_ids": tuple(map(jnp.asarray, segments))} if segments else {}
    moving = {} if bias is None or callable(bias) else {"bias": bias}
    moving |= {"sink": normal(3, n)} if "sink" in options else {}

    def derived(form, arguments, direction):
        arguments_of_form, sizes = PARTS.get(form, ({"implementation": form}, {}))

        def f(q, k, v, moving):
            own = {"bias": bias, **given, **numbers, **functions, **moving}
            with monkeypatch.context() as patch:
                for constant, size in sizes.items():
                    patch.setattr(tiling, constant, size)
                record = lambda *given: chosen.setdefault(form, tiling.choose_parts(*given))
                patch.setattr(dot_product, "choose_parts", record)
                return attention(q, k, v, **arguments_of_form, **own)

        def loss(arguments):
            outputs = f(*arguments)
            return jnp.sum(jnp.sin(outputs)), outputs

        gradient_of = jax.grad(loss, has_aux=True)
        if not second:
            return gradient_of(arguments)[::-1]
        (gradient, outputs), (product, _) = jax.jvp(gradient_of, (arguments,), (direction,))
        return outputs, gradient, product

    with jax.enable_x64(True):
        arguments = q, k, v, moving
        direction = jax.tree.map(lambda x: normal(8 + x.ndim, *x.shape), arguments)
        plain, *others = jax.jit(lambda *a: [derived(form, *a) for form in ("einsum", *forms)])(arguments, direction)
        everywhere = (2, n, time_q, time_k)
        if callable(bias):
            bias = np.asarray(bias(n, time_q, time_k, time_k - time_q))[None]
        mask, bias = (None if x is None else np.broadcast_to(x, everywhere) for x in (mask, bias))
    assert chosen["einsum"] == tiling.Parts()
    for form in forms:
        assert (chosen[form].tile is not None) == (form in (TILES, HEADS))
        assert form not in (CHUNKS, TILES) or chosen[form].chunk == 1
        assert form not in (BLOCKS, TILES) or chosen[form].block is not None
    numbers["scale"] = 1.0 if "scale" in numbers else 0.5
    for b in range(2):
        own = {"mask": None if mask is None else mask[b], "bias": None if bias is None else bias[b]}
        own |= {"segments": None if segments is None else [s[b] for s in segments], "sink": moving.get("sink")}
        np.testing.assert_allclose(
            plain[0][b], loops(q[b], k[b], v[b], bent=bool(functions), **numbers, **own)[0], rtol=1e-11, atol=1e-13
        )
    for ours, theirs in zip(jax.tree.leaves(others), len(forms) * jax.tree.leaves(plain), strict=True):
        assert np.abs(ours).max() > 0
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


def test_chunks_of_accelerators_are_large(monkeypatch):
    """2^25 scores of all heads at once, in place of 128 queries, and no chunks where all queries are as many."""
    chosen, choose = [], tiling.choose_parts
    monkeypatch.setattr(dot_product, "choose_parts", lambda *given: chosen.append(choose(*given)) or chosen[-1])

    def attend(heads, time, batch=1, **options):
        q = jax.ShapeDtypeStruct((batch, time, heads, 2), jnp.float32)
        jax.eval_shape(lambda q: attention(q, q, q, causal=True, **options), q)
        return chosen[-1]

    with code_of("gpu"):
        assert attend(8, 4096) == tiling.Parts(None, 1024, 1024)
        assert attend(8, 4096, implementation="chunked") == tiling.Parts(None, 1024, 128)
        assert attend(8, 4096, sliding_window=100) == tiling.Parts(None, None, 128)
        assert attend(1, 2**16) == tiling.Parts(None, 2**14, 2**9)
        assert attend(4, 1600) == tiling.Parts()
        assert attend(128, 4096) == attend(8, 4096, batch=16) == tiling.Parts(None, 1024, 128)
        [batch] = jax.export.symbolic_shape("batch")
        assert attend(8, 4096, batch=batch) == tiling.Parts(None, 1024, 128)


@pytest.mark.cpu
def test_functions_of_scores_and_biases_are_not_called_for_each_tile(monkeypatch):
    """A loop over tiles of examples and heads would call them with all heads each time."""
    chosen, choose = [], tiling.choose_parts
    monkeypatch.setattr(dot_product, "choose_parts", lambda *given: chosen.append(choose(*given)) or chosen[-1])
    monkeypatch.setattr(tiling, "_cores", lambda: 1)
    q = jax.ShapeDtypeStruct((4, 2048, 4, 2), jnp.float32)
    for options in ({}, {"score_fn": lambda scores, offset: scores}, {"bias": lambda h, n, m, o: jnp.zeros((h, n, m))}):
        jax.eval_shape(lambda q, options=options: attention(q, q, q, causal=True, **options), q)
    assert [one.tile is not None for one in chosen] == [True, False, False]


@pytest.mark.parametrize("sizes", [(3, 5), (5, 3)])
def test_alignment_with_the_first_key(sizes):
    """Causal with offset="first" is the lower triangle of torch and ONNX; the default ends with the last key."""
    q, k, v = heads(0, batch=(), time_q=sizes[0], time_k=sizes[1])
    with jax.enable_x64(True):
        first, last, number = (attend(q, k, v, causal=True, offset=offset) for offset in ("first", "last", 1))
    lower = np.tril(np.ones((2, *sizes), bool))
    np.testing.assert_allclose(last[-1], loops(q, k, v, 5**-0.5)[0][-1], atol=1e-13)
    later = np.tril(np.ones((2, *sizes), bool), 1)
    np.testing.assert_allclose(number, loops(q, k, v, 5**-0.5, later)[0], atol=1e-13)
    np.testing.assert_allclose(first, loops(q, k, v, 5**-0.5, lower)[0], atol=1e-13)


@pytest.mark.parametrize("window", [(1, 2), (3, 0)])
def test_windows_with_two_sides_equal_those_of_jax_nn(window):
    q, k, v = (normal(i, 1, 7, 2, 4, dtype=np.float32) for i in range(3))
    theirs = compiled(jax.nn.dot_product_attention)(q, k, v, local_window_size=window)
    for options in ({}, {"implementation": "chunked", "chunk": 2}):
        np.testing.assert_allclose(attend(q, k, v, sliding_window=window, **options), theirs, rtol=1e-5, atol=1e-6)
    past = attend(q, k, v, sliding_window=(window[0], 0))
    np.testing.assert_allclose(attend(q, k, v, sliding_window=window, causal=True), past, rtol=1e-5, atol=1e-6)


def test_weights_returned_with_the_output():
    """The output is the product of the weights, also after dropout, and every key has a weight, also with a window."""
    q, k, v = heads(0, batch=(), time_q=2, time_k=9, dtype=np.float32)
    options = dict(causal=True, sliding_window=3, soft_cap=1.0, bias=leaning)
    out, weights = attention_with_weights(q, k, v, **options)
    np.testing.assert_allclose(out, attend(q, k, v, **options), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(weights, attention_weights(q, k, **options), rtol=1e-6)
    assert weights.shape == (2, 2, 9) and np.array_equal(weights[0, 0] > 0, np.abs(np.arange(9) - 6) < 2)
    out, dropped = attention_with_weights(q, k, v, dropout=0.5, key=jax.random.key(0))
    full = attention_weights(q, k)
    np.testing.assert_allclose(dropped, np.where(dropped == 0, 0, 2 * full), rtol=1e-6)
    np.testing.assert_allclose(out, np.einsum("hqk,khv->qhv", dropped, v), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(out, attend(q, k, v, dropout=0.5, key=jax.random.key(0)), rtol=1e-5, atol=1e-6)
    assert 5 < int((dropped == 0).sum()) < 31


def test_attention_weights_accept_the_options_of_attention():
    q, k, v = heads(0, batch=(), time_q=3, dtype=np.float32)
    mask, bias = np.array([[[False, True, True, True]]]), normal(5, 2, 3, 4, dtype=np.float32)
    weights = attention_weights(q, k, scale=0.5, causal=True, sliding_window=2, soft_cap=1.0, mask=mask, bias=bias)
    options = {
        "mask": np.broadcast_to(mask, bias.shape),
        "causal": True,
        "sliding_window": 2,
        "soft_cap": 1.0,
        "bias": bias,
    }
    expected = loops(*(np.asarray(x, np.float64) for x in (q, k, v)), 0.5, **options)
    np.testing.assert_allclose(weights, expected[1], rtol=1e-5, atol=1e-6)


def test_dropout_of_weights(monkeypatch):
    """Weights are dropped at the given rate and the rest scaled; the draw does not depend on the implementation."""
    q, k = np.zeros((2, 40, 4, 4), np.float32), np.zeros((2, 50, 4, 4), np.float32)
    v = np.broadcast_to(np.eye(50, dtype=np.float32)[:, None], (2, 50, 4, 50))  # so that the output is the weights
    drop = functools.partial(attend, q, k, v, dropout=0.3)
    weights = drop(key=jax.random.key(1))
    np.testing.assert_allclose(weights[weights > 0], 1 / 50 / 0.7, rtol=1e-5)
    assert abs(float((weights == 0).mean()) - 0.3) < 0.03
    chunked = drop(key=jax.random.key(1), implementation="chunked", chunk=16)
    np.testing.assert_allclose(chunked, weights, rtol=1e-5)
    assert not np.array_equal(drop(key=jax.random.key(2)), weights)
    windowed = drop(sliding_window=5, key=jax.random.key(1), implementation="einsum")
    monkeypatch.setattr(tiling, "_cores", lambda: 1)
    for sizes in ({"_BLOCK": 8, "_SPLIT": 16}, {"_TILED": 0, "_TILE": 1}, {"_CHUNKED": 0}):
        for constant, size in sizes.items():
            monkeypatch.setattr(tiling, constant, size)
        by_parts = jax.jit(functools.partial(attention, dropout=0.3, sliding_window=5))(q, k, v, key=jax.random.key(1))
        np.testing.assert_allclose(by_parts, windowed, rtol=1e-5)


CAUSAL = np.tril(np.ones((3, 3), bool))


def by_hand(q, k, v, mask):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
    weights = jnp.where(mask, jnp.exp(scores), 0.0)
    return jnp.einsum("bhqk,bkhd->bqhd", weights / jnp.maximum(weights.sum(-1, keepdims=True), 1e-30), v)


def largest(jaxpr):
    """The number of entries of the largest array in a jaxpr."""
    sizes = [math.prod(v.aval.shape) for eqn in jaxpr.eqns for v in eqn.outvars]
    inner = [p.jaxpr if hasattr(p, "jaxpr") else p for eqn in jaxpr.eqns for p in jax.tree.leaves(eqn.params)]
    return max([*sizes, *(largest(j) for j in inner if hasattr(j, "eqns"))], default=0)


def test_chunked_attention_never_stores_all_scores():
    """The largest array of the gradient is one chunk of scores; with a window, one chunk of the window."""
    shapes = [jax.ShapeDtypeStruct((512, 2, 4), jnp.float32)] * 3

    def size(**options):
        gradient = jax.grad(lambda *x: attention(*x, chunk=16, **options).sum(), argnums=(0, 1, 2))
        return largest(jax.make_jaxpr(gradient)(*shapes).jaxpr)

    assert size(implementation="einsum") == 2 * 512 * 512
    assert size(implementation="chunked", causal=True, segment_ids=jnp.zeros(512, int)) == 2 * 16 * 512
    assert size(implementation="chunked", bias=leaning) == 2 * 16 * 512
    assert size(implementation="chunked", score_fn=bend, sink=jnp.zeros(2)) == 2 * 16 * 512
    assert size(implementation="chunked", causal=True, sliding_window=32) <= 512 * 2 * 4


@pytest.mark.cpu
def test_long_sequences_are_chunked_by_default():
    def chunked(n_q, n_k=1024):
        shapes = [jax.ShapeDtypeStruct((n, 1, 4), jnp.float32) for n in (n_q, n_k, n_k)]
        return "scan" in str(jax.make_jaxpr(attention)(*shapes))

    assert chunked(1025) and not chunked(1024) and not chunked(1, 2**21)


@pytest.mark.cpu
def test_blocks_of_queries_skip_masked_keys_by_default():
    """If causal, four blocks, or groups of chunks, compute (1 + 2 + 3 + 4) / 16 of all scores."""

    def share(n, **options):
        shapes = [jax.ShapeDtypeStruct((n, 1, 4), jnp.float32)] * 3
        einsum = functools.partial(attention, implementation="einsum")
        return count_flops(attention, *shapes, **options).dots / count_flops(einsum, *shapes).dots

    assert share(256) == share(64, causal=True) == 1
    assert share(256, causal=True) == share(512, causal=True) == share(2048, causal=True) == 5 / 8
    assert share(512, sliding_window=(10, 0)) == (64 + 7 * 74) / (8 * 512)


# Sinks and functions of scores


def test_a_sink_is_a_logit_of_the_softmax_that_is_dropped():
    """gpt-oss: one logit for each head is concatenated to the scores, and its column of weights dropped."""
    q, k, v = heads(0)
    sink = np.array([0.5, -2.0])
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) / 5**0.5
    column = np.broadcast_to(sink[None, :, None, None], (*scores.shape[:3], 1))
    expected = softmax(np.concatenate([scores, column], -1))[..., :-1]
    with jax.enable_x64(True):
        np.testing.assert_allclose(attention_weights(q, k, sink=sink), expected, rtol=1e-12)
        out, weights = attention_with_weights(q, k, v, sink=sink)
        np.testing.assert_allclose(weights, expected, rtol=1e-12)
        np.testing.assert_allclose(out, np.einsum("bhqk,bkhv->bqhv", expected, v), rtol=1e-11)
        dropped = attend(q, k, v, sink=sink, dropout=0.5, key=jax.random.key(0))
        without = attend(q, k, v, dropout=0.5, key=jax.random.key(0))
    np.testing.assert_allclose(dropped, without * np.moveaxis(expected.sum(-1), 1, 2)[..., None], rtol=1e-11)
    half = [x.astype(jnp.bfloat16) for x in (q, k, v)]
    ours = attend(*half, sink=sink.astype(jnp.bfloat16))
    exact = [loops(*(x[b].astype(np.float64) for x in half), 5**-0.5, sink=sink)[0] for b in range(2)]
    assert ours.dtype == jnp.bfloat16
    np.testing.assert_allclose(ours.astype(np.float32), exact, atol=2 * float(jnp.finfo(jnp.bfloat16).eps))


def test_sinks_that_are_small_or_large():
    """-inf is none, one far above all scores takes all weight; rows without a key are zero, and gradients finite."""
    q, k, v = heads(0, dtype=np.float32)
    mask = np.ones((2, 2, 3, 4), bool)
    mask[0, 0, 1] = False

    @jax.jit
    def derived(sink, q, k, v):
        f = lambda *x: attention(*x[1:], sink=x[0], mask=mask)
        out, pullback = jax.vjp(f, sink, q, k, v)
        cotangent = jnp.ones_like(out)
        return (
            out,
            *pullback(cotangent),
            jax.jvp(lambda *x: jax.vjp(f, *x)[1](cotangent), (sink, q, k, v), (v[0, 0, :, 0], q, k, v))[1],
        )

    plain = attend(q, k, v, mask=mask)
    for size, expected in ((-np.inf, plain), (-1e30, plain), (200, 0 * plain), (1e30, 0 * plain)):
        out, *others = derived(np.full(2, size, np.float32), q, k, v)
        np.testing.assert_array_equal(out, expected)
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(others))
    # The derivative with respect to z is minus the weight of the sink, times the output.
    weight = math.exp(-20) / np.exp(np.einsum("bqhd,bkhd->bqhk", q, k) / 5**0.5).sum(-1)
    _, gradient, *_ = derived(np.full(2, -20, np.float32), q, k, v)
    expected = -(weight[..., None] * plain)
    expected[0, 1, 0] = 0
    np.testing.assert_allclose(gradient, expected.sum((0, 1, 3)), rtol=1e-5)
    masked = jax.jit(jax.grad(lambda z: attention(q, k, v, sink=z, mask=mask)[0, 1, 0].sum()))(np.zeros(2, np.float32))
    np.testing.assert_array_equal(masked, np.zeros(2))


def test_functions_of_scores():
    """A score of -inf is no key, as one that is masked."""
    q, k, v = heads(0, batch=(), time_q=6, time_k=6, dtype=np.float32)
    past = lambda scores, offset: jnp.where(np.tril(np.ones((6, 6), bool)), bend(scores, offset), -jnp.inf)
    causal = attend(q, k, v, causal=True, score_fn=bend)
    np.testing.assert_allclose(attend(q, k, v, score_fn=past), causal, rtol=1e-5, atol=1e-6)


def test_offsets_of_examples_are_those_of_a_map():
    """Caches of one size with 3 and 5 valid keys, as nonpad_kv_seqlen of ONNX: j <= i + n - time_q."""
    q, k, v = heads(0, time_q=2, time_k=6)
    valid = np.array([3, 5])
    with jax.enable_x64(True):
        attend_one = lambda q, k, v, offset: attention(q, k, v, causal=True, offset=offset)
        ours = jax.jit(jax.vmap(attend_one))(q, k, v, jnp.asarray(valid - 2, jnp.int32))
        of_all = attend(q, k, v, mask=(np.arange(6) < valid[:, None])[:, None, None, :])
    for b, n in enumerate(valid):
        kept = np.arange(6)[None] <= np.arange(2)[:, None] + n - 2
        expected = loops(q[b], k[b], v[b], 5**-0.5, np.broadcast_to(kept, (2, 2, 6)))[0]
        np.testing.assert_allclose(ours[b], expected, rtol=1e-12)
        np.testing.assert_allclose(of_all[b], loops(q[b], k[b, :n], v[b, :n], 5**-0.5)[0], rtol=1e-12)


# Masking


def test_masked_weights_are_zero_and_a_fully_masked_row_gives_zeros():
    q, k, v = heads(0, dtype=np.float32)
    mask = np.random.default_rng(0).random((2, 2, 3, 4)) < 0.5
    mask[0, 1, 2] = False
    weights = attention_weights(q, k, mask=mask)
    assert np.all(weights[~mask] == 0)
    np.testing.assert_allclose(weights.sum(-1), mask.any(-1), rtol=1e-6)

    @jax.jit
    def derived(mask, *x):
        f = functools.partial(attention, mask=mask)
        out, pullback = jax.vjp(f, *x)
        return out, *pullback(jnp.ones_like(out)), jax.jvp(f, x, x)[1]

    out, dq, dk, dv, tangent = map(np.asarray, derived(mask, q, k, v))
    assert np.all(out[0, 2, 1] == 0) and np.all(tangent[0, 2, 1] == 0) and np.all(dq[0, 2, 1] == 0)
    assert all(np.all(np.isfinite(g)) for g in (dq, dk, dv, tangent))
    for g in derived(np.zeros_like(mask), q, k, v):
        assert np.all(np.asarray(g) == 0)


def test_masked_values_have_no_effect():
    q, k, v = heads(0, batch=(), dtype=np.float32)
    past, later = np.tril(np.ones((1, 3, 4), bool)), np.arange(4)[:, None, None] >= 2
    out = attend(q, k, v, mask=past)
    other = attend(q, np.where(later, np.float32(1e4), k), np.where(later, np.float32(-7), v), mask=past)
    np.testing.assert_array_equal(out[:2], other[:2])
    assert not np.array_equal(out[2], other[2])
    np.testing.assert_allclose(out[:1], v[:1], rtol=1e-6)
    # a large negative number instead of -inf would fail for scores below it
    row, match = np.array([[[True, False, False, False]]]), np.float32([-1e4, 1e4, 0, 0])[:, None, None]
    best = attend(np.full((1, 1, 1), 1e4, np.float32), match, v[:, :1], scale=None, mask=row)
    np.testing.assert_array_equal(best[0], v[0, :1])
    np.testing.assert_allclose(attend(q, k, v, mask=np.ones((1, 1, 4), bool)), attend(q, k, v), rtol=1e-6)


def test_zero_keys_give_zeros():
    q, k, v = heads(0, time_k=0, dtype=np.float32)
    for mask in (None, np.ones((1, 1, 3, 0), bool)):
        np.testing.assert_array_equal(attend(q, k, v, mask=mask), np.zeros((2, 3, 2, 6)))


# Derivatives, dtypes, transforms


def test_the_scale_is_differentiable():
    q, k, v = heads(0, dtype=np.float32)
    total, step = jax.jit(lambda s: attention(q, k, v, scale=s).sum()), np.float32(1e-2)
    gradient = jax.jit(jax.grad(total))(np.float32(0.7))
    ahead, behind = (np.asarray(total(np.float32(0.7) + sign * step)) for sign in (1, -1))
    difference = (ahead - behind) / (2 * step)
    np.testing.assert_allclose(gradient, difference, rtol=1e-3)


def test_extreme_scores_select_one_key_and_stay_finite():
    q, k, v = heads(0, dtype=np.float32)
    mask = np.tril(np.ones((1, 1, 3, 4), bool), 1)
    f, large = functools.partial(attention, mask=mask), np.float32(1e4)
    out, *gradients = derivatives(f, np.ones((2, 3, 2, 6), np.float32), large * q, -large * k, v)
    best = np.argmax(np.where(mask, np.einsum("bqhd,bkhd->bhqk", q, -k), -np.inf), -1)  # (batch, heads, time_q)
    for b, h, i in itertools.product(range(2), range(2), range(3)):
        np.testing.assert_allclose(out[b, i, h], v[b, best[b, h, i], h], rtol=1e-6)
    assert all(np.isfinite(g).all() for g in gradients)


@pytest.mark.parametrize(("batch", "n_q"), [((0,), 4), ((), 0)])
def test_gradients_without_examples_or_queries(batch, n_q):
    x = [np.ones((*batch, n, 2, 3), np.float32) for n in (n_q, 4, 4)]
    gradients = jax.jit(jax.grad(lambda x: attention(*x, sink=jnp.zeros(2)).sum()))(x)
    jax.tree.map(np.testing.assert_array_equal, gradients, [0 * each for each in x])


def test_values_may_have_another_dtype_than_queries():
    """Also where JAX promotes no dtypes."""
    q, k, v = heads(0, dtype=np.float32)
    with jax.enable_x64(True):
        expected = attention(*(jnp.asarray(x, jnp.float64) for x in (q, k, v)))
        for dtypes in ((jnp.float32, jnp.float64), (jnp.float64, jnp.float32)):
            given = jnp.asarray(q, dtypes[0]), jnp.asarray(k, dtypes[0]), jnp.asarray(v, dtypes[1])
            found, tangent = jax.jvp(attention, given, given)
            assert found.dtype == tangent.dtype == dtypes[1]
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sink", [False, True])
def test_the_tangent_of_the_values_is_exact_beside_large_scores(sink):
    """Of weights near 1: terms of the scores, which are larger than those of the values, cancel."""
    r = np.random.default_rng(1)
    q, k, v, d_q, d_k, d_v = (s * r.normal(size=(16, 2, 32)).astype(np.float32) for s in (100, 100, 1, 100, 100, 1))
    options = {"sink": np.float32([-1.0, 2.0])} if sink else {}
    found = compiled(lambda x, d: jax.jvp(lambda *x: attention(*x, **options), x, d)[1])((q, k, v), (d_q, d_k, d_v))
    with jax.enable_x64(True):
        wide = [x.astype(np.float64) for x in (q, k, v, d_q, d_k, d_v)]
        scores = np.einsum("qhd,khd->hqk", *wide[:2]) / 32**0.5
        assert np.diff(np.sort(scores, -1)[..., -2:]).min() > 20  # so that the weights are 0 and 1
        expected = np.einsum("hqk,khd->qhd", scores == scores.max(-1, keepdims=True), wide[5])
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_gradients_in_half_precision_are_rounded_once():
    """Where the scores are large, of two terms that are rounded by themselves no digit would remain."""
    r = np.random.default_rng(1)
    q, k, v, w = ((s * r.normal(size=(16, 2, 32))).astype(jnp.bfloat16) for s in (8, 8, 1, 1))
    gradients = lambda f: compiled(jax.grad(lambda q, k, v, w: jnp.sum(f(q, k, v) * w, dtype=jnp.float32), (0, 1, 2)))

    def formula(q, k, v):
        weights = jax.nn.softmax(jnp.einsum("qhd,khd->hqk", q, k) / 32**0.5)
        return jnp.einsum("hqk,khd->qhd", weights, v)

    with jax.enable_x64(True):
        expected = gradients(formula)(*(x.astype(np.float64) for x in (q, k, v, w)))
    for got, wanted in zip(gradients(attention)(q, k, v, w), expected, strict=True):
        error = np.linalg.norm(got.astype(np.float64) - wanted) / np.linalg.norm(wanted)
        assert error < float(jnp.finfo(jnp.bfloat16).eps)


def test_half_precision_is_summed_in_float32():
    dtype = jnp.bfloat16
    q, k, v = (x.astype(dtype) for x in heads(0, dtype=np.float32))
    mask = np.tril(np.ones((1, 1, 3, 4), bool))
    out = attend(q, k, v, mask=mask)
    assert out.dtype == attention_weights(q, k).dtype == dtype
    everywhere = np.broadcast_to(mask[0], (2, 3, 4))
    wide = [np.asarray(x, np.float64) for x in (q, k, v)]
    exact = np.stack([loops(*(x[b] for x in wide), 5**-0.5, everywhere)[0] for b in range(2)])
    np.testing.assert_allclose(out.astype(np.float32), exact, atol=3 * float(jnp.finfo(dtype).eps))
    many = attend(np.zeros((1, 1, 4), dtype), np.zeros((4096, 1, 4), dtype), np.ones((4096, 1, 2), dtype))
    np.testing.assert_array_equal(many.astype(np.float32), np.ones((1, 1, 2)))

    def born(jaxpr, name):
        for equation in jaxpr.eqns:
            if equation.primitive.name == name:
                yield equation.outvars[0].aval.dtype
            for value in equation.params.values():
                if hasattr(value, "jaxpr"):
                    yield from born(value.jaxpr, name)

    jaxpr = jax.make_jaxpr(lambda *x: attention(*x, mask=mask))(q, k, v).jaxpr
    assert list(born(jaxpr, "dot_general")) == [jnp.float32] * 2 and list(born(jaxpr, "exp")) == [jnp.float32]
    for lookup in (hard_lookup, soft_lookup):
        assert lookup(q[0, :, 0], k[0, :, 0], v[0, :, 0]).dtype == dtype


# Errors


def test_errors_of_shapes_and_dtypes(sentences):
    q, k, v = heads(0, dtype=np.float32)
    with pytest.raises(
        ValueError,
        match=r"q .* and k .* with the same size of head_dim, got float32 \(2, 3, 2, 5\) and float32 \(2, 4, 2, 4\)",
    ):
        attention(q, k[..., :4], v)
    with pytest.raises(
        ValueError,
        match=r"k .* and v .* with the same size of time_k, got float32 \(2, 4, 2, 5\) and float32 \(2, 3, 2",
    ):
        jax.jit(attention)(q, k, v[:, :3])
    with pytest.raises(ValueError, match="k .* and v .* with the same size of kv_heads"):
        attention(q, k[..., :1, :], v)
    shared = np.broadcast_to(k[..., :1, :], k.shape)  # as the error advises
    np.testing.assert_array_equal(attend(q, shared, v)[:, :, 0], attend(q, k, v)[:, :, 0])
    with pytest.raises(ValueError, match=r"q .* and v .* with the same size of \*batch"):
        attention(q, k, v[:1])
    with pytest.raises(TypeError, match="k to be a floating-point array, got int32"):
        attention(q, k.astype(np.int32), v)
    with pytest.raises(ValueError, match="'inverse_sqrt'.*, got 'sqrt'"):
        attention(q, k, v, scale="sqrt")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dropout": 1.0}, "dropout to be a number >= 0 and < 1, got 1.0"),
        ({"dropout": 0.1}, "a key for dropout=0.1, got none; pass key=, or dropout=0"),
        (
            {"bias": np.zeros((3, 4), np.float32)},
            r"bias of shape .* = \(2, 2, 3, 4\), .* write jnp.broadcast_to\(bias, ",
        ),
        ({"bias": lambda *sizes: jnp.zeros((2, 3))}, r"to return real \(heads, .*\) = \(2, 3, 4\), got float32"),
        ({"bias": lambda *sizes: jnp.zeros((2, 3, 4), jnp.complex64)}, r"real \(heads, .* got complex64 \(2, 3, 4\)"),
        (
            {"score_fn": lambda score, batch, head, q, k: score},
            r"score_fn\(scores, offset\), got a function of \(score, batch, head, q, k\); compute heads and positions",
        ),
        (
            {"score_fn": lambda s, _: s[..., :2]},
            r"score_fn\(scores, offset\) to return real scores of the shape \(2, 2, 3, 4\), got float32 \(2, 2, 3, 2\)",
        ),
        ({"score_fn": lambda s, _: s.astype(jnp.complex64)}, r"to return real scores .*, got complex64 \(2, 2, 3, 4\)"),
        ({"score_fn": lambda s, _: None}, "to return real scores .*, got None"),
        ({"score_fn": lambda s, _: s > 0}, r"to return real scores .*, got bool \(2, 2, 3, 4\)"),
        (
            {"sink": np.zeros(3, np.float32)},
            "q .* and sink .* with the same size of heads, got .* and float32 \\(3,\\)",
        ),
        ({"segment_ids": np.zeros((2, 3), np.int32)}, r"\(2, 3\) for the queries and \(2, 4\) for the keys, got int32"),
    ],
)
def test_options_out_of_range(sentences, options, words):
    q, k, v = heads(0, dtype=np.float32)
    with pytest.raises((TypeError, ValueError), match=words):
        attention(q, k, v, **options)


def test_head_counts_that_do_not_divide_are_rejected(sentences):
    q, k, v = heads(0, dtype=np.float32)
    with pytest.raises(ValueError, match="heads of q .* to be a multiple of those of k"):
        attention(np.repeat(q[..., :1, :], 3, -2), k, v)
    attend(np.repeat(q, 2, -2), k, v)


@pytest.mark.cpu
def test_the_fused_kernel_gets_the_same_arguments(sentences, monkeypatch):
    """The fused GPU kernel gets equivalent arguments; here the plain implementation replaces the kernel."""
    q, k, v = (normal(i, 2, 3, 5, n, 8, dtype=jnp.bfloat16) for i, n in enumerate((4, 2, 2)))
    with pytest.raises(ValueError, match="got the backend 'cpu'; pass implementation=None"):
        attention(q, k, v, implementation="fused")
    wide, mask = (x.astype(np.float32) for x in (q, k, v)), np.ones((1, 1, 1, 1, 5), bool)
    sink = np.zeros(4, np.float32)
    with pytest.raises(ValueError, match=r"got soft_cap=, sink=, mask=, sliding_window without causal, float32"):
        attention(*wide, sliding_window=2, soft_cap=1.0, mask=mask, sink=sink, implementation="fused")
    kernel = jax.nn.dot_product_attention

    def stand_in(*args, implementation, **options):
        assert implementation == "cudnn"
        with jax.numpy_dtype_promotion("standard"):
            return kernel(*args, **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", stand_in)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    bias = jnp.asarray(normal(5, 1, 3, 4, 5, 5), jnp.bfloat16)
    for options in [
        {},
        {"scale": None, "causal": True, "bias": bias},
        {"scale": 0.2, "causal": True, "sliding_window": 2},
    ]:
        forms = [functools.partial(attention, implementation=name, **options) for name in ("fused", None)]
        fused, plain = jax.jit(lambda *x, forms=forms: [f(*x) for f in forms])(q, k, v)
        np.testing.assert_allclose(*(np.asarray(x, np.float32) for x in (fused, plain)), atol=0.03)


def test_the_error_for_a_missing_head_axis_gives_the_repair(sentences):
    q, k, v = heads(0, batch=(), n=1, dtype=np.float32)
    with pytest.raises(ValueError, match=r"got float32 \(3, 5\); write q\[..., None, :\] for one head") as error:
        attention(q[:, 0], k[:, 0], v[:, 0])
    assert "(*batch, time_q, heads, head_dim)" in str(error.value)
    single = attend(q[:, 0][..., None, :], k, v)
    np.testing.assert_array_equal(single, attend(q, k, v))


def test_errors_of_masks_give_the_repair(sentences):
    q, k, v = heads(0, dtype=np.float32)
    mask = np.ones((2, 3, 4), bool)
    with pytest.raises(ValueError, match=r"= \(2, 2, 3, 4\), .* got bool \(2, 3, 4\); add a missing axis"):
        attention(q, k, v, mask=mask)
    np.testing.assert_allclose(attend(q, k, v, mask=mask[..., None, :, :]), attend(q, k, v), rtol=1e-6)
    for wrong in [(2, 2, 4, 3), (2, 2, 3, 1), (3, 1, 3, 4), (1, 1, 1, 1, 4)]:
        with pytest.raises(ValueError, match="expected mask of shape"):
            attention(q, k, v, mask=np.ones(wrong, bool))
    with pytest.raises(TypeError, match=r"mask to be a boolean array, got float32 \(2, 1, 3, 4\); write mask > 0"):
        attention_weights(q, k, mask=np.ones((2, 1, 3, 4), np.float32))
    with pytest.raises(TypeError, match="at most 3 arguments by position"):
        attention(q, k, v, np.ones((2, 1, 3, 4), bool))


def test_empty_axes():
    """An empty batch or time gives an empty result; without features all scores are zero, and weights are equal."""
    forms = ({}, {"causal": True, "sliding_window": 2, "implementation": "chunked", "chunk": 2})
    shapes = [(0, 3, 2, 4), (2, 0, 2, 4), (2, 3, 2, 0), (3, 0, 4)]

    @jax.jit
    def empty():
        queries = [jnp.ones(shape) for shape in shapes]
        keys = [jnp.ones((3, 2, 4)) if shape == (3, 0, 4) else jnp.ones(shape) for shape in shapes]
        return [[attention(q, k, k, **form) for q, k in zip(queries, keys, strict=True)] for form in forms]

    for outputs in empty():
        assert [y.shape for y in outputs] == shapes
    none, v = np.ones((3, 1, 0), np.float32), np.float32([[[1]], [[2]], [[6]]])
    np.testing.assert_allclose(attend(none, none, v), np.full((3, 1, 1), 3.0), rtol=1e-6)
    with pytest.raises(ValueError, match="a multiple of those of k, .*; give k a head"):
        attention(v[:, :0], v[:, :0], v[:, :0])


@pytest.mark.parametrize("lookup", [hard_lookup, soft_lookup])
def test_empty_lookups(lookup):
    shapes = [((0, 4, 5), (0, 3, 5)), ((2, 0, 5), (2, 3, 5)), ((2, 4, 0), (2, 3, 0)), ((0, 5), (3, 5))]
    found = jax.jit(lambda: [lookup(*map(jnp.ones, (query, keys, (*keys[:-1], 2)))) for query, keys in shapes])()
    assert [y.shape for y in found] == [(*query[:-1], 2) for query, _ in shapes]
    none = lookup(*(np.ones(shape, np.float32) for shape in ((2, 5), (0, 5), (0, 3))))
    np.testing.assert_array_equal(none, np.zeros((2, 3)))  # the sum of no values


def test_the_layout_of_torch_is_named_where_shapes_show_it(sentences):
    """Heads that do not form groups, and a mask or a bias that fits torch's axes only."""
    q, k, v = (normal(i, 2, 4, t, 3, dtype=np.float32) for i, t in enumerate((5, 7, 7)))  # heads, time
    words = r"torch's \(\*batch, heads, time, head_dim\), write jnp.swapaxes\(x, -3, -2\)"
    with pytest.raises(ValueError, match=words):
        attention(q, k, v)
    mask = np.random.default_rng(0).random((2, 4, 6, 6)) < 0.8
    same = normal(0, 2, 4, 6, 3, dtype=np.float32)
    for side in ({"mask": mask}, {"bias": mask[:1].astype(np.float32)}):
        with pytest.raises(ValueError, match=words):
            attention(same, same, same, **side)
    ours = attend(*(np.swapaxes(x, -3, -2) for x in (q, k, v)))  # as the error advises
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) * 3**-0.5
    expected = np.einsum("bhqk,bhkd->bqhd", softmax(scores), v)
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("lookup", [hard_lookup, soft_lookup])
def test_errors_of_lookups(sentences, lookup):
    query, keys, values = (np.ones(shape, np.float32) for shape in ((3, 5), (4, 5), (4, 2)))
    with pytest.raises(ValueError, match=r"keys .* and values .* got float32 \(4, 5\) and float32 \(3, 2\)"):
        lookup(query, keys, values[:3])
    with pytest.raises(
        ValueError, match=r"query .* and keys .* the same size of features, got float32 \(3, 4\) and float32 \(4, 5\)"
    ):
        lookup(query[:, :4], keys, values)
    with pytest.raises(ValueError, match=r"with the batch axes \(2,\)"):
        lookup(query, np.stack([keys, keys]), np.stack([values, values]))
    with pytest.raises(TypeError, match="values to be a floating-point array"):
        lookup(query, keys, values.astype(np.int32))


@pytest.mark.cpu
@pytest.mark.parametrize("chunked", [False, True])
def test_repeated_layers_recompute_only_the_scores_of_tiles(chunked, monkeypatch):
    """Of 2 products forward, one is computed again, and 4 are of the derivative: 7, or 6 where nothing is."""
    monkeypatch.setattr(tiling, "_cores", lambda: 1)
    length, layers, heads, d = 6, 3, 4, 4
    x = jax.ShapeDtypeStruct((length, heads, d), jnp.float32)
    one = 2 * heads * length * length * d  # operations of one product

    def products(checkpoint, **options):
        step = lambda h, _: (attention(h, h, h, chunk=2, **options), None)
        loss = lambda h: jnp.sum(scan(step, h, length=layers, checkpoint=checkpoint)[0])
        return count_flops(jax.grad(loss), x).dots / (layers * one)

    if not chunked:
        assert (products(None), products("dots")) == (6, 7)
        assert products(None, implementation="chunked", sink=jnp.zeros(heads)) == 7
    for constant, size in {**SMALL, "_TILED": 0, **({"_CHUNKED": 0} if chunked else {})}.items():
        monkeypatch.setattr(tiling, constant, size)
    assert (products(None), products("dots")) == (7, 7)
    assert (products(None, sink=jnp.zeros(heads)), products("dots", sink=jnp.zeros(heads))) == (7, 7)


def assert_tiles_are_plain(*x, **options):
    """Values and gradients by tiles are those of einsum, in one program."""

    def derived(form):
        y, back = jax.vjp(functools.partial(attention, implementation=form, **options), *x)
        return y, back(jnp.cos(y))

    ours, plain = jax.jit(lambda: (derived(None), derived("einsum")))()
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), ours, plain)


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("most", "tile", "shared"),
    [(1, (1, 1, 2), np.s_[:, :1]), (8, (1, 2, 4), np.s_[:1]), (24, (2, 2, 4), np.s_[:1, :, :1])],
)
def test_tiles_of_several_axes(most, tile, shared, monkeypatch):
    """Tiles have the last axes whole and a divisor of the one before; a mask may have any of its axes shared."""
    q, k, v = (normal(i, 4, 2, 3, 4, 2, dtype=np.float32) for i in range(3))
    mask = np.random.default_rng(3).random((4, 2, 4, 3, 3)) < 0.7
    for constant, size in {**SMALL, "_TILED": 0, "_cores": lambda: most}.items():
        monkeypatch.setattr(tiling, constant, size)
    tiles = []
    by_tiles = lambda *given: tiles.append(given[2]) or tiling.by_tiles(*given)
    monkeypatch.setattr(dot_product, "by_tiles", by_tiles)
    assert_tiles_are_plain(q, k, v, mask=mask[shared])
    assert tiles == [tile]


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("heads", "kv_heads", "tile", "shared"),
    [(5, 5, (1, 2), np.s_[:]), (20, 5, (1, 8), np.s_[:1]), (1, 1, (2, 1), np.s_[:, :, :1])],
)
def test_tiles_that_do_not_divide_their_axes(heads, kv_heads, tile, shared, monkeypatch):
    """The last tile contains zeros, with masks of other axes; draws of dropout are those of the heads' own numbers."""
    q = normal(0, 5, 4, heads, 2, dtype=np.float32)
    k, v = (normal(i, 5, 4, kv_heads, 2, dtype=np.float32) for i in (1, 2))
    mask = np.random.default_rng(3).random((5, heads, 4, 4)) < 0.7
    for constant, size in {**SMALL, "_TILED": 0, "_cores": lambda: 2}.items():
        monkeypatch.setattr(tiling, constant, size)
    tiles = []
    by_tiles = lambda *given: tiles.append(given[2]) or tiling.by_tiles(*given)
    monkeypatch.setattr(dot_product, "by_tiles", by_tiles)
    dropped = {"dropout": 0.3, "key": jax.random.key(0)}
    assert_tiles_are_plain(q, k, v, mask=mask[shared], **dropped if heads == 20 else {})
    assert tiles == [tile]


@pytest.mark.cpu
def test_tiles_on_meshes_and_mapped_axes(monkeypatch):
    """Tiles within `shard_map` and under `vmap`; on an explicit mesh only where no axis is sharded."""
    for constant, size in {**SMALL, "_TILED": 0, "_cores": lambda: 1}.items():
        monkeypatch.setattr(tiling, constant, size)
    q, k, v = (normal(i, 4, 3, 4, 2, dtype=np.float32) for i in range(3))
    mask = np.random.default_rng(3).random((4, 1, 3, 3)) < 0.7
    attend_all = lambda q, k, v, mask: attention(q, k, v, mask=mask, causal=True)
    gradient = lambda *x: jax.grad(lambda *x: jnp.sum(jnp.sin(attend_all(*x))), (0, 1, 2))(*x)
    loops_of = lambda f, *x: str(jax.make_jaxpr(f)(*x)).count("scan[")
    expected = jax.jit(jax.grad(lambda q, k, v: jnp.sum(jnp.sin(by_hand(q, k, v, mask & CAUSAL))), (0, 1, 2)))(q, k, v)

    def check(f, *x, loops):
        assert (loops_of(f, *x) > 0) == loops
        for a, b in zip(jax.jit(f)(*x), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)

    check(jax.vmap(gradient), q, k, v, mask, loops=True)
    spec = PartitionSpec("batch")
    mesh = jax.make_mesh((2,), ("batch",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        sharded = [jax.device_put(x, NamedSharding(mesh, spec)) for x in (q, k, v, mask)]
        check(jax.shard_map(gradient, in_specs=spec, out_specs=spec), *sharded, loops=True)
        check(gradient, *sharded, loops=False)


@pytest.mark.cpu
def test_how_many_scores_are_computed_in_tiles(monkeypatch):
    """From 2^22 scores on with causal order or a window, else from 2^23; with a window, those of its blocks count."""
    monkeypatch.setattr(tiling, "_cores", lambda: 2)
    loops_of = lambda *shape, **options: str(
        jax.make_jaxpr(lambda x: attention(x, x, x, **options))(jax.ShapeDtypeStruct(shape, jnp.float32))
    ).count("scan[")
    for batch, tiled in ((7, False), (8, True)):
        assert loops_of(batch, 256, 8, 4, causal=True) == tiled
        assert loops_of(2 * batch, 256, 8, 4) == tiled
        assert loops_of(2 * batch, 256, 8, 4, sliding_window=(32, 32)) == tiled


def test_a_symbolic_batch_leaves_chunks_as_they_are():
    """No array of an exported program has more scores than those of one chunk, with and without causal order."""
    x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 2048, 1, 4"), jnp.float32)
    for causal in (False, True):
        program = str(jax.make_jaxpr(functools.partial(attention, causal=causal))(x, x, x))
        assert "b,1,128,2048]" in program and "b,1,2048,2048]" not in program
        assert ("b,1,128,512]" in program) == causal


def test_the_map_of_values_can_be_transposed(monkeypatch):
    """Attention is linear in v; the transposed map, weights^T, without derivatives, in chunks and in tiles."""
    for constant, size in {**SMALL, "_TILED": 0, "_cores": lambda: 1}.items():
        monkeypatch.setattr(tiling, constant, size)
    q, k, v = (normal(i, 5, 4, 3, dtype=np.float32) for i in range(3))
    expected = jnp.einsum("hqk,qhd->khd", attention_weights(q, k), v)
    for form in ({}, {"implementation": "chunked", "chunk": 2}):
        of = lambda q, form=form: jax.linear_transpose(lambda v: attention(q, k, v, **form), v)(v)[0]
        np.testing.assert_allclose(jax.jit(of)(q), expected, rtol=1e-5, atol=1e-6)
