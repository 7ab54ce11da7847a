r"""Continuous piecewise linear functions of one variable as nets, and nets of one input as such functions.

t_0 < ... < t_p      breakpoints
lambda_0 ... _p+1    slopes, one more than there are breakpoints
f(t_0)               value at the first breakpoint (at 0 if there is none)
"""

from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jax.core import Tracer
from jax.typing import DTypeLike
from jaxtyping import PyTree

from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import checked
from jaxblocks.core.pairs import Layer, LayerLike
from jaxblocks.plotting.axes import axes_or_new
from jaxblocks.theory.arrays import ArrayLike, real_array
from jaxblocks.theory.explicit_weights import DenseParams, one_hidden_layer
from jaxblocks.theory.piecewise_affine.line import affine_pieces

__all__ = ["PiecewiseLinear", "count_kinks", "from_piecewise_linear", "to_piecewise_linear", "two_level_model"]


class _Fields(NamedTuple):
    breakpoints: np.ndarray
    slopes: np.ndarray
    value: float


class PiecewiseLinear(_Fields):
    """A continuous piecewise linear function of one variable; a call evaluates it in float64.

    Attributes:
        breakpoints: the breakpoints, increasing.
        slopes: the slopes of the pieces from left to right, one more than there are breakpoints.
        value: the value at the first breakpoint, or at 0 if there is none.

    Raises:
        ValueError: if slopes and breakpoints do not match, breakpoints do not increase, or a number is not finite.

    >>> hat = PiecewiseLinear(
    ...     np.array([-1.0, 0.0, 1.0]), np.array([0.0, 1.0, -1.0, 0.0]), 0.0
    ... )
    >>> hat([-2.0, -0.5, 0.0, 0.25])
    array([0.  , 0.5 , 1.  , 0.75])
    >>> float(hat.integral(-1, 1))
    1.0
    """

    __slots__ = ()

    def __new__(cls, breakpoints, slopes, value):
        """Check the fields and convert them to float64; tracers are not checked."""
        fields = breakpoints, slopes, value
        traced = any(isinstance(x, Tracer) for x in fields)
        return super().__new__(cls, *(fields if traced else _checked(*fields)))

    def __call__(self, x: ArrayLike) -> np.ndarray:
        """The values at ``x``, an array of any shape."""
        x = real_array("x", x)
        points, values = self.breakpoints, self.values
        if not len(points):
            points, values = np.zeros(1), np.array([self.value])
        # The number of breakpoints below x is the number of its piece.
        piece = np.searchsorted(self.breakpoints, x)
        left, slope = np.maximum(piece - 1, 0), self.slopes[piece]
        # Without 0 times infinity, where the function is constant.
        return values[left] + slope * np.where((slope == 0) & np.isinf(x), 0, x - points[left])

    @property
    def values(self) -> np.ndarray:
        """The values at the breakpoints."""
        rises = self.slopes[1:-1] * np.diff(self.breakpoints)
        # The cut is for a function without breakpoints, which has no values at them.
        return np.cumsum([self.value, *rises])[: len(self.breakpoints)]

    def integral(self, lower: int | float, upper: int | float) -> float:
        """The exact integral between two bounds."""
        x = self._corners(lower, upper)
        # Exact by trapezoids, since the function is linear between the corners.
        return float(np.trapezoid(self(x), x))

    def l1_distance(self, other: "PiecewiseLinear", lower: int | float, upper: int | float) -> float:
        """The exact integral of the absolute difference between two bounds."""
        x = self._corners(lower, upper, other)
        left, right = (difference := self(x) - other(x))[:-1], difference[1:]
        sizes = abs(left) + abs(right)
        with np.errstate(invalid="ignore", divide="ignore"):
            # A difference that changes its sign makes two triangles, with areas left^2 / (2 sizes) and right^2 / (2
            # sizes) for width 1; else a trapezoid. Where both ends are 0 the quotient is 0 / 0 and not selected.
            areas = np.where(left * right < 0, (left**2 + right**2) / sizes, sizes) / 2
        return float(np.sum(areas * np.diff(x)))

    def sup_distance(self, other: "PiecewiseLinear", lower: int | float, upper: int | float) -> float:
        """The exact largest absolute difference between two bounds."""
        x = self._corners(lower, upper, other)
        return float(np.max(abs(self(x) - other(x))))

    def plot(self, ax=None):
        """Plot the graph with its breakpoints marked, from before the first to after the last; returns the axes.

        >>> axes = PiecewiseLinear(np.array([0.0, 1.0]), np.array([0.0, 1.0, 0.0]), 0.0).plot()
        >>> len(axes.lines)
        2
        """
        ax = axes_or_new(ax)
        first, last = self.breakpoints[[0, -1]] if len(self.breakpoints) else (0.0, 0.0)
        beyond = (last - first) / 4 or 1.0
        x = np.array([first - beyond, *self.breakpoints, last + beyond])
        ax.plot(x, self(x))
        ax.plot(self.breakpoints, self(self.breakpoints), "o", markersize=4, label="breakpoints")
        ax.set(xlabel="x", ylabel="f(x)")
        return ax

    def _corners(self, lower, upper, *others):
        for other in others:
            known, repair = isinstance(other, PiecewiseLinear), "convert it with interpolate"
            require(known, "a PiecewiseLinear", other, repair, error=TypeError)
        finite = bool(np.isfinite([lower, upper]).all())
        require(finite, "finite bounds", f"{lower} and {upper}", "pass for instance 0.0 and 1.0")
        require(lower <= upper, "lower <= upper", f"{lower} and {upper}", "swap them")
        inner = np.concatenate([f.breakpoints for f in (self, *others)])
        return np.unique([lower, *inner[(inner > lower) & (inner < upper)], upper])


def _with_keys(f):
    return [(jax.tree_util.GetAttrKey(name), getattr(f, name)) for name in f._fields], None


# A pytree can hold any leaves, so instances made by transformations are not checked.
jax.tree_util.register_pytree_with_keys(PiecewiseLinear, _with_keys, lambda _, fields: PiecewiseLinear._make(fields))


@checked
def from_piecewise_linear(
    breakpoints: ArrayLike,
    slopes: ArrayLike,
    value: ArrayLike,
    *,
    form: Literal["short", "lecture", "absorbed"] = "short",
    param_dtype: DTypeLike | None = None,
) -> tuple[Layer, tuple[DenseParams, tuple, DenseParams]]:
    r"""A net with one hidden layer of rectifiers that computes a piecewise linear function exactly, and its params.

    With $p + 1$ breakpoints $t_ℓ$ and slopes $λ_ℓ$, the net depends on ``form``:

    - ``"short"``, p + 2 units: $f(t_0) - λ_0 (t_0 - x)_+ + λ_1 (x - t_0)_+ + ∑_{ℓ=1}^{p} (λ_{ℓ+1} - λ_ℓ)(x - t_ℓ)_+$;
    - ``"lecture"``, p + 3 units: $(λ_0 x)_+ - (-λ_0 x)_+ + c_0 + ∑_{ℓ=1}^{p+1} (λ_ℓ - λ_{ℓ-1})(x - t_{ℓ-1})_+$, where
      $c_0 = f(t_0) - λ_0 t_0$;
    - ``"absorbed"``, p + 3 units and no bias at the output: the same with $(λ_0 x + c_0)_+ - (-λ_0 x - c_0)_+$.

    A net with one hidden layer needs at least p + 1 units, one for each breakpoint. In float64 the error of the net is
    below 1e-12 for 10,000 random breakpoints in [-1, 1]; rounding grows with the sum of $|λ_{ℓ+1} - λ_ℓ| |x - t_ℓ|$. Up
    to 256 units are in the order of the formula; more units are interleaved, which reduces rounding.

    Args:
        breakpoints: the breakpoints, increasing.
        slopes: one more than there are breakpoints.
        value: the value of the function at the first breakpoint, or at 0 if there is none.
        form: see above; only ``"short"`` keeps its precision if the breakpoints are far from 0.
        param_dtype: by default float64 where JAX has it enabled, else float32.

    Returns:
        The pair ``MLP(units, 1)``, ``(..., 1)`` to ``(..., 1)``, and its params.

    Raises:
        ValueError: if slopes and breakpoints do not match, breakpoints do not increase, or a number is not finite.
        TypeError: for arguments that are not real numbers.

    >>> net, params = from_piecewise_linear([0.0, 1.0], [0.0, 1.0, 0.0], 0.0)  # a ramp
    >>> net.apply(params, jnp.array([[-1.0], [0.25], [3.0]]))[:, 0]
    Array([0.  , 0.25, 1.  ], dtype=float32)

    Source: Diehl 2023, Lemma 1.3. Its proof prints the sum without the last slope $λ_{p+1}$ and with each
    change of slope one breakpoint too late; the formulas above are corrected.
    """
    t, slopes, value = _checked(breakpoints, slopes, value)
    ones, jumps = np.ones(len(t)), np.diff(slopes)
    if form == "short" and len(t):
        # f = f(t_0) - lambda_0 relu(t_0 - x) + lambda_1 relu(x - t_0) + sum of jumps relu(x - t_i).
        kernel, bias, weights = [-1, *ones], [t[0], *-t], [-slopes[0], slopes[1], *jumps[1:]]
        constant = value
    else:
        # The value at 0 of the first piece, extended; it is large where breakpoints are far from 0, and then digits are
        # lost.
        constant = value - slopes[0] * t[0] if len(t) else value
        # relu(x) - relu(-x) = x carries the first slope.
        kernel, bias, weights = [1, -1, *ones], [0, 0, *-t], [slopes[0], -slopes[0], *jumps]
        if form == "absorbed":
            # relu(lambda x + c) - relu(-lambda x - c) = lambda x + c carries the constant too.
            kernel[:2], bias[:2], weights[:2] = [slopes[0], -slopes[0]], [constant, -constant], [1, -1]
            constant = 0
    kernel, bias, weights = (np.asarray(x, np.float64) for x in (kernel, bias, weights))
    if len(bias) > 256:
        # Terms of adjacent breakpoints cancel, and a matrix product first adds entries i, i + m, i + 2m, ... for
        # m = 2, 4, 8, 16. With 16 interleaved parts of the line these are adjacent, and rounding is ten times smaller.
        order = np.argsort(np.arange(len(bias)) % -(-len(bias) // 16), kind="stable")
        kernel, bias, weights = kernel[order], bias[order], weights[order]
    return one_hidden_layer([kernel], bias, weights, constant, param_dtype=param_dtype)


@checked
def to_piecewise_linear(
    net: LayerLike, params: PyTree = (), *, output: int | None = None, tolerance: int | float = 1e-13, **side: Any
) -> PiecewiseLinear:
    r"""The function that a net of one input computes: exact breakpoints, slopes and value, without sampling.

    Every unit is computed as a piecewise linear function of the input; its breakpoints are the zeros of its argument.
    Deep nets, residuals, scans, convolutions, leaky rectifiers, absolute values, maxout, max-pooling and clipping are
    supported; breakpoints of units that cancel at the output are removed. Arithmetic is in float64 even if that of the
    net is in float32.

    Args:
        net: a pair, or a function of arrays, from ``(1,)`` to ``(1,)`` or ``()``.
        params: the params of the pair.
        output: the index of the output, for a net with several.
        tolerance: breakpoints closer than this times the largest of them are merged.
        side: side inputs, as for ``apply``.

    Returns:
        A `PiecewiseLinear`, a tuple ``(breakpoints, slopes, value)``, the arguments of `from_piecewise_linear`.

    Raises:
        TypeError: for a layer with state.
        ValueError: for a net that is not piecewise linear (the error names the layer) or not continuous (the error
            names the point); for a net with several outputs, if ``output`` is not given.

    The cost is proportional to the width of the widest layer times the number of pieces: 10,000 units in one hidden
    layer take a few seconds.

    >>> f = to_piecewise_linear(lambda x: relu(x + 1) + relu(1 - 2 * x))
    >>> f.breakpoints, f.slopes, f.value
    (array([-1. ,  0.5]), array([-2., -1.,  1.]), 3.0)

    Source: Arora, Basu, Mianjy, Mukherjee 2018, Theorem 2.1, arXiv:1611.01491; Diehl 2023, Lemma 1.3 (the converse
    direction).
    """
    hint = "to_piecewise_linear takes nets of one input; for others use regions_along, from one input to another."
    found = affine_pieces(net, params, hint=hint, **side)
    shape = found.values.shape[1:]
    count = found.values[0].size
    if count == 0 or (count > 1 and output is None) or (output is not None and not -count <= output < count):
        chosen = "" if output is None else f" and output={output}"
        require(False, "one output", f"outputs of shape {shape}{chosen}", f"choose one with output=0 to {count - 1}")
    of_output = lambda array: array.reshape(-1, count)[:, output or 0]
    values, slopes, noise = (
        of_output(found.values),
        of_output(found.slopes),
        of_output(np.asarray(found.noise)[None])[0],
    )
    finite = bool(np.isfinite(values).all() and np.isfinite(slopes).all())
    require(finite, "finite params", "a net whose output is not finite", "check the params for NaN")
    at = lambda i, x: values[i] + slopes[i] * (x - found.points[i])

    # Pieces narrower than the precision of the breakpoints are due to rounding: the adjacent pieces are joined at their
    # center.
    left, right = found.edges[:-1], found.edges[1:]
    scale = np.max(abs(found.edges[1:-1]), initial=0.0)
    i = np.flatnonzero(right - left > tolerance * scale)
    t = right[i[:-1]] + (left[i[1:]] - right[i[:-1]]) / 2
    jumps = at(i[1:], t) - at(i[:-1], t)
    # Jumps are compared with the values and with the terms that cancel in them.
    size = np.max(abs(at(i[:-1], t)), initial=0.0) + noise * scale
    broken = np.flatnonzero(abs(jumps) > 1e-9 * size)
    if len(broken):
        b = broken[0]
        got = f"an output that jumps by {jumps[b]:.6g} at {t[b]:.6g}"
        require(False, "a continuous net", got, "replace the comparison or the sign that causes the jump")
    # A change of slope within rounding is no breakpoint: the pieces are one.
    kinks = abs(np.diff(slopes[i])) > 8 * np.finfo(np.float64).eps * noise
    # The first piece, and each piece after a kink.
    i, t = i[np.append(True, kinks)], t[kinks]
    value = at(i[1], t[0]) if len(t) else at(i[0], 0.0)
    return PiecewiseLinear(t, slopes[i], float(value))


@checked
def count_kinks(net: LayerLike, params: PyTree = (), *, output: int | None = None, **side: Any) -> int:
    r"""The exact number of breakpoints of the function that a net of one input computes.

    With one hidden layer it is at most the number of units, each of which has a kink at $-b_i / w_i$; kinks that
    coincide or cancel reduce it. In deep nets it is up to $2^{depth} - 1$ for two units per layer (`sawtooth_network`),
    but random nets have about as many kinks as units. The arguments are those of `to_piecewise_linear`.

    >>> count_kinks(lambda x: jnp.abs(jnp.abs(x) - 1))
    3

    Source: Montufar et al. 2014, On the number of linear regions of deep neural networks (arXiv:1402.1869); Huszar,
    DeepNN lecture 3, which states O(width) and O(2^depth): the second is attainable, not typical.
    """
    return len(to_piecewise_linear(net, params, output=output, **side).breakpoints)


@checked
def two_level_model(*, param_dtype: DTypeLike | None = None) -> tuple[Layer, tuple]:
    r"""A net for the function $h_{21} = h_{10} - h_{11} + 2 h_{12} - 3 h_{13} + h_{14}$ of five rectifiers.

    The first level has $h_{1j} = max(x - s_j, 0)$ with $s = (0, 1, 2, 3, 6)$, so that the slopes from left
    to right are 0, 1, 0, 2, -1, 0: the function increases from 0 to 1, is constant, increases to 3, decreases to 0 at
    6, and is constant from there on.

    Args:
        param_dtype: by default float64 where JAX has it enabled, else float32.

    >>> net, params = two_level_model()
    >>> net.apply(params, jnp.array([[1.5], [3.0], [4.0], [7.0]]))[:, 0]
    Array([1., 3., 2., 0.], dtype=float32)

    Source: Krapac & Segvic, Deep feed-forward models (a problem).
    """
    return one_hidden_layer(np.ones((1, 5)), [0, -1, -2, -3, -6], [1, -1, 2, -3, 1], 0, param_dtype=param_dtype)


def _checked(breakpoints, slopes, value):
    """The three fields in float64; raises unless they define a continuous piecewise linear function."""
    try:
        t, slopes, value = (real_array("each", x) for x in (breakpoints, slopes, value))
    except TypeError:
        got = ", ".join(map(describe, (breakpoints, slopes, value)))
        repair = "pass for instance [0.0], [0.0, 1.0] and 0.0"
        require(False, "real numbers for breakpoints, slopes and value", got, repair, error=TypeError)
        raise
    got = f"breakpoints of shape {t.shape}, slopes of shape {slopes.shape} and a value of shape {value.shape}"
    repair = "pass one slope for each piece, including the two unbounded pieces"
    fits = t.ndim == 1 and slopes.shape == (len(t) + 1,) and not value.shape
    require(fits, "n breakpoints, n + 1 slopes and one value", got, repair)
    for name, x in (("finite breakpoints", t), ("finite slopes", slopes), ("a finite value", value)):
        if not np.isfinite(x).all():
            require(False, name, f"{x[~np.isfinite(x)][0]} among them", "replace it by a number such as 0.0")
    back = np.flatnonzero(np.diff(t) <= 0)
    if len(back):
        a, b = t[back[0]], t[back[0] + 1]
        got, repair = (f"{b} twice", "list it once") if a == b else (f"{b} after {a}", "sort them")
        require(False, "increasing breakpoints", got, repair)
    return t, slopes, float(value)
