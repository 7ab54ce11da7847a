"""Compiled programs of functions of layers, of which a bounded number is kept."""

import functools
from collections.abc import Callable

import jax
from jax.core import Tracer

__all__ = ["jit_with_static", "kept"]


def kept(most: int) -> Callable:
    """``functools.lru_cache(most)``; results for arguments without a hash are not kept.

    A net or a metric may be any callable, also an object of a class with ``__eq__`` and without ``__hash__``, as
    ``dataclass`` makes them.

    >>> @kept(8)
    ... def length(x):
    ...     return len(x)
    >>> length((1, 2)), length([1, 2])
    (2, 2)
    """

    def decorate(function):
        cached = functools.lru_cache(maxsize=most)(function)

        @functools.wraps(function)
        def call(*arguments):
            try:
                hash(arguments)
            except TypeError:
                return function(*arguments)
            return cached(*arguments)

        call.cache_info = cached.cache_info  # type: ignore[attr-defined]
        return call

    return decorate


def jit_with_static(number: int, *, most: int, donate: tuple[int, ...] = ()) -> Callable:
    """``jax.jit`` of a function whose first arguments are static, such as a net, with a bound on what stays in memory.

    ``jax.jit`` with ``static_argnums`` keeps each value of a static argument as long as the process runs, with all
    arrays that its functions hold, and its programs. Here the programs of the ``most`` last values are kept.

    Args:
        number: how many of the first arguments are static; where one has no hash, each call compiles.
        most: the number of different values whose programs are kept.
        donate: the positions of arguments that are donated, counted from 0 with the static ones; none where
            an argument is traced.

    >>> @jit_with_static(1, most=8)
    ... def apply(f, x):
    ...     return f(x)
    >>> apply(jnp.sin, jnp.zeros(2))
    Array([0., 0.], dtype=float32)
    """

    def decorate(function):
        @kept(most)
        def program(donated, *static):
            return jax.jit(functools.partial(function, *static), donate_argnums=tuple(n - number for n in donated))

        @functools.wraps(function)
        def call(*arguments):
            # Under `vmap` a donated buffer may be smaller than the results, which is a warning of JAX.
            inputs = arguments[number:]
            is_traced = donate and any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(inputs))
            return program(() if is_traced else donate, *arguments[:number])(*inputs)

        return call

    return decorate
