"""The list of mutants fits the package and its tests; `make mutants` runs it."""

import ast
import functools
import re

from mutants import file_of_tests, mutated, read_mutants
from repository import ROOT

TESTS = ROOT / "tests"


@functools.cache
def code_of(path):
    """A file of tests without comments and docstrings: the names of its tests and of their parameters."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = ""
    return ast.unparse(tree).lower()


def test_every_mutant_fits_the_package_and_its_tests():
    """Its text occurs once in its module, its tests exist, and so do the words of their names."""
    zoo = "".join(map(code_of, (TESTS / "zoo").glob("zoo*.py")))
    wrong = []
    for mutant in read_mutants():
        try:
            mutated(mutant)
            text = code_of(file_of_tests(mutant)) + zoo * (mutant.tests == "test_laws.py")
        except (ValueError, OSError) as error:
            wrong.append(str(error))
            continue
        words = set(re.findall(r"\w+", mutant.pattern.lower())) - {"and", "or", "not"}
        wrong += [f"{mutant.tests} has no {word!r}, for {mutant}" for word in words if word not in text]
    assert not wrong, "\n".join(wrong)
