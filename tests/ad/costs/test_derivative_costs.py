"""Measured costs of derivatives and their pictures: times, notes, the frontier, the grid of modes, the plan."""

import dataclasses
import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxblocks.ad import (
    CostRow,
    CostTable,
    Count,
    ModeGrid,
    binomial_steps,
    checkpoint_table,
    cost_table,
    jacobian_plan,
    mode_grid,
    scan,
)
from jaxblocks.ad.costs import cost_tables, timing
from jaxblocks.plotting.axes import MODES, PALE_MODES, PALETTE

matplotlib = pytest.importorskip("matplotlib", reason="the pictures require it")
matplotlib.use("agg")
Figure = pytest.importorskip("matplotlib.figure").Figure
to_hex = pytest.importorskip("matplotlib.colors").to_hex


@pytest.fixture
def ax():
    return Figure().subplots()


# ---- times --------------------------------------------------------------------------------


class Clock:
    """A clock that advances only while a program runs; in the second round everything takes twice as long."""

    def __init__(self, monkeypatch):
        self.now, self.calls = 0.0, []
        monkeypatch.setattr(timing.time, "perf_counter", lambda: self.now)

    def program(self, name, seconds):
        def run(x):
            load = 2 if self.calls.count("long") >= 3 else 1  # the first two calls choose the number of calls
            self.calls.append(name)
            self.now += load * seconds
            return x

        return run


def test_quartiles_of_several_numbers_and_of_one():
    assert timing.quartiles([5.0, 1.0, 2.0, 4.0, 3.0]) == (2, 3, 4) and timing.quartiles([7.0]) == (7, 7, 7)


def test_programs_take_turns_and_short_ones_are_called_several_times(monkeypatch):
    clock = Clock(monkeypatch)
    programs = {"short": clock.program("short", 1e-3), "long": clock.program("long", 20e-3)}
    times = timing.time_in_turns(programs, jnp.zeros(1), repeats=2)
    turn = ["short"] * 5 + ["long"]
    assert clock.calls == ["short"] * 2 + ["long"] * 2 + turn + turn[::-1]
    np.testing.assert_allclose(times["short"], [1e-3, 2e-3])
    np.testing.assert_allclose(times["long"], [20e-3, 40e-3])


def test_time_ratios_are_those_within_a_round(monkeypatch):
    """A busy machine in the second round does not change them."""
    times = {"function": [1.0, 5.0, 1.0, 1.0], "gradient": [3.0, 15.0, 3.2, 2.8]}
    monkeypatch.setattr(cost_tables, "time_in_turns", lambda programs, *args, repeats: times)
    row = cost_table(jnp.sum, jnp.ones(3), rows="gradient", repeats=4).gradient
    assert row.seconds == 3.1  # the median of the times
    assert (row.time_ratio, row.time_ratio_quartiles) == (3.0, pytest.approx((2.95, 3.05)))
    assert cost_table(jnp.sum, jnp.ones(3), rows="gradient", repeats=0).gradient.time_ratio is None


# ---- notes --------------------------------------------------------------------------------


def row(name, flops, seconds=None, moved=0, size=None, dots=None):
    count = Count(additions=flops, bytes=moved, dots=flops if dots is None else dots)
    measured = {} if seconds is None else dict(seconds=seconds, time_ratio=seconds / 0.01, quartiles=(seconds,) * 2)
    if seconds is not None:
        measured["time_ratio_quartiles"] = (0.9 * seconds / 0.01, 1.2 * seconds / 0.01)
    return CostRow(name, count, flops / 10**9, temporary_bytes=size, **measured)


def table(*rows):
    return CostTable({one.name: one for one in rows})


FUNCTION = row("function", 10**9, 0.01, 10**6)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (row("gradient", 3 * 10**9, 0.016, 10**6), None),  # 1.6 against 3: within a factor of 2
        (row("gradient", 3 * 10**9, 0.059, 10**6), None),
        (
            row("gradient", 2 * 10**9, 0.05, 6 * 10**6),
            "gradient takes 5 times the time for 2 times the operations, because memory limits it: it moves 6 times "
            "the bytes.",
        ),
        (
            row("jacfwd", 100 * 10**9, 0.1, 10**6),
            "jacfwd takes 10 times the time for 100 times the operations: 1,000 operations per ns against 100, because "
            "many directions at once make its products larger.",
        ),
        (
            row("hvp", 4 * 10**9, 0.2, 4 * 10**6),
            "hvp takes 20 times the time for 4 times the operations: 20 operations per ns against 100, because "
            "products of its shapes are slower.",
        ),
        (
            row("hvp", 4 * 10**9, 0.2, 4 * 10**6, size=2**24),
            "hvp takes 20 times the time for 4 times the operations: 20 operations per ns against 100, because its "
            "temporary memory of 16 MiB exceeds a cache.",
        ),
        (
            row("hvp", 4 * 10**9, 0.2, 4 * 10**6, dots=10**9),
            "hvp takes 20 times the time for 4 times the operations: 20 operations per ns against 100, because 75 % of "
            "them are elementwise, and 0 % of those of the function.",
        ),
    ],
)
def test_the_table_says_why_time_and_operations_differ(other, words):
    notes = table(FUNCTION, other).notes()
    assert notes == ([] if words is None else [words])
    assert all(note in str(table(FUNCTION, other)) for note in notes)


def test_the_table_says_that_the_calls_are_short():
    short = CostTable({"function": CostRow("function", Count(additions=9), 1.0, seconds=2e-4, time_ratio=1.0)})
    assert short.notes() == []  # a stopwatch for one program
    gradient = CostRow("gradient", Count(additions=90), 10.0, seconds=2e-4, time_ratio=1.0)
    notes = table(short.function, gradient).notes()
    assert len(notes) == 1
    assert notes[0].startswith("A call of the function takes 0.2 ms. Below 1 ms starting a program is a large part")
    assert "larger batch" in notes[0]


def test_rows_that_are_left_out_are_named():
    table = cost_table(lambda x: jnp.sin(x).sum(), jnp.ones(1001), measure=False)
    assert table.notes() == [
        "Left out, since they take more than 1000 passes: jacfwd, hessian; cost_table takes them as rows=."
    ]
    with pytest.raises(KeyError, match="got 'hessian'; pass rows='all' to cost_table"):
        table["hessian"]
    assert cost_table(jnp.sin, jnp.ones(3), measure=False).notes() == []


def test_a_row_with_wide_quartiles_says_so():
    wide = dataclasses.replace(row("gradient", 2 * 10**9, 0.02), time_ratio_quartiles=(0.86, 2.91))
    assert table(FUNCTION, wide).notes() == [
        "Uncertain, because the quartiles of the time ratio differ by more than a factor of 1.5: gradient. Raise "
        "repeats, or measure while the machine does nothing else."
    ]


def test_notes_are_escaped_in_html():
    table = CostTable({"<lambda>": CostRow("<lambda>", Count(), np.nan, impossible="a loop has no reverse mode")})
    assert "<lambda>" in str(table) and "reverse mode: &lt;lambda&gt;." in table._repr_html_()


def test_the_plot_of_a_table_spans_the_quartiles(ax):
    drawn = table(FUNCTION, row("gradient", 3 * 10**9, 0.02)).plot(ax)
    assert [bar.get_width() for bar in drawn.patches] == [1, 3, 1, 2]
    spans = [line[:, 0].tolist() for line in drawn.collections[0].get_segments()]
    np.testing.assert_allclose(spans, [[0.9, 1.2], [1.8, 2.4]])
    assert [to_hex(bar.get_facecolor()).upper() for bar in drawn.patches[::2]] == list(PALETTE[:2])


# ---- checkpointing ------------------------------------------------------------------------


def make(depth, checkpoint=None):
    def f(w):
        return jnp.sum(scan(lambda h, w: (jnp.tanh(w @ h), None), jnp.ones(4), w, checkpoint=checkpoint)[0])

    return f, jnp.full((depth, 4, 4), 0.1)


@pytest.mark.cpu
def test_checkpointing_trades_operations_for_memory():
    """Of L layers "body" computes L again, and two snapshots take L + 1 + binomial_steps(L, 2) steps in all."""
    costs = checkpoint_table(make, 64, checkpoints=["body", 2], repeats=1)
    assert list(costs.rows) == ["function", "gradient", "gradient, checkpoint='body'", "gradient, checkpoint=2"]
    step = costs.function.flops / 64
    plain, body, two = (costs[name].flops for name in list(costs.rows)[1:])
    assert (body - plain) / step == pytest.approx(64, rel=0.05)
    assert (two - plain) / step == pytest.approx(1 + binomial_steps(64, 2), rel=0.005)
    assert "loop" not in str(costs)
    assert costs["gradient, checkpoint=2"].temporary_bytes < costs.gradient.temporary_bytes / 2
    assert all(one.time_ratio > 0 for one in costs)
    with pytest.raises(TypeError, match="checkpoint_table expected make to take the keyword checkpoint"):
        checkpoint_table(lambda depth: make(depth), 4)
    with pytest.raises(ValueError, match=r"checkpoint_table expected arrays, as it measures calls.*measure=False"):
        checkpoint_table(lambda depth, checkpoint=None: (jnp.sum, jax.ShapeDtypeStruct((2,), jnp.float32)), 4)


def test_the_frontier_joins_the_rows_that_no_other_beats(ax):
    rows = [
        FUNCTION,
        row("gradient", 3 * 10**9, 0.03, size=1024),
        row("gradient, checkpoint='body'", 4 * 10**9, 0.05, size=512),
        row("gradient, checkpoint=8", 5 * 10**9, 0.04, size=128),
        row("gradient, checkpoint=2", 9 * 10**9, 0.08, size=None),
    ]
    drawn = table(*rows).plot_frontier(ax)
    counted, measured = ([point.tolist() for point in part.get_offsets()] for part in drawn.collections[1::2])
    assert counted == [[1024, 3], [512, 4], [128, 5]]
    np.testing.assert_allclose(measured, [[1024, 3], [512, 5], [128, 4]])
    assert [line.get_xdata().tolist() for line in drawn.lines] == [[128, 512, 1024], [128, 1024]]  # 'body' is slower
    assert [text.get_text() for text in drawn.texts] == ["gradient", "checkpoint='body'", "checkpoint=8"]
    assert drawn.get_legend_handles_labels()[1] == ["operations counted", "time measured"]


# ---- the modes ----------------------------------------------------------------------------


def linear(n, m):
    w, v = jnp.ones((6, n)), jnp.ones((m, 6))
    return lambda x: v @ (w @ x), jnp.ones(n)


def test_the_grid_counts_one_pass_for_each_input_or_output():
    """Of y = V W x forward mode takes n products with W and V, reverse mode also W x and m products with both."""
    grid = mode_grid(linear, (2, 5), (3,), measure=False)
    product = lambda n, m: 2 * 6 * (n + m)
    assert grid.operations["forward"] == ((2 * product(2, 3), 5 * product(5, 3)),)
    assert grid.operations["reverse"] == ((3 * product(2, 3), 3 * product(5, 3)),)
    np.testing.assert_allclose(grid.ratio(), [[2 / 3, 5 / 3]])
    with pytest.raises(ValueError, match=r"a grid that was measured.*measure=True"):
        grid.ratio("time")


def test_the_grid_of_a_function_without_operations_has_no_ratio():
    grid = mode_grid(lambda n, m: (lambda x: jnp.ones(m), jnp.ones(n)), (1, 2), (3,), measure=False)
    with warnings.catch_warnings(action="error"):
        assert np.isnan(grid.ratio()).all()


def test_the_grid_is_measured(monkeypatch):
    times = {"forward": [1.0, 2.0, 9.0], "reverse": [2.0, 8.0, 3.0]}
    monkeypatch.setattr("jaxblocks.ad.costs.mode_grids.time_in_turns", lambda programs, *args, repeats: times)
    grid = mode_grid(linear, (2,), (3,), repeats=3)
    assert (grid.seconds["forward"], grid.seconds["reverse"]) == (((2.0,),), ((3.0,),))
    assert grid.ratio("time").tolist() == [[0.5]]  # the median of 0.5, 0.25 and 3, not 2 / 3
    lines = str(grid).splitlines()
    assert lines[0].split() == ["forward", "/", "reverse,", "operations", "2", "inputs"]
    assert lines[-1].split() == ["3", "outputs", "0.5"]
    assert "<table>" in grid._repr_html_()


GRID = ModeGrid(
    (1, 8, 64),
    (8, 64),
    {"forward": ((1, 8, 64), (1, 8, 64)), "reverse": ((8, 8, 8), (64, 64, 64))},
    {},
    ((2,) * 3,) * 2,
)


def test_the_heat_map_shows_the_better_mode(ax):
    drawn = GRID.plot(ax)
    image = drawn.images[0]
    np.testing.assert_allclose(image.get_array(), [[-3, 0, 3], [-6, -3, 0]])  # log2 of n / m
    assert image.origin == "lower" and image.get_clim() == (-6, 6)
    colors = [to_hex(image.cmap(image.norm(value))) for value in (-6, 0, 6)]
    assert [color.upper() for color in colors] == [MODES["forward"], "#FFFFFF", MODES["reverse"]]
    assert [text.get_text() for text in drawn.texts] == ["8", "1", "8", "64", "8", "1"]
    assert [tick.get_text() for tick in drawn.get_xticklabels()] == ["1", "8", "64"]
    assert [tick.get_text() for tick in drawn.get_yticklabels()] == ["8", "64"]
    [diagonal] = drawn.lines  # through the cells (8, 8) and (64, 64)
    np.testing.assert_allclose(diagonal.get_xydata(), [[1, 0], [2, 1]])
    assert drawn.get_title() == "operations counted"


def test_the_heat_map_of_times(ax):
    drawn = GRID.plot(ax, what="time")
    assert drawn.get_title() == "time measured"
    np.testing.assert_allclose(drawn.images[0].get_array(), np.ones((2, 3)))


def test_errors_of_the_grid(sentences):
    with pytest.raises(ValueError, match=r"mode_grid expected inputs to be increasing integers >= 1, got \(4, 2\)"):
        mode_grid(linear, (4, 2), (1,))
    with pytest.raises(ValueError, match=r"mode_grid expected outputs to be increasing integers >= 1, got \(0,\)"):
        mode_grid(linear, (4,), (0,))
    with pytest.raises(ValueError, match=r"make\(2, 3\) to give 3 numbers in f\(x\), got 2"):
        mode_grid(lambda n, m: (jnp.sin, jnp.ones(n)), (2,), (3,))
    with pytest.raises(ValueError, match="inputs to be increasing integers >= 1, got 2"):
        mode_grid(linear, 2, (3,))
    with pytest.raises(TypeError, match=r"make\(2, 3\) to return a function and its point.*write return f, x"):
        mode_grid(lambda n, m: linear(n, m)[::-1], np.array([2]), (3,))
    with pytest.raises(TypeError, match=r"expected floating-point f\(x\) of make\(2, 3\), got int32"):
        mode_grid(lambda n, m: (lambda x: jnp.arange(m), jnp.ones(n)), (2,), (3,))
    loop = lambda x: jax.lax.while_loop(lambda c: c.sum() < 9, lambda c: c * 2 + 1, x)
    with pytest.raises(TypeError, match="forward and a reverse mode, got one without reverse mode"):
        mode_grid(lambda n, m: (loop, jnp.ones(n)), (2,), (2,))


def test_tables_say_what_they_cannot_take(sentences):
    loop = lambda x: jax.lax.while_loop(lambda c: c.sum() < 9, lambda c: c * c + 1, x).sum()
    name = "hvp_reverse_over_forward"
    assert "no reverse mode" in cost_table(loop, jnp.ones(2), rows=name, measure=False)[name].impossible
    with pytest.raises(TypeError, match=r"floating-point arrays, got 'a' at x; give an array, or close over"):
        cost_table(jnp.sum, "a", measure=False)
    with pytest.raises(ValueError, match="got a traced array; call it outside of jit.*measure=False"):
        jax.jit(lambda x: [cost_table(jnp.sum, x, rows="jvp"), x][1])(jnp.ones(2))
    with pytest.raises(TypeError, match=r"checkpoints to be a list, got 'body'; write \['body'\]"):
        checkpoint_table(make, 4, checkpoints="body")
    constant = checkpoint_table(lambda depth, checkpoint=None: (lambda w: jnp.ones(()), jnp.ones(2)), 4, measure=False)
    assert all(np.isnan(each.flops_ratio) for each in constant)


# ---- the plan -----------------------------------------------------------------------------


def chain(*sizes):
    ws = [jnp.ones((m, n)) for n, m in itertools.pairwise(sizes)]

    def f(x):
        for w in ws:
            x = jnp.tanh(w @ x)
        return x

    return jacobian_plan(f, jnp.ones(sizes[0]))


def bars(drawn):
    """(left, right, color) of each bar of a step, from above to below."""
    found = [(bar.get_x(), bar.get_x() + bar.get_width(), to_hex(bar.get_edgecolor()).upper()) for bar in drawn.patches]
    return [(round(left), round(right), color) for left, right, color in found]


def arrows(drawn):
    """(tail, tip) of each arrow."""
    pairs = [(text.xyann[0], text.xy[0]) for text in drawn.texts if getattr(text, "arrow_patch", None) is not None]
    return [(round(tail), round(tip)) for tail, tip in pairs]


def test_the_picture_of_a_plan_shows_its_steps(ax):
    """512-512-2-512-512: rows from the bottleneck to the point, columns to the value, and one product."""
    plan = chain(512, 512, 2, 512, 512)
    assert plan.bracketing == "(J4 J3) (J2 J1)"
    drawn = plan.plot(ax)
    assert len(plan.steps) == len(plan.sweeps) == len(drawn.patches)
    assert bars(drawn)[-1] == (0, 4, MODES["product"])
    assert (0, 2, MODES["reverse"]) in bars(drawn) and (2, 4, MODES["forward"]) in bars(drawn)
    assert sorted(arrows(drawn)) == [(1, 0), (3, 4)]  # pulled back through J1, pushed on through J4
    [cross] = [line for line in drawn.lines if line.get_marker() == "X"]
    assert cross.get_xdata().tolist() == [2] and to_hex(cross.get_color()).upper() == MODES["product"]
    links = [line.get_xdata().tolist() for line in drawn.lines if line.get_marker() != "X"]
    assert sorted(links) == [[1, 1], [1.5, 1.5], [2.5, 2.5], [3, 3]]  # each result leads to the step that uses it
    words = [text.get_text() for text in drawn.texts]
    assert {"$x$: 512", "2", "$f(x)$: 512", "J1\ndense"} <= set(words)
    assert [word for word in words if word[:1].isdigit() and ". " in word] == [
        f"{i}. {sweep}" for i, sweep in enumerate(plan.sweeps, 1)
    ]
    assert drawn.get_title().startswith("512 by 512, (J4 J3) (J2 J1): 1/")
    assert [text.get_text() for text in drawn.get_legend().get_texts()] == [
        "columns pushed (forward mode)",
        "rows pulled (reverse mode)",
        "two matrices multiplied",
        "matrix known",
    ]
    fills = {to_hex(bar.get_facecolor()).upper() for bar in drawn.patches}
    assert fills == {PALE_MODES[how] for how in ("forward", "reverse", "product", "known")}


@pytest.mark.parametrize(
    ("sizes", "mode", "arrow"), [((40, 30, 1), "reverse", (2, 0)), ((1, 30, 40), "forward", (0, 2))]
)
def test_the_picture_of_a_pure_mode_is_one_sweep(sizes, mode, arrow, ax):
    plan = chain(*sizes)
    assert plan.mode == mode
    drawn = plan.plot(ax)
    assert bars(drawn) == [(0, len(plan.stages), MODES[mode])]
    assert arrows(drawn) == [(len(plan.stages), 0) if mode == "reverse" else (0, len(plan.stages))]
    assert f"{mode} mode: 1/" in drawn.get_title()


def test_the_picture_of_a_function_without_stages(ax):
    drawn = jacobian_plan(lambda x: x, jnp.ones(3)).plot(ax)
    drawn.figure.draw_without_rendering()
    assert len(drawn.patches) == 1
