"""Params of a net from the tensors of another library by rules, and back: one param is read at a time."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import PyTree

from jaxblocks.checks.errors import public_name, require
from jaxblocks.checks.expectations import checked
from jaxblocks.checks.terminal import warn
from jaxblocks.core.pairs import Layer, Params, StatefulLayer
from jaxblocks.interop.files import Tensor, tensors_of
from jaxblocks.interop.reading import has_nan, read_copies
from jaxblocks.interop.reports import Report, check_report, report_of, unused_rules
from jaxblocks.interop.rules import Plan, grouped, of_recurrent_modules, plans_of, shape_in_source, shape_of_copy
from jaxblocks.layers.norm.running_statistics import TRAINED
from jaxblocks.sharding import Rule, shardings

__all__ = ["check_net", "load_torch", "match_torch", "placements", "read_plans", "save_torch", "written"]


@checked
def match_torch(
    net: Layer[Any] | StatefulLayer[Any], state_dict: Any, rules: Mapping[str, Any], *inputs: Any, **side: Any
) -> Report:
    """A report of what `load_torch` would do, with the same arguments; it reads shapes only.

    >>> net = MLP(5, 1)
    >>> state_dict = {"0.weight": np.zeros((5, 2)), "0.bias": np.zeros(5)}
    >>> state_dict["2.weight"] = np.zeros((1, 5))
    >>> match_torch(net, state_dict, {"*": "*"}, jnp.zeros(2))
    status    param     shape    tensor    shape    layout
    --------  --------  -------  --------  -------  ---------
    matched   0/bias    (5,)     0.bias    (5,)     keep
    matched   0/kernel  (2, 5)   0.weight  (5, 2)   transpose
    missing   2/bias    (1,)     2.bias
    matched   2/kernel  (5, 1)   2.weight  (1, 5)   transpose
    """
    plans, tensors, _ = _planned(net, state_dict, rules, inputs, side)
    return report_of(plans, tensors, rules)


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
        count as trained, whatever the file counts; state that is no weight, such as a cache, is initial.

    Raises:
        ValueError: unless every param has a tensor of its shape, and every tensor a param; the message is the table of
            what is wrong. `match_torch` returns it as data.

    >>> net = MLP(5, 1)
    >>> state_dict = {"0.weight": np.ones((5, 2)), "0.bias": np.zeros(5)}
    >>> state_dict |= {"2.weight": np.ones((1, 5)), "2.bias": np.ones(1)}
    >>> params = load_torch(net, state_dict, {"*": "*"}, jnp.zeros(2))
    >>> float(net.apply(params, jnp.ones(2))[0])
    11.0
    """
    plans, tensors, trees = _planned(net, state_dict, rules, inputs, side)
    check_report(report_of(plans, tensors, rules), strict)
    init = lambda key: net.init(key, *inputs, **side)
    return read_plans(plans, tensors, trees, dtype, placements(net, trees, mesh, sharding), init)


@checked
def save_torch(net: Layer[Any] | StatefulLayer[Any], params: PyTree, rules: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The inverse of `load_torch`: arrays by the names of the other library.

    Args:
        net: the net.
        params: what `load_torch` and ``net.init`` return: params, or for a net with state the pair ``(params, state)``.
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
    _check_rules(rules)
    plans = plans_of(net, params, rules)
    for row in unused_rules(plans, rules):
        got = f"{row.path!r} {row.note}".strip()
        require(False, "rules that match params", got, "correct its path, or leave it out")
    return {name: one.read() for name, one in written(plans, params).items()}


def _planned(net, state_dict, rules, inputs, side):
    """The plans of the params, the tensors, and the shapes of what ``init`` returns."""
    check_net(net)
    _check_rules(rules)
    trees = jax.eval_shape(net.init, jax.random.key(0), *inputs, **side)
    tensors = tensors_of(state_dict)
    return of_recurrent_modules(plans_of(net, trees, rules), tensors), tensors, trees


def check_net(net) -> None:
    """Raise a ``TypeError`` for what is not a net, such as the result of `load` as a whole."""
    repair = "write net, params, tokenizer = load(folder)" if hasattr(net, "net") else "pass a layer, such as Dense(3)"
    require(isinstance(net, Layer | StatefulLayer), "a net", net, repair, error=TypeError)


def _check_rules(rules) -> None:
    good = isinstance(rules, Mapping) and all(isinstance(pattern, str) for pattern in rules)
    repair = 'write for instance {"blocks/mlp/up": "h.{i}.mlp.c_fc"}'
    if any(hasattr(one, "shape") for one in (rules, *(rules.values() if good else ()))):  # arrays, or the weights
        good = False
        order = "params, rules" if public_name() == "save_torch" else "state_dict, rules, *inputs"
        repair = f"the order is net, {order}"
    require(good, "rules, a dict from paths to names of tensors", rules, repair, error=TypeError)


def read_plans(
    plans: Sequence[Plan],
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
    for group in grouped(plans):
        if any(name not in tensors for name in group[0].names):  # state: the report has accepted it
            continue
        shapes = [(len(plan.names), *shape_of_copy([plan])) for plan in group]
        parts = read_copies(group[0].names, tensors, group[0].layout, shapes, _dtype(group[0].leaf.dtype, dtype))
        if any(map(has_nan, parts)):
            with_nan.append(group[0].source)
        for plan, values in zip(group, parts, strict=True):
            values = values.reshape(plan.leaf.shape)
            # Whatever the file counts: with fewer updates the next batch would have a weight near 1.
            values = np.maximum(values, TRAINED) if plan.is_statistic("updates") else values
            made[numbers[id(plan)]] = jax.device_put(values, places[numbers[id(plan)]])
        # Transfers are asynchronous: without waiting, the host copies of all params would exist at the same time.
        jax.block_until_ready([made[numbers[id(plan)]] for plan in group])
        del parts, values
    if with_nan:
        more = f" and {len(with_nan) - 5} more" if len(with_nan) > 5 else ""
        warn(f"{public_name()} found NaN in {', '.join(with_nan[:5])}{more}.")
    if any(plan.is_state and number not in made for number, plan in enumerate(plans)):
        state = jax.jit(lambda key: init(key)[1])(jax.random.key(0))
        begun = [*jax.tree.leaves(trees[0]), *jax.tree.leaves(state)]
        for number, plan in enumerate(plans):
            if number not in made:
                value = jnp.full_like(begun[number], TRAINED) if plan.is_statistic("updates") else begun[number]
                made[number] = jax.device_put(value, places[number])
    return jax.tree.unflatten(jax.tree.structure(trees), [made[number] for number in range(len(plans))])


def written(plans: Sequence[Plan], trees: Any) -> dict[str, Tensor]:
    """The tensors of the other library, made when they are read."""
    leaves = dict(zip(map(id, plans), jax.tree.leaves(trees), strict=True))
    lost = [plan.path for plan in plans if not plan.source and plan.is_weight]
    require(not lost, "a rule for every param", f"none for {', '.join(lost[:5])}", "add rules for their paths")
    made: dict[str, list[Tensor]] = {}
    owners: dict[str, list[str]] = {}
    for group in grouped(plans):
        # Other state (caches, carries) has no tensor elsewhere.
        if group[0].is_state and not group[0].is_statistic("mean", "variance", "updates"):
            continue
        counts = group[0].is_statistic("updates")  # int64 in PyTorch
        shape, dtype = shape_in_source(group[0], group), np.dtype(np.int64 if counts else leaves[id(group[0])].dtype)
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
        copies = f"copy the values of {owners[0]} to {' and '.join(owners[1:])}"
        repair = f"name a tensor for each in the rules, or where they are shared, {copies}"
        require(same, f"equal params for the one tensor {name}", f"other values of {', '.join(owners)}", repair)
        return array

    return first._replace(read=values) if others else first


def _merged(group: list[Plan], leaves: Mapping[int, Any], k: int, dtype: np.dtype) -> np.ndarray:
    """The tensor of the k-th copy, from its param or its parts."""
    parts = []
    for plan in group:
        leaf = np.asarray(leaves[id(plan)])
        parts.append(leaf.reshape(len(plan.names), *leaf.shape[len(plan.copies) :])[k])
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
