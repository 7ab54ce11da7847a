r"""A ReLU net that folds its input and thereby attains the lower bound on the number of linear regions."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from jax.typing import DTypeLike

from jaxblocks.checks.expectations import checked
from jaxblocks.core.pairs import Layer
from jaxblocks.theory.explicit_weights import explicit_mlp
from jaxblocks.theory.linear_regions.bounds import region_lower_bound

__all__ = ["folding_network"]


@checked
def folding_network(
    widths: Sequence[int], *, inputs: Literal[1, 2] = 2, param_dtype: DTypeLike | None = None
) -> tuple[Layer, tuple]:
    r"""A net on the unit interval or square that has as many regions as `region_lower_bound` states, and its params.

    Each hidden layer but the last folds every coordinate $p = ⌊n/d⌋$ times, d = ``inputs``, by

    .. math::

        x ↦ (p x)_+ - 2 (p x - 1)_+ + 2 (p x - 2)_+ - …,

    which alternates between 0 and 1: it maps each of $p^2$ parts of the square onto the whole square. The last layer
    divides the square along lines in general position, tangents of a small circle, and thereby divides every part.

    Args:
        widths: the widths of the hidden layers.
        inputs: d, 1 or 2.
        param_dtype: by default float64 where JAX has it enabled, else float32.

    Both kinds of region attain the bound if the last layer has at least three units; with fewer units the output is
    zero on some regions, and adjacent ones of these are a single linear region.

    >>> from jaxblocks.theory.linear_regions import region_lower_bound, regions
    >>> net, params = folding_network((10, 10))
    >>> found = regions(net, params, box=((0, 1), (0, 1)))
    >>> found.linear_count, region_lower_bound((10, 10), 2)
    (1400, 1400)

    Source: Montufar, Pascanu, Cho, Bengio 2014, section 3, arXiv:1402.1869.
    """
    region_lower_bound(widths, inputs)  # raises if a layer is too narrow
    *folds, last = widths
    maps, undone = [], np.eye(inputs)
    for n in folds:
        p = n // inputs
        spread = np.kron(np.eye(inputs), np.full((1, p), float(p)))  # (inputs, inputs p)
        rest = (0, n - inputs * p)  # unused units
        kernel = np.pad(undone @ spread, [(0, 0), rest])
        maps.append((kernel, np.pad(-np.tile(np.arange(float(p)), inputs), rest)))
        signs = np.array([1.0, *(2 * (-1.0) ** i for i in range(1, p))])
        undone = np.pad(np.kron(np.eye(inputs), signs[:, None]), [rest, (0, 0)])  # (n, inputs)
    if inputs == 1:
        normals, offsets = np.ones((1, last)), -np.arange(1.0, last + 1) / (last + 1)
        normals[0, -1], offsets[-1] = -1.0, -offsets[-1]  # the opposite sign, so that some unit is always on
    else:
        odd = last + 1 - last % 2
        angles = 2 * np.pi * np.arange(last) / odd  # no two are opposite
        normals = np.stack([np.cos(angles), np.sin(angles)])
        offsets = 0.45 * np.sin(np.pi / (2 * odd)) - np.array([0.5, 0.5]) @ normals  # all crossings are in the square
    weights = np.sqrt(np.arange(2.0, last + 2))  # chosen such that no sum of them vanishes
    return explicit_mlp(*maps, (undone @ normals, offsets), (weights[:, None], [0.0]), param_dtype=param_dtype)
