r"""Dense layers: affine maps as functions, and as layers with params.

Axis letters: ``...`` batch, ``in`` and ``out`` features. Examples are rows: $A x + b$ is ``x @ kernel + bias``.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Inexact

from jaxblocks import initializers
from jaxblocks.backend.linear_maps import affine_map, along_batch, in_dtype
from jaxblocks.checks.expectations import InexactDType, PositiveInt, check_params, checked
from jaxblocks.core.pairs import ArrayOrShape, Layer, builder

__all__ = ["Bias", "Dense", "affine"]


@checked
def affine(
    x: Inexact[Array, "*batch in"], kernel: Inexact[Array, "in out"], bias: Inexact[Array, "out"] | None = None
) -> Inexact[Array, "*batch out"]:
    r"""The affine map $y_j = ∑_i x_i W_{ij} + b_j$, linear without ``bias``, in the dtype of ``x``.

    Raises:
        ValueError: where the features of ``x`` and ``kernel`` differ.
        TypeError: for integer ``x``.

    >>> affine(jnp.array([1.0, 2.0]), jnp.eye(2), jnp.array([0.0, 1.0]))
    Array([1., 3.], dtype=float32)

    Source: Goodfellow et al. 2016, Deep learning, section 6.1; Diehl 2023, section 1; Cevher, Mathematics of Data.
    """
    return affine_map(x, kernel, bias)


@builder
def Dense(
    features: PositiveInt,
    *,
    use_bias: bool = True,
    kernel_init: Callable = initializers.lecun_normal(),
    bias_init: Callable = initializers.zeros,
    dtype: InexactDType | None = None,
    param_dtype: InexactDType = jnp.float32,
) -> Layer:
    r"""The affine layer $y = x W + b$, params ``{"kernel": (in, out), "bias": (out,)}``.

    Other names: fully connected layer, linear layer (``torch.nn.Linear``). Its activation is the next layer:
    ``Serial(Dense(64), relu)`` is the lecture's $Dense_{A,b;σ}$ with $A = Wᵀ$.

    Args:
        features: the size of the output's last axis.
        use_bias: ``False`` for a linear map.
        kernel_init, bias_init: as in ``jax.nn.initializers``: ``f(key, shape, dtype)``.
        dtype: of the arithmetic and the output; by default that of the input.
        param_dtype: of the params; ``jnp.complex64`` for complex ones, which take complex inputs.

    Shapes: ``(..., in)`` to ``(..., out)``.

    Raises:
        ValueError: where the input has another number of features than at ``init``.
        TypeError: for integer input.

    >>> layer = Dense(3)
    >>> params = layer.init(jax.random.key(0), jnp.zeros((8, 2)))
    >>> layer.apply(params, jnp.zeros((8, 2))).shape
    (8, 3)

    Source: Goodfellow et al. 2016, Deep learning, section 6.1; Diehl 2023, section 1, equation (1).
    """

    def init(key, x: Inexact[ArrayOrShape, "*batch in"]):
        kernel = kernel_init(key, (x.shape[-1], features), param_dtype)
        # A key of its own, so that the kernel is the same with and without a bias.
        bias = {"bias": bias_init(jax.random.fold_in(key, 1), (features,), param_dtype)} if use_bias else {}
        return {"kernel": kernel, **bias}

    def apply(params, x: Inexact[Array, "*batch in"]):
        # The rows of the kernel are not compared here: the annotations of `affine` compare them with x.
        x = in_dtype(x, dtype)
        check_params(params, x, kernel=(None, features), **({"bias": (features,)} if use_bias else {}))
        return affine(x, params["kernel"], params.get("bias"))

    return Layer(init, apply)


@builder
def Bias(
    *,
    bias_init: Callable = initializers.zeros,
    dtype: InexactDType | None = None,
    param_dtype: InexactDType = jnp.float32,
) -> Layer:
    r"""The layer $y = x + b$, params ``{"bias": (features,)}``: a ``Dense`` whose kernel is the identity.

    >>> layer = Bias()
    >>> layer.apply({"bias": jnp.ones(2)}, jnp.zeros(2))
    Array([1., 1.], dtype=float32)

    Source: Goodfellow et al. 2016, Deep learning, section 6.1; Cevher, Mathematics of Data.
    """

    def init(key, x: Inexact[ArrayOrShape, "*batch features"]):
        return {"bias": bias_init(key, x.shape[-1:], param_dtype)}

    def apply(params, x: Inexact[Array, "*batch features"]):
        x = in_dtype(x, dtype)
        check_params(params, x, bias=x.shape[-1:])
        return x + along_batch(params["bias"], x)

    return Layer(init, apply)
