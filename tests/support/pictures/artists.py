"""What the artists of a figure show."""

import numpy as np


def named(ax):
    """The lines of axes by their labels: the x and y values."""
    return {line.get_label(): tuple(map(np.asarray, line.get_data())) for line in ax.lines}


def labeled(ax):
    """The y values of the lines that have a label of their own: Matplotlib's begin with an underscore."""
    return {label: y for label, (_, y) in named(ax).items() if not label.startswith("_")}


def shows(ax, *labels):
    """The lines with these labels are those of the axes that are not private, in this order; returns their values."""
    lines = labeled(ax)
    assert list(lines) == list(labels)
    return list(lines.values())


def legend_of(figure, *labels):
    """The labels of the one legend of the figure."""
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(labels)


def images(count):
    """Axes with images of this number in all, and no lines."""

    def check(figure, names):
        assert sum(len(ax.images) for ax in figure.axes) == count and not any(ax.lines for ax in figure.axes)

    return check


def cells(*values):
    """The axes print these numbers, one for each entry of each array of the notebook."""

    def check(figure, names):
        for ax, value in zip(figure.axes, values, strict=True):
            value = np.asarray(eval(value, names))
            assert sorted(float(text.get_text()) for text in ax.texts) == sorted(value.ravel().tolist())

    return check
