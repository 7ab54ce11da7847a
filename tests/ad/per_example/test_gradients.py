"""Per-example gradients, their norms, and the noise of minibatch gradients."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import close, params_of
from jax.flatten_util import ravel_pytree

from jaxblocks import (
    MLP,
    Conv,
    ConvTranspose,
    Dense,
    DepthwiseConv,
    Embedding,
    LayerNorm,
    Repeat,
    Residual,
    Serial,
)
from jaxblocks.ad import (
    gradient_noise,
    per_example_gradients,
    per_example_norms,
    per_example_norms_plan,
    private_gradients,
)
from jaxblocks.ad.counting.counts import count_jaxpr, equations


def draw(*shape, seed=1, dtype=np.float64):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def loss_of(net):
    def loss(params, x, weight):
        out = net.apply(params, x)
        return weight * jnp.sum(jnp.cos(out + jnp.arange(out.size, dtype=out.dtype).reshape(out.shape)))

    return loss


def norms_and_reference(loss, params, *batch, **options):
    """The norms of each leaf, and those of the gradients of all examples by JAX."""

    @jax.jit
    def run(params):
        gradients = jax.vmap(jax.grad(loss), (None,) + (0,) * len(batch))(params, *batch)
        return per_example_norms(loss, params, *batch, **options), gradients

    found, gradients = run(params)
    return found, jax.tree.map(lambda leaf: np.linalg.norm(np.reshape(leaf, (len(leaf), -1)), axis=1), gradients)


def ids(*shape):
    return np.random.default_rng(3).integers(0, 4, shape).astype(np.int32)  # some indices are repeated


def flat(*shape):
    return draw(*shape)


NETS = {  # net, examples, methods that its plan must contain
    "dense over time": (Serial(Dense(5), jnp.tanh, Dense(4)), flat, (3, 7, 6), {"product"}),
    "convolution": (
        Serial(Conv(4, (3, 3), stride=2), jax.nn.relu, Conv(6, (2, 2), groups=2, padding="valid")),
        flat,
        (3, 6, 5, 2),
        {"product", "pairs"},
    ),
    "transposed": (ConvTranspose(4, (3,), stride=2), flat, (3, 5, 4), {"product"}),
    "depthwise": (DepthwiseConv((3,)), flat, (3, 5, 4), set()),
    "embedding": (Serial(Embedding(9, 4), Dense(3)), ids, (3, 6), {"rows"}),
    "scanned": (
        Serial(Dense(4), Repeat(Residual(Dense(4), jnp.tanh, LayerNorm()), 2)),
        flat,
        (3, 2, 4),
        {"pairs"},
    ),
}


def test_norms_equal_those_of_the_gradients():
    """The norms of each leaf in float64 under jit, of all nets in one loss; the plan forms no gradient of a kernel."""
    with jax.enable_x64(True):
        x, weight = {name: examples(*shape) for name, (_, examples, shape, _) in NETS.items()}, draw(3, seed=7)
        params = {name: params_of(net, x[name][0]) for name, (net, *_) in NETS.items()}

        @jax.jit  # traced once for norms, reference and plan
        def loss(params, x, weight):
            return sum(loss_of(net)(params[name], x[name], weight) for name, (net, *_) in NETS.items())

        found, expected = norms_and_reference(loss, params, x, weight, per_leaf=True)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-11), found, expected)
        assert jax.tree.structure(found) == jax.tree.structure(params)
        plan = per_example_norms_plan(loss, params, x, weight)
    for name, (*_, ways) in NETS.items():
        leaves = [leaf for leaf in plan.leaves if leaf.name.startswith(f"['{name}']")]
        kernels = [leaf for leaf in leaves if leaf.name.endswith(("kernel']", "embedding']"))]
        assert ways <= {word for leaf in kernels for word in leaf.method.split(" and ")}, name
        if ways or jax.default_backend() == "cpu":  # elsewhere depthwise convolutions are not sums of products
            assert bool(ways) == all(leaf.method != "formed" for leaf in kernels), name


def tied(table, ids):
    return jnp.sum(jnp.sin(jnp.tanh(table[ids]) @ table.T + jnp.arange(9.0, dtype=table.dtype)[None]))


def thrice(w, x):
    return jnp.sum(jnp.sin(jnp.tanh(x @ w) @ w.T @ (3 * w / jnp.sqrt(jnp.asarray(2, w.dtype)))))


def unrolled(w, x):
    return jnp.sum(jnp.sin(jnp.tanh(jnp.tanh(x @ w[0]) @ w[1]) @ w[0]))


def scanned_and_not(w, x):
    return unrolled(w, x) + jnp.sum(jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, w)[0])


def backwards(w, x):
    """Nested scans in reverse; the inner one uses the weights of the outer one."""

    def outer(c, w):
        def inner(c, scale):
            return jnp.tanh(scale * (c @ w)), jnp.sum(c @ w)

        c, sums = jax.lax.scan(inner, c, jnp.arange(1, 3, dtype=c.dtype))
        return c, jnp.sum(sums)

    c, sums = jax.lax.scan(outer, x, w, reverse=True)
    return jnp.sum(jnp.sin(c)) + jnp.sum(sums * jnp.arange(2, dtype=sums.dtype))


def two_stacks(w, x):
    """Two halves of one stack, each in a scan."""

    def step(c, w):
        return jnp.tanh(c @ w), None

    return jnp.sum(jax.lax.scan(step, jax.lax.scan(step, x, w[:1])[0], w[1:])[0])


def recurrent(w, x):
    """A kernel that is used in each step of a loop."""
    return jnp.sum(jax.lax.scan(lambda h, x: (jnp.tanh((h + x) @ w), None), x[0], x)[0])


def carried(w, x):
    def step(c, _):
        return (c[0] + 1, jnp.tanh(c[1] @ c[0])), None

    return jnp.sum(jax.lax.scan(step, (w, x), length=2)[0][1])


def joined(w, x):
    """A kernel concatenated with itself, and its product with itself."""
    return jnp.sum(jnp.sin(x @ jnp.concatenate([w, 2 * w, w @ w], axis=1)))


def below(w, x):
    """Two kernels concatenated along their rows, as in recurrent cells."""
    return jnp.sum(jnp.sin(jnp.concatenate([x, jnp.cos(x)], axis=-1) @ jnp.concatenate([w, w.T], axis=0)))


def by_heads(w, x):
    """A batched product over heads, with the kernel as left and as right operand."""
    heads = w.reshape(6, 2, 3)
    return jnp.sum(jnp.sin(jnp.einsum("dhk,td->htk", heads, x))) + jnp.sum(
        jnp.einsum("td,dhk,hk->t", x, heads, x[:2, :3])
    )


def batched(w, x):
    """A product with a batch axis of the kernel."""
    return jnp.sum(jnp.sin(jnp.einsum("hk,hkn->hn", x, w)) ** 2)


def clipped(table, ids):
    out = jnp.take(table, ids + 6, axis=0, mode="clip") + jnp.take(table, ids + 7, axis=0, mode="fill", fill_value=2.0)
    return jnp.sum(jnp.sin(out))


def columns(table, ids):
    return jnp.sum(jnp.cos(table[:, ids] * jnp.arange(1, 7, dtype=table.dtype)[None]))


def checkpointed(w, x):
    return jnp.sum(jax.checkpoint(lambda w, x: jnp.tanh(jax.jit(jnp.dot)(x, 2 * w)) @ w)(w, x))


def custom(w, x):
    """A custom derivative that differs from the derivative of the implementation."""

    @jax.custom_jvp
    def f(w, x):
        return x @ w

    f.defjvp(lambda primals, tangents: (f(*primals), 7 * f(tangents[0], primals[1])))
    return jnp.sum(jnp.sin(f(w, x)))


def branches(w, x):
    return jnp.sum(jax.lax.cond(x[0, 0] > 0, lambda w: x @ w, lambda w: jnp.sin(x) @ w.T, w))


def of_complex_inputs(w, x):
    """A product of a real kernel and complex numbers, which need not have one dtype."""
    z = jax.lax.complex(x, 2 * x)
    return jnp.sum(jnp.abs(jax.lax.dot(z, w, preferred_element_type=z.dtype)) ** 3)


def two_kernels(w, x):
    """One convolution kernel at two strides."""

    def conv(x, stride):
        return jax.lax.conv_general_dilated(x[None], w, (stride,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))[0]

    return jnp.sum(jnp.sin(conv(jnp.tanh(conv(x, 1)), 2)))


def grouped(w, x):
    """Grouped convolution of JAX with dilated image and kernel, and another order of axes."""
    out = jax.lax.conv_general_dilated(
        x[None], w, (2,), [(2, -1)], (2,), (3,), ("NCW", "OIW", "CNW"), feature_group_count=2
    )
    return jnp.sum(jnp.sin(out))


def scaled_number(w, x):
    """A parameter without axes, as the scalars by which it is multiplied and divided."""
    return jnp.sum(jnp.sin(x @ (w * 3 / x[0, 0]).reshape(1, 1)))


def rounded(w, x):
    """Rows of a table and the same rows as integers, which have no derivative."""
    return jnp.sum(jnp.sin((8 * w).astype(int)[x] / 8 + w[x]))


FUNCTIONS = {  # loss, shape of the parameter, examples, the method
    "columns first": (
        lambda w, x: jnp.sum(jnp.sin(jnp.tanh(x @ w) @ w.reshape(4, 4, order="F"))),
        (4, 4),
        lambda: draw(3, 4),
        None,
    ),
    "tied": (tied, (9, 4), lambda: ids(3, 2), "rows and pairs"),
    "thrice": (thrice, (6, 6), lambda: draw(3, 1, 6), "pairs"),
    "scanned and not": (scanned_and_not, (2, 4, 4), lambda: draw(3, 1, 4), "formed"),
    "backwards": (backwards, (2, 6, 6), lambda: draw(3, 1, 6), None),
    "two stacks": (two_stacks, (3, 6, 6), lambda: draw(3, 1, 6), "pairs"),
    "recurrent": (recurrent, (6, 6), lambda: draw(3, 2, 6), "pairs"),
    "carried": (carried, (4, 4), lambda: draw(3, 1, 4), None),
    "joined": (joined, (4, 4), lambda: draw(3, 4), None),
    "below": (below, (6, 6), lambda: draw(3, 6), "pairs"),
    "by heads": (by_heads, (6, 6), lambda: draw(3, 2, 6), None),
    "batched": (batched, (2, 3, 4), lambda: draw(3, 2, 3), "pairs"),
    "clipped": (clipped, (9, 4), lambda: ids(3, 5), None),
    "columns": (columns, (6, 9), lambda: ids(3, 6), None),
    "checkpointed": (checkpointed, (4, 4), lambda: draw(3, 1, 4), "pairs"),
    "custom": (custom, (4, 4), lambda: draw(3, 1, 4), "formed"),
    "branches": (branches, (4, 4), lambda: draw(3, 1, 4), "formed"),
    "of complex inputs": (of_complex_inputs, (6, 6), lambda: draw(3, 1, 6), "formed"),
    "two kernels": (two_kernels, (3, 6, 6), lambda: draw(3, 2, 6), None),
    "grouped": (grouped, (4, 3, 2), lambda: draw(3, 6, 7), None),
    "rounded": (rounded, (9, 4), lambda: ids(3, 5), "formed"),
    "scaled number": (scaled_number, (), lambda: draw(3, 2, 1), "product"),
}


def test_shared_weights_and_unusual_uses():
    """Cross terms of shared weights, slices, concatenations and loops; for other uses gradients are formed."""
    # Traced once for norms, reference and plan.
    loss = jax.jit(lambda ws, x: sum(each(ws[name], x[name]) for name, (each, *_) in FUNCTIONS.items()))
    with jax.enable_x64(True):
        x = {name: jnp.asarray(examples()) for name, (_, _, examples, _) in FUNCTIONS.items()}
        ws = {name: draw(*shape, seed=9) for name, (_, shape, _, _) in FUNCTIONS.items()}
        plan = per_example_norms_plan(loss, ws, x)
        found, expected = norms_and_reference(loss, ws, x, per_leaf=True)
    for name, (*_, way) in FUNCTIONS.items():
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-10, err_msg=name)
        if way is not None:
            assert plan[f"['{name}']"].method == way, name


def test_eager_chunked_and_vmapped_agree():
    w, x = draw(3, 2, dtype=np.float32), draw(5, 3, dtype=np.float32)
    loss = lambda w, x: jnp.sum(jnp.cos(x @ w))
    whole = per_example_norms(loss, w, x)
    assert whole.shape == (5,) and whole.dtype == jnp.float32

    @jax.jit
    def others(w):
        chunked = per_example_norms(loss, w, x, chunk_size=2)
        vmapped = jax.vmap(lambda w: per_example_norms(loss, w, x))(jnp.stack([w, 2 * w]))[0]
        return chunked, vmapped, jax.vmap(jnp.linalg.norm)(per_example_gradients(loss, w, x, chunk_size=2))

    for other in others(w):
        np.testing.assert_allclose(other, whole, rtol=5e-6)


PRODUCTS = {
    "vector times matrix": ("i,ij->j", (4,), (4, 3)),
    "batched positions": ("hti,hij->thj", (2, 5, 4), (2, 4, 3)),
    "two axes summed": ("hi,hij->j", (2, 4), (2, 4, 3)),
    "last axis batched": ("ia,ija->ja", (4, 2), (4, 3, 2)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_gradients_of_products_are_those_of_jax(name):
    """With respect to both operands, in half precision too, alone and where they are differentiated once more."""
    equation, *shapes = PRODUCTS[name]
    loss = lambda operands, scale: jnp.sum(jnp.sin(scale * jax.jit(jnp.einsum, static_argnums=0)(equation, *operands)))
    stock = lambda operands, scales: jax.vmap(jax.grad(loss), (None, 0))(operands, scales)
    ours = lambda operands, scales: per_example_gradients(loss, operands, scales)
    squares = lambda f: jax.grad(lambda *args: sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(f(*args))))
    operands = [draw(*shape, seed=i) for i, shape in enumerate(shapes)]
    scales = np.array([1.0, -0.5, 2.0])
    with jax.enable_x64(True):
        for found, expected in (ours, stock), (squares(ours), squares(stock)):
            close(*jax.jit(lambda *args, both=(found, expected): [f(*args) for f in both])(operands, scales), 1e-12)
    half = [jnp.asarray(x, jnp.bfloat16) for x in operands], jnp.asarray(scales, jnp.bfloat16)
    for found, expected in zip(*jax.jit(lambda *args: (ours(*args), stock(*args)))(*half), strict=True):
        assert found.dtype == jnp.bfloat16  # sums in another order differ by rounding, relative to the largest
        found, expected = np.float64(found), np.float64(expected)
        np.testing.assert_allclose(found, expected, rtol=0, atol=2.0**-7 * abs(expected).max())


def test_gradients_of_kernels_are_written_in_their_order():
    """JAX transposes the product of each example, which XLA on CPU writes and then copies."""
    plain = lambda kernel, x: jnp.sum(jnp.tanh(x @ kernel))
    for loss in plain, jax.jit(plain):
        program = jax.make_jaxpr(lambda *args, f=loss: per_example_gradients(f, *args))(
            jnp.ones((4, 5)), jnp.ones((3, 4))
        )
        products = [equation for equation, _, _ in equations(program) if equation.primitive.name == "dot_general"]
        assert [v.aval.shape for equation in products for v in equation.outvars] == [(3, 5), (3, 4, 5)]


EMPTY = {
    "kernel without outputs": (lambda p, x: jnp.sum(x @ p), (5, 0), (6, 7, 5)),
    "without positions": (lambda p, x: jnp.sum(jnp.sin(x @ p)), (5, 4), (6, 0, 5)),
    "convolution without channels": (
        lambda p, x: jnp.sum(jax.lax.conv(x[None], p, (1,), "SAME")),
        (2, 0, 3),
        (6, 0, 4),
    ),
}


def test_axes_of_size_zero():
    """No division by zero where all gradients are zero or have no entries, beside a param that is used."""
    params = {name: np.ones(shape, np.float32) for name, (_, shape, _) in EMPTY.items()} | {"used": np.float32(1)}
    x = {name: np.ones(examples, np.float32) for name, (_, _, examples) in EMPTY.items()}

    @jax.jit
    def loss(p, x):
        return p["used"] + sum(each(p[name], x[name]) for name, (each, *_) in EMPTY.items())

    @jax.jit
    def run(p, x):
        tools = [tool(loss, p, x, chunk_size=4) for tool in (per_example_gradients, per_example_norms)]
        return *tools, per_example_norms(loss, p, x, per_leaf=True), private_gradients(loss, p, x, clip=1.0, noise=0.0)

    gradients, norms, of_leaves, private = run(params, x)
    close(norms, np.ones(6), 0.0)
    for name, p in params.items():
        used = float(name == "used")
        close(gradients[name], np.full((6, *p.shape), used), 0.0)
        close(of_leaves[name], np.full(6, used), 0.0)
        close(private[name], np.full(p.shape, used), 0.0)


def test_norms_are_differentiable():
    """The gradient of a penalty on the gradient norms equals that of the penalty on explicit gradients."""
    net = MLP(4, 1, activation=jnp.tanh)
    with jax.enable_x64(True):
        x, weight = draw(3, 2), draw(3, seed=7)
        params, loss = params_of(net, x[0]), loss_of(net)

        def through(params):
            found = per_example_gradients(loss, params, x, weight)
            return jnp.sum(jax.vmap(lambda g: jnp.sqrt(jnp.sum(jnp.square(ravel_pytree(g)[0]))))(found))

        norms = lambda p: jnp.sum(per_example_norms(loss, p, x, weight))
        found, expected = jax.jit(lambda p: (jax.grad(norms)(p), jax.grad(through)(p)))(params)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), found, expected)


# Losses whose gradient is the difference of two inputs, in every column; the terms of their pairs cancel.
DIFFERENCES = {
    "positions": lambda w, x: jnp.sum(jnp.array([1, -1], w.dtype) @ (x @ w)),
    "uses": lambda w, x: jnp.sum(x[0] @ w - x[1] @ w),
    "transposed": lambda w, x: jnp.sum(x[0] @ w - w.T @ x[1]),
    "scan": lambda w, x: jax.lax.scan(
        lambda c, row: (c + row[0] * jnp.sum(row[1:] @ w), None),
        jnp.zeros((), w.dtype),
        jnp.concatenate([jnp.array([[1], [-1]], w.dtype), x], axis=1),
    )[0],
}


def test_small_differences_of_inputs_keep_their_digits():
    """Norms where the two inputs of an example differ by d = 1, 1e-3, 1e-4, 1e-6 and 0, of weights for each loss."""
    loss = jax.jit(lambda ws, x: sum(each(ws[name], x) for name, each in DIFFERENCES.items()))
    a, step = (draw(4, 1, 16, seed=seed).astype(np.float32) for seed in (1, 2))
    sizes = np.array([1, 1e-3, 1e-4, 1e-6, 0], np.float32)
    x = np.concatenate([np.concatenate([a, a + size * step], axis=1) for size in sizes])
    ws = dict.fromkeys(DIFFERENCES, draw(16, 12, seed=3).astype(np.float32))
    assert all("pairs" in leaf.method for leaf in per_example_norms_plan(loss, ws, x).leaves)
    expected = 12**0.5 * np.linalg.norm(x[:, 0].astype(np.float64) - x[:, 1], axis=1)

    @jax.jit
    def run(ws):
        norms = lambda ws, **options: per_example_norms(loss, ws, x, per_leaf=True, **options)
        both = jax.vmap(functools.partial(norms, chunk_size=3))
        return both(jax.tree.map(lambda w: jnp.stack([w, 2 * w]), ws)), norms(ws)

    mapped, whole = run(ws)
    for name in DIFFERENCES:
        for found in (whole[name], *mapped[name]):
            np.testing.assert_allclose(found, expected, rtol=1e-6, err_msg=name)
        assert (np.asarray(whole[name])[-4:] == 0).all()


def test_norms_of_gradients_of_zero_have_the_derivative_zero():
    """A subgradient, where one example's gradient is 0: by pairs, formed, and by rows."""
    x = np.stack([np.zeros((4, 3)), draw(4, 3)]).astype(np.float32)
    ws = dict.fromkeys(("pairs", "formed", "rows"), np.ones((3, 2), np.float32))

    def loss(ws, x):
        of_rows = jnp.sum(ws["rows"][jnp.arange(2)] ** 2 @ x[:2, :2])
        return jnp.sum((x[:1] @ ws["pairs"]) ** 2) + jnp.sum(x[:3, :2] * jnp.sin(ws["formed"])) + of_rows

    assert all(leaf.name == f"['{leaf.method}']" for leaf in per_example_norms_plan(loss, ws, x).leaves)
    norms = lambda ws, x: per_example_norms(loss, ws, x, per_leaf=True)
    slope = jax.jit(jax.grad(lambda ws, x: sum(map(jnp.sum, jax.tree.leaves(norms(ws, x))))))
    both, alone, none = slope(ws, x), slope(ws, x[1:]), slope(ws, x[:1])
    for name in ws:
        np.testing.assert_allclose(both[name], alone[name], rtol=1e-5, atol=1e-6, err_msg=name)
        np.testing.assert_array_equal(none[name], 0, err_msg=name)


def test_norms_neither_underflow_nor_overflow():
    w, x = draw(3, 4, dtype=np.float32), draw(2, 3, dtype=np.float32)
    loss = lambda w, x: jnp.sum(jnp.cos(x @ w))
    norms = jax.jit(lambda scale: per_example_norms(lambda w, x: scale * loss(w, x), w, x))
    for scale in np.float32([1e-30, 1e-20, 1e20, 1e30]):
        np.testing.assert_allclose(norms(scale) / scale, norms(np.float32(1)), rtol=1e-5)


def test_half_precision_sums_in_float32():
    net = Dense(300)
    x = draw(2, 200).astype(jnp.bfloat16)
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params_of(net, x[0]))

    def loss(params, x):
        return jnp.sum(net.apply(params, x))

    found = jax.jit(lambda p, x: per_example_norms(loss, p, x))(params, x)
    expected = np.sqrt(300 * (1 + np.sum(np.square(np.asarray(x, np.float64)), axis=1)))
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=2**-8)


@pytest.mark.cpu
def test_no_gradient_is_stored():
    """A wide dense network takes 1/7 of the memory and half of the operations; no gradient of a table is formed."""
    net = MLP(256, 256, 1, activation=jnp.tanh)
    x = jax.ShapeDtypeStruct((32, 64), jnp.float32)
    params = jax.eval_shape(net.init, jax.random.key(0), jax.ShapeDtypeStruct((64,), jnp.float32))

    def loss(params, x):
        return jnp.sum(net.apply(params, x) ** 2)

    def formed(params, x):
        gradients = jax.vmap(jax.grad(loss), in_axes=(None, 0))(params, x)
        return jnp.sqrt(sum(jnp.sum(leaf.reshape(32, -1) ** 2, axis=1) for leaf in jax.tree.leaves(gradients)))

    def ours(params, x):
        return per_example_norms(loss, params, x)

    traced = [jax.jit(f).trace(params, x) for f in (formed, ours)]
    temporary = [each.lower().compile().memory_analysis().temp_size_in_bytes for each in traced]
    assert temporary[0] > 7 * temporary[1]
    flops = [count_jaxpr(each.jaxpr.jaxpr).flops for each in traced]
    assert flops[0] > 1.4 * flops[1]

    def of_table(table, ids):
        return jnp.sum(table[ids] ** 2)

    table, rows = jax.ShapeDtypeStruct((10**6, 8), jnp.float32), jax.ShapeDtypeStruct((4, 5), jnp.int32)
    compiled = jax.jit(lambda t, i: per_example_norms(of_table, t, i)).lower(table, rows).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 10**5


def test_plan_prints():
    plan = per_example_norms_plan(tied, jnp.ones((9, 4)), jnp.zeros((2, 3), int))
    assert "rows and pairs" in plan.explain() and plan.explain() == repr(plan)
    assert plan._repr_html_().startswith("<table>")
    with pytest.raises(KeyError, match="NormsPlan expected the name of a leaf, '', got 'w'"):
        plan["w"]


# ---- noise


@pytest.mark.parametrize("batch_size", [2, 5])
def test_noise_is_exact_by_enumeration(batch_size):
    """Compare with the covariance over all minibatches; with N instead of N - 1 it differs (negative control)."""
    with jax.enable_x64(True):
        x, y = draw(5, 2), draw(5, seed=4)
        params = {"w": draw(2, seed=5), "b": np.asarray(0.3)}

        def loss(params, x, y):
            return (jnp.tanh(x @ params["w"] + params["b"]) - y) ** 2

        one_of = jax.jit(lambda x, y: ravel_pytree(jax.grad(loss)(params, x, y))[0])
        each = np.array([one_of(*one) for one in zip(x, y, strict=True)])
        means = np.array([each[list(rows)].mean(axis=0) for rows in itertools.combinations(range(5), batch_size)])
        covariance = np.cov(means.T, bias=True) if len(means) > 1 else np.zeros((3, 3))

        @jax.jit
        def run(params):
            full = gradient_noise(loss, params, x, y, batch_size=batch_size, covariance=True)
            return full, gradient_noise(loss, params, x, y, batch_size=batch_size, chunk_size=2)

        full, lean = run(params)
        np.testing.assert_allclose(full.covariance, covariance, atol=1e-15)
        spread = ((each - each.mean(axis=0)) ** 2).sum() / 5
        gradient = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(lean.gradient)])
        np.testing.assert_allclose(gradient, each.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(lean.trace, spread, rtol=1e-12)
        np.testing.assert_allclose(lean.batch_trace, np.trace(covariance), atol=1e-15)
        np.testing.assert_allclose(lean.noise_scale, spread / (each.mean(axis=0) ** 2).sum(), rtol=1e-12)
        assert lean.covariance is None and (lean.examples, lean.batch_size) == (5, batch_size)
        if batch_size < 5:
            wrong = np.trace(covariance) * (5 - 1) / 5
            assert abs(lean.batch_trace - wrong) > 1e-3 * wrong


def test_small_noise_is_accurate():
    """The trace for nearly equal gradients in float32, where a difference of squares suffers from cancellation."""
    x = jnp.array([1000.0, 1000.25, 1000.5])
    noise = jax.jit(lambda x: gradient_noise(lambda w, x: w * x, 1.0, x, batch_size=1))(x)
    np.testing.assert_allclose(noise.trace, np.var([0, 0.25, 0.5]), rtol=1e-6)
    opposite = np.array([1, -1], np.float32)
    zero = jax.jit(lambda x: gradient_noise(lambda w, x: w * x, 1.0, x, batch_size=1, chunk_size=7))(opposite)
    assert np.asarray(zero.noise_scale) == np.inf


def test_the_noise_scale_does_not_depend_on_units():
    """A ratio of squares which vanish or overflow: here 2 / 3 / 4."""
    run = jax.jit(lambda x: gradient_noise(lambda w, x: w * x, 1.0, x, batch_size=1, covariance=True))
    for scale in np.float32([1e-30, 1e30]):
        noise = run(np.float32([1, 2, 3]) * scale)
        np.testing.assert_allclose(noise.noise_scale, 1 / 6, rtol=1e-6)
        assert noise.trace == noise.squared_norm == noise.covariance[0, 0] == (0 if scale < 1 else np.inf)
    with jax.debug_nans(False):
        assert np.isnan(run(np.float32([1, np.nan, 3])).noise_scale)


# ---- errors


def square(w, x):
    return jnp.sum((x @ w) ** 2)


W, X = jnp.ones((3, 2)), jnp.ones((4, 3))
BAD = [
    (lambda f: f(lambda w, x: x @ w, W, X), ValueError, r"a scalar for one example, got float32 \(2,\).*sum over"),
    (lambda f: f(lambda w, x: (x @ w).sum() > 0, W, X), TypeError, "a floating-point scalar, got bool"),
    (lambda f: f(lambda w, x: (square(w, x), x), W, X), TypeError, "one scalar array, got a tuple"),
    (
        lambda f: f(lambda w, x, y: square(w, x), W, X, X[:3]),
        ValueError,
        r"equal numbers of examples, float32 \(4, 3\) at batch\[0\], got float32 \(3, 3\) at batch\[1\]",
    ),
    (
        lambda f: f(lambda w, x, t: square(w, x), W, X, 3.0),
        ValueError,
        r"batch\[1\] to have .* on a leading axis, got 3.0",
    ),
    (lambda f: f(square, W), ValueError, "at least one array of examples after params"),
    (lambda f: f(square, {"w": jnp.arange(3)}, X), TypeError, r"got int32 \(3,\) at params\['w'\].*\.astype"),
    (lambda f: f(square, (), X), ValueError, "expected params to hold at least one array"),
    (lambda f: f(W, square, X), TypeError, r"expected loss to be a function, got float32 \(3, 2\)"),
]


def test_wrong_arguments_are_rejected(sentences):
    tools = (per_example_gradients, per_example_norms, per_example_norms_plan)
    for i, (call, error, words) in enumerate(BAD):
        for tool in tools if i == 0 else tools[i % 3 : i % 3 + 1]:
            with pytest.raises(error, match=words) as caught:
                call(tool)
            assert tool.__name__ in str(caught.value)


def test_suggested_repairs_work():
    """The repairs suggested by the errors work."""
    for loss in (lambda w, x: jnp.sum(x @ w), lambda w, x: square(w, x) * 3.0):
        jax.eval_shape(lambda w, loss=loss: per_example_norms(loss, w.astype(jnp.float32), X), W.astype(jnp.int32))


@pytest.mark.parametrize("batch_size", [0, 5, 1.5])
def test_batch_sizes_outside_1_to_n_are_rejected(batch_size, sentences):
    with pytest.raises(ValueError, match="gradient_noise expected batch_size to be"):
        gradient_noise(square, W, X, batch_size=batch_size)
    with pytest.raises(ValueError, match="expected chunk_size to be an integer >= 1"):
        gradient_noise(square, W, X, batch_size=2, chunk_size=0)


# ---- private gradients --------------------------------------------------------------------


def test_private_gradients_are_the_mean_of_clipped_ones():
    """By the gradients of all examples, clipped in NumPy; and optax's aggregation, with noise 0."""
    contrib = pytest.importorskip("optax").contrib
    net = Serial(Conv(3, (3,)), jnp.tanh, Dense(2))
    x, weights = draw(6, 7, 4), np.array([1e-3, 1, 0, 2, 30, 1e3])
    loss = loss_of(net)
    params = params_of(net, x[0])
    gradients = jax.jit(lambda params: per_example_gradients(loss, params, x, weights))(params)
    norms = np.array([np.sqrt(sum((leaf[i] ** 2).sum() for leaf in jax.tree.leaves(gradients))) for i in range(6)])
    assert (norms < 2).sum() == 2 < (norms > 2).sum() == 4
    factors = np.minimum(1, 2 / np.maximum(norms, 1e-30))
    run = jax.jit(lambda params, clip: private_gradients(loss, params, x, weights, clip=clip, noise=0.0))
    found = run(params, 2.0)
    for own, each in zip(jax.tree.leaves(found), jax.tree.leaves(gradients), strict=True):
        np.testing.assert_allclose(own, np.tensordot(factors, np.asarray(each), 1) / 6, rtol=2e-5, atol=1e-6)
    private = contrib.differentially_private_aggregate(2.0, 0.0, key=0)
    expected, _ = jax.jit(lambda g, p: private.update(g, private.init(p), p))(gradients, params)
    for own, each in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(own, each, rtol=2e-5, atol=1e-6)


def test_private_gradients_of_half_precision_do_not_exceed_the_clip():
    """Norms in NumPy of single gradients, of one layer and two; shorter by four roundings at most."""
    dtype = jnp.float16
    linear = lambda params, x: jnp.sum(params["a"] * x)
    deep = lambda params, x: jnp.sum(jnp.tanh(x[None] @ params["a"]) @ params["b"])
    rng = np.random.default_rng(0)
    cases = [(linear, {"a": np.zeros(n)}, rng.standard_normal((50, 1, n))) for n in (1, 2, 30)]
    cases.append((deep, {"a": draw(30, 5), "b": draw(5, 3)}, rng.standard_normal((50, 1, 30))))
    losses, params, draws = zip(*cases, strict=True)
    params, draws = jax.tree.map(lambda leaf: leaf.astype(dtype), (params, draws))

    @jax.jit
    def run(params, draws):
        private = lambda loss, p, x: jax.vmap(lambda x: private_gradients(loss, p, x, clip=0.1, noise=0.0))(x)
        return [private(*case) for case in zip(losses, params, draws, strict=True)]

    for found in run(params, draws):
        norms = np.sqrt(
            sum((np.asarray(leaf, np.float64) ** 2).reshape(50, -1).sum(1) for leaf in jax.tree.leaves(found))
        )
        assert norms.max() <= 0.1
        assert np.median(norms) >= 0.1 * (1 - 4 * float(jnp.finfo(dtype).eps))


def test_the_noise_of_private_gradients_has_its_scale(sentences):
    """Of a loss without a gradient: the standard deviation is noise * clip / batch_size, anew for each key and leaf."""
    params = {"a": np.zeros(20_000, np.float32), "b": np.zeros(20_000, np.float32)}
    loss = lambda params, x: 0 * x + 0 * params["a"][0]
    run = jax.jit(
        lambda key, x: private_gradients(loss, params, x, clip=2.0, noise=np.float32(3), key=key, batch_size=8)
    )
    first, second = (run(jax.random.key(i), np.ones(3)) for i in range(2))
    draws = np.stack([first["a"], first["b"], second["a"]])
    np.testing.assert_allclose(draws.std(1), 3 * 2 / 8, rtol=0.03)
    np.testing.assert_allclose(draws.mean(1), 0, atol=0.02)
    assert np.abs(np.corrcoef(draws) - np.eye(3)).max() < 0.03
    with pytest.raises(ValueError, match=r"private_gradients expected a key for the noise, got none; pass key="):
        private_gradients(loss, params, jnp.ones(3), clip=2.0, noise=1.0)  # `run` passes one
    # A sample without examples: the same noise as of a loss without a gradient.
    empty = run(jax.random.key(0), np.ones(0))
    np.testing.assert_allclose(empty["a"], first["a"], rtol=1e-6)
    with pytest.raises(ValueError, match="private_gradients expected at least one example, got none"):
        private_gradients(loss, params, np.ones(0), clip=2.0, noise=0.0)


def test_params_of_several_dtypes_under_strict_promotion():
    narrow = np.ones((2, 2), np.float16)
    loss = lambda params, x: (
        (jnp.sum(jnp.ones(2, jnp.float16) @ params["a"]).astype(x.dtype) + jnp.sum(params["b"])) * x
    )

    @jax.jit
    def run(params, x):
        noise = gradient_noise(loss, params, x, batch_size=2).trace
        private = private_gradients(loss, params, x, clip=1e6, noise=0.0)
        return per_example_norms(loss, params, x, per_leaf=True)["a"], noise, private["b"]

    expected = 2 * np.arange(4), 7 * 1.25, np.full(3, 1.5)
    with jax.numpy_dtype_promotion("strict"):
        for found, right in zip(
            run({"a": narrow, "b": np.ones(3, np.float32)}, np.float32([0, 1, 2, 3])), expected, strict=True
        ):
            close(found, right, 1e-6)
        with jax.enable_x64(True):
            norms = jax.jit(lambda *args: per_example_norms(loss, *args))
            close(norms({"a": narrow, "b": np.ones(3)}, np.arange(4.0)), 7**0.5 * np.arange(4), 1e-6)
