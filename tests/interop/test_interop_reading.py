"""Bands of tensors are written to their places in params: values against whole tensors, and errors."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import jax.numpy as jnp
import numpy as np
import pytest

from jaxblocks import interop
from jaxblocks.interop import files, reading
from jaxblocks.interop.layouts import Layout, conv_kernel, keep, lstm_gates, split_heads, transpose, without_batch


@pytest.mark.parametrize("from_memory", [False, True])
def test_bands_are_written_to_their_places(tmp_path, monkeypatch, from_memory):
    """All kinds of layouts, dtypes and parts, in bands of few rows; the reference is the layout of whole tensors."""
    monkeypatch.setattr(reading, "_BAND", 60)
    monkeypatch.setattr(reading, "_ROWS", 3)
    rng = np.random.default_rng(0)
    flipped = Layout("flipped", lambda x: x[..., ::-1], lambda x: x[..., ::-1])
    twice = Layout("twice", lambda x: x[0], lambda x: np.broadcast_to(x, (2, *x.shape)))
    first_of_two = Layout("repeated", lambda x: x[: len(x) // 2], lambda x: np.concatenate([x, x]))  # more than axes
    cases = [
        (keep, (7,), [7]), (keep, (5, 6), [6]), (keep, (5, 7), [2, 3, 2]), (keep, (), [1]),
        (transpose, (7, 5), [7]), (transpose, (9, 5), [3, 4, 2]), (conv_kernel, (5, 3, 2, 2), [5]),
        (conv_kernel, (6, 3, 2), [4, 2]), (split_heads(2), (3, 2, 4), [8]), (split_heads(2), (3, 2, 4), [4, 4]),
        (lstm_gates(order="iofg"), (8, 3), [8]), (without_batch, (1, 5, 3), [3]), (flipped, (7,), [7]),
        (flipped, (5, 6), [6]), (flipped, (5, 6), [2, 4]), (twice, (2, 4, 3), [3]), (first_of_two, (4, 3), [3]),
    ]  # fmt: skip
    dtypes = [(jnp.bfloat16, np.float32), (np.float32, np.float32), (np.float16, jnp.bfloat16), (np.int32, np.int32)]
    with ThreadPoolExecutor(reading.WORKERS) as workers:
        for (layout, shape, widths), (own, dtype) in itertools.product(cases, dtypes):
            arrays = {f"{k}": np.asarray(rng.integers(-99, 99, shape)).astype(own) for k in range(3)}
            arrays |= {"1": np.asarray(layout.save(layout.load(arrays["1"])))}
            interop.write_tensors(tmp_path / "x.safetensors", arrays)
            tensors = files.tensors_of(arrays if from_memory else tmp_path / "x.safetensors")
            expected = np.stack([layout.load(x) for x in arrays.values()]).astype(dtype)
            parts = [reading.aligned((*expected.shape[:-1], n) if shape else (3,), np.dtype(dtype)) for n in widths]
            reading.read_copies("012", tensors, layout, parts, workers)
            got = np.concatenate(parts, -1)
            assert (got.dtype, got.tobytes()) == (expected.dtype, expected.tobytes()), (layout, shape, own, dtype)


def test_an_error_in_a_band_ends_the_reading(tmp_path, monkeypatch, sentences):
    monkeypatch.setattr(reading, "_BAND", 16)
    monkeypatch.setattr(reading, "_ROWS", 1)
    file = tmp_path / "x.safetensors"
    interop.write_tensors(file, {"weight": np.zeros((32, 4), np.float32)})
    tensors = interop.read_tensors(file)
    file.write_bytes(file.read_bytes()[:-8])
    match = "^read_copies expected .* 16 bytes of tensor 'weight', got 8; it changed"  # the name, although in a thread
    with ThreadPoolExecutor(reading.WORKERS) as workers, pytest.raises(ValueError, match=match):
        reading.read_copies(["weight"], tensors, transpose, [np.zeros((1, 4, 32), np.float32)], workers)
