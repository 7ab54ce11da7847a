"""Products of matrices and the gradients of their factors."""

import itertools
from collections.abc import Sequence

import numpy as np

__all__ = ["factor_gradients", "product"]


def product(kernels: Sequence[np.ndarray]) -> np.ndarray:
    """The product of matrices, first to last."""
    return np.linalg.multi_dot(kernels) if len(kernels) > 1 else kernels[0]


def factor_gradients(kernels: Sequence[np.ndarray], to_product: np.ndarray) -> list[np.ndarray]:
    """The gradient with respect to each factor, from the gradient with respect to their product."""
    # before[l] is the product of the factors before l, after[l] that of those after it.
    before = list(itertools.accumulate(kernels[:-1], np.matmul, initial=np.eye(kernels[0].shape[0])))
    after = list(itertools.accumulate(kernels[:0:-1], lambda a, w: w @ a, initial=np.eye(kernels[-1].shape[1])))[::-1]
    return [b.T @ to_product @ a.T for b, a in zip(before, after, strict=True)]
