"""Matplotlib axes for those who brought none: what every ``plot`` begins with."""

__all__ = ["axes_or_new"]


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
