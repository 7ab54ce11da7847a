r"""Guidance: predictions that make a sampler draw examples of a given class or condition.

A guided ``predict(x, t)`` combines other functions, and can be passed to any sampler. `drop_condition` is what its
training needs.

Axis letters: ``...`` the axes of an array x, the first of which are those of the batch.
"""

from collections.abc import Callable
from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, Shaped

from jaxblocks.backend.precision import widen
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import Range, checked
from jaxblocks.checks.values import checkable
from jaxblocks.diffusion.prediction_types import PredictionType, combine
from jaxblocks.diffusion.schedules import Schedule, align, check_schedule, checked_time

__all__ = ["classifier_free_guidance", "classifier_guidance", "drop_condition"]


@checked
def classifier_free_guidance(
    conditional: Callable, unconditional: Callable, scale: float | int | Float[Array, ""]
) -> Callable:
    r"""Classifier-free guidance: $(1 - w) P̂(x, t) + w P̂(x, t ∣ y)$ as a ``predict(x, t)``.

    With w ``scale``: 0 is ``unconditional``, 1 is ``conditional``, and a larger one extrapolates the difference. The
    result does not depend on the prediction type, as long as both have the same one. (The w of the paper is w - 1
    here.)

    Args:
        conditional: ``predict(x, t)`` for the condition, such as ``lambda x, t: net.apply(params, x, time=...,
            label=y)``.
        unconditional: the same without a condition, that is for the ``null`` of `jaxblocks.diffusion.drop_condition`.
        scale: $w$.

    Raises:
        ValueError: when called, where the two predictions differ in shape.

    >>> predict = classifier_free_guidance(lambda x, t: x + 1, lambda x, t: x, 3.0)
    >>> print(predict(jnp.zeros(2), 0.5))
    [3. 3.]

    Source: Ho & Salimans 2022, Classifier-free diffusion guidance, arXiv:2207.12598.
    """

    def predict(x, t):
        with_condition, without = conditional(x, t), unconditional(x, t)
        # Shapes that broadcast, such as (n, 1) and (n,), would be combined to (n, n) without an error.
        if jnp.shape(with_condition) != jnp.shape(without):
            got = f"{describe(with_condition)} and {describe(without)}"
            require(False, "two predictions of one shape", got, "call the same net twice")
        dtype = jnp.result_type(with_condition, without, float)  # that of the result
        with_condition, without = (widen(jnp.asarray(y, dtype)) for y in (with_condition, without))
        w = jnp.asarray(scale, without.dtype)
        return ((1 - w) * without + w * with_condition).astype(dtype)

    return predict


@checked
def classifier_guidance(
    predict: Callable,
    log_probability: Callable,
    scale: float | int | Float[Array, ""],
    schedule: Schedule,
    prediction_type: PredictionType,
) -> Callable:
    r"""Classifier guidance: the score plus $w ∇_x log p(y ∣ x, t)$, as a ``predict(x, t)``.

    With w ``scale``; w = 1 is Bayes' rule for the score of x given y. The terms added to other predictions follow:
    $-σ g$ to eps, $σ^2 g / α$ to x0, and so on, with g the gradient times w.

    Args:
        predict: a prediction of type ``prediction_type``.
        log_probability: ``(x, t)`` to $log p(y ∣ x, t)$ of the given class, one number for each example, of
            a classifier that was trained on data with noise.
        scale: $w$.
        schedule: the noise schedule.
        prediction_type: "eps", "x0", "v", "score" or "velocity".

    Where the signal is 0, x0, v and the velocity are infinite or NaN (`flow_matching_schedule` at t = 1).

    Raises:
        ValueError: for an unknown prediction type, or, when called, log-probabilities that are not one per example.

    >>> from jaxblocks.diffusion import flow_matching_schedule
    >>> schedule, log_probability = flow_matching_schedule(), lambda x, t: -x[..., 0]
    >>> predict = classifier_guidance(lambda x, t: x, log_probability, 2.0, schedule, "eps")
    >>> print(predict(jnp.zeros((1, 2)), 0.5))
    [[1. 0.]]

    Source: Dhariwal & Nichol 2021, Diffusion models beat GANs on image synthesis, section 4, arXiv:2105.05233.
    """
    check_schedule(schedule)

    def guided_predict(x, t):
        t = checked_time(t, x)

        def total(x):
            each = log_probability(x, t)
            if not hasattr(each, "shape") or each.shape != x.shape[: each.ndim] or each.ndim == x.ndim > 0:
                expected = f"one log-probability for each example of x, {describe(x)}"
                require(False, expected, each, "choose the entry of the given class")
            # Examples do not depend on each other, so the gradient of the sum is the gradient of each.
            return each.sum()

        # w grad log p(y | x), which is added to the score; other predictions change by what follows from it.
        change = widen(jax.grad(total)(x))
        change = jnp.asarray(scale, change.dtype) * change
        if prediction_type != "score":
            # At fixed x eps changes by -sigma g, and x_0 by sigma^2 / alpha g.
            s = align(schedule.noise(t), change)
            # Not computed for eps, since alpha may be 0.
            x0 = None if prediction_type == "eps" else s * s / align(schedule.signal(t), change) * change
            change = combine(x0, -s * change, t, schedule, prediction_type)
        prediction = predict(x, t)
        return (widen(prediction) + change).astype(prediction.dtype)

    return guided_predict


@checked
def drop_condition(
    key: Key[Array, ""],
    condition: Shaped[Array, "batch *shape"],
    *,
    null: float | int | Shaped[Array, "..."],
    rate: Annotated[float | int, Range(0, most=1)],
) -> Shaped[Array, "batch *shape"]:
    r"""A batch of conditions in which each example's is replaced by ``null`` with probability ``rate``.

    A net that is trained on these conditions learns to denoise with and without a condition, as
    `jaxblocks.diffusion.classifier_free_guidance` requires. For labels 0 to 9, ``null`` can be 10, an eleventh class.

    Args:
        key: the random key.
        condition: ``(batch, ...)``, such as labels ``(batch,)`` or vectors ``(batch, features)``.
        null: one number, or an array of the shape of one example's condition.
        rate: a probability.

    Raises:
        ValueError: for a ``null`` of another shape, or one that the dtype of an integer condition does not hold.

    As an augmentation for `jaxblocks.fit` on ``x = (images, labels)``:
    ``augment=lambda key, x: (x[0], drop_condition(key, x[1], null=10, rate=0.1))``.

    >>> print(drop_condition(jax.random.key(0), jnp.arange(8), null=10, rate=1.0))
    [10 10 10 10 10 10 10 10]

    Source: Ho & Salimans 2022, Classifier-free diffusion guidance, algorithm 1, arXiv:2207.12598.
    """
    if jnp.issubdtype(condition.dtype, jnp.integer) and (known := checkable(null, False)) is not None:
        kept, repair = (known.astype(condition.dtype) == known).all(), "pass an integer, and labels in int32"
        require(kept, f"null to be a number of {condition.dtype.name}, as the condition", null, repair)
    null = jnp.asarray(null, condition.dtype)
    expected = f"null to be one number, or of the shape {condition.shape[1:]} of one condition"
    repair = "pass null[0]" if null.shape[1:] == condition.shape[1:] else "pass one such as null=0"
    require(null.shape in ((), condition.shape[1:]), expected, null, repair)
    dropped = jax.random.bernoulli(key, rate, condition.shape[:1])
    # (batch,) to (batch, 1, ..., 1), which broadcasts over one condition
    dropped = dropped.reshape(-1, *(1,) * (condition.ndim - 1))
    return jnp.where(dropped, jnp.broadcast_to(null, condition.shape), condition)
