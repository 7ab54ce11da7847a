"""Functions and points in the plane: decision boundaries, trajectories, surfaces."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.plotting.axes import GRAY, MARKERS, PALE, PALETTE, axes_or_new
from jaxblocks.plotting.styles import legend, look

__all__ = ["boundary", "points", "surface", "trajectories"]


@checked
def points(x: Any, labels: Any = None, ax: Any = None, *, names: Sequence | None = None) -> Any:
    """Points of the plane, with a color and a marker for each class.

    Args:
        x: (n, 2).
        labels: integers, (n,); without them all points are of one class.
        ax: axes, or ``None`` for new ones.
        names: of the classes.

    >>> axes = points([[0, 0], [0, 1], [1, 0]], [0, 1, 1], names=["zero", "one"])
    >>> [(part.get_label(), len(part.get_offsets())) for part in axes.collections]
    [('zero', 1), ('one', 2)]
    """
    x = np.asarray(x, np.float64)
    labels = np.zeros(len(x), int) if labels is None else np.asarray(labels)
    numbers, repair = labels.dtype.kind not in "OSU", "pass np.unique(labels, return_inverse=True)[1], and names"
    require(numbers, "labels that are integers", f"{labels.dtype} {labels.shape}", repair, error=TypeError)
    labels = labels.astype(int)
    fits = x.ndim == 2 and x.shape[1] == 2 and labels.shape == (len(x),)
    repair = "select two features, x[:, :2]" if x.ndim == 2 and x.shape[1] > 2 else "pass rows of two numbers in x"
    if x.ndim == 2 and x.shape[1] == 2:
        repair = "pass np.ravel(labels)" if labels.size == len(x) else f"pass {len(x)} labels"
    require(fits, "points (n, 2) and n labels", f"shapes {x.shape} and {labels.shape}", repair)
    if names is not None:
        low, most = int(labels.min(initial=0)), int(labels.max(initial=-1)) + 1
        require(low >= 0, "labels from 0, the places of their names", f"a label {low}", "count from 0")
        require(most <= len(names), f"a name for each of the {most} labels", len(names), "add the others to names")
    ax = axes_or_new(ax)
    for k in np.unique(labels):
        i = int(k) % len(PALETTE)
        name = f"_class {k}" if names is None else names[int(k)]
        look = dict(s=28, marker=MARKERS[i], color=PALETTE[i], edgecolors="white", linewidths=0.5)
        ax.scatter(*x[labels == k].T, label=name, **look)
    legend(ax)
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

    >>> axes = boundary(lambda x: x[:, 0] - x[:, 1], ((0, 1), (0, 1)), samples=5)
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

    >>> axes = trajectories(
    ...     lambda x: (x**2).sum(1), {"down": [[1.0, 1.0], [0.5, 0.5], [0.25, 0.25]]}
    ... )
    >>> axes.lines[0].get_xdata()
    array([1.  , 0.5 , 0.25])
    """
    ax = axes_or_new(ax)
    repair = 'pass for instance {"down": [1.0, 0.5]}'
    require(isinstance(paths, Mapping), "paths by label", paths, repair, error=TypeError)
    paths = {label: np.asarray(path, np.float64) for label, path in paths.items()}
    shapes = {path.shape[1:] for path in paths.values()}
    expected, got = "paths that are all (steps,) or all (steps, 2)", f"steps of shapes {shapes}"
    repair = "select one coordinate of each, path[:, 0], or two, path[:, :2]" if paths else 'pass {"down": [1.0, 0.5]}'
    require(shapes in ({()}, {(2,)}), expected, got, repair)
    plane = shapes == {(2,)}
    if box is None:
        every = np.concatenate(list(paths.values()))
        require(len(every) > 0, "paths with points", "none", "pass box= for paths without points")
        low, high = every.min(0), every.max(0)
        # A path along one axis has no extent along the other one.
        margin = np.where(high > low, (high - low) / 8, 1.0)
        # (2, 2) in the plane, (2,) for a function of one variable.
        box = np.stack([low - margin, high + margin], -1)
    if plane:
        across, along, heights = _on_grid(f, box, samples)
        heights = np.ma.masked_invalid(heights[..., 0])
        least, most = heights.min(), heights.max()
        if least < most:  # a constant has no contours
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
        ax.plot(x, y, marker=MARKERS[i % len(MARKERS)], markersize=3, linewidth=1.2, label=label, **look(i))
        ax.plot(x[:1], y[:1], "o", color="black", markersize=5, label="_start")
        ax.plot(x[-1:], y[-1:], "*", color="black", markersize=9, label="_end")
    legend(ax)
    return ax


@checked
def surface(f: Any, box: Any, ax: Any = None, *, samples: PositiveInt = 41) -> Any:
    """The graph of a function of two variables in 3D, with its contour lines below.

    Args:
        f: from (n, 2) to (n,) or (n, 1), or its values on the grid, (samples, samples), one row for each y.
        box: ((lowest x, highest x), (lowest y, highest y)).
        ax: axes with ``projection="3d"``, or ``None`` for new ones.
        samples: along each axis.

    >>> axes = surface(lambda x: x[:, 0] * x[:, 1], ((-1, 1), (-2, 2)))
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
        require(heights.ndim == 2, "a function, or heights (y, x)", heights, "pass one number for each point of a grid")
        _check_box(box)
        sides = zip(box, heights.shape[::-1], strict=True)
        across, along = (np.linspace(low, high, count) for (low, high), count in sides)
    x, y = np.meshgrid(across, along)
    require(bool(np.isfinite(heights).all()), "finite heights", "others", "choose a box where f is finite")
    # The contours lie below the surface, on the bottom of the box.
    bottom = heights.min() - 0.4 * (np.ptp(heights) or 1.0)
    ax.plot_surface(x, y, heights, cmap="cividis", rcount=samples, ccount=samples, linewidth=0)
    if np.ptp(heights):
        ax.contour(x, y, heights, levels=8, offset=bottom, cmap="cividis", linewidths=0.8)
    ax.set(xlim=box[0], ylim=box[1], zlim=(bottom, heights.max() + 1e-9))
    ax.locator_params(nbins=3)
    ax.tick_params(labelsize=7, pad=-3)
    return ax


def _check_box(box) -> None:
    expected, repair = "box=((lowest x, highest x), (lowest y, highest y))", "pass for instance ((-1, 1), (-1, 1))"
    require(np.shape(box) == (2, 2), expected, str(box), repair)


def _on_grid(f, box, samples) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The axes of a grid over the box, and the values of f on it, (y, x, outputs)."""
    _check_box(box)
    require(samples > 1, "two samples or more along each axis", samples, "leave samples out")
    across, along = (np.linspace(low, high, samples) for low, high in box)
    places = np.stack(np.meshgrid(across, along), -1).reshape(-1, 2)
    values = np.asarray(f(jnp.asarray(places)), np.float64)
    fits = values.ndim in (1, 2) and len(values) == len(places)
    got = f"one from {places.shape} to {values.shape}"
    require(fits, "a function of all points at once, from (n, 2) to (n,)", got, "use jax.vmap")
    return across, along, values.reshape(samples, samples, -1)
