# ruff: noqa: RUF001
"""The symbols of operations and of their derivatives."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxblocks.ad.programs.liveness import solver_of
from jaxblocks.ad.traces.passes import Operation, Slot
from jaxblocks.ad.traces.printing import is_known

__all__ = ["Symbols", "symbols_of"]

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
# Elementwise operations: the expression, and the derivative with respect to each operand a, b as a factor; y is the
# result, and p, q are the operands where brackets are not needed. For scalars ⊙ becomes ×.
_POINTWISE = {
    "abs": ("|{p}|", "sign {a}"),
    "acos": ("acos {a}", "(-1 / √(1 - {a}²))"),
    "add": ("{a} + {b}", "1", "1"),
    "add_any": ("{a} + {b}", "1", "1"),
    "asin": ("asin {a}", "/ √(1 - {a}²)"),
    "atan": ("atan {a}", "/ (1 + {a}²)"),
    "cos": ("cos {a}", "(-sin {a})"),
    "cosh": ("cosh {a}", "sinh {a}"),
    "div": ("{a} / {b}", "/ {b}", "(-{y} / {b})"),
    "erf": ("erf {a}", "(2 / √π) × exp(-{a}²)"),
    "exp": ("exp {a}", "{y}"),
    "expm1": ("exp {a} - 1", "({y} + 1)"),
    "log": ("ln {a}", "/ {a}"),
    "log1p": ("ln(1 + {a})", "/ (1 + {a})"),
    "logistic": ("σ({p})", "{y} ⊙ (1 - {y})"),
    "max": ("max({p}, {q})", "[{a} > {b}]", "[{b} > {a}]"),
    "min": ("min({p}, {q})", "[{a} < {b}]", "[{b} < {a}]"),
    "mul": ("{a} ⊙ {b}", "{b}", "{a}"),
    "neg": ("-{a}", "-1"),
    "pow": ("{a}^{b}", "{b} ⊙ {a}^({b} - 1)", "{y} ⊙ ln {a}"),
    "rsqrt": ("1 / √{a}", "(-{y} / (2 × {a}))"),
    "sin": ("sin {a}", "cos {a}"),
    "sinh": ("sinh {a}", "cosh {a}"),
    "sqrt": ("√{a}", "/ (2 × {y})"),
    "square": ("{a}²", "2 × {a}"),
    "sub": ("{a} - {b}", "1", "-1"),
    "tan": ("tan {a}", "(1 + {y}²)"),
    "tanh": ("tanh {a}", "(1 - {y}²)"),
}

# Linear operations on complex numbers, with t the tangent or the adjoint: the expression, and the term of each operand
# in the tangent and in the adjoint. JAX pairs an adjoint with a tangent as Re(v̄ v̇), without a conjugate.
_COMPLEX = {
    "complex": ("complex({p}, {q})", ("complex({t}, 0)", "real({t})"), ("complex(0, {t})", "-imag({t})")),
    "conj": ("conj({p})", ("conj({t})", "conj({t})")),
    "imag": ("imag({p})", ("imag({t})", "complex(0, -{t})")),
    "real": ("real({p})", ("real({t})", "complex({t}, 0)")),
}

_COMPARISONS = {"eq": "=", "ne": "≠", "lt": "<", "le": "≤", "gt": ">", "ge": "≥"}


class Symbols(NamedTuple):
    """The expression of an operation and of its derivatives.

    Attributes:
        write: ``write(operands)``, the expression of the result.
        push: ``push(k, t, operands, out)``, the term of the tangent t of operand k in the tangent of the result.
        pull: ``pull(k, t, operands, out)``, the term of the adjoint t of the result in the adjoint of operand k.
        known: whether the derivative has an explicit form; otherwise it is only named, ``∂v₂/∂v₁``.
    """

    write: Callable
    push: Callable
    pull: Callable
    known: bool = True


def symbols_of(step: Operation, out: Slot) -> Symbols:
    """The symbols of one result of an operation."""
    name, equation = step.equation.primitive.name, step.equation
    if name in ("max", "min") and _may_equal(*step.operands):
        write, *factors = _POINTWISE[name]
        return _pointwise(step, write, *(f"({factor} + [{{a}} = {{b}}] / 2)" for factor in factors))
    if name == "abs" and jnp.iscomplexobj(step.operands[0].value):
        return _modulus(step)
    if name == "abs" and _may_equal(step.operands[0]):  # JAX gives the derivative 1 at 0, where the sign is 0
        return _pointwise(step, _POINTWISE[name][0], "([{a} ≥ 0] - [{a} < 0])")
    if name == "pow" and _may_equal(step.operands[0]):  # at 0 JAX leaves out the logarithm
        write, of_base, of_power = _POINTWISE[name]
        return _pointwise(step, write, of_base, f"where([{{a}} = 0], 0, {of_power})")
    if name in _COMPLEX and all(jnp.iscomplexobj(slot.value) == (name != "complex") for slot in step.operands):
        return _of_complex(*_COMPLEX[name])
    if name in _POINTWISE or name == "integer_pow":
        return _pointwise(step, *(_power(equation) if name == "integer_pow" else _POINTWISE[name]))
    if name in _COMPARISONS:
        return _unknown(lambda operands: f"[{operands[0]} {_COMPARISONS[name]} {operands[1]}]")
    if name == "select_n" and len(step.operands) == 3:
        return _select()
    if name == "dot_general":
        product = _product(equation)
        if product is not None:
            return product
    linear = _linear(step, out)
    if linear is not None:
        forward, backward = linear
        return Symbols(
            lambda operands: forward(operands[0]),
            lambda k, t, operands, out: forward(t),
            lambda k, t, operands, out: backward(t),
        )
    several = len(step.outs) > 1
    label = {"scan": f"scan of {equation.params.get('length')} steps"}.get(name, out.operation)
    places = range(len(step.operands))
    if label == "_custom_root" or solver_of(equation) is not None:  # each operand once, of several functions
        label = label if name == "custom_linear_solve" else "custom_root"
        places = [step.operands.index(slot) for slot in dict.fromkeys(step.operands)]
    return _unknown(
        lambda operands: (
            f"{label}({', '.join(_bare(operands[k]) for k in places)})"
            + (f"[{step.outs.index(out)}]" if several else "")
        )
    )


def _may_equal(a: Slot, b: Slot | None = None) -> bool:
    """Whether entries of two operands, or of one and 0, are equal: there max, min, abs and pow have other rules."""
    other = 0 if b is None else b.value
    return not (is_known(a.value) and (b is None or is_known(other))) or bool(np.any(np.equal(a.value, other)))


def _bare(operand: str) -> str:
    """An operand without the brackets of a number, where a function is applied to it."""
    return operand[1:-1] if operand.startswith("(") and operand.endswith(")") else operand


def _of_complex(write, *terms) -> Symbols:
    def term(which):
        return lambda k, t, operands, out: terms[k][which].format(t=_bare(t))

    return Symbols(lambda operands: _filled(write, operands, ""), term(0), term(1))


def _modulus(step) -> Symbols:
    """The absolute value of complex numbers, whose derivative is not a factor."""
    times = "⊙" if jnp.ndim(step.operands[0].value) else "×"
    return Symbols(
        lambda operands: f"|{_bare(operands[0])}|",
        lambda k, t, operands, out: f"real({t} {times} conj(sign {operands[0]}))",
        lambda k, t, operands, out: f"{t} {times} conj(sign {operands[0]})",
    )


def _unknown(write) -> Symbols:
    def push(k, t, operands, out):
        return f"∂{out}/∂{operands[k]} {t}"

    return Symbols(write, push, push, known=False)


def _power(equation):
    power = equation.params["y"]
    raised = str(power).translate(_RAISED)
    # The exponent of the derivative is one less: a^0 is left out, and a^1 has no exponent.
    lower = {0: "", 1: " × {a}"}.get(power - 1, " × {a}" + str(power - 1).translate(_RAISED))
    return "{a}" + raised, (f"{power}" if power >= 0 else f"({power})") + lower


def _filled(template, operands, out) -> str:
    a, b = (*operands, "")[:2]
    return template.format(a=a, b=b, p=_bare(a), q=_bare(b), y=out)


def _pointwise(step, write, *factors) -> Symbols:
    entrywise = all(jnp.ndim(slot.value) for slot in step.operands)

    def fill(template, operands, out):
        return _filled(template, operands, out).replace("⊙", "⊙" if entrywise else "×")

    def push(k, t, operands, out):
        factor = factors[k]
        if factor in ("1", "-1"):
            return factor.replace("1", t)
        return fill(f"{t} {factor}" if factor.startswith("/") else f"{t} ⊙ {factor}", operands, out)

    def pull(k, t, operands, out):
        return {"1": f"{t} × 1", "-1": f"{t} × (-1)"}.get(factors[k]) or push(k, t, operands, out)

    return Symbols(lambda operands: fill(write, operands, ""), push, pull)


def _select() -> Symbols:
    def write(operands):
        return f"where({', '.join(_bare(operands[k]) for k in (0, 2, 1))})"

    def part(k, t, operands, out):
        return write([operands[0], t, "0"] if k == 1 else [operands[0], "0", t])

    return Symbols(write, part, part)


def _product(equation) -> Symbols | None:
    """The product of vectors and matrices over any axis: a matrix may be transposed."""
    (left_axes, right_axes), batch = equation.params["dimension_numbers"]
    left, right = (v.aval.ndim for v in equation.invars)
    if batch != ((), ()) or len(left_axes) != 1 or not 1 <= left <= 2 or not 1 <= right <= 2:
        return None
    # `@` contracts the last axis on the left and the first one on the right; other axes need a transposition.
    left_turned, right_turned = left == 2 and left_axes[0] == 0, right == 2 and right_axes[0] == 1
    sign = " · " if left == right == 1 else " @ "

    def turn(name, turned=True):
        # Two transpositions cancel.
        return (name.removesuffix("ᵀ") if name.endswith("ᵀ") else name + "ᵀ") if turned else name

    def write(operands):
        return turn(operands[0], left_turned) + sign + turn(operands[1], right_turned)

    def push(k, t, operands, out):
        return write([t if i == k else operand for i, operand in enumerate(operands)])

    def pull(k, t, operands, out):
        a, b = turn(operands[0], left_turned), turn(operands[1], right_turned)
        if left == right == 1:
            return f"{t} × {b if k == 0 else a}"
        if k == 0:
            return f"{b} @ {turn(t)}" if left_turned else f"{t} @ {turn(b)}"
        return f"{turn(t)} @ {a}" if right_turned else f"{turn(a)} @ {t}"

    return Symbols(write, push, pull)


def _linear(step, out) -> tuple[Callable, Callable] | None:
    """The expressions of a linear operation of one operand and of its transpose; ``None`` for any other."""
    name, params = step.equation.primitive.name, step.equation.params
    before, after = jnp.shape(step.operands[0].value) if step.operands else (), jnp.shape(out.value)
    if name == "reduce_sum":
        whole = len(params["axes"]) == len(before)
        axes = (
            ""
            if whole
            else f" over {'axis' if len(params['axes']) == 1 else 'axes'} " + ", ".join(map(str, params["axes"]))
        )
        return (lambda t: f"sum {t}{axes}"), (lambda t: f"{t} broadcast to {before}")
    if name == "broadcast_in_dim" and len(step.operands) == 1:
        return (lambda t: f"{t} broadcast to {after}"), (lambda t: f"{t} summed to {before}")
    if name in ("reshape", "squeeze", "expand_dims") and len(step.operands) == 1:
        return (lambda t: f"{t} as {after}"), (lambda t: f"{t} as {before}")
    if name == "transpose":
        if params["permutation"] == (1, 0):
            return (lambda t: f"{t}ᵀ"), (lambda t: f"{t}ᵀ")
        back = tuple(int(i) for i in np.argsort(params["permutation"]))
        return (lambda t: f"{t} with axes {params['permutation']}"), (lambda t: f"{t} with axes {back}")
    if name == "convert_element_type":
        old, new = jnp.result_type(step.operands[0].value), params["new_dtype"]
        return (lambda t: f"{t} as {new}"), (lambda t: f"{t} as {old}")
    if name in ("copy", "copy_p"):
        return (lambda t: t), (lambda t: t)
    if name == "cumsum":
        turned = ("cumsum", "reverse cumsum")[:: -1 if params["reverse"] else 1]
        return (lambda t: f"{turned[0]} {t}"), (lambda t: f"{turned[1]} {t}")
    return None
