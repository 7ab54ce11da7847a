"""Path selectors: matches of patterns, and uses of masks."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compiled import drawn

from jaxblocks import Dense, Repeat, Residual, Serial, count_params, l2_penalty, paths, relu, select

NET = Serial(
    encoder=Repeat(Residual(norm=lambda x: x, hidden=Dense(4), activation=relu), 3),
    attention=Serial(Dense(4), jnp.tanh, Dense(4)),
    out=Dense(2),
)
X = jnp.asarray(np.random.default_rng(1).normal(size=(8, 4)).astype(np.float32))
PARAMS = jax.tree.map(jnp.asarray, drawn(NET, X))


def chosen(*patterns, params=PARAMS):
    """The paths for which a mask is True."""
    mask = select(params, *patterns)
    assert jax.tree.structure(mask) == jax.tree.structure(params)
    leaves = jax.tree.leaves(mask)
    assert all(type(leaf) is bool for leaf in leaves)
    return [path for path, leaf in zip(paths(params), leaves, strict=True) if leaf]


gradient_of = jax.jit(jax.grad(lambda params: (NET.apply(params, X) ** 2).mean()))


# ---- patterns


def test_paths_of_names_and_positions():
    """One path for all copies inside a Repeat, in the order of the leaves."""
    assert paths(PARAMS) == (
        "attention/0/bias",
        "attention/0/kernel",
        "attention/2/bias",
        "attention/2/kernel",
        "encoder/hidden/bias",
        "encoder/hidden/kernel",
        "out/bias",
        "out/kernel",
    )
    assert paths(jax.eval_shape(NET.init, jax.random.key(0), X)) == paths(PARAMS)
    state = optax.adam(1e-3).init({"kernel": jnp.ones(2)})
    assert paths(state) == ("0/count", "0/mu/kernel", "0/nu/kernel")
    assert paths(jnp.ones(2)) == ("",)


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["**/kernel"], ["attention/0/kernel", "attention/2/kernel", "encoder/hidden/kernel", "out/kernel"]),
        (["*/kernel"], ["out/kernel"]),
        (["*/*/kernel"], ["attention/0/kernel", "attention/2/kernel", "encoder/hidden/kernel"]),
        (["**/attention/*/kernel"], ["attention/0/kernel", "attention/2/kernel"]),
        (["attention/0/**"], ["attention/0/bias", "attention/0/kernel"]),
        (["out/kernel/**"], ["out/kernel"]),
        (["out/kernel"], ["out/kernel"]),
        (["**/[02]/b*s"], ["attention/0/bias", "attention/2/bias"]),
        (["**/enc??er/**/bias"], ["encoder/hidden/bias"]),
        (["out/bias", "**/0/bias"], ["attention/0/bias", "out/bias"]),
        (["**/kernel", "!attention/**"], ["encoder/hidden/kernel", "out/kernel"]),
        (["!attention/**", "**/kernel"], ["encoder/hidden/kernel", "out/kernel"]),
        (["!**/kernel", "!out/*"], ["attention/0/bias", "attention/2/bias", "encoder/hidden/bias"]),
        (["**", "!**"], []),
        (["**"], list(paths(PARAMS))),
    ],
)
def test_matches_of_patterns(patterns, expected):
    assert chosen(*patterns) == expected


def test_names_match_as_a_whole():
    params = {"bias": 1.0, "recurrent_bias": 2.0, "Bias": 3.0}
    assert chosen("**/bias", params=params) == ["bias"]
    assert chosen("**/*bias", params=params) == ["bias", "recurrent_bias"]


@pytest.mark.parametrize(
    ("pattern", "better"),
    [
        ("**/kernle", "**/kernel"),
        ("kernel", "**/kernel"),
        ("encoder", "encoder/**"),
        ("hidden", "**/hidden/**"),
        ("/out/kernel", "out/kernel"),
        ("encodr/hiden/kernel", "encoder/hidden/kernel"),
        ("attention.0.kernel", "attention/0/kernel"),
        ("**/Attention/**", "**/attention/**"),
    ],
)
@pytest.mark.parametrize("sign", ["", "!"])
def test_pattern_without_a_match_is_rejected_with_a_suggestion(pattern, better, sign):
    """A pattern without a match always raises an error; the suggested pattern has a match."""
    with pytest.raises(ValueError, match="select expected a pattern that matches a path") as error:
        select(PARAMS, "**", sign + pattern)
    words = str(error.value)
    assert f"a path, got {pattern!r}; did you mean {better!r}? The paths are attention/0/bias, " in words
    assert chosen(better)


@pytest.mark.usefixtures("sentences")
def test_wrong_arguments_are_rejected():
    with pytest.raises(ValueError, match="the paths are .*out/kernel") as error:
        select(PARAMS, "decoder/xyz")
    assert "did you mean" not in str(error.value)
    with pytest.raises(ValueError, match=r'at least one pattern, such as "\*\*/kernel"'):
        select(PARAMS)
    with pytest.raises(TypeError, match=r"select\(params, \*patterns\) for a list"):
        select(PARAMS, ["**/kernel"])
    assert select(PARAMS, *["**/kernel"])
    with pytest.raises(ValueError, match="params with at least one array, got none"):
        select((), "**")
    with pytest.raises(ValueError, match="and 10 more"):
        select({f"layer{i}": 0.0 for i in range(30)}, "xyz/**")


# ---- uses of masks


def test_frozen_params_do_not_change():
    """Frozen params are bitwise equal after Adam with weight decay; the others change."""
    frozen = select(PARAMS, "encoder/**")
    optimizer = optax.chain(optax.adamw(1e-2, weight_decay=0.1), optax.masked(optax.set_to_zero(), frozen))
    params, update = PARAMS, jax.jit(optimizer.update)
    with jax.numpy_dtype_promotion("standard"):
        state = optimizer.init(params)
        for _ in range(2):
            updates, state = update(gradient_of(params), state, params)
            params = optax.apply_updates(params, updates)
    for path, after, before in zip(paths(params), *map(jax.tree.leaves, (params, PARAMS)), strict=True):
        assert bool((after == before).all()) == path.startswith("encoder/"), path


def test_penalty_of_the_lecture_excludes_biases():
    """The gradient of lambda Omega(Theta) over kernels is 2 lambda W for kernels and 0 for biases."""
    mask = select(PARAMS, "**/kernel")
    by_hand = sum(
        (np.asarray(p) ** 2).sum() for p, kernel in zip(*map(jax.tree.leaves, (PARAMS, mask)), strict=True) if kernel
    )
    np.testing.assert_allclose(l2_penalty(PARAMS, mask=mask), by_hand, rtol=1e-6)
    gradient = jax.jit(jax.grad(lambda p: 0.1 * l2_penalty(p, mask=mask)))(PARAMS)
    jax.tree.map(lambda g, p, m: np.testing.assert_allclose(g, 0.2 * p * float(m), rtol=1e-6), gradient, PARAMS, mask)


def test_casting_and_counting():
    mask = select(PARAMS, "**/kernel", "!out/*")
    half = jax.tree.map(lambda p, chosen: p.astype(jnp.bfloat16) if chosen else p, PARAMS, mask)
    assert [str(leaf.dtype) == "bfloat16" for leaf in jax.tree.leaves(half)] == jax.tree.leaves(mask)
    assert count_params(jax.tree.map(lambda p, chosen: p if chosen else None, PARAMS, mask)) == 3 * 16 + 2 * 16


def test_sign_of_the_bias():
    """A lecture writes ReLU(w x - b): with negated biases its params are params of `Dense`; the kink is at b / w."""
    net = Serial(Dense(1), relu)
    theirs = ({"kernel": jnp.array([[2.0]]), "bias": jnp.array([3.0])}, ())
    ours = jax.tree.map(lambda p, bias: -p if bias else p, theirs, select(theirs, "**/bias"))
    x = jnp.linspace(-4, 4, 65)[:, None]
    np.testing.assert_array_equal(net.apply(ours, x), np.maximum(2 * np.asarray(x) - 3, 0))
    kink = 1.5
    slope = jax.vmap(jax.grad(lambda x, p: net.apply(p, x[None])[0], 0), (0, None))
    np.testing.assert_array_equal(slope(jnp.array([kink - 1e-3, kink + 1e-3]), ours), [0, 2])
    np.testing.assert_array_equal(slope(jnp.array([-kink - 1e-3, -kink + 1e-3]), theirs), [0, 2])  # plus: -b / w
