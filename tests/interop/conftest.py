"""The shapes of params, which `interop` infers for each net that it loads or saves, once for equal nets."""

import jax
import pytest

from jaxblocks.interop.families.family import Family

_shapes, _known = Family.shapes, {}


def _shapes_once(family, net, config):
    """``Family.shapes``: what a net prints, and its configuration, have every option that changes a shape."""
    key = repr(net), repr(config), jax.config.jax_enable_x64
    if key not in _known:
        _known[key] = _shapes(family, net, config)
    return _known[key]


@pytest.fixture(autouse=True)
def _infer_shapes_once(monkeypatch):
    monkeypatch.setattr(Family, "shapes", _shapes_once)
