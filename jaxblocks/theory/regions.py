r"""Linear regions of a net, exactly: along a segment, in a plane through its inputs, and the bounds on their number.

Two kinds of region are told apart throughout.

- In an *activation region* every comparison that the net makes comes out one way: each rectifier is on or off. These
  regions are convex. A maximum over several entries counts as the comparisons of a tournament, two by two.
- In a *linear region* the net is one affine function. It is a union of neighboring activation regions, and not always
  convex: kinks of units can cancel, or be multiplied by zero.

The plane is treated as follows. The net is written once as a list of steps, each of them affine in what moves with the
input or a comparison. The box that bounds the slice is the first polygon. At each comparison every unit is an affine
function on every polygon that there is by then, so the polygon is cut along the line where this function is zero.
Nothing is sampled, so no region can hide between samples. All arithmetic is float64, whatever the dtype of the net.

    n     polygons
    k     corners of the polygon that has most; others repeat their last
    u     units: entries of one array that are compared
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from jaxblocks.activations import relu
from jaxblocks.ad.jaxprs import as_closed, body_of_call, inputs_of, piece, scan_parts
from jaxblocks.axes import axes_or_new
from jaxblocks.checks import require_whole
from jaxblocks.core import Layer
from jaxblocks.layers.combinators import Serial
from jaxblocks.layers.dense import Dense
from jaxblocks.theory.constructions import dense_params
from jaxblocks.theory.tracking import in_float64, name_of, not_affine, traced, track

__all__ = [
    "Regions",
    "SegmentRegions",
    "arrangement_regions",
    "count_regions",
    "folding_network",
    "region_lower_bound",
    "region_upper_bound",
    "regions",
    "regions_along",
]

_EPS = float(np.finfo(np.float64).eps)
_TOLERANCE = 2**12 * _EPS  # 9e-13, of a slice whose half side is 1
_BUDGET = 2**21  # numbers in one array


# ---- bounds on the number of regions -----------------------------------------------------------


def arrangement_regions(n: int, d: int) -> int:
    r"""The most cells into which n hyperplanes cut a space of d dimensions: :math:`\sum_{j=0}^{d} \binom{n}{j}`.

    Hyperplanes in general position reach it, so one hidden layer of n rectifiers on d inputs does.

    >>> arrangement_regions(20, 2), arrangement_regions(10, 2)
    (211, 56)

    Source: Zaslavsky 1975, Facing up to arrangements; Krapac & Segvic, Deep feed-forward models.
    """
    n, d = require_whole("arrangement_regions", "n", n, 0), require_whole("arrangement_regions", "d", d, 0)
    return sum(math.comb(n, j) for j in range(d + 1))


def region_upper_bound(widths: Sequence[int], d: int) -> int:
    r"""No ReLU net with hidden layers of these ``widths`` on d inputs has more activation regions.

    .. math:: \sum_{(j_1, \dots, j_L) \in J} \prod_{l=1}^{L} \binom{n_l}{j_l}, \qquad
        J = \{j : 0 \le j_l \le \min(d,\ n_1 - j_1,\ \dots,\ n_{l-1} - j_{l-1},\ n_l)\}.

    In a region where only n - j units of a layer are on, whatever follows sees at most n - j dimensions. For layers of
    2 d units and more this is the product over layers of `arrangement_regions`; for narrow ones it is sharper.

    >>> region_upper_bound((20,), 2), region_upper_bound((10, 10), 2)
    (211, 3136)

    Source: Serra, Tjandraatmadja, Ramalingam 2018, Theorem 1.
    """
    widths, d = _widths("region_upper_bound", widths), require_whole("region_upper_bound", "d", d)

    @functools.cache
    def cells(layer, seen):
        if layer == len(widths):
            return 1
        n = widths[layer]
        return sum(math.comb(n, j) * cells(layer + 1, min(seen, n - j)) for j in range(min(seen, n) + 1))

    return cells(0, d)


def region_lower_bound(widths: Sequence[int], d: int) -> int:
    r"""Some ReLU net with hidden layers of these ``widths`` on d inputs has as many linear regions as this.

    .. math:: \Big(\prod_{l=1}^{L-1} \Big\lfloor \frac{n_l}{d} \Big\rfloor^{d}\Big) \sum_{j=0}^{d} \binom{n_L}{j}

    With equal widths n it grows like :math:`(n/d)^{d(L-1)}\, n^d`, exponentially in the depth; `folding_network` is
    such a net for d = 1 and 2. It says what can be reached; random nets have far fewer regions.

    Raises:
        ValueError: where a width is smaller than d, for then the theorem says nothing.

    >>> region_lower_bound((10, 10), 2), region_lower_bound((4, 4), 2), region_lower_bound((20,), 2)
    (1400, 44, 211)

    Source: Montufar, Pascanu, Cho, Bengio 2014, Theorem 4; in Diehl 2023, Theorem 1.7 it stands as an upper bound, and
    with a binomial where the fraction n/d is meant.
    """
    widths, d = _widths("region_lower_bound", widths), require_whole("region_lower_bound", "d", d)
    if min(widths) < d:
        raise ValueError(
            f"region_lower_bound expects no layer narrower than its d = {d} inputs, but a width of {min(widths)} came; "
            "such a net can ignore inputs: take a smaller d."
        )
    *folds, last = widths
    return math.prod((n // d) ** d for n in folds) * arrangement_regions(last, d)


def _widths(where, widths):
    if not isinstance(widths, Sequence) or isinstance(widths, str) or not widths:
        raise ValueError(f"{where} expects the widths of the hidden layers, as in (10, 10), but {widths!r} came.")
    return tuple(require_whole(where, "every width", n) for n in widths)


def folding_network(widths: Sequence[int], inputs: int = 2, *, param_dtype=None) -> tuple[Layer, tuple]:
    r"""A net on the unit interval or square that has as many regions as `region_lower_bound` says, and its params.

    Each hidden layer but the last folds every coordinate :math:`p = \lfloor n/d \rfloor` times, d = ``inputs``, by

    .. math:: x \mapsto (p x)_+ - 2 (p x - 1)_+ + 2 (p x - 2)_+ - \dots,

    which goes up and down between 0 and 1: the square becomes :math:`p^2` sheets lying on one another. The last
    layer cuts what is left along lines in general position, tangents of a small circle, and with them every sheet.

    Args:
        widths: of the hidden layers.
        inputs: 1 or 2.
        param_dtype: float64 where JAX has it switched on, else float32.

    Both kinds of region reach the bound if the last layer has at least three units; with fewer the output is zero in
    places, and linear regions merge there.

    >>> net, params = folding_network((10, 10))
    >>> count_regions(net, params, box=((0, 1), (0, 1))), region_lower_bound((10, 10), 2)
    (1400, 1400)

    Source: Montufar, Pascanu, Cho, Bengio 2014, section 3.
    """
    widths = _widths("folding_network", widths)
    if inputs not in (1, 2):
        raise ValueError(f"folding_network expects 1 or 2 inputs, but {inputs!r} came; there the cuts are known.")
    region_lower_bound(widths, inputs)  # wide enough?
    *folds, last = widths
    params, undone = [], np.eye(inputs)
    for n in folds:
        p = n // inputs
        spread = np.kron(np.eye(inputs), np.full((1, p), float(p)))  # (inputs, inputs p)
        rest = (0, n - inputs * p)  # units without a use
        kernel = np.pad(undone @ spread, [(0, 0), rest])
        params += [dense_params(kernel, np.pad(-np.tile(np.arange(float(p)), inputs), rest), param_dtype), ()]
        signs = np.array([1.0, *(2 * (-1.0) ** i for i in range(1, p))])
        undone = np.pad(np.kron(np.eye(inputs), signs[:, None]), [rest, (0, 0)])  # (n, inputs)
    if inputs == 1:
        normals, offsets = np.ones((1, last)), -np.arange(1.0, last + 1) / (last + 1)
        normals[0, -1], offsets[-1] = -1.0, -offsets[-1]  # it looks the other way, so that some unit is always on
    else:
        odd = last + 1 - last % 2
        angles = 2 * np.pi * np.arange(last) / odd  # no two are opposite
        normals = np.stack([np.cos(angles), np.sin(angles)])
        offsets = 0.45 * np.sin(np.pi / (2 * odd)) - np.array([0.5, 0.5]) @ normals  # all crossings are in the square
    params += [dense_params(undone @ normals, offsets, param_dtype), ()]
    weights = np.sqrt(np.arange(2.0, last + 2))  # of which no sum vanishes
    params.append(dense_params(weights[:, None], [0.0], param_dtype))
    layers = [layer for n in widths for layer in (Dense(n), relu)]
    return Serial(*layers, Dense(1)), tuple(params)


# ---- the records -------------------------------------------------------------------------------


class _Record:
    """What both records share."""

    def __len__(self):
        return self.activation_count

    def __repr__(self):
        return self._table("plain")

    def _repr_html_(self) -> str:
        return self._table("html")

    @property
    def activation_count(self) -> int:
        """How many activation regions there are."""
        return len(self.slopes)

    @property
    def linear_count(self) -> int:
        """How many linear regions there are."""
        return int(self.linear_region.max()) + 1

    def _table(self, style):
        from tabulate import tabulate

        return tabulate(
            [[f"{count:,}", what] for count, what in self._lines()], tablefmt=style, colalign=["right", "left"]
        )


@dataclass(frozen=True, repr=False)
class Regions(_Record):
    """What `regions` returns: the polygons into which a net cuts a slice of its inputs. It prints and plots itself.

    Attributes:
        vertices: corners of the polygons, counter-clockwise, in coordinates (u, v) of the slice, (n, k, 2); `polygons`
            gives them without repetitions.
        corners: how many corners each has, (n,).
        offsets, slopes: of the affine map in each, ``offsets[i] + slopes[i] @ (u, v)``: ``(n, *out)`` and
            ``(n, *out, 2)`` for a net with outputs of shape ``out``.
        linear_region: the number of the linear region to which it belongs, (n,).
        patterns: which comparisons come out positive in it, (n, units) Booleans. Unit by unit, in the net's order: for
            ``relu`` whether the unit is on.
        neighbors, edges: pairs of polygons that share an edge, (m, 2), and that edge, (m, 2, 2).
        widths: how many entries each comparison of the net has: those of the hidden layers, in a plain ReLU net.
        origin, directions: of the slice: the input is ``origin + u * directions[0] + v * directions[1]``.
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
        return _centers(self.vertices, self.corners)

    @property
    def areas(self) -> np.ndarray:
        """Of the polygons, in coordinates (u, v), (n,)."""
        x = self.vertices - self.vertices[:, :1]
        y = np.roll(x, -1, 1)
        return (x[..., 0] * y[..., 1] - x[..., 1] * y[..., 0]).sum(1) / 2

    @property
    def bound(self) -> int:
        """The most activation regions that a slice can have, by Zaslavsky's count for each comparison of the net."""
        return math.prod(arrangement_regions(n, 2) for n in self.widths)

    def inputs_at(self, points) -> np.ndarray:
        """The inputs of the net at points (u, v) of the slice: (..., 2) to (..., *inputs)."""
        return self.origin + np.tensordot(np.asarray(points, np.float64), self.directions, 1)

    def level_set(self, level: int | float = 0.0, output: int = 0) -> np.ndarray:
        """Where an output has this value: segments (m, 2, 2), exactly; with ``level=0`` a decision boundary.

        Where whole polygons have it, their border. An edge that two polygons share comes once.

        >>> found = regions(lambda x: jnp.abs(x[0]) + jnp.abs(x[1]) - 0.5)  # a diamond
        >>> found.level_set().shape
        (4, 2, 2)
        """
        offsets, slopes = self._output(output)
        at_corners = offsets[:, None] - level + np.einsum("nkd,nd->nk", self.vertices, slopes)
        flat = abs(at_corners) <= _TOLERANCE * abs(at_corners).max(initial=0.0)
        d = np.where(flat, 0.0, at_corners)
        touched = (d != 0).any(1) & (d.min(1) <= 0) & (d.max(1) >= 0)
        # A polygon on one side of the level meets it in an edge at most: seen from both sides, the second is left out.
        one_side = touched & ((d.min(1) == 0) | (d.max(1) == 0))
        i, j = self.neighbors.T
        middles = self.edges.mean(1)
        at_level = lambda of: (
            abs(offsets[of] - level + (slopes[of] * middles).sum(-1)) <= _TOLERANCE * abs(at_corners).max(initial=0.0)
        )
        touched[j[one_side[i] & one_side[j] & at_level(i) & at_level(j)]] = False
        segments = []
        for i in np.flatnonzero(touched):
            count = self.corners[i]
            x, here = self.vertices[i, :count], d[i, :count]
            y, there = np.roll(x, -1, 0), np.roll(here, -1)
            cut = here * there < 0
            with np.errstate(invalid="ignore", divide="ignore"):
                ends = [*x[here == 0], *(x + (here / (here - there))[:, None] * (y - x))[cut]]
            if len(ends) == 2:
                segments.append(ends)
        return np.array(segments).reshape(-1, 2, 2)

    def plot(self, ax=None, *, color_by: str = "region", output: int = 0, level: int | float | None = None):
        """The regions, filled; edges inside a linear region are left out. Returns the axes.

        Args:
            ax: axes, or ``None`` for new ones.
            color_by: ``"region"``, every linear region in a shade of its own, or ``"output"``, the value at its center.
            output: which output, counted over all of them.
            level: where that output has this value a thick line is drawn: with 0 a decision boundary.

        The shades are those of cividis, which color-blind readers and gray print keep apart.

        >>> import pytest
        >>> matplotlib = pytest.importorskip("matplotlib")
        >>> matplotlib.use("agg")
        >>> axes = regions(lambda x: jnp.abs(x[0] + x[1]), box=((-1, 1), (-1, 1))).plot(level=0.5)
        >>> axes.get_title()
        '2 linear regions'
        """
        from matplotlib.collections import LineCollection, PolyCollection

        if color_by not in ("region", "output"):
            raise ValueError(f'plot knows color_by="region" and "output", but {color_by!r} came.')
        ax = axes_or_new(ax)
        if color_by == "region":
            golden = (np.sqrt(5) - 1) / 2  # multiples of it spread evenly, and neighbors in number lie far apart
            shade = (golden * (1 + self.linear_region)) % 1
        else:
            offsets, slopes = self._output(output)
            shade = offsets + (slopes * self.centers).sum(-1)
        faces = PolyCollection(self.polygons, array=shade, cmap="cividis", edgecolors="face", linewidths=0.2)
        ax.add_collection(faces)
        if color_by == "region":
            faces.set_clim(-0.35, 1)  # the darkest is for lines
        elif len(shade):
            ax.figure.colorbar(faces, ax=ax, label="output")
        edges = self.edges[np.not_equal(*self.linear_region[self.neighbors].T)]
        width = float(np.clip(12 / np.sqrt(max(len(self), 1)), 0.15, 0.8))
        ax.add_collection(LineCollection(edges, colors="black", linewidths=width))
        if level is not None:
            segments = self.level_set(level, output)
            ax.add_collection(LineCollection(segments, colors="white", linewidths=3.2, capstyle="round"))
            ax.add_collection(LineCollection(segments, colors="#c1121f", linewidths=1.8, capstyle="round"))
        ax.set(xlim=self.box[0], ylim=self.box[1], xlabel="u", ylabel="v", aspect="equal")
        ax.set_title(f"{self.linear_count:,} linear region{'s' * (self.linear_count != 1)}")
        return ax

    def _output(self, output):
        offsets = self.offsets.reshape(len(self), -1)
        if not -offsets.shape[1] <= output < offsets.shape[1]:
            raise ValueError(f"Regions has {offsets.shape[1]} outputs, but output {output} was asked for.")
        return offsets[:, output], self.slopes.reshape(len(self), -1, 2)[:, output]

    def _lines(self):
        (a, b), (c, d) = self.box
        yield self.linear_count, f"linear regions for u in [{a:g}, {b:g}], v in [{c:g}, {d:g}]"
        yield self.activation_count, "activation regions"
        yield self.bound, f"at most, for layers that compare {', '.join(map(str, self.widths)) or 'nothing'}"
        if min(self.widths, default=0) > 1:
            yield region_lower_bound(self.widths, 2), "reached by folding, with hidden layers of these widths"


@dataclass(frozen=True, repr=False)
class SegmentRegions(_Record):
    """What `regions_along` returns: the pieces into which a net cuts a segment. It prints and plots itself.

    Attributes:
        edges: of the pieces, from 0 at the start of the segment to 1 at its end, (n + 1,).
        offsets, slopes: of the affine map on each, ``offsets[i] + slopes[i] * t``: ``(n, *out)`` for a net with outputs
            of shape ``out``.
        linear_region: the number of the linear region to which a piece belongs, (n,).
        start, stop: the ends of the segment; the input is ``start + t * (stop - start)``.
    """

    edges: np.ndarray
    offsets: np.ndarray
    slopes: np.ndarray
    linear_region: np.ndarray
    start: np.ndarray
    stop: np.ndarray

    @property
    def kinks(self) -> np.ndarray:
        """Where one linear region ends and the next begins, in (0, 1)."""
        return self.edges[1:-1][np.diff(self.linear_region) > 0]

    def plot(self, ax=None, *, output: int = 0):
        """The graph of an output over the segment, its kinks marked; returns the axes.

        >>> import pytest
        >>> matplotlib = pytest.importorskip("matplotlib")
        >>> matplotlib.use("agg")
        >>> axes = regions_along(jnp.abs, (), -1.0, 2.0).plot()
        >>> axes.get_title()
        '2 linear regions'
        """
        ax = axes_or_new(ax)
        offsets, slopes = (v.reshape(len(self), -1)[:, output] for v in (self.offsets, self.slopes))
        ends = np.stack([self.edges[:-1], self.edges[1:]], 1)
        ax.plot(ends.ravel(), (offsets[:, None] + slopes[:, None] * ends).ravel())
        at_kinks = np.append(np.diff(self.linear_region) > 0, False)
        ax.plot(ends[at_kinks, 1], (offsets + slopes * ends[:, 1])[at_kinks], "o", markersize=4, label="kinks")
        ax.set(xlabel="t, from start to stop", ylabel="output")
        ax.set_title(f"{self.linear_count:,} linear region{'s' * (self.linear_count != 1)}")
        return ax

    def _lines(self):
        yield self.linear_count, "linear regions along the segment"
        yield self.activation_count, "activation regions"


# ---- regions of a net --------------------------------------------------------------------------


def regions(net, params=(), *, origin=None, directions=None, through=None, box=None, **side) -> Regions:
    r"""The regions of a net in a box of a plane through its inputs, each with its polygon and its affine map, exactly.

    The input is :math:`o + u\,d_1 + v\,d_2`. A net of two inputs needs no plane: u and v are its inputs.

    Args:
        net: a pair, or a function of arrays; whatever is piecewise linear: dense, convolution, pooling, residuals,
            scans, leaky rectifiers, maxout, clipping.
        params: those of the pair.
        origin: :math:`o`, an input of the net; by default zero.
        directions: :math:`d_1, d_2`, stacked, in the shape of inputs.
        through: instead of these, three inputs; they lie at (u, v) = (0, 0), (1, 0) and (0, 1).
        box: ((lowest u, highest u), (lowest v, highest v)); by default from -1 to 1, with ``through`` from -1/2 to 3/2.
        side: side inputs, as for ``apply``.

    A line that passes a corner of a polygon, or runs along an edge, at less than 1e-12 of the slice's size, or of the
    rounding errors of its unit where these are larger, is taken to meet it: units that are twins, or zero throughout a
    polygon, cut nothing. So real regions narrower than this are not seen.

    The work is the number of polygons times the net: some seconds for several hundred units and 50,000 regions.

    Raises:
        TypeError: for a layer with state.
        ValueError: for a net that is not piecewise linear; the layer is named. For a slice that is none.

    >>> found = regions(lambda x: relu(x[0]) + relu(x[1]) - relu(x[0]), box=((-1, 1), (-1, 1)))
    >>> found
    2  linear regions for u in [-1, 1], v in [-1, 1]
    4  activation regions
    8  at most, for layers that compare 1, 1, 1
    >>> found.areas
    array([1., 1., 1., 1.])

    Source: Montufar, Pascanu, Cho, Bengio 2014; Hanin & Rolnick 2019, for the two kinds of region.
    """
    origin, directions, box = _slice("regions", origin, directions, through, box)
    middle, half = np.mean(box, 1), np.ptp(box, 1) / 2
    scaled = half.reshape(2, *(1,) * origin.ndim) * directions
    program = _program("regions", net, params, side, origin + np.tensordot(middle, directions, 1), scaled)
    run = _compiled(program)
    cells = _box()
    for place in range(len(program.kinks)):
        cells = _split_all(run, place, cells)
    outputs, slopes, sizes, patterns = _final(run, cells)
    _require_finite("regions", outputs, slopes)
    centers = _centers(cells.vertices, cells.corners)
    neighbors, edges = _shared(cells)
    same = ~_differ(outputs, slopes, sizes, centers, neighbors, edges.mean(1))
    to_slice = lambda points: middle + half * points
    shape = program.shape
    slopes = slopes / half
    offsets = outputs - (slopes * to_slice(centers)[:, None]).sum(-1)
    return Regions(
        vertices=to_slice(cells.vertices),
        corners=cells.corners,
        offsets=offsets.reshape(len(offsets), *shape),
        slopes=slopes.reshape(len(offsets), *shape, 2),
        linear_region=_components(len(outputs), neighbors[same]),
        patterns=patterns,
        neighbors=neighbors,
        edges=to_slice(edges),
        widths=program.widths,
        origin=origin,
        directions=directions,
        box=box,
    )


def regions_along(net, params, start, stop, **side) -> SegmentRegions:
    """The regions of a net along the segment from one input to another, exactly.

    Args:
        net, params: a pair and its params, or a function of arrays and ``()``.
        start, stop: inputs of the net.
        side: side inputs, as for ``apply``.

    Raises as `regions` does.

    >>> found = regions_along(lambda x: jnp.abs(jnp.abs(x) - 1), (), -2.0, 2.0)
    >>> found.linear_count, found.kinks
    (4, array([0.25, 0.5 , 0.75]))

    Source: Hanin & Rolnick 2019, Complexity of linear regions in deep networks.
    """
    start, stop = np.asarray(start, np.float64), np.asarray(stop, np.float64)
    if start.shape != stop.shape:
        raise ValueError(f"regions_along expects two inputs of one shape, but {start.shape} and {stop.shape} came.")
    if not (np.isfinite(start).all() and np.isfinite(stop).all()) or (start == stop).all():
        raise ValueError("regions_along expects two finite inputs that differ; choose another stop.")
    function = in_float64("regions_along", net, params, side)
    at = lambda t: jnp.asarray(start) + t * jnp.asarray(stop - start)
    whole = lambda t: jax.tree.map(lambda y: y + 0 * t, function(at(t)))
    found = track("regions_along", whole, shape=(), called=name_of(net))
    low, high = np.clip(found.edges[:-1], 0, 1), np.clip(found.edges[1:], 0, 1)
    i = np.flatnonzero(high - low > _TOLERANCE)
    slopes = found.slopes[i]
    of_piece = lambda v: v.reshape(-1, *(1,) * (slopes.ndim - 1))
    offsets = found.values[i] - slopes * of_piece(found.points[i])
    _require_finite("regions_along", offsets, slopes)
    edges = np.concatenate([[0.0], (high[i[:-1]] + low[i[1:]]) / 2, [1.0]])
    rounding = np.minimum(8 * _EPS * found.noise, 1e-9 * abs(slopes).max(0))
    kinks = abs(np.diff(slopes, axis=0)) > rounding
    across = np.diff(offsets, axis=0) + np.diff(slopes, axis=0) * of_piece(edges[1:-1])
    jumps = abs(across) > 1e-9 * (abs(offsets) + abs(slopes)).max(0)
    apart = (kinks | jumps).any(tuple(range(1, slopes.ndim)))
    return SegmentRegions(edges, offsets, slopes, np.append(0, np.cumsum(apart)), start, stop)


def count_regions(net, params=(), *, segment=None, **where) -> int:
    """How many linear regions a net has in a slice of its inputs, or along a ``segment`` (start, stop).

    Arguments as for `regions` and `regions_along`, whose records also count activation regions.

    >>> count_regions(lambda x: jnp.abs(x[0]) + jnp.abs(x[1]))
    4
    >>> count_regions(lambda x: jnp.abs(x[0]) + jnp.abs(x[1]), segment=([-1.0, -1.0], [1.0, 2.0]))
    3

    Source: Montufar, Pascanu, Cho, Bengio 2014.
    """
    if segment is not None:
        return regions_along(net, params, *segment, **where).linear_count
    return regions(net, params, **where).linear_count


def _slice(where, origin, directions, through, box):
    if through is not None:
        if origin is not None or directions is not None:
            raise ValueError(f"{where} expects through, or origin and directions, but both came; leave one out.")
        points = np.asarray(through, np.float64)
        if len(points) != 3:
            raise ValueError(f"{where} expects three inputs of the net in through, but {len(points)} came.")
        origin, directions = points[0], points[1:] - points[0]
        box = ((-0.5, 1.5), (-0.5, 1.5)) if box is None else box
    if directions is None:
        if origin is not None and np.shape(origin) != (2,):
            raise ValueError(
                f"{where} expects two directions where an input is {np.shape(origin)} in shape, but none came; pass "
                "directions, two arrays of this shape."
            )
        directions = np.eye(2)
    directions = np.asarray(directions, np.float64)
    origin = np.zeros(directions.shape[1:]) if origin is None else np.asarray(origin, np.float64)
    if directions.shape != (2, *origin.shape):
        raise ValueError(
            f"{where} expects directions of shape {(2, *origin.shape)}, two in the shape of the origin, but shape "
            f"{directions.shape} came."
        )
    flat = directions.reshape(2, -1)
    if not (np.isfinite(flat).all() and np.isfinite(origin).all()):
        raise ValueError(f"{where} expects a slice of finite numbers, but others are among them.")
    if np.linalg.matrix_rank(flat) < 2:
        raise ValueError(
            f"{where} expects a plane, but its directions are parallel, or one is zero; along a line use regions_along."
        )
    box = np.asarray(((-1, 1), (-1, 1)) if box is None else box, np.float64)
    if box.shape != (2, 2) or not np.isfinite(box).all() or not (box[:, 0] < box[:, 1]).all():
        raise ValueError(
            f"{where} expects box=((lowest u, highest u), (lowest v, highest v)), but {box.tolist()} came."
        )
    return origin, directions, tuple(map(tuple, box.tolist()))


def _require_finite(where, *arrays):
    if not all(np.isfinite(array).all() for array in arrays):
        raise ValueError(f"{where} expects finite params, but the net's values are not finite; look for NaN.")


# ---- the net as a list of steps ----------------------------------------------------------------


class _Slot(NamedTuple):
    """A value that moves with the input: its number, and whether it is affine or, as comparisons are, constant."""

    number: int
    affine: bool


class _Step(NamedTuple):
    """``function(*args)`` is a list; ``sizes``, where terms are added, takes their sizes to those of the sums."""

    function: Callable
    sizes: Callable | None
    args: tuple
    outs: tuple[_Slot, ...]


class _Program:
    """A net of (u, v) in [-1, 1]^2, straightened: calls opened, loops unrolled, what does not move computed."""

    def __init__(self, where, called):
        self.where, self.called = where, called
        self.steps: list[_Step] = []
        self.kinks: list[_Slot] = []  # their entries change sign
        self.widths: tuple[int, ...] = ()
        self.widest = 2
        self.slots = itertools.count()
        self.output: _Slot
        self.shape: tuple[int, ...]

    def add(self, function, args, *shapes, affine=None, sizes=None) -> list[_Slot]:
        affine = any(map(_affine, args)) if affine is None else affine
        outs = tuple(_Slot(next(self.slots), affine) for _ in shapes)
        self.steps.append(_Step(function, sizes, tuple(args), outs))
        self.widest = max(self.widest, *map(math.prod, shapes))
        return list(outs)

    def sum(self, function, args, shape) -> _Slot:
        """A step that moves entries, or adds what has one sign."""
        return self.add(function, args, shape, sizes=function)[0]

    def kink(self, x, y, shape):
        """The entries of x and y are compared."""
        if x is y or not (_affine(x) or _affine(y)) or not math.prod(shape):
            return
        [difference] = self.add(lambda x, y: [x - y], (x, y), shape, sizes=lambda x, y: [x + y])
        self.kinks.append(difference)
        self.widths += (math.prod(shape),)

    # -- from a jaxpr

    def run(self, closed: ClosedJaxpr, args, scope="") -> list:
        jaxpr = closed.jaxpr
        values = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        values |= dict(zip(jaxpr.invars, args, strict=True))
        read = lambda v: v.val if isinstance(v, Literal) else values[v]
        for equation in jaxpr.eqns:
            results = self.step(jaxpr, equation, [read(v) for v in equation.invars], scope)
            values.update(zip(equation.outvars, results, strict=True))
        return [read(v) for v in jaxpr.outvars]

    def step(self, jaxpr, equation, args, scope) -> list:
        name, params = equation.primitive.name, equation.params
        scope = "/".join(filter(None, (scope, str(equation.source_info.name_stack))))
        if (body := body_of_call(equation)) is not None:
            return self.run(body, args, scope)
        if not any(isinstance(x, _Slot) for x in args):
            reads = inputs_of([equation])
            return piece(jaxpr, [equation], reads, equation.outvars)(*(args[equation.invars.index(v)] for v in reads))
        if name == "scan":
            return self.scan(equation, args, scope)
        args = [x if isinstance(x, _Slot) else _widened(x) for x in args]
        if not _is_affine(name, params, args):
            raise ValueError(not_affine(self.where, scope or self.called, name))
        shapes = [v.aval.shape for v in equation.outvars]
        if name in _LARGEST:
            return [self.tournament(args[0], equation.invars[0].aval.shape, params["axes"], _LARGEST[name])]
        if name == "clamp":
            low, x, high = args
            return [self.larger(self.larger(x, low, *shapes, jnp.maximum), high, *shapes, jnp.minimum)]
        if name in _COMPARED:
            self.kink(args[0], args[1] if len(args) > 1 else np.zeros(shapes[0]), shapes[0])
        if name in _UNCHANGED:
            return [args[0]]
        bind = partial(equation.primitive.bind, **{key: _wide_dtype(value) for key, value in params.items()})
        function = bind if equation.primitive.multiple_results else lambda *xs: [bind(*xs)]
        chosen = name in _COMPARED or (name == "select_n" and isinstance(args[0], _Slot))
        affine = any(map(_affine, args)) and name not in _CONSTANT
        return self.add(function, args, *shapes, affine=affine, sizes=None if chosen else _SIZES.get(name, function))

    def larger(self, x, y, shape, choose):
        """The ``maximum`` or ``minimum`` of two, one of which may be a number."""
        self.kink(x, y, shape)
        return self.add(lambda x, y: [jnp.broadcast_to(choose(x, y), shape)], (x, y), shape)[0]

    def tournament(self, x, shape, axes, choose):
        """The largest (or least) entries over some axes, compared two by two."""
        kept = tuple(n for axis, n in enumerate(shape) if axis not in axes)
        count = math.prod(shape[axis] for axis in axes)
        x = self.sum(lambda x: [jnp.moveaxis(x, axes, range(len(axes))).reshape(-1, *kept)], [x], (count, *kept))
        while count > 1:
            half, odd = divmod(count, 2)
            cuts = [(0, half), (half, 2 * half), (2 * half, count)][: 2 + odd]
            left, right, *rest = (
                self.sum(lambda x, low=low, high=high: [x[low:high]], [x], (high - low, *kept)) for low, high in cuts
            )
            x = self.larger(left, right, (half, *kept), choose)
            if rest:
                x = self.sum(lambda *xs: [jnp.concatenate(xs)], (x, *rest), (half + 1, *kept))
            count = half + odd
        return self.sum(lambda x: [x[0]], [x], kept)

    def scan(self, equation, args, scope):
        p = equation.params
        body = as_closed(p["jaxpr"])
        first, carried = scan_parts(equation)
        consts, carry, xs = args[:first], args[first : first + carried], args[first + carried :]
        made: list[list] = []
        for i in reversed(range(p["length"])) if p["reverse"] else range(p["length"]):
            entries = [
                self.sum(lambda x, i=i: [x[i]], [x], v.aval.shape) if isinstance(x, _Slot) else x[i]
                for x, v in zip(xs, body.jaxpr.invars[first + carried :], strict=True)
            ]
            results = self.run(body, [*consts, *carry, *entries], scope)
            carry = results[:carried]
            made.append(results[carried:])
        parts = zip(*(made[::-1] if p["reverse"] else made), strict=True)
        shapes = [v.aval.shape for v in equation.outvars[carried:]]
        stack = lambda *xs: [jnp.stack(xs)]
        stacked = [self.sum(stack, each, shape) for each, shape in zip(parts, shapes, strict=True)]
        return [*carry, *stacked]


def _program(where, net, params, side, origin, directions):
    closed = traced(where, in_float64(where, net, params, side), origin.shape)
    with jax.enable_x64(True):
        program = _Program(where, name_of(net))
        point = _Slot(next(program.slots), affine=True)
        onto = lambda directions: lambda uv, origin: [origin + jnp.tensordot(uv, jnp.asarray(directions), 1)]
        [x] = program.add(onto(directions), (point, origin), origin.shape, sizes=onto(abs(directions)))
        [y] = program.run(closed, [x])
        program.shape = closed.out_avals[0].shape
        if not _affine(y):  # constant on pieces, or throughout: it moves with slope 0
            y = program.sum(lambda uv, y: [jnp.asarray(y, jnp.float64) + 0 * jnp.sum(uv)], (point, y), program.shape)
        program.output = y
    return program


def _affine(x):
    return isinstance(x, _Slot) and x.affine


def _widened(x):
    return jnp.asarray(x, jnp.float64) if jnp.issubdtype(jnp.result_type(x), jnp.floating) else x


def _wide_dtype(value):
    """A parameter of a primitive; a floating dtype becomes float64."""
    is_dtype = isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic))
    return np.dtype(np.float64) if is_dtype and jnp.issubdtype(value, jnp.floating) else value


def _is_affine(name, params, args):
    """Whether a primitive makes of affine functions, and of functions that are constant on pieces, such ones again."""
    if name in ("cond", "while"):
        return False
    moving = [i for i, x in enumerate(args) if _affine(x)]
    if not moving:
        return True
    if name in _BILINEAR:
        return len(moving) == 1
    if name in ("div", "gather", "dynamic_slice"):
        return moving == [0]
    if name == "integer_pow":
        return params["y"] == 1
    if name == "convert_element_type":
        return jnp.issubdtype(params["new_dtype"], jnp.floating)
    return any(name in known for known in (_AFFINE, _COMPARED, _LARGEST, _UNCHANGED)) or name == "clamp"


_LARGEST = {"reduce_max": jnp.maximum, "reduce_min": jnp.minimum}
_CONSTANT = {"eq", "ge", "gt", "le", "lt", "ne", "sign"}  # on pieces
_COMPARED = {"abs", "max", "min", *_CONSTANT}
_UNCHANGED = {"copy", "copy_p", "name", "reduce_precision", "stop_gradient"}
_BILINEAR = {"conv_general_dilated", "dot_general", "mul"}
_AFFINE = {
    *(
        "add",
        "add_any",
        "broadcast_in_dim",
        "concatenate",
        "cumsum",
        "dynamic_update_slice",
        "neg",
        "pad",
        "reduce_sum",
    ),
    *("reduce_window_sum", "reshape", "rev", "scatter", "scatter-add", "select_n", "slice", "split", "squeeze"),
    *("stack", "sub", "tile", "transpose", "unstack"),
}
_SIZES = {"sub": lambda x, y: [x + y], "neg": lambda x: [x], "div": lambda x, y: [x / abs(y)]}


# ---- the program on a polygon: every array as an affine function, by its value and slopes at a point ----


class _Evaluated(NamedTuple):
    """At points: values (n, u), slopes (n, u, 2) and, for rounding errors, the sizes of what was added (n, u)."""

    values: np.ndarray
    slopes: np.ndarray
    sizes: np.ndarray


def _evaluate(program, point):
    """The output and what is compared, near one point: values, slopes, sizes, flat."""
    values, slopes, sizes = {0: point}, {0: jnp.eye(2)}, {0: jnp.ones(2)}
    for function, of_sizes, args, outs in program.steps:
        given = [values[x.number] if isinstance(x, _Slot) else x for x in args]
        if not outs[0].affine:
            values.update((out.number, y) for out, y in zip(outs, function(*given), strict=True))
            continue
        moving = [i for i, x in enumerate(args) if _affine(x)]

        def of_moving(*xs, function=function, given=given, moving=moving):
            filled = dict(enumerate(given)) | dict(zip(moving, xs, strict=True))
            return list(function(*filled.values()))

        push = lambda *dx, f=of_moving, x=tuple(given[i] for i in moving): jax.jvp(f, x, dx)
        ys, dys = jax.vmap(push, out_axes=(None, 0))(*(slopes[args[i].number] for i in moving))
        if of_sizes is None:
            results = [abs(y) + abs(dy).sum(0) for y, dy in zip(ys, dys, strict=True)]
        else:
            results = of_sizes(*(sizes[x.number] if _affine(x) else _size(y) for x, y in zip(args, given, strict=True)))
        for out, y, dy, size in zip(outs, ys, dys, results, strict=True):
            values[out.number], slopes[out.number], sizes[out.number] = y, dy, size
    flat = lambda s: (values[s].ravel(), slopes[s].reshape(2, -1).T, sizes[s].ravel())
    return [_Evaluated(*flat(slot.number)) for slot in (program.output, *program.kinks)]


def _size(x):
    return abs(x) if jnp.issubdtype(jnp.result_type(x), jnp.floating) else x


def _compiled(program):
    """`_evaluate` at the centers of polygons, as many at a time as arrays have room for.

    One program serves every comparison: what follows it is computed in vain, which costs less than many programs.
    """
    numbers = max([program.widest, sum(program.widths), *(10 * n for n in program.widths)])
    most = 2 ** max(int(math.log2(_BUDGET / numbers)), 0)
    with jax.enable_x64(True):
        compiled = jax.jit(jax.vmap(partial(_evaluate, program)))

    def run(cells):
        for low in range(0, len(cells.corners), most):
            part = cells.rows(slice(low, low + most))
            points = _centers(part.vertices, part.corners)
            n = len(points)
            padded = next((size for size in (64, 2048) if n <= size < most), most)  # few shapes, few compilations
            with jax.enable_x64(True):
                evaluated = compiled(np.concatenate([points, np.broadcast_to(points[:1], (padded - n, 2))]))
            yield part, points, lambda f, n=n: _Evaluated(*(np.asarray(v)[:n] for v in f)), evaluated

    return run


# ---- polygons ----------------------------------------------------------------------------------


class _Cells(NamedTuple):
    """Convex polygons: corners counter-clockwise (n, k, 2), their number, and a name for the edge after each corner.

    Two polygons share an edge if they have an edge of one name. The edge between the two parts of a polygon gets
    a new name; an edge that is cut is renamed after its old name, the unit and the side. Since nets are continuous,
    the same happens to that edge in the polygon across, and no coordinates need be compared.
    """

    vertices: np.ndarray
    corners: np.ndarray
    names: np.ndarray

    def rows(self, which):
        return _Cells(self.vertices[which], self.corners[which], self.names[which])


def _box():
    corners = np.array([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])
    return _Cells(corners[None], np.array([4]), _mixed(np.arange(4))[None])


def _joined(parts):
    """Cells one after another."""
    k = max(part.vertices.shape[1] for part in parts)
    longer = lambda v: np.concatenate([v, np.repeat(v[:, -1:], k - v.shape[1], 1)], 1)
    parts = [_Cells(longer(part.vertices), part.corners, longer(part.names)) for part in parts]
    return _Cells(*map(np.concatenate, zip(*parts, strict=True)))


def _centers(vertices, corners):
    real = np.arange(vertices.shape[1]) < corners[:, None]
    return (vertices * real[..., None]).sum(1) / corners[:, None]


def _mixed(*numbers):
    """One name out of several numbers, by the finalizer of splitmix64: those of different numbers differ."""
    name = np.uint64(0)
    with np.errstate(over="ignore"):
        for number in numbers:
            name = name + np.asarray(number).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
            name = (name ^ (name >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            name = (name ^ (name >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            name = name ^ (name >> np.uint64(31))
    return name


def _near(f):
    """What is this near to zero, is zero."""
    return _TOLERANCE * (abs(f.slopes).sum(-1) + f.sizes)


def _at_corners(f, vertices, centers):
    """All functions at the corners of their polygons, (n, k, u)."""
    return f.values[:, None] + (vertices - centers[:, None]) @ f.slopes.swapaxes(1, 2)


def _split_all(run, place, cells):
    """Every polygon cut along the zeros of every entry of one comparison."""
    return _joined(
        [_split(part, centers, read(kinks[place]), place) for part, centers, read, (_, *kinks) in run(cells)]
    )


def _split(cells, centers, f, place):
    """The parts of polygons that the zeros of functions leave; each polygon meets its lines in the order of units."""
    near, at_corners = _near(f), _at_corners(f, cells.vertices, centers)
    crossing = (at_corners.max(1) > near) & (at_corners.min(1) < -near)
    number = crossing.sum(1)
    first = np.cumsum(number) - number
    lines = np.nonzero(crossing)[1]
    parent = np.arange(len(number))
    done = []
    for i in range(number.max() + 1):
        over = number[parent] == i
        done.append(cells.rows(over))
        cells, parent = cells.rows(~over), parent[~over]
        unit = lines[first[parent] + i] if len(parent) else parent
        moved = cells.vertices - centers[parent][:, None]
        d = f.values[parent, unit][:, None] + (moved @ f.slopes[parent, unit][..., None])[..., 0]
        d[abs(d) <= near[parent, unit][:, None]] = 0
        cut = (d > 0).any(1) & (d < 0).any(1)
        if cut.any():
            whole, broken, d, unit = cells.rows(~cut), cells.rows(cut), d[cut], unit[cut]
            cells = _joined([whole, *(_clip(broken, d, unit, place, side) for side in (1, -1))])
            parent = np.concatenate([parent[~cut], parent[cut], parent[cut]])
    return _joined(done)


def _clip(cells, d, unit, place, side):
    """The part of every polygon where ``side * d >= 0``; d is at its corners, and changes sign."""
    vertices, corners, names = cells
    n, k = d.shape
    d = side * d
    index = np.arange(k)
    real = index < corners[:, None]
    following = np.where(index + 1 < corners[:, None], index + 1, 0)
    after = np.take_along_axis(d, following, 1)
    crossed = real & (d * after < 0)
    kept = real & (d >= 0)
    leaving = kept & (after < 0)  # the new edge begins here, or at the crossing
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(crossed, d / (d - after), 0.0)[..., None]
    ends = np.take_along_axis(vertices, following[..., None], 1)
    crossings = vertices + share * (ends - vertices)

    new = _mixed(names[:, 0], names[:, 1], place, unit)[:, None]
    shortened = _mixed(names, place, unit[:, None], side + 1)
    after_corner = np.where(crossed, shortened, np.where(leaving, new, names))
    after_crossing = np.where(d > 0, new, shortened)
    pairs = lambda corner, crossing: np.stack([corner, crossing], 2).reshape(n, 2 * k, *corner.shape[2:])
    chosen = pairs(kept, crossed)
    count = chosen.sum(1)
    order = np.argsort(~chosen, 1, kind="stable")[:, : count.max()]
    order = np.where(np.arange(order.shape[1]) < count[:, None], order, order[np.arange(n), count - 1][:, None])
    return _Cells(
        np.take_along_axis(pairs(vertices, crossings), order[..., None], 1),
        count,
        np.take_along_axis(pairs(after_corner, after_crossing), order, 1),
    )


def _final(run, cells):
    """On every polygon the output, flat, (n, o), (n, o, 2), (n, o), and the signs of all comparisons, (n, units)."""
    outputs, patterns = [], []
    for part, centers, read, (output, *kinks) in run(cells):
        outputs.append(read(output))
        signs = [(_at_corners(f, part.vertices, centers).max(1) > _near(f)) for f in map(read, kinks)]
        patterns.append(np.concatenate([np.zeros((len(centers), 0), bool), *signs], 1))
    values, slopes, sizes = map(np.concatenate, zip(*outputs, strict=True))
    return values, slopes, sizes, np.concatenate(patterns)


def _shared(cells):
    """The pairs of polygons that share an edge (m, 2), and that edge (m, 2, 2)."""
    owner, position = np.nonzero(np.arange(cells.vertices.shape[1]) < cells.corners[:, None])
    names = cells.names[owner, position]
    order = np.argsort(names, kind="stable")
    twice = np.flatnonzero(names[order][1:] == names[order][:-1])
    i, j = order[twice], order[twice + 1]
    end = (position[i] + 1) % cells.corners[owner[i]]
    edges = np.stack([cells.vertices[owner[i], position[i]], cells.vertices[owner[i], end]], 1)
    return np.stack([owner[i], owner[j]], 1), edges


def _differ(values, slopes, sizes, centers, pairs, middles):
    """Whether the affine maps of two neighbors differ, beyond rounding; ``middles`` lie on their common edges."""
    i, j = pairs.T
    size = sizes[i] + sizes[j]
    kinks = abs(slopes[i] - slopes[j]).max(-1) > _TOLERANCE * size
    there = lambda of: values[of] + (slopes[of] * (middles - centers[of])[:, None]).sum(-1)
    jumps = abs(there(i) - there(j)) > 1e-9 * size
    return (kinks | jumps).any(1)


def _components(n, pairs):
    """The number of the component of each of n nodes, given pairs that are connected."""
    labels = np.arange(n)
    while True:
        a, b = labels[pairs.T]
        if (a == b).all():
            return np.unique(labels, return_inverse=True)[1]
        np.minimum.at(labels, np.maximum(a, b), np.minimum(a, b))
        while (labels != labels[labels]).any():
            labels = labels[labels]
