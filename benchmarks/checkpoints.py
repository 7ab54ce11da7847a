"""Checkpoints: the time of a save beside orbax alone, how long training is blocked, and the peak of the memory.

    python benchmarks/checkpoints.py [--params 1e8] [--rounds 5] [time] [init] [save] [load] [fit]

Times are medians (quartiles) over alternating rounds, of a tree of random numbers. The memory is the peak of the
resident memory beyond that of the process before, relative to the bytes of a training state with Adam (three times
those of its params); each is measured in a process of its own. Linux only.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from orbax.checkpoint import v1 as ocp
from timing import begin_peak, in_turns, ratio, resident_bytes

import jaxblocks as jb
from jaxblocks.training import checkpoints, load_checkpoint, save_checkpoint
from jaxblocks.training.checkpoint.resume import Saver

PARTS = ("time", "init", "save", "load", "fit")
OPTIMIZER = optax.adam(1e-3)


def net_and_data(params: float):
    """Eight layers with so many params, and a batch."""
    width = int((params / 8) ** 0.5)
    return jb.MLP(*[width] * 8), np.ones((16, width), np.float32)


def times(params: float, rounds: int, folder: Path) -> None:
    """Print the time of saves, and that of the thread of the steps while a checkpoint is written."""
    keys = jax.random.split(jax.random.key(0), 8)
    tree = {f"layer_{i}": jax.random.normal(key, (int(params / 8),)) for i, key in enumerate(keys)}
    copy = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))
    number = iter(range(10**6))

    def alone():
        path = folder / f"orbax-{next(number)}"
        ocp.save_checkpointables(str(path), {"ts": tree})
        shutil.rmtree(path)

    def not_compressed():
        options = ocp.Context()
        options.array.saving.use_compression = False
        with options:
            alone()

    def ours():
        save_checkpoint(folder / "ours", tree, keep=1)

    calls = {"orbax": alone, "orbax, not compressed": not_compressed, "jaxblocks": ours, "copy": lambda: copy(tree)}
    seconds = in_turns(calls, rounds=rounds)
    (folder / "saver").mkdir()
    blocked = []
    for _ in range(rounds):
        saver = Saver(folder / "saver", 1)
        start = time.perf_counter()
        saver.start({"ts": tree}, 0, {})
        blocked.append(time.perf_counter() - start)
        saver.close()
    for name, values in seconds.items():
        low, middle, high = np.percentile(values, [25, 50, 75])
        print(f"{name:22s} {middle:.3f} s ({low:.3f} to {high:.3f})")
    print("save / orbax alone: {:.2f} ({:.2f} to {:.2f})".format(*ratio(seconds, "jaxblocks", "orbax")))
    low, middle, high = np.percentile(blocked, [25, 50, 75]) / np.median(seconds["copy"])
    print(f"start of a checkpoint of `fit` / one copy: {middle:.3f} ({low:.3f} to {high:.3f})", flush=True)


def peak(part: str, params: float, folder: Path) -> None:
    """Print the peak of the memory of one part, in this process."""
    net, x = net_and_data(params)
    small, y = net_and_data(8 * 64)
    train(small, y, folder / "small")  # imports, and starts threads
    begin_peak()
    before = resident_bytes("VmRSS")
    begin = lambda: jax.block_until_ready(jb.init_train_state(jax.random.key(0), net, OPTIMIZER, x))
    if part == "init":
        size = nbytes(begin())
    elif part == "save":
        ts = begin()
        size = nbytes(ts)
        begin_peak()
        save_checkpoint(folder / "run", ts)
    elif part == "load":
        save_checkpoint(folder / "run", begin())
        subprocess.run([sys.executable, __file__, "loading", f"--params={params}", f"--folder={folder}"], check=True)
        return
    elif part == "loading":
        ts = begin()
        size = nbytes(ts)
        begin_peak()
        ts = load_checkpoint(folder / "run", ts)
    else:
        size = nbytes(train(net, x, folder / "run"))
    print(f"{part:8s} {(resident_bytes('VmHWM') - before) / size:.2f} states of {size / 1e9:.2f} GB", flush=True)


def train(net, x, folder: Path):
    """Six steps; a checkpoint after every second one."""
    options: dict[str, Any] = dict(key=jax.random.key(0), steps=6, batch_size=len(x), progress=False)
    return jb.fit(net, jb.mse, OPTIMIZER, (x, x), callbacks=[checkpoints(folder, every=2)], **options).ts


def nbytes(tree) -> int:
    """The bytes of all leaves."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--params", type=float, default=1e8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)  # of a process that this one starts
    parser.add_argument("parts", nargs="*", default=PARTS)
    options = parser.parse_args()
    if options.folder is not None:
        peak(options.parts[0], options.params, options.folder)
        return
    for part in options.parts:
        with tempfile.TemporaryDirectory() as folder:
            if part == "time":
                times(options.params, options.rounds, Path(folder))
            else:
                command = [sys.executable, __file__, part, f"--params={options.params}", f"--folder={folder}"]
                subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
