"""Combinators, layers that contain layers: Serial, Parallel, Residual, Frozen, Repeat, Recurrent, Wire.

Read `serial` first: children in series, in parallel and around. `wire` calls them in a function, `repeat` is one block
many times, `recurrent` a cell over time, and `shared` what several of them need. Each combinator accepts children with
and without state; `jaxblocks.core.children.make_combinator` returns a ``Layer`` where no child has state and a
``StatefulLayer`` otherwise. Params (and state) are a tuple for children given by position and a dict for children
given by name. A combinator of one layer has the params of that layer.
"""

from jaxblocks.layers.combinators.recurrent import Recurrent
from jaxblocks.layers.combinators.repeat import Repeat, unstack_repeats
from jaxblocks.layers.combinators.serial import Frozen, Parallel, Residual, Serial
from jaxblocks.layers.combinators.wire import Wire

__all__ = ["Frozen", "Parallel", "Recurrent", "Repeat", "Residual", "Serial", "Wire", "unstack_repeats"]
