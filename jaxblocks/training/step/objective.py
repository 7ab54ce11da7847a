"""The objective of training as a function of params: forward pass, loss, penalty, mixed precision."""

import contextlib
import functools
import inspect
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxblocks.backend.precision import wide_dtype
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.layer_inputs import check_declarations
from jaxblocks.checks.signatures import arguments_of, takes
from jaxblocks.core.keys import child_key
from jaxblocks.core.lifting import as_layer, declared_by, required_by, side_inputs, stateful
from jaxblocks.core.pairs import Layer, LayerLike, StatefulLayer, layer_name
from jaxblocks.core.shapes import as_inputs
from jaxblocks.losses import weighted_mean
from jaxblocks.metrics import accuracy, top_k_accuracy
from jaxblocks.training.step.state import as_typed_key

__all__ = [
    "add_penalty",
    "apply_in",
    "as_compute_dtype",
    "augmented",
    "call_loss",
    "check_functions",
    "check_logits",
    "check_weights",
    "mean_loss",
    "mean_of",
    "steepest_ascent",
    "training_forward",
    "training_objective",
]


def training_forward(net, compute_dtype=None) -> Callable:
    """The function ``(ts, x, side) -> (outputs, state)`` of a training step."""
    check_declarations(as_layer(net).apply)
    reads = side_inputs(net)
    apply = stateful(net).apply

    def forward(ts, x, side):
        if own := {"train", "key"} & side.keys():
            got = " and ".join(sorted(own))
            require(False, "no side input train or key", got, "omit it, as a step passes both itself", error=TypeError)
        # A name for each use of the step's key, so that augmentation and net draw independently.
        own = {"train": True, "key": child_key(_key_of_step(ts), "net")}
        side = {**side, **{name: value for name, value in own.items() if name in reads}}
        return apply_in(compute_dtype, apply, ts.params, ts.state, x, side)

    return forward


def augmented(augment: Callable | None, ts, x, y):
    """The inputs of a training step, augmented with its key, and the targets, which ``augment(key, x, y)`` changes."""
    if augment is None:
        return x, y
    key = child_key(_key_of_step(ts), "augment")
    both = not takes(augment, 2)
    try:
        new = augment(key, x, y) if both else (augment(key, x), y)
    except Exception as error:
        shapes = ", ".join(map(describe, jax.tree.leaves(x)))
        error.add_note(f"Raised by augment({'key, x, y' if both else 'key, x'}), called with a key and x of {shapes}.")
        raise
    is_pair = isinstance(new, (tuple, list)) and len(new) == 2 and jax.tree.leaves(new[0])
    expected = "augment(key, x, y) to return a pair (x, y)" if both else "augment(key, x) to return the new x"
    repair = "end it with return x, y" if both else "end it with return x"
    require(is_pair, expected, new if both else new[0], repair, error=TypeError)
    # One number may stand beside the targets (of mixup); the nodes and the edges of graphs have other sizes.
    before, after = ({leaf.shape[0] for leaf in jax.tree.leaves(pair) if jnp.ndim(leaf)} for pair in ((x, y), new))
    if len(before) == 1 < len(after):
        got = ", ".join(map(describe, jax.tree.leaves(new)))
        repair = f"for a function f of one example, write jax.vmap(f)(jax.random.split(key, {min(before)}), x)"
        require(False, "augment to return arrays with one row for each example, as y has them", got, repair)
    return new


def _key_of_step(ts):
    # From key and step alone: a resumed run draws what the interrupted one would have drawn.
    return jax.random.fold_in(as_typed_key(ts.key), ts.step)


def training_objective(net, loss, penalty=None, compute_dtype=None) -> Callable:
    """A function ``(ts, x, y, side) -> objective``; a step differentiates ``objective(params) -> (value, state)``.

    ``objective(params, check)`` calls ``check`` with what the loss returns.
    """
    forward = training_forward(net, compute_dtype)

    def objective_of(ts, x, y, side):
        # Only params are differentiated; the state is returned beside the value.
        def objective(params, check=None):
            outputs, state = forward(ts._replace(params=params), x, side)
            value, _ = mean_loss("the loss", loss, x, outputs, y, check)
            return add_penalty(value, penalty, params), state

        return objective

    return objective_of


def add_penalty(value, penalty: Callable | None, params):
    """The value of the loss plus that of the penalty; raises a ``TypeError`` unless this is one real number."""
    if penalty is None:
        return value
    own = penalty(params)
    own = jnp.asarray(own, value.dtype) if isinstance(own, int | float) else own
    fits = getattr(own, "shape", None) == () and jnp.issubdtype(own.dtype, jnp.floating)
    repair = "return a sum over the params, such as jaxblocks.l2_penalty(params)"
    require(fits, "penalty(params) to be one real number of floating point", own, repair, error=TypeError)
    return value + jnp.asarray(own).astype(value.dtype)


def steepest_ascent(gradient):
    r"""The direction in which a real function increases most, from its gradient by ``jax.grad``: the complex conjugate.

    For complex params $z = x + i y$ ``jax.grad`` returns $∂J/∂x - i ∂J/∂y$, the numbers $g$ of $dJ = Re(g dz)$. J
    increases most along $∂J/∂x + i ∂J/∂y$, the gradient of the pair (x, y), of which optimizers subtract a multiple.
    Real gradients are unchanged. This is the one place in which gradients of training are conjugated.

    >>> squared_distance = lambda z: jnp.abs(z - 2j) ** 2
    >>> z = jnp.asarray(1 + 0j)
    >>> print(steepest_ascent(jax.grad(squared_distance)(z)))
    (2-4j)

    Source: Kreutz-Delgado 2009, The complex gradient operator and the CR-calculus (arXiv:0906.4835).
    """
    return jax.tree.map(jnp.conj, gradient)


def mean_loss(
    what: str, loss: Callable, x, outputs, y, check: Callable | None = None
) -> tuple[Float[Array, ""], Float[Array, ""] | None]:
    """`mean_of` the loss, or an error that names the cause where the net does not keep the batch axis."""
    try:
        value = call_loss(loss, outputs, y)
        mean = mean_of(what, value, outputs, y)
    except (TypeError, ValueError) as error:
        # The error of the loss states shapes only. If the batch axis is missing in the outputs, that is the cause, and
        # it is stated first.
        _check_batch_axis(x, outputs, y, f"; error of {what}: {str(error).removesuffix('.')}")
        if isinstance(error, (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError)):
            repair = "write it with jax.numpy, or apply it to the outputs of jaxblocks.predict"
            expected, got = f"{what} to be a function of JAX arrays", "one that converts them to NumPy or to numbers"
            require(False, expected, got, repair, error=TypeError)
        raise
    # y of shape (batch,) and outputs without the batch axis may broadcast to a loss that looks right.
    of_x = {jnp.shape(one)[:1] for one in jax.tree.leaves(x)} - {()}
    if any(jnp.shape(one)[:1] in of_x for one in jax.tree.leaves(value)):
        _check_batch_axis(x, outputs, y)  # y was broadcast
    if check is not None:
        check(value)
    return mean


def _check_batch_axis(x, outputs, y, cause: str = "") -> None:
    """Raise where all arrays of x and y have the same first axis, and no array of the outputs has it."""
    arrays = [jax.tree.leaves(tree) for tree in (x, outputs, y)]
    of_x, of_outputs, of_y = ({jnp.shape(one)[:1] for one in leaves} for leaves in arrays)
    if cause and len(of_x) == len(of_y) == 1 and of_x != of_y and () not in of_x | of_y and of_x == of_outputs:
        got = f"x {', '.join(map(describe, arrays[0]))} and y {', '.join(map(describe, arrays[2]))}"
        require(False, "x and y with the same number of rows", got, "give their first axes one length" + cause)
    if len(of_x) == 1 and () not in of_x and of_x == of_y and not of_x & of_outputs:
        got = f"outputs {', '.join(map(describe, arrays[1]))} for x {', '.join(map(describe, arrays[0]))}"
        repair = "let each layer act on the trailing axes only, for example Flatten(2) on images"
        if any(jnp.ndim(one) == 3 for one in arrays[0]):
            repair += "; write x[..., None] for images without an axis of channels"
        require(False, f"a net that keeps the batch axis of size {arrays[0][0].shape[0]}", got, repair + cause)


def call_loss(loss: Callable, outputs, y):
    """Call ``loss(outputs, y)`` such that errors raised inside name the loss, not the training function."""
    return loss(outputs, y)


def mean_of(what: str, value, outputs, y) -> tuple[Float[Array, ""], Float[Array, ""] | None]:
    """The mean of all entries, in float32, or float64 for float64, and the sum of the weights.

    ``value`` is an array, or a pair ``(values, weights)`` of one shape: the mean is the `weighted_mean` then. Without
    weights their sum is ``None``. Raises if operands were broadcast silently: a valid value, one number per example or
    per entry of more axes, has the leading axes of the outputs or of ``y``. Outputs ``(64, 1)`` minus ``y`` ``(64,)``
    have the shape ``(64, 64)``, which is rejected.
    """
    value, weights = _values_and_weights(what, value)
    shape = value.shape
    # A trailing axis of length 1 does not distinguish (64, 1) from (64,), which both are one number per example.
    while shape and shape[-1] == 1:
        shape = shape[:-1]
    if shape and not any(jnp.shape(leaf)[: len(shape)] == shape for leaf in jax.tree.leaves((outputs, y))):
        got = [", ".join(map(describe, jax.tree.leaves(tree))) for tree in (outputs, y)]
        require(
            False,
            f"{what} to be one number, or to have the leading axes of the outputs or of y (one number per example)",
            f"{describe(value)} for outputs {got[0]} and y {got[1]}, which were broadcast",
            "make their shapes equal, for example with y[:, None]; a mean, with .mean(), would hide the broadcast",
        )
    repair = "take the modulus, jnp.abs, as jaxblocks.mse does"
    require(not jnp.iscomplexobj(value), f"{what} to be real numbers", value, repair, error=TypeError)
    dtype = jnp.float64 if value.dtype == jnp.float64 else jnp.float32
    if weights is None:
        return jnp.mean(value, dtype=dtype), None
    return weighted_mean(value, weights), jnp.sum(weights, dtype=dtype)


def _values_and_weights(what: str, value):
    """The arrays of a pair ``(values, weights)``; weights ``None`` for an array."""
    if hasattr(value, "dtype") or isinstance(value, (bool, int, float)):
        return jnp.asarray(value), None
    fits = isinstance(value, tuple) and len(value) == 2 and all(hasattr(one, "shape") for one in value)
    if not fits or jnp.shape(value[0]) != jnp.shape(value[1]) or not jnp.shape(value[0]):
        got = " and ".join(map(describe, value if isinstance(value, tuple) else (value,)))
        expected = f"{what} to be an array, or a pair (values, weights) of one shape with one number per example each"
        require(False, expected, got, "leave out other outputs, or give both one shape", error=TypeError)
    return value


def check_weights(value, params) -> None:
    """An error where weights of a loss depend on the params that are differentiated, as another term or an output does.

    Outer derivatives, by weights that are learned, remain: the differentiation by the params evaluates the rule below.
    """
    if isinstance(value, tuple):
        _of_params(value[1], params)


@jax.custom_jvp
def _of_params(weights, params):
    return weights


@functools.partial(_of_params.defjvp, symbolic_zeros=True)
def _push_weights(primals, tangents):
    constant = isinstance(tangents[0], jax.custom_derivatives.SymbolicZero)
    expected = "weights that do not depend on the params in a loss (values, weights)"
    repair = "return the sum of several terms, or pass weights through jax.lax.stop_gradient"
    require(constant, expected, "such weights", repair)
    return primals[0], tangents[0]


def check_functions(loss, penalty, augment) -> None:
    """Raise a ``TypeError`` unless these are functions of the arguments that a step passes, or no option is given."""
    functions = {
        "loss(outputs, y)": (loss, "loss=lambda outputs, y: jaxblocks.mse(outputs, y)"),
        "penalty(params)": (penalty, "penalty=lambda params: 1e-4 * jaxblocks.l2_penalty(params)"),
        "augment(key, x) or augment(key, x, y)": (augment, "augment=lambda key, x: x"),
    }
    for call, (function, repair) in functions.items():
        numbers = (2, 3) if function is augment else (call.count(",") + 1,)  # or augment(key, x, y)
        if function is not None and not any(takes(function, number) for number in numbers):
            expected = f"{call.partition('(')[0]} to be a function {call}"
            options = required_by(declared_by(function))  # such as the one of `random_shift`
            if any(takes(function, number, *options) for number in numbers):
                given = ", ".join(f"{name}=..." for name in options)
                repair = f"{call.partition('(')[0]}=functools.partial({layer_name(function)}, {given})"
            require(False, expected, arguments_of(function), f"write {repair}", error=TypeError)
    if augment is not None and (first := _first_parameter(augment)) in ("x", "y", "inputs", "images", "batch"):
        expected = "augment to be a function augment(key, x) or augment(key, x, y)"
        repair = "take the key first: write augment=lambda key, x: x, or augment=lambda key, x, y: (x, y)"
        require(False, expected, f"one whose first argument is {first}", repair, error=TypeError)
    if getattr(loss, "func", loss) in (accuracy, top_k_accuracy):  # of a functools.partial
        expected, got = "a loss with a gradient", "accuracy, whose gradient is 0 everywhere"
        require(False, expected, got, "pass a loss such as softmax_cross_entropy, and accuracy to metrics")


def check_logits(net: LayerLike, loss: Callable) -> None:
    """Raise a ``ValueError`` where a net ends in the probabilities that the loss computes of its outputs."""
    last = net
    while isinstance(last, (Layer, StatefulLayer)) and layer_name(last) == "Serial" and last.inner:
        last = [*last.inner.values()][-1]
    pair = getattr(getattr(last, "apply", None), "of_arrays", last), loss
    functions = [getattr(f, "func", f) for f in pair]  # of a functools.partial
    names = [getattr(f, "__name__", "") for f in functions]
    twice = names in (["softmax", "softmax_cross_entropy"], ["sigmoid", "sigmoid_cross_entropy"])
    # A loss of your own with this name may take probabilities.
    twice = twice and (functions[1].__module__ or "").partition(".")[0] in ("jaxblocks", "optax")
    repair = f"leave out the {names[0]} at its end: the loss applies it, and probabilities are {names[0]}(outputs)"
    require(not twice, f"a net that returns logits, as {names[1]} takes them", f"one that ends in {names[0]}", repair)


def _first_parameter(function: Callable) -> str:
    """The name of the first parameter of a function; empty where its signature is unknown."""
    with contextlib.suppress(ValueError):
        return next(iter(inspect.signature(function).parameters), "")
    return ""


# ---- mixed precision -----------------------------------------------------------------------


def apply_in(dtype, apply, params, state, x, side):
    """Apply a net with params and inputs rounded to a dtype; outputs in float32 at least, the state in its dtypes."""
    if dtype is None:
        return apply(params, state, *as_inputs(x), **side)
    expected = f"params and inputs of real numbers for compute_dtype={jnp.dtype(dtype).name}"
    repair = "leave compute_dtype out: complex numbers have no half precision"
    for leaf in jax.tree.leaves((params, x)):
        require(not jnp.iscomplexobj(leaf), expected, leaf, repair, error=TypeError)
    outputs, after = apply(_cast(params, dtype), state, *as_inputs(_cast(x, dtype)), **side)
    # Running statistics stay in float32: the small updates of a moving average would be rounded away in bfloat16.
    back = lambda new, old: new.astype(old.dtype) if _is_floating(new) and _is_floating(old) else new
    return _cast(outputs, wide_dtype(dtype)), jax.tree.map(back, after, state)


def _cast(tree, dtype):
    # Keys and integers keep their dtype.
    return jax.tree.map(lambda x: jnp.asarray(x).astype(dtype) if _is_floating(x) else x, tree)


def _is_floating(x) -> bool:
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)


def as_compute_dtype(dtype):
    """``compute_dtype`` as a dtype, or ``None``."""
    if dtype is None:
        return None
    try:
        found = jnp.dtype(dtype)
    except TypeError:
        found = dtype
    if found not in (jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float32), jnp.dtype(jnp.float64)):
        why = " (small gradients underflow in it unless the loss is scaled)" if found == jnp.float16 else ""
        expected = "compute_dtype to be jnp.bfloat16, jnp.float32 or None"
        require(False, expected, f"{found}{why}", "pass one of these")
    return found
