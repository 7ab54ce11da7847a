r"""Guidance: samples of a wanted kind, by pushing the prediction towards it.

A guided ``predict(x, t)`` is made of others, and goes to any sampler.

Axis letters: ``...`` the axes of an array x, the first of which are those of the batch.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxblocks.checks import describe, describe_any
from jaxblocks.diffusion.parametrizations import combined, require_parametrization
from jaxblocks.diffusion.schedules import Schedule, align, require_schedule, require_time

__all__ = ["classifier_guided", "guided"]


def guided(conditional: Callable, unconditional: Callable, scale: float | int | Float[Array, ""]) -> Callable:
    r"""Classifier-free guidance: :math:`(1 - w)\,\hat P(x, t) + w\,\hat P(x, t \mid y)` as a ``predict(x, t)``.

    With w ``scale``: 0 is ``unconditional``, 1 is ``conditional``, and more exaggerates what the condition changes. It
    does the same in every parametrization, as long as both are of the same one. (The paper's w is this one less 1.)

    Args:
        conditional: ``predict(x, t)`` for the condition, such as ``lambda x, t: net.apply(params, x, time=...,
            label=y)``.
        unconditional: the same for none, that is for the ``null`` of `jaxblocks.diffusion.drop_condition`.

    Raises:
        ValueError: when called, where the two predictions differ in shape.

    >>> predict = guided(lambda x, t: x + 1, lambda x, t: x, 3.0)
    >>> print(predict(jnp.zeros(2), 0.5))
    [3. 3.]

    Source: Ho & Salimans 2022, Classifier-free diffusion guidance.
    """

    def predict(x, t):
        with_it, without = conditional(x, t), unconditional(x, t)
        if jnp.shape(with_it) != jnp.shape(without):
            raise ValueError(
                f"guided expects two predictions of one shape, but {describe_any(with_it)} and {describe_any(without)} "
                "came; call the same net twice."
            )
        return (1 - scale) * without + scale * with_it

    return predict


def classifier_guided(
    predict: Callable,
    log_probability: Callable,
    scale: float | int | Float[Array, ""],
    schedule: Schedule,
    prediction_type: str,
) -> Callable:
    r"""Classifier guidance: the score plus :math:`w\,\nabla_x \log p(y \mid x, t)`, as a ``predict(x, t)``.

    With w ``scale``; w = 1 is Bayes' rule for the score of x given y. What is added to other predictions follows:
    :math:`-\sigma g` to eps, :math:`\sigma^2 g / \alpha` to x0, and so on, with g the gradient times w.

    Args:
        predict: of parametrization ``prediction_type``.
        log_probability: ``(x, t)`` to :math:`\log p(y \mid x, t)` of the wanted class, one number per example, of a
            classifier that was trained on data with noise.

    Where the signal is 0, x0, v and the velocity would be infinite or NaN (`flow_matching_schedule` at t = 1).

    Raises:
        ValueError: for an unknown parametrization, or, when called, log-probabilities that are not one per example.

    >>> from jaxblocks.diffusion import flow_matching
    >>> predict = classifier_guided(lambda x, t: x, lambda x, t: -x[..., 0], 2.0, flow_matching_schedule(), "eps")
    >>> print(predict(jnp.zeros((1, 2)), 0.5))
    [[1. 0.]]

    Source: Dhariwal & Nichol 2021, Diffusion models beat GANs on image synthesis, section 4.
    """
    require_schedule("classifier_guided", schedule)
    require_parametrization("classifier_guided", prediction_type)

    def guided_predict(x, t):
        t = require_time("classifier_guided", t, x)

        def total(x):
            each = log_probability(x, t)
            if not hasattr(each, "shape") or each.shape != x.shape[: each.ndim] or each.ndim == x.ndim > 0:
                raise ValueError(
                    "classifier_guided expects one log-probability per example, of the wanted class, but "
                    f"{describe_any(each)} came for x {describe(x)}; choose the entry of that class."
                )
            return each.sum()

        gradient = scale * jax.grad(total)(x)
        if prediction_type == "score":
            return predict(x, t) + gradient
        s = align(schedule.noise(t), x)
        x0 = None if prediction_type == "eps" else s * s / align(schedule.signal(t), x) * gradient
        return predict(x, t) + combined(x0, -s * gradient, t, schedule, prediction_type)

    return guided_predict
