"""Random compositions of layers and combinators satisfy all laws."""

import random
import re

import jax
import numpy as np
import pytest

import jaxblocks as jb
from jaxblocks.layers import RMSNorm, WeightNorm
from jaxblocks.models import LoRA
from jaxblocks.testing import check_layer

X = jax.device_put(np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32))


def twice(f, x):
    return f.body(f.body(x)) + x


# Each keeps the four features of its input.
LAYERS = (jb.Bias(), jb.BatchNorm(), jb.Dropout(0.5), jb.LayerNorm(), jb.Swish(), RMSNorm(), jb.tanh, jb.relu)
# Without SpectralNorm, whose derivative takes the vectors of its iteration for constants.
WRAPPERS = (
    jb.Frozen,
    jb.Residual,
    WeightNorm,
    lambda body: LoRA(body, "**", rank=1),
    lambda body: jb.Repeat(body, 2),
    lambda body: jb.Wire(twice, body=body),
    lambda body: jb.Serial(body=body, out=jb.Dense(4)),
)


def composed(draw: random.Random, depth: int):
    """A random net: layers around a `Dense`, in ``depth`` random wrappers."""
    body = jb.Serial(draw.choice(LAYERS), jb.Dense(4), draw.choice(LAYERS))
    for _ in range(depth):
        wrapper = draw.choice(WRAPPERS)
        if wrapper is WeightNorm and re.search("Frozen|LoRA", repr(body)):  # rejected: its lengths have no gradient
            wrapper = jb.Frozen
        body = wrapper(body)
    return body


@pytest.mark.parametrize("seed", range(3))
def test_random_compositions_satisfy_all_laws(seed):
    draw = random.Random(seed)
    net = composed(draw, depth=3)
    training = {"train": True} if "train" in jb.side_inputs(net) else {}
    assert len(check_layer(net, X, mixes_batch="BatchNorm" in repr(net), **training)) > 10
