"""Layers whose side inputs have other names, or are not read."""

import inspect
from collections.abc import Callable
from typing import Any, overload

from jaxblocks.core.lifting import as_layer, declared_by
from jaxblocks.core.pairs import Layer, LayerLike, Out, StatefulLayer

__all__ = ["rename_side_inputs"]


@overload
def rename_side_inputs(layer: Layer[Out] | Callable[..., Out], **names: str | None) -> Layer[Out]: ...
@overload
def rename_side_inputs(layer: StatefulLayer[Out], **names: str | None) -> StatefulLayer[Out]: ...
def rename_side_inputs(layer: LayerLike, **names: str | None) -> Layer[Any] | StatefulLayer[Any]:
    """A layer with some of its side inputs renamed; it computes the same function of the same params.

    A combinator passes a side input to every child that declares it. New names distinguish side inputs that have the
    same name but different meanings, such as the masks of two sequences.

    Args:
        layer: a pair, or a function of arrays.
        names: ``old="new"`` for a side input that is read as ``new``; ``old=None`` for one that is not read, so that it
            keeps its default. A name that the layer does not read is ignored.

    >>> attention = rename_side_inputs(Attention(2), mask="context_mask", segment_ids=None)
    >>> side_inputs(attention)
    ('context_mask',)
    """
    layer = as_layer(layer)
    kind = StatefulLayer if isinstance(layer, StatefulLayer) else Layer
    renamed: Any = kind(_renamed(layer.init, names), _renamed(layer.apply, names))  # type: ignore[arg-type]
    renamed.inner = layer.inner  # the same children, for `summary` and `unstack_repeats`
    return renamed


def _renamed(function, names):
    declared = declared_by(function)
    # New name to old name; a side input that is renamed to None is not declared, and keeps its default.
    old_names = {names.get(name, name): name for name in declared if names.get(name, name)}

    def call(*args, **side):
        return function(*args, **{old_names[name]: value for name, value in side.items()})

    positional = [p for p in inspect.signature(function).parameters.values() if p.name not in declared]
    keyword = [declared[old].replace(name=new) for new, old in old_names.items()]
    call.__signature__ = inspect.Signature([*positional, *keyword])  # type: ignore[attr-defined]
    call.__qualname__ = function.__qualname__  # so that summaries show the name of the layer
    return call
