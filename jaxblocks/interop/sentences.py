"""Folders of the library sentence-transformers: ``modules.json`` lists an encoder, and what makes one vector of it."""

import functools
import re
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any, NamedTuple, cast

from jaxblocks.activations import gelu, identity, relu, sigmoid, silu, tanh
from jaxblocks.checks.system import as_path
from jaxblocks.core.pairs import Layer, LayerLike, StatefulLayer
from jaxblocks.interop.families import Config, Family
from jaxblocks.interop.families.family import FLAG, LENGTH, OBJECT, WIDTH, Kind, list_of
from jaxblocks.interop.files import Tensor, read_json, read_tensors
from jaxblocks.layers.combinators import Serial
from jaxblocks.layers.dense import Dense
from jaxblocks.models import SentenceEncoder
from jaxblocks.models.sentence_encoder import Pool
from jaxblocks.text import Tokenizer

__all__ = ["Modules", "modules_of"]

_POOLS: dict[str, Pool] = {"cls": "first", "max": "max", "mean": "mean", "mean_sqrt_len_tokens": "sum_by_root"}
_POOLS |= {"weightedmean": "weighted_mean", "lasttoken": "last"}
# In older files flags, in this order.
_FLAGS = {
    "cls": "cls_token", "max": "max_tokens", "mean": "mean_tokens", "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "weightedmean": "weightedmean_tokens", "lasttoken": "lasttoken",
}  # fmt: skip
_FLAGS = {mode: f"pooling_mode_{name}" for mode, name in _FLAGS.items()}
_ACTIVATIONS = {
    "torch.nn.modules.activation.GELU": gelu,
    "torch.nn.modules.activation.ReLU": relu,
    "torch.nn.modules.activation.SiLU": silu,
    "torch.nn.modules.activation.Sigmoid": sigmoid,
    "torch.nn.modules.activation.Tanh": tanh,
    "torch.nn.modules.linear.Identity": identity,
}
_OPTIONS = "sentence_bert_config.json"
_TEXT = Kind("a string", lambda x: isinstance(x, str))
_PLACE = Kind(
    "a path inside of the folder",
    lambda x: isinstance(x, str) and not PurePath(x).is_absolute() and ".." not in PurePath(x).parts,
)


class Modules(NamedTuple):
    """The modules of a folder.

    Attributes:
        folder: of all.
        encoder: the place of the encoder in the folder, ``"."`` where it is not in one of its own.
        pool: as in `SentenceEncoder`.
        dense: the place of each dense layer in the folder.
        out: the dense layers.
        normalize: whether the vectors have length 1.
        lowers: whether texts are lowercased before they become tokens.
        max_length: the number of tokens after which texts are cut, special tokens included; ``None`` for all.
        files: with the options of the modules, but for the configuration of the encoder.
    """

    folder: Path
    encoder: str
    pool: tuple[Pool, ...]
    dense: tuple[str, ...]
    out: LayerLike
    normalize: bool
    lowers: bool
    max_length: int | None
    files: tuple[str, ...]

    def read_tensors(self) -> dict[str, Tensor]:
        """Those of the encoder, and those of a dense layer behind its place."""
        tensors = read_tensors(self.folder / self.encoder)
        for place in self.dense:
            tensors |= {f"{place}/{name}": tensor for name, tensor in read_tensors(self.folder / place).items()}
        return tensors

    def split(self, tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
        """The inverse: tensors by the place of their file."""
        files: dict[str, dict[str, Tensor]] = {place: {} for place in (self.encoder, *self.dense)}
        for name, tensor in tensors.items():
            place, _, inner = name.rpartition("/")
            files[place or self.encoder][inner] = tensor
        return files

    def config(self, config: Config) -> Config:
        """The configuration of the encoder for its base model, which is what sentence-transformers loads."""
        named = config.get("architectures") or []
        base = [re.sub(r"(For[A-Z]\w*|LMHeadModel)$", "Model", str(name)) for name in named]
        return Config({**config, "architectures": base}, config.file)

    def family(self, family: Family) -> Family:
        """That of the encoder, with the modules after it."""

        def options(config: Config) -> dict[str, Any]:
            own = family.options(config)
            return own | ({"head": None} if own.get("head") == "pooler" else {})

        @functools.wraps(family.builder)  # which has the options
        def builder(**given: Any) -> Layer[Any] | StatefulLayer[Any]:
            return SentenceEncoder(
                cast(Layer, family.builder(**given)), pool=self.pool, out=self.out, normalize=self.normalize
            )

        def rules(config: Config):
            dense = {f"out/dense_{k}": f"{place}/linear" for k, place in enumerate(self.dense)}
            return {f"encoder/{path}": source for path, source in family.rules(config).items()} | dense

        ignored = (*family.ignored, "*pooler.dense.*")
        return family._replace(builder=builder, options=options, rules=rules, ignored=ignored)

    def tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        """That of the encoder, which lowercases texts where the folder says so."""
        return tokenizer._replace(encode=lambda text: tokenizer.encode(text.lower())) if self.lowers else tokenizer


def modules_of(folder: Any) -> Modules | None:
    """The modules of a folder; ``None`` for a folder without ``modules.json``, and for what is no folder."""
    if not isinstance(folder, str | Path) or not (as_path(folder) / "modules.json").is_file():
        return None
    folder = as_path(folder)
    whole = Config({"modules": read_json(folder / "modules.json", list)}, str(folder / "modules.json"))
    listed = [Config(each, whole.file) for each in whole.read("modules", list_of(OBJECT))]
    kinds, places = [_kind(each) for each in listed], [each.read("path", _PLACE, "") or "." for each in listed]
    between = kinds[2:-1] if kinds[-1] == "Normalize" else kinds[2:]
    good = kinds[:2] == ["Transformer", "Pooling"] and {*between} <= {"Dense"}
    expected = "Transformer, Pooling, any number of Dense, and perhaps Normalize at the end"
    whole.require(good, expected, ", ".join(kinds), "the library computes no other order")
    dense = tuple(place for kind, place in zip(kinds, places, strict=True) if kind == "Dense")
    out: dict[str, LayerLike] = {}
    for k, place in enumerate(dense):
        out |= dict(zip((f"dense_{k}", f"activation_{k}"), _dense(folder / place), strict=True))
    (lowers, max_length), pool = _encoder(folder / places[0]), _pool(folder / places[1])
    files = ["modules.json", "config_sentence_transformers.json", f"{places[0]}/{_OPTIONS}"]
    files += [f"{place}/config.json" for place in places[1:]]
    normalize, combined = kinds[-1] == "Normalize", Serial(**out) if out else identity
    return Modules(folder, places[0], pool, dense, combined, normalize, lowers, max_length, tuple(files))


def _kind(module: Config) -> str:
    """The class of a module, whose path varies with the version."""
    name = module.read("type", _TEXT)
    known = ("Transformer", "Pooling", "Dense", "Normalize")
    library, _, kind = name.rpartition(".")
    good = library.startswith("sentence_transformers.") and kind in known
    module.require(good, f"modules of the kinds {', '.join(known)}", repr(name), "the library computes no other")
    return kind


def _encoder(folder: Path) -> tuple[bool, int | None]:
    """Whether texts are lowercased, and their most tokens; the other options must be those of a text model."""
    file = folder / _OPTIONS
    config = Config(read_json(file) if file.is_file() else {}, str(file))
    config.one_of("transformer_task", "feature-extraction", default="feature-extraction")
    config.one_of("module_output_name", "token_embeddings", None, default=None)
    text = config.part("modality_config", None).part("text", None)
    text.one_of("method", "forward", default="forward")
    text.one_of("method_output_name", "last_hidden_state", default="last_hidden_state")
    return config.read("do_lower_case", FLAG, False), config.read("max_seq_length", LENGTH, None)


def _pool(folder: Path) -> tuple[Pool, ...]:
    config = Config.of(folder)
    config.one_of("include_prompt", True, default=True)
    flagged = [mode for mode, flag in _FLAGS.items() if config.read(flag, FLAG, False)]
    modes = config.get("pooling_mode", flagged or "mean")  # the newer name holds
    modes = [modes] if isinstance(modes, str) else modes
    known = Kind(f"one of {', '.join(_POOLS)}", lambda x: isinstance(x, str) and x in _POOLS)
    return tuple(
        _POOLS[mode] for mode in Config({"pooling_mode": modes}, config.file).read("pooling_mode", list_of(known))
    )


def _dense(folder: Path) -> tuple[Layer, Callable]:
    """A layer, and the activation after it."""
    config = Config.of(folder)
    config.without("use_residual")
    for name in ("module_input_name", "module_output_name"):
        config.one_of(name, "sentence_embedding", None, default=None)
    default = "torch.nn.modules.activation.Tanh"
    activation = _ACTIVATIONS[config.one_of("activation_function", *_ACTIVATIONS, default=default)]
    return Dense(config.read("out_features", WIDTH), use_bias=config.read("bias", FLAG, True)), activation
