"""Hessian-vector products, the table of costs, and the warning about the jaxlib with wrong Jacobians."""

import functools
import itertools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxblocks
from jaxblocks import ad, theory
from jaxblocks.ad import (
    cost_table,
    count_flops,
    directional_curvature,
    equations,
    hvp,
    value_grad_hvp,
)
from jaxblocks.ad.costs import cost_tables
from jaxblocks.backend import jaxlib as jaxlib_check

# ---- the jaxlib with wrong Jacobians --------------------------------------------------------


def layer_norm(x):
    centered = x - jnp.mean(x, axis=-1, keepdims=True)
    return centered * jax.lax.rsqrt(jnp.mean(centered**2, axis=-1, keepdims=True) + 1e-5)


def test_jacobians_under_jit_are_correct():
    """jit(jacrev) = jit(jacfwd), in every row (this fails on jaxlib 0.10.2)."""
    x = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    compiled, forward = jax.jit(jax.jacrev(layer_norm))(x), jax.jit(jax.jacfwd(layer_norm))(x)
    assert np.max(np.abs(np.asarray(compiled) - np.asarray(forward))) < 2e-6


@pytest.fixture
def version(monkeypatch):
    """Set the version of jaxlib and the flags of XLA that the check reads."""

    def pretend(number, flags):
        monkeypatch.setattr(jaxlib_check, "_version", lambda: number)
        monkeypatch.setenv("XLA_FLAGS", flags)

    return pretend


def test_modules_load_independently_and_the_affected_jaxlib_warns_at_import():
    """A checkpointed scan loads neither the traces nor the planner.

    `import jaxblocks` warns where the version is 0.10.2, once, and the warning names a line of the user.
    """
    code = """
import sys, types, warnings, jax, jaxlib.version
package = types.ModuleType("jaxblocks")
package.__path__ = [sys.argv[1]]
sys.modules["jaxblocks"] = package
import jaxblocks.ad.checkpointing
loaded = {name.rpartition(".")[2] for name in sys.modules if name.startswith("jaxblocks.ad.")}
assert not loaded & {"traces", "planning", "jacobians", "counting", "sparse"}, loaded
assert callable(jaxblocks.ad.cost_table) and callable(jaxblocks.ad.costs.cost_tables.cost_table)
for name in [name for name in sys.modules if name.partition(".")[0] == "jaxblocks"]:
    del sys.modules[name]
jaxlib.version.__version__ = "0.10.2"
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import jaxblocks  # this line
    jaxblocks.hvp(jax.numpy.sum, jax.numpy.ones(2), jax.numpy.ones(2))
print(len(caught), caught[0].category.__name__, caught[0].filename, caught[0].lineno)
"""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    command = [sys.executable, "-c", code, os.path.dirname(jaxblocks.__file__)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout == "1 RuntimeWarning <string> 15\n", done.stdout + done.stderr


FLAG = "--xla_cpu_experimental_ynn_fusion_type"
CURED = [
    f"{FLAG}=-reduce",
    f"{FLAG}=",
    f'{FLAG}=""',
    f"  --xla_cpu_multi_thread_eigen=false {FLAG}=-reduce intra_op_parallelism_threads=1",
    f"{FLAG}=dot {FLAG}=-dot,-reduce",
]
NOT_CURED = [
    "",
    "--xla_cpu_multi_thread_eigen=false",
    f"--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1 {FLAG}=-reduce",
    f"intra_op_parallelism_threads=1 {FLAG}=-reduce",
    f"{FLAG}",
    f"{FLAG}=reduce",
    f"{FLAG}=-reduce {FLAG}=reduce",
    f"{FLAG}s=-reduce",
]


def test_the_warning_depends_on_the_version_and_on_the_flags_that_xla_applies(version, tmp_path):
    """XLA stops parsing at a bare token and ignores the flags after it."""
    (tmp_path / "flags").write_text(f"{FLAG}=-reduce\n")
    quiet = [("0.10.2", flags) for flags in (*CURED, str(tmp_path / "flags"))]
    for number, flags in (*quiet, ("0.10.1", ""), ("0.10.3", ""), ("0.12.0.1", "")):
        version(number, flags)
        jaxlib_check.warn_if_jaxlib_is_wrong()
    for flags in NOT_CURED:
        version("0.10.2", flags)
        with pytest.warns(RuntimeWarning):
            jaxlib_check.warn_if_jaxlib_is_wrong()


# ---- products ------------------------------------------------------------------------------


def net(params, x):
    for w, b in params[:-1]:
        x = jnp.tanh(x @ w + b[None])
    w, b = params[-1]
    return x @ w + b[None]


def loss_of(x, y):
    return lambda params: jnp.mean((net(params, x) - y) ** 2)


def small_net(dtype=jnp.float64, sizes=(3, 4, 2)):
    rng = np.random.default_rng(0)
    params = [
        (rng.normal(size=(a, b)).astype(dtype), rng.normal(size=b).astype(dtype)) for a, b in itertools.pairwise(sizes)
    ]
    x, y = rng.normal(size=(5, sizes[0])).astype(dtype), rng.normal(size=(5, sizes[-1])).astype(dtype)
    return loss_of(x, y), params


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def like(params, vector):
    leaves, structure = jax.tree.flatten(params)
    parts = np.split(np.asarray(vector), np.cumsum([leaf.size for leaf in leaves])[:-1])
    return structure.unflatten(
        [part.reshape(leaf.shape).astype(leaf.dtype) for part, leaf in zip(parts, leaves, strict=True)]
    )


def published(x):
    """Baydin's example ln x1 + x1 x2 - sin x2."""
    return jnp.log(x[0]) + x[0] * x[1] - jnp.sin(x[1])


def test_published_hessian_and_product():
    """At (2, 5): [[-.25, 1], [1, -.9589243]], and (-2.25, 2.9178485) for v = (1, -2)."""
    with jax.enable_x64(True):
        x, v = np.array([2.0, 5.0]), np.array([1.0, -2.0])
        product = jax.jit(functools.partial(hvp, published))
        columns = [product(x, e) for e in np.eye(2)]
        np.testing.assert_allclose(columns, [[-0.25, 1.0], [1.0, -0.9589242746631385]], rtol=1e-14)
        np.testing.assert_allclose(product(x, v), [-2.25, 2.917848549326277], rtol=1e-14)
        value, gradient, _ = jax.jit(functools.partial(value_grad_hvp, published))(x, v)
        np.testing.assert_allclose(value, 11.652071455223084, rtol=1e-14)
        np.testing.assert_allclose(gradient, [5.5, 1.7163378145367738], rtol=1e-14)


def hessian_by_differences(f, params, h=1e-5):
    """The columns of the Hessian by central differences of the gradient, in numpy: no second derivative of JAX."""
    point, gradient = flat(params), jax.jit(jax.grad(f))
    columns = []
    for e in np.eye(point.size):
        up, down = (flat(gradient(like(params, point + s * h * e))) for s in (1, -1))
        columns.append((up - down) / (2 * h))
    return np.stack(columns, 1)


def test_products_are_columns_of_the_hessian():
    """Under vmap and jit, and eagerly, of all tools; the matrix is symmetric, and that of central differences."""
    with jax.enable_x64(True):
        f, params = small_net(sizes=(2, 3, 2))
        f, n = jax.jit(f), flat(params).size  # traced once for all tools
        directions = [*np.eye(n), np.random.default_rng(1).normal(size=n)]
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *(like(params, v) for v in directions))

        @jax.jit
        def every(params, vs):
            tools = (hvp, value_grad_hvp, directional_curvature)
            return [jax.vmap(functools.partial(tool, f, params))(vs) for tool in tools], jax.value_and_grad(f)(params)

        (products, (values, gradients, same), bends), (value, gradient) = every(params, stacked)
        rows = lambda tree: np.concatenate([np.reshape(leaf, (n + 1, -1)) for leaf in jax.tree.leaves(tree)], 1)
        matrix = rows(products)[:n]
        assert jax.tree.structure(products) == jax.tree.structure(params)
        np.testing.assert_allclose(matrix, hessian_by_differences(f, params), atol=1e-8)
        np.testing.assert_allclose(matrix, matrix.T, atol=1e-14)
        np.testing.assert_allclose(rows(products)[n], matrix @ directions[n], atol=1e-13)
        np.testing.assert_allclose(rows(same), rows(products), rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(values, np.full(n + 1, value), rtol=1e-13)
        np.testing.assert_allclose(rows(gradients), np.tile(flat(gradient), (n + 1, 1)), rtol=1e-13)
        np.testing.assert_allclose(bends, np.einsum("vi,vi->v", directions, rows(products)), rtol=1e-12)
        np.testing.assert_allclose(flat(hvp(f, params, like(params, directions[0]))), matrix[0], rtol=1e-12)  # eager


def test_products_can_be_differentiated():
    """The third derivative along v, v and u against a central difference of the curvature."""
    with jax.enable_x64(True):
        f, params = small_net(sizes=(2, 3, 2))
        v, u = (like(params, w) for w in np.random.default_rng(3).normal(size=(2, flat(params).size)))
        along = jax.jit(lambda p: directional_curvature(f, p, v))
        h = 1e-5
        near = [like(params, flat(params) + s * h * flat(u)) for s in (1, -1)]
        up, down, forward, reverse = jax.jit(
            lambda p, near: (*map(along, near), jax.jvp(along, (p,), (u,))[1], jax.grad(along)(p))
        )(params, near)
        np.testing.assert_allclose(forward, (up - down) / (2 * h), rtol=1e-7)
        np.testing.assert_allclose(flat(reverse) @ flat(u), forward, rtol=1e-10)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_dtypes_are_kept(dtype):
    x = jnp.array([2.0, 5.0], dtype)
    product = jax.jit(functools.partial(hvp, published))(x, x)
    assert product.dtype == dtype
    assert not product.weak_type
    np.testing.assert_allclose(product.astype(jnp.float32), [4.5, 2 - 5 * 0.9589243], rtol=0.02)


def test_numbers_and_numpy_arrays_are_accepted_as_points():
    np.testing.assert_allclose(hvp(lambda x: x**3, 2.0, 1.0), 12.0)
    cubes = lambda x: jnp.sum(x**3)
    np.testing.assert_allclose(hvp(cubes, np.array([2.0, 5.0]), np.array([1.0, -2.0])), [12, -60])


def test_kinks_and_constants():
    both = jax.jit(lambda x: [hvp(f, x, x) for f in (lambda x: jnp.sum(jnp.maximum(x, 0.0)), lambda x: jnp.float32(1))])
    assert np.array_equal(both(np.ones(3, np.float32)), np.zeros((2, 3)))


SENTENCES = [
    (
        lambda x: x,
        jnp.ones(3),
        jnp.ones(3),
        ValueError,
        r"expected f to return a scalar, got float32 \(3,\).*jax.jacobian",
    ),
    (lambda x: x[:1], jnp.ones(3), jnp.ones(3), ValueError, r"got float32 \(1,\)"),
    (lambda x: (x.sum(), x), jnp.ones(3), jnp.ones(3), TypeError, r"got a tuple; return the value alone"),
    (lambda x: None, jnp.ones(3), jnp.ones(3), TypeError, r"got None"),
    (lambda x: x.sum().astype(int), jnp.ones(3), jnp.ones(3), TypeError, r"floating-point scalar, got int32"),
    (jnp.sum, jnp.arange(3), jnp.arange(3), TypeError, r"got int32 \(3,\) at x"),
    (jnp.sum, {"a": [jnp.ones(2), jnp.arange(3)]}, {}, TypeError, r"got int32 \(3,\) at x\['a'\]\[1\].*close over"),
    (jnp.sum, jnp.ones(3, complex), jnp.ones(3, complex), TypeError, r"got complex64 \(3,\) at x"),
    (jnp.sum, jnp.ones(3), jnp.ones(2), ValueError, r"float32 \(3,\) at x, got float32 \(2,\) at v"),
    (jnp.sum, jnp.ones(3), jnp.ones(3, jnp.bfloat16), ValueError, r"got bfloat16 \(3,\) at v"),
    (
        jnp.sum,
        {"a": jnp.ones(3), "b": jnp.ones(2)},
        {"a": jnp.ones(3), "c": jnp.ones(4)},
        ValueError,
        r"at x\['b'\], got nothing at v\['b'\] but float32 \(4,\) at v\['c'\];",
    ),
    (
        jnp.sum,
        {"a": jnp.ones(3)},
        {"a": jnp.ones(3), "b": jnp.ones(2)},
        ValueError,
        r"nothing at x\['b'\], got float32 \(2,\) at v\['b'\]",
    ),
    (jnp.sum, [jnp.ones(3)], (jnp.ones(3),), ValueError, r"v in the containers of x"),
    (jnp.sum, {"a": jnp.ones(3)}, {"a": jnp.ones((3, 1))}, ValueError, r"got float32 \(3, 1\) at v\['a'\]"),
    (jnp.sum, (), (), ValueError, r"at least one array"),
]


def test_errors_state_what_was_expected_and_what_to_do():
    for i, (f, x, v, error, words) in enumerate(SENTENCES):
        tool = (hvp, value_grad_hvp, directional_curvature)[i % 3]
        with pytest.raises(error, match=f"^{tool.__name__} .*{words}"):
            tool(f, x, v)
    with pytest.raises(ValueError, match=r"^hvp expected f to return a scalar"):
        jax.jit(functools.partial(hvp, jnp.sin))(jnp.ones(3), jnp.ones(3))


def test_following_the_errors_advice_works():
    f = lambda x: x**3
    x, v = jnp.arange(3.0), jnp.ones(3)
    np.testing.assert_allclose(jax.jit(jax.jacobian(f))(x), jnp.diag(3 * x**2))
    np.testing.assert_allclose(hvp(lambda x: (f(x).sum(), x)[0], jnp.arange(3).astype(jnp.float32), v), 6 * x)


# ---- cost ----------------------------------------------------------------------------------

SIZES = (32, 64, 48, 8)


@functools.cache
def tables():
    """The costs of a small net, counted and measured."""
    f, params = small_net(jnp.float32)
    counted = cost_table(f, params, rows=BASIC, measure=False)
    return counted, cost_table(f, params, rows=BASIC, repeats=3, key=jax.random.key(0))


def test_a_hessian_vector_product_costs_a_few_gradients_and_forms_no_matrix():
    """A gradient costs two to four times the function, forward mode about twice; rows have counts of `count_flops`."""
    f, params = small_net(jnp.float32, SIZES)
    f = jax.jit(f)  # traced once for all derivatives
    v = jax.tree.map(jnp.ones_like, params)
    n = sum(leaf.size for leaf in jax.tree.leaves(params))
    table = cost_table(f, params, rows=(*BASIC, "directional_curvature", "hessian"), measure=False)
    assert [row.name for row in table] == ["function", "gradient", "jvp", "hvp", "directional_curvature", "hessian"]
    assert table.function.flops == count_flops(f, params).flops
    assert table["gradient"].count == count_flops(jax.value_and_grad(f), params)
    assert table.jvp.flops == count_flops(lambda p, v: jax.jvp(f, (p,), (v,)), params, v).flops
    tools = {tool: functools.partial(tool, f) for tool in (hvp, value_grad_hvp, directional_curvature)}
    product, one_pass, curvature = (count_flops(tool, params, v).flops for tool in tools.values())
    assert (table.hvp.flops, table.directional_curvature.flops) == (product, curvature)
    assert all(row.seconds is None and row.temporary_bytes is None for row in table)
    gradient = count_flops(jax.grad(f), params).flops
    assert 1.5 * gradient < product <= 3.5 * gradient
    assert curvature < product
    assert one_pass < 0.85 * (product + table.gradient.flops)
    assert (table.function.flops_ratio, table.hvp.flops_ratio) == (1, product / table.function.flops)
    assert 2 < table.gradient.flops_ratio < 4 < table.hvp.flops_ratio < 8.5
    assert 1.5 < table.jvp.flops_ratio < 3
    assert table.hessian.flops_ratio > 1000
    assert all(largest_array(tool, params, v) < 2 * n for tool in tools.values())
    assert largest_array(jax.hessian(f), params) >= (32 * 64) ** 2  # the Hessian does form a matrix


def largest_array(f, *args):
    sizes = [v.aval.size for e, _, _ in equations(jax.make_jaxpr(f)(*args)) for v in e.outvars]
    return max(sizes)


BASIC = ("gradient", "jvp", "hvp")
EVERY = [
    "function",
    "jvp",
    "vjp",
    "gradient",
    "jacfwd",
    "jacrev",
    "hessian",
    "hvp",
    "hvp_reverse_over_forward",
    "hvp_reverse_over_reverse",
    "directional_curvature",
]


def test_the_table_has_only_the_rows_that_apply():
    """A scalar function has all rows, any other the Jacobian and its products; no matrix takes over 1000 passes."""
    names = lambda f, x, **options: list(cost_table(f, x, measure=False, **options).rows)
    few, many = shaped(1000), shaped(1001)
    assert names(lambda x: jnp.sum(x**2), few) == EVERY
    assert names(lambda x: jnp.sum(x**2), many) == [name for name in EVERY if name not in ("jacfwd", "hessian")]
    assert names(lambda x: jnp.sum(x**2), shaped(1001), rows="all") == EVERY
    general = ["function", "jvp", "vjp", "jacfwd", "jacrev"]
    assert names(jnp.sin, few) == names(jnp.sin, many, rows="all") == general
    assert names(jnp.sin, many) == general[:3]
    assert names(lambda x: x[:10] * 2, many) == [*general[:3], "jacrev"]
    assert names(lambda x: {"a": x[:2], "b": (x.sum(),)}, few) == general
    assert names(lambda x: x[:1], few) == names(lambda x: (x.sum(),), few) == general
    assert names(jnp.sum, few, rows="jvp") == ["function", "jvp"]
    assert names(jnp.sum, few, rows=["jvp", "vjp", "jvp", "function"]) == ["function", "jvp", "vjp"]


def shaped(*sizes):
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


def test_operations_of_each_row_by_hand():
    """y = W x with W of shape m x n: one more product for jvp and vjp, n in forward mode, m in reverse mode."""
    m, n = 7, 5
    w = jnp.ones((m, n))
    table = cost_table(lambda x: w @ x, shaped(n), rows="all", measure=False)
    assert {row.name: row.flops for row in table} == {
        "function": 2 * m * n,
        "jvp": 2 * 2 * m * n,
        "vjp": 2 * m * n + 2 * m * n,
        "jacfwd": n * 2 * m * n,
        "jacrev": m * 2 * m * n,
    }
    square = cost_table(lambda x: jnp.sum((w @ x) ** 2), shaped(n), rows="all", measure=False)
    forward, product = 2 * m * n + m + m - 1, 2 * m * n  # W x, squares, their sum
    assert square.function.flops == forward
    assert square.gradient.flops == forward + m + m + product  # 2 y, times the cotangent, W^T
    assert square.hessian.count.dots >= n * 2 * product
    for order in ("hvp", "hvp_reverse_over_forward", "hvp_reverse_over_reverse"):
        assert 2 * product <= square[order].count.dots <= 3 * product


def test_all_rows_agree_with_dense_derivatives():
    """Every row equals its value from the dense Jacobian and Hessian, in float64."""
    with jax.enable_x64(True):
        f, params = small_net(sizes=(3, 2))
        u, v = jnp.float64(0.7), like(params, np.random.default_rng(7).normal(size=flat(params).size))
        dense = hessian_by_differences(f, params)

        @jax.jit
        def every(u, v, params):
            return {name: program(f)(u, v, params) for name, program in cost_tables._PROGRAMS.items()}

        of, (expected, gradient) = every(u, v, params), jax.jit(jax.value_and_grad(f))(params)
        gradient = flat(gradient)
        np.testing.assert_allclose(of["jvp"], [expected, gradient @ flat(v)], rtol=1e-12)
        np.testing.assert_allclose(flat(of["vjp"][1]), 0.7 * gradient, rtol=1e-12)
        np.testing.assert_allclose(flat(of["gradient"][1]), gradient, rtol=1e-12)
        for name in ("jacfwd", "jacrev"):
            np.testing.assert_allclose(flat(of[name]), gradient, rtol=1e-12)
        for name in ("hvp", "hvp_reverse_over_forward", "hvp_reverse_over_reverse"):
            np.testing.assert_allclose(flat(of[name]), dense @ flat(v), atol=1e-8)
        np.testing.assert_allclose(of["directional_curvature"], flat(v) @ dense @ flat(v), atol=1e-8)


def test_a_function_between_pytrees_is_measured():
    def f(params, x):
        y = jnp.tanh(x @ params["w"])
        return {"y": y, "more": (y.sum(), y[0])}

    table = cost_table(f, {"w": jnp.ones((3, 2))}, jnp.ones((4, 3)), repeats=1)
    assert list(table.rows) == ["function", "jvp", "vjp", "jacfwd", "jacrev"]
    assert all(row.seconds > 0 for row in table)
    assert table.vjp.count.dots == 2 * table.function.count.dots


def test_programs_beyond_the_memory_limit_are_not_run():
    f = lambda x: jnp.sum(jnp.tanh(x) ** 2)
    table = cost_table(f, jnp.ones(300), rows=("gradient", "hessian"), repeats=1, memory_limit=100_000)
    assert table.gradient.seconds > 0
    assert table.hessian.seconds is table.hessian.time_ratio is table.hessian.quartiles is None
    assert table.hessian.temporary_bytes is not None
    assert str(table).endswith("Not timed, because memory_limit is exceeded: hessian.")
    assert np.isnan(table.plot().patches[-1].get_width())
    nothing = cost_table(f, jnp.ones(300), rows=("gradient",), repeats=1, memory_limit=1)
    assert all(row.seconds is None for row in nothing)
    assert "Not timed" not in str(nothing).splitlines()[0]


def test_the_table_becomes_a_data_frame():
    pandas = pytest.importorskip("pandas")
    table = tables()[1]
    frame, counted = table.to_frame(), tables()[0].to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.index) == ["function", "gradient", "jvp", "hvp"]
    for row in table:
        line = frame.loc[row.name]
        assert line["operations"] == row.flops
        assert line["multiplications"] + line["additions"] + line["transcendentals"] == row.flops
        assert (line["ratio"], line["time_ratio"]) == (row.flops_ratio, row.time_ratio)
        assert (line["lower_quartile"], line["seconds"], line["upper_quartile"]) == (
            row.quartiles[0],
            row.seconds,
            row.quartiles[1],
        )
        assert (line["lower_time_ratio"], line["upper_time_ratio"]) == row.time_ratio_quartiles
        assert line["temporary_bytes"] == row.temporary_bytes
    assert list(counted.columns) == list(frame.columns)
    assert list(counted.dtypes) == list(frame.dtypes)
    assert counted["seconds"].isna().all()


def test_without_pandas_the_rows_are_readable(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    table = cost_table(jnp.sum, shaped(3), rows="jvp", measure=False)
    with pytest.raises(ImportError, match=r"to_frame expected pandas, got .*pip install pandas, .*for row in table"):
        table.to_frame()
    assert {row.name: row.flops for row in table} == {"function": 2, "jvp": 4}  # as the error advises


def test_further_arguments_are_not_differentiated():
    f = lambda w, x, n: jnp.sum((x @ w) ** 2) * n
    shapes = jax.ShapeDtypeStruct((3, 2), jnp.float32), jax.ShapeDtypeStruct((4, 3), jnp.float32)
    table = cost_table(f, *shapes, 2.0, measure=False)
    products = 4 * 3 * 2
    assert table.function.count.multiplications == products + 8 + 1  # x w, the squares, n
    gradient = cost_table(f, *shapes, 2.0, rows=("gradient",), measure=False).gradient.count
    assert gradient.multiplications == 2 * products + 3 * 8 + 2  # x w and its transpose for w, none for x


def test_measured_columns():
    table = tables()[1]
    for row in table:
        assert 0 < row.quartiles[0] <= row.seconds <= row.quartiles[1]
        assert isinstance(row.temporary_bytes, int)
        assert row.time_ratio_quartiles[0] <= row.time_ratio <= row.time_ratio_quartiles[1]
    assert (table.function.time_ratio, table.function.time_ratio_quartiles) == (1.0, (1.0, 1.0))
    assert table.gradient.temporary_bytes > 0
    f, params = small_net(jnp.float32)
    once = cost_table(f, params, rows=("gradient",), repeats=1)
    assert once.gradient.quartiles == (once.gradient.seconds,) * 2
    assert once.gradient.time_ratio == once.gradient.seconds / once.function.seconds
    compiled = cost_table(f, params, rows=("gradient",), repeats=0)
    assert compiled.gradient.seconds is None
    assert compiled.gradient.temporary_bytes == table.gradient.temporary_bytes


def test_the_table_prints_in_a_terminal_and_in_a_notebook():
    table, measured = tables()
    text, html = str(table), table._repr_html_()
    assert text == repr(table)
    lines = text.splitlines()
    assert lines[0].split() == ["operations", "/", "function"]
    assert [line.split()[0] for line in lines[2:]] == ["function", "gradient", "jvp", "hvp"]
    for row in table:
        assert f"{row.flops:,}" in text
        assert f"{row.flops:,}" in html
        assert row.name in html
    assert html.startswith("<table>")
    assert html.count("<tr>") == 5
    assert "time (ms)" in str(measured)
    assert "temporary bytes" in str(measured)


def test_the_table_lists_uncounted_operations():
    f = lambda x: jax.pure_callback(lambda x: x, x, x).sum()
    table = cost_table(f, jnp.arange(3.0), rows=("function",), measure=False)
    assert str(table).endswith("Not counted, because their arithmetic is unknown: pure_callback.")
    assert "pure_callback" in table._repr_html_()
    g = lambda x: jax.lax.while_loop(lambda x: x.sum() > 1.0, lambda x: x / 2, x).sum()
    assert "loop of unknown length" in str(cost_table(g, jnp.ones(3), rows=("function", "jvp"), measure=False))
    h = lambda x: jax.lax.cond(x.sum() > 1.0, jnp.sin, jnp.cos, x).sum()
    assert "only the costliest is counted" in str(cost_table(h, jnp.ones(3), rows=("jvp",), measure=False))


def test_plot_of_the_table():
    pytest.importorskip("matplotlib").use("agg")
    import matplotlib.pyplot as plt

    table, measured = tables()
    _, ax = plt.subplots()
    assert table.plot(ax) is ax
    assert [bar.get_width() for bar in ax.patches] == [row.flops_ratio for row in table]
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["function", "gradient", "jvp", "hvp"]
    assert ax.get_xscale() == "linear"
    assert len(measured.plot().patches) == 8
    assert cost_table(jnp.sum, shaped(100), measure=False).plot().get_xscale() == "log"


def test_errors_of_the_table():
    with pytest.raises(ValueError, match=r"cost_table expected rows among function, jvp, vjp, grad.*, got 'gradients'"):
        cost_table(jnp.sum, jnp.ones(3), rows=("gradients",))
    for row in EVERY[3:4] + EVERY[6:]:
        with pytest.raises(
            ValueError, match=rf"scalar-valued f for the row '{row}', got float32 \(3,\); ask for 'vjp'"
        ):
            cost_table(jnp.sin, jnp.ones(3), rows=row, measure=False)
    with pytest.raises(ValueError, match=r"row 'hvp', got a tuple of 2 arrays; ask for .*f\(x\).sum\(\)"):
        cost_table(lambda x: (x.sum(), x), jnp.ones(3), rows="hvp")
    with pytest.raises(
        TypeError, match=r"cost_table expected f to return floating-point arrays, got int32 \(\); .*\[0\]"
    ):
        cost_table(lambda x: (x.sum(), jnp.argmax(x)), jnp.ones(3))
    with pytest.raises(TypeError, match=r"cost_table expected f to return arrays, got None"):
        cost_table(lambda x: None, jnp.ones(3))
    with pytest.raises(ValueError, match=r"memory_limit to be an integer >= 1, got 0"):
        cost_table(jnp.sum, jnp.ones(3), memory_limit=0)
    with pytest.raises(TypeError, match=r"cost_table expected x .*got int32"):
        cost_table(jnp.sum, jnp.arange(3), measure=False)
    with pytest.raises(ValueError, match=r"got a ShapeDtypeStruct; pass arrays, or measure=False"):
        cost_table(jnp.sum, jax.ShapeDtypeStruct((3,), jnp.float32))
    with pytest.raises(ValueError, match=r"got none"):
        cost_table(jnp.sum)
    with pytest.raises(ValueError, match=r"integer >= 0, got -1"):
        cost_table(jnp.sum, jnp.ones(3), repeats=-1)
    table = cost_table(jnp.sum, jax.ShapeDtypeStruct((3,), jnp.float32), rows=BASIC, repeats=0)  # as the error advises
    assert list(cost_table(jnp.sin, shaped(3), rows=("vjp", "jacrev"), measure=False).rows) == [
        "function",
        "vjp",
        "jacrev",
    ]
    assert "hvp" in cost_table(lambda x: jnp.sin(x).sum(), shaped(3), rows="hvp", measure=False).rows
    assert "vjp" in cost_table(lambda x: (x.sum(), jnp.argmax(x))[0], shaped(3), measure=False).rows
    with pytest.raises(KeyError, match=r"a row of function, gradient, jvp, hvp, got 'vjp'"):
        table["vjp"]
    with pytest.raises(AttributeError, match=r"an attribute or a row of .*, got 'vjp'"):
        _ = table.vjp
    with pytest.raises(AttributeError):
        _ = table._ipython_display_


@pytest.mark.parametrize("package", [ad, theory])
def test_names_imported_at_their_first_use_are_those_of_the_modules(package):
    """Type checkers read ``__all__`` of each module, users the table of the package."""
    for module, names in package._MODULES.items():
        home = getattr(package, module)
        assert names.split() == (["JacobianPlan"] if module == "planning" else sorted(home.__all__)), module
        assert all(getattr(package, name) is getattr(home, name) for name in names.split())
    assert {*package.__all__, *package._MODULES} == set(dir(package))
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'nothing'"):
        _ = package.nothing


def test_public_names():
    assert set(ad.__all__) >= {
        "Count",
        "CostTable",
        "cost_table",
        "count_flops",
        "directional_curvature",
        "equations",
        "hvp",
    }


def test_arguments_in_another_order_raise(sentences):
    p = jnp.ones(2)
    with pytest.raises(TypeError, match=r"cost_table expected f to be a function, got float32 \(2,\)"):
        cost_table(p, jnp.sum)
    with pytest.raises(TypeError, match=r"hvp expected f to be a function, got float32 \(2,\)"):
        hvp(p, jnp.sum, p)
