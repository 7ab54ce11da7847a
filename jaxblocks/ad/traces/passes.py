"""The operations of a function, and the passes that compute values, tangents and adjoints."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from jaxblocks.ad.programs.jaxprs import Step, body_of_call, dtype_of, inputs_of, interpret, piece
from jaxblocks.ad.programs.linearization import with_forward_mode
from jaxblocks.ad.traces.printing import bracketed, is_known, numbered
from jaxblocks.ad.traces.tables import TraceNode

__all__ = ["Operation", "Slot", "needed", "number_slots", "pull", "read", "run_forward"]


@dataclasses.dataclass(eq=False)
class Slot:
    """A variable during the passes; slots are compared by identity.

    Attributes:
        kind, operation, level, name, value, tangent, adjoint: as in `TraceNode`.
        active: whether it is an inexact number that depends on the inputs.
        parents: the slots that it is computed from.
    """

    kind: str
    operation: str = ""
    value: Any = None
    active: bool = False
    level: int = 0
    name: str = ""
    parents: tuple = ()
    tangent: Any = None
    adjoint: Any = None

    @property
    def symbol(self) -> str:
        """Its name, or its value if it has no name."""
        return self.name or bracketed(self.value)

    @property
    def scalar(self) -> bool:
        """Whether it is a known number."""
        return jnp.ndim(self.value) == 0 and is_known(self.value)

    def moved(self):
        """Its tangent, or zeros if it is constant."""
        return self.tangent if self.active else jnp.zeros_like(self.value)

    def node(self) -> TraceNode:
        """The node of the graph, when all passes are done."""
        parents = tuple(slot.name for slot in self.parents if slot.name)
        return TraceNode(
            self.name, self.kind, self.operation, parents, self.level, self.value, self.tangent, self.adjoint
        )


class Operation(NamedTuple):
    """One equation between slots.

    Attributes:
        jaxpr: the jaxpr that holds it.
        equation: the equation.
        operands, outs: its inputs and outputs.
        moving: empty until the forward pass adds the operation as a function of ``read`` that returns ``flowing``.
        scope: the named scopes around it.
    """

    jaxpr: Jaxpr
    equation: JaxprEqn
    operands: list[Slot]
    outs: list[Slot]
    moving: list
    scope: str

    @property
    def level(self) -> int:
        """The depth of its outputs."""
        return self.outs[0].level

    @property
    def read(self) -> list[Slot]:
        """The operands that derivatives flow to, each once."""
        return list(dict.fromkeys(slot for slot in self.operands if slot.active))

    @property
    def flowing(self) -> list[Slot]:
        """The outputs that derivatives flow to."""
        return [slot for slot in self.outs if slot.active]


def read(closed: ClosedJaxpr, inputs: list[Slot], *, open_calls: bool) -> tuple[list[Operation], list[Slot]]:
    """The operations of a jaxpr that its outputs need, ordered by depth, and the slots of the outputs.

    Calls are opened if ``open_calls`` is true, except those that have their own derivative rule.
    """
    steps: list[Operation] = []

    def rule(step: Step) -> list[Slot]:
        equation, operands = step.equation, step.operands
        same = step.name == "convert_element_type" and dtype_of(equation.invars[0]) == dtype_of(equation.outvars[0])
        if same or step.name == "name":
            return operands  # it marks the dtype, or the output of a layer, and computes nothing
        body = body_of_call(equation)
        level = 1 + max((operand.level for operand in operands), default=0)
        label = step.name if body is None else body.jaxpr.debug_info.func_name
        outs = [Slot("operation", label, level=level, parents=tuple(operands)) for _ in equation.outvars]
        steps.append(Operation(step.jaxpr, equation, operands, outs, [], step.scope))
        return outs

    outputs = interpret(
        closed,
        inputs,
        rule,
        constant=lambda value: Slot("constant", value=value),
        # A function with a derivative rule of its own is one node: the operations inside have other derivatives.
        opens=lambda step: open_calls and not step.name.startswith("custom_"),
    )
    # By depth, in which the graph is drawn; within a depth the sort keeps the order of the program.
    return sorted(needed(steps, outputs), key=lambda step: step.level), outputs


def needed(steps: list, outputs: list) -> list:
    """The operations that the outputs need, of a trace or of any steps with ``operands`` and ``outs``."""
    wanted, kept = set(outputs), []
    for step in reversed(steps):
        if wanted & set(step.outs):
            wanted |= set(step.operands)
            kept.append(step)
    return kept[::-1]


def number_slots(inputs, steps, outputs) -> list[Slot]:
    """Name inputs, results and constants, and return the constants that are arrays; scalars are printed as numbers."""
    read = dict.fromkeys([slot for step in steps for slot in step.operands] + outputs)
    constants = [slot for slot in read if slot.kind == "constant"]
    constants = [slot for slot in constants if jnp.ndim(slot.value) or not is_known(slot.value)]
    made = [slot for step in steps for slot in step.outs if slot in read]
    # n inputs are v_(1-n), ..., v_0, so that the first operation is v_1 (Griewank & Walther).
    for k, slot in enumerate(inputs, 1 - len(inputs)):
        slot.name = numbered("v", k)
    for k, slot in enumerate(made, 1):
        slot.name = numbered("v", k)
    for k, slot in enumerate(constants, 1):
        slot.name = numbered("c", k)
    return constants


def run_forward(step: Operation) -> None:
    """Compute the values and tangents of one equation by evaluating it and by ``jax.jvp``."""
    inputs = inputs_of([step.equation])
    slots = {v: slot for v, slot in zip(step.equation.invars, step.operands, strict=True) if not isinstance(v, Literal)}
    made = [(v, slot) for v, slot in zip(step.equation.outvars, step.outs, strict=True) if slot.name]
    run = piece(step.jaxpr, [step.equation], inputs, [v for v, _ in made])
    for (_, slot), value in zip(made, run(*(slots[v].value for v in inputs)), strict=True):
        slot.value = value
        slot.active = bool(step.read) and jnp.issubdtype(value.dtype, jnp.inexact)
    if not step.flowing:
        return

    def moving(values):
        known = dict(zip(step.read, values, strict=True))
        results = run(*(known[slots[v]] if slots[v].active else _again(slots[v].value) for v in inputs))
        return [result for result, (_, slot) in zip(results, made, strict=True) if slot.active]

    step.moving.append(moving)
    values, directions = [slot.value for slot in step.read], [slot.tangent for slot in step.read]
    _, tangents = jax.jvp(with_forward_mode(moving, values), (values,), (directions,))
    for slot, tangent in zip(step.flowing, tangents, strict=True):
        slot.tangent = tangent


def _again(value):
    """A value that is not differentiated; keys are cloned, because each pass uses them again."""
    is_key = jnp.issubdtype(getattr(value, "dtype", bool), jax.dtypes.prng_key)
    return jax.random.clone(value) if is_key else value


def pull(function, values, cotangents) -> list:
    """The cotangents of a function's arguments."""
    try:
        return jax.vjp(function, values)[1](cotangents)[0]
    except ValueError:  # a loop of unknown length has only forward mode: transpose its Jacobian
        jacobians = jax.jacfwd(with_forward_mode(function, values))(values)  # by result, by operand
        return [
            sum(jnp.tensordot(c, row[k], c.ndim) for c, row in zip(cotangents, jacobians, strict=True))
            for k in range(len(values))
        ]
