"""Positions: how a set becomes a sequence. Attention alone does not know the order of what it sees.

Added to the features of each position: ``sinusoidal_positions``, ``SinusoidalPositions``, ``LearnedPositions``.
Turned into the queries and keys: ``rotary``. Added to the scores: ``alibi``. The latter two depend on distances
only, and are options of ``Attention``: ``positions=rotary``, ``score_bias=alibi``.
"""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, Real

from jaxblocks import initializers
from jaxblocks.checks import check_values, checkable, describe, require_floating, require_key, require_whole
from jaxblocks.core import Layer, StatefulLayer, builder, require_params
from jaxblocks.precision import wide_dtype, widen

__all__ = ["LearnedPositions", "SinusoidalPositions", "alibi", "rotary", "sinusoidal_positions"]


def sinusoidal_positions(
    length: int, features: int, base: float | int = 10000, start: int | Int[Array, ""] = 0, dtype=jnp.float32
) -> Float[Array, "length features"]:
    r"""Waves of many lengths: :math:`P_{t,2i} = \sin(t / b^{2i/d}),\; P_{t,2i+1} = \cos(t / b^{2i/d})`.

    With t the position, d ``features`` (even) and b ``base``. The product of two rows, :math:`P_s \cdot P_t = \sum_i
    \cos((s - t) / b^{2i/d})`, depends on their distance only.

    ``start`` is the first position. Returns ``(length, features)``. Raises ``ValueError`` for odd ``features``.

    >>> sinusoidal_positions(2, 2)
    Array([[0.        , 1.        ],
           [0.84147096, 0.5403023 ]], dtype=float32)

    Source: Vaswani et al. 2017, Attention is all you need, section 3.5.
    """
    _require_even("sinusoidal_positions", "features", features)
    places = jnp.arange(length, dtype=jnp.int32) + start
    angles = _angles(places, features, base, wide_dtype(dtype))  # (length, features / 2)
    return jnp.stack([jnp.sin(angles), jnp.cos(angles)], -1).reshape(length, features).astype(dtype)


def rotary(
    x: Float[Array, "*batch time heads head_dim"],
    positions: Real[Array, "*_batch _time"] | None = None,
    base: float | int = 10000,
) -> Float[Array, "*batch time heads head_dim"]:
    r"""Pairs of features turned by an angle that grows with the position: :math:`x_t \mapsto R_t\,x_t`.

    Pair i, entries i and i + d/2 (the two halves, as in Llama of Hugging Face and GPT-NeoX; the paper pairs neighbors,
    a permutation of the features), turns by :math:`t\,b^{-2i/d}` with d ``head_dim`` and b ``base``. Products of
    queries and keys then depend on their distance only: :math:`R_s q \cdot R_t k = q \cdot R_{t-s} k`.

    ``positions`` is ``(time,)``, or ``(*batch, time)`` where examples differ; by default 0, 1, 2, ... Angles are
    computed in float32 or wider. Raises ``ValueError`` for odd ``head_dim`` or positions that do not fit.

    >>> x = jnp.array([[[1.0, 0.0]], [[1.0, 0.0]]])  # (time, heads, head_dim)
    >>> print(rotary(x)[1].round(3))
    [[0.54  0.841]]

    Source: Su et al. 2021, RoFormer, section 3.2.
    """
    require_floating("rotary", x=x)
    if x.ndim < 3:
        raise ValueError(
            f"rotary expects x (..., time, heads, head_dim), but {describe(x)} came; write x[..., None, :] for one "
            "head."
        )
    _require_even("rotary", "head_dim", x.shape[-1])
    if positions is None:
        positions = jnp.arange(x.shape[-3], dtype=jnp.int32)
    if positions.shape not in ((x.shape[-3],), (*x.shape[:-3], x.shape[-3])):
        raise ValueError(
            f"rotary expects positions of shape {(x.shape[-3],)}, (time,), or {(*x.shape[:-3], x.shape[-3])}, (*batch, "
            f"time), for x {describe(x)}, but {describe(positions)} came."
        )
    angles = _angles(positions, x.shape[-1], base, wide_dtype(x.dtype))[..., None, :]  # (time, 1, head_dim / 2)
    angles = angles.reshape((1,) * (x.ndim - angles.ndim) + angles.shape)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    first, second = jnp.split(widen(x), 2, -1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1).astype(x.dtype)


def alibi(
    heads: int, n_q: int, n_k: int, offset: int | Int[Array, ""] | None = None, dtype=None
) -> Float[Array, "heads n_q n_k"]:
    r"""Penalties on distance for the ``bias`` of ``attention``: :math:`-m_h |p_i - j|`.

    Query i stands at position :math:`p_i = i +` ``offset``, by default ``n_k - n_q``: the last query at the last key.
    The slopes of n heads are :math:`m_h = 2^{-8 h / n}`, h = 1, ..., n, where n is a power of two. For other n: those
    of the next lower power of two, and then every other one of the next higher.

    ``dtype`` is by default float32, or float64 where that is enabled (``attention`` casts to the dtype of its scores).

    As ``attention(q, k, v, bias=alibi)`` it is called for one chunk of queries at a time.

    >>> alibi(2, 1, 3)
    Array([[[-0.125     , -0.0625    ,  0.        ]],
    <BLANKLINE>
           [[-0.0078125 , -0.00390625,  0.        ]]], dtype=float32)

    Source: Press et al. 2021, Train short, test long.
    """
    heads = require_whole("alibi", "heads", heads)
    places = jnp.arange(n_q, dtype=jnp.int32) + (n_k - n_q if offset is None else offset)
    distance = jnp.abs(places[:, None] - jnp.arange(n_k, dtype=jnp.int32)[None])
    dtype = jnp.result_type(float) if dtype is None else dtype
    slopes = jnp.asarray(np.asarray(_slopes(heads)), dtype)
    return slopes[:, None, None] * (-distance).astype(dtype)[None]


@builder
def SinusoidalPositions(*, base: float | int = 10000, stateful: bool = False) -> Layer | StatefulLayer:
    r"""The layer :math:`y_t = x_t + P_t` with the waves of ``sinusoidal_positions``; it has no params.

    Shapes: ``(..., time, features)`` to the same, ``features`` even.

    ``stateful=True`` makes a ``StatefulLayer`` for sequences that come in pieces (as a cache needs): its state
    ``{"position"}`` counts the positions seen.

    >>> SinusoidalPositions().apply((), jnp.zeros((1, 4)))
    Array([[0., 1., 0., 1.]], dtype=float32)

    Source: Vaswani et al. 2017, Attention is all you need, section 3.5.
    """

    def init(key, x):
        _require_sequence("SinusoidalPositions", x)
        _require_even("SinusoidalPositions", "features", x.shape[-1])
        return ()

    def add(params, x, start):
        _require_sequence("SinusoidalPositions", x)
        waves = sinusoidal_positions(*x.shape[-2:], base, start, wide_dtype(x.dtype))
        return x + jnp.broadcast_to(waves.astype(x.dtype), x.shape)

    if not stateful:

        def apply(params, x):
            return add(params, x, 0)

        return Layer(init, apply)

    def init_with_state(key, x):
        return init(key, x), {"position": jnp.zeros((), jnp.int32)}

    def apply(params, state, x):
        require_params("SinusoidalPositions (state)", state, "position")
        return add(params, x, state["position"]), {"position": state["position"] + x.shape[-2]}

    return StatefulLayer(init_with_state, apply)


@builder
def LearnedPositions(
    max_length: int,
    *,
    stateful: bool = False,
    embedding_init: Callable = initializers.normal(0.02),
    param_dtype=jnp.float32,
    check: bool = False,
) -> Layer | StatefulLayer:
    r"""The layer :math:`y_t = x_t + E_t` with a learned row for each position.

    Params are ``{"embedding": (max_length, features)}``.

    Args:
        max_length: rows of the table; no sequence may be longer.
        stateful: as in ``SinusoidalPositions``, a ``StatefulLayer`` for sequences that come in pieces.
        embedding_init: ``f(key, shape, dtype)``. param_dtype: of the table.
        check: report a sequence that grows too long to ``jax.experimental.checkify``.

    Shapes: ``(..., time, features)`` to the same.

    Raises:
        ValueError: for a sequence longer than ``max_length``. When only values tell (stateful under ``jit``), outputs
            are NaN from there on.

    >>> layer = LearnedPositions(8)
    >>> layer.apply({"embedding": jnp.arange(8.0)[:, None]}, jnp.zeros((3, 1))).ravel()
    Array([0., 1., 2.], dtype=float32)

    Source: Gehring et al. 2017, Convolutional sequence to sequence learning, section 3.1.
    """
    max_length = require_whole("LearnedPositions", "max_length", max_length)

    def init(key, x):
        require_key("LearnedPositions.init", key)
        _require_sequence("LearnedPositions", x)
        return {"embedding": embedding_init(key, (max_length, x.shape[-1]), param_dtype)}

    def add(params, x, start):
        require_params("LearnedPositions", params, "embedding")
        _require_sequence("LearnedPositions", x)
        table, n = params["embedding"], x.shape[-2]
        if table.shape[-1] != x.shape[-1]:
            raise ValueError(
                f"LearnedPositions expects x with {table.shape[-1]} features on its last axis, but {describe(x)} came; "
                "pass x of that size, or params made by init for this x."
            )
        words = f"LearnedPositions expects sequences of at most {max_length} positions, but "
        if n > max_length:
            raise ValueError(f"{words}{describe(x)}, (..., time, features), came; build it with a larger max_length.")
        rows = lax.dynamic_slice_in_dim(table, start, n, 0).astype(x.dtype)
        known = checkable(start, check)
        if known is not None:
            check_values(
                known + n <= max_length,
                words + "{before} were there and {more} came; build it with a larger max_length, or begin with a fresh "
                "state.",
                check=check,
                before=known,
                more=n,
            )
        rows = jnp.where(start + n <= max_length, rows, jnp.nan)
        return x + jnp.broadcast_to(rows, x.shape)

    if not stateful:

        def apply(params, x):
            return add(params, x, 0)

        return Layer(init, apply)

    def init_with_state(key, x):
        return init(key, x), {"position": jnp.zeros((), jnp.int32)}

    def apply(params, state, x):
        require_params("LearnedPositions (state)", state, "position")
        return add(params, x, state["position"]), {"position": state["position"] + x.shape[-2]}

    return StatefulLayer(init_with_state, apply)


def _angles(positions, features, base, dtype):
    """t b^(-2i/d): (..., time) to (..., time, features / 2)."""
    rates = jnp.asarray(base ** (-np.arange(0, features, 2) / features), dtype)  # (features / 2,)
    rates = rates.reshape((1,) * positions.ndim + rates.shape)
    return positions[..., None].astype(dtype) * rates


def _slopes(heads: int) -> list[float]:
    power = 1 << (heads.bit_length() - 1)
    slopes = [2 ** (-8 * h / power) for h in range(1, power + 1)]
    return slopes + [2 ** (-8 * h / (2 * power)) for h in range(1, 2 * (heads - power), 2)]


def _require_even(where, name, number):
    if isinstance(number, bool) or not isinstance(number, int) or number < 2 or number % 2:
        raise ValueError(f"{where} expects {name} to be even, since it takes them in pairs, but {number!r} came.")


def _require_sequence(where, x):
    require_floating(where, x=x)
    if len(x.shape) < 2:
        raise ValueError(f"{where} expects x (..., time, features), but {describe(x)} came; use x[None] for one step.")
