"""One training step for any pair and any optax optimizer: forward pass, backward pass, optimizer."""

import functools
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array

from jaxblocks.ad.programs.arguments import floating_params
from jaxblocks.backend.platforms import platform
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.checks.foreign_arrays import reject_foreign
from jaxblocks.core.lifting import stateful
from jaxblocks.core.pairs import LayerLike
from jaxblocks.sharding import with_automatic_axes
from jaxblocks.training.data.rows import check_numbers
from jaxblocks.training.optimizers.transformations import check_optimizer
from jaxblocks.training.step.accumulation import accumulated_objective, check_loss_value
from jaxblocks.training.step.objective import (
    as_compute_dtype,
    augmented,
    check_functions,
    check_logits,
    check_weights,
    steepest_ascent,
    training_objective,
)
from jaxblocks.training.step.state import (
    TrainState,
    check_not_donated,
    check_opt_state,
    without_weak_types,
)

__all__ = ["TrainStep", "train_step"]


@runtime_checkable
class TrainStep(Protocol):
    """The type of the function that `train_step` returns, ``step(ts, x, y, **side) -> (ts, value)``.

    Attributes:
        __wrapped__: the same function without ``jit`` and donation.
        lower, trace: as those of a function under ``jax.jit``.

    >>> from jaxblocks.layers.dense import Dense
    >>> squared_error = lambda outputs, y: (outputs - y) ** 2
    >>> isinstance(train_step(Dense(1), squared_error, optax.sgd(0.1)), TrainStep)
    True
    """

    __wrapped__: Callable[..., tuple[TrainState, Array]]
    lower: Callable[..., jax.stages.Lowered]
    trace: Callable[..., jax.stages.Traced]

    def __call__(self, ts: TrainState, x: Any, y: Any, /, **side: Any) -> tuple[TrainState, Array]:
        """The next training state, and the value of the objective before the step."""
        ...


@checked
def train_step(
    net: LayerLike,
    loss: Callable,
    optimizer: optax.GradientTransformation,
    *,
    penalty: Callable | None = None,
    augment: Callable | None = None,
    compute_dtype: DTypeLike | None = None,
    accumulate: PositiveInt = 1,
    donate: bool | None = None,
) -> TrainStep:
    r"""A jitted ``step(ts, x, y, **side) -> (ts, value)`` that updates the params by the gradient of the objective.

    With the batch $(x_i, y_i)_{i ≤ B}$ the objective is the regularized empirical risk

    .. math::

        J(θ) = (1/B) ∑_{i=1}^B ℓ(f_θ(x_i), y_i) + Ω(θ)

    and ``value`` is $J$ before the step. On GPU and TPU the buffers of ``ts`` are donated: use each training
    state for one step and continue with the one that the step returns, ``ts, value = step(ts, x, y)``; copy a state for
    later use with ``jax.tree.map(jnp.copy, ts)`` before the step, or pass ``donate=False``. Inside of other
    transformations (``scan``, ``vmap``, ``jit``) nothing is donated; ``step.__wrapped__`` is the same function without
    ``jit`` and donation.

    Args:
        net: any pair. Its state is carried from step to step; ``train=True`` and ``key`` are passed if the net
            declares them, other side inputs are those in ``**side`` of the step.
        loss: $ℓ$, ``loss(outputs, y)``, one number per example, or per entry of more leading
            axes (such as positions), or a single number. The objective is the mean, in float32 at least. With weights
            of examples $w_i$ the loss returns the pair ``(values, weights)``, and the mean of a batch is
            $∑_i w_i ℓ_i / ∑_i w_i$ (`weighted_mean`; 0 for a batch whose weights are all 0).
        optimizer: any ``optax`` transformation, including those that need the value, a line search or the
            batch (`kfac`).
        penalty: $Ω$, ``penalty(params)``, a scalar.
        augment: ``augment(key, x) -> x``, applied to each batch with a different key, or
            ``augment(key, x, y) -> (x, y)`` where targets change too: ``augment=mixup`` on one-hot ``y``.
        compute_dtype: mixed precision: with ``jnp.bfloat16``, params and inputs of the net are rounded to it, and the
            residuals of the backward pass take half the memory. Params, state, gradients, optimizer, loss and penalty
            stay in float32; integer inputs (tokens), ``y`` and side inputs (times, masks) are not converted.
        accumulate: the number of parts of the batch that are computed one after the other, with the memory of one
            part. The gradient is that of the whole batch, weights included: sums of losses and of weights are divided
            at the end. Part i has the examples i, n + i, 2 n + i, ... of each array of ``x``, ``y`` and the side inputs
            whose first axis is the batch, that of the first array of ``x``; other arrays are passed whole to each part.
            State is carried from part to part. Batch norm normalizes each part by its own statistics and has n updates;
            random layers draw anew for each part. The loss must return one number per example, since a single number
            says nothing of the weights of the parts, and weights must not depend on the params.
        donate: whether the step writes the new state into the buffers of ``ts``. ``False`` keeps ``ts`` usable after
            the step, and takes the memory of a second state. ``None`` is ``False`` on CPU, where donation saves no time
            (`fit` donates the states that it makes on all platforms), and otherwise ``True``.

    Weights come from the labels or from the data; these losses exclude padding, balance classes, and read a column::

        lambda logits, y: (jb.softmax_cross_entropy(logits, y, where=y >= 0), y >= 0)
        lambda logits, y: (jb.softmax_cross_entropy(logits, y), class_weights[y])
        lambda outputs, y: (jb.mse(outputs, y["target"]), y["weight"])

    For clipping and learning-rate schedules use optax. This step takes a batch in four parts, clips its gradient to
    norm 1, and has a learning rate that increases over 100 steps and decays over 900::

        rate = optax.warmup_cosine_decay_schedule(0.0, 1e-3, warmup_steps=100, decay_steps=1000)
        optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))
        step = train_step(net, loss, optimizer, accumulate=4)

    Where the batches come one by one, ``optax.MultiSteps`` averages the gradients of several calls. It knows no
    weights (the mean of means is not the mean), so a loss with weights is rejected with it.

    Hyperparameters may be traced, so ``jax.vmap`` trains one net for each value of a sweep::

        def train(learning_rate):
            optimizer = optax.adam(learning_rate)
            ts = init_train_state(key, net, optimizer, x[:64])
            step = train_step(net, loss, optimizer)
            return jax.lax.scan(lambda ts, batch: step(ts, *batch), ts, batches)

        ts, values = jax.jit(jax.vmap(train))(jnp.array([1e-4, 1e-3, 1e-2]))

    Params may be complex. A step follows the gradient with respect to their real and imaginary parts, the conjugate of
    what ``jax.grad`` returns. Adam then divides by the root mean square of moduli; to treat the parts as separate
    numbers write ``optax.contrib.split_real_and_imaginary(optax.adam(1e-3))``.

    A step runs the net with ``train=True``; a layer in ``Frozen`` stays in evaluation mode, and its params have no
    gradient.

    ``x`` is one input, or a tuple of several.

    On several devices (`jaxblocks.sharding`) the next training state is sharded as ``ts``, and the batch as the caller
    shards it, for instance by ``minibatches(..., sharding=batch_sharding(mesh))``. Layers keep the activations sharded
    by batch along the first axis of the mesh, so that params in parts are gathered layer by layer. Statistics of a
    batch, such as those of `BatchNorm`, are those of the whole batch over all devices. Inside of ``jax.shard_map`` the
    value and the statistics are those of one device, and JAX sums the gradients of shared params over the n devices:
    ``optax.chain(optax.scale(1 / n), optimizer)`` follows their mean.

    Raises:
        TypeError: unless ``loss`` is a function ``loss(outputs, y)`` and ``optimizer`` an optimizer; while the step is
            traced, for a loss or a penalty that is not a real number.
        ValueError: for `accuracy` as the loss, whose gradient is 0; for a net that ends in the ``softmax`` or
            ``sigmoid`` that the loss applies; for a ``compute_dtype`` other than bfloat16, float32 and float64; while
            the step is traced, for a loss whose shape is neither that of leading axes of the outputs or of ``y`` nor
            ``()``, which results from a ``y`` of another shape than the outputs, and for a ``ts`` of another optimizer,
            a batch without rows, a batch that ``accumulate`` does not divide, a loss of a single number with
            ``accumulate`` > 1, and a loss with weights under ``optax.MultiSteps``; for a ``ts`` that an earlier step
            has donated.

    >>> from jaxblocks.layers.dense import Dense
    >>> from jaxblocks.training import init_train_state
    >>> optimizer = optax.sgd(0.1)
    >>> ts = init_train_state(jax.random.key(0), Dense(1), optimizer, jnp.zeros((4, 1)))
    >>> step = train_step(Dense(1), lambda outputs, y: (outputs - y) ** 2, optimizer)
    >>> x = jnp.arange(4.0)[:, None]
    >>> for _ in range(100):
    ...     ts, value = step(ts, x, 2 * x + 1)
    >>> print(f"{ts.params['kernel'].item():.2f} {ts.params['bias'].item():.2f}")
    2.00 1.00

    Source: Bottou, Curtis & Nocedal 2018, Optimization methods for large-scale machine learning (arXiv:1606.04838);
    Krapac & Segvic, Deep feed-forward models (objective); Cevher, Mathematics of Data (gradient of the mean).
    """
    stateful(net)  # which rejects values that are no layer
    check_optimizer(optimizer)
    check_functions(loss, penalty, augment)
    check_logits(net, loss)
    compute_dtype = as_compute_dtype(compute_dtype)
    update = optax.with_extra_args_support(optimizer).update

    def step(ts, x, y, /, **side):
        _check_state(ts)
        check_opt_state(optimizer, ts)
        # A complex leaf has a gradient, too.
        rest = jax.tree.map(lambda p: None if jnp.issubdtype(jnp.result_type(p), jnp.inexact) else p, ts.params)
        if jax.tree.leaves(rest):
            floating_params(rest)
        arrays = jax.tree.leaves(x)
        empty = bool(arrays) and all(jnp.shape(one)[:1] == (0,) for one in arrays)  # a mean of no rows is NaN
        require(not empty, "at least one row in x", ", ".join(map(describe, arrays)), "omit empty batches")
        if any(isinstance(one, jax.Array) and _has_explicit_axes(one) for one in arrays):
            repair = "make it with init_train_state(..., mesh=mesh), and shard the batch by batch_sharding(mesh)"
            require(_has_explicit_axes(ts.step), "a ts on the mesh of the batch", ts, repair)
        x, y = augmented(augment, ts, x, y)  # once, so that a line search evaluates the same ones
        check = lambda own: check_loss_value(own, ts.opt_state, accumulate)
        if accumulate == 1:
            objective = training_objective(net, loss, penalty, compute_dtype)(ts, x, y, side)
            checked = lambda params: objective(params, lambda own: (check(own), check_weights(own, params)))
            (value, state), grad = jax.value_and_grad(checked, has_aux=True)(ts.params)
            value_of = lambda params: objective(params)[0]
        else:
            options: dict = dict(compute_dtype=compute_dtype, check=check)
            run, value_of = accumulated_objective(net, loss, penalty, accumulate, **options)(ts, x, y, side)
            value, state, grad = run(ts.params)
        value_fn = lambda params, batch=None: value_of(params)  # a line search passes the batch on to it
        # As line searches of optax expect them, ``grad`` is that of JAX and the first argument its conjugate.
        updates, opt_state = update(
            steepest_ascent(grad), ts.opt_state, ts.params, value=value, grad=grad, value_fn=value_fn, batch=(x, y)
        )
        params = optax.apply_updates(ts.params, updates)
        params, state, opt_state = without_weak_types((params, state, opt_state))
        return TrainState(params, state, opt_state, ts.key, ts.step + 1), value

    without_donation = jax.jit(step)

    donated, program = _programs(step, donate)

    @functools.wraps(step)
    def step_of_own_state(*arguments, **side):
        given = len(arguments)
        if given != 3:
            is_batch = given == 2 and isinstance(arguments[1], tuple | list)
            repair = "put several inputs in a tuple x, and pass side inputs by name"
            repair = "write step(ts, *batch), or step(ts, x, None) without targets" if is_batch else repair
            require(False, "a call step(ts, x, y)", f"{given} arguments", repair, error=TypeError)
        ts, x, y = arguments
        # Otherwise one program serves all calls; to search a small state takes a tenth of its training step.
        if donated() or _is_on_mesh(ts):
            if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((ts, x, y, side))):
                return without_donation(ts, x, y, **side)  # the buffers belong to the caller of the transformation
        count: Any = getattr(ts, "step", None)  # `isinstance(count, jax.Array)` takes longer
        if hasattr(count, "is_deleted") and not isinstance(count, Tracer) and count.is_deleted():
            check_not_donated(ts)  # JAX's error would not say why
        if _is_on_mesh(ts):
            x, y, side = with_automatic_axes((x, y, side))
            ts = with_automatic_axes(ts) if _has_explicit_axes(ts.step) else ts  # one leaf speaks for all of them
        if any(isinstance(leaf, np.ndarray) and not leaf.dtype.isnative for leaf in jax.tree.leaves((x, y, side))):
            for name, tree in {"x": x, "y": y, **side}.items():
                check_numbers(tree, name)  # a program that is compiled already would misread the bytes
        try:
            return program(ts)(ts, x, y, **side)
        except TypeError:  # perhaps for an argument that JAX does not take: a search in each step would take longer
            _check_state(ts)
            check_numbers(ts, "ts")
            reject_foreign("x", x)
            reject_foreign("y", y)
            raise

    def staged(method):
        def of_step(ts, *rest, **side):
            ts, rest, side = with_automatic_axes((ts, rest, side)) if _is_on_mesh(ts) else (ts, rest, side)
            return getattr(program(ts), method)(ts, *rest, **side)

        return of_step

    vars(step_of_own_state).update(lower=staged("lower"), trace=staged("trace"))
    return step_of_own_state  # type: ignore[return-value]


def _programs(step: Callable, donate: bool | None) -> tuple[Callable, Callable]:
    """Functions that are called with the first step: which arguments it donates, and the program for a state."""

    @functools.cache
    def donated():
        return (0,) if donate or (donate is None and platform() != "cpu") else ()

    @functools.cache  # not before the first step, so that `train_step` starts no backend
    def jitted():
        return jax.jit(step, donate_argnums=donated())

    @functools.cache
    def sharded(structure, shardings):
        """The jitted step whose next training state is sharded as the given one, and whose value is replicated."""
        shardings = jax.tree.unflatten(structure, shardings)
        mesh = shardings.step.mesh
        replicated = NamedSharding(mesh, PartitionSpec())

        def on_mesh(ts, x, y, /, **side):
            with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):  # read by `linear_maps.sharded_by_batch`
                return step(ts, x, y, **side)

        return jax.jit(on_mesh, donate_argnums=donated(), out_shardings=(shardings, replicated))

    def program(ts):
        """The jitted step for a training state, or for its shapes."""
        if not _is_on_mesh(ts):
            return jitted()
        leaves, structure = jax.tree.flatten(ts)
        return sharded(structure, tuple(leaf.sharding for leaf in leaves))

    return donated, program


def _check_state(ts) -> None:
    repair = "write ts, loss = step(ts, x, y)" if getattr(ts, "shape", None) == () else "call step(ts, x, y)"
    expected = "the state that init_train_state returns"
    require(isinstance(ts, TrainState), expected, ts, repair, error=TypeError)
    stacked = bool(getattr(ts.step, "shape", ()))
    require(not stacked, "one ts", "several, stacked", "write jax.vmap(step, in_axes=(0, None, None))(ts, x, y)")


def _is_on_mesh(ts) -> bool:
    return isinstance(getattr(getattr(ts, "step", None), "sharding", None), NamedSharding)


def _has_explicit_axes(x) -> bool:
    return AxisType.Explicit in jax.typeof(x).sharding.mesh.axis_types
