"""The type of an entry of the zoo; the entries of each family are in ``zoo_<family>.py``."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from jaxblocks import Layer, StatefulLayer


class Specimen(NamedTuple):
    """A layer of the zoo: the public name of its builder ("" for layers made for the tests), its inputs, its formula.

    ``shapes`` holds the shape of each random floating-point input, or the input itself if it is any other array.
    """

    public: str
    layer: Layer | StatefulLayer
    shapes: tuple
    reference: Callable
    side: dict = {}  # noqa: RUF012
    mixes_batch: bool = False

    def inputs(self, seed=0):
        rng = np.random.default_rng(seed)
        return tuple(
            jax.device_put(np.float32(rng.normal(size=shape)) if type(shape) is tuple else shape)
            for shape in self.shapes
        )
