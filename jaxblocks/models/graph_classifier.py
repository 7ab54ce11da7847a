r"""A graph classifier: nodes hear their neighbors a few times, and what all of them know is added up.

Axis letters: n nodes, e edges, g graphs, in features of a node.
"""

from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxblocks.activations import relu
from jaxblocks.checks import require_whole
from jaxblocks.core import Layer, StatefulLayer, builder
from jaxblocks.layers.combinators import Serial, Wire
from jaxblocks.layers.dense import Dense
from jaxblocks.layers.dropout import Dropout
from jaxblocks.layers.graph import GCN, GIN, Graph, GraphMapFeatures, aggregate
from jaxblocks.layers.norm import BatchNorm

__all__ = ["GraphClassifier", "read_out"]


@builder
def GraphClassifier(
    classes: int,
    *,
    kind: Literal["gin", "gcn"] = "gin",
    features: int = 64,
    layers: int = 5,
    pool: Literal["sum", "mean", "max"] = "sum",
    batch_norm: bool = True,
    dropout: float | int = 0.0,
) -> Layer | StatefulLayer:
    r"""Logits of whole graphs: ``layers`` graph layers, the read-out of each, and one dense layer on all of them.

    With :math:`X_0` the nodes as they come, :math:`X_k = \mathrm{relu}(\mathrm{layer}_k(X_{k-1}))` and
    :math:`r_k = \sum_i X_{k,i}` over the nodes of a graph, the logits are :math:`W [r_0, \dots, r_L] + b`: what is seen
    nearby and what is seen from afar both count. With ``pool="sum"`` the net counts; with a mean it sees proportions.

    Args:
        classes: how many logits.
        kind: ``"gin"`` for `GIN` with an MLP of two dense layers, ``"gcn"`` for `GCN`.
        features: of a node after each layer, and between the two dense layers of an MLP.
        layers: :math:`L`; information travels so many edges far.
        pool: how the nodes of a graph become one vector.
        batch_norm: after each dense layer of "gin" and after each layer of "gcn", over the real nodes of the batch
            (momentum 0.9, epsilon 1e-5); then the net has a state and ``apply`` reads ``train``.
        dropout: of the read-outs, before the last layer; ``apply`` then reads ``train`` and ``key``.

    Shapes: a `Graph` with nodes (n, in), one or several (`batch_graphs`), to logits (g, classes). Rows of graphs that
    are padding hold the bias alone. Features of edges and of the whole are not read.

    Raises:
        ValueError: as the layers do; for several graphs of which nobody says how many there are.

    >>> net = GraphClassifier(2, features=8, layers=2, batch_norm=False)
    >>> graphs = batch_graphs([complete_graph(jnp.ones((n, 3))) for n in (2, 5)])
    >>> params = net.init(jax.random.key(0), graphs)
    >>> net.apply(params, graphs).shape
    (2, 2)

    Sources: Xu et al. 2019, How powerful are graph neural networks?, equation (4.2) and section 7; Kipf & Welling 2017.
    """
    require_whole("GraphClassifier", "classes", classes)
    layers = require_whole("GraphClassifier", "layers", layers)
    for name, value, known in (("kind", kind, ("gin", "gcn")), ("pool", pool, ("sum", "mean", "max"))):
        if value not in known:
            raise ValueError(f"GraphClassifier expects {name} to be one of {', '.join(known)}, but {value!r} came.")

    def normed(i, layer):
        norm = {f"norm_{i}": BatchNorm(momentum=0.9, epsilon=1e-5)} if batch_norm else {}
        return {f"dense_{i}": layer, **norm, f"relu_{i}": relu}

    def GraphLayer():
        if kind == "gin":
            return GIN(Serial(**normed(1, Dense(features)), **normed(2, Dense(features))))
        after = [BatchNorm(momentum=0.9, epsilon=1e-5)] if batch_norm else []
        return Serial(gcn=GCN(features), after=GraphMapFeatures(node=Serial(*after, relu)))

    names = [f"layer_{i}" for i in range(1, layers + 1)]

    def forward(f, graph):
        seen = [read_out(graph, pool)]  # (g, in)
        for name in names:
            graph = getattr(f, name)(graph)
            seen.append(read_out(graph, pool))  # (g, features)
        return f.out(jnp.concatenate(seen, -1))

    last = Serial(dropout=Dropout(dropout), dense=Dense(classes)) if dropout else Dense(classes)
    return Wire(forward, **{name: GraphLayer() for name in names}, out=last)


def read_out(graph: Graph, pool: Literal["sum", "mean", "max"] = "sum") -> Float[Array, "graphs *features"]:
    r"""The nodes of each graph as one row: :math:`r_j = \mathrm{Agg}\{x_i : i \text{ in graph } j\}`, padding left out.

    ``graph`` is one `Graph` or several side by side; ``pool`` is the aggregation. A graph without nodes gets zeros.
    Raises ``ValueError`` where there are several graphs and neither ``graph_mask`` nor ``global_features`` says how many.

    >>> graphs = batch_graphs([complete_graph(jnp.ones((n, 1))) for n in (2, 5)])
    >>> read_out(graphs)
    Array([[2.],
           [5.]], dtype=float32)

    Source: Xu et al. 2019, How powerful are graph neural networks?, equation (2.4).
    """
    rows, owner = graph.nodes, graph.node_graph
    if owner is None:
        return aggregate(rows, jnp.zeros(rows.shape[:1], jnp.int32), 1, how=pool, mask=graph.node_mask)
    counted = graph.graph_mask if graph.graph_mask is not None else graph.global_features
    if counted is None:
        raise ValueError(
            "read_out expects graph_mask or global_features to say how many graphs there are, but node_graph came without "
            "them; make the batch with batch_graphs, or add graph_mask=jnp.ones(n_graphs, bool)."
        )
    return aggregate(rows, owner, counted.shape[0], how=pool, mask=graph.node_mask)
