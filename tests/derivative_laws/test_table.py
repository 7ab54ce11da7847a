"""Each law for each row of the table, and a row for each public function of arrays."""

import functools
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
NESTED = {
    "activations.gelu": {"activations._gelu", "activations._normal_cdf"},
    "activations.relu at_zero": {"activations._relu"},
    "activations.silu": {"activations._silu"},
    "activations.softplus": {"activations._softplus"},
    "activations.softplus_inverse": {"quotients.log"},
    "probabilities.log_softmax": {"probabilities.log_sum"},
    "probabilities.softmax": {"probabilities._of_shifted"},
    "statistics.standardize": {"quotients.divide"},
    "layers.attention in chunks": {"scores._averages_of_sums", "scan"},
    "layers.batch_norm": {"quotients.rsqrt"},
    "layers.gated_linear_attention with the delta rule": {"scan"},
    "layers.layer_norm": {"per_example._variance"},
    "layers.logistic_regression": {"while"},
    "layers.lp_pool": {"quotients._norm"},
    "layers.max_pool": {"pool._reduce_adjacent"},
    "text.truncate_logits": {"scan"},
    "theory.unit_kernels": {"quotients.reciprocal"},
}
"""The rows for which nestings, Laplacian, Taylor mode, forward mode alone and second derivatives in half precision are
checked, with their rules of derivatives and loops: each rule of the table is in one of them. All else has JAX's rules.
"""
OWN_PROGRAM = {
    "activations.gelu approximate",
    "layers.attention in chunks",
    "layers.gated_linear_attention with the delta rule",
    "layers.linear_attention causal",
}
"""Rows that repeat a function with another formula or loop. Half precision is checked for these, for those of `NESTED`
and for the first row of a function."""


@functools.lru_cache(maxsize=1)
def case_of(name):
    """The case of a row: its public function is the first word of the name."""
    module, row = ROWS[name]
    public = name.removeprefix(module.removeprefix("jaxblocks.") + ".").split()[0]
    dtypes = NARROW if {name} & {*FIRST, *OWN_PROGRAM, *NESTED} else NARROW[:1]
    return Case(getattr(importlib.import_module(module), public), row, dtypes, higher=name in NESTED)


def laws_of_rows():
    """The laws of values for each row, and nestings for some: those of a row follow each other and share its case."""
    for name in ROWS:
        if name in NESTED:
            yield pytest.param(name, nestings, marks=pytest.mark.slow, id=f"{name}-nestings")
        yield pytest.param(name, None, id=f"{name}-values")


@pytest.mark.parametrize(("name", "law"), [*laws_of_rows()])
def test_laws_hold(name, law):
    """Each law holds for each row, and all of its rules of derivatives and loops are in the table of nestings."""
    case = case_of(name)
    for each in [law] if law else LAWS:
        each(case)
    assert NESTED.get(name, set()) <= case.rules <= set().union(*NESTED.values())


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
