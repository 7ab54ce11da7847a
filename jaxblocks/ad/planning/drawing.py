"""The picture of a plan: the chain of stages, and below it the steps that multiply their Jacobians."""

import math
from typing import Any

from jaxblocks.ad.planning.accounting import Step
from jaxblocks.ad.planning.plan import JacobianPlan
from jaxblocks.plotting.axes import GRAY, HATCHES, MODES, PALE, PALE_MODES, axes_or_new

__all__ = ["draw_plan"]

_CHAIN, _TALLEST = 1.2, 1.5  # the middle of the chain, and the height of its largest value
_ROW, _BAR = 0.85, 0.36  # the distance of two steps, and the height of a bar
_HATCHES = dict(zip(MODES, HATCHES, strict=False))  # the modes differ without color, also in the legend
_GAP = 0.06  # between neighbors
_WORDS = {
    "forward": "columns pushed (forward mode)",
    "reverse": "rows pulled (reverse mode)",
    "product": "two matrices multiplied",
    "known": "matrix known",
}


def draw_plan(plan: JacobianPlan, ax: Any = None) -> Any:
    """Draw the chain of a `JacobianPlan` and the order of its products; returns the axes."""
    from matplotlib.patches import Patch

    sizes = [plan.n_in, *(stage.n_out for stage in plan.stages)]
    ax = axes_or_new(ax, figsize=(max(6.0, 1.15 * len(sizes)), 2.6 + 0.5 * len(plan.steps)))
    small = min(1.0, 14 / len(sizes))  # the text of long chains is smaller
    _draw_chain(ax, plan, sizes, small)
    held: dict[tuple[int, int], float] = {}
    for i, (step, words) in enumerate(zip(plan.steps, plan.sweeps, strict=True)):
        height = -0.55 - _ROW * i
        for span in _operands(step):
            if span in held:
                middle = sum(span) / 2
                ends = [held.pop(span) - _BAR / 2, height + _BAR / 2]
                ax.plot([middle, middle], ends, color=GRAY, linestyle="-", linewidth=1, zorder=0)
        _draw_step(ax, step, height)
        look = dict(ha="left", va="bottom", fontsize=8, zorder=3, bbox=dict(facecolor="white", linewidth=0, pad=1))
        ax.text(0, height + _BAR / 2 + 0.04, f"{i + 1}. {words}", **look)
        held[step.first, step.last] = height
    used = [how for how in MODES if any(step.how == how for step in plan.steps)]
    keys = [
        Patch(facecolor=PALE_MODES[how], edgecolor=MODES[how], hatch=_HATCHES[how], label=_WORDS[how]) for how in used
    ]
    ax.set(xlim=(-0.3, max(1, len(plan.stages)) + 0.3), ylim=(-0.9 - _ROW * (len(plan.steps) - 1), 2.4))
    ax.set_axis_off()
    ax.set_title(_title(plan), fontsize=10)
    ax.legend(handles=keys, loc="upper center", bbox_to_anchor=(0.5, 0), ncols=2, frameon=False, fontsize=8)
    return ax


def _draw_chain(ax, plan: JacobianPlan, sizes: list[int], small: float) -> None:
    """The values as vertical bars, and the stages as trapezoids between them."""
    largest = max(*sizes, 1)
    tall = [max(0.1, _TALLEST * math.sqrt(size / largest)) for size in sizes]
    for i, stage in enumerate(plan.stages):
        x, half = [i + _GAP, i + 1 - _GAP], [tall[i] / 2, tall[i + 1] / 2]
        corners = dict(y1=[_CHAIN - h for h in half], y2=[_CHAIN + h for h in half])
        ax.fill_between(x, **corners, color=PALE[6], linewidth=0)
        words = f"{stage.name}\n{stage.kind}" if small == 1 and min(half) > 0.15 else stage.name
        ax.text(i + 0.5, _CHAIN, words, ha="center", va="center", fontsize=8 * small)
    ax.vlines(range(len(sizes)), [_CHAIN - h / 2 for h in tall], [_CHAIN + h / 2 for h in tall], color="black", lw=2.5)
    for i, size in enumerate(sizes):
        name = "$x$: " if i == 0 else "$f(x)$: " if i == len(sizes) - 1 else ""
        look = dict(ha="center", va="bottom", fontsize=8 * small)
        ax.text(i, _CHAIN + tall[i] / 2 + 0.06, f"{name}{size:,}", **look)


def _draw_step(ax, step: Step, height: float) -> None:
    """The bar of a result, with the way of the seeds."""
    color = MODES[step.how]
    left, right = step.first + _GAP, max(step.last, step.first + 1) - _GAP
    look = dict(color=PALE_MODES[step.how], edgecolor=color, hatch=_HATCHES[step.how])
    ax.barh(height, right - left, _BAR, left, **look, zorder=1)
    ends = [(step.start + 2 * _GAP, height), (max(step.stop, step.start + 1) - 2 * _GAP, height)]
    if step.how == "product":
        ax.plot([step.start], [height], "X", color=color, markersize=8, zorder=2)
    elif step.how in ("forward", "reverse"):
        tail, tip = ends if step.how == "forward" else ends[::-1]
        arrow = dict(arrowstyle="-|>", color=color, linewidth=2.5, shrinkA=0, shrinkB=0)
        ax.annotate("", tip, tail, arrowprops=arrow, zorder=2)


def _operands(step: Step) -> list[tuple[int, int]]:
    """The cuts of the results that a step uses."""
    if step.how == "product":
        return [(step.first, step.start), (step.start, step.last)]
    if step.how == "forward":
        return [(step.first, step.start)]
    return [(step.stop, step.last)]


def _title(plan: JacobianPlan) -> str:
    order = plan.bracketing if len(plan.bracketing) <= 30 else "a bracketing"
    how = {"mixed": order, "known": "a known matrix"}.get(plan.mode, f"{plan.mode} mode")
    words = f"{plan.n_out:,} by {plan.n_in:,}, {how}"
    others = {
        mode: operations
        for mode in ("forward", "reverse")
        if mode != plan.mode and (operations := plan.operations[mode]) is not None
    }
    chosen = plan.operations["chosen"]
    if not others or not chosen:
        return words
    other = min(others, key=lambda mode: others[mode])
    if others[other] < chosen:
        return f"{words}: {chosen / max(1, others[other]):.3g} times the operations of {other} mode"
    return f"{words}: 1/{others[other] / chosen:.3g} of the operations of {other} mode"
