"""Charts: curves and bands, bars, and tables of numbers as colors, images and printed cells."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.plotting.axes import HATCHES, PALE, PALETTE, axes_or_new
from jaxblocks.plotting.styles import legend, look

__all__ = ["bars", "cells", "curves", "matrix", "schedules", "tiles"]


def curves(x: Any, ys: Any, ax: Any = None) -> Any:
    """Several curves over one axis.

    Args:
        x: (n,).
        ys: by label, the values at ``x``, (n,), or a function of ``x``, or a pair (low, high) of such, drawn as a band.
            A label that begins with ``_`` is not shown. One array or function needs no label.
        ax: axes, or ``None`` for new ones.

    >>> axes = curves(np.linspace(-1, 1, 5), {"ReLU": relu, "line": lambda x: x})
    >>> axes.lines[0].get_ydata()
    array([0. , 0. , 0. , 0.5, 1. ])
    """
    x = np.asarray(x, np.float64)
    # Matplotlib leaves labels that begin with an underscore out of the legend.
    ys = ys if isinstance(ys, Mapping) else {"_": ys}
    ax = axes_or_new(ax)
    line = band = 0
    for label, y in ys.items():
        if isinstance(y, tuple):
            low, high = (_values(label, x, edge) for edge in y)
            # zorder below that of lines, so that bands are behind all of them.
            ax.fill_between(x, low, high, color=PALE[band % len(PALE)], linewidth=0, label=label, zorder=0.5)
            band += 1
        else:
            ax.plot(x, _values(label, x, y), label=label, **look(line))
            line += 1
    legend(ax)
    return ax


@checked
def schedules(values: Callable | Mapping[str, Callable], steps: PositiveInt, ax: Any = None) -> Any:
    """Schedules over steps: learning rates of optax, or any functions of the number of a step.

    Args:
        values: a schedule, or several by label.
        steps: the last step; the first one is 0.
        ax: axes, or ``None`` for new ones.

    >>> import optax
    >>> rate = optax.warmup_cosine_decay_schedule(0.0, 1e-3, warmup_steps=2, decay_steps=4)
    >>> [float(f"{y:.5f}") for y in schedules(rate, 4).lines[0].get_ydata()]
    [0.0, 0.0005, 0.001, 0.0005, 0.0]
    """
    numbers = jnp.arange(steps + 1)
    values = values if isinstance(values, Mapping) else {"_": values}
    ax = curves(np.arange(steps + 1), {label: jax.vmap(f)(numbers) for label, f in values.items()}, ax)
    ax.set_xlabel("step")
    return ax


def _values(label, x, y):
    y = np.asarray(y(jnp.asarray(x)) if callable(y) else y, np.float64)
    got = f"x of shape {x.shape} and values of shape {y.shape} for {label!r}"
    repair = "pass several curves as a dict from labels to values"
    require(y.shape == x.shape and x.ndim == 1, "x of shape (n,) and a value for each", got, repair)
    return y


@checked
def bars(series: Any, names: Sequence, ax: Any = None, *, numbers: str = "{:.3g}") -> Any:
    """Groups of bars: one group for each name, in it one bar for each series, with its value above.

    Args:
        series: by label, the values, (n,); one array needs no label.
        names: of the n groups.
        ax: axes, or ``None`` for new ones.
        numbers: the format of the values; ``""`` omits them.

    >>> axes = bars({"scores": [0, 1], "weights": [0.25, 0.75]}, ["first", "second"])
    >>> [float(bar.get_height()) for bar in axes.patches]
    [0.0, 1.0, 0.25, 0.75]
    """
    series = series if isinstance(series, Mapping) else {"_": series}
    ax = axes_or_new(ax)
    require(len(series) > 0, "at least one series", "none", 'pass for instance {"loss": [1.0]}')
    width = 0.8 / len(series)
    for i, (label, heights) in enumerate(series.items()):
        heights = np.asarray(heights, np.float64)
        fits = heights.shape == (len(names),)
        repair = f"pass {heights.size} names" if heights.ndim else "pass the values in a list"
        if heights.ndim == 2:
            repair = "pass dict(enumerate(series)) for one series in each row"
        require(fits, f"a value for each of the {len(names)} names", f"shape {heights.shape} for {label!r}", repair)
        places = np.arange(len(names)) + (i - (len(series) - 1) / 2) * width
        look = dict(color=PALETTE[i % len(PALETTE)], hatch=HATCHES[i % len(HATCHES)], edgecolor="white")
        drawn = ax.bar(places, heights, width, label=label, **look)
        if numbers:
            ax.bar_label(drawn, [numbers.format(h) for h in heights], fontsize=7, padding=1)
    ax.set_xticks(range(len(names)), names)
    ax.axhline(0, color="black", linewidth=0.8)
    ax.margins(y=0.1)
    legend(ax)
    return ax


@checked
def matrix(
    values: Any,
    ax: Any = None,
    *,
    rows: Sequence | None = None,
    columns: Sequence | None = None,
    numbers: str = "{:.2g}",
) -> Any:
    """Heat map of a matrix with its entries; 0 is white, and mixed signs are orange and violet.

    Args:
        values: (rows, columns).
        ax: axes, or ``None`` for new ones.
        rows, columns: their names.
        numbers: the format of entries other than 0; ``""`` omits them. Matrices of more than 200 entries have a
            color bar instead.

    >>> axes = matrix([[1.0, 0.0], [-2.0, 1.0]])
    >>> [text.get_text() for text in axes.texts]
    ['1', '-2', '1']
    """
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    values = np.asarray(values, np.float64)
    require(values.ndim == 2, "an array (rows, columns)", values, "reshape it")
    ax = axes_or_new(ax)
    # The scale is that of the finite entries.
    size = np.max(abs(values), initial=0.0, where=np.isfinite(values)) or 1.0
    signed = (values < 0).any()
    # Without the palest blues, which do not differ from the white of 0.
    shades = colormaps["PuOr_r"] if signed else ListedColormap(colormaps["Blues"](np.linspace(0.12, 1, 256)))
    # Masked entries have no color: 0 is white.
    image = ax.imshow(np.ma.masked_equal(values, 0), cmap=shades, vmin=-size if signed else 0, vmax=size)
    if numbers and values.size <= 200:
        for (i, j), value in np.ndenumerate(values):
            if value:
                # White numbers on dark cells.
                dark = abs(value) > 0.6 * size
                words = dict(ha="center", va="center", fontsize=7, color="white" if dark else "black")
                ax.text(j, i, numbers.format(value), **words)
    elif numbers:
        ax.figure.colorbar(image, ax=ax)
    for axis, names, count in zip((ax.yaxis, ax.xaxis), (rows, columns), values.shape, strict=True):
        if names is not None:
            require(len(names) == count, f"{count} names of rows or columns", len(names), "pass one for each")
            axis.set_ticks(range(count), names)
        elif count <= 12:
            axis.set_ticks(range(count))
    ax.spines[:].set_visible(True)
    return ax


@checked
def tiles(images: Any, ax: Any = None, *, columns: PositiveInt = 4) -> Any:
    """Images of one size side by side, each in shades of gray from white (its minimum) to black (its maximum).

    Args:
        images: (n, height, width).
        ax: axes, or ``None`` for new ones.
        columns: images in a row.

    >>> axes = tiles(np.arange(12.0).reshape(3, 2, 2), columns=3)
    >>> axes.images[0].get_array().shape  # a gap of one on every side
    (4, 10)
    """
    from matplotlib import colormaps

    images = np.asarray(images, np.float64)
    repair = "write images[None] for one image" if images.ndim == 2 else "write images[..., 0] for one channel"
    require(images.ndim == 3, "images (n, height, width)", images, repair)
    ax = axes_or_new(ax)
    n, height, width = images.shape
    rows = -(-n // columns)
    # NaN between the images is drawn as pale lines, one pixel wide.
    whole = np.full((rows * (height + 1) + 1, columns * (width + 1) + 1), np.nan)
    # Pixels that are not finite are drawn like the lines.
    images = np.where(np.isfinite(images), images, np.nan)
    options: dict[str, Any] = dict(axis=(1, 2), keepdims=True, where=np.isfinite(images))
    low, high = np.min(images, initial=np.inf, **options), np.max(images, initial=-np.inf, **options)
    for i, image in enumerate((images - low) / np.where(high > low, high - low, 1)):
        top, left = (i // columns) * (height + 1) + 1, (i % columns) * (width + 1) + 1
        whole[top : top + height, left : left + width] = image
    ax.imshow(np.ma.masked_invalid(whole), cmap=colormaps["Grays"].with_extremes(bad=PALE[0]), vmin=0, vmax=1)
    ax.set_axis_off()
    return ax


def cells(values: Any, ax: Any = None) -> Any:
    """A tensor of order 0 to 3 as cells with its entries; order 3 is drawn as overlapping slices of its first axis.

    Args:
        values: of any shape with at most three axes.
        ax: axes, or ``None`` for new ones.

    >>> len(cells(np.arange(24).reshape(2, 3, 4)).patches)
    24
    """
    from matplotlib.patches import Rectangle

    values = np.asarray(values)
    require(values.ndim <= 3, "a tensor of order 0 to 3", values, "select a slice")
    ax = axes_or_new(ax)
    block = values.reshape((1,) * (3 - values.ndim) + values.shape)
    depth, height, width = block.shape
    shift = 0.45
    for k in reversed(range(depth)):  # the first slice is in front
        for (i, j), value in np.ndenumerate(block[k]):
            # Slices behind are shifted to the upper right, so that their last row and column stay visible.
            x, y = j + shift * k, height - 1 - i + shift * k
            ax.add_patch(
                Rectangle((x, y), 1, 1, facecolor=PALE[k % len(PALE)], edgecolor="black", zorder=2 * (depth - k))
            )
            visible = k == 0
            place = (x + 0.5, y + 0.5) if visible else (x + 1 - shift / 2, y + 1 - shift / 2)
            ax.text(
                *place, f"{value:g}", ha="center", va="center", fontsize=9 if visible else 7, zorder=2 * (depth - k) + 1
            )
    behind = shift * (depth - 1)
    ax.set(xlim=(-0.1, width + behind + 0.1), ylim=(-0.1, height + behind + 0.1), aspect="equal")
    ax.set_axis_off()
    return ax
