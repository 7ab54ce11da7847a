"""Jacobians of `lax.reduce_window`, which are computed by sums over windows with masks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxblocks.ad import planning
from jaxblocks.ad.jacobians import jacobian

RANDOM = np.random.RandomState(0)
TIES, DISTINCT = RANDOM.randint(0, 3, (5, 6)).astype(np.float32), RANDOM.permutation(30).reshape(5, 6) / np.float32(8)

# point, window, strides, padding, dilation of the operand and of the window
WINDOWS = {
    "adjacent": (TIES, (2, 3), (2, 3), "VALID", 1, 1),
    "adjacent and padded": (TIES, (2, 4), (2, 4), ((1, 0), (1, 2)), 1, 1),
    "overlapping": (TIES, (3, 2), (2, 1), "SAME", 1, 1),
    "with gaps": (TIES, (1, 2), (2, 3), "VALID", 1, 1),
    "dilated windows": (DISTINCT, (2, 2), (2, 2), "VALID", 1, 2),
    "dilated operand": (TIES, (2, 2), (2, 2), "VALID", 2, 1),
    "no window": (TIES[:2], (3, 2), (2, 2), "VALID", 1, 1),
    "33 entries": (DISTINCT, (3, 11), (2, 2), ((0, 0), (3, 3)), 1, 1),
}


@pytest.mark.parametrize(("operation", "start"), [(lax.max, -np.inf), (lax.min, np.inf), (lax.add, 0.0)])
def test_equals_the_jacobian_of_jax_for_all_windows(operation, start):
    """Also where entries of a window are equal: then the first of them is selected, as in reverse mode."""

    def both(point, window, strides, padding, dilation, window_dilation):
        def f(x):
            of = (window, strides, padding, (dilation,) * 2, (window_dilation,) * 2)
            return lax.reduce_window(x, np.float32(start), operation, *of)

        exact = jax.jacfwd(f) if point is DISTINCT else jax.jacrev(f)  # JAX cannot transpose dilated windows
        modes = ("reverse",) if point is TIES and dilation > 1 else ("forward", "reverse")  # this is the stock program
        if window_dilation > 1 and operation is lax.add:
            exact = jax.jacrev(f)
        return [exact(point), *(jacobian(f, mode=mode)(point) for mode in modes)]

    # Minima are selected as maxima are.
    chosen = ("adjacent", "overlapping") if operation is lax.min else WINDOWS
    for name, (exact, *ours) in jax.jit(lambda: {key: both(*WINDOWS[key]) for key in chosen})().items():
        for found in ours:
            np.testing.assert_array_equal(found, exact, err_msg=name)


def autoencoder(pool):
    k1, k2, w, v = (RANDOM.randn(*shape).astype(np.float32) for shape in [(3, 3, 1, 4), (3, 3, 4, 1), (64, 2), (2, 64)])

    def conv(x, kernel):
        return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def f(x):
        h = pool(jnp.tanh(conv(x[None, :, :, None], k1)))
        h = (jnp.tanh(h.reshape(-1) @ w / 8) @ v).reshape(1, 4, 4, 4)
        return conv(jnp.repeat(jnp.repeat(jnp.tanh(h), 2, 1), 2, 2), k2)[0, :, :, 0]

    return f


def windows(start, operation):
    return lambda x: lax.reduce_window(x, np.float32(start), operation, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


@pytest.mark.cpu
@pytest.mark.parametrize("pool", [windows(-np.inf, lax.max), windows(0, lax.add)], ids=["max", "sum"])
def test_a_bracketing_with_pools_saves_memory(pool):
    """The planned Jacobian of an autoencoder on images; jax.jacrev scatters for each seed of a maximum."""
    f, x = autoencoder(pool), RANDOM.randn(8, 8).astype(np.float32)
    ours, stock = (jax.jit(j).lower(x).compile() for j in (jacobian(f), jax.jacrev(f)))
    np.testing.assert_allclose(ours(x), stock(x), rtol=1e-4, atol=1e-4)
    bytes_of = lambda program: program.memory_analysis().temp_size_in_bytes
    assert 60 * bytes_of(ours) < bytes_of(stock)


def test_a_jacobian_with_inner_axes_of_length_one_is_not_copied():
    """The compiler would copy the product to reshape it; in blocks, all temporaries are a quarter of the Jacobian."""
    w, v = (RANDOM.randn(*shape).astype(np.float32) for shape in [(400, 2), (2, 400)])
    x = RANDOM.randn(2, 20, 20, 1).astype(np.float32)
    f = lambda x: jnp.tanh(jnp.tanh(x.reshape(400) @ w) @ v).reshape(1, 20, 1, 20)

    def all_of(derivative):
        program = jax.value_and_grad(lambda x: jnp.mean(derivative(f)(x[1]) ** 2))
        return jax.vmap(derivative(f))(x), program(x)

    both = jax.jit(lambda: (all_of(jacobian), all_of(jax.jacrev)))()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *both)
    program = jax.jit(jacobian(f)).lower(x[0]).compile()
    assert program(x[0]).shape == (1, 20, 1, 20, 20, 20, 1)
    assert 4 * program.memory_analysis().temp_size_in_bytes < 4 * 400 * 400


def test_reverse_mode_selects_once_for_all_seeds():
    """A classifier with few outputs, whose plan is reverse mode: less than a third of the memory of jax.jacrev."""
    pool, w = windows(-np.inf, lax.max), RANDOM.randn(128, 8).astype(np.float32)
    f = lambda x: jnp.tanh(pool(jnp.sin(x))).reshape(-1) @ w
    x = RANDOM.randn(1, 16, 16, 2).astype(np.float32)
    ours, stock = (jax.jit(j).lower(x).compile() for j in (jacobian(f), jax.jacrev(f)))
    np.testing.assert_allclose(ours(x), stock(x), rtol=1e-6, atol=1e-6)
    assert 3 * ours.memory_analysis().temp_size_in_bytes < stock.memory_analysis().temp_size_in_bytes
    linear = planning.linearized(lambda x: ([f(x)], None), [x])
    assert "select_and_gather_add" not in {equation.primitive.name for equation in linear.jaxpr.eqns}
