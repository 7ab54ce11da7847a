"""The graph-network block, and layers that map the features of edges, nodes and graphs separately."""

import math
from typing import Any, overload

import jax
import jax.numpy as jnp

from jaxblocks.backend.symbolic_sizes import Size
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import check_params
from jaxblocks.core.children import apply_child, children, init_child, make_combinator, output_shapes
from jaxblocks.core.pairs import Layer, LayerLike, StatefulLayer, StatelessLike, builder
from jaxblocks.layers.graph.data import Graph, check_graph, check_shapes, count_graphs, without_padding
from jaxblocks.layers.graph.segments import How, nan_unless, reduce_segments, take_rows, where_rows

__all__ = ["GraphBlock", "GraphMapFeatures", "check_rows", "one_graph", "with_mask", "without_mask"]

_FIELDS = {
    "edge": ("edges", "edge_mask"),
    "node": ("nodes", "node_mask"),
    "graph": ("global_features", "graph_mask"),
}


@overload
def GraphBlock(
    *,
    edge: StatelessLike | None = None,
    node: StatelessLike | None = None,
    graph: StatelessLike | None = None,
    aggregate: How = "sum",
    sent_edges: bool = False,
) -> Layer[Graph]: ...
@overload
def GraphBlock(
    *,
    edge: LayerLike | None = None,
    node: LayerLike | None = None,
    graph: LayerLike | None = None,
    aggregate: How = "sum",
    sent_edges: bool = False,
) -> StatefulLayer[Graph]: ...
@builder
def GraphBlock(
    *,
    edge: LayerLike | None = None,
    node: LayerLike | None = None,
    graph: LayerLike | None = None,
    aggregate: How = "sum",
    sent_edges: bool = False,
) -> Layer[Graph] | StatefulLayer[Graph]:
    r"""The graph-network block $(E, V, u) ↦ (E', V', u')$: update edges, then nodes, then the graph.

    .. math::

        e'_k = ϕ_e(e_k, v_{s_k}, v_{r_k}, u),
        v'_i = ϕ_v(Agg(e'_k : r_k = i), v_i, u),
        u' = ϕ_u(Agg(e'_k), Agg(v'_i), u)

    with $s_k, r_k$ sender and receiver of edge k. All three features of a layer depend on the three of the
    previous layer (the lecture's indices $E_{l-1}, V_{-1}, u_{-1}$ are a misprint).

    Each projection is a layer, or function, of one array (rows, features): the arguments in the equations, concatenated
    along the last axis; features of several axes are flattened, and features that the graph does not have are omitted.
    Side inputs (``train``, ``key``) are passed to the projections, states are returned, and a projection that reads
    ``mask``, such as ``BatchNorm``, gets the mask of its rows, so that padding does not affect its statistics.

    The block is equivariant: renumbering the nodes renumbers V' and leaves E' and u' unchanged.

    Args:
        edge, node, graph: $ϕ_e, ϕ_v, ϕ_u$; without one, these features do not change. Without
            $ϕ_e$, and for a graph without features of edges, nodes aggregate the features of their senders.
        aggregate: ``"sum"``, ``"mean"``, ``"max"`` or ``"softmax"``, as in `aggregate`; nodes without incoming edges
            get 0. With ``"softmax"`` a projection may return a tuple ``(logits, values)``; the values are the new
            features. On a `complete_graph` this is self-attention, on a sparse one masked attention.
        sent_edges: ``True`` gives $ϕ_v$ also $Agg(e'_k : s_k = i)$, over the edges that the node sends, after that over
            the edges that it receives. (Without features of edges: over the features of their receivers.)

    Raises:
        ValueError: for arrays that do not fit together, indices out of range (see `check_graph`), or a projection that
            does not return one row for each row of its input.

    >>> block = GraphBlock(edge=MLP(8, 4), node=MLP(8, 4), graph=Dense(2))
    >>> triangle = complete_graph(jnp.ones((3, 5)))
    >>> params = jax.jit(block.init)(jax.random.key(0), triangle)
    >>> out = jax.jit(block.apply)(params, triangle)
    >>> out.edges.shape, out.nodes.shape, out.global_features.shape
    ((9, 4), (3, 4), (1, 2))

    Source: Battaglia et al. 2018, Relational inductive biases, deep learning, and graph networks, arXiv:1806.01261,
    algorithm 1; Cevher, Mathematics of Data, "Graphical layers".
    """
    how = aggregate

    def rows(name, graph, logits):
        if name == "edge":
            # e_k, v_{s_k}, v_{r_k} and u of the graph of edge k
            ends = [take_rows(graph.nodes, graph.senders), take_rows(graph.nodes, graph.receivers)]
            of_graph = _repeat_rows(graph.global_features, _graph_of_edges(graph), graph.senders.shape[0])
            return _concatenate([graph.edges, *ends, of_graph])
        if name == "node":
            n = graph.nodes.shape[0]
            pieces = []
            # Aggregate the edges at their receivers and, with sent_edges, also at their senders.
            for here, there in ((graph.receivers, graph.senders), (graph.senders, graph.receivers))[: 1 + sent_edges]:
                # Without edge features, the features of the node at the other end are the message.
                messages = take_rows(graph.nodes, there) if graph.edges is None else graph.edges
                _check_floating("messages", messages)
                pieces.append(reduce_segments(messages, here, n, how, logits.get("edge"), graph.edge_mask))
            return _concatenate([*pieces, graph.nodes, _repeat_rows(graph.global_features, graph.node_graph, n)])
        g = count_graphs(graph)
        pieces = []
        for label, values, ids, mask in (
            ("edge", graph.edges, _graph_of_edges(graph), graph.edge_mask),
            ("node", graph.nodes, graph.node_graph, graph.node_mask),
        ):
            if values is not None:
                _check_floating(f"{label}s", values)
                # Without node_graph there is a single graph, number 0.
                ids = jnp.zeros(values.shape[:1], jnp.int32) if ids is None else ids
                pieces.append(reduce_segments(values, ids, g, how, logits.get(label), mask))
        return _concatenate([*pieces, graph.global_features])

    return _map_features({"edge": edge, "node": node, "graph": graph}, rows, with_scores=how == "softmax")


@overload
def GraphMapFeatures(
    *, edge: StatelessLike | None = None, node: StatelessLike | None = None, graph: StatelessLike | None = None
) -> Layer[Graph]: ...
@overload
def GraphMapFeatures(
    *, edge: LayerLike | None = None, node: LayerLike | None = None, graph: LayerLike | None = None
) -> StatefulLayer[Graph]: ...
@builder
def GraphMapFeatures(
    *, edge: LayerLike | None = None, node: LayerLike | None = None, graph: LayerLike | None = None
) -> Layer[Graph] | StatefulLayer[Graph]:
    r"""Map the features of each edge, node and graph separately: $e'_k = ϕ_e(e_k), v'_i = ϕ_v(v_i), ...$.

    For encoders and decoders around blocks, and for activations, norms and dropout between them:
    ``Serial(GCN(16), GraphMapFeatures(node=relu), GCN(2))``. Padding, side inputs, state and ``mask`` are as in
    `GraphBlock`.

    Args:
        edge, node, graph: layers, or functions, of one array; without one, these features do not change.

    >>> pair = complete_graph(jnp.array([[-1.0], [2.0]]))
    >>> GraphMapFeatures(node=relu).apply({"node": ()}, pair).nodes.ravel()
    Array([0., 2.], dtype=float32)

    Source: Battaglia et al. 2018, arXiv:1806.01261, section 4.2 (the independent block).
    """

    def rows(name, graph, logits):
        x = getattr(graph, _FIELDS[name][0])
        require(x is not None, f"{_FIELDS[name][0]} in the graph for the layer {name}", x, f"leave {name}= out")
        return x

    return _map_features({"edge": edge, "node": node, "graph": graph}, rows, with_scores=False)


def _map_features(layers, rows, *, with_scores):
    """The pair that projects ``rows(name, graph, logits)`` by the layers given, in the order edge, node, graph.

    Later rows depend on the outputs of earlier layers. ``logits`` contains those that a projection returned with its
    values.
    """
    kids = children((), {name: layer for name, layer in layers.items() if layer is not None})
    require(len(kids) > 0, "at least one of edge, node and graph", "none", "pass for instance node=Dense(8)")
    names = [str(child.label) for child in kids]

    def replace(name, graph, logits, y):
        """The graph with the result of a projection."""
        values: Any = y
        # With softmax aggregation a projection may return (logits, values); any other tuple fails in check_rows.
        if type(y) is tuple and len(y) == 2 and with_scores:
            logits, values = {**logits, name: y[0]}, y[1]
        count = {"edge": graph.senders, "node": graph.nodes}.get(name)
        count = count_graphs(graph) if count is None else count.shape[0]
        repair = f"pass a layer that acts on the last axis, such as {name}=Dense(8)"
        if type(y) is tuple and not with_scores:
            repair = 'for a tuple (logits, values), pass aggregate="softmax"'
        check_rows(name, values, count, repair)
        # The softmax of a later aggregation has these logits, one for each row, or for each row and head.
        if name in logits:
            s = logits[name]
            expected = f"{name} to return logits with the first axes of its values, (rows,) or (rows, heads)"
            fits = 0 < s.ndim and s.shape == values.shape[: s.ndim]
            repair = f"return logits.reshape({len(values)}, -1)[:, 0]"
            require(fits, expected, f"{describe(s)} for values {describe(values)}", repair)
        # Padding rows become zero again: the projections may map zeros to other values, for example by a bias.
        field, mask = _FIELDS[name]
        return graph._replace(**{field: where_rows(getattr(graph, mask), values)}), logits

    def init(key, inputs, side):
        graph = one_graph(inputs)
        check_shapes(graph)
        graph, logits = jax.eval_shape(lambda graph: without_padding(graph)[0], graph), {}
        params, states = {}, {}
        for child, name in zip(kids, names, strict=True):
            given = with_mask(child, side, getattr(graph, _FIELDS[name][1]))
            x = jax.eval_shape(lambda graph, logits, name=name: rows(name, graph, logits), graph, logits)
            params[name], states[name] = p, s = init_child(child, key, (x,), given)
            y = output_shapes(child, key, p, s, (x,), given)
            graph, logits = jax.eval_shape(lambda *args, name=name: replace(name, *args), graph, logits, y)
        return params, states, lambda: graph

    def apply(params, states, inputs, side):
        before = one_graph(inputs)
        check_graph(before)
        check_params(params, **dict.fromkeys(names))
        # Padding is removed before the first projection, so that NaN in padding rows cannot enter a sum; `ok` is
        # false where an index is out of range, and then the changed features are NaN.
        (graph, ok), logits, after = without_padding(before), {}, {}
        for child, name in zip(kids, names, strict=True):
            given = with_mask(child, side, getattr(graph, _FIELDS[name][1]))
            x = rows(name, graph, logits)
            y, after[name] = apply_child(child, params[name], states[name], (x,), given)
            graph, logits = replace(name, graph, logits, y)
        changed = {_FIELDS[name][0]: nan_unless(ok, getattr(graph, _FIELDS[name][0])) for name in names}
        return before._replace(**changed), after

    return make_combinator(tuple(map(without_mask, kids)), init, apply)


def one_graph(inputs: tuple) -> Graph:
    """The only input of a layer."""
    require(len(inputs) == 1, "one Graph", f"{len(inputs)} inputs", "write apply(params, graph)", error=TypeError)
    return inputs[0]


def without_mask(child):
    """The child without its side input ``mask``, which the graph layer passes."""
    reads, init_reads = ({k: v for k, v in r.items() if k != "mask"} for r in (child.reads, child.init_reads))
    return child._replace(reads=reads, init_reads=init_reads)


def with_mask(child, side, mask):
    """The side inputs with the mask of the child's rows, where the child reads one."""
    return {**side, "mask": mask} if mask is not None and "mask" in child.reads else side


def check_rows(name: str, y, count: Size, repair: str) -> None:
    """Raise a ``ValueError`` unless the layer ``name`` returned one array with a row for each row of its input."""
    require(getattr(y, "shape", ())[:1] == (count,), f"{name} to return one array with {count} rows", y, repair)


def _check_floating(name, x):
    repair = f"convert them with {name}.astype(jnp.float32)"
    if jnp.iscomplexobj(x):
        repair = f"pass their parts as features: jnp.concatenate([{name}.real, {name}.imag], -1)"
    floating = jnp.issubdtype(x.dtype, jnp.floating)
    require(floating, f"floating-point {name}", x, repair, error=TypeError)


def _graph_of_edges(graph):
    """The number of the graph to which each edge belongs; ``None`` for a single graph."""
    return None if graph.node_graph is None else take_rows(graph.node_graph, graph.receivers)


def _repeat_rows(x, ids, count):
    """Global features for each of ``count`` rows."""
    if x is None:
        return None
    return jnp.broadcast_to(x, (count, *x.shape[1:])) if ids is None else take_rows(x, ids)


def _concatenate(pieces):
    """All pieces that are not ``None`` as one array (rows, features)."""
    pieces = [x for x in pieces if x is not None]
    equal = len({x.dtype for x in pieces}) == 1 and jnp.issubdtype(pieces[0].dtype, jnp.floating)
    expected, repair = "nodes, edges and global_features of one floating-point dtype", "cast them with .astype"
    require(equal, expected, ", ".join(map(describe, pieces)), repair, error=TypeError)
    return jnp.concatenate([x.reshape(x.shape[0], math.prod(x.shape[1:])) for x in pieces], axis=-1)
