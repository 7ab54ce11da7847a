"""Checks of the values of arrays.

Values are available only where they are concrete (eager calls, and eager ``grad``); there `check_values` raises an
error. Inside ``jit`` or ``vmap`` it cannot. The functions that check values therefore document their result for invalid
values, and take ``check=True``, which passes the condition to ``jax.experimental.checkify`` (under ``jit`` without
``checkify`` JAX raises an error)::

    >>> from jax.experimental import checkify
    >>> from jaxblocks.losses import kl_divergence
    >>> checkified = jax.jit(
    ...     checkify.checkify(lambda p, q: kl_divergence(p, q, check=True))
    ... )
    >>> error, value = checkified(jnp.array([0.5, 0.5]), jnp.array([0.5, 0.25]))
    >>> error.get() is None
    False
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxblocks.checks.errors import public_name, require
from jaxblocks.checks.terminal import warn

__all__ = [
    "as_int32",
    "check_entries",
    "check_range",
    "check_values",
    "checkable",
    "concrete",
    "has_values",
    "reject_traced",
    "warn_of_probabilities",
]


def checkable(x: Any, check: bool) -> Any:
    """The values of ``x`` if they can be checked, else ``None``, so that no unused check is traced.

    Write conditions on them by operators, methods and ``known.__array_namespace__()``, which the arrays of NumPy and of
    JAX both have: concrete values are a `concrete` array, except with ``check=True``, since an eager ``checkify``
    traces only what JAX computes. Under eager ``grad`` the values are available too, without their derivative.

    >>> jax.jit(lambda x: checkable(x, check=False))(jnp.ones(2)) is None
    True
    >>> checkable(jnp.ones(2), check=False)
    array([1., 1.], dtype=float32)
    """
    # In an eager grad this is the concrete primal value, which can be checked.
    x = jax.lax.stop_gradient(x) if isinstance(x, Tracer) else x
    return x if check else None if isinstance(x, Tracer) else concrete(x)


def concrete(x: Any) -> Any:
    """A concrete array as a NumPy array, of which a check needs no compiled program; a traced array as it is.

    On a CPU this copies nothing. From an accelerator at most 1 MB is copied; a larger array stays there, and so does
    one that other processes hold in part.

    >>> type(concrete(jnp.ones(2))).__name__
    'ndarray'
    """
    if not isinstance(x, jax.Array):
        return np.asarray(x)
    stays = isinstance(x, Tracer) or not x.is_fully_addressable
    return x if stays or (x.nbytes > 2**20 and next(iter(x.devices())).platform != "cpu") else np.asarray(x)


def as_int32(x: Any) -> Any:
    """Integers as int32, with -1 for those that it cannot hold, so that no range from 0 contains them.

    >>> as_int32(np.array([2**32 + 5, 3]))
    array([-1,  3], dtype=int32)
    """
    small = x.astype(np.int32)
    return small if x.dtype.itemsize <= 4 else x.__array_namespace__().where(small.astype(x.dtype) == x, small, -1)


def has_values(x: Any, axes: int) -> bool:
    """Whether ``x`` is a real number or array with this number of axes whose entries can be read, for a ``__repr__``.

    In a pytree that a transformation has made, a leaf may be anything: traced, deleted, a shape, a key.

    >>> has_values(jnp.ones(2), 1), has_values(jax.ShapeDtypeStruct((2,), jnp.float32), 1)
    (True, False)
    """
    if not isinstance(x, (jax.Array, np.ndarray, np.number, int, float)) or isinstance(x, Tracer):
        return False
    dtype = getattr(x, "dtype", np.dtype(float))
    real = any(jnp.issubdtype(dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_))
    return real and np.ndim(x) == axes and not (isinstance(x, jax.Array) and x.is_deleted())


def reject_traced(*trees: Any) -> None:
    """Raise a ``TypeError`` where an array is traced, for functions that need values."""
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(trees)):
        require(False, "arrays with values", "a traced array", "call it outside of jax.jit", error=TypeError)


def check_entries(x: Any, holds: Callable, message: str, *, check: bool = False) -> None:
    """`check_values` of ``holds(x)``, an array of booleans, where the values of ``x`` can be checked.

    ``{low}`` and ``{high}`` in ``message`` are the smallest and the largest entry.

    >>> message = "p <= 1, got values up to {high}; divide them"
    >>> check_entries(jnp.array([1.0, 2.0]), lambda known: known <= 1, message)
    Traceback (most recent call last):
    ...
    ValueError: jaxblocks expected p <= 1, got values up to 2.0; divide them.
    """
    known = checkable(x, check)
    if known is not None and known.size:
        check_values(holds(known), message, check=check, low=known.min(), high=known.max())


def check_range(name: str, x: Any, least: float | int, most: Any, repair: str, *, check: bool = False) -> None:
    """Raise a ``ValueError`` where an entry of ``x`` is not from ``least`` to ``most``, as `check_values` does.

    NaN is in every range, so that it is found where it comes from.

    >>> check_range("ids", jnp.array([0, 7, 2]), 0, 6, "make the table larger")
    Traceback (most recent call last):
    ...
    ValueError: jaxblocks expected ids from 0 to 6, got ids from 0 to 7; make the table larger.
    """

    def inside(known):
        integer = jnp.issubdtype(known.dtype, jnp.integer)
        top = min(most, jnp.iinfo(known.dtype).max) if integer else most  # uint8 cannot hold 999
        return ~((known < least) | (known > top))

    message = f"{name} from {least} to {most}, got {name} from {{low}} to {{high}}; {repair}"
    check_entries(x, inside, message, check=check)


def check_values(ok: Any, message: str, *, check: bool = False, **values: Any) -> None:
    """Raise a ``ValueError`` where the boolean array ``ok`` is not all true: "<public name> expected <message>."

    Concrete values are checked at once. Traced values are checked only with
    ``check=True``, through ``checkify.check``; the caller then wraps its function
    in ``checkify.checkify``. Each of ``values`` is an array for a ``{name}`` in ``message``.

    >>> p = jnp.array([0.5, 0.25])
    >>> check_values(
    ...     p.sum() == 1, "p to sum to 1, got {total}; divide by p.sum()", total=p.sum()
    ... )
    Traceback (most recent call last):
    ...
    ValueError: jaxblocks expected p to sum to 1, got 0.75; divide by p.sum().
    """
    # With check=True a traced condition is passed on to checkify instead of being left out.
    known = jnp.all(ok) if check and not isinstance(ok, bool) else checkable(ok, False)
    if isinstance(known, Tracer):
        from jax.experimental import checkify  # imported here, because it imports Pallas

        sentence = f"{public_name()} expected {message}."
        named: dict[str, Any] = {name: jnp.asarray(value) for name, value in values.items()}
        checkify.check(known, sentence, **named)
    elif known is not None and not known.all():
        raise ValueError(f"{public_name()} expected {message}.".format(**{n: f"{v}" for n, v in values.items()}))


_WARNED: set[str] = set()  # the functions that have warned


def warn_of_probabilities(logits: Any) -> None:
    """Warn once in each function where known scores are probabilities: at least two rows, each with the sum 1.

    Rows of zeros and ones do not count, since they may well be scores.
    """
    known, name = checkable(logits, check=False), public_name()
    if name in _WARNED or not isinstance(known, np.ndarray) or known.ndim < 2 or known.size < 4:
        return
    rows = known.reshape(-1, known.shape[-1])
    if len(rows) > 1 and _are_probabilities(rows[:1]) and _are_probabilities(rows) and (rows % 1 != 0).any():
        _WARNED.add(name)
        repair = "pass the scores before the softmax, or their logarithms, jnp.log(p)"
        warn(f"{name} expected logits, got rows >= 0 with sum 1, as of probabilities; {repair}.")


def _are_probabilities(rows: np.ndarray) -> bool:
    with np.errstate(over="ignore"):  # scores beyond float32 are no probabilities
        return bool((rows >= 0).all() and (np.abs(rows.astype(np.float32).sum(-1) - 1) < 1e-3).all())
