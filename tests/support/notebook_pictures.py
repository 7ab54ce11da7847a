"""What the pictures of the notebooks must show: for each notebook, one function for each figure, in order.

A function takes the figure and the names of the notebook, and compares what the artists show with these.
"""

import importlib.util

PICTURES: dict[str, list] = {}

if importlib.util.find_spec("notebook_pictures_b"):
    PICTURES |= importlib.import_module("notebook_pictures_b").PICTURES_B
