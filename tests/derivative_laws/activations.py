"""Rows of `jaxblocks.activations`."""

import jax.numpy as jnp
import mpmath
import numpy as np
from derivative_laws.row import Row, array, cos, entries, erf, exp, expm1, log, tanh

X = array(-1.5, -0.375, 0.25, 1.25)
KINK = {"zero": "a kink: the docstring states which slope is taken"}
ZERO = {"zero": (array(0, 0, 0, 0),)}
TAILS = {"zero": (array(0, 0, 0, 0),), "far out": (array(-112, -24, 24, 112),)}
MODERATE = tuple(range(-100, 1, 20))


def sigmoid(x):
    return 1 / (1 + exp(-x))


def elu(x, alpha=1):
    return entries(lambda a: a if a > 0 else alpha * mpmath.expm1(a))(x)


def gelu_tanh(x):
    return x / 2 * (1 + tanh(mpmath.sqrt(2 / mpmath.pi) * (x + mpmath.mpf("0.044715") * x**3)))


SELU = mpmath.mpf("1.0507009873554804934193349852946"), mpmath.mpf("1.6732632423543772848170429916717")

ROWS = {
    "activation_moments": Row(
        (array(0.75, 0.5),),
        lambda f, a: f(lambda x: a[0].astype(x.dtype) * x + a[1].astype(x.dtype) * x * x),
        {"zero": (array(0, 0),)},
        exponents=tuple(range(-100, 41, 20)),  # the largest node is 10, and its square is weighted
        formula=lambda a: (a[1], a[0] ** 2 + 2 * a[1] ** 2),
    ),
    "cosine": Row((X,), corners=TAILS, exponents=MODERATE, formula=cos),
    "elu": Row((X,), corners=TAILS, choices={"zero": "the second derivative jumps"}, formula=elu),
    "elu alpha": Row(
        (X, np.float64(0.5)), corners={"far out": (array(-112, -24, 24, 112), np.float64(0.5))}, formula=elu
    ),
    "gelu": Row((X,), corners=TAILS, formula=lambda x: x * (1 + erf(x / mpmath.sqrt(2))) / 2),
    "gelu approximate": Row((X,), lambda f, x: f(x, approximate=True), TAILS, formula=gelu_tanh),
    "glu": Row(
        (X, array(0.5, -0.75, 1.5, -2)),
        lambda f, a, b: f(jnp.concatenate([a, b])),
        {"zero": (array(0, 0, 0, 0), array(0, 0, 0, 0)), "far out": (X, array(-112, -24, 24, 112))},
        formula=lambda a, b: a * sigmoid(b),
    ),
    "identity": Row((X,), corners=ZERO, formula=lambda x: x),
    "leaky_relu": Row((X,), choices=KINK, corners=ZERO, formula=lambda x: np.where(x > 0, x, x * mpmath.mpf(0.01))),
    "leaky_relu_inverse": Row(
        (X,), choices=KINK, corners=ZERO, formula=lambda x: np.where(x > 0, x, x / mpmath.mpf(0.01))
    ),
    "maxout": Row(
        (X,),
        corners={"equal": (array(1, 1, 0, 0),)},
        choices={"equal": "a kink: equal pieces share"},
        formula=lambda x: x.reshape(2, 2).max(-1),
    ),
    "relu": Row((X,), corners=ZERO, choices=KINK, formula=lambda x: np.where(x > 0, x, 0 * x)),
    "relu at_zero": Row((X,), lambda f, x: f(x, 0.5), ZERO, choices=KINK, formula=lambda x: np.where(x > 0, x, 0 * x)),
    "selu": Row((X,), corners=TAILS, choices=KINK, formula=lambda x: SELU[0] * elu(x, SELU[1])),
    "sigmoid": Row((X,), corners=TAILS, formula=sigmoid),
    "silu": Row((X,), corners=TAILS, formula=lambda x: x * sigmoid(x)),
    "softplus": Row((X,), corners=TAILS, formula=lambda x: log(1 + exp(x))),
    "softplus_inverse": Row(
        (np.abs(X),), corners={"far out": (array(24, 48, 96, 112),)}, formula=lambda x: log(expm1(x))
    ),
    "tanh": Row((X,), corners=TAILS, formula=tanh),
}
