r"""The gradient of the loss of each example, and the norms of these gradients.

    g_i    the gradient of the loss of example i

The norms follow from the factors of each gradient (`jaxblocks.ad.per_example.factors`): for a kernel that is used at
the positions p, g_i = sum_p u_p v_p^T and

    |g_i|^2 = sum_pq (u_p . u_q)(v_p . v_q).
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from jaxblocks.ad.per_example import factors, sites
from jaxblocks.ad.per_example.leaf_plans import LeafPlan, leaf_table, site_labels
from jaxblocks.ad.programs.arguments import Tree, batch_length, explained_call, fits, floating_params
from jaxblocks.ad.programs.order_of_products import with_products_in_order
from jaxblocks.ad.vectors.chunks import map_batches, map_in_chunks
from jaxblocks.ad.vectors.raveled import common_dtype
from jaxblocks.backend.powers_of_two import divided, unit_of
from jaxblocks.backend.precision import full_precision, wide_dtype
from jaxblocks.backend.quotients import norm, sqrt
from jaxblocks.backend.varying import varying_like
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveInt, checked

__all__ = [
    "CANCELLATION",
    "NormsPlan",
    "checked_examples",
    "is_exact",
    "per_example_gradients",
    "per_example_norms",
    "per_example_norms_plan",
    "wide_norms",
]


@checked
def per_example_gradients(
    loss: Callable[..., Any], params: Tree, *batch: PyTree, chunk_size: PositiveInt | None = None
) -> Tree:
    r"""The gradient $g_i$ of each example's loss with respect to the parameters.

    Args:
        loss: ``loss(params, *example)``, a scalar for one example: its arrays have no batch axis.
        params: a pytree of floating-point arrays.
        batch: pytrees of arrays with the N examples on their first axis (keys for dropout included).
        chunk_size: the number of examples differentiated at once; all by default. With fewer, a loop iterates over
            the chunks, and the memory of the backward pass is that of one chunk.

    Returns:
        Like ``params``, each leaf with a first axis of length N.

    Raises:
        ValueError: if the loss of one example is not a scalar, or the batch arguments differ in length.
        TypeError: if a leaf of ``params`` is not floating-point.

    >>> x, y = jnp.array([[1.0, 0.0], [0.0, 2.0]]), jnp.array([0.0, 1.0])
    >>> per_example_gradients(lambda w, x, y: (x @ w - y) ** 2, jnp.ones(2), x, y)
    Array([[2., 0.],
           [0., 4.]], dtype=float32)

    Source: Abadi et al. 2016, Deep learning with differential privacy (arXiv:1607.00133); Cevher, Mathematics of Data
    (the gradient of the empirical risk is the mean of those of the examples).
    """
    params, _ = checked_examples(loss, params, batch)
    gradient = with_products_in_order(lambda *example: jax.grad(loss)(params, *example))
    if chunk_size is None:
        return jax.vmap(gradient)(*batch)
    return map_in_chunks(lambda example: gradient(*example), batch, chunk_size)


@overload
def per_example_norms(
    loss: Callable[..., Any],
    params: PyTree,
    *batch: PyTree,
    per_leaf: Literal[False] = False,
    chunk_size: PositiveInt | None = None,
) -> Array: ...
@overload
def per_example_norms(
    loss: Callable[..., Any],
    params: Tree,
    *batch: PyTree,
    per_leaf: Literal[True],
    chunk_size: PositiveInt | None = None,
) -> Tree: ...
@checked
def per_example_norms(
    loss: Callable[..., Any],
    params: PyTree,
    *batch: PyTree,
    per_leaf: bool = False,
    chunk_size: PositiveInt | None = None,
) -> PyTree:
    r"""The norm $‖g_i‖$ of the gradient of each example; the gradients of kernels and tables are not formed.

    One backward pass computes the cotangents where each parameter is used. The norm of the gradient of a dense or
    convolution kernel follows from its factors, by pairs of positions or by their product, whichever takes fewer
    operations, and that of an embedding table from the rows that are read. Shared, tied and scanned weights are
    handled exactly, cross terms included. Pairs cancel where a gradient is a small difference of large terms; such
    examples are found by the sum of the terms without signs, and their gradients are formed, one after the other. For a
    parameter with another use (a bias, a scale, an unknown function) the gradient is formed, so the norms always equal
    those of `per_example_gradients`; `per_example_norms_plan` lists the method for each leaf.

    Args:
        loss, params, batch, chunk_size: as for `per_example_gradients`.
        per_leaf: whether to return the norms of the gradients of each leaf, like ``params``, instead of the total.

    Returns:
        The norms, (N,), or with ``per_leaf`` a pytree of them. Where a gradient is 0 its norm has the derivative 0, a
        subgradient; the norms do not underflow or overflow where the gradients do not.

    Raises:
        ValueError, TypeError: as for `per_example_gradients`.

    >>> x, y = jnp.array([[3.0, 4.0], [0.0, 1.0]]), jnp.array([4.0, 1.0])
    >>> per_example_norms(lambda w, x, y: (x @ w - y) ** 2 / 2, jnp.ones(2), x, y)
    Array([15.,  0.], dtype=float32)

    Source: Goodfellow 2015, Efficient per-example gradient computations (arXiv:1510.01799); Li et al. 2021, Large
    language models can be strong differentially private learners (the norm by pairs of positions; arXiv:2110.05679).
    """
    params, _ = checked_examples(loss, params, batch)
    leaves, structure = jax.tree.flatten(params)
    if not per_leaf:
        return wide_norms(loss, params, batch, chunk_size).astype(common_dtype(leaves))
    found = _norms_of_leaves(loss, params, batch, per_leaf, chunk_size)
    return structure.unflatten([length.astype(leaf.dtype) for length, leaf in zip(found, leaves, strict=True)])


def wide_norms(loss: Callable, params: PyTree, batch: tuple[PyTree, ...], chunk_size: int | None = None) -> Array:
    """The norms of checked arguments in float32 at least; in half precision they are rounded nowhere else."""
    found = _norms_of_leaves(loss, params, batch, False, chunk_size)
    # Squares in half precision overflow above 256 (float16), or lose digits (bfloat16).
    dtype = wide_dtype(common_dtype(params))
    return norm(jnp.stack([length.astype(dtype) for length in found]), 0)


def _norms_of_leaves(loss, params, batch, per_leaf, chunk_size):
    """The norms of each leaf in float32 at least; ``per_leaf`` is whether each of them needs all digits."""
    reading = sites.read(loss, params, *map(sites.of_one_example, batch))
    leaves = jax.tree.leaves(params)
    plans = _plan_leaves(reading)
    by_sites = [i for i, plan in enumerate(plans) if plan.method != "formed"]

    checked_leaves = [i for i in by_sites if not is_exact(reading.sites[i])]
    paths = {site.path for i in checked_leaves for site in reading.sites[i]}
    dtypes = [wide_dtype(leaf.dtype) for leaf in leaves]

    def lengths(*example):
        """The norms of all leaves, whether they have all digits, and what the formed gradients follow from."""
        [value], pullback, records = factors.pullback_at(reading, by_sites, leaves, jax.tree.leaves(example))
        cotangents, gradients = pullback([jnp.ones_like(value)])
        found, bounds = [], []
        for i, dtype in enumerate(dtypes):
            if plans[i].method == "formed":
                length = bound = norm(gradients[i].astype(dtype))
            else:
                length, bound = _norm_at(reading.sites[i], records, cotangents, dtype)
            found.append(length)
            bounds.append(bound)
        kept = tuple({path: each[path] for path in paths} for each in (records, cotangents))
        return found, _has_all_digits(found, bounds, per_leaf), kept

    def formed(found, accurate, kept):
        """The same norms of one example, from the gradients where digits are missing."""
        records, cotangents = kept
        one = lambda i: _norm_of_sum(reading.sites[i], records, cotangents, dtypes[i])
        leaf_norms = lambda: [one(i) for i in checked_leaves]
        before = [found[i] for i in checked_leaves]
        after = jax.lax.cond(accurate, lambda: before, jax.checkpoint(leaf_norms))
        return [after[checked_leaves.index(i)] if i in checked_leaves else each for i, each in enumerate(found)]

    def together(examples):
        found, accurate, kept = jax.vmap(lambda example: lengths(*example))(examples)
        if not checked_leaves:
            return found
        # One example after the other, so that the gradient of one is stored at a time.
        one_by_one = lambda: jax.lax.map(lambda one: formed(*one), (found, accurate, kept))
        return jax.lax.cond(jnp.all(accurate), lambda: found, one_by_one)

    return together(batch) if chunk_size is None else map_batches(together, batch, chunk_size)


# A norm by pairs is formed anew where the sum of the absolute values of its terms exceeds its square by this factor:
# its error is at most about this number of units in the last place.
CANCELLATION = 16.0


def is_exact(own: Sequence[sites.Site]) -> bool:
    """Whether the square of a norm is a sum of squares and of products of squares, so that no digits cancel."""
    if len(own) > 1:
        return all(sites.fit(one, other) == "apart" for i, one in enumerate(own) for other in own[:i]) and all(
            is_exact((one,)) for one in own
        )
    method, _ = _cheapest(own[0])
    return method != "pairs" or own[0].sizes[1] <= 1


def _has_all_digits(found, bounds, per_leaf):
    """Whether few digits cancel: in each leaf, or in the norm of all."""
    dtype = common_dtype(found)
    lengths, bounds = (jax.lax.stop_gradient(jnp.stack([x.astype(dtype) for x in each])) for each in (found, bounds))
    if not per_leaf:
        lengths, bounds = norm(lengths, 0), norm(bounds, 0)
    return jnp.all(bounds <= CANCELLATION**0.5 * lengths)


@full_precision()
def _norm_at(own, records, cotangents, dtype):
    """The norm of the gradient of one leaf for one example, and the root of the sum of the terms without signs."""
    taken = [factors.at_site(site, records, cotangents, dtype) for site in own]
    if len(own) == 1 and own[0].sizes[1] == 1 and own[0].kind != "rows":  # one outer product for each matrix
        [(u, v)] = taken
        length = norm(norm(u, -1) * norm(v[0], -1))
        return length, length
    taken, unit = _in_one_unit(taken)
    total, bound = jnp.zeros((), dtype), jnp.zeros((), dtype)
    for i, (one, left) in enumerate(zip(own, taken, strict=True)):
        method = _cheapest(one)[0]
        if method == "pairs":
            square, without_signs = factors.inner_and_bound(one, left, one, left)
        else:
            square = jnp.sum(jnp.square(factors.product(one, left))) if method == "product" else _square_of_rows(left)
            without_signs = square
        total, bound = total + square, bound + without_signs
        for other, right in zip(own[i + 1 :], taken[i + 1 :], strict=True):
            # The square of a sum: each pair of uses counts twice.
            mixed, without_signs = factors.inner_and_bound(one, left, other, right)
            total, bound = total + 2 * mixed, bound + 2 * without_signs
    total = jnp.maximum(total, 0)  # rounding may make it negative
    return sqrt(total) * unit, sqrt(bound) * unit


def _in_one_unit(taken):
    """Factors at all sites of a leaf whose products are near 1 at most, and the unit of these products."""
    scaled, units = [], []
    for u, v in taken:
        of_u = jnp.ones((), v.dtype) if u.ndim == 2 else unit_of(jnp.max(jnp.abs(u), initial=0))
        of_v = unit_of(jnp.max(jnp.abs(v), initial=0))
        scaled.append(factors.Factors(u if u.ndim == 2 else divided(u, of_u), divided(v, of_v)))
        units.append(unit_of(of_u * of_v))
    largest = functools.reduce(jnp.maximum, units)
    return [factors.Factors(u, v * divided(own, largest)) for (u, v), own in zip(scaled, units, strict=True)], largest


@full_precision()
def _norm_of_sum(own, records, cotangents, dtype):
    """The norm of the gradient of one leaf for one example, from the gradient itself."""
    parts: dict = {}
    for site in own:
        # Sites of one slice of the parameter are added, in the layout of the first; other slices are orthogonal.
        first, gradients = parts.setdefault(tuple(sorted(site.view.parts.items())), (site, []))
        gradient = factors.product(site, factors.at_site(site, records, cotangents, dtype))
        gradients.append(jnp.swapaxes(gradient, -1, -2) if sites.fit(first, site) == "swapped" else gradient)
    sums = [functools.reduce(jnp.add, gradients) for _, gradients in parts.values()]
    return norm(jnp.stack([norm(each) for each in sums]))


def _square_of_rows(own):
    """The squared norm of a gradient of table rows: equal rows are added as segments of the sorted indices."""

    def one(u, v):  # (p,), (p, n)
        order = jnp.argsort(u)
        # Equal indices are adjacent after the sort, and each change begins a new segment.
        first = jnp.diff(u[order], prepend=u[order][:1]) != 0
        return jnp.sum(jnp.square(jax.ops.segment_sum(v[order], jnp.cumsum(first), num_segments=u.shape[0])))

    return jnp.sum(jax.vmap(one)(own.u, own.v[0]))


# ---- the plan -----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, repr=False)
class NormsPlan:
    """The method that `per_example_norms` uses for each leaf; returned by `per_example_norms_plan`.

    It prints as a table.

    >>> plan = per_example_norms_plan(
    ...     lambda w, x: jnp.sum(x @ w), jnp.ones((3, 4)), jnp.ones((2, 5, 3))
    ... )
    >>> plan[""].method, plan[""].sites
    ('product', ('dense (1, 5, 3, 4)',))
    """

    leaves: tuple[LeafPlan, ...]

    def __getitem__(self, name: str) -> LeafPlan:
        for leaf in self.leaves:
            if leaf.name == name:
                return leaf
        known = ", ".join(repr(leaf.name) for leaf in self.leaves)
        raise KeyError(f"NormsPlan expected the name of a leaf, {known}, got {name!r}; pass one of these.")

    def explain(self) -> str:
        """The plan as text: a line for each leaf.

        >>> from jaxblocks.ad.per_example.leaf_plans import LeafPlan
        >>> print(NormsPlan((LeafPlan("['bias']", "formed", "add uses it", (), 4),)).explain())
        leaf      method    used as      operations  reason
        --------  --------  ---------  ------------  -----------
        ['bias']  formed    -                     4  add uses it
        """
        return leaf_table(self.leaves, "simple")

    __repr__ = explain

    def _repr_html_(self) -> str:
        return leaf_table(self.leaves, "html")


@checked
def per_example_norms_plan(loss: Callable[..., Any], params: PyTree, *batch: PyTree) -> NormsPlan:
    """The method that `per_example_norms` uses for each leaf, and the reason; nothing is computed.

    Arguments and errors are those of `per_example_norms`; arrays may be ``jax.ShapeDtypeStruct``.

    >>> def loss(table, ids):
    ...     return jnp.sum(table[ids] ** 2)
    >>> per_example_norms_plan(loss, jnp.ones((100, 3)), jnp.zeros((2, 5), int))
    leaf    method    used as                operations  reason
    ------  --------  -------------------  ------------  ---------------------------
    params  rows      rows (1, 5, 100, 3)            15  only the rows that are read
    """
    params, _ = checked_examples(loss, params, batch)
    return NormsPlan(_plan_leaves(sites.read(loss, params, *map(sites.of_one_example, batch))))


def _plan_leaves(reading) -> tuple[LeafPlan, ...]:
    return tuple(_plan_leaf(reading, i) for i in range(len(reading.names)))


def _plan_leaf(reading, leaf) -> LeafPlan:
    own = reading.sites[leaf]
    size = reading.closed_jaxpr.jaxpr.invars[leaf].aval.size
    name = reading.names[leaf]
    labels = site_labels(own)
    if not own:
        return LeafPlan(name, "formed", reading.reasons[leaf], (), size)
    methods = [_cheapest(site) for site in own]
    formed = sum(b * (p + 1) * c * n for b, p, c, n in (site.sizes for site in own))
    operations = sum(cost for _, cost in methods)
    operations += sum(_pairs(one, other) for i, one in enumerate(own) for other in own[i + 1 :])
    # A parameter with many uses has quadratically many pairs; then the gradient itself takes fewer operations.
    if formed < operations:
        return LeafPlan(name, "formed", "fewer operations than all pairs of its uses", labels, formed)
    method = " and ".join(dict.fromkeys(method for method, _ in methods))
    return LeafPlan(name, method, _REASONS.get(method, "the cheapest method for each use"), labels, operations)


_REASONS = {
    "pairs": "fewer operations than its gradient",
    "product": "fewer operations than pairs of positions",
    "rows": "only the rows that are read",
}


def _cheapest(site) -> tuple[str, int]:
    """The cheapest method for the square of one site, and its operations."""
    b, p, c, n = site.sizes
    if site.kind == "rows":
        return "rows", b * p * n
    return min(("product", b * (p + 1) * c * n), ("pairs", _pairs(site, site)), key=lambda option: option[1])


def _pairs(one, other) -> int:
    if sites.fit(one, other) == "apart":
        return 0
    b, p, c, n = one.sizes
    return b * p * other.sizes[1] * ((1 if one.kind == "rows" else c) + n + 1)


# ---- arguments ----------------------------------------------------------------------------


def checked_examples(
    loss: Callable, params: PyTree, batch: tuple[PyTree, ...], *, may_be_empty: bool = False
) -> tuple[PyTree, int]:
    """The parameters as arrays, and the number of examples; an error unless the loss of one example is a scalar."""
    params = varying_like(floating_params(params), batch)  # else JAX sums the gradients over the devices
    count = batch_length(**{f"batch[{i}]": each for i, each in enumerate(batch)})
    require(count or may_be_empty, "at least one example", "none", "pass a batch with at least one row")
    expected = f"loss to be a function of params and {len(batch)} argument{'s' * (len(batch) != 1)} of an example"
    repair = "write loss(params, x, y), and pass the arrays of the batch after params"
    if len(batch) == 1 and isinstance(batch[0], tuple):
        repair = "pass the arrays of the batch one by one: (loss, params, *batch)"
    with explained_call(loss, 1 + len(batch), expected, repair):
        value = jax.eval_shape(loss, params, *map(sites.of_one_example, batch))
    is_array = isinstance(value, jax.ShapeDtypeStruct)
    unless = "pass the function itself if loss is its gradient; otherwise " * fits(value, params)
    require(is_array, "loss to return one scalar array", value, f"{unless}return the value alone", error=TypeError)
    repair = f"{unless}its arguments have no batch axis: sum over the remaining axes"
    require(value.shape == (), "loss to return a scalar for one example", value, repair)
    floating = jnp.issubdtype(value.dtype, jnp.floating)
    repair = "return a value computed in floating point"
    require(floating, "loss to return a floating-point scalar", str(value.dtype), repair, error=TypeError)
    return params, count
