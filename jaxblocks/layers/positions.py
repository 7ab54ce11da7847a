"""Positional encodings. Attention alone does not depend on the order of its inputs; encodings add the order.

``sinusoidal_positions``, ``SinusoidalPositions`` and ``LearnedPositions`` are added to the features of each position.
``rotary`` rotates queries and keys. ``alibi`` and the learned ``RelativePositionBias`` are added to the scores. The
latter three depend on distances only, and are options of ``Attention``: ``positions=rotary``, ``score_bias=alibi``.
"""

from collections.abc import Callable
from typing import Literal, overload

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Real

from jaxblocks import initializers
from jaxblocks.backend.linear_maps import along_batch, in_dtype
from jaxblocks.backend.precision import wide_dtype, widen
from jaxblocks.backend.symbolic_sizes import Size, at_most, is_size, missing_constraints
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import NonNegativeInt, PositiveFloat, PositiveInt, check_params, checked
from jaxblocks.checks.values import as_int32, check_values, checkable
from jaxblocks.core.pairs import ArrayOrShape, Layer, StatefulLayer, builder

__all__ = [
    "LearnedPositions",
    "RelativePositionBias",
    "SinusoidalPositions",
    "alibi",
    "relative_position_bias",
    "rotary",
    "rotary_frequencies",
    "sinusoidal_positions",
]


@checked
def sinusoidal_positions(
    length: Size,
    features: PositiveInt,
    *,
    base: PositiveFloat = 10000,
    start: int | Int[Array, ""] = 0,
    dtype: DTypeLike | None = None,
) -> Float[Array, "length features"]:
    r"""Sinusoidal positional encodings: $P_{t,2i} = sin(t / b^{2i/d}), P_{t,2i+1} = cos(t / b^{2i/d})$.

    With t the position, d ``features`` (even) and b ``base``. The product of two rows, $P_s · P_t = ∑_i
    cos((s - t) / b^{2i/d})$, depends on their distance only.

    ``start`` is the first position; ``dtype`` is by default float32. Returns ``(length, features)``. Raises
    ``ValueError`` for odd ``features``.

    >>> sinusoidal_positions(2, 2)
    Array([[0.        , 1.        ],
           [0.84147096, 0.5403023 ]], dtype=float32)

    Source: Vaswani et al. 2017, Attention is all you need, section 3.5 (arXiv:1706.03762).
    """
    _check_even("features", features)
    _check_sizes(length=length)
    result_dtype = jnp.float32 if dtype is None else dtype
    positions = jnp.arange(length, dtype=jnp.int32) + jnp.asarray(start, jnp.int32)
    angles = _angles(positions, features, base, wide_dtype(result_dtype))  # (length, features / 2)
    # (length, features / 2, 2) flattened: sine and cosine alternate, as in the paper.
    return jnp.stack([jnp.sin(angles), jnp.cos(angles)], -1).reshape(length, features).astype(result_dtype)


@checked
def rotary(
    x: Float[Array, "..."],
    positions: Real[Array, "..."] | None = None,
    *,
    base: PositiveFloat | None = None,
    frequencies: Float[Array, "pairs"] | None = None,
    rotary_dim: PositiveInt | None = None,
    interleaved: bool = False,
    scale: PositiveFloat | None = None,
) -> Float[Array, "..."]:
    r"""Rotary encoding: rotate pairs of features in proportion to the position, $x_t ↦ R_t x_t$.

    Pair i is rotated by $t b^{-2i/d}$ with d ``rotary_dim`` and b ``base``. Products of queries and keys then
    depend on their distance only: $R_s q · R_t k = q · R_{t-s} k$.

    Args:
        x: ``(*batch, time, heads, head_dim)``.
        positions: ``(time,)``, or ``(*batch, time)`` where examples differ; by default 0, 1, 2, ...
        base: b, by default 10000. Pass ``base`` or ``frequencies``.
        frequencies: of the pairs, ``(rotary_dim / 2,)``, in place of $b^{-2i/d}$, such as the scaled ones of
            `rotary_frequencies`.
        rotary_dim: rotate only the first ``rotary_dim`` features, by default all.
        interleaved: ``False`` pairs the entries i and i + d/2, the two halves, as in GPT-NeoX and Llama of Hugging
            Face; ``True`` pairs the entries 2i and 2i + 1, as in the paper, GPT-J and the published code of Llama.
        scale: a factor of the rotated features, by default 1, so that of their products is its square; YaRN makes the
            scores of attention larger with it.

    Angles are computed in float32 or wider.

    Raises:
        ValueError: for odd ``rotary_dim``, shapes that do not fit, and both ``base`` and ``frequencies``.

    >>> x = jnp.array([[[1.0, 0.0]], [[1.0, 0.0]]])  # (time, heads, head_dim)
    >>> print(rotary(x)[1].round(3))
    [[0.54  0.841]]

    Source: Su et al. 2021, RoFormer, section 3.2 (arXiv:2104.09864).
    """
    require(x.ndim >= 3, "x (*batch, time, heads, head_dim)", x, "write x[..., None, :] for one head")
    one = base is None or frequencies is None
    require(one, "at most one of base and frequencies", "base and frequencies", "pass one of them")
    d = rotary_dim or x.shape[-1]
    _check_even("head_dim" if rotary_dim is None else "rotary_dim", d)
    repair = f"pass rotary_dim={x.shape[-1] // 2 * 2}" if x.shape[-1] > 1 else "give x an even last axis"
    require(d <= x.shape[-1], f"rotary_dim to be at most head_dim = {x.shape[-1]}", d, repair)
    if positions is None:
        positions = jnp.arange(x.shape[-3], dtype=jnp.int32)
    time, batch_time = x.shape[-3:-2], x.shape[:-2]
    # Other shapes, such as one position per head, would be broadcast to a wrong axis without an error.
    if positions.shape not in (time, batch_time):
        expected = f"positions of shape {time}, (time,), or {batch_time}, (*batch, time), for x {describe(x)}"
        repair = f"leave it out for 0, 1, 2, ..., or write start + jnp.arange({time[0]})"
        require(False, expected, positions, repair)
    angles = _angles(positions, d, base or 10000, wide_dtype(x.dtype), frequencies)  # (time, d / 2)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    if scale is not None:
        cos, sin = scale * cos, scale * sin
    # (..., time, 1, d / 2): one angle for all heads; leading axes of size 1, since rank promotion may be an error.
    cos, sin = (y[..., None, :].reshape((1,) * (x.ndim - y.ndim - 1) + (*y.shape[:-1], 1, d // 2)) for y in (cos, sin))
    turned, rest = widen(x[..., :d]), x[..., d:]  # features from d on are not rotated
    first, second = (turned[..., 0::2], turned[..., 1::2]) if interleaved else jnp.split(turned, 2, -1)
    pairs = [first * cos - second * sin, second * cos + first * sin]  # R(angle) of (first, second)
    y = (jnp.stack(pairs, -1).reshape(turned.shape) if interleaved else jnp.concatenate(pairs, -1)).astype(x.dtype)
    return y if rotary_dim is None else jnp.concatenate([y, rest], -1)


@checked
def rotary_frequencies(
    rotary_dim: PositiveInt,
    *,
    base: PositiveFloat = 10000,
    scaling: Literal["linear", "ntk", "llama3", "yarn", "longrope"] | None = None,
    factor: PositiveFloat | None = None,
    factors: tuple[float, ...] | None = None,
    original_length: PositiveInt = 8192,
    low_frequency_factor: PositiveFloat = 1.0,
    high_frequency_factor: PositiveFloat | None = None,
    dtype: DTypeLike = jnp.float32,
) -> Float[Array, "pairs"]:
    r"""Frequencies of `rotary`, $f_i = b^{-2i/d}$, scaled for sequences that are longer than those of training.

    With d ``rotary_dim``, b ``base`` and s ``factor``, the ratio of the lengths, ``scaling`` is

    - ``"linear"``: $f_i / s$, which is the same as positions divided by s;
    - ``"ntk"``: $b$ becomes $b s^{d/(d-2)}$, so that the lowest frequency is divided by s and the highest is unchanged;
    - ``"llama3"``: as in Llama 3.1, with $r_i = L f_i / 2π$ turns over L ``original_length`` positions:
      $f_i$ for $r_i$ above ``high_frequency_factor`` (by default 4), $f_i / s$ below ``low_frequency_factor``, and
      in between $(1 - m) f_i / s + m f_i$ with m from 0 to 1, linear in $r_i$;
    - ``"yarn"``: the same with m linear in i, between the pairs where $r_i$ is ``high_frequency_factor`` (by default
      32) and ``low_frequency_factor``, rounded down and up, as in its published code. The paper adds ``scale=0.1 *
      log(s) + 1`` of `rotary`;
    - ``"longrope"``: $f_i / s_i$ with ``factors`` s, one for each pair, in place of ``factor``.

    Returns ``(rotary_dim / 2,)``.

    Raises:
        ValueError: for odd ``rotary_dim``, and unless both or none of ``scaling`` and ``factor`` (``factors`` for
            ``"longrope"``) are given.

    >>> from functools import partial
    >>> frequencies = partial(rotary_frequencies, 4, base=100.0)
    >>> print(frequencies(), frequencies(scaling="linear", factor=2.0))
    [1.  0.1] [0.5  0.05]
    >>> long = partial(rotary, frequencies=rotary_frequencies(4, scaling="ntk", factor=8.0))
    >>> layer = Attention(2, head_dim=4, positions=long)

    Source: ``"linear"``: Chen et al. 2023, Extending context window of large language models via positional
    interpolation, arXiv:2306.15595. ``"ntk"`` and ``"yarn"``: Peng et al. 2023, YaRN, sections 3.1 and 3.2,
    arXiv:2309.00071. ``"llama3"``: the published code of Llama 3.1. ``"longrope"``: Ding et al. 2024, LongRoPE,
    arXiv:2402.13753.
    """
    _check_even("rotary_dim", rotary_dim)
    needed, other = ("factors", factor) if scaling == "longrope" else ("factor", factors)
    given = factors if scaling == "longrope" else factor
    got = f"scaling={scaling!r} and {needed}={given}"
    fits = (scaling is None) == (given is None) and other is None
    require(fits, f"both scaling and {needed}, or neither", got, "pass both, or neither")
    factor = 1.0 if factor is None else factor
    if scaling == "ntk":
        require(rotary_dim > 2, "rotary_dim above 2 with scaling='ntk'", rotary_dim, "pass scaling='linear'")
        # The factor of the lowest frequency, b^(-(d - 2) / d), becomes 1 / factor; the highest one, 1, stays.
        base = base * factor ** (rotary_dim / (rotary_dim - 2))
    frequencies = base ** (-np.arange(0, rotary_dim, 2) / rotary_dim)
    if scaling == "linear":
        frequencies = frequencies / factor
    if scaling == "longrope":
        expected = f"factors, {rotary_dim // 2} numbers above 0, one for each pair of features"
        repair = f"write for instance [1.0] * {rotary_dim // 2}"
        require(len(factors or ()) == rotary_dim // 2 and min(factors or (1,)) > 0, expected, factors, repair)
        frequencies = frequencies / np.asarray(factors)
    low, high = low_frequency_factor, high_frequency_factor or (32.0 if scaling == "yarn" else 4.0)
    if scaling in ("llama3", "yarn"):
        expected = f"low_frequency_factor below high_frequency_factor = {high}"
        require(low < high, expected, low, f"pass low_frequency_factor={high / 4:g}")
    if scaling == "llama3":
        kept = np.clip((original_length * frequencies / (2 * np.pi) - low) / (high - low), 0.0, 1.0)
        frequencies = (1 - kept) * frequencies / factor + kept * frequencies
    if scaling == "yarn":
        require(base > 1, "base above 1 with scaling='yarn'", base, "pass for instance base=10000.0")
        # The pair, a real number, that has this number of turns within the original length.
        pair = lambda turns: rotary_dim * np.log(original_length / (2 * np.pi * turns)) / (2 * np.log(base))
        first, last = max(np.floor(pair(high)), 0), min(np.ceil(pair(low)), rotary_dim - 1)
        # As published, where both are the same pair.
        width = last - first if last != first else 0.001
        scaled = np.clip((np.arange(rotary_dim // 2) - first) / width, 0.0, 1.0)
        frequencies = scaled * frequencies / factor + (1 - scaled) * frequencies
    return jnp.asarray(frequencies, dtype)


@checked
def alibi(
    heads: PositiveInt,
    n_q: Size,
    n_k: Size,
    offset: int | Int[Array, ""] | None = None,
    *,
    dtype: DTypeLike | None = None,
) -> Float[Array, "heads n_q n_k"]:
    r"""ALiBi, the linear biases $-m_h |p_i - j|$, for the ``bias`` of ``attention``.

    Query i has the position $p_i = i +$ ``offset``, by default ``n_k - n_q``: the last query at the last key.
    The slopes of n heads are $m_h = 2^{-8 h / n}$, h = 1, ..., n, if n is a power of two. For other n they are
    the slopes of the next lower power of two, followed by every other slope of the next higher one.

    ``dtype`` is by default float32, or float64 where that is enabled (``attention`` casts to the dtype of its scores).

    ``attention(q, k, v, bias=alibi)`` calls it for one chunk of queries at a time.

    >>> alibi(2, 1, 3)
    Array([[[-0.125     , -0.0625    ,  0.        ]],
    <BLANKLINE>
           [[-0.0078125 , -0.00390625,  0.        ]]], dtype=float32)

    Source: Press et al. 2021, Train short, test long (arXiv:2108.12409).
    """
    _check_sizes(n_q=n_q, n_k=n_k)
    positions = jnp.arange(n_q, dtype=jnp.int32) + (n_k - n_q if offset is None else jnp.asarray(offset, jnp.int32))
    distance = jnp.abs(positions[:, None] - jnp.arange(n_k, dtype=jnp.int32)[None])
    slopes = jnp.asarray(np.asarray(_slopes(heads)), jnp.result_type(float) if dtype is None else dtype)
    return slopes[:, None, None] * (-distance).astype(slopes.dtype)[None]


@checked
def relative_position_bias(
    embedding: Float[Array, "buckets heads"],
    q_positions: Int[Array, "*batch time_q"],
    k_positions: Int[Array, "*batch time_k"],
    *,
    max_distance: PositiveInt = 128,
    bidirectional: bool = True,
) -> Float[Array, "*batch heads time_q time_k"]:
    r"""Learned biases of scores by distance: $B_{hij} = E_{β(t_j - s_i), h}$ with buckets of distances.

    With s ``q_positions``, t ``k_positions`` and E ``embedding``. Half of the buckets are for keys after the query, if
    ``bidirectional``; otherwise these have distance 0. Of n buckets for one direction, the first n/2 are for the
    distances 0, 1, ..., n/2 - 1. The others grow in geometric progression up to ``max_distance``, and the last also has
    all larger distances.

    >>> embedding = jnp.arange(4.0)[:, None]  # 4 buckets, one head
    >>> places = jnp.arange(3)
    >>> print(relative_position_bias(embedding, places, places)[0])
    [[0. 3. 3.]
     [1. 0. 3.]
     [1. 1. 0.]]

    Source: Raffel et al. 2020, T5, section 2.1, arXiv:1910.10683; buckets as in its published code.
    """
    buckets = embedding.shape[0] // (2 if bidirectional else 1)
    exact = buckets // 2
    expected = f"an embedding of at least {4 if bidirectional else 2} buckets, half of them exact, below max_distance"
    repair = f"pass max_distance={4 * exact}" if exact else "make one of 32 rows"
    require(1 <= exact < max_distance, expected, embedding, repair)
    # Below `exact` a bucket for each distance, then buckets that grow logarithmically up to max_distance. A table in
    # NumPy, since logarithms on different devices could round a distance into the neighboring bucket.
    distances = np.arange(max_distance + 1)
    growth = np.log(np.maximum(distances, 1) / exact) / np.log(max_distance / exact)  # 0 to 1 from exact on
    # 1e-9, since the logarithm of an exact power may round down.
    of_distance = np.where(distances < exact, distances, exact + np.floor(growth * (buckets - exact) + 1e-9))
    of_distance = jnp.asarray(np.minimum(of_distance, buckets - 1), jnp.int32)
    q_positions, k_positions = as_int32(q_positions), as_int32(k_positions)  # differences of 8 bits overflow
    ahead = k_positions[..., None, :] - q_positions[..., :, None]  # (*batch, time_q, time_k)
    # A key after the query, which a causal mask hides, shares bucket 0.
    distance = jnp.abs(ahead) if bidirectional else jnp.maximum(-ahead, 0)
    bucket = of_distance[jnp.minimum(distance, max_distance)]
    if bidirectional:
        bucket = bucket + jnp.where(ahead > 0, buckets, 0)  # the second half of the rows
    return jnp.moveaxis(embedding[bucket], -1, -3)


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
    r"""The layer $y_t = x_t + P_t$ with P the ``sinusoidal_positions``; it has no params.

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
        x = in_dtype(x, dtype)
        # In float32 for half precision, where large positions and their angles have few digits; then rounded once.
        encodings = sinusoidal_positions(*x.shape[-2:], base=base, start=start, dtype=wide_dtype(x.dtype))
        return x + jnp.broadcast_to(encodings.astype(x.dtype), x.shape)

    return _pair(init, add, stateful)


@overload
def LearnedPositions(
    max_length: PositiveInt,
    *,
    offset: NonNegativeInt = 0,
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
    offset: NonNegativeInt = 0,
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
    offset: NonNegativeInt = 0,
    stateful: bool = False,
    embedding_init: Callable = initializers.normal(0.02),
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
    check: bool = False,
) -> Layer | StatefulLayer:
    r"""The layer $y_t = x_t + E_t$ with a learned row for each position.

    Params are ``{"embedding": (max_length + offset, features)}``.

    Args:
        max_length: the length of the longest sequence.
        offset: rows of the table before that of the first position, which are not read; 2 in RoBERTa.
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
    >>> params = {"embedding": jnp.arange(8.0)[:, None]}
    >>> layer.apply(params, jnp.zeros((3, 1))).ravel()
    Array([0., 1., 2.], dtype=float32)

    A symbolic time axis of ``jax.export`` needs the constraint that it is at most ``max_length``:

    >>> from jax import export
    >>> shape = export.symbolic_shape("b, t, 1", constraints=["t <= 8"])
    >>> x = jax.ShapeDtypeStruct(shape, jnp.float32)
    >>> program = export.export(jax.jit(layer.apply))(params, x)
    >>> program.call(params, jnp.zeros((2, 3, 1))).shape
    (2, 3, 1)

    Source: Gehring et al. 2017, Convolutional sequence to sequence learning, section 3.1 (arXiv:1705.03122).
    """

    def init(key, x: Float[ArrayOrShape, "*batch time features"]):
        return {"embedding": embedding_init(key, (max_length + offset, x.shape[-1]), param_dtype)}

    def add(params, x, start):
        n = x.shape[-2]
        repair = "shorten the sequence (trained params have no further positions), or build it with a larger max_length"
        repair = missing_constraints((n, max_length)) or repair
        require(at_most(n, max_length), f"sequences of at most {max_length} positions", x, repair)
        check_params(params, embedding=(max_length + offset, x.shape[-1]))
        x = in_dtype(x, dtype)
        # dynamic_slice clamps a start beyond the end, which would repeat the last positions; hence the check and the
        # NaN below.
        rows = lax.dynamic_slice_in_dim(params["embedding"], start + offset, n, 0)
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
        # Under jit no error can be raised for a position that is known at run time only.
        rows = jnp.where(start + n <= max_length, rows, jnp.nan)
        return x + along_batch(rows, x)

    return _pair(init, add, stateful)


@builder
def RelativePositionBias(
    heads: PositiveInt,
    *,
    buckets: PositiveInt = 32,
    max_distance: PositiveInt = 128,
    bidirectional: bool = True,
    embedding_init: Callable = initializers.variance_scaling(1.0, "fan_avg", "uniform"),
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
) -> Layer:
    """Learned biases of attention scores by distance, for the ``score_bias`` of `Attention`.

    Params are ``{"embedding": (buckets, heads)}``. See `relative_position_bias` for the equation and the options.

    Args:
        heads: of the attention.
        buckets: of distances; with ``bidirectional`` half of them are for keys after the query.
        max_distance: from which on all distances share a bucket.
        bidirectional: ``False`` for causal attention.
        embedding_init: ``f(key, shape, dtype)``.
        dtype: of the output; by default that of the params.
        param_dtype: of the table.

    Shapes: integer positions of queries ``(*batch, time_q)`` and of keys ``(*batch, time_k)`` to ``(*batch, heads,
    time_q, time_k)``.

    >>> bias = RelativePositionBias(2, bidirectional=False)
    >>> layer = Attention(2, causal=True, score_bias=bias)
    >>> params = layer.init(jax.random.key(0), jnp.zeros((3, 8)))
    >>> params["score_bias"]["embedding"].shape
    (32, 2)

    Source: Raffel et al. 2020, T5, section 2.1, arXiv:1910.10683; initial values as in its JAX code, T5X.
    """

    def init(key, q_positions: Int[ArrayOrShape, "*batch time_q"], k_positions: Int[ArrayOrShape, "*batch time_k"]):
        return {"embedding": embedding_init(key, (buckets, heads), param_dtype)}

    def apply(params, q_positions: Int[Array, "*batch time_q"], k_positions: Int[Array, "*batch time_k"]):
        check_params(params, embedding=(buckets, heads))
        embedding = in_dtype(params["embedding"], dtype)
        return relative_position_bias(
            embedding, q_positions, k_positions, max_distance=max_distance, bidirectional=bidirectional
        )

    return Layer(init, apply)


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


def _angles(positions, features, base, dtype, frequencies=None):
    """t b^(-2i/d), or t f_i for given frequencies: (..., time) to (..., time, features / 2)."""
    if frequencies is None:
        frequencies = jnp.asarray(base ** (-np.arange(0, features, 2) / max(features, 1)), dtype)  # (features / 2,)
    if frequencies.shape != (features // 2,):
        expected = f"frequencies of shape ({features // 2},), one for each pair of features"
        require(False, expected, frequencies, f"pass rotary_frequencies({features})")
    frequencies = frequencies.astype(dtype).reshape((1,) * positions.ndim + frequencies.shape)
    return positions[..., None].astype(dtype) * frequencies


def _slopes(heads: int) -> list[float]:
    power = 1 << (heads.bit_length() - 1)
    slopes = [2 ** (-8 * h / power) for h in range(1, power + 1)]
    return slopes + [2 ** (-8 * h / (2 * power)) for h in range(1, 2 * (heads - power), 2)]


def _check_sizes(**sizes: Size) -> None:
    """Check that sizes are integers >= 0, or symbolic."""
    for name, n in sizes.items():
        require(is_size(n), f"{name} to be an integer >= 0", repr(n), f"pass one such as {name}=1")


def _check_even(name: str, number: int) -> None:
    repair = f"pass {name}={number + 1}" if name == "rotary_dim" else "give x an even last axis"
    require(number % 2 == 0, f"{name} to be even, since it is a number of pairs", number, repair)
