"""The optimistic bias of a test set that was used for model selection."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Array, Key

from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.theory.generalization.data import integers

__all__ = ["Selection", "selection_optimism"]


@dataclass(frozen=True, repr=False)
class Selection:
    """The record of `selection_optimism`.

    Attributes:
        classifiers: K, ``(counts,)``.
        expected: the exact expected accuracy of the best of K on the test set, ``(counts,)``.
        simulated: the mean accuracy over simulated selections.
        fresh: the accuracy of the selected classifiers on a new test set, simulated.
        bound: chance plus sqrt(log K / 2n), an upper bound of ``expected``.
        chance: the accuracy of each classifier.
        examples: n, the size of the test set.
    """

    classifiers: np.ndarray
    expected: np.ndarray
    simulated: np.ndarray
    fresh: np.ndarray
    bound: np.ndarray
    chance: float
    examples: int

    def __repr__(self):
        pairs = ", ".join(f"{e:.3f} of {k}" for e, k in zip(self.expected, self.classifiers, strict=True))
        return f"Selection(best {pairs}; on a new set {self.fresh[-1]:.3f}; {self.examples} examples)"


@checked
def selection_optimism(
    *,
    key: Key[Array, ""],
    classifiers: Sequence[int] = (1, 10, 100, 1000),
    examples: PositiveInt = 100,
    chance: float = 0.5,
    trials: PositiveInt = 400,
) -> Selection:
    r"""The optimistic bias of the accuracy of the best of K classifiers on the test set that selected it.

    Each prediction of each classifier is correct with probability ``chance``. The best of K independent classifiers has
    the accuracy $E max = (1/n) ∑_{j=1}^{n} ( 1 - F(j - 1)^K )$, F the binomial distribution function, on the set that
    selected it, and ``chance`` on any other set. The same holds for hyperparameters: their selection needs a third set.

    Args:
        key: the random key of the simulation.
        classifiers: the numbers K.
        examples: n, the size of the test set.
        chance: the accuracy of each classifier.
        trials: the number of simulated selections.

    >>> selection_optimism(key=jax.random.key(0)).expected.round(3)
    array([0.5  , 0.577, 0.625, 0.661])

    Source: Cawley & Talbot 2010, On over-fitting in model selection; Diehl 2023 (April), section 1.3, "implicit
    hyperparameter optimization".
    """
    from scipy.special import bdtr

    n, counts = examples, np.array(integers("classifiers", classifiers))
    require(0 <= chance <= 1, "0 <= chance <= 1", chance, "pass for instance chance=0.5")
    below = bdtr(np.arange(n + 1.0), n, chance)  # F(0), ..., F(n)
    # E[max] = sum over j of P(max > j), and P(max <= j) = F(j)^k.
    expected = np.array([np.sum(1 - below[:-1] ** int(k)) / n for k in counts])
    simulated, fresh = [], []
    for i, k in enumerate(counts):
        chosen, again = jax.random.split(jax.random.fold_in(key, i))
        # By inversion of F: uniform numbers to numbers of hits.
        draw = lambda key, shape: np.searchsorted(below, np.asarray(jax.random.uniform(key, shape), np.float64)) / n
        simulated.append(draw(chosen, (trials, int(k))).max(1).mean())
        fresh.append(draw(again, (trials,)).mean())
    bound = chance + np.sqrt(np.log(counts) / (2 * n))
    return Selection(counts, expected, np.array(simulated), np.array(fresh), bound, chance, n)
