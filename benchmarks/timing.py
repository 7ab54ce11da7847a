"""Time and memory for the benchmarks: calls alternate, so that other work on the machine affects all of them alike."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np


def in_turns(
    calls: Mapping[Any, Callable[[], Any]],
    *,
    rounds: int,
    repeats: int = 1,
    clock: Callable[[], Any] = time.perf_counter,
) -> dict[Any, np.ndarray]:
    """Seconds of each call per round; the calls of a round run one after the other, in alternating order.

    With ``clock=time.process_time`` they are seconds of processor time; a clock may also return an array of several.
    """
    seconds = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(repeats):
            jax.block_until_ready(call())
    for turn in range(rounds):
        for name in list(calls)[:: 1 if turn % 2 else -1]:
            out = None  # the memory of the call before is free
            start = clock()
            for _ in range(repeats):
                out = calls[name]()
            jax.block_until_ready(out)
            seconds[name].append(clock() - start)
    return {name: np.array(values) for name, values in seconds.items()}


def chosen(names: Iterable[str], parts: Sequence[str]) -> list[str]:
    """The names that contain one of the parts, in any case, or all; an error for a part that no name contains."""
    names = list(names)
    found = {part: [name for name in names if part.lower() in name.lower()] for part in parts}
    for part, of_part in found.items():
        if not of_part:
            raise SystemExit(f"expected parts of the names of rows, got {part!r}; the rows are {', '.join(names)}")
    return [name for name in names if not parts or any(name in of_part for of_part in found.values())]


def ratio(seconds: Mapping[str, np.ndarray], name: str, base: str) -> tuple[float, float, float]:
    """Median and quartiles of the ratio of two calls, round by round."""
    low, middle, high = np.percentile(seconds[name] / seconds[base], [25, 50, 75])
    return float(middle), float(low), float(high)


def processor() -> str:
    """The device of JAX, with the name of the processor where Linux tells it."""
    device, info = jax.devices()[0], Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if device.platform == "cpu" and info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} cores" if names else device.device_kind


def temporary_bytes(program: Any) -> int:
    """The temporary memory of a compiled program, as the compiler reports it."""
    return program.memory_analysis().temp_size_in_bytes


def resident_bytes(field: str) -> int:
    """The resident memory of this process on Linux, at its peak (``VmHWM``) or now (``VmRSS``)."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return 1024 * int(line.split()[1])


def begin_peak() -> None:
    """Let ``VmHWM`` be the peak from now on."""
    Path("/proc/self/clear_refs").write_text("5")
