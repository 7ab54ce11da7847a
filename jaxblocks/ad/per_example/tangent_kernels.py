r"""Empirical neural tangent kernels: inner products of the gradients of a network's outputs.

    J    the Jacobian of the outputs of N examples with respect to the parameters, (N, O, P)
    K    the kernel J J^T, (N1, N2, O, O)

Three methods compute the same numbers. ``"contraction"`` forms J and multiplies it by its transpose. ``"products"``
never forms J: it computes J J^T e, a pullback and a pushforward, for each column e. ``"structured"`` uses the
factors of each gradient (`jaxblocks.ad.per_example.factors`): for dense layers with activations a and cotangents d,

    K(x, x') = sum_layers (d d'^T) (a a'^T + 1),

whose cost does not depend on P.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxblocks.ad.counting.counts import count_flops
from jaxblocks.ad.per_example import factors, sites
from jaxblocks.ad.per_example.gradients import CANCELLATION, is_exact
from jaxblocks.ad.per_example.leaf_plans import LeafPlan, leaf_table, site_labels
from jaxblocks.ad.programs.arguments import batch_length, explained_model, floating_params
from jaxblocks.ad.programs.linearization import linearize
from jaxblocks.ad.vectors.chunks import map_batches, map_in_chunks
from jaxblocks.ad.vectors.raveled import common_dtype
from jaxblocks.backend.precision import full_precision, wide_dtype, widen
from jaxblocks.backend.varying import as_structs, varying_like
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import checked

__all__ = ["KernelPlan", "ntk", "ntk_plan"]

# The weight of an operation in the choice: one large product runs faster than many small ones, and these faster than
# a loop.
_WEIGHTS = {"contraction": 1.0, "structured": 1.5, "products": 3.0}
Method: TypeAlias = Literal["auto", "contraction", "products", "structured"]
# The maximal size of the intermediate results of a block of rows.
_BLOCK = 2**22


@checked
@full_precision()
def ntk(
    f: Callable[..., Any],
    params: PyTree,
    x1: PyTree,
    x2: PyTree | None = None,
    *,
    method: Method = "auto",
    trace: bool = False,
) -> Float[Array, "..."]:
    r"""The empirical neural tangent kernel $⟨∂_θ f(x), ∂_θ f(x')⟩$.

    Args:
        f: ``f(params, x)`` for one example ``x``, without a batch axis; returns an array.
        params: a pytree of floating-point arrays.
        x1: N1 examples on the first axis of every array.
        x2: N2 examples of the same shape; ``x1`` by default.
        method: ``"contraction"`` of the Jacobians, kernel-vector ``"products"``, the ``"structured"`` sum over the
            products in which parameters are used, or (``"auto"``) the one with the fewest operations, counted by
            `ntk_plan` and weighted: 1.5 for the structured method, 3 for products, which process one example after
            the other. All give the same kernel to rounding. Where a gradient is a small difference of the terms at its
            positions, the structured method changes to products at run time; ``"contraction"`` keeps the most digits.
        trace: whether to sum over equal outputs, as is usual for networks whose outputs share their hidden layers.

    Returns:
        For an output of shape S the kernel is (N1, N2, \*S, \*S): entry ``[i, j, a, b]`` is the inner product of
        the gradients of ``f(params, x1[i])[a]`` and ``f(params, x2[j])[b]``; for a scalar, and with ``trace``,
        (N1, N2). Sums run in float32 if the parameters have half precision. ``f`` is differentiated, and products are
        computed, in full precision on every device.

    Raises:
        ValueError: if ``x1`` and ``x2`` differ in more than their lengths, for an unknown method, and for
            ``method="structured"`` if no leaf of ``params`` is used in a product.
        TypeError: if a leaf of ``params`` is not floating-point, or ``f`` does not return one real array.

    >>> def f(w, x):
    ...     return x @ w
    >>> ntk(f, jnp.ones(2), jnp.array([[1.0, 2.0], [3.0, 4.0]]))
    Array([[ 5., 11.],
           [11., 25.]], dtype=float32)

    Source: Jacot, Gabriel & Hongler 2018, Neural tangent kernel (arXiv:1806.07572); Novak, Sohl-Dickstein &
    Schoenholz 2022, Fast finite width neural tangent kernel (the three methods; arXiv:2206.08720).
    """
    params, plan, programs = _planned(f, params, x1, x2, method, trace)
    if plan.method == "structured":
        kernel = _structured_or_products(programs, params, x1, x2)
    else:
        kernel = programs[plan.method](params, x1, x2)
    return jnp.asarray(kernel).astype(common_dtype(params))


@checked
def ntk_plan(
    f: Callable[..., Any],
    params: PyTree,
    x1: PyTree,
    x2: PyTree | None = None,
    *,
    method: Method = "auto",
    trace: bool = False,
) -> "KernelPlan":
    """The method that `ntk` chooses, the cost of each method, and how the structured method handles each leaf.

    Arguments and errors are those of `ntk`; arrays may be ``jax.ShapeDtypeStruct``. Nothing is computed.

    >>> plan = ntk_plan(lambda w, x: jnp.tanh(x @ w), jnp.ones((30, 40)), jnp.ones((8, 30)))
    >>> plan.method
    'structured'

    Source: Novak, Sohl-Dickstein & Schoenholz 2022, Fast finite width neural tangent kernel (arXiv:2206.08720).
    """
    return _planned(f, params, x1, x2, method, trace, always=True)[1]


@dataclasses.dataclass(frozen=True, repr=False)
class KernelPlan:
    """The method of `ntk` and the cost of each method; returned by `ntk_plan`.

    It prints as two tables.

    Attributes:
        method: the method that `ntk` uses.
        operations: of each method, counted in its jaxpr (see `jaxblocks.ad.count_flops`).
        leaves: how the structured method handles each leaf, a `jaxblocks.ad.per_example.leaf_plans.LeafPlan` each.

    >>> print(KernelPlan("products", {"contraction": 300, "products": 200}, ()))
    method               operations    / least
    -----------------  ------------  ---------
    contraction                 300        1.5
    products (chosen)           200          1
    """

    method: str
    operations: dict[str, int]
    leaves: tuple[LeafPlan, ...]

    def explain(self) -> str:
        """The plan as text: the costs of the methods, and a line for each leaf.

        >>> print(KernelPlan("products", {"products": 200}, ()).explain())
        method               operations    / least
        -----------------  ------------  ---------
        products (chosen)           200          1
        """
        return "\n\n".join(self._tables("simple"))

    __repr__ = explain

    def _repr_html_(self) -> str:
        return "".join(self._tables("html"))

    def _tables(self, style: str) -> list[str]:
        from tabulate import tabulate

        least = max(1, min(self.operations.values()))
        costs = {
            "method": [f"{name} (chosen)" if name == self.method else name for name in self.operations],
            "operations": [f"{n:,}" for n in self.operations.values()],
            "/ least": [f"{n / least:.3g}" for n in self.operations.values()],
        }
        tables = [tabulate(costs, headers="keys", tablefmt=style, colalign=("left", "right", "right"))]
        if self.leaves:
            tables.append(leaf_table(self.leaves, style))
        return tables


# ---- the choice ---------------------------------------------------------------------------


def _planned(f, params, x1, x2, method, trace, always=False):
    """The params as arrays, the plan, and by method the kernel as a function of (params, x1, x2)."""
    params = varying_like(floating_params(params), x1, x2)  # else JAX sums the gradients over the devices
    n1 = batch_length(x1=x1)
    n2 = n1 if x2 is None else batch_length(x2=x2)
    require(n1 and n2, "at least one example in x1 and x2", f"{n1} and {n2}", "write x[None] for one example x")
    one = sites.of_one_example(x1)
    if x2 is not None:
        _check_alike(one, sites.of_one_example(x2))
    f = explained_model(f)
    once = jax.jit(lambda params, x: f(params, x))  # traced once for the shapes, the sites and all counts
    value = jax.eval_shape(once, params, one)
    floating = isinstance(value, jax.ShapeDtypeStruct) and jnp.issubdtype(value.dtype, jnp.floating)
    repair = "return the outputs of one example as one array"
    require(floating, "f to return one floating-point array", value, repair, error=TypeError)
    leaves: tuple[LeafPlan, ...] = ()
    programs: dict[str, Callable] = {
        "contraction": functools.partial(_contraction, f, trace),
        "products": functools.partial(_products, f, trace),
    }
    if method in ("auto", "structured") or always:
        reading = sites.read(once, params, one)
        leaves = tuple(_plan_leaf(reading, i, n1, n2, value.size, trace) for i in range(len(reading.names)))
        if any(reading.sites):
            programs["structured"] = functools.partial(_structured, reading, leaves, value, trace)
        elif method == "structured":
            got = f"params{reading.names[0]}, where {reading.reasons[0]}"
            require(False, "a parameter that is used in products only", got, 'use method="auto"')
    operations: dict[str, int] = {}
    if method == "auto" or always:
        shapes = as_structs((params, x1, x2))
        operations = {name: count_flops(program, *shapes).flops for name, program in programs.items()}
    if method == "auto":
        method = min(operations, key=lambda name: _WEIGHTS[name] * operations[name])
    return params, KernelPlan(method, operations, leaves), programs


def _check_alike(one, other):
    """Check that examples of ``x1`` and ``x2`` have the same structure, shapes and dtypes."""
    structure, found = jax.tree.structure(one), jax.tree.structure(other)
    repair = f"pass a pytree of {structure.num_leaves} arrays with the keys and the order of x1"
    if structure.num_leaves == found.num_leaves:
        repair = "write jax.tree.unflatten(jax.tree.structure(x1), jax.tree.leaves(x2))"
    require(structure == found, f"x2 in the containers of x1, {structure}", str(found), repair)
    leaves = zip(jax.tree_util.tree_leaves_with_path(one), jax.tree.leaves(other), strict=True)
    for (path, first), second in leaves:
        path = jax.tree_util.keystr(path)
        require(
            (first.shape, first.dtype) == (second.shape, second.dtype),
            f"examples of x2 like those of x1, {describe(first)} at x1{path}",
            f"{describe(second)} at x2{path}",
            "only the lengths of the first axes may differ",
        )


def _plan_leaf(reading, leaf, n1, n2, outputs, trace) -> LeafPlan:
    """The plan of the structured method for a leaf, by the operations for one pair of examples."""
    own, name = reading.sites[leaf], reading.names[leaf]
    size = reading.closed_jaxpr.jaxpr.invars[leaf].aval.size
    both = outputs if trace else outputs**2
    if not own:
        return LeafPlan(name, "formed", reading.reasons[leaf], (), both * size)
    form = (n1 + n2) / (n1 * n2) * outputs
    formed = both * size + round(form * sum(math.prod(site.sizes) for site in own))
    methods = [_cheapest_for(one, other, outputs, trace) for one in own for other in own]
    cost = sum(own_cost for _, own_cost in methods)
    if formed <= cost:
        single = len(own) == 1 and own[0].kind != "rows"
        method = "product" if single else "formed"
        return LeafPlan(name, method, "fewer operations than pairs of positions", site_labels(own), formed)
    method = " and ".join(dict.fromkeys(method for method, _ in methods if method != "apart"))
    return LeafPlan(name, method, "fewer operations than its gradients", site_labels(own), cost)


def _cheapest_for(one, other, outputs, trace) -> tuple[str, int]:
    """The order of the sums over positions that takes the fewest operations for two sites of a leaf."""
    if sites.fit(one, other) == "apart":
        return "apart", 0
    b, p, c, n = one.sizes
    q = other.sizes[1]
    c = 1 if one.kind == "rows" else c
    if trace:
        return "pairs", b * p * q * (c + outputs * n + 1)
    pairs = b * p * q * (c + outputs**2 * (n + 1))
    chain = b * p * q * (c + outputs * n) + outputs**2 * b * p * n
    if sites.fit(one, other) == "swapped" or pairs <= chain or p * q == 1:
        return "pairs", pairs
    return "chain", chain


# ---- the three methods --------------------------------------------------------------------


def _outer(left, right, trace):
    """Contract (N1, O, size) and (N2, O, size) over the last axis: (N1, N2, O, O), or (N1, N2) with the trace."""
    if trace:
        return jnp.einsum("ios,jos->ij", left, right)
    return jnp.einsum("ios,jms->ijom", left, right)


def _shaped(kernel, shape, trace):
    return kernel if trace else kernel.reshape(*kernel.shape[:2], *shape, *shape)


def _contraction(f, trace, params, x1, x2):
    shape = jax.eval_shape(f, params, sites.of_one_example(x1)).shape

    def jacobians(x):
        found = jax.vmap(lambda x: jax.jacrev(f)(params, x))(x)
        flat = lambda param, leaf: widen(leaf.reshape(leaf.shape[0], math.prod(shape), jnp.size(param)))
        return jax.tree.leaves(jax.tree.map(flat, params, found))

    left = jacobians(x1)
    right = left if x2 is None else jacobians(x2)
    dtype = wide_dtype(common_dtype(params))
    kernel = sum(_outer(a, b, trace).astype(dtype) for a, b in zip(left, right, strict=True))
    return _shaped(kernel, shape, trace)


def _products(f, trace, params, x1, x2):
    value = jax.eval_shape(f, params, sites.of_one_example(x1))
    basis = varying_like(jnp.eye(value.size, dtype=value.dtype).reshape(value.size, *value.shape), value)
    _, push = linearize(lambda params: jax.vmap(lambda x: f(params, x))(x1), params)

    def column(x):  # the column of one example of x2: (N1, O, O), or (N1,)
        _, pull = jax.vjp(lambda params: f(params, x), params)
        pushed = jax.vmap(lambda e: push(*pull(e)))(basis)  # (O of x2, N1, *S)
        pushed = widen(pushed.reshape(value.size, pushed.shape[1], value.size))
        return jnp.einsum("oio->i", pushed) if trace else pushed.transpose(1, 2, 0)

    kernel = jnp.moveaxis(map_in_chunks(column, x1 if x2 is None else x2, 1), 0, 1)
    return _shaped(kernel, value.shape, trace)


def _structured_or_products(programs, params, x1, x2):
    """The structured method, or that of products where the gradient of an example is a small difference of its terms.

    The error of pairs of positions is that of the sum of their terms without signs. Products add the terms of each
    gradient first, and have no intermediate results larger than those of the structured method.
    """
    inexact = []
    kernel: Any = programs["structured"](params, x1, x2, inexact)
    if not inexact:
        return kernel
    accurate = functools.reduce(jnp.logical_and, map(jnp.all, inexact))
    return jax.lax.cond(accurate, lambda: kernel, lambda: programs["products"](params, x1, x2).astype(kernel.dtype))


def _check(reading, plans, gradients, trace, inexact):
    """Append to ``inexact``, for each leaf whose pairs may cancel, whether they do not in the gradients of examples."""
    for i, (own, plan) in enumerate(zip(reading.sites, plans, strict=True)):
        if plan.method in ("formed", "product") or is_exact(own):
            continue

        def square_and_bound(found, own=own):
            terms = [
                factors.inner_and_bound(one, left, other, right)
                for one, left in zip(own, found, strict=True)
                for other, right in zip(own, found, strict=True)
            ]
            return tuple(map(sum, zip(*terms, strict=True)))

        if not trace:  # for each output
            square_and_bound = jax.vmap(square_and_bound, in_axes=([factors.Factors(None, 0)] * len(own),))
        square, bound = jax.lax.stop_gradient(jax.vmap(square_and_bound)(gradients[i]))
        inexact.append(bound <= CANCELLATION * square)


def _structured(reading, plans, value, trace, params, x1, x2, inexact=None):
    n1, n2 = (jax.tree.leaves(x)[0].shape[0] for x in (x1, x1 if x2 is None else x2))
    gradients_of = functools.partial(_gradients, reading, plans, jax.tree.leaves(params), value, trace)
    left = gradients_of(x1)
    right = left if x2 is None else gradients_of(x2)
    if inexact is not None:
        for gradients in (left,) if x2 is None else (left, right):
            _check(reading, plans, gradients, trace, inexact)

    dtype = wide_dtype(common_dtype(params))

    def rows(left):
        terms = []
        for i, plan in enumerate(plans):
            if plan.method in ("formed", "product"):
                terms.append(_outer(left[i], right[i], trace))
                continue
            for s, one in enumerate(reading.sites[i]):
                for t, other in enumerate(reading.sites[i]):
                    if sites.fit(one, other) != "apart":
                        terms.append(_of_sites(one, left[i][s], other, right[i][t], value.size, trace))
        return sum(term.astype(dtype) for term in terms)

    block = max(1, _BLOCK // max(1, n2 * _intermediate_size(reading, plans, value.size, trace)))
    block = math.ceil(n1 / math.ceil(n1 / block))  # blocks of nearly equal size
    return _shaped(map_batches(rows, left, block), value.shape, trace)


def _intermediate_size(reading, plans, outputs, trace) -> int:
    """The maximal size of the intermediate results of a pair of examples."""
    both = 1 if trace else outputs**2
    largest = both
    for own, plan in zip(reading.sites, plans, strict=True):
        for one in own if "pairs" in plan.method or "chain" in plan.method else ():
            b, p, _, n = one.sizes
            for other in own:
                chain = _cheapest_for(one, other, outputs, trace)[0] == "chain"
                largest = max(largest, b * p * (n * outputs if chain else other.sizes[1] * both))
    return largest


def _gradients(reading, plans, leaves, value, trace, x):
    """For each leaf the factors at each site, or the gradients (N, O, size), of all examples."""
    by_sites = [i for i, plan in enumerate(plans) if plan.method != "formed"]
    basis = varying_like(jnp.eye(value.size, dtype=value.dtype).reshape(value.size, *value.shape), value)

    def one(x):
        _, pullback, records = factors.pullback_at(reading, by_sites, leaves, jax.tree.leaves(x))
        cotangents, gradients = jax.vmap(lambda e: pullback([e]))(basis)
        found = []
        for i, (leaf, plan) in enumerate(zip(leaves, plans, strict=True)):
            dtype = wide_dtype(leaf.dtype)
            if plan.method == "formed":
                found.append(gradients[i].reshape(value.size, leaf.size).astype(dtype))
                continue
            own = [factors.at_site_of_each(site, records, cotangents, dtype) for site in reading.sites[i]]
            if plan.method == "product":
                own = factors.product(reading.sites[i][0], own[0]).reshape(value.size, leaf.size)
            elif not trace:  # each output has inner products of its own
                own = [factors.Factors(u, v[:, None]) for u, v in own]
            found.append(own)
        return found

    return jax.vmap(one)(x)


def _of_sites(one, left, other, right, outputs, trace):
    """The inner products of all examples' gradients at two sites: (N1, N2, O, O), or (N1, N2) with the trace."""
    if (
        one.sizes[:2] == other.sizes[:2] == (1, 1)
        and one.kind == other.kind != "rows"
        and sites.fit(one, other) == "alike"
    ):
        # The same expression as for the gradients of a bias, so that the compiler computes it once.
        weights = jnp.einsum("ic,jc->ij", left.u[:, 0, 0], right.u[:, 0, 0])
        same = _outer(_without_positions(left.v), _without_positions(right.v), trace)
        return same * (weights if trace else weights[:, :, None, None])
    through = _cheapest_for(one, other, outputs, trace)[0] == "chain"
    pair = lambda left, right: factors.inner(one, left, other, right, through=through)
    if not trace:
        per_output = factors.Factors(None, 0)
        pair = jax.vmap(jax.vmap(pair, in_axes=(None, per_output)), in_axes=(per_output, None))
    return jax.vmap(jax.vmap(pair, in_axes=(None, 0)), in_axes=(0, None))(left, right)


def _without_positions(v):
    """(N, O, n) out of (N, O, 1, 1, 1, n), or of (N, O, 1, 1, n) with the trace."""
    return v.reshape(*v.shape[:2], v.shape[-1])
