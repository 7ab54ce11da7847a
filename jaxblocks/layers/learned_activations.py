r"""Activations with params: the parametric ReLU, swish, maxout.

Axis letters: ``...`` batch, ``in`` and ``features`` sizes of the last axis. Those without params are in
`jaxblocks.activations`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxblocks import initializers
from jaxblocks.activations import maxout, sigmoid
from jaxblocks.backend.linear_maps import affine_map, along_batch
from jaxblocks.backend.precision import widen
from jaxblocks.checks.expectations import PositiveInt, check_params, checked
from jaxblocks.core.pairs import ArrayOrShape, Layer, builder

__all__ = ["Maxout", "PReLU", "Swish", "swish"]


@checked
def swish(x: Float[Array, "*shape"], beta: float | int | Float[Array, ""] = 1.0) -> Float[Array, "*shape"]:
    r"""Swish: $x σ(β x)$ with $σ$ the logistic sigmoid.

    For ``beta`` = 1 it is ``silu``, for 0 half the identity, and in the limit of infinity ``relu``. Half precision is
    computed in float32.

    >>> print(np.asarray(swish(jnp.array([-1.0, 1.0]), 2.0)).round(4))
    [-0.1192  0.8808]

    Source: Ramachandran, Zoph, Le 2017, Searching for activation functions (arXiv:1710.05941).
    """
    # In float32 for half precision, where beta x and the product would each be rounded.
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
        return swish(x if dtype is None else x.astype(dtype), params["beta"])

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
        x = x if dtype is None else x.astype(dtype)
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
        x = x if dtype is None else x.astype(dtype)
        return maxout(affine_map(x, params["kernel"], params["bias"]), pieces)

    return Layer(init, apply)
