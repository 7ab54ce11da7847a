"""The laws, the parity tests and all benchmarks on the accelerator of this machine, and a file with their results.

    python benchmarks/accelerator.py [--dry-run] [--tests PATH ...] [--benchmarks NAME ...]

Writes ``benchmarks/RESULTS-<device>.md``: the device and its software, which tests fail there, the errors of products
and functions by dtype beside the tolerances that the docs state, and what each benchmark prints. Without an accelerator
it says so and exits with status 2; ``--dry-run`` runs on the CPU, and writes to standard output only.
"""

import argparse
import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from timing import in_turns, ratio

import jaxblocks as jb

HERE = Path(__file__).parent
ROOT = HERE.parent
# The laws of all layers, and the tests that compare with other libraries; those of CPU tiles do not apply.
TESTS = ["tests/laws", "tests/losses", "tests/layers", "tests/models", "tests/interop/test_interop_transformers.py"]
BENCHMARKS = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in ("accelerator", "timing"))
# What docs/guides/gpus_and_tpus.md states: the largest error of a product of 256 terms, relative to the sum of the
# magnitudes of its terms, by dtype and `jax.default_matmul_precision`.
STATED = {
    ("float32", "highest"): 1e-6,
    ("float32", "default"): {"cpu": 1e-6, "gpu": 2e-3, "tpu": 1e-2},
    ("bfloat16", "default"): 1e-2,
    ("float16", "default"): 2e-3,
}


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, to standard output")
    parser.add_argument("--tests", nargs="*", default=TESTS)
    parser.add_argument("--benchmarks", nargs="*", default=BENCHMARKS)
    options = parser.parse_args(arguments)
    device = jax.devices()[0]
    if device.platform == "cpu" and not options.dry_run:
        print("No accelerator: jax.devices() has CPUs only. Install jax[cuda] or jax[tpu], or pass --dry-run.")
        return 2
    sections = [heading(device), errors_of_products(device.platform), tests(options.tests), fused(device.platform)]
    sections += [benchmark(name) for name in options.benchmarks]
    report = "\n\n".join(sections) + "\n"
    if options.dry_run:
        print(report)
    else:
        path = HERE / f"RESULTS-{re.sub(r'[^A-Za-z0-9]+', '-', device.device_kind).strip('-')}.md"
        path.write_text(report)
        print(f"wrote {path.relative_to(ROOT)}")
    return int("failed" in sections[2] or "not within" in sections[1])


def heading(device) -> str:
    count = jax.device_count()
    software = f"jax {jax.__version__}, {device.client.platform_version.splitlines()[0]}"
    return f"# Results on {device.device_kind}\n\n`make accelerator`, {count} device(s), {device.platform}, {software}."


def errors_of_products(platform: str) -> str:
    """A table of the errors of products, measured against float64 and as stated."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 256, 256))
    rows = ["## Errors of products\n", "| dtype | precision | measured | stated | |", "|---|---|---|---|---|"]
    for (dtype, precision), stated in STATED.items():
        stated = stated[platform] if isinstance(stated, dict) else stated
        x, y = (np.asarray(m, jnp.dtype(dtype)) for m in (a, b))
        with jax.default_matmul_precision(precision):
            product = np.float64(jax.jit(jnp.matmul)(x, y))
        x, y = np.float64(x), np.float64(y)
        error = (np.abs(product - x @ y) / (np.abs(x) @ np.abs(y))).max()
        verdict = "within" if error <= stated else "not within"
        rows.append(f"| {dtype} | {precision} | {error:.1e} | {stated:.0e} | {verdict} |")
    return "\n".join(rows)


def tests(paths) -> str:
    """The last lines of pytest; each failure is a line."""
    if not paths:  # pytest would run all tests
        return "## Tests\n\nNone."
    workers = min(16, os.cpu_count() or 1)
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(workers), "--dist", "worksteal", "--tb=no", *paths]
    # The processes share the memory of the device. Tolerances are those of float32; TF32 is tested by simulation.
    options = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "JAX_DEFAULT_MATMUL_PRECISION": "highest"}
    env = environment() | options
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    lines = [
        line for line in done.stdout.splitlines() if re.match(r"FAILED|ERROR|\d+ (passed|failed)|.*no tests ran", line)
    ]
    return "## Tests\n\n```text\n" + "\n".join(lines or done.stderr.splitlines()[-5:]) + "\n```"


def fused(platform: str) -> str:
    """The errors of the fused kernel, relative to the largest number, and its time beside the plain form's."""
    rows = ["## Fused attention, causal, (4, 2048, 8, 64)\n"]
    if platform != "gpu":
        return rows[0] + "\nOnly on GPUs."
    rows += ["| dtype | error of the value | of the gradient | time of both / plain |", "|---|---|---|---|"]
    qkv = [jax.random.normal(key, (4, 2048, 8, 64)) for key in jax.random.split(jax.random.key(0), 3)]

    def form(implementation, precision=None):
        def loss(*qkv):
            out = jb.attention(*qkv, causal=True, implementation=implementation)
            return jnp.sum(out.astype(jnp.float32) ** 2), out

        def both(*qkv):
            with jax.default_matmul_precision(precision or "default"):
                (_, out), grads = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(*qkv)
            return out, grads

        return jax.jit(both)

    for dtype in (jnp.bfloat16, jnp.float16):
        half = [x.astype(dtype) for x in qkv]
        exact = form(None, "highest")(*(x.astype(jnp.float32) for x in half))
        forms = {name: functools.partial(form(name), *half) for name in ("fused", None)}
        largest = jax.tree.map(
            lambda got, e: jnp.abs(got.astype(jnp.float32) - e).max() / jnp.abs(e).max(), forms["fused"](), exact
        )
        middle, low, high = ratio(in_turns(forms, rounds=30), "fused", None)
        value, gradient = float(largest[0]), max(map(float, largest[1]))
        rows.append(f"| {dtype.__name__} | {value:.1e} | {gradient:.1e} | {middle:.2f} ({low:.2f} to {high:.2f}) |")
    return "\n".join(rows)


def benchmark(name: str) -> str:
    command = [sys.executable, str(HERE / f"{name}.py")]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    text = done.stdout.strip() if done.returncode == 0 else done.stderr.strip().splitlines()[-1]
    return f"## {name}\n\n```text\n{text}\n```"


def environment() -> dict:
    """That of this process, with the platform of its devices and the package of this folder."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": platforms()}


def platforms() -> str:
    """The default platform first, then the CPU, on which tests place their references."""
    name = jax.devices()[0].platform
    if name == "gpu":  # JAX_PLATFORMS has the kind of GPU
        name = "rocm" if "rocm" in jax.devices()[0].client.platform_version.lower() else "cuda"
    return name if name == "cpu" else f"{name},cpu"


if __name__ == "__main__":
    sys.exit(main())
