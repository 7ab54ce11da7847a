"""Nets as programs for other machines: `jax.export` with symbolic sizes, and compilation ahead of time."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compiled import drawn
from jax import export
from small_models import MODELS
from zoo import FIXED, SIMPLE, ZOO

from jaxblocks import (
    GRU,
    LSTM,
    Attention,
    AvgPool,
    BatchNorm,
    Conv,
    Dense,
    LearnedPositions,
    MaxPool,
    Recurrent,
    RNNCell,
    Serial,
    SinusoidalPositions,
    StatefulLayer,
    alibi,
    attention,
    init_train_state,
    models,
    mse,
    rotary,
    side_inputs,
    sinusoidal_positions,
    stateful,
    train_step,
)
from jaxblocks.backend.draws import random_order
from jaxblocks.backend.platforms import lowering_for
from jaxblocks.core.lifting import declared_by
from jaxblocks.diffusion import sample_times
from jaxblocks.layers import (
    LRU,
    ConvTranspose,
    DepthwiseConv,
    MixtureOfExperts,
    Pad,
    RelativePositionBias,
    Resize,
    SelectiveSSM,
    UpSample,
    gated_linear_attention,
    linear_attention,
)
from jaxblocks.losses import info_nce_loss, pairwise_distances
from jaxblocks.metrics import accuracy
from jaxblocks.training import mixup


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


# ---- free sizes: comparisons in the code depend on them --------------------------------------

BOUNDED = {
    "Attention with a cache": ["t <= 12"],  # the positions of the cache
    "LearnedPositions": ["t <= 5"],  # the rows of the table
    "LpPool": ["t >= 2"],  # a window
    "Conv in groups": ["t >= 2", "h >= 2"],  # the entries that padding reflects
    "Pad": ["t >= 3", "h >= 3"],  # the same
    "PixelUnshuffle": ["mod(t, 2) == 0"],  # blocks of positions
}
"""The constraints without which no program exists."""


def in_letters(x, scope, axes):
    """The shape of ``x`` with a letter for each of its first axes."""
    sizes = [letter if axis < axes else str(n) for axis, (letter, n) in enumerate(zip("bthw.", x.shape, strict=False))]
    return jax.ShapeDtypeStruct(export.symbolic_shape(", ".join(sizes), scope=scope), x.dtype)


def exported_with_free_sizes(row, constraints):
    """The program of outputs and gradient in training, with symbolic sizes of all axes but that of the features.

    For all platforms; those whose code is chosen by the platform are lowered for accelerators in `test_lowering.py`.
    """
    net, scope = stateful(row.layer), export.SymbolicScope(constraints)
    inputs = [in_letters(x, scope, max(x.ndim - 1, 1)) for x in row.inputs()]
    side = ({"train": True} if "train" in side_inputs(row.layer) else {}) | row.side
    masks = {name: in_letters(x, scope, x.ndim) for name, x in side.items() if isinstance(x, np.ndarray | jax.Array)}
    if "key" in side_inputs(row.layer):
        masks["key"] = jax.eval_shape(lambda: jax.random.key(0))
    of_init = {name: value for name, value in row.side.items() if name in declared_by(row.layer.init)}
    made = jax.eval_shape(lambda *inputs: net.init(jax.random.key(0), *inputs, **of_init), *inputs)

    def run(params, state, masks, *inputs):
        moving = [x for x in inputs if x.dtype == jnp.float32]

        def objective(params, moving):
            left = iter(moving)
            given = [next(left) if x.dtype == jnp.float32 else x for x in inputs]
            outputs, _ = net.apply(params, state, *given, **side | masks)
            return sum(jnp.sum(y) for y in jax.tree.leaves(outputs) if y.dtype == jnp.float32), outputs

        return jax.grad(objective, (0, 1), has_aux=True)(params, moving)

    return export.export(jax.jit(run), platforms=("cpu", "cuda", "rocm", "tpu"))(*made, masks, *inputs)


@pytest.mark.parametrize("name", SIMPLE)
def test_layers_are_exported_with_free_sizes(name):
    if name in FIXED:
        with pytest.raises(ValueError, match=f"expected sizes that are {FIXED[name]}"):
            exported_with_free_sizes(ZOO[name], ())
    else:
        exported = exported_with_free_sizes(ZOO[name], BOUNDED.get(name, ()))
        outputs = exported.out_tree.unflatten(exported.out_avals)[1]
        assert any("b" in str(y.shape) for y in jax.tree.leaves(outputs))


FREE = {
    "Conv": Conv(3, 3, stride=2, padding="same"),
    "Conv, repeated edge": Conv(3, 3, padding="same", padding_mode="replicate"),
    "ConvTranspose": ConvTranspose(3, 3, stride=2),
    "DepthwiseConv": DepthwiseConv(3, stride=2, padding="same"),
    "MaxPool": MaxPool(3, stride=2, padding=1),
    "MaxPool, gaps between windows": MaxPool(2, stride=3, padding=1),
    "AvgPool": AvgPool(3, stride=2, padding=1, count_padding=False),
    "UpSample": UpSample(2.0, method="nearest_floor"),
    "LSTM": LSTM(3),
    "GRU": GRU(3),
    "LRU": LRU(2),
    "SelectiveSSM": SelectiveSSM(2, chunk=3),
    "MixtureOfExperts": Serial(MixtureOfExperts(Dense(2), 5, block=2), lambda y, losses: y),
}


@pytest.mark.parametrize("name", FREE)
def test_an_exported_layer_with_free_sizes_has_the_same_values_and_gradient(name):
    """With two lengths of time, the longer one in several chunks."""
    layer, rng = FREE[name], np.random.default_rng(0)
    params = drawn(layer, jnp.zeros((2, 5, 4)))

    @jax.jit
    def run(params, x):
        outputs, pull = jax.vjp(layer.apply, params, x)
        return outputs, pull(jnp.cos(outputs))

    shapes = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, p.dtype), params)
    program = export.export(run)(shapes, jax.ShapeDtypeStruct(export.symbolic_shape("b, t, 4"), jnp.float32))
    for time in (2, 19):
        x = np.float32(rng.normal(size=(3, time, 4)))
        for y, expected in zip(*map(jax.tree.leaves, (program.call(params, x), run(params, x))), strict=True):
            np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("delta", [False, True])
def test_exported_gated_linear_attention_with_free_time_computes_the_same(delta):
    def run(x, gate):
        beta = jax.nn.sigmoid(gate) if delta else None
        return gated_linear_attention(x, jnp.sin(x), jnp.cos(x), -jnp.abs(gate), beta=beta, chunk=4)

    scope, rng = export.SymbolicScope(), np.random.default_rng(0)
    shapes = [export.symbolic_shape(shape, scope=scope) for shape in ("b, t, 2, 3", "b, t, 2")]
    program = export.export(jax.jit(run))(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes))
    for time in (2, 9):
        inputs = [np.float32(rng.normal(size=shape)) for shape in ((2, time, 2, 3), (2, time, 2))]
        for y, expected in zip(program.call(*inputs), jax.jit(run)(*inputs), strict=True):
            np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", ["b, 3, 2", "b, t, 2"])
def test_exported_distances_of_any_numbers_of_points_are_the_same(shape):
    run = jax.jit(jax.value_and_grad(lambda x: jnp.sum(jnp.sin(pairwise_distances(x)))))
    program = export.export(run)(jax.ShapeDtypeStruct(export.symbolic_shape(shape), jnp.float32))
    x = np.float32(np.random.default_rng(0).normal(size=(2, 3, 2)))
    for y, expected in zip(program.call(x), run(x), strict=True):
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_exported_draws_of_any_batch_are_the_same():
    """Mixtures of examples and stratified times have random orders of the batch; its rows are classes for InfoNCE."""

    def run(x):
        keys, targets = jax.random.split(jax.random.key(0), 2), x.mean((1, 2))
        mixed = mixup(keys[0], x, targets)
        a, b = x[:, 0, :, 0], x[:, 1, :, 0]
        hits = accuracy(a @ b.T, jnp.arange(x.shape[0]))
        return mixed, sample_times(keys[1], x.shape[:1]), info_nce_loss(a, b), hits

    program = export.export(jax.jit(run))(jax.ShapeDtypeStruct(export.symbolic_shape("b, 4, 4, 1"), jnp.float32))
    for batch in (1, 6):
        x = np.float32(np.random.default_rng(0).normal(size=(batch, 4, 4, 1)))
        jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), program.call(x), jax.jit(run)(x))


@pytest.mark.parametrize("x64", [False, True])
def test_random_orders_are_those_of_jax(x64):
    with jax.enable_x64(x64):
        for size in (0, 1, 1600):
            found, expected = (draw(jax.random.key(0), size) for draw in (random_order, jax.random.permutation))
            np.testing.assert_array_equal(found, expected)
            assert found.dtype == expected.dtype


def test_an_exported_training_step_takes_batches_of_any_size():
    net, optimizer = Serial(Dense(3), BatchNorm(), Dense(1)), optax.sgd(0.1)
    ts = init_train_state(jax.random.key(0), net, optimizer, jnp.zeros((4, 2)))
    step, scope = train_step(net, mse, optimizer, donate=False), export.SymbolicScope()

    @jax.jit
    def run(params, x, y):
        after, loss = step(ts._replace(params=params), x, y)
        return after.params, after.state, loss

    shapes = [export.symbolic_shape(shape, scope=scope) for shape in ("b, 2", "b, 1")]
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    program, rng = export.export(run)(ts.params, *arrays), np.random.default_rng(0)
    for batch in (2, 5):
        x, y = (np.float32(rng.normal(size=(batch, n))) for n in (2, 1))
        found, expected = program.call(ts.params, x, y), run(ts.params, x, y)
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), found, expected)


def test_errors_of_free_sizes_name_the_constraint_or_the_option(sentences):
    shape = lambda **options: jax.ShapeDtypeStruct(export.symbolic_shape("b, t, w, 4", **options), jnp.float32)
    layer = Conv(2, (3, 5), padding=(0, 1))
    params = jax.eval_shape(layer.init, jax.random.key(0), jax.ShapeDtypeStruct((1, 9, 9, 4), jnp.float32))
    repair = r'pass constraints=\["3 <= t", "5 <= w \+ 2"\] to jax.export.symbolic_shape'
    with pytest.raises(ValueError, match=rf"Conv expected an input that its windows fit into.*; {repair}\."):
        jax.eval_shape(layer.apply, params, shape())
    y = jax.eval_shape(layer.apply, params, shape(constraints=["3 <= t", "5 <= w + 2"]))  # as the error advises
    assert str(y.shape) == "(b, t - 2, w - 2, 2)"
    with pytest.raises(ValueError, match=r"choose smaller windows"):
        jax.eval_shape(layer.apply, params, shape(constraints=["t <= 2", "w >= 3"]))
    options = {
        "ceil_mode=True": MaxPool((2, 2), ceil_mode=True),
        "padding='same' with such a stride": MaxPool((2, 2), stride=3, padding="same"),
        "the factor 1.5": UpSample((1.5, 2)),
        "padding_mode='circular'": Pad((1, 1), padding_mode="circular"),
    }
    for option, layer in options.items():
        with pytest.raises(ValueError, match=f"expected sizes that are integers for {option}, got .*; pass integers"):
            jax.eval_shape(layer.apply, (), shape(constraints=["t >= 2", "w >= 2"]))
    net = Recurrent(RNNCell(2), unroll=True)
    params = jax.eval_shape(net.init, jax.random.key(0), jax.ShapeDtypeStruct((1, 9, 4), jnp.float32))
    x = jax.ShapeDtypeStruct(export.symbolic_shape("b, t, 4"), jnp.float32)
    with pytest.raises(ValueError, match="expected sizes that are integers for unroll=True"):
        jax.eval_shape(net.apply, params, x)
