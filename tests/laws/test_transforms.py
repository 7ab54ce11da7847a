"""Every function of `jaxblocks.ad` in every transformation of JAX: one table, with the entries that are impossible.

Each entry computes on the two rows of ``X`` and is compared with the function on one row after the other. Gradients are
traced only: their values are tested where each function is.
"""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify
from public import PUBLIC_MODULES

from jaxblocks import BatchNorm, Dense, ad, diffusion, interop, text, theory, training
from jaxblocks.ad.curvature.structures import Eigenbasis
from jaxblocks.layers import layer_norm

DRAWN = np.random.default_rng(0)
W, V = (jnp.asarray(DRAWN.normal(size=size), jnp.float32) for size in ((4, 3), (2, 4)))
X = jnp.array([[0.3, -0.2, 0.5], [0.1, 0.7, -0.4]])
BATCH = jnp.asarray(DRAWN.normal(size=(3, 3)), jnp.float32)


def net(x):
    return V @ jnp.tanh(W @ x)


def f(x):
    return jnp.sum(net(x) ** 2)


def loss(w, x):
    return jnp.sum(jnp.tanh(w.reshape(3, 1).T @ x[:, None]) ** 2)


def model(w, x):
    return jnp.tanh(w.reshape(1, 3) @ x)


def scanned(checkpoint):
    step = lambda x: lambda h, _: (jnp.tanh(h * x), None)
    return jax.grad(lambda x: ad.scan(step(x), x, length=5, checkpoint=checkpoint)[0].sum())


def key():
    return jax.random.key(0)


def hessian_at(x):
    return ad.hessian_operator(f, x)


FUNCTIONS = {
    "jacobian": lambda x: ad.jacobian(net)(x),
    "jacobian in batches": lambda x: [ad.jacobian(net, mode=mode, chunk_size=1)(x) for mode in ("forward", "reverse")],
    "jacobian of a known matrix": lambda x: ad.jacobian(lambda x: W @ x)(x),
    "sparse_jacobian": lambda x: ad.sparse_jacobian(lambda x: jnp.diff(x) ** 2, jnp.zeros(3), mode="reverse")(x).data,
    "jacobian_chain": lambda x: ad.multiply_chain(ad.jacobian_chain([jnp.sin, net], x)),
    "hvp": lambda x: ad.hvp(f, x, x),
    "directional_curvature": lambda x: ad.directional_curvature(f, x, x),
    "hessian": lambda x: ad.hessian(f, x, chunk_size=2),
    "hessian_diagonal": lambda x: ad.hessian_diagonal(f, x, chunk_size=2),
    "as_matrix": lambda x: ad.as_matrix(hessian_at(x), x),
    "gauss_newton_product": lambda x: ad.gauss_newton_product(net, lambda y: jnp.sum(y**4), x, x),
    "fisher_operator": lambda x: ad.fisher_operator(key(), lambda x: net(x)[None], x)(x),
    "laplacian": lambda x: ad.laplacian(lambda x: net(x) * jnp.sin(x[0]), x, chunk_size=2),
    "value_grad_laplacian": lambda x: ad.value_grad_laplacian(f, x),
    "laplacian of rules and indices": lambda x: (
        ad.laplacian(lambda x: jnp.sum(layer_norm(x) ** 3) * x[(jnp.argmax(x) + jnp.arange(2)) % 3], x),
        ad.biharmonic(f, x),
    ),
    "directions that do not depend on x": lambda x: (
        ad.hvp(f, x, W[0]),
        hessian_at(x)(W[0]),
        ad.gauss_newton_product(net, lambda y: jnp.sum(y**4), x, W[0]),
        ad.fisher_operator(key(), lambda x: net(x)[None], x)(W[0]),
        ad.directional_curvature(f, x, W[0]),
        ad.directional_derivatives(net, x, W[0], order=2),
        ad.forward_gradient(key(), lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, length=2)[0].sum(), x),
        ad.estimate_laplacian(key(), f, x, samples=2),
        ad.estimate_biharmonic(key(), f, x, samples=2),
    ),
    "estimate_trace": lambda x: ad.estimate_trace(key(), hessian_at(x), x, samples=4).value,
    "lanczos": lambda x: ad.lanczos(key(), hessian_at(x), x, steps=2).diagonal,
    "per_example_gradients": lambda x: ad.per_example_gradients(loss, x, BATCH),
    "per_example_norms": lambda x: ad.per_example_norms(loss, x, BATCH),
    "per_example_norms of a batch": lambda x: ad.per_example_norms(loss, jnp.ones(3), BATCH * x[None]),
    "gradient_noise": lambda x: ad.gradient_noise(loss, x, BATCH, batch_size=2, chunk_size=2).trace,
    **{
        f"ntk by {method}": lambda x, method=method: ad.ntk(model, x, BATCH, method=method)
        for method in ("contraction", "products", "structured")
    },
    "ntk_relu": lambda x: ad.ntk_relu(BATCH * x[None]),
    "scan": scanned("sqrt"),
    "scan with snapshots": scanned(2),
    "over_minibatches": lambda x: ad.over_minibatches(
        lambda rows, v: jnp.mean(rows) * v, BATCH * x[None], batch_size=1
    )(x),
    # Those that compute no arrays read the types of traced arguments.
    "counts and plans": lambda x: (
        x
        * (
            ad.cost_table(f, x, measure=False)["hvp"].flops
            + ad.jacobian_plan(net, x).gain
            + ad.sparsity(lambda y: jnp.diff(y) * x[0], x).colors
            + ad.saved_numbers(f, x)
            + len(ad.ntk_plan(model, x, BATCH).leaves)
            + len(ad.per_example_norms_plan(loss, x, BATCH).leaves)
        )
    ),
}


def mesh():
    return jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))


def in_shard_map(g, x=X):
    one = lambda x: jax.tree.map(lambda y: jnp.asarray(y)[None], g(x[0]))
    return jax.shard_map(one, mesh=mesh(), in_specs=jax.P("d"), out_specs=jax.P("d"))(x)


def total(y):
    return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(y))


# What JAX does not have, with its error.
WITHOUT_GRADIENT = {"scan with snapshots": "Reverse-mode differentiation does not work for lax.while_loop"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_in_every_transformation(name):
    """All values are those of one compiled program: under ``checkify``, and in ``shard_map``, ``scan`` and ``vmap``."""
    g = FUNCTIONS[name]
    jitted = jax.jit(g)

    def nest(x):
        found = jax.lax.scan(lambda c, x: (c, jax.vmap(g)(x)), 0, jnp.stack([x, 2 * x])[None])[1]
        return jax.tree.map(lambda y: y[0, 0], found)

    def run(x):
        return [jitted(row) for row in x], checkify.checkify(jitted)(x[0])[1], in_shard_map(nest, x)

    rows, checked, nested = jax.tree.map(np.asarray, jax.jit(run)(X))
    compare = lambda *ys: [np.testing.assert_allclose(y, ys[0], rtol=3e-4, atol=3e-5) for y in ys]
    jax.tree.map(compare, rows[0], checked)
    jax.tree.map(lambda y, z, both: compare(np.stack([y, z]), both), *rows, nested)
    gradient = lambda x: (jax.grad(lambda x: total(jitted(x)))(x),)
    if name in WITHOUT_GRADIENT:
        with pytest.raises(ValueError, match=WITHOUT_GRADIENT[name]):
            jax.eval_shape(gradient, X[0])
    else:
        assert jax.eval_shape(gradient, X[0])[0].shape == (3,)


def test_sums_over_devices():
    """Equal params and different examples: gradients are sums over devices, values of single examples are not."""

    def values(w, x):
        norms, kernel = ad.per_example_norms(loss, w, x), ad.ntk(model, w, x, trace=True)
        alone = lambda w: jnp.sum(jax.vmap(loss, (None, 0))(w, x))
        own = ad.jacobian(lambda w: jax.vmap(model, (None, 0))(w, x)[:, 0])(w)
        both = ad.jacobian(lambda w: jax.lax.psum(alone(w), "d")[None], mode="auto")(w)
        return norms, kernel[None], own, ad.hvp(alone, w, w), both

    w, x = np.asarray(X)[0], np.concatenate([BATCH, np.asarray(BATCH)[:1]])
    specs = jax.P("d"), jax.P("d"), jax.P("d"), jax.P(), jax.P()
    spread = jax.jit(jax.shard_map(values, mesh=mesh(), in_specs=(jax.P(), jax.P("d")), out_specs=specs))
    norms, kernel, own, product, both = spread(w, x)
    whole = lambda w: jnp.sum(jax.vmap(loss, (None, 0))(w, x))
    each = lambda w: jax.vmap(model, (None, 0))(w, x)[:, 0]
    derivatives = jax.jit(lambda w: (jax.jacrev(each)(w), jax.hessian(whole)(w) @ w, jax.grad(whole)(w)))
    gradients = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(w, x)
    of_each, of_gradient, gradient = derivatives(w)
    close = lambda y, z: np.testing.assert_allclose(y, z, rtol=1e-4, atol=1e-5)
    close(norms, np.linalg.norm(gradients, axis=1))
    close(own, of_each)
    rows = np.asarray(own).reshape(2, 2, 3)
    close(kernel, rows @ rows.transpose(0, 2, 1))
    close(product, of_gradient)
    close(both, np.asarray(gradient)[None])


def test_solutions_from_a_start_that_all_devices_share():
    """Each device solves its own problem: y + y / 2 = x, y = x - y / 2 and the minimum of both squares."""

    def values(x):
        start = jnp.zeros_like(X[0])
        solve = lambda x: ad.root(lambda y: y + y / 2 - x, start)
        minimum = ad.argmin(lambda y: jnp.sum((y + y / 2 - x) ** 2), start)
        return solve(x), ad.fixed_point(lambda y: x - y / 2, start), minimum, jax.grad(lambda x: total(solve(x)))(x)

    *solutions, gradient = jax.jit(lambda: in_shard_map(values))()
    for solution in solutions:
        np.testing.assert_allclose(solution, X / 1.5, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gradient, np.full(X.shape, 2 / 3), rtol=1e-5)


def test_arrays_with_explicit_sharding():
    """Points and examples that are sharded in their type."""
    explicit = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
    f = lambda x: jnp.sum(x**3)  # whose Hessian is 6 diag(x)

    def values(x, batch):
        return {
            "hessian": ad.hessian(f, x, chunk_size=2),
            "solution": ad.solve(ad.hessian_operator(f, x), x, damping=2.0).x,
            "root": ad.root(lambda y: y**3 - x, x),
            "laplacian": ad.laplacian(f, x),
            "gradients": ad.per_example_gradients(loss, X[0], batch).sum(0),
        }

    x, batch = np.arange(1.0, 5.0, dtype=np.float32), np.concatenate([BATCH, BATCH[:1]])
    with jax.set_mesh(explicit):
        found = jax.jit(values)(*jax.device_put((x, batch), jax.NamedSharding(explicit, jax.P("d"))))
    gradients = jax.grad(lambda w: jnp.sum(jax.vmap(loss, (None, 0))(w, batch)))(X[0])
    solutions = {"hessian": np.diag(6 * x), "solution": x / (6 * x + 2), "root": np.cbrt(x), "laplacian": 6 * x.sum()}
    expected = solutions | {"gradients": gradients}
    jax.tree.map(lambda y, z: np.testing.assert_allclose(y, z, rtol=1e-4, atol=1e-5), found, expected)


# ---- functions with a rule for reverse mode only ------------------------------------------------


@jax.custom_vjp
def sine(x):
    return jnp.sin(x)


sine.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * sine(x + jnp.pi / 2),))  # it calls itself


def snapshots(x):
    return ad.scan(lambda h, _: (jnp.sin(W[:3] @ h), None), x, length=4, checkpoint=2)[0]


def of_product(x):
    return jnp.sin(W @ x)


REVERSE_ONLY = {
    "rule": (lambda x: sine(W @ x), of_product),
    "rule in a call": (lambda x: jax.checkpoint(jax.jit(sine))(W @ x), of_product),
    "snapshots": (snapshots, lambda x: jax.lax.scan(lambda h, _: (jnp.sin(W[:3] @ h), None), x, length=4)[0]),
}


def quantities(net, some=()):
    """Second derivatives, products and derivatives of solutions, or some of them, of one compiled program."""

    def values(x):
        f = lambda x: jnp.sum(net(x) ** 2)
        of_scale = lambda w, x: net(w * x)
        solution = lambda a: ad.fixed_point(lambda y: a * net(y)[:3] / 4, x)
        minimum = lambda a: ad.argmin(lambda y, a: jnp.sum((y - a * x) ** 2) + jnp.sum(net(y)) / 4, x, a)
        computed = {
            "hvp": lambda: ad.hvp(f, x, x),
            "directional_curvature": lambda: ad.directional_curvature(f, x, x),
            "hessian": lambda: ad.hessian(f, x),
            "gauss_newton": lambda: ad.gauss_newton_product(net, lambda y: jnp.sum(y**4), x, x),
            "loss": lambda: ad.gauss_newton_product(jnp.sin, lambda y: jnp.sum(net(y) ** 4), x, x),
            "fisher": lambda: ad.fisher_operator(key(), lambda x: net(x)[None], x)(x),
            "kernel": lambda: [ad.ntk(of_scale, x, BATCH, method=method) for method in ("auto", "products")],
            "jacobian": lambda: ad.jacobian(net)(x),
            "chain": lambda: ad.jacobian_chain([net], x),
            "laplacian": lambda: ad.laplacian(net, x),
            "taylor": lambda: ad.directional_derivatives(net, x, x, order=2),
            "forward gradient": lambda: ad.forward_gradient(key(), f, x, samples=2),
            "solution": lambda: jax.jvp(solution, (0.5,), (1.0,)),
            "minimum": lambda: jax.vjp(minimum, 0.5)[1](x),
        }
        return {name: compute() for name, compute in computed.items() if not some or name in some}

    return jax.tree.map(np.asarray, jax.jit(values)(X[0]))


@functools.cache
def formulas(plain):
    """The same quantities in NumPy, from the values and the first two derivatives of the plain function."""
    derivatives = jax.jit(lambda x: (plain(x), jax.jacrev(plain)(x), jax.hessian(plain)(x)))
    at = lambda x: [np.asarray(part) for part in derivatives(x.astype(np.float32))]
    x, batch = np.asarray(X)[0], np.asarray(BATCH)
    y, J, second = at(x)
    gradient, hessian = 2 * J.T @ y, 2 * (J.T @ J + np.tensordot(y, second, 1))
    curvature = x @ hessian @ x
    of_sine, J_of_sine, second_of_sine = at(np.sin(x))
    of_loss = J_of_sine.T * (12 * of_sine**2) @ J_of_sine + 4 * np.tensordot(of_sine**3, second_of_sine, 1)
    of_scale = np.stack([at(x * b)[1] * b for b in batch])
    kernel = np.einsum("iop,jmp->ijom", of_scale, of_scale)
    fixed, lowest = x, x
    for _ in range(9):  # Newton's method for y = net(y)[:3] / 8, and for the minimum
        value, slopes, _ = at(fixed)
        I_minus = np.eye(3) - slopes[:3] / 8
        fixed = fixed - np.linalg.solve(I_minus, fixed - value[:3] / 8)
        _, slopes, bends = at(lowest)
        H = 2 * np.eye(3) + bends.sum(0) / 4
        lowest = lowest - np.linalg.solve(H, 2 * (lowest - x / 2) + slopes.sum(0) / 4)

    @jax.jit
    def of_linear(x, y, J, gradient):  # with the same targets and directions
        fisher = ad.fisher_operator(key(), lambda z: (y + J @ (z - x))[None], x)(x)
        return fisher, ad.forward_gradient(key(), lambda z: gradient @ z, x, samples=2)

    fisher, forward = of_linear(x, y, J, gradient)
    return {
        "hvp": hessian @ x,
        "directional_curvature": curvature,
        "hessian": hessian,
        "gauss_newton": J.T @ (12 * y**2 * (J @ x)),
        "loss": np.cos(x) * (of_loss @ (np.cos(x) * x)),
        "fisher": fisher,
        "kernel": [kernel, kernel],
        "jacobian": J,
        "chain": (J,),
        "laplacian": np.trace(second, axis1=1, axis2=2),
        "taylor": (y, J @ x, second @ x @ x),
        "forward gradient": forward,
        "solution": (fixed, np.linalg.solve(I_minus, value[:3] / 4)),
        "minimum": (x @ np.linalg.solve(H, 2 * x),),
    }


@pytest.mark.parametrize("name", REVERSE_ONLY)
def test_second_derivatives_and_products_of_a_custom_vjp(name):
    """Where forward mode is needed, it is the pullback of the pullback."""
    net, plain = REVERSE_ONLY[name]
    some = {"rule in a call": ("hvp", "loss", "jacobian", "taylor"), "snapshots": ("hvp", "gauss_newton", "laplacian")}
    found, expected = quantities(net, some.get(name, ())), formulas(plain)
    for what, values in found.items():
        close = functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4, err_msg=what)
        jax.tree.map(close, values, expected[what])


@pytest.mark.parametrize("name", REVERSE_ONLY)
def test_what_a_custom_vjp_does_not_have(name):
    net, _ = REVERSE_ONLY[name]
    table = ad.cost_table(lambda x: jnp.sum(net(x) ** 2), X[0], measure=False)
    impossible = {row.name for row in table if row.impossible}
    assert impossible == {"jvp", "jacfwd", "hvp_reverse_over_forward"} | (
        {"hessian"} if name != "snapshots" else set()
    ) | ({"hvp_reverse_over_reverse"} if name == "snapshots" else set())
    assert table.gradient.flops > table.function.flops > 0
    assert "custom_vjp has no rule for forward mode: jvp, jacfwd" in str(table)
    assert ad.memory_curve(lambda depth: (lambda x: jnp.sum(net(x)), X[0]), (1, 2))["jvp"] == (None, None)
    with pytest.raises(TypeError, match=r"differentiable in forward mode, got a jax.custom_vjp.*pass mode='reverse'"):
        ad.jacobian(net, mode="forward", chunk_size=None)(X[0])


def test_rows_that_a_loop_of_unknown_length_does_not_have():
    halve = lambda x: jax.lax.while_loop(lambda x: x > 1.0, lambda x: x / 2, x)
    table = ad.cost_table(halve, 3.0, rows=("jvp", "gradient"), measure=False)
    assert table.jvp.impossible is None and table.gradient.impossible == "a loop of unknown length has no reverse mode"
    assert np.isnan(table.gradient.flops_ratio)


# ---- printing ------------------------------------------------------------------------------


TWO, STEP = np.ones(2), jnp.zeros((), jnp.int32)
TRAINED = training.TrainState({"bias": TWO}, (), (TWO,), jnp.zeros(2, jnp.uint32), STEP)
HISTORY = training.History(np.ones(3), np.ones(3), np.ones(0), {})
CONTAINERS = [
    ad.Eigenvalues(TWO, np.ones((2, 3)), TWO, 3),
    ad.SpectralDensity(np.ones((1, 2)), np.ones((1, 2)), 2),
    ad.TraceEstimate(1.0, np.float32(0.5), "hutchinson", 8),
    ad.StructuredCurvature(
        (Eigenbasis(None, None, jnp.ones((1, 2))),), (), (None, [jax.ShapeDtypeStruct((2,), jnp.float32)]), "full"
    ),
    theory.Descent(np.ones((2, 3)), TWO, TWO, TWO, np.float32(0), {"convex": np.array([2.0, 1.0])}),
    TRAINED,
    training.Fitted({"bias": TWO}, (), HISTORY, TRAINED),
    training.RestoreReport(("a",), ("b",), (), ()),
    interop.Report((interop.Match("missing", "out/bias", (3,)),)),
    interop.Layout("keep", jnp.sin, jnp.sin),
    text.CharTokenizer("ab"),
    diffusion.cosine_schedule(),
    Dense(3),
    BatchNorm(),
]
LEAVES = [jax.random.key(0), jax.random.split(jax.random.key(0)), jnp.complex64(1j), np.array(None)]
LEAVES += [object(), None, "text", (), STEP, jax.ShapeDtypeStruct((2,), jnp.float32), np.zeros(0), np.ones((2, 2, 2))]


@pytest.mark.parametrize("container", CONTAINERS, ids=lambda one: type(one).__name__)
def test_containers_print_with_any_leaves(container, sentences):
    """Transformations put any leaves into a pytree, as ``jax.tree.map(jnp.shape, fitted)`` does."""
    for leaf in LEAVES:
        assert isinstance(repr(jax.tree.map(lambda _, leaf=leaf: leaf, container)), str)
    jax.eval_shape(lambda traced: repr(jax.tree.map(lambda _: traced, container)) and traced, STEP)


def test_every_public_container_with_a_repr_of_its_own_is_printed_here():
    def is_container(one):
        try:
            return hasattr(one, "_fields") or not jax.tree_util.all_leaves([object.__new__(one)])
        except AttributeError:  # its fields are not set
            return True

    public = [getattr(module, name) for module in PUBLIC_MODULES for name in module.__all__]
    file_of = lambda function: getattr(getattr(inspect.unwrap(function), "__code__", None), "co_filename", "")
    own = {one for one in public if isinstance(one, type) and "jaxblocks" in file_of(one.__repr__)}
    assert {one for one in own if is_container(one)} == set(map(type, CONTAINERS))
