r"""Linearization and forward mode where a function may lack a rule for one of the modes.

A `jax.custom_vjp` (such as `jaxblocks.ad.scan` with snapshots) has a rule for reverse mode only. Its forward
derivative still exists: the pullback :math:`u \mapsto u^\top J` is linear in u, so its own pullback is
:math:`v \mapsto Jv`, two backward passes instead of one forward pass.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.tree_util import Partial
from jaxtyping import PyTree

from jaxblocks.ad.jaxprs import all_equations
from jaxblocks.varying import as_structs

__all__ = ["jvp_or_none", "lacks_forward_rule", "linearize", "missing_mode"]


def missing_mode(error: Exception) -> str | None:
    """The mode of differentiation, ``"forward"`` or ``"reverse"``, whose absence an error of JAX reports.

    >>> missing_mode(TypeError("can't apply forward-mode autodiff (jvp) to a custom_vjp function."))
    'forward'
    """
    if isinstance(error, TypeError | NotImplementedError) and any(name in str(error) for name in _REVERSE_ONLY):
        return "forward"
    return "reverse" if isinstance(error, ValueError) and "Reverse-mode differentiation" in str(error) else None


_REVERSE_ONLY = ("custom_vjp", "custom_lin")


def lacks_forward_rule(closed: ClosedJaxpr) -> bool:
    """Whether a program of tangents contains a `jax.custom_vjp`, inside of a loop or a call, where JAX reports none.

    >>> lacks_forward_rule(jax.make_jaxpr(jnp.sin)(1.0))
    False
    """
    return any(equation.primitive.name == "custom_lin" for equation in all_equations(closed.eqns))


def jvp_or_none(f: Callable, x: PyTree, v: PyTree) -> tuple[PyTree, PyTree] | None:
    """The value and the derivative along ``v``, as ``jax.jvp`` returns them; ``None`` where f has no forward mode.

    >>> jvp_or_none(jnp.sin, jnp.float32(0.0), jnp.float32(2.0))
    (Array(0., dtype=float32), Array(2., dtype=float32))
    """
    try:
        program = jax.make_jaxpr(lambda x, v: jax.jvp(f, (x,), (v,)), return_shape=True)
        closed, shapes = program(x, v)
    except (TypeError, NotImplementedError) as error:
        if missing_mode(error) != "forward":
            raise
        return None
    if lacks_forward_rule(closed):
        return None
    return jax.tree.unflatten(jax.tree.structure(shapes), jaxpr_as_fun(closed)(*jax.tree.leaves((x, v))))


def linearize(f: Callable, x: PyTree, *, symmetric: bool = False) -> tuple[PyTree, Callable[[PyTree], PyTree]]:
    """The value of f and its derivative as a function of the direction, as ``jax.linearize`` returns them.

    Where f has no forward mode, the derivative is the pullback of its pullback.

    Args:
        f: takes a pytree, returns a pytree of floating-point arrays.
        x: the point.
        symmetric: whether the Jacobian is symmetric, as that of a gradient is: then the pullback itself suffices.

    >>> value, push = linearize(jnp.sin, jnp.float32(0.0))
    >>> push(jnp.float32(2.0))
    Array(2., dtype=float32)
    """
    try:
        y, push = jax.linearize(f, x)
        if not lacks_forward_rule(jax.make_jaxpr(push)(as_structs(x))):
            return y, push
    except (TypeError, NotImplementedError) as error:
        if missing_mode(error) != "forward":
            raise
    y, pull = jax.vjp(f, x)
    if not symmetric:
        _, pull = jax.vjp(Partial(_only, pull), jax.tree.map(jnp.zeros_like, y))
    return y, Partial(_only, pull)


def _only(pull: Callable, v: Any):
    [pulled] = pull(v)
    return pulled
