"""Second derivatives of scalar functions: products, operators, matrices, spectra, solutions and posteriors.

Read `hessian_products` first: the product of the Hessian with a vector. `operators` has curvature matrices as linear
operators and `risks` the functions of the params that they belong to; `hessians` has matrices, `krylov`, `spectra`,
`trace_estimation` and `log_determinants` what products alone determine. `kronecker_factors` and `structures` have
matrices that can be inverted, from the roots of the loss in `loss_roots`; `linear_solves` has conjugate gradients, and
`laplace` posteriors of params.
"""

from jaxblocks.ad.curvature.hessian_products import directional_curvature, hvp
from jaxblocks.ad.curvature.hessians import as_matrix, hessian, hessian_diagonal
from jaxblocks.ad.curvature.krylov import Lanczos, lanczos
from jaxblocks.ad.curvature.laplace import LaplacePosterior, laplace_approximation
from jaxblocks.ad.curvature.linear_solves import LinearSolution, solve
from jaxblocks.ad.curvature.log_determinants import log_determinant
from jaxblocks.ad.curvature.operators import (
    fisher_operator,
    gauss_newton_operator,
    gauss_newton_product,
    hessian_operator,
)
from jaxblocks.ad.curvature.risks import as_function, empirical_risk, over_minibatches
from jaxblocks.ad.curvature.spectra import Eigenvalues, SpectralDensity, largest_eigenvalues, spectral_density
from jaxblocks.ad.curvature.structures import StructuredCurvature, structured_curvature
from jaxblocks.ad.curvature.trace_estimation import TraceEstimate, estimate_trace

__all__ = [
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
    "empirical_risk",
    "estimate_trace",
    "fisher_operator",
    "gauss_newton_operator",
    "gauss_newton_product",
    "hessian",
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
]
