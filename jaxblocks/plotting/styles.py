"""One style for all pictures: colors, dashes and markers, and the legend where there are labels."""

from typing import Any

from jaxblocks.plotting.axes import DASHES, PALETTE

__all__ = ["legend", "look", "style"]


def style() -> Any:
    """A context in which all plots have the style of `jaxblocks.plotting`: ``with style(): ...``.

    >>> import matplotlib
    >>> with style():
    ...     matplotlib.rcParams["image.cmap"]
    'cividis'
    """
    import matplotlib
    from cycler import cycler

    return matplotlib.rc_context(
        {
            "axes.prop_cycle": cycler(color=PALETTE) + cycler(linestyle=DASHES),
            "axes.spines.right": False,
            "axes.spines.top": False,
            "axes.titlesize": 10,
            "font.size": 9,
            "hatch.linewidth": 0.6,
            "image.cmap": "cividis",
            "legend.edgecolor": "none",
            "legend.fontsize": 8,
            "lines.linewidth": 1.6,
            "savefig.dpi": 150,
        }
    )


def look(i) -> dict[str, Any]:
    """Color and dash of the i-th line: repeated colors have other dashes."""
    return dict(color=PALETTE[i % len(PALETTE)], linestyle=DASHES[(i + i // len(PALETTE)) % len(DASHES)])


def legend(ax):
    """Draw a legend where there are labels."""
    if ax.get_legend_handles_labels()[1]:
        ax.legend(frameon=True, framealpha=0.85, edgecolor="none", fontsize=8)
