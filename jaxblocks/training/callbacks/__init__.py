"""Callbacks of `fit`: functions that it calls during a run.

Read `callback` first, the protocol. `logs` and `progress` report, `validation` and `stopping` decide.
"""
