"""The page of a function: its numbers are those of Python, and the command prints them."""

import json
import re
from importlib import resources
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import drawn
from jax.experimental.ode import odeint

import jaxblocks as jb
from jaxblocks.ad import bracketings, chain_memory, cost_table, explore, jacobian_plan, saved_numbers, trace_table
from jaxblocks.ad.__main__ import main
from jaxblocks.ad.page.exploration import _SCRIPTS, page_of
from jaxblocks.ad.page.graphs import graph_of
from jaxblocks.ad.page.programs import grouped, read_program, replay
from jaxblocks.ad.page.tapes import tape_of


def survey(x1, x2):
    return jnp.log(x1) + x1 * x2 - jnp.sin(x2)


@pytest.fixture(scope="module")
def of_survey():
    return explore(survey, 2.0, 5.0, argnums=(0, 1), measure=False, name="</script><b>&amp;")


@pytest.fixture(scope="module")
def net():
    """A residual net with named layers, its params, a batch, and what the page shows of its loss."""
    layers = jb.Serial(first=jb.Dense(4), block=jb.Residual(jb.Dense(4), jnp.tanh), last=jb.Dense(2))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 5)), jnp.float32)
    params = drawn(layers, x)

    def loss(params, x):
        return jnp.sum(jnp.square(layers.apply(params, x)))

    return loss, params, x, explore(loss, params, x, measure=False)


# ---- the numbers --------------------------------------------------------------------------------


def test_traces_and_costs_on_the_page_are_those_of_the_tables(of_survey):
    """The JSON in the page itself, not only the data that it is made of."""
    page = page_of([of_survey])
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])
    [shown] = data["functions"]
    [level] = shown["levels"]
    table = trace_table(survey, 2.0, 5.0)
    assert [row["primal"] for row in level["forward"]] == list(map(str, table.primal))
    assert [row["adjoint"] for row in level["reverse"]] == list(map(str, table.adjoint))
    both = trace_table(survey, 2.0, 5.0, tangent=(1.0, 0.0)).tangent
    assert [row["tangent"] for row in level["forward"] if row["tangent"]] == [
        str(r) for r in both if r.kind != "output"
    ]
    costs = cost_table(lambda x: survey(*x), (2.0, 5.0), measure=False)
    assert {row["name"]: row["operations"] for row in shown["costs"]["rows"]} == {row.name: row.flops for row in costs}
    plan = jacobian_plan(lambda x: survey(*x), (2.0, 5.0))
    assert (shown["plan"]["reason"], shown["plan"]["operations"]) == (plan.reason, plan.operations)


def test_each_row_of_the_reverse_trace_names_the_operation_that_adds_it(of_survey):
    read_by = [row.read_by for row in of_survey.trace.adjoint]
    assert read_by == ["", "v₅", "v₅", "v₄", "v₄", "v₃", "v₂", "v₂", "v₁", "", ""]


def test_the_tape_of_the_survey_by_hand(of_survey):
    """The logarithm reads x1, the product both arguments, the sine its derivative; sums read nothing."""
    [level] = of_survey.data["levels"]
    [tape] = level["tapes"]
    assert sorted((e["name"], e["made"], e["freed"]) for e in tape["entries"]) == [
        ("cos", 2, 2),
        ("v₀", -1, 1),
        ("v₋₁", -1, 0),
    ]
    assert tape["alive"] == [0, 0, 4, 4, 4, 4, 4, 4, 0, 0]
    assert tape["numbers"] == saved_numbers(survey, 2.0, 5.0) == 3


def test_an_array_that_several_operations_read_is_freed_after_the_last_of_them():
    """The exponential is read by two products and by its own reversal, which comes last."""
    [level] = explore(lambda x: (lambda s: (s * x) * s)(jnp.exp(x)), 2.0, measure=False).data["levels"]
    [tape] = level["tapes"]
    assert [(e["name"], e["made"], e["freed"]) for e in tape["entries"]] == [("v₀", -1, 1), ("v₁", 0, 0), ("v₂", 1, 2)]
    assert tape["alive"] == [4, 8, 8, 8, 4, 4]


def test_the_tape_of_a_net_is_that_of_saved_numbers_and_checkpoints_store_what_layers_read(net):
    loss, params, x, exploration = net
    operations, layers = exploration.data["levels"]
    for level in (operations, layers):
        assert level["tapes"][0]["numbers"] == saved_numbers(lambda p: loss(p, x), params)
    assert [node["name"] for node in layers["nodes"]][:4] == ["first", "block/0", "block/1", "block"]
    assert [node["kind"] for node in layers["nodes"]][:4] == ["Dense", "Dense", "tanh", "Residual"]
    stored = layers["tapes"][1]
    # Without a checkpoint the layers store what their pullbacks read; with one, what they read themselves.
    kept = {tuple(e["shape"]) for e in stored["entries"] if e["made"] == 0}
    assert kept == {(3, 4)}
    assert min(stored["alive"]) == 0 and stored["peak"] < layers["tapes"][0]["peak"] * 2


def test_values_tangents_and_adjoints_between_layers(net):
    """By layer and by operation they agree; the last adjoint is 1, and the layers count what the whole counts."""
    loss, params, x, exploration = net
    layers = exploration.data["levels"][1]["nodes"]
    ones = jax.tree.map(np.ones_like, params)
    value, derivative = jax.jit(lambda p: jax.jvp(lambda p: loss(p, x), (p,), (ones,)))(params)
    assert [float(layers[-1][name]) for name in ("value", "tangent", "adjoint")] == pytest.approx(
        [float(value), float(derivative), 1.0], rel=1e-3, abs=1e-3
    )
    traced = [np.linalg.norm(node.adjoint) for node in exploration.trace.nodes if node.adjoint is not None]
    by_layer = [float(node["adjoint"].rpartition(" ")[2]) for node in layers[:-1]]
    assert all(min(abs(norm - other) for other in traced) < 1e-3 for norm in by_layer)
    assert sum(node["flops"] for node in layers) == exploration.table.function.flops
    counted = {layer["name"]: layer["operations"]["gradient"] for layer in exploration.data["costs"]["layers"]}
    assert sum(counted.values()) == exploration.table.gradient.flops


def test_a_scan_is_unrolled_into_a_unit_for_each_iteration():
    net = jb.Repeat(jb.Dense(3), 5, checkpoint=None)
    x = jnp.ones(3)
    params = net.init(jax.random.key(0), x)
    closed = jax.make_jaxpr(lambda p: jnp.sum(net.apply(p, x)))(params)
    program = read_program(closed, ["bias", "kernel"])
    units = grouped(program)
    inside = [unit.scope for unit in units if unit.scope]
    assert len(inside) == 5 and inside == sorted(inside)
    outputs, _ = replay(program, units)(*jax.tree.leaves(params))
    np.testing.assert_allclose(outputs[0], jnp.sum(net.apply(params, x)), rtol=1e-5)
    alive = [entry for entry in tape_of(program, units) if entry.made >= 0]
    slices = [entry.freed - entry.made for entry in alive if entry.shape == (3, 3)]
    assert slices == [0] * 4  # of the kernel; that of the first iteration would lead to x, which is constant


def test_functions_of_shapes_alone_have_a_graph_without_values():
    [level], trace, _ = graph_of(lambda x: jnp.sin(x) * 2, (jax.ShapeDtypeStruct((3,), jnp.float32),))
    assert trace is None
    assert [node["value"] for node in level["nodes"]] == [None] * len(level["nodes"])
    assert level["tapes"][0]["peak"] == 12


# ---- the memory of a chain ----------------------------------------------------------------------


@pytest.mark.parametrize("dims", [(3, 5, 2, 7, 4), (9, 2, 9, 2)])
def test_chain_memory_against_an_evaluation_step_by_step(dims):
    """A machine that makes J_1, J_2, ... in turn and multiplies as soon as it can; it counts what it holds."""

    def held_at_the_peak(order):
        held = dict.fromkeys(())
        most = 0

        def entries(part):
            first, last = part if isinstance(part, tuple) else (part, part)
            return dims[last] * dims[first - 1]

        def products(order):
            if not isinstance(order, tuple):
                return (order, order), []
            (_, last), of_left = products(order[0])
            (first, _), of_right = products(order[1])
            own = products(order[0])[0], products(order[1])[0], (first, last)
            return (first, last), [*of_right, *of_left, own]

        waiting = products(order)[1]
        for i in range(1, len(dims)):
            held[i, i] = None
            most = max(most, sum(map(entries, held)))
            while True:
                ready = [p for p in waiting if p[0] in held and p[1] in held]
                if not ready:
                    break
                left, right, made = ready[0]
                waiting.remove(ready[0])
                held[made] = None
                most = max(most, sum(map(entries, held)))
                del held[left], held[right]
        return most

    for order in bracketings(len(dims) - 1):
        assert chain_memory(dims, order=order) == held_at_the_peak(order)


# ---- the file -----------------------------------------------------------------------------------


def test_names_cannot_leave_their_place_in_the_page(of_survey):
    page = page_of([of_survey])
    assert "</script><b>" not in page
    assert "&lt;/script&gt;&lt;b&gt;&amp;amp;" in page
    assert page.count("</script>") == 2


def test_the_page_reads_nothing_else(of_survey, tmp_path):
    of_survey.save(tmp_path / "page.html", of_survey)
    page = (tmp_path / "page.html").read_text()
    assert not re.findall(r"(?:src|href)=[\"'](?!#|data:)|@import|fetch\(|XMLHttpRequest", page)
    assert len(json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])["functions"]) == 2
    folder = resources.files("jaxblocks.ad.page")
    assert all(folder.joinpath(name).is_file() for name in ("page.html", "page.css", *_SCRIPTS))


# ---- errors -------------------------------------------------------------------------------------


def test_errors_of_explore():
    with pytest.raises(
        ValueError, match=r"explore expected the arguments of f after it, got none; write explore\(f, x"
    ):
        explore(jnp.sin)
    with pytest.raises(ValueError, match="explore expected argnums from 0 to 0, the places of the arguments, got 1"):
        explore(jnp.sin, 1.0, argnums=1)
    with pytest.raises(TypeError, match="expected x to hold floating-point arrays, got int32"):
        explore(jnp.sin, jnp.arange(3))
    with pytest.raises(
        ValueError, match="explore expected f to have a reverse mode.*loop of unknown length; .*or call trace_table"
    ):
        explore(lambda x: jax.lax.while_loop(lambda c: c < 9, lambda c: c * c + 1, x), 1.0, measure=False)
    # A function without a forward mode gets the error of its rule, not that of a loop.
    with pytest.raises(TypeError, match="explore expected a custom_vjp whose rule reads its arguments alone"):
        explore(lambda x: odeint(lambda y, t: -y * y, x, jnp.array([0.0, 1.0]))[-1], 1.0, measure=False)


# ---- the command --------------------------------------------------------------------------------

FILE = """
import jax.numpy as jnp

scale = jnp.ones(3)


class f2:
    a = 2.0


def product(x, y=scale):
    return jnp.sum(jnp.sin(x) * y)


product_args = (jnp.arange(3.0), scale)


def square(x=2.0):
    return x * x


def wider(x):
    return x + jnp.ones(7)

def looked_up(x):
    return {}['x']
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "functions_to_explore.py"
    path.write_text(FILE)
    return path


def test_the_command_prints_the_table_and_writes_the_page(file, tmp_path, capsys):
    html = tmp_path / "page.html"
    assert main([f"{file}:product", "f32[3]", "scale", "--count-only", "--html", str(html)]) == 0
    printed = capsys.readouterr()
    table = cost_table(lambda x: jnp.sum(jnp.sin(x) * jnp.ones(3)), jnp.ones(3), measure=False)
    assert printed.out.startswith(f"{table}\n")
    assert "Jacobian, 1 by 3: reverse mode" in printed.out
    assert "counting the operations" in printed.err and f"wrote {html}" in printed.err
    assert '"name":"product"' in html.read_text()


@pytest.mark.parametrize("words", [["product"], ["square", "3.0"], ["square", "f2.a"], ["product", "float32[3, ]"]])
def test_the_command_finds_arguments(file, words, capsys):
    assert main([f"{file.with_suffix('')}:{words[0]}", *words[1:], "--count-only"]) == 0
    assert "gradient" in capsys.readouterr().out


ERRORS = [
    ([":wider", "f32[4]"], "(7,).\n  functions_to_explore.py, line 23: return x + jnp.ones(7)\n"),
    ([":looked_up", "2.0"], "KeyError: 'x'\n  functions_to_explore.py, line 26: return {{}}['x']\n"),
    ([":square", "4x2"], 'expected a shape such as "f32[32,784]", got 4x2; the dtypes are f16, bf16, '),
    ([":square", "f32[4 2]"], 'expected a shape such as "f32[32,784]", got f32[4 2]; the dtypes are f16, bf16, '),
    (["square"], "expected FILE.py:FUNCTION, got {file}; write a colon and the name of a function."),
    ([":"], "expected FILE.py:FUNCTION, got {file}:; write a colon and the name of a function."),
    ([":squares"], "expected a name in functions_to_explore.py, got squares; did you mean square? It has "),
    ([":product_args"], "expected a function, got product_args, a tuple; name a function of {file}."),
    ([":square", "f33[2]"], 'expected a shape such as "f32[32,784]", got f33[2]; the dtypes are f16, bf16, '),
    ([":square", "f32(2)"], 'expected a shape such as "f32[32,784]", got f32(2); the dtypes are f16, bf16, '),
    ([":square", "(2, 3)"], 'expected a shape such as "f32[32,784]", got (2, 3); the dtypes are f16, bf16, '),
    ([":square", "f64[2]"], "expected at most 32 bits, got f64[2]; set JAX_ENABLE_X64=1 for float64."),
    ([":square", "scales"], "expected a name in functions_to_explore.py, got scales; did you mean scale? It has "),
    ([":square", "size"], "got size; it has f2, looked_up, product, product_args, scale, square, wider."),
    ([":square", "2.0", "--html", "nowhere/a.html"], "got nowhere/a.html; make the folder."),
    ([":square", "--argnums", "a"], "expected --argnums to be numbers, got a; write 0 or 0,1."),
    ([":jnp.cos"], "expected the arguments of jnp.cos, got none; pass them after the function"),
]


def test_errors_of_the_command_are_sentences(file, capsys):
    for words, sentence in ERRORS:
        first = f"{file}{words[0]}" if words[0].startswith(":") else str(file)
        assert main([first, *words[1:], "--count-only"]) == 1, words
        assert sentence.format(file=file) in capsys.readouterr().err


def test_the_function_alone_is_required(capsys):
    with pytest.raises(SystemExit):
        main([])
    assert "arguments are required: FILE.py:FUNCTION\n" in capsys.readouterr().err


def test_a_file_that_does_not_exist(capsys):
    assert main([f"{Path('nowhere.py')}:f"]) == 1
    assert "expected a file of Python, got nowhere.py, which does not exist; check the path." in capsys.readouterr().err


def test_the_example_writes_one_page_of_several_functions(tmp_path):
    import ad_functions

    path = tmp_path / "out" / "page.html"
    ad_functions.main(["--count-only", "--only", "survey", "--out", str(path)])
    assert f'"name":"{ad_functions.TITLES["survey"]}"' in path.read_text()
    assert all(hasattr(ad_functions, name) and hasattr(ad_functions, f"{name}_args") for name in ad_functions.TITLES)
