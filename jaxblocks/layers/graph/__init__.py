r"""Graphs: data structure, reductions over edges, and graph layers.

Read ``data`` first: the `Graph`. ``segments`` reduces over edges, ``blocks`` has the template, ``convolutions`` its
special cases.

A graph layer follows the template $x = Agg(Proj(Neigh(x)))$: gather the neighbors of a
node, an edge or the whole graph, project them by any layer, and aggregate. ``GraphBlock`` is the full template,
``GraphMapFeatures`` omits the neighbors, and ``GCN``, ``GAT`` and ``GIN`` are the best-known special cases.

Every layer here maps a ``Graph`` to a ``Graph`` with the same edges and new features, so that it fits into ``Serial``.
The first axis of ``nodes`` indexes the nodes of *one* graph and is not a batch axis, since nodes exchange messages. For
many graphs, use ``batch_graphs``, which combines them into one large padded graph of the same shapes for all batches;
or pad each to the same size, stack them (``jax.tree.map(lambda *x: jnp.stack(x), *graphs)``) and use ``jax.vmap``.

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
