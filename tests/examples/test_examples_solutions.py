"""The examples implicit and korteweg_de_vries at toy size: closed forms, memory, and the error of the net."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from legible import saved_pictures
from repository import EXAMPLES

pytest.importorskip("matplotlib", reason="the examples draw")
pytestmark = pytest.mark.usefixtures("as_a_user_has_it")


def load(name):
    path = EXAMPLES / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"example_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_implicit_derivatives_equal_closed_forms_and_store_no_steps(tmp_path, capsys, small_pictures):
    numbers = load("implicit").main(["--out", str(tmp_path), "--steps", "60", "--depths", "128", "512"])
    assert numbers["accuracy"] > 0.9
    assert numbers["hypergradient_error"] < 1e-9 and numbers["validation"][-1] < numbers["validation"][0]
    assert numbers["sensitivity_error"] < 1e-8 and numbers["optimal"]
    assert numbers["equilibrium"].growth("implicit") == 0 and numbers["equilibrium"].growth("unrolled") > 0.9
    ode = numbers["ode"]
    assert ode.growth("all steps") > 0.9 and ode.growth("blocks of sqrt(steps)") < 0.7
    assert ode.growth("8 snapshots") < 0.2
    assert sorted(path.stem for path in tmp_path.glob("*.png")) == ["equilibrium", "ode"]
    assert "validation loss" in capsys.readouterr().out


@pytest.fixture(scope="module")
def korteweg_de_vries():
    return load("korteweg_de_vries")


def soliton(x, t, speed=1.0, cosh=np.cosh):
    """A solution on the line: 3c / cosh^2 of sqrt(c / 0.01) (x - ct)."""
    return 3 * speed / cosh((speed / 0.01) ** 0.5 * (x - speed * t)) ** 2


def test_residual_and_spectral_solver_against_a_soliton(korteweg_de_vries):
    """The soliton has no residual, and the spectral solver moves it by its speed times the time."""
    with jax.enable_x64(True):
        u = lambda x, t: soliton(x, t, cosh=jnp.cosh)
        points = jnp.linspace(-0.3, 0.3, 7), jnp.linspace(0.0, 0.2, 7)
        found = jax.jit(jax.vmap(lambda x, t: korteweg_de_vries.residual(u, x, t)))(*points)
    np.testing.assert_allclose(found, 0, atol=1e-9)
    x = np.linspace(-1, 1, 128, endpoint=False)
    moved = korteweg_de_vries.spectral(soliton(x, 0), [0.0, 0.1], step=1e-4)
    np.testing.assert_allclose(moved, [soliton(x, 0), soliton(x, 0.1)], atol=1e-4)


def test_the_net_approaches_the_solution(korteweg_de_vries, tmp_path, capsys, monkeypatch):
    """A short time and a small net; without training the error is that of a wave that does not move."""
    toy = ["--out", str(tmp_path), "--steps", "150", "--width", "16", "--points", "64", "--time", "0.05"]
    with saved_pictures(monkeypatch) as faults:
        numbers = korteweg_de_vries.main(toy)
    assert faults == {"solution.png": []}
    assert numbers["losses"][-1] < 0.2 * numbers["losses"][0]
    assert numbers["errors"][0] < 1e-6 and 1e-4 < numbers["errors"][-1] < 0.05
    assert "relative error" in capsys.readouterr().out and (tmp_path / "solution.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("name", "arguments"), [("implicit", ["--steps", "0"]), ("korteweg_de_vries", ["--time", "0"])]
)
def test_wrong_arguments_give_an_error_of_one_line(name, arguments, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        load(name).main(["--out", str(tmp_path / "never"), *arguments])
    assert stop.value.code == 2 and "expected --" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "never").exists()
