"""Derivatives and their cost.

This subpackage complements `jax.grad`, `jax.jvp`, `jax.vjp` and `jax.linearize`: it measures the cost of derivatives,
and computes derivatives that JAX does not provide, or computes them at lower cost. Each module is imported at the
first use of one of its names.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

# The public names by module.
_FILES = {
    # Cost: counted, measured, traced operation by operation.
    "counting": ("Cond", "Count", "Loop", "count_flops", "equations"),
    "memory": ("MemoryCurve", "memory_curve", "saved_numbers", "temporary_bytes"),
    "cost_tables": ("CostRow", "CostTable", "cost_table"),
    "checkpoint_tables": ("checkpoint_table",),
    "mode_grids": ("ModeGrid", "mode_grid"),
    "traces": ("TraceNode", "TraceRow", "TraceTable", "trace_table"),
    # A page to explore a function with.
    "page": ("Exploration", "explore"),
    # The order of multiplication: dense chains, and any function.
    "chains": (
        "ChainOrder",
        "bracketings",
        "chain_cost",
        "chain_memory",
        "jacobian_chain",
        "multiply_chain",
        "optimal_order",
    ),
    "jacobians": ("jacobian", "jacobian_plan"),
    "planning": ("JacobianPlan",),
    "sparse": ("SparsityPattern", "sparse_jacobian", "sparsity"),
    # Second derivatives: products, operators, matrices, spectra.
    "products": ("directional_curvature", "hvp", "value_grad_hvp"),
    "operators": (
        "empirical_fisher_operator",
        "fisher_operator",
        "gauss_newton_operator",
        "gauss_newton_product",
        "hessian_operator",
    ),
    "objectives": ("as_function", "empirical_risk", "over_minibatches"),
    "hessians": ("as_matrix", "hessian", "hessian_blocks", "hessian_diagonal"),
    "trace_estimation": ("TraceEstimate", "estimate_trace"),
    "krylov": ("Lanczos", "lanczos"),
    "spectra": ("Eigenvalues", "SpectralDensity", "largest_eigenvalues", "spectral_density"),
    "laplacians": ("biharmonic", "laplacian", "value_grad_laplacian"),
    # Higher derivatives.
    "taylor": ("directional_derivatives", "partial_derivative"),
    "random_directions": ("estimate_biharmonic", "estimate_laplacian", "forward_gradient"),
    # Derivatives of solutions.
    "implicit": ("argmin", "fixed_point", "root"),
    # Inverse curvature: linear systems, Kronecker factors, determinants, posteriors.
    "linear_solves": ("LinearSolution", "solve"),
    "curvature_structures": ("StructuredCurvature", "structured_curvature"),
    "log_determinants": ("log_determinant",),
    "laplace": ("LaplacePosterior", "laplace_approximation"),
    # Per-example derivatives and tangent kernels.
    "per_example": ("NormsPlan", "per_example_gradients", "per_example_norms", "per_example_norms_plan"),
    "noise": ("GradientNoise", "gradient_noise"),
    "kernels": ("KernelPlan", "ntk", "ntk_plan"),
    "infinite_width": ("kernel_regression", "ntk_relu"),
    # Memory against time.
    "checkpointing": ("scan",),
    "binomial": ("binomial_schedule", "binomial_steps"),
}
_FILE_OF = {name: file for file, names in _FILES.items() for name in names}

if TYPE_CHECKING:
    from jaxblocks.ad.counting import Cond, Count, Loop, count_flops, equations
    from jaxblocks.ad.memory import MemoryCurve, memory_curve, saved_numbers, temporary_bytes
    from jaxblocks.ad.cost_tables import CostRow, CostTable, cost_table
    from jaxblocks.ad.checkpoint_tables import checkpoint_table
    from jaxblocks.ad.mode_grids import ModeGrid, mode_grid
    from jaxblocks.ad.traces import TraceNode, TraceRow, TraceTable, trace_table
    from jaxblocks.ad.page import Exploration, explore
    from jaxblocks.ad.chains import (
        ChainOrder,
        bracketings,
        chain_cost,
        chain_memory,
        jacobian_chain,
        multiply_chain,
        optimal_order,
    )
    from jaxblocks.ad.jacobians import jacobian, jacobian_plan
    from jaxblocks.ad.planning import JacobianPlan
    from jaxblocks.ad.sparse import SparsityPattern, sparse_jacobian, sparsity
    from jaxblocks.ad.products import directional_curvature, hvp, value_grad_hvp
    from jaxblocks.ad.operators import (
        empirical_fisher_operator,
        fisher_operator,
        gauss_newton_operator,
        gauss_newton_product,
        hessian_operator,
    )
    from jaxblocks.ad.objectives import as_function, empirical_risk, over_minibatches
    from jaxblocks.ad.hessians import as_matrix, hessian, hessian_blocks, hessian_diagonal
    from jaxblocks.ad.trace_estimation import TraceEstimate, estimate_trace
    from jaxblocks.ad.krylov import Lanczos, lanczos
    from jaxblocks.ad.spectra import Eigenvalues, SpectralDensity, largest_eigenvalues, spectral_density
    from jaxblocks.ad.laplacians import biharmonic, laplacian, value_grad_laplacian
    from jaxblocks.ad.taylor import directional_derivatives, partial_derivative
    from jaxblocks.ad.random_directions import estimate_biharmonic, estimate_laplacian, forward_gradient
    from jaxblocks.ad.implicit import argmin, fixed_point, root
    from jaxblocks.ad.linear_solves import LinearSolution, solve
    from jaxblocks.ad.curvature_structures import StructuredCurvature, structured_curvature
    from jaxblocks.ad.log_determinants import log_determinant
    from jaxblocks.ad.laplace import LaplacePosterior, laplace_approximation
    from jaxblocks.ad.per_example import NormsPlan, per_example_gradients, per_example_norms, per_example_norms_plan
    from jaxblocks.ad.noise import GradientNoise, gradient_noise
    from jaxblocks.ad.kernels import KernelPlan, ntk, ntk_plan
    from jaxblocks.ad.infinite_width import kernel_regression, ntk_relu
    from jaxblocks.ad.checkpointing import scan
    from jaxblocks.ad.binomial import binomial_schedule, binomial_steps

__all__ = [
    "ChainOrder",
    "Cond",
    "CostRow",
    "CostTable",
    "Count",
    "Eigenvalues",
    "Exploration",
    "GradientNoise",
    "JacobianPlan",
    "KernelPlan",
    "Lanczos",
    "LaplacePosterior",
    "LinearSolution",
    "Loop",
    "MemoryCurve",
    "ModeGrid",
    "NormsPlan",
    "SparsityPattern",
    "SpectralDensity",
    "StructuredCurvature",
    "TraceEstimate",
    "TraceNode",
    "TraceRow",
    "TraceTable",
    "argmin",
    "as_function",
    "as_matrix",
    "biharmonic",
    "binomial_schedule",
    "binomial_steps",
    "bracketings",
    "chain_cost",
    "chain_memory",
    "checkpoint_table",
    "cost_table",
    "count_flops",
    "directional_curvature",
    "directional_derivatives",
    "empirical_fisher_operator",
    "empirical_risk",
    "equations",
    "estimate_biharmonic",
    "estimate_laplacian",
    "estimate_trace",
    "explore",
    "fisher_operator",
    "fixed_point",
    "forward_gradient",
    "gauss_newton_operator",
    "gauss_newton_product",
    "gradient_noise",
    "hessian",
    "hessian_blocks",
    "hessian_diagonal",
    "hessian_operator",
    "hvp",
    "jacobian",
    "jacobian_chain",
    "jacobian_plan",
    "kernel_regression",
    "lanczos",
    "laplace_approximation",
    "laplacian",
    "largest_eigenvalues",
    "log_determinant",
    "memory_curve",
    "mode_grid",
    "multiply_chain",
    "ntk",
    "ntk_plan",
    "ntk_relu",
    "optimal_order",
    "over_minibatches",
    "partial_derivative",
    "per_example_gradients",
    "per_example_norms",
    "per_example_norms_plan",
    "root",
    "saved_numbers",
    "scan",
    "solve",
    "sparse_jacobian",
    "sparsity",
    "spectral_density",
    "structured_curvature",
    "temporary_bytes",
    "trace_table",
    "value_grad_hvp",
    "value_grad_laplacian",
]


if not TYPE_CHECKING:  # so that type checkers report names that do not exist

    def __getattr__(name: str):
        if name in _FILES:
            return _import_module(f"{__name__}.{name}")
        if name not in _FILE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(_import_module(f"{__name__}.{_FILE_OF[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_FILES})
