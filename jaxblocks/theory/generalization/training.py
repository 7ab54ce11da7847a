"""Full-batch training."""

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import PyTree

from jaxblocks.theory.convergence import descend

__all__ = ["train_full_batch"]


def train_full_batch(loss: Callable, start: PyTree, optimizer: Any, steps: int) -> tuple[PyTree, jax.Array]:
    """The params after the last step of `descend`, and the loss at every step."""

    def run(start):
        descent = descend(loss, start, optimizer, steps=steps)
        return descent.last, descent.values

    return jax.jit(run)(start)
