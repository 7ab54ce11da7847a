"""Whole training steps against plain JAX with dict params, and against other libraries where they are installed.

    python benchmarks/steps.py [--cpu-time] [--seed N | --seeds N] [part of a name ...]

``--seed 3`` draws all sizes, ``--seeds 5`` draws those of the seeds 0 to 4 and reports the geometric mean and the worst
ratio of each row: lengths, widths, heads, batches and channels from 0.6 to 1.6 of the table's, none a multiple of 8.

The peers are optional: flax (linen), equinox and torch (eager, fused Adam) are left out where they cannot be imported.
An environment of its own for all of them:

    uv venv peers && uv pip install --python peers -e . flax equinox torch

A step is forward pass, backward pass and Adam. Times are medians (quartiles) of ratios to the step by hand, of calls
in turns; the first losses of the library and of the code by hand are compared before. Attention is measured alone.
On a busy machine use processor time on one core: ``taskset -c 0 python benchmarks/steps.py --cpu-time``.
"""

import argparse
import functools
import importlib
import itertools
import operator
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from timing import chosen, in_turns, processor, ratio

import jaxblocks as jb
from jaxblocks import models

OPTIMIZER = optax.adam(1e-6)  # the nets hardly change, so that no step meets the denormal numbers of a fitted net
KEY = jax.random.key(0)


class Sizes(NamedTuple):
    """The sizes of all rows; the defaults are those of the table."""

    batch: int = 128
    inputs: int = 64
    width: int = 512
    depth: int = 64
    residual: int = 128  # features of the residual MLP
    images: int = 64
    height: int = 32
    channels: int = 32  # twice as many after the second convolution
    sequences: int = 32
    time: int = 128
    features: int = 64
    hidden: int = 128
    texts: int = 8
    tokens: int = 256
    layers: int = 4
    heads: int = 8
    head_dim: int = 32
    words: int = 1000
    short: int = 1024  # positions of the attention that is measured alone, of heads * head_dim features
    long: int = 4096
    attention_heads: int = 8
    attention_dim: int = 64


def drawn(seed: int) -> Sizes:
    """Sizes that nobody chose: each uniform from 0.6 to 1.6 of the table's, and no multiple of 8."""
    rng = np.random.default_rng(seed)
    sizes = [int(rng.integers(round(0.6 * size), round(1.6 * size), endpoint=True)) for size in Sizes()]
    return Sizes(*(size + (size % 8 == 0) for size in sizes))


def cross_entropy(logits, y):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[..., None], -1).mean()


# ---- by hand: plain functions of dicts, as one writes them first -------------------------------


def dense(p, x):
    return x @ p["kernel"] + p["bias"]


def mlp(params, x):
    *hidden, last = [p for p in params if p]
    for p in hidden:
        x = jax.nn.relu(dense(p, x))
    return dense(last, x)


def residual_mlp(params, x):
    for p in params[0]:
        x = x + jax.nn.relu(dense(p, x))
    return dense(params[1], x)


def conv(p, x, stride=1, padding="SAME"):
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, p["kernel"], (stride, stride), padding, dimension_numbers=layout)


def pool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def cnn(params, x):
    one, two, last = (p for p in params if p)
    x = pool(jax.nn.relu(conv(one, x) + one["bias"]))
    x = pool(jax.nn.relu(conv(two, x) + two["bias"]))
    return dense(last, x.reshape(len(x), -1))


def batch_norm(p, x):  # the running averages are left out, in favor of the code by hand
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    return (x - mean) / jnp.sqrt(variance + 1e-3) * p["scale"] + p["bias"]


def cnn_with_batch_norm(params, x):
    one, norm_one, two, norm_two, last = (p for p in params if p)
    x = pool(jax.nn.relu(batch_norm(norm_one, conv(one, x))))
    x = pool(jax.nn.relu(batch_norm(norm_two, conv(two, x))))
    return dense(last, x.reshape(len(x), -1))


def lstm(params, x):
    p, last = params

    def step(carry, x):
        h, c = carry
        z = x @ p["kernel"] + p["bias"] + h @ p["recurrent_kernel"] + p["recurrent_bias"]
        i, f, g, o = jnp.split(z, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros((len(x), len(p["recurrent_kernel"])))
    return dense(last, jnp.moveaxis(lax.scan(step, (zeros, zeros), jnp.moveaxis(x, 1, 0))[1], 0, 1))


def gru(params, x):
    p, last = params

    def step(h, x):
        xr, xz, xn = jnp.split(x @ p["kernel"] + p["bias"], 3, -1)
        hr, hz, hn = jnp.split(h @ p["recurrent_kernel"] + p["recurrent_bias"], 3, -1)
        r, z = jax.nn.sigmoid(xr + hr), jax.nn.sigmoid(xz + hz)
        h = (1 - z) * jnp.tanh(xn + r * hn) + z * h
        return h, h

    zeros = jnp.zeros((len(x), len(p["recurrent_kernel"])))
    return dense(last, jnp.moveaxis(lax.scan(step, zeros, jnp.moveaxis(x, 1, 0))[1], 0, 1))


def layer_norm(p, x):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(variance + 1e-5) * p["scale"] + p["bias"]


def causal_attention(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(q.shape[-1])
    scores = jnp.where(jnp.tri(q.shape[1], dtype=bool), scores, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def transformer(heads, params, tokens):
    table = params["tokens"]["embedding"]
    x = table[tokens] + params["positions"]["embedding"][: tokens.shape[1]]
    for p in params["blocks"]:
        y = layer_norm(p["attention_norm"], x)
        q, k, v = (
            dense(p["attention"][name], y).reshape(*y.shape[:2], heads, -1) for name in ("query", "key", "value")
        )
        x = x + dense(p["attention"]["out"], causal_attention(q, k, v).reshape(x.shape))
        hidden = jax.nn.gelu(dense(p["mlp"]["up"], layer_norm(p["mlp_norm"], x)))
        x = x + dense(p["mlp"]["down"], hidden)
    return layer_norm(params["norm"], x) @ table.T


# ---- the table ---------------------------------------------------------------------------------


class Row(NamedTuple):
    """A net, the code by hand with its params from those of the net, and what both are called with."""

    net: Any
    by_hand: Callable
    convert: Callable
    shape: tuple[int, ...]
    classes: int
    rounds: int


def convolutions(channels, *norms):
    parts = [(jb.Conv(n, (3, 3), padding="same", use_bias=not norms), *(f() for f in norms)) for n in channels]
    one, two = ((*part, jb.relu, jb.MaxPool((2, 2))) for part in parts)
    return jb.Serial(*one, *two, jb.Flatten(spatial=2), jb.Dense(10))


def unstacked(params, n):
    return [jax.tree.map(operator.itemgetter(i), params) for i in range(n)]


def rows(s: Sizes) -> dict[str, Row]:
    """The rows of the table at these sizes."""
    same, channels = lambda params: params, (s.channels, 2 * s.channels)
    images, sequences = (s.images, s.height, s.height, 3), (s.sequences, s.time, s.features)
    residual = jb.Serial(jb.Repeat(jb.Residual(jb.Dense(s.residual), jb.relu), s.depth), jb.Dense(10))
    gpt2 = models.GPT2(
        layers=s.layers,
        heads=s.heads,
        features=s.heads * s.head_dim,
        vocab_size=s.words,
        max_length=s.tokens,
        dropout=0.0,
    )
    return {
        "tiny MLP": Row(jb.MLP(8, 8, 2), mlp, same, (4, 4), 2, 2000),
        "MLP": Row(jb.MLP(s.width, s.width, 10), mlp, same, (s.batch, s.inputs), 10, 300),
        "residual MLP": Row(
            residual,
            residual_mlp,
            lambda params: ([p[0] for p in unstacked(params[0], s.depth)], params[1]),
            (s.batch, s.residual),
            10,
            100,
        ),
        "CNN": Row(convolutions(channels), cnn, same, images, 10, 30),
        "CNN + batch norm": Row(convolutions(channels, jb.BatchNorm), cnn_with_batch_norm, same, images, 10, 30),
        "LSTM": Row(jb.Serial(jb.LSTM(s.hidden), jb.Dense(10)), lstm, same, sequences, 10, 60),
        "GRU": Row(jb.Serial(jb.GRU(s.hidden), jb.Dense(10)), gru, same, sequences, 10, 60),
        "transformer LM": Row(
            gpt2,
            functools.partial(transformer, s.heads),
            lambda params: params | {"blocks": unstacked(params["blocks"], s.layers)},
            (s.texts, s.tokens),
            s.words,
            12,
        ),
    }


def jax_step(params, loss, x, y, donate=False):
    """A call that makes one step and keeps the params."""

    @functools.partial(jax.jit, donate_argnums=(0, 1) if donate else ())
    def step(params, opt_state, x, y):
        value, grads = jax.value_and_grad(loss)(params, x, y)
        updates, opt_state = OPTIMIZER.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, value

    kept = [jax.tree.map(jnp.copy, params), OPTIMIZER.init(params)]

    def call():
        *kept[:], value = step(*kept, x, y)
        return value

    return call


def data(name, row):
    """The inputs and labels of one row."""
    of_x, of_y = jax.random.split(KEY)
    tokens = "LM" in name
    x = jax.random.randint(of_x, row.shape, 0, row.classes) if tokens else jax.random.normal(of_x, row.shape)
    places = row.shape if tokens else row.shape[:2] if name in ("LSTM", "GRU") else row.shape[:1]
    return x, jax.random.randint(of_y, places, 0, row.classes)


def steps(name, sizes):
    """The calls of one row."""
    row = rows(sizes)[name]
    x, y = data(name, row)

    def of_library(**options):
        kept = [jb.init_train_state(KEY, row.net, OPTIMIZER, x)]
        step = jb.train_step(row.net, jb.softmax_cross_entropy, OPTIMIZER, **options)

        def call():
            kept[0], value = step(kept[0], x, y)
            return value

        return call, kept[0].params

    ours, params = of_library()
    params = jax.tree.map(jnp.copy, row.convert(params))
    loss = lambda params, x, y: cross_entropy(row.by_hand(params, x), y)
    calls = {"by hand": jax_step(params, loss, x, y), "jaxblocks": ours}
    calls["by hand, donated"] = jax_step(params, loss, x, y, donate=True)
    calls["jaxblocks, donated"] = of_library(donate=True)[0]
    np.testing.assert_allclose(calls["by hand"](), ours(), rtol=1e-4)
    for peer in (linen_step, equinox_step, torch_step):
        try:
            call = peer(name, sizes, x, y, row.classes)
        except ImportError as error:
            print(f"{error.name} is not installed")
            continue
        if call is not None:
            calls[peer.__name__.removesuffix("_step")] = call
    return calls


# ---- peers -------------------------------------------------------------------------------------


def linen_loss(name, s, x, y, classes):
    """The params and the loss of a row in linen."""
    nn = importlib.import_module("flax.linen")

    def recurrent(cell):
        return nn.Sequential([nn.RNN(cell), nn.Dense(10)])

    width = s.heads * s.head_dim

    def convolutions(*norms):
        channels = s.channels, 2 * s.channels
        parts = [[nn.Conv(n, (3, 3), use_bias=not norms), *(f() for f in norms), nn.relu, max_pool] for n in channels]
        return nn.Sequential([*parts[0], *parts[1], lambda x: x.reshape(len(x), -1), nn.Dense(10)])

    max_pool = functools.partial(nn.max_pool, window_shape=(2, 2), strides=(2, 2))

    class Residual(nn.Module):
        @nn.compact
        def __call__(self, x):
            for _ in range(s.depth):
                x = x + nn.relu(nn.Dense(s.residual)(x))
            return nn.Dense(10)(x)

    class Transformer(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            table, mask = nn.Embed(s.words, width), nn.make_causal_mask(tokens)
            x = table(tokens) + self.param("positions", nn.initializers.normal(0.01), (s.tokens, width))
            for _ in range(s.layers):
                x = x + nn.MultiHeadDotProductAttention(s.heads)(nn.LayerNorm()(x), mask=mask)
                x = x + nn.Dense(width)(nn.gelu(nn.Dense(4 * width)(nn.LayerNorm()(x))))
            return table.attend(nn.LayerNorm()(x))

    net = {
        "tiny MLP": lambda: nn.Sequential([nn.Dense(8), nn.relu, nn.Dense(8), nn.relu, nn.Dense(2)]),
        "MLP": lambda: nn.Sequential([nn.Dense(s.width), nn.relu, nn.Dense(s.width), nn.relu, nn.Dense(10)]),
        "residual MLP": Residual,
        "CNN": convolutions,
        "CNN + batch norm": lambda: convolutions(functools.partial(nn.BatchNorm, use_running_average=False)),
        "LSTM": lambda: recurrent(nn.OptimizedLSTMCell(s.hidden)),
        "GRU": lambda: recurrent(nn.GRUCell(s.hidden)),
        "transformer LM": Transformer,
    }[name]()
    variables = net.init(KEY, x)
    others = {kind: value for kind, value in variables.items() if kind != "params"}

    def loss(params, x, y):
        return cross_entropy(net.apply({"params": params, **others}, x, mutable=list(others))[0], y)

    return variables["params"], loss


def linen_step(name, s, x, y, classes):
    return jax_step(*linen_loss(name, s, x, y, classes), x, y)


def equinox_step(name, s, x, y, classes):
    eqx = importlib.import_module("equinox")
    if name not in ("tiny MLP", "MLP"):
        return None
    width = {"tiny MLP": 8, "MLP": s.width}[name]
    model = eqx.nn.MLP(x.shape[-1], classes, width, 2, key=KEY)

    @eqx.filter_jit
    def step(model, opt_state, x, y):
        value, grads = eqx.filter_value_and_grad(lambda model: cross_entropy(jax.vmap(model)(x), y))(model)
        updates, opt_state = OPTIMIZER.update(grads, opt_state)
        return eqx.apply_updates(model, updates), opt_state, value

    kept = [model, OPTIMIZER.init(eqx.filter(model, eqx.is_array))]

    def call():
        *kept[:], value = step(*kept, x, y)
        return value

    return call


def torch_on_the_same_device():
    """Torch, and the device that is JAX's default; on a GPU its products are TF32, as those of JAX."""
    torch = importlib.import_module("torch")
    torch.set_float32_matmul_precision("high")
    return torch, "cuda" if jax.default_backend() == "gpu" else "cpu"


def torch_step(name, s, x, y, classes):
    torch, device = torch_on_the_same_device()
    torch.manual_seed(0)
    nn, F = torch.nn, torch.nn.functional
    width = s.heads * s.head_dim

    class Residual(nn.Linear):
        def forward(self, x):
            return x + F.relu(super().forward(x))

    class Recurrent(nn.Module):
        def __init__(self, kind):
            super().__init__()
            self.cells, self.last = kind(s.features, s.hidden, batch_first=True), nn.Linear(s.hidden, 10)

        def forward(self, x):
            return self.last(self.cells(x)[0])

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
            self.qkv, self.out, self.up, self.down = (
                nn.Linear(width * a, width * b) for a, b in ((1, 3), (1, 1), (1, 4), (4, 1))
            )

        def forward(self, x):
            q, k, v = self.qkv(self.norms[0](x)).view(*x.shape[:2], 3, s.heads, -1).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(x.shape))
            return x + self.down(F.gelu(self.up(self.norms[1](x)), approximate="tanh"))

    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(s.words, width), nn.Embedding(s.tokens, width)
            self.blocks = nn.Sequential(*(Block() for _ in range(s.layers)), nn.LayerNorm(width))

        def forward(self, tokens):
            return self.blocks(self.tokens(tokens) + self.positions.weight) @ self.tokens.weight.T

    def convolutions(norm):
        parts = [
            [nn.Conv2d(a, b, 3, padding=1, bias=not norm), *([nn.BatchNorm2d(b)] * norm), nn.ReLU(), nn.MaxPool2d(2)]
            for a, b in ((3, s.channels), (s.channels, 2 * s.channels))
        ]
        return nn.Sequential(*parts[0], *parts[1], nn.Flatten(), nn.Linear(2 * s.channels * (s.height // 4) ** 2, 10))

    def dense(*widths):
        parts = [part for pair in itertools.pairwise(widths) for part in (nn.Linear(*pair), nn.ReLU())]
        return nn.Sequential(*parts[:-1])

    net = {
        "tiny MLP": lambda: dense(4, 8, 8, 2),
        "MLP": lambda: dense(s.inputs, s.width, s.width, 10),
        "residual MLP": lambda: nn.Sequential(
            *(Residual(s.residual, s.residual) for _ in range(s.depth)), nn.Linear(s.residual, 10)
        ),
        "CNN": lambda: convolutions(norm=0),
        "CNN + batch norm": lambda: convolutions(norm=1),
        "LSTM": lambda: Recurrent(nn.LSTM),
        "GRU": lambda: Recurrent(nn.GRU),
        "transformer LM": Transformer,
    }[name]().to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-6, fused=True)
    x, y = torch.from_numpy(np.array(x)).to(device), torch.from_numpy(np.array(y, np.int64)).to(device)
    x = x if x.is_floating_point() else x.long()
    x = x.permute(0, 3, 1, 2).contiguous() if x.ndim == 4 else x

    def call():
        optimizer.zero_grad()
        value = F.cross_entropy(net(x).reshape(-1, classes), y.reshape(-1))
        value.backward()
        optimizer.step()
        return value.item()  # waits for the device

    return call


# ---- attention ---------------------------------------------------------------------------------


def attention(length, of, sizes):
    """The calls of causal attention of the short or the long sequence: the forward pass or the gradient."""
    shape = 1, getattr(sizes, length), sizes.attention_heads, sizes.attention_dim
    qkv = [jax.random.normal(key, shape) for key in jax.random.split(KEY, 3)]
    forms = {
        "by hand": causal_attention,
        "jaxblocks": functools.partial(jb.attention, causal=True),
        "jax.nn": functools.partial(jax.nn.dot_product_attention, is_causal=True),
    }
    derive = {"forward": lambda f: f, "gradient": lambda f: jax.grad(lambda *qkv: jnp.sum(f(*qkv) ** 2), (0, 1, 2))}
    calls = {name: functools.partial(jax.jit(derive[of](f)), *qkv) for name, f in forms.items()}
    try:
        torch, device = torch_on_the_same_device()
    except ImportError:
        return calls
    leaves = [torch.from_numpy(np.array(x)).to(device).transpose(1, 2) for x in qkv]
    leaves = [leaf.requires_grad_(of == "gradient") for leaf in leaves]

    def call():
        out = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=True)
        if of == "gradient":
            out, *_ = torch.autograd.grad((out**2).sum(), leaves)
        return out[0, 0, 0, 0].item()  # waits for the device

    return calls | {"torch": call}


# ---- reports -----------------------------------------------------------------------------------


def measured(calls, rounds, clock):
    """Median and quartiles of the ratio of each call to that by hand."""
    seconds = in_turns(calls, rounds=rounds, clock=clock)
    return {other: ratio(seconds, other, "by hand") for other in calls if other != "by hand"}


def over_seeds(calls, seeds, rounds, clock):
    """Geometric mean and worst of the medians over the seeds, of each call."""
    medians = [{other: m for other, (m, *_) in measured(calls(drawn(seed)), rounds, clock).items()} for seed in seeds]
    columns = {other: np.array([of_seed[other] for of_seed in medians]) for other in medians[0]}
    return {other: (np.exp(np.log(column).mean()), column.max()) for other, column in columns.items()}


def main():
    parser = argparse.ArgumentParser(description="Training steps against plain JAX and other libraries.")
    parser.add_argument("--cpu-time", action="store_true", help="seconds of the processor instead of the clock")
    parser.add_argument("--seed", type=int, help="draw the sizes from this seed")
    parser.add_argument("--seeds", type=int, help="the geometric mean and the worst over so many seeds")
    parser.add_argument("parts", nargs="*", metavar="PART", help="of the names of rows; all rows without one")
    args = parser.parse_args()
    clock = time.process_time if args.cpu_time else time.perf_counter
    sizes = Sizes() if args.seed is None else drawn(args.seed)
    table = {name: (functools.partial(steps, name), row.rounds) for name, row in rows(Sizes()).items()}
    for length, rounds in (("short", 40), ("long", 6)):
        for of in ("forward", "gradient"):
            table[f"causal attention, {length}, {of}"] = functools.partial(attention, length, of), rounds
    print(f"jax {jax.__version__}, {processor()}, float32; ratios to the step by hand")
    print("sizes drawn from each seed: geometric mean (worst)" if args.seeds else f"{sizes}; median (quartiles)")
    for name in chosen(table, args.parts):
        calls, rounds = table[name]
        if args.seeds:
            found = over_seeds(calls, range(args.seeds), rounds, clock)
            cells = [f"{other} {mean:.2f} ({worst:.2f})" for other, (mean, worst) in found.items()]
        else:
            found = measured(calls(sizes), rounds, clock)
            cells = [f"{other} {m:.2f} ({low:.2f} to {high:.2f})" for other, (m, low, high) in found.items()]
        print(f"{name:32s} " + "   ".join(cells), flush=True)


if __name__ == "__main__":
    main()
