"""Plots, checked by the data of their artists."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from repository import ROOT

from jaxblocks import MLP, plotting, relu
from jaxblocks.plotting.styles import look

matplotlib = pytest.importorskip("matplotlib", reason="plotting draws with it")
Figure = pytest.importorskip("matplotlib.figure").Figure
QuadContourSet = pytest.importorskip("matplotlib.contour").QuadContourSet
to_hex = pytest.importorskip("matplotlib.colors").to_hex


@pytest.fixture
def ax():
    return Figure().subplots()


def labels(ax):
    return ax.get_legend_handles_labels()[1]


# ---- style --------------------------------------------------------------------------------


def test_style_ends_with_its_context():
    before = dict(matplotlib.rcParams)
    with plotting.style():
        cycle = matplotlib.rcParams["axes.prop_cycle"].by_key()
        assert matplotlib.rcParams["axes.spines.top"] is False
    assert tuple(cycle["color"]) == plotting.PALETTE
    assert dict(matplotlib.rcParams) == before


def test_lines_differ_in_grayscale():
    """Seven curves have seven dash patterns."""
    with plotting.style():
        cycle = matplotlib.rcParams["axes.prop_cycle"].by_key()
    assert len({str(dash) for dash in cycle["linestyle"]}) == len(plotting.PALETTE) == 7


def machado(color):
    """Simulates vision without green receptors (Machado et al. 2009, deuteranomaly of severity 1)."""
    rgb = np.array(matplotlib.colors.to_rgb(color))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]])
    return np.clip(seen @ linear, 0, 1) ** (1 / 2.2)


def test_colors_are_stated_in_one_file():
    """All pictures of the package and of the examples share the palette; the page has its own style sheet."""

    files = [*(ROOT / "jaxblocks").rglob("*.py"), *(ROOT / "examples").glob("*.py")]
    stated = {path.name for path in files if re.search(r"""["']#[0-9a-fA-F]{6}["']""", path.read_text())}
    assert stated == {"axes.py"}


def test_colors_differ_for_readers_with_color_blindness():
    """Any two colors of the palette differ; red and green of Matplotlib's cycle are the negative control."""
    apart = lambda a, b: np.linalg.norm(machado(a) - machado(b))
    assert min(apart(a, b) for i, a in enumerate(plotting.PALETTE) for b in plotting.PALETTE[:i]) > 0.15
    assert apart("#d62728", "#2ca02c") < 0.15


@pytest.mark.parametrize(
    "draw", [lambda: plotting.curves([0, 1], [0, 1]), lambda: plotting.surface(np.eye(3), ((0, 1),) * 2)]
)
def test_axes_are_created_if_none_are_given(draw):
    import matplotlib.pyplot as plt

    matplotlib.use("agg")
    try:
        assert draw().figure.number in plt.get_fignums()
    finally:
        plt.close("all")


# ---- curves, bars, matrices, tiles, cells ----------------------------------------------------


def test_curves_draw_values_functions_and_bands(ax):
    x = np.linspace(-1, 1, 5)
    assert plotting.curves(x, {"f": relu, "g": x**2, "band": (x - 1, lambda x: x + 1), "_quiet": x}, ax) is ax
    np.testing.assert_allclose(ax.lines[0].get_ydata(), np.maximum(x, 0))
    np.testing.assert_array_equal(ax.lines[1].get_ydata(), x**2)
    np.testing.assert_array_equal(ax.lines[1].get_xdata(), x)
    box = ax.collections[0].get_paths()[0].vertices
    assert (box[:, 1].min(), box[:, 1].max()) == (-2, 2)
    assert sorted(labels(ax)) == ["band", "f", "g"]
    assert [line.get_color() for line in ax.lines] == list(plotting.PALETTE[:3])
    assert len({line.get_linestyle() for line in ax.lines[:2]}) == 2


def test_more_lines_than_colors_all_differ():
    """Lines with the same color have different dash patterns."""
    assert len({str(look(i)) for i in range(20)}) == 20


def test_one_curve_has_no_legend(ax):
    plotting.curves([0.0, 1.0], [2.0, 3.0], ax)
    assert ax.get_legend() is None
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), [2, 3])


def test_grouped_bars_have_their_values(ax):
    plotting.bars({"a": [1.0, -2.0], "b": jnp.array([0.25, 0.5])}, ["x", "y"], ax, numbers="{:.2f}")
    heights = [bar.get_height() for bar in ax.patches]
    assert heights == [1, -2, 0.25, 0.5]
    assert [text.get_text() for text in ax.texts] == ["1.00", "-2.00", "0.25", "0.50"]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["x", "y"]
    edges = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bar in ax.patches)
    assert all(right <= left + 1e-12 for (_, right), (left, _) in itertools.pairwise(edges)), "they overlap"
    assert ax.patches[0].get_hatch() != ax.patches[2].get_hatch()


def test_matrix_has_its_entries_as_text(ax):
    values = np.array([[1.0, 0.0, -0.5], [0.0, 2.0, 0.25]])
    plotting.matrix(values, ax, rows=["a", "b"], numbers="{:g}")
    shown = ax.images[0].get_array()
    np.testing.assert_array_equal(shown.filled(0), values)
    np.testing.assert_array_equal(shown.mask, values == 0)
    assert ax.images[0].get_clim() == (-2, 2), "0 in the middle, where it is white"
    assert {text.get_position(): text.get_text() for text in ax.texts}[(2, 0)] == "-0.5"
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["a", "b"]


def test_only_zero_is_white(ax):
    plotting.matrix([[0.0, 1e-6, 1.0]], ax)
    image = ax.images[0]
    colors = image.cmap(image.norm(image.get_array()))[0]
    assert colors[0, 3] == 0, "an entry that is 0 is left out"
    assert (colors[1:, :3].min(1) < 0.95).all()


def test_large_matrix_has_a_color_bar_instead_of_text(ax):
    plotting.matrix(np.eye(20), ax)
    assert not ax.texts
    assert len(ax.figure.axes) == 2


def test_tiles_without_pixels_and_with_pixels_that_are_not_finite(ax):
    plotting.tiles(np.zeros((2, 0, 2)), ax)
    plotting.tiles(np.full((1, 2, 2), np.inf), ax)
    drawn = plotting.tiles(np.array([[[np.nan, 1.0], [2.0, 3.0]]]), ax, columns=1).images[-1].get_array()
    np.testing.assert_array_equal(drawn[1:3, 1:3].filled(-1), [[-1, 0], [0.5, 1]])


def test_tiles_are_in_rows_and_scaled_individually(ax):
    images = np.stack([np.arange(6.0).reshape(2, 3), 10 * np.ones((2, 3)), -np.arange(6.0).reshape(2, 3)])
    plotting.tiles(images, ax, columns=2)
    whole = ax.images[0].get_array()
    assert whole.shape == (7, 9)
    np.testing.assert_allclose(whole[1:3, 1:4], images[0] / 5)
    np.testing.assert_allclose(whole[1:3, 5:8], 0)  # a constant image is white
    np.testing.assert_allclose(whole[4:6, 1:4], 1 + images[2] / 5)
    assert whole.mask[0].all()
    assert whole.mask[4:6, 5:8].all(), "no fourth image"


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 3, 4)])
def test_cells_of_a_tensor(ax, shape):
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    plotting.cells(values, ax)
    assert len(ax.patches) == values.size
    assert sorted(int(text.get_text()) for text in ax.texts) == sorted(values.ravel())
    if values.ndim == 2:
        place = {text.get_text(): text.get_position() for text in ax.texts}
        assert place["1"][0] - place["0"][0] == 1, "columns go to the right"
        assert place["3"][1] - place["0"][1] == -1, "rows go down"


# ---- the plane ----------------------------------------------------------------------------


def test_points_by_class(ax):
    x = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
    plotting.points(x, [2, 0, 2], ax, names=["zero", "one", "two"])
    zero, two = ax.collections
    np.testing.assert_array_equal(zero.get_offsets(), x[[1]])
    np.testing.assert_array_equal(two.get_offsets(), x[[0, 2]])
    assert labels(ax) == ["zero", "two"]
    assert [to_hex(part.get_facecolor()[0]).upper() for part in (zero, two)] == [
        plotting.PALETTE[0],
        plotting.PALETTE[2],
    ]
    assert not np.array_equal(zero.get_paths()[0].vertices, two.get_paths()[0].vertices), "markers differ"


def test_boundary_where_the_sign_changes(ax):
    plotting.boundary(lambda x: x[:, :1] - 0.25, ((-1, 1), (0, 2)), ax, samples=9)
    classes = ax.images[0].get_array()
    np.testing.assert_array_equal(classes, np.tile(np.linspace(-1, 1, 9) > 0.25, (9, 1)))
    line = ax.collections[0].get_paths()[0].vertices
    np.testing.assert_allclose(line[:, 0], 0.25)
    left, right, bottom, top = ax.images[0].get_extent()
    np.testing.assert_allclose([left, right, bottom, top], [-1.125, 1.125, -0.125, 2.125])  # pixels around the samples


def test_boundary_of_several_classes(ax):
    scores = lambda x: jnp.stack([x[:, 0], x[:, 1], jnp.full(len(x), 0.5)], -1)
    plotting.boundary(scores, ((0, 1), (0, 1)), ax, samples=5)
    y, x = np.mgrid[0:1:5j, 0:1:5j]
    expected = np.stack([x, y, np.full((5, 5), 0.5)], -1).argmax(-1)
    np.testing.assert_array_equal(ax.images[0].get_array(), expected)
    assert len(ax.collections) == 3
    assert ax.images[0].origin == "lower", "the first row is that of the lowest y"


def test_trajectories_over_contours(ax):
    path = np.array([[1.0, 2.0], [0.5, 1.0], [0.0, 0.0]])
    plotting.trajectories(lambda x: (x**2).sum(1), {"down": path, "other": path[:2]}, ax)
    way, start, end = ax.lines[:3]
    np.testing.assert_array_equal(np.stack(way.get_data(), -1), path)
    np.testing.assert_array_equal(np.ravel(start.get_data()), path[0])
    np.testing.assert_array_equal(np.ravel(end.get_data()), path[-1])
    assert labels(ax) == ["down", "other"]
    contours = ax.collections[0]
    for level, line in zip(contours.levels, contours.get_paths(), strict=True):
        if len(line.vertices):
            np.testing.assert_allclose((line.vertices**2).sum(1), level, atol=0.02)


def test_trajectories_over_a_constant_and_where_a_function_is_not_finite(ax):
    """A constant has no contours; those of other functions are where it is finite."""
    levels = lambda f: sum(
        isinstance(each, QuadContourSet)
        for each in plotting.trajectories(f, {"a": [[0.5, 0.0], [1.0, 1.0]]}).collections
    )
    assert levels(lambda x: 0 * x[:, 0]) == 0
    with jax.debug_nans(False):
        plotting.trajectories(lambda x: jnp.log(x[:, 0]), {"a": [[0.5, 0.0]]}, ax, box=((-1, 1), (-1, 1)))
    (drawn,) = (each for each in ax.collections if isinstance(each, QuadContourSet))
    assert np.isfinite(drawn.levels).all() and any(len(path.vertices) for path in drawn.get_paths())


def test_trajectories_on_a_graph(ax):
    plotting.trajectories(lambda x: x**2, {"down": [2.0, 1.0, 0.5]}, ax, box=(-1, 3), samples=9)
    graph, way = ax.lines[:2]
    np.testing.assert_allclose(graph.get_data(), [np.linspace(-1, 3, 9), np.linspace(-1, 3, 9) ** 2], atol=1e-6)
    np.testing.assert_allclose(way.get_data(), [[2, 1, 0.5], [4, 1, 0.25]])


def test_surface_has_the_heights_of_the_function(monkeypatch):
    ax = Figure().add_subplot(projection="3d")
    given = []
    monkeypatch.setattr(ax, "plot_surface", lambda *xyz, **look: given.extend(xyz))
    plotting.surface(lambda x: 3 * x[:, 0] + x[:, 1], ((0, 1), (0, 2)), ax, samples=5)
    x, y, heights = given
    np.testing.assert_allclose(heights, 3 * x + y, atol=1e-6)
    assert (x[0, -1], y[-1, 0]) == (1, 2)
    assert ax.get_zlim() == pytest.approx((-0.4 * 5, 5)), "space for the level lines below"
    plotting.surface(heights, ((0, 1), (0, 2)), ax)
    np.testing.assert_array_equal(given[3:], given[:3])


# ---- drawings -----------------------------------------------------------------------------


def test_network_has_an_edge_for_each_weight():
    """5-3-2 with one weight set to 0: edges by sign, widths by size, ends where the nodes are."""
    ax = Figure().subplots()
    params = MLP(3, 2).init(jax.random.key(0), jnp.zeros(5))
    params[0]["kernel"] = params[0]["kernel"].at[4, 0].set(0.0)
    kernels = [np.asarray(params[i]["kernel"]) for i in (0, 2)]
    plotting.network(params, ax, names=["in", "hidden", "out"])
    positive, negative, nodes = ax.collections
    assert len(positive.get_segments()) == sum((kernel > 0).sum() for kernel in kernels)
    assert len(negative.get_segments()) == sum((kernel < 0).sum() for kernel in kernels)
    assert len(positive.get_segments()) + len(negative.get_segments()) == 20
    places = np.asarray(nodes.get_offsets())
    assert len(places) == 10
    assert {tuple(end) for segment in negative.get_segments() for end in segment} <= {tuple(place) for place in places}
    sizes = np.concatenate([abs(kernel[kernel > 0]) for kernel in kernels])
    np.testing.assert_array_equal(np.argsort(positive.get_linewidths()), np.argsort(sizes))
    assert [text.get_text() for text in ax.texts] == ["in", "hidden", "out"]


def test_network_from_named_params(ax):
    params = {"hidden": {"kernel": np.ones((2, 5)), "bias": np.zeros(5)}, "out": [{"kernel": -np.ones((5, 1))}]}
    plotting.network(params, ax)
    assert [len(part.get_segments()) for part in ax.collections[:2]] == [10, 5]


def test_arrows_of_a_diagram_end_at_its_boxes(ax):
    plotting.diagram(
        {"a": (0, 0), "b": (2, 0), "c": (2, 1)}, [("a", "b"), ("b", "c", "up")], ax, texts={"b": "long text"}
    )
    ax.figure.draw_without_rendering()
    assert [text.get_text() for text in ax.texts] == ["a", "long text", "c", "", "", "up"]
    arrow = ax.texts[3].arrow_patch.get_window_extent()
    left, right = (ax.texts[i].get_bbox_patch().get_window_extent() for i in (0, 1))
    assert left.x1 - 1 <= arrow.x0 < left.x1 + 10
    assert right.x0 - 10 < arrow.x1 <= right.x0 + 1


def test_contact_sheet_shows_every_picture(tmp_path):
    figure = Figure(figsize=(1, 1))
    figure.savefig(tmp_path / "one.png", dpi=20)
    axes = plotting.contact_sheet({"one": tmp_path / "one.png", "two": np.zeros((4, 6, 3))}, columns=2)
    assert [ax.get_title() for ax in axes] == ["one", "two"]
    assert [ax.images[0].get_array().shape[:2] for ax in axes] == [(20, 20), (4, 6)]
    axes[0].figure.savefig(tmp_path / "sheet.png", dpi=20)
    assert (tmp_path / "sheet.png").stat().st_size > 0


# ---- errors ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message", "repaired"),
    [
        (
            lambda ax: plotting.curves([0, 1], np.ones((2, 2)), ax),
            "pass several curves as a dict",
            lambda ax: plotting.curves([0, 1], {"a": [1, 1], "b": [1, 1]}, ax),
        ),
        (
            lambda ax: plotting.bars([1, 2, 3], ["a", "b"], ax),
            "a value for each of the 2 names",
            lambda ax: plotting.bars([1, 2], ["a", "b"], ax),
        ),
        (
            lambda ax: plotting.matrix(np.ones((2, 2, 2)), ax),
            r"\(rows, columns\).*reshape it",
            lambda ax: plotting.matrix(np.ones((2, 2, 2)).reshape(4, 2), ax),
        ),
        (
            lambda ax: plotting.tiles(np.ones((2, 2)), ax),
            r"\(n, height, width\)",
            lambda ax: plotting.tiles(np.ones((1, 2, 2)), ax),
        ),
        (
            lambda ax: plotting.cells(np.ones((1, 1, 1, 1)), ax),
            "order 0 to 3.*select a slice",
            lambda ax: plotting.cells(np.ones((1, 1, 1, 1))[0], ax),
        ),
        (
            lambda ax: plotting.points(np.ones((3, 2)), [0, 1], ax),
            "n labels",
            lambda ax: plotting.points(np.ones((3, 2)), [0, 1, 1], ax),
        ),
        (
            lambda ax: plotting.boundary(lambda x: x.sum(), ((0, 1), (0, 1)), ax),
            "use jax.vmap",
            lambda ax: plotting.boundary(jax.vmap(lambda x: x.sum() - 1), ((0, 1), (0, 1)), ax),
        ),
        (
            lambda ax: plotting.trajectories(lambda x: x, {"a": [0, 1], "b": [[0, 1]]}, ax),
            "paths that are all",
            lambda ax: plotting.trajectories(lambda x: x, {"a": [0, 1], "b": [0, 2]}, ax),
        ),
        (
            lambda ax: plotting.surface(np.eye(2), ((0, 1), (0, 1)), ax),
            'projection="3d"',
            lambda ax: plotting.surface(np.eye(2), ((0, 1), (0, 1)), Figure().add_subplot(projection="3d")),
        ),
        (
            lambda ax: plotting.network({"w": np.eye(2)}, ax),
            "params of dense layers in series",
            lambda ax: plotting.network({"kernel": np.eye(2)}, ax),
        ),
        (
            lambda ax: plotting.network({"kernel": np.eye(2)}, ax, names=["in"]),
            "each of the 2 columns",
            lambda ax: plotting.network({"kernel": np.eye(2)}, ax, names=["in", "out"]),
        ),
        (
            lambda ax: plotting.diagram({"a": (0, 0)}, [("a", "b")], ax),
            r"a place for each box of an arrow, got none for \['b'\]",
            lambda ax: plotting.diagram({"a": (0, 0), "b": (1, 0)}, [("a", "b")], ax),
        ),
        (
            lambda ax: plotting.diagram({"a": (0, 0), "b": (1, 0)}, [5], ax),
            r"arrows \(from, to\) or \(from, to, label\), got \[5\]",
            lambda ax: plotting.diagram({"a": (0, 0), "b": (1, 0)}, [("a", "b")], ax),
        ),
        (
            lambda ax: plotting.diagram({"a": (0, 0, 0)}, [], ax),
            r"a place \(x, y\) for each of one or more boxes",
            lambda ax: plotting.diagram({"a": (0, 0)}, [], ax),
        ),
        (
            lambda ax: plotting.bars({}, [], ax),
            "at least one series, got none",
            lambda ax: plotting.bars({"loss": [1.0]}, ["a"], ax),
        ),
        (
            lambda ax: plotting.matrix(np.eye(2), ax, rows=["a"]),
            "2 names of rows or columns, got 1",
            lambda ax: plotting.matrix(np.eye(2), ax, rows=["a", "b"]),
        ),
        (
            lambda ax: plotting.points(np.eye(2), [0, 1], ax, names=["a"]),
            "a name for each of the 2 labels, got 1",
            lambda ax: plotting.points(np.eye(2), [0, 1], ax, names=["a", "b"]),
        ),
        (
            lambda ax: plotting.boundary(lambda x: x[:, 0], (-1, 1), ax),
            r"box=\(\(lowest x, highest x\), .*, got \(-1, 1\); pass for instance",
            lambda ax: plotting.boundary(lambda x: x[:, 0], ((-1, 1), (-1, 1)), ax, samples=5),
        ),
        (
            lambda ax: plotting.boundary(lambda x: x[:, 0], ((-1, 1), (-1, 1)), ax, samples=1),
            "two samples or more along each axis, got 1",
            lambda ax: plotting.boundary(lambda x: x[:, 0], ((-1, 1), (-1, 1)), ax, samples=2),
        ),
        (
            lambda ax: plotting.bars(1.0, ["a"], ax),
            "a value for each of the 1 names, got shape .*; pass the values in a list",
            lambda ax: plotting.bars([1.0], ["a"], ax),
        ),
        (
            lambda ax: plotting.points(np.eye(2), [-1, 0], ax, names=["a", "b"]),
            "labels from 0, the places of their names, got a label -1; count from 0",
            lambda ax: plotting.points(np.eye(2), [0, 1], ax, names=["a", "b"]),
        ),
        (
            lambda ax: plotting.trajectories(lambda x: x[:, 0], {"a": np.zeros((0, 2))}, ax),
            "paths with points, got none; pass box= for paths without points",
            lambda ax: plotting.trajectories(lambda x: x[:, 0], {"a": np.zeros((0, 2))}, ax, box=((0, 1), (0, 1))),
        ),
        (
            lambda ax: plotting.surface(np.eye(2)[None], ((0, 1), (0, 1))),
            r"heights \(y, x\), got .*; pass one number for each point of a grid",
            lambda ax: plotting.surface(np.eye(2), ((0, 1), (0, 1))),
        ),
        (
            lambda ax: plotting.surface(np.eye(2), (0, 1)),
            r"box=\(\(lowest x, highest x\), .*, got \(0, 1\); pass for instance",
            lambda ax: plotting.surface(np.eye(2), ((-1, 1), (-1, 1))),
        ),
        (
            lambda ax: plotting.network({"kernel": np.zeros((0, 3))}, ax),
            r"kernels \(in, out\) of layers in series, got shapes \[\(0, 3\)\]",
            lambda ax: plotting.network({"kernel": np.zeros((1, 3))}, ax),
        ),
        (
            lambda ax: plotting.diagram({"a": (0, 0)}, [("a",)], ax),
            r"arrows \(from, to\) or \(from, to, label\), got .*; pass for instance",
            lambda ax: plotting.diagram({"a": (0, 0), "b": (1, 0)}, [("a", "b")], ax),
        ),
        (
            lambda ax: plotting.contact_sheet({"a": np.zeros((2, 0, 3))}),
            r"images \(height, width, channels\), got shapes \[\(2, 0, 3\)\]; leave out what is no image",
            lambda ax: plotting.contact_sheet({"a": np.zeros((2, 2, 3))}),
        ),
        (
            lambda ax: plotting.contact_sheet({}),
            "expected pictures by name, got none",
            lambda ax: plotting.contact_sheet({"a": np.zeros((2, 2, 3))}),
        ),
    ],
)
def test_errors_and_their_repairs(ax, call, message, repaired):
    with pytest.raises(ValueError, match=message):
        call(ax)
    repaired(Figure().subplots())


def test_other_types_are_named(ax, sentences):
    with pytest.raises(TypeError, match="trajectories expected paths by label, got a list; pass for instance"):
        plotting.trajectories(lambda x: x, [[1.0]], ax)
    with pytest.raises(TypeError, match="contact_sheet expected pictures by name, got a list; pass for instance"):
        plotting.contact_sheet(["loss.png"])
    with pytest.raises(TypeError, match="points expected labels that are integers, got <U1"):
        plotting.points(np.eye(2), ["a", "b"], ax)


def test_schedules_are_their_values_over_steps(ax):
    """Also those that are constant, and one without a label."""
    optax = pytest.importorskip("optax")
    drawn = plotting.schedules({"decay": optax.exponential_decay(1.0, 2, 0.25), "constant": lambda step: 0.5}, 4, ax)
    decay, constant = (line.get_ydata() for line in drawn.lines)
    np.testing.assert_allclose(decay, 0.5 ** np.arange(5), rtol=1e-6)
    np.testing.assert_array_equal(constant, 0.5)
    assert labels(ax) == ["decay", "constant"]
    assert ax.get_xlabel() == "step"
    assert len(plotting.schedules(optax.linear_schedule(0.0, 1.0, 3), 3, ax).lines) == 3
