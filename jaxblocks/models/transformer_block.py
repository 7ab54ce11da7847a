r"""The transformer block: attention and an MLP, each a residual branch with a norm.

Axis letters: ``...`` batch; ``time`` positions; ``time_c`` positions of the context.
"""

import functools
from collections.abc import Callable
from typing import Literal, TypeAlias, cast, overload

import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxblocks import initializers
from jaxblocks.activations import gelu, identity
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import PositiveFloat, PositiveInt, Rate
from jaxblocks.core.pairs import Layer, LayerLike, StatefulLayer, StatelessLike, builder
from jaxblocks.layers.combinators import Wire
from jaxblocks.layers.dense import Dense
from jaxblocks.layers.dropout import Dropout
from jaxblocks.layers.norm import LayerNorm
from jaxblocks.models.layer_scale import LayerScale
from jaxblocks.models.side_inputs import rename_side_inputs

__all__ = ["Branches", "TransformerBlock", "TransformerMLP"]

Branches: TypeAlias = tuple[Literal["attention", "cross_attention", "mlp"], ...]
NormFirst: TypeAlias = bool | Literal["around", "after"]
_ALL: Branches = ("attention", "cross_attention", "mlp")


@overload
def TransformerBlock(
    *,
    attention: StatelessLike,
    mlp: StatelessLike,
    cross_attention: StatelessLike | None = None,
    norm: Callable = LayerNorm,
    norm_first: NormFirst = True,
    dropout: Rate = 0.0,
    dropout_after: Branches = _ALL,
    layer_scale: PositiveFloat | None = None,
) -> Layer: ...
@overload
def TransformerBlock(
    *,
    attention: LayerLike,
    mlp: LayerLike,
    cross_attention: LayerLike | None = None,
    norm: Callable = LayerNorm,
    norm_first: NormFirst = True,
    dropout: Rate = 0.0,
    dropout_after: Branches = _ALL,
    layer_scale: PositiveFloat | None = None,
) -> StatefulLayer: ...
@builder
def TransformerBlock(
    *,
    attention: LayerLike,
    mlp: LayerLike,
    cross_attention: LayerLike | None = None,
    norm: Callable = LayerNorm,
    norm_first: NormFirst = True,
    dropout: Rate = 0.0,
    dropout_after: Branches = _ALL,
    layer_scale: PositiveFloat | None = None,
) -> Layer | StatefulLayer:
    r"""One block of a transformer: residual branches of attention, optionally of cross-attention, and of an MLP.

    Each branch $f$ is $x + f(N(x))$ with ``norm_first`` (pre-norm), else $N(x + f(x))$ (post-norm),
    with a norm $N$ of its own. Params are ``{"attention_norm", "attention", "mlp_norm", "mlp"}``, and
    ``"cross_attention_norm"`` and ``"cross_attention"`` if there is cross-attention. All transformers of
    `jaxblocks.models` consist of this block, so one rule for paths, such as ``select(params, "**/mlp/up/kernel")``,
    applies to all of them.

    Args:
        attention: a layer ``(..., time, features)`` to the same shape, such as `Attention`. With
            `CachedAttention` the block is a ``StatefulLayer``.
        mlp: a layer of the same shapes, such as `TransformerMLP`.
        cross_attention: a layer of ``x, context``, such as `Attention`.
        norm: ``norm()`` builds the norm of a branch, such as ``LayerNorm``, ``RMSNorm``, or
            ``functools.partial(LayerNorm, epsilon=1e-6)``.
        norm_first: ``True`` for pre-norm, ``False`` for post-norm; ``"after"`` for $x + N(f(x))$, as in OLMo 2, and
            ``"around"`` for $x + N'(f(N(x)))$ with a second norm in each branch, as in Gemma 2, whose params are
            ``"attention_out_norm"`` and ``"mlp_out_norm"``.
        dropout: the rate of the dropout at the end of each branch; above 0, ``apply`` reads ``train`` and ``key``.
        dropout_after: the branches that end with it; ``("mlp",)`` in DistilBERT.
        layer_scale: the initial value of a learned factor for each feature at the end of each branch, with params
            ``"attention_scale"`` and ``"mlp_scale"``; by default none.

    Shapes: ``x`` ``(..., time, features)`` to the same. With ``cross_attention``, ``x`` and a context ``(..., time_c,
    context_features)`` to both, the context unchanged, so that blocks can be stacked by `Serial` and `Repeat`.

    Side inputs: those of the layers, such as ``mask`` and ``segment_ids`` of ``attention``. The ``mask`` of
    ``cross_attention``, which refers to the context, is called ``context_mask``; its ``segment_ids`` are not read.

    Raises:
        ValueError: if a layer changes the shape or dtype of ``x``.

    >>> attention = Attention(2, causal=True)
    >>> block = TransformerBlock(attention=attention, mlp=TransformerMLP(16, 4))
    >>> x = jnp.zeros((3, 4))
    >>> params = block.init(jax.random.key(0), x)
    >>> sorted(params), jax.jit(block.apply)(params, x).shape
    (['attention', 'attention_norm', 'dropout', 'mlp', 'mlp_norm'], (3, 4))
    >>> params["mlp"]["up"]["kernel"].shape
    (4, 16)

    Source: Vaswani et al. 2017, Attention is all you need (post-norm), arXiv:1706.03762; Xiong et al. 2020, On layer
    normalization in the transformer architecture (pre-norm), arXiv:2002.04745; Touvron et al. 2021, Going deeper with
    image transformers (``layer_scale``), arXiv:2103.17239.
    """
    layers: dict[str, LayerLike] = dict(attention_norm=norm(), attention=attention, mlp_norm=norm(), mlp=mlp)
    if cross_attention is not None:
        context_attention = rename_side_inputs(cross_attention, mask="context_mask", segment_ids=None)
        layers |= dict(cross_attention_norm=norm(), cross_attention=context_attention)

    if norm_first == "around":
        layers |= {name.replace("_norm", "_out_norm"): norm() for name in [*layers] if name.endswith("_norm")}

    if layer_scale is not None:
        branches = [name for name in _ALL if name in layers]
        layers |= {f"{name}_scale": LayerScale(layer_scale) for name in branches}

    def forward(f, x, *context):
        def branch(name, x, *context):
            layer, norm = getattr(f, name), getattr(f, f"{name}_norm")
            # Checked below, since `x + y` would broadcast one feature to all without an error.
            y = layer(norm(x) if norm_first in (True, "around") else x, *context)
            if norm_first in ("around", "after"):
                y = getattr(f, f"{name}_out_norm" if norm_first == "around" else f"{name}_norm")(y)
            y = y if layer_scale is None else getattr(f, f"{name}_scale")(y)
            y = f.dropout(y) if name in dropout_after else y
            _require_same(name, x, y)
            return x + y if norm_first else norm(x + y)

        x = branch("attention", x)
        if cross_attention is not None:
            x = branch("cross_attention", x, *context)
        x = branch("mlp", x)
        # Repeat passes the outputs of a block to the next one, so the context is returned too.
        return (x, *context) if context else x

    if dropout_after:
        layers["dropout"] = Dropout(dropout) if dropout else identity
    return Wire(forward, **layers)  # type: ignore[return-value]


@builder
def TransformerMLP(
    hidden: PositiveInt,
    features: PositiveInt,
    *,
    gated: bool = False,
    activation: LayerLike = gelu,
    use_bias: bool = True,
    dropout: Rate = 0.0,
    kernel_init: Callable = initializers.lecun_normal(),
    down_kernel_init: Callable | None = None,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
) -> Layer:
    r"""The MLP of a transformer block, the same at each position: $W_d σ(W_u x)$ (biases omitted).

    With ``gated`` it is $W_d (σ(W_g x) ⊙ W_u x)$. Params are ``{"up", "down"}``, and ``"gate"`` with
    ``gated``, each as those of `Dense`.

    Args:
        hidden: features between the maps.
        features: of the output, in a `TransformerBlock` those of the input.
        gated: whether there is a gate $W_g$.
        activation: $σ$, a function of arrays or a layer without state.
        use_bias: ``False`` for maps without biases.
        dropout: the rate of the dropout before the last map; above 0, ``apply`` reads ``train`` and ``key``.
        kernel_init: of all kernels, ``f(key, shape, dtype)``.
        down_kernel_init: of the kernel of ``down``, by default ``kernel_init``.
        dtype, param_dtype: of all maps, as in `Dense`.

    Shapes: ``(..., in)`` to ``(..., features)``.

    >>> mlp = TransformerMLP(12, 4, gated=True, activation=silu, use_bias=False)
    >>> jax.tree.map(jnp.shape, mlp.init(jax.random.key(0), jnp.zeros(4)))["gate"]
    {'kernel': (4, 12)}

    Source: Vaswani et al. 2017, section 3.3, arXiv:1706.03762; Shazeer 2020, GLU variants improve transformer
    (``gated``), arXiv:2002.05202.
    """
    dense = functools.partial(Dense, use_bias=use_bias, dtype=dtype, param_dtype=param_dtype)
    # `tensor_parallel` and the rules of interop find these kernels by the names up, gate and down.
    layers = dict(
        up=dense(hidden, kernel_init=kernel_init),
        activation=activation,
        dropout=Dropout(dropout) if dropout else identity,
        down=dense(features, kernel_init=down_kernel_init or kernel_init),
    )
    if not gated:
        return cast(Layer, Wire(lambda f, x: f.down(f.dropout(f.activation(f.up(x)))), **layers))
    gate = dense(hidden, kernel_init=kernel_init)
    return cast(Layer, Wire(lambda f, x: f.down(f.dropout(f.activation(f.gate(x)) * f.up(x))), **layers, gate=gate))


def _require_same(name, x, y):
    if (x.shape, x.dtype) != (y.shape, y.dtype):
        repair = f"give its last layer {x.shape[-1]} features"
        require(False, f"{name} to keep shape and dtype, {describe(x)}", y, repair)
