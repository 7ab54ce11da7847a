r"""The Kronecker factors of curvature matrices, from the products in which a network uses its parameters.

The gradient of one example at a kernel is a sum of outer products over the positions p that share the kernel
(`jaxblocks.ad.per_example.sites`), G_e = sum_p u_p v_ep^T, for each column e of the curvature of the loss
(`jaxblocks.ad.curvature.loss_roots`). The block of the curvature matrix is the mean over the N examples of
sum_e vec(G_e) vec(G_e)^T, and its approximation is A ⊗ B with

    expand    A = mean over i and p of u_p u_p^T,      B = mean over i of sum_ep v_ep v_ep^T
    reduce    A = mean over i of a a^T, a = mean_p u_p,      B = mean over i of sum_e g_e g_e^T, g_e = sum_p v_ep

A parameter that is used otherwise (a bias, a scale, an unknown function) is one vector: u = 1, v_e is its gradient, and
B is its exact block. The factor of a long side is diagonal.

    b    matrices in one parameter: groups, or steps of a scan with separate weights
    p    positions that share the matrix
    c    entries of u,  n    entries of v
    e    columns of the curvature of the loss
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from jaxblocks.ad.curvature.loss_roots import CurvatureMatrix, TargetLikelihood, loss_root
from jaxblocks.ad.per_example import factors, sites
from jaxblocks.ad.programs.arguments import batch_length, explained_model
from jaxblocks.ad.vectors.raveled import dot
from jaxblocks.backend.precision import wide_dtype
from jaxblocks.checks.errors import require

__all__ = [
    "Block",
    "FactorReader",
    "KroneckerFactors",
    "Layout",
    "WeightSharing",
    "factor_reader",
    "kronecker_factors",
    "plan_blocks",
    "squared_projections",
]

WeightSharing: TypeAlias = Literal["expand", "reduce"]


@dataclasses.dataclass(frozen=True)
class Layout:
    """A parameter as matrices (b, c, n): its axes in the order of b, c and n, where groups are a part of n."""

    shape: tuple[int, ...]
    order: tuple[int, ...]
    sizes: tuple[int, int, int, int]

    def to_matrices(self, leaf: Array) -> Array:
        """The matrices (b, c, n) of a parameter."""
        _, c, _, n = self.sizes
        return leaf.transpose(self.order).reshape(self.sizes).swapaxes(1, 2).reshape(-1, c, n)

    def to_leaf(self, matrices: Array) -> Array:
        """The parameter with these matrices."""
        b, c, groups, n = self.sizes
        moved = matrices.reshape(b, groups, c, n).swapaxes(1, 2)
        return moved.reshape([self.shape[axis] for axis in self.order]).transpose(np.argsort(self.order))


class Block(NamedTuple):
    """The plan for one parameter: its layout, the products that use it, and the sides with diagonal factors.

    Attributes:
        layout: the parameter as matrices.
        sites: all products that use it; none if its gradient is formed.
        left_diagonal, right_diagonal: whether A (B) is diagonal.
    """

    layout: Layout
    sites: tuple[sites.Site, ...]
    left_diagonal: bool
    right_diagonal: bool


class KroneckerFactors(NamedTuple):
    """The factors A, (b, c, c), and B, (b, n, n), or where they are diagonal (b, c) and (b, n)."""

    left: Array
    right: Array


def plan_blocks(reading: sites.Reading, leaves: Sequence[Any], max_size: int) -> tuple[Block, ...]:
    """The plan for each leaf: Kronecker factors where all its uses are products of one form, otherwise one vector."""
    plans = []
    for own, leaf in zip(reading.sites, leaves, strict=True):
        layout = _layout(own, leaf.shape)
        if layout is None:
            own, layout = (), Layout(leaf.shape, tuple(range(leaf.ndim)), (1, 1, 1, leaf.size))
        _, c, _, n = layout.sizes
        of_rows = any(site.kind == "rows" for site in own)  # u is a unit vector
        plans.append(Block(layout, own, of_rows or c > max_size, n > max_size))
    return tuple(plans)


def _layout(own, shape) -> Layout | None:
    """The layout that all sites of a parameter have; ``None`` if there is no such layout."""
    if not own or own[0].axes is None or any(site.view.parts or sites.fit(own[0], site) != "alike" for site in own):
        return None
    groups = math.prod(axis[1] for axis in own[0].axes[0] if isinstance(axis, tuple))
    first, c, n = ([axis for axis in axes if isinstance(axis, int) and axis >= 0] for axes in own[0].axes)
    rest = [axis for axis in range(len(shape)) if axis not in first + c + n]
    if any(shape[axis] != 1 for axis in rest):
        return None
    lengths = [math.prod(shape[axis] for axis in axes) for axes in (first, c, n)]
    return Layout(tuple(shape), (*rest, *first, *c, *n), (lengths[0], lengths[1], groups, lengths[2] // groups))


class FactorReader(NamedTuple):
    """Reads the factors of the gradients of a batch at given params; made by `factor_reader`.

    Attributes:
        reading: the products in the model for one example.
        blocks: the plan for each parameter.
        root: ``root(key, outputs, y)``, the columns of the curvature of the loss of one example.
    """

    reading: sites.Reading
    blocks: tuple[Block, ...]
    root: Callable

    def read(self, params: PyTree, key: Any, x: PyTree, y: PyTree) -> list[list[factors.Factors]]:
        """For each parameter and site, u (N, b, p, c) or row indices (N, b, p), and v (N, e, b, p, n)."""
        leaves = jax.tree.leaves(params)
        by_sites = [i for i, block in enumerate(self.blocks) if block.sites]

        def one(key, x, y):
            [outputs], pullback, records = factors.pullback_at(self.reading, by_sites, leaves, jax.tree.leaves(x))
            columns = self.root(key, outputs, y).astype(outputs.dtype)
            cotangents, gradients = jax.vmap(lambda column: pullback([column]))(columns)
            found = []
            for i, (leaf, block) in enumerate(zip(leaves, self.blocks, strict=True)):
                dtype = wide_dtype(leaf.dtype)
                own = [factors.at_site_of_each(site, records, cotangents, dtype) for site in block.sites]
                if not own:
                    # A parameter without sites has its whole gradient as v, next to a factor u of 1.
                    gradient = gradients[i].reshape(len(columns), 1, 1, leaf.size)
                    own.append(factors.Factors(jnp.ones((1, 1, 1), dtype), gradient.astype(dtype)))
                found.append(own)
            return found

        keys = None if key is None else jax.random.split(key, jax.tree.leaves(x)[0].shape[0])
        return jax.vmap(one)(keys, x, y)

    def factors(
        self, params: PyTree, key: Any, x: PyTree, y: PyTree, weight_sharing: WeightSharing = "expand"
    ) -> list[KroneckerFactors]:
        """A and B of each parameter."""
        found = self.read(params, key, x, y)
        return [kronecker_factors(block, own, weight_sharing) for block, own in zip(self.blocks, found, strict=True)]


def factor_reader(
    model: Callable,
    loss: Callable,
    params: PyTree,
    x: PyTree,
    *,
    matrix: CurvatureMatrix,
    likelihood: TargetLikelihood,
    samples: int,
    max_size: int,
) -> FactorReader:
    """The plan for a model and a loss; of the params and the batch only shapes and dtypes are read."""
    for leaf in jax.tree.leaves(params):
        require(leaf.size, "numbers in each array of params", leaf, "remove the empty array")
    require(batch_length(x=x), "at least one example", "none", "pass x and y with at least one row")
    example = sites.of_one_example(x)
    outputs = jax.eval_shape(explained_model(model), params, example)
    is_array = isinstance(outputs, jax.ShapeDtypeStruct) and jnp.issubdtype(outputs.dtype, jnp.floating)
    require(is_array, "model to return one floating-point array", outputs, "return logits or means", error=TypeError)
    reading = sites.read(model, params, example)
    blocks = plan_blocks(reading, jax.tree.leaves(params), max_size)
    return FactorReader(reading, blocks, loss_root(matrix, loss, likelihood, samples))


def kronecker_factors(
    block: Block, found: Sequence[factors.Factors], weight_sharing: WeightSharing = "expand"
) -> KroneckerFactors:
    """A and B of one parameter from the factors of the gradients of a batch."""
    examples, c = found[0].u.shape[0], block.layout.sizes[1]
    positions = sum(u.shape[2] for u, _ in found)
    # The inputs are averaged over positions and the gradients are added, before the outer products instead of after
    # them.
    if weight_sharing == "reduce":
        a = sum((_row_counts(u, c) if u.ndim == 3 else u).sum(axis=2, keepdims=True) for u, _ in found) / positions
        g = sum(v.sum(axis=3, keepdims=True) for _, v in found)
        found, positions = [factors.Factors(a, g)], 1
    left = sum(
        _row_counts(u, c).sum(axis=(0, 2)) if u.ndim == 3 else _gram(u.swapaxes(0, 1), block.left_diagonal)
        for u, _ in found
    )
    right = sum(_gram(jnp.moveaxis(v, 2, 0), block.right_diagonal) for _, v in found)
    return KroneckerFactors(left / (examples * positions), right / examples)


def _row_counts(indices, rows):
    """How often each row is read, (N, b, 1, rows), from its indices (N, b, p)."""
    count = jax.vmap(jax.vmap(lambda own: jnp.zeros(rows).at[own].add(1)))
    return count(indices)[:, :, None]


def _gram(x, diagonal):
    """The sum of outer products of vectors: (b, ..., k) to (b, k, k), or to its diagonal (b, k)."""
    x = x.reshape(x.shape[0], -1, x.shape[-1])
    return jnp.sum(jnp.square(x), axis=1) if diagonal else dot(x.swapaxes(1, 2), x)


def squared_projections(
    block: Block, found: Sequence[factors.Factors], left: Array | None, right: Array | None
) -> Array:
    r"""The mean over the examples of $∑_e (Lᵀ G_e R)^2$, (b, c, n), entry by entry.

    L and R are orthogonal, (b, c, c) and (b, n, n), or ``None`` for the identity. These are the diagonal entries of the
    exact block in the basis L ⊗ R.
    """
    u, v = found[0]
    if len(found) == 1 and u.ndim == 4 and u.shape[2] == 1:  # one position: no gradient is formed
        u, v = _rotated(u, v, left, right)
        return jnp.einsum("ibpc,iebpn->bcn", u**2, v**2, precision="highest") / len(u)
    gradients = 0.0
    for site, own in zip(block.sites, found, strict=True):
        rotated = factors.Factors(*_rotated(*own, left, right))
        # The gradient of an example is the sum over its uses, and must be complete before it is squared.
        gradients = gradients + jax.vmap(functools.partial(factors.product, site))(rotated)  # (N, e, b, c, n)
    return jnp.sum(jnp.square(gradients), axis=(0, 1)) / len(u)  # pyright: ignore


def _rotated(u, v, left, right):
    if left is not None:
        u = dot(u, left)
    return u, v if right is None else dot(v, right)
