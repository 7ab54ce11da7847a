"""What a training step needs on each device of a mesh: bytes of arrays, and communication by layer."""

import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import optax
from jax.sharding import Mesh
from jaxtyping import PyTree

from jaxblocks.checks.expectations import checked
from jaxblocks.core.pairs import LayerLike
from jaxblocks.core.selection import paths
from jaxblocks.plotting.axes import in_bytes
from jaxblocks.sharding import Rule, batch_sharding
from jaxblocks.training.step.state import train_state_shapes
from jaxblocks.training.step.step import train_step

__all__ = ["Collective", "ShardingReport", "sharding_report"]


class Collective(NamedTuple):
    """A collective operation of a compiled step.

    Args:
        kind: ``"all-reduce"``, ``"all-gather"``, ``"reduce-scatter"``, ``"all-to-all"`` or ``"collective-permute"``.
        layer: the path of the layer whose operation needs it; ``""`` outside of the net.
        count: how often a step executes it; in a `Repeat`, once per copy.
        bytes: of the results on each device, over all executions.
    """

    kind: str
    layer: str
    count: int
    bytes: int


@dataclass(frozen=True, repr=False)
class ShardingReport:
    """The result of `sharding_report`; bytes are those of one device.

    Attributes:
        devices: the number of devices.
        params, state, opt_state: bytes of the training state.
        temporaries: the peak of the compiled step besides inputs and outputs; ``None`` for an abstract mesh.
        collectives: the communication of one step, the largest first; ``None`` for an abstract mesh.
        replicated: paths and bytes of the params that every device holds whole, the largest first.
        gathered: paths of layers and bytes of their all-gathers, where these are more than three times the params of
            the layer (forward, recomputed, backward). XLA then gathers activations, because the shardings of two
            operations do not fit together ("involuntary full rematerialization"); a constraint or another rule for this
            layer avoids it. ``None`` for an abstract mesh.
    """

    devices: int
    params: int
    state: int
    opt_state: int
    temporaries: int | None
    collectives: tuple[Collective, ...] | None
    replicated: tuple[tuple[str, int], ...]
    gathered: tuple[tuple[str, int], ...] | None

    def __repr__(self):
        rows = [("params", self.params), ("state", self.state), ("optimizer state", self.opt_state)]
        rows += [] if self.temporaries is None else [("temporaries", self.temporaries)]
        lines = [f"{self.devices} devices, on each of them:", *(f"  {name:<16} {in_bytes(n)}" for name, n in rows)]
        if self.collectives is not None:
            lines.append(f"  {'communication':<16} {in_bytes(sum(each.bytes for each in self.collectives))} per step")
            for each in self.collectives[:10]:
                lines.append(f"    {each.kind} of {each.layer or 'the step'}, {each.count} x: {in_bytes(each.bytes)}")
            if len(self.collectives) > 10:
                lines.append(f"    and {len(self.collectives) - 10} more in .collectives")
        for layer, size in self.gathered or ():
            lines.append(f"  gathers activations of {layer or 'the step'}: {in_bytes(size)}")
        if self.replicated:
            largest = ", ".join(f"{path} ({in_bytes(n)})" for path, n in self.replicated[:3])
            lines.append(f"  replicated: {len(self.replicated)} arrays, the largest {largest}")
        return "\n".join(lines)


@checked
def sharding_report(
    net: LayerLike,
    loss: Callable,
    optimizer: optax.GradientTransformation,
    x: PyTree,
    y: PyTree,
    *,
    mesh: Any,
    sharding: Rule | Sequence[Rule] = (),
    **side: Any,
) -> ShardingReport:
    """The memory and the communication of a training step on a mesh, from shapes alone: nothing is allocated or run.

    The step is compiled for the devices of the mesh. These may be virtual devices of a CPU (in an environment with
    ``XLA_FLAGS=--xla_force_host_platform_device_count=256``), so a plan for a large machine can be made on a small one;
    compilers for other platforms may choose other collectives. For an ``AbstractMesh`` only the bytes of the training
    state are computed.

    Args:
        x, y: a batch, as arrays or ``jax.ShapeDtypeStruct``s.
        mesh, sharding: as in `init_train_state`.
        side: side inputs of the net.

    Raises:
        TypeError, ValueError: as `init_train_state` and `train_step`.

    >>> from jaxblocks.layers.dense import Dense
    >>> mesh = jax.sharding.AbstractMesh((4,), ("data",))
    >>> of_width = lambda n: jax.ShapeDtypeStruct((8, n), jnp.float32)
    >>> shapes = of_width(64), of_width(128)
    >>> rules = jaxblocks.sharding.fully_sharded()
    >>> squared_error = lambda outputs, y: (outputs - y) ** 2
    >>> sharding_report(
    ...     Dense(128), squared_error, optax.adam(1e-3), *shapes, mesh=mesh, sharding=rules
    ... )
    4 devices, on each of them:
      params           8.5 KiB
      state            0 B
      optimizer state  17 KiB
      replicated: 1 arrays, the largest bias (512 B)
    """
    inputs = x if isinstance(x, tuple) else (x,)
    ts = train_state_shapes(net, optimizer, *inputs, mesh=mesh, sharding=sharding, **side)
    # Params that every device holds whole: the ones that another rule could shard.
    named = zip(paths(ts.params), jax.tree.leaves(ts.params), strict=True)
    replicated = [(path, _shard_bytes(leaf)) for path, leaf in named if leaf.sharding.is_fully_replicated]
    devices = mesh.size
    temporaries = collectives = gathered = None
    if isinstance(mesh, Mesh):
        along = batch_sharding(mesh)
        place = lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=along)
        # Shapes alone, whether the batch was given as arrays or as shapes.
        batch = jax.tree.map(place, jax.eval_shape(lambda batch: batch, (x, y)))
        program = train_step(net, loss, optimizer).lower(ts, *batch, **side).compile()
        analysis = program.memory_analysis()
        temporaries = None if analysis is None else analysis.temp_size_in_bytes
        # XLA inserts the collectives when it compiles; the jaxpr does not contain them.
        collectives = _collectives(program.as_text() or "")
        gathered = _gathered(collectives, ts.params)
    on_each = lambda tree: sum(map(_shard_bytes, jax.tree.leaves(tree)))
    return ShardingReport(
        devices=devices,
        params=on_each(ts.params),
        state=on_each(ts.state),
        opt_state=on_each(ts.opt_state),
        temporaries=temporaries,
        collectives=collectives,
        replicated=tuple(sorted(replicated, key=lambda each: -each[1])),
        gathered=gathered,
    )


def _gathered(collectives, params) -> tuple[tuple[str, int], ...]:
    """The layers that gather more than three copies of their params, and the bytes; the largest first."""
    sizes = {
        f"{path}/": leaf.size * leaf.dtype.itemsize
        for path, leaf in zip(paths(params), jax.tree.leaves(params), strict=True)
    }
    own = lambda layer: sum(size for path, size in sizes.items() if path.startswith(f"{layer}/" if layer else ""))
    gathers = (each for each in collectives if each.kind == "all-gather")
    # Params may be gathered in the forward pass, the backward pass and a recomputation; more bytes are activations.
    return tuple((each.layer, each.bytes) for each in gathers if each.bytes > 3 * own(each.layer))


def _shard_bytes(leaf) -> int:
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize


_KINDS = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
_COLLECTIVE = re.compile(rf"= (.*?) ({_KINDS})(?:-done)?\(")  # "-start" also has the operands among its results
_ARRAY = re.compile(r"\b([a-z]+)(\d+)?(?:e\dm\d\w*)?\[([\d,]*)\]")
_CALLED = re.compile(r"(?:body|calls|to_apply|\w+_computations?)=\{?(%[\w.\-]+(?:, ?%[\w.\-]+)*)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


def _collectives(text: str) -> tuple[Collective, ...]:
    """The collectives of the program of a device, those in loops once per iteration (once where it is unknown).

    Of the branches of a conditional, the one that communicates most counts.
    """
    computations, name, entry = {}, "", ""
    for line in text.splitlines():
        if line.endswith("{") and not line.startswith(" "):
            # A computation begins in the first column and ends with a brace; its lines are indented.
            name = line.removeprefix("ENTRY ").split(" ", 1)[0]
            entry = name if line.startswith("ENTRY") else entry
            computations[name] = []
        elif name:
            computations[name].append(line)
    found: dict[tuple[str, str], list[int]] = {}
    # The entry is the computation that the device runs; all others are called from it.
    for times, line in _executed(computations, entry, 1):
        if match := _COLLECTIVE.search(line):
            total = found.setdefault((match[2], _layer(line)), [0, 0])
            total[0] += times
            total[1] += times * _result_bytes(match)
    rows = (Collective(kind, layer, count, size) for (kind, layer), (count, size) in found.items())
    return tuple(sorted(rows, key=lambda each: -each.bytes))


def _executed(computations, name, times) -> Iterator[tuple[int, str]]:
    """The lines of a computation and of those that it calls, each with the number of its executions."""
    for line in computations.get(name, ()):
        yield times, line
        if called := ", ".join(_CALLED.findall(line)):
            trips = _TRIPS.search(line)
            # A loop whose trip count XLA does not know counts once: a lower bound.
            inside = times * int(trips[1]) if trips and " while(" in line else times
            each = [list(_executed(computations, one.strip(), inside)) for one in called.split(",")]
            # Of the branches of a conditional one is executed; the one that sends most is an upper bound.
            yield from max(each, key=_communicated) if " conditional(" in line else itertools.chain(*each)


def _communicated(lines) -> int:
    """The bytes of the collectives among executed lines."""
    return sum(times * _result_bytes(match) for times, line in lines if (match := _COLLECTIVE.search(line)))


def _result_bytes(match: re.Match) -> int:
    return sum(map(_array_bytes, _ARRAY.findall(match[1])))


def _array_bytes(found: tuple[str, str, str]) -> int:
    kind, bits, shape = found
    numbers = math.prod(int(size) for size in shape.split(",") if size)
    # pred takes a byte; a type without bits in its name counts as 4 bytes.
    return numbers * (1 if kind == "pred" else max(int(bits or 32) // 8, 1))


def _layer(line: str) -> str:
    """The path of the layer in the name of an operation, ``jit(step)/transpose(jvp(blocks))/while/body/mlp/up/dot``.

    XLA joins operations, also of several layers: their common path.
    """
    # `jit(step)/` and the name of the operation itself are no part of the path, nor are the marks of jvp and transpose
    # around a label.
    name = re.search(r'op_name="([^"]*)"', line)
    places = []
    for one in name[1].removeprefix("jit(step)/").split(":") if name else ():
        labels = [
            re.sub(r"^(?:\w*\()+|\)+$", "", label) for label in one.split("/")[:-1] if not label.startswith("jit(")
        ]
        places.append([label for label in labels if not _OF_JAX.fullmatch(label)])
    # A fused operation has several names, separated by colons; their common beginning is its layer.
    same = itertools.takewhile(lambda labels: len(set(labels)) == 1, zip(*places, strict=False))
    return "/".join(labels[0] for labels in same)


_OF_JAX = re.compile(
    r"|while|body|cond|branch_\d+_fun|closed_call|checkpoint|remat|rematted_computation|scan|shard_map"
)
