"""Sparse Jacobians: complete patterns, few products, and the values of dense Jacobians."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import for_each
from compiled import drawn
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from jaxblocks import Conv
from jaxblocks.ad import count_flops
from jaxblocks.ad.jacobians.sparse import SparsityPattern, sparse_jacobian, sparsity

N = 12
A = np.random.default_rng(0).normal(size=(N, N))
BAND = np.triu(np.tril(A, 1), -2)


def convolution(x, kernel, strides=None, padding="SAME", **options):
    """Convolution with one channel: x has the shape (*space), the kernel (*window)."""
    space = "HW"[: x.ndim]
    out = lax.conv_general_dilated(
        x[None, ..., None],
        jnp.asarray(kernel, x.dtype)[..., None, None],
        strides or (1,) * x.ndim,
        padding,
        dimension_numbers=(f"N{space}C", f"{space}IO", f"N{space}C"),
        **options,
    )
    return out[0, ..., 0]


def tridiagonal(x):
    return x[1:-1] ** 2 * x[:-2] - jnp.sin(x[2:])


def heat(x, steps=2):
    """A counter selects the heated cell, so each iteration of the loop has its own pattern."""

    def body(i, x):
        x = x + 0.1 * (jnp.roll(x, 1) - 2 * x + jnp.roll(x, -1))
        return x.at[i].multiply(x[i])

    return lax.fori_loop(0, steps, body, x)


@jax.custom_jvp
def straight_through(x):
    return jnp.round(x)


straight_through.defjvp(lambda x, t: (straight_through(x[0]), t[0]))


@jax.custom_vjp
def square(x):
    return x**2


square.defvjp(lambda x: (x**2, x), lambda x, g: (2 * x * g,))

# f, shape of x, number of colors; the pattern is exact for each function.
EXACT = {
    "elementwise": (lambda x: jnp.exp(jnp.sin(x)) / (1 + x**2), (N,), 1),
    "permutation": (lambda x: x[::-1].reshape(3, 4).T * 2, (N,), 1),
    "products of rows": (lambda x: jnp.prod(x.reshape(4, 3), 1), (N,), 1),
    "subtract at indices": (lambda x: x.at[1:4].subtract(jnp.sin(x[5:8])), (N,), 2),
    "tridiagonal": (tridiagonal, (N,), 3),
    "differences": (lambda x: jnp.diff(x) ** 2, (N,), 2),
    "band matrix on the right": (lambda x: jnp.sin(x) @ jnp.asarray(BAND, x.dtype), (2, N), 4),
    "convolution": (lambda x: jnp.tanh(convolution(x, [1.0, 2.0, 3.0])), (N,), 3),
    "dilated": (lambda x: convolution(x, [1.0, 2.0, 3.0], padding=[(2, 2)], rhs_dilation=(2,)), (N,), 3),
    "transposed": (lambda x: convolution(x, [1.0, 2.0, 3.0], padding=[(2, 1)], lhs_dilation=(2,)), (N,), 2),
    "cropped": (lambda x: convolution(x, [1.0, 2.0], padding=[(-2, 1)]), (N,), 2),
    "five points": (lambda x: convolution(x, [[0, 1, 0], [1, -4, 1], [0, 1, 0]]) + x**3, (5, 5), 6),
    "max pool": (lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2,), (2,), "VALID"), (N,), 1),
    "row sums": (lambda x: jnp.sum(x**2, axis=1), (3, 4), 1),
    "softmax": (lambda x: jax.nn.softmax(x, axis=-1), (4, 3), 3),
    "gather": (lambda x: jnp.take(x, np.array([3, 1, 1, 40]), mode="fill", fill_value=0.0) ** 2, (N,), 1),
    "scatter": (lambda x: jnp.zeros(N, x.dtype).at[np.array([1, 1, 5])].add(jnp.sin(x[:3])), (N,), 1),
    "boundary": (lambda x: tridiagonal(x.at[0].set(2.0).at[-1].set(x[1])), (N,), 4),
    "mask": (lambda x: jnp.where(np.arange(N) % 2 == 0, x, x[::-1]) * jnp.asarray(np.arange(N) < 5, x.dtype), (N,), 1),
    "cumulative": (lambda x: jnp.cumsum(x**2, axis=1), (4, 3), 3),
    "loop": (heat, (N,), None),
    "recurrence": (lambda x: lax.scan(lambda c, y: (y, jnp.tanh(c) * y), x[0], x, reverse=True)[1], (N,), 2),
    "branches": (
        lambda x: lax.cond(x[0] > 0, lambda x: x, lambda x: 2 * x, x) * lax.cond(True, jnp.sin, jnp.cumsum, x),
        (N,),
        1,
    ),
    "flat": (lambda x: jnp.floor(x) + lax.stop_gradient(x) + x, (N,), 1),
    "straight through": (straight_through, (N,), 1),
    "zero": (lambda x: jnp.ones(3, x.dtype) * lax.stop_gradient(x[0]), (N,), 0),
    "custom backward rule": (lambda x: jax.checkpoint(square)(x)[1:] * x[:-1], (N,), 2),
}


def dense(f, x):
    """The reference, in reverse mode, which all functions here support."""
    return jax.jacrev(f)(x).reshape(-1, x.size)


@functools.cache
def every_jacobian():
    """For each function its sparse Jacobian, the values of it and dense ones at two points, from one program."""
    with jax.enable_x64(True):
        x = {name: np.random.default_rng(1).normal(size=shape) for name, (_, shape, _) in EXACT.items()}
        both = {name: np.stack([each, 0.1 - 2 * each[..., ::-1]]) for name, each in x.items()}
        jacobians = {
            name: sparse_jacobian(f, jax.ShapeDtypeStruct(shape, jnp.float64)) for name, (f, shape, _) in EXACT.items()
        }

        @jax.jit
        def values(both):
            found = {name: jacobians[name](points[0]) for name, points in both.items()}
            full = {name: matrix.todense() for name, matrix in found.items()}
            expected = {name: jax.vmap(functools.partial(dense, EXACT[name][0]))(z) for name, z in both.items()}
            return found, full, expected

        return jacobians, *jax.tree.map(np.asarray, values(both))


@for_each({name: (name, colors) for name, (*_, colors) in EXACT.items()})
def test_pattern_colors_and_values(case):
    """The nonzero entries at random points, the number of products, and the values in float64."""
    name, colors = case
    jacobian, found, full, (expected, other) = (each[name] for each in every_jacobian())
    np.testing.assert_allclose(full, expected, rtol=1e-12, atol=1e-14)
    pattern = jacobian.pattern
    assert pattern.shape == expected.shape and found.nse == pattern.entries
    marked, seen = pattern.todense(), (expected != 0) | (other != 0)
    assert not np.any(seen & ~marked)
    if name != "max pool":  # at each point only one of two candidates is nonzero
        np.testing.assert_array_equal(marked, seen)
    if colors is not None:
        assert pattern.colors == colors


@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_both_modes_give_the_same(mode):
    """Columns by jvps or rows by vjps; jit = eager; columns (rows) of one color have no row (column) in common."""
    x = jnp.linspace(-1.0, 1.0, N)
    f = lambda x: square(tridiagonal(x))
    jacobian = sparse_jacobian(f, x, mode=mode)
    compiled, expected = jax.jit(lambda x: (jacobian(x).todense(), jax.jacrev(f)(x)))(x)
    for found in (jacobian(x).todense(), compiled):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    pattern = jacobian.pattern
    for colors, places in (
        (pattern.column_colors[pattern.cols], pattern.rows),
        (pattern.row_colors[pattern.rows], pattern.cols),
    ):
        assert len(set(zip(colors.tolist(), places.tolist(), strict=True))) == pattern.entries


def test_reverse_mode_is_used_when_rows_need_fewer_colors():
    """A sum has one row; an arrow matrix takes two products, by rows or by columns."""
    assert sparsity(jnp.sum, jnp.zeros(N)).mode == "reverse"
    assert sparsity(lambda x: x * x[0], jnp.zeros(N)).mode == "forward"
    assert sparsity(lambda x: x * x[0], jnp.zeros(N)).colors == 2
    by_rows = sparsity(lambda x: jnp.append(x, x.sum()), jnp.zeros(N))
    assert (by_rows.mode, by_rows.colors) == ("reverse", 2)


def test_unknown_operations_are_dense():
    """The pattern of a sort, an index that depends on x, a while loop and a product of two is full and reported so."""
    x = jnp.linspace(-1.0, 1.0, 6)
    functions = [
        jnp.sort,
        lambda x: x + lax.dynamic_slice(x, (jnp.argmax(x),), (1,)),
        lambda x: jnp.tanh(jnp.asarray(A[:6, :6], x.dtype) @ x),
        lambda x: jnp.outer(x, x) @ x,
        lambda x: jnp.linalg.solve(jnp.asarray(A[:6, :6], x.dtype), x),
        lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.roll(c[1], 1)), (x[0], x))[1],
        lambda x: jnp.fft.fft(x).real,
    ]
    patterns = [sparsity(f, x) for f in functions]
    assert all(pattern.entries == 36 and pattern.is_dense for pattern in patterns)
    assert "as many jvps as a dense Jacobian takes; nothing is gained" in repr(patterns[0])
    run = lambda x: (sparse_jacobian(functions[1], patterns[1])(x).todense(), jax.jacfwd(functions[1])(x))
    np.testing.assert_allclose(*jax.jit(run)(x), rtol=1e-5, atol=1e-6)


STEPS = [
    jnp.sin,
    lambda x: x[::-1] * x,
    lambda x: jnp.roll(x, 2),
    lambda x: jnp.concatenate([x[3:], jnp.cumsum(x[:3])]),
    lambda x: jnp.tile(x.reshape(2, -1).sum(0), 2) * x,
    lambda x: convolution(x, [1.0, -2.0, 1.0]),
    lambda x: jnp.where(x > 0.3, x**2, jnp.roll(x, 1)),
    lambda x: jnp.asarray(BAND[:8, :8], x.dtype) @ x,
    lambda x: jnp.pad(x[::2], (1, 3)) * x[jnp.array([0, 0, 1, 2, 3, 5, 7, 7])],
    lambda x: x.at[jnp.array([1, 4])].multiply(x[jnp.array([0, 5])], unique_indices=True),
    lambda x: jnp.maximum(x, x[::-1]) - x.max(),
    lambda x: lax.scan(lambda c, y: (jnp.sin(c) + y, c * y), x[0], x[:8])[1],
    lambda x: jax.nn.softmax(x.reshape(4, 2), axis=0).T.reshape(-1),
    lambda x: lax.cond(x[2] > 0, lambda x: x * x[0], lambda x: jnp.flip(x), x),
]


@settings(max_examples=5)
@given(st.lists(st.sampled_from(range(len(STEPS))), min_size=2, max_size=3), st.integers(0, 3))
def test_no_entry_is_missed(chosen, seed):
    """For any composition the dense Jacobian is zero outside the pattern, and the values inside are right."""

    def f(x):
        for i in chosen:
            x = STEPS[i](x)
        return x

    x = np.random.default_rng(seed).normal(size=8).astype(np.float32)
    jacobian = sparse_jacobian(f, x)
    found, expected = jax.jit(lambda x: (jacobian(x).todense(), jax.jacfwd(f)(x)))(x)
    assert not np.any(np.asarray(expected)[~jacobian.pattern.todense()])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_layers_with_channels():
    """A convolution takes c products for each tap, where c is the number of channels of a group."""
    x = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    layers = {12: Conv(4, 3), 6: Conv(4, 3, groups=2)}
    params = {colors: drawn(layer, x) for colors, layer in layers.items()}
    f = {colors: functools.partial(layer.apply, params[colors]) for colors, layer in layers.items()}
    jacobians = {colors: sparse_jacobian(f[colors], x) for colors in layers}
    assert all(jacobian.pattern.colors == colors for colors, jacobian in jacobians.items())
    found, expected = jax.jit(lambda x: (jacobians[6](x).todense(), dense(f[6], x)))(x)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_transformations_pytrees_and_hessians():
    """vmap and grad; numbering of inputs by leaves; a Hessian as the Jacobian of a gradient; traced constants."""
    x = {"a": np.arange(1, 5, dtype=np.float32).reshape(2, 2), "b": np.arange(3, dtype=np.float32)}
    f = lambda x: jnp.append(x["a"].T.reshape(-1) ** 2, x["b"] * x["b"][::-1])
    forward, reverse = (sparse_jacobian(f, x, mode=mode) for mode in ("forward", "reverse"))
    batch = jax.tree.map(lambda leaf: np.stack([leaf, 2 * leaf]), x)
    run = lambda x, batch: (jax.jacfwd(f)(x), [jax.vmap(reverse)(batch)] + [j(x).todense() for j in (forward, reverse)])
    leaves, (mapped, *found) = jax.jit(run)(x, batch)
    expected = np.concatenate([np.reshape(j, (7, -1)) for j in jax.tree.leaves(leaves)], axis=1)
    for matrix in found:
        np.testing.assert_allclose(matrix, expected)
    np.testing.assert_allclose(mapped.todense(), np.stack([expected, 2 * expected]))
    rosenbrock = lambda x: jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)
    hessian = sparse_jacobian(jax.grad(rosenbrock), jnp.zeros(N))
    assert hessian.pattern.colors == 3
    point = np.linspace(0, 1, N, dtype=np.float32)
    found, expected = jax.jit(lambda x: (hessian(x).todense(), jax.hessian(rosenbrock)(x)))(point)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    squares = lambda scale: jnp.sum(sparse_jacobian(lambda x: scale * tridiagonal(x), point)(point).data ** 2)
    value, slope = jax.jit(jax.value_and_grad(squares))(2.0)
    np.testing.assert_allclose(slope, 2 * value / 2.0, rtol=1e-5)


@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_a_leaf_without_entries_has_no_columns(mode):
    x = {"a": jnp.arange(1.0, 4.0), "none": jnp.zeros((0, 2))}
    found = sparse_jacobian(lambda x: x["a"] ** 2, x, mode=mode)(x)
    np.testing.assert_array_equal(found.todense(), np.diag([2.0, 4.0, 6.0]))


def test_cost_is_colors_times_a_jvp():
    """Counted operations: three products instead of a thousand; 2 instead of 49 in the published example."""
    x = jnp.zeros(1000)
    jacobian = sparse_jacobian(tridiagonal, x)
    one = count_flops(lambda x, t: jax.jvp(tridiagonal, (x,), (t,)), x, x).flops
    assert jacobian.pattern.colors == 3
    assert count_flops(lambda x: jacobian(x).data, x).flops <= 3 * one + 3 * x.size
    assert count_flops(jax.jacfwd(tridiagonal), x).flops > 200 * one
    assert sparsity(lambda x: (x[1:] - x[:-1]) ** 2, jnp.zeros(50)).colors == 2


def test_large_patterns():
    """A pattern of 100,000 columns has a short repr."""
    pattern = sparsity(tridiagonal, jax.ShapeDtypeStruct((100_000,), jnp.float32))
    assert (pattern.entries, pattern.colors) == (299_994, 3)
    assert len(repr(pattern).splitlines()) <= 25


def test_patterns_can_be_constructed():
    """From indices in any order, with repeated entries; the patterns print, plot and compute."""
    pattern = SparsityPattern([2, 0, 1, 0], [2, 0, 1, 0], (3, 3))
    np.testing.assert_array_equal(pattern.todense(), np.eye(3, dtype=bool))
    assert repr(pattern) == "3 of 3 x 3 entries may differ from zero (33.3 %): 1 color, one jvp each.\n#..\n.#.\n..#"
    assert "<pre>#..<br>" in pattern._repr_html_()
    x = jnp.array([1.0, 2.0, 3.0])
    np.testing.assert_allclose(sparse_jacobian(jnp.square, pattern)(x).todense(), np.diag([2.0, 4.0, 6.0]))
    empty = sparsity(lambda x: jnp.ones(2), x)
    assert "nothing to compute" in repr(empty) and empty.colors == 0
    np.testing.assert_allclose(sparse_jacobian(lambda x: jnp.ones(2), empty)(x).todense(), np.zeros((2, 3)))
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    assert len(pattern.plot().collections[0].get_offsets()) == 3


def test_a_key_among_the_constants_can_be_used_afterwards():
    """`sparsity` samples no numbers, so f may use its key afterwards."""
    key = jax.random.key(0)
    f = lambda x: x * jax.random.normal(key, x.shape)
    assert sparsity(f, jnp.zeros(3)).entries == 3
    f(jnp.ones(3))


def test_wrong_arguments_are_rejected(sentences):
    """Each error states what was expected, what it got and a repair, and the repair works."""
    x = jnp.zeros(4)
    with pytest.raises(
        TypeError,
        match=r"^sparsity expected .* int32 \(4,\) at x; convert it with .astype",
    ):
        sparsity(jnp.diff, jnp.arange(4))
    sparsity(jnp.diff, jnp.arange(4).astype(jnp.float32))
    with pytest.raises(TypeError, match=r"^sparse_jacobian expected .* int32 \(4,\) at x; convert it with .astype"):
        sparse_jacobian(jnp.diff, jnp.arange(4))
    with pytest.raises(TypeError, match=r"sparse_jacobian expected f to return one array, got a dict"):
        sparse_jacobian(lambda x: {"y": x}, x)
    with pytest.raises(TypeError, match=r"floating-point array, got int32 \(\), which has no derivative"):
        sparsity(jnp.argmax, x)
    pattern = sparsity(jnp.diff, x)
    with pytest.raises(ValueError, match=r"Jacobian of shape \(3, 4\), .*, got x of 5 numbers and float32 \(4,\)"):
        sparse_jacobian(jnp.diff, pattern)(jnp.zeros(5))
    sparse_jacobian(jnp.diff, sparsity(jnp.diff, jnp.zeros(5)))(jnp.zeros(5))
    with pytest.raises(TypeError, match=r"sparse_jacobian expected .*int32"):
        sparse_jacobian(jnp.diff, pattern)(jnp.arange(4))
    with pytest.raises(ValueError, match=r"mode to be 'auto' or 'forward' or 'reverse', got 'backward'"):
        sparse_jacobian(jnp.diff, x, mode="backward")
    with pytest.raises(ValueError, match=r"cols from 0 to 3, .*, got 0 to 4"):
        SparsityPattern([0, 1], [0, 4], (2, 4))
    with pytest.raises(ValueError, match=r"got 2 rows and 1 columns"):
        SparsityPattern([0, 1], [0], (2, 4))
