"""Einstein sums, tensor products, flattenings, and CP decompositions."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import normal
from compiled import compiled

from jaxblocks.tensors import (
    cp_decompose,
    cp_tensor,
    einsum,
    flattening,
    flattening_ranks,
    pure_tensor,
    rank_bounds,
    tensor_product,
)

# One program for each call, where its values are not checked.
cp_tensor = compiled(cp_tensor)
einsum = compiled(einsum)
flattening = compiled(flattening)
flattening_ranks = compiled(flattening_ranks)
pure_tensor = compiled(pure_tensor)
rank_bounds = compiled(rank_bounds)
tensor_product = compiled(tensor_product)


def w_state(dtype=jnp.float32):
    """e0 e0 e1 + e0 e1 e0 + e1 e0 e0: rank three, border rank two."""
    return jnp.array([[[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]]], dtype)


# Einstein sums


def test_einsum_computes_matrix_products_traces_and_contractions():
    with jax.enable_x64(True):
        a, b, c, v = normal(0, 4, 3), normal(1, 3, 5), normal(2, 4, 3), normal(3, 3)
        close = {"rtol": 1e-13, "atol": 1e-13}
        ja, jb, jc, jv = map(jnp.asarray, (a, b, c, v))
        np.testing.assert_allclose(einsum("ij,j->i", ja, jv), a @ v, **close)
        np.testing.assert_allclose(einsum("ik,kj->ij", ja, jb), a @ b, **close)
        np.testing.assert_allclose(einsum("ik, jk -> ij", ja, jc), a @ c.T, **close)
        s, t = normal(4, 2, 3, 4), normal(5, 3, 4, 5)
        loop = np.zeros((2, 5))
        for i, j, k, m in itertools.product(range(2), range(5), range(3), range(4)):
            loop[i, j] += s[i, k, m] * t[k, m, j]
        np.testing.assert_allclose(einsum("ikl,klj->ij", jnp.asarray(s), jnp.asarray(t)), loop, **close)
        np.testing.assert_allclose(np.tensordot(s, t, 2), loop, **close)
    assert einsum("ii->", 2 * jnp.eye(3)) == 6
    x = jnp.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(einsum("ik,jk->ij", x, x), [[5, 14], [14, 50]])


def test_einsum_keeps_repeated_indices_of_the_output():
    """Batched and entrywise products keep an index that appears twice."""
    u = jnp.arange(3.0)
    assert einsum("i,i->", u, u) == 5
    np.testing.assert_array_equal(einsum("i,i->i", u, u), [0, 1, 4])
    a, b = (jnp.asarray(normal(0, 2, 3, 4, dtype=np.float32)), jnp.asarray(normal(1, 2, 4, 5, dtype=np.float32)))
    np.testing.assert_allclose(einsum("bik,bkj->bij", a, b), np.matmul(a, b), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(einsum("...ik,kj->...ij", a, b[0]), np.matmul(a, b[0]), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("implicit", "explicit", "shapes"),
    [
        ("ij,jk", "ij,jk->ik", [(2, 3), (3, 4)]),
        ("ji", "ji->ij", [(2, 3)]),
        ("i,i", "i,i->", [(3,), (3,)]),
        ("bik,bkj", "bik,bkj->ij", [(2, 3, 4), (2, 4, 5)]),
        ("...ba, a", "...ba,a->...b", [(5, 2, 3), (3,)]),
        ("Aa,aB", "Aa,aB->AB", [(2, 3), (3, 4)]),
        (",i", ",i->i", [(), (3,)]),
    ],
)
def test_einsum_requires_outputs_and_explains_the_implicit_form(implicit, explicit, shapes):
    arrays = [jnp.asarray(normal(i, *shape, dtype=np.float32)) for i, shape in enumerate(shapes)]
    with pytest.raises(ValueError, match="alphabetical") as error:
        einsum(implicit, *arrays)
    assert f"write '{explicit}' to" in str(error.value)
    advice = str(error.value).split("write '")[1].split("'")[0]
    np.testing.assert_allclose(einsum(advice, *arrays), np.einsum(implicit, *arrays), rtol=1e-5, atol=1e-6)


def test_einsum_rejects_mismatched_shapes():
    x = jnp.ones((2, 3))
    with pytest.raises(ValueError, match=r"expected 2 operands for 'ij,jk->ik', got 1"):
        einsum("ij,jk->ik", x)
    with pytest.raises(ValueError, match=r"operand 1 to have 1 axes for its term 'j' .*, got float32 \(2, 3\)"):
        einsum("ij,j->i", x, x)
    with pytest.raises(ValueError, match=r"operand 0 to have at least 3 axes"):
        einsum("...ijk->...", x)
    with pytest.raises(ValueError, match=r"3 for 'j' of 'ij,jk->ik' in operand 0, .* and 2 in operand 1"):
        einsum("ij,jk->ik", x, x)
    # numpy and jax.numpy broadcast a size of one here, which sums the other operand silently
    assert jnp.einsum("ij,jk->ik", jnp.ones((2, 1)), jnp.ones((3, 4)))[0, 0] == 3
    with pytest.raises(ValueError, match="one size per letter"):
        einsum("ij,jk->ik", jnp.ones((2, 1)), jnp.ones((3, 4)))
    with pytest.raises(ValueError, match="one size per letter"):
        einsum("...ii->...i", jnp.ones((4, 2, 3)))
    followed = {"ij->ii": "ij->i", "ij->k": "ij->", "...j->j...k": "...j->...j", "ij->i->j": "ij->ij"}
    for subscripts, advice in followed.items():
        with pytest.raises(ValueError, match="^einsum expected output indices of .* that its terms have, .*") as error:
            einsum(subscripts, x)
        assert str(error.value).endswith(f"write '{advice}'.")
        einsum(advice, x)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_einsum_sums_half_precision_in_float32_and_keeps_the_dtype(dtype):
    x = jnp.full((1000, 4), 1.0 + 2.0**-6, dtype)
    naive = np.zeros((), x.dtype)
    for entry in np.asarray(x[:, 0]):
        naive = (naive + entry).astype(x.dtype)
    exact = 1000 * float(x[0, 0])
    assert abs(float(naive) - exact) > 4  # negative control: a sum in half precision is inaccurate
    spacing = float(jnp.finfo(dtype).eps)
    for value in (
        einsum("ij->j", x),
        einsum("ij,ij->j", x, jnp.ones_like(x)),
        jax.jit(lambda x: einsum("ij->j", x))(x),
    ):
        assert value.dtype == dtype
        np.testing.assert_allclose(value.astype(jnp.float32), exact, rtol=spacing)
    three = einsum("ij,jk,kl->il", *[jnp.ones((3, 3), dtype)] * 3)
    assert three.dtype == dtype and float(three[0, 0]) == 9
    dots = [e for e in jax.make_jaxpr(lambda x: einsum("ij,ik->jk", x, x))(x).eqns if e.primitive.name == "dot_general"]
    assert [e.outvars[0].aval.dtype for e in dots] == [jnp.float32]
    assert jax.jit(jax.grad(lambda x: einsum("ij,ij->", x, x)))(x).dtype == dtype


# Products


def test_tensor_product_values_associativity_and_order_of_axes():
    s, t = jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0, 5.0])
    np.testing.assert_array_equal(tensor_product(s, t), [[3, 4, 5], [6, 8, 10]])
    assert tensor_product(t, s).shape == (3, 2)
    np.testing.assert_array_equal(tensor_product(t, s), tensor_product(s, t).T)
    a, b, c = (jnp.asarray(np.random.default_rng(i).integers(-9, 9, shape), jnp.float32) for i, shape in
               enumerate([(2, 3), (4,), (2, 2, 2)]))  # fmt: skip
    np.testing.assert_array_equal(tensor_product(tensor_product(a, b), c), tensor_product(a, tensor_product(b, c)))
    np.testing.assert_array_equal(tensor_product(a, b, c), np.multiply.outer(np.multiply.outer(a, b), c))
    np.testing.assert_array_equal(tensor_product(jnp.array(2.0), a), 2 * a)


def test_pure_tensor_has_flattenings_of_rank_one():
    vectors = [jnp.asarray(normal(i, d, dtype=np.float32)) for i, d in enumerate((2, 3, 4, 2))]
    t = pure_tensor(*vectors)
    lists = [np.asarray(v) for v in vectors]
    for index, entry in np.ndenumerate(np.asarray(t)):
        assert float(entry) == pytest.approx(
            math.prod(float(v[i]) for v, i in zip(lists, index, strict=True)), rel=1e-6
        )
    np.testing.assert_array_equal(flattening_ranks(t), [1, 1, 1, 1])
    assert [int(bound) for bound in rank_bounds(t)] == [1, 1]
    for shape in ((2, 3, 2), (2, 0, 3)):  # the zero tensor, and the empty one, which has no singular values
        assert [int(bound) for bound in rank_bounds(jnp.zeros(shape))] == [0, 0]
    for axes in itertools.combinations(range(4), 2):
        assert np.linalg.matrix_rank(flattening(t, axes)) == 1
    np.testing.assert_array_equal(pure_tensor(vectors[0]), vectors[0])


def test_pure_tensor_rejects_tensors_that_are_not_vectors(sentences):
    with pytest.raises(ValueError, match="at least one vector"):
        pure_tensor()
    with pytest.raises(ValueError, match=r"vectors with 1 axis, .* got float32 \(2, 2\)"):
        pure_tensor(jnp.ones(2), jnp.ones((2, 2)))


# Flattenings and rank


def test_flattening_orders_entries_by_their_indices():
    t = jnp.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    for axes in [0, 2, -1, (1,), (2, 0), (3, 1, 0), (), (0, 1, 2, 3)]:
        chosen = [axis % 4 for axis in ([axes] if isinstance(axes, int) else axes)]
        rest = [axis for axis in range(4) if axis not in chosen]
        rows, columns = [t.shape[a] for a in chosen], [t.shape[a] for a in rest]
        matrix = np.zeros((math.prod(rows), math.prod(columns)), int)
        for index, entry in np.ndenumerate(np.asarray(t)):
            row = np.ravel_multi_index([index[a] for a in chosen], rows) if chosen else 0
            column = np.ravel_multi_index([index[a] for a in rest], columns) if rest else 0
            matrix[row, column] = entry
        np.testing.assert_array_equal(flattening(t, axes), matrix)
    for wrong in (4, -5, (0, 0), (1, -3)):
        with pytest.raises(ValueError, match="distinct axes between -4 and 3"):
            flattening(t, wrong)


def test_order_two_rank_is_matrix_rank():
    with jax.enable_x64(True):
        for rank in range(1, 5):
            matrix = normal(rank, 6, rank) @ normal(10 + rank, rank, 5)
            assert np.linalg.matrix_rank(matrix) == rank
            np.testing.assert_array_equal(flattening_ranks(jnp.asarray(matrix)), [rank, rank])
            assert [int(bound) for bound in rank_bounds(jnp.asarray(matrix))] == [rank, rank]
    np.testing.assert_array_equal(flattening_ranks(jnp.ones(3)), [1])


def test_flattening_ranks_bound_the_number_of_summands():
    factors = tuple(jnp.asarray(normal(i, 2, d, dtype=np.float32)) for i, d in enumerate((3, 4, 5)))
    t = cp_tensor(factors)
    np.testing.assert_array_equal(flattening_ranks(t), [2, 2, 2])
    np.testing.assert_array_equal(jax.jit(jax.vmap(flattening_ranks))(np.stack([t, 0 * t])), [[2, 2, 2], [0, 0, 0]])
    uneven = np.zeros((2, 3, 6), np.float32)
    uneven[[0, 0, 1], [0, 1, 2], [0, 1, 2]] = 1
    np.testing.assert_array_equal(flattening_ranks(uneven), [2, 3, 3])
    lower, upper = rank_bounds(uneven)
    assert lower <= 3 <= upper == 6


def test_flattening_ranks_tolerance_is_relative_and_depends_on_the_dtype():
    t = jnp.diag(jnp.array([1e-20, 1e-22, 1e-24]))
    np.testing.assert_array_equal(flattening_ranks(t), [3, 3])
    np.testing.assert_array_equal(flattening_ranks(t, tolerance=1e-3), [2, 2])
    np.testing.assert_array_equal(jax.jit(flattening_ranks)(t, tolerance=jnp.float32(0.1)), [1, 1])
    half = pure_tensor(*(jnp.asarray(normal(i, 8, dtype=np.float32)) for i in range(3))).astype(jnp.bfloat16)
    np.testing.assert_array_equal(flattening_ranks(half), [1, 1, 1])
    assert np.linalg.matrix_rank(half[0].astype(jnp.float32)) > 1  # the tolerance of float32 is too small


def test_flattening_ranks_rejects_scalars_integers_and_nan(sentences):
    with pytest.raises(ValueError, match="order at least 1"):
        flattening_ranks(jnp.array(1.0))
    with pytest.raises(TypeError, match="tensor to be a floating-point"):
        flattening_ranks(jnp.ones((2, 2), int))
    with pytest.raises(ValueError, match="finite entries"):
        flattening_ranks.__wrapped__(jnp.array([[1.0, jnp.inf]]))


def test_w_state_flattening_ranks_and_border_rank():
    """Flattening ranks two, rank three, and a limit of tensors of rank two with error epsilon."""
    np.testing.assert_array_equal(flattening_ranks(w_state()), [2, 2, 2])
    assert [int(bound) for bound in rank_bounds(w_state())] == [2, 4]
    with jax.enable_x64(True):
        e0, e1 = jnp.eye(2, dtype=jnp.float64)
        w = pure_tensor(e0, e0, e1) + pure_tensor(e0, e1, e0) + pure_tensor(e1, e0, e0)
        np.testing.assert_array_equal(w, w_state(jnp.float64))
        for epsilon in (0.1, 0.01, 0.001):
            tilted = e0 + epsilon * e1
            rank_two = cp_tensor((jnp.stack([tilted / epsilon, -e0 / epsilon]), *[jnp.stack([tilted, e0])] * 2))
            assert float(jnp.abs(rank_two - w).max()) == pytest.approx(epsilon, rel=1e-9)


# Decomposition


def test_cp_tensor_is_the_sum_of_pure_tensors(sentences):
    with jax.enable_x64(True):
        factors = tuple(jnp.asarray(normal(i, 3, d)) for i, d in enumerate((2, 3, 4)))
        by_hand = sum(np.multiply.outer(np.outer(a, b), c) for a, b, c in zip(*map(np.asarray, factors), strict=True))
        np.testing.assert_allclose(cp_tensor(factors), by_hand, rtol=1e-13, atol=1e-13)
        summed = sum(pure_tensor(*vectors) for vectors in zip(*factors, strict=True))
        np.testing.assert_allclose(cp_tensor(factors), summed, rtol=1e-13, atol=1e-13)
        np.testing.assert_allclose(cp_tensor(factors[:2]), factors[0].T @ factors[1], rtol=1e-13, atol=1e-13)
    with pytest.raises(ValueError, match=r"same rank in all of them, got float32 \(2, 3\), float32 \(4, 3\)"):
        cp_tensor((jnp.ones((2, 3)), jnp.ones((4, 3))))
    with pytest.raises(ValueError, match="one factor"):
        cp_tensor(())
    with pytest.raises(ValueError, match=r"^cp_tensor expected one factor of .*, got a list, float32 \(2, 3\); "):
        cp_tensor([[[1.0], [2.0]], jnp.ones((2, 3))])
    stacked = jnp.arange(12.0).reshape(2, 3, 2)  # one array of factors of one shape
    np.testing.assert_array_equal(cp_tensor(stacked), cp_tensor(tuple(stacked)))


@compiled
def decompose(t, rank, steps):
    """Decompositions from four random starts, and the tensors that they stand for."""
    keys = jax.random.split(jax.random.key(0), 4)
    factors, errors = jax.vmap(lambda key: cp_decompose(key, t, rank=rank, steps=steps))(keys)
    return factors, errors, jax.vmap(cp_tensor)(factors)


def test_cp_decompose_finds_a_tensor_of_known_rank():
    with jax.enable_x64(True):
        t = cp_tensor(tuple(normal(i, 3, d) for i, d in enumerate((4, 5, 6))))
        _, errors, tensors = decompose(t, 3, 500)
        assert errors.min() < 1e-9
        np.testing.assert_allclose(tensors[errors.argmin()], t, atol=1e-8)
        for found, error in zip(tensors, errors, strict=True):
            distance = np.linalg.norm(found - t) / np.linalg.norm(t)
            assert distance == pytest.approx(float(error), rel=1e-6, abs=1e-14)


def test_cp_decompose_order_two_is_the_truncated_svd():
    """Eckart-Young theorem: the best error of rank r is the norm of the remaining singular values; its derivative."""
    with jax.enable_x64(True):
        matrix = normal(0, 5, 4)
        u, s, v = np.linalg.svd(matrix, full_matrices=False)
        best = np.sqrt((s[1:] ** 2).sum() / (s**2).sum())
        decomposed = lambda m: (lambda error: (error, error))(cp_decompose(jax.random.key(0), m, rank=1, steps=100)[1])
        slope, error = compiled(jax.grad(decomposed, has_aux=True))(matrix)
        np.testing.assert_allclose(error, best, rtol=1e-9)
        by_values = (np.where(np.arange(4) > 0, s, 0) / best - best * s) / (s**2).sum()
        np.testing.assert_allclose(slope, u * by_values @ v, atol=1e-9)
        # with more summands than the rank, the normal equations are singular and the result is exact
        assert decompose(matrix, 6, 20)[1].max() < 1e-13


def test_cp_decompose_w_state_converges_slowly_with_rank_two():
    """No best approximation exists: the factors grow, while terms of opposite sign cancel."""
    with jax.enable_x64(True):
        factors, errors, _ = decompose(w_state(jnp.float64), 2, 100)
    assert np.all((errors > 0.015) & (errors < 0.025))
    summands = [np.prod([np.linalg.norm(f, axis=-1) for f in each], 0) for each in zip(*factors, strict=True)]
    assert np.min(summands) > 1.5 * math.sqrt(3)  # the norm of the tensor


def test_cp_decompose_is_independent_of_scale_and_accepts_zero():
    t = cp_tensor(tuple(normal(i, 2, 3, dtype=np.float32) for i in range(3)))
    _, errors, _ = decompose(t, 2, 50)
    for scale in (np.float32(2.0**-100), np.float32(2.0**100)):  # squares underflow and overflow in float32
        _, scaled, tensors = decompose(t * scale, 2, 50)
        np.testing.assert_allclose(scaled, errors, atol=1e-6)
        np.testing.assert_allclose(tensors[scaled.argmin()] / scale, t, atol=1e-5)
    # The norm is beyond float32, and the reciprocal of the largest entry below its normal numbers.
    largest = compiled(lambda t: cp_tensor(cp_decompose(jax.random.key(0), t, rank=1, steps=2)[0]))(
        jnp.full((3, 3, 3), 1e38)
    )
    np.testing.assert_allclose(largest, 1e38, rtol=1e-5)
    factors, errors, _ = decompose(0 * t, 2, 50)
    assert np.all(errors == 0) and all(np.all(f == 0) for f in factors)
    factors, error = cp_decompose(jax.random.key(0), t[:, :0], rank=2, steps=1)  # without entries
    assert error == 0 and [f.shape for f in factors] == [(2, 3), (2, 0), (2, 3)]


def test_cp_decompose_of_zero_in_half_precision():
    """The dtype is kept, and derivatives are finite; no step is needed."""
    decompose = lambda t, steps: cp_decompose(jax.random.key(0), t, rank=1, steps=steps)
    total = lambda t: (lambda found: (sum(x.sum() for x in jax.tree.leaves(found)), found))(decompose(t, 1))
    both = compiled(lambda t: (jax.grad(total, has_aux=True)(t), decompose(t, 0)))
    (gradient, (factors, error)), (_, of_start) = both(np.zeros((2, 2), jnp.bfloat16))
    assert np.isfinite(gradient.astype(np.float32)).all()
    assert {f.dtype for f in factors} | {error.dtype} == {jnp.dtype(jnp.bfloat16)} and error == of_start == 0


def test_cp_decompose_rejects_wrong_arguments(sentences):
    key = jax.random.key(0)
    with pytest.raises(TypeError, match="tensor to be a floating-point"):
        cp_decompose(key, jnp.ones((2, 2), int), rank=1, steps=1)
    for t, rank, steps in [(jnp.ones(3), 1, 1), (jnp.ones((2, 2)), 0, 1), (jnp.ones((2, 2)), 1, -1)]:
        with pytest.raises(ValueError, match="order at least 2|rank to be an integer >= 1|steps to be an integer >= 0"):
            cp_decompose(key, t, rank=rank, steps=steps)
