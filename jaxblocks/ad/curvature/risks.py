r"""Networks and data sets as functions of the parameters, for the derivative functions of this subpackage.

`as_function` converts a network to a function of parameters and inputs, `empirical_risk` returns its mean loss over a
batch, and `over_minibatches` the mean of any function over a data set, with the memory of one minibatch.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Key, PyTree

from jaxblocks.ad.programs.arguments import explained
from jaxblocks.ad.vectors.chunks import order_convolutions
from jaxblocks.backend.precision import wide_dtype, widen
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.core.lifting import side_inputs, stateful
from jaxblocks.core.pairs import LayerLike
from jaxblocks.core.shapes import as_inputs

__all__ = ["as_function", "empirical_risk", "over_minibatches"]


def as_function(net: LayerLike, state: PyTree = (), **side: Any) -> Callable[..., PyTree]:
    """A network as a function ``model(params, x, **side) -> outputs``: the state is fixed, the next state dropped.

    In evaluation (``train=False``, the default) batch norm uses its running statistics and dropout is the
    identity. With ``train=True`` batch norm uses the statistics of the batch, and ``key`` determines the dropout masks:
    every call uses the same masks, so the derivatives are those of one function.

    Args:
        net: a layer, or a function of arrays.
        state: the state of the network; ``()`` for a stateless one.
        side: side inputs: ``train``, ``key``, ``mask``, ... The model takes them too and overrides these.
            ``train`` and ``key`` are passed only if the network reads them.

    Returns:
        ``model(params, x, **side)``; ``x`` is one input, or a tuple of several.

    >>> model = as_function(lambda x, *, scale: scale * x, scale=2.0)
    >>> model((), jnp.ones(2)), model((), jnp.ones(2), scale=3.0)
    (Array([2., 2.], dtype=float32), Array([3., 3.], dtype=float32))
    """
    reads, apply = side_inputs(net), stateful(net).apply

    def model(params, x, /, **later):
        given = {"train": False, **side, **later}
        given = {name: value for name, value in given.items() if name in reads or name not in ("train", "key")}
        return apply(params, state, *as_inputs(x), **given)[0]

    return model


@checked
def empirical_risk(net: LayerLike, loss: Callable, state: PyTree = (), **side: Any) -> Callable[..., Float[Array, ""]]:
    r"""The mean loss of a network over a batch, as a function ``risk(params, batch, **side)`` with ``batch = (x, y)``.

    .. math::

        R(θ) = (1/N) ∑_{i=1}^N ℓ(f_θ(x_i), y_i)

    This is the function that `jaxblocks.training.train_step` minimizes.

    Args:
        net, state, side: as in `as_function`; evaluation by default.
        loss: $ℓ$, ``loss(outputs, y)``; returns one number per example, or per entry of more leading axes
            (such as positions), or one number. The mean is computed in float32 at least.

    Raises:
        ValueError: while it is traced, for a loss without the leading axes of the outputs or of ``y``.

    >>> risk = empirical_risk(lambda x: x, lambda outputs, y: (outputs - y) ** 2)
    >>> risk((), (jnp.zeros(2), jnp.array([1.0, 3.0])))
    Array(5., dtype=float32)

    Source: Goodfellow, Bengio & Courville 2016, Deep learning, section 8.1.1; Krapac & Segvic, Deep feed-forward
    models.
    """
    model = as_function(net, state, **side)
    repair = "write for instance loss=lambda outputs, y: jaxblocks.mse(outputs, y)"
    loss = explained(loss, 2, "a loss (outputs, y)", repair)

    def risk(params, batch, /, **later):
        x, y = batch
        outputs = model(params, x, **later)
        values = jnp.asarray(loss(outputs, y))
        shape = values.shape
        # A trailing axis of length 1 still means one number for each example.
        while shape and shape[-1] == 1:
            shape = shape[:-1]
        require(
            not shape or any(jnp.shape(leaf)[: len(shape)] == shape for leaf in jax.tree.leaves((outputs, y))),
            "the loss to be one number, or to have the leading axes of the outputs or of y (one number per example)",
            values,
            "outputs and y were broadcast: make their shapes equal, for example with y[:, None], or return the mean",
        )
        return jnp.mean(values, dtype=wide_dtype(values.dtype))

    return risk


@checked
def over_minibatches(
    f: Callable[..., PyTree],
    data: PyTree,
    *,
    batch_size: PositiveInt | None = None,
    key: Key[Array, ""] | None = None,
) -> Callable[..., PyTree]:
    r"""The mean of a function over a data set, minibatch by minibatch: $∑_b (n_b / n) f(b, …)$.

    ``f(batch, *args)`` returns a mean over the $n_b$ rows of ``batch``, such as a loss, its gradient, or a product of
    its Hessian with a vector. The result is the same function of ``args`` over all n rows, with the memory of one
    minibatch. Its value is the same if ``f`` treats the rows independently. (Batch norm in training does not: a smaller
    last minibatch has other statistics, and batch norm rejects a single row.) For a risk::

        H = over_minibatches(lambda batch, v: hvp(lambda p: risk(p, batch), params, v), data, batch_size=64)

    Args:
        f: ``f(batch, *args)``, or ``f(batch, *args, key=key)`` if a key is given.
        data: a tree of arrays with one row per example on their first axis, as ``(x, y)``; one loop runs over slices
            of ``batch_size`` rows in their order (the last may be smaller). With ``batch_size=None``: a list of
            batches, each such a tree, processed one after the other.
        batch_size: rows of a minibatch.
        key: minibatch b gets ``fold_in(key, b)``, the same in each call: dropout masks and the targets of
            `fisher_operator` differ between minibatches and not between calls.

    Raises:
        ValueError: if the numbers of rows differ or are zero, or ``batch_size`` < 1.
        TypeError: if ``data`` is an iterator, or ``f`` does not return floating-point arrays.

    >>> data = jnp.arange(5.0)
    >>> over_minibatches(lambda batch, v: jnp.mean(batch) * v, data, batch_size=2)(
    ...     jnp.ones(2)
    ... )
    Array([2., 2.], dtype=float32)

    Source: Goodfellow, Bengio & Courville 2016, Deep learning, section 8.1.3; Cevher, Mathematics of Data (empirical
    risk over minibatches).
    """
    if batch_size is None:
        mean_over_list = _over_list(f, data, key)
        return lambda *args: mean_over_list(*args)
    data = jax.tree.map(jnp.asarray, data)
    rows = _rows(data)
    batch_size = min(batch_size, rows)
    full, rest = divmod(rows, batch_size)

    def call(first, size, number, args):
        batch = jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, first, size), data)
        return _weighted(f(batch, *args, **_keyed(key, number)), size / rows)

    def mean(*args):
        if full == 1:
            total = call(0, batch_size, 0, args)
        else:
            one = order_convolutions(lambda number: call(number * batch_size, batch_size, number, args))
            # fori_loop, not vmap: one minibatch is in memory at a time.
            start = jax.tree.map(jnp.zeros_like, jax.eval_shape(one, jnp.int32(0)))
            total = lax.fori_loop(0, full, lambda number, total: jax.tree.map(jnp.add, total, one(number)), start)
        if rest:
            total = jax.tree.map(jnp.add, total, call(full * batch_size, rest, full, args))
        # The sum is in float32 at least; the result has the dtypes that f returns.
        shapes = jax.eval_shape(lambda: f(jax.tree.map(lambda a: a[:batch_size], data), *args, **_keyed(key, 0)))
        return jax.tree.map(lambda y, like: y.astype(like.dtype), total, shapes)

    return mean


def _over_list(f, data, key):
    repair = "pass list(batches), or the arrays themselves and a batch_size"
    once_only = isinstance(data, Iterator)
    require(not once_only, "batches that can be read again for each call", data, repair, error=TypeError)
    expected = "batch_size, or a list of batches as data"
    require(isinstance(data, list), expected, data, "pass batch_size=64, for example", error=TypeError)
    require(data, "at least one batch", "an empty list", "pass a list of batches (x, y)")
    sizes = [_rows(batch) for batch in data]
    # Compiled once per shape of a batch; the loop over the list itself stays in Python, since batches may differ in
    # shape.
    once = jax.jit(lambda batch, own, args: f(batch, *args, **own))

    def mean(*args):
        total = value = None
        for number, batch in enumerate(data):
            value = once(batch, _keyed(key, number), args)
            part = _weighted(value, sizes[number] / sum(sizes))
            total = part if total is None else jax.tree.map(jnp.add, total, part)
        return jax.tree.map(lambda y, like: y.astype(like.dtype), total, value)

    return mean


def _keyed(key, number):
    return {} if key is None else {"key": jax.random.fold_in(key, number)}


def _weighted(value, weight):
    """The value times its weight, in float32 at least."""

    def share(y):
        y = jnp.asarray(y)
        floating = jnp.issubdtype(y.dtype, jnp.floating)
        repair = "return the mean over the rows of the batch"
        require(floating, "f to return floating-point arrays", y, repair, error=TypeError)
        return widen(y) * weight

    return jax.tree.map(share, value)


def _rows(data) -> int:
    rows = {jnp.shape(leaf)[0] if jnp.ndim(leaf) else 0 for leaf in jax.tree.leaves(data)}
    if len(rows) != 1 or 0 in rows:
        got = ", ".join(describe(leaf) for leaf in jax.tree.leaves(data)) or "no array"
        require(False, "arrays with equally many rows, at least one", got, "give their first axes one length")
    return rows.pop()
