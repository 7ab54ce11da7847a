"""The multilayer perceptron, dense layers and activations in series, the gated linear unit, and products of maps."""

from collections.abc import Callable
from typing import Any, cast

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Inexact

from jaxblocks import initializers
from jaxblocks.activations import identity, relu, sigmoid
from jaxblocks.backend.precision import full_precision
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveInt
from jaxblocks.core.pairs import Layer, LayerLike, builder
from jaxblocks.layers.combinators import Serial, Wire
from jaxblocks.layers.dense import Dense, affine

__all__ = ["GLU", "MLP", "fuse_affine"]


@builder
def MLP(
    *widths: PositiveInt,
    activation: Callable = relu,
    last_activation: Callable = identity,
    kernel_init: Callable | None = None,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
) -> Layer:
    r"""The multilayer perceptron $x ↦ o(W_n σ(…σ(W_1 x + b_1)…) + b_n)$.

    Other names: fully connected net, (deep) feed-forward network, feed-forward artificial neural network (ANN).

    Args:
        widths: features of each ``Dense``, so ``n_layers = len(widths)`` and
            ``n_hidden = len(widths) - 1`` (the lectures use "depth" for both).
        activation: $σ$, between the layers.
        last_activation: $o$, after the last layer. The lectures differ on whether there
            is one; by default there is none.
        kernel_init: by default He's before a rectifier, LeCun's elsewhere.
        dtype, param_dtype: of all layers, as in `Dense`.

    >>> net = MLP(5, 10, 5, 2)
    >>> params = net.init(jax.random.key(0), jnp.zeros(2))
    >>> sum(leaf.size for leaf in jax.tree.leaves(params))
    142

    Source: Goodfellow, Bengio & Courville 2016, Deep learning, chapter 6; Huszar, DeepNN lecture 3; Krapac & Segvic,
    Deep feed-forward models.
    """
    require(len(widths) > 0, "at least one width", "none", "write MLP(64, 10) for one hidden layer of 64 features")
    layers: list = []
    for position, width in enumerate(widths, 1):
        after = activation if position < len(widths) else last_activation
        init = kernel_init or initializers.for_activation(after)
        layers.append(Dense(width, kernel_init=init, dtype=dtype, param_dtype=param_dtype))
        # Left out where it is the identity, so that the params have no entry for it.
        if after is not identity:
            layers.append(after)
    return cast(Layer, Serial(*layers))


@builder
def GLU(
    features: PositiveInt,
    *,
    activation: LayerLike = sigmoid,
    use_bias: bool = True,
    kernel_init: Callable = initializers.lecun_normal(),
    bias_init: Callable = initializers.zeros,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
) -> Layer:
    r"""The gated linear unit $σ(W_g x + b_g) ⊙ (W_u x + b_u)$.

    Params are ``{"gate", "up"}``, each as those of `Dense`. The activation of the gate gives the family: ``sigmoid``
    GLU, ``silu`` SwiGLU, ``gelu`` GEGLU, ``relu`` ReGLU, ``identity`` the bilinear form. With a `Dense` after it, it is
    the gated MLP of a transformer; `jaxblocks.models.TransformerMLP` has both.

    Args:
        features: of the output.
        activation: $σ$, of the gate; a function of arrays or a layer without state.
        use_bias, kernel_init, bias_init, dtype, param_dtype: of both maps, as in `Dense`.

    Shapes: ``(..., in)`` to ``(..., features)``.

    >>> swiglu = Serial(GLU(8, activation=silu, use_bias=False), Dense(3, use_bias=False))
    >>> params = swiglu.init(jax.random.key(0), jnp.zeros((2, 3)))
    >>> sorted(params[0]), jax.jit(swiglu.apply)(params, jnp.zeros((2, 3))).shape
    (['activation', 'gate', 'up'], (2, 3))

    Source: Dauphin, Fan, Auli, Grangier 2017, Language modeling with gated convolutional networks, arXiv:1612.08083;
    Shazeer 2020, GLU variants improve transformer, arXiv:2002.05202.
    """
    options: dict[str, Any] = dict(use_bias=use_bias, kernel_init=kernel_init, bias_init=bias_init, dtype=dtype)
    # Two maps instead of one of twice the width, so that paths name them gate and up, as in the models.
    maps = {name: Dense(features, **options, param_dtype=param_dtype) for name in ("gate", "up")}
    return cast(Layer, Wire(lambda f, x: f.activation(f.gate(x)) * f.up(x), **maps, activation=activation))


def fuse_affine(*params: dict[str, Inexact[Array, "..."]]) -> dict[str, Inexact[Array, "..."]]:
    r"""Compose affine maps into one: $A_2(A_1 x + b_1) + b_2 = A_2 A_1 x + (A_2 b_1 + b_2)$.

    Takes and returns params of ``Dense``; the first argument is applied first. Products are in full precision.

    >>> double = {"kernel": 2 * jnp.eye(1), "bias": jnp.zeros(1)}
    >>> shift = {"kernel": jnp.eye(1), "bias": jnp.ones(1)}
    >>> fuse_affine(shift, double)["bias"]
    Array([2.], dtype=float32)

    Source: Goodfellow et al. 2016, Deep learning, section 6.3; Diehl 2023, section 1; Cevher, Mathematics of Data.
    """
    require(len(params) > 0, "the params of at least one Dense", "none", "write fuse_affine(first, second)")
    first, *rest = params
    with full_precision():
        for p in rest:
            # b_1 W_2 + b_2; a bias of the first map passes through the kernel of the next.
            bias = affine(first["bias"], p["kernel"], p.get("bias")) if "bias" in first else p.get("bias")
            first = {"kernel": first["kernel"] @ p["kernel"]} | ({} if bias is None else {"bias": bias})
    return first
