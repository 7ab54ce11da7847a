"""The planned Jacobian against jax.jacrev, its operations and bytes, and its bracketing against all others."""

import functools
import itertools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bracketings import every_price
from jax import lax

from jaxblocks.ad.counting.counts import count_flops, count_jaxpr
from jaxblocks.ad.jacobians import jacobian, jacobian_plan
from jaxblocks.ad.planning import Chain, Part, as_product, best_bracketing
from jaxblocks.ad.planning import plan as planning_plan
from jaxblocks.ad.programs.jaxprs import all_equations


def normal(seed, *shape, dtype=np.float32):
    return np.asarray(np.random.RandomState(seed).randn(*shape) / math.sqrt(shape[0] if shape else 1), dtype)


def mlp(*widths, dtype=jnp.float32):
    layers = [
        (normal(i, a, b, dtype=dtype), normal(50 + i, b, dtype=dtype))
        for i, (a, b) in enumerate(itertools.pairwise(widths))
    ]

    def f(x):
        for w, b in layers:
            x = jnp.tanh(x @ w + b)
        return x

    return f


def conv(x, w, stride=1):
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def conv_autoencoder(side=8, code=2, channels=3, dtype=jnp.float32):
    k1, k2 = normal(1, 3, 3, 1, channels, dtype=dtype), normal(2, 3, 3, channels, 1, dtype=dtype)
    n = (side // 2) ** 2 * channels
    w1, w2 = normal(3, n, code, dtype=dtype), normal(4, code, n, dtype=dtype)

    def f(x):
        x = jnp.tanh(conv(x[None, :, :, None], k1, 2)).reshape(-1)
        x = (jnp.tanh(x @ w1) @ w2).reshape(1, side // 2, side // 2, channels)
        return lax.conv_transpose(jnp.tanh(x), k2, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))[
            0, ..., 0
        ]

    return f


def transformer(length=4, d=8, code=3, dtype=jnp.float32):
    q, k, v, o = (normal(i, d, 2, d // 2, dtype=dtype) for i in range(4))
    narrow, wide = normal(5, d, code, dtype=dtype), normal(6, code, length * d, dtype=dtype)

    def block(x):
        h = x - x.mean(-1, keepdims=True)
        h = h * lax.rsqrt((h * h).mean(-1, keepdims=True) + 1e-5)
        scores = jnp.einsum("qhk,shk->hqs", jnp.einsum("td,dhk->thk", h, q), jnp.einsum("td,dhk->thk", h, k))
        x = x + jnp.einsum("hqs,shk,dhk->qd", jax.nn.softmax(scores), jnp.einsum("td,dhk->thk", h, v), o)
        return x + jax.nn.gelu(x)

    return lambda x: block((jnp.tanh(block(x).mean(0) @ narrow) @ wide).reshape(length, d))


def latent_ode(wide=12, code=2, dtype=jnp.float32):
    w1, w2, a = (
        normal(1, wide, code, dtype=dtype),
        normal(2, code, wide, dtype=dtype),
        normal(3, code, code, dtype=dtype),
    )

    def f(x):
        z, path = lax.scan(lambda z, t: (z + 0.1 * jnp.tanh(z @ a) * t, z), x @ w1, jnp.ones(5, dtype))
        return jnp.tanh(z @ w2) + path.sum()

    return f


def residual(width=6, blocks=3, dtype=jnp.float32):
    ws = [(normal(i, width, width, dtype=dtype), normal(9 + i, width, width, dtype=dtype)) for i in range(blocks)]

    def f(x):
        for a, b in ws:
            x = x + jax.nn.relu(x @ a) @ b
        return x

    return f


def variational(n=12, code=2, dtype=jnp.float32):
    w, a, b, out = (normal(i, *s, dtype=dtype) for i, s in enumerate([(n, 6), (6, code), (6, code), (code, n)]))

    def f(x):
        h = jnp.tanh(x @ w)
        mean, spread = h @ a, h @ b
        return {"y": jnp.tanh((mean + 0.3 * jnp.exp(spread / 2)) @ out), "code": (mean, spread)}

    return f


@jax.custom_vjp
def swish(x):
    return x * jax.nn.sigmoid(x)


swish.defvjp(lambda x: (swish(x), x), lambda x, g: (g * (jax.nn.sigmoid(x) * (1 + x * (1 - jax.nn.sigmoid(x)))),))


@functools.cache
def zoo(dtype):
    """Each kind of function that the planner handles, as name: (f, x)."""
    w, v, vector = normal(0, 10, 2, dtype=dtype), normal(1, 2, 10, dtype=dtype), normal(2, 10, dtype=dtype)
    square = normal(3, 10, 10, dtype=dtype)
    net = mlp(10, 8, 2, 8, 12, dtype=dtype)
    return {
        "bottleneck": (net, vector),
        "matrix from the left": (lambda x: w @ jnp.tanh(v @ jnp.tanh(w @ (v @ x))), vector),
        "single row": (lambda x: jnp.tanh(jnp.tanh(x[None] @ w) @ v), vector),
        "contracted with a tensor": (
            lambda x: jnp.tensordot(
                v.reshape(2, 2, 5), jnp.tanh(jnp.tensordot(x, w.reshape(5, 2, 2), ((1, 0), (0, 2)))), ((0,), (0,))
            ),
            vector.reshape(2, 5),
        ),
        "scaled before and after": (lambda x: 3 * jnp.tanh((x * vector) @ w) @ (v * 2) * vector, vector),
        "conv autoencoder": (conv_autoencoder(dtype=dtype), normal(4, 8, 8, dtype=dtype)),
        "transformer": (transformer(dtype=dtype), normal(4, 4, 8, dtype=dtype)),
        "latent ODE": (latent_ode(dtype=dtype), normal(4, 12, dtype=dtype)),
        "residual": (residual(dtype=dtype), vector[:6]),
        "several outputs": (variational(dtype=dtype), normal(4, 12, dtype=dtype)),
        "several inputs": (
            lambda p: {"a": jnp.tanh(jnp.tanh(p["x"] @ p["w"][0]) @ p["w"][1]), "b": p["x"] * 2},
            {"x": vector, "w": [w, v]},
        ),
        "batch": (jax.vmap(mlp(6, 1, 6, dtype=dtype)), normal(5, 3, 6, dtype=dtype)),
        "jit inside": (lambda x: jax.jit(lambda x: jnp.tanh(x @ w))(jax.jit(net)(x)[:10]) @ v, vector),
        "remat": (lambda x: jax.checkpoint(lambda x: jax.nn.relu(jnp.sin(x @ w)) @ v)(x) @ square, vector),
        "cond": (lambda x: lax.cond(x[0] > 0, jnp.sin, jnp.cos, x @ w) @ v, vector),
        "while": (
            lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.sin(c[1])), (0, x @ w))[1] @ v,
            vector,
        ),
        "custom vjp": (lambda x: swish(x @ w) @ v @ square, vector),
        "complex inside": (lambda x: jnp.fft.irfft(jnp.fft.rfft(x)[:3], n=10) ** 2, vector),
        "complex factors": (lambda x: jnp.imag(lax.complex(x, x) * (1 + 2j) * (3 - 1j)), vector),
        "sort and gather": (lambda x: jnp.sort(x)[jnp.array([1, 3, 3])] * x[2], vector),
        "used twice": (lambda x: jnp.outer(x @ w, x @ w), vector),
        "scalar in and out": (lambda x: jnp.sin(x) * x, vector[0]),
        "scalar out": (lambda x: jnp.sum(net(x) ** 2), vector),
        "scalar in": (lambda x: x * vector, vector[0]),
        "identity and constant": (lambda x: (x, jnp.ones(3, dtype), x @ w, x), vector),
        "constant": (lambda x: jnp.ones((2, 3), dtype), vector),
        "narrow constant": (lambda x: (x * 0).sum() + vector, vector),
        "output of size zero": (lambda x: (x[:0], x * 2), vector),
        "input of size zero": (lambda x: jnp.ones(2, dtype) + x.sum(), vector[:0]),
    }


def agree(got, expected):
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def reference(name):
    return jax.jacfwd if name == "while" else jax.jacrev


BATCHED = ["bottleneck", "conv autoencoder", "several outputs", "several inputs", "used twice", "custom vjp", "while"]


@functools.cache
def every_jacobian():
    """For each function the Jacobian of JAX and those of the planner, from one program."""

    def each(points):
        found = {}
        for name, x in points.items():
            f = zoo(jnp.float64)[name][0]
            sizes = (None, 3) if name == "bottleneck" else (3 if name in BATCHED else None,)
            found[name] = reference(name)(f)(x), *(jacobian(f, chunk_size=size)(x) for size in sizes)
        return found

    with jax.enable_x64(True), pytest.MonkeyPatch.context() as patched:
        patched.setattr(planning_plan, "LEAST_GAIN", 0.0)
        return jax.jit(each)({name: x for name, (_, x) in zoo(jnp.float64).items()})


@pytest.mark.parametrize("name", zoo(jnp.float32))
def test_equals_the_jacobian_of_jax(name):
    """Equal to jax.jacrev in float64, with the cheapest bracketing even without a gain, at once or in batches."""
    expected, *got = every_jacobian()[name]
    for derivative in got:
        agree(derivative, expected)


def test_two_narrow_values_side_by_side_are_one_cut():
    encode, decode = normal(1, 2, 512, 4), normal(2, 2, 4, 512)

    def f(x):
        left, right = jnp.tanh(x @ encode[0]), jnp.sin(x @ encode[1])
        return jnp.tanh(left @ decode[0]) + jnp.cos(right @ decode[1])

    plan = jacobian_plan(f, normal(3, 512))
    assert plan.bracketing == "J2 J1" and plan.stages[0].n_out == 8


def test_forward_and_reverse_mode_in_batches():
    """Forward and reverse mode in batches of any size are the Jacobian."""
    with jax.enable_x64(True):
        f, x = zoo(jnp.float64)["several inputs"]

        def every(x):
            ways = [("forward", 5), ("reverse", 5), ("reverse", 99)]
            return jax.jacrev(f)(x), *(jacobian(f, mode=mode, chunk_size=size)(x) for mode, size in ways)

        expected, *got = jax.jit(every)(x)
        for derivative in got:
            agree(derivative, expected)


def test_eager_execution():
    """The result without jit is the same."""
    with jax.enable_x64(True):
        f, x = zoo(jnp.float64)["identity and constant"]
        agree(jacobian(f)(x), jax.jit(jax.jacrev(f))(x))


def test_under_transformations():
    """Under vmap and grad the result equals that of jax.jacrev, also in batches."""
    with jax.enable_x64(True):
        f, x = zoo(jnp.float64)["remat"]

        def every(derivative):
            def squares(x):
                return sum(jnp.sum(jnp.sin(j)) for j in jax.tree.leaves(derivative(x)))

            return lambda x: (jax.vmap(derivative)(jnp.stack([x, 2 * x])), jax.grad(squares)(x))

        derivatives = (jax.jacrev(f), *(jacobian(f, chunk_size=chunk_size) for chunk_size in (None, 3)))
        expected, *got = jax.jit(lambda x: [every(derivative)(x) for derivative in derivatives])(x)
        for parts in got:
            agree(parts, expected)


def test_mixed_precision():
    """With half precision in part of the function or inputs, it is as accurate, and has jacfwd's dtypes."""
    w, v = normal(0, 40, 2, dtype=jnp.bfloat16), normal(1, 2, 40)

    def inside(x):
        return jnp.tanh((jnp.tanh(x).astype(jnp.bfloat16) @ w).astype(jnp.float32) @ v)

    def beside(x):
        return {"x": inside(x["a"]), "y": x["b"] * 2}

    for f, x in ((inside, normal(2, 40)), (beside, {"a": normal(2, 40), "b": normal(3, 4, dtype=jnp.bfloat16)})):
        with jax.numpy_dtype_promotion("standard"):  # jax.jacrev requires it too
            stock = jax.jacfwd if jacobian_plan(f, x).mode == "forward" else jax.jacrev
            expected, got = jax.jit(lambda x, f=f, stock=stock: (stock(f)(x), jacobian(f)(x)))(x)
            dtypes = jax.eval_shape(jax.jacfwd(f), x)
            options = [{"mode": mode, "chunk_size": size} for mode in ("forward", "reverse") for size in (None, 3)]
            for option in options:
                planned = jax.eval_shape(jacobian(f, **option), x)
                assert jax.tree.map(lambda a: a.dtype, planned) == jax.tree.map(lambda a: a.dtype, dtypes), option
        for a, b, of in zip(*map(jax.tree.leaves, (got, expected, dtypes)), strict=True):
            assert a.dtype == of.dtype
            np.testing.assert_allclose(a.astype(jnp.float32), b.astype(jnp.float32), rtol=0.03, atol=0.01)


def test_arguments_after_the_first():
    """Only the first argument is differentiated; the others are passed on and may be integers or flags."""

    def f(x, w, power, *, flip=False):
        return (-1 if flip else 1) * (x @ w) ** power

    x, w = normal(0, 4), normal(1, 4, 2)
    found = jax.jit(jacobian(f), static_argnums=2, static_argnames="flip")(x, w, 3, flip=True)
    np.testing.assert_allclose(found, -3 * ((x @ w) ** 2)[:, None] * w.T, rtol=1e-5)
    assert jacobian_plan(f, x, w, 3, flip=True).n_out == 2


# ---- bracketings ----------------------------------------------------------------------------


def random_chain(rng, length):
    sizes = rng.randint(1, 20, length + 1)
    edges = np.array([rng.randint(a + b, a * b + a + b) for a, b in itertools.pairwise(sizes)])
    sweeps = np.multiply.outer(edges, sizes).astype(float)
    if length > 2:
        sweeps[rng.randint(length)] = np.inf  # one stage without sweeps
    return Chain(sizes, edges * np.minimum(sizes[:-1], sizes[1:]), sweeps, np.multiply.outer(edges, sizes) * 1.5)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 6])
def test_no_bracketing_is_cheaper(length):
    """Dynamic programming finds the minimum cost."""
    rng = np.random.RandomState(length)
    for _ in range(8 if length < 6 else 2):
        chain = random_chain(rng, length)
        assert best_bracketing(chain)[0] == min(every_price(chain, 0, length))


def test_published_instance():
    """Naumann's ADMission, GDJCPB/p_3_3.1: optimum 56, tangent 150, adjoint 100, preaccumulation 108 + 15."""
    sizes, edges = np.array([3, 3, 1, 2]), np.array([29, 14, 7])
    sweeps = np.multiply.outer(edges, sizes)
    chain = Chain(sizes, edges * np.minimum(sizes[:-1], sizes[1:]), sweeps, sweeps)
    price, part = best_bracketing(chain)
    assert price == 56
    assert part == Part("product", 0, 3, Part("own", 2, 3), Part("reverse", 0, 2, Part("own", 1, 2)))
    assert sweeps[:, 0].sum() == 150 and sweeps[:, -1].sum() == 100
    assert chain.own.sum() == 108
    never = np.full_like(sweeps, np.inf, dtype=float)
    assert best_bracketing(Chain(sizes, chain.own, never, never))[0] == 123


def test_ties_prefer_the_longest_sweep():
    """If all widths are one, the plan is one sweep."""
    ones = np.ones((5, 6))
    price, part = best_bracketing(Chain([1] * 6, np.ones(5), ones, ones))
    assert price == 5 and as_product(part) == "J5 (J4 (J3 (J2 J1)))"


# ---- cost -----------------------------------------------------------------------------------


def compiled(derivative, x):
    return jax.jit(derivative).lower(x).compile()


NAMED = {  # f, x, least factors of saved operations and of saved temporary bytes
    "conv autoencoder": (conv_autoencoder(40, 8, 16), normal(0, 40, 40), 16, 300),
    "MLP": (mlp(1024, 1024, 8, 1024, 1024), normal(0, 1024), 75, 50),
}


@functools.cache
def traced(name, derivative):
    """The derivative of a function of `NAMED`, traced once for its count and its compilation."""
    f, x, _, _ = NAMED[name]
    return jax.jit(derivative(f)).trace(x)


def operations_of(name, derivative):
    return count_jaxpr(traced(name, derivative).jaxpr.jaxpr).flops


@pytest.mark.cpu  # memory without the workspace of products
@pytest.mark.parametrize("name", NAMED)
def test_saves_operations_and_memory(name):
    """On nets with a narrow layer, by at least the published factors."""
    _, _, operations, memory = NAMED[name]
    stock = [jax.jacfwd, jax.jacrev]
    assert operations_of(name, jacobian) * operations <= min(operations_of(name, j) for j in stock)
    programs = [traced(name, j).lower().compile() for j in (jacobian, *stock)]
    ours, *theirs = (program.memory_analysis().temp_size_in_bytes for program in programs)
    assert ours * memory <= min(theirs)


def test_operations_equal_the_prediction():
    """The compiled operations are the predicted ones, those of the function itself, and few others."""
    for name, (f, x, _, _) in NAMED.items():
        predicted = jacobian_plan(f, x).operations["chosen"]
        counted = operations_of(name, jacobian)
        assert abs(counted - predicted - 2 * count_flops(f, x).flops) < 0.15 * counted


MAPS = {
    "fft": lambda x: jnp.fft.irfft(jnp.fft.rfft(x)),
    "triangular_solve": lambda x: jax.scipy.linalg.solve_triangular(TRIANGLE, x, lower=True),
    "custom_linear_solve": lambda x: jnp.linalg.solve(TRIANGLE, x),
    "cumsum": lambda x: jnp.cumsum(x * x),
    "sort": lambda x: jnp.sort(x) ** 2,
    "cholesky": lambda x: jnp.linalg.cholesky(jnp.diag(x)),
    "scatter-add": lambda x: jax.ops.segment_sum(x * x, jnp.arange(12) // 4, 4),
    "dot_general": lambda x: jnp.tanh(TRIANGLE @ jnp.tanh(TRIANGLE @ x)),
}
TRIANGLE = np.tri(12, dtype=np.float32) + np.eye(12, dtype=np.float32)


@pytest.mark.parametrize("name", MAPS)
def test_operations_of_forward_mode_are_those_of_the_linear_map(name):
    f, x = MAPS[name], jnp.linspace(1, 2, 12)
    push = jax.linearize(f, x)[1]
    assert jacobian_plan(f, x).operations["forward"] == 12 * count_flops(push, x).flops


@pytest.mark.parametrize(
    ("f", "n", "mode", "stock"),
    [
        (mlp(64, 32, 16, 4), 64, "reverse", jax.jacrev),
        (mlp(4, 32, 64), 4, "forward", jax.jacfwd),
        (residual(16), 16, "reverse", jax.jacrev),
    ],
)
def test_uses_jax_jacobians_without_a_gain(f, n, mode, stock):
    """The program equals that of jax.jacfwd or jax.jacrev, equation by equation, and the plan states this."""
    x = normal(0, n)
    plan = jacobian_plan(f, x)
    assert plan.mode == mode and stock.__name__ in plan.explain()

    def live(derivative):
        compiled = jax.jit(derivative).lower(x).compile()
        return compiled.cost_analysis()["flops"], compiled.memory_analysis().temp_size_in_bytes

    assert live(jacobian(f)) == live(stock(f))


@pytest.mark.cpu
def test_memory_is_bounded(monkeypatch):
    """The compiled program stays within the bound, of a dense net and of convolutions."""
    bound = 1_000_000
    monkeypatch.setattr(planning_plan, "AUTO_MEMORY", bound)
    net, images = (mlp(256, 512, 256), normal(0, 256)), (conv_autoencoder(16, 200, 8), normal(0, 16, 16))
    for (f, x), mode in ((net, "reverse"), (net, "forward"), (images, "reverse")):
        plan = jacobian_plan(f, x, mode=mode)
        assert plan.chunk_size is not None and plan.temporary_bytes <= bound
        assert compiled(jacobian(f, mode=mode), x).memory_analysis().temp_size_in_bytes <= bound


@pytest.mark.cpu
@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_convolutions_in_batches_have_the_layout_of_xla(mode):
    """In the loop over batches channels are last, which is fast on CPU; the convolution itself has them first."""
    x, kernel = jnp.ones((4, 8, 8)), jnp.ones((6, 4, 3, 3))
    derivative = jacobian(lambda x: jnp.sin(lax.conv(x[None], kernel, (1, 1), "SAME")), mode=mode, chunk_size=16)
    equations = all_equations(jax.make_jaxpr(derivative)(x).eqns)
    found = [one.params["dimension_numbers"] for one in equations if one.primitive.name == "conv_general_dilated"]
    assert [one.lhs_spec for one in found] == [(0, 1, 2, 3), (0, 3, 1, 2)]


# ---- print ----------------------------------------------------------------------------------


def test_the_plan_states_its_steps_and_the_reason():
    """The plan lists stages, bracketing, operations and the reason."""
    plan = jacobian_plan(mlp(512, 512, 2, 512, 512), jnp.ones(512))
    sizes = [("dense", 512, 512), ("dense", 512, 2), ("dense", 2, 512), ("dense", 512, 512)]
    assert [(s.kind, s.n_in, s.n_out) for s in plan.stages] == sizes
    assert plan.mode == "mixed" and plan.bracketing == "(J4 J3) (J2 J1)"
    words = plan.explain()
    for word in ("J2: 512 -> 2, dense", plan.bracketing, f"{plan.operations['forward']:,}", "times faster", "product"):
        assert word in words
    assert "dense" in plan._repr_html_()
    assert repr(plan) == words and words.splitlines()[0] in plan._repr_html_()


def test_the_plan_of_a_known_matrix():
    """A stage with a known matrix needs no sweep, only a scaling of its rows."""
    w = jnp.ones((300, 300))
    plan = jacobian_plan(lambda x: jnp.sin(x @ w), jnp.ones(300))
    words = plan.explain()
    assert plan.mode == "known" and plan.operations["chosen"] == 300 * 300 + 300 and plan.temporary_bytes > 0
    assert "1. J1 is known: its matrix, scaled row by row" in words
    assert "mixed" not in words and "bracketing" not in words and "batches: none" in words
    assert "column by column" in jacobian_plan(lambda x: jnp.sin(x) @ w, jnp.ones(300)).explain()


def test_sweeps_are_described():
    """Every stage of the bracketing has its step in the plan."""
    a, b = jnp.ones((200, 3)), jnp.ones((3, 200))
    plan = jacobian_plan(lambda x: jnp.sin(jnp.sin(x @ a) @ b), jnp.ones(200))
    assert plan.sweeps == ("J2 is known: its matrix, scaled row by row", "200 rows pulled through J1")


def test_plans_from_shapes():
    """A plan needs no values and is equal for arrays and shapes."""
    f = mlp(16, 2, 16)
    assert jacobian_plan(f, jax.ShapeDtypeStruct((16,), jnp.float32)) == jacobian_plan(f, jnp.ones(16))


def test_errors_state_the_repair(sentences):
    """Each error has the standard form, and its repair works."""
    x = jnp.ones(3)
    for wrong, word in [
        (lambda: jacobian(3.0), "expected f to be a function, got 3.0"),
        (lambda: jacobian(jnp.sin, mode="fwd"), "'auto' or 'forward' or 'reverse', got 'fwd'"),
        (
            lambda: jacobian(jnp.sin, chunk_size=0),
            "chunk_size to be an integer >= 1 or 'auto' or None, got 0",
        ),
        (lambda: jacobian(jnp.sin, chunk_size=2.5), "to be an integer >= 1 or 'auto' or None, got 2.5"),
        (lambda: jacobian(jnp.sin, chunk_size="big"), "or 'auto' or None, got 'big'"),
        (
            lambda: jacobian(lambda p: p["a"])({"a": x, "n": jnp.arange(2)}),
            r"got int32 \(2,\) at x\['n'\]",
        ),
        (lambda: jacobian(jnp.sin)(()), "at least one array"),
        (
            lambda: jacobian(lambda x: (x, {"i": jnp.argmax(x)}))(x),
            r"got int32 \(\) at f\(x\)\[1\]\['i'\]",
        ),
        (lambda: jacobian(lambda x: None)(x), "f to return at least one array, got None; return what"),
        (lambda: jacobian(lambda x: x)("a"), "got 'a' at x; give an array, or pass it after x"),
        (lambda: jacobian(lambda x: [x, "s"])(x), r"got 's' at f\(x\)\[1\]; give an array, or omit it"),
        (lambda: jacobian(jnp.sin)(3), "got 3 at x; write 3.0, or pass it after x"),
    ]:
        with pytest.raises((TypeError, ValueError), match=word):
            wrong()
    np.testing.assert_allclose(jacobian(jnp.sin)(jnp.arange(3).astype(jnp.float32)), jnp.diag(jnp.cos(jnp.arange(3.0))))
    np.testing.assert_allclose(jacobian(jnp.sin)(2.0), np.cos(2.0), rtol=1e-6)
    np.testing.assert_allclose(jacobian(jnp.sin)(3.0), np.cos(3.0), rtol=1e-6)


def test_functions_without_either_mode(sentences):
    """A custom vjp rule in a while loop supports neither mode; both repairs that the error names give the Jacobian."""

    @jax.custom_vjp
    def reverse_only(x):
        return jnp.sin(x)

    reverse_only.defvjp(lambda x: (jnp.sin(x), x), lambda x, bar: (bar * jnp.cos(x),))

    @jax.custom_jvp
    def with_jvp(x):
        return jnp.sin(x)

    with_jvp.defjvp(lambda x, v: (jnp.sin(x[0]), v[0] * jnp.cos(x[0])))

    def looped(rule):
        return lambda x: lax.while_loop(lambda state: state[0] < 3, lambda s: (s[0] + 1, rule(s[1])), (0, x))[1]

    def of_fixed_length(x):
        return lax.fori_loop(0, 3, lambda i, h: reverse_only(h), x)

    x = jnp.linspace(0.5, 1.0, 3)
    for wrong in (jacobian(looped(reverse_only)), lambda x: jacobian_plan(looped(reverse_only), x)):
        with pytest.raises(
            TypeError,
            match="a while loop, .* and a custom_vjp, .*scan",
        ):
            wrong(x)
    fixed = jax.jit(jax.jacfwd(lambda x: jnp.sin(jnp.sin(jnp.sin(x)))))
    wanted = fixed(x)
    change = jax.jvp(jacobian(looped(with_jvp)), (x,), (x,))[1]
    np.testing.assert_allclose(change, jax.jvp(fixed, (x,), (x,))[1], rtol=1e-5, atol=1e-7)
    with pytest.raises(TypeError, match="in reverse mode, got a while loop, .*mode='forward'"):
        jax.jvp(jacobian(looped(with_jvp), mode="reverse"), (x,), (x,))
    for right in (of_fixed_length, looped(with_jvp)):
        np.testing.assert_allclose(jacobian(right)(x), wanted, rtol=1e-6)


# ---- the options of jax.jacfwd and jax.jacrev ---------------------------------------------------


def same(found, expected):
    chex.assert_trees_all_equal_shapes_and_dtypes(found, expected)
    chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-6)


def test_arguments_and_auxiliary_data():
    x, tree = normal(0, 3), {"u": normal(1, 3), "v": normal(2)}
    f = lambda a, b, c=1.0: ({"y": c * a * jnp.sum(b["u"]), "s": jnp.sum(a)}, {"aux": a + 1.0})
    options = dict(argnums=(0, -1), has_aux=True)
    first = lambda *args: f(*args)[0]

    @jax.jit
    def every(x, tree):
        both = [derivative(f, **options)(x, tree, c=2.0) for derivative in (jacobian, jax.jacrev)]
        one = jacobian(first, argnums=1, chunk_size=1)(x, tree), jax.jacfwd(first, argnums=1)(x, tree)
        return both, one

    for found, expected in every(x, tree):
        same(found, expected)
    assert jacobian_plan(first, x, tree, argnums=(0, 1)).n_in == 3 + 4
    with pytest.raises(ValueError, match=r"jacobian expected argnums below 2.* got 2; pass the arguments"):
        jacobian(first, argnums=2)(x, tree)
    with pytest.raises(ValueError, match=r"jacobian expected argnums without repetition, got \(0, -2\); name each"):
        jacobian(first, argnums=(0, -2))(x, tree)
    with pytest.raises(TypeError, match=r"a pair \(value, aux\) for has_aux=True"):
        jacobian(jnp.sin, has_aux=True)(x)


def test_complex_numbers_are_refused():
    z = jnp.array([1.0 + 2.0j])
    for f, x, where in ((jnp.abs, z, "x"), (lambda x: jax.lax.complex(x, x), z.real, r"f\(x\)")):
        with pytest.raises(TypeError, match=rf"got complex64 \(1,\) at {where}; pass its real and imaginary parts"):
            jacobian(f)(x)
    parts = lambda re, im: jnp.abs(jax.lax.complex(re, im))
    found = jacobian(parts, argnums=(0, 1))(z.real, z.imag)
    np.testing.assert_allclose(np.ravel(found), np.array([1, 2]) / np.sqrt(5), rtol=1e-6)
