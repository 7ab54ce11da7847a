"""Rows of the zoo: mixtures of experts, token by token in NumPy."""

import math

import numpy as np
from specimen import Specimen

from jaxblocks import Dense
from jaxblocks.layers import MixtureOfExperts

TOP_K, EXPERTS = 2, 3


def mixture(p, x, capacity_factor=None):
    """Each choice of each token in turn: all first ones before all second ones."""
    kernel, bias = p["experts"]["kernel"], p["experts"]["bias"]
    tokens = x.reshape(-1, x.shape[-1])
    logits = tokens @ p["router"]["kernel"]
    chosen = np.argsort(-logits, -1, kind="stable")[:, :TOP_K]
    limit = math.inf if capacity_factor is None else math.ceil(capacity_factor * TOP_K * len(tokens) / EXPERTS)
    y, used = np.zeros((len(tokens), kernel.shape[-1])), np.zeros(EXPERTS)
    for choice in range(TOP_K):
        for token, e in enumerate(chosen[:, choice]):
            if used[e] < limit:
                weight = np.exp(logits[token, e]) / np.exp(logits[token, chosen[token]]).sum()
                y[token] += weight * (tokens[token] @ kernel[e] + bias[e])
            used[e] += 1
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    balance = EXPERTS * probabilities @ (used / used.sum())
    z = np.log(np.exp(logits).sum(-1)) ** 2
    shape = x.shape[:-1]
    return y.reshape(*shape, -1), {"load_balancing_loss": balance.reshape(shape), "z_loss": z.reshape(shape)}


def row(reference=mixture, **options):
    return Specimen(
        "MixtureOfExperts",
        MixtureOfExperts(Dense(4), EXPERTS, top_k=TOP_K, **options),
        ((4, 3, 5),),
        reference,
        mixes_batch=True,
    )


ROWS = {
    "MixtureOfExperts": row(),
    "MixtureOfExperts in blocks": row(block=2),
    "MixtureOfExperts with capacity": row(lambda p, x: mixture(p, x, 0.75), capacity_factor=0.75),
}
