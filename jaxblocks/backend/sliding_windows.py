r"""The geometry of windows that slide over an array, shared by convolution and pooling.

Along one axis, a window of $k$ entries with dilation $d$ spans $d(k-1)+1$
positions. On an input of $n$ positions, padded by $p$ before and $q$ after, it fits at

.. math::

    m = ⌊(n + p + q - d(k-1) - 1) / s⌋ + 1

positions, a stride of $s$ apart.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Inexact, Int8, Shaped

from jaxblocks.backend.symbolic_sizes import Size, at_most, check_integer, missing_constraints
from jaxblocks.checks.errors import describe, public_name, require
from jaxblocks.checks.expectations import NonNegativeInt, PositiveInt
from jaxblocks.checks.terminal import warn
from jaxblocks.core.pairs import ArrayOrShape, Layer

__all__ = [
    "Padding",
    "PerAxis",
    "Windows",
    "check_channels",
    "check_fit",
    "check_groups",
    "check_one_axis",
    "check_spatial",
    "entries_of_windows",
    "in_chunks",
    "name_with_zeros",
    "per_axis",
    "products_on_axis",
    "share_of_products",
    "slices_of_entries",
    "slide",
    "spatial_layer",
    "spatial_sizes",
    "sum_of_windows",
    "warn_channels_first",
    "window_sizes",
]

PerAxis: TypeAlias = PositiveInt | Sequence[PositiveInt]
"""One integer for all spatial axes, or a sequence with one for each."""

_OneAxis: TypeAlias = Literal["valid", "same", "causal"] | NonNegativeInt
Padding: TypeAlias = _OneAxis | Sequence[_OneAxis | tuple[NonNegativeInt, NonNegativeInt]]
"""``"valid"``, ``"same"``, ``"causal"``, an integer, or a sequence with a name, an integer or a pair for each axis."""

_Number = TypeVar("_Number", int, float)


class Windows(NamedTuple):
    """The geometry of windows along the spatial axes, with one entry per axis in each tuple."""

    spans: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[Size, Size], ...]


def slide(
    sizes: Sequence[Size], window: Sequence[int], stride: PerAxis = 1, dilation: PerAxis = 1, padding: Padding = "valid"
) -> Windows:
    """The geometry of windows over an input of ``sizes`` positions; ``padding`` is that of `jaxblocks.layers.conv`.

    >>> slide((5, 6), (3, 4), stride=(1, 2), padding="same")
    Windows(spans=(3, 4), strides=(1, 2), dilations=(1, 1), pads=((1, 1), (1, 1)))
    """
    # Spans count the gaps that a dilation leaves between the entries of a window.
    strides, dilations = per_axis("stride", stride, len(sizes)), per_axis("dilation", dilation, len(sizes))
    spans = tuple(d * (k - 1) + 1 for k, d in zip(window, dilations, strict=True))
    pads = []
    for one, n, span, s in zip(per_axis("padding", padding, len(sizes)), sizes, spans, strides, strict=True):
        # The last of ceil(n / s) windows begins at (ceil(n / s) - 1) s; what it spans beyond n is padding.
        total = (-(-n // s) - 1) * s + span - n
        total = 0 if at_most(total, 0) else total
        if one == "same" and not at_most(0, total):  # the stride is above the span, and n is symbolic
            check_integer(n, jax.ShapeDtypeStruct(tuple(sizes), float), "padding='same' with such a stride")
        # With "same" an odd total has one more entry after than before, as in XLA; "causal" pads before only.
        named = {"valid": (0, 0), "same": (total // 2, total - total // 2), "causal": (span - 1, 0)}
        pads.append(named[one] if isinstance(one, str) else tuple(one) if isinstance(one, Sequence) else (one, one))
    return Windows(spans, strides, dilations, tuple(pads))


def per_axis(name: str, value: Any, axes: int) -> tuple:
    """One entry for each axis, from one for all axes or from a sequence."""
    # A string is a sequence too, but names one padding for all axes.
    if isinstance(value, str) or not isinstance(value, Sequence):
        return (value,) * axes
    expected = f"{name} to be one for all, or a sequence with one for each spatial axis ({axes} in all)"
    repair = f"write {name}={(*value, *(tuple(value[-1:]) or (1,)) * axes)[:axes]}"
    if name == "padding" and axes == 1 and len(value) == 2:
        repair = "a pair for one axis is written ((before, after),)"
    require(len(value) == axes, expected, repr(value), repair)
    return tuple(value)


def window_sizes(name: str, value: _Number | Sequence[_Number]) -> tuple[_Number, ...]:
    """The sizes of a window: an integer stands for one spatial axis, a sequence has one for each of up to three."""
    sizes = tuple(value) if isinstance(value, Sequence) else (value,)
    expected = f"one integer in {name} for each of one to three spatial axes"
    require(1 <= len(sizes) <= 3, expected, repr(value), f"pass one per spatial axis, such as {name}=(3, 3)")
    return sizes


def check_one_axis(name: str, value: float | int | Sequence, x: Shaped[ArrayOrShape, "..."]) -> None:
    """Raise a ``ValueError`` where an integer is the size of a window and ``x`` may be a batch of images.

    An integer stands for one spatial axis, unlike in other libraries.
    """
    # With up to three axes an integer is clear: (batch, time, channels). More may be images, of which the other
    # libraries would mean both axes.
    if not isinstance(value, Sequence) and len(x.shape) > 3:
        several = f"({', '.join([str(value)] * min(len(x.shape) - 2, 3))})"
        expected = f"{name} with one integer for each spatial axis of x (..., *spatial, channels)"
        got = f"{name}={value} for x of {describe(x)}"
        require(False, expected, got, f"write {several}, or ({value},) if x has several batch axes")


def check_spatial(x: Shaped[ArrayOrShape, "..."], axes: int) -> None:
    """Raise a ``ValueError`` unless ``x`` has this many spatial axes and one of channels."""
    repair = "add the missing axis, as in x[..., None], or lower the number of spatial axes"
    if len(x.shape) == 2:
        repair += ", and for flat images write x.reshape(len(x), height, width, channels)"
    require(len(x.shape) > axes, f"x (..., *spatial, channels) with at least {axes + 1} axes", x, repair)


def spatial_sizes(name: str, value: _Number | Sequence[_Number], x: Shaped[ArrayOrShape, "..."]) -> tuple[_Number, ...]:
    """`window_sizes`, after the checks that ``x`` has these spatial axes.

    >>> import jax.numpy as jnp
    >>> spatial_sizes("size", (3, 4), jnp.zeros((8, 28, 28, 3)))
    (3, 4)
    """
    sizes = window_sizes(name, value)
    check_one_axis(name, value, x)
    check_spatial(x, len(sizes))
    return sizes


def spatial_layer(function: Callable, axes: int, **option: Any) -> Layer:
    """A function of an array with ``axes`` spatial axes as a layer without params.

    ``option`` is the one whose value says how many axes there are, if there is one.
    """

    def init(key, x: Inexact[ArrayOrShape, "..."]):
        for name, value in option.items():
            check_one_axis(name, value, x)
        check_spatial(x, axes)
        warn_channels_first(x, axes)
        return ()

    def apply(params, x: Inexact[Array, "..."]):
        return function(x)

    return Layer(init, apply)


def check_fit(windows: Windows, x: Shaped[ArrayOrShape, "..."]) -> None:
    """Raise a ``ValueError`` unless at least one window fits into each spatial axis of ``x``."""
    axes = len(windows.spans)
    # The spatial axes are those before the channels.
    padded = tuple(n + sum(pair) for n, pair in zip(x.shape[-axes - 1 : -1], windows.pads, strict=True))
    expected = f"an input that its windows fit into, which span {windows.spans} positions (dilation included)"
    got = f"{describe(x)}, which spans {padded} (padding included)"
    repair = "choose smaller windows, or padding='same'" + _channels_first(x, axes)
    pairs = tuple(zip(windows.spans, padded, strict=True))
    require(all(at_most(*pair) for pair in pairs), expected, got, missing_constraints(*pairs) or repair)


def check_channels(
    x: Shaped[ArrayOrShape, "..."], kernel: Shaped[ArrayOrShape, "..."], channels: int, features: int, groups: int
) -> None:
    """Raise a ``ValueError`` unless ``x`` has the ``channels`` that a kernel (*kernel_size, in, out) takes."""
    axes = kernel.ndim - 2
    expected = "a kernel (*kernel_size, in, out) with one to three integers >= 1 in kernel_size"
    positions = 1 <= axes <= 3 and 0 not in kernel.shape[:-2]
    require(positions, expected, kernel, "for a map without positions, call affine(x, kernel)")
    check_spatial(x, axes)
    check_groups(groups, channels, features)
    repair = "pass x of that size, or params made by init for this x" + _channels_first(x, axes, channels)
    if channels != x.shape[-1] == features and groups == 1 and not public_name()[:1].isupper():  # not a layer
        layout = "in, out" if channels == kernel.shape[-2] else "out, in"
        repair = f"the kernel is (*kernel_size, {layout}): write jnp.swapaxes(kernel, -1, -2), or pass x of that size"
    expected = f"x with {channels} channels on its last axis (its kernel is {describe(kernel)}, groups={groups})"
    require(x.shape[-1] == channels, expected, x, repair)


def check_groups(groups: int, channels: int, features: int) -> None:
    """Raise a ``ValueError`` unless the groups of a convolution divide its channels in and out."""
    got = f"groups={groups} for {channels} channels in and {features} out"
    repair = f"choose a common divisor, such as groups={math.gcd(channels, features)}"
    require(not (channels % groups or features % groups), "groups that divide the channels in and out", got, repair)


def in_chunks(x: Shaped[Array, "... time features"], chunk: int) -> Shaped[Array, "... count chunk features"]:
    """Time in adjacent windows, the last one padded with zeros.

    >>> in_chunks(jnp.arange(3.0)[:, None], 2)[..., 0]
    Array([[0., 1.],
           [2., 0.]], dtype=float32)
    """
    count = -(-x.shape[-2] // chunk)
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, count * chunk - x.shape[-2]), (0, 0)])
    return x.reshape(*x.shape[:-2], count, chunk, x.shape[-1])


def entries_of_windows(x: Shaped[Array, "..."], window: Sequence[int], windows: Windows) -> Shaped[Array, "..."]:
    """The entries of each window, (..., *positions, *window, channels); ``x`` is padded already.

    >>> entries_of_windows(jnp.arange(4.0)[:, None], (2,), slide((4,), (2,), 2))[..., 0]
    Array([[0., 1.],
           [2., 3.]], dtype=float32)
    """
    first = x.ndim - 1 - len(window)
    for axis, (k, span, stride, step) in enumerate(zip(window, *windows[:3], strict=True), first):
        reach = (x.shape[axis] - span) // stride * stride + 1  # from the first start of a window to one past the last
        starts = range(0, k * step, step)
        parts = [lax.slice_in_dim(x, start, start + reach, stride, axis) for start in starts]
        x = jnp.stack(parts, -2)  # windows of the axes before, then of this one, then channels
    return x


def slices_of_entries(
    x: Shaped[Array, "..."], window: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Iterator[Array]:
    """The slice of each entry of all windows, in row-major order; ``x`` is padded already.

    The sequences have a number for each axis of ``x``, 1 without windows.

    >>> [entry.tolist() for entry in slices_of_entries(jnp.arange(5.0), (2,), (3,), (1,))]
    [[0.0, 3.0], [1.0, 4.0]]
    """
    last = [d * (k - 1) for k, d in zip(window, dilations, strict=True)]
    # From the first start of a window to one past the last, so that a slice has one entry for each window.
    reach = [(n - end - 1) // s * s + 1 for n, end, s in zip(x.shape, last, strides, strict=True)]
    for entry in np.ndindex(*window):
        start = [e * d for e, d in zip(entry, dilations, strict=True)]
        yield lax.slice(x, start, [a + r for a, r in zip(start, reach, strict=True)], strides)


def sum_of_windows(
    x: Shaped[Array, "..."], window: Sequence[int], selected: Int8[Array, "..."] | None = None
) -> Shaped[Array, "..."]:
    """The sum of each of adjacent windows, or of its entry with the index ``selected``; the transpose is a broadcast.

    ``window`` has a size for each axis of ``x``, 1 without windows, and ``selected`` has the shape of the result.
    Entries after the last whole window belong to none.

    >>> (
    ...     sum_of_windows(jnp.arange(5.0), (2,)),
    ...     sum_of_windows(jnp.arange(5.0), (2,), jnp.array([1, 0], jnp.int8)),
    ... )
    (Array([1., 5.], dtype=float32), Array([1., 2.], dtype=float32))
    """
    counts = [n // k for n, k in zip(x.shape, window, strict=True)]
    within = tuple(range(1, 2 * x.ndim, 2))
    # (count, window, count, window, ...): the odd axes are those within a window.
    x = lax.slice(x, [0] * x.ndim, [n * k for n, k in zip(counts, window, strict=True)])
    x = x.reshape([size for pair in zip(counts, window, strict=True) for size in pair])
    if selected is not None:
        numbers = np.arange(math.prod(window), dtype=np.int8).reshape([n for k in window for n in (1, k)])
        x = lax.select(jnp.equal(lax.expand_dims(selected, within), numbers), x, lax.full_like(x, 0))
    return lax.reduce_sum(x, within)


def _channels_first(x: Shaped[ArrayOrShape, "..."], axes: int, channels: int | None = None) -> str:
    """The end of an error message, where the ``channels`` of ``x`` seem to stand before its spatial axes."""
    first, *spatial = x.shape[-axes - 1 :]
    # Few channels and then larger sizes; one spatial axis is too short a hint.
    seems = first == channels or (axes > 1 and at_most(first, 4) and all(at_most(5, n) for n in spatial))
    return f"; if the channels of x are first, write jnp.moveaxis(x, {len(x.shape) - axes - 1}, -1)" if seems else ""


def warn_channels_first(x: Shaped[ArrayOrShape, "..."], axes: int) -> None:
    """Warn where ``x`` is clearly ``(..., channels, height, width)``: 1 or 3 channels, then equal sizes above 4.

    ``init`` accepts any number of channels, so the layer would convolve over the channels without an error.
    """
    first, *spatial = x.shape[-axes - 1 :]
    # Only for gray and color images that are square, where channels last is implausible: a warning must be right.
    if first in (1, 3) and len(set(spatial)) == 1 and _channels_first(x, axes):
        expected = f"{public_name()} expected channels last, (..., *spatial, channels), got {describe(x)}"
        warn(f"{expected}{_channels_first(x, axes)}.")


def products_on_axis(positions: int, taps: int, inputs: int, stride: int, before: int, holes: int, spread: int) -> int:
    """The pairs of a position and a tap on one axis of a convolution that read an input, not padding or a hole.

    >>> # 3 x 4 without those of the two borders
    >>> products_on_axis(4, 3, 4, stride=1, before=1, holes=1, spread=1)
    10
    """
    place = np.arange(positions)[:, None] * stride + np.arange(taps)[None, :] * spread - before
    return int(((place % holes == 0) & (place >= 0) & (place < inputs * holes)).sum())


# The name of jitted calls that are a convolution in a form that multiplies by more zeros, or by other primitives, as
# `jaxblocks.layers.conv` has them on CPU.
_WITH_ZEROS = "convolution_with_zeros"


def name_with_zeros(used: int, computed: int) -> str:
    """The name of such a call: of its ``computed`` products, ``used`` have an input as a factor, the others padding."""
    return f"{_WITH_ZEROS}_{used}_of_{computed}"


def share_of_products(params: Mapping[str, Any]) -> tuple[int, int] | None:
    """The numbers in the name of such a call; ``None`` for any other equation."""
    name = str(params.get("name"))
    if not name.startswith(_WITH_ZEROS):
        return None
    used, computed = name.removeprefix(f"{_WITH_ZEROS}_").split("_of_")
    return int(used), int(computed)
