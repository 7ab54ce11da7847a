r"""Sparse Jacobians: their sparsity patterns, and their computation by few products.

    x    the point, a pytree with n numbers in all
    y    the value f(x), m numbers
    J    the Jacobian, m by n
    t    a tangent, like x

The pairs where y_i depends on x_j follow from the jaxpr of t -> J t (`jaxblocks.ad.programs.dependence`). Two columns
without a common row can be computed by one tangent, two rows without a common column by one cotangent: they get the
same color (`jaxblocks.ad.programs.coloring`), and one product with J (or its transpose) computes all columns (or rows)
of a color at once. A convolution with k taps takes k products for any length.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxblocks.ad.programs.arguments import array_valued, as_point
from jaxblocks.ad.programs.coloring import color_columns, distinct, number_of_colors
from jaxblocks.ad.programs.dependence import SINGLE, Entry, Sets, follow, ids_of
from jaxblocks.ad.programs.jaxprs import shape_of, size_of
from jaxblocks.ad.programs.linearization import with_forward_mode
from jaxblocks.ad.vectors.raveled import offsets
from jaxblocks.backend.varying import varying_like
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import checked
from jaxblocks.plotting.axes import axes_or_new

__all__ = ["SparsityPattern", "sparse_jacobian", "sparsity"]


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class SparsityPattern:
    """The entries of a Jacobian that may differ from zero, and a coloring of its columns and rows.

    It prints as a picture in a terminal and in a notebook; `plot` draws it. `sparsity` determines the pattern; a
    known pattern, for example of a mesh, is ``SparsityPattern(rows, cols, shape)``.

    Attributes:
        rows, cols: the indices of the entries, row by row; duplicates count once.
        shape: (m, n), the numbers of entries of f(x) and x.

    >>> pattern = SparsityPattern([0, 1, 1, 2], [0, 0, 1, 2], (3, 3))
    >>> pattern.colors, pattern.mode
    (2, 'forward')
    >>> pattern
    4 of 3 x 3 entries may differ from zero (44.4 %): 2 colors, one jvp each.
    #..
    ##.
    ..#
    """

    rows: np.ndarray | Any
    cols: np.ndarray | Any
    shape: tuple[int, int]

    def __post_init__(self):
        rows, cols = (np.asarray(places, np.int64).reshape(-1) for places in (self.rows, self.cols))
        m, n = self.shape
        if rows.size != cols.size:
            got = f"{rows.size} rows and {cols.size} columns"
            raise ValueError(f"SparsityPattern expected a row and a column for each entry, got {got}; pass both.")
        for name, places, size in (("rows", rows, m), ("cols", cols, n)):
            if places.size and not (0 <= places.min() and places.max() < size):
                raise ValueError(
                    f"SparsityPattern expected {name} from 0 to {size - 1}, as shape {tuple(self.shape)} says, got "
                    f"{places.min()} to {places.max()}; pass a larger shape, or other {name}."
                )
        # One integer for each entry: sorting these sorts row by row and finds duplicates.
        places = distinct(rows * max(n, 1) + cols)
        for name, value in zip(("rows", "cols"), np.divmod(places, max(n, 1)), strict=True):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "shape", (m, n))

    @property
    def entries(self) -> int:
        """The number of entries that may differ from zero.

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
        return color_columns(self.rows, self.cols, self.shape)

    @functools.cached_property
    def row_colors(self) -> np.ndarray:
        """The color of each row; rows of one color have no column in common.

        >>> SparsityPattern([0, 0], [0, 1], (1, 2)).row_colors
        array([0])
        """
        m, n = self.shape
        return color_columns(self.cols, self.rows, (n, m))

    @functools.cached_property
    def mode(self) -> str:
        """``"forward"`` (columns, by jvps) or ``"reverse"`` (rows, by vjps), whichever takes fewer colors.

        >>> SparsityPattern([0, 0], [0, 1], (1, 2)).mode
        'reverse'
        """
        longest_row, longest_column = (
            np.bincount(places, minlength=1).max(initial=0) for places in (self.rows, self.cols)
        )
        # A row of k entries needs k column colors at least: a mode that cannot be the best is not colored.
        if longest_row <= longest_column:
            forward = number_of_colors(self.column_colors)
            return "reverse" if longest_column < forward and number_of_colors(self.row_colors) < forward else "forward"
        reverse = number_of_colors(self.row_colors)
        return "forward" if longest_row <= reverse and number_of_colors(self.column_colors) <= reverse else "reverse"

    @property
    def colors(self) -> int:
        """The number of products with the Jacobian that compute all of its entries.

        >>> SparsityPattern([0, 0], [0, 1], (1, 2)).colors
        1
        """
        if not self.entries:
            return 0
        return number_of_colors(self.column_colors if self.mode == "forward" else self.row_colors)

    @property
    def is_dense(self) -> bool:
        """Whether coloring saves nothing: the number of colors equals that of rows, or of columns.

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
        """The entries as squares in the colors of their columns (or rows); returns the axes.

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
        """A mark for each entry (in a large pattern, each block of entries) that may differ from zero."""
        m, n = self.shape
        patch = max(1, math.ceil(m / height), math.ceil(n / width))
        marks = np.full((math.ceil(m / patch), math.ceil(n / patch)), ".")
        marks[self.rows // patch, self.cols // patch] = "#"
        return ["".join(line) for line in marks]


@checked
def sparsity(f: Callable[[Any], Float[Array, "..."]], x: PyTree) -> SparsityPattern:
    r"""The pattern of the entries $∂ f_i / ∂ x_j$ that may differ from zero at some point.

    Args:
        f: takes a pytree, returns one floating-point array.
        x: like the points; only shapes and dtypes are read, so that ``jax.ShapeDtypeStruct`` suffices.

    Returns:
        A `SparsityPattern`; the entries of x and of f(x) are numbered leaf by leaf, each leaf in row-major order.

    No entry is missed; some that are marked may be zero. The pattern is exact for elementwise functions, shifts,
    slices, reshapes, sums, products with constant matrices, convolutions, pools and loops of known length
    over those. The constants of f (a finite-difference matrix, a mask, indices) are read by value, and their zeros
    are zeros of the pattern: other constants have another pattern. For any other operation, such as a sort or an
    index that depends on x, the output is assumed to depend on all inputs.

    Raises:
        TypeError: if a leaf of ``x`` is not floating-point, or ``f`` does not return one floating-point array.

    >>> sparsity(lambda x: jnp.diff(x) ** 2, jnp.zeros(6))
    10 of 5 x 6 entries may differ from zero (33.3 %): 2 colors, one jvp each.
    ##....
    .##...
    ..##..
    ...##.
    ....##

    Source: Griewank & Walther, Evaluating Derivatives, chapters 7 and 8 (index domains, compression by coloring).
    """
    f = array_valued(f)
    x = as_point(x)
    # The entries of t are followed, not those of x: a product is linear in t, and its coefficients may depend on x.
    closed = jax.make_jaxpr(lambda x, t: jax.jvp(with_forward_mode(f, x), (x,), (t,))[1])(x, x)
    leaves = jax.tree.leaves(x)
    sets = Sets(sum(leaf.size for leaf in leaves))
    entries = [Entry() for _ in leaves]
    for start, leaf in offsets(leaves):
        entries.append(Entry(np.arange(SINGLE + start, SINGLE + start + leaf.size).reshape(leaf.shape)))
    with jax.ensure_compile_time_eval():  # the constants of f are concrete even while f is traced
        [out] = follow(closed, entries, sets)
    [variable] = closed.jaxpr.outvars
    rows, cols = sets.members(ids_of(out, shape_of(variable)).reshape(-1))
    return SparsityPattern(rows, cols, (size_of(variable), sets.n))


@checked
def sparse_jacobian(
    f: Callable[[Any], Float[Array, "..."]],
    like: "SparsityPattern | PyTree",
    *,
    mode: Literal["auto", "forward", "reverse"] = "auto",
) -> Callable[[PyTree], Any]:
    r"""The Jacobian of f as a function of the point, by one product for each color of its pattern.

    Args:
        f: takes a pytree, returns one floating-point array.
        like: the pattern, or a pytree like the points, from which `sparsity` finds it.
        mode: ``"forward"`` for jvps, ``"reverse"`` for vjps, ``"auto"`` for the mode with fewer products.

    Returns:
        A function of x, to be used under ``jit`` and ``vmap``, that returns J as a
        ``jax.experimental.sparse.BCOO`` of shape (m, n): its ``data`` are the entries in the order of the
        pattern, and ``todense()`` is the matrix. The pattern is the attribute ``pattern`` of the function.

    The pattern is determined once, when this function is called. If coloring saves nothing, the printed pattern states
    this, and the number of products is that of ``jax.jacfwd`` or ``jax.jacrev``. Hessians are Jacobians of
    ``jax.grad(f)``.

    Raises:
        TypeError: if a leaf of x is not floating-point, or f does not return one floating-point array.
        ValueError: if the pattern has another shape than the Jacobian of f at x.

    >>> jacobian = sparse_jacobian(lambda x: jnp.diff(x) ** 2, jnp.zeros(3))
    >>> jacobian.pattern.colors
    2
    >>> jax.jit(jacobian)(jnp.array([1.0, 2.0, 4.0])).todense()
    Array([[-2.,  2.,  0.],
           [ 0., -4.,  4.]], dtype=float32)

    Source: Curtis, Powell & Reid 1974, On the estimation of sparse Jacobian matrices; Gebremedhin, Manne & Pothen
    2005, What color is your Jacobian?
    """
    pattern = like if isinstance(like, SparsityPattern) else sparsity(f, like)
    f = array_valued(f)

    def jacobian(x):
        from jax.experimental.sparse import BCOO  # imported late, because it is slow to import

        x = as_point(x)
        y = jax.eval_shape(f, x)
        shape = (math.prod(y.shape), sum(leaf.size for leaf in jax.tree.leaves(x)))
        if shape != pattern.shape:
            got = f"x of {shape[1]} numbers and {describe(y)} as f(x)"
            repair = "find the pattern with sparsity(f, x) for an x of these shapes"
            require(False, f"a Jacobian of shape {pattern.shape}, that of the pattern", got, repair)
        data = jnp.zeros(0, y.dtype) if pattern.entries == 0 else _compressed(f, x, y, pattern, mode)
        places = np.stack([pattern.rows, pattern.cols], axis=1).astype(np.int32)
        return BCOO((data, jnp.asarray(places)), shape=shape, indices_sorted=True, unique_indices=True)

    jacobian.pattern = pattern
    return jacobian


def _compressed(f, x, y, pattern, mode):
    """The entries of the Jacobian, by one product for each color."""
    if (pattern.mode if mode == "auto" else mode) == "forward":
        forward = with_forward_mode(f, x)
        push = lambda t: jax.jvp(forward, (x,), (t,))[1]
        products = jax.vmap(push)(_seeds(pattern.column_colors, x)).reshape(-1, pattern.shape[0])  # (colors, m)
        # Entry (i, j) is entry i of the product for the color of column j, whose other columns have no entry there.
        return products[pattern.column_colors[pattern.cols], pattern.rows]
    _, pull = jax.vjp(f, x)
    products = jax.vmap(lambda u: pull(u)[0])(_seeds(pattern.row_colors, y))
    parts = [p.reshape(p.shape[0], -1).astype(y.dtype) for p in jax.tree.leaves(products)]
    return jnp.concatenate(parts, axis=1)[pattern.row_colors[pattern.rows], pattern.cols]  # of (colors, n)


def _seeds(colors, like):
    """For each color a vector like the point: one at the entries of this color, zero elsewhere."""
    leaves, structure = jax.tree.flatten(like)
    seeds, count = [], number_of_colors(colors)
    for start, leaf in offsets(leaves):
        own = jnp.asarray(colors[start : start + leaf.size], jnp.int32)
        ones = jnp.arange(count, dtype=jnp.int32)[:, None] == own[None, :]
        seeds.append(varying_like(ones.astype(leaf.dtype).reshape(count, *leaf.shape), leaf))
    return structure.unflatten(seeds)
