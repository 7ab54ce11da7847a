"""One row per public layer: the layer, its inputs and its reference.

`test_laws.py` checks the formulas of all rows, and the laws for those of `DISTINCT`. A reference implements the formula
in NumPy; it takes the params (as NumPy arrays) and the inputs.
"""

import jax
import jax.numpy as jnp
import numpy as np
import zoo_attention
import zoo_conv
import zoo_experts
import zoo_features
import zoo_graph
import zoo_linear_recurrent
import zoo_norm
import zoo_recurrent
from specimen import Specimen

from jaxblocks import (
    GLU,
    MLP,
    Bias,
    Dense,
    Frozen,
    Layer,
    Parallel,
    Recurrent,
    Repeat,
    Residual,
    Serial,
    StatefulLayer,
    Wire,
    relu,
)
from jaxblocks.backend.precision import wide_dtype
from jaxblocks.core import builder
from jaxblocks.models import LoRA

# ---- layers made for the tests ----------------------------------------------------------------


@builder
def Noise():
    """Multiplies by random signs in training: a layer with the side inputs ``train`` and ``key``."""

    def init(key, x):
        return ()

    def apply(params, x, *, train=False, key=None):
        if not train:
            return x
        if key is None:
            raise ValueError("Noise expected a key in training, got none; pass key=")
        return x * jax.random.rademacher(key, x.shape).astype(x.dtype)

    return Layer(init, apply)


@builder
def Center(momentum=0.9):
    """Subtracts the batch mean in training, a running mean in evaluation: a layer with state."""

    def init(key, x):
        return (), {"mean": jnp.zeros(x.shape[-1:], jnp.float32)}

    def apply(params, state, x, *, train=False):
        if train:
            mean = x.mean(tuple(range(x.ndim - 1)), dtype=wide_dtype(x.dtype))
            state = {"mean": momentum * state["mean"] + (1 - momentum) * mean.astype(jnp.float32)}
        else:
            mean = state["mean"]
        return x - jnp.broadcast_to(mean.astype(x.dtype), x.shape), state

    return StatefulLayer(init, apply)


@builder
def TanhCell(features):
    """The simple recurrent cell h' = tanh(x W + h U + b); its state is its carry."""

    def init(key, x):
        carry = jnp.zeros((*x.shape[:-1], features), x.dtype)
        inner, outer = Dense(features), Dense(features, use_bias=False)
        params = {"x": inner.init(jax.random.fold_in(key, 0), x), "h": outer.init(jax.random.fold_in(key, 1), carry)}
        return params, carry

    def apply(params, h, x):
        h = jnp.tanh(Dense(features).apply(params["x"], x) + Dense(features, use_bias=False).apply(params["h"], h))
        return h, h

    return StatefulLayer(init, apply)


# ---- references --------------------------------------------------------------------------------


def dense(p, x):
    return np.einsum("io,...i->...o", p["kernel"], x) + p.get("bias", 0)


def with_update(p, update, factor):
    return {**p, "kernel": p["kernel"] + factor * update["down"] @ update["up"]}


def rectified(x):
    return np.where(x > 0, x, 0)


def mlp(p, x):
    for layer in (*p[:-1:2], p[-1]) if len(p) % 2 else p[::2]:
        last = layer is p[-1]
        x = dense(layer, x)
        x = x if last else rectified(x)
    return x


def recurrent(p, x, reverse=False):
    h, outputs = np.zeros((x.shape[0], p["h"]["kernel"].shape[0])), []
    for t in range(x.shape[1])[:: -1 if reverse else 1]:
        h = np.tanh(dense(p["x"], x[:, t]) + h @ p["h"]["kernel"])
        outputs.append(h)
    return np.stack(outputs[:: -1 if reverse else 1], 1)


def repeated(p, x):
    for i in range(3):
        x = x + np.tanh(dense({name: leaf[i] for name, leaf in p[0].items()}, x))
    return x


WAVES, HILLS = Residual(Dense(5), jnp.sin), Residual(Dense(5), jnp.tanh)


def alternating(p, x):
    for i, function in enumerate((np.sin, np.tanh, np.sin)):
        x = x + function(dense({name: leaf[i] for name, leaf in p[0].items()}, x))
    return x


def wire(f, x):
    hidden = f.a(x)
    return f.b(jnp.concatenate([jnp.sin(hidden), f.a(hidden)], -1))


def wire_with_state(f, x):
    return f.noise(f.center(x)) + f.dense(x)


def wired(p, x):
    hidden = dense(p["a"], x)
    return dense(p["b"], np.concatenate([np.sin(hidden), dense(p["a"], hidden)], -1))


def gated(p, x):
    gate = dense(p["gate"], x)
    return gate / (1 + np.exp(-gate)) * dense(p["up"], x)


ZOO = {
    "Dense": Specimen("Dense", Dense(3), ((4, 5),), dense),
    "Dense without bias": Specimen("Dense", Dense(3, use_bias=False), ((4, 2, 5),), dense),
    "Bias": Specimen("Bias", Bias(), ((4, 5),), lambda p, x: x + p["bias"]),
    "MLP": Specimen("MLP", MLP(6, 3), ((4, 5),), mlp),
    "GLU": Specimen("GLU", GLU(3, activation=jax.nn.silu), ((4, 5),), gated),
    "Serial": Specimen("Serial", Serial(Dense(3), jnp.tanh), ((4, 5),), lambda p, x: np.tanh(dense(p[0], x))),
    "Serial by name": Specimen(
        "Serial",
        Serial(hidden=Dense(3), activation=relu, out=Dense(2)),
        ((4, 2, 5),),
        lambda p, x: dense(p["out"], rectified(dense(p["hidden"], x))),
    ),
    "Serial with state": Specimen(
        "Serial", Serial(Dense(3), Center(), Noise()), ((4, 5),), lambda p, x: dense(p[0], x), mixes_batch=True
    ),
    "Serial in training": Specimen(
        "Serial",
        Serial(Dense(3), Center()),
        ((4, 5),),
        lambda p, x: dense(p[0], x) - dense(p[0], x).mean(0, keepdims=True),
        {"train": True},
        mixes_batch=True,
    ),
    "Parallel": Specimen("Parallel", Parallel(Dense(3), jnp.sin), ((4, 5),), lambda p, x: (dense(p[0], x), np.sin(x))),
    "Parallel by name": Specimen(
        "Parallel",
        Parallel(a=Dense(3), b=Center()),
        ((4, 5),),
        lambda p, x: {"a": dense(p["a"], x), "b": x},
        mixes_batch=True,
    ),
    "Residual": Specimen(
        "Residual",
        Residual(Dense(7), jnp.tanh, Dense(5)),
        ((4, 5),),
        lambda p, x: x + dense(p[2], np.tanh(dense(p[0], x))),
    ),
    "Frozen": Specimen(
        "Frozen",
        Frozen(Serial(Dense(3), Repeat(Dense(3), 2))),
        ((4, 5),),
        lambda p, x: (dense(p[0], x) @ p[1]["kernel"][0] + p[1]["bias"][0]) @ p[1]["kernel"][1] + p[1]["bias"][1],
    ),
    "LoRA": Specimen(
        "",
        LoRA(Dense(3), "**", rank=2, alpha=3.0),
        ((4, 5),),
        lambda p, x: dense(with_update(p["base"], p["lora"]["kernel"], 1.5), x),
    ),
    "Repeat": Specimen("Repeat", Repeat(Residual(Dense(5), jnp.tanh), 3), ((4, 5),), repeated),
    "Repeat of two layers": Specimen("Repeat", Repeat((WAVES, HILLS), 3, which=(0, 1, 0)), ((4, 5),), alternating),
    "Repeat with state": Specimen(
        "Repeat",
        Repeat(Residual(Dense(5), jnp.tanh, Center(), Noise()), 3, checkpoint="body"),
        ((4, 5),),
        repeated,
        mixes_batch=True,
    ),
    "Recurrent": Specimen("Recurrent", Recurrent(TanhCell(3)), ((4, 6, 5),), recurrent),
    "Recurrent in reverse": Specimen(
        "Recurrent",
        Recurrent(TanhCell(3), reverse=True, unroll=2),
        ((4, 6, 5),),
        lambda p, x: recurrent(p, x, reverse=True),
    ),
    "Recurrent stateful": Specimen("Recurrent", Recurrent(TanhCell(3), stateful=True), ((4, 6, 5),), recurrent),
    "Wire": Specimen(
        "Wire",
        Wire(wire, a=Dense(5), b=Dense(2)),
        ((4, 5),),
        wired,
    ),
    "Wire with state": Specimen(
        "Wire",
        Wire(wire_with_state, center=Center(), noise=Noise(), dense=Dense(5)),
        ((4, 5),),
        lambda p, x: x + dense(p["dense"], x),
        mixes_batch=True,
    ),
    "Center": Specimen("", Center(), ((4, 5),), lambda p, x: x, mixes_batch=True),
    "Noise": Specimen("", Noise(), ((4, 5),), lambda p, x: x),
    **zoo_attention.ROWS,
    **zoo_conv.ROWS,
    **zoo_experts.ROWS,
    **zoo_features.ROWS,
    **zoo_graph.ROWS,
    **zoo_linear_recurrent.ROWS,
    **zoo_norm.ROWS,
    **zoo_recurrent.ROWS,
}

OTHER_PATHS = {
    "Attention with a mask of keys",
    "Attention, causal, grouped heads, window, rotary, chunks",
    "BatchNorm in training",
    "Conv in groups",
    "MixtureOfExperts in blocks",
    "MixtureOfExperts with capacity",
    "RBF of two features",
    "Recurrent stateful",
    "Repeat of two layers",
    "Repeat with state",
}
FIRST = {(row.public or name): name for name, row in reversed(ZOO.items())}.values()
DISTINCT = [name for name in ZOO if name in FIRST or name in OTHER_PATHS]
"""The first row of each builder, and the rows that take other code paths: the laws are checked for these."""

COMPOSED = {"Bidirectional", "Center", "Flow", "GRU", "MLP", "Noise", "RNN", "RecurrentDropout"}
SIMPLE = [name for name in DISTINCT if name not in COMPOSED]
"""Those of them that are not composed of layers and loops of other rows: only these are exported, lowered and rounded
alone."""

ON_BACKENDS = {"Conv in groups", "ConvTranspose", "DepthwiseConv"}
"""The rows whose programs depend on the backend."""

FIXED = {
    "ConvGRUCell": "integers for padding_mode='circular'",  # the number of copies of the input depends on its size
    "Resize": "integers for linear interpolation",  # its weights are computed in NumPy
    "MixtureOfExperts with capacity": "integers for capacity_factor",  # rounded up to a number of rows
}
"""The rows whose sizes must be integers, with what the error says."""
