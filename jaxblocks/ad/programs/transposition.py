"""The transpose of a linear program, equation by equation; equal equations are transposed only once.

``jax.linear_transpose`` first traces the whole program again. The equations of a deep network repeat in each layer, so
that few of them differ: the transpose of each kind is a small program, traced once and executed for all equations of
that kind.
"""

import contextlib
import functools
from collections.abc import Callable, Hashable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun

from jaxblocks.ad.programs.jaxprs import bodies_of, inputs_of, piece, scope_of
from jaxblocks.backend.varying import as_structs, varying_like

__all__ = ["transpose"]

# With fewer equations of each kind, it takes less time to transpose the whole program.
_REPEATS = 4


def transpose(program: ClosedJaxpr) -> Callable[[Sequence[jax.Array]], list[jax.Array]]:
    """The transpose of a linear function, from the cotangents of its outputs to those of its inputs.

    Args:
        program: the jaxpr of the linear function.

    >>> program = jax.make_jaxpr(lambda x: [2 * x, x])(1.0)
    >>> transpose(program)([jnp.float32(3.0), jnp.float32(1.0)])
    [Array(7., dtype=float32)]
    """
    jaxpr = program.jaxpr
    # Equations that do not depend on a tangent are constants of the linear map: they are executed once, before.
    tangents, before, equations = set(jaxpr.invars), [], []
    for equation in jaxpr.eqns:
        moves = any(not isinstance(v, Literal) and v in tangents for v in equation.invars)
        (equations if moves else before).append(equation)
        tangents.update(equation.outvars if moves else ())
    kinds = [_kind(equation, tangents) for equation in equations]
    if len(equations) < _REPEATS * len(set(kinds)):
        run = jaxpr_as_fun(program)
        whole = jax.linear_transpose(lambda *xs: run(*xs), *as_structs([v.aval for v in jaxpr.invars]))
        return lambda cotangents: list(whole(list(cotangents)))
    values = dict(zip(jaxpr.constvars, program.consts, strict=True))
    if before:
        made, ins = [v for equation in before for v in equation.outvars], inputs_of(before)
        # The constants that the transposed equations read, computed once for all calls of `pull`.
        values.update(zip(made, piece(jaxpr, before, ins, made)(*(values[v] for v in ins)), strict=True))
    rules: dict[Hashable, Callable] = {}

    def pull(cotangents):
        # Sums of cotangents so far; that of a variable is complete when all equations that read it are transposed.
        held: dict[Var, jax.Array] = {}

        # A variable that several equations read has the sum of their cotangents.
        def add(variables, cotangents):
            for v, cotangent in zip(variables, cotangents, strict=True):
                if not isinstance(v, Literal) and v in tangents:
                    held[v] = lax.add(held[v], cotangent) if v in held else cotangent

        add(jaxpr.outvars, cotangents)
        # In reverse order, all equations that read a variable come before the one that makes it.
        for equation, kind in zip(reversed(equations), reversed(kinds), strict=True):
            outs = tuple(i for i, v in enumerate(equation.outvars) if v in held)
            if not outs:  # no output of this equation has a cotangent, so it contributes zero
                continue
            constants, moved = _sides(equation, tangents)
            rule, scope = rules.get((kind, outs)), contextlib.nullcontext()
            if rule is None:
                rule = _rule(jaxpr, equation, constants, moved, outs)
            if kind is not None:
                # Stored rules have no scope of their own, since they serve equations of several layers.
                rules[kind, outs], name = rule, scope_of(equation)
                scope = jax.named_scope(name) if name else scope
            with scope:
                known = [values[v] for v in constants]
                # `pop`: after this equation no other one needs the cotangents of its outputs, so their memory is
                # free.
                add(moved, rule(*known, *(held.pop(equation.outvars[i]) for i in outs)))
        # An input that no output depends on has a zero cotangent, not None.
        zeros = lambda v: varying_like(jnp.zeros(v.aval.shape, v.aval.dtype), v.aval)
        return [held[v] if v in held else zeros(v) for v in jaxpr.invars]

    return pull


def _sides(equation: JaxprEqn, tangents: set[Var]) -> tuple[list[Var], list[Var]]:
    """The constants and the tangents that an equation reads, each once."""
    # An equation such as x * x reads a variable twice; linear_transpose needs it as one argument.
    read = list(dict.fromkeys(v for v in equation.invars if not isinstance(v, Literal)))
    return [v for v in read if v not in tangents], [v for v in read if v in tangents]


def _kind(equation: JaxprEqn, tangents: set[Var]) -> Hashable | None:
    """What two equations with the same transpose have in common; ``None`` for calls and loops."""
    if bodies_of(equation):
        return None
    # The first occurrence of each variable numbers it, so that x * x and x * y are of different kinds.
    places: dict[Var, int] = {}
    reads = tuple(
        (v.aval, np.asarray(v.val).tobytes())
        if isinstance(v, Literal)
        else (v.aval, v in tangents, places.setdefault(v, len(places)))
        for v in equation.invars
    )
    kind = (equation.primitive, tuple(equation.params.items()), reads, equation.ctx)
    try:
        hash(kind)
    except TypeError:  # an array among the parameters
        return None
    return kind


def _rule(jaxpr, equation: JaxprEqn, constants: list[Var], moved: list[Var], outs: Sequence[int]) -> Callable:
    """The transpose of one equation, from its constants and the cotangents of its outputs ``outs``."""
    wanted = [equation.outvars[i] for i in outs]
    repeats = not bodies_of(equation)
    if repeats:  # without the named scope of the first equation of its kind
        equation = equation.replace(source_info=_unnamed())
    run = piece(jaxpr, [equation], [*constants, *moved], wanted)
    structs = as_structs([v.aval for v in moved])

    def pull(*arrays):
        known, cotangents = arrays[: len(constants)], list(arrays[len(constants) :])
        return jax.linear_transpose(lambda *xs: run(*known, *xs), *structs)(cotangents)

    if not repeats:
        return pull
    # Traced to a program once; each further use executes its equations without new tracing.
    return jaxpr_as_fun(jax.make_jaxpr(pull)(*as_structs([v.aval for v in (*constants, *wanted)])))


@functools.cache
def _unnamed():
    """The source of an equation outside of all named scopes."""
    return jax.make_jaxpr(lax.neg)(0.0).eqns[0].source_info
