"""Derivatives against torch.func, curvlinops and folx: the programs of docs/why_derivatives.md, in turns.

    pip install folx curvlinops-for-pytorch
    taskset -c 0 python benchmarks/derivative_peers.py [products_and_examples] [eigenvalues] [kfac] [laplacians]

One thread each; processor time relative to jaxblocks, medians (quartiles). The net is an MLP 64-256-256-10 with tanh,
the batch has 128 examples; the Laplacian is that of an MLP 30-128-128-128-1 with gelu at 16 points.
"""

import functools
import sys
import time

import curvlinops
import folx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse.linalg
import torch
from laplacian import pairs
from timing import in_turns, ratio

import jaxblocks as jb

ROUNDS = 15
NAMES = ("kernel", "bias")


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


def report(title, calls, base="jaxblocks", repeats=5):
    seconds = in_turns(calls, rounds=ROUNDS, repeats=repeats, clock=time.process_time)
    for name in calls:
        if name != base:
            middle, low, high = ratio(seconds, name, base)
            print(f"{title:28} {name:24} {middle:6.2f} ({low:.2f} to {high:.2f})", flush=True)


def products_and_examples():
    """Hessian-vector products, gradients of each example, and their norms."""
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


def eigenvalues(count=5, steps=50):
    """The largest eigenvalues of the Hessian, by Lanczos, with as many steps as agree with SciPy to 2e-3."""
    net, params, x, y, module, x_torch, y_torch = nets()
    loss = lambda params: jb.softmax_cross_entropy(net.apply(params, x), y).mean()
    weights = list(module.parameters())
    operator = curvlinops.HessianLinearOperator(module, torch.nn.CrossEntropyLoss(), weights, [(x_torch, y_torch)])
    found = jax.jit(
        lambda params: jb.ad.largest_eigenvalues(
            jax.random.key(0), jb.ad.hessian_operator(loss, params), params, count=count, steps=steps
        )
    )
    as_scipy = operator.to_scipy()
    start = np.random.default_rng(0).normal(size=as_scipy.shape[0]).astype(np.float32)
    theirs = lambda: scipy.sparse.linalg.eigsh(as_scipy, k=count, which="LA", tol=1e-3, v0=start)[0]
    np.testing.assert_allclose(found(params).values[::-1], theirs(), rtol=2e-3)
    print("bounds of the eigenvalues, relative:", np.max(found(params).bounds / found(params).values))
    calls = {"jaxblocks": lambda: found(params), "curvlinops, SciPy": theirs}
    report(f"{count} eigenvalues of the Hessian", calls, repeats=1)


def kfac(damping=1e-2):
    """The Kronecker factors of the Gauss-Newton matrix, and a gradient divided by the matrix with exact damping."""
    net, params, x, y, module, x_torch, y_torch = nets()
    one = lambda outputs, y: jb.softmax_cross_entropy(outputs, y)
    gradients = jax.grad(lambda params: one(net.apply(params, x), y).mean())(params)
    weights = list(module.parameters())
    # In torch each bias follows its kernel, and kernels are transposed.
    as_torch = lambda tree: [torch.tensor(np.asarray(tree[i][name]).T.copy()) for i in (0, 2, 4) for name in NAMES]

    def ours(params, gradients):
        curvature = jb.ad.structured_curvature(jb.ad.as_function(net), one, params, x, y)
        return curvature.inverse(damping=damping)(gradients)

    ours, gradients_torch = jax.jit(ours), as_torch(gradients)

    def theirs():
        matrix = curvlinops.KFACLinearOperator(
            module,
            torch.nn.CrossEntropyLoss(),
            weights,
            [(x_torch, y_torch)],
            fisher_type="type-2",
            check_deterministic=False,
        )
        return curvlinops.KFACInverseLinearOperator(matrix, damping=damping, use_exact_damping=True) @ gradients_torch

    for a, b in zip(as_torch(ours(params, gradients)), theirs(), strict=True):
        np.testing.assert_allclose(a, b.detach(), rtol=1e-2, atol=1e-3 * float(b.abs().max()))
    report("KFAC step", {"jaxblocks": lambda: ours(params, gradients), "curvlinops": theirs}, repeats=1)


def laplacians():
    """The Laplacian of a net at 16 points, and of sums over pairs of particles at 4; folx with sparse Jacobians."""
    quantum = jb.MLP(128, 128, 128, 1, activation=jb.gelu)
    points = jax.random.normal(jax.random.key(2), (16, 30))
    q = quantum.init(jax.random.key(1), points)
    cases = {"Laplacian": (lambda x: quantum.apply(q, x)[0], points)}
    for particles in (16, 32):
        x = jax.random.normal(jax.random.key(3), (4, particles, 3))
        cases[f"Laplacian, {particles} particles"] = (pairs(particles), x)
    for title, (f, x) in cases.items():
        ours = jax.jit(jax.vmap(lambda x, f=f: jb.laplacian(f, x)))
        theirs = jax.jit(jax.vmap(lambda x, f=f: folx.forward_laplacian(f, sparsity_threshold=6)(x).laplacian))
        trace = jax.jit(jax.vmap(lambda x, f=f: jnp.trace(jax.hessian(f)(x).reshape(x.size, x.size))))
        np.testing.assert_allclose(ours(x), theirs(x), rtol=1e-3, atol=1e-5)
        calls = {"jaxblocks": ours, "folx": theirs, "trace of jax.hessian": trace}
        report(title, {name: functools.partial(call, x) for name, call in calls.items()})


if __name__ == "__main__":
    torch.set_num_threads(1)
    parts = {f.__name__: f for f in (products_and_examples, eigenvalues, kfac, laplacians)}
    for part in sys.argv[1:] or parts:
        parts[part]()
