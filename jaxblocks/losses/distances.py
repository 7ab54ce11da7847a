"""Distances of any arrays, entry by entry or between all pairs of points, and a loss of angles."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxblocks.backend.quotients import Order, norm, unit_vector
from jaxblocks.checks.expectations import checked
from jaxblocks.losses.arrays import check_last_axis, widen_both
from jaxblocks.losses.masks import fill, zero

__all__ = ["cosine_embedding_loss", "lp_distance", "pairwise_distances"]

_MOST_AT_ONCE = 2**22  # differences of pairs of points in memory


@checked
def lp_distance(
    predictions: Float[Array, "*batch features"],
    targets: Float[Array, "*batch features"],
    order: Order,
    *,
    where: Bool[Array, "*batch"] | None = None,
) -> Float[Array, "*batch"]:
    """L^p distance of two vectors, such as points or distributions.

    (sum_i |v_i - w_i|^r)^(1/r) with v = ``predictions``, w = ``targets`` and r = ``order``, a Python number >= 1;
    ``math.inf`` gives max_i |v_i - w_i|. A metric for r >= 1 only: below 1 the triangle inequality fails. No power
    overflows or underflows. The subgradient at v = w is 0, and so is the derivative of |v_i - w_i| where v_i = w_i. The
    second derivative there is infinite for 1 < r < 2; 0 is used for it. For ``math.inf`` entries with the same largest
    distance share the gradient evenly.

    Raises:
        ValueError: for ``order`` < 1, or for unequal shapes.

    >>> p, q = jnp.array([0.5, 0.5]), jnp.array([0.9, 0.1])
    >>> print(f"{lp_distance(p, q, 1):.4f} {lp_distance(p, q, 2):.4f}")
    0.8000 0.5657

    Source: Boyd & Vandenberghe 2004, Convex optimization, appendix A; Diehl 2023, section 1.4.
    """
    check_last_axis(predictions)
    v, w, dtype = widen_both(fill(where, predictions, 0), fill(where, targets, 0))
    return zero(where, norm(v - w, -1, order)).astype(dtype)


@checked
def pairwise_distances(
    x: Float[Array, "*batch points features"],
    y: Float[Array, "*batch others features"] | None = None,
    *,
    order: Order = 2,
) -> Float[Array, "*batch points others"]:
    """L^p distances between all points of one set and all of another, d_ij = (sum_k |x_ik - y_jk|^r)^(1/r).

    With r = ``order``, as in `lp_distance`, from differences and not from products: distances of close points are
    exact to rounding wherever the points are. (The expansion |x|^2 + |y|^2 - 2 x y of squares is a matrix product, and
    loses all digits there.) The differences of all pairs are not stored, neither for the distances nor for their
    gradient. Derivatives where points are equal are those of `lp_distance`: 0.

    It is ``torch.cdist``, and for ``y=None``, which takes ``x`` twice, the square form of ``pdist``; index it with
    ``jnp.triu_indices(points, 1)`` for each pair once.

    Raises:
        ValueError: for ``order`` < 1, or where the features or the leading axes differ.

    >>> x = jnp.array([[0.0, 0.0], [3.0, 4.0]])
    >>> print(pairwise_distances(x))
    [[0. 5.]
     [5. 0.]]
    >>> print(pairwise_distances(1e6 + x, 1e6 + x[:1], order=1)[:, 0])
    [0. 7.]

    Source: Boyd & Vandenberghe 2004, Convex optimization, appendix A.
    """
    y = x if y is None else y
    check_last_axis(x)
    a, b, dtype = widen_both(x, y)
    if 0 in (a.shape[-2], b.shape[-2]):  # JAX has no derivative of the map below over sets without points
        return jnp.zeros((*a.shape[:-1], b.shape[-2]), dtype)

    @jax.checkpoint  # the gradient computes differences again, so that those of all pairs are never in memory
    def of_point(point):
        return norm(jnp.expand_dims(point, -2) - b, -1, order)

    points = jnp.moveaxis(a, -2, 0)
    known = all(isinstance(n, int) for n in (*a.shape, *b.shape))  # jax.export also has symbolic sizes
    at_once = max(1, _MOST_AT_ONCE // max(1, b.size)) if known else None
    if at_once and at_once >= len(points):
        distances = jax.vmap(of_point)(points)
    else:
        distances = jax.lax.map(of_point, points, batch_size=at_once)
    return jnp.moveaxis(distances, 0, -2).astype(dtype)


@checked
def cosine_embedding_loss(
    predictions: Float[Array, "*batch features"],
    targets: Float[Array, "*batch features"],
    matches: Bool[Array, "*batch"],
    *,
    margin: float | int | Float[Array, ""] = 0.0,
    where: Bool[Array, "*batch"] | None = None,
) -> Float[Array, "*batch"]:
    """Loss of the angle between two vectors, which is to be small for pairs that match and large for the others.

    1 - cos(v, w) where ``matches`` is True and max(0, cos(v, w) - m) where it is False, with v = ``predictions``,
    w = ``targets`` and m = ``margin``. (PyTorch writes 1 and -1 for True and False.) The subgradient at
    cos(v, w) = m is 0. A row of zeros has the cosine 0 to all; the cosine has no derivative there, and that of
    <v, w> / |w| is used.

    Raises:
        ValueError: for unequal shapes.

    >>> v, w = jnp.array([[1.0, 0.0]] * 2), jnp.array([[3.0, 4.0]] * 2)
    >>> loss = cosine_embedding_loss(v, w, jnp.array([True, False]), margin=0.5)
    >>> print(np.asarray(loss).round(4))
    [0.4 0.1]

    Source: Hadsell, Chopra & LeCun 2006, Dimensionality reduction by learning an invariant mapping
    (doi:10.1109/CVPR.2006.100), for distances; torch.nn.CosineEmbeddingLoss.
    """
    check_last_axis(predictions)
    v, w, dtype = widen_both(fill(where, predictions, 0), fill(where, targets, 0))
    cosine = jnp.sum(unit_vector(v) * unit_vector(w), -1)
    beyond = jax.nn.relu(cosine - jnp.asarray(margin, cosine.dtype))
    return zero(where, jnp.where(matches, 1 - cosine, beyond)).astype(dtype)
