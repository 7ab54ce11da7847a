"""Models in folders as ``save_pretrained`` of Hugging Face writes them: one call to load, one to save, no network."""

import inspect
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import PyTree

from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import checked
from jaxblocks.checks.system import as_path
from jaxblocks.core.pairs import Layer, Params, StatefulLayer
from jaxblocks.core.selection import paths
from jaxblocks.interop.families import Config, Family, family_of, one_transformer
from jaxblocks.interop.files import Tensor, read_tensors, write_tensors
from jaxblocks.interop.reading import cast_tensor
from jaxblocks.interop.reports import Report, check_report, report_of
from jaxblocks.interop.rules import plans_of, source_of
from jaxblocks.interop.sentences import Modules, modules_of
from jaxblocks.interop.tokenizers import load_tokenizer
from jaxblocks.interop.weights import check_net, placements, read_plans, written
from jaxblocks.layers.norm.running_statistics import TRAINED
from jaxblocks.sharding import Rule
from jaxblocks.text import Tokenizer

__all__ = ["Pretrained", "build", "load", "match", "save"]


class Pretrained(NamedTuple):
    """What `load` returns.

    Attributes:
        net: the net.
        params: what ``net.init`` returns: its params, or for a net with state (batch statistics) params and state.
        tokenizer: that of ``tokenizer.json``, ``None`` in a folder without one.
    """

    net: Layer[Any] | StatefulLayer[Any]
    params: Params
    tokenizer: Tokenizer | None


@checked
def build(source: Any, *, architecture: str | None = None, **options: Any) -> Layer[Any] | StatefulLayer[Any]:
    """The net that a Hugging Face configuration describes, a layer of `jaxblocks.models`.

    Args:
        source: a folder with ``config.json``, or the configuration as a dict.
        architecture: the class of the model in place of that of the configuration, such as ``"BertModel"``.
        options: of the builder in `jaxblocks.models`, in place of those of the configuration: ``dropout=0.0`` for all
            its rates; or ``cache=64``, the same net with a cache for `jaxblocks.text.generate`.

    Raises:
        ValueError: for a model, or an option of it, that the library does not compute.

    >>> config = dict(model_type="gpt2", vocab_size=9, n_positions=8)
    >>> config |= dict(n_embd=4, n_layer=2, n_head=2)
    >>> build(config)
    GPT2(vocab_size=9, max_length=8, layers=2, heads=2, features=4)
    """
    config, family, _ = _opened(source, architecture)
    family.check_options(options, ["architecture"])
    return family.net(config, **_head(family, config, _names(family, config, source)) | options)


@checked
def load(
    folder: str | Path,
    *,
    architecture: str | None = None,
    strict: bool = True,
    dtype: DTypeLike | None = None,
    mesh: Any = None,
    sharding: Rule | Sequence[Rule] = (),
    **options: Any,
) -> Pretrained:
    """A pretrained model: net, params and tokenizer from a folder as ``save_pretrained`` of Hugging Face writes it.

    Families: GPT-2, Llama, Mistral, Mixtral, Qwen2 and 3, Gemma 1 to 3 (text), OLMo 2, Phi-3, 3.5 and 4-mini, BERT,
    RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT, MPNet, ELECTRA, ModernBERT, ViT, DeiT, DINOv2, ResNet, ConvNeXt, T5,
    Whisper, CLIP, SigLIP, and ``UNet2DModel`` of diffusers, whose ``time`` is the step divided by 1000. Images are
    ``(..., height, width, channels)``. Params are read one after the other, and nothing in the folder is executed. A
    folder of sentence-transformers (``modules.json``) becomes a `SentenceEncoder`: from tokens and their ``mask`` to
    one vector for each text; the tokenizer cuts texts at its ``max_seq_length`` tokens. Prompts are part of the text.

    Args:
        folder: with ``config.json`` and weights (see `read_tensors`), and perhaps ``tokenizer.json``, which needs the
            library tokenizers.
        architecture, options: as in `build`. Rates of dropout are those of the configuration; kinds that the net
            lacks, such as ``drop_path_rate``, are an error, unless ``dropout=0.0`` is given.
        strict: ``False`` warns where tensors are left over, as when the base model of a larger one is loaded.
        dtype: of floating-point params, by default float32.
        mesh, sharding: the params are placed on this mesh, as they are read, by these rules, as in `jaxblocks.fit`.

    Returns:
        ``net, params, tokenizer``.

    Raises:
        FileNotFoundError: for a file that is missing.
        ValueError: for a damaged file, a model that the library does not compute, and unless every param has its tensor
            and every tensor its param. `match` returns the table.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> config = dict(model_type="gpt2", vocab_size=9, n_positions=8)
    >>> config |= dict(n_embd=4, n_layer=2, n_head=2)
    >>> gpt2 = build(config)
    >>> params = jax.jit(gpt2.init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    >>> save(folder, gpt2, params, like=config)
    >>> net, params, tokenizer = load(folder)
    >>> jax.jit(net.apply)(params, jnp.array([0, 3, 1])).shape
    (3, 9)
    """
    model = _read(folder, architecture, options, ["architecture", "strict", "dtype", "mesh", "sharding"])
    head = (
        f"; for a new head, init the net of build(..., classes={options.get('classes')}) and replace its other params"
    )
    check_report(model.report(), strict, folder, head if "classes" in options else "")
    for alias, name in _tied(model.family, model.config, model.tensors).items():
        _require_tied(model, alias, name, folder)
    inputs = model.family.inputs(model.config)
    # For state without tensors, which init makes.
    init = lambda key: model.net.init(key, *inputs, **model.family.side)
    places = placements(model.net, model.trees, mesh, sharding)
    params = read_plans(model.plans, model.tensors, model.trees, dtype, places, init)
    return Pretrained(model.net, params, _tokenizer(as_path(folder), model.modules))


@checked
def match(folder: str | Path, *, architecture: str | None = None, **options: Any) -> Report:
    """A report of what `load` would do with a folder; it reads shapes only.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> config = dict(model_type="gpt2", vocab_size=9, n_positions=8)
    >>> config |= dict(n_embd=4, n_layer=2, n_head=2)
    >>> gpt2 = build(config)
    >>> params = jax.jit(gpt2.init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    >>> save(folder, gpt2, params, like=config)
    >>> report = match(folder)
    >>> report.ok, report.rows[0].path, report.rows[0].source, report.rows[0].layout
    (True, 'blocks/attention/key/bias', 'transformer.h.{i}.attn.c_attn.bias', 'keep, part 1')
    """
    return _read(folder, architecture, options, ["architecture"]).report()


@checked
def save(folder: str | Path, net: Layer[Any] | StatefulLayer[Any], params: PyTree, *, like: Any) -> None:
    """Write params such that Hugging Face's transformers loads them: ``model.safetensors`` and ``config.json``.

    Args:
        folder: to write; it is created if it does not exist.
        net: the net, as `build` and `load` return it.
        params: of the net, what ``net.init`` returns.
        like: the folder that the net was loaded from, whose names, dtypes, buffers and tokenizer are kept, or a
            configuration as a dict.

    Raises:
        ValueError: for another net than that of the configuration, params of other shapes, and values that the dtype in
            the folder ``like`` does not have.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> config = dict(model_type="gpt2", vocab_size=9, n_positions=8)
    >>> config |= dict(n_embd=4, n_layer=2, n_head=2)
    >>> params = jax.jit(build(config).init)(
    ...     jax.random.key(0), jnp.zeros((1, 1), jnp.int32)
    ... )
    >>> save(folder, build(config), params, like=config)
    >>> sorted(read_tensors(folder))[:2]
    ['transformer.h.0.attn.c_attn.bias', 'transformer.h.0.attn.c_attn.weight']
    """
    check_net(net)
    require(not as_path(folder).is_file(), "a folder", f"the file {folder}", "pass the folder that it is in")
    (config, family, modules), folder = _opened(like, None), as_path(folder)
    given = _options(_options(net).get("encoder", net)) if modules else _options(net)
    free = {name: given[name] for name in _FREE if name in given}
    # What the configuration builds, with the options of the net that change no param: their expressions are compared.
    wanted = family.net(config, **_head(family, config, _names(family, config, like)) | free, any_rate=True)
    repair = "pass the net that build returns, or change the configuration"
    require(repr(net) == repr(wanted), f"the net of the configuration, {wanted!r}", repr(net), repair)
    _check_shapes(params, family.shapes(net, config))
    origin = as_path(like) if isinstance(like, (str, Path)) and as_path(like).is_dir() else None
    old = _tensors(origin, modules) if origin else {}
    # Without a folder to follow, the names are those of the class in the configuration.
    names = old or ([] if _is_base(config) else [family.prefix])
    tensors = written(plans_of(net, params, _rules(family, config, names)), params)
    # A tied tensor is written under the names that the old file has: one of them, or both.
    aliases = {alias: name for alias, name in _tied(family, config, names).items() if alias in old and name in tensors}
    tensors |= {alias: tensors[name] for alias, name in aliases.items()}
    for name in {*aliases.values()} - old.keys():
        del tensors[name]
    # Tensors without a param, such as position_ids, and counts that load changed, are written as they were.
    buffers = {name: old[name] for name in old if name not in tensors or _is_unchanged_count(tensors[name], old[name])}
    tensors = {name: _cast(name, tensor, old.get(name, tensor).dtype) for name, tensor in tensors.items()} | buffers
    for place, its in (modules.split(tensors) if modules else {".": tensors}).items():
        (folder / place).mkdir(parents=True, exist_ok=True)
        write_tensors(folder / place / family.file, its, metadata={"format": "pt"})
    # diffusers has no architectures in its configuration.
    named = {"architectures": (config.get("architectures") or [family.architecture])[:1]} if family.architecture else {}
    encoder = modules.encoder if modules else "."
    (folder / encoder / "config.json").write_text(json.dumps({**config, **named}, indent=2) + "\n")
    # Onto itself, copyfile raises an error.
    if origin and origin.resolve() != folder.resolve():
        kept = [*(f"{encoder}/{name}" for name in _KEPT), *(modules.files if modules else ())]
        for name in kept:
            if (origin / name).exists():
                (folder / name).parent.mkdir(exist_ok=True)
                shutil.copyfile(origin / name, folder / name)


_FREE = (  # options that change neither params nor evaluation
    "cache", "dropout", "attention_dropout", "classifier_dropout", "embedding_dropout", "image_dropout", "mlp_dropout",
    "pooler_dropout", "text_dropout", "dropout_after", "checkpoint", "unroll",
)  # fmt: skip
_KEPT = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model", "generation_config.json", "preprocessor_config.json",
)  # fmt: skip


class _Model(NamedTuple):
    """A model whose weights have not been read yet."""

    config: Config
    family: Family
    net: Layer[Any] | StatefulLayer[Any]
    trees: Any
    rules: Mapping
    plans: list
    tensors: dict[str, Tensor]
    modules: Modules | None

    def report(self) -> Report:
        ignored = [*self.family.ignored, *_tied(self.family, self.config, self.tensors)]
        return report_of(self.plans, self.tensors, self.rules, ignored=ignored, unused=False)


def _read(folder, architecture, options, own) -> _Model:
    """Configuration and shapes of a folder."""
    repair = "build(config) makes the net of a configuration"
    require(isinstance(folder, str | Path), "the path of a folder", folder, repair, error=TypeError)
    require(not as_path(folder).is_file(), "a folder", f"the file {folder}", "pass the folder that it is in")
    config, family, modules = _opened(folder, architecture)
    tensors = _tensors(folder, modules)
    family.check_options(options, own)
    net = family.net(config, **_head(family, config, tensors) | options)
    for alias, name in _tied(family, config, tensors).items():  # files have one of the two names, or both
        if alias in tensors and name not in tensors:
            tensors[name] = tensors[alias]
    trees = family.shapes(net, config)
    rules = _rules(family, config, tensors)
    return _Model(config, family, net, trees, rules, plans_of(net, trees, rules), tensors, modules)


def _options(net: Any) -> dict[str, Any]:
    """What its builder was called with, by name."""
    call = getattr(net, "call", None)
    return inspect.signature(call.function).bind(*call.args, **call.kwargs).arguments if call else {}


def _opened(source, architecture) -> tuple[Config, Family, Modules | None]:
    """The configuration, the family of the net that it describes, and the modules of a folder that lists them."""
    modules = modules_of(source)
    # architecture= takes the place of the class in the file.
    named = {} if architecture is None else {"architectures": [architecture]}
    config = one_transformer(Config.of(modules.folder / modules.encoder if modules else source, **named))
    family = family_of(config)
    config = family.read(config)
    return (modules.config(config), modules.family(family), modules) if modules else (config, family, None)


def _tensors(folder, modules: Modules | None) -> dict[str, Tensor]:
    return _modern(modules.read_tensors() if modules else read_tensors(folder))


def _tokenizer(folder: Path, modules: Modules | None) -> Tokenizer | None:
    folder = folder / modules.encoder if modules else folder
    if not (folder / "tokenizer.json").exists():
        return None
    found = load_tokenizer(folder, max_length=modules.max_length if modules else None)
    return modules.tokenizer(found) if modules else found


def _head(family: Family, config: Config, names) -> dict[str, Any]:
    """``head=None`` for the names of a base model that was saved without its pooler."""
    missing = names and not any("pooler" in name for name in names)
    return {"head": None} if missing and _may_have_pooler(family, config) else {}


def _may_have_pooler(family: Family, config: Config) -> bool:
    has_pooler = family.options(config).get("head") == "pooler"  # before the rules: it checks the configuration
    return has_pooler and any(path.startswith("pooler") for path in family.rules(config))


def _names(family: Family, config: Config, source: Any):
    """The names of the weights in a folder, if it has any and its model may have a pooler."""
    is_folder = isinstance(source, str | Path) and as_path(source).is_dir()
    try:
        return read_tensors(source) if is_folder and _may_have_pooler(family, config) else ()
    except (FileNotFoundError, ImportError):  # a configuration alone, or weights that only PyTorch reads
        return ()


def _modern(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of old files by their later names: those of norms, and those of the attention of diffusers."""

    def later(name: str) -> str:
        for pattern, new in _LATER:
            name = re.sub(pattern, new, name)
        return name

    return {later(name): tensor for name, tensor in tensors.items()}


_LATER = (
    (r"LayerNorm(.*)\.gamma$", r"LayerNorm\1.weight"),
    (r"LayerNorm(.*)\.beta$", r"LayerNorm\1.bias"),
    (r"(\.attentions\.\d+)\.query\.", r"\1.to_q."),
    (r"(\.attentions\.\d+)\.key\.", r"\1.to_k."),
    (r"(\.attentions\.\d+)\.value\.", r"\1.to_v."),
    (r"(\.attentions\.\d+)\.proj_attn\.", r"\1.to_out.0."),
)


def _rules(family: Family, config: Config, names) -> dict[str, Any]:
    """The rules, without the prefix for the names of a base model."""
    full, prefix = {path: source_of(right) for path, right in family.rules(config).items()}, _surplus(family, names)
    return {path: source._replace(name=source.name.removeprefix(prefix)) for path, source in full.items()}


def _tied(family: Family, config: Config, names) -> dict[str, str]:
    """The names of tied tensors, without the prefix for the names of a base model."""
    prefix = _surplus(family, names)
    return {alias.removeprefix(prefix): name.removeprefix(prefix) for alias, name in family.tied(config).items()}


def _surplus(family: Family, names) -> str:
    """The prefix that names of tensors do not have here."""
    # Files of base models leave out the prefix, such as "bert.".
    return "" if any(name.startswith(family.prefix) for name in names) else family.prefix


def _is_base(config: Config) -> bool:
    name = (config.get("architectures") or [""])[0]
    # "GPT2LMHeadModel" ends with "Model" too, and is not a base model.
    return name.endswith("Model") and not name.endswith("LMHeadModel")


def _require_tied(model: _Model, alias: str, name: str, folder: str | Path) -> None:
    """A file with both names of a tied tensor must have the same values for both."""
    if alias in model.tensors and name in model.tensors and model.tensors[alias] is not model.tensors[name]:
        one, other = model.tensors[alias], model.tensors[name]
        same = one.shape == other.shape and np.array_equal(one.read(), other.read(), equal_nan=one.dtype.kind == "f")
        repair = "correct tie_word_embeddings in config.json"
        expected = f"{alias} to equal {name} in {folder}, since the configuration ties them"
        require(same, expected, "other values", repair)


def _check_shapes(params, wanted) -> None:
    """Raise a ``ValueError`` unless params have the structure and the shapes that ``init`` makes."""
    shapes = lambda tree: {
        path: tuple(jnp.shape(x)) for path, x in zip(paths(tree), jax.tree.leaves(tree), strict=True)
    }
    got, expected = shapes(params), shapes(wanted)
    repair = "pass what net.init returns: params, or for a net with state params and state"
    for path in [*expected, *got]:
        if got.get(path) != expected.get(path):
            wanted_here = f"with {path} of shape {expected[path]}" if path in expected else f"without {path}"
            require(False, f"params {wanted_here}", f"{got.get(path)}", repair)
    same = jax.tree.structure(params) == jax.tree.structure(wanted)
    require(same, "params as net.init makes them", describe(params), repair)


def _is_unchanged_count(tensor: Tensor, old: Tensor) -> bool:
    """Whether a number of updates is the one in the old file, of which `load` makes a larger one."""
    return tensor.dtype.kind == "i" and np.array_equal(tensor.read(), np.maximum(old.read(), TRAINED))


def _cast(name: str, tensor: Tensor, dtype) -> Tensor:
    repair = "pass the configuration as like, which keeps the dtypes of the params"
    return Tensor(tensor.shape, dtype, lambda: cast_tensor(tensor.read(), np.dtype(dtype), name, repair))
