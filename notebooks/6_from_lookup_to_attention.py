# %% [markdown]
# # From lookup to attention
#
# A Python dictionary takes a key and returns a value. Nothing can be learned from it: a key that is slightly wrong
# finds nothing, and there is no derivative. **How can a lookup table be made into a differentiable function?** The
# lecture notes ask this, and the answer, in four steps, is the attention of today's language models:
#
# 1. write the table as a sum; 2. soften it; 3. learn what is looked up; 4. do it several times side by side.
#
# What is claimed in the text is checked by an `assert` in the cell below it. At the end there is homework, with
# solutions. The lectures behind it: Diehl, *lecture notes* (2023), section 2; Cevher, *Mathematics of Data*. Where a
# printed formula slips, you find the printed form, a number that breaks it, and the corrected form.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import jaxblocks as jb
from jaxblocks import plotting
from jaxblocks.theory.convergence import descend

# %% [markdown]
# ## 1. A table is a sum
#
# Let the keys be unit vectors $e_1, \dots, e_5$, and $v_i$ the value of $e_i$. A query $q$ is compared with every key
# by the inner product, and
#
# $$ \mathrm{lookup}(q) = \sum_{i} \langle q, e_i \rangle\, v_i $$
#
# returns $v_3$ for $q = e_3$, since all other products are 0. It is linear in each argument: $e_3 + 2 e_5$ finds
# $v_3 + 2 v_5$. And it is differentiable: the derivative in the direction of $e_i$ is $v_i$. (The notes print
# "differential function" here; *differentiable* is meant.)

# %%
keys, values = jnp.eye(5), jnp.arange(10.0).reshape(5, 2)
assert jb.layers.hard_lookup(keys[2], keys, values).tolist() == values[2].tolist() == [4, 5]
assert jb.layers.hard_lookup(keys[2] + 2 * keys[4], keys, values).tolist() == [20, 23]
assert jnp.allclose(jax.jacobian(jb.layers.hard_lookup)(keys[2], keys, values), values.T)

# %% [markdown]
# The keys need not be the unit vectors: any that are orthogonal and of length 1 will do. Keys that are not interfere
# with each other. One that is asked for at double strength returns its value twice. A table should not do either.
#
# ## 2. Soften it
#
# Instead of the products themselves take weights that are positive and sum to 1:
#
# $$ \mathrm{softmax}(z)_i = \frac{e^{z_i}}{\sum_j e^{z_j}}, \qquad \mathrm{soft\,lookup}(q) = \sum_i
# \mathrm{softmax}\big(\langle q, e_1 \rangle, \dots, \langle q, e_5 \rangle\big)_i\, v_i . $$
#
# The answer is a weighted mean of the values. Products above, weights below, for $e_3$, for $e_3 + 2 e_5$ and for
# $10\, e_3$:

# %%
queries = {"$e_3$": keys[2], "$e_3 + 2 e_5$": keys[2] + 2 * keys[4], "$10\\, e_3$": 10 * keys[2]}
figure, axes = plt.subplots(2, 3, figsize=(10, 4), layout="constrained")
for (above, below), (name, q) in zip(axes.T, queries.items(), strict=True):
    plotting.bars(keys @ q, range(1, 6), above).set_title(name)
    plotting.bars(jb.softmax(keys @ q), range(1, 6), below)
assert np.allclose(jb.softmax(keys[2]), [0.1488476] * 2 + [0.4046097] + [0.1488476] * 2, atol=1e-6)
mixed = jb.softmax(keys[2] + 2 * keys[4])
assert np.allclose(mixed, [0.0762931, 0.0762931, 0.2073863, 0.0762931, 0.5637343], atol=1e-6)
assert np.isclose(jb.softmax(10 * keys[2])[2], 0.9998184, atol=1e-6)
assert jnp.allclose(jb.layers.soft_lookup(10 * keys[2], keys, values), values[2], atol=3e-3)

# %% [markdown]
# The larger the query, the harder the lookup. With $\lambda$ for its size, $\mathrm{softmax}(\lambda z)$ goes from
# uniform at $\lambda = 0$ to the unit vector of the largest entry; all others are at most $e^{-\lambda\,
# \mathrm{gap}}$. If several are largest, they share.

# %%
z = jnp.array([1.0, 2.0, 3.0, 2.5])
sizes = np.linspace(0, 20, 100)
weights = jb.softmax(jnp.asarray(sizes)[:, None] * z)
assert jnp.allclose(weights[0], 0.25)
assert (weights[:, 3] <= np.exp(-0.5 * sizes) + 1e-6).all() and weights[-1, 2] > 0.9999
assert jnp.allclose(jb.softmax(100 * jnp.array([1.0, 3.0, 3.0])), jnp.array([0, 0.5, 0.5]))
figure, axes = plt.subplots(figsize=(5, 2.8), layout="constrained")
axes = plotting.curves(sizes, {f"entry {float(entry)}": weights[:, i] for i, entry in enumerate(z)}, axes)
axes.set_xlabel("size of the query")
assert np.allclose(jb.softmax(jnp.array([1.0, 2.0, 3.0])), [0.0900306, 0.2447285, 0.6652410], atol=1e-6)

# %% [markdown]
# > **The lecture notes print** that entries of the softmax lie in $(0, 1]$, and a sum over $c$ in which $c$ is the
# > running index and the length at once.
#
# **A number that breaks it:** which $z$ with two entries has a softmax of exactly 1? None, since the other one is
# positive. **Corrected:** 1 occurs only for a single entry; with two or more it is the open interval $(0, 1)$. Floating
# point rounds, though: $100\, e_3$ gives exactly 1. In the sum, write $\sum_{c'=1}^{C}$.
#
# Mind also that the softmax is *not* applied entry by entry: each output depends on all inputs. Its Jacobian is
# $\mathrm{diag}(p) - p p^\top$.

# %%
assert jb.softmax(jnp.array([7.0])) == 1
assert jb.softmax(jnp.array([0.0, 5.0])).max() < 1
assert jb.softmax(100 * keys[2]).max() == 1  # rounding
jacobian = jax.jacobian(jb.softmax)(jnp.array([1.0, 2.0, 3.0]))
assert np.allclose(jacobian[0], [0.0819251, -0.0220330, -0.0598920], atol=1e-6)
assert jnp.linalg.matrix_rank(jacobian, rtol=1e-5) == 2  # shifting all inputs alike changes nothing

# %% [markdown]
# ## 3. Learn what is looked up
#
# Queries, keys and values need not fit together by nature. So each is sent through a matrix that is learned: $Q W^Q$,
# $K W^K$, $V W^V$, one query, key or value in each row. For $n_q$ queries at once, with the softmax along each row:
#
# $$ \mathrm{Attention}(Q, K, V) = \mathrm{softmax}\big((Q W^Q)(K W^K)^\top\big)\, V W^V \in \mathbb R^{n_q \times v} $$
#
# > **The lecture notes print** $\mathrm{softmax}\big((Q W^Q)^\top (K W^K)\big)\, V W^V$, with a note in the margin:
# > double check that dimensions are correct.
#
# **A number that breaks it.** With the notes' own example of 1 query and 3 keys, the product does not exist. Worse,
# where all sizes are equal it does exist, and compares *features* where *positions* were meant. Swap two queries, and
# the two answers should be swapped:


# %%
def as_printed(Q, K, V, WQ, WK, WV):
    return jb.softmax((Q @ WQ).T @ (K @ WK)) @ (V @ WV)


def corrected(Q, K, V, WQ, WK, WV):
    return jb.softmax((Q @ WQ) @ (K @ WK).T) @ (V @ WV)


Q, K, V, WQ, WK, WV = jax.random.normal(jax.random.key(0), (6, 3, 3))
swap = jnp.array([1, 0, 2])
defects = [abs(f(Q[swap], K, V, WQ, WK, WV) - f(Q, K, V, WQ, WK, WV)[swap]).max() for f in (as_printed, corrected)]
assert defects[0] > 0.1 and defects[1] < 1e-6
try:
    as_printed(Q[:1], K, V, WQ, WK, WV)
except TypeError as error:
    print(error)

# %% [markdown]
# > **Another lecture prints** $\mathrm{softmax}\big((X_q a\, a^\top X_k^\top)_r\big)$ for a sequence
# > $a \in \mathbb R^{T \times n}$.
#
# There $X_q$ would multiply the *time* axis, and a sequence of another length would not fit. **Corrected:**
# $\mathrm{softmax}\big((a X_q X_k^\top a^\top)_r\big)\, a X_v$ with $X_q, X_k \in \mathbb R^{n \times k}$. With one
# input in all three places it is called **self-attention**, and is the formula above with $Q = K = V = a$.

# %%
a = jax.random.normal(jax.random.key(1), (7, 3))  # T = 7, n = 3
by_hand = jb.softmax(a @ WQ @ WK.T @ a.T) @ a @ WV
assert jnp.allclose(by_hand, corrected(a, a, a, WQ, WK, WV), atol=1e-5)
assert jnp.allclose(by_hand, jb.layers.soft_lookup(a @ WQ, a @ WK, a @ WV), atol=1e-5)
layer = jb.Attention(1, head_dim=3, scale=None, use_bias=False, use_out=False)
named = {"query": {"kernel": WQ}, "key": {"kernel": WK}, "value": {"kernel": WV}}
assert jnp.allclose(by_hand, layer.apply(named, a), atol=1e-5)

# %% [markdown]
# Can it be learned? A table with 6 random keys, and a query that belongs to one of them but comes in another language:
# rotated by an unknown matrix $R$. Gradient descent on $W^Q$, from zero, where all weights are equal, learns to
# translate.

# %%
key_key, value_key, which_key, rotation_key = jax.random.split(jax.random.key(2), 4)
table_keys = jax.random.normal(key_key, (200, 6, 8))
table_values = jax.random.normal(value_key, (200, 6, 2))
which = jax.random.randint(which_key, (200,), 0, 6)
R = jnp.linalg.qr(jax.random.normal(rotation_key, (8, 8)))[0]
asked = table_keys[jnp.arange(200), which] @ R
wanted = table_values[jnp.arange(200), which]
error = lambda W: jnp.mean((jb.layers.soft_lookup(asked @ W, table_keys, table_values) - wanted) ** 2)
learned = descend(error, jnp.zeros((8, 8)), optax.adam(0.05), steps=150)
found = jnp.einsum("nd,nkd->nk", asked @ learned.last, table_keys).argmax(-1)
assert learned.values[-1] < 0.05 * learned.values[0]
assert (found == which).mean() > 0.95
figure, axes = plt.subplots(1, 2, figsize=(7, 3), layout="constrained")
plotting.matrix(learned.last, axes[0], numbers="").set_title("learned $W^Q$")
axes[1] = plotting.matrix(R.T, axes[1], numbers="")
axes[1].set_title("the rotation back")
cosine = jnp.vdot(learned.last, R.T) / jnp.linalg.norm(learned.last) / jnp.linalg.norm(R)
assert cosine > 0.7

# %% [markdown]
# ### The scale
#
# The formulas above have no factor before the softmax. The paper that they cite (Vaswani et al. 2017) divides the
# scores by $\sqrt{k}$, the root of the number of features. Here is why: for independent standard normal entries
# $\langle q, k \rangle$ has variance $k$. With 256 features scores of $\pm 16$ are usual, and the softmax is nearly
# hard from the start: its entropy over 50 keys is 0.2 of at most $\log 50 = 3.9$, and its gradient is small.

# %%
for d in (16, 256):
    q, k = jax.random.normal(jax.random.key(d), (2, 400, 1, d))
    scores = jnp.einsum("qhd,khd->qk", q, k)
    assert abs(jnp.var(scores) / d - 1) < 0.15
unscaled, scaled = (
    jnp.mean(jb.entropy(jb.attention_weights(q, k[:50], scale=scale)[0])) for scale in (None, "inverse_sqrt")
)
print(f"mean entropy of the weights: {unscaled:.2f} without, {scaled:.2f} with the scale; at most {np.log(50):.2f}")
assert unscaled < 0.4 and 3.3 < scaled < np.log(50)

# %% [markdown]
# `jb.attention` scales by default; `scale=None` is the lectures' form, which `jb.layers.soft_lookup` has.
#
# ## 4. Several heads
#
# One softmax looks at one thing at a time. So let $h$ of them, called heads, look side by side, each with its own
# matrices, and put their answers together.
#
# > **The lecture notes print** $A_\text{projection} \cdot (\text{heads stacked vertically}) + b$.
#
# **A number that breaks it.** Stacking $h$ answers of shape $n \times v$ makes $hn$ rows, and a matrix from the left
# mixes *positions*. Swap two positions, and the answers are not swapped. Nor would $A$ fit a sequence of another
# length. **Corrected:** $[H_1, \dots, H_h]\, W^O + b$, side by side along the *features*; for each position an affine
# map of its $h$ answers.

# %%
n, h = 4, 2
x = jax.random.normal(jax.random.key(3), (n, 6))
net = jb.Attention(h)
params = net.init(jax.random.key(4), x)


def heads(x):
    q, k, v = (jb.affine(x, **params[name]).reshape(n, h, 3) for name in ("query", "key", "value"))
    return jb.attention(q, k, v)  # (position, head, features)


side_by_side = jb.affine(heads(x).reshape(n, h * 3), **params["out"])
assert jnp.allclose(side_by_side, net.apply(params, x), atol=1e-5)

left = jax.random.normal(jax.random.key(5), (n, h * n))
stacked = lambda x: left @ jnp.moveaxis(heads(x), 1, 0).reshape(h * n, 3)
turn = jnp.array([1, 0, 2, 3])
assert abs(stacked(x[turn]) - stacked(x)[turn]).max() > 0.1  # as printed
assert jnp.allclose(net.apply(params, x[turn]), net.apply(params, x)[turn], atol=1e-5)

# %% [markdown]
# ## 5. A set, until told otherwise
#
# The last line says it: self-attention renumbers its answers as its inputs are renumbered, like the graph layers of
# notebook 5. "Dog bites man" and "man bites dog" are one to it. So **positions** must be put in. The classic way is to
# add waves of many lengths to the features. Then the same swap changes more than the order.

# %%
waves = jb.sinusoidal_positions(40, 16)
placed = jb.Serial(jb.SinusoidalPositions(), net)
out = placed.apply(((), params), x)
assert abs(placed.apply(((), params), x[turn]) - out[turn]).max() > 0.05
figure, axes = plt.subplots(1, 2, figsize=(9, 2.8), layout="constrained")
plotting.matrix(waves.T, axes[0], numbers="").set(xlabel="position", ylabel="feature")
axes[1] = plotting.matrix(waves @ waves.T, axes[1], numbers="")
axes[1].set(title="products of positions")

# %% [markdown]
# On the right, the inner products of positions are constant along diagonals: they depend on the *distance* of two
# positions only. That is what makes "three words back" easy to learn.
#
# A model that writes must not see what it has not written. A **causal** mask sets the weights of all later positions to
# exactly 0:

# %%
gram = np.asarray(waves @ waves.T)
assert all(np.ptp(np.diagonal(gram, offset)) < 1e-4 for offset in range(40))
words = jax.random.normal(jax.random.key(6), (8, 1, 4))  # (position, head, features)
causal_weights = jb.attention_weights(words, words, causal=True)[0]
figure, axes = plt.subplots(figsize=(3.6, 3), layout="constrained")
axes = plotting.matrix(causal_weights, axes)
assert (jnp.triu(causal_weights, 1) == 0).all() and jnp.allclose(causal_weights.sum(1), 1)

# %% [markdown]
# ## 6. What it costs
#
# Every position looks at every position: $n^2$ products of $k$ features for the scores and $n^2$ of $v$ for the
# answers. Twice the length costs four times as much. `jb.count_flops` counts multiplications without running anything.


# %%
def multiplications(f, length):
    operand = jax.ShapeDtypeStruct((length, 1, 64), jnp.float32)
    return jb.count_flops(f, operand, operand, operand).multiplications


quadratic = lambda q, k, v: jb.attention(q, k, v, scale=None, implementation="einsum")
assert abs(multiplications(quadratic, 2048) / multiplications(quadratic, 1024) - 4) < 0.05
assert abs(multiplications(quadratic, 1024) / (1024**2 * (64 + 64)) - 1) < 0.05

# %% [markdown]
# ## Homework
#
# **1.** The lecture notes' example 2.4 ends with "TODO". Finish it: $Q$ is $1 \times 2$, $K$ is $3 \times 2$, $V$ is
# $3 \times 4$, and all learned matrices are identities. Take
# $Q = (1, 0)$, $K$ with rows $(1, 0), (0, 1), (1, 1)$ and $V$ with rows $(1, 2, 3, 4), (5, 6, 7, 8), (9, 10, 11, 12)$.
#
# **2.** For the quadratic cost "there are solutions in ??". Find one.
#
# **3.** When does the *order of the keys* matter? And why does a causal mask already break the symmetry of section 5?
#
# ## Solutions
#
# ### 1. Example 2.4
#
# The scores are $Q K^\top = (1, 0, 1)$. So the first and the third value get a weight of $e / (2e + 1) = 0.4223$ each
# and the second one $1 / (2e + 1) = 0.1554$. By symmetry the mean is the middle row, $(5, 6, 7, 8)$. With the scale
# $1/\sqrt 2$ the weights are a little closer to each other, and the answer is the same.

# %%
Q = jnp.array([[1.0, 0.0]])
K = jnp.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
V = jnp.arange(1.0, 13.0).reshape(3, 4)
assert np.allclose(jb.softmax(Q @ K.T), [[0.4223188, 0.1553624, 0.4223188]], atol=1e-6)
assert np.allclose(jb.softmax(Q @ K.T / np.sqrt(2)), [[0.4011121, 0.1977758, 0.4011121]], atol=1e-6)
assert jnp.allclose(jb.layers.soft_lookup(Q, K, V), jnp.array([[5.0, 6.0, 7.0, 8.0]]), atol=1e-5)

# %% [markdown]
# ### 2. Linear attention
#
# The trouble is the softmax: the weight matrix must exist before it can be normalized. Replace $e^{\langle q, k
# \rangle}$ by another positive similarity, $\langle \varphi(q), \varphi(k) \rangle$ with $\varphi(x) = \mathrm{elu}(x)
# + 1$. Then brackets can be moved,
#
# $$ \frac{\big(\varphi(Q)\, \varphi(K)^\top\big) V}{\big(\varphi(Q)\, \varphi(K)^\top\big) 1}
# = \frac{\varphi(Q)\, \big(\varphi(K)^\top V\big)}{\varphi(Q)\, \big(\varphi(K)^\top 1\big)} , $$
#
# and on the right no matrix of size $n \times n$ occurs. It is another function than softmax attention, not an
# approximation of it; but twice the length costs twice as much. With 64 features it saves a factor of about $n / 64$.

# %%
q, k, v = jax.random.normal(jax.random.key(7), (3, 50, 1, 8))
phi = lambda x: jb.elu(x[:, 0]) + 1
explicit = phi(q) @ phi(k).T
explicit = explicit / explicit.sum(1, keepdims=True) @ v[:, 0]
assert jnp.allclose(jb.linear_attention(q, k, v)[:, 0], explicit, atol=1e-5)
assert abs(multiplications(jb.linear_attention, 2048) / multiplications(jb.linear_attention, 1024) - 2) < 0.05
lengths = (64, 256, 1024, 4096, 16384)
ratios = [multiplications(quadratic, t) / multiplications(jb.linear_attention, t) for t in lengths]
assert np.allclose(ratios, np.array(lengths) / 64, rtol=0.1)
figure, axes = plt.subplots(figsize=(5, 2.8), layout="constrained")
axes.loglog(lengths, [multiplications(quadratic, t) for t in lengths], "o-", label="softmax")
axes.loglog(lengths, [multiplications(jb.linear_attention, t) for t in lengths], "^--", label="linear")
axes.set(xlabel="length", ylabel="multiplications")
axes = axes.legend()

# %% [markdown]
# ### 3. Order
#
# Keys and values are a set of pairs. Reordered *together* they give the same answer, as the sum does not mind;
# reordered apart they give another. A causal mask ties them to the queries' places: position 3 sees three predecessors,
# and which they are depends on the order. So a causal model knows something about positions even without waves.

# %%
shuffle = jnp.array([2, 0, 1])
assert jnp.allclose(jb.layers.soft_lookup(Q, K[shuffle], V[shuffle]), jb.layers.soft_lookup(Q, K, V), atol=1e-5)
assert not jnp.allclose(jb.layers.soft_lookup(Q, K[shuffle], V), jb.layers.soft_lookup(Q, K, V), atol=0.1)
causal = lambda x: jb.attention(x, x, x, causal=True)
reorder = jnp.array([3, 1, 0, 2, 4, 5, 6, 7])
assert abs(causal(words[reorder]) - causal(words)[reorder]).max() > 0.1
