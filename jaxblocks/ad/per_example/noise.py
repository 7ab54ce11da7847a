r"""The noise of minibatch gradients: their covariance over random minibatches.

g_i      the gradient of the loss of example i, g their mean over the N examples
Sigma    the covariance of the g_i, (1/N) sum_i (g_i - g)(g_i - g)^T
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxblocks.ad.per_example.gradients import checked_examples
from jaxblocks.ad.vectors.chunks import rows_in_chunks
from jaxblocks.ad.vectors.raveled import as_vector, common_dtype, dot
from jaxblocks.backend.powers_of_two import divided, unit_of
from jaxblocks.backend.precision import wide_dtype
from jaxblocks.backend.varying import varying_like
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveInt, checked

__all__ = ["GradientNoise", "gradient_noise"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GradientNoise:
    r"""Statistics of the difference of a minibatch gradient from the full gradient; returned by `gradient_noise`.

    Attributes:
        gradient: $g$, like the parameters.
        squared_norm: $|g|^2$.
        trace: $tr Σ$, the mean squared distance of an example's gradient from $g$.
        batch_trace: the same of a minibatch gradient, $((tr Σ) / B) ((N-B) / (N-1))$.
        noise_scale: $tr Σ / |g|^2$, the batch size at which the noise is as large as
            the gradient; infinite if the gradient is zero.
        covariance: of a minibatch gradient, $(Σ/B) ((N-B) / (N-1))$, (n, n) in the order
            of ``ravel_pytree``; ``None`` unless ``covariance=True``.
        examples, batch_size: $N$ and $B$.

    >>> noise = gradient_noise(
    ...     lambda w, x: w * x, 1.0, jnp.array([1.0, 2.0, 3.0]), batch_size=2
    ... )
    >>> noise.examples, noise.batch_size
    (3, 2)
    """

    gradient: PyTree
    squared_norm: Float[Array, ""]
    trace: Float[Array, ""]
    batch_trace: Float[Array, ""]
    noise_scale: Float[Array, ""]
    covariance: Float[Array, "n n"] | None
    examples: int = dataclasses.field(metadata={"static": True})
    batch_size: int = dataclasses.field(metadata={"static": True})


@checked
def gradient_noise(
    loss: Callable[..., Any],
    params: PyTree,
    *data: PyTree,
    batch_size: PositiveInt,
    covariance: bool = False,
    chunk_size: PositiveInt | None = None,
) -> GradientNoise:
    r"""The noise of minibatch gradients: B of the N examples, drawn without replacement.

    The gradient of such a batch has the mean $g$ and the covariance

    .. math::

        Cov = (Σ/B) ((N - B) / (N - 1)),
        Σ = (1/N) ∑_i (g_i - g)(g_i - g)ᵀ,

    exactly, over all $binom(N, B)$ batches; for B = N it is zero.

    Args:
        loss, params: as for `per_example_gradients`.
        data: all N examples, on the first axis of every array.
        batch_size: $B$, from 1 to N.
        covariance: whether to return the matrix too: n by n numbers for n parameters.
        chunk_size: the number of gradients stored at once; all by default.

    The covariance is summed from the differences to $g$, not from squares, so that small values are accurate.

    Raises:
        ValueError: if ``batch_size`` is not from 1 to N; other errors are those of `per_example_gradients`.

    >>> noise = gradient_noise(
    ...     lambda w, x: w * x, 1.0, jnp.array([1.0, 2.0, 3.0]), batch_size=2
    ... )
    >>> [
    ...     round(float(value), 4)
    ...     for value in (noise.gradient, noise.trace, noise.batch_trace, noise.noise_scale)
    ... ]
    [2.0, 0.6667, 0.1667, 0.1667]

    Source: McCandlish et al. 2018, An empirical model of large-batch training (the noise scale; arXiv:1812.06162);
    Huszar, DeepNN lecture 3 (effect of gradient noise).
    """
    params, count = checked_examples(loss, params, data)
    expected = f"batch_size to be at most the number of examples, {count}"
    require(batch_size <= count, expected, batch_size, f"pass batch_size={count}")
    chunk = count if chunk_size is None else min(count, chunk_size)
    # Sums of squares over many examples lose digits in half precision.
    dtype = wide_dtype(common_dtype(params))

    def flat(*example):
        return as_vector(jax.grad(loss)(params, *example))[0].astype(dtype)

    def sums(of, like):
        """The sum of ``of(g_i)`` over all examples, a chunk at a time."""
        if chunk == count:  # a single chunk needs no loop
            return of(jax.vmap(flat)(*data))

        def add(total, part):
            return total + of(jax.vmap(flat)(*part)), None

        chunks, rest = rows_in_chunks(data, chunk)
        total, _ = jax.lax.scan(add, like, chunks)
        return total + of(jax.vmap(flat)(*rest)) if count % chunk else total

    size = sum(leaf.size for leaf in jax.tree.leaves(params))

    # In shard_map the carry of a loop must vary over the same mesh axes as the gradients that are added to it.
    def zeros(*shape):
        return varying_like(jnp.zeros(shape, dtype), params)

    # Two passes over the examples: the mean first, then the squares of differences from it. The shortcut, the mean of
    # g_i^2 minus g^2, cancels where the noise is small.
    sums_of = lambda g: jnp.stack([jnp.sum(g, axis=0), jnp.sum(jnp.abs(g), axis=0)])
    mean, magnitude = sums(sums_of, zeros(2, size)) / count
    # In a unit of the gradients, whose squares vanish or overflow where the ratio of two squares does not.
    unit = unit_of(jnp.max(magnitude, initial=0))
    difference = lambda g: divided(g - mean[None], unit)
    if covariance:
        spread = sums(lambda g: dot(difference(g).T, difference(g)), zeros(size, size)) / count
        trace = jnp.trace(spread)
    else:
        spread = None
        trace = sums(lambda g: jnp.sum(jnp.square(difference(g))), zeros()) / count
    squared_norm = jnp.sum(jnp.square(divided(mean, unit)))
    # The inner `where` keeps the derivative of the division finite where the norm is 0.
    is_zero = squared_norm == 0
    noise_scale = jnp.where(is_zero, jnp.inf, trace / jnp.where(is_zero, 1, squared_norm))
    squared_norm, trace = squared_norm * unit * unit, trace * unit * unit
    # (N - B) / (B (N - 1)); for one example the numerator is 0, and the denominator must not be.
    share = (count - batch_size) / (batch_size * max(1, count - 1))
    flat_params, unravel = as_vector(params)
    return GradientNoise(
        gradient=unravel(mean.astype(flat_params.dtype)),
        squared_norm=squared_norm,
        trace=trace,
        batch_trace=share * trace,
        noise_scale=noise_scale,
        covariance=None if spread is None else share * (spread * unit * unit),
        examples=count,
        batch_size=batch_size,
    )
