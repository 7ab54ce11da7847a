"""The matrix of a linear layer, and the receptive field of an output.

A restriction on the weight matrix is an inductive bias: a convolution is a banded matrix with constant
diagonals. These functions show such restrictions by differentiation, for any layer or function of one array.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from jaxblocks.backend.precision import full_precision
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import checked
from jaxblocks.checks.values import check_values
from jaxblocks.core.lifting import as_layer
from jaxblocks.core.pairs import LayerLike, StatefulLayer, layer_name

__all__ = ["as_dense", "receptive_field"]


@checked
def as_dense(
    layer: LayerLike, shape: tuple[int, ...], params: PyTree = (), **side: Any
) -> Float[Array, "outputs inputs"]:
    r"""The matrix $A$ of an affine layer, $f(x) = A x + f(0)$ for flattened $x$ and $f(x)$.

    Column $j$ is the derivative in the direction of the $j$-th basis vector.
    For a linear layer $f(0) = 0$; the offset of an affine one is ``layer.apply(params, zeros)``.
    The matrix has outputs * inputs entries, so keep shapes small.

    Args:
        layer: a pair, or a function of one array.
        shape: the shape of the input, batch axes included if there are any.
        params: those of the pair.
        side: side inputs, as for ``apply``.

    Returns:
        ``(outputs, inputs)``, with the entries of arrays in row-major order.

    Raises:
        TypeError: for integers or several arrays as outputs.
        ValueError: for a layer that is not affine, tested at three random inputs, of both signs. Where ``params`` are
            traced, there is no test and the matrix is that of the derivative at 0.

    >>> difference = lambda x: conv(x, jnp.array([1.0, -1.0])[:, None, None])
    >>> as_dense(difference, (4, 1))
    Array([[ 1., -1.,  0.,  0.],
           [ 0.,  1., -1.,  0.],
           [ 0.,  0.,  1., -1.]], dtype=float32)

    Source: Goodfellow et al., Deep learning, section 9.1; Diehl 2023, section 1.1 (convolution as a Toeplitz matrix).
    """
    f = _function(layer, params, side)

    @jax.jit  # one program for all
    def measure():
        zeros = jnp.zeros(shape)
        basis = jnp.eye(zeros.size, dtype=zeros.dtype).reshape(zeros.size, *zeros.shape)
        offset = f(zeros)
        inexact, repair = jnp.issubdtype(offset.dtype, jnp.inexact), "cast its outputs, as with y.astype(jnp.float32)"
        require(inexact, "a layer of floating-point outputs", offset, repair, error=TypeError)
        # Column i is the derivative along unit vector i; the layer is affine, so the place does not matter.
        columns = jax.vmap(lambda e: jax.jvp(f, (zeros,), (e,))[1])(basis)  # (inputs, *output)
        matrix = columns.reshape(zeros.size, offset.size).T
        A, at_zero = matrix.astype(zeros.dtype), offset.ravel().astype(zeros.dtype)
        tests = []
        # Near 0 and far from it on both sides: a nonlinearity may show in one of these places only.
        for size in (1.0, 100.0, -100.0):
            x = size * jax.random.normal(jax.random.key(0), zeros.shape, zeros.dtype)
            error = abs(f(x).ravel().astype(zeros.dtype) - (A @ x.ravel() + at_zero))
            rounding = float(jnp.finfo(offset.dtype).eps) ** 0.5 * (abs(A) @ abs(x.ravel()) + abs(at_zero))
            tests.append((error <= rounding, jnp.max(error, initial=0.0)))
        return matrix, tests

    with full_precision():
        matrix, tests = measure()
    for small, largest in tests:
        check_values(
            small,
            f"an affine layer, got {layer_name(layer)}, for which f(x) differs from A x + f(0) by up to {{by}} at "
            "random x; for the derivative at a point, use jax.jacobian",
            by=largest,
        )
    return matrix


@checked
def receptive_field(
    layer: LayerLike, shape: tuple[int, ...], position: int | tuple[int, ...], params: PyTree = (), **side: Any
) -> Bool[Array, "..."]:
    r"""The receptive field of an output: the entries of the input where its row of the Jacobian is not zero.

    $R_j = [ ∂ f(x)_i / ∂ x_j ≠ 0 for some x ]$, tested at eight random
    inputs, since the derivative of a rectifier or a maximum is zero at some of them. A weight
    of exactly 0 gives no dependence.

    Args:
        layer: a pair, or a function of one array.
        shape: the shape of the input, batch axes included if there are any.
        position: an index into the output, ``f(x)[position]``. If the result has axes left
            (channels), an input entry is in the field if any of its entries depends on it.
        params: those of the pair.
        side: side inputs, as for ``apply``.

    Returns:
        Booleans of the input's shape.

    Raises:
        ValueError: for a position outside the output.
        TypeError: for several arrays as outputs.

    >>> blur = lambda x: conv(x, jnp.ones((3, 1, 1)), padding="same")
    >>> # two layers: 2 * 2 + 1
    >>> print(receptive_field(lambda x: blur(blur(x)), (9, 1), 4)[:, 0].astype(int))
    [0 0 1 1 1 1 1 0 0]

    Source: Luo et al. 2016, Effective receptive field; Diehl 2023, section 1.1 (local features).
    """
    f = _function(layer, params, side)
    like = jax.ShapeDtypeStruct(shape, jnp.result_type(float))
    out = jax.eval_shape(f, like).shape
    position = (position,) if isinstance(position, int) else tuple(position)
    inside = len(position) <= len(out) and all(-n <= i < n for i, n in zip(position, out, strict=False))
    repair = f"for its center pass position={tuple(n // 2 for n in out)}"
    require(inside, f"a position in the output, whose shape is {out}", position, repair)

    def depends(x, weights):
        y, pull = jax.vjp(lambda x: f(x)[position], x)
        # a random combination of the remaining entries: no two rows cancel
        return pull(weights.astype(y.dtype))[0] != 0

    rng = np.random.default_rng(0)
    shapes = like.shape, out[len(position) :]
    # Eight places: at one of them an entry of the Jacobian may be 0, as behind a rectifier that is off.
    x, weights = (rng.normal(size=(8, *s)).astype(like.dtype) for s in shapes)
    return jax.jit(lambda *drawn: jnp.any(jax.vmap(depends)(*drawn), 0))(x, weights)


def _function(layer, params, side):
    """The layer as a function of its one input."""
    layer = as_layer(layer)
    repair = "bind its state: lambda x: layer.apply(params, state, x)[0]"
    stateless = not isinstance(layer, StatefulLayer)
    require(stateless, "a layer without state", layer_name(layer), repair, error=TypeError)

    def f(x):
        y = layer.apply(params, x, **side)
        repair = "select one of them: lambda x: layer.apply(params, x)[0]"
        one = isinstance(y, jax.Array | np.ndarray)
        require(one, "a layer of one output", y, repair, error=TypeError)
        return jnp.asarray(y)

    return jax.jit(f)
