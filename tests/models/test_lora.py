"""LoRA: the update from its formula, what is trained, and what it merges to."""

import pickle

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compiled import compiled, drawn

from jaxblocks import (
    BatchNorm,
    Dense,
    Frozen,
    Layer,
    Repeat,
    Serial,
    init_train_state,
    interop,
    paths,
    softmax_cross_entropy,
    stateful,
    train_step,
)
from jaxblocks.layers import SpectralNorm, WeightNorm
from jaxblocks.models import GPT2, LoRA, merge_lora

TOKENS = np.random.default_rng(0).integers(0, 9, (4, 5)).astype(np.int32)
BACKBONE = GPT2(vocab_size=9, max_length=5, layers=2, heads=2, features=4, dropout=0.0)


def test_lora_is_its_formula_and_merges_back():
    net = LoRA(BACKBONE, "**/attention/*", "!**/out", rank=3, alpha=6.0)
    params = drawn(net, TOKENS)
    roles = ("query", "key", "value")
    assert set(params["lora"]) == {f"blocks/attention/{role}/kernel" for role in roles}
    expected = jax.tree.map(np.asarray, params["base"])
    for role in roles:
        down, up = (np.asarray(params["lora"][f"blocks/attention/{role}/kernel"][k]) for k in ("down", "up"))
        assert (down.shape, up.shape) == ((2, 4, 3), (2, 3, 4))
        expected["blocks"]["attention"][role]["kernel"] = expected["blocks"]["attention"][role][
            "kernel"
        ] + 6 / 3 * np.einsum("lir,lro->lio", down, up)
    merged = merge_lora(net, params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6), merged, expected)
    apply = jax.jit(BACKBONE.apply)
    np.testing.assert_allclose(jax.jit(net.apply)(params, TOKENS), apply(merged, TOKENS), rtol=0, atol=1e-6)
    gradient = jax.jit(jax.grad(lambda params: jnp.sin(net.apply(params, TOKENS)).sum()))(params)
    assert not any(leaf.any() for leaf in jax.tree.leaves(gradient["base"]))
    assert all(leaf.any() for leaf in jax.tree.leaves(gradient["lora"]))
    assert "rank=3" in repr(net) and repr(pickle.loads(pickle.dumps(net))) == repr(net)


def test_lora_begins_at_the_net_and_keeps_its_state(sentences):
    backbone, x = Serial(Dense(3), BatchNorm()), np.arange(6, dtype=np.float32).reshape(3, 2)
    pretrained, state = drawn(backbone, x)
    net = LoRA(backbone, "0", rank=1)
    params, _ = jax.jit(net.init)(jax.random.key(1), x)
    params |= {"base": pretrained}
    y, moved = compiled(net.apply)(params, state, x, train=True)
    expected, also = compiled(backbone.apply)(pretrained, state, x, train=True)
    chex.assert_trees_all_equal((y, moved), (expected, also))
    with pytest.raises(ValueError, match=r'LoRA expected params named base and lora, got .*; write params \| \{"base"'):
        net.apply(pretrained, state, x)
    with pytest.raises(ValueError, match="expected a pattern that matches a path, got 'norm/kernel'"):
        LoRA(backbone, "norm").init(jax.random.key(0), x)
    with pytest.raises(
        ValueError, match=r'LoRA expected at least one pattern of layers, got none; pass "\*\*/attention'
    ):
        LoRA(backbone).init(jax.random.key(0), x)
    pattern = r'merge_lora expected params named base and lora, got .*; write params \| \{"base"'
    with pytest.raises(ValueError, match=pattern):
        merge_lora(net, (params, state))
    for message, updates in {
        "LoRA expected updates of 0/kernel, got none": {},
        "LoRA expected updates of 0/kernel, got 1/kernel": {"1/kernel": params["lora"]["0/kernel"]},
        r"LoRA expected up of shape \(1, 3\), got float32 \(1, 1\)": {
            "0/kernel": params["lora"]["0/kernel"] | {"up": jnp.zeros((1, 1))}
        },
    }.items():
        with pytest.raises(ValueError, match=message):
            net.apply(params | {"lora": updates}, state, x)
    with pytest.raises(TypeError, match="merge_lora expected the result of LoRA, got Dense"):
        merge_lora(Dense(3), params)


def gradients(net, x):
    """The paths of params with a gradient, of a net with random params."""
    params, state = jax.eval_shape(stateful(net).init, jax.random.key(0), x)
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: jnp.asarray(rng.uniform(0.2, 1.0, leaf.shape), leaf.dtype), params)
    state = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), state)
    loss = lambda params: jnp.sin(stateful(net).apply(params, state, x)[0]).sum()
    gradient = jax.jit(jax.grad(loss))(params)
    return {path for path, leaf in zip(paths(gradient), jax.tree.leaves(gradient), strict=True) if leaf.any()}


def test_wrappers_of_params_around_frozen_layers(sentences):
    """Each pair trains the params of the outer wrapper, or none by its meaning, or is rejected."""
    x = jnp.arange(1.0, 7.0).reshape(3, 2) / 7
    dense, both = Dense(2), lambda path: {f"lora/{path}/down", f"lora/{path}/up"}
    trained = {
        LoRA(Frozen(dense), "**"): both("kernel"),
        LoRA(Serial(Frozen(dense), dense), "*"): both("0/kernel") | both("1/kernel"),
        LoRA(Repeat(Frozen(dense), 2), "**"): both("kernel"),
        LoRA(Frozen(Repeat(dense, 2, checkpoint="body")), "**"): both("kernel"),
        LoRA(SpectralNorm(Frozen(dense)), "**"): both("kernel"),
        LoRA(Frozen(WeightNorm(dense)), "layer"): both("layer/kernel"),
        LoRA(LoRA(dense, "**"), "base"): both("base/kernel"),
        LoRA(hand_written(Frozen(dense)), "**"): both("kernel"),
        Serial(LoRA(Frozen(dense), "**"), Frozen(dense)): {f"0/{path}" for path in both("kernel")},
        Frozen(LoRA(dense, "**")): set(),
        Frozen(WeightNorm(dense)): set(),
        SpectralNorm(Frozen(dense)): set(),
        Repeat(Frozen(dense), 2): set(),
        WeightNorm(Serial(dense, Frozen(BatchNorm()))): {"layer/0/bias", "layer/0/kernel", "scale/0/kernel/length"},
    }
    for net, expected in trained.items():
        assert gradients(net, x) == expected, net
    for net, sentence in {
        WeightNorm(Frozen(dense)): r"Frozen expected .* WeightNorm, .*; write Frozen\(WeightNorm\(layer\)\)",
        WeightNorm(Serial(dense, Frozen(dense))): r"Frozen expected .*; write Frozen\(WeightNorm\(layer\)\)",
        WeightNorm(LoRA(dense, "**")): r"LoRA expected .*; write LoRA\(WeightNorm\(layer\)\)",
        LoRA(WeightNorm(Frozen(dense)), "layer"): r"Frozen expected .*; write Frozen\(WeightNorm\(layer\)\)",
    }.items():
        with pytest.raises(ValueError, match=sentence):
            gradients(net, x)


def hand_written(layer):
    return Layer(lambda key, x: layer.init(key, x), lambda params, x: layer.apply(params, x))


@pytest.mark.usefixtures("as_a_user_has_it")
def test_a_bert_from_disk_is_fine_tuned(tmp_path):
    """Its params stay; the updates and a new head learn which of two tokens a sequence contains."""
    config = dict(model_type="bert", vocab_size=9, max_position_embeddings=5, type_vocab_size=1, hidden_size=8)
    config |= dict(num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, architectures=["BertModel"])
    bert = interop.build(config)
    interop.save(tmp_path, bert, drawn(bert, TOKENS), like=config)
    bert, pretrained, _ = interop.load(tmp_path, dropout=0.0)
    backbone = LoRA(bert, "**/attention/*", "**/mlp/*", rank=2)
    net = Serial(backbone=backbone, summary=lambda features, pooled: pooled, head=Dense(2))
    tokens = np.random.default_rng(0).integers(3, 9, (16, 5)).astype(np.int32)
    labels = np.arange(16, dtype=np.int32) % 2
    tokens[:, 2] = labels
    optimizer = optax.adam(0.05)
    ts = init_train_state(jax.random.key(0), net, optimizer, tokens)
    ts.params["backbone"]["base"] = jax.device_put(jax.tree.map(np.array, pretrained))  # the step donates its params
    step = train_step(net, softmax_cross_entropy, optimizer)
    ts, first = step(ts, tokens, labels)
    for _ in range(60):
        ts, last = step(ts, tokens, labels)
    assert last < 0.3 * first
    chex.assert_trees_all_equal(ts.params["backbone"]["base"], pretrained)
    assert all(update["up"].any() for update in ts.params["backbone"]["lora"].values())
