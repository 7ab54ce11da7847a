r"""What a denoiser prediction_type, and exact conversions from one to another.

At time t a net sees :math:`x = \alpha x_0 + \sigma \varepsilon`. Whichever of five things it prediction_type, the other four
follow, since x is known:

=============  ==============================================  ==========================================
``"eps"``      the noise :math:`\varepsilon`                   DDPM
``"x0"``       the data :math:`x_0`
``"v"``        :math:`\alpha\varepsilon - \sigma x_0`          Salimans & Ho 2022
``"score"``    :math:`\nabla_x \log p_t(x) = -\varepsilon / \sigma`   Song & Ermon 2019
``"velocity"`` :math:`dx/dt = \alpha' x_0 + \sigma' \varepsilon`      flow matching, the probability-flow ODE
=============  ==============================================  ==========================================

The best prediction of each is a conditional mean given x, and conversions are affine in the prediction, so they turn
the best of one into the best of another.

A word of warning for readers of the lectures: the *score* is the gradient of a log density, and has nothing to do with
the scores of a "score-based classifier", which are its outputs before the softmax.

Axis letters: ``...`` the axes of an array x.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxblocks.checks import check_values, checkable, describe, describe_any, require_floating
from jaxblocks.diffusion.schedules import Schedule, align, require_schedule, require_time
from jaxblocks.precision import widen

__all__ = [
    "PARAMETRIZATIONS",
    "combined",
    "convert",
    "error_scale",
    "require_parametrization",
    "require_prediction",
    "require_solvable",
]

PARAMETRIZATIONS = ("eps", "x0", "v", "score", "velocity")


def convert(
    prediction: Float[Array, "*shape"],
    x: Float[Array, "*shape"],
    t: float | int | Float[Array, "*_batch"],
    schedule: Schedule,
    source: str,
    target: str,
    *,
    check: bool = False,
) -> Float[Array, "*shape"]:
    r"""A prediction of ``source`` at x as one of ``target``: two of "eps", "x0", "v", "score", "velocity".

    .. math:: x_0 = \frac{x - \sigma\varepsilon}{\alpha} = \frac{\alpha x - \sigma v}{\alpha^2 + \sigma^2}
        = \frac{\sigma' x - \sigma u}{\alpha\sigma' - \sigma\alpha'}, \qquad
        \varepsilon = \frac{x - \alpha x_0}{\sigma} = -\sigma s = \frac{\sigma x + \alpha v}{\alpha^2 + \sigma^2}
        = \frac{\alpha u - \alpha' x}{\alpha\sigma' - \sigma\alpha'}

    with s the score and u the velocity. Nothing is clipped. Some conversions divide by 0 at an end: by the signal,
    where it is 0 (``flow_matching_schedule`` at t = 1: from "eps" or "score" to "x0", "v" or "velocity"); by the noise at t = 0
    (from "x0" to others, and to "score"); and the velocity is infinite where :math:`\sigma'` is
    (``variance_preserving_schedule``, ``ddpm_schedule`` and ``variance_exploding_schedule`` at t = 0).

    Raises:
        ValueError: where it would divide by 0; for a parametrization that is none; for shapes that do not fit, times
            outside of [0, 1]. Under ``jit``, without ``check=True``, a division by 0 gives infinity or NaN.
        TypeError: for integers.

    >>> from jaxblocks.diffusion import flow_matching
    >>> x0, eps = jnp.array([[1.0, -1.0]]), jnp.array([[0.5, 0.5]])
    >>> x = 0.75 * x0 + 0.25 * eps  # flow matching at t = 0.25
    >>> print(convert(eps, x, 0.25, flow_matching_schedule(), "eps", "x0"))
    [[ 1. -1.]]
    >>> print(convert(eps, x, 0.25, flow_matching_schedule(), "eps", "velocity"))
    [[-0.5  1.5]]

    Source: Salimans & Ho 2022, Progressive distillation, appendix D; Song et al. 2021 (score, probability flow).
    """
    require_schedule("convert", schedule)
    require_parametrization("convert", source, target)
    require_floating("convert", prediction=prediction, x=x)
    if prediction.shape != x.shape:
        raise ValueError(
            f"convert expects a prediction of the shape of x, but it is {describe(prediction)} and x {describe(x)}; "
            "let the net return as many features as it takes."
        )
    wide = widen(x)
    t = require_time("convert", t, wide, check)
    require_solvable("convert", t, schedule, source, target, check=check)
    return converted(prediction.astype(wide.dtype), wide, t, schedule, source, target).astype(prediction.dtype)


def converted(p, x, t, schedule, source, target):
    """`convert` without its checks."""
    if source == target:
        return p
    a, s = align(schedule.signal(t), x), align(schedule.noise(t), x)
    eps = x0 = None
    if source == "eps":
        eps = p
    elif source == "score":
        eps = -s * p
    elif source == "x0":
        x0 = p
    elif source == "v":
        size = a * a + s * s
        x0, eps = (a * x - s * p) / size, (s * x + a * p) / size
    else:
        da, ds = (align(rate, x) for rate in schedule.rates(t))
        size = a * ds - s * da
        x0, eps = (ds * x - s * p) / size, (a * p - da * x) / size
    if x0 is None and target in ("x0", "v", "velocity"):
        x0 = (x - s * eps) / a
    if eps is None and target != "x0":
        eps = (x - a * x0) / s
    return combined(x0, eps, t, schedule, target)


def combined(x0, eps, t, schedule, target):
    """What ``target`` names, made of x0 and eps; the one that it does not need may be ``None``.

    >>> from jaxblocks.diffusion import flow_matching
    >>> print(combined(jnp.array([1.0]), jnp.array([3.0]), jnp.array(0.25), flow_matching_schedule(), "velocity"))
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


def error_scale(t, schedule: Schedule, parametrization: str):
    r"""By how much an error in :math:`x_0` shows in another parametrization at the same x, as a positive factor.

    .. math:: \varepsilon: \frac{\alpha}{\sigma}, \qquad s: \frac{\alpha}{\sigma^2}, \qquad
        v: \frac{\alpha^2 + \sigma^2}{\sigma}, \qquad u: \frac{\alpha\sigma' - \sigma\alpha'}{\sigma}, \qquad x_0: 1

    So a squared error in eps is one in x0, weighted by the ratio of signal to noise.

    >>> from jaxblocks.diffusion import flow_matching
    >>> t = jnp.array(0.25)
    >>> print(error_scale(t, flow_matching_schedule(), "eps"), error_scale(t, flow_matching_schedule(), "velocity"))
    3.0 4.0

    Source: Salimans & Ho 2022, section 4; Kingma & Gao 2023.
    """
    require_parametrization("error_scale", parametrization)
    a, s = schedule.signal(t), schedule.noise(t)
    if parametrization == "x0":
        return jnp.ones_like(a)
    if parametrization == "eps":
        return a / s
    if parametrization == "score":
        return a / (s * s)
    if parametrization == "v":
        return (a * a + s * s) / s
    da, ds = schedule.rates(t)
    return (a * ds - s * da) / s


# ---- shared by the files of this folder ----------------------------------------------------


def require_parametrization(where: str, *names) -> None:
    """Raise a ``ValueError`` unless every name is a parametrization.

    >>> require_parametrization("ddim", "noise")
    Traceback (most recent call last):
    ...
    ValueError: ddim expects a parametrization out of eps, x0, v, score, velocity, but 'noise' came...
    """
    for name in names:
        if name not in PARAMETRIZATIONS:
            raise ValueError(
                f"{where} expects a parametrization out of {', '.join(PARAMETRIZATIONS)}, but {name!r} came; "
                "name what the net predicts."
            )


def require_prediction(where: str, found, x) -> None:
    """Raise a ``ValueError`` unless what ``predict(x, t)`` returned is an array of the shape of x."""
    if not hasattr(found, "shape") or found.shape != x.shape:
        raise ValueError(
            f"{where} expects a prediction of the shape of x, but x is {describe(x)} and predict(x, t) "
            f"{describe_any(found)}; let the net return as many features as it takes, and one output."
        )


def require_solvable(where: str, t, schedule: Schedule, source: str, target: str, *, check: bool = False) -> None:
    """Raise a ``ValueError`` where going from ``source`` to ``target`` divides by 0 (if the times are known)."""
    if source == target or (known := checkable(t, check)) is None:
        return

    def refuse(bad, why):
        check_values(
            ~bad,
            f"{where} goes from {source} to {target}, which {why} at t = {{time}}; stay away from that end, as in "
            "times(schedule, steps, start=0.999, end=0.001), or predict another: at the end of pure noise x0, v or "
            "velocity are safe, at the end of data eps and v.",
            check=check,
            time=known.ravel()[jnp.argmax(bad)],
        )

    if source in ("eps", "score") and target in ("x0", "v", "velocity"):
        refuse(jnp.ravel(schedule.signal(known) <= 0), "divides by the signal, and that is 0")
    if source == "x0" or target == "score":
        refuse(jnp.ravel(schedule.noise(known) <= 0), "divides by the noise, and that is 0")
    if "velocity" in (source, target):
        refuse(jnp.ravel(~jnp.isfinite(schedule.rates(known)[1])), "needs the rate of the noise, and that is infinite")
