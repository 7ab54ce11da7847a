"""The no-free-lunch theorem: accuracies on unseen points for all their labelings."""

from dataclasses import dataclass

import numpy as np

from jaxblocks.checks.errors import require
from jaxblocks.theory.generalization.data import Numbers

__all__ = ["NoFreeLunch", "no_free_lunch"]


@dataclass(frozen=True, repr=False)
class NoFreeLunch:
    """The record of `no_free_lunch`.

    Attributes:
        predictions: the predictions of the learner on the unseen points, 0 or 1, ``(m,)``.
        accuracies: the accuracy for each of the 2^m labelings of these points, ``(2**m,)``.
    """

    predictions: np.ndarray
    accuracies: np.ndarray

    @property
    def mean(self) -> float:
        """The mean over all labelings: one half."""
        return float(np.mean(self.accuracies))

    def __repr__(self):
        return f"NoFreeLunch(mean accuracy {self.mean:g} over {len(self.accuracies)} labelings)"


def no_free_lunch(predictions: Numbers) -> NoFreeLunch:
    """The accuracy of any predictions on unseen points, for each labeling of these points: one half on average.

    Without assumptions, training data contain no information about unseen points; learning needs an inductive bias
    that fits the problem.

    Args:
        predictions: the predictions of any learner on m <= 20 unseen points, 0 or 1 each.

    >>> no_free_lunch(np.array([1, 1, 0, 1]))
    NoFreeLunch(mean accuracy 0.5 over 16 labelings)

    Source: Wolpert 1996, The lack of a priori distinctions between learning algorithms,
    doi:10.1162/neco.1996.8.7.1341; Krapac & Segvic, Deep feed-forward models (a function known only on a finite set).
    """
    predictions = np.asarray(predictions)
    binary = predictions.ndim == 1 and 1 <= len(predictions) <= 20 and bool(np.isin(predictions, (0, 1)).all())
    limits = predictions.min(initial=0), predictions.max(initial=0)
    got = f"shape {predictions.shape} with values from {limits[0]} to {limits[1]}"
    repair = "pass np.ravel(predictions > 0.5)[:20]" if predictions.size else "pass for instance np.array([0, 1])"
    require(binary, "predictions 0 or 1 on 1 to 20 unseen points", got, repair)
    m = len(predictions)
    labelings = np.arange(2**m)[:, None] >> np.arange(m) & 1  # (2**m, m)
    return NoFreeLunch(predictions, np.mean(labelings == predictions.astype(int), axis=1))
