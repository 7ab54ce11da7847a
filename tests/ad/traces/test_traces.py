# ruff: noqa: RUF001
"""Traces: the tables of the survey, the classifier of the lecture, and comparisons with jax.grad."""

import functools
import re
import unicodedata

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxblocks import MLP
from jaxblocks.ad import hvp, root
from jaxblocks.ad.traces import TraceTable, trace_table


def survey(x1, x2):
    return jnp.log(x1) + x1 * x2 - jnp.sin(x2)


def operations(rows):
    return [row for row in rows if row.kind == "operation"]


# ---- the survey's tables --------------------------------------------------------------------


def test_tables_of_the_survey_line_by_line():
    """Baydin et al., tables 2 and 3: rows, symbols, numbers, order; v_2 = v_-1 v_0 (the lecture printed v_-1 twice)."""
    table = trace_table(survey, 2.0, 5.0)
    assert [str(row) for row in table.primal] == [
        "v₋₁ = x1 = 2",
        "v₀ = x2 = 5",
        "v₁ = ln v₋₁ = ln 2 = 0.693",
        "v₂ = v₋₁ × v₀ = 2 × 5 = 10",
        "v₃ = sin v₀ = sin 5 = -0.959",
        "v₄ = v₁ + v₂ = 0.693 + 10 = 10.693",
        "v₅ = v₄ - v₃ = 10.693 - (-0.959) = 11.652",
        "y = v₅ = 11.652",
    ]
    assert [str(row) for row in table.tangent] == [
        "v̇₋₁ = ẋ1 = 1",
        "v̇₀ = ẋ2 = 0",
        "v̇₁ = v̇₋₁ / v₋₁ = 1 / 2 = 0.5",
        "v̇₂ = v̇₋₁ × v₀ + v̇₀ × v₋₁ = 1 × 5 + 0 × 2 = 5",
        "v̇₃ = v̇₀ × cos v₀ = 0 × cos 5 = 0",
        "v̇₄ = v̇₁ + v̇₂ = 0.5 + 5 = 5.5",
        "v̇₅ = v̇₄ - v̇₃ = 5.5 - 0 = 5.5",
        "ẏ = v̇₅ = 5.5",
    ]
    assert [str(row) for row in table.adjoint] == [
        "v̄₅ = ȳ = 1",
        "v̄₄ = v̄₅ ∂v₅/∂v₄ = v̄₅ × 1 = 1",
        "v̄₃ = v̄₅ ∂v₅/∂v₃ = v̄₅ × (-1) = -1",
        "v̄₁ = v̄₄ ∂v₄/∂v₁ = v̄₄ × 1 = 1",
        "v̄₂ = v̄₄ ∂v₄/∂v₂ = v̄₄ × 1 = 1",
        "v̄₀ = v̄₃ ∂v₃/∂v₀ = v̄₃ × cos v₀ = -0.284",
        "v̄₋₁ = v̄₂ ∂v₂/∂v₋₁ = v̄₂ × v₀ = 5",
        "v̄₀ = v̄₀ + v̄₂ ∂v₂/∂v₀ = v̄₀ + v̄₂ × v₋₁ = 1.716",
        "v̄₋₁ = v̄₋₁ + v̄₁ ∂v₁/∂v₋₁ = v̄₋₁ + v̄₁ / v₋₁ = 5.5",
        "x̄1 = v̄₋₁ = 5.5",
        "x̄2 = v̄₀ = 1.716",
    ]


def test_numbers_of_the_survey():
    """Seven digits in float64; one reverse pass gives both partial derivatives, a forward pass gives one."""
    with jax.enable_x64(True):
        table = trace_table(survey, 2.0, 5.0)
        other = trace_table(survey, 2.0, 5.0, tangent=(0.0, 1.0))
        both = jax.jit(jax.jacfwd(survey, (0, 1)))(2.0, 5.0)
    primal = [row.value for row in operations(table.primal)]
    np.testing.assert_allclose(primal, [0.693147, 10, -0.958924, 10.693147, 11.652071], atol=5e-7)
    adjoint = [row.value for row in table.adjoint]
    expected = [1, 1, -1, 1, 1, -0.283662, 5, 1.716338, 5.5, 5.5, 1.716338]
    np.testing.assert_allclose(adjoint, expected, atol=5e-7)
    np.testing.assert_allclose(table.gradient, [table.derivative, other.derivative], rtol=1e-15)
    np.testing.assert_allclose(table.gradient, both, rtol=1e-15)
    step = 1e-6
    differences = [
        (survey(2.0 + step * a, 5.0 + step * b) - survey(2.0 - step * a, 5.0 - step * b)) / (2 * step)
        for a, b in ((1, 0), (0, 1))
        for survey in [lambda x1, x2: np.log(x1) + x1 * x2 - np.sin(x2)]
    ]
    np.testing.assert_allclose(table.gradient, differences, rtol=1e-9)


def test_operations_are_ordered_by_depth():
    """Traced as ln, x, +, sin, -; printed and numbered with sin before +."""
    traced = [equation.primitive.name for equation in jax.make_jaxpr(survey)(2.0, 5.0).eqns]
    assert traced == ["log", "mul", "add", "sin", "sub"]
    table = trace_table(survey, 2.0, 5.0)
    assert [node.operation for node in table.nodes[2:]] == ["log", "mul", "sin", "add", "sub"]
    assert [node.level for node in table.nodes] == [0, 0, 1, 1, 1, 2, 3]
    assert table[-1].operation == "x1" and table[5].parents == ("v₄", "v₃")


def test_trace_of_a_gradient_gives_a_hessian_vector_product():
    """vᵀH = d(vᵀg)/dx for v = (1, -2) at (2, 5): (-2.25, 2.9178485), where H = [[-1/4, 1], [1, sin 5]]."""
    with jax.enable_x64(True):
        x, v = jnp.array([2.0, 5.0]), jnp.array([1.0, -2.0])
        table = trace_table(lambda x: jax.grad(lambda x: survey(*x))(x) @ v, x)
        hessian = jax.jit(jax.jacfwd(lambda x: jax.jacrev(lambda x: survey(*x))(x)))(x)
        np.testing.assert_allclose(hessian, [[-0.25, 1], [1, np.sin(5.0)]], atol=1e-12)
        np.testing.assert_allclose(table.gradient[0], [-2.25, 2.9178485], atol=5e-8)
        np.testing.assert_allclose(table.gradient[0], hvp(lambda x: survey(*x), x, v), rtol=1e-14)


def test_calls_that_are_not_opened_are_nodes_with_the_names_of_their_functions():
    """The values and derivatives are those of the opened calls, and of jax.grad."""

    @jax.jit
    def energy(w):
        return jnp.sum(w**2) + 1.0

    f = lambda w, x: jnp.tanh(energy(w) * x)
    w, x = jnp.array([0.5, -1.0]), jnp.array(0.25)
    closed, opened = trace_table(f, w, x, open_calls=False), trace_table(f, w, x)
    assert [node.operation for node in closed.nodes] == ["w", "x", "energy", "mul", "tanh"]
    assert [node.operation for node in opened.nodes] == ["w", "x", "integer_pow", "reduce_sum", "add", "mul", "tanh"]
    assert closed[1].value == 2.25 and float(closed.value) == float(opened.value)
    for table in (closed, opened):
        np.testing.assert_allclose(table.gradient[0], jax.grad(f)(w, x), rtol=1e-6)
        np.testing.assert_allclose(table.derivative, jax.jvp(lambda w: f(w, x), (w,), (jnp.ones(2),))[1], rtol=1e-6)


def test_operations_on_numbers_alone_are_drawn_as_constants():
    pytest.importorskip("matplotlib", reason="the graph is drawn by matplotlib")
    from matplotlib.figure import Figure

    ax = trace_table(lambda x: jnp.sum(x * jnp.full(2, 3.0)), jnp.ones(2)).plot(Figure().subplots())
    nodes = [line.get_color() for line in ax.lines]
    assert nodes.count("#DDDDDD") == 1 and len(nodes) == 4


# ---- the classifier of the lecture ----------------------------------------------------------


def classifier(params, x, y, lam):
    score = params["W2"] @ jax.nn.relu(params["W1"] @ x)
    penalty = jnp.sum(params["W1"] ** 2) + jnp.sum(params["W2"] ** 2)
    return jax.nn.softplus(score) - y * score + lam * penalty


def listing():
    params = {"W1": jnp.array([[0.5, 0.0], [0.0, 1.0]]), "W2": jnp.array([1.0, 0.0])}
    return params, jnp.ones(2), jnp.array(0.0), jnp.array(0.01)


def test_classifier_has_the_values_of_the_listing():
    """Krapac & Segvic's listing: h = (.5, 1), logit .5, data term .9740770, J = .9965770, and both gradients."""
    with jax.enable_x64(True):
        table = trace_table(classifier, *listing())
    values = {node.operation: np.asarray(node.value) for node in table.nodes}
    np.testing.assert_array_equal(values["relu"], [0.5, 1])
    assert values["dot_general"] == 0.5
    assert values["logaddexp"] == pytest.approx(0.9740770, abs=5e-8)
    assert table.value == pytest.approx(0.9965770, abs=5e-8)
    np.testing.assert_allclose(table.gradient[0]["W1"], [[0.6324593, 0.6224593], [0, 0.02]], atol=5e-8)
    np.testing.assert_allclose(table.gradient[0]["W2"], [0.3312297, 0.6224593], atol=5e-8)


def test_graph_of_the_classifier():
    """Roots are inputs, labels, parameters and hyperparameters; every other node is one operation with one result."""
    table = trace_table(classifier, *listing())
    inputs = [node.operation for node in table.nodes if node.kind == "input"]
    assert inputs == ["params['W1']", "params['W2']", "x", "y", "lam"]
    assert [node.operation for node in table.nodes if node.kind == "operation"] == [
        *("dot_general", "integer_pow", "integer_pow", "relu", "reduce_sum", "reduce_sum", "dot_general"),
        *("add", "logaddexp", "mul", "mul", "sub", "add"),
    ]
    names = [node.name for node in table.nodes]
    assert len(set(names)) == len(names)
    for i, node in enumerate(table.nodes):
        assert all(names.index(parent) < i for parent in node.parents)
        assert (node.kind == "operation") == bool(node.parents)
    assert str(table.adjoint[0]) == "v̄₁₃ = f̄ = 1"  # y is the name of the label


def test_each_intermediate_is_computed_once():
    """Dynamic programming: as many rows as operations, although the shared term is used three times."""
    table = trace_table(lambda x: jnp.exp(x) * (jnp.exp(x) + x), jnp.array(0.5))
    assert len(operations(table.primal)) == 4  # the source has exp twice, so JAX traces it twice
    shared = trace_table(lambda x: (lambda e: e * (e + x) - e)(jnp.exp(x)), jnp.array(0.5))
    assert [node.operation for node in shared.nodes] == ["x", "exp", "add", "mul", "sub"]
    assert sum(row.name == "v̄₁" for row in shared.adjoint) == 3


# ---- every rule -----------------------------------------------------------------------------

X = np.array([0.3, -0.7, 0.5, 0.9])
M = np.arange(6.0).reshape(2, 3) / 7 - 0.3

SCALARS = {
    "x + y": "v̄₁ × 1 | v̄₁ × 1",
    "x - y": "v̄₁ × 1 | v̄₁ × (-1)",
    "x * y": "v̄₁ × v₀ | v̄₁ × v₋₁",
    "x / y": "v̄₁ / v₀ | v̄₁ × (-v₁ / v₀)",
    "x**y": "v̄₁ × v₀ × v₋₁^(v₀ - 1) | v̄₁ × v₁ × ln v₋₁",
    "jnp.maximum(x, y)": "v̄₁ × [v₋₁ > v₀] | v̄₁ × [v₀ > v₋₁]",
    "jnp.minimum(x, y)": "v̄₁ × [v₋₁ < v₀] | v̄₁ × [v₀ < v₋₁]",
    "-x": "v̄₁ × (-1)",
    "x**2": "v̄₁ × 2 × v₋₁",
    "x**3": "v̄₁ × 3 × v₋₁²",
    "x**-2": "v̄₁ × (-2) × v₋₁⁻³",
    "jnp.square(x)": "v̄₁ × 2 × v₋₁",
    "jnp.abs(x)": "v̄₁ × sign v₋₁",
    "jnp.log(x)": "v̄₁ / v₋₁",
    "jnp.cosh(x)": "v̄₁ × sinh v₋₁",
    "jnp.log1p(x)": "v̄₁ / (1 + v₋₁)",
    "jnp.exp(x)": "v̄₁ × v₁",
    "jnp.expm1(x)": "v̄₁ × (v₁ + 1)",
    "jnp.sin(x)": "v̄₁ × cos v₋₁",
    "jnp.cos(x)": "v̄₁ × (-sin v₋₁)",
    "jnp.tan(x)": "v̄₁ × (1 + v₁²)",
    "jnp.tanh(x)": "v̄₁ × (1 - v₁²)",
    "jnp.sinh(x)": "v̄₁ × cosh v₋₁",
    "jnp.sqrt(x)": "v̄₁ / (2 × v₁)",
    "lax.rsqrt(x)": "v̄₁ × (-v₁ / (2 × v₋₁))",
    "lax.logistic(x)": "v̄₁ × v₁ × (1 - v₁)",
    "lax.asin(x)": "v̄₁ / √(1 - v₋₁²)",
    "lax.acos(x)": "v̄₁ × (-1 / √(1 - v₋₁²))",
    "lax.atan(x)": "v̄₁ / (1 + v₋₁²)",
    "lax.erf(x)": "v̄₁ × (2 / √π) × exp(-v₋₁²)",
}
ON_PAPER = dict(
    **{name: getattr(np, name) for name in ("log", "exp", "sin", "cos", "sinh", "cosh", "sign", "sqrt")},
    **{"ln": np.log, "π": np.pi},
)


def as_python(symbols, values):
    """The symbols of a rule as an expression that can be evaluated."""
    for name, value in values.items():
        symbols = symbols.replace(name, f"({value!r})")
    symbols = re.sub(r"√(\([^()]*\)|π)", r"sqrt(\1)", symbols.replace("sqrt", "√"))
    symbols = re.sub(r"√(\((?:[^()]|\([^()]*\))*\))", r"sqrt\1", symbols)
    symbols = re.sub(r"\b(ln|sin|cos|sinh|cosh|sign) (\([^()]*\))", r"\1(\2)", symbols)
    symbols = symbols.replace("⁻³", "**-3").replace("²", "**2").replace("³", "**3").replace("^", "**")
    return symbols.replace("×", "*").replace("[", "1.0 * (").replace("]", ")")


def written_function(written):
    return eval(f"lambda x, y: {written}", {"jnp": jnp, "lax": lax})


@functools.cache
def slopes_of_scalars():
    """The gradient of each function by JAX at one point, from one program."""
    with jax.enable_x64(True):
        each = lambda x, y: {written: jax.grad(written_function(written), (0, 1))(x, y) for written in SCALARS}
        return jax.tree.map(np.asarray, jax.jit(each)(0.4, 0.7))


@pytest.mark.parametrize("written", SCALARS)
def test_printed_rule_of_each_operation_gives_its_adjoint(written):
    """Each printed formula of an adjoint evaluates to the printed value, which equals that of jax.grad."""
    with jax.enable_x64(True):
        x, y = 0.4, 0.7
        table = trace_table(written_function(written), x, y, tangent=(0.6, -1.1), cotangent=1.3)
    slopes = slopes_of_scalars()[written]
    gradient, pushed = [1.3 * each for each in slopes], np.dot(slopes, [0.6, -1.1])
    rows = operations(table.adjoint)
    assert " | ".join(row.expressions[-1] for row in rows) == SCALARS[written]
    known = {"v̄₁": 1.3, "v̇₋₁": 0.6, "v̇₀": -1.1, "v₋₁": x, "v₀": y, "v₁": float(table.value)}
    for row, expected in zip(rows, gradient, strict=False):
        np.testing.assert_allclose(row.value, expected, rtol=1e-13)
        np.testing.assert_allclose(eval(as_python(row.expressions[-1], known), ON_PAPER), expected, rtol=1e-12)
    [row] = operations(table.tangent)
    np.testing.assert_allclose(row.value, pushed, rtol=1e-13)
    np.testing.assert_allclose(eval(as_python(row.expressions[0], known), ON_PAPER), pushed, rtol=1e-12)


@pytest.mark.parametrize("written", ["jnp.maximum(x, y)", "jnp.minimum(x, y)"])
@pytest.mark.parametrize("x", [2.0, np.array([1.0, 2.0, 3.0])], ids=["scalar", "array"])
def test_printed_rules_at_ties(written, x):
    """JAX gives each of two equal numbers half of the derivative, and the printed formulas are true."""
    f = eval(f"lambda x, y: {written}", {"jnp": jnp})
    y, ones = np.array(2.0) + 0 * x, np.ones_like(x)
    with jax.enable_x64(True):
        table = trace_table(f, x, y, tangent=(3 * ones, 5 * ones), cotangent=ones)
    sign = ">" if "max" in written else "<"
    left, right = (f"([{a} {sign} {b}] + [v₋₁ = v₀] / 2)" for a, b in (("v₋₁", "v₀"), ("v₀", "v₋₁")))
    times = "×" if np.ndim(x) == 0 else "⊙"
    rows = [*operations(table.adjoint), *operations(table.tangent)]
    printed = [rows[0].expressions[-1], rows[1].expressions[-1], rows[2].expressions[0]]
    pushed = f"v̇₋₁ {times} {left} + v̇₀ {times} {right}"
    assert printed == [f"v̄₁ {times} {left}", f"v̄₁ {times} {right}", pushed]
    python = {"v̄₁": "ones", "v̇₋₁": "(3 * ones)", "v̇₀": "(5 * ones)", "v₋₁": "x", "v₀": "y"}
    python |= {"×": "*", "⊙": "*", " = ": " == ", "[": "1.0 * (", "]": ")"}
    for words, row in zip(printed, rows, strict=True):
        for symbol, meaning in python.items():
            words = words.replace(symbol, meaning)
        np.testing.assert_allclose(eval(words, {"ones": ones, "x": x, "y": y}), row.value, rtol=1e-15)
    if np.ndim(x) == 0:
        assert rows[2].expressions[1] == f"3 × ([2 {sign} 2] + [2 = 2] / 2) + 5 × ([2 {sign} 2] + [2 = 2] / 2)"


COMPLEX = {
    "abs": lambda x, y: jnp.abs(lax.complex(x, y)),
    "abs of an array": lambda x, y: jnp.sum(jnp.abs(lax.complex(x, y) * jnp.array([1, 2j], jnp.complex128))),
    "quotient": lambda x, y: jnp.abs(1 / (lax.complex(x, y) - 2j)),
    "conjugate product": lambda x, y: jnp.real(lax.complex(x, y) * jnp.conj(lax.complex(y, x)) * lax.complex(x, x)),
    "negative literal": lambda x, y: jnp.real((-1 - 2j) * lax.complex(x, y)) - jnp.imag(-(lax.complex(y, x) ** 2)),
    "transcendental": lambda x, y: jnp.imag(jnp.exp(lax.complex(x, y) / 4) - jnp.log(lax.complex(y, x))),
    "real": lambda x, y: jnp.abs(x - y) + jnp.maximum(-x, -y) + jnp.where(x == y, x, -y),
    "abs at 0": lambda x, y: jnp.abs(x - 3) + jnp.abs(y) + jnp.abs(lax.complex(x - 3, y - 4)),
    "powers at 0": lambda x, y: (x - 3) ** (y / 2) + (x - 3) ** (y - 3),
}


def evaluated(words, known):
    """A printed right-hand side as a value; ``known`` has the values of the names."""
    names = sorted(known, key=len, reverse=True)
    for i, name in enumerate(names):
        words = words.replace(name, f"K{i}_")
    words = re.sub(r"\|([^|]*)\|", r"abs(\1)", words.replace("[", "1.0 * (").replace("]", ")"))
    words = re.sub(r"(sign|exp|ln|sum) (\([^()]*\)|[\w.]+)", r"\1(\2)", words).replace(" = ", " == ")
    for symbol, meaning in {"×": "*", "⊙": "*", "^": "**", "²": "**2", "≥": ">="}.items():
        words = words.replace(symbol, meaning)
    words = re.sub(r"(\S+) (?:as|broadcast to) [^+]*", r"\1", words)
    functions = {name: getattr(np, name) for name in ("real", "imag", "conj", "exp", "maximum", "where", "sum")}
    functions |= {"sign": jnp.sign, "ln": np.log, "complex": lambda a, b: a + 1j * b, "max": np.maximum}
    return eval(words, functions | {f"K{i}_": np.asarray(known[name]) for i, name in enumerate(names)})


@pytest.mark.parametrize("name", COMPLEX)
def test_every_printed_row_is_true(name):
    """Each row, in symbols and in numbers, evaluates to the value that it prints; complex numbers have brackets."""
    x, y = (3.0, 4.0) if "array" not in name else (np.array([3.0, 1.0]), np.array([4.0, -1.0]))
    with jax.enable_x64(True), np.errstate(all="ignore"):
        table = trace_table(COMPLEX[name], x, y, tangent=(-x, y))
        known = {node.name: node.value for node in table.nodes}
        known |= {f"v̇{node.name[1:]}": node.tangent for node in table.nodes if node.tangent is not None}
        for row in (*operations(table.primal), *operations(table.tangent)):
            np.testing.assert_allclose(evaluated(row.expressions[0], known), row.value, rtol=1e-12, err_msg=str(row))
            for numbers in row.expressions[1:]:  # of three digits
                value = evaluated(numbers, known)
                np.testing.assert_allclose(value, row.value, rtol=0.02, atol=0.02, err_msg=str(row))
        known |= {f"v̄{node.name[1:]}": node.adjoint for node in table.nodes if node.adjoint is not None}
        so_far = {}
        for row in operations(table.adjoint):
            value = evaluated(row.expressions[-1], known | so_far)
            np.testing.assert_allclose(value, row.value, rtol=1e-12, err_msg=str(row))
            so_far[row.name] = row.value


def test_symbols_of_absolute_values_complex_numbers_and_comparisons():
    table = trace_table(lambda x, y: jnp.abs(lax.complex(x, y)), 3.0, 4.0)
    assert str(table.tangent[3]) == "v̇₂ = real(v̇₁ × conj(sign v₁)) = real((1+0j) × conj(sign (3+4j))) = 0.6"
    assert str(table.adjoint[1]) == "v̄₁ = v̄₂ ∂v₂/∂v₁ = v̄₂ × conj(sign v₁) = 0.6-0.8j"
    assert str(table.adjoint[3]) == "v̄₀ = v̄₁ ∂v₁/∂v₀ = -imag(v̄₁) = 0.8"
    table = trace_table(jnp.abs, 0.0)
    assert str(table.tangent[1]) == "v̇₁ = v̇₀ × ([v₀ ≥ 0] - [v₀ < 0]) = 1 × ([0 ≥ 0] - [0 < 0]) = 1"
    table = trace_table(lambda x: jnp.abs(1 / (x.astype(jnp.complex64) - 2j)), 1.0)
    assert str(table.tangent[2]) == "v̇₂ = v̇₁ = 1+0j"
    assert str(table.tangent[3]).endswith("= (1+0j) × (-(0.2+0.4j) / (1-2j)) = 0.12-0.16j")
    table = trace_table(lambda x: jnp.where(jnp.maximum(x, -3) == 2, x, -1.0), -1.0)
    assert [str(row) for row in table.primal[1:4]] == [
        "v₁ = max(v₀, -3) = max(-1, -3) = -1",
        "v₂ = [v₁ = 2] = [(-1) = 2] = False",
        "v₃ = where(v₂, v₀, -1) = where(False, -1, -1) = -1",
    ]


def test_an_operand_of_several_functions_is_printed_once():
    """The rules of a linear solve and of a root read their operands several times."""
    solve = trace_table(lambda a, b: jnp.sum(jnp.linalg.solve(a, b)), 2 * jnp.eye(2), jnp.ones(2))
    [row] = [row for row in solve.primal if "custom_linear_solve" in str(row)]
    assert row.expressions[0] == "custom_linear_solve(v₋₁, v₂, v₃, v₀)"
    [row] = [row for row in solve.tangent if row.node == "v₄"]
    assert row.expressions == ("∂v₄/∂v₋₁ v̇₋₁ + ∂v₄/∂v₂ v̇₂ + ∂v₄/∂v₀ v̇₀",)
    table = trace_table(lambda x: root(lambda z: z**2 - x, 1.0), 2.0)
    [row] = [row for row in table.tangent if row.node == "v₃"]
    assert row.expressions == ("∂v₃/∂v₀ v̇₀",)
    assert table.primal[3].expressions[0] == "custom_root(v₀, v₁)[0]"
    assert table.gradient[0] == pytest.approx(2**-1.5, rel=1e-5)
    doubled = trace_table(lambda x: x * x, 2.0)  # a rule with a term for each place
    assert doubled.tangent[1].expressions[0] == "v̇₀ × v₀ + v̇₀ × v₀"


PRODUCTS = {
    "ij,j->i": "v₋₁ @ v₀ | v̄₁ @ v₀ᵀ | v₋₁ᵀ @ v̄₁",
    "i,ij->j": "v₋₁ @ v₀ | v̄₁ @ v₀ᵀ | v₋₁ᵀ @ v̄₁",
    "ij,jk->ik": "v₋₁ @ v₀ | v̄₁ @ v₀ᵀ | v₋₁ᵀ @ v̄₁",
    "ij,kj->ik": "v₋₁ @ v₀ᵀ | v̄₁ @ v₀ | v̄₁ᵀ @ v₋₁",
    "ji,jk->ik": "v₋₁ᵀ @ v₀ | v₀ @ v̄₁ᵀ | v₋₁ @ v̄₁",
    "ji,kj->ik": "v₋₁ᵀ @ v₀ᵀ | v₀ᵀ @ v̄₁ᵀ | v̄₁ᵀ @ v₋₁ᵀ",
    "i,i->": "v₋₁ · v₀ | v̄₁ × v₀ | v̄₁ × v₋₁",
}


@pytest.mark.parametrize("axes", PRODUCTS)
def test_printed_products_of_transposed_matrices(axes):
    """Evaluate each printed product in NumPy (a vector is a column on the right, a row on the left)."""
    sizes = {"i": 2, "j": 3, "k": 4}
    left, right, out = axes.replace("->", ",").split(",")
    rng = np.random.default_rng(0)
    a, b, c = (rng.normal(size=[sizes[letter] for letter in part]) for part in (left, right, out))
    contracted = [part.index(next(iter(set(left) & set(right) - set(out)))) for part in (left, right)]
    with jax.enable_x64(True):
        table = trace_table(
            lambda a, b: lax.dot_general(a, b, (([contracted[0]], [contracted[1]]), ((), ()))),
            *map(jnp.asarray, (a, b)),
            cotangent=jnp.asarray(c),
        )
    rows = operations(table.adjoint)
    printed = [operations(table.primal)[0].expressions[0], *(row.expressions[-1] for row in rows)]
    assert " | ".join(printed) == PRODUCTS[axes]
    column = {"v₋₁": a if a.ndim == 2 else a[None], "v₀": b if b.ndim == 2 else b[:, None]}
    column["v̄₁"] = c[:, None] if b.ndim == 1 and c.ndim == 1 else np.atleast_2d(c)
    values = [np.einsum(axes, a, b), *(row.value for row in rows)]
    for words, value in zip(printed, values, strict=True):
        for i, name in enumerate(column):
            words = words.replace(name + "ᵀ", f"T[{i}].T").replace(name, f"T[{i}]")
        result = eval(words.replace("×", "*").replace("·", "@"), {"T": list(column.values())})
        np.testing.assert_allclose(result.reshape(-1), np.asarray(value).reshape(-1), rtol=1e-12)


LINEAR = {
    "jnp.sum(x)": ("sum v₀", "v̄₁ broadcast to (2, 3)"),
    "jnp.sum(x, 0)": ("sum v₀ over axis 0", "v̄₁ broadcast to (2, 3)"),
    "x.T": ("v₀ᵀ", "v̄₁ᵀ"),
    "x.reshape(6)": ("v₀ as (6,)", "v̄₁ as (2, 3)"),
    "jnp.broadcast_to(x[None], (4, 2, 3))": ("v₀ broadcast to (1, 2, 3)", "v̄₁ summed to (2, 3)"),
    "jnp.cumsum(x, 1)": ("cumsum v₀", "reverse cumsum v̄₁"),
    "x.astype(jnp.float16)": ("v₀ as float16", "v̄₁ as float32"),
    "-x": ("-v₀", "v̄₁ × (-1)"),
    "jnp.tanh(x)": ("tanh v₀", "v̄₁ ⊙ (1 - v₁²)"),
    "jnp.where(MASK, x, 1.0)": ("where(c₁, v₀, v₁)", "where(c₁, v̄₂, 0)"),
    "jax.nn.relu(x)": ("relu(v₀)", "(∂v₁/∂v₀)ᵀ v̄₁"),
    "jnp.sort(x, 1)": None,
}


def derivatives_of_jax(f, x, along, bar):
    return *jax.jvp(f, (x,), (along,)), jax.vjp(f, x)[1](bar)[0]


@functools.cache
def of_array_operations():
    """For each operation the function, a cotangent, and its value and derivatives by JAX, from one program."""
    names = {"jnp": jnp, "jax": jax, "MASK": np.array([[True, False, True], [False, True, True]])}
    functions = {written: eval(f"lambda x: {written}", names) for written in LINEAR}
    x = np.float32(M)
    shapes = jax.eval_shape(lambda x: {written: f(x) for written, f in functions.items()}, x)
    bars = jax.tree.map(lambda y: np.cos(np.arange(y.size)).reshape(y.shape).astype(y.dtype), shapes)
    each = lambda x, bars: {written: derivatives_of_jax(f, x, x + 1, bars[written]) for written, f in functions.items()}
    found = jax.jit(each)(x, bars)
    return {written: (f, bars[written], found[written]) for written, f in functions.items()}


@pytest.mark.parametrize("written", LINEAR)
def test_printed_rules_of_array_operations(written):
    """Structural and elementwise operations: symbols where short ones exist, values of jax.vjp."""
    f, cotangent, (y, derivative, gradient) = of_array_operations()[written]
    x = jnp.asarray(M, jnp.float32)
    table = trace_table(f, x, tangent=(x + 1,), cotangent=jnp.asarray(cotangent))
    np.testing.assert_array_equal(table.value, y)
    np.testing.assert_allclose(table.gradient[0], gradient, rtol=1e-6)
    np.testing.assert_allclose(table.derivative, derivative, rtol=1e-6)
    if LINEAR[written] is not None:
        adds = [row for row in operations(table.adjoint) if row.node == "v₀"]
        wrote = [row for row in operations(table.primal) if f"∂{row.name}/" in adds[0].expressions[0]]
        assert (wrote[0].expressions[0], adds[0].expressions[-1]) == LINEAR[written]


# ---- any program ----------------------------------------------------------------------------


@jax.custom_vjp
def cube(x):
    return x**3


cube.defvjp(lambda x: (x**3, x), lambda x, g: (3 * x**2 * g,))


@jax.custom_jvp
def gentle(x):
    return jnp.maximum(x, 0.0)


gentle.defjvp(lambda x, t: (jnp.maximum(x[0], 0.0), 7 * t[0]))  # not the true derivative, to detect the rule


def noisy(x):
    def body(carry, key):
        return carry * jax.random.uniform(key, carry.shape, carry.dtype), None

    return lax.scan(body, x, jax.random.split(jax.random.key(4), 2))[0].sum()


def looped(x):
    x, ys = lax.scan(lambda carry, s: (jnp.sin(carry) * s, carry.sum()), x, jnp.arange(1.0, 4.0, dtype=x.dtype))
    return x.sum() + ys[1]


PROGRAMS = {
    "nested jit": (lambda x: jax.jit(lambda y: jax.jit(jnp.sin)(y) * y)(x).sum(), ["sin", "mul", "reduce_sum"]),
    "custom_vjp": (lambda x: cube(x).sum(), ["cube", "reduce_sum"]),
    "custom_jvp": (lambda x: gentle(x).sum(), ["gentle", "reduce_sum"]),
    "scan": (looped, None),
    "keys": (noisy, None),
    "cond": (lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x).sum(), None),
    "integers between": (lambda x: jnp.sum(x * (jnp.argmax(x) + 1).astype(x.dtype)), None),
    "two results": (lambda x: (lambda a, b: jnp.sum(a * a + b))(*jnp.split(x, 2)), None),
}


@functools.cache
def gradients_of_programs():
    """The value and the gradient of each program by JAX, from one program."""
    with jax.enable_x64(True):
        return jax.jit(lambda x: {name: jax.value_and_grad(f)(x) for name, (f, _) in PROGRAMS.items()})(X)


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradient_is_that_of_jax(name):
    """Calls are inlined; loops, branches and custom rules are one row; forward and reverse mode agree."""
    f, expected = PROGRAMS[name]
    with jax.enable_x64(True):
        x = jnp.asarray(X)
        table = trace_table(f, x, tangent=(np.cos(X),))
        value, gradient = gradients_of_programs()[name]
        np.testing.assert_allclose(table.gradient[0], gradient, rtol=1e-12)
        np.testing.assert_allclose(table.value, value, rtol=1e-12)
        np.testing.assert_allclose(table.derivative, gradient @ np.cos(X), rtol=1e-12)
    made = [node.operation for node in table.nodes if node.kind == "operation"]
    assert expected is None or made == expected
    assert str(table) and "<table>" in table._repr_html_()


def test_scan_has_one_row_for_each_result():
    table = trace_table(looped, jnp.asarray(X, jnp.float32))
    scans = [row for row in table.primal if "scan" in row.expressions[:1][0]]
    assert [row.expressions[0].partition("(")[0] for row in scans] == ["scan of 3 steps"] * 2
    assert [row.expressions[0][-3:] for row in scans] == ["[0]", "[1]"]
    [last] = [row for row in operations(table.adjoint) if row.node == "v₀"]
    assert last.expressions == (f"(∂{scans[0].name}/∂v₀)ᵀ v̄₃ + (∂{scans[1].name}/∂v₀)ᵀ v̄₄",)


def test_while_loops_are_differentiated():
    """JAX has no reverse mode for while loops; the table uses the transposed Jacobian of this operation."""

    def f(x):
        return lax.while_loop(lambda c: c.sum() < 50, lambda c: c * jnp.array([2.0, 3.0], c.dtype), x).prod()

    with jax.enable_x64(True):
        x = jnp.array([1.0, 0.5])
        table = trace_table(f, x)
        np.testing.assert_allclose(table.gradient[0], jax.jit(jax.jacfwd(f))(x), rtol=1e-14)
        with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
            jax.grad(f)(x)


def test_a_rule_for_reverse_mode_inside_of_a_while_loop():
    x = jnp.array([1.5, 1.25])
    table = trace_table(lambda x: lax.while_loop(lambda c: c.sum() < 50, cube, x).prod(), x)
    np.testing.assert_allclose(table.gradient[0], 27 * (x[0] * x[1]) ** 27 / x, rtol=1e-5)


def test_a_net_and_its_params():
    """A pytree of params with a name for each leaf; f closes over the label, which is not differentiated."""
    net, x, label = MLP(3, 2), jnp.asarray(X[:2], jnp.float32), jnp.array(1)
    params = jax.jit(net.init)(jax.random.key(0), x)

    def loss(params, x):
        return net.apply(params, x)[label] ** 2

    table = trace_table(loss, params, x)
    for ours, expected in zip(
        jax.tree.leaves(table.gradient), jax.tree.leaves(jax.jit(jax.grad(loss, (0, 1)))(params, x)), strict=True
    ):
        np.testing.assert_allclose(ours, expected, atol=1e-6)
    names = [row.expressions[0] for row in table.primal if row.kind == "input"]
    assert names == ["params[0]['bias']", "params[0]['kernel']", "params[2]['bias']", "params[2]['kernel']", "x"]
    assert "adjoint of params[0]['kernel'] = v̄₋₃ = (2, 3), norm " in str(table)
    assert jax.tree.structure(table.gradient) == jax.tree.structure((params, x))


def test_several_results():
    """A pytree of results with a cotangent for each number; a result may be an input or an operand of another."""

    def f(x):
        y = jnp.sin(x)
        return {"a": y, "b": y * x, "x": x}

    x = jnp.asarray(X, jnp.float32)
    cotangent = {"a": x, "b": x * x, "x": jnp.ones_like(x)}
    table = trace_table(f, x, cotangent=cotangent)
    np.testing.assert_allclose(table.gradient[0], jax.vjp(f, x)[1](cotangent)[0], rtol=1e-6)
    assert [row.name for row in table.primal if row.kind == "output"] == ["y['a']", "y['b']", "y['x']"]
    assert sorted(table.derivative) == ["a", "b", "x"]


def test_unused_inputs_and_dead_operations():
    """The gradient of an unused input is 0; dead operations are not shown; a constant function has no trace."""
    table = trace_table(lambda x, y: [jnp.sin(y), x * 2.0][1], 3.0, 5.0)
    assert [node.operation for node in table.nodes] == ["x", "y", "mul"]
    assert [float(g) for g in table.gradient] == [2.0, 0.0]
    constant = trace_table(lambda x: jnp.float32(3), 2.0)
    assert float(constant.gradient[0]) == 0 and float(constant.derivative) == 0
    assert "y = 3" in str(constant)


def test_under_jit_and_vmap():
    """The values are tracers, and shapes are printed."""
    x = jnp.asarray(X, jnp.float32)
    shown = []

    @jax.jit
    def gradient(x):
        table = trace_table(lambda x: jnp.sum(jnp.sin(x) * x), x)
        shown.append(str(table))
        return table.gradient[0]

    expected = jnp.sin(x) + x * jnp.cos(x)
    np.testing.assert_allclose(gradient(x), expected, rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(lambda x: trace_table(jnp.sin, x).gradient[0])(x), jnp.cos(x), rtol=1e-6)
    assert "v₁ = sin v₀ = float32 (4,)" in shown[0]


def test_half_precision_is_kept():
    table = trace_table(lambda x: jnp.sum(x * x), jnp.asarray(X, jnp.bfloat16))
    assert table.value.dtype == table.gradient[0].dtype == table.derivative.dtype == jnp.bfloat16
    assert "norm" not in str(table.primal[0])


# ---- print and plot -------------------------------------------------------------------------


def test_columns_are_aligned():
    """Combining dots and bars have no width."""
    lines = str(trace_table(survey, 2.0, 5.0)).splitlines()
    assert lines[0].index("forward tangent trace") == lines[1].rindex(" -") + 1
    second = lines[0].index("forward tangent trace")
    for line in lines[2:10]:
        bare = "".join(letter for letter in line if not unicodedata.combining(letter))
        assert bare[second] in "vẏ" and bare[second - 2 : second] == "  "
    page = trace_table(survey, 2.0, 5.0)._repr_html_()
    assert page.count("<tr>") == 8 + 1 + 11 + 1
    assert "<td style='text-align: left'>v₂ = v₋₁ × v₀ = 2 × 5 = 10</td>" in page


def test_numbers_keep_three_digits():
    table = trace_table(lambda x: x * 1e-5 + 1e9, 1.23456)
    assert str(table.primal[1]).endswith("= 1.23e-05") and str(table.primal[2]).endswith("= 1e+09")
    with jax.debug_nans(False):
        assert str(trace_table(jnp.log, -1.0).primal[1]) == "v₁ = ln v₀ = ln (-1) = nan"


def test_plot_has_all_nodes_and_all_steps():
    """Nodes and edges of the graph; after step s the values and adjoints of the first s rows."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    from matplotlib.figure import Figure

    table = trace_table(survey, 2.0, 5.0)

    def words(step):
        figure = Figure()
        axes = table.plot(figure.subplots(), step=step)
        figure.savefig("/dev/null", format="png")
        texts = [text.get_text() for text in axes.texts]
        return axes, texts

    axes, texts = words(None)
    assert sum("\n" in text for text in texts) == len(table.nodes) == 7
    assert sum(text == "" for text in texts) == sum(len(node.parents) for node in table.nodes)
    assert {"11.652", "5.5", "1.716", "-0.959"} <= set(texts)
    assert axes.get_title() == "value and adjoint of every node"
    assert not {"2", "5"} & set(words(0)[1])
    assert {"2", "5", "0.693"} <= set(words(3)[1]) and "10" not in words(3)[1]
    assert "-0.284" in words(8 + 6)[1] and words(8 + 6)[0].get_title().startswith("v̄₀ = v̄₃ ∂v₃/∂v₀")
    with pytest.raises(ValueError, match="step to be an integer from 0 to 19, .*, got 20"):
        table.plot(step=20)


def test_plot_of_a_net_creates_its_axes():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    axes = trace_table(classifier, *listing()).plot()
    labels = [text.get_text() for text in axes.texts]
    assert any(label.endswith("\nW1") for label in labels) and any(label.endswith("\n@") for label in labels)
    plt.close(axes.figure)


# ---- errors ---------------------------------------------------------------------------------


def test_integers_are_rejected_and_the_repair_works(sentences):
    with pytest.raises(TypeError, match=r"floating-point arrays, got int32 \(\) at x2; convert it with .astype"):
        trace_table(survey, 2.0, jnp.array(5))
    with pytest.raises(TypeError, match=r"got 5 at x2; write 5.0, or close over it"):
        trace_table(survey, 2.0, 5)
    with pytest.raises(TypeError, match=r"got 3 at x1; write 3.0, or close over it"):
        trace_table(lambda *xs: xs[0] * xs[1], 3, 2.0)
    with pytest.raises(TypeError, match=r"got 'name' at p\['n'\]; give an array"):
        trace_table(lambda p: p["w"], {"n": "name", "w": 1.0})
    with pytest.raises(TypeError, match="close over it"):
        trace_table(lambda x, n: x[n], jnp.ones(3), jnp.array(1))
    assert trace_table(survey, 2.0, jnp.array(5).astype(jnp.float32)).value > 11
    assert trace_table(survey, 2.0, 5.0).value > 11
    assert trace_table(lambda x: x[jnp.array(1)], jnp.ones(3)).value == 1


def test_an_empty_argument_has_an_empty_gradient():
    table = trace_table(lambda x, params, bias: 3 * x, 2.0, (), None)
    assert table.gradient == (3, (), None)


def test_several_outputs_need_a_cotangent(sentences):
    x = jnp.asarray(X, jnp.float32)
    with pytest.raises(ValueError, match=r"got float32 \(4,\); pass cotangent=.*or use jax.jacobian"):
        trace_table(jnp.sin, x)
    assert isinstance(trace_table(jnp.sin, x, cotangent=jnp.ones_like(x)), TraceTable)
    with pytest.raises(ValueError, match="got float32 \\(\\), float32 \\(\\)"):
        trace_table(lambda x: (x, x), 1.0)
    with pytest.raises(TypeError, match=r"floating-point arrays, got int32 \(\); return only"):
        trace_table(lambda x: jnp.argmax(x), x)


def test_tangents_and_cotangents_of_other_shapes_are_rejected(sentences):
    x = jnp.asarray(X, jnp.float32)
    with pytest.raises(ValueError, match=r"tangent\[0\] like args, float32 \(4,\), got float32 \(2,\)"):
        trace_table(jnp.sum, x, tangent=(jnp.ones(2),))
    with pytest.raises(ValueError, match="pass a tuple with one entry for each argument"):
        trace_table(jnp.sum, x, tangent=x)
    with pytest.raises(ValueError, match=r"expected cotangent like the value of f.*got float32 \(\)"):
        trace_table(jnp.sin, x, cotangent=1.0)
    assert float(trace_table(jnp.sum, x, tangent=(x,), cotangent=2).gradient[0][0]) == 2
    with pytest.raises(TypeError, match="expected f to be a function, got 2.0"):
        trace_table(2.0, survey)
    with pytest.raises(ValueError, match="the arguments of f after it, got none"):
        trace_table(survey)
    with pytest.raises(IndexError, match="an index from -1 to 5, .*, got 6"):
        trace_table(survey, 2.0, 5.0)[6]
