"""Higher derivatives: Taylor mode, the Laplacian in one forward pass, and estimates from random directions.

Read `taylor` first. `laplacians` propagates value, gradient and Laplacian through each equation, `shared_directions`
finds inputs that can share one direction, and `random_directions` estimates derivatives in many dimensions.
"""

from jaxblocks.ad.higher.laplacians import biharmonic, laplacian, value_grad_laplacian
from jaxblocks.ad.higher.random_directions import estimate_biharmonic, estimate_laplacian, forward_gradient
from jaxblocks.ad.higher.taylor import directional_derivatives, partial_derivative

__all__ = [
    "biharmonic",
    "directional_derivatives",
    "estimate_biharmonic",
    "estimate_laplacian",
    "forward_gradient",
    "laplacian",
    "partial_derivative",
    "value_grad_laplacian",
]
