r"""Curvature matrices of networks in structures that can be inverted: Kronecker-factored (KFAC, EKFAC), diagonal, full.

Every block of the matrix has the form

    (L ⊗ R) diag(λ) (L ⊗ R)^T,      L, R orthogonal,

so that each function of the matrix is a function of its eigenvalues λ: the inverse with damping is 1 / (λ + damping),
without the approximation of a damping that is split between the two factors.

    b      matrices in one parameter: groups, or steps of a scan with separate weights
    c, n   rows and columns of one matrix, as in `jaxblocks.ad.curvature.kronecker_factors`
    λ      (b, c, n): products of the eigenvalues of A and B (KFAC), or diagonal entries of the exact block in the
           basis of the eigenvectors (EKFAC)
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import register_dataclass
from jaxtyping import Array, Float, Key, PyTree

from jaxblocks.ad.curvature.kronecker_factors import (
    FactorReader,
    KroneckerFactors,
    Layout,
    WeightSharing,
    factor_reader,
    squared_projections,
)
from jaxblocks.ad.curvature.loss_roots import CurvatureMatrix, TargetLikelihood
from jaxblocks.ad.curvature.risks import over_minibatches
from jaxblocks.ad.programs.arguments import at_point, batch_length, explained_model, floating_params
from jaxblocks.ad.vectors.raveled import as_vector, dot
from jaxblocks.backend.matrix_functions import eigenvectors
from jaxblocks.backend.varying import varying_like
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.checks.values import check_values
from jaxblocks.core.shapes import as_shapes

__all__ = [
    "Eigenbasis",
    "Structure",
    "StructuredCurvature",
    "check_damping",
    "eigenbases",
    "of_blocks",
    "rotated_eigenvalues",
    "structured_curvature",
]

Structure = Literal["kfac", "ekfac", "diagonal", "full"]


class Eigenbasis(NamedTuple):
    """The eigenvectors of one block, (b, c, c) and (b, n, n) or ``None`` for the identity, and its eigenvalues."""

    left: Array | None
    right: Array | None
    values: Array


@functools.partial(register_dataclass, data_fields=["blocks"], meta_fields=["layouts", "like", "structure"])
@dataclasses.dataclass(frozen=True, repr=False)
class StructuredCurvature:
    r"""A symmetric, block-diagonal matrix $K$ over the params with known eigenvectors; an operator on pytrees.

    ``curvature(v)`` is $Kv$. It is returned by `structured_curvature`, and is itself a pytree: a jitted function
    may return it, or take it.

    Attributes:
        blocks: the eigenvectors and eigenvalues of each block.
        layouts: each parameter as matrices.
        like: the structure of the params, and the shapes and dtypes of its leaves.
        structure: ``"kfac"``, ``"ekfac"``, ``"diagonal"`` or ``"full"``.
    """

    blocks: tuple[Eigenbasis, ...]
    layouts: tuple[Layout, ...]
    like: Any
    structure: str

    def __call__(self, v: PyTree) -> PyTree:
        """The product $Kv$, like the params."""
        structure, shapes = self.like
        v = at_point(structure.unflatten(shapes), v)[1]
        done = []
        for leaf, layout, (left, right, values) in zip(self._leaves(v), self.layouts, self.blocks, strict=True):
            # K v = L (lambda * (L^T V R)) R^T for each parameter, as matrices V (b, c, n)
            x = layout.to_matrices(leaf.astype(values.dtype))
            x = _back(left, right, values * _into(left, right, x))
            done.append(layout.to_leaf(x))
        return self._tree(done)

    def map(self, function: Callable[[Array], Array]) -> "StructuredCurvature":
        r"""The function $f(K)$ of the matrix, with the eigenvalues $f(λ)$."""
        blocks = tuple(block._replace(values=function(block.values)) for block in self.blocks)
        return dataclasses.replace(self, blocks=blocks)

    def inverse(self, *, damping: Any) -> "StructuredCurvature":
        r"""The inverse $(K + δ I)^{-1}$, exact for $δ ≥ 0$; infinite where singular.

        Raises:
            ValueError: for a negative damping.
        """
        check_damping(damping)
        return self.map(lambda values: 1 / (values + damping))

    def sqrt(self) -> "StructuredCurvature":
        r"""The positive semidefinite square root $K^{1/2}$."""
        return self.map(jnp.sqrt)

    def log_determinant(self, *, damping: Any = 0.0) -> Float[Array, ""]:
        r"""The logarithm of the determinant of $K + δ I$."""
        check_damping(damping)
        return sum(jnp.sum(jnp.log(block.values + damping)) for block in self.blocks)  # pyright: ignore

    def trace(self) -> Float[Array, ""]:
        """The trace."""
        return sum(jnp.sum(block.values) for block in self.blocks)  # pyright: ignore

    def diagonal(self) -> PyTree:
        """The diagonal entries, like the params."""
        done = []
        for layout, (left, right, values) in zip(self.layouts, self.blocks, strict=True):
            # The diagonal of V diag(lambda) V^T is V^2 lambda, with squared entries of the eigenvectors.
            left, right = (None if side is None else jnp.square(side) for side in (left, right))
            done.append(layout.to_leaf(_back(left, right, values)))
        return self._tree(done)

    def _leaves(self, tree):
        # In the full structure, one vector of all params is the only block.
        return [as_vector(tree)[0]] if self.structure == "full" else jax.tree.leaves(tree)

    def _tree(self, leaves):
        structure, shapes = self.like
        if self.structure == "full":
            ends = [sum(shape.size for shape in shapes[: i + 1]) for i in range(len(shapes) - 1)]
            leaves = [part.reshape(own.shape) for part, own in zip(jnp.split(leaves[0], ends), shapes, strict=True)]
        return structure.unflatten([leaf.astype(own.dtype) for leaf, own in zip(leaves, shapes, strict=True)])

    def __repr__(self):
        n, count = sum(shape.size for shape in self.like[1]), len(self.blocks)
        return f"StructuredCurvature({self.structure}, {n} params, {count} block{'s' * (count > 1)})"


def check_damping(damping: float | Array) -> None:
    """Raise a ``ValueError`` for a negative damping."""
    message = "damping >= 0, got {damping}; the eigenvalues of the curvature are not negative"
    check_values(damping >= 0, message, damping=damping)


def _into(left, right, x):
    """L^T x R."""
    x = x if left is None else dot(left.swapaxes(1, 2), x)
    return x if right is None else dot(x, right)


def _back(left, right, x):
    """L x R^T."""
    x = x if left is None else dot(left, x)
    return x if right is None else dot(x, right.swapaxes(1, 2))


@checked
def structured_curvature(
    model: Callable[..., Any],
    loss: Callable[..., Any],
    params: PyTree,
    x: PyTree,
    y: PyTree,
    *,
    structure: Structure = "kfac",
    matrix: CurvatureMatrix = "gauss_newton",
    weight_sharing: WeightSharing = "expand",
    likelihood: TargetLikelihood = None,
    samples: PositiveInt = 1,
    key: Key[Array, ""] | None = None,
    max_size: PositiveInt = 2048,
    chunk_size: PositiveInt | None = None,
) -> StructuredCurvature:
    r"""The curvature of a mean loss over the params by KFAC, EKFAC, its diagonal or in full, to be inverted.

    The matrix is the mean over the N examples of $J_iᵀ H_i J_i$, where $J_i$ is the Jacobian of the
    outputs with respect to the params. $H_i$ is the Hessian of the loss in the outputs
    (``matrix="gauss_newton"``; its negative eigenvalues count as 0), an estimate of it with targets drawn from the
    model (``"fisher"``), or the outer product of its gradient (``"empirical_fisher"``). The structures are

    * ``"kfac"``: one block for each parameter, $A ⊗ B$ with the second moments of the inputs of its
      products and of the cotangents of their outputs. It equals the block of the exact matrix for one example without
      weight sharing, for a single linear layer and for deep linear nets with squared error.
    * ``"ekfac"``: the eigenvectors of KFAC with the eigenvalues of the best approximation in this basis.
    * ``"diagonal"``: the diagonal of the exact matrix.
    * ``"full"``: the exact matrix, for small nets: $n^2$ numbers for n params.

    Factors come from the products in which the model uses a parameter, as in `per_example_norms`: kernels of dense
    layers, attention and convolutions, tables of embeddings, in scans too. Every other parameter (biases, scales of
    norms, weights that are tied after a transposition) has its exact block, or its diagonal above ``max_size`` numbers.

    Args:
        model: ``model(params, x)``, the outputs for one example, one floating-point array.
        loss: ``loss(outputs, y)``, a scalar for one example.
        params: a pytree of floating-point arrays.
        x, y: pytrees of arrays with the N examples on their first axis. ``y`` is not read for ``"fisher"``.
        structure, matrix: as listed before the arguments.
        weight_sharing: for kernels that several positions share (time steps, pixels): ``"expand"`` treats each position
            as an example, ``"reduce"`` sums over them first, which is exact for a linear layer before a mean.
        likelihood: for ``"fisher"``, which needs a loss that is a negative log-likelihood: that of
            `fisher_operator`, ``"categorical"``, ``"gaussian"`` (of variance 1) or a pair; or only its function
            ``sample(key, outputs) -> y``, since the gradients are those of ``loss``.
        samples: for ``"fisher"``, the number of targets drawn for each example.
        key: for ``"fisher"``.
        max_size: the size up to which a factor is a matrix; a longer side has a diagonal factor.
        chunk_size: the number of examples computed at once; all by default.

    ``"gauss_newton"`` computes one backward pass for each output, and an eigendecomposition of $H_i$: prefer
    ``"fisher"`` for many outputs. Derivatives with respect to the params are exact, except where an eigenvalue of
    $H_i$ changes its sign. Those of products, the diagonal, ``inverse`` and ``sqrt`` of KFAC, EKFAC and the full matrix
    are NaN where two eigenvalues of a factor are equal up to 100 roundings and are not zero; those of traces,
    log-determinants and the diagonal structure exist there too. Second ones are NaN where eigenvalues of $H_i$ are
    equal so and it depends on the params, as that of softmax at equal logits (before JAX 0.12 not with a
    ``chunk_size`` below N, where they are wrong).

    Raises:
        ValueError, TypeError: if arguments do not fit, and for ``"fisher"`` without ``likelihood`` or ``key``.

    >>> x, y = jnp.array([[1.0, 0.0], [0.0, 3.0]]), jnp.zeros((2, 1))
    >>> half_square = lambda outputs, y: jnp.sum((outputs - y) ** 2) / 2
    >>> linear = lambda w, x: x @ w
    >>> K = jax.jit(structured_curvature, static_argnums=(0, 1))(
    ...     linear, half_square, jnp.ones((2, 1)), x, y
    ... )
    >>> K
    StructuredCurvature(kfac, 2 params, 1 block)
    >>> K.diagonal().ravel(), K.inverse(damping=0.5)(jnp.ones((2, 1))).ravel()
    (Array([0.5, 4.5], dtype=float32), Array([1. , 0.2], dtype=float32))

    Source: Martens & Grosse 2015, Optimizing neural networks with Kronecker-factored approximate curvature
    (arXiv:1503.05671); Grosse & Martens 2016, for convolutions (arXiv:1602.01407); George et al. 2018, EKFAC
    (arXiv:1806.03884); Eschenhagen et al. 2023, KFAC for modern architectures (expand and reduce; arXiv:2311.00636).
    """
    model = explained_model(model)
    params = varying_like(floating_params(params), x, y, key)  # else JAX sums the gradients over the devices
    like = params
    # The full matrix is the exact block of a model with one parameter: the vector of all params.
    if structure == "full":
        (params, unravel), on_tree = as_vector(params), model
        # Joined from two parts, since one vector of params may else be read as the kernel of a product.
        whole = lambda vector: unravel(jnp.concatenate([vector[:1], vector[1:]]))
        model, max_size = lambda vector, x: on_tree(whole(vector), x), params.size
    options: dict = dict(matrix=matrix, likelihood=likelihood, samples=samples, max_size=max_size)
    reader = factor_reader(model, loss, params, x, **options)
    examples = batch_length(x=x, **({} if matrix == "fisher" else {"y": y}))
    repair = "pass key=jax.random.key(0)"
    require(matrix != "fisher" or key is not None, "a key, from which targets are drawn", "None", repair)
    # Without eigenvectors, the basis is that of the entries: squared projections are then the diagonal.
    bases: Sequence[tuple] = [(None, None)] * len(reader.blocks)

    # Both are called for a minibatch at a time, and averaged; memory does not grow with the number of examples.
    def factors(batch, key=None):
        return reader.factors(params, key, *batch, weight_sharing=weight_sharing)

    def eigenvalues(batch, key=None):
        found = zip(reader.blocks, reader.read(params, key, *batch), bases, strict=True)
        return [squared_projections(block, own, left, right) for block, own, (left, right) in found]

    def mean(f):
        return over_minibatches(f, (x, y), batch_size=chunk_size or examples, key=key)()

    blocks = []
    # EKFAC needs two passes: eigenvectors of the mean factors, then the exact eigenvalues in this basis.
    if structure != "diagonal":
        blocks = eigenbases(mean(factors))
        bases = [(block.left, block.right) for block in blocks]
    if structure in ("diagonal", "ekfac"):
        blocks = [Eigenbasis(*basis, values) for basis, values in zip(bases, mean(eigenvalues), strict=True)]
    return of_blocks(reader, blocks, like, structure)


def of_blocks(
    reader: FactorReader, blocks: Sequence[Eigenbasis], like: PyTree, structure: Structure
) -> StructuredCurvature:
    """The matrix over params like ``like`` with these eigenvectors and eigenvalues."""
    shapes = as_shapes(like)
    shapes = (jax.tree.structure(shapes), tuple(jax.tree.leaves(shapes)))
    return StructuredCurvature(tuple(blocks), tuple(block.layout for block in reader.blocks), shapes, structure)


def eigenbases(factors: Sequence[KroneckerFactors]) -> list[Eigenbasis]:
    """The eigenvectors of A ⊗ B and its eigenvalues, the products of those of A and B."""

    def side(factor):
        # A diagonal factor (2 axes instead of 3) has the identity as its eigenvectors.
        values, vectors = (factor, None) if factor.ndim == 2 else eigenvectors(factor)
        return jnp.maximum(values, 0), vectors  # rounding may make an eigenvalue negative

    found = []
    for left, right in factors:
        (a, left), (b, right) = side(left), side(right)
        # (b, c, 1) * (b, 1, n): the eigenvalues of a Kronecker product are all products.
        found.append(Eigenbasis(left, right, a[:, :, None] * b[:, None, :]))
    return found


def rotated_eigenvalues(old: Eigenbasis, new: Eigenbasis) -> Array:
    r"""The diagonal of $(L ⊗ R) diag(λ) (L ⊗ R)ᵀ$ in another basis."""

    def squares(new, old):
        return None if new is None else jnp.square(dot(new.swapaxes(1, 2), old))

    return _back(squares(new.left, old.left), squares(new.right, old.right), old.values)
