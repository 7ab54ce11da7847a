"""What optimizers of optax have in common: their two functions, the parts of their states, trees of updates."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxblocks.checks.errors import describe, require

__all__ = ["all_finite", "check_optimizer", "is_optimizer", "parts_of"]


def check_optimizer(optimizer) -> None:
    """Raise a ``TypeError`` unless ``optimizer`` is one of optax."""
    if is_optimizer(optimizer):
        return
    name = getattr(optimizer, "__name__", "")
    module, made = getattr(optimizer, "__module__", None) or "", getattr(optimizer, "__qualname__", "")
    if callable(optimizer) and module.startswith("optax.") and ("<locals>" in made or "schedule" in name):
        got, repair = "a schedule of its learning rate", "pass an optimizer with it, such as optax.adam(schedule)"
        require(False, "an optimizer", got, repair, error=TypeError)
    if callable(optimizer) and module.startswith("optax."):
        require(False, "an optimizer", f"optax.{name} itself", f"call it: optax.{name}(...)", error=TypeError)
    got = f"the function {name}" if callable(optimizer) and name else describe(optimizer)
    require(False, "an optimizer of optax", got, "pass for instance optax.adam(1e-3)", error=TypeError)


def is_optimizer(x) -> bool:
    """Whether ``x`` has the two functions of an optax optimizer."""
    return callable(getattr(x, "init", None)) and callable(getattr(x, "update", None))


def parts_of(opt_state: Any, kind: type) -> list:
    """The parts of a state of an optimizer that are of a kind."""
    is_one = lambda part: isinstance(part, kind)
    return [part for part in jax.tree.leaves(opt_state, is_leaf=is_one) if is_one(part)]


@jax.jit
def all_finite(tree: Any) -> Array:
    """Whether every entry of every leaf is finite."""
    return jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)]).all()
