"""Dense layers: formulas and counts from the lectures, affine algebra, and errors of invalid input."""

import contextlib
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import drawn
from jax.extend.core import jaxprs_in_params
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxblocks import (
    GCN,
    MLP,
    Attention,
    Bias,
    Conv,
    ConvTranspose,
    Dense,
    Embedding,
    Graph,
    LearnedPositions,
    PReLU,
    Serial,
    affine,
    count_params,
    relu,
    sigmoid,
)
from jaxblocks.backend import linear_maps
from jaxblocks.layers import RBF, RandomFourierFeatures, fuse_affine
from jaxblocks.models import TransformerMLP
from jaxblocks.models.image_tokens import ClassToken, TokenPositions

X = np.random.default_rng(1).normal(size=(4, 5)).astype(np.float32)


def shapes(params):
    return [leaf.shape for leaf in jax.tree.leaves(params)]


@pytest.mark.parametrize(
    ("widths", "inputs", "parameters"),
    [((5, 1), 2, 21), ((5, 10, 5, 2), 2, 142), ((7, 3), 4, 7 * 5 + 3 * 8)],
)
def test_parameter_counts(widths, inputs, parameters):
    """The counts of the lecture: 21; 142, which is 15 + 60 + 55 + 12; m (d + 1) + c (m + 1)."""
    x = jax.ShapeDtypeStruct((inputs,), jnp.float32)
    params = jax.eval_shape(MLP(*widths).init, jax.random.key(0), x)
    assert count_params(params) == parameters
    if parameters == 142:
        assert [count_params(layer) for layer in params if layer] == [15, 60, 55, 12]


def test_mlp_equals_the_nested_expression():
    """f = o(W3 s(W2 s(W1 x + b1) + b2) + b3), with the output activation an explicit argument."""
    net = MLP(6, 4, 3, activation=jnp.tanh, last_activation=sigmoid)
    params = drawn(net, X)
    one, _, two, _, three, _ = params
    h = X
    for layer in (one, two):
        h = np.tanh(h @ layer["kernel"] + layer["bias"])
    h = h @ three["kernel"] + three["bias"]
    np.testing.assert_allclose(jax.jit(net.apply)(params, X), 1 / (1 + np.exp(-h)), rtol=1e-5)
    assert len(jax.eval_shape(MLP(6, 4, 3).init, jax.random.key(0), X)) == 5  # no output activation by default


@pytest.mark.parametrize("layer", [MLP, TransformerMLP])
def test_dtypes_of_all_maps(layer):
    """``dtype`` is that of the output, ``param_dtype`` that of every param."""
    net = layer(6, 3, dtype=jnp.bfloat16, param_dtype=jnp.float16)
    params = jax.eval_shape(net.init, jax.random.key(0), X)
    assert {p.dtype for p in jax.tree.leaves(params)} == {jnp.dtype(jnp.float16)}
    assert jax.eval_shape(net.apply, params, X).dtype == jnp.bfloat16


def test_kernel_init_depends_on_the_next_activation():
    """He variance 2 / fan-in before a rectifier, LeCun variance 1 / fan-in otherwise."""
    x = jax.ShapeDtypeStruct((1, 400), jnp.float32)
    for activation, expected in ((relu, 2 / 400), (jnp.tanh, 1 / 400)):
        first, *_, last = MLP(400, 400, activation=activation).init(jax.random.key(0), x)
        assert np.var(first["kernel"]) == pytest.approx(expected, rel=0.03)
        assert np.var(last["kernel"]) == pytest.approx(1 / 400, rel=0.03)


# ---- errors ----------------------------------------------------------


def test_wrong_feature_sizes_are_rejected(sentences):
    params = drawn(Dense(3), X)
    with pytest.raises(
        ValueError, match=r"Dense expected .* same size of in, got float32 \(4, 7\) and float32 \(5, 3\)"
    ):
        Dense(3).apply(params, jnp.ones((4, 7)))
    with pytest.raises(ValueError, match=r"feature, got float32 \(4, 0\); pass features on the last axis of x"):
        Dense(3).init(jax.random.key(0), jnp.zeros((4, 0)))
    with pytest.raises(ValueError, match=r"Dense expected x with at least 1 axis, .* got float32 \(\)"):
        Dense(3).apply(params, jnp.float32(1))


def test_scalars_are_rejected_at_init(sentences):
    with pytest.raises(ValueError, match=r"x with at least 1 axis, \(\*batch, in\), got float32 \(\); .* x\[None\]"):
        Dense(3).init(jax.random.key(0), jnp.float32(1))
    jax.eval_shape(Dense(3).init, jax.random.key(0), jnp.float32(1)[None])


@pytest.mark.parametrize("layer", [Dense(3), Bias()])
def test_integers_and_lists_are_rejected_with_the_repair(layer, sentences):
    x = jnp.arange(5)
    with pytest.raises(
        TypeError, match=r"x to be a floating-point or complex array, got int32 \(5,\); convert it with x.astype"
    ):
        layer.init(jax.random.key(0), x)
    with pytest.raises(
        TypeError, match="x to be a floating-point or complex array, got a list; convert it with jnp.asarray"
    ):
        layer.init(jax.random.key(0), [1.0, 2.0])
    params = drawn(layer, x.astype(jnp.float32))
    with pytest.raises(TypeError, match="x to be a floating-point or complex array"):
        layer.apply(params, x)


def test_params_of_another_layer_are_rejected(sentences):
    with pytest.raises(ValueError, match="Dense expected params named kernel, got bias, kernel"):
        Dense(3, use_bias=False).apply(drawn(Dense(3), X), X)
    with pytest.raises(ValueError, match=r"Dense expected params named bias, kernel, got \(\)"):
        Dense(3).apply((), X)
    with pytest.raises(ValueError, match=r"bias of shape \(3,\), got float32 \(4,\)"):
        Dense(3).apply({"kernel": jnp.ones((5, 3)), "bias": jnp.ones(4)}, X)
    with pytest.raises(ValueError, match=r"Bias expected bias of shape \(6,\), got float32 \(5,\)"):
        Bias().apply({"bias": jnp.ones(5)}, jnp.ones((4, 6)))


def test_an_mlp_without_layers_is_rejected(sentences):
    with pytest.raises(ValueError, match="at least one width"):
        MLP()


def test_params_with_other_features_are_rejected(sentences):
    params = drawn(Dense(4), X)
    with pytest.raises(ValueError, match=r"Dense expected kernel of shape \(any, 3\), got float32 \(5, 4\)"):
        Dense(3).apply(params, X)


def test_integers_are_rejected_even_with_a_given_dtype(sentences):
    layer = Dense(3, dtype=jnp.bfloat16)
    with pytest.raises(TypeError, match=r"convert it with x.astype\(jnp.float32\)"):
        layer.apply(drawn(layer, X), X.astype(jnp.int32))


def test_fusing_maps_without_bias():
    """Maps with and without bias fuse in any order."""
    a, b = jnp.array([[2.0]]), jnp.array([3.0])
    fused = fuse_affine({"kernel": a}, {"kernel": a, "bias": b}, {"kernel": a})
    assert (fused["kernel"].item(), fused["bias"].item()) == (8.0, 6.0)
    assert set(fuse_affine({"kernel": a}, {"kernel": a})) == {"kernel"}
    with pytest.raises(ValueError, match="at least one Dense"):
        fuse_affine()


def test_invalid_keys_are_rejected(sentences):
    """Each invalid key raises an error that states the repair."""
    keys = jax.random.split(jax.random.key(0), 2)
    wrong = (0, "got 0"), (None, "got None"), (np.ones((4, 5), np.float32), r"got float32 \(4, 5\)"), (keys, "jax.vmap")
    for key, words in wrong:
        with pytest.raises(TypeError, match=words):
            Dense(3).init(key, X)
    with pytest.raises(TypeError, match="got 0"):
        Serial(Dense(3)).init(0, X)


def products(f, *args):
    """The shapes of both operands of each product in ``f``."""
    return operands("dot_general", f, *args)


def operands(primitive, f, *args):
    """The shapes of the operands of each use of a primitive in ``f``."""
    found = []

    def collect(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name == primitive:
                found.append(tuple(v.aval.shape for v in equation.invars))
            for inner in jaxprs_in_params(equation.params):
                collect(inner)

    collect(jax.make_jaxpr(f)(*args).jaxpr)
    return found


def test_products_merge_leading_axes():
    """All maps of features multiply two matrices, the gradient of the kernel included; batches may be empty."""
    rng = np.random.default_rng(2)
    kernel, x = (rng.normal(size=shape).astype(np.float32) for shape in ((5, 3), (2, 4, 6, 5)))
    np.testing.assert_allclose(jax.jit(affine)(x, kernel), x @ kernel, rtol=1e-5, atol=1e-6)
    gradient = jax.grad(lambda kernel, x: jnp.sum(affine(x, kernel) ** 2))
    assert products(gradient, kernel, x) == [((48, 5), (5, 3)), ((48, 3), (48, 5))]
    assert operands("add", affine, x, kernel, kernel[0]) == [((48, 3), (48, 3))]  # the bias, before axes are split
    layer, tied = Attention(2), Embedding(7, 4, tied=True)
    x = x[:, :, 0, :4]
    params = drawn(layer, x)
    assert products(layer.apply, params, x)[:3] == [((8, 4), (4, 4))] * 3
    assert products(tied.apply, {"embedding": np.zeros((7, 4), np.float32)}, x) == [((8, 4), (4, 7))]
    assert jax.jit(affine)(np.zeros((2, 0, 5), np.float32), kernel).shape == (2, 0, 3)


HALF = {
    "Dense": (Dense(4), (64, 256, 2)),
    "Bias": (Bias(), (64, 256, 2)),
    "Conv": (Conv(4, (1, 1)), (8, 32, 32, 2)),
    "ConvTranspose": (ConvTranspose(4, (1, 1)), (8, 32, 32, 2)),
    "PReLU": (PReLU(), (64, 256, 2)),
    "GCN": (GCN(4), None),
    "ClassToken": (ClassToken(), (1024, 3, 2)),
    "LearnedPositions": (LearnedPositions(3), (1024, 3, 2)),
    "TokenPositions": (TokenPositions(), (1024, 3, 2)),
}


@pytest.mark.parametrize(
    ("name", "merge"), [*((name, True) for name in HALF), ("Dense", False), ("Bias", False), ("PReLU", False)]
)
def test_gradients_of_biases_in_half_precision(name, merge, monkeypatch):
    """Gradients of params that are added or multiplied along the batch, sums over all examples, are not bfloat16 sums.

    256 + 1 is 256 in bfloat16.
    """
    monkeypatch.setattr(linear_maps, "_on_one_device", lambda: merge)
    layer, shape = HALF[name]
    if shape is None:
        x = Graph(np.full((1024, 2), -1.0, np.float32), np.arange(1024), np.arange(1024))
    else:
        x = np.full(shape, -1.0, np.float32)
    params = drawn(layer, x)

    def gradient(dtype):
        cast = lambda tree: jax.tree.map(lambda a: a.astype(dtype) if a.dtype == np.float32 else a, tree)

        def total(params):
            y = layer.apply(params, cast(x))
            return sum(jnp.sum(leaf, dtype=jnp.float32) for leaf in jax.tree.leaves(y) if leaf.dtype == dtype)

        return jax.jit(jax.grad(total))(cast(params))

    ours, expected = gradient(jnp.bfloat16), gradient(jnp.float32)
    for name in set(ours) - {"kernel"}:  # a product, whose sums are those of XLA
        np.testing.assert_allclose(ours[name].astype(np.float32), expected[name], rtol=0.03, atol=1e-6)


def test_gradients_of_float32_biases_in_half_precision():
    """They are not rounded: 70,000 is infinite in float16."""
    total = lambda params, x: jnp.sum(Bias().apply(params, x), dtype=jnp.float32)
    gradient = jax.jit(jax.grad(total))({"bias": np.zeros(2, np.float32)}, np.ones((70_000, 2), np.float16))
    np.testing.assert_array_equal(gradient["bias"], [70_000, 70_000])


REDUCED = {
    "Dense": Dense(4),
    "Bias": Bias(),
    "RandomFourierFeatures": RandomFourierFeatures(5),
    "RBF": RBF(5),
    "RBF of more features": RBF(5),
}


@pytest.mark.parametrize("name", REDUCED)
def test_gradients_along_batch_are_summed_before_they_are_reduced(name):
    """On explicit axes and in shard_map no array with examples is gathered or reduced over devices."""
    layer = REDUCED[name]
    size = (16, 3, 4 if name == "RBF of more features" else 2)  # up to 3 features RBF subtracts, and then it multiplies
    x = np.random.default_rng(0).normal(size=size).astype(np.float32)
    params = drawn(layer, x)
    gradient = lambda params, x: jax.grad(lambda params: jnp.sum(jnp.sin(layer.apply(params, x))))(params)
    expected = jax.jit(gradient)(params, x)
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Explicit,))
    spec = PartitionSpec("d")
    with jax.set_mesh(mesh):
        sharded = jax.device_put(x, NamedSharding(mesh, spec))
        mapped = jax.shard_map(gradient, in_specs=(PartitionSpec(), spec), out_specs=PartitionSpec())
        for f in (gradient, mapped):
            program = jax.jit(f).lower(params, sharded).compile()
            results = re.findall(r"= (.*) (all-gather|all-reduce)\(", program.as_text())
            assert results
            for types, kind in results:
                shapes_of = re.findall(r"f32\[([\d,]*)\]", types)
                sizes = [math.prod(int(n) for n in found.split(",") if n) for found in shapes_of]
                assert kind == "all-reduce" and max(sizes) <= max(leaf.size for leaf in jax.tree.leaves(params))
            for ours, theirs in zip(*map(jax.tree.leaves, (program(params, sharded), expected)), strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
@pytest.mark.parametrize("spec", [("d", None), (None, "d")], ids=["batch", "time"])
def test_sharded_inputs_are_not_gathered(monkeypatch, kind, spec):
    """The merged axes of an input whose time is sharded would have to be gathered on each device."""
    monkeypatch.setattr(linear_maps, "_on_one_device", lambda: jax.device_count() == 1)
    axis_type = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}[kind]
    mesh = jax.make_mesh((8,), ("d",), axis_types=(axis_type,))
    x, kernel = np.arange(320, dtype=np.float32).reshape(8, 8, 5) / 320, np.ones((5, 3), np.float32)
    gradient = jax.jit(jax.grad(lambda kernel, x: jnp.sum(affine(x, kernel, kernel[0]) ** 2)))
    with jax.set_mesh(mesh) if kind == "explicit" else contextlib.nullcontext():
        sharded = jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))
        program = gradient.lower(kernel, sharded).compile()
        assert "all-gather" not in program.as_text()
        merged = [((64, 5), (5, 3)), ((64, 3), (64, 5))]
        assert (products(gradient, kernel, sharded) == merged) == (kind == "explicit" and spec[0] == "d")
        np.testing.assert_allclose(program(jnp.asarray(kernel), sharded), gradient(kernel, x), rtol=1e-5)
        assert jax.jit(affine)(sharded[:, :0], jnp.asarray(kernel)).shape == (8, 0, 3)  # an empty axis is not merged


def test_weak_params_have_the_dtype_of_the_input():
    """The dtype of the result would else be that of a number that is added."""
    weak = lambda key, shape, dtype: jnp.full(shape, 0.5)
    net, x = Dense(2, kernel_init=weak, bias_init=weak), jnp.full((4, 3), 2.0)
    y = net.apply(net.init(jax.random.key(0), x), x)
    assert x.weak_type and not y.weak_type
    np.testing.assert_array_equal(y, np.full((4, 2), 3.5))
