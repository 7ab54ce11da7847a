"""The time before the first step: trace, lowering and compilation, against plain JAX and linen.

    python benchmarks/first_step.py [--rounds N] [part of a name ...]

The nets and the peers are those of ``steps.py``, the transformer with 12 layers, and a U-Net. In each round the
gradient of the loss is traced and compiled anew, with empty caches. Processor times relative to the code by hand,
medians (quartiles).
"""

import argparse
import functools
import importlib
import time

import jax
import jax.numpy as jnp
import numpy as np
import steps
from timing import chosen, processor, ratio

import jaxblocks as jb

PHASES = ("trace", "lower", "compile", "in all")
SIZES = steps.Sizes(layers=12)
WIDTHS, BLOCKS, GROUPS = (32, 64), 2, 8
"""Of the U-Net: 32 x 32 images, two residual blocks for each level, attention at the second one."""


def phases(loss, params, x, y):
    """Processor seconds of tracing, lowering and compiling the gradient of a loss."""
    jax.clear_caches()
    times = [time.process_time()]
    traced = jax.jit(jax.value_and_grad(loss)).trace(params, x, y)
    times.append(time.process_time())
    lowered = traced.lower()
    times.append(time.process_time())
    lowered.compile()
    times.append(time.process_time())
    return np.array([*np.diff(times), times[-1] - times[0]])


# ---- the U-Net ---------------------------------------------------------------------------------


def group_norm(p, x):
    split = x.reshape(*x.shape[:3], GROUPS, -1)
    mean, variance = (f(split, axis=(1, 2, 4), keepdims=True) for f in (jnp.mean, jnp.var))
    return ((split - mean) / jnp.sqrt(variance + 1e-6)).reshape(x.shape) * p["scale"] + p["bias"]


def conv(p, x, *geometry):
    return steps.conv(p, x, *geometry) + p["bias"]


def block(p, x, e):
    h = conv(p["first"]["conv"], jax.nn.silu(group_norm(p["first"]["norm"], x)))
    h = h + steps.dense(p["condition"]["dense"], jax.nn.silu(e))[:, None, None]
    h = conv(p["second"]["conv"], jax.nn.silu(group_norm(p["second"]["norm"], h)))
    y = h + (conv(p["skip"], x) if p["skip"] else x)
    if "attention" not in p:
        return y
    tokens = group_norm(p["attention_norm"], y).reshape(len(y), -1, y.shape[-1])
    q, k, v = (steps.dense(p["attention"][name], tokens) for name in ("query", "key", "value"))
    weights = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", q, k) / jnp.sqrt(q.shape[-1]))
    return y + steps.dense(p["attention"]["out"], weights @ v).reshape(y.shape)


def waves(t):
    rates = 1000 * 10000.0 ** (-np.arange(WIDTHS[0] // 2) / (WIDTHS[0] // 2 - 1))
    angles = t[:, None] * jnp.asarray(rates, jnp.float32)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)


def unet(params, x, t):
    p = params["time"]
    e = steps.dense(p["down"], jax.nn.silu(steps.dense(p["up"], waves(t))))

    def apply_from(level, x):
        skips = [x]
        for i in range(BLOCKS):
            x = block(params[f"down_{level}_{i}"], x, e)
            skips.append(x)
        if level + 1 < len(WIDTHS):
            below = apply_from(level + 1, conv(params[f"downsample_{level}"], x, 2, [(0, 1)] * 2))
            x = conv(params[f"upsample_{level}"]["conv"], below.repeat(2, 1).repeat(2, 2))
        else:
            x = block(params["middle_1"], block(params["middle_0"], x, e), e)
        for i in range(BLOCKS + 1):
            x = block(params[f"up_{level}_{i}"], jnp.concatenate([x, skips.pop()], -1), e)
        return x

    x = apply_from(0, conv(params["stem"], x))
    return conv(params["out"]["conv"], jax.nn.silu(group_norm(params["out"]["norm"], x)))


def linen_unet():
    """The same net in linen."""
    nn = importlib.import_module("flax.linen")
    norm, conv = functools.partial(nn.GroupNorm, GROUPS), functools.partial(nn.Conv, kernel_size=(3, 3))

    class Block(nn.Module):
        features: int
        attend: bool

        @nn.compact
        def __call__(self, x, e):
            h = conv(self.features)(nn.silu(norm()(x))) + nn.Dense(self.features)(nn.silu(e))[:, None, None]
            h = conv(self.features)(nn.silu(norm()(h)))
            y = h + (x if x.shape[-1] == self.features else nn.Conv(self.features, (1, 1))(x))
            if not self.attend:
                return y
            tokens = norm()(y).reshape(len(y), -1, self.features)
            return y + nn.MultiHeadDotProductAttention(1)(tokens, tokens).reshape(y.shape)

    class UNet(nn.Module):
        @nn.compact
        def __call__(self, x, t):
            e = nn.Dense(4 * WIDTHS[0])(nn.silu(nn.Dense(4 * WIDTHS[0])(waves(t))))

            def apply_from(level, x):
                skips, features, attend = [x], WIDTHS[level], level == 1
                for _ in range(BLOCKS):
                    x = Block(features, attend)(x, e)
                    skips.append(x)
                if level + 1 < len(WIDTHS):
                    below = apply_from(level + 1, conv(features, strides=2)(x))
                    x = conv(WIDTHS[level + 1])(below.repeat(2, 1).repeat(2, 2))
                else:
                    x = Block(features, False)(Block(features, True)(x, e), e)
                for _ in range(BLOCKS + 1):
                    x = Block(features, attend)(jnp.concatenate([x, skips.pop()], -1), e)
                return x

            return conv(x.shape[-1])(nn.silu(norm()(apply_from(0, conv(WIDTHS[0])(x)))))

    return UNet()


def unet_variants():
    """The mean square of the outputs, for each variant."""
    x, t = jax.random.normal(steps.KEY, (8, 32, 32, 3)), jnp.linspace(0, 1, 8)
    net = jb.models.UNet(3, width=WIDTHS[0], multipliers=(1, 2), blocks=BLOCKS, groups=GROUPS, dropout=0)
    params = jax.jit(net.init)(steps.KEY, x, time=t)
    # The last kernels are zero at first.
    params = jax.tree.map(lambda p: jax.random.normal(steps.KEY, p.shape) * 0.05, params)
    np.testing.assert_allclose(jax.jit(net.apply)(params, x, time=t), jax.jit(unet)(params, x, t), rtol=1e-4, atol=1e-4)
    mean_square = lambda apply: lambda params, x, t: jnp.mean(apply(params, x, t) ** 2)
    found = {
        "by hand": (mean_square(unet), params),
        "jaxblocks": (mean_square(lambda params, x, t: net.apply(params, x, time=t)), params),
    }
    try:
        model = linen_unet()
        found["linen"] = (mean_square(model.apply), jax.jit(model.init)(steps.KEY, x, t))
    except ImportError:
        print("flax is not installed")
    return found, (x, t)


# ---- the table ---------------------------------------------------------------------------------


def variants(name):
    """The loss and the params of each variant of a row."""
    if name == "U-Net":
        return unet_variants()
    row = steps.rows(SIZES)[name]
    x, y = steps.data(name, row)

    def loss(params, x, y):
        out = row.net.apply(params, x) if isinstance(row.net, jb.Layer) else row.net.apply(*params, x)[0]
        return jb.softmax_cross_entropy(out, y).mean()

    def by_hand(params, x, y):
        return steps.cross_entropy(row.by_hand(params, x), y)

    made = row.net.init(steps.KEY, x)
    found = {"by hand": (by_hand, row.convert(made)), "jaxblocks": (loss, made)}
    try:
        found["linen"] = steps.linen_loss(name, SIZES, x, y, row.classes)[::-1]
    except ImportError:
        print("flax is not installed")
    return found, (x, y)


def main():
    parser = argparse.ArgumentParser(description="Time before the first step against plain JAX and linen.")
    parser.add_argument("parts", nargs="*", metavar="PART", help="of the names of rows; all rows without one")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    print(f"jax {jax.__version__}, {processor()}, processor time, ratios to the code by hand")
    for name in chosen([*steps.rows(SIZES), "U-Net"], options.parts):
        if "batch norm" in name:
            continue  # by hand it has no state
        found, data = variants(name)
        seconds = {variant: [] for variant in found}
        for turn in range(options.rounds + 1):
            for variant in list(found)[:: 1 if turn % 2 else -1]:
                seconds[variant].append(phases(*found[variant], *data))
        seconds = {variant: np.array(rounds[1:]) for variant, rounds in seconds.items()}
        for i, phase in enumerate(PHASES):
            of_phase = {variant: rounds[:, i] for variant, rounds in seconds.items()}
            ratios = {variant: ratio(of_phase, variant, "by hand") for variant in found if variant != "by hand"}
            shown = "   ".join(
                f"{variant} {m:.2f} ({low:.2f} to {high:.2f})" for variant, (m, low, high) in ratios.items()
            )
            print(f"{name:16} {phase:8} {1e3 * np.median(of_phase['by hand']):7.1f} ms by hand   {shown}", flush=True)


if __name__ == "__main__":
    main()
