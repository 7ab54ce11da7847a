r"""The geometry of windows that slide over an array: how far they reach, what is padded, where they fit.

Along one axis, a window of :math:`k` entries with dilation :math:`d` spans :math:`d(k-1)+1`
positions. On an input of :math:`n`, padded by :math:`p` in front and :math:`q` behind, it fits at

.. math:: m = \lfloor (n + p + q - d(k-1) - 1) / s \rfloor + 1

positions, a stride :math:`s` apart. Convolution and pooling share what is said here.
"""

import operator
import warnings
from collections.abc import Sequence
from typing import SupportsIndex, TypeAlias

from jaxblocks.checks import describe

__all__ = [
    "Padding",
    "PerAxis",
    "as_axes",
    "as_whole",
    "as_window",
    "channels_first",
    "pads_of",
    "per_axis",
    "positions",
    "require_padding",
    "require_spatial",
    "warn_channels_first",
]

PerAxis: TypeAlias = SupportsIndex | Sequence[SupportsIndex]
Padding: TypeAlias = str | SupportsIndex | Sequence

_NAMES = ("valid", "same", "causal")


def as_whole(value) -> int | None:
    """The ``int`` that a whole number is, numpy's included; ``None`` for anything else.

    >>> as_whole(3), as_whole(3.0), as_whole(True)
    (3, None, None)
    """
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def as_axes(where: str, axes) -> tuple[int, ...]:
    """Axes as a tuple of ``int``, from one or several.

    >>> as_axes("LayerNorm", -1)
    (-1,)
    """
    several = (axes,) if as_whole(axes) is not None else axes
    whole = tuple(map(as_whole, several)) if isinstance(several, Sequence) else (None,)
    if None in whole:
        raise ValueError(f"{where} expects axes to be whole numbers, but {axes!r} came; pass some such as (-2, -1).")
    return whole


def per_axis(where: str, name: str, value: PerAxis, axes: int, least: int = 1) -> tuple[int, ...]:
    """One whole number for each axis, from one for all of them or from a sequence.

    >>> per_axis("conv", "stride", 2, axes=3)
    (2, 2, 2)
    >>> per_axis("conv", "stride", (2, 0), axes=2)
    Traceback (most recent call last):
    ...
    ValueError: conv expects stride to be a whole number >= 1, or 2 of them, one per spatial axis, but (2, 0) came; \
pass 1 or more, such as stride=(1, 1).
    """
    values = (value,) * axes if as_whole(value) is not None else value
    whole = tuple(map(as_whole, values)) if isinstance(values, Sequence) else ()
    if len(whole) != axes or any(v is None or v < least for v in whole):
        each = f", or {axes} of them, one per spatial axis" if axes > 1 else ""
        example = 3 if name == "window" else least
        raise ValueError(
            f"{where} expects {name} to be a whole number >= {least}{each}, but {value!r} came; "
            f"pass {least} or more, such as {name}={example if axes == 1 else (example,) * axes}."
        )
    return whole


def as_window(where: str, window: PerAxis, name: str = "window") -> tuple[int, ...]:
    """The sizes of a window: a number stands for one spatial axis, a tuple has one per axis, up to three.

    >>> as_window("conv", 3)
    (3,)
    """
    window = (window,) if as_whole(window) is not None else window
    axes = len(window) if isinstance(window, Sequence) else 1
    if not 1 <= axes <= 3:
        raise ValueError(
            f"{where} works on one to three spatial axes, but its {name} is {window!r}; give it one number per spatial "
            f"axis, such as {name}=(3, 3)."
        )
    return per_axis(where, name, window, axes)


def pads_of(where: str, padding: Padding, sizes: Sequence[int], spans: Sequence[int], strides: Sequence[int]):
    """The padding of each axis as a pair, before and after.

    ``padding`` is one of the following for all axes, or a sequence of them with one for each axis:

    - ``"valid"``: none;
    - ``"same"``: the output has one position for each stride of the input, :math:`\\lceil n/s \\rceil`;
      what cannot be split evenly goes behind;
    - ``"causal"``: all in front, so that no output reads beyond its own position;
    - a number, for both ends, or a pair of numbers, ``(before, after)``.

    >>> pads_of("conv", (1, (2, 0)), sizes=(5, 5), spans=(3, 3), strides=(1, 1))
    ((1, 1), (2, 0))
    >>> pads_of("conv", "same", sizes=(5, 6), spans=(3, 4), strides=(1, 2))
    ((1, 1), (1, 1))
    """
    every = (padding,) * len(sizes) if isinstance(padding, str) or as_whole(padding) is not None else padding
    if not isinstance(every, Sequence) or len(every) != len(sizes):
        raise _bad_padding(where, padding, len(sizes))
    pads = []
    for one, n, span, stride in zip(every, sizes, spans, strides, strict=True):
        if one == "same":
            total = max((-(-n // stride) - 1) * stride + span - n, 0)
            one = (total // 2, total - total // 2)
        else:
            one = {"valid": (0, 0), "causal": (span - 1, 0)}.get(one, one) if isinstance(one, str) else one
            one = (one, one) if as_whole(one) is not None else one
        pair = tuple(map(as_whole, one)) if isinstance(one, Sequence) else ()
        if len(pair) != 2 or any(p is None or p < 0 for p in pair):
            raise _bad_padding(where, padding, len(sizes))
        pads.append(pair)
    return tuple(pads)


def positions(where: str, x, sizes: Sequence[int], spans: Sequence[int], strides: Sequence[int], pads) -> tuple:
    """How many windows fit along each spatial axis of ``x``; at least one, or a ``ValueError``.

    >>> import jax.numpy as jnp
    >>> positions("conv", jnp.zeros((5, 1)), (5,), spans=(3,), strides=(1,), pads=((0, 0),))
    (3,)
    """
    room = tuple(n + before + after for n, (before, after) in zip(sizes, pads, strict=True))
    if any(span > n for span, n in zip(spans, room, strict=True)):
        raise ValueError(
            f"{where} has a window that spans {tuple(spans)} positions (dilation included), but its input spans only "
            f"{room} (padding included): {describe(x)}; choose a smaller window, or padding='same'."
            + channels_first(x, len(sizes))
        )
    return tuple((n - span) // stride + 1 for n, span, stride in zip(room, spans, strides, strict=True))


def require_spatial(where: str, x, axes: int) -> None:
    """Raise a ``ValueError`` unless ``x`` has this many spatial axes and one of channels.

    >>> import jax.numpy as jnp
    >>> require_spatial("conv", jnp.zeros((5, 1)), axes=2)
    Traceback (most recent call last):
    ...
    ValueError: conv has a window of 2 axes, so it expects x (..., *spatial, channels) with 2 spatial axes and one of \
channels, but float32 (5, 1) came; add the axis that is missing, as in x[..., None].
    """
    if len(x.shape) < axes + 1:
        raise ValueError(
            f"{where} has a window of {axes} ax{'i' if axes == 1 else 'e'}s, so it expects x (..., *spatial, channels) "
            f"with {axes} spatial ax{'i' if axes == 1 else 'e'}s and one of channels, but {describe(x)} came; "
            "add the axis that is missing, as in x[..., None]."
        )


def channels_first(x, axes: int) -> str:
    """A remark for an error sentence, where ``x`` looks as if its channels stood before its spatial axes."""
    first = len(x.shape) - axes - 1
    if axes > 1 and x.shape[first] <= 4 < min(x.shape[first + 1 :]):
        return f" If channels come first in x, write jnp.moveaxis(x, {first}, -1)."
    return ""


def warn_channels_first(where: str, x, axes: int) -> None:
    """Warn where ``x`` is unmistakably ``(..., channels, height, width)``: 1 or 3, and then equal sizes above 4.

    Such an ``x`` fits wherever the layer is fresh, and would be convolved over its channels in silence.
    """
    first = len(x.shape) - axes - 1
    spatial = set(x.shape[first + 1 :])
    if axes > 1 and x.shape[first] in (1, 3) and len(spatial) == 1 and min(spatial) > 4:
        warnings.warn(
            f"{where} expects channels last, (..., *spatial, channels), but {describe(x)} came, whose channels seem to "
            f"come first; if they do, write jnp.moveaxis(x, {first}, -1).",
            stacklevel=3,
        )


def require_padding(where: str, padding: Padding, axes: int) -> None:
    """Raise unless ``padding`` is one that `pads_of` takes for so many axes; for builders, which know no sizes yet.

    >>> require_padding("Conv", "causal", 1)
    """
    pads_of(where, padding, (1,) * axes, (1,) * axes, (1,) * axes)


def _bad_padding(where, padding, axes):
    hint = " (one axis with a pair is written ((2, 0),))" if axes == 1 else ""
    return ValueError(
        f"{where} expects padding to be one of {', '.join(map(repr, _NAMES))}, a whole number >= 0, or a sequence with "
        f"a name, a number or a pair (before, after) for each of {axes} spatial axes{hint}, but {padding!r} came."
    )
