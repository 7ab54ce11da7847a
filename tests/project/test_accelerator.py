"""The command `make accelerator`, tried on the CPU."""

import sys
from pathlib import Path

import jax
import pytest
from repository import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import accelerator

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="tries the command without an accelerator")


def test_without_an_accelerator_it_says_so_and_writes_nothing(capsys, monkeypatch):
    monkeypatch.setattr(Path, "write_text", lambda *args: pytest.fail("wrote a file"))
    assert accelerator.main([]) == 2
    assert capsys.readouterr().out.startswith("No accelerator: jax.devices() has CPUs only.")


def test_a_dry_run_reports_the_device_errors_tests_and_benchmarks(capsys, monkeypatch):
    commands = []

    def run(command, **options):
        commands.append(command)
        out = "FAILED tests/test_x.py::test_y - z\n1 failed, 2 passed in 1s" if "pytest" in command else "fast"
        return type("Done", (), {"stdout": out, "stderr": "", "returncode": 0})

    monkeypatch.setattr(accelerator.subprocess, "run", run)
    assert accelerator.main(["--dry-run", "--tests", "tests/test_x.py", "--benchmarks", "dispatch"]) == 1
    report = capsys.readouterr().out
    assert report.startswith("# Results on cpu") and report.count("| within |") == 4
    assert "FAILED tests/test_x.py::test_y - z\n1 failed, 2 passed in 1s" in report
    assert "## dispatch\n\n```text\nfast\n```" in report
    assert commands[0][-1] == "tests/test_x.py" and commands[1][-1].endswith("dispatch.py")


def test_a_larger_error_than_stated_is_reported(monkeypatch):
    monkeypatch.setitem(accelerator.STATED, ("float32", "highest"), 1e-9)
    assert "| float32 | highest |" in accelerator.errors_of_products("cpu")
    assert accelerator.errors_of_products("cpu").count("not within") == 1


def test_all_benchmarks_and_tests_of_the_list_exist():
    assert all((ROOT / path).exists() for path in accelerator.TESTS)
    assert {"dispatch", "layers", "attention"} <= set(accelerator.BENCHMARKS)
    assert not {"timing", "accelerator"} & set(accelerator.BENCHMARKS)
