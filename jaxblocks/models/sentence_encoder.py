r"""Sentence encoders: one vector for a text, from the features of its tokens.

Axis letters: ``...`` batch; ``time`` positions; ``c`` features.
"""

from typing import Literal, TypeAlias

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxblocks.activations import identity
from jaxblocks.backend.precision import widen
from jaxblocks.backend.quotients import unit_vector
from jaxblocks.checks.errors import require
from jaxblocks.core.pairs import Layer, LayerLike, StatefulLayer, StatelessLike, builder
from jaxblocks.layers.combinators import Wire
from jaxblocks.layers.pool import global_max_pool
from jaxblocks.models.class_heads import check_texts

__all__ = ["Pool", "SentenceEncoder", "pooled"]

Pool: TypeAlias = Literal["first", "last", "max", "mean", "sum_by_root", "weighted_mean"]


@builder
def SentenceEncoder(
    encoder: StatelessLike, *, pool: tuple[Pool, ...] = ("mean",), out: LayerLike = identity, normalize: bool = True
) -> Layer:
    r"""One vector for each text: the features of its n tokens $x_1, …, x_n$, pooled, mapped, and of length 1.

    Args:
        encoder: a layer from tokens to features ``(..., time, c)``, such as `BERT` with ``head=None``.
        pool: how the features become one vector; several are concatenated. ``"mean"`` is $∑_i x_i / n$,
            ``"sum_by_root"`` is $∑_i x_i / √n$, ``"weighted_mean"`` is $∑_i i x_i / ∑_i i$, ``"max"`` the maximum of
            each feature, ``"first"`` is $x_1$ and ``"last"`` is $x_n$.
        out: a layer of the pooled vector, such as `Dense`.
        normalize: whether the result is divided by its length, so that products of two are cosines.

    Shapes: the inputs of ``encoder``, such as tokens ``(..., time)``, to ``(..., features)``: those of ``out``, by
    default c for each kind of ``pool``. The features of padding do not count, and the pooled ones of a text
    without tokens are 0.

    Side inputs: ``mask``, boolean ``(..., time)``, ``False`` at padding; and those of ``encoder`` and ``out``.

    Raises:
        ValueError: for an encoder that returns no features or has state, and for no kind of pooling.

    >>> sizes = dict(max_length=8, layers=1, heads=2, features=4, hidden=8)
    >>> net = SentenceEncoder(BERT(vocab_size=5, head=None, **sizes))
    >>> tokens = jnp.array([[0, 3, 1], [2, 4, 0]])
    >>> params = jax.jit(net.init)(jax.random.key(0), tokens)
    >>> mask = jnp.array([[True, True, True], [True, True, False]])
    >>> vectors = jax.jit(net.apply)(params, tokens, mask=mask)
    >>> print(vectors.shape, jnp.linalg.norm(vectors, axis=-1).round(4))
    (2, 4) [1. 1.]

    Source: Reimers and Gurevych 2019, Sentence-BERT, arXiv:1908.10084; Muennighoff 2022, SGPT (``"weighted_mean"``),
    arXiv:2202.08904.
    """
    require(len(pool) > 0, "at least one kind of pooling", "pool=()", 'pass pool=("mean",)')

    got, repair = "one with state", "build it without cache="
    require(not isinstance(encoder, StatefulLayer), "an encoder without state", got, repair)

    def forward(f, *inputs, mask: Bool[Array, "*batch time"] | None = None):
        x = f.encoder(*inputs)
        expected, repair = "encoder to return features (..., time, c)", "build it with head=None"
        require(hasattr(x, "ndim") and x.ndim >= 2, expected, x, repair)
        check_texts(x[..., 0])
        y = f.out(jnp.concatenate([pooled(x, mask, kind) for kind in pool], -1))
        return unit_vector(y) if normalize else y

    return Wire(forward, encoder=encoder, out=out)  # type: ignore[return-value]


def pooled(
    x: Float[Array, "*batch time c"], mask: Bool[Array, "*batch time"] | None, kind: Pool
) -> Float[Array, "*batch c"]:
    """The features of valid positions as one vector, as in `SentenceEncoder`.

    >>> x, mask = jnp.array([[1.0], [3.0], [5.0]]), jnp.array([True, True, False])
    >>> print(pooled(x, mask, "mean"), pooled(x, mask, "last"))
    [2.] [3.]
    """
    mask = jnp.ones(x.shape[:-1], bool) if mask is None else mask
    if kind == "max":
        return global_max_pool(x, 1, mask=mask)
    # Not by a product with the mask: NaN at padding would stay.
    known = jnp.where(mask[..., None], x, 0)
    if kind in ("first", "last"):
        index = jnp.argmax(mask, -1) if kind == "first" else mask.shape[-1] - 1 - jnp.argmax(mask[..., ::-1], -1)
        return jnp.take_along_axis(known, index[..., None, None], -2)[..., 0, :]
    wide = widen(known)
    place = jnp.cumsum(mask, -1, dtype=jnp.int32)  # of the first token 1
    weights = jnp.where(mask, place if kind == "weighted_mean" else 1, 0).astype(wide.dtype)  # (..., time)
    total = jnp.maximum(weights.sum(-1), 1)[..., None]
    return ((wide * weights[..., None]).sum(-2) / (jnp.sqrt(total) if kind == "sum_by_root" else total)).astype(x.dtype)
