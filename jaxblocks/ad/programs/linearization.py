r"""Linearization and forward mode where a function may lack a rule for one of the modes.

A `jax.custom_vjp` (such as `jaxblocks.ad.scan` with snapshots) has a rule for reverse mode only. Its forward
derivative still exists: the pullback $u ↦ uᵀ J$ is linear in u, so its own pullback is
$v ↦ Jv$, two backward passes instead of one forward pass.

JAX raises for a second derivative in forward mode of a linear solve whose solver, but not its operator, reads values
that depend on x, as those of `jax.scipy.sparse.linalg` do. The derivative of a solution does not depend on the solver.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jaxtyping import PyTree

from jaxblocks.ad.programs.jaxprs import Step, all_equations, as_closed, bodies_of, interpret, interpret_scan
from jaxblocks.backend.varying import as_structs
from jaxblocks.checks.errors import public_name

__all__ = [
    "linearize",
    "missing_mode",
    "with_forward_mode",
    "with_forward_rules",
]


def missing_mode(error: Exception) -> str | None:
    """The mode of differentiation, ``"forward"`` or ``"reverse"``, whose absence an error of JAX reports.

    Forward mode is missing for a `jax.custom_vjp`, a second time for some linear solves (`with_forward_rules`), and for
    a rule that reads traced values besides its arguments, as that of `jax.experimental.ode.odeint` does; the error of
    this rule has no public class, so that callers catch any ``Exception`` and raise it again for ``None``. Reverse mode
    is missing for loops of unknown length, and for linear solves without a transposed solver.
    """
    if isinstance(error, TypeError) and "transpose_solve required" in str(error):
        return "reverse"
    if _reads_others(error):
        return "forward"
    if isinstance(error, TypeError | NotImplementedError) and any(name in str(error) for name in _REVERSE_ONLY):
        return "forward"
    if isinstance(error, ValueError) and "Reverse-mode differentiation" in str(error):
        return "reverse"
    return "reverse" if isinstance(error, TypeError) and str(error) == _NESTED_LOOP else None


def _reads_others(error: Exception) -> bool:
    """Whether JAX reports a rule that reads traced values besides its arguments, by an error without a public name."""
    return type(error).__name__ == "CustomVJPException"


_REVERSE_ONLY = ("custom_vjp", "custom_lin")  # also in "custom_linear_solve"

# JAX raises this where it linearizes a while loop within a jvp: it has lost the names of the arguments of the loop.
_NESTED_LOOP = "unsupported operand type(s) for +: 'NoneType' and 'tuple'"


def linearize(f: Callable, x: PyTree) -> tuple[PyTree, Callable[[PyTree], PyTree]]:
    """The value of f and its derivative as a function of the direction, as ``jax.linearize`` returns them.

    A `jax.custom_vjp` in f has the forward mode of `with_forward_mode`.
    """
    try:
        y, push = jax.linearize(f, x)
        # For a jax.custom_vjp, jax.linearize succeeds; only a call of its result would raise.
        tangents = jax.make_jaxpr(push)(as_structs(x))
        if not any(equation.primitive.name == "custom_lin" for equation in all_equations(tangents.eqns)):
            return y, push
    except Exception as error:
        if missing_mode(error) != "forward":
            raise
    return jax.linearize(with_forward_mode(f, x), x)


def with_forward_mode(f: Callable, *args: PyTree) -> Callable:
    """The same function, of arguments like ``args``, where each `jax.custom_vjp` has a forward mode of any order."""
    closed, shapes = jax.make_jaxpr(f, return_shape=True)(*args)
    extended = with_forward_rules(closed)
    # The function itself, which JAX may have traced already.
    if extended is closed:
        return f
    structure = jax.tree.structure(shapes)
    return lambda *args: structure.unflatten(jaxpr_as_fun(extended)(*jax.tree.leaves(args)))


def with_forward_rules(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The same program, where a `jax.custom_jvp` with the pullback of the pullback replaces each `jax.custom_vjp`.

    What the solver of a linear system reads has no tangent. A program without either is returned as it is.
    """
    if not _has_rules(closed):
        return closed
    run = lambda *inputs: interpret(closed, inputs, Step.evaluate, rules=_FORWARD_RULES, opens=_is_extended)
    return jax.make_jaxpr(run)(*as_structs([v.aval for v in closed.jaxpr.invars]))


def _has_rules(closed: Any) -> bool:
    own = ("custom_vjp_call", "custom_linear_solve")
    return any(equation.primitive.name in own for equation in all_equations(as_closed(closed).eqns))


def _is_extended(step: Step) -> bool:
    """Whether an equation with a body needs the rules; a ``custom_jvp`` has its own."""
    return step.name != "custom_jvp_call" and any(map(_has_rules, bodies_of(step.equation)))


def _linearize_by_pullbacks(f: Callable, x: PyTree) -> Callable[[PyTree], PyTree]:
    """The derivative as a function of the direction: the pullback of the pullback."""
    y, pull = jax.vjp(f, x)
    # The pullback is linear in the cotangent, so its own pullback is the same at every cotangent, here at 0. It is the
    # pushforward: the transpose of the transpose.
    _, push = jax.vjp(lambda u: pull(u)[0], jax.tree.map(jnp.zeros_like, y))
    return lambda v: push(v)[0]


def _custom_vjp(step: Step) -> list:
    floating = lambda x: jnp.issubdtype(jnp.result_type(x), jnp.inexact)
    moving = [i for i, x in enumerate(step.operands) if floating(x)]
    kinds = [floating(v.aval) for v in step.equation.outvars]

    def differentiable(operands):
        return [y for y, kind in zip(step.evaluate(operands), kinds, strict=True) if kind]

    @jax.custom_jvp
    def call(*operands):
        return differentiable(operands)

    @call.defjvp
    def _(operands, tangents):
        def along(xs, ts):
            def p(xs):
                inputs = list(operands)
                for i, x in zip(moving, xs, strict=True):
                    inputs[i] = x
                return differentiable(inputs)

            return _linearize_by_pullbacks(p, xs)(ts)

        xs, ts = ([each[i] for i in moving] for each in (operands, tangents))
        try:
            return call(*operands), with_forward_mode(along, xs, ts)(xs, ts)  # the rule may call another custom_vjp
        except Exception as error:
            if not _reads_others(error):
                raise
            raise TypeError(
                f"{public_name()} expected a custom_vjp whose rule reads its arguments alone, which forward mode "
                "needs, got one that reads other values that depend on x; differentiate it in reverse mode only."
            ) from error

    found = iter(call(*step.operands))
    if all(kinds):
        return list(found)
    # The other outputs have no derivatives. Their operands get no tangents, which a custom_vjp cannot take.
    fixed = [lax.stop_gradient(x) if floating(x) else x for x in step.operands]
    return [next(found) if kind else y for y, kind in zip(step.evaluate(fixed), kinds, strict=True)]


def _linear_solve(step: Step) -> list:
    """The same solve; what its solvers read has no tangents. The operands are those of its functions, then b."""
    lengths = step.params["const_lengths"]
    reads = [name in ("solve", "transpose_solve") for name in lengths._fields for _ in range(getattr(lengths, name))]
    reads += [False] * (len(step.operands) - len(reads))
    fixed = [lax.stop_gradient(x) if read else x for x, read in zip(step.operands, reads, strict=True)]
    # Not by `step.evaluate`, where an operand that operator and solver read has one value.
    return step.equation.primitive.bind(*fixed, **step.params)


def _scan(step: Step) -> list:
    return interpret_scan(step, lambda body, operands, _: (step.interpret(body, operands), ()))[0]


def _while(step: Step) -> list:
    condition, body = as_closed(step.params["cond_jaxpr"]), as_closed(step.params["body_jaxpr"])
    first, second = step.params["cond_nconsts"], step.params["cond_nconsts"] + step.params["body_nconsts"]
    read_by_test, constants, carry = step.operands[:first], step.operands[first:second], step.operands[second:]
    goes_on = lambda carry: step.interpret(condition, [*read_by_test, *carry])[0]
    return lax.while_loop(goes_on, lambda carry: step.interpret(body, [*constants, *carry]), carry)


def _cond(step: Step) -> list:
    index, *operands = step.operands
    branches = [as_closed(branch) for branch in step.params["branches"]]
    return lax.switch(index, [lambda xs, body=body: step.interpret(body, xs) for body in branches], operands)


def _where_extended(rule: Callable[[Step], list]) -> Callable[[Step], list]:
    return lambda step: rule(step) if _is_extended(step) else step.evaluate()


_FORWARD_RULES = {
    "custom_vjp_call": _custom_vjp,
    "custom_linear_solve": _linear_solve,
    "scan": _where_extended(_scan),
    "while": _where_extended(_while),
    "cond": _where_extended(_cond),
}
