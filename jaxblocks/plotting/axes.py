"""The Matplotlib axes that a picture is drawn on, and the colors that all pictures share."""

__all__ = [
    "DASHES",
    "GRAY",
    "HATCHES",
    "MARKERS",
    "MODES",
    "PALE",
    "PALETTE",
    "PALE_MODES",
    "axes_or_new",
    "in_bytes",
    "show_bytes",
]

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
"""Blue, vermilion, green, purple, sky blue, orange, black: the colors of Okabe and Ito without yellow."""

PALE = ("#CFE3F1", "#F7DAC6", "#CBEADF", "#F3DFEA", "#DDF0FB", "#FBEBC8", "#DDDDDD")
"""The same colors, for areas."""

GRAY = "#666666"
"""The color of reference lines and annotations."""

MODES: dict[str, str] = dict(zip(("forward", "reverse", "product", "known"), (*PALETTE[:3], GRAY), strict=True))
"""The colors of the two modes of differentiation, of products of matrices, and of matrices that need no computation."""

PALE_MODES: dict[str, str] = dict(zip(MODES, (*PALE[:3], PALE[6]), strict=True))

DASHES = ("-", (0, (5, 2)), (0, (5, 1.5, 1, 1.5)), (0, (1.2, 1.2)), (0, (8, 2)), (0, (3, 1, 1, 1, 1, 1)), (0, (2, 3)))
MARKERS = ("o", "^", "s", "D", "v", "P", "X")
HATCHES = ("", "///", "...", "\\\\\\", "xx", "--", "oo")
"""One for each color, so that lines, points and bars differ in grayscale too."""


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
    # pyplot chooses a backend when it is imported, which a program without plots does not need.
    import matplotlib.pyplot as plt

    return plt.subplots(**{"layout": "constrained", **options})[1]


def show_bytes(axis) -> None:
    """Let an axis have a logarithmic scale of base 2 with ticks such as 64 KiB.

    >>> ax = axes_or_new()
    >>> show_bytes(ax.xaxis)
    >>> ax.xaxis.get_major_formatter()(3 * 2.0**20)
    '3 MiB'
    """
    from matplotlib.ticker import LogLocator, NullLocator

    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_locator(LogLocator(base=2, numticks=6))
    axis.set_minor_locator(NullLocator())  # a logarithmic scale labels minor ticks too where it spans little
    axis.set_major_formatter(lambda size, place: in_bytes(size))


def in_bytes(size: float | int) -> str:
    """A number of bytes in words.

    >>> in_bytes(84), in_bytes(8704)
    ('84 B', '8.5 KiB')
    """
    unit = 0
    while size >= 1024 and unit < 4:
        size, unit = size / 1024, unit + 1
    return f"{size:.3g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}"
