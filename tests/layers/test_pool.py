"""Pooling: PyTorch, NumPy loops, the derivative at ties, padding in the count, and errors."""

import functools
import re

import arrays
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled
from derivatives import check_second_order, drawn_like
from jax import lax

from jaxblocks import AvgPool, GlobalAvgPool, GlobalMaxPool, MaxPool, avg_pool, max_pool
from jaxblocks.layers import (
    LpPool,
    adaptive_avg_pool,
    global_avg_pool,
    global_max_pool,
    lp_pool,
)

close = functools.partial(arrays.close, tolerance=1e-10)

# One program for each call, where its values are not checked.
avg_pool = compiled(avg_pool)
max_pool = compiled(max_pool)
adaptive_avg_pool = compiled(adaptive_avg_pool)
global_avg_pool = compiled(global_avg_pool)
global_max_pool = compiled(global_max_pool)

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape)


def line(*values):
    return np.array(values, np.float32)[:, None]


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="PyTorch is a reference here; install the parity extra")


def with_ties(*shape):
    """Integers from 0 to 2: nearly every window has several maxima."""
    return RNG.integers(0, 3, shape).astype(np.float64)


def compare(torch, ours, theirs, x):
    """Values and gradients in float64."""
    tensor = torch.tensor(np.moveaxis(x, -1, 1).copy(), requires_grad=True)
    y = theirs(tensor)
    expected = np.moveaxis(y.detach().numpy(), 1, -1)
    weights = normal(*expected.shape)
    y.backward(torch.tensor(np.moveaxis(weights, -1, 1).copy()))
    gradient = np.moveaxis(tensor.grad.numpy(), 1, -1)

    def run(x, weights):
        y, pull = jax.vjp(ours, x)
        return y, pull(weights)[0]

    with jax.enable_x64(True):
        y, pulled = jax.jit(run)(x, weights)
    close(y, expected)
    close(pulled, gradient)


@pytest.mark.parametrize(
    ("sizes", "window_shape", "stride", "padding"),
    [
        ((9, 12), (4, 6), (2, 4), (2, 3)),
        ((4, 5, 6), (2, 3, 2), 2, (1, 0, 1)),
    ],
    ids=str,
)
def test_windows_against_torch(torch, sizes, window_shape, stride, padding):
    """Maximum (with ties) and mean, with and without padding in the count."""
    functional, axes = torch.nn.functional, len(sizes)
    x = with_ties(2, *sizes, 2)
    largest, mean = getattr(functional, f"max_pool{axes}d"), getattr(functional, f"avg_pool{axes}d")
    compare(
        torch,
        lambda x: max_pool(x, window_shape, stride=stride, padding=padding),
        lambda x: largest(x, window_shape, stride, padding),
        x,
    )
    for counted in (True, False):
        compare(
            torch,
            lambda x, c=counted: avg_pool(x, window_shape, stride=stride, padding=padding, count_padding=c),
            lambda x, c=counted: mean(x, window_shape, stride, padding, count_include_pad=c),
            x,
        )


@pytest.mark.parametrize(("sizes", "size"), [((7,), 3), ((5, 4, 3), (2, 4, 1))], ids=str)
def test_bins_against_torch(torch, sizes, size):
    """Bin i of m goes from floor(i n / m) to ceil((i + 1) n / m)."""
    functional, axes = torch.nn.functional, len(sizes)
    x = normal(2, *sizes, 2)
    mean = getattr(functional, f"adaptive_avg_pool{axes}d")
    compare(torch, lambda x: adaptive_avg_pool(x, size), lambda x: mean(x, size), x)


def test_norms_of_windows_against_torch(torch):
    """PyTorch takes powers without magnitudes: of positive entries both are the same."""
    x = np.abs(normal(2, 7, 6, 2)) + 0.1
    for order, window, stride in ((2, (2, 2), None), (3, (3, 2), (2, 1)), (1.5, (2, 3), (1, 2))):
        compare(
            torch,
            lambda x, o=order, w=window, s=stride: lp_pool(x, w, order=o, stride=s),
            lambda x, o=order, w=window, s=stride: torch.nn.functional.lp_pool2d(x, o, w, s),
            x,
        )
    last = compiled(lp_pool)(line(3, 4, -5), 2, ceil_mode=True)  # PyTorch multiplies the last window by the root of 2
    np.testing.assert_allclose(last, line(5, 5), rtol=1e-6)
    np.testing.assert_array_equal(compiled(lp_pool)(line(1, -3, 2, 0), 2, order=np.inf), line(3, 2))
    with pytest.raises(ValueError, match=r"expected order to be a number >= 1, got 0.5; pass one such as order=1"):
        LpPool(2, order=0.5)


def test_global_pools_are_reductions():
    x = normal(2, 3, 4, 5).astype(np.float32)
    for spatial, axes in ((1, (2,)), (2, (1, 2)), (3, (0, 1, 2))):
        np.testing.assert_array_equal(global_max_pool(jnp.asarray(x), spatial), x.max(axes))
        close(global_avg_pool(jnp.asarray(x), spatial), x.mean(axes), tolerance=1e-6)


@pytest.mark.parametrize(("pool", "of_rows"), [(global_max_pool, "max"), (global_avg_pool, "mean")])
def test_masked_positions_have_no_effect_on_global_pools(pool, of_rows):
    """Whatever they contain, in values and derivatives; the result without any valid position is 0."""
    x = (-1 - RNG.uniform(size=(3, 5, 2))).astype(np.float32)  # below 0, which padding must not replace
    mask = np.array([[1, 1, 0, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]], bool)
    expected = [getattr(a[m], of_rows)(0) if m.any() else np.zeros(2) for a, m in zip(x, mask, strict=True)]

    def total(x):
        return jnp.sum(jnp.sin(pool(x, 1, mask=jnp.asarray(mask))))

    def per_row(x):
        rows = [getattr(x[i][np.flatnonzero(mask[i])], of_rows)(0) for i in (0, 2)]
        return jnp.sum(jnp.sin(jnp.stack(rows)))

    derivatives = lambda f: jax.jit(lambda x: (jax.grad(f)(x), jax.hessian(f)(x)))
    with jax.debug_nans(False):
        padded = np.where(mask[..., None], x, np.float32(np.nan))
        close(pool(padded, 1, mask=mask), np.stack(expected), tolerance=1e-6)
        close(derivatives(total)(padded), derivatives(per_row)(x), tolerance=1e-6)


# ---- conventions -------------------------------------------------------------------------------


def test_derivative_at_a_tie_belongs_to_the_first_maximum():
    """The first maximum in the order of the axes; jnp.max over blocks would give 1/3 to each."""
    x = jnp.asarray([[0.0, 1.0], [1.0, 1.0]])[..., None]
    gradient = jax.jit(jax.grad(lambda x: max_pool(x, (2, 2)).sum()))(x)[..., 0]
    np.testing.assert_array_equal(gradient, [[0, 1], [0, 0]])
    column = jnp.asarray([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])[..., None]  # the first row, not the first column
    gradient = jax.jit(jax.grad(lambda x: max_pool(x, (2, 3)).sum()))(column)[..., 0]
    np.testing.assert_array_equal(gradient, [[0, 0, 1], [0, 0, 0]])
    of_first = lambda window, stride: jax.grad(lambda x: max_pool(x, window, stride=stride)[0, 0])(jnp.ones((8, 1)))
    for gradient in jax.jit(lambda: [of_first(6, 6), of_first(7, 7), of_first(5, 1)])():
        np.testing.assert_array_equal(gradient[:, 0], [1] + [0] * 7)


def test_global_maximum_shares_the_derivative_at_a_tie():
    """The derivative is that of jnp.max."""
    gradient = jax.jit(jax.grad(lambda x: global_max_pool(x, 1).sum()))(line(1, 2, 2, 0))
    np.testing.assert_array_equal(gradient[:, 0], [0, 0.5, 0.5, 0])


def test_padding_counts_only_with_count_padding():
    """The mean of a constant is constant, also at the borders; with count_padding it decreases there."""
    ones = jnp.ones((4, 4, 1))
    np.testing.assert_array_equal(avg_pool(ones, (3, 3), stride=1, padding=1), ones)
    close(
        AvgPool((3, 3), stride=1, padding=1, count_padding=True).apply((), ones)[0, :, 0],
        np.array([4, 6, 6, 4]) / 9,
        tolerance=1e-6,
    )


def test_padding_is_never_the_maximum():
    np.testing.assert_array_equal(max_pool(-line(5, 4, 3), 3, stride=1, padding="same")[:, 0], [-4, -3, -3])
    np.testing.assert_array_equal(max_pool(-line(5, 4, 3), 2, stride=1, padding="causal")[:, 0], [-5, -4, -3])


def test_entries_after_the_last_window_are_dropped():
    np.testing.assert_array_equal(max_pool(line(1, 2, 3, 4, 9), 2)[:, 0], [2, 4])
    assert not jax.jit(jax.grad(lambda x: max_pool(x, 2).sum()))(line(1, 2, 3, 4, 9))[4, 0]


def test_nan_and_infinity_affect_their_windows_only():
    """A NaN gives NaN in all windows that contain it, at any position, and in no other window."""
    with jax.debug_nans(False):
        for at in range(6):
            x = line(*range(6))
            x[at] = np.nan
            expected = [at // 3 == i for i in range(2)]
            np.testing.assert_array_equal(np.isnan(max_pool(x, 3))[:, 0], expected)
            np.testing.assert_array_equal(np.isnan(avg_pool(x, 3))[:, 0], expected)
            np.testing.assert_array_equal(np.isnan(adaptive_avg_pool(x, 2))[:, 0], expected)
    np.testing.assert_array_equal(max_pool(line(1, -np.inf, 3, 4), 2)[:, 0], [1, 4])


def test_all_derivatives_exist():
    """Forward over reverse over forward: lax.reduce_window has no such derivative of a maximum."""
    x = jnp.asarray(normal(6, 2), jnp.float32)
    f = lambda x: (max_pool(x, 3, stride=1) ** 3).sum()
    which = jax.jit(jax.jacobian(lambda x: max_pool(x, 3, stride=1)))(x).reshape(8, 12)
    hessian = jax.jit(jax.hessian(f))(x).reshape(12, 12)
    close(hessian, which.T @ np.diag(6 * np.asarray(max_pool(x, 3, stride=1)).ravel()) @ which, tolerance=1e-5)


# Sizes of x and of adjacent windows; entries remain at the end of some axes.
ADJACENT = {
    "9 entries": ((7, 6), (3, 3)),
    "16 entries": ((9, 8), (4, 4)),
    "3d": ((2, 5, 3), (1, 2, 3)),
}


@pytest.mark.parametrize("name", ADJACENT)
def test_derivatives_of_adjacent_windows(name):
    """Against all entries of a window along a last axis: argmax selects the first of equal maxima, as max_pool does."""
    sizes, window = ADJACENT[name]
    n_windows = [n // k for n, k in zip(sizes, window, strict=True)]

    def entries(x):
        for axis, (n, k) in enumerate(zip(n_windows, window, strict=True), 1):
            x = jnp.moveaxis(lax.slice_in_dim(x, 0, n * k, axis=axis), axis, -1)
            x = jnp.moveaxis(x.reshape(*x.shape[:-1], n, k), -2, axis)
        return x.reshape(*x.shape[: len(window) + 2], -1)

    def selected(x):
        parts = entries(x)
        return jnp.take_along_axis(parts, jnp.argmax(parts, -1, keepdims=True), -1)[..., 0]

    with jax.enable_x64(True):
        ties, along = jnp.asarray(with_ties(2, *sizes, 3)), drawn_like(jnp.zeros((2, *sizes, 3)))
        # Twice, so that the derivative of one pool enters that of the other.
        total = lambda most, mean: lambda x: jnp.sum(jnp.sin(most(x) + x.size) * mean(x * x))
        ours = total(lambda x: max_pool(x, window), lambda x: avg_pool(x, window))
        check_second_order(ours, total(selected, lambda x: entries(x).mean(-1)), (ties,), (along,))


def test_gradients_of_adjacent_windows_are_broadcasts():
    """No sum of padded arrays: padding between entries is slow. A maximum of many entries is one axis at a time."""
    for pool, window, padded in ((max_pool, 3, False), (avg_pool, 3, False), (avg_pool, 4, False), (max_pool, 4, True)):
        gradient = jax.grad(lambda x, pool=pool, w=window: pool(x, (w, w)).sum())
        program = jax.jit(gradient).lower(jnp.ones((1, 13, 13, 1))).as_text()
        assert bool(re.search(r"interior = \[[0, ]*[1-9]", program)) == padded, (pool, window)


def test_means_are_summed_in_float32():
    """In bfloat16, 256 + 1 would be 256, and the mean 64."""
    x = jnp.tile(jnp.array([256, 1, 1, 0], jnp.bfloat16), 128)[:, None]
    all_four = lambda x: (avg_pool(x, 512, stride=1), global_avg_pool(x, 1), adaptive_avg_pool(x, 1), avg_pool(x, 512))
    rounding = {"xla_allow_excess_precision": False}  # otherwise XLA may leave out the roundings between sums
    for y in jax.jit(all_four, compiler_options=rounding)(x):
        assert y.dtype == jnp.bfloat16
        assert (y == 64.5).all()


# ---- errors ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("sentences")
def test_wrong_arguments_are_rejected():
    x = np.zeros((8, 3, 32, 32), np.float32)
    for pool, name in ((MaxPool, "MaxPool"), (AvgPool, "AvgPool")):
        for window_shape in (0, (2, 0), "2"):
            with pytest.raises(ValueError, match=f"{name} expected window_shape to be an integer >= 1"):
                pool(window_shape)
        with pytest.raises(ValueError, match=r"span \(4, 4\).*which spans \(3, 32\).*write jnp.moveaxis\(x, 1, -1\)"):
            pool((4, 4)).apply((), x)
        assert jax.eval_shape(pool((4, 4)).apply, (), np.moveaxis(x, 1, -1)).shape == (8, 8, 8, 3)
        with pytest.raises(TypeError, match="x.astype"):
            pool(2).init(jax.random.key(0), np.zeros((4, 1), np.int32))
    for pool in (max_pool, avg_pool):
        with pytest.raises(ValueError, match=r"less padding than its window_shape \(2,\).*reduce the padding"):
            pool(line(1, 2, 3), 2, stride=1, padding=2)
        with pytest.raises(ValueError, match="stride to be an integer >= 1"):
            pool(line(1, 2, 3), 2, stride=0)
        with pytest.raises(ValueError, match=r"with at least 3 axes, got float32 \(3, 1\)"):
            pool(line(1, 2, 3), (2, 2))
        with pytest.raises(TypeError, match="x to be a floating-point (or complex )?array"):
            pool(np.zeros((4, 1), np.int32), 2)
    with pytest.raises(ValueError, match="size to be an integer >= 1"):
        adaptive_avg_pool(line(1, 2, 3), 0)
    with pytest.raises(ValueError, match="at least one position"):
        adaptive_avg_pool(np.zeros((0, 2), np.float32), 1)
    for pool in (global_max_pool, global_avg_pool):
        with pytest.raises(ValueError, match="spatial to be an integer >= 1, got 0"):
            pool(line(1, 2, 3), 0)
        with pytest.raises(ValueError, match="with at least 3 axes"):
            pool(line(1, 2, 3), 2)
        with pytest.raises(TypeError, match="spatial"):
            pool(np.zeros((2, 3, 4), np.float32))
        with pytest.raises(ValueError, match="at least one position"):
            pool(np.zeros((0, 2), np.float32), 1)
        with pytest.raises(TypeError, match="x to be a floating-point (or complex )?array"):
            pool(np.zeros((4, 1), np.int32), 1)
    for pool in (GlobalMaxPool, GlobalAvgPool):
        with pytest.raises(ValueError, match=f"{pool.__name__} expected spatial to be an integer >= 1, got 0"):
            pool(0)
        with pytest.raises(ValueError, match=f"{pool.__name__} expected .*at least 3 axes"):
            pool(2).init(jax.random.key(0), line(1, 2, 3))


@pytest.mark.usefixtures("sentences")
def test_numpy_integers_are_accepted():
    x, two = normal(6, 6, 1).astype(np.float32), np.int64(2)
    np.testing.assert_array_equal(
        max_pool(x, (two, two), stride=two, padding=np.int32(1)), max_pool(x, (2, 2), stride=2, padding=1)
    )
    np.testing.assert_array_equal(compiled(MaxPool(np.int64(3)).apply)((), x), max_pool(x, 3))
    np.testing.assert_array_equal(compiled(GlobalAvgPool(two).apply)((), x), global_avg_pool(x, 2))
    np.testing.assert_array_equal(avg_pool(x, (two, two)), avg_pool(x, (2, 2)))
    np.testing.assert_array_equal(adaptive_avg_pool(x, (two, 3)), adaptive_avg_pool(x, (2, 3)))


@pytest.mark.parametrize("layer", [MaxPool((2, 2)), AvgPool((2, 2)), GlobalMaxPool(2), GlobalAvgPool(2)])
def test_channels_first_gives_a_warning(layer):
    """A warning if channels are clearly first, but not for an image of low height with equal channels and width."""
    x = np.zeros((2, 3, 8, 8), np.float32)
    with pytest.warns(UserWarning, match=r"channels last.*got float32 \(2, 3, 8, 8\).*write jnp.moveaxis\(x, 1, -1\)"):
        layer.init(jax.random.key(0), x)
    layer.init(jax.random.key(0), np.moveaxis(x, 1, -1))
    layer.init(jax.random.key(0), np.zeros((2, 4, 8, 8), np.float32))


# ---- ceil_mode, dilation ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "window_shape", "stride", "dilation", "padding", "ceil_mode"),
    [
        ((10,), 3, 2, 2, 1, False),  # windows overlap, entries do not
        ((9, 10), (2, 3), (3, 4), (1, 2), 1, True),  # a last window on the second axis only
        ((5, 6), (2, 3), 2, 1, 1, True),  # none on the first axis, where it would start in the padding
    ],
    ids=str,
)
def test_dilation_and_ceil_mode_against_torch(torch, sizes, window_shape, stride, dilation, padding, ceil_mode):
    """Values and gradients."""
    functional, axes = torch.nn.functional, len(sizes)
    x = with_ties(2, *sizes, 2)
    options = dict(stride=stride, padding=padding, dilation=dilation, ceil_mode=ceil_mode)
    largest, mean = getattr(functional, f"max_pool{axes}d"), getattr(functional, f"avg_pool{axes}d")
    compare(torch, lambda x: max_pool(x, window_shape, **options), lambda x: largest(x, window_shape, **options), x)
    del options["dilation"]
    for counted in (False, True) if dilation == 1 else ():
        compare(
            torch,
            lambda x, c=counted: avg_pool(x, window_shape, count_padding=c, **options),
            lambda x, c=counted: mean(x, window_shape, count_include_pad=c, **options),
            x,
        )


def test_dilation_and_ceil_mode_by_the_formula():
    """y_i = max_j x_{si + dj} and the mean over the entries that are inside, with windows wider than their stride."""
    x = normal(12)
    starts = np.arange(-2, 10, 2)  # the last window starts at 8 and reaches beyond the end
    entries = [[x[i] for i in start + 3 * np.arange(3) if 0 <= i < 12] for start in starts if start < 10]
    options = dict(stride=2, dilation=3, padding=2, ceil_mode=True)
    y = max_pool(jnp.asarray(x, jnp.float32)[:, None], 3, **options)[:, 0]
    close(y, [max(own) for own in entries], tolerance=1e-6)
    y = avg_pool(jnp.asarray(x, jnp.float32)[:, None], 3, **options)[:, 0]
    close(y, [np.mean(own) for own in entries], tolerance=1e-6)


def test_a_window_of_padding_alone_is_rejected():
    """Padding below the span of a window, but no entry of the dilated window is inside."""
    with pytest.raises(ValueError, match=r"max_pool expected less padding than its window_shape .* or the dilation\."):
        max_pool(line(1), 2, dilation=2, padding=1)
    np.testing.assert_array_equal(max_pool(line(1), 2, padding=1, stride=1)[:, 0], [1, 1])


def test_padding_behind_only_and_same_padding_with_an_odd_total():
    """By default the mean divides by the entries inside; of an odd total, "same" has the larger part behind."""
    x = jnp.array([1.0, 3.0, 2.0, 8.0])[:, None]
    behind = avg_pool(x, 2, stride=1, padding=((0, 1),))[:, 0]
    np.testing.assert_allclose(behind, [2, 2.5, 5, 8])
    np.testing.assert_allclose(avg_pool(x, 2, stride=1, padding="same")[:, 0], behind)
    np.testing.assert_allclose(avg_pool(x, 2, stride=1, padding=((1, 0),))[:, 0], [1, 2, 2.5, 5])
    np.testing.assert_allclose(max_pool(x, 2, stride=1, padding="same")[:, 0], [3, 3, 8, 8])
    counted = avg_pool(x, 2, stride=1, padding=((0, 1),), count_padding=True)[:, 0]
    np.testing.assert_allclose(counted, [2, 2.5, 5, 4])


def test_the_gradient_of_small_windows_stores_no_array_between_the_axes():
    """All axes at once: the largest temporary is the gradient of one operand; by axis it would be two."""
    x = np.zeros((4, 16, 16, 8), np.float32)
    program = jax.jit(jax.grad(lambda x: jnp.sum(max_pool(jnp.cumsum(x, 1), (2, 2)) ** 2))).lower(x).compile()
    assert program.memory_analysis().temp_size_in_bytes < 1.5 * x.nbytes
