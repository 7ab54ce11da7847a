"""Penalties: numbers of params that are added to a loss; the proximal step of the L1 penalty."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.tree_util import keystr, tree_leaves_with_path
from jaxtyping import Array, Float, PyTree

from jaxblocks.backend.precision import widen
from jaxblocks.checks.errors import public_name, require
from jaxblocks.checks.expectations import checked
from jaxblocks.checks.foreign_arrays import check_byte_order
from jaxblocks.losses.arrays import magnitude, squared_magnitude

__all__ = ["l1_penalty", "l2_penalty", "soft_threshold"]


def _total(term, params, mask):
    """Sum of ``term`` over the entries of the leaves that ``mask`` selects, in float32 or wider."""
    try:
        # A prefix of the tree is enough: one boolean stands for all leaves below it.
        mask = jax.tree.broadcast(mask, params)
    except ValueError as error:
        repair = "one boolean covers the subtree below it, as in {'kernel': True, 'bias': False} for a dense layer"
        error.add_note(f"{public_name()} expected a mask with the structure of params or of its upper part; {repair}.")
        raise
    total = jnp.zeros((), jnp.float32)
    for (path, leaf), selected in zip(tree_leaves_with_path(params), jax.tree.leaves(mask), strict=True):
        repair = "a mask selects whole arrays while JAX traces, so close over it instead of passing it through jit"
        require(isinstance(selected, bool | np.bool_), "a mask of True and False", selected, repair, error=TypeError)
        if selected:
            floating = hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.inexact)
            repair = "convert it, or leave it out with mask"
            require(floating, "params of floating-point or complex arrays", leaf, repair, error=TypeError)
            if isinstance(leaf, np.ndarray):
                check_byte_order(f"params{keystr(path)}", leaf)
            part = jnp.sum(term(widen(leaf)))
            # Float64 params keep their digits; float32 is the least, also for half precision.
            dtype = jnp.float64 if jnp.float64 in (total.dtype, part.dtype) else jnp.float32
            total = total.astype(dtype) + part.astype(dtype)
    return total


@checked
def l1_penalty(params: PyTree, *, mask: PyTree = True) -> Float[Array, ""]:
    """L1 penalty of a tree of parameters: the sum of the absolute values of all entries, of complex ones the moduli.

    Omega(Theta) = sum |W|, to be added to a loss as lambda * l1_penalty(params). The subgradient at 0 is 0; for exact
    zeros use steps with ``soft_threshold``.

    ``mask`` selects the arrays to include: a boolean, or a tree of booleans with the structure of ``params`` or of its
    upper part. The lectures exclude biases; see ``l2_penalty`` for such a mask. Computed and returned in float32
    (float64 if an array is), also for half precision, where a sum over a whole net would lose most of its digits.

    Raises:
        TypeError: for arrays that are neither floating-point nor complex, unless they are masked out.

    >>> print(l1_penalty({"kernel": jnp.array([[1.0, -2.0]]), "bias": jnp.array([0.5])}))
    3.5

    Sources: Goodfellow, Bengio & Courville 2016, Deep learning, section 7.1; Diehl 2023, section 1.6; Krapac & Segvic,
    Deep feed-forward models.
    """
    return _total(magnitude, params, mask)


@checked
def l2_penalty(params: PyTree, *, mask: PyTree = True) -> Float[Array, ""]:
    """L2 penalty of a tree of parameters: the sum of |W|^2 over all entries (no factor 1/2, no root).

    Omega(Theta) = sum |W|^2, to be added to a loss as lambda * l2_penalty(params). Under plain gradient descent
    (lambda / 2) * l2 is weight decay lambda; it is the negative log of a Gaussian prior, up to a constant
    (ridge, Tikhonov).

    ``mask`` selects the arrays to include: a boolean, or a tree of booleans with the structure of ``params`` or of its
    upper part. Computed and returned in float32 (float64 if an array is), also for half precision.

    Raises:
        TypeError: for arrays that are neither floating-point nor complex, unless they are masked out.

    >>> params = ({"kernel": jnp.array([[1.0, -2.0]]), "bias": jnp.array([0.5])}, ())
    >>> print(l2_penalty(params))
    5.25
    >>> no_biases = jax.tree.map_with_path(lambda path, _: path[-1].key != "bias", params)
    >>> print(l2_penalty(params, mask=no_biases))
    5.0

    Sources: Goodfellow, Bengio & Courville 2016, Deep learning, section 7.1; Diehl 2023, section 1.6; Krapac & Segvic,
    Deep feed-forward models.
    """
    return _total(squared_magnitude, params, mask)


@checked
def soft_threshold(x: Float[Array, "*shape"], threshold: float | int | Float[Array, ""]) -> Float[Array, "*shape"]:
    """Shrink every entry toward 0 by ``threshold``; smaller entries become exactly 0.

    S(x) = sign(x) max(|x| - t, 0) with t = ``threshold``: the proximal step of the L1 penalty, the u that minimizes 1/2
    (u - x)^2 + t |u|. Its derivative is 0 below t, 1 above, and 1/2 at |x| = t > 0. A gradient step on a loss with
    learning rate eta, followed by soft_threshold(., eta lambda), minimizes loss + lambda * l1 with exact zeros.

    Raises:
        ValueError: for a negative threshold.

    >>> print(soft_threshold(jnp.array([-1.25, 0.125, 0.75]), 0.25))
    [-1.   0.   0.5]

    Source: Parikh & Boyd 2014, Proximal algorithms (doi:10.1561/2400000003); Diehl 2023, section 1.6 (names L1
    regularization).
    """
    if not isinstance(threshold, Tracer):  # by NumPy, since under jit a comparison by JAX is traced
        require(np.asarray(threshold) >= 0, "a threshold >= 0", f"{threshold}", "pass its absolute value")
    threshold = jnp.asarray(threshold, x.dtype)
    # x - clip(x, -t, t): x - t above t, 0 between, x + t below -t, without a branch.
    return x - jnp.clip(x, -threshold, threshold)
