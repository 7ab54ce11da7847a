r"""Activations that learn their shape: the parametric ReLU, swish, maxout.

Axis letters: ``...`` batch, ``in`` and ``features`` sizes of the last axis. Those without params are in
`jaxblocks.activations`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxblocks import initializers
from jaxblocks.activations import maxout, sigmoid
from jaxblocks.checks import describe, require_floating, require_key, require_whole
from jaxblocks.core import Layer, builder, require_params
from jaxblocks.precision import widen

__all__ = ["Maxout", "PReLU", "Swish", "swish"]


def swish(x: Float[Array, "*shape"], beta: int | float | Float[Array, ""] = 1.0) -> Float[Array, "*shape"]:
    r"""Swish: :math:`x\,\sigma(\beta x)` with :math:`\sigma` the logistic sigmoid.

    For ``beta`` = 1 it is ``silu``, for 0 half the identity, and towards infinity ``relu``. Half precision is
    computed in float32.

    >>> print(np.asarray(swish(jnp.array([-1.0, 1.0]), 2.0)).round(4))
    [-0.1192  0.8808]

    Source: Ramachandran, Zoph, Le 2017, Searching for activation functions.
    """
    require_floating("swish", x=x)
    wide = widen(x)
    return (wide * sigmoid(jnp.asarray(beta).astype(wide.dtype) * wide)).astype(x.dtype)


@builder
def Swish(*, beta: int | float = 1.0, param_dtype=jnp.float32) -> Layer:
    r"""The layer `swish` that learns its :math:`\beta`, params ``{"beta": ()}``.

    Args:
        beta: the value that it begins with.
        param_dtype: of the params.

    Shapes: any to the same.

    >>> layer = Swish()
    >>> layer.apply({"beta": jnp.array(0.0)}, jnp.array([-2.0, 4.0]))
    Array([-1.,  2.], dtype=float32)

    Source: Ramachandran, Zoph, Le 2017, Searching for activation functions.
    """

    def init(key, x):
        require_floating("Swish", x=x)
        return {"beta": jnp.full((), beta, param_dtype)}

    def apply(params, x):
        require_params("Swish", params, "beta")
        return swish(x, params["beta"])

    return Layer(init, apply)


@builder
def PReLU(*, slope: int | float = 0.25, per_feature: bool = False, param_dtype=jnp.float32) -> Layer:
    r"""The parametric ReLU :math:`y = \max(0, x) + \alpha \min(0, x)`, params ``{"slope": ()}``.

    Args:
        slope: the :math:`\alpha` that it begins with.
        per_feature: ``True`` for one :math:`\alpha` for each entry of the last axis, params
            ``{"slope": (features,)}``; with ``False`` there is one for all.
        param_dtype: of the params. Weight decay would pull :math:`\alpha` to 0, the plain ReLU; leave it out of it
            (`jaxblocks.selectors.select`).

    Shapes: ``(..., features)`` to the same. The derivative at 0 is the left one, :math:`\alpha`.

    Raises:
        ValueError: where the input has another number of features than at ``init``.

    >>> layer = PReLU()
    >>> params = layer.init(jax.random.key(0), jnp.zeros(2))
    >>> layer.apply(params, jnp.array([-2.0, 4.0]))
    Array([-0.5,  4. ], dtype=float32)

    Source: He, Zhang, Ren, Sun 2015, Delving deep into rectifiers.
    """

    def init(key, x):
        require_floating("PReLU", x=x)
        return {"slope": jnp.full(x.shape[-1:] if per_feature else (), slope, param_dtype)}

    def apply(params, x):
        require_params("PReLU", params, "slope")
        require_floating("PReLU", x=x)
        alpha = params["slope"]
        if alpha.shape != (x.shape[-1:] if per_feature else ()):
            raise ValueError(
                f"PReLU expects x with as many features on its last axis as it has slopes, but slope is "
                f"{describe(alpha)} and x {describe(x)}; pass params made by init for this x."
            )
        return jnp.where(x > 0, x, jnp.broadcast_to(alpha.astype(x.dtype), x.shape) * x)

    return Layer(init, apply)


@builder
def Maxout(
    features: int,
    *,
    pieces: int = 2,
    kernel_init: Callable = initializers.lecun_normal(),
    bias_init: Callable = initializers.zeros,
    param_dtype=jnp.float32,
) -> Layer:
    r"""The maxout layer :math:`y_i = \max_{j < k}\,(x W + b)_{i k + j}`: an affine map and its own activation.

    Each output is the largest of k affine functions: convex and piecewise linear. Params are
    ``{"kernel": (in, features * k), "bias": (features * k,)}``.

    Args:
        features: the size of the output's last axis.
        pieces: k, affine functions per output.
        kernel_init: ``f(key, shape, dtype)``. LeCun's variance 1 / in suits two pieces: the larger of two
            independent standard normal variables has second moment 1 too.
        bias_init, param_dtype: as in ``Dense``.

    Shapes: ``(..., in)`` to ``(..., features)``.

    Raises:
        ValueError: where the input has another number of features than at ``init``.

    >>> absolute = {"kernel": jnp.array([[1.0, -1.0]]), "bias": jnp.zeros(2)}
    >>> Maxout(1).apply(absolute, jnp.array([[-2.0], [3.0]])).ravel()
    Array([2., 3.], dtype=float32)

    Source: Goodfellow, Warde-Farley, Mirza, Courville, Bengio 2013, Maxout networks (named by Krapac & Segvic).
    """
    features, pieces = require_whole("Maxout", "features", features), require_whole("Maxout", "pieces", pieces)

    def init(key, x):
        require_key("Maxout.init", key)
        require_floating("Maxout", x=x)
        return {
            "kernel": kernel_init(key, (x.shape[-1], features * pieces), param_dtype),
            "bias": bias_init(jax.random.fold_in(key, 1), (features * pieces,), param_dtype),
        }

    def apply(params, x):
        require_params("Maxout", params, "kernel", "bias")
        require_floating("Maxout", x=x)
        kernel, bias = params["kernel"], params["bias"]
        if x.shape[-1:] != kernel.shape[:1] or kernel.shape[1:] != (features * pieces,):
            raise ValueError(
                f"Maxout({features}, pieces={pieces}) expects x with {kernel.shape[0]} features on its last axis and a "
                f"kernel with {features * pieces} columns, but x is {describe(x)} and the kernel {describe(kernel)}; "
                "pass x of that size, or params made by init for this x."
            )
        y = jnp.matmul(x, kernel.astype(x.dtype))  # (..., features * pieces)
        return maxout(y + jnp.broadcast_to(bias.astype(x.dtype), y.shape), pieces)

    return Layer(init, apply)
