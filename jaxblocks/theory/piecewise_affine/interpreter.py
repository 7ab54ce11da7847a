"""The interpreter of piecewise affine programs: a traversal of a jaxpr, and a table of rules for its primitives.

A piecewise affine net consists of affine primitives, which act in the same way on values and on slopes, and of
primitives with kinks (``max``, ``abs``, comparisons), which select one of several affine functions by the sign of an
argument. `RULES` maps each primitive to an operation. `Interpreter` traverses a jaxpr, inlines calls, unrolls loops
and reduces maxima over axes to maxima of two arrays. Its subclasses define the representation of an array that depends
on the input, and the remaining operations on such arrays: on a line (`line`) and in a plane (`plane`).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from jaxblocks.ad.jaxprs import as_closed, body_of_call, inputs_of, piece, scan_parts
from jaxblocks.checks import require
from jaxblocks.core import Layer, LayerLike, StatefulLayer, as_layer, layer_name

__all__ = ["RULES", "Interpreter", "Primitive", "bind_params", "network_name", "trace_network"]

_OPERATIONS = {
    "affine": (
        *("add", "add_any", "broadcast_in_dim", "concatenate", "cumsum", "dynamic_update_slice", "neg", "pad"),
        *("reduce_sum", "reduce_window_sum", "reshape", "rev", "scatter", "scatter-add", "slice", "split", "squeeze"),
        *("stack", "sub", "tile", "transpose", "unstack"),
    ),
    "affine_in_first": ("dynamic_slice", "gather"),
    "multiply": ("conv_general_dilated", "dot_general", "mul"),
    "divide": ("div",),
    "power": ("integer_pow",),
    "convert": ("convert_element_type",),
    "unchanged": ("copy", "copy_p", "name", "reduce_precision", "stop_gradient"),
    "absolute": ("abs",),
    "sign": ("sign",),
    "compare": ("eq", "ge", "gt", "le", "lt", "ne"),
    "logical": ("and", "not", "or", "xor"),
    "select": ("select_n",),
    "maximum": ("max",),
    "minimum": ("min",),
    "clamp": ("clamp",),
    "largest": ("reduce_max",),
    "least": ("reduce_min",),
}

RULES: dict[str, str] = {name: operation for operation, names in _OPERATIONS.items() for name in names}
"""The method of `Interpreter` for each primitive, by name."""

_REPAIRS = {
    "cond": "use jnp.where",
    "sort": "use jnp.maximum and jnp.minimum",
    "top_k": "use jnp.maximum and jnp.minimum",
    "while": "use jax.lax.scan",
}


class Primitive(NamedTuple):
    """An equation of a jaxpr, as passed to the operations of an `Interpreter`."""

    jaxpr: Jaxpr
    equation: JaxprEqn

    @property
    def name(self) -> str:
        """The name of the primitive."""
        return self.equation.primitive.name

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of the equation."""
        return self.equation.params

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the results."""
        return [_shape(v) for v in self.equation.outvars]

    @property
    def inputs(self) -> list:
        """The variables that the equation reads, each once."""
        return inputs_of([self.equation])

    def function(self) -> Callable[..., list]:
        """The equation as a function of its `inputs`."""
        return piece(self.jaxpr, [self.equation], self.inputs, self.equation.outvars)


class Interpreter(ABC):
    """A traversal of a jaxpr, in which arrays that depend on the input have a special representation.

    An operation returns a value, a list of values, or ``None`` where its result is not piecewise affine. Values are
    piecewise affine in the input, or piecewise constant, as the results of comparisons are.

    """

    def __init__(self, network: str):
        """Store the name of the net, for errors."""
        self.network = network

    # -- traversal

    def run(self, closed: ClosedJaxpr, args: list, scope: str = "") -> list:
        """The results of a jaxpr; ``scope`` is the place in the net, for errors."""
        jaxpr = closed.jaxpr
        values = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        values |= dict(zip(jaxpr.invars, args, strict=True))
        read = lambda v: v.val if isinstance(v, Literal) else values[v]
        last = {v: i for i, equation in enumerate(jaxpr.eqns) for v in equation.invars if not isinstance(v, Literal)}
        last |= {v: len(jaxpr.eqns) for v in jaxpr.outvars if not isinstance(v, Literal)}
        for i, equation in enumerate(jaxpr.eqns):
            results = self._step(Primitive(jaxpr, equation), [read(v) for v in equation.invars], scope)
            values.update(zip(equation.outvars, results, strict=True))
            for v in {v for v in equation.invars if not isinstance(v, Literal)}:  # arrays are large
                if last[v] == i:
                    del values[v]
        return [read(v) for v in jaxpr.outvars]

    def _step(self, primitive: Primitive, args: list, scope: str) -> list:
        equation = primitive.equation
        scope = "/".join(filter(None, (scope, str(equation.source_info.name_stack))))
        if (body := body_of_call(equation)) is not None:
            return self.run(body, args, scope)
        if not any(map(self.moves, args)):
            return primitive.function()(*(args[equation.invars.index(v)] for v in primitive.inputs))
        if primitive.name == "scan":
            return self._scan(equation, args, scope)
        results = self.operate(primitive, args)
        if results is None:
            _reject(scope or self.network, primitive.name)
        return results if isinstance(results, list) else [results]

    def _scan(self, equation: JaxprEqn, args: list, scope: str) -> list:
        p = equation.params
        body = as_closed(p["jaxpr"])
        first, carried = scan_parts(equation)
        consts, carry, xs = args[:first], args[first : first + carried], args[first + carried :]
        variables = body.jaxpr.invars[first + carried :]
        made: list[list] = []
        for i in reversed(range(p["length"])) if p["reverse"] else range(p["length"]):
            slices = [self._entry(x, i, _shape(v)) for x, v in zip(xs, variables, strict=True)]
            results = self.run(body, [*consts, *carry, *slices], scope)
            carry = results[:carried]
            made.append(results[carried:])
        parts = zip(*(made[::-1] if p["reverse"] else made), strict=True)
        shapes = [_shape(v) for v in equation.outvars[carried:]]
        stacked = [self.join("stack", list(each), -len(n), n) for each, n in zip(parts, shapes, strict=True)]
        return [*carry, *stacked]

    def _entry(self, x, i: int, shape):
        """Entry i of the first axis of x, of this shape."""
        if not self.moves(x):
            return x[i]
        return self.rearrange(lambda v: v[(..., i, *(slice(None),) * len(shape))], x, shape)

    def operate(self, primitive: Primitive, args: list) -> Any:
        """Apply the rule of a primitive to arguments of which some depend on the input."""
        operation = RULES.get(primitive.name)
        return None if operation is None else getattr(self, operation)(primitive, *args)

    # -- operations that are derived from those below

    def affine_in_first(self, primitive: Primitive, x, *rest) -> Any:
        """A primitive that is affine in its first argument only; the others are indices."""
        return None if any(map(self.is_affine, rest)) else self.affine(primitive, x, *rest)

    def unchanged(self, primitive: Primitive, x) -> Any:
        """The argument itself."""
        return x

    def maximum(self, primitive: Primitive, x, y) -> Any:
        """The larger of two arrays, entry by entry."""
        return self.choose_larger(x, y, 1, primitive.shapes[0])

    def minimum(self, primitive: Primitive, x, y) -> Any:
        """The smaller of two arrays, entry by entry."""
        return self.choose_larger(x, y, -1, primitive.shapes[0])

    def clamp(self, primitive: Primitive, low, x, high) -> Any:
        """The entries of x, but at least ``low`` and at most ``high``."""
        [shape] = primitive.shapes
        return self.choose_larger(self.choose_larger(x, low, 1, shape), high, -1, shape)

    def largest(self, primitive: Primitive, x) -> Any:
        """The maximum over some axes."""
        return self._tournament(primitive, x, 1)

    def least(self, primitive: Primitive, x) -> Any:
        """The minimum over some axes."""
        return self._tournament(primitive, x, -1)

    def _tournament(self, primitive: Primitive, x, sign: int):
        """The largest (sign 1) or smallest (sign -1) entries over some axes, by pairwise comparisons in rounds."""
        shape, axes = _shape(primitive.equation.invars[0]), primitive.params["axes"]
        others = [axis for axis in range(len(shape)) if axis not in axes]
        kept = tuple(shape[axis] for axis in others)
        total = count = math.prod(shape[axis] for axis in axes)
        if not count or not self.is_affine(x):
            return None

        def compared_first(v):  # (..., *shape) to (..., total, *kept)
            lead = v.ndim - len(shape)
            order = [*range(lead), *(lead + axis for axis in (*axes, *others))]
            return v.transpose(order).reshape(*v.shape[:lead], total, *kept)

        behind = (slice(None),) * len(kept)
        x = self.rearrange(compared_first, x, (count, *kept))
        while count > 1:
            half, odd = divmod(count, 2)
            cuts = [(0, half), (half, 2 * half), (2 * half, count)][: 2 + odd]
            left, right, *rest = (
                self.rearrange(lambda v, cut=slice(*cut): v[(..., cut, *behind)], x, (cut[1] - cut[0], *kept))
                for cut in cuts
            )
            x = self.choose_larger(left, right, sign, (half, *kept))
            if rest:
                x = self.join("concatenate", [x, *rest], -1 - len(kept), (half + 1, *kept))
            count = half + odd
        return self.rearrange(lambda v: v[(..., 0, *behind)], x, kept)

    # -- operations that a subclass defines

    @abstractmethod
    def moves(self, x) -> bool:
        """Whether a value depends on the input."""

    @abstractmethod
    def is_affine(self, x) -> bool:
        """Whether a value is piecewise affine in the input, not piecewise constant."""

    @abstractmethod
    def rearrange(self, f: Callable, x, shape: tuple[int, ...]) -> Any:
        """Rearrange the entries of x to an array of this shape; f acts on the trailing axes by methods of arrays."""

    @abstractmethod
    def join(self, how: str, parts: list, axis: int, shape: tuple[int, ...]) -> Any:
        """Join several arrays by the NumPy function ``how``, "concatenate" or "stack", along a negative axis."""

    @abstractmethod
    def choose_larger(self, x, y, sign: int, shape: tuple[int, ...]) -> Any:
        """The larger of two arrays, entry by entry; the smaller where ``sign`` is -1."""

    @abstractmethod
    def affine(self, primitive: Primitive, *args) -> Any:
        """A primitive that is affine in all of its arguments together."""

    @abstractmethod
    def multiply(self, primitive: Primitive, x, y) -> Any:
        """A primitive that is linear in each of its two arguments."""

    @abstractmethod
    def divide(self, primitive: Primitive, x, y) -> Any:
        """The quotient x / y of two arrays."""

    @abstractmethod
    def power(self, primitive: Primitive, x) -> Any:
        """An integer power."""

    @abstractmethod
    def convert(self, primitive: Primitive, x) -> Any:
        """The same numbers in another dtype."""

    @abstractmethod
    def absolute(self, primitive: Primitive, x) -> Any:
        """The absolute value."""

    @abstractmethod
    def sign(self, primitive: Primitive, x) -> Any:
        """The sign, -1, 0 or 1."""

    @abstractmethod
    def compare(self, primitive: Primitive, x, y) -> Any:
        """The comparison ``x < y``, or another comparison of the two."""

    @abstractmethod
    def logical(self, primitive: Primitive, *args) -> Any:
        """A function of Booleans."""

    @abstractmethod
    def select(self, primitive: Primitive, which, *cases) -> Any:
        """The entries of the cases that the indices ``which`` select."""


def _shape(variable: Any) -> tuple[int, ...]:
    return variable.aval.shape


# ---- the network -----------------------------------------------------------------------------


def bind_params(net: LayerLike, params, side: dict) -> Callable:
    """The net as a function of its input only, with params in float64; call it with float64 enabled in JAX.

    Raises:
        TypeError: for a layer with state.
    """
    layer = as_layer(net)
    if isinstance(layer, StatefulLayer):
        repair = "pass lambda x: layer.apply(params, state, x)[0]"
        require(False, "a layer without state", layer_name(layer), repair, error=TypeError)
    floating = lambda leaf: jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
    with jax.enable_x64(True):
        params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64) if floating(leaf) else leaf, params)
    return lambda x: layer.apply(params, x, **side)


def trace_network(function: Callable, shape: tuple[int, ...], hint: str = "") -> ClosedJaxpr:
    """The jaxpr of a function of one float64 array of this ``shape``, with one output.

    ``hint`` is added to an error of the function, which can be due to the shape of the input.
    """
    try:
        with jax.enable_x64(True):
            closed = jax.make_jaxpr(function)(jax.ShapeDtypeStruct(shape, jnp.float64))
    except Exception as error:
        if hint:
            error.add_note(f"The net was called with an input of shape {shape}. {hint}")
        raise
    count = len(closed.out_avals)
    require(count == 1, "a net with one output", count, "choose one of them")
    return closed


def network_name(net: LayerLike) -> str:
    """The name of a layer; empty for a function."""
    return layer_name(net) if isinstance(net, Layer | StatefulLayer) else ""


def _reject(scope: str, name: str) -> None:
    """Raise for a primitive in the layer ``scope`` that is not piecewise affine."""
    layer = f"the layer {scope}" if scope else "a function"
    if name in _REPAIRS:
        require(False, "a piecewise linear net", f"{layer} that uses {name}, which is not supported", _REPAIRS[name])
    what = f"takes {name} of"
    if RULES.get(name) == "multiply":
        what = "multiplies two arrays that depend on the input"
    elif name == "div":
        what = "divides by"
    what += "" if what.endswith("input") else " a value that depends on the input"
    repair = "use relu, leaky_relu, abs, maxout or another piecewise linear activation"
    require(False, "a piecewise linear net", f"{layer} that {what}", repair)
