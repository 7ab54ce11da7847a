"""Published models as compositions of layers; hyperparameters are arguments, with the values of the paper as defaults.

Read ``gpt2`` first. ``transformer_block`` is the block of all transformers, ``image_tokens`` makes tokens of images,
``class_heads`` the logits of classes of decoders, ``bias_table`` biases and ``layer_scale`` factors that blocks may
have, ``context`` and ``side_inputs`` what several models read.

Every builder returns a pair. Inputs are images ``(..., height, width, channels)``, or tokens, integers ``(..., time)``;
outputs are logits (or, for a denoiser, an image). Deep models stack their blocks by `Repeat`, so that compile time does
not grow with depth. All transformers are made of `TransformerBlock` and share its param names.

This subpackage imports only layers, which ``import jaxblocks`` has loaded already, so its names are imported eagerly.
"""

from jaxblocks.core.lazy import explain_missing_names

# Images.
from jaxblocks.models.convnext import ConvNeXt
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
from jaxblocks.models.modern_bert import ModernBERT
from jaxblocks.models.recurrent_lm import RecurrentLM
from jaxblocks.models.sentence_encoder import SentenceEncoder
from jaxblocks.models.t5 import T5
from jaxblocks.models.transformer import Transformer

# Speech; images and texts.
from jaxblocks.models.clip import CLIP, CLIPImage, CLIPText
from jaxblocks.models.siglip import SigLIP
from jaxblocks.models.whisper import Whisper

# Graphs.
from jaxblocks.models.graph_classifier import GraphClassifier, readout

# Fine-tuning.
from jaxblocks.models.lora import LoRA, merge_lora

# Parts of the models.
from jaxblocks.models.transformer_block import TransformerBlock, TransformerMLP

__all__ = [
    "BERT",
    "CLIP",
    "GPT2",
    "T5",
    "VGG",
    "CLIPImage",
    "CLIPText",
    "ConvNeXt",
    "GraphClassifier",
    "LeNet5",
    "Llama",
    "LoRA",
    "MLPMixer",
    "ModernBERT",
    "RecurrentLM",
    "ResNet",
    "SentenceEncoder",
    "SigLIP",
    "Transformer",
    "TransformerBlock",
    "TransformerMLP",
    "UNet",
    "ViT",
    "Whisper",
    "merge_lora",
    "readout",
    "time_features",
]
explain_missing_names(__name__)
