r"""Convergence of gradient descent and momentum: rates, step sizes and bounds.

Read ``descent`` first. ``objectives`` have known constants, ``bounds`` the theorems, ``momentum`` the recursion on
quadratics, and ``scalars`` what all share.

`descend` runs any optimizer (a step size for plain gradient descent, or an optax optimizer) and records values,
gradients and distances. For an `Objective`, a function with its known constants, it adds the bounds of the theorems at
every step. On quadratics momentum is a linear recursion, whose spectral radius is the rate: `spectral_radius`,
`stable_step_size`, `tuned_momentum`, `stability_map`.

    L    smoothness: the Lipschitz constant of the gradient; for a quadratic the largest eigenvalue of its Hessian
    mu   convexity: the smallest eigenvalue
    eta  step size
    m    momentum
    R    distance of the start from the minimizer
"""

from jaxblocks.theory.convergence.bounds import convex_bound, linear_bound
from jaxblocks.theory.convergence.descent import Descent, descend
from jaxblocks.theory.convergence.momentum import (
    StabilityMap,
    TunedMomentum,
    iteration_matrix,
    spectral_radius,
    stability_map,
    stable_step_size,
    tuned_momentum,
)
from jaxblocks.theory.convergence.objectives import (
    Objective,
    huber_objective,
    least_squares_objective,
    logistic_objective,
    quadratic_objective,
    smoothness,
)

__all__ = [
    "Descent",
    "Objective",
    "StabilityMap",
    "TunedMomentum",
    "convex_bound",
    "descend",
    "huber_objective",
    "iteration_matrix",
    "least_squares_objective",
    "linear_bound",
    "logistic_objective",
    "quadratic_objective",
    "smoothness",
    "spectral_radius",
    "stability_map",
    "stable_step_size",
    "tuned_momentum",
]
