r"""Linear systems with symmetric positive definite operators on pytrees, by conjugate gradients.

A       a symmetric operator v -> Av on pytrees like b, with n numbers in all
λ       the damping: the system is (A + λI) x = b
P       the preconditioner, an approximation of the inverse of A + λI

The operator is evaluated in full precision on every device: with the products of GPUs and TPUs, which round vectors to
3 digits, the residual would stop decreasing there. An operator that has been linearized before keeps the precision of
its products; those of `jaxblocks.ad.curvature.operators` have full precision.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, PyTree

from jaxblocks.ad.programs.linearization import linearize
from jaxblocks.ad.vectors.chunks import order_convolutions
from jaxblocks.ad.vectors.raveled import dot, raveled
from jaxblocks.backend.powers_of_two import divided, unit_of
from jaxblocks.backend.varying import inside_shard_map, varying_like
from jaxblocks.checks.expectations import PositiveFloat, PositiveInt, checked
from jaxblocks.checks.values import check_values

__all__ = ["LinearSolution", "solve"]


class LinearSolution(NamedTuple):
    """The solution of a linear system; returned by `solve`.

    Attributes:
        x: the solution, like ``b``.
        residual: the norm of b - (A + λI) x, computed from ``x``; NaN under ``jit`` if A + λI is not positive definite.
        steps: the number of steps.
    """

    x: PyTree
    residual: Float[Array, ""]
    steps: Int[Array, ""]


@checked
def solve(
    operator: Callable[[PyTree], PyTree],
    b: PyTree,
    *,
    damping: float | Float[Array, ""] = 0.0,
    preconditioner: Callable[[PyTree], PyTree] | None = None,
    tolerance: PositiveFloat = 1e-5,
    max_steps: PositiveInt | None = None,
) -> LinearSolution:
    r"""The solution of $(A + λ I) x = b$ by preconditioned conjugate gradients, one product per step.

    ``x`` is differentiable, in both modes and any order, with respect to ``b``, ``damping`` and the arrays in
    ``operator``: the derivative solves the same system for another right-hand side, and no step is stored. Inside of
    ``jax.shard_map`` each device solves its own system; an operator that sums over the devices is an error of JAX.

    Args:
        operator: $A$, symmetric, takes and returns a pytree like ``b``; for instance `hessian_operator` or
            `gauss_newton_operator`.
        b: a pytree of floating-point arrays, such as a gradient.
        damping: $λ$. Gauss-Newton and Fisher matrices are singular without damping where there are more
            params than data; a Hessian needs a damping above the negative of its smallest eigenvalue.
        preconditioner: an approximation of $(A + λ I)^{-1}$, symmetric positive definite, such as
            ``structured_curvature(...).inverse(damping=damping)``. It saves steps where the scales of the params
            differ. For a matrix of low rank plus damping (fewer data than params) it may take more steps than none.
        tolerance: the iteration ends where the norm of the residual is at most ``tolerance`` times that of ``b``.
        max_steps: the largest number of steps; by default 10 n, as in ``jax.scipy.sparse.linalg.cg``.

    Raises:
        ValueError: if a direction has negative curvature, so that $A + λ I$ is not positive definite;
            under ``jit`` ``residual`` is NaN instead. Also if ``b`` or a product contains NaN or infinity;
            under ``jit`` ``x`` and ``residual`` are NaN then.

    >>> solution = solve(
    ...     lambda v: {"a": 3 * v["a"]}, {"a": jnp.array([4.0, 8.0])}, damping=1.0
    ... )
    >>> solution.x, solution.steps
    ({'a': Array([1., 2.], dtype=float32)}, Array(1, dtype=int32))

    Source: Golub & Van Loan 2013, Matrix Computations, chapter 11; Martens 2010, Deep learning via Hessian-free
    optimization.
    """
    space = raveled(operator, b, name="b")
    damping = jnp.asarray(damping, space.dtype)  # a float64 damping would change the dtype of the loop
    most = 10 * space.n if max_steps is None else max_steps
    damped = order_convolutions(lambda v: space.apply(v) + damping * v)
    if preconditioner is None:
        precondition = lambda r: r
    else:
        # The solution does not depend on the preconditioner, so no derivative flows to it.
        precondition = lambda r: lax.stop_gradient(raveled(preconditioner, b, name="b").apply(r))

    def conjugate_gradients(matvec, b):
        # x is linear in b: the unit keeps the squares of a b of any scale in the range of the dtype.
        unit = unit_of(jnp.max(jnp.abs(b), initial=0))
        b = divided(b, unit)
        limit = tolerance * jnp.linalg.norm(b)

        def unfinished(state):
            _, r, _, _, step, curvature = state
            return (jnp.linalg.norm(r) > limit) & (step < most) & (curvature > 0)

        def advance(state):
            x, r, p, rz, step, _ = state
            # In a unit of p: the products of a small p, or with a small operator, would vanish.
            of_p = unit_of(jnp.max(jnp.abs(p), initial=0))
            along = divided(p, of_p)
            q = matvec(along)
            slope = dot(along, q)
            # At a direction of negative curvature x stays as it is, and the loop ends.
            size = jnp.where(slope > 0, divided(rz, of_p) / jnp.where(slope > 0, slope, 1), 0)
            x, r = x + size * along, r - size * q
            z = divided(precondition(r), of_z)
            next_rz = dot(r, z)
            return x, r, z + next_rz / rz * p, next_rz, step + 1, slope / dot(along, along)

        z = precondition(b)
        of_z = unit_of(jnp.max(jnp.abs(z), initial=0))  # x does not depend on the scale of the preconditioner
        z = divided(z, of_z)
        # JAX requires one type of all results.
        steps, curvature = varying_like((jnp.int32(0), jnp.ones((), b.dtype)), b)
        start = jnp.zeros_like(b), b, z, dot(b, z), steps, curvature
        x, _, _, _, step, curvature = lax.while_loop(unfinished, advance, start)
        # From x itself: r of the recurrence differs from it by the rounding of all steps.
        residual = jnp.linalg.norm(b - matvec(x))
        # Here and not on the result: under nested forward modes, vmap takes the auxiliary outputs for batched.
        finite = jnp.isfinite(residual + curvature)
        x, residual = jnp.where(finite, x, jnp.nan), jnp.where(finite, residual, jnp.nan)
        return x * unit, (residual * unit, step, curvature)

    vector = space.to_vector(b)
    if inside_shard_map():  # the solution varies over the devices over which the operator varies
        vector = varying_like(vector, jax.eval_shape(damped, vector))
        # JAX gives all arrays of a linear system one type, where its program has casts of shared ones. The linear part
        # of a linear function has none: its arrays have been cast outside.
        damped = linearize(damped, jnp.zeros_like(vector))[1]
    # The derivative of x is the solution for another right-hand side: the loop is not differentiated.
    x, (residual, steps, curvature) = lax.custom_linear_solve(
        damped, vector, conjugate_gradients, symmetric=True, has_aux=True
    )
    curvature, residual = lax.stop_gradient((curvature, residual))
    message = "finite numbers in b and in the products, got a residual of {residual}; search both for NaN and inf"
    check_values(~jnp.isnan(residual + curvature), message, residual=residual)
    check_values(
        ~(curvature <= 0),
        "a positive definite operator, got the curvature v'Av = {curvature} along a vector of length 1; increase the "
        "damping",
        curvature=curvature,
    )
    residual = jnp.where(curvature <= 0, jnp.nan, residual)
    return LinearSolution(space.to_tree(x), residual, steps)
