"""Theorems of deep learning as code: constructions with their proofs, and bounds that hold at every step.

Read ``piecewise_linear`` first. Each other file or folder is one theorem or one kind of experiment.

- ``piecewise_linear``: functions of one input and the nets that compute them: `to_piecewise_linear`.
- ``approximation`` of continuous functions, with bounds: `approximate`, `pieces_for`, `approximate_by_ridges`.
- ``depth`` against width: `sawtooth_network`, `triangle_network`, `separation`.
- ``boolean`` functions and ``maxima``: `minterm_network`, `parity_chain`, `max_min_string`.
- ``homogeneity`` of rectifier nets: `euler_terms`, `rescale`, `normalized_margin`.
- ``linear_regions``, exact, and bounds on their number: `regions`, `regions_along`.
- ``convergence`` of gradient descent and momentum, with bounds at every step: `descend`, `Objective`, `stability_map`.
- ``generalization``, experiments: `degree_sweep`, `min_norm_bias`, `random_labels`.
- Shared: ``piecewise_affine`` reads the regions of a net, ``explicit_weights`` makes nets of given numbers, ``arrays``
  is the type of arguments.

Submodules are imported at the first use of one of their names.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxblocks.theory.approximation import *
    from jaxblocks.theory.boolean import *
    from jaxblocks.theory.convergence import *
    from jaxblocks.theory.depth import *
    from jaxblocks.theory.generalization import *
    from jaxblocks.theory.homogeneity import *
    from jaxblocks.theory.linear_regions import *
    from jaxblocks.theory.maxima import *
    from jaxblocks.theory.piecewise_linear import *
else:
    from jaxblocks.core.lazy import lazy_names

    _MODULES = {
        "piecewise_linear": "PiecewiseLinear count_kinks from_piecewise_linear to_piecewise_linear two_level_model",
        "approximation": (
            "RidgeApproximation approximate approximate_by_ridges interpolate modulus_of_continuity pieces_for"
        ),
        "depth": "pieces_bound sawtooth sawtooth_network separation separation_bound triangle_network triangle_wave",
        "boolean": "bit_rows minterm_network parity_chain parity_cosine parity_shallow",
        "maxima": "max_min_string max_zero_x_y",
        "homogeneity": "EulerTerms balance euler_terms norm_differences normalized_margin rescale unit_kernels",
        "linear_regions": (
            "Regions SegmentRegions arrangement_regions folding_network region_lower_bound "
            "region_upper_bound regions regions_along"
        ),
        "convergence": (
            "Descent Objective StabilityMap TunedMomentum convex_bound descend huber_objective iteration_matrix "
            "least_squares_objective linear_bound logistic_objective quadratic_objective smoothness spectral_radius "
            "stability_map stable_step_size tuned_momentum"
        ),
        "generalization": (
            "BatchNoise Completion Drift MaxMargin MaxMarginBias MinNormBias NoFreeLunch RandomLabels "
            "Selection Sweep balancedness batch_noise conservation_drift degree_sweep depth_sweep "
            "matrix_completion max_margin max_margin_bias min_norm_bias no_free_lunch "
            "polynomial_fit random_labels relu_covariance selection_optimism stationary_variance width_sweep"
        ),
    }
    __getattr__, __dir__, __all__ = lazy_names(__name__, _MODULES)
