"""What one linear equation does to the vectors that it reads: by element, by a known matrix, or by movement alone."""

import math

from jax.extend.core import JaxprEqn, Var

from jaxblocks.ad.planning.linear_program import is_tangent
from jaxblocks.ad.programs.jaxprs import shape_of, size_of

__all__ = ["MOVES", "by_element", "known_matrix"]

_LINEAR_BY_ELEMENT = frozenset("mul div neg add_any add sub select_n convert_element_type copy copy_p real".split())
_ORDER_KEPT = frozenset("reshape squeeze expand_dims broadcast_in_dim".split())
# Primitives that move numbers and compute nothing.
MOVES = _ORDER_KEPT | frozenset("transpose slice pad gather concatenate rev dynamic_slice convert_element_type".split())


def known_matrix(equation: JaxprEqn, tangents: set[Var]) -> bool:
    """Whether an equation multiplies a whole vector by a constant matrix."""
    if equation.primitive.name != "dot_general":
        return False
    (left, right), (batch, _) = equation.params["dimension_numbers"]
    lhs, rhs = equation.invars
    if batch or is_tangent(lhs, tangents) == is_tangent(rhs, tangents):
        return False
    tangent, axes = (lhs, left) if is_tangent(lhs, tangents) else (rhs, right)
    # All entries of the tangent are contracted, so that the other operand is the Jacobian itself.
    return math.prod(shape_of(tangent)[axis] for axis in axes) == size_of(tangent)


def by_element(equation: JaxprEqn, tangents: set[Var]) -> bool:
    """Whether element i of the output depends only on element i of the tangents that the equation reads."""
    name = equation.primitive.name
    [out] = equation.outvars if len(equation.outvars) == 1 else [None]
    if out is None or name not in _LINEAR_BY_ELEMENT | _ORDER_KEPT:
        return False
    read = [v for v in equation.invars if is_tangent(v, tangents)]
    # A broadcast would read one entry for several entries of the output.
    if any(size_of(v) != size_of(out) for v in read):
        return False
    if name == "broadcast_in_dim":  # it may add axes of length 1, and axes keep their order
        return True
    if name == "reshape":
        return equation.params.get("dimensions") is None
    return name in _ORDER_KEPT or all(shape_of(v) == shape_of(out) for v in read)
