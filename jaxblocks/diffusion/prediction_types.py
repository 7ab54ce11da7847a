r"""Prediction types of a denoiser, and exact conversions between them.

At time t a net gets $x = α x_0 + σ ε$ and predicts one of five quantities. The other four
follow, since x is known:

=============  =====================================================  ============================================
``"eps"``      the noise $ε$                                          DDPM
``"x0"``       the data $x_0$
``"v"``        $αε - σ x_0$                                           Salimans & Ho 2022
``"score"``    $∇_x log p_t(x) = -ε / σ$                              Song & Ermon 2019
``"velocity"`` $dx/dt = α' x_0 + σ' ε$                                flow matching, the probability-flow ODE
=============  =====================================================  ============================================

The optimal prediction of each type is a conditional mean given x, and conversions are affine in the prediction, so they
map the optimum of one type to the optimum of another.

The *score* is the gradient of a log density. It is unrelated to the scores of a classifier, its outputs before the
softmax.

Axis letters: ``...`` the axes of an array x.
"""

from typing import Any, Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxblocks.backend.precision import widen
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import checked
from jaxblocks.checks.values import check_values, checkable, concrete
from jaxblocks.diffusion.schedules import Schedule, align, check_schedule, checked_time

__all__ = [
    "PREDICTION_TYPES",
    "PredictionType",
    "check_prediction",
    "check_solvable",
    "combine",
    "convert",
    "convert_unchecked",
    "error_scale",
    "ratio_of_scales",
]

PredictionType: TypeAlias = Literal["eps", "x0", "v", "score", "velocity"]
PREDICTION_TYPES: tuple[PredictionType, ...] = get_args(PredictionType)


@checked
def convert(
    output: Float[Array, "*shape"],
    x: Float[Array, "*shape"],
    t: float | int | Float[Array, "*_batch"],
    schedule: Schedule,
    source: PredictionType,
    target: PredictionType,
    *,
    check: bool = False,
) -> Float[Array, "*shape"]:
    r"""The output of a net of type ``source`` at x as a prediction of type ``target``.

    .. math::

        x_0 = (x - σε) / α = (α x - σ v) / (α^2 + σ^2) = (σ' x - σ u) / (ασ' - σα'),
        ε = (x - α x_0) / σ = -σ s = (σ x + α v) / (α^2 + σ^2) = (α u - α' x) / (ασ' - σα')

    with s the score and u the velocity. Nothing is clipped. Some conversions divide by 0 at an end: by the signal,
    where it is 0 (``flow_matching_schedule`` at t = 1: from "eps" or "score" to "x0", "v" or "velocity"); by the noise
    at t = 0 (from "x0" to others, and to "score"); and the velocity is infinite where $σ'$ is
    (``variance_preserving_schedule``, ``ddpm_schedule`` and ``variance_exploding_schedule`` at t = 0).

    From a velocity, the result and its derivatives with respect to t are differences of terms of the size of x: with
    large x, digits are lost relative to a small prediction.

    Raises:
        ValueError: for a division by 0, an unknown prediction type, incompatible shapes, or times outside of [0, 1].
            Under ``jit``, without ``check=True``, a division by 0 gives infinity or NaN.
        TypeError: for integers.

    >>> from jaxblocks.diffusion import flow_matching_schedule
    >>> x0, eps = jnp.array([[1.0, -1.0]]), jnp.array([[0.5, 0.5]])
    >>> x = 0.75 * x0 + 0.25 * eps  # flow matching at t = 0.25
    >>> print(convert(eps, x, 0.25, flow_matching_schedule(), "eps", "x0"))
    [[ 1. -1.]]
    >>> print(convert(eps, x, 0.25, flow_matching_schedule(), "eps", "velocity"))
    [[-0.5  1.5]]

    Source: Salimans & Ho 2022, Progressive distillation, appendix D, arXiv:2202.00512; Song et al. 2021 (score,
    probability flow), arXiv:2011.13456.
    """
    check_schedule(schedule)
    wide = widen(x)
    t = checked_time(t, wide, check)
    check_solvable(t, schedule, source, target, check=check)
    return convert_unchecked(output.astype(wide.dtype), wide, t, schedule, source, target).astype(output.dtype)


def convert_unchecked(p, x, t, schedule: Schedule, source: PredictionType, target: PredictionType) -> Array:
    """`convert` without its checks."""
    if source == target:
        return p
    # The two equations x = a x_0 + s eps and p = (the definition of the source) are solved for x_0 and eps.
    a, s = align(schedule.signal(t), x), align(schedule.noise(t), x)
    if source in ("eps", "score"):
        eps = p if source == "eps" else -s * p
        # Only where it is needed: the division is by 0 at a time without signal.
        x0 = (x - s * eps) / a if target in ("x0", "v", "velocity") else None
    elif source == "x0":
        x0, eps = p, (x - a * p) / s
    elif source == "v":
        # The determinant of x = a x_0 + s eps, p = a eps - s x_0; 1 for schedules that preserve the variance.
        size = a * a + s * s
        x0, eps = (a * x - s * p) / size, (s * x + a * p) / size
    else:
        da, ds = (align(rate, x) for rate in schedule.rates(t))
        # The determinant of x = a x_0 + s eps, p = a' x_0 + s' eps.
        size = a * ds - s * da
        x0, eps = (ds * x - s * p) / size, (a * p - da * x) / size
    return combine(x0, eps, t, schedule, target)


def combine(x0: Any, eps: Any, t, schedule: Schedule, target: PredictionType) -> Array:
    """A prediction of type ``target`` from x0 and eps; an argument that the type does not need may be ``None``.

    >>> from jaxblocks.diffusion import flow_matching_schedule
    >>> x0, eps, t = jnp.array([1.0]), jnp.array([3.0]), jnp.array(0.25)
    >>> print(combine(x0, eps, t, flow_matching_schedule(), "velocity"))
    [2.]
    """
    if target == "eps":
        return eps
    if target == "x0":
        return x0
    if target == "score":
        return -eps / align(schedule.noise(t), eps)
    if target == "v":
        return align(schedule.signal(t), eps) * eps - align(schedule.noise(t), eps) * x0
    da, ds = (align(rate, eps) for rate in schedule.rates(t))
    return da * x0 + ds * eps


@checked
def error_scale(
    t: Float[Array, "*batch"], schedule: Schedule, prediction_type: PredictionType
) -> Float[Array, "*batch"]:
    r"""The error in a prediction at fixed x for an error of 1 in $x_0$, as a positive factor.

    .. math::

        ε: α/σ,
        s: α / σ^2,
        v: (α^2 + σ^2) / σ,
        u: (ασ' - σα') / σ,
        x_0: 1

    So the squared error in eps is the squared error in x0, weighted by the signal-to-noise ratio.

    >>> from jaxblocks.diffusion import flow_matching_schedule
    >>> t, schedule = jnp.array(0.25), flow_matching_schedule()
    >>> print(error_scale(t, schedule, "eps"), error_scale(t, schedule, "velocity"))
    3.0 4.0

    Source: Salimans & Ho 2022, section 4, arXiv:2202.00512; Kingma & Gao 2023, arXiv:2303.00848.
    """
    return ratio_of_scales(t, schedule, prediction_type, "x0")


# Scales are these powers of the signal a and the noise s, for v times a^2 + s^2, for the velocity times a s' - s a'.
_POWERS = {"eps": (1, -1), "score": (1, -2), "x0": (0, 0), "v": (0, -1), "velocity": (0, -1)}


def ratio_of_scales(t, schedule: Schedule, one, other, least=0.0):
    """The error scale of one prediction type relative to that of another one, without a quotient of two zeros.

    Signal and noise are at least ``least``.
    """
    a, s = schedule.signal(t), schedule.noise(t)
    if least:
        a, s = jnp.maximum(a, least), jnp.maximum(s, least)
    of_signal, of_noise = (p - q for p, q in zip(_POWERS[one], _POWERS[other], strict=True))
    ratio = a**of_signal * s**of_noise
    for name, power in ((one, 1), (other, -1)):
        if name == "v":
            ratio = ratio * (a * a + s * s) ** power
        elif name == "velocity":
            da, ds = schedule.rates(t)
            ratio = ratio * (a * ds - s * da) ** power
    return ratio


def check_prediction(prediction, x) -> None:
    """Raise a ``ValueError`` unless ``predict(x, t)`` returned an array of the shape of x.

    >>> check_prediction(jnp.zeros(3), jnp.zeros(3))
    """
    if getattr(prediction, "shape", None) != x.shape:
        repair = "let the net return one array with as many features as its input"
        require(False, f"a prediction of the shape of x, {describe(x)}", prediction, repair)
    if not jnp.issubdtype(prediction.dtype, jnp.floating):
        repair = "compute in the dtype of x"
        require(False, "a floating-point prediction", prediction, repair, error=TypeError)


@jax.ensure_compile_time_eval()
def check_solvable(t, schedule: Schedule, source: PredictionType, target: PredictionType, *, check=False) -> None:
    """Raise a ``ValueError`` where the conversion from ``source`` to ``target`` divides by 0 (for known times)."""
    # Empty and traced times are not checked.
    if source == target or (known := checkable(t, check)) is None or not known.size:
        return

    at = jnp.asarray(known)

    def reject(bad, why):
        if (bad := checkable(bad, check)) is None:
            return
        check_values(
            ~bad,
            f"times at which {source} determines {target}, got t = {{time}}, where the conversion {why}; leave that "
            "end out, as in times(schedule, steps, start=0.999, end=0.001), or predict another type: at t = 1 x0, v "
            "or velocity, at t = 0 eps or v",
            check=check,
            time=at.ravel()[bad.argmax()],
        )

    if source in ("eps", "score") and target in ("x0", "v", "velocity"):
        reject(concrete(schedule.signal(at)).ravel() <= 0, "divides by the signal, which is 0")
    if source == "x0" or target == "score":
        reject(concrete(schedule.noise(at)).ravel() <= 0, "divides by the noise, which is 0")
    if "velocity" in (source, target):
        reject(
            ~(abs(concrete(schedule.rates(at)[1]).ravel()) < jnp.inf),
            "needs the rate of the noise, which is infinite",
        )
