"""Positional encodings. Attention alone does not depend on the order of its inputs; encodings add the order.

``sinusoidal_positions``, ``SinusoidalPositions`` and ``LearnedPositions`` are added to the features of each position.
``rotary`` rotates queries and keys. ``alibi`` is added to the scores. The latter two depend on distances only, and
are options of ``Attention``: ``positions=rotary``, ``score_bias=alibi``.
"""

from collections.abc import Callable
from typing import Literal, overload

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Real

from jaxblocks import initializers
from jaxblocks.checks import (
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    check_params,
    check_values,
    checkable,
    checked,
    describe,
    require,
)
from jaxblocks.core import ArrayOrShape, Layer, StatefulLayer, builder
from jaxblocks.precision import wide_dtype, widen

__all__ = ["LearnedPositions", "SinusoidalPositions", "alibi", "rotary", "sinusoidal_positions"]


@checked
def sinusoidal_positions(
    length: NonNegativeInt,
    features: PositiveInt,
    *,
    base: PositiveFloat = 10000,
    start: int | Int[Array, ""] = 0,
    dtype: DTypeLike | None = None,
) -> Float[Array, "length features"]:
    r"""Sinusoidal positional encodings: :math:`P_{t,2i} = \sin(t / b^{2i/d}),\; P_{t,2i+1} = \cos(t / b^{2i/d})`.

    With t the position, d ``features`` (even) and b ``base``. The product of two rows, :math:`P_s \cdot P_t = \sum_i
    \cos((s - t) / b^{2i/d})`, depends on their distance only.

    ``start`` is the first position; ``dtype`` is by default float32. Returns ``(length, features)``. Raises
    ``ValueError`` for odd ``features``.

    >>> sinusoidal_positions(2, 2)
    Array([[0.        , 1.        ],
           [0.84147096, 0.5403023 ]], dtype=float32)

    Source: Vaswani et al. 2017, Attention is all you need, section 3.5 (arXiv:1706.03762).
    """
    _check_even("features", features)
    result_dtype = jnp.float32 if dtype is None else dtype
    positions = jnp.arange(length, dtype=jnp.int32) + start
    angles = _angles(positions, features, base, wide_dtype(result_dtype))  # (length, features / 2)
    return jnp.stack([jnp.sin(angles), jnp.cos(angles)], -1).reshape(length, features).astype(result_dtype)


@checked
def rotary(
    x: Float[Array, "..."], positions: Real[Array, "..."] | None = None, *, base: PositiveFloat = 10000
) -> Float[Array, "..."]:
    r"""Rotary encoding: rotate pairs of features in proportion to the position, :math:`x_t \mapsto R_t\,x_t`.

    Pair i, entries i and i + d/2 (the two halves, as in Llama of Hugging Face and GPT-NeoX; the paper pairs adjacent
    entries, a permutation of the features), is rotated by :math:`t\,b^{-2i/d}` with d ``head_dim`` and b ``base``.
    Products of queries and keys then depend on their distance only: :math:`R_s q \cdot R_t k = q \cdot R_{t-s} k`.

    Args:
        x: ``(*batch, time, heads, head_dim)``.
        positions: ``(time,)``, or ``(*batch, time)`` where examples differ; by default 0, 1, 2, ...
        base: b.

    Angles are computed in float32 or wider. Raises ``ValueError`` for odd ``head_dim`` or positions that do not fit.

    >>> x = jnp.array([[[1.0, 0.0]], [[1.0, 0.0]]])  # (time, heads, head_dim)
    >>> print(rotary(x)[1].round(3))
    [[0.54  0.841]]

    Source: Su et al. 2021, RoFormer, section 3.2 (arXiv:2104.09864).
    """
    require(x.ndim >= 3, "x (*batch, time, heads, head_dim)", x, "write x[..., None, :] for one head")
    _check_even("head_dim", x.shape[-1])
    if positions is None:
        positions = jnp.arange(x.shape[-3], dtype=jnp.int32)
    time, batch_time = x.shape[-3:-2], x.shape[:-2]
    if positions.shape not in (time, batch_time):
        expected = f"positions of shape {time}, (time,), or {batch_time}, (*batch, time), for x {describe(x)}"
        require(False, expected, positions)
    angles = _angles(positions, x.shape[-1], base, wide_dtype(x.dtype))[..., None, :]  # (time, 1, head_dim / 2)
    angles = angles.reshape((1,) * (x.ndim - angles.ndim) + angles.shape)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    first, second = jnp.split(widen(x), 2, -1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1).astype(x.dtype)


@checked
def alibi(
    heads: PositiveInt,
    n_q: NonNegativeInt,
    n_k: NonNegativeInt,
    offset: int | Int[Array, ""] | None = None,
    *,
    dtype: DTypeLike | None = None,
) -> Float[Array, "heads n_q n_k"]:
    r"""ALiBi, the linear biases :math:`-m_h |p_i - j|`, for the ``bias`` of ``attention``.

    Query i has the position :math:`p_i = i +` ``offset``, by default ``n_k - n_q``: the last query at the last key.
    The slopes of n heads are :math:`m_h = 2^{-8 h / n}`, h = 1, ..., n, if n is a power of two. For other n they are
    the slopes of the next lower power of two, followed by every other slope of the next higher one.

    ``dtype`` is by default float32, or float64 where that is enabled (``attention`` casts to the dtype of its scores).

    ``attention(q, k, v, bias=alibi)`` calls it for one chunk of queries at a time.

    >>> alibi(2, 1, 3)
    Array([[[-0.125     , -0.0625    ,  0.        ]],
    <BLANKLINE>
           [[-0.0078125 , -0.00390625,  0.        ]]], dtype=float32)

    Source: Press et al. 2021, Train short, test long (arXiv:2108.12409).
    """
    positions = jnp.arange(n_q, dtype=jnp.int32) + (n_k - n_q if offset is None else offset)
    distance = jnp.abs(positions[:, None] - jnp.arange(n_k, dtype=jnp.int32)[None])
    slopes = jnp.asarray(np.asarray(_slopes(heads)), jnp.result_type(float) if dtype is None else dtype)
    return slopes[:, None, None] * (-distance).astype(slopes.dtype)[None]


@overload
def SinusoidalPositions(
    *, base: PositiveFloat = 10000, stateful: Literal[False] = False, dtype: DTypeLike | None = None
) -> Layer: ...
@overload
def SinusoidalPositions(
    *, base: PositiveFloat = 10000, stateful: Literal[True], dtype: DTypeLike | None = None
) -> StatefulLayer: ...
@builder
def SinusoidalPositions(
    *, base: PositiveFloat = 10000, stateful: bool = False, dtype: DTypeLike | None = None
) -> Layer | StatefulLayer:
    r"""The layer :math:`y_t = x_t + P_t` with P the ``sinusoidal_positions``; it has no params.

    Args:
        base: of the wavelengths.
        stateful: ``True`` makes a ``StatefulLayer`` for sequences in pieces (as with a cache): its state
            ``{"position"}`` counts the positions so far.
        dtype: of the arithmetic and the output; by default that of the input.

    Shapes: ``(..., time, features)`` to the same, ``features`` even.

    >>> SinusoidalPositions().apply((), jnp.zeros((1, 4)))
    Array([[0., 1., 0., 1.]], dtype=float32)

    Source: Vaswani et al. 2017, Attention is all you need, section 3.5 (arXiv:1706.03762).
    """

    def init(key, x: Float[ArrayOrShape, "*batch time features"]):
        _check_even("features", x.shape[-1])
        return ()

    def add(params, x, start):
        x = x if dtype is None else x.astype(dtype)
        encodings = sinusoidal_positions(*x.shape[-2:], base=base, start=start, dtype=wide_dtype(x.dtype))
        return x + jnp.broadcast_to(encodings.astype(x.dtype), x.shape)

    return _pair(init, add, stateful)


@overload
def LearnedPositions(
    max_length: PositiveInt,
    *,
    stateful: Literal[False] = False,
    embedding_init: Callable = ...,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
    check: bool = False,
) -> Layer: ...
@overload
def LearnedPositions(
    max_length: PositiveInt,
    *,
    stateful: Literal[True],
    embedding_init: Callable = ...,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
    check: bool = False,
) -> StatefulLayer: ...
@builder
def LearnedPositions(
    max_length: PositiveInt,
    *,
    stateful: bool = False,
    embedding_init: Callable = initializers.normal(0.02),
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
    check: bool = False,
) -> Layer | StatefulLayer:
    r"""The layer :math:`y_t = x_t + E_t` with a learned row for each position.

    Params are ``{"embedding": (max_length, features)}``.

    Args:
        max_length: rows of the table; no sequence may be longer.
        stateful: as in ``SinusoidalPositions``, a ``StatefulLayer`` for sequences in pieces.
        embedding_init: ``f(key, shape, dtype)``.
        dtype: of the arithmetic and the output; by default that of the input.
        param_dtype: of the table.
        check: report a sequence that is too long to ``jax.experimental.checkify``.

    Shapes: ``(..., time, features)`` to the same.

    Raises:
        ValueError: for a sequence longer than ``max_length``. Where this depends on traced values (stateful
            under ``jit``), the outputs are NaN instead.

    >>> layer = LearnedPositions(8)
    >>> layer.apply({"embedding": jnp.arange(8.0)[:, None]}, jnp.zeros((3, 1))).ravel()
    Array([0., 1., 2.], dtype=float32)

    Source: Gehring et al. 2017, Convolutional sequence to sequence learning, section 3.1 (arXiv:1705.03122).
    """

    def init(key, x: Float[ArrayOrShape, "*batch time features"]):
        return {"embedding": embedding_init(key, (max_length, x.shape[-1]), param_dtype)}

    def add(params, x, start):
        n = x.shape[-2]
        _check_length(x, max_length)
        check_params(params, embedding=(max_length, x.shape[-1]))
        x = x if dtype is None else x.astype(dtype)
        rows = lax.dynamic_slice_in_dim(params["embedding"], start, n, 0).astype(x.dtype)
        known = checkable(start, check)
        if known is not None:
            check_values(
                known + n <= max_length,
                f"sequences of at most {max_length} positions, got {{more}} after {{before}}; build it with a larger "
                "max_length, or start with a new state",
                check=check,
                before=known,
                more=n,
            )
        rows = jnp.where(start + n <= max_length, rows, jnp.nan)
        return x + jnp.broadcast_to(rows, x.shape)

    return _pair(init, add, stateful)


def _pair(init: Callable, add: Callable, stateful: bool) -> Layer | StatefulLayer:
    """The layer of ``add(params, x, start)``: ``start`` is 0, or the state, which counts the positions so far."""

    def apply(params, x: Float[Array, "*batch time features"]):
        return add(params, x, 0)

    def init_with_state(key, x: Float[ArrayOrShape, "*batch time features"]):
        return init(key, x), {"position": jnp.zeros((), jnp.int32)}

    def apply_with_state(params, state, x: Float[Array, "*batch time features"]):
        made = isinstance(state, dict) and state.keys() == {"position"}
        require(made, "a state of position", state, "pass the one that init or the last apply returned")
        start = state["position"]
        return add(params, x, start), {"position": start + x.shape[-2]}

    return StatefulLayer(init_with_state, apply_with_state) if stateful else Layer(init, apply)


def _angles(positions, features, base, dtype):
    """t b^(-2i/d): (..., time) to (..., time, features / 2)."""
    frequencies = jnp.asarray(base ** (-np.arange(0, features, 2) / features), dtype)  # (features / 2,)
    frequencies = frequencies.reshape((1,) * positions.ndim + frequencies.shape)
    return positions[..., None].astype(dtype) * frequencies


def _slopes(heads: int) -> list[float]:
    power = 1 << (heads.bit_length() - 1)
    slopes = [2 ** (-8 * h / power) for h in range(1, power + 1)]
    return slopes + [2 ** (-8 * h / (2 * power)) for h in range(1, 2 * (heads - power), 2)]


def _check_even(name: str, number: int) -> None:
    require(number % 2 == 0, f"{name} to be even, since pairs of them are rotated", number)


def _check_length(x, max_length: int) -> None:
    repair = "build it with a larger max_length"
    require(x.shape[-2] <= max_length, f"sequences of at most {max_length} positions", x, repair)
