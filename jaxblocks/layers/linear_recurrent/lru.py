"""The linear recurrent unit: a diagonal linear state space with complex eigenvalues inside the unit disk."""

import math
from collections.abc import Callable
from typing import Literal, TypedDict, Unpack, overload

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from jaxblocks import initializers
from jaxblocks.backend.linear_maps import affine_map, along_batch
from jaxblocks.backend.precision import widen
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import NonNegativeFloat, PositiveFloat, PositiveInt, check_params
from jaxblocks.core.pairs import Layer, StatefulLayer, builder
from jaxblocks.layers.linear_recurrent.carried import layer_over_time
from jaxblocks.layers.linear_recurrent.recurrence import linear_recurrence

__all__ = ["LRU"]


class _Options(TypedDict, total=False):
    r_min: float
    r_max: float
    max_phase: float
    kernel_init: Callable
    dtype: DTypeLike | None
    param_dtype: DTypeLike


@overload
def LRU(state_features: int, *, stateful: Literal[False] = False, **options: Unpack[_Options]) -> Layer: ...
@overload
def LRU(state_features: int, *, stateful: Literal[True], **options: Unpack[_Options]) -> StatefulLayer: ...
@builder
def LRU(
    state_features: PositiveInt,
    *,
    r_min: NonNegativeFloat = 0.0,
    r_max: PositiveFloat = 1.0,
    max_phase: PositiveFloat = 2 * math.pi,
    stateful: bool = False,
    kernel_init: Callable = initializers.lecun_normal(),
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
) -> Layer | StatefulLayer:
    r"""The linear recurrent unit, a recurrence of complex numbers between two linear maps.

    .. math::

        h_t = λ ⊙ h_{t-1} + γ ⊙ B x_t,
        y_t = Re(C h_t) + D ⊙ x_t,
        λ_j = exp(-e^{ν_j} + i e^{θ_j}), γ_j = e^{g_j}

    where ν, θ and g are the params ``nu_log``, ``theta_log``, ``gamma_log``, and D is ``skip``. The real and imaginary
    parts of B are side by side in ``input_kernel``, (features, 2 state_features); those of C, the second with the
    opposite sign, are below each other in ``output_kernel``, (2 state_features, features). $|λ_j| < 1$ for all params,
    so that the unit is stable. Initially $|λ|$ and its phase are uniform on a ring, and γ is $√(1 - |λ|^2)$, with
    which the carry has the variance of its input.

    Args:
        state_features: the number of complex entries of the carry.
        r_min, r_max: bounds of the initial $|λ|$; close to 1 for dependencies over many steps.
        max_phase: bound of the initial phases; small for dependencies over many steps.
        stateful: ``True`` makes a ``StatefulLayer`` whose state is the carry, real and imaginary parts concatenated,
            for sequences in pieces and for decoding step by step.
        kernel_init: of B and C.
        dtype, param_dtype: as in `Dense`. The carry is float32 where the arithmetic has half precision.

    Shapes: ``(..., time, features)`` to the same, with a carry ``(..., 2 * state_features)``. There is no ``mask``:
    put padding at the end.

    >>> net = LRU(4, stateful=True)
    >>> params, carry = net.init(jax.random.key(0), jnp.zeros((8, 5, 3)))
    >>> outputs, carry = jax.jit(net.apply)(params, carry, jnp.ones((8, 5, 3)))
    >>> outputs.shape, carry.shape
    ((8, 5, 3), (8, 8))

    Source: Orvieto et al. 2023, Resurrecting recurrent neural networks for long sequences, arXiv:2303.06349.
    """
    state = state_features
    require(r_min < r_max <= 1, "r_min < r_max <= 1", f"r_min={r_min}, r_max={r_max}", "pass radii of the unit disk")
    shapes = dict.fromkeys(("nu_log", "theta_log", "gamma_log"), (state,))

    def draw(key, features):
        keys = jax.random.split(key, 5)
        # Above 0, since the logarithms below are of u and of -log u.
        u, v = (jax.random.uniform(k, (state,), minval=1e-6, maxval=1 - 1e-6) for k in keys[:2])
        squared = u * (r_max**2 - r_min**2) + r_min**2
        params = {
            "nu_log": jnp.log(-0.5 * jnp.log(squared)),
            "theta_log": jnp.log(max_phase * v),
            "gamma_log": 0.5 * jnp.log1p(-squared),
            "input_kernel": kernel_init(keys[2], (features, 2 * state), param_dtype),
            "output_kernel": kernel_init(keys[3], (2 * state, features), param_dtype),
            "skip": jax.random.normal(keys[4], (features,)),
        }
        return {name: param.astype(param_dtype) for name, param in params.items()}

    def run(params, carry, x):
        features = x.shape[-1]
        kernels = {"input_kernel": (features, 2 * state), "output_kernel": (2 * state, features)}
        check_params(params, **shapes, **kernels, skip=(features,))
        nu, theta, gamma = (jnp.exp(params[name].astype(carry.dtype)) for name in shapes)
        radius = jnp.exp(-nu)
        rates = lax.complex(radius * jnp.cos(theta), radius * jnp.sin(theta))
        rates = rates.reshape((1,) * (x.ndim - 1) + (state,))
        driven = widen(affine_map(x, params["input_kernel"]))
        driven = _as_complex(driven * along_batch(jnp.tile(gamma, 2), driven))
        h = linear_recurrence(rates, driven, _as_complex(carry))
        parts = jnp.concatenate([h.real, h.imag], -1)
        y = affine_map(parts.astype(x.dtype), params["output_kernel"]) + along_batch(params["skip"], x) * x
        return y, parts[..., -1, :] if x.shape[-2] else carry

    return layer_over_time(draw, run, lambda features: (2 * state,), stateful, dtype)


def _as_complex(x):
    return lax.complex(*jnp.split(x, 2, -1))
