"""The summary and the outputs of layers, from the jaxpr, against counts by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import DISTINCT, ZOO, Center, Noise, TanhCell

from jaxblocks import (
    MLP,
    Attention,
    Conv,
    Dense,
    DepthwiseConv,
    Layer,
    Parallel,
    Recurrent,
    Repeat,
    Residual,
    Serial,
    SpectralNorm,
    WeightNorm,
    Wire,
    count_params,
    layer_outputs,
    relu,
    stateful,
    summary,
)
from jaxblocks.models import LoRA

X = jax.ShapeDtypeStruct((8, 5), jnp.float32)


def test_rows_have_shapes_params_and_operations():
    """A Dense of 5 to 3 on 8 rows: 8 * 3 * (2 * 5) for the product, 8 * 3 for the bias."""
    table = summary(Serial(hidden=Dense(3), activation=relu), X)
    row = table["hidden"]
    assert (row.kind, row.name, row.params, row.count.flops) == ("Dense", "hidden", 18, 240 + 24)
    assert row.outputs == (jax.ShapeDtypeStruct((8, 3), jnp.float32),)
    assert table["activation"].count.additions == 24
    total = table.rows[-1]
    assert (total.kind, total.params, total.count.flops) == ("Serial", 18, 264 + 24)


def test_layers_inside_a_repeat_are_counted_once_per_iteration():
    once, often = summary(Serial(Dense(5)), X), summary(Serial(Repeat(Serial(Dense(5)), 7)), X)
    inside = often["0/0"]
    assert inside.count.flops == 7 * once["0"].count.flops
    assert inside.params == 7 * 30
    assert inside.outputs == (jax.ShapeDtypeStruct((8, 5), jnp.float32),)


def test_each_layer_is_indented_below_the_layer_that_holds_it():
    """The body of a Repeat is below it, and its children below the body; next to the Repeat the old indent returns."""
    block = Residual(Serial(Dense(5), relu))
    table = str(summary(Serial(first=Dense(5), deep=Repeat(block, 2), last=Dense(5)), X))
    labels = [line.partition("  float32")[0].rstrip() for line in table.splitlines()[2:-3]]
    assert labels == [
        "first Dense",
        "deep Repeat",
        "  Residual",
        "    0 Serial",
        "      0 Dense",
        "      1 relu",
        "last Dense",
    ]


def test_a_recurrent_net_is_counted_once_per_step():
    """20 steps of h W: the products alone have 20 * 8 * 3 * 2 * (5 + 3) operations."""
    x = jax.ShapeDtypeStruct((8, 20, 5), jnp.float32)
    row = summary(Serial(Recurrent(TanhCell(3))), x)["0"]
    products = 20 * 8 * 3 * (5 + 3)
    assert row.count.multiplications == products
    assert row.count.transcendentals == 20 * 8 * 3


def test_layers_without_operations_are_listed():
    table = summary(Serial(Dense(3), Noise(), lambda x: x), X)
    assert [row.kind for row in table.rows] == ["Dense", "Noise", "lambda", "Serial"]
    assert table["1"].count.flops == 0


def test_shared_layers_are_listed_once_and_counted_twice():
    shared, single = Wire(lambda f, x: f.a(f.a(x)), a=Dense(5)), Wire(lambda f, x: f.a(x), a=Dense(5))
    row = summary(shared, X)["a"]
    assert row.params == 30
    assert row.count.flops == 2 * summary(single, X)["a"].count.flops
    assert len(row.outputs) == 2
    assert "float32 (8, 5) x 2" in str(summary(shared, X))


def test_the_shares_of_parallel_layers_add_up():
    table = summary(Parallel(Dense(3), Dense(4)), X)
    assert table["0"].count.flops + table["1"].count.flops == table.rows[-1].count.flops


def test_counts_depend_on_side_inputs():
    net = Serial(Dense(3), Center())
    assert summary(net, X, train=True)["1"].count.flops > summary(net, X)["1"].count.flops
    with pytest.raises(TypeError, match="expected side inputs among .* got 'color'"):
        summary(net, X, color=True)


@pytest.mark.parametrize(
    ("net", "shape", "expected"),
    [
        (MLP(5, 1), (8, 2), (2, 1, 5)),  # the lecture's 2-5-1
        (MLP(5, 10, 5, 2), (2,), (4, 3, 10)),
        (Dense(3), (8, 2), (1, 0, 0)),
        (relu, (8, 2), (0, 0, 0)),
        (
            Serial(Parallel(Dense(4), Serial(Dense(7), relu, Dense(2))), lambda a, b: a.sum() + b, Dense(1)),
            (3,),
            (3, 2, 7),
        ),
        (Serial(Residual(Dense(4)), Repeat(Residual(Dense(6), relu, Dense(4)), 5), Dense(1)), (4,), (12, 11, 6)),
        (Serial(Recurrent(TanhCell(3)), Dense(2)), (8, 5), (2, 1, 3)),
        (Serial(Conv(6, (3,)), relu, DepthwiseConv((3,), padding="same"), Dense(2)), (9, 4), (3, 2, 6)),
        (Serial(Attention(heads=2), WeightNorm(Dense(8)), Dense(3)), (5, 4), (4, 3, 8)),  # values, outputs, two more
        # A fixed matrix is no kernel.
        (Serial(lambda x: x @ jnp.ones((4, 9)), Dense(3), relu, Dense(2)), (8, 4), (2, 1, 3)),
        (Serial(Layer(lambda key, x: jnp.ones((7, 4)), lambda w, x: w @ x), Dense(3)), (4, 8), (2, 1, 7)),
    ],
    ids=lambda value: str(value)[:20],
)
def test_layers_in_sequence_and_width(net, shape, expected):
    table = summary(net, jax.ShapeDtypeStruct(shape, jnp.float32))
    assert (table.n_layers, table.n_hidden, table.width) == expected
    hidden = f", {expected[1]} hidden, of width {expected[2]}" if expected[1] else ""
    assert (f"\nlayers with a kernel in sequence: {expected[0]}{hidden}\n" in str(table)) == (expected[0] > 0)


def test_the_summary_prints_in_a_terminal_and_in_a_notebook():
    table = summary(Serial(block=Residual(Dense(5), relu)), X)
    lines = str(table).splitlines()
    assert lines[0].split() == ["layer", "output", "params", "MACs", "operations", "share"]
    assert lines[2].startswith("block Residual")
    assert lines[3].startswith("  0 Dense")  # inner layers are indented
    assert lines[-1] == "params take 120 B; operations are those of one call on this input"
    html = table._repr_html_()
    assert html.startswith("<table>")
    assert "block Residual" in html


def test_unknown_rows_are_rejected():
    with pytest.raises(KeyError, match="expected the path of a layer, got 'tail'; the paths are: 0"):
        summary(Serial(Dense(3)), X)["tail"]


def test_a_loop_of_unknown_length_is_reported():
    def halve(x):
        return jax.lax.while_loop(lambda x: x.sum() > 1, lambda x: x / 2, x)

    assert "1 while loops of unknown length are counted once" in str(summary(Serial(halve), X))


@pytest.mark.parametrize("name", DISTINCT)
def test_totals_are_at_least_those_of_each_row(name):
    """Each layer of the zoo has rows; its params and operations are at least those of each row."""
    row = ZOO[name]
    table = summary(row.layer, *row.inputs(), **row.side)
    params, _ = jax.eval_shape(stateful(row.layer).init, jax.random.key(0), *row.inputs())
    total = table.rows[-1]
    assert total.params == count_params(params)
    assert all(part.count.flops <= total.count.flops and part.params <= total.params for part in table.rows)


def test_params_of_layers_inside_of_wrappers():
    """The table has the rows of the net inside; its own lengths and updates count in the total."""
    net = LoRA(WeightNorm(Serial(Dense(5), relu)), "layer/0", rank=1)
    table = summary(net, jnp.zeros((3, 2)))
    assert (table["layer/0"].params, table.rows[-1].params) == (15, 15 + 5 + 2 + 5)


def test_layer_outputs_equal_those_of_single_layers():
    """u = x W + b and h = relu(u), layer by layer as in the forward pass of the lecture."""
    net = MLP(4, 3)
    x = np.random.default_rng(1).normal(size=(8, 5)).astype(np.float32)
    params = jax.jit(net.init)(jax.random.key(0), x)
    found, outputs, gradient = jax.jit(
        lambda p: (
            layer_outputs(net, p, x),
            net.apply(p, x),
            jax.grad(lambda p: layer_outputs(net, p, x)["1"].sum())(p),
        )
    )(params)
    u = np.asarray(x) @ np.asarray(params[0]["kernel"])
    np.testing.assert_allclose(found["0"], u, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["1"], np.maximum(u, 0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["2"], outputs, rtol=1e-6)
    np.testing.assert_allclose(gradient[0]["bias"], (u > 0).sum(0), rtol=1e-6)


def test_layer_outputs_of_shared_and_stateful_layers():
    net = Wire(lambda f, x: f.center(f.a(f.a(x))), a=Dense(5), center=Center())
    x = np.random.default_rng(1).normal(size=(8, 5)).astype(np.float32)

    @jax.jit
    def run(key):
        params, state = net.init(key, x)
        return layer_outputs(net, params, x, state=state, train=True)

    found = run(jax.random.key(0))
    assert len(found["a"]) == 2
    np.testing.assert_allclose(np.asarray(found["center"]).mean(0), np.zeros(5), atol=1e-6)
    with pytest.raises(TypeError, match=r"the state .* by name, got a dict after params; write layer_outputs\("):
        layer_outputs(net, *net.init(jax.random.key(0), x), x)


def test_a_summary_has_the_params_of_layers_inside_weight_norm():
    """The rows of inner layers have their own params; the lengths belong to the norm."""
    x = jnp.ones((4, 5))
    rows = summary(Serial(WeightNorm(Serial(Dense(8), relu)), SpectralNorm(Dense(2))), x)
    assert [(row.name, row.kind, row.params) for row in rows.rows] == [
        ("0", "WeightNorm", 56),
        ("layer", "Serial", 48),
        ("0", "Dense", 48),
        ("1", "relu", 0),
        ("1", "SpectralNorm", 18),
        ("1", "Dense", 18),
        ("", "Serial", 74),
    ]


def test_a_layer_passed_as_params_is_rejected():
    """A layer holds no params; following the error's advice works."""
    net = Dense(3)
    with pytest.raises(TypeError, match="net.init"):
        count_params(net)
    assert count_params(net.init(jax.random.key(0), jnp.zeros(2))) == 9
    assert count_params({"kernel": np.ones(3), "scale": 2.0}) == 4  # a number is an array of one entry


def test_two_layers_whose_second_one_has_integers_as_params():
    """The params of a Serial of two layers are a pair of trees, as params and state are."""
    order = Layer(lambda key, x: {"order": jnp.array([2, 0, 1])}, lambda params, x: x[..., params["order"]])
    net = Serial(Dense(3), order)
    assert count_params(net.init(jax.random.key(0), jnp.zeros(2))) == summary(net, jnp.zeros(2)).rows[-1].params == 12
