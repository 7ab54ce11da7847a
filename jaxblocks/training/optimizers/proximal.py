"""The proximal step of the l1 penalty as an optax transformation, which sets params to exact zeros."""

import jax
import optax
from jaxtyping import Array, Float

from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import checked
from jaxblocks.losses import soft_threshold

__all__ = ["proximal_l1"]


@checked
def proximal_l1(threshold: float | int | Float[Array, ""]) -> optax.GradientTransformation:
    r"""The l1 penalty as the last part of an optimizer chain: it applies ``soft_threshold`` to the updated params.

    ``optax.chain(optax.sgd(eta), proximal_l1(eta * strength))`` is proximal gradient descent (ISTA) on
    the loss plus ``strength`` $‖θ‖_1$; unlike ``penalty=l1_penalty`` it sets params to exactly 0.

    Raises:
        ValueError: in ``update``, for a negative ``threshold``, and without params.

    >>> import jax.numpy as jnp
    >>> optimizer = proximal_l1(0.5)
    >>> params = jnp.array([0.25, 2.0])
    >>> updates, _ = optimizer.update(jnp.zeros(2), optimizer.init(params), params)
    >>> optax.apply_updates(params, updates)
    Array([0. , 1.5], dtype=float32)

    Source: Parikh & Boyd 2014, "Proximal algorithms", section 4.2.
    """

    def update(updates, params):
        require(params is not None, "params to shrink", params, "call update(gradients, state, params)")
        return jax.tree.map(lambda u, p: soft_threshold(p + u, threshold) - p, updates, params)

    return optax.stateless(update)
