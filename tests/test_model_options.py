"""Options and defaults of the models reach each layer that they concern."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxblocks import stateful
from jaxblocks.ad.counting import equations
from jaxblocks.layers.graph import complete_graph
from jaxblocks.models import (
    VGG,
    GraphClassifier,
    Llama,
    MLPMixer,
    RecurrentLM,
    ResNet,
    Transformer,
    ViT,
)

TOKENS = np.zeros((2, 5), np.int32)
SMALL = dict(layers=3, heads=2, features=4, hidden=6)
WORDS = dict(vocab_size=7, **SMALL)


def traced(net, *inputs, **side):
    """The jaxpr of a call of ``net``, with the key as its last argument in training."""
    net = stateful(net)
    params, state = jax.eval_shape(net.init, jax.random.key(0), *inputs)
    if not side.get("train"):
        return jax.make_jaxpr(functools.partial(net.apply, **side))(params, state, *inputs)
    apply = lambda params, state, key: net.apply(params, state, *inputs, key=key, **side)
    return jax.make_jaxpr(apply)(params, state, jax.random.key(0))


PLACES = {
    "Llama": (Llama(**WORDS, dropout=0.1), TOKENS, {"blocks/dropout": 6}),
    "RecurrentLM": (RecurrentLM(vocab_size=7, features=4, layers=3), TOKENS, {"blocks/dropout": 3, "dropout": 1}),
    "VGG": (
        VGG(11, width=1, hidden=4, classes=2, pool_size=1),
        jnp.ones((32, 32, 3)),
        {"dropout_1": 1, "dropout_2": 1},
    ),
    "ViT": (
        ViT(patch_size=4, classes=2, dropout=0.1, **SMALL),
        jnp.ones((8, 8, 1)),
        {"dropout": 1, "blocks/dropout": 6, "blocks/mlp/dropout": 3},
    ),
    "GraphClassifier": (
        GraphClassifier(2, features=3, layers=2, batch_norm=False, dropout=0.1),
        complete_graph(jnp.ones((3, 2))),
        {"out/dropout": 1},
    ),
}


@pytest.mark.parametrize("name", PLACES)
def test_places_of_dropout(name):
    """How often random bits are drawn in each layer in training."""
    net, x, places = PLACES[name]
    drawn: dict[str, int] = {}
    for equation, scope, times in equations(traced(net, x, train=True)):
        if equation.primitive.name == "random_bits":
            drawn[scope] = drawn.get(scope, 0) + times
    assert drawn == places


@pytest.mark.parametrize(("build", "inputs", "norms"), [(Llama, 1, 2 + 1), (Transformer, 2, 2 + 3)])
def test_epsilon_is_that_of_every_norm(build, inputs, norms):
    """Those of one block in each scan over layers, and the one at the end of Llama."""
    one, other = (str(traced(build(**WORDS, epsilon=e), *[TOKENS] * inputs)).splitlines() for e in (0.25, 0.5))
    assert sum(a != b for a, b in zip(one, other, strict=True)) == norms


def test_default_of_resnet_has_its_stride_in_the_3x3_convolution():
    """The variant of later implementations (v1.5), as in PyTorch."""
    assert inspect.signature(ResNet).parameters["stride_in"].default == "3x3"


def test_mixer_is_initialized_for_its_activation():
    """He before GELU, LeCun after it."""
    net = MLPMixer(classes=2, patch_size=4, features=50, layers=2, token_hidden=3, hidden=40)
    mlp = jax.jit(lambda key: net.init(key, jnp.ones((8, 8, 1)))["blocks"]["mlp"])(jax.random.key(0))
    assert float(mlp["up"]["kernel"].var()) == pytest.approx(2 / 50, rel=0.1)
    assert float(mlp["down"]["kernel"].var()) == pytest.approx(1 / 40, rel=0.1)
