"""The page of the lectures' errors states numbers that can be recomputed: here they are, from the printed forms."""

import math

import numpy as np
from repository import ROOT

PAGE = " ".join((ROOT / "docs" / "errors_in_the_lectures.md").read_text().split())


def stated(text):
    assert text in PAGE, text


def test_printed_sums_for_piecewise_linear_functions():
    t, slope, c0, p = np.array([-1, 0.5, 2, 3]), np.array([0.7, -1, 2, 0.3, -0.4]), 1.3, 3
    x = np.linspace(-6, 8, 14001)
    over = lambda place: np.maximum(0, x - place)
    first = slope[0] * x + c0
    truth = first + sum((slope[i] - slope[i - 1]) * over(t[i - 1]) for i in range(1, p + 2))
    corrected = slope[0] * np.minimum(x, t[0]) + c0 + slope[p + 1] * over(t[p])
    corrected += sum(slope[i] * np.minimum(over(t[i - 1]), t[i] - t[i - 1]) for i in range(1, p + 1))
    assert abs(corrected - truth).max() < 1e-12
    printed = slope[0] * np.minimum(x, t[0]) + c0 + slope[p] * over(t[p])
    printed += sum(slope[i] * np.minimum(over(t[i - 1]), t[i + 1] - t[i - 1]) for i in range(1, p))
    assert math.isclose(abs(printed - truth).max(), 3.7, abs_tol=1e-9)
    rectifiers = first + sum((slope[i] - slope[i - 1]) * over(t[i]) for i in range(1, p + 1))
    assert math.isclose(abs(rectifiers - truth).max(), 3.25, abs_tol=1e-9)
    earlier = slope[0] * np.minimum(x, t[0]) + c0
    earlier += sum(slope[i] * np.minimum(over(t[i]), t[i + 1] - t[i]) for i in range(1, p))
    assert math.isclose(abs(earlier - truth).max(), 3.0, abs_tol=1e-9)
    stated("by up to 3.7, the earlier one by up to 3.0")
    stated("wrong by up to 3.25")


def test_printed_momentum():
    printed, corrected = (1.0, 0.0), (1.0, 0.0)
    for _ in range(100):
        printed = printed[0] + printed[1], 0.9 * printed[1] - 0.5 * printed[0]
        v = 0.9 * corrected[1] - 0.5 * corrected[0]
        corrected = corrected[0] + v, v
    assert math.isclose(abs(printed[0]), 1.16e7, rel_tol=1e-2)
    assert math.isclose(abs(corrected[0]), 0.00289, rel_tol=1e-3)
    stated(r"lead to $1.16 \cdot 10^7$ instead of $0.00289$")
    # on a parabola the printed form is stable up to 1 - m
    radius = lambda a: abs(np.roots([1, -1.9, 0.9 + a])).max()
    assert radius(0.099) < 1 < radius(0.101)


def test_numbers_of_probabilities():
    kl = lambda p, q: float(np.sum(p * np.log(p / q)))
    half, q = np.array([0.5, 0.5]), np.array([0.9, 0.1])
    assert [round(kl(half, q), 4), round(kl(half, q) / math.log(2), 4)] == [0.5108, 0.7370]
    assert [round(kl(half, (half + q) / 2), 4), round(kl(half, q) / 2, 4)] == [0.0872, 0.2554]
    stated("0.5108 nats, 0.7370 bits")
    nll = lambda z, y: math.log(sum(map(math.exp, z))) - z[y]
    assert round(nll([0, 0.1], 0), 3) == 0.744 and round(nll([1.2, 1, 0.9], 0), 3) == 0.940
    assert round(math.tanh(2) / 3 - math.tanh(1) * 2 / 3, 3) == -0.186
    assert round(0.5 * 1.25 + math.log(2 * math.pi), 4) == 2.4629
    weights = np.exp([1, 0, 1]) / np.exp([1, 0, 1]).sum()
    assert np.allclose(weights, [0.4223, 0.1554, 0.4223], atol=1e-4)
    assert np.allclose(weights @ np.arange(1, 13).reshape(3, 4), [5, 6, 7, 8])


def test_numbers_of_counts_and_convolutions():
    assert math.comb(10, 2) ** 2 * 10**2 == 202_500 and (1 + 10 + 45) ** 2 == 3136 and 25 * 56 == 1400
    assert [1 * 100 * 2 + 1 * 2 * 1, 100 * 2 * 1 + 1 * 100 * 1] == [202, 300]
    d = 50, 1, 50, 50, 50
    forward = sum(d[0] * d[i] * d[i + 1] for i in range(1, 4))
    reverse = sum(d[4] * d[i] * d[i - 1] for i in range(3, 0, -1))
    assert (forward, reverse) == (127_500 + 125_000, 130_000)
    assert 50 * 50 * 1 + 50 * 50 * 1 + 50 * 50 * 1 == 7500
    assert np.convolve([1, 2, 3], [1, 2, 3]).tolist() == [1, 4, 10, 12, 9]
    T = np.array([1.0, 2, 3, 6])
    assert np.allclose((T - 3) / T.std(), [-1.069, -0.535, 0, 1.604], atol=1e-3)
