r"""Weights by rules: which tensor of another library is which param, checked over shapes before anything is loaded.

Rules are a dict from paths of params (in the grammar of `jaxblocks.select`) to names of tensors::

    rules = {
        "stem/conv": "conv1",                                 # a layer: its kernel is conv1.weight, its bias conv1.bias
        "stage_*/first/body/conv_*": "layer*.0.conv*",        # what a * on the left matches replaces the * on the right
        "stage_*/first/body/norm_*": "layers.{*-1}.0.bn*",    # or a number less by one
        "stage_*/blocks/body/conv_*": "layer*.{i+1}.conv*",   # the copies of a Repeat are i = 0, 1, ...
        "towers/blocks/fc": "h.{j}.tower.{i}.fc",             # letters in the order of the alphabet: i is the outer one
        "blocks/mlp/up": ("h.{i}.mlp.c_fc", keep),            # with a layout other than that of PyTorch
        **merge_qkv("blocks/attention", "h.{i}.attn.c_attn"), # three params that are one tensor there
        "positions/embedding": "position_embedding",          # the path of a param: the whole name of its tensor
    }

The first rule that matches a path holds. In the name of a layer's tensors, ``{leaf}`` stands for the name that PyTorch
has for the param (``weight``, ``bias``, ``running_mean``, ``weight_ih`` ...); a name without it gets ``.{leaf}`` at its
end.
"""

import difflib
import functools
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from tabulate import tabulate

from jaxblocks.checks.errors import public_name, require
from jaxblocks.checks.expectations import checked
from jaxblocks.core.pairs import Layer, Params, StatefulLayer
from jaxblocks.core.selection import WILDCARD, compiled_pattern, paths
from jaxblocks.interop.files import Tensor, tensors_of
from jaxblocks.interop.layouts import Layout, keep, layout_of_leaf
from jaxblocks.interop.reading import has_nan, read_copies
from jaxblocks.sharding import Rule, shardings

__all__ = ["Match", "Report", "Rules", "Source", "load_torch", "match_torch", "merge_qkv", "save_torch"]


class Source(NamedTuple):
    """The right side of a rule in full; a name, or ``(name, layout)``, is short for it.

    Attributes:
        name: of the tensor, or of the module whose tensors are meant.
        layout: the change of layout, by default that of PyTorch's layers.
        part: the param is this part, along its last axis, of a tensor that several params share (see `merge_qkv`).

    >>> Source("h.{i}.attn.c_attn", part=0).part
    0
    """

    name: str
    layout: Layout | None = None
    part: int | None = None


Rules: TypeAlias = Mapping[str, str | tuple[str, Layout] | Source]
"""From paths of layers or of params to names of tensors."""

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


class _Plan(NamedTuple):
    """How one leaf is made: from which tensors, and by which layout. Without a rule there is no source."""

    path: str
    leaf: Any  # its shape and dtype
    is_state: bool
    source: str = ""  # with {i} for the copies
    names: Sequence[str] = ()  # in the order of the copies
    layout: Layout = keep
    part: int | None = None

    def is_statistic(self, *names: str) -> bool:
        """Whether it is one of the running statistics, which are state that has tensors."""
        return self.is_state and self.path.rpartition("/")[2] in names

    @property
    def is_weight(self) -> bool:
        """Whether it needs a tensor: params do, and the mean and the variance of running statistics."""
        return not self.is_state or self.is_statistic("mean", "variance")

    def __repr__(self) -> str:
        return f"{self.path} <- {self.source}"


@checked
def match_torch(
    net: Layer[Any] | StatefulLayer[Any], state_dict: Any, rules: Mapping[str, Any], *inputs: Any, **side: Any
) -> Report:
    """A report of what `load_torch` would do, with the same arguments; it reads shapes only.

    >>> net = MLP(5, 1)
    >>> state_dict = {
    ...     "0.weight": np.zeros((5, 2)),
    ...     "0.bias": np.zeros(5),
    ...     "2.weight": np.zeros((1, 5)),
    ... }
    >>> match_torch(net, state_dict, {"*": "*"}, jnp.zeros(2))
    status    param     shape    tensor    shape    layout
    --------  --------  -------  --------  -------  ---------
    matched   0/bias    (5,)     0.bias    (5,)     keep
    matched   0/kernel  (2, 5)   0.weight  (5, 2)   transpose
    missing   2/bias    (1,)     2.bias
    matched   2/kernel  (5, 1)   2.weight  (1, 5)   transpose
    """
    check_net(net)
    trees = jax.eval_shape(net.init, jax.random.key(0), *inputs, **side)
    return report_of(plans_of(net, trees, rules), tensors_of(state_dict), rules)


@checked
def load_torch(
    net: Layer[Any] | StatefulLayer[Any],
    state_dict: Any,
    rules: Mapping[str, Any],
    *inputs: Any,
    strict: bool = True,
    dtype: DTypeLike | None = None,
    mesh: Any = None,
    sharding: Rule | Sequence[Rule] = (),
    **side: Any,
) -> Params:
    """The params of a net from the weights of a PyTorch module (or of any library), by rules.

    Options are not weights: the net must have those of the module, such as ``epsilon`` of `BatchNorm`, 1e-5 in PyTorch.

    Args:
        net: the net.
        state_dict: ``module.state_dict()``, arrays by name, or the path of a file or folder (see `read_tensors`).
        rules: from paths of params to names of tensors, as explained at the top of `jaxblocks.interop.rules`.
        inputs, side: those of ``net.init``, or their shapes.
        strict: ``False`` warns where tensors are left over, instead of raising an error; a param without a tensor is
            always an error.
        dtype: of floating-point params, by default that of ``net.init``.
        mesh, sharding: the params are placed on this mesh, as they are read, by these rules, as in `jaxblocks.fit`.

    Returns:
        What ``net.init`` returns: the params, and for a net with state the pair of params and state. Running statistics
        count as trained; state that is no weight, such as a cache, is initial.

    Raises:
        ValueError: unless every param has a tensor of its shape, and every tensor a param; the message is the table of
            what is wrong. `match_torch` returns it as data.

    >>> net = MLP(5, 1)
    >>> state_dict = {
    ...     "0.weight": np.ones((5, 2)),
    ...     "0.bias": np.zeros(5),
    ...     "2.weight": np.ones((1, 5)),
    ... }
    >>> state_dict["2.bias"] = np.ones(1)
    >>> params = load_torch(net, state_dict, {"*": "*"}, jnp.zeros(2))
    >>> float(net.apply(params, jnp.ones(2))[0])
    11.0
    """
    check_net(net)
    trees = jax.eval_shape(net.init, jax.random.key(0), *inputs, **side)
    plans, tensors = plans_of(net, trees, rules), tensors_of(state_dict)
    check_report(report_of(plans, tensors, rules), strict)
    init = lambda key: net.init(key, *inputs, **side)
    return read_plans(plans, tensors, trees, dtype, placements(net, trees, mesh, sharding), init)


@checked
def save_torch(net: Layer[Any] | StatefulLayer[Any], params: Any, rules: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The inverse of `load_torch`: arrays by the names of the other library.

    Args:
        net: the net.
        params: what `load_torch` and ``net.init`` return: params, or for a net with state params and state.
        rules: those of `load_torch`.

    Raises:
        ValueError: for a param without a rule, a rule that matches no param, and params that have the same tensor but
            other values.

    >>> net = MLP(5, 1)
    >>> params = net.init(jax.random.key(0), jnp.zeros(2))
    >>> {name: x.shape for name, x in save_torch(net, params, {"*": "*"}).items()}
    {'0.bias': (5,), '0.weight': (5, 2), '2.bias': (1,), '2.weight': (1, 5)}
    """
    check_net(net)
    plans = plans_of(net, params, rules)
    for row in _unused(plans, rules):
        got = f"{row.path!r} {row.note}".strip()
        require(False, "rules that match params", got, "correct its path, or leave it out")
    return {name: one.read() for name, one in written(plans, params).items()}


@checked
def merge_qkv(path: str, name: str, *, layout: Layout | None = None) -> dict[str, Source]:
    """Rules for an `Attention` whose queries, keys and values are one map in the other library, in this order.

    Args:
        path: of the attention.
        name: of the merged map, such as ``"h.{i}.attn.c_attn"``, or ``"attn.in_proj_{leaf}"`` of
            ``torch.nn.MultiheadAttention``.
        layout: of its kernel.

    >>> sorted(merge_qkv("blocks/attention", "h.{i}.attn.c_attn"))
    ['blocks/attention/key', 'blocks/attention/query', 'blocks/attention/value']
    """
    return {
        f"{path}/{role}".strip("/"): Source(name, layout, part) for part, role in enumerate(("query", "key", "value"))
    }


# ---- from rules to plans ---------------------------------------------------------------------

_LEAVES = {
    "kernel": "weight",
    "scale": "weight",
    "embedding": "weight",
    "mean": "running_mean",
    "variance": "running_var",
    "updates": "num_batches_tracked",
    "negative_slope": "weight",
}
_RECURRENT_LEAVES = {
    "kernel": "weight_ih",
    "recurrent_kernel": "weight_hh",
    "bias": "bias_ih",
    "recurrent_bias": "bias_hh",
}
_COPY = re.compile(r"\{([a-z])(\+\d+)?\}")
_STATISTICS = ("mean", "variance", "updates")
_PLACE = re.compile(r"\{\*(?P<added>[+-]\d+)\}|" + WILDCARD.pattern)  # of a wildcard in a name


def check_net(net) -> None:
    """Raise a ``TypeError`` for what is not a net, such as the result of `load` as a whole."""
    repair = "write net, params, tokenizer = load(folder)" if hasattr(net, "net") else "pass a layer, such as Dense(3)"
    require(isinstance(net, Layer | StatefulLayer), "a net", net, repair, error=TypeError)


def plans_of(net: Layer[Any] | StatefulLayer[Any], trees: Any, rules: Rules) -> list[_Plan]:
    """A plan for each leaf of params (and of state), in the order of ``jax.tree.leaves``."""
    good = isinstance(rules, Mapping) and all(isinstance(pattern, str) for pattern in rules)
    require(good, "rules, a dict from paths to names of tensors", rules, error=TypeError)
    if isinstance(net, StatefulLayer):
        pair = isinstance(trees, tuple) and len(trees) == 2
        require(pair, "params and state of a net with state", trees, "pass (params, state)")
        all_paths, first_state = [*paths(trees[0]), *paths(trees[1])], len(paths(trees[0]))
    else:
        all_paths = [*paths(trees)]
        first_state = len(all_paths)
    # A recurrent cell has its own names in PyTorch; it is recognized by its recurrent kernel.
    recurrent = {path.rpartition("/")[0] for path in all_paths if path.endswith("recurrent_kernel")}
    compiled = [(compiled_pattern(pattern), source_of(right)) for pattern, right in rules.items()]
    return [
        _plan(path, leaf, number >= first_state, compiled, recurrent)
        for number, (path, leaf) in enumerate(zip(all_paths, jax.tree.leaves(trees), strict=True))
    ]


def _plan(path, leaf, is_state, compiled, recurrent) -> _Plan:
    layer, _, last = path.rpartition("/")
    # The first rule that matches holds: of the layer, or of the param itself.
    for pattern, source in compiled:
        name = source.name
        if found := pattern.fullmatch(f"{layer}/" * bool(layer)):
            leaves = _RECURRENT_LEAVES if layer in recurrent else _LEAVES
            name = _substituted(name if "{leaf}" in name else f"{name}.{{leaf}}", found)
            name = name.replace("{leaf}", leaves.get(last) or last)
        elif found := pattern.fullmatch(f"{path}/"):
            name = _substituted(name, found)
        else:
            continue
        letters = sorted({match[1] for match in _COPY.finditer(name)})
        # Each letter stands for a leading axis of a param that `Repeat` has stacked.
        fits = len(letters) <= len(leaf.shape)
        require(fits, f"an axis of {path} for each of the copies in {source.name!r}", leaf, "leave out {i}")
        layout = source.layout or layout_of_leaf(last, len(leaf.shape) - len(letters))
        names = _Names(name, letters, tuple(leaf.shape[: len(letters)]))
        return _Plan(path, leaf, is_state, name, names, layout, source.part)
    return _Plan(path, leaf, is_state)


class _Names(Sequence):
    """The names of the tensors of the copies, made on demand: a damaged configuration may state a huge number."""

    def __init__(self, name, letters, copies):
        self.name, self.letters, self.copies = name, letters, copies

    def __len__(self):
        return math.prod(self.copies)

    def __getitem__(self, number):
        if not 0 <= number < math.prod(self.copies):
            raise IndexError(number)
        places = {}
        for letter, size in zip(reversed(self.letters), reversed(self.copies), strict=True):
            # The last letter varies fastest, as in an array in row-major order.
            number, places[letter] = divmod(number, size)
        return _COPY.sub(lambda match: str(places[match[1]] + int(match[2] or 0)), self.name)


def source_of(right: Any) -> Source:
    """The right side of a rule in full."""
    if isinstance(right, str):
        return Source(right)
    good = isinstance(right, tuple) and 2 <= len(right) <= 3 and isinstance(right[0], str)
    good = good and (right[1] is None or isinstance(right[1], Layout))
    require(good, "a name, (name, layout) or a Source on the right of a rule", right, error=TypeError)
    return Source(*right)


def _substituted(name: str, found: re.Match) -> str:
    """The name with what the wildcards of the path matched in place of its own."""
    values, here = iter(found.groups()), WILDCARD.findall(name)
    repair = "write {i} for the copies of a Repeat"
    require(len(here) <= len(found.groups()), "no more wildcards in a name than in its path", repr(name), repair)

    def value(wildcard: re.Match) -> str:
        matched, added = next(values).strip("/").replace("/", "."), wildcard["added"]
        if added is None:
            return matched
        require(matched.isdecimal(), f"a number in place of the wildcard of {wildcard[0]}", repr(matched))
        return str(int(matched) + int(added))

    name = _PLACE.sub(value, name)
    # A wildcard that matched nothing leaves two dots, or one at an end.
    return re.sub(r"\.\.+", ".", name).strip(".")


# ---- from plans to a report ------------------------------------------------------------------


def report_of(
    plans: Sequence[_Plan],
    tensors: Mapping[str, Tensor],
    rules: Rules,
    *,
    ignored: Sequence[str] = (),
    unused: bool = True,
) -> Report:
    """The report; ``ignored`` are patterns of tensors without a param, ``unused`` is whether unused rules are wrong."""
    used = {name for plan in plans for name in _known(plan.names, tensors)}
    others = [name for name in tensors if name not in used]
    groups = {id(plan): group for group in _groups(plans) for plan in group}
    rows = [_row(plan, groups.get(id(plan), []), tensors, others) for plan in plans]
    if unused:  # the rules are those of the user
        rows = [_with_later_rule(row, rules) if row.status == "missing" and row.source else row for row in rows]
    # Names that are sought, among which the nearest one is advised for each tensor that is left over.
    wanted = [row.source for row in rows if row.status == "missing" and row.source]
    for name in others:
        is_ignored = any(fnmatchcase(name, pattern) for pattern in ignored)
        note = "no param" if is_ignored else _nearest(name, wanted)
        rows.append(Match("ignored" if is_ignored else "left over", "", None, name, tensors[name].shape, "", note))
    return Report((*rows, *(_unused(plans, rules) if unused else ())))


def _with_later_rule(row: Match, rules: Rules) -> Match:
    """The row of a missing tensor, with the next rule that has its path, if there is one."""
    layer = row.path.rpartition("/")[0]
    places = f"{layer}/" * bool(layer), f"{row.path}/"
    fits = [pattern for pattern in rules if any(map(compiled_pattern(pattern).fullmatch, places))]
    if len(fits) < 2:
        return row
    note = f"by the rule {fits[0]!r}, the first with this path; {fits[1]!r} is another"
    return row._replace(note="; ".join(filter(None, (row.note, note))))


def _unused(plans: Sequence[_Plan], rules: Rules) -> list[Match]:
    """The rules that match no param."""
    places = list(dict.fromkeys(place for plan in plans for place in (plan.path.rpartition("/")[0], plan.path)))
    rows = []
    for pattern, right in rules.items():
        compiled = compiled_pattern(pattern)
        if not any(compiled.fullmatch(f"{place}/" * bool(place)) for place in places):
            rows.append(Match("unused", pattern, None, source_of(right).name, None, "", _nearest(pattern, places)))
    return rows


def _known(names: Sequence[str], tensors):
    """The names up to the first that does not exist."""
    for name in names:
        if name not in tensors:
            return
        yield name


def _groups(plans: Sequence[_Plan]) -> list[list[_Plan]]:
    """The plans with a source, each alone or with the other parts of the same tensors, in the order of the parts."""
    groups: dict[Any, list[_Plan]] = {}
    for number, plan in enumerate(plans):
        if plan.source:
            # Parts of the same tensors: the same name, copies and layout.
            merged = (plan.source, plan.names.copies, plan.layout.name)  # type: ignore[attr-defined]
            groups.setdefault(number if plan.part is None else merged, []).append(plan)
    return [sorted(group, key=lambda plan: plan.part or 0) for group in groups.values()]


def _row(plan: _Plan, group: list[_Plan], tensors, others) -> Match:
    row = Match("matched", plan.path, tuple(plan.leaf.shape), plan.source)
    if not plan.source:
        note = f"no rule has this path{_fitting(plan, tensors, others)}" if plan.is_weight else "initial state"
        return row._replace(status="missing" if plan.is_weight else "initial", note=note)
    missing = next((name for name in plan.names if name not in tensors), None)
    if missing is not None and not plan.is_weight:
        note = "counts as one update" if plan.is_statistic("updates") else "initial state"
        return row._replace(status="initial", source="", note=note)
    if missing is not None:
        return row._replace(status="missing", note=_about_missing(plan, missing, tensors, others))
    shape, found = _shape_in_source(plan, group), [tensors[name] for name in plan.names]
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


def _fitting(plan: _Plan, tensors: Mapping[str, Tensor], others: Sequence[str]) -> str:
    """What to write for a param without a rule: tensors without a param that have its shape, or that of one copy."""
    shape, last = plan.leaf.shape, plan.path.rpartition("/")[2]
    # A kernel without its axis of copies has at least two axes; a vector of this shape is something else.
    least = 2 if last.endswith("kernel") else 1
    shapes = {_shape_after(layout_of_leaf(last, len(s)).save, s) for s in (shape, shape[1:]) if len(s) >= least}
    found = [name for name in others if tensors[name].shape in shapes]
    found = [name for name in found if name.endswith(_LEAVES.get(last, last))] or found
    return f"; of its shape: {', '.join(found[:2])}{' ...' * (len(found) > 2)}" if found else ""


def _about_missing(plan: _Plan, missing: str, tensors: Mapping[str, Tensor], others: Sequence[str]) -> str:
    """What may help where a tensor is missing."""
    module, near = missing.rpartition(".")[0], _nearest(missing, others)
    if module in tensors:
        return f"{module} is a tensor; for a layer name its module, {module.rpartition('.')[0]!r}"
    there = sum(1 for _ in _known(plan.names, tensors))
    copies = f"no {missing}: {there} of {len(plan.names)} copies" if there else f"no {missing}"
    return "; ".join(filter(None, ("" if missing == plan.source else copies, near)))


def _better_layout(plan: _Plan, shape: tuple[int, ...], group: list[_Plan]) -> str:
    """What to write where a tensor has the shape of the param in another layout, or of one of its copies."""
    own = _shape_of_copy(group or [plan])
    if plan.layout is not keep and shape == own:
        return "for a tensor of this shape write (name, keep)"
    if len(own) == len(shape) + 1 and not plan.names.copies:  # type: ignore[attr-defined]
        last = plan.path.rpartition("/")[2]
        is_copy = _shape_after(layout_of_leaf(last, len(shape)).save, own[1:]) == shape
        return f"write {{i}} in the name: a tensor for each of {own[0]} copies" if is_copy else ""
    return ""


def _shape_of_copy(group: list[_Plan]) -> tuple[int, ...]:
    """The shape of one copy of a param, or of the parts of a group side by side."""
    # Without the axes of copies.
    shapes = [plan.leaf.shape[len(plan.names.copies) :] for plan in group]  # type: ignore[attr-defined]
    return shapes[0] if group[0].part is None else (*shapes[0][:-1], sum(shape[-1] for shape in shapes))


def _shape_in_source(plan: _Plan, group: list[_Plan]) -> tuple[int, ...]:
    """The shape that the tensor of one copy should have."""
    shape = _shape_of_copy(group or [plan])
    layout = plan.layout
    try:
        saved = _shape_after(layout.save, shape)
        loaded = _shape_after(layout.load, saved)
    except (TypeError, ValueError, IndexError) as error:
        require(False, f"the layout {layout.name} to fit {plan.path}", f"{shape}: {error}"[:200], "pass another layout")
        raise AssertionError from None
    expected = f"load of the layout {layout.name} to make {shape} of {saved} for {plan.path}"
    require(loaded == shape, expected, f"{loaded}", "make it the inverse of save")
    return saved


def _shape_after(function: Callable, shape: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return jax.eval_shape(function, jax.ShapeDtypeStruct(shape, jnp.float32)).shape
    except jax.errors.TracerArrayConversionError:  # a function of NumPy
        return function(np.broadcast_to(np.float32(0), shape)).shape


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
    kept = [k for k in range(len(headers)) if k < 5 or any(line[k] for line in lines)]
    table = tabulate([[line[k] for k in kept] for line in lines], [headers[k] for k in kept], disable_numparse=True)
    return f"{table}\n... and {more} more rows" if most and more > 0 else table


def check_report(report: Report, strict: bool = True, folder: Any = None) -> None:
    """Raise a ``ValueError`` unless the report is in order; what is left over is a warning if not ``strict``."""
    left_over = report.of("left over")
    bad = report.wrong if strict else tuple(row for row in report.wrong if row.status != "left over")
    if left_over and not strict:
        names = ", ".join(row.source for row in left_over[:20])
        more = f" and {len(left_over) - 20} more" if len(left_over) > 20 else ""
        warnings.warn(f"{public_name()} leaves out {len(left_over)} tensors: {names}{more}.", stacklevel=4)
    if bad:
        # Unused rules first: a wrong path of a rule is often the cause of the other rows.
        bad = tuple(sorted(bad, key=lambda row: row.status != "unused"))
        counts = Counter("unused rules" if row.status == "unused" else row.status for row in bad)
        got = f"{', '.join(f'{n} {status}' for status, n in counts.items())}, the first {bad[0].path or bad[0].source}"
        repair = "see the table below" + "; strict=False leaves out what is left over" * bool(left_over)
        try:
            expected = "a tensor for every param and a param for every tensor" + (f" of {folder}" if folder else "")
            require(False, expected, got, repair + _advice(report))
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


# ---- from plans to params, and back ----------------------------------------------------------


def read_plans(
    plans: Sequence[_Plan],
    tensors: Mapping[str, Tensor],
    trees: Any,
    dtype: DTypeLike | None,
    places: Sequence[Any],
    init: Callable[[Any], Any],
) -> Any:
    """The trees with values, read one param at a time and put at their places; ``init(key)`` makes other state."""
    made: dict[int, Any] = {}
    with_nan: list[str] = []
    numbers = {id(plan): number for number, plan in enumerate(plans)}
    for group in _groups(plans):
        if any(name not in tensors for name in group[0].names):  # state: the report has accepted it
            continue
        # A merged tensor is read once for all of its parts.
        shapes = [(len(plan.names), *_shape_of_copy([plan])) for plan in group]
        parts = read_copies(group[0].names, tensors, group[0].layout, shapes, _dtype(group[0].leaf.dtype, dtype))
        if any(map(has_nan, parts)):
            with_nan.append(group[0].source)
        for plan, values in zip(group, parts, strict=True):
            values = values.reshape(plan.leaf.shape)
            values = np.maximum(values, 1) if plan.is_statistic("updates") else values  # statistics are trained
            made[numbers[id(plan)]] = jax.device_put(values, places[numbers[id(plan)]])
        # Transfers are asynchronous: without waiting, the host copies of all params would exist at the same time.
        jax.block_until_ready([made[numbers[id(plan)]] for plan in group])
        del parts, values
    if with_nan:
        more = f" and {len(with_nan) - 5} more" if len(with_nan) > 5 else ""
        warnings.warn(f"{public_name()} found NaN in {', '.join(with_nan[:5])}{more}.", stacklevel=4)
    if any(plan.is_state and number not in made for number, plan in enumerate(plans)):
        state = jax.jit(lambda key: init(key)[1])(jax.random.key(0))
        begun = [*jax.tree.leaves(trees[0]), *jax.tree.leaves(state)]
        for number, plan in enumerate(plans):
            if number not in made:
                value = jnp.ones_like(begun[number]) if plan.is_statistic("updates") else begun[number]
                made[number] = jax.device_put(value, places[number])
    return jax.tree.unflatten(jax.tree.structure(trees), [made[number] for number in range(len(plans))])


def written(plans: Sequence[_Plan], trees: Any) -> dict[str, Tensor]:
    """The tensors of the other library, made when they are read."""
    leaves = dict(zip(map(id, plans), jax.tree.leaves(trees), strict=True))
    lost = [plan.path for plan in plans if not plan.source and plan.is_weight]
    require(not lost, "a rule for every param", f"none for {', '.join(lost[:5])}", "add rules for their paths")
    made: dict[str, list[Tensor]] = {}
    owners: dict[str, list[str]] = {}
    for group in _groups(plans):
        # Other state (caches, carries) has no tensor elsewhere.
        if group[0].is_state and not group[0].is_statistic(*_STATISTICS):
            continue
        counts = group[0].is_statistic("updates")  # int64 in PyTorch
        shape, dtype = _shape_in_source(group[0], group), np.dtype(np.int64 if counts else leaves[id(group[0])].dtype)
        for k, name in enumerate(group[0].names):
            tensor = Tensor(shape, dtype, functools.partial(_merged, group, leaves, k, dtype))
            made.setdefault(name, []).append(tensor)
            owners.setdefault(name, []).extend(plan.path for plan in group)
    return {name: _shared(name, tensors, owners[name]) for name, tensors in made.items()}


def _shared(name: str, tensors: list[Tensor], owners: list[str]) -> Tensor:
    """One tensor for all params whose rules name it, such as tied weights; their values must be equal."""
    first, *others = tensors

    def values():
        array = first.read()
        same = all(np.array_equal(array, other.read()) for other in others)
        require(same, f"equal params for the one tensor {name}", f"other values of {', '.join(owners)}")
        return array

    return first._replace(read=values) if others else first


def _merged(group: list[_Plan], leaves: Mapping[int, Any], k: int, dtype: np.dtype) -> np.ndarray:
    """The tensor of the k-th copy, from its param or its parts."""
    parts = []
    for plan in group:
        leaf = np.asarray(leaves[id(plan)])
        parts.append(leaf.reshape(len(plan.names), *leaf.shape[len(plan.names.copies) :])[k])  # type: ignore[attr-defined]
    merged = parts[0] if len(parts) == 1 else np.concatenate(parts, -1)
    return np.array(group[0].layout.save(merged), dtype, order="C")


def _dtype(own, wanted: DTypeLike | None) -> np.dtype:
    """The dtype of a param: that of ``init``, or the one that is wanted where it is a floating-point number."""
    floating = jnp.issubdtype(own, jnp.floating)
    dtype = np.dtype(wanted if floating and wanted is not None else own)
    # An integer dtype would round the params.
    is_kept = jnp.issubdtype(dtype, jnp.floating) == floating
    require(is_kept, "a dtype of floating-point numbers", f"dtype={dtype}", "pass dtype=jnp.bfloat16")
    known = dtype == jax.dtypes.canonicalize_dtype(dtype)
    repair = 'call jax.config.update("jax_enable_x64", True)'
    require(known, f"a dtype that JAX has, {dtype}", "64 bits switched off", repair)
    return dtype


def placements(
    net: Layer[Any] | StatefulLayer[Any], trees: Any, mesh: Any, sharding: Rule | Sequence[Rule]
) -> Sequence[jax.sharding.Sharding | None]:
    """The sharding of each leaf of params (and of state, which is replicated); ``None`` without a mesh."""
    require(mesh is not None or not sharding, "a mesh with sharding", "none", "pass mesh=jax.make_mesh(...)")
    if mesh is None:
        return [None] * len(jax.tree.leaves(trees))
    params, state = trees if isinstance(net, StatefulLayer) else (trees, ())
    return [*jax.tree.leaves(shardings(params, mesh, sharding)), *jax.tree.leaves(shardings(state, mesh))]
