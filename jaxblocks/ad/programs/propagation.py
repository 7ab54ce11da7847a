"""Loops and branches in programs that propagate each value together with its derivatives.

The Laplacian and Taylor mode interpret a jaxpr on such meanings. A meaning has the attributes ``value``, an array, and
``moves``, whether the value depends on x; only then it has derivatives. A loop carries derivatives for every part of
its carry that depends on x after some step, from the first step on.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn

from jaxblocks.ad.programs.jaxprs import Step, as_closed, interpret, split_scan_inputs
from jaxblocks.checks.errors import public_name

__all__ = ["can_move", "depends", "differentiable", "moved", "nested_rules", "opens"]


# Piecewise constant functions: the derivative is zero wherever it exists.
_FLAT = frozenset({"ceil", "floor", "round", "sign", "stop_gradient"})


def can_move(equation: JaxprEqn) -> list[bool]:
    """Which outputs can depend on x: floating-point ones of functions that are not piecewise constant."""
    inexact = [jnp.issubdtype(getattr(v.aval, "dtype", bool), jnp.inexact) for v in equation.outvars]
    return [kind and equation.primitive.name not in _FLAT for kind in inexact]


def depends(step: Step) -> bool:
    """Whether an output depends on x."""
    return any(point.moves for point in step.operands) and any(can_move(step.equation))


def opens(step: Step) -> bool:
    """Whether to open a call; a function with a ``custom_jvp`` rule is not opened, since its rule is used."""
    return depends(step) and step.name != "custom_jvp_call"


def moved(closed: ClosedJaxpr, moves: Sequence[bool]) -> list[bool]:
    """Which outputs may depend on x, if those inputs do (an upper bound)."""
    return interpret(
        closed,
        moves,
        lambda step: [can and any(step.operands) for can in can_move(step.equation)],
        constant=lambda value: False,
        opens=lambda step: any(step.operands) and step.name != "custom_jvp_call",
    )


@contextlib.contextmanager
def differentiable(name: str, times: str) -> Iterator[None]:
    """Name the primitive in the error of JAX about one that has no derivative."""
    # JAX raises NotImplementedError for a missing rule, but ValueError for callbacks; any other ValueError is raised
    # unchanged.
    try:
        yield
    except (NotImplementedError, ValueError) as error:
        if isinstance(error, ValueError) and "callback" not in str(error):
            raise
        raise NotImplementedError(
            f"{public_name()} expected primitives that JAX can differentiate {times}, got {name!r}; give the function "
            "that calls it a rule with jax.custom_jvp that can be differentiated again."
        ) from error


def nested_rules(
    fill: Callable[[Any, Any], Any],
    *,
    to_slices: Callable[[Any], Any] = lambda point: point,
    from_slices: Callable[[Any], Any] = lambda point: point,
) -> Mapping[str, Callable[[Step], list]]:
    """The rules of ``scan``, ``while`` and ``cond``, by name.

    Args:
        fill: ``fill(point, like)``, a constant with derivatives of zero, in number and form as those of ``like``; it
            returns a point that depends on x in the form that all such points have.
        to_slices: converts a stacked operand of a scan to arrays with the steps on their leading axis.
        from_slices: converts a stacked output of a scan back.
    """

    def filled(points, moves, like):
        return [fill(point, like) if m else point for point, m in zip(points, moves, strict=True)]

    def scan(step):
        params, like = step.params, _moving(step.operands)
        body = as_closed(params["jaxpr"])
        constants, carry, slices = split_scan_inputs(step.equation, step.operands)
        n_carries = len(carry)
        # A loop has one type of carry for all steps: a part that depends on x after some step carries derivatives
        # from the first step on, so the parts are found before the loop is traced.
        rest = [point.moves for point in slices]
        moves = _carried(lambda moves: moved(body, [c.moves for c in constants] + moves + rest), carry)
        outs = moved(body, [c.moves for c in constants] + moves + rest)[n_carries:]

        # Both outputs are filled up, since the types of a step of lax.scan must not change: a part that moves in one
        # step only has zero derivatives in the others.
        def iteration(carry, slices):
            points = step.interpret(body, [*constants, *carry, *slices])
            return filled(points[:n_carries], moves, like), filled(points[n_carries:], outs, like)

        carry, stacked = lax.scan(
            iteration,
            filled(carry, moves, like),
            # lax.scan slices the leading axis; in a meaning, that axis may not be the leading one of each array.
            [to_slices(point) for point in slices],
            length=params["length"],
            reverse=params["reverse"],
            unroll=params["unroll"],
        )
        return [*carry, *map(from_slices, stacked)]

    def while_(step):
        params, like, inputs = step.params, _moving(step.operands), step.operands
        condition, body = as_closed(params["cond_jaxpr"]), as_closed(params["body_jaxpr"])
        # The operands are in the order: constants of the condition, constants of the body, carry.
        first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        read_by_test, constants, carry = inputs[:first], inputs[first:second], inputs[second:]
        moves = _carried(lambda moves: moved(body, [c.moves for c in constants] + moves), carry)

        # The condition is a boolean and has no derivatives, so it reads the values alone.
        def goes_on(carry):
            [going_on] = step.interpret(condition, [type(like)(point.value) for point in (*read_by_test, *carry)])
            return going_on.value

        def iteration(carry):
            return filled(step.interpret(body, [*constants, *carry]), moves, like)

        return lax.while_loop(goes_on, iteration, filled(carry, moves, like))

    def cond(step):
        # The branch is an integer and piecewise constant in x: only the operands after it have derivatives.
        index, *operands = step.operands
        branches, like = [as_closed(branch) for branch in step.params["branches"]], _moving(step.operands)
        each = [moved(branch, [point.moves for point in operands]) for branch in branches]
        # An output has derivatives if it depends on x in any branch, since all branches must return the same types.
        moves = [any(outs) for outs in zip(*each, strict=True)]

        def run(branch):
            return lambda points: filled(step.interpret(branch, points), moves, like)

        return lax.switch(index.value, [run(branch) for branch in branches], operands)

    return {"scan": scan, "while": while_, "cond": cond}


def _carried(step, carry) -> list[bool]:
    """Which parts of a carry depend on x after some step: a fixed point of the step."""
    # Each step can only add parts, so this ends after at most as many steps as there are parts.
    moves = [point.moves for point in carry]
    while True:
        wider = [a or b for a, b in zip(moves, step(moves), strict=False)]
        if wider == moves:
            return moves
        moves = wider


def _moving(points):
    return next(point for point in points if point.moves)
