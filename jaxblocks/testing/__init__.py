"""The laws that every layer satisfies, as checks for your own layers.

Read `laws` first: `check_layer` and each law. `case` runs the layer under test, `derivatives` differentiates it in
float64, and `comparisons` compares what laws expect with what layers give.
"""

from jaxblocks.core.lazy import explain_missing_names
from jaxblocks.testing.case import Case
from jaxblocks.testing.laws import LAWS, check_layer

__all__ = ["Case", "LAWS", "check_layer"]

explain_missing_names(__name__)
