r"""Normalizing flows: invertible layers with the log-determinant of their Jacobian, and the likelihood that they give.

A flow maps $x$ to $(z, log |det ∂ z / ∂ x|)$, and with ``inverse=True`` back, with the
log-determinant of the inverse. The density of the data is that of $z$, standard normal, times the determinant.
To train one, maximize `flow_log_likelihood`: ``loss=lambda outputs, _: -flow_log_likelihood(*outputs)``.

Axis letters: ``...`` batch, ``features`` the size of the last axis.
"""

import math
from collections.abc import Callable
from typing import overload

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxblocks import initializers
from jaxblocks.backend.linear_maps import affine_map, in_dtype
from jaxblocks.backend.precision import wide_dtype, widen
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveFloat, check_params, checked
from jaxblocks.core.children import children
from jaxblocks.core.pairs import ArrayOrShape, Layer, LayerLike, StatefulLayer, StatelessLike, builder
from jaxblocks.layers.combinators import Wire

__all__ = ["AffineCoupling", "Flow", "affine_coupling", "flow_log_likelihood"]


@checked
def affine_coupling(
    x: Float[Array, "*batch features"],
    log_scale: Float[Array, "*batch features"],
    shift: Float[Array, "*batch features"],
    *,
    inverse: bool = False,
) -> tuple[Float[Array, "*batch features"], Float[Array, "*batch"]]:
    r"""The affine map $y = x ⊙ e^s + t$ and its log-determinant $∑_i s_i$.

    Args:
        x: the features that the map changes.
        log_scale: $s$, in a flow computed from the features that are kept.
        shift: $t$, computed from them too.
        inverse: ``True`` gives $(x - t) ⊙ e^{-s}$ and $-∑_i s_i$.

    Returns:
        $y$ ``(..., features)`` and the log-determinant ``(...)``, in the dtype of ``x``; half precision is
        computed in float32.

    >>> x, factors = jnp.array([1.0, 2.0]), jnp.array([2.0, 3.0])
    >>> y, log_det = affine_coupling(x, jnp.log(factors), jnp.ones(2))
    >>> y, jnp.exp(log_det)
    (Array([3., 7.], dtype=float32), Array(6., dtype=float32))

    Source: Dinh, Sohl-Dickstein, Bengio 2017, Density estimation using Real NVP, section 3.2, arXiv:1605.08803.
    """
    wide, log_scale, shift = (each.astype(wide_dtype(x.dtype)) for each in (x, log_scale, shift))
    log_det = jnp.sum(log_scale, -1).astype(x.dtype)
    if inverse:
        return ((wide - shift) * jnp.exp(-log_scale)).astype(x.dtype), -log_det
    return (wide * jnp.exp(log_scale) + shift).astype(x.dtype), log_det


@checked
def flow_log_likelihood(z: Float[Array, "*batch features"], log_det: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    r"""The log-likelihood of a flow: $log N(z; 0, I) + log |det ∂ z / ∂ x|$, in nats.

    Args:
        z: the output of the flow.
        log_det: its log-determinant.

    >>> z, log_det = jnp.zeros(2), jnp.array(0.0)
    >>> print(f"{flow_log_likelihood(z, log_det):.4f}")  # -log(2 pi)
    -1.8379

    Source: Dinh, Sohl-Dickstein, Bengio 2017, Density estimation using Real NVP, equation 2, arXiv:1605.08803.
    """
    # Constants stay, so that values are comparable between models and add up to bits per dimension.
    normal = -0.5 * jnp.sum(jnp.square(widen(z)), -1) - 0.5 * z.shape[-1] * math.log(2 * math.pi)
    return (normal + widen(log_det)).astype(z.dtype)


@overload
def AffineCoupling(
    conditioner: StatelessLike,
    *,
    flip: bool = False,
    max_log_scale: PositiveFloat = 2.0,
    kernel_init: Callable = initializers.zeros,
    bias_init: Callable = initializers.zeros,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
) -> Layer[tuple[Array, Array]]: ...
@overload
def AffineCoupling(
    conditioner: LayerLike,
    *,
    flip: bool = False,
    max_log_scale: PositiveFloat = 2.0,
    kernel_init: Callable = initializers.zeros,
    bias_init: Callable = initializers.zeros,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
) -> StatefulLayer[tuple[Array, Array]]: ...
@builder
def AffineCoupling(
    conditioner: LayerLike,
    *,
    flip: bool = False,
    max_log_scale: PositiveFloat = 2.0,
    kernel_init: Callable = initializers.zeros,
    bias_init: Callable = initializers.zeros,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
) -> Layer[tuple[Array, Array]] | StatefulLayer[tuple[Array, Array]]:
    r"""One half of the features, scaled and shifted by functions of the other half, which is kept.

    $y_1 = x_1$ and $y_2 = x_2 ⊙ e^{s(x_1)} + t(x_1)$. The Jacobian is triangular, so that its log-determinant is
    $∑_i s_i(x_1)$, and the inverse is as cheap as the map: $x_2 = (y_2 - t(y_1)) ⊙ e^{-s(y_1)}$. $s$ and $t$ may be any
    functions; here they are a dense map of the outputs of ``conditioner``, with $s$ bounded by $c tanh(· / c)$. Params
    are ``{"conditioner", "affine"}``. With the default initializers the map is the identity at first.

    Args:
        conditioner: a layer of the kept half (and of any further inputs), such as
            ``Serial(Dense(64), relu, Dense(64), relu)``.
        flip: ``True`` keeps the second half and changes the first. Alternate both in a `Flow`.
        max_log_scale: $c$, the bound of $|s_i|$.
        kernel_init, bias_init: of the map to $s$ and $t$, ``f(key, shape, dtype)``.
        dtype, param_dtype: of that map, as in `Dense`.

    Shapes: ``(..., features)`` to the same and ``(...)``, the log-determinant. Of an odd number of features, the first
    half is the smaller one.

    Side inputs: ``inverse``, a Python bool, and those of ``conditioner``.

    Raises:
        ValueError: for fewer than two features.

    >>> initial = initializers.lecun_normal()
    >>> layer = AffineCoupling(Serial(Dense(8), relu), kernel_init=initial)
    >>> x = jnp.array([[1.0, 2.0, 3.0]])
    >>> params = layer.init(jax.random.key(0), x)
    >>> apply = jax.jit(layer.apply, static_argnames="inverse")
    >>> y, log_det = apply(params, x)
    >>> back, minus_log_det = apply(params, y, inverse=True)
    >>> print(jnp.allclose(back, x), log_det == -minus_log_det, y[0, 0] == x[0, 0])
    True [ True] True

    Source: Dinh, Sohl-Dickstein, Bengio 2017, Density estimation using Real NVP, section 3.2, arXiv:1605.08803.
    """
    affine = _scale_and_shift(max_log_scale, kernel_init, bias_init, dtype, param_dtype)

    def forward(f, x, *context):
        half = x.shape[-1] // 2 if getattr(x, "shape", ()) else 0
        require(half > 0, "an array of at least two features", x, "put several numbers on the last axis")
        first, second = x[..., :half], x[..., half:]
        kept, changed = (second, first) if flip else (first, second)
        changed, log_det = f.affine(changed, f.conditioner(kept, *context))
        return jnp.concatenate([changed, kept] if flip else [kept, changed], -1), log_det

    return Wire(forward, conditioner=conditioner, affine=affine)


def _scale_and_shift(max_log_scale, kernel_init, bias_init, dtype, param_dtype) -> Layer[tuple[Array, Array]]:
    """The coupling of features with those of the conditioner; params ``{"kernel", "bias"}`` of a dense map."""

    def init(key, x: Float[ArrayOrShape, "*batch features"], hidden: Float[ArrayOrShape, "*batch hidden"]):
        shape = (hidden.shape[-1], 2 * x.shape[-1])
        return {
            "kernel": kernel_init(key, shape, param_dtype),
            "bias": bias_init(jax.random.fold_in(key, 1), shape[1:], param_dtype),
        }

    def apply(params, x, hidden, *, inverse=False):
        check_params(params, kernel=(hidden.shape[-1], 2 * x.shape[-1]), bias=(2 * x.shape[-1],))
        hidden = in_dtype(hidden, dtype)
        y = widen(affine_map(hidden, params["kernel"], params["bias"]))
        log_scale, shift = jnp.split(y, 2, -1)
        # Bounded, since the exponential of an arbitrary output of a net overflows.
        log_scale = max_log_scale * jnp.tanh(log_scale / max_log_scale)
        return affine_coupling(x, log_scale, shift, inverse=inverse)

    return Layer(init, apply)


@overload
def Flow(*layers: StatelessLike, **named: StatelessLike) -> Layer[tuple[Array, Array]]: ...
@overload
def Flow(*layers: LayerLike, **named: LayerLike) -> StatefulLayer[tuple[Array, Array]]: ...
@builder
def Flow(*layers: LayerLike, **named: LayerLike) -> Layer[tuple[Array, Array]] | StatefulLayer[tuple[Array, Array]]:
    r"""Invertible layers in series: their log-determinants add, and ``inverse=True`` runs their inverses backwards.

    Args:
        layers: layers that map ``x`` to ``(y, log_det)`` and read the side input ``inverse``, such as `AffineCoupling`,
            or functions of arrays that do; by position (params are a dict of ``layer_0``, ``layer_1``, ...), or
        named: by name (params are a dict of these names).

    Shapes: ``(..., features)`` to the same and ``(...)``, the log-determinant. Further inputs are passed to each layer.

    Side inputs: ``inverse``, a Python bool, and those of the layers.

    Raises:
        TypeError: for no layer, positional and named layers together, a layer that does not return a pair, or a traced
            ``inverse``.

    >>> conditioner = Serial(Dense(8), relu)
    >>> flow = Flow(AffineCoupling(conditioner), AffineCoupling(conditioner, flip=True))
    >>> x = jnp.ones((5, 3))
    >>> params = jax.jit(flow.init)(jax.random.key(0), x)
    >>> flow_log_likelihood(*jax.jit(flow.apply)(params, x)).shape
    (5,)
    >>> draw = jax.jit(lambda params, noise: flow.apply(params, noise, inverse=True)[0])
    >>> draw(params, jax.random.normal(jax.random.key(1), (5, 3))).shape
    (5, 3)

    Source: Dinh, Sohl-Dickstein, Bengio 2017, Density estimation using Real NVP, arXiv:1605.08803.
    """
    repair = "write Flow(AffineCoupling(...))"
    require(len(children(layers, named)) > 0, "at least one layer", "none", repair, error=TypeError)
    # Wire takes children by name, so layers given by position get names.
    steps = named or {f"layer_{i}": layer for i, layer in enumerate(layers)}

    @checked
    def forward(f, x, *context, inverse: bool = False):
        x = jnp.asarray(x)
        log_det = jnp.zeros(x.shape[:-1], x.dtype)
        # The names, not the layers, are reversed: params belong to names, and are the same in both directions.
        for name in reversed(steps) if inverse else steps:
            outputs = getattr(f, name)(x, *context)
            pair = type(outputs) is tuple and len(outputs) == 2
            require(pair, f"{name} to return (y, log_det)", outputs, "return both", error=TypeError)
            x, of_layer = outputs
            log_det = log_det + of_layer
        return x, log_det

    return Wire(forward, **steps)
