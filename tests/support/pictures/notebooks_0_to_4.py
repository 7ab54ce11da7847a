"""What the pictures of the notebooks 0 to 4 must show: for each notebook, one function for each figure, in order.

A function takes the figure and the names of the notebook, and compares what the artists show with these.
"""

import numpy as np
from artists import cells, images, legend_of, named, shows

# ---- 0: digits -------------------------------------------------------------------------------


def training_of_digits(figure, names):
    left, right = figure.axes
    steps, means = shows(left, "each step", "mean of the epoch")
    assert np.array_equal(steps, names["losses"]) and len(right.images) == 1
    assert np.allclose(means, steps.reshape(30, -1).mean(1))
    assert left.get_yscale() == "log" and means[-1] < 0.1 * means[0]


def wrong_digits(figure, names):
    titles = [ax.get_title() for ax in figure.axes]
    pairs = zip(names["test_y"][names["wrong"]], names["guesses"][names["wrong"]], strict=True)
    assert titles == [f"{true}, read as {guess}" for true, guess in pairs]


# ---- 1: networks and approximation -----------------------------------------------------------


def network_drawing(figure, names):
    edges = sum(len(part.get_segments()) for part in figure.axes[0].collections[:2])
    assert edges == 2 * 5 + 5
    assert [text.get_text() for text in figure.axes[0].texts] == ["2 inputs", "5 rectifiers", "1 output"]


def surfaces(count):
    def check(figure, names):
        assert len(figure.axes) == count and all(ax.name == "3d" for ax in figure.axes)

    return check


def activations(figure, names):
    """What is labeled a derivative is one: the quotient of neighboring values of the function."""
    legend_of(figure, "function", "derivative")
    assert [ax.get_title() for ax in figure.axes] == list(names["shown"])
    for ax in figure.axes:
        function, derivative = shows(ax, "function", "derivative")
        quotient = np.diff(function) / np.diff(names["grid"])
        smooth = abs(names["grid"][:-1]) > 0.05
        assert np.allclose(quotient[smooth], ((derivative[:-1] + derivative[1:]) / 2)[smooth], atol=2e-3)
        assert [line.get_linestyle() for line in ax.lines] == ["-", "--"]


def units_and_sum(figure, names):
    left, right = figure.axes
    drawn = shows(left, *(f"unit {i}" for i in (1, 2, 3, 4)))
    assert np.allclose(names["out"] @ np.array(drawn), named(right)["_sum"][1], atol=1e-4)
    assert np.allclose(named(right)["_kinks"][0], np.sort(-names["b"] / names["a"]))


def decomposed(figure, names):
    assert np.allclose(figure.axes[0].lines[1].get_xdata(), names["t"])


def interpolants(figure, names):
    legend_of(figure, "bound", "g", "net")
    for ax, N in zip(figure.axes, (4, 8, 16), strict=True):
        g, net = shows(ax, "g", "net")
        assert np.allclose(g, names["g"](names["unit"])) and np.isclose(abs(g - net).max(), names["errors"][N])
        assert len(ax.collections) == 1 and f"N = {N}" in ax.get_title()


# ---- 1b: depth and width ---------------------------------------------------------------------


def sawtooths(figure, names):
    for levels, ax in enumerate(figure.axes):
        (y,) = (y for _, y in named(ax).values())
        assert len(y) == 2**levels + 1 and set(abs(np.diff(y))) == {4.0}
        assert ax.get_title() == f"{levels} hidden layers, {2**levels - 1} kinks"


def two_partitions(figure, names):
    left, right = figure.axes
    assert left.get_title() == f"{names['shallow'].linear_count} linear regions"
    assert right.get_title() == "1,400 linear regions"


def exclusive_or(figure, names):
    legend_of(figure, "label 0", "label 1")
    for ax, places in zip(figure.axes, names["steps"], strict=True):
        drawn = np.concatenate([part.get_offsets() for part in ax.collections])
        assert sorted(map(tuple, drawn.tolist())) == sorted(map(tuple, np.asarray(places).tolist()))
    x, y = named(figure.axes[-1])["_boundary"]
    side = lambda point: np.sign(point[1] - np.interp(point[0], x, y))
    zero, one = (part.get_offsets() for part in figure.axes[-1].collections)
    assert {side(point) for point in zero} == {1} and {side(point) for point in one} == {-1}


# ---- 3: losses -------------------------------------------------------------------------------


def overfitting(figure, names):
    left, right = figure.axes
    shows(left, "degree 1", f"degree {names['sweep'].best}", "degree 12")
    assert np.array_equal(named(left)["_points"][0], names["data"][0])
    training, test = shows(right, "training", "test")
    assert (np.diff(training) <= 1e-12).all() and test.argmin() == names["sweep"].best and test[-1] > 3 * test.min()


def regression_losses(figure, names):
    for values, place in zip(shows(figure.axes[0], "MSE", "MAE", "Huber"), ("MSE", "MAE", "Huber"), strict=True):
        assert values.min() == 1 and np.isclose(names["guesses"][values.argmin()], names["best"][place])


def soft_maxima(figure, names):
    lse, maximum, mean = shows(figure.axes[0], "LSE(z, 0)", "max(z, 0)", "softmax-mean of (z, 0)")
    assert (lse >= maximum - 1e-6).all() and (maximum >= mean - 1e-6).all()


def six_divergences(figure, names):
    q = np.asarray(names["grid"], np.float64)
    left, right = figure.axes
    total, l1, l2 = shows(left, "total variation", "$L^1$", "$L^2$")
    forward, backward, cross = shows(right, "KL(P, Q)", "KL(Q, P)", "cross-entropy(P, Q)")
    assert np.allclose(total, abs(q - 0.3), atol=1e-5) and np.allclose(l1, 2 * total, atol=1e-5)
    assert np.allclose(l2, np.sqrt(2) * total, atol=1e-5)
    assert np.allclose(cross, -0.3 * np.log(q) - 0.7 * np.log(1 - q), atol=1e-4)
    assert np.allclose(forward, cross + 0.3 * np.log(0.3) + 0.7 * np.log(0.7), atol=1e-4)
    assert np.allclose(backward, q * np.log(q / 0.3) + (1 - q) * np.log((1 - q) / 0.7), atol=1e-4)


def two_losses(figure, names):
    left, right = figure.axes
    cross, squared = shows(left, "cross-entropy", "squared error")
    sigmoid = 1 / (1 + np.exp(-np.asarray(names["z"], np.float64)))
    assert np.allclose(cross, sigmoid - 1, atol=1e-5)
    assert np.allclose(squared, -2 * (1 - sigmoid) ** 2 * sigmoid, atol=1e-5)
    cross, squared = shows(right, "cross-entropy", "squared error")
    assert cross[12] > 0 and squared.max() < -9.9


def pseudo_labels(figure, names):
    for ax, guess in zip(figure.axes, ("from_two", "pseudo"), strict=True):
        counts = [len(part.get_offsets()) for part in ax.collections]
        assert counts == np.bincount(names[guess]).tolist() and len(named(ax)["_given"][0]) == 2


def training_and_confusion(figure, names):
    left, right, *_ = figure.axes
    _, validation = shows(left, "training, each step", "validation")
    assert np.array_equal(validation, names["history"].validation["loss"])
    numbers = [int(text.get_text()) for text in right.texts]
    assert sum(numbers) == len(names["test"][1]) and len(numbers) == np.count_nonzero(names["confusion"])


# ---- 4: gradient descent ---------------------------------------------------------------------


def two_paths(figure, names):
    right, left = (named(figure.axes[0])[label][0] for label in ("from 2", "from -1"))
    assert right[0] == 2 and np.isclose(right[-1], names["high"])
    assert left[0] == -1 and np.isclose(left[-1], names["low"])


def bounds(figure, names):
    labels = "f - min f", "bound, convex", "bound, sharp", "bound, strongly convex"
    legend_of(figure, *labels)
    for ax in figure.axes:
        lines = named(ax)
        gap = lines["f - min f"][1]
        for label in lines.keys() & set(labels[1:]):
            visible = np.isfinite(gap) & np.isfinite(lines[label][1])
            assert visible.sum() > 30 and (gap <= lines[label][1] * (1 + 1e-6))[visible].all()


def two_roots(figure, names):
    slow, fast = shows(figure.axes[0], "from 0 to 1", "from -0.6 to -1")
    assert slow[-1] > 1e-3 > 1e-14 > fast[-1]


def stability(figure, names):
    assert [ax.get_title() for ax in figure.axes[:2]] == ["heavy ball", "nesterov"]
    limit, momentum = named(figure.axes[0])["limit of stability"]
    assert np.allclose(limit, 2 * (1 + momentum))


def momentum_curves(figure, names):
    plain, ball = shows(figure.axes[0], "gradient descent", "momentum")
    assert ball[10] > plain[10] and ball[100] < plain[100] - 4


def optimizers(figure, names):
    labels = "gradient descent", "momentum", "Adam"
    legend_of(figure, *labels)
    plane, curves, *_ = figure.axes
    for label, values in zip(labels, shows(curves, *labels), strict=True):
        points, gaps = names["runs"][label]
        assert np.allclose(values, np.log10(np.maximum(gaps, 1e-16)), atol=1e-5)
        assert np.allclose(named(plane)[label], np.asarray(points[:25]).T, atol=1e-6)


PICTURES: dict[str, list] = {
    "0_digits": [images(1), training_of_digits, wrong_digits],
    "1_networks_and_approximation": [
        network_drawing,
        surfaces(6),
        activations,
        units_and_sum,
        decomposed,
        interpolants,
    ],
    "1b_depth_and_width": [sawtooths, surfaces(1), two_partitions, exclusive_or],
    "2_tensors_and_einsum": [
        cells(*(f"tensors[{i}]" for i in range(4))),
        cells("column", "row", "table"),
        cells("W"),
        images(1),
    ],
    "3_learning_losses_divergences": [
        overfitting,
        regression_losses,
        soft_maxima,
        six_divergences,
        two_losses,
        pseudo_labels,
        training_and_confusion,
    ],
    "4_gradient_descent_momentum_adam": [two_paths, bounds, two_roots, stability, momentum_curves, optimizers],
}
