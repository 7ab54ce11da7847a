r"""Initializers: functions that draw the weights before training.

An initializer is a function ``f(key, shape, dtype)`` that returns an array; pass it to a layer as ``kernel_init=``.
Most functions here have the names of ``jax.nn.initializers`` and return an initializer::

    Dense(64, kernel_init=initializers.he_normal())

(``zeros`` and ``ones`` are initializers themselves. Layers also take those of ``jax.nn.initializers``, but print them
as ``init``, since JAX does not record the call.) A kernel is ``(in, out)`` or ``(*kernel_size, in, out)``; its
``fan_in`` $n$ is the number of inputs of each output, its ``fan_out`` $m$ the number of outputs of each input.
Zero-mean weights, independent of the inputs, give $Var y = n Var w E x^2$: variance $1 / n$ keeps the second moment.

================================  =====================  ================================================
names                             variance               meant for
================================  =====================  ================================================
``lecun_normal, lecun_uniform``   $1 / n$                SELU, and layers without a rectifier
``he_normal, he_uniform``         $2 / n$                rectifiers (also ``kaiming_...``)
``glorot_normal, ..._uniform``    $2 / (n + m)$          tanh, and both passes (also ``xavier_...``)
================================  =====================  ================================================

The normal distributions are truncated at two standard deviations and rescaled to the stated variance.
`jaxblocks.variance_report` shows whether an initializer fits a net.
"""

import functools
import inspect
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.nn import initializers as _jax

from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import checked
from jaxblocks.core.recording import recorded

__all__ = [
    "constant",
    "delta_orthogonal",
    "for_activation",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "identity",
    "kaiming_normal",
    "kaiming_uniform",
    "lecun_normal",
    "lecun_uniform",
    "normal",
    "ones",
    "orthogonal",
    "truncated_normal",
    "uniform",
    "variance_scaling",
    "xavier_normal",
    "xavier_uniform",
    "zeros",
]


def _of_jax(function: Callable) -> Callable:
    """A function of JAX that makes initializers; these then print and pickle as the call of this module's function."""

    @functools.wraps(function)
    def make(*args, **kwargs):
        from jaxblocks.backend.draws import initializer_of  # how kernels with a window are drawn, which few read

        return initializer_of(function, args, kwargs)

    make = recorded(make)
    make.__module__ = __name__
    return make


ones, zeros = _jax.ones, _jax.zeros
constant = _of_jax(_jax.constant)
delta_orthogonal = _of_jax(_jax.delta_orthogonal)
glorot_normal = xavier_normal = _of_jax(_jax.glorot_normal)
glorot_uniform = xavier_uniform = _of_jax(_jax.glorot_uniform)
he_normal = kaiming_normal = _of_jax(_jax.he_normal)
he_uniform = kaiming_uniform = _of_jax(_jax.he_uniform)
lecun_normal = _of_jax(_jax.lecun_normal)
lecun_uniform = _of_jax(_jax.lecun_uniform)
normal = _of_jax(_jax.normal)
orthogonal = _of_jax(_jax.orthogonal)
truncated_normal = _of_jax(_jax.truncated_normal)
uniform = _of_jax(_jax.uniform)
variance_scaling = _of_jax(_jax.variance_scaling)
variance_scaling.__doc__ = f"""{inspect.getdoc(_jax.variance_scaling)}

>>> draw = variance_scaling(2.0, "fan_in", "normal")
>>> draw(jax.random.key(0), (3, 2), jnp.float32).shape
(3, 2)
"""


@recorded
@checked
def for_activation(activation: Callable, *, exact: bool = False) -> Callable:
    r"""The initializer for a layer before ``activation``: He's for rectifiers, LeCun's for all others.

    He's has variance 2 / fan_in, LeCun's 1 / fan_in; the rectifiers are `jaxblocks.activations.RECTIFIERS`, also with
    options set by ``functools.partial``. With ``exact=True`` the variance is $1 / (n E σ(Z)^2)$, n = fan_in, Z
    standard normal, $σ$ the activation: pre-activations of variance 1 give variance 1 in the next layer. For ReLU it is
    He's, for SELU and the identity LeCun's, for GELU 2.35 / fan_in, for tanh 2.54 / fan_in.

    Raises:
        TypeError: for an activation that is not a function.
        ValueError: with ``exact``, where the mean of its squares is 0 or not finite.

    >>> variance = lambda draw: draw(jax.random.key(0), (500, 300), jnp.float32).var()
    >>> print(f"{500 * variance(for_activation(relu)):.2f}")
    2.00
    >>> print(f"{500 * variance(for_activation(tanh, exact=True)):.2f}")
    2.53

    Sources: He, Zhang, Ren, Sun 2015, Delving deep into rectifiers (arXiv:1502.01852); LeCun, Bottou, Orr, Mueller
    1998, Efficient backprop; Krapac & Segvic, Deep feed-forward models.
    """
    from jaxblocks.activations import RECTIFIERS, activation_moments  # every layer reads this file, few read those

    if not exact:
        while hasattr(activation, "func"):  # partial(leaky_relu, negative_slope=0.1) is a rectifier too
            activation = activation.func
        return he_normal() if activation in RECTIFIERS else lecun_normal()

    def exactly(key, shape, dtype=jnp.float32):
        with jax.ensure_compile_time_eval():  # concrete numbers, also under jit
            mean, variance = map(float, activation_moments(activation))
        passed = variance + mean**2  # E y^2 = variance * passed * fan_in = 1
        expected = "an activation whose values between -10 and 10 are finite and not all 0"
        require(0 < passed < math.inf, expected, f"the mean square {passed}", "leave exact out")
        return variance_scaling(1 / passed, "fan_in", "truncated_normal")(key, shape, dtype)

    return exactly


@recorded
@checked
def identity(scale: float | int = 1.0) -> Callable:
    """The initializer that returns ``scale`` times the identity: 0 off the main diagonal, in any matrix.

    Raises a ``ValueError`` for other shapes; for convolutions use ``delta_orthogonal``.

    >>> print(jaxblocks.initializers.identity(2.0)(jax.random.key(0), (2, 3), jnp.float32))
    [[2. 0. 0.]
     [0. 2. 0.]]

    Source: Le, Jaitly, Hinton 2015, recurrent networks of rectified linear units (arXiv:1504.00941).
    """

    def diagonal(key, shape, dtype=jnp.float32):
        expected, repair = "the shape of a matrix, (in, out)", "for the kernel of a convolution use delta_orthogonal()"
        require(len(shape) == 2, expected, str(tuple(shape)), repair)
        return jnp.asarray(scale, dtype) * jnp.eye(*shape, dtype=dtype)

    return diagonal
