"""The distributions that models and layers draw their params from, by the formulas of their papers."""

import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from jaxblocks import GAT, Dense, Graph, SpectralNorm, layers, models, stateful

TOKENS = jax.ShapeDtypeStruct((1, 5), jnp.int32)
TRUNCATED = 0.87962566  # the standard deviation of a standard normal variable that is cut off at -2 and 2


def image(size):
    return jax.ShapeDtypeStruct((1, size, size, 3), jnp.float32)


def lecun(path, shape):
    return 1 / math.sqrt(math.prod(shape[:-1]))


def he(path, shape):
    return math.sqrt(2) * lecun(path, shape)


def transformer(path, shape):
    """Glorot for the kernels, rows of length near 1 for the embedding."""
    return shape[-1] ** -0.5 if path.startswith("tokens") else math.sqrt(2 / (shape[-2] + shape[-1]))


NODES = jax.ShapeDtypeStruct((4, 80), jnp.float32)
EDGES = jax.ShapeDtypeStruct((3,), jnp.int32)

STANDARD_DEVIATIONS = {
    "Llama": (
        models.Llama(vocab_size=150, layers=1, heads=2, features=64, hidden=96),
        (TOKENS,),
        lambda path, shape: 0.02,
    ),
    "BERT": (
        models.BERT(vocab_size=150, max_length=80, layers=1, heads=2, features=64, hidden=96),
        (TOKENS,),
        lambda path, shape: 0.02 * TRUNCATED,
    ),
    "Transformer": (
        models.Transformer(vocab_size=150, layers=1, heads=2, features=64, hidden=160),
        (TOKENS, TOKENS),
        transformer,
    ),
    "T5": (  # its code: normal, 1 for tokens, variance 1 / inputs, for queries divided by sqrt(head_dim)
        models.T5(vocab_size=150, layers=1, heads=2, head_dim=16, features=64, hidden=96),
        (TOKENS, TOKENS),
        lambda path, shape: 1.0 if path.startswith("tokens") else (shape[-2] * (16 if "query" in path else 1)) ** -0.5,
    ),
    "ResNet": (  # variance 2 / fan_out
        models.ResNet((1, 1), width=16, bottleneck=False, classes=50),
        (image(32),),
        lambda path, shape: lecun(path, shape) if path.startswith("out") else he(path, (*shape[:-2], shape[-1], 1)),
    ),
    "VGG": (
        models.VGG(11, width=8, hidden=96, pool_size=1, classes=50),
        (image(32),),
        lambda path, shape: (lecun if path.startswith("out") else he)(path, shape),
    ),
    "ViT": (
        models.ViT(patch_size=2, features=64, layers=1, heads=2, hidden=96, classes=50),
        (image(16),),
        lambda path, shape: (
            0.02 if path.startswith("positions") else lecun(path, shape[-4 if "patch" in path else -2 :])
        ),
    ),
    "Maxout": (layers.Maxout(50, pieces=3), (NODES,), lecun),
    "GAT": (  # a kernel (in, heads * features), and for each head a vector (heads, features)
        GAT(300, heads=4),
        (Graph(NODES, EDGES, EDGES),),
        lambda path, shape: lecun(path, shape) if path == "kernel" else shape[-1] ** -0.5,
    ),
}


@pytest.fixture
def draws_of_numpy(monkeypatch):
    """Normal numbers from NumPy, whose programs need no time: the models choose their scale, not how they are drawn."""
    rng, module = np.random.default_rng(0), sys.modules[jax.random.normal.__module__]

    def normal(key, shape=(), dtype=jnp.float32, **_):
        return jnp.asarray(rng.normal(size=shape), dtype)

    def truncated(key, lower, upper, shape=(), dtype=jnp.float32, **_):
        return jnp.asarray(special.ndtri(rng.uniform(*special.ndtr([lower, upper]), size=shape)), dtype)

    monkeypatch.setattr(module, "normal", normal)
    monkeypatch.setattr(module, "truncated_normal", truncated)


@pytest.mark.parametrize("name", STANDARD_DEVIATIONS)
def test_params_are_drawn_from_the_distribution_of_the_paper(name, draws_of_numpy):
    """The empirical standard deviation within four standard errors (of a normal distribution), and the mean."""
    net, inputs, expected = STANDARD_DEVIATIONS[name]
    params, _ = stateful(net).init(jax.random.key(0), *inputs)
    seen = 0
    for place, leaf in jax.tree.leaves_with_path(params):
        path, leaf = jax.tree_util.keystr(place, simple=True, separator="/"), np.float64(leaf)
        if leaf.size > 500 and not path.endswith(("bias", "scale")):
            deviation = expected(path, leaf.shape)
            assert leaf.std() == pytest.approx(deviation, rel=4 / math.sqrt(2 * leaf.size)), path
            assert abs(leaf.mean()) < 4 * deviation / math.sqrt(leaf.size), path
            seen += 1
    assert seen >= 1


def test_spectral_norm_starts_close_to_the_largest_singular_value():
    """The vectors of init come from 15 power iterations, so that training starts close to W / sigma(W)."""
    layer = SpectralNorm(Dense(20, use_bias=False))
    x = jnp.zeros((1, 30))
    keys = jax.vmap(jax.random.key)(np.arange(5))
    params, state = jax.tree.map(np.float64, jax.jit(jax.vmap(layer.init, (0, None)))(keys, x))
    kernels, vectors = params["kernel"], state["vectors"]["kernel"]
    largest = np.einsum("ni,nij,nj->n", vectors["inner"], kernels, vectors["outer"])
    ratios = largest / np.linalg.svd(kernels)[1][:, 0]
    assert ratios.min() > 0.95 and np.median(ratios) > 0.99 and ratios.max() < 1 + 1e-6
