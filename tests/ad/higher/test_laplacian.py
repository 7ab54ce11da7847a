"""Laplacians in one forward pass: equal to the traces of Hessians, at lower cost."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import params_of
from derivatives import biharmonic_by_numpy, nested_derivatives
from jax import lax
from jax.flatten_util import ravel_pytree

from jaxblocks import (
    Dense,
    LayerNorm,
    Repeat,
    Residual,
    Serial,
    gelu,
    layer_norm,
    log_softmax,
    logsumexp,
    softmax_cross_entropy,
    softplus,
)
from jaxblocks.ad import biharmonic, count_flops, directional_derivatives, laplacian, value_grad_laplacian
from jaxblocks.ad.counting.counts import count_jaxpr

N = 4
W = np.random.default_rng(0).normal(size=(N, N))


@pytest.fixture
def double():
    with jax.enable_x64(True):
        yield types.SimpleNamespace(x=np.random.default_rng(1).normal(size=N), w=W)


def trace(f, x):
    """The reference: the trace of the dense Hessian in forward-over-forward mode, which supports all loops."""
    return jnp.trace(jax.jacfwd(jax.jacfwd(f))(x), axis1=-2, axis2=-1)


def value_jacobian_trace(f, x):
    """The value and the Jacobian too, of a pytree of functions, from one trace."""

    def first(x):
        jacobian, y = jax.jacfwd(lambda x: [f(x)] * 2, has_aux=True)(x)
        return jacobian, (y, jacobian)

    hessian, (y, jacobian) = jax.jacfwd(first, has_aux=True)(x)
    return y, jacobian, jax.tree.map(lambda h: jnp.trace(h, axis1=-2, axis2=-1), hessian)


def test_empty_intermediate_arrays(double):
    f = lambda x: lax.associative_scan(jnp.multiply, x)  # slices to arrays of size 0
    nothing = lambda x: (x * x[::-1])[:0]
    run = lambda x: (laplacian(f, x), trace(f, x), laplacian(nothing, x), laplacian(nothing, x, chunk_size=2))
    ours, theirs, *empty = jax.jit(run)(double.x)
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    assert [each.shape for each in empty] == [(0,), (0,)]


def loops(x):
    """A scan with a counter, a while and a cond, nested, and constants that enter the carry."""
    w = jnp.asarray(W)

    def body(carry, y):
        state, i, still = carry
        state = jax.jit(jnp.tanh)(w @ state) * y
        state = lax.cond(i % 2 == 0, lambda s: s**2, lambda s: s, state)
        return (state, i + 1, still), (jnp.sum(state * y), still)

    (state, _, still), (ys, stills) = lax.scan(body, (x, 0, jnp.ones((), x.dtype)), x, reverse=True)
    _, grown = lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.sin(c[1]) * c[1]), (0, state))
    return ys * grown * still + stills


def relay(x):
    """A carry that is constant in the first step depends on x one step after the value it is computed from."""
    still = jnp.ones_like(x)
    for_ = lax.fori_loop(0, 4, lambda i, c: (jnp.sin(c[0] * x), c[0] ** 2, c[1] * c[0]), (still, still, still))
    while_ = lax.while_loop(
        lambda c: c[0] < 4, lambda c: (c[0] + 1, x * c[1], c[1] ** 2, c[2]), (0, still, still, still)
    )
    return for_[2] + while_[3]


@jax.custom_jvp
def straight_through(x):
    return jnp.round(x)


straight_through.defjvp(lambda x, t: (straight_through(x[0]), jnp.cos(x[0]) * t[0]))


@jax.custom_vjp
def rounded_sine(x):
    return jnp.round(x)


rounded_sine.defvjp(lambda x: (jnp.round(x), x), lambda x, g: (jnp.cos(x) * g,))


@jax.custom_jvp
def first(x):
    """The value depends on one entry, and the rule of its derivative adds another."""
    return x[:1]


first.defjvp(lambda x, t: (first(x[0]), (x[0] ** 2 * t[0])[:1] + jnp.sin(x[0][1:2]) * t[0][1:2]))


def particles(x):
    """Two particles that share directions, until they are mixed; then sums, products and slices of both."""
    r = x.reshape(2, 2)
    h = jax.nn.softplus(jnp.tanh(r @ jnp.asarray(W)[:2]) ** 2)
    alone = jnp.einsum("pi,pi->p", h[:, :2], jnp.sin(r)) * r[:, 1]
    mixed = jnp.cumsum(alone[jnp.array([1, 0])]) * jnp.exp(jnp.sum(alone))
    return jnp.concatenate([mixed, alone, h[0]]) * jnp.max(r)


def pairs(x):
    """Functions of two entries: differences, products, sums, moved and joined; then products that mix all entries."""
    d = x[:, None] - x[None]
    h = jnp.tanh(d[..., None] ** 2 @ jnp.asarray(W)[:1])
    g = jnp.max(h * jnp.sin(d)[..., None], axis=-1)
    both = jnp.concatenate([g, d[::-1, jnp.array([3, 1, 1, 0])]], axis=1)
    p = jnp.einsum("ijk,ijk->ij", h, jnp.cos(h)) + jnp.where(d > 0, g, x[:, None])
    return jnp.sum(both, axis=1) * jnp.exp(jnp.sum(p)) + jnp.sum((d @ p) * (h[..., 0] @ h[0]), axis=0)


# One function for each rule of the Laplacian.
FUNCTIONS = {
    "power": lambda x: (1 + x[::-1] ** 2) ** x * x[0],
    "matrix": lambda x: jnp.tanh(jnp.asarray(W) @ jnp.sin(jnp.asarray(W) @ x)),
    "attention": lambda x: jax.nn.softmax(jnp.outer(x, x) @ jnp.asarray(W)) @ x,
    "loops": loops,
    "relay": relay,
    "convolution of two functions": lambda x: jnp.convolve(x, jnp.sin(x)),
    "piecewise": lambda x: jnp.max(x) * jax.nn.relu(jnp.sort(x)) + jnp.abs(x) * x,
    "reductions": lambda x: jnp.prod(jnp.sin(x)) + jax.nn.logsumexp(jnp.cumprod(x)),
    "complex": lambda x: jnp.abs(jnp.fft.fft(x**2)) ** 2,
    "solve": lambda x: jnp.linalg.solve(jnp.asarray(W) + jnp.diag(x), x),
    "scatter": lambda x: x.at[1].multiply(x[0])[jnp.argmax(x)] ** 2 * x,
    "custom jvp": lambda x: straight_through(x) * x + jnp.logaddexp(x, x),
    "particles": particles,
    "pairs": pairs,
    "rule with more inputs": lambda x: first(x) ** 2 * first(x[2:]),
    "parts of one value": lambda x: jnp.exp(-(y := jnp.asarray(W) @ x)) * jnp.where(y > 0, y / (1 + y**2), jnp.abs(y)),
    "stopped": lambda x: lax.stop_gradient(x) * x**2 + jnp.sign(x) * jnp.floor(x),
    "constant": lambda x: jnp.arange(3.0).astype(x.dtype),
    "identity": lambda x: x,
}


@functools.cache
def laplacians_and_traces():
    """For each function value, Jacobian and Laplacian of the library, some in chunks that do not divide n, and of JAX.

    The Laplacian of `pairs` too where derivatives are gathered.
    """
    sizes = {"attention": 3, "loops": 3, "pairs": 3}

    @jax.jit
    def run(x):
        each = {name: value_grad_laplacian(f, x, chunk_size=sizes.get(name)) for name, f in FUNCTIONS.items()}
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("jaxblocks.ad.higher.shared_directions._MOST_SELECTIONS", 0)
            gathered = laplacian(pairs, x)
        return each, gathered, value_jacobian_trace(lambda x: {name: f(x) for name, f in FUNCTIONS.items()}, x)

    return run(np.random.default_rng(1).normal(size=N))


def test_laplacians_equal_traces_of_hessians(double):
    """Value, Jacobian and Laplacian in float64, and one eagerly."""
    found, _, expected = laplacians_and_traces()
    each = [(name, found[name]) for name in FUNCTIONS]
    each.append(("matrix", value_grad_laplacian(FUNCTIONS["matrix"], double.x)))  # eager
    for name, parts in each:
        for ours, theirs in zip(parts, expected, strict=True):
            assert ours.dtype == theirs[name].dtype and ours.shape == theirs[name].shape, name
            np.testing.assert_allclose(ours, theirs[name], rtol=1e-12, atol=1e-12, err_msg=name)


def test_known_laplacians(double):
    """log r is harmonic in the plane, 1/r in space; the Laplacian of a Gaussian is (r² - n) times the Gaussian."""
    r = lambda x: jnp.sqrt(jnp.sum(x**2))
    gauss = lambda x: jnp.exp(-(r(x) ** 2) / 2)

    @jax.jit
    def program(x):
        harmonic = laplacian(lambda x: jnp.log(r(x)), x[:2]), laplacian(lambda x: 1 / r(x), x[:3])
        return harmonic, value_grad_laplacian(gauss, x)

    harmonic, (value, gradient, total) = program(double.x)
    np.testing.assert_allclose(harmonic, 0, atol=1e-13)
    np.testing.assert_allclose(gradient, -double.x * value, rtol=1e-13)
    np.testing.assert_allclose(total, (r(double.x) ** 2 - N) * value, rtol=1e-13)


def test_the_rule_of_a_custom_vjp_is_used(double):
    """Its pullback, not its implementation, in loops and branches too."""

    def f(x):
        body = lambda c, y: (c + 1, jax.lax.cond(c > 7, jnp.cos, lambda y: rounded_sine(y), y))
        count, ys = jax.lax.scan(body, 0, x)
        _, z = jax.lax.while_loop(lambda c: c[0] < 1, lambda c: (c[0] + 1, rounded_sine(c[1])), (0, x))
        return ys + z * count

    found = jax.jit(lambda x: laplacian(lambda x: f(x).sum(), x))(double.x)
    np.testing.assert_allclose(found, -(N + 1) * np.sin(double.x).sum(), rtol=1e-13)


def test_a_custom_vjp_may_return_an_integer(double):
    """It has no tangent, and is computed from values without one."""
    counted = jax.custom_vjp(lambda x, n: (jnp.sin(x), n + 1))
    counted.defvjp(lambda x, n: (counted(x, n), x), lambda x, bars: (bars[0] * jnp.cos(x), None))

    def f(x):
        y, n = counted(x, jnp.int32(2))
        return jnp.sum(n.astype(y.dtype) * y)

    found = jax.jit(lambda x: laplacian(f, x))(double.x)
    np.testing.assert_allclose(found, -3 * np.sin(double.x).sum(), rtol=1e-13)


def test_points_are_pytrees(double):
    """The Jacobian has the structure of the point; the Laplacian sums over all leaves."""
    x = {"a": double.x.reshape(2, 2), "b": (double.x[3], double.x[:2])}
    f = lambda x: jnp.sum(x["a"] @ x["b"][1]) * x["b"][0] ** 2

    @jax.jit
    def run(x):
        flat, unflatten = ravel_pytree(x)
        expected = f(x), jax.jacfwd(f)(x), trace(lambda flat: f(unflatten(flat)), flat)
        return expected, value_grad_laplacian(f, x, chunk_size=3)

    expected, found = run(x)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-12), found, expected)


def test_laplacians_can_be_transformed(double):
    """vmap, grad and jvp of the Laplacian; the Laplacian of the Laplacian; traced constants."""
    f = lambda x, s=1.0: jnp.sum(jnp.sin(s * double.w @ x) ** 2)
    ours = lambda x, s=1.0: laplacian(lambda x: f(x, s), x)
    batch = np.stack([double.x, 2 * double.x])
    squares = np.sum(double.w**2, 1)  # the Laplacian is the sum of 2 s^2 squares cos(2 s w x)
    value = lambda x, s: 2 * s**2 * squares @ np.cos(2 * s * double.w @ x)
    by_x = lambda x, s: -4 * s**3 * (squares * np.sin(2 * s * double.w @ x)) @ double.w
    by_s = 2 * squares @ (np.cos(double.w @ double.x) - 0.5 * np.sin(double.w @ double.x) * (double.w @ double.x))

    @jax.jit
    def transformed(x):
        return jax.vmap(ours)(batch), jax.grad(ours, (0, 1))(x, 0.5), jax.jvp(ours, (x,), (x,))[1]

    expected = (
        np.array([value(x, 1.0) for x in batch]),
        (by_x(double.x, 0.5), by_s),
        by_x(double.x, 1.0) @ double.x,
    )
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-11), transformed(double.x), expected)
    quartic = lambda x: jnp.sum(x**2) ** 2
    twice = jax.jit(lambda x: laplacian(lambda x: laplacian(quartic, x), x))(double.x)
    np.testing.assert_allclose(twice, 8 * N * (N + 2), rtol=1e-12)


def test_nets_of_layers(double):
    """A scanned stack of residual blocks with norms."""
    net = Serial(Repeat(Residual(LayerNorm(), Dense(N), jnp.tanh), 2), Dense(2))
    params = params_of(net, double.x)
    f = lambda x: net.apply(params, x)
    found, expected = jax.jit(lambda x: (laplacian(f, x), trace(f, x)))(double.x)
    np.testing.assert_allclose(found, expected, rtol=1e-11)


def _normalized(x, unit):
    """Layer normalization with the variance in a unit, of which the result does not depend."""
    centered = (x - jnp.mean(x)) * unit
    variance = jnp.mean(centered**2) + 1e-5 * unit**2
    return jnp.sum(jnp.sin(centered * lax.rsqrt(variance)))


def _with_numbers(x, unit):
    far = x.dtype.type(2.0**85)
    return jnp.sum(jnp.sin(jnp.cumsum(x * far) / far) / far * far)


RESCALED = {  # functions of x and a power of two whose value does not depend on it, and the largest exponent of it
    "normalized": (_normalized, 28),
    "chain": (lambda x, unit: jnp.sum(jnp.exp(jnp.cos((x * unit) / unit) * x)), 120),
    "quotient": (lambda x, unit: jnp.sum(jnp.sin(jnp.cumsum(x * unit) / (3 * unit + jnp.sum(x) * unit))), 60),
    "factors": (lambda x, unit: jnp.sum(jnp.sin(jnp.cumsum(x * unit) / unit) / unit * unit), 85),
    "numbers": (_with_numbers, 0),
    "root": (lambda x, unit: jnp.sum(jnp.sqrt(jnp.cumsum(x * unit) ** 2) / unit * jnp.sin(x)), 50),
    "product": (lambda x, unit: jnp.sum(jnp.sin(((x[:, None] * unit) @ (x[None] / unit)) * x[None])), 100),
    "scan": (lambda x, unit: lax.scan(lambda c, y: (jnp.sin(c / unit + y) * unit, None), unit * x[0], x)[0] / unit, 90),
}


def test_rescalings_inside_of_a_function_change_nothing():
    """Powers of two cancel, although squares of the derivatives of intermediate values leave the range of float32.

    The derivative of the Laplacian is that of one function with a quotient and of one without.
    """
    x, v = np.float32([0.3, 1.2, 0.7, 2.1]), np.float32([1.0, -0.5, 0.25, 2.0])
    further = ("normalized", "product")

    @jax.jit
    def reference(x, v):
        every = lambda x: {name: f(x, 1.0) for name, (f, _) in RESCALED.items()}
        slopes = {name: jax.grad(lambda x, f=RESCALED[name][0]: trace(lambda x: f(x, 1.0), x))(x) for name in further}
        return value_jacobian_trace(every, x), nested_derivatives(every, x, v, 3), slopes

    @jax.jit
    def run(x, v, units):
        at = {name: lambda x, f=f, name=name: f(x, units[name]) for name, (f, _) in RESCALED.items()}
        parts = {name: value_grad_laplacian(f, x) for name, f in at.items()}
        along = {name: directional_derivatives(f, x, v, order=3) for name, f in at.items()}
        return parts, along, {name: jax.grad(lambda x, f=at[name]: laplacian(f, x))(x) for name in further}

    with jax.enable_x64(True):
        expected, derivatives, slopes = jax.tree.map(np.asarray, reference(np.float64(x), np.float64(v)))
    for sign in (-1, 1):
        units = {name: np.float32(2.0 ** (sign * largest)) for name, (_, largest) in RESCALED.items()}
        parts, along, of_laplacians = run(x, v, units)
        pairs = [(name, parts[name], expected) for name in RESCALED]
        pairs += [(name, along[name], derivatives) for name in RESCALED]
        pairs += [(name, [of_laplacians[name]], [slopes]) for name in further]
        for name, found, all_theirs in pairs:
            for ours, theirs in zip(found, all_theirs, strict=True):
                scale = np.abs(theirs[name]).max()
                np.testing.assert_allclose(ours, theirs[name], rtol=2e-4, atol=2e-5 * scale, err_msg=name)


def test_biharmonics_where_derivatives_vanish(double):
    """The derivatives of |x|^2 are 0 at 0, its Laplacian is not; the biharmonic of |x|^4 is 8 n (n + 2)."""
    f = lambda x: jnp.sum(x**2) ** 2
    for dtype in (np.float32, np.float64):
        assert jax.jit(lambda x: (biharmonic(f, x), laplacian(f, x)))(np.zeros(3, dtype)) == (120, 0)


def test_maxima_of_windows_have_biharmonics(double):
    """Their derivative selects by x and moves a direction, which need not depend on x."""
    pool = lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2,), (2,), "VALID")
    x = np.array([0.3, 0.7, 0.9, -0.4])
    found = jax.jit(lambda x: biharmonic(lambda x: jnp.sum(jnp.sin(pool(x) * x[1::2])), x))(x)
    of_largest = lambda x: np.sum(np.sin(x[[1, 2]] * x[1::2]))
    np.testing.assert_allclose(found, biharmonic_by_numpy(of_largest, x), rtol=1e-10)


def test_norms_have_biharmonics():
    x = np.random.default_rng(0).normal(size=4)

    def by_formula(x):
        centered = x - np.mean(x)
        return np.sum(np.sin(centered / np.sqrt(np.mean(centered**2) + 1e-5)))

    found = jax.jit(lambda x: biharmonic(lambda x: jnp.sum(jnp.sin(layer_norm(x, epsilon=1e-5))), x))(np.float32(x))
    np.testing.assert_allclose(found, biharmonic_by_numpy(by_formula, x, radius=0.1), rtol=1e-4)


def test_steep_functions_of_separated_scores_have_laplacian_0():
    of_label = lambda x: softmax_cross_entropy(x, jnp.asarray(1))
    steep = lambda x: jnp.stack([jnp.sum(f(1e20 * x)) for f in (softplus, gelu, log_softmax, logsumexp, of_label)])
    found = jax.jit(lambda x: laplacian(steep, x))(np.float32([1, -1, 0.5]))
    assert np.array_equal(found, np.zeros(5))


def test_dtypes_are_kept():
    for dtype in (jnp.float32, jnp.bfloat16):
        f = lambda x: value_grad_laplacian(lambda x: jnp.sum(jnp.tanh(x) ** 2 * x), x)
        for part in jax.eval_shape(f, jax.ShapeDtypeStruct((2,), dtype)):
            assert part.dtype == dtype and not part.weak_type


# ---- costs --------------------------------------------------------------------------------


def mlp(n, width):
    net = Serial(Dense(width), jnp.tanh, Dense(width), jnp.tanh, Dense(width), jnp.tanh, Dense(1))
    shapes = jax.eval_shape(net.init, jax.random.key(0), jnp.zeros(n))
    rng = np.random.default_rng(1)
    params = jax.tree.map(lambda x: rng.normal(0, 1 / np.sqrt(width), x.shape).astype(np.float32), shapes)
    return lambda x: net.apply(params, x)[0]


WEIGHTS = [np.random.default_rng(2).normal(size=size).astype(np.float32) for size in [(3, 16), (16, 16)]]


@pytest.mark.cpu
def test_laplacians_cost_less_than_traces():
    """Operations and temporary bytes relative to the trace of the Hessian; chunks need less memory."""
    f, x = mlp(64, 128), jnp.ones(64)
    theirs = lambda x: jnp.trace(jax.hessian(f)(x))
    programs = functools.partial(laplacian, f), theirs, functools.partial(laplacian, f, chunk_size=8)
    traced = [jax.jit(program).trace(x) for program in programs]
    our_flops, their_flops, _ = (count_jaxpr(program.jaxpr.jaxpr).flops for program in traced)
    assert their_flops >= 1.85 * our_flops
    compiled = [program.lower().compile() for program in traced]
    our_bytes, their_bytes, few = (program.memory_analysis().temp_size_in_bytes for program in compiled)
    assert our_bytes <= 0.65 * their_bytes
    assert few < 0.3 * our_bytes


def test_independent_particles_share_directions():
    """A sum over 32 particles: 3 directions instead of 96; pytrees of particles; a scan needs all directions."""
    w, v = WEIGHTS[0], WEIGHTS[1]
    f = lambda x: jnp.sum(jnp.tanh(jnp.tanh(x["r"] @ w + x["s"][:, None]) @ v))
    x = {"r": jnp.ones((32, 3)), "s": jnp.ones(32)}
    one = lambda x: jnp.sum(jnp.tanh(jnp.tanh(x["r"] @ w + x["s"]) @ v))
    alone = count_flops(lambda x: laplacian(one, x), {"r": jnp.ones(3), "s": jnp.ones(())}).flops
    assert count_flops(lambda x: laplacian(f, x), x).flops < 1.2 * 32 * alone
    looped = lambda x: lax.scan(lambda c, x: (c + one(x), None), 0.0, x)[0]
    assert count_flops(lambda x: laplacian(looped, x), x).flops > 10 * 32 * alone


def test_pairs_of_particles_take_the_directions_of_two():
    """A sum over 66 pairs of 12 particles: 6 directions instead of 36."""
    w, v = WEIGHTS[0][:1], WEIGHTS[1]
    i, j = np.triu_indices(12, 1)

    def f(x):
        distances = jnp.sqrt(jnp.sum((x[i] - x[j]) ** 2, axis=1, keepdims=True))
        return jnp.sum(jnp.tanh(jnp.tanh(distances @ w) @ v))

    one = lambda x: jnp.sum(jnp.tanh(jnp.tanh(jnp.sqrt(jnp.sum((x[:3] - x[3:]) ** 2, keepdims=True)) @ w) @ v))
    alone, all_pairs = (count_flops(functools.partial(laplacian, f), x).flops for f, x in [(one, ONE), (f, TWELVE)])
    assert all_pairs < 1.2 * 66 * alone


def test_derivatives_that_move_in_many_ways_are_gathered(double):
    """The same values, and few equations where each element of a product depends on other inputs."""
    _, gathered, (*_, expected) = laplacians_and_traces()
    np.testing.assert_allclose(gathered, expected["pairs"], rtol=1e-12, atol=1e-12)
    of = np.random.RandomState(0).randint(0, 120, (2, 60, 20))
    f = lambda x: jnp.sum(jnp.tanh(jnp.sum(jnp.sin(x[of[0]]), 1) * jnp.sum(jnp.cos(x[of[1]]), 1)))
    assert len(jax.make_jaxpr(functools.partial(laplacian, f))(jnp.ones(120)).eqns) < 1000


ONE, TWELVE = jnp.arange(6.0), jnp.arange(36.0).reshape(12, 3)


def test_activations_take_one_product_for_each_direction():
    """The parts of gelu are multiplied before they are applied to the directions."""
    of = lambda act: count_flops(
        lambda x: laplacian(lambda x: jnp.sum(act(x[None] @ jnp.ones((64, 16)))), x), jnp.ones(64)
    )
    assert of(jax.nn.gelu).flops < 1.15 * of(jnp.tanh).flops


def test_linear_equations_have_no_second_term():
    """A product with a constant matrix is applied to n directions and two vectors only."""
    w = jnp.ones((3, 4))
    [[m, k], n] = w.shape, 4
    assert count_flops(lambda x: laplacian(lambda x: w @ x, x), jnp.ones(n)).multiplications <= (n + 2) * m * k
    names = {e.primitive.name for e in jax.make_jaxpr(lambda x: laplacian(jax.nn.relu, x))(jnp.ones(n)).eqns}
    assert "dot_general" not in names and "reduce_sum" not in names


def test_number_of_equations_is_independent_of_the_length_of_a_scan():
    """The number of equations does not depend on the length of the scan."""

    def equations(length):
        f = lambda x: lax.scan(lambda c, _: (jnp.sin(c), None), x, length=length)[0]
        return str(jax.make_jaxpr(lambda x: laplacian(f, x))(jnp.ones(3))).count(" = ")

    assert equations(10) == equations(1000)


# ---- errors -------------------------------------------------------------------------------


def test_errors_name_the_repair(sentences):
    """Each error states the rejected argument and a repair, and the repair works."""
    x = jnp.ones(3)
    with pytest.raises(TypeError, match=r"laplacian expected x .*, got int32 \(3,\) at x; convert it with .astype"):
        laplacian(jnp.sum, jnp.arange(3))
    laplacian(jnp.sum, jnp.arange(3).astype(jnp.float32))
    with pytest.raises(TypeError, match=r"value_grad_laplacian expected f to return one array, got a tuple"):
        value_grad_laplacian(lambda x: (x, x), x)
    value_grad_laplacian(lambda x: (x, x)[0], x)
    with pytest.raises(TypeError, match=r"to return one array, got None; return the array"):
        laplacian(lambda x: None, x)
    with pytest.raises(TypeError, match=r"floating-point array, got int32 \(\), which has no derivative"):
        laplacian(jnp.argmax, x)
    with pytest.raises(
        TypeError, match=r"laplacian expected f to be a function, got float32 \(3,\); the order is f, x"
    ):
        laplacian(x, jnp.sum)
    with pytest.raises(ValueError, match=r"chunk_size to be an integer >= 1.*, got 0"):
        laplacian(jnp.sum, x, chunk_size=0)
    with pytest.raises(ValueError, match=r"at least one number, got empty arrays"):
        laplacian(jnp.sum, jnp.zeros(0))


def test_primitives_without_derivatives_are_named(sentences):
    """A callback is rejected; with a custom rule it is differentiated."""

    def on_the_host(x):
        return jax.pure_callback(lambda x: np.asarray(x) ** 2, x, x)

    with pytest.raises(NotImplementedError, match=r"expected primitives .*, got 'pure_callback'.*jax.custom_jvp"):
        jax.make_jaxpr(lambda x: laplacian(on_the_host, x))(jnp.ones(3))
    square = jax.custom_jvp(on_the_host)
    square.defjvp(lambda x, t: (square(x[0]), 2 * x[0] * t[0]))
    np.testing.assert_allclose(jax.jit(lambda x: laplacian(square, x))(jnp.ones(3)), 2 * np.ones(3))
