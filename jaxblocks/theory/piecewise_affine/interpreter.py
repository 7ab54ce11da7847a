"""The interpreter of piecewise affine programs: a traversal of a jaxpr, and a table of rules for its primitives.

A piecewise affine net consists of affine primitives, which act in the same way on values and on slopes, and of
primitives with kinks (``max``, ``abs``, comparisons), which select one of several affine functions by the sign of an
argument. `RULES` maps each primitive to an operation. `Interpreter` executes a jaxpr (by
`jaxblocks.ad.programs.jaxprs`) with these operations, unrolls loops and reduces maxima over axes to maxima of two
arrays. Its subclasses define the representation of an array that depends on the input, and the remaining operations on
such arrays: on a line (`line`) and in a plane (`plane`).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr

from jaxblocks.ad.programs.jaxprs import Step, interpret, shape_of, unroll_scan
from jaxblocks.checks.errors import require
from jaxblocks.core.lifting import as_layer
from jaxblocks.core.pairs import Layer, LayerLike, StatefulLayer, layer_name

__all__ = ["RULES", "Interpreter", "bind_params", "network_name", "shapes_of", "trace_network"]

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


class Interpreter(ABC):
    """A traversal of a jaxpr, in which arrays that depend on the input have a special representation.

    An operation returns a value, a list of values, or ``None`` where its result is not piecewise affine. Values are
    piecewise affine in the input, or piecewise constant, as the results of comparisons are. A subclass defines the
    abstract methods and the operations of `RULES` that are not here, each of a step and its arguments.
    """

    def __init__(self, network: str):
        """Store the name of the net, for errors."""
        self.network = network

    # -- traversal

    def run(self, closed: ClosedJaxpr, args: list) -> list:
        """The results of a jaxpr."""
        return interpret(closed, args, self._operate, rules={"scan": self._scan})

    def _operate(self, step: Step) -> list:
        # Independent of the input: evaluated by JAX, once.
        if not any(map(self.moves, step.operands)):
            return step.evaluate()
        results = self.operate(step, step.operands)
        if results is None:
            _reject(step.scope or self.network, step.name)
        return results if isinstance(results, list) else [results]

    def _scan(self, step: Step) -> list:
        # The same for a loop; one whose operands move is unrolled.
        if not any(map(self.moves, step.operands)):
            return step.evaluate()

        def stack(entries, variable):
            return self.join("stack", entries, -len(shape_of(variable)), shape_of(variable))

        return unroll_scan(step, lambda x, i, variable: self._entry(x, i, shape_of(variable)), stack)

    def _entry(self, x, i: int, shape):
        """Entry i of the first axis of x, of this shape."""
        if not self.moves(x):
            return x[i]
        return self.rearrange(lambda v: v[(..., i, *(slice(None),) * len(shape))], x, shape)

    def operate(self, step: Step, args: list) -> Any:
        """Apply the rule of a primitive to arguments of which some depend on the input."""
        operation = RULES.get(step.name)
        return None if operation is None else getattr(self, operation)(step, *args)

    # -- operations that are derived from those below

    def affine_in_first(self, step: Step, x, *rest) -> Any:
        """A primitive that is affine in its first argument only; the others are indices."""
        return None if any(map(self.is_affine, rest)) else self.affine(step, x, *rest)

    def unchanged(self, step: Step, x) -> Any:
        """The argument itself."""
        return x

    def maximum(self, step: Step, x, y) -> Any:
        """The larger of two arrays, entry by entry."""
        return self.choose_larger(x, y, 1, shapes_of(step)[0])

    def minimum(self, step: Step, x, y) -> Any:
        """The smaller of two arrays, entry by entry."""
        return self.choose_larger(x, y, -1, shapes_of(step)[0])

    def clamp(self, step: Step, low, x, high) -> Any:
        """The entries of x, but at least ``low`` and at most ``high``."""
        [shape] = shapes_of(step)
        return self.choose_larger(self.choose_larger(x, low, 1, shape), high, -1, shape)

    def largest(self, step: Step, x) -> Any:
        """The maximum over some axes."""
        return self._tournament(step, x, 1)

    def least(self, step: Step, x) -> Any:
        """The minimum over some axes."""
        return self._tournament(step, x, -1)

    def _tournament(self, step: Step, x, sign: int):
        """The largest (sign 1) or smallest (sign -1) entries over some axes, by pairwise comparisons in rounds."""
        shape, axes = shape_of(step.equation.invars[0]), step.params["axes"]
        others = [axis for axis in range(len(shape)) if axis not in axes]
        kept = tuple(shape[axis] for axis in others)
        total = count = math.prod(shape[axis] for axis in axes)
        # A maximum of piecewise constant values is not supported; `None` reports it.
        if not count or not self.is_affine(x):
            return None

        def compared_first(v):  # (..., *shape) to (..., total, *kept)
            lead = v.ndim - len(shape)
            order = [*range(lead), *(lead + axis for axis in (*axes, *others))]
            return v.transpose(order).reshape(*v.shape[:lead], total, *kept)

        behind = (slice(None),) * len(kept)
        x = self.rearrange(compared_first, x, (count, *kept))
        while count > 1:
            # The first half is compared with the second half; an odd entry at the end goes to the next round.
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

    # -- what a subclass defines

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
    def affine(self, step: Step, *args) -> Any:
        """A primitive that is affine in all of its arguments together."""


def shapes_of(step: Step) -> list[tuple[int, ...]]:
    """The shapes of the results of a primitive."""
    return [shape_of(v) for v in step.equation.outvars]


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
        # The exact net of the given float32 numbers; in float32 arithmetic, rounding would split regions.
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
        # An error of the net may mean that it takes inputs of another shape.
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
