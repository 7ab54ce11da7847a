"""The example ntk at small size: its numbers and its figures."""

import importlib.util

import jax
import numpy as np
import pytest
from legible import saved_pictures
from repository import EXAMPLES

pytest.importorskip("matplotlib", reason="the example draws")


@pytest.fixture(scope="module")
def example():
    path = EXAMPLES / "ntk.py"
    spec = importlib.util.spec_from_file_location("example_ntk", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_wide_nets_approach_kernel_regression(example, tmp_path, capsys, monkeypatch):
    """The error of the kernel decreases as 1/sqrt(width); wider nets are closer to the regression of their kernel."""
    toy = ["--widths", "16", "128", "1024", "--draws", "10", "--steps", "60"]
    with saved_pictures(monkeypatch) as faults:
        numbers = example.main(["--out", str(tmp_path), *toy])
    assert faults == {"kernel.png": [], "learning.png": []}
    assert abs(numbers["slope"] + 0.5) < 0.1
    for name in ("errors", "moved", "apart"):
        assert np.all(np.diff(numbers[name]) < 0), name
    assert numbers["apart"][-1] < 0.05 and numbers["moved"][-1] < 0.05
    assert all(path.stat().st_size > 10_000 for path in tmp_path.glob("*.png"))
    printed = capsys.readouterr().out
    assert "slope of log error against log width" in printed and "(chosen)" in printed


def test_training_starts_at_the_prediction_of_the_initial_net(example):
    """With learning rate 0 all predictions are those of the initial net; with learning rate 0.05 the loss decreases."""
    params, (x, y, _) = example.init(jax.random.key(0), 8), example.circle(4)
    path, last = example.train(params, x, y, x, 0.0, 2)
    np.testing.assert_allclose(path, np.broadcast_to(jax.jit(example.predict)(params, x), (3, 4)), rtol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, last, params)
    path, _ = example.train(params, x, y, x, 0.05, 2)
    assert np.sum(np.square(path[-1] - y)) < np.sum(np.square(path[0] - y))


@pytest.mark.parametrize("arguments", [["--widths", "8"], ["--steps", "0"], ["--widths", "0", "8"]])
def test_wrong_arguments_give_an_error_of_one_line(example, arguments, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        example.main(["--out", str(tmp_path / "never"), *arguments])
    assert stop.value.code == 2
    assert "--widths to have at least two entries" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "never").exists()
