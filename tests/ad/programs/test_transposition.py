"""The transpose equation by equation equals jax.linear_transpose of the whole program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxblocks.ad.programs import transposition
from jaxblocks.ad.programs.transposition import transpose

W = jnp.asarray(np.random.RandomState(0).randn(4, 4), jnp.float32)


def layers(x, unused):
    """Ten equal layers, each with a call, a loop, a tangent that is read twice and a constant that is computed."""
    for i in range(10):
        with jax.named_scope(f"layer{i}"):
            left, right = jnp.split(x @ (W * 0.5), 2)
            y = jnp.concatenate([right + left, left + left])
            z, _ = lax.scan(lambda c, w: (c * w, None), y, W[0])
            x = 0.5 * y + jax.jit(lambda x, w: jnp.flip(x) * w)(x, W[i % 2]) + 0.25 * z
    return [x, 3.0 * x[:2], jnp.zeros(2)]


@pytest.fixture(scope="module")
def program():
    return jax.make_jaxpr(layers)(W[0], W[0])


@pytest.mark.parametrize("repeats", [1, 10**6])
def test_equals_the_transpose_of_jax(program, repeats, monkeypatch):
    """Kind by kind and as a whole, for a batch of cotangents; an input that is not read has zeros."""
    monkeypatch.setattr(transposition, "_REPEATS", repeats)
    seeds = [jnp.asarray(np.random.RandomState(i).randn(3, n), jnp.float32) for i, n in enumerate((4, 2, 2))]
    whole = jax.linear_transpose(layers, W[0], W[0])
    found, expected = jax.jit(lambda seeds: (jax.vmap(transpose(program))(seeds), jax.vmap(whole)(seeds)))(seeds)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-4)
    assert np.abs(found[0]).max() > 0 and not np.any(found[1])


def test_equal_equations_are_transposed_once(program, monkeypatch):
    """One rule for each kind, whatever the scope; the scopes of the equations are kept."""
    made, rule = [], transposition._rule
    monkeypatch.setattr(transposition, "_rule", lambda *args: made.append(args[1].primitive.name) or rule(*args))
    traced = jax.make_jaxpr(transpose(program))([jnp.ones(4), jnp.ones(2), jnp.ones(2)])
    assert made.count("dot_general") == 1 and made.count("scan") == 10
    dots = [str(e.source_info.name_stack) for e in traced.eqns if e.primitive.name == "dot_general"]
    assert len(dots) == 10 and all(f"layer{9 - i}" in name and name.count("layer") == 1 for i, name in enumerate(dots))
