"""The memory of derivatives: numbers stored by the pullback, bytes of the compiled program, and their growth."""

import math
import re

import jax
import jax.numpy as jnp
import pytest

from jaxblocks.ad import MemoryCurve, memory_curve, saved_numbers, scan, temporary_bytes


def tanhs(n):
    def f(x):
        for _ in range(n):
            x = jnp.tanh(x)
        return x

    return f


def test_reverse_mode_saves_in_proportion_to_depth():
    """n tanh layers of width 1000 store 1000 n or 2000 n numbers; jax.checkpoint stores the 1000 inputs only."""
    x = jax.ShapeDtypeStruct((1000,), jnp.float32)
    a_layer = saved_numbers(jnp.tanh, x)
    assert a_layer == (2000 if jax.__version_info__ < (0, 11) else 1000)  # later versions store tanh(x) only
    assert saved_numbers(tanhs(8), x) == 8 * a_layer
    assert saved_numbers(jax.checkpoint(tanhs(8)), x) == 1000


def test_saved_numbers_match_the_theory():
    """A matrix product stores both factors, a sum nothing, a sine the cosine; the point may be a pytree."""
    w, x = jnp.ones((5, 4)), jnp.ones((3, 5))
    assert saved_numbers(jnp.matmul, x, w) == 20 + 15
    assert saved_numbers(lambda args: args["a"] + args["b"], {"a": x, "b": x}) == 0
    assert saved_numbers(jnp.sin, 1.0) == 1
    with pytest.raises(TypeError, match=r"saved_numbers expected .*, got int32 \(3,\) at x\[0\].*astype"):
        saved_numbers(jnp.sin, jnp.arange(3))
    assert saved_numbers(jnp.sin, jnp.arange(3).astype(jnp.float32)) == 3  # as the error suggests


def test_temporary_bytes_match_the_compiler():
    x = jax.ShapeDtypeStruct((1000,), jnp.float32)
    f = lambda x: jnp.sum(jnp.sort(x) * x)
    assert temporary_bytes(f, x) == jax.jit(f).lower(x).compile().memory_analysis().temp_size_in_bytes >= 4000


def make(depth, checkpoint=None):
    def f(params):
        h = jnp.ones((4, 8))
        return jnp.sum(scan(lambda h, w: (jnp.tanh(h @ w), None), h, params["w"], checkpoint=checkpoint)[0] ** 2)

    return f, {"w": jax.ShapeDtypeStruct((depth, 8, 8), jnp.float32)}


@pytest.mark.cpu
def test_memory_of_reverse_mode_grows_with_depth_and_of_forward_mode_does_not():
    """Growth is linear for the gradient, a square root for blocks, and zero for the jvp and for snapshots."""
    everything = jax.checkpoint_policies.everything_saveable
    curve = memory_curve(make, (64, 1024), checkpoints=["sqrt", 4, everything])
    assert list(curve) == [
        "function",
        "jvp",
        "gradient",
        "gradient, checkpoint='sqrt'",
        "gradient, checkpoint=4",
        "gradient, checkpoint=everything_saveable",
    ]
    assert len(curve) == 6
    growth = {name: curve.growth(name) for name in curve}
    assert growth["function"] == growth["jvp"] == growth["gradient, checkpoint=4"] == 0
    assert growth["gradient"] == pytest.approx(1, abs=0.05)
    assert growth["gradient, checkpoint='sqrt'"] == pytest.approx(0.5, abs=0.1)
    assert curve["gradient"][1] == temporary_bytes(jax.grad(make(1024)[0]), make(1024)[1])
    assert curve["gradient"][1] > 50 * curve["gradient, checkpoint=4"][1]


CURVE = MemoryCurve((16, 64), {"jvp": (100, 100), "gradient": (1600, 6400), "untold": (None, None)})


def test_curve_prints_in_a_terminal_and_in_a_notebook():
    lines = repr(CURVE).splitlines()
    assert lines[0].split("  ")[0] == "temporary bytes" and lines[0].endswith("growth")
    assert lines[3].split() == ["gradient", "1,600", "6,400", "depth^1.00"]
    assert lines[4].split() == ["untold"]
    assert math.isnan(CURVE.growth("untold")) and math.isnan(MemoryCurve((4,), {"jvp": (8,)}).growth("jvp"))
    assert "<table>" in CURVE._repr_html_() and "depth^0.00" in CURVE._repr_html_()
    with pytest.raises(KeyError, match=r"a row of jvp, gradient, untold, got .*grad"):
        CURVE["grad"]


def test_curve_plots():
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is optional")
    matplotlib.use("agg")
    axes = CURVE.plot()
    assert [line.get_ydata().tolist() for line in axes.get_lines()] == [[100, 100], [1600, 6400], []]
    assert CURVE.plot(axes) is axes
    axes.figure.draw_without_rendering()
    legend = axes.get_legend().get_window_extent()
    assert legend.x0 >= axes.get_window_extent().x1  # beside the lines


def test_wrong_arguments_are_rejected(sentences):
    for depths, repair in {(): "(16, 64, 256)", (4, 2): "(2, 4)", (2, 2): "(2,)", (0, 4): "(4,)"}.items():
        words = re.escape(f"increasing integers >= 1, got {depths}; pass depths={repair}.")
        with pytest.raises(ValueError, match=words):
            memory_curve(make, depths)
    with pytest.raises(TypeError, match=r"make\(depth\) to return a function and its point.*write return f, x"):
        memory_curve(lambda depth: jnp.sin, (1, 2))
    with pytest.raises(ValueError, match="memory_curve expected f to return a scalar"):
        memory_curve(lambda depth: (jnp.sin, jnp.ones(3)), (1, 2))
    with pytest.raises(TypeError, match="memory_curve expected x to hold floating-point arrays"):
        memory_curve(lambda depth: (jnp.sum, jnp.arange(3)), (1, 2))
    with pytest.raises(TypeError, match=r"make to take .* checkpoint.*; write def make\(depth, checkpoint=None\)"):
        memory_curve(lambda depth: make(depth), (1, 2), checkpoints=["body"])
    assert len(memory_curve(lambda depth: make(depth), (1,))) == 3  # without checkpoints the keyword is not needed
    assert len(memory_curve(lambda depth, **options: make(depth, **options), (1,), checkpoints=["body"])) == 4
