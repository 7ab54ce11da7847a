"""The origin of values that are not finite: the first operation, and its layer by the name scopes of a jaxpr."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal

from jaxblocks.ad.jaxprs import as_closed, body_of_call, inputs_of, piece, scan_parts, scope_of

__all__ = ["FirstNonFinite", "first_not_finite"]


class FirstNonFinite(NamedTuple):
    """The result of `first_not_finite`.

    Args:
        layer: the path of the layer, such as ``"2/hidden"``; empty outside of every layer.
        operation: the JAX primitive, such as ``"exp"``.
        iterations: the iterations of the enclosing scans, from 0; ``(3,)`` in the fourth layer of a `Repeat`.
    """

    layer: str
    operation: str
    iterations: tuple[int, ...]

    def __str__(self):
        iterations = "".join(f", scan iteration {i} (from 0)" for i in self.iterations)
        return f"{self.layer or 'outside of the layers'} (operation {self.operation}{iterations})"


def first_not_finite(f: Callable, *args) -> FirstNonFinite | None:
    """The first operation of ``f(*args)`` that returns infinities or NaN for finite inputs; ``None`` if none does.

    Only operations count on which a non-finite output depends: intended infinities (a mask before a softmax, the
    initial value of a maximum) are constants or do not affect an output. The bodies of calls and scans are searched;
    ``while`` and ``cond`` count as one operation.

    >>> def f(x):
    ...     with jax.named_scope("0.shift"):
    ...         x = x - 1
    ...     with jax.named_scope("1.log"):
    ...         return jnp.log(x).sum()
    >>> with jax.debug_nans(False):
    ...     first_not_finite(f, jnp.ones(3))
    FirstNonFinite(layer='1.log', operation='log', iterations=())
    """
    closed = jax.make_jaxpr(f)(*args)
    _, flags = jax.jit(lambda leaves: _run(closed, leaves))(jax.tree.leaves(args))
    return _culprit(closed, jax.device_get(flags), [True] * len(closed.jaxpr.outvars), "", ())


def _bad(x):
    """Whether an array holds infinities or NaN."""
    if not hasattr(x, "dtype") or not jnp.issubdtype(x.dtype, jnp.inexact):
        return jnp.array(False)
    return ~jnp.isfinite(x).all()


def _run(closed, args):
    """The outputs of a jaxpr; for each equation and its body, flags of inputs and outputs that are not finite."""
    jaxpr = closed.jaxpr
    values = dict(zip(jaxpr.constvars, closed.consts, strict=True)) | dict(zip(jaxpr.invars, args, strict=True))
    read = lambda variable: variable.val if isinstance(variable, Literal) else values[variable]
    flags = []
    for equation in jaxpr.eqns:
        operands, inside = [read(v) for v in equation.invars], ()
        body = body_of_call(equation)
        if body is not None:
            results, inside = _run(body, operands)
        elif equation.primitive.name == "scan":
            results, inside = _run_scan(equation, operands)
        else:
            inputs = inputs_of([equation])
            results = piece(jaxpr, [equation], inputs, equation.outvars)(*map(read, inputs))
        values.update(zip(equation.outvars, results, strict=True))
        flags.append(([_bad(x) for x in operands], [_bad(x) for x in results], inside))
    return [read(v) for v in jaxpr.outvars], flags


def _run_scan(equation, operands):
    constants, carries = scan_parts(equation)
    body = as_closed(equation.params["jaxpr"])

    def iteration(carry, slices):
        results, flags = _run(body, [*operands[:constants], *carry, *slices])
        return results[:carries], (results[carries:], flags)

    begin, slices = operands[constants : constants + carries], operands[constants + carries :]
    options = {name: equation.params[name] for name in ("length", "reverse")}
    carry, (stacked, flags) = lax.scan(iteration, begin, slices, **options)
    return [*carry, *stacked], flags


def _culprit(closed, flags, wanted, scope, iterations):
    """The first equation with finite inputs and non-finite outputs on which a wanted output depends."""
    jaxpr, bad, blamed, needed = closed.jaxpr, {}, [], set()
    for equation, (_, results, _) in zip(jaxpr.eqns, flags, strict=True):
        bad.update(zip(equation.outvars, map(bool, results), strict=True))
    needed = {v for v, want in zip(jaxpr.outvars, wanted, strict=True) if want and not isinstance(v, Literal)}
    for equation, (operands, results, inside) in zip(reversed(jaxpr.eqns), reversed(flags), strict=True):
        if not any(bad[v] and v in needed for v in equation.outvars):
            continue
        if any(map(bool, operands)):
            needed |= {v for v, b in zip(equation.invars, operands, strict=True) if b and not isinstance(v, Literal)}
        else:
            blamed.append((equation, results, inside))
    if not blamed:
        return None
    equation, results, inside = blamed[-1]
    scope = "/".join(part for part in (scope, scope_of(equation)) if part)
    results = list(map(bool, results))
    body = body_of_call(equation)
    if body is not None:
        found = _culprit(body, inside, results, scope, iterations)
    elif equation.primitive.name == "scan":
        found = _culprit_in_scan(equation, inside, scope, iterations)
    else:
        found = None
    return found or FirstNonFinite(scope, equation.primitive.name, iterations)


def _culprit_in_scan(equation, inside, scope, iterations):
    """The first iteration that contains such an operation, and that operation."""
    body, length = as_closed(equation.params["jaxpr"]), equation.params["length"]
    for i in reversed(range(length)) if equation.params["reverse"] else range(length):
        flags = jax.tree.map(lambda flag, i=i: np.asarray(flag)[i], inside)
        if found := _culprit(body, flags, [True] * len(body.jaxpr.outvars), scope, (*iterations, i)):
            return found
    return None
