# ruff: noqa: RUF001
"""Drawing of the computational graph of a trace."""

import numpy as np

from jaxblocks.ad.traces.printing import number_of, text
from jaxblocks.ad.traces.tables import TraceNode
from jaxblocks.checks.errors import require
from jaxblocks.plotting.axes import GRAY, PALE, PALETTE, axes_or_new

__all__ = ["draw", "node_places", "node_sign"]

_RED = PALETTE[1]
_COLORS = {"input": PALE[0], "constant": PALE[6], "operation": PALE[5]}


def draw(table, ax=None, step: int | None = None):
    """Draw the computational graph of a `TraceTable` after ``step`` rows, or after all; returns the axes."""
    steps = len(table.primal) + len(table.adjoint)
    expected = f"step to be an integer from 0 to {steps}, the number of rows"
    require(step is None or 0 <= step <= steps, expected, step, f"pass step={steps} for all of them")
    places = node_places(table.nodes)
    size = [1.5 + 1.5 * len({place[axis] for place in places.values()}) for axis in (0, 1)]
    ax = axes_or_new(ax, figsize=(size[0], min(size[1], 9.0)))
    done = steps if step is None else step
    forward, backward = table.primal[:done], table.adjoint[: max(0, done - len(table.primal))]
    values = {row.node: text(row.value, 2) for row in forward}
    adjoints = {row.node: text(row.value, 2) for row in backward}
    now = (backward or forward)[-1].node if step else None  # the node of this step
    _draw_edges(ax, table.nodes, places)
    _draw_nodes(ax, table.nodes, places, values, adjoints, now)
    across, along = zip(*places.values(), strict=True)
    ax.set_xlim(min(across) - 0.6, max(across) + 0.6)
    ax.set_ylim(min(along) - 0.7, max(along) + 0.7)
    ax.set_axis_off()
    last = (backward or forward)[-1:] if step is not None else ()
    ax.set_title(str(last[0]).replace("$", r"\$") if last else "value and adjoint of every node", fontsize=9)
    return ax


def _draw_edges(ax, nodes, places) -> None:
    for node in nodes:
        for parent in dict.fromkeys(node.parents):
            others = [place for name, place in places.items() if name not in (node.name, parent)]
            bend = _bend(places[parent], places[node.name], others)
            ax.annotate(
                "",
                places[node.name],
                places[parent],
                arrowprops=dict(
                    arrowstyle="->",
                    color=GRAY,
                    shrinkA=17,
                    shrinkB=17,
                    connectionstyle=f"arc3,rad={bend}",
                ),
            )


def _draw_nodes(ax, nodes, places, values, adjoints, now) -> None:
    for node in nodes:
        x, y = places[node.name]
        kind = node.kind if node.kind == "input" or node.parents else "constant"  # an operation on numbers alone
        color = _COLORS[kind] if node.name in values else "white"
        ax.plot(x, y, "o", markersize=32, color=color, markeredgecolor="black", linestyle="none")
        if node.name == now:
            ax.plot(x, y, "o", markersize=37, color="none", markeredgecolor=_RED, linestyle="none")
        name = f"${node.name[0]}_{{{number_of(node.name)}}}$"
        ax.annotate(f"{name}\n{node_sign(node)}", (x, y), ha="center", va="center", fontsize=8)
        for words, offset, paint in ((values, -27, "black"), (adjoints, 27, _RED)):
            if node.name in words:
                # The background keeps an arrow that passes below a number from crossing it out.
                behind = dict(facecolor="white", edgecolor="none", alpha=0.85, pad=0.5)
                options = dict(
                    textcoords="offset points", ha="center", va="center", fontsize=8, color=paint, bbox=behind
                )
                ax.annotate(words[node.name], (x, y), (0, offset), **options)


def node_places(nodes) -> dict[str, tuple[float, float]]:
    """Columns by depth, with inputs and constants just before their first use; rows near those of the parents."""
    children: dict[str, list] = {node.name: [] for node in nodes}
    for node in nodes:
        for parent in node.parents:
            children[parent].append(node.level)
    columns: dict[int, list] = {}
    for node in nodes:
        level = node.level if node.kind == "operation" else min(children[node.name], default=1) - 1
        columns.setdefault(level, []).append(node)
    places: dict[str, tuple[float, float]] = {}
    for level in sorted(columns):
        column = columns[level]

        def height(node):
            above = [places[parent][1] for parent in node.parents if parent in places]
            return sum(above) / len(above) if above else 0.0

        ordered = sorted(column, key=height, reverse=True) if level else column
        middle = sum(map(height, column)) / len(column)
        for i, node in enumerate(ordered):
            places[node.name] = (float(level), middle + (len(column) - 1) / 2 - i)
    return places


def _bend(start, stop, others, clear=0.42) -> float:
    """The bend of an arrow that avoids other nodes: the first bend that does, or the best."""
    a, b, c = np.asarray(start), np.asarray(stop), np.reshape(others, (-1, 2))
    t = np.linspace(0.05, 0.95, 37)[:, None]
    across = np.array([b[1] - a[1], a[0] - b[0]])  # as in "arc3", the distance of the control point from the middle

    def distance(bend):
        way = (1 - t) ** 2 * a + 2 * t * (1 - t) * ((a + b) / 2 + bend * across) + t**2 * b
        return np.linalg.norm(way[:, None] - c[None], axis=-1).min(initial=clear)

    return max((0.0, 0.15, -0.15, 0.25, -0.25, 0.35, -0.35, 0.5, -0.5), key=distance)


_SIGNS = {
    "add": "+",
    "broadcast_in_dim": "spread",
    "convert_element_type": "as",
    "div": "/",
    "dot_general": "@",
    "integer_pow": "power",
    "log": "ln",
    "logistic": "σ",
    "mul": "×",
    "neg": "-",
    "reduce_sum": "sum",
    "select_n": "where",
    "sub": "-",
}


def node_sign(node: TraceNode) -> str:
    """The label of a node: the symbol of the operation, or the last key of an input's name."""
    words: str = _SIGNS.get(node.operation, node.operation)
    if node.kind == "input" and words.endswith("]"):
        words = words.rstrip("]'").rpartition("[")[2].lstrip("'")
    return words if len(words) <= 7 else words[:6] + "…"
