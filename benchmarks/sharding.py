"""Memory and communication of steps of three Llamas on virtual devices; nothing is allocated or run.

XLA_FLAGS=--xla_force_host_platform_device_count=64 python benchmarks/sharding.py
"""

import itertools

import jax
import jax.numpy as jnp
import optax

import jaxblocks as jb
from jaxblocks.models import Llama
from jaxblocks.sharding import fully_sharded, tensor_parallel

if __name__ == "__main__":
    devices = jax.device_count()
    tokens = jax.ShapeDtypeStruct((devices, 2048), jnp.int32)
    nets = {
        "Llama 2 7B": Llama(),
        "Llama 3 8B": Llama(vocab_size=128_256, kv_heads=8, hidden=14_336, base=500_000),
        "Llama 2 70B": Llama(layers=80, heads=64, kv_heads=8, features=8192, hidden=28_672),
    }
    plans = {(devices,): fully_sharded(), (devices // 8, 8): [tensor_parallel(), fully_sharded()]}
    optimizer = optax.adam(1e-3)
    for (name, net), (shape, rules) in itertools.product(nets.items(), plans.items()):
        mesh = jax.make_mesh(shape, ("data", "model")[: len(shape)])
        batch = tokens, tokens
        report = sharding_report(net, jb.softmax_cross_entropy, optimizer, *batch, mesh=mesh, sharding=rules)
        print(name, shape, report, "\n", flush=True)
