"""The fit of a net to true and to random labels."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.core.lifting import as_layer
from jaxblocks.core.pairs import StatelessLike
from jaxblocks.losses import softmax_cross_entropy
from jaxblocks.plotting.axes import PALETTE, axes_or_new
from jaxblocks.theory.convergence import descend

__all__ = ["RandomLabels", "random_labels"]


@dataclass(frozen=True, repr=False)
class RandomLabels:
    """The record of `random_labels`: first for the net trained on true labels, then for shuffled labels.

    Attributes:
        train, test: accuracies, ``(2,)``; on training data, for the labels that the net was trained on.
        losses: the training loss at each step, ``(2, steps + 1)``.
    """

    train: np.ndarray
    test: np.ndarray
    losses: np.ndarray

    def plot(self, ax=None):
        """Plot both training losses over the steps, with the accuracies in the legend; returns the axes.

        >>> RandomLabels(np.ones(2), np.ones(2), np.ones((2, 5))).plot().get_xlabel()
        'step'
        """
        ax = axes_or_new(ax)
        styles = ((PALETTE[0], "-", "true labels"), (PALETTE[1], "--", "random labels"))
        for (color, style, name), loss, train, test in zip(styles, self.losses, self.train, self.test, strict=True):
            label = f"{name}: training accuracy {train:.0%}, test accuracy {test:.0%}"
            ax.semilogy(loss, style, color=color, label=label)
        ax.set(xlabel="step", ylabel="training loss")
        ax.legend()
        return ax

    def __repr__(self):
        words = [
            f"{name} labels: training {train:.0%}, test {test:.0%}"
            for name, train, test in zip(("true", "random"), self.train, self.test, strict=True)
        ]
        return f"RandomLabels({'; '.join(words)})"


@checked
def random_labels(
    net: StatelessLike,
    x: Float[Array, "n ..."],
    y: Any,
    test_x: Float[Array, "m ..."],
    test_y: Any,
    *,
    key: Key[Array, ""],
    optimizer: Any,
    steps: PositiveInt,
) -> RandomLabels:
    """Accuracies of a classifier trained on true labels, and from the same start on shuffled labels.

    A net with enough parameters fits both. Therefore its capacity does not explain its generalization on the true
    labels; no argument from the model class alone can.

    Args:
        net: a layer from ``x`` to scores ``(n, classes)``.
        x, test_x: inputs in rows.
        y, test_y: labels, integers from 0.
        key: the random key of the initial params and of the shuffle.
        optimizer, steps: as for ``descend``, on the mean cross-entropy of all training data.

    >>> from jaxblocks import MLP
    >>> x = jax.random.normal(jax.random.key(0), (24, 8))
    >>> y = (x[:, 0] > 0).astype(jnp.int32)
    >>> found = random_labels(
    ...     MLP(64, 2), x, y, x, y, key=jax.random.key(1), optimizer=0.3, steps=400
    ... )
    >>> found.train.tolist(), bool(found.test[1] < 1)
    ([1.0, 1.0], True)

    Source: Zhang et al. 2017, Understanding deep learning requires rethinking generalization, arXiv:1611.03530;
    Huszar, DeepNN lecture 3.
    """
    layer = as_layer(net)
    x, y, test_x, test_y = (jnp.asarray(v) for v in (x, y, test_x, test_y))
    for name, inputs, labels in (("y", x, y), ("test_y", test_x, test_y)):
        fits = labels.shape == inputs.shape[:1] and jnp.issubdtype(labels.dtype, jnp.integer)
        repair = f"write {name}.astype(jnp.int32)" if labels.ndim == 1 else f"write jnp.argmax({name}, -1) if one-hot"
        if labels.shape[:1] != inputs.shape[:1]:
            repair = "pass as many labels as inputs"
        require(fits, f"{name} to be integers ({len(inputs)},), a label for each row", labels, repair)
    init_key, shuffle_key = jax.random.split(key)
    start = layer.init(init_key, x)
    # A permutation keeps the frequencies of the classes: only the relation to the inputs is destroyed.
    both = jnp.stack([y, jax.random.permutation(shuffle_key, y)])

    @jax.jit
    @jax.vmap
    def run(labels):
        # Both nets at once, over the axis of labelings; they begin at the same params.
        loss = lambda params: jnp.mean(softmax_cross_entropy(layer.apply(params, x), labels))
        descent = descend(loss, start, optimizer, steps=steps)
        right = lambda x, y: jnp.argmax(layer.apply(descent.last, x), -1) == y
        accuracy = lambda x, y: jnp.mean(right(x, y).astype(descent.values.dtype))
        return accuracy(x, labels), accuracy(test_x, test_y), descent.values

    return RandomLabels(*(np.asarray(v) for v in run(both)))
