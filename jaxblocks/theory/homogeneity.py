r"""Homogeneity of rectifier nets, $ReLU(α x) = α ReLU(x)$ for alpha > 0.

Many params give the same function: factors can be moved between layers (`rescale`). Therefore, for one input, kernels
of signs suffice (`unit_kernels`), norms can be made equal (`balance`), gradients satisfy Euler's identities
(`euler_terms`), gradient flow conserves differences of norms (`norm_differences`), and margins are comparable only
after division by the norms (`normalized_margin`).

All functions take the params of dense layers in series with homogeneous activations between them: ``relu``,
``leaky_relu``, ``abs``, ``maxout``; biases are allowed unless stated otherwise. Params of other layers, or of layers
that do not fit each other, raise a ``ValueError``.

    W_l    kernel of layer l = 1 ... L, (in, out)
    b_l    its bias
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxblocks.ad.vectors.raveled import common_dtype
from jaxblocks.backend.precision import wide_dtype
from jaxblocks.backend.quotients import divide, log, norm, reciprocal, vanishes
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import checked
from jaxblocks.checks.values import check_entries, check_values
from jaxblocks.core.lifting import as_layer
from jaxblocks.core.pairs import StatelessLike

__all__ = ["EulerTerms", "balance", "euler_terms", "norm_differences", "normalized_margin", "rescale", "unit_kernels"]


def rescale(params: PyTree, factors: Sequence) -> Any:
    r"""Params of the same function, with hidden units multiplied by factors, and the next kernel divided by them.

    .. math::

        W_l → W_l D_l,
        b_l → b_l D_l,
        W_{l+1} → D_l^{-1} W_{l+1},
        D_l = diag(d_l)

    For powers of two the function is bitwise equal. For tanh, or for negative factors, it is a different function.

    Args:
        params: the params of dense layers in series, as made by ``Serial`` and ``MLP``.
        factors: for each hidden layer a positive number, or one for each of its units.

    Raises:
        ValueError: for a number of factors that differs from the number of hidden layers, several factors for a layer
            with ``maxout`` after it, or a factor <= 0 (under ``jit``, where values are unknown, nothing is raised and
            the function differs).

    >>> net = MLP(3, 1)
    >>> params = net.init(jax.random.key(0), jnp.zeros(2))
    >>> x = jnp.array([0.3, -1.0])
    >>> bool(net.apply(rescale(params, [4.0]), x) == net.apply(params, x))
    True

    Source: Neyshabur, Salakhutdinov & Srebro 2015, Path-SGD (arXiv:1506.02617); Diehl 2023, Remark 1.1.
    """
    layers = _dense_layers(params)
    hidden = len(layers) - 1
    repair = f"pass for instance [2.0] * {hidden}"
    number = len(factors) if isinstance(factors, Sequence) or np.ndim(factors) else None
    got = factors if number is None else number
    require(number == hidden, f"a factor for each of the {hidden} hidden layers", got, repair)
    for place, factor in enumerate(factors):
        kernel, after = layers[place]["kernel"], layers[place + 1]["kernel"]
        factor = jnp.asarray(factor, kernel.dtype)
        wanted = f"one factor, or {kernel.shape[1]} for the units of hidden layer {place}"
        repair = f"pass for instance jnp.full({kernel.shape[1]}, 2.0)"
        fits = factor.shape in ((), kernel.shape[1:])
        if _has_maxout(kernel, after):
            wanted, repair = f"one factor for all units of hidden layer {place}, which maxout joins", "pass a number"
            fits = factor.shape == ()
        require(fits, wanted, f"factors of shape {factor.shape}", repair)
        message = (
            f"positive factors, got a smallest one of {{low}} for hidden layer {place}; rectifiers are homogeneous for "
            "positive numbers only"
        )
        check_entries(factor, lambda known: known > 0, message)
        # Kernel and bias of a unit are multiplied, its outgoing weights divided; a positive factor passes through a
        # rectifier.
        larger = {name: x * jnp.broadcast_to(factor.astype(x.dtype), x.shape) for name, x in layers[place].items()}
        smaller = divide(after, jnp.broadcast_to(factor.astype(after.dtype)[..., None], after.shape))
        layers[place : place + 2] = [larger, {**layers[place + 1], "kernel": smaller}]
    return _put_back(params, layers)


def unit_kernels(params: PyTree) -> Any:
    r"""Params of the same function whose hidden units all have incoming weights of norm 1.

    $a ReLU(w x + b) = a|w| ReLU(sign(w) x + b / |w|)$: for one input, kernels of
    signs suffice. A unit whose incoming weights are all zero is unchanged, in the derivative too. In float32,
    second derivatives are exact for weights from 1e-12 to 1e12, values and gradients for those from 1e-18 to 1e18.

    Raises:
        ValueError: for a net with ``maxout``, whose units have one factor in common.

    >>> hidden = {"kernel": jnp.array([[-2.0, 0.5]]), "bias": jnp.ones(2)}
    >>> params = hidden, (), {"kernel": jnp.ones((2, 1))}
    >>> unit_kernels(params)[0]["kernel"]
    Array([[-1.,  1.]], dtype=float32)

    Source: Neyshabur, Salakhutdinov & Srebro 2015, Path-SGD (arXiv:1506.02617); Diehl 2023, Remark 1.1 and Lemma 1.3.
    """
    layers = _dense_layers(params)
    hidden = len(layers) - 1
    with_maxout = any(_has_maxout(a["kernel"], b["kernel"]) for a, b in itertools.pairwise(layers))
    repair = "use balance, which has one factor for each layer"
    require(not with_maxout, "a net whose units have factors of their own", "one with maxout", repair)
    for place in range(hidden):
        length = norm(_dense_layers(params)[place]["kernel"], 0)  # (units,)
        factors: list = [1.0] * hidden
        # A unit without incoming weights keeps its scale, and has finite derivatives.
        factors[place] = reciprocal(jnp.where(vanishes(length), jnp.ones_like(length), length))
        params = rescale(params, factors)
    return params


def balance(params: PyTree) -> Any:
    r"""Params of the same function whose kernels have equal Frobenius norms, the geometric mean of the given norms.

    Of all rescalings by one factor for each layer, this one minimizes $∑_l ‖W_l‖_F^2$, since the product of
    the norms is fixed. In float32, second derivatives are exact for weights from 1e-18 to 1e18.

    Raises:
        ValueError: for a kernel of zeros, which cannot be rescaled.

    >>> params = ({"kernel": jnp.array([[8.0]])}, (), {"kernel": jnp.array([[2.0]])})
    >>> [float(layer["kernel"][0, 0]) for layer in balance(params) if layer]
    [4.0, 4.0]

    Source: Neyshabur, Salakhutdinov, Srebro 2015, Path-SGD, arXiv:1506.02617; Diehl 2023, Remark 1.1.
    """
    norms = jnp.stack([norm(layer["kernel"]) for layer in _dense_layers(params)])
    message = "kernels that are not zero, got a kernel of zeros, with which the net is constant; make params by init"
    check_values(norms > 0, message)
    logs = log(norms)
    # W_l is multiplied by c_l / c_(l-1), which has to be g / |W_l| for the mean norm g: log c_l is a cumulative sum.
    factors = jnp.exp(jnp.cumsum(jnp.broadcast_to(jnp.mean(logs), logs.shape) - logs))
    return rescale(params, list(factors[:-1]))


class EulerTerms(NamedTuple):
    """The result of `euler_terms`: terms that are equal if the net is homogeneous.

    Attributes:
        output: the sum of the outputs.
        inputs: the term of the inputs.
        kernels: one for each layer.
    """

    output: Float[Array, ""]
    inputs: Float[Array, ""]
    kernels: tuple[Float[Array, ""], ...]


@checked
def euler_terms(net: StatelessLike, params: PyTree, x: Float[Array, "*batch inputs"]) -> EulerTerms:
    r"""Euler's identities: the net is homogeneous of degree one in its inputs and in each of its kernels.

    .. math::

        ⟨x, ∇_x f⟩ + ∑_{i ≥ 1} ⟨b_i, ∇_{b_i} f⟩ = f = ⟨W_l, ∇_{W_l} f⟩ + ∑_{i ≥ l} ⟨b_i, ∇_{b_i} f⟩

    for f the sum of the outputs; without biases the sums vanish. For tanh the identities do not hold.

    >>> net = MLP(3, 3, 1)
    >>> params = net.init(jax.random.key(0), jnp.zeros(2))
    >>> terms = jax.jit(euler_terms, static_argnums=0)(net, params, jnp.array([0.3, -1.0]))
    >>> same = lambda term: bool(jnp.allclose(term, terms.output))
    >>> same(terms.inputs), [same(term) for term in terms.kernels]
    (True, [True, True, True])

    Source: Euler's theorem on homogeneous functions; Diehl 2023, Remark 1.1.
    """
    f = lambda params, x: jnp.sum(as_layer(net).apply(params, x))
    output, (to_params, to_x) = jax.value_and_grad(f, (0, 1))(params, x)
    pairs = list(zip(_dense_layers(params), _dense_layers(to_params), strict=True))
    kernels, biases = [], jnp.zeros_like(output)
    # The output is homogeneous in W_l together with the biases b_l, ..., b_L, which are added to what W_l scales;
    # backward, the sum over these biases grows.
    for layer, gradient in reversed(pairs):
        if "bias" in layer:
            biases = biases + jnp.sum(layer["bias"] * gradient["bias"]).astype(output.dtype)
        kernels.append(jnp.sum(layer["kernel"] * gradient["kernel"]).astype(output.dtype) + biases)
    return EulerTerms(output, jnp.sum(x * to_x) + biases, tuple(reversed(kernels)))


def norm_differences(params: PyTree) -> Float[Array, " hidden"]:
    r"""The invariants of gradient flow, $‖W_l‖_F^2 + ‖b_l‖^2 - ‖W_{l+1}‖_F^2$ of each hidden layer.

    The loss is arbitrary: by homogeneity its gradient is orthogonal to the direction of every `rescale`. Over a fixed
    time (steps times $η$), gradient descent with step size $η$ changes them by $O(η)$.

    >>> norm_differences(
    ...     ({"kernel": jnp.array([[2.0]])}, (), {"kernel": jnp.array([[3.0]])})
    ... )
    Array([-5.], dtype=float32)

    Source: Du, Hu, Lee 2018, Algorithmic regularization in learning deep homogeneous models, arXiv:1806.00900; Diehl
    2023, Remark 1.1.
    """
    layers = _dense_layers(params)
    dtype = common_dtype(layers)
    wide = lambda x: x.astype(wide_dtype(dtype))
    square = lambda layer, *names: sum(jnp.sum(wide(layer[name]) ** 2) for name in names if name in layer)
    pairs = itertools.pairwise(layers)
    found = [square(layer, "kernel", "bias") - square(after, "kernel") for layer, after in pairs]
    return jnp.asarray(found, dtype)  # empty without hidden layers


@checked
def normalized_margin(margins: Float[Array, "*batch"], params: PyTree) -> Float[Array, "*batch"]:
    r"""Margins that do not depend on the scale of the weights, $m / ∏_l ‖W_l‖_F$, for nets without biases.

    Multiplying all weights by alpha multiplies the outputs, hence the margins, by $α^L$, and does not change
    the predicted class; the quotient measures the distance of an example from the boundary.

    Args:
        margins: the margins of the outputs, such as the score of the label minus the largest other score.
        params: the params of the net.

    >>> params = ({"kernel": jnp.array([[2.0]])}, (), {"kernel": jnp.array([[3.0]])})
    >>> normalized_margin(jnp.array([12.0]), params)
    Array([2.], dtype=float32)

    Source: Bartlett, Foster, Telgarsky 2017, Spectrally-normalized margin bounds, arXiv:1706.08498; Diehl 2023, Remark
    1.1.
    """
    layers = _dense_layers(params)
    without_bias = not any("bias" in layer for layer in layers)
    wanted = "a net without biases, since only such a net is homogeneous in its weights"
    require(without_bias, wanted, "biases", "build it with Dense(..., use_bias=False)")
    for layer in layers:
        margins = divide(margins, jnp.broadcast_to(norm(layer["kernel"]).astype(margins.dtype), margins.shape))
    return margins


def _dense_layers(params) -> list[dict]:
    """The params of each dense layer, in order, as JAX arrays."""
    entries = list(params.values()) if isinstance(params, Mapping) else params
    found: list[dict] = []
    valid = False
    if isinstance(entries, (tuple, list)) and not (isinstance(params, Mapping) and "kernel" in params):
        found = [dict(entry) for entry in entries if isinstance(entry, Mapping)]
        rest = [entry for entry in entries if not isinstance(entry, Mapping)]
        dense = all({"kernel"} <= {*p} <= {"kernel", "bias"} for p in found)
        valid = len(found) > 0 and not any(map(len, rest)) and dense
    repair = "pass the part that belongs to the dense layers"
    require(valid, "the params of dense layers in series, as MLP(...).init makes them", params, repair)
    found = [{name: jnp.asarray(leaf) for name, leaf in layer.items()} for layer in found]
    for leaf in jax.tree.leaves(found):
        floating, repair = jnp.issubdtype(leaf.dtype, jnp.floating), "convert it with .astype(jnp.float32)"
        require(floating, "params to hold floating-point arrays", leaf, repair, error=TypeError)
    _check_shapes(found)
    return found


def _check_shapes(layers) -> None:
    """Reject layers of which no net consists."""
    repair = "pass the params that MLP(...).init makes, or those of each Dense in the order of application"
    for layer in layers:
        kernel = layer["kernel"]
        of_one_net = f"{repair}; for params of several nets, use jax.vmap"
        require(kernel.ndim == 2, "kernels of shape (in, out)", kernel, of_one_net)
        fits = "bias" not in layer or layer["bias"].shape == kernel.shape[1:]
        require(fits, f"a bias of shape {kernel.shape[1:]} beside a kernel {kernel.shape}", layer.get("bias"), repair)
    for before, after in itertools.pairwise(layer["kernel"].shape for layer in layers):
        fits = before[1] % after[0] == 0 if after[0] else before[1] == 0  # maxout has several units for each output
        expected = "kernels (in, out) whose number of inputs is the number of outputs before, or with maxout a divisor"
        require(fits, expected, f"{after} after {before}", repair)


def _has_maxout(kernel, after) -> bool:
    """Whether an input of the next layer is the largest of several units."""
    return kernel.shape[1] != after.shape[0]


def _put_back(params, layers):
    layers = iter(layers)
    replaced = lambda entry: next(layers) if isinstance(entry, Mapping) else entry
    if isinstance(params, Mapping):
        return {name: replaced(entry) for name, entry in params.items()}
    return type(params)(replaced(entry) for entry in params)
