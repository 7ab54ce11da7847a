"""Checkpoints: a training state on disk, safe against killed processes, full disks and flipped bits.

Arrays are written and read by orbax (``pip install jaxblocks[train]``); this folder adds atomic writes and integrity
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

from pathlib import Path
from typing import Any, Literal, NamedTuple, overload

import jax
from jaxtyping import Array, Integer

from jaxblocks.ad.programs.arguments import Tree
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import NonNegativeInt, PositiveInt, checked
from jaxblocks.checks.system import as_path
from jaxblocks.checks.values import reject_traced
from jaxblocks.core.pairs import Layer, StatefulLayer
from jaxblocks.core.selection import paths
from jaxblocks.training.checkpoint.array_files import require_orbax
from jaxblocks.training.checkpoint.leaves import check_tree, description_of, named_leaves, rebuild
from jaxblocks.training.checkpoint.lock import lock_of_run
from jaxblocks.training.checkpoint.names import as_directory
from jaxblocks.training.checkpoint.reading import read_newest
from jaxblocks.training.checkpoint.writing import begin_write
from jaxblocks.training.processes import in_all

__all__ = ["RestoreReport", "load_checkpoint", "save_checkpoint"]


class RestoreReport(NamedTuple):
    """What ``load_checkpoint(..., partial=True)`` restored, by the paths of leaves.

    Args:
        restored: read from the checkpoint.
        missing: not in the checkpoint, and as in ``like``.
        different: of another shape or dtype in the checkpoint, and as in ``like``.
        unused: in the checkpoint only.

    >>> RestoreReport(("kernel",), ("bias",), (), ())
    1 of 2 leaves restored; missing: bias
    """

    restored: tuple[str, ...]
    missing: tuple[str, ...]
    different: tuple[str, ...]
    unused: tuple[str, ...]

    def __repr__(self):
        wanted = len(self.restored) + len(self.missing) + len(self.different)
        others = {name: places for name, places in self._asdict().items() if places and name != "restored"}
        lines = [f"; {name}: {', '.join(map(str, places))}" for name, places in others.items()]
        return f"{len(self.restored)} of {wanted} leaves restored{''.join(lines)}"


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
    check_tree(ts)
    # A training state has its own step; other trees have the given one or 0.
    number = int(getattr(ts, "step", 0) if step is None else step)
    with lock_of_run(path):
        return in_all(begin_write(path, {"ts": ts}, number, {}, keep))


@overload
def load_checkpoint(
    directory: Any, like: Tree, *, missing_ok: bool = False, partial: Literal[False] = False
) -> Tree: ...
@overload
def load_checkpoint(
    directory: Any, like: Tree, *, missing_ok: bool = False, partial: Literal[True]
) -> tuple[Tree, RestoreReport]: ...
@checked
def load_checkpoint(
    directory: Any, like: Tree, *, missing_ok: bool = False, partial: bool = False
) -> Tree | tuple[Tree, RestoreReport]:
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
        partial: read the leaves that the newest undamaged checkpoint has with the same path, shape and dtype, and keep
            the values of ``like`` for the others. The result is a pair of the tree and a `RestoreReport`. ``like`` may
            be the params alone, also for the checkpoint of a training state. A net with a new head starts from the
            params and the state of the old one by::

                old, report = load_checkpoint("run", ts, partial=True)
                ts = ts._replace(params=old.params, state=old.state)

            ``old`` itself has the step, the key and the counts of the optimizer of the old run: with it, a learning
            rate that decays continues at its end.

    Raises:
        ModuleNotFoundError: without orbax.
        FileNotFoundError: if there is no checkpoint, unless ``missing_ok``.
        TypeError: for traced arrays in ``like``.
        ValueError: if there are checkpoints and all are damaged or of another tree; the message states the reason for
            each one, and the leaves that differ. With ``partial``, if no leaf fits.
        OSError: if the system cannot read the files (no access, too many open files), with its words. It is no damage:
            nothing is skipped.

    >>> load_checkpoint("no/such/folder", {"w": jnp.zeros(2)}, missing_ok=True)
    {'w': Array([0., 0.], dtype=float32)}
    """
    if isinstance(like, (Layer, StatefulLayer)):
        repair = "pass what net.init or init_train_state returns; shapes suffice: jax.eval_shape(net.init, key, x)"
        require(False, "like to be a tree of arrays", f"a {type(like).__name__}", repair, error=TypeError)
    reject_traced(like)
    whole, optional = ({}, {"ts": like}) if partial else ({"ts": like}, {})
    found = read_newest(as_directory(directory), whole, optional)
    if found is not None:
        return _merged(like, found.trees.get("ts", {})) if partial else found.trees["ts"]
    if not missing_ok:
        repair = "pass another directory, or missing_ok=True to begin a new run"
        require(False, "a checkpoint", f"none in {as_path(directory)}", repair, error=FileNotFoundError)
    return (like, RestoreReport((), tuple(paths(like)), (), ())) if partial else like


def _merged(like, stored):
    """The tree with the stored leaves that fit, and the report."""
    wanted, within = named_leaves(like), "params/"
    of_params = {path.removeprefix(within): a for path, a in stored.items() if path.startswith(within)}
    if len(of_params.keys() & wanted.keys()) > len(stored.keys() & wanted.keys()):  # like is the params alone
        stored = of_params
    missing = tuple(place for place in wanted if place not in stored)
    fits = lambda place: description_of(wanted[place]) == description_of(stored[place])
    different = tuple(place for place in wanted if place in stored and not fits(place))
    kept, leaves = {*missing, *different}, []
    expected, got = f"a checkpoint with leaves of like, such as {min(wanted, default='')}", f"{', '.join(stored)[:200]}"
    repair = "pass a tree with the same paths, shapes and dtypes: the params or the state that init_train_state returns"
    require(len(kept) < len(wanted), expected, got, repair)
    for place, leaf in zip(wanted, jax.tree.leaves(like), strict=True):
        if place in kept:
            repair = "pass arrays, as init_train_state returns them, in place of shapes"
            is_array = not isinstance(leaf, jax.ShapeDtypeStruct)
            require(is_array, f"a value of {place}, which the checkpoint lacks", leaf, repair, error=TypeError)
            leaves.append(leaf)
        else:
            leaves += rebuild([leaf], {"0": stored[place]})
    restored = tuple(place for place in wanted if place not in kept)
    unused = tuple(place for place in stored if place not in wanted)
    return jax.tree.unflatten(jax.tree.structure(like), leaves), RestoreReport(restored, missing, different, unused)
