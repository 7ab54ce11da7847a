"""All laws for all layers of the zoo, and each layer against its reference."""

import gc
import inspect
from typing import Any, TypeVar, get_args, get_origin

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Var
from jaxtyping import Array, Float
from specimen import Specimen
from zoo import DISTINCT, SIMPLE, ZOO, Center, Noise

import jaxblocks
from jaxblocks import Layer, StatefulLayer, layers, relu, stateful
from jaxblocks.checks import check_params
from jaxblocks.checks.annotations import union_members
from jaxblocks.core import builder
from jaxblocks.core.lifting import declared_by
from jaxblocks.core.pairs import layer_name
from jaxblocks.testing import LAWS, check_layer


@pytest.fixture(autouse=True)
def _objects_of_the_test():
    """Exclude older objects from garbage collection: the check for leaks collects several times."""
    gc.freeze()


def is_trained(layer):
    """Whether a layer has a training mode."""
    return "train" in jaxblocks.side_inputs(layer)


def side_of_init(row):
    """The side inputs of a row that its ``init`` reads."""
    return {name: value for name, value in row.side.items() if name in declared_by(row.layer.init)}


@pytest.mark.parametrize("name", DISTINCT)
def test_layer_satisfies_all_laws(name):
    """In training, if the layer has a training mode and the row does not say otherwise.

    A layer that is not repeatable differs under ``jit`` too, so that one eager call is enough. The check for leaks
    comes first, since it collects the garbage of the others. A composition has the derivatives and the scans of the
    layers inside; `Center` and `Noise` have all laws in another test.
    """
    row = ZOO[name]
    training = {"train": True} if is_trained(row.layer) else {}
    without = {"repeatable"} if name in SIMPLE else {"repeatable", "derivatives_agree", "scan_and_remat"}
    laws = {law: LAWS[law] for law in ("no_leaks", *LAWS) if law not in without}
    check_layer(row.layer, *row.inputs(), mixes_batch=row.mixes_batch, laws=laws, **training | row.side)


@pytest.mark.parametrize("name", [name for name in ZOO if name not in DISTINCT or is_trained(ZOO[name].layer)])
def test_variants_keep_the_dtype(name):
    """The other rows, and evaluation where the law above is checked in training."""
    row = ZOO[name]
    laws = {"dtype_kept": LAWS["dtype_kept"]}
    check_layer(row.layer, *row.inputs(), mixes_batch=row.mixes_batch, laws=laws, **row.side)


@pytest.mark.parametrize("name", ZOO)
def test_layer_computes_its_formula(name):
    """`apply` equals the reference, the formula in NumPy, in float64."""
    row, rng = ZOO[name], np.random.default_rng(1)
    net, side = stateful(row.layer), side_of_init(row)

    def draw(p):  # params with one axis may have to be positive
        assert np.issubdtype(p.dtype, np.floating)
        return rng.normal(0.1, 0.3, p.shape) if len(p.shape) > 1 else rng.uniform(0.1, 0.7, p.shape)

    def run(params, inputs):
        _, state = net.init(jax.random.key(0), *inputs, **side)
        keys = {"key": jax.random.key(1)} if "key" in jaxblocks.side_inputs(row.layer) else {}
        return net.apply(params, state, *inputs, **row.side, **keys)[0]

    with jax.enable_x64(True):
        inputs = [np.asarray(x, np.float64 if x.dtype == jnp.float32 else x.dtype) for x in row.inputs()]
        params = jax.tree.map(draw, jax.eval_shape(lambda *x: net.init(jax.random.key(0), *x, **side)[0], *inputs))
        found = jax.jit(run)(params, inputs)
    for y, expected in zip(jax.tree.leaves(found), jax.tree.leaves(row.reference(params, *inputs)), strict=True):
        assert y.dtype == (np.float64 if jnp.issubdtype(y.dtype, jnp.floating) else y.dtype)
        np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-12)


def test_init_makes_separate_arrays():
    """A buffer in two leaves of params and state could not be donated."""
    rows = ZOO | {"ConvLSTMCell alone": Specimen("", layers.ConvLSTMCell(3, 3), ((4, 6, 2),), None)}
    shared = []
    for name, row in rows.items():
        init = lambda *x, row=row: row.layer.init(jax.random.key(0), *x, **side_of_init(row))
        leaves = [v for v in jax.make_jaxpr(init)(*row.inputs()).jaxpr.outvars if isinstance(v, Var)]
        shared += [name] if len({*leaves}) < len(leaves) else []
    assert shared == []


@pytest.mark.parametrize("name", [name for name in DISTINCT if layer_name(ZOO[name].layer) == ZOO[name].public])
def test_layer_returns_what_its_builder_says(name):
    """``-> Layer`` is one array; for all else the builder says ``Layer[...]``."""
    row = ZOO[name]
    builder = inspect.unwrap(getattr(layers, row.public))
    pairs = union_members(inspect.signature(builder).return_annotation)
    returned = [one for pair in pairs for kind in get_args(pair) or [Array] for one in union_members(kind)]

    def outputs(key, inputs):
        net = stateful(row.layer)
        return net.apply(*net.init(key, *inputs, **side_of_init(row)), *inputs, **row.side)[0]

    found = jax.eval_shape(outputs, jax.random.key(0), row.inputs())
    kind = Array if isinstance(found, jax.ShapeDtypeStruct) else type(found)
    # A type variable, or Any behind overloads, is the type of a layer or function inside.
    inside = any(one is Any or isinstance(one, TypeVar) for one in returned)
    assert inside or kind in [get_origin(one) or one for one in returned], (kind, returned)


def test_every_public_layer_has_a_row():
    """Each builder of `jaxblocks.layers` (a callable in CamelCase that is not a class) has a row in the zoo."""
    public = {name: getattr(layers, name) for name in layers.__all__ if name[0].isupper()}
    builders = {name for name, value in public.items() if callable(value) and not isinstance(value, type)}
    assert builders == {row.public for row in ZOO.values()} - {""}


# ---- each law rejects a layer that breaks it --------------------------------------------------


def no_params(key, x):
    return ()


def mixing(params, x):
    return x - jnp.broadcast_to(x.mean(0, keepdims=True), x.shape)


def widening(params, x):
    return x.astype(jnp.float32)


def misstated(params, x: Float[Array, "*batch features"]) -> Float[Array, "*batch features 1"]:
    return x


def dropping_batch(params, x):
    return x[0]


def reusing(params, x, *, key=None):
    signs = jax.random.rademacher(key, x.shape) * jax.random.rademacher(key, x.shape)
    return x * signs.astype(x.dtype)


def swallowing(params, x, **side):
    return x


def drifting(params, state, x):
    return x, state.astype(jnp.float32)


def wrong_derivative(params, x):
    @jax.custom_jvp
    def double(x):
        return 2 * x

    double.defjvp(lambda primals, tangents: (2 * primals[0], 3 * tangents[0]))
    return double(x)


def exploding(params, x):
    return jnp.exp(x)


def reading_values(key, x):
    return {"scale": jnp.ones(x.shape[-1:], jnp.float32) * x.mean()}


def wrong_axis(key, x):
    return {"scale": jnp.ones(x.shape[:1], jnp.float32)}


def scaling(params, x):
    return x * jnp.broadcast_to(params["scale"][..., None], x.shape).astype(x.dtype)


def counting(params, x, calls=[0]):  # noqa: B006  (hidden state breaks the law)
    calls[0] += 1
    return x + jnp.asarray(calls[0], x.dtype)


def leaking(params, x, kept=[]):  # noqa: B006  (a value that is kept breaks the law)
    kept.append(x)
    return x + kept[0] if isinstance(kept[0], float) else x


def updating_in_place(params, x):
    return x * params["scale"].at[0].set(0.0).sum().astype(x.dtype)


def scaled_by_one(key, x):
    return {"scale": jnp.ones(3, jnp.float32)}


def unchecked(params, x):
    return x * jnp.broadcast_to(params["scale"], x.shape).astype(x.dtype)


def flattening(params, x):
    return x.reshape(*x.shape[:-1], -1)


@builder
def Growing(calls=[]):  # noqa: B006  (hidden state breaks the law)
    calls.append(None)
    factor = float(len(calls))
    return Layer(no_params, lambda params, x: x * jnp.asarray(factor, x.dtype))


ROWS = jnp.asarray([[0.3, -1.2], [0.7, 0.1], [1.9, 0.4]], jnp.float32)

BROKEN = {
    "no_leaks": Layer(no_params, leaking),
    "independence": Layer(no_params, mixing),
    "vmap_is_batch": Layer(no_params, mixing),
    "dtype_kept": Layer(no_params, widening),
    "shapes_as_stated": Layer(no_params, misstated),
    "key_used_once": Layer(no_params, reusing),
    "unknown_side_input_rejected": Layer(no_params, swallowing),
    "no_retrace": StatefulLayer(lambda key, x: ((), jnp.zeros((), jnp.int32)), drifting),
    "derivatives_agree": Layer(no_params, wrong_derivative),
    "finite_gradients": Layer(no_params, exploding),
    "numpy_params": Layer(scaled_by_one, updating_in_place),
    "wrong_params_rejected": Layer(lambda key, x: {"scale": jnp.ones(x.shape[-1:], jnp.float32)}, unchecked),
    "empty_batch": Layer(no_params, flattening),
    "init_reads_shapes": Layer(reading_values, scaling),
    "jit_is_eager": Layer(no_params, counting),
    "scan_and_remat": Layer(no_params, counting),
    "repeatable": Layer(no_params, counting),
    "repr_builds_the_layer": Growing(),
    "copies_are_equal": Growing(),
}


@pytest.mark.parametrize("law", BROKEN)
def test_broken_laws_are_named(law):
    """check_layer names the law that a broken layer breaks."""
    with pytest.raises(AssertionError, match=f"- {law}: "):
        check_layer(BROKEN[law], ROWS, laws={law: LAWS[law]})


@pytest.mark.parametrize("function", [relu, jnp.tanh, jax.jit(relu), lambda x: 2 * x])
def test_functions_are_layers(function):
    """Also those that are printed by their name; that of a function which jit returns is another object."""
    law = "repr_builds_the_layer"
    check_layer(function, ROWS, laws={law: LAWS[law]})


def test_mixing_of_examples_is_detected_in_a_batch_of_equal_rows():
    with pytest.raises(AssertionError, match="- independence: "):
        check_layer(BROKEN["independence"], jnp.ones((3, 2)), laws={"independence": LAWS["independence"]})


def test_mixing_of_examples_in_imaginary_parts_is_detected():
    def mixing_imaginary_parts(params, x):
        return jax.lax.complex(x, x - jnp.broadcast_to(x.mean(0, keepdims=True), x.shape))

    with pytest.raises(AssertionError, match="- independence: "):
        check_layer(Layer(no_params, mixing_imaginary_parts), ROWS, laws={"independence": LAWS["independence"]})


def test_infinite_outputs_are_compared_by_equality():
    masked = Layer(no_params, lambda params, x: jnp.where(x > 0, x, jnp.full_like(x, -jnp.inf)))
    names = "repeatable", "jit_is_eager", "independence"
    assert set(names) <= set(check_layer(masked, ROWS, laws={name: LAWS[name] for name in names}))
    calls = []

    def sometimes_infinite(params, x):
        calls.append(None)
        return jnp.where(x > 0, x, jnp.full_like(x, -jnp.inf if len(calls) % 2 else jnp.inf))

    with pytest.raises(AssertionError, match="- repeatable: "):
        check_layer(Layer(no_params, sometimes_infinite), ROWS, laws={"repeatable": LAWS["repeatable"]})


@pytest.mark.parametrize("apply", [lambda params, x: x.argmax(-1), lambda params, x: jax.lax.complex(x, x)])
def test_outputs_without_gradient_leak_nothing(apply):
    assert "no_leaks" in check_layer(Layer(no_params, apply), ROWS, laws={"no_leaks": LAWS["no_leaks"]})


def test_side_inputs_by_position_are_found():
    law = "unknown_side_input_rejected"
    with pytest.raises(AssertionError, match=r"takes train by position; write it after a \*: apply"):
        check_layer(Layer(no_params, lambda params, x, train=False: x), ROWS, laws={law: LAWS[law]}, train=True)


def test_every_law_can_fail():
    assert set(BROKEN) == set(LAWS)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (Layer(no_params, dropping_batch), "keep the leading axes"),
        (Layer(wrong_axis, scaling), "trailing axes only"),
    ],
)
def test_errors_describe_shapes(layer, words):
    with pytest.raises(AssertionError, match=words):
        check_layer(layer, jnp.arange(6.0).reshape(3, 2))


def test_check_layer_passes_good_layers_and_names_its_laws():
    assert set(LAWS) - set(check_layer(Noise(), jnp.ones((3, 2)), train=True)) == {"wrong_params_rejected"}
    assert set(LAWS) - set(check_layer(Center(), jnp.ones((3, 2)), train=True, mixes_batch=True)) == {
        "wrong_params_rejected",  # neither layer has params
        "vmap_is_batch",
        "independence",
        "empty_batch",
    }


def test_params_may_be_one_array():
    def scale(params, x):
        check_params({"scale": params}, scale=(x.shape[-1],))
        return x * jnp.broadcast_to(params, x.shape).astype(x.dtype)

    layer = Layer(lambda key, x: jnp.ones(x.shape[-1:], jnp.float32), scale)
    assert set(check_layer(layer, ROWS)) >= {"wrong_params_rejected", "numpy_params"}


@pytest.mark.parametrize("train", [False, True])
def test_cells_with_noise_are_checked(train):
    """They read a key for the sequence; their carries have an axis for the examples."""
    cell = layers.RecurrentDropout(jaxblocks.LSTMCell(3), 0.25)
    laws = {name: LAWS[name] for name in ("repeatable", "vmap_is_batch", "empty_batch", "key_used_once")}
    assert {"empty_batch", "key_used_once", "repeatable"} <= set(
        check_layer(cell, jnp.ones((4, 2)), laws=laws, train=train)
    )
    report = jaxblocks.inspection.variance_report(cell, jnp.ones((4, 2)))
    assert report.rows[-1].variance > 0


def test_side_inputs_are_mapped_with_their_examples():
    """A layer that uses the side input of another example breaks a law."""

    def shifted(params, x, *, time):
        return x * jnp.broadcast_to(jnp.roll(time, 1)[..., None], x.shape)

    def right(params, x, *, time):
        return x * jnp.broadcast_to(time[..., None], x.shape)

    x, time = jnp.ones((3, 2)), jnp.arange(1.0, 4.0)
    with pytest.raises(AssertionError, match="- vmap_is_batch: "):
        check_layer(Layer(no_params, shifted), x, time=time)
    assert "vmap_is_batch" in check_layer(Layer(no_params, right), x, time=time)


def test_hidden_state_is_reported_once():
    with pytest.raises(AssertionError, match=r"violates 1 of \d+ laws:\n- repeatable: two equal calls"):
        check_layer(Layer(no_params, counting), jnp.ones((3, 2)))


def test_an_error_in_every_law_is_reported_once():
    def failing(params, x):
        raise ValueError("no")

    with pytest.raises(AssertionError) as error:
        check_layer(
            Layer(no_params, failing), jnp.ones((3, 2)), laws={n: LAWS[n] for n in ("jit_is_eager", "no_leaks")}
        )
    assert str(error.value).count("ValueError: no") == 1


def test_computing_in_single_precision_is_named():
    def single(params, x):
        return jnp.sin(x.astype(jnp.float32)).astype(x.dtype)

    with pytest.raises(AssertionError, match="only the precision of float32"):
        check_layer(Layer(no_params, single), ROWS, laws={"derivatives_agree": LAWS["derivatives_agree"]})


def test_an_uncalled_builder_is_rejected():
    def Scale():
        return Layer(no_params, scaling)

    with pytest.raises(TypeError, match=r"call it: Scale\(...\)"):
        check_layer(Scale, jnp.ones((3, 2)))


@pytest.mark.parametrize("inputs", [(), (jnp.ones(()),), (jnp.ones((1, 2)),), ([1.0, 2.0],)])
def test_check_layer_needs_a_batch(inputs):
    with pytest.raises(ValueError, match="leading batch axis of at least 2"):
        check_layer(Noise(), *inputs)


def test_annotations_of_functions_and_of_stateful_layers_are_checked():
    def function(x: Float[Array, "batch features"]) -> Float[Array, " batch"]:
        return x

    def apply(params, state, x: Float[Array, "batch features"]) -> tuple[Float[Array, " batch"], tuple]:
        return x, state

    for wrong in (function, StatefulLayer(lambda key, x: ((), ()), apply)):
        with pytest.raises(AssertionError, match="the output is annotated"):
            check_layer(wrong, ROWS, laws={"shapes_as_stated": LAWS["shapes_as_stated"]})


def test_a_stateful_layer_must_return_a_pair():
    for wrong, words in (
        (StatefulLayer(lambda key, x: ((), ()), lambda params, state, x: x), r"to return \(outputs, state\)"),
        (
            StatefulLayer(lambda key, x: jnp.ones(3), lambda params, state, x: (x, state)),
            r"to return \(params, state\)",
        ),
        (StatefulLayer(lambda key, x: ((), 0), lambda params, state, x: (x, state)), "init made 0 among"),
    ):
        with pytest.raises(AssertionError, match=words):
            check_layer(wrong, ROWS)


def test_implicit_promotion_is_reported_with_the_cast_to_write():
    layer = Layer(lambda key, x: {"w": jnp.ones((2, 2))}, lambda params, x: x @ params["w"])
    with pytest.raises(AssertionError, match=r"bfloat16.*astype\(x.dtype\)"):
        check_layer(layer, ROWS)

    def apply(params, x):
        check_params(params, w=(2, 2))
        return x @ params["w"].astype(x.dtype)

    assert "dtype_kept" in check_layer(Layer(layer.init, apply), ROWS)
