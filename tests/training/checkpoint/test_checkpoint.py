"""Checkpoints: bitwise equal after loading; damaged ones and those of another run are rejected."""

import contextlib
import errno
import functools
import gc
import hashlib
import json
import logging
import os
import random
import re
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from arrays import same
from repository import ROOT

import jaxblocks as jb
from jaxblocks.training import (
    Callback,
    checkpoints,
    csv_log,
    early_stopping,
    ema_params,
    fit,
    init_train_state,
    load_checkpoint,
    minibatches,
    progress_bar,
    save_checkpoint,
    train_step,
)
from jaxblocks.training.checkpoint import reading, resume, writing
from jaxblocks.training.loop.descriptions import describe_function

pytest.importorskip("orbax.checkpoint", reason="checkpoints require orbax")


@pytest.fixture(autouse=True)
def _default_configuration():
    with jax.numpy_dtype_promotion("standard"), jax.debug_nans(False):
        yield


def leaves(shift=0.0):
    """Leaves of every kind."""
    return {
        "float": jnp.linspace(shift, 1, 12).reshape(3, 4),
        "bfloat16": jnp.ones(3, jnp.bfloat16) / 3,
        "nothing": None,
        "no entries": jnp.zeros((0, 2)),
        "nested": [jnp.arange(3), (jnp.array(True), ())],
        "key": jax.random.key(3, impl="unsafe_rbg"),
        "complex": jnp.array([1 + 2j, -0.0]),
        "NaN and -0": jnp.array([jnp.nan, -0.0, jnp.inf]),
        "odd / [name]": jnp.int8(3),
        "numpy": np.arange(3, dtype=np.uint16),
    }


def test_every_kind_of_leaf_is_restored_bitwise(tmp_path):
    """This also holds with a template of shapes only; the directory keeps the last two checkpoints."""
    for step in range(4):
        path = save_checkpoint(tmp_path, leaves(step), step=step)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint-000002-step-2", path.name]
    same(load_checkpoint(tmp_path, leaves()), jax.tree.map(jnp.asarray, leaves(3)))
    same(load_checkpoint(tmp_path, jax.eval_shape(leaves)), jax.tree.map(jnp.asarray, leaves(3)))
    save_checkpoint(tmp_path, leaves(), step=1)  # the newest is the one written last, even for an earlier step
    same(load_checkpoint(tmp_path, leaves()), jax.tree.map(jnp.asarray, leaves()))


def test_a_part_of_a_checkpoint_is_restored_with_a_report(tmp_path, sentences):
    """A net with a new head and another layer starts from the params, the key and the moments that fit."""
    old, new = (jb.Serial(jb.Dense(3), jb.tanh, *rest) for rest in ([jb.Dense(2)], [jb.Dense(5), jb.Dense(1)]))
    of = lambda net, seed: init_train_state(jax.random.key(seed), net, optax.sgd(0.1, momentum=0.9), jnp.ones((1, 4)))
    stored, like = of(old, 0), of(new, 1)
    assert load_checkpoint(tmp_path, like, partial=True, missing_ok=True)[1].restored == ()
    save_checkpoint(tmp_path, stored, step=7)
    found, report = load_checkpoint(tmp_path, like, partial=True)
    same(found.params[0], stored.params[0])
    same(found.key, stored.key)
    same(found.params[2:], like.params[2:])
    assert {"params/0/bias", "params/0/kernel", "key", "step", "opt_state/0/trace/0/kernel"} < set(report.restored)
    assert set(report.different) == {
        f"{place}2/{name}" for place in ("params/", "opt_state/0/trace/") for name in ("bias", "kernel")
    }
    assert {"params/3/bias", "params/3/kernel"} < set(report.missing)
    assert report.unused == ()
    count = len(report.restored) + len(report.missing) + 4
    assert repr(report).startswith(f"{len(report.restored)} of {count} leaves restored; missing: ")
    fewer, report = load_checkpoint(tmp_path, {"step": jnp.int32(0)}, partial=True)
    assert report.restored == ("step",) and "params/0/bias" in report.unused and fewer["step"] == 0
    with pytest.raises(
        TypeError, match="load_checkpoint expected a value of params/2/bias, which the checkpoint lacks, got"
    ):
        load_checkpoint(tmp_path, jax.eval_shape(lambda: like), partial=True)
    params, report = load_checkpoint(tmp_path, like.params, partial=True)  # those in the training state
    same(params[0], stored.params[0])
    assert set(report.restored) == {"0/bias", "0/kernel"} and set(report.different) == {"2/bias", "2/kernel"}
    with pytest.raises(ValueError, match="with leaves of like, such as other, got params/0/bias, .*; pass a tree with"):
        load_checkpoint(tmp_path, {"other": jnp.ones(2)}, partial=True)
    wrong = lambda w: load_checkpoint(tmp_path, {"w": w})["w"].sum()
    for transformed in (jax.jit(wrong), jax.grad(wrong), jax.vmap(wrong)):  # a good checkpoint is not called damaged
        with pytest.raises(TypeError, match="load_checkpoint expected arrays with values, got a traced array; call it"):
            transformed(jnp.ones((2, 2)))


def test_sharded_arrays_are_read_with_their_sharding(tmp_path):
    """The same file can also be read to one device."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.device_put(jnp.arange(16.0), jax.NamedSharding(mesh, jax.P("data")))
    save_checkpoint(tmp_path, {"x": spread})
    back = load_checkpoint(tmp_path, {"x": spread})["x"]
    assert back.sharding == spread.sharding and np.array_equal(back, spread)
    alone = load_checkpoint(tmp_path, {"x": jnp.zeros(16)})["x"]
    assert len(alone.devices()) == 1 and np.array_equal(alone, spread)


def test_arrays_are_read_to_the_devices_of_like(tmp_path):
    """Shapes with a sharding, keys, single devices and empty arrays; arrays without a device stay uncommitted."""
    kind = jax.sharding.AxisType
    mesh, explicit = (jax.make_mesh((8,), ("data",), axis_types=(t,)) for t in (kind.Auto, kind.Explicit))
    rows, on_3 = jax.NamedSharding(mesh, jax.P("data")), jax.sharding.SingleDeviceSharding(jax.devices()[3])
    tree = {
        "spread": jnp.arange(16.0),
        "keys": jax.random.split(jax.random.key(0), 8),
        "one key": jax.random.key(1),
        "no entries": jnp.zeros((8, 0)),
        "on 3": jnp.arange(2),
        "array on 3": jnp.arange(3),
        "anywhere": jnp.arange(4),
        "abstract": jnp.arange(8),
    }
    of_shape = lambda name, sharding: jax.ShapeDtypeStruct(tree[name].shape, tree[name].dtype, sharding=sharding)
    like = {name: of_shape(name, rows) for name in ("spread", "keys", "no entries")}
    like |= {name: of_shape(name, on_3) for name in ("one key", "on 3")}
    like |= {"array on 3": jax.device_put(0 * tree["array on 3"], on_3), "anywhere": 0 * tree["anywhere"]}
    explicitly = jax.device_put(tree["abstract"], jax.NamedSharding(explicit, jax.P("data")))
    like["abstract"] = jax.eval_shape(lambda x: 2 * x, explicitly)  # its mesh has no devices
    save_checkpoint(tmp_path, tree)
    back = load_checkpoint(tmp_path, like)
    same(back, tree)
    wanted = {name: a.sharding for name, a in like.items() if name not in ("anywhere", "abstract")}
    assert {name: back[name].sharding for name in wanted} == wanted
    assert not back["anywhere"].committed and not back["abstract"].committed


def listed_as(path, text):
    """Write a list of leaves with its correct hash."""
    (path / "checkpoint.json").write_text(f"{text}\n{hashlib.sha256(text.encode()).hexdigest()}\n")


def test_checkpoints_of_other_versions_and_trees_are_skipped(tmp_path):
    """Each is named with the reason, and the one before them is used."""
    tree = {"w": jnp.arange(3.0)}
    path = save_checkpoint(tmp_path, tree)
    listed = json.loads((path / "checkpoint.json").read_text().splitlines()[0])
    changed = lambda **entry: {**listed, "leaves": {"ts": {"w": {**listed["leaves"]["ts"]["w"], **entry}}}}
    foreign = {
        "{}": "has no format|has format None",
        "[]": "has no format",
        "3": "has no format",
        json.dumps({**listed, "format": 2}): "has format 2, and this version reads format 1",
        json.dumps({**listed, "leaves": {}}): ": w, float32 .3,., is not in the checkpoint",
        json.dumps(changed(shape=[2**62, 2**62])): "is of another net or optimizer: w",
        json.dumps(changed(dtype="float33")): "is of another net or optimizer: w is float33",
        "[" * 100_000: "is damaged: its checkpoint.json",
    }
    for number, text in enumerate(foreign, 1):
        other = tmp_path / f"checkpoint-{number:06d}-step-0"
        other.mkdir()
        listed_as(other, text)
    with pytest.warns(UserWarning, match=f"{path.name} is used instead") as said:
        same(load_checkpoint(tmp_path, tree), tree)
    [warning] = [str(one.message) for one in said]
    for number, reason in enumerate(foreign.values(), 1):
        assert f"checkpoint-{number:06d}-step-0" in warning and re.search(reason, warning), reason
    assert save_checkpoint(tmp_path, tree, step=1).name == f"checkpoint-{len(foreign) + 1:06d}-step-1"
    same(load_checkpoint(tmp_path, tree), tree)


def test_trees_without_values_are_rejected(tmp_path, sentences):
    with pytest.raises(ValueError, match="save_checkpoint expected a tree with at least one array, got an empty dict"):
        save_checkpoint(tmp_path, {})
    with pytest.raises(
        TypeError, match=r"expected leaf w to be an array of numbers, got \[\('a', '<i4'\)\] \(2,\); remove"
    ):
        save_checkpoint(tmp_path, {"w": np.zeros(2, [("a", "i4")])})
    with pytest.raises(TypeError, match="expected arrays with values, got a traced array; call it outside of jax.jit"):
        jax.eval_shape(lambda w: save_checkpoint(tmp_path, {"w": w}), jnp.zeros(2))
    gone = jnp.zeros(2)
    gone.delete()
    with pytest.raises(ValueError, match="arrays with values in the tree, got some that a step has donated; pass"):
        save_checkpoint(tmp_path, {"w": gone})
    assert not list(tmp_path.iterdir())
    nothing = {"w": jnp.zeros((0, 2))}
    save_checkpoint(tmp_path, nothing)
    same(load_checkpoint(tmp_path, nothing), nothing)


# ---- the lock --------------------------------------------------------------------------------

OTHER_PROCESS = """
import os, sys, time
from pathlib import Path
from jaxblocks.training.checkpoint.lock import lock_directory
lock = lock_directory(Path(sys.argv[1]))
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(60)
"""


def test_a_directory_is_locked_until_its_process_is_killed(tmp_path, sentences):
    """A forked process that still runs after its parent was killed, such as a data loader, does not keep the lock."""
    tree, command = {"w": jnp.zeros(2)}, [sys.executable, "-W", "ignore", "-c", OTHER_PROCESS, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        child = int(process.stdout.readline())
        uses = rf"no other run uses, got {tmp_path}, which is locked; pass another directory"
        try:
            with pytest.raises(RuntimeError, match=f"^save_checkpoint expected a directory that {uses}"):
                save_checkpoint(tmp_path, tree)
            save_checkpoint(tmp_path / "another", tree)  # as the error advises
            load_checkpoint(tmp_path, tree, missing_ok=True)  # reading is allowed
            process.kill()
            process.wait()
            save_checkpoint(tmp_path, tree)
        finally:
            os.kill(child, signal.SIGKILL)
    assert not (tmp_path / ".lock").exists()


def test_a_forked_process_that_ends_leaves_the_lock(tmp_path):
    """Its blocks end too, as those of a data loader that raises."""
    fork = """
import os, sys
from pathlib import Path
from jaxblocks.training.checkpoint.lock import lock_directory
with lock_directory(Path(sys.argv[1])):
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        print((Path(sys.argv[1]) / ".lock").exists())
"""
    command = [sys.executable, "-W", "ignore", "-c", fork, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout == "True\n"
    assert not (tmp_path / ".lock").exists()


def test_a_file_system_without_locks_is_used_without_them(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl", reason="flock requires POSIX")

    def none(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    save_checkpoint(tmp_path, {"w": jnp.arange(2.0)})
    np.testing.assert_array_equal(load_checkpoint(tmp_path, {"w": jnp.zeros(2)})["w"], [0, 1])


def test_a_sharding_that_does_not_fit_is_no_damage(tmp_path, sentences):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    save_checkpoint(tmp_path, {"w": jnp.arange(3.0)})
    over = lambda *spec: jax.ShapeDtypeStruct((3,), jnp.float32, sharding=jax.NamedSharding(mesh, jax.P(*spec)))
    with pytest.raises(ValueError, match=r"load_checkpoint expected a sharding of w that divides its shape \(3,\)"):
        load_checkpoint(tmp_path, {"w": over("data")})
    np.testing.assert_array_equal(load_checkpoint(tmp_path, {"w": over()})["w"], [0, 1, 2])


@contextlib.contextmanager
def no_files_left():
    """The limit on open files below those that are open."""
    resource = pytest.importorskip("resource", reason="limits on open files require POSIX")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_errors_of_the_system_are_no_damage(tmp_path, monkeypatch, sentences):
    """Too many open files, no access, a disk that fails, in every part of reading: nothing is rejected or renamed."""
    tree = {"w": jnp.arange(3.0)}
    kept = [save_checkpoint(tmp_path, tree, step=step).name for step in (1, 2)]
    same(load_checkpoint(tmp_path, tree), tree)

    def raises(error):
        def fails(*_, **__):
            raise KeyError("of orbax") from error

        return fails

    def limited(*arguments, real=reading.require_orbax().load_checkpointables):
        with no_files_left():
            return real(*arguments)

    no_access = PermissionError(errno.EACCES, "Permission denied")
    list_fails = lambda *_, **__: (_ for _ in ()).throw(no_access)
    load = (reading.require_orbax(), "load_checkpointables")
    for target, name, replacement, words in (
        (os, "listdir", list_fails, "Permission denied"),
        (Path, "read_text", list_fails, "Permission denied"),
        (*load, limited, "Too many open files"),
        (*load, raises(no_access), "Permission denied"),
        (*load, raises(ValueError("DATA_LOSS: ... [os_error_code='5']")), "Input/output error"),
        (*load, raises(MemoryError()), "Cannot allocate memory"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(target, name, replacement)
            expected = f"load_checkpoint expected to read the checkpoints in .*, got {words}; remove the cause"
            with pytest.raises(OSError, match=expected) as raised:
                load_checkpoint(tmp_path, tree, missing_ok=True)
            assert raised.value.errno and type(raised.value) is type(OSError(raised.value.errno, ""))
        assert sorted(path.name for path in tmp_path.iterdir()) == kept
    with no_files_left(), pytest.raises(OSError, match="Too many open files"):
        load_checkpoint(tmp_path, tree)
    same(load_checkpoint(tmp_path, tree), tree)


def test_an_error_that_the_caller_handles_is_not_behind_damage(tmp_path, monkeypatch):
    """Damage in an ``except`` of the caller, whose error is not the cause, and whose frames are not cleared."""
    tree = {"w": jnp.arange(3.0)}
    save_checkpoint(tmp_path, tree)

    def fails(*_, **__):
        raise KeyError("of orbax")

    def of_caller():
        kept = 7
        raise PermissionError(errno.EACCES, f"Permission denied {kept}")

    monkeypatch.setattr(reading.require_orbax(), "load_checkpointables", fails)
    try:
        of_caller()
    except PermissionError as error:
        handled = error
        with pytest.raises(ValueError, match="expected an undamaged checkpoint"):
            load_checkpoint(tmp_path, tree)
    assert handled.__traceback__.tb_next.tb_frame.f_locals == {"kept": 7}


def test_damaged_checkpoints_print_nothing(tmp_path, monkeypatch):
    """Tasks of orbax that fail after the first one report their errors when they are removed."""
    printed = []
    handler = logging.Handler()
    handler.emit = lambda record: printed.append(record.getMessage())
    monkeypatch.setattr(sys, "unraisablehook", lambda error: printed.append(str(error.exc_value)))
    monkeypatch.setattr(logging.getLogger("asyncio"), "handlers", [handler])
    tree = {f"w{number}": jnp.arange(1000.0) + number for number in range(30)}
    manifest = save_checkpoint(tmp_path, tree) / "arrays" / "ts" / "manifest.ocdbt"
    whole = manifest.read_bytes()
    for part in (0.3, 0.6, 0.9):
        manifest.write_bytes(whole[: int(part * len(whole))])
        with pytest.raises(ValueError, match="is damaged: its arrays cannot be read"):
            load_checkpoint(tmp_path, tree)
        gc.collect()
    assert not printed


def test_flipped_bits_and_truncated_files_are_detected(tmp_path):
    """For any byte of any file, loading returns the leaves unchanged or uses the previous checkpoint."""
    big = {"w": jnp.asarray(np.random.default_rng(0).normal(size=400), jnp.float32)}
    old = {"w": -big["w"]}
    save_checkpoint(tmp_path, old, step=1)
    path = save_checkpoint(tmp_path, big, step=2)
    files = [p for p in sorted(path.rglob("*")) if p.is_file() and p.stat().st_size]
    draw, used, places = random.Random(0), 0, []
    for file in files:
        whole = file.read_bytes()
        places += [(file, whole, "flip", draw.randrange(len(whole))) for _ in range(2)]
        places += [(file, whole, "cut", draw.randrange(len(whole))), (file, whole, "remove", 0)]
    for file, whole, what, at in places:
        if what == "remove":
            file.unlink()
        else:
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :] if what == "flip" else whole[:at])
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            back = load_checkpoint(tmp_path, big)
        words = [str(w.message) for w in said if "used instead" in str(w.message)]
        same(back, old if words else big)
        assert all("is damaged" in w and "checkpoint-000000-step-1 is used instead" in w for w in words)
        used += bool(words)
        file.write_bytes(whole)
    array = max(files, key=lambda p: p.stat().st_size)
    assert used >= 10 and any(array == file for file, *_ in places)
    same(load_checkpoint(tmp_path, big), big)
    data = bytearray(array.read_bytes())  # in the middle of the numbers, where orbax detects nothing
    data[len(data) // 2] ^= 1
    array.write_bytes(data)
    with pytest.warns(UserWarning, match=r"hash of w differs|arrays cannot be read"):
        same(load_checkpoint(tmp_path, big), old)
    (tmp_path / "checkpoint-000000-step-1" / "checkpoint.json").unlink()
    with pytest.raises(
        ValueError, match="is damaged.*is damaged: its checkpoint.json is missing.*; pass another directory"
    ):
        load_checkpoint(tmp_path, big)


def test_errors_of_another_models_checkpoint_list_the_differing_leaves(tmp_path, sentences):
    """Paths, shapes and dtypes, which orbax would cast silently; the directory is not overwritten."""
    x, optimizer = jnp.zeros((4, 3)), optax.sgd(0.1)
    state = lambda net: init_train_state(jax.random.key(0), net, optimizer, x)
    saved = state(jb.Dense(5))
    save_checkpoint(tmp_path, saved)
    shape = r"params/kernel is float32 \(3, 5\) in the checkpoint and float32 \(3, 6\) here"
    with pytest.raises(
        ValueError,
        match=rf"a checkpoint of .* which is of another .*: params.*; {shape}; .*partial=True.* pass another",
    ):
        load_checkpoint(tmp_path, state(jb.Dense(6)))
    with pytest.raises(ValueError, match=r"params/bias, float32 \(5,\), is in the checkpoint only"):
        load_checkpoint(tmp_path, state(jb.Dense(5, use_bias=False)))
    with pytest.raises(ValueError, match=r"params/0/kernel, float32 \(3, 5\), is not in the checkpoint"):
        load_checkpoint(tmp_path, state(jb.Serial(jb.Dense(5))))
    halved = saved._replace(params=jax.tree.map(lambda p: p.astype(jnp.bfloat16), saved.params))
    with pytest.raises(ValueError, match=r"\(3, 5\) in the checkpoint and bfloat16 \(3, 5\) here"):
        load_checkpoint(tmp_path, halved)
    with pytest.raises(
        ValueError, match=f"save_checkpoint expected .* got those of another tree: .*{shape}; pass another dir"
    ):
        save_checkpoint(tmp_path, state(jb.Dense(6)))
    save_checkpoint(tmp_path / "another", state(jb.Dense(6)))  # as the error advises
    same(load_checkpoint(tmp_path, state(jb.Dense(5))), saved)


def test_errors_of_missing_checkpoints_and_packages(tmp_path, monkeypatch, sentences):
    with pytest.raises(
        FileNotFoundError, match="load_checkpoint expected a checkpoint, got none in .*; pass .* missing_ok=True"
    ):
        load_checkpoint(tmp_path, {"w": jnp.zeros(2)})
    same(load_checkpoint(tmp_path, {"w": jnp.zeros(2)}, missing_ok=True), {"w": jnp.zeros(2)})  # as the error advises
    with pytest.raises(
        TypeError, match=r"save_checkpoint expected leaf name to be an array of numbers, got 'net'; remove"
    ):
        save_checkpoint(tmp_path, {"name": "net"})
    with pytest.raises(TypeError, match="save_checkpoint expected the tree to be an array of numbers, got 'net'"):
        save_checkpoint(tmp_path, "net")
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "jaxblocks\[train\]"'):
        save_checkpoint(tmp_path, {"w": jnp.zeros(2)})
    with pytest.raises(ModuleNotFoundError, match=r'^fit expected orbax .* pip install "jaxblocks\[tr'):
        small_fit(tmp_path)


@contextlib.contextmanager
def full_disk(room):
    """Limit the size of files that the operating system writes."""
    resource = pytest.importorskip("resource", reason="limits on file sizes require POSIX")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_raises_and_keeps_earlier_checkpoints(tmp_path, monkeypatch):
    """The error occurs before orbax is called, or in orbax. Incomplete files are removed, and nothing is printed."""
    printed = []
    monkeypatch.setattr(sys, "unraisablehook", lambda error: printed.append(str(error.exc_value)))
    big = {"w": jnp.asarray(np.random.default_rng(0).normal(size=4000), jnp.float32)}
    first = save_checkpoint(tmp_path, big)
    says = rf"checkpoint of step 9 in .*; free disk space .*the last one is {first.name}"
    with full_disk(2000), pytest.raises(OSError, match=says) as raised:
        save_checkpoint(tmp_path, big, step=9)
    assert "File too large" in str(raised.value)
    monkeypatch.setattr("jaxblocks.training.checkpoint.writing._reserve", lambda path, size: None)
    with full_disk(100), pytest.raises(OSError, match=says):
        save_checkpoint(tmp_path, big, step=9)
    assert not printed
    assert list(tmp_path.iterdir()) == [first]
    same(load_checkpoint(tmp_path, big), big)


def test_a_dtype_that_checkpoints_do_not_have_is_named_as_the_cause(tmp_path):
    few = {"w": jnp.asarray([1, 2, 3], jnp.uint4)}
    with pytest.raises(OSError, match=r'got .*"uint4"; convert the arrays of this dtype, as with .astype') as raised:
        save_checkpoint(tmp_path, few)
    assert "disk" not in str(raised.value) and not list(tmp_path.iterdir())
    wide = {"w": few["w"].astype(jnp.uint8)}  # as the error advises
    save_checkpoint(tmp_path, wide)
    same(load_checkpoint(tmp_path, wide), wide)


# ---- fit -----------------------------------------------------------------------------------

X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
Y = np.sin(2 * X[:, :1])
NET = jb.Serial(jb.Dense(6), jb.BatchNorm(), jb.Dropout(0.2), jb.Dense(1))
OPTIMIZER = optax.chain(optax.sgd(optax.cosine_decay_schedule(0.01, 40), momentum=0.5), ema_params(0.9))


def small_fit(folder, steps=22, validate=True, **options):
    """Validation labels change sign, so that the best params are not the last ones."""
    validation = {"validation": (X[:20], -Y[:20])} if validate else {}
    callbacks = [*options.pop("callbacks", ()), *([early_stopping(100)] if validate else [])]
    callbacks += [] if folder is None else [checkpoints(folder, every=options.pop("every", 4))]
    options = {"key": jax.random.key(0), "batch_size": 12, **validation, **options}
    return fit(NET, jb.mse, OPTIMIZER, (X, Y), steps=steps, progress=False, callbacks=callbacks, **options)


def results(fitted):
    """All results of a run."""
    history = fitted.history
    return (
        fitted.params,
        fitted.state,
        fitted.ts,
        history.step_loss,
        history.step_epoch,
        history.epoch,
        dict(history.validation),
    )


@pytest.fixture(scope="module")
def whole():
    with jax.numpy_dtype_promotion("standard"), jax.debug_nans(False):
        return small_fit(None)


class Killed(BaseException):
    """An exception that the library does not catch."""


def test_a_resumed_run_is_bitwise_equal(tmp_path, whole, monkeypatch, capsys):
    """Stopped three times while saving, first before any checkpoint exists; best params and history are equal too."""
    real, calls = writing._flush, []

    def dies(folder):
        calls.append(folder)
        if len(calls) in (1, 4, 5):
            raise Killed
        real(folder)

    monkeypatch.setattr(writing, "_flush", dies)
    for _ in range(4):
        try:
            fitted = small_fit(tmp_path, callbacks=[csv_log(tmp_path / "log.csv")])
            break
        except Killed:
            assert any(p.name.startswith(".saving") for p in tmp_path.iterdir())  # as after a kill
    same(results(fitted), results(whole))
    monkeypatch.undo()
    assert len(calls) > 5
    assert not any(p.name.startswith(".") for p in tmp_path.iterdir())
    steps = [line.split(",")[0] for line in (tmp_path / "log.csv").read_text().splitlines()]
    assert steps == ["step", *map(str, range(1, 23))]
    longer = small_fit(tmp_path, steps=24)
    assert int(longer.ts.step) == 24
    with pytest.raises(ValueError, match="more steps than the 24 .*, got 22; .*, or another checkpoint_dir"):
        small_fit(tmp_path)
    capsys.readouterr()
    small_fit(tmp_path, steps=24, callbacks=[progress_bar()])
    assert capsys.readouterr().err == "The run is complete: its 24 steps were made before.\n"


def test_a_run_extended_inside_an_epoch_is_bitwise_equal(tmp_path, whole):
    """The validation at the first end, which would be the best one, counts only while the run ends there."""
    go = functools.partial(small_fit, every=100)  # saved at the end only
    ended = go(tmp_path / "best", steps=3)
    assert list(ended.history.epoch) == [0.6] and ended.history.validation["loss"] < whole.history.validation["loss"][0]
    same(ended.params, ended.ts.params)
    same(results(go(tmp_path / "best", steps=3)), results(ended))  # a complete run is not repeated
    same(results(go(tmp_path / "best")), results(whole))
    losses = whole.history.validation["loss"][:3]
    assert losses[0] < losses[1:].min()  # so that patience 2 ends after the third epoch
    go(tmp_path / "patience", steps=7, callbacks=[early_stopping(2)])
    stopped = go(tmp_path / "patience", callbacks=[early_stopping(2)])
    assert list(stopped.history.epoch) == [1, 2, 3]
    same(stopped.history.validation["loss"], losses)


def test_fit_skips_a_damaged_checkpoint_and_renames_it(tmp_path, whole):
    small_fit(tmp_path, steps=8)
    newest = sorted(tmp_path.iterdir())[-1]
    (newest / "checkpoint.json").write_bytes((newest / "checkpoint.json").read_bytes()[:-7])
    with pytest.warns(
        UserWarning, match=rf"checkpoint-\d+-step-4 is used instead of .*{newest.name}, which is damaged"
    ):
        fitted = small_fit(tmp_path, steps=9)
    same(fitted.history.step_loss, whole.history.step_loss[:9])
    assert (tmp_path / f"rejected-{newest.name}").is_dir()
    assert len([p for p in tmp_path.iterdir() if p.name.startswith("checkpoint-")]) == 2
    for path in tmp_path.glob("checkpoint-*"):
        (path / "checkpoint.json").write_text("")
    with pytest.raises(ValueError, match="^fit expected an undamaged checkpoint .*; pass another directory"):
        small_fit(tmp_path)


def test_a_given_training_state_is_used_only_without_a_checkpoint(tmp_path):
    go = functools.partial(small_fit, tmp_path, validate=False)
    given = small_fit(None, steps=3, validate=False).ts
    assert len(go(steps=5, ts=given).history.step_loss) == 2  # it begins at step 3
    other = given._replace(params=jax.tree.map(jnp.zeros_like, given.params))
    same(go(steps=6, ts=other).ts, small_fit(None, steps=6, validate=False).ts)


def test_two_runs_in_one_directory_are_rejected(tmp_path, sentences):
    inside = []

    def on_step(run):
        with pytest.raises(RuntimeError, match=f"no other run uses, got {tmp_path}, which is locked"):
            small_fit(tmp_path, steps=2)
        inside.append(sorted(p.name for p in tmp_path.iterdir()))

    small_fit(tmp_path, steps=2, callbacks=[Callback(on_step=on_step)])
    assert inside and all(".lock" in names for names in inside) and not (tmp_path / ".lock").exists()
    with pytest.raises(RuntimeError, match=r"or leave out checkpoint_dir beside checkpoints\("):
        small_fit(tmp_path, steps=3, callbacks=[checkpoints(tmp_path)])
    for _ in range(2):  # the lock is released after an error, in any callback
        with pytest.raises(ZeroDivisionError):
            small_fit(tmp_path, steps=3, callbacks=[Callback(on_end=lambda run: 1 / 0)])


def test_a_directory_that_cannot_be_written_is_rejected_before_training(tmp_path, monkeypatch, sentences):
    traced = []
    open_file = os.open

    def read_only(path, *args, **options):
        if Path(path).parent == tmp_path:
            raise PermissionError(errno.EROFS, "Read-only file system")
        return open_file(path, *args, **options)

    monkeypatch.setattr(os, "open", read_only)
    says = f"^fit expected to save checkpoints in {tmp_path}, got Read-only file system; pass another directory"
    with pytest.raises(OSError, match=says):
        fit(jb.Dense(1), lambda o, y: traced.append(1) or jb.mse(o, y), optax.sgd(0.1), (X, Y), key=jax.random.key(0),
            steps=2, checkpoint_dir=tmp_path, progress=False, batch_size=12)  # fmt: skip
    assert not traced


def bounded(scale):
    return lambda outputs, y: scale * jb.huber_loss(outputs, y)


def test_fit_reports_changed_functions(tmp_path, sentences):
    """The run continues after the warning; a changed ``compute_dtype`` is an error."""
    state = dict(key=jax.random.key(0), batch_size=12, progress=False, checkpoint_dir=tmp_path)
    go = functools.partial(fit, data=(X, Y), **state)
    net = jb.Serial(jb.Dense(2), jb.relu, jb.Dense(1))
    go(net, jb.mse, optax.adam(0.1), steps=2)
    went_on = "pass those of that run, or another directory to begin a new run"
    with pytest.warns(UserWarning, match="^fit expected the functions of the run in .*, got others: ") as said:
        go(jb.Serial(jb.Dense(2), jb.gelu, jb.Dense(1)), bounded(2.0), optax.nadam(0.1), steps=3,
           augment=lambda key, x: x)  # fmt: skip
    [warning] = [str(one.message) for one in said]
    assert went_on in warning and said[0].filename == __file__
    for words in (
        "net was Serial(Dense(2), relu, Dense(1)) and is Serial(Dense(2), gelu, Dense(1))",
        "loss was mse and is bounded.<lambda>(scale=2.0)",
        "optimizer was ",
        "nesterov=True",
        "augment was None and is ",
    ):
        assert words in warning, warning
    with pytest.raises(ValueError, match="got those of another: compute_dtype was None and is bfloat16; pass another"):
        go(net, jb.mse, optax.adam(0.1), steps=4, compute_dtype=jnp.bfloat16)


def test_functions_are_described_by_names_and_numbers():
    for function in (bounded(2.0), jax.jit(bounded(2.0))):
        assert describe_function(function) == ["bounded.<lambda>(scale=2.0)"]
    partial = functools.partial(jb.huber_loss, delta=3.0)
    assert describe_function(partial) == ["partial(delta=3.0)", "huber_loss"]
    for scale in (np.float32(3), jnp.float32(3), 3):
        assert describe_function(bounded(scale)) == ["bounded.<lambda>(scale=3.0)"]

    class Weighted:
        def __call__(self, outputs):
            return outputs

    net = lambda: jb.Serial(jb.Dense(2), Weighted())  # its repr has an address
    assert describe_function(net()) == describe_function(net())
    optimizers = [
        *(optax.sgd(0.1), optax.sgd(0.2), optax.adam(0.1), optax.adamw(0.1), optax.adam(0.1, b1=0.8), optax.nadam(0.1)),
        *(optax.sgd(optax.cosine_decay_schedule(rate, 9)) for rate in (0.1, 0.2)),
        *(optax.inject_hyperparams(optax.sgd)(learning_rate=rate) for rate in (0.1, 0.2)),
    ]
    described = [tuple(describe_function(one)) for one in optimizers]
    assert len(set(described)) == len(described)
    key = jax.random.key(0)  # a typed key is no number
    assert describe_function(lambda outputs, y: jax.random.normal(key))[0].endswith("<lambda>")
    assert describe_function(abs) == ["abs"] and describe_function(jnp.square) == ["square"]

    class Metric:  # no optimizer, though it has an update
        update = None
        __call__ = Weighted.__call__

    assert describe_function(Metric())[0].endswith("Metric")


def test_fit_rejects_the_checkpoints_of_another_run(tmp_path, sentences):
    small_fit(tmp_path, steps=5)
    with pytest.raises(
        ValueError,
        match="^fit expected checkpoints of this run in .*, got those of another: batch_size was 12 and is 10; pass",
    ):
        small_fit(tmp_path, batch_size=10)
    with pytest.raises(ValueError, match="got those of another: the key is different"):
        small_fit(tmp_path, key=jax.random.key(1))
    with pytest.raises(ValueError, match="validation was .* and is None"):
        small_fit(tmp_path, validate=False)
    with pytest.raises(ValueError, match=r"of another net or optimizer: .*params/0/bias"):
        fit(
            jb.Dense(1),
            jb.mse,
            OPTIMIZER,
            (X, Y),
            key=jax.random.key(0),
            steps=9,
            batch_size=12,
            checkpoint_dir=tmp_path,
        )
    with pytest.raises(ValueError, match="^checkpoints expected every to be an integer >= 1 or None, got 0"):
        small_fit(tmp_path, every=0)
    assert int(small_fit(tmp_path, steps=6).ts.step) == 6  # as the error advises: the arguments of that run


def test_a_full_disk_does_not_stop_training(tmp_path, whole):
    """A warning at each checkpoint that could not be written; the result is the same."""
    with full_disk(150), pytest.warns(UserWarning, match=r"^fit expected to save .* Training continues") as said:
        fitted = small_fit(tmp_path, every=10)
    same(results(fitted), results(whole))
    assert len(said) == 3 and not list(tmp_path.glob("*/checkpoint.json"))


def test_nonfinite_params_are_not_saved(tmp_path):
    """The error of a divergence names step and layer; the previous checkpoint is kept; a restart raises the same."""

    def go():
        fit(jb.Dense(1), jb.mse, optax.sgd(1e3), (X, Y), key=jax.random.key(0), batch_size=12, epochs=100,
            progress=False, callbacks=[checkpoints(tmp_path, every=2)])  # fmt: skip

    said = []
    for _ in range(2):
        with pytest.raises(FloatingPointError, match="; it began in the") as raised:
            go()
        said.append(str(raised.value))
        ts = raised.value.ts
        found = load_checkpoint(tmp_path, ts)
        chex.assert_tree_all_finite(found.params)
        assert int(ts.step) - 2 <= int(found.step) <= int(ts.step)
    assert said[0] == said[1]


def test_the_last_finite_state_is_saved_while_the_divergence_is_diagnosed(tmp_path, monkeypatch):
    """The state being saved is not donated to the steps that search for the cause."""
    write = resume.begin_write
    monkeypatch.setattr(resume, "begin_write", lambda *args: (time.sleep(0.3), write(*args))[1])
    bad_after = lambda outputs, y: jnp.where(outputs > 4, jnp.nan, (outputs - 100) ** 2)  # reached after some steps
    with pytest.raises(
        FloatingPointError, match="in step 8 .* a loss of nan, though the outputs .* finite; try"
    ) as raised:
        fit(jb.Bias(), bad_after, optax.sgd(0.01), (0 * X, Y), key=jax.random.key(0), batch_size=12, steps=9,
            progress=False, callbacks=[checkpoints(tmp_path, every=1)])  # fmt: skip
    found = load_checkpoint(tmp_path, raised.value.ts)
    assert int(found.step) == int(raised.value.ts.step) == 7


@pytest.mark.parametrize("keep", [1, 3])
def test_keep_is_the_number_of_checkpoints(tmp_path, keep):
    for step in range(6):
        save_checkpoint(tmp_path, {"w": jnp.full(2, step)}, step=step, keep=keep)
    kept = sorted(int(path.name.split("-")[-1]) for path in tmp_path.iterdir())
    assert kept == list(range(6 - keep, 6))


def test_invalid_directories_are_rejected_before_training(tmp_path, sentences):
    """A file, a single checkpoint instead of the directory of its run, and arguments in the wrong order."""
    (tmp_path / "file").write_text("")
    run = dict(key=jax.random.key(0), batch_size=12, steps=2, progress=False)
    go = lambda folder: fit(jb.Dense(1), jb.mse, optax.sgd(0.1), (X, Y), checkpoint_dir=folder, **run)
    with pytest.raises(
        OSError, match="fit expected to save checkpoints in .*file, got File exists; pass another directory"
    ):
        go(tmp_path / "file")
    fitted = go(tmp_path / "run")
    one = next((tmp_path / "run").iterdir())
    for wrong in (lambda: go(one), lambda: load_checkpoint(one, fitted.ts), lambda: save_checkpoint(one, {})):
        with pytest.raises(ValueError, match=f"expected .*which is one of its checkpoints; pass {tmp_path / 'run'}"):
            wrong()
    with pytest.raises(
        TypeError,
        match="expected the directory of a run, got a TrainState; pass the directory before the training state",
    ):
        load_checkpoint(fitted.ts, tmp_path / "run")
    with pytest.raises(TypeError, match="^fit expected the directory of a run, got 3; pass a path"):
        go(3)


def test_64_bit_leaves_keep_their_dtype(tmp_path):
    """Without x64 JAX would convert int64 to int32, which turns 2**40 into zero."""
    tree = {"mean": np.array([1 / 3, 1e300]), "seen": np.array([2**40])}
    save_checkpoint(tmp_path, tree, step=0)
    same(load_checkpoint(tmp_path, tree), tree)


def test_arrays_of_the_other_byte_order_are_restored(tmp_path):
    """As files of other machines have them; they were found damaged when they were read."""
    values = np.array([1.5, -2.0, 3e-20], np.float32)
    tree = {"x": values.astype(">f4"), "count": np.array([2**40], ">i8")}
    save_checkpoint(tmp_path, tree, step=0)
    for like in (tree, {"x": values, "count": np.zeros(1, np.int64)}):
        same(load_checkpoint(tmp_path, like), {"x": jnp.asarray(values), "count": np.array([2**40])})


def test_a_custom_loop_can_be_resumed(tmp_path):
    """The loop in the docstring of `load_checkpoint`, in two parts, equals one run; `fit` can continue it."""
    key, step = jax.random.key(0), train_step(NET, jb.mse, OPTIMIZER)

    def loop(folder, stop):
        ts = init_train_state(key, NET, OPTIMIZER, X[:12])
        ts = load_checkpoint(folder, ts, missing_ok=True)
        for x, y in minibatches(jax.random.key(0), (X, Y), 12, epochs=3, start=int(ts.step)):
            if int(ts.step) == stop:
                break
            ts, _ = step(ts, x, y)
            if ts.step % 3 == 0:
                save_checkpoint(folder, ts)
        return ts

    with jax.debug_key_reuse(False):
        straight = loop(tmp_path / "straight", 9)
        loop(tmp_path / "parts", 5)
        same(loop(tmp_path / "parts", 9), straight)
        fitted = small_fit(tmp_path / "parts", steps=11, validate=False)
        assert len(fitted.history.step_loss) == 2 and int(fitted.ts.step) == 11


def test_double_precision_and_typed_keys_are_restored(tmp_path):
    """The thread that writes checkpoints does not inherit the context `jax.enable_x64`."""
    with jax.enable_x64(True):
        net = jb.Dense(1, param_dtype=jnp.float64)
        key = jax.random.key(0, impl="unsafe_rbg")
        go = functools.partial(
            fit, net, jb.mse, optax.sgd(0.1), (X.astype(np.float64), Y.astype(np.float64)), key=key, batch_size=12
        )
        first = go(steps=4, progress=False, checkpoint_dir=tmp_path)
        second = go(steps=6, progress=False, checkpoint_dir=tmp_path)
        straight = go(steps=6, progress=False)
        same(second.ts, straight.ts)
        same(second.history.step_loss, straight.history.step_loss)
        assert first.params["kernel"].dtype == second.history.step_loss.dtype == np.float64


def test_the_format_of_the_list_of_leaves(tmp_path):
    """Other programs can check the files by path, shape, dtype and SHA-256 of the bytes."""
    path = save_checkpoint(tmp_path, {"w": jnp.arange(3)}, step=7)
    text, own = (path / "checkpoint.json").read_text().splitlines()
    listed = json.loads(text)
    assert own == hashlib.sha256(text.encode()).hexdigest() and listed["step"] == 7
    sha = hashlib.sha256(np.arange(3, dtype=np.int32).tobytes()).hexdigest()
    assert listed["leaves"] == {"ts": {"w": {"shape": [3], "dtype": "int32", "sha256": sha}}}
