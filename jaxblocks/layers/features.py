r"""Fixed feature maps, and models that use them: kernels, radial bases, nearest neighbors.

A feature map $Φ$ followed by a linear layer, $Φ(x)ᵀ w + b$, is ``Serial(phi, Dense(1))``. Any
function of arrays can be $Φ$ (products of inputs, a spectrum, counts of words), and so can any layer, whose
params are then learned together with $w$, or frozen (`jaxblocks.core.selection.select`).

The Gaussian kernel $k(x, y) = exp(-γ ‖ x - y ‖^2)$ appears here in four forms: its values
(``rbf_kernel``), as the inner product of exact features (``taylor_features``) and of random ones
(``random_fourier_features``), and as a layer with learned centers (``RBF``).

Axis letters: ``...`` batch, ``in`` features of the input, ``features`` of the output.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Num

from jaxblocks import initializers
from jaxblocks.backend.linear_maps import along_batch, in_dtype
from jaxblocks.backend.powers_of_two import divided, unit_of
from jaxblocks.backend.precision import full_precision, widen
from jaxblocks.backend.quotients import norm
from jaxblocks.backend.symbolic_sizes import at_most
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveFloat, PositiveInt, check_params, checked
from jaxblocks.checks.values import check_values
from jaxblocks.core.pairs import ArrayOrShape, Layer, builder

__all__ = [
    "RBF",
    "RandomFourierFeatures",
    "knn_predict",
    "random_fourier_features",
    "rbf_kernel",
    "taylor_features",
]


@checked
def rbf_kernel(
    x: Float[Array, "*batch in"], centers: Float[Array, "centers in"], *, gamma: PositiveFloat | Float[Array, ""] = 1.0
) -> Float[Array, "*batch centers"]:
    r"""The Gaussian kernel between each x and each center: $k(x, c) = exp(-γ ‖ x - c ‖^2)$.

    The radial basis function: 1 at distance 0, falling to 0 over a distance of about $1 / √γ$. The
    values for all pairs of a set of points are its Gram matrix, symmetric and positive semidefinite. It is smooth, at
    distance 0 too, and so are its derivatives here. In high dimension
    random points are all far apart, and the Gram matrix is close to the identity, so nearby points give no information.

    For up to three features squared distances are sums of squared differences, and k is exact to rounding. For more
    they are $‖ x ‖^2 + ‖ c ‖^2 - 2 xᵀ c$ around the mean m of the centers, a matrix product that is up to a hundred
    times faster. The error of k is then about $10^{-7} γ ‖ x - m ‖^2$ in float32, which is small where several points
    contribute to the kernel.

    Raises:
        ValueError: where the features differ, or for a ``gamma`` that is not positive (if its value is concrete; under
            ``jit``, a negative one gives numbers above 1).
        TypeError: for arrays that are not floating-point.

    >>> x = jnp.array([[0.0, 0.0], [0.0, 1.0]])
    >>> print(np.asarray(rbf_kernel(x, x, gamma=0.5)).round(4))
    [[1.     0.6065]
     [0.6065 1.    ]]

    Source: Rasmussen & Williams 2006, Gaussian processes for machine learning, section 4.2; Krapac & Segvic, Deep
    feed-forward models ("Generic feature mappings").
    """
    _check_positive(gamma)
    wide = widen(x)
    return jnp.exp(-jnp.asarray(gamma).astype(wide.dtype) * _squared_distances(wide, centers)).astype(x.dtype)


@checked
def taylor_features(
    x: Float[Array, "*shape"], terms: PositiveInt, *, gamma: PositiveFloat | Float[Array, ""] = 1.0
) -> Float[Array, "*shape terms"]:
    r"""Taylor features of a number, whose inner product is the Gaussian kernel, truncated after ``terms`` features.

    .. math::

        φ_n(x) = e^{-γ x^2} √(((2 γ)^n) / (n!)) x^n,
        ∑_{n=0}^∞ φ_n(x) φ_n(y) = e^{-γ (x - y)^2}

    The exact feature map of the kernel has infinitely many features; those with $n ≫ 2 γ | x y
    |$ are negligible. Each feature lies in [-1, 1], and the feature vector has length 1 at most.

    Shapes: ``(...)`` to ``(..., terms)``: the features of each number. Where $e^{-γ x^2}$
    underflows (in float32, for $γ x^2$ beyond 87), all of them are 0.

    >>> x, y = taylor_features(jnp.array([0.7, -0.4]), 3, gamma=0.5)
    >>> # three terms, and all of them
    >>> print(f"{x @ y:.4f}", f"{jnp.exp(-0.5 * 1.1**2):.4f}")
    0.5485 0.5461

    Source: Cotter, Keshet & Srebro 2011, Explicit approximations of the Gaussian kernel (arXiv:1109.4603); Krapac &
    Segvic, Deep feed-forward models ("Generic feature mappings", where the map is named).
    """
    _check_positive(gamma)
    wide = widen(x)
    gamma = jnp.asarray(gamma).astype(wide.dtype)
    near = gamma * wide * wide < -math.log(jnp.finfo(wide.dtype).tiny)  # elsewhere derivatives are 0 times infinity
    wide = jnp.where(near, wide, jnp.zeros_like(wide))
    step = jnp.sqrt(2 * gamma) * wide
    features = [jnp.where(near, jnp.exp(-gamma * wide * wide), jnp.zeros_like(wide))]
    for n in range(1, terms):  # the smallest factor first, to avoid overflow
        features.append(features[-1] * (step / math.sqrt(n)))
    return jnp.stack(features, -1).astype(x.dtype)


@checked
def random_fourier_features(
    x: Float[Array, "*batch in"], frequencies: Float[Array, "in features"], phases: Float[Array, "features"]
) -> Float[Array, "*batch features"]:
    r"""Random Fourier features: $z(x) = √(2 / D) cos(x Ω + b)$.

    With $Ω$ ``frequencies``, b ``phases`` and D ``features``. Where the frequencies are drawn from $N(0, 2 γ)$ and the
    phases uniformly from $[0, 2π)$, $z(x)ᵀ z(y)$ has mean $exp(-γ ‖ x - y ‖^2)$ and a standard deviation of at most
    $1 / √D$ around it. (Frequencies from another distribution approximate another kernel, its Fourier transform.) The
    angles are computed in full precision on every device.

    Raises:
        ValueError: where the features differ.
        TypeError: for arrays that are not floating-point.

    >>> random_fourier_features(jnp.array([1.0]), jnp.array([[0.0, jnp.pi]]), jnp.zeros(2))
    Array([ 1., -1.], dtype=float32)

    Source: Rahimi & Recht 2007, Random features for large-scale kernel machines.
    """
    features = frequencies.shape[-1]
    wide = widen(x)
    with full_precision():  # an error of an angle does not become smaller where the angle is large
        angles = jnp.matmul(wide, frequencies.astype(wide.dtype))  # (*batch, features)
    angles = angles + along_batch(phases, angles)
    return (math.sqrt(2 / features) * jnp.cos(angles)).astype(x.dtype)


@checked
def knn_predict(
    x: Float[Array, "*batch in"],
    examples: Float[Array, "examples in"],
    targets: Num[Array, "examples"],
    *,
    k: PositiveInt = 1,
) -> Num[Array, "*batch"]:
    r"""k-nearest-neighbor prediction: the majority class, or the mean value, of the k closest examples.

    Integer ``targets`` are classes, of which the most frequent is returned; ties go to the class with the nearest
    example. Floating-point ``targets`` are averaged. Distances are Euclidean; among examples at equal distances, the
    first ones are used. For more than three features they are rounded as those of `rbf_kernel`: center the data, and
    leave out examples far beyond the others, which take their digits. As a function of ``x`` the result is constant
    almost everywhere: its derivative is 0.

    It is a baseline without training. It is local, like the Gaussian kernel, and needs examples near every ``x``. With
    the mean of each class as its only example it is the nearest-prototype classifier.

    Raises:
        ValueError: where the features or the numbers of examples differ, or for k outside 1, ..., examples.
        TypeError: for ``x`` that is not floating-point.

    >>> examples, classes = jnp.array([[0.0], [1.0], [5.0]]), jnp.array([7, 7, 3])
    >>> predict = jax.jit(knn_predict, static_argnames="k")
    >>> print(predict(jnp.array([[0.2], [4.0]]), examples, classes, k=3))
    [7 7]

    Source: Cover & Hart 1967; Krapac & Segvic, Deep feed-forward models (shallow local models).
    """
    repair = f"pass k={len(examples)}" if len(examples) else "pass a row in examples"
    require(k <= len(examples), f"k from 1 to {len(examples)}, the number of examples", k, repair)
    wide = widen(x)
    examples = examples.astype(wide.dtype)
    if wide.shape[-1] <= 3:  # each distance in its own unit, so that one far example does not make the others vanish
        distances = norm(_differences(wide, examples), -1)
    else:
        unit = unit_of(jnp.max(jnp.abs(examples), initial=0))
        distances = _squared_distances(divided(wide, unit), divided(examples, unit))
    _, nearest = lax.top_k(-distances, k)  # (*batch, k)
    theirs = targets[nearest]  # (*batch, k)
    if not jnp.issubdtype(targets.dtype, jnp.integer):
        return jnp.mean(theirs, -1)
    # Compared in pairs, since the number of classes is not known; argmax takes the first, which is the nearest.
    votes = jnp.sum(theirs[..., :, None] == theirs[..., None, :], -1)  # (*batch, k), nearest first
    return jnp.take_along_axis(theirs, jnp.argmax(votes, -1, keepdims=True), -1)[..., 0]


@builder
def RandomFourierFeatures(
    features: PositiveInt,
    *,
    gamma: PositiveFloat = 1.0,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
) -> Layer:
    r"""Random Fourier features of the Gaussian kernel, with frequencies and phases drawn at ``init``.

    `random_fourier_features` with frequencies from $N(0, 2 γ)$ and phases from $[0, 2π)$. Params
    are ``{"frequencies": (in, features), "phases": (features,)}``.

    ``Serial(RandomFourierFeatures(500), Dense(1))`` is a kernel machine that trains in linear time. An optimizer
    updates the frequencies like all params; to keep their initial values, freeze them
    (`jaxblocks.core.selection.select`).

    Args:
        features: D; the error of the kernel is about $1 / √D$.
        gamma: $γ$ of the kernel, whose length scale is 1 / sqrt(gamma).
        dtype: of the arithmetic and the output; by default that of the input.
        param_dtype: of the params.

    Shapes: ``(..., in)`` to ``(..., features)``.

    >>> layer = RandomFourierFeatures(10_000, gamma=0.5)
    >>> x = jnp.array([[0.7], [-0.4]])
    >>> z = layer.apply(layer.init(jax.random.key(0), x), x)
    >>> print(f"{z[0] @ z[1]:.2f}", f"{rbf_kernel(x, x, gamma=0.5)[0, 1]:.2f}")
    0.55 0.55

    Source: Rahimi & Recht 2007, Random features for large-scale kernel machines.
    """

    def init(key, x: Float[ArrayOrShape, "*batch in"]):
        for_frequencies, for_phases = jax.random.split(key)
        draw = initializers.normal(math.sqrt(2 * gamma))
        return {
            "frequencies": draw(for_frequencies, (x.shape[-1], features), param_dtype),
            "phases": jax.random.uniform(for_phases, (features,), param_dtype, 0, 2 * math.pi),
        }

    def apply(params, x: Float[Array, "*batch in"]):
        check_params(params, frequencies=(None, features), phases=(features,))
        return random_fourier_features(in_dtype(x, dtype), **params)

    return Layer(init, apply)


@builder
def RBF(
    centers: PositiveInt,
    *,
    gamma_init: PositiveFloat = 1.0,
    centers_init: Callable = initializers.normal(1.0),
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
) -> Layer:
    r"""The radial basis layer $y_i = exp(-γ ‖ x - c_i ‖^2)$ with learned centers and width.

    Params are ``{"centers": (centers, in), "log_gamma": ()}``; gamma is ``exp(log_gamma)``, so that it stays
    positive. ``Serial(RBF(20), Dense(1))`` is a radial basis network.

    Args:
        centers: the number of centers.
        gamma_init: the initial $γ$.
        centers_init: ``f(key, shape, dtype)``; training examples are good centers too (put them in the params).
        dtype: of the arithmetic and the output; by default that of the input.
        param_dtype: of the params.

    Shapes: ``(..., in)`` to ``(..., centers)``.

    >>> layer = RBF(2)
    >>> params = {"centers": jnp.array([[0.0], [1.0]]), "log_gamma": jnp.zeros(())}
    >>> print(np.asarray(layer.apply(params, jnp.array([1.0]))).round(4))
    [0.3679 1.    ]

    Source: Broomhead & Lowe 1988, Multivariable functional interpolation and adaptive networks; Krapac & Segvic, Deep
    feed-forward models ("Generic feature mappings").
    """

    def init(key, x: Float[ArrayOrShape, "*batch in"]):
        return {
            "centers": centers_init(key, (centers, x.shape[-1]), param_dtype),
            "log_gamma": jnp.full((), math.log(gamma_init), param_dtype),
        }

    def apply(params, x: Float[Array, "*batch in"]):
        check_params(params, centers=(centers, x.shape[-1]), log_gamma=())
        x = in_dtype(x, dtype)
        wide = widen(x)
        gamma = jnp.exp(params["log_gamma"].astype(wide.dtype))
        return jnp.exp(-gamma * _squared_distances(wide, params["centers"])).astype(x.dtype)

    return Layer(init, apply)


def _differences(x, centers):
    """(*batch, in) and (centers, in) to (*batch, centers, in)."""
    return x[..., None, :] - jnp.expand_dims(centers, range(x.ndim - 1))


def _squared_distances(x, centers):
    """(*batch, in) and (centers, in) to (*batch, centers), without cancellation of a common offset."""
    centers = centers.astype(x.dtype)
    if x.shape[-1] <= 3:  # differences: exact, and equally fast for so few features
        return jnp.sum(_differences(x, centers) ** 2, -1)
    if at_most(centers.shape[0], 0):  # the mean of no centers is NaN, and with it the gradient of x
        return jnp.zeros((*x.shape[:-1], 0), x.dtype)
    middle = lax.stop_gradient(jnp.mean(centers, 0))  # distances do not depend on it, and so have no derivative
    x, centers = x - along_batch(middle, x), centers - jnp.broadcast_to(middle, centers.shape)
    with full_precision():
        products = jnp.matmul(x, centers.T)  # (*batch, centers)
    lengths = along_batch(jnp.sum(centers**2, -1), products)
    squared = jnp.sum(x**2, -1, keepdims=True) + lengths - 2 * products
    # Not below 0 by rounding; without jnp.maximum, since the second derivative is 2 at distance 0 too.
    return squared - lax.stop_gradient(jnp.minimum(squared, 0))


def _check_positive(gamma) -> None:
    """Check that an array is positive; the annotation checks a number."""
    if isinstance(gamma, jax.Array):
        check_values(gamma > 0, "gamma > 0, got {gamma}; 1 / sqrt(gamma) is the length scale", gamma=gamma)
