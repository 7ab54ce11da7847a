"""The evaluation traces of a function at a point, and the checks of their arguments."""

import inspect
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr
from jaxtyping import PyTree

from jaxblocks.ad.programs.arguments import floating_leaves
from jaxblocks.ad.traces.passes import Operation, Slot, number_slots, read, run_forward
from jaxblocks.ad.traces.rows import forward_rows, reverse_rows
from jaxblocks.ad.traces.tables import TraceTable
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import checked

__all__ = ["input_labels", "slots_of", "trace_table"]


@checked
def trace_table(
    f: Callable,
    /,
    *args: PyTree,
    tangent: PyTree | None = None,
    cotangent: PyTree | None = None,
    open_calls: bool = True,
) -> TraceTable:
    r"""The forward primal, forward tangent and reverse adjoint trace of a function, as symbols and values.

    With $v_k = ϕ_k(v_i, v_j, …)$ for each operation,

    .. math::

        v̇_k = ∑_i ((∂ v_k) / (∂ v_i)) v̇_i,
        v̄_i = ∑_k ((∂ v_k) / (∂ v_i))ᵀ v̄_k .

    Calls of jitted functions are opened, or with ``open_calls=False`` are one operation each; a loop, a branch, or a
    function with its own derivative rule is one operation. The values are those of ``jax.jvp`` and ``jax.vjp`` of
    each single operation, also where the symbols only name a derivative: the gradient is that of ``jax.grad``. A loop
    stands for the iterations that are made at this point, so a ``while_loop``, of which ``jax.grad`` has no reverse
    mode, has an adjoint too, by its Jacobian. The adjoint of a complex number has no conjugate, as in ``jax.vjp``: for
    a real result, $ẏ = Re(v̄ v̇)$.

    Args:
        f: any function that JAX can trace; as under ``jit``, Python branches must not depend on its values.
        args: the point, pytrees of floating-point arrays. Close over other values (integer labels, keys).
        tangent: $ẋ$, a tuple like ``args``. By default 1 for each number of the first argument, 0 for the others.
        cotangent: $ȳ$, like the value of ``f``; by default 1, for a scalar value.
        open_calls: whether the operations inside of jitted functions are shown. Without them the graph is that of
            ``f`` as it is written: what ``f`` calls as ``jax.jit(loss)(z)`` is one node with the name ``loss``.

    Returns:
        A `TraceTable`, which prints as below.

    Raises:
        TypeError: if an argument or a result is not floating-point.
        ValueError: if ``f`` is not scalar-valued and no cotangent is given, or if ``tangent`` or ``cotangent`` have
            another structure or other shapes.

    >>> trace_table(lambda x1, x2: jnp.log(x1) + x1 * x2 - jnp.sin(x2), 2.0, 5.0)
    forward primal trace                       forward tangent trace
    -----------------------------------------  --------------------------------------------
    v₋₁ = x1 = 2                               v̇₋₁ = ẋ1 = 1
    v₀ = x2 = 5                                v̇₀ = ẋ2 = 0
    v₁ = ln v₋₁ = ln 2 = 0.693                 v̇₁ = v̇₋₁ / v₋₁ = 1 / 2 = 0.5
    v₂ = v₋₁ × v₀ = 2 × 5 = 10                 v̇₂ = v̇₋₁ × v₀ + v̇₀ × v₋₁ = 1 × 5 + 0 × 2 = 5
    ...

    Source: Baydin, Pearlmutter, Radul & Siskind, Automatic differentiation in machine learning: a survey, tables 2
    and 3; Cevher, Mathematics of Data (where $v_2$ is printed with a wrong second factor).
    """
    require(jax.tree.leaves(args), "the arguments of f after it", "none", "write trace_table(f, x1, x2)")
    args = _floating(f, args)
    if tangent is None:
        tangent = (jax.tree.map(jnp.ones_like, args[0]), *jax.tree.map(jnp.zeros_like, args[1:]))
    else:
        tangent = _like("tangent", tangent, "args", args, "pass a tuple with one entry for each argument, of its shape")
    closed, shapes = jax.make_jaxpr(f, return_shape=True)(*args)
    cotangent = _start(cotangent, shapes)

    inputs, constants, steps, outputs = slots_of(closed, args, open_calls=open_calls)
    for slot, direction in zip(inputs, jax.tree.leaves(tangent), strict=True):
        slot.tangent = direction
    for step in steps:
        run_forward(step)
    structure = jax.tree.structure(shapes)
    # An input of the name y would have the same label as the output.
    letter = "y" if all(slot.operation != "y" for slot in inputs) else "f"
    names = [letter + jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(shapes)]
    primal, tangents = forward_rows(inputs, constants, steps, list(zip(names, outputs, strict=True)))
    adjoints = reverse_rows(inputs, steps, list(zip(names, outputs, jax.tree.leaves(cotangent), strict=True)))
    made = [slot for step in steps for slot in step.outs if slot.name]
    return TraceTable(
        primal=primal,
        tangent=tangents,
        adjoint=adjoints,
        nodes=tuple(slot.node() for slot in (*constants, *inputs, *made)),
        value=structure.unflatten([jnp.asarray(slot.value) for slot in outputs]),
        derivative=structure.unflatten([slot.moved() for slot in outputs]),
        gradient=jax.tree.structure(args).unflatten([slot.adjoint for slot in inputs]),
    )


def slots_of(
    closed: ClosedJaxpr, args: tuple, *, open_calls: bool = True
) -> tuple[list[Slot], list[Slot], list[Operation], list[Slot]]:
    """The inputs, constants, operations and outputs of a traced function, numbered as in its trace."""
    labels = input_labels(closed, args)
    inputs = [
        Slot("input", label, value=value, active=True)
        for label, value in zip(labels, jax.tree.leaves(args), strict=True)
    ]
    steps, outputs = read(closed, inputs, open_calls=open_calls)
    return inputs, number_slots(inputs, steps, outputs), steps, outputs


def _floating(f, args) -> tuple:
    """The arguments as arrays; a ``TypeError`` for one that is not floating-point, by its name in ``f``."""
    try:
        # Builtins have no signature; then arguments are named by their position.
        names = list(inspect.signature(f).bind(*args).arguments)
    except (TypeError, ValueError):
        names = []
    names = names if len(names) == len(args) else [f"x{place}" for place in range(1, len(args) + 1)]
    otherwise = "close over it as a constant of f"
    # Arguments may be empty, such as the params of a layer without any.
    return tuple(
        floating_leaves(name, arg, otherwise) if jax.tree.leaves(arg) else arg
        for name, arg in zip(names, args, strict=True)
    )


def _like(name, given, other, wanted, repair):
    """``given`` as arrays, with the structure, shapes and dtypes of ``wanted``."""
    if jax.tree.structure(given) != jax.tree.structure(wanted):
        expected = f"{name} like {other}, {jax.tree.structure(wanted)}"
        require(False, expected, str(jax.tree.structure(given)), repair)
    leaves = []
    for (path, leaf), target in zip(jax.tree_util.tree_leaves_with_path(given), jax.tree.leaves(wanted), strict=True):
        # A Python number takes the dtype of the target; an array of another dtype is an error rather than a silent
        # conversion.
        leaf = jnp.asarray(leaf, target.dtype if isinstance(leaf, int | float) else None)
        if (leaf.shape, leaf.dtype) != (target.shape, target.dtype):
            expected = f"{name}{jax.tree_util.keystr(path)} like {other}, {describe(target)}"
            require(False, expected, leaf, repair)
        leaves.append(leaf)
    return jax.tree.unflatten(jax.tree.structure(wanted), leaves)


def _start(cotangent, shapes):
    """The cotangent with which the reverse pass starts: 1 for a scalar."""
    leaves = jax.tree.leaves(shapes)
    for leaf in leaves:
        floating = jnp.issubdtype(leaf.dtype, jnp.floating)
        require(floating, "f to return floating-point arrays", leaf, "return only these", error=TypeError)
    if cotangent is not None:
        return _like("cotangent", cotangent, "the value of f", shapes, "pass one number for each entry of the value")
    if len(leaves) != 1 or leaves[0].shape:
        repair = "pass cotangent=, the weights of the outputs, or use jax.jacobian for the derivatives of all of them"
        got = ", ".join(map(describe, leaves)) or "nothing"
        require(False, "f to return a scalar, as a reverse pass starts from one number", got, repair)
    return jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), shapes)


def input_labels(closed: ClosedJaxpr, args: tuple) -> list[str]:
    """The names of the inputs in the function, ``x1`` or ``params['w']``; without names, by position."""
    names = closed.jaxpr.debug_info.arg_names
    paths = [jax.tree_util.keystr(path[1:]) for path, _ in jax.tree_util.tree_leaves_with_path(args)]
    places = [path[0].idx + 1 for path, _ in jax.tree_util.tree_leaves_with_path(args)]
    if names is not None and len(names) == len(paths) and all(names):
        return list(names)
    return [f"x{place}{path}" for place, path in zip(places, paths, strict=True)]
