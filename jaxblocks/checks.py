"""Checks that speak in sentences: what was expected, what came, where, what to do.

Shapes and dtypes are known while JAX traces, so checks on them always run and
cost nothing under ``jit``. Values are known only where they are concrete: there
(eager calls, and eager ``grad``) a bad value raises at once. Inside ``jit`` or ``vmap``
it cannot, so the functions that look at values document what they return then, and take
``check=True``, which hands the condition to ``jax.experimental.checkify`` (under ``jit`` alone JAX
refuses it, and says so)::

    >>> from jax.experimental import checkify
    >>> from jaxblocks.losses import kl_divergence
    >>> checked = jax.jit(checkify.checkify(lambda p, q: kl_divergence(p, q, check=True)))
    >>> error, value = checked(jnp.array([0.5, 0.5]), jnp.array([0.5, 0.25]))
    >>> error.get() is None
    False
"""

import operator

import jax
import jax.numpy as jnp

__all__ = [
    "check_values",
    "checkable",
    "describe",
    "describe_any",
    "require_floating",
    "require_key",
    "require_mask",
    "require_whole",
]


def describe(x) -> str:
    """Dtype and shape of an array in words, as the error sentences print them.

    >>> describe(jnp.zeros((2, 3)))
    'float32 (2, 3)'
    """
    x = x if hasattr(x, "dtype") and hasattr(x, "shape") else jnp.asarray(x)
    return f"{x.dtype} {tuple(x.shape)}"


def describe_any(x) -> str:
    """What an argument is, in words: an array by its dtype and shape, anything else by its type.

    >>> describe_any(jnp.zeros(2)), describe_any(None), describe_any(3)
    ('float32 (2,)', 'None', 'an int')
    """
    if hasattr(x, "dtype") and hasattr(x, "shape"):
        return describe(x)
    name = type(x).__name__
    return "None" if x is None else f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def require_floating(where: str, **arrays) -> None:
    """Raise a ``TypeError`` unless every named array holds floating-point (or complex) numbers.

    >>> require_floating("Dense", x=jnp.arange(3))
    Traceback (most recent call last):
    ...
    TypeError: Dense expects floating-point x, but int32 (3,) came; convert it with x.astype(jnp.float32).
    """
    for name, x in arrays.items():
        if not hasattr(x, "dtype"):
            raise TypeError(
                f"{where} expects an array {name}, but {describe_any(x)} came; convert it with jnp.asarray({name})."
            )
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            raise TypeError(
                f"{where} expects floating-point {name}, but {describe(x)} came; "
                f"convert it with {name}.astype(jnp.float32)."
            )


def require_key(where: str, key) -> None:
    """Raise a ``TypeError`` unless ``key`` is one typed key, as ``jax.random.key`` makes it.

    >>> require_key("Dense.init", 0)
    Traceback (most recent call last):
    ...
    TypeError: Dense.init expects a key, but an int came; pass jax.random.key(0).
    """
    if not (hasattr(key, "dtype") and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)):
        came, repair = describe_any(key), "pass jax.random.key(0)"
        if getattr(key, "dtype", None) == jnp.uint32:
            repair = "pass jax.random.key(0), or jax.random.wrap_key_data(key) for the data of a key"
        raise TypeError(f"{where} expects a key, but {came} came; {repair}.")
    if key.shape:
        raise TypeError(f"{where} expects one key, but keys of shape {key.shape} came; pass one, or use jax.vmap.")


def require_mask(where: str, mask, *shapes: tuple[int, ...]) -> None:
    """Raise unless ``mask`` is a boolean array of one of these shapes: a ``TypeError`` or a ``ValueError``.

    >>> require_mask("Recurrent", jnp.ones(3), (2, 3))
    Traceback (most recent call last):
    ...
    TypeError: Recurrent expects a boolean mask, true at what is real, but float32 (3,) came; write mask > 0.
    >>> require_mask("Recurrent", jnp.ones(3, bool), (2, 3))
    Traceback (most recent call last):
    ...
    ValueError: Recurrent expects a mask of shape (2, 3), but bool (3,) came; give it one entry for each place.
    """
    if not hasattr(mask, "dtype") or not hasattr(mask, "shape") or mask.dtype != bool:
        repair = "write mask > 0" if hasattr(mask, "dtype") else "write jnp.asarray(mask, bool)"
        raise TypeError(
            f"{where} expects a boolean mask, true at what is real, but {describe_any(mask)} came; {repair}."
        )
    if mask.shape not in shapes:
        wanted = " or ".join(map(str, shapes))
        raise ValueError(
            f"{where} expects a mask of shape {wanted}, but {describe(mask)} came; give it one entry for each place."
        )


def require_whole(where: str, name: str, value, least: int = 1) -> int:
    """``value`` as an ``int``; a ``ValueError`` unless it is a whole number that is large enough.

    >>> require_whole("Dense", "features", 2.5)
    Traceback (most recent call last):
    ...
    ValueError: Dense expects features to be a whole number >= 1, but 2.5 came.
    """
    try:
        whole = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        whole = None
    if whole is None or whole < least:
        raise ValueError(f"{where} expects {name} to be a whole number >= {least}, but {value!r} came.")
    return whole


def checkable(x, check: bool):
    """The values of ``x`` if they can be checked, else ``None``, so that no check is traced in vain.

    An eager ``grad`` knows its values too; they come without their derivative.

    >>> jax.jit(lambda x: checkable(x, check=False))(jnp.ones(2)) is None
    True
    """
    x = jax.lax.stop_gradient(x)
    return None if isinstance(x, jax.core.Tracer) and not check else x


def check_values(ok, message: str, *, check: bool = False, **values) -> None:
    """Raise ``ValueError(message.format(**values))`` where the boolean array ``ok`` is not all true.

    Concrete values are checked at once. Traced values are checked only with
    ``check=True``, through ``checkify.check``; the caller then wraps its function
    in ``checkify.checkify``. Each of ``values`` is an array that ``message`` names.

    >>> p = jnp.array([0.5, 0.25])
    >>> check_values(p.sum() == 1, "p must sum to 1, but sums to {total}; divide by p.sum().", total=p.sum())
    Traceback (most recent call last):
    ...
    ValueError: p must sum to 1, but sums to 0.75; divide by p.sum().
    """
    ok = ok if isinstance(ok, bool) else jnp.all(ok)  # a Python bool stays known while JAX traces
    if isinstance(ok, jax.core.Tracer):
        if check:
            from jax.experimental import checkify  # here, because it brings Pallas

            checkify.check(ok, message, **{name: jnp.asarray(value) for name, value in values.items()})
    elif not ok:
        raise ValueError(message.format(**{name: f"{value}" for name, value in values.items()}))
