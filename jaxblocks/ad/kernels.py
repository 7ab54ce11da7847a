r"""Neural tangent kernels: what a net's linearization at its parameters is as a kernel, and how it learns.

    J    the Jacobian of the outputs of N examples with respect to the parameters, (N, O, P)
    K    the kernel J J^T: inner products of gradients, (N1, N2, O, O)

The same numbers come by three contractions. *Contraction* forms J and multiplies it out. *Products*
never forms it: J J^T e, a pullback and a pushforward for each column e. *Structured* takes the
factors of each gradient (`jaxblocks.ad.sites`): for a dense layer with activations a, cotangents d,

    K(x, x') = sum_layers (d d'^T) (a a'^T + 1),

which needs no P at all. Below them the closed form of the infinitely wide net with one hidden layer,
and the regression that a net with a constant kernel performs while it learns.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num, PyTree

from jaxblocks.ad import sites
from jaxblocks.ad.counting import count_flops
from jaxblocks.ad.jaxlib_check import warn_if_jaxlib_is_wrong
from jaxblocks.ad.loops import map_in_chunks
from jaxblocks.ad.per_example import ALIGNED, LeafWay, labels_of, table_of_leaves
from jaxblocks.axes import axes_or_new
from jaxblocks.checks import describe, describe_any, require_floating
from jaxblocks.precision import wide_dtype, widen

__all__ = ["KernelPlan", "kernel_of_angles", "kernel_regression", "ntk", "ntk_plan", "ntk_relu"]

# What an operation weighs in the choice: one large product runs faster than many small ones, and those than a loop.
_WEIGHTS = {"contraction": 1.0, "structured": 1.5, "products": 3.0}
_METHODS = ("contraction", "products", "structured")
# Numbers that a block of rows may hold at once between its factors and the kernel.
_BLOCK = 2**22


def ntk(
    f: Callable[..., Any],
    params: PyTree,
    x1: PyTree,
    x2: PyTree | None = None,
    method: Literal["auto", "contraction", "products", "structured"] = "auto",
    trace: bool = False,
) -> Float[Array, "..."]:
    r"""The empirical neural tangent kernel :math:`\langle \partial_\theta f(x), \partial_\theta f(x') \rangle`.

    Args:
        f: ``f(params, x)`` of a single example: an array without its batch axis in, an array out.
        params: a pytree of floating-point arrays.
        x1: N1 examples on the first axis of every array.
        x2: N2 examples of the same shape; those of ``x1`` by default.
        method: ``"contraction"`` of the Jacobians, kernel-vector ``"products"``, the ``"structured"`` sum over the
            places where parameters are used, or (``"auto"``) the one that takes the fewest operations, as
            `ntk_plan` counts them; those of the structured one weigh one and a half, those of products, which come
            one example after the other, three times as much. All give the same kernel.
        trace: sum over equal outputs, as one does for nets whose outputs share their hidden layers.

    Returns:
        For an output of shape S the kernel is (N1, N2, \*S, \*S): entry ``[i, j, a, b]`` is the inner product of
        the gradients of ``f(params, x1[i])[a]`` and ``f(params, x2[j])[b]``; for a scalar, and with ``trace``,
        (N1, N2). Sums run in float32 where the parameters are of half precision.

    Raises:
        ValueError: where ``x1`` and ``x2`` differ in more than their lengths, a method is not known, or the structured
            one is asked for where no leaf has a product to take apart.
        TypeError: where a leaf of ``params`` is not floating-point, or ``f`` does not return one real array.

    >>> def f(w, x):
    ...     return x @ w
    >>> ntk(f, jnp.ones(2), jnp.array([[1.0, 2.0], [3.0, 4.0]]))
    Array([[ 5., 11.],
           [11., 25.]], dtype=float32)

    Source: Jacot, Gabriel & Hongler 2018, Neural tangent kernel; Novak, Sohl-Dickstein & Schoenholz 2022, Fast finite
    width neural tangent kernel (the three contractions).
    """
    warn_if_jaxlib_is_wrong()
    params, plan = _planned("ntk", f, params, x1, x2, method, trace)
    kernel = _program(f, plan.method, trace)(params, x1, x2)
    return kernel.astype(jnp.result_type(*jax.tree.leaves(params)))


def ntk_plan(
    f: Callable[..., Any],
    params: PyTree,
    x1: PyTree,
    x2: PyTree | None = None,
    method: Literal["auto", "contraction", "products", "structured"] = "auto",
    trace: bool = False,
) -> "KernelPlan":
    """Which contraction `ntk` takes, what each would cost, and how the structured one meets each leaf.

    Arguments and errors are those of `ntk`; arrays may be ``jax.ShapeDtypeStruct``. Nothing is computed.

    >>> plan = ntk_plan(lambda w, x: jnp.tanh(x @ w), jnp.ones((30, 40)), jnp.ones((8, 30)))
    >>> plan.method
    'structured'

    Source: Novak, Sohl-Dickstein & Schoenholz 2022, Fast finite width neural tangent kernel.
    """
    warn_if_jaxlib_is_wrong()
    return _planned("ntk_plan", f, params, x1, x2, method, trace, always=True)[1]


@dataclasses.dataclass(frozen=True, repr=False)
class KernelPlan:
    """What `ntk` does, as `ntk_plan` tells it. It prints as two tables; `plot` draws the costs.

    Attributes:
        method: the contraction that is taken.
        operations: of each contraction, counted in its jaxpr (see `jaxblocks.ad.count_flops`).
        leaves: what the structured one does with each leaf: ``"pairs"`` of positions, ``"chain"`` (the pairs
            summed over one position after the other), ``"product"`` of the factors, ``"formed"``.

    >>> print(KernelPlan("products", {"contraction": 300, "products": 200}, ()))
    method              operations    / least
    ----------------  ------------  ---------
    contraction                300        1.5
    products (taken)           200          1
    """

    method: str
    operations: dict[str, int]
    leaves: tuple[LeafWay, ...]

    def explain(self) -> str:
        """The plan in words: the costs of the contractions, and a line for each leaf.

        >>> print(KernelPlan("products", {"products": 200}, ()).explain())
        method              operations    / least
        ----------------  ------------  ---------
        products (taken)           200          1
        """
        return "\n\n".join(self._tables("simple"))

    def __repr__(self):
        return self.explain()

    def _repr_html_(self) -> str:
        return "".join(self._tables("html"))

    def plot(self, ax=None):
        """Bars of the operations of each contraction; returns the axes.

        >>> import pytest
        >>> matplotlib = pytest.importorskip("matplotlib")
        >>> matplotlib.use("agg")
        >>> KernelPlan("products", {"contraction": 300, "products": 200}, ()).plot().get_ylabel()
        'operations'
        """
        ax = axes_or_new(ax)
        colors = ["C1" if name == self.method else "C0" for name in self.operations]
        ax.bar(list(self.operations), list(self.operations.values()), color=colors)
        ax.set_yscale("log")
        ax.set_ylabel("operations")
        return ax

    def _tables(self, style) -> list[str]:
        from tabulate import tabulate

        least = max(1, min(self.operations.values()))
        costs = {
            "method": [f"{name} (taken)" if name == self.method else name for name in self.operations],
            "operations": [f"{n:,}" for n in self.operations.values()],
            "/ least": [f"{n / least:.3g}" for n in self.operations.values()],
        }
        tables = [tabulate(costs, headers="keys", tablefmt=style, colalign=("left", "right", "right"))]
        if self.leaves:
            tables.append(tabulate(table_of_leaves(self.leaves), headers="keys", tablefmt=style, colalign=ALIGNED))
        return tables


# ---- the choice ---------------------------------------------------------------------------


def _planned(where, f, params, x1, x2, method, trace, always=False):
    if not callable(f):
        raise TypeError(f"{where} expects a function f first, but {describe_any(f)} came; write {where}(f, params, x).")
    if method not in ("auto", *_METHODS):
        known = ", ".join(map(repr, ("auto", *_METHODS)))
        raise ValueError(f"{where} expects method to be one of {known}, but {method!r} came.")
    params = sites.floating_params(where, params)
    n1 = sites.same_lengths(where, ["x1"], [x1])
    n2 = n1 if x2 is None else sites.same_lengths(where, ["x2"], [x2])
    one = sites.of_one_example(x1)
    if x2 is not None:
        _require_alike(where, one, sites.of_one_example(x2))
    value = jax.eval_shape(f, params, one)
    if not isinstance(value, jax.ShapeDtypeStruct) or not jnp.issubdtype(value.dtype, jnp.floating):
        came = describe(value) if isinstance(value, jax.ShapeDtypeStruct) else f"a {type(value).__name__}"
        raise TypeError(f"{where} expects f to return one floating-point array, but {came} came.")
    leaves: tuple[LeafWay, ...] = ()
    if method in ("auto", "structured") or always:
        reading = sites.read(f, params, one)
        leaves = tuple(_way(reading, i, n1, n2, value.size, trace) for i in range(len(reading.names)))
        if method == "structured" and not any(reading.sites):
            raise ValueError(
                f"{where} finds no product to take apart: of params{reading.names[0]}, {reading.reasons[0]}; "
                'use method="auto".'
            )
    operations = {}
    if method == "auto" or always:
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (params, x1, x2))
        for name in _METHODS:
            if name != "structured" or any(reading.sites):
                operations[name] = count_flops(_program(f, name, trace), *shapes).flops
    if method == "auto":
        method = min(operations, key=lambda name: _WEIGHTS[name] * operations[name])
    return params, KernelPlan(method, operations, leaves)


def _require_alike(where, one, other):
    first = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(one)}
    second = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(other)}
    if jax.tree.structure(one) != jax.tree.structure(other):
        raise ValueError(
            f"{where} expects x2 like x1, but their structures differ: {jax.tree.structure(one)} for x1 and "
            f"{jax.tree.structure(other)} for x2."
        )
    for path, leaf in first.items():
        if (leaf.shape, leaf.dtype) != (second[path].shape, second[path].dtype):
            raise ValueError(
                f"{where} expects examples of one kind, but one of x1{path} is {describe(leaf)} and one of x2{path} "
                f"is {describe(second[path])}; only the first axis, which counts them, may differ."
            )


def _program(f, method, trace):
    """The kernel as a function of (params, x1, x2)."""
    return functools.partial({"contraction": _contraction, "products": _products}.get(method, _structured), f, trace)


def _way(reading, leaf, n1, n2, outputs, trace) -> LeafWay:
    """How the structured contraction meets a leaf, by the operations of one pair of examples."""
    own, name = reading.sites[leaf], reading.names[leaf]
    size = reading.closed_jaxpr.jaxpr.invars[leaf].aval.size
    both = outputs if trace else outputs**2
    if not own:
        return LeafWay(name, "formed", reading.reasons[leaf], (), both * size)
    form = (n1 + n2) / (n1 * n2) * outputs
    formed = both * size + round(form * sum(math.prod(site.sizes) for site in own))
    ways = [_way_of_pair(one, other, outputs, trace) for one in own for other in own]
    cost = sum(own_cost for _, own_cost in ways)
    if formed <= cost:
        single = len(own) == 1 and own[0].kind != "rows"
        way = "product" if single else "formed"
        return LeafWay(name, way, "fewer operations than pairs of positions", labels_of(own), formed)
    way = " and ".join(dict.fromkeys(way for way, _ in ways if way != "apart"))
    return LeafWay(name, way, "fewer operations than its gradients", labels_of(own), cost)


def _way_of_pair(one, other, outputs, trace) -> tuple[str, int]:
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


# ---- the three contractions ---------------------------------------------------------------


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
        return [_flat(leaf, math.prod(shape)) for leaf in jax.tree.leaves(found)]

    left = jacobians(x1)
    right = left if x2 is None else jacobians(x2)
    dtype = wide_dtype(jnp.result_type(*jax.tree.leaves(params)))
    kernel = sum(_outer(a, b, trace).astype(dtype) for a, b in zip(left, right, strict=True))
    return _shaped(kernel, shape, trace)


def _flat(leaf, outputs):
    return widen(leaf.reshape(leaf.shape[0], outputs, math.prod(leaf.shape) // (leaf.shape[0] * outputs)))


def _products(f, trace, params, x1, x2):
    value = jax.eval_shape(f, params, sites.of_one_example(x1))
    basis = jnp.eye(value.size, dtype=value.dtype).reshape(value.size, *value.shape)
    _, push = jax.linearize(lambda params: jax.vmap(lambda x: f(params, x))(x1), params)

    def column(x):  # of one example of x2: (N1, O, O), or (N1,)
        _, pull = jax.vjp(lambda params: f(params, x), params)
        pushed = jax.vmap(lambda e: push(*pull(e)))(basis)  # (O of x2, N1, *S)
        pushed = widen(pushed.reshape(value.size, -1, value.size))
        return jnp.einsum("oio->i", pushed) if trace else pushed.transpose(1, 2, 0)

    kernel = jnp.moveaxis(map_in_chunks(column, x1 if x2 is None else x2, 1), 0, 1)
    return _shaped(kernel, value.shape, trace)


def _structured(f, trace, params, x1, x2):
    value = jax.eval_shape(f, params, sites.of_one_example(x1))
    n1 = jax.tree.leaves(x1)[0].shape[0]
    n2 = n1 if x2 is None else jax.tree.leaves(x2)[0].shape[0]
    reading = sites.read(f, params, sites.of_one_example(x1))
    ways = [_way(reading, i, n1, n2, value.size, trace) for i in range(len(reading.names))]
    taken = functools.partial(_taken, reading, ways, jax.tree.leaves(params), value, trace)
    left = taken(x1)
    right = left if x2 is None else taken(x2)

    dtype = wide_dtype(jnp.result_type(*jax.tree.leaves(params)))

    def rows(left):
        terms = []
        for i, way in enumerate(ways):
            if way.way in ("formed", "product"):
                terms.append(_outer(left[i], right[i], trace))
                continue
            for s, one in enumerate(reading.sites[i]):
                for t, other in enumerate(reading.sites[i]):
                    if sites.fit(one, other) != "apart":
                        terms.append(_of_sites(one, left[i][s], other, right[i][t], value.size, trace))
        return sum(term.astype(dtype) for term in terms)

    block = max(1, _BLOCK // max(1, n2 * _between(reading, ways, value.size, trace)))
    if block >= n1:
        return _shaped(rows(left), value.shape, trace)
    # A few rows at a time, all blocks of one size: the last overlaps the one before it.
    block = math.ceil(n1 / math.ceil(n1 / block))

    def write(kernel, start):
        own = rows(jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, block), left))
        return jax.lax.dynamic_update_slice_in_dim(kernel, own, start, axis=0), None

    starts = jnp.minimum(block * jnp.arange(math.ceil(n1 / block)), n1 - block)
    both = () if trace else (value.size, value.size)
    kernel, _ = jax.lax.scan(write, jnp.zeros((n1, n2, *both), dtype), starts)
    return _shaped(kernel, value.shape, trace)


def _between(reading, ways, outputs, trace) -> int:
    """Numbers that a pair of examples holds between its factors and the kernel, at the most."""
    both = 1 if trace else outputs**2
    largest = both
    for own, way in zip(reading.sites, ways, strict=True):
        for one in own if "pairs" in way.way or "chain" in way.way else ():
            b, p, _, n = one.sizes
            for other in own:
                chain = _way_of_pair(one, other, outputs, trace)[0] == "chain"
                largest = max(largest, b * p * (n * outputs if chain else other.sizes[1] * both))
    return largest


def _taken(reading, ways, leaves, value, trace, x):
    """Of every example and leaf, its factors at each site, or its gradients (N, O, size)."""
    by_sites = [i for i, way in enumerate(ways) if way.way != "formed"]
    basis = jnp.eye(value.size, dtype=value.dtype).reshape(value.size, *value.shape)

    def one(x):
        _, pullback, records = sites.pullback_at(reading, by_sites, leaves, jax.tree.leaves(x))
        cotangents, gradients = jax.vmap(lambda e: pullback([e]))(basis)
        found = []
        for i, (leaf, way) in enumerate(zip(leaves, ways, strict=True)):
            dtype = wide_dtype(leaf.dtype)
            if way.way == "formed":
                found.append(gradients[i].reshape(value.size, leaf.size).astype(dtype))
                continue
            own = []
            for site in reading.sites[i]:
                at = functools.partial(sites.factors, site, records, dtype=dtype)
                own.append(jax.vmap(at, out_axes=sites.Factors(None, 0))(cotangents))  # v (O, 1, b, p, n)
            if way.way == "product":
                v = own[0].v[:, 0]
                own = sites.product(reading.sites[i][0], sites.Factors(own[0].u, v)).reshape(value.size, leaf.size)
            elif trace:
                own = [sites.Factors(u, v[:, 0]) for u, v in own]
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
        # In the words of a bias's gradients, so that the compiler sees that their products are the same.
        weights = jnp.einsum("ic,jc->ij", left.u[:, 0, 0], right.u[:, 0, 0])
        same = _outer(_without_positions(left.v), _without_positions(right.v), trace)
        return same * (weights if trace else weights[:, :, None, None])
    way, _ = _way_of_pair(one, other, outputs, trace)
    pair = functools.partial(_of_pair, one, other, way == "chain")
    if not trace:
        per_output = sites.Factors(None, 0)
        pair = jax.vmap(jax.vmap(pair, in_axes=(None, per_output)), in_axes=(per_output, None))
    return jax.vmap(jax.vmap(pair, in_axes=(None, 0)), in_axes=(0, None))(left, right)


def _without_positions(v):
    """(N, O, n) out of (N, O, 1, 1, 1, n), or of (N, O, 1, 1, n) with the trace."""
    return v.reshape(*v.shape[:2], v.shape[-1])


def _of_pair(one, other, through, left, right):
    return sites.inner(one, left, other, right, through=through)


# ---- the infinite net ---------------------------------------------------------------------


def ntk_relu(x1: Float[Array, "n1 features"], x2: Float[Array, "n2 features"] | None = None) -> Float[Array, "n1 n2"]:
    r"""The tangent kernel of a net with one infinitely wide hidden layer of ReLUs, both layers trained.

    For :math:`f(x) = \sqrt{2/m} \sum_{k=1}^m v_k \max(0, w_k \cdot x)` with all :math:`w_k, v_k` standard normal, no
    biases, the kernel tends, as :math:`m \to \infty`, to

    .. math:: \Theta(x, x') = \|x\| \|x'\| \left( \kappa_1(u) + u \, \kappa_0(u) \right),
        \qquad u = \cos\vartheta = \frac{x \cdot x'}{\|x\| \|x'\|},

    .. math:: \kappa_0(u) = \frac{\pi - \vartheta}{\pi},
        \qquad \kappa_1(u) = \frac{u (\pi - \vartheta) + \sqrt{1 - u^2}}{\pi}:

    :math:`\kappa_1` comes from the :math:`v_k`, :math:`u \kappa_0` from the :math:`w_k`. For unit inputs the diagonal
    is 2. The angle is taken as twice the arctangent of :math:`|a - b| / |a + b|` between the unit vectors, which is
    exact for equal and for opposite inputs too; an input of zeros has the kernel 0.

    Args:
        x1: N1 inputs.
        x2: N2 inputs; those of ``x1`` by default.

    Returns:
        (N1, N2).

    Raises:
        TypeError: where an input is not floating-point.
        ValueError: where they have not two axes, or different numbers of features.

    >>> ntk_relu(jnp.array([[1.0, 0.0]]), jnp.array([[0.6, 0.8], [1.0, 0.0]])).round(5)
    Array([[1.1004499, 2.       ]], dtype=float32)

    Source: Jacot, Gabriel & Hongler 2018, Neural tangent kernel; Cho & Saul 2009, Kernel methods for deep learning
    (the arc-cosine kernels).
    """
    return kernel_of_angles(
        "ntk_relu", x1, x2, lambda angle: (2 * jnp.cos(angle) * (jnp.pi - angle) + jnp.sin(angle)) / jnp.pi
    )


def kernel_of_angles(where: str, x1, x2, kappa: Callable) -> Array:
    r"""The kernel :math:`\|x\| \|x'\| \kappa(\vartheta)` of the angles between the rows of two batches.

    >>> kernel_of_angles("angle", jnp.array([[3.0, 0.0]]), jnp.array([[0.0, 2.0], [1.0, 0.0]]), lambda angle: angle)
    Array([[9.424778, 0.      ]], dtype=float32)
    """
    x2 = x1 if x2 is None else x2
    require_floating(where, x1=x1, x2=x2)
    if x1.ndim != 2 or x2.ndim != 2 or x1.shape[1] != x2.shape[1]:
        raise ValueError(
            f"{where} expects two batches of vectors of one length, but {describe(x1)} and {describe(x2)} came; "
            "give them the shapes (n1, features) and (n2, features)."
        )
    dtype = jnp.result_type(x1, x2)
    x1, x2 = widen(x1), widen(x2)
    norm1, norm2 = _norm(x1), _norm(x2)
    one, other = _directions(x1, norm1), _directions(x2, norm2)

    def row(a):  # the angle from its half's tangent, which is exact for equal and for opposite inputs
        return kappa(2 * jnp.arctan2(_norm(a[None] - other), _norm(a[None] + other)))

    return (norm1[:, None] * norm2[None] * jax.lax.map(row, one)).astype(dtype)


def _directions(x, norm):
    """Of the rows; of a row of zeros any, since its kernel is 0."""
    some = jnp.eye(1, x.shape[1], dtype=x.dtype)
    return jnp.where(norm[:, None] > 0, x / jnp.where(norm > 0, norm, 1)[:, None], some)


def _norm(x):
    """Of the rows, with a derivative of zero at zero."""
    square = jnp.sum(jnp.square(x), axis=-1)
    return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1)), 0)


# ---- learning with a constant kernel ------------------------------------------------------


def kernel_regression(
    kernel: Float[Array, "..."],
    y: Float[Array, "..."],
    test_kernel: Float[Array, "..."] | None = None,
    *,
    time: int | float | Num[Array, "..."] | None = None,
    rate: int | float = 1.0,
    start: Float[Array, "..."] | None = None,
    test_start: Float[Array, "..."] | None = None,
    discrete: bool = False,
) -> Float[Array, "..."]:
    r"""What a net with a constant tangent kernel predicts after training for a time.

    On the loss :math:`\frac{1}{2} \sum_i |f(x_i) - y_i|^2`, gradient flow at the rate :math:`\eta` moves the
    outputs by :math:`\dot f = -\eta K (f - y)`, so that

    .. math:: f_t(x) = f_0(x) + K(x, X) \, K^{-1} \left( I - e^{-\eta K t} \right) (y - f_0(X)).

    With ``discrete`` it is gradient descent: :math:`(I - \eta K)^t` for :math:`e^{-\eta K t}`, t steps.

    Args:
        kernel: K on the N training inputs, (N, N), or (N, N, O, O) as `ntk` returns it.
        y: targets (N,) or (N, O).
        test_kernel: K(x, X), (M, N) or (M, N, O, O); that of the training inputs by default.
        time: t, a number or several (T,); without it the limit of infinite time: kernel regression.
        rate: the learning rate :math:`\eta`.
        start: :math:`f_0(X)`, like ``y``; zero by default.
        test_start: :math:`f_0(x)`, (M,) or (M, O); ``start`` where there is no ``test_kernel``, else zero by default.
        discrete: whether t counts steps of gradient descent.

    Returns:
        (M,) or (M, O); with several times a first axis for them. Directions of K that are zero up to rounding
        (below N times the precision, of the largest) do not move.

    Raises:
        ValueError: where the shapes do not belong together.

    >>> K, y = jnp.array([[2.0, 0.0], [0.0, 1.0]]), jnp.array([1.0, 1.0])
    >>> kernel_regression(K, y, time=jnp.array([0.0, 100.0]))
    Array([[0., 0.],
           [1., 1.]], dtype=float32)

    Source: Jacot, Gabriel & Hongler 2018, Neural tangent kernel, section 5; Lee et al. 2019, Wide neural networks of
    any depth evolve as linear models.
    """
    require_floating("kernel_regression", kernel=kernel, y=y)
    alone = test_kernel is None
    test_kernel = kernel if alone else test_kernel
    count, outputs = y.shape[0] if y.ndim else 0, y.shape[1:]
    ends = (outputs * 2) if kernel.ndim == 4 else ()
    if y.ndim not in (1, 2) or kernel.shape != (count, count, *ends) or test_kernel.shape[1:] != (count, *ends):
        raise ValueError(
            "kernel_regression expects a kernel (N, N) or (N, N, O, O), targets (N,) or (N, O) and a test kernel "
            f"(M, N) or (M, N, O, O), but {describe(kernel)}, {describe(y)} and {describe(test_kernel)} came."
        )
    tests = (test_kernel.shape[0], *outputs)
    start = jnp.zeros_like(y) if start is None else start
    if test_start is None:
        test_start = start if alone else jnp.zeros(tests, y.dtype)
    if start.shape != y.shape or test_start.shape != tests:
        raise ValueError(
            f"kernel_regression expects start like y, {describe(y)}, and test_start of shape {tests}, but "
            f"{describe(start)} and {describe(test_start)} came."
        )
    matrix, across, rest = kernel, test_kernel, (y - start).reshape(count, -1)
    if kernel.ndim == 4:  # outputs beside examples
        matrix = kernel.transpose(0, 2, 1, 3).reshape(y.size, y.size)
        across = test_kernel.transpose(0, 2, 1, 3).reshape(math.prod(tests), y.size)
        rest = rest.reshape(y.size, 1)
    values, vectors = jnp.linalg.eigh(matrix)
    real = values > values.shape[0] * jnp.finfo(values.dtype).eps * values[-1]
    safe = jnp.where(real, values, 1)
    modes, weights = across @ vectors, vectors.T @ rest

    def at(time):
        left = jnp.zeros_like(safe) if time is None else _left(safe * rate, time, discrete)
        gain = jnp.where(real, -(left - 1 if time is None else left) / safe, 0)
        return test_start + (modes @ (gain[:, None] * weights)).reshape(tests)

    if time is None:
        return at(None)
    time = jnp.asarray(time, values.dtype)
    return jax.vmap(at)(time) if time.ndim else at(time)


def _left(speed, time, discrete):
    """What is left of each mode, minus one: exact where little has happened."""
    if not discrete:
        return jnp.expm1(-speed * time)
    below = speed < 1
    slow = jnp.expm1(time * jnp.log1p(-jnp.where(below, speed, 0)))
    size = jnp.where(below, 1, speed - 1)
    sign = jnp.where(time % 2 == 1, -1, 1).astype(speed.dtype)
    return jnp.where(below, slow, sign * size**time - 1)
