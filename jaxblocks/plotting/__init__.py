"""Pictures: each function takes data first and axes last, and returns the Matplotlib axes that it drew on.

Read `pictures` first, which has one function for each kind of picture. `axes` has the axes and the colors that all of
them share, also for the pictures that other subpackages draw. Matplotlib is imported at the first use.
"""

from jaxblocks.plotting.axes import GRAY, PALE, PALETTE
from jaxblocks.plotting.pictures import (
    bars,
    boundary,
    cells,
    contact_sheet,
    curves,
    diagram,
    matrix,
    network,
    points,
    style,
    surface,
    tiles,
    trajectories,
)

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
