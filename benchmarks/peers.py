"""Derivatives against torch.func, curvlinops and folx: the programs of docs/why_derivatives.md, in turns.

    pip install folx curvlinops-for-pytorch
    taskset -c 0 python benchmarks/peers.py

One thread each; processor time relative to jaxblocks, medians (quartiles). The net is an MLP 64-256-256-10 with tanh,
the batch has 128 examples; the Laplacian is that of an MLP 30-128-128-128-1 with gelu at 16 points.
"""

import time

import curvlinops
import folx
import jax
import jax.numpy as jnp
import numpy as np
import torch
from timing import in_turns, ratio

import jaxblocks as jb

ROUNDS = 15


def nets():
    """The same net, params, data and direction in JAX and in PyTorch."""
    net = jb.MLP(256, 256, 10, activation=jb.tanh)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(128, 64)).astype(np.float32), np.arange(128) % 10
    params = net.init(jax.random.key(0), x)
    linear = lambda i, o: torch.nn.Linear(i, o)
    module = torch.nn.Sequential(linear(64, 256), torch.nn.Tanh(), linear(256, 256), torch.nn.Tanh(), linear(256, 10))
    with torch.no_grad():
        for i in (0, 2, 4):
            module[i].weight.copy_(torch.tensor(np.asarray(params[i]["kernel"]).T.copy()))
            module[i].bias.copy_(torch.tensor(np.asarray(params[i]["bias"])))
    return net, params, jnp.asarray(x), jnp.asarray(y), module, torch.tensor(x), torch.tensor(y)


def report(title, calls, base="jaxblocks"):
    seconds = in_turns(calls, rounds=ROUNDS, repeats=5, clock=time.process_time)
    for name in calls:
        if name != base:
            middle, low, high = ratio(seconds, name, base)
            print(f"{title:28} {name:24} {middle:6.2f} ({low:.2f} to {high:.2f})", flush=True)


def main():
    torch.set_num_threads(1)
    net, params, x, y, module, x_torch, y_torch = nets()
    loss = lambda params: jb.softmax_cross_entropy(net.apply(params, x), y).mean()
    one = lambda params, x, y: jb.softmax_cross_entropy(net.apply(params, x), y)
    weights = dict(module.named_parameters())
    cross_entropy = torch.nn.functional.cross_entropy
    loss_torch = lambda weights: cross_entropy(torch.func.functional_call(module, weights, (x_torch,)), y_torch)
    v = jax.tree.map(jnp.ones_like, params)
    v_torch = {name: torch.ones_like(weight) for name, weight in weights.items()}

    hvp = jax.jit(lambda params, v: jb.hvp(loss, params, v))
    operator = curvlinops.HessianLinearOperator(
        module, torch.nn.CrossEntropyLoss(), list(weights.values()), [(x_torch, y_torch)]
    )
    hvp_torch = lambda: torch.func.jvp(torch.func.grad(loss_torch), (weights,), (v_torch,))[1]
    report(
        "Hessian-vector product",
        {
            "jaxblocks": lambda: hvp(params, v),
            "torch.func": hvp_torch,
            "curvlinops": lambda: operator @ list(v_torch.values()),
        },
    )

    each = jax.jit(lambda params: jb.per_example_gradients(one, params, x, y))
    norms = jax.jit(lambda params: jb.ad.per_example_norms(one, params, x, y))
    one_torch = lambda weights, x, y: cross_entropy(torch.func.functional_call(module, weights, (x[None],)), y[None])
    each_torch = torch.func.vmap(torch.func.grad(one_torch), in_dims=(None, 0, 0))

    def norms_torch():
        gradients = each_torch(weights, x_torch, y_torch).values()
        return torch.sqrt(sum((g**2).flatten(1).sum(1) for g in gradients))

    report(
        "gradients of each example",
        {"jaxblocks": lambda: each(params), "torch.func": lambda: each_torch(weights, x_torch, y_torch)},
    )
    report("their norms", {"jaxblocks": lambda: norms(params), "torch.func": norms_torch})

    quantum = jb.MLP(128, 128, 128, 1, activation=jb.gelu)
    points = jax.random.normal(jax.random.key(2), (16, 30))
    q = quantum.init(jax.random.key(1), points)
    f = lambda x: quantum.apply(q, x)[0]
    ours = jax.jit(jax.vmap(lambda x: jb.laplacian(f, x)))
    theirs = jax.jit(jax.vmap(lambda x: folx.forward_laplacian(f)(x).laplacian))
    trace = jax.jit(jax.vmap(lambda x: jnp.trace(jax.hessian(f)(x))))
    np.testing.assert_allclose(ours(points), theirs(points), rtol=1e-3, atol=1e-5)
    report(
        "Laplacian",
        {
            "jaxblocks": lambda: ours(points),
            "folx": lambda: theirs(points),
            "trace of jax.hessian": lambda: trace(points),
        },
    )


if __name__ == "__main__":
    main()
