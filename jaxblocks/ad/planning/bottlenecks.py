r"""Stages whose Jacobian is a diagonal plus a matrix of low rank, as that of a residual block with a narrow branch.

    x, y        the input and the output of a block, n numbers each, as in y = x + g(x)
    z           its bottlenecks: r numbers through which every path from x to y runs that is not elementwise
    V^T         dz / dx, r by n
    U           dy / dz, n by r
    D           dy / dx with z held fixed, a diagonal
    D + U V^T   dy / dx

A sweep through K such blocks takes n seeds through each of them. Their product is again of this form, of rank K r,

    (D + U V^T) (E + P Q^T)  =  D E + [U, D P] [E V + Q P^T V, Q]^T,

so r seeds through each side of each block and products with narrow matrices suffice.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from jax.extend.core import JaxprEqn, Var

from jaxblocks.ad.planning.equations import by_element
from jaxblocks.ad.planning.linear_program import is_tangent, width_of
from jaxblocks.ad.programs.jaxprs import needed

__all__ = ["Block", "block_between", "compositions"]


# More bottlenecks than a narrow branch has; the search ends, so that its time is linear in the number of equations.
_MOST_BOTTLENECKS = 50


class Block(NamedTuple):
    """One stage D + U V^T, divided at its bottlenecks.

    Attributes:
        below: the equations from the input to the bottlenecks; their Jacobian is V^T.
        above: the equations from the input and the bottlenecks to the output; their Jacobian is [D, U].
        inputs: the input.
        bottlenecks: the variables of the bottlenecks.
        outputs: the output.
    """

    below: list[JaxprEqn]
    above: list[JaxprEqn]
    inputs: list[Var]
    bottlenecks: list[Var]
    outputs: list[Any]

    @property
    def rank(self) -> int:
        """The number of entries of the bottlenecks."""
        return width_of(self.bottlenecks)


class _Form(NamedTuple):
    """A variable as D x + U z: whether D is not zero, and the variables of z."""

    diagonal: bool
    bottlenecks: frozenset[Var]


def block_between(
    equations: Sequence[JaxprEqn], inputs: list[Var], outputs: list[Any], tangents: set[Var]
) -> Block | None:
    """The equations between two cuts as a block, where their Jacobian has a rank of at most n / 4 besides a diagonal.

    Every variable is written as D x + U z, in the order of the equations. An elementwise equation keeps D and z; any
    other equation keeps z where it reads no D x, and otherwise its own outputs are new bottlenecks. They also are if
    they are narrower than z.
    """
    n = width_of(inputs)
    if len(inputs) != 1 or len(outputs) != 1 or not is_tangent(outputs[0], tangents) or width_of(outputs) != n:
        return None
    forms = {inputs[0]: _Form(True, frozenset())}
    for equation in equations:
        read = {v: forms[v] for v in equation.invars if isinstance(v, Var) and v in tangents}
        diagonals = {v for v in read if read[v].diagonal}
        diagonal, bottlenecks = bool(diagonals), frozenset[Var]().union(*(form.bottlenecks for form in read.values()))
        if len(bottlenecks) > _MOST_BOTTLENECKS:
            return None
        narrower = not diagonal and width_of(equation.outvars) < width_of(bottlenecks)
        if narrower or (diagonal and not by_element(equation, diagonals)):
            diagonal, bottlenecks = False, frozenset(equation.outvars)
        forms |= dict.fromkeys(equation.outvars, _Form(diagonal, bottlenecks))
    diagonal, bottlenecks = forms[outputs[0]]
    if not diagonal or not 0 < 4 * width_of(bottlenecks) <= n:
        return None
    ordered = [v for equation in equations for v in equation.outvars if v in bottlenecks]
    below = needed(equations, ordered, inputs)
    return Block(below, needed(equations, outputs, [*inputs, *ordered]), inputs, ordered, outputs)


def compositions(ranks: Sequence[int]) -> list[tuple[int, int]]:
    """The ranks of the later and the earlier factor of each product of a chain that is multiplied in balanced pairs.

    >>> compositions([1, 2, 3])
    [(3, 2), (5, 1)]
    """
    # In balanced pairs each factor takes part in about log2 K products instead of K.
    half = len(ranks) // 2
    if not half:
        return []
    pairs = [*compositions(ranks[:half]), *compositions(ranks[half:])]
    return [*pairs, (sum(ranks[half:]), sum(ranks[:half]))]
