"""Checkpoints: a training state on disk, which a kill, a full disk or a flipped bit does not make worse than the last.

Arrays are written and read by orbax (``pip install jaxblocks[train]``); what is here is what it leaves open. A
checkpoint is a folder that appears under its name only when it is complete (it is written under another name, put
through to the disk, and renamed), so a process may be killed at any moment. Beside the arrays lies a list of the
leaves with path, shape, dtype and SHA-256: orbax reads a flipped bit, and casts another dtype, without a word. ::

    run/checkpoint-000007-step-1200/checkpoint.json     the list of leaves, and its own hash
    run/checkpoint-000007-step-1200/arrays/             by orbax: {"train": {path: array}, ...}

Names count up in the order of writing; the last two of a run are kept.
"""

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import shutil
import warnings
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxblocks.checks import describe_any, require_whole

__all__ = ["load_checkpoint", "save_checkpoint"]


def save_checkpoint(directory: str | os.PathLike, train, *, step: int | None = None, keep: int = 2) -> Path:
    """Write a training state (or any tree of arrays) as the newest checkpoint of a folder.

    The call returns when the checkpoint is on the disk. Older ones of the same tree are removed but for the last
    ``keep``; they are touched only after the new one is complete. Python's own numbers are stored as arrays.

    Args:
        directory: a folder for one run; made if it is missing.
        train: what to store: a `TrainState` (the position in the data is its ``step``: go on with
            ``minibatches(key, data, size, start=int(train.step))``), or a tree of your own.
        step: for the name; ``train.step`` by default, 0 for a tree that has none.
        keep: how many to keep, this one among them.

    Returns:
        The folder of this checkpoint.

    Raises:
        ModuleNotFoundError: without orbax.
        OSError: where it cannot be written, as on a full disk; the checkpoints before it are left as they were.
        ValueError: where the folder holds checkpoints of another tree, which would be removed one day.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> save_checkpoint(folder, {"w": jnp.arange(3.0)}, step=5).name
    'checkpoint-000000-step-5'
    >>> load_checkpoint(folder, {"w": jnp.zeros(3)})
    {'w': Array([0., 1., 2.], dtype=float32)}
    """
    step = getattr(train, "step", 0) if step is None else step
    step = require_whole("save_checkpoint", "step", int(step) if isinstance(step, jax.Array) else step, least=0)
    return write(directory, {"train": train}, step, {}, require_whole("save_checkpoint", "keep", keep))


def load_checkpoint(directory: str | os.PathLike, like, *, missing_ok: bool = False):
    """The newest good checkpoint of a folder, as a tree like ``like``.

    One that is torn, that lost a bit, or that holds another tree is passed over with a warning that says what is
    wrong, and the one before it is taken. A script with a loop of its own goes on after a kill by::

        train = init_train_state(net, optimizer, key, x[:64])
        train = load_checkpoint("run", train, missing_ok=True)
        for x_batch, y_batch in minibatches(key, (x, y), 64, epochs=10, start=int(train.step)):
            train, value = step(train, x_batch, y_batch)
            if train.step % 1000 == 0:
                save_checkpoint("run", train)

    It reads what `save_checkpoint` and `fit` wrote.

    Args:
        directory: of the run.
        like: a tree with the structure, shapes and dtypes that are expected: arrays, or ``jax.ShapeDtypeStruct``s.
            Arrays that are spread over several devices come back spread in the same way.
        missing_ok: return ``like`` where the folder has no checkpoint yet.

    Raises:
        ModuleNotFoundError: without orbax.
        FileNotFoundError: where there is no checkpoint, unless ``missing_ok``.
        ValueError: where there are some and none is good; it says of each one why, and of another model's which
            leaves differ.

    >>> load_checkpoint("no/such/folder", {"w": jnp.zeros(2)}, missing_ok=True)
    {'w': Array([0., 0.], dtype=float32)}
    """
    found = read_newest(as_directory("load_checkpoint", directory), {"train": like})
    if found is not None:
        return found.trees["train"]
    if missing_ok:
        return like
    raise FileNotFoundError(
        f"load_checkpoint found no checkpoint in {Path(directory)}; look for another folder, or pass missing_ok=True "
        "to begin anew."
    )


# ---- shared with fit -----------------------------------------------------------------------


class Checkpoint(NamedTuple):
    """What `read_newest` returns: the trees by name, what else was noted, where it lies, and what was passed over."""

    trees: dict[str, Any]
    notes: dict[str, Any]
    path: Path
    refused: tuple[Path, ...]


class RefusedError(ValueError):
    """A checkpoint that is not used, and why: the words after "The checkpoint ... "."""


_NAME = re.compile(r"checkpoint-(\d+)-step-(\d+)")
_LIST = "checkpoint.json"
_SAVING, _REMOVING = ".saving-", ".removing-"


def write(directory, trees: Mapping[str, Any], step: int, notes: Mapping[str, Any], keep: int = 2) -> Path:
    """Write named trees (all of their arrays, and ``notes``, JSON) as one checkpoint, and remove old ones."""
    ocp = require_orbax("save_checkpoint")
    directory = as_directory("save_checkpoint", directory)
    arrays = {name: _arrays(tree) for name, tree in trees.items()}
    leaves = {name: {path: _entry(path, a) for path, a in named.items()} for name, named in arrays.items()}
    older = checkpoints_in(directory)
    readable = {path: listed for path in older if (listed := _list_or_none(path)) is not None}
    same = [path for path, listed in readable.items() if not _differences(listed, {"train": leaves["train"]})]
    if readable and not same:
        differences = _differences(list(readable.values())[-1], leaves)
        raise ValueError(
            f"The folder {directory} holds checkpoints of another tree: {differences}. Pass another folder, or remove "
            "what is there."
        )
    sequence = 1 + int(_NAME.fullmatch(older[-1].name)[1]) if older else 0
    path = directory / f"checkpoint-{sequence:06d}-step-{step}"
    temporary = directory / (_SAVING + path.name)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _clear(directory)
        temporary.mkdir()
        _reserve(temporary / "reserved", sum(a.nbytes for named in arrays.values() for a in named.values()))
        stored = {name: {path: a for path, a in named.items() if a.size} for name, named in arrays.items()}
        with _orbax_is_quiet():
            ocp.save_checkpointables(temporary / "arrays", {name: named for name, named in stored.items() if named})
        text = json.dumps({"format": 1, "step": step, "leaves": leaves, "notes": notes})
        (temporary / _LIST).write_text(f"{text}\n{_hash(text.encode())}\n")
        _through_to_the_disk(temporary)
        temporary.rename(path)
        _sync(directory)
    except Exception as error:  # orbax's own kinds too: a full disk comes as a ValueError
        shutil.rmtree(temporary, ignore_errors=True)
        kept = f"the last good one is {older[-1].name}" if older else "there was none before it"
        reason = str(error).split(" [")[0].splitlines()[0] if str(error) else type(error).__name__
        raise OSError(
            f"The checkpoint of step {step} could not be saved in {directory}: {reason}. Make room there or pass "
            f"another folder; checkpoints that were saved before are as they were ({kept})."
        ) from error
    for old in same[: max(len(same) + 1 - keep, 0)]:
        with contextlib.suppress(OSError):  # the new one is safe; what is left over goes next time
            gone = old.rename(directory / (_REMOVING + old.name))
            shutil.rmtree(gone)
    return path


def read_newest(directory, trees: Mapping[str, Any], optional: tuple[str, ...] = ()) -> Checkpoint | None:
    """The newest good checkpoint with trees like these; ``None`` where there is none at all.

    A tree that ``optional`` names comes as a flat dict from paths to arrays, of whatever was stored.
    """
    refused: dict[Path, RefusedError] = {}
    listed = checkpoints_in(Path(directory).absolute())
    while listed:
        path = listed.pop()
        try:
            found, notes = _read(path, trees, optional)
        except RefusedError as error:
            if path.exists():
                refused[path] = error
            elif not listed:  # a run that goes on has removed it in the meantime, and written others
                listed = [new for new in checkpoints_in(Path(directory).absolute()) if new not in refused]
            continue
        if refused:
            warnings.warn(f"{_sentences(refused)} {path.name} is used instead.", stacklevel=3)
        return Checkpoint(found, notes, path, tuple(refused))
    if refused:
        raise ValueError(
            f"{_sentences(refused)} There is no other one; pass another folder, or remove what is there to begin anew."
        )
    return None


def _sentences(refused) -> str:
    """What is wrong with which checkpoints; the same thing is said once."""
    reasons: dict[str, list[Path]] = {}
    for path, error in refused.items():
        reasons.setdefault(str(error), []).append(path)
    return " ".join(
        f"The checkpoint {paths[0]}{''.join(f' (and {path.name})' for path in paths[1:])} {reason}."
        for reason, paths in reasons.items()
    )


def checkpoints_in(directory: Path) -> list[Path]:
    """The complete checkpoints of a folder, in the order in which they were written."""
    if not directory.is_dir():
        return []
    return sorted((p for p in directory.iterdir() if _NAME.fullmatch(p.name)), key=lambda p: int(p.name.split("-")[1]))


class Saver:
    """Writes checkpoints in a thread, one at a time, so that training goes on meanwhile.

    A checkpoint that cannot be saved is a warning: what is trained is not lost for it, and the next may succeed.
    """

    def __init__(self, directory):
        self._directory, self._pool, self._running = directory, ThreadPoolExecutor(1, "checkpoint"), None
        self._running: Future | None

    def start(self, trees, step, notes):
        """Wait for the one before; then save these trees, whose buffers nobody may donate."""
        self.wait()
        self._running = self._pool.submit(write, self._directory, trees, step, notes)

    def wait(self):
        """Until nothing is being saved."""
        running, self._running = self._running, None
        if running is not None:
            try:
                running.result()
            except OSError as error:
                warnings.warn(f"{error} Training goes on.", stacklevel=3)

    def close(self):
        """Wait, and end the thread."""
        try:
            self.wait()
        finally:
            self._pool.shutdown()


def rebuild(tree, arrays):
    """A tree like this one with these arrays; typed keys are typed again, what JAX would narrow stays with NumPy."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    found = []
    for path, leaf in leaves:
        a = arrays[jax.tree_util.keystr(path)]
        if jax.dtypes.canonicalize_dtype(a.dtype) == a.dtype:  # else 64 bits, which JAX has switched off
            a = jnp.asarray(a)
        found.append(jax.random.wrap_key_data(a, impl=_generator(leaf)) if _is_key(leaf) else a)
    return jax.tree_util.tree_unflatten(structure, found)


def as_directory(where: str, directory) -> Path:
    """The folder of a run; raises where it is no path, or that of a single checkpoint."""
    if not isinstance(directory, str | os.PathLike):
        raise TypeError(
            f"{where} expects the folder of a run, but {describe_any(directory)} came; the folder stands before the "
            "training state."
        )
    path = Path(directory).absolute()
    if _NAME.fullmatch(path.name):
        raise ValueError(
            f"{where} expects the folder of a run, but {path} is one of its checkpoints; pass {path.parent}."
        )
    return path


def make_directory(where: str, directory) -> None:
    """Make the folder of a run, before anything is computed that could not be saved there."""
    path = as_directory(where, directory)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"{where} cannot save checkpoints in {path}: {error.strerror}. Pass another folder.") from error


def require_orbax(where: str):
    """The library that writes arrays; a sentence where it is missing."""
    try:
        from orbax.checkpoint import v1 as ocp
    except ImportError as error:
        raise ModuleNotFoundError(
            f"{where} writes checkpoints with orbax (0.12 or newer), which is not installed; "
            "install it with: pip install jaxblocks[train]",
            name="orbax",
        ) from error
    if jax.process_count() > 1:
        raise NotImplementedError(f"{where} works in one process, but there are {jax.process_count()}.")
    return ocp


# ---- reading -------------------------------------------------------------------------------


def _read(path, trees, optional):
    """The trees of one checkpoint, every leaf checked against its hash."""
    listed = _read_list(path)
    stored = listed["leaves"]
    wanted = {name: {place: _described(a) for place, a in _named(tree).items()} for name, tree in trees.items()}
    if differences := _differences(listed, wanted):
        raise RefusedError(f"is of another model: {differences}")
    names = [*trees, *(name for name in optional if name in stored)]
    likes = {name: _named(trees[name]) if name in trees else {} for name in names}
    abstract = {
        name: {p: _abstract(e, likes[name].get(p)) for p, e in stored[name].items() if 0 not in e["shape"]}
        for name in names
    }
    try:
        with _orbax_is_quiet():
            ocp = require_orbax("load_checkpoint")
            loaded = ocp.load_checkpointables(path / "arrays", {n: a for n, a in abstract.items() if a})
    except ModuleNotFoundError:
        raise
    except Exception as error:  # whatever a damaged file makes of its reader
        raise RefusedError("is damaged: its arrays cannot be read") from error
    arrays = {}
    for name in names:
        arrays[name] = {}
        for place, entry in stored[name].items():
            a = loaded.get(name, {}).get(place)
            a = np.zeros(entry["shape"], entry["dtype"]) if a is None else a
            if _entry(place, a) != entry:
                raise RefusedError(f"is damaged: {name}{place} is not what was saved, its hash differs")
            arrays[name][place] = a
    found = {name: rebuild(trees[name], arrays[name]) if name in trees else arrays[name] for name in names}
    return found, listed["notes"]


def _read_list(path) -> dict:
    try:
        text, own, rest = (path / _LIST).read_text().split("\n")
        if own != _hash(text.encode()) or rest:
            raise ValueError("its hash differs")
        return json.loads(text)
    except (OSError, ValueError) as error:
        raise RefusedError(f"is damaged: its {_LIST} is missing, cut short or changed") from error


def _list_or_none(path):
    try:
        return _read_list(path)
    except RefusedError:
        return None


def _shapes(leaves):
    return {path: (tuple(entry["shape"]), entry["dtype"]) for path, entry in leaves.items()}


def _differences(listed, wanted) -> str:
    """In which leaves a checkpoint differs from what is wanted; empty if in none."""
    found = []
    for name, leaves in wanted.items():
        stored, here = _shapes(listed["leaves"].get(name, {})), _shapes(leaves)
        for place in [*stored, *(p for p in here if p not in stored)]:
            if place not in here:
                found.append(f"{name}{place}, {_words(stored[place])}, is in the checkpoint only")
            elif place not in stored:
                found.append(f"{name}{place}, {_words(here[place])}, is not in the checkpoint")
            elif stored[place] != here[place]:
                found.append(
                    f"{name}{place} is {_words(stored[place])} in the checkpoint and {_words(here[place])} here"
                )
    more = f", and {len(found) - 4} more leaves differ" if len(found) > 4 else ""
    return "; ".join(found[:4]) + more


def _words(described):
    shape, dtype = described
    return f"{dtype} {shape}"


def _abstract(entry, like):
    """What orbax needs to know of a leaf: a NumPy array of its kind, or on which devices to spread it."""
    if _is_spread(like):
        return jax.ShapeDtypeStruct(like.shape, like.dtype, sharding=like.sharding)
    return np.empty(entry["shape"], jnp.dtype(entry["dtype"]))


# ---- writing -------------------------------------------------------------------------------


def _named(tree) -> dict:
    """Every leaf by its path, typed keys by their data."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): _key_data(leaf) if _is_key(leaf) else leaf for path, leaf in leaves}


def _arrays(tree) -> dict:
    """The same with arrays of NumPy, but for those that are spread over devices."""
    return {path: a if _is_spread(a) else _host(path, a) for path, a in _named(tree).items()}


def _host(path, leaf):
    a = np.asarray(leaf)
    if a.dtype.kind in "OUSMm":
        raise TypeError(f"A checkpoint holds arrays, but its leaf {path} is {describe_any(leaf)}; leave it out.")
    return a


def _is_spread(leaf) -> bool:
    return isinstance(leaf, jax.Array) and len(leaf.sharding.device_set) > 1


def _is_key(leaf) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _generator(key):
    """The implementation of a typed key, or of the shape of one."""
    found = []
    jax.eval_shape(lambda key: found.append(jax.random.key_impl(key)), key)
    return found[0]


def _key_data(key):
    return jax.random.key_data(key) if isinstance(key, jax.Array) else jax.eval_shape(jax.random.key_data, key)


def _described(leaf) -> dict:
    leaf = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    return {"shape": list(leaf.shape), "dtype": str(leaf.dtype)}


def _entry(path, a) -> dict:
    data = np.ascontiguousarray(np.asarray(a)).reshape(-1).view(np.uint8)
    return {**_described(a), "sha256": _hash(data)}


def _hash(data) -> str:
    return hashlib.sha256(data).hexdigest()


def _reserve(path, size: int):
    """Ask for the room beforehand: orbax may wait for minutes where a disk is full."""
    with open(path, "wb") as file:
        try:
            if size and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):  # file systems that reserve nothing
                raise
    path.unlink()


def _through_to_the_disk(folder):
    for place, folders, files in os.walk(folder):
        for name in (*files, *folders):
            _sync(os.path.join(place, name))
    _sync(folder)


def _sync(path):
    with contextlib.suppress(PermissionError):  # Windows opens no folders
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _clear(directory):
    """Remove what a kill has left in the middle of writing or of removing."""
    for path in directory.iterdir():
        if path.name.startswith((_SAVING, _REMOVING)):
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _orbax_is_quiet():
    """Without the tracebacks that its threads log; what went wrong is raised all the same."""
    logs = [logging.getLogger(name) for name in ("absl", "asyncio")]
    quiet = lambda record: False
    for log in logs:
        log.addFilter(quiet)
    try:
        yield
    finally:
        for log in logs:
            log.removeFilter(quiet)
