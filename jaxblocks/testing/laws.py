"""The laws that every layer satisfies, as checks for your own layers.

`check_layer` checks a layer against all laws and reports those that it violates. Each law is a function ``law(case)``
in `LAWS`: it raises where the layer violates the law, and returns ``False`` where the law does not apply to the layer.
The tests of this project check them on the layers of the library.
"""

import ast
import contextlib
import dataclasses
import functools
import importlib.util
import inspect
import pickle
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxblocks.backend.precision import full_precision
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import checked
from jaxblocks.checks.names import nearest
from jaxblocks.core.keys import KEYS
from jaxblocks.core.lifting import as_layer, side_inputs
from jaxblocks.core.pairs import LayerLike, StatefulLayer, layer_name
from jaxblocks.core.shapes import as_shapes, eval_shape, split_side
from jaxblocks.testing.case import (
    Case,
    Tree,
    apply_jitted,
    apply_of,
    differentiable_part,
    evaluated,
    has_running_statistics,
    init_of,
    init_side,
    is_floating,
    out_shapes,
    partition,
    run_of,
    side_axes,
    traced_of,
)
from jaxblocks.testing.comparisons import (
    assert_annotated,
    assert_same,
    assert_same_program,
    functions_in,
    is_importable,
    widened,
)
from jaxblocks.testing.derivatives import dot, in_float64, random_like

__all__ = ["LAWS", "check_layer"]

Law: TypeAlias = Callable[[Case], bool | None]


@checked
def check_layer(
    layer: LayerLike,
    *inputs: Any,
    key: Any = None,
    mixes_batch: bool = False,
    laws: Mapping[str, Law] | None = None,
    **side: Any,
) -> tuple[str, ...]:
    """Check a layer on example inputs against every law of layers.

    The laws compute products in full precision on every device, so that results of different programs are comparable.

    Args:
        layer: a pair, or a function of arrays.
        inputs: arrays with a leading batch axis of at least two. Pass small ones, since the
            layer is compiled several times, and random ones, since equal rows hide mistakes.
        key: for ``init``, and for layers that draw random numbers.
        mixes_batch: ``True`` where one example may change the output of another, as in
            batch normalization while it trains.
        laws: the laws to check; all of `LAWS` by default.
        side: further side inputs, such as ``train=True`` or ``mask=...``; an array whose first
            axis is as long as the batch holds one entry per example.

    Returns:
        The names of the laws that apply to this layer; it satisfies all of them.

    Raises:
        AssertionError: with a message for each law that the layer violates, or with the error that the layer raises for
            these inputs.
        ValueError: for inputs without a batch axis.

    >>> def Center():
    ...     def init(key, x):
    ...         return ()
    ...     def apply(params, x):
    ...         return x - x.mean(0, keepdims=True).repeat(x.shape[0], 0)
    ...     return Layer(init, apply)
    >>> laws = {"independence": LAWS["independence"]}
    >>> check_layer(Center(), jnp.arange(6.0).reshape(3, 2), laws=laws)
    Traceback (most recent call last):
    ...
    AssertionError: Center violates 1 of 1 laws:
    - independence: the output of one example changes with another example of the batch; act on the trailing axes only.
    """
    layer = as_layer(layer)
    for name in side:
        meant = nearest(name, ("key", "mixes_batch", "laws"), 0.8)
        misspelled, repair = meant and name not in side_inputs(layer), f"did you mean {meant}?"
        require(not misspelled, "options among key, mixes_batch, laws", repr(name), repair, error=TypeError)
    # device_put compiles nothing, unlike jnp.asarray.
    inputs, side = jax.tree.map(lambda x: jax.device_put(x) if isinstance(x, np.ndarray) else x, (inputs, side))
    laws = LAWS if laws is None else laws
    case = Case(layer, inputs, side, jax.random.key(0) if key is None else key, mixes_batch)
    batched = inputs and all(getattr(x, "shape", ()) and x.shape[0] >= 2 for x in inputs)
    got = ", ".join(map(describe, inputs)) or "none"
    require(batched, "arrays with a leading batch axis of at least 2", got, "pass a batch of examples")
    kept, broken = [], {}
    for name, law in laws.items():
        try:
            if law(case) is not False:
                kept.append(name)
        except Exception as error:  # every exception is a violation
            sentence = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            if name == "repeatable" and "_eager" not in vars(case):  # there are no results to compare
                raise AssertionError(f"{layer_name(layer)} raises an error for these inputs:\n{sentence}") from error
            broken.setdefault(sentence, []).append(name)
            if name == "repeatable":  # the other laws compare results of several calls
                break
    if any("longer batch" in sentence for sentence in broken) and all(x.ndim == 1 for x in inputs):
        expected, repair = "arrays with a leading batch axis", "pass a batch of examples, such as jnp.stack([x, x])"
        require(False, expected, f"{got}, whose first axis is the size of the params", repair)
    if broken:
        sentences = "\n".join(f"- {', '.join(names)}: {sentence}" for sentence, names in broken.items())
        number = sum(map(len, broken.values()))
        raise AssertionError(f"{layer_name(layer)} violates {number} of {len(laws)} laws:\n{sentences}")
    return tuple(kept)


def repeatable(case: Case) -> None:
    """Equal calls give equal results: the layer has no hidden state."""
    params, state, outputs, after = case._eager
    words = "two equal calls give different results; put changing values in the state, and draw from the key"
    assert_same(apply_of(case, params, state, case.inputs), (outputs, after), words)


def init_reads_shapes(case: Case) -> None:
    """``init`` reads shapes and dtypes only, computes nothing from its inputs, and works under ``jit``."""
    shapes, side = as_shapes(case.inputs), as_shapes(init_side(case))
    words = "init makes different params from ShapeDtypeStructs and from arrays; read x.shape and x.dtype only"
    assert_same(init_of(dataclasses.replace(case, inputs=shapes, side=side)), case._initial, words)
    traced = case._jitted_init.trace(case.key, case.inputs)
    jaxpr = traced.jaxpr.jaxpr
    inputs = jaxpr.invars[1:]  # after the key
    # A variable that no equation reads and that is no result is not computed with.
    read = {id(v) for eqn in jaxpr.eqns for v in eqn.invars} | {id(v) for v in jaxpr.outvars}
    assert not any(id(v) in read for v in inputs), "init computes with its inputs; read x.shape and x.dtype only."
    assert_same(evaluated(traced, case.key, case.inputs), case._initial, "init makes different params under jit")

    def double(x):
        return jax.ShapeDtypeStruct((2 * x.shape[0], *x.shape[1:]), x.dtype)

    axes = side_axes(case)
    twice = {name: jax.tree.map(double, value) if axes.get(name) == 0 else value for name, value in side.items()}

    def longer_init(inputs, side):
        return init_of(dataclasses.replace(case, inputs=inputs, side=side))[0]

    longer, expected = eval_shape(longer_init, jax.tree.map(double, shapes), twice), as_shapes(case._initial[0])
    assert as_shapes(longer) == expected, (
        f"the params have different shapes for a longer batch ({as_shapes(longer)} instead of {expected}); "
        "the shapes of params may depend on trailing axes only, and inputs have a leading batch axis."
    )


def shapes_as_stated(case: Case) -> None:
    """``apply`` takes the params of ``init``, keeps the leading axis, and returns what its annotations state."""
    from jaxtyping import jaxtyped

    params, state, outputs, _ = case._eager
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
    except (NameError, TypeError, ValueError):  # names that cannot be resolved, builtins without signature
        stated, bound = {}, {}
    returned = stated.get("return")
    if isinstance(case.layer, StatefulLayer):
        returned = (typing.get_args(returned) or (None,))[0]
    with jaxtyped("context"):
        for name, value in bound.items():
            several = inspect.signature(function).parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
            for one in value if several else (value,):
                assert_annotated(stated.get(name), one, f"the argument {name}")
        assert_annotated(returned, outputs, "the output")


def jit_is_eager(case: Case) -> None:
    """``jit(apply)`` gives the results of ``apply``."""
    params, state, outputs, after = case._eager
    words = "apply gives different results under jit"
    assert_same(apply_jitted(case, params, state, case.inputs), (outputs, after), words, 1e-5)


def vmap_is_batch(case: Case) -> bool | None:
    """``vmap`` over the batch axis gives the results of the whole batch (in evaluation for random layers)."""
    quiet = _without_randomness(case)
    if quiet is None or quiet.mixes_batch:
        return False
    params, state, outputs, _ = quiet._eager
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), quiet.inputs)
    arrays, static = split_side(quiet.side)
    axes = side_axes(quiet)
    own_side = {name: value for name, value in quiet.side.items() if name in init_side(quiet)}
    for name in own_side:
        if axes.get(name) == 0:
            own_side[name] = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), own_side[name])

    def own_init(inputs, side):
        return init_of(dataclasses.replace(quiet, inputs=inputs, side=side))[1]

    if as_shapes(eval_shape(own_init, one, own_side)) != as_shapes(state):  # one carry per example, not one for all
        return False

    def example(inputs, arrays):
        return apply_of(dataclasses.replace(quiet, side={**arrays, **static}), params, state, inputs)[0]

    mapped = jax.jit(jax.vmap(example, in_axes=(0, axes)))(quiet.inputs, arrays)
    words = "vmap over the examples gives other results than the batch; act on the trailing axes only"
    assert_same(mapped, outputs, words, 1e-5)
    return None


def independence(case: Case) -> bool | None:
    """The output of one example does not depend on another example."""
    if case.mixes_batch:
        return False
    params, state, _, _ = case._eager
    rng = np.random.default_rng(3)

    def change_first(x):
        changed = np.array(x)
        # Integers take the row of another example, which is valid wherever theirs is.
        changed[0] = rng.normal(size=x.shape[1:]) if jnp.issubdtype(x.dtype, jnp.floating) else changed[-1]
        return jax.device_put(changed)

    inputs = jax.tree.map(change_first, case.inputs)

    def others(inputs):
        return jax.tree.map(lambda y: np.asarray(y)[1:], apply_jitted(case, params, state, inputs)[0])

    words = "the output of one example changes with another example of the batch; act on the trailing axes only"
    assert_same(others(inputs), others(case.inputs), words)
    return None


def dtype_kept(case: Case) -> bool | None:
    """Floating-point outputs have the dtype of the inputs, and no dtype is promoted implicitly."""
    for dtype in (jnp.float32, jnp.bfloat16):
        cast = case._as(dtype)
        if not is_floating(cast.inputs):
            return False
        with _configured("numpy_dtype_promotion", "strict"):
            try:
                init, *calls = traced_of(cast)
            except Exception as error:
                # The class is not public in JAX.
                if type(error).__name__ != "TypePromotionError":
                    raise
                words = str(error).split(" have no")[0]
                raise AssertionError(
                    f"for inputs of {jnp.dtype(dtype)}, dtypes are mixed ({words}); cast explicitly, as in "
                    'params["kernel"].astype(x.dtype), so that no dtype is promoted implicitly.'
                ) from error
            if dtype == jnp.bfloat16:  # the other laws compile it in float32
                for traced in calls:
                    traced.lower()
        before = as_shapes(out_shapes(init)[1])
        for outputs, state in map(out_shapes, calls):
            for y in jax.tree.leaves(outputs):
                assert not jnp.issubdtype(y.dtype, jnp.floating) or y.dtype == dtype, (
                    f"the output for inputs of {jnp.dtype(dtype)} is {y.dtype}; compute in the dtype of the input."
                )
                assert not y.weak_type, "an output is weakly typed; give constants a dtype."
            after = as_shapes(state)
            assert before == after, f"the state changes from {before} to {after}; keep its shapes and dtypes."
    return None


def derivatives_agree(case: Case) -> bool | None:
    """Forward mode, reverse mode and finite differences agree (in float64)."""
    params, state, outputs, _ = case._eager
    if not (is_floating((params, case.inputs)) and is_floating(outputs)):
        return False
    step = 1e-6
    here, ahead, behind = in_float64(case, params, state, (0.0, step, -step))
    cotangent, tangent = here.cotangent, here.tangent
    forward, reverse = dot(cotangent, tangent), dot(here.pulled, here.direction)
    # The scale of the inner product, so that the tolerances are relative.
    size = 1e-30 + float(np.sqrt(dot(tangent, tangent) * dot(cotangent, cotangent)))
    moved = zip(ahead.outputs, behind.outputs, strict=True)
    # Central differences, of second order in the step.
    difference = dot(cotangent, [(a - b) / (2 * step) for a, b in moved])
    modes_agree, difference_agrees = abs(forward - reverse) <= 1e-9 * size, abs(difference - forward) <= 1e-6 * size
    if not (modes_agree and difference_agrees):
        assert not all((leaf == leaf.astype(np.float32)).all() for leaf in here.outputs), (
            "the outputs for float64 inputs have only the precision of float32, so the derivative cannot be checked; "
            "compute in the dtype of the input, and widen only dtypes narrower than float32; or there is no derivative "
            "here, as of abs at 0."
        )
    assert modes_agree, f"forward and reverse mode differ: <u, J v> is {forward} and <J'u, v> is {reverse}."
    assert difference_agrees, f"the derivative differs from the finite difference: {forward} against {difference}."
    return None


def scan_and_remat(case: Case) -> None:
    """Values and gradients inside ``lax.scan`` and under ``jax.checkpoint`` are those of a plain call."""
    params, _, outputs, _ = case._eager
    cotangent = random_like(partition(outputs)[0], 2)
    (_, plain), (values, gradients) = case._jitted_pullbacks(params, case.inputs, cotangent)
    words = "apply gives different results inside lax.scan under jax.checkpoint"
    assert_same(values, partition(outputs), words, 1e-5)
    assert_same(gradients, plain, "gradients change inside lax.scan under jax.checkpoint", 1e-4)


def no_retrace(case: Case) -> None:
    """A second call with the same shapes does not trace again."""
    params, state, _, _ = case._eager
    _, state = apply_jitted(case, params, state, case.inputs)
    before = len(case._traces)
    traced = case._jitted_init.trace(case.key, case.inputs)
    params, _ = evaluated(traced, jax.random.fold_in(case.key, 1), case.inputs)
    apply_jitted(case, params, state, case.inputs)
    words = "a second call traces again; the state changes its shape, its dtype or its weak type."
    assert len(case._traces) == before, words


def no_leaks(case: Case) -> None:
    """``init`` and ``apply`` leak no tracers under ``jit``, ``vmap`` and ``grad``."""
    params, state = case._initial

    def gradient(inputs):
        f, x = differentiable_part(case, params, state, inputs, apply_of)
        # Integer outputs have no gradient; without floating-point inputs the call alone is checked.
        total = lambda x: sum((jnp.real(y).astype(jnp.float32).sum() for y in f(x)[0]), jnp.float32(0))
        return jax.grad(total)(x) if x else f(x)

    batched = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), case.inputs)
    with jax.checking_leaks():
        jax.eval_shape(lambda key: init_of(dataclasses.replace(case, inputs=as_shapes(case.inputs), key=key)), case.key)
        jax.eval_shape(jax.vmap(gradient), batched)


def finite_gradients(case: Case) -> bool | None:
    """Outputs and gradients are finite for inputs of zero and of +-1e4."""
    if not is_floating(case.inputs):
        return False
    params, _, outputs, _ = case._eager
    cotangent = [np.ones(y.shape, y.dtype) for y in partition(outputs)[0]]
    with jax.debug_nans(False):
        for value in (0.0, 1e4, -1e4):
            inputs = jax.tree.map(
                lambda x, v=value: jax.device_put(np.full_like(x, v)) if is_floating(x) else x, case.inputs
            )
            for leaf in jax.tree.leaves(case._jitted_pullbacks(params, inputs, cotangent)[0]):
                finite = np.isfinite(widened(leaf)).all()
                assert finite, f"the output or its gradient is not finite for inputs of {value}."
    return None


def numpy_params(case: Case) -> None:
    """``apply`` takes params that are NumPy arrays, such as those read from a file."""
    params, state, outputs, after = case._eager
    stored = jax.tree.map(lambda p: np.asarray(p) if not jnp.issubdtype(p.dtype, jax.dtypes.prng_key) else p, params)
    got = jax.eval_shape(lambda inputs: apply_of(case, stored, state, inputs), case.inputs)
    assert as_shapes(got) == as_shapes((outputs, after)), "apply gives other shapes for params that are NumPy arrays."


def wrong_params_rejected(case: Case) -> bool | None:
    """Params of another name or shape raise "expected ..., got ...", unless they give outputs of other shapes."""
    params, state, outputs, _ = case._eager
    places = jax.tree_util.tree_leaves_with_path(params)
    # One param of each dict is renamed.
    renamed = {path[:-1]: path for path, _ in places if path and isinstance(path[-1], jax.tree_util.DictKey)}
    repair = "call jaxblocks.checks.check_params(params, kernel=(None, features)) in apply, with its names and shapes"
    for path, leaf in places:
        single = leaf.ndim > 0 and leaf.shape[-1] > 1  # which would broadcast
        shape = (*leaf.shape[:-1], 1) if single else (1, *leaf.shape)
        other = jax.ShapeDtypeStruct(shape, leaf.dtype)
        wrong = {f"of shape {shape}": _changed(params, path, lambda _, other=other: other)}
        if renamed.get(path[:-1]) == path:
            rename = lambda entries, old=path[-1].key: {f"{k} " if k == old else k: v for k, v in entries.items()}
            wrong["of another name"] = _changed(params, path[:-1], rename)
        for how, changed in wrong.items():
            what = f"{jax.tree_util.keystr(path, simple=True, separator='/')} {how}"
            try:
                got = jax.eval_shape(
                    lambda params, state: apply_of(case, params, state, case.inputs)[0], changed, state
                )
            except Exception as error:
                if not re.search(r" expected .+, got ", str(error)):
                    raise AssertionError(
                        f"for a param {what} apply raises {type(error).__name__}: {error}; {repair}."
                    ) from error
            else:
                assert got != as_shapes(outputs), f"apply accepts a param {what}; {repair}."
    return None if places else False


def _changed(tree: Tree, path: tuple, change: Callable) -> Tree:
    """The tree with the part at a path changed."""
    is_part = lambda place, _: place == path
    to = lambda place, part: change(part) if place == path else part
    return jax.tree.map_with_path(to, tree, is_leaf=is_part, is_leaf_takes_path=True)


def empty_batch(case: Case) -> bool | None:
    """A batch without examples gives outputs without examples."""
    if case.mixes_batch:
        return False

    def without_examples(tree):
        return jax.tree.map(lambda x: x[:0], tree)

    arrays, static = split_side(case.side)
    axes = side_axes(case)
    arrays = {name: without_examples(value) if axes[name] == 0 else value for name, value in arrays.items()}

    def run(inputs, arrays):
        empty = dataclasses.replace(case, inputs=inputs, side={**arrays, **static})
        state = jax.tree.leaves(case._eager.state)
        is_carry = all(leaf.shape[:1] == case.inputs[0].shape[:1] for leaf in state)
        if has_running_statistics(case, state) and not is_carry:  # which an empty batch does not have
            return apply_of(empty, case._eager.params, case._eager.state, inputs)[0]
        return run_of(empty).outputs

    got = jax.eval_shape(run, without_examples(case.inputs), arrays)
    expected = jax.tree.map(lambda y: jax.ShapeDtypeStruct((0, *y.shape[1:]), y.dtype), case._eager.outputs)
    assert got == expected, (
        f"the output for a batch without examples is {got}; write sizes such as math.prod(x.shape[-2:]), not -1."
    )
    return None


def unknown_side_input_rejected(case: Case) -> None:
    """A side input that is not declared raises a ``TypeError`` that names it; those declared are keyword-only."""
    for name, parameter in inspect.signature(case.layer.apply).parameters.items():
        if name in {"train", *KEYS, *case.side} and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            raise AssertionError(f"apply takes {name} by position; write it after a *: apply(params, x, *, {name}).")
    params, state, _, _ = case._eager
    try:
        apply_of(dataclasses.replace(case, side={**case.side, "color": "red"}), params, state, case.inputs)
    except TypeError as error:
        if "color" not in str(error):
            raise
        return
    raise AssertionError("apply accepts an undeclared side input color='red'; declare side inputs by name.")


def key_used_once(case: Case) -> None:
    """No key is used twice, in ``init`` or in ``apply``."""
    on = jax.config.jax_debug_key_reuse  # type: ignore[attr-defined]
    with _configured("debug_key_reuse", True):
        try:
            params, state, _, _ = case._eager if on else run_of(case)
            case._jitted_init.trace(case.key, case.inputs)
            case._jitted_apply.trace(case.key, params, state, case.inputs)
        except jax.errors.KeyReuseError as error:
            raise AssertionError("a key is used twice; split it with jax.random.split or fold_in.") from error


def repr_builds_the_layer(case: Case) -> bool | None:
    """``repr(layer)`` is an expression that builds a layer of the same params and outputs."""
    # The names that expressions use, and the functions of the layer itself.
    names: dict[str, Any] = {"jax": jax, "jnp": jnp, "partial": functools.partial, "as_layer": as_layer}
    text = repr(case.layer)
    names |= {function.__name__: function for function in functions_in(case.layer)}
    if re.search(r"<\w+(: (Stateful)?Layer)?>", text):  # unnamed functions cannot be evaluated
        return False
    try:
        ast.parse(text, mode="eval")
    except SyntaxError as error:
        raise AssertionError(
            f"the layer prints as {text}, which is not an expression; build it with a builder."
        ) from error
    assert_same_program(dataclasses.replace(case, layer=eval(text, names)), case, "the layer that its repr builds")
    return None


def copies_are_equal(case: Case) -> bool | None:
    """``pickle`` and ``cloudpickle`` (if installed) give a layer with the same results.

    ``pickle`` stores the functions of a layer by name, so it is checked where all of them can be imported.
    """
    copies: dict[str, Callable] = {}
    if all(map(is_importable, functions_in(case.layer))):
        copies["pickle"] = lambda layer: pickle.loads(pickle.dumps(layer))
    if importlib.util.find_spec("cloudpickle"):
        import cloudpickle

        copies["cloudpickle"] = lambda layer: pickle.loads(cloudpickle.dumps(layer))
    if not copies:
        return False
    try:
        copied = functools.reduce(lambda layer, make: make(layer), copies.values(), case.layer)
        assert_same_program(dataclasses.replace(case, layer=copied), case, "the copied layer")
    except Exception:  # each copy on its own, to name the one that differs
        for name, make in copies.items():
            copied = dataclasses.replace(case, layer=make(case.layer))
            assert_same_program(copied, case, f"the layer copied by {name}")
        raise
    return None


LAWS: dict[str, Law] = {
    # In full precision: with the products of GPUs and TPUs, equal formulas in two programs differ by their rounding.
    law.__name__: full_precision()(law)
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
        numpy_params,
        wrong_params_rejected,
        empty_batch,
        unknown_side_input_rejected,
        key_used_once,
        repr_builds_the_layer,
        copies_are_equal,
    )
}


def _configured(option: str, value: Any) -> contextlib.AbstractContextManager:
    """A configuration of JAX; to enter one that is on already would trace and compile everything again."""
    return contextlib.nullcontext() if getattr(jax.config, f"jax_{option}") == value else getattr(jax, option)(value)


def _without_randomness(case: Case) -> Case | None:
    """The case itself, or in evaluation if the layer is random, or ``None`` if it is random in evaluation too."""
    if not any(name in side_inputs(case.layer) for name in KEYS):
        return case
    # Evaluation with this case's other side inputs: a layer such as dropout is quiet there.
    evaluation = dataclasses.replace(case, side={**case.side, "train": False}, mixes_batch=False)
    for tried in (case, evaluation):
        params, state, one, _ = tried._eager
        other_key = dataclasses.replace(tried, key=jax.random.fold_in(jax.random.clone(case.key), 1))
        other, _ = apply_of(other_key, params, state, case.inputs)
        same = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
        if all((np.asarray(a) == np.asarray(b)).all() for a, b in same):
            return tried
        if "train" not in side_inputs(case.layer):
            return None
    return None
