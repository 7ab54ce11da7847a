"""The dense form of a linear layer, and receptive fields."""

import functools

import arrays
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import toeplitz

from jaxblocks import (
    Conv,
    Dense,
    DepthwiseConv,
    GlobalAvgPool,
    MaxPool,
    Serial,
    StatefulLayer,
    avg_pool,
    conv,
    conv_transpose,
    max_pool,
    relu,
)
from jaxblocks.inspection.structure import as_dense, receptive_field

close = functools.partial(arrays.close, tolerance=1e-12)

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape)


def params_for(net, x):
    """Random params of a net."""
    shapes = jax.eval_shape(net.init, jax.random.key(0), x)
    return jax.tree.map(lambda p: normal(*p.shape).astype(p.dtype), shapes)


def test_a_convolution_is_a_banded_toeplitz_matrix():
    """The matrix (d_in - 2, d_in) has constant diagonals: 80 entries, 24 nonzero, from 3 params."""
    a, x = normal(3), normal(10)
    with jax.enable_x64(True):
        run = lambda x: conv(x, a[:, None, None])
        A = np.asarray(as_dense(run, (10, 1)))
        expected = toeplitz([a[0], *[0] * 7], [*a, *[0] * 7])
        np.testing.assert_array_equal(A, expected)
        assert A.size == 80 and np.count_nonzero(A) == 24 and len(set(A[A != 0].tolist())) == 3
        y, jacobian = map(np.asarray, jax.jit(lambda x: (run(x), jax.jacfwd(run)(x)))(x[:, None]))
        close(y[:, 0], A @ x)
        np.testing.assert_array_equal(A, jacobian[:, 0, :, 0])
        # the flipped kernel of the mathematical convolution gives another matrix
        assert not np.allclose(as_dense(lambda x: run(x[::-1])[::-1], (10, 1)), expected)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (Conv(2, (2, 3), stride=(1, 2), padding=1, use_bias=False, param_dtype=jnp.float64), (3, 5, 2)),
        (
            DepthwiseConv((2, 2), padding="same", padding_mode="circular", use_bias=False, param_dtype=jnp.float64),
            (3, 4, 2),
        ),
    ],
)
def test_linear_layer_equals_its_matrix(layer, shape):
    """f(x) = A x, with arrays in row-major order."""
    with jax.enable_x64(True):
        x = normal(*shape)
        params = params_for(layer, x)
        A, y = jax.jit(lambda params, x: (as_dense(layer, shape, params), layer.apply(params, x)))(params, x)
        A, y = np.asarray(A), np.asarray(y)
        assert A.shape == (y.size, x.size)
        close(y.ravel(), A @ x.ravel())


def test_matrix_of_a_dense_layer_repeats_the_kernel_for_each_example():
    kernel = normal(3, 2).astype(np.float32)
    A = as_dense(Dense(2, use_bias=False), (4, 3), {"kernel": jnp.asarray(kernel)})
    np.testing.assert_array_equal(A, np.kron(np.eye(4), kernel.T))


def test_adjoint_is_the_transposed_matrix():
    """as_dense(conv_transpose) = as_dense(conv)^T, and not its inverse."""
    kernel = jnp.asarray(normal(3, 2, 4), jnp.float32)
    A = np.asarray(as_dense(lambda x: conv(x, kernel, stride=2, padding=1), (5, 2)))
    B = np.asarray(as_dense(lambda y: conv_transpose(y, kernel, stride=2, padding=1), (3, 4)))
    np.testing.assert_array_equal(B, A.T)
    assert not np.allclose(B @ A, np.eye(10))


def test_pools_as_matrices():
    np.testing.assert_array_equal(
        as_dense(lambda x: avg_pool(x, 2), (5, 1)), [[0.5, 0.5, 0, 0, 0], [0, 0, 0.5, 0.5, 0]]
    )
    close(as_dense(GlobalAvgPool(2), (2, 3, 1), ()), np.full((1, 6), np.float32(1 / 6)), tolerance=1e-6)


def test_linear_part_of_an_affine_layer():
    """f(x) = A x + f(0)."""
    layer = Dense(2)
    params = {"kernel": jnp.asarray(normal(3, 2), jnp.float32), "bias": jnp.array([5.0, -1.0])}
    np.testing.assert_array_equal(as_dense(layer, (3,), params), params["kernel"].T)
    np.testing.assert_array_equal(layer.apply(params, jnp.zeros(3)), params["bias"])
    assert as_dense(lambda x: x.sum(), ()).tolist() == [[1.0]]


def test_works_under_jit_and_in_half_precision():
    params = {"kernel": jnp.ones((2, 1, 1))}
    layer = Conv(1, 2, use_bias=False, dtype=jnp.bfloat16)
    A = jax.jit(lambda p: as_dense(layer, (3, 1), p))(params)
    np.testing.assert_array_equal(A.astype(jnp.float32), [[1, 1, 0], [0, 1, 1]])
    odd = {"kernel": jnp.asarray(normal(2, 1, 1), jnp.float32)}
    close(as_dense(layer, (3, 1), odd).astype(jnp.float32)[0, :2], odd["kernel"][:, 0, 0], tolerance=1e-2)


@pytest.mark.parametrize(
    "f",
    [
        relu,
        lambda x: jnp.clip(x, -6, 6),
        lambda x: max_pool(x, 2),
    ],
)
def test_functions_that_are_not_affine_are_rejected(f):
    with pytest.raises(ValueError, match=r"expected an affine layer.*differs from A x \+ f\(0\).*use jax.jacobian"):
        as_dense(f, (4, 2))


@pytest.mark.parametrize("shape", [(), (1,), (2,)])
def test_kinks_at_zero_are_no_affine_functions(shape):
    """The derivative at 0 is that on one side, where random numbers may all be."""
    bounded = lambda x: jnp.minimum(x, 6.0), lambda x: jnp.maximum(x, -6.0)
    for f in (jnp.abs, lambda x: -jnp.abs(x), lambda x: jnp.where(x < 0, 2 * x, x), *bounded):
        with pytest.raises(ValueError, match="expected an affine layer"):
            as_dense(f, shape)
    with pytest.raises(TypeError, match=r"^as_dense expected a layer of floating-point outputs, got int32"):
        as_dense(lambda x: (x > 0).astype(jnp.int32), shape)


@pytest.mark.parametrize("call", [lambda f: as_dense(f, (3,)), lambda f: receptive_field(f, (3,), 1)])
def test_layers_of_several_outputs_are_rejected(call):
    with pytest.raises(TypeError, match=r"a layer of one output, got .*; select one of them: lambda x: layer.apply"):
        call(lambda x: (x, x))
    call(lambda x: (x, x)[0])


def test_a_layer_may_return_a_constant_of_numpy():
    np.testing.assert_array_equal(as_dense(lambda x: np.ones(3, np.float32), (2,)), np.zeros((3, 2)))


def test_layers_with_state_are_rejected():
    layer = StatefulLayer(lambda key, x: ((), 2.0), lambda params, state, x: (x * jnp.float32(state), state))
    with pytest.raises(TypeError, match=r"lambda x: layer.apply\(params, state, x\)\[0\]"):
        as_dense(layer, (2,))
    np.testing.assert_array_equal(as_dense(lambda x: layer.apply((), 2.0, x)[0], (2,)), 2 * np.eye(2))


def test_receptive_field_of_stacked_convolutions():
    """2 L + 1 positions for L layers with windows of 3, for piecewise linear and smooth activations."""
    depth = 2
    for between in (relu, jnp.tanh):
        net = Serial(*[layer for _ in range(depth) for layer in (Conv(8, 3, padding="same"), between)])
        params = params_for(net, np.zeros((13, 2), np.float32))
        field = np.asarray(receptive_field(net, (13, 2), 6, params))
        assert field.shape == (13, 2) and field.dtype == bool
        np.testing.assert_array_equal(field.all(-1), abs(np.arange(13) - 6) <= depth)
        assert field.sum() == 2 * (2 * depth + 1)


def test_receptive_fields_of_other_layers():
    """Dilations increase the field; causal layers use the past, depthwise layers one channel; strides multiply."""
    ones = jnp.ones((3, 1, 1))

    def dilated(x):
        for d in (1, 2, 4):
            x = conv(x, ones, dilation=d, padding="same")
        return x

    assert receptive_field(dilated, (21, 1), 10).sum() == 1 + 2 * (1 + 2 + 4)
    causal = receptive_field(lambda x: conv(x, ones, padding="causal"), (6, 1), 3)[:, 0]
    np.testing.assert_array_equal(causal, [False, True, True, True, False, False])
    depthwise = receptive_field(lambda x: conv(x, jnp.ones((3, 1, 2)), groups=2), (5, 2), (1, 1))
    assert not depthwise[:, 0].any() and depthwise[:, 1].sum() == 3
    pooled = receptive_field(Serial(MaxPool((2, 2)), MaxPool((2, 2))), (8, 8, 1), (1, 0), ((), ()))[..., 0]
    assert not pooled[:4].any() and not pooled[:, 4:].any() and pooled.any()
    assert receptive_field(lambda x: x, (3, 4), (1, -1)).sum() == 1


def test_positions_outside_the_output_are_rejected():
    blur = lambda x: conv(x, jnp.ones((3, 1, 1)))
    for position in (7, (0, 1), (0, 0, 0), -8):
        with pytest.raises(ValueError, match=r"position in the output, whose shape is \(7, 1\)"):
            receptive_field(blur, (9, 1), position)
    assert receptive_field(blur, (9, 1), 6).sum() == 3
