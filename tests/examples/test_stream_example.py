"""examples/stream_data.py at small size: an interrupted run gives bitwise the same result."""

import importlib.util

import jax
import pytest
from repository import EXAMPLES

pytest.importorskip("grain", reason="the example reads through grain")
pytest.importorskip("orbax.checkpoint", reason="checkpoints are written by orbax")


def test_stream_resumes_where_it_stopped(tmp_path, capsys):
    path = EXAMPLES / "stream_data.py"
    spec = importlib.util.spec_from_file_location("example_stream_data", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    with jax.numpy_dtype_promotion("standard"):
        found = example.main(["--out", str(tmp_path / "out"), "--rows", "300", "--steps", "60", "--batch", "16"])
    assert found["same"] and found["explained"] > 0
    assert "step 30, loss" in capsys.readouterr().out
    source = example.Rows(tmp_path / "out", 30, 300)
    assert len(source) == 270
    jump, walk = example.batches(source, 16, 20), example.batches(source, 16, 0)
    for _ in range(20):  # into the second epoch
        next(walk)
    (a, _), (b, _) = next(jump), next(walk)
    assert (a == b).all() and a.shape == (16, 64)
