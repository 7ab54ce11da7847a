"""Derivatives and their cost.

This subpackage complements `jax.grad`, `jax.jvp`, `jax.vjp` and `jax.linearize`: it measures the cost of derivatives,
and computes derivatives that JAX does not provide, or computes them at lower cost. Each folder is a subject, imported
at the first use of one of its names. Read `traces` first, which shows forward and reverse mode line by line;
`programs`, `counting` and `planning` are below the others and read programs, `costs` and `page` are above them and show
the results.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

# The public names by folder.
_FOLDERS = {
    # Counts of operations.
    "counting": (
        "Cond",
        "Count",
        "Loop",
        "count_flops",
        "equations",
    ),
    # Cost tables, memory, time.
    "costs": (
        "CostRow",
        "CostTable",
        "MemoryCurve",
        "ModeGrid",
        "checkpoint_table",
        "cost_table",
        "memory_curve",
        "mode_grid",
        "saved_numbers",
        "temporary_bytes",
    ),
    # Forward and reverse mode, line by line.
    "traces": (
        "TraceNode",
        "TraceRow",
        "TraceTable",
        "trace_table",
    ),
    # A page to explore a function with.
    "page": (
        "Exploration",
        "explore",
    ),
    # The order of multiplication: dense chains, any function, sparse functions.
    "jacobians": (
        "ChainOrder",
        "SparsityPattern",
        "bracketings",
        "chain_cost",
        "chain_memory",
        "jacobian",
        "jacobian_chain",
        "jacobian_plan",
        "multiply_chain",
        "optimal_order",
        "sparse_jacobian",
        "sparsity",
    ),
    "planning": ("JacobianPlan",),
    # Second derivatives: products, operators, matrices, spectra, solutions, posteriors.
    "curvature": (
        "Eigenvalues",
        "Lanczos",
        "LaplacePosterior",
        "LinearSolution",
        "SpectralDensity",
        "StructuredCurvature",
        "TraceEstimate",
        "as_function",
        "as_matrix",
        "directional_curvature",
        "empirical_fisher_operator",
        "empirical_risk",
        "estimate_trace",
        "fisher_operator",
        "gauss_newton_operator",
        "gauss_newton_product",
        "hessian",
        "hessian_blocks",
        "hessian_diagonal",
        "hessian_operator",
        "hvp",
        "lanczos",
        "laplace_approximation",
        "largest_eigenvalues",
        "log_determinant",
        "over_minibatches",
        "solve",
        "spectral_density",
        "structured_curvature",
        "value_grad_hvp",
    ),
    # Higher derivatives.
    "higher": (
        "biharmonic",
        "directional_derivatives",
        "estimate_biharmonic",
        "estimate_laplacian",
        "forward_gradient",
        "laplacian",
        "partial_derivative",
        "value_grad_laplacian",
    ),
    # Derivatives of solutions.
    "implicit": (
        "argmin",
        "fixed_point",
        "root",
    ),
    # Derivatives of each example, and tangent kernels.
    "examples": (
        "GradientNoise",
        "KernelPlan",
        "NormsPlan",
        "gradient_noise",
        "kernel_regression",
        "ntk",
        "ntk_plan",
        "ntk_relu",
        "per_example_gradients",
        "per_example_norms",
        "per_example_norms_plan",
    ),
    # Memory against time.
    "checkpointing": (
        "binomial_schedule",
        "binomial_steps",
        "scan",
    ),
}
_FOLDER_OF = {name: folder for folder, names in _FOLDERS.items() for name in names}

if TYPE_CHECKING:
    from jaxblocks.ad.counting import Cond, Count, Loop, count_flops, equations
    from jaxblocks.ad.costs import (
        CostRow,
        CostTable,
        MemoryCurve,
        ModeGrid,
        checkpoint_table,
        cost_table,
        memory_curve,
        mode_grid,
        saved_numbers,
        temporary_bytes,
    )
    from jaxblocks.ad.traces import TraceNode, TraceRow, TraceTable, trace_table
    from jaxblocks.ad.page import Exploration, explore
    from jaxblocks.ad.jacobians import (
        ChainOrder,
        SparsityPattern,
        bracketings,
        chain_cost,
        chain_memory,
        jacobian,
        jacobian_chain,
        jacobian_plan,
        multiply_chain,
        optimal_order,
        sparse_jacobian,
        sparsity,
    )
    from jaxblocks.ad.planning import JacobianPlan
    from jaxblocks.ad.curvature import (
        Eigenvalues,
        Lanczos,
        LaplacePosterior,
        LinearSolution,
        SpectralDensity,
        StructuredCurvature,
        TraceEstimate,
        as_function,
        as_matrix,
        directional_curvature,
        empirical_fisher_operator,
        empirical_risk,
        estimate_trace,
        fisher_operator,
        gauss_newton_operator,
        gauss_newton_product,
        hessian,
        hessian_blocks,
        hessian_diagonal,
        hessian_operator,
        hvp,
        lanczos,
        laplace_approximation,
        largest_eigenvalues,
        log_determinant,
        over_minibatches,
        solve,
        spectral_density,
        structured_curvature,
        value_grad_hvp,
    )
    from jaxblocks.ad.higher import (
        biharmonic,
        directional_derivatives,
        estimate_biharmonic,
        estimate_laplacian,
        forward_gradient,
        laplacian,
        partial_derivative,
        value_grad_laplacian,
    )
    from jaxblocks.ad.implicit import argmin, fixed_point, root
    from jaxblocks.ad.examples import (
        GradientNoise,
        KernelPlan,
        NormsPlan,
        gradient_noise,
        kernel_regression,
        ntk,
        ntk_plan,
        ntk_relu,
        per_example_gradients,
        per_example_norms,
        per_example_norms_plan,
    )
    from jaxblocks.ad.checkpointing import binomial_schedule, binomial_steps, scan

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
        if name in _FOLDERS:
            return _import_module(f"{__name__}.{name}")
        if name not in _FOLDER_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(_import_module(f"{__name__}.{_FOLDER_OF[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_FOLDERS})
