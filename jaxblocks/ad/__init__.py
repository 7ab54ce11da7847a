"""Derivatives and what they cost: functions of functions.

`jax.grad`, `jax.jvp`, `jax.vjp` and `jax.linearize` are right and are used as they are. What stands
here says what derivatives cost, and gives those that JAX does not, or does not give as cheaply.
"""

# What it costs: counted, measured, traced line by line.
from jaxblocks.ad.counting import Cond, Count, Loop, count_flops, equations
from jaxblocks.ad.memory import MemoryCurve, memory_curve, saved_numbers, temporary_bytes
from jaxblocks.ad.table import CostRow, CostTable, cost_table
from jaxblocks.ad.traces import TraceNode, TraceRow, TraceTable, trace_table

# The order of multiplication: dense chains, and any function.
from jaxblocks.ad.chains import ChainOrder, bracketings, chain_cost, jacobian_chain, multiply_chain, optimal_order
from jaxblocks.ad.jacobians import jacobian, jacobian_plan
from jaxblocks.ad.planning import JacobianPlan
from jaxblocks.ad.sparse import SparsityPattern, sparse_jacobian, sparsity

# Second derivatives: products, operators, matrices, spectra.
from jaxblocks.ad.products import directional_curvature, hvp, value_grad_hvp
from jaxblocks.ad.operators import (
    as_function,
    empirical_fisher_operator,
    empirical_risk,
    fisher_operator,
    gauss_newton_operator,
    gauss_newton_product,
    hessian_operator,
    over_minibatches,
)
from jaxblocks.ad.hessians import as_matrix, hessian, hessian_blocks, hessian_diagonal
from jaxblocks.ad.spectra import (
    Eigenvalues,
    Lanczos,
    SpectralDensity,
    TraceEstimate,
    estimate_trace,
    lanczos,
    largest_eigenvalues,
    spectral_density,
)
from jaxblocks.ad.laplacians import laplacian, value_grad_laplacian

# One example at a time, and pairs of examples.
from jaxblocks.ad.per_example import (
    GradientNoise,
    NormsPlan,
    gradient_noise,
    per_example_gradients,
    per_example_norms,
    per_example_norms_plan,
)
from jaxblocks.ad.kernels import KernelPlan, kernel_regression, ntk, ntk_plan, ntk_relu

# Memory against time.
from jaxblocks.ad.checkpointing import binomial_schedule, binomial_steps, scan

# A wrong build of jaxlib, noticed.
from jaxblocks.ad.build import warn_of_wrong_build

__all__ = [
    "ChainOrder",
    "Cond",
    "CostRow",
    "CostTable",
    "Count",
    "Eigenvalues",
    "GradientNoise",
    "JacobianPlan",
    "KernelPlan",
    "Lanczos",
    "Loop",
    "MemoryCurve",
    "NormsPlan",
    "SparsityPattern",
    "SpectralDensity",
    "TraceEstimate",
    "TraceNode",
    "TraceRow",
    "TraceTable",
    "as_function",
    "as_matrix",
    "binomial_schedule",
    "binomial_steps",
    "bracketings",
    "chain_cost",
    "cost_table",
    "count_flops",
    "directional_curvature",
    "empirical_fisher_operator",
    "empirical_risk",
    "equations",
    "estimate_trace",
    "fisher_operator",
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
    "laplacian",
    "largest_eigenvalues",
    "memory_curve",
    "multiply_chain",
    "ntk",
    "ntk_plan",
    "ntk_relu",
    "optimal_order",
    "over_minibatches",
    "per_example_gradients",
    "per_example_norms",
    "per_example_norms_plan",
    "saved_numbers",
    "scan",
    "sparse_jacobian",
    "sparsity",
    "spectral_density",
    "temporary_bytes",
    "trace_table",
    "value_grad_hvp",
    "value_grad_laplacian",
    "warn_of_wrong_build",
]
