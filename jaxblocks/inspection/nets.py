"""Inspection of a net through its jaxpr: a table of its layers, their outputs, and the variance of the outputs.

Combinators run each child in a named scope and name its outputs, so the jaxpr shows which layer an operation
belongs to.
"""

import functools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jaxtyping import Array, Key, PyTree

from jaxblocks.ad.counting.counts import Count, count_flops, equations
from jaxblocks.ad.counting.primitive_costs import DOTS
from jaxblocks.ad.programs.jaxprs import Step, as_closed, interpret, shape_of, split_scan_inputs
from jaxblocks.backend.sliding_windows import share_of_products
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import checked
from jaxblocks.checks.foreign_arrays import reject_foreign
from jaxblocks.checks.layer_inputs import reject_holder, reject_shapes
from jaxblocks.core.children import named_outputs
from jaxblocks.core.keys import child_key, keys_for
from jaxblocks.core.lifting import as_layer, declared_by, stateful
from jaxblocks.core.pairs import Layer, LayerLike, StatefulLayer, layer_name
from jaxblocks.core.selection import paths
from jaxblocks.core.shapes import as_shapes, eval_shape, split_side
from jaxblocks.plotting.axes import in_bytes

__all__ = [
    "LayerRow",
    "MomentsRow",
    "Summary",
    "VarianceReport",
    "count_params",
    "layer_outputs",
    "summary",
    "variance_report",
]


@dataclass(frozen=True)
class LayerRow:
    """One layer of a net, in the rows of what `summary` returns.

    Attributes:
        path: its path, as in `jaxblocks.paths`: ``"block/0"``; ``""`` is the net. The body of a ``Repeat`` has the
            path of the ``Repeat``, as their params do.
        kind: the name of its constructor or function.
        outputs: a ``ShapeDtypeStruct`` for each array that it returns, call by call.
        params: the number of entries of its params.
        count: its operations in one call of the net, summed over all calls of the layer.
    """

    path: str
    kind: str
    outputs: tuple[jax.ShapeDtypeStruct, ...]
    params: int
    count: Count

    @property
    def name(self) -> str:
        """Its label in the combinator: a position or a name."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True)
class Summary:
    """What `summary` returns: the layers of a net in the order in which they run.

    It prints as a table, in a notebook as HTML.

    Attributes:
        rows: a `LayerRow` for each layer, that of the whole net last.
        params_bytes: the memory of the params in bytes.
        n_layers: the largest number of products with a kernel (dense or convolution) on a path from inputs to outputs,
            n for a multilayer perceptron of n layers. A `Repeat` counts each iteration, a `Recurrent` one time step.
        width: the largest number of features that the products before the last ones on such a path have; 0 if there
            is no hidden layer.

    Texts differ in whether the depth of n layers is n or the number of hidden layers, n - 1: see ``n_hidden``.
    """

    rows: tuple[LayerRow, ...]
    params_bytes: int
    n_layers: int
    width: int

    @property
    def n_hidden(self) -> int:
        """The number of hidden layers, one less than ``n_layers``."""
        return max(0, self.n_layers - 1)

    def __getitem__(self, path: str) -> LayerRow:
        """The first row with a path: ``summary(net, x)["block/0"]``."""
        return _row_at(self, path)

    def _table(self, style: str, indent: str) -> str:
        from tabulate import tabulate

        # A net may have no counted operation.
        whole = self.rows[-1].count.flops or 1
        lines, rows_at = [], Counter()
        for row in self.rows:
            # The body of a Repeat has its path, and is one level below it; the children of the body are two below.
            depth = sum(rows_at[path] for path in {"", *accumulate(row.path.split("/"), "{}/{}".format)})
            name = "" if rows_at[row.path] else row.name
            label = indent * depth + f"{name} {row.kind}".strip()
            rows_at[row.path] += 1
            shapes = Counter(f"{y.dtype} {tuple(y.shape)}" for y in row.outputs)
            outputs = ", ".join(shape + (f" x {n}" if n > 1 else "") for shape, n in shapes.items())
            label = f"{row.kind}, total" if row is self.rows[-1] else label
            numbers = (row.params, row.count.macs, row.count.flops)
            lines.append((label, outputs, *(f"{n:,}" for n in numbers), f"{row.count.flops / whole:.1%}"))
        headers = ("layer", "output", "params", "MACs", "operations", "share")
        align = ("left", "left", "right", "right", "right", "right")
        return tabulate(lines, headers, style, colalign=align, disable_numparse=True, preserve_whitespace=True)

    def __str__(self) -> str:
        hidden = f", {self.n_hidden} hidden, of width {self.width}" if self.n_hidden else ""
        notes = [f"layers with a kernel in sequence: {self.n_layers}{hidden}"] if self.n_layers else []
        notes += [f"params take {in_bytes(self.params_bytes)}; operations are those of one call on this input"]
        total = self.rows[-1].count
        if total.loops_of_unknown_length:
            notes.append(f"{total.loops_of_unknown_length} while loops of unknown length are counted once")
        if total.uncounted:
            notes.append(f"not counted: {', '.join(sorted(total.uncounted))}")
        return "\n".join([self._table("simple", "  "), *notes])

    def _repr_html_(self) -> str:
        return self._table("html", "\N{NO-BREAK SPACE}\N{NO-BREAK SPACE}")


def summary(net: LayerLike, *inputs: PyTree, **side: Any) -> Summary:
    """A table of the layers of a net: outputs, params, counted operations. No arrays are computed.

    Below the table stand the numbers of layers and of hidden layers in sequence, and the width (see `Summary`).
    Operations are multiplications, additions and transcendentals of one ``apply`` (see
    `jaxblocks.count_flops`), those inside a scan times its length; a layer that is applied twice
    is counted twice and listed once. MACs are the multiply-accumulates that papers state: the products of matrices and
    convolutions, with those that read padding.

    Args:
        net: a pair or a function of arrays.
        inputs: arrays or ``jax.ShapeDtypeStruct``s.
        side: side inputs, as for ``apply``.

    >>> print(
    ...     summary(
    ...         Serial(hidden=Dense(5), activation=relu, out=Dense(1)), jnp.zeros((8, 2))
    ...     )
    ... )
    layer            output            params    MACs    operations    share
    ---------------  --------------  --------  ------  ------------  -------
    hidden Dense     float32 (8, 5)        15      80           200    61.0%
    activation relu  float32 (8, 5)         0       0            40    12.2%
    out Dense        float32 (8, 1)         6      40            88    26.8%
    Serial, total    float32 (8, 1)        21     120           328   100.0%
    layers with a kernel in sequence: 2, 1 hidden, of width 5
    params take 84 B; operations are those of one call on this input
    """
    params, n_held, closed, outputs = _trace(net, inputs, side)
    total = count_flops(jaxpr_as_fun(closed), *[v.aval for v in closed.jaxpr.invars])
    scopes: dict[str, None] = {}  # all scopes, outer before inner, in the order in which they begin
    layers: dict[str, dict[str, list]] = {}  # for each scope its layers, inner before outer, with their outputs
    for equation, scope, _ in equations(closed):
        parts = scope.split("/")
        scopes |= {"/".join(parts[:depth]): None for depth in range(len(parts) + 1)}
        if _marks_layer(equation, scope):
            outputs_of = layers.setdefault(scope, {}).setdefault(equation.params["name"], [])
            outputs_of.append(as_shapes(equation.outvars[0].aval))
    rows = []
    for scope in scopes:
        path = _path(scope, layers)
        # The layers of a scope were found inner before outer; the table has the outer one first.
        for mark, made in reversed(layers.get(scope, {}).items()):
            size = _numbers_in(_find(params, path))
            rows.append(
                LayerRow(path, mark.partition(".")[2], tuple(made), size, total.within(scope) if scope else total)
            )
    rows.append(LayerRow("", layer_name(net), tuple(as_shapes(jax.tree.leaves(outputs))), _numbers_in(params), total))
    size = sum(math.prod(p.shape) * p.dtype.itemsize for p in jax.tree.leaves(params))
    return Summary(tuple(rows), size, *_depth_and_width(closed, n_held))


def layer_outputs(net: LayerLike, params: PyTree, *inputs: PyTree, state: PyTree = (), **side: Any) -> dict[str, Any]:
    """The output of every layer of a net, by its path.

    Layers inside a scan (`Repeat`, `Recurrent`), and inside a ``jit`` or ``checkpoint`` within
    a layer, are omitted: their values do not exist outside of it.

    For a layer without a combinator the result is empty.
    Works under ``jit``, ``grad`` and ``vmap``. A layer that returns several arrays, or is
    applied several times, has a tuple.

    >>> net = Serial(hidden=Dense(5), activation=relu, out=Dense(1))
    >>> x = jnp.ones((8, 2))
    >>> params = net.init(jax.random.key(0), x)
    >>> outputs = layer_outputs(net, params, x)
    >>> list(outputs)
    ['hidden', 'activation', 'out']
    >>> bool((outputs["out"] == jax.jit(net.apply)(params, x)).all())
    True

    Source: Goodfellow, Bengio & Courville 2016, Deep learning, chapter 6; Krapac & Segvic, Deep feed-forward models
    (hidden or latent features).
    """
    reject_foreign("inputs", inputs)
    reject_holder("params", params)
    without_state = isinstance(net, StatefulLayer) and type(state) is tuple and not state
    if without_state and len(inputs) > 1 and not hasattr(inputs[0], "shape"):
        repair = "write layer_outputs(net, params, x, state=state)"
        require(False, "the state of the net by name", f"{describe(inputs[0])} after params", repair, error=TypeError)
    arrays, static = split_side(side)

    def run(params, state, inputs, arrays):
        return stateful(net).apply(params, state, *inputs, **arrays, **static)

    arguments = (params, state, inputs, arrays)
    with named_outputs():
        closed = jax.make_jaxpr(run)(*arguments)
    placed = [(equation, str(equation.source_info.name_stack)) for equation in closed.jaxpr.eqns]
    layers = [(equation, scope) for equation, scope in placed if _marks_layer(equation, scope)]
    # The same program with other results: the outputs of the layers instead of that of the net.
    jaxpr = closed.jaxpr.replace(outvars=[equation.outvars[0] for equation, _ in layers])
    values = jaxpr_as_fun(ClosedJaxpr(jaxpr, closed.consts))(*jax.tree.leaves(arguments))
    found: dict[tuple[str, str], tuple] = {}
    for (equation, scope), value in zip(layers, values, strict=True):
        layer = scope, equation.params["name"]
        found[layer] = (*found.get(layer, ()), value)
    marked = {scope for scope, _ in found}
    # A combinator and its only child have the same path; the combinator is last.
    return {_path(scope, marked): value[0] if len(value) == 1 else value for (scope, _), value in found.items()}


def count_params(params: PyTree) -> int:
    """Number of entries of all arrays in a tree of params.

    >>> count_params(jax.eval_shape(MLP(5, 10, 5, 2).init, jax.random.key(0), jnp.zeros(2)))
    142
    """
    reject_holder("params", params)
    pair = isinstance(params, Layer | StatefulLayer)
    require(not pair, "params", "a layer", "pass what its init returns: net.init(key, x)", error=TypeError)
    # Params may be integers, too; states have counts and keys.
    second = params[1] if type(params) is tuple and len(params) == 2 else ()
    if any(map(_is_of_state, paths(second), jax.tree.leaves(second))):
        repair = "pass params alone: params, state = net.init(key, x)"
        require(False, "params", "a pair of params and state", repair, error=TypeError)
    return _numbers_in(params)


def _is_of_state(path: str, leaf) -> bool:
    """Whether an array is the number of updates of running statistics or of tokens in a cache, or a key."""
    is_count = path.rpartition("/")[2] in ("updates", "position") and jnp.issubdtype(leaf.dtype, jnp.integer)
    return is_count or jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _numbers_in(tree) -> int:
    return sum(math.prod(getattr(leaf, "shape", ())) for leaf in jax.tree.leaves(tree))


@dataclass(frozen=True)
class MomentsRow:
    """Moments of one array: an input of a net, or an output of a layer, in what `variance_report` returns.

    Attributes:
        path: the path of the layer, as in `LayerRow`; ``""`` for an input.
        kind: the name of its constructor or function, or ``"input"``.
        mean: of all entries of the array, in float64.
        variance: of all entries, around that mean.
        positive: the share of entries above 0; before or after a rectifier, the share of
            active units.
    """

    path: str
    kind: str
    mean: float
    variance: float
    positive: float

    @property
    def second_moment(self) -> float:
        """The mean of the squares, on which the output variance of a layer with zero-mean weights depends."""
        return self.variance + self.mean**2


@dataclass(frozen=True)
class VarianceReport:
    """What `variance_report` returns: means and variances, from the inputs to the last layer.

    It prints as a table, in a notebook as HTML.

    Attributes:
        rows: a `MomentsRow` for each input, then for each output of a layer, in the order of computation.
    """

    rows: tuple[MomentsRow, ...]

    def __getitem__(self, path: str) -> MomentsRow:
        """A row by its path, as in `Summary`; the first one of a layer that is applied several times."""
        return _row_at(self, path)

    def _table(self, style: str, indent: str) -> str:
        from tabulate import tabulate

        lines = []
        for row in self.rows:
            label = indent * row.path.count("/") + f"{row.path.rpartition('/')[2]} {row.kind}".strip()
            lines.append((label, f"{row.mean:.3g}", f"{row.variance:.3g}", f"{row.positive:.1%}"))
        align = ("left", "right", "right", "right")
        headers = ("layer", "mean", "variance", "positive")
        return tabulate(lines, headers, style, colalign=align, disable_numparse=True, preserve_whitespace=True)

    def __str__(self) -> str:
        return self._table("simple", "  ")

    def _repr_html_(self) -> str:
        return self._table("html", "\N{NO-BREAK SPACE}\N{NO-BREAK SPACE}")


@checked
def variance_report(
    net: LayerLike,
    *inputs: PyTree,
    key: Key[Array, ""] | None = None,
    params: PyTree = None,
    state: PyTree = None,
    **side: Any,
) -> VarianceReport:
    r"""Mean and variance of the outputs of every layer of a net, at ``init`` or with given params.

    Where the variance shrinks or grows from layer to layer, so do the outputs and, in the same way, the gradients: a
    deep net then learns slowly or not at all. With weights of variance $Var w$, mean zero, and no bias,
    a layer of n inputs has $Var y = n Var w E x^2$, so that He's 2 / n keeps it
    behind ReLUs and LeCun's 1 / n behind SELUs (`jaxblocks.initializers`).

    Args:
        net: a pair or a function of arrays.
        inputs: arrays with typical values (standardized data, a few hundred examples).
        key: for ``init``, ``jax.random.key(0)`` by default; layers that draw random numbers get a key derived from it.
        params, state: used instead of the result of ``net.init(key, *inputs)``.
        side: side inputs, as for ``apply``; ``train`` is ``True`` by default, since batch normalization has no running
            statistics at initialization.

    Returns:
        A row for every floating-point array. Layers inside a scan (`Repeat`, `Recurrent`), and inside a ``jit`` or
        ``checkpoint`` within a layer, are omitted, as in `layer_outputs`. To inspect a ``Repeat``, build it as a
        ``Serial`` of copies, which draws the same params.

    >>> net = Serial(hidden=Dense(500), activation=tanh, out=Dense(300))
    >>> report = variance_report(net, jax.random.normal(jax.random.key(1), (1000, 100)))
    >>> [f"{row.kind} {row.variance:.2f}" for row in report.rows]
    ['input 1.00', 'Dense 0.99', 'tanh 0.39', 'Dense 0.39']
    >>> print(report)
    layer ... mean    variance    positive
    ...

    Source: He, Zhang, Ren, Sun 2015, section 2.2; Huszar, DeepNN lecture 3 (the importance of initialization).
    """
    layer, key = stateful(net), jax.random.key(0) if key is None else key
    if "train" in declared_by(layer.apply):
        side = {"train": True, **side}
    # Another key than that of init, from which the params are drawn.
    for_apply, declared = child_key(key, "apply"), declared_by(layer.init)
    if params is None or (state is None and isinstance(as_layer(net), StatefulLayer)):
        made = layer.init(key, *inputs, **{name: value for name, value in side.items() if name in declared})
        params, state = made[0] if params is None else params, made[1] if state is None else state
    side |= keys_for(declared_by(layer.apply), for_apply)
    rows = [MomentsRow("", "input", *_moments(x)) for x in jax.tree.leaves(inputs) if _holds_floats(x)]
    found = layer_outputs(net, params, *inputs, state=state, **side)
    # Reversed, so that of several rows with one path the first one, the outermost layer, remains.
    kinds = {row.path: row.kind for row in reversed(summary(net, *inputs, **side).rows)}
    if not found:  # a layer without a combinator
        found = {"": tuple(jax.tree.leaves(layer.apply(params, state, *inputs, **side)[0]))}
    for path, outputs in found.items():
        for y in outputs if isinstance(outputs, tuple) else (outputs,):
            if _holds_floats(y):
                rows.append(MomentsRow(path, kinds[path], *_moments(y)))
    return VarianceReport(tuple(rows))


def _moments(x) -> tuple[float, float, float]:
    """Mean, variance and share of positive entries, in float64 on the host."""
    x = np.asarray(x).astype(np.float64)
    if not x.size:
        return math.nan, math.nan, math.nan
    with np.errstate(over="ignore", invalid="ignore"):  # infinite outputs have variance nan
        return float(x.mean()), float(x.var()), float((x > 0).mean())


def _holds_floats(x) -> bool:
    return jnp.issubdtype(jnp.result_type(x), jnp.floating)


def _row_at(table, path: str):
    """The first row of a `Summary` or a `VarianceReport` with a path."""
    for row in table.rows:
        if path == row.path:
            return row
    known = ", ".join(dict.fromkeys(row.path for row in table.rows if row.path))
    raise KeyError(f"{type(table).__name__} expected the path of a layer, got {path!r}; the paths are: {known}.")


def _path(scope: str, marked) -> str:
    """The path of a layer: the labels of the enclosing layers, without named scopes of the user."""
    parts = scope.split("/")
    return "/".join(part for depth, part in enumerate(parts, 1) if part and "/".join(parts[:depth]) in marked)


def _trace(net, inputs, side):
    """Shapes of params, the number of arrays of params and state, the jaxpr of ``apply``, shapes of outputs."""
    reject_shapes(inputs)
    reject_foreign("inputs", inputs)
    layer, key = stateful(net), jax.random.key(0)
    side = {**keys_for(declared_by(layer.apply), key), **side}
    for_init = {name: value for name, value in side.items() if name in declared_by(layer.init)}
    params, state = eval_shape(lambda *args: layer.init(key, *args[:-1], **args[-1]), *inputs, for_init)
    arrays, static = split_side(side)

    def run(params, state, inputs, arrays):
        return layer.apply(params, state, *inputs, **arrays, **static)

    with named_outputs():
        closed, (outputs, _) = jax.make_jaxpr(run, return_shape=True)(params, state, as_shapes(inputs), arrays)
    return params, len(jax.tree.leaves((params, state))), closed, outputs


_FIXED, _PARAM = -2, -1
"""The depths of what has no path from the inputs of a net: numbers, and params with what is computed from them."""


def _depth_and_width(closed: ClosedJaxpr, n_held: int) -> tuple[int, int]:
    """The largest number of products with params on a path, and the largest number of features before the last.

    The depth of a variable is the number of products on the longest path from the inputs.
    """
    products: list[tuple[int, int]] = []  # the depth and the features of each
    deepest = functools.partial(max, default=_FIXED)

    def default(step):
        depth = deepest(step.operands)
        if step.name in DOTS or not opens(step):
            kernel, x = sorted(step.operands[:2])
            if kernel == _PARAM and x >= 0:
                depth = x + 1
                products.append((depth, _features(step)))
        return [depth] * len(step.equation.outvars)

    def opens(step):  # calls, but those that are a convolution
        return share_of_products(step.params) is None

    def scan(step):
        constants, carry, slices = split_scan_inputs(step.equation, step.operands)
        body, n = as_closed(step.params["jaxpr"]), len(carry)
        iterate = lambda carry: step.interpret(body, [*constants, *carry, *slices])
        first = iterate(carry)
        if deepest(slices) >= 0:  # over time
            return first
        # The second iteration shows by how much the depth grows in each one; the others add as much.
        second, more = iterate(first[:n]), step.params["length"] - 1
        return [two if one < 0 else one + more * (two - one) for one, two in zip(first, second, strict=True)]

    def cond(step):
        branches = [step.interpret(as_closed(body), step.operands[1:]) for body in step.params["branches"]]
        return list(map(max, zip(*branches, strict=True)))

    inputs = [_PARAM if i < n_held else 0 for i in range(len(closed.jaxpr.invars))]
    constant = lambda value: _FIXED
    outputs = interpret(closed, inputs, default, rules={"scan": scan, "cond": cond}, constant=constant, opens=opens)
    depth = max(deepest(outputs), 0)
    return depth, max((features for at, features in products if at < depth), default=0)


def _features(step: Step) -> int:
    """The number of features that a product with a kernel has."""
    numbers: Any = step.params.get("dimension_numbers")
    shapes = [shape_of(variable) for variable in step.equation.invars[:2]]
    if step.name == "conv_general_dilated":
        return shapes[1][numbers.rhs_spec[0]]
    if step.name not in DOTS:  # a depthwise convolution
        return shapes[1][-1]
    side = step.operands.index(_PARAM)  # of the kernel
    numbers = step.params["ragged_dot_dimension_numbers"].dot_dimension_numbers if numbers is None else numbers
    contracted, batch = (both[side] for both in numbers)
    return math.prod(n for axis, n in enumerate(shapes[side]) if axis not in (*contracted, *batch))


def _marks_layer(equation, scope: str) -> bool:
    """Whether an equation names the output of a layer, as combinators do: ``2.Dense`` in the scope ``2``."""
    name = equation.params["name"] if equation.primitive.name == "name" else ""
    return "." in name and name.partition(".")[0] in ("", scope.rpartition("/")[2])


def _find(params, path: str):
    for label in filter(None, path.split("/")):
        while isinstance(params, Mapping) and label not in params:  # inside of a `LoRA`, which is no level of a path
            params = params["base"]
        params = params[label if isinstance(params, Mapping) else int(label)]
    return params
