"""The linear regions of a net along a segment between two inputs."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxblocks.checks.errors import require
from jaxblocks.core.pairs import LayerLike
from jaxblocks.theory.arrays import ArrayLike, real_array
from jaxblocks.theory.linear_regions.polygons import TOLERANCE
from jaxblocks.theory.linear_regions.records import RegionCounts
from jaxblocks.theory.piecewise_affine.interpreter import bind_params, network_name
from jaxblocks.theory.piecewise_affine.line import affine_pieces

__all__ = ["SegmentRegions", "regions_along"]

_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, repr=False)
class SegmentRegions(RegionCounts):
    """The result of `regions_along`: the pieces into which a net divides a segment, with a table.

    Attributes:
        edges: the ends of the pieces, from 0 at the start of the segment to 1 at its end, (n + 1,).
        offsets, slopes: the affine map on each piece, ``offsets[i] + slopes[i] * t``: ``(n, *out)`` for a net with
            outputs of shape ``out``.
        linear_region: the number of the linear region to which each piece belongs, (n,).
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
        """The boundaries between linear regions, in (0, 1)."""
        return self.edges[1:-1][np.diff(self.linear_region) > 0]

    def _lines(self):
        yield self.linear_count, "linear regions along the segment"
        yield self.activation_count, "activation regions"


def regions_along(net: LayerLike, params: PyTree, start: ArrayLike, stop: ArrayLike, **side: Any) -> SegmentRegions:
    """The exact regions of a net along the segment from one input to another.

    Args:
        net, params: a pair and its params, or a function of arrays and ``()``.
        start, stop: inputs of the net.
        side: side inputs, as for ``apply``.

    Raises:
        TypeError: for a layer with state.
        ValueError: for a net that is not piecewise linear (the error names the layer), or a segment that is a point.

    >>> found = regions_along(lambda x: jnp.abs(jnp.abs(x) - 1), (), -2.0, 2.0)
    >>> found.linear_count, found.kinks
    (4, array([0.25, 0.5 , 0.75]))

    Source: Hanin & Rolnick 2019, Complexity of linear regions in deep networks, arXiv:1901.09021.
    """
    start, stop = real_array("start", start), real_array("stop", stop)
    repair = f"start for instance at np.zeros({stop.shape})"
    require(start.shape == stop.shape, "start and stop of one shape", f"{start.shape} and {stop.shape}", repair)
    finite = bool(np.isfinite(start).all() and np.isfinite(stop).all())
    require(finite, "finite start and stop", "entries that are not", "choose other inputs")
    require(not (start == stop).all(), "start and stop that differ", "equal points", "choose another stop")
    function = bind_params(net, params, side)
    at = lambda t: jnp.asarray(start) + t * jnp.asarray(stop - start)
    # Adding 0 t makes an output that does not depend on the input a function of t, which the traversal needs.
    on_segment = lambda t: jax.tree.map(lambda y: y + 0 * t, function(at(t)))
    found = affine_pieces(on_segment, shape=(), name=network_name(net))

    # The line is found beyond both ends too; only pieces in [0, 1] count.
    low, high = np.clip(found.edges[:-1], 0, 1), np.clip(found.edges[1:], 0, 1)
    # Pieces narrower than the tolerance are due to rounding.
    i = np.flatnonzero(high - low > TOLERANCE)
    slopes = found.slopes[i]
    of_piece = lambda v: v.reshape(-1, *(1,) * (slopes.ndim - 1))
    offsets = found.values[i] - slopes * of_piece(found.points[i])
    finite = bool(np.isfinite(offsets).all() and np.isfinite(slopes).all())
    require(finite, "finite params", "a net whose values are not finite", "check the params for NaN")

    # Pieces within the tolerance are dropped; the pieces next to a dropped one are joined in its middle.
    edges = np.concatenate([[0.0], (high[i[:-1]] + low[i[1:]]) / 2, [1.0]])
    rounding = np.minimum(8 * _EPS * found.noise, 1e-9 * abs(slopes).max(0))
    kinks = abs(np.diff(slopes, axis=0)) > rounding
    # The difference of two adjacent affine functions at their boundary.
    across = np.diff(offsets, axis=0) + np.diff(slopes, axis=0) * of_piece(edges[1:-1])
    # An output may jump where it compares (as a step function does) with equal slopes on both sides.
    jumps = abs(across) > 1e-9 * (abs(offsets) + abs(slopes)).max(0)
    apart = (kinks | jumps).any(tuple(range(1, slopes.ndim)))
    return SegmentRegions(edges, offsets, slopes, np.append(0, np.cumsum(apart)), start, stop)
