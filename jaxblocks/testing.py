"""The laws that every layer keeps, as checks for layers of your own.

`check_layer` runs them all and names those that are broken. Each law is also a public
function ``law(case)``, collected in `LAWS`, which raises where it is broken and returns
whether it applies to the case; this project's tests run them over every layer that it has.
"""

import inspect
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxblocks.checks import describe, describe_any
from jaxblocks.core import (
    Layer,
    StatefulLayer,
    as_layer,
    as_shapes,
    layer_name,
    require_pair,
    side_inputs,
    split_side,
    stateful,
)

__all__ = ["LAWS", "Case", "check_layer"]


class Case(NamedTuple):
    """A layer with inputs to try it on; the first axis of every input is a batch of at least two."""

    layer: Layer | StatefulLayer
    inputs: tuple
    side: dict
    key: Any
    mixes_batch: bool = False


def check_layer(
    layer, *inputs, key=None, mixes_batch: bool = False, laws: dict[str, Callable] | None = None, **side
) -> tuple[str, ...]:
    """Try a layer on example inputs, against every law that layers keep.

    Args:
        layer: a pair, or a function of arrays.
        inputs: arrays with a leading batch axis of at least two; small ones, since everything
            is compiled several times, and random ones, since equal rows hide mistakes.
        key: for ``init``, and for layers that draw random numbers.
        mixes_batch: ``True`` where one example may change the output of another, as in
            batch normalization while it trains.
        laws: those to check; all of `LAWS` by default.
        side: further side inputs, such as ``train=True`` or ``mask=...``; an array whose first
            axis is as long as the batch is taken to hold one entry per example.

    Returns:
        The names of the laws that apply to this layer, all of them kept.

    Raises:
        AssertionError: with a sentence for each law that is broken.

    >>> def Center():
    ...     def init(key, x):
    ...         return ()
    ...     def apply(params, x):
    ...         return x - x.mean(0, keepdims=True).repeat(x.shape[0], 0)
    ...     return Layer(init, apply)
    >>> check_layer(Center(), jnp.arange(6.0).reshape(3, 2), laws={"independence": LAWS["independence"]})
    Traceback (most recent call last):
    ...
    AssertionError: Center breaks 1 of 1 laws:
    - independence: the output of one example changes with another example of the batch; act on the trailing axes only.
    """
    layer = as_layer(layer)
    laws = LAWS if laws is None else laws
    case = Case(layer, inputs, side, jax.random.key(0) if key is None else key, mixes_batch)
    if not inputs or any(not hasattr(x, "shape") or not x.shape or x.shape[0] < 2 for x in inputs):
        came = ", ".join(map(describe_any, inputs)) or "nothing"
        raise ValueError(f"check_layer expects arrays with a leading batch axis of at least 2, but {came} came.")
    applied, broken = [], {}
    for name, law in laws.items():
        try:
            if law(case) is not False:
                applied.append(name)
        except Exception as error:  # a law is broken by whatever goes wrong
            words = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            broken.setdefault(words, []).append(name)
            if name == "repeatable":  # no other law could be judged
                break
    if broken:
        sentences = "\n".join(f"- {', '.join(names)}: {sentence}" for sentence, names in broken.items())
        number = sum(map(len, broken.values()))
        raise AssertionError(f"{layer_name(layer)} breaks {number} of {len(laws)} laws:\n{sentences}")
    return tuple(applied)


# ---- the laws -------------------------------------------------------------------------------


def repeatable(case: Case) -> None:
    """The same call gives the same result: nothing is hidden, nothing is kept."""
    params, state, outputs, after = _run(case)
    words = "two equal calls give different results; keep what changes in the state, and draw from the key"
    _assert_same(_apply(case, params, state, case.inputs), (outputs, after), words)


def init_reads_shapes(case: Case) -> None:
    """``init`` reads shapes and dtypes only, computes nothing from its inputs, and is jit-able."""
    side = _init_side(case)

    def init(inputs, side=side):
        return case.layer.init(jax.random.clone(case.key), *inputs, **side)

    made = init(case.inputs)
    words = "init makes other params from ShapeDtypeStructs than from arrays; read x.shape and x.dtype only"
    _assert_same(init(as_shapes(case.inputs), as_shapes(side)), made, words)
    jitted = jax.jit(lambda: init(as_shapes(case.inputs), as_shapes(side)))()
    _assert_same(jitted, made, "init makes other params under jit", 1e-6)
    jaxpr = jax.make_jaxpr(init)(case.inputs).jaxpr
    read = {id(v) for eqn in jaxpr.eqns for v in eqn.invars} | {id(v) for v in jaxpr.outvars}
    assert not any(id(v) in read for v in jaxpr.invars), "init computes with its inputs; read x.shape and x.dtype only."
    double, axes = lambda x: jnp.concatenate([x, x]), _side_axes(case)
    twice = {name: jax.tree.map(double, value) if axes.get(name) == 0 else value for name, value in side.items()}
    longer = init(jax.tree.map(double, case.inputs), twice)
    shapes, longer_shapes = as_shapes(_params(case, made)), as_shapes(_params(case, longer))
    assert shapes == longer_shapes, (
        f"the params have other shapes for a longer batch ({longer_shapes} instead of {shapes}); "
        "the shapes of params may depend on trailing axes only."
    )


def shapes_as_stated(case: Case) -> None:
    """``apply`` takes the params of ``init``, keeps the leading axis, and returns what its annotations state."""
    from jaxtyping import jaxtyped

    params, state, outputs, _ = _run(case)
    for y in jax.tree.leaves(outputs):
        assert y.shape[:1] == case.inputs[0].shape[:1], (
            f"the inputs have {case.inputs[0].shape[0]} examples on their first axis, but the output is {describe(y)}; "
            "keep the leading axes."
        )
    function = getattr(case.layer.apply, "of_arrays", case.layer.apply)
    arguments = (params, state) if isinstance(case.layer, StatefulLayer) else (params,)
    arguments = case.inputs if function is not case.layer.apply else (*arguments, *case.inputs)
    try:
        stated = typing.get_type_hints(function)
        bound = inspect.signature(function).bind_partial(*arguments).arguments
    except (NameError, TypeError, ValueError):  # names that are not there, builtins without signature
        stated, bound = {}, {}
    returned = stated.get("return")
    if isinstance(case.layer, StatefulLayer):
        returned = (typing.get_args(returned) or (None,))[0]
    with jaxtyped("context"):
        for name, value in bound.items():
            several = inspect.signature(function).parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
            for one in value if several else (value,):
                _assert_annotated(stated.get(name), one, f"the argument {name}")
        _assert_annotated(returned, outputs, "the output")


def jit_is_eager(case: Case) -> None:
    """``jit(apply)`` computes what ``apply`` computes."""
    params, state, outputs, after = _run(case)
    jitted = jax.jit(lambda params, state, inputs: _apply(case, params, state, inputs))(params, state, case.inputs)
    _assert_same(jitted, (outputs, after), "apply computes something else under jit", 1e-5)


def vmap_is_batch(case: Case) -> bool | None:
    """Mapping over the batch axis computes what the whole batch computes (in evaluation, where it draws at random)."""
    case = _without_chance(case)
    if case is None or case.mixes_batch:
        return False
    params, state, outputs, _ = _run(case)
    one = jax.tree.map(lambda x: x[0], case.inputs)
    arrays, static = split_side(case.side)
    axes = _side_axes(case)
    first = {name: jax.tree.map(lambda a: a[0], a) if axes[name] == 0 else a for name, a in arrays.items()}
    own_side = {name: value for name, value in {**first, **static}.items() if name in _init_side(case)}
    own_state = stateful(case.layer).init(jax.random.clone(case.key), *one, **own_side)[1]
    if as_shapes(own_state) != as_shapes(state):  # a carry per example: not one state for all
        return False

    def example(inputs, arrays):
        return _apply(case._replace(side={**arrays, **static}), params, state, inputs)[0]

    mapped = jax.vmap(example, in_axes=(0, axes))(case.inputs, arrays)
    words = "vmap over the examples computes something else than the batch; act on the trailing axes only"
    _assert_same(mapped, outputs, words, 1e-5)


def independence(case: Case) -> bool | None:
    """One example does not move the output of another."""
    if case.mixes_batch:
        return False
    params, state, outputs, _ = _run(case)
    rng = np.random.default_rng(3)

    def move(x):
        if jnp.issubdtype(x.dtype, jnp.floating):
            return x.at[0].set(jnp.asarray(rng.normal(size=x.shape[1:]), x.dtype))
        return x.at[0].set(x[-1])

    after, _ = _apply(case, params, state, jax.tree.map(move, case.inputs))
    _assert_same(
        jax.tree.map(lambda y: y[1:], after),
        jax.tree.map(lambda y: y[1:], outputs),
        "the output of one example changes with another example of the batch; act on the trailing axes only",
    )


def dtype_kept(case: Case) -> bool | None:
    """Floating-point outputs have the dtype of the inputs, and no dtype is promoted in silence."""
    with jax.numpy_dtype_promotion("strict"):
        for dtype in (jnp.float32, jnp.bfloat16):
            cast = case._replace(inputs=_cast(case.inputs, dtype), side=_cast(case.side, dtype))
            if not _floating(cast.inputs):
                return False
            try:
                _, state, outputs, after = _run(cast)
            except Exception as error:
                if type(error).__name__ != "TypePromotionError":
                    raise
                words = str(error).split(" have no")[0]
                raise AssertionError(
                    f"for inputs of {jnp.dtype(dtype)}, arrays of unequal dtype meet ({words}); cast explicitly, as in "
                    'params["kernel"].astype(x.dtype), so that nothing is promoted in silence.'
                ) from error
            for y in jax.tree.leaves(outputs):
                assert not jnp.issubdtype(y.dtype, jnp.floating) or y.dtype == dtype, (
                    f"inputs of {jnp.dtype(dtype)} come out as {y.dtype}; compute in the dtype of the input."
                )
                assert not y.weak_type, "an output is weakly typed; give constants a dtype."
            assert as_shapes(after) == as_shapes(state), (
                f"the state goes in as {as_shapes(state)} and comes out as {as_shapes(after)}; keep shapes and dtypes."
            )


def derivatives_agree(case: Case) -> bool | None:
    """Forward mode, reverse mode and finite differences agree (in float64)."""
    with jax.enable_x64(True):
        case = case._replace(inputs=_cast(case.inputs, jnp.float64), side=_cast(case.side, jnp.float64))
        params, state, _, _ = _run(case)
        params = _cast(params, jnp.float64)
        f, x = _smooth_part(case, params, state)
        if not jax.tree.leaves(x):
            return False
        cotangent = _like(jax.eval_shape(f, x), 2)
        if not cotangent:
            return False
        step = 1e-6

        @jax.jit
        def derivatives(x, direction, cotangent):
            y, tangent = jax.jvp(f, (x,), (direction,))
            ahead = f([a + step * b for a, b in zip(x, direction, strict=True)])
            behind = f([a - step * b for a, b in zip(x, direction, strict=True)])
            return y, tangent, jax.vjp(f, x)[1](cotangent)[0], ahead, behind

        direction = _like(x, 1)
        y, tangent, pulled, ahead, behind = derivatives(x, direction, cotangent)
        forward, reverse = _dot(cotangent, tangent), _dot(pulled, direction)
        size = 1e-30 + float(jnp.sqrt(_dot(tangent, tangent) * _dot(cotangent, cotangent)))
        difference = _dot(cotangent, [(a - b) / (2 * step) for a, b in zip(ahead, behind, strict=True)])
        modes_agree, difference_agrees = abs(forward - reverse) <= 1e-9 * size, abs(difference - forward) <= 1e-6 * size
        if not (modes_agree and difference_agrees):
            single = [bool((leaf == leaf.astype(jnp.float32).astype(jnp.float64)).all()) for leaf in y]
            assert not all(single), (
                "the outputs for float64 inputs have only the digits of float32, so the derivative cannot be checked; "
                "compute in the dtype of the input, and widen only what is narrower than float32."
            )
        assert modes_agree, f"forward and reverse mode differ: <u, J v> is {forward} and <J'u, v> is {reverse}."
        assert difference_agrees, f"the derivative differs from the finite difference: {forward} against {difference}."


def scan_and_remat(case: Case) -> None:
    """Inside ``lax.scan`` and under ``jax.checkpoint`` values and gradients stay what they are."""
    params, state, outputs, _ = _run(case)
    f, x = _smooth_part(case, params, state)

    def total(x, f=f):
        return sum((y.astype(jnp.float32) ** 2).sum() for y in jax.tree.leaves(f(x)))

    def step(carry, inputs):
        return carry, _apply(case, params, state, inputs)[0]

    _, scanned = jax.lax.scan(step, 0, jax.tree.map(lambda a: a[None], case.inputs))
    _assert_same(jax.tree.map(lambda y: y[0], scanned), outputs, "apply computes something else inside lax.scan", 1e-5)
    if jax.tree.leaves(x) and jax.tree.leaves(jax.eval_shape(f, x)):
        plain, again = jax.jit(jax.grad(total))(x), jax.jit(jax.grad(jax.checkpoint(total)))(x)
        _assert_same(again, plain, "gradients change under jax.checkpoint", 1e-4)


def no_retrace(case: Case) -> None:
    """A second call with the same shapes does not trace again."""
    params, state, _, _ = _run(case)
    traces = []

    @jax.jit
    def apply(params, state, inputs):
        traces.append(None)
        return _apply(case, params, state, inputs)

    _, state = apply(params, state, case.inputs)
    apply(jax.tree.map(lambda p: p + jnp.ones_like(p), params), state, case.inputs)
    assert len(traces) == 1, "a second call traces again; the state changes its shape, its dtype or its weak type."


def no_leaks(case: Case) -> None:
    """No value of one trace is kept for another: not in ``init``, ``jit``, ``vmap``, ``grad``."""
    shapes, side = as_shapes(case.inputs), as_shapes(_init_side(case))
    with jax.checking_leaks():
        made = jax.jit(lambda: case.layer.init(jax.random.clone(case.key), *shapes, **side))()
        params, state = made if isinstance(case.layer, StatefulLayer) else (made, ())
        f, x = _smooth_part(case, params, state)
        jax.jit(jax.grad(lambda x: sum(y.astype(jnp.float32).sum() for y in f(x))) if x else f)(x)


def finite_gradients(case: Case) -> bool | None:
    """Outputs and gradients stay finite for inputs of zero and of +-1e4."""
    if not _floating(case.inputs):
        return False
    params, state, _, _ = _run(case)

    @jax.jit
    def value_and_gradient(params, inputs):
        f, x = _smooth_part(case._replace(inputs=inputs), params, state)
        y, pull = jax.vjp(f, x)
        return y, pull(jax.tree.map(jnp.ones_like, y))

    with jax.debug_nans(False):
        for value in (0.0, 1e4, -1e4):
            inputs = jax.tree.map(lambda x, v=value: jnp.full_like(x, v) if _floating(x) else x, case.inputs)
            for leaf in jax.tree.leaves(value_and_gradient(params, inputs)):
                assert jnp.isfinite(leaf).all(), f"the output or its gradient is not finite for inputs of {value}."


def unknown_side_input_refused(case: Case) -> None:
    """A side input that is not declared is a ``TypeError``."""
    params, state, _, _ = _run(case)
    try:
        _apply(case._replace(side={**case.side, "color": "red"}), params, state, case.inputs)
    except TypeError:
        return
    raise AssertionError("apply takes a side input color='red' that it cannot read; declare side inputs by name.")


def key_used_once(case: Case) -> None:
    """No key is used twice, in ``init`` or in ``apply``."""
    with jax.debug_key_reuse(True):
        try:
            jax.jit(lambda key: case.layer.init(key, *as_shapes(case.inputs), **as_shapes(_init_side(case))))(case.key)
            params, state, _, _ = _run(case)
            jax.jit(lambda key: _apply(case._replace(key=key), params, state, case.inputs))(jax.random.clone(case.key))
        except jax.errors.KeyReuseError as error:
            raise AssertionError("a key is used twice; split it with jax.random.split or fold_in.") from error


LAWS: dict[str, Callable[[Case], None]] = {
    law.__name__: law
    for law in (
        repeatable,
        init_reads_shapes,
        shapes_as_stated,
        jit_is_eager,
        vmap_is_batch,
        independence,
        dtype_kept,
        derivatives_agree,
        scan_and_remat,
        no_retrace,
        no_leaks,
        finite_gradients,
        unknown_side_input_refused,
        key_used_once,
    )
}


# ---- what they share ------------------------------------------------------------------------


def _init_side(case):
    """Those of the case's side inputs that ``init`` reads."""
    declared = side_inputs(case.layer.init)
    return {name: value for name, value in case.side.items() if name in declared}


def _params(case, made):
    return made[0] if isinstance(case.layer, StatefulLayer) else made


def _apply(case, params, state, inputs):
    """Outputs and next state, with a clone of the key where the layer reads one and the case trains."""
    side = dict(case.side)
    if "key" in side_inputs(case.layer):
        side["key"] = jax.random.clone(case.key)
    return require_pair("apply", "(outputs, state)", stateful(case.layer).apply(params, state, *inputs, **side))


def _run(case):
    """Params, state, outputs and next state; a layer that learns its state has learned once before evaluation."""
    made = stateful(case.layer).init(jax.random.clone(case.key), *case.inputs, **_init_side(case))
    params, state = require_pair("init", "(params, state)", made)
    for leaf in jax.tree.leaves(made):
        assert hasattr(leaf, "dtype"), (
            f"init made {describe_any(leaf)} among params and state; make arrays, as in jnp.zeros((), jnp.int32)."
        )
    if jax.tree.leaves(state) and "train" in side_inputs(case.layer) and not case.side.get("train"):
        _, state = _apply(case._replace(side={**case.side, "train": True}), params, state, case.inputs)
    return params, state, *_apply(case, params, state, case.inputs)


def _without_chance(case):
    """The case as it is, or in evaluation where it draws at random, or ``None`` where it draws even there."""
    for side in (case.side, {**case.side, "train": False}):
        tried = case._replace(side=side, mixes_batch=case.mixes_batch and side is case.side)
        if "key" not in side_inputs(case.layer):
            return tried
        params, state, one, _ = _run(tried)
        other, _ = _apply(tried._replace(key=jax.random.fold_in(case.key, 1)), params, state, case.inputs)
        if all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), one, other))):
            return tried
        if "train" not in side_inputs(case.layer):
            return None
    return None


def _side_axes(case):
    """For ``vmap``: 0 for the side inputs that hold one entry per example, ``None`` for other arrays."""
    batch = case.inputs[0].shape[0]
    arrays = split_side(case.side)[0]
    return {
        name: 0 if all(leaf.shape[:1] == (batch,) for leaf in jax.tree.leaves(value)) else None
        for name, value in arrays.items()
    }


def _floating(tree):
    return any(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(tree))


def _cast(tree, dtype):
    def cast(leaf):
        return leaf.astype(dtype) if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(cast, tree)


def _smooth_part(case, params, state):
    """The layer as a function of its floating-point params and inputs, returning its floating-point outputs."""
    leaves, tree = jax.tree.flatten((params, case.inputs))
    moving = [i for i, leaf in enumerate(leaves) if jnp.issubdtype(leaf.dtype, jnp.floating)]

    def f(x):
        filled = list(leaves)
        for i, leaf in zip(moving, x, strict=True):
            filled[i] = leaf
        params, inputs = jax.tree.unflatten(tree, filled)
        outputs, _ = _apply(case, params, state, inputs)
        return [y for y in jax.tree.leaves(outputs) if jnp.issubdtype(y.dtype, jnp.floating)]

    return f, [leaves[i] for i in moving]


def _like(tree, seed):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), tree)


def _dot(a, b):
    return sum(float((x * y).sum()) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def _assert_same(came, expected, sentence, tolerance=0.0):
    assert jax.tree.structure(came) == jax.tree.structure(expected), f"{sentence}: the trees differ."
    for a, b in zip(jax.tree.leaves(came), jax.tree.leaves(expected), strict=True):
        if jnp.issubdtype(b.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert (a.shape, a.dtype) == (b.shape, b.dtype), f"{sentence}: {describe(a)} instead of {describe(b)}."
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        worst = np.max(np.abs(a - b), initial=0.0)
        by = f" (by {worst:.2g})" if tolerance else ""
        assert worst <= tolerance * (1 + np.max(np.abs(b), initial=0.0)), f"{sentence}{by}."


def _assert_annotated(annotation, value, what):
    if not hasattr(annotation, "dims"):
        return
    assert isinstance(value, annotation), (
        f"{what} is annotated as {annotation.__name__}, but {describe(value)} came; state its real shape."
    )
