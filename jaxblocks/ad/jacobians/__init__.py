"""Jacobians: of chains of functions, of any function by the cheapest order of multiplication, and sparse ones.

Read `chains` first: the product of Jacobians and what each order costs. `jacobians` computes the Jacobian of any
function by the plan that `jaxblocks.ad.planning` makes, which `execution` executes by `sweeps` and products of
`blocks`. `sparse` needs few products where most entries are zero.
"""

from jaxblocks.ad.jacobians.chains import (
    ChainOrder,
    bracketings,
    chain_cost,
    chain_memory,
    jacobian_chain,
    multiply_chain,
    optimal_order,
)
from jaxblocks.ad.jacobians.jacobians import jacobian, jacobian_plan
from jaxblocks.ad.jacobians.sparse import SparsityPattern, sparse_jacobian, sparsity

__all__ = [
    "ChainOrder",
    "SparsityPattern",
    "bracketings",
    "chain_cost",
    "chain_memory",
    "jacobian",
    "jacobian_chain",
    "jacobian_plan",
    "multiply_chain",
    "optimal_order",
    "sparse_jacobian",
    "sparsity",
]
