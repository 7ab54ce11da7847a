"""What users bring from elsewhere: arrays, layers as functions, names, files; each error says what to write."""

import collections
import dataclasses
import functools
import importlib
import inspect
import operator
import pathlib
import pydoc
import re
import tempfile
import warnings
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas
import pytest
from jaxtyping import AbstractArray
from public import PUBLIC_MODULES, parameters

import jaxblocks as jb
from jaxblocks import ad, diffusion, interop, text, training
from jaxblocks.checks import foreign_arrays, foreign_names, names, values
from jaxblocks.core import misuse

pytestmark = pytest.mark.usefixtures("sentences")
KEY = jax.random.key(0)
X = np.arange(24, dtype=np.float32).reshape(4, 6) / 24
LABELS = np.arange(4) % 3
NET = jb.Serial(jb.Dense(3), jb.relu)
PARAMS = ({"kernel": np.ones((6, 3), np.float32), "bias": np.zeros(3, np.float32)}, ())
SGD = optax.sgd(0.1)
FITTED = training.Fitted(PARAMS, (), training.History(*3 * [X[0]], {}), None)
LINE = jb.Serial(jb.Dense(1), lambda x: x[..., 0])
DRAWING = jb.Wire(lambda f, x, *, key: x + jax.random.normal(key, x.shape))
DRAWING_IN_TRAINING = jb.Wire(lambda f, x, *, key=None: x if key is None else x + jax.random.normal(key, x.shape))


class Tensor:
    """An array with the methods of a tensor of PyTorch."""

    __module__ = "torch"
    dtype, shape, ndim = "torch.float32", (4, 6), 2

    def detach(self):
        return self

    cpu = detach

    def numpy(self):
        return X


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class _Linear:
    """A module that holds its arrays, and is a pytree of them."""

    weight: jax.Array

    def __call__(self, x):
        return x @ self.weight


_Linear.__module__ = "equinox.nn"


def _states():
    """Those of an ensemble."""
    keys = jax.random.split(jax.random.key(5), 2)
    return jax.vmap(lambda key: jb.init_train_state(key, NET, SGD, X))(keys)


def loss(outputs, y):
    return jb.softmax_cross_entropy(outputs, y)


def applied(net, **side):
    """A net applied to one sequence."""
    made = net.init(jax.random.key(0), X[None])
    return net.apply(*(made if isinstance(net, jb.StatefulLayer) else (made,)), X[None], **side)


def sentence(call, error=(TypeError, ValueError, AttributeError)):
    """The message of the error that a call raises."""
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)


# ---- arrays of other libraries ----------------------------------------------------------------


def test_each_parameter_for_an_array_tells_a_tensor_what_to_write():
    checked, wrong = 0, []
    for path, function, name, members in parameters():
        is_array = any(isinstance(one, type) and issubclass(one, AbstractArray) for one in members)
        if is_array and function is not jb.identity:  # which returns what it takes
            checked += 1
            try:
                said = f"accepted, {function(**{name: Tensor()})}"
            except (TypeError, ValueError, AttributeError) as error:
                said = str(error)
            if f"write {name}.detach().cpu().numpy()" not in said:
                wrong.append(f"{path}({name}=tensor): {said}"[:200])
    assert checked > 300 and not wrong, "\n".join(wrong)


def test_trees_inputs_and_params_of_other_libraries_are_explained():
    ts = training.init_train_state(KEY, NET, SGD, X)
    step = training.train_step(NET, loss, SGD)
    params = jax.tree.map(lambda _: Tensor(), PARAMS)
    frame = pandas.DataFrame(X)
    calls = {
        "x": lambda x: NET.init(KEY, x),
        "x ": lambda x: NET.apply(PARAMS, x),
        "x  ": lambda x: jb.Serial(lambda y: y * 2).init(KEY, x),
        "inputs[0]": lambda x: jb.summary(NET, x),
        "inputs[0] ": lambda x: jb.layer_outputs(NET, PARAMS, x),
        "inputs": lambda x: training.init_train_state(KEY, NET, SGD, x),
        "x    ": lambda x: step(ts, x, LABELS),
        "y": lambda x: step(ts, X, x),
        "x     ": lambda x: jb.hvp(lambda x: (x**2).sum(), x, X),
        "x      ": lambda x: jb.jacobian(lambda x: x**2)(x),
        "arrays[0]": lambda x: jb.minibatches(KEY, (x, LABELS), 2),
        "data[0]": lambda x: jb.fit(NET, loss, SGD, (x, LABELS), key=KEY, steps=1),
        "x       ": lambda x: jb.predict(NET, PARAMS, (), x),
        **{
            f"args{' ' * i}": functools.partial(function, lambda x: (x**2).sum())
            for i, function in enumerate(
                (ad.count_flops, ad.trace_table, ad.cost_table, ad.saved_numbers, ad.temporary_bytes, ad.explore)
            )
        },
        "x        ": lambda x: ad.count_flops(lambda x: (x**2).sum(), x=x),
        "init": lambda x: ad.scan(lambda c, x: (c, x), x, X),
        "xs": lambda x: ad.scan(lambda c, x: (c, x), X[0], x),
        "jacobians[0]": lambda x: ad.multiply_chain([x, X]),
        "args          ": lambda x: ad.jacobian_plan(lambda x: (x**2).sum(), x),
        "data[0] ": lambda x: jb.evaluate(NET, PARAMS, (), (x, LABELS), {"loss": loss}),
    }
    for place, call in calls.items():
        for x, way in ((Tensor(), "detach().cpu().numpy()"), (frame, "to_numpy()")):
            said = sentence(lambda: call(x), TypeError)  # noqa: B023
            assert f"write {place.strip()}.{way}" in said, f"{place}: {said}"
    assert "write params['bias'].detach().cpu().numpy()" in sentence(lambda: NET.apply(params, X))
    assert "write params[0]['bias'].detach()" in sentence(lambda: jb.predict(NET, params, (), X))
    assert "write tree[0]['bias'].detach()" in sentence(lambda: jb.save_checkpoint("run", params))


def test_variables_labels_and_names_of_dtypes_of_other_libraries():
    said = sentence(lambda: NET.apply({"params": PARAMS, "batch_stats": {}}, X), ValueError)
    assert said.endswith('pass the entry "params" alone: apply(variables["params"], x).')
    said = sentence(lambda: jb.Dense(2).apply({"params": PARAMS[0]}, X), ValueError)
    assert said.endswith('got params; pass the entry "params" alone: apply(variables["params"], x).')
    of_torch = type("dtype", (), {"__repr__": lambda self: "torch.bfloat16"})()
    for name, meant in (("bf16", "bfloat16"), ("fp16", "float16"), (of_torch, "bfloat16"), ("no", "one such as")):
        assert f"; pass {'jnp.' * (name != 'no')}{meant}" in sentence(lambda: jb.Dense(2, dtype=name), TypeError)  # noqa: B023
    with pytest.raises(TypeError) as error:
        jb.predict(NET, PARAMS, (), (X, LABELS))
    assert error.value.__notes__[-1] == "predict passes all 2 arrays of x to the net; leave out labels, if any"


@pytest.mark.parametrize(
    ("x", "repair"),
    [
        ([[np.float32(1)] * 6] * 4, "convert it with jnp.asarray(x)"),
        (list(X), "for example with jnp.stack(x)"),
        ([Tensor()] * 2, "write np.stack([a.detach().cpu().numpy() for a in x])"),
        (np.array([[1, 2], [3, 4]], object), "convert it with x.astype(np.float32), which has to hold numbers only"),
        (np.array(["a"]), "which has to hold numbers only"),
        (pytest.importorskip("PIL.Image").new("L", (6, 4)), "write np.asarray(x, np.float32)"),
    ],
)
def test_other_values_with_numbers_have_a_repair_that_works(x, repair):
    for call in (jb.relu, functools.partial(jb.Dense(2).init, KEY)):
        assert repair in sentence(lambda: call(x), TypeError)  # noqa: B023
    code = re.search(r"(jnp\.\w+|np\.\w+|x\.astype)\(.*\)", repair)
    if code and "a" not in np.asarray(x, object).ravel().tolist():
        assert isinstance(jb.relu(eval(code[0], {"x": x, "np": np, "jnp": jnp})), jax.Array)


def test_arrays_in_another_byte_order_have_a_repair_that_works():
    """Those of IDX and FITS files on most machines, which JAX does not take, or misreads in a compiled program."""
    x, y = (np.arange(6.0).reshape(2, 3).astype(np.dtype(np.float32).newbyteorder("S")) for _ in range(2))
    options = dict(key=KEY, steps=1, progress=False)
    scale, native = jb.Layer(lambda key, x: {}, lambda params, x: x * params["w"]), np.float32(x)
    of_state = jb.StatefulLayer(lambda key, x: ((), {}), lambda params, state, x: (x * state["w"], state))
    data, metrics = (native, native), {"mse": jb.mse}
    ts = jb.init_train_state(KEY, scale, optax.sgd(0.1), native)._replace(params={"w": native})
    step = jb.train_step(scale, jb.mse, optax.sgd(0.1))

    def new_step(*arguments):
        return jb.train_step(scale, jb.mse, optax.sgd(0.1))(*arguments)

    def continued(w):
        return jb.fit(scale, jb.mse, optax.sgd(0.1), data, ts=ts._replace(params={"w": w}), **options)

    for what, call in (
        ("x", lambda x: jb.relu(x)),
        ("x", lambda x: jb.Dense(2).init(KEY, x)),
        ("x", lambda x: jb.predict(jb.relu, (), (), x)),
        ("data[0]", lambda x: jb.fit(jb.Dense(3), jb.mse, optax.sgd(0.1), (x, np.float32(y)), **options)),
        ("data[1]", lambda y: jb.fit(jb.Dense(3), jb.mse, optax.sgd(0.1), (np.float32(x), y), **options)),
        ("x", lambda x: step(ts, x, native)),
        ("y", lambda y: step(ts, native, y)),
        ("ts.params['w']", continued),
        ("ts.params['w']", lambda w: new_step(ts._replace(params={"w": w}), native, native)),
        ("params['w']", lambda w: jb.predict(scale, {"w": w}, (), native)),
        ("params['w']", lambda w: jb.evaluate(scale, {"w": w}, (), data, metrics)),
        ("state['w']", lambda w: jb.predict(of_state, (), {"w": w}, native)),
        ("state['w']", lambda w: jb.evaluate(of_state, (), {"w": w}, data, metrics)),
        ("params['w']", lambda w: jb.losses.l2_penalty({"w": w})),
    ):
        call(native)
        repair = f'write {what}.astype({what}.dtype.newbyteorder("="))'
        assert repair in sentence(lambda: call(x), TypeError)  # noqa: B023


def test_a_shape_in_place_of_an_array_has_a_repair_of_shapes():
    repair = "pass an array, jnp.zeros((3, 4)) for example if this is its shape, or else jnp.asarray(x)"
    assert repair in sentence(lambda: jb.softmax((3, 4)), TypeError)


def test_a_traced_value_is_rejected_where_values_are_needed():
    key = {"key": KEY, "steps": 1, "progress": False}
    for call in (
        lambda x: jb.fit(NET, loss, SGD, (x, LABELS), **key),
        lambda x: next(jb.minibatches(KEY, x, 2)),
        lambda x: jb.train_val_test_split(KEY, x, fractions=(0.5, 0.25, 0.25)),
        lambda x: jb.save_checkpoint("run", x),
    ):
        assert "got a traced array; call it outside of jax.jit." in sentence(lambda: jax.jit(call)(X))  # noqa: B023
    run = jax.jit(functools.partial(jb.fit, NET, loss, SGD))
    assert "call fit outside of jax.jit" in sentence(lambda: run((X, LABELS), key=KEY, steps=1))


# ---- layers where functions belong, and functions where layers belong -------------------------


def test_a_layer_in_the_place_of_its_apply_is_explained_by_every_transformation():
    for net in (NET, jb.Serial(jb.BatchNorm())):
        transformations = {
            "jit": lambda f: jax.jit(f),
            "vmap": lambda f: jax.vmap(f),
            "grad": lambda f: jax.grad(f),
            "value_and_grad": lambda f: jax.value_and_grad(f),
            "jacfwd": lambda f: jax.jacfwd(f),
            "jacrev": lambda f: jax.jacrev(f),
            "checkpoint": lambda f: jax.checkpoint(f)(PARAMS, X),
            "eval_shape": lambda f: jax.eval_shape(f, PARAMS, X),
            "make_jaxpr": lambda f: jax.make_jaxpr(f)(PARAMS, X),
            "linearize": lambda f: jax.linearize(f, PARAMS),
            "jvp": lambda f: jax.jvp(f, (X,), (X,)),
            "vjp": lambda f: jax.vjp(f, X),
            "scan": lambda f: jax.lax.scan(f, PARAMS, X),
            "cond": lambda f: jax.lax.cond(True, f, f, X),
        }
        for name, transform in transformations.items():
            said = sentence(lambda: transform(net), TypeError)  # noqa: B023
            assert "Serial expected a transformation of its function apply" in said, (name, said)
            assert "jax.jit(net.apply)" in said
        assert not hasattr(net, "forward") and "__code__" not in dir(net)
        # What others ask of a layer: no answer is an error of JAX.
        assert not hasattr(net, "__code__") and not inspect.iscoroutinefunction(net)
        assert list(inspect.signature(net).parameters) == ["_", "__"]
        assert isinstance(Mock(spec=net), type(net))
    assert jax.jit(NET.apply)(PARAMS, X).shape == (4, 3)


@pytest.mark.parametrize(
    ("forward", "repair"),
    [
        (lambda x, f: f.a(x), "write the children first, as in lambda f, x: f.a(x)"),
        (lambda f, x: f["a"](x), "write f.a(x) or f.b(x)"),
        (lambda f, x: [g(x) for g in f], "write f.a(x) or f.b(x)"),
        (lambda f, x: f(x), "write f.a(x) or f.b(x)"),
        (lambda f, x: f.a.apply(x), "write f.a(x), which has its params"),
        (lambda f, x: f.a.init(KEY, x), "write f.a(x), which has its params"),
        (lambda f, x: f.a(PARAMS[0], x), "leave out params or a state that it does not take, here a dict"),
        (lambda f, x: f.a, "got the function f.a; call it, as in f.name(x)"),
        (lambda x: x, "forward has the children as its first parameter, as in lambda f, x: f.a(x)"),
        (lambda f, x: f.c(x), "got 'c'; call one of these"),
        (lambda f, x, train=False: f.a(x), "got train=False by position; declare it after *: (f, x, *, train=False)"),
        (lambda f, x, key=None: f.a(x), "got key=None by position; declare it after *: (f, x, *, key=None)"),
        (lambda f, x, key: f.a(x), "for a random key declare it after *: (f, x, *, key=None)"),
        (lambda f, x, mask: f.a(x), "expected the inputs (x, mask) of forward, got float32 (4, 6); pass mask too"),
        (
            lambda f, x, key, value: f.a(x),
            "expected the inputs (x, key, value) of forward, got float32 (4, 6); pass key, ",
        ),
        (lambda f, x: x.shap, "has no attribute"),  # an error of the user's own stays
    ],
)
def test_bodies_of_wire(forward, repair):
    net = lambda: jb.Wire(forward, a=jb.Dense(6), b=jb.Dense(6))
    assert repair in sentence(lambda: net().init(KEY, jax.ShapeDtypeStruct(X.shape, X.dtype)))


def test_functions_that_combinators_take_as_they_are():
    """The first parameter may be called train or key, also of init; a partial may set these."""
    kernel = jb.Serial(lambda train, test: train @ test.T)
    assert kernel.apply(kernel.init(KEY, X, X), X, X).shape == (4, 4)
    jb.Serial(jb.Layer(lambda key=None, *inputs: (), lambda params, x: x))
    f = lambda x, train=False, key=None: x * train
    net = jb.Serial(functools.partial(f, train=True, key=None))
    np.testing.assert_array_equal(net.apply(net.init(KEY, X), X), X)


def test_children_of_wire_are_functions_for_jax():
    net = jb.Wire(lambda f, x: jax.vmap(jax.checkpoint(f.b))(jax.lax.map(f.a, x)), a=jb.Dense(6), b=jb.Dense(2))
    assert jax.eval_shape(lambda: net.apply(net.init(KEY, X), X)).shape == (4, 2)


def test_builder_says_what_it_takes_and_what_a_builder_returns():
    class Scale:
        pass

    def Broken(n):
        return (n,) * 2

    assert "got the class Scale; write a function: def Scale(...): return Layer(init, apply)." in sentence(
        lambda: jb.builder(Scale)
    )
    for value, got in ((functools.partial(Broken, 3), "a partial"), (operator.itemgetter(0), "an itemgetter")):
        assert f"got {got}; write a function: def Net(" in sentence(lambda value=value: jb.builder(value), TypeError)
    assert "builder expected a function that returns a Layer, got a Layer;" in sentence(lambda: jb.builder(NET))
    assert sentence(lambda: jb.builder(Broken)(3)) == (
        "Broken expected its function to return a Layer or a StatefulLayer, got (3, 3); "
        "write return Layer(init, apply)."
    )


# ---- repairs that are right when they are followed --------------------------------------------

SCORES = jnp.asarray(X[:, :3])


class Loader:
    def __iter__(self):
        return iter([(X, LABELS)])


def batches_of_rows():
    yield X, LABELS


def range_test(net=NET, loss=loss, optimizer=optax.sgd, data=(X, LABELS), **options):
    return training.find_learning_rate(net, loss, optimizer, data, **{"key": KEY, "steps": 12, **options})


def fitted(optimizer=SGD, **options):
    return jb.fit(NET, loss, optimizer, (X, LABELS), key=KEY, steps=1, progress=False, **options)


SEQUENCES = jnp.ones((2, 4, 3))
ATTENTION_PARAMS = jb.Attention(1).init(KEY, SEQUENCES)
ATTENTION_PARAMS_OF_A = {"a": ATTENTION_PARAMS}
MASKED = lambda forward: jb.Wire(forward, a=jb.Attention(1))
POSTERIOR = lambda: jb.ad.laplace_approximation(
    lambda params, x: x @ params, jb.mse, jnp.ones((3, 1)), jnp.ones((4, 3)), jnp.ones((4, 1))
)
TWO_INPUTS = jb.Wire(lambda f, x, mask: f.a(x) * mask, a=jb.Dense(6))
LORA = jb.models.LoRA(NET, "*", rank=1)
REPAIRS = {
    "a mode of a function by position": (
        lambda: jb.Serial(jb.Dense(3), lambda x, train=False: x),
        "got train=False by position; declare it after *: (x, *, train=False)",
        lambda: jb.Serial(jb.Dense(3), lambda x, *, train=False: x),
    ),
    "a mode of a layer by position": (
        lambda: jb.train_step(jb.Layer(lambda key, x: (), lambda params, x, train=False: x), jb.mse, SGD)(
            jb.init_train_state(KEY, NET, SGD, X)._replace(params=()), X, X
        ),
        "got train=False by position; declare it after *: (params, x, *, train=False)",
        lambda: jb.side_inputs(jb.Layer(lambda key, x: (), lambda params, x, *, train=False: x)),
    ),
    "a key of a layer by position": (
        lambda: jb.Serial(jb.Layer(lambda key, x: (), lambda params, x, key=None: x)),
        "got key=None by position; declare it after *: (params, x, *, key=None)",
        lambda: jb.Serial(jb.Layer(lambda key, x: (), lambda params, x, *, key=None: x)),
    ),
    "a key beside a query": (
        lambda: jb.Serial(lambda x, key=None: x),
        "got key=None by position; declare it after *: (x, *, key=None)",
        lambda: jb.Serial(lambda query, key=None, value=None: query),  # of attention
    ),
    "a mask of a Wire by name": (
        lambda: MASKED(lambda f, x, mask=None: f.a(x)).apply(
            ATTENTION_PARAMS_OF_A, SEQUENCES, mask=jnp.ones((2, 4), bool)
        ),
        "got mask by name; pass mask by position, or declare it after *: (f, x, *, mask=None)",
        lambda: MASKED(lambda f, x, *, mask=None: f.a(x)).apply(
            ATTENTION_PARAMS_OF_A, SEQUENCES, mask=jnp.ones((2, 4), bool)
        ),
    ),
    "a mode and a key of a function by position": (
        lambda: jb.Serial(lambda x, /, train, key=None, scale=1.0: x),
        "got train, key=None by position; declare them after *: (x, /, scale=1.0, *, train=False, key=None)",
        lambda: jb.Serial(lambda x, /, scale=1.0, *, train=False, key=None: x),
    ),
    "a mode after what a partial sets": (
        lambda: jb.Serial(functools.partial(lambda x, rate, train=False: x, rate=0.1)),
        "got train=False by position; declare it after *: (x, *, rate=0.1, train=False)",
        lambda: jb.Serial(functools.partial(lambda x, *, rate, train=False: x, rate=0.1)),
    ),
    "a mode before /": (
        lambda: jb.Serial(jb.Layer(lambda key, x: (), lambda params, x, train, /: x)),
        "got train by position; declare it after *: (params, x, /, *, train=False)",
        lambda: jb.Serial(jb.Layer(lambda key, x: (), lambda params, x, /, *, train=False: x)),
    ),
    "inputs of a Wire in one tuple": (
        lambda: jb.init_train_state(KEY, TWO_INPUTS, SGD, (X, X)),
        "expected the inputs (x, mask) of forward, got a tuple; pass them one by one, as in init(key, *x)",
        lambda: jax.eval_shape(lambda: jb.init_train_state(KEY, TWO_INPUTS, SGD, *(X, X))),
    ),
    "inputs of a Wire in a dict": (
        lambda: jax.eval_shape(TWO_INPUTS.init, KEY, {"x": X, "mask": X}),
        "got a dict; pass its entries one by one; a training step takes a tuple of them",
        lambda: jax.eval_shape(TWO_INPUTS.init, KEY, X, X),
    ),
    "children in a list": (
        lambda: jb.Parallel([jb.Dense(3), jb.Dense(1)]),
        "got a list; write Parallel(*layers)",
        lambda: jb.Parallel(*[jb.Dense(3), jb.Dense(1)]),
    ),
    "children in a dict": (
        lambda: jb.layers.Flow({"a": jb.layers.AffineCoupling(jb.relu)}),
        "got a dict; write Flow(**layers)",
        lambda: jb.layers.Flow(**{"a": jb.layers.AffineCoupling(jb.relu)}),
    ),
    "a loss for each head": (
        lambda: jb.train_step(NET, {"a": jb.mse, "b": jb.mae}, SGD),
        "write one function loss(outputs, y) that returns their weighted sum",
        lambda: jb.train_step(NET, lambda outputs, y: jb.mse(outputs, y) + 0.5 * jb.mae(outputs, y), SGD),
    ),
    "the norm of DP-SGD by another name": (
        lambda: ad.private_gradients(lambda p, x: (p * x).sum(), X[0], X, max_grad_norm=1.0, noise=0.0),
        "did you mean clip?",
        lambda: jax.eval_shape(lambda: ad.private_gradients(lambda p, x: (p * x).sum(), X[0], X, clip=1.0, noise=0.0)),
    ),
    "a multiplier of noise": (
        lambda: ad.private_gradients(lambda p, x: (p * x).sum(), X[0], X, clip=1.0, noise_multiplier=0.0),
        "did you mean noise?",
        lambda: jax.eval_shape(lambda: ad.private_gradients(lambda p, x: (p * x).sum(), X[0], X, clip=1.0, noise=0.0)),
    ),
    "patterns in a list": (
        lambda: jb.models.LoRA(NET, ["*"]),
        "got a list; write LoRA(net, '*')",
        lambda: jb.models.LoRA(NET, "*"),
    ),
    "a causal mask": (
        lambda: jb.Attention(1).apply(ATTENTION_PARAMS, SEQUENCES, mask=jnp.tril(jnp.ones((4, 4), bool))),
        "for the latter, or Attention(..., causal=True) for causal order.",
        lambda: jb.Attention(1, causal=True).apply(ATTENTION_PARAMS, SEQUENCES),
    ),
    "lengths in the place of a mask": (
        lambda: jb.Attention(1).apply(ATTENTION_PARAMS, SEQUENCES, mask=jnp.array([2, 4])),
        "jnp.arange(time) < mask[..., None] for lengths",
        lambda: jb.Attention(1).apply(
            ATTENTION_PARAMS, SEQUENCES, mask=jnp.arange(4)[None] < jnp.array([2, 4])[..., None]
        ),
    ),
    "a number of samples by position": (
        lambda: POSTERIOR().sample(KEY, 5),
        "by position (key), got 2 of them; pass options by name: LaplacePosterior.sample(key, samples=...)",
        lambda: POSTERIOR().sample(jax.random.key(8), samples=5),
    ),
    "another name for samples": (
        lambda: POSTERIOR().sample(KEY, n=5),
        "got 'n'; leave it out. The options are key, samples",
        lambda: POSTERIOR().sample(jax.random.key(10), samples=5),
    ),
    "a layer for a model of a posterior": (
        lambda: POSTERIOR().predictive_covariance(jb.Dense(1), jnp.ones((4, 3))),
        "pass a function of what varies, such as lambda params: net.apply(params, x)",
        lambda: POSTERIOR().predictive_covariance(lambda params, x: x @ params, jnp.ones((4, 3))),
    ),
    "the size of samples": (
        lambda: POSTERIOR().sample(KEY, samples=(5,)),
        "expected samples to be an integer >= 1, got (5,)",
        lambda: POSTERIOR().sample(jax.random.key(9), samples=5),
    ),
    "ones and zeros as a mask of rows": (
        lambda: jb.layers.aggregate(X, LABELS, 3, how="sum", mask=jnp.array([1, 1, 0, 0])),
        "write mask > 0 for ones and zeros, mask == 0 for zeros and -inf.",
        lambda: jb.layers.aggregate(X, LABELS, 3, how="sum", mask=jnp.array([1, 1, 0, 0]) > 0),
    ),
    "params of LoRA before the net": (
        lambda: jb.models.merge_lora({"base": PARAMS, "lora": {}}, NET),
        "got a dict; the order is net, params",
        lambda: jax.eval_shape(lambda: jb.models.merge_lora(LORA, LORA.init(KEY, X))),
    ),
    "no patterns": (
        lambda: jb.models.LoRA(NET, "*", None),
        "got None; pass one such as patterns='name'",
        lambda: jb.models.LoRA(NET, "*"),
    ),
    "a layer that is not trained": (
        lambda: jb.Dense(3, trainable=False),
        "write Frozen(layer) for a layer that is not trained, else leave it out",
        lambda: jb.Frozen(jb.Dense(3)),
    ),
    "a step without targets": (
        lambda: jb.train_step(NET, lambda outputs, _: outputs.mean(-1), SGD)(
            jb.init_train_state(KEY, NET, SGD, X), (X,)
        ),
        "write step(ts, *batch), or step(ts, x, None) without targets",
        lambda: jax.eval_shape(
            lambda: jb.train_step(NET, lambda outputs, _: outputs.mean(-1), SGD)(
                jb.init_train_state(KEY, NET, SGD, X), (X,), None
            )
        ),
    ),
    "a batch in one tuple": (
        lambda: jb.per_example_gradients(lambda p, x, y: (p * x).sum() * y, X[0], (X, X[:, 0])),
        "pass the arrays of the batch one by one: (loss, params, *batch)",
        lambda: jax.eval_shape(lambda: jb.per_example_gradients(lambda p, x, y: (p * x).sum() * y, X[0], X, X[:, 0])),
    ),
    "layers by position": (
        lambda: jb.models.TransformerBlock(jb.Attention(2), jb.MLP(8, 6)),
        "expected no arguments by position, got 2; pass options by name: TransformerBlock(attention=..., mlp=...)",
        lambda: jb.models.TransformerBlock(attention=jb.Attention(2), mlp=jb.MLP(8, 6)),
    ),
    "children of a Wire by position": (
        lambda: jb.Wire(lambda f, x: f.a(x), jb.Dense(3)),
        "expected at most 1 argument by position (forward), got 2 of them; pass layers by name, as in Wire(forward, a=",
        lambda: jb.Wire(lambda f, x: f.a(x), a=jb.Dense(3)),
    ),
    "examples without options": (
        lambda: ad.private_gradients(lambda p, x: (p * x).sum(), X[0], X),
        "expected the argument clip, got none; write private_gradients(..., clip=..., noise=...)",
        lambda: jax.eval_shape(lambda: ad.private_gradients(lambda p, x: (p * x).sum(), X[0], X, clip=1.0, noise=0.0)),
    ),
    "a distribution for many": (
        lambda: jb.kl_divergence(jnp.ones(6) / 6, jnp.ones((4, 6)) / 6),
        "write p=jnp.broadcast_to(p, (4, 6))",
        lambda: jax.eval_shape(
            lambda p, q: jb.kl_divergence(p=jnp.broadcast_to(p, (4, 6)), q=q), jnp.ones(6) / 6, jnp.ones((4, 6)) / 6
        ),
    ),
    "points for many sets of points": (
        lambda: jb.losses.pairwise_distances(jnp.ones((2, 4, 3)), jnp.ones((5, 3))),
        "write y=jnp.broadcast_to(y, (2, 5, 3))",
        lambda: jax.eval_shape(
            lambda: jb.losses.pairwise_distances(jnp.ones((2, 4, 3)), y=jnp.broadcast_to(jnp.ones((5, 3)), (2, 5, 3)))
        ),
    ),
    "the order as p": (
        lambda: jb.losses.pairwise_distances(X, p=1),
        "got 'p'; did you mean order?",
        lambda: jax.eval_shape(lambda: jb.losses.pairwise_distances(X, order=1)),
    ),
    "the order by a name": (
        lambda: jb.losses.pairwise_distances(X, order="euclidean"),
        "write order=2.",
        lambda: jax.eval_shape(lambda: jb.losses.pairwise_distances(X, order=2)),
    ),
    "a linear map without a translation": (
        lambda: jb.layers.affine_grid(jnp.eye(2), (4, 5)),
        "append it, zeros for none: jnp.pad(matrix, [(0, 0)] * (matrix.ndim - 1) + [(0, 1)])",
        lambda: jb.layers.affine_grid(jnp.pad(jnp.eye(2), [(0, 0), (0, 1)]), (4, 5)),
    ),
    "a size in an array": (
        lambda: jb.layers.affine_grid(jnp.eye(2, 3), jnp.array([4, 5])),
        "pass one such as size=(4, 5)",
        lambda: jb.layers.affine_grid(jnp.eye(2, 3), size=(4, 5)),
    ),
    "a mask of PyTorch": (
        lambda: jb.attention(*[jnp.ones((2, 3, 4))] * 3, attn_mask=jnp.ones(2, bool)),
        "did you mean mask?",
        lambda: None,
    ),
    "a mask of transformers": (
        lambda: jb.Attention(2).apply({}, jnp.ones((3, 4)), attention_mask=jnp.ones(3, bool)),
        "did you mean mask?",
        lambda: None,
    ),
    "a score_mod of FlexAttention": (
        lambda: jb.attention(*[jnp.ones((2, 3, 4))] * 3, score_mod=lambda score, b, h, i, j: score),
        "did you mean score_fn?",
        lambda: jax.eval_shape(
            functools.partial(jb.attention, score_fn=lambda scores, offset: scores), *[jnp.ones((2, 3, 4))] * 3
        ),
    ),
    "a key of zeros": (
        lambda: jb.Attention(2, add_zero_attn=True),
        "write attention_fn=functools.partial(attention, sink=jnp.zeros(heads))",
        lambda: jb.Attention(2, attention_fn=functools.partial(jb.attention, sink=jnp.zeros(2))),
    ),
    "several texts to a tokenizer": (
        lambda: text.ByteTokenizer().encode(["a"]),
        "expected a string to encode, got a list; call encode for each text",
        lambda: text.ByteTokenizer().encode("a"),
    ),
    **{
        f"{function.__name__} of data {how}": (
            functools.partial(function, lambda w, x, y: ((x @ w - y) ** 2).sum(), *at, *data, **named),
            f"close over other arguments, as in {function.__name__}(lambda x: f(x, ...), {order})",
            functools.partial(function, lambda w: ((X @ w - X[:, 0]) ** 2).sum(), *at),
        )
        for function, order, at in (
            (jb.hvp, "x, v", (X[0], X[0])),
            (ad.directional_curvature, "x, v", (X[0], X[0])),
            (ad.hessian_operator, "x", (X[0],)),
            (ad.hessian, "x", (X[0],)),
        )
        for how, data, named in (("by position", (X, X[:, 0]), {}), ("by name", (), {"x": X, "y": X[:, 0]}))
    },
    "a number to hvp": (lambda: jb.hvp(jnp.sum, X[0], X[0], 2.0), "; close over other arguments", lambda: None),
    "chunks by position": (
        lambda: ad.hessian(jnp.sum, X[0], 2),
        "pass options by name: hessian(f, x, chunk_size=...)",
        lambda: ad.hessian(jnp.sum, X[0], chunk_size=2),
    ),
    "a split of two arrays": (
        lambda: jb.train_val_test_split(KEY, X, LABELS),
        "put several arrays in one tuple: (x, y)",
        lambda: jb.train_val_test_split(KEY, (X, LABELS), fractions=(0.5, 0.25, 0.25)),
    ),
    "fractions by position": (
        lambda: jb.train_val_test_split(KEY, X, (0.5, 0.25, 0.25)),
        "pass options by name: train_val_test_split(key, arrays, fractions=...)",
        lambda: jb.train_val_test_split(KEY, X, fractions=(0.5, 0.25, 0.25)),
    ),
    **{
        f"{name} elsewhere": (
            functools.partial(function, **{name: one}),
            f"got {name!r}; did you mean {here}?",
            lambda: None,
        )
        for function, name, one, here in (
            (jb.softmax_cross_entropy, "labels", LABELS, "targets"),
            (jb.accuracy, "y_true", LABELS, "targets"),
            (jb.accuracy, "y_pred", SCORES, "predictions"),
            (training.prefetch, "buffer_size", 2, "ahead"),
            (functools.partial(jb.LSTM(4).apply, (), X), "seq_lengths", LABELS, "lengths"),
        )
    },
    "tokens to a recurrent layer": (
        lambda: jb.LSTM(4).init(KEY, LABELS.reshape(2, 2)),
        "for tokens, put jaxblocks.Embedding(...) in front, else convert it with x.astype(jnp.float32)",
        lambda: jb.Serial(jb.Embedding(3, 4), jb.LSTM(4)).init(jax.random.key(1), LABELS.reshape(2, 2)),
    ),
    "classes to a loss of one logit": (
        lambda: jb.sigmoid_cross_entropy(SCORES, np.float32(LABELS)),
        "for classes write softmax_cross_entropy(logits, targets.astype(int)), else make one logit per example",
        lambda: jb.softmax_cross_entropy(SCORES, np.float32(LABELS).astype(int)),
    ),
    "a variance by position": (
        lambda: jb.gaussian_nll(X, X, X + 1),
        "pass options by name: gaussian_nll(predictions, targets, variance=...)",
        lambda: jb.gaussian_nll(X, X, variance=X + 1),
    ),
    "a schedule as optimizer": (
        lambda: jb.train_step(NET, loss, optax.cosine_decay_schedule(0.1, 9)),
        "pass an optimizer with it, such as optax.adam(schedule)",
        lambda: jb.train_step(NET, loss, optax.adam(optax.cosine_decay_schedule(0.1, 9))),
    ),
    "a function that makes schedules as optimizer": (
        lambda: jb.train_step(NET, loss, optax.cosine_decay_schedule),
        "pass an optimizer with it, such as optax.adam(schedule)",
        lambda: None,
    ),
    "a function that makes optimizers": (
        lambda: jb.train_step(NET, loss, optax.adam),
        "got optax.adam itself; call it: optax.adam(...)",
        lambda: jb.train_step(NET, loss, optax.adam(0.1)),
    ),
    **{
        f"{function.__name__} of labels and scores": (
            functools.partial(function, LABELS, SCORES, *more),
            f"the order is {order}",
            functools.partial(function, SCORES, LABELS, *more),
        )
        for function, order, *more in (
            (jb.softmax_cross_entropy, "logits, targets"),
            (jb.perplexity, "logits, targets"),
            (jb.accuracy, "predictions, targets"),
        )
    },
    "a key as noise": (
        lambda: diffusion.add_noise(SCORES, KEY, jnp.zeros(4), diffusion.flow_matching_schedule()),
        "draw eps from it, as in jax.random.normal(key, shape)",
        lambda: None,
    ),
    **{
        f"data in {kind}": (functools.partial(jb.fit, NET, loss, SGD, data, key=KEY, steps=1), repair, lambda: None)
        for kind, data, repair in (
            (
                "an iterator",
                iter([X]),
                "batches are for the step of train_step: for x, y in batches: ts, loss = step(ts, x, y)",
            ),
            ("a loader", Loader(), "batches are for the step of train_step"),
            ("a function", batches_of_rows, "pass two arrays with all rows, such as (np.stack(xs), np.stack(ys))"),
            ("pairs", [(X[0], 1)] * 4, "such as (np.stack(xs), np.stack(ys))"),
            ("a dict", {"x": X, "y": LABELS}, "write (data['x'], data['y'])"),
            ("one array", X, "write (data, y) with the targets y"),
        )
    },
    "a mask of the source": (
        lambda: text.generate(NET, PARAMS, LABELS, key=KEY, steps=1, mask=LABELS > 0),
        "did you mean source_mask?",
        lambda: None,
    ),
    **{
        f"ignore_index={label}": (
            functools.partial(jb.softmax_cross_entropy, SCORES, np.array([1, 2, 1, label]), ignore_index=label),
            f"write where=targets != {label}",
            functools.partial(
                jb.softmax_cross_entropy, SCORES, np.array([1, 2, 1, label]), where=np.array([1, 2, 1, label]) != label
            ),
        )
        for label in (-100, 0, 255)
    },
    "a plan without a point": (
        lambda: ad.jacobian_plan(jnp.sin),
        "write jacobian_plan(f, x)",
        lambda: ad.jacobian_plan(jnp.sin, X[0]),
    ),
    "fewer labels than inputs": (
        lambda: jb.train_step(NET, loss, SGD)(training.init_train_state(KEY, NET, SGD, X), X, LABELS[:3]),
        "x and y with the same number of rows, got x float32 (4, 6) and y int32 (3,); give their first axes one length",
        lambda: None,
    ),
    "a misspelled option of check_layer": (
        lambda: jb.check_layer(NET, X, mixes_batches=True),
        "got 'mixes_batches'; did you mean mixes_batch?",
        lambda: jb.check_layer(NET, X, mixes_batch=True, laws={}),
    ),
    "one example to check_layer": (
        lambda: jb.check_layer(jb.Dense(2), X[0]),
        "pass a batch of examples, such as jnp.stack([x, x])",
        lambda: jb.check_layer(jb.Dense(2), jnp.stack([X[0], X[0]]), laws={}),
    ),
    "a row of a cost table": (
        lambda: jb.cost_table(jnp.sin, 1.0, rows=["grad"]),
        "got 'grad'; did you mean gradient?",
        lambda: jb.cost_table(jnp.sin, 1.0, rows=["gradient"], measure=False),
    ),
    "a batch of more than all": (
        lambda: ad.gradient_noise(lambda w, x: (w * x).sum(), X[0], X, batch_size=8),
        "batch_size to be at most the number of examples, 4, got 8; pass batch_size=4",
        lambda: jax.eval_shape(lambda: ad.gradient_noise(lambda w, x: (w * x).sum(), X[0], X, batch_size=4).trace),
    ),
    "a rate above 1": (lambda: jb.Dropout(1.5), "pass one such as rate=0.5", lambda: jb.Dropout(rate=0.5)),
    "a rate in percent": (lambda: jb.Dropout(50), "pass one such as rate=0.5", lambda: jb.Dropout(rate=0.5)),
    "a number in a string": (lambda: jb.Attention("4"), "pass one such as heads=4", lambda: jb.Attention(heads=4)),
    "a whole number as a float": (lambda: jb.Dense(4.0), "pass one such as features=4", lambda: jb.Dense(features=4)),
    "a broken number": (lambda: jb.Dense(4.5), "pass one such as features=4", lambda: jb.Dense(features=4)),
    "a number below the range": (lambda: jb.Dense(0), "pass one such as features=1", lambda: jb.Dense(features=1)),
    "an integer below all floats": (lambda: jb.Dense(-(10**400)), "features=1", lambda: jb.Dense(features=1)),
    "numbers in a list": (
        lambda: jb.Embedding(9, 4).init(KEY, [1, 2, 3]),
        "write jnp.asarray(x), or jax.ShapeDtypeStruct((1, 2, 3), jnp.float32) for a shape",
        lambda: jb.Embedding(9, 4).init(jax.random.key(1), jnp.asarray([1, 2, 3])),
    ),
    "a flag as a number": (
        lambda: jb.Dropout(0.5).apply((), X, key=jax.random.key(2), train=1),
        "pass one such as train=True",
        lambda: jb.Dropout(0.5).apply((), X, key=jax.random.key(2), train=True),
    ),
    "a flag as a number of NumPy": (
        lambda: jb.Dense(3, use_bias=np.int64(0)),
        "pass one such as use_bias=False",
        lambda: jb.Dense(3, use_bias=False),
    ),
    "the shape of PyTorch's norms": (
        lambda: jb.LayerNorm(normalized_shape=4),
        "leave it out; init reads the size of the input",
        lambda: jb.LayerNorm(),
    ),
    "a net for its params": (
        lambda: jb.paths(NET),
        "write paths(params), with the params of net.init(key, x)",
        lambda: jb.paths(PARAMS),
    ),
    "a module of PyTorch as a layer": (
        lambda: jb.Serial(jb.Dense(3), type("ReLU", (), {"__module__": "torch.nn", "__call__": abs})()),
        "got ReLU of torch; write it with functions and layers of JAX, such as jaxblocks.relu",
        lambda: jb.Serial(jb.Dense(3), jb.relu),
    ),
    "a module with arrays of its own as a layer": (
        lambda: jb.Serial(_Linear(jnp.ones((6, 2))), jb.relu),
        "got _Linear of equinox, whose arrays are no params; write Layer(init, apply) with these arrays as params",
        lambda: jb.Serial(jb.Layer(lambda key, x: jnp.ones((6, 2)), lambda params, x: _Linear(params)(x)), jb.relu),
    ),
    "a module with arrays of its own for a net": (
        lambda: jb.init_train_state(KEY, _Linear(jnp.ones((6, 2))), SGD, X),
        "or lambda x: module(x) for constants",
        lambda: jb.Serial(lambda x: _Linear(jnp.ones((6, 2)))(x), jb.relu),
    ),
    "a module without its arrays as a layer": (
        lambda: jb.Serial(type("Dense", (), {"__module__": "flax.linen", "scope": None, "__call__": abs})(), jb.relu),
        "got Dense of flax, whose arrays are no params",
        lambda: jb.Serial(type("Lambda", (), {"__module__": "equinox.nn", "__call__": abs})(), jb.relu),
    ),
    "a checkpointed layer as a layer": (
        lambda: jb.Serial(jax.checkpoint(jb.Dense(3))),
        "got a transformed layer; pass the layer itself; Repeat(layer, 1, checkpoint='body') recomputes it",
        lambda: jb.Serial(jb.Repeat(jb.Dense(3), 1, checkpoint="body")),
    ),
    "an augmentation without its option": (
        lambda: jb.train_step(NET, loss, SGD, augment=training.random_shift),
        "got a function of (key, images, *, pixels); write augment=functools.partial(random_shift, pixels=...)",
        lambda: jb.train_step(NET, loss, SGD, augment=functools.partial(training.random_shift, pixels=1)),
    ),
    "a loss of other arguments and an option": (
        lambda: jb.train_step(NET, lambda outputs, y, w, *, delta: outputs, SGD),
        "got a function of (outputs, y, w, *, delta); write loss=lambda outputs, y: jaxblocks.mse(outputs, y)",
        lambda: jb.train_step(NET, lambda outputs, y: jb.mse(outputs, y), SGD),
    ),
    "integers for scores": (
        lambda: jb.softmax_cross_entropy(jnp.ones((4, 3), int), LABELS),
        "logits to be a floating-point array, got int32 (4, 3); convert it with logits.astype(jnp.float32)",
        lambda: jb.softmax_cross_entropy(jnp.ones((4, 3), int).astype(jnp.float32), LABELS),
    ),
    "inputs in the place of the rules of weights": (
        lambda: jb.interop.load_torch(NET, {}, X),
        "paths to names of tensors, got float32 (4, 6); the order is net, state_dict, rules, *inputs",
        lambda: None,
    ),
    "labels for distributions": (
        lambda: jb.smooth_labels(LABELS, 0.1),
        "for labels write jaxblocks.one_hot(targets, classes), else convert it with targets.astype(jnp.float32)",
        lambda: jb.smooth_labels(jb.one_hot(LABELS, 3), 0.1),
    ),
    "a free size in a shape": (
        lambda: jb.Dense(3).init(KEY, (-1, 6)),
        "write jax.ShapeDtypeStruct((1, 6), jnp.float32)",
        lambda: jb.Dense(3).init(jax.random.key(1), jax.ShapeDtypeStruct((1, 6), jnp.float32)),
    ),
    "the states of an ensemble for one": (
        lambda: jb.train_step(NET, loss, SGD)(_states(), X, LABELS),
        "expected one ts, got several, stacked; write jax.vmap(step, in_axes=(0, None, None))(ts, x, y)",
        lambda: jax.vmap(jb.train_step(NET, loss, SGD), in_axes=(0, None, None))(_states(), X, LABELS),
    ),
    "a loss of integers": (
        lambda: jb.fit(NET, lambda o, y: (o.argmax(-1) == y).astype(int), SGD, (X, LABELS), key=KEY, steps=1),
        "the loss to be floating-point, got int32 (4,); return a loss of the outputs themselves",
        lambda: None,
    ),
    "a loss without a value": (
        lambda: jb.fit(NET, lambda o, y: None, SGD, (X, LABELS), key=KEY, steps=1),
        "the loss to be an array, or a pair (values, weights)",
        lambda: None,
    ),
    "a loss of a Python number": (
        lambda: jb.fit(NET, lambda o, y: o.mean().item(), SGD, (X, LABELS), key=KEY, steps=1),
        "the loss to be a function of JAX arrays, got one that converts them to NumPy or to numbers",
        lambda: None,
    ),
    "a text for a number": (lambda: jb.laplacian(lambda x: "a", X[0]), "f to return one array, got 'a'", lambda: None),
    "an average before other transformations": (
        lambda: training.init_train_state(KEY, NET, optax.chain(training.ema_params(0.9), SGD), X),
        "write optax.chain(optimizer, ema_params(decay))",
        lambda: training.init_train_state(KEY, NET, optax.chain(SGD, training.ema_params(0.9)), X),
    ),
    "an average in an inner chain": (
        lambda: training.init_train_state(
            KEY, NET, optax.chain(optax.chain(SGD, training.ema_params(0.9)), optax.clip(1.0)), X
        ),
        "write optax.chain(optimizer, ema_params(decay))",
        lambda: None,
    ),
    **{
        f"a range test of {what}": (
            functools.partial(range_test, **wrong),
            repair,
            range_test if what == "infinite rates" else lambda: None,
        )
        for what, wrong, repair in (
            (
                "a constant",
                {"loss": lambda z, y: 0 * z.sum(-1) + 1},
                "goes from 1 to 1 without a fall; check that the loss",
            ),
            (
                "an ascent",
                {"optimizer": lambda rate: optax.chain(optax.sgd(rate), optax.scale(-1.0))},
                "without a fall",
            ),
            ("kfac", {"optimizer": training.kfac}, "write lambda rate: kfac(..., learning_rate=rate)"),
            ("swapped functions", {"loss": optax.sgd, "optimizer": loss}, "the order is net, loss, optimizer, data"),
            ("inputs alone", {"data": X}, "write (data, y) with the targets y"),
            ("a dict", {"data": {"x": X, "y": LABELS}}, "write (data['x'], data['y'])"),
            ("other options", {"epochs": 3}, "data, key, lowest, highest, steps, batch_size, penalty, augment,"),
            ("infinite rates", {"highest": np.inf}, "expected a finite highest, got inf; pass a number such as 10.0"),
            ("a rate as an array", {"highest": jnp.float32(1)}, "pass one such as highest=1"),
        )
    },
    **{
        what: (functools.partial(fitted, **wrong), repair, functools.partial(fitted, **right))
        for what, wrong, repair, right in (
            (
                "inputs without targets",
                {"augment": lambda key, x, y: x},
                "end it with return x, y",
                {"augment": lambda key, x, y: (x, y)},
            ),
            ("an augmentation of nothing", {"augment": lambda key, x, y: None}, "(x, y), got None; end it with", {}),
            ("no new inputs", {"augment": lambda key, x: None}, "end it with return x", {"augment": lambda key, x: x}),
            (
                "a callback that is not called",
                {"callbacks": [training.norm_log]},
                "call it: norm_log()",
                {"optimizer": training.track_norms(SGD), "callbacks": [training.norm_log()]},
            ),
            ("a log that is not called", {"callbacks": [training.csv_log]}, "call it: csv_log(...)", {}),
            (
                "norms kept twice",
                {
                    "optimizer": optax.chain(training.track_norms(SGD), training.track_norms(SGD)),
                    "callbacks": [training.norm_log()],
                },
                "around the whole: track_norms(optax.chain(...))",
                {},
            ),
            (
                "a small last batch in parts",
                {"batch_size": 3, "accumulate": 3, "last_batch": "keep"},
                'got 1 of 4 with last_batch="keep"; pass last_batch="drop"',
                {"batch_size": 3, "accumulate": 3},
            ),
            ("a number that is true", {"accumulate": True}, "pass one such as accumulate=1", {"accumulate": 1}),
        )
    },
    "norms of no optimizer": (
        lambda: training.track_norms(optax.adam),
        "call it: optax.adam(...)",
        lambda: training.track_norms(optax.adam(0.1)),
    ),
    "a mixture of integers": (
        lambda: training.mixup(jax.random.key(1), jnp.ones((4, 8, 8, 1), jnp.uint8), X),
        "x to be floating-point, since it mixes them, got uint8 (4, 8, 8, 1); write x.astype(jnp.float32)",
        lambda: jax.eval_shape(
            lambda key, x: training.mixup(key, x.astype(jnp.float32), X),
            jax.random.key(1),
            jnp.ones((4, 8, 8, 1), jnp.uint8),
        ),
    ),
    **{
        f"{name} to a net that reads none": (
            lambda name=name: NET.apply(PARAMS, X, **{name: KEY}),
            f"leave it out where {read} is not in jaxblocks.side_inputs(net)",
            lambda: NET.apply(PARAMS, X),
        )
        for name, read in (
            ("rngs", "key"),
            ("deterministic", "train"),
            ("key_padding_mask", "mask"),
            ("train", "train"),
            ("key", "key"),
        )
    },
    **{
        f"lengths to {net}": (
            lambda net=net: applied(net, lengths=np.array([2])),
            f"{expected}; pass mask=jnp.arange(time) < lengths[..., None] in its place",
            lambda net=net: applied(net, mask=np.arange(4) < np.array([2])[..., None]),
        )
        for net, expected in (
            (jb.Attention(2), "(mask, segment_ids), got 'lengths'"),
            (jb.Serial(jb.LSTM(4), jb.Attention(2)), "expected mask, since it reads no lengths, got lengths alone"),
        )
    },
    "a key by position and by name": (
        lambda: NET.init(KEY, X, key=KEY),
        "expected each input once, got key by position and by name; leave out one",
        lambda: NET.init(jax.random.key(1), X),
    ),
    "params of a new training state": (
        lambda: jb.init_train_state(KEY, NET, SGD, X, params=PARAMS),
        "write init_train_state(...)._replace(params=params)",
        lambda: jb.init_train_state(jax.random.key(1), NET, SGD, X)._replace(params=PARAMS),
    ),
    "params of a run": (
        lambda: jb.fit(NET, loss, SGD, (X, LABELS), key=KEY, steps=1, params=PARAMS),
        "to fit by ts=init_train_state(key, net, optimizer, x)._replace(params=params)",
        lambda: None,
    ),
    "a graph as arrays": (
        lambda: jb.GCN(4).init(KEY, X, LABELS, LABELS),
        "pass one graph: jaxblocks.Graph(nodes, senders, receivers)",
        lambda: jb.GCN(4).init(jax.random.key(1), jb.Graph(X, LABELS, LABELS)),
    ),
    "an activation of a graph": (
        lambda: jb.Serial(jb.relu).apply(((),), jb.Graph(jnp.asarray(X), LABELS, LABELS)),
        "as in jaxblocks.layers.GraphMapFeatures(node=relu)",
        lambda: jb.layers.GraphMapFeatures(node=jb.relu).init(jax.random.key(1), jb.Graph(X, LABELS, LABELS)),
    ),
    "a net that draws, without a key": (
        lambda: jb.evaluate(DRAWING, (), (), (X, X), {"error": jb.mse}),
        "expected the side input key, got none; pass key=..., or declare key=None",
        lambda: jb.evaluate(DRAWING_IN_TRAINING, (), (), (X, X), {"error": jb.mse}),
    ),
    "a mean as a loss in parts": (
        lambda: jb.train_step(LINE, jb.mse, SGD, accumulate=2)(jb.init_train_state(KEY, LINE, SGD, X), X, X[:, 0]),
        "mse and mae average the last axis, so write y[..., None]",
        lambda: jb.train_step(jb.Dense(1), jb.mse, SGD, accumulate=2)(
            jb.init_train_state(jax.random.key(1), jb.Dense(1), SGD, X), X, X[:, :1]
        ),
    ),
    "lists of numbers": (
        lambda: jb.fit(NET, loss, SGD, (X.tolist(), LABELS.tolist()), key=KEY, steps=1),
        "convert lists with np.asarray",
        lambda: jb.training.minibatches(jax.random.key(2), (np.asarray(X.tolist()), LABELS), 2),
    ),
    **{
        f"what fit returns, in {what}": (
            functools.partial(call, FITTED),
            words,
            repaired,
        )
        for what, (call, words, repaired) in {
            "apply": (
                lambda fitted: NET.apply(fitted, X),
                "in the result of fit: apply(fitted.params, x)",
                lambda: NET.apply(FITTED.params, X),
            ),
            "evaluate": (
                lambda fitted: jb.evaluate(NET, fitted, (X, LABELS), {}),
                "pass fitted.params",
                lambda: jb.evaluate(NET, FITTED.params, FITTED.state, (X, LABELS), {"error": loss}),
            ),
            "state": (
                lambda fitted: jb.predict(NET, PARAMS, fitted, X),
                "pass fitted.state",
                lambda: jb.predict(NET, PARAMS, FITTED.state, X),
            ),
            "count_params": (jb.count_params, "pass fitted.params", lambda: jb.count_params(FITTED.params)),
            "layer_outputs": (
                lambda fitted: jb.layer_outputs(NET, fitted, X),
                "pass fitted.params",
                lambda: jb.layer_outputs(NET, FITTED.params, X),
            ),
            "generate": (
                lambda fitted: text.generate(NET, fitted, LABELS[None], steps=1),
                "pass fitted.params",
                lambda: text.generate(
                    jb.as_layer(lambda x: jb.one_hot(x, 3)), (), LABELS[None], steps=1, temperature=0
                ),
            ),
            "a checkpoint": (
                lambda fitted: jb.save_checkpoint("runs", fitted),
                "pass fitted.params",
                lambda: jb.save_checkpoint(tempfile.mkdtemp(), FITTED.params),
            ),
        }.items()
    },
    "rules in the place of weights": (
        lambda: interop.load_torch(NET, {"*": "*"}, {"0.weight": X, "0.bias": X[0]}, X),
        "got a dict; the order is net, state_dict, rules, *inputs",
        lambda: interop.load_torch(NET, {"0.weight": X[:3], "0.bias": X[0, :3]}, {"*": "*"}, X),
    ),
    "weights in the place of rules": (
        lambda: interop.save_torch(NET, {"*": "*"}, {"kernel": X}),
        "the order is net, params, rules",
        lambda: interop.save_torch(NET, PARAMS, {"*": "*"}),
    ),
    **{
        f"an argument of flax's apply, {name}": (
            lambda name=name: NET.apply(PARAMS, X, **{name: "f"}),
            words,
            lambda: NET["0"].apply(PARAMS[0], X),
        )
        for name, words in {"mutable": "returns the pair (outputs, state)", "method": "net[path].apply"}.items()
    },
    **{
        f"{name} of flax's training state": (
            lambda name=name: getattr(jb.init_train_state(KEY, NET, SGD, X), name),
            f"'TrainState' object has no attribute '{name}'; write {words}",
            lambda: jb.train_step(NET, loss, SGD),
        )
        for name, words in {"apply_gradients": "ts, loss = step(ts, x, y)", "apply_fn": "net.apply(ts.params"}.items()
    },
    "no layers of LoRA": (
        lambda: jb.models.LoRA(jb.Dense(8), rank=2),
        'got none; pass "**/attention/*"',
        lambda: jb.models.LoRA(jb.Serial(a=jb.Dense(8)), "a", rank=2),
    ),
    "kernels as layers of LoRA": (
        lambda: jb.models.LoRA(jb.Serial(a=jb.Dense(8)), "a/kernel"),
        "expected patterns of layers, each with a kernel, got 'a/kernel'; write 'a'",
        lambda: jb.models.LoRA(jb.Serial(a=jb.Dense(8)), "a").init(jax.random.key(1), X),
    ),
    "padding in accuracy": (
        lambda: jb.evaluate(jb.identity, (), (), (X, LABELS - 1), {"accuracy": jb.accuracy}),
        "weights=targets >= 0, or in evaluate return values and weights",
        lambda: None,
    ),
    "one number for two": (
        lambda: training.random_crop(KEY, jnp.ones((4, 8, 8, 1)), size=3),
        "pass one such as size=(3, 3)",
        lambda: training.random_crop(jax.random.key(1), jnp.ones((4, 8, 8, 1)), size=(3, 3)),
    ),
    "several arrays one by one": (
        lambda: jb.minibatches(KEY, X, LABELS, 2),
        "expected batch_size to be an integer >= 1, got int64 (4,); put several arrays in one tuple: (x, y)",
        lambda: jb.minibatches(KEY, (X, LABELS), 2),
    ),
    "flax's name of the flag in init, where apply reads it": (
        lambda: jb.BatchNorm().init(KEY, X, training=True),
        "pass train=True to apply",
        lambda: jb.BatchNorm().apply(*jb.BatchNorm().init(jax.random.key(1), X), X, train=True),
    ),
    "a number of rows that is an array": (
        lambda: jb.minibatches(KEY, X, jnp.float32(2)),
        "expected batch_size to be an integer >= 1, got float32 (); pass one such as batch_size=2",
        lambda: jb.minibatches(KEY, X, 2),
    ),
    "no number beside one that fits both places": (
        lambda: jb.sinusoidal_positions(4, None),
        "expected features to be an integer >= 1, got None; pass one such as features=1",
        lambda: jb.sinusoidal_positions(4, features=2),
    ),
    "a number and a schedule": (
        lambda: diffusion.times(4, diffusion.flow_matching_schedule()),
        "the order is schedule, steps",
        lambda: diffusion.times(diffusion.flow_matching_schedule(), 4),
    ),
    "a number of times": (
        lambda: diffusion.sample_times(KEY, 4),
        "pass one such as shape=(4,)",
        lambda: diffusion.sample_times(jax.random.key(1), shape=(4,)),
    ),
    "the gradient of one example": (
        lambda: jb.per_example_gradients(jax.grad(jnp.dot), jnp.ones(6), X),
        "pass the function itself if loss is its gradient",
        lambda: jb.per_example_gradients(jnp.dot, jnp.ones(6), X),
    ),
    **{
        f"a loss of data to {function.__name__}": (
            lambda function=function: function(jnp.dot, jnp.ones(6)),
            "close over other arguments, as in lambda x: f(x, ...)",
            lambda function=function: function(lambda x: jnp.dot(x, X[0]), jnp.ones(6)),
        )
        for function in (jb.hessian, jb.laplacian)
    },
    "a cost without the data": (
        lambda: jb.cost_table(jnp.dot, jnp.ones(6), measure=False),
        "expected f to take 1 argument, got a function of (a, b, *, precision=None",
        lambda: jb.cost_table(jnp.dot, jnp.ones(6), X[0], measure=False),
    ),
    "a run as a point": (
        lambda: jb.cost_table(lambda x: x, training.History(*3 * [X[0]], {}), measure=False),
        "expected x to hold floating-point arrays, got a History at x; give an array, or close over it",
        lambda: None,
    ),
    "the loss of a record": (
        lambda: training.History(*3 * [X[0]], {}).loss,
        "'History' object has no attribute 'loss'; write history.step_loss, or",
        lambda: training.History(*3 * [X[0]], {}).step_loss,
    ),
    "more rows per batch than there are": (
        lambda: jb.fit(NET, loss, SGD, (X, LABELS), key=KEY, steps=1, batch_size=64),
        "batch_size to be at most 4, the number of rows, got 64; pass batch_size=4",
        lambda: None,
    ),
}


@pytest.mark.parametrize("what", REPAIRS)
def test_repairs(what):
    wrong, repair, right = REPAIRS[what]
    assert repair in sentence(wrong)
    right()


# ---- names ------------------------------------------------------------------------------------


def test_trees_of_users_may_have_the_names_of_ours():
    fitted = collections.namedtuple("Fitted", "slope")(jnp.array(2.0))
    [found] = jb.hvp(lambda tree: tree.slope**3, fitted, fitted)
    assert float(found) == 24 and jb.count_params(fitted) == 1


def test_every_public_name_is_found_from_the_top_level():
    known = names.public_names()
    assert known == {module: tuple(importlib.import_module(f"jaxblocks.{module}").__all__) for module in known}
    public = {module.__name__ for module in PUBLIC_MODULES if module.__name__.count(".") == 1}
    assert {f"jaxblocks.{module}" for module in known} >= public
    for module, inside in known.items():
        for name in inside:
            if not hasattr(jb, name) and name not in {*foreign_names.ELSEWHERE, *foreign_names.NAMES}:
                said = sentence(lambda: getattr(jb, name), AttributeError)  # noqa: B023
                place = re.search(r"it is (jaxblocks\.\w+)\.", said)
                assert place and name in importlib.import_module(place[1]).__all__, (module, said)


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        *((name, "did you mean jaxblocks.gelu?") for name in ("Gelu", "GeLU", "GELU", "gelu_")),
        *((name, "did you mean jaxblocks.selu?") for name in ("Selu", "SELU", "SeLU")),
        ("Layer_Norm", "did you mean jaxblocks.LayerNorm?"),
        ("Dropout_", "did you mean jaxblocks.Dropout?"),
        ("EarlyStopping", "did you mean jaxblocks.training.early_stopping?"),
        ("MSE", "did you mean jaxblocks.mse?"),
        ("Sofmax", "did you mean jaxblocks.softmax?"),
        ("Attentio", "did you mean jaxblocks.Attention?"),
        ("num_params", "did you mean jaxblocks.count_params?"),
        ("freeze", "did you mean jaxblocks.Frozen?"),
        ("PRNGKey", "use jax.random.key"),
        ("dense", "did you mean jaxblocks.Dense?"),
        ("max_pool2d", "did you mean jaxblocks.max_pool?"),
        ("LayerNormalisation", "did you mean jaxblocks.LayerNorm?"),
        ("jacobain", "did you mean jaxblocks.jacobian?"),
        ("bce", "did you mean jaxblocks.sigmoid_cross_entropy?"),
        ("cond", "use jax.lax.cond"),
        ("relu6", "use jax.nn.relu6"),
        ("ctc_loss", "use optax.ctc_loss"),
        ("AdamW", "use optax.adamw"),
        ("focal_loss", "use optax.sigmoid_focal_loss"),
        ("EMA", "use jaxblocks.training.ema_params"),
        ("AveragedModel", "use jaxblocks.training.ema_params"),
        ("lanczos", "it is jaxblocks.ad.lanczos"),
        ("ddim", "it is jaxblocks.diffusion.ddim"),
        ("no_grad", "use jax.lax.stop_gradient"),
        ("f1_score", "use jaxblocks.precision_recall_f1"),
        ("load_state_dict", "use jaxblocks.interop.load_torch"),
        ("save", "did you mean jaxblocks.save_checkpoint?"),
        ("load", "did you mean jaxblocks.load_checkpoint?"),
        ("restore_checkpoint", "did you mean jaxblocks.load_checkpoint?"),
        ("CheckpointManager", "use jaxblocks.training.checkpoints"),
        ("Lambda", "did you mean jaxblocks.as_layer?"),
        ("load_digits", "use jaxblocks.datasets.digits"),
        ("load_iris", "use sklearn.datasets.load_iris"),
        ("Remat", "use jaxblocks.Repeat"),
        ("MoE", "use jaxblocks.layers.MixtureOfExperts"),
        ("KVCache", "use jaxblocks.layers.CachedAttention"),
        ("hutchinson", "use jaxblocks.ad.estimate_trace"),
        ("dp_sgd", "use jaxblocks.ad.private_gradients"),
        ("tabulate", "did you mean jaxblocks.summary?"),
        ("vhp", "did you mean jaxblocks.hvp?"),
        ("Permute", "use jax.numpy.transpose"),
        ("AdaptiveAvgPool2d", "use jaxblocks.GlobalAvgPool or jaxblocks.layers.adaptive_avg_pool"),
        ("LRFinder", "use jaxblocks.training.find_learning_rate"),
    ],
)
def test_names_from_elsewhere(wrong, meant):
    assert (
        sentence(lambda: getattr(jb, wrong), AttributeError)
        == f"module 'jaxblocks' has no attribute {wrong!r}; {meant}"
    )
    path = re.search(r"(?:jax|jaxblocks|optax|sklearn)\.[\w.]+", meant)
    assert path and pydoc.locate(path[0]) is not None


@pytest.mark.parametrize("module", sorted({*names.public_names()} - {"backend", "core", "initializers"}))
def test_names_that_a_module_does_not_have(module):
    loaded = importlib.import_module(f"jaxblocks.{module}")
    said = sentence(lambda: loaded.Conv2d, AttributeError)
    assert said == f"module 'jaxblocks.{module}' has no attribute 'Conv2d'; did you mean jaxblocks.Conv?"
    assert not hasattr(loaded, "__wrapped__")


@pytest.mark.parametrize("name", " ".join(misuse._METHODS).split())
def test_methods_of_layers_in_other_libraries_have_a_repair(name):
    assert f"'Layer' object has no attribute '{name}'; " in sentence(lambda: getattr(NET, name), AttributeError)
    assert sentence(lambda: NET.nothing, AttributeError) == "'Layer' object has no attribute 'nothing'"


def test_a_composed_layer_is_built_by_its_expression():
    net, images = eval(foreign_names.ELSEWHERE["SeparableConv"], {"jaxblocks": jb}), jnp.ones((2, 8, 8, 3))
    assert jax.eval_shape(net.apply, jax.eval_shape(net.init, KEY, images), images).ndim == 4


# ---- values, files and batches ----------------------------------------------------------------


def test_a_name_of_few_letters_has_no_likely_meaning():
    for name in ("", "_", "xy"):
        said = sentence(lambda name=name: getattr(jb, name), AttributeError)
        assert said == f"module 'jaxblocks' has no attribute {name!r}"


def test_probabilities_as_logits_are_warned_of_once():
    values._WARNED.clear()
    p = jax.nn.softmax(jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)), jnp.float32))
    for student, teacher in ((jnp.log(p), p), (p, jnp.log(p))):
        with pytest.warns(UserWarning, match="distillation_loss expected logits, got rows >= 0 with sum 1"):
            jb.distillation_loss(student, teacher)
        values._WARNED.clear()
    for function in (jb.softmax_cross_entropy, jb.perplexity):
        with pytest.warns(UserWarning, match=f"{function.__name__} expected logits, got rows >= 0 with sum 1") as said:
            function(p, LABELS)
        assert said[0].filename == __file__
        values._WARNED.discard(function.__name__)
        with pytest.warns(UserWarning, match="expected logits"):  # also of code without a module
            exec("function(p, labels)", {"function": function, "p": p, "labels": LABELS})
        with warnings.catch_warnings(action="error"):
            jax.grad(lambda p: function(p, LABELS).mean())(p)  # noqa: B023
    values._WARNED.clear()
    with warnings.catch_warnings(action="error"):
        for scores in (p[:1], jnp.eye(4)[:, :3], jnp.log(p), 2 * p, p.at[0].add(0.1)):
            jb.softmax_cross_entropy(scores, LABELS[: len(scores)])
        jax.jit(jb.softmax_cross_entropy)(p, LABELS)
    assert not values._WARNED
    beyond = np.full((2, 2), 1e300)  # no warning of NumPy, which is an error in tests
    values.warn_of_probabilities(beyond)


def test_tracers_of_other_libraries_are_arrays_of_jax():
    own = type("OwnTracer", (jax.core.Tracer,), {"__module__": "other", "numpy": None})
    assert foreign_arrays._way(own) == ""


def test_paths_begin_at_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    jb.save_checkpoint("~/run", {"w": jnp.ones(2)})
    assert jb.load_checkpoint("~/run", {"w": jnp.zeros(2)})["w"].sum() == 2
    interop.write_tensors("~/weights.safetensors", {"w": X})
    assert interop.read_tensors("~/weights.safetensors")["w"].shape == X.shape
    fitted = {"key": KEY, "steps": 1, "progress": False, "callbacks": [training.csv_log("~/log/loss.csv")]}
    jb.fit(NET, loss, SGD, (X, LABELS), checkpoint_dir="~/fit", **fitted)
    assert {path.name for path in tmp_path.iterdir()} >= {"run", "weights.safetensors", "log", "fit"}
    assert not (tmp_path / "~").exists()


def test_one_function_makes_paths_of_what_users_pass():
    root = pathlib.Path(jb.__file__).parent
    others = {"checks/system.py", "checks/names.py", "datasets.py", "ad/__main__.py"}
    for file in root.rglob("*.py"):
        lines = [line for line in file.read_text().splitlines() if not re.match(r"\s*(>>>|\.\.\.) ", line)]
        makes_paths = re.search(r"(?<![\w.])Path\((?!\))|expanduser", "\n".join(lines))
        assert not makes_paths or file.relative_to(root).as_posix() in others, f"{file}: use as_path"


@pytest.mark.usefixtures("as_a_user_has_it")
def test_the_default_batch_is_what_is_there_and_the_last_one_may_be_kept():
    run = functools.partial(jb.fit, NET, loss, SGD, (X, LABELS), key=KEY, progress=False)
    assert run(epochs=2).ts.step == 2  # all four rows
    assert run(epochs=2, batch_size=3).ts.step == 2  # a row is left out in each epoch
    kept = run(epochs=2, batch_size=3, last_batch="keep")
    ts, step = training.init_train_state(KEY, NET, SGD, X[:3]), training.train_step(NET, loss, SGD)
    for x, y in training.minibatches(KEY, (X, LABELS), 3, epochs=2, last_batch="keep"):
        ts, _ = step(ts, x, y)
    assert kept.ts.step == 4 and jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), kept.params, ts.params))
    of_device = jb.fit(NET, loss, SGD, (jnp.asarray(X), jnp.asarray(LABELS)), key=KEY, progress=False, epochs=2,
                       batch_size=3, last_batch="keep")  # fmt: skip
    assert of_device.ts.step == 4
    np.testing.assert_allclose(of_device.params[0]["kernel"], ts.params[0]["kernel"], rtol=1e-6, atol=1e-6)
    half = run(steps=3, batch_size=3, last_batch="keep")  # and the run continues inside of an epoch
    rest = run(epochs=2, batch_size=3, last_batch="keep", ts=half.ts)
    assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), kept.ts.params, rest.ts.params))


STEP_X, STEP_Y = np.ones((4, 3), np.float32), np.arange(4) % 2


def on_images_without_channels():
    """A step of a net that takes the last three axes for those of an image."""
    net, optimizer, x = jb.Serial(jb.Flatten(2), jb.Dense(2)), optax.sgd(0.1), np.ones((4, 3, 3), np.float32)
    ts = jb.init_train_state(jax.random.key(0), net, optimizer, x)
    return jb.train_step(net, jb.softmax_cross_entropy, optimizer)(ts, x, STEP_Y)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda step, ts, net: step(step(ts, STEP_X, STEP_Y)[1], STEP_X, STEP_Y), r"write ts, loss = step\(ts, x, y\)"),
        (lambda step, ts, net: step(ts, (STEP_X, STEP_Y)), r"got 2 arguments; write step\(ts, \*batch\)"),
        (lambda step, ts, net: net.apply(ts.params, ts.state, STEP_X, True), "pass a flag by name, such as train=True"),
        (
            lambda step, ts, net: jb.softmax_cross_entropy(net.apply(ts.params, ts.state, STEP_X, train=True), STEP_Y),
            r"write logits, state = net.apply\(...\) for the outputs of a net with state",
        ),
        (lambda *_: on_images_without_channels(), r"write x\[..., None\] for images without an axis of channels"),
    ],
)
def test_mistakes_of_a_first_step_have_a_repair(call, words, sentences):
    net, optimizer = jb.Serial(jb.Dense(2), jb.BatchNorm()), optax.sgd(0.1)
    ts = jb.init_train_state(jax.random.key(0), net, optimizer, STEP_X)
    with pytest.raises((TypeError, ValueError), match=words):
        call(jb.train_step(net, jb.softmax_cross_entropy, optimizer), ts, net)
