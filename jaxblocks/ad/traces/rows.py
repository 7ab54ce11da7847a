"""The rows of the three traces, as symbols and numbers."""

import jax.numpy as jnp

from jaxblocks.ad.traces.passes import pull
from jaxblocks.ad.traces.printing import bracketed, marked
from jaxblocks.ad.traces.symbols import symbols_of
from jaxblocks.ad.traces.tables import TraceRow

__all__ = ["forward_rows", "reverse_rows"]

_DOT, _BAR = "\N{COMBINING DOT ABOVE}", "\N{COMBINING MACRON}"


def forward_rows(inputs, constants, steps, outputs) -> tuple[tuple[TraceRow, ...], tuple[TraceRow, ...]]:
    """The rows of the primal and of the tangent trace."""
    primal = [TraceRow(slot.name, "constant", slot.name, (), slot.value) for slot in constants]
    tangents = []
    for slot in inputs:
        primal.append(TraceRow(slot.name, "input", slot.name, (slot.operation,), slot.value))
        named = marked(slot.operation, _DOT, "tangent")
        tangents.append(TraceRow(marked(slot.name, _DOT), "input", slot.name, (named,), slot.tangent))
    for step in steps:
        for out in (slot for slot in step.outs if slot.name):
            primal.append(TraceRow(out.name, "operation", out.name, _written(step, out), out.value))
            if out.active:
                row = TraceRow(marked(out.name, _DOT), "operation", out.name, _pushed(step, out), out.tangent)
                tangents.append(row)
    for name, slot in outputs:
        primal.append(TraceRow(name, "output", slot.name, (slot.symbol,), slot.value))
        if slot.active:
            named = marked(slot.name, _DOT)
            tangents.append(TraceRow(marked(name, _DOT, "tangent"), "output", slot.name, (named,), slot.tangent))
    return tuple(primal), tuple(tangents)


def _written(step, out) -> tuple[str, ...]:
    # Numbers are written only where all operands are scalars: an array does not fit into a formula.
    symbols = symbols_of(step, out).write([slot.symbol for slot in step.operands])
    if not (out.scalar and all(slot.scalar for slot in step.operands)):
        return (symbols,)
    return symbols, symbols_of(step, out).write([bracketed(slot.value) for slot in step.operands])


def _pushed(step, out) -> tuple[str, ...]:
    rule = symbols_of(step, out)

    def written(symbol, moved):
        names = [symbol(slot) for slot in step.operands]
        places = [k for k, slot in enumerate(step.operands) if slot.active]
        if not rule.known:  # the derivative with respect to a slot is that of all its places
            places = [step.operands.index(slot) for slot in step.read]
        return _sum(rule.push(k, moved(step.operands[k]), names, symbol(out)) for k in places)

    symbols = written(lambda slot: slot.symbol, lambda slot: marked(slot.name, _DOT))
    if not (rule.known and out.scalar and all(slot.scalar for slot in step.operands)):
        return (symbols,)
    numbers = written(lambda slot: bracketed(slot.value), lambda slot: bracketed(slot.tangent))
    return (symbols,) if numbers == bracketed(out.tangent) else (symbols, numbers)  # the tangent of one operand


def reverse_rows(inputs, steps, outputs) -> tuple[TraceRow, ...]:
    """Run the reverse pass, and write its rows: the adjoint trace."""
    rows = []
    for name, slot, cotangent in outputs:
        if slot.active:
            # One slot may be several outputs; the cotangents add up.
            before = [marked(slot.name, _BAR)] if slot.adjoint is not None else []
            slot.adjoint = cotangent if slot.adjoint is None else slot.adjoint + cotangent
            chain = _sum([*before, marked(name, _BAR, "adjoint")])
            rows.append(TraceRow(marked(slot.name, _BAR), "output", slot.name, (chain,), slot.adjoint))
    for step in reversed(steps):
        rows += _pulled(step)
    for slot in inputs:
        slot.adjoint = jnp.zeros_like(slot.value) if slot.adjoint is None else slot.adjoint
        name, bar = marked(slot.operation, _BAR, "adjoint"), marked(slot.name, _BAR)
        rows.append(TraceRow(name, "input", slot.name, (bar,), slot.adjoint))
    return tuple(rows)


def _pulled(step) -> list[TraceRow]:
    """One row for each operand of an operation: its adjoint so far, and the term that this operation adds."""
    if all(out.adjoint is None for out in step.flowing):
        return []
    # Outputs without an adjoint do not occur in the formulas, but the pullback needs zeros for them.
    known = [slot for slot in step.flowing if slot.adjoint is not None]
    for out in step.flowing:
        out.adjoint = jnp.zeros_like(out.value) if out.adjoint is None else out.adjoint
    rows = []
    more_for_each = pull(step.moving[0], [slot.value for slot in step.read], [out.adjoint for out in step.flowing])
    for slot, more in zip(step.read, more_for_each, strict=True):
        bar = marked(slot.name, _BAR)
        chain, formula = ([] if slot.adjoint is None else [bar] for _ in range(2))
        for out in known:
            rule, names = symbols_of(step, out), [operand.symbol for operand in step.operands]
            places = [k for k, operand in enumerate(step.operands) if operand is slot]
            chain.append(_chained(slot, out))
            formula += [rule.pull(k, marked(out.name, _BAR), names, out.symbol) for k in places if rule.known]
            formula += [] if rule.known else [_chained(slot, out)]
        slot.adjoint = more if slot.adjoint is None else slot.adjoint + more
        expressions = tuple(dict.fromkeys([_sum(chain), _sum(formula)]))
        rows.append(TraceRow(bar, "operation", slot.name, expressions, slot.adjoint, known[0].name))
    return rows


def _chained(slot, out) -> str:
    """The chain rule for one operand: a product, or for arrays the transposed Jacobian times the adjoint."""
    bar = marked(out.name, _BAR)
    if jnp.ndim(slot.value) == jnp.ndim(out.value) == 0:
        return f"{bar} ∂{out.name}/∂{slot.name}"
    return f"(∂{out.name}/∂{slot.name})ᵀ {bar}"


def _sum(terms) -> str:
    return " + ".join(terms).replace("+ -", "- ")
