r"""Activations with params: the parametric ReLU, swish, maxout, modReLU.

Axis letters: ``...`` batch, ``in`` and ``features`` sizes of the last axis. Those without params are in
`jaxblocks.activations`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Inexact

from jaxblocks import initializers
from jaxblocks.activations import maxout, sigmoid
from jaxblocks.backend.linear_maps import affine_map, along_batch, in_dtype
from jaxblocks.backend.precision import widen
from jaxblocks.backend.quotients import norm, unit_vector
from jaxblocks.checks.expectations import InexactDType, PositiveInt, check_params, checked
from jaxblocks.core.pairs import ArrayOrShape, Layer, builder

__all__ = ["Maxout", "ModReLU", "PReLU", "Swish", "mod_relu", "swish"]


@checked
def swish(x: Float[Array, "*shape"], beta: float | int | Float[Array, ""] = 1.0) -> Float[Array, "*shape"]:
    r"""Swish: $x σ(β x)$ with $σ$ the logistic sigmoid.

    For ``beta`` = 1 it is ``silu``, for 0 half the identity, and in the limit of infinity ``relu``. Half precision is
    computed in float32.

    >>> print(np.asarray(swish(jnp.array([-1.0, 1.0]), 2.0)).round(4))
    [-0.1192  0.8808]

    Source: Ramachandran, Zoph, Le 2017, Searching for activation functions (arXiv:1710.05941).
    """
    wide = widen(x)
    return (wide * sigmoid(jnp.asarray(beta).astype(wide.dtype) * wide)).astype(x.dtype)


@builder
def Swish(
    *, beta_init: float | int = 1.0, dtype: DTypeLike | None = None, param_dtype: DTypeLike = jnp.float32
) -> Layer:
    r"""The layer `swish` with a learned $β$, params ``{"beta": ()}``.

    Args:
        beta_init: the initial $β$.
        dtype: of the arithmetic and the output; by default that of the input.
        param_dtype: of the params.

    Shapes: any shape to the same shape.

    >>> layer = Swish()
    >>> layer.apply({"beta": jnp.array(0.0)}, jnp.array([-2.0, 4.0]))
    Array([-1.,  2.], dtype=float32)

    Source: Ramachandran, Zoph, Le 2017, Searching for activation functions (arXiv:1710.05941).
    """

    def init(key, x: Float[ArrayOrShape, "..."]):
        return {"beta": jnp.full((), beta_init, param_dtype)}

    def apply(params, x: Float[Array, "..."]):
        check_params(params, beta=())
        return swish(in_dtype(x, dtype), params["beta"])

    return Layer(init, apply)


@builder
def PReLU(
    *,
    negative_slope_init: float | int = 0.25,
    per_feature: bool = False,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
) -> Layer:
    r"""The parametric ReLU $y = max(0, x) + α min(0, x)$ with a learned $α$.

    Params are ``{"negative_slope": ()}``.

    Args:
        negative_slope_init: the initial $α$.
        per_feature: ``True`` for one $α$ for each entry of the last axis, params
            ``{"negative_slope": (features,)}``; ``False`` for a single one.
        dtype: of the arithmetic and the output; by default that of the input.
        param_dtype: of the params. Weight decay pulls $α$ to 0, the plain ReLU; exclude it from decay
            (`jaxblocks.core.selection.select`).

    Shapes: ``(..., features)`` to the same. The derivative at 0 is the left one, $α$.

    Raises:
        ValueError: where the input has another number of features than at ``init``.

    >>> layer = PReLU()
    >>> params = layer.init(jax.random.key(0), jnp.zeros(2))
    >>> layer.apply(params, jnp.array([-2.0, 4.0]))
    Array([-0.5,  4. ], dtype=float32)

    Source: He, Zhang, Ren, Sun 2015, Delving deep into rectifiers (arXiv:1502.01852).
    """

    def init(key, x: Float[ArrayOrShape, "..."]):
        return {"negative_slope": jnp.full(x.shape[-1:] if per_feature else (), negative_slope_init, param_dtype)}

    def apply(params, x: Float[Array, "..."]):
        check_params(params, negative_slope=x.shape[-1:] if per_feature else ())
        x = in_dtype(x, dtype)
        alpha = along_batch(params["negative_slope"], x)
        # The same as max(0, x) + alpha min(0, x), with one product.
        return jnp.where(x > 0, x, alpha * x)

    return Layer(init, apply)


@builder
def Maxout(
    features: PositiveInt,
    *,
    pieces: PositiveInt = 2,
    kernel_init: Callable = initializers.lecun_normal(),
    bias_init: Callable = initializers.zeros,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
) -> Layer:
    r"""The maxout layer $y_i = max_{j < k} (x W + b)_{i k + j}$: an affine map and its activation.

    Each output is the largest of k affine functions: convex and piecewise linear. Params are
    ``{"kernel": (in, features * k), "bias": (features * k,)}``.

    Args:
        features: the size of the output's last axis.
        pieces: k, affine functions per output.
        kernel_init: ``f(key, shape, dtype)``. LeCun's variance 1 / in suits two pieces: the larger of two
            independent standard normal variables has second moment 1 too.
        bias_init, dtype, param_dtype: as in ``Dense``.

    Shapes: ``(..., in)`` to ``(..., features)``.

    Raises:
        ValueError: where the input has another number of features than at ``init``.

    >>> absolute = {"kernel": jnp.array([[1.0, -1.0]]), "bias": jnp.zeros(2)}
    >>> Maxout(1).apply(absolute, jnp.array([[-2.0], [3.0]])).ravel()
    Array([2., 3.], dtype=float32)

    Source: Goodfellow, Warde-Farley, Mirza, Courville, Bengio 2013, Maxout networks (arXiv:1302.4389).
    """

    def init(key, x: Float[ArrayOrShape, "*batch in"]):
        return {
            # The pieces of one output are adjacent columns, as `maxout` takes them.
            "kernel": kernel_init(key, (x.shape[-1], features * pieces), param_dtype),
            # A key of its own, as in Dense.
            "bias": bias_init(jax.random.fold_in(key, 1), (features * pieces,), param_dtype),
        }

    def apply(params, x: Float[Array, "*batch in"]):
        check_params(params, kernel=(x.shape[-1], features * pieces), bias=(features * pieces,))
        x = in_dtype(x, dtype)
        return maxout(affine_map(x, params["kernel"], params["bias"]), pieces)

    return Layer(init, apply)


@checked
def mod_relu(z: Inexact[Array, "*batch features"], bias: Float[Array, "features"]) -> Inexact[Array, "*batch features"]:
    r"""The ReLU of the modulus, $y = max(|z| + b, 0) z / |z|$: it keeps the phase of complex numbers.

    Where $b < 0$, numbers within the distance $-b$ of 0 become 0; for real numbers this is the soft threshold. $b = 0$
    is the identity, and $b > 0$ adds to the modulus of every number but 0.

    Derivatives at 0 are a choice, since those of $z / |z|$ have no limit there: this quotient is 0 with the derivative
    0, so that y has the derivative 1 for $b ≥ 0$ and 0 for $b < 0$. At $|z| = -b$ it is the one of larger moduli. Close
    to 0 derivatives for $b > 0$ are of the size $b / |z|$.

    Args:
        z: complex or real numbers; half precision is computed in float32.
        bias: $b$, real, one number for each feature.

    Raises:
        ValueError: where z and the bias have different numbers of features.
        TypeError: for integer z, or a complex bias.

    >>> mod_relu(jnp.array([3 + 4j, 0.6 + 0.8j]), jnp.array([-2.5, -2.5]))
    Array([1.5+2.j, 0. +0.j], dtype=complex64)

    Source: Arjovsky, Shah & Bengio 2016, Unitary evolution recurrent neural networks (arXiv:1511.06464).
    """
    wide = widen(z)
    if jnp.iscomplexobj(z):
        # As pairs of real numbers, whose norms and directions have derivatives of every order.
        parts = jnp.stack([wide.real, wide.imag], -1)
        zero = (parts == 0).all(-1, keepdims=True)
        # At 0 that of (1, 1), which is not used.
        pairs = jnp.where(zero, 0, unit_vector(jnp.where(zero, 1, parts)))
        size, direction = norm(parts, (-1,)), jax.lax.complex(pairs[..., 0], pairs[..., 1])
    else:
        size, direction = jnp.abs(wide), jnp.sign(wide)
    b = along_batch(bias.astype(size.dtype), size)
    # NaN is not below 0, and stays.
    return jnp.where(size + b < 0, 0, wide + b.astype(wide.dtype) * direction).astype(z.dtype)


@builder
def ModReLU(
    *, bias_init: Callable = initializers.zeros, dtype: InexactDType | None = None, param_dtype: DTypeLike = jnp.float32
) -> Layer:
    r"""The layer `mod_relu` with learned biases, params ``{"bias": (features,)}``: an activation of complex nets.

    Args:
        bias_init: ``f(key, shape, dtype)``. With zeros the layer begins as the identity.
        dtype: of the arithmetic and the output; by default that of the input.
        param_dtype: of the biases, which are real.

    Shapes: ``(..., features)`` to the same.

    Raises:
        ValueError: where the input has another number of features than at ``init``.
        TypeError: for integer input.

    >>> dense = Dense(3, param_dtype=jnp.complex64)
    >>> net = Serial(dense, ModReLU(), Dense(1, param_dtype=jnp.complex64))
    >>> params = net.init(jax.random.key(0), jnp.zeros(2, jnp.complex64))
    >>> net.apply(params, jnp.ones(2, jnp.complex64)).dtype.name
    'complex64'

    Source: Arjovsky, Shah & Bengio 2016, Unitary evolution recurrent neural networks (arXiv:1511.06464).
    """

    def init(key, x: Inexact[ArrayOrShape, "*batch features"]):
        return {"bias": bias_init(key, x.shape[-1:], param_dtype)}

    def apply(params, x: Inexact[Array, "*batch features"]):
        check_params(params, bias=x.shape[-1:])
        return mod_relu(in_dtype(x, dtype), params["bias"])

    return Layer(init, apply)
