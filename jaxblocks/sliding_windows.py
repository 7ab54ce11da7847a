r"""The geometry of windows that slide over an array, shared by convolution and pooling.

Along one axis, a window of :math:`k` entries with dilation :math:`d` spans :math:`d(k-1)+1`
positions. On an input of :math:`n` positions, padded by :math:`p` before and :math:`q` after, it fits at

.. math:: m = \lfloor (n + p + q - d(k-1) - 1) / s \rfloor + 1

positions, a stride of :math:`s` apart.
"""

import operator
import warnings
from collections.abc import Sequence
from typing import NamedTuple, SupportsIndex, TypeAlias

from jax import Array, ShapeDtypeStruct
from jaxtyping import Shaped

from jaxblocks.checks import describe, public_name, require

_ArrayOrShape = Array | ShapeDtypeStruct

__all__ = [
    "Padding",
    "PerAxis",
    "Windows",
    "as_integer",
    "channels_first",
    "check_fit",
    "check_padding",
    "check_spatial",
    "padding_per_axis",
    "pads_of",
    "per_axis",
    "slide",
    "warn_channels_first",
    "window_sizes",
]

PerAxis: TypeAlias = SupportsIndex | Sequence[SupportsIndex]
"""One integer for all spatial axes, or a sequence with one for each."""

Padding: TypeAlias = str | SupportsIndex | Sequence
"""``"valid"``, ``"same"``, ``"causal"``, an integer, or a sequence with a name, an integer or a pair for each axis."""


class Windows(NamedTuple):
    """The geometry of windows along the spatial axes, with one entry per axis in each tuple."""

    spans: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]


def slide(
    sizes: Sequence[int], window: Sequence[int], stride: PerAxis = 1, dilation: PerAxis = 1, padding: Padding = "valid"
) -> Windows:
    """The geometry of windows over an input of ``sizes`` positions.

    >>> slide((5, 6), (3, 4), stride=(1, 2), padding="same")
    Windows(spans=(3, 4), strides=(1, 2), dilations=(1, 1), pads=((1, 1), (1, 1)))
    """
    strides, dilations = per_axis("stride", stride, len(sizes)), per_axis("dilation", dilation, len(sizes))
    spans = tuple(d * (k - 1) + 1 for k, d in zip(window, dilations, strict=True))
    return Windows(spans, strides, dilations, pads_of(padding, sizes, spans, strides))


def pads_of(
    padding: Padding, sizes: Sequence[int], spans: Sequence[int], strides: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """The padding of each axis as a pair (before, after).

    ``padding`` is one of the following for all axes, or a sequence of them with one for each axis:

    - ``"valid"``: none;
    - ``"same"``: the output has one position for each stride of the input, :math:`\\lceil n/s \\rceil`;
      an odd entry is added after the input;
    - ``"causal"``: all padding before the input, so that no output depends on later positions;
    - an integer, for both ends, or a pair of integers, ``(before, after)``.

    >>> pads_of((1, (2, 0)), sizes=(5, 5), spans=(3, 3), strides=(1, 1))
    ((1, 1), (2, 0))
    """
    axes = len(sizes)
    hint = " (one axis with a pair is written ((2, 0),))" if axes == 1 else ""
    expected = "padding to be one of 'valid', 'same', 'causal', an integer >= 0, or a sequence with a name, an "
    expected += f"integer or a pair (before, after) for each of {axes} spatial axes{hint}"
    every = padding_per_axis(padding, axes)
    require(isinstance(every, Sequence) and len(every) == axes, expected, repr(padding))
    pads = []
    for one, n, span, stride in zip(every, sizes, spans, strides, strict=True):
        if one == "same":
            total = max((-(-n // stride) - 1) * stride + span - n, 0)
            one = (total // 2, total - total // 2)
        elif isinstance(one, str):
            one = {"valid": (0, 0), "causal": (span - 1, 0)}.get(one, ())
        one = (one, one) if as_integer(one) is not None else one
        pair = tuple(map(as_integer, one)) if isinstance(one, Sequence) else ()
        require(len(pair) == 2 and all(p is not None and p >= 0 for p in pair), expected, repr(padding))
        pads.append(pair)
    return tuple(pads)


def padding_per_axis(padding: Padding, axes: int) -> Sequence:
    """The padding of each axis, from one for all axes or from a sequence.

    >>> padding_per_axis("same", 2)
    ('same', 'same')
    """
    one_for_all = isinstance(padding, str) or as_integer(padding) is not None
    return (padding,) * axes if one_for_all else padding  # type: ignore[return-value]


def per_axis(name: str, value: PerAxis, axes: int, least: int = 1) -> tuple[int, ...]:
    """One integer for each axis, from one for all axes or from a sequence.

    >>> per_axis("stride", 2, axes=3)
    (2, 2, 2)
    """
    values = (value,) * axes if as_integer(value) is not None else value
    integers = tuple(map(as_integer, values)) if isinstance(values, Sequence) else ()
    each = f", or {axes} of them, one per spatial axis" if axes > 1 else ""
    example = 3 if name in ("kernel_size", "window_shape") else least
    require(
        len(integers) == axes and all(n is not None and n >= least for n in integers),
        f"{name} to be an integer >= {least}{each}",
        repr(value),
        f"pass {least} or more, such as {name}={example if axes == 1 else (example,) * axes}",
    )
    return integers  # type: ignore[return-value]


def window_sizes(name: str, value: PerAxis) -> tuple[int, ...]:
    """The sizes of a window: an integer stands for one spatial axis, a sequence has one for each of up to three.

    >>> window_sizes("kernel_size", 3)
    (3,)
    """
    value = (value,) if as_integer(value) is not None else value  # type: ignore[assignment]
    axes = len(value) if isinstance(value, Sequence) else 1
    expected = f"one integer in {name} for each of one to three spatial axes"
    require(1 <= axes <= 3, expected, repr(value), f"pass one per spatial axis, such as {name}=(3, 3)")
    return per_axis(name, value, axes)


def as_integer(value) -> int | None:
    """The ``int`` of an integer, NumPy's included; ``None`` for anything else.

    >>> as_integer(3), as_integer(3.0), as_integer(True)
    (3, None, None)
    """
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def check_padding(padding: Padding, axes: int) -> None:
    """Raise unless `pads_of` accepts this padding for ``axes`` axes; for builders, where sizes are not available.

    >>> check_padding("causal", 1)
    """
    pads_of(padding, *((1,) * axes,) * 3)


def check_spatial(x: Shaped[_ArrayOrShape, "..."], axes: int) -> None:
    """Raise a ``ValueError`` unless ``x`` has this many spatial axes and one of channels.

    >>> import jax.numpy as jnp
    >>> check_spatial(jnp.zeros((5, 5, 1)), axes=2)
    """
    s = "axis" if axes == 1 else "axes"
    expected = f"x (..., *spatial, channels) with {axes} spatial {s} and one axis of channels"
    require(len(x.shape) > axes, expected, x, "add the missing axis, as in x[..., None]")


def check_fit(windows: Windows, x: Shaped[_ArrayOrShape, "..."]) -> None:
    """Raise a ``ValueError`` unless at least one window fits into each spatial axis of ``x``.

    >>> import jax.numpy as jnp
    >>> check_fit(slide((5,), (3,)), jnp.zeros((5, 1)))
    """
    axes = len(windows.spans)
    padded = tuple(n + sum(pair) for n, pair in zip(x.shape[-axes - 1 : -1], windows.pads, strict=True))
    require(
        all(span <= n for span, n in zip(windows.spans, padded, strict=True)),
        f"an input at least as large as its windows, which span {windows.spans} positions (dilation included)",
        f"{describe(x)}, which spans {padded} (padding included)",
        "choose smaller windows, or padding='same'" + channels_first(x, axes),
    )


def channels_first(x: Shaped[_ArrayOrShape, "..."], axes: int) -> str:
    """The end of an error message, where the channels of ``x`` are probably before its spatial axes."""
    first = len(x.shape) - axes - 1
    if axes > 1 and x.shape[first] <= 4 < min(x.shape[first + 1 :]):
        return f"; if the channels of x are first, write jnp.moveaxis(x, {first}, -1)"
    return ""


def warn_channels_first(x: Shaped[_ArrayOrShape, "..."], axes: int) -> None:
    """Warn where ``x`` is clearly ``(..., channels, height, width)``: 1 or 3 channels, then equal sizes above 4.

    ``init`` accepts any number of channels, so the layer would convolve over the channels without an error.
    """
    first = len(x.shape) - axes - 1
    spatial = set(x.shape[first + 1 :])
    if axes > 1 and x.shape[first] in (1, 3) and len(spatial) == 1 and min(spatial) > 4:
        warnings.warn(
            f"{public_name()} expected channels last, (..., *spatial, channels), got {describe(x)}, whose channels "
            f"seem to be first; if they are, write jnp.moveaxis(x, {first}, -1).",
            stacklevel=3,
        )
