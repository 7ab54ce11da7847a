r"""The scan of a recurrent cell whose gradients of kernels are products over many time steps.

The kernels of a cell enter by products, $z_t = p(θ, h_{t-1}, x_t)$; the rest of the cell is elementwise,
$(y_t, h_t) = u(θ, z_t, h_{t-1})$. The gradient of ``jax.lax.scan`` adds one small product to the gradient of
each kernel at every step, and stores all factors of the elementwise derivative. The rule here stores $z_t$ and
$h_{t-1}$ only, from which it computes those factors again, and splits the derivative of the products,

.. math::

    dz_t = ∂_{θ, x} p (dθ, dx_t) + ∂_h p dh_{t-1} .

The first part does not depend on earlier steps, so it is one product for a chunk of steps, and so is its transpose, the
gradient of the kernels. On CPU the gradient of an LSTM takes 0.5 (4 sequences) to 0.9 (64 sequences) of the time, and
two thirds of the memory. Derivatives in forward mode store the same values, where those of a scan store none.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

from jaxblocks.backend.varying import varying_like
from jaxblocks.core.pairs import StatefulLayer

__all__ = ["CellParts", "cell_of_parts", "parts_of", "scan_cell"]

# Steps per chunk. The derivatives of z of one chunk stay in the cache; with 8 or 32 steps the time is about the same.
CHUNK = 16


class CellParts(NamedTuple):
    """A cell in two parts: its ``apply(params, carry, x)`` is ``update(params, products(params, carry, x), carry)``.

    `Recurrent` scans the parts, and `RecurrentDropout` gives another carry to the products.

    Attributes:
        products: the products of the kernels with input and carry, a tree of arrays.
        update: ``(outputs, carry)`` from them; elementwise, so that it costs little to compute twice.
        scanned: whether the products are affine in the carry, as `scan_cell` needs, and it gains time.
    """

    products: Callable
    update: Callable
    scanned: bool = True


def cell_of_parts(
    init: Callable, apply: Callable, products: Callable, update: Callable, scanned: bool = True
) -> StatefulLayer:
    """A cell that declares its parts; its ``apply`` is equal to them, and checks its arguments."""
    apply.parts = CellParts(products, update, scanned)  # type: ignore[attr-defined]
    return StatefulLayer(init, apply)


def parts_of(apply: Callable) -> CellParts | None:
    """The parts of a cell that `cell_of_parts` made, or ``None``."""
    return getattr(apply, "parts", None)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2, 3))
def scan_cell(step: Callable, parts: CellParts, reverse: bool, unroll: int | bool, params, carry, valid, xs):
    """``lax.scan`` of ``step(params, carry, (valid, x))``, along the first axis of the mask ``valid`` and of ``xs``.

    The parts are those of ``step``: ``update(params, products(params, carry, x), carry, valid)`` is
    ``(outputs, carry)``.
    """
    last, outputs = lax.scan(functools.partial(step, params), carry, (valid, xs), reverse=reverse, unroll=unroll)
    return last, _with_batch_first(outputs)


@functools.partial(scan_cell.defjvp, symbolic_zeros=True)
def _rule(step, parts, reverse, unroll, primals, tangents):
    params, first, valid, xs = primals
    d_params, d_first, _, d_xs = tangents  # a mask has no tangent

    def run(carry, now):
        # Traced for the checks in it: where a gradient is not under jit, JAX calls this rule and not the function.
        jax.eval_shape(step, params, carry, now)
        valid, x = now
        z = parts.products(params, carry, x)
        outputs, after = parts.update(params, z, carry, valid)
        return after, (outputs, z, carry)

    run_chunk = functools.partial(lax.scan, run, reverse=reverse, unroll=unroll)
    chunk = xs.shape[0] if unroll is True else CHUNK
    # What the steps store stays in chunks: to cut it would copy the largest temporary arrays.
    given = _in_chunks((valid, xs, None if _is_zero(d_xs) else d_xs), chunk)
    last, stored = _scan_chunks(run_chunk, first, [None if part is None else part[:2] for part in given], reverse)
    outputs = _joined([None if part is None else part[0] for part in stored])
    # Time is one more axis of the batch, which `affine_map` merges on one device; on a mesh, the first axis of x must
    # be the batch.
    alone = jax.sharding.get_abstract_mesh().empty
    products = parts.products if alone else jax.vmap(parts.products, in_axes=(None, 0, 0))

    def push_chunk(d_carry, chunk):
        (valid, xs, d_xs), zs, carries = chunk
        d_xs = zero if d_xs is None else d_xs
        d_zs = _push(lambda params, xs: products(params, carries, xs), (params, xs), (d_params, d_xs))
        return lax.scan(push, d_carry, (valid, xs, zs, carries, d_zs), reverse=reverse, unroll=unroll)

    def push(d_carry, now):
        valid, x, z, carry, d_z = now
        of_carry = jax.jvp(lambda carry: parts.products(params, carry, x), (carry,), (d_carry,))[1]

        # The factors of the elementwise derivative are several arrays of the size of z: computed again, not stored.
        @functools.partial(jax.checkpoint, prevent_cse=False)
        def push_update(z, carry, d_z, d_carry):
            update = lambda params, z, carry: parts.update(params, z, carry, valid)
            return _push(update, (params, z, carry), (d_params, d_z, d_carry))

        return push_update(z, carry, jax.tree.map(jnp.add, d_z, of_carry), d_carry)[::-1]

    zero = d_xs if _is_zero(d_xs) else None
    moving = [tangent for tangent in jax.tree.leaves((d_params, d_xs)) if not _is_zero(tangent)]
    d_first = jax.tree.map(lambda x, d_x: jnp.zeros_like(x) if _is_zero(d_x) else d_x, first, d_first)
    over = [None if kept is None else (part, *kept[1:]) for part, kept in zip(given, stored, strict=True)]
    d_last, d_outputs = _scan_chunks(push_chunk, varying_like(d_first, first, moving), over, reverse)
    return (last, outputs), (d_last, _joined(d_outputs))


def _in_chunks(over, size: int) -> list:
    """Slices along the first axis: chunks of equal size with an axis before it, and the rest; one may be ``None``."""
    steps = jax.tree.leaves(over)[0].shape[0]
    whole = steps // size * size if isinstance(steps, int) and steps > size else 0  # jax.export has symbolic ones too
    if not whole:
        return [None, over]
    chunks = jax.tree.map(lambda a: a[:whole].reshape(whole // size, size, *a.shape[1:]), over)
    return [chunks, jax.tree.map(lambda a: a[whole:], over) if whole < steps else None]


def _joined(parts: list):
    """The arrays that `_in_chunks` has cut."""
    chunks, rest = parts
    parts = [jax.tree.map(lambda a: a.reshape(a.shape[0] * a.shape[1], *a.shape[2:]), chunks), rest]
    return jax.tree.map(
        lambda *arrays: _with_batch_first(jnp.concatenate(arrays)), *(part for part in parts if part is not None)
    )


def _with_batch_first(x):
    """x, where a surrounding `jax.vmap` has its axis in front.

    For a function that is jitted inside of a `jax.vmap`, JAX takes the place of this axis from the function, and looks
    there for the values of the rule too, which come from other operations.
    """
    return jax.tree.map(lambda a: jnp.squeeze(jnp.expand_dims(a, 0), 0), x)


def _scan_chunks(run: Callable, carry, over: list, reverse: bool):
    """The last carry of ``run(carry, slices)`` over chunks and the rest, and its outputs, cut in the same way."""
    runs = functools.partial(lax.scan, run, reverse=reverse), run
    outputs: list = [None, None]
    for part in (1, 0) if reverse else (0, 1):  # the rest is last in time
        if over[part] is not None:
            carry, outputs[part] = runs[part](carry, over[part])
    return carry, outputs


def _is_zero(tangent: Any) -> bool:
    return isinstance(tangent, SymbolicZero)


def _push(function: Callable, primals: tuple, tangents: tuple) -> Any:
    """The tangent of the result of a function; leaves whose tangent is a symbolic zero are constants."""
    leaves, structure = jax.tree.flatten(primals)
    along = structure.flatten_up_to(tangents)
    moves = [not _is_zero(tangent) for tangent in along]

    def of_moving(moving):
        moving = iter(moving)
        now = [next(moving) if m else leaf for m, leaf in zip(moves, leaves, strict=True)]
        return function(*structure.unflatten(now))

    moving = lambda values: [value for m, value in zip(moves, values, strict=True) if m]
    return jax.jvp(of_moving, (moving(leaves),), (moving(along),))[1]
