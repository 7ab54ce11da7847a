# %% [markdown]
# # From lookup tables to attention
#
# A Python dictionary maps a key to a value. It has no derivative, and a key that differs slightly from the stored one
# raises an error. **How does a lookup table become a differentiable function that can be learned?** The answer leads to
# the attention of current language models (Vaswani et al. 2017):
#
# 1. write the table as a sum;
# 2. replace the weights by a softmax, and scale its arguments;
# 3. learn projections of queries, keys and values, which section 3 trains;
# 4. use several heads in parallel;
# 5. add positions and masks, since a table has no order.
#
# Section 6 is about what this costs.

# %%
import functools

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import jaxblocks as jb
from jaxblocks import plotting

# %% [markdown]
# ## 1. A lookup table as a sum
#
# Let the keys be orthonormal vectors $e_1, \dots, e_5$, and let $v_i$ be the value of $e_i$. The inner product compares
# a query $q$ with every key, and
#
# $$ \mathrm{lookup}(q) = \sum_{i} \langle q, e_i \rangle\, v_i $$
#
# returns $v_3$ for $q = e_3$, since all other products are 0. It is linear in the query: for $e_3 + 2 e_5$ it returns
# $v_3 + 2 v_5$. So it is differentiable, and its derivative in the direction of $e_i$ is $v_i$.

# %%
keys, values = jnp.eye(5), jnp.arange(10.0).reshape(5, 2)
lookup = jb.layers.hard_lookup
assert lookup(keys[2], keys, values).tolist() == values[2].tolist() == [4, 5]
assert lookup(keys[2] + 2 * keys[4], keys, values).tolist() == [20, 23]
slopes = jax.jit(jax.jacobian(lookup))(keys[2], keys, values)
assert np.allclose(slopes, values.T)

# %% [markdown]
# Two properties are not those of a table. A query that is scaled by two gives an answer that is scaled by two. And if
# the keys are not orthogonal, the values interfere: in $d$ dimensions at most $d$ keys are orthogonal.
#
# **Exercise 1.** A table stores 50 random unit vectors in 20 dimensions. Complete the lookup of the *nearest* key, by
# the largest inner product.


# %% tags=["exercise"]
def nearest_value(query, table_keys, table_values):
    return table_values[0]  # complete this line


# %% tags=["solution"]
def nearest_value(query, table_keys, table_values):
    return table_values[(table_keys @ query).argmax()]


# %% tags=["check"]
stored = np.random.default_rng(0).normal(size=(50, 20))
stored /= np.linalg.norm(stored, axis=1, keepdims=True)
numbers = np.arange(50)
answers = [nearest_value(one, stored, numbers) for one in stored]
assert answers == numbers.tolist(), "which key has the largest product with the query?"

# %% [markdown]
# ## 2. Softmax weights
#
# The nearest key is what a table needs, but the position of a maximum has derivative 0 almost everywhere. Replace the
# products by weights that are positive and sum to 1:
#
# $$ \mathrm{softmax}(z)_i = \frac{e^{z_i}}{\sum_j e^{z_j}}, \qquad \mathrm{soft\,lookup}(q) = \sum_i
# \mathrm{softmax}\big(\langle q, k_1 \rangle, \dots, \langle q, k_n \rangle\big)_i\, v_i . $$
#
# The answer is a weighted mean of the values, for any keys. The figure shows the products (top) and the weights
# (bottom) for the queries $e_3$, $e_3 + 2 e_5$ and $10\, e_3$.

# %%
queries = {
    "$e_3$": keys[2],
    "$e_3 + 2 e_5$": keys[2] + 2 * keys[4],
    "$10\\, e_3$": 10 * keys[2],
}
figure, axes = plt.subplots(2, 3, figsize=(6.5, 4), layout="constrained", sharex=True)
for (above, below), (name, q) in zip(axes.T, queries.items(), strict=True):
    plotting.bars(keys @ q, range(1, 6), above).set(title=name)
    plotting.bars(jb.softmax(keys @ q), range(1, 6), below, numbers="{:.2f}")
    above.set_ylabel("product")
    below.set(xlabel="key", ylabel="weight", ylim=(0, 1.2))
assert np.allclose(jb.softmax(keys[2])[2], np.e / (np.e + 4))
assert jb.softmax(10 * keys[2])[2] > 0.999
answer = jb.layers.soft_lookup(10 * keys[2], keys, values)
assert np.allclose(answer, values[2], atol=3e-3)

# %% [markdown]
# **Theorem.** Let $z_m$ be the only largest entry of $z$ and $g > 0$ its distance from the second largest. Then every
# other weight of $\mathrm{softmax}(\lambda z)$ is at most $e^{-\lambda g}$, and the largest is at least
# $1 - (n - 1) e^{-\lambda g}$.
#
# *Proof.* $\mathrm{softmax}(\lambda z)_i \le e^{\lambda z_i} / e^{\lambda z_m} \le e^{-\lambda g}$ for $i \ne m$, and
# the weights sum to 1. $\square$
#
# So the softmax tends to the exact lookup as the query grows, and it is uniform for $\lambda = 0$. If several entries
# are largest, they have equal weights at every $\lambda$.

# %%
z = jnp.array([1.0, 2.0, 3.0, 2.5])
sizes = np.linspace(0, 20, 100)
weights = np.asarray(jb.softmax(jnp.asarray(sizes)[:, None] * z))
assert np.allclose(weights[0], 0.25)
others = np.delete(weights, 2, axis=1)
assert (others <= np.exp(-0.5 * sizes)[:, None] + 1e-6).all()
assert (weights[:, 2] >= 1 - 3 * np.exp(-0.5 * sizes) - 1e-6).all()
tie = jb.softmax(100 * jnp.array([1.0, 3.0, 3.0]))
assert np.allclose(tie, jnp.array([0, 0.5, 0.5]))
figure, ax = plt.subplots(figsize=(5, 2.8), layout="constrained")
plotting.curves(
    sizes, {f"entry {float(e)}": weights[:, i] for i, e in enumerate(z)}, ax
)
ax.set(xlabel="$\\lambda$", ylabel="weight")
legend = ax.legend(loc="center right")

# %% [markdown]
# The softmax is *not* applied elementwise: each weight depends on all entries. Its Jacobian is
# $\mathrm{diag}(p) - p\, p^\top$. Where $p$ is nearly one-hot, all entries of the Jacobian are near 0: such a layer
# hardly learns.
#
# ### The scale
#
# Attention therefore divides the products of $d$ features by $\sqrt d$. **The reason:** if the entries of $q$ and $k$
# are independent with mean 0 and variance 1, then $\langle q, k \rangle$ is a sum of $d$ uncorrelated terms of variance
# 1, and has variance $d$. The figure shows the mean entropy of the weights over 50 random keys, for 400 queries:
# without the scale it falls with $d$, with the scale it stays near its maximum, $\log 50$.

# %%
feature_counts = (4, 16, 64, 256)


@jax.jit
def mean_entropies(q, k):
    scores = q @ k.T
    entropy = lambda s: jb.entropy(jb.softmax(s)).mean()
    return scores.var(), entropy(scores), entropy(scores / jnp.sqrt(q.shape[1]))


measured = []
for d in feature_counts:
    q, k = jax.random.normal(jax.random.key(d), (2, 400, d))
    measured.append([float(v) for v in mean_entropies(q, k[:50])])
score_variance, unscaled, scaled = np.array(measured).T
assert np.allclose(score_variance / feature_counts, 1, atol=0.25)
assert (np.diff(unscaled) < 0).all() and unscaled[-1] < 0.1 * np.log(50)
assert (scaled > 0.85 * np.log(50)).all() and (scaled < np.log(50)).all()
print("without the scale:", unscaled.round(2), " with:", scaled.round(2))
figure, ax = plt.subplots(figsize=(5, 2.8), layout="constrained")
plotting.curves(feature_counts, {"scaled": scaled, "not scaled": unscaled}, ax)
ax.axhline(np.log(50), color="0.4", linestyle=":", label="log 50")
ax.set(xlabel="features", ylabel="entropy", xscale="log", ylim=(0, 5.8))
legend = ax.legend(loc="upper right", ncols=3)

# %% [markdown]
# **Exercise 2.** Complete the Jacobian of the softmax, from its value $p$.


# %% tags=["exercise"]
def softmax_jacobian(p):
    return 0 * jnp.outer(p, p)  # complete this line


# %% [markdown] tags=["solution"]
# $\partial p_i / \partial z_j = p_i\, [i = j] - p_i p_j$, by the quotient rule. Each row sums to 0: a constant added to
# all entries changes nothing.


# %% tags=["solution"]
def softmax_jacobian(p):
    return jnp.diag(p) - jnp.outer(p, p)


# %% tags=["check"]
assert np.allclose(
    softmax_jacobian(jb.softmax(z)), jax.jit(jax.jacobian(jb.softmax))(z), atol=1e-6
), "differentiate the quotient: its own entry, and the sum in the denominator"

# %% [markdown]
# ## 3. Learned projections
#
# Queries, keys and values may come from different spaces. So each is multiplied by a learned matrix. For $n_q$ queries
# and $n_k$ keys, in rows, with the softmax along each row:
#
# $$ \mathrm{Attention}(Q, K, V) = \mathrm{softmax}\Big(\frac{(Q W^Q)(K W^K)^\top}{\sqrt d}\Big)\, V W^V
#    \in \mathbb R^{n_q \times v} . $$
#
# The matrix in the softmax has a row for each query and a column for each key. Where queries, keys and values are the
# rows of one sequence $a$, the layer is called **self-attention**. `jb.Attention` has a further matrix for the output.
# A common error is to transpose the wrong factor: $(Q W^Q)^\top (K W^K)$ compares *features* instead of *positions*,
# and fits only if $n_q = n_k$.

# %%
a = jax.random.normal(jax.random.key(1), (7, 3))  # 7 positions, 3 features
WQ, WK, WV = jax.random.normal(jax.random.key(0), (3, 3, 3))
by_hand = jb.softmax(a @ WQ @ WK.T @ a.T / np.sqrt(3)) @ a @ WV
layer = jb.Attention(1, use_bias=False)
names = {"query": WQ, "key": WK, "value": WV, "out": jnp.eye(3)}
in_layer = layer.apply({name: {"kernel": W} for name, W in names.items()}, a)
assert np.allclose(by_hand, in_layer, atol=1e-5)

# %% [markdown]
# ### Training it
#
# Can an attention layer learn to look up? The task: a sequence of five entries, each with a random key (4 features) and
# a value (2 features), and then a question: one of the keys, rotated by a fixed unknown rotation. The answer is the
# value of that key. The net is one attention layer and a dense layer on the last position. Every step has new tables,
# so nothing can be memorized. It is trained from three initializations.

# %%
rotation = jnp.linalg.qr(jax.random.normal(jax.random.key(9), (4, 4)))[0]


def tables(key, n):
    """Sequences (n, 6, 10), answers (n, 2), and the entry that is asked for (n,)."""
    keys = jax.random.split(key, 3)
    stored = jax.random.normal(keys[0], (n, 5, 4))
    stored = 2 * stored / jnp.linalg.norm(stored, axis=-1, keepdims=True)
    content = jax.random.normal(keys[1], (n, 5, 2))
    which = jax.random.randint(keys[2], (n,), 0, 5)
    row = jnp.arange(n)
    question = jnp.pad(stored[row, which] @ rotation, ((0, 0), (6, 0)))
    entries = jnp.pad(jnp.concatenate([stored, content], -1), ((0, 0), (0, 0), (0, 4)))
    x = jnp.concatenate([entries, question[:, None]], 1)
    return x, content[row, which], which


reader = jb.Serial(jb.Attention(1), lambda h: h[..., -1, :], jb.Dense(2))
optimizer = optax.adam(optax.cosine_decay_schedule(3e-2, 400))


@jax.jit
@jax.vmap
def train(key):
    init_key, data_key = jax.random.split(key)
    params = reader.init(init_key, jnp.zeros((1, 6, 10)))

    def step(carry, i):
        params, state = carry
        x, y, _ = tables(jax.random.fold_in(data_key, i), 128)
        loss = lambda params: jnp.mean((reader.apply(params, x) - y) ** 2)
        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradient, state)
        return (optax.apply_updates(params, updates), state), value

    carry = params, optimizer.init(params)
    (params, _), losses = jax.lax.scan(step, carry, jnp.arange(400))
    return params, losses


@jax.jit
@jax.vmap
def evaluate(params):
    x, y, which = tables(jax.random.key(100), 1000)
    project = lambda name: jb.affine(x, **params[0][name])
    scores = jnp.einsum("nd,nkd->nk", project("query")[:, -1], project("key"))
    attended = jb.softmax(scores / jnp.sqrt(10))
    error = jnp.mean((reader.apply(params, x) - y) ** 2) / jnp.mean(y**2)
    return error, jnp.mean(attended[:, :5].argmax(-1) == which), attended, which


trained, losses = train(jax.random.split(jax.random.key(0), 3))
errors, right_entry, attended, asked = map(np.asarray, evaluate(trained))
print("relative test error", errors.round(3), " right entry", right_entry.round(3))
assert (errors < 0.05).all() and (right_entry > 0.98).all()

# %% [markdown]
# All three reach a small error on new tables, and the largest weight is on the right entry in more than 98 % of them.
# Left: the training losses. Right: the weights of the question in eight new tables, for the first net, with a cross at
# the entry that was asked for.
#
# What did $W^Q$ and $W^K$ learn? Not the rotation itself: only the product $W^Q (W^K)^\top$ matters for the scores, so
# each of the two matrices may be multiplied by any invertible matrix if the other is multiplied by the inverse of its
# transpose. The part of the product that maps questions to keys is nearly a multiple of the inverse rotation: its
# cosine with it is above 0.99 in all three nets.

# %%
smooth = losses.reshape(3, 20, 20).mean(2)
figure, (left, right) = plt.subplots(1, 2, figsize=(6.5, 3), layout="constrained")
plotting.curves(
    np.arange(10, 400, 20), {f"net {i + 1}": one for i, one in enumerate(smooth)}, left
)
left.set(xlabel="step", ylabel="loss", yscale="log")
plotting.matrix(attended[0, :8], right, numbers="", columns=[*"12345", "?"])
right.plot(asked[0, :8], np.arange(8), "x", color="#D55E00", markersize=7)
right.set(xlabel="entry", ylabel="table")
cosines = []
for i in range(3):
    kernels = (np.asarray(trained[0][name]["kernel"][i]) for name in ("query", "key"))
    query_map, key_map = kernels
    part = (query_map @ key_map.T)[6:, :4]  # from the question to the keys
    cosines.append(np.vdot(part, rotation.T) / np.linalg.norm(part) / 2)
print("cosine with the inverse rotation:", np.round(cosines, 3))
assert min(cosines) > 0.99

# %% [markdown]
# **Exercise 3.** Complete attention for given queries, keys and values (already projected).


# %% tags=["exercise"]
def attend(q, k, v):
    return 0 * q @ jnp.ones((q.shape[1], v.shape[1]))  # complete this line


# %% tags=["solution"]
def attend(q, k, v):
    return jb.softmax(q @ k.T / jnp.sqrt(q.shape[1])) @ v


# %% tags=["check"]
qs, ks = jax.random.normal(jax.random.key(20), (2, 3, 2))
vs = jnp.arange(1.0, 13.0).reshape(3, 4)
library = jb.attention(qs[:, None], ks[:, None], vs[:, None])[:, 0]
assert np.allclose(attend(qs, ks, vs), library, atol=1e-5), "compare rows with rows"
assert np.allclose(
    attend(
        jnp.array([[1.0, 0.0]]), jnp.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), vs
    ),
    jnp.array([[5.0, 6.0, 7.0, 8.0]]),
    atol=1e-5,
), "the first and the third key have the same score"

# %% [markdown]
# ## 4. Multi-head attention, and symmetry
#
# One softmax computes one set of weights. Multi-head attention computes $h$ of them in parallel, each with its own
# matrices, and combines the outputs $H_1, \dots, H_h$ for each position: $[H_1, \dots, H_h]\, W^O + b$, concatenated
# along the *features*.

# %%
n, h = 4, 2
x = jax.random.normal(jax.random.key(3), (n, 6))
net = jb.Attention(h)
params = net.init(jax.random.key(4), x)
split = lambda name: jb.affine(x, **params[name]).reshape(n, h, 3)
heads = jax.jit(jb.attention)(split("query"), split("key"), split("value"))
side_by_side = jb.affine(heads.reshape(n, h * 3), **params["out"])
apply = jax.jit(net.apply)
assert np.allclose(side_by_side, apply(params, x), atol=1e-5)

# %% [markdown]
# **Theorem.** Self-attention without positions and without a mask is permutation equivariant: for a permutation matrix
# $P$ of the positions $f(P a) = P f(a)$.
#
# *Proof.* The scores become $P S P^\top$. The softmax acts on each row, and its weights move with the entries:
# $\mathrm{softmax}(P S P^\top) = P\, \mathrm{softmax}(S)\, P^\top$. The values become $P V$, and $P^\top P = I$. All
# other operations act on each position alone. $\square$
#
# So it does not distinguish "dog bites man" from "man bites dog". The cell checks all 24 permutations.

# %%
turns = jnp.array(np.stack(np.meshgrid(*[np.arange(4)] * 4), -1).reshape(-1, 4))
turns = turns[np.array([len(set(one.tolist())) == 4 for one in turns])]
assert len(turns) == 24
of_turned = jax.jit(jax.vmap(lambda turn: net.apply(params, x[turn])))(turns)
assert np.allclose(of_turned, apply(params, x)[turns], atol=1e-5)

# %% [markdown]
# **Exercise 4.** How many params has self-attention with $h$ heads, biases, and $d$ features in and out? Each head has
# $d / h$ features. Complete the function.


# %% tags=["exercise"]
def params_of_attention(features, heads):
    return 0  # complete this line


# %% tags=["solution"]
def params_of_attention(features, heads):
    # Query, key, value and output: four matrices and biases, for any number of heads.
    return 4 * (features**2 + features)


# %% tags=["check"]
for width, head_count in ((6, 1), (6, 2), (12, 4)):
    example = jax.ShapeDtypeStruct((3, width), jnp.float32)
    shapes = jax.eval_shape(jb.Attention(head_count).init, jax.random.key(0), example)
    assert params_of_attention(width, head_count) == jb.count_params(shapes), (
        "count the matrices of all heads together, and the one for the output"
    )

# %% [markdown]
# ## 5. Positions and masks
#
# So **positions** must be part of the input, or of the scores. Vaswani et al. add sinusoids of geometrically spaced
# frequencies $\omega_i$ to the features: $\sin(\omega_i t)$ and $\cos(\omega_i t)$ for position $t$. Then a permutation
# changes more than the order of the outputs.
#
# **Fact.** The inner product of two encodings depends only on the distance of the positions, since
# $\sin s \sin t + \cos s \cos t = \cos(s - t)$: it is $\sum_i \cos(\omega_i (s - t))$.

# %%
waves = np.asarray(jb.sinusoidal_positions(40, 16))
gram = waves @ waves.T
assert all(np.ptp(np.diagonal(gram, offset)) < 1e-4 for offset in range(40))
assert np.allclose(np.diagonal(gram), 8, atol=1e-4)  # cos 0, for 8 frequencies
placed = jax.jit(jb.Serial(jb.SinusoidalPositions(), net).apply)
turn = jnp.array([1, 0, 2, 3])
assert abs(placed(((), params), x[turn]) - placed(((), params), x)[turn]).max() > 0.05
figure, axes = plt.subplots(1, 2, figsize=(6.5, 2.8), layout="constrained")
plotting.matrix(waves.T, axes[0], numbers="")
axes[0].set(title="encodings", xlabel="position", ylabel="feature", aspect="auto")
plotting.matrix(gram, axes[1])
axes[1].set(title="inner products", xlabel="position", ylabel="position")
assert len(axes[1].images) == 1

# %% [markdown]
# A model that predicts the next word must not use later ones. A **causal** mask sets the scores of all later positions
# to $-\infty$, hence their weights to exactly 0.

# %%
words = jax.random.normal(jax.random.key(6), (8, 1, 4))  # (position, head, features)
weigh = jax.jit(lambda x: jb.attention_weights(x, x, causal=True)[0])
causal_weights = np.asarray(weigh(words))
assert (np.triu(causal_weights, 1) == 0).all()
assert (
    np.allclose(causal_weights.sum(1), 1)
    and (np.tril(causal_weights) > 0)[np.tril_indices(8)].all()
)
figure, ax = plt.subplots(figsize=(3.6, 3), layout="constrained")
plotting.matrix(causal_weights, ax, numbers="{:.1f}")
ax.set(xlabel="position of the key", ylabel="position of the query")
causal = jax.jit(lambda x: jb.attention(x, x, x, causal=True))
changed = words.at[5].add(1.0)
assert np.allclose(causal(changed)[:5], causal(words)[:5])  # the past does not change

# %% [markdown]
# **Exercise 5.** Complete the weights of causal attention from the scores.


# %% tags=["exercise"]
def causal_softmax(scores):
    return jb.softmax(scores)  # complete this line


# %% tags=["solution"]
def causal_softmax(scores):
    return jb.softmax(jnp.where(jnp.tri(len(scores)) > 0, scores, -jnp.inf))


# %% tags=["check"]
raw = words[:, 0] @ words[:, 0].T / 2  # four features: sqrt(4) = 2
assert np.allclose(causal_softmax(raw), causal_weights, atol=1e-6), (
    "set the scores above the diagonal to -inf, before the softmax"
)

# %% [markdown]
# ## 6. What it costs
#
# Attention compares every position with every position: $n^2 d$ multiplications for the scores and $n^2 v$ for the
# outputs, and $n^2$ weights. The projections take $4 n d^2$. `jb.count_flops` counts without running. For short
# sequences the projections cost more, and from $n = 2 d$ on the comparison does; twice the length then costs up to four
# times as much.

# %%
width = 64
lengths = np.array([16, 64, 256, 1024, 4096])


def multiplications(f, length, *shape):
    operand = jax.ShapeDtypeStruct((length, *shape), jnp.float32)
    return jb.count_flops(f, operand, operand, operand).multiplications


softmax_attention = functools.partial(jb.attention, scale=None, implementation="einsum")
comparison = [multiplications(softmax_attention, t, 1, width) for t in lengths.tolist()]
projections = 4 * lengths * width**2
# Of the counted operations, n^2 (64 + 64) are those of the two products.
assert np.allclose(comparison, lengths**2 * 2 * width, rtol=0.05)
assert 2 * (2 * width) ** 2 * width == 4 * (2 * width) * width**2  # n = 2 d
figure, ax = plt.subplots(figsize=(5, 3), layout="constrained")
ax.loglog(lengths, comparison, "o-", label="scores and outputs")
ax.loglog(lengths, projections, "^--", label="projections")
ax.axvline(2 * width, color="0.4", linestyle=":", label="n = 2 d")
ax.set(xlabel="length n", ylabel="multiplications")
legend = ax.legend()

# %% [markdown]
# ### A remedy that computes the same
#
# The *memory* for the $n^2$ weights can be avoided without changing the result: process the keys in blocks, and keep
# for each query the largest score so far, the sum of the exponentials, and the weighted sum of the values (Milakov and
# Gimelshein 2018; Dao et al. 2022). The number of multiplications stays.


# %%
def in_blocks(q, k, v, size):
    largest = jnp.full((len(q), 1), -jnp.inf)
    total, output = jnp.zeros((len(q), 1)), jnp.zeros((len(q), v.shape[1]))
    for start in range(0, len(k), size):
        scores = q @ k[start : start + size].T
        new = jnp.maximum(largest, scores.max(1, keepdims=True))
        shrink, weight = jnp.exp(largest - new), jnp.exp(scores - new)
        total = total * shrink + weight.sum(1, keepdims=True)
        output = output * shrink + weight @ v[start : start + size]
        largest = new
    return output / total


long_q, long_k, long_v = jax.random.normal(jax.random.key(7), (3, 96, 8))
whole = jb.softmax(long_q @ long_k.T) @ long_v
assert np.allclose(
    jax.jit(in_blocks, static_argnums=3)(long_q, long_k, long_v, 16), whole, atol=1e-5
)

# %% [markdown]
# ### A remedy that computes something else
#
# **Linear attention** (Katharopoulos et al. 2020) replaces $e^{\langle q, k \rangle}$ by another positive similarity,
# $\langle \varphi(q), \varphi(k) \rangle$ with $\varphi(x) = \mathrm{elu}(x) + 1$. Then the product can be
# reassociated:
#
# $$ \frac{\big(\varphi(Q)\, \varphi(K)^\top\big) V}{\big(\varphi(Q)\, \varphi(K)^\top\big) 1}
# = \frac{\varphi(Q)\, \big(\varphi(K)^\top V\big)}{\varphi(Q)\, \big(\varphi(K)^\top 1\big)} , $$
#
# and the right side contains no matrix of size $n \times n$: twice the length costs twice as much. It is a different
# function from softmax attention, and not an approximation of it. For queries, keys and values of width $d = 64$ it
# takes about $n / d$ times fewer multiplications.

# %%
linear = [multiplications(jb.linear_attention, t, 1, width) for t in lengths.tolist()]
assert np.allclose(np.diff(np.log(linear)) / np.diff(np.log(lengths)), 1, atol=0.01)
assert np.allclose(np.array(comparison) / linear, lengths / width, rtol=0.1)
assert not np.allclose(
    jax.jit(jb.linear_attention)(long_q[:, None], long_k[:, None], long_v[:, None])[
        :, 0
    ],
    whole,
    atol=0.1,
)
figure, ax = plt.subplots(figsize=(5, 3), layout="constrained")
ax.loglog(lengths, comparison, "o-", label="softmax attention")
ax.loglog(lengths, linear, "s--", label="linear attention")
ax.axvline(width, color="0.4", linestyle=":", label="n = d")
ax.set(xlabel="length n", ylabel="multiplications")
legend = ax.legend()

# %% [markdown]
# **Exercise 6.** Complete linear attention, without a matrix of size $n \times n$.


# %% tags=["exercise"]
def linear_by_hand(q, k, v):
    return 0 * v  # complete this line


# %% tags=["solution"]
def linear_by_hand(q, k, v):
    phi_q, phi_k = jb.elu(q) + 1, jb.elu(k) + 1
    return (phi_q @ (phi_k.T @ v)) / (phi_q @ phi_k.sum(0))[:, None]


# %% tags=["check"]
by_library = jax.jit(jb.linear_attention)(
    long_q[:, None], long_k[:, None], long_v[:, None]
)
assert np.allclose(
    linear_by_hand(long_q, long_k, long_v), by_library[:, 0], atol=1e-4
), "first multiply the keys with the values, then the queries with the result"
assert multiplications(linear_by_hand, 2048, 8) < 2.1 * multiplications(
    linear_by_hand, 1024, 8
), "twice the length costs more than twice as much: there is a matrix of size n x n"
