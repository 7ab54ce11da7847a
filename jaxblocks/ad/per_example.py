r"""Gradients of the loss of each example: themselves, their norms alone, and their noise over minibatches.

    g_i    the gradient of example i's loss,  g  their mean over the N examples
    Sigma  the covariance of the g_i, (1/N) sum_i (g_i - g)(g_i - g)^T

The norms are taken from the factors of each gradient (`jaxblocks.ad.sites`): for a kernel used at
the positions p, g_i = sum_p u_p v_p^T and

    |g_i|^2 = sum_pq (u_p . u_q)(v_p . v_q).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from jaxblocks.ad import sites
from jaxblocks.ad.jaxlib_check import warn_if_jaxlib_is_wrong
from jaxblocks.ad.loops import map_in_chunks
from jaxblocks.checks import describe, describe_any, require_whole
from jaxblocks.precision import wide_dtype

__all__ = [
    "GradientNoise",
    "LeafWay",
    "NormsPlan",
    "gradient_noise",
    "per_example_gradients",
    "per_example_norms",
    "per_example_norms_plan",
]


def per_example_gradients(
    loss: Callable[..., Any], params: PyTree, *batch: PyTree, chunk_size: int | None = None
) -> PyTree:
    r"""The gradient :math:`g_i` of each example's loss with respect to the parameters.

    Args:
        loss: ``loss(params, *example)``, a scalar for one example: it sees the arrays without their batch axis.
        params: a pytree of floating-point arrays.
        batch: pytrees of arrays whose first axis counts the N examples (keys for dropout among them).
        chunk_size: how many examples are differentiated at once; all by default. With fewer the memory of the
            backward pass is that of a chunk, and the chunks follow each other in a loop (in which XLA's
            convolutions are slow on CPUs).

    Returns:
        like ``params``, every leaf with a first axis of length N.

    Raises:
        ValueError: where the loss of one example is no scalar, or the batch arguments differ in length.
        TypeError: where a leaf of ``params`` is not floating-point.

    >>> x, y = jnp.array([[1.0, 0.0], [0.0, 2.0]]), jnp.array([0.0, 1.0])
    >>> per_example_gradients(lambda w, x, y: (x @ w - y) ** 2, jnp.ones(2), x, y)
    Array([[2., 0.],
           [0., 4.]], dtype=float32)

    Source: Abadi et al. 2016, Deep learning with differential privacy (one gradient for each example).
    """
    warn_if_jaxlib_is_wrong()
    params, _ = _checked("per_example_gradients", loss, params, batch)
    return _over_examples(lambda *example: jax.grad(loss)(params, *example), batch, chunk_size, "per_example_gradients")


def per_example_norms(
    loss: Callable[..., Any],
    params: PyTree,
    *batch: PyTree,
    per_leaf: bool = False,
    chunk_size: int | None = None,
) -> PyTree:
    r"""The norm :math:`\|g_i\|` of each example's gradient, without the gradients of kernels and tables.

    One backward pass gives the cotangents where each parameter is used; there the norm of a dense or convolution
    kernel's gradient follows from its factors, by pairs of positions or by their product, whichever takes fewer
    operations, and that of an embedding's table from the rows that were read. Weights that are shared, tied or
    scanned are right, cross terms included. Whatever enters in another way (a bias, a scale, an unknown
    function) has its gradient formed, so that the norms are always those of `per_example_gradients`;
    `per_example_norms_plan` tells which leaf went which way.

    Args:
        loss, params, batch, chunk_size: as for `per_example_gradients`.
        per_leaf: return the norms of each leaf's gradient, like ``params``, instead of those of the whole.

    Returns:
        (N,), or with ``per_leaf`` a pytree of them.

    Raises:
        ValueError, TypeError: as `per_example_gradients` does.

    >>> x, y = jnp.array([[3.0, 4.0], [0.0, 1.0]]), jnp.array([4.0, 1.0])
    >>> per_example_norms(lambda w, x, y: (x @ w - y) ** 2 / 2, jnp.ones(2), x, y)
    Array([15.,  0.], dtype=float32)

    Source: Goodfellow 2015, Efficient per-example gradient computations; Li et al. 2021, Large language models can be
    strong differentially private learners (the norm by pairs of positions).
    """
    warn_if_jaxlib_is_wrong()
    params, _ = _checked("per_example_norms", loss, params, batch)
    reading = sites.read(loss, params, *map(sites.of_one_example, batch))
    leaves, structure = jax.tree.flatten(params)
    ways = _ways(reading)
    by_sites = [i for i, way in enumerate(ways) if way.way != "formed"]

    def squares(*example):
        [value], pullback, records = sites.pullback_at(reading, by_sites, leaves, jax.tree.leaves(example))
        cotangents, gradients = pullback([jnp.ones_like(value)])
        found = []
        for i, leaf in enumerate(leaves):
            dtype = wide_dtype(leaf.dtype)
            if ways[i].way == "formed":
                found.append(jnp.sum(jnp.square(gradients[i].astype(dtype))))
            else:
                found.append(_square_at(reading.sites[i], records, cotangents, dtype))
        return found

    found = _over_examples(squares, batch, chunk_size, "per_example_norms")
    if per_leaf:
        return structure.unflatten(
            [jnp.sqrt(square).astype(leaf.dtype) for square, leaf in zip(found, leaves, strict=True)]
        )
    dtype = jnp.result_type(*leaves)
    return jnp.sqrt(sum(square.astype(wide_dtype(dtype)) for square in found)).astype(dtype)


def _square_at(own, records, cotangents, dtype):
    """The squared norm of one leaf's gradient for one example."""
    taken = [sites.factors(site, records, cotangents, dtype) for site in own]
    total = jnp.zeros((), dtype)
    for i, (one, left) in enumerate(zip(own, taken, strict=True)):
        way = _way_at(one)[0]
        if way == "product":
            total += jnp.sum(jnp.square(sites.product(one, left)))
        elif way == "rows":
            total += _square_of_rows(left)
        else:
            total += sites.inner(one, left, one, left)
        for other, right in zip(own[i + 1 :], taken[i + 1 :], strict=True):
            total += 2 * sites.inner(one, left, other, right)
    return jnp.maximum(total, 0)  # a square, rounding aside


def _square_of_rows(own):
    """Equal rows add up: sorted, they are segments. The table itself is never made."""

    def one(u, v):  # (p,), (p, n)
        order = jnp.argsort(u)
        first = jnp.diff(u[order], prepend=u[order][:1]) != 0
        return jnp.sum(jnp.square(jax.ops.segment_sum(v[order], jnp.cumsum(first), num_segments=u.shape[0])))

    return jnp.sum(jax.vmap(one)(own.u, own.v[0]))


# ---- the plan -----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class LeafWay:
    """How the gradient of one leaf is met.

    Attributes:
        name: of the leaf, as in ``"['kernel']"``.
        way: ``"pairs"`` of positions, ``"product"`` of the factors, ``"rows"`` of a table, or ``"formed"``.
        reason: why, in words.
        sites: at how many products it is used, as in ``"dense (1, 5, 3, 4)"``: the sizes of b, p, c, n.
        operations: predicted multiplications beside the backward pass, for one example (or a pair of them).

    >>> LeafWay("['bias']", "formed", "add uses it", (), 4).way
    'formed'
    """

    name: str
    way: str
    reason: str
    sites: tuple[str, ...]
    operations: int


@dataclasses.dataclass(frozen=True, repr=False)
class NormsPlan:
    """What `per_example_norms` does with each leaf. It prints as a table.

    >>> plan = per_example_norms_plan(lambda w, x: jnp.sum(x @ w), jnp.ones((3, 4)), jnp.ones((2, 5, 3)))
    >>> plan[""].way, plan[""].sites
    ('product', ('dense (1, 5, 3, 4)',))
    """

    leaves: tuple[LeafWay, ...]

    def __getitem__(self, name: str) -> LeafWay:
        for leaf in self.leaves:
            if leaf.name == name:
                return leaf
        raise KeyError(f"This plan has no leaf {name!r}; it has {', '.join(repr(leaf.name) for leaf in self.leaves)}.")

    def explain(self) -> str:
        """The plan in words: a line for each leaf.

        >>> print(NormsPlan((LeafWay("['bias']", "formed", "add uses it", (), 4),)).explain())
        leaf      way     used as      operations  why
        --------  ------  ---------  ------------  -----------
        ['bias']  formed  -                     4  add uses it
        """
        return self._table("simple")

    def __repr__(self):
        return self.explain()

    def _repr_html_(self) -> str:
        return self._table("html")

    def _table(self, style) -> str:
        from tabulate import tabulate

        return tabulate(table_of_leaves(self.leaves), headers="keys", tablefmt=style, colalign=ALIGNED)


ALIGNED = ("left", "left", "left", "right", "left")


def labels_of(own) -> tuple[str, ...]:
    """The sites of a leaf in words."""
    return tuple(f"{site.kind} {site.sizes}" for site in own)


def table_of_leaves(leaves: tuple[LeafWay, ...]) -> dict[str, list]:
    """The columns of a plan's table."""
    return {
        "leaf": [leaf.name or "params" for leaf in leaves],
        "way": [leaf.way for leaf in leaves],
        "used as": [_in_words(leaf.sites) for leaf in leaves],
        "operations": [f"{leaf.operations:,}" for leaf in leaves],
        "why": [leaf.reason for leaf in leaves],
    }


def _in_words(labels) -> str:
    counts = {label: labels.count(label) for label in dict.fromkeys(labels)}
    return ", ".join(label if n == 1 else f"{n} x {label}" for label, n in counts.items()) or "-"


def per_example_norms_plan(loss: Callable[..., Any], params: PyTree, *batch: PyTree) -> NormsPlan:
    """Which leaf's norms `per_example_norms` takes in which way, and why; nothing is computed.

    Arguments and errors are those of `per_example_norms`; arrays may be ``jax.ShapeDtypeStruct``.

    >>> def loss(table, ids):
    ...     return jnp.sum(table[ids] ** 2)
    >>> per_example_norms_plan(loss, jnp.ones((100, 3)), jnp.zeros((2, 5), int))
    leaf    way    used as                operations  why
    ------  -----  -------------------  ------------  ---------------------------
    params  rows   rows (1, 5, 100, 3)            15  only the rows that are read
    """
    params, _ = _checked("per_example_norms_plan", loss, params, batch)
    return NormsPlan(_ways(sites.read(loss, params, *map(sites.of_one_example, batch))))


def _ways(reading) -> tuple[LeafWay, ...]:
    return tuple(_way(reading, i) for i in range(len(reading.names)))


def _way(reading, leaf) -> LeafWay:
    own = reading.sites[leaf]
    size = reading.closed_jaxpr.jaxpr.invars[leaf].aval.size
    name = reading.names[leaf]
    labels = labels_of(own)
    if not own:
        return LeafWay(name, "formed", reading.reasons[leaf], (), size)
    ways = [_way_at(site) for site in own]
    formed = sum(b * (p + 1) * c * n for b, p, c, n in (site.sizes for site in own))
    operations = sum(cost for _, cost in ways)
    operations += sum(_pairs(one, other) for i, one in enumerate(own) for other in own[i + 1 :])
    if formed < operations:
        return LeafWay(name, "formed", "fewer operations than all pairs of its uses", labels, formed)
    way = " and ".join(dict.fromkeys(way for way, _ in ways))
    return LeafWay(name, way, _REASONS.get(way, "each of its uses in its cheapest way"), labels, operations)


_REASONS = {
    "pairs": "fewer operations than its gradient",
    "product": "fewer operations than pairs of positions",
    "rows": "only the rows that are read",
}


def _way_at(site) -> tuple[str, int]:
    """The way of one site's own square, and its operations."""
    b, p, c, n = site.sizes
    if site.kind == "rows":
        return "rows", b * p * n
    return min(("product", b * (p + 1) * c * n), ("pairs", _pairs(site, site)), key=lambda way: way[1])


def _pairs(one, other) -> int:
    if sites.fit(one, other) == "apart":
        return 0
    b, p, c, n = one.sizes
    return b * p * other.sizes[1] * ((1 if one.kind == "rows" else c) + n + 1)


# ---- noise --------------------------------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GradientNoise:
    r"""How far the gradient of a minibatch lies from that of all data: the record of `gradient_noise`.

    Attributes:
        gradient: :math:`g`, like the parameters.
        squared_norm: :math:`|g|^2`.
        trace: :math:`\operatorname{tr} \Sigma`, the mean squared distance of an example's gradient from :math:`g`.
        batch_trace: that of a minibatch's gradient, :math:`\frac{\operatorname{tr}\Sigma}{B}\frac{N-B}{N-1}`.
        noise_scale: :math:`\operatorname{tr}\Sigma / |g|^2`, the batch size at which the noise is as large as
            the gradient; infinite where the gradient is zero.
        covariance: of a minibatch's gradient, :math:`\frac{\Sigma}{B}\frac{N-B}{N-1}`, (n, n) in the order
            of ``ravel_pytree``; ``None`` unless it was asked for.
        examples, batch_size: :math:`N` and :math:`B`.

    >>> noise = gradient_noise(lambda w, x: w * x, 1.0, jnp.array([1.0, 2.0, 3.0]), batch_size=2)
    >>> noise.examples, noise.batch_size
    (3, 2)
    """

    gradient: PyTree
    squared_norm: Float[Array, ""]
    trace: Float[Array, ""]
    batch_trace: Float[Array, ""]
    noise_scale: Float[Array, ""]
    covariance: Float[Array, "n n"] | None
    examples: int = dataclasses.field(metadata={"static": True})
    batch_size: int = dataclasses.field(metadata={"static": True})


def gradient_noise(
    loss: Callable[..., Any],
    params: PyTree,
    *data: PyTree,
    batch_size: int,
    covariance: bool = False,
    chunk_size: int | None = None,
) -> GradientNoise:
    r"""The noise of minibatch gradients: B of the N examples, drawn without replacement.

    The mean gradient of such a batch has the mean :math:`g` and the covariance

    .. math:: \operatorname{Cov} = \frac{\Sigma}{B} \, \frac{N - B}{N - 1},
        \qquad \Sigma = \frac{1}{N} \sum_i (g_i - g)(g_i - g)^\top,

    exactly, for the average over all :math:`\binom{N}{B}` batches; at B = N there is none.

    Args:
        loss, params: as for `per_example_gradients`.
        data: all N examples, on the first axis of every array.
        batch_size: :math:`B`, from 1 to N.
        covariance: whether to return the matrix too: n by n numbers for n parameters.
        chunk_size: how many examples' gradients are held at once; all by default.

    The spread is summed from differences to :math:`g`, not from squares, so that it is right where it is small.

    Raises:
        ValueError: where ``batch_size`` is not from 1 to N; else as `per_example_gradients` does.

    >>> noise = gradient_noise(lambda w, x: w * x, 1.0, jnp.array([1.0, 2.0, 3.0]), batch_size=2)
    >>> [round(float(value), 4) for value in (noise.gradient, noise.trace, noise.batch_trace, noise.noise_scale)]
    [2.0, 0.6667, 0.1667, 0.1667]

    Source: Diehl 2023 (effect of gradient noise); McCandlish et al. 2018, An empirical model of large-batch training
    (the noise scale).
    """
    warn_if_jaxlib_is_wrong()
    params, count = _checked("gradient_noise", loss, params, data)
    batch_size = require_whole("gradient_noise", "batch_size", batch_size)
    if batch_size > count:
        raise ValueError(
            f"gradient_noise expects batch_size to be at most the number of examples, {count}, but {batch_size} came."
        )
    chunk = count if chunk_size is None else min(count, require_whole("gradient_noise", "chunk_size", chunk_size))
    dtype = wide_dtype(jnp.result_type(*jax.tree.leaves(params)))

    def flat(*example):
        return ravel_pytree(jax.grad(loss)(params, *example))[0].astype(dtype)

    def sums(of, like):
        """The sum of ``of(g_i)`` over all examples, a chunk at a time."""
        whole = count // chunk * chunk
        parts = jax.tree.map(lambda leaf: leaf[:whole].reshape(-1, chunk, *leaf.shape[1:]), data)

        def add(total, part):
            return total + of(jax.vmap(flat)(*part)), None

        total, _ = (of(jax.vmap(flat)(*data)), None) if chunk == count else jax.lax.scan(add, like, parts)
        rest = jax.tree.map(lambda leaf: leaf[whole:], data)
        return total if whole == count else total + of(jax.vmap(flat)(*rest))

    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    mean = sums(lambda g: jnp.sum(g, axis=0), jnp.zeros(size, dtype)) / count
    if covariance:
        spread = sums(lambda g: (g - mean[None]).T @ (g - mean[None]), jnp.zeros((size, size), dtype)) / count
        trace = jnp.trace(spread)
    else:
        spread = None
        trace = sums(lambda g: jnp.sum(jnp.square(g - mean[None])), jnp.zeros((), dtype)) / count
    share = (count - batch_size) / (batch_size * max(1, count - 1))
    squared_norm = jnp.sum(jnp.square(mean))
    _, unravel = ravel_pytree(params)
    return GradientNoise(
        gradient=unravel(mean.astype(jnp.result_type(*jax.tree.leaves(params)))),
        squared_norm=squared_norm,
        trace=trace,
        batch_trace=share * trace,
        noise_scale=jnp.where(squared_norm > 0, trace / jnp.where(squared_norm > 0, squared_norm, 1), jnp.inf),
        covariance=None if spread is None else share * spread,
        examples=count,
        batch_size=batch_size,
    )


# ---- what all of them ask for -------------------------------------------------------------


def _checked(where, loss, params, batch):
    """The parameters as arrays, and the number of examples; an error where the loss of one is no scalar."""
    if not callable(loss):
        came = describe_any(loss)
        raise TypeError(f"{where} expects a loss first, but {came} came; write {where}(loss, params, *batch).")
    params = sites.floating_params(where, params)
    count = sites.same_lengths(where, [f"batch[{i}]" for i in range(len(batch))], batch)
    value = jax.eval_shape(loss, params, *map(sites.of_one_example, batch))
    if not isinstance(value, jax.ShapeDtypeStruct):
        raise TypeError(
            f"{where} expects loss to return one scalar array, but a {type(value).__name__} came; return the value "
            "alone."
        )
    if value.shape:
        raise ValueError(
            f"{where} expects loss to return a scalar for one example, but {describe(value)} came; it sees the "
            "arrays without their batch axis: sum over what is left."
        )
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise TypeError(f"{where} expects loss to return a floating-point scalar, but {value.dtype} came.")
    return params, count


def _over_examples(f, batch, chunk_size, where):
    if chunk_size is None:
        return jax.vmap(f)(*batch)
    return map_in_chunks(lambda example: f(*example), batch, require_whole(where, "chunk_size", chunk_size))
