r"""Normalization of weights: layers that wrap a layer and rescale its kernels before each use.

A kernel is any array named ``kernel`` with at least two axes in the params of the inner layer; its last axis indexes
the outputs.
"""

import math
from collections.abc import Callable
from typing import Any, cast, overload

import jax
import jax.numpy as jnp
from jax import lax

from jaxblocks.backend.powers_of_two import divided, unit_of
from jaxblocks.backend.precision import full_precision, widen
from jaxblocks.backend.quotients import divide, norm, unit_vector, vanishes
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import PositiveInt, check_params
from jaxblocks.checks.values import check_values, concrete
from jaxblocks.core.children import apply_child, child_of, init_child, make_combinator, with_made_params
from jaxblocks.core.keys import child_key
from jaxblocks.core.lifting import declared_by
from jaxblocks.core.pairs import Layer, LayerLike, Out, StatefulLayer, builder
from jaxblocks.core.selection import paths

__all__ = ["SpectralNorm", "WeightNorm"]


@overload
def WeightNorm(layer: Layer[Out] | Callable[..., Out]) -> Layer[Out]: ...
@overload
def WeightNorm(layer: StatefulLayer[Out]) -> StatefulLayer[Out]: ...
@builder
def WeightNorm(layer: LayerLike) -> Layer[Any] | StatefulLayer[Any]:
    r"""A layer whose kernels are $W = g V / ‖V‖$, with a length and a direction for each output.

    The norm is taken over all axes of a kernel but the last, its outputs. At ``init`` g is $‖V‖$, so the
    layer computes the function of the inner layer; training then changes length and direction separately. Each output
    (column) of V must be non-zero initially. A column of zeros has no direction and no derivative; its W is zero, and
    the derivative of $g V$ is used.

    Params are ``{"layer": params of the layer, "scale": {"0/kernel": {"length": g}}}``, with each length by the path of
    its kernel. Every array named ``kernel`` of at least two axes is such a V.
    Inside a ``Repeat``, write ``Repeat(WeightNorm(Dense(4)), 3)``; outside it, the copies would share a length.

    Raises:
        ValueError: at ``init``, for a layer without kernel, or (where values are concrete) a column of zeros; in
            ``apply``, for kernels inside of `Frozen` or `LoRA`: write ``Frozen(WeightNorm(layer))``.

    >>> net = WeightNorm(Dense(3))
    >>> params = net.init(jax.random.key(0), jnp.zeros(2))
    >>> jax.tree.map(jnp.shape, params)
    {'layer': {'bias': (3,), 'kernel': (2, 3)}, 'scale': {'kernel': {'length': (3,)}}}

    Source: Salimans and Kingma 2016, Weight normalization (arXiv:1602.07868).
    """
    child = child_of("layer", layer)

    def init(key, inputs, side):
        params, state = init_child(child, key, inputs, side)
        scale = {}
        for path, kernel in _kernels(params).items():
            # Lengths of the drawn kernel, so that at first the layer computes the same as without WeightNorm.
            length = norm(widen(jnp.asarray(kernel)), tuple(range(kernel.ndim - 1))).astype(kernel.dtype)
            scale[path] = {"length": length}
            # A concrete kernel is checked on the host; a traced one (init under jit) is not known, and is not checked.
            check_values(
                concrete(length) > 0,
                f"kernels without columns of zeros, which have no direction, got one in {path}; "
                "give its layer another kernel_init",
            )
        return {"layer": params, "scale": scale}, state, None

    def apply(params, state, inputs, side):
        check_params(params, layer=None, scale=None)
        kernels = _kernels(params["layer"])
        _check_values("scale", params["scale"], kernels, "length")

        def normalized(path, v):
            axes = tuple(range(v.ndim - 1))
            direction = unit_vector(widen(v), axes)
            length = params["scale"][path]["length"].astype(direction.dtype)
            return (direction * jnp.expand_dims(length, axes)).astype(v.dtype)

        kernels = {path: normalized(path, v) for path, v in kernels.items()}
        with with_made_params("WeightNorm"):
            return apply_child(child, _with_kernels(params["layer"], kernels), state, inputs, side)

    return make_combinator((child,), init, apply)


@builder
def SpectralNorm(layer: LayerLike, *, n_iterations: PositiveInt = 1) -> StatefulLayer:
    r"""A layer whose kernels are divided by their largest singular value: $W / σ(W)$.

    Power iteration tracks the singular value: with $u, w$ unit vectors kept as state, each call with ``train=True``
    sets ``n_iterations`` times $w = Wᵀ u / ‖Wᵀ u‖$, $u = W w / ‖W w‖$, and then $σ = uᵀ W w$. In evaluation the vectors
    do not change. A kernel is reshaped to a matrix of all other axes by its last axis (the outputs). So a ``Dense``
    layer is 1-Lipschitz once the iteration has converged; for a convolution this is an approximation.

    Derivatives treat the vectors as constants, as in the paper and PyTorch: $dσ = uᵀ dW w$ is exact
    once the iteration has converged, and the vectors of ``init`` (15 iterations from a random vector) are close. Second
    derivatives in W lack the change of the vectors.

    Params are those of the layer; the state is ``{"layer": its state, "vectors": {"0/kernel": {"inner": u, "outer":
    w}}}``, with the vectors by the path of their kernel. Every array named ``kernel`` of at least two axes is
    normalized. Inside a ``Repeat``, write ``Repeat(SpectralNorm(Dense(4)), 3)``.

    Raises:
        ValueError: at ``init``, for a layer without kernel.

    >>> initial = jaxblocks.initializers.orthogonal(5.0)
    >>> net = SpectralNorm(Dense(3, use_bias=False, kernel_init=initial))
    >>> params, state = net.init(jax.random.key(0), jnp.zeros(3))
    >>> y, _ = net.apply(params, state, jnp.array([3.0, 4.0, 0.0]))
    >>> print(jnp.linalg.norm(y).round(3))
    5.0

    Source: Miyato et al. 2018, Spectral normalization for generative adversarial networks (arXiv:1802.05957).
    """
    child = child_of(None, layer)

    def init(key, inputs, side):
        params, state = init_child(child, key, inputs, side)
        vectors = {}
        for path, kernel in _kernels(params).items():
            matrix = _matrix(kernel)
            u = jax.random.normal(child_key(key, f"vectors of {path}"), matrix.shape[:1], matrix.dtype)
            # 15 iterations, so that sigma is good before the first training step. The first one replaces "outer", which
            # has only shape and dtype here.
            vectors[path] = _power_iteration(matrix, {"inner": u, "outer": matrix[0]}, 15)
        return params, {"layer": state, "vectors": vectors}, None

    def apply(params, state, inputs, side):
        train = side.get("train", False)
        named = isinstance(state, dict) and state.keys() == {"layer", "vectors"}
        require(named, "state named layer and vectors", state, "pass the one that init or the last apply returned")
        kernels = _kernels(params)
        _check_values("vectors", state["vectors"], kernels, "inner", "outer")
        vectors = dict(state["vectors"])
        for path, kernel in kernels.items():
            # In a unit of the largest entry, since a sigma above 8.5e37 has a reciprocal of 0; quotients are the same.
            wide = widen(jnp.asarray(kernel))
            wide = divided(wide, unit_of(jnp.max(jnp.abs(wide), initial=0)))
            matrix = _matrix(wide)
            if train:
                vectors[path] = _power_iteration(matrix, vectors[path], n_iterations)
            u, w = (vectors[path][name].astype(matrix.dtype) for name in ("inner", "outer"))
            with full_precision():
                sigma = u @ (matrix @ w)  # u^T W w
            # A kernel of zeros stays as it is instead of becoming NaN.
            kernels[path] = divide(wide, jnp.where(vanishes(sigma), 1.0, sigma)).astype(kernel.dtype)
        outputs, own = apply_child(child, _with_kernels(params, kernels), state["layer"], inputs, side)
        return outputs, {"layer": own, "vectors": vectors}

    def reads(*, train=False): ...

    # The vectors are state, also where the layer has none.
    return cast(StatefulLayer, make_combinator((child._replace(has_state=True),), init, apply, declared_by(reads)))


def _kernels(params):
    """The arrays named ``kernel`` by path: ``{"0/kernel": ...}``."""
    named = dict(zip(paths(params), jax.tree.leaves(params), strict=True))
    # Kernels with one axis (such as scales) have no columns.
    found = {path: leaf for path, leaf in named.items() if path.split("/")[-1] == "kernel" and len(leaf.shape) > 1}
    expected, repair = "a layer with params named kernel, of at least two axes", "pass for instance Dense(8)"
    require(found, expected, ", ".join(named) or "no params", repair)
    for path, kernel in found.items():
        repair = "pass their real parts: jax.tree.map(jnp.real, params), to a layer with param_dtype=jnp.float32"
        require(not jnp.iscomplexobj(kernel), f"{path} of real numbers", kernel, repair, error=TypeError)
    return found


def _with_kernels(params, kernels):
    named = zip(paths(params), jax.tree.leaves(params), strict=True)
    return jax.tree.unflatten(jax.tree.structure(params), [kernels.get(path, leaf) for path, leaf in named])


def _check_values(what, tree, kernels, *names):
    """Check that there are values of these names for each kernel, by its path."""
    like = {path: dict.fromkeys(names, 0) for path in kernels}
    expected, got = (", ".join(paths(t)) for t in (like, tree))
    same, repair = jax.tree.structure(tree) == jax.tree.structure(like), "pass those that its own init made"
    require(same, f"{what} with values at {expected}", got or "none", repair)
    for path, kernel in kernels.items():
        for name in names:
            size = math.prod(kernel.shape[:-1]) if name == "inner" else kernel.shape[-1]
            expected = f"{name} of shape ({size},) for {path} {describe(kernel)}"
            require(tree[path][name].shape == (size,), expected, tree[path][name], repair)


def _matrix(kernel):
    """The kernel as a matrix: all axes but the last, by the last."""
    return widen(kernel).reshape(-1, kernel.shape[-1])


@full_precision()
def _power_iteration(matrix, vectors, n):
    u, w = vectors["inner"].astype(matrix.dtype), vectors["outer"].astype(matrix.dtype)
    matrix = lax.stop_gradient(matrix)

    for _ in range(n):
        w = unit_vector(u @ matrix)
        u = unit_vector(matrix @ w)
    return {"inner": u.astype(vectors["inner"].dtype), "outer": w.astype(vectors["outer"].dtype)}
