"""Gradient accumulation: the objective of a batch and its gradient, from parts of the batch, one after the other."""

import contextlib
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax import lax

from jaxblocks.backend.precision import wide_dtype
from jaxblocks.backend.varying import inside_shard_map, varying_like
from jaxblocks.checks.errors import describe, require
from jaxblocks.core.keys import child_key
from jaxblocks.core.shapes import split_side
from jaxblocks.training.optimizers.transformations import parts_of
from jaxblocks.training.step.objective import add_penalty, check_weights, mean_loss, training_forward
from jaxblocks.training.step.state import as_typed_key, without_weak_types

__all__ = ["accumulated_objective", "check_loss_value"]


def accumulated_objective(net, loss, penalty, n: int, *, compute_dtype=None, check=None) -> Callable:
    """A function ``(ts, x, y, side) -> (run, value_fn)`` that splits the batch into ``n`` parts.

    ``run(params)`` returns the value, the state after the parts, and the gradient; ``value_fn(params)`` the value.
    """
    forward = training_forward(net, compute_dtype=compute_dtype)

    def of_part(params, ts, x, y, side, check=check):
        outputs, state = forward(ts._replace(params=params), x, side)
        mean, weight = mean_loss("the loss", loss, x, outputs, y, check)
        # Parts without weights have the same number of entries, so that their means have equal weights.
        weight = jnp.ones((), mean.dtype) if weight is None else weight
        return mean * weight, (weight, state)

    def objective_of(ts, x, y, side):
        arrays, static = split_side(side)
        parts = _split(n, x, y, arrays)
        key = child_key(as_typed_key(ts.key), "parts")
        x_0, y_0, arrays_0 = jax.tree.map(lambda a: a[0], parts)
        side_0 = {**arrays_0, **static}

        def in_turn(params, function, begin):
            """The sums over the parts of what ``function`` returns, and the last state."""

            def body(carry, part):
                state, sums = carry
                i, (x, y, arrays) = part
                own = ts._replace(state=state, key=child_key(key, i))
                new, state = function(params, own, x, y, {**arrays, **static})
                return (without_weak_types(state), jax.tree.map(lambda a, b: a + b.astype(a.dtype), sums, new)), None

            (state, sums), _ = lax.scan(body, (state_0, begin), (jnp.arange(n), parts))
            return sums, state

        def with_gradient(params, *arguments):
            checked = lambda params: of_part(params, *arguments, check=lambda own: check_weights(own, params))
            (total, (weight, state)), gradient = jax.value_and_grad(checked, has_aux=True)(params)
            return (total, weight, gradient), state

        def without_gradient(*arguments):
            total, (weight, state) = of_part(*arguments)
            return (total, weight), state

        with _as_part(n, jax.tree.leaves(x_0)):
            shapes, after = jax.eval_shape(lambda params: without_gradient(params, ts, x_0, y_0, side_0), ts.params)
        zeros = jax.tree.map(lambda a: varying_like(jnp.zeros(a.shape, a.dtype), a), shapes)
        state_0 = jax.tree.map(varying_like, ts.state, after) if inside_shard_map() else ts.state

        def run(params):
            # Inside of `jax.shard_map` gradients are summed over the devices after each has divided by its own weights.
            own, summed = jax.vjp(lambda params: varying_like(params, zeros), params)
            begin = jax.tree.map(lambda p: varying_like(jnp.zeros_like(p, wide_dtype(p.dtype)), p), own)
            (total, weight, gradient), state = in_turn(own, with_gradient, (*zeros, begin))
            gradient = jax.tree.map(lambda g, p: _quotient(g, weight).astype(p.dtype), gradient, own)
            value = _quotient(total, weight)
            if penalty is not None:
                added = functools.partial(add_penalty, value, penalty)  # whose gradient is that of the penalty
                value, of_penalty = jax.value_and_grad(added)(own)
                gradient = jax.tree.map(jnp.add, gradient, of_penalty)
            return value, state, summed(gradient)[0]

        def value_fn(params):
            (total, weight), _ = in_turn(params, without_gradient, zeros)
            return add_penalty(_quotient(total, weight), penalty, params)

        return run, value_fn

    return objective_of


def _quotient(total, weight):
    """The mean, 0 where nothing has a weight."""
    weight = weight.astype(total.dtype)
    return jnp.where(
        weight == 0, jnp.zeros((), total.dtype), total / jnp.where(weight == 0, jnp.ones_like(weight), weight)
    )


def _split(n: int, x, y, arrays):
    """The parts of a batch, stacked: part i has the examples i, n + i, 2 n + i, ..., which a mesh leaves in place.

    Arrays whose first axis is not the batch, that of the first array of ``x``, are repeated.
    """
    batch = _check_rows(n, x, y)

    def split_or_repeat(a):
        if jnp.shape(a)[:1] != (batch,):
            return jnp.broadcast_to(a, (n, *jnp.shape(a)))
        return jnp.moveaxis(jnp.reshape(a, (batch // n, n, *a.shape[1:])), 1, 0)

    return jax.tree.map(split_or_repeat, (x, y, arrays))


@contextlib.contextmanager
def _as_part(n: int, arrays):
    """Add to an error that the arrays are those of a part."""
    try:
        yield
    except (TypeError, ValueError) as error:
        rows = len(arrays[0])
        error.add_note(f"in each of accumulate={n} parts of the batch, of {rows} example{'s' * (rows != 1)} each")
        raise


def _check_rows(n: int, x, y) -> int:
    """The number of examples, or an error where they cannot be divided into ``n`` parts."""
    of_x, of_y = ([jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(tree)] for tree in (x, y))
    got = ", ".join(map(describe, jax.tree.leaves(x))) or "no arrays"
    expected = f"a batch of a multiple of accumulate={n} examples"
    fits = bool(of_x) and bool(of_x[0]) and of_x[0][0] > 0 and of_x[0][0] % n == 0
    require(fits, expected, got, "pass another size of the batch")
    got = f"x {got} and y {', '.join(map(describe, jax.tree.leaves(y)))}"
    fits = of_x[0] in of_y or not any(of_y)
    require(fits, "x and y with the same number of rows", got, "give their first axes one length")
    return of_x[0][0]


def check_loss_value(value, opt_state, n: int) -> None:
    """Raise for a loss without a gradient, or whose parts do not give the gradient of the whole batch.

    There are ``n`` parts. The optimizer may average gradients of batches, too.
    """
    values = value[0] if isinstance(value, tuple) else value
    floating = jnp.issubdtype(jnp.result_type(values), jnp.floating)
    repair = "return a loss of the outputs themselves; classes and counts have no gradient"
    require(floating, "the loss to be floating-point", values, repair, error=TypeError)
    is_number = not isinstance(value, tuple) and jnp.ndim(value) == 0
    expected = f"a loss of one number per example for accumulate={n}, or a pair (values, weights)"
    repair = "return the values without their mean or sum; mse and mae average the last axis, so write y[..., None]"
    repair += " and outputs of this shape"
    require(n == 1 or not is_number, expected, "a single number, which does not tell the weights of the parts", repair)
    averages = parts_of(opt_state, optax.MultiStepsState)
    expected = "a loss without weights for optax.MultiSteps, which averages batches whatever their weights"
    repair = "pass accumulate= to train_step in place of MultiSteps, with the whole batch"
    require(not (averages and isinstance(value, tuple)), expected, "values and weights", repair)
