"""Exact evaluation of piecewise affine programs, on a line and in a plane, by one interpreter."""
