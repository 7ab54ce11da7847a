r"""Curvature as operators: functions :math:`v \mapsto Av` on pytrees, for matrices that are never formed.

    x        the point (the params of a net), any pytree of floating-point arrays with n numbers in all
    v        a direction, a pytree like x
    J        the Jacobian of a model at x
    N        the number of examples: of entries of a loss that gives one number per example

An operator is made once at a point and applied to many directions. It is itself a pytree, whose leaves are
what its products need of the point: one that a jitted function made can be passed to another::

    at = jax.jit(lambda params: hessian_operator(f, params))
    product = jax.jit(lambda operator, v: operator(v))
    product(at(params), v)                         # compiled once, for all params and all v

Nets become functions by `as_function`, losses of nets by `empirical_risk`; what is meant over a whole data set is
added up over its minibatches by `over_minibatches`.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import Partial
from jaxtyping import Array, Float, Key, PyTree

from jaxblocks.ad.jaxlib_check import warn_if_jaxlib_is_wrong
from jaxblocks.ad.loops import order_convolutions
from jaxblocks.ad.products import as_point, at_point, linearize_once, scalar_valued
from jaxblocks.checks import describe, describe_any, require_key, require_whole
from jaxblocks.core import Layer, StatefulLayer, as_inputs, as_shapes, side_inputs, stateful
from jaxblocks.precision import wide_dtype, widen

__all__ = [
    "as_function",
    "empirical_fisher_operator",
    "empirical_risk",
    "fisher_operator",
    "gauss_newton_operator",
    "gauss_newton_product",
    "hessian_operator",
    "over_minibatches",
]


# ---- operators at a point -----------------------------------------------------------------


def hessian_operator(f: Callable[[Any], Float[Array, ""]], x: PyTree) -> Callable[[PyTree], PyTree]:
    r"""The Hessian at ``x`` as a function :math:`v \mapsto Hv`: the gradient, linearized once.

    A product costs about two gradients, a fifth less than `jaxblocks.ad.hvp`, which passes through ``f`` anew each
    time; in return the operator holds what a backward pass holds.

    Args:
        f: takes a pytree, returns a scalar.
        x: the point, a pytree of floating-point arrays.

    Returns:
        A function of ``v``, like ``x``; itself a pytree (see the head of this file).

    Raises:
        TypeError: where a leaf of ``x`` is not floating-point, or ``f`` does not return a floating-point array.
        ValueError: where ``f`` is not scalar-valued, or ``v`` is not like ``x``.

    >>> H = hessian_operator(jnp.prod, jnp.array([2.0, 5.0]))
    >>> H(jnp.array([1.0, -2.0])), H(jnp.array([0.0, 1.0]))
    (Array([-2.,  1.], dtype=float32), Array([1., 0.], dtype=float32))

    Source: Pearlmutter 1994, Fast exact multiplication by the Hessian.
    """
    warn_if_jaxlib_is_wrong()
    f = scalar_valued("hessian_operator", f)
    x = as_point("hessian_operator", x)
    return _operator("the operator of hessian_operator", x, linearize_once(jax.grad(f), x))


def gauss_newton_operator(
    model: Callable[[Any], PyTree], loss: Callable[[Any], Float[Array, ""]], x: PyTree
) -> Callable[[PyTree], PyTree]:
    r"""The Gauss-Newton matrix at ``x`` as a function :math:`v \mapsto J^\top H_\ell J v`.

    The Hessian of :math:`\ell(m(x))` has a second part, :math:`\sum_k \partial_k \ell\, \nabla^2 m_k`, which is left
    out: what remains is positive semidefinite where the loss :math:`\ell` is convex in the outputs, and
    equals the Fisher matrix for cross entropy and squared error. A product costs less than one of the Hessian.

    Args:
        model: :math:`m`, takes ``x``, returns outputs: an array, or a pytree of them.
        loss: :math:`\ell`, takes the outputs, returns a scalar; :math:`H_\ell` is its Hessian.
        x: the point, a pytree of floating-point arrays.

    Raises:
        TypeError, ValueError: as `hessian_operator`.

    >>> G = gauss_newton_operator(lambda x: x**2, lambda y: jnp.sum(y**2) / 2, jnp.array([1.0, 3.0]))
    >>> G(jnp.ones(2))  # J = diag(2, 6)
    Array([ 4., 36.], dtype=float32)

    Source: Schraudolph 2002, Fast curvature matrix-vector products for second-order gradient descent.
    """
    where = "gauss_newton_operator"
    return _operator(f"the operator of {where}", x, _gauss_newton(where, "model, loss, x", model, loss, x))


def gauss_newton_product(
    model: Callable[[Any], PyTree], loss: Callable[[Any], Float[Array, ""]], x: PyTree, v: PyTree
) -> PyTree:
    r"""The product :math:`J^\top H_\ell J v` with the Gauss-Newton matrix; `gauss_newton_operator` says what it is.

    >>> gauss_newton_product(jnp.sin, jnp.sum, jnp.zeros(2), jnp.ones(2))  # a linear loss has no curvature
    Array([0., 0.], dtype=float32)

    Source: Schraudolph 2002, Fast curvature matrix-vector products for second-order gradient descent.
    """
    where = "gauss_newton_product"
    return _product(where, x, _gauss_newton(where, "model, loss, x, v", model, loss, x), v)


def _gauss_newton(where, arguments, model, loss, x):
    """The Gauss-Newton matrix at x as a function that does not look at its argument."""
    warn_if_jaxlib_is_wrong()
    _require_function(where, "a model", model)
    loss = scalar_valued(where, loss, "loss", arguments, "outputs")
    x = as_point(where, x)
    outputs, push = jax.linearize(model, x)
    _require_floating_outputs(where, "the model", outputs)
    middle = jax.linearize(jax.grad(loss), outputs)[1]
    return Partial(_sandwich, push, middle, _zeros(x))


def empirical_fisher_operator(losses: Callable[[Any], Float[Array, "..."]], x: PyTree) -> Callable[[PyTree], PyTree]:
    r"""The mean of outer products of gradients :math:`v \mapsto \frac1N \sum_{i=1}^N g_i\, (g_i^\top v)`.

    :math:`g_i` is the gradient of the loss of example i; none of them is formed: all :math:`g_i^\top v` come from one
    forward sweep, their weighted sum from one backward sweep. Being made of the data's own targets, this is
    not the Fisher matrix and may differ much from it away from a perfect fit; `fisher_operator` draws targets.

    Args:
        losses: takes ``x``, returns one number per example (an array of any shape, N numbers).
        x: the point, a pytree of floating-point arrays.

    Raises:
        TypeError: where a leaf of ``x`` is not floating-point, or ``losses`` returns something else than one array.
        ValueError: where it returns a single number, whose mean has lost the examples, or none.

    >>> F = empirical_fisher_operator(lambda x: jnp.array([1.0, 2.0]) * x[0], jnp.ones(2))
    >>> F(jnp.array([1.0, 7.0]))  # (1 + 4) / 2
    Array([2.5, 0. ], dtype=float32)

    Source: Kunstner, Balles & Hennig 2019, Limitations of the empirical Fisher approximation.
    """
    warn_if_jaxlib_is_wrong()
    where = "empirical_fisher_operator"
    _require_function(where, "losses", losses)
    x = as_point(where, x)
    return _mean_of_outer_products(where, "losses", x, *jax.linearize(losses, x))


def fisher_operator(
    model: Callable[[Any], PyTree],
    x: PyTree,
    *,
    key: Key[Array, ""] | None = None,
    likelihood: str | tuple[Callable, Callable] = "categorical",
    samples: int = 1,
) -> Callable[[PyTree], PyTree]:
    r"""The Fisher matrix at ``x`` by Monte Carlo, as a function of :math:`v`, targets drawn from the model itself.

    .. math:: F = \frac1N \sum_{i=1}^N \mathbb E_{y \sim p(\cdot \mid m_i(x))}
        \bigl[ \nabla \log p(y \mid m_i)\, \nabla \log p(y \mid m_i)^\top \bigr]

    with the expectation replaced by the mean over ``samples`` draws of :math:`y` for each example. They
    are drawn once, when the operator is made: all its products are with one and the same symmetric matrix, whose
    expectation over ``key`` is :math:`F`.

    Args:
        model: :math:`m`, takes ``x``, returns outputs of N examples.
        x: the point, a pytree of floating-point arrays.
        key: what the targets are drawn from.
        likelihood: ``"categorical"``: outputs ``(..., classes)`` are logits; ``"gaussian"``: outputs
            ``(..., features)`` are means, of variance 1; or a pair ``(sample, log_likelihood)`` of functions
            ``sample(key, outputs) -> y`` and ``log_likelihood(outputs, y)``, one number per example.
        samples: draws per example.

    Raises:
        TypeError: without a key; where ``x`` or outputs are not floating-point.
        ValueError: for a likelihood that is not known, ``samples`` < 1, or outputs without an axis of classes (or
            features).

    >>> logits = lambda x: jnp.stack([x, -x], -1)  # of two classes, for a pytree x of one array
    >>> F = fisher_operator(logits, jnp.zeros(3), key=jax.random.key(0))
    >>> F(jnp.ones(3))  # (2 p - 1 ± 1)^2 = 1, whatever is drawn; the mean over 3 examples
    Array([0.33333334, 0.33333334, 0.33333334], dtype=float32)

    Source: Martens 2020, New insights and perspectives on the natural gradient method.
    """
    warn_if_jaxlib_is_wrong()
    where = "fisher_operator"
    _require_function(where, "a model", model)
    require_key(where, key)
    samples = require_whole(where, "samples", samples)
    axis = None
    if isinstance(likelihood, str):
        if likelihood not in _LIKELIHOODS:
            raise ValueError(
                f"{where} knows the likelihoods {', '.join(map(repr, _LIKELIHOODS))}, but {likelihood!r} came; pass "
                "your own as a pair of functions (sample, log_likelihood)."
            )
        likelihood, axis = _LIKELIHOODS[likelihood], _LAST_AXES[likelihood]
    if not (isinstance(likelihood, tuple) and len(likelihood) == 2 and all(map(callable, likelihood))):
        raise TypeError(
            f"{where} expects likelihood to be a name or a pair of functions (sample, log_likelihood), but "
            f"{describe_any(likelihood)} came."
        )
    sample, log_likelihood = likelihood
    x = as_point(where, x)
    outputs, push = jax.linearize(model, x)
    _require_floating_outputs(where, "the model", outputs)
    if axis is not None and not getattr(outputs, "shape", ()):
        raise ValueError(
            f"{where} expects the model to return one array of outputs (..., {axis}), one row per example, but "
            f"{describe_any(outputs)} came; leave out the sum (or mean) over them, or pass likelihood as a pair of "
            "functions (sample, log_likelihood)."
        )
    y = lax.stop_gradient(jax.vmap(lambda key: sample(key, outputs))(jax.random.split(key, samples)))
    values, onward = jax.linearize(lambda outputs: jax.vmap(lambda y: log_likelihood(outputs, y))(y), outputs)
    return _mean_of_outer_products(where, "the log-likelihood", x, values, Partial(_both, push, onward))


def _categorical(logits, y):
    return jnp.take_along_axis(jax.nn.log_softmax(widen(logits), axis=-1), y[..., None], axis=-1)[..., 0]


def _gaussian(means, y):
    return -jnp.sum((widen(y) - widen(means)) ** 2, axis=-1) / 2


_LIKELIHOODS = {
    "categorical": (lambda key, logits: jax.random.categorical(key, widen(logits), axis=-1), _categorical),
    "gaussian": (lambda key, means: means + jax.random.normal(key, means.shape, means.dtype), _gaussian),
}
_LAST_AXES = {"categorical": "classes", "gaussian": "features"}


def _operator(where, x, linear):
    return Partial(functools.partial(_product, where, as_shapes(x)), linear)


def _product(where, like, linear, v):
    return linear(at_point(where, like, v)[1])


def _zeros(x):
    """Zeros like ``x``, that hold nothing of it."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), x)


def _sandwich(push, middle, zeros, v):
    (product,) = jax.linear_transpose(push, zeros)(middle(push(v)))
    return product


def _both(first, second, v):
    return second(first(v))


def _mean_of_outer_products(where, what, x, values, push):
    if not hasattr(values, "dtype") or not jnp.issubdtype(values.dtype, jnp.floating):
        raise TypeError(
            f"{where} expects {what} to return one floating-point array, but {describe_any(values)} came; return one "
            "number per example."
        )
    if values.ndim == 0 or values.size == 0:
        raise ValueError(
            f"{where} expects {what} to return one number per example, but {describe(values)} came; leave out the "
            "mean (or the sum) over examples."
        )
    middle = Partial(functools.partial(_divided, values.size))
    return _operator(f"the operator of {where}", x, Partial(_sandwich, push, middle, _zeros(x)))


def _divided(number, y):
    return y / number


def _require_function(where, what, f):
    if not callable(f):
        raise TypeError(f"{where} expects {what}, a function of x, first, but {describe_any(f)} came.")


def _require_floating_outputs(where, what, outputs):
    for leaf in jax.tree.leaves(outputs):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise TypeError(f"{where} expects {what} to return floating-point outputs, but {describe(leaf)} came.")


# ---- nets and data ------------------------------------------------------------------------


def as_function(net: Layer | StatefulLayer | Callable, state: PyTree = (), **side: Any) -> Callable[..., PyTree]:
    """A net as a function ``model(params, x, **side) -> outputs``: its state bound, its next state left out.

    In evaluation (``train=False``, the default) batch norm uses its running statistics and dropout does
    nothing. With ``train=True`` batch norm uses the statistics of the batch, and ``key`` fixes what is
    dropped: a function that is called twice drops the same, so that its derivatives are those of one function.

    Args:
        net: any pair, or a function of arrays.
        state: of the net; ``()`` for one without state.
        side: side inputs: ``train``, ``key``, ``mask``, ... The model takes them too, and later ones win.
            ``train`` and ``key`` are passed if the net reads them.

    ``x`` is one input, or a tuple of several.

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


def empirical_risk(
    net: Layer | StatefulLayer | Callable, loss: Callable, state: PyTree = (), **side: Any
) -> Callable[..., Float[Array, ""]]:
    r"""The mean loss of a net over a batch, as a function ``risk(params, batch, **side)`` with ``batch = (x, y)``.

    .. math:: R(\theta) = \frac1N \sum_{i=1}^N \ell(f_\theta(x_i), y_i)

    What `jaxblocks.training.train_step` descends, here as something to differentiate in ``params``.

    Args:
        net, state, side: as in `as_function`; evaluation by default.
        loss: :math:`\ell`, ``loss(outputs, y)``, one number per example, or per entry of more leading axes
            (such as positions), or one in all. The mean is taken, in float32 at least.

    Raises:
        ValueError: while it is traced, for a loss that has not the leading axes of the outputs or of ``y``.

    >>> risk = empirical_risk(lambda x: x, lambda outputs, y: (outputs - y) ** 2)
    >>> risk((), (jnp.zeros(2), jnp.array([1.0, 3.0])))
    Array(5., dtype=float32)

    Source: Krapac & Segvic, Deep feed-forward models.
    """
    model = as_function(net, state, **side)
    if not callable(loss):
        raise TypeError(f"empirical_risk expects a function loss(outputs, y), but {describe_any(loss)} came.")

    def risk(params, batch, /, **later):
        x, y = batch
        outputs = model(params, x, **later)
        values = jnp.asarray(loss(outputs, y))
        shape = values.shape
        while shape and shape[-1] == 1:
            shape = shape[:-1]
        if shape and not any(jnp.shape(leaf)[: len(shape)] == shape for leaf in jax.tree.leaves((outputs, y))):
            raise ValueError(
                "empirical_risk expects the loss to have the leading axes of the outputs or of y (one number per "
                f"example), or to be one number, but it is {describe(values)}: arrays of unequal shape were broadcast; "
                "make their shapes equal, for example with y[:, None], or return the mean, with .mean()."
            )
        return jnp.mean(values, dtype=wide_dtype(values.dtype))

    return risk


def over_minibatches(
    f: Callable[..., PyTree], data: PyTree, batch_size: int | None = None, *, key: Key[Array, ""] | None = None
) -> Callable[..., PyTree]:
    r"""The mean of a function over a data set, minibatch by minibatch: :math:`\sum_b \frac{n_b}{n} f(b, \dots)`.

    ``f(batch, *args)`` returns something that is a mean over the :math:`n_b` rows of ``batch``: a loss, its gradient,
    its product with a vector. What comes back is the same function of ``args`` over all n rows, in the
    memory of one minibatch, and, where ``f`` treats rows apart from each other, with the same value (batch norm in
    training does not: with a remainder the last minibatch is smaller, so its statistics are others, and a remainder of
    one row is refused by it). So for a risk ::

        H = over_minibatches(lambda batch, v: hvp(lambda p: risk(p, batch), params, v), data, 64)

    Args:
        f: ``f(batch, *args)``, or ``f(batch, *args, key=key)`` where a key is given.
        data: a tree of arrays with one row per example on their first axis, as ``(x, y)``; cut into
            ``batch_size`` rows in their order (the last minibatch may be smaller) inside one loop. With
            ``batch_size=None``: a list of batches, each such a tree, gone through one after the other.
        batch_size: rows of a minibatch.
        key: minibatch b gets ``fold_in(key, b)``, the same at each call: dropout that differs between minibatches
            and not between products, targets of `fisher_operator`.

    Raises:
        ValueError: for arrays that differ in rows, no rows, ``batch_size`` < 1.
        TypeError: where ``data`` can be read only once, or ``f`` does not return floating-point arrays.

    >>> data = jnp.arange(5.0)
    >>> over_minibatches(lambda batch, v: jnp.mean(batch) * v, data, batch_size=2)(jnp.ones(2))
    Array([2., 2.], dtype=float32)

    Source: Cevher, Mathematics of Data (the mean over a data set is that over its minibatches).
    """
    where = "over_minibatches"
    warn_if_jaxlib_is_wrong()
    _require_function(where, "f(batch, ...)", f)
    if key is not None:
        require_key(where, key)
    if batch_size is None:
        return _over_list(where, f, data, key)
    batch_size = require_whole(where, "batch_size", batch_size)
    data = jax.tree.map(jnp.asarray, data)
    rows = _rows(where, data)
    batch_size = min(batch_size, rows)
    full, rest = divmod(rows, batch_size)

    def call(first, size, number, args):
        batch = jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, first, size), data)
        own = {} if key is None else {"key": jax.random.fold_in(key, number)}
        return _weighted(where, f(batch, *args, **own), size / rows)

    def mean(*args):
        if full == 1:
            total = call(0, batch_size, 0, args)
        else:
            one = order_convolutions(lambda number: call(number * batch_size, batch_size, number, args))
            start = jax.tree.map(lambda y: jnp.zeros(y.shape, y.dtype), jax.eval_shape(one, jnp.int32(0)))
            total = lax.fori_loop(0, full, lambda number, total: jax.tree.map(jnp.add, total, one(number)), start)
        if rest:
            total = jax.tree.map(jnp.add, total, call(full * batch_size, rest, full, args))
        shapes = jax.eval_shape(lambda: f(jax.tree.map(lambda a: a[:batch_size], data), *args, **_keyed(key)))
        return jax.tree.map(lambda y, like: y.astype(like.dtype), total, shapes)

    return mean


def _over_list(where, f, data, key):
    if isinstance(data, Iterator):
        raise TypeError(
            f"{where} reads its batches once for each product, but {describe_any(data)} came, which is empty after the "
            "first; pass list(batches), or the arrays themselves and a batch_size."
        )
    if not isinstance(data, list):
        raise TypeError(
            f"{where} expects batch_size, or a list of batches, but no batch_size and {describe_any(data)} came; pass "
            "batch_size=64, for example."
        )
    sizes = [_rows(where, batch) for batch in data]
    if not sizes:
        raise ValueError(f"{where} expects at least one batch, but an empty list came.")
    once = jax.jit(lambda batch, own, args: f(batch, *args, **own))

    def mean(*args):
        total = None
        for number, batch in enumerate(data):
            own = {} if key is None else {"key": jax.random.fold_in(key, number)}
            value = once(batch, own, args)
            part = _weighted(where, value, sizes[number] / sum(sizes))
            total = part if total is None else jax.tree.map(jnp.add, total, part)
        return jax.tree.map(lambda y, like: y.astype(like.dtype), total, value)

    return mean


def _keyed(key):
    return {} if key is None else {"key": jax.random.fold_in(key, 0)}


def _weighted(where, value, weight):
    """Its share of the mean, in float32 at least."""

    def share(y):
        y = jnp.asarray(y)
        if not jnp.issubdtype(y.dtype, jnp.floating):
            raise TypeError(
                f"{where} expects f to return means, floating-point arrays, but {describe(y)} came; take the mean "
                "over the rows of the batch."
            )
        return widen(y) * weight

    return jax.tree.map(share, value)


def _rows(where, data) -> int:
    rows = {jnp.shape(leaf)[0] if jnp.ndim(leaf) else None for leaf in jax.tree.leaves(data)}
    if len(rows) != 1 or None in rows or 0 in rows:
        came = ", ".join(describe(leaf) for leaf in jax.tree.leaves(data)) or "no array"
        raise ValueError(f"{where} expects arrays with equally many rows, at least one, but {came} came.")
    return rows.pop()
