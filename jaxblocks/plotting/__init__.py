"""Pictures: each function takes data first and axes last, and returns the Matplotlib axes that it drew on.

Read `charts` first: curves, bars and tables of numbers. `plane` draws functions and points of the plane, `drawings`
nets and sheets of pictures. `axes` has the axes and colors that all of them share, also for the pictures of other
subpackages, and `styles` the style: colors that color-blind readers can distinguish (Okabe & Ito), each with its own
dash, marker or hatch. Matplotlib is imported at the first call: ``pip install jaxblocks[plot]``.
"""

from jaxblocks.core.lazy import explain_missing_names
from jaxblocks.plotting.axes import GRAY, PALE, PALETTE
from jaxblocks.plotting.charts import bars, cells, curves, matrix, schedules, tiles
from jaxblocks.plotting.drawings import contact_sheet, diagram, network
from jaxblocks.plotting.plane import boundary, points, surface, trajectories
from jaxblocks.plotting.styles import style

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
    "schedules",
    "style",
    "surface",
    "tiles",
    "trajectories",
]

explain_missing_names(__name__)
