r"""Recurrent layers: the simple cell, the gated recurrent unit, long short-term memory, bidirectional layers.

Read ``cells`` first; ``lstm`` has the long short-term memory, ``gates`` what cells share, and ``over_time`` the layers
over a time axis. The scan itself is in `jaxblocks.layers.combinators.recurrent` and ``layers/scan_of_cells``.

Each exists as a function of one step, as a cell (a ``StatefulLayer`` whose state is its carry),
and as a layer over the time axis, ``Recurrent(cell)``.

Axis letters: ``...`` batch, ``time``, ``in`` features of the input, ``hidden`` features of the carry. All use the same
names of params: ``kernel`` $W$ multiplies the input, ``recurrent_kernel`` $U$ the carry; ``bias`` $b$ and
``recurrent_bias`` $b'$ are added to the products; the gates are concatenated along the last axis.
"""
