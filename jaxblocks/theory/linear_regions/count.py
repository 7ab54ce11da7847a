"""The number of linear regions of a net."""

from typing import Any

from jaxtyping import PyTree

from jaxblocks.core.pairs import LayerLike
from jaxblocks.theory.arrays import ArrayLike
from jaxblocks.theory.linear_regions.along_segment import regions_along
from jaxblocks.theory.linear_regions.in_plane import regions

__all__ = ["count_regions"]


def count_regions(
    net: LayerLike, params: PyTree = (), *, segment: tuple[ArrayLike, ArrayLike] | None = None, **options: Any
) -> int:
    """The number of linear regions of a net in a slice of its inputs, or along a ``segment`` (start, stop).

    The arguments are those of `regions` and `regions_along`, whose records also count activation regions.

    >>> count_regions(lambda x: jnp.abs(x[0]) + jnp.abs(x[1]))
    4
    >>> count_regions(
    ...     lambda x: jnp.abs(x[0]) + jnp.abs(x[1]), segment=([-1.0, -1.0], [1.0, 2.0])
    ... )
    3

    Source: Montufar, Pascanu, Cho, Bengio 2014, arXiv:1402.1869.
    """
    if segment is not None:
        return regions_along(net, params, *segment, **options).linear_count
    return regions(net, params, **options).linear_count
