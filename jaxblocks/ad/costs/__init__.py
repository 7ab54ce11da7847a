"""What derivatives cost, counted and measured: tables, grids of modes, memory and time.

Read `cost_tables` first; `tables` prints and draws what it measures. `mode_grids` compares forward with reverse mode
over numbers of inputs and outputs, `memory` has the memory of derivatives, `checkpoint_tables` time against memory, and
`timing` the times of compiled programs.
"""

from jaxblocks.ad.costs.checkpoint_tables import checkpoint_table
from jaxblocks.ad.costs.cost_tables import cost_table
from jaxblocks.ad.costs.memory import MemoryCurve, memory_curve, saved_numbers, temporary_bytes
from jaxblocks.ad.costs.mode_grids import ModeGrid, mode_grid
from jaxblocks.ad.costs.tables import CostRow, CostTable

__all__ = [
    "CostRow",
    "CostTable",
    "MemoryCurve",
    "ModeGrid",
    "checkpoint_table",
    "cost_table",
    "memory_curve",
    "mode_grid",
    "saved_numbers",
    "temporary_bytes",
]
