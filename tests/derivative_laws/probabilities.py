"""Rows of `jaxblocks.probabilities`."""

import jax.numpy as jnp
import numpy as np
from derivative_laws.row import Exempt, Row, array, exp, log

SCORES = array(0.5, -1.25, 2, -0.375)
MASK = np.array([True, False, True, True])
CORNERS = {
    "equal": (array(1, 1, 1, 1),),
    "zero": (array(0, 0, 0, 0),),
    "far apart": (array(-112, 0, 96, 24),),
    "one of -inf": (array(-np.inf, 0, 0.5, 2),),
    "all but one -inf": (array(-np.inf, -np.inf, 0.5, -np.inf),),
}
NONE = {"all -inf": (array(-np.inf, -np.inf, -np.inf, -np.inf),)}


def softmax(x):
    e = exp(x - x.max())
    return e / e.sum()


def masked(scores):
    return scores[[0, 2, 3]]


_CHECK = "a check: no number depends on its argument smoothly"

ROWS = {
    "check_distribution": Exempt("a check, returns nothing"),
    "check_labels": Exempt("takes integers, returns booleans"),
    "is_distribution": Exempt("returns booleans"),
    "one_hot": Exempt("takes integers"),
    "log_softmax": Row((SCORES,), corners=CORNERS, formula=lambda x: x - log(exp(x).sum())),
    "log_softmax where": Row(
        (SCORES,),
        lambda f, x: f(x, where=jnp.asarray(MASK))[jnp.asarray([0, 2, 3])],
        {"masked NaN": (array(0.5, np.nan, 2, -0.375),), "zero": (array(0, 0, 0, 0),)},
        formula=lambda x: masked(x) - log(exp(masked(x)).sum()),
    ),
    "logsumexp": Row((SCORES,), corners=CORNERS | NONE, formula=lambda x: log(exp(x).sum())),
    "logsumexp where": Row(
        (SCORES,),
        lambda f, x: f(x, where=jnp.asarray(MASK)),
        CORNERS,
        formula=lambda x: log(exp(masked(x)).sum()),
    ),
    "logsumexp where nothing counts": Row(
        (SCORES,), lambda f, x: jnp.logaddexp(f(x), f(x, where=jnp.zeros(4, bool))), exponents=(-100, 0, 100)
    ),
    "logsumexp of one": Row(
        (array(0.5),), corners={"zero": (array(0),), "-inf": (array(-np.inf),)}, formula=lambda x: x
    ),
    "smooth_labels": Row(
        (array(0.5, 0.25, 0.25), np.float64(0.25)),
        corners={"one-hot": (array(0, 1, 0), np.float64(0)), "uniform": (array(0, 1, 0), np.float64(1))},
        exponents=(),
        formula=lambda p, s: (1 - s) * p + s / 3,
    ),
    "softargmax": Row((SCORES,), corners=CORNERS, formula=softmax),
    "softmax": Row((SCORES,), corners=CORNERS, formula=softmax),
    "softmax where": Row(
        (SCORES,),
        lambda f, x: f(x, where=jnp.asarray(MASK)),
        CORNERS | {"masked NaN": (array(0.5, np.nan, 2, -0.375),)},
        formula=lambda x: np.insert(softmax(masked(x)), 1, 0),
    ),
    "softmax where nothing counts": Row(
        (SCORES,), lambda f, x: jnp.stack([f(x), f(x, where=jnp.zeros(4, bool))]), exponents=(-100, 0, 100)
    ),
    "softmax of one": Row((array(0.5),), corners={"zero": (array(0),)}, formula=lambda x: 0 * x + 1),
    "softmax_fixed": Row((SCORES,), corners=CORNERS, formula=lambda x: softmax(np.insert(x, 0, 0))),
    "softmax_mean": Row(
        (SCORES, array(1.5, -0.5, 0.75, 0.25)),
        corners={name: (*corner, array(1.5, -0.5, 0.75, 0.25)) for name, corner in CORNERS.items()},
        formula=lambda z, q: (softmax(z) * q).sum(),
    ),
}
