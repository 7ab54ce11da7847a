# %% [markdown]
# # Depth and width
#
# One hidden layer suffices for every continuous function (notebook 1). **When do more layers need fewer units?**
#
# The answers of this notebook are constructions, bounds with proofs, and counts of the pieces of given nets, which
# are exact and not sampled.
#
# **Prerequisites:** notebook 1. **Sources:** Telgarsky 2016 (folding, and the separation of depths); Montúfar,
# Pascanu, Cho and Bengio 2014 (linear regions); Hanin and Rolnick 2019 (typical nets); Hanin and Sellke 2017
# (narrow nets); Minsky and Papert 1969 (parity); Diehl, *lecture notes* (2023), section 1.

# %%
import math

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax.nn import initializers

import jaxblocks as jb
from jaxblocks import plotting
from jaxblocks.theory import (
    arrangement_regions,
    bit_rows,
    count_kinks,
    folding_network,
    max_min_string,
    max_zero_x_y,
    minterm_network,
    parity_chain,
    parity_cosine,
    parity_shallow,
    pieces_bound,
    region_lower_bound,
    region_upper_bound,
    regions,
    sawtooth_network,
    separation,
    separation_bound,
    to_piecewise_linear,
    triangle_network,
)

# %% [markdown]
# ## 1. Folding
#
# The sawtooth functions fold the graph once more in each step:
#
# $$ f_0(x) = x, \qquad f_l(x) = 2\, |f_{l-1}(x)| - 2 . $$
#
# Since $|s| = \mathrm{ReLU}(s) + \mathrm{ReLU}(-s)$, each fold is one hidden layer of two units. The function $f_l$
# has $2^l - 1$ kinks on $\mathbb R$. *Proof.* Between neighboring kinks, and beyond the outer ones, $f_l$ is affine
# and passes through 0 exactly once: on $[-2, 2]$ it goes back and forth between $-2$ and $2$. So the absolute value
# adds one kink on each of the $2^l$ pieces, and $(2^l - 1) + 2^l = 2^{l+1} - 1$. $\square$

# %%
figure, axes = plt.subplots(
    2, 3, figsize=(6.5, 3.6), layout="constrained", sharex=True, sharey=True
)
for levels, ax in enumerate(axes.flat):
    f = to_piecewise_linear(*sawtooth_network(levels))
    corners = np.unique([-2.0, *f.breakpoints, 2.0])
    plotting.curves(corners, {f"_{levels} hidden layers": f(corners)}, ax)
    ax.set_title(f"{levels} hidden layers, {len(f.breakpoints)} kinks", fontsize=9)
figure.supxlabel("$x$", fontsize=9)
figure.supylabel("$f_l(x)$", fontsize=9)
kinks = [count_kinks(*sawtooth_network(levels)) for levels in range(8)]
assert kinks == [2**levels - 1 for levels in range(8)]

# %% [markdown]
# With $l \ge 1$ hidden layers of two units, the net has $6 l + 1$ parameters. A net with *one* hidden layer needs a
# unit for each kink: for $l = 20$ the deep net has 121 parameters, and a shallow one needs more than a million
# units.

# %%
for levels in (1, 5, 20):
    assert jb.count_params(sawtooth_network(levels)[1]) == 6 * levels + 1
assert 6 * 20 + 1 == 121 and 2**20 - 1 > 1_000_000

# %% [markdown]
# **This is what a deep net *can* do, not what it typically does.** Random nets have about as many kinks as they
# have units, also when they are deep (Hanin and Rolnick 2019). The next cell counts the kinks of 30 random nets of
# each depth, with eight units in each layer, He initialization and standard normal biases.


# %%
def random_deep_net(hidden_layers, key):
    draw = {
        "kernel_init": initializers.he_normal(),
        "bias_init": initializers.normal(1.0),
    }
    hidden = [
        layer for _ in range(hidden_layers) for layer in (jb.Dense(8, **draw), jb.relu)
    ]
    net = jb.Serial(*hidden, jb.Dense(1))
    return net, net.init(key, jnp.zeros(1))


for n in (1, 2, 4):
    kinks = [count_kinks(*random_deep_net(n, jax.random.key(i))) for i in range(30)]
    reach = region_lower_bound((8,) * n, 1) - 1
    print(
        f"{8 * n:2} units in {n} layers: {np.mean(kinks):.1f} kinks on average,",
        end=" ",
    )
    print(f"{min(kinks)} to {max(kinks)}; reached by folding: {reach:,}")
    assert abs(np.mean(kinks) / (8 * n) - 1) < 0.15

# %% [markdown]
# **Exercise 1.** The triangle wave on $[0, 1]$ is $\Delta(x) = 2x$ for $x \le \tfrac12$ and $2 - 2x$ after. Write
# $\Delta$ as a sum of two rectifiers. How many pieces has $\Delta(\Delta(\Delta(x)))$ on $[0, 1]$?

# %% tags=["exercise"]
triangle = lambda x: x  # complete: use jb.relu twice
pieces_of_three = 0  # complete

# %% tags=["solution"]
triangle = lambda x: 2 * jb.relu(x) - 4 * jb.relu(x - 0.5)
pieces_of_three = 8  # each application doubles the number

# %% tags=["check"]
at = jnp.linspace(0, 1, 9)
assert np.allclose(triangle(at), 1 - abs(2 * at - 1)), (
    f"expected 1 - |2x - 1|, not {triangle(at)}"
)
assert pieces_of_three == 8, "count the kinks in a plot of the three applications"

# %% [markdown]
# ## 2. Depth separation
#
# A small shallow net cannot even *approximate* a function with many folds. Let $\Delta^k$ be the triangle wave
# applied $k$ times. It is a net of $2k$ layers, two for each application, and crosses $\tfrac12$ at $2^k$ points of
# $[0, 1]$, $2^{-k}$ apart.
#
# **Lemma.** If $g$ has at most $P$ pieces on $[0, 1]$, then
# $\int_0^1 |\Delta^k - g|\, dx \ge \tfrac18 - (P + 1) / 2^{k+2}$.
#
# *Proof.* $\Delta^k$ is alternately above and below $\tfrac12$ in the $2^k - 1$ intervals between the crossings.
# $g$ crosses $\tfrac12$ at most $P$ times, so in at least $2^k - 1 - P$ of the intervals it stays on one side.
# These form at most $P + 1$ runs of neighboring intervals, and in every second interval of a run $g$ is on the
# other side of $\tfrac12$ than $\Delta^k$. Each of these adds at least the area of the triangle, $2^{-k}/4$.
# $\square$
#
# **Theorem** (Telgarsky 2016). Let $L \ge 2$ and $k = L^2 + 2$. Every net of rectifiers $g$ with one input, at most
# $L$ layers and at most $2^L$ nodes has $\int_0^1 |\Delta^k - g|\, dx > \tfrac1{32}$.
#
# *Proof.* Such a net has at most $P = (2 \cdot 2^L / L)^L$ pieces (Telgarsky's lemma 2.1). Since
# $P / 2^{k} = 2^{L - 2} / L^L \le \tfrac14$ for $L \ge 2$, the lemma gives at least
# $\tfrac18 - \tfrac1{16} - 2^{-k-2} > \tfrac1{32}$. $\square$
#
# The deep net has $3k$ nodes, that is $3 (L^2 + 2)$; the others may have up to $2^L$, exponentially more for large
# $L$.

# %%
for L in range(2, 7):
    k, pieces = L**2 + 2, pieces_bound(L, 2**L)
    ratio, bound = pieces / 2**k, separation_bound(k, pieces)
    print(f"L = {L}: {2**k:15,} pieces against at most {pieces:13.1f},", end=" ")
    print(f"distance at least {bound:.4f}")
    assert (
        math.isclose(ratio, 2 ** (L - 2) / L**L) and ratio <= 1 / 4 and bound > 1 / 32
    )
assert separation(11, lambda x: 0 * x + 0.5) == 0.25  # of the constant 1/2
assert separation(4, *triangle_network(4)) < 1e-6  # of the deep net itself

# %% [markdown]
# **Exercise 2.** From which $L$ on may the shallow nets have more nodes than the deep one, $2^L > 3 (L^2 + 2)$?

# %% tags=["exercise"]
smallest = 0  # complete

# %% tags=["solution"]
smallest = next(L for L in range(2, 100) if 2**L > 3 * (L**2 + 2))

# %% tags=["check"]
nodes = lambda L: (2**L, 3 * (L**2 + 2))
assert nodes(smallest)[0] > nodes(smallest)[1], f"{nodes(smallest)} is not enough"
assert nodes(smallest - 1)[0] <= nodes(smallest - 1)[1], "a smaller L suffices"

# %% [markdown]
# ## 3. Two inputs
#
# With two inputs, a unit of the first layer changes the gradient along a whole straight line, by the same amount
# everywhere on it. This restricts what one hidden layer can compute.
#
# **Proposition.** No net with one hidden layer of rectifiers, of any width, computes $\max(0, x, y)$; a net with
# two hidden layers of 3 and 1 units does. *Proof.* Across the line $x = 0$, the partial derivative with respect to
# $x$ jumps by 1 at $y = -1$, and by 0 at $y = 1$. In a net with one hidden layer, the jump across $x = 0$ is the
# sum of the contributions of the units whose line it is, and the same at all points of the line that are on no
# other unit's line. But $y$ can be varied a little around $-1$ and around $1$ to avoid those, which are finitely
# many points. The second part is $\max(0, x, y) = \mathrm{ReLU}\big(\mathrm{ReLU}(x - y) + \mathrm{ReLU}(y) -
# \mathrm{ReLU}(-y)\big)$. $\square$

# %%
net, params = max_zero_x_y()
maximum = lambda x: jnp.maximum(0, x.max(-1))
square = np.random.default_rng(0).uniform(-1, 1, (1000, 2)).astype(np.float32)
assert np.allclose(net.apply(params, square)[:, 0], maximum(square), atol=1e-6)
assert [p["bias"].size for p in params if p] == [3, 1]
slope = lambda x, y: jax.grad(maximum)(jnp.array([x, y]))[0]
assert slope(0.1, -1.0) - slope(-0.1, -1.0) == 1
assert slope(0.1, 1.0) - slope(-0.1, 1.0) == 0
figure = plt.figure(figsize=(4, 3), layout="constrained")
axes = figure.add_subplot(projection="3d")
plotting.surface(maximum, ((-1, 1), (-1, 1)), axes)
axes.set_xlabel("$x$", labelpad=-8)
axes.set_ylabel("$y$", labelpad=-8)
title = axes.set_title(r"$\max(0, x, y)$")

# %% [markdown]
# **Linear regions** are the parts of the plane on which a net is one affine map. `regions` computes the polygons.
#
# * One hidden layer of $n$ units defines $n$ lines, which divide the plane into at most $1 + n + \binom n2$ cells: the
#   $n$-th line crosses the others in at most $n - 1$ points and so passes through at most $n$ cells. For 20 units, 211.
# * A second layer divides the *image* of the first. If the first layer maps 25 parts of the square onto the same image,
#   then a line of the second layer through this image divides all 25 parts.
#
# Left: 20 random units in one layer. Right: $10 + 10$ units with chosen weights in two layers. The number of units
# is the same. (The number of parameters is not: 81 and 151.)

# %%
assert arrangement_regions(20, 2) == 1 + 20 + math.comb(20, 2) == 211
random_net = jb.Serial(
    jb.Dense(20, bias_init=initializers.normal(0.5)), jb.relu, jb.Dense(1)
)
random_params = random_net.init(jax.random.key(0), jnp.zeros(2))
shallow = regions(random_net, random_params, box=((-2, 2), (-2, 2)))
deep = regions(*folding_network((10, 10)), box=((0, 1), (0, 1)))
figure, (left, right) = plt.subplots(1, 2, figsize=(6.5, 3.4), layout="constrained")
for ax, found in ((left, shallow), (right, deep)):
    found.plot(ax).set(xlabel="$x_1$", ylabel="$x_2$")
assert shallow.linear_count <= 211
assert deep.linear_count == 25 * arrangement_regions(10, 2) == 1400
assert jb.count_params(random_params) == 81
assert jb.count_params(folding_network((10, 10))[1]) == 151

# %% [markdown]
# **Theorem** (Montúfar et al. 2014). Let a net of rectifiers have $d$ inputs and $L$ hidden layers of widths
# $n_1, \dots, n_L \ge d$. For suitable weights it has at least
#
# $$ \Big(\prod_{i=1}^{L-1} \Big\lfloor \frac{n_i}{d} \Big\rfloor^{d}\Big) \sum_{j=0}^{d} \binom{n_L}{j} $$
#
# linear regions. For $d = 2$ and widths 10, 10 this is $25 \cdot 56 = 1400$; the net on the right has exactly as
# many. It is a lower bound on the *maximum*. Conversely, each layer divides a region into at most $\sum_{j \le d}
# \binom{n_i}{j}$ parts, so no net of this size has more than $56^2 = 3136$.

# %%
assert region_lower_bound((10, 10), 2) == (10 // 2) ** 2 * 56 == 1400
assert region_upper_bound((10, 10), 2) == 56**2 == 3136

# %% [markdown]
# **Exercise 3.** In how many regions do $n$ hyperplanes divide $\mathbb R^d$ at most? A new hyperplane is itself
# divided by the others, like $\mathbb R^{d-1}$, and each of its parts divides one cell: $r(n, d) = r(n - 1, d) +
# r(n - 1, d - 1)$. Complete the recursion.


# %% tags=["exercise"]
def cells(n, d):
    return 1  # complete: the case n = 0 or d = 0, and the recursion


# %% tags=["solution"]
def cells(n, d):
    return 1 if n == 0 or d == 0 else cells(n - 1, d) + cells(n - 1, d - 1)


# %% tags=["check"]
assert cells(3, 1) == 4, f"three points divide a line into 4 parts, not {cells(3, 1)}"
assert cells(10, 2) == 56, f"ten lines make at most 56 cells, not {cells(10, 2)}"
assert cells(6, 3) == arrangement_regions(6, 3), "compare with the sum of binomials"

# %% [markdown]
# ## 4. Deep narrow networks
#
# Depth can replace width. The identity $\max(y, \ell) = \ell + \mathrm{ReLU}(y - \ell)$ gives a net that passes $x$
# through every layer in $d$ units and keeps $y$ in one more unit; on a bounded set such a net computes any sequence
# of maxima and minima of affine functions. With these, width $d + 1$ is enough to approximate every continuous real
# function on a closed bounded set of $\mathbb R^d$ uniformly, and width $d$ is not (Hanin and Sellke 2017).

# %%
# min(max(x, -x), 2) on [-8, 8]: every hidden layer has 1 + 1 units
net, params = max_min_string(
    [[1.0, -1.0, 0.0]], [0.0, 0.0, 2.0], ["max", "min"], radius=8.0
)
assert [p["bias"].size for p in params if p] == [2, 2, 1]
at = np.linspace(-8, 8, 65, dtype=np.float32)
computed = jax.jit(net.apply)(params, at[:, None])[:, 0]
assert np.allclose(computed, np.minimum(abs(at), 2), atol=1e-5)

# %% [markdown]
# **Several outputs need more.** With one input and three outputs, width 2 is not enough, whatever the depth: the
# outputs are an affine function of the two units of the last hidden layer, so they all lie in one plane of $\mathbb
# R^3$. A path through the corners $(0,0,0)$, $(1,0,0)$, $(1,1,0)$, $(1,1,1)$ of a cube does not: every plane has a
# distance of at least $1/\sqrt{12} = 0.289$ from one of them. *Proof.* Let $(a, b, c)$ be its unit normal. Along
# the normal the corners are at $0$, $a$, $a + b$, $a + b + c$; if all of them lie in an interval of length $R$,
# then $|a|, |b|, |c| \le R$ and $1 = a^2 + b^2 + c^2 \le 3 R^2$. The plane in the middle has a distance of $R / 2
# \ge 1/\sqrt{12}$ from the farthest corner, and other planes a larger one. $\square$ Width $d_{\text{in}} +
# d_{\text{out}}$ is always enough (Hanin and Sellke 2017).

# %%
corners = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1]])
best = np.array([1, -1, 1]) / math.sqrt(3)
assert math.isclose(np.ptp(corners @ best) / 2, 1 / math.sqrt(12))
normals = np.random.default_rng(0).normal(size=(100_000, 3))
apart = np.ptp(normals @ corners.T, 1) / np.linalg.norm(normals, axis=1)
assert apart.min() / 2 >= 1 / math.sqrt(12)

# %% [markdown]
# **Exercise 4.** Write $\max(x_1, x_2, x_3)$ with rectifiers only, by the identity above, one maximum after the other.


# %% tags=["exercise"]
def largest(x):
    """For x of shape (n, 3)."""
    return x[:, 0]  # complete


# %% tags=["solution"]
def largest(x):
    """For x of shape (n, 3)."""
    two = x[:, 1] + jb.relu(x[:, 0] - x[:, 1])
    return x[:, 2] + jb.relu(two - x[:, 2])


# %% tags=["check"]
triples = jax.random.normal(jax.random.key(0), (100, 3))
gap = abs(largest(triples) - triples.max(1))
assert gap.max() < 1e-5, f"wrong for {triples[gap.argmax()]}"

# %% [markdown]
# ## 5. Exclusive or and parity
#
# Exclusive or, $x_1 \oplus x_2$, is 1 if exactly one of two bits is 1. No affine function separates its two values:
# the points with value 1 have the same center as those with value 0. The best affine approximation in the mean
# square is the constant $\tfrac12$.
#
# A short history: the perceptron (Rosenblatt 1958) is a linear classifier of fixed features. Minsky and Papert
# (*Perceptrons*, 1969) proved what it cannot compute if each feature depends on few inputs: parity is their first
# example, and exclusive or is parity of two bits. Hidden layers remove this limit.

# %%
bits, labels = jnp.asarray(bit_rows(2), jnp.float32), jnp.array([0.0, 1.0, 1.0, 0.0])
assert (bits[labels == 1].mean(0) == bits[labels == 0].mean(0)).all()
best = jb.layers.linear_regression(bits, labels[:, None])
assert np.allclose(best["kernel"], 0, atol=1e-6) and np.allclose(best["bias"], 0.5)
assert np.allclose(jnp.mean((jb.affine(bits, **best)[:, 0] - labels) ** 2), 0.25)

# %% [markdown]
# Two rectifiers compute it: $\mathrm{ReLU}(x_1 + x_2) - 2\, \mathrm{ReLU}(x_1 + x_2 - 1)$. With the four inputs in
# the rows of $X$, the hidden layer is $H = \mathrm{ReLU}(X W_1 + b_1)$. It *folds* the square: it maps both points
# with label 1 to the same point, and a line (dashed) then separates the labels.

# %%
net, params = parity_shallow(2)
W1, b1 = params[0]["kernel"], params[0]["bias"]
steps = [bits, bits @ W1, bits @ W1 + b1, jb.relu(bits @ W1 + b1)]
assert steps[3].tolist() == [[0, 0], [1, 0], [1, 0], [2, 1]]
assert net.apply(params, bits)[:, 0].tolist() == labels.tolist()
titles = "$X$", "$X W_1$", "$X W_1 + b_1$", "ReLU of it"
figure, axes = plt.subplots(
    1, 4, figsize=(6.5, 2.4), layout="constrained", sharex=True, sharey=True
)
for ax, places, title in zip(axes, steps, titles, strict=True):
    plotting.points(places, labels, ax, names=["label 0", "label 1"])
    ax.get_legend().remove()
    ax.set(title=title, xlim=(-0.5, 2.5), ylim=(-1.5, 2.5))
figure.supxlabel("first coordinate", fontsize=9)
figure.supylabel("second coordinate", fontsize=9)
# h_1 - 2 h_2 = 1/2
axes[-1].plot([-0.5, 2.5], [-0.5, 1.0], "--", color="black", label="_boundary")
dots = axes[0].get_legend_handles_labels()
legend = figure.legend(*dots, loc="outside upper center", ncols=2)

# %% [markdown]
# **Parity of $n$ bits** is 1 if the number of ones is odd. Its truth table has $2^{n-1}$ true rows, and a net with
# one unit for each of them has exponentially many. But parity depends on the *sum* $s$ of the bits alone. As a
# function of $s$ it is a zigzag with $n - 1$ kinks inside:
#
# $$ \mathrm{ReLU}(s) + 2 \sum_{k=1}^{n-1} (-1)^k\, \mathrm{ReLU}(s - k) . $$
#
# So one hidden layer of $n$ rectifiers suffices. A chain of pairwise exclusive ors has $2 (n - 1)$, and a single
# unit with a cosine computes it too, $\tfrac12 - \tfrac12 \cos \pi s$.

# %%
n = 8
rows = np.asarray(bit_rows(n), np.float32)
parity = rows.sum(1) % 2
ways = {
    "truth table, one unit per true row": (minterm_network(parity), 2 ** (n - 1)),
    "one hidden layer of rectifiers": (parity_shallow(n), n),
    "chain of pairwise exclusive ors": (parity_chain(n), 2 * (n - 1)),
    "a cosine": (parity_cosine(n), 1),
}
for name, ((net, params), units) in ways.items():
    assert np.allclose(jax.jit(net.apply)(params, rows)[:, 0], parity, atol=1e-5)
    print(f"{name:34} {units:4} units")

# %% [markdown]
# These constructions use the *knowledge* that parity depends on the sum. Two methods without it know the labels of
# half of the 256 rows and predict the others from similar rows: by the nearest row, and by a sum of Gaussian
# functions centered at the given rows. In 20 random halves both are right for fewer than half of the new rows, so
# they are worse than guessing: a row that differs in one bit is the most similar, and has the other parity.

# %%
nearest_row = jax.jit(jb.layers.knn_predict)
kernel = np.exp(-0.2 * ((rows[:, None] - rows[None]) ** 2).sum(-1))  # of Gaussians
right = []
for seed in range(20):
    order = np.random.default_rng(seed).permutation(256)
    given, asked = order[:128], order[128:]
    by_row = nearest_row(rows[asked], rows[given], parity[given].astype(int))
    regular = kernel[np.ix_(given, given)] + 1e-3 * np.eye(128)
    weights = np.linalg.solve(regular, 2 * parity[given] - 1)
    by_bumps = kernel[np.ix_(asked, given)] @ weights > 0
    right.append([np.mean(guess == parity[asked]) for guess in (by_row, by_bumps)])
for name, accuracies in zip(
    ("nearest row", "Gaussians"), np.transpose(right), strict=True
):
    print(f"{name:12} right for {accuracies.min():.0%} to {accuracies.max():.0%}")
    assert accuracies.max() < 0.5

# %% [markdown]
# **Exercise 5.** Write the weights of the net for the parity of $n$ bits with one hidden layer of $n$ rectifiers.


# %% tags=["exercise"]
def parity_weights(n):
    """The kernel (n, n), the bias (n,) of the hidden layer, and the weights (n,)."""
    return np.zeros((n, n)), np.zeros(n), np.zeros(n)  # complete


# %% tags=["solution"]
def parity_weights(n):
    """The kernel (n, n), the bias (n,) of the hidden layer, and the weights (n,)."""
    k = np.arange(n)  # every unit computes ReLU(s - k)
    return np.ones((n, n)), -k, np.where(k == 0, 1, 2 * (-1.0) ** k)


# %% tags=["check"]
for n in (2, 5, 8):
    kernel_n, bias_n, out_n = parity_weights(n)
    all_rows = np.asarray(bit_rows(n))
    outputs = np.maximum(0, all_rows @ kernel_n + bias_n) @ out_n
    wrong = int((abs(outputs - all_rows.sum(1) % 2) > 1e-9).sum())
    assert wrong == 0, f"for n = {n}, {wrong} of {2**n} rows are wrong"

# %% [markdown]
# ## Summary
#
# | network | functions it computes |
# |---|---|
# | $l$ hidden layers of two rectifiers | among others, functions with $2^l - 1$ kinks |
# | one hidden layer of $n$ rectifiers, two inputs | at most $1 + n + \binom n2$ linear regions |
# | layers of $d + 1$ rectifiers, $d$ inputs, one output | every continuous function on a bounded closed set, nearly |
# | one hidden layer of $n$ rectifiers, $n$ bits | parity |
#
# How deep should a net be? Theory gives no number. Deep nets *can* compute more functions with fewer units; random
# deep nets do not use this (section 1), and whether training finds such functions is another question. In practice,
# the depth is chosen on validation data (notebook 3), and prior knowledge is built into the layers (notebooks 5 and
# 6).
