r"""Linear pools in a form that costs little for each of many seeds: plain sums, with a mask for a maximum.

    x, dx     the operand of ``lax.reduce_window`` with a sum, a maximum or a minimum, and its tangent
    k         the entries of a window; x_k is the slice of x that contains entry k of all windows
    K         for each window, the entry that a maximum or minimum selects, the first of equal ones as in reverse mode
    dy        sum_k dx_k for a sum, sum_k [K = k] dx_k for a maximum or minimum

For a maximum JAX selects again for each seed: forward mode reduces windows of pairs, reverse mode scatters, which takes
several copies of the operand for each seed on CPU. The mask [K = k] does not depend on the seeds. Where the windows
are adjacent, dx is reshaped to windows, and the transpose of the sum is a broadcast, which is computed within the
adjacent operations.
"""

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr

from jaxblocks.ad.programs.jaxprs import Step, interpret, shape_of
from jaxblocks.backend.sliding_windows import slices_of_entries, sum_of_windows
from jaxblocks.backend.varying import as_structs

__all__ = ["with_plain_pools"]

# A maximum of more entries than this is not changed, since its program would have as many terms.
_MOST_ENTRIES = 32


def with_plain_pools(program: ClosedJaxpr) -> ClosedJaxpr:
    """The same linear program, whose calls are open, with its pools as plain sums."""
    if not any(equation.primitive.name in _RULES for equation in program.eqns):
        return program
    structs = as_structs([v.aval for v in program.jaxpr.invars])
    return jax.make_jaxpr(lambda *xs: interpret(program, xs, Step.evaluate, rules=_RULES))(*structs)


def _maximum(step: Step) -> list[Any]:
    """For each window, the entry of the tangent where the operand is selected."""
    is_empty = 0 in shape_of(step.equation.outvars[0])
    is_long = math.prod(step.params["window_dimensions"]) > _MOST_ENTRIES
    if is_empty or is_long or not set(step.params["base_dilation"]) <= {1}:
        return step.evaluate()
    (dx, x), selects = step.operands, step.params["select_prim"].bind
    best, *others = _entries(x, -jnp.inf if step.params["select_prim"] is lax.ge_p else jnp.inf, **step.params)
    # int8 suffices for the index of an entry, and every seed reads this array.
    selected = lax.full_like(best, 0, jnp.int8)
    for k, entry in enumerate(others, 1):
        # ge or le: of equal entries the first one stays.
        kept = selects(best, entry)
        best, selected = lax.select(kept, best, entry), lax.select(kept, selected, lax.full_like(selected, k))
    if _adjacent(**step.params):
        return [_by_windows(dx, selected, **step.params)]
    entries = enumerate(_entries(dx, 0, **step.params))
    first, *terms = [lax.select(selected == k, entry, lax.full_like(entry, 0)) for k, entry in entries]
    return [sum(terms, first)]


def _sum(step: Step) -> list[Any]:
    return [_by_windows(*step.operands, **step.params)] if _adjacent(**step.params) else step.evaluate()


def _adjacent(*, window_dimensions, window_strides, base_dilation, window_dilation, **_) -> bool:
    return window_dimensions == window_strides and {*base_dilation, *window_dilation} <= {1}


def _by_windows(x, selected=None, *, window_dimensions, padding, **_):
    """The sum of each window, or of its selected entry; windows are adjacent."""
    x = lax.pad(x, lax.full_like(x, 0, shape=()), [(*pads, 0) for pads in padding])
    return sum_of_windows(x, window_dimensions, selected)


def _entries(x, outside, *, window_dimensions, window_strides, padding, window_dilation, **_) -> Iterator[jax.Array]:
    """The slices of each entry of all windows, with ``outside`` in the padding."""
    x = lax.pad(x, lax.full_like(x, outside, shape=()), [(*pads, 0) for pads in padding])
    return slices_of_entries(x, window_dimensions, window_strides, window_dilation)


_RULES = {"select_and_gather_add": _maximum, "reduce_window_sum": _sum}
