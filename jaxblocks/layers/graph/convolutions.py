"""Graph convolution, graph attention and the graph isomorphism layer."""

from collections.abc import Callable
from typing import Annotated, Literal, overload

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxblocks import initializers
from jaxblocks.activations import leaky_relu
from jaxblocks.backend.linear_maps import along_batch, in_dtype
from jaxblocks.backend.precision import widen
from jaxblocks.checks.expectations import NonNegativeFloat, PositiveInt, Range, check_params
from jaxblocks.core.children import apply_child, child_of, init_child, make_combinator
from jaxblocks.core.pairs import Layer, LayerLike, StatefulLayer, StatelessLike, builder
from jaxblocks.layers.graph.blocks import check_rows, one_graph, with_mask, without_mask
from jaxblocks.layers.graph.data import Graph, check_nodes, without_padding
from jaxblocks.layers.graph.segments import nan_unless, reduce_segments, take_rows, where_rows

__all__ = ["GAT", "GCN", "GIN"]


@builder
def GCN(
    features: PositiveInt,
    *,
    self_loops: bool = True,
    use_bias: bool = True,
    kernel_init: Callable = initializers.lecun_normal(),
    bias_init: Callable = initializers.zeros,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
) -> Layer[Graph]:
    r"""Graph convolution with symmetric normalization: $X' = D̃^{-1/2} Ã D̃^{-1/2} X W + b$.

    $A_{ij}$ counts the edges from j to i, $Ã$ is A with ones on its diagonal (edges of the graph
    from a node to itself are not counted again), and $D̃$ the diagonal of its row sums, the numbers of
    incoming edges. For an undirected graph, with each edge in both directions, this is the published formula.

    Features of edges and global features are not used. An activation is a separate layer:
    ``GraphMapFeatures(node=relu)``.

    Args:
        features: of a node of the output.
        self_loops: ``False`` uses $Ã = A$; a node without edges then gets 0, plus the bias.
        use_bias, kernel_init, bias_init, dtype, param_dtype: as in `Dense`.

    Shapes: a graph with nodes (n, in) to the graph with nodes (n, features).

    >>> layer = GCN(2)
    >>> graph = complete_graph(jnp.ones((3, 4)))
    >>> params = layer.init(jax.random.key(0), graph)
    >>> jax.jit(layer.apply)(params, graph).nodes.shape
    (3, 2)

    Source: Kipf & Welling 2017, Semi-supervised classification with graph convolutional networks, arXiv:1609.02907,
    equation (2).
    """

    def init(key, graph):
        check_nodes(graph, values=False)
        params = {"kernel": kernel_init(key, (graph.nodes.shape[-1], features), param_dtype)}
        if use_bias:
            params["bias"] = bias_init(jax.random.fold_in(key, 1), (features,), param_dtype)
        return params

    def apply(params, graph):
        check_nodes(graph)
        check_params(params, kernel=(graph.nodes.shape[-1], features), **{"bias": (features,)} if use_bias else {})
        valid, ok = without_padding(graph)
        x, n = in_dtype(valid.nodes, dtype), graph.nodes.shape[0]
        kernel = params["kernel"].astype(x.dtype)
        mask = _without_loops(valid) if self_loops else valid.edge_mask
        # (e,) and (n,) in float32: half precision counts exactly only to 256 (bfloat16) or 2048 (float16).
        ones = jnp.ones(valid.receivers.shape, widen(x).dtype)
        degree = reduce_segments(ones, valid.receivers, n, "sum", mask=mask) + (1 if self_loops else 0)  # (n,)
        # The factor of a node without edges is 0; the maximum keeps rsqrt(0) = inf out.
        scale = jnp.where(degree > 0, jax.lax.rsqrt(jnp.maximum(degree, 1)), 0).astype(x.dtype)[:, None]
        project_first = kernel.shape[1] <= kernel.shape[0]  # aggregate the array with fewer features
        # D^(-1/2) on both sides: senders are scaled before the sum over edges, receivers after it.
        x = (x @ kernel if project_first else x) * scale
        y = reduce_segments(take_rows(x, valid.senders), valid.receivers, n, "sum", mask=mask)
        # A self-loop sends x to its own node: it is added without an edge.
        y = (y + x if self_loops else y) * scale
        y = y if project_first else y @ kernel
        return graph._replace(nodes=where_rows(graph.node_mask, nan_unless(ok, _add_bias(y, params))))

    return Layer(init, apply)


@builder
def GAT(
    features: PositiveInt,
    *,
    heads: PositiveInt = 1,
    join: Literal["concat", "mean"] = "concat",
    self_loops: bool = True,
    slope: NonNegativeFloat = 0.2,
    use_bias: bool = True,
    kernel_init: Callable = initializers.lecun_normal(),
    attention_kernel_init: Callable = initializers.lecun_normal(in_axis=-1, out_axis=-2),
    bias_init: Callable = initializers.zeros,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
) -> Layer[Graph]:
    r"""Graph attention: weighted averages of neighbors, with weights that depend on sender and receiver.

    For each head, with $h_i = x_i W$ and $N(i)$ the senders of edges to i, and i itself,

    .. math::

        x'_i = ∑_{j ∈ N(i)} α_{ij} h_j + b,
        α_{ij} = softmax_{j ∈ N(i)} LeakyReLU(⟨a_r, h_i⟩ + ⟨a_s, h_j⟩)

    (the published $a$ is $a_r$ and $a_s$ concatenated). Params: ``kernel`` W (in, heads *
    features), ``receiver_kernel`` $a_r$ and ``sender_kernel`` $a_s$, both (heads, features), ``bias``.

    Args:
        features: of a node of the output, for each head.
        heads: number of heads.
        join: how to combine the heads: ``"concat"`` gives heads * features per node, ``"mean"`` (for a last layer)
            gives features.
        self_loops: ``False`` excludes i itself, unless the graph has that edge; a node without edges gets 0, plus
            the bias. With ``True``, edges of the graph from i to itself are not counted again.
        slope: of the leaky rectifier, for negative arguments.
        attention_kernel_init: of ``receiver_kernel`` and ``sender_kernel``.
        use_bias, kernel_init, bias_init, dtype, param_dtype: as in `Dense`.

    Shapes: a graph with nodes (n, in) to the graph with nodes (n, heads * features), or (n, features) for the mean.

    >>> layer = GAT(2, heads=3)
    >>> graph = complete_graph(jnp.ones((5, 4)))
    >>> params = jax.jit(layer.init)(jax.random.key(0), graph)
    >>> jax.jit(layer.apply)(params, graph).nodes.shape
    (5, 6)

    Source: Velickovic et al. 2018, Graph attention networks, arXiv:1710.10903, equations (1) to (6).
    """

    def shapes(channels):
        out = heads * features if join == "concat" else features
        attention = {"receiver_kernel": (heads, features), "sender_kernel": (heads, features)}
        return {"kernel": (channels, heads * features), **attention, **({"bias": (out,)} if use_bias else {})}

    def init(key, graph):
        check_nodes(graph, values=False)
        initialize = {"kernel": kernel_init, "bias": bias_init}
        return {
            # Keys by position: "bias" is last, so that the kernels are the same with and without it.
            name: initialize.get(name, attention_kernel_init)(jax.random.fold_in(key, position), shape, param_dtype)
            for position, (name, shape) in enumerate(shapes(graph.nodes.shape[-1]).items())
        }

    def apply(params, graph):
        check_nodes(graph)
        check_params(params, **shapes(graph.nodes.shape[-1]))
        valid, ok = without_padding(graph)
        x, n = in_dtype(valid.nodes, dtype), graph.nodes.shape[0]
        senders, receivers, mask = valid.senders, valid.receivers, valid.edge_mask
        if self_loops:
            nodes = jnp.arange(n, dtype=jnp.int32)
            senders, receivers = jnp.concatenate([senders, nodes]), jnp.concatenate([receivers, nodes])
            # Loops of the graph are masked, since each node gets exactly one here.
            mask = jnp.concatenate([_without_loops(valid), jnp.ones(n, bool)])
        h = (x @ params["kernel"].astype(x.dtype)).reshape(n, heads, features)
        to, of = (  # (n, heads) each
            jnp.einsum("nhf,hf->nh", h, params[name].astype(x.dtype)) for name in ("receiver_kernel", "sender_kernel")
        )
        # The inner product of a and the concatenation is the sum of two, one per node: n products instead of one for
        # each edge.
        logits = leaky_relu(take_rows(to, receivers) + take_rows(of, senders), slope)  # (e, heads)
        y = reduce_segments(take_rows(h, senders), receivers, n, "softmax", logits, mask)  # (n, heads, features)
        y = y.reshape(n, heads * features) if join == "concat" else y.mean(1)
        return graph._replace(nodes=where_rows(graph.node_mask, nan_unless(ok, _add_bias(y, params))))

    return Layer(init, apply)


@overload
def GIN(
    mlp: StatelessLike,
    *,
    epsilon: Annotated[float | int, Range(-1e38, below=1e38, open_below=True)] = 0.0,
    learn_epsilon: bool = False,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
) -> Layer[Graph]: ...
@overload
def GIN(
    mlp: LayerLike,
    *,
    epsilon: Annotated[float | int, Range(-1e38, below=1e38, open_below=True)] = 0.0,
    learn_epsilon: bool = False,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
) -> StatefulLayer[Graph]: ...
@builder
def GIN(
    mlp: LayerLike,
    *,
    epsilon: Annotated[float | int, Range(-1e38, below=1e38, open_below=True)] = 0.0,
    learn_epsilon: bool = False,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
) -> Layer[Graph] | StatefulLayer[Graph]:
    r"""Graph isomorphism layer: $x'_i = MLP((1 + ϵ) x_i + ∑_{j → i} x_j)$.

    The sum distinguishes neighborhoods that a mean or a maximum cannot: with a suitable MLP the layer separates
    all graphs that the Weisfeiler-Leman test separates.

    Args:
        mlp: any layer, or function, of nodes (n, in); its params are ``params["mlp"]``. Side inputs and state are
            passed on; if it reads ``mask``, it gets the mask of the nodes.
        epsilon: $ϵ$; its initial value if it is learned.
        learn_epsilon: ``True`` makes $ϵ$ a param, ``params["epsilon"]``.
        dtype: of the sum, which is the input of ``mlp``; by default that of the nodes.
        param_dtype: of ``epsilon`` if it is learned.

    Shapes: a graph with nodes (n, in) to the graph with nodes as ``mlp`` returns them.

    >>> layer = GIN(MLP(8, 2))
    >>> graph = complete_graph(jnp.ones((3, 4)))
    >>> params = layer.init(jax.random.key(0), graph)
    >>> jax.jit(layer.apply)(params, graph).nodes.shape
    (3, 2)

    Source: Xu et al. 2019, How powerful are graph neural networks?, arXiv:1810.00826, equation (4.1).
    """
    child = child_of("mlp", mlp)

    def init(key, inputs, side):
        graph = one_graph(inputs)
        check_nodes(graph, values=False)
        x = jax.ShapeDtypeStruct(graph.nodes.shape, dtype or graph.nodes.dtype)
        params, state = init_child(child, key, (x,), with_mask(child, side, graph.node_mask))
        own = {"epsilon": jnp.asarray(epsilon, param_dtype)} if learn_epsilon else {}
        return {"mlp": params, **own}, {"mlp": state}, None

    def apply(params, states, inputs, side):
        graph = one_graph(inputs)
        check_nodes(graph)
        check_params(params, mlp=None, **{"epsilon": ()} if learn_epsilon else {})
        valid, ok = without_padding(graph)
        x = in_dtype(valid.nodes, dtype)
        messages = take_rows(x, valid.senders)
        received = reduce_segments(messages, valid.receivers, x.shape[0], "sum", mask=valid.edge_mask)
        own = x * (1 + params["epsilon"]).astype(x.dtype) if learn_epsilon else x * (1 + epsilon)
        side = with_mask(child, side, graph.node_mask)
        y, state = apply_child(child, params["mlp"], states["mlp"], (own + received,), side)
        check_rows("mlp", y, x.shape[0], "pass a layer that acts on the last axis, such as MLP(8, 8)")
        return graph._replace(nodes=where_rows(graph.node_mask, nan_unless(ok, y))), {"mlp": state}

    return make_combinator((without_mask(child),), init, apply)


def _without_loops(graph):
    """The mask of the edges that connect two different nodes."""
    between = graph.senders != graph.receivers
    return between if graph.edge_mask is None else between & graph.edge_mask


def _add_bias(y, params):
    bias = params.get("bias")
    return y if bias is None else y + along_batch(bias, y)
