"""Exact linear regions of a net, along a segment and in a plane through its inputs, and bounds on their number.

Read ``along_segment`` first. ``in_plane`` and ``polygons`` do it in a plane, ``bounds`` has bounds on the number,
``folding`` extremal nets, and ``records`` the results.

There are two kinds of region.

- In an *activation region* every comparison of the net has a fixed result: each rectifier is on or off. These regions
  are convex. A maximum over several entries is computed by pairwise comparisons in rounds.
- In a *linear region* the net is one affine function. It is a union of adjacent activation regions, and not always
  convex: kinks of units can cancel, or be multiplied by zero.

Source: Hanin & Rolnick 2019, Complexity of linear regions in deep networks, arXiv:1901.09021.
"""

from jaxblocks.theory.linear_regions.along_segment import SegmentRegions, regions_along
from jaxblocks.theory.linear_regions.bounds import arrangement_regions, region_lower_bound, region_upper_bound
from jaxblocks.theory.linear_regions.folding import folding_network
from jaxblocks.theory.linear_regions.in_plane import Regions, regions

__all__ = [
    "Regions",
    "SegmentRegions",
    "arrangement_regions",
    "folding_network",
    "region_lower_bound",
    "region_upper_bound",
    "regions",
    "regions_along",
]
