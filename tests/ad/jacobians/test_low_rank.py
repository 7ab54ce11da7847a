"""Jacobians of blocks that are a diagonal plus a matrix of low rank: their factors, their plans and their prices."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bracketings import every_price
from jax import lax

from jaxblocks.ad import planning
from jaxblocks.ad.counting import count_flops
from jaxblocks.ad.jacobians import jacobian, jacobian_plan, jacobians, low_rank
from jaxblocks.ad.jacobians.execution import execute
from jaxblocks.ad.planning import Chain, Prices, best_bracketing
from jaxblocks.ad.planning import plan as planning_plan

# Only operations have a price, so that nets of test size are planned as large ones are.
OPERATIONS = Prices(launch=0.0, switch=0.0, call=0.0, bandwidth=1e20, turn=1e20)


def normal(seed, *shape, like=None):
    """Normal numbers, in the dtype of ``like`` or in that of the precision that is switched on."""
    numbers = np.random.RandomState(seed).randn(*shape) / np.sqrt(shape[0])
    return jnp.asarray(numbers.astype(jnp.result_type(float) if like is None else like.dtype))  # cast by NumPy


def same(x):
    return x


def layer_norm(x):
    x = x - x.mean(-1, keepdims=True)
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)


def residual(n=24, bottleneck=2, blocks=3, *, wide=None, before=same, after=same, inside=jnp.tanh):
    sizes = (n, bottleneck, n) if wide is None else (n, wide, bottleneck, wide, n)

    def f(x):
        for k in range(blocks):
            *inner, last = (normal(10 * k + i, a, b, like=x) for i, (a, b) in enumerate(itertools.pairwise(sizes)))
            h = before(x)
            for w in inner:
                h = inside(h @ w)
            x = after(x + h @ last)
        return x

    return f


def parallel(x):
    """Two branches of one sum, one of them in single precision, and a gate by a scalar."""
    a, b = normal(1, 24, 2, like=x), normal(2, 2, 24, like=x)
    low = jnp.sin(x.astype(jnp.float32) @ a.astype(jnp.float32)) @ b.astype(jnp.float32)
    return x * jax.nn.sigmoid(x.mean()) + jnp.tanh(x @ a[:, :1]) @ b[:1] + low.astype(x.dtype)


def between(x):
    return jnp.tanh(residual(24, 2, 2)(jnp.tanh(x @ normal(30, 40, 24, like=x))) @ normal(31, 24, 44, like=x))


def precisions(x):
    """Stages in single precision between matrices in double precision, and stages of both next to each other."""
    double = residual(24, 2, 1)(x @ normal(30, 40, 24, like=x))
    return residual(24, 2, 1)(double.astype(jnp.float32)).astype(x.dtype) @ normal(31, 24, 44, like=x)


CASES = {  # f, its inputs, the ranks of its stages (0 where a stage is not of low rank)
    "wide layers around the bottleneck": (residual(wide=20), 24, [6]),
    "LayerNorm before": (residual(before=layer_norm), 24, [6]),
    "LayerNorm after": (residual(bottleneck=1, blocks=2, after=layer_norm), 24, [6]),
    "more than a quarter": (residual(bottleneck=4), 24, [4, 4, 4]),
    "two branches": (parallel, 24, [4]),
    "between matrices": (between, 40, [0, 4, 0]),
    "two precisions": (precisions, 40, [0, 4, 0]),
    "on the axes of an image": (lambda x: residual(24, 2, 2)(x.reshape(24)).reshape(2, 3, 4).ravel() ** 2, 24, [4]),
}


def route_of(f, n, prices=OPERATIONS):
    linear = planning.linearized(lambda x: ([f(x)], None), [jnp.zeros(n) + 0.3])
    return linear, planning.make_plan(linear, prices=prices)


@pytest.mark.parametrize("name", CASES)
def test_equals_the_jacobian_of_jax(name, monkeypatch):
    """By factors, in two cases also in batches, in float64."""
    monkeypatch.setattr(planning_plan, "LEAST_GAIN", 0.0)
    monkeypatch.setattr(jacobians, "make_plan", partial(planning.make_plan, prices=OPERATIONS))
    # On an accelerator, the two orders of single precision would be rounded differently.
    with jax.enable_x64(True), jax.default_matmul_precision("float32"):
        f, n, ranks = CASES[name]
        x = normal(7, n) * 3
        sizes = (None, 3) if name in ("between matrices", "two precisions") else (None,)
        expected, *got = jax.jit(lambda x: [jax.jacrev(f)(x), *(jacobian(f, chunk_size=n)(x) for n in sizes)])(x)
        tolerance = 1e-5 if name in ("two branches", "two precisions") else 1e-12
        for each in got:
            np.testing.assert_allclose(each, expected, rtol=tolerance, atol=tolerance)
        _, route = route_of(f, n)
        assert [link.rank for link in route.links] == ranks and route.plan.mode == "mixed"


def test_transformations():
    """Under vmap, and differentiated again: the gradient of a function of the Jacobian."""
    f = residual(24, 2, 2, before=layer_norm, after=jnp.tanh)

    def forced(x):
        linear = planning.linearized(lambda x: ([f(x)], None), [x])
        return execute(linear, planning.make_plan(linear, prices=OPERATIONS)).arrays[0]

    def total(derivative):
        return lambda x: (jnp.cos(derivative(x)) * jnp.arange(576.0).reshape(24, 24)).sum()

    with jax.enable_x64(True):
        xs = normal(3, 2, 24)
        both = jax.jit(
            lambda xs: [jax.vmap(lambda x, d=d: (d(x), jax.grad(total(d))(x)))(xs) for d in (forced, jax.jacrev(f))]
        )
        got, expected = both(xs)
        np.testing.assert_allclose(got[0], expected[0], rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(got[1], expected[1], rtol=1e-9, atol=1e-9)


def test_algebra():
    """Products of factors are products of their matrices, on either side, in either layout, also of two precisions."""
    rng = np.random.RandomState(0)
    with jax.enable_x64(True):
        chain = [
            low_rank.LowRank(*map(jnp.asarray, (rng.randn(5), rng.randn(r, 5), rng.randn(r, 5)))) for r in (1, 2, 3)
        ]
        chain[1] = low_rank.LowRank(*(factor.astype(jnp.float32) for factor in chain[1]))  # stages may differ
        exact = [[np.asarray(factor, np.float64) for factor in c] for c in chain]
        matrices = [np.diag(diagonal) + columns.T @ rows for diagonal, columns, rows in exact]
        other = rng.randn(5, 4)
        ways = list(itertools.product((0, 1), (True, False)))

        @jax.jit
        def run(chain, other):
            whole, sides = low_rank.chained(chain), (other, other.T)
            products = [low_rank.multiply(chain[2], sides[axis], axis, left=left) for axis, left in ways]
            return whole, low_rank.dense(whole), products

        whole, dense, products = run(chain, other)
        assert whole.columns.shape == (6, 5)
        np.testing.assert_allclose(dense, matrices[2] @ matrices[1] @ matrices[0], rtol=1e-10)
        for (axis, left), got in zip(ways, products, strict=True):
            product = matrices[2] @ other if left else other.T @ matrices[2]
            np.testing.assert_allclose(got, product if (axis == 0) == left else product.T, rtol=1e-10)


def test_no_bracketing_with_factors_is_cheaper():
    """Dynamic programming finds the least price where some stages have factors."""
    rng = np.random.RandomState(1)
    for length in (1, 2, 3, 4, 5):
        sizes = rng.randint(1, 20, length + 1)
        edges = rng.randint(20, 200, length).astype(float)
        sweeps, factored = np.outer(edges, sizes), np.outer(edges, sizes) * 0.3
        factored[rng.rand(length) < 0.5] = np.inf
        chain = Chain(
            sizes.tolist(), edges * np.minimum(sizes[:-1], sizes[1:]), sweeps, 1.5 * sweeps, factored=factored
        )
        np.testing.assert_allclose(best_bracketing(chain)[0], min(every_price(chain, 0, length)))


def test_wide_nets_use_the_factors_without_being_told():
    """At width 512 the default plan saves operations by the factor that it predicts, and says how."""
    x = jnp.zeros(512, jnp.float32)
    f = residual(512, 8, 4)
    plan = jacobian_plan(f, x)
    assert plan.mode == "mixed" and plan.gain > 1.4 and [stage.kind for stage in plan.stages] == ["low-rank"]
    saved = min(count_flops(mode(f), x).flops for mode in (jax.jacfwd, jax.jacrev)) / count_flops(jacobian(f), x).flops
    assert saved > 1.8
    words = plan.explain()
    assert "1. J1 is a diagonal plus rank 32: 32 seeds pushed from and pulled to 4 bottlenecks" in words
    assert "all seeds of a sweep at once" in words
    square = jacobian_plan(lambda x: f(jnp.tanh(x @ normal(3, 512, 512, like=x))), x)
    assert "2. product with the factors of J2, a diagonal plus rank 32" in square.explain()


@jax.custom_vjp
def doubled(x):
    return 2 * x


doubled.defvjp(lambda x: (2 * x, None), lambda _, g: (2 * g,))


@pytest.mark.parametrize(
    ("inside", "where"),
    [
        (lambda z: lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, jnp.sin(c[1])), (0, z))[1], "below"),
        (doubled, "above"),
    ],
)
def test_branches_with_one_mode(inside, where):
    """A loop before the bottleneck has no pulled seeds, a custom rule after it no pushed ones: no factors."""

    def f(x):
        a, b, one = normal(0, 24, 2, like=x), normal(1, 2, 24, like=x), normal(2, 24, 24, like=x)
        return x + (inside(x @ one) @ a @ b if where == "below" else inside(x @ a @ b))

    x = normal(3, 24)
    _, route = route_of(f, 24)
    assert [link.rank for link in route.links] == [0]
    reference = jax.jacfwd if where == "below" else jax.jacrev
    np.testing.assert_allclose(jacobian(f)(x), reference(f)(x), rtol=2e-5, atol=1e-6)


def test_narrow_cuts_within_a_block_do_not_hide_it():
    """Between wide layers, input and bottleneck of a block are narrow enough for a cut."""
    x = jnp.zeros(512, jnp.float32)
    inner, outer = normal(1, 512, 100, like=x), normal(2, 100, 512, like=x)
    f = lambda x: jnp.tanh(residual(100, 2, 3)(jnp.tanh(x @ inner)) @ outer)
    assert [stage.kind for stage in jacobian_plan(f, x).stages] == ["dense", "low-rank", "dense"]
