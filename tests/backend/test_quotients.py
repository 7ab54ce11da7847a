"""Quotients, logarithms and roots: derivatives where the square of the argument is not representable."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled
from derivatives import derivative_along, up_to_second

from jaxblocks.backend.quotients import divide, log, norm, reciprocal, rsqrt, unit_vector, vanishes

# Functions of t, of moderate size, with arguments from 1e-34 to 1e34; beside each the same in plain NumPy terms.
FUNCTIONS = {
    "divide": (
        lambda t: divide(jnp.exp(t) * jnp.sin(t), jnp.exp(t) * (2 + jnp.cos(t))),
        lambda t: np.sin(t) / (2 + np.cos(t)),
    ),
    "reciprocal": (lambda t: jnp.exp(t) * jnp.sin(t) * reciprocal(jnp.exp(t)), np.sin),
    "log": (lambda t: log(jnp.exp(t) * (2 + jnp.cos(t))), lambda t: t + np.log(2 + np.cos(t))),
    "rsqrt": (lambda t: jnp.exp(t / 2) * rsqrt(jnp.exp(t) * (2 + jnp.cos(t))), lambda t: (2 + np.cos(t)) ** -0.5),
}


def test_second_derivatives_where_squares_overflow_or_underflow():
    t = np.float32([-78.3, -60.2, -45.7, -20.4, 0.6, 20.9, 44.6, 61.7, 78.6])
    run = jax.jit(lambda t: {name: jax.vmap(up_to_second(ours))(t) for name, (ours, _) in FUNCTIONS.items()})
    for name, (value, slope, *bends) in run(t).items():
        plain = FUNCTIONS[name][1]
        expected = [plain(np.float64(t)), *(derivative_along(plain, np.float64(t), 1.0, order) for order in (1, 2))]
        for found, right in zip((value, slope, *bends), [*expected, expected[-1], expected[-1]], strict=True):
            # exp(t) of t = 78 has 5 digits.
            np.testing.assert_allclose(found, right, rtol=2e-3, atol=2e-4, err_msg=name)


def test_a_quotient_of_a_constant_denominator_has_no_term_of_it():
    """0 times an infinite quotient would be NaN."""
    _, tangent = jax.jvp(lambda a: divide(a * a, jnp.ones(())), (jnp.float32(1e30),), (jnp.float32(1),))
    assert tangent == np.float32(2e30)


def test_unit_vectors_of_every_length():
    x = jnp.asarray(np.float32([[3, 4]]) * np.float32([[1e-37], [1e-20], [1], [1e30]]))
    np.testing.assert_allclose(unit_vector(x), np.full((4, 2), [0.6, 0.8]), rtol=1e-6)
    np.testing.assert_allclose(unit_vector(x, 0)[:, 0], [0, 0, 0, 1], atol=1e-7)
    jacobian = compiled(jax.vmap(jax.jacobian(unit_vector)))(np.concatenate([x[1:3], np.zeros((1, 2), np.float32)]))
    tangent = np.array([[0.64, -0.48], [-0.48, 0.36]])  # (1 - n n^T) / |x|
    np.testing.assert_allclose(jacobian[0] * 5e-20, tangent, rtol=1e-5)
    np.testing.assert_allclose(jacobian[1] * 5, tangent, rtol=1e-5)
    np.testing.assert_array_equal(jacobian[2], np.eye(2))


def test_norms_of_every_length():
    """Value, gradient and Hessian in units of the length, from the formula; 0 has derivatives of 0."""
    lengths = np.float32([2.0**-100, 2.0**-30, 1, 2.0**40, 2.0**100])
    x = np.float32([3, -4, 0.5])

    @jax.jit
    def run(points, long):
        of = lambda order: lambda x: norm(x, 0, order)
        return [(jax.vmap(up_to_second(of(order)))(points), jax.grad(of(order))(long)) for order in (1.5, 2)]

    points = np.concatenate([lengths[:, None] * x, np.zeros((1, 3), np.float32)])
    found = run(points, np.float32(2.0**125) * x)  # a length of 1.7e38
    for order, (derivatives, longest) in zip((1.5, 2), found, strict=True):
        value, gradient, *hessians = map(np.asarray, derivatives)
        expected = (np.abs(x) ** order).sum() ** (1 / order)
        unit_x = np.abs(x) / expected
        slope = np.sign(x) * unit_x ** (order - 1)
        bend = (order - 1) / expected * (np.diag(unit_x ** (order - 2)) - np.outer(slope, slope))
        np.testing.assert_allclose(value[:5] / lengths, np.full(5, expected), rtol=1e-6)
        np.testing.assert_allclose(gradient[:5], np.tile(slope, (5, 1)), rtol=2e-6)
        for hessian in hessians:
            np.testing.assert_allclose(hessian[:5] * lengths[:, None, None], np.tile(bend, (5, 1, 1)), atol=1e-6)
            assert not hessian[5].any()
        assert not value[5] and not gradient[5].any()
        np.testing.assert_allclose(longest, slope, rtol=2e-6)


@pytest.mark.parametrize(
    ("dtype", "order"), [(jnp.float16, 6), (jnp.float16, 20), (jnp.float32, 40), (jnp.float32, 100)]
)
def test_powers_of_entries_do_not_overflow(dtype, order):
    """In units of the largest entry, which is up to 2, or up to 16 near the largest number: 1.9^20 > 65504."""
    run = jax.jit(jax.value_and_grad(lambda x: norm(x, 0, order)))
    for largest in (1.9, 0.75 * float(jnp.finfo(dtype).max)):
        value, gradient = run(np.asarray([largest, -largest / 2], dtype))
        expected = largest * (1 + 0.5**order) ** (1 / order)
        np.testing.assert_allclose(value, expected, rtol=3 * float(jnp.finfo(dtype).eps))
        slope = [1, -1] * (np.array([1, 0.5]) / (1 + 0.5**order) ** (1 / order)) ** (order - 1)
        np.testing.assert_allclose(gradient, slope, rtol=10 * float(jnp.finfo(dtype).eps), atol=1e-7)
    assert norm(jnp.asarray([-jnp.inf, 1], dtype), 0, order) == jnp.inf


def test_sums_of_many_powers_do_not_overflow_in_half_precision():
    for n, order in ((6000, 4), (20_000, 2)):
        found = norm(jnp.full(n, 1.9, jnp.float16), order=order)
        assert found.dtype == jnp.float16
        expected = float(np.float16(1.9)) * n ** (1 / order)
        np.testing.assert_allclose(found, expected, rtol=float(jnp.finfo(jnp.float16).eps))


def test_an_empty_norm_is_zero():
    assert [float(norm(jnp.zeros(0), order=order)) for order in (1, 2, 100, np.inf)] == [0] * 4


@pytest.mark.parametrize("order", [100, 300, 1e6])
def test_norms_of_large_orders_are_nearly_the_largest_entry(order):
    x = np.float32([[1.5, -3, 2], [1.75 * 2.0**-100, 0, 0], [0, 0, 0]])
    value, gradient = compiled(jax.vmap(jax.value_and_grad(lambda x: norm(x, 0, order))))(x)
    np.testing.assert_allclose(value, [3, 1.75 * 2.0**-100, 0], rtol=1e-6)
    np.testing.assert_allclose(gradient, [[0, -1, 0], [1, 0, 0], [0, 0, 0]], atol=1e-6)
    assert norm(jnp.array([1, -jnp.inf]), order=order) == jnp.inf


def test_vectors_without_entries():
    x = jnp.zeros((2, 0))
    assert unit_vector(x).shape == (2, 0)
    np.testing.assert_array_equal(norm(x, -1), np.zeros(2))


def test_what_has_no_reciprocal_vanishes():
    x = np.float32([0, 1e-39, -1e-39, 1.2e-38, -1.2e-38])
    np.testing.assert_array_equal(vanishes(jnp.asarray(x)), [True, True, True, False, False])
