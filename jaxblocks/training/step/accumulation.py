"""Gradient accumulation: the objective of a batch and its gradient, from parts of the batch, one after the other."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax import lax

from jaxblocks.ad.programs.jaxprs import interpret
from jaxblocks.backend.precision import wide_dtype
from jaxblocks.checks.errors import require
from jaxblocks.core.children import child_key, split_side
from jaxblocks.training.step.objective import mean_loss, training_forward
from jaxblocks.training.step.state import as_typed_key, without_weak_types

__all__ = ["accumulated_objective", "without_weights"]


def accumulated_objective(net, loss, penalty, compute_dtype, n: int) -> Callable:
    """A function ``(ts, x, y, side) -> (run, value_fn)`` that splits the batch into ``n`` parts.

    ``run(params)`` returns the value, the state after the parts, and the gradient; ``value_fn(params)`` the value.
    """
    forward = training_forward(net, compute_dtype=compute_dtype)

    def of_part(params, ts, x, y, side):
        outputs, state = forward(ts._replace(params=params), x, side)
        mean, weight = mean_loss("the loss", loss, x, outputs, y)
        # Parts without weights have the same number of entries, so that their means have equal weights.
        weight = jnp.ones((), mean.dtype) if weight is None else weight
        return mean * weight, (weight, state)

    def objective_of(ts, x, y, side):
        arrays, static = split_side(side)
        parts = _split(n, x, y, arrays)
        key = child_key(as_typed_key(ts.key), "parts")
        x_0, y_0, arrays_0 = jax.tree.map(lambda a: a[0], parts)
        side_0 = {**arrays_0, **static}
        _check_weights(lambda params: of_part(params, ts, x_0, y_0, side_0)[1][0], ts.params)

        def in_turn(params, function, begin):
            """The sums over the parts of what ``function`` returns, and the last state."""

            def body(carry, part):
                state, sums = carry
                i, (x, y, arrays) = part
                own = ts._replace(state=state, key=child_key(key, i))
                new, state = function(params, own, x, y, {**arrays, **static})
                return (without_weak_types(state), jax.tree.map(lambda a, b: a + b.astype(a.dtype), sums, new)), None

            (state, sums), _ = lax.scan(body, (ts.state, begin), (jnp.arange(n), parts))
            return sums, state

        def with_gradient(*arguments):
            (total, (weight, state)), gradient = jax.value_and_grad(of_part, has_aux=True)(*arguments)
            return (total, weight, gradient), state

        def without_gradient(*arguments):
            total, (weight, state) = of_part(*arguments)
            return (total, weight), state

        shapes = jax.eval_shape(lambda params: without_gradient(params, ts, x_0, y_0, side_0)[0], ts.params)
        zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)

        def run(params):
            begin = jax.tree.map(lambda p: jnp.zeros_like(p, wide_dtype(p.dtype)), params)
            (total, weight, gradient), state = in_turn(params, with_gradient, (*zeros, begin))
            gradient = jax.tree.map(lambda g, p: _quotient(g, weight).astype(p.dtype), gradient, params)
            value = _quotient(total, weight)
            if penalty is not None:
                own, of_penalty = jax.value_and_grad(penalty)(params)
                value, gradient = value + own.astype(value.dtype), jax.tree.map(jnp.add, gradient, of_penalty)
            return value, state, gradient

        def value_fn(params):
            (total, weight), _ = in_turn(params, without_gradient, zeros)
            value = _quotient(total, weight)
            return value if penalty is None else value + penalty(params).astype(value.dtype)

        return run, value_fn

    return objective_of


def _quotient(total, weight):
    """The mean, 0 where nothing has a weight."""
    weight = weight.astype(total.dtype)
    return jnp.where(
        weight == 0, jnp.zeros((), total.dtype), total / jnp.where(weight == 0, jnp.ones_like(weight), weight)
    )


def _split(n: int, x, y, arrays):
    """The parts of a batch, stacked: part i has the examples i, n + i, 2 n + i, ..., which a mesh leaves in place."""
    batch = jax.tree.leaves(x)[0].shape[:1]
    expected = f"a batch of a multiple of accumulate={n} examples"
    require(bool(batch) and batch[0] % n == 0, expected, jax.tree.leaves(x)[0], "pass another size of the batch")

    def split(a):
        return jnp.moveaxis(jnp.reshape(a, (batch[0] // n, n, *a.shape[1:])), 1, 0)

    def split_or_repeat(a):  # a side input that is not one of each example
        return split(a) if a.shape[:1] == batch else jnp.broadcast_to(a, (n, *a.shape))

    return *jax.tree.map(split, (x, y)), jax.tree.map(split_or_repeat, arrays)


def _check_weights(weight_of: Callable, params) -> None:
    """The sum of weights must not depend on the params: its derivative is not accumulated."""
    program = jax.make_jaxpr(weight_of)(params)
    # A constant may hold values of an outer trace, but none of the params.
    flags = [True] * len(program.in_avals)
    depends = interpret(
        program,
        flags,
        lambda step: [any(step.operands)] * len(step.equation.outvars),
        rules={"stop_gradient": lambda step: [False]},
        constant=lambda value: False,
    )
    require(
        not any(depends),
        "weights that do not depend on the params",
        "such weights with accumulate > 1",
        "pass them through jax.lax.stop_gradient",
    )


def without_weights(loss: Callable, opt_state) -> Callable:
    """The loss, which raises an error where it returns weights and the optimizer averages gradients of batches."""
    is_average = lambda part: isinstance(part, optax.MultiStepsState)
    if not any(map(is_average, jax.tree.leaves(opt_state, is_leaf=is_average))):
        return loss

    def unweighted(outputs, y):
        value = loss(outputs, y)
        repair = "pass accumulate= to train_step in place of MultiSteps, with the whole batch"
        expected = "a loss without weights for optax.MultiSteps, which averages batches whatever their weights"
        require(not isinstance(value, tuple), expected, "values and weights", repair)
        return value

    return unweighted
