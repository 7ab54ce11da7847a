"""Every model at its smallest sizes, with inputs of zeros and their symbolic shapes."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxblocks import models
from jaxblocks.layers import batch_graphs, complete_graph

TINY = dict(layers=1, heads=2, features=4, hidden=4)
WORDS, IMAGES = np.zeros((2, 3), np.int32), np.zeros((2, 8, 8, 1), np.float32)
CLIP_SIZES = dict(text_layers=1, text_heads=2, text_features=4, text_hidden=4)
CLIP_SIZES |= dict(image_layers=1, image_heads=2, image_features=4, image_hidden=4)


def zeros_like(make):
    """Zeros of the shapes that ``make()`` has, without the programs that compute it."""
    return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), jax.eval_shape(make))


MODELS = {  # the net, its inputs, and their symbolic shapes; None where the structure of the inputs fixes the sizes
    "BERT": (models.BERT(vocab_size=5, max_length=8, **TINY), (WORDS,), ["b, t"]),
    "ModernBERT": (models.ModernBERT(vocab_size=5, **TINY | dict(layers=3)), (WORDS,), ["b, t"]),
    "GPT2": (models.GPT2(vocab_size=5, max_length=8, **TINY), (WORDS,), ["b, t"]),
    "Llama": (models.Llama(vocab_size=5, kv_heads=1, **TINY), (WORDS,), ["b, t"]),
    "LoRA": (
        models.LoRA(models.Llama(vocab_size=5, **TINY), "**/attention/*", rank=1),
        (WORDS,),
        ["b, t"],
    ),
    "RecurrentLM": (models.RecurrentLM(vocab_size=5, features=4, layers=1), (WORDS,), ["b, t"]),
    "SentenceEncoder": (
        models.SentenceEncoder(
            models.BERT(vocab_size=5, max_length=8, head=None, **TINY), pool=("mean", "max", "last")
        ),
        (WORDS,),
        ["b, _"],
    ),
    "Transformer": (models.Transformer(vocab_size=5, **TINY), (WORDS, WORDS[:, :2]), ["b, s", "b, t"]),
    "T5": (models.T5(vocab_size=5, head_dim=2, **TINY), (WORDS, WORDS[:, :2]), ["b, s", "b, t"]),
    "CLIP": (
        models.CLIP(features=3, vocab_size=5, max_length=8, patch_size=4, **CLIP_SIZES),
        (IMAGES, WORDS),
        ["b, _, _, _", "b, _"],
    ),
    "CLIPImage": (models.CLIPImage(patch_size=4, **TINY), (IMAGES,), ["b, _, _, _"]),
    "CLIPText": (models.CLIPText(vocab_size=5, max_length=8, projection=3, **TINY), (WORDS,), ["b, _"]),
    "SigLIP": (
        models.SigLIP(vocab_size=5, max_length=8, patch_size=4, **CLIP_SIZES),
        (IMAGES, WORDS),
        ["b, _, _, _", "b, _"],
    ),
    "Whisper": (
        models.Whisper(vocab_size=5, max_frames=6, max_length=8, heads=2, features=4),
        (np.zeros((2, 6, 3), np.float32), WORDS),
        ["b, _, _", "b, t"],
    ),
    "ConvNeXt": (models.ConvNeXt(depths=(1, 1), widths=(2, 3), classes=2), (IMAGES,), ["b, _, _, _"]),
    "LeNet5": (models.LeNet5(channels=(1, 1), hidden=(2, 2)), (np.zeros((2, 28, 28, 1), np.float32),), ["b, _, _, _"]),
    "MLPMixer": (
        models.MLPMixer(classes=2, patch_size=4, features=4, layers=1, token_hidden=2, hidden=2),
        (IMAGES,),
        ["b, _, _, _"],
    ),
    "ResNet": (models.ResNet((1,), classes=2, width=2, bottleneck=False, stem="3x3"), (IMAGES,), ["b, _, _, _"]),
    "UNet": (
        models.UNet(1, width=2, multipliers=(1, 2), blocks=1, groups=1, time=False),
        (IMAGES,),
        ["b, _, _, _"],
    ),
    "VGG": (
        models.VGG(11, classes=2, width=1, hidden=2, pool_size=1),
        (np.zeros((2, 32, 32, 1), np.float32),),
        ["b, _, _, _"],
    ),
    "ViT": (models.ViT(classes=2, patch_size=4, **TINY), (IMAGES,), ["b, _, _, _"]),
    "GraphClassifier": (
        models.GraphClassifier(2, features=2, layers=1),
        (zeros_like(lambda: batch_graphs([complete_graph(jnp.ones((n, 2))) for n in (1, 2)])),),
        None,
    ),
}
