r"""Graphs: what a graph is, how messages are gathered along its edges, and the layers made of that.

A graph layer is the template :math:`x = \mathrm{Agg}(\mathrm{Proj}(\mathrm{Neigh}(x)))`: gather what lies next to a
node, an edge or the whole graph, project it by any layer, and aggregate. ``GraphBlock`` is that in full, ``GraphMapFeatures``
leaves the neighbors out, and ``GCN``, ``GAT`` and ``GIN`` are the block's best-known special cases.

Every layer here maps a ``Graph`` to a ``Graph`` with the same edges and new features, so they stand in ``Serial`` as
they are. The first axis of ``nodes`` numbers the nodes of *one* graph and is no batch axis: nodes hear each other. For
many graphs there are two ways. Put them side by side with ``batch_graphs`` into one large padded graph, whose shapes
stay the same from batch to batch; or pad each to the same size, stack them (``jax.tree.map(lambda *x: jnp.stack(x),
*graphs)``) and use ``jax.vmap``.

Axis letters: n nodes, e edges, g graphs, in and out features.
"""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Integer, Shaped

from jaxblocks import initializers
from jaxblocks.activations import leaky_relu
from jaxblocks.checks import check_values, checkable, describe, describe_any, require_floating, require_key
from jaxblocks.core import (
    Layer,
    StatefulLayer,
    apply_child,
    as_shapes,
    builder,
    child_of,
    children,
    init_child,
    make_combinator,
    output_shapes,
    require_params,
)
from jaxblocks.precision import widen

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

How = Literal["sum", "mean", "max", "softmax"]
_HOW = ("sum", "mean", "max", "softmax")


class Graph(NamedTuple):
    r"""A directed graph with features, or several graphs side by side: a tree of arrays of fixed shapes.

    Edge k goes from node ``senders[k]`` to node ``receivers[k]``; nodes are numbered from 0. An undirected edge is two
    edges. Several edges between two nodes, and edges from a node to itself, are allowed.

    ``nodes`` (n, ...), ``senders`` (e,) and ``receivers`` (e,) are always there. ``edges`` (e, ...) are the features of
    edges and ``global_features`` (g, ...) those of each graph as a whole. Where there is more than one graph, ``node_graph``
    (n,) tells to which each node belongs.

    ``node_mask`` (n,), ``edge_mask`` (e,) and ``graph_mask`` (g,) are true at what is real; ``None`` if all is. The
    rest is padding, at any place: whatever stands there has no effect on values or gradients of the real ones, and
    layers put zeros there. An edge that touches a node of padding is padding too.

    >>> triangle = Graph(jnp.eye(3), senders=jnp.array([0, 1, 2]), receivers=jnp.array([1, 2, 0]))
    >>> aggregate(triangle.nodes[triangle.senders], triangle.receivers, n=3)
    Array([[0., 0., 1.],
           [1., 0., 0.],
           [0., 1., 0.]], dtype=float32)
    """

    nodes: Shaped[Array, "n *features"]
    senders: Integer[Array, " e"]
    receivers: Integer[Array, " e"]
    edges: Shaped[Array, "e *edge_features"] | None = None
    global_features: Shaped[Array, "g *global_features"] | None = None
    node_graph: Integer[Array, " n"] | None = None
    node_mask: Bool[Array, " n"] | None = None
    edge_mask: Bool[Array, " e"] | None = None
    graph_mask: Bool[Array, " g"] | None = None


_COUNTED_BY = {
    "nodes": "n_nodes",
    "senders": "n_edges",
    "receivers": "n_edges",
    "edges": "n_edges",
    "global_features": "n_graphs",
    "node_graph": "n_nodes",
    "node_mask": "n_nodes",
    "edge_mask": "n_edges",
    "graph_mask": "n_graphs",
}


# ---- aggregation ---------------------------------------------------------------------------


def aggregate(
    values: Float[Array, "entries *features"],
    receivers: Integer[Array, " _entries"],
    n: int,
    how: How = "sum",
    scores: Float[Array, "_entries *_heads"] | None = None,
    *,
    mask: Bool[Array, " _entries"] | None = None,
    check: bool = False,
) -> Float[Array, "n *features"]:
    r"""Gather values by the node that receives them: :math:`y_i = \mathrm{Agg}\{v_k : r_k = i\}`.

    :math:`v_k` is ``values[k]``, :math:`r_k` is ``receivers[k]``, and ``how`` is

    - ``"sum"``: :math:`\sum_k v_k`; ``"mean"``: that divided by how many there are;
    - ``"max"``: the largest, feature by feature; where several are largest, they share the gradient evenly;
    - ``"softmax"``: :math:`\sum_k w_k v_k` with :math:`w_k = e^{s_k} / \sum_{l : r_l = i} e^{s_l}` and :math:`s`
      the ``scores``. Their axes are the first ones of ``values``: one score for each entry, (e,), or for each of its
      heads, (e, heads). Without ``scores`` each feature is its own score.

    A node that receives nothing gets 0. Values of half precision are added up in float32.

    Args:
        values: (e, ...features), one row for each entry (edge).
        receivers: (e,), the node that each goes to.
        n: number of nodes.
        mask: (e,), false at entries that do not count, whatever they hold.
        check: as everywhere: report bad receivers from inside ``jit`` to ``checkify``.

    Returns:
        (n, ...features).

    Raises:
        ValueError: for a receiver outside 0 ... n - 1 (of entries that count). Under ``jit`` all of the output is NaN
            then, or with ``check=True`` the error goes to ``jax.experimental.checkify``.

    >>> aggregate(jnp.array([1.0, 2.0, 5.0]), jnp.array([0, 0, 2]), n=4, how="mean")
    Array([1.5, 0. , 5. , 0. ], dtype=float32)

    Source: Diehl 2023, section "Graphical layers"; Battaglia et al. 2018, Relational inductive biases, section 3.2.
    """
    require_floating("aggregate", values=values)
    _require_how("aggregate", how)
    shape = values.shape[:1]
    if receivers.shape != shape or not jnp.issubdtype(receivers.dtype, jnp.integer):
        raise ValueError(
            f"aggregate expects whole numbers as receivers, one for each of the {values.shape[:1]} values, but "
            f"{describe(receivers)} came."
        )
    if mask is not None and (mask.shape != shape or mask.dtype != bool):
        raise ValueError(
            f"aggregate expects a boolean mask of shape {shape}, one for each of the values, but {describe(mask)} came."
        )
    if scores is not None:
        require_floating("aggregate", scores=scores)
        if how != "softmax":
            raise ValueError(f'aggregate reads scores only if how="softmax", but how is {how!r}; leave them out.')
        if scores.shape != values.shape[: scores.ndim] or not scores.shape:
            raise ValueError(
                f"aggregate expects scores with the first axes of values, (e,) or (e, heads), but {describe(scores)} "
                f"came for values {describe(values)}."
            )
    _check_ids("aggregate", "receivers", receivers, n, mask, check)
    y = _aggregate(values, receivers.astype(jnp.int32), n, how, scores, mask)
    return _loud(y, _all_inside(mask, n, receivers))


def _aggregate(values, receivers, n, how, scores=None, mask=None):
    """``aggregate`` without checks."""
    dtype, values = values.dtype, widen(values)
    if mask is not None:
        receivers = jnp.where(mask, receivers, n)  # out of range, so that the sums leave it out

    def total(x):
        return jax.ops.segment_sum(x, receivers, n)

    def count():  # (n, 1, ...)
        return _like_rows(total(jnp.ones(receivers.shape, values.dtype)), values)

    if how == "sum":
        y = total(values)
    elif how == "mean":
        y = total(values) / jnp.maximum(count(), 1)
    elif how == "max":
        y = jnp.where(count() > 0, jax.ops.segment_max(values, receivers, n), 0)
    else:
        scores = values if scores is None else widen(scores)
        top = jax.ops.segment_max(jax.lax.stop_gradient(scores), receivers, n)  # (n, *heads)
        top = jnp.where(jnp.isfinite(top), top, 0)  # what receives nothing has none
        weights = jnp.exp(_keep(mask, scores - _take(top, receivers)))  # (e, *heads)
        sums = total(weights)
        y = total(_like_rows(weights.astype(values.dtype), values) * values)
        y = y / _like_rows(jnp.where(sums > 0, sums, 1).astype(values.dtype), values)
    return y.astype(dtype)


# ---- making graphs -------------------------------------------------------------------------


def complete_graph(nodes: Shaped[Array, "n *features"], self_loops: bool = True) -> Graph:
    r"""The graph on these nodes with an edge from each to each: :math:`n^2` edges, sorted by receiver.

    Softmax aggregation over it is self-attention.

    Args:
        nodes: (n, ...features).
        self_loops: ``False`` leaves out the n edges from a node to itself.

    >>> complete_graph(jnp.zeros((3, 1)), self_loops=False).senders
    Array([1, 2, 0, 2, 0, 1], dtype=int32)

    Source: Diehl 2023, section "Graphical layers" (attention as a graph layer).
    """
    if not getattr(nodes, "shape", ()):
        raise TypeError(
            f"complete_graph expects the features of its nodes, (n, ...features), but {describe_any(nodes)} came; "
            "for n nodes without features pass jnp.zeros((n, 1))."
        )
    n = nodes.shape[0]
    receivers, senders = jnp.indices((n, n if self_loops else max(n - 1, 0)), jnp.int32)
    if not self_loops:
        senders = senders + (senders >= receivers).astype(jnp.int32)  # leave the diagonal out
    return Graph(nodes, senders.ravel(), receivers.ravel())


def adjacency_graph(
    nodes: Shaped[Array, "n *features"], adjacency: Shaped[Array, "n n"], n_edges: int | None = None
) -> Graph:
    r"""The graph of an adjacency matrix: an edge from j to i where :math:`A_{ij} \ne 0`, sorted by receiver.

    Summing over incoming edges is then the product :math:`A X` with the nodes :math:`X`, for entries 0 and 1. Other
    weights are not kept; they are ``adjacency[graph.receivers, graph.senders]``, for ``edges`` if you like.

    Args:
        nodes: (n, ...features).
        adjacency: (n, n), row i for the edges that node i receives.
        n_edges: pad to this number of edges, with an ``edge_mask``; needed under ``jit``, where shapes must be known.

    Raises:
        ValueError: for more edges than ``n_edges`` (under ``jit``, senders are then -1, of which layers make NaN).

    >>> adjacency_graph(jnp.zeros((2, 1)), jnp.array([[0, 1], [0, 1]])).receivers
    Array([0, 1], dtype=int32)

    Source: Diehl 2023, section 1 (weight matrices structured by the adjacency).
    """
    if adjacency.shape != (nodes.shape[0],) * 2:
        raise ValueError(
            f"adjacency_graph expects a matrix of shape {(nodes.shape[0],) * 2} for nodes {describe(nodes)}, but "
            f"{describe(adjacency)} came."
        )
    if n_edges is None:
        if isinstance(adjacency, jax.core.Tracer):
            raise ValueError(
                "adjacency_graph cannot count edges under jit; pass n_edges, the largest number that there may be."
            )
        receivers, senders = (jnp.asarray(ids, jnp.int32) for ids in np.nonzero(np.asarray(adjacency)))
        return Graph(nodes, senders, receivers)
    count = jnp.count_nonzero(adjacency)
    check_values(
        count <= n_edges,
        f"adjacency_graph expects at most n_edges = {n_edges} edges, but {{count}} came; raise n_edges.",
        count=count,
    )
    receivers, senders = jnp.nonzero(adjacency, size=n_edges, fill_value=0)
    senders = jnp.where(count <= n_edges, senders, -1).astype(jnp.int32)
    return Graph(nodes, senders, receivers.astype(jnp.int32), edge_mask=jnp.arange(n_edges) < count)


def batch_graphs(
    graphs: Sequence[Graph], n_nodes: int | None = None, n_edges: int | None = None, n_graphs: int | None = None
) -> Graph:
    r"""Several graphs side by side in one, padded to fixed sizes, so that ``jit`` compiles once for all batches.

    Nodes, edges and global_features are laid one after the other, and ``senders`` and ``receivers`` are shifted along, so no
    edge leads from one graph to another; ``node_graph`` and the three masks are always there. Works under ``jit`` too.
    Graphs of numpy arrays come out as numpy arrays, without compiling anything: the way for a pipeline of data.

    Args:
        graphs: at least one; all with or all without ``edges``, and ``global_features``. A batch counts as the graphs in it.
        n_nodes, n_edges, n_graphs: sizes to pad to; by default there is no padding.

    Raises:
        ValueError: for graphs that do not fit into the sizes, or whose features differ.

    >>> pair = Graph(jnp.ones((2, 1)), jnp.array([0]), jnp.array([1]))
    >>> batch = batch_graphs([pair, pair], n_nodes=5, n_edges=3)
    >>> batch.senders, batch.node_graph, batch.edge_mask
    (Array([0, 2, 0], dtype=int32), Array([0, 0, 1, 1, 0], dtype=int32), Array([ True,  True, False], dtype=bool))

    Source: Battaglia et al. 2018, Relational inductive biases, section 4.2 (batches of graphs).
    """
    graphs = list(graphs)
    if not graphs:
        raise ValueError("batch_graphs expects at least one graph, but none came.")
    for graph in graphs:
        _require_graph("batch_graphs", graph)
    xp = np if all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(graphs)) else jnp
    whole, first_node, first_graph = [], 0, 0
    for graph in graphs:
        n, e, g = graph.nodes.shape[0], graph.senders.shape[0], _count_graphs("batch_graphs", graph)
        homes = xp.zeros(n, np.int32) if graph.node_graph is None else graph.node_graph
        filled = graph._replace(
            senders=graph.senders.astype(np.int32) + np.int32(first_node),
            receivers=graph.receivers.astype(np.int32) + np.int32(first_node),
            node_graph=homes.astype(np.int32) + np.int32(first_graph),
            node_mask=xp.ones(n, bool) if graph.node_mask is None else graph.node_mask,
            edge_mask=xp.ones(e, bool) if graph.edge_mask is None else graph.edge_mask,
            graph_mask=xp.ones(g, bool) if graph.graph_mask is None else graph.graph_mask,
        )
        whole.append(filled)
        first_node, first_graph = first_node + n, first_graph + g

    sizes = {"n_nodes": n_nodes, "n_edges": n_edges, "n_graphs": n_graphs}

    def join(name, option):
        arrays = [getattr(graph, name) for graph in whole]
        if all(a is None for a in arrays):
            return None
        if any(a is None for a in arrays) or len({(a.shape[1:], a.dtype) for a in arrays}) > 1:
            came = ", ".join(dict.fromkeys(map(describe_any, arrays)))
            raise ValueError(
                f"batch_graphs expects {name} with the same features and dtype in all graphs, but {came} came."
            )
        total = sum(a.shape[0] for a in arrays)
        size = total if sizes[option] is None else sizes[option]
        if total > size:
            raise ValueError(
                f"batch_graphs expects graphs that fit into {option}={size}, but these have {total} together; "
                "raise it, or put fewer graphs into a batch."
            )
        return xp.concatenate([*arrays, xp.zeros((size - total, *arrays[0].shape[1:]), arrays[0].dtype)])

    return Graph(**{name: join(name, option) for name, option in _COUNTED_BY.items()})


def unbatch_graphs(graph: Graph) -> list[Graph]:
    r"""The graphs of a batch one by one, without padding: what ``batch_graphs`` put together.

    Each has ``nodes``, ``senders``, ``receivers``, ``edges`` and ``global_features`` of its own (g = 1), in the order of the
    batch. Their sizes depend on values, so it does not work under ``jit``.

    >>> pair = Graph(jnp.ones((2, 1)), jnp.array([0]), jnp.array([1]))
    >>> [each.nodes.shape for each in unbatch_graphs(batch_graphs([pair, pair], n_nodes=9, n_graphs=4))]
    [(2, 1), (2, 1)]

    Source: Battaglia et al. 2018, Relational inductive biases, section 4.2 (batches of graphs).
    """
    _require_graph("unbatch_graphs", graph)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(graph)):
        raise ValueError(
            "unbatch_graphs makes arrays whose sizes depend on values, which jit and vmap cannot; call it outside, or "
            "work on the batch with its masks."
        )
    check_graph(graph)
    keep = np.asarray if all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(graph)) else jnp.asarray
    count = _count_graphs("unbatch_graphs", graph)
    graph = jax.tree.map(np.asarray, graph)
    n, e = graph.nodes.shape[0], graph.senders.shape[0]
    home = np.zeros(n, np.int32) if graph.node_graph is None else graph.node_graph
    real = np.ones(n, bool) if graph.node_mask is None else graph.node_mask
    edge_real = np.ones(e, bool) if graph.edge_mask is None else graph.edge_mask
    senders, receivers = (np.where(edge_real, ids, 0) for ids in (graph.senders, graph.receivers))
    edge_real = edge_real & real[senders] & real[receivers] if n else edge_real
    each = []
    for i in range(count):
        if graph.graph_mask is not None and not graph.graph_mask[i]:
            continue
        here = real & (home == i)
        there = edge_real & here[receivers] if n else edge_real
        number = (np.cumsum(here) - 1).astype(np.int32)
        alone = Graph(
            nodes=graph.nodes[here],
            senders=number[senders[there]],
            receivers=number[receivers[there]],
            edges=None if graph.edges is None else graph.edges[there],
            global_features=None if graph.global_features is None else graph.global_features[i : i + 1],
        )
        each.append(jax.tree.map(keep, alone))
    return each


def check_graph(graph: Graph, *, check: bool = False) -> None:
    r"""Raise a ``ValueError`` unless the arrays of a graph fit together and its numbers are in range.

    Layers call it themselves. Under ``jit`` they see shapes only: a layer that meets a number out of range then returns
    NaN everywhere. To hear the sentence from there, call ``check_graph(graph, check=True)`` once, at the top of the
    function, and wrap that in ``jax.experimental.checkify.checkify``.

    >>> check_graph(Graph(jnp.zeros((2, 1)), senders=jnp.array([0]), receivers=jnp.array([2])))
    Traceback (most recent call last):
    ...
    ValueError: check_graph expects receivers from 0 to 1 (there are 2 nodes), but 2 came; number the nodes from 0.
    """
    _check_graph("check_graph", graph, check)


# ---- layers --------------------------------------------------------------------------------


@builder
def GraphBlock(
    *,
    edge: Callable | Layer | StatefulLayer | None = None,
    node: Callable | Layer | StatefulLayer | None = None,
    global_features: Callable | Layer | StatefulLayer | None = None,
    aggregate: How = "sum",
) -> Layer | StatefulLayer:
    r"""The graph-network block: :math:`(E, V, u) \mapsto (E', V', u')`, edges first, then nodes, then the whole.

    .. math::
        e'_k = \phi_e(e_k, v_{s_k}, v_{r_k}, u), \qquad
        v'_i = \phi_v(\mathrm{Agg}\{e'_k : r_k = i\}, v_i, u), \qquad
        u' = \phi_u(\mathrm{Agg}\{e'_k\}, \mathrm{Agg}\{v'_i\}, u)

    with :math:`s_k, r_k` sender and receiver of edge k. All three of a layer come from the three of the layer before it
    (the lecture's indices :math:`E_{l-1}, V_{-1}, u_{-1}` are a slip).

    Each projection is any layer, or function, of one array (rows, features): its arguments as printed, side by side
    along the last axis; features of several axes are laid out flat, and what the graph does not have is left out. Side
    inputs (``train``, ``key``) reach the projections, state comes out, and one that reads ``mask``, such as
    ``BatchNorm``, gets the mask of its rows, so padding stays out of its statistics.

    Renumbering the nodes renumbers V' and leaves E' and u' as they are.

    Args:
        edge, node, global_features: :math:`\phi_e, \phi_v, \phi_u`. Those left out leave their features as they are. Where
            there is no :math:`\phi_e` and the graph has no features of edges, nodes aggregate those of their senders.
        aggregate: ``"sum"``, ``"mean"``, ``"max"`` or ``"softmax"``, as in `aggregate`; nodes without incoming edges
            get 0. With ``"softmax"`` a projection may return a tuple ``(scores, values)``; the values are the new
            features. Over a `complete_graph` that is self-attention, over a sparse one masked attention.

    Raises:
        ValueError: for arrays that do not fit together, numbers out of range (see `check_graph`), or a projection that
            does not return one row for each row that it gets.

    >>> block = GraphBlock(edge=MLP(8, 4), node=MLP(8, 4), global_features=Dense(2))
    >>> graph = complete_graph(jnp.ones((3, 5)))
    >>> params = block.init(jax.random.key(0), graph)
    >>> out = block.apply(params, graph)
    >>> out.edges.shape, out.nodes.shape, out.global_features.shape
    ((9, 4), (3, 4), (1, 2))

    Source: Battaglia et al. 2018, Relational inductive biases, algorithm 1; Diehl 2023, section "Graphical layers".
    """
    how = aggregate
    _require_how("GraphBlock", how)

    def rows(name, graph, scores):
        homes = graph.node_graph
        if name == "edge":
            ends = [_take(graph.nodes, graph.senders), _take(graph.nodes, graph.receivers)]
            whole = _spread(graph.global_features, _edge_graph(graph), graph.senders.shape[0])
            return _side_by_side("GraphBlock", [graph.edges, *ends, whole])
        if name == "node":
            n = graph.nodes.shape[0]
            messages = _take(graph.nodes, graph.senders) if graph.edges is None else graph.edges
            require_floating("GraphBlock", messages=messages)
            heard = _aggregate(messages, graph.receivers, n, how, scores.get("edge"), graph.edge_mask)
            return _side_by_side("GraphBlock", [heard, graph.nodes, _spread(graph.global_features, homes, n)])
        g = _count_graphs("GraphBlock", graph)
        pieces = []
        for label, values, ids, mask in (
            ("edge", graph.edges, _edge_graph(graph), graph.edge_mask),
            ("node", graph.nodes, homes, graph.node_mask),
        ):
            if values is not None:
                require_floating("GraphBlock", **{f"{label}s": values})
                ids = jnp.zeros(values.shape[:1], jnp.int32) if ids is None else ids
                pieces.append(_aggregate(values, ids, g, how, scores.get(label), mask))
        return _side_by_side("GraphBlock", [*pieces, graph.global_features])

    return _projections(
        "GraphBlock", {"edge": edge, "node": node, "global_features": global_features}, rows, how == "softmax"
    )


@builder
def GraphMapFeatures(
    *,
    edge: Callable | Layer | StatefulLayer | None = None,
    node: Callable | Layer | StatefulLayer | None = None,
    global_features: Callable | Layer | StatefulLayer | None = None,
) -> Layer | StatefulLayer:
    r"""A layer for each edge, node and whole, without neighbors: :math:`e'_k = \phi_e(e_k), v'_i = \phi_v(v_i), ...`.

    For encoders and decoders around blocks, and for activations, norms and dropout between them:
    ``Serial(GCN(16), GraphMapFeatures(node=relu), GCN(2))``. Padding, side inputs, state and ``mask`` are as in `GraphBlock`.

    Args:
        edge, node, global_features: layers, or functions, of one array; those left out leave their features as they are.

    >>> graph = complete_graph(jnp.array([[-1.0], [2.0]]))
    >>> GraphMapFeatures(node=relu).apply({"node": ()}, graph).nodes.ravel()
    Array([0., 2.], dtype=float32)

    Source: Battaglia et al. 2018, Relational inductive biases, section 4.2 (the independent block).
    """

    def rows(name, graph, scores):
        field = _FIELDS[name][0]
        if getattr(graph, field) is None:
            raise ValueError(f"GraphMapFeatures has a layer for {field}, but the graph has none; leave {name}= out.")
        return getattr(graph, field)

    return _projections(
        "GraphMapFeatures", {"edge": edge, "node": node, "global_features": global_features}, rows, False
    )


@builder
def GCN(
    features: int,
    *,
    self_loops: bool = True,
    use_bias: bool = True,
    kernel_init: Callable = initializers.lecun_normal(),
    bias_init: Callable = initializers.zeros,
    param_dtype=jnp.float32,
) -> Layer:
    r"""Graph convolution with symmetric normalization: :math:`X' = \tilde D^{-1/2} \tilde A \tilde D^{-1/2} X W + b`.

    :math:`A_{ij}` counts the edges from j to i, :math:`\tilde A` is A with ones on its diagonal (edges from a node to
    itself that the graph has are not counted again), and :math:`\tilde D` the diagonal of its row sums, the numbers of
    incoming edges. For an undirected graph, with each edge in both directions, that is the published formula.

    Features of edges and of the whole are not read. An activation comes after it: ``GraphMapFeatures(node=relu)``.

    Args:
        features: of a node after it.
        self_loops: ``False`` takes :math:`\tilde A = A`; a node without edges then gets 0, plus the bias.
        use_bias, kernel_init, bias_init, param_dtype: as in `Dense`.

    Shapes: a graph with nodes (n, in) to the graph with nodes (n, features).

    >>> layer = GCN(2)
    >>> graph = complete_graph(jnp.ones((3, 4)))
    >>> params = layer.init(jax.random.key(0), graph)
    >>> layer.apply(params, graph).nodes.shape
    (3, 2)

    Source: Kipf & Welling 2017, Semi-supervised classification with graph convolutional networks, equation (2).
    """
    _require_size("GCN", features=features)
    names = ("kernel", "bias") if use_bias else ("kernel",)

    def init(key, graph):
        require_key("GCN.init", key)
        _require_rows("GCN", graph)
        params = {"kernel": kernel_init(key, (graph.nodes.shape[-1], features), param_dtype)}
        if use_bias:
            params["bias"] = bias_init(jax.random.fold_in(key, 1), (features,), param_dtype)
        return params

    def apply(params, graph):
        require_params("GCN", params, *names)
        _check_graph("GCN", graph)
        _require_rows("GCN", graph, params["kernel"])
        real, ok = _real(graph)
        x, kernel, n = real.nodes, params["kernel"].astype(real.nodes.dtype), graph.nodes.shape[0]
        mask = _without_loops(real) if self_loops else real.edge_mask
        ones = jnp.ones(real.receivers.shape, widen(x).dtype)
        degree = _aggregate(ones, real.receivers, n, "sum", mask=mask) + (1 if self_loops else 0)  # (n,)
        scale = jnp.where(degree > 0, jax.lax.rsqrt(jnp.maximum(degree, 1)), 0).astype(x.dtype)[:, None]
        project_first = kernel.shape[1] <= kernel.shape[0]  # send along edges what has fewer features
        x = (x @ kernel if project_first else x) * scale
        y = _aggregate(_take(x, real.senders), real.receivers, n, "sum", mask=mask)
        y = (y + x if self_loops else y) * scale
        y = y if project_first else y @ kernel
        return graph._replace(nodes=_keep(graph.node_mask, _loud(_add_bias(y, params), ok)))

    return Layer(init, apply)


@builder
def GAT(
    features: int,
    heads: int = 1,
    *,
    join: Literal["concat", "mean"] = "concat",
    self_loops: bool = True,
    slope: int | float = 0.2,
    use_bias: bool = True,
    kernel_init: Callable = initializers.lecun_normal(),
    attention_kernel_init: Callable = initializers.lecun_normal(in_axis=-1, out_axis=-2),
    bias_init: Callable = initializers.zeros,
    param_dtype=jnp.float32,
) -> Layer:
    r"""Graph attention: nodes average their neighbors, with weights that depend on both.

    For each head, with :math:`h_i = x_i W` and :math:`\mathcal N(i)` the senders of edges to i, and i itself,

    .. math::
        x'_i = \sum_{j \in \mathcal N(i)} \alpha_{ij} h_j + b, \qquad
        \alpha_{ij} = \mathrm{softmax}_{j \in \mathcal N(i)}\,
        \mathrm{LeakyReLU}(\langle a_r, h_i \rangle + \langle a_s, h_j \rangle)

    (the published :math:`a` is :math:`a_r` and :math:`a_s` one after the other). Params: ``kernel`` W (in, heads *
    features), ``receiver_kernel`` :math:`a_r` and ``sender_kernel`` :math:`a_s`, both (heads, features), ``bias``.

    Args:
        features: of a node after it, for each head.
        heads: number of heads.
        join: of the heads' outputs: ``"concat"`` for heads * features of a node, ``"mean"`` (for a last layer) for
            features.
        self_loops: ``False`` leaves i itself out, unless the graph has that edge; a node without edges gets 0, plus
            the bias. With ``True`` an edge from i to itself that the graph has is not counted again.
        slope: of the leaky rectifier, for negative arguments.
        use_bias, kernel_init, attention_kernel_init, bias_init, param_dtype: as in `Dense`.

    Shapes: a graph with nodes (n, in) to the graph with nodes (n, heads * features), or (n, features) for the mean.

    >>> layer = GAT(2, heads=3)
    >>> graph = complete_graph(jnp.ones((5, 4)))
    >>> params = layer.init(jax.random.key(0), graph)
    >>> layer.apply(params, graph).nodes.shape
    (5, 6)

    Source: Velickovic et al. 2018, Graph attention networks, equations (1) to (6).
    """
    _require_size("GAT", features=features, heads=heads)
    if join not in ("concat", "mean"):
        raise ValueError(f"GAT expects join to be 'concat' or 'mean', but {join!r} came.")
    names = ("kernel", "receiver_kernel", "sender_kernel", *("bias",) * use_bias)

    def init(key, graph):
        require_key("GAT.init", key)
        _require_rows("GAT", graph)
        out = heads * features if join == "concat" else features
        shapes = {
            "kernel": (kernel_init, (graph.nodes.shape[-1], heads * features)),
            "receiver_kernel": (attention_kernel_init, (heads, features)),
            "sender_kernel": (attention_kernel_init, (heads, features)),
            "bias": (bias_init, (out,)),
        }
        return {
            name: initialize(jax.random.fold_in(key, position), shape, param_dtype)
            for position, (name, (initialize, shape)) in enumerate(shapes.items())
            if name in names
        }

    def apply(params, graph):
        require_params("GAT", params, *names)
        _check_graph("GAT", graph)
        _require_rows("GAT", graph, params["kernel"])
        real, ok = _real(graph)
        x, n = real.nodes, graph.nodes.shape[0]
        senders, receivers, mask = real.senders, real.receivers, real.edge_mask
        if self_loops:
            nodes = jnp.arange(n, dtype=jnp.int32)
            senders, receivers = jnp.concatenate([senders, nodes]), jnp.concatenate([receivers, nodes])
            mask = jnp.concatenate([_without_loops(real), jnp.ones(n, bool)])
        h = (x @ params["kernel"].astype(x.dtype)).reshape(n, heads, features)
        to, of = (
            jnp.einsum("nhf,hf->nh", h, params[name].astype(x.dtype)) for name in ("receiver_kernel", "sender_kernel")
        )
        scores = leaky_relu(_take(to, receivers) + _take(of, senders), slope)  # (e, heads)
        y = _aggregate(_take(h, senders), receivers, n, "softmax", scores, mask)  # (n, heads, features)
        y = y.reshape(n, heads * features) if join == "concat" else y.mean(1)
        return graph._replace(nodes=_keep(graph.node_mask, _loud(_add_bias(y, params), ok)))

    return Layer(init, apply)


@builder
def GIN(mlp, epsilon: int | float = 0.0, *, learn_epsilon: bool = False) -> Layer | StatefulLayer:
    r"""Graph isomorphism layer: :math:`x'_i = \mathrm{MLP}\big((1 + \epsilon)\, x_i + \sum_{j \to i} x_j\big)`.

    The sum tells neighborhoods apart that a mean or a maximum confuses: with a suitable MLP the layer separates
    whatever the Weisfeiler-Leman test separates.

    Args:
        mlp: any layer, or function, of nodes (n, in); its params are ``params["mlp"]``. Side inputs and state go
            through; if it reads ``mask``, it gets the mask of the nodes.
        epsilon: :math:`\epsilon`; where it starts if it is learned.
        learn_epsilon: ``True`` makes it a param, ``params["epsilon"]``.

    Shapes: a graph with nodes (n, in) to the graph with nodes as ``mlp`` returns them.

    >>> layer = GIN(MLP(8, 2))
    >>> graph = complete_graph(jnp.ones((3, 4)))
    >>> params = layer.init(jax.random.key(0), graph)
    >>> layer.apply(params, graph).nodes.shape
    (3, 2)

    Source: Xu et al. 2019, How powerful are graph neural networks?, equation (4.1).
    """
    child = child_of("mlp", mlp)
    names = ("mlp", "epsilon") if learn_epsilon else ("mlp",)

    def init(key, inputs, side):
        graph = _one_graph("GIN", inputs)
        _require_rows("GIN", graph)
        params, state = init_child(child, key, (as_shapes(graph.nodes),), _with_mask(child, side, graph.node_mask))
        made = {"mlp": params, **({"epsilon": jnp.asarray(epsilon, jnp.float32)} if learn_epsilon else {})}
        return made, {"mlp": state}

    def apply(params, states, inputs, side):
        graph = _one_graph("GIN", inputs)
        require_params("GIN", params, *names)
        _check_graph("GIN", graph)
        _require_rows("GIN", graph)
        real, ok = _real(graph)
        x = real.nodes
        heard = _aggregate(_take(x, real.senders), real.receivers, x.shape[0], "sum", mask=real.edge_mask)
        own = x * (1 + params["epsilon"]).astype(x.dtype) if learn_epsilon else x * (1 + epsilon)
        y, state = apply_child(
            child, params["mlp"], states["mlp"], (own + heard,), _with_mask(child, side, graph.node_mask)
        )
        _require_same_rows(child.kind, y, x.shape[0])
        return graph._replace(nodes=_keep(graph.node_mask, _loud(y, ok))), {"mlp": state}

    return make_combinator((_mask_kept(child),), init, apply)


# ---- what they share -----------------------------------------------------------------------

_FIELDS = {
    "edge": ("edges", "edge_mask"),
    "node": ("nodes", "node_mask"),
    "global_features": ("global_features", "graph_mask"),
}


def _projections(kind, layers, rows, with_scores):
    """The pair that projects ``rows(name, graph, scores)`` by the layers given, in the order edge, node, global_features.

    Later rows see what earlier layers returned. ``scores`` holds those that a projection returned with its values.
    """
    kids = children((), {name: layer for name, layer in layers.items() if layer is not None})
    if not kids:
        raise ValueError(f"{kind} expects at least one of edge, node and global_features, but none came.")
    names = [child.label for child in kids]

    def replace(child, graph, scores, y):
        """The graph with what a projection returned."""
        if type(y) is tuple and len(y) == 2 and with_scores:
            scores = {**scores, child.label: y[0]}
            y = y[1]
        field, mask = _FIELDS[child.label]
        count = {"edge": graph.senders, "node": graph.nodes}.get(child.label)
        count = _count_graphs(kind, graph) if count is None else count.shape[0]
        _require_same_rows(child.kind, y, count, '; a tuple (scores, values) needs aggregate="softmax"')
        if child.label in scores:
            s = scores[child.label]
            if not s.shape or s.shape != y.shape[: s.ndim]:
                raise ValueError(
                    f"{child.kind} expects scores with the first axes of the values, (rows,) or (rows, heads), but "
                    f"{describe(s)} came for values {describe(y)}."
                )
        return graph._replace(**{field: _keep(getattr(graph, mask), y)}), scores

    def init(key, inputs, side):
        graph = _one_graph(kind, inputs)
        _require_graph(kind, graph)
        graph, scores = jax.eval_shape(lambda graph: _real(graph)[0], graph), {}
        params, states = {}, {}
        for child in kids:
            given = _with_mask(child, side, getattr(graph, _FIELDS[child.label][1]))
            x = jax.eval_shape(lambda graph, scores, name=child.label: rows(name, graph, scores), graph, scores)
            params[child.label], states[child.label] = p, s = init_child(child, key, (x,), given)
            y, _ = output_shapes(child, key, p, s, (x,), given)
            graph, scores = jax.eval_shape(lambda *args, child=child: replace(child, *args), graph, scores, y)
        return params, states

    def apply(params, states, inputs, side):
        before = _one_graph(kind, inputs)
        require_params(kind, params, *names)
        _check_graph(kind, before)
        (graph, ok), scores, after = _real(before), {}, {}
        for child in kids:
            given = _with_mask(child, side, getattr(graph, _FIELDS[child.label][1]))
            x = rows(child.label, graph, scores)
            y, after[child.label] = apply_child(child, params[child.label], states[child.label], (x,), given)
            graph, scores = replace(child, graph, scores, y)
        changed = {_FIELDS[name][0]: _loud(getattr(graph, _FIELDS[name][0]), ok) for name in names}
        return before._replace(**changed), after

    return make_combinator(tuple(map(_mask_kept, kids)), init, apply)


def _mask_kept(child):
    """The child as seen from outside: the layer itself gives it its ``mask``."""
    reads, init_reads = ({k: v for k, v in r.items() if k != "mask"} for r in (child.reads, child.init_reads))
    return child._replace(reads=reads, init_reads=init_reads)


def _with_mask(child, side, mask):
    return {**side, "mask": mask} if mask is not None and "mask" in child.reads else side


def _real(graph):
    """The graph as layers read it (padding is zero, edges that touch it are padding); whether numbers are in range."""
    graph = jax.tree.map(jnp.asarray, graph)
    senders, receivers = graph.senders.astype(jnp.int32), graph.receivers.astype(jnp.int32)
    edge_mask, n = graph.edge_mask, graph.nodes.shape[0]
    ok = _all_inside(edge_mask, n, senders, receivers)
    per_graph = graph.global_features if graph.graph_mask is None else graph.graph_mask
    if graph.node_graph is not None and per_graph is not None:
        ok = ok & _all_inside(graph.node_mask, per_graph.shape[0], graph.node_graph)
    if graph.node_mask is not None:
        both = _take(graph.node_mask, senders) & _take(graph.node_mask, receivers)
        edge_mask = both if edge_mask is None else edge_mask & both
    if edge_mask is not None:
        senders, receivers = jnp.where(edge_mask, senders, 0), jnp.where(edge_mask, receivers, 0)
    real = graph._replace(
        nodes=_keep(graph.node_mask, graph.nodes),
        edges=None if graph.edges is None else _keep(edge_mask, graph.edges),
        global_features=None if graph.global_features is None else _keep(graph.graph_mask, graph.global_features),
        senders=senders,
        receivers=receivers,
        node_graph=None if graph.node_graph is None else graph.node_graph.astype(jnp.int32),
        edge_mask=edge_mask,
    )
    return real, ok


def _all_inside(mask, count, *ids):
    """Whether all numbers that are not padding are from 0 to ``count_flops`` - 1; one reduction, since several are slower."""
    inside = functools.reduce(operator.and_, [(i >= 0) & (i < count) for i in ids])
    return jnp.all(inside if mask is None else inside | ~mask)


def _loud(y, ok):
    """All of ``y``, or NaN everywhere if something is not ``ok``."""
    return y + jnp.where(ok, 0, jnp.nan).astype(y.dtype) if jnp.issubdtype(y.dtype, jnp.inexact) else y


def _without_loops(real):
    """The mask of the edges that lead from one node to another."""
    between = real.senders != real.receivers
    return between if real.edge_mask is None else between & real.edge_mask


def _take(x, ids):
    """Rows of ``x``; whoever uses it answers for numbers out of range, see ``_loud``."""
    return x.at[ids].get(mode="clip", wrap_negative_indices=False)


def _like_rows(x, like):
    """One number, or some, for each row, with as many axes as ``like``."""
    return x.reshape(x.shape + (1,) * (like.ndim - x.ndim))


def _keep(mask, x):
    """``x`` where the row is real, else 0."""
    return x if mask is None else jnp.where(_like_rows(mask, x), x, jnp.zeros((), x.dtype))


def _edge_graph(graph):
    """To which graph each edge belongs; ``None`` if there is but one."""
    return None if graph.node_graph is None else _take(graph.node_graph, graph.receivers)


def _spread(whole, ids, count):
    """Features of the whole for each of ``count_flops`` rows."""
    if whole is None:
        return None
    return jnp.broadcast_to(whole, (count, *whole.shape[1:])) if ids is None else _take(whole, ids)


def _side_by_side(where, pieces):
    """All pieces that there are in one array (rows, features)."""
    pieces = [x for x in pieces if x is not None]
    if len({x.dtype for x in pieces}) > 1 or not jnp.issubdtype(pieces[0].dtype, jnp.floating):
        raise TypeError(
            f"{where} expects nodes, edges and global_features of one floating-point dtype, but "
            f"{', '.join(map(describe, pieces))} came; cast them with .astype."
        )
    return jnp.concatenate([x.reshape(x.shape[0], math.prod(x.shape[1:])) for x in pieces], axis=-1)


def _add_bias(y, params):
    bias = params.get("bias")
    return y if bias is None else y + jnp.broadcast_to(bias.astype(y.dtype), y.shape)


def _count_graphs(where, graph):
    """How many graphs there are, padding included; shapes tell."""
    for per_graph in (graph.global_features, graph.graph_mask):
        if per_graph is not None:
            return per_graph.shape[0]
    if graph.node_graph is None:
        return 1
    raise ValueError(
        f"{where} cannot tell from shapes how many graphs there are; give the graph a graph_mask, as batch_graphs does."
    )


def _one_graph(where, inputs):
    if len(inputs) != 1:
        raise TypeError(f"{where} expects one Graph, but {len(inputs)} inputs came.")
    return inputs[0]


def _require_how(where, how):
    if how not in _HOW:
        raise ValueError(f"{where} expects to aggregate by 'sum', 'mean', 'max' or 'softmax', but {how!r} came.")


def _require_size(where, **sizes):
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"{where} expects {name} to be a whole number >= 1, but {size!r} came.")


def _require_rows(where, graph, kernel=None):
    """Nodes with one axis of features, as many as the kernel takes."""
    _require_graph(where, graph)
    require_floating(where, nodes=graph.nodes)
    if len(graph.nodes.shape) != 2:
        raise ValueError(f"{where} expects nodes with one axis of features, (n, in), but {describe(graph.nodes)} came.")
    if kernel is not None and graph.nodes.shape[1] != kernel.shape[0]:
        raise ValueError(
            f"{where} expects nodes with {kernel.shape[0]} features (its kernel is {describe(kernel)}), but "
            f"{describe(graph.nodes)} came; pass nodes of that size, or params made by init for this graph."
        )


def _require_same_rows(place, y, count, more=""):
    if not hasattr(y, "shape") or y.shape[:1] != (count,):
        came = describe_any(y)
        raise ValueError(f"{place} expects one array with a row for each of the {count} rows, but {came} came{more}.")


def _require_graph(where, graph):
    """The arrays of a graph fit together, as far as shapes tell."""
    if not isinstance(graph, Graph):
        raise TypeError(
            f"{where} expects a Graph, but {describe_any(graph)} came; pass Graph(nodes, senders, receivers)."
        )
    for name in ("nodes", "senders", "receivers"):
        if not hasattr(getattr(graph, name), "shape"):
            raise TypeError(f"{where} expects an array {name}, but {describe_any(getattr(graph, name))} came.")
    for name in ("senders", "receivers"):
        ids = getattr(graph, name)
        if len(ids.shape) != 1 or not jnp.issubdtype(ids.dtype, jnp.integer):
            raise ValueError(
                f"{where} expects {name} to be whole numbers of shape (e,), one for each edge, but {describe(ids)} "
                "came; take stacked graphs one by one with jax.vmap, and an edge index (2, e) apart."
            )
    if not graph.nodes.shape:
        raise ValueError(f"{where} expects nodes (n, ...features), but {describe(graph.nodes)} came.")
    n, e = graph.nodes.shape[0], graph.senders.shape[0]
    per_graph = [x.shape[:1] for x in (graph.global_features, graph.graph_mask) if x is not None]
    g = per_graph[0] if per_graph else (1,)
    for name, count, kind in (
        ("receivers", (e,), "edge"),
        ("edges", (e,), "edge"),
        ("edge_mask", (e,), "edge"),
        ("node_graph", (n,), "node"),
        ("node_mask", (n,), "node"),
        ("global_features", g, "graph"),
        ("graph_mask", g, "graph"),
    ):
        x = getattr(graph, name)
        if x is None:
            continue
        wrong_shape = x.shape[:1] != count or not count or (name.endswith("mask") and len(x.shape) != 1)
        if wrong_shape or (name.endswith("mask") and x.dtype != bool):
            boolean = "boolean " if name.endswith("mask") else ""
            raise ValueError(
                f"{where} expects {boolean}{name} with one entry for each {kind}, {count}, but {describe(x)} came."
            )
    if graph.node_graph is None and g != (1,):
        raise ValueError(
            f"{where} expects node_graph where there are several graphs ({g[0]} here), to tell where each node "
            "belongs; put graphs together with batch_graphs."
        )
    if graph.node_graph is not None and not jnp.issubdtype(graph.node_graph.dtype, jnp.integer):
        raise ValueError(f"{where} expects whole numbers as node_graph, but {describe(graph.node_graph)} came.")


def _check_graph(where, graph, check=False):
    """`check_graph`, in the name of a layer."""
    _require_graph(where, graph)
    n, edge_mask = graph.nodes.shape[0], graph.edge_mask
    _check_ids(where, "senders", graph.senders, n, edge_mask, check)
    _check_ids(where, "receivers", graph.receivers, n, edge_mask, check)
    if graph.node_graph is not None and (graph.global_features is not None or graph.graph_mask is not None):
        g = _count_graphs(where, graph)
        _check_ids(where, "node_graph", graph.node_graph, g, graph.node_mask, check, "graph")


def _check_ids(where, name, ids, count, mask, check, kind="node"):
    if not ids.shape[0] or checkable(ids, check) is None or (mask is not None and checkable(mask, check) is None):
        return
    ids = jnp.asarray(ids)
    bad = (ids < 0) | (ids >= count)
    bad = bad if mask is None else bad & mask
    check_values(
        ~bad,
        f"{where} expects {name} from 0 to {count - 1} (there are {count} {kind}s), but {{worst}} came; number the "
        f"{kind}s from 0.",
        check=check,
        worst=ids[jnp.argmax(bad)],
    )
