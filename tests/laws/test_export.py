"""Nets as programs for other machines: `jax.export` with symbolic sizes, and compilation ahead of time."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from jaxblocks import (
    Attention,
    AvgPool,
    LearnedPositions,
    SinusoidalPositions,
    StatefulLayer,
    alibi,
    attention,
    models,
    rotary,
    sinusoidal_positions,
)
from jaxblocks.layers import RelativePositionBias, Resize, batch_graphs, complete_graph, linear_attention

TINY = dict(layers=1, heads=2, features=4, hidden=4)
WORDS, IMAGES = np.zeros((2, 3), np.int32), np.zeros((2, 8, 8, 1), np.float32)
CLIP_SIZES = dict(text_layers=1, text_heads=2, text_features=4, text_hidden=4)
CLIP_SIZES |= dict(image_layers=1, image_heads=2, image_features=4, image_hidden=4)


def zeros_like(make):
    """Zeros of the shapes that ``make()`` has, without the programs that compute it."""
    return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), jax.eval_shape(make))


MODELS = {  # the net, its inputs, and their symbolic shapes; None where the structure of the inputs fixes the sizes
    "BERT": (models.BERT(vocab_size=5, max_length=8, **TINY), (WORDS,), ["b, t"]),
    "GPT2": (models.GPT2(vocab_size=5, max_length=8, **TINY), (WORDS,), ["b, t"]),
    "Llama": (models.Llama(vocab_size=5, kv_heads=1, **TINY), (WORDS,), ["b, t"]),
    "LoRA": (
        models.LoRA(models.Llama(vocab_size=5, **TINY), "**/attention/*", rank=1),
        (WORDS,),
        ["b, t"],
    ),
    "RecurrentLM": (models.RecurrentLM(vocab_size=5, features=4, layers=1), (WORDS,), ["b, t"]),
    "Transformer": (models.Transformer(vocab_size=5, **TINY), (WORDS, WORDS[:, :2]), ["b, s", "b, t"]),
    "T5": (models.T5(vocab_size=5, head_dim=2, **TINY), (WORDS, WORDS[:, :2]), ["b, s", "b, t"]),
    "CLIP": (
        models.CLIP(features=3, vocab_size=5, max_length=8, patch_size=4, **CLIP_SIZES),
        (IMAGES, WORDS),
        ["b, _, _, _", "b, _"],
    ),
    "Whisper": (
        models.Whisper(vocab_size=5, max_frames=6, max_length=8, heads=2, features=4),
        (np.zeros((2, 6, 3), np.float32), WORDS),
        ["b, _, _", "b, t"],
    ),
    "ConvNeXt": (models.ConvNeXt(depths=(1, 1), widths=(2, 3), classes=2), (IMAGES,), ["b, _, _, _"]),
    "LeNet5": (models.LeNet5(channels=(1, 1), hidden=(2, 2)), (np.zeros((2, 28, 28, 1), np.float32),), ["b, _, _, _"]),
    "MLPMixer": (
        models.MLPMixer(classes=2, patch_size=4, features=4, layers=1, token_hidden=2, hidden=2),
        (IMAGES,),
        ["b, _, _, _"],
    ),
    "ResNet": (models.ResNet((1,), classes=2, width=2, bottleneck=False, stem="3x3"), (IMAGES,), ["b, _, _, _"]),
    "UNet": (
        models.UNet(1, width=2, multipliers=(1, 2), blocks=1, groups=1, time=False),
        (IMAGES,),
        ["b, _, _, _"],
    ),
    "VGG": (
        models.VGG(11, classes=2, width=1, hidden=2, pool_size=1),
        (np.zeros((2, 32, 32, 1), np.float32),),
        ["b, _, _, _"],
    ),
    "ViT": (models.ViT(classes=2, patch_size=4, **TINY), (IMAGES,), ["b, _, _, _"]),
    "GraphClassifier": (
        models.GraphClassifier(2, features=2, layers=1),
        (zeros_like(lambda: batch_graphs([complete_graph(jnp.ones((n, 2))) for n in (1, 2)])),),
        None,
    ),
}


def symbolic(inputs, shapes):
    """The shapes of the inputs with letters in place of sizes."""
    scope = export.SymbolicScope([f"{axis} <= 8" for axis in "st" if axis in str(shapes)])
    if shapes is None:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), inputs)
    sizes = [export.symbolic_shape(one, like=x.shape, scope=scope) for one, x in zip(shapes, inputs, strict=True)]
    return tuple(jax.ShapeDtypeStruct(size, x.dtype) for size, x in zip(sizes, inputs, strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_exported_and_compiled_ahead_of_time(name):
    """With a symbolic batch, and a symbolic time where there is one; the outputs have the shapes of those of apply."""
    net, inputs, shapes = MODELS[name]
    made = jax.eval_shape(net.init, jax.random.key(0), *inputs)
    made = made if isinstance(net, StatefulLayer) else (made,)
    apply = jax.jit(lambda made, inputs: net.apply(*made, *inputs))
    exported = export.export(apply)(made, symbolic(inputs, shapes))
    compiled = apply.lower(made, inputs).compile()
    outputs = jax.tree.leaves(jax.eval_shape(apply, made, inputs))
    assert [x.ndim for x in exported.out_avals] == [x.ndim for x in outputs]
    if shapes:
        assert "b" in str(exported.out_avals[0].shape[0]) and ("t" in str(exported.out_avals[0].shape)) == (
            "t" in shapes[-1]
        )
    assert jax.tree.leaves(compiled.out_info)[0].shape == outputs[0].shape


def test_every_model_is_in_the_table():
    builders = {
        name for name in models.__all__ if name[0].isupper() and name not in ("TransformerBlock", "TransformerMLP")
    }
    assert builders == set(MODELS)


LAYERS = {
    "Attention": Attention(2),
    "rotary and ALiBi": Attention(2, causal=True, positions=rotary, score_bias=alibi),
    "a window in chunks": Attention(
        2, causal=True, attention_fn=functools.partial(attention, sliding_window=2, implementation="chunked", chunk=2)
    ),
    "a learned bias": Attention(2, score_bias=RelativePositionBias(2)),
    "linear attention": Attention(2, causal=True, attention_fn=functools.partial(linear_attention, chunk=2)),
    "SinusoidalPositions": SinusoidalPositions(),
}


@pytest.mark.parametrize("name", LAYERS)
def test_an_exported_layer_with_symbolic_time_computes_the_same(name):
    layer, x = LAYERS[name], jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 4)), jnp.float32)
    params = layer.init(jax.random.key(0), x)
    apply = jax.jit(functools.partial(layer.apply, params))
    program = export.export(apply)(jax.ShapeDtypeStruct(export.symbolic_shape("b, t, 4"), jnp.float32))
    np.testing.assert_allclose(program.call(x), apply(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layer", [AvgPool(2, padding=1, count_padding=False), Resize(3)], ids=["AvgPool", "Resize"])
def test_weights_by_position_do_not_need_the_size_of_the_batch(layer):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 4, 3)), jnp.float32)
    apply = jax.jit(functools.partial(layer.apply, ()))
    program = export.export(apply)(jax.ShapeDtypeStruct(export.symbolic_shape("b, 4, 3"), jnp.float32))
    np.testing.assert_allclose(program.call(x), apply(x), rtol=1e-6)


def test_a_table_of_positions_needs_a_bound_of_the_time(sentences):
    layer = LearnedPositions(8)
    shape = lambda **options: jax.ShapeDtypeStruct(export.symbolic_shape("b, t, 4", **options), jnp.float32)
    params = layer.init(jax.random.key(0), shape())
    sentence = r"LearnedPositions expected sequences of at most 8 positions, got float32 \(b, t, 4\); pass constraints="
    with pytest.raises(ValueError, match=sentence + r'\["t <= 8"\] to jax.export.symbolic_shape'):
        jax.eval_shape(layer.apply, params, shape())
    jax.eval_shape(layer.apply, params, shape(constraints=["t <= 8"]))  # as the error advises


def test_sizes_that_are_neither_integers_nor_symbolic_are_rejected(sentences):
    with pytest.raises(ValueError, match="alibi expected n_q to be an integer >= 0, got -1"):
        alibi(2, -1, 3)
    with pytest.raises(ValueError, match="sinusoidal_positions expected length to be an integer >= 0, got 2.5"):
        sinusoidal_positions(2.5, 2)
