"""The figures of the lectures: their numbers against the lectures and closed forms."""

import contextlib
import importlib.util
import math

import jax
import numpy as np
import pytest
from legible import problems
from repository import EXAMPLES

matplotlib = pytest.importorskip("matplotlib", reason="the figures require matplotlib")

SHEET = ("F02", "F10", "F11")  # drawn by one call of the example, with a contact sheet
CHEAP = (*SHEET, "F05", "F07", "F12", "F21", "F23")
ALL = tuple(f"F{number:02}" for number in range(1, 37))


@pytest.fixture(scope="module")
def figures():
    path = EXAMPLES / "figures.py"
    spec = importlib.util.spec_from_file_location("example_figures", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def default_configuration():
    """Use the default configuration of JAX."""
    with (
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
        jax.debug_key_reuse(False),
        jax.debug_nans(False),
    ):
        yield


@pytest.fixture(scope="module")
def sheet(figures, tmp_path_factory):
    folder, faults, save = tmp_path_factory.mktemp("sheet"), {}, figures.save

    def save_if_legible(figure, number, path):
        faults[number] = problems(figure)
        save(figure, number, path)

    with default_configuration(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "save", save_if_legible)
        numbers = figures.main(["--quick", "--out", str(folder), "--only", *SHEET])
    return numbers, sorted(path.name for path in folder.glob("*.png")), faults


# ---- files --------------------------------------------------------------------------------


def test_there_are_36_figures_with_sources(figures):
    assert tuple(figures.FIGURES) == ALL
    for number, made in figures.FIGURES.items():
        assert made.name.startswith(f"{number}_")
        assert made.draw.__doc__, number
        assert any(who in made.source for who in ("Diehl", "Huszar", "Krapac", "Cevher")), number


def test_notes_of_figures_without_a_known_original(figures):
    for number in ("F04", "F13", "F14", "F25"):
        assert "our choice" in figures.FIGURES[number].note or "choice is ours" in figures.FIGURES[number].note
    assert "synthetic data replace" in figures.FIGURES["F20"].note.lower()


def test_selected_figures_and_their_contact_sheet_are_written(sheet):
    numbers, files, _ = sheet
    assert tuple(sorted(numbers)) == SHEET
    assert [name.partition("_")[0] for name in files if name != "contact_sheet.png"] == list(SHEET)
    assert "F11_rectifiers.png" in files
    assert "contact_sheet.png" in files


def test_caption_has_number_source_and_note(figures, tmp_path):
    figure, _ = figures.page(3, width=6)
    figures.save(figure, "F13", tmp_path / "some.png")
    assert " ".join(figure.get_suptitle().split()).endswith("and one that folds its input")
    assert "Huszar" in figure.get_supxlabel()
    assert "the choice is ours" in figure.get_supxlabel().replace("\n", " ")


def test_titles_break_no_formula(figures):
    """Matplotlib reads the formulas of each line alone."""
    for number in ALL:
        lines = figures.title(number, 60).splitlines()
        assert all(line.count("$") % 2 == 0 for line in lines), lines
        assert "".join(lines).replace(" ", "") + "." == number + "".join(figures.FIGURES[number].draw.__doc__.split())


def test_what_is_illegible():
    """Each fault of a figure is found: axes without names, lines and bars that differ in color, and the like."""
    figure = matplotlib.figure.Figure(figsize=(13, 3))
    left, right = figure.subplots(1, 2)
    left.plot([0, 1], [0, 1], label="a")
    left.plot([0, 1], [1, 1], label="b")
    left.set_xlabel("x")
    left.text(0.9, 0.05, "a = b", fontsize=7)
    left.legend(loc="lower right")
    right.bar([0], [1], color="C0", label="c")
    right.bar([1], [1], color="C0", label="d")
    right.legend()
    found = "\n".join(problems(figure))
    expected = ["'a' and 'b' differ in color", "y axis has no name", "x axis has no name", "covers the text 'a = b'"]
    expected += ["'c' and 'd' of the legend look the same", "text too small at the width of a page"]
    assert [words for words in expected if words not in found] == []


def test_unknown_figure_is_rejected(figures, capsys, tmp_path):
    with pytest.raises(SystemExit) as stop:
        figures.main(["--only", "F99", "--out", str(tmp_path / "never")])
    assert stop.value.code == 2
    assert "'F99'" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "never").exists()


# ---- numbers -----------------------------------------------------------------------


def f01(shown):
    values = {
        "GELU": {1.0: 0.8413447, -1.0: -0.1586553, 2.0: 1.9544997},
        "ELU": {-1.0: -0.6321206, -2.0: -0.8646647, 1.0: 1.0},
        "SELU": {1.0: 1.0507010, -1.0: -1.1113307},
        "softplus": {0.0: math.log(2), 1.0: 1.3132617, -2.0: 0.1269280},
        "sigmoid": {1.0: 0.7310586, 2.0: 0.8807971, -2.0: 0.1192029},
        "tanh": {1.0: 0.7615942, 0.5: 0.4621172},
        "ReLU": {-2.0: 0.0, 0.5: 0.5},
        "leaky ReLU, slope 0.1": {-2.0: -0.2, 2.0: 2.0},
        "cosine": {0.0: 1.0, 1.0: math.cos(1)},
        "maxout of x and -x/2": {-2.0: 1.0, 2.0: 2.0},
    }
    for name, points in values.items():
        for x, y in points.items():
            assert shown[name][x] == pytest.approx(y, abs=1e-6), (name, x)


def f02(shown):
    assert shown == {"edges": 15, "parameters": 21}


def f03(shown):
    assert len(shown["kinks_2d"]) == len(shown["kinks_1d"]) == 10
    assert max(shown["kinks_2d"]) <= 5
    assert max(shown["kinks_1d"]) == 5
    assert shown["homogeneity"] < 1e-5


def f04(shown):
    printed = {
        "total variation": (0.2, 0.2, 0.6),
        "$L^1$": (0.4, 0.4, 1.2),
        "$L^2$": (0.2828427, 0.2828427, 0.8485281),
        "KL(P, Q)": (0.1536636, 0.0822829, 1.0325535),
        "KL(Q, P)": (0.1163218, 0.0871767, 0.7941600),
        "cross-entropy(P, Q)": (0.7645279, 0.6931472, 1.6434177),
    }
    for name, values in printed.items():
        np.testing.assert_allclose(shown[name], values, atol=1e-6)


def f05(shown):
    assert shown["units"] == 5
    assert shown["error"] < 1e-13


def f06(shown):
    expected = {4: 0.970592, 8: 0.293063, 16: 0.0789440}
    for pieces, error in expected.items():
        assert shown["errors"][pieces] == pytest.approx(error, abs=2e-6)
        assert error <= shown["bounds"][pieces]


def f07(shown):
    assert shown == {"distinct": 3, "entries": 24, "shape": (8, 10)}


def f08(shown):
    """Convolution commutes with the shift; a dense layer does not."""
    assert shown["first"] < 1e-5
    assert shown["second"] < 1e-5
    assert shown["dense"] > 0.1


def f09(shown):
    one, two, ten = shown.values()
    np.testing.assert_allclose(one, [0.1488476] * 2 + [0.4046097] + [0.1488476] * 2, atol=1e-6)
    np.testing.assert_allclose(two, [0.0762931, 0.0762931, 0.2073863, 0.0762931, 0.5637343], atol=1e-6)
    assert ten[2] == pytest.approx(0.9998184, abs=1e-6)


def f10(shown):
    assert shown["values"].tolist() == [0, 0, 0.5]


def f11(shown):
    np.testing.assert_allclose(shown["kinks"], shown["expected"], rtol=1e-12)


def f12(shown):
    assert shown["kinks"] == [0, 1, 3, 7, 15, 31]
    assert shown["ends"] == [[-2, 2]] + [[2, 2]] * 5


def f13(shown):
    for name, (regions, _, upper) in shown.items():
        assert regions <= upper, name
    assert shown["folding 6 + 6"][:2] == (198, 198)
    assert shown["random 12"][2] == 79  # 1 + 12 + 66, lines in general position


def f14(shown):
    degrees = shown["degrees"]
    assert (np.diff(degrees.train) <= 1e-12).all()
    assert degrees.train[-1] < 1e-12, "16 points, degree 15"
    assert 2 <= degrees.best <= 7
    assert degrees.test[-1] > 10 * degrees.test.min()
    assert shown["missed"] > 0.05, "noisy data, which the trained net does not interpolate"
    double = shown["widths"]
    assert double.test[double.complexity == 40] > 5 * double.test[-1], "double descent"


def f15(shown):
    inputs, moved, shifted, hidden = (places.tolist() for places in shown["places"])
    assert inputs == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert moved == [[0, 0], [1, 1], [1, 1], [2, 2]]
    assert shifted == [[0, -1], [1, 0], [1, 0], [2, 1]]
    assert hidden == [[0, 0], [1, 0], [1, 0], [2, 1]]
    assert shown["output"].ravel().tolist() == [0, 1, 1, 0]


def f16(shown):
    lse, largest, mean = (shown[name] for name in ("LSE(z, 0)", "max(z, 0)", "softmax-mean"))
    assert (lse >= largest).all()
    assert (largest >= mean - 1e-6).all()
    assert (lse - largest).max() == pytest.approx(math.log(2), abs=1e-6)


def f17(shown):
    assert shown["largest"] == pytest.approx(8 / 27, abs=1e-5)
    np.testing.assert_allclose(shown["squared error"], [-9.07875e-5, -0.0132071, -0.25, -8.89889e-5], rtol=1e-3)
    np.testing.assert_allclose(shown["cross-entropy"][:3], [-0.9999546, -0.9933071, -0.5], rtol=1e-5)


def f18(shown):
    generic, additive = shown.values()
    assert additive < 0.75 * generic


def f19(shown):
    shallow, deep = shown.values()
    assert (shallow["parameters"], deep["parameters"]) == (81, 151)
    assert (shallow["bound"], deep["bound"]) == (211, 3136)
    assert all(net["regions"] <= net["bound"] for net in (shallow, deep))


def f20(shown):
    sizes, accuracies = zip(*shown["deep"], *shown["shallow"], strict=True)
    assert sizes == (49, 205, 49, 193)
    assert accuracies[1] > accuracies[3] + 0.02 > accuracies[0] + 0.02, "two layers, one layer of as many parameters"


def f21(shown):
    assert shown["cells"] == [1, 3, 12, 24]


def f22(shown):
    assert shown["loss"] == pytest.approx(0.9965770, abs=1e-6)
    assert shown["lambda"] == pytest.approx(2.25)
    np.testing.assert_allclose(shown["W1"], [[0.6324593, 0.6224593], [0, 0.02]], atol=1e-6)
    np.testing.assert_allclose(shown["W2"], [0.3312297, 0.6224593], atol=1e-6)
    assert len(set(shown["nodes"])) == len(shown["nodes"]) == 12
    assert [name.rpartition("[")[2].strip("]'") for name in shown["roots"]] == ["W1", "W2", "x", "y", "lam"]
    np.testing.assert_allclose(shown["x"], [0.5 * 0.6224593, 0], atol=1e-6)
    assert shown["y"] == pytest.approx(-0.5)


def f23(shown):
    np.testing.assert_allclose(shown["breakpoints"], [0, 1, 2, 3, 6], atol=1e-12)
    np.testing.assert_allclose(shown["slopes"], [0, 1, 0, 2, -1, 0], atol=1e-12)
    assert shown["integral"] == pytest.approx(8)


def f24(shown):
    assert shown["units"] == {"table": 8, "sums": 4, "chain": 6}
    assert max(shown["wrong"].values()) == 0


def f25(shown):
    assert shown["at_data"] < 1e-5
    assert shown["far"] < 1e-6
    assert (np.diff(shown["typical"]) < 0).all()
    assert shown["typical"][-1] < 1e-6


def f26(shown):
    assert shown["layers"] == [15, 60, 55, 12]
    assert shown["parameters"] == 142


def f27(shown):
    assert len(shown["steps"]) == len(set(shown["steps"])) == 9
    h = math.tanh(0.6)
    residual = 2 * (0.7 * h - 1)
    np.testing.assert_allclose(shown["gradient"], [residual * 0.7 * (1 - h * h) * 0.5, residual * h], rtol=1e-5)


def f28(shown):
    assert shown["gap"] < 1e-5


def f29(shown):
    assert shown["value"] == pytest.approx(11.652071, abs=1e-5)
    np.testing.assert_allclose(shown["gradient"], [5.5, 1.716338], atol=1e-6)


def f30(shown):
    iterates = [2, 0.44, 0.70000832, 1.07675083, 1.43966841, 1.44498829, 1.44179491, 1.44372444]
    np.testing.assert_allclose(shown["from 2"][:8], iterates, atol=1e-8)
    assert shown["from 2"][-1] == pytest.approx((3 + math.sqrt(73)) / 8, abs=1e-14)
    assert shown["from -1"][-1] == pytest.approx((3 - math.sqrt(73)) / 8, abs=1e-14)


def f31(shown):
    forward, reverse, _, crossover = shown[(784, 128, 64, 10)]
    assert forward == 784 * (128 * 64 + 64 * 10)
    assert reverse == 10 * (784 * 128 + 128 * 64)
    assert 10 < crossover < 784
    assert shown[(100, 50, 200, 50, 1)][3] == pytest.approx(100), (
        "with symmetric inner dimensions both modes cost the same for equal ends"
    )


def f32(shown):
    """Dense, banded, block lower triangular, or with the edges of a graph; rows of attention are distributions."""
    assert (shown["linear"] != 0).all()
    assert (shown["multilayer\nperceptron"] != 0).all()
    block = lambda name: np.any(shown[name].reshape(-1, 2, 6, 2) != 0, axis=(1, 3))  # (positions, positions)
    i, j = np.ogrid[:4, :6]
    np.testing.assert_array_equal(block("convolution,\nkernel size 3"), (j >= i) & (j <= i + 2))
    i, j = np.ogrid[:8, :6]
    np.testing.assert_array_equal(block("transposed\nconvolution"), (i >= j) & (i <= j + 2))
    i, j = np.ogrid[:6, :6]
    np.testing.assert_array_equal(block("recurrent"), i >= j)
    np.testing.assert_array_equal(block("graph: a ring of six"), np.isin((i - j) % 6, (0, 1, 5)))
    assert block("attention").all()
    assert (shown["weights"] > 0).all()
    np.testing.assert_allclose(shown["weights"].sum(1), 1, atol=1e-6)


def f33(shown):
    assert shown["slope"] == pytest.approx(0.8, abs=0.15)
    assert 0.8 < shown["accuracy"] < 1


def f34(shown):
    convex, other = shown.values()
    assert convex > -1e-5
    assert other < -1e-4


def f35(shown):
    np.testing.assert_allclose(shown["momentum"], shown["momentum as moving average"], atol=1e-14)
    adam = [(0.900000001, 0.9000000001), (0.8004122297, 0.8004122279), (0.7015862745, 0.7015862717)]
    np.testing.assert_allclose(shown["Adam"][1:4], adam, atol=1e-9)
    plain = [0.95**3, 0.5**3]
    np.testing.assert_allclose(shown["gradient descent"][3], plain, atol=1e-14)


def f36(shown):
    p, bounds = shown["p"], shown["bounds"]
    np.testing.assert_allclose(p[0], 1 / 3, atol=1e-6)
    np.testing.assert_allclose(p[20], [0.0900306, 0.2447285, 0.6652410], atol=1e-6)  # lambda = 1
    assert (p[:, :2] <= bounds[:, :2] * (1 + 1e-5)).all()
    assert p[-1, 2] == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("number", [n if n in CHEAP else pytest.param(n, marks=pytest.mark.slow) for n in ALL])
def test_numbers_of_each_figure(figures, sheet, number):
    if number == "F08":
        pytest.importorskip("sklearn", reason="the figure shows a digit of scikit-learn")
    made = figures.FIGURES[number]
    if number in SHEET:
        shown, files, faults = sheet[0][number], sheet[1], sheet[2][number]
        assert f"{made.name}.png" in files
    else:  # drawn but not saved: saving is tested with the figures of `SHEET`
        with default_configuration(), figures.plotting.style():
            figure, shown = made.draw(True)
            faults = problems(figure)
    assert faults == []
    globals()[number.lower()](shown)
