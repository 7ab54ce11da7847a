"""Rows of the zoo: recurrent layers, against their recurrences in NumPy."""

import numpy as np
from specimen import Specimen
from zoo_conv import convolution

from jaxblocks import GRU, LSTM, RNN, Bidirectional, GRUCell, LSTMCell, Recurrent, RNNCell
from jaxblocks.layers import ConvGRUCell, ConvLSTMCell, RecurrentDropout


def sigma(z):
    return 1 / (1 + np.exp(-z))


def gates(p, x, h):
    return x @ p["kernel"] + p["bias"] + h @ p["recurrent_kernel"] + p["recurrent_bias"]


def rnn(p, x, h):
    h = np.tanh(gates(p, x, h))
    return h, h


def gru(p, x, h):
    n = h.shape[-1]
    r, z = np.split(sigma(gates(p, x, h)[..., : 2 * n]), 2, -1)
    of_h = h @ p["recurrent_kernel"][:, 2 * n :] + p["recurrent_bias"][2 * n :]
    new = np.tanh(x @ p["kernel"][:, 2 * n :] + p["bias"][2 * n :] + r * of_h)
    h = (1 - z) * new + z * h
    return h, h


def lstm(p, x, carry):
    h, c = carry
    i, f, g, o = np.split(gates(p, x, h), 4, -1)
    c = sigma(f) * c + sigma(i) * np.tanh(g)
    h = sigma(o) * np.tanh(c)
    return h, (h, c)


def conv_lstm(p, x, carry):
    h, c = carry
    gates = convolution(x, p["kernel"], p["bias"], pads=1) + convolution(h, p["recurrent_kernel"], pads=1)
    i, f, g, o = np.split(gates, 4, -1)
    c = sigma(f) * c + sigma(i) * np.tanh(g)
    h = sigma(o) * np.tanh(c)
    return h, (h, c)


def conv_gru(p, x, h):
    """With stride 2, around a circle of 4 positions."""
    n, of_h = h.shape[-1], lambda h, kernel: convolution(h, kernel, pads=1, mode="wrap")
    of_x = convolution(x, p["kernel"], p["bias"], stride=2, pads=((0, 1),), mode="wrap")
    r, z = np.split(sigma((of_x + of_h(h, p["recurrent_kernel"]))[..., : 2 * n]), 2, -1)
    new = np.tanh(of_x[..., 2 * n :] + of_h(r * h, p["recurrent_kernel"][..., 2 * n :]))
    h = (1 - z) * new + z * h
    return h, h


def over_time(step, p, x, carry, reverse=False, mask=None):
    outputs = np.zeros((*x.shape[:2], 3))
    for t in range(x.shape[1])[:: -1 if reverse else 1]:
        y, after = step(p, x[:, t], carry)
        if mask is None:
            outputs[:, t], carry = y, after
        else:
            real = mask[:, t, None]
            outputs[:, t], carry = np.where(real, y, 0), np.where(real, after, carry)
    return outputs


def over_frames(step, p, x, carry):
    outputs = []
    for t in range(x.shape[1]):
        y, carry = step(p, x[:, t], carry)
        outputs.append(y)
    return np.stack(outputs, 1)


ZEROS = np.zeros((4, 3))
MASK = np.array([[1, 1, 1, 1], [0, 1, 0, 1], [1, 1, 0, 0], [0, 0, 0, 0]], bool)

ROWS = {
    "RNNCell": Specimen("RNNCell", RNNCell(3), ((4, 5),), lambda p, x: rnn(p, x, ZEROS)[0]),
    "GRUCell": Specimen("GRUCell", GRUCell(3), ((4, 5),), lambda p, x: gru(p, x, ZEROS)[0]),
    "LSTMCell": Specimen("LSTMCell", LSTMCell(3), ((4, 5),), lambda p, x: lstm(p, x, (ZEROS, ZEROS))[0]),
    "ConvLSTMCell": Specimen(
        "ConvLSTMCell",
        Recurrent(ConvLSTMCell(3, 3), spatial=1),
        ((2, 3, 4, 2),),
        lambda p, x: over_frames(conv_lstm, p, x, (np.zeros((2, 4, 3)),) * 2),
    ),
    "ConvGRUCell": Specimen(
        "ConvGRUCell",
        Recurrent(ConvGRUCell(3, 3, stride=2, padding_mode="circular"), spatial=1),
        ((2, 3, 4, 2),),
        lambda p, x: over_frames(conv_gru, p, x, np.zeros((2, 2, 3))),
    ),
    "RecurrentDropout": Specimen(
        "RecurrentDropout",
        Recurrent(RecurrentDropout(RNNCell(3), 0.25)),
        ((4, 4, 5),),
        lambda p, x: over_time(rnn, p, x, ZEROS, mask=MASK),
        {"mask": MASK},
    ),
    "RNN": Specimen("RNN", RNN(3), ((4, 4, 5),), lambda p, x: over_time(rnn, p, x, ZEROS)),
    "GRU": Specimen("GRU", GRU(3), ((4, 4, 5),), lambda p, x: over_time(gru, p, x, ZEROS, mask=MASK), {"mask": MASK}),
    "LSTM": Specimen("LSTM", LSTM(3), ((4, 4, 5),), lambda p, x: over_time(lstm, p, x, (ZEROS, ZEROS))),
    "Bidirectional": Specimen(
        "Bidirectional",
        Bidirectional(RNNCell(3), RNNCell(3)),
        ((4, 4, 5),),
        lambda p, x: np.concatenate(
            [over_time(rnn, p["forward"], x, ZEROS), over_time(rnn, p["backward"], x, ZEROS, reverse=True)], -1
        ),
    ),
}
