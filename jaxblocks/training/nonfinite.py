"""Where a computation first stops being finite: the layer, read off the names that layers leave in a jaxpr."""

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
    """What `first_not_finite` found.

    Args:
        layer: the path of the layer, ``"2.Repeat/.Dense"``; empty outside of every layer.
        operation: the primitive of JAX, ``"exp"``.
        turns: in which turns of the loops around it (from 0), ``(3,)`` for the fourth layer of a `Repeat`.
    """

    layer: str
    operation: str
    turns: tuple[int, ...]

    def __str__(self):
        turns = "".join(f", turn {turn} of its loop (from 0)" for turn in self.turns)
        return f"{self.layer or 'outside of the layers'} (operation {self.operation}{turns})"


def first_not_finite(f: Callable, *args) -> FirstNonFinite | None:
    """The first operation of ``f(*args)`` that made infinities or NaN out of finite numbers; ``None`` if none did.

    Only what leads to an output that is not finite counts: infinities that are meant (a mask before a
    softmax, the beginning of a maximum) come from constants or die out. Calls and scans are looked into,
    ``while`` and ``cond`` are one operation.

    >>> def f(x):
    ...     with jax.named_scope("0.shift"):
    ...         x = x - 1
    ...     with jax.named_scope("1.log"):
    ...         return jnp.log(x).sum()
    >>> with jax.debug_nans(False):
    ...     first_not_finite(f, jnp.ones(3))
    FirstNonFinite(layer='1.log', operation='log', turns=())
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
    """The outputs of a jaxpr, and for every equation: which inputs and outputs are bad, and the same of its body."""
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

    def turn(carry, slices):
        results, flags = _run(body, [*operands[:constants], *carry, *slices])
        return results[:carries], (results[carries:], flags)

    begin, slices = operands[constants : constants + carries], operands[constants + carries :]
    options = {name: equation.params[name] for name in ("length", "reverse")}
    carry, (stacked, flags) = lax.scan(turn, begin, slices, **options)
    return [*carry, *stacked], flags


def _culprit(closed, flags, wanted, scope, turns):
    """The first equation that makes bad numbers out of good ones and that a wanted output needs."""
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
        found = _culprit(body, inside, results, scope, turns)
    elif equation.primitive.name == "scan":
        found = _culprit_in_scan(equation, inside, scope, turns)
    else:
        found = None
    return found or FirstNonFinite(scope, equation.primitive.name, turns)


def _culprit_in_scan(equation, inside, scope, turns):
    """The first turn in which something goes wrong, and where in it."""
    body, length = as_closed(equation.params["jaxpr"]), equation.params["length"]
    for turn in reversed(range(length)) if equation.params["reverse"] else range(length):
        flags = jax.tree.map(lambda flag, turn=turn: np.asarray(flag)[turn], inside)
        if found := _culprit(body, flags, [True] * len(body.jaxpr.outvars), scope, (*turns, turn)):
            return found
    return None
