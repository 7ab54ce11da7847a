"""Operations of every model, against the cost analysis of XLA, which differs by what it counts as arithmetic.

XLA also counts selections, conversions of flags and the arithmetic of indices, which `count_flops` does not: one or two
percent of these small models. The models have one layer, since XLA counts a loop once.
"""

import functools

import jax
import jax.numpy as jnp
import pytest

from jaxblocks import Conv, Dense, Flatten, MaxPool, Serial, models, relu, stateful, summary
from jaxblocks.ad import count_flops
from jaxblocks.core import StatefulLayer


def floats(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


TOKENS, IMAGES = jax.ShapeDtypeStruct((2, 8), jnp.int32), floats(2, 16, 16, 3)
WORDS = dict(vocab_size=11, layers=1, heads=2, features=32)
SIZES = dict(layers=1, heads=2, features=32, hidden=64)
CLIP_SIZES = {f"{part}_{name}": size for part in ("text", "image") for name, size in SIZES.items()}
MODELS = {
    "BERT": (models.BERT(vocab_size=11, max_length=8, **SIZES), TOKENS),
    "CLIP": (models.CLIP(features=16, vocab_size=11, max_length=8, patch_size=4, **CLIP_SIZES), IMAGES, TOKENS),
    "ConvNeXt": (models.ConvNeXt(depths=(1, 1), widths=(16, 32)), IMAGES),
    "GPT2": (models.GPT2(max_length=8, **WORDS), TOKENS),
    "Llama": (models.Llama(vocab_size=11, **SIZES), TOKENS),
    "MLPMixer": (models.MLPMixer(patch_size=4, features=32, layers=1, token_hidden=16, hidden=64), IMAGES),
    "ModernBERT": (models.ModernBERT(vocab_size=11, **SIZES), TOKENS),
    "RecurrentLM": (
        models.RecurrentLM(vocab_size=11, features=32, layers=1),
        jax.ShapeDtypeStruct((2, 1), jnp.int32),
    ),
    "ResNet": (models.ResNet((1, 1), bottleneck=False, width=16), floats(2, 32, 32, 3)),
    "T5": (models.T5(head_dim=16, hidden=64, **WORDS), TOKENS, TOKENS),
    "Transformer": (models.Transformer(vocab_size=11, **SIZES), TOKENS, TOKENS),
    "UNet": (
        models.UNet(3, width=32, multipliers=(1,), blocks=1, attention_levels=(0,), time=False),
        floats(2, 8, 8, 3),
    ),
    "ViT": (models.ViT(patch_size=4, **SIZES), IMAGES),
    "Whisper": (
        models.Whisper(
            vocab_size=11, max_frames=16, max_length=8, encoder_layers=1, decoder_layers=1, heads=2, features=32
        ),
        floats(2, 16, 80),
        TOKENS,
    ),
}
WITHOUT_COUNT = {
    "CLIPImage": "a part of CLIP",
    "CLIPText": "a part of CLIP",
    "LeNet5": "has the layers of AlexNet, below",
    "SigLIP": "has the layers of CLIP",
    "VGG": "has the layers of AlexNet, below",
    "GraphClassifier": "its layers are in the zoo; XLA counts the comparisons of segment sums",
    "LoRA": "adds products to another model",
    "SentenceEncoder": "pools the features of another model",
    "TransformerBlock": "a part of these models",
    "TransformerMLP": "a part of these models",
}


def test_every_model_is_counted():
    assert {name for name in models.__all__ if name[0].isupper()} == {*MODELS, *WITHOUT_COUNT}


@pytest.mark.cpu
@pytest.mark.parametrize("name", MODELS)
def test_counts_agree_with_xla_within_two_percent(name, monkeypatch):
    """Of the program before XLA's optimization, which takes no compilation."""
    # On CPU, convolutions have channels of zeros, or are sums of shifted products, of which some read padding.
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    net, *inputs = MODELS[name]
    params = jax.eval_shape(functools.partial(net.init, jax.random.key(0)), *inputs)
    f = net.apply
    if isinstance(net, StatefulLayer):
        f, params = lambda params, *inputs: net.apply(*params, *inputs)[0], params
    counted = count_flops(f, params, *inputs)
    xla = jax.jit(f).lower(params, *inputs).cost_analysis()
    assert counted.flops == pytest.approx(xla["flops"] + xla.get("transcendentals", 0), rel=0.02)
    assert counted.uncounted == {}


# The one-column variant of 2014, as torchvision has it.
ALEXNET = Serial(
    *(Conv(64, (11, 11), stride=4, padding=2), relu, MaxPool((3, 3), stride=2)),
    *(Conv(192, (5, 5), padding=2), relu, MaxPool((3, 3), stride=2)),
    *(Conv(384, (3, 3), padding=1), relu, Conv(256, (3, 3), padding=1), relu),
    *(Conv(256, (3, 3), padding=1), relu, MaxPool((3, 3), stride=2)),
    *(Flatten(3), Dense(4096), relu, Dense(4096), relu, Dense(1000)),
)
PUBLISHED = {  # in 10^9 for one image of 224 x 224 (the documentation of torchvision's weights)
    "AlexNet": (ALEXNET, 0.714),
    "ResNet-18": (models.ResNet(18), 1.814),
    "ConvNeXt-T": (models.ConvNeXt(), 4.456),  # its depthwise convolutions run on CPU as shifted products
    "ViT-B/16": (models.ViT(), 17.564),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_macs_are_those_of_papers(name):
    net, published = PUBLISHED[name]
    image = floats(1, 224, 224, 3)
    params, state = jax.eval_shape(functools.partial(stateful(net).init, jax.random.key(0)), image)
    counted = count_flops(lambda *args: stateful(net).apply(*args)[0], params, state, image)
    assert counted.macs / 1e9 == pytest.approx(published, abs=0.0005)
    assert sum(own.macs for own in counted.scopes.values()) == counted.macs


def test_the_summary_has_a_column_of_macs():
    """Four positions times three taps, of which one reads padding at each end, and 2 x 3 channels."""
    table = summary(Serial(Conv(3, (3,), padding=1), Dense(5)), floats(4, 2))
    assert [row.count.macs for row in table.rows] == [4 * 3 * 2 * 3, 4 * 3 * 5, 132]
    assert table.rows[0].count.dots == 2 * 10 * 2 * 3  # what is executed
    assert [line.split()[-3] for line in str(table).splitlines()[2:5]] == ["72", "60", "132"]
