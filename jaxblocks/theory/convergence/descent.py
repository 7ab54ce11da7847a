"""Gradient descent, or any optimizer, with a record of every step and the bounds that apply to it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, PyTree

from jaxblocks.ad.programs.arguments import as_point, scalar_valued
from jaxblocks.ad.vectors.raveled import as_vector
from jaxblocks.backend.quotients import norm
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import PositiveInt, checked
from jaxblocks.checks.terminal import warn
from jaxblocks.checks.values import check_values, has_values
from jaxblocks.plotting.axes import PALETTE, axes_or_new
from jaxblocks.theory.convergence.bounds import convex_bound, linear_bound
from jaxblocks.theory.convergence.momentum import stable_step_size
from jaxblocks.theory.convergence.objectives import Objective
from jaxblocks.theory.convergence.scalars import at_most

__all__ = ["Descent", "descend"]

_BOUND_STYLES = ((PALETTE[1], "--"), (PALETTE[3], ":"), (PALETTE[2], "-."))


# A pytree, so that vmap and jit return it.
@partial(
    jax.tree_util.register_dataclass,
    data_fields=["points", "values", "gradient_norms", "distances", "minimum", "bounds"],
    meta_fields=[],
)
@dataclass(frozen=True, repr=False)
class Descent:
    """The result of `descend`: the record of each step t = 0, ..., steps, including the start.

    Attributes:
        points: like the start, with a leading axis of length ``steps + 1``.
        values: the values of f at the points, ``(steps + 1,)``.
        gradient_norms: the norms of the gradients, ``(steps + 1,)``.
        distances: the distances from the minimizer, ``(steps + 1,)``; ``None`` if it is unknown.
        minimum: the minimum of f; ``None`` if the minimizer is unknown.
        bounds: by name, upper bounds of ``values - minimum``, ``(steps + 1,)`` each. ``"convex"`` is the bound of the
            lecture (infinite where the theorem does not apply, above 1 / L), ``"sharp"`` the best possible bound for
            convex functions (infinite from 2 / L on), ``"strongly convex"`` the linear rate.

    With ``jax.vmap`` all arrays have a leading axis of runs.
    """

    points: PyTree
    values: Any  # transformations store leaves of other shapes here, and objects that are not arrays
    gradient_norms: Any
    distances: Any
    minimum: Any
    bounds: dict[str, Any]

    @property
    def last(self) -> PyTree:
        """The point after the last step."""
        return jax.tree.map(lambda leaf: leaf[-1], self.points)

    @property
    def gaps(self) -> Float[Array, "*runs t"]:
        """The values minus the minimum, or minus the lowest value if the minimum is unknown."""
        # Without a known minimum the lowest value stands for it: the gap is that to the best point found.
        least = jnp.min(self.values, -1) if self.minimum is None else self.minimum
        return self.values - jnp.broadcast_to(least[..., None], self.values.shape)

    @property
    def holds(self) -> Bool[Array, "*runs"]:
        """Whether every bound holds at every step, up to the rounding of the values."""
        return _bounds_hold(self)

    def plot(self, ax=None):
        """Plot the gap to the minimum at each step with its bounds, both axes logarithmic; returns the axes.

        If the minimum is unknown, it plots the values minus the lowest value.

        >>> from jaxblocks.theory.convergence import quadratic_objective
        >>> f = quadratic_objective(jnp.array([1.0, 10.0]))
        >>> axes = descend(f, jnp.ones(2), 0.1, steps=20).plot()
        >>> [line.get_label() for line in axes.lines]
        ['f - min f', 'bound, convex', 'bound, sharp', 'bound, strongly convex']
        """
        ax = axes_or_new(ax)
        if self.minimum is None:
            ax.plot(np.asarray(self.values))
            ax.set(xlabel="step", ylabel="f")
            return ax
        t = np.arange(1, len(self.values))
        # On a logarithmic axis nothing below the rounding error of the values is shown.
        visible = lambda y: np.where((y > float(_rounding(self.values, self.minimum))) & np.isfinite(y), y, np.nan)
        ax.loglog(t, visible(np.asarray(self.gaps)[1:]), color=PALETTE[0], label="f - min f")
        for (name, bound), (color, style) in zip(self.bounds.items(), _BOUND_STYLES, strict=False):
            if np.isfinite(np.asarray(bound)[1:]).any():
                ax.loglog(t, visible(np.asarray(bound)[1:]), style, color=color, label=f"bound, {name}")
        ax.set(xlabel="step", ylabel="above the minimum")
        ax.legend()
        return ax

    def __repr__(self):
        numbers = () if self.minimum is None else (self.minimum,)
        of_steps = (self.values, *self.bounds.values())
        if not all(has_values(one, 1) and len(one) for one in of_steps) or not all(has_values(n, 0) for n in numbers):
            return f"Descent({describe(self.values)})"
        words = f"{len(self.values) - 1} steps, f from {float(self.values[0]):.6g} to {float(self.values[-1]):.6g}"
        if self.minimum is not None:
            words += f", minimum {float(self.minimum):.6g}"
        if informative := {name: bound for name, bound in self.bounds.items() if _is_informative(bound)}:
            hold = bool(replace(self, bounds=informative).holds)
            words += f", bounds {'hold' if hold else 'FAIL'}: {', '.join(informative)}"
        elif self.bounds:
            words += ", no bound for this step size"
        return f"Descent({words})"


@checked
def descend(f: Objective | Callable[[Any], Any], start: PyTree, optimizer: Any, *, steps: PositiveInt = 100) -> Descent:
    r"""Run an optimizer from a start, and record every step; for an `Objective`, with the bounds of the theorems.

    For a step size, $x_{t+1} = x_t - η ∇ f(x_t)$; otherwise the optimizer's ``update`` is applied. The
    arithmetic is in the dtype of ``start``; compare bounds in float64.

    Args:
        f: a function from a pytree to a scalar; an `Objective` if its constants are known.
        start: a pytree of floating-point arrays or numbers.
        optimizer: a step size, or an object with ``init(params)`` and ``update(gradient, state, params)``, such as an
            optax optimizer (momentum is ``optax.sgd(0.1, momentum=0.9)``; optax computes in standard dtype promotion).
        steps: the number of steps.

    Returns:
        A `Descent`, a pytree: ``jax.vmap`` over starts or step sizes works.

    Warns:
        UserWarning: for a step size above 2 / L, with which gradient descent diverges from the minimum.

    Raises:
        TypeError, ValueError: for an f that does not return a real scalar, a start that is not floating-point, an
            optimizer without ``update``, a step size that is not positive (under ``jit`` nothing is raised, and the
            values increase), a minimizer of another structure than the start, or a wrong minimizer (some recorded value
            is lower).

    >>> from jaxblocks.theory.convergence import quadratic_objective
    >>> descend(quadratic_objective(jnp.array([1.0, 10.0])), jnp.ones(2), 0.1, steps=50)
    Descent(50 steps, f from 5.5 to 1.32807e-05, minimum 0, bounds hold: convex, sharp, strongly convex)
    >>> descend(lambda x: x**4 - x**3 - 2 * x**2 + 3, 2.0, 0.13).last
    Array(1.4430004, dtype=float32)

    Source: Kingma & Ba 2015, Adam (arXiv:1412.6980); Diehl 2023, section 1.5 (whose steps of Adam begin at t = 0, where
    the divisor 1 - beta_1^t of its bias correction is 0: t begins at 1, with both moments 0 before, as in optax);
    Krapac & Segvic, Deep feed-forward models, "Hello world".
    """
    swapped = callable(start) and not callable(f)
    require(not swapped, "the function and then the start", "the start first", "swap them", error=TypeError)
    # The bounds need L, mu and the minimizer, which a plain function does not state.
    known = f if isinstance(f, Objective) else None
    start = as_point(start)
    f = scalar_valued(f, point="start")
    step_size = None
    if not (callable(getattr(optimizer, "init", None)) and callable(getattr(optimizer, "update", None))):
        step_size = _step_size(optimizer, known)
        optimizer = _gradient_descent(step_size)
    best = None if known is None or known.minimizer is None else _minimizer(known, start)

    @jax.jit
    def run(x, best):
        points, values, norms = _record(f, optimizer, x, steps)
        if best is None:
            return Descent(points, values, norms, None, None, {}), None
        minimum = jnp.asarray(f(best), values.dtype)
        distances = jax.vmap(lambda x: _norm(jax.tree.map(jnp.subtract, x, best)))(points)
        bounds = {} if step_size is None else _bounds(known, step_size, steps, distances[0], values[0] - minimum)
        # The NaN of a diverged run does not hide a lower value.
        lowest = jnp.min(jnp.where(jnp.isnan(values), jnp.inf, values))
        least = lowest, ~(lowest < minimum - _rounding(values, minimum))  # NaN does not count as lower
        return Descent(points, values, norms, distances, minimum, bounds), least

    descent, least = run(start, best)
    if least is not None:
        lowest, is_least = least
        check_values(
            is_least,
            "a minimizer of f, got the value {lowest} at another point, below the value {minimum} at the minimizer; "
            "correct Objective(minimizer=...)",
            lowest=lowest,
            minimum=descent.minimum,
        )
    return descent


def _record(f, optimizer, x, steps):
    """The points, the values and the norms of the gradients, at the start and after every step."""

    def step(carry, _):
        x, state = carry
        value, gradient = jax.value_and_grad(f)(x)
        updates, state = optimizer.update(gradient, state, x)
        # An optimizer may compute in a wider dtype; the carry of a scan must keep its dtype.
        after = jax.tree.map(lambda leaf, u: leaf + jnp.asarray(u, leaf.dtype), x, updates)
        return (after, state), (x, value, _norm(gradient))

    # The scan records each point before its step, so the last point is evaluated after it.
    (x, _), recorded = jax.lax.scan(step, (x, optimizer.init(x)), length=steps)
    value, gradient = jax.value_and_grad(f)(x)
    join = lambda before, last: jnp.concatenate([before, last[None]])
    return jax.tree.map(join, recorded, (x, value, _norm(gradient)))


def _bounds(known, step_size, steps, distance, gap):
    if known.smoothness is None:
        return {}
    t = jnp.arange(steps + 1)
    lecture = convex_bound(t, distance, step_size)
    # The bound of the lecture holds for steps of at most 1 / L only; infinity states that there is none.
    allowed = at_most(jnp.asarray(step_size, lecture.dtype) * known.smoothness, 1)
    bounds = {
        "convex": jnp.where(allowed, lecture, jnp.inf),
        "sharp": convex_bound(t, distance, step_size, smoothness=known.smoothness),
    }
    if known.convexity > 0:
        bounds["strongly convex"] = linear_bound(
            t, gap, step_size, smoothness=known.smoothness, convexity=known.convexity
        )
    return bounds


def _gradient_descent(step_size):
    move = lambda g: -jnp.asarray(step_size, g.dtype) * g
    update = lambda gradient, state, params: (jax.tree.map(move, gradient), state)
    return SimpleNamespace(init=lambda params: (), update=update)


def _step_size(step_size: Any, known: Objective | None) -> Any:
    """The step size, checked; warns if it is above the limit of stability."""
    if not _is_real(step_size):
        repair = ("pass for instance 0.1 or optax.adam(0.1)", "call it")[callable(step_size)]
        require(False, "a step size or an optimizer with init and update", step_size, repair, error=TypeError)
    require(jnp.ndim(step_size) == 0, "one step size", step_size, "use jax.vmap for several")
    check_values(
        step_size > 0, "a step size > 0, got {step_size}; pass for instance 0.1", step_size=jnp.asarray(step_size)
    )
    # A traced step size cannot be compared with the limit.
    if known is not None and known.smoothness is not None and not isinstance(step_size, Tracer):
        limit = stable_step_size(float(known.smoothness))
        # A step of exactly 2 / L is on the limit; rounding of the quotient must not cause the warning.
        if float(step_size) > 2 / known.smoothness * (1 + 1e-6):
            warn(
                f"descend got the step size {float(step_size):.6g}, but above 2 / L = {float(limit):.6g} gradient "
                f"descent diverges from the minimum where the curvature is L = {known.smoothness:.6g}; below it the "
                f"bounds hold (the convex one for step sizes of at most 1 / L = {1 / known.smoothness:.6g})."
            )
    return step_size


def _is_real(x: Any) -> bool:
    if hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating):
        return True
    return isinstance(x, int | float | np.number) and not isinstance(x, bool)


def _minimizer(known, start):
    """The minimizer in the structure of the start; one number is broadcast to all entries of an array."""
    best = known.minimizer
    structures = jax.tree.structure(best), jax.tree.structure(start)
    repair = "start for instance at jax.tree.map(jnp.zeros_like, objective.minimizer)"
    require(structures[0] == structures[1], f"a start like the minimizer, {structures[0]}", str(structures[1]), repair)

    def like(b, leaf):
        b = jnp.asarray(b, leaf.dtype)
        require(b.shape in ((), leaf.shape), f"a start like the minimizer, {b.shape}", leaf, repair)
        return jnp.broadcast_to(b, leaf.shape)

    return jax.tree.map(like, best, start)


def _norm(tree):
    """The norm of all leaves together, in their widest dtype."""
    return norm(as_vector(tree)[0])


def _is_informative(bound):
    """Whether a bound is finite somewhere, and does not grow."""
    bound = np.asarray(bound)
    # A bound that grows (step sizes above 2 / L) states nothing.
    return bool(np.isfinite(bound[1:]).any() and bound[-1] <= bound[0])


@jax.jit
def _bounds_hold(run):
    if not run.bounds:
        return jnp.ones(run.values.shape[:-1], bool)
    slack = jnp.broadcast_to(_rounding(run.values, run.minimum)[..., None], run.values.shape)
    return jnp.all(jnp.stack([jnp.all(run.gaps <= bound + slack, axis=-1) for bound in run.bounds.values()]), axis=0)


def _rounding(values, minimum):
    """The rounding error of values near the minimum, for sums of terms as large as the first or lowest value."""
    lowest = jnp.min(jnp.where(jnp.isnan(values), jnp.inf, values), -1)
    sizes = jnp.abs(jnp.stack([values[..., 0], lowest, jnp.broadcast_to(minimum, lowest.shape)]))
    # 64 roundings, for the sums inside of f.
    return 64 * jnp.finfo(values.dtype).eps * jnp.max(jnp.where(jnp.isfinite(sizes), sizes, 0), 0)
