"""Weights in and out: folders as Hugging Face writes them, PyTorch state dicts, safetensors; no network at any time.

Read ``pretrained`` first. ``rules`` maps params to tensors, ``reports`` checks the shapes before ``weights`` loads
them, ``families`` has the rules of each model, ``files`` and ``reading`` read tensors, ``layouts`` moves their axes,
``tokenizers`` reads those of a folder, and ``sentences`` folders of sentence-transformers.

::

    net, params, tokenizer = interop.load("path/to/folder")       # config.json, model.safetensors, tokenizer.json
    print(interop.match("path/to/folder"))                        # before: which tensor is which param
    decoder = interop.build("path/to/folder", cache=64)           # the same params, with a cache
    interop.save("other/folder", net, params, like="path/to/folder")

    params = interop.load_torch(net, module.state_dict(), rules, x)     # a module of your own, by rules over paths

Files need safetensors, ``tokenizer.json`` needs tokenizers (``pip install jaxblocks[interop]``), and the pickle files
of PyTorch need PyTorch.
"""

from jaxblocks.core.lazy import explain_missing_names
from jaxblocks.interop.files import Tensor, read_tensors, write_tensors
from jaxblocks.interop.layouts import Layout, conv_kernel, keep, transpose, without_batch
from jaxblocks.interop.pretrained import Pretrained, build, load, match, save
from jaxblocks.interop.reports import Match, Report
from jaxblocks.interop.rules import Source, merge_qkv
from jaxblocks.interop.tokenizers import load_tokenizer
from jaxblocks.interop.weights import load_torch, match_torch, save_torch

__all__ = [
    # Folders of Hugging Face.
    "build",
    "load",
    "load_tokenizer",
    "match",
    "save",
    "Pretrained",
    # Weights by rules.
    "load_torch",
    "match_torch",
    "merge_qkv",
    "save_torch",
    "Match",
    "Report",
    "Source",
    # Layouts.
    "conv_kernel",
    "keep",
    "transpose",
    "without_batch",
    "Layout",
    # Files.
    "read_tensors",
    "write_tensors",
    "Tensor",
]
explain_missing_names(__name__)
