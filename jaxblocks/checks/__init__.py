"""Checks of the arguments of functions and layers: one mechanism, and one sentence for every error.

Read `expectations` first: `checked` reads the annotations of a function, and the ranges that annotations use. At the
first call `signatures` compiles the check of a function from `annotations` and `array_annotations`; `array_repairs`
says what to write in the place of an array that does not fit. `errors` has the sentence of every error, `values` the
checks of the values of arrays, `foreign_arrays` what to write for arrays of other libraries, `layer_inputs` what
several layers say of their inputs, `terminal` writes lines and warnings, `system` finds files and the libraries that an
extra installs, and `foreign_names` has the names that others use, from which `names` finds the one that is meant.
`help_signatures` is what ``help`` shows. The laws of errors are in ``tests/laws``: ``test_inputs``,
``test_foreign_calls`` and ``test_repairs``.
"""

from jaxblocks.checks.errors import describe, public_name, require
from jaxblocks.checks.expectations import (
    Epsilon,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Range,
    Rate,
    check_params,
    checked,
    unchecked,
)

__all__ = [
    "Epsilon",
    "NonNegativeFloat",
    "NonNegativeInt",
    "PositiveFloat",
    "PositiveInt",
    "Range",
    "Rate",
    "check_params",
    "checked",
    "describe",
    "public_name",
    "require",
    "unchecked",
]
