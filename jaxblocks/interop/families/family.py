"""What a family of models consists of, and how the values of a configuration are read."""

import contextlib
import functools
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxblocks.activations import gelu, identity, relu, sigmoid, silu, tanh
from jaxblocks.checks.errors import require
from jaxblocks.checks.names import nearest
from jaxblocks.checks.signatures import reject_unknown
from jaxblocks.checks.system import as_path
from jaxblocks.core.pairs import Layer, StatefulLayer
from jaxblocks.interop.files import read_json
from jaxblocks.interop.rules import Rules
from jaxblocks.models.clip import quick_gelu

__all__ = [
    "ACTIVATIONS", "COUNT", "EPSILON", "FLAG", "INDEX", "LENGTH", "OBJECT", "POSITIVE", "RATE", "WIDTH",
    "Config", "Family", "Kind", "activation", "images", "integers", "list_of", "number_of_classes", "one_of",
    "or_null", "projections", "sliding_layers", "tokens", "widths",
]  # fmt: skip


# ---- what a value must be --------------------------------------------------------------------


class Kind(NamedTuple):
    """What a value of a configuration must be, in words and as a predicate."""

    words: str
    accepts: Callable[[Any], bool]


def integers(least: int, most: int) -> Kind:
    """The integers of a range, both ends included."""
    return Kind(f"an integer from {least} to {most}", lambda x: type(x) is int and least <= x <= most)


def _numbers(words: str, fits: Callable[[float], bool]) -> Kind:
    # Not math.isfinite, which has no answer for an integer beyond all floating-point numbers.
    return Kind(words, lambda x: type(x) in (int, float) and abs(x) < math.inf and fits(x))


def list_of(kind: Kind, most: int = 16) -> Kind:
    """Lists with at least one entry of a kind, and with at most so many."""
    accepts = lambda x: isinstance(x, list | tuple) and 0 < len(x) <= most and all(map(kind.accepts, x))
    return Kind(f"a list of 1 to {most} entries, each {kind.words}", accepts)


def one_of(*known: str) -> Kind:
    """These strings."""
    return Kind(" or ".join(map(repr, known)), lambda x: isinstance(x, str) and x in known)


def or_null(kind: Kind) -> Kind:
    """The values of a kind, or null."""
    return Kind(f"{kind.words}, or null", lambda x: x is None or kind.accepts(x))


# The upper bounds are far above those of any model, and low enough that a damaged file costs neither time nor memory.
COUNT = integers(1, 1000)  # layers, heads
WIDTH = integers(1, 2**20)  # features, heights of images
LENGTH = integers(1, 2**31 - 1)  # tokens of a vocabulary, positions
INDEX = integers(0, 2**31 - 1)
EPSILON = _numbers("a number from 0 to 1", lambda x: 0 <= x <= 1)
RATE = _numbers("a number from 0 to 1, 1 excluded", lambda x: 0 <= x < 1)
POSITIVE = _numbers("a number above 0 and below 1e12", lambda x: 0 < x < 1e12)
FLAG = Kind("true or false", lambda x: type(x) is bool)
OBJECT = Kind("an object", lambda x: isinstance(x, Mapping))


class Config(dict):
    """The contents of ``config.json``. An error about a value names the file and the key.

    Attributes:
        file: its path, ``""`` for a dict.
        inside: the key of the object that this one is part of, such as ``"text_config"``.
    """

    def __init__(self, values: Mapping[str, Any], file: str = "", inside: str = "") -> None:
        """Take the values of a file, or of one of its objects."""
        super().__init__(values)
        self.file, self.inside = file, inside

    @classmethod
    def of(cls, source: Any, **changes: Any) -> "Config":
        """From a dict, a folder, or the path of a file."""
        file = ""
        if isinstance(source, (str, Path)):
            path = as_path(source)
            path = path / "config.json" if path.suffix != ".json" else path
            source, file = read_json(path), str(path)
        repair = "pass its to_dict()" if hasattr(source, "to_dict") else "pass the path of the folder"
        expected = "a configuration, a dict, or a folder with config.json"
        require(isinstance(source, Mapping), expected, source, repair, error=TypeError)
        return cls({**source, **changes}, file)

    def require(self, ok: bool, expected: str, got: Any, repair: str = "") -> None:
        """Raise a ``ValueError`` unless ``ok``: "load expected <expected> in <file>, got <got>; correct the file." """
        if not ok:
            got = got if isinstance(got, str) else repr(got)
            got = got if len(got) <= 200 else f"{got[:197]}..."
            default = "correct the file, or get it again" if self.file else "correct it"
            require(False, f"{expected} in {self.file or 'the configuration'}", got, repair or default)

    def read(self, name: str, kind: Kind, default: Any = ..., repair: str = "") -> Any:
        """The value of a key; without ``default`` there must be one, and with ``default=None`` it may be null."""
        # `...` stands for a missing key, since None is the value of null.
        value = self.get(name, default)
        good = kind.accepts(value) or (value is None and default is None)
        got = "no such key" if value is ... else repr(value)
        self.require(good, f"{self._name(name)} to be {kind.words}", got, repair)
        return value

    def one_of(self, name: str, *known: Any, default: Any = ...) -> Any:
        """The value of a key, which must be one that the library computes."""
        # With the type, since True == 1 in a configuration too.
        accepts = lambda value: any(type(value) is type(one) and value == one for one in known)
        return self.read(name, Kind(" or ".join(map(_json, known)), accepts), default, _NO_OTHER)

    def without(self, *names: str) -> None:
        """Options that the library does not compute must be absent, null, false or empty."""
        for name in names:
            expected = f"{self._name(name)} to be absent or null"
            self.require(not self.get(name), expected, repr(self.get(name)), "the library does not compute it")

    def divides(self, name: str, other: str, value: int, whole: int) -> None:
        """Raise a ``ValueError`` unless the value of a key divides that of another one."""
        got = f"{name}={value} and {other}={whole}"
        self.require(whole % value == 0, f"{self._name(name)} to divide {self._name(other)}", got)

    def same(self, name: str, value: Any, other: str, default: Any) -> None:
        """Raise a ``ValueError`` unless the value of a key is that of another one, since the net has one for both."""
        self.require(
            self.get(name, default) == value,
            f"{self._name(name)} to be that of {other}, {value!r}",
            repr(self.get(name, default)),
            _NO_OTHER,
        )

    def part(self, name: str, default: Any = ...) -> "Config":
        """An object inside of this one; ``{}`` where it is null or missing and ``default`` is ``None``."""
        return Config(self.read(name, OBJECT, default) or {}, self.file, self._name(name))

    def architecture(self, *known: str) -> str:
        """The class of the model, such as ``"BertForMaskedLM"``; the first one is that of a configuration without."""
        named = self.get("architectures")
        named = known[:1] if named is None or named == [] else named
        good = isinstance(named, list | tuple) and len(named) == 1 and named[0] in known
        asked = named[0] if isinstance(named, list | tuple) and len(named) == 1 else ""
        meant = nearest(str(asked), known, cutoff=1.0) or known[0]  # but for case and underscores
        repair = f'pass architecture="{meant}"' + ", or another one" * (len(known) > 1)
        self.require(good, f"architectures to be one of {', '.join(known)}", repr(named), repair)
        return named[0]

    def _name(self, name: str) -> str:
        return f"{self.inside}.{name}" if self.inside else name


_NO_OTHER = "the library computes no other"


def _json(value) -> str:
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else repr(value)


# ---- a family --------------------------------------------------------------------------------


class Family(NamedTuple):
    """A family of models.

    Attributes:
        builder: of the net.
        options: those of the builder for a configuration.
        rules: the names of its weights, for the configuration.
        inputs: the shapes of the inputs of ``init``.
        architecture: the class of a configuration without one.
        prefix: of the weights of the base model where it is inside of another model; a file of the base model alone
            has names without it.
        tied: names of tensors that are the same as another one, ``{"lm_head.weight": "transformer.wte.weight"}``; files
            may have or omit them.
        ignored: patterns of tensors that are no weights, such as buffers that are computed here.
        side: the shapes of the side inputs of ``init``.
        aliases: other names of keys, ``{"hidden_size": "n_embd"}``; where both are there, the alias holds.
        rates: keys with rates of dropout that the net does not have, which must be 0 unless ``dropout=`` is given.
        file: the name of the file of weights.
    """

    builder: Callable[..., Layer[Any] | StatefulLayer[Any]]
    options: Callable[[Config], dict[str, Any]]
    rules: Callable[[Config], Rules]
    inputs: Callable[[Config], tuple]
    architecture: str
    prefix: str
    tied: Callable[[Config], Mapping[str, str]] = lambda config: {}
    ignored: tuple[str, ...] = ()
    side: Mapping[str, Any] = {}
    aliases: Mapping[str, str] = {}
    rates: tuple[str, ...] = ()
    file: str = "model.safetensors"

    def read(self, config: Config) -> Config:
        """The configuration with keys by their own names."""
        named = {own: config[alias] for alias, own in self.aliases.items() if alias in config}
        return Config({**config, **named}, config.file, config.inside)

    def check_options(self, given: Mapping[str, Any], own: Iterable[str]) -> None:
        """Reject options that are neither of the builder nor ``own``, those of the function that is called."""
        known = [*own, *inspect.signature(self.builder).parameters]
        for name in given.keys() - {*known, "dropout"}:
            reject_unknown([one for one in known if one != "encoder"], name, given[name])

    def net(self, config: Config, *, any_rate: bool = False, **options: Any) -> Layer | StatefulLayer:
        """The net of a configuration; options are those of the builder that differ from it."""
        config.without("quantization_config", "pruned_heads")
        for name in () if any_rate or "dropout" in options else self.rates:
            rate = config.get(name)
            repair = "pass dropout=0.0 to load, for evaluation or for training without it"
            config.require(not rate, f"{name} to be 0, since the net has no such dropout", rate, repair)
        own, known = self.options(config), inspect.signature(self.builder).parameters
        for name in [name for name in own if name.endswith("_dropout")]:
            # One rate that is given takes the place of all; where all are equal, one is enough.
            equal = known[name].default is None and own[name] == own.get("dropout")
            if "dropout" in options or equal:
                del own[name]
        if "dropout" not in known and not options.get("dropout"):
            options.pop("dropout", None)  # the net has none
        with _fitting(config):
            net = self.builder(**own)
        return self.builder(**own | options) if options else net

    def shapes(self, net: Layer[Any] | StatefulLayer[Any], config: Config) -> Any:
        """What ``net.init`` returns, as shapes."""
        with _fitting(config):
            return jax.eval_shape(net.init, jax.random.key(0), *self.inputs(config), **self.side)


@contextlib.contextmanager
def _fitting(config: Config) -> Iterator[None]:
    """Errors about options that do not fit together, with the name of their file."""
    try:
        yield
        return
    except Exception as error:  # of the builder's own checks, or of what no check foresees
        text = f"the error: {error}".rstrip(".")
    config.require(False, "options that fit together", text)


# ---- what several families share --------------------------------------------------------------

_gelu_by_tanh = functools.partial(gelu, approximate=True)
ACTIVATIONS: dict[str, Callable] = {
    "gelu": gelu,
    "gelu_accurate": _gelu_by_tanh,
    "gelu_fast": _gelu_by_tanh,
    "gelu_new": _gelu_by_tanh,
    "gelu_python": gelu,
    "gelu_pytorch_tanh": _gelu_by_tanh,
    "gelu_python_tanh": _gelu_by_tanh,
    "linear": identity,
    "quick_gelu": quick_gelu,
    "relu": relu,
    "sigmoid": sigmoid,
    "silu": silu,
    "swish": silu,
    "tanh": tanh,
}
"""By their names in a configuration."""


def activation(config: Config, name: str, default: str) -> Callable:
    """The activation that a key names."""
    return ACTIVATIONS[config.one_of(name, *ACTIVATIONS, default=default)]


def projections(path: str, name: str) -> dict[str, str]:
    """The rules of an attention whose four maps are ``q_proj``, ``k_proj``, ``v_proj`` and ``out_proj``."""
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}
    return {f"{path}/{ours}": f"{name}.{theirs}" for ours, theirs in names.items()}


def tokens(config: Config) -> tuple:
    """The inputs of a language model: one sequence of one token."""
    return (jax.ShapeDtypeStruct((1, 1), jnp.int32),)


def widths(
    config: Config,
    features: str = "hidden_size",
    heads: str = "num_attention_heads",
    *,
    defaults: tuple[Any, Any] = (..., ...),
) -> dict[str, int]:
    """The options ``features`` and ``heads`` of a net, by the keys that they have; the heads divide the features."""
    found = config.read(features, WIDTH, defaults[0]), config.read(heads, COUNT, defaults[1])
    config.divides(heads, features, found[1], found[0])
    return dict(zip(("features", "heads"), found, strict=True))


def sliding_layers(config: Config, slides: Callable[[int], bool]) -> tuple[bool, ...]:
    """Whether each layer has a window; ``slides`` is for those of a configuration without ``layer_types``."""
    layers, kind = config.read("num_hidden_layers", COUNT), one_of("sliding_attention", "full_attention")
    types = config.read("layer_types", list_of(kind, 10_000), None)
    if not types:
        return tuple(map(slides, range(layers)))
    config.require(len(types) == layers, f"layer_types of num_hidden_layers={layers}", f"{len(types)} of them")
    return tuple(each == "sliding_attention" for each in types)


def number_of_classes(config: Config) -> int:
    """The number of labels, two in a configuration that does not name them."""
    named = config.read("num_labels", LENGTH, None)
    return named or len(config.read("id2label", OBJECT, None) or "01")


def images(config: Config, size: int = 64) -> tuple:
    """The inputs of an image model: one image, channels last, of the size in the configuration, or of this size."""
    size, patch = config.read("image_size", WIDTH, size), config.read("patch_size", WIDTH, 1)
    size = max(size // patch, 1) * patch  # a remainder is cut off, as in transformers
    return (jax.ShapeDtypeStruct((1, size, size, config.read("num_channels", WIDTH, 3)), jnp.float32),)
