"""Published models as compositions of blocks, one page each; hyperparameters are arguments, defaults the paper's.

Every builder returns a pair. Images come in as ``(..., height, width, channels)`` and tokens as whole numbers ``(...,
time)``; what comes out are logits (or, for a denoiser, an image). The deep ones stack their blocks with `Repeat`,
so that compile time does not grow with depth.
"""

# The oldest one, which is a layer too.
from jaxblocks.layers.mlp import MLP

# Images.
from jaxblocks.models.lenet import LeNet5
from jaxblocks.models.mixer import MLPMixer
from jaxblocks.models.resnet import ResNet
from jaxblocks.models.unet import UNet, time_features
from jaxblocks.models.vgg import VGG
from jaxblocks.models.vit import ViT

# Language.
from jaxblocks.models.bert import BERT
from jaxblocks.models.gpt2 import GPT2
from jaxblocks.models.llama import Llama
from jaxblocks.models.recurrent_lm import RecurrentLM
from jaxblocks.models.transformer import Transformer

# Graphs.
from jaxblocks.models.graph_classifier import GraphClassifier, read_out

__all__ = [
    "BERT",
    "GPT2",
    "MLP",
    "VGG",
    "GraphClassifier",
    "LeNet5",
    "Llama",
    "MLPMixer",
    "RecurrentLM",
    "ResNet",
    "Transformer",
    "UNet",
    "ViT",
    "read_out",
    "time_features",
]
