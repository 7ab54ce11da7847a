"""Training on data that do not fit in memory: files that are mapped, grain for order and reading ahead, checkpoints.

`jaxblocks.minibatches` is for arrays in memory (or mapped, on one machine). Where reading, decoding and augmentation
take longer than a step, a pipeline library does it in threads or processes: grain, whose place in the data is a
number, as the step is. So a run that is stopped in the middle, or killed, goes on with the batches that it would have
seen:

    1. writes   x.npy and y.npy, a regression on 64 inputs, in parts, never whole in memory
    2. trains   half of the steps, and stops
    3. goes on  from the checkpoint, to the end
    4. compares the params with those of a run that was not stopped: the same bits

Reaches an explained variance above 0.9 on rows that were not trained on, in about half a minute on two CPU cores
(100,000 rows, 26 MB; only the batches in flight are in memory). Needs grain (pip install grain) and orbax
(pip install jaxblocks[train]).

    python examples/stream_data.py --out out/stream_data
"""

import argparse
import shutil
from pathlib import Path

import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxblocks as jb
from jaxblocks.training import init_train_state, load_checkpoint, prefetch, save_checkpoint, train_step

NET = jb.MLP(64, 64, 1, activation=jnp.tanh)
OPTIMIZER = optax.adam(optax.cosine_decay_schedule(3e-3, 2000))


def write_data(folder, rows, part=10_000):
    """x of 64 features and y = sin of their weighted sum, in two files, part by part."""
    draw = np.random.default_rng(0)
    weights = draw.normal(size=(64, 1)) / 8
    x_file = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (rows, 64))
    y_file = np.lib.format.open_memmap(folder / "y.npy", "w+", np.float32, (rows, 1))
    for start in range(0, rows, part):
        x = draw.normal(size=(min(part, rows - start), 64))
        x_file[start : start + part] = x
        y_file[start : start + part] = np.sin(2 * x @ weights)


class Rows:
    """A source for grain: how many there are, and each by its number."""

    def __init__(self, folder, first, last):
        self.x, self.y = (np.load(folder / f"{name}.npy", mmap_mode="r")[first:last] for name in "xy")

    def __len__(self):
        return len(self.x)

    def __getitem__(self, row):
        return np.array(self.x[row]), np.array(self.y[row])


def batches(source, batch_size, start):
    """Shuffled anew in each epoch, without end, from batch number ``start`` on."""
    dataset = grain.MapDataset.source(source).seed(0).shuffle().repeat().batch(batch_size, drop_remainder=True)
    iterator = iter(dataset.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=8)))
    iterator.set_state({"next_index": start})
    return iterator


def train_until(folder, source, stop, batch_size):
    """Steps from the newest checkpoint of the folder, or from the beginning, until ``stop``."""
    shapes = jax.ShapeDtypeStruct((batch_size, 64), jnp.float32)
    ts = init_train_state(jax.random.key(0), NET, OPTIMIZER, shapes)
    ts = load_checkpoint(folder, ts, missing_ok=True)
    step = train_step(NET, jb.mse, OPTIMIZER)
    begin = int(ts.step)
    stream = prefetch(batches(source, batch_size, begin))
    for number, (x, y) in zip(range(begin + 1, stop + 1), stream, strict=False):
        ts, value = step(ts, x, y)
        if number % 500 == 0 or number == stop:
            print(f"step {number}, loss {value:.4f}")
            save_checkpoint(folder, ts)
    return ts


def main(argv=None):
    """Write, train in two parts, train in one, compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000, help="how many are written; a tenth is held out")
    parser.add_argument("--steps", type=int, default=2000, help="of training")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--out", type=Path, default=Path("out/stream_data"), help="folder of data and checkpoints")
    args = parser.parse_args(argv)
    out, rows, steps, batch_size = args.out, args.rows, args.steps, args.batch
    if min(steps, batch_size) < 2 or rows - rows // 10 < batch_size:
        parser.error("at least 2 steps, batches of 2, and rows for a batch are needed")
    for name in ("in two parts", "in one"):  # begin anew
        shutil.rmtree(out / name, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    write_data(out, rows)
    held_out = max(rows // 10, 1)
    source = Rows(out, held_out, rows)
    train_until(out / "in two parts", source, steps // 2, batch_size)
    ts = train_until(out / "in two parts", source, steps, batch_size)
    straight = train_until(out / "in one", source, steps, batch_size)
    same = jax.tree.map(lambda a, b: bool((a == b).all()), ts.params, straight.params)
    x, y = (np.load(out / f"{name}.npy", mmap_mode="r")[:held_out] for name in "xy")
    error = jb.evaluate(NET, ts.params, (), (x, y), {"squared error": jb.mse})["squared error"]
    explained = 1 - error / float(y.var())
    print(f"explained variance on {held_out} rows that were held out: {explained:.3f}")
    print(f"the same bits as without a stop: {all(jax.tree.leaves(same))}")
    return {"explained": explained, "same": all(jax.tree.leaves(same))}


if __name__ == "__main__":
    main()
