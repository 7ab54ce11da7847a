"""The learning-rate range test: a short run with a rate that grows in each step."""

import inspect
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Key

from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveFloat, PositiveInt, checked
from jaxblocks.checks.signatures import takes
from jaxblocks.core.pairs import LayerLike
from jaxblocks.core.shapes import as_inputs
from jaxblocks.plotting.axes import axes_or_new
from jaxblocks.sharding import with_automatic_axes, without_explicit_axes
from jaxblocks.training.data.batches import minibatches
from jaxblocks.training.data.rows import check_finite_pair
from jaxblocks.training.step.state import check_no_carry, init_train_state
from jaxblocks.training.step.step import train_step

__all__ = ["RangeTest", "find_learning_rate"]

_SMOOTHING = 0.9
_DIVERGED = 4.0
_ROUNDING = 1e-6  # of a loss in float32


class _StepOptions(TypedDict, total=False):
    penalty: Callable | None
    augment: Callable | None
    compute_dtype: DTypeLike | None
    accumulate: PositiveInt
    donate: bool | None


@dataclass(frozen=True, repr=False)
class RangeTest:
    """The losses of a run with growing learning rates; returned by `find_learning_rate`.

    Args:
        rates: the learning rate of each step, ``(steps,)``.
        losses: the objective before each step, ``(steps,)``.
        smoothed: the moving average of the losses, ``(steps,)``.

    >>> losses = np.array([2.0, 1.9, 1.5, 0.9, 0.8, 3.0])
    >>> RangeTest(np.geomspace(1e-3, 100, 6), losses, losses)
    RangeTest(6 rates from 0.001 to 100, the loss falls fastest at 0.1)
    """

    rates: np.ndarray
    losses: np.ndarray
    smoothed: np.ndarray

    @property
    def suggestion(self) -> float:
        """The rate in the middle of the decade in which the loss falls fastest, by a line fitted to its losses.

        Where a decade has more than a quarter of all steps, that quarter takes its place; at least three steps are
        fitted. Steps after the least smoothed loss do not count: what falls later rose before.
        """
        logs = np.log10(self.rates)
        window = min(len(logs), max(3, min(len(logs) // 4, 1 + round(1 / (logs[1] - logs[0])))))
        end = max(window, 1 + int(np.argmin(self.smoothed)))
        logs, losses = (np.lib.stride_tricks.sliding_window_view(x[:end], window) for x in (logs, self.losses))
        centered = logs - logs.mean(1, keepdims=True)
        slopes = np.sum(centered * losses, 1) / np.sum(centered**2, 1)
        return float(self.rates[int(np.argmin(slopes)) + window // 2])

    def plot(self, ax: Any = None) -> Any:
        """Plot the losses over the rates on Matplotlib axes, and return the axes."""
        ax = axes_or_new(ax)
        ax.plot(self.rates, self.losses, label="loss", linewidth=1, alpha=0.6)
        ax.plot(self.rates, self.smoothed, label="smoothed")
        ax.axvline(self.suggestion, linestyle=":", label="falls fastest")
        ax.set_xscale("log")
        ax.set_xlabel("learning rate")
        ax.legend()
        return ax

    def __repr__(self):
        ends = f"{self.rates[0]:.3g} to {self.rates[-1]:.3g}"
        return f"RangeTest({len(self.rates)} rates from {ends}, the loss falls fastest at {self.suggestion:.2g})"


@checked
@without_explicit_axes()
def find_learning_rate(
    net: LayerLike,
    loss: Callable,
    optimizer: Callable,
    data: tuple,
    *,
    key: Key[Array, ""],
    lowest: PositiveFloat = 1e-6,
    highest: PositiveFloat = 10.0,
    steps: PositiveInt = 100,
    batch_size: PositiveInt | None = None,
    **options: Unpack[_StepOptions],
) -> RangeTest:
    r"""Train for some steps with a learning rate that grows from ``lowest`` to ``highest``, and record the losses.

    In step k of n the rate is $a (b/a)^{k/(n-1)}$, a = ``lowest``, b = ``highest``. Where the loss falls fastest is a
    rate to begin with; where it rises again is one that is too large. The test ends early where the smoothed loss is
    four times its minimum, or not finite. The smoothed loss is an exponential moving average of weight 0.9, without
    the bias of its start. It is one short run of a random process: compare a few rates near the suggestion.

    Args:
        net, loss, data, key, batch_size: as in `fit`.
        optimizer: from a learning rate, which is a schedule, to the optimizer, such as ``optax.adam`` or
            ``lambda rate: optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(rate, momentum=0.9))``.
        lowest, highest: the learning rates at both ends.
        steps: n, at least 2.
        options: those of `train_step`.

    Raises:
        TypeError: unless ``optimizer`` takes a learning rate alone, and for data that are no pair.
        ValueError: unless ``lowest`` < ``highest``, for a loss that is not finite in the first two steps, and for one
            that falls at no rate; data as in `fit`.

    >>> import optax
    >>> from jaxblocks.layers.dense import Dense
    >>> from jaxblocks.losses import mse
    >>> x = jnp.linspace(-1, 1, 64)[:, None]
    >>> data, key = (x, 3 * x), jax.random.key(0)
    >>> test = find_learning_rate(Dense(1), mse, optax.sgd, data, key=key)
    >>> bool(0.01 < test.suggestion < 2)
    True

    Source: Smith 2017, Cyclical learning rates for training neural networks (arXiv:1506.01186).
    """
    require(math.isfinite(highest), "a finite highest", highest, "pass a number such as 10.0")
    require(lowest < highest, f"lowest below highest={highest}", lowest, "pass a smaller lowest rate")
    require(steps > 1, "steps of at least 2", steps, "pass more steps, such as 100")
    _check_makes_optimizers(optimizer)
    ratio = math.log(highest / lowest) / (steps - 1)
    tested = optimizer(lambda count: lowest * jnp.exp(ratio * jnp.asarray(count, jnp.float32)))
    rows, key = check_finite_pair("data", data), with_automatic_axes(key)
    size = min(64, rows) if batch_size is None else batch_size
    step = train_step(net, loss, tested, **options)
    rates, losses, smoothed, average, ts = [], [], [], 0.0, None
    for k, (x, y) in zip(range(steps), minibatches(key, data, size, epochs=None), strict=False):
        if ts is None:
            ts = init_train_state(key, net, tested, *as_inputs(x))
            check_no_carry(net, tested, ts.state, x)
        ts, value = step(ts, x, y)
        average = _SMOOTHING * average + (1 - _SMOOTHING) * float(value)
        mean = average / (1 - _SMOOTHING ** (k + 1))
        if not math.isfinite(mean) or mean > _DIVERGED * min(smoothed, default=math.inf) > 0:
            break
        rates.append(lowest * math.exp(ratio * k))
        losses.append(float(value))
        smoothed.append(mean)
    repair = "pass a smaller lowest rate, and check the data"
    require(len(rates) > 1, "a loss that is finite and does not explode at once", f"{len(rates)} steps", repair)
    falls = any(after < before - _ROUNDING * abs(before) for before, after in itertools.pairwise(smoothed))
    got = f"one that goes from {smoothed[0]:.4g} to {smoothed[-1]:.4g} without a fall"
    repair = "check that the loss depends on the params, and that the optimizer descends, or pass a larger highest"
    require(falls, f"a loss that falls at a rate from {lowest:g} to {highest:g}", got, repair)
    return RangeTest(np.array(rates), np.array(losses), np.array(smoothed))


def _check_makes_optimizers(optimizer) -> None:
    if not takes(optimizer, 1):
        name = getattr(optimizer, "__name__", "a function")
        wrapped = f"write lambda rate: {name}(..., learning_rate=rate)"
        is_wrapped = "learning_rate" in inspect.signature(optimizer).parameters
        repair = wrapped if is_wrapped else "pass one such as optax.adam; the order is net, loss, optimizer, data"
        expected = "optimizer to be a function of the learning rate alone"
        require(False, expected, f"{name}, which takes other arguments", repair, error=TypeError)
