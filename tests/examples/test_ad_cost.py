"""The example ad_cost at toy size: its results equal the formulas."""

import ad_cost as example
import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the figures require matplotlib")

slow = pytest.mark.slow  # the tests share one run of the example, which compiles about fifty programs


@pytest.fixture(scope="module")
def found(tmp_path_factory, small_pictures_in_module):
    """One complete run, with fewer rows of the table than by default, since Hessians compile slowly."""
    folder = tmp_path_factory.mktemp("ad_cost")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(example, "ROWS", ("jvp", "gradient", "jacfwd", "hvp"))
        patch.setattr(example, "QUICK", example.QUICK._replace(layers=(2, 4)))
        numbers = example.main(["--quick", "--repeats", "2", "--seed", "3", "--out", str(folder)])
    return numbers, folder


@slow
def test_every_figure_is_drawn(found):
    pictures = sorted(path.name for path in found[1].iterdir())
    assert pictures == ["bracketings.png", "jacobian.png", "memory.png", "modes.png", "sharing.png", "table.png"]
    assert all((found[1] / name).read_bytes().startswith(b"\x89PNG") for name in pictures)


@slow
def test_costs_of_all_orders(found):
    """5-1-5-5-5: each product of (m, k) and (k, n) costs m k n, summed by hand; all orders give the same matrix."""
    numbers, _ = found
    assert numbers["orders"] == {
        "((J4 J3) J2) J1": 125 + 25 + 25,
        "(J4 (J3 J2)) J1": 25 + 25 + 25,
        "(J4 J3) (J2 J1)": 125 + 25 + 125,
        "J4 ((J3 J2) J1)": 25 + 25 + 125,
        "J4 (J3 (J2 J1))": 25 + 125 + 125,
    }
    assert (numbers["best"].bracketing, numbers["best"].cost) == ("(J4 (J3 J2)) J1", 75)
    assert numbers["gap"] < 1e-5


@slow
def test_reverse_mode_is_optimal_for_a_scalar_output_unless_another_dimension_is_1(found):
    """202 against 300 for 1-100-2-1; no counterexample among 4^2 + 4^3 + 4^4 + 4^5 chains without an inner 1."""
    numbers, _ = found
    assert (numbers["exception"].forward, numbers["exception"].reverse) == (202, 300)
    assert numbers["exceptions"] == (0, 1360)
    beaten, chains = example.exceptions_to_reverse((1, 2, 100), longest=3)
    assert chains == 9 + 27
    assert beaten > 0


@slow
def test_costs_of_derivatives_equal_theory(found):
    """A pass of either mode costs two to four functions, jacfwd one jvp per input, a product with H two gradients."""
    for by_input, by_params in found[0]["tables"].values():
        assert 1.9 < by_input.jvp.flops_ratio < 2.5
        assert 1.9 < by_input.gradient.flops_ratio < 4
        assert 1.5 < by_input.hvp.flops / by_input.gradient.flops < 3
        assert 2 < by_params.gradient.flops_ratio < 4
        assert 2 < by_params.hvp.flops / by_params.gradient.flops < 3
        assert by_input.gradient.seconds > 0
    perceptron = found[0]["tables"]["perceptron"][0]
    assert 12 < perceptron.jacfwd.flops_ratio < 14  # 12 inputs


@slow
def test_both_modes_cost_the_same_where_output_and_input_widths_are_equal(found):
    """n tangent passes or m adjoint passes through one linear program."""
    grid = found[0]["modes"]
    assert grid.inputs == grid.outputs == (2, 16)
    ratio = grid.ratio()
    assert ratio[0, 1] > 4 and ratio[1, 0] < 1 / 4
    np.testing.assert_allclose(np.diagonal(ratio), 1, atol=0.1)
    assert grid.ratio("time").min() > 0


@slow
def test_memory_grows_with_depth_in_reverse_mode_only(found):
    """Forward mode stores no layer, reverse mode every layer, checkpointing a part of them."""
    curve = found[0]["memory"]
    assert curve.growth("jvp") == 0
    assert curve.growth("gradient") > 0.5
    grown = [curve[f"gradient, checkpoint={name}"][-1] for name in ("8", "'sqrt'", "'body'")]
    assert max(grown) < curve["gradient"][-1]
    table = found[0]["checkpoints"]
    assert list(table.rows) == ["function", "gradient", "gradient, checkpoint=2"]
    assert table["gradient, checkpoint=2"].flops > table.gradient.flops


@slow
def test_the_plan_uses_the_narrow_layer(found):
    numbers, _ = found
    plan, operations = numbers["plan"], numbers["operations"]
    assert [stage.n_out for stage in plan.stages] == [32, 2, 32, 96]
    assert plan.mode == "mixed"
    assert operations["jacobian"] < operations["jacfwd"] == operations["jacrev"]
    assert numbers["jacobian_gap"] < 1e-5
    assert set(numbers["milliseconds"]) == {"jacfwd", "jacrev", "jacobian"}


def test_backpropagation_saves_a_factor_of_the_depth():
    """k separate derivatives through k layers cost O(k^2 m^2), backpropagation O(k m^2), which is not O(k m)."""
    shallow, deep = example.costs_of_depth(6, 16), example.costs_of_depth(12, 16)
    assert 1.9 < deep["backprop"] / shallow["backprop"] < 2.1
    assert 3.6 < deep["one by one"] / shallow["one by one"] < 4.1
    wide = example.costs_of_depth(6, 32)
    assert 3.6 < wide["backprop"] / shallow["backprop"] <= 4
    # By hand, m^2 multiply-adds each: X a and the outer product dL/dX of every layer, and dL/da of all but the first.
    assert abs(example.costs_of_depth(6, 256)["backprop"] / 256**2 - 2 * (6 + 6 + 5)) < 1


def test_separate_derivatives_equal_the_gradient():
    """The derivatives that are counted separately equal the gradient, layer by layer."""
    net = example.jb.MLP(3, 3, activation=jnp.tanh, last_activation=jnp.tanh)
    params = net.init(jax.random.key(0), jnp.ones(3))
    loss = lambda params: jnp.sum(net.apply(params, jnp.ones(3)) ** 2)
    whole, apart = jax.grad(loss)(params), example.one_by_one(loss, params)
    for i, own in zip((0, 2), apart, strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), own, whole[i])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--repeats", "0"], "argument --repeats: expected an integer >= 1, got 0"),
        (["--seed", "x"], "argument --seed: invalid int value: 'x'"),
        (["--slow"], "unrecognized arguments: --slow"),
        (["--out", "/dev/null/x"], "argument --out: expected a folder that can be created, got /dev/null/x"),
    ],
)
def test_an_invalid_argument_gives_a_one_line_error(arguments, words, capsys):
    with pytest.raises(SystemExit) as stopped:
        example.main(arguments)
    assert stopped.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert words in lines[0]
