"""The examples nn251, xor and minimize at toy size: the numbers they return, and their figures."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from repository import EXAMPLES

pytest.importorskip("matplotlib", reason="the figures require matplotlib")


def load(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def minimize(tmp_path_factory, small_pictures_in_module):
    """The example, its numbers, and the folder of its figures."""
    module, out = load("minimize"), tmp_path_factory.mktemp("minimize")
    with jax.numpy_dtype_promotion("standard"):  # optax requires standard promotion
        return module, module.main(["--out", str(out), "--homework-steps", "10000"]), out


def pictures(folder):
    """The names of the figures in a folder, none of which is an empty file."""
    found = sorted(folder.glob("*.png"))
    assert all(path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000 for path in found)
    return [path.stem for path in found]


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("nn251", ["--points", "2"], "argument --points: expected an integer >= 3, got 2"),
        ("xor", ["--widths", "0"], "to be integers >= 1"),
        ("minimize", ["--steps", "1"], "to be integers >= 10"),
        ("minimize", ["--eta", "1"], "unrecognized arguments: --eta 1"),
    ],
)
def test_an_invalid_argument_gives_a_one_line_error(name, arguments, message, capsys, tmp_path):
    with pytest.raises(SystemExit) as stop:
        load(name).main(["--out", str(tmp_path / "never"), *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "never").exists()


# nn251


def test_nn251_draws_and_counts(tmp_path, capsys, small_pictures):
    numbers = load("nn251").main(["--out", str(tmp_path), "--points", "9"])
    assert pictures(tmp_path) == ["curves", "diagram", "surfaces"]
    assert numbers["parameters"] == 21
    assert numbers["edges"] == 15
    assert len(numbers["kinks_2d"]) == len(numbers["kinks_1d"]) == 10
    for counts in (numbers["kinks_2d"], numbers["kinks_1d"]):
        assert max(counts) <= 5
        assert sum(counts) > 20
    assert numbers["homogeneity"] == 0.0
    assert "21 parameters, 15 edges" in capsys.readouterr().out


def test_nn251_finds_kinks_and_homogeneity():
    """A curve with three known kinks; negative controls: a smooth curve, and biases that violate homogeneity."""
    module = load("nn251")
    x = np.linspace(-2, 2, 2001)
    assert module.kinks([np.abs(x) + np.maximum(x - 0.7, 0) - np.maximum(x + 1.3, 0), 3 * x]) == [3, 0]
    net = module.random_network(jax.nn.initializers.normal(1.0))
    params = jax.jit(net.init)(jax.random.key(0), jnp.zeros(2))
    x = jnp.array([[1.0, -0.5]])
    assert jnp.abs(net.apply(params, 2 * x) - 2 * net.apply(params, x)).max() > 0.01


# xor


def test_xor_numbers(tmp_path, capsys, small_pictures):
    numbers = load("xor").main(["--out", str(tmp_path), "--starts", "20", "--steps", "3000", "--widths", "2", "8"])
    assert pictures(tmp_path) == ["xor"]
    # Two units of rounding for entries of size 1: how the SVD of the closed form rounds depends on the CPU.
    np.testing.assert_allclose(numbers["linear"], [0, 0, 0.5], atol=2 * np.finfo(np.float32).eps)
    assert numbers["linear_loss"] == pytest.approx(0.25, abs=1e-7)
    np.testing.assert_allclose(numbers["path"][0], [1, -0.7, 0.3], atol=1e-7)
    np.testing.assert_allclose(numbers["path"][9], [0.2616287, -0.1321201, 0.4231923], atol=2e-7)
    np.testing.assert_allclose(numbers["path"][499], [0, 0, 0.5], atol=2e-7)
    after_kernel, after_bias, after_relu, output = numbers["steps_by_hand"]
    np.testing.assert_array_equal(after_kernel, [[0, 0], [1, 1], [1, 1], [2, 2]])
    np.testing.assert_array_equal(after_bias, [[0, -1], [1, 0], [1, 0], [2, 1]])
    np.testing.assert_array_equal(after_relu, [[0, 0], [1, 0], [1, 0], [2, 1]])
    np.testing.assert_array_equal(output, [[0], [1], [1], [0]])
    assert 0 < numbers["solved"][2] < 0.6
    assert numbers["solved"][8] >= 0.9
    assert "trained 2-2-1" in capsys.readouterr().out


# minimize


def test_minimize_draws_its_figures(minimize):
    assert pictures(minimize[2]) == ["bound", "hello", "homework", "slices", "trajectories"]
    assert not jax.config.jax_enable_x64


def test_minimize_first_example(minimize):
    numbers = minimize[1]
    first = [2, 0.44, 0.70000832, 1.07675083, 1.43966841, 1.44498829, 1.44179491, 1.44372444]
    np.testing.assert_allclose(numbers["hello"][:8], first, atol=5e-9)
    assert numbers["hello"][-1] == pytest.approx((3 + 73**0.5) / 8, abs=1e-14)
    assert numbers["hello_other"][-1] == pytest.approx((3 - 73**0.5) / 8, abs=1e-14)
    assert numbers["hello_within"] == 21
    module = minimize[0]
    assert module.quartic(numbers["hello"][-1]) == pytest.approx(0.1665775910, abs=1e-10)
    assert module.quartic(numbers["hello_other"][-1]) == pytest.approx(2.6029536590, abs=1e-10)
    slope = (numbers["hello"][21] - numbers["hello"][-1]) / (numbers["hello"][20] - numbers["hello"][-1])
    assert slope == pytest.approx(-0.6027702, abs=1e-5)  # 1 - 0.13 f''


def test_homework_numbers(minimize):
    numbers = minimize[1]
    np.testing.assert_allclose(min(np.roots([1, -1, 0, 0, -1, 1]).real), -1, rtol=1e-12)
    assert abs(numbers["plain"][-1] - 1) < 1e-14
    assert not numbers["lost"][-1] > -1e6  # there is no minimum below -.53156
    assert numbers["simple"][10] == pytest.approx(-1.0000546, abs=1e-7)
    assert abs(numbers["simple"][-1] + 1) < 1e-14
    double = numbers["double"]
    np.testing.assert_allclose(double[[10, 100, 1000, 10000]], [0.67218, 0.95181, 0.98683, 0.99599], atol=5e-6)
    assert np.log10((1 - double[1000]) / (1 - double[10000])) == pytest.approx(0.5, abs=0.02)


def test_the_legend_of_the_homework_names_the_kind_of_root(minimize, monkeypatch):
    """1 is a double root of r and a fourfold root of r^2, the function that descent minimizes."""
    module, drawn = minimize[0], []
    assert np.abs(np.roots(np.convolve([1, -1, 0, 0, -1, 1], [1, -1, 0, 0, -1, 1])) - 1 < 0.01).sum() >= 4
    monkeypatch.setattr(module.Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        module.homework(10, None)
    labels = [text.get_text() for text in drawn[0].axes[1].get_legend().get_texts()]
    assert "$r^2$ to 1 (fourfold root)" in labels


SLOPES = np.array([1.0, 10.0])  # the gradient of the quadratic is SLOPES * theta


def momentum_by_hand(m, eta, steps=60):
    """v_{t+1} = m v_t - eta grad(theta_t), theta_{t+1} = theta_t + v_{t+1}."""
    theta, v, path = np.ones(2), np.zeros(2), [np.ones(2)]
    for _ in range(steps):
        v = m * v - eta * SLOPES * theta
        theta = theta + v
        path.append(theta)
    return np.array(path)


def average_by_hand(beta, eta, steps=60):
    theta, v, path = np.ones(2), np.zeros(2), [np.ones(2)]
    for _ in range(steps):
        v = beta * v + (1 - beta) * SLOPES * theta
        theta = theta - eta * v
        path.append(theta)
    return np.array(path)


def adam_by_hand(eta, beta1, beta2, eps, steps=60):
    theta, v, s, path = np.ones(2), np.zeros(2), np.zeros(2), [np.ones(2)]
    for t in range(1, steps + 1):
        g = SLOPES * theta
        v, s = beta1 * v + (1 - beta1) * g, beta2 * s + (1 - beta2) * g**2
        theta = theta - eta * v / (1 - beta1**t) / (np.sqrt(s / (1 - beta2**t)) + eps)
        path.append(theta)
    return np.array(path)


def test_trajectories_equal_the_corrected_formulas(minimize):
    paths = minimize[1]["paths"]
    by_hand = momentum_by_hand(0.0, 0.05)
    np.testing.assert_allclose(paths["gradient descent"], by_hand, rtol=1e-12)
    np.testing.assert_allclose(paths["momentum"], momentum_by_hand(0.7, 0.05), atol=1e-15)
    averaged = average_by_hand(0.7, 0.05 / 0.3)
    np.testing.assert_allclose(paths["momentum as a moving average"], averaged, atol=1e-15)
    np.testing.assert_allclose(paths["momentum as a moving average"], paths["momentum"], atol=2e-15)
    adam = [[0.900000001, 0.9000000001], [0.8004122297, 0.8004122279], [0.7015862745, 0.7015862717]]
    adam += [[0.6039390627, 0.6039390589], [0.5079636619, 0.5079636571]]
    np.testing.assert_allclose(paths["Adam"][1:6], adam, atol=5e-11)
    np.testing.assert_allclose(paths["Adam"], adam_by_hand(0.1, 0.9, 0.999, 1e-8), atol=1e-12)


def test_bounds_hold_at_every_step_and_huber_attains_its_bound(minimize):
    gaps, limits = minimize[1]["gaps"], minimize[1]["limits"]
    assert list(gaps) == ["quadratic", "logistic regression", "Huber, worst case"]
    for name, gap in gaps.items():
        assert gap.shape == (100,)
        assert (gap <= limits[name]).all()
        assert (gap > -1e-15).all()
    quadratic, bound = gaps["quadratic"][[0, 9, 49]], limits["quadratic"][[0, 9, 49]]
    np.testing.assert_allclose(quadratic, [0.4064005, 0.0621535, 1.484052e-5], rtol=1e-6)
    np.testing.assert_allclose(bound, [10.10101, 1.010101, 0.2020202], rtol=1e-6)
    assert gaps["Huber, worst case"][-1] == pytest.approx(1 / 402, rel=1e-12)
    assert gaps["logistic regression"][0] > 0.01
    assert abs(gaps["logistic regression"][-1]) < 1e-12


def test_slices_of_the_loss_are_convex_for_linear_models_only(minimize):
    linear, deep = minimize[1]["curvature"]
    assert linear > 0.1
    assert deep < -0.05


def test_the_gradient_of_the_linear_fit_is_that_of_the_lecture():
    """(2/N) (X'w' - y)^T X' at w' = 0 is (-1/2, -1/2, -1); it is smooth with L = 3.1861407."""
    module = load("xor")
    extended = np.concatenate([module.X, np.ones((4, 1))], axis=1)
    gradient = jax.jit(jax.grad(lambda w: jnp.mean((jnp.asarray(extended, w.dtype) @ w - module.Y[:, 0]) ** 2)))(
        jnp.zeros(3)
    )
    np.testing.assert_allclose(gradient, [-0.5, -0.5, -1.0], rtol=1e-7)
    np.testing.assert_allclose(np.linalg.eigvalsh(extended.T @ extended), [0.6277187, 1, 6.3722813], rtol=1e-7)
    assert np.linalg.eigvalsh(extended.T @ extended)[-1] * 2 / 4 == pytest.approx(3.1861407, rel=1e-7)
