"""Experiments on generalization: each computes a few numbers, and returns a record that prints them, some with a plot.

Read ``complexity_sweeps`` first. Each other file is one experiment or formula; ``data`` and ``matrix_products`` are
shared.

- Complexity of the model: `degree_sweep`, `width_sweep`, `depth_sweep`.
- Implicit bias of gradient descent: ``minimum_norm``, ``maximum_margin``, `matrix_completion`.
- Conserved quantities of gradient flow: ``deep_linear``, `conservation_drift`.
- ``memorization``: `random_labels`.
- ``gradient_noise``: `batch_noise`, `stationary_variance`.
- Limits of test sets and learners: ``model_selection``, `selection_optimism`; ``unseen_points``, `no_free_lunch`.
- Kernels of nets of infinite width: ``gaussian_processes``.

Small linear algebra uses NumPy in float64, independently of the configuration of JAX. The pictures of the lecture on
these topics are not available; the experiments are our choice.
"""

from jaxblocks.theory.generalization.complexity_sweeps import (
    Sweep,
    degree_sweep,
    depth_sweep,
    polynomial_fit,
    width_sweep,
)
from jaxblocks.theory.generalization.deep_linear import Drift, balancedness, conservation_drift
from jaxblocks.theory.generalization.gaussian_processes import relu_covariance
from jaxblocks.theory.generalization.gradient_noise import BatchNoise, batch_noise, stationary_variance
from jaxblocks.theory.generalization.matrix_completion import Completion, matrix_completion
from jaxblocks.theory.generalization.maximum_margin import MaxMargin, MaxMarginBias, max_margin, max_margin_bias
from jaxblocks.theory.generalization.memorization import RandomLabels, random_labels
from jaxblocks.theory.generalization.minimum_norm import MinNormBias, min_norm_bias
from jaxblocks.theory.generalization.model_selection import Selection, selection_optimism
from jaxblocks.theory.generalization.unseen_points import NoFreeLunch, no_free_lunch

__all__ = [
    "BatchNoise",
    "Completion",
    "Drift",
    "MaxMargin",
    "MaxMarginBias",
    "MinNormBias",
    "NoFreeLunch",
    "RandomLabels",
    "Selection",
    "Sweep",
    "balancedness",
    "batch_noise",
    "conservation_drift",
    "degree_sweep",
    "depth_sweep",
    "matrix_completion",
    "max_margin",
    "max_margin_bias",
    "min_norm_bias",
    "no_free_lunch",
    "polynomial_fit",
    "random_labels",
    "relu_covariance",
    "selection_optimism",
    "stationary_variance",
    "width_sweep",
]
