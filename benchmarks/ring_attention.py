"""Memory and communication of ring attention on 1 to 8 virtual devices, from the compiled programs; nothing is run.

XLA_FLAGS=--xla_force_host_platform_device_count=8 python benchmarks/ring_attention.py
"""

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxblocks.layers.attention import ring_attention

TIME, HEADS, FEATURES = 16_384, 8, 64


def temporaries(devices: int) -> tuple[float, float]:
    """MiB of the forward pass and of the gradient, besides inputs and outputs."""
    mesh = jax.make_mesh((devices,), ("time",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("time"))
    x = jax.ShapeDtypeStruct((TIME, HEADS, FEATURES), jnp.float32, sharding=sharding)
    attend = lambda q, k, v: ring_attention(q, k, v, axis_name="time", causal=True)
    loss = lambda q, k, v: jnp.sum(attend(q, k, v) ** 2)
    with jax.set_mesh(mesh):
        programs = [jax.jit(f).lower(x, x, x).compile() for f in (attend, jax.grad(loss, (0, 1, 2)))]
    sizes = [program.memory_analysis().temp_size_in_bytes for program in programs]
    return sizes[0] / 2**20, sizes[1] / 2**20


if __name__ == "__main__":
    print(f"one array of all devices: {TIME * HEADS * FEATURES * 4 / 2**20:.0f} MiB")
    for devices in (1, 2, 4, 8):
        forward, gradient = temporaries(devices)
        print(f"{devices} devices: forward {forward:.1f} MiB, gradient {gradient:.1f} MiB", flush=True)
