"""Invalid options and arrays: laws over the signatures of all public functions and builders.

A function checks every argument before it runs, so one argument at a time is passed, the invalid one, by its name.
"""

import functools
import inspect
import math
import pickle
import pydoc
import re
from collections.abc import Sequence
from typing import Annotated, Literal, get_args, get_origin

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas
import pytest
from jaxtyping import AbstractArray
from public import functions, parameters
from zoo import ZOO

import jaxblocks
from jaxblocks import (
    LSTM,
    MLP,
    BatchNorm,
    Bidirectional,
    Conv,
    Dense,
    Dropout,
    Embedding,
    FeatureDropout,
    Flatten,
    GlobalAvgPool,
    Layer,
    LayerNorm,
    LSTMCell,
    MaxPool,
    Parallel,
    Recurrent,
    Repeat,
    Serial,
    StatefulLayer,
    Wire,
    models,
    relu,
)
from jaxblocks.checks import PositiveInt, Range, foreign_names
from jaxblocks.testing import LAWS, check_layer


def accepted(wrong, chosen):
    """Where the sentence about an invalid value, or its repair, is missing; ``wrong(members)`` are invalid values."""
    found = []
    for path, function, name, members in parameters():
        for value in wrong(members):
            chosen.append(path)
            try:
                function(**{name: value})
                found.append(f"{path}({name}={value!r}) is accepted")
            except (TypeError, ValueError) as error:
                public = path.rpartition(".")[2]
                if not re.match(rf"{public} expected .*\b{name}\b.*; ", str(error)):
                    found.append(f"{path}({name}={value!r}): {type(error).__name__}: {error}"[:200])
    return "\n".join(found)


@pytest.mark.usefixtures("sentences")
def test_flags_and_choices_accept_only_their_values():
    """A string is not a flag, and a choice is one of those in the annotation."""

    def wrong(members):
        if bool in members and str not in members:
            yield "no"
        if any(get_origin(one) is Literal for one in members) and not {str, tuple} & {
            *members,
            *map(get_origin, members),
        }:
            yield "no such choice"

    chosen = []
    assert accepted(wrong, chosen) == ""
    assert len(set(chosen)) > 100


@pytest.mark.usefixtures("sentences")
def test_numbers_are_in_their_range():
    """A number outside of the range in the annotation, and NaN, are rejected: epsilon, rates, counts."""

    def wrong(members):
        limits = [limit for one in members if get_origin(one) is Annotated for limit in get_args(one)[1:]]
        if limits and all(isinstance(limit, Range) for limit in limits) and str not in members:
            yield math.nan
            yield min(limit.least for limit in limits) - 1.5

    chosen = []
    assert accepted(wrong, chosen) == ""
    assert len(set(chosen)) > 150


@pytest.mark.usefixtures("sentences")
def test_integers_are_no_bools_and_no_strings():
    """True is no 1, alone and in a tuple, a text that is no choice is no number; an empty axis is no size."""

    def wrong(members):
        # A function with a Sequence[int] checks it itself, since it takes arrays of integers too.
        integers = [one for one in members if one is int or (get_args(one)[:1] == (int,) and one != Sequence[int])]
        kinds = {get_origin(one) for one in members if one not in (int, type(None))}
        if integers and kinds <= {Annotated, Literal, tuple, Sequence}:
            yield from ("no such choice", True, (True,), (None, 2))
            if PositiveInt in integers:
                yield 0

    chosen = []
    assert accepted(wrong, chosen) == ""
    assert len(set(chosen)) > 200


def test_integers_of_numpy_are_integers():
    """Also where an option is an integer or a tuple of integers, which the functions tell apart."""
    one, x, product = np.int64(0), jnp.ones((2, 3)), lambda x, y: jnp.sum(x * y)
    assert jaxblocks.tensors.flattening(x, one).shape == (2, 3)
    same = jaxblocks.jacobian(product, argnums=one)(X, X), jaxblocks.jacobian(product)(X, X)
    np.testing.assert_array_equal(*same)
    assert jaxblocks.ad.explore(product, x, x, argnums=one, repeats=0, measure=False)
    assert jaxblocks.inspection.receptive_field(lambda x: x, (3,), one).tolist() == [True, False, False]
    assert repr(jaxblocks.models.ResNet(np.int64(18), classes=3)) == repr(jaxblocks.models.ResNet(18, classes=3))


def test_epsilon_is_finite_and_never_negative():
    """Each ``epsilon`` of a public function has a range."""
    for path, _, name, members in parameters():
        if name == "epsilon":
            [limit] = [limit for one in members for limit in get_args(one) if isinstance(limit, Range)]
            assert math.inf not in limit and (path.endswith(".GIN") or -1e-9 not in limit), path  # there it is a weight


def arrays(members):
    return [one for one in members if isinstance(one, type) and issubclass(one, AbstractArray)]


@pytest.mark.usefixtures("sentences")
def test_complex_arrays_are_rejected_where_real_ones_are_expected():
    def wrong(members):
        if arrays(members) and all(one.dtype.__name__ == "Float" for one in arrays(members)):
            yield jnp.ones((), jnp.complex64)

    chosen = []
    assert accepted(wrong, chosen) == ""
    assert len(set(chosen)) > 80


@pytest.mark.usefixtures("sentences")
def test_arrays_have_the_annotated_number_of_axes():
    """A matrix is not a table of another rank, and an array is not one number."""

    def wrong(members):
        found = arrays(members)
        if len(found) == 1 and not any(axis in found[0].dim_str for axis in ("*", "...")):
            axes = len(found[0].dim_str.split())
            if found[0].dtype.__name__ in ("Float", "Num", "Shaped", "Inexact", "Real"):
                yield jnp.ones((2,) * (axes + 1))

    chosen = []
    assert accepted(wrong, chosen) == ""
    assert len(set(chosen)) > 40


# ---- layers and models ------------------------------------------------------------------------


@pytest.mark.usefixtures("sentences")
def test_inputs_without_features_are_taken_or_refused_with_a_sentence():
    """A kernel has at least one row, so that its layer refuses such inputs; layers without a kernel take them."""
    refused, taken, other = set(), set(), []
    for name, row in ZOO.items():
        inputs = [jax.ShapeDtypeStruct((*x.shape[:-1], 0), x.dtype) for x in row.inputs() if is_floating(x)]
        if len(inputs) < len(row.shapes) or any(x.ndim == 0 for x in row.inputs()):
            continue  # of tokens, keys and graphs
        try:
            jax.eval_shape(functools.partial(row.layer.init, **of_init(row)), jax.random.key(0), *inputs)
            taken.add(row.public)
        except Exception as error:
            refused.add(row.public)
            if not re.match(r"\w+ expected .*; ", str(error)):
                other.append(f"{name}: {error}")
    assert other == []
    assert {"Dense", "Conv", "Attention", "LSTM", "LRU", "MixtureOfExperts", "Maxout", "RBF"} <= refused
    assert {"Bias", "LayerNorm", "BatchNorm", "Dropout", "MaxPool", "PReLU", "Flatten"} <= taken


def is_floating(x):
    return jnp.issubdtype(x.dtype, jnp.floating)


def of_init(row):
    """The side inputs that the ``init`` of a layer reads."""
    return {name: value for name, value in row.side.items() if name in inspect.signature(row.layer.init).parameters}


@pytest.mark.usefixtures("sentences")
@pytest.mark.parametrize("name", ["dtype", "param_dtype"])
def test_layers_compute_with_real_floating_point_numbers(name):
    with pytest.raises(ValueError, match=f"MLP expected {name} to be a floating-point dtype, got complex64"):
        MLP(3, **{name: jnp.complex64})
    with pytest.raises(ValueError, match=f"Dense expected {name} to be a floating-point or complex dtype, got int32"):
        Dense(3, **{name: jnp.int32})


# ---- options of other libraries ---------------------------------------------------------------


X = jnp.ones((4, 6))
SEQUENCE, CARRY = jnp.ones((2, 5, 6)), {"cell": jnp.ones((2, 3)), "hidden": jnp.ones((2, 3))}
IMAGES = jnp.ones((2, 8, 8, 3))


def attend(x, **side):
    return jax.eval_shape(lambda: jaxblocks.attention(x, x, x, **side))


def attending(mask):
    net, x = jaxblocks.Attention(1), jnp.ones((2, 5, 3))
    return jax.eval_shape(lambda: net.apply(net.init(jax.random.key(0), x), x, mask=mask))


def trained():
    return jaxblocks.init_train_state(jax.random.key(0), Dense(3), SGD, X)


HABITS = {
    "activation": (
        lambda: Dense(3, activation=relu),
        "apply it as the next layer: Serial",
        lambda: Serial(Dense(3), relu),
    ),
    "bias": (lambda: Dense(3, bias=False), "did you mean use_bias", lambda: Dense(3, use_bias=False)),
    "units": (lambda: Dense(units=3), "did you mean features", lambda: Dense(features=3)),
    "kernel_initializer": (
        lambda: Dense(3, kernel_initializer=jax.nn.initializers.zeros),
        "did you mean kernel_init",
        lambda: Dense(3, kernel_init=jax.nn.initializers.zeros),
    ),
    "strides": (lambda: Conv(4, (3, 3), strides=2), "did you mean stride", lambda: Conv(4, (3, 3), stride=2)),
    "kernel_size": (lambda: MaxPool(kernel_size=2), "did you mean window_shape", lambda: MaxPool(window_shape=2)),
    "p": (lambda: Dropout(p=0.5), "did you mean rate", lambda: Dropout(rate=0.5)),
    "eps": (lambda: LayerNorm(eps=1e-6), "did you mean epsilon", lambda: LayerNorm(epsilon=1e-6)),
    "num_embeddings": (
        lambda: Embedding(num_embeddings=5, embedding_dim=3),
        "did you mean size",
        lambda: Embedding(size=5, features=3),
    ),
    "hidden_size": (lambda: LSTM(hidden_size=3), "did you mean features", lambda: LSTM(features=3)),
    "num_layers": (lambda: LSTM(3, num_layers=2), r"Serial\(LSTM", lambda: Serial(LSTM(3), LSTM(3))),
    "n_embd": (
        lambda: models.GPT2(vocab_size=7, block_size=8, num_layers=1, n_head=2, n_embd=4),
        "did you mean max_length",
        lambda: models.GPT2(vocab_size=7, max_length=8, layers=1, heads=2, features=4),
    ),
    "return_state": (lambda: LSTM(3, return_state=True), "stateful=True", lambda: LSTM(3, stateful=True)),
    "recurrent_dropout": (
        lambda: LSTM(4, recurrent_dropout=0.1),
        r"wrap the cell: Recurrent\(layers.RecurrentDropout\(LSTMCell\(4\), 0.1\)\)",
        lambda: Recurrent(jaxblocks.layers.RecurrentDropout(LSTMCell(4), 0.1)),
    ),
    "misspelled option of the cell": (
        lambda: LSTM(3, use_biases=False),
        "did you mean use_bias.* reverse, stateful, ",
        lambda: LSTM(3, use_bias=False),
    ),
    "a carry before the inputs": (
        lambda: LSTM(3).apply(CELL, CARRY, SEQUENCE),
        r"LSTM expected inputs that are arrays, got a dict; .*stateful=True and apply\(params, carry, x\)",
        lambda: jax.eval_shape(LSTM(3, stateful=True).apply, CELL, CARRY, SEQUENCE),
    ),
    "a carry by name": (
        lambda: LSTM(3).apply(CELL, SEQUENCE, carry=CARRY),
        r"LSTM\(..., stateful=True\).* apply\(params, carry, x\)",
        lambda: jax.eval_shape(LSTM(3, stateful=True).apply, CELL, CARRY, SEQUENCE),
    ),
    "dim": (lambda: jaxblocks.softmax(X, dim=-1), "did you mean axis", lambda: jaxblocks.softmax(X, axis=-1)),
    "sizes of input and output": (lambda: Dense(64, 10), r"leave it out: Dense\(10\)", lambda: Dense(10)),
    "channels of input and output": (lambda: Conv(3, 16, 5), r"leave it out: Conv\(16, 5\)", lambda: Conv(16, 5)),
    "size of the input": (lambda: BatchNorm(64), r"leave it out: BatchNorm\(\)", lambda: BatchNorm()),
    "window and stride": (lambda: MaxPool((2, 2), 2), "pass options by name", lambda: MaxPool((2, 2), stride=2)),
    "three sizes of a table": (lambda: Embedding(3, 4, 5), "pass options by name", lambda: Embedding(3, 4)),
    "sizes and a stride": (lambda: Conv(3, 16, 5, 2), "pass options by name", lambda: Conv(16, 5, stride=2)),
    "depth and classes": (
        lambda: jaxblocks.models.ResNet(18, 10),
        r"pass options by name: ResNet\(depth, classes=...\)",
        lambda: jaxblocks.models.ResNet(18, classes=10),
    ),
    "options by position": (lambda: Dropout(0.5, (0,)), "pass options by name", lambda: Dropout(0.5, axes=(0,))),
    "activation that is called": (
        lambda: Serial(Dense(3), relu()),
        "as a layer it is relu",
        lambda: Serial(Dense(3), relu),
    ),
    "no argument": (lambda: Dense(), "the argument features, got none; write Dense", lambda: Dense(features=3)),
    "no input of init": (
        lambda: Serial(Dense(3)).init(jax.random.key(0)),
        r"Dense expected the input x, got none; pass an array or .* init\(key, x\)",
        lambda: Serial(Dense(3)).init(jax.random.key(0), X),
    ),
    "no input of summary": (
        lambda: jaxblocks.summary(Serial(Dense(3))),
        "expected the input x, got none; pass an array or a jax.ShapeDtypeStruct",
        lambda: jaxblocks.summary(Serial(Dense(3)), jax.ShapeDtypeStruct((4, 6), jnp.float32)),
    ),
    "no input of apply": (
        lambda: Dense(3).apply({"kernel": jnp.ones((6, 3)), "bias": jnp.ones(3)}),
        r"the input x, got none; write apply\(params, x\)",
        lambda: Dense(3).apply({"kernel": jnp.ones((6, 3)), "bias": jnp.ones(3)}, X),
    ),
    "Parallel before Dense": (
        lambda: Serial(Parallel(relu, relu), Dense(3)).init(jax.random.key(0), X),
        "join several arrays before this layer",
        lambda: Serial(Parallel(relu, relu), lambda *xs: jnp.concatenate(xs, -1), Dense(3)).init(jax.random.key(0), X),
    ),
    "Parallel by name before Dense": (
        lambda: Serial(Parallel(a=relu, b=relu), Dense(3)).init(jax.random.key(0), X),
        r"got a dict; pass one array, such as x\['a'\], or join them first",
        lambda: Serial(Parallel(a=relu, b=relu), lambda x: x["a"] + x["b"], Dense(3)).init(jax.random.key(0), X),
    ),
    "params among layers": (
        lambda: Serial(Dense(3), ({"kernel": X}, ())),
        r"a function of arrays, got params; pass the layer itself; net.apply\(params, x\) takes its params",
        lambda: Serial(Dense(3)),
    ),
    "a complex array": (
        lambda: relu(jnp.ones(3, jnp.complex64)),
        "pass its real part",
        lambda: relu(jnp.ones(3, jnp.complex64).real),
    ),
    "an integer window for images": (
        lambda: Conv(4, 3).init(jax.random.key(0), IMAGES),
        r"Conv expected kernel_size .*got kernel_size=3 for x of .*; write \(3, 3\), or \(3,\) if",
        lambda: [jax.eval_shape(Conv(4, window).init, jax.random.key(0), IMAGES) for window in ((3, 3), (3,))],
    ),
    "an integer pool of images": (
        lambda: MaxPool(2).init(jax.random.key(0), IMAGES),
        r"MaxPool expected window_shape .*write \(2, 2\)",
        lambda: MaxPool((2, 2)).init(jax.random.key(0), IMAGES),
    ),
    "an integer pool of images as a function": (
        lambda: jaxblocks.avg_pool(IMAGES, 2),
        r"avg_pool expected window_shape .*write \(2, 2\)",
        lambda: jaxblocks.avg_pool(IMAGES, (2, 2)),
    ),
    "an integer number of bins for images": (
        lambda: jaxblocks.layers.adaptive_avg_pool(IMAGES, 2),
        r"expected size .*write \(2, 2\)",
        lambda: jax.eval_shape(lambda: jaxblocks.layers.adaptive_avg_pool(IMAGES, (2, 2))),
    ),
    "lengths as a mask": (
        lambda: LSTM(3).apply(CELL, X[None], mask=jnp.array([2])),
        r"a boolean mask.*pass lengths=..., or jnp.arange\(time\) < lengths\[..., None\]",
        lambda: jax.eval_shape(lambda: LSTM(3).apply(CELL, X[None], lengths=jnp.array([2]))),
    ),
    "use_running_average": (
        lambda: BatchNorm().apply(NORM, STATISTICS, X, use_running_average=True),
        "got 'use_running_average'; pass train=not use_running_average to apply",
        lambda: jax.eval_shape(functools.partial(BatchNorm().apply, train=False), NORM, STATISTICS, X),
    ),
    "use_running_average of the layer": (
        lambda: BatchNorm(use_running_average=True),
        "got 'use_running_average'; pass train=not use_running_average to apply",
        lambda: jax.eval_shape(functools.partial(BatchNorm().apply, train=False), NORM, STATISTICS, X),
    ),
    "test_size": (
        lambda: jaxblocks.train_val_test_split(jax.random.key(0), X, test_size=0.2),
        r"write fractions=\(0.8, 0, 0.2\), for training, validation and test",
        lambda: jaxblocks.train_val_test_split(jax.random.key(0), jnp.ones(20), fractions=(0.7, 0.15, 0.15)),
    ),
    "validation_split": (
        lambda: jaxblocks.fit(Dense(3), jaxblocks.mse, SGD, (X, X), key=jax.random.key(0), validation_split=0.2),
        r"split the rows by train_val_test_split, and pass validation=\(x, y\)",
        lambda: inspect.signature(jaxblocks.fit).bind_partial(validation=(X, X)),
    ),
    "training": (
        lambda: Dense(3).apply(Dense(3).init(jax.random.key(0), X), X, training=True),
        "got 'training'; leave it out where train is not in jaxblocks.side_inputs",
        lambda: Serial(Dense(3), Dropout(0.1)).init(jax.random.key(0), X),
    ),
    "mask and lengths": (
        lambda: LSTM(3).apply(CELL, X[None], mask=jnp.ones((1, 4), bool), lengths=jnp.array([2])),
        "mask or lengths, got both; leave lengths out",
        lambda: jax.eval_shape(lambda: LSTM(3).apply(CELL, X[None], mask=jnp.ones((1, 4), bool))),
    ),
    "params and state": (
        lambda: jaxblocks.count_params(BatchNorm().init(jax.random.key(0), X)),
        "params, state = net.init",
        lambda: jaxblocks.count_params(BatchNorm().init(jax.random.key(0), X)[0]),
    ),
    "a long text": (
        lambda: Dense("n" * 200),
        f"got '{'n' * 55}...'; ",
        lambda: Dense(3),
    ),
    "params and a key": (
        lambda: jaxblocks.count_params((DENSE, {"draws": jax.random.key(0)})),
        "params, state = net.init",
        lambda: jaxblocks.count_params(DENSE),
    ),
    "params and a cache": (
        lambda: jaxblocks.count_params(CACHED.init(jax.random.key(0), X[None])),
        "params, state = net.init",
        lambda: jaxblocks.count_params(CACHED.init(jax.random.key(0), X[None])[0]),
    ),
    "pieces that are no integer": (
        lambda: jaxblocks.activations.maxout(X, 2.0),
        "maxout expected pieces to be an integer >= 1, got 2.0",
        lambda: jaxblocks.activations.maxout(X, 2),
    ),
    "a rate of 1.5 as an array": (
        lambda: jaxblocks.dropout(jax.random.key(0), X, jnp.asarray(1.5)),
        "rate to be a number >= 0 and <= 1 or an array, got 1.5",
        lambda: jaxblocks.dropout(jax.random.key(0), X, jnp.asarray(0.5)),
    ),
    "a flag as axes": (
        lambda: LayerNorm(axes=(True,)),
        r"got \(True,\); pass one such as axes=\(-1,\)",
        lambda: LayerNorm(axes=(-1,)),
    ),
    "a traced entry of a tuple": (
        lambda: jax.eval_shape(lambda n: Conv(8, (n, 3)).init(jax.random.key(0), X), 3),
        'kernel_size .*; it has to be static while JAX traces; under jit, write static_argnames="kernel_size"',
        lambda: Conv(8, (3, 3)),
    ),
    "padding in capitals": (
        lambda: Conv(8, (3,), padding="SAME"),
        "got 'SAME'; pass one such as padding='same'",
        lambda: Conv(8, (3,), padding="same"),
    ),
    "full padding": (
        lambda: Conv(8, (3,), padding="full"),
        "got 'full'; write padding=k - 1 for a window of k positions",
        lambda: Conv(8, (3,), padding=3 - 1),
    ),
    "a window without entries": (
        lambda: Conv(8, (3, 0)),
        r"got \(3, 0\); pass one such as kernel_size=\(3, 1\)",
        lambda: Conv(8, (3, 1)),
    ),
    "padding of one axis": (lambda: MaxPool(3, padding="VALID"), "'valid'", lambda: MaxPool(3, padding="valid")),
    "padding_mode": (
        lambda: Conv(8, (3,), padding=1, padding_mode="wrap"),
        "'wrap'; write padding_mode='circular'",
        lambda: Conv(8, (3,), padding=1, padding_mode="circular"),
    ),
    "bilinear": (
        lambda: jaxblocks.layers.Resize((4, 4), method="bilinear"),
        "write method='linear'",
        lambda: jaxblocks.layers.Resize((4, 4), method="linear"),
    ),
    "approximate": (
        lambda: jaxblocks.gelu(X, approximate="tanh"),
        "got 'tanh'; write approximate=True",
        lambda: jaxblocks.gelu(X, approximate=True),
    ),
    "data before the key": (
        lambda: jaxblocks.minibatches((X, X), 2),
        "minibatches expected key to be a key, got a tuple; the order is key, arrays, batch_size",
        lambda: jaxblocks.minibatches(jax.random.key(0), (X, X), 2),
    ),
    "a net before the key": (
        lambda: jaxblocks.init_train_state(Dense(3), jax.random.key(0), SGD, X),
        "key to be a key, got a Layer; the order is key, net, optimizer",
        lambda: jaxblocks.init_train_state(jax.random.key(0), Dense(3), SGD, X),
    ),
    "x before the key": (
        lambda: Dense(3).init(X, jax.random.key(0)),
        r"key to be a key, got float32 \(4, 6\); the order is key, x",
        lambda: Dense(3).init(jax.random.key(0), X),
    ),
    "x before the key of a combinator": (
        lambda: Serial(Dense(3)).init(X, jax.random.key(0)),
        r"key to be a key, got float32 \(4, 6\); the order is key, \*inputs",
        lambda: Serial(Dense(3)).init(jax.random.key(0), X),
    ),
    "params in the place of the key": (
        lambda: Serial(Dense(3)).init((DENSE,), X),
        r"key to be a key, got a tuple; the order is key, \*inputs",
        lambda: Serial(Dense(3)).init(jax.random.key(0), X),
    ),
    "the size of the input in init": (
        lambda: Serial(Dense(3)).init(jax.random.key(0), 6),
        r"Serial expected arrays as inputs, got 6; .*: jax.ShapeDtypeStruct\(\(1, 6\), jnp.float32\)",
        lambda: Serial(Dense(3)).init(jax.random.key(0), jax.ShapeDtypeStruct((1, 6), jnp.float32)),
    ),
    "an integer as the key": (
        lambda: Dense(3).init(0, X),
        r"key to be a key, got 0; pass jax.random.key\(0\)",
        lambda: Dense(3).init(jax.random.key(0), X),
    ),
    "params in the place of the input": (
        lambda: jaxblocks.summary(Serial(Dense(3)), (DENSE,)),
        "Dense expected x to be a .* array, got a tuple; pass an array of data in the place of params",
        lambda: jaxblocks.summary(Serial(Dense(3)), X),
    ),
    "x before the optimizer": (
        lambda: jaxblocks.init_train_state(jax.random.key(0), Dense(3), X, SGD),
        r"an optimizer of optax, got float32 \(4, 6\); pass the optimizer after the net, before the inputs",
        lambda: jaxblocks.init_train_state(jax.random.key(0), Dense(3), SGD, X),
    ),
    "the optimizer before the net": (
        lambda: jaxblocks.init_train_state(jax.random.key(0), SGD, Dense(3), X),
        r"an optimizer of optax, got a Layer; pass the optimizer after the net, before the inputs",
        lambda: jaxblocks.init_train_state(jax.random.key(0), Dense(3), SGD, X),
    ),
    "no state to predict": (
        lambda: jaxblocks.predict(Dense(3), DENSE, X),
        r"write predict\(net, params, state, x\), where state is \(\) for a net without state",
        lambda: jaxblocks.predict(Dense(3), DENSE, (), X),
    ),
    "x before the state": (
        lambda: jaxblocks.predict(Dense(3), DENSE, X, ()),
        r"predict expected arrays in x, got \(\); the order is net, params, state, x",
        lambda: jaxblocks.predict(Dense(3), DENSE, (), X),
    ),
    "a training state in the place of params": (
        lambda: Dense(3).apply(trained(), X),
        r"pass those in the training state: apply\(ts.params, x\)",
        lambda: Dense(3).apply(trained().params, X),
    ),
    "a training state in the place of params and state": (
        lambda: jaxblocks.predict(Dense(3), trained(), trained(), X),
        r"predict expected params to be a tree of arrays, got a TrainState; pass ts.params\.$",
        lambda: jaxblocks.predict(Dense(3), trained().params, (), X),
    ),
    "the number of experts of a token": (
        lambda: jaxblocks.layers.MixtureOfExperts(Dense(3), experts=4, k=2),
        "did you mean top_k",
        lambda: jaxblocks.layers.MixtureOfExperts(Dense(3), experts=4, top_k=2),
    ),
    "the kernel of a convolution, transposed": (
        lambda: jaxblocks.layers.conv_transpose(IMAGES, jnp.ones((3, 3, 3, 5))),
        r"the kernel is \(\*kernel_size, out, in\): write jnp.swapaxes\(kernel, -1, -2\)",
        lambda: jaxblocks.layers.conv_transpose(IMAGES, jnp.swapaxes(jnp.ones((3, 3, 3, 5)), -1, -2)),
    ),
    "classes of a loss of two": (
        lambda: jaxblocks.losses.hinge_loss(X, np.arange(4)),
        r"for -1 and 1; write 2.0 \* targets - 1 for 0 and 1, softmax_cross_entropy for more classes",
        lambda: jaxblocks.losses.hinge_loss(X[:, 0], 2.0 * np.arange(4).clip(0, 1) - 1),
    ),
    **{
        f"predictions and targets of sklearn, {what}": (
            lambda predictions=predictions: jaxblocks.precision_recall_f1(predictions, np.arange(4) % 3),
            r"; write precision_recall_f1\(confusion_matrix\(predictions, targets, classes\)\)",
            lambda: jaxblocks.precision_recall_f1(jaxblocks.confusion_matrix(np.arange(4) % 3, np.arange(4) % 3, 3)),
        )
        for what, predictions in {"scores": X[:, :3], "classes": np.arange(4) % 3}.items()
    },
    "a shape in summary": (
        lambda: jaxblocks.summary(Dense(3), (4, 8)),
        r"summary expected arrays as inputs, got \(4, 8\); write jax.ShapeDtypeStruct\(\(4, 8\), jnp.float32\)",
        lambda: jaxblocks.summary(Dense(3), jax.ShapeDtypeStruct((4, 8), jnp.float32)),
    ),
    "a shape in init": (
        lambda: Serial(Dense(3)).init(jax.random.key(0), (4, 8)),
        r"Serial expected arrays as inputs, got \(4, 8\); write jax.ShapeDtypeStruct\(\(4, 8\)",
        lambda: Serial(Dense(3)).init(jax.random.key(0), jax.ShapeDtypeStruct((4, 8), jnp.float32)),
    ),
    "a shape of a training state": (
        lambda: jaxblocks.init_train_state(jax.random.key(0), Dense(3), SGD, (4, 8)),
        r"init_train_state expected arrays as inputs, got \(4, 8\); write",
        lambda: jaxblocks.init_train_state(jax.random.key(0), Dense(3), SGD, jax.ShapeDtypeStruct((4, 8), jnp.float32)),
    ),
    "widths in a list": (lambda: MLP([64, 10]), r"got a list; write MLP\(64, 10\)", lambda: MLP(64, 10)),
    "Repeat": (lambda: Repeat(3, Dense(4)), "got a Layer; the order is layer, n", lambda: Repeat(Dense(4), 3)),
    "Flatten": (lambda: Flatten(), "pass spatial=2 for images, spatial=1 for", lambda: Flatten(spatial=2)),
    "GlobalAvgPool": (lambda: GlobalAvgPool(), "pass spatial=2 for images", lambda: GlobalAvgPool(spatial=2)),
    "Bidirectional": (
        lambda: Bidirectional(LSTM(8)),
        r"write Bidirectional\(LSTMCell\(8\), LSTMCell\(8\)\), with a cell for each",
        lambda: Bidirectional(LSTMCell(8), LSTMCell(8)),
    ),
    "a mask of pairs": (
        lambda: jaxblocks.attention(HEADS, HEADS, HEADS, mask=jnp.ones((3, 3), bool)),
        r"write jnp.broadcast_to\(mask, \(2, 2, 3, 3\)\)",
        lambda: attend(HEADS, mask=jnp.broadcast_to(jnp.ones((3, 3), bool), (2, 2, 3, 3))),
    ),
    "a mask of keys": (
        lambda: jaxblocks.attention(HEADS, HEADS, HEADS, mask=jnp.ones((2, 3), bool)),
        r"write mask\[..., None, None, :\]",
        lambda: attend(HEADS, mask=jnp.ones((2, 3), bool)[..., None, None, :]),
    ),
    "segments of one example": (
        lambda: jaxblocks.attention(HEADS, HEADS, HEADS, segment_ids=jnp.zeros(3, jnp.int32)),
        r"write jnp.broadcast_to\(segment_ids, \(2, 3\)\)",
        lambda: attend(HEADS, segment_ids=jnp.broadcast_to(jnp.zeros(3, jnp.int32), (2, 3))),
    ),
    "x and y to fit": (
        lambda: jaxblocks.fit(Dense(1), jaxblocks.mse, SGD, X, X, key=jax.random.key(0), epochs=1),
        r"got 5 of them; put several arrays in one tuple: \(x, y\)",
        lambda: inspect.signature(jaxblocks.fit).bind(Dense(1), jaxblocks.mse, SGD, (X, X), key=0),
    ),
    "no key": (
        lambda: jaxblocks.fit(Dense(1), jaxblocks.mse, SGD, (X, X), epochs=1),
        r"fit expected the argument key, got none; write key=jax.random.key\(0\)",
        lambda: jax.random.key(0),
    ),
    "x without y": (
        lambda: jaxblocks.train_step(Dense(1), jaxblocks.mse, SGD)(None, X),
        r"train_step expected a call step\(ts, x, y\), got 2 arguments; put several inputs in a tuple x",
        lambda: inspect.signature(jaxblocks.train_step(Dense(1), jaxblocks.mse, SGD)).bind(None, X, X),
    ),
    "init and apply instead of the layer": (
        lambda: Serial(*Serial(Dense(3), relu)),
        r"got the init of a layer; pass the layer itself, as net\[i\] for one inside",
        lambda: Serial(Serial(Dense(3), relu)[0]),
    ),
    "a layer for a function": (
        lambda: jaxblocks.hvp(Dense(3), DENSE, DENSE),
        r"hvp expected f to be a function, got a Layer; .* such as lambda params: net.apply\(params, x\)",
        lambda: jaxblocks.hvp(lambda params: Dense(3).apply(params, X).sum(), DENSE, DENSE),
    ),
    "a layer for a function of tables": (
        lambda: jaxblocks.cost_table(Dense(3), DENSE),
        "cost_table expected f to be a function, got a Layer; pass a function of what varies",
        lambda: jaxblocks.cost_table(lambda params: Dense(3).apply(params, X), DENSE, measure=False),
    ),
    "sizes of a model by position": (
        lambda: models.Llama(256),
        r"Llama expected no arguments by position, got 1; pass options by name: Llama\(vocab_size=...\)",
        lambda: models.Llama(vocab_size=256),
    ),
    "one-hot labels": (
        lambda: jaxblocks.softmax_cross_entropy(X, jnp.eye(4, 6, dtype=jnp.int32)),
        r"write targets.argmax\(-1\) for one-hot rows, or targets.astype\(jnp.float32\)",
        lambda: (
            jaxblocks.softmax_cross_entropy(X, jnp.eye(4, 6, dtype=jnp.int32).argmax(-1)),
            jaxblocks.softmax_cross_entropy(X, jnp.eye(4, 6, dtype=jnp.int32).astype(jnp.float32)),
        ),
    ),
    **{
        f"one logit of two classes, {what}": (
            functools.partial(
                jaxblocks.softmax_cross_entropy, X[:, :1] if targets.dtype != np.int8 else X[:, 0], targets
            ),
            "; for one (logit|score) of two classes use sigmoid_cross_entropy",
            lambda: jaxblocks.sigmoid_cross_entropy(X[:, :1], jnp.float32([[0], [1], [1], [0]])),
        )
        for what, targets in {
            "labels": np.array([0, 1, 1, 0]),
            "labels in a column": np.array([[0], [1], [1], [0]]),
            "labels of logits without an axis": np.int8([0, 1, 1, 0]),
            "numbers in a column": np.float32([[0], [1], [1], [0]]),
        }.items()
    },
    "labels in a column": (
        lambda: jaxblocks.softmax_cross_entropy(X, jnp.ones((4, 1), jnp.int32)),
        r"got int32 \(4, 1\); write targets.squeeze\(-1\)",
        lambda: jaxblocks.softmax_cross_entropy(X, jnp.ones((4, 1), jnp.int32).squeeze(-1)),
    ),
    "predicted classes": (
        lambda: jaxblocks.accuracy(jnp.arange(4), jnp.arange(4)),
        r"pass scores \(\*batch, classes\); of predicted classes, take \(predictions == targets\).mean\(\)",
        lambda: jaxblocks.accuracy(X, jnp.arange(4)),
    ),
    "ids of a tied embedding as floating-point numbers": (
        lambda: Embedding(9, 6, tied=True).init(jax.random.key(0), jnp.ones((2, 5))),
        r"ids, an integer array, or features \(\*batch, 6\), got float32 \(2, 5\); convert ids with ids.astype",
        lambda: Embedding(9, 6, tied=True).init(jax.random.key(0), jnp.ones((2, 5)).astype(jnp.int32)),
    ),
    "params in summary": (
        lambda: jaxblocks.summary(Dense(3), DENSE, X),
        r"expected the inputs \(key, x\), got 3 inputs; leave out params or a state that .*, here a dict",
        lambda: jaxblocks.summary(Dense(3), X),
    ),
    "a state that there is not": (
        lambda: Dense(3).apply(DENSE, {}, X),
        r"expected the inputs \(params, x\), got 3 inputs; leave out params or a state",
        lambda: Dense(3).apply(DENSE, X),
    ),
    "two inputs with a state": (
        lambda: BatchNorm().apply({}, {}, X, X),
        r"expected the inputs \(params, state, x\), got 4 inputs; join several arrays before this layer",
        lambda: BatchNorm().init(jax.random.key(0), jnp.concatenate([X, X], -1)),
    ),
    "a key by position": (
        lambda: Serial(Dropout(0.5)).apply(((),), X, jax.random.key(0), train=True),
        "pass the key by name, key=key",
        lambda: Serial(Dropout(0.5)).apply(((),), X, key=jax.random.key(0), train=True),
    ),
    "inputs by name": (
        lambda: Serial(Dense(3)).apply(params=(DENSE,), x=X),
        r"pass the inputs by position, as in apply\(params, x\)",
        lambda: Serial(Dense(3)).apply((DENSE,), X),
    ),
    "train by position": (
        lambda: Serial(Layer(lambda key, x: (), lambda params, x, train: x)),
        r"got train by position; declare it after \*: \(params, x, \*, train=False\)",
        lambda: Serial(Layer(lambda key, x: (), lambda params, x, *, train=False: x)),
    ),
    "invalid inputs of check_layer": (
        lambda: check_layer(Dense(3), jnp.ones((4, 3), jnp.int32)),
        r"^Dense raises an error for these inputs:\nTypeError: Dense expected x to be .*; convert it with x.astype",
        lambda: check_layer(Dense(3), jnp.ones((4, 3)), laws={"repeatable": LAWS["repeatable"]}),
    ),
    "a text as a prompt": (
        lambda: jaxblocks.text.generate(Dense(3), DENSE, "hello"),
        r"generate expected prompts to be an integer array, got 'hello'; .*tokenizer.encode\(text\)",
        lambda: jaxblocks.text.ByteTokenizer().encode("hello"),
    ),
    "points of a grid": (
        lambda: jaxblocks.ad.mode_grid(lambda n, m: (jnp.sin, X), X, (1, 2)),
        r"inputs to be increasing integers >= 1, got float32 \(4, 6\)",
        lambda: None,
    ),
    "points of a curve": (
        lambda: jaxblocks.ad.memory_curve(lambda depth: (jnp.sin, X), (X, X)),
        "memory_curve expected depths to be increasing integers >= 1, got a tuple; pass",
        lambda: None,
    ),
    "pandas": (
        lambda: jaxblocks.minibatches(jax.random.key(0), (FRAME, np.arange(3)), 2),
        r"arrays\[0\] to be an array of JAX or NumPy, got a DataFrame of pandas; write arrays\[0\].to_numpy\(\)",
        lambda: jaxblocks.minibatches(jax.random.key(0), (FRAME.to_numpy(), np.arange(3)), 2),
    ),
    "pandas to predict": (
        lambda: jaxblocks.predict(Dense(3), DENSE, (), FRAME["a"]),
        r"predict expected x to be an array of JAX or NumPy, got a Series of pandas; write x.to_numpy\(\)",
        lambda: jaxblocks.train_val_test_split(jax.random.key(0), FRAME["a"].to_numpy(), fractions=(0.4, 0.3, 0.3)),
    ),
    "a mask by position to a Wire": (
        lambda: Wire(lambda f, x: f.a(x), a=Dense(3)).apply({"a": DENSE}, X, X > 0),
        "Wire expected at most 1 input, got 2 of them; pass a mask and other side inputs by name",
        lambda: Wire(lambda f, x: f.a(x), a=Dense(3)).apply({"a": DENSE}, X),
    ),
    "a Jacobian at a point": (
        lambda: jaxblocks.jacobian(jnp.sin, X),
        r"jacobian expected at most 1 argument by position \(f\), got 2 of them; jacobian\(f\) is a function of x: "
        r"write jacobian\(f\)\(x\)",
        lambda: jaxblocks.jacobian(jnp.sin)(X),
    ),
    "one fraction": (
        lambda: jaxblocks.train_val_test_split(jax.random.key(0), X, fractions=0.2),
        r"three fractions, got 0.2; pass for instance \(0.7, 0.15, 0.15\)",
        lambda: jaxblocks.train_val_test_split(jax.random.key(0), jnp.ones(10), fractions=(0.6, 0.2, 0.2)),
    ),
    "a metric of NumPy": (
        lambda: jaxblocks.evaluate(Dense(3), DENSE, (), (X, X), {"mean": lambda outputs, y: np.asarray(outputs)}),
        "expected the metric 'mean' to be a function of JAX arrays, got one that converts them to NumPy or to numbers; "
        "write",
        lambda: np.mean(jaxblocks.predict(Dense(3), DENSE, (), X)),
    ),
    "two rows in place of a pair": (
        lambda: jaxblocks.evaluate(Dense(3), DENSE, (), X[:2], {"a": jaxblocks.accuracy}),
        r"evaluate expected data to be a pair \(x, y\), got float32 \(2, 6\); write \(data, y\) with the targets y",
        lambda: jaxblocks.evaluate(Dense(3), DENSE, (), (X[:2], np.arange(2)), {"a": jaxblocks.accuracy}),
    ),
    "a step of no rows": (
        lambda: jaxblocks.train_step(Dense(3), jaxblocks.mse, SGD)(trained(), X[:0], X[:0, :3]),
        r"train_step expected at least one row in x, got float32 \(0, 6\); omit empty batches",
        lambda: jaxblocks.train_step(Dense(3), jaxblocks.mse, SGD)(trained(), X[:1], X[:1, :3]),
    ),
    "labels out of range in evaluate": (
        lambda: jaxblocks.evaluate(Dense(3), DENSE, (), (X, np.arange(4)), {"a": jaxblocks.accuracy}),
        "expected targets from 0 to 2, got targets from 0 to 3",
        lambda: jaxblocks.evaluate(Dense(3), DENSE, (), (X, np.arange(4) % 3), {"a": jaxblocks.accuracy}),
    ),
    "one logit for two classes": (
        lambda: jaxblocks.accuracy(X[:, :1], jnp.arange(4) % 2),
        r"for one logit write \(logits\[..., 0\] > 0\) == \(targets == 1\)",
        lambda: (X[..., 0] > 0) == (jnp.arange(4) % 2 == 1),
    ),
    "one example to predict": (
        lambda: jaxblocks.predict(Dense(3), DENSE, (), X[0]),
        r"outputs with 6 rows, got float32 \(3,\); .*pass x\[None\] for one example",
        lambda: jaxblocks.predict(Dense(3), DENSE, (), X[:1]),
    ),
    "a net instead of its params": (
        lambda: jaxblocks.load_checkpoint("run", Dense(3)),
        "load_checkpoint expected like to be a tree of arrays, got a Layer; pass what net.init",
        lambda: jax.eval_shape(Dense(3).init, jax.random.key(0), X),
    ),
    "an empty prompt": (
        lambda: jaxblocks.text.pad_prompts([[], [1]]),
        r"prompts of integers \(time,\), got .* for prompt 0; omit empty prompts",
        lambda: jaxblocks.text.pad_prompts([[1], [1, 2]]),
    ),
    "an additive mask": (
        lambda: jaxblocks.attention(*[jnp.ones((2, 3, 1, 4))] * 3, mask=jnp.zeros((1, 1, 3, 3))),
        "write mask > 0 for ones and zeros, mask == 0 for zeros and -inf",
        lambda: attend(jnp.ones((2, 3, 1, 4)), mask=jnp.zeros((1, 1, 3, 3)) == 0),
    ),
    "a mask of two axes where batch and time have one size": (
        lambda: jaxblocks.attention(*[jnp.ones((3, 3, 1, 4))] * 3, mask=jnp.ones((3, 3), bool)),
        r"write jnp.broadcast_to\(mask, \(3, 1, 3, 3\)\) for axes \(time_q, time_k\) or mask\[..., None, None, :\] for",
        lambda: attend(jnp.ones((3, 3, 1, 4)), mask=jnp.ones((3, 1, 3, 3), bool)),
    ),
    "statistics that were never updated, to predict": (
        lambda: jaxblocks.predict(BatchNorm(), NORM, STATISTICS, X),
        "BatchNorm expected running statistics to evaluate with, got a state that was never updated",
        lambda: jaxblocks.predict(BatchNorm(), NORM, BatchNorm().apply(NORM, STATISTICS, X, train=True)[1], X),
    ),
    "accuracy as a loss": (
        lambda: jaxblocks.train_step(Dense(3), functools.partial(jaxblocks.top_k_accuracy, k=2), SGD),
        "train_step expected a loss with a gradient, got accuracy, .*; pass a loss such as softmax_cross_entropy",
        lambda: jaxblocks.train_step(Dense(3), jaxblocks.softmax_cross_entropy, SGD),
    ),
    "a loss of params and batch": (
        lambda: jaxblocks.train_step(Dense(3), lambda params, x, y: 0.0, SGD),
        r"train_step expected loss to be a function loss\(outputs, y\), got a function of \(params, x, y\)",
        lambda: jaxblocks.train_step(Dense(3), lambda outputs, y: jaxblocks.mse(outputs, y), SGD),
    ),
    "a layer as activation": (
        lambda: MLP(8, activation=Dense(3)),
        "MLP expected activation to be a function, got a Layer; pass the function itself as activation",
        lambda: MLP(8, activation=relu),
    ),
    "the name of an activation": (
        lambda: MLP(8, activation="relu"),
        "MLP expected activation to be a function, got 'relu'; pass the function itself, activation=jax.nn.relu",
        lambda: MLP(8, activation=jax.nn.relu),
    ),
    "a generator of rows": (
        lambda: jaxblocks.train_val_test_split(jax.random.key(0), (row for row in X)),
        "train_val_test_split expected data, got a generator; pass arrays with all rows, such as np.stack",
        lambda: jaxblocks.train_val_test_split(jax.random.key(0), np.stack([*X]), fractions=(0.5, 0.25, 0.25)),
    ),
    "a mask of another length": (
        lambda: attending(jnp.ones((2, 3), bool)),
        r"Attention expected mask of shape .*, got bool \(2, 3\); make one of the shape \(2, 5\)",
        lambda: attending(jnp.ones((2, 5), bool)),
    ),
    "numbers of Python as state": (
        lambda: jaxblocks.init_train_state(
            jax.random.key(0), jaxblocks.StatefulLayer(lambda key, x: ((), {"n": 0}), lambda p, s, x: (x, s)), SGD, X
        ),
        r"init_train_state expected init to make arrays, at state\['n'\], got 0; write jnp.asarray\(0\) there",
        lambda: jaxblocks.init_train_state(
            jax.random.key(0),
            jaxblocks.StatefulLayer(lambda key, x: ((), {"n": jnp.asarray(0)}), lambda p, s, x: (x, s)),
            SGD,
            X,
        ),
    ),
    "a loss without targets": (
        lambda: jaxblocks.mse(X, None),
        "mse expected targets to be .*, got None; pass an array; .* train with lambda losses, y: losses",
        lambda: (lambda losses, y: losses)(X, None),
    ),
    "labels as strings": (
        lambda: jaxblocks.fit(
            Dense(1), jaxblocks.mse, SGD, (X, np.array(list("1234"))), key=jax.random.key(0), epochs=1, batch_size=2
        ),
        r"fit expected numbers in data\[1\], got <U1 \(4,\); number the strings, as in np.unique",
        lambda: np.unique(np.array(list("1234")), return_inverse=True)[1].astype(np.float32),
    ),
    "a name of a model instead of its folder": (
        lambda: jaxblocks.interop.load("gpt2"),
        r"pass the folder that huggingface_hub.snapshot_download\('gpt2'\) returns; load downloads nothing",
        lambda: None,
    ),
    "addition of layers": (lambda: Dense(3) + Dense(2), "write Serial", lambda: Serial(Dense(3), Dense(2))),
    "multiplication of a layer": (
        lambda: 2 * Dense(3),
        "got an operator such as .; write Serial",
        lambda: Serial(Dense(3), Dense(3)),
    ),
}
CELL = jax.tree.map(
    lambda x: np.ones(x.shape, np.float32), jax.eval_shape(LSTM(3).init, jax.random.key(0), np.ones((1, *X.shape)))
)
CACHED = jaxblocks.layers.CachedAttention(jaxblocks.Attention(1, causal=True), 4)
HEADS = jnp.ones((2, 3, 2, 1))
SGD = optax.sgd(0.1)
NORM, STATISTICS = BatchNorm().init(jax.random.key(0), X)
DENSE = {"kernel": np.ones((6, 3), np.float32), "bias": np.zeros(3, np.float32)}
FRAME = pandas.DataFrame({"a": [1.0, 2.0, 3.0]})


@pytest.mark.usefixtures("sentences")
@pytest.mark.parametrize("what", HABITS)
def test_habits_from_other_libraries_are_explained_and_the_repair_works(what):
    bad, words, repaired = HABITS[what]
    with pytest.raises((TypeError, ValueError, FileNotFoundError, AssertionError), match=words):
        bad()
    repaired()


def test_options_of_other_training_loops_are_explained():
    step = functools.partial(jaxblocks.train_step, Dense(1), jaxblocks.mse, SGD)
    run = functools.partial(jaxblocks.fit, Dense(1), jaxblocks.mse, SGD, (X, X), key=jax.random.key(0), epochs=1)
    elsewhere = {
        "epochs": "epoch n_epochs num_epochs max_epochs",
        "steps": "max_steps num_steps",
        "batch_size": "batchsize batch_sz bs",
        "validation": "validation_data val_data",
        "callbacks": "callback hooks",
        "progress": "verbose",
        "checkpoint_dir": "ckpt_dir checkpoint_path",
        "key": "seed rng",
        "loss": "loss_fn criterion",
        "optimizer": "opt tx",
        "penalty": "penalties",
    }
    for here, names in elsewhere.items():
        for name in names.split():
            with pytest.raises(
                TypeError,
                match=rf"fit expected one of its options, got '{name}'; did you mean {here}\? The options",
            ):
                run(**{name: 1})
    for function in (run, step):
        for name, words in {"lr": "as in optax.adam", "weight_decay": "optax.adamw", "shuffle": "leave it out"}.items():
            with pytest.raises(TypeError, match=f"expected one of its options, got '{name}'; .*{words}"):
                function(**{name: 1})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Linear", r"'Linear'; did you mean jaxblocks.Dense\?"),
        ("ReLU", r"did you mean jaxblocks.relu\?"),
        ("maxout", r"it is jaxblocks.activations.maxout$"),
        ("softmx", r"did you mean jaxblocks.softmax\?"),
        ("mish", r"'mish'; use jax.nn.mish$"),
        ("Optimizer", r"use optax$"),
        ("qwerty", r"no attribute 'qwerty'$"),
    ],
)
def test_names_of_other_libraries_are_explained(name, words):
    with pytest.raises(AttributeError, match=words):
        getattr(jaxblocks, name)


# ---- layers inside a combinator ---------------------------------------------------------------


def test_the_names_here_exist():
    """In the tables of names of other libraries: an option is a parameter, a layer is at the top level."""
    options = {p for f in functions().values() for p in inspect.signature(f).parameters}
    assert set(foreign_names.OPTIONS) <= options
    assert set(foreign_names.NAMES.values()) <= set(jaxblocks.__all__)
    assert not {*foreign_names.NAMES, *foreign_names.ELSEWHERE} & set(jaxblocks.__all__)
    # A path, or an expression such as jaxblocks.Serial(...).
    assert all(pydoc.locate(one) or eval(one, {"jaxblocks": jaxblocks}) for one in foreign_names.ELSEWHERE.values())


def test_a_combinator_gives_the_layers_inside_by_place():
    net = Serial(block=Serial(Dense(3), relu), out=Dense(2))
    assert repr(net["out"]) == repr(net[1]) == repr(net[-1]) == "Dense(2)"
    assert repr(net["block/0"]) == repr(net["block"][0]) == "Dense(3)"
    assert len(net) == 2 and len(Serial()) == len(Dense(3)) == 0 and bool(Serial())
    assert repr(models.ViT()["out"]) == "Dense(1000)"
    assert repr(pickle.loads(pickle.dumps(net))["out"]) == "Dense(2)"
    assert isinstance(net[0], Layer) and isinstance(Serial(BatchNorm())[0], StatefulLayer)
    init, apply = net  # a layer is a pair of functions
    assert init is net.init and apply is net.apply and tuple(net._replace(init=apply)) == (apply, apply)
    assert jax.tree.leaves(net) == [init, apply]
    for place in (2, -3, "dense", "block/7"):
        with pytest.raises(LookupError, match="Serial expected the place of a layer inside, got .*; there is"):
            net[place]
    with pytest.raises(LookupError, match=r"write Serial\(\*\(net\[i\] for i in range\(0, 1\)\)\)\.$"):
        net[:1]
    with pytest.raises(LookupError, match="there is none; unpack the pair as init, apply = layer"):
        Dense(3)[0]


def test_lengths_are_not_longer_than_the_sequences():
    with pytest.raises(ValueError, match="expected lengths from 0 to 4, got lengths from -1 to 9"):
        LSTM(3).apply(CELL, jnp.stack([X, X]), lengths=jnp.array([9, -1]))


def test_lengths_are_a_mask():
    x = np.random.default_rng(0).normal(size=(2, 4, 6)).astype(np.float32)
    mask, lengths = np.array([[True, True, False, False], [True, True, True, True]]), np.array([2, 4], np.int32)
    both = jax.jit(lambda x: (LSTM(3).apply(CELL, x, mask=mask), LSTM(3).apply(CELL, x, lengths=lengths)))
    np.testing.assert_array_equal(*both(x))
    apply = jax.jit(LSTM(3).apply)
    long = apply(CELL, np.ones((1, 300, 6), np.float32), lengths=np.array([200], np.uint8))  # which has no 300
    np.testing.assert_array_equal((long != 0).all(-1)[0], np.arange(300) < 200)


# ---- traced and large numbers -----------------------------------------------------------------


SWEEPS = {
    "dropout": lambda r: jaxblocks.dropout(jax.random.key(0), X, r),
    "Dropout": lambda r: Dropout(r).apply((), X, train=True, key=jax.random.key(0)),
    "FeatureDropout": lambda r: FeatureDropout(r, spatial=1).apply((), X, train=True, key=jax.random.key(0)),
    "LayerNorm": lambda r: LayerNorm(epsilon=r, use_scale=False, use_bias=False).apply((), ROWS),
    "RMSNorm": lambda r: jaxblocks.rms_norm(ROWS, epsilon=r),
    "GroupNorm": lambda r: jaxblocks.group_norm(ROWS, groups=2, spatial=0, epsilon=r),
    "BatchNorm": lambda r: settled(BatchNorm(momentum=r, epsilon=r)),
    "leaky_relu": lambda r: jaxblocks.leaky_relu(-X, r),
    "elu": lambda r: jaxblocks.elu(-X, r),
    "swish": lambda r: jaxblocks.layers.swish(X, r),
}
ROWS = jnp.asarray(np.random.default_rng(1).normal(size=(4, 6)), jnp.float32)


def settled(layer):
    """The output and the running statistics after two updates."""
    params, state = layer.init(jax.random.key(0), ROWS)
    _, state = layer.apply(params, state, ROWS, train=True)
    y, state = layer.apply(params, state, 2 * ROWS, train=True)
    return y, state


@pytest.mark.parametrize("name", SWEEPS)
def test_numbers_may_be_traced(name):
    """``vmap`` over a number gives the results for each of its values."""
    f, values = SWEEPS[name], (0.25, 0.5)
    run = jax.jit(lambda swept: (jax.vmap(f)(swept), jax.tree.map(lambda *each: jnp.stack(each), *map(f, values))))
    swept, expected = jax.tree.map(np.asarray, run(np.float32(values)))
    jax.tree.map(lambda y, e: np.testing.assert_allclose(y, e, rtol=1e-6, atol=1e-7), swept, expected)
    assert any((y[0] != y[1]).any() for y in jax.tree.leaves(swept))


NORMS = {
    "group_norm": lambda x: jaxblocks.group_norm(x, groups=1, spatial=0),
    "instance_norm": lambda x: jaxblocks.layers.instance_norm(x.T, spatial=1).T,
}


@pytest.mark.parametrize("name", NORMS)
def test_norms_of_large_values_and_their_derivatives_are_right(name):
    """Values whose squares overflow in float32, against the formula in float64; beyond, the result is not 0."""
    norm = NORMS[name]
    cubed = lambda x: (norm(x) ** 3).sum()
    unit = np.float64(ROWS)
    mean = unit.mean(-1, keepdims=True)
    y = (unit - mean) / np.sqrt(((unit - mean) ** 2).mean(-1, keepdims=True))  # does not depend on the scale
    push = lambda u: u / np.sqrt(((unit - mean) ** 2).mean(-1, keepdims=True))
    centered = 3 * y**2 - (3 * y**2).mean(-1, keepdims=True)
    gradient = push(centered - y * (3 * y**3).mean(-1, keepdims=True))
    run = jax.jit(lambda x: (norm(x), jax.grad(cubed)(x), jax.jvp(jax.grad(cubed), (x,), (x,))[1]))
    for scale in (1e6, 1e10, 1e19, 1e20, 1e23, 5e27):
        value, slope, curved = run(np.float32(ROWS) * np.float32(scale))
        np.testing.assert_allclose(value, y, rtol=1e-5, atol=1e-6)
        worst = np.abs(gradient).max()
        if scale < 1e24:  # above, products with the derivative of the root underflow
            np.testing.assert_allclose(np.float64(slope) * scale, gradient, atol=5e-6 * worst)
        if scale < 1e19:  # the gradient is homogeneous of degree -1
            np.testing.assert_allclose(np.float64(curved) * scale, -gradient, atol=1e-5 * worst)
    with jax.debug_nans(False):
        assert not (np.asarray(run(np.float32(ROWS) * np.float32(1e34))[0]) == 0).any()


def test_check_layer_takes_numpy_arrays():
    rows = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)
    assert check_layer(Dense(2), rows, laws={"shapes_as_stated": LAWS["shapes_as_stated"]})
