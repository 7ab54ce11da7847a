"""Layouts: how a tensor of another library becomes a param of jaxblocks, and how it becomes the tensor again.

A `Layout` is a pair of functions, each the inverse of the other, that move entries and compute nothing, so that a round
trip is exact to the bit. A rule without a layout takes the one of PyTorch's layers: kernels of `Dense` and of recurrent
cells are transposed, kernels of convolutions have their axes reordered, everything else is kept.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveInt, checked

__all__ = ["Layout", "conv_kernel", "keep", "layout_of_leaf", "lstm_gates", "split_heads", "transpose", "without_batch"]


class Layout(NamedTuple):
    """A change of layout and its inverse, for rules such as ``{"out": ("head", keep)}``.

    Attributes:
        name: as a `Report` shows it.
        load: the tensor of the other library to the param, a function of arrays that JAX can trace, or of NumPy arrays.
        save: the param to the tensor, its inverse.

    >>> flipped = Layout("flipped", lambda x: x[::-1], lambda x: x[::-1])
    >>> flipped
    flipped
    """

    name: str
    load: Callable[[Any], Any]
    save: Callable[[Any], Any]

    def __repr__(self) -> str:
        return str(self.name)


keep = Layout("keep", lambda x: x, lambda x: x)
"""The tensor as it is."""

transpose = Layout("transpose", lambda x: x.T, lambda x: x.T)
"""The kernel of a dense layer or of a recurrent cell: ``(out, in)`` in PyTorch to ``(in, out)``."""

conv_kernel = Layout(
    "conv_kernel",
    # Under `Repeat` the axis of copies is not among these: layouts are applied to each copy.
    lambda x: x.transpose(*range(2, x.ndim), 1, 0) if x.ndim > 2 else x,
    lambda x: x.transpose(-1, -2, *range(x.ndim - 2)) if x.ndim > 2 else x,
)
"""The kernel of a convolution: ``(out, in, *kernel_size)`` in PyTorch to ``(*kernel_size, in, out)``."""

without_batch = Layout("without_batch", lambda x: x[0], lambda x: x[None])
"""A param that the other library stores with an axis of size 1 for the batch, such as a class token ``(1, 1, c)``, or
one number that it stores as an array of one entry, such as the slope of `PReLU`."""


@checked
def split_heads(heads: PositiveInt) -> Layout:
    """The kernel or bias of a map from features to heads that the other library stores with an axis of heads, as Flax.

    ``(in, heads, head_dim)`` becomes ``(in, heads * head_dim)``, and ``(heads, head_dim)`` of a bias becomes ``(heads *
    head_dim,)``.

    >>> heads = split_heads(2)
    >>> heads.load(np.zeros((8, 2, 4))).shape, heads.save(np.zeros(8)).shape
    ((8, 8), (2, 4))
    """
    return Layout(
        f"split_heads({heads})",
        lambda x: x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1]),
        lambda x: x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads),
    )


@checked
def lstm_gates(*, order: str = "ifgo") -> Layout:
    """The kernel or bias of an LSTM whose gates are in another order than here, which is i, f, g, o as in PyTorch.

    The gates are blocks of the last axis of a bias, and of the first axis of a kernel ``(4 * hidden, in)``, which is
    transposed, as in PyTorch.

    Args:
        order: that of the other library: ``"ifgo"`` in PyTorch, ``"iofg"`` in ONNX with g its c.

    >>> print(lstm_gates(order="iofg").load(np.array([1.0, 4.0, 2.0, 3.0])))
    [1. 2. 3. 4.]
    """
    here = "ifgo"
    named = order.lower().translate(str.maketrans("cj", "gg"))  # other names of g, as in ONNX and TensorFlow
    repair = f"write order={named if sorted(named) == sorted(here) else here!r}"
    require(sorted(order) == sorted(here), "an order of the four gates i, f, g, o", repr(order), repair)
    # Two permutations, each the inverse of the other.
    forth, back = [order.index(gate) for gate in here], [here.index(gate) for gate in order]

    def reorder(x, places):
        """Blocks of the last axis."""
        blocks = x.reshape(*x.shape[:-1], 4, x.shape[-1] // 4)
        return blocks[..., np.array(places), :].reshape(x.shape)

    return Layout(f"lstm_gates({order})", lambda x: reorder(x.T, forth), lambda x: reorder(x, back).T)


def layout_of_leaf(name: str, ndim: int) -> Layout:
    """The layout that a leaf has in PyTorch, from its name and the number of its axes (without those of `Repeat`)."""
    if name.endswith("negative_slope") and ndim == 0:
        return without_batch
    if not name.endswith("kernel"):
        return keep
    return transpose if ndim == 2 else conv_kernel
