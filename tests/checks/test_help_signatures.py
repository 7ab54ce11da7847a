"""What help() shows of a signature: types in words, and the names of functions."""

import inspect
import pydoc

import cloudpickle
import pytest

import jaxblocks as jb
from jaxblocks.checks import PositiveInt, checked


@pytest.mark.parametrize("name", ["activations", "layers", "losses", "models", "ad", "training", "tensors"])
def test_no_signature_shows_how_its_types_are_made(name):
    module = getattr(jb, name)
    named = {one: getattr(module, one) for one in module.__all__}
    shown = {one: str(inspect.signature(value)) for one, value in named.items() if hasattr(value, "__signature__")}
    assert len(shown) > 5
    parts = ("Annotated", "Range(", "<function", "jaxlib", "typing.", "_empty")
    assert {one: text for one, text in shown.items() if any(part in text for part in parts)} == {}


def test_help_shows_ranges_and_names_of_defaults():
    shown = " ".join(pydoc.plain(pydoc.render_doc(jb.Dense)).split())  # newer Pythons write a parameter on each line
    assert "features: int >= 1, *, use_bias: bool = True" in shown
    assert "bias_init: Callable = zeros, dtype: DTypeLike | None = None" in str(inspect.signature(jb.Dense))
    assert "rate: float >= 0 and <= 1 | Float[Array, '']" in str(inspect.signature(jb.dropout))


def test_the_parameters_are_those_of_the_function():
    """Only the text differs: annotations, defaults, calls, and changed signatures; copies of functions have it too."""
    signature = inspect.signature(jb.Dense)
    assert signature.parameters["features"].annotation == PositiveInt
    assert signature.parameters["bias_init"].default is jb.initializers.zeros
    assert signature.bind(3, use_bias=False).arguments == {"features": 3, "use_bias": False}
    assert list(signature.replace(parameters=[]).parameters) == []
    local = checked(lambda x, n=jb.relu: x)
    assert str(inspect.signature(cloudpickle.loads(cloudpickle.dumps(local)))) == "(x, n=relu)"
