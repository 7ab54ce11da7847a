"""Expressions of the README and the guides, each with the type that an editor shows for it.

`test_types.py` has a type checker read this file and compares; the file is never run.
"""

from typing import reveal_type

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

import jaxblocks as jb
from jaxblocks import diffusion, interop, models, text

key, x = jax.random.key(0), jnp.ones((8, 64))

# README, and the guide "getting started"
net = jb.Serial(jb.Dense(128), jb.relu, jb.Dense(10))
reveal_type(net)  # Layer[Array]
reveal_type(net.init)  # (...) -> Params
params = net.init(key, x)
reveal_type(params)  # Params
reveal_type(params[0]["kernel"])  # Params
reveal_type(net.apply(params, x))  # Array
reveal_type(jax.vmap(net.apply, (None, 0))(params, x))  # Array
reveal_type(jb.Serial(hidden=jb.Dense(5), activation=jnp.tanh, out=jb.Dense(1)))  # Layer[Array]
reveal_type(jb.MLP(64, 8, 64, 784))  # Layer[Array]
reveal_type(jb.summary(net, x))  # Summary

# layers with other outputs, and combinators
block = jb.Residual(jb.LayerNorm(), jb.Attention(heads=4, causal=True))
reveal_type(block)  # Layer[Array]
reveal_type(jb.Repeat(block, 12).apply)  # (...) -> Array
reveal_type(jb.Parallel(jb.Dense(3), jb.relu).apply(params, x))  # tuple[Array, ...] | dict[str, Array]
wired = jb.Wire(lambda f, x: f.out(jnp.concatenate([x, f.narrow(x)], -1)), narrow=jb.Dense(8), out=jb.Dense(10))
reveal_type(wired.apply(params, x))  # Array
two = jb.Wire(lambda f, x: (f.mean(x), f.scale(x)), mean=jb.Dense(8), scale=jb.Dense(8))
reveal_type(two.apply(params, x))  # tuple[Array, Array]
reveal_type(jb.GCN(16).apply)  # (...) -> Graph
reveal_type(jb.Frozen(jb.Conv(16, (3, 3))))  # Layer[Array]
reveal_type(models.LoRA(net, "**/attention/*", rank=4).init(key, x))  # Params

# "State, keys and the train flag"
normalized = jb.Serial(jb.Dense(8), jb.BatchNorm(), jb.relu, jb.Dropout(0.5), jb.Dense(3))
reveal_type(normalized)  # StatefulLayer[Array]
reveal_type(normalized.init(key, x))  # tuple[Params, State]
reveal_type(normalized.apply(params, (), x, train=True, key=key))  # tuple[Array, State]
reveal_type(jb.LSTM(32))  # Layer[Array]
reveal_type(jb.LSTM(5, stateful=True))  # StatefulLayer[Array]
reveal_type(jb.CachedAttention(jb.Attention(4, causal=True), 32))  # StatefulLayer[Array]


# "Layers of your own"
@jb.builder
def NoisyScale(rate: float) -> jb.Layer:
    def apply(params, x, *, train=False):
        return x * params["scale"] if train else x

    return jb.Layer(lambda key, x: {"scale": jnp.ones(x.shape[-1:])}, apply)


reveal_type(NoisyScale)  # (rate: float) -> Layer[Array]

# "Training"
optimizer = optax.adam(1e-3)
ts = jb.init_train_state(key, net, optimizer, x)
reveal_type(ts)  # TrainState
reveal_type(ts.params)  # Params
step = jb.train_step(net, jb.softmax_cross_entropy, optimizer)
reveal_type(step)  # TrainStep
reveal_type(step(ts, x, x))  # tuple[TrainState, Array]
reveal_type(step.lower(ts, x, x).compile())  # Compiled
rows = np.ones((8, 4)), np.ones(8)
fitted = jb.fit(net, jb.softmax_cross_entropy, optimizer, rows, key=key, epochs=5)
reveal_type(fitted)  # Fitted
reveal_type(fitted.params)  # Params
reveal_type(jb.evaluate(net, params, (), rows, {"accuracy": jb.accuracy}))  # dict[str, float]
reveal_type(jb.predict(net, params, (), x))  # Array
reveal_type(jb.load_checkpoint("run", ts))  # TrainState
for batch in jb.minibatches(key, (x, x), 64, epochs=5):
    reveal_type(batch)  # tuple[Array, Array]

# "Derivatives"
loss = lambda params: (net.apply(params, x) ** 2).mean()
product = lambda x: jnp.prod(x)
reveal_type(jb.hvp(loss, params, params))  # Params
reveal_type(jb.hvp(jnp.prod, x, x))  # Array
reveal_type(jb.hvp(lambda w: jnp.sum(w["kernel"]), {"kernel": x}, {"kernel": x}))  # dict[str, Array]
reveal_type(jb.hessian(product, x))  # Array
reveal_type(jb.hessian(loss, params))  # Params
reveal_type(jb.directional_curvature(loss, params, params))  # Array
reveal_type(jb.per_example_gradients(loss, params, x))  # Params
reveal_type(jb.ad.per_example_norms(loss, params, x))  # Array
reveal_type(jb.ad.hessian_operator(loss, params))  # (Params) -> Params
reveal_type(jb.laplacian(product, x))  # Array
reveal_type(jb.ntk(net.apply, params, x))  # Array
reveal_type(jb.cost_table(loss, params))  # CostTable


def decode(x: Float[Array, "n"]) -> Float[Array, "m"]:
    return net.apply(params, x)


reveal_type(jb.jacobian(decode)(x))  # Array
reveal_type(jb.ad.jacobian_plan(decode, x))  # JacobianPlan

# "Weights", language models, diffusion
reveal_type(interop.load("small-bert").params)  # Params
reveal_type(models.Llama(cache=32))  # StatefulLayer[Array]
reveal_type(text.generate(models.Llama(), params, x, key=key, steps=8))  # Array
schedule = diffusion.variance_preserving_schedule()
reveal_type(diffusion.initial_noise(key, (1000, 2), schedule))  # Array
reveal_type(jb.paths(params))  # tuple[str, ...]
