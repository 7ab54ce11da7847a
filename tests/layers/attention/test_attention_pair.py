"""The layer Attention: projections, heads, masks, the key-value cache, and position encodings."""

import functools
import inspect
import itertools

import arrays
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled, drawn
from jax.experimental import checkify

from jaxblocks import (
    LSTM,
    Attention,
    CachedAttention,
    Dense,
    LearnedPositions,
    Repeat,
    Residual,
    Serial,
    SinusoidalPositions,
    StatefulLayer,
    Wire,
    alibi,
    attention,
    rotary,
    stateful,
)
from jaxblocks.layers import (
    RelativePositionBias,
    attention_with_weights,
    linear_attention,
    relative_position_bias,
    rotary_frequencies,
    sinusoidal_positions,
)

normal = functools.partial(arrays.normal, dtype=np.float32)

# One program for each call, where its values are not checked.
alibi = compiled(alibi)
attention = compiled(attention)
attention_with_weights = compiled(attention_with_weights)
linear_attention = compiled(linear_attention)
relative_position_bias = compiled(relative_position_bias)
rotary = compiled(rotary)
rotary_frequencies = compiled(rotary_frequencies)


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="PyTorch is the reference; install the parity extra")


def made(layer, *inputs):
    """Params with nonzero biases, and the state if there is one, as a tuple."""
    params = drawn(layer, *inputs)
    return params if isinstance(layer, StatefulLayer) else (params,)


def run(layer, *arguments, **side):
    """Call apply under jit, with results in NumPy."""
    return compiled(layer.apply)(*arguments, **side)


# ---- references -------------------------------------------------------------------------------


def test_values_and_gradients_equal_those_of_torch(torch):
    """torch.nn.MultiheadAttention with the same weights: gradients of inputs and params with a mask, in float64."""
    n, heads, sizes = 8, 2, [(3, 8), (4, 6), (4, 5)]
    x = [normal(i, 2, *size, dtype=np.float64) for i, size in enumerate(sizes)]
    weight = normal(9, 2, 3, n, dtype=np.float64)
    keys = np.array([[True, True, False, True], [True, False, False, True]])
    reference = torch.nn.MultiheadAttention(n, heads, kdim=6, vdim=5, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        for p in reference.parameters():
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel()), dtype=torch.float64) / 3)
    leaves = [torch.tensor(a, requires_grad=True) for a in x]
    theirs, _ = reference(*leaves, need_weights=False, key_padding_mask=torch.tensor(~keys))
    (theirs * torch.tensor(weight)).sum().backward()

    def copied(of):
        """Weights or gradients of torch under our names; torch has (out, in) and stacks the biases."""
        kernels = (reference.q_proj_weight, reference.k_proj_weight, reference.v_proj_weight)
        biases = of(reference.in_proj_bias).reshape(3, n)
        named = zip(("query", "key", "value"), kernels, biases, strict=True)
        params = {name: {"kernel": of(kernel).T, "bias": bias} for name, kernel, bias in named}
        params["out"] = {"kernel": of(reference.out_proj.weight).T, "bias": of(reference.out_proj.bias)}
        return jax.tree.map(np.asarray, params)

    with jax.enable_x64(True):
        layer = Attention(heads)

        @jax.jit
        def both(params, x):
            y, pullback = jax.vjp(lambda params, x: layer.apply(params, *x, mask=keys), params, x)
            return y, *pullback(jnp.asarray(weight))

        params = copied(lambda p: p.detach().numpy())
        shapes = jax.tree.map(jnp.shape, jax.eval_shape(layer.init, jax.random.key(0), *x))
        assert shapes == jax.tree.map(jnp.shape, params)
        y, of_params, of_x = both(params, tuple(x))
    np.testing.assert_allclose(y, theirs.detach().numpy(), rtol=1e-12, atol=1e-12)
    ours = (*jax.tree.leaves(of_params), *of_x)
    expected = (*jax.tree.leaves(copied(lambda p: p.grad.numpy())), *(leaf.grad.numpy() for leaf in leaves))
    for a, b in zip(ours, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-11)


def test_learned_and_zero_keys_equal_those_of_torch(torch):
    """add_bias_kv is a learned key and value in front, add_zero_attn a sink of zero; values and gradients, float64."""
    n, heads, time = 6, 2, 4
    x, weight = normal(0, 2, time, n, dtype=np.float64), normal(9, 2, time, n, dtype=np.float64)
    keys = np.array([[True, True, False, True], [True, False, False, True]])
    options = {"add_bias_kv": True, "add_zero_attn": True, "batch_first": True, "dtype": torch.float64}
    reference = torch.nn.MultiheadAttention(n, heads, **options)
    leaf, later = torch.tensor(x, requires_grad=True), torch.tensor(np.triu(np.ones((time, time), bool), 1))
    masks = {"key_padding_mask": torch.tensor(~keys), "attn_mask": later}
    theirs, _ = reference(leaf, leaf, leaf, need_weights=False, **masks)
    (theirs * torch.tensor(weight)).sum().backward()

    def copied(of):
        """Weights or gradients of torch: params of the layer, and the learned key and value, of each head."""
        whole = of(reference.in_proj_weight).reshape(3, n, n)
        biases = of(reference.in_proj_bias).reshape(3, n)
        names = enumerate(("query", "key", "value"))
        params = {name: {"kernel": whole[i].T, "bias": biases[i]} for i, name in names}
        params["out"] = {"kernel": of(reference.out_proj.weight).T, "bias": of(reference.out_proj.bias)}
        learned = [of(p).reshape(1, 1, heads, n // heads) for p in (reference.bias_k, reference.bias_v)]
        return jax.tree.map(np.asarray, (params, learned))

    def apply(params, learned, x):
        def attend(q, k, v, *, mask, **options):
            k, v = (jnp.concatenate([jnp.repeat(a, 2, 0), b], -3) for a, b in zip(learned, (k, v), strict=True))
            mask = jnp.pad(mask, [(0, 0)] * 3 + [(1, 0)], constant_values=True)
            return attention(q, k, v, mask=mask, sink=jnp.zeros(heads), **options)

        # A mask of scores leaves padding as it is, as torch does.
        return Attention(heads, causal=True, attention_fn=attend).apply(params, x, mask=keys[:, None, None])

    @jax.jit
    def both(*x):
        y, pullback = jax.vjp(apply, *x)
        return y, *pullback(jnp.asarray(weight))

    with jax.enable_x64(True):
        ours = both(*copied(lambda p: p.detach().numpy()), x)
    expected = (theirs.detach().numpy(), *copied(lambda p: p.grad.numpy()), leaf.grad.numpy())
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-11)


def test_attention_of_the_lecture_with_learned_projections():
    """softmax((Q W^Q)(K W^K)') V W^V, one head without output projection; the printed formula mixes features."""
    q, k, v = (normal(i, *s) for i, s in enumerate([(2, 3), (4, 5), (4, 6)]))
    unscaled = functools.partial(attention, scale=None)
    layer = Attention(1, head_dim=7, value_dim=2, attention_fn=unscaled, use_bias=False)
    (params,) = made(layer, q, k, v)
    assert jax.tree.map(jnp.shape, params) == {
        "query": {"kernel": (3, 7)}, "key": {"kernel": (5, 7)}, "value": {"kernel": (6, 2)}, "out": {"kernel": (2, 3)}
    }  # fmt: skip
    params["out"]["kernel"] = np.eye(2, 3, dtype=np.float32)  # the lecture has no map of the output
    wq, wk, wv = (np.asarray(params[name]["kernel"], np.float64) for name in ("query", "key", "value"))
    scores = np.exp((q @ wq) @ (k @ wk).T)
    expected = scores / scores.sum(1, keepdims=True) @ v @ wv
    ours = run(layer, params, q, k, v)
    np.testing.assert_allclose(ours[:, :2], expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="mismatch"):
        (q @ wq).T @ (k @ wk)


def test_one_two_or_three_inputs():
    x, context = normal(0, 2, 3, 4), normal(1, 2, 5, 6)
    layer = Attention(2)
    (params,) = made(layer, x, context)
    assert params["key"]["kernel"].shape == (6, 4) and params["out"]["kernel"].shape == (4, 4)
    np.testing.assert_allclose(run(layer, params, x, context), run(layer, params, x, context, context), atol=1e-6)
    (params,) = made(layer, x)
    np.testing.assert_allclose(run(layer, params, x), run(layer, params, x, x), atol=1e-6)
    net = Wire(lambda f, x, context: x + f.cross(x, context), cross=layer)
    (params,) = made(net, x, context)
    assert run(net, params, x, context).shape == x.shape


def test_padding_has_no_effect():
    """With a mask (*batch, time) of the keys, padding has no effect: the shorter sequences give the same outputs."""
    x = normal(0, 2, 6, 4)
    mask = np.array([[True] * 4 + [False] * 2, [True] * 6])
    layer = Attention(2, positions=rotary)
    (params,) = made(layer, x)
    apply = compiled(layer.apply)
    out = apply(params, x, mask=mask)
    changed = np.where(mask[..., None], x, np.float32(9))
    np.testing.assert_array_equal(apply(params, changed, mask=mask)[0, :4], out[0, :4])
    np.testing.assert_allclose(apply(params, x[:1, :4])[0], out[0, :4], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(apply(params, x)[1], out[1], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(apply(params, x, mask=mask[:, None, None])[mask], out[mask], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("inputs", ["x", "q, k, v"])
def test_nan_in_padding_has_no_effect_and_no_gradient(inputs):
    """Outputs at valid positions and gradients of params and inputs equal those of the sequence without padding."""
    n = len(inputs.split(","))
    xs = [normal(i, 5, 4) for i in range(n)]
    layer = Attention(2)
    (params,) = made(layer, *xs)
    mask = np.arange(5) < 3

    def padded(params, xs):
        y = layer.apply(params, *xs, mask=mask)
        return jnp.where(mask[:, None] if n == 1 else True, jnp.sin(y), 0.0).sum()

    def short(params, xs):
        return jnp.sin(layer.apply(params, *(x[:3] if i or n == 1 else x for i, x in enumerate(xs)))).sum()

    with jax.debug_nans(False):
        dirty = [np.where(mask[:, None], x, np.float32(np.nan)) if i or n == 1 else x for i, x in enumerate(xs)]
        ours, expected = (jax.jit(jax.value_and_grad(f, (0, 1)))(params, x) for f, x in ((padded, dirty), (short, xs)))
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_the_last_query_has_the_position_of_the_last_key():
    """Cross-attention with rotary: query i has position i + time_k - time_q, the last query attends to all keys."""
    x = normal(0, 6, 4)
    layer = Attention(2, causal=True, positions=rotary)
    (params,) = made(layer, x)
    np.testing.assert_allclose(run(layer, params, x[4:], x), run(layer, params, x)[4:], rtol=1e-5, atol=1e-5)


EXPLICIT = {
    "one head of keys, chunks": Attention(
        4,
        kv_heads=1,
        causal=True,
        attention_fn=functools.partial(attention, sliding_window=3, implementation="chunked", chunk=2),
    ),
    "cache": CachedAttention(Attention(2, causal=True), 8),
}


@pytest.mark.parametrize("name", EXPLICIT)
def test_an_explicit_mesh(name):
    """Inputs with a batch sharded over an explicit mesh give the same values and gradients."""
    layer = stateful(EXPLICIT[name])
    x = normal(0, 8, 6, 8)
    params, state = made(layer, x)

    @jax.jit
    def both(params, state, x):
        def total(params, x):
            return (layer.apply(params, state, x)[0] ** 2).sum()

        return jax.value_and_grad(total, (0, 1))(params, x)

    expected = both(params, state, x)
    mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        ours = both(params, state, jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))))
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-4)


def test_packed_sequences():
    x = normal(0, 6, 4)
    layer = Attention(2, causal=True, positions=rotary)
    (params,) = made(layer, x)
    packed = run(layer, params, x, segment_ids=np.array([0, 0, 1, 1, 1, 1]))
    np.testing.assert_allclose(packed[2:], run(layer, params, x[2:]), rtol=1e-4, atol=1e-5)


def test_maps_without_a_bias():
    """A bias per map, as in Whisper: its params, and the same outputs as with a bias of zero."""
    x = normal(0, 3, 4)
    layer = Attention(2, use_bias=("query", "value", "out"))
    (params,) = made(layer, x)
    assert {name for name, map in params.items() if "bias" in map} == {"query", "value", "out"}
    full = {**params, "key": {**params["key"], "bias": np.zeros(4, np.float32)}}
    np.testing.assert_allclose(compiled(layer.apply)(params, x), compiled(Attention(2).apply)(full, x), rtol=1e-6)


def test_weights_from_the_layer():
    """With attention_with_weights, the layer returns the weights of its heads too, also with a cache."""
    x = normal(0, 3, 4)
    layer = Attention(2, causal=True, attention_fn=attention_with_weights)
    (params,) = made(layer, x)
    out, weights = run(layer, params, x)
    np.testing.assert_allclose(out, run(Attention(2, causal=True), params, x), rtol=1e-5, atol=1e-6)
    q, k = ((x @ p["kernel"] + p["bias"]).reshape(3, 2, 2) for p in (params["query"], params["key"]))
    scores = np.where(np.tril(np.ones((3, 3), bool)), np.exp(np.einsum("qhd,khd->hqk", q, k) / 2**0.5), 0)
    np.testing.assert_allclose(weights, scores / scores.sum(-1, keepdims=True), rtol=1e-5)
    cached = CachedAttention(layer, 5)
    (_, from_cache), _ = run(cached, params, made(cached, x)[1], x)
    np.testing.assert_allclose(from_cache, np.pad(weights, [(0, 0), (0, 0), (0, 2)]), rtol=1e-5)


def test_an_attention_function_of_your_own():
    """It is called with the options that are in use only, so that linear_attention fits."""
    x = normal(0, 5, 4)
    layer = Attention(2, causal=True, attention_fn=linear_attention)
    (params,) = made(layer, x)
    q, k, v = ((x @ p["kernel"] + p["bias"]).reshape(5, 2, 2) for p in (params[n] for n in ("query", "key", "value")))
    heads = linear_attention(q, k, v, causal=True).reshape(5, 4)
    expected = heads @ params["out"]["kernel"] + params["out"]["bias"]
    np.testing.assert_allclose(run(layer, params, x), expected, rtol=1e-5, atol=1e-6)
    masked = compiled(layer.apply)(params, x, mask=np.arange(5) < 3)[:3]  # a mask of keys reaches the function
    np.testing.assert_allclose(masked, expected[:3], rtol=1e-5, atol=1e-6)
    by_keys = Attention(2, attention_fn=linear_attention)
    np.testing.assert_allclose(
        compiled(by_keys.apply)(params, x, mask=np.arange(5) < 3)[:3],
        compiled(by_keys.apply)(params, x[:3]),
        rtol=1e-5,
        atol=1e-6,
    )


def test_a_learned_bias_in_decoding():
    """The bias of a piece is that of its positions in the sequence; params are checked."""
    x = normal(0, 6, 4)
    bias = RelativePositionBias(2, buckets=4, max_distance=4, bidirectional=False)
    layer = Attention(2, causal=True, score_bias=bias)
    cached = CachedAttention(layer, 8)
    params, state = made(cached, x)
    out, _ = in_pieces(cached, params, state, x, (2, 3, 1))
    np.testing.assert_allclose(out, compiled(layer.apply)(params, x), rtol=1e-5, atol=1e-5)
    flat = {**params, "score_bias": {"embedding": np.zeros((4, 2), np.float32)}}
    assert np.abs(compiled(layer.apply)(flat, x) - compiled(layer.apply)(params, x)).max() > 1e-3
    with pytest.raises(ValueError, match="params named .*score_bias"):
        layer.apply({name: map for name, map in params.items() if name != "score_bias"}, x)


def test_dropout_declares_train_and_key(sentences):
    """train and key are side inputs only with dropout; training needs a key, evaluation does not."""
    x = normal(0, 6, 4)
    assert set(inspect.signature(Attention(2).apply).parameters) == {"params", "inputs", "mask", "segment_ids"}
    layer = Attention(2, dropout=0.5)
    (params,) = made(layer, x)
    with pytest.raises(ValueError, match="a key in training for dropout=0.5, got none"):
        layer.apply(params, x, train=True)
    trained = run(layer, params, x, train=True, key=jax.random.key(0))  # as the error advises
    calm = run(layer, params, x)
    assert np.abs(trained - calm).max() > 0.01
    np.testing.assert_array_equal(calm, run(Attention(2), params, x))
    with pytest.raises(ValueError, match="train to be True or False"):
        layer.apply(params, x, train=1)


def test_dtypes():
    x = normal(0, 3, 4)
    layer = CachedAttention(Attention(2, dtype=jnp.bfloat16, param_dtype=jnp.bfloat16, causal=True), 4)
    params, state = made(layer, x)
    y, after = run(layer, params, state, x)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {y.dtype} == {jnp.dtype(jnp.bfloat16)}
    assert jax.tree.map(jnp.result_type, after) == jax.tree.map(jnp.result_type, state)


# ---- the cache --------------------------------------------------------------------------------


def in_pieces(layer, params, state, x, lengths):
    apply, outputs, start = compiled(layer.apply), [], 0
    for n in lengths:
        y, state = apply(params, state, x[..., start : start + n, :])
        outputs.append(y)
        start += n
    return np.concatenate(outputs, -2), state


@pytest.mark.parametrize(
    "options",
    [
        {"positions": rotary, "kv_heads": 2, "attention_fn": functools.partial(attention, sliding_window=3)},
        {
            "score_bias": alibi,
            "kv_heads": 1,
            "attention_fn": functools.partial(
                attention, soft_cap=2.0, sliding_window=2, implementation="chunked", chunk=2
            ),
        },
        {"positions": functools.partial(rotary, base=100), "head_dim": 2, "value_dim": 3, "use_sink": True},
    ],
)
def test_cached_decoding_equals_the_full_pass(options):
    """Consecutive pieces of any length give the outputs of the whole sequence, with the same params."""
    x = normal(0, 2, 7, 8)
    layer = Attention(4, causal=True, **options)
    cached = CachedAttention(layer, 9)
    params, state = made(cached, x)
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, made(layer, x)[0])
    whole = run(layer, params, x)
    out, after = in_pieces(cached, params, state, x, (1, 1, 4, 1))
    np.testing.assert_allclose(out, whole, rtol=1e-5, atol=1e-5)
    assert after["position"] == 7 and np.all(np.asarray(after["key"])[:, :, 7:] == 0)


def test_a_stack_of_layers_decodes_in_pieces():
    """Positions with state, Repeat with a cache per copy, Residual and Dense: pieces equal the whole."""
    x = normal(0, 2, 6, 4)

    def net(cache):
        attend = Attention(2, causal=True)
        attend = CachedAttention(attend, cache) if cache else attend
        block = Serial(Residual(attend), Residual(Dense(8), jnp.tanh, Dense(4)))
        stateful = cache is not None
        return Serial(SinusoidalPositions(stateful=stateful), LearnedPositions(8, stateful=stateful), Repeat(block, 2))

    params, state = drawn(net(8), x[:, :2])
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, drawn(net(None), x))
    out, _ = in_pieces(net(8), params, state, x, (1, 4, 1))
    np.testing.assert_allclose(out, run(net(None), params, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "layer",
    [CachedAttention(Attention(2, causal=True), 4), LearnedPositions(4, stateful=True)],
    ids=["cache", "positions"],
)
def test_a_sequence_longer_than_its_cache(sentences, layer):
    """Raise an error where the length is known; under jit return NaN, and with check=True a checkify error."""
    x = normal(0, 3, 4)
    params, state = made(layer, x)
    first, after = run(layer, params, state, x)
    with pytest.raises(ValueError, match="at most 4 positions.* got 3 after 3"):
        layer.apply(params, after, x)
    with pytest.raises(ValueError, match="at most 4 positions"):
        layer.apply(params, state, np.concatenate([x, x]))
    one, full = compiled(lambda params, x: layer.apply(params, after, x))(params, x[:1])  # the length is known here too
    assert np.isfinite(one).all() and full["position"] == 4
    with jax.debug_nans(False):
        over, later = run(layer, params, after, x[:2])
        assert np.isnan(over).all()
        assert np.isnan(run(layer, params, later, x[:1])[0]).all()
    fresh, _ = compiled(lambda params, x: layer.apply(params, state, x))(params, x)
    np.testing.assert_allclose(fresh, first, rtol=1e-5, atol=1e-5)


def test_checkify_reports_an_overflow_with_check():
    x = normal(0, 3, 4)
    cached = CachedAttention(Attention(2, causal=True), 4, check=True)
    for layer in (cached, LearnedPositions(4, stateful=True, check=True)):
        params, state = made(layer, x)
        checked = checkify.checkify(jax.jit(layer.apply))
        error, (_, after) = checked(params, state, x)
        assert error.get() is None
        with jax.debug_nans(False):
            assert "at most 4 positions" in checked(params, after, x)[0].get()


def test_a_masked_cache():
    """The mask (*batch, time) of a piece is stored: padding in a prompt, even NaN, has no later effect."""
    x = normal(0, 2, 6, 4)
    mask = np.array([[False, True, True, False, True, True], [True, False, False, True, True, True]])
    full = Attention(2, causal=True, positions=rotary)
    layer = CachedAttention(full, 8)
    params, state = made(layer, x)
    whole = run(full, params, x, mask=mask)
    with jax.debug_nans(False):
        dirty = np.where(mask[..., None], x, np.float32(np.nan))
        first, after = run(layer, params, state, dirty[:, :4], mask=mask[:, :4])
        rest, after = run(layer, params, after, dirty[:, 4:])  # without a mask all positions are valid
    np.testing.assert_allclose(np.concatenate([first, rest], 1)[mask], whole[mask], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(after["mask"], np.pad(mask, [(0, 0), (0, 2)]))
    assert jax.tree.map(jnp.result_type, after) == jax.tree.map(jnp.result_type, state)


def test_one_mask_for_a_chain_of_stateful_layers():
    x, mask = normal(0, 2, 4, 4), np.array([[True, True, True, False], [True, True, False, False]])
    net = Serial(LSTM(8, stateful=True), CachedAttention(Attention(2, causal=True), 16))
    params, state = made(net, x)
    out, after = run(net, params, state, x, mask=mask)
    alone, _ = run(net, params, state, x[:, :2])
    np.testing.assert_allclose(out[:, :2], alone, rtol=1e-5, atol=1e-5)
    out, _ = run(net, params, after, x, mask=np.ones((2, 4), bool))
    assert np.isfinite(out).all()


def test_a_mask_of_pairs_with_a_cache():
    """With a mask (*batch, heads, time_q, cache), padding at the left of a prompt has no effect."""
    x = normal(0, 1, 4, 4)
    layer = CachedAttention(Attention(2, causal=True), 5)
    params, state = made(layer, x)
    mask = np.array([[False, True, True, True, True]])
    out, _ = run(layer, params, state, x, mask=mask[:, None, None])
    alone, _ = run(layer, params, state, x[:, 1:])
    np.testing.assert_allclose(out[:, 1:], alone, rtol=1e-5, atol=1e-5)


# ---- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Attention(4, kv_heads=3), "kv_heads to divide heads, .*got heads=4 and kv_heads=3"),
        (
            lambda: CachedAttention(Attention(2), 8),
            r"with causal=True, got Attention\(2\); pass causal=True",
        ),
        (
            lambda: Attention(2, use_bias=("q", "k")),
            "use_bias to be True or False or a tuple of entries, each 'q",
        ),
        (lambda: Attention(2, dropout=1), "Attention expected dropout to be a number >= 0 and < 1, got 1"),
    ],
)
def test_errors_of_the_builder(sentences, build, words):
    with pytest.raises(ValueError, match=words):
        build()


def test_errors_of_inputs(sentences):
    x = normal(0, 2, 3, 4)
    layer = Attention(3)
    with pytest.raises(ValueError, match=r"heads to divide the features .*heads=3, got float32 \(2, 3, 4\)"):
        layer.init(jax.random.key(0), x)
    jax.eval_shape(Attention(3, head_dim=5).init, jax.random.key(0), x)  # as the error advises
    layer = Attention(2)
    (params,) = made(layer, x)
    with pytest.raises(ValueError, match=r"query/kernel of shape \(3, 4\), got float32 \(4, 4\)"):
        layer.apply(params, x[..., :3])
    with pytest.raises(ValueError, match=r"\(\*batch, time, features\), got float32 \(4,\)"):
        layer.apply(params, x[0, 0])
    with pytest.raises(TypeError, match="x, or x and context, or q, k and v, got 4 inputs"):
        layer.apply(params, x, x, x, x)
    with pytest.raises(ValueError, match="Attention expected params named key/bias, .*, got kernel"):
        layer.apply({"kernel": x}, x)
    with pytest.raises(ValueError, match="Attention expected params named .*, query/kernel, sink, value/bias"):
        Attention(2, use_sink=True).apply(params, x)
    with pytest.raises(ValueError, match="Attention expected params named .*, got .*, sink, "):
        layer.apply(params | {"sink": np.zeros(2, np.float32)}, x)
    with pytest.raises(ValueError, match=r"mask of shape .* = \(2, 2, 3, 3\)"):
        layer.apply(params, x, mask=np.ones((3, 3), bool)[None, :, :2])
    with pytest.raises(ValueError, match=r"\(\*batch, time_k\) = \(2, 3\), .* = \(2, 2, 3, 3\), .* got bool \(2, 4\)"):
        layer.apply(params, x, mask=np.ones((2, 4), bool))
    run(layer, params, x, mask=np.ones((2, 3), bool))  # as the error advises
    run(layer, params, x, mask=np.broadcast_to(np.ones((3, 3), bool), (2, 2, 3, 3)))  # as the error also advises
    with pytest.raises(TypeError, match=r"mask to be a boolean array, got a list; convert it with jnp.asarray\(mask"):
        layer.apply(params, x, mask=[[True] * 3] * 2)
    with pytest.raises(TypeError, match=r"mask to be a boolean array, got float32 \(2, 3\); write mask > 0"):
        layer.apply(params, x, mask=np.ones((2, 3), np.float32))
    with pytest.raises(ValueError, match="with the same size of time_k"):
        layer.apply(params, x, x, x[:, :2], mask=np.ones((2, 3), bool))
    for made_wrongly in (Attention(2), LearnedPositions(4)):
        with pytest.raises(TypeError, match=r"expected key to be a key, got 0; pass jax.random.key\(0\)"):
            made_wrongly.init(0, x)
    cached = CachedAttention(Attention(2, causal=True), 4)
    params, state = made(cached, x)
    with pytest.raises(ValueError, match=r"a cache float32 \(2, 2, 4, 2\); make the state by init"):
        cached.apply(params, state, x[:1])
    with pytest.raises(TypeError, match="x alone, since it has a cache"):
        cached.apply(params, state, x, x)
    with pytest.raises(TypeError, match="x alone, since it has a cache"):
        cached.init(jax.random.key(0), x, x)
    with pytest.raises(ValueError, match=r"\(\*batch, time_k\) = \(2, 3\), .* = \(2, 2, 3, 4\), .* got bool \(2, 4\)"):
        cached.apply(params, state, x, mask=np.ones((2, 4), bool))


# ---- positions --------------------------------------------------------------------------------


def test_sinusoidal_positions_equal_the_formula():
    with jax.enable_x64(True):
        ours = run(SinusoidalPositions(base=500), (), np.zeros((2, 5, 6)))
    for t, i in itertools.product(range(5), range(3)):
        angle = t / 500 ** (2 * i / 6)
        np.testing.assert_allclose(ours[:, t, 2 * i : 2 * i + 2], [[np.sin(angle), np.cos(angle)]] * 2, atol=1e-14)


def test_rotary_equals_the_formula_and_depends_on_distances():
    """Pairs (i, i + d/2) rotate by t b^(-2i/d); <R_s q, R_t k> depends on t - s only; norms are preserved."""
    with jax.enable_x64(True):
        x = normal(0, 2, 5, 3, 6, dtype=np.float64)
        turned = rotary(x, base=100)
        expected = np.zeros_like(x)
        for t, i in itertools.product(range(5), range(3)):
            angle = t * 100 ** (-2 * i / 6)
            a, b = x[:, t, :, i], x[:, t, :, i + 3]
            expected[:, t, :, i] = a * np.cos(angle) - b * np.sin(angle)
            expected[:, t, :, i + 3] = a * np.sin(angle) + b * np.cos(angle)
        np.testing.assert_allclose(turned, expected, atol=1e-13)
        np.testing.assert_allclose((turned**2).sum(-1), (x**2).sum(-1), rtol=1e-12)
        q, k = (np.broadcast_to(normal(i, 6, dtype=np.float64), (8, 1, 6)) for i in (1, 2))
        products = rotary(q)[:, 0] @ rotary(k)[:, 0].T
        for distance in range(-7, 8):
            diagonal = np.diagonal(products, distance)
            np.testing.assert_allclose(diagonal, diagonal[0], atol=1e-12)
        assert np.ptp(products[0]) > 0.1
        places = np.stack([np.arange(5), np.arange(5) + 7])
        of_each = rotary(x, places)
        np.testing.assert_allclose(of_each[1], rotary(x[1], places[1]), rtol=1e-14)
    half, far = np.ones((1, 1, 2), jnp.bfloat16), np.array([257])  # in bfloat16, 257 is 256
    np.testing.assert_allclose(
        rotary(half, far)[0, 0], [np.cos(257) - np.sin(257), np.cos(257) + np.sin(257)], rtol=1e-2
    )


def test_rotary_of_adjacent_entries_of_a_part_of_the_features():
    """Pairs (2i, 2i + 1) as complex numbers; the features after rotary_dim are unchanged."""
    with jax.enable_x64(True):
        x = normal(0, 2, 5, 3, 6, dtype=np.float64)
        ours = rotary(x, base=100, rotary_dim=4, interleaved=True)
        halves = rotary(x, base=100, rotary_dim=4)
    turn = np.exp(1j * np.arange(5)[:, None] * 100 ** (-np.arange(2) / 2))[:, None]
    pairs = (x[..., 0:4:2] + 1j * x[..., 1:4:2]) * turn
    expected = np.stack([pairs.real, pairs.imag], -1).reshape(2, 5, 3, 4)
    np.testing.assert_allclose(ours, np.concatenate([expected, x[..., 4:]], -1), atol=1e-13)
    pairs = (x[..., :2] + 1j * x[..., 2:4]) * turn
    np.testing.assert_allclose(halves, np.concatenate([pairs.real, pairs.imag, x[..., 4:]], -1), atol=1e-13)


def test_frequencies_of_rotary():
    """Linear: positions divided by s. NTK: the lowest frequency divided by s. Llama 3: its published loop."""
    x = normal(0, 5, 1, 8)
    linear = rotary_frequencies(8, scaling="linear", factor=4.0)
    places = np.arange(5, dtype=np.float32)
    np.testing.assert_allclose(rotary(x, frequencies=linear), rotary(x, places / 4), rtol=1e-5, atol=1e-6)
    plain, ntk = rotary_frequencies(8), rotary_frequencies(8, scaling="ntk", factor=4.0)
    np.testing.assert_allclose(plain, 10000.0 ** (-np.arange(4) / 4), rtol=1e-6)
    np.testing.assert_allclose(ntk, (10000 * 4 ** (8 / 6)) ** (-np.arange(4) / 4), rtol=1e-6)
    np.testing.assert_allclose(ntk[-1], plain[-1] / 4, rtol=1e-6)
    ours = rotary_frequencies(128, base=500_000, scaling="llama3", factor=8.0)
    expected = []
    for frequency in 500_000.0 ** (-np.arange(0, 128, 2) / 128):
        length = 2 * np.pi / frequency
        smooth = (8192 / length - 1) / (4 - 1)
        kept = frequency if length < 8192 / 4 else frequency / 8
        between = 8192 / 4 <= length <= 8192
        expected.append((1 - smooth) * frequency / 8 + smooth * frequency if between else kept)
    np.testing.assert_allclose(ours, expected, rtol=1e-6)
    assert 0 < sum(8192 / 4 <= 2 * np.pi / f <= 8192 for f in 500_000.0 ** (-np.arange(0, 128, 2) / 128)) < 64
    ours = rotary_frequencies(128, scaling="yarn", factor=4.0, original_length=4096)
    # Turns over 4096 positions: 32 of them at pair 20.9, 1 at pair 45.03, with 1e4 ** (2 i / 128) positions a radian.
    kept, plain = 1 - np.clip((np.arange(64) - 20) / (46 - 20), 0, 1), 10_000.0 ** (-np.arange(0, 128, 2) / 128)
    np.testing.assert_allclose(ours, plain / 4 * (1 - kept) + plain * kept, rtol=1e-6)
    ours = rotary_frequencies(4, base=100.0, scaling="longrope", factors=(2.0, 4.0))
    np.testing.assert_allclose(ours, [1 / 2, 0.1 / 4], rtol=1e-6)
    scaled = rotary(x, scale=1.5, rotary_dim=4)
    np.testing.assert_allclose(scaled[..., :4], 1.5 * rotary(x, rotary_dim=4)[..., :4], rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(scaled[..., 4:], x[..., 4:])


def test_buckets_of_t5():
    """The buckets of the published code at 32 buckets and distance 128, for keys before and after the query."""
    table, origin = np.arange(32, dtype=np.float32)[:, None], np.zeros(1, np.int32)
    places = np.array([0, 1, 7, 8, 11, 12, 15, 16, 31, 32, 63, 64, 90, 91, 127, 128, 1000])
    both = [0, 1, 7, 8, 8, 9, 9, 10, 11, 12, 13, 14, 14, 15, 15, 15, 15]
    ahead = relative_position_bias(table, origin, places)[0, 0]
    np.testing.assert_array_equal(ahead, [n + 16 * (n > 0) for n in both])
    np.testing.assert_array_equal(relative_position_bias(table, origin, -places)[0, 0], both)
    past = relative_position_bias(table, origin, -places, bidirectional=False)[0, 0]
    one = [0, 1, 7, 8, 11, 12, 15, 16, 21, 21, 26, 26, 29, 29, 31, 31, 31]
    np.testing.assert_array_equal(past, one)
    assert not np.any(relative_position_bias(table, origin, places, bidirectional=False))
    far = np.arange(-128, 128, 51, dtype=np.int8)  # their differences are no numbers of 8 bits
    np.testing.assert_array_equal(
        relative_position_bias(table, far, far), relative_position_bias(table, *2 * [far.astype(np.int32)])
    )


def test_alibi_slopes_and_alignment():
    """The slopes of the paper for 8 and 12 heads; the last query has the position of the last key."""
    slopes = -alibi(8, 1, 2)[:, 0, 0]
    np.testing.assert_allclose(slopes, 2.0 ** -np.arange(1, 9))
    twelve = -alibi(12, 1, 2)[:, 0, 0]
    np.testing.assert_allclose(twelve, [*2.0 ** -np.arange(1, 9), *2.0 ** -np.array([0.5, 1.5, 2.5, 3.5])], rtol=1e-6)
    with jax.enable_x64(True):
        exact = -alibi(12, 1, 2)[8:, 0, 0]
        np.testing.assert_array_equal(exact, 2.0 ** -np.array([0.5, 1.5, 2.5, 3.5]))
        assert alibi(12, 1, 2, dtype=jnp.float32).dtype == jnp.float32
    bias = alibi(2, 2, 4)
    np.testing.assert_allclose(bias[0], -np.array([[2, 1, 0, 1], [3, 2, 1, 0]]) / 16)
    np.testing.assert_allclose(alibi(2, 2, 4, 1), alibi(2, 3, 4)[:, :2])
    q, k, v = (normal(i, 5, 2, 4) for i in range(3))
    array = alibi(2, 5, 5)
    by_function, by_array = (attention(q, k, v, causal=True, bias=bias) for bias in (alibi.__wrapped__, array))
    np.testing.assert_allclose(by_function, by_array, rtol=1e-6)


def test_offsets_of_every_integer_type():
    waves, biases = compiled(sinusoidal_positions), compiled(alibi)
    late, bias = waves(300, 2)[100:], biases(2, 1, 200, 100)
    for dtype in (np.int8, np.int16, np.int32):
        np.testing.assert_allclose(waves(200, 2, start=np.asarray(100, dtype)), late, atol=1e-6)
        np.testing.assert_array_equal(biases(2, 1, 200, np.asarray(100, dtype)), bias)


def test_errors_of_positions(sentences):
    x = normal(0, 3, 2, 5)
    with pytest.raises(ValueError, match="head_dim to be even"):
        rotary(x)
    with pytest.raises(ValueError, match=r"positions of shape \(3,\), .* got int32 \(2,\)"):
        rotary(x[..., :4], np.arange(2))
    with pytest.raises(ValueError, match="features to be even"):
        SinusoidalPositions().init(jax.random.key(0), x)
    with pytest.raises(ValueError, match=r"write x\[..., None, :\] for one head"):
        rotary(x[:, 0])
    rotary(x[:, 0, :4][..., None, :])
    with pytest.raises(ValueError, match="rotary_dim to be at most head_dim = 4, got 6"):
        rotary(x[..., :4], rotary_dim=6)
    with pytest.raises(ValueError, match=r"frequencies of shape \(2,\), .* got float32 \(3,\)"):
        rotary(x[..., :4], frequencies=np.ones(3, np.float32))
    with pytest.raises(ValueError, match="at most one of base and frequencies, got base and frequencies; pass one of"):
        rotary(x[..., :4], base=5.0, frequencies=np.ones(2, np.float32))
    for one in (dict(factor=8.0), dict(scaling="linear")):
        with pytest.raises(ValueError, match="rotary_frequencies expected both scaling and factor, or neither"):
            rotary_frequencies(4, **one)
    with pytest.raises(ValueError, match="low_frequency_factor below high_frequency_factor = 4.0, got 5.0"):
        rotary_frequencies(4, scaling="llama3", factor=8.0, low_frequency_factor=5.0)
    with pytest.raises(ValueError, match="base above 1 with scaling='yarn', got 1.0"):
        rotary_frequencies(4, scaling="yarn", factor=8.0, base=1.0)
    for wrong in ((1.0,), (1.0, 0.0)):
        with pytest.raises(ValueError, match="factors, 2 numbers above 0, one for each pair of features"):
            rotary_frequencies(4, scaling="longrope", factors=wrong)
    with pytest.raises(
        ValueError, match="both scaling and factors, or neither, got scaling='longrope' and factors=None"
    ):
        rotary_frequencies(4, scaling="longrope", factor=8.0)
    with pytest.raises(ValueError, match="embedding of at least 4 buckets"):
        relative_position_bias(np.ones((2, 1), np.float32), np.arange(2), np.arange(2))
    layer = LearnedPositions(2)
    (params,) = made(layer, x)
    with pytest.raises(
        ValueError, match=r"at most 2 positions, got float32 \(2, 3, 5\); shorten the sequence .* a larger max_length"
    ):
        layer.apply(params, np.moveaxis(x, 0, 1))
    with pytest.raises(ValueError, match=r"embedding of shape \(2, 4\), got float32 \(2, 5\)"):
        layer.apply(params, x[..., :4])


def test_positions_by_name_are_rejected_when_built(sentences):
    """A name instead of the function is an error when the layer is built."""
    with pytest.raises(TypeError, match="Attention expected positions to be a function or None, got 'rotary'"):
        Attention(2, positions="rotary")
    with pytest.raises(TypeError, match="Attention expected score_bias to be a function or a Layer, got 'alibi'"):
        Attention(2, score_bias="alibi")
    with pytest.raises(TypeError, match=r"layer to be an Attention, got Dense\(3\); pass the result of Attention"):
        CachedAttention(Dense(3), 4)


def test_a_foreign_attention_function_has_the_options_that_are_in_use(sentences):
    x = normal(0, 4, 8)
    foreign = lambda q, k, v, *, is_causal=False: attention(q, k, v, causal=is_causal)
    (params,) = made(Attention(2), x)
    expected = (
        r"Attention expected attention_fn to be a function of q, k, v, \*, causal, got .*; wrap it, as in lambda q"
    )
    with pytest.raises(TypeError, match=expected):
        Attention(2, causal=True, attention_fn=foreign).apply(params, x)
    wrapped = lambda q, k, v, *, causal=None: foreign(q, k, v, is_causal=causal)
    y = compiled(Attention(2, causal=True, attention_fn=wrapped).apply)(params, x)
    arrays.same(y, compiled(Attention(2, causal=True).apply)(params, x))


def test_masks_are_given_once(sentences):
    """A mask in ``attention_fn`` and one of the layer are not combined; a rule of positions is a score bias."""
    rule = np.eye(4, dtype=bool)[None]
    layer = Attention(2, attention_fn=functools.partial(attention, mask=rule))
    x = normal(0, 4, 8)
    (params,) = made(layer, x)
    with pytest.raises(ValueError, match="Attention expected each option in attention_fn or from the layer, got both"):
        layer.apply(params, x, mask=np.ones(4, bool))
    bias = lambda heads, n_q, n_k, offset: jnp.where(jnp.broadcast_to(rule, (2, 4, 4)), 0.0, -jnp.inf)
    by_bias = compiled(Attention(2, score_bias=bias).apply)(params, x, mask=np.ones(4, bool))
    np.testing.assert_allclose(by_bias, compiled(layer.apply)(params, x), rtol=1e-6, atol=1e-6)


def test_a_mask_of_pairs_without_heads_has_a_repair(sentences):
    """What it says gives the outputs of the mask of keys that it was made of."""
    layer, x = Attention(2), np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 10
    params, known = drawn(layer, x), np.array([[True, True, False], [True, True, True]])
    mask = np.broadcast_to(known[:, None], (2, 3, 3))
    with pytest.raises(ValueError, match=r"write mask\[..., None, :, :\] for a mask of pairs"):
        layer.apply(params, x, mask=mask)
    found, expected = (run(layer, params, x, mask=one) for one in (mask[..., None, :, :], known))
    np.testing.assert_allclose(found[known], expected[known], rtol=1e-5, atol=1e-6)
