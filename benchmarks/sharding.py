"""Memory and communication of a step of Llama 2 7B on 64 virtual devices; nothing is allocated or run.

XLA_FLAGS=--xla_force_host_platform_device_count=64 python benchmarks/sharding.py
"""

import jax
import jax.numpy as jnp
import optax

import jaxblocks as jb
from jaxblocks.models import Llama
from jaxblocks.sharding import fully_sharded, tensor_parallel
from jaxblocks.training import sharding_report

if __name__ == "__main__":
    tokens = jax.ShapeDtypeStruct((64, 2048), jnp.int32)
    plans = {(64,): fully_sharded(), (8, 8): [tensor_parallel(), fully_sharded()]}
    for shape, rules in plans.items():
        mesh = jax.make_mesh(shape, ("data", "model")[: len(shape)])
        batch = tokens, tokens
        report = sharding_report(Llama(), jb.softmax_cross_entropy, optax.adam(1e-3), *batch, mesh=mesh, sharding=rules)
        print(shape, report, "\n", flush=True)
