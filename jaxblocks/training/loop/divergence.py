"""The diagnosis of `fit` for loss or params that are not finite: the step, the layer and the operation."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxblocks.checks.errors import public_name
from jaxblocks.training.loop.nonfinite import first_not_finite
from jaxblocks.training.optimizers.transformations import all_finite
from jaxblocks.training.step.objective import augmented, call_loss, training_forward, training_objective
from jaxblocks.training.step.state import copy_tree

__all__ = ["finite_state_check", "raise_divergence"]


@jax.jit
def _is_finite(ts, nan_allowed):
    states = [leaf for leaf in jax.tree.leaves((ts.state, ts.opt_state)) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    has_nan = jnp.array([jnp.isnan(leaf).any() for leaf in states], bool).any()
    return all_finite(ts.params) & (nan_allowed | ~has_nan), has_nan


def finite_state_check(ts) -> Callable:
    """A function from a training state to whether it is finite, an array that is not read yet.

    Its params must be finite, and the states of net and optimizer must have no NaN. Infinities are allowed in these
    states (for example as the initial best value), and so is NaN if ``ts``, the initial training state, contains it.
    """
    # A state with NaN at the start (an optimizer may mark unset values so) is not checked for NaN.
    nan_allowed = bool(_is_finite(ts, False)[1])
    return lambda ts: _is_finite(ts, nan_allowed)[0]


def raise_divergence(net, loss, step, is_finite, ts, batches, steps_per_epoch: int, options):
    """Repeat the steps since the last finite training state one by one, and raise at the first non-finite one.

    The attribute ``error.ts`` is the training state before that step.
    """
    start = int(ts.step)
    for x, y in batches:
        before = ts  # not donated, since a thread may be saving it
        ts, value = step(copy_tree(ts), x, y)
        if np.isfinite(value) and is_finite(ts):
            continue
        number = int(ts.step)
        # As arrays, since the functions below are called without jit.
        x, y = jax.tree.map(jnp.asarray, (x, y))
        x, y = augmented(options["augment"], before, x, y)
        forward = training_forward(net, options["compute_dtype"])
        outputs, _ = forward(before, x, {})
        try:
            call_loss(loss, outputs, y)
        except ValueError as error:
            error.add_note(f"in step {number} of fit; error.ts is the training state before it")
            error.ts = before  # pyright: ignore[reportAttributeAccessIssue]
            raise
        if np.isfinite(value):
            got = f"a loss of {value:.4g}, but its gradient made params that are not finite"
            if all_finite(ts.params):
                got = f"a loss of {value:.4g}, but NaN in the state of the net or of the optimizer"
        elif all_finite(outputs):
            got = f"a loss of {value}, though the outputs of the net and the params are finite"
        else:
            got = f"a loss of {value}, and outputs of the net that are not finite, though its params are"
        objective = training_objective(net, loss, options["penalty"], options["compute_dtype"])(before, x, y, {})
        where = _where_it_began(objective, before, all_finite(outputs), np.isfinite(value))
        error = FloatingPointError(
            f"{public_name()} expected finite numbers in step {number} (epoch {1 + (number - 1) // steps_per_epoch}), "
            f"got {got}; {where}try a smaller learning rate, or optax.clip_by_global_norm in front of the optimizer. "
            "error.ts is the training state before that step."
        )
        error.ts = before  # pyright: ignore[reportAttributeAccessIssue]
        raise error
    raise FloatingPointError(
        f"{public_name()} expected finite numbers between steps {start} and {int(ts.step)}, got a loss or params that "
        "were not finite, but were when the steps were repeated: the arithmetic of this device is not deterministic; "
        "try a smaller learning rate."
    )


def _where_it_began(objective, ts, finite_outputs, finite_value) -> str:
    """A clause that states the layer with the first non-finite value of a step; empty if it is unknown."""
    outside = "the loss (outside of the layers)" if finite_outputs else "the net itself, outside of its layers"
    try:
        for direction, f in (("forward", objective), ("backward", jax.grad(lambda params: objective(params)[0]))):
            found = first_not_finite(f, ts.params)
            if found is not None:
                place = f"layer {found.layer}" if found.layer else outside
                loops = "".join(f", scan iteration {i} (from 0)" for i in found.iterations)
                return f"it began in the {direction} pass of {place}, in the operation {found.operation}{loops}; "
    # The diagnosis is an addition: where it fails, the error is raised without it.
    except (RuntimeError, NotImplementedError, TypeError, ValueError):  # out of memory, or a custom primitive
        return ""
    if not finite_value:  # a constant NaN
        return ""
    began = "forward and backward pass are finite, so it began in the update of the optimizer"
    return f"{began}; check that the options of the optimizer are finite and not too large, or "
