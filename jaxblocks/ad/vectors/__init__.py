"""Pytrees as vectors, and many of them at once: what products with operators, bases and batches are computed with.

Read `raveled` first, which turns operators on pytrees into those on vectors; `chunks` has loops over vectors and
batches in chunks of a size.
"""
