"""Private gradients: the gradient of each example clipped to a norm, and noise, for differentially private training."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from jaxblocks.ad.per_example.gradients import checked_examples, wide_norms
from jaxblocks.ad.programs.arguments import Tree
from jaxblocks.backend.precision import wide_dtype
from jaxblocks.backend.quotients import divide
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import NonNegativeFloat, PositiveFloat, PositiveInt, checked

__all__ = ["private_gradients"]


@checked
def private_gradients(
    loss: Callable[..., Any],
    params: Tree,
    *batch: PyTree,
    clip: PositiveFloat | Float[Array, ""],
    noise: NonNegativeFloat | Float[Array, ""],
    key: Key[Array, ""] | None = None,
    batch_size: PositiveInt | None = None,
    chunk_size: PositiveInt | None = None,
) -> Tree:
    r"""The mean of clipped gradients with noise, the gradient of differentially private training (DP-SGD).

    .. math::

        g̃ = (1/B) (∑_{i=1}^N g_i min(1, C / ‖g_i‖) + σ C z), z ∼ N(0, I)

    with $g_i$ the gradient of the loss of example i, C = ``clip``, $σ$ = ``noise`` and B = ``batch_size``. The
    norms are those of `per_example_norms`, which forms no gradient of a kernel; then one backward pass computes the
    gradient of the weighted sum of losses. So no array has the size of all gradients. Use it in place of a gradient::

        grad = private_gradients(loss, params, x, y, clip=1.0, noise=1.1, key=key, batch_size=256)
        updates, opt_state = optimizer.update(grad, opt_state, params)
        params = optax.apply_updates(params, updates)

    The privacy that a number of steps has, $(ε, δ)$, follows from the noise, the rate at which examples are
    drawn, and the number of steps: an accountant such as ``dp_accounting`` computes it. It assumes that each step draws
    its examples independently, each with the same probability (Poisson sampling), so that N varies and B is its
    expectation; and that examples do not mix, as they do in batch norm. Here an example has its own call of ``loss``,
    so that they cannot. The noise is drawn by ``jax.random`` in floating point, and is not hardened against attacks on
    either.

    Args:
        loss, params, batch: as for `per_example_gradients`.
        clip: C, the largest norm of the gradient of one example. In half precision gradients are clipped to a norm
            that is smaller by two units in the last place, so that rounding does not exceed C. In float32 the norm of
            a clipped gradient is C up to the rounding of the gradient. GPUs and TPUs round the operands of products by
            5e-4 and 4e-3, and a norm may exceed C by as much unless ``jax.default_matmul_precision`` is "highest".
        noise: $σ$, the standard deviation of the noise as a multiple of C; 0 clips only.
        key: a key, another one in each step; not needed without noise.
        batch_size: B; by default N. With it the batch may be empty, as a draw of the examples may be: noise remains.
        chunk_size: of the norms, as for `per_example_norms`. The weighted gradient takes the memory of an ordinary one.

    Returns:
        Like ``params``.

    Raises:
        ValueError: for noise without a key; else as for `per_example_gradients`.
        TypeError: as for `per_example_gradients`.

    >>> x, y = jnp.array([[3.0, 4.0], [0.0, 1.0]]), jnp.array([4.0, 0.5])
    >>> loss = lambda w, x, y: (x @ w - y) ** 2 / 2
    >>> private_gradients(
    ...     loss, jnp.ones(2), x, y, clip=5.0, noise=0.0
    ... )  # norms of 15 and 1/2
    Array([1.5 , 2.25], dtype=float32)

    Source: Abadi et al. 2016, Deep learning with differential privacy (arXiv:1607.00133); Li et al. 2021, Large
    language models can be strong differentially private learners (two passes; arXiv:2110.05679).
    """
    without = not isinstance(noise, jax.Array) and noise == 0
    require(without or key is not None, "a key for the noise", "none", "pass key=jax.random.key(0), or noise=0.0")
    params, count = checked_examples(loss, params, batch, may_be_empty=batch_size is not None)
    grad = jax.tree.map(jnp.zeros_like, params)
    if count:
        norms = wide_norms(loss, params, batch, chunk_size)

        def total(params):
            losses = jax.vmap(lambda *example: loss(params, *example))(*batch)
            # The weight and the product with it are rounded by half of eps each, which must not exceed C.
            half = [jnp.finfo(x.dtype).eps for x in (losses, *jax.tree.leaves(params)) if x.dtype.itemsize < 4]
            limit = jnp.asarray(clip, norms.dtype) * (1 - 2 * float(max(half, default=0)))
            # min(1, C / |g|), without a division by 0.
            weights = divide(limit, jnp.maximum(norms, limit))
            return jnp.sum(weights.astype(losses.dtype) * losses)

        grad = jax.grad(total)(params)
    leaves, structure = jax.tree.flatten(grad)
    divisor = count if batch_size is None else batch_size
    found = []
    for i, leaf in enumerate(leaves):
        sum_ = leaf.astype(wide_dtype(leaf.dtype))
        if key is not None and not without:
            draw = jax.random.normal(jax.random.fold_in(key, i), leaf.shape, sum_.dtype)
            sum_ = sum_ + jnp.asarray(noise, sum_.dtype) * jnp.asarray(clip, sum_.dtype) * draw
        found.append((sum_ / divisor).astype(leaf.dtype))
    return structure.unflatten(found)
