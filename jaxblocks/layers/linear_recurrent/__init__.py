r"""Layers whose carry is linear in itself, so that all time steps are computed in parallel.

Read ``recurrence`` first: the one function under all of them. ``lru`` has the linear recurrent unit, ``selective`` the
state space of Mamba, ``decay`` linear attention that forgets and the delta rule, and ``carried`` what the layers share.

Each layer is a ``Layer`` over the time axis, or with ``stateful=True`` a ``StatefulLayer`` whose state is the carry:
pieces of a sequence, down to single steps in decoding, are equal to the sequence at once.

Axis letters: ``...`` batch, ``time``, ``features`` of the input and the output, ``state`` entries of the carry.
"""
