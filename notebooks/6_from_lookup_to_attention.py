# %% [markdown]
# # From lookup tables to attention
#
# A Python dictionary maps a key to a value. It has no derivative, and a key that differs slightly from the stored one
# raises an error. **How does a lookup table become a differentiable function?** The lecture notes ask this question.
# The answer has four steps and leads to the attention of current language models:
#
# 1. write the table as a sum;
# 2. replace the weights by a softmax;
# 3. learn projections of queries, keys and values;
# 4. use several heads in parallel.
#
# An `assert` in the next code cell checks each claim of the text. The homework at the end has solutions.
#
# **Sources:** Diehl, *lecture notes* (2023), section 2; Cevher, *Mathematics of Data*. Some formulas in these sources
# contain errors. For each error, this notebook gives the printed form, a counterexample and the corrected form.

# %%
import functools

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import jaxblocks as jb
from jaxblocks import plotting
from jaxblocks.theory.convergence import descend

# %% [markdown]
# ## 1. A lookup table as a sum
#
# Let the keys be unit vectors $e_1, \dots, e_5$, and let $v_i$ be the value of $e_i$. The inner product compares a
# query $q$ with every key, and
#
# $$ \mathrm{lookup}(q) = \sum_{i} \langle q, e_i \rangle\, v_i $$
#
# returns $v_3$ for $q = e_3$, since all other products are 0. It is linear in each argument: for $e_3 + 2 e_5$ it
# returns $v_3 + 2 v_5$. And it is differentiable: the derivative in the direction of $e_i$ is $v_i$. (The notes print
# "differential function" here; *differentiable* is meant.)

# %%
keys, values = jnp.eye(5), jnp.arange(10.0).reshape(5, 2)
assert (
    jb.layers.hard_lookup(keys[2], keys, values).tolist()
    == values[2].tolist()
    == [4, 5]
)
assert jb.layers.hard_lookup(keys[2] + 2 * keys[4], keys, values).tolist() == [20, 23]
assert np.allclose(
    jax.jit(jax.jacobian(jb.layers.hard_lookup))(keys[2], keys, values), values.T
)

# %% [markdown]
# The keys may be any orthonormal vectors. If the keys are not orthogonal, the values interfere. If a query is scaled by
# two, the answer is scaled by two. Neither is desired of a table.
#
# ## 2. Softmax weights
#
# Replace the products by weights that are positive and sum to 1:
#
# $$ \mathrm{softmax}(z)_i = \frac{e^{z_i}}{\sum_j e^{z_j}}, \qquad \mathrm{soft\,lookup}(q) = \sum_i
# \mathrm{softmax}\big(\langle q, e_1 \rangle, \dots, \langle q, e_5 \rangle\big)_i\, v_i . $$
#
# The answer is a weighted mean of the values. The figure shows the products (top) and the weights (bottom) for the
# queries $e_3$, $e_3 + 2 e_5$ and $10\, e_3$:

# %%
queries = {
    "$e_3$": keys[2],
    "$e_3 + 2 e_5$": keys[2] + 2 * keys[4],
    "$10\\, e_3$": 10 * keys[2],
}
figure, axes = plt.subplots(2, 3, figsize=(10, 4), layout="constrained")
for (above, below), (name, q) in zip(axes.T, queries.items(), strict=True):
    plotting.bars(keys @ q, range(1, 6), above).set(title=name, ylabel="product")
    plotting.bars(jb.softmax(keys @ q), range(1, 6), below).set(
        xlabel="key", ylabel="weight"
    )
assert np.allclose(
    jb.softmax(keys[2]), [0.1488476] * 2 + [0.4046097] + [0.1488476] * 2, atol=1e-6
)
mixed = jb.softmax(keys[2] + 2 * keys[4])
assert np.allclose(
    mixed, [0.0762931, 0.0762931, 0.2073863, 0.0762931, 0.5637343], atol=1e-6
)
assert np.isclose(jb.softmax(10 * keys[2])[2], 0.9998184, atol=1e-6)
assert np.allclose(
    jb.layers.soft_lookup(10 * keys[2], keys, values), values[2], atol=3e-3
)

# %% [markdown]
# The larger the query, the closer the softmax is to the exact lookup. With $\lambda$ for its norm,
# $\mathrm{softmax}(\lambda z)$ is uniform at $\lambda = 0$ and tends to the unit vector of the largest entry; all other
# weights are at most $e^{-\lambda\, \mathrm{gap}}$. Several largest entries have equal weights.

# %%
z = jnp.array([1.0, 2.0, 3.0, 2.5])
sizes = np.linspace(0, 20, 100)
weights = jb.softmax(jnp.asarray(sizes)[:, None] * z)
assert np.allclose(weights[0], 0.25)
assert (weights[:, 3] <= np.exp(-0.5 * sizes) + 1e-6).all() and weights[-1, 2] > 0.9999
assert np.allclose(
    jb.softmax(100 * jnp.array([1.0, 3.0, 3.0])), jnp.array([0, 0.5, 0.5])
)
figure, axes = plt.subplots(figsize=(5, 2.8), layout="constrained")
axes = plotting.curves(
    sizes, {f"entry {float(entry)}": weights[:, i] for i, entry in enumerate(z)}, axes
)
axes.set(xlabel="norm of the query", ylabel="weight")
assert np.allclose(
    jb.softmax(jnp.array([1.0, 2.0, 3.0])), [0.0900306, 0.2447285, 0.6652410], atol=1e-6
)

# %% [markdown]
# > **The lecture notes print** that entries of the softmax lie in $(0, 1]$, and a sum over $c$ in which $c$ is both the
# > running index and the length.
#
# **Counterexample:** no $z$ with two entries has a softmax of exactly 1, since the other entry is positive.
# **Correction:** 1 occurs only for a single entry; with two or more entries the interval is $(0, 1)$. In floating
# point, however, $100\, e_3$ rounds to exactly 1. In the sum, write $\sum_{c'=1}^{C}$.
#
# The softmax is *not* applied elementwise: each output depends on all inputs. Its Jacobian is
# $\mathrm{diag}(p) - p p^\top$.

# %%
assert jb.softmax(jnp.array([7.0])) == 1
assert jb.softmax(jnp.array([0.0, 5.0])).max() < 1
assert jb.softmax(100 * keys[2]).max() == 1  # rounding
jacobian = jax.jit(jax.jacobian(jb.softmax))(jnp.array([1.0, 2.0, 3.0]))
assert np.allclose(jacobian[0], [0.0819251, -0.0220330, -0.0598920], atol=1e-6)
# invariant to a constant added to all inputs
assert jnp.linalg.matrix_rank(jacobian, rtol=1e-5) == 2

# %% [markdown]
# ## 3. Learned projections
#
# Queries, keys and values may come from different spaces. So each is multiplied by a learned matrix: $Q W^Q$, $K W^K$,
# $V W^V$, with one query, key or value in each row. For $n_q$ queries at once, with the softmax along each row:
#
# $$ \mathrm{Attention}(Q, K, V) = \mathrm{softmax}\big((Q W^Q)(K W^K)^\top\big)\, V W^V \in \mathbb R^{n_q \times v} $$
#
# > **The lecture notes print** $\mathrm{softmax}\big((Q W^Q)^\top (K W^K)\big)\, V W^V$, with a note in the margin:
# > double check that dimensions are correct.
#
# **Counterexample:** in the notes' own example of 1 query and 3 keys, the product is not defined. Where all sizes are
# equal it is defined, but it compares *features* instead of *positions*. A permutation of two queries must permute the
# two answers; the printed form does not satisfy this:


# %%
def as_printed(Q, K, V, WQ, WK, WV):
    return jb.softmax((Q @ WQ).T @ (K @ WK)) @ (V @ WV)


def corrected(Q, K, V, WQ, WK, WV):
    return jb.softmax((Q @ WQ) @ (K @ WK).T) @ (V @ WV)


Q, K, V, WQ, WK, WV = jax.random.normal(jax.random.key(0), (6, 3, 3))
swap = jnp.array([1, 0, 2])
defects = [
    abs(f(Q[swap], K, V, WQ, WK, WV) - f(Q, K, V, WQ, WK, WV)[swap]).max()
    for f in (as_printed, corrected)
]
assert defects[0] > 0.1 and defects[1] < 1e-6
try:
    as_printed(Q[:1], K, V, WQ, WK, WV)
except TypeError as error:
    print(error)

# %% [markdown]
# > **Another lecture prints** $\mathrm{softmax}\big((X_q a\, a^\top X_k^\top)_r\big)$ for a sequence
# > $a \in \mathbb R^{T \times n}$.
#
# Here $X_q$ multiplies the *time* axis, and a sequence of another length does not fit. **Correction:**
# $\mathrm{softmax}\big((a X_q X_k^\top a^\top)_r\big)\, a X_v$ with $X_q, X_k \in \mathbb R^{n \times k}$. If queries,
# keys and values come from one input, the layer is called **self-attention**; it is the formula above with
# $Q = K = V = a$.

# %%
a = jax.random.normal(jax.random.key(1), (7, 3))  # T = 7, n = 3
by_hand = jb.softmax(a @ WQ @ WK.T @ a.T) @ a @ WV
assert np.allclose(by_hand, corrected(a, a, a, WQ, WK, WV), atol=1e-5)
assert np.allclose(by_hand, jb.layers.soft_lookup(a @ WQ, a @ WK, a @ WV), atol=1e-5)
layer = jb.Attention(
    1, use_bias=False, attention_fn=functools.partial(jb.attention, scale=None)
)
named = {
    "query": {"kernel": WQ},
    "key": {"kernel": WK},
    "value": {"kernel": WV},
    "out": {"kernel": jnp.eye(3)},
}
assert np.allclose(by_hand, layer.apply(named, a), atol=1e-5)

# %% [markdown]
# Can the projections be learned? Take tables with 6 random keys, and a query that equals one of the keys, rotated by an
# unknown matrix $R$. Gradient descent on $W^Q$, from zero, where all weights are equal, learns the inverse rotation.

# %%
key_key, value_key, which_key, rotation_key = jax.random.split(jax.random.key(2), 4)
table_keys = jax.random.normal(key_key, (200, 6, 8))
table_values = jax.random.normal(value_key, (200, 6, 2))
which = jax.random.randint(which_key, (200,), 0, 6)
R = jnp.linalg.qr(jax.random.normal(rotation_key, (8, 8)))[0]
asked = table_keys[jnp.arange(200), which] @ R
wanted = table_values[jnp.arange(200), which]
error = lambda W: jnp.mean(
    (jb.layers.soft_lookup(asked @ W, table_keys, table_values) - wanted) ** 2
)
learned = descend(error, jnp.zeros((8, 8)), optax.adam(0.05), steps=150)
found = jnp.einsum("nd,nkd->nk", asked @ learned.last, table_keys).argmax(-1)
assert learned.values[-1] < 0.05 * learned.values[0]
assert (found == which).mean() > 0.95
figure, axes = plt.subplots(1, 2, figsize=(7, 3), layout="constrained")
plotting.matrix(learned.last, axes[0], numbers="").set(
    title="learned $W^Q$", ylabel="feature of the query"
)
axes[1] = plotting.matrix(R.T, axes[1], numbers="")
axes[1].set(title="inverse rotation $R^T$")
for ax in axes:
    ax.set_xlabel("feature of the key")
cosine = (
    jnp.vdot(learned.last, R.T) / jnp.linalg.norm(learned.last) / jnp.linalg.norm(R)
)
assert cosine > 0.7

# %% [markdown]
# ### The scale
#
# The formulas above have no factor before the softmax. The paper that they cite (Vaswani et al. 2017) divides the
# scores by $\sqrt{k}$, the square root of the number of features. The reason: for independent standard normal entries
# $\langle q, k \rangle$ has variance $k$. With 256 features scores of $\pm 16$ are usual, and the softmax is nearly
# one-hot at initialization: its entropy over 50 keys is 0.2 (the maximum is $\log 50 = 3.9$), and its gradient is
# small.

# %%
for d in (16, 256):
    q, k = jax.random.normal(jax.random.key(d), (2, 400, 1, d))
    scores = jnp.einsum("qhd,khd->qk", q, k)
    assert abs(jnp.var(scores) / d - 1) < 0.15
entropy = lambda q, k, scale: jnp.mean(
    jb.entropy(jb.attention_weights(q, k, scale=scale)[0])
)
unscaled, scaled = jax.jit(
    lambda q, k: [entropy(q, k, scale) for scale in (None, "inverse_sqrt")]
)(q, k[:50])
print(
    f"mean entropy of the weights: {unscaled:.2f} without scale, {scaled:.2f} with; "
    f"maximum {np.log(50):.2f}"
)
assert unscaled < 0.4 and 3.3 < scaled < np.log(50)

# %% [markdown]
# `jb.attention` scales by default; `scale=None` is the form of the lectures, which `jb.layers.soft_lookup` uses.
#
# ## 4. Multi-head attention
#
# One softmax computes one set of weights. Multi-head attention computes $h$ of them in parallel, each with its own
# matrices, and concatenates the outputs.
#
# > **The lecture notes print** $A_\text{projection} \cdot (\text{heads stacked vertically}) + b$.
#
# **Counterexample:** stacking $h$ outputs of shape $n \times v$ gives $hn$ rows, and a matrix from the left mixes
# *positions*. A permutation of two positions does not permute the outputs. And $A$ does not fit a sequence of another
# length. **Correction:** $[H_1, \dots, H_h]\, W^O + b$, concatenated along the *features*: for each position an affine
# map of its $h$ outputs.

# %%
n, h = 4, 2
x = jax.random.normal(jax.random.key(3), (n, 6))
net = jb.Attention(h)
params = net.init(jax.random.key(4), x)


@jax.jit
def heads(x):
    q, k, v = (
        jb.affine(x, **params[name]).reshape(n, h, 3)
        for name in ("query", "key", "value")
    )
    return jb.attention(q, k, v)  # (position, head, features)


apply = jax.jit(net.apply)
side_by_side = jb.affine(heads(x).reshape(n, h * 3), **params["out"])
assert np.allclose(side_by_side, apply(params, x), atol=1e-5)

left = jax.random.normal(jax.random.key(5), (n, h * n))
stacked = lambda x: left @ jnp.moveaxis(heads(x), 1, 0).reshape(h * n, 3)
turn = jnp.array([1, 0, 2, 3])
assert abs(stacked(x[turn]) - stacked(x)[turn]).max() > 0.1  # as printed
assert np.allclose(apply(params, x[turn]), apply(params, x)[turn], atol=1e-5)

# %% [markdown]
# ## 5. Positional encodings and masking
#
# The last assertion shows that self-attention is permutation equivariant, like the graph layers of notebook 5. It does
# not distinguish "dog bites man" from "man bites dog". So **positions** must be part of the input. The standard way is
# to add sinusoidal positional encodings to the features. Then a permutation changes more than the order of the outputs.

# %%
waves = np.asarray(jb.sinusoidal_positions(40, 16))
placed = jb.Serial(jb.SinusoidalPositions(), net)
apply = jax.jit(placed.apply)
out = apply(((), params), x)
assert abs(apply(((), params), x[turn]) - out[turn]).max() > 0.05
figure, axes = plt.subplots(1, 2, figsize=(9, 2.8), layout="constrained")
plotting.matrix(waves.T, axes[0], numbers="").set(xlabel="position", ylabel="feature")
axes[1] = plotting.matrix(waves @ waves.T, axes[1], numbers="")
axes[1].set(title="inner products of encodings", xlabel="position", ylabel="position")

# %% [markdown]
# The right figure shows the inner products of the encodings. They are constant along diagonals: they depend only on the
# *distance* of two positions. This makes relative positions such as "three words back" easy to learn.
#
# An autoregressive model must not attend to later positions. A **causal** mask sets the weights of all later positions
# to exactly 0:

# %%
gram = waves @ waves.T
assert all(np.ptp(np.diagonal(gram, offset)) < 1e-4 for offset in range(40))
words = jax.random.normal(jax.random.key(6), (8, 1, 4))  # (position, head, features)
causal_weights = np.asarray(
    jax.jit(lambda x: jb.attention_weights(x, x, causal=True)[0])(words)
)
figure, axes = plt.subplots(figsize=(3.6, 3), layout="constrained")
axes = plotting.matrix(causal_weights, axes)
axes.set(xlabel="position of the key", ylabel="position of the query")
assert (np.triu(causal_weights, 1) == 0).all() and np.allclose(causal_weights.sum(1), 1)

# %% [markdown]
# ## 6. Computational cost
#
# Attention compares every position with every position: $n^2$ products of $k$ features for the scores and $n^2$ of $v$
# for the outputs. Twice the length costs four times as much. `jb.count_flops` counts multiplications without running
# the function.


# %%
def multiplications(f, length):
    operand = jax.ShapeDtypeStruct((length, 1, 64), jnp.float32)
    return jb.count_flops(f, operand, operand, operand).multiplications


quadratic = lambda q, k, v: jb.attention(q, k, v, scale=None, implementation="einsum")
assert (
    abs(multiplications(quadratic, 2048) / multiplications(quadratic, 1024) - 4) < 0.05
)
assert abs(multiplications(quadratic, 1024) / (1024**2 * (64 + 64)) - 1) < 0.05

# %% [markdown]
# ## Homework
#
# **1.** Example 2.4 of the lecture notes ends with "TODO". Complete it: $Q$ is $1 \times 2$, $K$ is $3 \times 2$, $V$
# is $3 \times 4$, and all learned matrices are identities. Take $Q = (1, 0)$, $K$ with rows $(1, 0), (0, 1), (1, 1)$
# and $V$ with rows $(1, 2, 3, 4), (5, 6, 7, 8), (9, 10, 11, 12)$.
#
# **2.** For the quadratic cost "there are solutions in ??". Find one.
#
# **3.** When does the *order of the keys* matter? And why does a causal mask break the permutation equivariance of
# section 5?
#
# ## Solutions
#
# ### 1. Example 2.4
#
# The scores are $Q K^\top = (1, 0, 1)$. So the first and the third value have weights of $e / (2e + 1) = 0.4223$ each
# and the second has $1 / (2e + 1) = 0.1554$. By symmetry the mean is the middle row, $(5, 6, 7, 8)$. With the scale
# $1/\sqrt 2$ the weights are closer to each other, and the answer is the same.

# %%
Q = jnp.array([[1.0, 0.0]])
K = jnp.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
V = jnp.arange(1.0, 13.0).reshape(3, 4)
assert np.allclose(jb.softmax(Q @ K.T), [[0.4223188, 0.1553624, 0.4223188]], atol=1e-6)
assert np.allclose(
    jb.softmax(Q @ K.T / np.sqrt(2)), [[0.4011121, 0.1977758, 0.4011121]], atol=1e-6
)
assert np.allclose(
    jb.layers.soft_lookup(Q, K, V), jnp.array([[5.0, 6.0, 7.0, 8.0]]), atol=1e-5
)

# %% [markdown]
# ### 2. Linear attention
#
# Because of the softmax, the weight matrix must be computed before it can be normalized. Replace
# $e^{\langle q, k \rangle}$ by another positive similarity, $\langle \varphi(q), \varphi(k) \rangle$ with
# $\varphi(x) = \mathrm{elu}(x) + 1$. Then the product can be reassociated,
#
# $$ \frac{\big(\varphi(Q)\, \varphi(K)^\top\big) V}{\big(\varphi(Q)\, \varphi(K)^\top\big) 1}
# = \frac{\varphi(Q)\, \big(\varphi(K)^\top V\big)}{\varphi(Q)\, \big(\varphi(K)^\top 1\big)} , $$
#
# and the right side contains no matrix of size $n \times n$. It is a different function from softmax attention, not an
# approximation of it; but twice the length costs twice as much. With 64 features it saves a factor of about $n / 64$.

# %%
q, k, v = jax.random.normal(jax.random.key(7), (3, 50, 1, 8))
phi = lambda x: np.asarray(jb.elu(x))[:, 0] + 1
explicit = phi(q) @ phi(k).T
explicit = explicit / explicit.sum(1, keepdims=True) @ np.asarray(v)[:, 0]
assert np.allclose(jax.jit(jb.linear_attention)(q, k, v)[:, 0], explicit, atol=1e-5)
assert (
    abs(
        multiplications(jb.linear_attention, 2048)
        / multiplications(jb.linear_attention, 1024)
        - 2
    )
    < 0.05
)
lengths = (64, 256, 1024, 4096, 16384)
ratios = [
    multiplications(quadratic, t) / multiplications(jb.linear_attention, t)
    for t in lengths
]
assert np.allclose(ratios, np.array(lengths) / 64, rtol=0.1)
figure, axes = plt.subplots(figsize=(5, 2.8), layout="constrained")
forms = {"softmax": quadratic, "linear": jb.linear_attention}
axes = plotting.curves(
    lengths,
    {name: [multiplications(f, t) for t in lengths] for name, f in forms.items()},
    axes,
)
axes = axes.set(xlabel="length", ylabel="multiplications", xscale="log", yscale="log")

# %% [markdown]
# ### 3. The order of keys
#
# Keys and values form a set of pairs. If both are permuted *in the same way*, the answer does not change, since a sum
# does not depend on the order; if only one of them is permuted, it does. A causal mask depends on the positions of the
# queries: query 3 attends to positions 0 to 3, and their content depends on the order. So a causal model has some
# information about positions even without positional encodings.

# %%
shuffle = jnp.array([2, 0, 1])
assert np.allclose(
    jb.layers.soft_lookup(Q, K[shuffle], V[shuffle]),
    jb.layers.soft_lookup(Q, K, V),
    atol=1e-5,
)
assert not np.allclose(
    jb.layers.soft_lookup(Q, K[shuffle], V), jb.layers.soft_lookup(Q, K, V), atol=0.1
)
causal = jax.jit(lambda x: jb.attention(x, x, x, causal=True))
reorder = jnp.array([3, 1, 0, 2, 4, 5, 6, 7])
assert abs(causal(words[reorder]) - causal(words)[reorder]).max() > 0.1
