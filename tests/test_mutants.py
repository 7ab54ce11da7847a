"""The list of mutants fits the package and its tests; `make mutants` runs it."""

import re
from pathlib import Path

from mutants import mutated, read_mutants

TESTS = Path(__file__).parent


def test_every_mutant_fits_the_package_and_its_tests():
    """Its text occurs once in its module, its tests exist, and so do the words of their names."""
    zoo = "".join(path.read_text() for path in TESTS.glob("zoo*.py"))
    wrong = []
    for mutant in read_mutants():
        try:
            mutated(mutant)
            text = (TESTS / mutant.tests).read_text() + zoo * (mutant.tests == "test_laws.py")
        except (ValueError, OSError) as error:
            wrong.append(str(error))
            continue
        words = set(re.findall(r"\w+", mutant.pattern.lower())) - {"and", "or", "not"}
        wrong += [f"{mutant.tests} has no {word!r}, for {mutant}" for word in words if word not in text.lower()]
    assert not wrong, "\n".join(wrong)
