"""Tensors are read into params: values against the layout of whole tensors."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxblocks import interop
from jaxblocks.interop import files, reading
from jaxblocks.interop.layouts import Layout, conv_kernel, keep, transpose, without_batch

FLIPPED = Layout("flipped", lambda x: x[..., ::-1], lambda x: x[..., ::-1])
FIRST_OF_TWO = Layout("repeated", lambda x: x[: len(x) // 2], lambda x: np.concatenate([x, x]))
HEADS = Layout("heads", lambda x: x.reshape(len(x), -1), lambda x: x.reshape(len(x), 2, -1))
CASES = [
    (keep, (7,), [7]), (keep, (5, 6), [6]), (keep, (5, 7), [2, 3, 2]), (keep, (), []), (transpose, (7, 5), [7]),
    (transpose, (9, 5), [3, 4, 2]), (conv_kernel, (5, 3, 2, 2), [5]), (conv_kernel, (6, 3, 2), [4, 2]),
    (HEADS, (3, 2, 4), [4, 4]), (without_batch, (1, 5, 3), [3]),
    (FLIPPED, (7,), [7]), (FLIPPED, (5, 6), [2, 4]), (FIRST_OF_TWO, (4, 3), [3]), (keep, (0, 3), [3]),
]  # fmt: skip
DTYPES = [(jnp.bfloat16, np.float32), (np.float32, np.float32), (np.float16, jnp.bfloat16), (np.int32, np.int32)]


@pytest.mark.parametrize("from_memory", [False, True])
def test_copies_are_read_into_their_params(tmp_path, from_memory):
    """All kinds of layouts, dtypes and parts, from files and from arrays."""
    rng = np.random.default_rng(0)
    for (layout, shape, widths), (own, dtype) in itertools.product(CASES, DTYPES):
        arrays = {f"{k}": np.asarray(rng.integers(-99, 99, shape)).astype(own) for k in range(3)}
        interop.write_tensors(tmp_path / "x.safetensors", arrays)
        tensors = files.tensors_of(arrays if from_memory else tmp_path / "x.safetensors")
        expected = np.stack([layout.load(x) for x in arrays.values()]).astype(dtype)
        shapes = [(*expected.shape[:-1], n) for n in widths] or [(3,)]
        got = reading.read_copies("012", tensors, layout, shapes, np.dtype(dtype))
        assert [x.shape for x in got] == shapes
        assert not any(np.shares_memory(param, array) for param in got for array in arrays.values())
        got = np.concatenate(got, -1)
        assert (got.dtype, got.tobytes()) == (expected.dtype, expected.tobytes()), (layout, shape, own, dtype)
