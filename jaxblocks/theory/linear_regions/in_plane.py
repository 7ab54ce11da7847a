r"""The linear regions of a net in a plane through its inputs.

The net is converted once to a list of steps, each of them affine in the input or a comparison. The box that bounds the
slice is the first polygon. At each comparison every unit is an affine function on every polygon found so far, so each
polygon is divided along the line where this function is zero. Nothing is sampled, so no region is missed. All
arithmetic is in float64, independently of the dtype of the net.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import PyTree

from jaxblocks.checks.errors import require
from jaxblocks.core.pairs import LayerLike
from jaxblocks.plotting.axes import PALETTE, axes_or_new
from jaxblocks.theory.arrays import ArrayLike, real_array
from jaxblocks.theory.linear_regions.bounds import arrangement_regions, region_lower_bound
from jaxblocks.theory.linear_regions.polygons import (
    TOLERANCE,
    Polygons,
    at_corners,
    centers,
    components,
    concatenate,
    maps_differ,
    rounding,
    shared_edges,
    split,
    whole_box,
)
from jaxblocks.theory.linear_regions.records import RegionCounts
from jaxblocks.theory.piecewise_affine.plane import AffineMaps, Program, evaluator, program_on_plane

__all__ = ["Regions", "regions"]

Box = tuple[tuple[float, float], tuple[float, float]]


@dataclass(frozen=True, repr=False)
class Regions(RegionCounts):
    """The result of `regions`: the polygons into which a net divides a slice of its inputs, with a table and a plot.

    Attributes:
        vertices: corners of the polygons, counter-clockwise, in coordinates (u, v) of the slice, (n, k, 2); `polygons`
            returns them without repetitions.
        corners: the number of corners of each polygon, (n,).
        offsets, slopes: the affine map in each polygon, ``offsets[i] + slopes[i] @ (u, v)``: ``(n, *out)`` and
            ``(n, *out, 2)`` for a net with outputs of shape ``out``.
        linear_region: the number of the linear region to which each polygon belongs, (n,).
        patterns: the comparisons that are positive in each polygon, (n, units) Booleans, in the order of the units of
            the net: for ``relu``, whether the unit is on.
        neighbors, edges: pairs of polygons that share an edge, (m, 2), and that edge, (m, 2, 2).
        widths: the number of entries of each comparison of the net; in a plain ReLU net, the widths of the hidden
            layers.
        origin, directions: the plane of the slice: the input is ``origin + u * directions[0] + v * directions[1]``.
        box: ((lowest u, highest u), (lowest v, highest v)).
    """

    vertices: np.ndarray
    corners: np.ndarray
    offsets: np.ndarray
    slopes: np.ndarray
    linear_region: np.ndarray
    patterns: np.ndarray
    neighbors: np.ndarray
    edges: np.ndarray
    widths: tuple[int, ...]
    origin: np.ndarray
    directions: np.ndarray
    box: tuple[tuple[float, float], tuple[float, float]]

    @property
    def polygons(self) -> list[np.ndarray]:
        """The corners of each activation region, (corners, 2)."""
        return [polygon[:count] for polygon, count in zip(self.vertices, self.corners, strict=True)]

    @property
    def centers(self) -> np.ndarray:
        """A point inside each polygon, (n, 2)."""
        return centers(self.vertices, self.corners)

    @property
    def areas(self) -> np.ndarray:
        """The areas of the polygons, in coordinates (u, v), (n,)."""
        # The shoelace formula; repeated corners add 0.
        x = self.vertices - self.vertices[:, :1]
        y = np.roll(x, -1, 1)
        return (x[..., 0] * y[..., 1] - x[..., 1] * y[..., 0]).sum(1) / 2

    @property
    def bound(self) -> int:
        """An upper bound on the number of activation regions, by Zaslavsky's count for each comparison of the net."""
        return math.prod(arrangement_regions(n, 2) for n in self.widths)

    def inputs_at(self, points) -> np.ndarray:
        """The inputs of the net at points (u, v) of the slice: (..., 2) to (..., *inputs)."""
        return self.origin + np.tensordot(np.asarray(points, np.float64), self.directions, 1)

    def level_set(self, level: int | float = 0.0, output: int = 0) -> np.ndarray:
        """The exact set where an output equals ``level``, as segments (m, 2, 2); ``level=0`` gives a decision boundary.

        Where the set contains whole polygons, their boundary is returned. An edge that two polygons share is listed
        once.

        >>> found = regions(lambda x: jnp.abs(x[0]) + jnp.abs(x[1]) - 0.5)  # a diamond
        >>> found.level_set().shape
        (4, 2, 2)
        """
        offsets, slopes = self._output(output)
        at_corners = offsets[:, None] - level + np.einsum("nkd,nd->nk", self.vertices, slopes)
        # A corner on the level up to rounding counts as exactly on it: otherwise two polygons with this corner could
        # decide differently, and the boundary would have a gap.
        flat = abs(at_corners) <= TOLERANCE * abs(at_corners).max(initial=0.0)
        d = np.where(flat, 0.0, at_corners)
        touched = (d != 0).any(1) & (d.min(1) <= 0) & (d.max(1) >= 0)
        # A polygon on one side of the level has at most an edge on it; of two with the same edge, one is omitted.
        one_side = touched & ((d.min(1) == 0) | (d.max(1) == 0))
        i, j = self.neighbors.T
        middles = self.edges.mean(1)
        at_level = lambda of: (
            abs(offsets[of] - level + (slopes[of] * middles).sum(-1)) <= TOLERANCE * abs(at_corners).max(initial=0.0)
        )
        touched[j[one_side[i] & one_side[j] & at_level(i) & at_level(j)]] = False
        segments = []
        for i in np.flatnonzero(touched):
            count = self.corners[i]
            x, here = self.vertices[i, :count], d[i, :count]
            y, there = np.roll(x, -1, 0), np.roll(here, -1)
            cut = here * there < 0
            with np.errstate(invalid="ignore", divide="ignore"):
                # Corners on the level, and the points of edges where the value changes its sign.
                ends = [*x[here == 0], *(x + (here / (here - there))[:, None] * (y - x))[cut]]
            # A level set that touches only one corner is a point, not a segment.
            if len(ends) == 2:
                segments.append(ends)
        return np.array(segments).reshape(-1, 2, 2)

    def plot(
        self,
        ax=None,
        *,
        color_by: Literal["region", "output"] = "region",
        output: int = 0,
        level: int | float | None = None,
    ):
        """Plot the filled regions, without the edges inside a linear region; returns the axes.

        Args:
            ax: axes, or ``None`` for new axes.
            color_by: ``"region"`` for a different shade for each linear region, or ``"output"`` for the value at its
                center.
            output: the index of the output, in the flattened outputs.
            level: a thick line is drawn where that output has this value; 0 gives a decision boundary.

        The shades are those of cividis, which remain distinct to color-blind readers and in grayscale print.

        >>> found = regions(lambda x: jnp.abs(x[0] + x[1]), box=((-1, 1), (-1, 1)))
        >>> found.plot(level=0.5).get_title()
        '2 linear regions'
        """
        from matplotlib.collections import LineCollection, PolyCollection

        repair = "leave it out for one shade for each region"
        require(color_by in ("region", "output"), 'color_by to be "region" or "output"', color_by, repair)
        ax = axes_or_new(ax)
        if color_by == "region":
            golden = (np.sqrt(5) - 1) / 2  # its multiples modulo 1 are spread evenly, and consecutive ones are distant
            shade = (golden * (1 + self.linear_region)) % 1
        else:
            offsets, slopes = self._output(output)
            shade = offsets + (slopes * self.centers).sum(-1)
        faces = PolyCollection(self.polygons, array=shade, cmap="cividis", edgecolors="face", linewidths=0.2)
        ax.add_collection(faces)
        if color_by == "region":
            faces.set_clim(-0.35, 1)  # the darkest shades are reserved for the lines
        elif len(shade):
            ax.figure.colorbar(faces, ax=ax, label="output")
        # Edges between different linear regions; those inside of a region are not drawn.
        edges = self.edges[np.not_equal(*self.linear_region[self.neighbors].T)]
        width = float(np.clip(12 / np.sqrt(max(len(self), 1)), 0.15, 0.8))
        ax.add_collection(LineCollection(list(edges), colors="black", linewidths=width))
        if level is not None:
            segments = self.level_set(level, output)
            ax.add_collection(LineCollection(list(segments), colors="white", linewidths=3.2, capstyle="round"))
            ax.add_collection(LineCollection(list(segments), colors=PALETTE[1], linewidths=1.8, capstyle="round"))
        ax.set(xlim=self.box[0], ylim=self.box[1], xlabel="u", ylabel="v", aspect="equal")
        ax.set_title(f"{self.linear_count:,} linear region{'s' * (self.linear_count != 1)}")
        return ax

    def _output(self, output):
        offsets = self.offsets.reshape(len(self), -1)
        count = offsets.shape[1]
        repair = f"pass output={count - 1} for the last one"
        require(-count <= output < count, f"the number of an output, from 0 to {count - 1}", output, repair)
        return offsets[:, output], self.slopes.reshape(len(self), -1, 2)[:, output]

    def _lines(self):
        (a, b), (c, d) = self.box
        yield self.linear_count, f"linear regions for u in [{a:g}, {b:g}], v in [{c:g}, {d:g}]"
        yield self.activation_count, "activation regions"
        yield self.bound, f"at most, for layers that compare {', '.join(map(str, self.widths)) or 'nothing'}"
        if min(self.widths, default=0) > 1:
            yield region_lower_bound(self.widths, 2), "attained by folding, with hidden layers of these widths"


def regions(
    net: LayerLike,
    params: PyTree = (),
    *,
    origin: ArrayLike | None = None,
    directions: ArrayLike | None = None,
    through: ArrayLike | None = None,
    box: ArrayLike | None = None,
    **side: Any,
) -> Regions:
    r"""The exact regions of a net in a box of a plane through its inputs, each with its polygon and its affine map.

    The input is $o + u d_1 + v d_2$. A net of two inputs needs no plane: u and v are its inputs.

    Args:
        net: a pair, or a function of arrays, that is piecewise linear: dense layers, convolutions, pooling, residuals,
            scans, leaky rectifiers, maxout, clipping.
        params: the params of the pair.
        origin: $o$, an input of the net; by default zero.
        directions: $d_1, d_2$, stacked, each of the shape of an input.
        through: three inputs instead of ``origin`` and ``directions``, at (u, v) = (0, 0), (1, 0) and (0, 1).
        box: ((lowest u, highest u), (lowest v, highest v)); by default from -1 to 1, with ``through`` from -1/2 to 3/2.
        side: side inputs, as for ``apply``.

    A line passes through a corner, or along an edge, if it does so up to 1e-12 of the size of the slice, or up to the
    rounding errors of its unit if these are larger. Therefore units that are copies of other units, or zero on a whole
    polygon, do not divide it, and regions narrower than this tolerance are not found.

    The cost is proportional to the number of polygons times the size of the net: a few seconds for several hundred
    units and 50,000 regions.

    Raises:
        TypeError: for a layer with state.
        ValueError: for a net that is not piecewise linear (the error names the layer), or a slice that is not a plane.

    >>> found = regions(
    ...     lambda x: relu(x[0]) + relu(x[1]) - relu(x[0]), box=((-1, 1), (-1, 1))
    ... )
    >>> found
    2  linear regions for u in [-1, 1], v in [-1, 1]
    4  activation regions
    8  at most, for layers that compare 1, 1, 1
    >>> found.areas
    array([1., 1., 1., 1.])

    Source: Montufar, Pascanu, Cho, Bengio 2014, arXiv:1402.1869; Hanin & Rolnick 2019, arXiv:1901.09021.
    """
    origin, directions, box = _slice(origin, directions, through, box)
    # The net is divided on the box [-1, 1]^2 and scaled back, so that tolerances are relative to the size of the slice.
    middle, half = np.mean(box, 1), np.ptp(box, 1) / 2
    scaled = half.reshape(2, *(1,) * origin.ndim) * directions
    hint = "For a net of other inputs pass origin and directions (two arrays of the shape of its input), or through."
    program = program_on_plane(net, params, side, origin + np.tensordot(middle, directions, 1), scaled, hint=hint)
    polygons, output, patterns = _divide(program)
    finite = bool(np.isfinite(output.values).all() and np.isfinite(output.slopes).all())
    require(finite, "finite params", "a net whose values are not finite", "check the params for NaN")

    points = centers(polygons.vertices, polygons.corners)
    neighbors, edges = shared_edges(polygons)
    # Adjacent activation regions with one affine map belong to one linear region.
    same = ~maps_differ(output, points, neighbors, edges.mean(1))
    to_slice = lambda points: middle + half * points
    # From the scaled coordinates to those of the slice.
    slopes = output.slopes / half
    offsets = output.values - (slopes * to_slice(points)[:, None]).sum(-1)
    return Regions(
        vertices=to_slice(polygons.vertices),
        corners=polygons.corners,
        offsets=offsets.reshape(len(offsets), *program.shape),
        slopes=slopes.reshape(len(offsets), *program.shape, 2),
        linear_region=components(len(offsets), neighbors[same]),
        patterns=patterns,
        neighbors=neighbors,
        edges=to_slice(edges),
        widths=program.widths,
        origin=origin,
        directions=directions,
        box=box,
    )


def _divide(program: Program) -> tuple[Polygons, AffineMaps, np.ndarray]:
    """The activation regions in [-1, 1]^2, with the map of the output and the signs of all comparisons (n, u)."""
    run = evaluator(program)

    def evaluate(polygons):
        points = centers(polygons.vertices, polygons.corners)
        for rows, read, maps in run(points):
            yield polygons.rows(rows), points[rows], read, maps

    polygons = whole_box()
    # The kinks of a layer divide the polygons that the layers before have made: on each of these the layer is affine,
    # so that its kinks are straight lines.
    for place in range(len(program.kinks)):
        parts = [
            split(part, points, read(kinks[place]), place) for part, points, read, (_, *kinks) in evaluate(polygons)
        ]
        polygons = concatenate(parts)
    outputs, patterns = [], []
    for part, points, read, (output, *kinks) in evaluate(polygons):
        outputs.append(read(output))
        # On where the largest value on the polygon is above rounding: inside of a region the sign does not change.
        signs = [at_corners(f, part.vertices, points).max(1) > rounding(f) for f in map(read, kinks)]
        patterns.append(np.concatenate([np.zeros((len(points), 0), bool), *signs], 1))
    return polygons, AffineMaps(*map(np.concatenate, zip(*outputs, strict=True))), np.concatenate(patterns)


def _slice(origin, directions, through, box) -> tuple[np.ndarray, np.ndarray, Box]:
    """The origin, the directions and the box of a plane, checked, in float64."""
    if through is not None:
        require(origin is None and directions is None, "through, or origin and directions", "both", "omit one of them")
        points = np.atleast_1d(real_array("through", through))
        repair = "append an input that is not on their line" if len(points) == 2 else "pass three inputs"
        require(len(points) == 3, "three inputs of the net in through", len(points), repair)
        origin, directions = points[0], points[1:] - points[0]
        # The triangle of the three points and its surroundings.
        box = ((-0.5, 1.5), (-0.5, 1.5)) if box is None else box
    if directions is None:
        shape = (2,) if origin is None else np.shape(origin)
        repair = "pass directions, two arrays of this shape"
        require(shape == (2,), f"two directions for inputs of shape {shape}", "none", repair)
        directions = np.eye(2)
    directions = real_array("directions", directions)
    origin = np.zeros(directions.shape[1:]) if origin is None else real_array("origin", origin)
    shape = (2, *origin.shape)
    wanted = f"directions of shape {shape}, two in the shape of the origin"
    repair = f"write np.stack([u, v]) with u and v of shape {origin.shape}"
    require(directions.shape == shape, wanted, f"shape {directions.shape}", repair)
    flat = directions.reshape(2, -1)
    finite = bool(np.isfinite(flat).all() and np.isfinite(origin).all())
    require(finite, "an origin and directions of finite numbers", "other values", "choose other inputs")
    parallel, repair = "directions that are parallel, or zero", "along a line use regions_along"
    require(np.linalg.matrix_rank(flat) == 2, "a plane", parallel, repair)
    box = real_array("box", ((-1, 1), (-1, 1)) if box is None else box)
    fits = box.shape == (2, 2) and np.isfinite(box).all() and (box[:, 0] < box[:, 1]).all()
    expected, repair = "box=((lowest u, highest u), (lowest v, highest v))", "pass for instance ((-1, 1), (-1, 1))"
    require(bool(fits), expected, str(box.tolist()), repair)
    (a, b), (c, d) = box.tolist()
    return origin, directions, ((a, b), (c, d))
