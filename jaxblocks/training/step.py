"""One training step for any pair and any optax optimizer, and the evaluation of what was trained.

A step is a pure function ``(train, x, y) -> (train, loss)``: forward pass, backward pass,
optimizer. `jaxblocks.training.fit` is a loop around it and hides nothing of it.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float

from jaxblocks.checks import describe, describe_any, require_key, require_whole
from jaxblocks.core import Layer, StatefulLayer, as_inputs, child_key, declared_by, side_inputs, stateful
from jaxblocks.training.data import count_rows, take_rows

__all__ = ["TrainState", "evaluate", "init_train_state", "train_step"]


class TrainState(NamedTuple):
    """All that changes while a net is trained; a pytree, so ``jit``, checkpoints and ``vmap`` take it as it is.

    `init_train_state` makes the first one, each step the next.

    Args:
        params, state: of the net; ``state`` is ``()`` for a net without state.
        opt_state: of the optimizer.
        key: the same for the whole run; step ``t`` draws from ``fold_in(key, t)``, so that a
            run that is restarted at a step repeats it. It is kept as ``jax.random.key_data``,
            since a typed key takes the slow way through ``jit`` (a tiny step 1.27 of itself
            without a key, against 1.07; `benchmarks/RESULTS.md`); a key of another generator than
            threefry2x32 and rbg, which its data would not tell, is kept typed.
        step: how many steps were made, int32.
    """

    params: Any
    state: Any
    opt_state: Any
    key: Any
    step: Any


def init_train_state(
    net: Layer | StatefulLayer | Callable, optimizer: optax.GradientTransformation, key, *inputs, **side
) -> TrainState:
    """The training state at step 0: params (and state) from the net's ``init``, the optimizer's state, a key.

    Params are drawn from ``child_key(key, "init")`` and the key of training is ``child_key(key, "training")``
    (`jaxblocks.core.fold`), so one key may go to ``init_train_state``, ``minibatches`` and ``train_val_test_split``.

    Args:
        inputs: of the net, one batch of them; arrays or ``jax.ShapeDtypeStruct``s, only shapes and dtypes are read.
        side: side inputs that the net's ``init`` asks for; ``train`` is passed by itself.

    Raises:
        TypeError: where ``key`` is no key, or ``optimizer`` none.

    >>> from jaxblocks.layers.dense import Dense
    >>> train = init_train_state(Dense(3), optax.adam(1e-3), jax.random.key(0), jnp.zeros((8, 2)))
    >>> train.params["kernel"].shape, train.state, int(train.step)
    ((2, 3), (), 0)
    """
    require_key("init_train_state", key)
    require_optimizer("init_train_state", optimizer)
    takes_train = "train" in declared_by(net.init) if isinstance(net, (Layer, StatefulLayer)) else False
    side = {"train": True, **side} if takes_train else side
    net = stateful(net)
    inputs = jax.eval_shape(lambda inputs: inputs, inputs)  # shapes, with the dtypes that a jitted step will see

    @jax.jit  # one compilation for all params, and no buffer twice, which could not be donated
    def begin(key):
        params, state = net.init(child_key(key, "init"), *inputs, **side)
        trees = _strong((params, state, optimizer.init(params)))
        return TrainState(*trees, _untyped(child_key(key, "training")), jnp.zeros((), jnp.int32))

    return begin(key)


def train_step(
    net: Layer | StatefulLayer | Callable,
    loss: Callable,
    optimizer: optax.GradientTransformation,
    *,
    penalty: Callable | None = None,
    augment: Callable | None = None,
    compute_dtype: Any = None,
) -> Callable:
    r"""A jitted ``step(train, x, y, **side) -> (train, value)`` that moves the params against a gradient.

    With the batch :math:`(x_i, y_i)_{i \le B}` the objective is the regularized empirical risk

    .. math:: J(\theta) = \frac1B \sum_{i=1}^B \ell(f_\theta(x_i), y_i) + \Omega(\theta)

    and ``value`` is :math:`J` before the step. The buffers of ``train`` are donated: a training state
    serves one step, and the returned one is used from then on. Where an old one is used, JAX says that an
    array "has been deleted" or a buffer "deleted or donated"; write ``train, value = step(train, x, y)``, and keep
    a state that you need later with ``jax.tree.map(jnp.copy, train)`` before the step. ``step.__wrapped__``
    is the same function without ``jit`` and donation.

    Args:
        net: any pair. State is threaded; ``train=True`` and ``key`` are passed if the net declares
            them, other side inputs come from ``**side`` of the step.
        loss: :math:`\ell`, ``loss(outputs, y)``, one number per example, or per entry of more leading
            axes (such as positions), or one in all. The mean is taken, in float32 at least.
        optimizer: any ``optax`` transformation, with those that ask for the value or a line search.
        penalty: :math:`\Omega`, ``penalty(params)``, a scalar.
        augment: ``augment(key, x) -> x``, applied to each batch with a key of its own.
        compute_dtype: mixed precision: ``jnp.bfloat16`` computes the net with params and inputs rounded to it, and
            half the memory for what the backward pass keeps. Params, state, gradients, optimizer, loss and penalty
            stay in float32; integer inputs (tokens), ``y`` and side inputs (times, masks) are left as they are.

    Gradient accumulation, clipping and learning-rate schedules are optax's. Four batches a step, their mean gradient
    clipped to norm 1, and a rate that warms up over 100 steps and decays over 900 (steps of Adam, not batches)::

        rate = optax.warmup_cosine_decay_schedule(0.0, 1e-3, warmup_steps=100, decay_steps=1000)
        optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))
        optimizer = optax.MultiSteps(optimizer, every_k_schedule=4).gradient_transformation()

    ``x`` is one input, or a tuple of several.

    Raises:
        TypeError: where ``loss`` is no function, or ``optimizer`` no optimizer.
        ValueError: for a ``compute_dtype`` that is none of bfloat16, float32, float64; while the step is traced, for
            a loss whose shape is neither that of leading axes of the outputs or of ``y`` nor ``()``: what a ``y`` of
            another shape than the outputs leads to.

    >>> from jaxblocks.layers.dense import Dense
    >>> optimizer = optax.sgd(0.1)
    >>> train = init_train_state(Dense(1), optimizer, jax.random.key(0), jnp.zeros((4, 1)))
    >>> step = train_step(Dense(1), lambda outputs, y: (outputs - y) ** 2, optimizer)
    >>> x = jnp.arange(4.0)[:, None]
    >>> for _ in range(100):
    ...     train, value = step(train, x, 2 * x + 1)
    >>> print(f"{train.params['kernel'].item():.2f} {train.params['bias'].item():.2f}")
    2.00 1.00

    Source: Krapac & Segvic, Deep feed-forward models (objective); Cevher, Mathematics of Data
    (gradient of the mean).
    """
    require_loss("train_step", loss)
    require_optimizer("train_step", optimizer)
    objective_of = training_objective(net, loss, penalty, augment, require_compute_dtype("train_step", compute_dtype))
    update = optax.with_extra_args_support(optimizer).update

    def step(train, x, y, /, **side):
        if not isinstance(train, TrainState):
            raise TypeError(
                f"A training step expects the state that init_train_state made, but {describe_any(train)} came; "
                "call step(train, x, y)."
            )

        objective = objective_of(train, x, y, side)
        (value, state), grad = jax.value_and_grad(objective, has_aux=True)(train.params)
        updates, opt_state = update(
            grad, train.opt_state, train.params, value=value, grad=grad, value_fn=lambda params: objective(params)[0]
        )
        params = optax.apply_updates(train.params, updates)
        return TrainState(*_strong((params, state, opt_state)), train.key, train.step + 1), value

    return jax.jit(step, donate_argnums=0)


def evaluate(
    net: Layer | StatefulLayer | Callable,
    params,
    state,
    data: tuple,
    metrics: Mapping[str, Callable],
    batch_size: int = 256,
    compute_dtype: Any = None,
) -> dict[str, float]:
    r"""Means of metrics over all rows of ``data = (x, y)``, the net in evaluation (``train=False``).

    Every row counts once: a last batch that is smaller enters with its own number of rows (and is
    compiled once more).

    Args:
        state: of the net; ``()`` for a net without state.
        metrics: named functions ``(outputs, y)``, one number per example, or a mean over the batch; their
            shapes are checked as that of the loss is in `train_step`.
            Pass the same function objects each time: new ones are compiled again.
        compute_dtype: as in `train_step`; metrics get outputs in float32.

    >>> halve = lambda x: x / 2
    >>> x = jnp.array([1.0, 2.0, 6.0])
    >>> evaluate(halve, (), (), (x, x), {"error": lambda outputs, y: jnp.abs(outputs - y)}, batch_size=2)
    {'error': 1.5}

    Source: Diehl 2023, section 1.3 (test loss).
    """
    rows = count_rows("evaluate", data)
    batch_size = require_whole("evaluate", "batch_size", batch_size)
    compute_dtype = require_compute_dtype("evaluate", compute_dtype)
    batches = [slice(first, min(first + batch_size, rows)) for first in range(0, rows, batch_size)]
    named = tuple(metrics.items())
    means = [_batch_means(net, named, compute_dtype, params, state, *take_rows(data, batch)) for batch in batches]
    weights = [(batch.stop - batch.start) / rows for batch in batches]
    means = jax.device_get(means)
    for batch, mean in zip(batches, means, strict=True):
        if any(math.isnan(float(value)) for value in mean.values()):
            # Once more outside of jit, so that a layer that knows what is wrong with the values can say it.
            x = jax.tree.map(jnp.asarray, take_rows(data, batch)[0])
            evaluation_forward(net, params, state, x, compute_dtype)
            break
    return {name: math.fsum(w * float(m[name]) for w, m in zip(weights, means, strict=True)) for name in metrics}


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _batch_means(net, metrics, compute_dtype, params, state, x, y):
    outputs = evaluation_forward(net, params, state, x, compute_dtype)
    return {name: _mean("evaluate", f"the metric {name!r}", metric(outputs, y), outputs, y) for name, metric in metrics}


def _mean(where: str, what: str, value, outputs, y) -> Float[Array, ""]:
    """The mean of all entries, in float32, or float64 for float64; raises where operands were broadcast in silence.

    One number per example, or per entry of more axes, has the leading axes of the outputs or of ``y``; outputs
    ``(64, 1)`` minus ``y`` ``(64,)``, which is ``(64, 64)``, has not.
    """
    value = jnp.asarray(value)
    shape = value.shape
    while shape and shape[-1] == 1:
        shape = shape[:-1]
    if shape and not any(jnp.shape(leaf)[: len(shape)] == shape for leaf in jax.tree.leaves((outputs, y))):
        came = [", ".join(map(describe, jax.tree.leaves(tree))) for tree in (outputs, y)]
        raise ValueError(
            f"{where} expects {what} to have the leading axes of the outputs or of y (one number per example), or to "
            f"be one number, but {what} is {describe(value)}, where the outputs are {came[0]} and y is {came[1]}. "
            "Arrays of unequal shape were broadcast; make their shapes equal, for example with y[:, None]. If this "
            "shape is meant, return its mean, with .mean()."
        )
    return jnp.mean(value, dtype=jnp.float64 if value.dtype == jnp.float64 else jnp.float32)


# ---- shared with fit -----------------------------------------------------------------------


def training_forward(net, augment=None, compute_dtype=None) -> Callable:
    """``(train, x, side) -> (outputs, state)`` as a training step computes it."""
    reads = side_inputs(net)
    apply = stateful(net).apply

    def forward(train, x, side):
        if own := {"train", "key"} & side.keys():
            raise TypeError(f"A training step passes {' and '.join(sorted(own))} by itself; leave it out of the call.")
        key = jax.random.fold_in(_typed(train.key), train.step)
        x = x if augment is None else augment(child_key(key, "augment"), x)
        own = {"train": True, "key": child_key(key, "net")}
        side = {**side, **{name: value for name, value in own.items() if name in reads}}
        return _apply_in(compute_dtype, apply, train.params, train.state, x, side)

    return forward


def training_objective(net, loss, penalty=None, augment=None, compute_dtype=None) -> Callable:
    """``(train, x, y, side) -> objective``, and ``objective(params) -> (value, state)`` as a step differentiates it."""
    forward = training_forward(net, augment, compute_dtype)

    def objective_of(train, x, y, side):
        def objective(params):
            outputs, state = forward(train._replace(params=params), x, side)
            value = _mean("train_step", "the loss", loss(outputs, y), outputs, y)
            return (value if penalty is None else value + penalty(params).astype(value.dtype)), state

        return objective

    return objective_of


def _apply_in(dtype, apply, params, state, x, side):
    """A net with params and inputs rounded to a dtype; its outputs in float32 at least, its state as it was."""
    if dtype is None:
        return apply(params, state, *as_inputs(x), **side)
    outputs, after = apply(_cast(params, dtype), state, *as_inputs(_cast(x, dtype)), **side)
    back = lambda new, old: new.astype(old.dtype) if _is_floating(new) and _is_floating(old) else new
    return _cast(outputs, jnp.promote_types(dtype, jnp.float32)), jax.tree.map(back, after, state)


def _cast(tree, dtype):
    return jax.tree.map(lambda x: jnp.asarray(x).astype(dtype) if _is_floating(x) else x, tree)


def _is_floating(x) -> bool:
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)


def require_compute_dtype(where: str, dtype):
    """``compute_dtype`` as a dtype, or ``None``."""
    if dtype is None:
        return None
    try:
        found = jnp.dtype(dtype)
    except TypeError:
        found = dtype
    if found in (jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float32), jnp.dtype(jnp.float64)):
        return found
    why = " (small gradients vanish in it unless the loss is scaled)" if found == jnp.float16 else ""
    raise ValueError(f"{where} expects compute_dtype to be jnp.bfloat16, jnp.float32 or None, but {found} came{why}.")


def _strong(tree):
    """The same tree without weak types, which some optimizers leave and which would compile the next step anew."""
    return jax.tree.map(lambda x: lax.convert_element_type(x, x.dtype), tree)


_GENERATORS = {2: "threefry2x32", 4: "rbg"}  # by the number of words of a key's data


def _untyped(key):
    """The data of a key of these generators; a key of another one as it is."""
    return jax.random.key_data(key) if jax.random.key_impl(key) in _GENERATORS.values() else key


def _typed(key):
    """The key again."""
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return key
    return jax.random.wrap_key_data(key, impl=_GENERATORS[key.shape[-1]])


def evaluation_forward(net, params, state, x, compute_dtype=None):
    """The outputs of the net with ``train=False`` and its state left as it is."""
    side = {"train": False} if "train" in side_inputs(net) else {}
    return _apply_in(compute_dtype, stateful(net).apply, params, state, x, side)[0]


def require_loss(where: str, loss) -> None:
    """Raise a ``TypeError`` unless ``loss`` is a function (and not an optimizer in its place)."""
    if _is_optimizer(loss):
        raise TypeError(f"{where} expects a loss, but an optimizer came; the order is net, loss, optimizer.")
    if not callable(loss):
        raise TypeError(f"{where} expects a function loss(outputs, y), but {describe_any(loss)} came; pass one.")


def require_optimizer(where: str, optimizer) -> None:
    """Raise a ``TypeError`` unless ``optimizer`` is one."""
    if _is_optimizer(optimizer):
        return
    name = getattr(optimizer, "__name__", "")
    if callable(optimizer) and (getattr(optimizer, "__module__", None) or "").startswith("optax."):
        raise TypeError(f"{where} expects an optimizer, but optax.{name} itself came; call it: optax.{name}(...).")
    came = f"the function {name}" if callable(optimizer) and name else describe_any(optimizer)
    raise TypeError(f"{where} expects an optimizer of optax, but {came} came; pass for instance optax.adam(1e-3).")


def _is_optimizer(x) -> bool:
    return callable(getattr(x, "init", None)) and callable(getattr(x, "update", None))
