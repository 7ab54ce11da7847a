"""Rows of the zoo: layers with a linear carry, step by step in NumPy."""

import numpy as np
from specimen import Specimen

from jaxblocks.layers import LRU, SelectiveSSM


def lru(p, x):
    state = p["nu_log"].size
    rates = np.exp(-np.exp(p["nu_log"]) + 1j * np.exp(p["theta_log"]))
    b = p["input_kernel"][:, :state] + 1j * p["input_kernel"][:, state:]
    c = p["output_kernel"][:state] - 1j * p["output_kernel"][state:]
    h, y = np.zeros((*x.shape[:-2], state), complex), np.zeros_like(x)
    for t in range(x.shape[-2]):
        h = rates * h + np.exp(p["gamma_log"]) * (x[..., t, :] @ b)
        y[..., t, :] = (h @ c).real + p["skip"] * x[..., t, :]
    return y


def selective(p, x):
    state, rank = p["a_log"].shape[1], p["step_kernel"].shape[0]
    h, y = np.zeros((*x.shape[:-2], *p["a_log"].shape)), np.zeros_like(x)
    for t in range(x.shape[-2]):
        now = x[..., t, :]
        r, b, c = np.split(now @ p["projection_kernel"], [rank, rank + state], -1)
        step = np.log1p(np.exp(r @ p["step_kernel"] + p["step_bias"]))[..., None]
        h = np.exp(-step * np.exp(p["a_log"])) * h + step * now[..., None] * b[..., None, :]
        y[..., t, :] = (h * c[..., None, :]).sum(-1) + p["skip"] * now
    return y


ROWS = {
    "LRU": Specimen("LRU", LRU(2), ((3, 5, 4),), lru),
    "LRU with carry": Specimen("LRU", LRU(2, stateful=True), ((3, 5, 4),), lru),
    "SelectiveSSM": Specimen("SelectiveSSM", SelectiveSSM(2, chunk=3), ((3, 5, 4),), selective),
    "SelectiveSSM with carry": Specimen(
        "SelectiveSSM", SelectiveSSM(2, rank=2, stateful=True), ((3, 3, 4),), selective
    ),
}
