"""The norms of gradients and updates in the state of the optimizer."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from jaxblocks.backend.quotients import norm
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import checked
from jaxblocks.training.optimizers.transformations import check_optimizer, parts_of

__all__ = ["NormsState", "get_norms", "track_norms"]


class NormsState(NamedTuple):
    """The state of `track_norms`.

    Args:
        inner: the state of the optimizer.
        gradient, update: the norms of the last gradient and of the last update, float32.
    """

    inner: Any
    gradient: Any
    update: Any


@checked
def track_norms(optimizer: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    r"""An optimizer that also keeps the norms of its last gradient and of its last update; both are unchanged.

    $‖g‖ = √(∑_θ ‖g_θ‖^2)$ over all params, and $‖u‖$ the same of what is added to them. `get_norms` reads both, and
    the callback `norm_log` writes them to the logs of `fit`::

        optimizer = track_norms(optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3)))
        fit(net, loss, optimizer, data, callbacks=[norm_log(every=100), csv_log("run.csv")], ...)

    The gradient is the one that enters the transformation: here the one before clipping.

    >>> optimizer = track_norms(optax.sgd(0.5))
    >>> state = optimizer.init(jnp.zeros(2))
    >>> updates, state = optimizer.update(jnp.array([3.0, 4.0]), state)
    >>> print(updates, get_norms(state))
    [-1.5 -2. ] {'gradient norm': Array(5., dtype=float32), 'update norm': Array(2.5, dtype=float32)}

    Source: Goodfellow, Bengio & Courville 2016, Deep learning, section 8.2.
    """
    check_optimizer(optimizer)
    inner = optax.with_extra_args_support(optimizer)

    def norm_of(tree):
        return norm(
            jnp.asarray([norm(jnp.abs(leaf).astype(jnp.float32)) for leaf in jax.tree.leaves(tree)], jnp.float32)
        )

    def init(params):
        return NormsState(inner.init(params), jnp.zeros((), jnp.float32), jnp.zeros((), jnp.float32))

    def update(updates: Any, state: Any, params: Any = None, **extra: Any):
        changes, after = inner.update(updates, state.inner, params, **extra)
        return changes, NormsState(after, norm_of(updates), norm_of(changes))

    return optax.GradientTransformationExtraArgs(init, update)


def get_norms(opt_state: Any) -> dict[str, Array]:
    """The ``"gradient norm"`` and the ``"update norm"`` of the last step, from the state of `track_norms`.

    Args:
        opt_state: the state of the optimizer, or the whole training state.

    Raises:
        ValueError: unless exactly one `track_norms` is in it.

    >>> sorted(get_norms(track_norms(optax.adam(0.1)).init(jnp.array(2.0))))
    ['gradient norm', 'update norm']
    """
    found = parts_of(opt_state, NormsState)
    expected = "the state of an optimizer with one track_norms around it"
    repair = "use track_norms(optimizer) from the first step on"
    repair = repair if len(found) < 2 else "use it once, around the whole: track_norms(optax.chain(...))"
    require(len(found) == 1, expected, f"one with {len(found)}", repair)
    return {"gradient norm": found[0].gradient, "update norm": found[0].update}
