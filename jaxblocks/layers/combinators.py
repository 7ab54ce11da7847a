"""Layers made of layers: Serial, Parallel, Residual, Repeat, Recurrent, Wire.

Each is written once, for children with and without state; `core.pair` makes a ``Layer``
of it where no child has state and a ``StatefulLayer`` otherwise. Params (and state) are a
tuple for children given by position, a dict for children given by name, and those of the
child itself where there is only one.
"""

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace

import jax
import jax.numpy as jnp
from jax import lax

from jaxblocks.checks import describe
from jaxblocks.core import (
    Child,
    Layer,
    StatefulLayer,
    apply_child,
    as_shapes,
    child_of,
    children,
    declared_by,
    eval_shape,
    fold,
    init_child,
    output_shapes,
    pair,
)

__all__ = ["Parallel", "Recurrent", "Repeat", "Residual", "Serial", "Wire"]


def Serial(*layers, **named) -> Layer | StatefulLayer:
    r"""One layer after the other: :math:`f_n \circ \dots \circ f_1`; the first one given is applied first.

    A tuple that one layer returns is passed to the next as several inputs. ``Serial()``
    is the identity, and ``Serial(a, Serial(b, c))`` computes what ``Serial(a, b, c)``
    computes.

    Args:
        layers: pairs or functions of arrays, by position (params are a tuple), or
        named: by name (params are a dict).

    Raises:
        TypeError: on something that is not a layer, or on positions mixed with names.
        ValueError: on params that belong to a net with other layers.

    >>> net = Serial(hidden=Dense(5), activation=jnp.tanh, out=Dense(1))
    >>> params = net.init(jax.random.key(0), jnp.zeros((8, 2)))
    >>> jax.tree.map(jnp.shape, params["hidden"])
    {'bias': (5,), 'kernel': (2, 5)}
    >>> net.apply(params, jnp.zeros((8, 2))).shape
    (8, 1)
    """
    kids = children("Serial", layers, named)
    chain_init, apply = _chain("Serial", kids)

    def init(key, inputs, side):
        params, states, _ = chain_init(key, inputs, side)
        return params, states

    return pair("Serial", kids, init, apply)


def Parallel(*layers, **named) -> Layer | StatefulLayer:
    r"""Several layers on the same inputs: :math:`x \mapsto (f_1(x), \dots, f_n(x))`.

    The outputs are a tuple for layers given by position, and a dict for layers given by
    name. In a ``Serial`` the tuple reaches the next layer as several inputs.

    >>> net = Serial(Parallel(Dense(3), Dense(3)), lambda a, b: a * b)
    >>> params = net.init(jax.random.key(0), jnp.zeros((8, 2)))
    >>> net.apply(params, jnp.zeros((8, 2))).shape
    (8, 3)
    """
    kids = children("Parallel", layers, named)

    def init(key, inputs, side):
        made = [init_child(child, key, inputs, side) for child in kids]
        return _gather(kids, [p for p, _ in made]), _gather(kids, [s for _, s in made])

    def apply(params, states, inputs, side):
        each = zip(kids, _spread("Parallel", kids, params), _spread("Parallel", kids, states), strict=True)
        done = [apply_child(child, p, s, inputs, side) for child, p, s in each]
        return _gather(kids, [y for y, _ in done]), _gather(kids, [s for _, s in done])

    return pair("Parallel", kids, init, apply)


def Residual(*layers, **named) -> Layer | StatefulLayer:
    r"""A skip connection around layers in series: :math:`y = x + f(x)`.

    Its Jacobian is :math:`I + J_f`; where ``f`` is zero at the start it is the identity.

    Raises:
        ValueError: where ``f`` changes the shape or dtype of ``x`` (at ``init`` already).

    >>> net = Residual(Dense(16), jnp.tanh, Dense(4))
    >>> params = net.init(jax.random.key(0), jnp.zeros(4))
    >>> net.apply(params, jnp.zeros(4))
    Array([0., 0., 0., 0.], dtype=float32)
    """
    kids = children("Residual", layers, named)
    chain_init, chain_apply = _chain("Residual", kids)

    def require_same(inputs, outputs):
        if len(inputs) != 1 or len(outputs) != 1:
            raise ValueError(
                f"Residual expects one array in and one array out, but {len(inputs)} went in and {len(outputs)} came "
                "out; use Wire for a sum of another form."
            )
        (x,), (y,) = inputs, outputs
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            raise ValueError(
                f"Residual expects its layers to keep shape and dtype, but {describe(x)} went in and {describe(y)} "
                f"came out; give the last layer {x.shape[-1] if x.shape else 1} features."
            )

    def init(key, inputs, side):
        params, states, outputs = chain_init(key, inputs, side)
        require_same(inputs, outputs())
        return params, states

    def apply(params, states, inputs, side):
        y, states = chain_apply(params, states, inputs, side)
        require_same(inputs, _as_inputs(y))
        return inputs[0] + y, states

    return pair("Residual", kids, init, apply)


def Repeat(layer, n: int, *, remat: str | Callable = "dots", unroll: int = 1) -> Layer | StatefulLayer:
    r"""One layer ``n`` times in series, each with its own params: :math:`f_{\theta_n} \circ \dots \circ f_{\theta_1}`.

    Computes what ``Serial`` of ``n`` copies computes (from the same key the same params),
    by one ``lax.scan`` over params stacked along a new leading axis: compile time does
    not grow with ``n``.

    Args:
        layer: maps its inputs to outputs of the same shapes and dtypes.
        n: how often.
        remat: what the backward pass recomputes instead of keeping. ``"dots"`` keeps
            matrix products and recomputes elementwise work (less memory, and on CPU less
            time too), ``"all"`` keeps the inputs of each copy only, ``"none"`` recomputes
            nothing; or a policy of ``jax.checkpoint_policies``.
        unroll: copies per iteration of the scan; on CPU, unroll convolutions wholly.

    Raises:
        ValueError: where the layer changes the shape of its inputs, or params are stacked
            another number of times.

    >>> net = Repeat(Residual(Dense(4), jnp.tanh), 3)
    >>> params = net.init(jax.random.key(0), jnp.zeros(4))
    >>> jax.tree.map(jnp.shape, params)
    ({'bias': (3, 4), 'kernel': (3, 4, 4)}, ())
    """
    policies = {"none": None, "all": None, "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable}
    if isinstance(n, bool) or not isinstance(n, int) or n < 0:
        raise ValueError(f"Repeat expects n to be a whole number >= 0, but {n!r} came.")
    if not callable(remat) and remat not in policies:
        raise ValueError(f"Repeat expects remat to be 'none', 'dots', 'all' or a policy, but {remat!r} came.")
    child = child_of("Repeat", None, layer)

    def init(key, inputs, side):
        inputs, side = as_shapes(inputs), as_shapes(side)
        one = jax.eval_shape(lambda key: init_child(child, key, inputs, side), key)
        outputs = _as_inputs(output_shapes(child, key, *one, inputs, side)[0])
        if as_shapes(outputs) != inputs:
            raise ValueError(
                f"{child.place} expects a layer that keeps shape and dtype, but {_in_words(inputs)} went in and "
                f"{_in_words(outputs)} came out; give its last layer as many features as its input has."
            )
        keys = jax.vmap(fold, in_axes=(None, 0))(key, jnp.arange(n))
        return jax.vmap(lambda key: init_child(child, key, inputs, side))(keys)

    def apply(params, states, inputs, side):
        for leaf in jax.tree.leaves((params, states)):
            if leaf.shape[:1] != (n,):
                raise ValueError(
                    f"{child.place} expects params (and state) stacked {n} times along their first axis, but "
                    f"{describe(leaf)} came; they were made by the init of another net."
                )

        def step(inputs, own):
            position, params, state = own
            keyed = {**side, "key": fold(side["key"], position)} if "key" in side else side
            outputs, state = apply_child(child, params, state, inputs, keyed)
            return _as_inputs(outputs), state

        if remat != "none":
            policy = remat if callable(remat) else policies[remat]
            step = jax.checkpoint(step, prevent_cse=False, policy=policy)
        outputs, states = lax.scan(step, inputs, (jnp.arange(n), params, states), unroll=unroll)
        return _as_outputs(outputs), states

    return pair("Repeat", (child,), init, apply)


def Recurrent(cell, *, reverse: bool = False, unroll: int = 1, streaming: bool = False) -> Layer | StatefulLayer:
    r"""A cell scanned over the time axis: :math:`(y_t, h_t) = g(x_t, h_{t-1})`.

    The cell is a ``StatefulLayer`` whose state is its carry :math:`h`; it sees one time
    step at a time. (The lecture prints :math:`h_t = g(x_{t-1}, h_{t-1})` with outputs that
    would ignore the present input; this is the corrected form.)

    Args:
        cell: maps inputs ``(..., features)`` and a carry to outputs and the next carry.
        reverse: run from the last step to the first; outputs stay at their places.
        unroll: time steps per iteration of the scan.
        streaming: ``False`` makes a ``Layer``: every call begins at the carry that the
            cell's ``init`` makes (which must not depend on its key). ``True`` makes a
            ``StatefulLayer`` whose state is the carry, for input that comes in pieces.

    Shapes: inputs ``(..., time, features)`` to outputs ``(..., time, features')``.

    >>> def RunningSum():
    ...     def init(key, x):
    ...         return (), jnp.zeros(x.shape, x.dtype)
    ...     def apply(params, total, x):
    ...         return total + x, total + x
    ...     return StatefulLayer(init, apply)
    >>> Recurrent(RunningSum()).apply((), jnp.ones((3, 1))).ravel()
    Array([1., 2., 3.], dtype=float32)
    """
    child = child_of("Recurrent", None, cell)
    # Under jit, so that the params which init draws beside the carry are never computed.
    initial_carry = jax.jit(lambda inputs: init_child(child, jax.random.key(0), inputs, {})[1], static_argnums=0)

    def one_step(inputs):
        for x in inputs:
            if len(x.shape) < 2:
                raise ValueError(f"{child.place} expects inputs (..., time, features), but {describe(x)} came.")
        if len({x.shape[-2] for x in inputs}) != 1:
            raise ValueError(f"{child.place} expects inputs of one length in time, but {_in_words(inputs)} came.")
        return tuple(jax.ShapeDtypeStruct((*x.shape[:-2], x.shape[-1]), x.dtype) for x in inputs)

    def init(key, inputs, side):
        return init_child(child, key, one_step(inputs), side)

    def apply(params, carry, inputs, side):
        one_step(inputs)

        def step(carry, now):
            position, inputs = now
            keyed = {**side, "key": fold(side["key"], position)} if "key" in side else side
            outputs, carry = apply_child(child, params, carry, inputs, keyed)
            return carry, outputs

        steps = jnp.arange(inputs[0].shape[-2])
        time_first = tuple(jnp.moveaxis(x, -2, 0) for x in inputs)
        carry, outputs = lax.scan(step, carry, (steps, time_first), reverse=reverse, unroll=unroll)
        return jax.tree.map(lambda y: jnp.moveaxis(y, 0, -2), outputs), carry

    def fresh_init(key, inputs, side):
        return init(key, inputs, side)[0], ()

    def fresh_apply(params, state, inputs, side):
        return apply(params, initial_carry(one_step(inputs)), inputs, side)[0], state

    if streaming:
        return pair("Recurrent", (child,), init, apply)
    return pair("Recurrent", (child._replace(has_state=False),), fresh_init, fresh_apply)


def Wire(forward: Callable, **layers) -> Layer | StatefulLayer:
    r"""A pair out of a plain function that calls its children: any graph, shared weights, skips across levels.

    Args:
        forward: ``forward(f, *inputs)`` calls the children as ``f.name(x)``. A child
            called twice uses the same params twice; its state goes from call to call,
            and each call draws from a key of its own. Side inputs reach the children
            that declare them by themselves; one that ``forward`` passes by hand wins.
            Keyword-only parameters of ``forward`` are side inputs of its own.
        layers: the children by name; params are a dict of these names.

    Raises:
        ValueError: at ``init``, for a child that ``forward`` never calls.
        AttributeError: for a child that is not there.

    >>> net = Wire(lambda f, x: f.up(jnp.concatenate([x, f.down(x)], -1)), down=Dense(2), up=Dense(4))
    >>> params = net.init(jax.random.key(0), jnp.zeros(4))
    >>> jax.tree.map(jnp.shape, params["up"])
    {'bias': (4,), 'kernel': (6, 4)}
    """
    kids = children("Wire", (), layers)
    own = declared_by(forward)

    def run(call, inputs, side):
        """Run ``forward`` with children that go through ``call(child, inputs, side)``."""
        calls: Counter = Counter()

        def bind(child: Child):
            def f(*inputs, **given):
                unknown = sorted(given.keys() - child.reads.keys())
                if unknown:
                    reads = ", ".join(sorted(child.reads)) or "none"
                    raise TypeError(f"{child.place} reads no side input {unknown[0]!r}; those that it reads: {reads}.")
                passed = dict(side)
                if "key" in side and calls[child.label]:
                    passed["key"] = fold(side["key"], f"call {calls[child.label]}")
                calls[child.label] += 1
                return call(child, inputs, {**passed, **given})

            return f

        mine = {name: side[name] for name in own if name in side}
        if "key" in mine:
            mine["key"] = fold(mine["key"], "forward")
        return forward(_Children(**{child.label: bind(child) for child in kids}), *inputs, **mine)

    def init(key, inputs, side):
        met = {}  # what each child was first called with, as shapes

        def probe(key, inputs, side):
            params, states = {}, {}

            def call(child, inputs, side):
                name = child.label
                if name not in met:
                    met[name] = as_shapes(inputs), as_shapes(side)
                    params[name], states[name] = init_child(child, key, inputs, side)
                outputs, states[name] = apply_child(child, params[name], states[name], inputs, side)
                return outputs

            return run(call, inputs, {"key": key, **side})

        eval_shape(probe, key, inputs, side)
        for child in kids:
            if child.label not in met:
                raise ValueError(
                    f"Wire expects forward to call every child, but it never calls {child.label}; "
                    f"call f.{child.label}(...) or leave that layer out."
                )
        made = {child.label: init_child(child, key, *met[child.label]) for child in kids}
        return {name: p for name, (p, _) in made.items()}, {name: s for name, (_, s) in made.items()}

    def apply(params, states, inputs, side):
        params = dict(zip(layers, _spread("Wire", kids, params), strict=True))
        states = dict(zip(layers, _spread("Wire", kids, states), strict=True))

        def call(child, inputs, side):
            name = child.label
            outputs, states[name] = apply_child(child, params[name], states[name], inputs, side)
            return outputs

        return run(call, inputs, side), states

    return pair("Wire", kids, init, apply, own)


class _Children(SimpleNamespace):
    def __getattr__(self, name):
        raise AttributeError(f"Wire has no child {name!r}; its children are: {', '.join(vars(self))}.")


# ---- what they share -----------------------------------------------------------------------


def _chain(owner: str, kids: tuple[Child, ...]):
    """The two functions of layers in series; ``init`` also returns a function that gives the outputs' shapes."""

    def init(key, inputs, side):
        params, states = [], []

        def outputs():  # of the layers so far; nobody asks for those of the last layer of a Serial
            return _as_inputs(output_shapes(kids[len(params) - 1], key, params[-1], states[-1], inputs, side)[0])

        for child in kids:
            if params:
                inputs = outputs()
            p, s = init_child(child, key, inputs, side)
            params.append(p)
            states.append(s)
        return _gather(kids, params), _gather(kids, states), outputs if kids else lambda: inputs

    def apply(params, states, inputs, side):
        after = []
        for child, p, s in zip(kids, _spread(owner, kids, params), _spread(owner, kids, states), strict=True):
            outputs, s = apply_child(child, p, s, inputs, side)
            inputs = _as_inputs(outputs)
            after.append(s)
        return outputs if kids else _as_outputs(inputs), _gather(kids, after)

    return init, apply


def _as_inputs(outputs) -> tuple:
    """A (plain) tuple is several inputs, anything else is one."""
    return outputs if type(outputs) is tuple else (outputs,)


def _as_outputs(inputs: tuple):
    return inputs[0] if len(inputs) == 1 else inputs


def _gather(kids, values):
    """A dict for children with names, a tuple for children by position."""
    if kids and isinstance(kids[0].label, str):
        return {child.label: value for child, value in zip(kids, values, strict=True)}
    return tuple(values)


def _spread(owner, kids, tree) -> tuple:
    """The reverse of ``_gather``: one value per child, or a sentence about what came instead."""
    names = [child.label for child in kids if isinstance(child.label, str)]
    if names and isinstance(tree, dict) and set(tree) == set(names):
        return tuple(tree[name] for name in names)
    if not names and isinstance(tree, (tuple, list)) and len(tree) == len(kids):
        return tuple(tree)
    expected = f"a dict of {', '.join(names)}" if names else f"a tuple of {len(kids)}"
    if isinstance(tree, dict):
        came = f"a dict of {', '.join(map(str, tree)) or 'nothing'}"
    else:
        came = f"a {type(tree).__name__}" + (f" of {len(tree)}" if isinstance(tree, (tuple, list)) else "")
    raise ValueError(
        f"{owner} expects params (and state) to be {expected}, one for each layer, but {came} came; "
        "they were made by the init of another net."
    )


def _in_words(tree) -> str:
    return ", ".join(map(describe, jax.tree.leaves(tree)))
