"""Checkpoints: a training state on disk, safe against killed processes, full disks and flipped bits.

Arrays are written and read by orbax (``pip install jaxblocks[train]``); this module adds atomic writes and integrity
checks. A checkpoint directory gets its name only when it is complete (it is written under another name, flushed to the
disk, and renamed), so a process may be killed at any time. A list of the leaves with path, shape, dtype and SHA-256
(that of each shard, for sharded arrays) is stored with the arrays, because orbax does not detect a flipped bit, and
casts another dtype silently. ::

    run/checkpoint-000007-step-1200/checkpoint.json     the list of leaves, and its own hash
    run/checkpoint-000007-step-1200/arrays/             by orbax: {"ts": {path: array}, ...}

Names count up in the order of writing; the last two of a run are kept.

In a run of several processes each one writes and hashes its own shards. The first process names the checkpoint, writes
the list when the others are ready, renames the directory, and removes old ones.
"""

import asyncio
import contextlib
import errno
import json
import logging
import os
import re
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Integer

from jaxblocks.checks.errors import public_name, require
from jaxblocks.checks.expectations import NonNegativeInt, PositiveInt, checked
from jaxblocks.core.pairs import Layer, StatefulLayer
from jaxblocks.core.selection import paths
from jaxblocks.training.checkpoint.lock import lock_of_run
from jaxblocks.training.checkpoint.shards import equals_hashes, hash_of, hashes_of_shards, is_sharded
from jaxblocks.training.processes.processes import are_several, in_all, is_first, largest, on_first

__all__ = ["load_checkpoint", "save_checkpoint"]


@checked
def save_checkpoint(
    directory: Any, ts: Any, *, step: NonNegativeInt | Integer[Array, ""] | None = None, keep: PositiveInt = 2
) -> Path:
    """Write a training state (or any tree of arrays) as the newest checkpoint of a directory.

    The call returns when the checkpoint is on the disk. Only then older ones of the same tree are removed, except for
    the last ``keep``. Python numbers are stored as arrays.

    In a run of several processes all of them call it, with a directory that all can write; each one writes the shards
    of its devices. Arrays that belong to a single process must be the same in all, and the first one writes them.

    Args:
        directory: the directory of one run, a string or a path; created if it does not exist.
        ts: the tree to store: a `TrainState` (its ``step`` is the position in the data: continue with
            ``minibatches(key, data, size, start=int(ts.step))``), or any other tree.
        step: the step in the name; ``ts.step`` by default, 0 for a tree without ``step``.
        keep: the number of checkpoints to keep, including this one.

    Returns:
        The directory of this checkpoint.

    Raises:
        ModuleNotFoundError: without orbax.
        OSError: if it cannot be written, for example on a full disk; earlier checkpoints are unchanged.
        RuntimeError: while a run of `fit`, or another process that saves, uses the directory.
        TypeError: for leaves that are not arrays with values.
        ValueError: if the directory holds checkpoints of another tree, which would be removed later.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> save_checkpoint(folder, {"w": jnp.arange(3.0)}, step=5).name
    'checkpoint-000000-step-5'
    >>> load_checkpoint(folder, {"w": jnp.zeros(3)})
    {'w': Array([0., 1., 2.], dtype=float32)}
    """
    require_orbax()
    path = as_directory(directory)
    _check_tree(ts)
    # A training state has its own step; other trees have the given one or 0.
    number = int(getattr(ts, "step", 0) if step is None else step)
    with lock_of_run(path):
        return in_all(begin_write(path, {"ts": ts}, number, {}, keep))


@checked
def load_checkpoint(directory: Any, like: Any, *, missing_ok: bool = False) -> Any:
    """The newest undamaged checkpoint of a directory, as a tree like ``like``.

    A checkpoint that is incomplete, damaged, or holds another tree is skipped with a warning that states the reason,
    and the previous one is used. A custom training loop continues after a kill by::

        ts = init_train_state(key, net, optimizer, x[:64])
        ts = load_checkpoint("run", ts, missing_ok=True)
        for x_batch, y_batch in minibatches(key, (x, y), 64, epochs=10, start=int(ts.step)):
            ts, value = step(ts, x_batch, y_batch)
            if ts.step % 1000 == 0:
                save_checkpoint("run", ts)

    It reads checkpoints of `save_checkpoint` and of `fit`, also those of another number of devices or processes. In a
    run of several processes all of them call it, and use the same checkpoint.

    Args:
        directory: the directory of the run, a string or a path.
        like: a tree with the expected structure, shapes and dtypes: arrays, or ``jax.ShapeDtypeStruct``s.
            The arrays are read to the devices of those of ``like``: with their sharding where they have one (also
            that of a ``ShapeDtypeStruct``), else to the default device.
        missing_ok: return ``like`` if the directory has no checkpoint yet.

    Raises:
        ModuleNotFoundError: without orbax.
        FileNotFoundError: if there is no checkpoint, unless ``missing_ok``.
        ValueError: if there are checkpoints and all are damaged or of another tree; the message states the reason for
            each one, and the leaves that differ.

    >>> load_checkpoint("no/such/folder", {"w": jnp.zeros(2)}, missing_ok=True)
    {'w': Array([0., 0.], dtype=float32)}
    """
    if isinstance(like, (Layer, StatefulLayer)):
        repair = "pass what net.init or init_train_state returns; shapes suffice: jax.eval_shape(net.init, key, x)"
        require(False, "like to be a tree of arrays", f"a {type(like).__name__}", repair, error=TypeError)
    found = read_newest(as_directory(directory), {"ts": like})
    if found is not None:
        return found.trees["ts"]
    if not missing_ok:
        repair = "pass another directory, or missing_ok=True to begin a new run"
        require(False, "a checkpoint", f"none in {Path(directory)}", repair, error=FileNotFoundError)
    return like


# ---- shared with fit -----------------------------------------------------------------------


class Checkpoint(NamedTuple):
    """The result of `read_newest`: the trees by name, the notes, the path, and the paths of rejected checkpoints."""

    trees: dict[str, Any]
    notes: Any
    path: Path
    rejected: tuple[Path, ...]


class RejectedError(ValueError):
    """The reason why a checkpoint is not used, as the words after "The checkpoint ... "."""


_NAME = re.compile(r"checkpoint-(\d+)-step-(\d+)")
_LIST = "checkpoint.json"
_FORMAT = 1
_SAVING, _REMOVING = ".saving-", ".removing-"


def write(directory, trees: Mapping[str, Any], step: int, notes: Mapping[str, Any], keep: int = 2) -> Path:
    """Write named trees of arrays, and ``notes`` as JSON, as one checkpoint, and remove old ones."""
    return begin_write(directory, trees, step, notes, keep)()


def begin_write(
    directory, trees: Mapping[str, Any], step: int, notes: Mapping[str, Any], keep: int = 2
) -> Callable[[], Path]:
    """The first part of `write`, which all processes call in the thread of the steps; the result is the second part.

    The second part may be called in another thread: the devices of different processes do not communicate in it.
    """
    ocp = require_orbax()
    arrays = {name: _arrays(tree) for name, tree in trees.items()}
    # Only the first process makes the directory; the others receive its names.
    plan = on_first(lambda: _plan(directory, arrays, step, keep))
    temporary, path, several = directory / plan.temporary, directory / plan.name, are_several()
    # orbax does not store arrays without entries; `_load` makes them from their shapes.
    stored = {name: {path: a for path, a in named.items() if a.size} for name, named in arrays.items()}
    stored = {name: named for name, named in stored.items() if named}
    response = None
    with _explained(directory, step, plan):
        if several:
            in_all(lambda: _check_shared(temporary))
            if stored:  # the second part of orbax waits for the other processes without using their devices
                with _writing():
                    response = in_all(lambda: ocp.save_checkpointables_async(str(temporary / "arrays"), stored))

    def finish() -> Path:
        with _explained(directory, step, plan), ThreadPoolExecutor(1, "hashes") as other_thread:
            try:
                hashing = other_thread.submit(_hashes, arrays)  # while orbax writes
                if stored:
                    with _writing(), _orbax_is_quiet(settle=0.3):  # until the other writes have failed, too
                        write = lambda: ocp.save_checkpointables(str(temporary / "arrays"), stored)
                        write() if response is None else response.result()
                hashes = hashing.result()
                if several:
                    _flush(temporary)
                    (temporary / f"hashes-{jax.process_index()}.json").write_text(json.dumps(hashes))
            finally:
                if several:  # after an error, too: the others wait
                    asyncio.run(ocp.multihost.sync_global_processes("jaxblocks", operation_id=temporary.name))
            # The first process commits after the barrier, when the hashes of all processes are on the disk.
            if is_first():
                hashes = _collected(temporary) if several else hashes
                leaves = {
                    name: {path: {**_described(a), "sha256": _joined(hashes[name][path])} for path, a in named.items()}
                    for name, named in arrays.items()
                }
                _commit(temporary, path, {"format": _FORMAT, "step": step, "leaves": leaves, "notes": notes})
        # Removed after the commit only, so that a complete checkpoint exists at any time.
        for old in plan.superfluous if is_first() else ():
            with contextlib.suppress(OSError):  # the new checkpoint is complete; this one is removed by the next call
                # Renamed first: a directory that is removed only in part must not look like a checkpoint.
                gone = (directory / old).rename(directory / (_REMOVING + old))
                shutil.rmtree(gone)
        return path

    return finish


def _hashes(arrays: dict[str, dict]) -> dict[str, dict[str, dict[str, str]]]:
    return {name: {path: hashes_of_shards(a) for path, a in named.items()} for name, named in arrays.items()}


def _writing():
    """The options of orbax: no compression, and no copy of NumPy arrays, which do not change during a save.

    Compressing takes four times as long as writing, and makes random numbers 8 % smaller. Versions of orbax that do not
    have the option ``deepcopy_host_arrays``, such as 0.12.0, ignore it.
    """
    options = require_orbax().Context()
    options.memory.deepcopy_host_arrays = False
    options.array.saving.use_compression = False
    return options


def _commit(temporary: Path, path: Path, listed: dict) -> None:
    """Write the list of a checkpoint, flush everything to the disk, and give the directory its name."""
    text = json.dumps(listed)
    # The hash of the list itself stands in the file's second line.
    (temporary / _LIST).write_text(f"{text}\n{hash_of(text.encode())}\n")
    _flush(temporary)
    # The rename is atomic on one file system; the parent is flushed after it, so that the new name survives a crash.
    temporary.rename(path)
    _sync(path.parent)


class _Plan(NamedTuple):
    """The names of a new checkpoint, of its directory until it is complete, of the one before it, and of old ones."""

    name: str
    temporary: str
    last: str | None
    superfluous: list[str]


def _plan(directory, arrays, step: int, keep: int) -> _Plan:
    """Make the directory of a new checkpoint; raises if older ones hold another tree, or if the disk is full."""
    described = {name: {path: _described(a) for path, a in named.items()} for name, named in arrays.items()}
    older = checkpoints_in(directory)
    # A damaged list is skipped: it does not show whether its tree differs.
    readable = {path: listed for path in older if (listed := _list_or_none(path)) is not None}
    same = [path for path, listed in readable.items() if not _differences(listed, {"ts": described["ts"]})]
    if readable and not same:
        differences = _differences(list(readable.values())[-1], described)
        got = f"those of another tree: {differences}"
        require(False, f"checkpoints of this tree in {directory}", got, "pass another directory, or remove its files")
    # The number after the newest directory, damaged ones included, so that names are not reused.
    sequence = 1 + _sequence(older[-1]) if older else 0
    name = f"checkpoint-{sequence:06d}-step-{step}"
    # Another name in each run: a process of a killed run may still be writing.
    temporary = f"{_SAVING}{name}-{os.getpid()}-{time.time_ns()}"
    # The new checkpoint is one of those that are kept.
    superfluous = [old.name for old in same[: max(len(same) + 1 - keep, 0)]]
    plan = _Plan(name, temporary, older[-1].name if older else None, superfluous)
    with _explained(directory, step, plan):
        _clear(directory)
        (directory / temporary).mkdir()
        _reserve(directory / temporary / "reserved", [a.nbytes for named in arrays.values() for a in named.values()])
    return plan


@contextlib.contextmanager
def _explained(directory, step: int, plan: _Plan):
    """Remove an incomplete checkpoint after an error, and raise an ``OSError`` that says what is kept."""
    try:
        yield
    except Exception as error:  # orbax raises a ValueError on a full disk
        if is_first():
            shutil.rmtree(directory / plan.temporary, ignore_errors=True)
        kept = f"the last one is {plan.last}" if plan.last else "there was none before it"
        reason = str(error).split(" [")[0].splitlines()[0] if str(error) else type(error).__name__
        no_access = isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
        raise OSError(
            f"{public_name()} expected to save the checkpoint of step {step} in {directory}, got {reason}; "
            f"{'pass' if no_access else 'free disk space or pass'} another directory. Earlier checkpoints are "
            f"unchanged ({kept})."
        ) from error


def _check_shared(folder: Path) -> None:
    """Raise unless this process can read the folder that the first one made."""
    if not folder.is_dir():
        raise OSError(errno.EACCES, f"process {jax.process_index()} cannot find it, and all must share it")


def _collected(folder: Path) -> dict[str, dict[str, dict[str, str]]]:
    """The hashes that all processes found."""
    collected: dict = {}
    for number in range(jax.process_count()):
        file = folder / f"hashes-{number}.json"
        if not file.exists():
            raise OSError(f"process {number} could not write its shards")
        for name, named in json.loads(file.read_text()).items():
            for path, found in named.items():
                collected.setdefault(name, {}).setdefault(path, {}).update(found)
        file.unlink()
    return collected


def _joined(hashes: dict[str, str]) -> str | dict[str, str]:
    """The hash of an array in one part, or the hashes of its shards."""
    return next(iter(hashes.values())) if len(hashes) == 1 else dict(sorted(hashes.items()))


def read_newest(
    directory,
    trees: Mapping[str, Any],
    optional: Mapping[str, Any] = MappingProxyType({}),
    read_notes: Callable[[dict, dict], Any] = lambda trees, notes: notes,
) -> Checkpoint | None:
    """The newest undamaged checkpoint with trees like these; ``None`` if there is no checkpoint.

    A tree with a name in ``optional`` is returned as a flat dict from paths to the stored arrays; those that fit one of
    the tree given there are read to its devices.
    ``read_notes(trees, notes)`` returns the notes of the result; a checkpoint for which it raises a `RejectedError` is
    skipped.
    """
    rejected: dict[Path, RejectedError] = {}
    listed = on_first(lambda: checkpoints_in(Path(directory).absolute()))
    # From the newest to the oldest.
    while listed:
        path = listed.pop()
        try:
            found, notes = _read(path, trees, optional)
            notes = read_notes(found, notes)
        except RejectedError as error:
            if on_first(path.exists):
                rejected[path] = error
            elif not listed:  # another process has removed it and written others
                listed = on_first(lambda: checkpoints_in(Path(directory).absolute()))
                listed = [new for new in listed if new not in rejected]
            continue
        # Reported only where another one is used; if all are rejected, the error below states the reasons.
        if rejected and is_first():
            warnings.warn(f"{path.name} is used instead of {_reasons(rejected)}.", stacklevel=3)
        return Checkpoint(found, notes, path, tuple(rejected))
    if rejected:
        expected = f"an undamaged checkpoint of this tree in {directory}"
        require(False, expected, _reasons(rejected), "pass another directory, or remove these to begin a new run")
    return None


def _reasons(rejected) -> str:
    """The rejected checkpoints with the reasons; equal reasons are stated once."""
    reasons: dict[str, list[Path]] = {}
    for path, error in rejected.items():
        reasons.setdefault(str(error), []).append(path)
    return ", and ".join(
        f"{paths[0]}{''.join(f' (and {path.name})' for path in paths[1:])}, which {reason}"
        for reason, paths in reasons.items()
    )


def checkpoints_in(directory: Path) -> list[Path]:
    """The complete checkpoints of a directory, in the order in which they were written."""
    if not directory.is_dir():
        return []
    return sorted((p for p in directory.iterdir() if _NAME.fullmatch(p.name)), key=_sequence)


def _sequence(path: Path) -> int:
    return int(path.name.split("-")[1])


def rebuild(tree, arrays: dict):
    """A tree like ``tree`` with these arrays, with its typed keys and on its devices; they are taken out of the dict.

    Without x64, 64-bit arrays stay NumPy arrays.
    """
    leaves, structure = jax.tree.flatten(tree)
    found = []
    for path, leaf in zip(paths(tree), leaves, strict=True):
        a = arrays.pop(path)  # where it is copied below, its memory is free before the next one is copied
        if jax.dtypes.canonicalize_dtype(a.dtype) == a.dtype:  # else 64 bits without x64
            a = jnp.asarray(a)
            a = jax.random.wrap_key_data(a, impl=_generator(leaf)) if _is_key(leaf) else a
            sharding = _sharding(leaf)
            a = a if sharding is None else jax.device_put(a, sharding)
        found.append(a)
    return jax.tree_util.tree_unflatten(structure, found)


def as_directory(directory) -> Path:
    """The directory of a run as a path; raises if it is not a path, or is the directory of a single checkpoint."""
    is_path = isinstance(directory, str | os.PathLike)
    repair = "pass the directory before the training state"
    require(is_path, "the directory of a run", directory, repair, error=TypeError)
    path = Path(directory).absolute()
    if _NAME.fullmatch(path.name):
        require(False, "the directory of a run", f"{path}, which is one of its checkpoints", f"pass {path.parent}")
    return path


def require_orbax():
    """Import orbax, the library that writes arrays; raises an error with the install command if it is missing."""
    try:
        from orbax.checkpoint import v1 as ocp
    except ImportError as error:
        raise ModuleNotFoundError(
            f"{public_name()} expected orbax (0.12 or newer), which writes checkpoints, got no such package; "
            "install it with: pip install jaxblocks[train].",
            name="orbax",
        ) from error
    return ocp


# ---- reading -------------------------------------------------------------------------------


def _read(path, trees, optional):
    """The trees of one checkpoint; every leaf is compared with its hash."""
    listed = on_first(lambda: _read_list(path))
    stored = listed["leaves"]
    wanted = {name: {place: _described(a) for place, a in _named(tree).items()} for name, tree in trees.items()}
    # Compared before the arrays are read, so that another model is reported at once.
    if differences := _differences(listed, wanted):
        raise RejectedError(f"is of another model: {differences}")
    names = [*trees, *(name for name in optional if name in stored)]
    likes = {name: _named(trees[name] if name in trees else optional[name]) for name in names}
    for place, like in ((f"{name}/{place}", like) for name in trees for place, like in likes[name].items()):
        _check_sharding(place, like)
    try:
        loaded = in_all(lambda: _load(path / "arrays", {name: stored[name] for name in names}, likes))
    except Exception as error:  # reading a damaged file may raise any exception
        raise RejectedError("is damaged: its arrays cannot be read") from error
    leaves = [(name, place) for name in names for place in stored[name]]
    intact = [_is_intact(loaded[name][place], stored[name][place]) for name, place in leaves]
    # The maximum over the processes, so that all of them reject the checkpoint where one finds a damaged shard.
    damaged = largest([0 if all(intact) else 1 + intact.index(False)])[0]
    if damaged:
        place = "/".join(leaves[damaged - 1])
        raise RejectedError(f"is damaged: the hash of {place} differs from the one that was saved")
    found = {name: rebuild(trees[name], loaded[name]) if name in trees else loaded[name] for name in names}
    return found, listed["notes"]


def _load(folder, stored, likes) -> dict[str, dict[str, Any]]:
    """The arrays of named trees, read by each process for itself."""
    ocp = require_orbax()
    abstract = {
        name: {p: _abstract(e, likes[name].get(p)) for p, e in entries.items() if 0 not in e["shape"]}
        for name, entries in stored.items()
    }
    abstract = {name: leaves for name, leaves in abstract.items() if leaves}
    loaded, alone = {}, ocp.Context()
    if are_several():  # each process reads for itself: an error in one of them stops no other one
        alone.multiprocessing.primary_host = jax.process_index()
        alone.multiprocessing.active_processes = {jax.process_index()}
    with alone, _orbax_is_quiet():
        for one in abstract.items():  # one by one: where one fails, orbax leaves coroutines of the others behind
            loaded |= ocp.load_checkpointables(str(folder), dict((one,)))
    empty = lambda entry: np.zeros(entry["shape"], jnp.dtype(entry["dtype"]))
    return {
        name: {p: empty(e) if 0 in e["shape"] else loaded[name][p] for p, e in entries.items()}
        for name, entries in stored.items()
    }


def _is_intact(a, entry) -> bool:
    found, whole = entry["sha256"], ",".join(f"0:{size}" for size in entry["shape"])
    return _described(a) == _described_by(entry) and equals_hashes(
        a, found if isinstance(found, dict) else {whole: found}
    )


def _check_sharding(place: str, like: Any) -> None:
    """Raise a ``ValueError`` where the sharding of an expected leaf does not fit its shape."""
    sharding = getattr(like, "sharding", None)
    if sharding is None:
        return
    try:
        sharding.shard_shape(like.shape)
    except ValueError:
        expected = f"a sharding of {place} that divides its shape {like.shape}"
        require(False, expected, str(sharding), "choose another axis, or leave this leaf unsharded")


def _read_list(path) -> dict:
    try:
        # The text, its hash, and the empty rest after the last newline: a file that is cut short has fewer lines.
        text, own, rest = (path / _LIST).read_text().split("\n")
        if own != hash_of(text.encode()) or rest:
            raise ValueError("its hash differs")
        listed = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise RejectedError(f"is damaged: its {_LIST} is missing, cut short or changed") from error
    if not isinstance(listed, dict) or listed.get("format") != _FORMAT:
        got = f"format {listed.get('format')!r:.40}" if isinstance(listed, dict) else "no format"
        raise RejectedError(f"is of another version: its {_LIST} has {got}, and this version reads format {_FORMAT}")
    if not (_holds(listed.get("leaves"), lambda leaves: _holds(leaves, _is_entry)) and _holds(listed.get("notes"))):
        raise RejectedError(f"is of another program: its {_LIST} has no list of leaves and notes")
    return listed


def _holds(value, accepts: Callable[[Any], bool] = lambda value: True) -> bool:
    """Whether a value is a dict of accepted values."""
    return isinstance(value, dict) and all(map(accepts, value.values()))


def _is_entry(entry) -> bool:
    """Whether a leaf is described by its shape, dtype and hash."""
    if not isinstance(entry, dict) or set(entry) != {"shape", "dtype", "sha256"}:
        return False
    sizes, hashes = entry["shape"], entry["sha256"]
    if not (isinstance(sizes, list) and all(type(n) is int and n >= 0 for n in sizes)):
        return False
    # One "start:stop" for each axis, the place of a shard in the array.
    place = re.compile(",".join([r"\d{1,18}:\d{1,18}"] * len(sizes)))
    of_shards = _holds(hashes, lambda one: isinstance(one, str)) and all(map(place.fullmatch, hashes))
    return isinstance(entry["dtype"], str) and (isinstance(hashes, str) or of_shards)


def _list_or_none(path):
    try:
        return _read_list(path)
    except RejectedError:
        return None


def _shapes(leaves):
    return {path: (tuple(entry["shape"]), entry["dtype"]) for path, entry in leaves.items()}


def _differences(listed, wanted) -> str:
    """A description of the leaves in which a checkpoint differs from the expected tree; empty if it does not."""
    found = []
    for name, leaves in wanted.items():
        stored, here = _shapes(listed["leaves"].get(name, {})), _shapes(leaves)
        for place in [*stored, *(p for p in here if p not in stored)]:
            if place not in here:
                found.append(f"{name}/{place}, {_words(stored[place])}, is in the checkpoint only")
            elif place not in stored:
                found.append(f"{name}/{place}, {_words(here[place])}, is not in the checkpoint")
            elif stored[place] != here[place]:
                found.append(
                    f"{name}/{place} is {_words(stored[place])} in the checkpoint and {_words(here[place])} here"
                )
    more = f", and {len(found) - 4} more leaves differ" if len(found) > 4 else ""
    return "; ".join(found[:4]) + more


def _words(described):
    shape, dtype = described
    return f"{dtype} {shape}"


def _abstract(entry, like):
    """The argument with which orbax reads a leaf: a NumPy array of its shape and dtype, or a sharding."""
    sharding = _sharding(like)
    # Read to the devices only where shapes agree, which optional trees need not.
    if sharding is not None and len(sharding.device_set) > 1 and _described(like) == _described_by(entry):
        return jax.ShapeDtypeStruct(like.shape, like.dtype, sharding=sharding)
    return np.broadcast_to(np.zeros((), jnp.dtype(entry["dtype"])), entry["shape"])  # takes no memory


def _sharding(like):
    """The sharding (or the device) that a leaf requests; ``None`` for the default device."""
    if isinstance(like, jax.Array):
        return like.sharding if like.committed else None
    sharding = getattr(like, "sharding", None)
    return None if isinstance(getattr(sharding, "mesh", None), jax.sharding.AbstractMesh) else sharding


# ---- writing -------------------------------------------------------------------------------


def _check_tree(tree) -> None:
    """Raise unless a tree has leaves with values."""
    leaves = jax.tree.leaves(tree)
    require(leaves, "a tree with at least one array", f"an empty {type(tree).__name__}", "pass the training state")
    for leaf in leaves:
        if isinstance(leaf, Tracer):
            require(False, "arrays with values", "a traced array", "call it outside of jax.jit", error=TypeError)
        if isinstance(leaf, jax.Array) and leaf.is_deleted():
            repair = "pass the training state that the step returned"
            require(False, "arrays with values", "some that a step has donated", repair)


def _named(tree) -> dict:
    """Every leaf by its path, typed keys by their data."""
    names, leaves = paths(tree), jax.tree.leaves(tree)
    unique = len(set(names)) == len(names)
    require(unique, "a tree whose leaves have different paths", "a name with a slash", "rename it")
    return {name: _key_data(leaf) if _is_key(leaf) else leaf for name, leaf in zip(names, leaves, strict=True)}


def _arrays(tree) -> dict:
    """The leaves as NumPy arrays, except for arrays that are sharded over devices."""
    return {path: a if is_sharded(a) else _host(path, a) for path, a in _named(tree).items()}


def _host(path, leaf):
    a = np.asarray(leaf)
    if a.dtype.kind in "OUSMm" or a.dtype.type is np.void:
        got = repr(leaf) if isinstance(leaf, str) else leaf
        require(False, f"leaf {path} to be an array of numbers", got, "remove it from the tree", error=TypeError)
    return a


def _is_key(leaf) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _generator(key):
    """The generator of a typed key, or of the shape of one."""
    # In eval_shape no key need exist: the leaf may be a ShapeDtypeStruct.
    found = []
    jax.eval_shape(lambda key: found.append(jax.random.key_impl(key)), key)
    return found[0]


def _key_data(key):
    return jax.random.key_data(key) if isinstance(key, jax.Array) else jax.eval_shape(jax.random.key_data, key)


def _described(leaf) -> dict:
    leaf = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    return {"shape": list(leaf.shape), "dtype": str(leaf.dtype)}


def _described_by(entry) -> dict:
    return {"shape": entry["shape"], "dtype": entry["dtype"]}


def _reserve(path, sizes: list[int]):
    """Allocate the disk space in advance: on a full disk, orbax may wait for minutes."""
    size = sum(sizes) + 512 * len(sizes) + 2**17  # for the descriptions of the arrays, and for parts of blocks
    with open(path, "wb") as file:
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):  # file systems that cannot allocate
                raise
    path.unlink()


def _flush(folder):
    """Flush the buffers of the operating system to the disk."""
    for place, folders, files in os.walk(folder):
        for name in (*files, *folders):
            _sync(os.path.join(place, name))
    _sync(folder)


def _sync(path):
    with contextlib.suppress(PermissionError):  # Windows cannot open directories
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _clear(directory):
    """Remove incomplete files of processes that were killed while they wrote or removed checkpoints."""
    for path in directory.iterdir():
        if path.name.startswith((_SAVING, _REMOVING)):
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _orbax_is_quiet(settle: float = 0.0):
    """Suppress the tracebacks of the threads of orbax; errors are raised, after ``settle`` seconds."""
    logs = [logging.getLogger(name) for name in ("absl", "asyncio")]
    quiet = lambda record: False
    report = sys.unraisablehook

    def report_others(unraisable):
        if "Event loop is closed" not in str(unraisable.exc_value):  # of writes that end after the first failure
            report(unraisable)

    for log in logs:
        log.addFilter(quiet)
    sys.unraisablehook = report_others
    try:
        yield
    except Exception:
        time.sleep(settle)
        raise
    finally:
        sys.unraisablehook = report
        for log in logs:
            log.removeFilter(quiet)
