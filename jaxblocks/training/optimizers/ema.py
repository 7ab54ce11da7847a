"""The exponential moving average (EMA) of params in the state of the optimizer."""

import math
from collections import OrderedDict
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from jaxblocks.backend.precision import wide_dtype
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import Rate, checked
from jaxblocks.training.optimizers.transformations import parts_of

__all__ = ["EmaState", "check_ema_is_last", "ema_params", "get_ema"]


class EmaState(NamedTuple):
    """The state of `ema_params`.

    Args:
        count: the number of averaged steps, int32.
        average: the average, of the structure of the params.
    """

    count: Any
    average: Any


@checked
def ema_params(decay: Rate | Float[Array, ""]) -> optax.GradientTransformation:
    r"""Keep an exponential moving average of the params in the state of the optimizer; chain it last.

    With the params $θ_1, θ_2, …$ after each step and $d$ = ``decay``

    .. math::

        θ̄_t = ((1 - d) / (1 - d^t)) ∑_{s=1}^t d^{ t-s} θ_s

    so the average covers about the last $1 / (1 - d)$ steps, and excludes the initial params (the weights sum to
    1 from the first step on). Updates are unchanged. The average is stored in float32 at least, because fewer bits
    would lose small steps by rounding. $t$ counts the steps of this transformation, so with ``optax.MultiSteps``
    put it inside. `init_train_state` and training steps reject a chain in which it is not the last one::

        optimizer = optax.chain(optax.adam(1e-3), ema_params(0.999))
        ...
        params = get_ema(ts.opt_state)

    Raises:
        ValueError: unless 0 <= ``decay`` < 1; in ``update``, without params.

    >>> optimizer = optax.chain(optax.sgd(1.0), ema_params(0.5))
    >>> params = jnp.array(0.0)
    >>> state = optimizer.init(params)
    >>> for _ in range(2):
    ...     updates, state = optimizer.update(jnp.array(-3.0), state, params)
    ...     params = optax.apply_updates(params, updates)
    >>> float(params), float(get_ema(state))  # (0.5 * 3 + 1 * 6) / 1.5
    (6.0, 5.0)

    Source: Polyak and Juditsky 1992; Ho, Jain, Abbeel 2020, "Denoising diffusion probabilistic models", appendix B;
    the division by 1 - d^t is that of Kingma and Ba 2015, "Adam".
    """

    def init(params):
        # A new buffer for each array: the step donates params and optimizer state, and no buffer can be donated twice.
        return EmaState(jnp.zeros((), jnp.int32), jax.tree.map(lambda p: jnp.array(p, wide_dtype(p.dtype)), params))

    def update(updates: Any, state: Any, params: Any = None):
        require(params is not None, "params to average", params, "call update(gradients, state, params)")
        count = state.count + 1
        log = jnp.log(decay) if isinstance(decay, jax.Array) else math.log(decay) if decay else -math.inf

        def mix(average, new):
            dtype = average.dtype
            # 1 - d^t, also accurate for d near 1; of real numbers, since the log of d = 0 is infinite
            total = -jnp.expm1(count.astype(average.real.dtype) * log)
            # The weight (1 - d) / (1 - d^t) of the new params makes the average unbiased; at t = 1 it replaces the
            # start.
            weight = jnp.where(count == 1, 1, (1 - decay) / total).astype(dtype)
            return average + weight * (new.astype(dtype) - average)

        # The params after this update, which is why it has to be the last transformation of the chain.
        new = optax.apply_updates(params, updates)
        return updates, EmaState(count, jax.tree.map(mix, state.average, new))

    return optax.GradientTransformation(init, update)


def check_ema_is_last(opt_state: Any) -> None:
    """Raise a ``ValueError`` for a chain with `ema_params` before its end: the average would be of other params.

    Only other averages may follow. A state does not tell ``optax.identity()`` from ``optax.scale(0.1)``.
    """
    for chain in filter(_is_chain, jax.tree.leaves(opt_state, is_leaf=_is_chain)):
        parts = list(chain.values()) if isinstance(chain, dict) else chain
        first = next((i for i, part in enumerate(parts) if any(_averages(part))), len(parts))
        expected, got = "ema_params as the last transformation of its chain", "one before others, which it ignores"
        are_last = all(all(found := _averages(part)) and found for part in parts[first + 1 :])
        require(are_last, expected, got, "write optax.chain(optimizer, ema_params(decay))")
        for part in parts:
            check_ema_is_last(part)


def _is_chain(state: Any) -> bool:
    """Whether it is the state of ``chain`` or of ``named_chain``, with an entry for each transformation."""
    return type(state) in (tuple, OrderedDict) and bool(state)


def _averages(state: Any) -> list[bool]:
    """Whether each part of a state is one of `ema_params`."""
    is_average = lambda part: isinstance(part, EmaState)
    return [is_average(part) for part in jax.tree.leaves(state, is_leaf=is_average)]


def get_ema(opt_state: Any) -> Any:
    """The averaged params of `ema_params`, from the state of the optimizer (or the whole training state).

    Raises:
        ValueError: unless the state holds exactly one average.

    >>> float(get_ema(ema_params(0.9).init(jnp.array(2.0))))
    2.0
    """
    found = parts_of(opt_state, EmaState)
    expected = "the state of an optimizer with one ema_params in its chain"
    repair = "use optax.chain(optimizer, ema_params(0.999)) from the first step on"
    require(len(found) == 1, expected, f"one with {len(found)}", repair)
    return found[0].average
