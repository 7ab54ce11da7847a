"""Exact evaluation of piecewise affine programs, on a line and in a plane, by one interpreter.

Read ``interpreter`` first; ``line`` and ``plane`` are its two representations.
"""
