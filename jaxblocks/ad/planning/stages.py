"""Cuts of a linear program where few numbers are live, and the stages between them."""

import itertools
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn, Var

from jaxblocks.ad.planning.equations import by_element, known_matrix
from jaxblocks.ad.planning.linear_program import Linear, is_tangent, width_of
from jaxblocks.ad.programs.jaxprs import dtype_of

__all__ = ["Link", "links"]


class Link(NamedTuple):
    """One stage of the chain with its equations, which the sweeps execute.

    Attributes:
        kind: ``"dense"``, ``"diagonal"`` or ``"matrix-free"``, as in `jaxblocks.ad.planning.Stage`.
        equations: in order.
        inputs, outputs: the variables of the cuts before and after it.
        dense: the index of the equation whose matrix is known; -1 if there is none.
    """

    kind: str
    equations: list[JaxprEqn]
    inputs: list[Var]
    outputs: list[Any]
    dense: int = -1

    @property
    def before(self) -> list[JaxprEqn]:
        """The equations of a dense stage before its matrix, which scale the columns."""
        return self.equations[: self.dense]

    @property
    def after(self) -> list[JaxprEqn]:
        """The equations of a dense stage after its matrix, which scale the rows."""
        return self.equations[self.dense + 1 :]


def links(linear: Linear, most: int = 40) -> list[Link]:
    """The chain of at most ``most`` stages; adjacent stages that no bracketing could separate are joined."""
    if linear.is_complex:
        return [Link("matrix-free", linear.equations, linear.inputs, linear.outputs)]
    n, m = width_of(linear.inputs), width_of(linear.outputs)
    # Several live tangents are a useful cut only where they are clearly narrower than both ends.
    cuts = _cuts(linear, min(n, m) // 2)
    begins = [(0, linear.inputs), *cuts, (len(linear.equations), linear.outputs)]
    chain = [
        _link(linear.equations[start:stop], inputs, outputs, linear.tangents)
        for (start, inputs), (stop, outputs) in itertools.pairwise(begins)
    ]
    chain = _without_wide_cuts(_without_diagonals(chain))
    while len(chain) > most:  # remove the widest cut first
        at = int(np.argmax([width_of(link.outputs) for link in chain[:-1]]))
        chain[at : at + 2] = [_joined(chain[at], chain[at + 1])]
    return chain


def _link(equations, inputs, outputs, tangents) -> Link:
    """The stage between two cuts, of the kind that its equations allow."""
    single = len(inputs) == len(outputs) == 1 and is_tangent(outputs[0], tangents)
    if single and len(equations) == 1 and known_matrix(equations[0], tangents):
        return Link("dense", equations, inputs, outputs, 0)
    if single and equations and all(by_element(equation, tangents) for equation in equations):
        return Link("diagonal", equations, inputs, outputs)
    return Link("matrix-free", equations, inputs, outputs)


def _cuts(linear: Linear, narrow: int) -> list[tuple[int, list[Var]]]:
    """The positions between equations where one tangent is live, or several with ``narrow`` entries in total."""
    places = []
    for place, alive in _alive(linear):
        width = width_of(alive)
        if len(alive) != 1 and width > narrow:
            continue
        dtypes = {dtype_of(v) for v in alive}
        if len(dtypes) == 1 and all(jnp.issubdtype(dtype, jnp.floating) for dtype in dtypes):
            places.append((place, alive, width))  # complex tangents are linear only as pairs of real numbers
    # Among adjacent cuts with several live tangents only the narrowest is useful.
    kept = []
    for i, (place, alive, width) in enumerate(places):
        around = [w for p, _, w in places[max(i - 1, 0) : i + 2] if abs(p - place) == 1]
        first_of_plateau = not (i and places[i - 1][0] == place - 1 and places[i - 1][2] == width)
        if len(alive) == 1 or (width <= min(around, default=width) and first_of_plateau):
            kept.append((place, alive))
    return kept


def _alive(linear: Linear):
    """For each position between two equations, the tangents that a later equation or an output reads."""
    equations, end = linear.equations, len(linear.equations)
    last_read: dict[Any, int] = {}
    for place, equation in enumerate(equations):
        last_read |= {v: place for v in equation.invars if is_tangent(v, linear.tangents)}
    last_read |= {v: end for v in linear.outputs if is_tangent(v, linear.tangents)}
    alive = [v for v in linear.inputs if v in last_read]
    for place in range(1, end):
        alive = [v for v in [*alive, *equations[place - 1].outvars] if last_read.get(v, -1) >= place]
        yield place, alive


def _joined(left: Link, right: Link) -> Link:
    equations = [*left.equations, *right.equations]
    kinds = {left.kind, right.kind}
    if kinds == {"diagonal"}:
        return Link("diagonal", equations, left.inputs, right.outputs)
    if kinds == {"diagonal", "dense"}:
        dense = left.dense if left.kind == "dense" else len(left.equations) + right.dense
        return Link("dense", equations, left.inputs, right.outputs, dense)
    return Link("matrix-free", equations, left.inputs, right.outputs)


def _without_diagonals(chain: list[Link]) -> list[Link]:
    """The chain with each diagonal stage joined to an adjacent stage, preferably one that keeps its kind."""
    first: list[Link] = []
    for link in chain:
        if link.kind == "diagonal" and first and first[-1].kind != "matrix-free":
            first[-1] = _joined(first[-1], link)
        else:
            first.append(link)
    joined: list[Link] = []
    for link in first:
        if joined and joined[-1].kind == "diagonal":  # nothing or a matrix-free stage is before it
            if link.kind == "dense" or len(joined) == 1:
                joined[-1] = _joined(joined[-1], link)
                continue
            diagonal = joined.pop()
            joined[-1] = _joined(joined[-1], diagonal)
        joined.append(link)
    if len(joined) > 1 and joined[-1].kind == "diagonal":
        joined[-2:] = [_joined(joined[-2], joined[-1])]
    return joined


def _without_wide_cuts(chain: list[Link]) -> list[Link]:
    """The chain without the cuts between matrix-free stages that are as wide as an adjacent cut."""
    chain, at = list(chain), 0
    while at + 1 < len(chain):
        left, right = chain[at], chain[at + 1]
        before, width, after = (width_of(cut) for cut in (left.inputs, left.outputs, right.outputs))
        # The seeds of an adjacent cut that is no wider pass both stages for at most the same price.
        useless = width >= before or width >= after
        if left.kind == right.kind == "matrix-free" and useless:
            equations = [*left.equations, *right.equations]
            chain[at : at + 2] = [Link("matrix-free", equations, left.inputs, right.outputs)]
            at = max(at - 1, 0)
        else:
            at += 1
    return chain
