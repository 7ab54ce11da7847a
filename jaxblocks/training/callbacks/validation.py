"""The validation of `fit`, a callback: means over the validation data after each epoch, and the best params."""

import math
from collections.abc import Callable, Mapping, Sequence

from jaxblocks.training.callbacks.callback import Callback, Run
from jaxblocks.training.evaluation import means_of
from jaxblocks.training.processes import on_first

__all__ = ["last_is_best", "validation_callback"]


def validation_callback(
    net, data: tuple, metrics: Mapping[str, Callable], *, batch_size: int, compute_dtype=None
) -> Callback:
    """Evaluate ``metrics``, including ``"loss"``, after each epoch, and keep the params with the lowest loss.

    The means are stored in ``run.validations`` and in the last of ``run.rows``, the params and state in ``run.best``.
    """

    # Compiled in each run, as the step is, since the functions may read values from outside that have changed.
    means_of_data = means_of(net, tuple(metrics.items()), compute_dtype, "the validation data of fit")

    def on_start(run: Run):
        run.columns += [f"validation {name}" for name in metrics]

    def on_epoch_end(run: Run):
        try:
            means = means_of_data(run.ts.params, run.ts.state, data, batch_size)
        except ValueError as error:
            error.ts = run.ts  # pyright: ignore[reportAttributeAccessIssue]
            raise
        # Those of the first process, so that all find the same best params, and stop alike.
        means = on_first(lambda: means)
        run.rows[-1] |= {f"validation {name}": mean for name, mean in means.items()}
        run.validations.append((run.epoch, means))
        if last_is_best(run.validations):
            # `run.ts` is a copy, so that later steps do not donate these arrays.
            run.best = run.ts.params, run.ts.state
            if not run.is_inside_epoch:
                run.best_of_epochs = run.best

    return Callback(on_start=on_start, on_epoch_end=on_epoch_end)


def last_is_best(validations: Sequence[tuple[float, Mapping[str, float]]]) -> bool:
    """Whether the last of the validations has the lowest loss; of equal ones the first has it, and never a NaN."""
    *before, last = [means["loss"] for _, means in validations]
    # min returns a NaN that comes first, and no loss is below it.
    return last < min((loss for loss in before if not math.isnan(loss)), default=math.inf)
