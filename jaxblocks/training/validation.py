"""The validation of `fit`, a callback: means over the validation data after each epoch, and the best params."""

import math
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from jaxblocks.training.callback import Callback, Run
from jaxblocks.training.evaluation import evaluation_forward, means_of, placement
from jaxblocks.training.objective import call_loss
from jaxblocks.training.processes import of_first
from jaxblocks.training.rows import count_rows

__all__ = ["validation_callback"]


def validation_callback(
    net, data: tuple, metrics: Mapping[str, Callable], *, batch_size: int, compute_dtype=None
) -> Callback:
    """Evaluate ``metrics``, including ``"loss"``, after each epoch, and keep the params with the lowest loss.

    The means are stored in ``run.validations`` and in the last of ``run.rows``, the params and state in ``run.best``.
    """

    # Compiled in each run, as the step is, since the functions may read values from outside that have changed.
    means_of_data = means_of(net, tuple(metrics.items()), compute_dtype)

    def on_start(run: Run):
        run.columns += [f"validation {name}" for name in metrics]

    def on_epoch_end(run: Run):
        means = means_of_data(run.ts.params, run.ts.state, data, batch_size)
        means = of_first(means)  # so that all find the same best params, and stop alike
        if not math.isfinite(means["loss"]):
            _call_loss_eagerly(net, metrics["loss"], run.ts, data, batch_size, compute_dtype)
        # min returns a NaN that comes first, and no loss is below it.
        before = [earlier["loss"] for _, earlier in run.validations if not math.isnan(earlier["loss"])]
        if means["loss"] < min(before, default=math.inf):
            # `run.ts` is a copy, so that later steps do not donate these arrays.
            run.best = run.ts.params, run.ts.state
        run.rows[-1] |= {f"validation {name}": mean for name, mean in means.items()}
        run.validations.append((run.epoch, means))

    return Callback(on_start=on_start, on_epoch_end=on_epoch_end)


def _call_loss_eagerly(net, loss, ts, data, batch_size, compute_dtype):
    """Call the loss on concrete values, so that it can raise its own error, for example for labels out of range."""
    rows, place = count_rows(data), placement((ts.params, ts.state))
    for first in range(0, rows, batch_size):
        x, y = jax.tree.map(jnp.asarray, place(data, slice(first, min(first + batch_size, rows))))
        try:
            call_loss(loss, evaluation_forward(net, ts.params, ts.state, x, compute_dtype), y)
        except ValueError as error:
            error.add_note(f"in the validation data of fit, rows {first} to {first + len(jax.tree.leaves(y)[0]) - 1}")
            error.ts = ts  # pyright: ignore[reportAttributeAccessIssue]
            raise
