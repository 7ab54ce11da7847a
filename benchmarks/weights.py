"""Reading a checkpoint against reading its file: a Llama in bfloat16, made on the spot.

python benchmarks/weights.py [--layers 36] [--dtype bfloat16]
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxblocks import interop

CONFIG = dict(model_type="llama", vocab_size=8192, hidden_size=1024, intermediate_size=2816, num_attention_heads=16)


def seconds(function, rounds=3) -> np.ndarray:
    """The least time on the clock and of the processors."""
    times = []
    for _ in range(rounds):
        start = np.array([time.perf_counter(), time.process_time()])
        function()
        times.append(np.array([time.perf_counter(), time.process_time()]) - start)
    return np.min(times, 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--dtype", default="bfloat16")
    options = parser.parse_args()
    config = CONFIG | dict(num_hidden_layers=options.layers, tie_word_embeddings=True)
    net = interop.build(config)
    shapes = jax.eval_shape(net.init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    with tempfile.TemporaryDirectory() as folder:
        params = jax.tree.map(lambda x: np.broadcast_to(jnp.bfloat16(0.5), x.shape), shapes)  # takes no memory
        interop.save(folder, net, params, like=config)
        file = Path(folder) / "model.safetensors"
        size = file.stat().st_size
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        load = seconds(lambda: jax.block_until_ready(interop.load(folder, dtype=options.dtype).params))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        alone = seconds(lambda: np.fromfile(file, np.uint8))
        print(
            f"{size / 1e9:.2f} GB, {options.dtype}: peak {peak * 1024 / 1e9:.2f} GB, {before * 1024 / 1e9:.2f} before"
        )
        print(f"load {load.round(2)} s, file {alone.round(2)} s (clock, processors)")
        print("load / np.fromfile: {:.2f} on the clock, {:.2f} of the processors".format(*load / alone))
