"""Jaxprs: an interpreter with tables of rules, and helper functions for programs that read jaxprs.

JAX represents a traced function as a jaxpr, a list of equations between variables. Each tool that reads functions
(costs, traces, plans, Laplacians, sparsity patterns, piecewise linear pieces) assigns its own meaning to each
variable: a value with its derivatives, a set of inputs, a flag. `interpret` executes a jaxpr on such meanings, from
the inputs to the outputs, with one rule for each primitive. This module uses only the public `jax.extend.core`.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun

__all__ = [
    "Step",
    "all_equations",
    "as_closed",
    "bodies_of",
    "body_of_call",
    "bytes_of",
    "dtype_of",
    "evaluate",
    "has_forward_only_loop",
    "inputs_of",
    "interpret",
    "interpret_scan",
    "needed",
    "open_calls",
    "piece",
    "scan_parts",
    "scope_of",
    "shape_of",
    "size_of",
    "split_scan_inputs",
    "unroll_scan",
]


# ---- parts of a program ---------------------------------------------------------------------


def inputs_of(equations: Iterable[JaxprEqn]) -> list[Var]:
    """The variables that some equations read and that none of them computes, each once, in reading order."""
    computed: set[Var] = set()
    read: dict[Var, None] = {}
    for equation in equations:
        for variable in equation.invars:
            if not isinstance(variable, Literal) and variable not in computed:
                read.setdefault(variable)
        computed |= set(equation.outvars)
    return list(read)


def needed(equations: Sequence[JaxprEqn], outputs: Iterable[Any]) -> list[JaxprEqn]:
    """The equations that compute ``outputs``: the others are dead code."""
    wanted, kept = {v for v in outputs if not isinstance(v, Literal)}, []
    for equation in reversed(equations):
        if wanted & set(equation.outvars):
            kept.append(equation)
            wanted |= {v for v in equation.invars if not isinstance(v, Literal)}
    return kept[::-1]


def piece(jaxpr: Jaxpr, equations: Sequence[JaxprEqn], inputs: Sequence[Var], outputs: Sequence[Any]) -> Callable:
    """Some equations of a jaxpr, in order, as a function of ``inputs`` that returns the list of ``outputs``.

    The inputs are distinct variables and include those that `inputs_of` returns for the equations; the outputs are
    variables (or literals) that they compute or read. Every transformation applies to the function.

    >>> jaxpr = jax.make_jaxpr(lambda x, y: x * y + x)(1.0, 2.0).jaxpr
    >>> product = piece(jaxpr, jaxpr.eqns[:1], jaxpr.invars, jaxpr.eqns[0].outvars)
    >>> [y] = product(3.0, 4.0)
    >>> float(y)
    12.0
    """
    # JAX expects one name for each input and output of a jaxpr.
    names = jaxpr.debug_info._replace(arg_names=("",) * len(inputs), result_paths=("",) * len(outputs))
    part = jaxpr.replace(
        constvars=[],
        invars=list(inputs),
        outvars=list(outputs),
        eqns=list(equations),
        effects=set().union(*(equation.effects for equation in equations)),
        debug_info=names,
    )
    return jaxpr_as_fun(ClosedJaxpr(part, ()))


def shape_of(variable: Any) -> tuple[int, ...]:
    """The shape of a variable or literal."""
    return variable.aval.shape


def dtype_of(variable: Any) -> Any:
    """The dtype of a variable or literal."""
    return variable.aval.dtype


def size_of(variable: Any) -> int:
    """The number of entries of a variable or literal."""
    return math.prod(getattr(variable.aval, "shape", ()))


def bytes_of(variable: Any) -> int:
    """The number of bytes of a variable or literal."""
    return size_of(variable) * getattr(getattr(variable.aval, "dtype", None), "itemsize", 0)


def as_closed(jaxpr: ClosedJaxpr | Jaxpr) -> ClosedJaxpr:
    """The same jaxpr, closed: some primitives have an open body without constants."""
    # In this order: since jax 0.12 both names are one class.
    return jaxpr if isinstance(jaxpr, ClosedJaxpr) else ClosedJaxpr(jaxpr, ())


# ---- jaxprs inside an equation ----------------------------------------------------------------


def body_of_call(equation: JaxprEqn) -> ClosedJaxpr | None:
    """The jaxpr that an equation only calls (a jitted function, a checkpoint, a custom rule); else ``None``."""
    name = _CALLS.get(equation.primitive.name)
    return None if name is None else as_closed(equation.params[name])


# Primitives that call a jaxpr, and the name of its parameter.
_CALLS = {
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "remat": "jaxpr",
    "checkpoint": "jaxpr",
    "remat2": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}


def bodies_of(equation: JaxprEqn) -> list[ClosedJaxpr | Jaxpr]:
    """Every jaxpr among the parameters of an equation: of a call, a loop, the branches of a ``cond``."""
    return [
        item
        for value in equation.params.values()
        for item in (value if isinstance(value, tuple | list) else (value,))
        if hasattr(getattr(item, "jaxpr", item), "eqns")
    ]


def all_equations(equations: Iterable[JaxprEqn]) -> Iterator[JaxprEqn]:
    """Every equation of a program, including those in calls, loops and branches, each before its nested ones."""
    for equation in equations:
        yield equation
        for body in bodies_of(equation):
            yield from all_equations(body.eqns)


def has_forward_only_loop(equations: Iterable[JaxprEqn]) -> bool:
    """Whether equations of a linear program have a while loop that JAX cannot transpose.

    A linear solve may have one in its solver: JAX transposes the system, which has a solver of its own.
    """
    for equation in equations:
        is_solve = equation.primitive.name == "custom_linear_solve"
        if is_solve and equation.params["jaxprs"].transpose_solve is not None:
            continue
        if equation.primitive.name == "while":
            return True
        if any(has_forward_only_loop(body.eqns) for body in bodies_of(equation)):
            return True
    return False


def scan_parts(equation: JaxprEqn) -> tuple[int, int]:
    """The numbers of constants and of carries at the start of the inputs of a scan; the slices follow."""
    body = as_closed(equation.params["jaxpr"]).jaxpr
    # A slice has one axis less in the body than outside, so public attributes distinguish the parts.
    carries = sum(len(shape_of(o)) == len(shape_of(b)) for o, b in zip(equation.outvars, body.outvars, strict=True))
    slices = sum(len(shape_of(o)) != len(shape_of(b)) for o, b in zip(equation.invars, body.invars, strict=True))
    return len(equation.invars) - slices - carries, carries


def split_scan_inputs(equation: JaxprEqn, operands: Sequence[Any]) -> tuple[list, list, list]:
    """The operands of a scan as constants, carries and slices."""
    n_constants, n_carries = scan_parts(equation)
    end = n_constants + n_carries
    return list(operands[:n_constants]), list(operands[n_constants:end]), list(operands[end:])


def scope_of(equation: JaxprEqn) -> str:
    """The named scopes around an equation, without the marks of transformations.

    >>> def f(x):
    ...     with jax.named_scope("layer"):
    ...         return jax.lax.sin(x)
    >>> scope_of(jax.make_jaxpr(jax.vmap(f))(jax.numpy.zeros(2)).eqns[0])
    'layer'
    """
    names, depth = [], 0
    for name in str(equation.source_info.name_stack).split("/"):
        while name.startswith(_WRAPPERS):
            name, depth = name.partition("(")[2], depth + 1
        # A closing parenthesis belongs to a transformation unless the name itself has opened it.
        while depth and name.endswith(")") and name.count(")") > name.count("("):
            name, depth = name[:-1], depth - 1
        if name and name not in ("rematted_computation", "checkpoint"):
            names.append(name)
    return "/".join(names)


_WRAPPERS = ("jvp(", "transpose(", "vmap(", "linearize(")


# ---- the interpreter --------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """One equation while `interpret` executes it: the argument of every rule.

    Attributes:
        equation: the equation.
        operands: the meanings of its inputs, one for each.
        jaxpr: the jaxpr that contains the equation.
        index: its index in that jaxpr.
        around: the step whose body is that jaxpr; ``None`` at the outermost level.
        iteration: of a scan that `unroll_scan` executes, the number of the iteration; else ``None``.
    """

    equation: JaxprEqn
    operands: list[Any]
    jaxpr: Jaxpr
    index: int
    around: "Step | None"
    _interpret: Callable[..., list] = dataclasses.field(repr=False)
    iteration: int | None = None

    @property
    def name(self) -> str:
        """The name of the primitive."""
        return self.equation.primitive.name

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of the primitive."""
        return self.equation.params

    @property
    def body(self) -> ClosedJaxpr:
        """The jaxpr that the equation calls, where it is a call."""
        body = body_of_call(self.equation)
        assert body is not None
        return body

    @property
    def path(self) -> tuple[int, ...]:
        """The indices of the enclosing equations and of the equation itself, outermost first."""
        return (*(self.around.path if self.around else ()), self.index)

    @property
    def scope(self) -> str:
        """The named scopes around the equation, outermost first, as in ``"0.Serial/1.Dense"``."""
        parts = (self.around.scope if self.around else "", str(self.equation.source_info.name_stack))
        return "/".join(part for part in parts if part)

    def interpret(self, body: ClosedJaxpr, operands: Sequence[Any]) -> list[Any]:
        """The outputs of a jaxpr inside the equation, executed by the same rules."""
        return self._interpret(body, operands, around=self)

    def evaluate(self, operands: Sequence[Any] | None = None) -> list[Any]:
        """The outputs of the equation on arrays: on ``operands``, by default on its own operands."""
        return self.function_of([], self.operands if operands is None else operands, self.equation.outvars)()

    def function_of(self, inputs: Sequence[Var], operands: Sequence[Any], outputs: Sequence[Any]) -> Callable:
        """Some outputs of the equation as a function of some inputs; the others are those among ``operands``."""
        # By variable, since one that is read twice is one input of the piece.
        known = {v: x for v, x in zip(self.equation.invars, operands, strict=True) if not isinstance(v, Literal)}
        run = piece(self.jaxpr, [self.equation], list(known), outputs)
        return lambda *xs: run(*(known | dict(zip(inputs, xs, strict=True))).values())


def interpret(
    closed_jaxpr: ClosedJaxpr,
    inputs: Sequence[Any],
    default: Callable[[Step], Sequence[Any]],
    *,
    rules: Mapping[str, Callable[[Step], Sequence[Any]]] = MappingProxyType({}),
    constant: Callable[[Any], Any] = lambda value: value,
    opens: Callable[[Step], bool] = lambda step: True,
    around: Step | None = None,
) -> list[Any]:
    """Execute a jaxpr on meanings of its variables, forward, with one rule for each primitive.

    For each equation in order, ``rules[primitive name](step)`` computes the meanings of its outputs if the table has
    that rule; otherwise a call (`body_of_call`) is executed by the same rules on its body; otherwise ``default(step)``
    applies. A rule of a loop or a branch executes its body by ``step.interpret``. Meanings are dropped as soon as no
    later equation reads them.

    Args:
        closed_jaxpr: the program.
        inputs: the meanings of its inputs: arrays, or other objects.
        default: the rule of every primitive that the table lacks.
        rules: the table, by the names of primitives. A rule takes a `Step` and returns one meaning for each output.
        constant: the meaning of a constant or a literal, from its value.
        opens: whether to execute the body of a call; if it returns False, ``default`` applies.
        around: the step that contains this jaxpr; for ``path`` and ``scope`` of the steps inside.

    Returns:
        The meanings of the outputs.

    Flags of the outputs that depend on ``x`` alone:

    >>> program = jax.make_jaxpr(lambda x, y: (jax.jit(jax.numpy.sin)(x) + 1, x * y))(
    ...     1.0, 2.0
    ... )
    >>> interpret(
    ...     program,
    ...     [True, False],
    ...     lambda step: [all(step.operands)],
    ...     constant=lambda value: True,
    ... )
    [True, False]
    """
    jaxpr = closed_jaxpr.jaxpr
    meanings = {v: constant(value) for v, value in zip(jaxpr.constvars, closed_jaxpr.consts, strict=True)}
    meanings |= dict(zip(jaxpr.invars, inputs, strict=True))
    last_reads = _last_reads(jaxpr)
    inside = functools.partial(interpret, default=default, rules=rules, constant=constant, opens=opens)

    def read(variable):
        return constant(variable.val) if isinstance(variable, Literal) else meanings[variable]

    for index, equation in enumerate(jaxpr.eqns):
        step = Step(equation, [read(v) for v in equation.invars], jaxpr, index, around, inside)
        body = body_of_call(equation)
        # Before the body, so that a table can give a call (a custom rule, a checkpoint) a meaning of its own.
        if step.name in rules:
            outputs = rules[step.name](step)
        elif body is not None and opens(step):
            outputs = step.interpret(body, step.operands)
        else:
            outputs = default(step)
        meanings.update(zip(equation.outvars, outputs, strict=True))
        for variable in last_reads[index]:
            del meanings[variable]
    return [read(variable) for variable in jaxpr.outvars]


def _last_reads(jaxpr: Jaxpr) -> list[list[Var]]:
    """For each equation the variables that no later equation reads."""
    # A later equation overwrites the index of an earlier one.
    last = {v: i for i, equation in enumerate(jaxpr.eqns) for v in equation.invars if not isinstance(v, Literal)}
    outputs = {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    found: list[list[Var]] = [[] for _ in jaxpr.eqns]
    for variable, index in last.items():
        if variable not in outputs:
            found[index].append(variable)
    return found


def unroll_scan(step: Step, take: Callable[[Any, int, Var], Any], stack: Callable[[list, Var], Any]) -> list[Any]:
    """The rule of a scan, executed iteration by iteration.

    ``take(x, i, variable)`` is entry i of a stacked operand x, for a variable of the body, and
    ``stack(entries, variable)`` a stacked output, for a variable of the scan. The result has the carries first.
    """
    body, length = as_closed(step.params["jaxpr"]), step.params["length"]
    constants, carry, slices = split_scan_inputs(step.equation, step.operands)
    variables = body.jaxpr.invars[len(constants) + len(carry) :]
    rows: list[list] = []
    for i in reversed(range(length)) if step.params["reverse"] else range(length):
        entries = [take(x, i, v) for x, v in zip(slices, variables, strict=True)]
        outputs = dataclasses.replace(step, iteration=i).interpret(body, [*constants, *carry, *entries])
        carry = outputs[: len(carry)]
        rows.append(outputs[len(carry) :])
    rows = rows[::-1] if step.params["reverse"] else rows
    stacked = step.equation.outvars[len(carry) :]
    return [*carry, *(stack([row[k] for row in rows], v) for k, v in enumerate(stacked))]


def interpret_scan(
    step: Step, run: Callable[[ClosedJaxpr, list, Any], tuple[list, Any]], xs: Any = ()
) -> tuple[list, Any]:
    """The outputs of a scan of arrays by ``jax.lax.scan``, and records with the iterations on their leading axis.

    ``run(body, operands, x)`` returns the outputs of the body and a pytree of records, for a slice x of ``xs``.
    """
    body, params = as_closed(step.params["jaxpr"]), step.params
    constants, carry, slices = split_scan_inputs(step.equation, step.operands)

    def iteration(carry, entries):
        own, x = entries
        outputs, records = run(body, [*constants, *carry, *own], x)
        return outputs[: len(carry)], (outputs[len(carry) :], records)

    options = {name: params[name] for name in ("length", "reverse", "unroll")}
    carry, (stacked, records) = lax.scan(iteration, carry, (slices, xs), **options)
    return [*carry, *stacked], records


# ---- execution on arrays ------------------------------------------------------------------------


def evaluate(
    closed_jaxpr: ClosedJaxpr,
    *args: Any,
    opens: Callable[[ClosedJaxpr], bool] = lambda body: True,
    rules: Mapping[str, Callable] = MappingProxyType({}),
) -> list[Any]:
    """Evaluate a jaxpr on arrays, with every call opened, nested calls included; loops and branches are kept.

    Args:
        closed_jaxpr: the program.
        args: its inputs.
        opens: ``opens(body)``, whether to open a call; the others are executed as calls. Derivatives of the result
            do not use an opened custom rule.
        rules: by the name of a primitive with one output, a function of its operands and (by keyword) parameters
            that replaces the primitive.

    Returns:
        The outputs.

    >>> [y] = evaluate(jax.make_jaxpr(lambda x: jax.jit(lambda y: 2 * y)(x) + 1)(1.0), 3.0)
    >>> float(y)
    7.0
    """
    return interpret(
        closed_jaxpr,
        args,
        Step.evaluate,
        rules={name: lambda step, rule=rule: [rule(*step.operands, **step.params)] for name, rule in rules.items()},
        opens=lambda step: opens(step.body),
    )


def open_calls(closed_jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The same jaxpr with every call in it opened, nested calls included; nothing is traced."""
    jaxpr = closed_jaxpr.jaxpr
    if all(body_of_call(equation) is None for equation in jaxpr.eqns):
        return closed_jaxpr
    equations: list[JaxprEqn] = []
    constants = dict(zip(jaxpr.constvars, closed_jaxpr.consts, strict=True))

    def append(body, names, made):
        """Append the equations of a body and return the names of its outputs; ``made`` makes the name of a result."""

        def read(variable):
            return variable if isinstance(variable, Literal) else names[variable]

        for equation in body.eqns:
            ins, inner = [read(v) for v in equation.invars], body_of_call(equation)
            if inner is None:
                outs = list(map(made, equation.outvars))
                equations.append(equation.replace(invars=ins, outvars=outs))
            else:
                own: dict[Var, Any] = {v: Var(v.aval) for v in inner.jaxpr.constvars}
                constants.update(zip(own.values(), inner.consts, strict=True))
                own.update(zip(inner.jaxpr.invars, ins, strict=True))
                outs = append(inner.jaxpr, own, lambda v: Var(v.aval))  # new names, since it may be called twice
            names.update(zip(equation.outvars, outs, strict=True))
        return [read(v) for v in body.outvars]

    outputs = append(jaxpr, {v: v for v in (*jaxpr.constvars, *jaxpr.invars)}, lambda v: v)
    opened = jaxpr.replace(constvars=list(constants), outvars=outputs, eqns=equations)
    return ClosedJaxpr(opened, list(constants.values()))
