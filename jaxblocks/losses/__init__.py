"""Losses: one number per example. The caller takes the mean over examples.

Read ``regression`` first. ``classification`` and ``divergences`` have those of labels and distributions, ``distances``
those of points and angles, ``penalties`` those of params, ``masks`` what ``where`` does, and ``arrays`` the checks that
all share.

Every loss reduces the last axis (the classes, or the features of one example) and keeps all others: (*batch, n)
becomes (*batch,). Distances between distributions and likelihoods *sum* over classes or features, as their formulas
do; ``mse``, ``mae`` and ``huber_loss`` take the *mean* over features. So ``mse`` of two arrays of shape (n,) is one
number, the ordinary mean squared error; for one loss per example, give scalar predictions the shape (*batch, 1).
Three losses of scalars (``sigmoid_cross_entropy``, ``hinge_loss``, ``zero_one_loss``) reduce nothing.

    loss = softmax_cross_entropy(logits, labels).mean()

Nothing is broadcast: predictions and targets of unequal shapes raise a ``ValueError``. Logarithms are natural, so
values are in nats; the divergences take ``base=2`` for bits.

**Padding and weights.** Every loss takes ``where``, booleans of the shape of the loss: True at the examples that count
(as in the reductions of ``jax.numpy``). At the others the loss and its gradient are exactly 0, whatever their
predictions and targets are: labels such as -100, NaN, infinity. ``mse``, ``mae``, ``huber_loss``, ``gaussian_nll`` and
``poisson_nll`` also take ``where`` of the shape of the predictions, for missing features. ``weighted_mean`` divides by
what counts, and is 0 where no example counts:

    >>> logits, labels = jnp.zeros((3, 4)), jnp.array([2, 0, -100])
    >>> valid = labels >= 0
    >>> print(weighted_mean(softmax_cross_entropy(logits, labels, where=valid), valid))
    1.3862944

In `train_step`, `fit` and `evaluate` a loss that returns the pair ``(values, weights)`` means the same:
``loss = lambda logits, labels: (softmax_cross_entropy(logits, labels, where=labels >= 0), labels >= 0)``.

**Values.** Concrete values are checked: a distribution that does not sum to 1, or a label out of range, raises
``ValueError`` in an eager call. Inside ``jit`` and ``vmap`` values are not available: a label out of range gives NaN,
and an infinite gradient unless the caller masks the example; other invalid values are not detected. With
``check=True`` and ``jax.experimental.checkify`` they raise an error (see ``jaxblocks.checks.values``).

Half precision is computed in float32 and returned in its own dtype.

**Losses of optax** are functions of arrays too, and work in `train_step` as they are: ``optax.cosine_distance`` (one
minus the cosine similarity), ``optax.sigmoid_focal_loss``, ``optax.losses.dice_loss``, ``optax.ctc_loss``,
``optax.losses.triplet_margin_loss``, ``optax.losses.ntxent`` (contrastive, from labels), ``optax.log_cosh``,
``optax.losses.multiclass_hinge_loss``, ``optax.losses.poly_loss_cross_entropy``.

    >>> import optax
    >>> print(optax.cosine_distance(jnp.array([[1.0, 0.0]]), jnp.array([[0.0, 2.0]])))
    [1.]
    >>> print(
    ...     optax.losses.triplet_margin_loss(
    ...         jnp.zeros((1, 2)), jnp.zeros((1, 2)), jnp.ones((1, 2)), margin=2.0
    ...     )
    ... )
    [0.5867...]
"""

from jaxblocks.core.lazy import explain_missing_names
from jaxblocks.losses.classification import (
    distillation_loss,
    hinge_loss,
    info_nce_loss,
    nll,
    sigmoid_cross_entropy,
    softmax_cross_entropy,
    zero_one_loss,
)
from jaxblocks.losses.distances import cosine_embedding_loss, lp_distance, pairwise_distances
from jaxblocks.losses.divergences import (
    cross_entropy,
    entropy,
    jensen_gap,
    jensen_shannon,
    kl_divergence,
    total_variation,
)
from jaxblocks.losses.masks import weighted_mean
from jaxblocks.losses.penalties import l1_penalty, l2_penalty, soft_threshold
from jaxblocks.losses.regression import gaussian_nll, huber_loss, mae, mse, poisson_nll

__all__ = [
    "cosine_embedding_loss",
    "cross_entropy",
    "distillation_loss",
    "entropy",
    "gaussian_nll",
    "hinge_loss",
    "huber_loss",
    "info_nce_loss",
    "jensen_gap",
    "jensen_shannon",
    "kl_divergence",
    "l1_penalty",
    "l2_penalty",
    "lp_distance",
    "mae",
    "mse",
    "nll",
    "pairwise_distances",
    "poisson_nll",
    "sigmoid_cross_entropy",
    "soft_threshold",
    "softmax_cross_entropy",
    "total_variation",
    "weighted_mean",
    "zero_one_loss",
]
explain_missing_names(__name__)
