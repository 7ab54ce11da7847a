"""Piecewise affine programs followed exactly, by one interpreter: on a line, and in a plane."""
