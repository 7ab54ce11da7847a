r"""A graph classifier: message-passing layers, and a readout of all nodes.

Axis letters: n nodes, e edges, g graphs, in features of a node.
"""

from typing import Literal, TypedDict, Unpack, overload

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxblocks.activations import relu
from jaxblocks.checks.expectations import PositiveInt, Rate, checked
from jaxblocks.core.pairs import Layer, StatefulLayer, builder
from jaxblocks.layers.combinators import Serial, Wire
from jaxblocks.layers.dense import Dense
from jaxblocks.layers.dropout import Dropout
from jaxblocks.layers.graph import GCN, GIN, Graph, GraphMapFeatures, aggregate
from jaxblocks.layers.graph.data import count_graphs
from jaxblocks.layers.norm import BatchNorm

__all__ = ["GraphClassifier", "readout"]


class _Options(TypedDict, total=False):
    """The options of `GraphClassifier` without ``batch_norm``, which decides on the type of the layer."""

    kind: Literal["gin", "gcn"]
    features: int
    layers: int
    pool: Literal["sum", "mean", "max"]
    dropout: float


@overload
def GraphClassifier(
    classes: int, *, batch_norm: Literal[True] = True, **options: Unpack[_Options]
) -> StatefulLayer: ...
@overload
def GraphClassifier(classes: int, *, batch_norm: Literal[False], **options: Unpack[_Options]) -> Layer: ...
@builder
def GraphClassifier(
    classes: PositiveInt,
    *,
    kind: Literal["gin", "gcn"] = "gin",
    features: PositiveInt = 64,
    layers: PositiveInt = 5,
    pool: Literal["sum", "mean", "max"] = "sum",
    batch_norm: bool = True,
    dropout: Rate = 0.0,
) -> Layer | StatefulLayer:
    r"""A classifier of graphs: graph layers, a readout after each, and one dense layer on all readouts.

    With $X_0$ the features of the nodes, $X_k = relu(layer_k(X_{k-1}))$ and
    $r_k = ∑_i X_{k,i}$ over the nodes of a graph, the logits are $W [r_0, …, r_L] + b$, with
    neighborhoods of every radius up to L. With ``pool="sum"`` the logits depend on the number of nodes; with ``"mean"``
    only on proportions.

    Args:
        classes: the number of logits.
        kind: ``"gin"`` for `GIN` with an MLP of two dense layers, ``"gcn"`` for `GCN`.
        features: the number of features of a node after each layer, and between the two dense layers of an MLP.
        layers: $L$, the number of graph layers; a node depends on nodes at most L edges away.
        pool: the aggregation of the nodes of a graph.
        batch_norm: after each dense layer of "gin" and after each layer of "gcn", over the valid nodes of the batch
            (momentum 0.9, epsilon 1e-5); then the net has a state and ``apply`` reads ``train``.
        dropout: the rate for the readouts, before the last layer; above 0, ``apply`` reads ``train`` and ``key``.

    Shapes: a `Graph` with nodes (n, in), one or several (`batch_graphs`), to logits (g, classes). Rows of padding
    graphs hold only the bias. Features of edges and of the graph are not read.

    Raises:
        ValueError: as in the layers; for a batch without ``graph_mask`` and ``global_features``.

    >>> from jaxblocks.layers import batch_graphs, complete_graph
    >>> net = GraphClassifier(2, features=8, layers=1, batch_norm=False)
    >>> graphs = batch_graphs([complete_graph(jnp.ones((n, 3))) for n in (2, 5)])
    >>> params = jax.jit(net.init)(jax.random.key(0), graphs)
    >>> jax.jit(net.apply)(params, graphs).shape
    (2, 2)

    Source: Xu et al. 2019, How powerful are graph neural networks?, equation (4.2) and section 7,
    arXiv:1810.00826; Kipf & Welling 2017, Semi-supervised classification with graph convolutional networks,
    arXiv:1609.02907.
    """

    def normed(i, layer):
        # Momentum 0.9 is PyTorch's 0.1.
        norm = {f"norm_{i}": BatchNorm(momentum=0.9, epsilon=1e-5)} if batch_norm else {}
        return {f"dense_{i}": layer, **norm, f"relu_{i}": relu}

    def GraphLayer():
        if kind == "gin":
            # Names with numbers, since one Serial may hold two such groups.
            return GIN(Serial(**normed(1, Dense(features)), **normed(2, Dense(features))))
        norm = {"norm": BatchNorm(momentum=0.9, epsilon=1e-5)} if batch_norm else {}
        return Serial(gcn=GCN(features), nodes=GraphMapFeatures(node=Serial(**norm, relu=relu)))

    names = [f"layer_{i}" for i in range(1, layers + 1)]

    def forward(f, graph):
        rows = [readout(graph, pool=pool)]  # (g, in)
        for name in names:
            graph = getattr(f, name)(graph)
            rows.append(readout(graph, pool=pool))  # (g, features)
        return f.out(jnp.concatenate(rows, -1))

    last = Serial(dropout=Dropout(dropout), dense=Dense(classes)) if dropout else Dense(classes)
    return Wire(forward, **{name: GraphLayer() for name in names}, out=last)


@checked
def readout(graph: Graph, *, pool: Literal["sum", "mean", "max"] = "sum") -> Float[Array, "graphs *features"]:
    r"""The aggregated nodes of each graph: $r_j = Agg(x_i : i$ in graph $j)$, without padding.

    Args:
        graph: one graph, or a batch from `batch_graphs`.
        pool: the aggregation. The row of a graph without nodes is zero.

    Raises:
        ValueError: for several graphs without ``graph_mask`` and ``global_features``, which give their number.

    >>> from jaxblocks.layers import batch_graphs, complete_graph
    >>> graphs = batch_graphs([complete_graph(jnp.ones((n, 1))) for n in (2, 5)])
    >>> readout(graphs)
    Array([[2.],
           [5.]], dtype=float32)

    Source: Xu et al. 2019, How powerful are graph neural networks?, equation (2.4), arXiv:1810.00826.
    """
    rows, owner = graph.nodes, graph.node_graph
    owner = jnp.zeros(rows.shape[:1], jnp.int32) if owner is None else owner
    return aggregate(rows, owner, count_graphs(graph), how=pool, mask=graph.node_mask)
