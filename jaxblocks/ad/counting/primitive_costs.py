"""The operations of one equation: a table of rules by primitive.

A rule takes an equation and returns its multiplications, additions and transcendentals, of real numbers; the
conventions are at the top of `jaxblocks.ad.counting.counts`.
"""

import math
from collections.abc import Callable, Mapping
from itertools import starmap

import jax.numpy as jnp
from jax.extend.core import JaxprEqn, Literal

from jaxblocks.ad.programs.jaxprs import bytes_of, dtype_of, shape_of, size_of
from jaxblocks.backend.sliding_windows import products_on_axis

__all__ = [
    "COLLECTIVES",
    "DOTS",
    "MOVED",
    "RULES",
    "Rule",
    "bytes_moved",
    "bytes_sent",
    "macs_of",
]

Rule = Callable[[JaxprEqn], tuple[int, int, int]]


def bytes_moved(equation: JaxprEqn) -> int:
    """The bytes of all operands and results."""
    return sum(bytes_of(v) for v in (*equation.invars, *equation.outvars) if not isinstance(v, Literal))


def bytes_sent(equation: JaxprEqn, sizes: Mapping[str, int]) -> int:
    """The bytes that one device sends for a collective, by ring algorithms, with the sizes of the mesh axes."""
    name, params = equation.primitive.name, equation.params
    if name not in COLLECTIVES:
        return 0
    axes = params.get("axes", params.get("axis_name", ()))
    n = math.prod(sizes.get(axis, 1) for axis in (axes if isinstance(axes, tuple | list) else (axes,)))
    held = sum(map(bytes_of, equation.invars))
    if name == "ppermute":
        return held * len(params["perm"]) // n
    if "gather" in name:
        return held * (n - 1)
    parts = 1 if "scatter" in name or "all_to_all" in name else 2
    return round(parts * held * (n - 1) / n)


def _each(number, multiplications=0, additions=0, transcendentals=0):
    """The rule of primitives that take these operations ``number(equation)`` times."""

    def rule(equation):
        n = number(equation)
        return n * multiplications, n * additions, n * transcendentals

    return rule


def _entries(equation):
    return size_of(equation.outvars[0])


def _products(equation, contracted):
    """Each entry of the result of a product of matrices times the length of its sum."""
    left = shape_of(equation.invars[0])
    return _entries(equation) * math.prod(left[axis] for axis in contracted)


def _dot_general(equation):
    (contracted, _), _ = equation.params["dimension_numbers"]
    return _products(equation, contracted)


def _ragged_dot_general(equation):
    """Rows in groups, each with its own matrix: every row, or summed index, is in one group."""
    numbers = equation.params["ragged_dot_dimension_numbers"]
    (contracted, _), _ = numbers.dot_dimension_numbers
    has_groups = set(numbers.lhs_ragged_dimensions) & set(contracted)  # as an axis of the output
    return _products(equation, contracted) // (max(1, shape_of(equation.invars[2])[-1]) if has_groups else 1)


def _conv_general_dilated(equation):
    return _products_of_convolution(equation, products_on_axis)


def _products_of_convolution(equation, on_axis):
    params, kernel = equation.params, shape_of(equation.invars[1])
    numbers = params["dimension_numbers"]
    out = shape_of(equation.outvars[0])
    products = math.prod(out[axis] for axis in numbers.out_spec[:2]) * kernel[numbers.rhs_spec[1]]
    image = shape_of(equation.invars[0])
    axes = zip(
        (out[axis] for axis in numbers.out_spec[2:]),
        (kernel[axis] for axis in numbers.rhs_spec[2:]),
        (image[axis] for axis in numbers.lhs_spec[2:]),
        params["window_strides"],
        (before for before, _ in params["padding"]),
        params["lhs_dilation"],
        params["rhs_dilation"],
        strict=True,
    )
    return products * math.prod(starmap(on_axis, axes))


def macs_of(equation: JaxprEqn) -> int:
    """The multiply-accumulates of a product or convolution as papers count them, with those that read padding."""
    if equation.primitive.name == "conv_general_dilated":
        # Each position with each tap; of a dilated input, as in a transposed convolution, each input with each tap.
        return _products_of_convolution(
            equation,
            lambda positions, taps, inputs, _stride, _before, holes, _spread: (
                taps * (inputs if holes > 1 else positions)
            ),
        )
    return RULES[equation.primitive.name](equation)[0]


def _polynomial(equation):  # Horner's scheme; the inputs are x and the coefficients
    return _entries(equation) * (len(equation.invars) - 2)


def _integer_pow(equation):
    power = abs(equation.params["y"])
    each = power.bit_length() + power.bit_count() - 2 if power else 0
    return _entries(equation) * (each + (equation.params["y"] < 0))


def _abs(equation):
    n = size_of(equation.outvars[0])
    return (2 * n, n, n) if jnp.issubdtype(dtype_of(equation.invars[0]), jnp.complexfloating) else (0, n, 0)


def _reduction(equation):
    return max(0, size_of(equation.invars[0]) - size_of(equation.outvars[0]))


def _cumulative(equation):
    n, length = _entries(equation), shape_of(equation.outvars[0])[equation.params["axis"]]
    return n - n // length if length else 0


def _window_reduction(equation):
    return _entries(equation) * max(0, math.prod(equation.params["window_dimensions"]) - 1)


def _window_scatter(equation):  # window - 1 comparisons and one addition for each element of the source
    return size_of(equation.invars[0]) * math.prod(equation.params["window_dimensions"])


def _scatter(equation):
    return size_of(equation.invars[2])


def _sort(equation):
    shape = shape_of(equation.invars[0])
    length = shape[equation.params.get("dimension", equation.params.get("axis", -1))]
    return math.prod(shape) * max(0, length - 1).bit_length()


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


def _of_matrices(operations):
    """The rule of a factorization: half of the operations on each m by n matrix are multiplications."""

    def half(equation):
        *batch, m, n = shape_of(equation.invars[0])
        return math.prod(batch) * round(operations(m, n, equation.params)) // 2

    return _each(half, 1, 1)


# Golub & Van Loan 2013, Matrix Computations: section 3.2.
def _lu(equation):
    *batch, m, n = shape_of(equation.invars[0])
    inner = math.prod(batch) * sum((m - j - 1) * (n - j - 1) for j in range(min(m, n)))
    return inner + math.prod(batch) * sum(m - j - 1 for j in range(min(m, n))), inner, 0


def _reflected(m, n, k):
    """Operations of k Householder reflections of an m by n matrix, of growing or shrinking size (section 5.1)."""
    return sum(4 * (m - j) * (n - j) for j in range(k))


def _qr(m, n, params):  # section 5.2: R, and Q by backward accumulation
    k = min(m, n)
    return _reflected(m, n, k) + _reflected(m, m if params.get("full_matrices") else k, k)


def _svd(m, n, params):  # section 8.6: the algorithm of Golub and Reinsch
    m, n = max(m, n), min(m, n)
    if not params["compute_uv"]:
        return 4 * m * n**2 - 4 * n**3 / 3
    return 4 * m**2 * n + 8 * m * n**2 + 9 * n**3 if params["full_matrices"] else 14 * m * n**2 + 8 * n**3


def _eig(m, n, params):  # section 7.5: the eigenvalues, or also the Schur form and its vectors
    names = ("compute_left_eigenvectors", "compute_right_eigenvectors", "compute_schur_vectors")
    return (25 if any(params.get(name) for name in names) else 10) * n**3


def _tridiagonal_solve(equation):
    """Elimination without pivots (section 4.3)."""
    *batch, n, columns = shape_of(equation.invars[3])
    once, each = math.prod(batch) * max(0, n - 1), math.prod(batch) * columns
    return 2 * once + each * (2 * max(0, n - 1) + n), once + each * 2 * max(0, n - 1), 0


def _fft(equation):
    """N log2 N / 2 butterflies of one complex product and two complex sums; half of them for real numbers.

    Van Loan 1992, Computational Frameworks for the Fast Fourier Transform: 5 N log2 N operations.
    """
    lengths = equation.params["fft_lengths"]
    kinds = [dtype_of(equation.invars[0]), dtype_of(equation.outvars[0])]
    real = not all(jnp.issubdtype(kind, jnp.complexfloating) for kind in kinds)
    shape = shape_of(equation.invars[0])
    numbers = math.prod(shape[: len(shape) - len(lengths)]) * math.prod(lengths)
    stages = numbers * sum(math.log2(length) for length in lengths if length) / (2 if real else 1)
    return round(2 * stages), round(3 * stages), 0


def _sparse_product(equation):
    """One product for each stored number and each entry of the free axes of the dense operand, the last one."""
    dense, stored = shape_of(equation.invars[-1]), size_of(equation.invars[0])
    if "dimension_numbers" in equation.params:
        (_, contracted), (_, batch) = equation.params["dimension_numbers"]
        used = {*contracted, *batch}
    else:
        used = {0}
    return stored * math.prod(n for axis, n in enumerate(dense) if axis not in used)


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
    from_edtype to_edtype masked_load masked_swap load store multiple_of
"""
_INTEGERS = """
    and or xor not shift_left shift_right_logical shift_right_arithmetic population_count clz
    random_seed random_bits random_split random_fold_in random_wrap random_unwrap random_clone threefry2x32
    rng_bit_generator rng_uniform program_id num_programs reduce_and reduce_or reduce_xor
    mulhi platform_index lu_pivots_to_permutation
"""
_SPARSE = "bcoo_dot_general bcsr_dot_general coo_matvec coo_matmat csr_matvec csr_matmat"
# Communication between devices.
COLLECTIVES = frozenset(
    "psum psum_invariant psum2 psum_scatter pmax pmin ppermute all_gather all_gather_invariant "
    "all_gather_reduced all_to_all ragged_all_to_all reduce_scatter unreduced_psum".split()
)
_SENT = " ".join(COLLECTIVES) + " pbroadcast pvary pcast axis_index debug_print debug_callback check"
RULES: dict[str, Rule] = {
    name: rule
    for names, rule in (
        ("mul div rem square", _each(_entries, 1)),
        (_ADDITIONS, _each(_entries, 0, 1)),
        (_TRANSCENDENTALS, _each(_entries, 0, 0, 1)),
        ("one_minus_square", _each(_entries, 1, 1)),
        ("clamp", _each(_entries, 0, 2)),
        ("abs", _abs),
        ("integer_pow", _each(_integer_pow, 1)),
        ("polynomial", _each(_polynomial, 1, 1)),
        ("dot_general", _each(_dot_general, 1, 1)),
        ("ragged_dot_general", _each(_ragged_dot_general, 1, 1)),
        ("conv_general_dilated", _each(_conv_general_dilated, 1, 1)),
        ("reduce_sum reduce_max reduce_min argmax argmin", _each(_reduction, 0, 1)),
        ("reduce_prod", _each(_reduction, 1)),
        ("cumsum cummax cummin", _each(_cumulative, 0, 1)),
        ("cumprod", _each(_cumulative, 1)),
        ("cumlogsumexp", _each(_cumulative, 0, 3, 2)),
        ("reduce_window_sum reduce_window_max reduce_window_min select_and_gather_add", _each(_window_reduction, 0, 1)),
        ("select_and_scatter_add", _each(_window_scatter, 0, 1)),
        ("scatter-add scatter-sub scatter-max scatter-min", _each(_scatter, 0, 1)),
        ("scatter-mul", _each(_scatter, 1)),
        ("sort top_k", _each(_sort, 0, 1)),
        ("triangular_solve", _triangular_solve),
        ("cholesky", _cholesky),
        ("lu", _lu),
        ("qr geqrf", _of_matrices(_qr)),
        ("householder_product", _of_matrices(lambda m, n, params: _reflected(m, n, n))),
        ("svd", _of_matrices(_svd)),
        ("eigh", _of_matrices(lambda m, n, params: 9 * n**3)),  # section 8.3
        ("eig schur", _of_matrices(_eig)),
        ("hessenberg", _of_matrices(lambda m, n, params: 10 * n**3 / 3)),  # section 7.4
        ("tridiagonal", _of_matrices(lambda m, n, params: 4 * n**3 / 3)),  # section 8.3
        ("tridiagonal_solve", _tridiagonal_solve),
        ("fft", _fft),
        (_SPARSE, _each(_sparse_product, 1, 1)),
        (_MOVED + _INTEGERS + _SENT, lambda equation: (0, 0, 0)),
    )
    for name in names.split()
}
# Primitives that move, select or convert entries.
MOVED = frozenset(_MOVED.split())
# Products of matrices and convolutions.
DOTS = frozenset({"dot_general", "ragged_dot_general", "conv_general_dilated"})
