"""The moving average of params, kept by the optimizer: `ema_params`, read by `get_ema`."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxblocks.precision import wide_dtype

__all__ = ["AverageState", "ema_params", "get_ema"]


class AverageState(NamedTuple):
    """The state of `ema_params`.

    Args:
        count: how many steps were averaged, int32.
        average: like the params.
    """

    count: Any
    average: Any


def ema_params(decay: float) -> optax.GradientTransformation:
    r"""Keep an exponential moving average of the params in the state of the optimizer; chain it last.

    With the params :math:`\theta_1, \theta_2, \dots` after each step and :math:`d` = ``decay``

    .. math:: \bar\theta_t = \frac{1 - d}{1 - d^t} \sum_{s=1}^t d^{\,t-s}\,\theta_s

    so the last :math:`1 / (1 - d)` steps count, and params at initialization never do (the weights
    sum to 1 from the first step). Updates pass unchanged. The average is kept in float32 at
    least, since in fewer bits small steps are lost; :math:`t` counts the steps of this transformation, so with
    ``optax.MultiSteps`` it belongs inside::

        optimizer = optax.chain(optax.adam(1e-3), ema_params(0.999))
        ...
        params = get_ema(train.opt_state)

    Raises:
        ValueError: unless 0 <= ``decay`` < 1, and where the update is computed without params.

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
    if not 0 <= decay < 1:
        raise ValueError(f"ema_params expects 0 <= decay < 1, but {decay!r} came; pass for instance 0.999.")

    def init(params):
        return AverageState(jnp.zeros((), jnp.int32), jax.tree.map(lambda p: jnp.array(p, wide_dtype(p.dtype)), params))

    def update(updates, state, params=None):
        if params is None:
            raise ValueError("ema_params averages params, but none came; call update(gradients, state, params).")
        count = state.count + 1

        def mix(average, new):
            dtype = average.dtype
            # 1 - d^t, right for d near 1 too
            beyond = -jnp.expm1(count.astype(dtype) * math.log(decay)) if decay else 1
            weight = jnp.where(count == 1, 1, (1 - decay) / beyond).astype(dtype)
            return average + weight * (new.astype(dtype) - average)

        new = optax.apply_updates(params, updates)
        return updates, AverageState(count, jax.tree.map(mix, state.average, new))

    return optax.GradientTransformation(init, update)


def get_ema(opt_state):
    """The params that `ema_params` has averaged, from the state of the optimizer (or of the training).

    Raises:
        ValueError: where the state holds no average, or several.

    >>> float(get_ema(ema_params(0.9).init(jnp.array(2.0))))
    2.0
    """
    is_average = lambda part: isinstance(part, AverageState)
    found = [part for part in jax.tree.leaves(opt_state, is_leaf=is_average) if is_average(part)]
    if len(found) != 1:
        raise ValueError(
            f"averaged expects the state of an optimizer with one ema_params in its chain, but {len(found)} are "
            "in it; use optax.chain(optimizer, ema_params(0.999)) from the beginning."
        )
    return found[0].average
