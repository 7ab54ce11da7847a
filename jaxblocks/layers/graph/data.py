"""Graphs as trees of arrays: the type, constructors, batches and checks."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Integer, Shaped

from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import NonNegativeInt, checked
from jaxblocks.checks.values import as_int32, check_values
from jaxblocks.core.pairs import ArrayOrShape
from jaxblocks.core.shapes import as_shapes
from jaxblocks.layers.graph.segments import all_in_range, check_indices, take_rows, where_rows

__all__ = [
    "Graph",
    "adjacency_graph",
    "batch_graphs",
    "check_graph",
    "check_nodes",
    "check_shapes",
    "complete_graph",
    "count_graphs",
    "unbatch_graphs",
    "without_padding",
]


class Graph(NamedTuple):
    r"""A directed graph with features, or several graphs in one: a tree of arrays of fixed shapes.

    Edge k goes from node ``senders[k]`` to node ``receivers[k]``; nodes are numbered from 0. An undirected edge is two
    edges. Several edges between two nodes, and edges from a node to itself, are allowed.

    ``nodes`` (n, ...), ``senders`` (e,) and ``receivers`` (e,) are required. ``edges`` (e, ...) are the features of
    edges and ``global_features`` (g, ...) those of each graph. If there is more than one graph,
    ``node_graph`` (n,) is the index of the graph of each node.

    ``node_mask`` (n,), ``edge_mask`` (e,) and ``graph_mask`` (g,) are True at valid entries; ``None`` means that all
    are valid. The other entries are padding, in any position: their contents affect neither values nor gradients of the
    valid ones, and layers set them to zero. An edge from or to padding is padding too.

    >>> senders, receivers = jnp.array([0, 1, 2]), jnp.array([1, 2, 0])
    >>> triangle = Graph(jnp.eye(3), senders, receivers)
    >>> aggregate(triangle.nodes[triangle.senders], triangle.receivers, n=3)
    Array([[0., 0., 1.],
           [1., 0., 0.],
           [0., 1., 0.]], dtype=float32)
    """

    nodes: Shaped[Array, "n *features"]
    senders: Integer[Array, "e"]
    receivers: Integer[Array, "e"]
    edges: Shaped[Array, "e *edge_features"] | None = None
    global_features: Shaped[Array, "g *global_features"] | None = None
    node_graph: Integer[Array, "n"] | None = None
    node_mask: Bool[Array, "n"] | None = None
    edge_mask: Bool[Array, "e"] | None = None
    graph_mask: Bool[Array, "g"] | None = None


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


# ---- making graphs ---------------------------------------------------------------------------


@checked
def complete_graph(nodes: Shaped[Array, "n *features"], *, self_loops: bool = True) -> Graph:
    r"""The complete graph, with an edge for every pair of nodes: $n^2$ edges, sorted by receiver.

    Softmax aggregation over it is self-attention.

    Args:
        nodes: (n, ...features); ``jnp.zeros((n, 1))`` for n nodes without features.
        self_loops: ``False`` omits the n edges from a node to itself.

    >>> complete_graph(jnp.zeros((3, 1)), self_loops=False).senders
    Array([1, 2, 0, 2, 0, 1], dtype=int32)

    Source: Battaglia et al. 2018, Relational inductive biases, deep learning, and graph networks (arXiv:1806.01261);
    Cevher, Mathematics of Data, "Graphical layers" (attention as a graph layer).
    """
    n = nodes.shape[0]
    return Graph(nodes, *_edges_of_all_pairs(n, self_loops))


@functools.partial(jax.jit, static_argnums=(0, 1), inline=True)
def _edges_of_all_pairs(n: int, self_loops: bool) -> tuple[jax.Array, jax.Array]:
    """Senders and receivers, sorted by receiver."""
    receivers, senders = jnp.indices((n, n if self_loops else max(n - 1, 0)), jnp.int32)
    # Without loops, row i lists n - 1 senders: those from i on are one larger.
    if not self_loops:
        senders = senders + (senders >= receivers).astype(jnp.int32)  # skip the diagonal
    return senders.ravel(), receivers.ravel()


@checked
def adjacency_graph(
    nodes: Shaped[Array, "n *features"], adjacency: Shaped[Array, "n n"], *, n_edges: NonNegativeInt | None = None
) -> Graph:
    r"""The graph of an adjacency matrix: an edge from j to i where $A_{ij} ≠ 0$, sorted by receiver.

    For entries 0 and 1, the sum over incoming edges is then the product $A X$ with the nodes $X$. Other
    weights are not stored; to use them as ``edges``, take ``adjacency[graph.receivers, graph.senders]``.

    Args:
        nodes: (n, ...features).
        adjacency: (n, n), row i for the edges that node i receives.
        n_edges: pad to this number of edges, with an ``edge_mask``; required under ``jit``, where shapes are static.

    Raises:
        ValueError: for more edges than ``n_edges`` (under ``jit``, senders are then -1, for which layers return NaN).

    >>> adjacency_graph(jnp.zeros((2, 1)), jnp.array([[0, 1], [0, 1]])).receivers
    Array([0, 1], dtype=int32)

    Source: Battaglia et al. 2018, Relational inductive biases, deep learning, and graph networks (arXiv:1806.01261);
    Diehl 2023, section 1 (weight matrices structured by the adjacency).
    """
    if n_edges is None:
        concrete = not isinstance(adjacency, Tracer)
        repair = "pass n_edges, the largest expected number of edges"
        require(concrete, "n_edges under jit, where edges cannot be counted", "None", repair)
        # np.nonzero lists entries by rows: sorted by receiver.
        receivers, senders = (jnp.asarray(ids, jnp.int32) for ids in np.nonzero(np.asarray(adjacency)))
        return Graph(nodes, senders, receivers)
    count = jnp.count_nonzero(adjacency)
    message = f"at most n_edges = {n_edges} edges, got {{count}}; increase n_edges"
    check_values(count <= n_edges, message, count=count)
    # Padding has the index 0, which is in range, and is masked.
    receivers, senders = jnp.nonzero(adjacency, size=n_edges, fill_value=0)
    # Under jit no error can be raised for surplus edges; the index -1 makes layers return NaN rather than a wrong sum.
    senders = jnp.where(count <= n_edges, senders, -1).astype(jnp.int32)
    return Graph(nodes, senders, receivers.astype(jnp.int32), edge_mask=jnp.arange(n_edges) < count)


@checked
def batch_graphs(
    graphs: Sequence[Graph], *, n_nodes: int | None = None, n_edges: int | None = None, n_graphs: int | None = None
) -> Graph:
    r"""Several graphs combined into one, padded to fixed sizes, so that ``jit`` compiles once for all batches.

    Nodes, edges and global features are concatenated, and ``senders`` and ``receivers`` are shifted accordingly, so
    that no edge connects two graphs; the result always has ``node_graph`` and the three masks. Works under ``jit``
    too. Graphs of NumPy arrays give NumPy arrays, without compilation, as a data pipeline needs it.

    Args:
        graphs: at least one; either all or none have ``edges``, and ``global_features``. A batch counts as several
            graphs.
        n_nodes, n_edges, n_graphs: sizes to pad to; by default there is no padding.

    Raises:
        ValueError: for graphs that do not fit into the sizes, or whose features differ.

    >>> pair = Graph(jnp.ones((2, 1)), jnp.array([0]), jnp.array([1]))
    >>> batch = batch_graphs([pair, pair], n_nodes=5, n_edges=3)
    >>> batch.senders, batch.node_graph, batch.edge_mask
    (Array([0, 2, 0], dtype=int32), Array([0, 0, 1, 1, 0], dtype=int32), Array([ True,  True, False], dtype=bool))

    Source: Battaglia et al. 2018, arXiv:1806.01261, section 4.2 (batches of graphs).
    """
    graphs = list(graphs)
    require(len(graphs) > 0, "at least one graph", "none", "pass a list of graphs")
    for graph in graphs:
        check_shapes(graph)
    # With NumPy, nothing is compiled for each new combination of sizes, and a data loader in another process needs no
    # device.
    xp = np if all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(graphs)) else jnp
    complete, first_node, first_graph = [], 0, 0
    for graph in graphs:
        # If only some graphs had masks, batches would differ in structure and jit would compile again.
        filled = _filled(graph, xp)
        shifts = {"senders": first_node, "receivers": first_node, "node_graph": first_graph}
        moved = {name: getattr(filled, name).astype(np.int32) + np.int32(shift) for name, shift in shifts.items()}
        complete.append(filled._replace(**moved))
        first_node, first_graph = first_node + graph.nodes.shape[0], first_graph + count_graphs(graph)

    sizes = {"n_nodes": n_nodes, "n_edges": n_edges, "n_graphs": n_graphs}

    def join(name, option) -> Any:
        arrays = [getattr(graph, name) for graph in complete]
        if all(a is None for a in arrays):
            return None
        equal = all(a is not None for a in arrays) and len({(a.shape[1:], a.dtype) for a in arrays}) == 1
        got = ", ".join(dict.fromkeys(map(describe, arrays)))
        one = next(a for a in arrays if a is not None)
        repair = f"give each graph {name} of {one.dtype} with rows of shape {tuple(one.shape[1:])}"
        require(equal, f"{name} with the same features and dtype in all graphs", got, repair)
        total = sum(a.shape[0] for a in arrays)
        wanted = sizes[option]
        size = total if wanted is None else wanted
        repair = "increase it, or put fewer graphs into a batch"
        require(total <= size, f"graphs that fit into {option}={size}", f"{total} together", repair)
        # Padding is zeros and False: masked edges from node 0 to itself, and masked nodes of graph 0.
        return xp.concatenate([*arrays, xp.zeros((size - total, *arrays[0].shape[1:]), arrays[0].dtype)])

    return Graph(**{name: join(name, option) for name, option in _COUNTED_BY.items()})


def _filled(graph: Graph, xp) -> Any:
    """The graph, with the masks and the ``node_graph`` that it lacks; ``xp`` is NumPy or JAX."""
    counts = {"node_mask": graph.nodes.shape[0], "edge_mask": graph.senders.shape[0], "graph_mask": count_graphs(graph)}
    found = {name: xp.ones(count, bool) for name, count in counts.items() if getattr(graph, name) is None}
    if graph.node_graph is None:
        found["node_graph"] = xp.zeros(graph.nodes.shape[0], np.int32)
    return graph._replace(**found)


def unbatch_graphs(graph: Graph) -> list[Graph]:
    r"""Split a batch into a list of graphs, without padding: the inverse of ``batch_graphs``.

    Each has its own ``nodes``, ``senders``, ``receivers``, ``edges`` and ``global_features`` (g = 1), in the order of
    the batch. Their sizes depend on values, so it does not work under ``jit``.

    >>> pair = Graph(jnp.ones((2, 1)), jnp.array([0]), jnp.array([1]))
    >>> batch = batch_graphs([pair, pair], n_nodes=9, n_graphs=4)
    >>> [each.nodes.shape for each in unbatch_graphs(batch)]
    [(2, 1), (2, 1)]

    Source: Battaglia et al. 2018, arXiv:1806.01261, section 4.2 (batches of graphs).
    """
    check_shapes(graph)
    traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(graph))
    repair = "call it outside of jit and vmap, since its sizes depend on values, or use the masks of the batch"
    require(not traced, "concrete arrays", "traced ones", repair)
    check_graph(graph)
    # The result consists of NumPy arrays if the batch does.
    keep = np.asarray if all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(graph)) else jnp.asarray
    # On the host: sizes of the results depend on values, for each of which JAX would compile indexing again.
    whole = _filled(jax.tree.map(np.asarray, graph), np)
    n, valid, valid_edge = whole.nodes.shape[0], whole.node_mask, whole.edge_mask
    senders, receivers = (np.where(valid_edge, ids, 0) for ids in (whole.senders, whole.receivers))
    # Layers ignore an edge to a node of padding, so the separate graphs do not have it either.
    valid_edge = valid_edge & valid[senders] & valid[receivers] if n else valid_edge
    each = []
    for i in np.flatnonzero(whole.graph_mask):
        own = valid & (whole.node_graph == i)
        own_edge = valid_edge & own[receivers] if n else valid_edge
        # The place of each kept node among the kept ones, by which the edges are numbered again.
        number: Any = (np.cumsum(own) - 1).astype(np.int32)
        single = Graph(
            nodes=whole.nodes[own],
            senders=number[senders[own_edge]],
            receivers=number[receivers[own_edge]],
            edges=None if whole.edges is None else whole.edges[own_edge],
            global_features=None if whole.global_features is None else whole.global_features[i : i + 1],
        )
        each.append(jax.tree.map(keep, single))
    return each


# ---- graphs in layers ------------------------------------------------------------------------


def count_graphs(graph: Graph) -> int:
    """The number of graphs, padding included, from the shapes."""
    for per_graph in (graph.global_features, graph.graph_mask):
        if per_graph is not None:
            return per_graph.shape[0]
    # The largest entry of node_graph is a value, which jit does not know.
    expected = "a graph whose shapes determine the number of graphs"
    repair = "give the graph a graph_mask, as batch_graphs does"
    require(graph.node_graph is None, expected, "node_graph alone", repair)
    return 1


def without_padding(graph: Graph) -> tuple[Graph, Bool[Array, ""] | np.bool_]:
    """The graph with zeros at padding and edges to padding masked, and whether its indices are in range."""
    graph = jax.tree.map(jnp.asarray, graph)
    senders, receivers = as_int32(graph.senders), as_int32(graph.receivers)
    edge_mask, n = graph.edge_mask, graph.nodes.shape[0]
    ok = all_in_range(edge_mask, n, senders, receivers)
    # How many graphs there are is known from the features of graphs or their mask only.
    per_graph = graph.global_features if graph.graph_mask is None else graph.graph_mask
    if graph.node_graph is not None and per_graph is not None:
        ok = ok & all_in_range(graph.node_mask, per_graph.shape[0], graph.node_graph)
    if graph.node_mask is not None:
        both = take_rows(graph.node_mask, senders) & take_rows(graph.node_mask, receivers)
        edge_mask = both if edge_mask is None else edge_mask & both
    if edge_mask is not None:
        # The indices of masked edges may be anything; 0 keeps gathers in range.
        senders, receivers = jnp.where(edge_mask, senders, 0), jnp.where(edge_mask, receivers, 0)
    valid = graph._replace(
        nodes=where_rows(graph.node_mask, graph.nodes),
        edges=None if graph.edges is None else where_rows(edge_mask, graph.edges),
        global_features=None if graph.global_features is None else where_rows(graph.graph_mask, graph.global_features),
        senders=senders,
        receivers=receivers,
        node_graph=None if graph.node_graph is None else as_int32(graph.node_graph),
        edge_mask=edge_mask,
    )
    return valid, ok


# ---- checks ----------------------------------------------------------------------------------


@checked
def check_graph(graph: Graph, *, check: bool = False) -> None:
    r"""Raise an error unless the arrays of a graph fit together and its indices are in range.

    Layers call it. Under ``jit`` they can check shapes only, and return NaN everywhere for an index out of
    range. To raise the error under ``jit``, call ``check_graph(graph, check=True)`` once, at the top of the
    function, and wrap the function in ``jax.experimental.checkify.checkify``.

    Args:
        graph: one graph, or a batch in one.
        check: report indices out of range from inside ``jit`` to ``checkify``.

    >>> check_graph(Graph(jnp.zeros((2, 1)), jnp.array([0]), receivers=jnp.array([2])))
    Traceback (most recent call last):
    ...
    ValueError: check_graph expected receivers from 0 to 1 (there are 2 nodes), got 2; number the nodes from 0.
    """
    check_shapes(graph)
    n, edge_mask = graph.nodes.shape[0], graph.edge_mask
    check_indices("senders", graph.senders, n, edge_mask, check=check)
    check_indices("receivers", graph.receivers, n, edge_mask, check=check)
    if graph.node_graph is not None and (graph.global_features is not None or graph.graph_mask is not None):
        check_indices("node_graph", graph.node_graph, count_graphs(graph), graph.node_mask, "graph", check=check)


def check_nodes(graph: Graph, *, values: bool = True) -> None:
    """`check_graph` (or `check_shapes`), and check that nodes have one axis of floating-point features."""
    (check_graph if values else check_shapes)(graph)
    _check_rank(as_shapes(graph.nodes))


def check_shapes(graph: Graph) -> None:
    """Raise an error unless the shapes of the arrays of a graph fit together; for ``init``."""
    repair = "pass Graph(nodes, senders, receivers)"
    require(isinstance(graph, Graph), "a Graph", graph, repair, error=TypeError)
    shapes = as_shapes(graph)
    _check_fields(*shapes)
    several = [x.shape[0] for x in (shapes.global_features, shapes.graph_mask) if x is not None and x.shape[0] != 1]
    expected = "node_graph, the graph of each node, where there are several graphs"
    require(
        graph.node_graph is not None or not several, expected, f"{several} graphs", "combine graphs by batch_graphs"
    )


@checked
def _check_fields(
    nodes: Shaped[ArrayOrShape, "n *features"],
    senders: Integer[ArrayOrShape, "e"],
    receivers: Integer[ArrayOrShape, "e"],
    edges: Shaped[ArrayOrShape, "e *edge_features"] | None,
    global_features: Shaped[ArrayOrShape, "g *global_features"] | None,
    node_graph: Integer[ArrayOrShape, "n"] | None,
    node_mask: Bool[ArrayOrShape, "n"] | None,
    edge_mask: Bool[ArrayOrShape, "e"] | None,
    graph_mask: Bool[ArrayOrShape, "g"] | None,
) -> None:
    """Check the dtypes and shapes of the fields of a graph, by the annotations."""


@checked
def _check_rank(nodes: Float[ArrayOrShape, "n in"]) -> None:
    """Check that the features of nodes have one axis, by the annotation."""
