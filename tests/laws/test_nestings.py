"""Derivative rules of the package in every nesting of JAX's transformations, with derivatives taken outside and inside.

A row of the table is a function with loops over parts of its arrays, a collective, a checkpoint or a solver, and the
same function in plain JAX; functions of arrays with a rule alone are in `derivative_laws`. A column is a transformation
around the function, or around its derivatives: the transformations are nested in each other, since each alone would
make a program of its own. Gradients and Hessian-vector products are compared in float64.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxblocks as jb
from jaxblocks import ad, layers
from jaxblocks.layers import conv_by_products, scan_of_cells
from jaxblocks.layers.attention import tiles as tiling
from jaxblocks.layers.conv import _jitted_correlate

RNG = np.random.default_rng(0)
F64 = jnp.float64


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    """Float64, and arrays of this file are split into parts as large ones are."""
    monkeypatch.setattr(conv_by_products, "CHUNK", 2**5)
    monkeypatch.setattr(scan_of_cells, "CHUNK", 2)
    for name, size in {"_TILED": 1, "_TILE": 1, "_SPLIT": 1, "_BLOCK": 2}.items():
        monkeypatch.setattr(tiling, name, size)
    with jax.enable_x64(True):
        yield


# ---- columns ---------------------------------------------------------------------------------


def second(batched):
    """A transformation of a function of two inputs at once as one of the second input."""
    take = lambda tree: jax.tree.map(lambda y: y[1], tree)
    return lambda f: lambda x: take(batched(f)(jnp.stack([x / 2, x])))


def in_shard_map(f):
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    alone = lambda x: jax.tree.map(lambda y: y[None], f(x[0]))
    return jax.shard_map(alone, mesh=mesh, in_specs=P("d"), out_specs=P("d"))


def zeros_of(f, x):
    """Zeros like f(x), which vary over devices as x does."""
    return jax.tree.map(lambda y: jnp.zeros_like(y) + 0 * x.sum(), jax.eval_shape(f, x))


def in_cond(f):
    return lambda x: lax.cond(x.sum() < 1e9, f, lambda x: zeros_of(f, x), x)


def in_while_loop(f):
    """The second evaluation of a loop; it has forward mode only."""
    body = lambda x: lambda at: (at[0] + 1, f(x * (1 + at[0]) / 2))
    return lambda x: lax.while_loop(lambda at: at[0] < 2, body(x), (0, zeros_of(f, x)))[1]


def in_custom_vjp(f):
    g = jax.custom_vjp(f)
    g.defvjp(lambda x: jax.vjp(f, x), lambda pull, y_bar: pull(y_bar))
    return g


AROUND = {
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "scan": second(lambda f: lambda xs: lax.scan(lambda c, x: (c, f(x)), 0.0, xs)[1]),
    "cond": in_cond,
    "vmap(in_axes=-1, axis_name=)": second(lambda f: lambda xs: jax.vmap(f, in_axes=-1, axis_name="other")(xs.T)),
    "shard_map": second(in_shard_map),
}


def all_around(f, without=()):
    """All of them, one in another."""
    around = [one for name, one in AROUND.items() if name not in without]
    return functools.reduce(lambda f, around: around(f), around, f)


# ---- rows ------------------------------------------------------------------------------------


class Row(NamedTuple):
    ours: object
    plain: object
    size: int
    forward: bool = True  # whether forward mode is checked outside of loops and of reverse mode
    without: tuple = ()  # transformations that are left out
    second_outside: bool = True  # whether second derivatives may be taken outside of loops and branches


def batch_norm(x, how):
    """x: eight entries of two features, then scale and bias."""
    layer = jb.BatchNorm(axis_name="b", param_dtype=F64)
    state = {"mean": jnp.zeros(2), "variance": jnp.ones(2), "updates": jnp.zeros((), jnp.int32)}
    params = {"scale": x[16:18], "bias": x[18:]}

    def one(x):
        y, after = layer.apply(params, state, x, train=True)
        return y, after["variance"]

    if how == "vmap":
        y, variance = jax.vmap(one, axis_name="b")(x[:16].reshape(4, 2, 2))
        return jnp.concatenate([y.ravel(), variance[0]])
    mesh = jax.make_mesh((4,), ("b",), axis_types=(jax.sharding.AxisType.Auto,))
    y, variance = jax.shard_map(one, mesh=mesh, in_specs=P("b"), out_specs=(P("b"), P()))(x[:16].reshape(8, 2))
    return jnp.concatenate([y.ravel(), variance])


def plain_batch_norm(x):
    values, scale, bias = x[:16].reshape(8, 2), x[16:18], x[18:]
    mean, variance = values.mean(0), values.var(0)
    y = (values - mean[None]) / jnp.sqrt(variance + 1e-3)[None] * scale[None] + bias[None]
    return jnp.concatenate([y.ravel(), variance])  # the first batch of a running average has the weight 1


PADS = ((1, 1), (1, 1))


def convolve(x, kernel):
    return _jitted_correlate((1, 1), PADS, (1, 1), x.reshape(3, 3, 3, 2), kernel.reshape(3, 3, 2, 2)).ravel()


def plain_convolve(x, kernel):
    x, kernel = x.reshape(3, 3, 3, 2), kernel.reshape(3, 3, 2, 2)
    return lax.conv_general_dilated(x, kernel, (1, 1), PADS, dimension_numbers=("NHWC", "HWIO", "NHWC")).ravel()


KERNEL, IMAGES = RNG.normal(size=36), RNG.normal(size=54)


def depthwise(x):
    return jb.conv(x[:32].reshape(4, 4, 2), x[32:].reshape(2, 2, 1, 2), groups=2).ravel()


def plain_depthwise(x):
    x, kernel, layout = x[:32].reshape(1, 4, 4, 2), x[32:].reshape(2, 2, 1, 2), ("NHWC", "HWIO", "NHWC")
    y = lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=layout, feature_group_count=2)
    return y.ravel()


def lstm(x):
    params = {"bias": x[6:14], "kernel": x[14:30].reshape(2, 8), "recurrent_kernel": x[30:].reshape(2, 8)}
    return jb.Recurrent(layers.LSTMCell(2, recurrent_bias=False)).apply(params, x[:6].reshape(3, 2)).ravel()


def plain_lstm(x):
    bias, kernel, recurrent = x[6:14], x[14:30].reshape(2, 8), x[30:].reshape(2, 8)
    hidden, cell, outputs = jnp.zeros(2), jnp.zeros(2), []
    for now in x[:6].reshape(3, 2):
        i, f, g, o = jnp.split(now @ kernel + hidden @ recurrent + bias, 4)
        cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
        outputs.append(hidden)
    return jnp.concatenate(outputs)


def attend(x):
    q, k, v = (2 * x).reshape(3, 2, 4, 2, 2)  # (batch, time, heads, head_dim)
    return jb.attention(q, k, v, causal=True).ravel()


def plain_attention(x):
    q, k, v = (2 * x).reshape(3, 2, 4, 2, 2)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2**0.5
    weights = jax.nn.softmax(jnp.where(np.tri(4, dtype=bool), scores, -jnp.inf), -1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v).ravel()


def ring(x):
    q, k, v = (2 * x).reshape(3, 2, 4, 2, 2)
    one = lambda q, k, v: layers.ring_attention(q, k, v, axis_name="time", causal=True, chunk=1)
    mesh = jax.make_mesh((2,), ("time",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = P(None, "time")
    return jax.shard_map(one, mesh=mesh, in_specs=spec, out_specs=spec)(q, k, v).ravel()


def step_of_scan(w, h, x):
    h = jnp.tanh(w * h + x)
    return h, h * w


def scan(x, checkpoint):
    last, ys = ad.scan(lambda h, now: step_of_scan(x[0], h, now), x[1], x[2:], checkpoint=checkpoint)
    return jnp.append(ys, last)


def plain_scan(x):
    h, ys = x[1], []
    for now in x[2:]:
        h, y = step_of_scan(x[0], h, now)
        ys.append(y)
    return jnp.stack([*ys, h])


def matrix(x):
    """A positive definite matrix of the first four entries."""
    a = x[:4].reshape(2, 2)
    return a @ a.T + 2 * jnp.eye(2)


def solutions(x):
    a, b = matrix(x), x[4:]
    by_newton = ad.root(lambda y, a, b: a @ y + y**3 - b, jnp.zeros(2), a, b)
    return jnp.concatenate([by_newton, ad.solve(lambda y: a @ y, b, tolerance=1e-13).x])


def plain_solutions(x):
    """Newton steps, differentiated as they are, and the inverse of a matrix."""
    a, b = matrix(x), x[4:]
    inverse = lambda m: jnp.array([[m[1, 1], -m[0, 1]], [-m[1, 0], m[0, 0]]]) / (m[0, 0] * m[1, 1] - m[0, 1] * m[1, 0])
    newton = lambda y, _: (y - inverse(a + 3 * jnp.diag(y**2)) @ (a @ y + y**3 - b), None)
    return jnp.concatenate([lax.scan(newton, jnp.zeros(2), length=8)[0], inverse(a) @ b])


def log_det(x):
    """Of c I, for which the estimate is exact."""
    c = (x**2).sum() + 1
    return jnp.atleast_1d(ad.log_determinant(jax.random.key(0), lambda v: c * v, jnp.zeros(2)).value)


def plain_log_det(x):
    return jnp.atleast_1d(2 * jnp.log((x**2).sum() + 1))


REPEATING = ("scan", "shard_map")
ROWS = {
    # JAX has no vmap(axis_name=) with a sum over the axis inside of a shard_map.
    "BatchNorm(axis_name=) in vmap": Row(
        functools.partial(batch_norm, how="vmap"), plain_batch_norm, 20, without=("shard_map",)
    ),
    "convolution by products": Row(lambda x: convolve(x[:54], x[54:]), lambda x: plain_convolve(x[:54], x[54:]), 90),
    "depthwise convolution": Row(depthwise, plain_depthwise, 40),
    "scan of cells": Row(lstm, plain_lstm, 46),
    "attention in tiles": Row(attend, plain_attention, 96),
    "scan with sqrt": Row(functools.partial(scan, checkpoint="sqrt"), plain_scan, 7),
    "scan with snapshots": Row(functools.partial(scan, checkpoint=2), plain_scan, 7, forward=False),
    # Of the long programs, one transformation that repeats them: vmap.
    "implicit functions": Row(solutions, plain_solutions, 6, without=REPEATING),
    "log_determinant": Row(log_det, plain_log_det, 4, forward=False, without=REPEATING, second_outside=False),
}
ON_A_MESH = {
    "BatchNorm(axis_name=)": Row(functools.partial(batch_norm, how="shard_map"), plain_batch_norm, 20),
    "ring attention": Row(ring, plain_attention, 96),
}


# ---- the laws --------------------------------------------------------------------------------


def loss_of(f, weights):
    return lambda x: (weights * jnp.sin(f(x))).sum()


def pair(loss, v):
    """The function x -> gradient and Hessian-vector product, forward over reverse."""
    # In shard_map a tangent has the type of its value, so v varies as x does.
    return lambda x: jax.jvp(jax.grad(loss), (x,), (v + 0 * x,))


@pytest.mark.parametrize("name", ROWS)
def test_derivatives_are_those_of_plain_jax_in_every_nesting(name):
    row = ROWS[name]
    rng = np.random.default_rng(1)
    x, v = rng.normal(size=(2, row.size))
    loss = functools.partial(loss_of, weights=rng.normal(size=jax.eval_shape(row.plain, x).shape))
    around = functools.partial(all_around, without=row.without)

    def everything(x, v):
        plain = pair(loss(row.plain), v)(x)
        found = {"inside of all": around(pair(loss(row.ours), v))(x)}
        # Around a rule for reverse mode, in a rule for reverse mode.
        outside = loss(in_custom_vjp(around(row.ours)))
        # JAX may differentiate the function of a custom_jvp there, and not its rule.
        found["outside of all"] = pair(outside, v)(x) if row.second_outside else (jax.grad(outside)(x), plain[1])
        if row.forward:
            twice = lambda x: jax.grad(loss(lambda x: jax.linearize(row.ours, x)[0]))(x) @ v
            found["reverse over reverse of linearize"] = plain[0], jax.grad(twice)(x)
            in_loop = lambda x: jax.jvp(loss(in_while_loop(row.ours)), (x,), (v,))[1]
            slopes = jax.jvp(in_loop, (x,), (v,))
        else:
            slopes = None
        return plain, found, slopes

    plain, found, slopes = compiled(everything)(x, v)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-9)
    assert np.abs(plain[1]).max() > 1e-3  # there is a second derivative
    for nesting, (gradient, product) in found.items():
        close(gradient, plain[0], err_msg=f"gradient, {nesting}")
        close(product, plain[1], err_msg=f"Hessian-vector product, {nesting}")
    if slopes is not None:
        close(slopes, [plain[0] @ v, plain[1] @ v], err_msg="forward over forward over while_loop")


def test_convolutions_of_one_factor_are_transposed():
    """As linear functions of the images, and of the kernel."""

    def transposed(f, y):
        of_images = jax.linear_transpose(lambda x: f(x, KERNEL), IMAGES)(y)
        of_kernel = jax.linear_transpose(lambda kernel: f(IMAGES, kernel), KERNEL)(y)
        return of_images, of_kernel

    ours, plain = compiled(lambda y: [transposed(f, y) for f in (convolve, plain_convolve)])(IMAGES)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-9), ours, plain)


@pytest.mark.parametrize("name", ON_A_MESH)
def test_derivatives_outside_of_a_shard_map(name):
    """One program each: on few cores, devices that wait for different collectives of one program would wait forever."""
    row = ON_A_MESH[name]
    rng = np.random.default_rng(1)
    x, v = rng.normal(size=(2, row.size))
    loss = functools.partial(loss_of, weights=rng.normal(size=jax.eval_shape(row.plain, x).shape))
    # Without the vmaps and the cond, whose branches are both evaluated in one.
    around = lambda f: AROUND["jit"](AROUND["checkpoint"](AROUND["scan"](f)))
    got = compiled(pair(loss(around(row.ours)), v))(x)
    expected = compiled(pair(loss(row.plain), v))(x)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-9), got, expected)
