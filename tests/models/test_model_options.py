"""Options and defaults of the models reach each layer that they concern."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxblocks import LearnedPositions, side_inputs, stateful
from jaxblocks.activations import gelu, silu
from jaxblocks.ad.counting import equations
from jaxblocks.layers.graph import complete_graph
from jaxblocks.models import (
    BERT,
    GPT2,
    VGG,
    CLIPImage,
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


def test_a_vit_without_dropout_has_no_side_inputs():
    assert side_inputs(ViT()) == () and side_inputs(ViT(dropout=0.1)) == ("key", "train")


def test_defaults_are_those_of_the_published_models():
    defaults = lambda build: {name: p.default for name, p in inspect.signature(build).parameters.items()}
    gpt2, bert, llama = map(defaults, (GPT2, BERT, Llama))
    assert gpt2["activation"].func is gelu and gpt2["activation"].keywords == {"approximate": True}
    assert (bert["activation"], llama["activation"]) == (gelu, silu)
    assert (gpt2["epsilon"], bert["epsilon"], llama["epsilon"], llama["base"]) == (1e-5, 1e-12, 1e-6, 10_000)


def test_default_of_resnet_has_its_stride_in_the_3x3_convolution():
    """The variant of later implementations (v1.5), as in PyTorch."""
    assert inspect.signature(ResNet).parameters["stride_in"].default == "3x3"


def test_mixer_is_initialized_for_its_activation():
    """He before GELU, LeCun after it."""
    net = MLPMixer(classes=2, patch_size=4, features=50, layers=2, token_hidden=3, hidden=40)
    mlp = jax.jit(lambda key: net.init(key, jnp.ones((8, 8, 1)))["blocks"]["mlp"])(jax.random.key(0))
    assert float(mlp["up"]["kernel"].var()) == pytest.approx(2 / 50, rel=0.1)
    assert float(mlp["down"]["kernel"].var()) == pytest.approx(1 / 40, rel=0.1)


def test_positions_begin_at_their_offset():
    layer = LearnedPositions(3, offset=2)
    params = layer.init(jax.random.key(0), jnp.zeros((3, 1)))
    assert params["embedding"].shape == (5, 1)
    table = {"embedding": jnp.arange(5.0)[:, None]}
    assert layer.apply(table, jnp.zeros((3, 1))).ravel().tolist() == [2, 3, 4]
    in_pieces = LearnedPositions(3, offset=2, stateful=True)
    assert in_pieces.apply(table, {"position": jnp.int32(1)}, jnp.zeros((2, 1)))[0].ravel().tolist() == [3, 4]


BERT_SIZES = dict(vocab_size=7, max_length=5, **SMALL)


@pytest.mark.parametrize(
    ("net", "inputs", "shapes"),
    [
        (BERT(**BERT_SIZES, head="classes", classes=3, segments=0, position_offset=2), (TOKENS,), [(2, 3)]),
        (
            Llama(**WORDS, tied=True, head_dim=4, sliding_window=2, use_bias=("key",), head=None),
            (TOKENS,),
            [(2, 5, 4)],
        ),
        (ResNet((1, 2), classes=3, width=4, widths=(6, 5), first_stride=2), (jnp.ones((16, 16, 3)),), [(3,)]),
    ],
    ids=str,
)
def test_heads_and_sizes_of_published_checkpoints(net, inputs, shapes):
    """Those that no test of tests/interop compares with transformers by value."""
    net = stateful(net)
    params, state = jax.eval_shape(net.init, jax.random.key(0), *inputs)
    outputs, _ = jax.eval_shape(net.apply, params, state, *inputs)
    assert [y.shape for y in jax.tree.leaves(outputs)] == shapes


def test_the_options_of_gemma_are_other_params():
    """Embeddings times the root of the features, and norms whose params are the scale minus 1."""
    rng, sizes = np.random.default_rng(0), dict(vocab_size=7, layers=1, heads=2, features=4, hidden=6)
    net, gemma = Llama(**sizes), Llama(**sizes, scale_embedding=True, zero_centered_norm=True)
    params = jax.tree.map(
        lambda x: rng.normal(size=x.shape).astype(np.float32), jax.eval_shape(net.init, jax.random.key(0), TOKENS)
    )
    blocks = {name: {"scale": part["scale"] - 1} if "norm" in name else part for name, part in params["blocks"].items()}
    other = params | dict(tokens={"embedding": params["tokens"]["embedding"] / 2}, scale=(), blocks=blocks)
    other["norm"] = {"scale": params["norm"]["scale"] - 1}
    tokens = np.array([3, 1, 6])
    np.testing.assert_allclose(jax.jit(gemma.apply)(other, tokens), jax.jit(net.apply)(params, tokens), atol=1e-5)


def test_options_that_exclude_each_other_are_rejected(sentences):
    with pytest.raises(ValueError, match='ViT expected pool="token" for a distillation or a pooler'):
        ViT(pool="mean", head="pooler")
    with pytest.raises(ValueError, match='ViT expected pool="token" for a distillation or a pooler'):
        ViT(pool="token_and_mean", distillation="classes")
    for net in (
        ViT(patch_size=4, **SMALL),
        ViT(patch_size=4, interpolate=True, **SMALL),
        CLIPImage(patch_size=4, **SMALL),
    ):
        repair = r"Patches expected images .* multiples of 4, got float32 \(9, 3, 1\); crop or .*to \(8, 4\)"
        with pytest.raises(ValueError, match=repair):
            jax.eval_shape(net.init, jax.random.key(0), jnp.ones((9, 3, 1)))
    with pytest.raises(ValueError, match='ViT expected head="classes" for logits of a distillation'):
        ViT(head="pooler", distillation="classes")
    with pytest.raises(ValueError, match=r"ResNet expected one of the widths for each of 2 stages.*widths=\(3,\)"):
        ResNet((1, 1), widths=(3,))
    with pytest.raises(ValueError, match="Llama expected experts_per_token of at most 2, .* got 3; pass fewer"):
        Llama(experts=2, experts_per_token=3)
    with pytest.raises(TypeError, match="Llama expected one of its options, got 'short_factors'"):
        Llama(rope_scaling=dict(scaling="linear", factor=2.0, short_factors=(1.0,)))
    with pytest.raises(
        TypeError, match="BERT expected tokens alone, since the net has segments=0.*leave the segments out"
    ):
        jax.eval_shape(BERT(**BERT_SIZES, segments=0).init, jax.random.key(0), TOKENS, TOKENS)


@pytest.mark.parametrize("rows", [6, 1, 4])
def test_positions_of_other_tokens_than_those_of_init_are_rejected(rows, sentences):
    """Of a class token and a grid of 2 x 2; 4 rows are those of another pool, without the class token."""
    net, images = ViT(patch_size=4, interpolate=True, **SMALL), jnp.ones((8, 8, 1))
    params = jax.eval_shape(net.init, jax.random.key(0), images)
    params["positions"] = {"embedding": jax.ShapeDtypeStruct((rows, 4), jnp.float32)}
    with pytest.raises(ValueError, match=rf"as many tokens before the grid \(2, 2\) as .* float32 \({rows}, 4\), got"):
        jax.eval_shape(net.apply, params, images)
