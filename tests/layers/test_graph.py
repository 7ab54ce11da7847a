"""Graphs: references with dicts and loops, attention, relabeling, padding, batches."""

import functools

import arrays
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled, drawn
from jax.experimental import checkify

from jaxblocks import (
    MLP,
    BatchNorm,
    Dense,
    Dropout,
    Repeat,
    Serial,
    StatefulLayer,
    Wire,
    attention,
    relu,
    side_inputs,
)
from jaxblocks.layers.graph import (
    GAT,
    GCN,
    GIN,
    Graph,
    GraphBlock,
    GraphMapFeatures,
    adjacency_graph,
    aggregate,
    batch_graphs,
    check_graph,
    complete_graph,
    unbatch_graphs,
)

close = functools.partial(arrays.close, tolerance=4e-6)

HOW = ("sum", "mean", "max", "softmax")
LAYERS = {
    **{f"block, {how}": GraphBlock(edge=Dense(3), node=Dense(3), graph=Dense(2), aggregate=how) for how in HOW},
    "GCN": GCN(3),
    "GAT": GAT(2, heads=2),
    "GIN": GIN(Dense(3), epsilon=0.5),
}
KINDS = ("block, softmax", "GCN", "GAT", "GIN")


def random_graph(seed=0, n=5, e=8, dtype=np.float32):
    """A random graph of NumPy arrays. Self-loops and double edges may occur; the last node is isolated."""
    rng = np.random.default_rng(seed)
    return Graph(
        nodes=rng.normal(size=(n, 3)).astype(dtype),
        senders=rng.integers(n - 1, size=e).astype(np.int32),
        receivers=rng.integers(n - 1, size=e).astype(np.int32),
        edges=rng.normal(size=(e, 2)).astype(dtype),
        global_features=rng.normal(size=(1, 2)).astype(dtype),
    )


@functools.cache
def params_of(name, dtype="float32"):
    """Params for `random_graph`, where no bias is zero."""
    return jax.tree.map(lambda p: p.astype(dtype), drawn(LAYERS[name], random_graph()))


@functools.cache
def jitted(name):
    return jax.jit(lambda params, graph: LAYERS[name].apply(params, graph))


def adjacency(graph):
    a = np.zeros((graph.nodes.shape[0],) * 2)
    np.add.at(a, (np.asarray(graph.receivers), np.asarray(graph.senders)), 1)
    return a


# ---- aggregation


def gathered(values, how, scores=None):
    """Aggregate one neighborhood by the formula; values are (entries, heads, features)."""
    if how == "softmax":
        scores = values if scores is None else scores[..., None]
        weights = np.exp(scores - scores.max(0)) / np.exp(scores - scores.max(0)).sum(0)
        return (weights * values).sum(0)
    return getattr(np, how)(values, 0)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_aggregation_equals_a_loop_over_neighborhoods(dtype):
    """Each node gets the sum, mean, maximum or softmax average of its incoming values; isolated nodes get 0."""
    rng, tolerance = np.random.default_rng(0), {"float64": 1e-12, "bfloat16": 1e-2}[dtype]
    values, scores = (rng.normal(size=size).astype(jnp.dtype(dtype)) for size in ((7, 2, 3), (7, 2)))
    receivers, mask = np.array([0, 3, 3, 0, 1, 3, 0]), np.array([1, 1, 1, 1, 0, 1, 1], bool)

    @jax.jit
    def every(values, scores, receivers, mask):
        own = {how: aggregate(values, receivers, 5, how=how, mask=mask) for how in HOW}
        return own | {"scores": aggregate(values, receivers, 5, how="softmax", logits=scores, mask=mask)}

    with jax.enable_x64(dtype == "float64"):
        found = every(values, scores, receivers, mask)
    for how, y in found.items():
        assert y.dtype == dtype
        for i in range(5):
            here = (receivers == i) & mask
            s, v = (each[here].astype(np.float64) for each in (scores, values))
            given = ("softmax", s) if how == "scores" else (how,)
            expected = gathered(v, *given) if here.any() else np.zeros((2, 3))
            np.testing.assert_allclose(np.asarray(y, np.float64)[i], expected, rtol=tolerance, atol=tolerance)
        assert (np.asarray(y)[[1, 2, 4]] == 0).all()
    without = every(values[:0].astype(np.float32), scores[:0].astype(np.float32), receivers[:0], mask[:0])
    assert all((np.asarray(y) == np.zeros((5, 2, 3))).all() for y in without.values())


by_all = jax.jit(lambda values, ids: {how: aggregate(values, ids, 4, how=how) for how in HOW})


def test_softmax_keeps_the_tangent_of_the_values_beside_large_scores():
    values, logits, d_values = (
        np.float32([[1], [2], [3]]),
        np.float32([[1e4], [0], [-1e4]]),
        np.float32([[1e-3], [5], [6]]),
    )
    f = lambda v, s: aggregate(v, np.zeros(3, int), 1, how="softmax", logits=s)
    np.testing.assert_array_equal(
        compiled(lambda *x: jax.jvp(f, x[:2], x[2:]))(values, logits, d_values, logits)[1], d_values[:1]
    )


def test_softmax_is_stable_and_equal_maxima_share_the_weight():
    """Scores of +-1e4 give weights 0 and 1, equal scores 1/2, with finite gradients."""
    ids, values, tied = np.array([0, 0, 1, 1]), np.float32([1, 3, 5, 7]), np.float32([2, 2, 1, 4])
    scores = np.float32([1e4, -1e4, -1e4, -1e4])

    @compiled
    def derived(values, scores, tied):
        y, pull = jax.vjp(lambda v, s: aggregate(v, ids, 3, how="softmax", logits=s), values, scores)
        return y, pull(jnp.ones(3)), jax.grad(lambda v: aggregate(v, ids, 3, how="max").sum())(tied)

    y, gradient, of_ties = derived(values, scores, tied)
    close(y, np.array([1, 6, 0]))
    close(gradient, (np.array([1, 0, 0.5, 0.5]), np.array([0, 0, -0.5, 0.5])))
    close(of_ties, np.array([0.5, 0.5, 0, 1]))


def test_half_precision_is_accumulated_in_float32():
    """The sum of 4096 ones in bfloat16 is 4096; accumulated in bfloat16 it would stop at 256."""
    ones = np.ones((4096, 1), jnp.bfloat16)
    y = jax.jit(lambda v, ids: [aggregate(v, ids, 1, how=how) for how in ("sum", "mean", "softmax")])
    assert [a.item() for a in y(ones, np.zeros(4096, np.int32))] == [4096, 1, 1]


def test_masked_entries_have_no_effect():
    """NaN, infinity and indices out of range at masked entries change neither values nor gradients."""

    def f(values, scores, receivers, mask):
        own = [aggregate(values, receivers, 3, how=how, mask=mask) for how in HOW]
        scored = aggregate(values, receivers, 3, how="softmax", logits=scores, mask=mask)
        return jnp.stack([(y**2).sum() for y in (*own, scored)])

    values, scores, ids = np.float32([[1], [2], [4]]), np.float32([0.3, 0.1, 0.2]), np.array([0, 0, 2])
    run = compiled(lambda *args: (f(*args), jax.jacrev(f, (0, 1))(*args)))
    plain = run(values, scores, ids, np.ones(3, bool))
    with jax.debug_nans(False):
        bad = np.float32([[np.nan], [1e38], [2]])
        longer = np.concatenate([bad, values]), np.concatenate([bad[:, 0], scores]), np.array([7, -1, 0, 0, 0, 2])
        value, grads = run(*longer, np.arange(6) >= 3)
    close((value, *(g[:, 3:] for g in grads)), (plain[0], *plain[1]), tolerance=1e-6)
    assert all((g[:, :3] == 0).all() for g in grads)


# ---- the block


def oracle(params, graph, how):
    """Algorithm 1 of Battaglia et al. with dicts and loops, in float64."""
    project = {name: lambda x, p=p: x @ np.asarray(p["kernel"]) + np.asarray(p["bias"]) for name, p in params.items()}
    v, u = dict(enumerate(np.asarray(graph.nodes))), np.asarray(graph.global_features)[0]
    e = {
        k: (int(s), int(r), x)
        for k, (s, r, x) in enumerate(zip(graph.senders, graph.receivers, np.asarray(graph.edges), strict=True))
    }
    e_new = {k: project["edge"](np.concatenate([x, v[s], v[r], u])) for k, (s, r, x) in e.items()}
    v_new = {}
    for i in v:
        incoming = [e_new[k] for k, (_, r, _) in e.items() if r == i]
        heard = gathered(np.stack(incoming), how) if incoming else np.zeros(3)
        v_new[i] = project["node"](np.concatenate([heard, v[i], u]))
    all_edges, all_nodes = (gathered(np.stack(list(d.values())), how) for d in (e_new, v_new))
    u_new = project["graph"](np.concatenate([all_edges, all_nodes, u]))
    return np.stack(list(v_new.values())), np.stack(list(e_new.values())), u_new[None]


@pytest.mark.parametrize("how", ["max", "softmax"])
def test_the_block_equals_its_algorithm(how):
    """It updates edges, then nodes, then global features, each from the features updated before."""
    with jax.enable_x64(True):
        graph = random_graph(dtype=np.float64)
        params = params_of(f"block, {how}", "float64")
        out = jitted(f"block, {how}")(params, graph)
        close((out.nodes, out.edges, out.global_features), oracle(params, graph, how), tolerance=1e-12)


def test_each_of_the_three_projections_is_optional():
    """Features without a projection are unchanged; without edge features, nodes aggregate their senders."""
    graph = random_graph()
    keep = lambda x: x
    nodes = GraphBlock(node=keep).apply({"node": ()}, graph)
    assert nodes.edges is graph.edges and nodes.global_features is graph.global_features
    assert nodes.senders is graph.senders and nodes.receivers is graph.receivers
    heard = np.eye(5)[graph.receivers].T @ graph.edges
    close(nodes.nodes, np.concatenate([heard, graph.nodes, np.tile(graph.global_features, (5, 1))], -1))
    bare = graph._replace(edges=None, global_features=None)
    close(
        GraphBlock(node=keep).apply({"node": ()}, bare).nodes,
        np.concatenate([adjacency(graph) @ graph.nodes, graph.nodes], -1),
    )
    edges = GraphBlock(edge=keep).apply({"edge": ()}, bare)
    close(edges.edges, np.concatenate([graph.nodes[graph.senders], graph.nodes[graph.receivers]], -1))
    assert edges.nodes is graph.nodes and edges.global_features is None
    whole = GraphBlock(graph=keep, aggregate="mean").apply({"graph": ()}, bare)
    close(whole.global_features, bare.nodes.mean(0, keepdims=True))


def test_features_of_several_axes_are_flattened():
    nodes = np.random.default_rng(0).normal(size=(4, 2, 3)).astype(np.float32)
    block = GraphBlock(node=lambda x: x)
    y = compiled(lambda nodes: block.apply({"node": ()}, complete_graph(nodes)).nodes)(nodes)
    close(y, np.concatenate([np.tile(nodes.sum(0).reshape(1, 6), (4, 1)), nodes.reshape(4, 6)], -1))


# ---- attention


def test_softmax_aggregation_is_attention():
    """On a sparse graph it equals masked attention, in values and gradients."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        q, k, v, weights = rng.normal(size=(4, 5, 2, 4))  # (n, heads, d)
        seen = rng.random((5, 5)) < 0.4
        seen[3] = False  # node 3 has no edge
        graph = adjacency_graph(v, jnp.asarray(seen))

        def by_graph(q, k, v):
            scores = (q[graph.receivers] * k[graph.senders]).sum(-1) / 2  # (e, heads)
            return aggregate(v[graph.senders], graph.receivers, 5, how="softmax", logits=scores)

        def both(f):
            y, pull = jax.vjp(f, q, k, v)
            return y, pull(weights)

        by_attention = lambda q, k, v: attention(q, k, v, mask=jnp.asarray(seen)[None])
        got, expected = jax.jit(lambda: (both(by_graph), both(by_attention)))()
        close(got, expected, tolerance=1e-12)


def test_a_block_with_softmax_is_self_attention():
    """The edge projection returns (scores, values); the node projection returns the aggregate."""
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)

    def message(f, pair):  # (e, sender and receiver)
        sender, receiver = jnp.split(pair, 2, -1)
        q, k, v = (each.reshape(-1, 2, 4) for each in (f.q(receiver), f.k(sender), f.v(sender)))
        return (q * k).sum(-1) / 2, v

    block = GraphBlock(
        edge=Wire(message, q=Dense(8), k=Dense(8), v=Dense(8)), node=lambda x: x[:, :8], aggregate="softmax"
    )
    params = drawn(block, complete_graph(x))
    edge = params["edge"]
    q, k, v = ((x @ edge[name]["kernel"] + edge[name]["bias"]).reshape(6, 2, 4) for name in "qkv")
    out = jax.jit(lambda x: block.apply(params, complete_graph(x)))(x)
    close(out.nodes, jax.jit(attention)(q, k, v).reshape(6, 8), tolerance=1e-5)
    assert out.edges.shape == (36, 2, 4)


# ---- GCN, GAT, GIN


def test_gcn_on_two_nodes():
    """An edge in both directions averages its two nodes; an edge in one direction divides its message by sqrt 2."""
    params, x = {"kernel": np.eye(1, dtype=np.float32)}, np.array([[1.0], [3.0]], np.float32)
    layer, without = GCN(1, use_bias=False), GCN(1, use_bias=False, self_loops=False)
    run = jax.jit(lambda graph: [each.apply(params, graph).nodes for each in (layer, without)])
    both = Graph(x, np.array([0, 1], np.int32), np.array([1, 0], np.int32))
    close(run(both), [np.array([[2.0], [2.0]]), np.array([[3.0], [1.0]])])
    one = Graph(x, np.array([0], np.int32), np.array([1], np.int32))
    # without self-loops, node 0 has no incoming edge: its degree is 0, and so is its message
    close(run(one), [np.array([[1.0], [1 / 2**0.5 + 3 / 2]]), np.array([[0.0], [0.0]])])


def test_epsilon_can_be_learned():
    """A param initialized to epsilon gives the values of a fixed epsilon; its gradient is <1, sum_i x_i> for a sum."""
    graph, mlp = random_graph()._replace(edges=None, global_features=None), lambda x: x
    fixed, learned = GIN(mlp, epsilon=0.5), GIN(mlp, epsilon=0.5, learn_epsilon=True)
    params = learned.init(jax.random.key(0), graph)
    total = jax.jit(jax.value_and_grad(lambda params: learned.apply(params, graph).nodes.sum()))
    value, gradient = total(params)
    close(value, compiled(lambda graph: fixed.apply({"mlp": ()}, graph).nodes.sum())(graph), tolerance=1e-5)
    close(gradient, {"mlp": (), "epsilon": graph.nodes.sum()}, tolerance=1e-5)


def test_wide_and_narrow_kernels_agree():
    """GCN sends the narrower of X and X W along the edges; both orders give the same product."""
    graph = random_graph()._replace(edges=None, global_features=None)
    kernel = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    apply = lambda kernel: jax.jit(GCN(kernel.shape[1], use_bias=False).apply)({"kernel": kernel}, graph).nodes
    wide, narrow = apply(kernel), [apply(half) for half in np.split(kernel, 2, 1)]
    close(wide, np.concatenate(narrow, -1), tolerance=1e-5)


# ---- properties of every graph layer


def padded(graph, n=9, e=13):
    """Add padding of NaN before and after; padded edges have a valid or padded sender, and receivers out of range."""
    front, behind = 2, n - 2 - graph.nodes.shape[0]
    fronts, behinds = 3, e - 3 - graph.senders.shape[0]

    def pad(x, before, after, value):
        return np.pad(x, [(before, after), *[(0, 0)] * (x.ndim - 1)], constant_values=value)

    return Graph(
        nodes=pad(graph.nodes, front, behind, np.nan),
        senders=pad(graph.senders + front, fronts, behinds, 3),
        receivers=pad(graph.receivers + front, fronts, behinds, 99),
        edges=pad(graph.edges, fronts, behinds, np.nan),
        global_features=pad(graph.global_features, 0, 1, np.nan),
        node_graph=np.zeros(n, np.int32),
        node_mask=pad(np.ones(graph.nodes.shape[0], bool), front, behind, False),
        edge_mask=pad(np.ones(graph.senders.shape[0], bool), fronts, behinds, False),
        graph_mask=np.array([True, False]),
    )


@pytest.mark.parametrize("name", KINDS)
def test_padding_has_no_effect(name):
    """Values and gradients by params and features equal those of the graph alone; at padding they are 0."""
    graph, layer, params = random_graph(), LAYERS[name], params_of(name)

    def f(params, features, graph):
        out = layer.apply(params, graph._replace(nodes=features[0], edges=features[1], global_features=features[2]))
        kept = (out.nodes, *((out.edges, out.global_features) if name.startswith("block") else ()))
        return sum((y**2).sum() for y in kept), kept  # includes padding

    run = jax.jit(jax.value_and_grad(f, argnums=(0, 1), has_aux=True))
    (value, kept), (by_params, by_features) = run(params, graph[:1] + graph[3:5], graph)
    with jax.debug_nans(False):
        big = padded(graph)
        (value_, kept_), (by_params_, by_features_) = run(params, big[:1] + big[3:5], big)
    close((value_, by_params_), (value, by_params), tolerance=1e-5)
    masks = (big.node_mask, big.edge_mask, big.graph_mask)
    for got, expected in ((kept_, kept), (by_features_, by_features)):
        for y, z, mask in zip(got, expected, masks, strict=False):
            close(np.asarray(y)[mask], np.asarray(z), tolerance=1e-5)
            assert (np.asarray(y)[~mask] == 0).all()


@pytest.mark.parametrize("name", ["block, softmax", "GAT"])
def test_edges_without_nodes_are_padding(name):
    """A graph without nodes, as a batch of empty ones has, padded to a number of edges, equals one without edges."""
    graph, params = random_graph(), params_of(name)
    alone = graph._replace(
        nodes=graph.nodes[:0], senders=graph.senders[:0], receivers=graph.receivers[:0], edges=graph.edges[:0]
    )
    out, expected = (jitted(name)(params, one) for one in (batch_graphs([alone], n_edges=3), alone))
    close(out.global_features, expected.global_features, tolerance=1e-6)
    assert out.nodes.shape == expected.nodes.shape and not out.edges.any()


def test_edges_of_masked_nodes_are_padding():
    """A node_mask alone removes a node: other nodes receive no message from it."""
    graph, params, apply = random_graph(), params_of("block, mean"), jitted("block, mean")
    mask = np.arange(5) != 2
    out = jax.tree.map(np.asarray, apply(params, graph._replace(node_mask=mask)))
    stay = (graph.senders != 2) & (graph.receivers != 2)
    number = np.array([0, 1, 0, 2, 3], np.int32)
    smaller = graph._replace(
        nodes=graph.nodes[mask],
        edges=graph.edges[stay],
        senders=number[graph.senders[stay]],
        receivers=number[graph.receivers[stay]],
    )
    alone = jax.tree.map(np.asarray, apply(params, smaller))
    close(
        (out.nodes[mask], out.edges[stay], out.global_features),
        (alone.nodes, alone.edges, alone.global_features),
        tolerance=1e-5,
    )


def test_a_batch_equals_each_graph_alone():
    apply, params = jitted("block, sum"), params_of("block, sum")
    graphs = [random_graph(0, 5, 8), random_graph(2, 4, 0)]
    batch = batch_graphs(graphs, n_nodes=16, n_edges=12, n_graphs=5)
    close(unbatch_graphs(apply(params, batch)), [apply(params, graph) for graph in graphs], tolerance=1e-5)


def test_batching_and_unbatching():
    """Batching and its inverse, batches of batches, NumPy arrays stay NumPy arrays, jit, and equal shapes."""
    graphs = [random_graph(seed, n, e) for seed, n, e in ((0, 5, 8), (1, 3, 2), (2, 4, 0))]
    batch = batch_graphs(graphs, n_nodes=20, n_edges=20, n_graphs=6)
    close(unbatch_graphs(batch), graphs)
    close(unbatch_graphs(graphs[0]), [graphs[0]])
    assert all(type(leaf) is np.ndarray for leaf in jax.tree.leaves((batch, unbatch_graphs(batch))))
    nested = batch_graphs(
        [batch_graphs(graphs[:2], n_nodes=9, n_edges=11, n_graphs=3), graphs[2]], n_nodes=14, n_edges=12
    )
    close(unbatch_graphs(nested), graphs)
    close(jax.jit(lambda graphs: batch_graphs(graphs, n_nodes=20, n_edges=20, n_graphs=6))(graphs), batch)
    shapes = lambda some: jax.tree.map(jnp.shape, batch_graphs(some, n_nodes=20, n_edges=20, n_graphs=6))
    assert shapes(graphs) == shapes(graphs[:1])


def test_state_train_key_and_mask_are_passed_to_the_projections():
    """BatchNorm in a projection updates its state from valid rows only, and Dropout in it draws."""
    graph = random_graph()
    block = GraphBlock(edge=Dense(3), node=Serial(Dense(4), BatchNorm(), Dropout(0.5)))
    gin = GIN(Serial(Dense(4), BatchNorm()))
    assert isinstance(block, StatefulLayer) and isinstance(gin, StatefulLayer)
    assert side_inputs(block) == ("key", "train") and side_inputs(gin) == ("train",)
    for layer, side in ((block, {"key": jax.random.key(1)}), (gin, {})):
        params, state = drawn(layer, graph)
        train = jax.jit(functools.partial(layer.apply, train=True, **side))
        out, after = train(params, state, graph)
        zeros = (np.asarray(out.nodes) == 0).mean()
        assert 0 < zeros < 1 if side else zeros == 0
        with jax.debug_nans(False):
            close(train(params, state, padded(graph))[1], after, tolerance=1e-5)
        assert any((np.asarray(a) != b).any() for a, b in zip(*map(jax.tree.leaves, (after, state)), strict=True))


def test_graph_layers_in_serial_and_repeat():
    """A Graph is one input: Serial of layers and activations, Repeat of blocks that keep their sizes."""
    graph = random_graph()
    parts = GCN(4), GraphMapFeatures(node=jnp.tanh, edge=Dense(5)), GIN(MLP(4, 3))
    block = GraphBlock(edge=Dense(2), node=Dense(3), graph=Dense(2))
    one_by_one = lambda layers, params, graph: functools.reduce(
        lambda graph, own: own[0].apply(own[1], graph), zip(layers, params, strict=True), graph
    )

    @jax.jit
    def run(params, deep):
        each = [jax.tree.map(lambda p, i=i: p[i], deep) for i in range(2)]
        come = Serial(*parts).apply(params, graph), Repeat(block, 2).apply(deep, graph)
        return come, (one_by_one(parts, params, graph), one_by_one((block, block), each, graph))

    got, expected = run(drawn(Serial(*parts), graph), drawn(Repeat(block, 2), graph))
    close(got, expected, tolerance=1e-5)
    assert got[0].nodes.shape == (5, 3) and got[0].edges.shape == (8, 5)


# ---- making graphs


def test_complete_graphs_and_adjacency_graphs():
    """Matrix to edges and back; complete graphs have matrices of ones, with or without the diagonal."""
    nodes = np.zeros((4, 1), np.float32)
    np.testing.assert_array_equal(adjacency(complete_graph(nodes)), np.ones((4, 4)))
    np.testing.assert_array_equal(adjacency(complete_graph(nodes, self_loops=False)), 1 - np.eye(4))
    a = np.random.default_rng(0).integers(2, size=(4, 4))
    graph = adjacency_graph(nodes, a)
    np.testing.assert_array_equal(adjacency(graph), a)
    assert (np.diff(graph.receivers) >= 0).all()
    under_jit = jax.jit(lambda a: adjacency_graph(nodes, a, n_edges=12))(a)
    close(unbatch_graphs(under_jit), [graph])
    for n in (0, 1):
        assert jax.eval_shape(lambda x: complete_graph(x, self_loops=False), jnp.zeros((n, 2))).senders.shape == (0,)
        assert jax.eval_shape(complete_graph, jnp.zeros((n, 2))).senders.shape == (n,)


# ---- errors


@pytest.mark.parametrize("name", ["block, softmax", "GAT"])
def test_indices_out_of_range_are_errors_or_nan(name, sentences):
    """Eager calls raise an error; under jit the result is NaN."""
    graph, params = random_graph(), params_of(name)
    for field, value in (("senders", -1), ("receivers", 5)):
        wrong = graph._replace(**{field: np.where(np.arange(8) == 1, np.int32(value), getattr(graph, field))})
        words = f"expected {field} from 0 to 4 \\(there are 5 nodes\\), got {value}; number the nodes from 0"
        with pytest.raises(ValueError, match=words):
            LAYERS[name].apply(params, wrong)
        with jax.debug_nans(False):
            assert np.isnan(jitted(name)(params, wrong).nodes).all()


def test_check_graph_reports_errors_under_jit():
    """With check=True checkify reports the error; a valid graph passes."""

    def checked(params, graph):
        check_graph(graph, check=True)
        return LAYERS["GCN"].apply(params, graph)

    graph, run = random_graph(), jax.jit(checkify.checkify(checked))
    with jax.debug_nans(False):
        error, _ = run(params_of("GCN"), graph._replace(senders=graph.senders + np.int32(5)))
        with pytest.raises(checkify.JaxRuntimeError, match="check_graph expected senders from 0 to 4"):
            error.throw()
        error, _ = run(params_of("GCN"), graph)
    assert error.get() is None


def test_receivers_of_aggregate_out_of_range(sentences):
    values, ids = np.ones((9, 2), np.float32), np.array([0, 2, 4, 0, 1, 2, 3, 0, 1], np.int32)
    with pytest.raises(ValueError, match="aggregate expected receivers from 0 to 3 .*, got 4"):
        aggregate(values, ids, 4)
    with jax.debug_nans(False):
        for wrong in (ids, -ids):
            assert all(np.isnan(y).all() for y in by_all(values, wrong).values())
    assert all(np.isfinite(y).all() for y in by_all(values, ids // 2).values())


def test_indices_of_8_bits_in_graphs_of_more_nodes():
    """300 is no number of 8 bits, so that such indices are compared as int32."""
    values, ids = jnp.array([1.0, 2.0, 4.0]), jnp.array([0, 255, 255], jnp.uint8)
    y = jax.jit(aggregate, static_argnums=2)(values, ids, 300)
    assert (y[0], y[255], y.sum()) == (1, 6, 7)
    checked = checkify.checkify(jax.jit(lambda ids, n: aggregate(values, ids, n, check=True), static_argnums=1))
    assert checked(ids, 300)[0].get() is None
    with jax.debug_nans(False):
        assert "receivers from 0 to 199 (there are 200 nodes), got 255" in checked(ids, 200)[0].get()
    batch = Graph(jnp.ones((2, 1)), ids[:1], ids[:1], None, jnp.ones((300, 1)), jnp.full(2, 200, jnp.uint8))
    np.testing.assert_array_equal(jax.jit(GraphMapFeatures(node=jnp.negative).apply)({"node": ()}, batch).nodes, -1)


def test_graphs_of_a_batch_out_of_range(sentences):
    batch = batch_graphs([random_graph(), random_graph(1)])
    batch.node_graph[0] = 7
    with pytest.raises(ValueError, match="node_graph from 0 to 1 \\(there are 2 graphs\\), got 7"):
        check_graph(batch)
    with jax.debug_nans(False):
        assert np.isnan(jitted("block, sum")(params_of("block, sum"), batch).nodes).all()


GRAPH = Graph(np.ones((3, 2), np.float32), np.array([0, 1], np.int32), np.array([1, 2], np.int32))
PARAMS = {"kernel": np.eye(2, 3, dtype=np.float32), "bias": np.ones(3, np.float32)}


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (
            np.zeros((3, 2), np.float32),
            TypeError,
            "GCN expected a Graph, got float32 \\(3, 2\\); pass Graph\\(nodes, senders",
        ),
        (
            GRAPH._replace(senders=np.zeros((2, 2), np.int32)),
            ValueError,
            "senders with 1 axis, \\(e,\\), got int32 \\(2, 2\\)",
        ),
        (GRAPH._replace(senders=np.zeros(2, np.float32)), TypeError, "senders to be an integer array"),
        (
            GRAPH._replace(receivers=np.zeros(3, np.int32)),
            ValueError,
            "senders .* and receivers .* with the same size of e, got int32 \\(2,",
        ),
        (GRAPH._replace(edges=np.zeros((3, 1), np.float32)), ValueError, "edges .* with the same size of e"),
        (
            GRAPH._replace(global_features=np.zeros((2, 1), np.float32)),
            ValueError,
            "node_graph, the graph of each node, where there are several graphs",
        ),
        (GRAPH._replace(node_mask=np.zeros(3, np.float32)), TypeError, "node_mask to be a boolean array"),
        (GRAPH._replace(node_graph=np.zeros(3, np.float32)), TypeError, "node_graph to be an integer array"),
        (GRAPH._replace(nodes=np.zeros((3, 2), np.int32)), TypeError, "nodes to be a floating-point array"),
        (GRAPH._replace(nodes=np.zeros((3, 2, 2), np.float32)), ValueError, "nodes with 2 axes, \\(n, in\\)"),
        (
            GRAPH._replace(nodes=np.zeros((3, 4), np.float32)),
            ValueError,
            "kernel of shape \\(4, 3\\), got float32 \\(2, 3",
        ),
        (GRAPH._replace(nodes=None), TypeError, "nodes to be an array, got None"),
    ],
)
def test_errors_of_graphs(wrong, error, words, sentences):
    with pytest.raises(error, match=words):
        GCN(3).apply(PARAMS, wrong)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: GraphBlock(), ValueError, "at least one of edge, node and graph"),
        (
            lambda: GraphMapFeatures(edge=relu).apply({"edge": ()}, GRAPH),
            ValueError,
            "edges in the graph .*leave edge= out",
        ),
        (
            lambda: GraphBlock(node=lambda x: x[0]).apply({"node": ()}, GRAPH),
            ValueError,
            "one array with 3 rows",
        ),
        (lambda: GraphBlock(edge=lambda x: (x, x)).apply({"edge": ()}, GRAPH), ValueError, 'pass aggregate="softmax"'),
        (
            lambda: GraphBlock(edge=lambda x: (x[:1], x), aggregate="softmax").apply({"edge": ()}, GRAPH),
            ValueError,
            "logits with the first axes of its values",
        ),
        (
            lambda: GraphBlock(node=relu).apply({"node": ()}, GRAPH._replace(edges=np.zeros((2, 1), jnp.bfloat16))),
            TypeError,
            "of one floating-point dtype",
        ),
        (
            lambda: GraphBlock(graph=relu).apply({"graph": ()}, GRAPH._replace(node_graph=np.zeros(3, np.int32))),
            ValueError,
            "give the graph a graph_mask, as batch_graphs does",
        ),
        (lambda: GraphBlock(node=relu).apply({"edge": ()}, GRAPH), ValueError, "expected params named node"),
        (lambda: GCN(2).init(jax.random.key(0), np.zeros((3, 2), np.float32)), TypeError, "expected a Graph"),
        (lambda: batch_graphs([]), ValueError, "at least one graph"),
        (lambda: batch_graphs([GRAPH, GRAPH], n_nodes=5), ValueError, "fit into n_nodes=5, got 6 together"),
        (
            lambda: batch_graphs([GRAPH, GRAPH._replace(edges=np.zeros((2, 1), np.float32))]),
            ValueError,
            "edges with the same features and dtype in all graphs, got None, float32 \\(2, 1\\)",
        ),
        (lambda: jax.jit(unbatch_graphs)(GRAPH), ValueError, "sizes depend on values"),
        (
            lambda: adjacency_graph(np.zeros((3, 1), np.float32), np.zeros((2, 2), np.float32)),
            ValueError,
            "adjacency .* with the same size of n",
        ),
        (
            lambda: adjacency_graph(np.zeros((2, 1), np.float32), np.ones((2, 2), np.float32), n_edges=3),
            ValueError,
            "3 edges, got 4",
        ),
        (
            lambda: jax.jit(adjacency_graph)(np.zeros((2, 1), np.float32), np.ones((2, 2), np.float32)),
            ValueError,
            "pass n_edges",
        ),
        (
            lambda: aggregate(np.ones((2, 1), np.float32), np.zeros(3, np.int32), 2),
            ValueError,
            "the same size of entries",
        ),
        (
            lambda: aggregate(np.ones(2, np.float32), np.zeros(2, np.int32), 2, logits=np.ones(2, np.float32)),
            ValueError,
            "omit logits",
        ),
        (
            lambda: aggregate(np.ones(2, np.float32), np.zeros(2, np.int32), 2, mask=np.ones(2, np.float32)),
            TypeError,
            "mask to be a boolean array",
        ),
        (
            lambda: aggregate(
                np.ones((2, 3), np.float32), np.zeros(2, np.int32), 2, how="softmax", logits=np.ones((2, 2), np.float32)
            ),
            ValueError,
            "logits with the first axes of values",
        ),
        (
            lambda: aggregate(np.ones(2, np.int32), np.zeros(2, np.int32), 2),
            TypeError,
            "values to be a floating-point array",
        ),
    ],
)
def test_errors_of_arguments(call, error, words, sentences):
    with pytest.raises(error, match=words):
        call()


def test_too_many_edges_under_jit_give_nan():
    """An adjacency matrix with more edges than n_edges gives NaN rather than a graph with fewer edges."""
    f = jax.jit(
        lambda a: GraphBlock(node=lambda x: x).apply({"node": ()}, adjacency_graph(jnp.ones((2, 1)), a, n_edges=3))
    )
    assert np.isfinite(f(np.array([[1, 1], [0, 1]], np.int32)).nodes).all()
    with jax.debug_nans(False):
        assert np.isnan(f(np.ones((2, 2), np.int32)).nodes).any()


def test_following_the_errors_advice_works(sentences):
    """vmap over stacked graphs, senders and receivers from an edge index, a graph_mask."""
    expected = jax.jit(GCN(3).apply)(PARAMS, GRAPH).nodes
    stacked = jax.tree.map(lambda x: np.stack([x, x]), GRAPH)
    with pytest.raises(ValueError, match="with jax.vmap"):
        GCN(3).apply(PARAMS, stacked)
    close(jax.jit(jax.vmap(lambda graph: GCN(3).apply(PARAMS, graph)))(stacked).nodes[1], expected)
    edge_index = np.stack([GRAPH.senders, GRAPH.receivers])
    close(jax.jit(GCN(3).apply)(PARAMS, Graph(GRAPH.nodes, *edge_index)).nodes, expected)
    several = GRAPH._replace(node_graph=np.array([0, 0, 0]), graph_mask=np.array([True]))
    assert jax.eval_shape(GraphBlock(graph=relu).apply, {"graph": ()}, several).global_features.shape == (1, 2)


def test_complete_graph_rejects_a_number_of_nodes(sentences):
    """Its argument is the features of the nodes, zeros where they have none."""
    with pytest.raises(TypeError, match="complete_graph expected nodes to be an array, got 5"):
        complete_graph(5)
    with pytest.raises(ValueError, match=r"complete_graph expected nodes with at least 1 axis, \(n, \*features\)"):
        complete_graph(jnp.asarray(5))
    assert len(complete_graph(np.zeros((5, 1), np.float32)).senders) == 25
