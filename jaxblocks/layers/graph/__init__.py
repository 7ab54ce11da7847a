r"""Graphs: their data, reductions over their edges, and the layers made of these.

A graph layer follows the template :math:`x = \mathrm{Agg}(\mathrm{Proj}(\mathrm{Neigh}(x)))`: gather the neighbors of a
node, an edge or the whole graph, project them by any layer, and aggregate. ``GraphBlock`` is the template in full,
``GraphMapFeatures`` leaves the neighbors out, and ``GCN``, ``GAT`` and ``GIN`` are the best-known special cases.

Every layer here maps a ``Graph`` to a ``Graph`` with the same edges and new features, so that it fits into ``Serial``.
The first axis of ``nodes`` numbers the nodes of *one* graph and is no batch axis, since nodes exchange messages. For
many graphs there are two ways. ``batch_graphs`` combines them into one large padded graph, whose shapes stay the same
from batch to batch; or pad each to the same size, stack them (``jax.tree.map(lambda *x: jnp.stack(x), *graphs)``) and
use ``jax.vmap``.

Axis letters: n nodes, e edges, g graphs, in and out features.
"""

from jaxblocks.layers.graph.blocks import GraphBlock, GraphMapFeatures
from jaxblocks.layers.graph.convolutions import GAT, GCN, GIN
from jaxblocks.layers.graph.data import (
    Graph,
    adjacency_graph,
    batch_graphs,
    check_graph,
    complete_graph,
    unbatch_graphs,
)
from jaxblocks.layers.graph.segments import aggregate

__all__ = [
    "GAT",
    "GCN",
    "GIN",
    "Graph",
    "GraphBlock",
    "GraphMapFeatures",
    "adjacency_graph",
    "aggregate",
    "batch_graphs",
    "check_graph",
    "complete_graph",
    "unbatch_graphs",
]
