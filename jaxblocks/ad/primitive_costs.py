"""The operations of one equation: a table of rules by primitive.

A rule takes an equation and returns its multiplications, additions and transcendentals, of real numbers; the
conventions are at the top of `jaxblocks.ad.counting`.
"""

import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn, Literal

from jaxblocks.ad.jaxprs import dtype_of, shape_of

__all__ = ["COLLECTIVES", "CONVOLUTIONS", "DOTS", "RULES", "Rule", "bytes_moved", "size_of"]

Rule = Callable[[JaxprEqn], tuple[int, int, int]]


def bytes_moved(equation: JaxprEqn) -> int:
    """The bytes of all operands and results."""
    moved = [v.aval for v in equation.invars if not isinstance(v, Literal)] + [v.aval for v in equation.outvars]
    return sum(math.prod(getattr(a, "shape", ())) * getattr(getattr(a, "dtype", None), "itemsize", 0) for a in moved)


def size_of(variable) -> int:
    """The number of entries of a variable."""
    return math.prod(shape_of(variable))


def _per_element(multiplications, additions, transcendentals):
    def rule(equation):
        n = size_of(equation.outvars[0])
        return n * multiplications, n * additions, n * transcendentals

    return rule


def _dot_general(equation):
    (contracted, _), _ = equation.params["dimension_numbers"]
    left = shape_of(equation.invars[0])
    products = size_of(equation.outvars[0]) * math.prod(left[axis] for axis in contracted)
    return products, products, 0


def _ragged_dot_general(equation):
    """Rows in groups, each with its own matrix: every row, or summed index, is in one group."""
    numbers = equation.params["ragged_dot_dimension_numbers"]
    (contracted, _), _ = numbers.dot_dimension_numbers
    left = shape_of(equation.invars[0])
    products = size_of(equation.outvars[0]) * math.prod(left[axis] for axis in contracted)
    if set(numbers.lhs_ragged_dimensions) & set(contracted):  # the output has an axis of groups
        products //= max(1, shape_of(equation.invars[2])[-1])
    return products, products, 0


def _conv_general_dilated(equation):
    params, kernel = equation.params, shape_of(equation.invars[1])
    numbers = params["dimension_numbers"]
    out = shape_of(equation.outvars[0])
    products = math.prod(out[axis] for axis in numbers.out_spec[:2]) * kernel[numbers.rhs_spec[1]]
    axes = zip(
        (out[axis] for axis in numbers.out_spec[2:]),
        (kernel[axis] for axis in numbers.rhs_spec[2:]),
        params["window_strides"],
        params["padding"],
        params["lhs_dilation"],
        params["rhs_dilation"],
        strict=True,
    )
    for positions, taps, stride, (before, _), holes, spread in axes:
        if holes == 1:
            products *= positions * taps
        else:  # only taps on an input, not on the zeros between two of them
            place = np.arange(positions)[:, None] * stride + np.arange(taps)[None, :] * spread - before
            products *= int((place % holes == 0).sum())
    return products, products, 0


def _polynomial(equation):  # Horner's scheme; the inputs are x and the coefficients
    steps = size_of(equation.outvars[0]) * (len(equation.invars) - 2)
    return steps, steps, 0


def _integer_pow(equation):
    power = abs(equation.params["y"])
    each = power.bit_length() + power.bit_count() - 2 if power else 0
    return size_of(equation.outvars[0]) * (each + (equation.params["y"] < 0)), 0, 0


def _abs(equation):
    n = size_of(equation.outvars[0])
    return (2 * n, n, n) if jnp.issubdtype(dtype_of(equation.invars[0]), jnp.complexfloating) else (0, n, 0)


def _reduction(multiplies=False):
    def rule(equation):
        n = max(0, size_of(equation.invars[0]) - size_of(equation.outvars[0]))
        return (n, 0, 0) if multiplies else (0, n, 0)

    return rule


def _cumulative(multiplications=0, additions=0, transcendentals=0):
    def rule(equation):
        n, length = size_of(equation.outvars[0]), shape_of(equation.outvars[0])[equation.params["axis"]]
        steps = n - n // length if length else 0
        return steps * multiplications, steps * additions, steps * transcendentals

    return rule


def _window_reduction(equation):
    window = math.prod(equation.params["window_dimensions"])
    return 0, size_of(equation.outvars[0]) * max(0, window - 1), 0


def _window_scatter(equation):  # window - 1 comparisons and one addition for each element of the source
    return 0, size_of(equation.invars[0]) * math.prod(equation.params["window_dimensions"]), 0


def _scatter(multiplies=False):
    def rule(equation):
        n = size_of(equation.invars[2])
        return (n, 0, 0) if multiplies else (0, n, 0)

    return rule


def _sort(equation):
    shape = shape_of(equation.invars[0])
    length = shape[equation.params.get("dimension", equation.params.get("axis", -1))]
    return 0, math.prod(shape) * max(0, length - 1).bit_length(), 0


def _triangular_solve(equation):
    n = shape_of(equation.invars[0])[-1]
    columns = size_of(equation.outvars[0]) // n if n else 0
    inner = columns * (n * (n - 1) // 2)
    return inner + (0 if equation.params["unit_diagonal"] else columns * n), inner, 0


def _cholesky(equation):
    n = shape_of(equation.invars[0])[-1]
    matrices = size_of(equation.outvars[0]) // (n * n) if n else 0
    inner = n * (n * n - 1) // 6
    return matrices * (inner + n * (n - 1) // 2), matrices * inner, matrices * n


def _no_arithmetic(equation):
    return 0, 0, 0


_ADDITIONS = """
    add add_any sub neg max min sign floor ceil round nextafter conj eq ne lt le gt ge eq_to lt_to le_to is_finite
"""
_TRANSCENDENTALS = """
    exp exp2 expm1 log log1p log2 logistic sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh
    sqrt rsqrt cbrt pow erf erfc erf_inv lgamma digamma polygamma zeta igamma igammac igamma_grad_a
    regularized_incomplete_beta bessel_i0e bessel_i1e
"""
_MOVED = """
    broadcast_in_dim reshape transpose squeeze expand_dims concatenate stack unstack split slice dynamic_slice
    dynamic_update_slice gather scatter rev pad iota tile select_n convert_element_type reduce_precision
    bitcast_convert_type real imag complex copy copy_p empty empty2 stop_gradient name optimization_barrier device_put
    sharding_constraint mesh_cast reshard layout_constraint create_token after_all get swap tie dce_sink
    from_edtype to_edtype
"""
_INTEGERS = """
    and or xor not shift_left shift_right_logical shift_right_arithmetic population_count clz
    random_seed random_bits random_split random_fold_in random_wrap random_unwrap random_clone threefry2x32
    rng_bit_generator rng_uniform reduce_and reduce_or reduce_xor mulhi platform_index lu_pivots_to_permutation
"""
# Communication between devices.
COLLECTIVES = frozenset(
    "psum psum_invariant psum2 psum_scatter pmax pmin ppermute all_gather all_gather_invariant "
    "all_gather_reduced all_to_all ragged_all_to_all reduce_scatter unreduced_psum".split()
)
_SENT = " ".join(COLLECTIVES) + " pbroadcast pvary pcast axis_index debug_print debug_callback check"
RULES: dict[str, Rule] = {
    name: rule
    for names, rule in (
        ("mul div rem square", _per_element(1, 0, 0)),
        (_ADDITIONS, _per_element(0, 1, 0)),
        (_TRANSCENDENTALS, _per_element(0, 0, 1)),
        ("one_minus_square", _per_element(1, 1, 0)),
        ("clamp", _per_element(0, 2, 0)),
        ("abs", _abs),
        ("integer_pow", _integer_pow),
        ("polynomial", _polynomial),
        ("dot_general", _dot_general),
        ("ragged_dot_general", _ragged_dot_general),
        ("conv_general_dilated", _conv_general_dilated),
        ("reduce_sum reduce_max reduce_min argmax argmin", _reduction()),
        ("reduce_prod", _reduction(multiplies=True)),
        ("cumsum cummax cummin", _cumulative(additions=1)),
        ("cumprod", _cumulative(multiplications=1)),
        ("cumlogsumexp", _cumulative(additions=3, transcendentals=2)),
        ("reduce_window_sum reduce_window_max reduce_window_min select_and_gather_add", _window_reduction),
        ("select_and_scatter_add", _window_scatter),
        ("scatter-add scatter-sub scatter-max scatter-min", _scatter()),
        ("scatter-mul", _scatter(multiplies=True)),
        ("sort top_k", _sort),
        ("triangular_solve", _triangular_solve),
        ("cholesky", _cholesky),
        (_MOVED + _INTEGERS + _SENT, _no_arithmetic),
    )
    for name in names.split()
}
# Products of matrices and convolutions.
DOTS = frozenset({"dot_general", "ragged_dot_general", "conv_general_dilated"})
# Names of jitted calls that compute a convolution by other primitives, as `jaxblocks.layers.conv` does on CPU.
CONVOLUTIONS = frozenset({"depthwise_by_shifts"})
