r"""The natural gradient with Kronecker-factored curvature (KFAC, EKFAC) as an optax transformation.

    g      the gradient of a minibatch
    K      moving averages of the Kronecker factors of the curvature (`jaxblocks.ad.structured_curvature`)
    δ      the damping; the step is along -(K + δ I)^-1 g

The inverse with damping is exact for each block, from the eigenvectors of its factors, so the damping is not split
between them.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float, Int, Key, PyTree

from jaxblocks.ad.curvature.kronecker_factors import (
    KroneckerFactors,
    WeightSharing,
    factor_reader,
    kronecker_factors,
    squared_projections,
)
from jaxblocks.ad.curvature.loss_roots import CurvatureMatrix, TargetLikelihood
from jaxblocks.ad.curvature.structures import (
    StructuredCurvature,
    check_damping,
    eigenbases,
    of_blocks,
    rotated_eigenvalues,
)
from jaxblocks.ad.programs.arguments import floating_params
from jaxblocks.backend.varying import varying_like
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveFloat, PositiveInt, Rate, checked
from jaxblocks.training.optimizers.transformations import all_finite

__all__ = ["KfacState", "kfac", "scale_by_kfac"]


class AdaptiveState(NamedTuple):
    """The state of the adaptive damping of `kfac`.

    Attributes:
        extra_damping: what is added to ``damping``.
        reference: a moving average of the loss after the steps that were taken.
        inner: the state of the optimizer inside.
    """

    extra_damping: Float[Array, ""]
    reference: Float[Array, ""]
    inner: Any


class KfacState(NamedTuple):
    """The state of `scale_by_kfac`.

    Attributes:
        count: the number of steps.
        factors: moving averages of A and B of each parameter.
        curvature: the curvature with these factors when they were last updated; for ``"ekfac"`` its eigenvalues are
            moving averages too.
    """

    count: Int[Array, ""]
    factors: list[KroneckerFactors]
    curvature: StructuredCurvature


@checked
def scale_by_kfac(
    model: Callable[..., Any],
    loss: Callable[..., Any],
    batch: tuple[PyTree, PyTree],
    *,
    damping: float | Float[Array, ""] = 1e-3,
    decay: Rate = 0.95,
    every: PositiveInt = 10,
    norm_constraint: PositiveFloat | None = None,
    structure: Literal["kfac", "ekfac"] = "kfac",
    matrix: CurvatureMatrix = "gauss_newton",
    weight_sharing: WeightSharing = "expand",
    likelihood: TargetLikelihood = None,
    key: Key[Array, ""] | None = None,
    max_size: PositiveInt = 2048,
) -> optax.GradientTransformationExtraArgs:
    r"""The natural gradient $(K + δ I)^{-1} g$, without a learning rate; `kfac` has one, and momentum.

    ``update`` takes the batch of the gradient, ``update(grads, state, params, batch=(x, y))``; `train_step` and `fit`
    pass it after ``augment``. The curvature is that of ``loss``, without a ``penalty``, in the dtype of the params.
    Every ``every`` steps it updates the factors from this batch, and their eigenvectors; a step between takes four
    products per kernel more than one of gradient descent.

    Args:
        model: ``model(params, x)``, the outputs for one example, such as ``jaxblocks.ad.as_function(net)``.
        loss: ``loss(outputs, y)``, a scalar for one example; training minimizes its mean.
        batch: a batch ``(x, y)``; only shapes and dtypes are read.
        damping: $δ$: small near a minimum or for large batches; a large one gives gradient descent.
        decay: of the moving averages; update t has at least the weight 1 / t.
        every: the number of steps from one update of the factors to the next.
        norm_constraint: a limit c of $uᵀ (K + δ I) u$ for the scaled gradient u; a longer one is scaled
            down to it. Far from a minimum it makes large learning rates stable.
        structure: ``"ekfac"`` replaces the eigenvalues of the factors by moving averages of the squared gradients of
            the examples in the basis of the eigenvectors. When the basis changes, the diagonal in the new basis of the
            matrix with the old averages takes their place.
        matrix, weight_sharing, likelihood, key, max_size: as for `jaxblocks.ad.structured_curvature`.
            ``"gauss_newton"`` takes one backward pass for each output of the model, the others one.

    Raises:
        TypeError: if ``update`` gets no params or no batch.
        ValueError, TypeError: as for `structured_curvature`; and for a negative ``damping``.

    >>> half_square = lambda outputs, y: jnp.sum((outputs - y) ** 2) / 2
    >>> batch = jnp.array([[1.0, 0.0], [0.0, 10.0]]), jnp.array([[3.0], [20.0]])
    >>> optimizer = scale_by_kfac(lambda w, x: x @ w, half_square, batch, damping=0.0)
    >>> w = jnp.zeros((2, 1))
    >>> grads = -batch[0].T @ batch[1] / 2
    >>> updates, _ = optimizer.update(grads, optimizer.init(w), w, batch=batch)
    >>> -updates.ravel()  # one step to the solution of a linear problem
    Array([3., 2.], dtype=float32)

    Source: Martens & Grosse 2015, Optimizing neural networks with Kronecker-factored approximate curvature
    (arXiv:1503.05671); Ba, Grosse & Martens 2017, Distributed second-order optimization using Kronecker-factored
    approximations (the constraint); George et al. 2018, EKFAC (arXiv:1806.03884).
    """
    repair = "pass key=jax.random.key(0)"
    require(matrix != "fisher" or key is not None, "a key, from which targets are drawn", "None", repair)
    check_damping(damping)
    options: dict = dict(matrix=matrix, likelihood=likelihood, samples=1, max_size=max_size)

    def init(params) -> Any:
        params = varying_like(floating_params(params), batch, key)
        reader = factor_reader(model, loss, params, batch[0], **options)

        def start(x, y):
            factors = reader.factors(params, key, x, y, weight_sharing)
            return factors, of_blocks(reader, eigenbases(factors), params, structure)

        # Zeros of the right shapes, without a pass over the batch: the first update has weight 1 and replaces them.
        shapes = jax.eval_shape(start, *batch)
        return KfacState(jnp.int32(0), *jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes))

    def update(
        updates, state: Any, params: Any = None, *, batch: Any = None, extra_damping: Any = 0.0, **extra
    ) -> tuple[Any, Any]:
        given = params is not None and batch is not None
        repair = "call update(grads, state, params, batch=(x, y))"
        require(given, "params and the batch of the gradient", "none", repair, error=TypeError)
        x, y = batch  # pyright: ignore[reportGeneralTypeIssues]
        params = varying_like(params, batch, key, state)  # else JAX sums the gradients over the devices

        def refreshed():
            reader = factor_reader(model, loss, params, x, **options)
            # New draws of targets at each update: with one key for all, their noise would not average out.
            own_key = None if key is None else jax.random.fold_in(key, state.count)
            gradients = list(zip(reader.blocks, reader.read(params, own_key, x, y), strict=True))
            # Without 1 / t the zeros of the start would remain in the average for many updates.
            share = jnp.maximum(1 - decay, 1 / (state.count // every + 1))
            average = lambda old, new: jax.tree.map(lambda a, b: a + share.astype(a.dtype) * (b - a), old, new)
            found = [kronecker_factors(block, own, weight_sharing) for block, own in gradients]
            factors = average(state.factors, found)
            bases = eigenbases(factors)
            if structure == "ekfac":
                new = [
                    squared_projections(block, own, basis.left, basis.right)
                    for (block, own), basis in zip(gradients, bases, strict=True)
                ]
                # The averages belong to the old eigenvectors, so they are expressed in the new ones before the average.
                old = [rotated_eigenvalues(*pair) for pair in zip(state.curvature.blocks, bases, strict=True)]
                averages = average(old, new)
                bases = [basis._replace(values=own) for basis, own in zip(bases, averages, strict=True)]
            return varying_like((factors, of_blocks(reader, bases, params, structure)), params)

        # The eigenvectors are computed in each `every`-th update only; lax.cond does not run the other branch.
        kept = varying_like((state.factors, state.curvature), params)
        factors, curvature = lax.cond(state.count % every == 0, refreshed, lambda: kept)
        scaled = curvature.inverse(damping=damping + extra_damping)(updates)
        # <u, g> = u^T (K + damping) u, the squared length of the step in the metric of the curvature.
        if norm_constraint is not None:
            norm = sum(
                jnp.vdot(u, g, precision="highest")
                for u, g in zip(jax.tree.leaves(scaled), jax.tree.leaves(updates), strict=True)
            )
            scaled = optax.tree.scale(jnp.minimum(1, jnp.sqrt(norm_constraint / norm)), scaled)
        return scaled, KfacState(state.count + 1, factors, curvature)

    return optax.GradientTransformationExtraArgs(init, update)


def _with_adaptive_damping(inner, model, loss, damping) -> optax.GradientTransformationExtraArgs:
    """Levenberg-Marquardt damping around an optimizer, and no step that raises the loss."""

    def init(params) -> Any:
        return AdaptiveState(jnp.float32(0), jnp.float32(-jnp.inf), inner.init(params))

    def update(updates, state: Any, params: Any = None, *, batch: Any = None, **extra) -> tuple[Any, Any]:
        options = {**extra, "batch": batch, "extra_damping": state.extra_damping}
        step, moved = inner.update(updates, state.inner, params, **options)

        def mean_loss(params, batch=batch):
            return jnp.mean(jax.vmap(lambda x, y: loss(model(params, x), y))(*batch))

        # That of `train_step` has the penalty and the random numbers of the step.
        value_fn = extra.get("value_fn", mean_loss)
        before = jnp.asarray(extra["value"] if "value" in extra else value_fn(params), jnp.float32)
        after = jnp.asarray(value_fn(optax.apply_updates(params, step)), jnp.float32)
        # With momentum a loss may rise for some steps, but not above its average; NaN is never taken.
        taken = after <= jnp.maximum(before, state.reference)
        curvature, total = moved[0].curvature, damping + state.extra_damping
        predicted = optax.tree.vdot(updates, step) + optax.tree.vdot(step, curvature(step)) / 2
        predicted = predicted + total * optax.tree.vdot(step, step) / 2
        gained, expected = before - after, -predicted.astype(jnp.float32)
        factor = jnp.where((expected > 0) & (gained > 0.75 * expected), 2 / 3, 1.0)
        factor = jnp.where(gained < 0.25 * jnp.maximum(expected, 0), 1.5, factor)
        # Without damping, the scale of the curvature: a thousandth of its mean eigenvalue.
        mean = curvature.trace() / sum(leaf.size for leaf in jax.tree.leaves(params))
        raised = jnp.maximum(4 * total, 1e-3 * mean)
        # At a minimum, where losses differ by rounding only, the damping must stay finite.
        total = jnp.minimum(jnp.where(taken, factor * total, raised), 1e6 * mean)
        extra_damping = jnp.maximum(total - damping, 0).astype(jnp.float32)
        average = jnp.where(jnp.isfinite(state.reference), 0.85 * state.reference + 0.15 * after, before)
        # A batch with NaN changes nothing: averages of the curvature, or a damping, with NaN would keep it for good.
        usable = jnp.isfinite(before) & all_finite((moved[0], extra_damping))
        taken = taken & usable
        # A step that is not taken leaves no momentum either.
        step, momentum = jax.tree.map(lambda a: jnp.where(taken, a, jnp.zeros_like(a)), (step, moved[1]))
        reference = jnp.where(taken, average, state.reference)
        new, old = (extra_damping, (moved[0], momentum, *moved[2:])), (state.extra_damping, state.inner)
        extra_damping, kept = jax.tree.map(lambda a, b: jnp.where(usable, a, b), new, old)
        return step, AdaptiveState(extra_damping, reference, kept)

    return optax.GradientTransformationExtraArgs(init, update)


@checked
def kfac(
    model: Callable[..., Any],
    loss: Callable[..., Any],
    batch: tuple[PyTree, PyTree],
    learning_rate: optax.ScalarOrSchedule,
    *,
    momentum: Rate = 0.9,
    damping: float | Float[Array, ""] = 1e-3,
    decay: Rate = 0.95,
    every: PositiveInt = 10,
    norm_constraint: PositiveFloat | None = None,
    structure: Literal["kfac", "ekfac"] = "kfac",
    matrix: CurvatureMatrix = "gauss_newton",
    weight_sharing: WeightSharing = "expand",
    likelihood: TargetLikelihood = None,
    key: Key[Array, ""] | None = None,
    max_size: PositiveInt = 2048,
    adaptive: bool = True,
) -> optax.GradientTransformationExtraArgs:
    r"""An optimizer: the natural gradient with Kronecker-factored curvature, momentum and a learning rate.

    Arguments and errors are those of `scale_by_kfac`, which precedes ``optax.trace(momentum)`` and the learning rate.

    The damping adapts (Levenberg-Marquardt): each step is tried on its batch, which takes one forward pass, and two
    where ``update`` gets no ``value`` and ``value_fn`` (`train_step` passes them). A step that raises the loss above
    its value before and above the average of the last steps is not taken, and the damping is multiplied by 4. The
    damping also grows where the loss falls by less than a quarter of what the quadratic model predicts, and shrinks
    towards ``damping`` where it falls by more than three quarters. A batch with NaN or infinite numbers changes neither
    params nor state. ``adaptive=False`` takes every step.

    It takes far fewer steps than Adam where the problem is ill-conditioned, as deep autoencoders and regression are,
    and each step costs more; ``examples/natural_gradient.py`` measures both.

    >>> import jaxblocks as jb
    >>> net, x = jb.Dense(1), jnp.array([[-1.0], [1.0]])
    >>> half_square = lambda outputs, y: jnp.sum((outputs - y) ** 2, axis=-1) / 2
    >>> y = 200 * x + 1
    >>> optimizer = kfac(
    ...     jb.ad.as_function(net), half_square, (x, y), 1.0, momentum=0.0, damping=0.0
    ... )
    >>> ts = jb.training.init_train_state(jax.random.key(0), net, optimizer, x)
    >>> ts, value = jb.train_step(net, half_square, optimizer)(ts, x, y)
    >>> print(f"{ts.params['kernel'].item():.2f} {ts.params['bias'].item():.2f}")
    200.00 1.00

    Source: Martens & Grosse 2015, Optimizing neural networks with Kronecker-factored approximate curvature
    (arXiv:1503.05671), section 6.5 (the damping); Zhang & Hager 2004, A nonmonotone line search technique
    (doi:10.1137/S1052623403428208; the average).
    """
    options: dict = dict(damping=damping, decay=decay, every=every, norm_constraint=norm_constraint, matrix=matrix)
    options |= dict(
        structure=structure, weight_sharing=weight_sharing, likelihood=likelihood, key=key, max_size=max_size
    )
    # Momentum is applied to preconditioned gradients, before the learning rate.
    inner = optax.chain(
        scale_by_kfac(model, loss, batch, **options), optax.trace(momentum), optax.scale_by_learning_rate(learning_rate)
    )
    return _with_adaptive_damping(inner, model, loss, damping) if adaptive else inner
