"""Data that fit in memory: a three-way split, shuffled minibatches, augmentation; all determined by a key.

Data are a tree of arrays with one row per example on their first axis, usually ``(x, y)``. NumPy arrays
stay on the host, JAX arrays stay on their device. Memory maps are read batch by batch; the parts that
`train_val_test_split` returns are copies in memory.

Axis letters: ``batch``; images are ``(batch, height, width, channels)``.
"""

import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Num

from jaxblocks.checks import describe, describe_any, require_floating, require_key, require_whole
from jaxblocks.core import child_key

__all__ = ["gaussian_noise", "minibatches", "prefetch", "random_flip", "random_shift", "train_val_test_split"]


def train_val_test_split(key, arrays, fractions: Sequence[float] = (0.7, 0.15, 0.15)) -> tuple:
    """Rows of ``arrays`` at random in three parts: to train, to choose by (validation), to test once.

    Choosing among models by their test loss makes the best one look better than it is; hence a
    third part. The parts are disjoint and hold all rows; sizes are the fractions, rounded.

    Args:
        arrays: a tree of arrays with equally many rows, such as ``(x, y)``.
        fractions: three, positive, of sum 1.

    Returns:
        Three trees like ``arrays``.

    Raises:
        TypeError: where ``key`` is no key.
        ValueError: for fractions that do not sum to 1, numbers of rows that differ, or an empty part.

    >>> train, validation, test = train_val_test_split(jax.random.key(0), (jnp.zeros((20, 2)), jnp.zeros(20)))
    >>> [len(y) for _, y in (train, validation, test)]
    [14, 3, 3]

    Source: Diehl, first version of the lecture notes, section 1.3.
    """
    require_key("train_val_test_split", key)
    rows = count_rows("train_val_test_split", arrays)
    if len(fractions) != 3 or min(fractions) < 0 or not math.isclose(math.fsum(fractions), 1, rel_tol=1e-6):
        raise ValueError(
            f"train_val_test_split expects three fractions >= 0 of sum 1, but {tuple(fractions)} of sum "
            f"{math.fsum(fractions):g} came; pass for instance (0.7, 0.15, 0.15)."
        )
    first, second = round(fractions[0] * rows), round((fractions[0] + fractions[1]) * rows)
    sizes = first, second - first, rows - second
    if not all(sizes):
        raise ValueError(
            f"train_val_test_split expects at least one row in each part, but {rows} rows in fractions {tuple(fractions)} "
            f"make parts of {sizes}; pass more rows or other fractions."
        )
    order = np.asarray(jax.random.permutation(child_key(key, "train_val_test_split"), rows))
    return tuple(take_rows(arrays, part) for part in np.split(order, [first, second]))


def minibatches(
    key, arrays, batch_size: int, *, epochs: int | None = 1, keep_last: bool = False, start: int = 0
) -> Iterator:
    """Batches of rows without replacement, in a new order each epoch; every draw is determined by ``key``.

    The batches of one epoch are disjoint, so with equal sizes their mean gradient is the gradient of
    the epoch's rows. What does not fill a batch is left out in that epoch (another shape would be
    compiled anew); as the order changes, other rows are left out in the next one.

    Args:
        arrays: a tree of arrays with equally many rows, such as ``(x, y)``.
        epochs: how many; ``None`` for no end.
        keep_last: yield the smaller last batch of each epoch too.
        start: batches to skip, counted over epochs: a run restarted with ``start=int(train.step)``
            goes on with the batches that it would have seen.

    Raises:
        TypeError: at the call, where ``key`` is no key.
        ValueError: at the call, for no rows, numbers of rows that differ, or fewer than ``batch_size``, and
            for numbers that are not whole.

    >>> x = jnp.arange(6)
    >>> batches = list(minibatches(jax.random.key(0), (x, 10 * x), 2))
    >>> len(batches), sorted(int(i) for a, b in batches for i in b)
    (3, [0, 10, 20, 30, 40, 50])

    Source: Diehl 2023, section 1.5 (stochastic gradient descent).
    """
    require_key("minibatches", key)
    rows = count_rows("minibatches", arrays)
    batch_size = require_batch_size("minibatches", batch_size, rows)
    epochs = epochs if epochs is None else require_whole("minibatches", "epochs", epochs, least=0)
    start = require_whole("minibatches", "start", start, least=0)
    per_epoch = -(-rows // batch_size) if keep_last else rows // batch_size
    key = child_key(key, "minibatches")

    def batches():
        first_epoch, position = divmod(start, per_epoch)
        for epoch in itertools.count(first_epoch) if epochs is None else range(first_epoch, epochs):
            order = np.asarray(jax.random.permutation(jax.random.fold_in(key, epoch), rows))
            for batch in range(position, per_epoch):
                yield take_rows(arrays, order[batch * batch_size : (batch + 1) * batch_size])
            position = 0

    return batches()


def prefetch(batches: Iterable, ahead: int = 2, *, device=None) -> Iterator:
    """The same batches, on the device before they are asked for: ``ahead`` of them are on their way.

    JAX copies while Python goes on, so that the copy of a batch takes place during the steps before it. It pays
    where batches come from the host (NumPy, memory maps, a pipeline such as grain) and the device is no CPU.
    What was fetched and not yet used is not lost for a run that goes on later: the position is the step
    (``minibatches(..., start=int(train.step))``), not how far this is ahead.

    Args:
        batches: trees of arrays, as `minibatches` yields them.
        ahead: how many batches are held on the device beside the one in use.
        device: a device or a sharding, as ``jax.device_put`` takes it; the default device if ``None``.

    Raises:
        ValueError: at the call, unless ``ahead`` is a whole number >= 1.

    >>> batches = prefetch(minibatches(jax.random.key(0), np.arange(6), 2))
    >>> sorted(int(i) for batch in batches for i in batch)
    [0, 1, 2, 3, 4, 5]
    """
    ahead = require_whole("prefetch", "ahead", ahead)

    def fetched():
        waiting = deque()
        for batch in batches:
            waiting.append(jax.device_put(batch, device))
            if len(waiting) > ahead:
                yield waiting.popleft()
        yield from waiting

    return fetched()


def random_shift(
    key, images: Num[Array, "batch height width channels"], pixels: int
) -> Num[Array, "batch height width channels"]:
    """Each image moved by up to ``pixels`` up or down and left or right; what moves in is 0.

    >>> images = jnp.ones((2, 4, 4, 1))
    >>> bool((random_shift(jax.random.key(0), images, 0) == images).all())
    True

    Source: Diehl 2023, section 1.6 (data augmentation, named there).
    """
    require_key("random_shift", key)
    batch, *shape = images.shape
    padded = jnp.pad(images, ((0, 0), (pixels, pixels), (pixels, pixels), (0, 0)))
    corners = jax.random.randint(key, (batch, 2), 0, 2 * pixels + 1)
    return jax.vmap(lambda image, corner: lax.dynamic_slice(image, (*corner, 0), shape))(padded, corners)


def random_flip(key, images: Num[Array, "batch height width channels"]) -> Num[Array, "batch height width channels"]:
    """Each image mirrored left to right with probability 1/2.

    >>> images = jnp.arange(4.0).reshape(2, 1, 2, 1)
    >>> sorted(random_flip(jax.random.key(0), images)[1].ravel().tolist())
    [2.0, 3.0]

    Source: Diehl 2023, section 1.6 (data augmentation, named there).
    """
    require_key("random_flip", key)
    flip = jax.random.bernoulli(key, 0.5, (images.shape[0], 1, 1, 1))
    return jnp.where(jnp.broadcast_to(flip, images.shape), images[:, :, ::-1], images)


def gaussian_noise(key, x: Float[Array, "*shape"], scale: float) -> Float[Array, "*shape"]:
    r"""The input with noise: x + sigma eps, eps ~ N(0, I); sigma is ``scale``.

    For linear regression on :math:`N` rows its expected squared error is that of ridge regression
    with penalty :math:`\lambda = N \sigma^2` on the sum (:math:`\sigma^2 \lVert w \rVert^2` on the mean).

    As an augmentation: ``train_step(..., augment=lambda key, x: gaussian_noise(key, x, 0.1))``.

    >>> gaussian_noise(jax.random.key(0), jnp.ones(2), 0.0)
    Array([1., 1.], dtype=float32)

    Source: Diehl 2023, section 1.6 (data augmentation, named there); Bishop 1995, "Training with noise
    is equivalent to Tikhonov regularization".
    """
    require_key("gaussian_noise", key)
    require_floating("gaussian_noise", x=x)
    return x + scale * jax.random.normal(key, x.shape, x.dtype)


# ---- shared by the files of this folder ----------------------------------------------------


def count_rows(where: str, arrays, what: str = "data") -> int:
    """The number of rows that all arrays have; raises where they differ or there are none."""
    named = name_arrays(arrays)
    if not named:
        raise ValueError(f"{where} expects arrays, but an empty {type(arrays).__name__} came.")
    for name, a in named.items():
        if not hasattr(a, "shape") or not a.shape:
            raise TypeError(
                f"{where} expects arrays with one row per example, but {what}{name} is {describe_any(a)}; "
                "convert lists with jnp.asarray."
            )
    lengths = {a.shape[0] for a in named.values()}
    if len(lengths) > 1:
        came = ", ".join(f"{what}{name} is {describe(a)}" for name, a in named.items())
        raise ValueError(f"{where} expects equally many rows in all arrays, but {came}.")
    (rows,) = lengths
    if rows == 0:
        raise ValueError(f"{where} expects at least one row, but the data are empty.")
    return rows


def require_batch_size(where: str, batch_size, rows: int) -> int:
    """``batch_size`` as an ``int``; raises unless the rows fill a batch."""
    batch_size = require_whole(where, "batch_size", batch_size)
    if batch_size > rows:
        raise ValueError(
            f"{where} expects batch_size to be at most the number of rows, but {batch_size} > {rows}; "
            f"pass batch_size={rows}."
        )
    return batch_size


def take_rows(arrays, rows):
    """Rows of every array of a tree (indices or a slice): on the host for NumPy, on the device for JAX arrays."""
    if isinstance(rows, slice):
        return jax.tree.map(lambda a: a[rows], arrays)
    return jax.tree.map(lambda a: _take(a, rows) if isinstance(a, jax.Array) else a[rows], arrays)


@jax.jit
def _take(a, rows):
    return a[rows]


def name_arrays(arrays) -> dict:
    """Every array of a tree by its place, such as ``[0]`` or ``['image']``."""
    return {jax.tree_util.keystr(path): a for path, a in jax.tree_util.tree_leaves_with_path(arrays)}
