"""The overhead of the library per call: a small network and its training step against the same code by hand.

    python benchmarks/dispatch.py

Prints the median ratio (ours / by hand) over alternating blocks of calls, with its quartiles. A ratio of 1 means no
overhead; the machine may be busy, so no absolute times are given.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from timing import in_turns, ratio

import jaxblocks as jb


def report(title, seconds):
    middle, low, high = ratio(seconds, "jaxblocks", "by hand")
    print(f"{title:28s} ours / by hand: {middle:.3f}  (quartiles {low:.3f} to {high:.3f})")
    return middle


def forward():
    """A jitted forward pass of 4-8-8-2."""
    net = jb.MLP(8, 8, 2)
    x = jnp.ones((4, 4))
    params = net.init(jax.random.key(0), x)
    own = {"first": params[0], "second": params[2], "third": params[4]}

    @jax.jit
    def by_hand(params, x):
        x = jax.nn.relu(x @ params["first"]["kernel"] + params["first"]["bias"])
        x = jax.nn.relu(x @ params["second"]["kernel"] + params["second"]["bias"])
        return x @ params["third"]["kernel"] + params["third"]["bias"]

    ours = jax.jit(net.apply)
    np.testing.assert_allclose(ours(params, x), by_hand(own, x), rtol=1e-6)
    return {"jaxblocks": lambda: ours(params, x), "by hand": lambda: by_hand(own, x)}


def step():
    """A jitted training step with Adam on the same net."""
    net, optimizer = jb.MLP(8, 8, 2), optax.adam(1e-3)
    x, y = jnp.ones((4, 4)), jnp.array([0, 1, 0, 1])
    ts = [jb.init_train_state(jax.random.key(0), net, optimizer, x)]
    ours = jb.train_step(net, jb.softmax_cross_entropy, optimizer)

    def loss(params, x, y):
        for layer in params[:-1]:
            x = jax.nn.relu(x @ layer["kernel"] + layer["bias"])
        x = x @ params[-1]["kernel"] + params[-1]["bias"]
        return optax.softmax_cross_entropy_with_integer_labels(x, y).mean()

    def by_hand(state, x, y):
        params, opt_state, count = state
        value, grad = jax.value_and_grad(loss)(params, x, y)
        updates, opt_state = optimizer.update(grad, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state, count + 1), value

    by_hand = jax.jit(by_hand, donate_argnums=0)
    params = jax.tree.map(jnp.copy, [ts[0].params[i] for i in (0, 2, 4)])
    state = [(params, optimizer.init(params), jnp.zeros((), jnp.int32))]

    def call_ours():
        ts[0], value = ours(ts[0], x, y)
        return value

    def call_by_hand():
        state[0], value = by_hand(state[0], x, y)
        return value

    np.testing.assert_allclose(call_ours(), call_by_hand(), rtol=1e-6)
    return {"jaxblocks": call_ours, "by hand": call_by_hand}


if __name__ == "__main__":
    print(f"jax {jax.__version__}, {jax.devices()[0].platform}")
    report("forward pass", in_turns(forward(), rounds=60, repeats=300))
    report("training step", in_turns(step(), rounds=60, repeats=300))
