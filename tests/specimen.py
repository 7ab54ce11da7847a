"""What a row of the zoo holds; the rows of each family stand in a file of their own, ``zoo_<family>.py``."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxblocks import Layer, StatefulLayer


class Specimen(NamedTuple):
    """A layer to try: its builder's public name ("" for layers made for the tests), inputs, and its formula.

    ``shapes`` are those of random inputs; where an input is not a float array, it is that array itself.
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
            jnp.asarray(rng.normal(size=shape), jnp.float32) if type(shape) is tuple else jnp.asarray(shape)
            for shape in self.shapes
        )
