"""What a family of models consists of."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp

from jaxblocks.checks import require
from jaxblocks.core import Layer, StatefulLayer
from jaxblocks.interop.files import read_json
from jaxblocks.interop.rules import Rules

__all__ = ["Config", "Family", "images", "number_of_classes", "projections", "tokens"]


class Config(dict):
    """The contents of ``config.json``; a missing or unknown option is an error in a sentence."""

    @classmethod
    def of(cls, source: Any, **changes: Any) -> "Config":
        """From a dict, a folder, or the path of a file."""
        if isinstance(source, (str, Path)):
            path = Path(source)
            source = read_json(path / "config.json" if path.suffix != ".json" else path)
        require(
            isinstance(source, Mapping),
            "a configuration, a dict, or a folder with config.json",
            source,
            error=TypeError,
        )
        return cls({**source, **changes})

    def __missing__(self, name: str) -> NoReturn:
        require(False, f"a configuration with {name!r}", f"none in one of {self.kind}")
        raise AssertionError

    @property
    def kind(self) -> str:
        """What it is a configuration of, in words."""
        name = "_class_name" if "_class_name" in self and "model_type" not in self else "model_type"
        return f"{name} {self.get(name)!r}"

    def one_of(self, name: str, *known: Any, default: Any = None) -> Any:
        """The value of an option, which must be one that the library computes."""
        value = self[name] if default is None else self.get(name, default)
        good = any(type(value) is type(one) and value == one for one in known)
        require(good, f"{name} to be {' or '.join(map(repr, known))} in a configuration", repr(value))
        return value

    def architecture(self, *known: str) -> str:
        """The class of the model, such as ``"BertForMaskedLM"``; the first one is that of a configuration without."""
        named = self.get("architectures") or known[:1]
        good = isinstance(named, list | tuple) and len(named) == 1 and named[0] in known
        repair = f'pass architecture="{known[0]}", or another one'
        require(good, f"one of the architectures {', '.join(known)} in a configuration", repr(named), repair)
        return named[0]


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
        file: the name of the file of weights.
    """

    builder: Callable[..., Layer | StatefulLayer]
    options: Callable[[Config], dict[str, Any]]
    rules: Callable[[Config], Rules]
    inputs: Callable[[Config], tuple]
    architecture: str
    prefix: str
    tied: Callable[[Config], Mapping[str, str]] = lambda config: {}
    ignored: tuple[str, ...] = ()
    side: Mapping[str, Any] = {}
    file: str = "model.safetensors"

    def net(self, config: Config, **options: Any) -> Layer | StatefulLayer:
        """The net of a configuration; options are those of the builder that differ from it."""
        with sentences(config):
            return self.builder(**self.options(config) | options)

    def shapes(self, net: Layer | StatefulLayer, config: Config) -> Any:
        """What ``net.init`` returns, as shapes."""
        with sentences(config):
            return jax.eval_shape(net.init, jax.random.key(0), *self.inputs(config), **self.side)


@contextlib.contextmanager
def sentences(config: Config) -> Iterator[None]:
    """Errors of Python about options of other types or sizes than they should have, in the words of the library."""
    try:
        yield
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        if " expected " in str(error):
            raise
        expected = f"options of {config.kind} in a configuration"
        require(False, expected, f"{error}"[:200], "correct config.json")


def projections(path: str, name: str) -> dict[str, str]:
    """The rules of an attention whose four maps are ``q_proj``, ``k_proj``, ``v_proj`` and ``out_proj``."""
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}
    return {f"{path}/{ours}": f"{name}.{theirs}" for ours, theirs in names.items()}


def tokens(config: Config) -> tuple:
    """The inputs of a language model: one sequence of one token."""
    return (jax.ShapeDtypeStruct((1, 1), jnp.int32),)


def number_of_classes(config: Config) -> int:
    """The number of labels, two in a configuration that does not name them."""
    return config.get("num_labels") or len(config.get("id2label") or "01")


def images(config: Config) -> tuple:
    """The inputs of an image model: one image, channels last, of the size in the configuration or of 64 pixels."""
    size = config.get("image_size", 64)
    return (jax.ShapeDtypeStruct((1, size, size, config.get("num_channels", 3)), jnp.float32),)
