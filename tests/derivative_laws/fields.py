"""Rows of `jaxblocks.diffusion`, `jaxblocks.theory` and `jaxblocks.text`."""

import jax.numpy as jnp
import mpmath
import numpy as np
from derivative_laws.layer_functions import kernels
from derivative_laws.row import Exempt, Row, array, cos, exp, log, sin, sqrt
from derivative_laws.tensors import MATRIX

from jaxblocks.diffusion import cosine_schedule, flow_matching_schedule

X, Y, T = MATRIX, MATRIX[::-1] / 2, array(0.25, 0.75)
_SCALES = tuple(range(-60, 61, 20))
_BUILDS = "builds a schedule from numbers"
_SAMPLER = "a loop of calls of `predict`, whose steps are rows here"
_RANDOM = "draws random numbers"
_END = {"without noise": (X, Y, array(0, 0)), "without signal": (X, Y, array(1, 1))}


def density(x, mean, weight):
    """Of a mixture of two Gaussians of variance 1 in three dimensions, with means of opposite signs."""
    each = [mpmath.mpf(w) * exp(-((x - s * mean) ** 2).sum(-1) / 2) for w, s in ((weight, 1), (1 - weight, -1))]
    return log(sum(each)) - 3 * mpmath.log(2 * mpmath.pi) / 2


DIFFUSION = {
    "add_noise": Row(
        (X, Y, T),
        lambda f, x, e, t: f(x, e, t, cosine_schedule()),
        exponents=_SCALES,
        scaled=(0, 1),
        second="the derivative with respect to the time is that of the schedule, in tests/diffusion",
    ),
    "add_noise on a line": Row(
        (X, Y, T),
        lambda f, x, e, t: f(x, e, t, flow_matching_schedule()),
        _END,
        _SCALES,
        (0, 1),
        formula=lambda x, e, t: (1 - t[:, None]) * x + t[:, None] * e,
    ),
    "ancestral": Exempt(_SAMPLER),
    "classifier_free_guidance": Row(
        (X, np.float64(1.5)),
        lambda f, x, s: f(lambda x, t: jnp.sin(x), lambda x, t: x * x, s)(x, 0.5),
        exponents=(),
        formula=lambda x, s: (1 - s) * x * x + s * sin(x),
    ),
    "classifier_guidance": Row(
        (X,),
        lambda f, x: f(lambda x, t: x, lambda x, t: jnp.sin(x).sum(-1), 2.0, flow_matching_schedule(), "eps")(x, 0.5),
        exponents=(),
        formula=lambda x: x - cos(x),
    ),
    "convert": Row(
        (X, Y, T),
        lambda f, p, x, t: f(p, x, t, flow_matching_schedule(), "eps", "x0"),
        {"without noise": (X, Y, array(0, 0))},
        _SCALES,
        (0, 1),
        formula=lambda p, x, t: (x - t[:, None] * p) / (1 - t[:, None]),
    ),
    "convert velocity": Row(
        (X, Y, T),
        lambda f, p, x, t: f(p, x, t, flow_matching_schedule(), "velocity", "eps"),
        _END,
        (-60, -40, -20, 0, 10),  # the product with the determinant is a difference of numbers of size x
        (0, 1),
        formula=lambda p, x, t: x + (1 - t[:, None]) * p,
        steep=True,
    ),
    "cosine_schedule": Exempt(_BUILDS),
    "ddim": Exempt(_SAMPLER),
    "ddpm_schedule": Exempt(_BUILDS),
    "denoising_loss": Row(
        (X, Y, T),
        lambda f, x, e, t: f(lambda x, t: x * x, x, t, e, flow_matching_schedule(), "eps"),
        _END,
        (-20, 0, 20),
        (0, 1),
        formula=lambda x, e, t: ((((1 - t[:, None]) * x + t[:, None] * e) ** 2 - e) ** 2).mean(1),
    ),
    "dpm_solver_pp_2m": Exempt(_SAMPLER),
    "drop_condition": Exempt(_RANDOM),
    "error_scale": Row(
        (T,), lambda f, t: f(t, flow_matching_schedule(), "eps"), exponents=(), formula=lambda t: (1 - t) / t
    ),
    "euler": Exempt(_SAMPLER),
    "flow_matching_schedule": Exempt(_BUILDS),
    "gaussian_mixture": Row(
        (X, array(1, -0.5, 0.25)),
        lambda f, x, m: f(jnp.stack([m, -m]), jnp.ones(2, m.dtype), jnp.asarray([0.25, 0.75], m.dtype)).log_density(x),
        {
            "at a mean": (np.stack([array(1, -0.5, 0.25)] * 2), array(1, -0.5, 0.25)),
            "far": (64 * X, array(1, -0.5, 0.25)),
        },
        tuple(range(-100, 1, 20)),
        formula=lambda x, m: density(x, m, 0.25),
    ),
    "heun": Exempt(_SAMPLER),
    "initial_noise": Exempt(_RANDOM),
    "predictor_corrector": Exempt(_SAMPLER),
    "sample_times": Exempt(_RANDOM),
    "times": Exempt(_BUILDS),
    "variance_exploding_schedule": Exempt(_BUILDS),
    "variance_preserving_schedule": Exempt(_BUILDS),
}

_PARAMS = kernels((2, 3), (3, 1))


def net(*kernels):
    return tuple({"kernel": kernel} for kernel in kernels)


def frobenius(k):
    return mpmath.sqrt((k * k).sum())


def covariance(x, y):
    out = []
    for a in x:
        for b in y:
            na, nb = mpmath.sqrt((a * a).sum()), mpmath.sqrt((b * b).sum())
            u = (a * b).sum() / (na * nb)
            out.append(na * nb * (u * (mpmath.pi - mpmath.acos(u)) + mpmath.sqrt(1 - u * u)) / mpmath.pi)
    return np.array(out)


_STUDY = "an experiment: it trains or counts, and returns a record"
_NETWORK = "builds a network"
_COUNT = "returns integers, or a bound of integers"
_NUMPY = "exact piecewise linear functions in NumPy"

THEORY = {
    **dict.fromkeys(
        "batch_noise conservation_drift degree_sweep depth_sweep descend matrix_completion max_margin max_margin_bias "
        "min_norm_bias no_free_lunch random_labels selection_optimism stability_map width_sweep smoothness "
        "stationary_variance tuned_momentum modulus_of_continuity".split(),
        Exempt(_STUDY),
    ),
    **dict.fromkeys(
        "approximate approximate_by_ridges folding_network max_min_string max_zero_x_y minterm_network parity_chain "
        "parity_cosine parity_shallow sawtooth_network triangle_network two_level_model".split(),
        Exempt(_NETWORK),
    ),
    **dict.fromkeys(
        "arrangement_regions bit_rows count_kinks pieces_bound pieces_for "
        "region_lower_bound region_upper_bound regions regions_along separation separation_bound".split(),
        Exempt(_COUNT),
    ),
    **dict.fromkeys(
        "from_piecewise_linear interpolate to_piecewise_linear triangle_wave polynomial_fit".split(), Exempt(_NUMPY)
    ),
    **dict.fromkeys(
        "huber_objective least_squares_objective logistic_objective quadratic_objective".split(),
        Exempt("builds an objective; its function is made of rows here"),
    ),
}


def _saw(x):
    return 2 * abs(x) - 2


THEORY |= {
    "balance": Row(
        tuple(_PARAMS),
        lambda f, *kernels: [p["kernel"] for p in f(net(*kernels))],
        exponents=(-60, -20, 0, 20, 60),
        formula=lambda a, b: (a * sqrt(frobenius(b) / frobenius(a)), b * sqrt(frobenius(a) / frobenius(b))),
    ),
    "balancedness": Exempt("a measurement in NumPy"),
    "convex_bound": Row(
        (np.float64(2), np.float64(0.5)),
        lambda f, distance, size: f(jnp.asarray(3, distance.dtype), distance, size),
        exponents=(),
        formula=lambda r, s: r * r / (6 * s),
    ),
    "euler_terms": Exempt("a record of derivatives of a net; they are the rows of its layers"),
    "iteration_matrix": Row(
        (np.float64(0.5), np.float64(1.25), np.float64(0.5)),
        lambda f, size, curvature, momentum: f(size, curvature, momentum=momentum),
        exponents=(),
        formula=lambda s, c, m: (1 + m - s * c, -m, 0 * m + 1, 0 * m),
    ),
    "linear_bound": Row(
        (np.float64(2), np.float64(0.5)),
        lambda f, gap, size: f(jnp.asarray(3, gap.dtype), gap, size, smoothness=1.0, convexity=0.5),
        exponents=(),
        formula=lambda g, s: (1 - s / 2) ** 6 * g,
    ),
    "norm_differences": Row(
        tuple(_PARAMS),
        lambda f, *kernels: f(net(*kernels)),
        exponents=_SCALES,
        formula=lambda a, b: (a * a).sum() - (b * b).sum(),
    ),
    "normalized_margin": Row(
        (array(1.5, -0.5), *_PARAMS),
        lambda f, margins, *kernels: f(margins, net(*kernels)),
        exponents=(-60, -20, 0, 20, 60),
        formula=lambda m, a, b: m / (frobenius(a) * frobenius(b)),
    ),
    "relu_covariance": Row(
        (MATRIX, MATRIX[::-1] / 2 + 0.25),
        corners={
            "equal": (MATRIX, MATRIX),
            "opposite": (MATRIX, -MATRIX),
            "zero": (0 * MATRIX, MATRIX),
        },
        exponents=(-40, -20, 0, 20, 40),  # the squares of smaller numbers lose digits
        formula=covariance,
        tolerance=256,
        choices={
            "equal": "the second derivative is infinite where the angle is 0",
            "opposite": "the third derivative is infinite where the angle is pi",
            "zero": "a kink at 0",
        },
    ),
    "rescale": Row(
        tuple(_PARAMS),
        lambda f, *kernels: [p["kernel"] for p in f(net(*kernels), [2.0])],
        formula=lambda a, b: (2 * a, b / 2),
    ),
    "sawtooth": Row(
        (array(-1.375, 0.625, 3.25),),
        lambda f, x: f(x, 3),
        exponents=(-100, 0, 60),
        formula=lambda x: _saw(_saw(_saw(x))),
    ),
    "spectral_radius": Row(
        (np.float64(0.5), np.float64(8), np.float64(0.25)),
        lambda f, size, curvature, momentum: f(size, curvature, momentum=momentum),
        exponents=(),
        formula=lambda s, c, m: (abs(1 + m - s * c) + sqrt((1 + m - s * c) ** 2 - 4 * m)) / 2,
    ),
    "stable_step_size": Row(
        (np.float64(2), np.float64(0.5)),
        lambda f, curvature, momentum: f(curvature, momentum=momentum),
        exponents=(),
        formula=lambda c, m: 2 * (1 + m) / c,
    ),
    "unit_kernels": Row(
        tuple(_PARAMS),
        lambda f, *kernels: [p["kernel"] for p in f(net(*kernels))],
        {"a unit of zeros": (_PARAMS[0] * np.array([1, 0, 1]), _PARAMS[1])},
        (-40, -20, 0, 20, 40),
        formula=lambda a, b: (a / sqrt((a * a).sum(0)), b * sqrt((a * a).sum(0))[:, None]),
        choices={"a unit of zeros": "the direction of the zero vector"},
    ),
}


_GENERATES = "takes tokens"
TEXT = {
    **dict.fromkeys(("beam_search", "generate", "pad_prompts", "stream"), Exempt(_GENERATES)),
    "bits_per_token": Row(
        (MATRIX,),
        lambda f, x: f(x, jnp.asarray([2, 1])),
        {"equal": (np.ones((2, 3)),), "far apart": (np.array([[-24, 0, 40], [0, 24, -40.0]]),)},
        formula=lambda x: np.array(
            [(log(exp(r).sum()) - r[i]) / mpmath.log(2) for r, i in zip(x, (2, 1), strict=True)]
        ),
        magnitude=1,
    ),
    "truncate_logits": Row(
        (array(0.5, -1.25, 2, -0.375),),
        lambda f, x: f(x, top_k=3, top_p=0.9375, min_p=0.0625)[jnp.asarray([0, 2])],
        exponents=(),
        formula=lambda x: x[[0, 2]],
    ),
}
