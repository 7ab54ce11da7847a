"""Reading the newest checkpoint that is complete, undamaged, and of the wanted tree."""

import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxblocks.checks.errors import public_name, require
from jaxblocks.checks.system import as_path
from jaxblocks.checks.terminal import warn
from jaxblocks.training.checkpoint.array_files import orbax_is_quiet, require_orbax, system_error
from jaxblocks.training.checkpoint.leaves import abstract_leaf, description_in, description_of, named_leaves, rebuild
from jaxblocks.training.checkpoint.listing import RejectedError, differences_of, place_of, read_list
from jaxblocks.training.checkpoint.names import checkpoints_in
from jaxblocks.training.checkpoint.shards import equals_hashes
from jaxblocks.training.processes import are_several, in_all, is_first, largest, on_first

__all__ = ["Checkpoint", "read_newest"]


_OTHER = "is of another net or optimizer"


class Checkpoint(NamedTuple):
    """The result of `read_newest`: the trees by name, the notes, and the paths of rejected checkpoints."""

    trees: dict[str, Any]
    notes: Any
    rejected: tuple[Path, ...]


def read_newest(directory, trees: Mapping[str, Any], optional: Mapping[str, Any]) -> Checkpoint | None:
    """The newest undamaged checkpoint with trees like these; ``None`` if there is no checkpoint.

    A tree with a name in ``optional`` is returned as a flat dict from paths to the stored arrays; those that fit one of
    the tree given there are read to its devices.
    """
    with _explained(directory):
        return _newest(as_path(directory).absolute(), trees, optional)


@contextlib.contextmanager
def _explained(directory):
    """Raise what the system says of files that it cannot read as a sentence: they may be undamaged."""
    try:
        yield
    except OSError as error:
        kind = type(error) if type(error).__module__ == "builtins" else OSError  # PermissionError remains one
        explained = kind(
            f"{public_name()} expected to read the checkpoints in {directory}, got {error.strerror or error}; "
            "remove the cause and make the same call again, since none of them was changed."
        )
        explained.errno = error.errno
        raise explained from error


def _newest(directory: Path, trees, optional) -> Checkpoint | None:
    rejected: dict[Path, RejectedError] = {}
    listed = on_first(lambda: checkpoints_in(directory))
    # From the newest to the oldest.
    while listed:
        path = listed.pop()
        try:
            found, notes = _read(path, trees, optional)
        except RejectedError as error:
            if on_first(path.exists):
                rejected[path] = error
            elif not listed:  # another process has removed it and written others
                listed = on_first(lambda: checkpoints_in(directory))
                listed = [new for new in listed if new not in rejected]
            continue
        # Reported only where another one is used; if all are rejected, the error below states the reasons.
        if rejected and is_first():
            warn(f"{path.name} is used instead of {_reasons(rejected)}.")
        return Checkpoint(found, notes, tuple(rejected))
    if rejected:
        others = [str(error).startswith(_OTHER) for error in rejected.values()]
        expected = f"{'a' if all(others) else 'an undamaged'} checkpoint of this tree in {directory}"
        repair = "pass another directory, or remove these to begin a new run"
        if any(others):
            repair = "load_checkpoint(directory, params, partial=True) reads the params that fit; else " + repair
        require(False, expected, _reasons(rejected), repair)
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


def _read(path, trees, optional):
    """The trees of one checkpoint; every leaf is compared with its hash."""
    listed = on_first(lambda: read_list(path))
    stored = listed["leaves"]
    wanted = {
        name: {place: description_of(a) for place, a in named_leaves(tree).items()} for name, tree in trees.items()
    }
    # Compared before the arrays are read, so that another model is reported at once.
    if differences := differences_of(listed, wanted):
        raise RejectedError(f"{_OTHER}: {differences}")
    names = [*trees, *(name for name in optional if name in stored)]
    likes = {name: named_leaves(trees[name] if name in trees else optional[name]) for name in names}
    for place, like in ((place_of(name, path), like) for name in trees for path, like in likes[name].items()):
        _check_sharding(place, like)
    loaded = in_all(lambda: _load(path / "arrays", {name: stored[name] for name in names}, likes))
    leaves = [(name, place) for name in names for place in stored[name]]
    intact = [_is_intact(loaded[name][place], stored[name][place]) for name, place in leaves]
    # The maximum over the processes, so that all of them reject the checkpoint where one finds a damaged shard.
    damaged = largest([0 if all(intact) else 1 + intact.index(False)])[0]
    if damaged:
        place = place_of(*leaves[damaged - 1])
        raise RejectedError(f"is damaged: the hash of {place} differs from the one that was saved")
    found = {name: rebuild(trees[name], loaded[name]) if name in trees else loaded[name] for name in names}
    return found, listed["notes"]


def _load(folder, stored, likes) -> dict[str, dict[str, Any]]:
    """The arrays of named trees, read by each process for itself; an ``OSError`` where the system cannot read them."""
    ocp, loaded, handled = require_orbax(), {}, sys.exception()
    alone = ocp.Context()
    if are_several():  # each process reads for itself: an error in one of them stops no other one
        alone.multiprocessing.primary_host = jax.process_index()
        alone.multiprocessing.active_processes = {jax.process_index()}
    try:
        abstract = {
            name: {p: abstract_leaf(e, likes[name].get(p)) for p, e in entries.items() if 0 not in e["shape"]}
            for name, entries in stored.items()
        }
        with alone, orbax_is_quiet():
            for name, leaves in abstract.items():  # one by one: where one fails, orbax leaves others behind
                loaded |= ocp.load_checkpointables(str(folder), {name: leaves}) if leaves else {}
    except Exception as error:  # reading a damaged file may raise any exception
        raise system_error(error, folder, handled) or RejectedError("is damaged: its arrays cannot be read") from error
    empty = lambda entry: np.zeros(entry["shape"], jnp.dtype(entry["dtype"]))
    return {
        name: {p: empty(e) if 0 in e["shape"] else loaded[name][p] for p, e in entries.items()}
        for name, entries in stored.items()
    }


def _is_intact(a, entry) -> bool:
    found, whole = entry["sha256"], ",".join(f"0:{size}" for size in entry["shape"])
    return description_of(a) == description_in(entry) and equals_hashes(
        a, found if isinstance(found, dict) else {whole: found}
    )


def _check_sharding(place: str, like: Any) -> None:
    sharding = getattr(like, "sharding", None)
    if sharding is None:
        return
    try:
        sharding.shard_shape(like.shape)
    except ValueError:
        expected = f"a sharding of {place} that divides its shape {like.shape}"
        require(False, expected, str(sharding), "choose another axis, or leave this leaf unsharded")
