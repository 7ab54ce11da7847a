"""Plots: each function takes data first and axes last, and returns the Matplotlib axes that it drew on.

They share one style: colors that color-blind readers can distinguish (Okabe & Ito), each with its own dash, marker or
hatch, so that they remain distinguishable in grayscale. `style` applies it to other plots too, such
as those of the ``plot`` methods of records. Without ``ax``, new axes are made.

Matplotlib is imported at the first call: ``pip install jaxblocks[plot]``.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxblocks.checks import PositiveInt, checked
from jaxblocks.errors import require
from jaxblocks.matplotlib_axes import DASHES, GRAY, HATCHES, MARKERS, PALE, PALETTE, axes_or_new

__all__ = [
    "GRAY",
    "PALE",
    "PALETTE",
    "bars",
    "boundary",
    "cells",
    "contact_sheet",
    "curves",
    "diagram",
    "matrix",
    "network",
    "points",
    "style",
    "surface",
    "tiles",
    "trajectories",
]


def style() -> Any:
    """A context in which all plots have the style of this module: ``with style(): ...``.

    >>> import pytest
    >>> matplotlib = pytest.importorskip("matplotlib")
    >>> with style():
    ...     matplotlib.rcParams["image.cmap"]
    'cividis'
    """
    import matplotlib
    from cycler import cycler

    return matplotlib.rc_context(
        {
            "axes.prop_cycle": cycler(color=PALETTE) + cycler(linestyle=DASHES),
            "axes.spines.right": False,
            "axes.spines.top": False,
            "axes.titlesize": 10,
            "font.size": 9,
            "hatch.linewidth": 0.6,
            "image.cmap": "cividis",
            "legend.edgecolor": "none",
            "legend.fontsize": 8,
            "lines.linewidth": 1.6,
            "savefig.dpi": 150,
        }
    )


# ---- functions of one variable ------------------------------------------------------------


def curves(x: Any, ys: Any, ax: Any = None) -> Any:
    """Several curves over one axis.

    Args:
        x: (n,).
        ys: by label, the values at ``x``, (n,), or a function of ``x``, or a pair (low, high) of such, drawn as a band.
            A label that begins with ``_`` is not shown. One array or function needs no label.
        ax: axes, or ``None`` for new ones.

    >>> import pytest
    >>> ax = pytest.importorskip("matplotlib.figure").Figure().subplots()
    >>> axes = curves(np.linspace(-1, 1, 5), {"ReLU": relu, "line": lambda x: x}, ax)
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
            ax.plot(x, _values(label, x, y), label=label, **_look(line))
            line += 1
    _legend(ax)
    return ax


def _look(i) -> dict[str, Any]:
    """Color and dash of the i-th line: repeated colors have other dashes."""
    return dict(color=PALETTE[i % len(PALETTE)], linestyle=DASHES[(i + i // len(PALETTE)) % len(DASHES)])


def _values(label, x, y):
    y = np.asarray(y(jnp.asarray(x)) if callable(y) else y, np.float64)
    got = f"x of shape {x.shape} and values of shape {y.shape} for {label!r}"
    repair = "pass several curves as a dict from labels to values"
    require(y.shape == x.shape and x.ndim == 1, "x of shape (n,) and a value for each", got, repair)
    return y


# ---- numbers ------------------------------------------------------------------------------


@checked
def bars(series: Any, names: Sequence, ax: Any = None, *, numbers: str = "{:.3g}") -> Any:
    """Groups of bars: one group for each name, in it one bar for each series, with its value above.

    Args:
        series: by label, the values, (n,); one array needs no label.
        names: of the n groups.
        ax: axes, or ``None`` for new ones.
        numbers: the format of the values; ``""`` omits them.

    >>> import pytest
    >>> ax = pytest.importorskip("matplotlib.figure").Figure().subplots()
    >>> axes = bars({"scores": [0, 1], "weights": [0.25, 0.75]}, ["first", "second"], ax)
    >>> [float(bar.get_height()) for bar in axes.patches]
    [0.0, 1.0, 0.25, 0.75]
    """
    series = series if isinstance(series, Mapping) else {"_": series}
    ax = axes_or_new(ax)
    width = 0.8 / len(series)
    for i, (label, heights) in enumerate(series.items()):
        heights = np.asarray(heights, np.float64)
        fits = heights.shape == (len(names),)
        require(fits, f"a value for each of the {len(names)} names", f"shape {heights.shape} for {label!r}")
        places = np.arange(len(names)) + (i - (len(series) - 1) / 2) * width
        look = dict(color=PALETTE[i % len(PALETTE)], hatch=HATCHES[i % len(HATCHES)], edgecolor="white")
        drawn = ax.bar(places, heights, width, label=label, **look)
        if numbers:
            ax.bar_label(drawn, [numbers.format(h) for h in heights], fontsize=7, padding=1)
    ax.set_xticks(range(len(names)), names)
    ax.axhline(0, color="black", linewidth=0.8)
    ax.margins(y=0.1)
    _legend(ax)
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

    >>> import pytest
    >>> ax = pytest.importorskip("matplotlib.figure").Figure().subplots()
    >>> axes = matrix([[1.0, 0.0], [-2.0, 1.0]], ax)
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

    >>> import pytest
    >>> ax = pytest.importorskip("matplotlib.figure").Figure().subplots()
    >>> axes = tiles(np.arange(12.0).reshape(3, 2, 2), ax, columns=3)
    >>> axes.images[0].get_array().shape  # a gap of one on every side
    (4, 10)
    """
    from matplotlib import colormaps

    images = np.asarray(images, np.float64)
    require(images.ndim == 3, "images (n, height, width)", images)
    ax = axes_or_new(ax)
    n, height, width = images.shape
    rows = -(-n // columns)
    # NaN between the images is drawn as pale lines, one pixel wide.
    whole = np.full((rows * (height + 1) + 1, columns * (width + 1) + 1), np.nan)
    low, high = images.min((1, 2), keepdims=True), images.max((1, 2), keepdims=True)
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

    >>> import pytest
    >>> ax = pytest.importorskip("matplotlib.figure").Figure().subplots()
    >>> len(cells(np.arange(24).reshape(2, 3, 4), ax).patches)
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
                *place, f"{value:g}", ha="center", va="center", fontsize=9 if visible else 6, zorder=2 * (depth - k) + 1
            )
    behind = shift * (depth - 1)
    ax.set(xlim=(-0.1, width + behind + 0.1), ylim=(-0.1, height + behind + 0.1), aspect="equal")
    ax.set_axis_off()
    return ax


# ---- the plane ----------------------------------------------------------------------------


@checked
def points(x: Any, labels: Any = None, ax: Any = None, *, names: Sequence | None = None) -> Any:
    """Points of the plane, with a color and a marker for each class.

    Args:
        x: (n, 2).
        labels: integers, (n,); without them all points are of one class.
        ax: axes, or ``None`` for new ones.
        names: of the classes.

    >>> import pytest
    >>> ax = pytest.importorskip("matplotlib.figure").Figure().subplots()
    >>> axes = points([[0, 0], [0, 1], [1, 0]], [0, 1, 1], ax, names=["zero", "one"])
    >>> [(part.get_label(), len(part.get_offsets())) for part in axes.collections]
    [('zero', 1), ('one', 2)]
    """
    x = np.asarray(x, np.float64)
    labels = np.zeros(len(x), int) if labels is None else np.asarray(labels).astype(int)
    fits = x.ndim == 2 and x.shape[1] == 2 and labels.shape == (len(x),)
    require(fits, "points (n, 2) and n labels", f"shapes {x.shape} and {labels.shape}")
    ax = axes_or_new(ax)
    for k in np.unique(labels):
        i = int(k) % len(PALETTE)
        name = f"_class {k}" if names is None else names[int(k)]
        look = dict(s=28, marker=MARKERS[i], color=PALETTE[i], edgecolors="white", linewidths=0.5)
        ax.scatter(*x[labels == k].T, label=name, **look)
    _legend(ax)
    return ax


@checked
def boundary(f: Callable, box: Any, ax: Any = None, *, samples: PositiveInt = 200) -> Any:
    """Decision regions of a classifier in the plane, in pale colors of the classes, and the decision boundary.

    Args:
        f: from (n, 2) to scores; the class is the sign of one score, (n,) or (n, 1), or the largest of several,
            (n, classes).
        box: ((lowest x, highest x), (lowest y, highest y)).
        ax: axes, or ``None`` for new ones.
        samples: along each axis. Smaller details are not resolved; for a net of rectifiers,
            ``theory.regions(...).plot(level=0)`` is exact.

    >>> import pytest
    >>> ax = pytest.importorskip("matplotlib.figure").Figure().subplots()
    >>> axes = boundary(lambda x: x[:, 0] - x[:, 1], ((0, 1), (0, 1)), ax, samples=5)
    >>> axes.images[0].get_array()[0]  # at the lowest y: class 1 where x > y
    masked_array(data=[0, 1, 1, 1, 1],
                 mask=False,
           fill_value=999999)
    """
    from matplotlib.colors import ListedColormap

    ax = axes_or_new(ax)
    across, along, scores = _on_grid(f, box, samples)
    # One output is a logit, several are scores of classes.
    classes = (scores[..., 0] > 0).astype(int) if scores.shape[-1] == 1 else scores.argmax(-1)
    count = max(2, scores.shape[-1])
    # imshow centers its pixels on the samples, so the picture extends half a pixel beyond them.
    half = [np.ptp(axis) / (samples - 1) / 2 for axis in (across, along)]
    extent = (across[0] - half[0], across[-1] + half[0], along[0] - half[1], along[-1] + half[1])
    shades = ListedColormap([PALE[i % len(PALE)] for i in range(count)])
    look = dict(origin="lower", extent=extent, aspect="auto", interpolation="nearest", zorder=0)
    ax.imshow(classes, cmap=shades, vmin=-0.5, vmax=count - 0.5, **look)
    for k in range(1) if scores.shape[-1] == 1 else range(count):
        rest = np.delete(scores, k, -1)
        # The boundary of a class is where its score equals the largest of the others; contours of the class number
        # itself would be stairs.
        lead = scores[..., k] - (rest.max(-1) if rest.size else 0)
        if lead.min() < 0 < lead.max():
            ax.contour(across, along, lead, levels=[0], colors="black", linewidths=1)
    ax.set(xlim=box[0], ylim=box[1])
    return ax


@checked
def trajectories(f: Callable, paths: Mapping, ax: Any = None, *, box: Any = None, samples: PositiveInt = 120) -> Any:
    """Trajectories over the contours of a function of two variables, or over the graph of a function of one.

    A dot marks the start of a path, a star its end.

    Args:
        f: from (n, 2), or (n,), to (n,).
        paths: by label, the points, (steps, 2) or (steps,).
        ax: axes, or ``None`` for new ones.
        box: ((lowest x, highest x), (lowest y, highest y)), for one variable (lowest x, highest x); by default around
            the paths.
        samples: of the grid along each axis.

    >>> import pytest
    >>> ax = pytest.importorskip("matplotlib.figure").Figure().subplots()
    >>> axes = trajectories(
    ...     lambda x: (x**2).sum(1), {"down": [[1.0, 1.0], [0.5, 0.5], [0.25, 0.25]]}, ax
    ... )
    >>> axes.lines[0].get_xdata()
    array([1.  , 0.5 , 0.25])
    """
    ax = axes_or_new(ax)
    paths = {label: np.asarray(path, np.float64) for label, path in paths.items()}
    shapes = {path.shape[1:] for path in paths.values()}
    require(shapes in ({()}, {(2,)}), "paths that are all (steps,) or all (steps, 2)", f"steps of shapes {shapes}")
    plane = shapes == {(2,)}
    if box is None:
        every = np.concatenate(list(paths.values()))
        low, high = every.min(0), every.max(0)
        # A path along one axis has no extent along the other one.
        margin = np.where(high > low, (high - low) / 8, 1.0)
        # (2, 2) in the plane, (2,) for a function of one variable.
        box = np.stack([low - margin, high + margin], -1)
    if plane:
        across, along, heights = _on_grid(f, box, samples)
        heights = heights[..., 0]
        least, most = heights.min(), heights.max()
        # Squared, so that the levels are close to each other near the minimum, where the paths end.
        levels = least + (most - least) * np.linspace(0.04, 1, 12) ** 2
        ax.contour(across, along, heights, levels=levels, colors="0.75", linewidths=0.7)
        places = {label: path.T for label, path in paths.items()}
        ax.set(xlim=box[0], ylim=box[1])
    else:
        line = np.linspace(box[0], box[1], samples)
        ax.plot(line, np.asarray(f(jnp.asarray(line))), color=GRAY, linewidth=1, label="_graph")
        places = {label: (path, np.asarray(f(jnp.asarray(path)))) for label, path in paths.items()}
    for i, (label, (x, y)) in enumerate(places.items()):
        ax.plot(x, y, marker=MARKERS[i % len(MARKERS)], markersize=3, linewidth=1.2, label=label, **_look(i))
        ax.plot(x[:1], y[:1], "o", color="black", markersize=5, label="_start")
        ax.plot(x[-1:], y[-1:], "*", color="black", markersize=9, label="_end")
    _legend(ax)
    return ax


@checked
def surface(f: Any, box: Any, ax: Any = None, *, samples: PositiveInt = 41) -> Any:
    """The graph of a function of two variables in 3D, with its contour lines below.

    Args:
        f: from (n, 2) to (n,) or (n, 1), or its values on the grid, (samples, samples), one row for each y.
        box: ((lowest x, highest x), (lowest y, highest y)).
        ax: axes with ``projection="3d"``, or ``None`` for new ones.
        samples: along each axis.

    >>> import pytest
    >>> figure = pytest.importorskip("matplotlib.figure").Figure()
    >>> axes = surface(
    ...     lambda x: x[:, 0] * x[:, 1],
    ...     ((-1, 1), (-2, 2)),
    ...     figure.add_subplot(projection="3d"),
    ... )
    >>> [float(edge) for edge in (*axes.get_xlim(), *axes.get_ylim())]
    [-1.0, 1.0, -2.0, 2.0]
    """
    ax = axes_or_new(ax, subplot_kw={"projection": "3d"})
    three = getattr(ax, "name", None) == "3d"
    require(three, "axes in three dimensions", "others", 'make them with projection="3d"')
    if callable(f):
        across, along, heights = _on_grid(f, box, samples)
        heights = heights[..., 0]
    else:
        heights = np.asarray(f, np.float64)
        across, along = (
            np.linspace(edges[0], edges[1], count) for edges, count in zip(box, heights.shape[::-1], strict=True)
        )
    x, y = np.meshgrid(across, along)
    # The contours lie below the surface, on the bottom of the box.
    bottom = heights.min() - 0.4 * (np.ptp(heights) or 1.0)
    ax.plot_surface(x, y, heights, cmap="cividis", rcount=samples, ccount=samples, linewidth=0)
    if np.ptp(heights):
        ax.contour(x, y, heights, levels=8, offset=bottom, cmap="cividis", linewidths=0.8)
    ax.set(xlim=box[0], ylim=box[1], zlim=(bottom, heights.max() + 1e-9))
    ax.locator_params(nbins=3)
    ax.tick_params(labelsize=6, pad=-3)
    return ax


def _on_grid(f, box, samples) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The axes of a grid over the box, and the values of f on it, (y, x, outputs)."""
    across, along = (np.linspace(edges[0], edges[1], samples) for edges in box)
    places = np.stack(np.meshgrid(across, along), -1).reshape(-1, 2)
    values = np.asarray(f(jnp.asarray(places)), np.float64)
    fits = values.ndim in (1, 2) and len(values) == len(places)
    got = f"one from {places.shape} to {values.shape}"
    require(fits, "a function of all points at once, from (n, 2) to (n,)", got, "use jax.vmap")
    return across, along, values.reshape(samples, samples, -1)


# ---- drawings -----------------------------------------------------------------------------


@checked
def network(params: Any, ax: Any = None, *, names: Sequence[str] | None = None) -> Any:
    """The nodes and edges of a net of dense layers, from its params.

    One edge for each weight that is not 0: solid and blue where it is positive, dashed and vermilion where negative,
    with a width proportional to its size. Inputs are on the left.

    Args:
        params: a tree with ``kernel`` matrices, (in, out), in the order of the layers.
        ax: axes, or ``None`` for new ones.
        names: of the columns of nodes, below them.

    >>> import pytest
    >>> ax = pytest.importorskip("matplotlib.figure").Figure().subplots()
    >>> params = MLP(5, 1).init(jax.random.key(0), jnp.zeros(2))
    >>> axes = network(params, ax)
    >>> sum(len(part.get_segments()) for part in axes.collections[:2])  # 2 * 5 + 5
    15
    """
    from matplotlib.collections import LineCollection

    kernels = [np.asarray(kernel, np.float64) for kernel in _kernels(params)]
    sizes = [len(kernels[0]), *(kernel.shape[1] for kernel in kernels)] if kernels else []
    fits = len(kernels) > 0 and all(len(kernel) == size for kernel, size in zip(kernels, sizes[:-1], strict=True))
    got = f"shapes {[kernel.shape for kernel in kernels]}"
    require(fits, "kernels (in, out) of layers in series", got, "pass the params of dense layers in series")
    if names is not None:
        require(len(names) == len(sizes), f"a name for each of the {len(sizes)} columns", len(names))
    ax = axes_or_new(ax)
    tall = max(sizes)
    # Columns of fewer nodes are shorter, but not in proportion, so that the edges between a narrow and a wide layer are
    # apart.
    height = lambda n: (np.arange(n)[::-1] - (n - 1) / 2) * (tall - 1) / max(n - 1, 1) * (0.35 + 0.65 * n / tall)
    columns = [np.stack([np.full(n, float(i)), height(n)], -1) for i, n in enumerate(sizes)]
    # Widths are relative to the largest weight of all kernels.
    largest = max(abs(kernel).max() for kernel in kernels) or 1.0
    # Thinner lines in a net of many weights, where they overlap.
    widest = 1.8 * min(1.0, 5 / max(1, sum(int(np.count_nonzero(kernel)) for kernel in kernels)) ** 0.5)
    for sign, label, look in (
        (1, "weight > 0", dict(colors=PALETTE[0], linestyles="solid")),
        (-1, "weight < 0", dict(colors=PALETTE[1], linestyles=[(0, (4, 1.5))])),
    ):
        lines, widths = [], []
        for i, kernel in enumerate(kernels):
            for a, b in np.argwhere(sign * kernel > 0):
                lines.append([columns[i][a], columns[i + 1][b]])
                widths.append(0.4 + widest * abs(kernel[a, b]) / largest)
        ax.add_collection(LineCollection(lines, linewidths=widths, label=label if lines else "_none", zorder=1, **look))
    nodes = np.concatenate(columns)
    ax.scatter(*nodes.T, s=min(180.0, 2200.0 / tall), color="white", edgecolors="black", zorder=2, label="_nodes")
    bottom = nodes[:, 1].min()
    for i, words in enumerate(names or ()):
        ax.annotate(words, (i, bottom), (0, -14), textcoords="offset points", ha="center", va="top", fontsize=8)
    room = 0.35 * max(tall - 1, 1) / 4
    ax.set(xlim=(-0.3, len(sizes) - 0.7), ylim=(bottom - (2.2 if names else 1) * room, -bottom + room))
    ax.set_axis_off()
    return ax


def _kernels(params):
    """The matrices named kernel, in order."""
    if isinstance(params, Mapping):
        if "kernel" in params and np.ndim(params["kernel"]) == 2:
            return [params["kernel"]]
        params = tuple(params.values())
    return [kernel for part in params for kernel in _kernels(part)] if isinstance(params, tuple | list) else []


@checked
def diagram(
    places: Mapping, arrows: Sequence, ax: Any = None, *, texts: Mapping | None = None, shade: Mapping | None = None
) -> Any:
    """A diagram of labeled boxes and arrows between them.

    Args:
        places: by name, (x, y) of its box.
        arrows: pairs (from, to) of names, or triples with a label of the arrow.
        ax: axes, or ``None`` for new ones.
        texts: by name, the text in the box, by default the name.
        shade: by name, an integer: boxes of one kind have one shade.

    >>> import pytest
    >>> ax = pytest.importorskip("matplotlib.figure").Figure().subplots()
    >>> axes = diagram({"x": (0, 0), "f": (1, 0)}, [("x", "f", "then")], ax)
    >>> [text.get_text() for text in axes.texts]
    ['x', 'f', '', 'then']
    """
    ax = axes_or_new(ax)
    texts, shade = texts or {}, shade or {}
    missing = {name for arrow in arrows for name in arrow[:2]} - set(places)
    require(not missing, "a place for each box of an arrow", f"none for {sorted(missing)}", "add them to places")
    # Matplotlib clips an arrow at a patch, so the texts are drawn before the arrows.
    boxes = {}
    for name, place in places.items():
        look = dict(boxstyle="round,pad=0.35", facecolor=PALE[shade.get(name, 0) % len(PALE)], edgecolor="black")
        words = ax.text(*place, texts.get(name, name), ha="center", va="center", fontsize=8, bbox=look, zorder=2)
        boxes[name] = words.get_bbox_patch()
    for start, stop, *words in arrows:
        ends = np.array([places[start], places[stop]], float)
        clipped = dict(patchA=boxes[start], patchB=boxes[stop], shrinkA=2, shrinkB=2)  # from edge to edge of the boxes
        look = dict(arrowstyle="-|>", color=GRAY, linewidth=1, mutation_scale=9)
        ax.annotate("", ends[1], ends[0], arrowprops=look | clipped, zorder=3)  # after the boxes have their places
        if words:
            # The label is above a level arrow and to the right of a steep one, where it does not cover the line.
            level = abs(ends[0, 1] - ends[1, 1]) < abs(ends[0, 0] - ends[1, 0])
            offset, ha, va = ((0, 4), "center", "bottom") if level else ((5, 0), "left", "center")
            look = dict(textcoords="offset points", ha=ha, va=va, fontsize=7, color=GRAY)
            ax.annotate(words[0], ends.mean(0), offset, **look)
    x, y = np.array(list(places.values()), float).T
    ax.set(xlim=(x.min() - 0.5, x.max() + 0.5), ylim=(y.min() - 0.5, y.max() + 0.5))
    ax.set_axis_off()
    return ax


@checked
def contact_sheet(pictures: Mapping, *, columns: PositiveInt = 4) -> list:
    """A grid of pictures in one figure, each with its name above; returns a list of axes, one for each picture.

    ``axes[0].figure.savefig("sheet.png")`` saves the figure.

    Args:
        pictures: by name, an image (height, width, channels) or the path of one.
        columns: pictures in a row.

    >>> import pytest
    >>> matplotlib = pytest.importorskip("matplotlib")
    >>> axes = contact_sheet({"black": np.zeros((2, 3, 3)), "white": np.ones((2, 3, 3))})
    >>> [ax.get_title() for ax in axes]
    ['black', 'white']
    """
    from matplotlib.figure import Figure
    from matplotlib.image import imread

    require(len(pictures) > 0, "pictures by name", "none")
    columns = min(columns, len(pictures))
    images = [picture if hasattr(picture, "shape") else imread(picture) for picture in pictures.values()]
    slopes = np.array([image.shape[0] / image.shape[1] for image in images])
    tall = [slopes[i : i + columns].max() for i in range(0, len(images), columns)]  # of each row
    figure = Figure(figsize=(4.8 * columns, 4.8 * sum(tall) + 0.3 * len(tall)), layout="constrained")
    places = figure.subplots(len(tall), columns, squeeze=False, height_ratios=tall).ravel()
    for ax in places:
        ax.set_axis_off()
    for ax, name, image in zip(places, pictures, images, strict=False):
        ax.imshow(image, interpolation="lanczos")
        ax.set_title(name, fontsize=9)
    return list(places[: len(pictures)])


def _legend(ax):
    """Draw a legend where there are labels."""
    if ax.get_legend_handles_labels()[1]:
        ax.legend(frameon=True, framealpha=0.85, edgecolor="none", fontsize=8)
