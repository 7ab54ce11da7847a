"""Nets as programs for other machines: `jax.export` with symbolic sizes, and compilation ahead of time."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from small_models import MODELS

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
from jaxblocks.backend.platforms import lowering_for
from jaxblocks.layers import RelativePositionBias, Resize, linear_attention


def symbolic(inputs, shapes):
    """The shapes of the inputs with letters in place of sizes."""
    scope = export.SymbolicScope([f"{axis} <= 8" for axis in "st" if axis in str(shapes)])
    if shapes is None:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), inputs)
    sizes = [export.symbolic_shape(one, like=x.shape, scope=scope) for one, x in zip(shapes, inputs, strict=True)]
    return tuple(jax.ShapeDtypeStruct(size, x.dtype) for size, x in zip(sizes, inputs, strict=True))


def applied(net, inputs):
    """``apply`` under ``jit``, as a function of what ``init`` makes and of the inputs, and the shapes of the first."""
    made = jax.eval_shape(net.init, jax.random.key(0), *inputs)
    made = made if isinstance(net, StatefulLayer) else (made,)
    return jax.jit(lambda made, inputs: net.apply(*made, *inputs)), made


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_exported(name):
    """For accelerators, with a symbolic batch, and a symbolic time where there is one.

    The outputs have the axes of those of ``apply`` with params that are NumPy arrays and with a batch without examples.
    """
    net, inputs, shapes = MODELS[name]
    apply, made = applied(net, inputs)
    with lowering_for("cuda"):
        exported = export.export(apply, platforms=("cuda", "rocm", "tpu"))(made, symbolic(inputs, shapes))
    numbers = jax.tree.map(lambda p: np.ones(p.shape, p.dtype), made)
    empty = [x[:0] for x in inputs] if shapes else inputs
    outputs = jax.eval_shape(lambda *inputs: net.apply(*numbers, *inputs), *empty)
    for x, y in zip(exported.out_avals, jax.tree.leaves(outputs), strict=True):
        assert x.dtype == y.dtype
        sizes = [0 if str(n) == "b" else n for n in x.shape]
        assert [m if isinstance(n, int) else n for n, m in zip(sizes, y.shape, strict=True)] == sizes
    if shapes:
        assert "b" in str(exported.out_avals[0].shape[0]) and ("t" in str(exported.out_avals[0].shape)) == (
            "t" in shapes[-1]
        )


@pytest.mark.cpu
@pytest.mark.parametrize("name", ["ResNet", "VGG", "ViT", "MLPMixer", "UNet"])
def test_models_with_convolutions_are_exported_for_cpus(name):
    """The forms of convolutions on CPUs depend on sizes, and a symbolic one has the form of `jax.lax`."""
    net, inputs, shapes = MODELS[name]
    apply, made = applied(net, inputs)
    exported = export.export(apply)(made, symbolic(inputs, shapes))
    assert exported.platforms == ("cpu",) and "b" in str(exported.out_avals[0].shape[0])


def test_a_model_is_compiled_ahead_of_time():
    net, inputs, _ = MODELS["GPT2"]
    apply, made = applied(net, inputs)
    compiled = apply.lower(made, inputs).compile()
    shapes = [
        [x.shape for x in jax.tree.leaves(out)] for out in (compiled.out_info, jax.eval_shape(apply, made, inputs))
    ]
    assert shapes[0] == shapes[1]


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
