r"""The products in which a function uses its parameters, whose gradients are sums of outer products.

Most parameters are used in a single product: a dense layer's kernel with an activation, a convolution's
kernel with the patches of an image, an embedding's table with the one-hot vectors of its rows. Then the gradient of
one example is a sum of outer products over the positions p at which the parameter is used (time steps, pixels),

    G_b = sum_p u_bp v_bp^T                    for each of the matrices b in the parameter,

of the other operand u and the cotangent v of the product, which is the derivative with respect to a zero that is
added to the product. `read` finds these products in a jaxpr, loops included.

    b    matrices in one parameter: groups, or steps of a scan with separate weights
    p    positions that share the matrix
    c    entries of u,  n    entries of v
    e    outputs over which an inner product sums
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, JaxprEqn
from jaxtyping import PyTree

from jaxblocks.ad.programs.jaxprs import (
    Step,
    as_closed,
    body_of_call,
    dtype_of,
    interpret,
    shape_of,
    split_scan_inputs,
)
from jaxblocks.backend.derivative_rules import visible_products
from jaxblocks.backend.varying import replicated

__all__ = [
    "Reading",
    "Site",
    "fit",
    "of_one_example",
    "read",
]


class View(NamedTuple):
    """A parameter, or a part of it, in a variable: moved, cast, scaled, or concatenated with others.

    Attributes:
        leaf: the index of the parameter.
        axes: the parameter's axes in the variable, -1 for an inserted one; ``None`` after a reshape that mixes them.
        window: its position in the variable, a start and a length for each axis.
        parts: where the parameter is sliced, its axes with their limits.
        taken: the axes that enclosing scans have sliced.
        loops: of the enclosing scans, the length, and whether each iteration has its own weights.
        scales: the scalars that multiply (``True``) or divide the parameter, each as the path of that equation and its
            operand.
    """

    leaf: int
    axes: tuple[int, ...] | None
    window: tuple[tuple[int, int], ...]
    parts: dict[int, tuple[int, int]]
    taken: tuple[int, ...] = ()
    loops: tuple[tuple[int, bool], ...] = ()
    scales: tuple[tuple[tuple[int, ...], int, bool], ...] = ()


class Site(NamedTuple):
    """One product in which a parameter is used.

    Attributes:
        kind: ``"dense"``, ``"convolution"`` or ``"rows"`` (of a table).
        path: the indices of the enclosing equations and of its equation, outermost first.
        equation: the product.
        operand: the index of the operand that is the parameter.
        view: the parameter in this operand.
        axes: the parameter's axes in b, in u and in v, by which `fit` compares two sites of one parameter; ``None``
            where they are not known.
        orders: of the operand's axes, in the layout of the factors.
    """

    kind: str
    path: tuple[int, ...]
    equation: JaxprEqn
    operand: int
    view: View
    axes: tuple[tuple, tuple, tuple] | None
    orders: tuple[tuple[int, ...], ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the parameter in the operand."""
        return tuple(length for _, length in self.view.window)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """The lengths of b, p, c and n for one example."""
        b, p = (math.prod(n for n, own in self.view.loops if own == stacked) for stacked in (True, False))
        shape, out = self.shape, shape_of(self.equation.outvars[0])
        if self.kind == "dense":
            batch, left, right = (math.prod(shape[axis] for axis in order) for order in self.orders)
            whole = shape_of(self.equation.invars[self.operand])
            out = (math.prod(out) // max(1, math.prod(whole[axis] for axis in self.orders[0] + self.orders[2])),)
            return b * batch, p * out[0], left, right
        elif self.kind == "convolution":
            batch = self.equation.params["feature_group_count"]
            right = shape[self.equation.params["dimension_numbers"].rhs_spec[0]] // batch
            left = math.prod(shape) // max(1, batch * right)
        else:
            [axis] = self.equation.params["dimension_numbers"].start_index_map
            batch, left, right = 1, shape[axis], math.prod(shape) // max(1, shape[axis])
        return b * batch, p * (math.prod(out) // max(1, batch * right)), left, right


class Reading(NamedTuple):
    """The jaxpr of a function for one example, and the products in which it uses its parameters.

    Attributes:
        closed_jaxpr: the jaxpr; its first arguments are the leaves of the parameters.
        sites: for each leaf, all products that use it; none if it has another use too.
        reasons: for each leaf without sites, the reason.
        names: of the leaves, as in ``"['kernel']"``.
    """

    closed_jaxpr: ClosedJaxpr
    sites: tuple[tuple[Site, ...], ...]
    reasons: tuple[str, ...]
    names: tuple[str, ...]


def of_one_example(batch: PyTree) -> PyTree:
    """Shapes and dtypes of one example of a batch."""

    def one(leaf):
        if leaf.shape[0]:
            return jax.eval_shape(lambda leaf: replicated(leaf)[0], leaf)
        leaf = jax.eval_shape(replicated, leaf)  # JAX takes no entry of an empty array
        return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)

    return jax.tree.map(one, batch)


def read(f: Callable, params: PyTree, *example: PyTree) -> Reading:
    """Find where ``f(params, *example)`` uses each leaf of ``params``; shapes suffice for the example.

    >>> reading = read(
    ...     lambda w, x: jnp.tanh(x @ w["kernel"]),
    ...     {"kernel": jnp.ones((3, 2))},
    ...     jnp.ones(3),
    ... )
    >>> [[site]] = reading.sites
    >>> site.kind, site.sizes
    ('dense', (1, 1, 3, 2))
    """
    with visible_products():
        closed_jaxpr = jax.make_jaxpr(f)(params, *example)
    named = jax.tree_util.tree_leaves_with_path(params)
    reader = _Reader(len(named))
    uses = [_Use() for _ in closed_jaxpr.jaxpr.invars]
    for i, (_, leaf) in enumerate(named):
        uses[i] = _Use((View(i, tuple(range(leaf.ndim)), _whole(leaf.shape), {}),), True)
    reader.exclude(reader.run(closed_jaxpr, uses), "it is an output")
    sites, reasons = reader.sites, reader.reasons
    for i, own in enumerate(sites):
        if not own:
            reasons.setdefault(i, "it is not used")
        # The squared norm of a sum needs the inner products of all pairs; one pair that cannot be compared leaves only
        # the gradient itself.
        elif len(own) > 1 and not all(fit(one, other) for one in own for other in own):
            reasons.setdefault(i, "its products do not fit together")
    return Reading(
        closed_jaxpr,
        tuple(() if i in reasons else tuple(own) for i, own in enumerate(sites)),
        tuple(reasons.get(i, "") for i in range(len(sites))),
        tuple(jax.tree_util.keystr(path) for path, _ in named),
    )


def fit(one: Site, other: Site) -> str | None:
    """The relation of the gradients of two sites: ``"alike"``, ``"swapped"`` (transposed) or ``"apart"``.

    ``None`` where they cannot be compared.
    """
    if one is other:
        return "alike"
    parts = other.view.parts
    for axis, (start, stop) in one.view.parts.items():
        # Disjoint slices of one parameter have orthogonal gradients.
        if axis in parts and (parts[axis][0] >= stop or start >= parts[axis][1]):
            return "apart"
    if one.axes is None or other.axes is None or one.view.parts != parts or one.axes[0] != other.axes[0]:
        return None
    if one.axes[1:] == other.axes[1:]:
        return "alike"
    return "swapped" if one.axes[1:] == other.axes[:0:-1] else None


def _whole(shape) -> tuple:
    return tuple((0, length) for length in shape)


class _Use(NamedTuple):
    """The meaning of a variable while a jaxpr is read.

    Attributes:
        views: the parameters that it contains.
        active: whether it depends on a parameter.
    """

    views: tuple[View, ...] = ()
    active: bool = False


class _Reader:
    """Collects the sites of each leaf in a jaxpr, and the reasons for leaves without sites."""

    def __init__(self, leaves: int):
        self.sites: list[list[Site]] = [[] for _ in range(leaves)]
        self.reasons: dict[int, str] = {}

    def run(self, closed_jaxpr: ClosedJaxpr, uses: Sequence[_Use]) -> list[_Use]:
        return interpret(closed_jaxpr, uses, self.rule, constant=lambda value: _Use(), opens=lambda step: False)

    def exclude(self, uses: Sequence[_Use], reason: str) -> None:
        """Record that the leaves in these variables have no sites, for this reason."""
        for use in uses:
            for view in use.views:
                self.reasons.setdefault(view.leaf, reason)

    def rule(self, step: Step) -> list[_Use]:
        active = any(use.active for use in step.operands)
        views = self.views(step) if any(use.views for use in step.operands) else None
        return [_Use(own, active) for own in views or [()] * len(step.equation.outvars)]

    def views(self, step: Step) -> list[tuple[View, ...]] | None:
        """The parameters that each result contains; ``None`` if no result contains any."""
        name, body = step.name, body_of_call(step.equation)
        if name in _MOVES:
            return self.moved(step)
        if _scales(step):
            left = step.operands[0].views
            held, scale = left or step.operands[1].views, (step.path, 1 if left else 0, name == "mul")
            return [tuple(view._replace(scales=(*view.scales, scale)) for view in held)]
        if name in _PRODUCTS:
            self.product(step)
        elif body is not None and not name.startswith("custom_"):
            return [use.views for use in step.interpret(body, step.operands)]
        elif name == "scan":
            self.scan(step)
        else:
            reason = f"its entries are used one by one ({name})" if name in _BY_ENTRY else f"{name} uses it"
            self.exclude(step.operands, reason)
        return None

    def moved(self, step: Step) -> list[tuple[View, ...]]:
        found: list[tuple[View, ...]] = [()] * len(step.equation.outvars)
        for operand, use in enumerate(step.operands):
            for view in use.views:
                moved = _MOVES[step.name](step.equation, operand, view)
                if moved is None:
                    self.reasons.setdefault(view.leaf, f"a {step.name} of an unknown form uses it")
                else:
                    found = [(*own, after) for own, after in zip(found, moved, strict=True)]
        return found

    def product(self, step: Step) -> None:
        if dtype_of(step.equation.outvars[0]).kind == "c":  # of a real parameter: see `_converted`
            return self.exclude(step.operands, f"a {step.name} with complex numbers uses it")
        for operand, use in enumerate(step.operands):
            for view in use.views:
                site = _PRODUCTS[step.name](step.equation, operand, view, step.path)
                if site is None:
                    self.reasons.setdefault(view.leaf, f"a {step.name} of an unknown form uses it")
                else:
                    self.sites[view.leaf].append(site)

    def scan(self, step: Step) -> None:
        length = step.params["length"]
        constants, carries, slices = split_scan_inputs(step.equation, step.operands)
        for view in (view for use in step.operands for view in use.views if view.scales):
            self.reasons.setdefault(view.leaf, "it is scaled outside of a scan")
        # The body may change a carry, so that later iterations read another value.
        self.exclude(carries, "a scan carries it")
        shared, own = (length, False), (length, True)  # the weights of all iterations, or of each
        inner = []
        for use in constants:
            views = [view._replace(loops=(*view.loops, shared)) for view in use.views if not view.scales]
            inner.append(_Use(tuple(views), use.active))
        inner += [_Use((), True) for _ in carries]
        for use in slices:
            views = []
            for view in use.views:
                if view.axes is None or view.window[0] != (0, length):
                    self.reasons.setdefault(view.leaf, "a scan slices it after it was reshaped")
                elif not view.scales:
                    first, *axes = view.axes
                    moved = view._replace(axes=tuple(axes), window=view.window[1:], taken=(*view.taken, first))
                    views.append(moved._replace(loops=(*view.loops, own)))
            inner.append(_Use(tuple(views), use.active))
        outputs = step.interpret(as_closed(step.params["jaxpr"]), inner)
        self.exclude(outputs, "a scan returns it")


# A parameter in these is as small as its uses: factors of its gradient would save nothing.
_BY_ENTRY = frozenset({"add", "add_any", "broadcast_in_dim", "div", "mul", "sub"})

# Primitives that move a parameter's entries without mixing them: each rule returns the views of the results, or None.


def _as_it_is(equation, operand, view):
    return [view]


def _converted(equation, operand, view):
    """The gradient of a real parameter is the real part of one of complex numbers, which has no such factors.

    Integers have no derivative.
    """
    return [view] if jnp.issubdtype(equation.outvars[0].aval.dtype, jnp.floating) else None


def _transposed(equation, operand, view):
    order = equation.params["permutation"]
    axes = None if view.axes is None else tuple(view.axes[axis] for axis in order)
    return [view._replace(axes=axes, window=tuple(view.window[axis] for axis in order))]


def _reshaped(equation, operand, view):
    """A reshape may insert and remove axes of length one; any other reshape makes the axes unknown."""
    before, after = shape_of(equation.invars[0]), shape_of(equation.outvars[0])
    reordered = equation.primitive.name == "reshape" and equation.params.get("dimensions") is not None
    if view.window != _whole(before) or reordered:
        return None
    axes = None
    if view.axes is not None and [n for n in before if n != 1] == [n for n in after if n != 1]:
        left = iter([axis for axis, n in zip(view.axes, before, strict=True) if n != 1])
        axes = tuple(-1 if n == 1 else next(left) for n in after)
    return [view._replace(axes=axes, window=_whole(after))]


def _reversed(equation, operand, view):
    whole = view.window == _whole(shape_of(equation.invars[0]))
    return [view._replace(axes=None)] if whole else None


def _sliced(equation, operand, view):
    params = equation.params
    if params["strides"] is not None and any(step != 1 for step in params["strides"]):
        return None
    limits = tuple(zip(params["start_indices"], params["limit_indices"], strict=True))
    return _cut(view, shape_of(equation.invars[0]), [limits])


def _split(equation, operand, view):
    shape, axis = shape_of(equation.invars[0]), equation.params["axis"]
    whole, pieces, start = _whole(shape), [], 0
    for size in map(int, equation.params["sizes"]):
        pieces.append((*whole[:axis], (start, start + size), *whole[axis + 1 :]))
        start += size
    return _cut(view, shape, pieces)


def _cut(view, shape, pieces):
    """Parts of a parameter that is its whole variable, each with limits on every axis."""
    if view.axes is None or view.window != _whole(shape):
        return None
    found = []
    for limits in pieces:
        parts = dict(view.parts)
        for axis, length, (start, stop) in zip(view.axes, shape, limits, strict=True):
            if (start, stop) != (0, length):
                # A slice of a slice: its limits count from the start of the first one.
                first = parts.get(axis, (0, 0))[0]
                parts[axis] = (first + start, first + stop)
        window = tuple((0, stop - start) for start, stop in limits)
        found.append(view._replace(parts=parts, window=window))
    return found


def _joined(equation, operand, view):
    axis = equation.params["dimension"]
    before = sum(shape_of(v)[axis] for v in equation.invars[:operand])
    start, length = view.window[axis]
    return [view._replace(window=(*view.window[:axis], (before + start, length), *view.window[axis + 1 :]))]


_MOVES: dict[str, Callable] = {
    "concatenate": _joined,
    "convert_element_type": _converted,
    "copy": _as_it_is,
    "expand_dims": _reshaped,
    "name": _as_it_is,
    "reshape": _reshaped,
    "rev": _reversed,
    "slice": _sliced,
    "split": _split,
    "squeeze": _reshaped,
    "transpose": _transposed,
}


def _scales(step: Step) -> bool:
    """Whether an equation multiplies or divides a parameter by a scalar that depends on no parameter."""
    if step.name not in ("mul", "div"):
        return False
    left, right = step.operands
    # A parameter in the denominator, or the product of two parameters, is not linear in them.
    if (step.name == "div" and not left.views) or (left.views and right.views):
        return False
    other = 0 if right.views else 1
    return not shape_of(step.equation.invars[other]) and not step.operands[other].active


def _dense(equation, operand, view, path) -> Site | None:
    contracted, batch = equation.params["dimension_numbers"]
    shape = shape_of(equation.invars[operand])
    orders = [tuple(batch[operand]), tuple(contracted[operand])]
    orders.append(tuple(axis for axis in range(len(shape)) if axis not in orders[0] + orders[1]))
    axes = None
    if view.axes is not None:  # in the order of the parameter's axes, so that two sites can be compared
        orders = [tuple(sorted(order, key=view.axes.__getitem__)) for order in orders]
        first, u, v = (tuple(view.axes[axis] for axis in order) for order in orders)
        axes = ((*view.taken, *first), u, v)
    return Site("dense", path, equation, operand, view, axes, tuple(orders))


def _convolution(equation, operand, view, path) -> Site | None:
    whole = view.window == _whole(shape_of(equation.invars[operand]))
    # A parameter as the image, and the batch groups of a transposed convolution, would need other factors.
    if operand != 1 or equation.params["batch_group_count"] != 1 or not whole:
        return None
    spec = equation.params["dimension_numbers"].rhs_spec
    axes = None
    if view.axes is not None:
        groups = ("groups", equation.params["feature_group_count"])
        axes = ((*view.taken, groups), tuple(view.axes[a] for a in spec[1:]), (view.axes[spec[0]],))
    return Site("convolution", path, equation, operand, view, axes)


def _rows(equation, operand, view, path) -> Site | None:
    numbers, shape = equation.params["dimension_numbers"], shape_of(equation.invars[0])
    if operand != 0 or len(numbers.start_index_map) != 1 or numbers.operand_batching_dims:
        return None
    if view.window != _whole(shape):
        return None
    [axis] = numbers.start_index_map
    whole = tuple(1 if a == axis else length for a, length in enumerate(shape))
    if numbers.collapsed_slice_dims != (axis,) or tuple(equation.params["slice_sizes"]) != whole:
        return None
    if equation.params["mode"] not in _KNOWN_MODES:
        return None
    axes = None
    if view.axes is not None:
        rest = tuple(view.axes[a] for a in range(len(shape)) if a != axis)
        # `fit` compares rows entry by entry, so their axes must be in the order of the parameter.
        axes = (view.taken, (view.axes[axis],), rest) if rest == tuple(sorted(rest)) else None
    return Site("rows", path, equation, operand, view, axes)


_PRODUCTS = {"dot_general": _dense, "conv_general_dilated": _convolution, "gather": _rows}
_KNOWN_MODES = (
    jax.lax.GatherScatterMode.FILL_OR_DROP,
    jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS,
    jax.lax.GatherScatterMode.CLIP,
)
