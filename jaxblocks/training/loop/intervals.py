"""The steps of `fit` between two readings of the losses: one call for each, or one program for all of them."""

import functools
import itertools
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxblocks.ad.programs.jaxprs import all_equations
from jaxblocks.training.data.batches import batch_rows

__all__ = ["MOST_STEPS", "batch_by_batch", "in_one_program", "is_for_a_loop"]

MOST_STEPS = 64  # between two readings
_MOST_ROWS = 2**20  # of one program, whose numbers take 4 MiB; a program makes at least one step


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
    """As `batch_by_batch`, in a loop on the device that holds the data; an interruption takes effect after the program.

    One program serves all counts, so the result does not depend on when losses are read: ``losses`` has an entry for
    each step that it can make, of which the first ``number`` are set. For large batches ``number`` is less than
    ``count``.
    """
    most = min(MOST_STEPS, max(_MOST_ROWS // batch_size, 1))
    numbers = batch_rows(key, len(jax.tree.leaves(data)[0]), batch_size, start=start)

    @functools.partial(jax.jit, donate_argnums=0)
    def program(ts, data, rows, count):
        rows = jnp.asarray(rows)  # `debug_nans` repeats the call without jit
        # A barrier, so that the step rounds as it does alone.
        batch = lambda i: lax.optimization_barrier(jax.tree.map(lambda a: a[rows[i]], data))

        def body(i, carry):
            ts, losses = carry
            ts, value = step(ts, *batch(i))
            return ts, losses.at[i].set(value)

        value = jax.eval_shape(lambda: step(ts, *batch(0))[1])
        return lax.fori_loop(0, count, body, (ts, jnp.zeros(most, value.dtype)))

    def advance(ts, count, interrupted):
        count = 1 if interrupted() else min(count, most)
        rows = np.zeros((most, batch_size), np.int32)  # not the last ones, which a program may still read
        for i in range(count):
            rows[i] = next(numbers)
        return *program(ts, data, rows, np.int32(count)), count

    return advance


def is_for_a_loop(step: Callable, ts, data, batch_size: int) -> bool:
    """Whether a step keeps the types of the training state, as a loop demands, and is as fast in a loop as alone.

    On CPU, XLA does not use its fast kernels of convolutions in loops.
    """
    x, y = jax.eval_shape(lambda: jax.tree.map(lambda a: a[:batch_size], data))
    traced = step.trace(ts, x, y)
    (before, structure), (after, structure_after) = jax.tree.flatten(ts), jax.tree.flatten(traced.out_info[0])
    types = lambda leaves: [(leaf.shape, leaf.dtype) for leaf in leaves]
    if structure != structure_after or types(before) != types(after):  # such as a buffer that is empty at first
        return False
    if any(device.platform != "cpu" for leaf in jax.tree.leaves(data) for device in leaf.devices()):
        return True
    return all(equation.primitive.name != "conv_general_dilated" for equation in all_equations(traced.jaxpr.eqns))
