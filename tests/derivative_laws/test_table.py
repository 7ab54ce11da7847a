"""Each law for each row of the table, and a row for each public function of arrays."""

import dataclasses
import importlib
import re

import pytest
from derivative_laws import activations, fields, layer_functions, losses, probabilities, tensors
from derivative_laws.laws import LAWS, NARROW, Case, nestings
from derivative_laws.row import Exempt

TABLE = {
    "jaxblocks.activations": activations.ROWS,
    "jaxblocks.probabilities": probabilities.ROWS,
    "jaxblocks.losses": losses.ROWS,
    "jaxblocks.tensors": tensors.TENSORS,
    "jaxblocks.statistics": tensors.STATISTICS,
    "jaxblocks.metrics": tensors.METRICS,
    "jaxblocks.layers": layer_functions.ROWS,
    "jaxblocks.diffusion": fields.DIFFUSION,
    "jaxblocks.theory": fields.THEORY,
    "jaxblocks.text": fields.TEXT,
}
ROWS = {
    f"{module.removeprefix('jaxblocks.')}.{name}": (module, row)
    for module, rows in TABLE.items()
    for name, row in rows.items()
    if not isinstance(row, Exempt)
}
FIRST = {name.split()[0]: name for name in reversed(ROWS)}.values()
OWN_PROGRAM = {
    "activations.gelu approximate",
    "layers.attention in chunks",
    "layers.gated_linear_attention with the delta rule",
    "layers.linear_attention causal",
}
"""Rows that repeat a function with another formula or loop; half precision, nestings, Laplacian and Taylor mode are
checked for these and for the first row of a function."""


@pytest.fixture(scope="module", params=ROWS)
def case(request):
    """The case of a row; the columns of one row follow each other and share its programs."""
    return case_of(request.param)


def case_of(name):
    """The case of a row: its public function is the first word of the name."""
    module, row = ROWS[name]
    is_first = name in FIRST or name in OWN_PROGRAM
    if not is_first:
        row = dataclasses.replace(row, nestings="the first row of the function has them")
    public = name.removeprefix(module.removeprefix("jaxblocks.") + ".").split()[0]
    return Case(
        getattr(importlib.import_module(module), public), row, NARROW if is_first else NARROW[:1], higher=is_first
    )


@pytest.mark.parametrize(
    "laws", [pytest.param((nestings,), marks=pytest.mark.slow, id="nestings"), pytest.param(LAWS, id="values")]
)
def test_laws_hold(case, laws):
    """Each law holds for each row."""
    for law in laws:
        law(case)


@pytest.mark.parametrize("module", TABLE)
def test_every_public_function_has_a_row(module):
    """Each function in ``__all__`` has a row, or the reason why it has none; and each row has a function."""
    loaded = importlib.import_module(module)
    public = {
        name
        for name in loaded.__all__
        if callable(getattr(loaded, name)) and not isinstance(getattr(loaded, name), type) and not name[0].isupper()
    }
    assert {name.split()[0] for name in TABLE[module]} == public


def test_docstrings_state_the_limits_of_derivatives():
    """A function with a kink, an infinite slope or limits of second derivatives has a sentence about derivatives."""
    for name in FIRST:
        public, module = name.split()[0], ROWS[name][0]
        rows = [row for other, (_, row) in ROWS.items() if other.split()[0] == public]
        if any(row.choices or row.infinite or row.wide_only or row.second for row in rows):
            words = getattr(importlib.import_module(module), public.split(".")[-1]).__doc__
            assert re.search("derivative|gradient|slope|Hessian", words), f"{public} is silent on its derivatives"
