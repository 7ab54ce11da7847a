"""Jobs of several processes on this machine.

The devices of all processes form one mesh, and gloo connects them. `start` starts a job; each process prints what it
found as JSON. tests/training/test_processes.py compares it.
"""

import contextlib
import faulthandler
import hashlib
import json
import multiprocessing.forkserver
import os
import re
import shutil
import signal
import socket
import tempfile
import time
import warnings
from pathlib import Path
from unittest import mock

import cheap_programs  # noqa: F401
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental.multihost_utils import process_allgather

import jaxblocks as jb
from jaxblocks.sharding import fully_sharded
from jaxblocks.training import (
    Callback,
    checkpoints,
    csv_log,
    early_stopping,
    load_checkpoint,
    save_checkpoint,
)
from jaxblocks.training.checkpoint import writing
from jaxblocks.training.checkpoint.shards import is_sharded
from jaxblocks.training.processes import on_first

P = jax.sharding.PartitionSpec


def data():
    """Inputs and targets that are the same in every process."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(96, 5)).astype(np.float32)
    return x, (x[:, :1] ** 2).astype(np.float32)


def train(**options):
    """Fit a net with batch norm and dropout."""
    net = jb.Serial(jb.Dense(16, use_bias=False), jb.BatchNorm(), jb.relu, jb.Dropout(0.1), jb.Dense(1))
    x, y = data()
    options = {"loss": jb.mse, "epochs": 2, "validation": (x[:20], y[:20]), **options}
    return jb.fit(net, options.pop("loss"), optax.adam(1e-2), (x, y), key=jax.random.key(0), batch_size=24, **options)


# ---- starting jobs ---------------------------------------------------------------------------


# The processes are forked from one that has imported JAX and this file, which takes longer than most of the jobs.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["several_processes", "orbax.checkpoint"])


def configuration() -> dict[str, str]:
    """The environment of the processes: the default configuration of JAX, and the flags of XLA of the tests.

    It holds if no other test started the fork server before.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "PYTEST_"))}
    kept["XLA_FLAGS"] = re.sub(r"--xla_force_host_platform_device_count=\d+", "", kept.get("XLA_FLAGS", ""))
    # With fewer threads than devices the collectives can hang (jax < 0.12).
    return kept | {"JAX_PLATFORMS": "cpu", "NPROC": "32", "TF_CPP_MIN_LOG_LEVEL": "3"}


@contextlib.contextmanager
def start(count: int, job: str, folder: Path):
    """The processes of a job; all of them end with the block."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    with mock.patch.dict(os.environ, configuration(), clear=True):
        multiprocessing.forkserver.ensure_running()
    started = []
    with tempfile.TemporaryDirectory() as printed:
        try:
            for process in range(count):
                # Files, since a process would wait where nobody reads its pipe.
                files = {name: f"{printed}/{process}.{name}" for name in ("stdout", "stderr")}
                options = dict(process=process, processes=count, port=port, job=job, folder=folder)
                started.append(CONTEXT.Process(target=run, kwargs=options | dict(files=files)))
                started[-1].files = files
                started[-1].start()
            yield started
        finally:
            for process in started:
                process.kill()
            for process in started:
                process.join()


def run(process: int, processes: int, port: int, job: str, folder: Path, files: dict[str, str]):
    """One process of a job, which prints what it found into the files."""
    for descriptor, name in enumerate(("stdout", "stderr"), 1):
        os.dup2(os.open(files[name], os.O_WRONLY | os.O_CREAT), descriptor)
    faulthandler.dump_traceback_later(180, exit=True)  # a process that waits for another one says where
    jax.config.update("jax_num_cpu_devices", 2)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", processes, process)
    print(json.dumps(JOBS[job](folder)), flush=True)
    jax.distributed.shutdown()


def output(process, name: str = "stderr") -> str:
    """What a process has printed."""
    return Path(process.files[name]).read_text()


def found_by(count: int, job: str, folder: Path, timeout: float = 200):
    """What each process of a job found, and its output on standard error."""
    with start(count, job, folder) as processes:
        end = time.monotonic() + timeout
        for process in processes:
            process.join(max(end - time.monotonic(), 1))
        errors = [output(process) for process in processes]
        assert [process.exitcode for process in processes] == [0] * count, [error[-3000:] for error in errors]
        return [json.loads(output(process, "stdout").splitlines()[-1]) for process in processes], errors


# ---- what they do ----------------------------------------------------------------------------


def mesh_of_all():
    return jax.make_mesh((jax.device_count(),), ("data",))


def digest(tree) -> str:
    """A hash of all numbers of a tree of global arrays."""
    gathered = jax.jit(lambda tree: tree, out_shardings=jax.sharding.NamedSharding(mesh_of_all(), P()))(tree)
    return hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(gathered))).hexdigest()


def recorded(fitted) -> dict:
    """The results of a run."""
    return {
        "step": int(fitted.ts.step),
        "losses": [float(value) for value in fitted.history.step_loss],
        "validation": fitted.history.validation.get("loss", np.zeros(0)).tolist(),
        "digest": digest((fitted.ts, fitted.params, fitted.state)),
    }


def raised_by(function, *args, **options) -> str:
    try:
        function(*args, **options)
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def on_process(number, step, act) -> Callback:
    """Act after a step in one of the processes only."""

    def on_step(run):
        if run.step == step and jax.process_index() == number:
            act(run)

    return Callback(on_step=on_step, every=1)


def stop(run):
    run.stop = True


def training(folder: Path) -> dict:
    """Runs that a signal or a callback ends in one process, and that are started again."""
    options = {"mesh": mesh_of_all(), "sharding": fully_sharded(min_size=1)}
    found: dict = {"without a mesh": raised_by(train), "straight": recorded(train(**options))}
    own = jax.make_mesh((jax.local_device_count(),), ("data",), devices=jax.local_devices())
    found["own mesh"] = raised_by(train, mesh=own).replace(f"[{jax.process_index()}]", "its own")
    options["progress"] = False
    callbacks = [csv_log(folder / "log.csv"), checkpoints(folder / "run", every=2)]
    terminate = on_process(1, 3, lambda run: os.kill(os.getpid(), signal.SIGTERM))
    found["signal"] = raised_by(train, callbacks=[terminate, *callbacks], **options)
    found["saved"] = sorted(path.name for path in (folder / "run").iterdir())
    on_first(lambda: shutil.copytree(folder / "run", folder / "alone"))
    found["stopped"] = recorded(train(callbacks=[on_process(1, 6, stop), *callbacks], **options))["step"]
    found["resumed"] = recorded(train(callbacks=callbacks, **options))
    found["locked"] = raised_by(train, checkpoint_dir=folder / "locked", **options)
    undefined = lambda outputs, y: jnp.where(y > 100, jnp.nan, (outputs - y) ** 2)
    far = data()[0][:20], data()[1][:20] + 1000
    found["early"] = recorded(train(loss=undefined, validation=far, callbacks=[early_stopping(1)], **options))["step"]
    found["divergence"] = raised_by(train, penalty=lambda p: jnp.log(-jnp.abs(p[0]["kernel"]).sum()), **options)
    return found


def killable(folder: Path) -> dict:
    """A run that was killed before, and the same run without kills."""
    options = {"mesh": mesh_of_all(), "sharding": fully_sharded(min_size=1), "progress": False}
    options |= {"epochs": None, "steps": int((folder / "steps").read_text()), "validation": None}
    return {"killed": recorded(train(callbacks=[checkpoints(folder, every=2)], **options))["digest"]} | {
        "straight": recorded(train(**options))["digest"]
    }


NUMBERS = np.arange(64, dtype=np.float32).reshape(8, 8)
TREE = {"rows": NUMBERS, "all": NUMBERS[0], "host": NUMBERS[:2], "empty": NUMBERS[:, :0], "local": np.int32([3, 5])}


def storing(folder: Path) -> dict:
    """Checkpoints of a tree over several processes, read with other shardings; the last one is damaged."""
    mesh = mesh_of_all()
    over = lambda *spec: jax.sharding.NamedSharding(mesh, P(*spec))
    place = lambda name, *spec: jax.make_array_from_callback(TREE[name].shape, over(*spec), TREE[name].__getitem__)
    tree = TREE | {"rows": place("rows", "data"), "all": place("all"), "local": jnp.int32([3, 5])}
    path = save_checkpoint(folder, tree, step=1)
    found: dict = {"exists": path.is_dir(), "other tree": raised_by(save_checkpoint, folder, {"rows": tree["rows"]})}
    shape = lambda name, *spec: jax.ShapeDtypeStruct(TREE[name].shape, TREE[name].dtype, sharding=over(*spec))
    like = tree | {"rows": shape("rows", None, "data"), "all": shape("all", "data"), "host": shape("host")}
    equals = lambda a, b: np.array_equal(process_allgather(a, tiled=True) if is_sharded(a) else a, b)
    back = load_checkpoint(folder, like)
    found["equal"] = [equals(back[name], TREE[name]) for name in TREE]
    found["specs"] = [str(back[name].sharding.spec) for name in ("rows", "all", "host")]
    flush = writing._flush
    writing._flush = lambda folder: 1 / (1 - jax.process_index()) and flush(folder)  # an error in the second process
    found["failed"] = raised_by(save_checkpoint, folder, tree, step=2)
    found["after failure"] = on_first(lambda: sorted(path.name for path in folder.iterdir()))
    writing._flush = flush
    save_checkpoint(folder, TREE | {"rows": place("rows", None, "data")}, step=2)
    last = save_checkpoint(folder, tree | {"host": -NUMBERS[:2]}, step=3)
    on_first(lambda: _change_hash(last / "checkpoint.json", "4:6,0:8"))  # of a shard in the second process
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        before = load_checkpoint(folder, tree)
    found["said"] = [str(one.message) for one in said]
    return found | {"before": equals(before["host"], NUMBERS[:2]) and equals(before["rows"], NUMBERS)}


def _change_hash(file: Path, place: str) -> None:
    listed = json.loads(file.read_text().splitlines()[0])
    listed["leaves"]["ts"]["rows"]["sha256"][place] = "0" * 64
    text = json.dumps(listed)
    file.write_text(f"{text}\n{hashlib.sha256(text.encode()).hexdigest()}\n")


JOBS = {job.__name__: job for job in (training, killable, storing)}
