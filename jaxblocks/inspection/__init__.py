"""Inspection of layers and nets: tables of their layers, outputs of each, and the matrix of a linear layer.

Read `nets` first: `summary`, `layer_outputs` and `variance_report` read the jaxpr of a net. `structure` has the matrix
of a linear layer and the receptive field of an output.
"""

from jaxblocks.core.lazy import explain_missing_names
from jaxblocks.inspection.nets import (
    LayerRow,
    MomentsRow,
    Summary,
    VarianceReport,
    count_params,
    layer_outputs,
    summary,
    variance_report,
)
from jaxblocks.inspection.structure import as_dense, receptive_field

__all__ = [
    "LayerRow",
    "MomentsRow",
    "Summary",
    "VarianceReport",
    "as_dense",
    "count_params",
    "layer_outputs",
    "receptive_field",
    "summary",
    "variance_report",
]
explain_missing_names(__name__)
