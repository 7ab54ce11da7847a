"""Layers whose side inputs have other names, or are not read."""

import inspect
from collections.abc import Callable

from jaxblocks.core import Layer, StatefulLayer, as_layer, builder, declared_by

__all__ = ["RenameSideInputs"]


@builder
def RenameSideInputs(layer: Layer | StatefulLayer | Callable, **names: str | None) -> Layer | StatefulLayer:
    """The layer with some of its side inputs under other names; it computes the same from the same params.

    A combinator passes a side input to every child that declares it. This wrapper separates side inputs that share a
    name but not a meaning, such as the masks of two sequences.

    Args:
        layer: a pair, or a function of arrays.
        names: ``old="new"`` for a side input that is read as ``new``; ``old=None`` for one that is not read, so that it
            keeps its default. A name that the layer does not read is ignored.

    >>> net = RenameSideInputs(Attention(2), mask="context_mask", segment_ids=None)
    >>> side_inputs(net)
    ('context_mask',)
    """
    layer = as_layer(layer)
    kind = StatefulLayer if isinstance(layer, StatefulLayer) else Layer
    return kind(_renamed(layer.init, names), _renamed(layer.apply, names))


def _renamed(function, names):
    declared = declared_by(function)
    outer = {names.get(name, name): name for name in declared}
    outer.pop(None, None)

    def call(*args, **side):
        unknown = sorted(side.keys() - outer.keys())
        if unknown:
            reads = ", ".join(sorted(outer)) or "none"
            raise TypeError(
                f"RenameSideInputs expected side inputs out of {reads}, got {unknown[0]!r}; pass it by its new name."
            )
        return function(*args, **{outer[name]: value for name, value in side.items()})

    positional = [p for p in inspect.signature(function).parameters.values() if p.name not in declared]
    keyword = [declared[inner].replace(name=name) for name, inner in outer.items()]
    call.__signature__ = inspect.Signature([*positional, *keyword])
    call.__qualname__ = function.__qualname__  # it is called as the layer is
    return call
