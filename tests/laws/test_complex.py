"""Complex numbers: each layer computes its formula with them, or rejects them by a sentence; training descends."""

import contextlib
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from arrays import close, same
from compiled import compiled
from zoo import DISTINCT, ZOO

import jaxblocks as jb
from jaxblocks import AvgPool, Conv, Dense, DepthwiseConv, Flatten, Serial, initializers, stateful
from jaxblocks.core.lifting import declared_by
from jaxblocks.interop import load_torch
from jaxblocks.layers import ModReLU, mod_relu
from jaxblocks.losses import l1_penalty, l2_penalty, soft_threshold
from jaxblocks.training import (
    ema_params,
    get_norms,
    init_train_state,
    kfac,
    load_checkpoint,
    save_checkpoint,
    track_norms,
)
from jaxblocks.training.step.objective import steepest_ascent

COMPLEX = jnp.complex64
ACCEPTED = {
    "AlphaDropout",  # in evaluation
    "AvgPool",
    "Bias",
    "Conv",
    "ConvTranspose",
    "Dense",
    "DepthwiseConv",
    "Dropout",
    "FeatureDropout",
    "Flatten",
    "GlobalAvgPool",
    "ModReLU",
    "StochasticDepth",
}


def numbers(seed, *shape, dtype=np.complex64):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)


def reals(seed, *shape):
    return numbers(seed, *shape).real


def made_of_public_layers(row):
    return not re.search("Center|Noise|TanhCell", repr(row.layer))  # made for the tests


ROWS = {name: ZOO[name] for name in DISTINCT if made_of_public_layers(ZOO[name])}


def call(row, params, state, inputs):
    return stateful(row.layer).apply(params, state, *inputs, **row.side)[0]


def initial(row, *inputs):
    side = {name: row.side[name] for name in row.side if name in declared_by(row.layer.init)}
    return stateful(row.layer).init(jax.random.key(0), *inputs, **side)


def drawn(tree, draw):
    """The floating-point leaves of a tree replaced by what is drawn for their number and their shape."""
    leaves, structure = jax.tree.flatten(tree)
    is_floating = lambda leaf: jnp.issubdtype(leaf.dtype, jnp.floating)
    return structure.unflatten([draw(i, *leaf.shape) if is_floating(leaf) else leaf for i, leaf in enumerate(leaves)])


def refused(f, *args):
    """Whether a call is refused for the shapes of its arguments, by a sentence about complex numbers."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(pytest.raises((TypeError, ValueError), match=r"^\w+ expected .*complex"))
        jax.eval_shape(f, *args)
        stack.pop_all()
        return False
    return True


@functools.cache
def rows_by_refusal():
    """The names of the rows with floating-point inputs, by what is refused: complex inputs, or complex params too."""
    accepted, with_complex_params = {}, []
    for name, row in ROWS.items():
        inputs = row.inputs()
        given = drawn(inputs, numbers)
        if not any(map(jnp.iscomplexobj, given)):
            continue
        params, state = jax.eval_shape(functools.partial(initial, row), *inputs)
        own = drawn(params, numbers)
        if not refused(lambda *x, row=row: call(row, *initial(row, *x), x), *given):
            accepted[name] = (params, state)
            if jax.tree.leaves(params) and not refused(functools.partial(call, row), own, state, given):
                with_complex_params.append(name)
        if jax.tree.leaves(params):  # real inputs would lose the imaginary parts of params
            assert refused(functools.partial(call, row), own, state, inputs), name
    return accepted, with_complex_params


@pytest.mark.usefixtures("sentences")
def test_layers_that_take_complex_numbers():
    """All others reject them, by sentences about complex numbers and without warnings."""
    accepted, with_complex_params = rows_by_refusal()
    combinators = {"Frozen", "GLU", "GraphMapFeatures", "Parallel", "Repeat", "Residual", "Serial", "SpectralNorm"}
    combinators |= {"WeightNorm", "Wire"}
    assert {ROWS[name].public for name in accepted} - {""} == ACCEPTED | combinators
    # WeightNorm and SpectralNorm of real kernels; the biases of ModReLU are real.
    real = {"SpectralNorm", "WeightNorm", "ModReLU"}
    with_params = {ROWS[name].public for name, (params, _) in accepted.items() if jax.tree.leaves(params)}
    assert {ROWS[name].public for name in with_complex_params} == with_params - real - {""}


@pytest.mark.usefixtures("sentences")
def test_layers_compute_their_formula():
    """The formulas of the zoo, in NumPy, of complex inputs, with real params and where possible with complex ones."""
    accepted, with_complex_params = rows_by_refusal()
    for name, (params, state) in accepted.items():
        row = ROWS[name]
        inputs = drawn(row.inputs(), numbers)
        if jax.tree.leaves(state):
            params, state = compiled(functools.partial(initial, row))(*row.inputs())
        for own in [drawn(params, reals)] * (not state) + [drawn(params, numbers)] * (name in with_complex_params):
            close(compiled(functools.partial(call, row))(own, state, inputs), row.reference(own, *inputs), 2e-5)


# ---- a net against its real and imaginary parts ------------------------------------------------

NET = Serial(
    Conv(2, (2, 2), stride=2, param_dtype=COMPLEX),
    ModReLU(bias_init=initializers.constant(-0.3)),
    DepthwiseConv((2, 2), padding="same", param_dtype=COMPLEX),
    AvgPool((2, 1)),
    Flatten(2),
    Dense(2, param_dtype=COMPLEX),
)


def product(f, x, w, *bias):
    """A bilinear map of pairs of real numbers, (a + ib)(c + id) = ac - bd + i(ad + bc)."""
    (a, b), (c, d) = x, w
    y = f(a, c) - f(b, d), f(a, d) + f(b, c)
    return tuple(one + part for one, part in zip(y, *bias, strict=True)) if bias else y


def pair_net(params, x):
    """The net on pairs of real arrays, by formulas of real numbers; of real layers only the convolutions."""
    conv, modulus, depthwise, _, _, dense = params
    y = product(lambda x, w: jb.conv(x, w, stride=2), x, conv["kernel"])
    y = tuple(part + bias[None, None, None] for part, bias in zip(y, conv["bias"], strict=True))
    size = jnp.sqrt(y[0] ** 2 + y[1] ** 2)
    factor = jnp.maximum(size + modulus["bias"][None, None, None], 0) / size
    y = tuple(factor * part for part in y)
    y = product(lambda x, w: jb.conv(x, w, groups=2, padding="same"), y, depthwise["kernel"])
    y = tuple(part + bias[None, None, None] for part, bias in zip(y, depthwise["bias"], strict=True))
    y = tuple((part[:, 0] + part[:, 1]).reshape(part.shape[0], -1) / 2 for part in y)
    y = product(jnp.matmul, y, dense["kernel"])
    return tuple(part + bias[None] for part, bias in zip(y, dense["bias"], strict=True))


def as_pairs(tree):
    return jax.tree.map(lambda z: (z.real, z.imag) if jnp.iscomplexobj(z) else z, tree)


def test_all_derivatives_are_those_of_real_and_imaginary_parts():
    """Values, gradients (after the conjugate), pushed tangents and Hessian-vector products, in float64."""
    with jax.enable_x64(True):
        draw = functools.partial(numbers, dtype=np.complex128)
        x, y = draw(0, 3, 5, 5, 1), draw(1, 3, 2)
        shapes = jax.eval_shape(NET.init, jax.random.key(0), jax.ShapeDtypeStruct(x.shape, COMPLEX))
        leaves, structure = jax.tree.flatten(shapes)
        params, v = (
            structure.unflatten(
                [
                    draw(seed + i, *leaf.shape) if leaf.dtype.kind == "c" else draw(seed + i, *leaf.shape).real
                    for i, leaf in enumerate(leaves)
                ]
            )
            for seed in (2, 20)
        )

        def loss(params):
            return (jb.mse(NET.apply(params, x), y) + jb.mae(NET.apply(params, x), y)).mean() + l2_penalty(params)

        def pair_loss(params):
            outputs = pair_net(params, as_pairs(x))
            errors = [(a - b) ** 2 for a, b in zip(outputs, as_pairs(y), strict=True)]
            squares = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))
            return (sum(errors) + jnp.sqrt(sum(errors))).mean() + squares

        def derivatives(loss, ascent, params, v):
            gradient = lambda params: ascent(jax.grad(loss)(params))
            return loss(params), *jax.jvp(gradient, (params,), (v,)), jax.jvp(loss, (params,), (v,))[1]

        got = compiled(functools.partial(derivatives, loss, steepest_ascent))(params, v)
        expected = compiled(functools.partial(derivatives, pair_loss, lambda g: g))(as_pairs(params), as_pairs(v))
        close(as_pairs(got), expected, 1e-10)


def test_values_and_gradients_are_those_of_pytorch():
    """PyTorch's gradient is the direction of steepest ascent; `load_torch` keeps complex weights."""
    torch = pytest.importorskip("torch", reason="requires PyTorch; run make parity")
    net = Serial(Conv(2, (2, 2), param_dtype=COMPLEX), Flatten(2), Dense(3, param_dtype=COMPLEX))
    torch.manual_seed(0)
    conv, dense = (
        layer(*sizes, dtype=torch.cfloat) for layer, sizes in ((torch.nn.Conv2d, (1, 2, 2)), (torch.nn.Linear, (8, 3)))
    )
    module = torch.nn.ModuleDict({"0": conv, "2": dense})
    x = numbers(0, 4, 3, 3, 1)
    params = load_torch(net, module.state_dict(), {"*": "*"}, x)
    assert params[0]["kernel"].dtype == COMPLEX
    y = dense(conv(torch.tensor(x).movedim(-1, 1)).movedim(1, -1).flatten(1))
    (y.abs() ** 2 + (y * y).real).mean().backward()

    def loss(params):
        y = net.apply(params, x)
        return (jnp.abs(y) ** 2 + (y * y).real).mean()

    close(compiled(net.apply)(params, x), y.detach().numpy(), 1e-5)
    gradient = compiled(lambda params: steepest_ascent(jax.grad(loss)(params)))(params)
    close(gradient[0]["kernel"], conv.weight.grad.movedim((0, 1), (3, 2)).numpy(), 1e-5)
    close(gradient[2]["kernel"], dense.weight.grad.T.numpy(), 1e-5)


# ---- modReLU ----------------------------------------------------------------------------------


def test_mod_relu_of_real_numbers_is_the_soft_threshold():
    x = jnp.linspace(-2.0, 2.0, 9)[:, None]
    close(mod_relu(x, jnp.array([-0.75])), np.asarray(soft_threshold(x, 0.75)), 1e-6)


def test_derivatives_of_mod_relu_at_zero_are_those_that_are_stated():
    """0 for a bias below 0, else those of the identity, for three features at once."""
    z, v = np.zeros(3, np.complex64), np.full(3, 2 + 1j, np.complex64)
    bias, slope = np.float32([-0.5, 0, 0.5]), np.float32([0, 1, 1])

    @compiled
    def derivatives(z, v, bias):
        push = lambda z: jax.jvp(lambda z: mod_relu(z, bias), (z,), (v,))
        of_bias = jax.grad(lambda b: (jnp.abs(mod_relu(z, b)) ** 2).sum())(bias)
        return *push(z), jax.vjp(lambda z: mod_relu(z, bias), z)[1](v)[0], jax.jvp(push, (z,), (v,))[1][1], of_bias

    for got, expected in zip(derivatives(z, v, bias), (z, slope * v, slope * v, 0 * v, 0 * bias), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_mod_relu_scales_with_its_argument():
    """y(s z, s b) = s y(z, b) with the derivative of y(z, b), also where squares of s overflow or underflow."""
    z, b, v = np.complex64([3 + 4j, 0.6 - 0.8j]), np.float32([-2.5, 1.5]), np.complex64([1 - 1j, 2 + 0.5j])
    f = jax.jit(lambda s: jax.jvp(lambda z: mod_relu(z, b * s), (z * s.astype(COMPLEX),), (v,)))
    expected, slope = f(np.float32(1))
    close(expected, np.maximum(abs(z) + b, 0) * z / abs(z), 1e-6)
    for scale in (1e-30, 1e30):
        y, pushed = f(np.float32(scale))
        close(y / scale, np.asarray(expected), 1e-5)
        close(pushed, np.asarray(slope), 1e-5)


# ---- initial weights, dropout, losses -----------------------------------------------------------


@pytest.mark.parametrize(
    ("draw", "variance"),
    [
        (initializers.he_normal(), 2 / 200),
        (initializers.glorot_uniform(), 2 / 500),
        (initializers.variance_scaling(1.0, "fan_in", "normal"), 1 / 200),
        (initializers.orthogonal(), 1 / 300),
    ],
)
def test_initial_weights_are_circular_with_the_stated_variance(draw, variance):
    """E|w|^2 is the variance, and E w^2 = E w = 0, as for a uniform phase (Trabelsi et al. 2018, section 3.6)."""
    w = compiled(lambda key: draw(key, (200, 300), COMPLEX))(jax.random.key(0))
    assert w.dtype == COMPLEX
    assert abs(np.mean(np.abs(w) ** 2) / variance - 1) < 0.03
    assert max(abs(np.mean(w**2)), abs(np.mean(w) * variance**0.5)) < 0.02 * variance
    phases = np.histogram(np.angle(w), 8, (-np.pi, np.pi))[0] / w.size
    assert abs(phases - 1 / 8).max() < 0.01


def test_dropout_drops_complex_values_whole():
    x = jnp.full(2000, 1 + 2j, COMPLEX)
    for rate in (0.25, jnp.float32(0.25)):  # a number, and one in an array, which may be traced
        y = compiled(jb.dropout)(jax.random.key(0), x, rate)
        close(np.unique(y), np.complex64([0, (1 + 2j) / 0.75]), 1e-6)
        assert abs(np.mean(y == 0) - 0.25) < 0.03


def test_losses_of_complex_numbers_are_real():
    v, w = np.array([[1 + 1j, 2j], [0j, 3 + 4j]], np.complex64), np.zeros((2, 2), np.complex64)
    for loss, expected in ((jb.mse, [3.0, 12.5]), (jb.mae, [(2**0.5 + 2) / 2, 2.5])):
        got = loss(jnp.asarray(v), jnp.asarray(w))
        assert got.dtype == jnp.float32
        close(got, np.float32(expected), 1e-6)
    assert (jax.grad(lambda v: jb.mae(v, jnp.asarray(w)).sum())(jnp.asarray(w)) == 0).all()
    close([l2_penalty({"kernel": v}), l1_penalty({"kernel": v})], [31.0, 2**0.5 + 7], 1e-6)


# ---- training -----------------------------------------------------------------------------------


def data():
    x = numbers(3, 16, 3)
    return x, x @ numbers(4, 3, 2)


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.contrib.split_real_and_imaginary(optax.adam(0.1)),
        optax.lbfgs(),
        optax.chain(optax.sgd(1.0), optax.scale_by_backtracking_linesearch(10)),
    ],
)
def test_training_descends(optimizer):
    """Complex least squares: the kernel of the data is found, also by line searches."""
    (x, y), net = data(), Dense(2, param_dtype=COMPLEX)
    ts = init_train_state(jax.random.key(0), net, optimizer, x)
    step = jb.train_step(net, jb.mse, optimizer)
    with jax.numpy_dtype_promotion("standard"):  # optax
        ts = jax.jit(lambda ts: jax.lax.fori_loop(0, 200, lambda _, ts: step(ts, x, y)[0], ts))(ts)
    close(ts.params["kernel"], numbers(4, 3, 2), 0.01)


def test_steps_are_those_of_the_real_and_imaginary_parts():
    """Parts of the batch and a penalty included; the norms are those of the pairs."""
    (x, y), net = data(), Dense(2, use_bias=False, param_dtype=COMPLEX)
    optimizer = track_norms(optax.sgd(0.1))
    penalty = lambda params: 0.1 * l2_penalty(params)
    ts = init_train_state(jax.random.key(0), net, optimizer, x)
    w = np.asarray(ts.params["kernel"])
    gradient = 2 * x.conj().T @ (x @ w - y) / y.size + 0.2 * w
    for parts in (1, 4):
        step = jb.train_step(net, jb.mse, optimizer, penalty=penalty, accumulate=parts)
        after = step(ts, x, y)[0]
        close(after.params["kernel"], w - 0.1 * gradient, 1e-5)
        close(get_norms(after.opt_state)["gradient norm"], np.linalg.norm(gradient), 1e-5)


def test_gradients_of_examples_where_real_params_multiply_complex_numbers():
    """The gradient of a real kernel is the real part of x^H g: neither its norm nor a kernel follows from x and g."""
    x, params = numbers(0, 4, 3), {"in": reals(1, 3, 4), "out": reals(2, 4, 2)}
    net = lambda params, x: jnp.abs(jb.affine(jb.affine(x, params["in"]) ** 2, params["out"]))
    loss = lambda params, x: jnp.sum(net(params, x) ** 2)

    def squares(rows):
        return sum(np.einsum("ai...,bi...->ab", *[leaf.reshape(*leaf.shape[:1], -1)] * 2) for leaf in rows)

    formed, jacobians = compiled(jax.vmap(lambda x: (jax.grad(loss)(params, x), jax.jacobian(net)(params, x))))(x)
    close(compiled(jb.ad.per_example_norms)(loss, params, x), squares(formed.values()).diagonal() ** 0.5, 1e-5)
    of_outputs = [leaf.reshape(8, -1) for leaf in jacobians.values()]
    close(compiled(jb.ad.ntk)(net, params, x, trace=True), squares(of_outputs).reshape(4, 2, 4, 2).trace(0, 1, 3), 1e-5)


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_averages_of_complex_params(decay):
    """The third average of t = 1, 2, 3 times z, also with a decay of 0, which keeps the last params."""
    z, average = numbers(0, 3), ema_params(decay)

    def run(z):
        state = average.init(z)
        for _ in range(3):
            _, state = average.update(z, state, (state.count.astype(z.dtype)) * z)
        return state.average

    weights = np.array([decay**2, decay, 1.0])
    close(compiled(run)(z), z * (weights @ [1, 2, 3] / weights.sum()), 1e-6)


def test_checkpoints_keep_complex_params(tmp_path):
    params = {"kernel": numbers(0, 2, 3)}
    save_checkpoint(tmp_path / "checkpoint", params)
    same(load_checkpoint(tmp_path / "checkpoint", params), jax.tree.map(jnp.asarray, params))


@pytest.mark.usefixtures("sentences")
def test_what_would_lose_imaginary_parts_is_rejected():
    (x, y), net = data(), Dense(2, param_dtype=COMPLEX)
    params = net.init(jax.random.key(0), x)
    with pytest.raises(TypeError, match=r"Dense expected kernel of real numbers for .*; convert x with x\.astype"):
        net.apply(params, x.real)
    net.apply(params, x.real.astype(COMPLEX))
    with pytest.raises(TypeError, match=r"affine expected kernel of real numbers, as x, got .*; convert x with"):
        jb.affine(x.real, params["kernel"])
    with pytest.raises(TypeError, match=r"expected x of real numbers for dtype=float32, .* pass dtype=jnp\.complex64"):
        Dense(2, dtype=jnp.float32).apply(params, x)
    assert Dense(2, dtype=COMPLEX).apply(params, x.real).dtype == COMPLEX
    with pytest.raises(ValueError, match="LayerNorm expected param_dtype to be a floating-point dtype, got complex64"):
        jb.LayerNorm(param_dtype=COMPLEX)
    with pytest.raises(ValueError, match="Dense expected dtype to be a floating-point or complex dtype, got int32"):
        Dense(2, dtype=jnp.int32)
    with pytest.raises(TypeError, match=r"kernel of real numbers, got complex64 .*param_dtype=jnp\.float32"):
        jb.SpectralNorm(net).init(jax.random.key(0), x)
    with pytest.raises(ValueError, match=r"complex64 .* out; convert the input with x\.astype\(complex64\)"):
        jb.Residual(Dense(3, dtype=COMPLEX)).init(jax.random.key(0), x.real)
    turned = [lambda x: jax.lax.complex(x, x), jnp.abs]
    for call in (lambda: jb.ad.trace_table(jnp.abs, x), lambda: jb.ad.jacobian_chain(turned, x[0].real)):
        with pytest.raises(TypeError, match=r"got complex64 .*; pass its real and imaginary parts as two arrays"):
            call()
    with pytest.raises(TypeError, match=r"got complex64 \(3,\); return its real and imaginary parts as one array"):
        jb.laplacian(lambda x: jax.lax.complex(x, x), x[0].real)
    optimizer = optax.sgd(0.1)
    ts = init_train_state(jax.random.key(0), net, optimizer, x)
    with pytest.raises(TypeError, match="real numbers for compute_dtype=bfloat16, got complex64 .* no half precision"):
        jb.train_step(net, jb.mse, optimizer, compute_dtype=jnp.bfloat16)(ts, x, y)
    with pytest.raises(TypeError, match=r"expected the loss to be real numbers, got complex64 .*jnp\.abs"):
        jb.train_step(net, lambda outputs, y: outputs - y, optimizer)(ts, x, y)
    real = Serial(net, lambda y: jnp.abs(y))
    with pytest.raises(TypeError, match="kfac expected params .* pass its real and imaginary parts as two arrays"):
        kfac(jb.ad.as_function(real), jb.mse, (x, abs(y)), 0.1).init((params, ()))
    with pytest.raises(TypeError, match="pass its real and imaginary parts as two arrays"):
        jb.hvp(lambda params: jb.mse(net.apply(params, x), y).sum(), params, params)
