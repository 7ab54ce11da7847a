"""The linear program of a function at a point: the equations between its tangents."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun

from jaxblocks.ad.planning.pools import with_plain_pools
from jaxblocks.ad.programs.jaxprs import inputs_of, needed, open_calls, piece, size_of
from jaxblocks.backend.varying import as_structs

__all__ = ["Linear", "is_tangent", "linearized", "width_of"]


class Linear(NamedTuple):
    """A function linearized at a point: the equations between tangents, and the constants that they read.

    Attributes:
        jaxpr: of the linear function, with its calls opened.
        constants: the value of each of its ``constvars``.
        before: the equations without tangents, which compute further constants.
        equations: the equations between tangents, without dead code.
        inputs, outputs: the variables of the inputs and outputs; an output that is not a tangent is zero.
        tangents: every variable that depends on the inputs.
        push: the linear function; pools in it are rewritten (`with_plain_pools`).
        aux: the auxiliary data.
    """

    jaxpr: Jaxpr
    constants: Sequence[Any]
    before: list[JaxprEqn]
    equations: list[JaxprEqn]
    inputs: list[Var]
    outputs: list[Any]
    tangents: set[Var]
    push: Callable[..., list]
    aux: Any = None

    @property
    def is_complex(self) -> bool:
        """Whether some tangent is complex: then a real factor does not commute with a real part."""
        dtypes = {getattr(v.aval, "dtype", bool) for v in self.tangents}
        return any(jnp.issubdtype(dtype, jnp.complexfloating) for dtype in dtypes)

    def values(self) -> dict[Var, Any]:
        """The constants that the equations read, by variable; each call recomputes them."""
        values = dict(zip(self.jaxpr.constvars, self.constants, strict=True))
        if self.before:
            read = [v for v in inputs_of(self.equations) if v not in values and v not in self.tangents]
            inputs = inputs_of(self.before)
            computed = piece(self.jaxpr, self.before, inputs, read)(*(values[v] for v in inputs))
            values |= dict(zip(read, computed, strict=True))
        return values


def linearized(f: Callable, x: Sequence[Any]) -> Linear:
    """The linear program of ``f`` at its arguments ``x``; f returns a list of arrays, and auxiliary data."""
    _, linear, aux = jax.linearize(f, *x, has_aux=True)

    def push(*tangents):  # JAX would print the whole program as the name of ``linear``
        return linear(*tangents)

    # The cuts are between equations, also between those inside of calls.
    opened = open_calls(jax.make_jaxpr(push)(*as_structs(list(x))))
    closed = with_plain_pools(opened)
    if closed is not opened:
        push = jaxpr_as_fun(closed)
    jaxpr = closed.jaxpr
    tangents = set(jaxpr.invars)
    for equation in jaxpr.eqns:
        if any(is_tangent(v, tangents) for v in equation.invars):
            tangents.update(equation.outvars)
    # Without dead code, which would be priced, and would keep other tangents alive at the cuts.
    live = needed(jaxpr.eqns, jaxpr.outvars)
    before = [equation for equation in live if not any(v in tangents for v in equation.outvars)]
    equations = [equation for equation in live if any(v in tangents for v in equation.outvars)]
    ins, outs = list(jaxpr.invars), list(jaxpr.outvars)
    return Linear(jaxpr, closed.consts, before, equations, ins, outs, tangents, push, aux)


def width_of(variables: Iterable[Any]) -> int:
    """The total number of entries of some variables."""
    return sum(map(size_of, variables))


def is_tangent(variable: Any, tangents: set[Var]) -> bool:
    """Whether a variable (or literal) is one of the tangents."""
    return not isinstance(variable, Literal) and variable in tangents
