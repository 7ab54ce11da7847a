"""The Matplotlib axes that a picture is drawn on, and the colors that all pictures share."""

__all__ = ["DASHES", "GRAY", "HATCHES", "MARKERS", "PALETTE", "axes_or_new"]

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
"""Blue, vermilion, green, purple, sky blue, orange, black: the colors of Okabe and Ito without yellow."""

DASHES = ("-", (0, (5, 2)), (0, (5, 1.5, 1, 1.5)), (0, (1.2, 1.2)), (0, (8, 2)), (0, (3, 1, 1, 1, 1, 1)), (0, (2, 3)))
MARKERS = ("o", "^", "s", "D", "v", "P", "X")
HATCHES = ("", "///", "...", "\\\\\\", "xx", "--", "oo")
"""One for each color, so that lines, points and bars differ in grayscale too."""

GRAY = "#666666"
"""The color of reference lines and annotations."""


def axes_or_new(ax=None, **options):
    """Return ``ax``, or new axes in a new figure where it is ``None``; only then is Matplotlib imported.

    Args:
        ax: axes or ``None``.
        options: those of ``matplotlib.pyplot.subplots``; the layout is constrained by default.

    >>> axes_or_new("the axes of the caller")
    'the axes of the caller'
    """
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(**{"layout": "constrained", **options})[1]
