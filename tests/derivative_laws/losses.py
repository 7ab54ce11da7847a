"""Rows of `jaxblocks.losses`."""

import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
from derivative_laws.probabilities import softmax
from derivative_laws.row import Exempt, Row, array, entries, exp, log, loggamma, sqrt

from jaxblocks.backend.precision import widen

P, Q = array(0.5, 0.125, 0.375), array(0.25, 0.25, 0.5)
PREDICTIONS, TARGETS = array(1.25, -0.75, 0.25, 3), array(0.5, 0.5, -2, 1.25)
DISTRIBUTIONS = {
    "equal": (P, P),
    "both one-hot": (array(0, 1, 0), array(0, 1, 0)),
    "p one-hot": (array(0, 1, 0), Q),
    "uniform": (array(0.25, 0.25, 0.25), array(0.25, 0.25, 0.25)),
    "tiny": (array(2.0**-80, 1, 2.0**-100), array(2.0**-90, 1, 2.0**-70)),
    "tiny where p is 0": (array(0, 1, 0), array(2.0**-80, 1, 2.0**-100)),
    "one number below 1": (array(0.5, 0.5, 0), array(0.5, 0.5, 0)),
}
Z1, Z2 = array(0.5, -1.25, 2), array(-0.75, 1, 0.25)
SCORES = {
    "equal": (Z1, Z1),
    "zero": (array(0, 0, 0), array(0, 0, 0)),
    "far apart": (array(-48, 0, 24), array(40, 8, -40)),
    "farther": (array(-112, 0, 96), array(100, 8, -100)),
}


def xlogx(p):
    return entries(lambda a: a * mpmath.log(a) if a else mpmath.mpf(0))(p)


def xlogy(p, q):
    return np.vectorize(lambda a, b: a * mpmath.log(b) if a else mpmath.mpf(0), otypes=[object])(p, q)


def kl(p, q):
    return (xlogx(p) - xlogy(p, q)).sum()


def js(p, q):
    return (xlogx(p) + xlogx(q) - 2 * xlogx((p + q) / 2)).sum() / 2


def huber(e, delta=1):
    return entries(lambda a: a * a / 2 if abs(a) <= delta else delta * (abs(a) - mpmath.mpf(delta) / 2))(e)


def info_nce(a, b, temperature=mpmath.mpf("0.5")):
    a, b = (x / sqrt((x * x).sum(-1, keepdims=True)) for x in (a, b))
    scores = a @ b.T / temperature
    return np.array([log(exp(row).sum()) - row[i] for i, row in enumerate(scores)])


def cosine_embedding(a, b):
    cosine = (x / sqrt((x * x).sum(-1, keepdims=True)) for x in (a, b))
    cosine = np.multiply(*cosine).sum(-1)
    return np.array([1 - cosine[0], *(max(c, 0 * c) for c in cosine[1:])])


_AT_ZERO = "the derivative of p log p at 0 is infinite: 0 is used"
_SQUARE = dict.fromkeys(
    ("tiny", "tiny where p is 0"), "the second derivative of log is 1 / q^2, beyond float32 for q below 1e-19"
)
_KINK = "a kink where an entry of p equals that of q: 0 is used"
_EQUAL = ("equal", "both one-hot", "uniform", "one number below 1", "tiny", "tiny where p is 0")
_ROWS = np.array([[0.5, -1.25], [2, 0.75], [-0.5, 0.25]]), np.array([[1.0, -0.5], [0.25, 1.5], [-1.5, 1]])
_SMALL = tuple(range(-100, 1, 20))  # no exponential of the others is a number
_BOTH = {
    "equal": (TARGETS, TARGETS),
    "zero": (0 * TARGETS, 0 * TARGETS),
    "both huge": (3 * 2.0**100 * TARGETS, TARGETS),
}
_PADDING = {"masked NaN": (array(1.5, np.nan, 0.25, np.inf), array(0.5, np.nan, -2, np.nan))}
_WHERE = np.array([True, False, True, False])


def of_softmax(f, *scores):
    """f of the softmax of scores, both in float32 for half precision, where probabilities would round to 0."""
    return f(*(jax.nn.softmax(widen(z)) for z in scores)).astype(scores[0].dtype)


def smoothed(z, label, smoothing):
    log_p = z - log(exp(z).sum())
    return -(1 - smoothing) * log_p[label] - smoothing * log_p.mean()


def distributions(formula=None, **options):
    """A row of a function of two distributions, where the derivative with respect to p = 0 is a choice."""
    options = {
        "choices": dict.fromkeys(("both one-hot", "p one-hot", "one number below 1", "tiny where p is 0"), _AT_ZERO)
    } | options
    options["wide_only"] = _SQUARE
    return Row((P, Q), corners=DISTRIBUTIONS, exponents=(), formula=formula, magnitude=1, **options)


ROWS = {
    "cosine_embedding_loss": Row(
        _ROWS,
        lambda f, x, y: f(x, y, jnp.asarray([True, False, False])),
        {
            "zero row": (np.array([[0.0, 0], [2, 0.75], [-0.5, 0.25]]), _ROWS[1]),
            "margin": (np.array([[1.0, 0], [1, 0], [0, 2]]), np.array([[1.0, 0], [0, 1], [1, 0]])),
        },
        formula=cosine_embedding,
        magnitude=1,
        choices={"zero row": "the direction of the zero vector: slope 0 is used", "margin": "a kink: 0"},
    ),
    "cross_entropy": Row(
        (P, Q),
        corners={name: each for name, each in DISTRIBUTIONS.items() if name != "tiny where p is 0"},
        exponents=(),
        formula=lambda p, q: -xlogy(p, q).sum(),
        choices=dict.fromkeys(("both one-hot", "one number below 1"), "log 0 at p = q = 0: 0 is used"),
        wide_only=_SQUARE,
    ),
    "cross_entropy of softmax": Row(
        (Z1, Z2),
        of_softmax,
        {k: v for k, v in SCORES.items() if k != "farther"},
        _SMALL,
        formula=lambda x, y: -xlogy(softmax(x), softmax(y)).sum(),
        magnitude=1,
    ),
    "distillation_loss": Row(
        (Z1, Z2, np.float64(2)),
        lambda f, x, y, t: f(x, y, temperature=t),
        {name: (*each, np.float64(0.5)) for name, each in SCORES.items()},
        _SMALL,
        (0, 1),
        formula=lambda x, y, t: -xlogy(softmax(y / t), softmax(x / t)).sum(),
    ),
    "distillation_loss of large logits": Row(
        (Z1, Z2), corners=SCORES, steep=True, formula=lambda x, y: -xlogy(softmax(y), softmax(x)).sum()
    ),
    "entropy": Row(
        (P,),
        corners={"one-hot": (array(0, 1, 0),), "tiny": (array(2.0**-80, 1, 2.0**-120),)},
        exponents=(),
        formula=lambda p: -xlogx(p).sum(),
        choices={"one-hot": _AT_ZERO},
        wide_only=_SQUARE,
    ),
    "entropy of softmax": Row(
        (Z1,),
        of_softmax,
        {"far apart": (array(-112, 0, 96),)},
        _SMALL,
        formula=lambda z: -xlogx(softmax(z)).sum(),
        magnitude=1,
    ),
    "gaussian_nll": Row(
        (PREDICTIONS, TARGETS, array(0.5, 2, 1.25, 0.75)),
        lambda f, x, y, v: f(x, y, variance=v),
        {
            "equal": (TARGETS, TARGETS, array(1, 1, 1, 1)),
            "precise": (PREDICTIONS, TARGETS, 2.0**-40 * array(1, 1, 1, 1)),
        },
        tuple(range(-60, 61, 20)),
        (0, 1),
        formula=lambda x, y, v: (((y - x) ** 2 / v + log(v) + mpmath.log(2 * mpmath.pi)) / 2).sum(),
    ),
    "gaussian_nll where": Row(
        (PREDICTIONS, TARGETS, array(0.5, 0, 1.25, 0)),
        lambda f, x, y, v: f(x, y, variance=v, where=jnp.asarray(_WHERE)),
        {name: (*each, array(0.5, np.nan, 1, -1)) for name, each in _PADDING.items()},
        (0,),
    ),
    "hinge_loss": Row(
        (PREDICTIONS,),
        lambda f, x: f(x, jnp.asarray([1, -1, 1, -1], x.dtype)),
        {"margin": (array(1, -1, 1, -1),)},
        formula=lambda x: np.array([max(1 - a * b, 0 * a) for a, b in zip(x, (1, -1, 1, -1), strict=True)]),
        choices={"margin": "a kink"},
    ),
    "huber_loss": Row(
        (PREDICTIONS, TARGETS),
        corners={"equal": (TARGETS, TARGETS), "at delta": (TARGETS + 1, TARGETS), "at -delta": (TARGETS - 1, TARGETS)},
        formula=lambda x, y: huber(x - y).mean(),
        choices=dict.fromkeys(("at delta", "at -delta"), "the second derivative jumps"),
    ),
    "huber_loss where": Row((PREDICTIONS, TARGETS), lambda f, x, y: f(x, y, where=jnp.asarray(_WHERE)), _PADDING, (0,)),
    "info_nce_loss": Row(
        _ROWS,
        lambda f, x, y: f(x, y, temperature=0.5),
        {
            "zero row": (np.array([[0.0, 0], [2, 0.75], [-0.5, 0.25]]), _ROWS[1]),
            "equal rows": (np.ones((3, 2)), np.ones((3, 2))),
        },
        formula=info_nce,
        magnitude=1,
        choices={"zero row": "the direction of the zero vector: slope 0 is used"},
    ),
    "jensen_gap": Row(
        (array(0.5, -1.25, 2), P),
        lambda f, x, w: f(lambda a: a * a, x, w),
        {"equal": (array(2, 2, 2), P), "one-hot": (array(0.5, -1.25, 2), array(0, 1, 0))},
        tuple(range(-60, 41, 20)),
        (0,),
        formula=lambda x, w: (w * x * x).sum() - (w * x).sum() ** 2,
    ),
    "jensen_shannon": distributions(js),
    "jensen_shannon of softmax": Row(
        (Z1, Z2), of_softmax, SCORES, _SMALL, formula=lambda x, y: js(softmax(x), softmax(y)), magnitude=1
    ),
    "kl_divergence": distributions(kl),
    "kl_divergence of softmax": Row(
        (Z1, Z2),
        of_softmax,
        {k: v for k, v in SCORES.items() if k != "farther"},
        _SMALL,
        formula=lambda x, y: kl(softmax(x), softmax(y)),
        magnitude=1,
    ),
    "kl_divergence of one-hot and softmax": Row(
        (Z2,),
        lambda f, z: f(jnp.asarray([0, 1, 0], widen(z).dtype), jax.nn.softmax(widen(z))).astype(z.dtype),
        {"likely": (array(-45, 0, -30),), "unlikely": (array(24, 0, 64),), "farther": (array(-128, 0, -112),)},
        _SMALL,
        formula=lambda z: -log(softmax(z)[1]),
        magnitude=1,
    ),
    "l1_penalty": Row(
        (PREDICTIONS,), corners={"zero": (0 * TARGETS,)}, formula=lambda x: abs(x).sum(), choices={"zero": "a kink"}
    ),
    "l2_penalty": Row(
        (PREDICTIONS,),
        corners={"zero": (0 * TARGETS,)},
        exponents=tuple(range(-60, 61, 20)),
        formula=lambda x: (x * x).sum(),
    ),
    "lp_distance 1": Row(
        (P, Q),
        lambda f, p, q: f(p, q, 1),
        DISTRIBUTIONS,
        (),
        formula=lambda p, q: abs(p - q).sum(),
        choices=dict.fromkeys(_EQUAL, _KINK),
    ),
    "lp_distance 2": Row(
        (P, Q),
        lambda f, p, q: f(p, q, 2),
        DISTRIBUTIONS,
        formula=lambda p, q: sqrt(((p - q) ** 2).sum()),
        choices=dict.fromkeys(_EQUAL, _KINK),
    ),
    "lp_distance 3": Row(
        (P, Q),
        lambda f, p, q: f(p, q, 3),
        DISTRIBUTIONS,
        tolerance=2**10,
        formula=lambda p, q: mpmath.cbrt((abs(p - q) ** 3).sum()),
        choices=dict.fromkeys(_EQUAL, _KINK),
    ),
    "lp_distance inf": Row(
        (P, Q),
        lambda f, p, q: f(p, q, math.inf),
        DISTRIBUTIONS,
        (),
        formula=lambda p, q: abs(p - q).max(),
        choices=dict.fromkeys(DISTRIBUTIONS, _KINK),
    ),
    "mae": Row(
        (PREDICTIONS, TARGETS),
        corners={"equal": (TARGETS, TARGETS)},
        formula=lambda x, y: abs(x - y).mean(),
        choices={"equal": _KINK},
    ),
    "mae where": Row((PREDICTIONS, TARGETS), lambda f, x, y: f(x, y, where=jnp.asarray(_WHERE)), _PADDING, (0,)),
    "mse": Row(
        (PREDICTIONS, TARGETS),
        corners={"equal": (TARGETS, TARGETS)},
        exponents=tuple(range(-60, 61, 20)),
        formula=lambda x, y: ((x - y) ** 2).mean(),
    ),
    "mse where": Row((PREDICTIONS, TARGETS), lambda f, x, y: f(x, y, where=jnp.asarray(_WHERE)), _PADDING, (0,)),
    "nll": Row(
        (PREDICTIONS,),
        lambda f, x: f(x, jnp.asarray(2)),
        {"-inf": (array(-np.inf, -np.inf, 0, -np.inf),)},
        formula=lambda x: -x[2],
    ),
    "pairwise_distances": Row(
        _ROWS,
        corners={"equal": (_ROWS[0], _ROWS[0])},
        formula=lambda x, y: sqrt(((x[:, None] - y[None]) ** 2).sum(-1)),
        choices={"equal": _KINK},
    ),
    "pairwise_distances of order 1": Row(
        (_ROWS[0],),
        lambda f, x: f(x, order=1),
        formula=lambda x: abs(x[:, None] - x[None]).sum(-1),
        choices=dict.fromkeys(("ordinary",), "distances of a point to itself: 0"),
    ),
    "poisson_nll": Row(
        (PREDICTIONS, np.abs(TARGETS)),
        corners={
            "no count": (array(-96, -48, 0, 24), 0 * TARGETS),
            "rate 0": (array(-np.inf, 0, 1, 2), array(0, 1, 2, 3)),
        },
        exponents=_SMALL,
        formula=lambda x, y: (exp(x) - y * x + loggamma(y + 1)).sum(),
    ),
    "sigmoid_cross_entropy": Row(
        (PREDICTIONS, array(0.25, 1, 0, 0.5)),
        corners={
            "zero": (0 * TARGETS, array(0, 1, 0.5, 0.25)),
            "far out": (array(-112, -24, 24, 112), array(0, 1, 0, 1)),
        },
        scaled=(0,),
        formula=lambda x, y: y * log(1 + exp(-x)) + (1 - y) * (x + log(1 + exp(-x))),
    ),
    "soft_threshold": Row(
        (PREDICTIONS, np.float64(0.5)),
        corners={
            "at the threshold": (array(0.5, -0.5, 0.25, 0), np.float64(0.5)),
            "zero": (0 * TARGETS, np.float64(0)),
        },
        formula=lambda x, t: np.array([max(abs(a) - t.item(), 0 * a) * (1 if a > 0 else -1) for a in x]),
        choices=dict.fromkeys(("at the threshold", "zero"), "a kink"),
    ),
    "softmax_cross_entropy": Row(
        (PREDICTIONS,),
        lambda f, x: f(x, jnp.asarray(2), label_smoothing=0.25),
        {"equal": (array(1, 1, 1, 1),), "far apart": (array(-112, 0, 96, 24),)},
        formula=lambda x: smoothed(x, 2, mpmath.mpf(1) / 4),
    ),
    "softmax_cross_entropy of -inf": Row(
        (PREDICTIONS,),
        lambda f, x: f(x, jnp.asarray(2)),
        {"-inf": (array(-np.inf, 0, 1, -np.inf),)},
        formula=lambda x: smoothed(x, 2, 0),
    ),
    "softmax_cross_entropy of targets": Row(
        (Z1, P),
        corners={"one-hot": (Z1, array(0, 1, 0)), "far apart": (array(-112, 0, 96), P)},
        scaled=(0,),
        formula=lambda x, p: p.sum() * log(exp(x).sum()) - (p * x).sum(),
    ),
    "total_variation": Row(
        (P, Q),
        corners=DISTRIBUTIONS,
        exponents=(),
        formula=lambda p, q: abs(p - q).sum() / 2,
        choices=dict.fromkeys(_EQUAL, _KINK),
    ),
    "weighted_mean": Row(
        (PREDICTIONS, array(1, 0.5, 2, 0.25)),
        corners={"a weight of 0": (PREDICTIONS, array(1, 0, 2, 0)), "no weight": (PREDICTIONS, array(0, 0, 0, 0))},
        scaled=(0,),
        formula=lambda x, w: (x * w).sum() / w.sum(),
        choices={"no weight": "0 / 0: 0", "a weight of 0": "the mixed second derivative in it and its value is 0"},
    ),
    "zero_one_loss": Exempt("takes integers"),
}
