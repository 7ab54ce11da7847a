"""The evaluation of a net: means of metrics over a data set, with ``train=False``."""

import contextlib
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import PyTree

from jaxblocks.backend.jit_cache import jit_with_static, kept
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.checks.layer_inputs import check_side_inputs
from jaxblocks.checks.signatures import arguments_of, takes
from jaxblocks.core.lifting import as_layer, declared_by, required_by, side_inputs, stateful
from jaxblocks.core.pairs import Layer, LayerLike, Out, StatefulLayer
from jaxblocks.sharding import batch_sharding, mesh_of, with_automatic_axes, without_explicit_axes
from jaxblocks.training.data.rows import check_numbers, check_pair, count_rows, take_rows
from jaxblocks.training.step.objective import apply_in, as_compute_dtype, call_loss, mean_loss
from jaxblocks.training.step.state import check_not_donated

__all__ = ["check_metrics", "evaluate", "means_of", "predict"]


@checked
@without_explicit_axes()
def evaluate(
    net: LayerLike,
    params: PyTree,
    state: PyTree,
    data: tuple,
    metrics: Mapping[str, Callable],
    *,
    batch_size: PositiveInt = 256,
    compute_dtype: DTypeLike | None = None,
) -> dict[str, float]:
    r"""Means of metrics over all rows of ``data = (x, y)``, with the net in evaluation mode (``train=False``).

    With params on several devices each batch is sharded over the first axis of their mesh.

    Every row counts once: a smaller last batch is weighted by its number of rows (and compiled once more). A metric
    that returns a pair ``(values, weights)``, as a loss may, gives the weighted mean over all rows, for example the
    accuracy without padding: ``lambda outputs, y: (outputs.argmax(-1) == y, y >= 0)``. A metric that is not a mean over
    examples (`r_squared`, `perplexity`, `accuracy` with weights, a root of a mean) would depend on ``batch_size``:
    compute it from the outputs of `predict`, or from the mean.

    Args:
        state: the state of the net; ``()`` for a net without state.
        metrics: named functions of ``(outputs, y)`` that return one number per example, or a mean over the batch; their
            shapes are checked as for the loss in `train_step`. Pass the same function objects each time: new ones are
            compiled again. As under ``jax.jit``, values that net and metrics read from outside are those of the first
            call; `fit` reads them anew in each run.
        compute_dtype: as in `train_step`; metrics get outputs in float32.

    Raises:
        TypeError, ValueError: for data that are not arrays with the same number of rows, metrics of other shapes,
            weights that are all 0, and params that a step has donated.

    >>> halve = lambda x: x / 2
    >>> x = jnp.array([1.0, 2.0, 6.0])
    >>> metrics = {"error": lambda outputs, y: jnp.abs(outputs - y)}
    >>> evaluate(halve, (), (), (x, x), metrics, batch_size=2)
    {'error': 1.5}

    Source: Hastie, Tibshirani & Friedman 2009, The elements of statistical learning, section 7.2; Diehl 2023, section
    1.3 (test loss).
    """
    check_metrics(metrics)
    check_pair("data", data)
    check_not_donated((params, state), "params and state")
    params, state = with_automatic_axes((params, state))
    as_layer(net)  # raises if it is none; programs are kept by the object that was passed
    # A tuple, since what is kept must have a hash.
    return _kept_means_of(net, tuple(metrics.items()), as_compute_dtype(compute_dtype))(params, state, data, batch_size)


def means_of(net: LayerLike, metrics: tuple, compute_dtype, what: str = "the data") -> Callable:
    """The function ``(params, state, data, batch_size)`` of `evaluate`, with a program of its own.

    An error that a metric raises for the values of a batch gets a note with its rows of ``what``.
    """
    check_side_inputs(required_by(declared_by(stateful(net).apply)), {"train": False})
    program = jax.jit(functools.partial(_batch_means, net, metrics, compute_dtype))

    def means_of_data(params, state, data, batch_size):
        rows = count_rows(data)
        check_numbers(data)
        check_numbers(params, "params")
        check_numbers(state, "state")
        batches = _batches(rows, batch_size)
        place = _placement((params, state))
        with _in_context(mesh_of((params, state))):
            means = [program(params, state, *place(data, batch)) for batch in batches]
        # Read after all batches are started, so that the device does not wait for the host between them.
        means = jax.device_get(means)
        for batch, mean in zip(batches, means, strict=True):
            if undefined := [metric for name, metric in metrics if not math.isfinite(float(mean[name][0]))]:
                x, y = jax.tree.map(jnp.asarray, place(data, batch))
                outputs = _forward(net, compute_dtype, params, state, x)
                try:
                    for metric in undefined:  # on concrete values, a metric can raise an error of its own
                        call_loss(metric, outputs, y)
                except ValueError as error:
                    error.add_note(f"in {what}, rows {batch.start} to {batch.stop - 1}")
                    raise
                break
        # The last batch may be smaller, and so counts less.
        sizes = [batch.stop - batch.start for batch in batches]
        return {name: _mean_of_batches(name, [mean[name] for mean in means], sizes) for name, _ in metrics}

    return means_of_data


# A bound on what stays in memory: jit would keep all nets with static_argnums.
_kept_means_of = kept(16)(means_of)


def _mean_of_batches(name: str, means, sizes) -> float:
    """The mean of the means of batches by the sums of their weights, or by their sizes where there are no weights."""
    weights = [size if total is None else float(total) for (_, total), size in zip(means, sizes, strict=True)]
    total = math.fsum(weights)
    if total == 0:
        require(False, f"weights of the metric {name!r} that are not all 0", "zeros", "omit these rows")
    # Divided before the sum, so that large weights do not overflow.
    return math.fsum(w / total * float(mean) for w, (mean, _) in zip(weights, means, strict=True))


@checked
@without_explicit_axes()
def predict(
    net: Layer[Out] | StatefulLayer[Out] | Callable[..., Out],
    params: PyTree,
    state: PyTree,
    x: Any,
    *,
    batch_size: PositiveInt = 256,
    compute_dtype: DTypeLike | None = None,
) -> Out:
    """The outputs of a net on all rows of ``x``, in batches, with the net in evaluation mode (``train=False``).

    Each row is computed as in one call on all rows, with the memory of one batch; a smaller last batch is compiled
    once more.

    Args:
        state: the state of the net; ``()`` for a net without state. It is not changed.
        x: an array, or a tuple of several inputs, with the same number of rows.
        batch_size: the number of rows per batch.
        compute_dtype: as in `train_step`; outputs are float32.

    Returns:
        The outputs (an array, or a tree of arrays), with one row for each row of ``x``. For no rows the net is called
        with none.

    Raises:
        TypeError, ValueError: for inputs that are not arrays with the same number of rows, for a net whose outputs do
            not have one row per example, for params that a step has donated, and what a layer raises for values that
            make outputs NaN (statistics of `BatchNorm` before the first training step).

    >>> from jaxblocks.layers.dense import Dense
    >>> x = jnp.arange(5.0)[:, None]
    >>> params = Dense(2).init(jax.random.key(0), x)
    >>> outputs = predict(Dense(2), params, (), x, batch_size=2)
    >>> outputs.shape, bool(jnp.allclose(outputs, jax.jit(Dense(2).apply)(params, x)))
    ((5, 2), True)
    """
    require(jax.tree.leaves(x), "arrays in x", x, "the order is net, params, state, x", error=TypeError)
    rows = count_rows(x, "x", least=0)
    check_numbers(x, "x")
    check_not_donated((params, state), "params and state")
    check_numbers(params, "params")
    check_numbers(state, "state")
    compute_dtype = as_compute_dtype(compute_dtype)
    params, state = with_automatic_axes((params, state))
    as_layer(net)  # raises if it is none; programs are kept by the object that was passed
    batches = _batches(rows, batch_size)
    parts, place = [], _placement((params, state))
    for batch in batches:
        with _in_context(mesh_of((params, state))):
            try:
                part = _jitted_forward(net, compute_dtype, params, state, place(x, batch))
            except TypeError as error:
                if isinstance(x, tuple) and len(x) > 1:
                    error.add_note(f"predict passes all {len(x)} arrays of x to the net; leave out labels, if any")
                raise
        size = batch.stop - batch.start
        for leaf in jax.tree.leaves(part):
            repair = "use net.apply for outputs that are not one row per example, or pass x[None] for one example"
            require(leaf.shape[:1] == (size,), f"outputs with {size} rows", leaf, repair)
        parts.append(part)
    # After all batches are started, so that the device does not wait for the host between them.
    for batch, part in zip(batches, parts, strict=True):
        # Traced outputs have no values to read.
        known = [leaf for leaf in jax.tree.leaves(part) if not isinstance(leaf, Tracer)]
        if any(jnp.isnan(leaf).any() for leaf in known if jnp.issubdtype(leaf.dtype, jnp.inexact)):
            # Outside of jit, where a layer can check the values and raise an error about a NaN.
            _forward(net, compute_dtype, params, state, jax.tree.map(jnp.asarray, place(x, batch)))
            break
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)


def _batches(rows: int, batch_size: int) -> list[slice]:
    """The rows of each batch; the last one may be smaller, and no rows are one batch."""
    return [slice(first, min(first + batch_size, rows)) for first in range(0, max(rows, 1), batch_size)]


def _placement(tree) -> Callable:
    """`take_rows`, sharded over the mesh of the params; a batch that its devices do not divide is on all of them."""
    mesh = mesh_of(tree)
    if mesh is None:
        return take_rows
    sharding = batch_sharding(mesh)
    # The first axis of the mesh has the parts of a batch; other axes hold copies.
    whole, devices = NamedSharding(mesh, PartitionSpec()), mesh.shape[sharding.spec[0]]
    return lambda arrays, rows: take_rows(arrays, rows, whole if (rows.stop - rows.start) % devices else sharding)


def _in_context(mesh):
    """The context in which layers keep activations sharded by batch over this mesh, as in a training step."""
    return contextlib.nullcontext() if mesh is None else jax.sharding.use_abstract_mesh(mesh.abstract_mesh)


def check_metrics(metrics) -> None:
    """Raise a ``TypeError`` unless ``metrics`` is a dict of functions, or ``None``."""
    repair = 'write metrics={"accuracy": jaxblocks.accuracy}'
    expected = "metrics to be a dict from names to functions (outputs, y)"
    require(metrics is None or isinstance(metrics, Mapping), expected, metrics, repair, error=TypeError)
    for name, metric in (metrics or {}).items():
        require(callable(metric), expected, metric, repair, error=TypeError)
        if not takes(metric, 2):
            got, repair = arguments_of(metric), f"write metrics={{{name!r}: lambda outputs, y: ...}}"
            require(False, f"metrics[{name!r}] to be a function (outputs, y)", got, repair, error=TypeError)


def _batch_means(net, metrics, compute_dtype, params, state, x, y):
    outputs = _forward(net, compute_dtype, params, state, x)
    return {name: mean_loss(f"the metric {name!r}", metric, x, outputs, y) for name, metric in metrics}


def _forward(net, compute_dtype, params, state, x):
    """The outputs of the net with ``train=False``; its state is read and not changed."""
    # Only nets that read train get it.
    side = {"train": False} if "train" in side_inputs(net) else {}
    return apply_in(compute_dtype, stateful(net).apply, params, state, x, side)[0]


_jitted_forward = jit_with_static(2, most=16)(_forward)
