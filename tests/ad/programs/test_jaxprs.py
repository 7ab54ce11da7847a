"""Jaxprs as functions agree with the functions that they were traced from."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxblocks.ad.programs.jaxprs import (
    all_equations,
    evaluate,
    inputs_of,
    interpret,
    interpret_scan,
    open_calls,
    piece,
    unroll_scan,
)

X = jnp.asarray(np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3))
W = jnp.asarray(np.linspace(0.5, 2, 12, dtype=np.float32).reshape(3, 4))


@jax.custom_vjp
def cube(x):
    return x**3


cube.defvjp(lambda x: (x**3, x), lambda x, g: (3 * x**2 * g,))


def everything(x, w):
    y = jax.checkpoint(lambda x: jnp.tanh(x) @ w)(x)
    y = jax.nn.relu(y) + jax.jit(jnp.sin)(y) + jax.jit(jnp.sin)(2 * y) + cube(y) + jax.nn.softmax(y)
    y, _ = lax.scan(lambda carry, _: (jnp.cos(jax.jit(jnp.sin)(carry)), None), y, length=3)
    return lax.cond(y.sum() > 0, lambda: y, lambda: -y), x * x


def test_jaxpr_evaluates_to_its_function():
    """With and without inlined calls, values and derivatives are the same, eagerly and under jit."""
    traced = jax.make_jaxpr(everything)(X, W)
    opened = open_calls(traced)

    @jax.jit
    def run(x, w):
        total = lambda f: jax.grad(lambda x: f(x, w)[0].sum())(x)
        programs = [lambda *args, program=program: evaluate(program, *args) for program in (traced, opened)]
        return [(f(x, w), total(f)) for f in (*programs, everything)]

    *found, (values, gradient) = run(X, W)
    for ours, slope in found:
        for one, expected in zip(ours, values, strict=True):
            np.testing.assert_allclose(one, expected, rtol=1e-6)
        np.testing.assert_allclose(slope, gradient, rtol=1e-5)
    for one, expected in zip(evaluate(opened, X, W), values, strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-6)


def test_inlining_removes_all_calls():
    """Only arithmetic, loops and branches remain; a body that is called twice gets distinct variables."""
    opened = open_calls(jax.make_jaxpr(everything)(X, W))
    names = [equation.primitive.name for equation in opened.eqns]
    assert not {"jit", "pjit", "custom_jvp_call", "custom_vjp_call", "checkpoint", "remat2"} & set(names)
    assert names.count("sin") == 2
    made = [variable for equation in opened.eqns for variable in equation.outvars]
    assert len(made) == len(set(made))


def test_the_two_pieces_of_a_cut_compose_to_the_function():
    """For every position of the cut, the composition of the two pieces equals the function."""
    opened = open_calls(jax.make_jaxpr(lambda x: jnp.tanh(x @ W) * jnp.sin(x @ W) + 1)(X))
    whole, jaxpr = evaluate(opened, X), opened.jaxpr
    constants = list(jaxpr.constvars)
    for cut in range(len(jaxpr.eqns) + 1):
        first, second = jaxpr.eqns[:cut], jaxpr.eqns[cut:]
        between = inputs_of(second) or list(jaxpr.outvars)
        start = [*constants, *jaxpr.invars]
        middle = piece(jaxpr, first, start, between)(*opened.consts, X)
        np.testing.assert_allclose(piece(jaxpr, second, between, jaxpr.outvars)(*middle)[0], whole[0], rtol=1e-6)


def test_interpreter_with_an_evaluation_rule_evaluates():
    """The values are those of the program, for unrolled scans and for scans by `lax.scan`."""
    traced = jax.make_jaxpr(everything)(X, W)
    unrolled = lambda step: unroll_scan(step, lambda x, i, v: x[i], lambda entries, v: jnp.stack(entries))
    looped = lambda step: interpret_scan(step, lambda body, operands, x: (step.interpret(body, operands), ()))[0]
    values = lambda x, w, rule: interpret(traced, [x, w], lambda step: step.evaluate(), rules={"scan": rule})
    *found, theirs = jax.jit(lambda *xs: [*(values(*xs, rule) for rule in (unrolled, looped)), everything(*xs)])(X, W)
    for each in found:
        for ours, expected in zip(each, theirs, strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-6)


def test_rule_takes_precedence_over_inlining():
    """A rule for a custom-derivative call receives the call itself; if `opens` is False, the default rule does."""
    traced = jax.make_jaxpr(lambda x: cube(x) + 1)(X)
    call = next(e for e in traced.eqns if e.primitive.name.startswith("custom_vjp")).primitive.name
    seen = []
    interpret(traced, [X], lambda step: step.evaluate(), rules={call: lambda step: seen.append(1) or step.evaluate()})
    interpret(traced, [X], lambda step: seen.append(step.name) or step.evaluate(), opens=lambda step: step.name != call)
    assert seen == [1, call, "add"]


def test_steps_have_their_path_and_scope():
    def f(x):
        with jax.named_scope("outer"):
            return jax.jit(lambda x: jnp.sin(x * 2))(x) + 1

    found = {}

    def record(step):
        found[step.name] = step.path, step.scope
        return step.evaluate()

    interpret(jax.make_jaxpr(f)(1.0), [1.0], record)
    assert found == {"mul": ((0, 0), "outer"), "sin": ((0, 1), "outer"), "add": ((1,), "outer")}


def test_all_equations_include_branches_and_loops():
    names = [equation.primitive.name for equation in all_equations(jax.make_jaxpr(everything)(X, W).eqns)]
    assert {"tanh", "cos", "neg", "scan", "cond"} <= set(names)


def test_constants_of_nested_calls_are_kept():
    """An array that a jitted function reads from outside is a constant of its body."""
    program = jax.make_jaxpr(lambda x: jax.jit(lambda y: y * np.asarray(X))(x) + 1)(X)
    [found], [opened] = evaluate(program, X), evaluate(open_calls(program), X)
    np.testing.assert_array_equal(found, np.asarray(X) ** 2 + 1)
    np.testing.assert_array_equal(opened, found)
