"""The same training script on one device, on many, and in several processes: a small
GPT-2 on the Python manual.

    python examples/train_on_many_devices.py                # the devices of JAX
    python examples/train_on_many_devices.py --devices 8    # eight virtual ones
    python examples/train_on_many_devices.py --processes 2  # connected by gloo

Only the mesh differs: each batch is split over all devices, and so are the params and
the state of Adam. The held-out loss at the end is the same except for rounding: after
100 steps 2.6386 nats per character in each of the three runs (Python 3.11). Each takes
about a minute on two CPU cores.

Pass `--checkpoint-dir` to make a run resumable: after an interruption, any of the three
commands continues it, since a checkpoint can be read on another number of devices and
processes. On a cluster, start the script once on each host with
`jax.distributed.initialize()` in place of the function `connect`; `train` stays as it
is."""

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import optax

import jaxblocks as jb
from jaxblocks.datasets import standard_library_text
from jaxblocks.models import GPT2
from jaxblocks.sharding import fully_sharded
from jaxblocks.text import CharTokenizer


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=(
            "Train a small GPT-2 on one device, on many, or in several processes."
        )
    )
    add = parser.add_argument
    add(
        "--devices",
        type=int,
        default=None,
        help="simulate this number of devices, in each process, on the CPU",
    )
    add(
        "--processes",
        type=int,
        default=1,
        help="start this number of processes on this machine",
    )
    add("--steps", type=int, default=100, help="training steps, at least 2")
    add(
        "--batch",
        type=int,
        default=32,
        help="size of the whole batch, a multiple of the number of devices",
    )
    add("--context", type=int, default=64, help="context length in characters")
    add("--layers", type=int, default=2, help="layers of the transformer")
    add("--features", type=int, default=64, help="width of the transformer")
    add(
        "--characters",
        type=int,
        default=None,
        help="use only this many characters of the text",
    )
    add(
        "--checkpoint-dir",
        type=Path,
        default=None,
        help="checkpoint directory; makes the run resumable",
    )
    # the number of a process that `launch` started
    add("--process", type=int, default=None, help=argparse.SUPPRESS)
    add("--port", type=int, default=None, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.steps < 2:
        parser.error(
            f"expected --steps >= 2, got {args.steps}; the first steps raise the "
            f"learning rate"
        )
    if args.processes > 1 and args.process is None:
        return launch(sys.argv[1:] if argv is None else argv, args.processes)
    simulate(args)
    if args.process is not None:
        connect(args)
    return train(args, jax.make_mesh((jax.device_count(),), ("data",)))


def train(args, mesh):
    """The held-out loss after training on the devices of a mesh; all processes call
    this.
    """
    text = standard_library_text()[: args.characters]
    tokenizer = CharTokenizer(text)
    pieces = np.lib.stride_tricks.sliding_window_view(
        tokenizer.encode(text), args.context + 1
    )
    held_out = pieces[-len(pieces) // 10 :: args.context]
    pieces = pieces[: -len(pieces) // 10 - args.context]
    net = GPT2(
        vocab_size=tokenizer.vocab_size,
        max_length=args.context,
        layers=args.layers,
        heads=4,
        features=args.features,
        dropout=0.1,
    )
    optimizer = optax.adamw(
        optax.warmup_cosine_decay_schedule(
            0.0, 3e-3, max(args.steps // 10, 1), args.steps
        )
    )
    fitted = jb.fit(
        net,
        jb.softmax_cross_entropy,
        optimizer,
        (pieces[:, :-1], pieces[:, 1:]),
        key=jax.random.key(0),
        steps=args.steps,
        batch_size=args.batch,
        checkpoint_dir=args.checkpoint_dir,
        mesh=mesh,
        sharding=fully_sharded("data", min_size=1024),
    )
    metrics = {"loss": jb.softmax_cross_entropy}
    loss = jb.evaluate(
        net, fitted.params, (), (held_out[:, :-1], held_out[:, 1:]), metrics
    )["loss"]
    kernel = fitted.params["blocks"]["mlp"]["up"]["kernel"]
    part = kernel.addressable_shards[0].data.size / kernel.size
    if jax.process_index() == 0:
        print(
            f"devices: {mesh.size}, processes: {jax.process_count()}, each device "
            f"holds {part:.3f} of mlp/up/kernel"
        )
        print(f"held-out loss after {args.steps} steps: {loss:.6f}", flush=True)
    return loss


# ---- devices and processes -----------------------------------------------------------


def simulate(args):
    """Let the CPU appear as several devices; JAX reads this before it looks for
    devices.
    """
    if args.devices is not None or args.process is not None:
        # with fewer threads than devices JAX < 0.12 can wait forever
        os.environ.setdefault("NPROC", "32")
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", args.devices or 1)


def connect(args):
    """Join the other processes of this machine."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{args.port}", args.processes, args.process)


def launch(arguments, processes, patience=30.0):
    """Start the processes and wait for them; those that do not end soon after the first
    one are killed.
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, __file__, *arguments, "--port", str(port)]
    started = [
        subprocess.Popen([*command, "--process", str(number)])
        for number in range(processes)
    ]
    before = signal.signal(
        signal.SIGTERM,
        lambda number, frame: [process.terminate() for process in started],
    )
    end = float("inf")
    try:
        while (
            any(process.poll() is None for process in started)
            and time.monotonic() < end
        ):
            if end == float("inf") and any(
                process.poll() is not None for process in started
            ):
                end = time.monotonic() + patience
            # the processes get it too, and save
            with contextlib.suppress(KeyboardInterrupt):
                time.sleep(0.1)
    finally:
        signal.signal(signal.SIGTERM, before)
        for process in started:
            process.kill()
    if any(codes := [process.wait() for process in started]):
        raise SystemExit(f"the processes ended with {codes}")


if __name__ == "__main__":
    main()
