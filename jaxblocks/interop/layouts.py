"""Layouts: how a tensor of another library becomes a param of jaxblocks, and how it becomes the tensor again.

A `Layout` is a pair of functions, each the inverse of the other, that move entries and compute nothing, so that a round
trip is exact to the bit. A rule without a layout takes the one of PyTorch's layers: kernels of `Dense` and of recurrent
cells are transposed, kernels of convolutions have their axes reordered, everything else is kept.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["Layout", "conv_kernel", "keep", "layout_of_leaf", "transpose", "without_batch"]


class Layout(NamedTuple):
    """A change of layout and its inverse, for rules such as ``{"out": ("head", keep)}``.

    Attributes:
        name: as a `Report` shows it.
        load: the tensor of the other library to the param, a function of arrays that JAX can trace, or of NumPy arrays.
        save: the param to the tensor, its inverse.

    >>> heads = Layout(
    ...     "heads",
    ...     lambda x: x.reshape(len(x), -1),
    ...     lambda x: x.reshape(len(x), 2, -1),
    ... )
    >>> heads.load(np.zeros((8, 2, 4))).shape, heads.save(np.zeros((8, 8))).shape
    ((8, 8), (8, 2, 4))
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


def layout_of_leaf(name: str, ndim: int) -> Layout:
    """The layout that a leaf has in PyTorch, from its name and the number of its axes (without those of `Repeat`)."""
    if name.endswith("negative_slope") and ndim == 0:
        return without_batch
    if not name.endswith("kernel"):
        return keep
    return transpose if ndim == 2 else conv_kernel
