"""Layers, one module per family: first the functions of arrays, then the layers with params.

Read ``dense`` first, the plainest family, then ``combinators``. Cells over time are in ``recurrent``, layers with a
linear carry in ``linear_recurrent``, their scan with a derivative rule in ``scan_of_cells``; ``positions`` has rotary
embeddings and ALiBi, and ``conv_by_products`` the forms of convolutions on CPU.
"""

# Each name that a family has in its `__all__` is public. Four files share their name with the function they hold:
# `attention`, `conv`, `dropout` and `linear_attention`. As an attribute of this package the name is the function, also
# after ``import jaxblocks.layers.attention``, since the imports below bind it last. ``from jaxblocks.layers.attention
# import ...`` still reads the file.
import typing as _typing
from types import ModuleType as _ModuleType

from jaxblocks.core.lazy import explain_missing_names as _explain_missing_names
from jaxblocks.layers.attention import *
from jaxblocks.layers.combinators import *
from jaxblocks.layers.conv import *
from jaxblocks.layers.conv_recurrent import *
from jaxblocks.layers.dense import *
from jaxblocks.layers.dropout import *
from jaxblocks.layers.embedding import *
from jaxblocks.layers.experts import *
from jaxblocks.layers.features import *
from jaxblocks.layers.flows import *
from jaxblocks.layers.graph import *
from jaxblocks.layers.grid_sampling import *
from jaxblocks.layers.learned_activations import *
from jaxblocks.layers.linear_attention import *
from jaxblocks.layers.linear_models import *
from jaxblocks.layers.linear_recurrent.decay import *
from jaxblocks.layers.linear_recurrent.lru import *
from jaxblocks.layers.linear_recurrent.recurrence import *
from jaxblocks.layers.linear_recurrent.selective import *
from jaxblocks.layers.mlp import *
from jaxblocks.layers.norm import *
from jaxblocks.layers.pool import *
from jaxblocks.layers.positions import *
from jaxblocks.layers.recurrent.cells import *
from jaxblocks.layers.recurrent.lstm import *
from jaxblocks.layers.recurrent.over_time import *
from jaxblocks.layers.recurrent_dropout import *
from jaxblocks.layers.reshaping import *
from jaxblocks.layers.weight_norm import *

if not _typing.TYPE_CHECKING:  # type checkers read the imports above
    __all__ = sorted(name for name, value in vars().items() if name[0] != "_" and type(value) is not _ModuleType)
_explain_missing_names(__name__)
