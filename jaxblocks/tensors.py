"""Tensors as arrays: Einstein sums, tensor products, flattenings, rank.

A tensor T in R^{d_1 x ... x d_n} is an array of shape ``(d_1, ..., d_n)``. Two terms are distinct:

- the *order* n is the number of indices, ``tensor.ndim``: 0 for a scalar, 1 for a vector, 2 for a matrix;
- the *rank* is the least number of pure tensors (products of vectors) that add up to T. Non-zero pure
  tensors have rank one; the zero tensor is the empty sum and has rank zero.

Data come as tensors too, with the batch first: ``(batch, features)``, ``(batch, time, features)``,
``(batch, height, width, channels)``.
"""

import functools
import math
import string
from collections import Counter
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact, Int, Key, Num, Real, Shaped

from jaxblocks.backend.powers_of_two import divided, unit_of
from jaxblocks.backend.precision import full_precision, wide_dtype
from jaxblocks.backend.quotients import vanishes
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import NonNegativeFloat, NonNegativeInt, PositiveInt, checked
from jaxblocks.checks.values import check_values, checkable
from jaxblocks.core.lazy import explain_missing_names

__all__ = [
    "cp_decompose",
    "cp_tensor",
    "einsum",
    "flattening",
    "flattening_ranks",
    "pure_tensor",
    "rank_bounds",
    "tensor_product",
]
explain_missing_names(__name__)


@checked
def einsum(subscripts: str, *operands: Num[Array, "..."]) -> Num[Array, "..."]:
    """Einstein sum with its output indices written out: indices that are not in the output are summed.

    ``einsum('ij,j->i', A, v)`` is (Av)_i = sum_j A_ij v_j. The rule "sum every index that appears twice"
    can express neither a batched product ``'bik,bkj->bij'`` nor an entrywise one ``'i,i->i'``, and it orders
    the outputs alphabetically, so ``'ji'`` transposes silently. Therefore ``->`` is required here.

    ``subscripts`` has one term per operand with one letter per axis; ``...`` stands for leading axes that
    broadcast as in NumPy. The output has letters of the terms, each of them once. Half precision operands are
    accumulated in float32; the result has the operands' dtype.

    Raises:
        ValueError: if ``->`` is missing, if terms and operands do not match, for an output with a letter twice or with
            one that no term has, or if a letter has two sizes (a size of one does not broadcast).

    >>> A = jnp.arange(6.0).reshape(2, 3)
    >>> einsum("ik,jk->ij", A, A)
    Array([[ 5., 14.],
           [14., 50.]], dtype=float32)

    Source: Kolda & Bader 2009, Tensor decompositions and applications; Diehl 2023, section 1.2, with explicit outputs.
    """
    subscripts = subscripts.replace(" ", "")
    if "->" not in subscripts:
        counts = Counter(subscripts.replace("...", "").replace(",", ""))
        implied = ("..." if "..." in subscripts else "") + "".join(sorted(c for c in counts if counts[c] == 1))
        expected = "output indices after '->' (without them the outputs are in alphabetical order)"
        require(
            False, expected, repr(subscripts), f"write '{subscripts}->{implied}' to sum every index that appears twice"
        )
    _check_letters(subscripts, operands)
    dtype = jnp.result_type(*operands)
    if wide_dtype(dtype) == dtype:
        return jnp.einsum(subscripts, *operands)
    # The dtypes are equal here. jnp.einsum itself mixes half operands with float32 partial sums.
    with jax.numpy_dtype_promotion("standard"):
        return jnp.einsum(subscripts, *operands, preferred_element_type=jnp.float32).astype(dtype)


@checked
def tensor_product(s: Num[Array, "..."], t: Num[Array, "..."], *more: Num[Array, "..."]) -> Num[Array, "..."]:
    """Tensor product (S (x) T)_{i.., j..} = S_{i..} T_{j..} of two or more tensors.

    The orders add up and the shapes are concatenated. The product is associative; exchanging the factors
    exchanges the axes, so it is not commutative.

    >>> tensor_product(jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0, 5.0]))
    Array([[ 3.,  4.,  5.],
           [ 6.,  8., 10.]], dtype=float32)

    Source: Kolda & Bader 2009, Tensor decompositions and applications; Diehl 2023, section 1.2.
    """
    # Broadcast products: the axes of each factor are new axes of size one in the other.
    return functools.reduce(lambda a, b: a[(..., *[None] * b.ndim)] * b[(*[None] * a.ndim, ...)], (s, t, *more))


@checked
def pure_tensor(*vectors: Num[Array, "_"]) -> Num[Array, "..."]:
    """Pure tensor v_1 (x) ... (x) v_n of n vectors: T_{i_1 .. i_n} = v_1[i_1] ... v_n[i_n].

    Its shape is ``(len(v_1), ..., len(v_n))``, its order n, its rank one unless a vector is zero (then the
    tensor is zero and has rank zero).

    Raises:
        ValueError: without vectors or for tensors of other order, which ``tensor_product`` takes.

    >>> pure_tensor(
    ...     jnp.array([1.0, 2.0]), jnp.array([1.0, 0.0]), jnp.array([3.0, 4.0])
    ... ).shape
    (2, 2, 2)

    Source: Kolda & Bader 2009, Tensor decompositions and applications; Diehl 2023, section 1.2.
    """
    require(len(vectors) > 0, "at least one vector", "none", "write pure_tensor(u, v)")
    return vectors[0] if len(vectors) == 1 else tensor_product(*vectors)


@checked
def flattening(tensor: Shaped[Array, "..."], axes: int | tuple[int, ...]) -> Shaped[Array, "rows columns"]:
    """Matrix whose rows run over the indices in ``axes`` and whose columns run over all the others.

    Rows follow the order in which ``axes`` are given, columns the order of the remaining axes; in both the
    last index runs fastest. A single axis gives the mode-``axes`` flattening of shape ``(d_axes, -1)``.

    Raises:
        ValueError: for an axis that does not exist or occurs twice.

    >>> flattening(jnp.arange(12).reshape(2, 3, 2), 1)
    Array([[ 0,  1,  6,  7],
           [ 2,  3,  8,  9],
           [ 4,  5, 10, 11]], dtype=int32)

    Source: Kolda & Bader, Tensor decompositions and applications, section 2.4; Diehl 2023, section 1.2.
    """
    rows = (axes,) if isinstance(axes, int) else tuple(axes)
    order = tensor.ndim
    # An axis out of range is left out here, and shows by the length below.
    normalized = [axis % order for axis in rows if -order <= axis < order]
    if len(set(normalized)) < len(rows):
        expected = f"distinct axes between {-order} and {order - 1} for a tensor of order {order}, {describe(tensor)}"
        require(False, expected, f"axes={axes}", f"pass axes={tuple(dict.fromkeys(normalized)) or (0,)}")
    columns = [axis for axis in range(order) if axis not in normalized]
    height, width = (math.prod(tensor.shape[axis] for axis in side) for side in (normalized, columns))
    return tensor.transpose(*normalized, *columns).reshape(height, width)


@checked
def flattening_ranks(
    tensor: Inexact[Array, "..."],
    *,
    tolerance: NonNegativeFloat | Real[Array, ""] | None = None,
    check: bool = False,
) -> Int[Array, " order"]:
    """Numerical matrix ranks of all flattenings along one axis: the multilinear rank (r_1, ..., r_n).

    r_i = #{j : s_j > tolerance * s_1} for the singular values s_1 >= s_2 >= ... of ``flattening(tensor, i)``.
    ``tolerance`` is relative; ``None`` means the larger side of the flattening times the spacing of the
    tensor's dtype at one. For order 2 both numbers are the rank; for a higher order each is a lower bound only
    (see ``rank_bounds``).

    Raises:
        ValueError: for a scalar and, where the values are concrete, for entries that are not finite (``check=True``
            under ``checkify``; unchecked they count as rank zero).

    The tensor e_0 e_0 e_1 + e_0 e_1 e_0 + e_1 e_0 e_0 has rank three:

    >>> e0, e1 = jnp.eye(2)
    >>> w = pure_tensor(e0, e0, e1) + pure_tensor(e0, e1, e0) + pure_tensor(e1, e0, e0)
    >>> print(flattening_ranks(w))
    [2 2 2]

    Source: Kolda & Bader, Tensor decompositions and applications, section 4.1; Diehl 2023, section 1.2.
    """
    _check_order(tensor, 1)
    if (known := checkable(tensor, check)) is not None:
        check_values(abs(known) < jnp.inf, "finite entries; remove NaN and inf", check=check)
    spacing = float(jnp.finfo(tensor.dtype).eps)  # of the input dtype: its rounding errors must not count as rank

    def matrix_rank(matrix):
        values = jnp.linalg.svdvals(matrix)
        # Relative to the largest singular value, by the size of rounding errors: the rule of numpy.linalg.matrix_rank.
        relative = max(matrix.shape) * spacing if tolerance is None else jnp.asarray(tolerance, values.dtype)
        return jnp.sum(values > relative * jnp.max(values, initial=0))

    wide = tensor.astype(wide_dtype(tensor.dtype))
    return jnp.stack([matrix_rank(flattening(wide, axis)) for axis in range(tensor.ndim)])


@checked
def rank_bounds(
    tensor: Inexact[Array, "..."],
    *,
    tolerance: NonNegativeFloat | Real[Array, ""] | None = None,
    check: bool = False,
) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """Lower and upper bound of the rank of a tensor, from its flattening ranks r_1, ..., r_n.

    max_i r_i <= rank(T) <= (r_1 ... r_n) / max_i r_i. Each flattening of a sum of r pure tensors has rank at
    most r; and T is a core of shape (r_1, ..., r_n) in other bases, which is the sum of its fibers along its
    longest axis. For order 1 and 2 the bounds are equal. For order 3 and above the
    rank itself is NP-hard to compute, and no function here computes it. Arguments as in ``flattening_ranks``.

    >>> w = jnp.array([[[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]]])
    >>> [int(bound) for bound in rank_bounds(w)]
    [2, 4]

    Source: Hillar & Lim, Most tensor problems are NP-hard; Diehl 2023, section 1.2.
    """
    ranks = flattening_ranks(tensor, tolerance=tolerance, check=check)
    lower = jnp.max(ranks)
    # The rank is at least each r_i and at most the product of all but the largest.
    return lower, jnp.prod(ranks) // jnp.maximum(lower, 1)


def cp_tensor(factors: Sequence[Inexact[Array, "_ _"]]) -> Inexact[Array, "..."]:
    """Sum of pure tensors T = sum_a v_a^(1) (x) ... (x) v_a^(n), given by its factors.

    ``factors`` holds one matrix of shape ``(rank, d_i)`` per axis of T; row a of each belongs to summand a.
    (Kolda & Bader write the transposes, with the vectors in columns.) The result has shape ``(d_1, ..., d_n)``
    and at most the rank ``rank``. Products are computed in full precision.

    Raises:
        ValueError: if the factors are not matrices or their numbers of rows differ.

    >>> cp_tensor((jnp.eye(2), jnp.array([[1.0, 2.0], [3.0, 4.0]])))
    Array([[1., 2.],
           [3., 4.]], dtype=float32)

    Source: Kolda & Bader, Tensor decompositions and applications, section 3; Diehl 2023, section 1.2.
    """
    matrices = len(factors) > 0 and all(getattr(f, "ndim", 0) == 2 for f in factors)
    expected = "one factor of shape (rank, d_i) per axis, with the same rank in all of them"
    got, repair = ", ".join(map(describe, factors)) or "none", "transpose factors that hold their vectors in columns"
    require(matrices and len({f.shape[0] for f in factors}) == 1, expected, got, repair)
    letters = _letters(len(factors))
    with full_precision():
        return einsum(",".join(f"Z{letter}" for letter in letters) + f"->{letters}", *factors)


@checked
def cp_decompose(
    key: Key[Array, ""], tensor: Float[Array, "..."], *, rank: PositiveInt, steps: NonNegativeInt
) -> tuple[tuple[Float[Array, "rank _"], ...], Float[Array, ""]]:
    """Approximate a tensor by a sum of ``rank`` pure tensors, by alternating least squares.

    The factors A^(1), ..., A^(n) minimize |T - cp_tensor(A)|. Each of ``steps`` sweeps solves for one
    factor after the other with the rest fixed, a linear least squares problem. Each solve is damped toward the
    current factor by the rounding error of the normal equations, so redundant summands are allowed and
    the error never grows (except by rounding). The initial factors are random directions drawn from ``key``.

    Returns ``(factors, relative_error)``: factors of shape ``(rank, d_i)`` as ``cp_tensor`` takes them, and
    |T - cp_tensor(factors)| / |T| in the Euclidean norm (zero for the zero tensor). A small error shows that T
    is close to a tensor of rank at most ``rank``. A large error shows nothing: it may be a local minimum (try other
    keys, e.g. under ``jax.vmap``). The rank is NP-hard to compute, and ``flattening_ranks`` is only a lower bound. A
    best approximation need not exist: rank-three tensors can be limits of rank-two ones (border
    rank), and then the factors grow without bound while the error slowly tends to zero.

    Raises:
        ValueError: for an order below two, ``rank < 1`` or ``steps < 0``. Works under ``jit`` with ``rank`` and
            ``steps`` static. Half precision tensors are decomposed in float32, and the results rounded.

    >>> w = jnp.array([[[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]]])
    >>> factors, error = cp_decompose(jax.random.key(0), w, rank=3, steps=100)
    >>> [f.shape for f in factors], bool(error < 1e-3)
    ([(3, 2), (3, 2), (3, 2)], True)

    Source: Kolda & Bader, Tensor decompositions and applications, section 3.4; damping: Navasca, De Lathauwer &
    Kindermann, Swamp reducing technique for tensor decomposition.
    """
    _check_order(tensor, 2)
    order, letters = tensor.ndim, _letters(tensor.ndim)
    wide = tensor.astype(wide_dtype(tensor.dtype))
    largest = jnp.max(jnp.abs(wide), initial=0)
    # The zero tensor stays as it is; roots of 0 are left out, since their derivative is infinite.
    is_zero = vanishes(largest)
    scale = unit_of(largest)
    unit = divided(wide, scale)  # so that no square overflows
    norm = jnp.sqrt(jnp.where(is_zero, 1, jnp.sum(unit**2)))
    unit = unit / norm  # |unit| = 1 for every scale of the tensor
    number = jnp.finfo(wide.dtype)

    def solve_for(mode, factors):
        others = factors[:mode] + factors[mode + 1 :]
        terms = [f"Z{letter}" for letter in letters[:mode] + letters[mode + 1 :]]
        # The Gram matrix of the Khatri-Rao product of factors is the elementwise product of their Gram matrices.
        gram = functools.reduce(jnp.multiply, [f @ f.T for f in others])  # (rank, rank)
        # Relative to the trace: parallel pure tensors make the Gram matrix singular.
        damping = 10 * rank * number.eps * jnp.trace(gram) + number.tiny
        # Solved for the change of a factor and not for the factor, so that the damping does not shrink the solution.
        residual = unit - cp_tensor(factors)
        slope = einsum(",".join([letters, *terms]) + f"->Z{letters[mode]}", residual, *others)  # (rank, d_mode)
        change = jax.scipy.linalg.solve(gram + damping * jnp.eye(rank, dtype=gram.dtype), slope, assume_a="pos")
        return (*factors[:mode], factors[mode] + change, *factors[mode + 1 :])

    def sweep(factors, _):
        return functools.reduce(lambda found, mode: solve_for(mode, found), range(order), factors), None

    keys = jax.random.split(key, order)
    start = [jax.random.normal(k, (rank, d), wide.dtype) for k, d in zip(keys, tensor.shape, strict=True)]
    with full_precision():
        factors = tuple(f / jnp.linalg.norm(f, axis=1, keepdims=True) for f in start)
        factors, _ = jax.lax.scan(sweep, factors, length=steps)
        squared = jnp.sum((unit - cp_tensor(factors)) ** 2)
    exact = is_zero | vanishes(squared)
    error = jnp.where(exact, 0, jnp.sqrt(jnp.where(exact, 1, squared)))
    # The scale is split equally among the factors.
    share = jnp.where(is_zero, 0, scale ** (1 / order) * norm ** (1 / order))
    return tuple((share * f).astype(tensor.dtype) for f in factors), error.astype(tensor.dtype)


def _letters(order: int) -> str:
    """One index letter per axis; ``Z`` stays free for the summands."""
    return string.ascii_letters[:order]


def _check_order(tensor, least: int) -> None:
    repair = f"add axes, as in tensor[..., {', '.join(['None'] * (least - tensor.ndim))}]"
    require(tensor.ndim >= least, f"a tensor of order at least {least}", tensor, repair)


def _check_letters(subscripts: str, operands) -> None:
    inputs, _, output = subscripts.partition("->")
    letters, terms = output.replace("...", ""), inputs.split(",")
    once = "".join(dict.fromkeys(letter for letter in letters if letter in inputs))
    expected = f"output indices of {subscripts!r} that its terms have, each of them once"
    repair = f"write '{inputs}->{'...' * ('...' in inputs)}{once}'"
    require(letters == once, expected, repr(output), repair)
    repair = f"write {len(operands)} terms with commas between them, or pass one array for each term"
    require(len(terms) == len(operands), f"{len(terms)} operands for {subscripts!r}", len(operands), repair)
    sizes = {}  # letter: (size, the operand that set it)
    for position, (term, x) in enumerate(zip(terms, operands, strict=True)):
        front, dots, back = term.partition("...")
        named = len(front) + len(back)
        if named > x.ndim or (named < x.ndim and not dots):
            least = f"{'at least ' * bool(dots)}{named} axes"
            expected = f"operand {position} to have {least} for its term {term!r} of {subscripts!r}"
            require(False, expected, x, f"write a term of {x.ndim} letters")
        sizes_here = [*x.shape[: len(front)], *x.shape[x.ndim - len(back) :]]
        for letter, size in zip(front + back, sizes_here, strict=True):
            known, where = sizes.setdefault(letter, (size, position))
            if known != size:
                first = f"{known} for {letter!r} of {subscripts!r} in operand {where}, {describe(operands[where])}"
                got = f"{first}, and {size} in operand {position}, {describe(x)}"
                require(False, "one size per letter", got, "write another letter for one of them")
