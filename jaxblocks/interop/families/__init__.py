"""The families of models, a table for each: from a Hugging Face configuration to a net and the names of its weights.

Read ``family`` first: what a family is.
"""

from jaxblocks.interop.families.bert import BERT_FAMILY, CAMEMBERT, DISTILBERT, ELECTRA, MPNET, ROBERTA, XLM_ROBERTA
from jaxblocks.interop.families.clip import CLIP_FAMILY, CLIP_IMAGE, CLIP_TEXT, SIGLIP, one_transformer
from jaxblocks.interop.families.convnext import CONVNEXT
from jaxblocks.interop.families.family import Config, Family
from jaxblocks.interop.families.gpt2 import GPT2_FAMILY
from jaxblocks.interop.families.llama import LLAMA_FAMILIES
from jaxblocks.interop.families.modern_bert import MODERN_BERT
from jaxblocks.interop.families.resnet import RESNET
from jaxblocks.interop.families.t5 import T5_FAMILY
from jaxblocks.interop.families.unet import UNET
from jaxblocks.interop.families.vit import DEIT, DINOV2, VIT
from jaxblocks.interop.families.whisper import WHISPER

__all__ = ["FAMILIES", "Config", "Family", "family_of", "one_transformer"]

FAMILIES: dict[str, Family] = {
    "bert": BERT_FAMILY,
    "camembert": CAMEMBERT,
    "clip": CLIP_FAMILY,
    "clip_text_model": CLIP_TEXT,
    "clip_vision_model": CLIP_IMAGE,
    "convnext": CONVNEXT,
    "deit": DEIT,
    "dinov2": DINOV2,
    "distilbert": DISTILBERT,
    "electra": ELECTRA,
    "gpt2": GPT2_FAMILY,
    **LLAMA_FAMILIES,
    "modernbert": MODERN_BERT,
    "mpnet": MPNET,
    "resnet": RESNET,
    "roberta": ROBERTA,
    "siglip": SIGLIP,
    "t5": T5_FAMILY,
    "vit": VIT,
    "whisper": WHISPER,
    "xlm-roberta": XLM_ROBERTA,
    "UNet2DModel": UNET,
}
"""By the ``model_type`` of ``config.json``, or its ``_class_name`` in diffusers."""


def family_of(config: Config) -> Family:
    """The family of a configuration."""
    name = "_class_name" if "_class_name" in config and "model_type" not in config else "model_type"
    value, repair = config.get(name), "load the weights by rules, with load_torch"
    family = FAMILIES.get(value) if isinstance(value, str) else None
    if family is None:
        config.require(False, f"{name} to be one of {', '.join(sorted(FAMILIES))}", repr(value), repair)
        raise AssertionError
    return family
