"""The temporaries that a bracketing is expected to need, as the compiler allocates them.

The upper bounds of `jaxblocks.ad.planning.accounting` keep a program within a given memory; they are 2 to 6 times what
the compiler allocates, and more for some modes than for others. These predictions compare the modes: elementwise
operations are computed within their neighbors, and the result, which is no temporary, has room for one array as large.
"""

from collections.abc import Callable, Sequence

from jax.extend.core import JaxprEqn

from jaxblocks.ad.planning.accounting import live_bytes
from jaxblocks.ad.planning.bracketing import Part
from jaxblocks.ad.planning.equations import FUSED
from jaxblocks.ad.planning.linear_program import bytes_of, is_tangent
from jaxblocks.ad.planning.prices import PricedChain

__all__ = ["expected_bytes"]


def expected_bytes(mode: str, part: Part, chain: PricedChain, chunk: Callable[..., int | None]) -> int:
    """Expected bytes of temporaries.

    Args:
        mode: ``"mixed"``, or ``"forward"`` or ``"reverse"`` for one sweep through the whole function.
        part: the bracketing.
        chain: its stages.
        chunk: as in `jaxblocks.ad.planning.Route`.
    """
    if mode == "mixed":
        peak, _ = _peak(part, chain, chunk)
    else:
        peak = _swept(chain.n_in if mode == "forward" else chain.n_out, chain.equations, chain, chunk)
    # The compiler uses the buffer of the result for temporaries until the result is written.
    return max(0, peak - chain.itemsize * chain.n_in * chain.n_out)


def _swept(seeds: int, equations: Sequence[JaxprEqn], chain: PricedChain, chunk) -> int:
    """Bytes of a sweep, its seeds and its results included."""
    if not equations:
        return 0
    heavy = [live for e, live in live_bytes(equations, chain.tangents) if e.primitive.name not in FUSED]
    ends = (equations[0].invars, equations[-1].outvars)
    whole = [sum(bytes_of(v) for v in end if is_tangent(v, chain.tangents)) for end in ends]
    return (chunk(seeds, equations) or seeds) * max(heavy + whole)


def _peak(part: Part, chain: PricedChain, chunk) -> tuple[int, int]:
    """Bytes of a part at its peak, its result included, and the bytes that it holds afterwards."""
    result = chain.itemsize * chain.sizes[part.first] * chain.sizes[part.last]
    used = chain.factors_of(part)
    if used is not None:
        factor, other = used
        most, held = _peak(other, chain, chunk)
        return max(most, held + _factors(factor.first, chain) + result), result
    if part.how == "own":
        link, how = chain.links[part.first], chain.directions[part.first]
        if how == "known":
            kept = result if len(link.equations) > 1 else 0  # the matrix itself is no copy, unless it is scaled
            return kept, kept
        if how == "low-rank":
            return _factors(part.first, chain) + result, result
        seeds = chain.sizes[part.first if how == "forward" else part.last]
        return max(result, _swept(seeds, link.equations, chain, chunk)), result
    if part.how == "product":
        (most_left, left), (most_right, right) = (_peak(factor, chain, chunk) for factor in part.factors)
        # The right factor is computed first, and is held while the left one is computed.
        return max(most_right, right + most_left, right + left + result), result
    seeds = chain.sizes[part.first if part.how == "forward" else part.last]
    equations = [equation for stage in part.swept for equation in chain.links[stage].equations]
    return max(_peak(part.child, chain, chunk)[0], _swept(seeds, equations, chain, chunk), result), result


def _factors(stage: int, chain: PricedChain) -> int:
    """Bytes of the two factors of a low-rank stage."""
    return chain.itemsize * chain.links[stage].rank * (chain.sizes[stage] + chain.sizes[stage + 1])
