"""What the pictures of the notebooks 5 to 9 must show: for each notebook, one function for each figure, in order.

A function takes the figure and the names of the notebook, and compares what the artists show with these.
"""

import numpy as np
from artists import labeled


def _shows(ax, expected, **tolerance):
    """The labeled lines of ``ax`` are these, with these values."""
    found = labeled(ax)
    assert list(found) == list(expected)
    for label, values in expected.items():
        np.testing.assert_allclose(found[label], np.asarray(values, float), err_msg=label, **tolerance)


def _histogram(ax):
    """The heights and the edges of the bars of a histogram."""
    bars = [bar for bar in ax.patches if bar.get_height() >= 0]
    edges = [bar.get_x() for bar in bars]
    return np.array([bar.get_height() for bar in bars]), np.array([*edges, edges[-1] + bars[-1].get_width()])


def _is_histogram_of(ax, sample, density=True):
    heights, edges = _histogram(ax)
    expected = np.histogram(sample, edges, density=density)[0]
    # Edges at float32 values: a value on an edge may be counted in either bin.
    assert abs(heights - expected).max() <= 0.03 * expected.max()


# ---- 9: diffusion ----------------------------------------------------------------------------


def _mixture(x, alpha, sigma):
    """The density of the noised mixture of the notebook, from its formula."""
    mean, var = alpha * np.array([-1.5, 0.5, 1.5]), alpha**2 * np.array([0.04, 0.02, 0.04]) + sigma**2
    each = np.exp(-((np.asarray(x, float)[:, None] - mean) ** 2) / (2 * var)) / np.sqrt(2 * np.pi * var)
    return each @ [0.5, 0.2, 0.3]


def _levels(time):
    """Signal and noise of the schedule of Song et al.: beta from 0.1 to 20."""
    alpha = np.exp(-(0.1 * time + (20 - 0.1) * time**2 / 2) / 2)
    return alpha, np.sqrt(1 - alpha**2)


def forward_process(figure, names):
    first, *others, _ = figure.axes
    t = np.linspace(0, 1, 101)
    _shows(first, dict(zip(("signal", "noise"), _levels(t), strict=True)), atol=1e-5)
    for ax, time in zip(others, (0.0, 0.1, 0.3, 1.0), strict=True):
        assert ax.get_title() == f"t = {time}"
        _shows(ax, {"exact": _mixture(names["line"], *_levels(time))}, atol=1e-4)
        _is_histogram_of(ax, names["noised"](time))


def conditional_mean(figure, names):
    (ax,) = figure.axes
    cloud = ax.lines[0]
    np.testing.assert_array_equal(np.ravel(cloud.get_ydata()), names["many_eps"][:1500, 0])
    curve, bins = labeled(ax).values()
    assert list(labeled(ax)) == ["conditional mean", "mean in a bin"]
    inside = np.interp(names["middles"], names["line"], curve)
    assert abs(inside - bins).max() < 0.15


def score(figure, names):
    (ax,) = figure.axes
    _shows(ax, {"density at t = 0.2": _mixture(names["line"], *_levels(0.2))}, atol=1e-4)
    (arrows,) = (one for one in ax.collections if hasattr(one, "U"))
    place, up = arrows.XY[:, 0], 1e-4
    log = lambda x: np.log(_mixture(x, *_levels(0.2)))
    np.testing.assert_allclose(np.ravel(arrows.U), (log(place + up) - log(place - up)) / (2 * up), rtol=3e-3, atol=1e-3)


def trained_nets(figure, names):
    for ax, time in zip(figure.axes, (0.1, 0.2, 0.5), strict=True):
        assert ax.get_title() == f"t = {time}"
        at, alpha, sigma = names["line"][:, None], *_levels(time)
        up, x = 1e-4, at[:, 0].astype(float)
        above, below = (np.log(_mixture(x + shift, alpha, sigma)) for shift in (up, -up))
        exact = -sigma * (above - below) / (2 * up)
        nets = {f"{n} steps": names["nets"][f"{n} steps"](at, time)[:, 0] for n in (400, 2000)}
        _shows(ax, {"conditional mean": exact} | nets, atol=2e-3)


def sampled_paths(which):
    def check(figure, names):
        left, right = figure.axes
        paths = names[which]
        assert len(left.lines) == 40
        for line, path in zip(left.lines, paths[:, :40, 0].T, strict=True):
            np.testing.assert_array_equal(line.get_ydata(), path)
        _is_histogram_of(right, paths[-1])
        _shows(right, {"data": _mixture(names["line"], 1.0, 0.0)}, atol=1e-4)

    return check


def solvers(figure, names):
    (ax,) = figure.axes
    _shows(ax, names["errors"])
    # What the picture says: the two methods of order 2 end below the two of order 1.
    last = {label: values[-1] for label, values in labeled(ax).items()}
    assert max(last["heun"], last["dpm_solver_pp_2m"]) < min(last["ddim"], last["euler"])


def guidance(figure, names):
    for ax, scale in zip(figure.axes, (0.0, 0.5, 1.0, 3.0), strict=True):
        assert ax.get_title() == f"scale {scale:g}"
        _is_histogram_of(ax, names["by_scale"][scale], density=False)


def bent_paths(figure, names):
    (ax,) = figure.axes
    for line, path in zip(ax.lines, names["flow_path"][:, :40, 0].T, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), path)


def drawn_digits(figure, names):
    (ax,) = figure.axes
    shown = np.asarray(ax.images[0].get_array())
    assert shown.shape == (2 * 9 + 1, 10 * 9 + 1)
    for row, images in enumerate((names["drawn"][:10], names["nearest"])):
        for column, image in enumerate(images.clip(-1, 1).reshape(10, 8, 8)):
            tile = shown[9 * row + 1 : 9 * row + 9, 9 * column + 1 : 9 * column + 9]
            np.testing.assert_allclose(tile, (image - image.min()) / np.ptp(image), atol=1e-6)


# ---- 5: inductive bias -----------------------------------------------------------------------


def _matrix_of(ax):
    """The values of a heat map."""
    return np.asarray(ax.images[0].get_array().filled(0))


def toeplitz(figure, names):
    (ax,) = figure.axes
    rows = [[1, 2, -1, 0, 0], [0, 1, 2, -1, 0], [0, 0, 1, 2, -1]]
    np.testing.assert_array_equal(_matrix_of(ax), rows)


def edges(figure, names):
    (ax,) = figure.axes
    shown = np.asarray(ax.images[0].get_array())
    assert shown.shape == (24 + 2, 4 * 25 + 1)
    for i, image in enumerate([names["picture"], *np.moveaxis(np.asarray(names["maps"]), -1, 0)]):
        tile = shown[1:25, 25 * i + 1 : 25 * i + 25]
        np.testing.assert_allclose(tile, (image - image.min()) / np.ptp(image), atol=1e-6)
    # The order that the title says: the first map is of differences across the columns.
    across = np.asarray(names["maps"])[..., 0]
    assert abs(across.sum(0)).max() > 2 * abs(across.sum(1)).max()


def moved_digits(figure, names):
    (ax,) = figure.axes
    _shows(ax, {**{name: names["scores"][name] for name in ("dense", "convolutional")}, "chance": [0.1, 0.1]})
    dense, convolutional = names["scores"]["dense"], names["scores"]["convolutional"]
    assert (convolutional > dense).all() or (convolutional[[0, 1, 3, 4]] > dense[[0, 1, 3, 4]]).all()


def receptive_fields(figure, names):
    (ax,) = figure.axes
    seen = _matrix_of(ax) != 0
    distance = abs(np.arange(15) - 7)
    np.testing.assert_array_equal(seen, distance <= np.arange(1, 6)[:, None])


def linear_recurrence(figure, names):
    (ax,) = figure.axes
    row, column = np.indices((6, 6))
    np.testing.assert_allclose(_matrix_of(ax), np.where(row >= column, 0.5 ** (row - column), 0))


def vanishing(figure, names):
    (ax,) = figure.axes
    labels = ["LSTM, bias 5", "LSTM, bias 1", "tanh"]
    _shows(ax, {label: np.log10(np.median(names["norms"][label], 0)) for label in labels})
    found = list(labeled(ax).values())
    # The curves are in the order of the legend from step 10 on.
    assert (found[0][10:] > found[1][10:]).all() and (found[1][10:] > found[2][10:]).all()


def path_graph(figure, names):
    (ax,) = figure.axes
    path = np.diag(np.ones(3), 1) + np.diag(np.ones(3), -1)
    np.testing.assert_allclose(_matrix_of(ax), np.kron(path, [[1, 0.5], [2, -1]]))


def five_matrices(figure, names):
    titles = ["dense", "convolution", "recurrence", "graph (a ring)", "attention"]
    assert [ax.get_title() for ax in figure.axes[:5]] == titles
    for ax in figure.axes[:5]:
        np.testing.assert_allclose(_matrix_of(ax), names["matrices"][ax.get_title()], rtol=1e-6)
    assert (np.triu(_matrix_of(figure.axes[2]), 1) == 0).all()
    np.testing.assert_allclose(_matrix_of(figure.axes[4]).sum(1), 1, rtol=1e-5)


def descriptors(figure, names):
    _, ax = figure.axes
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["0 degrees", "45 degrees", "90 degrees"]
    heights = np.array([bar.get_height() for bar in ax.patches]).reshape(3, 4)
    np.testing.assert_allclose(heights, list(names["described"].values()))
    np.testing.assert_array_equal(heights.argmax(1), [0, 1, 2])


# ---- 6: attention ----------------------------------------------------------------------------


def _softmax(z):
    z = np.exp(np.asarray(z, float) - np.max(z, -1, keepdims=True))
    return z / z.sum(-1, keepdims=True)


def products_and_weights(figure, names):
    queries = [[0, 0, 1, 0, 0], [0, 0, 1, 0, 2], [0, 0, 10, 0, 0]]
    for above, below, query in zip(figure.axes[:3], figure.axes[3:], queries, strict=True):
        assert (above.get_ylabel(), below.get_ylabel()) == ("product", "weight")
        np.testing.assert_allclose([bar.get_height() for bar in above.patches], query)
        np.testing.assert_allclose([bar.get_height() for bar in below.patches], _softmax(query), rtol=1e-5)


def sharpening(figure, names):
    (ax,) = figure.axes
    weights = _softmax(np.linspace(0, 20, 100)[:, None] * np.array([1, 2, 3, 2.5]))
    _shows(ax, {f"entry {e}": weights[:, i] for i, e in enumerate((1.0, 2.0, 3.0, 2.5))}, atol=1e-5)


def scales(figure, names):
    (ax,) = figure.axes
    flat = [np.log(50)] * 2
    _shows(ax, {"scaled": names["scaled"], "not scaled": names["unscaled"], "log 50": flat})


def trained_attention(figure, names):
    left, right = figure.axes
    smooth = {f"net {i + 1}": names["losses"][i].reshape(20, 20).mean(1) for i in range(3)}
    _shows(left, smooth, rtol=1e-5)
    shown = np.asarray(right.images[0].get_array().filled(0))
    np.testing.assert_allclose(shown, names["attended"][0, :8], rtol=1e-5)
    (crosses,) = right.lines
    np.testing.assert_array_equal(crosses.get_xdata(), names["asked"][0, :8])
    assert np.mean(shown.argmax(1) == crosses.get_xdata()) > 0.85  # the crosses are on the darkest cells


def encodings(figure, names):
    left, right, _ = figure.axes
    rate = 10_000.0 ** (-np.arange(8) / 8)
    angles = np.arange(40)[:, None] * rate
    assert left.images[0].get_array().shape == (16, 40)
    inner = np.cos(angles[:, None] - angles).sum(-1)
    np.testing.assert_allclose(right.images[0].get_array().filled(0), inner, atol=1e-3)


def causal_mask(figure, names):
    (ax,) = figure.axes
    shown = ax.images[0].get_array().filled(0)
    np.testing.assert_array_equal(shown, names["causal_weights"].astype(float))
    assert (shown[np.triu_indices(8, 1)] == 0).all()


def cost(figure, names):
    (ax,) = figure.axes
    n = np.array([16, 64, 256, 1024, 4096])
    found = labeled(ax)
    assert list(found) == ["scores and outputs", "projections", "n = 2 d"]
    np.testing.assert_allclose(found["scores and outputs"], 2 * n**2 * 64, rtol=0.05)
    np.testing.assert_allclose(found["projections"], 4 * n * 64**2)
    assert set(ax.lines[2].get_xdata()) == {128}


def remedies(figure, names):
    (ax,) = figure.axes
    n = np.array([16, 64, 256, 1024, 4096])
    found = labeled(ax)
    assert list(found) == ["softmax attention", "linear attention", "n = d"]
    np.testing.assert_allclose(found["softmax attention"], 2 * n**2 * 64, rtol=0.05)
    np.testing.assert_allclose(found["linear attention"], 2 * n * 64**2, rtol=0.1)


# ---- 7: the cost of derivatives --------------------------------------------------------------


def two_modes(figure, names):
    (ax,) = figure.axes
    found = labeled(ax)
    outputs = np.asarray(ax.lines[0].get_xdata(), float)
    np.testing.assert_array_equal(found["forward"], 256 * (512 * 512 + 512 * outputs))
    np.testing.assert_array_equal(found["reverse"], outputs * (256 * 512 + 512 * 512))
    at = int(np.flatnonzero(outputs == 256)[0])
    assert found["forward"][at] == found["reverse"][at]


def steps_of_a_plan(figure, names):
    (ax,) = figure.axes
    words = [text.get_text() for text in ax.texts]
    place = [next(i for i, word in enumerate(words) if part in word) for part in ("8 rows", "8 columns", "product of")]
    assert place == sorted(place)
    assert all(any(word.endswith(size) for word in words) for size in ("784", "256", "64", "8"))


def graph_with_adjoints(figure, names):
    (ax,) = figure.axes
    words = [text.get_text() for text in ax.texts if text.get_text()]
    nodes = [i for i, word in enumerate(words) if word.startswith("$v_")]
    values = [float(words[i + 1]) for i in nodes]
    adjoints = [float(words[i + 2]) for i in nodes]
    np.testing.assert_allclose(values, [2, 5, 0.693, 10, -0.959, 10.693, 11.652])
    np.testing.assert_allclose(adjoints, [5.5, 1.716, 1, 1, -1, 1, 1])


def growth_of_operations(figure, names):
    (ax,) = figure.axes
    _shows(ax, {"one by one": names["separate"], "backpropagation": names["shared"]})


def memory(figure, names):
    (ax,) = figure.axes
    labels = ["function", "jvp", "gradient", "gradient, checkpoint='sqrt'"]
    _shows(ax, {label: names["curve"][label] for label in labels})
    last = {label: values[-1] for label, values in labeled(ax).items()}
    assert last["jvp"] < last["gradient, checkpoint='sqrt'"] < last["gradient"]


# ---- 8: generalization -----------------------------------------------------------------------


def bias_and_variance(figure, names):
    left, right = figure.axes
    x, y = names["x_train"], names["y_train"][0]
    expected = {}
    for degree in (1, 3, 12):
        expected[f"degree {degree}"] = np.polynomial.Legendre.fit(x, y, degree, domain=[-1, 1])(names["x_test"])
    _shows(left, expected | {"training set": y}, atol=1e-6)
    bias, variance = names["bias2"], names["variance"]
    _shows(right, {"bias squared": bias, "variance": variance, "sum": bias + variance})
    assert (bias[:3] > variance[:3]).all() and (bias[-3:] < variance[-3:]).all()


def shrinkage_and_error(figure, names):
    left, right = figure.axes
    s = names["s"]
    strength = names["strengths"][24]
    ridge = s**2 / (s**2 + strength)
    stopping = 1 - (1 - (s / s[0]) ** 2) ** (s[0] ** 2 / strength)
    _shows(left, {"ridge": ridge, "stopping": stopping})
    flat = [names["unregularized"]] * 2
    _shows(right, {"ridge": names["ridge_errors"], "stopping": names["stop_errors"], "least squares": flat})


def early_stopping(figure, names):
    (ax,) = figure.axes
    train, test = names["of_training"][0], names["of_test"][0]
    best = 5 * (1 + int(np.argmin(test)))
    assert list(labeled(ax)) == ["training labels", "test", "smallest test error"]
    np.testing.assert_array_equal(labeled(ax)["training labels"], train.astype(float))
    np.testing.assert_array_equal(labeled(ax)["test"], test.astype(float))
    assert set(ax.lines[2].get_xdata()) == {best}


def double_descent(figure, names):
    (ax,) = figure.axes
    found = labeled(ax)
    assert list(found) == ["test, median of 6 draws", "training, median", "20 points"]
    test = np.median([one.test for one in names["descents"]], 0)
    np.testing.assert_allclose(found["test, median of 6 draws"], test)
    assert test[-1] < test[:6].min() and not (found["training, median"][6:] > 1e-3).any()
    for line, one in zip(ax.lines, names["descents"], strict=False):
        np.testing.assert_array_equal(line.get_ydata(), one.test)


def depth(figure, names):
    (ax,) = figure.axes
    _shows(ax, {"median": [np.median(names["by_depth"][depth]) for depth in (0, 1, 2, 4, 8)]})
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["0", "1", "2", "4", "8"]
    for line, depth in zip(ax.lines, (0, 1, 2, 4, 8), strict=False):
        np.testing.assert_array_equal(line.get_ydata(), names["by_depth"][depth])


def memorization(figure, names):
    (ax,) = figure.axes
    words = ["true labels: training accuracy 100%, test accuracy 97%"]
    words += ["random labels: training accuracy 100%, test accuracy 11%"]
    _shows(ax, dict(zip(words, names["memorized"].losses, strict=True)))
    assert (names["memorized"].losses[1, 20:] > names["memorized"].losses[0, 20:]).all()


def margins(figure, names):
    left, right = figure.axes
    found = labeled(left)
    assert list(found) == ["class -1", "class +1", "descent", "largest margin"]
    for label, sign in (("class -1", -1), ("class +1", 1)):
        np.testing.assert_array_equal(found[label], names["separable"][names["side"] == sign][:, 1])
    for label in ("descent", "largest margin"):
        (line,) = (line for line in left.lines if line.get_label() == label)
        ends = np.column_stack(line.get_data())
        # Both separate the classes: all points of a class are on one side of the line.
        normal = np.array([-(ends[1] - ends[0])[1], (ends[1] - ends[0])[0]])
        signs = np.sign((names["separable"] - ends[0]) @ normal) * names["side"]
        assert len(set(signs)) == 1
    best = names["margin"].best.margin
    _shows(right, {"gradient descent": names["margin"].margins, "largest margin": [best, best]})
    assert right.get_ylim()[1] > best  # inside of the frame


def low_rank(figure, names):
    (ax,) = figure.axes
    one = names["completions"][0]
    labels = ["target", "1 factor", "2 factors", "3 factors"]
    _shows(ax, dict(zip(labels, [one.target_values, *one.singular_values], strict=True)))


def conserved(figure, names):
    (ax,) = figure.axes
    start, changes = names["factors"], {"kept": [], "lost": []}
    for end in names["ends"]:
        kept = lambda w: [w[i].T @ w[i] - w[i + 1] @ w[i + 1].T for i in range(2)]
        lost = lambda w: [w[i] @ w[i].T - w[i + 1].T @ w[i + 1] for i in range(2)]
        changes["kept"].append(abs(np.subtract(kept(end), kept(start))).max())
        changes["lost"].append(abs(np.subtract(lost(end), lost(start))).max())
    labels = ["$W_l^T W_l - W_{l+1} W_{l+1}^T$", "$W_l W_l^T - W_{l+1}^T W_{l+1}$"]
    _shows(ax, dict(zip(labels, changes.values(), strict=True)))


def mean_squares(figure, names):
    (ax,) = figure.axes
    medians = {f"c = {c}": np.median(names["logs"][c], 1) for c in (1, 2, 3)}
    _shows(ax, medians)
    assert medians["c = 1"][-1] < medians["c = 2"][-1] < medians["c = 3"][-1]


def batch_sizes(figure, names):
    (ax,) = figure.axes
    noise = names["noise"]
    found = list(labeled(ax).values())
    assert any(np.array_equal(values, noise.measured) for values in found)
    assert any(np.array_equal(values, noise.predicted) for values in found)


def selection(figure, names):
    (ax,) = figure.axes
    chosen = names["chosen"]
    bound = 0.5 + np.sqrt(np.log(2 * np.array(chosen.classifiers) / 0.05) / 200)
    expected = {"best, same test set": chosen.simulated, "bound": bound, "the same, new test set": chosen.fresh}
    _shows(ax, expected)
    assert (chosen.simulated < bound).all()


PICTURES: dict[str, list] = {
    "5_inductive_bias": [
        toeplitz,
        edges,
        moved_digits,
        receptive_fields,
        linear_recurrence,
        vanishing,
        path_graph,
        five_matrices,
        descriptors,
    ],
    "6_from_lookup_to_attention": [
        products_and_weights,
        sharpening,
        scales,
        trained_attention,
        encodings,
        causal_mask,
        cost,
        remedies,
    ],
    "7_derivative_cost": [two_modes, steps_of_a_plan, graph_with_adjoints, growth_of_operations, memory],
    "8_generalization": [
        bias_and_variance,
        shrinkage_and_error,
        early_stopping,
        double_descent,
        depth,
        memorization,
        margins,
        low_rank,
        conserved,
        mean_squares,
        batch_sizes,
        selection,
    ],
    "9_diffusion": [
        forward_process,
        conditional_mean,
        score,
        trained_nets,
        sampled_paths("random_paths"),
        sampled_paths("smooth_paths"),
        solvers,
        guidance,
        bent_paths,
        drawn_digits,
    ],
}
