"""Drawings of nets, and sheets of several pictures."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.plotting.axes import GRAY, PALE, PALETTE, axes_or_new

__all__ = ["contact_sheet", "diagram", "network"]


@checked
def network(params: Any, ax: Any = None, *, names: Sequence[str] | None = None) -> Any:
    """The nodes and edges of a net of dense layers, from its params.

    One edge for each weight that is not 0: solid and blue where it is positive, dashed and vermilion where negative,
    with a width proportional to its size. Inputs are on the left.

    Args:
        params: a tree with ``kernel`` matrices, (in, out), in the order of the layers.
        ax: axes, or ``None`` for new ones.
        names: of the columns of nodes, below them.

    >>> params = MLP(5, 1).init(jax.random.key(0), jnp.zeros(2))
    >>> axes = network(params)
    >>> sum(len(part.get_segments()) for part in axes.collections[:2])  # 2 * 5 + 5
    15
    """
    from matplotlib.collections import LineCollection

    kernels = [np.asarray(kernel, np.float64) for kernel in _kernels(params)]
    sizes = [len(kernels[0]), *(kernel.shape[1] for kernel in kernels)] if kernels else []
    fits = len(kernels) > 0 and 0 not in sizes and [*map(len, kernels)] == sizes[:-1]
    got = f"shapes {[kernel.shape for kernel in kernels]}"
    require(fits, "kernels (in, out) of layers in series", got, "pass the params of dense layers in series")
    if names is not None:
        repair = f"pass for instance names={['x', *['hidden'] * (len(sizes) - 2), 'y']}"
        require(len(names) == len(sizes), f"a name for each of the {len(sizes)} columns", len(names), repair)
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

    >>> axes = diagram({"x": (0, 0), "f": (1, 0)}, [("x", "f", "then")])
    >>> [text.get_text() for text in axes.texts]
    ['x', 'f', '', 'then']
    """
    ax = axes_or_new(ax)
    texts, shade = texts or {}, shade or {}
    pairs = len(places) > 0 and all(np.shape(place) == (2,) for place in places.values())
    require(pairs, "a place (x, y) for each of one or more boxes", str(places), 'pass for instance {"a": (0, 0)}')
    fits = all(isinstance(arrow, tuple | list) and len(arrow) in (2, 3) for arrow in arrows)
    require(fits, "arrows (from, to) or (from, to, label)", str(arrows), 'pass for instance [("a", "b")]')
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

    >>> axes = contact_sheet({"black": np.zeros((2, 3, 3)), "white": np.ones((2, 3, 3))})
    >>> [ax.get_title() for ax in axes]
    ['black', 'white']
    """
    from matplotlib.figure import Figure
    from matplotlib.image import imread

    repair = 'pass for instance {"loss": "loss.png"}'
    require(isinstance(pictures, Mapping), "pictures by name", pictures, repair, error=TypeError)
    require(len(pictures) > 0, "pictures by name", "none", 'pass for instance {"loss": "loss.png"}')
    columns = min(columns, len(pictures))
    images = [picture if hasattr(picture, "shape") else imread(picture) for picture in pictures.values()]
    shapes = [image.shape for image in images]
    fits = all(len(shape) in (2, 3) and 0 not in shape for shape in shapes)
    require(fits, "images (height, width, channels)", f"shapes {shapes}", "leave out what is no image")
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
