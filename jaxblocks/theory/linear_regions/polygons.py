"""Convex polygons in a plane: their division along lines, their common edges, and connected components.

n     polygons
k     the largest number of corners of a polygon; other polygons repeat their last corner
u     units: entries of one array that are compared
"""

from typing import Any, NamedTuple

import numpy as np

from jaxblocks.theory.piecewise_affine.plane import AffineMaps

__all__ = [
    "TOLERANCE",
    "Polygons",
    "at_corners",
    "centers",
    "components",
    "concatenate",
    "maps_differ",
    "rounding",
    "shared_edges",
    "split",
    "whole_box",
]

TOLERANCE = 2**12 * float(np.finfo(np.float64).eps)
"""Distances below this, 9e-13, are zero, on a slice whose half side is 1."""


class Polygons(NamedTuple):
    """Convex polygons.

    Two polygons share an edge if they have an edge with the same name. The edge between the two parts of a polygon gets
    a new name; the name of a part of a divided edge is computed from its old name, the unit and the side. Since nets
    are continuous, the polygon on the other side of the edge computes the same name, so no coordinates are compared.

    Attributes:
        vertices: the corners, counter-clockwise, (n, k, 2).
        corners: the number of corners, (n,).
        names: the name of the edge after each corner, (n, k).
    """

    vertices: np.ndarray
    corners: np.ndarray
    names: np.ndarray

    def rows(self, which) -> "Polygons":
        """The polygons with these indices."""
        return Polygons(self.vertices[which], self.corners[which], self.names[which])


def whole_box() -> Polygons:
    """The box [-1, 1]^2 as one polygon."""
    corners = np.array([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])
    return Polygons(corners[None], np.array([4]), _hash(np.arange(4))[None])


def concatenate(parts: list[Polygons]) -> Polygons:
    """All polygons of several sets, in order."""
    k = max(part.vertices.shape[1] for part in parts)
    # Polygons have different numbers of corners; the last corner is repeated, so that minima and maxima over corners
    # are right.
    longer = lambda v: np.concatenate([v, np.repeat(v[:, -1:], k - v.shape[1], 1)], 1)
    parts = [Polygons(longer(part.vertices), part.corners, longer(part.names)) for part in parts]
    return Polygons(*map(np.concatenate, zip(*parts, strict=True)))


def centers(vertices: np.ndarray, corners: np.ndarray) -> np.ndarray:
    """The mean of the corners of each polygon, (n, 2)."""
    valid = np.arange(vertices.shape[1]) < corners[:, None]
    return (vertices * valid[..., None]).sum(1) / corners[:, None]


def _hash(*numbers) -> Any:
    """One name for several numbers, by the finalizer of splitmix64, so that different numbers have different names."""
    name: Any = np.uint64(0)
    with np.errstate(over="ignore"):
        for number in numbers:
            name = name + np.asarray(number).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
            name = (name ^ (name >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            name = (name ^ (name >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            name = name ^ (name >> np.uint64(31))
    return name


def rounding(f: AffineMaps) -> np.ndarray:
    """The bound below which values count as zero, (n, u)."""
    return TOLERANCE * (abs(f.slopes).sum(-1) + f.sizes)


def at_corners(f: AffineMaps, vertices: np.ndarray, points: np.ndarray) -> np.ndarray:
    """The values of all maps, known at one point of each polygon, at its corners, (n, k, u)."""
    return f.values[:, None] + (vertices - points[:, None]) @ f.slopes.swapaxes(1, 2)


def maps_differ(f: AffineMaps, points: np.ndarray, pairs: np.ndarray, middles: np.ndarray) -> np.ndarray:
    """Whether the maps of adjacent polygons differ by more than rounding; ``middles`` are on their common edges."""
    values, slopes, sizes = f
    i, j = pairs.T
    size = sizes[i] + sizes[j]
    kinks = abs(slopes[i] - slopes[j]).max(-1) > TOLERANCE * size
    there = lambda of: values[of] + (slopes[of] * (middles - points[of])[:, None]).sum(-1)
    jumps = abs(there(i) - there(j)) > 1e-9 * size
    return (kinks | jumps).any(1)


def split(polygons: Polygons, points: np.ndarray, f: AffineMaps, place: int) -> Polygons:
    """The parts into which the zeros of affine maps divide polygons, each by its lines in the order of units.

    ``place`` is the number of the comparison, from which the names of new edges are computed.
    """
    near, values = rounding(f), at_corners(f, polygons.vertices, points)
    crossing = (values.max(1) > near) & (values.min(1) < -near)
    number = crossing.sum(1)
    first = np.cumsum(number) - number
    # Row by row: those of polygon i are at first[i] + 0, 1, ...
    lines = np.nonzero(crossing)[1]
    parent = np.arange(len(number))
    done = []
    # Polygons without further lines leave the loop, so that its cost is that of the lines that cross each one.
    for i in range(number.max() + 1):
        over = number[parent] == i
        done.append(polygons.rows(over))
        polygons, parent = polygons.rows(~over), parent[~over]
        unit = lines[first[parent] + i] if len(parent) else parent
        moved = polygons.vertices - points[parent][:, None]
        d = f.values[parent, unit][:, None] + (moved @ f.slopes[parent, unit][..., None])[..., 0]
        d[abs(d) <= near[parent, unit][:, None]] = 0
        cut = (d > 0).any(1) & (d < 0).any(1)
        if cut.any():
            whole, broken, d, unit = polygons.rows(~cut), polygons.rows(cut), d[cut], unit[cut]
            polygons = concatenate([whole, *(_clip(broken, d, unit, place, side) for side in (1, -1))])
            parent = np.concatenate([parent[~cut], parent[cut], parent[cut]])
    return concatenate(done)


def _clip(polygons, d, unit, place, side):
    """The part of every polygon where ``side * d >= 0``; d is given at its corners and changes sign."""
    vertices, corners, names = polygons
    n, k = d.shape
    d = side * d
    index = np.arange(k)
    valid = index < corners[:, None]
    following = np.where(index + 1 < corners[:, None], index + 1, 0)
    after = np.take_along_axis(d, following, 1)
    crossed = valid & (d * after < 0)
    kept = valid & (d >= 0)
    leaving = kept & (after < 0)  # the new edge begins here, or at the crossing
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(crossed, d / (d - after), 0.0)[..., None]
    ends = np.take_along_axis(vertices, following[..., None], 1)
    crossings = vertices + share * (ends - vertices)

    new = _hash(names[:, 0], names[:, 1], place, unit)[:, None]
    # The names of edges are computed from the lines, not from coordinates: the two polygons at an edge find the same
    # name without a comparison of rounded numbers.
    shortened = _hash(names, place, unit[:, None], side + 1)
    after_corner = np.where(crossed, shortened, np.where(leaving, new, names))
    after_crossing = np.where(d > 0, new, shortened)
    pairs = lambda corner, crossing: np.stack([corner, crossing], 2).reshape(n, 2 * k, *corner.shape[2:])
    chosen = pairs(kept, crossed)
    count = chosen.sum(1)
    order = np.argsort(~chosen, 1, kind="stable")[:, : count.max()]
    # Unused places repeat the last corner, as `concatenate` does.
    order = np.where(np.arange(order.shape[1]) < count[:, None], order, order[np.arange(n), count - 1][:, None])
    return Polygons(
        np.take_along_axis(pairs(vertices, crossings), order[..., None], 1),
        count,
        np.take_along_axis(pairs(after_corner, after_crossing), order, 1),
    )


def shared_edges(polygons: Polygons) -> tuple[np.ndarray, np.ndarray]:
    """The pairs of polygons that share an edge (m, 2), and that edge (m, 2, 2)."""
    owner, position = np.nonzero(np.arange(polygons.vertices.shape[1]) < polygons.corners[:, None])
    names = polygons.names[owner, position]
    order = np.argsort(names, kind="stable")
    twice = np.flatnonzero(names[order][1:] == names[order][:-1])
    i, j = order[twice], order[twice + 1]
    end = (position[i] + 1) % polygons.corners[owner[i]]
    edges = np.stack([polygons.vertices[owner[i], position[i]], polygons.vertices[owner[i], end]], 1)
    return np.stack([owner[i], owner[j]], 1), edges


def components(n: int, pairs: np.ndarray) -> np.ndarray:
    """The number of the connected component of each of n nodes, given pairs that are connected."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    edges = coo_array((np.ones(len(pairs)), tuple(pairs.T)), (n, n))
    return connected_components(edges, directed=False)[1]
