"""Running statistics: the state of norms that use them in evaluation."""

import math

import jax
import jax.numpy as jnp

from jaxblocks.checks.errors import require
from jaxblocks.checks.values import check_values
from jaxblocks.statistics import align_axes

__all__ = ["TRAINED", "make_statistics", "measured_by", "moved_by", "running_statistics"]


TRAINED = 1_000_000
"""The number of updates of statistics from elsewhere, after which a batch has the weight 1 - momentum, as there."""


def make_statistics(shape, dtype):
    """The state of a norm with running statistics."""
    return {"mean": jnp.zeros(shape, dtype), "variance": jnp.ones(shape, dtype), "updates": jnp.zeros((), jnp.int32)}


def running_statistics(x, axes, state):
    """Mean and variance of the state, with as many axes as ``x``."""
    made = isinstance(state, dict) and state.keys() == {"mean", "variance", "updates"}
    require(made, "a state of mean, variance and updates", state, "pass the one that init or the last apply returned")
    return align_axes(x, axes, mean=state["mean"], variance=state["variance"])


def measured_by(state, running):
    """The running statistics; NaN before the first update, where values are not concrete."""
    measured = state["updates"] > 0
    check_values(
        measured,
        "running statistics to evaluate with, got a state that was never updated; call "
        "apply(..., train=True) on training data first, and use the state that it returns",
    )
    return [jnp.where(measured, statistic, jnp.nan) for statistic in running]


def moved_by(state, momentum, mean, variance):
    """The running statistics after one more batch.

    Batch k has the weight (1 - p) / (1 - p^k) in their weighted average; by expm1 it is exactly 1 for k = 1.
    """
    dtype, updates = state["mean"].dtype, state["updates"] + 1
    # A traced momentum cannot be read by math.log.
    if isinstance(momentum, jax.Array):
        log_past = jnp.log(momentum.astype(dtype))
    else:  # in double precision
        log_past = jnp.asarray(math.log(momentum) if momentum else -math.inf, dtype)
    weight = jnp.expm1(log_past) / jnp.expm1(updates.astype(dtype) * log_past)
    # A weighted average as a step towards the batch; with the weight 1 the initial value drops out.
    move = lambda old, batch: old + weight * (batch.astype(dtype) - old)
    return {"mean": move(state["mean"], mean), "variance": move(state["variance"], variance), "updates": updates}
