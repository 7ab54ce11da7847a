"""Data in memory or in memory maps: a random split, shuffled minibatches, prefetching.

Data are a tree of arrays with one row per example on their first axis, usually ``(x, y)``. NumPy arrays
stay on the host, JAX arrays stay on their device. Memory maps are read batch by batch; the parts that
`train_val_test_split` returns are copies in memory. A key determines every draw.
"""

import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import jax
import numpy as np
from jaxtyping import Array, Integer, Key

from jaxblocks.ad.programs.arguments import Tree
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import NonNegativeInt, PositiveInt, checked
from jaxblocks.checks.values import reject_traced
from jaxblocks.core.keys import child_key
from jaxblocks.training.data.rows import check_batch_size, check_divides, count_rows, row_taker, take_rows

__all__ = ["batch_rows", "minibatches", "prefetch", "train_val_test_split"]


@checked
def train_val_test_split(
    key: Key[Array, ""], arrays: Any, *, fractions: Sequence[float | int] = (0.7, 0.15, 0.15)
) -> tuple[Any, Any, Any]:
    """Split the rows of ``arrays`` randomly into three parts: for training, validation (model selection) and test.

    The test loss of the best of several models underestimates its risk if the same data select the model; hence the
    third part. The parts are disjoint and hold all rows; their sizes are the rounded fractions.

    Args:
        arrays: a tree of arrays with the same number of rows, such as ``(x, y)``.
        fractions: three numbers >= 0 with sum 1; a part with 0 is empty.

    Returns:
        Three trees like ``arrays``.

    Raises:
        TypeError: unless ``key`` is a typed key.
        ValueError: for fractions that do not sum to 1, numbers of rows that differ, or an empty part with another
            fraction than 0.

    >>> data = jnp.zeros((20, 2)), jnp.zeros(20)
    >>> training, validation, test = train_val_test_split(jax.random.key(0), data)
    >>> [len(y) for _, y in (training, validation, test)]
    [14, 3, 3]

    Source: Hastie, Tibshirani & Friedman 2009, The elements of statistical learning, section 7.2; Diehl, first version
    of the lecture notes, section 1.3.
    """
    rows = count_rows(arrays)
    reject_traced(key, arrays)
    if not isinstance(fractions, Sequence) or any(np.ndim(one) or not hasattr(one, "__float__") for one in fractions):
        require(False, "three fractions", fractions, "pass for instance (0.7, 0.15, 0.15)", error=TypeError)
    if len(fractions) != 3 or min(fractions) < 0 or not math.isclose(math.fsum(fractions), 1, rel_tol=1e-6):
        got = f"{tuple(fractions)} with sum {math.fsum(fractions):g}"
        require(False, "three fractions >= 0 with sum 1", got, "pass for instance (0.7, 0.15, 0.15)")
    # The two places at which the order is cut, rounded once each, so that the sizes add up to the number of rows.
    first, second = round(fractions[0] * rows), round((fractions[0] + fractions[1]) * rows)
    sizes = first, second - first, rows - second
    if not all(size or not fraction for size, fraction in zip(sizes, fractions, strict=True)):
        got = f"parts of {sizes} for {rows} rows in fractions {tuple(fractions)}"
        require(False, "at least one row in each part", got, "pass more rows or other fractions")
    # On the host, where memory maps are indexed.
    order = np.asarray(jax.random.permutation(child_key(key, "train_val_test_split"), rows))
    return tuple(take_rows(arrays, part) for part in np.split(order, [first, second]))


@checked
def minibatches(
    key: Key[Array, ""],
    arrays: Tree,
    batch_size: PositiveInt,
    *,
    epochs: NonNegativeInt | None = 1,
    last_batch: Literal["drop", "keep"] = "drop",
    start: NonNegativeInt | Integer[Array, ""] = 0,
    sharding: Any = None,
) -> Iterator[Tree]:
    """Yield batches of rows without replacement, in a new order in each epoch; ``key`` determines every draw.

    The batches of one epoch are disjoint, so with equal sizes their mean gradient is the gradient of the rows of the
    epoch. Rows that do not fill a batch are omitted in that epoch (another shape would require another compilation);
    since the order changes, other rows are omitted in the next one.

    Args:
        arrays: a tree of arrays with the same number of rows, such as ``(x, y)``.
        epochs: the number of passes over the data; ``None`` for an endless iterator.
        last_batch: ``"keep"`` also yields the smaller last batch of each epoch.
        start: the number of batches to skip, counted over epochs: a run that is restarted with
            ``start=int(ts.step)`` continues with the next batches of the original run.
        sharding: of the batches over several devices, such as ``jaxblocks.sharding.batch_sharding(mesh)``. Each device
            reads its own rows; in a run of several processes each process reads those of its devices, from data that
            all processes can read.

    Raises:
        TypeError: at the call, unless ``key`` is a typed key, and for a ``sharding`` that is none.
        ValueError: at the call, for no rows, numbers of rows that differ, or fewer rows than ``batch_size``, for
            arguments that are not integers in their range, and for a ``batch_size`` that the devices do not divide.

    >>> x = jnp.arange(6)
    >>> batches = list(minibatches(jax.random.key(0), (x, 10 * x), 2))
    >>> len(batches), sorted(int(i) for a, b in batches for i in b)
    (3, [0, 10, 20, 30, 40, 50])

    Source: Bottou, Curtis & Nocedal 2018, Optimization methods for large-scale machine learning (arXiv:1606.04838);
    Diehl 2023, section 1.5 (stochastic gradient descent).
    """
    rows = count_rows(arrays)
    reject_traced(key, arrays)
    check_batch_size(batch_size, rows)
    if sharding is not None:
        check_divides(sharding, batch_size)
        repair = 'write last_batch="drop", or pad the data to full batches'
        require(last_batch == "drop", "last_batch='drop' for a sharding", repr(last_batch), repair)

    # An inner generator, so that the checks above are made at the call and not at the first batch.
    def batches():
        take = row_taker(arrays, sharding)
        for numbers in batch_rows(key, rows, batch_size, start=int(start), epochs=epochs, last_batch=last_batch):
            yield take(numbers)

    return batches()


def batch_rows(
    key: Any, rows: int, batch_size: int, *, start: int, epochs: int | None = None, last_batch: str = "drop"
) -> Iterator[np.ndarray]:
    """The row numbers of each batch of `minibatches`."""
    per_epoch = -(-rows // batch_size) if last_batch == "keep" else rows // batch_size
    # Philox takes a key of two 64-bit words; the two 32-bit words of a threefry key are repeated to fill them.
    seed = np.resize(np.asarray(jax.random.key_data(child_key(key, "minibatches"))), 4).view(np.uint64)
    # A run that is resumed begins inside of an epoch.
    first_epoch, position = divmod(start, per_epoch)
    for epoch in itertools.count(first_epoch) if epochs is None else range(first_epoch, int(epochs)):
        order = _permutation(seed, epoch, rows)
        for batch in range(position, per_epoch):
            yield order[batch * batch_size : (batch + 1) * batch_size]
        position = 0


def _permutation(seed: np.ndarray, epoch: int, rows: int) -> np.ndarray:
    """A random order of the rows, which seed and epoch determine: the numbers 0 to rows - 1, sorted by random bits.

    XLA sorts slowly on CPU. NumPy guarantees that the bits of Philox stay the same, not that ``permutation`` does. Rows
    with equal bits, of which only very many rows have some, stay in order.
    """
    # The epoch is the highest word of the counter, so that the bits of two epochs do not overlap.
    bits = np.random.Philox(key=seed, counter=[0, 0, 0, epoch]).random_raw(rows)
    low = np.uint64(2 ** (rows - 1).bit_length() - 1)  # the lower bits of each number are its row
    # Sorted by the upper, random bits; the lower ones then list the rows in a random order.
    return (np.sort((bits & ~low) | np.arange(rows, dtype=np.uint64)) & low).astype(np.intp)


@checked
def prefetch(batches: Iterable, *, ahead: PositiveInt = 2, device: Any = None) -> Iterator:
    """Yield the same batches, and copy ``ahead`` batches to the device before they are used.

    JAX copies asynchronously, so a batch is copied while previous steps are computed. This is useful if batches are on
    the host (NumPy, memory maps, a pipeline such as grain) and the device is not a CPU. A resumed run does not lose
    batches that were copied but not used, because its position in the data is the step
    (``minibatches(..., start=int(ts.step))``).

    Args:
        batches: trees of arrays, for example from `minibatches`.
        ahead: the number of batches on the device in addition to the one in use.
        device: a device or a sharding, as in ``jax.device_put``; the default device if ``None``.

    Raises:
        TypeError: at the call, for ``batches`` that cannot be iterated over, such as a function that makes them.
        ValueError: at the call, unless ``ahead`` is an integer >= 1.

    >>> batches = prefetch(minibatches(jax.random.key(0), np.arange(6), 2))
    >>> sorted(int(i) for batch in batches for i in batch)
    [0, 1, 2, 3, 4, 5]
    """
    repair = "call the function: prefetch(batches())" if callable(batches) else "pass those of minibatches"
    iterable = isinstance(batches, Iterable) or hasattr(batches, "__getitem__")  # a sequence need not have __iter__
    require(iterable, "an iterable of batches", batches, repair, error=TypeError)

    def fetched():
        waiting = deque()
        for batch in batches:
            # device_put returns before the copy is complete: the copy runs while the batches before are used.
            waiting.append(jax.device_put(batch, device))
            if len(waiting) > ahead:
                yield waiting.popleft()
        yield from waiting

    return fetched()
