"""Train on several processes: ``python two_processes.py <process> <processes> <port>`` prints the losses as JSON.

The devices of all processes form one mesh. tests/test_sharding.py starts it.
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxblocks as jb
from jaxblocks.sharding import fully_sharded


def data():
    """Inputs and targets that are the same in every process."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(96, 5)).astype(np.float32)
    return x, (x[:, :1] ** 2).astype(np.float32)


def train(**options):
    """Fit a net with batch norm and dropout."""
    net = jb.Serial(jb.Dense(16, use_bias=False), jb.BatchNorm(), jb.relu, jb.Dropout(0.1), jb.Dense(1))
    x, y = data()
    key = jax.random.key(0)
    return jb.fit(
        net, jb.mse, optax.adam(1e-2), (x, y), key=key, epochs=2, batch_size=24, validation=(x[:20], y[:20]), **options
    )


if __name__ == "__main__":
    process, processes, port = map(int, sys.argv[1:])
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", processes, process)
    refused = ""
    try:
        train()
    except ValueError as error:
        refused = str(error)
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    fitted = train(mesh=mesh, sharding=fully_sharded(min_size=1))
    total = jax.jit(lambda params: sum(jnp.abs(p).sum() for p in jax.tree.leaves(params)))(fitted.ts.params)
    losses = [float(value) for value in fitted.history.step_loss]
    validation = fitted.history.validation["loss"].tolist()
    print(json.dumps({"losses": losses, "total": float(total), "refused": refused, "validation": validation}))
