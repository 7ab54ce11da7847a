"""Reading a checkpoint against other libraries: a Llama, made on the spot.

python benchmarks/weights.py [--layers 20] [--dtype bfloat16] [--rounds 5] [part of a name ...]

`load` reads a folder of Hugging Face in bfloat16, whose kernels are transposed, and so does transformers, whose params
are copied once, since it maps the file into memory. Rounds alternate; the files are in the cache of the operating
system; printed are medians of the time on the clock and of the processors, and ratios to `np.fromfile` (with
quartiles).
"""

import argparse
import importlib.util
import os
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file
from timing import begin_peak, chosen, in_turns, resident_bytes

from jaxblocks import interop

CONFIG = dict(model_type="llama", vocab_size=8192, hidden_size=1024, intermediate_size=2816, num_attention_heads=16)


def both_clocks() -> np.ndarray:
    """Seconds on the clock and of the processors."""
    return np.array([time.perf_counter(), time.process_time()])


def by_transformers(folder: str, dtype: str):
    """The params of a model of transformers, copied."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    return [param.clone() for param in model.parameters()]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--dtype", default="bfloat16", help="the dtype of the params")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("names", nargs="*", help="parts of the names of rows; all by default")
    options = parser.parse_args()
    config = CONFIG | dict(num_hidden_layers=options.layers, tie_word_embeddings=True)
    net = interop.build(config)
    inputs = jnp.zeros((1, 1), jnp.int32)
    shapes = jax.eval_shape(net.init, jax.random.key(0), inputs)
    half = np.array(0.5, jnp.bfloat16)
    with tempfile.TemporaryDirectory() as folder:
        params = jax.tree.map(lambda x: np.broadcast_to(half, x.shape), shapes)  # takes no memory
        interop.save(folder, net, params, like=config)
        file = Path(folder) / "model.safetensors"
        os.sync()
        load = lambda: jax.block_until_ready(interop.load(folder, dtype=options.dtype).params)
        calls = {
            "np.fromfile": lambda: np.fromfile(file, np.uint8),
            "load": load,
            "safetensors.numpy": lambda: load_file(file),
        }
        if importlib.util.find_spec("transformers"):
            calls["transformers, copied"] = lambda: by_transformers(folder, options.dtype)
        before = resident_bytes("VmRSS")
        begin_peak()
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(load()))
        peak = resident_bytes("VmHWM")
        print(f"file {file.stat().st_size / 1e9:.2f} GB, params {size / 1e9:.2f} GB in {options.dtype}")
        print(f"peak beyond the memory before / params: {(peak - before) / size:.2f}")
        wanted = dict.fromkeys(["np.fromfile", *chosen(calls, options.names)])
        seconds = in_turns({name: calls[name] for name in wanted}, rounds=options.rounds, clock=both_clocks)
    for name, values in seconds.items():
        clock, processors = np.median(values, 0)
        relative = np.percentile(values / seconds["np.fromfile"], [25, 50, 75], axis=0)
        by_clock, by_processors = ("{1:.2f} ({0:.2f} to {2:.2f})".format(*column) for column in relative.T)
        print(
            f"{name:34s} {clock:.3f} s, {processors:.3f} of processors; ratios {by_clock}, {by_processors}", flush=True
        )


if __name__ == "__main__":
    main()
