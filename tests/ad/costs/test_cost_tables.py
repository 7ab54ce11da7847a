"""The tables of what derivatives cost."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from derivatives import small_net
from jax.flatten_util import ravel_pytree

from jaxblocks.ad import cost_table, count_flops, directional_curvature, equations, hvp
from jaxblocks.ad.costs import cost_tables

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
    tools = {tool: functools.partial(tool, f) for tool in (hvp, directional_curvature)}
    product, curvature = (count_flops(tool, params, v).flops for tool in tools.values())
    assert (table.hvp.flops, table.directional_curvature.flops) == (product, curvature)
    assert all(row.seconds is None and row.temporary_bytes is None for row in table)
    gradient = count_flops(jax.grad(f), params).flops
    assert 1.5 * gradient < product <= 3.5 * gradient
    assert curvature < product
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
        flat, (point, unravel) = lambda tree: ravel_pytree(tree)[0], ravel_pytree(params)
        u, v = jnp.float64(0.7), unravel(np.random.default_rng(7).normal(size=point.size))
        gradient = jax.jit(jax.grad(lambda point: f(unravel(point))))
        # By differences: no second derivative of JAX, which the rows are made of.
        dense = np.stack([(gradient(point + h) - gradient(point - h)) / 2e-5 for h in 1e-5 * np.eye(point.size)], 1)

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


def test_the_rows_are_those_of_a_data_frame():
    """As the docstring says."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(map(vars, tables()[1])).set_index("name")
    assert frame.loc["gradient", "flops_ratio"] == tables()[1].gradient.flops_ratio


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


def test_arguments_in_another_order_raise(sentences):
    with pytest.raises(TypeError, match=r"cost_table expected f to be a function, got float32 \(2,\)"):
        cost_table(jnp.ones(2), jnp.sum)
