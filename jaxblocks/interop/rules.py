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
end. A whole LSTM, GRU or RNN of PyTorch, of several layers or of two directions, is one rule too:
``{"encoder": "rnn"}`` loads ``rnn.weight_ih_l0``, ``rnn.weight_ih_l0_reverse``, ``rnn.weight_ih_l1``, ... (`save_torch`
writes the names of single cells, unless the rule is ``"rnn.{leaf}_l0"``).
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import checked
from jaxblocks.core.pairs import Layer, StatefulLayer
from jaxblocks.core.selection import WILDCARD, compiled_pattern, paths
from jaxblocks.interop.layouts import Layout, keep, layout_of_leaf

__all__ = [
    "LEAVES",
    "Plan",
    "Rules",
    "Source",
    "grouped",
    "merge_qkv",
    "of_recurrent_modules",
    "places_of",
    "plans_of",
    "recurrent_cells",
    "shape_after",
    "shape_in_source",
    "shape_of_copy",
    "source_of",
]


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


class Plan(NamedTuple):
    """How one leaf is made: from which tensors, and by which layout. Without a rule there is no source."""

    path: str
    leaf: Any  # its shape and dtype
    is_state: bool
    source: str = ""  # with {i} for the copies
    names: tuple[str, ...] = ()  # in the order of the copies
    copies: tuple[int, ...] = ()  # their numbers, along the leading axes of the leaf
    layout: Layout = keep
    part: int | None = None

    def is_statistic(self, *names: str) -> bool:
        """Whether it is one of the running statistics, which are state that has tensors."""
        return self.is_state and self.path.rpartition("/")[2] in names

    @property
    def is_weight(self) -> bool:
        """Whether it needs a tensor: params do, and the mean and the variance of running statistics."""
        return not self.is_state or self.is_statistic("mean", "variance")


LEAVES = {
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
_PLACE = re.compile(r"\{\*(?P<added>[+-]\d+)\}|" + WILDCARD.pattern)  # of a wildcard in a name


def plans_of(net: Layer[Any] | StatefulLayer[Any], trees: Any, rules: Rules) -> list[Plan]:
    """A plan for each leaf of params (and of state), in the order of ``jax.tree.leaves``."""
    if isinstance(net, StatefulLayer):
        pair = isinstance(trees, tuple) and len(trees) == 2
        require(pair, "params and state of a net with state", trees, "pass (params, state)")
        all_paths, first_state = [*paths(trees[0]), *paths(trees[1])], len(paths(trees[0]))
    else:
        all_paths = [*paths(trees)]
        first_state = len(all_paths)
    recurrent = recurrent_cells(all_paths)
    compiled = [(compiled_pattern(pattern), source_of(right)) for pattern, right in rules.items()]
    return [
        _plan(path, leaf, number >= first_state, compiled, recurrent)
        for number, (path, leaf) in enumerate(zip(all_paths, jax.tree.leaves(trees), strict=True))
    ]


def recurrent_cells(paths: Sequence[str]) -> set[str]:
    """The recurrent cells, which have their own names in PyTorch; they are recognized by their recurrent kernels.

    >>> recurrent_cells(["encoder/0/kernel", "encoder/0/recurrent_kernel", "out/kernel"])
    {'encoder/0'}
    """
    return {path.rpartition("/")[0] for path in paths if path.endswith("recurrent_kernel")}


def places_of(layer: str, recurrent: set[str]) -> list[str]:
    """The paths whose rules cover a layer: its own, and for a cell also that of the module with all cells.

    >>> places_of("encoder/0", {"encoder/0"}), places_of("out", {"encoder/0"})
    (['encoder/0', 'encoder'], ['out'])
    """
    return [layer, layer.rpartition("/")[0]] if layer in recurrent else [layer]


def _plan(path, leaf, is_state, compiled, recurrent) -> Plan:
    layer, _, last = path.rpartition("/")
    for pattern, source in compiled:
        name = source.name
        matches = (pattern.fullmatch(f"{place}/" * bool(place)) for place in places_of(layer, recurrent))
        if found := next(filter(None, matches), None):
            leaves = _RECURRENT_LEAVES if layer in recurrent else LEAVES
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
        copies = tuple(leaf.shape[: len(letters)])
        return Plan(path, leaf, is_state, name, _names(name, letters, copies), copies, layout, source.part)
    return Plan(path, leaf, is_state)


def of_recurrent_modules(plans: list[Plan], tensors: Mapping[str, Any]) -> list[Plan]:
    """The plans with the names of whole recurrent modules of PyTorch, where the tensors have these.

    A cell has ``weight_ih``. In a module of several layers, of one or of two directions, it is ``weight_ih_l0`` of the
    first layer and ``weight_ih_l0_reverse`` of its backward direction. Layers are counted in the order of their paths.
    """
    counts: Counter = Counter()
    found = []
    for plan in plans:
        layer, _, last = plan.path.rpartition("/")
        if last in _RECURRENT_LEAVES and plan.source not in tensors and f"{plan.source}_l0" in tensors:
            direction = "_reverse" * (layer.rpartition("/")[2] == "backward")
            name = f"{plan.source}_l{counts[plan.source, direction]}{direction}"
            counts[plan.source, direction] += 1
            plan = plan._replace(source=name, names=(name,), copies=())
        found.append(plan)
    return found


def _names(name: str, letters: list[str], copies: tuple[int, ...]) -> tuple[str, ...]:
    """The names of the tensors of the copies; the last letter varies fastest, as in an array in row-major order."""

    def of_copy(place):
        numbers = dict(zip(letters, place, strict=True))
        return _COPY.sub(lambda match: str(numbers[match[1]] + int(match[2] or 0)), name)

    return tuple(map(of_copy, np.ndindex(*copies)))


def source_of(right: Any) -> Source:
    """The right side of a rule in full."""
    if isinstance(right, str):
        return Source(right)
    good = isinstance(right, tuple) and 2 <= len(right) <= 3 and isinstance(right[0], str)
    good = good and (right[1] is None or isinstance(right[1], Layout))
    repair = 'write for instance "fc", or ("fc", keep)'
    require(good, "a name, (name, layout) or a Source on the right of a rule", right, repair, error=TypeError)
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
        expected, repair = f"a number in place of the wildcard of {wildcard[0]}", f"write * in place of {wildcard[0]}"
        require(matched.isdecimal(), expected, repr(matched), repair)
        return str(int(matched) + int(added))

    name = _PLACE.sub(value, name)
    # A wildcard that matched nothing leaves two dots, or one at an end.
    return re.sub(r"\.\.+", ".", name).strip(".")


def grouped(plans: Sequence[Plan]) -> list[list[Plan]]:
    """The plans with a source, each alone or with the other parts of the same tensors, in the order of the parts."""
    groups: dict[Any, list[Plan]] = {}
    for number, plan in enumerate(plans):
        if plan.source:
            merged = (plan.source, plan.copies, plan.layout.name)
            groups.setdefault(number if plan.part is None else merged, []).append(plan)
    return [sorted(group, key=lambda plan: plan.part or 0) for group in groups.values()]


def shape_of_copy(group: list[Plan]) -> tuple[int, ...]:
    """The shape of one copy of a param, or of the parts of a group side by side."""
    shapes = [plan.leaf.shape[len(plan.copies) :] for plan in group]  # without the axes of copies
    return shapes[0] if group[0].part is None else (*shapes[0][:-1], sum(shape[-1] for shape in shapes))


def shape_in_source(plan: Plan, group: list[Plan]) -> tuple[int, ...]:
    """The shape that the tensor of one copy should have."""
    shape = shape_of_copy(group or [plan])
    layout = plan.layout
    try:
        saved = shape_after(layout.save, shape)
        loaded = shape_after(layout.load, saved)
    except (TypeError, ValueError, IndexError) as error:
        require(False, f"the layout {layout.name} to fit {plan.path}", f"{shape}: {error}"[:200], "pass another layout")
        raise AssertionError from None
    expected = f"load of the layout {layout.name} to make {shape} of {saved} for {plan.path}"
    require(loaded == shape, expected, f"{loaded}", "make it the inverse of save")
    return saved


def shape_after(function: Callable, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the function of an array of this shape."""
    try:
        return jax.eval_shape(function, jax.ShapeDtypeStruct(shape, jnp.float32)).shape
    except jax.errors.TracerArrayConversionError:  # a function of NumPy
        return function(np.broadcast_to(np.float32(0), shape)).shape
