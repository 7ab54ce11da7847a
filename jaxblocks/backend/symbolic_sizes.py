"""Comparisons of sizes that may be symbolic, as those of `jax.export` are."""

from typing import Any, TypeAlias

import jax

from jaxblocks.checks.errors import require

__all__ = ["Size", "at_most", "check_integer", "is_size", "missing_constraints"]

Size: TypeAlias = Any
"""The size of an axis: an integer, or a symbolic one, whose type is not public."""


def is_size(n: Any) -> bool:
    """Whether n is an integer >= 0, or a symbolic size.

    >>> is_size(0), is_size(-1), is_size(2.0)
    (True, False, False)
    """
    from jaxblocks.checks.annotations import is_integer  # not at import, which stays fast

    if is_integer(n):
        return n >= 0
    from jax import export

    return export.is_symbolic_dim(n)


def at_most(size: Size, bound: Size) -> bool:
    """Whether ``size <= bound`` for all values that the constraints of symbolic sizes allow.

    ``False`` where it depends on the values: there the comparison itself raises an error.

    >>> from jax import export
    >>> (n,) = export.symbolic_shape("n", constraints=["n <= 8"])
    >>> at_most(n, 8), at_most(n, 7), at_most(9, n)
    (True, False, False)
    """
    try:
        return bool(size <= bound)
    except jax.errors.InconclusiveDimensionOperation:
        return False


def missing_constraints(*pairs: tuple[Size, Size]) -> str:
    """The repair that makes every ``size <= bound`` of the pairs hold where it depends on symbolic sizes, or "".

    >>> from jax import export
    >>> (n,) = export.symbolic_shape("n")
    >>> print(missing_constraints((n, 8), (3, 5)))
    pass constraints=["n <= 8"] to jax.export.symbolic_shape
    """
    undecided = [pair for pair in pairs if not at_most(*pair) and not at_most(pair[1] + 1, pair[0])]
    constraints = ", ".join(f'"{size} <= {bound}"' for size, bound in undecided)
    return f"pass constraints=[{constraints}] to jax.export.symbolic_shape" if undecided else ""


def check_integer(size: Size, x: Any, purpose: str) -> None:
    """Raise a ``ValueError`` where the size of an axis of ``x`` is symbolic, and ``purpose`` needs its value."""
    repair = "pass integers for them to jax.export.symbolic_shape"
    require(isinstance(size, int), f"sizes that are integers for {purpose}", x, repair)
