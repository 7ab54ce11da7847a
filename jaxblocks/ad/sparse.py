r"""Jacobians that are mostly zeros: where the others stand, and few passes that find them all.

    x    the point, a pytree with n numbers in all
    y    the value f(x), m numbers
    J    the Jacobian, m by n
    t    a tangent, like x

Where y_i depends on x_j is read off the jaxpr of t -> J t: with each number goes the set of those
x_j that it depends on. Two columns without a common row can be computed by one tangent, two rows without a
common column by one cotangent: they get the same color, and one product with J (or its transpose) finds
all columns (or rows) of a color at once. A convolution with k taps takes k products, whatever its length.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun
from jaxtyping import Array, Float, PyTree

from jaxblocks.ad.counting import equations
from jaxblocks.ad.jaxlib_check import warn_if_jaxlib_is_wrong
from jaxblocks.ad.jaxprs import as_closed, body_of_call, inputs_of, piece, scan_parts
from jaxblocks.ad.laplacians import array_valued
from jaxblocks.ad.products import as_point
from jaxblocks.axes import axes_or_new
from jaxblocks.checks import describe

__all__ = ["SparsityPattern", "sparse_jacobian", "sparsity"]


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class SparsityPattern:
    """Where a Jacobian may have entries that are not zero, and which columns (or rows) are computed together.

    It prints as a picture in a terminal and in a notebook; `plot` draws it. `sparsity` finds one; where it is
    known, say from a mesh, write it down: ``SparsityPattern(rows, cols, shape)``.

    Attributes:
        rows, cols: of the entries, row by row; entries that are given twice count once.
        shape: (m, n), the numbers in f(x) and in x.

    >>> pattern = SparsityPattern([0, 1, 1, 2], [0, 0, 1, 2], (3, 3))
    >>> pattern.colors, pattern.mode
    (2, 'forward')
    >>> pattern
    4 of 3 x 3 entries may differ from zero (44.4 %): 2 colors, one jvp each.
    #..
    ##.
    ..#
    """

    rows: Sequence[int] | np.ndarray
    cols: Sequence[int] | np.ndarray
    shape: tuple[int, int]

    def __post_init__(self):
        rows, cols = (np.asarray(places, np.int64).reshape(-1) for places in (self.rows, self.cols))
        m, n = self.shape
        if rows.size != cols.size:
            raise ValueError(
                f"SparsityPattern expects a row and a column for each entry, but {rows.size} rows and {cols.size} "
                "columns came."
            )
        for name, places, size in (("rows", rows, m), ("cols", cols, n)):
            if places.size and not (0 <= places.min() and places.max() < size):
                raise ValueError(
                    f"SparsityPattern of shape {tuple(self.shape)} expects {name} from 0 to {size - 1}, but they "
                    f"reach from {places.min()} to {places.max()}."
                )
        places = _distinct(rows * max(n, 1) + cols)
        for name, value in zip(("rows", "cols"), np.divmod(places, max(n, 1)), strict=True):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "shape", (m, n))

    @property
    def entries(self) -> int:
        """How many places may differ from zero.

        >>> SparsityPattern([0, 1], [0, 1], (2, 2)).entries
        2
        """
        return self.rows.size

    @functools.cached_property
    def column_colors(self) -> np.ndarray:
        """The color of each column; columns of one color have no row in common.

        >>> SparsityPattern([0, 1], [0, 1], (2, 2)).column_colors
        array([0, 0])
        """
        return _colored(self.rows, self.cols, self.shape)

    @functools.cached_property
    def row_colors(self) -> np.ndarray:
        """The color of each row; rows of one color have no column in common.

        >>> SparsityPattern([0, 0], [0, 1], (1, 2)).row_colors
        array([0])
        """
        return _colored(self.cols, self.rows, self.shape[::-1])

    @functools.cached_property
    def mode(self) -> str:
        """``"forward"`` (columns, by jvps) or ``"reverse"`` (rows, by vjps): what takes fewer colors.

        >>> SparsityPattern([0, 0], [0, 1], (1, 2)).mode
        'reverse'
        """
        longest_row, longest_column = (
            np.bincount(places, minlength=1).max(initial=0) for places in (self.rows, self.cols)
        )
        # A row of k entries asks for k column colors at least: what cannot win is not colored.
        if longest_row <= longest_column:
            forward = _number(self.column_colors)
            return "reverse" if longest_column < forward and _number(self.row_colors) < forward else "forward"
        reverse = _number(self.row_colors)
        return "forward" if longest_row <= reverse and _number(self.column_colors) <= reverse else "reverse"

    @property
    def colors(self) -> int:
        """How many products with the Jacobian find all of its entries.

        >>> SparsityPattern([0, 0], [0, 1], (1, 2)).colors
        1
        """
        if not self.entries:
            return 0
        return _number(self.column_colors if self.mode == "forward" else self.row_colors)

    @property
    def is_dense(self) -> bool:
        """Whether nothing is gained: as many colors as the lesser of rows and columns.

        >>> SparsityPattern([0, 0, 1, 1], [0, 1, 0, 1], (2, 2)).is_dense
        True
        """
        return self.colors >= min(self.shape)

    def todense(self) -> np.ndarray:
        """The pattern as a boolean matrix.

        >>> SparsityPattern([0], [1], (1, 2)).todense()
        array([[False,  True]])
        """
        matrix = np.zeros(self.shape, bool)
        matrix[self.rows, self.cols] = True
        return matrix

    def plot(self, ax=None):
        """The entries as squares in the colors that they are computed by; returns the axes.

        >>> import pytest
        >>> matplotlib = pytest.importorskip("matplotlib")
        >>> matplotlib.use("agg")
        >>> SparsityPattern([0, 1], [0, 1], (2, 2)).plot().get_xlabel()
        'numbers of x'
        """
        ax = axes_or_new(ax)
        m, n = self.shape
        colors = self.column_colors[self.cols] if self.mode == "forward" else self.row_colors[self.rows]
        side = 200 / max(m, n, 1)
        ax.scatter(self.cols, self.rows, c=colors, cmap="turbo", marker="s", s=max(side**2, 0.5), linewidths=0)
        ax.set(xlim=(-0.5, n - 0.5), ylim=(m - 0.5, -0.5), aspect="equal", xlabel="numbers of x", ylabel="of f(x)")
        ax.set_title(self._words(), wrap=True)
        return ax

    def __repr__(self):
        return "\n".join([self._words(), *self._picture()])

    def _repr_html_(self) -> str:
        return f"<p>{self._words()}</p><pre>{'<br>'.join(self._picture())}</pre>"

    def _words(self) -> str:
        m, n = self.shape
        product = "jvp" if self.mode == "forward" else "vjp"
        share = f" ({100 * self.entries / (m * n):.3g} %)" if m * n else ""
        words = f"{self.entries:,} of {m:,} x {n:,} entries may differ from zero{share}"
        if not self.entries:
            return f"{words}: nothing to compute."
        if self.is_dense and self.colors > 1:
            return f"{words}: {self.colors:,} colors, as many {product}s as a dense Jacobian takes; nothing is gained."
        return f"{words}: {self.colors:,} color{'s' * (self.colors > 1)}, one {product} each."

    def _picture(self, height=24, width=64) -> list[str]:
        """A mark where a place (or, of a large pattern, any place of a patch) may differ from zero."""
        m, n = self.shape
        patch = max(1, math.ceil(m / height), math.ceil(n / width))
        marks = np.full((math.ceil(m / patch), math.ceil(n / patch)), ".")
        marks[self.rows // patch, self.cols // patch] = "#"
        return ["".join(line) for line in marks]


def sparsity(f: Callable[[Any], Float[Array, "..."]], x: PyTree) -> SparsityPattern:
    r"""Where the Jacobian :math:`\partial f_i / \partial x_j` may differ from zero at any point, read off the jaxpr.

    Args:
        f: takes a pytree, returns one floating-point array.
        x: like the points, of which only shapes and dtypes are read: arrays or ``jax.ShapeDtypeStruct``.

    Returns:
        A `SparsityPattern`; the numbers of x and of f(x) are counted leaf by leaf, each leaf row by row.

    No entry is missed; some that are marked may be zero. The pattern is exact for elementwise functions, shifts,
    slices, reshapes, sums, products with constant matrices, convolutions, pools and loops of known length
    over those. The constants of f (a finite-difference matrix, a mask, indices) are read by value, and their zeros
    are zeros of the pattern: for other constants ask again. What is not known, a sort or an index that depends
    on x, is taken to depend on all that goes in.

    Raises:
        TypeError: where a leaf of ``x`` is not floating-point, or ``f`` does not return one floating-point array.

    >>> sparsity(lambda x: jnp.diff(x) ** 2, jnp.zeros(6))
    10 of 5 x 6 entries may differ from zero (33.3 %): 2 colors, one jvp each.
    ##....
    .##...
    ..##..
    ...##.
    ....##

    Source: Griewank & Walther, Evaluating Derivatives, chapters 7 and 8 (index domains, compression by coloring).
    """
    return _sparsity("sparsity", f, x)


def _sparsity(where, f, x) -> SparsityPattern:
    warn_if_jaxlib_is_wrong()
    f = array_valued(where, f)
    x = as_point(where, x)
    closed, leaves = _forward(f, x), jax.tree.leaves(x)
    inputs, transposed = leaves, closed is None
    if transposed:
        inputs = [jax.eval_shape(f, x)]
        closed = jax.make_jaxpr(lambda x, t: jax.tree.leaves(jax.vjp(f, x)[1](t)))(x, *inputs)
    sets = _Sets(sum(math.prod(v.shape) for v in inputs))
    entries, start = [_Entry() for _ in leaves], _SINGLE
    for v in inputs:
        size = math.prod(v.shape)
        entries.append(_Entry(np.arange(start, start + size).reshape(v.shape)))
        start += size
    with jax.ensure_compile_time_eval():  # the constants of f have values even while f is traced
        outs = _walk(closed, entries, sets)
    ids = [_ids(out, v.aval).reshape(-1) for out, v in zip(outs, closed.jaxpr.outvars, strict=True)]
    rows, cols = sets.members(np.concatenate(ids))
    m, n = sum(each.size for each in ids), sets.n
    return SparsityPattern(cols, rows, (n, m)) if transposed else SparsityPattern(rows, cols, (m, n))


def _forward(f, x) -> ClosedJaxpr | None:
    """The jaxpr of x, t -> J t; ``None`` where a custom_vjp stands in f, for it has no such rule."""
    try:
        closed = jax.make_jaxpr(lambda x, t: jax.jvp(f, (x,), (t,))[1])(x, x)
    except TypeError as error:
        if "custom_vjp" not in str(error):
            raise
        return None
    if any(equation.primitive.name == "custom_lin" for equation, _, _ in equations(closed)):  # it does, in a checkpoint
        return None
    return closed


def sparse_jacobian(
    f: Callable[[Any], Float[Array, "..."]], like: "SparsityPattern | PyTree", *, mode: str = "auto"
) -> Callable[[PyTree], Any]:
    r"""The Jacobian of f as a function of the point, by one product for each color of its pattern.

    Args:
        f: takes a pytree, returns one floating-point array.
        like: the pattern, or a pytree like the points, from which `sparsity` finds it.
        mode: ``"forward"`` for jvps, ``"reverse"`` for vjps, ``"auto"`` for whichever are fewer.

    Returns:
        A function of x, to be used under ``jit`` and ``vmap``, that returns J as a
        ``jax.experimental.sparse.BCOO`` of shape (m, n): its ``data`` are the entries in the order of the
        pattern, and ``todense()`` is the matrix. The function holds the ``pattern``.

    The pattern is found once, here; where nothing is gained, it says so when printed, and as many products
    are computed as ``jax.jacfwd`` or ``jax.jacrev`` would take. Hessians are Jacobians of ``jax.grad(f)``.

    Raises:
        TypeError: where a leaf of x is not floating-point, f does not return one floating-point array, or
            ``mode="forward"`` meets a ``jax.custom_vjp``.
        ValueError: where the pattern has another shape than the Jacobian of f at x.

    >>> jacobian = sparse_jacobian(lambda x: jnp.diff(x) ** 2, jnp.zeros(3))
    >>> jacobian.pattern.colors
    2
    >>> jax.jit(jacobian)(jnp.array([1.0, 2.0, 4.0])).todense()
    Array([[-2.,  2.,  0.],
           [ 0., -4.,  4.]], dtype=float32)

    Source: Curtis, Powell & Reid 1974, On the estimation of sparse Jacobian matrices; Gebremedhin, Manne & Pothen
    2005, What color is your Jacobian?
    """
    warn_if_jaxlib_is_wrong()
    if mode not in ("auto", "forward", "reverse"):
        raise ValueError(f"sparse_jacobian expects mode 'auto', 'forward' or 'reverse', but {mode!r} came.")
    pattern = like if isinstance(like, SparsityPattern) else _sparsity("sparse_jacobian", f, like)
    f = array_valued("sparse_jacobian", f)

    def jacobian(x):
        from jax.experimental.sparse import BCOO  # here, because it takes its time

        x = as_point("sparse_jacobian", x)
        y = jax.eval_shape(f, x)
        shape = (math.prod(y.shape), sum(leaf.size for leaf in jax.tree.leaves(x)))
        if shape != pattern.shape:
            raise ValueError(
                f"sparse_jacobian has a pattern of {pattern.shape[0]} x {pattern.shape[1]} places, but f takes x of "
                f"{shape[1]} numbers to {describe(y)}, a Jacobian of {shape[0]} x {shape[1]}; find the pattern with "
                "sparsity(f, x) for an x of these shapes."
            )
        data = jnp.zeros(0, y.dtype) if pattern.entries == 0 else _compressed(f, x, y, pattern, mode)
        places = np.stack([pattern.rows, pattern.cols], axis=1).astype(np.int32)
        return BCOO((data, jnp.asarray(places)), shape=shape, indices_sorted=True, unique_indices=True)

    jacobian.pattern = pattern
    return jacobian


def _compressed(f, x, y, pattern, mode):
    """The entries of the Jacobian, from one product for each color."""
    if (pattern.mode if mode == "auto" else mode) == "forward":
        closed = _forward(f, x)
        if closed is not None:
            push = lambda t: jaxpr_as_fun(closed)(*jax.tree.leaves(x), *jax.tree.leaves(t))[0]
            products = jax.vmap(push)(_seeds(pattern.column_colors, x)).reshape(-1, pattern.shape[0])  # (colors, m)
            return products[pattern.column_colors[pattern.cols], pattern.rows]
        if mode == "forward":
            raise TypeError(
                "sparse_jacobian cannot go forward through f, for a jax.custom_vjp in it has a rule for reverse mode "
                "only; ask for mode='reverse' or 'auto'."
            )
    _, pull = jax.vjp(f, x)
    [products] = jax.vmap(pull)(_seeds(pattern.row_colors, y))
    parts = [p.reshape(p.shape[0], -1).astype(y.dtype) for p in jax.tree.leaves(products)]
    return jnp.concatenate(parts, axis=1)[pattern.row_colors[pattern.rows], pattern.cols]  # of (colors, n)


def _seeds(colors, like):
    """For each color a vector like the point, one where the color stands and zero elsewhere."""
    leaves, structure = jax.tree.flatten(like)
    seeds, start = [], 0
    for leaf in leaves:
        own = jnp.asarray(colors[start : start + math.prod(leaf.shape)], jnp.int32)
        ones = jnp.arange(_number(colors), dtype=jnp.int32)[:, None] == own[None, :]
        seeds.append(ones.astype(leaf.dtype).reshape(-1, *leaf.shape))
        start += own.size
    return structure.unflatten(seeds)


# ---- colors ------------------------------------------------------------------------------


def _number(colors) -> int:
    return int(colors.max(initial=-1)) + 1


def _colored(rows, cols, shape) -> np.ndarray:
    """Greedy colors of the columns, in their own order or the longest first, whichever takes fewer."""
    m, n = shape
    longest = np.bincount(rows, minlength=1).max(initial=0)
    if longest == n:  # a full row: no two columns go together
        return np.arange(n)
    order = np.argsort(cols, kind="stable")
    ends = np.cumsum(np.bincount(cols, minlength=n))
    by_column = [part.tolist() for part in np.split(rows[order], ends[:-1])]
    best = _greedy(by_column, range(n), m)
    if _number(best) > longest:
        other = _greedy(by_column, np.argsort([-len(part) for part in by_column], kind="stable").tolist(), m)
        best = min(best, other, key=_number)
    return best


def _greedy(by_column, order, m) -> np.ndarray:
    taken = [0] * m  # of each row, the colors in it as bits
    colors = np.zeros(len(by_column), np.int64)
    for column in order:
        used = 0
        for row in by_column[column]:
            used |= taken[row]
        bit = ~used & (used + 1)  # the lowest that is free
        colors[column] = bit.bit_length() - 1
        for row in by_column[column]:
            taken[row] |= bit
    return colors


def _distinct(numbers) -> np.ndarray:
    """As numpy.unique, which hashes, many times faster for numbers that are almost in order."""
    numbers = np.sort(numbers, kind="stable")
    return numbers[np.concatenate([[True], numbers[1:] != numbers[:-1]])] if numbers.size else numbers


# ---- sets of inputs -----------------------------------------------------------------------

_EMPTY, _FULL, _SINGLE = 0, 1, 2  # the sets that are always there: none, all, and from here on one input each


class _Sets:
    """Sets of the numbers 0 ... n - 1, known by their ids: arrays of ids say what an array depends on."""

    def __init__(self, n):
        self.n = n
        self.lengths = np.concatenate([[0, n], np.ones(n, np.int64)])
        self.starts = np.concatenate([[0, 0], np.arange(n)])
        self.indices, self.used = np.arange(n, dtype=np.int32), n

    def members(self, ids) -> tuple[np.ndarray, np.ndarray]:
        """Place in ``ids`` and member, for all members of all sets."""
        lengths = self.lengths[ids]
        owners = np.repeat(np.arange(ids.size), lengths)
        first = np.cumsum(lengths) - lengths
        places = np.arange(owners.size) + np.repeat(self.starts[ids] - first, lengths)
        return owners, self.indices[places].astype(np.int64)

    def join(self, owners, ids, count) -> np.ndarray:
        """The ids of ``count_flops`` unions: set ``ids[k]`` goes into the union ``owners[k]``."""
        out = np.full(count, _EMPTY)
        owners, ids = np.divmod(_distinct(owners * self.lengths.size + ids), self.lengths.size)
        out[owners] = ids  # right where there is but one
        out[owners[ids == _FULL]] = _FULL
        keep = (ids != _EMPTY) & (out[owners] != _FULL)
        owners, ids = owners[keep], ids[keep]
        out[owners] = ids
        several = np.bincount(owners, minlength=count)[owners] > 1
        new, places = np.unique(owners[several], return_inverse=True)
        if new.size:
            pairs, members = self.members(ids[several])
            union, members = np.divmod(_distinct(places[pairs] * self.n + members), self.n)
            lengths = np.bincount(union, minlength=new.size)
            out[new] = np.where(lengths == self.n, _FULL, self.lengths.size + np.arange(new.size))
            self._append(lengths, members)
        return out

    def _append(self, lengths, members):
        needed = self.used + members.size
        if needed > self.indices.size:
            self.indices = np.concatenate([self.indices[: self.used], np.empty(needed, np.int32)])
        self.indices[self.used : needed] = members
        self.starts = np.concatenate([self.starts, self.used + np.cumsum(lengths) - lengths])
        self.lengths = np.concatenate([self.lengths, lengths])
        self.used = needed

    def union(self, a, b) -> np.ndarray:
        """Element by element."""
        out = np.where(a == _EMPTY, b, a)
        different = (a != b) & (a != _EMPTY) & (b != _EMPTY)
        if different.any():
            size = self.lengths.size
            pairs, places = np.unique(a[different] * size + b[different], return_inverse=True)
            owners = np.arange(pairs.size)
            joined = self.join(np.tile(owners, 2), np.concatenate(np.divmod(pairs, size)), pairs.size)
            out[different] = joined[places.reshape(-1)]
        return out

    def along(self, ids, axes) -> np.ndarray:
        """The unions over some axes, as a sum takes them."""
        rest = [axis for axis in range(ids.ndim) if axis not in axes]
        moved = ids.transpose(*rest, *axes)
        shape = moved.shape[: len(rest)]
        count = math.prod(shape)
        flat = moved.reshape(count, math.prod(moved.shape[len(rest) :]))
        return self.join(np.repeat(np.arange(count), flat.shape[1]), flat.reshape(-1), count).reshape(shape)


# ---- the walk -----------------------------------------------------------------------------


class _Entry(NamedTuple):
    """What is known of an array: the sets that its elements depend on, and its value; ``None`` for none."""

    ids: Any = None
    value: Any = None


def _ids(entry, aval) -> np.ndarray:
    return np.full(aval.shape, _EMPTY) if entry.ids is None else np.asarray(entry.ids)


def _walk(closed, entries, sets) -> list[_Entry]:
    jaxpr = closed.jaxpr
    known = {v: _constant(value) for v, value in zip(jaxpr.constvars, closed.consts, strict=True)}
    known |= dict(zip(jaxpr.invars, entries, strict=True))
    last = {v: i for i, equation in enumerate(jaxpr.eqns) for v in equation.invars if not isinstance(v, Literal)}
    keep = {v for v in jaxpr.outvars if not isinstance(v, Literal)}

    def read(variable):
        return _constant(variable.val) if isinstance(variable, Literal) else known[variable]

    for i, equation in enumerate(jaxpr.eqns):
        inputs = [read(v) for v in equation.invars]
        body, name = body_of_call(equation), equation.primitive.name
        depends = any(entry.ids is not None for entry in inputs)
        if body is not None and (depends or any(entry.value is not None for entry in inputs)):
            outputs = _walk(body, inputs, sets)
        elif not depends:
            outputs = _evaluate(jaxpr, equation, known)
        else:
            ids = _RULES[name](equation, inputs, sets) if name in _RULES else None
            ids = _anything(equation, inputs, sets) if ids is None else ids
            outputs = [
                _Entry(each if jnp.issubdtype(v.aval.dtype, jnp.inexact) else None)
                for each, v in zip(ids, equation.outvars, strict=True)
            ]
        known.update(zip(equation.outvars, outputs, strict=True))
        for v in {v for v in equation.invars if not isinstance(v, Literal)} - keep:
            if last[v] == i:
                del known[v]
    return [read(v) for v in jaxpr.outvars]


def _constant(value) -> _Entry:
    random = jnp.issubdtype(getattr(value, "dtype", bool), jax.dtypes.prng_key)  # a key is used once, by f
    return _Entry(value=None if random or isinstance(value, jax.core.Tracer) else value)


def _evaluate(jaxpr, equation, known) -> list[_Entry]:
    """The values that follow from known ones alone."""
    variables = inputs_of([equation])
    if equation.effects or any(known[v].value is None for v in variables):
        return [_Entry() for _ in equation.outvars]
    values = piece(jaxpr, [equation], variables, equation.outvars)(*(known[v].value for v in variables))
    return [_constant(value) for value in values]


def _anything(equation, inputs, sets):
    """Nothing is known: every output depends on all that goes in."""
    ids = np.unique(np.concatenate([entry.ids.reshape(-1) for entry in inputs if entry.ids is not None]))
    [whole] = sets.join(np.zeros(ids.size, np.int64), ids, 1)
    return [np.full(getattr(v.aval, "shape", ()), whole) for v in equation.outvars]


# ---- rules: equation, inputs, sets -> the ids of each output, or None where nothing is known -----
# They are asked about t -> J t, which is linear: no factor of t depends on t, and no exp(t) comes.


def _elementwise(equation, inputs, sets):
    shape, name = equation.outvars[0].aval.shape, equation.primitive.name
    parts = []
    for i, entry in enumerate(inputs):
        if entry.ids is not None:
            ids = np.broadcast_to(entry.ids, shape)
            if name == "mul" and inputs[1 - i].value is not None:
                ids = np.where(np.broadcast_to(inputs[1 - i].value, shape) == 0, _EMPTY, ids)
            parts.append(ids)
    return [functools.reduce(sets.union, parts)]


def _select(equation, inputs, sets):
    shape = equation.outvars[0].aval.shape
    cases = [_ids(entry, v.aval) for entry, v in zip(inputs[1:], equation.invars[1:], strict=True)]
    if inputs[0].value is None:
        return [functools.reduce(sets.union, cases)]
    which = np.broadcast_to(np.asarray(inputs[0].value).astype(int), shape)
    return [np.select([which == i for i in range(len(cases))], cases)]


def _move(equation, inputs, sets):
    """What only moves numbers moves their ids: as NumPy does, or else the primitive itself, on them."""
    shape, params, name = equation.outvars[0].aval.shape, equation.params, equation.primitive.name
    if name in _MOVES:
        return [_MOVES[name](inputs[0].ids, params, shape)]
    operands = []
    for entry, variable in zip(inputs, equation.invars, strict=True):
        if jnp.issubdtype(variable.aval.dtype, jnp.inexact):
            operands.append(jnp.asarray(_ids(entry, variable.aval), jnp.int32))
        elif entry.value is None:
            return None
        else:
            operands.append(jnp.asarray(entry.value))
    moved = equation.primitive.bind(*operands, **params)
    moved = moved if equation.primitive.multiple_results else [moved]
    return [np.maximum(np.asarray(ids).astype(np.int64), _EMPTY) for ids in moved]  # out of bounds: below zero


def _broadcast(ids, params, shape):
    axes = params["broadcast_dimensions"]
    ids = ids.reshape([ids.shape[axes.index(axis)] if axis in axes else 1 for axis in range(len(shape))])
    return np.broadcast_to(ids, shape)


def _cut(ids, params, shape):
    steps = params["strides"] or (1,) * ids.ndim
    return ids[tuple(map(slice, params["start_indices"], params["limit_indices"], steps))]


def _reshape(ids, params, shape):
    order = params.get("dimensions")  # the axes in the order in which they are read
    return (ids if order is None else ids.transpose(order)).reshape(shape)


_MOVES: dict[str, Callable] = {  # ids, parameters, shape of the output
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "rev": lambda ids, params, shape: np.flip(ids, params["dimensions"]),
    "slice": _cut,
    "squeeze": lambda ids, params, shape: ids.reshape(shape),
    "transpose": lambda ids, params, shape: ids.transpose(params["permutation"]),
}


def _concatenate(equation, inputs, sets):
    parts = [_ids(entry, v.aval) for entry, v in zip(inputs, equation.invars, strict=True)]
    return [np.concatenate(parts, axis=equation.params["dimension"])]


def _scatter(equation, inputs, sets):
    """The place of each update is found by the transpose, a gather of places."""
    (operand, indices, updates), params = inputs, equation.params
    size = math.prod(equation.outvars[0].aval.shape)
    if indices.value is None or size > 2**24:  # of float32's whole numbers
        return None
    shape = equation.invars[2].aval.shape
    into = functools.partial(
        lax.scatter_add,
        jnp.zeros(equation.outvars[0].aval.shape, jnp.float32),
        jnp.asarray(indices.value),
        dimension_numbers=params["dimension_numbers"],
        indices_are_sorted=params["indices_are_sorted"],
        unique_indices=params["unique_indices"],
        mode=params["mode"],
    )
    numbers = jnp.arange(1, size + 1, dtype=jnp.float32).reshape(equation.outvars[0].aval.shape)
    [places] = jax.linear_transpose(into, jax.ShapeDtypeStruct(shape, jnp.float32))(numbers)
    places = np.asarray(places).astype(np.int64).reshape(-1) - 1
    old = _ids(operand, equation.invars[0].aval).reshape(-1).copy()
    new, inside = _ids(updates, equation.invars[2].aval).reshape(-1), places >= 0  # outside: dropped
    if equation.primitive.name == "scatter":
        old[places[inside]] = _EMPTY
    owners = np.concatenate([np.arange(size), places[inside]])
    return [sets.join(owners, np.concatenate([old, new[inside]]), size).reshape(equation.outvars[0].aval.shape)]


def _scale(equation, inputs, sets):
    """scatter-mul: factors at some places."""
    return [inputs[0].ids] if inputs[2].ids is None else None


def _sum(equation, inputs, sets):
    return [sets.along(inputs[0].ids, tuple(equation.params["axes"]))]


def _cumulative(equation, inputs, sets):
    lines = np.moveaxis(inputs[0].ids, equation.params["axis"], 0)
    lines = lines[::-1] if equation.params["reverse"] else lines
    sums = np.stack(list(itertools.accumulate(lines, sets.union))) if len(lines) else lines
    return [np.moveaxis(sums[::-1] if equation.params["reverse"] else sums, 0, equation.params["axis"])]


def _dot_general(equation, inputs, sets):
    """Contracted axes are summed over: with a constant matrix where it is not zero, with anything else throughout."""
    (contracted, batch) = equation.params["dimension_numbers"]
    side = 0 if inputs[0].ids is not None else 1
    if inputs[1 - side].ids is not None:
        return None

    def arranged(array, i):  # (batch, free, contracted)
        free = [axis for axis in range(array.ndim) if axis not in (*batch[i], *contracted[i])]
        sizes = [math.prod(array.shape[axis] for axis in axes) for axes in (batch[i], free, contracted[i])]
        return array.transpose(*batch[i], *free, *contracted[i]).reshape(sizes)

    ids = arranged(inputs[side].ids, side)
    other = inputs[1 - side].value
    shape = equation.invars[1 - side].aval.shape
    matrix = arranged(np.ones(shape, bool) if other is None else np.asarray(other) != 0, 1 - side)
    b, frees = ids.shape[0], [matrix.shape[1], ids.shape[1]]
    if matrix.all():
        out = np.broadcast_to(sets.along(ids, (2,))[:, None, :], (b, *frees))
    else:
        batches, places, sums = np.nonzero(matrix)
        owners = (batches * frees[0] + places)[:, None] * frees[1] + np.arange(frees[1])[None, :]
        found = ids[batches, :, sums]  # (nonzeros, free)
        out = sets.join(owners.reshape(-1), found.reshape(-1), b * math.prod(frees)).reshape(b, *frees)
    out = out if side == 1 else out.transpose(0, 2, 1)
    return [out.reshape(equation.outvars[0].aval.shape)]


def _windows(ids, sizes, strides, padding, holes, spread) -> list[np.ndarray]:
    """For each tap of a window what it sees at each place; around and between stands nothing."""
    config = [(low, high, hole - 1) for (low, high), hole in zip(padding, holes, strict=True)]
    ids = np.asarray(lax.pad(jnp.asarray(ids, jnp.int32), jnp.int32(_EMPTY), config)).astype(np.int64)
    seen = []
    for tap in itertools.product(*map(range, sizes)):
        cut = []
        for place, size, length, stride, gap in zip(tap, sizes, ids.shape, strides, spread, strict=True):
            count = max(0, (length - (size - 1) * gap - 1) // stride + 1)
            cut.append(slice(place * gap, place * gap + count * stride, stride))
        whole = tuple(slice(s.start, min(s.stop, length), s.step) for s, length in zip(cut, ids.shape, strict=True))
        seen.append(ids[whole])
    return seen


def _pool(equation, inputs, sets):
    params = equation.params
    seen = _windows(
        inputs[0].ids,
        params["window_dimensions"],
        params["window_strides"],
        params["padding"],
        params["base_dilation"],
        params["window_dilation"],
    )
    return [sets.along(np.stack(seen), (0,))]


def _convolution(equation, inputs, sets):
    params = equation.params
    numbers, groups = params["dimension_numbers"], params["feature_group_count"]
    if inputs[1].ids is not None or params["batch_group_count"] != 1:
        return None
    ids = inputs[0].ids.transpose(numbers.lhs_spec)  # (batch, channels, *space)
    batch, channels, *space = ids.shape
    kernel = np.ones(equation.invars[1].aval.shape) if inputs[1].value is None else np.asarray(inputs[1].value)
    kernel = kernel.transpose(numbers.rhs_spec)  # (out, in / groups, *window)
    sizes = kernel.shape[2:]
    spacewise = _windows(
        ids.reshape(batch * channels, *space),
        (1, *sizes),
        (1, *params["window_strides"]),
        ((0, 0), *params["padding"]),
        (1, *params["lhs_dilation"]),
        (1, *params["rhs_dilation"]),
    )
    read = kernel.any(axis=(0, 1)).reshape(-1)  # a tap that is zero in all channels reads nothing
    spacewise = [np.where(reads, seen, _EMPTY) for seen, reads in zip(spacewise, read, strict=True)]
    seen = np.stack(spacewise).reshape(len(read), batch, groups, channels // groups, *spacewise[0].shape[1:])
    out = sets.along(seen, (0, 3))  # (batch, groups, *space)
    out = np.repeat(out, kernel.shape[0] // groups, axis=1)
    return [out.transpose(np.argsort(numbers.out_spec))]


def _scan(equation, inputs, sets):
    """Step by step, so that counters and the slices that they choose are known."""
    params, body = equation.params, as_closed(equation.params["jaxpr"])
    length = params["length"]
    if length * len(body.jaxpr.eqns) > _MOST_STEPS:
        return None
    n_constants, n_carries = scan_parts(equation)
    end = n_constants + n_carries
    constants, carry, slices = inputs[:n_constants], inputs[n_constants:end], inputs[end:]
    outs = []
    for step in reversed(range(length)) if params["reverse"] else range(length):
        now = [_Entry(*(None if part is None else part[step] for part in entry)) for entry in slices]
        results = _walk(body, [*constants, *carry, *now], sets)
        carry = results[:n_carries]
        outs.append(
            [_ids(out, v.aval) for out, v in zip(results[n_carries:], body.jaxpr.outvars[n_carries:], strict=True)]
        )
    outs = outs[::-1] if params["reverse"] else outs
    carried = [_ids(entry, v.aval) for entry, v in zip(carry, equation.outvars[:n_carries], strict=True)]
    empty = [np.full(v.aval.shape, _EMPTY) for v in equation.outvars[n_carries:]]
    return carried + ([np.stack(each) for each in zip(*outs, strict=True)] if outs else empty)


_MOST_STEPS = 50_000  # a few seconds


def _cond(equation, inputs, sets):
    index, *operands = inputs
    branches = [as_closed(branch) for branch in equation.params["branches"]]
    if index.value is not None:
        branches = [branches[int(np.clip(index.value, 0, len(branches) - 1))]]
    each = [_walk(branch, operands, sets) for branch in branches]
    ids = [[_ids(out, v.aval) for out, v in zip(outs, equation.outvars, strict=True)] for outs in each]
    return [functools.reduce(sets.union, outs) for outs in zip(*ids, strict=True)]


_RULES: dict[str, Callable] = {
    "conv_general_dilated": _convolution,
    "concatenate": _concatenate,
    "cond": _cond,
    "cumsum": _cumulative,
    "dot_general": _dot_general,
    "reduce_sum": _sum,
    "reduce_window_sum": _pool,
    "scan": _scan,
    "scatter": _scatter,
    "scatter-add": _scatter,
    "scatter-mul": _scale,
    "scatter-sub": _scatter,
    "select_and_gather_add": _pool,
    "select_n": _select,
}
_RULES |= dict.fromkeys(
    "add add_any conj convert_element_type copy copy_p div imag mul neg real reduce_precision sub".split(), _elementwise
)
_RULES |= dict.fromkeys(
    "dynamic_slice dynamic_update_slice gather pad split stack tile unstack".split() + list(_MOVES),
    _move,
)
