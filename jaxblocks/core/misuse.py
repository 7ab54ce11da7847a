"""Errors about layers that are used as functions or numbers, and about builders that are none.

`jaxblocks.core.pairs` imports it where such an error is made.
"""

import sys
from collections.abc import Callable
from typing import Any, NoReturn

from jaxblocks.checks.errors import describe
from jaxblocks.core.pairs import StatefulLayer, layer_name

__all__ = ["reject_attribute", "reject_builder", "reject_call", "reject_operator", "reject_result"]


def reject_call(layer: Any) -> NoReturn:
    """The error of ``net(x)``."""
    made = "params, state" if isinstance(layer, StatefulLayer) else "params"
    raise TypeError(
        f"{layer_name(layer)} expected a call of init or apply, got a call of the layer itself; write "
        f"{made} = net.init(key, x) and net.apply({made}, x)."
    )


def reject_attribute(layer: Any, name: str) -> NoReturn:
    """The error of ``net.name``; that of ``jax.jit(net)`` for the attribute that all transformations of JAX read.

    Without it they would fail later, each in another way. For other callers, such as ``inspect.signature(net)`` and
    ``Mock(spec=net)``, a layer has no such attribute.
    """
    if name == "__code__" and _is_read_by_jax():
        raise TypeError(
            f"{layer_name(layer)} expected a transformation of its function apply, got one of the layer itself; "
            "write net.apply, for example jax.jit(net.apply)."
        )
    repair = next((f"; {repair}" for names, repair in _METHODS.items() if name in names.split()), "")
    raise AttributeError(f"{type(layer).__name__!r} object has no attribute {name!r}{repair}", name=name, obj=layer)


_METHODS = {
    "fit train_on_batch": "write jaxblocks.fit(net, loss, optimizer, data, key=key, epochs=1)",
    "compile": "pass loss and optimizer to jaxblocks.fit or jaxblocks.train_step",
    "evaluate": "write jaxblocks.evaluate(net, params, state, data, metrics)",
    "predict": "write jaxblocks.predict(net, params, state, x)",
    "forward": "write net.apply(params, x)",
    "parameters named_parameters state_dict weights get_weights trainable_variables variables params": (
        "a layer holds no params; net.init(key, x) returns them"
    ),
    "load_state_dict load_weights set_weights": "write params = jaxblocks.interop.load_torch(net, state_dict, names)",
    "save save_weights": "write jaxblocks.save_checkpoint(directory, ts)",
    "train eval": "pass train=True to net.apply in training",
    "to cuda cpu": "move the params: jax.device_put(params, device)",
    "half float double bfloat16": "pass dtype= to the layers, or compute_dtype= to train_step",
    "zero_grad backward": "jax.grad of a function of the params returns gradients",
    "requires_grad_ trainable freeze": "write Frozen(net)",
    "add append": "write Serial(net, layer)",
    "summary tabulate": "write jaxblocks.summary(net, x)",
    "layers children modules named_modules": "net[0] is the first layer inside, net.inner has them all",
}
"""What takes the place of methods of layers in other libraries."""


def _is_read_by_jax() -> bool:
    """Whether JAX reads the attribute, by itself or through the module ``inspect``."""
    frame = sys._getframe(1)
    module = lambda: frame.f_globals.get("__name__", "").partition(".")[0]
    while frame.f_back and module() in ("jaxblocks", "inspect", "jaxtyping", "beartype"):
        frame = frame.f_back
    return module() == "jax"


def reject_operator(layer: Any) -> NoReturn:
    """The error of ``net + other``."""
    repair = "write Serial(net, other), or Residual(net) for x + f(x)"
    raise TypeError(f"{layer_name(layer)} expected a combinator of layers, got an operator such as +; {repair}.")


def reject_builder(function: Any) -> NoReturn:
    """The error of ``builder`` for a class or another value that is no function."""
    name = getattr(function, "__name__", "Net")
    got = f"the class {name}" if isinstance(function, type) else describe(function)
    raise TypeError(
        f"builder expected a function that returns a Layer, got {got}; "
        f"write a function: def {name}(...): return Layer(init, apply)."
    )


def reject_result(function: Callable, result: Any) -> NoReturn:
    """The error of a call of a builder that returns no layer."""
    raise TypeError(
        f"{function.__name__} expected its function to return a Layer or a StatefulLayer, got {describe(result)}; "
        "write return Layer(init, apply)."
    )
