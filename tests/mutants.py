"""Makes each mistake of `mutants.toml` in a copy of the package, and reports those that its tests do not see.

`make mutants`, or `python tests/mutants.py [part of a module ...] [-j processes]`.
"""

import argparse
import multiprocessing
import os
import queue
import shutil
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
COPIED = ("jaxblocks", "tests", "examples", "pyproject.toml")
CONTEXT = multiprocessing.get_context("forkserver")
# Each run of pytest is forked from a process that has imported these, which takes longer than most of the tests.
# `main` sets PYTHONPATH, since a module that is not found is left out silently.
CONTEXT.set_forkserver_preload(["strict_jax", "jax", "optax", "scipy.stats", "torch"])

_BY_PYTEST = 100  # added to its status, since a process that fails before it has the status 1 too


class Mutant(NamedTuple):
    """One mistake: ``before`` in ``module`` becomes ``after``. In the file ``tests``, those of ``pattern`` fail."""

    module: str
    before: str
    after: str
    tests: str
    pattern: str

    def __str__(self):
        return f"{self.module}: {' '.join(self.before.split())} -> {' '.join(self.after.split()) or 'nothing'}"


def read_mutants() -> list[Mutant]:
    """The entries of `mutants.toml`."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    return [
        Mutant(module, before, after, *tests.partition("::")[::2])
        for module, entries in table.items()
        for before, after, tests in entries
    ]


def file_of_tests(mutant: Mutant) -> Path:
    """The file of its tests: names of files are unique in the tree of tests."""
    found = list((ROOT / "tests").rglob(mutant.tests))
    if len(found) != 1:
        raise ValueError(f"mutants.toml expected one file of tests with the name {mutant.tests}, got {len(found)}")
    return found[0]


def mutated(mutant: Mutant) -> tuple[Path, str]:
    """The file of the mistake, as a path in the repository, and its text with the mistake."""
    module = ROOT / "jaxblocks" / mutant.module
    texts = {path: path.read_text() for path in (*module.parent.glob(f"{module.name}.py"), *module.rglob("*.py"))}
    found = [path for path, text in texts.items() for _ in range(text.count(mutant.before))]
    if len(found) != 1:
        raise ValueError(f"mutants.toml expected text that occurs once, got {len(found)} of {mutant}")
    return found[0].relative_to(ROOT), texts[found[0]].replace(mutant.before, mutant.after)


def run_pytest(arguments: list[str], copy: Path):
    """Runs in a process of its own."""
    import pytest

    os.chdir(copy)
    for stream in (1, 2):
        os.dup2(os.open(copy / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    sys.path.insert(0, str(copy))
    sys.dont_write_bytecode = True  # two mutants of one size and one second would share it
    sys.exit(_BY_PYTEST + pytest.main(arguments))


def outcome_of(mutant: Mutant, copy: Path) -> str:
    """What the tests of a mutant say when they run in ``copy``."""
    file, text = mutated(mutant)
    (copy / file).write_text(text)
    tests = str(file_of_tests(mutant).relative_to(ROOT))
    arguments = ["-q", "-x", "-n", "0", tests, *(["-k", mutant.pattern] if mutant.pattern else [])]
    process = CONTEXT.Process(target=run_pytest, args=(arguments, copy))
    try:
        process.start()
        process.join()
    finally:
        shutil.copyfile(ROOT / file, copy / file)
    # 5: no test was selected; 2 and 4: the tests could not be collected.
    outcomes = {_BY_PYTEST: "SURVIVED", _BY_PYTEST + 1: "killed"}
    known = outcomes.get(process.exitcode or 0)
    return known or f"ERROR {process.exitcode} of pytest: {(copy / 'output').read_text().strip()[-300:]}"


def main():
    """Runs the chosen mutants; exits with 1 if one of them survived or could not be run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", help="parts of modules, such as layers/conv; the whole package without it")
    parser.add_argument("-j", type=int, default=2, help="processes at a time")
    options = parser.parse_args()
    chosen = [m for m in read_mutants() if not options.only or any(part in m.module for part in options.only)]
    for mutant in chosen:
        mutated(mutant)  # raises before the first run
    os.environ["PYTHONPATH"] = str(ROOT / "tests" / "support")
    copies = queue.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.j) as pool:
        for worker in range(options.j):
            copy = Path(folder) / str(worker)
            copy.mkdir()
            for name in COPIED:
                duplicate = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
                duplicate(ROOT / name, copy / name)
            copies.put(copy)

        def run(mutant):
            copy, start = copies.get(), time.monotonic()
            try:
                outcome = outcome_of(mutant, copy)
            finally:
                copies.put(copy)
            print(f"{outcome:9}{time.monotonic() - start:5.0f} s  {mutant}", flush=True)
            return outcome

        outcomes = list(pool.map(run, chosen))
    left = [f"{outcome}  {m}" for outcome, m in zip(outcomes, chosen, strict=True) if outcome != "killed"]
    print(f"\n{len(chosen) - len(left)} of {len(chosen)} mutants were killed.", *left, sep="\n")
    return bool(left)


if __name__ == "__main__":
    sys.exit(main())
