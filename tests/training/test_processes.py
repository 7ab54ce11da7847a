"""Runs of several processes: they give the numbers of one, decide alike, and are resumed after kills."""

import contextlib
import os
import random
import re
import time
from pathlib import Path

import jax
import numpy as np
import pytest
import several_processes
from several_processes import NUMBERS, TREE, found_by

from jaxblocks.training import load_checkpoint
from jaxblocks.training.checkpoint import listing, names
from jaxblocks.training.checkpoint.lock import lock_directory
from jaxblocks.training.checkpoint.shards import equals_hashes, hashes_of_shards
from jaxblocks.training.processes import _portable

pytest.importorskip("orbax.checkpoint", reason="checkpoints require orbax")


@pytest.fixture(autouse=True)
def _as_users_have_it(as_a_user_has_it):
    """The default configuration of JAX, which the processes have, too."""


def test_hashes_of_shards_are_compared_over_other_shards():
    """Smaller, larger and crossing shards; a number that changed, and a place outside of the array, are found."""
    mesh = jax.make_mesh((2, 4), ("a", "b"))
    layouts = {"grid": ("a", "b"), "rows": ("a",), "columns": (None, ("b", "a")), "one": ()}
    arrays = {name: jax.device_put(NUMBERS, jax.NamedSharding(mesh, jax.P(*spec))) for name, spec in layouts.items()}
    arrays["host"] = NUMBERS
    found = {name: hashes_of_shards(a) for name, a in arrays.items()}
    assert {name: len(hashes) for name, hashes in found.items()} == dict(grid=8, rows=2, columns=8, one=1, host=1)
    assert "4:8,2:4" in found["grid"] and found["one"] == found["host"]
    changed = NUMBERS.copy()
    changed[5, 3] += 1
    for a in arrays.values():
        other = jax.device_put(changed, a.sharding) if isinstance(a, jax.Array) else changed
        for hashes in found.values():
            assert equals_hashes(a, hashes) and not equals_hashes(other, hashes)
        assert not equals_hashes(a, {"0:9,0:8": found["host"]["0:8,0:8"]})


def test_errors_that_cannot_be_pickled_are_sent_in_words():
    """Else the process that raised one would stop there, and the others would wait for it."""

    class LocalError(Exception):
        pass

    class TwoPartsError(Exception):  # pickled, but not read
        def __init__(self, first, second):
            super().__init__(f"{first} {second}")

    known = OSError("the disk is full")
    assert _portable(known) is known and _portable(None) is None
    for error in (LocalError("it failed"), TwoPartsError("it", "failed")):
        sent = _portable(error)
        assert type(sent) is RuntimeError and str(sent) == f"{type(error).__name__}: it failed"


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path):
    """Two processes of two devices each. A signal to one, or its callback, ends both after the same step.

    Both resume bit for bit, and so does one process except for rounding.
    """
    lock = lock_directory(tmp_path / "locked")
    (first, second), errors = found_by(2, "training", tmp_path)
    lock.close()
    assert first == second
    one = several_processes.train(progress=False)
    straight = first["straight"]
    np.testing.assert_allclose(straight["losses"], one.history.step_loss, rtol=2e-6)
    np.testing.assert_allclose(straight["validation"], one.history.validation["loss"], rtol=1e-5)
    assert "expected a mesh in a run of 2 processes" in first["without a mesh"]
    assert "a mesh with devices of all 2 processes, got devices of its own; pass mesh=" in first["own mesh"]
    assert "loss=" in errors[0] and "loss=" not in errors[1]  # the progress bar of the first process
    assert first["signal"] == "SystemExit: 143"
    assert first["saved"] == ["checkpoint-000000-step-2", "checkpoint-000001-step-4"]
    assert [error.count("fit ended at step 4 by SIGTERM: step 4 is saved in") for error in errors] == [1, 0]
    assert first["stopped"] == 6 and first["resumed"] == straight
    rows = (tmp_path / "log.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["step", *map(str, range(1, 9))]
    assert "RuntimeError: fit expected a directory that no other run uses" in first["locked"]
    assert first["early"] == 4 and "expected finite numbers in step 1 " in first["divergence"]
    alone = several_processes.train(progress=False, checkpoint_dir=tmp_path / "alone")
    assert alone.history.step_loss[:4].tolist() == straight["losses"][:4]
    np.testing.assert_allclose(alone.history.step_loss, straight["losses"], rtol=2e-6)


@pytest.mark.slow
def test_checkpoints_of_several_processes(tmp_path):
    """Each process writes its shards, with their hashes; they can be read with other shardings, and on one device."""
    (first, second), _ = found_by(2, "storing", tmp_path)
    assert [first.pop("said"), second.pop("said")][1] == []  # the first process warns
    assert first == second
    assert first["exists"] and all(first["equal"]) and first["before"]
    assert f"step 2 in {tmp_path}, got division by zero; free disk" in first["failed"]
    assert first["after failure"] == ["checkpoint-000000-step-1"]
    assert first["specs"] == ["P(None, 'data')", "P('data',)", "P()"]
    assert "all, float32 (8,), is in the checkpoint only; " in first["other tree"]
    path, last = names.checkpoints_in(tmp_path)
    listed = listing.read_list(path)["leaves"]["ts"]
    assert set(listed["rows"]["sha256"]) == {f"0:8,{2 * i}:{2 * i + 2}" for i in range(4)}
    last.rename(tmp_path / "damaged")
    back = load_checkpoint(tmp_path, TREE)
    for name, a in TREE.items():
        np.testing.assert_array_equal(back[name], a)


def run_with_kills(folder: Path, steps: int, kills: list[tuple[int, str]], draw: random.Random) -> dict[str, str]:
    """Kill a process of each job while it saves or trains, and let the last job end."""
    folder.mkdir()
    (folder / "steps").write_text(str(steps))
    with contextlib.ExitStack() as survivors:  # a process that still runs after its job must not disturb the next one
        for process, moment in kills:
            job = survivors.enter_context(several_processes.start(2, "killable", folder))
            seen, end = set(folder.iterdir()), time.monotonic() + 120
            prefix = ".saving-" if moment == "saving" else "checkpoint-"
            while not any(path.name.startswith(prefix) for path in set(folder.iterdir()) - seen):
                running = time.monotonic() < end and all(each.is_alive() for each in job)
                assert running, [several_processes.output(each)[-3000:] for each in job]
                time.sleep(0.001)
            time.sleep(draw.uniform(0, 0.3))
            job[process].kill()
            if process == 1:  # the first process holds the lock
                job[0].kill()
                job[0].join()
        (first, second), _ = found_by(2, "killable", folder)
    assert first == second
    return first


@pytest.mark.slow
def test_a_run_whose_processes_are_killed_ends_bit_for_bit(tmp_path):
    found = run_with_kills(tmp_path / "run", 20, [(0, "saving"), (1, "training")], random.Random(0))
    assert found["killed"] == found["straight"]
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert len(names) == 3 and names[1].endswith("step-20") and names[2] == "steps"


@pytest.mark.slow
def test_the_example_ends_with_the_same_loss_on_any_devices(capfd, monkeypatch):
    """Eight devices of one process, and two processes, which the example starts itself."""
    import train_on_many_devices as example

    toy = "--steps 2 --layers 1 --features 16 --context 16 --batch 16 --characters 2000".split()
    monkeypatch.setattr(example, "simulate", lambda args: None)  # the tests have eight devices
    eight = example.main(toy)
    for name in [name for name in os.environ if name.startswith("JAX_") and "CACHE" not in name]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XLA_FLAGS", re.sub(r"--xla_force_host\S+", "", os.environ["XLA_FLAGS"]))
    monkeypatch.setenv("PYTHONPATH", str(Path(example.__file__).parents[1]))
    example.main([*toy, "--processes", "2"])
    printed = re.findall(
        r"devices: (\d), processes: (\d), each device holds ([\d.]+) .*\n.* after 2 steps: (.*)\n",
        capfd.readouterr().out,
    )
    assert [found[:3] for found in printed] == [("8", "1", "0.125"), ("2", "2", "0.500")]
    np.testing.assert_allclose(float(printed[-1][-1]), eight, rtol=2e-6)
