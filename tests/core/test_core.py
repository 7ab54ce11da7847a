"""The layer protocol: lifting, side inputs, keys, paths of layers in errors, and names in the compiled program."""

import copy
import inspect
import pickle
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import Center, Noise

import jaxblocks as jb
from jaxblocks import (
    Dense,
    Layer,
    Parallel,
    Residual,
    Serial,
    StatefulLayer,
    affine,
    builder,
    hvp,
    initializers,
    relu,
    side_inputs,
    stateful,
)
from jaxblocks.checks import PositiveInt, checked
from jaxblocks.core.children import child_of
from jaxblocks.core.keys import child_key
from jaxblocks.core.lifting import as_layer
from jaxblocks.core.pairs import layer_name

X = jnp.arange(10.0).reshape(2, 5)


def notes(error):
    return getattr(error.value, "__notes__", [])


def test_a_layer_is_a_named_tuple():
    layer = Dense(3)
    init, apply = layer
    assert (init, apply) == (layer.init, layer.apply)
    assert isinstance(layer, Layer)


def test_lifting_is_idempotent_and_keeps_names():
    layer = as_layer(jnp.sin)
    assert as_layer(layer) is layer
    lifted = stateful(layer)
    assert stateful(lifted) is lifted and layer_name(lifted) == "sin"
    assert layer_name(Dense(3)) == "Dense"
    assert layer_name(as_layer(partial(jnp.sum, axis=-1))) == "sum"


def test_side_inputs_are_the_keyword_only_parameters():
    def shifted(x, scale=1.0, *, time, mask=None):
        return x

    assert side_inputs(shifted) == ("time", "mask")
    assert side_inputs(Dense(3)) == ()
    assert side_inputs(Noise()) == ("train", "key")
    assert side_inputs(partial(shifted, mask=None)) == ("time",)


def test_a_net_declares_the_union_of_its_layers_side_inputs():
    def modulate(x, *, time):
        return x * time

    net = Serial(Dense(3), Noise(), Residual(Dense(3), modulate), Parallel(Center()))
    assert isinstance(net, StatefulLayer)
    parameters = inspect.signature(net.apply).parameters
    assert [name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY] == ["key", "time", "train"]
    assert parameters["time"].default is inspect.Parameter.empty
    assert parameters["train"].default is False
    assert list(parameters)[:3] == ["params", "state", "inputs"]


def test_errors_of_unknown_side_inputs_list_the_declared_ones():
    net = Serial(Dense(3), Noise())
    params = net.init(jax.random.key(0), X)
    with pytest.raises(
        TypeError,
        match=r"Serial expected side inputs among those that it reads \(key, train\), got 'rgn'; leave it out",
    ):
        net.apply(params, X, rgn=jax.random.key(0))
    with pytest.raises(TypeError, match=r"those that it reads \(none\), got 'train'"):
        Serial(Dense(3)).apply((params[0],), X, train=True)
    with pytest.raises(TypeError, match=r"Serial expected side inputs among .*, got 'mask'"):
        net.init(jax.random.key(0), X, mask=X)


def test_a_missing_side_input_is_named_and_following_the_advice_helps():
    net = Serial(Dense(3), lambda x, *, time: x * time)
    params = net.init(jax.random.key(0), X)
    with pytest.raises(TypeError, match="^Serial expected the side input time, got none; pass time=") as error:
        net.apply(params, X)
    assert notes(error) == ["in layer 1 (lambda)"]
    net.apply(params, X, time=jnp.float32(2.0))


def test_var_keywords_are_rejected():
    with pytest.raises(TypeError, match=r"got \*\*side; declare them"):
        Serial(Layer(lambda key, x: (), lambda params, x, **side: x))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (3, "Serial expected a layer or a function of arrays, got 3"),
        ((min, max), "Layer\\(init, apply\\)"),
        (Dense, "call it: Dense"),
    ],
)
def test_arguments_that_are_not_layers_are_rejected(wrong, words, sentences):
    with pytest.raises(TypeError, match=words) as error:
        Serial(relu, wrong)
    assert notes(error)[0].startswith("in layer 1")


def test_errors_have_the_path_of_the_layer():
    net = Serial(first=relu, block=Residual(relu, Dense(5)))
    params = net.init(jax.random.key(0), X)
    with pytest.raises(
        ValueError,
        match=r"Dense expected x .* same size of in, got float32 \(., 4\) and float32 \(5, 5\); pass x of that size",
    ) as error:
        net.apply(params, X[:, :4])
    assert notes(error) == ["in layer block/1 (Dense)"]


def test_keys_are_folded_so_that_edits_stay_local():
    """Adding a layer at the end, or editing one, leaves the other layers' params unchanged."""
    small = Serial(Dense(4), relu, Dense(3)).init(jax.random.key(0), X)
    longer = Serial(Dense(4), relu, Dense(3), relu, Dense(2)).init(jax.random.key(0), X)
    edited = Serial(Dense(4), jnp.tanh, Dense(3)).init(jax.random.key(0), X)
    for net in (longer, edited):
        jax.tree.map(np.testing.assert_array_equal, (net[0], net[2]), (small[0], small[2]))
    named = Serial(a=Dense(4), b=Dense(4)).init(jax.random.key(0), X[:, :4])
    swapped = Serial(b=Dense(4), a=Dense(4)).init(jax.random.key(0), X[:, :4])
    jax.tree.map(np.testing.assert_array_equal, named, swapped)
    assert (named["a"]["kernel"] != named["b"]["kernel"]).all()


def test_fold_of_a_name_is_its_checksum():
    """The hash of a name is the same in every process and every version."""
    assert (
        jax.random.key_data(child_key(jax.random.key(0), "hidden")).tolist()
        == jax.random.key_data(jax.random.fold_in(jax.random.key(0), 2287856061)).tolist()
    )


def test_each_child_draws_from_its_own_key():
    y = Parallel(Noise(), Noise()).apply(((), ()), jnp.ones(64), train=True, key=jax.random.key(0))
    assert (y[0] != y[1]).any()


def test_a_missing_key_raises_an_error():
    net = Serial(Noise())
    with pytest.raises(ValueError, match="Noise expected a key in training, got none") as error:
        net.apply(((),), X, train=True)
    assert notes(error) == ["in layer 0 (Noise)"]
    net.apply(((),), X, train=True, key=jax.random.key(0))


def test_layers_name_their_operations():
    """Names in the compiled program are the paths of the layers."""
    net = Serial(hidden=Residual(Dense(5), jnp.tanh), out=Dense(1))
    params = net.init(jax.random.key(0), X)
    equations = jax.make_jaxpr(net.apply)(params, X).jaxpr.eqns
    scopes = {str(e.source_info.name_stack) for e in equations if e.primitive.name == "dot_general"}
    assert scopes == {"hidden/0", "out"}
    text = jax.jit(net.apply).lower(params, X).compile().as_text()
    assert "hidden/0" in text


def test_the_scope_of_a_child_is_its_label_and_its_name():
    assert child_of(2, Dense(3)).mark == "2.Dense"
    assert child_of("out", Dense(3)).mark == "out.Dense"
    assert child_of(None, Dense(3)).mark == ".Dense"


def test_init_has_no_arithmetic():
    """init of a deep net only draws params: it has no product and no contraction."""
    net = Serial(*[Residual(Dense(5), relu)] * 3, Dense(1))
    text = str(jax.make_jaxpr(lambda key: net.init(key, jax.ShapeDtypeStruct((2, 5), jnp.float32)))(jax.random.key(0)))
    assert "dot_general" not in text and "tanh" not in text


def test_dispatch_adds_nothing_to_the_traced_program():
    """The compiled program of a net equals that of the same net written out."""
    net = Serial(Dense(4), relu, Dense(3))
    params = net.init(jax.random.key(0), X)

    def by_hand(params, x):
        first, _, last = params
        h = x @ first["kernel"]
        h = jax.nn.relu(h + jnp.broadcast_to(first["bias"], h.shape))
        y = h @ last["kernel"]
        return y + jnp.broadcast_to(last["bias"], y.shape)

    def operations(f):
        text = jax.jit(f).lower(params, X).compile().as_text()
        return sorted(
            line.split("metadata")[0].split(" = ")[1].split("(")[0] for line in text.splitlines() if " = " in line
        )

    assert operations(net.apply) == operations(by_hand)


# ---- a net prints as the expression that builds it, and pickles --------------------------------


def test_a_net_prints_as_the_expression_that_builds_it():
    net = Serial(hidden=Dense(64, use_bias=False), activation=relu, out=Dense(10))
    assert repr(net) == "Serial(hidden=Dense(64, use_bias=False), activation=relu, out=Dense(10))"
    assert repr(Serial(Dense(3, dtype=jnp.bfloat16), jnp.tanh, lambda x: x)) == (
        "Serial(Dense(3, dtype=jnp.bfloat16), jnp.tanh, <lambda>)"
    )
    long = Residual(*[Dense(8, kernel_init=initializers.he_normal())] * 4)
    assert repr(long) == "Residual(\n" + "    Dense(8, kernel_init=he_normal()),\n" * 4 + ")"
    assert repr(Dense(3, kernel_init=initializers.lecun_normal())) == "Dense(3)"  # a default is left out


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies_of_a_net_equal_it(copied):
    net = Serial(Dense(3, kernel_init=initializers.he_normal()), Residual(relu))
    params = net.init(jax.random.key(0), X)
    twin = copied(net)
    assert repr(twin) == repr(net)
    jax.tree.map(np.testing.assert_array_equal, twin.init(jax.random.key(0), X), params)
    np.testing.assert_array_equal(twin.apply(params, X), net.apply(params, X))


def test_calling_a_layer_raises_an_error_with_the_repair():
    """The repair is two statements, which run as they stand, for a layer without and with state."""
    for net in (relu, stateful(relu)):
        net = as_layer(net)
        with pytest.raises(TypeError, match="expected a call of init or apply, got a call of the layer") as error:
            net(X)
        create, call = str(error.value).partition("; write ")[2].removesuffix(".").split(" and ")
        names = {"net": net, "x": X, "key": jax.random.key(0)}
        exec(create, names)
        out = eval(call, names)
        np.testing.assert_array_equal(out[0] if isinstance(net, StatefulLayer) else out, X)


# ---- checks of arguments ------------------------------------------------------------------------


def test_errors_name_the_public_function_that_was_called():
    """This also holds through a transformation and inside user code."""
    with pytest.raises(ValueError, match="^affine expected"):
        jax.vmap(affine)(jnp.ones((4, 2, 3)), jnp.ones((4, 5, 6)))
    with pytest.raises(ValueError, match="^affine expected"):
        hvp(lambda x: affine(x, jnp.ones((5, 6))).sum(), jnp.ones((2, 3)), jnp.ones((2, 3)))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Dense(2.5), "features to be an integer >= 1, got 2.5"),
        (lambda: Dense(True), "features to be an integer >= 1, got True"),
        (lambda: Dense(3, use_bias="no"), "use_bias to be True or False, got 'no'"),
        (lambda: Dense(3, use_bias=1), "use_bias to be True or False, got 1; pass one such as use_bias=True"),
        (lambda: Dense(3, use_bias=np.ones(2)), r"use_bias to be True or False, got float64 \(2,\)"),
        (lambda: Dense(3, kernel_init=3), "kernel_init to be a function, got 3"),
        (lambda: jax.jit(lambda n: Dense(n).init(jax.random.key(0), X))(3), 'write static_argnames="features"'),
        (lambda: affine([1.0], jnp.ones((1, 1))), r"got a list; convert it with jnp.asarray\(x\)"),
        (
            lambda: affine(jnp.ones(2, int), jnp.ones((2, 1))),
            r"floating-point or complex array, got int32 \(2,\); convert it with",
        ),
        (lambda: relu(jnp.ones(2, jnp.complex64)), r"floating-point array, got complex64 \(2,\)"),
        (lambda: affine(jnp.ones(2), jnp.ones((2, 1), jnp.complex64)), r"kernel of real numbers, as x, got complex64"),
        (lambda: affine(jnp.ones(()), jnp.ones((2, 1))), r"at least 1 axis, \(\*batch, in\), got float32 \(\); add"),
        (lambda: affine(jnp.ones(2), jnp.ones((3, 2, 1))), r"kernel with 2 axes, \(in, out\), got float32 \(3, 2, 1\)"),
    ],
)
def test_annotations_are_checked(call, words, sentences):
    with pytest.raises((TypeError, ValueError), match=words):
        call()


def test_numpy_arrays_are_converted():
    x, kernel = np.ones((2, 3)), np.ones((3, 4))
    assert affine(x, kernel).dtype == jnp.float32
    np.testing.assert_array_equal(affine(x, kernel), np.full((2, 4), 3.0))


def test_the_cache_of_dtypes_does_not_grow_with_layers():
    """Each builder call makes new annotations; the cache is by kind of dtype."""
    from jaxblocks.checks import array_annotations

    sizes = []
    for _ in range(3):
        jax.eval_shape(Dense(3).init, jax.random.key(0), X)
        sizes.append(array_annotations._is_dtype.cache_info().currsize)
    assert sizes[0] == sizes[2], sizes


def test_annotations_may_say_what_a_layer_returns():
    """``Layer[...]`` is for type checkers: it checks as ``Layer``, and changes nothing of the layer."""

    @builder
    def WithItself(n: PositiveInt) -> Layer[tuple[jax.Array, jax.Array]]:
        return Layer(lambda key, x: (), lambda params, x: (x, n * x))

    @checked
    def count(net: Layer[jax.Array] | Layer[tuple[jax.Array, jax.Array]], n: PositiveInt) -> int:
        return n

    layer = WithItself(2)
    assert type(layer) is Layer and repr(layer) == "WithItself(2)" and Layer[int].__origin__ is Layer
    assert [float(y) for y in layer.apply((), jnp.float32(3))] == [3, 6] and count(layer, 1) == 1
    with pytest.raises(ValueError, match="count expected n to be an integer >= 1, got 0"):
        count(layer, 0)


def test_a_call_that_passed_its_checks_does_not_let_others_pass(sentences):
    x, layer = jnp.ones((2, 3)), jb.Dense(4)
    params = layer.init(jax.random.key(0), x)
    for _ in range(2):
        assert layer.apply(params, x).shape == (2, 4)
        with pytest.raises(ValueError, match="same size of in"):
            layer.apply(params, x[:, :2])
        with pytest.raises(TypeError, match="floating-point"):
            layer.apply(params, jnp.ones((2, 3), jnp.int32))
        with pytest.raises(TypeError, match="torch|numpy|array"):
            layer.apply(params, [[1.0, 2.0, 3.0]])
    assert jb.relu(x, 0.0).shape == jb.relu(x, at_zero=0.0).shape
    for wrong in (2.0, float("nan"), True, jnp.float32(0.5)):
        with pytest.raises((TypeError, ValueError), match="at_zero"):
            jb.relu(x, at_zero=wrong)
    slope = jnp.float32(0.1)
    assert jb.activations.leaky_relu_inverse(x, slope).shape == x.shape
    with pytest.raises(ValueError, match="negative_slope"):
        jb.activations.leaky_relu_inverse(x, -slope)
