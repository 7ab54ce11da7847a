r"""A scan whose gradient keeps little: what reverse mode stores, and what it computes again instead.

    L    the length of the scan
    i    a step: it takes the carry h_i (and x_i) to h_{i+1} (and y_i); h_0 is given
    c    how many carries are kept at a time, h_0 among them: the snapshots

Reverse mode needs the carries in reverse order, h_{L-1} first. A plain scan keeps what every
step needs. A schedule keeps some carries and gets the others by stepping on from a kept one.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import PyTree

from jaxblocks.ad.jaxlib_check import warn_if_jaxlib_is_wrong
from jaxblocks.ad.jaxprs import piece
from jaxblocks.checks import require_whole

__all__ = ["binomial_schedule", "binomial_steps", "require_checkpoint", "scan"]

_POLICIES = {None: None, "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable, "body": None, "sqrt": None}


def scan(
    f: Callable,
    init: PyTree,
    xs: PyTree = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    *,
    checkpoint: str | int | Callable | None = None,
) -> tuple[PyTree, PyTree]:
    r"""``jax.lax.scan``, with a choice of what its gradient keeps: :math:`(h_{i+1}, y_i) = f(h_i, x_i)`.

    Args:
        f: one step, from a carry and a slice of ``xs`` to the next carry and an output. It may close over
            arrays, differentiated ones too.
        init: the carry :math:`h_0`.
        xs: what is scanned over, along the first axis of its leaves; ``None`` with ``length``.
        length: how many steps.
        reverse: from the last slice to the first.
        unroll: steps per iteration of the loop (of the sweep forward, where there are snapshots).
        checkpoint: what the gradient keeps of :math:`L` steps.

            ========  =======================================  =======================================
            value     kept at its peak                         steps forward in all
            ========  =======================================  =======================================
            ``None``  everything that the derivatives read     :math:`L`
            "dots"    carries and products of matrices         :math:`L`, and elementwise work again
            a policy  carries and what it says                 of ``jax.checkpoint_policies``
            "body"    :math:`L` carries                        :math:`2L`
            "sqrt"    about :math:`2\sqrt L` carries           :math:`3L`
            ``c``     :math:`c` carries, the best places       :math:`L + 1` and ``binomial_steps(L, c)``
            ========  =======================================  =======================================

    Returns:
        The last carry and the outputs, stacked.

    Raises:
        ValueError: for a ``checkpoint`` that is none of these.
        TypeError: from ``jax.lax.scan``, where ``f`` changes the type of the carry.

    "sqrt" also holds about :math:`\sqrt L` slices of ``xs`` (and of their gradient), so it pays where the carry is
    large against a slice.

    Every transformation applies, with the exception of snapshots (``checkpoint=c``): they are a rule for
    reverse mode, so that ``jax.jvp`` and ``jax.jacfwd`` of the scan itself are refused by JAX (forward mode
    keeps nothing: leave ``checkpoint`` out), and so is reverse mode twice. Forward over reverse works:
    ``jax.hessian`` and `hvp`.

    >>> w = jnp.linspace(0.5, 0.6, 100)
    >>> def loss(w, checkpoint):
    ...     return scan(lambda h, w: (jnp.tanh(w * h + 1), None), 0.0, w, checkpoint=checkpoint)[0]
    >>> bool(jnp.allclose(jax.grad(loss)(w, 5), jax.grad(loss)(w, None)))
    True

    Source: Griewank & Walther 2000, Algorithm 799: revolve; Chen et al. 2016, Training deep nets with sublinear
    memory cost (the square root); Huszar, DeepNN lecture 3 (reverse mode's memory).
    """
    checkpoint = require_checkpoint("scan", checkpoint)
    if checkpoint is None:
        return lax.scan(f, init, xs, length, reverse, unroll)
    if checkpoint != "sqrt" and not isinstance(checkpoint, int):
        policy = checkpoint if callable(checkpoint) else _POLICIES[checkpoint]
        step = jax.checkpoint(f, prevent_cse=False, policy=policy)
        return lax.scan(step, init, xs, length, reverse, unroll)
    # Any complaint (lengths that differ, a carry that changes) is lax.scan's, about the function that was given.
    out = jax.eval_shape(lambda init, xs: lax.scan(f, init, xs, length), init, xs)
    steps = int(length) if length is not None else np.shape(jax.tree.leaves(xs)[0])[0]
    if steps < 2:  # nothing to choose
        return lax.scan(f, init, xs, length, reverse, unroll)
    init, xs = jax.tree.map(_as_type, init, out[0]), jax.tree.map(jnp.asarray, xs)
    step, consts = _hoisted(f, init, jax.tree.map(lambda x: x[0], xs))
    run = _blocks if checkpoint == "sqrt" else functools.partial(_snapshots, snapshots=min(checkpoint, steps))
    return _keys(run(step, consts, _key_data(init), _key_data(xs), steps, reverse, unroll), out)


def require_checkpoint(where: str, checkpoint):
    """``checkpoint`` as `scan` understands it; a ``ValueError`` unless it is a name, a policy or a number >= 1.

    >>> require_checkpoint("Repeat", "some")
    Traceback (most recent call last):
    ...
    ValueError: Repeat expects checkpoint to be None, 'dots', 'body', 'sqrt', a policy of jax.checkpoint_policies or \
a number of snapshots, but 'some' came.
    """
    if callable(checkpoint) or checkpoint is None or (isinstance(checkpoint, str) and checkpoint in _POLICIES):
        return checkpoint
    if isinstance(checkpoint, str) or not hasattr(checkpoint, "__index__") or isinstance(checkpoint, bool):
        raise ValueError(
            f"{where} expects checkpoint to be None, 'dots', 'body', 'sqrt', a policy of jax.checkpoint_policies or "
            f"a number of snapshots, but {checkpoint!r} came."
        )
    return require_whole(where, "checkpoint", checkpoint)


# ---- blocks of about the square root of the length -----------------------------------------


def _blocks(step, consts, init, xs, length, reverse, unroll):
    """A scan over blocks that keep the carry they begin with; each is itself a scan, run again by the gradient."""
    step = jax.checkpoint(functools.partial(step, consts), prevent_cse=False)
    size = _block_size(length)
    rest = length % size  # run first, so that the blocks which follow are alike

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
    """A divisor of ``length`` near its root, where there is one: a rest must be cut off, which copies ``xs``."""
    root = max(2, math.isqrt(length))
    near = [size for size in range(root, 2 * root + 1) if length % size == 0]
    return near[0] if near else root


# ---- snapshots at the best places ----------------------------------------------------------


def binomial_steps(length: int, snapshots: int) -> int:
    r"""The fewest steps forward with which ``length`` steps can be reversed, keeping ``snapshots`` carries at a time.

    :math:`t(L, c) = rL - \binom{c + r}{c + 1}` with the smallest :math:`r` for which
    :math:`\binom{c + r}{c} \ge L`. The first carry is one of the :math:`c`; the last step,
    whose output the reversal does not need, is not counted, nor is the one step that each pullback linearizes.

    >>> binomial_steps(10, 3), binomial_steps(1024, 16)
    (15, 2956)

    Source: Griewank & Walther 2000, Algorithm 799: revolve, proposition 1.
    """
    length = require_whole("binomial_steps", "length", length)
    c = require_whole("binomial_steps", "snapshots", snapshots)
    r = _repetitions(length, c)
    return r * length - math.comb(c + r, c + 1)


def _repetitions(length: int, c: int) -> int:
    """How often a step is run at most: the smallest r with binomial(c + r, c) >= length."""
    r = 0
    while math.comb(c + r, c) < length:
        r += 1
    return r


class Schedule(NamedTuple):
    """What `binomial_schedule` returns; each is an array of ``length`` numbers.

    Attributes:
        begins: to reverse step i, step on from the snapshot of the carry at ``begins[i]``. (The first sweep ends
            at the last step: there it says that no step is left to do.)
        stored_for: on the way to step ``stored_for[i]`` the carry at i is stored (at -1: on no way, but ``0``,
            which is stored first of all).
        slot: where the carry at i is stored, below ``snapshots``.

    >>> binomial_schedule(4, 2).begins
    array([0, 1, 1, 3])
    """

    begins: np.ndarray
    stored_for: np.ndarray
    slot: np.ndarray


def binomial_schedule(length: int, snapshots: int) -> Schedule:
    """Which carries to keep, and when, so that ``length`` steps are reversed by `binomial_steps` steps forward.

    The first sweep is the way to the last step, ``length - 1``, and ends there: reversing it
    costs no more steps. Each carry is stored once at most, for a snapshot at i is last read
    to reverse step i, and then nobody asks for it.

    >>> schedule = binomial_schedule(10, 3)
    >>> schedule.begins
    array([0, 1, 2, 0, 4, 5, 4, 7, 7, 9])
    >>> 9 + sum(range(9)) - sum(schedule.begins[:9].tolist()) == binomial_steps(10, 3)
    True
    """
    length = require_whole("binomial_schedule", "length", length)
    snapshots = require_whole("binomial_schedule", "snapshots", snapshots)
    begins, stored_for, slot = np.arange(length), np.full(length, -1), np.zeros(length, int)
    intervals = [(0, length, 0, True)]  # from, to, slot of the first carry, whether a way begins there
    while intervals:
        start, end, depth, new_way = intervals.pop()
        if new_way and end < length:
            begins[end - 1] = start
        free = snapshots - depth  # the one at start included
        if free == 1:
            begins[start : end - 1] = start
        if free == 1 or end - start == 1:
            continue
        cut = start + _advance(end - start, free)
        stored_for[cut], slot[cut] = end - 1, depth + 1
        intervals += [(start, cut, depth, True), (cut, end, depth + 1, False)]  # the right one first
    return Schedule(begins, stored_for, slot)


def _advance(length: int, c: int) -> int:
    """How far to step before the next snapshot: one of the best cuts, by the sizes that r repetitions reach."""
    r = _repetitions(length, c)
    shorter = math.comb(c + r - 2, c) if r > 1 else 0
    return max(1, shorter, length - math.comb(c - 1 + r, c - 1))


def _snapshots(step, consts, init, xs, length, reverse, unroll, *, snapshots):
    """A scan with a rule of its own for reverse mode."""
    warn_if_jaxlib_is_wrong()
    places = np.arange(length)[::-1] if reverse else np.arange(length)  # the step at each place of xs
    schedule = binomial_schedule(length, snapshots)
    first, scratch = length - 1, snapshots
    on_first = (schedule.stored_for == first) | (np.arange(length) == 0)
    write = np.where(on_first, schedule.slot, scratch)
    read = schedule.slot[schedule.begins]
    read[first] = write[first]

    def forward(consts, init, xs):
        return lax.scan(functools.partial(step, consts), init, xs, length, reverse, unroll)

    def forward_keeping(consts, init, xs):
        def keeping(state, now):
            carry, store = state
            x, slot = now
            store = _put(store, carry, slot)
            carry, y = step(consts, carry, x)
            return (carry, store), y

        store = jax.tree.map(lambda h: jnp.broadcast_to(h[None], (snapshots + 1, *h.shape)), init)
        slots = jnp.asarray(write[places], jnp.int32)
        (carry, store), ys = lax.scan(keeping, (init, store), (xs, slots), length, reverse, unroll)
        return (carry, ys), (consts, xs, store)

    def backward(kept, cotangents):
        consts, xs, store = kept
        carry_bar, ys_bar = map(_floating, cotangents)
        stored_for, slot_of = jnp.asarray(schedule.stored_for, jnp.int32), jnp.asarray(schedule.slot, jnp.int32)

        def x_at(i):
            return _at(xs, length - 1 - i if reverse else i)

        def reverse_one(state, now):
            carry_bar, consts_bar, store = state
            i, begin, slot, y_bar = now

            def advance(state):
                j, carry, store = state
                carry, _ = step(consts, carry, x_at(j))
                store = _put(store, carry, jnp.where(stored_for[j + 1] == i, slot_of[j + 1], scratch))
                return j + 1, carry, store

            _, carry, store = lax.while_loop(lambda state: state[0] < i, advance, (begin, _at(store, slot), store))
            given = consts, carry, x_at(i)

            def of_floats(*floats):
                return _floating(step(*map(_rejoined, floats, given)))

            _, pullback = jax.vjp(of_floats, *map(_floating, given))
            consts_more, carry_bar, x_bar = pullback((carry_bar, y_bar))
            return (carry_bar, jax.tree.map(jnp.add, consts_bar, consts_more), store), x_bar

        plan = [jnp.asarray(table[places], jnp.int32) for table in (np.arange(length), schedule.begins, read)]
        zero = jax.tree.map(jnp.zeros_like, _floating(consts))
        (carry_bar, consts_bar, _), xs_bar = lax.scan(
            reverse_one, (carry_bar, zero, store), (*plan, ys_bar), length, not reverse
        )
        return consts_bar, carry_bar, xs_bar

    run = jax.custom_vjp(forward)
    run.defvjp(forward_keeping, backward)
    return run(consts, init, xs)


def _hoisted(f, carry, x):
    """``f`` as ``step(consts, carry, x)``, with all arrays that it closes over, and these; keys are numbers in all."""
    closed, out = jax.make_jaxpr(f, return_shape=True)(carry, x)
    jaxpr, like = closed.jaxpr, (closed.consts, carry, x)
    run = piece(jaxpr, jaxpr.eqns, [*jaxpr.constvars, *jaxpr.invars], jaxpr.outvars)

    def step(*args):
        after, y = jax.tree.unflatten(jax.tree.structure(out), run(*jax.tree.leaves(_keys(args, like))))
        return _key_data((jax.tree.map(_as_type, after, carry), y))

    return step, _key_data(closed.consts)


def _as_type(x, like):
    """``x`` as an array of the type of ``like``, none of it weak."""
    return lax.convert_element_type(x, like.dtype) if jnp.issubdtype(like.dtype, jnp.number) else jnp.asarray(x)


def _floating(tree):
    """The leaves that have derivatives, with ``None`` for the others."""
    return jax.tree.map(lambda x: x if jnp.issubdtype(x.dtype, jnp.inexact) else None, tree)


def _rejoined(floats, tree):
    """``tree`` with its floating-point leaves replaced: what `_floating` took apart."""
    return jax.tree.map(lambda x, new: x if new is None else new, tree, floats, is_leaf=lambda x: x is None)


def _key_data(tree):
    """Numbers in the place of random keys, which would seem to be used twice: each step draws again what it drew."""
    return jax.tree.map(lambda x: jax.random.key_data(x) if _is_key(x) else x, tree)


def _keys(tree, like):
    """The reverse of `_key_data`; ``like`` may have other shapes."""

    def key(data, like):
        impl = []
        jax.eval_shape(lambda key: impl.append(jax.random.key_impl(key)), like)
        return jax.random.wrap_key_data(data, impl=impl[0])

    return jax.tree.map(lambda x, like: key(x, like) if _is_key(like) else x, tree, like)


def _is_key(x) -> bool:
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _put(stack, tree, index):
    return jax.tree.map(lambda s, x: lax.dynamic_update_index_in_dim(s, x, index, 0), stack, tree)


def _at(stack, index):
    return jax.tree.map(lambda s: lax.dynamic_index_in_dim(s, index, 0, keepdims=False), stack)
