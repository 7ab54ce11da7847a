"""Activations: nonlinear maps R -> R, applied to every entry of an array, sigma(s)_i = sigma(s_i).

Every function takes an array of any shape and returns one of the same shape and dtype, so it can be used as a layer.
(The exceptions are ``maxout`` and ``glu``, which combine several entries and so shrink the last axis.)
Functions of ``jax.numpy`` such as ``jnp.abs`` are activations too, and so are those of ``jax.nn``, as they are:
``log_sigmoid``, ``mish``, ``squareplus``, ``relu6``, ``hard_silu`` (hard swish), ``hard_tanh``, ``hard_sigmoid``,
``celu``, ``soft_sign``. The soft shrinkage of PyTorch is `jaxblocks.losses.soft_threshold`. Options are
positional-or-keyword, as in ``jax.nn``, since keyword-only parameters of a function become side inputs of the layer.

At a kink the derivative is a convention. JAX takes 0.5 as the derivative of ``jnp.maximum(x, 0)`` at 0, 1 for
``jnp.where(x >= 0, x, 0)`` and 1 for ``jnp.abs``; each docstring here states the value.

``gelu``, ``silu`` and ``softplus`` define an explicit derivative rule with ``jax.custom_jvp``, which supports
derivatives of any order and mode. Reverse mode then stores one array per call, where plain autodiff stores two or
three.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erf
from jaxtyping import Array, Float, Shaped

from jaxblocks.backend.precision import widen
from jaxblocks.backend.quotients import log
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveFloat, PositiveInt, Range, checked
from jaxblocks.checks.values import check_entries, check_values
from jaxblocks.core.lazy import explain_missing_names

__all__ = [
    "RECTIFIERS",
    "activation_moments",
    "cosine",
    "elu",
    "gelu",
    "glu",
    "identity",
    "leaky_relu",
    "leaky_relu_inverse",
    "maxout",
    "relu",
    "selu",
    "sigmoid",
    "silu",
    "softplus",
    "softplus_inverse",
    "tanh",
]
explain_missing_names(__name__)


def identity(x: Shaped[Array, "*shape"]) -> Shaped[Array, "*shape"]:
    """Identity, id(x) = x: the output activation of a regression net, and the layer that changes nothing.

    ``Serial()`` is the identity too.

    >>> print(identity(jnp.array([-2.0, 0.5])))
    [-2.   0.5]

    Source: Goodfellow, Bengio & Courville 2016, Deep learning, section 6.3; Diehl 2023, section 1 (the layer
    Dense_{A,b;id}).
    """
    return x


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def _relu(x, at_zero):
    # Its own derivative is 1/2 at 0, so that the rule below replaces it.
    return jnp.maximum(x, 0)


@_relu.defjvp
def _relu_jvp(at_zero, primals, tangents):
    x, t = map(jnp.asarray, (*primals, *tangents))  # primals may be Python numbers
    return _relu(x, at_zero), jnp.where(x > 0, t, jnp.where(x == 0, at_zero * t, jnp.zeros_like(t)))


@checked
def relu(x: Float[Array, "*shape"], at_zero: Annotated[float | int, Range(0, most=1)] = 0.0) -> Float[Array, "*shape"]:
    """Rectified linear unit.

    ReLU(x) = max(0, x). At 0 it has no derivative but a subdifferential, [0, 1], from the left derivative 0 to the
    right derivative 1. ``at_zero``, a Python number, is the subgradient used there. The default 0 is the choice of
    ``jax.nn.relu`` and PyTorch. NaN stays NaN.

    Raises:
        ValueError: if ``at_zero`` is not between 0 and 1.

    >>> print(relu(jnp.array([-2.0, 0.0, 0.5])))
    [0.  0.  0.5]
    >>> zero = jnp.array(0.0)
    >>> print(jax.grad(relu)(zero), jax.grad(relu)(zero, 1.0))
    0.0 1.0

    Sources: Glorot, Bordes & Bengio 2011, Deep sparse rectifier neural networks; Diehl 2023, Remark 1.1; Krapac &
    Segvic, Deep feed-forward models.
    """
    # The derivative of jax.nn.relu at 0 is 0.
    return jax.nn.relu(x) if at_zero == 0 else _relu(x, at_zero)


@checked
def leaky_relu(
    x: Float[Array, "*shape"], negative_slope: float | int | Float[Array, ""] = 0.01
) -> Float[Array, "*shape"]:
    """Leaky rectified linear unit, whose gradient does not vanish for negative x.

    g(x, alpha) = max(0, x) + alpha min(0, x), alpha = ``negative_slope``. The derivative at 0 is the left one, alpha
    (as in PyTorch; alpha = 0 is ``relu``, derivative included). ``negative_slope`` may be an array of one number, to
    be learned (the parametric ReLU). A bijection R -> R only for alpha > 0.

    >>> print(leaky_relu(jnp.array([-2.0, 0.5]), 0.1))
    [-0.2  0.5]

    Source: Maas, Hannun & Ng 2013, Rectifier nonlinearities improve neural network acoustic models; Krapac & Segvic,
    Deep feed-forward models (ReLU, shortcoming 2).
    """
    negative_slope = _in_dtype_of(x, negative_slope)
    return jnp.where(x > 0, x, negative_slope * x)


def _in_dtype_of(x, option):
    """A learned option in the dtype of x, which the result keeps; numbers are unchanged."""
    return option.astype(x.dtype) if isinstance(option, jax.Array) else option


@checked
def leaky_relu_inverse(
    y: Float[Array, "*shape"], negative_slope: PositiveFloat | Float[Array, ""] = 0.01
) -> Float[Array, "*shape"]:
    """Inverse of the leaky ReLU: the x with ``leaky_relu(x, negative_slope) = y``.

    x = max(0, y) + min(0, y) / alpha, alpha = ``negative_slope``. Derivative at 0: 1 / alpha, the left one.

    Raises:
        ValueError: unless alpha > 0: otherwise the leaky ReLU is not injective. (A traced alpha cannot be checked: 0
            then gives -inf, and a negative alpha gives meaningless numbers.)

    >>> print(leaky_relu_inverse(jnp.array([-0.2, 0.5]), 0.1))
    [-2.   0.5]

    Source: Krapac & Segvic, Deep feed-forward models ("bijective generalizations").
    """
    if isinstance(negative_slope, jax.Array):
        message = "negative_slope > 0, got {slope}; for other slopes leaky_relu has no inverse"
        check_values(negative_slope > 0, message, slope=negative_slope)
    # Division on the side y <= 0 only matters where it is selected: the slope is not 0.
    return jnp.where(y > 0, y, y / _in_dtype_of(y, negative_slope))


@checked
def elu(x: Float[Array, "*shape"], alpha: float | int | Float[Array, ""] = 1.0) -> Float[Array, "*shape"]:
    """Exponential linear unit.

    ELU(x; alpha) = x for x > 0 and alpha (exp(x) - 1) for x <= 0. Tends to -alpha on the left. For alpha = 1 it is
    differentiable, with derivative 1 at 0; for other alpha the derivative at 0 is the left one, alpha. So is the second
    derivative, which jumps there.

    Some lectures print a factor lambda in front of both cases without listing it among the arguments; that is
    ``selu``, which fixes lambda and alpha. Here lambda = 1.

    >>> print(np.asarray(elu(jnp.array([-1.0, 2.0]))).round(4))
    [-0.6321  2.    ]

    Sources: Clevert, Unterthiner, Hochreiter 2015 (arXiv:1511.07289); Diehl 2023, section 1.
    """
    return jax.nn.elu(x, _in_dtype_of(x, alpha))


@checked
def selu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Scaled exponential linear unit, which keeps mean 0 and variance 1.

    SELU(x) = lambda ELU(x; alpha) with lambda = 1.0507009873554805, alpha = 1.6732632423543772, the constants for which
    SELU of a standard normal variable has mean 0 and variance 1. (Of the usual activations it is the only one that
    does; ELU and GELU do not. See ``activation_moments``.) It saturates on the left, at -lambda alpha. The first and
    second derivatives at 0 are the left ones, lambda alpha. Use it with LeCun initialization, variance 1 / fan_in, and
    with `jaxblocks.layers.AlphaDropout`.

    >>> print(np.asarray(selu(jnp.array([-1.0, 1.0]))).round(4))
    [-1.1113  1.0507]

    Sources: Klambauer, Unterthiner, Mayr, Hochreiter 2017 (arXiv:1706.02515); Krapac & Segvic, Deep feed-forward
    models.
    """
    return jax.nn.selu(x)


@jax.custom_jvp
def _normal_cdf(x):
    return 0.5 + 0.5 * erf(x * math.sqrt(0.5))


@_normal_cdf.defjvp
def _normal_cdf_jvp(primals, tangents):  # inside of shard_map, JAX 0.12 cannot differentiate erf
    return _normal_cdf(*primals), _normal_density(*primals) * tangents[0]


def _normal_density(x):
    return jnp.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


@jax.custom_jvp
def _gelu(x):
    wide = widen(x)
    return (wide * _normal_cdf(wide)).astype(x.dtype)


@_gelu.defjvp
def _gelu_jvp(primals, tangents):
    x, t = map(jnp.asarray, (*primals, *tangents))  # primals may be Python numbers
    wide = widen(x)
    near = jnp.clip(wide, -40, 40)  # beyond, the density is 0 in every dtype, and x^2 may overflow
    cdf, density = _normal_cdf(near), _normal_density(near)
    return (wide * cdf).astype(x.dtype), (cdf + wide * density).astype(x.dtype) * t


# An eager call is one program, and calls for equal shapes are traced, differentiated and lowered once. JAX keeps the
# rule as it was traced first: it must not read a context that the function itself does not read.
_jitted_gelu = jax.jit(_gelu)


@checked
def gelu(x: Float[Array, "*shape"], approximate: bool = False) -> Float[Array, "*shape"]:
    """Gaussian error linear unit.

    GELU(x) = x P(X <= x) = x (1 + erf(x / sqrt 2)) / 2 with X standard normal. Neither monotonic (its minimum
    is -0.16997, at x = -0.75179) nor injective. ``approximate=True`` gives
    x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 instead, which is off by up to 4.73e-4 and is the default of
    ``jax.nn.gelu``.

    Computed as written, at about half the cost of the ``erfc`` form of ``jax.nn.gelu``. Accuracy is lost where
    1 + erf cancels, in the far left tail: in float32 the absolute error for negative x stays below 1e-6 (largest near
    x = -5.2, where GELU is -5e-7), and below -5.6 the result is -0. For -1 < x the relative error is below 6e-7.
    Half precision is computed in float32. -inf gives NaN (inf * 0), as in ``jax.nn`` and PyTorch. Derivatives of every
    order are exact for finite x; from the second on they are 0 beyond 40.

    >>> print(np.asarray(gelu(jnp.array([-1.0, 1.0]))).round(4))
    [-0.1587  0.8413]

    Sources: Hendrycks & Gimpel 2016 (arXiv:1606.08415); Diehl 2023, section 1.
    """
    if not approximate:
        return _jitted_gelu(x)
    wide = widen(x)
    near = jnp.clip(wide, -30, 30)  # beyond, the sigmoid is 0 or 1, and x^3 may overflow
    # (1 + tanh u) / 2 is sigma(2 u), which does not cancel for negative u.
    return (wide * jax.nn.sigmoid(math.sqrt(8 / math.pi) * (near + 0.044715 * near**3))).astype(x.dtype)


@checked
def sigmoid(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Logistic sigmoid.

    sigma(x) = 1 / (1 + exp(-x)), with values in (0, 1), tanh(x) = 2 sigma(2x) - 1 and derivative
    sigma(x) (1 - sigma(x)) <= 1/4. It keeps its accuracy in the left tail, where (1 + tanh(x / 2)) / 2 cancels.

    >>> print(np.asarray(sigmoid(jnp.array([-2.0, 0.0, 1.0]))).round(4))
    [0.1192 0.5    0.7311]

    Source: Goodfellow, Bengio & Courville 2016, Deep learning, section 6.3.2; Diehl 2023, section 1.
    """
    return jax.nn.sigmoid(x)


@checked
def tanh(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Hyperbolic tangent.

    tanh(x) = (e^{2x} - 1) / (e^{2x} + 1) = 2 sigma(2x) - 1, with values in (-1, 1) and derivative
    1 - tanh(x)^2; close to the identity near 0: abs(tanh(x) - x) <= abs(x)^3 / 3. Its mean is 0 for inputs of a
    symmetric distribution, but not for every input of mean 0.

    >>> print(np.asarray(tanh(jnp.array([-0.5, 1.0]))).round(4))
    [-0.4621  0.7616]

    Source: Goodfellow, Bengio & Courville 2016, Deep learning, section 6.3.2; Diehl 2023, section 1.
    """
    return jnp.tanh(x)


@jax.custom_jvp
def _silu(x):
    wide = widen(x)
    return (wide * jax.nn.sigmoid(wide)).astype(x.dtype)


@_silu.defjvp
def _silu_jvp(primals, tangents):
    x, t = map(jnp.asarray, (*primals, *tangents))  # primals may be Python numbers
    wide = widen(x)
    s = jax.nn.sigmoid(wide)
    return (wide * s).astype(x.dtype), (s + wide * s * (1 - s)).astype(x.dtype) * t


_jitted_silu = jax.jit(_silu)


@checked
def silu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Sigmoid linear unit, also called swish.

    SiLU(x) = x sigma(x) = x / (1 + exp(-x)), sigma the logistic ``sigmoid``. Its minimum is -0.27846, at
    x = -1.27846. Half precision is computed in float32. -inf gives NaN (inf * 0), as in ``jax.nn`` and PyTorch.

    >>> print(np.asarray(silu(jnp.array([-1.0, 1.0]))).round(4))
    [-0.2689  0.7311]

    Sources: Hendrycks & Gimpel 2016 (arXiv:1606.08415); Ramachandran, Zoph, Le 2017 (arXiv:1710.05941).
    """
    return _jitted_silu(x)


@jax.custom_jvp
def _softplus(x):
    wide = widen(x)
    # log(1 + e^x) = max(x, 0) + log(1 + e^(-|x|)), where no exponential overflows.
    return (jnp.maximum(wide, 0) + jnp.log1p(jnp.exp(-jnp.abs(wide)))).astype(x.dtype)


@_softplus.defjvp
def _softplus_jvp(primals, tangents):
    x, t = map(jnp.asarray, (*primals, *tangents))  # primals may be Python numbers
    return _softplus(x), jax.nn.sigmoid(widen(x)).astype(x.dtype) * t


_jitted_softplus = jax.jit(_softplus)


@checked
def softplus(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Softplus, a smooth ReLU.

    g(x) = log(1 + e^x) = max(0, x) + log(1 + e^{-abs(x)}); the second form cannot overflow.
    g(x) - g(-x) = x, and the derivative is the ``sigmoid``. It is injective but not onto R: a bijection from R to
    the positive numbers, inverted by ``softplus_inverse``. Half precision is computed in float32.

    >>> print(np.asarray(softplus(jnp.array([-2.0, 0.0, 1.0]))).round(4))
    [0.1269 0.6931 1.3133]

    Source: Dugas et al. 2001, Incorporating second-order functional knowledge for better option pricing; Krapac &
    Segvic, Deep feed-forward models (ReLU, shortcoming 2).
    """
    return _jitted_softplus(x)


@checked
def softplus_inverse(y: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Inverse of softplus: the x with ``softplus(x) = y``, for y > 0.

    x = log(e^y - 1) = y + log(1 - e^{-y}); the second form cannot overflow. y = 0 gives -inf, with an infinite
    derivative. Use it to find the unconstrained parameter of a positive quantity, such as a scale.

    Raises:
        ValueError: for a negative y where the values are concrete; under ``jit`` that entry is NaN.

    >>> print(np.asarray(softplus_inverse(jnp.array([0.1269280, 1.3132617]))).round(4))
    [-2.  1.]

    Source: Krapac & Segvic, Deep feed-forward models ("bijective generalizations").
    """
    message = "positive y, the range of softplus, got a minimum of {low}; pass values of softplus"
    check_entries(y, lambda known: ~(known < 0), message)  # not known >= 0: NaN passes through to the result
    wide = widen(y)
    # log(e^y - 1) = y + log(1 - e^(-y)), where no exponential overflows.
    return (wide + log(-jnp.expm1(-wide))).astype(y.dtype)


@checked
def cosine(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Cosine, an example of an activation that is neither monotonic nor saturating.

    cos(x), x in radians. One unit computes the parity: 1/2 - cos(pi s) / 2 is 0 for even and 1 for odd integers s.

    >>> print(np.asarray((0.5 - 0.5 * cosine(jnp.pi * jnp.arange(5.0)))).round(4))
    [0. 1. 0. 1. 0.]

    Source: Goodfellow, Bengio & Courville 2016, Deep learning, section 6.3.3; Krapac & Segvic, Deep feed-forward models
    ("even cosine").
    """
    return jnp.cos(x)


@checked
def maxout(x: Float[Array, "*batch features_pieces"], pieces: PositiveInt = 2) -> Float[Array, "*batch features"]:
    """Maxout: the maximum of every ``pieces`` consecutive entries on the last axis.

    h_i = max_{j < k} x_{i k + j}, k = ``pieces``. After an affine map, x = W a + b, every feature is a maximum of
    k affine functions of a: convex, piecewise linear, and the ReLU (pieces x, 0) and abs (pieces x, -x) among
    others. Equal pieces share the gradient evenly, so a ReLU computed by maxout has derivative 1/2 at 0.

    Shapes: (..., features * pieces) to (..., features).

    Raises:
        ValueError: if the last axis is not a multiple of ``pieces``.

    >>> print(maxout(jnp.array([1.0, -1.0, 3.0, 4.0])))
    [1. 4.]

    Source: Goodfellow, Warde-Farley, Mirza, Courville, Bengio 2013, Maxout networks (arXiv:1302.4389).
    """
    if x.shape[-1] % pieces:
        repair = "give the layer before it features * pieces features"
        require(False, f"x with a last axis that is a multiple of pieces = {pieces}", x, repair)
    return x.reshape(*x.shape[:-1], x.shape[-1] // pieces, pieces).max(axis=-1)  # pieces of one output are consecutive


@checked
def glu(x: Float[Array, "*batch two_halves"], activation: Callable = sigmoid) -> Float[Array, "*batch half"]:
    """Gated linear unit: the first half of the last axis times the activation of the second half, the gate.

    GLU(a, b) = a sigma(b), x = (a, b) along the last axis, sigma = ``activation``, a function of arrays. Other
    activations give the family: ``silu`` SwiGLU, ``gelu`` GEGLU, ``relu`` ReGLU, ``identity`` the bilinear form. The
    layer `GLU` owns the two affine maps.

    Shapes: (..., 2 half) to (..., half).

    Raises:
        ValueError: if the last axis is odd.

    >>> print(np.asarray(glu(jnp.array([1.0, 2.0, 0.0, 1.0]))).round(4))
    [0.5    1.4621]
    >>> print(glu(jnp.array([1.0, 2.0, -1.0, 3.0]), relu))
    [0. 6.]

    Sources: Dauphin, Fan, Auli, Grangier 2017 (arXiv:1612.08083); Shazeer 2020, GLU variants improve transformer
    (arXiv:2002.05202).
    """
    require(x.shape[-1] % 2 == 0, "x with an even last axis", x, "give the layer before it an even number of features")
    half = x.shape[-1] // 2
    return x[..., :half] * activation(x[..., half:])


RECTIFIERS = frozenset(
    {relu, leaky_relu, elu, gelu, silu, jax.nn.relu, jax.nn.leaky_relu, jax.nn.elu, jax.nn.gelu, jax.nn.silu}
    | {jax.nn.relu6, jax.nn.celu, jax.nn.mish, jax.nn.hard_silu}
)
"""Activations that are zero or small for about half of a symmetric input. He initialization (variance 2 / fan_in) is
their default. ``selu`` is not one of them: it keeps variance 1 with LeCun initialization (1 / fan_in)."""


@checked
def activation_moments(
    activation: Callable[[Float[Array, " nodes"]], Float[Array, " nodes"]],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Mean and variance of ``activation`` applied to a standard normal variable.

    mean = E sigma(Z), variance = E sigma(Z)^2 - mean^2 with Z ~ N(0, 1): how a layer changes the mean and the
    variance of its pre-activations. Both integrals are Gauss-Legendre sums, split at 0 so that a kink there costs
    no accuracy (a kink elsewhere does), and are differentiable with respect to the values ``activation`` closes over.
    Exact to the precision of JAX's default float; the variance and its derivatives have squares of the values of
    ``activation`` between -10 and 10, which in float32 may be up to 1e18.

    >>> mean, variance = activation_moments(relu)  # 1 / sqrt(2 pi) and 1/2 - 1 / (2 pi)
    >>> print(f"{mean:.4f} {variance:.4f}")
    0.3989 0.3408

    Source: He, Zhang, Ren & Sun 2015, Delving deep into rectifiers (arXiv:1502.01852); Krapac & Segvic, Deep
    feed-forward models (ReLU, shortcoming 3; ELU).
    """
    # Gauss-Legendre quadrature on [0, 10] and [-10, 0], separately, since rectifiers have a kink at 0.
    end, (nodes, weights) = 10.0, np.polynomial.legendre.leggauss(100)
    half = 0.5 * end * (nodes + 1)
    density = 0.5 * end * weights * np.exp(-0.5 * half**2) / math.sqrt(2 * math.pi)
    y = activation(jnp.asarray(np.concatenate([half, -half])))
    weight = jnp.asarray(np.concatenate([density, density]), y.dtype)
    mean = jnp.sum(weight * y)
    return mean, jnp.sum(weight * (y - mean) ** 2)  # two passes, without cancellation
