"""The origin of values that are not finite: the first operation, and its layer by the name scopes of a jaxpr."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxblocks.ad.programs.jaxprs import Step, interpret, interpret_scan, scope_of

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
    closed, traced = jax.make_jaxpr(f)(*args), []

    def run(leaves):
        outputs, flags, operations = _run(closed, [_Value(x) for x in leaves])
        # The trace of run leaves its operations and sources here, which are no arrays and cannot be returned by jit.
        traced.append((operations, [value.source for value in outputs]))
        return flags

    flags = jax.device_get(jax.jit(run)(jax.tree.leaves(args)))
    return _culprit(traced[-1], flags, ())


class _Value(NamedTuple):
    """An array, and its source: the index of an operation and of its output; ``None`` for inputs and constants."""

    array: Any
    source: tuple[int, int] | None = None


class _Operation(NamedTuple):
    """An equation outside of calls; for a scan also the operations of its body, and the sources of its outputs."""

    step: Step
    sources: list[tuple[int, int] | None]
    body: tuple | None


def _bad(x):
    if not hasattr(x, "dtype") or not jnp.issubdtype(x.dtype, jnp.inexact):
        # Integers and keys are always finite.
        return jnp.array(False)
    return ~jnp.isfinite(x).all()


def _run(closed, inputs, around=None):
    """The outputs of a jaxpr, its operations in order, and for each flags of inputs and outputs that are not finite."""
    operations, flags = [], []

    def record(step, outputs, body=None, inside=()):
        flags.append(([_bad(x.array) for x in step.operands], [_bad(x) for x in outputs], inside))
        operations.append(_Operation(step, [x.source for x in step.operands], body))
        return [_Value(x, (len(operations) - 1, k)) for k, x in enumerate(outputs)]

    def scan(step):
        # The body is traced once; its flags come out of the scan stacked over the iterations.
        body = ()

        def iteration(closed, operands, _):
            nonlocal body
            outputs, flags, operations = _run(closed, [_Value(x) for x in operands], step)
            body = operations, [x.source for x in outputs]
            return [x.array for x in outputs], flags

        on_arrays = dataclasses.replace(step, operands=[x.array for x in step.operands])
        outputs, inside = interpret_scan(on_arrays, iteration)
        return record(step, outputs, body, inside)

    evaluate = lambda step: record(step, step.evaluate([x.array for x in step.operands]))
    outputs = interpret(closed, inputs, evaluate, rules={"scan": scan}, constant=_Value, around=around)
    return outputs, flags, operations


def _culprit(body, flags, iterations):
    """The first operation with finite inputs and non-finite outputs on which an output of the body depends."""
    operations, sources = body
    needed, first = set(sources), None
    # Backward from the outputs: a value that is not finite but reaches no output, such as one that a mask removes, is
    # no cause.
    for i in reversed(range(len(operations))):
        inputs, outputs, _ = flags[i]
        if not any(bad and (i, k) in needed for k, bad in enumerate(outputs)):
            continue
        if any(inputs):
            needed |= {source for source, bad in zip(operations[i].sources, inputs, strict=True) if bad}
        else:
            # The search runs backward, so that the last one that is found is the first in order.
            first = i
    if first is None:
        return None
    step, _, inner = operations[first]
    length = step.params["length"] if inner else 0
    # A reversed scan makes its iterations from the last one to the first.
    for i in reversed(range(length)) if inner and step.params["reverse"] else range(length):
        inside = jax.tree.map(lambda flag, i=i: flag[i], flags[first][2])
        # In the first iteration whose body has such an operation; the flags of a scan have an axis of iterations.
        if found := _culprit(inner, inside, (*iterations, i)):
            return found
    return FirstNonFinite(_scope(step), step.name, iterations)


def _scope(step: Step | None) -> str:
    """The named scopes around an operation, those of the enclosing calls and scans first."""
    return "" if step is None else "/".join(filter(None, (_scope(step.around), scope_of(step.equation))))
