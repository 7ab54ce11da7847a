r"""A scan whose gradient stores fewer values and recomputes the others.

    L    the length of the scan
    i    a step: it takes the carry h_i (and x_i) to h_{i+1} (and y_i); h_0 is given
    c    the number of carries that are stored at a time, h_0 among them: the snapshots

Reverse mode reads the carries in reverse order, h_{L-1} first. A plain scan stores the residuals of every
step. A checkpointed scan stores some carries and recomputes the others by running forward from a stored one.
"""

import functools
import math
import operator
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxblocks.ad.checkpointing.binomial import binomial_schedule
from jaxblocks.ad.programs.jaxprs import piece
from jaxblocks.checks.expectations import NonNegativeInt, PositiveInt, checked
from jaxblocks.checks.foreign_arrays import reject_foreign

__all__ = ["Checkpoint", "is_stored", "scan", "stored"]

Checkpoint: TypeAlias = Literal["dots", "body", "sqrt"] | PositiveInt | Callable[..., Any]
"""What the gradient of a scan stores: a name, a number of snapshots, or a policy of ``jax.checkpoint_policies``."""


def stored(x: Array) -> Array:
    """x, marked as a value that ``checkpoint="dots"`` stores and, with `is_stored` as policy, ``jax.checkpoint`` too.

    The mark is a conversion to the precision that x has already, which the compiler removes. In contrast to
    ``checkpoint_name``, it can be transposed.
    """
    precision = jnp.finfo(x.dtype)
    return lax.reduce_precision(x, precision.nexp, precision.nmant)


def is_stored(primitive, *_, **__) -> bool:
    """The policy of `jax.checkpoint` that stores the values marked by `stored`."""
    return primitive is lax.reduce_precision_p


Carry = TypeVar("Carry")
X = TypeVar("X")
Y = TypeVar("Y")

_POLICIES = {
    "dots": jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.dots_with_no_batch_dims_saveable, is_stored
    ),
    "body": None,
}


@checked
def scan(
    f: Callable[[Carry, X], tuple[Carry, Y]],
    init: Carry,
    xs: X = None,  # type: ignore[assignment]
    *,
    length: int | None = None,
    reverse: bool = False,
    unroll: NonNegativeInt | bool = 1,
    checkpoint: Checkpoint | None = None,
) -> tuple[Carry, Y]:
    r"""``jax.lax.scan`` with a choice of the values that its gradient stores: $(h_{i+1}, y_i) = f(h_i, x_i)$.

    Args:
        f: one step, from a carry and a slice of ``xs`` to the next carry and an output. It may close over
            arrays; gradients with respect to them are computed too.
        init: the carry $h_0$.
        xs: the inputs of the steps, along the first axis of each leaf; ``None`` with ``length``.
        length: the number of steps; needed only where ``xs`` is ``None``.
        reverse: whether to scan from the last slice to the first.
        unroll: steps per iteration of the loop (with snapshots, of the forward pass only).
        checkpoint: the values that the gradient of $L$ steps stores.

            ========  =======================================  =======================================
            value     stored at the peak                       forward steps in all
            ========  =======================================  =======================================
            ``None``  everything that the derivatives read     $L$
            "dots"    carries, products of matrices, results   $L$, and elementwise work again
                      of parts of `attention`
            a policy  carries and what the policy saves        of ``jax.checkpoint_policies``
            "body"    $L$ carries                              $2L$
            "sqrt"    about $2√L$ carries                      $3L$
            ``c``     $c$ carries, placed optimally            $L + 1$ and ``binomial_steps(L, c)``
            ========  =======================================  =======================================

    Returns:
        The last carry and the stacked outputs.

    Raises:
        ValueError: for a ``checkpoint`` that is none of these.
        TypeError: from ``jax.lax.scan``, if ``f`` changes the type of the carry.

    "sqrt" also stores about $√L$ slices of ``xs`` (and of their gradient), so it saves memory where the
    carry is large compared with a slice.

    Every transformation applies, except to snapshots (``checkpoint=c``): they define a rule for reverse mode only, so
    JAX rejects ``jax.jvp`` and ``jax.jacfwd`` of such a scan (forward mode stores nothing: omit ``checkpoint``)
    and reverse mode over reverse mode. Forward over reverse mode works: ``jax.hessian`` and `hvp`. Functions of this
    subpackage that need forward mode, such as `root` and `laplacian`, push it forward by the pullback of its pullback.

    >>> w = jnp.linspace(0.5, 0.6, 100)
    >>> def loss(w, checkpoint):
    ...     return scan(
    ...         lambda h, w: (jnp.tanh(w * h + 1), None), 0.0, w, checkpoint=checkpoint
    ...     )[0]
    >>> bool(jnp.allclose(jax.grad(loss)(w, 5), jax.grad(loss)(w, None)))
    True

    Source: Griewank & Walther 2000, Algorithm 799: revolve (doi:10.1145/347837.347846); Chen et al. 2016, Training
    deep nets with sublinear memory cost (the square root; arXiv:1604.06174); Huszar, DeepNN lecture 3 (the memory of
    reverse mode).
    """
    reject_foreign("init", init)
    reject_foreign("xs", xs)
    if checkpoint is None:
        return lax.scan(f, init, xs, length, reverse, unroll)
    if callable(checkpoint) or checkpoint in _POLICIES:
        policy = checkpoint if callable(checkpoint) else _POLICIES[checkpoint]
        step = jax.checkpoint(f, prevent_cse=False, policy=policy)
        return lax.scan(step, init, xs, length, reverse, unroll)
    # lax.scan itself checks the arguments (unequal lengths, a carry that changes its type), for the original function.
    out = jax.eval_shape(lambda init, xs: lax.scan(f, init, xs, length), init, xs)
    steps = int(length) if length is not None else np.shape(jax.tree.leaves(xs)[0])[0]
    if steps < 2:  # there is nothing to recompute
        return lax.scan(f, init, xs, length, reverse, unroll)
    init, xs = jax.tree.map(_as_type, init, out[0]), jax.tree.map(jnp.asarray, xs)
    step, consts = _hoisted(f, init, jax.tree.map(lambda x: x[0], xs))
    if isinstance(checkpoint, str):  # "sqrt"
        run = _blocks
    else:
        run = functools.partial(_snapshots, snapshots=min(operator.index(checkpoint), steps))
    return _keys(run(step, consts, _key_data(init), _key_data(xs), steps, reverse, unroll), out)


# ---- blocks of about the square root of the length -----------------------------------------


def _blocks(step, consts, init, xs, length, reverse, unroll):
    """A scan over blocks that store their first carry; each block is a scan, which the gradient recomputes."""
    step = jax.checkpoint(functools.partial(step, consts), prevent_cse=False)
    size = _block_size(length)
    rest = length % size  # run first, so that the blocks that follow have equal lengths
    ys_of_rest = None
    if rest:
        cut = length - rest if reverse else rest
        before, after = jax.tree.map(lambda x: x[:cut], xs), jax.tree.map(lambda x: x[cut:], xs)
        init, ys_of_rest = lax.scan(step, init, after if reverse else before, rest, reverse, unroll)
        xs = before if reverse else after

    def block(carry, xs):
        return lax.scan(step, carry, xs, size, reverse, unroll)

    xs = jax.tree.map(lambda x: x.reshape(length // size, size, *x.shape[1:]), xs)
    carry, ys = lax.scan(jax.checkpoint(block, prevent_cse=False), init, xs, length // size, reverse)
    ys = jax.tree.map(lambda y: y.reshape(length - rest, *y.shape[2:]), ys)
    if rest:
        before, after = (ys, ys_of_rest) if reverse else (ys_of_rest, ys)
        ys = jax.tree.map(lambda *parts: jnp.concatenate(parts), before, after)
    return carry, ys


def _block_size(length: int) -> int:
    """A divisor of ``length`` near its square root, if one exists, since a remainder requires a copy of ``xs``."""
    root = max(2, math.isqrt(length))
    near = [size for size in range(root, 2 * root + 1) if length % size == 0]
    return near[0] if near else root


# ---- snapshots ------------------------------------------------------------------------------


def _snapshots(step, consts, init, xs, length, reverse, unroll, *, snapshots):
    """A scan with a custom rule for reverse mode that follows a binomial schedule."""
    steps = np.arange(length)[::-1] if reverse else np.arange(length)  # the step that reads each slice of xs
    schedule = binomial_schedule(length, snapshots)
    last, scratch = length - 1, snapshots  # carries that are not stored are written to the scratch slot
    in_first_pass = (schedule.stored_for == last) | (np.arange(length) == 0)
    write = np.where(in_first_pass, schedule.slot, scratch)
    read = schedule.slot[schedule.begins]
    read[last] = write[last]

    def forward(consts, init, xs):
        return lax.scan(functools.partial(step, consts), init, xs, length, reverse, unroll)

    def forward_storing(consts, init, xs):
        def storing(state, now):
            carry, store = state
            x, slot = now
            store = _put(store, carry, slot)
            carry, y = step(consts, carry, x)
            return (carry, store), y

        store = jax.tree.map(lambda h: jnp.broadcast_to(h[None], (snapshots + 1, *h.shape)), init)
        slots = jnp.asarray(write[steps], jnp.int32)
        (carry, store), ys = lax.scan(storing, (init, store), (xs, slots), length, reverse, unroll)
        return (carry, ys), (consts, xs, store)

    def backward(residuals, cotangents):
        consts, xs, store = residuals
        carry_bar, ys_bar = map(_floating, cotangents)
        stored_for, slot_of = jnp.asarray(schedule.stored_for, jnp.int32), jnp.asarray(schedule.slot, jnp.int32)

        def x_at(i):
            return _entry(xs, length - 1 - i if reverse else i)

        def reverse_one(state, now):
            carry_bar, consts_bar, store = state
            i, begin, slot, y_bar = now

            def advance(state):
                j, carry, store = state
                carry, _ = step(consts, carry, x_at(j))
                store = _put(store, carry, jnp.where(stored_for[j + 1] == i, slot_of[j + 1], scratch))
                return j + 1, carry, store

            _, carry, store = lax.while_loop(lambda state: state[0] < i, advance, (begin, _entry(store, slot), store))
            given = consts, carry, x_at(i)

            def of_floats(*floats):
                return _floating(step(*map(_rejoined, floats, given)))

            _, pullback = jax.vjp(of_floats, *map(_floating, given))
            consts_more, carry_bar, x_bar = pullback((carry_bar, y_bar))
            return (carry_bar, jax.tree.map(jnp.add, consts_bar, consts_more), store), x_bar

        plan = [jnp.asarray(table[steps], jnp.int32) for table in (np.arange(length), schedule.begins, read)]
        zero = jax.tree.map(jnp.zeros_like, _floating(consts))
        (carry_bar, consts_bar, _), xs_bar = lax.scan(
            reverse_one, (carry_bar, zero, store), (*plan, ys_bar), length, not reverse
        )
        return consts_bar, carry_bar, xs_bar

    run = jax.custom_vjp(forward)
    run.defvjp(forward_storing, backward)
    return run(consts, init, xs)


def _hoisted(f, carry, x):
    """``f`` as ``step(consts, carry, x)``, and ``consts``: all arrays that it closes over, with keys as key data."""
    closed, out = jax.make_jaxpr(f, return_shape=True)(carry, x)
    jaxpr, like = closed.jaxpr, (closed.consts, carry, x)
    run = piece(jaxpr, jaxpr.eqns, [*jaxpr.constvars, *jaxpr.invars], jaxpr.outvars)

    def step(*args):
        after, y = jax.tree.unflatten(jax.tree.structure(out), run(*jax.tree.leaves(_keys(args, like))))
        return _key_data((jax.tree.map(_as_type, after, carry), y))

    return step, _key_data(closed.consts)


def _as_type(x, like):
    """``x`` as an array of the dtype of ``like``, without a weak type."""
    return lax.convert_element_type(x, like.dtype) if jnp.issubdtype(like.dtype, jnp.number) else jnp.asarray(x)


def _floating(tree):
    """The floating-point leaves of a tree, with ``None`` for the others."""
    return jax.tree.map(lambda x: x if jnp.issubdtype(x.dtype, jnp.inexact) else None, tree)


def _rejoined(floats, tree):
    """``tree`` with its floating-point leaves replaced by ``floats``: the inverse of `_floating`."""
    return jax.tree.map(lambda x, new: x if new is None else new, tree, floats, is_leaf=lambda x: x is None)


def _key_data(tree):
    """Random keys replaced by their data: JAX would report the recomputation of a step as the reuse of its key."""
    return jax.tree.map(lambda x: jax.random.key_data(x) if _is_key(x) else x, tree)


def _keys(tree, like):
    """The inverse of `_key_data`; the shapes of ``like`` may differ."""

    def key(data, like):
        impl = []
        jax.eval_shape(lambda key: impl.append(jax.random.key_impl(key)), like)
        return jax.random.wrap_key_data(data, impl=impl[0])

    return jax.tree.map(lambda x, like: key(x, like) if _is_key(like) else x, tree, like)


def _is_key(x) -> bool:
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _put(stack, tree, index):
    return jax.tree.map(lambda s, x: lax.dynamic_update_index_in_dim(s, x, index, 0), stack, tree)


def _entry(stack, index):
    return jax.tree.map(lambda s: lax.dynamic_index_in_dim(s, index, 0, keepdims=False), stack)
