r"""Networks of infinite width: the closed form of a tangent kernel, and training with a constant kernel.

As the width of a network grows, its neural tangent kernel (`jaxblocks.ad.ntk`) tends to a deterministic limit that
stays constant during training, so that training becomes a linear differential equation.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from jaxblocks.backend.matrix_functions import apply_matrix_function
from jaxblocks.backend.precision import full_precision, widen
from jaxblocks.backend.quotients import norm, unit_vector, vanishes
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import checked

__all__ = ["kernel_of_angles", "kernel_regression", "ntk_relu"]


@checked
def ntk_relu(x1: Float[Array, "n1 features"], x2: Float[Array, "n2 features"] | None = None) -> Float[Array, "n1 n2"]:
    r"""The tangent kernel of a network with one infinitely wide hidden layer of ReLUs, both layers trained.

    For $f(x) = √(2/m) ∑_{k=1}^m v_k max(0, w_k · x)$ with all $w_k, v_k$ standard normal and no
    biases, the kernel tends for $m → ∞$ to

    .. math::

        Θ(x, x') = ‖x‖ ‖x'‖ ( κ_1(u) + u κ_0(u) ),
        u = cos ϑ = (x · x') / (‖x‖ ‖x'‖),

    .. math::

        κ_0(u) = (π - ϑ) / π,
        κ_1(u) = (u (π - ϑ) + √(1 - u^2)) / π:

    $κ_1$ is the term of the $v_k$, $u κ_0$ that of the $w_k$. For unit inputs the
    diagonal is 2. The angle between unit vectors a, b is computed as twice the arctangent of
    $|a - b| / |a + b|$, which is exact for equal and for opposite inputs too; an input of zeros has the kernel 0.

    Args:
        x1: N1 inputs, (N1, features).
        x2: N2 inputs, (N2, features); ``x1`` by default.

    Returns:
        The kernel, (N1, N2).

    Raises:
        TypeError: if an input is not floating-point.
        ValueError: if an input does not have two axes, or the numbers of features differ.

    >>> ntk_relu(jnp.array([[1.0, 0.0]]), jnp.array([[0.6, 0.8], [1.0, 0.0]])).round(5)
    Array([[1.1004499, 2.       ]], dtype=float32)

    Source: Jacot, Gabriel & Hongler 2018, Neural tangent kernel (arXiv:1806.07572); Cho & Saul 2009, Kernel methods
    for deep learning (the arc-cosine kernels).
    """
    return kernel_of_angles(x1, x2, lambda angle: (2 * jnp.cos(angle) * (jnp.pi - angle) + jnp.sin(angle)) / jnp.pi)


@checked
def kernel_of_angles(
    x1: Float[Array, "n1 features"],
    x2: Float[Array, "n2 features"] | None,
    kappa: Callable[[Float[Array, " n2"]], Float[Array, " n2"]],
) -> Float[Array, "n1 n2"]:
    r"""The kernel $‖x‖ ‖x'‖ κ(ϑ)$ of the angles between the rows of two batches."""
    x2 = x1 if x2 is None else x2
    dtype = jnp.result_type(x1, x2)
    x1, x2 = widen(x1), widen(x2)
    norm1, norm2 = norm(x1, -1), norm(x2, -1)
    one, other = _directions(x1, norm1), _directions(x2, norm2)

    def row(a):  # the arctangent of the half angle is exact for equal and for opposite inputs
        return kappa(2 * jnp.arctan2(norm(a[None] - other, -1), norm(a[None] + other, -1)))

    return (norm1[:, None] * norm2[None] * jax.lax.map(row, one)).astype(dtype)


def _directions(x, norm):
    """The rows as unit vectors; any unit vector for a row of zeros, since its kernel is 0."""
    some = jnp.eye(1, x.shape[1], dtype=x.dtype)
    return jnp.where(vanishes(norm)[:, None], some, unit_vector(x))


@checked
@full_precision()
def kernel_regression(
    kernel: Float[Array, "n n *outputs_twice"],
    y: Float[Array, "n *outputs"],
    test_kernel: Float[Array, "m n *outputs_twice"] | None = None,
    *,
    time: int | float | Num[Array, "*times"] | None = None,
    rate: int | float = 1.0,
    start: Float[Array, "n *outputs"] | None = None,
    test_start: Float[Array, "m *outputs"] | None = None,
    discrete: bool = False,
) -> Float[Array, "..."]:
    r"""The predictions of a network with a constant tangent kernel after training for a given time.

    On the loss $(1/2) ∑_i |f(x_i) - y_i|^2$, gradient flow with the rate $η$ changes the
    outputs by $ḟ = -η K (f - y)$, so that

    .. math::

        f_t(x) = f_0(x) + K(x, X) K^{-1} ( I - e^{-η K t} ) (y - f_0(X)).

    With ``discrete`` it is gradient descent with t steps: $(I - η K)^t$ in place of $e^{-η K t}$. All
    products are computed in full precision on every device.

    Args:
        kernel: K on the N training inputs, (N, N), or (N, N, O, O) as `ntk` returns it. Half precision is computed in
            float32.
        y: targets (N,) or (N, O).
        test_kernel: K(x, X), (M, N) or (M, N, O, O); ``kernel`` by default.
        time: t, a number or an array (T,); by default the limit of infinite time, which is kernel regression.
        rate: the learning rate $η$.
        start: $f_0(X)$, like ``y``; zero by default.
        test_start: $f_0(x)$, (M,) or (M, O); by default ``start`` without a ``test_kernel``, zero with one.
        discrete: whether t counts steps of gradient descent. Between steps the predictions are NaN if an eigenvalue is
            above $1 / η$, since its mode changes sides of the target at each step.

    Returns:
        The predictions, (M,) or (M, O); (T, M) or (T, M, O) for an array of times. They do not change along
        eigenvectors of K whose eigenvalue is zero up to rounding (relative to the largest, below N times the
        precision). First derivatives are also right where eigenvalues of K are equal, as they are for equal outputs;
        a derivative of these with respect to K (which is taken as symmetric) may be NaN there.

    Raises:
        ValueError: if the shapes do not match.

    >>> K, y = jnp.array([[2.0, 0.0], [0.0, 1.0]]), jnp.array([1.0, 1.0])
    >>> jax.jit(kernel_regression)(K, y, time=jnp.array([0.0, 100.0]))
    Array([[0., 0.],
           [1., 1.]], dtype=float32)

    Source: Jacot, Gabriel & Hongler 2018, Neural tangent kernel, section 5 (arXiv:1806.07572); Lee et al. 2019, Wide
    neural networks of any depth evolve as linear models (arXiv:1902.06720).
    """
    without_tests = test_kernel is None
    test_kernel = kernel if test_kernel is None else test_kernel
    count, outputs = y.shape[0], y.shape[1:]
    ends = (outputs * 2) if kernel.ndim == 4 else ()
    shapes = y.ndim in (1, 2) and kernel.shape == (count, count, *ends) and test_kernel.shape[1:] == (count, *ends)
    require(
        shapes,
        "a kernel (N, N) or (N, N, O, O), targets (N,) or (N, O) and a test kernel (M, N) or (M, N, O, O)",
        f"{describe(kernel)}, {describe(y)} and {describe(test_kernel)}",
        f"compute ntk(f, params, x) and ntk(f, params, test_x, x) for the {count} inputs x of y",
    )
    tests = (test_kernel.shape[0], *outputs)
    start = jnp.zeros_like(y) if start is None else start
    if test_start is None:
        test_start = start if without_tests else jnp.zeros(tests, y.dtype)
    repair = "pass f(params, test_x) at the initial params, or leave it out"
    require(test_start.shape == tests, f"test_start of shape {tests}", test_start, repair)
    dtype = jnp.result_type(test_start, test_kernel, kernel, y, start)
    kernel, test_kernel = widen(kernel), widen(test_kernel)  # the decomposition does not take half precision
    matrix, across, rest = kernel, test_kernel, (widen(y) - widen(start)).reshape(count, math.prod(outputs))
    if kernel.ndim == 4:  # examples and outputs become one axis
        matrix = kernel.transpose(0, 2, 1, 3).reshape(y.size, y.size)
        across = test_kernel.transpose(0, 2, 1, 3).reshape(math.prod(tests), y.size)
        rest = rest.reshape(y.size, 1)

    gain = functools.partial(_gain, rate=rate, discrete=discrete)

    def at(time):
        moved = (across @ apply_matrix_function(gain, matrix, rest, time)).reshape(tests)
        return (widen(test_start) + moved).astype(dtype)

    if time is None:
        return at(None)
    time = jnp.asarray(time, matrix.dtype)
    return jax.vmap(at)(time) if time.ndim else at(time)


def _gain(values, rounding, time, *, rate, discrete):
    """The share of its distance to the target that each mode has gone, divided by the eigenvalue; 0 for zero."""
    positive = values > rounding
    # Replaced before the division, so that derivatives stay finite where an eigenvalue is zero.
    safe = jnp.where(positive, values, 1)
    left = jnp.zeros_like(safe) if time is None else _remaining(safe * rate, time, discrete)
    return jnp.where(positive, -(left - 1 if time is None else left) / safe, 0)


def _remaining(speed, time, discrete):
    """The remaining factor of each mode minus one, accurate where it is near zero."""
    if not discrete:
        return jnp.expm1(-speed * time)
    below = speed < 1
    slow = jnp.expm1(time * jnp.log1p(-jnp.where(below, speed, 0)))
    size = jnp.where(below, 1, speed - 1)
    # For s > 1 the factor (1 - s)^t has no logarithm: its sign changes at each step, and between steps it is not real.
    is_odd, is_whole = time % 2 == 1, jnp.isinf(time) | (time % 1 == 0)
    fast = jnp.where((speed > 1) & is_odd, -1, 1).astype(speed.dtype) * size**time - 1
    fast = jnp.where((speed <= 1) | is_whole, fast, jnp.nan)
    return jnp.where(below, slow, fast)
