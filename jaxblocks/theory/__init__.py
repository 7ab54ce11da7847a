"""Theorems of deep learning as code: constructions with their proofs, and bounds that hold at every step.

Read ``piecewise_linear`` first. Each other file or folder is one theorem or one kind of experiment.

- Piecewise linear functions and the nets that compute them: `to_piecewise_linear`, `from_piecewise_linear`.
- Approximation of continuous functions, with bounds: `approximate`, `pieces_for`, `approximate_by_ridges`.
- Depth against width: `sawtooth_network`, `triangle_network`, `separation`.
- Boolean functions and maxima: `minterm_network`, `parity_chain`, `max_min_string`.
- Homogeneity of rectifier nets: `euler_terms`, `rescale`, `normalized_margin`.
- Exact linear regions and bounds on their number: `regions`, `regions_along`, `count_regions`.
- Gradient descent and momentum, with bounds at every step: `descend`, `Objective`, `stability_map`.
- Experiments on generalization: `degree_sweep`, `min_norm_bias`, `random_labels`.

Submodules are imported at the first use of one of their names.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxblocks.theory.piecewise_linear import (
        PiecewiseLinear as PiecewiseLinear,
        count_kinks as count_kinks,
        from_piecewise_linear as from_piecewise_linear,
        to_piecewise_linear as to_piecewise_linear,
        two_level_model as two_level_model,
    )
    from jaxblocks.theory.approximation import (
        RidgeApproximation as RidgeApproximation,
        approximate as approximate,
        approximate_by_ridges as approximate_by_ridges,
        interpolate as interpolate,
        modulus_of_continuity as modulus_of_continuity,
        pieces_for as pieces_for,
    )
    from jaxblocks.theory.depth import (
        pieces_bound as pieces_bound,
        sawtooth as sawtooth,
        sawtooth_network as sawtooth_network,
        separation as separation,
        separation_bound as separation_bound,
        triangle_network as triangle_network,
        triangle_wave as triangle_wave,
    )
    from jaxblocks.theory.boolean import (
        bit_rows as bit_rows,
        minterm_network as minterm_network,
        parity_chain as parity_chain,
        parity_cosine as parity_cosine,
        parity_shallow as parity_shallow,
    )
    from jaxblocks.theory.maxima import (
        max_min_string as max_min_string,
        max_zero_x_y as max_zero_x_y,
    )
    from jaxblocks.theory.homogeneity import (
        EulerTerms as EulerTerms,
        balance as balance,
        euler_terms as euler_terms,
        norm_differences as norm_differences,
        normalized_margin as normalized_margin,
        rescale as rescale,
        unit_kernels as unit_kernels,
    )
    from jaxblocks.theory.linear_regions import (
        Regions as Regions,
        SegmentRegions as SegmentRegions,
        arrangement_regions as arrangement_regions,
        count_regions as count_regions,
        folding_network as folding_network,
        region_lower_bound as region_lower_bound,
        region_upper_bound as region_upper_bound,
        regions as regions,
        regions_along as regions_along,
    )
    from jaxblocks.theory.convergence import (
        Descent as Descent,
        Objective as Objective,
        StabilityMap as StabilityMap,
        TunedMomentum as TunedMomentum,
        convex_bound as convex_bound,
        descend as descend,
        huber_objective as huber_objective,
        iteration_matrix as iteration_matrix,
        least_squares_objective as least_squares_objective,
        linear_bound as linear_bound,
        logistic_objective as logistic_objective,
        quadratic_objective as quadratic_objective,
        smoothness as smoothness,
        spectral_radius as spectral_radius,
        stability_map as stability_map,
        stable_step_size as stable_step_size,
        tuned_momentum as tuned_momentum,
    )
    from jaxblocks.theory.generalization import (
        BatchNoise as BatchNoise,
        Capacity as Capacity,
        Completion as Completion,
        Drift as Drift,
        MaxMargin as MaxMargin,
        MaxMarginBias as MaxMarginBias,
        MinNormBias as MinNormBias,
        NoFreeLunch as NoFreeLunch,
        RandomLabels as RandomLabels,
        Selection as Selection,
        Sweep as Sweep,
        balancedness as balancedness,
        batch_noise as batch_noise,
        capacity as capacity,
        conservation_drift as conservation_drift,
        degree_sweep as degree_sweep,
        depth_sweep as depth_sweep,
        linear_dichotomies as linear_dichotomies,
        matrix_completion as matrix_completion,
        max_margin as max_margin,
        max_margin_bias as max_margin_bias,
        min_norm_bias as min_norm_bias,
        no_free_lunch as no_free_lunch,
        polynomial_fit as polynomial_fit,
        random_labels as random_labels,
        relu_covariance as relu_covariance,
        selection_optimism as selection_optimism,
        stationary_variance as stationary_variance,
        width_sweep as width_sweep,
    )

_NAMES = {
    "piecewise_linear": (
        "PiecewiseLinear",
        "count_kinks",
        "from_piecewise_linear",
        "to_piecewise_linear",
        "two_level_model",
    ),
    "approximation": (
        "RidgeApproximation",
        "approximate",
        "approximate_by_ridges",
        "interpolate",
        "modulus_of_continuity",
        "pieces_for",
    ),
    "depth": (
        "pieces_bound",
        "sawtooth",
        "sawtooth_network",
        "separation",
        "separation_bound",
        "triangle_network",
        "triangle_wave",
    ),
    "boolean": (
        "bit_rows",
        "minterm_network",
        "parity_chain",
        "parity_cosine",
        "parity_shallow",
    ),
    "maxima": (
        "max_min_string",
        "max_zero_x_y",
    ),
    "homogeneity": (
        "EulerTerms",
        "balance",
        "euler_terms",
        "norm_differences",
        "normalized_margin",
        "rescale",
        "unit_kernels",
    ),
    "linear_regions": (
        "Regions",
        "SegmentRegions",
        "arrangement_regions",
        "count_regions",
        "folding_network",
        "region_lower_bound",
        "region_upper_bound",
        "regions",
        "regions_along",
    ),
    "convergence": (
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
    ),
    "generalization": (
        "BatchNoise",
        "Capacity",
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
        "capacity",
        "conservation_drift",
        "degree_sweep",
        "depth_sweep",
        "linear_dichotomies",
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
    ),
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}


if not TYPE_CHECKING:  # so that type checkers report names that do not exist

    def __getattr__(name: str):
        if name in _MODULE_OF:
            return getattr(_import_module(f"jaxblocks.theory.{_MODULE_OF[name]}"), name)
        if name in _NAMES:
            return _import_module(f"jaxblocks.theory.{name}")
        raise AttributeError(f"module 'jaxblocks.theory' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *_NAMES]


__all__ = [
    "BatchNoise",
    "Capacity",
    "Completion",
    "Descent",
    "Drift",
    "EulerTerms",
    "MaxMargin",
    "MaxMarginBias",
    "MinNormBias",
    "NoFreeLunch",
    "Objective",
    "PiecewiseLinear",
    "RandomLabels",
    "Regions",
    "RidgeApproximation",
    "SegmentRegions",
    "Selection",
    "StabilityMap",
    "Sweep",
    "TunedMomentum",
    "approximate",
    "approximate_by_ridges",
    "arrangement_regions",
    "balance",
    "balancedness",
    "batch_noise",
    "bit_rows",
    "capacity",
    "conservation_drift",
    "convex_bound",
    "count_kinks",
    "count_regions",
    "degree_sweep",
    "depth_sweep",
    "descend",
    "euler_terms",
    "folding_network",
    "from_piecewise_linear",
    "huber_objective",
    "interpolate",
    "iteration_matrix",
    "least_squares_objective",
    "linear_bound",
    "linear_dichotomies",
    "logistic_objective",
    "matrix_completion",
    "max_margin",
    "max_margin_bias",
    "max_min_string",
    "max_zero_x_y",
    "min_norm_bias",
    "minterm_network",
    "modulus_of_continuity",
    "no_free_lunch",
    "norm_differences",
    "normalized_margin",
    "parity_chain",
    "parity_cosine",
    "parity_shallow",
    "pieces_bound",
    "pieces_for",
    "polynomial_fit",
    "quadratic_objective",
    "random_labels",
    "region_lower_bound",
    "region_upper_bound",
    "regions",
    "regions_along",
    "relu_covariance",
    "rescale",
    "sawtooth",
    "sawtooth_network",
    "selection_optimism",
    "separation",
    "separation_bound",
    "smoothness",
    "spectral_radius",
    "stability_map",
    "stable_step_size",
    "stationary_variance",
    "to_piecewise_linear",
    "triangle_network",
    "triangle_wave",
    "tuned_momentum",
    "two_level_model",
    "unit_kernels",
    "width_sweep",
]
