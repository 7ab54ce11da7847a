"""Jacobians by the planned bracketing against jax.jacfwd and jax.jacrev: time, temporary memory and operations.

    python benchmarks/jacobian.py [nets] [chains] [chains=SEED] [tracing] [names of nets]

Each network is written in plain jax.numpy. The three programs of a network are compiled first and then called
alternately in one process. The ratio is the median (with quartiles) over rounds of the time of the faster of jacfwd and
jacrev, divided by the time of ours. Memory is the temporary memory that the compiler reports, for the smaller of jacfwd
and jacrev divided by ours. Times are processor times, which depend little on other work on the machine; to run on one
core, start with
``XLA_FLAGS=--xla_cpu_multi_thread_eigen=false taskset -c 1``.

``tracing`` compares the time to trace the Jacobian of unrolled blocks of attention, without compilation.
"""

import gc
import itertools
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from timing import temporary_bytes

from jaxblocks import max_pool
from jaxblocks.ad import count_flops, jacobian, jacobian_plan


def weights(*shape, seed=0):
    fan_in = np.prod(shape[:-1])
    return jnp.asarray(np.random.RandomState(seed).randn(*shape) / np.sqrt(fan_in), jnp.float32)


def point(*shape):
    return jnp.asarray(np.random.RandomState(7).randn(*shape), jnp.float32)


# ---- nets -----------------------------------------------------------------------------------


def mlp(*widths, activation=jnp.tanh):
    layers = [
        (weights(a, b, seed=i), weights(1, b, seed=100 + i)[0]) for i, (a, b) in enumerate(itertools.pairwise(widths))
    ]

    def f(x):
        for w, b in layers:
            x = activation(x @ w + b)
        return x

    return f, (point(widths[0]),)


def batch_of(f, x, n):
    return jax.vmap(f), (jnp.stack([x[0] * (1 + 0.01 * i) for i in range(n)]),)


def conv(x, w, stride):
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def max_windows(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def mean_windows(x):
    return lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4


def own_max_windows(x):
    return max_pool(x, (2, 2))


def repeated(x, w):
    return conv(x.repeat(2, 1).repeat(2, 2), w, 1)


def transposed(x, w):
    return lax.conv_transpose(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def conv_autoencoder(side=40, code=8, channels=(16, 32), colors=1, *, pool=None, up=transposed, activation=jnp.tanh):
    """Two convolutions, each with a stride of 2 or a pool, a dense code, and two convolutions after upsampling."""
    a, b = channels
    k1, k2 = weights(3, 3, colors, a), weights(3, 3, a, b, seed=1)
    small = side // 4
    w1, w2 = weights(small * small * b, code, seed=2), weights(code, small * small * b, seed=3)
    k3, k4 = weights(3, 3, b, a, seed=4), weights(3, 3, a, colors, seed=5)

    def down(x, w):
        return activation(conv(x, w, 2)) if pool is None else pool(activation(conv(x, w, 1)))

    def f(x):
        x = down(down(x[None], k1), k2)
        x = activation(x.reshape(-1) @ w1)
        x = activation(x @ w2).reshape(1, small, small, b)
        return up(activation(up(x, k3)), k4)[0]

    return f, (point(side, side, colors),)


def conv_classifier(pool, side=28, classes=10):
    """Two convolutions with pools and a dense layer."""
    k1, k2 = weights(3, 3, 1, 16), weights(3, 3, 16, 32, seed=1)
    w = weights((side // 4) ** 2 * 32, classes, seed=2)

    def f(x):
        x = pool(jnp.tanh(conv(x[None], k1, 1)))
        return pool(jnp.tanh(conv(x, k2, 1))).reshape(-1) @ w

    return f, (point(side, side, 1),)


def layer_norm(x):
    x = x - x.mean(-1, keepdims=True)
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)


def attention_block(d, heads, seed):
    qkv, out = weights(d, 3, heads, d // heads, seed=seed), weights(heads, d // heads, d, seed=seed + 1)
    up, down = weights(d, 4 * d, seed=seed + 2), weights(4 * d, d, seed=seed + 3)

    def block(x):
        q, k, v = jnp.moveaxis(jnp.einsum("td,dchk->tchk", layer_norm(x), qkv), 1, 0)
        scores = jax.nn.softmax(jnp.einsum("qhk,shk->hqs", q, k) / np.sqrt(d // heads), axis=-1)
        x = x + jnp.einsum("hqs,shk,hkd->qd", scores, v, out * np.sqrt(heads))
        return x + jax.nn.gelu(layer_norm(x) @ up) @ down

    return block


def transformer(length=32, d=64, code=10):
    first, second = attention_block(d, 4, 10), attention_block(d, 4, 20)
    narrow, wide, out = weights(d, code), weights(code, length * d, seed=1), weights(d, d, seed=2)

    def f(x):
        x = first(x).mean(0) @ narrow
        x = second(jnp.tanh(x @ wide).reshape(length, d))
        return x @ out

    return f, (point(length, d),)


def latent_ode(wide=2048, code=8, steps=8):
    w1, w2 = weights(wide, 256), weights(256, code, seed=1)
    w3, w4 = weights(code, 256, seed=4), weights(256, wide, seed=5)
    a, b = weights(code, 32, seed=2), weights(32, code, seed=3)

    def field(z):
        return jnp.tanh(z @ a) @ b

    def step(z, _):
        h = 0.1
        k1 = field(z)
        k2 = field(z + h / 2 * k1)
        k3 = field(z + h / 2 * k2)
        k4 = field(z + h * k3)
        return z + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None

    def f(x):
        z, _ = lax.scan(step, jnp.tanh(jnp.tanh(x @ w1) @ w2), None, length=steps)
        return jnp.tanh(z @ w3) @ w4

    return f, (point(wide),)


def residual(width=256, blocks=4):
    ws = [(weights(width, width, seed=i), weights(width, width, seed=50 + i)) for i in range(blocks)]

    def f(x):
        for a, b in ws:
            x = x + jnp.tanh(x @ a) @ b
        return x

    return f, (point(width),)


def lstm(length=32, d=16, h=64, out=10):
    w, u, v = weights(d, 4 * h), weights(h, 4 * h, seed=1), weights(h, out, seed=2)

    def f(xs):
        def step(carry, x):
            c, y = carry
            i, g, o, r = jnp.split(x @ w + y @ u, 4)
            c = jax.nn.sigmoid(r) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            return (c, jax.nn.sigmoid(o) * jnp.tanh(c)), None

        (_, y), _ = lax.scan(step, (jnp.zeros(h), jnp.zeros(h)), xs)
        return y @ v

    return f, (point(length, d),)


NETS = {
    "autoencoder 784-256-64-8-64-256-784": lambda: mlp(784, 256, 64, 8, 64, 256, 784),
    "conv autoencoder 40x40, code 8": conv_autoencoder,
    "conv autoencoder 24x24, code 6": lambda: conv_autoencoder(24, 6),
    "transformer 32x64, code 10": transformer,
    "latent ODE 2048-256-8-256-2048": latent_ode,
    "MLP 1024-1024-8-1024-1024": lambda: mlp(1024, 1024, 8, 1024, 1024),
    "MLP 512-512-8-512-512": lambda: mlp(512, 512, 8, 512, 512),
    "two bottlenecks 512-512-16-512-16-512-512": lambda: mlp(512, 512, 16, 512, 16, 512, 512),
    "hourglass 768-512-32-768-1024-64": lambda: mlp(768, 512, 32, 768, 1024, 64),
    "wide middle 256-1024-1024-256": lambda: mlp(256, 1024, 1024, 256),
    "equal widths 512, L=2": lambda: mlp(512, 512, 512),
    "equal widths 512, L=4": lambda: mlp(*[512] * 5),
    "equal widths 256, L=8": lambda: mlp(*[256] * 9),
    "classifier 784-256-64-10": lambda: mlp(784, 256, 64, 10),
    "generator 16-256-784": lambda: mlp(16, 256, 784),
    "widening 16-256-512-512-1024": lambda: mlp(16, 256, 512, 512, 1024),
    "narrowing 1024-512-512-256-16": lambda: mlp(1024, 512, 512, 256, 16),
    "residual 256 x 4": residual,
    "LSTM 32x16-64-10": lstm,
    "small MLP 8-16-16-4": lambda: mlp(8, 16, 16, 4),
    "whole batch of 8, 64-64-4-64-64": lambda: batch_of(*mlp(64, 64, 4, 64, 64), 8),
}
NETS |= {
    f"pools: {side}x{side}x{colors} {of}, code {code}": lambda side=side, colors=colors, code=code, options=options: (
        conv_autoencoder(side, code, colors=colors, **options)
    )
    for side, colors, code, of, options in [
        (16, 1, 4, "max", {"pool": max_windows}),
        (20, 1, 8, "max", {"pool": max_windows}),
        (20, 1, 16, "max", {"pool": max_windows}),
        (28, 1, 8, "max", {"pool": max_windows}),
        (28, 1, 8, "mean", {"pool": mean_windows, "up": repeated}),
        (28, 1, 8, "max_pool", {"pool": own_max_windows}),
        (28, 1, 8, "stride", {}),
        (32, 1, 6, "max", {"pool": max_windows}),
        (32, 3, 6, "max_pool, gelu", {"pool": own_max_windows, "activation": jax.nn.gelu}),
    ]
}
NETS |= {
    "pools: classifier 28x28, max": lambda: conv_classifier(max_windows),
    "pools: classifier 28x28, mean": lambda: conv_classifier(mean_windows),
}
# These nets are mapped over a batch with jax.vmap.
MAPPED = {
    "vmap 32 of 256-256-8-256-256": lambda: (*mlp(256, 256, 8, 256, 256), 32),
    "vmap 8 of 512-512-8-512-512": lambda: (*mlp(512, 512, 8, 512, 512), 8),
}


def programs(f, batch=None):
    made = {"jacfwd": jax.jacfwd(f), "jacrev": jax.jacrev(f), "ours": jacobian(f)}
    return {name: jax.jit(jax.vmap(j) if batch else j) for name, j in made.items()}


def in_turns(compiled, args, budget=2.0):
    """Seconds of processor time per call, in rounds of one measurement of each program."""
    calls = {}
    for name, program in compiled.items():
        jax.block_until_ready(program(*args))
        start = time.perf_counter()
        jax.block_until_ready(program(*args))
        calls[name] = max(1, min(20, int(0.02 / (time.perf_counter() - start))))
    seconds = {name: [] for name in compiled}
    begun = time.perf_counter()
    turn = 0
    while turn < 7 or (time.perf_counter() - begun < budget and turn < 41):
        for name in list(compiled)[:: 1 if turn % 2 else -1]:
            start = time.process_time()
            for _ in range(calls[name]):
                out = compiled[name](*args)
                jax.block_until_ready(out)
                del out
            seconds[name].append((time.process_time() - start) / calls[name])
        turn += 1
    return {name: np.array(values) for name, values in seconds.items()}


def report(name, f, args, batch=None):
    if batch:
        args = (jnp.stack([args[0] * (1 + 0.01 * i) for i in range(batch)]),)
    plan = jacobian_plan(f, args[0][0] if batch else args[0])
    compiled = {key: program.lower(*args).compile() for key, program in programs(f, batch).items()}
    temp = {key: temporary_bytes(program) for key, program in compiled.items()}
    out = {key: np.asarray(program(*args)) for key, program in compiled.items()}
    error = np.abs(out["ours"] - out["jacrev"]).max() / np.abs(out["jacrev"]).max()
    del out
    seconds = in_turns(compiled, args)
    better = min(("jacfwd", "jacrev"), key=lambda key: np.median(seconds[key]))
    low, ratio, high = np.percentile(seconds[better] / seconds["ours"], [25, 50, 75])
    flops = {
        key: count_flops(jax.vmap(j) if batch else j, *args).flops
        for key, j in {"jacfwd": jax.jacfwd(f), "jacrev": jax.jacrev(f), "ours": jacobian(f)}.items()
    }
    milliseconds = "/".join(f"{1e3 * np.median(seconds[key]):.3g}" for key in seconds)
    print(
        f"{name:38s} time {ratio:6.2f}x ({low:.2f} to {high:.2f}; {milliseconds} ms)  "
        f"temp {min(temp['jacfwd'], temp['jacrev']) / max(temp['ours'], 1):7.1f}x  "
        f"operations {min(flops['jacfwd'], flops['jacrev']) / flops['ours']:6.2f}x  predicted {plan.gain:6.2f}x "
        f"{plan.mode:8s} {plan.bracketing[:40]}  error {error:.0e}",
        flush=True,
    )
    return ratio


def random_chains(seed=None, n=24):
    """Chains of 3 to 10 layers: widths 2^U(3, 9.3), the same ones in every run, or, from a seed, of 10 to 400."""
    rng, made = np.random.RandomState(seed or 0), []
    for _ in range(n):
        of = (lambda: int(2 ** rng.uniform(3, 9.3))) if seed is None else (lambda: rng.randint(10, 401))
        widths = [of() for _ in range(rng.randint(3, 11) + 1)]
        made.append(("-".join(map(str, widths)), widths))
    return made


# ---- tracing --------------------------------------------------------------------------------


def unrolled_transformer(depth=48, length=4, d=8, out=4):
    blocks = [attention_block(d, 2, 4 * i) for i in range(depth)]

    def f(x):
        for block in blocks:
            x = block(x)
        return x[0, :out]

    return f, (point(length, d),)


def report_tracing(name, f, args, stock="jacrev", rounds=5):
    """The time to trace `jacobian` over that of the mode of JAX that it selects."""
    plan = jacobian_plan(f, *args)
    seconds = {"ours": [], stock: []}
    for turn in range(rounds + 1):
        for key in ("ours", stock)[:: 1 if turn % 2 else -1]:
            derivative = jacobian(f) if key == "ours" else getattr(jax, stock)(f)
            jax.clear_caches()
            gc.collect()
            start = time.process_time()
            jax.jit(derivative).trace(*args)
            seconds[key].append(time.process_time() - start)
    ours, theirs = (np.array(seconds[key][1:]) for key in ("ours", stock))  # the first round imports and warms up
    low, middle, high = np.percentile(ours / theirs, [25, 50, 75])
    print(
        f"{name:38s} tracing {middle:.2f} ({low:.2f} to {high:.2f}) of {stock}, "
        f"{np.median(ours):.2f} s / {np.median(theirs):.2f} s, {plan.mode}",
        flush=True,
    )


TRACED = {
    "48 blocks of attention": lambda: (*unrolled_transformer(), "jacrev"),
    "generator of 40 layers, 4 to 16": lambda: (*mlp(4, *[8] * 40, 16), "jacfwd"),
    "transformer 32x64, code 10": lambda: (*transformer(), "jacrev"),
}


if __name__ == "__main__":
    print(f"jax {jax.__version__}, {jax.devices()[0].platform}, float32; ratios are better of jacfwd and jacrev / ours")
    asked = sys.argv[1:] or ["nets", "chains"]
    ratios = []
    for name, make in NETS.items():
        if "nets" in asked or any(word in name for word in asked):
            ratios.append(report(name, *make()))
    for name, make in MAPPED.items():
        if "nets" in asked or any(word in name for word in asked):
            ratios.append(report(name, *make()))
    if ratios:
        print(f"nets: median {np.median(ratios):.2f}, least {np.min(ratios):.2f}")
    for name, make in TRACED.items():
        if "tracing" in asked:
            report_tracing(name, *make())
    for word in asked:
        if not word.startswith("chains"):
            continue
        ratios = [report(name, *mlp(*widths)) for name, widths in random_chains(*map(int, word.split("=")[1:]))]
        print(f"chains: geometric mean {np.exp(np.mean(np.log(ratios))):.2f}, least {np.min(ratios):.2f}")
