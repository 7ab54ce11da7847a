"""Rows of `jaxblocks.tensors`, `jaxblocks.statistics` and `jaxblocks.metrics`."""

import jax.numpy as jnp
import numpy as np
from derivative_laws.losses import PREDICTIONS, TARGETS
from derivative_laws.row import Exempt, Row, array, exp, log, sqrt

MATRIX = np.array([[0.5, -1.25, 2], [0.75, 1.5, -0.5]])
VECTOR = array(1.5, -0.25)
_INTEGERS = "returns integers"
_SQUARES = tuple(range(-60, 61, 20))  # the squares are numbers of float32
_MASK = np.array([True, False])
_CONSTANT = {"equal": (np.ones((2, 3)),), "zero": (np.zeros((2, 3)),)}
_TOOL = "arranges axes and masks for the layers, computes nothing of its own"


def _mean_and_variance(x, axis=None):
    mean = x.mean(axis)
    return mean, ((x - mean) ** 2).mean(axis)


TENSORS = {
    "cp_decompose": Exempt("an iteration from random factors: the result is not a function of the tensor"),
    "cp_tensor": Row(
        (MATRIX, MATRIX[:, :2], VECTOR.reshape(2, 1)),
        lambda f, *factors: f(factors),
        exponents=tuple(range(-40, 41, 20)),
        formula=lambda a, b, c: np.einsum("ai,aj,ak->ijk", a, b, c, optimize=False),
    ),
    "einsum": Row(
        (MATRIX, VECTOR),
        lambda f, a, b: f("ij,i->j", a, b),
        {"zero": (0 * MATRIX, 0 * VECTOR)},
        _SQUARES,
        formula=lambda a, b: a.T @ b,
    ),
    "flattening": Row((MATRIX,), lambda f, a: f(a, 1), formula=lambda a: a.T),
    "flattening_ranks": Exempt(_INTEGERS),
    "pure_tensor": Row((MATRIX[0], VECTOR), exponents=_SQUARES, formula=np.multiply.outer),
    "rank_bounds": Exempt(_INTEGERS),
    "tensor_product": Row((MATRIX, VECTOR), exponents=_SQUARES, formula=np.multiply.outer),
}

STATISTICS = {
    "align_axes": Exempt(_TOOL),
    "average": Row((MATRIX,), lambda f, x: f(x, (1,)), _CONSTANT, formula=lambda x: x.mean(1)),
    "count_valid": Exempt("counts entries"),
    "expand_mask": Exempt(_TOOL),
    "fit_standardizer": Row(
        (np.array([[0.5, -1.25], [2, 0.75], [-0.5, 1.5]]),),
        corners={name: (each[0].T,) for name, each in _CONSTANT.items()},
        exponents=_SQUARES,
        formula=lambda x: (sqrt(_mean_and_variance(x, 0)[1]), x.mean(0)),
        choices=dict.fromkeys(_CONSTANT, "the root of 0: a constant feature has deviation 1"),
    ),
    "moments": Row((MATRIX,), lambda f, x: f(x, (0, 1)), _CONSTANT, _SQUARES, formula=_mean_and_variance),
    "moments with a mask": Row(
        (MATRIX,),
        lambda f, x: f(x, 0, mask=jnp.asarray(_MASK)) + f(x, 1, mask=jnp.asarray(_MASK)),
        {"masked NaN": (np.where(_MASK[:, None], MATRIX, np.nan),)},
        _SQUARES,
    ),
    "sorted_axes": Exempt("takes axes"),
    "standardize": Row(
        (MATRIX, array(0.5, 1, -2), array(0.5, 2, 1.25)),
        corners={"equal": (np.ones((2, 3)), array(1, 1, 1), array(1, 1, 1))},
        exponents=tuple(range(-40, 41, 20)),
        formula=lambda x, m, s: (x - m) / s,
    ),
}

METRICS = {
    "accuracy": Exempt("constant between jumps: the classes of scores"),
    "confusion_matrix": Exempt(_INTEGERS),
    "perplexity": Row(
        (MATRIX,),
        lambda f, x: f(x, jnp.asarray([2, 1])),
        {"equal": (np.ones((2, 3)),), "far apart": (np.array([[-24, 0, 40], [0, 24, -40.0]]),)},
        tuple(range(-100, 1, 20)),
        formula=lambda x: exp((log(exp(x).sum(1)) - x[[0, 1], [2, 1]]).mean()),
    ),
    "perplexity with weights": Row(
        (MATRIX,),
        lambda f, x: f(x, jnp.asarray([2, 1]), weights=jnp.asarray(_MASK)),
        {"masked NaN": (np.where(_MASK[:, None], MATRIX, np.nan),)},
        tuple(range(-100, 1, 20)),
    ),
    "precision_recall_f1": Exempt("of counts, in float32"),
    "predict_class": Exempt(_INTEGERS),
    "r_squared": Row(
        (PREDICTIONS, TARGETS),
        corners={"exact": (TARGETS, TARGETS), "equal predictions": (0 * PREDICTIONS, TARGETS)},
        exponents=_SQUARES,
        formula=lambda x, y: 1 - ((y - x) ** 2).sum() / ((y - y.mean()) ** 2).sum(),
        magnitude=1,
    ),
    "top_k_accuracy": Exempt("constant between jumps: the classes of scores"),
}
