"""Rows of the zoo: graph layers as functions of the nodes of a fixed graph, against formulas with dense matrices."""

import jax.numpy as jnp
import numpy as np
from specimen import Specimen

from jaxblocks import GAT, GCN, GIN, Dense, Graph, GraphBlock, Serial, Wire
from jaxblocks.layers import GraphMapFeatures

# Four nodes: 3 is isolated, 1 has an edge to itself, there are two edges 0 -> 2; the last edge is padding.
SENDERS = np.array([0, 1, 1, 2, 0, 0, 3])
RECEIVERS = np.array([1, 1, 2, 0, 2, 2, 0])
VALID = np.array([1, 1, 1, 1, 1, 1, 0], bool)
WEIGHTS = np.array([[1.0], [-0.5], [2.0], [0.25], [1.5], [-1.0], [9.0]])

A = np.zeros((4, 4))
np.add.at(A, (RECEIVERS[VALID], SENDERS[VALID]), 1)
A_TILDE = A * (1 - np.eye(4)) + np.eye(4)


def graph(x, edges=False):
    weights = jnp.asarray(WEIGHTS, x.dtype) if edges else None
    return Graph(x, jnp.asarray(SENDERS), jnp.asarray(RECEIVERS), weights, edge_mask=jnp.asarray(VALID))


def dense(p, x):
    return x @ p["kernel"] + p["bias"]


def gcn(p, x):
    half = np.diag(A_TILDE.sum(1) ** -0.5)
    return half @ A_TILDE @ half @ x @ p["layer"]["kernel"] + p["layer"]["bias"]


def weighted(scores, counts):
    """Softmax along rows, weighted by the number of edges of each entry; rows without edges are 0."""
    weights = counts * np.exp(scores - scores.max())
    return weights / np.where(weights.sum(1) > 0, weights.sum(1), 1)[:, None]


def gat(p, x, counts=A_TILDE, join="concat"):
    p = p["layer"]
    outputs = []
    for w, to, of in zip(np.split(p["kernel"], 2, 1), p["receiver_kernel"], p["sender_kernel"], strict=True):
        h = x @ w
        scores = (h @ to)[:, None] + (h @ of)[None, :]
        outputs.append(weighted(np.where(scores > 0, scores, 0.2 * scores), counts) @ h)
    return (np.concatenate(outputs, 1) if join == "concat" else np.mean(outputs, 0)) + p["bias"]


def gin(p, x):
    return np.tanh(dense(p["layer"]["mlp"][0], (1 + p["layer"]["epsilon"]) * x + A @ x))


def block(p, x, how, sent=False):
    """The formula in a loop over the valid edges."""
    p = p["layer"]
    edges = [np.concatenate([w, x[s], x[r]]) for w, s, r in zip(WEIGHTS, SENDERS, RECEIVERS, strict=True)]
    edges = np.stack([dense(p["edge"], e) for e in edges])[VALID]

    def gather(values):
        if not len(values):
            return np.zeros(edges.shape[1])
        if how == "softmax":
            return (values * np.exp(values)).sum(0) / np.exp(values).sum(0)
        return getattr(np, how)(values, 0)

    received = np.stack([gather(edges[RECEIVERS[VALID] == i]) for i in range(4)])
    sent_out = np.stack([gather(edges[SENDERS[VALID] == i]) for i in range(4)])
    nodes = dense(p["node"], np.concatenate([received, sent_out, x] if sent else [received, x], 1))
    whole = dense(p["graph"], np.concatenate([gather(edges), gather(nodes)]))
    return nodes + whole


def nodes_of(f, x):
    return f.layer(graph(x)).nodes


def nodes_and_whole(f, x):
    out = f.layer(graph(x, edges=True))
    return out.nodes + jnp.broadcast_to(out.global_features, out.nodes.shape)


def blocks(how, sent=False):
    layer = GraphBlock(edge=Dense(2), node=Dense(3), graph=Dense(3), aggregate=how, sent_edges=sent)
    layer = Wire(nodes_and_whole, layer=layer)
    return Specimen("GraphBlock", layer, ((4, 5),), lambda p, x: block(p, x, how, sent), mixes_batch=True)


def on_nodes(public, layer, reference):
    return Specimen(public, Wire(nodes_of, layer=layer), ((4, 5),), reference, mixes_batch=True)


ROWS = {
    "GraphBlock by softmax": blocks("softmax"),
    "GraphBlock by mean, sent edges too": blocks("mean", sent=True),
    "GraphMapFeatures": on_nodes(
        "GraphMapFeatures", GraphMapFeatures(node=Dense(3)), lambda p, x: dense(p["layer"]["node"], x)
    ),
    "GCN": on_nodes("GCN", GCN(3), gcn),
    "GAT": on_nodes("GAT", GAT(3, heads=2), gat),
    "GAT by mean without self-loops": on_nodes(
        "GAT", GAT(3, heads=2, join="mean", self_loops=False), lambda p, x: gat(p, x, A, "mean")
    ),
    "GIN": on_nodes("GIN", GIN(Serial(Dense(3), jnp.tanh), epsilon=0.5, learn_epsilon=True), gin),
}
