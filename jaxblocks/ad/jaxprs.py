"""Jaxprs as functions: one equation, a piece of a program, a program without its calls.

JAX writes a traced function as a jaxpr, a list of equations between variables. The tools
that read functions (counts, traces, plans, Laplacians, patterns) walk these equations;
what they share stands here, built on the public `jax.extend.core` alone.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun

__all__ = ["as_closed", "body_of_call", "evaluate", "inputs_of", "open_calls", "piece", "scan_parts", "scope_of"]


def inputs_of(equations: Iterable[JaxprEqn]) -> list[Var]:
    """The variables that some equations read and none of them makes, each once, in the order of reading.

    >>> equations = jax.make_jaxpr(lambda x, y: x * y + x)(1.0, 2.0).eqns
    >>> len(inputs_of(equations)), len(inputs_of(equations[1:]))
    (2, 2)
    """
    made: set[Var] = set()
    read: dict[Var, None] = {}
    for equation in equations:
        for variable in equation.invars:
            if not isinstance(variable, Literal) and variable not in made:
                read.setdefault(variable)
        made |= set(equation.outvars)
    return list(read)


def piece(jaxpr: Jaxpr, equations: Sequence[JaxprEqn], inputs: Sequence[Var], outputs: Sequence[Any]) -> Callable:
    """Some equations of a jaxpr as a function of ``inputs`` that returns the list of ``outputs``.

    ``inputs`` are distinct variables, those that `inputs_of` names among them; ``outputs`` are
    variables (or literals) that the equations make or read. Every transformation applies.

    >>> jaxpr = jax.make_jaxpr(lambda x, y: x * y + x)(1.0, 2.0).jaxpr
    >>> product = piece(jaxpr, jaxpr.eqns[:1], jaxpr.invars, jaxpr.eqns[0].outvars)
    >>> [y] = product(3.0, 4.0)
    >>> float(y)
    12.0
    """
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


def body_of_call(equation: JaxprEqn) -> ClosedJaxpr | None:
    """The jaxpr that an equation does nothing but call: a jitted function, a checkpoint, a custom rule; else ``None``.

    >>> [equation] = jax.make_jaxpr(jax.jit(lambda x: x + 1))(1.0).eqns
    >>> [inner.primitive.name for inner in body_of_call(equation).eqns]
    ['add']
    """
    name = _CALLS.get(equation.primitive.name)
    return None if name is None else as_closed(equation.params[name])


# The calls, and the parameter that holds what they call.
_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "remat": "jaxpr",
    "checkpoint": "jaxpr",
    "remat2": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
}


def as_closed(jaxpr: ClosedJaxpr | Jaxpr) -> ClosedJaxpr:
    """The same jaxpr, closed: some primitives hold a body without constants open.

    >>> len(as_closed(jax.make_jaxpr(jax.lax.sin)(1.0).jaxpr).eqns)
    1
    """
    return ClosedJaxpr(jaxpr, ()) if isinstance(jaxpr, Jaxpr) else jaxpr


def scan_parts(equation: JaxprEqn) -> tuple[int, int]:
    """How many constants and how many carries the inputs of a scan begin with; the slices follow.

    >>> run = lambda c, xs: jax.lax.scan(lambda c, x: (c * x, c), c, xs)
    >>> [equation] = jax.make_jaxpr(run)(1.0, jax.numpy.ones(3)).eqns
    >>> scan_parts(equation)
    (0, 1)
    """
    body = as_closed(equation.params["jaxpr"]).jaxpr
    # A slice has one axis less in the body than outside: so all is told by public attributes alone.
    carries = sum(len(o.aval.shape) == len(b.aval.shape) for o, b in zip(equation.outvars, body.outvars, strict=True))
    slices = sum(len(o.aval.shape) != len(b.aval.shape) for o, b in zip(equation.invars, body.invars, strict=True))
    return len(equation.invars) - slices - carries, carries


def scope_of(equation: JaxprEqn) -> str:
    """The named scopes that an equation stands in, without the marks that transformations leave.

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
        while depth and name.endswith(")") and name.count(")") > name.count("("):
            name, depth = name[:-1], depth - 1
        if name and name not in ("rematted_computation", "checkpoint"):
            names.append(name)
    return "/".join(names)


_WRAPPERS = ("jvp(", "transpose(", "vmap(", "linearize(")


def evaluate(
    closed_jaxpr: ClosedJaxpr,
    *args: Any,
    opens: Callable[[ClosedJaxpr], bool] = lambda body: True,
    rules: Mapping[str, Callable] = MappingProxyType({}),
) -> list:
    """A jaxpr on values, with every call in it opened: nested calls as well, loops and branches not.

    A custom rule is opened too, and with it lost for derivatives of what comes out. ``opens(body)`` says
    otherwise of a call; ``rules``, by the name of a primitive, compute its one result from its operands
    and parameters in its place.

    >>> [y] = evaluate(jax.make_jaxpr(lambda x: jax.jit(lambda y: 2 * y)(x) + 1)(1.0), 3.0)
    >>> float(y)
    7.0
    """
    jaxpr = closed_jaxpr.jaxpr
    values = dict(zip(jaxpr.constvars, closed_jaxpr.consts, strict=True))
    values |= dict(zip(jaxpr.invars, args, strict=True))

    def read(variable):
        return variable.val if isinstance(variable, Literal) else values[variable]

    for equation in jaxpr.eqns:
        body = body_of_call(equation)
        if equation.primitive.name in rules:
            results = [rules[equation.primitive.name](*map(read, equation.invars), **equation.params)]
        elif body is not None and opens(body):
            results = evaluate(body, *map(read, equation.invars), opens=opens, rules=rules)
        else:
            inputs = inputs_of([equation])
            results = piece(jaxpr, [equation], inputs, equation.outvars)(*map(read, inputs))
        values.update(zip(equation.outvars, results, strict=True))
    return [read(variable) for variable in jaxpr.outvars]


def open_calls(closed_jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The same jaxpr with every call in it opened, as `evaluate` does.

    >>> nested = jax.make_jaxpr(lambda x: jax.jit(lambda y: 2 * y)(x) + 1)(1.0)
    >>> [equation.primitive.name for equation in open_calls(nested).eqns]
    ['mul', 'add']
    """
    if all(body_of_call(equation) is None for equation in closed_jaxpr.eqns):
        return closed_jaxpr
    arguments = [
        jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, weak_type=v.aval.weak_type) for v in closed_jaxpr.jaxpr.invars
    ]
    return jax.make_jaxpr(lambda *args: evaluate(closed_jaxpr, *args))(*arguments)
