"""What every picture must have: names on its axes, lines that differ without color, text that can be read."""

import contextlib
import itertools
from collections.abc import Iterator

import numpy as np

PAGE = 6.5  # inches
SMALLEST = 6  # points


def problems(figure) -> list[str]:
    """What is wrong with a figure, one sentence for each fault."""
    figure.draw_without_rendering()  # the canvas of a figure without pyplot draws nothing
    found = []
    for number, ax in enumerate(figure.axes):
        if ax.get_label() == "<colorbar>":
            continue
        for fault in (*_names(ax), *_lines(ax), *_entries(ax), *_legend(ax)):
            found.append(f"axes {number} ({ax.get_title()!r}): {fault}")
    return found + small_texts(figure)


@contextlib.contextmanager
def saved_pictures(patch) -> Iterator[dict[str, list[str]]]:
    """What is wrong with each picture that a program saves: the faults by the name of the file."""
    from matplotlib.figure import Figure

    found, save = {}, Figure.savefig

    def record(figure, path, **options):
        found[path.name] = problems(figure)
        save(figure, path, **options)

    with patch.context() as patched:
        patched.setattr(Figure, "savefig", record)
        yield found


def _names(ax):
    """The axes of ``ax`` without a name; an axis may share the name of the axes with which it is shared."""
    if not ax.axison:
        return
    for which, shared in (("x", ax.get_shared_x_axes()), ("y", ax.get_shared_y_axes())):
        siblings = shared.get_siblings(ax)
        if not any(getattr(one, f"get_{which}label")() for one in siblings) and not _above(ax.figure, which):
            yield f"the {which} axis has no name"


def _above(figure, which):
    return getattr(figure, f"get_sup{which}label")()


def _lines(ax):
    """Pairs of labeled lines that have the same dashes and markers."""
    named = [line for line in ax.lines if not line.get_label().startswith("_")]
    for one, other in itertools.combinations(named, 2):
        if _look(one) == _look(other):
            yield f"{one.get_label()!r} and {other.get_label()!r} differ in color alone"


def _look(line):
    return line._unscaled_dash_pattern, line.get_marker(), line.get_linestyle() == "None"


def _entries(ax):
    """Pairs of entries of the legend that look the same without color."""
    legend = ax.get_legend()
    entries = zip(legend.legend_handles, legend.get_texts(), strict=True) if legend else ()
    for (one, a), (other, b) in itertools.combinations(entries, 2):
        if type(one) is type(other) and _entry(one) == _entry(other):
            yield f"the entries {a.get_text()!r} and {b.get_text()!r} of the legend look the same"


def _entry(handle):
    """Dashes and markers of a line; dashes, markers, hatch and shade of gray of other artists, where they have them."""
    if hasattr(handle, "get_marker"):
        return _look(handle)
    ask = lambda name: getattr(handle, f"get_{name}", lambda: None)()
    shades = np.reshape(() if ask("facecolor") is None else ask("facecolor"), (-1, 4))[:, :3] @ [0.3, 0.6, 0.1]
    markers = [path.vertices.tolist() for path in ask("paths") or ()]
    return str(ask("linestyle")), markers, ask("hatch"), shades.round(1).tolist()


def _legend(ax):
    """The labeled lines, the texts and the title that the legend covers."""
    legend = ax.get_legend()
    if legend is None:
        return
    box = legend.get_window_extent()
    for line in ax.lines:
        if line.get_label().startswith("_"):
            continue
        places = ax.transData.transform(np.column_stack(line.get_data()).astype(float))
        covered = box.contains
        if any(covered(*place) for place in places if np.isfinite(place).all()):
            yield f"the legend covers {line.get_label()!r}"
    for text in (*ax.texts, ax.title):
        if text.get_text() and text.get_visible() and box.overlaps(text.get_window_extent()):
            yield f"the legend covers the text {text.get_text()!r}"


def small_texts(figure) -> list[str]:
    """Text that is too small where the figure is as wide as a page."""
    scale = min(1, PAGE / figure.get_figwidth())
    texts = [text for text in figure.findobj(lambda artist: hasattr(artist, "get_fontsize")) if text.get_text()]
    small = {text.get_text() for text in texts if text.get_visible() and text.get_fontsize() * scale < SMALLEST - 1e-9}
    return [f"text too small at the width of a page: {sorted(small)}"] if small else []
