"""Layers in series and side by side: `Serial`, `Parallel`, `Residual`; and `Frozen`, a layer that is not trained."""

from collections.abc import Callable
from typing import Any, overload

from jaxtyping import Array

from jaxblocks.checks.errors import require
from jaxblocks.core.children import (
    apply_child,
    child_of,
    children,
    constant_params,
    init_child,
    make_combinator,
    output_shapes,
)
from jaxblocks.core.pairs import Layer, LayerLike, Out, StatefulLayer, StatelessLike, builder
from jaxblocks.core.shapes import as_inputs, as_shapes, types_of
from jaxblocks.layers.combinators.shared import chain_of, gathered, in_words, repair_of_shapes, with_params

__all__ = ["Frozen", "Parallel", "Residual", "Serial"]


@overload
def Serial(*layers: StatelessLike, **named: StatelessLike) -> Layer: ...


@overload  # for type checkers, a layer that may have state has it
def Serial(*layers: LayerLike, **named: LayerLike) -> StatefulLayer: ...


@builder
def Serial(*layers: LayerLike, **named: LayerLike) -> Layer | StatefulLayer:
    r"""Layers in series: $f_n ∘ … ∘ f_1$; the first argument is applied first.

    A tuple that one layer returns is passed to the next as several inputs (a tuple of length one as a single input).
    ``Serial()`` is the identity, and ``Serial(a, Serial(b, c))`` computes the same function as ``Serial(a, b, c)``.

    ``net["hidden"]`` and ``net[0]`` are layers inside, ``net.inner.values()`` all of them. A loop over ``net`` itself
    gives the two functions of the pair, as ``init, apply = net`` does.

    Args:
        layers: pairs or functions of arrays, by position (params are a tuple), or
        named: by name (params are a dict).

    Raises:
        TypeError: for an argument that is not a layer, or for positional and named layers together.
        ValueError: for params of a net with other layers.

    >>> net = Serial(hidden=Dense(5), activation=jnp.tanh, out=Dense(1))
    >>> params = net.init(jax.random.key(0), jnp.zeros((8, 2)))
    >>> jax.tree.map(jnp.shape, params["hidden"])
    {'bias': (5,), 'kernel': (2, 5)}
    >>> jax.jit(net.apply)(params, jnp.zeros((8, 2))).shape
    (8, 1)
    >>> net["hidden"], len(net)
    (Dense(5), 3)
    """
    kids = children(layers, named)
    init, apply = chain_of(kids)
    return make_combinator(kids, init, apply)


@overload
def Parallel(*layers: StatelessLike, **named: StatelessLike) -> Layer[tuple[Array, ...] | dict[str, Array]]: ...


@overload
def Parallel(*layers: LayerLike, **named: LayerLike) -> StatefulLayer[tuple[Array, ...] | dict[str, Array]]: ...


@builder
def Parallel(
    *layers: LayerLike, **named: LayerLike
) -> Layer[tuple[Array, ...] | dict[str, Array]] | StatefulLayer[tuple[Array, ...] | dict[str, Array]]:
    r"""Several layers on the same inputs: $x ↦ (f_1(x), …, f_n(x))$.

    The outputs are a tuple for layers given by position, and a dict for layers given by
    name. In a ``Serial`` the tuple is passed to the next layer as several inputs.

    >>> net = Serial(Parallel(Dense(3), Dense(3)), lambda a, b: a * b)
    >>> params = net.init(jax.random.key(0), jnp.zeros((8, 2)))
    >>> jax.jit(net.apply)(params, jnp.zeros((8, 2))).shape
    (8, 3)
    """
    kids = children(layers, named)

    def init(key, inputs, side):
        made = [init_child(child, key, inputs, side) for child in kids]
        # Types alone are kept for `outputs`, so that it does not hold arrays, and stays valid after the trace.
        types = [types_of((key, p, s, inputs, side)) for p, s in made]

        # Called only by an enclosing combinator that needs the shapes; see `make_combinator`.
        def outputs():
            return gathered(kids, [output_shapes(child, *each) for child, each in zip(kids, types, strict=True)])

        return gathered(kids, [p for p, _ in made]), gathered(kids, [s for _, s in made]), outputs

    def apply(params, states, inputs, side):
        each = with_params(kids, params, states)
        done = [apply_child(child, p, s, inputs, side) for child, p, s in each]
        return gathered(kids, [y for y, _ in done]), gathered(kids, [s for _, s in done])

    return make_combinator(kids, init, apply)


@overload
def Residual(*layers: StatelessLike, **named: StatelessLike) -> Layer: ...


@overload
def Residual(*layers: LayerLike, **named: LayerLike) -> StatefulLayer: ...


@builder
def Residual(*layers: LayerLike, **named: LayerLike) -> Layer | StatefulLayer:
    r"""A skip connection around layers in series: $y = x + f(x)$.

    Its Jacobian is $I + J_f$; if ``f`` is zero at initialization, the layer is the identity there.

    Raises:
        ValueError: where ``f`` changes the shape or dtype of ``x`` (at ``init``).

    >>> net = Residual(Dense(16), jnp.tanh, Dense(4))
    >>> params = net.init(jax.random.key(0), jnp.zeros(4))
    >>> jax.jit(net.apply)(params, jnp.zeros(4))
    Array([0., 0., 0., 0.], dtype=float32)
    """
    kids = children(layers, named)
    chain_init, chain_apply = chain_of(kids)

    def check_same(inputs, outputs):
        # Params and states may also be inputs (a tree, a NamedTuple); only a single array can be added.
        if as_shapes(inputs) == as_shapes(outputs) and len(inputs) == 1 and hasattr(inputs[0], "dtype"):
            return
        got, repair = f"{in_words(inputs)} in and {in_words(outputs)} out", "use Wire for a sum of another form"
        arrays = all(hasattr(x, "dtype") for x in (*inputs, *outputs))
        require(arrays, "one array in and one array out", got, repair, error=TypeError)
        require(len(inputs) == len(outputs) == 1, "one array in and one array out", got, repair)
        require(False, "layers that keep shape and dtype", got, repair_of_shapes(inputs, outputs))

    def init(key, inputs, side):
        params, states, outputs = chain_init(key, inputs, side)
        check_same(inputs, as_inputs(outputs()))
        return params, states, outputs

    def apply(params, states, inputs, side):
        y, states = chain_apply(params, states, inputs, side)
        check_same(inputs, as_inputs(y))
        return inputs[0] + y, states

    return make_combinator(kids, init, apply)


@overload
def Frozen(layer: Layer[Out] | Callable[..., Out]) -> Layer[Out]: ...


@overload
def Frozen(layer: StatefulLayer[Out]) -> StatefulLayer[Out]: ...


@builder
def Frozen(layer: LayerLike) -> Layer[Any] | StatefulLayer[Any]:
    r"""A layer whose params have no gradient and which always runs in evaluation mode.

    Batch norm inside uses its running statistics and keeps them, and dropout is the identity, whatever ``train`` is for
    the layers around it; without this, a training step would update the statistics of a backbone whose params are
    frozen. Params and state are those of the layer, so a trained layer can be frozen, and a frozen one trained again.
    Gradients with respect to the inputs are those of the layer.

    Gradients of the params are 0, and so are their updates by most optimizers. Weight decay changes params without a
    gradient too; exclude them: ``optax.adamw(1e-3, mask=lambda params: select(params, "**", "!backbone/**"))``.

    `LoRA` around it trains its updates; ``WeightNorm`` around it, whose lengths would not be trained, is rejected.

    Args:
        layer: any layer, for instance ``Serial`` of a pretrained backbone.

    Raises:
        ValueError: in ``apply``, for kernels that a ``WeightNorm`` around it makes.

    >>> net = Serial(backbone=Frozen(Serial(Dense(5), BatchNorm())), head=Dense(1))
    >>> params, state = net.init(jax.random.key(0), jnp.zeros((8, 2)))
    >>> jax.tree.map(jnp.shape, params["backbone"][0])
    {'bias': (5,), 'kernel': (2, 5)}
    >>> outputs = lambda params: Frozen(Dense(5)).apply(params, jnp.ones(2)).sum()
    >>> float(jax.grad(outputs)(params["backbone"][0])["kernel"].max())
    0.0
    """
    child = child_of(None, layer)
    # Side inputs are collected from what children declare: without train here, the net of a frozen layer lacks it too.
    without_train = lambda declared: {name: p for name, p in declared.items() if name != "train"}
    frozen = child._replace(reads=without_train(child.reads), init_reads=without_train(child.init_reads))

    def init(key, inputs, side):
        side = {**side, "train": False}
        params, state = init_child(child, key, inputs, side)
        types = types_of((key, params, state, inputs, side))
        return params, state, lambda: output_shapes(child, *types)

    def apply(params, state, inputs, side):
        return apply_child(child, constant_params(params), state, inputs, {**side, "train": False})

    return make_combinator((frozen,), init, apply)
