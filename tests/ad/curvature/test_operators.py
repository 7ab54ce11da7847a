"""Operators against dense matrices, networks with state and keys, means over minibatches."""

import functools

import chex
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

from jaxblocks import losses
from jaxblocks.activations import tanh
from jaxblocks.ad import (
    as_function,
    as_matrix,
    count_flops,
    directional_curvature,
    empirical_risk,
    fisher_operator,
    gauss_newton_operator,
    gauss_newton_product,
    hessian_operator,
    hvp,
    over_minibatches,
)
from jaxblocks.ad.vectors.chunks import map_in_chunks, order_convolutions
from jaxblocks.layers.combinators import Serial
from jaxblocks.layers.dense import Dense
from jaxblocks.layers.dropout import Dropout
from jaxblocks.layers.mlp import MLP
from jaxblocks.layers.norm import BatchNorm


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def normal_like(tree, seed=0):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(leaf.dtype), tree)


def classes(rows=6, inputs=3, outputs=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, inputs)), rng.integers(outputs, size=rows)


def dense_jacobian(model, params):
    """The Jacobian of all raveled outputs by jax.jacfwd: (outputs, n)."""
    tree = jax.jit(jax.jacfwd(lambda p: model(p).reshape(-1)))(params)
    leaves = jax.tree.leaves(tree)
    return np.concatenate([np.reshape(leaf, (leaf.shape[0], -1)) for leaf in leaves], 1)


def dense_hessian(f, params):
    """The Hessian by forward over forward mode on raveled params, without grad and linearize."""
    vector, back = jax.flatten_util.ravel_pytree(params)
    return np.asarray(jax.jit(jax.jacfwd(jax.jacfwd(lambda x: f(back(x)))))(vector))


def matrix(operator_at, params):
    """The matrix of the operator ``operator_at(params)``."""
    return np.asarray(jax.jit(lambda p: as_matrix(operator_at(p), p))(params))


NET = MLP(3, 3, activation=tanh)
MODEL, RISK = jax.jit(as_function(NET)), jax.jit(empirical_risk(NET, losses.softmax_cross_entropy))  # traced once each


def small(dtype=jnp.float64):
    """A classifier with 24 params, its batch, its model and its risk."""
    x, y = classes()
    params = normal_like(jax.eval_shape(NET.init, jax.random.key(0), x.astype(dtype)))
    params = jax.tree.map(lambda p: p.astype(dtype), params)
    return params, (jnp.asarray(x.astype(dtype)), jnp.asarray(y)), MODEL, RISK


# ---- the matrices --------------------------------------------------------------------------


def test_hessian_operator_equals_the_hessian():
    """jit = eager = forward over forward, in float64."""
    with jax.enable_x64(True):
        params, batch, _, risk = small()
        f = lambda p: risk(p, batch)
        dense = dense_hessian(f, params)
        v = normal_like(params, 1)
        expected, plain = dense @ flat(v), empirical_risk(NET, losses.softmax_cross_entropy)
        eager = hessian_operator(lambda p: plain(p, batch), params)
        np.testing.assert_allclose(flat(eager(v)), expected, atol=1e-13)

        @jax.jit
        def run(params, v, both):
            operator = hessian_operator(f, params)
            return as_matrix(operator, params), hvp(f, params, v), jax.vmap(operator)(both)

        found, product, vmapped = run(params, v, jax.tree.map(lambda v: np.stack([v, 2 * v]), v))
        np.testing.assert_allclose(found, dense, atol=1e-13)
        np.testing.assert_allclose(flat(product), expected, atol=1e-13)
        second = flat(jax.tree.map(lambda y: np.asarray(y)[1], vmapped))
        np.testing.assert_allclose(second, 2 * expected, atol=1e-13)


def test_operators_pass_through_jit_and_are_compiled_once():
    params, batch, model, _ = small(jnp.float32)
    apply = lambda operator, v: operator(v)
    for make in (
        lambda p: gauss_newton_operator(lambda p: model(p, batch[0]), lambda y: jnp.mean(y**2), p),
        lambda p: fisher_operator(jax.random.key(0), lambda p: model(p, batch[0]), p),
    ):
        whole, make, run = (
            jax.jit(lambda p, make=make: make(p)(params)),
            jax.jit(make),
            jax.jit(chex.assert_max_traces(apply, n=1)),
        )
        chex.clear_trace_counter()
        for scale in (np.float32(1.0), np.float32(2.0)):
            point = jax.tree.map(lambda p, scale=scale: scale * p, params)
            product = run(make(point), params)
            np.testing.assert_allclose(flat(product), flat(whole(point)), rtol=1e-4, atol=1e-6)


def test_gauss_newton_equals_the_dense_product():
    """Of a convex loss whose Hessian depends on the outputs; the Hessian of the params is another matrix."""
    with jax.enable_x64(True):
        params, (x, _), model, _ = small()
        of_params, loss = (lambda p: model(p, x)), (lambda out: jnp.mean((out - 1) ** 4))
        J, out = dense_jacobian(of_params, params), np.asarray(jax.jit(of_params)(params))
        middle = np.diag(12 * (out.reshape(-1) - 1) ** 2 / out.size)
        dense, v = J.T @ middle @ J, normal_like(params, 1)

        @jax.jit
        def run(params, v):
            H = hessian_operator(lambda p: loss(of_params(p)), params)
            G = gauss_newton_operator(of_params, loss, params)
            return as_matrix(G, params), gauss_newton_product(of_params, loss, params, v), H(v)

        found, product, of_hessian = run(params, v)
        np.testing.assert_allclose(found, dense, atol=1e-13)
        np.testing.assert_allclose(flat(product), dense @ flat(v), atol=1e-13)
        assert np.linalg.eigvalsh(dense).min() > -1e-12
        assert np.abs(flat(of_hessian) - dense @ flat(v)).max() > 1e-3


def half_mean_square(values):
    return jnp.mean(values**2) / 2


def test_mean_of_outer_products_as_a_gauss_newton_matrix():
    """That of N losses under half of their mean square is the empirical Fisher matrix."""
    with jax.enable_x64(True):
        params, (x, y), model, risk = small()
        per_example = lambda p: losses.softmax_cross_entropy(model(p, x), y)
        one = jax.jit(jax.grad(lambda p, i: risk(p, (x[i][None], y[i][None]))))
        gradients = np.stack([flat(one(params, i)) for i in range(len(y))])
        F = matrix(lambda p: gauss_newton_operator(per_example, half_mean_square, p), params)
        np.testing.assert_allclose(F, gradients.T @ gradients / len(y), atol=1e-14)


def test_fisher_is_the_mean_of_outer_products_for_the_sampled_targets():
    with jax.enable_x64(True):
        params, (x, y), model, _ = small()
        of_params = lambda p: model(p, x)
        log_likelihood = lambda out, y: -losses.softmax_cross_entropy(out, y)
        given = (lambda key, out: y, log_likelihood)  # a sampler that always returns the targets of the data
        F = lambda p: fisher_operator(jax.random.key(0), of_params, p, likelihood=given, samples=2)
        values = lambda p: log_likelihood(of_params(p), y)
        expected = lambda p: gauss_newton_operator(values, half_mean_square, p)
        np.testing.assert_allclose(matrix(F, params), matrix(expected, params), atol=1e-14)


def test_fisher_equals_gauss_newton_in_expectation():
    """Within five standard errors in every entry, over 10,000 samples for each example."""
    with jax.enable_x64(True):
        params, (x, y), model, _ = small()
        of_params = jax.jit(lambda p: model(p, x))  # traced once
        losses_of = {
            "categorical": lambda out: losses.softmax_cross_entropy(out, y).mean(),
            "gaussian": lambda out: jnp.mean(jnp.sum((out - 7) ** 2, -1)) / 2,
        }

        @jax.jit
        def dense(params):
            matrix = lambda loss: as_matrix(gauss_newton_operator(of_params, loss, params), params)
            return {name: matrix(loss) for name, loss in losses_of.items()}

        @jax.jit
        def drawn(key):
            of = lambda key, name: fisher_operator(key, of_params, params, likelihood=name, samples=500)
            keys = zip(jax.random.split(key), losses_of, strict=True)
            return {name: as_matrix(of(key, name), params) for key, name in keys}

        expected = dense(params)
        each = [drawn(jax.random.key(seed)) for seed in range(20)]
        for name, G in expected.items():
            draws = np.stack([draw[name] for draw in each])
            error = draws.std(0, ddof=1) / len(draws) ** 0.5
            assert np.all(np.abs(draws.mean(0) - G) <= 5 * error + 1e-12)
            assert error.max() < 0.05 * np.abs(G).max()


def test_an_operator_is_one_symmetric_matrix():
    """Targets are sampled when the operator is constructed, not in each product."""
    params, (x, _), model, _ = small(jnp.float32)
    make = jax.jit(lambda key: fisher_operator(key, lambda p: model(p, x), params))
    F, other, product = make(jax.random.key(0)), make(jax.random.key(1)), jax.jit(lambda F, v: F(v))
    v = normal_like(params, 1)
    np.testing.assert_array_equal(flat(product(F, v)), flat(product(F, v)))
    assert np.abs(flat(product(F, v)) - flat(product(other, v))).max() > 1e-3


# ---- networks with state and keys ----------------------------------------------------------


def normed():
    """A net with batch norm and dropout, its params and a state that was updated."""
    net = Serial(Dense(2), BatchNorm(), tanh, Dropout(0.5), Dense(3))
    x, y = map(jnp.asarray, classes(rows=8))
    params, state = jax.jit(net.init)(jax.random.key(0), x)
    params = jax.tree.map(lambda p: p.astype(np.float64), normal_like(params))
    update = jax.jit(functools.partial(net.apply, train=True))
    for turn in range(2):
        _, state = update(params, state, x + turn, key=jax.random.key(turn))
    return net, params, state, (x, y)


def test_evaluation_uses_running_statistics_and_no_dropout():
    with jax.enable_x64(True):
        net, params, state, (x, y) = normed()
        norm = jax.tree.map(np.asarray, state[1])

        def by_hand(p):
            h = x @ p[0]["kernel"] + p[0]["bias"][None]
            mean, var = (norm[name].astype(h.dtype) for name in ("mean", "variance"))
            h = (h - mean[None]) / np.sqrt(var + 1e-3)[None] * p[1]["scale"][None] + p[1]["bias"][None]
            logits = jnp.tanh(h) @ p[4]["kernel"] + p[4]["bias"][None]
            return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1))

        risk = empirical_risk(net, losses.softmax_cross_entropy, state)
        values = jax.jit(lambda p: (risk(p, (x, y)), by_hand(p)))(params)
        assert abs(float(values[0]) - float(values[1])) < 1e-9


def test_training_mode_has_one_mask_and_the_statistics_of_the_batch():
    with jax.enable_x64(True):
        net, params, state, (x, y) = normed()
        risk = empirical_risk(net, losses.softmax_cross_entropy, state, train=True, key=jax.random.key(5))

        @jax.jit
        def run(params):
            f = lambda p: risk(p, (x, y))
            other = risk(params, (x, y), key=jax.random.key(6))
            return as_matrix(hessian_operator(f, params), params), f(params), other

        H, value, other = run(params)
        np.testing.assert_allclose(H, np.transpose(H), atol=1e-12)
        bias = sum(leaf.size for leaf in jax.tree.leaves(params[0]["bias"]))
        np.testing.assert_allclose(H[:bias], 0, atol=1e-12)  # batch statistics remove the first bias
        assert abs(value - other) > 1e-3


def test_dropout_without_a_key_raises():
    with jax.enable_x64(True):
        net, params, state, batch = normed()
        with pytest.raises(ValueError, match="key"):
            jax.eval_shape(empirical_risk(net, losses.softmax_cross_entropy, state, train=True), params, batch)
        risk = empirical_risk(net, losses.softmax_cross_entropy, state, train=True, key=jax.random.key(0))
        jax.eval_shape(risk, params, batch)


def test_side_inputs_are_passed_and_unknown_ones_rejected():
    model = as_function(lambda x, *, scale: scale * x, key=jax.random.key(0))  # reads neither key nor train
    assert model((), jnp.float32(2.0), scale=3.0) == 6.0
    with pytest.raises(TypeError, match="shift"):
        model((), jnp.float32(2.0), scale=3.0, shift=1.0)
    two = as_function(lambda a, b: a - b)
    assert two((), (jnp.float32(2.0), jnp.float32(3.0))) == -1.0


# ---- minibatches ---------------------------------------------------------------------------


def test_minibatches_add_up_to_the_full_batch():
    """Six rows, also in batches of sizes 4 and 2: minibatches are weighted by their sizes."""
    with jax.enable_x64(True):
        params, batch, _, risk = small()
        v = normal_like(params, 1)
        product = lambda batch, params, v: hvp(lambda p: risk(p, batch), params, v)
        means = [over_minibatches(product, batch, batch_size=size) for size in (4, 100)]
        full, *found = jax.jit(lambda *at: (product(batch, *at), *(mean(*at) for mean in means)))(params, v)
        for mean in found:
            np.testing.assert_allclose(flat(mean), flat(full), atol=1e-14)


def test_lists_of_batches_of_any_size():
    with jax.enable_x64(True):
        params, (x, y), _, risk = small()
        x, y = np.asarray(x), np.asarray(y)
        parts = [(x[i:j], y[i:j]) for i, j in [(0, 3), (3, 4), (4, 6)]]
        mean = over_minibatches(lambda batch, params: jax.value_and_grad(risk)(params, batch), parts)
        expected = jax.jit(jax.value_and_grad(risk))(params, (x, y))
        np.testing.assert_allclose(flat(mean(params)), flat(expected), atol=1e-14)
        np.testing.assert_allclose(flat(jax.jit(mean)(params)), flat(expected), atol=1e-14)


def test_fisher_over_minibatches():
    """Each minibatch has a key of its own."""
    with jax.enable_x64(True):
        params, (x, _), model, _ = small()
        v = normal_like(params, 1)

        @jax.jit
        def F(batch, v, key):
            return fisher_operator(key, lambda p: model(p, batch), params)(v)

        over = jax.jit(over_minibatches(F, x, batch_size=3, key=jax.random.key(0)))
        halves = np.asarray(x).reshape(2, 3, -1)
        by_hand = [F(halves[b], v, jax.random.fold_in(jax.random.key(0), b)) for b in range(2)]
        np.testing.assert_allclose(flat(over(v)), np.mean([flat(part) for part in by_hand], 0), atol=1e-14)
        np.testing.assert_array_equal(flat(over(v)), flat(over(v)))


def test_minibatches_take_the_memory_of_one():
    """A compiled gradient over 64 minibatches takes a fraction of the temporary memory of the full batch."""
    net = MLP(64, 64, 1, activation=tanh)
    x = np.zeros((2048, 16), np.float32)
    params = jax.eval_shape(net.init, jax.random.key(0), x)
    risk = empirical_risk(net, lambda outputs, y: outputs**2)
    product = lambda batch, p: hvp(lambda p: risk(p, batch), p, p)
    in_all = lambda f: jax.jit(f).lower(params).compile().memory_analysis().temp_size_in_bytes
    assert in_all(over_minibatches(product, (x, x), batch_size=32)) < in_all(lambda p: product((x, x), p)) / 8


def test_half_precision_is_summed_in_single_precision():
    ones = over_minibatches(
        lambda batch: jnp.bfloat16(1.0) + 0 * batch[0], jnp.zeros(300, jnp.bfloat16), batch_size=1
    )()
    assert ones.dtype == jnp.bfloat16 and ones == 1


# ---- loops around convolutions -------------------------------------------------------------


CONVOLUTIONS = {
    "channels last, stride": dict(
        shape=(2, 5, 6, 4), kernel=(3, 2, 4, 6), dimension_numbers=("NHWC", "HWIO", "NHWC"), window_strides=(2, 1)
    ),
    "groups": dict(shape=(2, 4, 7), kernel=(6, 2, 3), dimension_numbers=("NCH", "OIH", "NHC"), feature_group_count=2),
    "dilated": dict(
        shape=(7, 2, 4), kernel=(3, 6, 4), dimension_numbers=("HNC", "HOI", "HNC"), rhs_dilation=(2,), lhs_dilation=(3,)
    ),
    "no positions": dict(shape=(2, 4), kernel=(6, 4), dimension_numbers=("NC", "OI", "CN")),
}


def test_ordered_convolutions_have_the_same_derivatives():
    """Values, gradients and Hessian-vector products, inside and outside of a loop."""

    def derived(options, x, k):
        options = {name: value for name, value in options.items() if name not in ("shape", "kernel")}
        options = {"window_strides": (1,) * (x.ndim - 2), "padding": [(1, 0)] * (x.ndim - 2), **options}
        f = lambda x, k: jnp.sum(jnp.sin(jax.lax.conv_general_dilated(x, k, **options)))
        gradient = lambda x: jax.jvp(jax.grad(f, argnums=(0, 1)), (x, k), (x, k))
        return gradient(x), jax.lax.map(order_convolutions(gradient), x[None])

    arrays = {
        case: [normal_like(np.zeros(options[name], np.float32), i) for i, name in enumerate(("shape", "kernel"))]
        for case, options in CONVOLUTIONS.items()
    }
    found = jax.jit(lambda arrays: {case: derived(CONVOLUTIONS[case], *xk) for case, xk in arrays.items()})(arrays)
    for case, (plain, looped) in found.items():
        for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(looped), strict=True):
            np.testing.assert_allclose(a, np.asarray(b)[0], rtol=2e-5, atol=2e-5, err_msg=case)


@pytest.mark.cpu
def test_convolutions_in_loops_have_the_layout_of_xla():
    """The layout that is fast on CPU: batch first, channels last, kernels (*spatial, in, out)."""
    x, k = jnp.ones((2, 4, 7)), jnp.ones((6, 4, 3))
    gradient = jax.grad(lambda k: jnp.sum(jnp.sin(jax.lax.conv(x, k, (1,), "SAME"))))
    specs = [
        (spec.lhs_spec, spec.rhs_spec, spec.out_spec)
        for equation in jax.make_jaxpr(order_convolutions(gradient))(k).eqns
        if equation.primitive.name == "conv_general_dilated"
        for spec in [equation.params["dimension_numbers"]]
    ]
    assert len(specs) == 2 and set(specs) == {((0, 2, 1), (2, 1, 0), (0, 2, 1))}


def test_results_of_chunks_are_stacked():
    x = {"a": np.arange(5.0, dtype=np.float32), "b": np.arange(10.0, dtype=np.float32).reshape(5, 2)}
    for out in jax.jit(lambda x: [map_in_chunks(lambda x: x["a"] + x["b"], x, n) for n in (1, 2, 9)])(x):
        np.testing.assert_array_equal(out, x["a"][:, None] + x["b"])


# ---- costs ---------------------------------------------------------------------------------


def test_operations_counted_in_gradients():
    """Operations of each product relative to a gradient; benchmarks/curvature.py measures times."""
    net, x, y = MLP(64, 64, 10, activation=tanh), np.zeros((32, 64), np.float32), np.zeros(32, np.int32)
    params = jax.eval_shape(lambda: net.init(jax.random.key(0), x))
    model = jax.jit(lambda p: as_function(net)(p, x))  # traced once for all counts
    loss = lambda out: losses.softmax_cross_entropy(out, y).mean()
    f = jax.jit(lambda p: empirical_risk(net, losses.softmax_cross_entropy)(p, (x, y)))
    of = lambda g: count_flops(g, params).flops
    gradient, one = of(jax.grad(f)), of(lambda p: hvp(f, p, p))

    def products(p, *directions):
        H = hessian_operator(f, p)
        return [H(jax.tree.map(direction, p)) for direction in directions]

    entries = sum(leaf.size for leaf in jax.tree.leaves(params))
    each = (of(lambda p: products(p, jnp.exp, jnp.sin, jnp.cos)) - of(lambda p: products(p, jnp.exp))) / 2 - entries
    assert one < 2.7 * gradient
    assert each < 2.05 * gradient
    # The count includes common subexpressions that XLA eliminates.
    assert of(lambda p: directional_curvature(f, p, p)) < 2.8 * gradient
    assert of(lambda p: gauss_newton_product(model, loss, p, p)) < 1.7 * gradient


# ---- errors --------------------------------------------------------------------------------


def test_functions_without_derivatives_are_rejected(sentences):
    x = jnp.ones(2)
    with pytest.raises(ValueError, match=r"hessian_operator expected f to return a scalar, got float32 \(2,\)"):
        hessian_operator(jnp.sin, x)
    hessian_operator(lambda x: jnp.sin(x).sum(), x)
    with pytest.raises(TypeError, match=r"hessian_operator expected x to hold floating-point arrays"):
        hessian_operator(jnp.sum, jnp.arange(2))
    with pytest.raises(ValueError, match=r"hessian_operator expected v like x, .* at x, got float32 \(3,\)"):
        hessian_operator(jnp.sum, x)(jnp.ones(3))
    with pytest.raises(TypeError, match="gauss_newton_operator expected model to be a function, got float32"):
        gauss_newton_operator(x, jnp.sum, x)
    with pytest.raises(ValueError, match="gauss_newton_operator expected loss to return a scalar"):
        gauss_newton_operator(jnp.sin, jnp.cos, x)
    with pytest.raises(TypeError, match="expected model to return floating-point outputs, got int32"):
        gauss_newton_operator(lambda x: jnp.argmax(x), jnp.sum, x)


def test_log_likelihoods_without_examples_are_rejected():
    ask = lambda log_likelihood, x: fisher_operator(
        jax.random.key(0), lambda x: x, x, likelihood=(lambda key, out: out, log_likelihood)
    )
    ask(lambda out, y: out * y, jnp.ones(2))
    with pytest.raises(TypeError, match="the log-likelihood to return one floating-point array, got a tuple"):
        ask(lambda out, y: (out, y), jnp.ones(2))
    with pytest.raises(ValueError, match="outputs of at least one example, got float32"):
        ask(lambda out, y: out * y, jnp.ones(0))


def test_fisher_needs_a_key_and_a_likelihood(sentences):
    x = jnp.ones((2, 3))
    make = lambda key, **options: fisher_operator(key, lambda x: x, x, **options)
    with pytest.raises(TypeError, match=r"fisher_operator expected key to be a key, got None; pass jax.random"):
        make(None)
    with pytest.raises(TypeError, match=r"fisher_operator expected key to be a key, got uint32 \(2,\); .*wrap_key"):
        make(jnp.zeros(2, jnp.uint32))
    shapes = lambda **options: jax.eval_shape(lambda key: make(key, **options), jax.random.key(0))
    shapes()
    with pytest.raises(ValueError, match="likelihood to be 'categorical', 'gaussian' or a pair .*, got 'poisson'"):
        make(jax.random.key(0), likelihood="poisson")
    with pytest.raises(TypeError, match="a pair of functions"):
        make(jax.random.key(0), likelihood=jnp.sum)
    with pytest.raises(
        TypeError, match=r"a function sample\(key, outputs\), which draws .*, got a function of \(key\)"
    ):
        make(jax.random.key(0), likelihood=(lambda key: key, lambda outputs, y: outputs[:, 0]))
    with pytest.raises(TypeError, match=r"a function log_likelihood\(outputs, y\), got a function of \(outputs\)"):
        make(jax.random.key(0), likelihood=(lambda key, outputs: outputs, lambda outputs: outputs[:, 0]))
    for call in (
        lambda f, x: fisher_operator(jax.random.key(0), f, x),
        lambda f, x: gauss_newton_operator(f, jnp.sum, x),
    ):
        with pytest.raises(
            TypeError, match=r"model to be a function of x alone, got a function of \(w, x\); close over"
        ):
            call(lambda w, x: x @ w, jnp.ones((2, 3)))
    with pytest.raises(ValueError, match="samples to be an integer >= 1, got 0"):
        make(jax.random.key(0), samples=0)
    rate = (
        lambda key, out: jax.random.poisson(key, jnp.exp(out)),
        lambda out, y: (y.astype(out.dtype) * out - jnp.exp(out)).sum(-1),
    )
    shapes(likelihood=rate)


def test_errors_name_the_called_function(sentences):
    """The error names the called function and the rejected argument."""
    x, half = jnp.ones(2), lambda y: jnp.sum(y**2) / 2
    with pytest.raises(TypeError, match=r"hessian_operator expected f to be a function, got float32 \(2,\)"):
        hessian_operator(x, half)
    with pytest.raises(TypeError, match=r"gauss_newton_operator expected loss to be a function, got float32 \(2,\)"):
        gauss_newton_operator(jnp.sin, x, half)
    with pytest.raises(TypeError, match=r"gauss_newton_product expected loss to be a function, got float32 \(2,\)"):
        gauss_newton_product(jnp.sin, x, half, x)
    with pytest.raises(ValueError, match=r"gauss_newton_product expected loss to .*\(as in loss\(outputs\).sum\(\)\)"):
        gauss_newton_product(jnp.sin, jnp.square, x, x)
    with pytest.raises(ValueError, match=r"^gauss_newton_product expected v like x"):
        gauss_newton_product(jnp.sin, half, x, jnp.ones(3))
    gauss_newton_product(jnp.sin, half, x, x)


@pytest.mark.parametrize(("likelihood", "axis"), [("categorical", "classes"), ("gaussian", "features")])
def test_fisher_needs_an_axis_of_outputs(likelihood, axis):
    x = jnp.ones((2, 3))
    ask = lambda model: fisher_operator(jax.random.key(0), model, x, likelihood=likelihood)
    with pytest.raises(ValueError, match=rf"outputs \(\.\.\., {axis}\), one row per example, got float32 \(\); omit"):
        ask(jnp.sum)
    with pytest.raises(ValueError, match=r"one array of outputs .* got a tuple"):
        ask(lambda x: (x, x))
    ask(lambda x: x)


def test_broadcast_losses_are_rejected(sentences):
    risk = empirical_risk(lambda x: x, lambda outputs, y: (outputs - y[None]) ** 2)
    batch = jnp.ones((4, 1)), jnp.ones(4)
    with pytest.raises(ValueError, match=r"got float32 \(4, 4\); outputs and y were broadcast"):
        risk((), batch)
    empirical_risk(lambda x: x, lambda outputs, y: (outputs - y[:, None]) ** 2)((), batch)
    with pytest.raises(TypeError, match="empirical_risk expected loss to be a function"):
        empirical_risk(lambda x: x, 3)


def test_wrong_minibatches_are_rejected(sentences):
    f, data = jnp.mean, jnp.ones(4)
    with pytest.raises(ValueError, match="batch_size to be an integer >= 1.*, got 0"):
        over_minibatches(f, data, batch_size=0)
    with pytest.raises(ValueError, match=r"equally many rows, at least one, got float32 \(4,\), float32 \(3,\)"):
        over_minibatches(f, (data, jnp.ones(3)), batch_size=2)
    with pytest.raises(TypeError, match=r"batch_size, or a list .*got float32 \(4,\); pass batch_size=64"):
        over_minibatches(f, data)
    assert over_minibatches(f, data, batch_size=64)() == 1
    with pytest.raises(TypeError, match=r"got a list_iterator; pass list\(batches\)"):
        over_minibatches(f, iter([data]))
    assert over_minibatches(f, list(iter([data])))() == 1
    with pytest.raises(ValueError, match="at least one batch, got an empty list"):
        over_minibatches(f, [])
    with pytest.raises(
        TypeError,
        match="over_minibatches expected f to return .*; return the mean over the rows",
    ):
        over_minibatches(lambda batch: jnp.argmax(batch), data, batch_size=2)()
    with pytest.raises(TypeError, match="expected key to be a key, got 0"):
        over_minibatches(f, data, batch_size=2, key=0)
