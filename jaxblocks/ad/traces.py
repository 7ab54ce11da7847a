# ruff: noqa: RUF001
"""Evaluation traces: what a derivative does, line by line, in symbols and in numbers.

A function is a list of simple operations, its Wengert list. Three passes run over it:

    v_k     the forward primal trace: each value from the ones before it
    v_k'    the forward tangent trace: the derivative of v_k along one direction of the inputs
    dy/dv_k the reverse adjoint trace: from the output back, each operation adds to its operands

The inputs are numbered up to 0, the operations from 1, as surveys print them. The operations
are read off the jaxpr and ordered by depth: first those that need inputs alone, then those
that need them, and so on.

In print tangents carry a dot, adjoints a bar; ``⊙`` multiplies entry by entry, ``@`` is a product
of matrices (a vector is a column on its right and a row on its left), ``[a > b]`` is 1 where that holds and
else 0, and where no shorter form is known ``∂v₂/∂v₁`` stands for the derivative of the operation.
"""

import dataclasses
import html
import inspect
import math
import unicodedata
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from jaxtyping import PyTree

from jaxblocks.ad.arguments import as_point
from jaxblocks.ad.jaxlib_check import warn_if_jaxlib_is_wrong
from jaxblocks.ad.jaxprs import body_of_call, inputs_of, piece
from jaxblocks.axes import PALETTE, axes_or_new
from jaxblocks.checks import describe, describe_any

__all__ = ["TraceNode", "TraceRow", "TraceTable", "trace_table"]


@dataclasses.dataclass(frozen=True, eq=False)
class TraceNode:
    """One variable of a trace: an input, a constant or the result of one operation; a node of the computational graph.

    Attributes:
        name: as it is printed, ``"v₁"``; constants are ``"c₁"``.
        kind: ``"input"``, ``"constant"`` or ``"operation"``.
        operation: the name of the primitive, or of the function whose own derivative rule is used (``"relu"``);
            for an input its name in the function, for a constant ``""``.
        parents: the names of the nodes that it is computed from; numbers in the program are no nodes.
        level: its depth, 0 for inputs and constants, else one more than the deepest of its parents.
        value, tangent, adjoint: arrays of one shape; tangent and adjoint are ``None`` where nothing flows
            (constants, integers, and what depends on them alone).

    >>> [(node.name, node.operation, node.parents) for node in trace_table(lambda x: jnp.sin(x) * x, 2.0).nodes]
    [('v₀', 'x', ()), ('v₁', 'sin', ('v₀',)), ('v₂', 'mul', ('v₁', 'v₀'))]
    """

    name: str
    kind: str
    operation: str
    parents: tuple[str, ...]
    level: int
    value: Any
    tangent: Any
    adjoint: Any


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class TraceRow:
    """One line of a trace: ``name = expression = ... = value``.

    Attributes:
        name: the left-hand side, ``"v₁"``, ``"v̇₁"`` or ``"v̄₁"``.
        kind: ``"input"``, ``"constant"``, ``"operation"`` or ``"output"``.
        node: the name of the node that it is about.
        expressions: right-hand sides in symbols; the last one in numbers, where all of them are scalars.
        value: an array; for an adjoint what has come together so far.

    >>> trace_table(lambda x: jnp.log(x), 2.0).primal[1]
    v₁ = ln v₀ = ln 2 = 0.693
    """

    name: str
    kind: str
    node: str
    expressions: tuple[str, ...]
    value: Any

    def __repr__(self):
        parts = [self.name, *self.expressions, _text(self.value)]
        return " = ".join(part for i, part in enumerate(parts) if i == 0 or part != parts[i - 1])


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class TraceTable:
    """The three traces of a function at a point, as `trace_table` reads them.

    It prints as text and in a notebook; `plot` draws the graph; ``table[k]`` is the node :math:`v_k`.

    Attributes:
        primal, tangent, adjoint: rows in the order in which they are computed. An operation adds to the adjoints of
            its operands in the order in which it reads them.
        nodes: of the computational graph, in the order of the primal trace.
        value: what the function returns.
        derivative: along the tangent, like ``value``.
        gradient: one for each argument, like the arguments: what the reverse pass ends with.

    >>> table = trace_table(lambda x1, x2: x1 * x2, 2.0, 5.0)
    >>> float(table.value), float(table.derivative), [float(g) for g in table.gradient]
    (10.0, 5.0, [5.0, 2.0])
    >>> table[1].operation
    'mul'
    """

    primal: tuple[TraceRow, ...]
    tangent: tuple[TraceRow, ...]
    adjoint: tuple[TraceRow, ...]
    nodes: tuple[TraceNode, ...]
    value: Any
    derivative: Any
    gradient: tuple

    def __getitem__(self, k: int) -> TraceNode:
        name = _numbered("v", k)
        for node in self.nodes:
            if node.name == name:
                return node
        numbers = [_number_of(node.name) for node in self.nodes if node.name.startswith("v")]
        raise IndexError(f"This trace has no v_{k}; its variables are v_{min(numbers)} to v_{max(numbers)}.")

    def __repr__(self):
        return "\n\n".join(_aligned(headings, lines) for headings, lines in self._sections())

    def _repr_html_(self) -> str:
        pieces = []
        for headings, lines in self._sections():
            rows = ["".join(f"<th>{html.escape(heading)}</th>" for heading in headings)]
            rows += ["".join(f"<td style='text-align: left'>{html.escape(c)}</td>" for c in line) for line in lines]
            pieces.append("<table>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</table>")
        return "".join(pieces)

    def _sections(self):
        moving, tangents = {node.name for node in self.nodes if node.tangent is not None}, iter(self.tangent)
        forward = [(str(row), str(next(tangents)) if row.node in moving else "") for row in self.primal]
        return [
            (("forward primal trace", "forward tangent trace"), forward),
            (("reverse adjoint trace",), [(str(row),) for row in self.adjoint]),
        ]

    def plot(self, ax=None, *, step: int | None = None):
        """Draw the computational graph, from the inputs to the output by depth; returns the axes.

        Values stand under the nodes, adjoints (red) above them.

        Args:
            ax: matplotlib axes; new ones without it.
            step: shows the state after so many rows of the forward pass and then of the reverse pass, from 0
                to ``len(table.primal) + len(table.adjoint)``; all of them without it. One picture for each
                step shows both passes as dynamic programming: nothing is computed twice.

        >>> import pytest
        >>> matplotlib = pytest.importorskip("matplotlib")
        >>> matplotlib.use("agg")
        >>> axes = trace_table(lambda x: jnp.sin(x) * x, 2.0).plot()
        >>> axes.get_title()
        'value and adjoint of every node'
        """
        steps = len(self.primal) + len(self.adjoint)
        if step is not None and not 0 <= step <= steps:
            raise ValueError(f"This trace has steps 0 to {steps}, but step={step} came.")
        places = _places(self.nodes)
        size = [1.5 + 1.5 * len({place[axis] for place in places.values()}) for axis in (0, 1)]
        ax = axes_or_new(ax, figsize=(size[0], min(size[1], 9.0)))
        done = steps if step is None else step
        forward, backward = self.primal[:done], self.adjoint[: max(0, done - len(self.primal))]
        values = {row.node: _text(row.value, 2) for row in forward}
        adjoints = {row.node: _text(row.value, 2) for row in backward}
        now = (backward or forward)[-1].node if step else None  # the node that this step is about
        for node in self.nodes:
            for parent in dict.fromkeys(node.parents):
                others = [place for name, place in places.items() if name not in (node.name, parent)]
                bend = _bend(places[parent], places[node.name], others)
                ax.annotate(
                    "",
                    places[node.name],
                    places[parent],
                    arrowprops=dict(
                        arrowstyle="->",
                        color="#666666",
                        shrinkA=17,
                        shrinkB=17,
                        connectionstyle=f"arc3,rad={bend}",
                    ),
                )
        for node in self.nodes:
            x, y = places[node.name]
            color = _COLORS[node.kind] if node.name in values else "white"
            ax.plot(x, y, "o", markersize=32, color=color, markeredgecolor="black", linestyle="none")
            if node.name == now:
                ax.plot(x, y, "o", markersize=37, color="none", markeredgecolor=_RED, linestyle="none")
            ax.annotate(f"{_mathtext(node.name)}\n{_sign(node)}", (x, y), ha="center", va="center", fontsize=8)
            for words, offset, paint in ((values, -27, "black"), (adjoints, 27, _RED)):
                if node.name in words:
                    ax.annotate(
                        words[node.name],
                        (x, y),
                        (0, offset),
                        textcoords="offset points",
                        ha="center",
                        va="center",
                        fontsize=8,
                        color=paint,
                    )
        across, along = zip(*places.values(), strict=True)
        ax.set_xlim(min(across) - 0.6, max(across) + 0.6)
        ax.set_ylim(min(along) - 0.7, max(along) + 0.7)
        ax.set_axis_off()
        last = (backward or forward)[-1:] if step is not None else ()
        ax.set_title(_plain(str(last[0])) if last else "value and adjoint of every node", fontsize=9)
        return ax


def trace_table(
    f: Callable, /, *args: Any, tangent: PyTree | None = None, cotangent: PyTree | None = None
) -> TraceTable:
    r"""The forward primal, forward tangent and reverse adjoint trace of a function, symbols and values side by side.

    With :math:`v_k = \phi_k(v_i, v_j, \ldots)` for each operation,

    .. math::
        \dot v_k = \sum_i \frac{\partial v_k}{\partial v_i} \dot v_i, \qquad
        \bar v_i = \sum_k \Big(\frac{\partial v_k}{\partial v_i}\Big)^\top \bar v_k .

    Calls of jitted functions are opened; a loop, a branch, or a function with its own derivative rule is one
    operation. Whatever the symbols can say, the values are those of ``jax.jvp`` and ``jax.vjp`` of each single
    operation: the gradient is that of ``jax.grad``.

    Args:
        f: any function that JAX can trace; its values may not decide on Python branches, as under ``jit``.
        args: the point, pytrees of floating-point arrays. What is not to be differentiated (labels that are
            integers, keys) is closed over.
        tangent: :math:`\dot x`, a tuple like ``args``. Without it: 1 for the first argument (each number in it),
            0 for the others.
        cotangent: :math:`\bar y`, like what ``f`` returns; without it 1, where that is a scalar.

    Raises:
        TypeError: where an argument or a result is not floating-point.
        ValueError: where ``f`` is not scalar-valued and no cotangent is given, or where ``tangent`` or ``cotangent``
            have another structure or other shapes.

    >>> trace_table(lambda x1, x2: jnp.log(x1) + x1 * x2 - jnp.sin(x2), 2.0, 5.0)
    forward primal trace                       forward tangent trace
    -----------------------------------------  --------------------------------------------
    v₋₁ = x1 = 2                               v̇₋₁ = ẋ1 = 1
    v₀ = x2 = 5                                v̇₀ = ẋ2 = 0
    v₁ = ln v₋₁ = ln 2 = 0.693                 v̇₁ = v̇₋₁ / v₋₁ = 1 / 2 = 0.5
    v₂ = v₋₁ × v₀ = 2 × 5 = 10                 v̇₂ = v̇₋₁ × v₀ + v̇₀ × v₋₁ = 1 × 5 + 0 × 2 = 5
    ...

    Source: Baydin, Pearlmutter, Radul & Siskind, Automatic differentiation in machine learning: a survey, tables 2
    and 3; Cevher, Mathematics of Data (where :math:`v_2` is printed with a wrong second factor).
    """
    warn_if_jaxlib_is_wrong()
    if not callable(f):
        raise TypeError(
            f"trace_table expects a function f first, but {describe_any(f)} came; write trace_table(f, x1, x2)."
        )
    if not args:
        raise ValueError("trace_table expects the arguments of f after it, trace_table(f, x1, x2), but none came.")
    _require_floating_args(f, args)
    args = as_point(args)
    if tangent is None:
        tangent = (jax.tree.map(jnp.ones_like, args[0]), *jax.tree.map(jnp.zeros_like, args[1:]))
    else:
        tangent = _like("tangent", tangent, "args", args, "give a tuple with one entry for each argument, of its shape")
    closed, shapes = jax.make_jaxpr(f, return_shape=True)(*args)
    cotangent = _start(cotangent, shapes)

    inputs = [
        _Slot("input", label, value=value, active=True, tangent=direction)
        for label, value, direction in zip(
            _labels(closed, args), jax.tree.leaves(args), jax.tree.leaves(tangent), strict=True
        )
    ]
    steps: list[_Step] = []
    outputs = _read(closed, inputs, steps)
    steps = sorted(_needed(steps, outputs), key=lambda step: step.level)
    constants = _name(inputs, steps, outputs)
    for step in steps:
        _run_forward(step)
    structure = jax.tree.structure(shapes)
    letter = "y" if all(slot.operation != "y" for slot in inputs) else "f"
    names = [letter + jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(shapes)]
    primal, tangents = _forward_rows(inputs, constants, steps, list(zip(names, outputs, strict=True)))
    adjoints = _reverse_rows(inputs, steps, list(zip(names, outputs, jax.tree.leaves(cotangent), strict=True)))
    made = [slot for step in steps for slot in step.outs if slot.name]
    return TraceTable(
        primal=primal,
        tangent=tangents,
        adjoint=adjoints,
        nodes=tuple(slot.node() for slot in (*constants, *inputs, *made)),
        value=structure.unflatten([jnp.asarray(slot.value) for slot in outputs]),
        derivative=structure.unflatten([slot.moved() for slot in outputs]),
        gradient=jax.tree.structure(args).unflatten([slot.adjoint for slot in inputs]),
    )


# ---- what comes in ------------------------------------------------------------------------


def _require_floating_args(f, args) -> None:
    """A ``TypeError`` for an argument that is not floating-point, by its name in ``f``."""
    try:
        names = list(inspect.signature(f).bind(*args).arguments)
    except (TypeError, ValueError):
        names = []
    names = names if len(names) == len(args) else [f"x{place}" for place in range(1, len(args) + 1)]
    for name, arg in zip(names, args, strict=True):
        for path, leaf in jax.tree_util.tree_leaves_with_path(arg):
            array = hasattr(leaf, "dtype") and hasattr(leaf, "shape")
            if isinstance(leaf, float) or (array and jnp.issubdtype(leaf.dtype, jnp.floating)):
                continue
            repair = "convert it with .astype(jnp.float32)" if array else "give an array"
            if isinstance(leaf, int) and abs(leaf) < 1e6:
                repair = f"write {float(leaf)!r}"
            raise TypeError(
                "trace_table differentiates with respect to floating-point arrays, but "
                f"{name}{jax.tree_util.keystr(path)} is {describe_any(leaf)}; {repair}, or close over it as a "
                "constant of f."
            )


def _like(name, given, other, wanted, repair):
    """``given`` as arrays, with the structure, shapes and dtypes of ``wanted``; else one sentence."""
    if jax.tree.structure(given) != jax.tree.structure(wanted):
        raise ValueError(
            f"trace_table expects {name} like {other}, {jax.tree.structure(wanted)}, but "
            f"{jax.tree.structure(given)} came; {repair}."
        )
    leaves = []
    for (path, leaf), target in zip(jax.tree_util.tree_leaves_with_path(given), jax.tree.leaves(wanted), strict=True):
        leaf = jnp.asarray(leaf, target.dtype if isinstance(leaf, int | float) else None)
        if (leaf.shape, leaf.dtype) != (target.shape, target.dtype):
            raise ValueError(
                f"trace_table expects {name} like {other}, but {name}{jax.tree_util.keystr(path)} is {describe(leaf)} "
                f"where {describe(target)} is wanted; {repair}."
            )
        leaves.append(leaf)
    return jax.tree.unflatten(jax.tree.structure(wanted), leaves)


def _start(cotangent, shapes):
    """Where the reverse pass starts: the cotangent, or 1 for a scalar."""
    leaves = jax.tree.leaves(shapes)
    for leaf in leaves:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise TypeError(
                f"trace_table expects f to return floating-point arrays, but {describe(leaf)} came; return only what "
                "is to be differentiated."
            )
    if cotangent is not None:
        return _like("cotangent", cotangent, "what f returns", shapes, "give one entry for each number that f returns")
    if len(leaves) != 1 or leaves[0].shape:
        came = ", ".join(map(describe, leaves)) or "nothing"
        raise ValueError(
            f"trace_table expects f to return a scalar, for a reverse pass starts from one number, but {came} came; "
            "pass cotangent=, the weights of the outputs, or ask jax.jacobian for the derivatives of all of them."
        )
    return jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), shapes)


def _labels(closed, args) -> list[str]:
    """The names of the inputs in the function, ``x1`` or ``params['w']``; with a place where it has none."""
    names = closed.jaxpr.debug_info.arg_names
    paths = [jax.tree_util.keystr(path[1:]) for path, _ in jax.tree_util.tree_leaves_with_path(args)]
    places = [path[0].idx + 1 for path, _ in jax.tree_util.tree_leaves_with_path(args)]
    known = names is not None and len(names) == len(paths) and all(names)
    return list(names) if known else [f"x{place}{path}" for place, path in zip(places, paths, strict=True)]


# ---- the list of operations ---------------------------------------------------------------


@dataclasses.dataclass(eq=False)
class _Slot:
    """A variable while the passes run over it; two of them are equal only if they are one."""

    kind: str
    operation: str = ""
    value: Any = None
    active: bool = False  # an inexact number that depends on the inputs
    level: int = 0
    name: str = ""
    parents: tuple = ()
    tangent: Any = None
    adjoint: Any = None

    @property
    def symbol(self) -> str:
        return self.name or _bracketed(self.value)

    @property
    def scalar(self) -> bool:
        return jnp.ndim(self.value) == 0 and _known(self.value)

    def moved(self):
        return self.tangent if self.active else jnp.zeros_like(self.value)

    def node(self) -> TraceNode:
        parents = tuple(slot.name for slot in self.parents if slot.name)
        return TraceNode(
            self.name, self.kind, self.operation, parents, self.level, self.value, self.tangent, self.adjoint
        )


class _Step(NamedTuple):
    """One equation between slots; the forward pass adds it as a function of ``read`` that returns ``flowing``."""

    jaxpr: Jaxpr
    equation: JaxprEqn
    operands: list[_Slot]
    outs: list[_Slot]
    moving: list

    @property
    def level(self) -> int:
        return self.outs[0].level

    @property
    def read(self) -> list[_Slot]:
        """Those operands that derivatives flow to, each once."""
        return list(dict.fromkeys(slot for slot in self.operands if slot.active))

    @property
    def flowing(self) -> list[_Slot]:
        return [slot for slot in self.outs if slot.active]


def _read(closed: ClosedJaxpr, arguments: list[_Slot], steps: list[_Step]) -> list[_Slot]:
    """The steps of a jaxpr, calls opened, except those that bring their own derivative rule; returns its outputs."""
    jaxpr = closed.jaxpr
    slots = {v: _Slot("constant", value=c) for v, c in zip(jaxpr.constvars, closed.consts, strict=True)}
    slots |= dict(zip(jaxpr.invars, arguments, strict=True))

    def slot(variable):
        return _Slot("literal", value=variable.val) if isinstance(variable, Literal) else slots[variable]

    for equation in jaxpr.eqns:
        name = equation.primitive.name
        operands = [slot(v) for v in equation.invars]
        body = body_of_call(equation)
        if body is not None and not name.startswith("custom_"):
            outs = _read(body, operands, steps)
        elif name == "convert_element_type" and equation.invars[0].aval.dtype == equation.outvars[0].aval.dtype:
            outs = operands  # a mark of the dtype, no operation
        else:
            level = 1 + max((operand.level for operand in operands), default=0)
            label = name if body is None else body.jaxpr.debug_info.func_name
            outs = [_Slot("operation", label, level=level, parents=tuple(operands)) for _ in equation.outvars]
            steps.append(_Step(jaxpr, equation, operands, outs, []))
        slots.update(zip(equation.outvars, outs, strict=True))
    return [slot(v) for v in jaxpr.outvars]


def _needed(steps: list[_Step], outputs: list[_Slot]) -> list[_Step]:
    wanted, kept = set(outputs), []
    for step in reversed(steps):
        if wanted & set(step.outs):
            wanted |= set(step.operands)
            kept.append(step)
    return kept[::-1]


def _name(inputs, steps, outputs) -> list[_Slot]:
    """Number what is there, and return the constants: those that are arrays, for scalar ones are written as numbers."""
    read = dict.fromkeys([slot for step in steps for slot in step.operands] + outputs)
    constants = [slot for slot in read if slot.kind in ("constant", "literal")]
    constants = [slot for slot in constants if jnp.ndim(slot.value) or not _known(slot.value)]
    made = [slot for step in steps for slot in step.outs if slot in read]
    for k, slot in enumerate(inputs, 1 - len(inputs)):
        slot.name = _numbered("v", k)
    for k, slot in enumerate(made, 1):
        slot.name = _numbered("v", k)
    for k, slot in enumerate(constants, 1):
        slot.kind, slot.name = "constant", _numbered("c", k)
    return constants


def _run_forward(step: _Step) -> None:
    """Values and tangents of one equation; nothing about its derivative is assumed."""
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
    tangents = _push(moving, [slot.value for slot in step.read], [slot.tangent for slot in step.read])
    for slot, tangent in zip(step.flowing, tangents, strict=True):
        slot.tangent = tangent


def _again(value):
    """A value that is not differentiated; a key once more, for each pass makes the same numbers of it."""
    is_key = jnp.issubdtype(getattr(value, "dtype", None), jax.dtypes.prng_key)
    return jax.random.clone(value) if is_key else value


def _push(function, values, tangents) -> list:
    try:
        return jax.jvp(function, (values,), (tangents,))[1]
    except TypeError:  # it has a rule for reverse mode alone: the transpose of that
        results, pull = jax.vjp(function, values)
        return jax.linear_transpose(lambda cotangents: pull(cotangents)[0], results)(tangents)[0]


def _pull(function, values, cotangents) -> list:
    try:
        return jax.vjp(function, values)[1](cotangents)[0]
    except ValueError:  # a loop of unknown length runs forward alone: its Jacobian, transposed
        jacobians = jax.jacfwd(function)(values)  # by result, by operand
        return [
            sum(jnp.tensordot(c, row[k], c.ndim) for c, row in zip(cotangents, jacobians, strict=True))
            for k in range(len(values))
        ]


# ---- the rows -----------------------------------------------------------------------------

_DOT, _BAR = "\N{COMBINING DOT ABOVE}", "\N{COMBINING MACRON}"


def _forward_rows(inputs, constants, steps, outputs):
    primal = [TraceRow(slot.name, "constant", slot.name, (), slot.value) for slot in constants]
    tangents = []
    for slot in inputs:
        primal.append(TraceRow(slot.name, "input", slot.name, (slot.operation,), slot.value))
        named = _marked(slot.operation, _DOT, "tangent")
        tangents.append(TraceRow(_marked(slot.name, _DOT), "input", slot.name, (named,), slot.tangent))
    for step in steps:
        for out in (slot for slot in step.outs if slot.name):
            primal.append(TraceRow(out.name, "operation", out.name, _written(step, out), out.value))
            if out.active:
                row = TraceRow(_marked(out.name, _DOT), "operation", out.name, _pushed(step, out), out.tangent)
                tangents.append(row)
    for name, slot in outputs:
        primal.append(TraceRow(name, "output", slot.name, (slot.symbol,), slot.value))
        if slot.active:
            named = _marked(slot.name, _DOT)
            tangents.append(TraceRow(_marked(name, _DOT, "tangent"), "output", slot.name, (named,), slot.tangent))
    return tuple(primal), tuple(tangents)


def _written(step, out) -> tuple[str, ...]:
    symbols = _symbols(step, out).write([slot.symbol for slot in step.operands])
    if not (out.scalar and all(slot.scalar for slot in step.operands)):
        return (symbols,)
    return symbols, _symbols(step, out).write([_bracketed(slot.value) for slot in step.operands])


def _pushed(step, out) -> tuple[str, ...]:
    rule = _symbols(step, out)

    def written(symbol, moved):
        names = [symbol(slot) for slot in step.operands]
        places = [k for k, slot in enumerate(step.operands) if slot.active]
        return _sum(rule.push(k, moved(step.operands[k]), names, symbol(out)) for k in places)

    symbols = written(lambda slot: slot.symbol, lambda slot: _marked(slot.name, _DOT))
    if not (rule.known and out.scalar and all(slot.scalar for slot in step.operands)):
        return (symbols,)
    return symbols, written(lambda slot: _bracketed(slot.value), lambda slot: _bracketed(slot.tangent))


def _reverse_rows(inputs, steps, outputs):
    rows = []
    for name, slot, cotangent in outputs:
        if slot.active:
            before = [_marked(slot.name, _BAR)] if slot.adjoint is not None else []
            slot.adjoint = cotangent if slot.adjoint is None else slot.adjoint + cotangent
            chain = _sum([*before, _marked(name, _BAR, "adjoint")])
            rows.append(TraceRow(_marked(slot.name, _BAR), "output", slot.name, (chain,), slot.adjoint))
    for step in reversed(steps):
        rows += _pulled(step)
    for slot in inputs:
        slot.adjoint = jnp.zeros_like(slot.value) if slot.adjoint is None else slot.adjoint
        name, bar = _marked(slot.operation, _BAR, "adjoint"), _marked(slot.name, _BAR)
        rows.append(TraceRow(name, "input", slot.name, (bar,), slot.adjoint))
    return tuple(rows)


def _pulled(step) -> list[TraceRow]:
    """One row for each operand of a step: what it had, and what this step adds."""
    if all(out.adjoint is None for out in step.flowing):
        return []
    known = [slot for slot in step.flowing if slot.adjoint is not None]
    for out in step.flowing:
        out.adjoint = jnp.zeros_like(out.value) if out.adjoint is None else out.adjoint
    rows = []
    more_for_each = _pull(step.moving[0], [slot.value for slot in step.read], [out.adjoint for out in step.flowing])
    for slot, more in zip(step.read, more_for_each, strict=True):
        bar = _marked(slot.name, _BAR)
        chain, formula = ([] if slot.adjoint is None else [bar] for _ in range(2))
        for out in known:
            rule, names = _symbols(step, out), [operand.symbol for operand in step.operands]
            places = [k for k, operand in enumerate(step.operands) if operand is slot]
            chain.append(_chained(slot, out))
            formula += [rule.pull(k, _marked(out.name, _BAR), names, out.symbol) for k in places if rule.known]
            formula += [] if rule.known else [_chained(slot, out)]
        slot.adjoint = more if slot.adjoint is None else slot.adjoint + more
        expressions = tuple(dict.fromkeys([_sum(chain), _sum(formula)]))
        rows.append(TraceRow(bar, "operation", slot.name, expressions, slot.adjoint))
    return rows


def _chained(slot, out) -> str:
    """What the chain rule says of one operand: a product, or for arrays the transposed Jacobian times the adjoint."""
    bar = _marked(out.name, _BAR)
    if jnp.ndim(slot.value) == jnp.ndim(out.value) == 0:
        return f"{bar} ∂{out.name}/∂{slot.name}"
    return f"(∂{out.name}/∂{slot.name})ᵀ {bar}"


def _sum(terms) -> str:
    return " + ".join(terms).replace("+ -", "- ")


# ---- the symbols of operations and of their derivatives -----------------------------------

# An operation of each entry on its own: how it is written, and its derivative by each operand
# a, b as a factor; y is the result. For scalars ⊙ becomes ×.
_POINTWISE = {
    "abs": ("|{a}|", "sign {a}"),
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
    "logistic": ("σ({a})", "{y} ⊙ (1 - {y})"),
    "max": ("max({a}, {b})", "[{a} > {b}]", "[{b} > {a}]"),
    "min": ("min({a}, {b})", "[{a} < {b}]", "[{b} < {a}]"),
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

_COMPARISONS = {"eq": "=", "ne": "≠", "lt": "<", "le": "≤", "gt": ">", "ge": "≥"}


class _Symbols(NamedTuple):
    """How an operation is written, and what it does to t: the tangent of its operand k, or the adjoint by it."""

    write: Callable  # (operands)
    push: Callable  # (k, t, operands, out)
    pull: Callable
    known: bool = True  # else push and pull only name the derivative


def _symbols(step: _Step, out: _Slot) -> _Symbols:
    name, equation = step.equation.primitive.name, step.equation
    if name in _POINTWISE or name == "integer_pow":
        return _pointwise(step, *(_power(equation) if name == "integer_pow" else _POINTWISE[name]))
    if name in _COMPARISONS:
        return _unknown(lambda operands: f" {_COMPARISONS[name]} ".join(operands))
    if name == "select_n" and len(step.operands) == 3:
        return _select()
    if name == "dot_general":
        product = _product(equation)
        if product is not None:
            return product
    linear = _linear(step, out)
    if linear is not None:
        forward, backward = linear
        return _Symbols(
            lambda operands: forward(operands[0]),
            lambda k, t, operands, out: forward(t),
            lambda k, t, operands, out: backward(t),
        )
    several = len(step.outs) > 1
    label = {"scan": f"scan of {equation.params.get('length')} steps"}.get(name, out.operation)
    return _unknown(
        lambda operands: f"{label}({', '.join(operands)})" + (f"[{step.outs.index(out)}]" if several else "")
    )


def _unknown(write) -> _Symbols:
    def push(k, t, operands, out):
        return f"∂{out}/∂{operands[k]} {t}"

    return _Symbols(write, push, push, known=False)


def _power(equation):
    power = equation.params["y"]
    raised = str(power).translate(_RAISED)
    lower = {0: "", 1: " × {a}"}.get(power - 1, " × {a}" + str(power - 1).translate(_RAISED))
    return "{a}" + raised, (f"{power}" if power >= 0 else f"({power})") + lower


def _pointwise(step, write, *factors) -> _Symbols:
    entrywise = all(jnp.ndim(slot.value) for slot in step.operands)

    def fill(template, operands, out):
        a, b = (*operands, "")[:2]
        return template.format(a=a, b=b, y=out).replace("⊙", "⊙" if entrywise else "×")

    def push(k, t, operands, out):
        factor = factors[k]
        if factor in ("1", "-1"):
            return factor.replace("1", t)
        return fill(f"{t} {factor}" if factor.startswith("/") else f"{t} ⊙ {factor}", operands, out)

    def pull(k, t, operands, out):
        return {"1": f"{t} × 1", "-1": f"{t} × (-1)"}.get(factors[k]) or push(k, t, operands, out)

    return _Symbols(lambda operands: fill(write, operands, ""), push, pull)


def _select() -> _Symbols:
    def write(operands):
        return f"where({operands[0]}, {operands[2]}, {operands[1]})"

    def part(k, t, operands, out):
        return write([operands[0], t, "0"] if k == 1 else [operands[0], "0", t])

    return _Symbols(write, part, part)


def _product(equation) -> _Symbols | None:
    """The product of vectors and matrices, whichever axes are summed over: a matrix may come transposed."""
    (left_axes, right_axes), batch = equation.params["dimension_numbers"]
    left, right = (v.aval.ndim for v in equation.invars)
    if batch != ((), ()) or len(left_axes) != 1 or not 1 <= left <= 2 or not 1 <= right <= 2:
        return None
    left_turned, right_turned = left == 2 and left_axes[0] == 0, right == 2 and right_axes[0] == 1
    sign = " · " if left == right == 1 else " @ "

    def turn(name, turned=True):
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

    return _Symbols(write, push, pull)


def _linear(step, out) -> tuple[Callable, Callable] | None:
    """How a linear operation of one operand is written, and its transpose; ``None`` for any other."""
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


# ---- names and numbers in print -----------------------------------------------------------

_LOWERED = str.maketrans("-0123456789", "₋₀₁₂₃₄₅₆₇₈₉")
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_DIGITS = str.maketrans("₋₀₁₂₃₄₅₆₇₈₉", "-0123456789")


def _numbered(letter: str, number: int) -> str:
    return letter + str(number).translate(_LOWERED)


def _number_of(name: str) -> int:
    return int(name[1:].translate(_DIGITS))


def _marked(name: str, mark: str, word: str = "") -> str:
    """A letter with its dot or bar, ``ẋ1``; for a longer name the word, ``tangent of params['w']``."""
    if word and len(name.rstrip("0123456789")) > 1:
        return f"{word} of {name}"
    return unicodedata.normalize("NFC", name[0] + mark) + name[1:]


def _known(value) -> bool:
    return value is not None and not isinstance(value, jax.core.Tracer)


def _text(value, most: int = 4) -> str:
    """A scalar, and an array of so many numbers at most, in digits; a larger one by its shape and norm."""
    if not _known(value) or not (hasattr(value, "dtype") or isinstance(value, int | float | complex | bool)):
        return describe_any(value)
    if jnp.issubdtype(jnp.result_type(value), jax.dtypes.extended):
        return describe_any(value)
    value = np.asarray(value)
    if value.size > most:
        wide = np.abs(value.astype(np.complex128 if np.iscomplexobj(value) else np.float64))
        return f"{value.shape}, norm {_digits(np.sqrt(np.sum(wide**2)))}"
    if value.ndim == 0:
        return _digits(value)
    return _listed(value)


def _listed(value) -> str:
    if value.ndim == 0:
        return _digits(value)
    left, right = "()" if value.ndim == 1 else "[]"
    return left + ", ".join(map(_listed, value)) + right


def _digits(number) -> str:
    """Three decimals, and never fewer than three digits."""
    number = np.asarray(number).item()
    if not isinstance(number, float) or not math.isfinite(number):
        return f"{number:.3g}" if isinstance(number, complex) else str(number)
    if number != 0 and not 0.01 <= abs(number) < 1e6:
        return f"{number:.3g}"
    written = f"{number:.3f}".rstrip("0").rstrip(".")
    return "0" if written == "-0" else written


def _bracketed(value) -> str:
    written = _text(value)
    return f"({written})" if written.startswith("-") else written


def _aligned(headings, lines) -> str:
    """Columns under their headings; a combining mark takes no room."""
    table = [headings, *lines]
    widths = [max(map(_width, column)) for column in zip(*table, strict=True)]
    table = [headings, tuple("-" * width for width in widths), *lines]
    return "\n".join(
        "  ".join(c + " " * (w - _width(c)) for c, w in zip(line, widths, strict=True)).rstrip() for line in table
    )


def _width(text: str) -> int:
    return sum(not unicodedata.combining(letter) for letter in text)


# ---- the picture --------------------------------------------------------------------------

_RED = PALETTE[1]
_COLORS = {"input": "#9FD3F2", "constant": "#DDDDDD", "operation": "#FFF3C4"}


def _places(nodes) -> dict[str, tuple[float, float]]:
    """Columns by depth, inputs and constants just before their first use; rows near those of the parents."""
    children: dict[str, list] = {node.name: [] for node in nodes}
    for node in nodes:
        for parent in node.parents:
            children[parent].append(node.level)
    columns: dict[int, list] = {}
    for node in nodes:
        level = node.level if node.kind == "operation" else min(children[node.name], default=1) - 1
        columns.setdefault(level, []).append(node)
    places: dict[str, tuple[float, float]] = {}
    for level in sorted(columns):
        column = columns[level]

        def height(node):
            above = [places[parent][1] for parent in node.parents if parent in places]
            return sum(above) / len(above) if above else 0.0

        ordered = sorted(column, key=height, reverse=True) if level else column
        middle = sum(map(height, column)) / len(column)
        for i, node in enumerate(ordered):
            places[node.name] = (float(level), middle + (len(column) - 1) / 2 - i)
    return places


def _bend(start, stop, others, clear=0.42) -> float:
    """The bend of the arrow from one place to another that keeps clear of others: the first that does, or the best."""
    a, b, c = np.asarray(start), np.asarray(stop), np.reshape(others, (-1, 2))
    t = np.linspace(0.05, 0.95, 37)[:, None]
    across = np.array([b[1] - a[1], a[0] - b[0]])  # as "arc3" has it: the control point is so far from the middle

    def distance(bend):
        way = (1 - t) ** 2 * a + 2 * t * (1 - t) * ((a + b) / 2 + bend * across) + t**2 * b
        return np.linalg.norm(way[:, None] - c[None], axis=-1).min(initial=clear)

    return max((0.0, 0.15, -0.15, 0.25, -0.25, 0.35, -0.35, 0.5, -0.5), key=distance)


def _mathtext(name: str) -> str:
    return f"${name[0]}_{{{name[1:].translate(_DIGITS)}}}$"


_SIGNS = {
    "add": "+",
    "broadcast_in_dim": "spread",
    "convert_element_type": "as",
    "div": "/",
    "dot_general": "@",
    "integer_pow": "power",
    "log": "ln",
    "logistic": "σ",
    "mul": "×",
    "neg": "-",
    "reduce_sum": "sum",
    "select_n": "where",
    "sub": "-",
}


def _sign(node) -> str:
    """What stands in a node of the drawing: the sign of the operation, or the last key of an input's name."""
    words = _SIGNS.get(node.operation, node.operation)
    if node.kind == "input" and words.endswith("]"):
        words = words.rstrip("]'").rpartition("[")[2].lstrip("'")
    return words if len(words) <= 7 else words[:6] + "…"


def _plain(line: str) -> str:
    return line.replace("$", r"\$")
