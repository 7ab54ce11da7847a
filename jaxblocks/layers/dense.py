r"""Dense layers and what stands on them: affine maps, multilayer perceptrons, linear models.

Axis letters: ``...`` batch, ``in`` and ``out`` features. Data are rows, so the lecture's
:math:`A x + b` reads ``x @ kernel + bias`` with ``kernel`` :math:`= A^\top`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxblocks import initializers
from jaxblocks.activations import identity, relu
from jaxblocks.checks import describe, require_floating, require_key, require_whole
from jaxblocks.core import Layer, require_params
from jaxblocks.layers.combinators import Serial

__all__ = ["MLP", "Bias", "Dense", "affine", "fuse_affine"]


def affine(
    x: Float[Array, "*batch in"], kernel: Float[Array, "in out"], bias: Float[Array, " out"] | None = None
) -> Float[Array, "*batch out"]:
    r"""The affine map :math:`y_j = \sum_i x_i W_{ij} + b_j`, linear where ``bias`` is ``None``.

    Computes in the dtype of ``x``.

    Raises:
        ValueError: where the features of ``x`` and ``kernel`` differ.
        TypeError: for integer ``x``.

    >>> affine(jnp.array([1.0, 2.0]), jnp.eye(2), jnp.array([0.0, 1.0]))
    Array([1., 3.], dtype=float32)

    Source: Diehl 2023, section 1; Cevher, Mathematics of Data, "Linear layers".
    """
    return _affine("affine", x, kernel, bias)


def fuse_affine(*params: dict[str, Float[Array, "..."]]) -> dict[str, Float[Array, "..."]]:
    r"""The one affine map that equals several in series: :math:`A_2(A_1 x + b_1) + b_2 = A_2 A_1 x + (A_2 b_1 + b_2)`.

    Takes and returns params of ``Dense``, first applied first. A bottleneck stays one:
    the rank of the fused kernel is at most the smallest width on the way.

    >>> double, shift = {"kernel": 2 * jnp.eye(1), "bias": jnp.zeros(1)}, {"kernel": jnp.eye(1), "bias": jnp.ones(1)}
    >>> fuse_affine(shift, double)["bias"]
    Array([2.], dtype=float32)

    Source: Diehl 2023, section 1; Cevher, Mathematics of Data, "Activation functions".
    """
    if not params:
        raise ValueError("fuse_affine expects the params of at least one Dense, but none came.")
    first, *rest = params
    for p in rest:
        bias = affine(first["bias"], p["kernel"], p.get("bias")) if "bias" in first else p.get("bias")
        first = {"kernel": first["kernel"] @ p["kernel"]} | ({} if bias is None else {"bias": bias})
    return first


def Dense(
    features: int,
    *,
    use_bias: bool = True,
    kernel_init: Callable = initializers.lecun_normal(),
    bias_init: Callable = initializers.zeros,
    dtype=None,
    param_dtype=jnp.float32,
) -> Layer:
    r"""The affine layer :math:`y = x W + b`, params ``{"kernel": (in, out), "bias": (out,)}``.

    Its activation is the next layer: ``Serial(Dense(64), relu)`` is the lecture's
    :math:`\mathrm{Dense}_{A,b;\sigma}` with :math:`A = W^\top`.

    Args:
        features: the size of the output's last axis.
        use_bias: ``False`` for a linear map.
        kernel_init, bias_init: as in ``jax.nn.initializers``: ``f(key, shape, dtype)``.
        dtype: of the arithmetic and the output; by default that of the input.
        param_dtype: of the params.

    Shapes: ``(..., in)`` to ``(..., out)``.

    Raises:
        ValueError: where the input has another number of features than at ``init``.
        TypeError: for integer input.

    >>> layer = Dense(3)
    >>> params = layer.init(jax.random.key(0), jnp.zeros((8, 2)))
    >>> layer.apply(params, jnp.zeros((8, 2))).shape
    (8, 3)

    Source: Diehl 2023, section 1, equation (1).
    """
    features = require_whole("Dense", "features", features)
    names = ("kernel", "bias") if use_bias else ("kernel",)

    def init(key, x):
        require_key("Dense.init", key)
        require_floating("Dense", x=x)
        if not x.shape:
            raise ValueError(f"Dense expects x with a feature axis, (..., in), but {describe(x)} came; use x[None].")
        params = {"kernel": kernel_init(key, (x.shape[-1], features), param_dtype)}
        if use_bias:
            params["bias"] = bias_init(jax.random.fold_in(key, 1), (features,), param_dtype)
        return params

    def apply(params, x):
        require_params("Dense", params, *names)
        require_floating("Dense", x=x)
        if params["kernel"].shape[-1] != features:
            raise ValueError(
                f"Dense({features}) expects a kernel with {features} columns, but {describe(params['kernel'])} came; "
                "pass params that its own init made."
            )
        return _affine("Dense", x if dtype is None else x.astype(dtype), params["kernel"], params.get("bias"))

    return Layer(init, apply)


def Bias(*, bias_init: Callable = initializers.zeros, param_dtype=jnp.float32) -> Layer:
    r"""The layer :math:`y = x + b`, params ``{"bias": (features,)}``: a ``Dense`` whose kernel is the identity.

    >>> layer = Bias()
    >>> layer.apply({"bias": jnp.ones(2)}, jnp.zeros(2))
    Array([1., 1.], dtype=float32)

    Source: Cevher, Mathematics of Data, "Linear layers" (the question how to extend it).
    """

    def init(key, x):
        require_key("Bias.init", key)
        require_floating("Bias", x=x)
        return {"bias": bias_init(key, x.shape[-1:], param_dtype)}

    def apply(params, x):
        require_floating("Bias", x=x)
        require_params("Bias", params, "bias")
        bias = params["bias"]
        if bias.shape != x.shape[-1:]:
            raise ValueError(
                f"Bias expects x with {bias.shape[0]} features on its last axis, but {describe(x)} came; pass x of "
                "that size, or params made by init for this x."
            )
        return x + jnp.broadcast_to(bias.astype(x.dtype), x.shape)

    return Layer(init, apply)


def MLP(
    *widths: int, activation: Callable = relu, last_activation: Callable = identity, kernel_init: Callable | None = None
) -> Layer:
    r"""The multilayer perceptron :math:`x \mapsto o(W_n\,\sigma(\dots\sigma(W_1 x + b_1)\dots) + b_n)`.

    Args:
        widths: features of each ``Dense``, so ``n_layers = len(widths)`` and
            ``n_hidden = len(widths) - 1`` (the lectures use "depth" for both).
        activation: :math:`\sigma`, between the layers.
        last_activation: :math:`o`, after the last one. The lectures disagree whether there
            is one, so it is an argument; by default there is none.
        kernel_init: by default He's where a rectifier follows, LeCun's elsewhere.

    >>> net = MLP(5, 10, 5, 2)
    >>> params = net.init(jax.random.key(0), jnp.zeros(2))
    >>> sum(leaf.size for leaf in jax.tree.leaves(params))
    142

    Source: Huszar, DeepNN lecture 3; Krapac & Segvic, Deep feed-forward models.
    """
    if not widths:
        raise ValueError("MLP expects at least one width, but none came; MLP(64, 10) has one hidden layer.")
    layers: list = []
    for position, width in enumerate(widths, 1):
        after = activation if position < len(widths) else last_activation
        layers.append(Dense(width, kernel_init=kernel_init or initializers.for_activation(after)))
        if after is not identity:
            layers.append(after)
    return Serial(*layers)


def _affine(where, x, kernel, bias):
    require_floating(where, x=x, kernel=kernel)
    x = jnp.asarray(x)  # float64 of NumPy becomes float32 as everywhere in JAX
    if not x.shape or x.shape[-1] != kernel.shape[0]:
        raise ValueError(
            f"{where} expects x with {kernel.shape[0]} features on its last axis (its kernel is {describe(kernel)}), "
            f"but {describe(x)} came; pass x of that size, or params made by init for this x."
        )
    y = jnp.matmul(x, kernel.astype(x.dtype))  # (*batch, out)
    if bias is None:
        return y
    if bias.shape != kernel.shape[1:]:
        raise ValueError(
            f"{where} expects a bias of shape {kernel.shape[1:]} (its kernel is {describe(kernel)}), but "
            f"{describe(bias)} came; pass one number per output."
        )
    return y + jnp.broadcast_to(bias.astype(x.dtype), y.shape)
