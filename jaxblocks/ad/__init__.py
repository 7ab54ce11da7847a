"""Derivatives and their cost.

This subpackage complements `jax.grad`, `jax.jvp`, `jax.vjp` and `jax.linearize`: it measures the cost of derivatives,
and computes derivatives that JAX does not provide, or computes them at lower cost. Each folder is a subject, imported
at the first use of one of its names. Read `traces` first, which shows forward and reverse mode line by line;
`programs`, `counting`, `checkpointing` and `planning` are below the others and read or rewrite programs, and `vectors`
has pytrees as vectors. `jacobians`, `curvature`, `higher`, `per_example` and `implicit` compute derivatives; `costs`
and `page` are above them and show what they cost.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxblocks.ad.checkpointing import *
    from jaxblocks.ad.costs import *
    from jaxblocks.ad.counting import *
    from jaxblocks.ad.curvature import *
    from jaxblocks.ad.higher import *
    from jaxblocks.ad.implicit import *
    from jaxblocks.ad.jacobians import *
    from jaxblocks.ad.page import *
    from jaxblocks.ad.per_example import *
    from jaxblocks.ad.planning import JacobianPlan as JacobianPlan
    from jaxblocks.ad.traces import *
else:
    from jaxblocks.core.lazy import lazy_names

    _MODULES = {
        # Counts of operations.
        "counting": "Cond Count Loop count_flops equations",
        # Cost tables, memory, time.
        "costs": (
            "CostRow CostTable MemoryCurve ModeGrid checkpoint_table cost_table memory_curve mode_grid saved_numbers "
            "temporary_bytes"
        ),
        # Forward and reverse mode, line by line.
        "traces": "TraceNode TraceRow TraceTable trace_table",
        # A page to explore a function with.
        "page": "Exploration explore",
        # The order of multiplication: dense chains, any function, sparse functions.
        "jacobians": (
            "ChainOrder SparsityPattern bracketings chain_cost chain_memory jacobian jacobian_chain jacobian_plan "
            "multiply_chain optimal_order sparse_jacobian sparsity"
        ),
        "planning": "JacobianPlan",
        # Second derivatives: products, operators, matrices, spectra, solutions, posteriors.
        "curvature": (
            "Eigenvalues Lanczos LaplacePosterior LinearSolution SpectralDensity StructuredCurvature TraceEstimate "
            "as_function as_matrix directional_curvature empirical_risk estimate_trace fisher_operator "
            "gauss_newton_operator gauss_newton_product hessian hessian_diagonal hessian_operator hvp lanczos "
            "laplace_approximation largest_eigenvalues log_determinant over_minibatches solve spectral_density "
            "structured_curvature"
        ),
        # Higher derivatives.
        "higher": (
            "biharmonic directional_derivatives estimate_biharmonic estimate_laplacian forward_gradient laplacian "
            "partial_derivative value_grad_laplacian"
        ),
        # Derivatives of solutions.
        "implicit": "argmin fixed_point root",
        # Derivatives of each example, and tangent kernels.
        "per_example": (
            "GradientNoise KernelPlan NormsPlan gradient_noise kernel_regression ntk ntk_plan ntk_relu "
            "per_example_gradients per_example_norms per_example_norms_plan private_gradients"
        ),
        # Memory against time.
        "checkpointing": "binomial_schedule binomial_steps scan",
    }
    __getattr__, __dir__, __all__ = lazy_names(__name__, _MODULES)
