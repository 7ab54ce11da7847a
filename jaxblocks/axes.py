"""Matplotlib axes for those who brought none, and the colors of all pictures: what every ``plot`` begins with."""

__all__ = ["GRAY", "PALETTE", "axes_or_new"]

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
"""Blue, vermilion, green, purple, sky, orange, black: those of Okabe & Ito that can be seen on paper."""

GRAY = "#666666"
"""Of lines that only help."""


def axes_or_new(ax=None, **options):
    """The axes that came, or new ones in a figure of their own; Matplotlib is imported only then.

    ``options`` are those of ``matplotlib.pyplot.subplots``; the layout is constrained unless they say otherwise.

    >>> axes_or_new("mine")
    'mine'
    """
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(**{"layout": "constrained", **options})[1]
