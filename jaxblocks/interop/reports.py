"""What a load of weights would do, from shapes alone: a table of params and tensors, and what helps where it fails."""

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple, TypeAlias

import jax.numpy as jnp
from tabulate import tabulate

from jaxblocks.checks.errors import public_name, require
from jaxblocks.checks.terminal import warn
from jaxblocks.core.selection import compiled_pattern
from jaxblocks.interop.files import Tensor
from jaxblocks.interop.layouts import keep, layout_of_leaf
from jaxblocks.interop.rules import (
    LEAVES,
    Plan,
    Rules,
    grouped,
    places_of,
    recurrent_cells,
    shape_after,
    shape_in_source,
    shape_of_copy,
    source_of,
)

__all__ = ["Match", "Report", "check_report", "report_of", "unused_rules"]

Status: TypeAlias = Literal[
    "matched", "ignored", "initial", "missing", "wrong shape", "wrong dtype", "left over", "unused"
]
_GOOD = ("matched", "ignored", "initial")


class Match(NamedTuple):
    """One row of a `Report`, in the result of `match_torch`.

    Attributes:
        status: ``"matched"``; ``"ignored"``, a tensor that has no param, such as a buffer that is computed here;
            ``"initial"``, state as ``net.init`` makes it, such as a cache; or what is wrong: ``"missing"``,
            ``"wrong shape"``, ``"wrong dtype"``, ``"left over"``, ``"unused"`` (a rule that matches no param).
        path: of the param.
        shape: of the param.
        source: the name of the tensor, with ``{i}`` for the copies of a `Repeat`.
        source_shape: of one such tensor.
        layout: the change of layout.
        note: what may help.

    >>> Match("missing", "out/bias", (3,)).status
    'missing'
    """

    status: Status
    path: str = ""
    shape: tuple[int, ...] | None = None
    source: str = ""
    source_shape: tuple[int, ...] | None = None
    layout: str = ""
    note: str = ""


class Report(NamedTuple):
    """What a load would do, from shapes alone, as a table: the result of `match_torch`.

    Attributes:
        rows: one `Match` for each param, and for each tensor that has no param.

    >>> Report((Match("matched", "out/kernel"), Match("missing", "out/bias"))).ok
    False
    """

    rows: tuple[Match, ...]

    @property
    def ok(self) -> bool:
        """Whether every param has its tensor and every tensor its param."""
        return not self.wrong

    @property
    def wrong(self) -> tuple[Match, ...]:
        """The rows that are not in order."""
        return tuple(row for row in self.rows if row.status not in _GOOD)

    def of(self, status: Status) -> tuple[Match, ...]:
        """The rows with this status."""
        return tuple(row for row in self.rows if row.status == status)

    def __repr__(self) -> str:
        return _table(self.rows)


def report_of(
    plans: Sequence[Plan],
    tensors: Mapping[str, Tensor],
    rules: Rules,
    *,
    ignored: Sequence[str] = (),
    unused: bool = True,
) -> Report:
    """The report; ``ignored`` are patterns of tensors without a param, ``unused`` is whether unused rules are wrong."""
    used = {name for plan in plans for name in plan.names if name in tensors}
    others = [name for name in tensors if name not in used]
    groups = {id(plan): group for group in grouped(plans) for plan in group}
    rows = [_row(plan, groups.get(id(plan), []), tensors, others) for plan in plans]
    # Names that are sought, among which the nearest one is advised for each tensor that is left over.
    wanted = [row.source for row in rows if row.status == "missing" and row.source]
    for name in others:
        is_ignored = any(fnmatchcase(name, pattern) for pattern in ignored)
        note = "no param" if is_ignored else _nearest(name, wanted)
        rows.append(Match("ignored" if is_ignored else "left over", "", None, name, tensors[name].shape, "", note))
    return Report((*rows, *(unused_rules(plans, rules) if unused else ())))


def unused_rules(plans: Sequence[Plan], rules: Rules) -> list[Match]:
    """The rules that match no param."""
    cells = recurrent_cells([plan.path for plan in plans])
    layers = [plan.path.rpartition("/")[0] for plan in plans]
    found = zip(plans, layers, strict=True)
    places = list(dict.fromkeys(place for plan, layer in found for place in (*places_of(layer, cells), plan.path)))
    rows = []
    for pattern, right in rules.items():
        compiled = compiled_pattern(pattern)
        if not any(compiled.fullmatch(f"{place}/" * bool(place)) for place in places):
            rows.append(Match("unused", pattern, None, source_of(right).name, None, "", _nearest(pattern, places)))
    return rows


def _row(plan: Plan, group: list[Plan], tensors, others) -> Match:
    row = Match("matched", plan.path, tuple(plan.leaf.shape), plan.source)
    if not plan.source:
        note = f"no rule has this path{_fitting(plan, tensors, others)}" if plan.is_weight else "initial state"
        return row._replace(status="missing" if plan.is_weight else "initial", note=note)
    missing = next((name for name in plan.names if name not in tensors), None)
    if missing is not None and not plan.is_weight:
        note = "counts as trained" if plan.is_statistic("updates") else "initial state"
        return row._replace(status="initial", source="", note=note)
    if missing is not None:
        return row._replace(status="missing", note=_about_missing(plan, missing, tensors, others))
    shape, found = shape_in_source(plan, group), [tensors[name] for name in plan.names]
    row = row._replace(layout=plan.layout.name + (f", part {plan.part}" if plan.part is not None else ""))
    for name, tensor in zip(plan.names, found, strict=True):
        row = row._replace(source_shape=tensor.shape)
        where = f"{name} " if name != plan.source else ""
        # The first copy that differs is reported: the others usually differ in the same way.
        if tensor.shape != shape:
            note = _better_layout(plan, tensor.shape, group) or f"{where}should be {shape}"
            return row._replace(status="wrong shape", note=note)
        if tensor.dtype.itemsize == 1 and jnp.issubdtype(tensor.dtype, jnp.floating):  # numbers without their scales
            return row._replace(status="wrong dtype", note=f"{where}is {tensor.dtype}: convert it with its scales")
        if _kind(tensor.dtype) != _kind(plan.leaf.dtype):
            return row._replace(status="wrong dtype", note=f"{where}is {tensor.dtype}, not {plan.leaf.dtype}")
    return row


def _fitting(plan: Plan, tensors: Mapping[str, Tensor], others: Sequence[str]) -> str:
    """What to write for a param without a rule: tensors without a param that have its shape, or that of one copy."""
    shape, last = plan.leaf.shape, plan.path.rpartition("/")[2]
    # A kernel without its axis of copies has at least two axes; a vector of this shape is something else.
    least = 2 if last.endswith("kernel") else 1
    shapes = {shape_after(layout_of_leaf(last, len(s)).save, s) for s in (shape, shape[1:]) if len(s) >= least}
    found = [name for name in others if tensors[name].shape in shapes]
    found = [name for name in found if name.endswith(LEAVES.get(last, last))] or found
    return f"; of its shape: {', '.join(found[:2])}{' ...' * (len(found) > 2)}" if found else ""


def _about_missing(plan: Plan, missing: str, tensors: Mapping[str, Tensor], others: Sequence[str]) -> str:
    """What may help where a tensor is missing."""
    module, near = missing.rpartition(".")[0], _nearest(missing, others)
    if module in tensors:
        return f"{module} is a tensor; for a layer name its module, {module.rpartition('.')[0]!r}"
    there = sum(name in tensors for name in plan.names)
    copies = f"no {missing}: {there} of {len(plan.names)} copies" if there else f"no {missing}"
    return "; ".join(filter(None, ("" if missing == plan.source else copies, near)))


def _better_layout(plan: Plan, shape: tuple[int, ...], group: list[Plan]) -> str:
    """What to write where a tensor has the shape of the param in another layout, or of one of its copies."""
    own = shape_of_copy(group or [plan])
    if plan.layout is not keep and shape == own:
        return "for a tensor of this shape write (name, keep)"
    if len(own) == len(shape) + 1 and not plan.copies:
        last = plan.path.rpartition("/")[2]
        is_copy = shape_after(layout_of_leaf(last, len(shape)).save, own[1:]) == shape
        return f"write {{i}} in the name: a tensor for each of {own[0]} copies" if is_copy else ""
    return ""


def _kind(dtype) -> str:
    kinds = {"real": jnp.floating, "integer": jnp.integer, "complex": jnp.complexfloating}
    return next((name for name, kind in kinds.items() if jnp.issubdtype(dtype, kind)), str(dtype))


def _nearest(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names[:500], 1, 0.6)
    return f"near {near[0]}" if near else ""


def _table(rows: Sequence[Match], most: int = 0) -> str:
    """The rows as a table, or the first of them."""
    headers, more = ["status", "param", "shape", "tensor", "shape", "layout", "note"], len(rows) - most
    rows = rows[:most] if most else rows
    text = lambda shape: "" if shape is None else str(tuple(shape))
    lines = [(r.status, r.path, text(r.shape), r.source, text(r.source_shape), r.layout, r.note) for r in rows]
    kept = [k for k in range(len(headers)) if k < 5 or any(str(line[k]) for line in lines)]
    table = tabulate([[line[k] for k in kept] for line in lines], [headers[k] for k in kept], disable_numparse=True)
    return f"{table}\n... and {more} more rows" if most and more > 0 else table


def check_report(report: Report, strict: bool = True, folder: Any = None, advice: str = "") -> None:
    """Raise a ``ValueError`` unless the report is in order; what is left over is a warning if not ``strict``.

    ``advice`` is added to the repair.
    """
    left_over = report.of("left over")
    bad = report.wrong if strict else tuple(row for row in report.wrong if row.status != "left over")
    if left_over and not strict:
        names = ", ".join(row.source for row in left_over[:20])
        more = f" and {len(left_over) - 20} more" if len(left_over) > 20 else ""
        warn(f"{public_name()} leaves out {len(left_over)} tensors: {names}{more}.")
    if bad:
        # Unused rules first: a wrong path of a rule is often the cause of the other rows.
        bad = tuple(sorted(bad, key=lambda row: row.status != "unused"))
        counts = Counter("unused rules" if row.status == "unused" else row.status for row in bad)
        got = f"{', '.join(f'{n} {status}' for status, n in counts.items())}, the first {bad[0].path or bad[0].source}"
        repair = "see the table below" + "; strict=False leaves out what is left over" * (strict and bool(left_over))
        try:
            expected = "a tensor for every param and a param for every tensor" + (f" of {folder}" if folder else "")
            require(False, expected, got, repair + (advice or _advice(report)))
        except ValueError as error:
            error.add_note(_table(bad, _MOST))
            raise


_MOST = 50  # rows of the table in an error


def _advice(report: Report) -> str:
    """What may help where much is wrong for the same reason."""
    with_rule = [row for row in report.rows if row.path and row.source and row.status != "unused"]
    if report.of("unused") and not with_rule:
        return f"; write paths of params, such as {report.rows[0].path}, on the left of the rules"
    # Names of single tensors, since a name of copies does not occur among the tensors as it is.
    missing = [row.source for row in report.of("missing") if row.source and "{" not in row.source]
    left_over = dict.fromkeys(row.source for row in report.of("left over"))
    prefixes = [name.removesuffix(missing[0]) for name in left_over if missing and name.endswith(f".{missing[0]}")]
    for prefix in prefixes:  # such as "module."
        if all(f"{prefix}{name}" in left_over for name in missing):
            return f"; the names of the tensors begin with {prefix!r}"
    # Most shapes differ: more likely sizes than rules are wrong.
    if 2 * len(report.of("wrong shape")) > len(with_rule) > 2:
        return "; the net may have other sizes than the weights"
    return ""
