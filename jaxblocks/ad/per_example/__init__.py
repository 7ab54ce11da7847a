"""The derivatives of each example: gradients, their norms and noise, and tangent kernels.

Read `gradients` first. `sites` finds the products in which a function uses its parameters, whose gradients are sums of
outer products, and `factors` computes these; `leaf_plans` records what is chosen for each leaf. `private` clips the
gradient of each example. `tangent_kernels` has the kernels of networks, `infinite_width` their limit, `noise` the
covariance of minibatch gradients.
"""

from jaxblocks.ad.per_example.gradients import (
    NormsPlan,
    per_example_gradients,
    per_example_norms,
    per_example_norms_plan,
)
from jaxblocks.ad.per_example.infinite_width import kernel_regression, ntk_relu
from jaxblocks.ad.per_example.noise import GradientNoise, gradient_noise
from jaxblocks.ad.per_example.private import private_gradients
from jaxblocks.ad.per_example.tangent_kernels import KernelPlan, ntk, ntk_plan

__all__ = [
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
    "private_gradients",
]
