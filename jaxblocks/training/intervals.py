"""The steps of `fit` between two readings of the losses: one call for each, or one program for all of them."""

import functools
import itertools
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxblocks.ad.jaxprs import all_equations
from jaxblocks.training.data import batch_rows

__all__ = ["MOST_STEPS", "batch_by_batch", "in_one_program", "is_slow_in_loops"]

MOST_STEPS = 64  # between two readings


def batch_by_batch(step: Callable, batches: Iterator) -> Callable:
    """``advance(ts, count, interrupted) -> (ts, losses, number)``: one step for each of the next ``count`` batches.

    If ``interrupted()`` is true it ends after the step in progress; ``number`` steps have been made.
    """

    def advance(ts, count, interrupted):
        losses = []
        for batch in itertools.islice(batches, count):
            ts, value = step(ts, *batch)
            losses.append(value)
            if interrupted():
                break
        return ts, losses, len(losses)

    return advance


def in_one_program(step: Callable, data, key, batch_size: int, start: int) -> Callable:
    """The same in a loop on the device that holds the data; what interrupts it while it runs takes effect after it.

    One program serves all counts, so the result does not depend on when losses are read: ``losses`` has `MOST_STEPS`
    entries, of which the first ``number`` are set.
    """
    numbers = batch_rows(key, len(jax.tree.leaves(data)[0]), batch_size, start=start)

    @functools.partial(jax.jit, donate_argnums=0)
    def program(ts, data, rows, count):
        # A barrier, so that the step rounds as it does alone.
        batch = lambda i: lax.optimization_barrier(jax.tree.map(lambda a: a[rows[i]], data))

        def body(i, carry):
            ts, losses = carry
            ts, value = step(ts, *batch(i))
            return ts, losses.at[i].set(value)

        value = jax.eval_shape(lambda: step(ts, *batch(0))[1])
        return lax.fori_loop(0, count, body, (ts, jnp.zeros(MOST_STEPS, value.dtype)))

    rows = np.zeros((MOST_STEPS, batch_size), np.int32)

    def advance(ts, count, interrupted):
        count = 1 if interrupted() else count
        for i in range(count):
            rows[i] = next(numbers)
        return *program(ts, data, rows, np.int32(count)), count

    return advance


def is_slow_in_loops(step: Callable, ts, data, batch_size: int) -> bool:
    """Whether a step has convolutions and runs on CPU, where XLA does not use its fast kernels for them in loops."""
    if any(device.platform != "cpu" for leaf in jax.tree.leaves(data) for device in leaf.devices()):
        return False
    x, y = jax.eval_shape(lambda: jax.tree.map(lambda a: a[:batch_size], data))
    equations = all_equations(step.trace(ts, x, y).jaxpr.eqns)
    return any(equation.primitive.name == "conv_general_dilated" for equation in equations)
