"""Rows of the functions of arrays of `jaxblocks.layers`."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
from derivative_laws.activations import sigmoid
from derivative_laws.probabilities import softmax
from derivative_laws.row import Exempt, Row, array, cos, entries, exp, log, sin, sqrt, tanh
from derivative_laws.tensors import MATRIX, VECTOR

from jaxblocks.backend.precision import widen

SQUARES = tuple(range(-60, 61, 20))
MODERATE = tuple(range(-100, 1, 20))
CUBE = np.array([[0.5, -1.25], [2, 0.75], [-0.5, 1.5], [0.25, -2]])  # (time, channels)
CONTRACTED = "without a batch, XLA of JAX 0.12 contracts x - sum / n: equal entries differ from their mean by rounding"
NORM = tuple(range(-100, 61, 20))
_ZERO = {"zero": (0 * MATRIX,), "equal": (np.ones((2, 3)),)}
_RANDOM = "of a key; linear in x for each, as its layer in the zoo"
_SHAPES = "builds an array from sizes"
_STRUCTURE = "rearranges entries of a graph"


def kernels(*shapes):
    """Kernels of few bits that differ in all entries."""
    made = []
    for i, shape in enumerate(shapes):
        n = int(np.prod(shape))
        made.append((((7 * np.arange(n) + 3 * i) % 16) / 8 - 0.9375).reshape(shape))
    return made


def normalized(x, axis=-1, epsilon="1e-5"):
    mean = x.mean(axis, keepdims=True)
    return (x - mean) / sqrt(((x - mean) ** 2).mean(axis, keepdims=True) + mpmath.mpf(float(epsilon)))


def attended(q, k, v):
    """Attention of one head: (time, 1, features)."""
    scores = q[:, 0] @ k[:, 0].T / mpmath.sqrt(q.shape[-1])
    return np.stack([softmax(row) for row in scores]) @ v[:, 0]


def attended_with_sink(q, k, v, z):
    scores = q[:, 0] @ k[:, 0].T / mpmath.sqrt(q.shape[-1])
    return np.stack([softmax(np.append(row, z))[:-1] for row in scores]) @ v[:, 0]


def windows(x, size, stride):
    return np.stack([x[i : i + size] for i in range(0, len(x) - size + 1, stride)])


def convolved(x, kernel, bias):
    return np.stack(
        [np.einsum("ki,kio->o", each, kernel, optimize=False) + bias for each in windows(x, len(kernel), 1)]
    )


def _in_one_dtype(y, carry):
    return y, carry.astype(y.dtype)  # carries of half precision are float32


def recurred(a, b, h):
    steps = []
    for now, more in zip(a, b, strict=True):
        h = now * h + more
        steps.append(h)
    return np.stack(steps)


def decayed(q, k, v, g):
    carry, outputs = 0, []
    for t in range(len(q)):
        carry = carry * exp(g[t, 0]) + np.outer(k[t, 0], v[t, 0])
        outputs.append((q[t, 0] @ carry)[None])
    return np.stack(outputs), carry[None]


def replaced(q, k, v, g, beta):
    carry, outputs = 0 * np.outer(k[0, 0], v[0, 0]), []
    for t in range(len(q)):
        carry = carry * exp(g[t, 0])[:, None]
        carry = carry + beta[t, 0] * np.outer(k[t, 0], v[t, 0] - k[t, 0] @ carry)
        outputs.append((q[t, 0] @ carry)[None])
    return np.stack(outputs), carry[None]


def selected(x, step, a, b, c, skip, h):
    outputs = []
    for t in range(len(x)):
        h = exp(step[t][:, None] * a) * h + np.outer(step[t] * x[t], b[t])
        outputs.append(h @ c[t] + skip * x[t])
    return np.stack(outputs), h


def mod_relu_of_pairs(f, x, y, bias):
    z = f(jax.lax.complex(widen(x), widen(y)), bias)  # there are no complex numbers of half precision
    return z.real.astype(x.dtype), z.imag.astype(x.dtype)


def scaled_pairs(x, y, bias):
    size = sqrt(x * x + y * y)
    factor = np.where(size + bias > 0, (size + bias) / size, 0)
    return factor * x, factor * y


def deformed(x, offset, kernel, modulation):
    def read(u):
        low = int(mpmath.floor(u))
        near = [(low, 1 - (u - low)), (low + 1, u - low)]
        return sum((weight * x[place] for place, weight in near if 0 <= place < len(x)), 0 * x[0])

    terms = [[modulation[i, j] * read(i + j + offset[i, j]) @ kernel[j] for j in range(2)] for i in range(3)]
    return np.stack([a + b for a, b in terms])


_DEFORMED = (
    np.array([[-0.5, 0.25], [0.25, -0.75], [0.125, 0.5]]),
    *kernels((2, 2, 1)),
    np.array([[0.5, 0.25], [1, 0.75], [0.5, 1.5]]),
)
Q = kernels((3, 1, 2), (3, 1, 2), (3, 1, 2))
_FAR = [24 * x for x in Q[:2]] + [Q[2]]
_CONV_GRU = kernels((3, 1), (3, 2), (2, 1, 6), (2, 2, 6), (6,))
_CONV_LSTM = kernels((3, 1), (3, 1), (3, 1), (2, 1, 4), (2, 1, 4), (4,))
_LSTM = kernels((2,), (2,), (2,), (2, 8), (2, 8), (8,))


ROWS = {
    "adaptive_avg_pool": Row((CUBE,), lambda f, x: f(x, 2), formula=lambda x: x.reshape(2, 2, 2).mean(1)),
    "adjacency_graph": Exempt(_STRUCTURE),
    "affine": Row((VECTOR, MATRIX, MATRIX[0]), exponents=SQUARES, formula=lambda x, w, b: x @ w + b),
    "affine_coupling": Row(
        (MATRIX[0], MATRIX[1], array(0.5, 1, -1)),
        lambda f, *args: (*f(*args), *f(*args, inverse=True)),
        {"zero": (0 * MATRIX[0],) * 3},
        MODERATE,
        formula=lambda x, s, b: (x * exp(s) + b, s.sum(), (x - b) * exp(-s), -s.sum()),
    ),
    "affine_grid": Row(
        (MATRIX,),
        lambda f, a: f(a, (2, 2)),
        {"zero": (0 * MATRIX,)},
        formula=lambda a: np.stack(
            [
                [a @ np.array([x, y, 1]) for x in (mpmath.mpf(-0.5), mpmath.mpf(0.5))]
                for y in (mpmath.mpf(-0.5), mpmath.mpf(0.5))
            ]
        ),
    ),
    "aggregate": Row(
        (CUBE,), lambda f, x: tuple(f(x, jnp.asarray([0, 1, 0, 0]), 2, how=how) for how in ("sum", "mean", "max"))
    ),
    "aggregate softmax": Row(
        (CUBE, CUBE[:, :1]),
        lambda f, x, logits: f(x[:, None], jnp.asarray([0, 1, 0, 0]), 3, how="softmax", logits=logits)[:, 0],
        {"far apart": (CUBE, 48 * CUBE[:, :1]), "equal": (CUBE, 0 * CUBE[:, :1])},
        (),
        formula=lambda x, z: np.stack([softmax(z[[0, 2, 3], 0]) @ x[[0, 2, 3]], x[1], 0 * x[1]]),
    ),
    "alibi": Exempt(_SHAPES),
    "alpha_dropout": Exempt(_RANDOM),
    "attention": Row(tuple(Q), corners={"zero": [0 * x for x in Q]}, exponents=MODERATE, formula=attended, magnitude=1),
    "attention far apart": Row(tuple(_FAR), exponents=(), formula=attended, magnitude=24.0**2),
    "attention causal, grouped": Row(
        (*kernels((3, 2, 2)), *Q[1:]),
        lambda f, q, k, v: f(q, k, v, causal=True),
        {"zero": [np.zeros((3, 2, 2)), *Q[1:]]},
        MODERATE,
    ),
    "attention fully masked": Row(
        tuple(Q),
        lambda f, q, k, v: f(q, k, v, mask=jnp.asarray([[[True, False, True], [False] * 3, [False, False, True]]])),
        exponents=MODERATE,
    ),
    "attention in chunks": Row(
        tuple(Q),
        lambda f, q, k, v: f(q, k, v, implementation="chunked", chunk=2),
        exponents=MODERATE,
        formula=attended,
        magnitude=1,
    ),
    "attention with a sink": Row(
        (*Q, array(0.5)),
        lambda f, q, k, v, z: f(q, k, v, sink=z),
        {
            "zero": (*[0 * x for x in Q], array(0)),
            "far below": (*Q, array(-(2**15))),
            "far above": (*Q, array(64)),
        },
        MODERATE,
        formula=attended_with_sink,
        magnitude=1,
    ),
    "attention of a function of scores": Row(
        tuple(Q),
        lambda f, q, k, v: f(q, k, v, score_fn=lambda scores, offset: jnp.sin(scores) + offset),
        exponents=MODERATE,
    ),
    "attention_weights": Row(tuple(Q[:2]), corners={"zero": [0 * x for x in Q[:2]]}, exponents=MODERATE, magnitude=1),
    "attention_with_weights": Row(tuple(Q), exponents=MODERATE, magnitude=1),
    "avg_pool": Row((CUBE,), lambda f, x: f(x, 2), formula=lambda x: x.reshape(2, 2, 2).mean(1)),
    "batch_graphs": Exempt(_STRUCTURE),
    "batch_norm": Row(
        (MATRIX, MATRIX[0], array(0.5, 2, 1.25), MATRIX[1], array(1, 0.5, 2)),
        corners={"no variance": (MATRIX, MATRIX[0], array(0, 0, 0), MATRIX[1], array(1, 0.5, 2))},
        scaled=(0, 1),
        exponents=SQUARES,
        formula=lambda x, m, v, s, b: (x - m) / sqrt(v + mpmath.mpf(1e-3)) * s + b,
    ),
    "check_graph": Exempt("a check, returns nothing"),
    "complete_graph": Exempt(_STRUCTURE),
    "conv": Row((CUBE, *kernels((2, 2, 3), (3,))), lambda f, x, w, b: f(x, w, b), exponents=SQUARES, formula=convolved),
    "conv_gru_step": Row(
        (*_CONV_GRU,),
        corners={"far out": (array(1024, -1024, 1024)[:, None], *_CONV_GRU[1:])},
        exponents=MODERATE,
    ),
    "conv_lstm_step": Row(
        (*_CONV_LSTM,),
        corners={"far out": (array(1024, -1024, 1024)[:, None], *_CONV_LSTM[1:])},
        exponents=MODERATE,
    ),
    "conv_transpose": Row(
        (CUBE, *kernels((2, 3, 2), (3,))), lambda f, x, w, b: f(x, w, b, stride=2), exponents=SQUARES
    ),
    "deform_conv": Row(
        (CUBE, *_DEFORMED),
        lambda f, x, offset, w, m: f(x, offset, w, modulation=m),
        {"outside": (CUBE, np.full((3, 2), -9.5), *_DEFORMED[1:])},
        scaled=(0,),
        formula=deformed,
    ),
    "dropout": Exempt(_RANDOM),
    "embed": Row((MATRIX,), lambda f, table: f(jnp.asarray([1, 0, 1]), table), formula=lambda x: x[[1, 0, 1]]),
    "flatten": Row((CUBE,), lambda f, x: f(x, 1), formula=lambda x: x),
    "fold": Row(
        (CUBE,),
        lambda f, x: f(x, 5, 2)[:, 0],
        formula=lambda x: np.append(x[:, 0], 0 * x[0, 0]) + np.append(0 * x[0, 0], x[:, 1]),
    ),
    "flow_log_likelihood": Row(
        (MATRIX, VECTOR),
        exponents=SQUARES,
        formula=lambda z, d: d - (z * z).sum(1) / 2 - 3 * mpmath.log(2 * mpmath.pi) / 2,
    ),
    "fuse_affine": Row(
        (*kernels((2, 3), (3,), (3, 2), (2,)),),
        lambda f, a, b, c, d: f({"kernel": a, "bias": b}, {"kernel": c, "bias": d}),
        exponents=SQUARES,
        formula=lambda a, b, c, d: (b @ c + d, a @ c),
    ),
    "gated_linear_attention": Row(
        (*kernels((3, 1, 2), (3, 1, 2), (3, 1, 2)), -np.abs(kernels((3, 1))[0])),
        lambda f, *args: _in_one_dtype(*f(*args, chunk=2)),
        {"zero": (*[np.zeros((3, 1, 2))] * 3, np.zeros((3, 1)))},
        SQUARES,
        (2,),
        formula=decayed,
    ),
    "gated_linear_attention with the delta rule": Row(
        (*kernels((3, 1, 2), (3, 1, 2), (3, 1, 2)), -np.abs(kernels((3, 1, 2))[0]), np.abs(kernels((3, 1))[0])),
        lambda f, *args: _in_one_dtype(*f(*args, chunk=2)),
        {"zero": (*[np.zeros((3, 1, 2))] * 4, np.zeros((3, 1)))},
        SQUARES,
        (2,),
        formula=replaced,
    ),
    "global_avg_pool": Row((CUBE,), lambda f, x: f(x, 1), formula=lambda x: x.mean(0)),
    "global_max_pool": Row((CUBE,), lambda f, x: f(x, 1), formula=lambda x: x.max(0)),
    "grid_sample": Row(
        (CUBE, array(-0.5, 0.5)),
        lambda f, x, g: f(x, g[:, None]),
        {"on a pixel": (CUBE, array(-0.75, 0.25)), "outside": (CUBE, array(-1.5, 4))},
        scaled=(0,),
        formula=lambda x, g: np.stack(
            [x[i] + (4 * (g[i // 2] + 1) / 2 - mpmath.mpf(0.5) - i) * (x[i + 1] - x[i]) for i in (0, 2)]
        ),
        choices={"on a pixel": "a kink: the slope to the right", "outside": "0"},
    ),
    "grid_sample reflected": Row(
        (CUBE.reshape(2, 2, 2), array(0.25, 1.25)), lambda f, x, g: f(x, g, padding_mode="reflect"), scaled=(0,)
    ),
    "grid_sample by cubic polynomials": Row(
        (CUBE, array(-0.5, 0.5)), lambda f, x, g: f(x, g[:, None], method="cubic"), scaled=(0,)
    ),
    "group_norm": Row(
        (CUBE.reshape(2, 4), array(1, 0.5, 2, -1), array(0.5, 1, -1, 0.25)),
        lambda f, x, s, b: f(x, s, b, groups=2, spatial=1),
        {"equal": (np.ones((2, 4)), array(1, 0.5, 2, -1), array(0.5, 1, -1, 0.25))},
        NORM,
        (0,),
        formula=lambda x, s, b: normalized(x.reshape(2, 2, 2), (0, 2)).reshape(2, 4) * s + b,
        magnitude=1,
    ),
    "gru_step": Row(
        (*kernels((2,), (2,), (2, 6), (2, 6), (6,)),),
        corners={"far out": (array(100, -100), *kernels((2,), (2, 6), (2, 6), (6,)))},
        exponents=MODERATE,
    ),
    "hard_lookup": Row(
        (*kernels((2,), (3, 2), (3, 2)),), exponents=tuple(range(-40, 41, 20)), formula=lambda q, k, v: (k @ q) @ v
    ),
    "instance_norm": Row(
        (CUBE, array(1, 0.5), array(0.5, 1)),
        lambda f, x, s, b: f(x, s, b, spatial=1),
        {"equal": (np.ones((4, 2)), array(1, 0.5), array(0.5, 1))},
        NORM,
        (0,),
        formula=lambda x, s, b: normalized(x, 0) * s + b,
        magnitude=1,
    ),
    "knn_predict": Exempt("constant between jumps: the targets of the nearest examples"),
    "layer_norm": Row(
        (MATRIX, MATRIX[0], MATRIX[1]),
        corners={name: (each[0], MATRIX[0], MATRIX[1]) for name, each in _ZERO.items()},
        exponents=NORM,
        scaled=(0,),
        formula=lambda x, s, b: normalized(x) * s + b,
        magnitude=1,
        in_batch=CONTRACTED,
    ),
    "layer_norm sine": Row(
        (MATRIX,),
        lambda f, x: jnp.sin(f(x)),
        _ZERO,
        NORM,
        formula=lambda x: sin(normalized(x)),
        magnitude=1,
        in_batch=CONTRACTED,
    ),
    "layer_norm without epsilon": Row(
        (MATRIX,),
        lambda f, x: f(x, epsilon=0.0),
        exponents=(-40, -20, 0, 20, 40),  # squares of smaller ones, second derivatives of larger ones: below 2^-126
        formula=lambda x: normalized(x, epsilon=0),
        magnitude=1,
    ),
    "layer_norm of one": Row((array(0.5),), corners={"zero": (array(0),)}, exponents=NORM, formula=lambda x: 0 * x),
    "linear_attention": Row(
        (*kernels((3, 1, 2), (3, 1, 2), (3, 1, 2)),), corners={"zero": [np.zeros((3, 1, 2))] * 3}, exponents=MODERATE
    ),
    "linear_attention causal": Row(
        (*kernels((3, 1, 2), (3, 1, 2), (3, 1, 2)),),
        lambda f, *args: f(*args, causal=True, chunk=2),
        exponents=MODERATE,
    ),
    "linear_recurrence": Row(
        (*kernels((4, 2), (4, 2), (2,)),),
        corners={"zero": (np.zeros((4, 2)), *kernels((4, 2), (2,)))},
        scaled=(1, 2),
        formula=recurred,
    ),
    "linear_recurrence in reverse": Row(
        (*kernels((4, 1), (4, 2), (2,)),),
        lambda f, *args: f(*args, reverse=True),
        scaled=(1, 2),
        formula=lambda a, b, h: recurred(a[::-1], b[::-1], h)[::-1],
    ),
    "load_balancing_loss": Row(
        (MATRIX,),
        lambda f, z: f(z, jnp.asarray([[0, 1], [0, 2]])),
        {"zero": (0 * MATRIX,)},
        MODERATE,
        formula=lambda z: np.stack([3 * softmax(row) @ np.array([2, 1, 1]) / 4 for row in z]),
    ),
    "local_response_norm": Row(
        (MATRIX,),
        lambda f, x: f(x, 2, alpha=0.5, k=2.0),
        {"zero": (0 * MATRIX,)},
        formula=lambda x: x / (2 + (x**2 + np.pad(x**2, ((0, 0), (1, 0)))[:, :-1]) / 4) ** mpmath.mpf(0.75),
    ),
    "lp_pool": Row(
        (CUBE,),
        lambda f, x: f(x, 2),
        {"zero": (0 * CUBE,)},
        formula=lambda x: sqrt((x.reshape(2, 2, 2) ** 2).sum(1)),
        choices={"zero": "the norm of zeros: 0"},
    ),
    "lp_pool of order 3": Row(
        (CUBE,),
        lambda f, x: f(x, 3, order=3, stride=1),
        tolerance=2**10,
        formula=lambda x: np.stack([entries(mpmath.cbrt)((abs(x[i : i + 3]) ** 3).sum(0)) for i in range(2)]),
    ),
    "lstm_step": Row((*_LSTM,), corners={"far out": (array(100, -100), *_LSTM[1:])}, exponents=MODERATE),
    "max_pool": Row((CUBE,), lambda f, x: f(x, 2), formula=lambda x: x.reshape(2, 2, 2).max(1)),
    "mod_relu": Row(
        (array(-1.5, 0.375, 0.25), array(-0.5, 0.125, -0.375)),
        corners={"zero": (array(0, 0, 0), array(-0.5, 0, 0.5))},
        formula=lambda x, b: np.where(abs(x) + b > 0, (abs(x) + b) * x / abs(x), 0 * x),
        choices={"zero": "the direction of 0 is 0, with the derivative 0"},
    ),
    "mod_relu of complex numbers": Row(
        (array(-1.5, 0.375, 0.25), array(0.5, -1, 0.125), array(-0.5, 0.125, -0.375)),
        mod_relu_of_pairs,
        {
            "zero": (array(0, 0, 0), array(0, 0, 0), array(-0.5, 0, 0.5)),
            "imaginary": (array(0, 0, 0), array(2, 1, -1), array(-0.5, 1, 0)),
        },
        formula=scaled_pairs,
        choices={"zero": "the direction of 0 is 0, with the derivative 0"},
    ),
    "pad": Row((CUBE,), lambda f, x: f(x, 1, padding_mode="reflect"), formula=lambda x: x[[1, 0, 1, 2, 3, 2]]),
    "pixel_shuffle": Row((CUBE,), lambda f, x: f(x, 2)),
    "pixel_unshuffle": Row((CUBE,), lambda f, x: f(x, 2)),
    "random_fourier_features": Row((VECTOR, MATRIX, MATRIX[0]), exponents=MODERATE),
    "rbf_kernel": Row(
        (MATRIX, CUBE[:2, :1] * array(1, 0.5, -0.25)),
        corners={"equal": (MATRIX, MATRIX)},
        exponents=MODERATE,
        formula=lambda x, c: exp(-((x[:, None] - c[None]) ** 2).sum(-1)),
    ),
    "rbf_kernel of many features": Row(
        (*kernels((2, 5), (3, 5)), np.float64(0.5)),
        lambda f, x, c, g: f(x, c, gamma=g),
        {"equal": (np.ones((2, 5)), np.ones((3, 5)), np.float64(0.5))},
        MODERATE,
        (0, 1),
        formula=lambda x, c, g: exp(-g * ((x[:, None] - c[None]) ** 2).sum(-1)),
        tolerance=256,
        magnitude=1,
    ),
    "relative_position_bias": Row(
        (MATRIX.T,), lambda f, e: f(jnp.concatenate([e, -e, e, e]), jnp.arange(3), jnp.arange(3))
    ),
    "resize": Row(
        (CUBE,),
        lambda f, x: (f(x, 6), *(f(x, 3, method=method) for method in ("cubic", "nearest", "nearest_floor"))),
    ),
    "ring_attention": Exempt("inside of `shard_map` only: tests/layers/attention has its derivatives"),
    "rms_norm": Row(
        (MATRIX, MATRIX[0]),
        corners={name: (each[0], MATRIX[0]) for name, each in _ZERO.items()},
        exponents=NORM,
        scaled=(0,),
        formula=lambda x, s: x / sqrt((x * x).mean(-1, keepdims=True) + mpmath.mpf(1e-6)) * s,
    ),
    "rms_norm without epsilon": Row(
        (MATRIX,),
        lambda f, x: f(x, epsilon=0.0),
        exponents=(-40, -20, 0, 20, 40),
        formula=lambda x: x / sqrt((x * x).mean(-1, keepdims=True)),
    ),
    "rnn_step": Row(
        (*kernels((2,), (2,), (2, 2), (2, 2), (2,)),),
        exponents=MODERATE,
        formula=lambda x, h, w, u, b: tanh(x @ w + h @ u + b),
    ),
    "rotary": Row(
        (CUBE,),
        lambda f, x: f(x[:, None, :])[:, 0],
        formula=lambda x: np.stack([x[:, 0] * cos(T) - x[:, 1] * sin(T), x[:, 1] * cos(T) + x[:, 0] * sin(T)], -1),
    ),
    "rotary_frequencies": Exempt(_SHAPES),
    "router_z_loss": Row(
        (MATRIX,),
        corners={"zero": (0 * MATRIX,)},
        exponents=MODERATE,
        formula=lambda z: log(exp(z).sum(1)) ** 2,
    ),
    "selective_scan": Row(
        (kernels((3, 2))[0], np.abs(kernels((3, 2))[0]), -np.ones((2, 2)), *kernels((3, 2), (3, 2), (2,), (2, 2))),
        lambda f, *args: _in_one_dtype(*f(*args, chunk=2)),
        scaled=(0, 6),
        formula=selected,
    ),
    "sinusoidal_positions": Exempt(_SHAPES),
    "soft_lookup": Row(
        (*kernels((2,), (3, 2), (3, 2)),), exponents=MODERATE, formula=lambda q, k, v: softmax(k @ q) @ v, magnitude=1
    ),
    "swish": Row(
        (array(-1.5, -0.375, 0.25), np.float64(0.5)),
        corners={"zero": (array(0, 0, 0), np.float64(0)), "far out": (array(-112, 24, 112), np.float64(1))},
        exponents=MODERATE,
        formula=lambda x, b: x * sigmoid(b * x),
    ),
    "taylor_features": Row(
        (array(-1.5, -0.375, 0.25), np.float64(0.5)),
        lambda f, x, g: f(x, 3, gamma=g),
        {"zero": (array(0, 0, 0), np.float64(0.5)), "far out": (array(-16, 12, 112), np.float64(0.5))},
        MODERATE,
        (0,),
        formula=lambda x, g: np.stack(
            [exp(-g * x * x) * sqrt((2 * g) ** n / mpmath.factorial(n)) * x**n for n in range(3)], -1
        ),
    ),
    "top_k_routing": Row(
        (MATRIX,),
        lambda f, z: f(z, 2)[0],
        exponents=MODERATE,
        formula=lambda z: np.stack([softmax(-np.sort(-row)[:2]) for row in z]),
    ),
    "unbatch_graphs": Exempt(_STRUCTURE),
    "unfold": Row((CUBE,), lambda f, x: f(x, 2), formula=lambda x: np.concatenate([x[:-1], x[1:]], 1)),
    "unit_norm": Row(
        (MATRIX,),
        corners={"zero": (0 * MATRIX,)},
        formula=lambda x: x / sqrt((x**2).sum(1, keepdims=True)),
        choices={"zero": "no direction: 0, with the identity as derivative"},
        magnitude=1,
    ),
    "unit_norm of order 1": Row(
        (MATRIX,),
        lambda f, x: f(x, order=1),
        {"zero": (0 * MATRIX,)},
        formula=lambda x: x / abs(x).sum(1, keepdims=True),
        choices={"zero": "no direction: 0, with the identity as derivative"},
        magnitude=1,
    ),
    "unembed": Row((MATRIX[0], *kernels((4, 3))), exponents=SQUARES, formula=lambda x, t: t @ x),
    "unstack_repeats": Exempt("rearranges params"),
    "upsample": Row((CUBE,), lambda f, x: f(x, 2), formula=lambda x: x.repeat(2, 0)),
    "linear_regression": Row(
        (*kernels((5, 2), (5, 1)), np.float64(0.5)),
        lambda f, x, y, r: f(x, y, ridge=r),
        exponents=(-20, 0, 20),  # the derivatives of the implicit function have the fourth power of the data
        scaled=(0, 1),
    ),
    "logistic_regression": Row(
        (*kernels((5, 2)), np.float64(0.5)), lambda f, x, r: f(x, jnp.asarray([0, 1, 1, 0, 1]), ridge=r), exponents=()
    ),
}
T = np.array([mpmath.mpf(i) for i in range(4)])
