"""Whole training steps against plain JAX with dict params, and against other libraries where they are installed.

    python benchmarks/steps.py [--cpu-time] [part of a name ...]

The peers are optional: flax (linen), equinox and torch (eager, fused Adam) are left out where they cannot be imported.
An environment of its own for all of them:

    uv venv peers && uv pip install --python peers -e . flax equinox torch

A step is forward pass, backward pass and Adam. Times are medians (quartiles) of ratios to the step by hand, of calls
in turns; the first losses of the library and of the code by hand are compared before. Attention is measured alone.
On a busy machine use processor time on one core: ``taskset -c 0 python benchmarks/steps.py --cpu-time``.
"""

import functools
import importlib
import itertools
import operator
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from timing import chosen, in_turns, ratio

import jaxblocks as jb
from jaxblocks import models

OPTIMIZER = optax.adam(1e-6)  # the nets hardly change, so that no step meets the denormal numbers of a fitted net
KEY = jax.random.key(0)
CLOCK = time.process_time if "--cpu-time" in sys.argv else time.perf_counter


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


def conv(p, x):
    return lax.conv_general_dilated(x, p["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


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

    zeros = jnp.zeros((len(x), HIDDEN))
    return dense(last, jnp.moveaxis(lax.scan(step, (zeros, zeros), jnp.moveaxis(x, 1, 0))[1], 0, 1))


def gru(params, x):
    p, last = params

    def step(h, x):
        xr, xz, xn = jnp.split(x @ p["kernel"] + p["bias"], 3, -1)
        hr, hz, hn = jnp.split(h @ p["recurrent_kernel"] + p["recurrent_bias"], 3, -1)
        r, z = jax.nn.sigmoid(xr + hr), jax.nn.sigmoid(xz + hz)
        h = (1 - z) * jnp.tanh(xn + r * hn) + z * h
        return h, h

    return dense(last, jnp.moveaxis(lax.scan(step, jnp.zeros((len(x), HIDDEN)), jnp.moveaxis(x, 1, 0))[1], 0, 1))


def layer_norm(p, x):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(variance + 1e-5) * p["scale"] + p["bias"]


def causal_attention(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(q.shape[-1])
    scores = jnp.where(jnp.tri(q.shape[1], dtype=bool), scores, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def transformer(params, tokens):
    table = params["tokens"]["embedding"]
    x = table[tokens] + params["positions"]["embedding"][: tokens.shape[1]]
    for p in params["blocks"]:
        y = layer_norm(p["attention_norm"], x)
        q, k, v = (
            dense(p["attention"][name], y).reshape(*y.shape[:2], HEADS, -1) for name in ("query", "key", "value")
        )
        x = x + dense(p["attention"]["out"], causal_attention(q, k, v).reshape(x.shape))
        hidden = jax.nn.gelu(dense(p["mlp"]["up"], layer_norm(p["mlp_norm"], x)))
        x = x + dense(p["mlp"]["down"], hidden)
    return layer_norm(params["norm"], x) @ table.T


# ---- the table ---------------------------------------------------------------------------------

DEPTH, HIDDEN, HEADS, VOCABULARY, TIME = 64, 128, 8, 1000, 256
OF_LM = dict(layers=4, heads=HEADS, features=256, vocab_size=VOCABULARY, max_length=TIME, dropout=0.0)


def convolutions(*norms):
    parts = [(jb.Conv(n, (3, 3), padding="same", use_bias=not norms), *(f() for f in norms)) for n in (32, 64)]
    one, two = ((*part, jb.relu, jb.MaxPool((2, 2))) for part in parts)
    return jb.Serial(*one, *two, jb.Flatten(spatial=2), jb.Dense(10))


def unstacked(params, n):
    return [jax.tree.map(operator.itemgetter(i), params) for i in range(n)]


# name: (net, the code by hand, its params from those of the net, shape of x, number of classes, rounds)
SAME = lambda params: params
NETS = {
    "tiny MLP": (jb.MLP(8, 8, 2), mlp, SAME, (4, 4), 2, 2000),
    "MLP": (jb.MLP(512, 512, 10), mlp, SAME, (128, 64), 10, 300),
    "residual MLP": (
        jb.Serial(jb.Repeat(jb.Residual(jb.Dense(128), jb.relu), DEPTH), jb.Dense(10)),
        residual_mlp,
        lambda params: ([p[0] for p in unstacked(params[0], DEPTH)], params[1]),
        (128, 128),
        10,
        100,
    ),
    "CNN": (convolutions(), cnn, SAME, (64, 32, 32, 3), 10, 30),
    "CNN + batch norm": (convolutions(jb.BatchNorm), cnn_with_batch_norm, SAME, (64, 32, 32, 3), 10, 30),
    "LSTM": (jb.Serial(jb.LSTM(HIDDEN), jb.Dense(10)), lstm, SAME, (32, 128, 64), 10, 60),
    "GRU": (jb.Serial(jb.GRU(HIDDEN), jb.Dense(10)), gru, SAME, (32, 128, 64), 10, 60),
    "transformer LM": (
        models.GPT2(**OF_LM),
        transformer,
        lambda params: params | {"blocks": unstacked(params["blocks"], OF_LM["layers"])},
        (8, TIME),
        VOCABULARY,
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


def data(name):
    """The inputs and labels of one row."""
    _, _, _, shape, classes, _ = NETS[name]
    of_x, of_y = jax.random.split(KEY)
    tokens = "LM" in name
    x = jax.random.randint(of_x, shape, 0, classes) if tokens else jax.random.normal(of_x, shape)
    places = shape if tokens else shape[:2] if name in ("LSTM", "GRU") else shape[:1]
    return x, jax.random.randint(of_y, places, 0, classes)


def steps(name):
    """The calls of one row."""
    net, by_hand, convert, _, classes, _ = NETS[name]
    x, y = data(name)

    def of_library(**options):
        kept = [jb.init_train_state(KEY, net, OPTIMIZER, x)]
        step = jb.train_step(net, jb.softmax_cross_entropy, OPTIMIZER, **options)

        def call():
            kept[0], value = step(kept[0], x, y)
            return value

        return call, kept[0].params

    ours, params = of_library()
    params = jax.tree.map(jnp.copy, convert(params))
    loss = lambda params, x, y: cross_entropy(by_hand(params, x), y)
    calls = {"by hand": jax_step(params, loss, x, y), "jaxblocks": ours}
    calls["by hand, donated"] = jax_step(params, loss, x, y, donate=True)
    calls["jaxblocks, donated"] = of_library(donate=True)[0]
    np.testing.assert_allclose(calls["by hand"](), ours(), rtol=1e-4)
    for peer in (linen_step, equinox_step, torch_step):
        try:
            call = peer(name, x, y, classes)
        except ImportError as error:
            print(f"{error.name} is not installed")
            continue
        if call is not None:
            calls[peer.__name__.removesuffix("_step")] = call
    return calls


# ---- peers -------------------------------------------------------------------------------------


def linen_step(name, x, y, classes):
    nn = importlib.import_module("flax.linen")

    def recurrent(cell):
        return nn.Sequential([nn.RNN(cell), nn.Dense(10)])

    def convolutions(*norms):
        parts = [[nn.Conv(n, (3, 3), use_bias=not norms), *(f() for f in norms), nn.relu, max_pool] for n in (32, 64)]
        return nn.Sequential([*parts[0], *parts[1], lambda x: x.reshape(len(x), -1), nn.Dense(10)])

    max_pool = functools.partial(nn.max_pool, window_shape=(2, 2), strides=(2, 2))

    class Residual(nn.Module):
        @nn.compact
        def __call__(self, x):
            for _ in range(DEPTH):
                x = x + nn.relu(nn.Dense(128)(x))
            return nn.Dense(10)(x)

    class Transformer(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            table, mask = nn.Embed(VOCABULARY, 256), nn.make_causal_mask(tokens)
            x = table(tokens) + self.param("positions", nn.initializers.normal(0.01), (TIME, 256))
            for _ in range(OF_LM["layers"]):
                x = x + nn.MultiHeadDotProductAttention(HEADS)(nn.LayerNorm()(x), mask=mask)
                x = x + nn.Dense(256)(nn.gelu(nn.Dense(1024)(nn.LayerNorm()(x))))
            return table.attend(nn.LayerNorm()(x))

    net = {
        "tiny MLP": lambda: nn.Sequential([nn.Dense(8), nn.relu, nn.Dense(8), nn.relu, nn.Dense(2)]),
        "MLP": lambda: nn.Sequential([nn.Dense(512), nn.relu, nn.Dense(512), nn.relu, nn.Dense(10)]),
        "residual MLP": Residual,
        "CNN": convolutions,
        "CNN + batch norm": lambda: convolutions(functools.partial(nn.BatchNorm, use_running_average=False)),
        "LSTM": lambda: recurrent(nn.OptimizedLSTMCell(HIDDEN)),
        "GRU": lambda: recurrent(nn.GRUCell(HIDDEN)),
        "transformer LM": Transformer,
    }[name]()
    variables = net.init(KEY, x)
    others = {kind: value for kind, value in variables.items() if kind != "params"}

    def loss(params, x, y):
        return cross_entropy(net.apply({"params": params, **others}, x, mutable=list(others))[0], y)

    return jax_step(variables["params"], loss, x, y)


def equinox_step(name, x, y, classes):
    eqx = importlib.import_module("equinox")
    if name not in ("tiny MLP", "MLP"):
        return None
    width = {"tiny MLP": 8, "MLP": 512}[name]
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


def torch_step(name, x, y, classes):
    torch = importlib.import_module("torch")
    torch.manual_seed(0)
    nn, F = torch.nn, torch.nn.functional

    class Residual(nn.Linear):
        def forward(self, x):
            return x + F.relu(super().forward(x))

    class Recurrent(nn.Module):
        def __init__(self, kind):
            super().__init__()
            self.cells, self.last = kind(64, HIDDEN, batch_first=True), nn.Linear(HIDDEN, 10)

        def forward(self, x):
            return self.last(self.cells(x)[0])

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(256) for _ in range(2))
            self.qkv, self.out, self.up, self.down = (
                nn.Linear(*sizes) for sizes in ((256, 768), (256, 256), (256, 1024), (1024, 256))
            )

        def forward(self, x):
            q, k, v = self.qkv(self.norms[0](x)).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(x.shape))
            return x + self.down(F.gelu(self.up(self.norms[1](x)), approximate="tanh"))

    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(VOCABULARY, 256), nn.Embedding(TIME, 256)
            self.blocks = nn.Sequential(*(Block() for _ in range(OF_LM["layers"])), nn.LayerNorm(256))

        def forward(self, tokens):
            return self.blocks(self.tokens(tokens) + self.positions.weight) @ self.tokens.weight.T

    def convolutions(norm):
        parts = [
            [nn.Conv2d(a, b, 3, padding=1, bias=not norm), *([nn.BatchNorm2d(b)] * norm), nn.ReLU(), nn.MaxPool2d(2)]
            for a, b in ((3, 32), (32, 64))
        ]
        return nn.Sequential(*parts[0], *parts[1], nn.Flatten(), nn.Linear(4096, 10))

    def dense(*widths):
        parts = [part for pair in itertools.pairwise(widths) for part in (nn.Linear(*pair), nn.ReLU())]
        return nn.Sequential(*parts[:-1])

    net = {
        "tiny MLP": lambda: dense(4, 8, 8, 2),
        "MLP": lambda: dense(64, 512, 512, 10),
        "residual MLP": lambda: nn.Sequential(*(Residual(128, 128) for _ in range(DEPTH)), nn.Linear(128, 10)),
        "CNN": lambda: convolutions(norm=0),
        "CNN + batch norm": lambda: convolutions(norm=1),
        "LSTM": lambda: Recurrent(nn.LSTM),
        "GRU": lambda: Recurrent(nn.GRU),
        "transformer LM": Transformer,
    }[name]()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-6, fused=True)
    x, y = torch.from_numpy(np.array(x)), torch.from_numpy(np.array(y, np.int64))
    x = x if x.is_floating_point() else x.long()
    x = x.permute(0, 3, 1, 2).contiguous() if x.ndim == 4 else x

    def call():
        optimizer.zero_grad()
        value = F.cross_entropy(net(x).reshape(-1, classes), y.reshape(-1))
        value.backward()
        optimizer.step()
        return None

    return call


# ---- attention ---------------------------------------------------------------------------------


def attention(n, of):
    """The calls of causal attention of ``n`` positions, 8 heads of 64: the forward pass or the gradient."""
    qkv = [jax.random.normal(key, (1, n, 8, 64)) for key in jax.random.split(KEY, 3)]
    forms = {
        "by hand": causal_attention,
        "jaxblocks": functools.partial(jb.attention, causal=True),
        "jax.nn": functools.partial(jax.nn.dot_product_attention, is_causal=True),
    }
    derive = {"forward": lambda f: f, "gradient": lambda f: jax.grad(lambda *qkv: jnp.sum(f(*qkv) ** 2), (0, 1, 2))}
    calls = {name: functools.partial(jax.jit(derive[of](f)), *qkv) for name, f in forms.items()}
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return calls
    leaves = [torch.from_numpy(np.array(x)).transpose(1, 2).requires_grad_(of == "gradient") for x in qkv]

    def call():
        out = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=True)
        if of == "gradient":
            torch.autograd.grad((out**2).sum(), leaves)

    return calls | {"torch": call}


def report(name, calls, rounds):
    seconds = in_turns(calls, rounds=rounds, clock=CLOCK)
    cells = [
        f"{other} {m:.2f} ({a:.2f} to {b:.2f})" for other in calls for m, a, b in [ratio(seconds, other, "by hand")]
    ]
    print(f"{name:32s} " + "   ".join(cells[1:]), flush=True)


if __name__ == "__main__":
    print(f"jax {jax.__version__}, {jax.devices()[0].platform}, float32; ratios to the step by hand")
    parts = [part for part in sys.argv[1:] if not part.startswith("--")]
    rows = {name: (functools.partial(steps, name), rounds) for name, (*_, rounds) in NETS.items()}
    for n, rounds in ((1024, 40), (4096, 6)):
        for of in ("forward", "gradient"):
            rows[f"causal attention {n}, {of}"] = functools.partial(attention, n, of), rounds
    for name in chosen(rows, parts):
        calls, rounds = rows[name]
        report(name, calls(), rounds)
