# %% [markdown]
# # Inductive bias: structure in the weight matrix
#
# A dense layer connects every input to every output and assumes nothing about the data. Images, sequences and graphs
# have structure. A layer that assumes this structure does not have to learn it. **Which structure can be built into a
# layer, and what does it look like in the weight matrix?**
#
# Convolutions, linear recurrences and sums over neighbors are linear maps: each is a dense layer with a constrained
# matrix, which `as_dense` shows. (Gates, maxima and attention are not linear; their constraints are the same weights at
# all positions.)

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
# ## 1. Convolution: the same weights at all positions
#
# Take a signal $x = (1, -1, 2, 0, 3)$ and a **kernel** $w = (1, 2, -1)$. Multiply the kernel with the first three
# entries and sum; shift it by one position; repeat: $(x \star w)_i = \sum_{j=1}^{k} x_{i+j-1}\, w_j$. A signal of
# length $H$ gives $H - k + 1$ outputs. (In mathematics this is a cross-correlation, and a convolution flips the kernel.
# For a learned kernel the difference does not matter.)
#
# The matrix is **banded**, since each output depends only on neighboring inputs, and its diagonals are constant: a
# Toeplitz matrix, with 3 parameters instead of 15.

# %%
x, w = jnp.array([1.0, -1.0, 2.0, 0.0, 3.0]), jnp.array([1.0, 2.0, -1.0])
# w: (kernel size, in, out)
layer = lambda x: jb.conv(x[:, None], w[:, None, None])[:, 0]
assert layer(x).tolist() == [-3, 3, -1] and np.allclose(layer(x), np.correlate(x, w))
A = jb.inspection.as_dense(layer, (5,))
assert np.allclose(A @ x, layer(x))
for diagonal in range(-2, 5):
    assert len(set(np.diagonal(A, diagonal).tolist())) == 1
figure, ax = plt.subplots(figsize=(4, 2.6), layout="constrained")
plotting.matrix(A, ax)
ax.set(xlabel="input", ylabel="output")
# the derivative by a shared weight: the sum over all positions where it is used
loss = lambda w: jnp.sum(jb.conv(x[:, None], w[:, None, None])[:, 0] ** 2)
by_matrix = jax.grad(lambda A: jnp.sum((A @ x) ** 2))(A)
summed = [np.diagonal(by_matrix, k).sum() for k in range(3)]
assert np.allclose(jax.grad(loss)(w), summed)

# %% [markdown]
# **Images.** With two spatial axes and several channels the operation is the same. A layer from $28 \times 28$ pixels
# with 3 channels to 8 channels with $3 \times 3$ kernels has 224 parameters; the dense layer between the same shapes
# has 12,725,024. Below are the outputs of three fixed kernels: differences across, differences down, and a blur.

# %%
photo = jax.ShapeDtypeStruct((28, 28, 3), jnp.float32)
convolution = jb.Conv(8, (3, 3))
shapes = jax.eval_shape(convolution.init, jax.random.key(0), photo)
out_shape = jax.eval_shape(convolution.apply, shapes, photo).shape
assert jb.count_params(shapes) == (3 * 3 * 3 + 1) * 8 == 224
assert out_shape == (26, 26, 8)
assert (28 * 28 * 3 + 1) * 26 * 26 * 8 == 12_725_024

rows, columns = np.mgrid[:24, :24]
disc = (rows - 8) ** 2 + (columns - 8) ** 2 < 30
square = (rows > 13) & (columns > 13) & (rows < 21) & (columns < 21)
picture = (disc | square).astype(np.float32)
upright = np.outer([1, 2, 1], [-1, 0, 1]) / 4
kernels = np.stack([upright, upright.T, np.full((3, 3), 1 / 9)], -1)
kernels = jnp.asarray(kernels[:, :, None], jnp.float32)
maps = jb.conv(jnp.asarray(picture)[..., None], kernels, padding="same")
figure, ax = plt.subplots(figsize=(6.5, 1.9), layout="constrained")
plotting.tiles([picture, *np.moveaxis(maps, -1, 0)], ax)
ax.set_title("image, differences across, differences down, blur")
assert maps[8, 8, :2].tolist() == [0, 0]  # no edge in the middle of the disc

# %% [markdown]
# ### Equivariance and invariance
#
# **Theorem.** On signals on $\mathbb Z$ a convolution with stride 1 is **equivariant** to translations:
# $\mathrm{conv}(\mathrm{shift}(x)) = \mathrm{shift}(\mathrm{conv}(x))$. The maximum or the mean over all positions of
# the result is **invariant**.
#
# *Proof.* $(\mathrm{shift}_s x \star w)_i = \sum_j x_{i - s + j - 1} w_j = (x \star w)_{i - s}$. A maximum over all $i$
# does not depend on $s$. $\square$
#
# On finite signals it holds where no window reaches the border before or after the shift; with stride $s$ only for
# shifts by multiples of $s$. A common error is to call the convolution itself invariant: the cell shows that it is not,
# and that both conditions are needed.

# %%
small = jnp.pad(jnp.asarray(picture)[2:14, 2:14], 6)[..., None]  # a margin of zeros
detect = jax.jit(lambda x: jb.relu(jb.conv(x, kernels, padding="same")))
moved = jnp.roll(small, 3, axis=1)
assert abs(detect(moved) - detect(small)).max() > 0.5  # not invariant
assert np.allclose(detect(moved), jnp.roll(detect(small), 3, axis=1), atol=1e-6)
pooled = [jb.layers.global_max_pool(detect(x), 2) for x in (small, moved)]
assert np.allclose(*pooled, atol=1e-6)
# at a border
touching = jnp.roll(small, 6, axis=1)
pushed = jnp.roll(
    touching, 3, axis=1
)  # the part that leaves comes in on the other side
assert abs(detect(pushed) - jnp.roll(detect(touching), 3, axis=1)).max() > 0.1
# stride 2: a shift by 1 is not a shift of the output, a shift by 2 is one by 1
strided = jax.jit(lambda x: jb.conv(x, kernels, stride=2, padding="same"))
by_one, by_two = (strided(jnp.roll(small, s, axis=1)) for s in (1, 2))
of_small = strided(small)
assert min(abs(by_one - jnp.roll(of_small, s, axis=1)).max() for s in range(12)) > 0.1
assert np.allclose(by_two, jnp.roll(of_small, 1, axis=1), atol=1e-6)

# %% [markdown]
# ### Digits that move
#
# Does this matter? 1,000 handwritten digits of 8 by 8 pixels, in the middle of an image of 12 by 12, train a dense net
# (19,850 parameters) and a convolutional net with a maximum over all positions (5,130). The test digits are shifted. In
# this run both nets classify more than 94 % of the digits in the middle. Shifted by one pixel, the dense net loses half
# of its accuracy, and by two pixels it is near chance; the convolutional net stays above 90 %, although it has seen no
# shifted digit.

# %%
images, digits = jb.datasets.digits()
mixed = np.random.default_rng(0).permutation(len(images))
images, digits = images[mixed], digits[mixed]


def placed(images, shift):
    return np.pad(images, ((0, 0), (2, 2), (2 + shift, 2 - shift), (0, 0)))


nets = {
    "dense": jb.Serial(
        lambda x: x.reshape(*x.shape[:-3], 144), jb.Dense(128), jb.relu, jb.Dense(10)
    ),
    "convolutional": jb.Serial(
        jb.Conv(16, (3, 3)),
        jb.relu,
        jb.Conv(32, (3, 3)),
        jb.relu,
        jb.GlobalMaxPool(2),
        jb.Dense(10),
    ),
}
shifts, scores, sizes = (-2, -1, 0, 1, 2), {}, {}
for name, net in nets.items():
    fitted = jb.fit(
        net,
        jb.softmax_cross_entropy,
        optax.adam(8e-3),
        (placed(images[:1000], 0), digits[:1000]),
        key=jax.random.key(0),
        batch_size=50,
        steps=125,
        progress=False,
    )
    predict = jax.jit(lambda x, p=fitted.params, f=net.apply: f(p, x).argmax(-1))
    found = [np.asarray(predict(placed(images[1000:], shift))) for shift in shifts]
    scores[name] = np.array([np.mean(one == digits[1000:]) for one in found])
    sizes[name] = jb.count_params(fitted.params)
    print(f"{name}: {sizes[name]:,} parameters, test accuracy", scores[name].round(3))
figure, ax = plt.subplots(figsize=(5.5, 3), layout="constrained")
for (name, found), marker in zip(scores.items(), ("o--", "s-"), strict=True):
    ax.plot(shifts, found, marker, label=name)
ax.axhline(0.1, color="0.4", linestyle=":", label="chance")
ax.set(xlabel="shift of the test digits, pixels", ylabel="accuracy", ylim=(0, 1.35))
ax.set_xticks(shifts)
ax.legend(loc="upper center", ncols=3)
assert sizes == {"dense": 19_850, "convolutional": 5_130}
assert scores["dense"][2] > 0.94 and (scores["convolutional"] > 0.9).all()
assert max(scores["dense"][[1, 3]]) < 0.6 and max(scores["dense"][[0, 4]]) < 0.25

# %% [markdown]
# **What the dense net assumes: nothing about neighbors.** If the pixels of all images are permuted in the same way, and
# the rows of the first kernel with them, gradient descent computes the same net with permuted rows at every step. So
# with independent initial weights a dense net learns permuted images equally well (in distribution). The cell checks it
# for 20 steps.

# %%
shuffle = np.random.default_rng(1).permutation(144)
flat = placed(images[:100], 0).reshape(100, 144)
two_layers = jb.MLP(32, 10)
start = two_layers.init(jax.random.key(0), flat)


@jax.jit
def twenty_steps(params, x):
    loss = lambda p: jb.softmax_cross_entropy(
        two_layers.apply(p, x), digits[:100]
    ).mean()
    step = lambda p, _: (jax.tree.map(lambda a, g: a - g, p, jax.grad(loss)(p)), None)
    return jax.lax.scan(step, params, None, length=20)[0]


permuted_start = ({**start[0], "kernel": start[0]["kernel"][shuffle]}, *start[1:])
plain = twenty_steps(start, flat)
permuted = twenty_steps(permuted_start, flat[:, shuffle])
assert abs(plain[0]["kernel"] - start[0]["kernel"]).max() > 0.05
assert np.allclose(permuted[0]["kernel"], plain[0]["kernel"][shuffle], atol=1e-4)

# %% [markdown]
# **Receptive field.** An output of $L$ layers with kernel size 3 and stride 1 depends on $2L + 1$ inputs: each layer
# adds one on both sides. The next cell computes which inputs have a nonzero derivative.


# %%
def blurs(depth):
    def f(x):
        for _ in range(depth):
            x = jb.conv(x, jnp.ones((3, 1, 1)), padding="same")
        return x

    return f


field_of = jb.inspection.receptive_field
seen = np.stack([field_of(blurs(depth), (15, 1), 7)[:, 0] for depth in range(1, 6)])
figure, ax = plt.subplots(figsize=(5, 2), layout="constrained")
plotting.matrix(seen, ax, rows=range(1, 6), numbers="")
ax.set(ylabel="layers", xlabel="input position")
assert seen.astype(bool).sum(1).tolist() == [3, 5, 7, 9, 11]

# %% [markdown]
# **Exercise 1.** With *stride* $s$ the window moves by $s$ positions; with *dilation* $d$ the entries of the kernel are
# $d$ positions apart; $p$ zeros are added at both ends. How many outputs has a signal of length $H$?


# %% tags=["exercise"]
def output_length(H, k, stride, padding, dilation):
    return H  # complete this line


# %% tags=["solution"]
def output_length(H, k, stride, padding, dilation):
    covered = dilation * (k - 1) + 1
    return (H + 2 * padding - covered) // stride + 1


# %% tags=["check"]
for H, k, s, p, d in (
    (5, 3, 1, 0, 1),
    (28, 5, 1, 0, 1),
    (32, 3, 2, 1, 1),
    (32, 3, 1, 0, 2),
):
    signal, ones = jax.ShapeDtypeStruct((H, 1), jnp.float32), jnp.ones((k, 1, 1))
    options = dict(stride=s, padding=p, dilation=d)
    strided_conv = functools.partial(jb.conv, **options)
    true_length = jax.eval_shape(strided_conv, signal, ones).shape[0]
    assert output_length(H, k, s, p, d) == true_length, (
        "how many positions does the kernel cover, and how often can it move?"
    )

# %% [markdown]
# ## 2. Recurrence: the same weights at all times
#
# A sequence may have any length. A recurrent layer reads one time step at a time and keeps a **state**:
# $(y_t, h_t) = g(a_t, h_{t-1})$ with the same $g$ at all steps, and $h_0 = 0$. For a linear $g$, here
# $h_t = a_t + h_{t-1} / 2$, the matrix is lower triangular, since no output depends on later inputs, and its diagonals
# are constant: it is a convolution over all past inputs, with the kernel $1, \frac12, \frac14, \dots$

# %%
halving = jb.RNN(1, activation=jb.identity, use_bias=False, recurrent_bias=False)
half = {"kernel": jnp.ones((1, 1)), "recurrent_kernel": jnp.full((1, 1), 0.5)}
run = lambda a: halving.apply(half, a[:, None])[:, 0]
assert run(jnp.array([1.0, 0.0, 0.0])).tolist() == [1, 0.5, 0.25]
M = jb.inspection.as_dense(run, (6,))
assert np.allclose(M, np.tril(0.5 ** (np.arange(6)[:, None] - np.arange(6.0))))
figure, ax = plt.subplots(figsize=(4, 3), layout="constrained")
plotting.matrix(M, ax)
ax.set(xlabel="time of the input", ylabel="time of the output")
sequence = jax.ShapeDtypeStruct((7, 2), jnp.float32)
sizes = [
    jb.count_params(jax.eval_shape(cell(3).init, jax.random.key(0), sequence))
    for cell in (jb.RNN, jb.GRU, jb.LSTM)
]
assert sizes == [21, 63, 84]  # for any length: one, three and four affine maps

# %% [markdown]
# ### Why gates?
#
# **Theorem** (Bengio et al. 1994; Pascanu et al. 2013). For $h_t = \varphi(W h_{t-1} + U a_t)$ with
# $|\varphi'| \le \gamma$
#
# $$ \| \frac{\partial h_T}{\partial h_0} \| \le (\gamma\, \|W\|)^T . $$
#
# *Proof.* By the chain rule it is the product of $T$ matrices $\mathrm{diag}(\varphi')\, W$, each of norm at most
# $\gamma \|W\|$. $\square$
#
# For tanh ($\gamma = 1$) and $\|W\| < 1$ the product vanishes geometrically. For $\|W\| \ge 1$ the theorem says
# nothing: the product can vanish or grow. The **LSTM** (Hochreiter and Schmidhuber 1997) adds to a cell state, $c_t =
# f_t \odot c_{t-1} + i_t \odot z_t$; along this path the derivative is the product of the forget gates $f_t$ (Gers et
# al. 2000), about $\mathrm{sigmoid}(b)^T$ for a large bias $b$. With $b = 5$ that is 0.67 for $T = 60$, with the usual
# $b = 1$ only $7 \cdot 10^{-9}$.
#
# The figure: medians over ten draws of random params (orthogonal $W$, so $\|W\| = 1$) and inputs. At $T = 60$ the order
# of the three curves is the same in all ten draws. An LSTM with $b = 1$ vanishes, too, but more slowly; that with $b =
# 5$ was chosen for this picture, and training must find such gates.


# %%
def memory(cell, key, steps=60):
    init_key, input_key = jax.random.split(key)
    inputs = jax.random.normal(input_key, (steps, 2))
    params, carry = cell.init(init_key, inputs[0])
    named = isinstance(carry, dict)

    def states(first):
        def step(h, a):
            after = cell.apply(params, h, a)[1]
            return after, after["cell"] if named else after

        return jax.lax.scan(step, {**carry, "cell": first} if named else first, inputs)[
            1
        ]

    jacobians = jax.jacfwd(states)(carry["cell"] if named else carry)
    return jnp.linalg.norm(jacobians, ord=2, axis=(1, 2))


cells = {
    "LSTM, bias 5": jb.LSTMCell(8, forget_bias=5.0),
    "LSTM, bias 1": jb.LSTMCell(8),
    "tanh": jb.RNNCell(8),
}
ten = jax.random.split(jax.random.key(0), 10)
norms = {
    name: np.asarray(jax.jit(jax.vmap(lambda key, cell=cell: memory(cell, key)))(ten))
    for name, cell in cells.items()
}  # (draws, steps)
figure, ax = plt.subplots(figsize=(5.5, 3), layout="constrained")
medians = {name: np.log10(np.median(found, 0)) for name, found in norms.items()}
plotting.curves(range(1, 61), medians, ax)
ax.set(xlabel="T", ylabel="log10 of the norm", ylim=(-14, 4))
ax.legend(loc="lower left")
assert (norms["tanh"] <= 1 + 1e-5).all()  # the theorem, with norm 1
gates = [float(jb.sigmoid(jnp.float32(b))) ** 60 for b in (5, 1)]
assert round(gates[0], 2) == 0.67 and 6e-9 < gates[1] < 8e-9
last = {name: found[:, -1] for name, found in norms.items()}
assert (last["LSTM, bias 5"] > last["LSTM, bias 1"]).all()
assert (last["LSTM, bias 1"] > last["tanh"]).all()

# %% [markdown]
# **Exercise 2.** Complete the kernel of the convolution that the linear recurrence $h_t = a_t + \rho\, h_{t-1}$
# computes, for the last $n$ inputs, the latest first.


# %% tags=["exercise"]
def kernel_of_recurrence(rho, n):
    return jnp.ones(n)  # complete this line


# %% tags=["solution"]
def kernel_of_recurrence(rho, n):
    return rho ** jnp.arange(n)


# %% tags=["check"]
heard = jax.random.normal(jax.random.key(2), (20,))
by_kernel = np.convolve(heard, kernel_of_recurrence(0.5, 20))[:20]
assert np.allclose(by_kernel, run(heard), atol=1e-5), (
    "insert the recurrence into itself"
)

# %% [markdown]
# ## 3. Graph layers: the same weights at all edges
#
# Molecules, roads and social networks have neighbors without an order. A graph layer applies the same map to the
# features of each neighbor and aggregates by a sum, mean or maximum (Gilmer et al. 2017; Battaglia et al. 2018). For a
# sum with the kernel $W$ it is $X \mapsto A X W$ with the adjacency matrix $A$. As a matrix on the vectorized features
# (rows of $X$ one after the other) it is $A \otimes W^\top$: zero where there is no edge, and the same block $W^\top$
# wherever there is one. The example is a path of four nodes.

# %%
adjacency = jnp.array([[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]])
features = jnp.array([[1.0, 0.0], [2.0, 1.0], [3.0, 0.0], [4.0, 1.0]])
graph = jb.layers.adjacency_graph(features, adjacency)
sum_neighbors = lambda X: jb.layers.aggregate(X[graph.senders], graph.receivers, n=4)
assert np.allclose(sum_neighbors(features), adjacency @ features)
W = jnp.array([[1.0, 2.0], [0.5, -1.0]])
K = jb.inspection.as_dense(lambda X: sum_neighbors(X) @ W, (4, 2))
assert np.allclose(K, np.kron(adjacency, W.T))
figure, ax = plt.subplots(figsize=(4, 3.2), layout="constrained")
plotting.matrix(K, ax)
ax.set(xlabel="node and feature of the input", ylabel="of the output")
# zero where there is no edge
assert np.count_nonzero(K) == W.size * np.count_nonzero(adjacency)

# %% [markdown]
# **Theorem.** If the nodes are renumbered, the outputs at the nodes are renumbered in the same way: for a permutation
# matrix $P$, $(P A P^\top)(P X) W = P (A X W)$. A sum, mean or maximum over all nodes is invariant.
#
# It holds for every layer that treats all edges and nodes alike, also with features of edges and of the whole graph.
# `GraphBlock` has these; the cell checks all 24 renumberings.

# %%
block = jb.GraphBlock(edge=jb.MLP(8, 3), node=jb.MLP(8, 3), graph=jb.Dense(2))
block_params = jax.jit(block.init)(jax.random.key(0), graph)
everything = np.stack(np.meshgrid(*[np.arange(4)] * 4), -1).reshape(-1, 4)
orders = everything[[len(set(one.tolist())) == 4 for one in everything]]
run_block = jax.jit(block.apply)
before = run_block(block_params, graph)
for order in jnp.asarray(orders):  # the new node i is the old node order[i]
    place = jnp.argsort(order)
    renumbered = graph._replace(
        nodes=features[order],
        senders=place[graph.senders],
        receivers=place[graph.receivers],
    )
    after = run_block(block_params, renumbered)
    assert np.allclose(after.nodes, before.nodes[order], atol=1e-5)
    assert np.allclose(after.global_features, before.global_features, atol=1e-5)
assert len(orders) == 24

# %% [markdown]
# **Exercise 3.** Attention is a graph layer on the complete graph, whose aggregation is a mean with the weights
# $\mathrm{softmax}_j \langle q_i, k_j \rangle$. On a sparse graph the softmax runs over the neighbors only. Complete it
# for an adjacency matrix, without a loop.


# %% tags=["exercise"]
def attention_on_graph(q, k, v, adjacency):
    return 0 * q @ k.T @ v  # complete this line


# %% tags=["solution"]
def attention_on_graph(q, k, v, adjacency):
    return jb.softmax(jnp.where(adjacency > 0, q @ k.T, -jnp.inf)) @ v


# %% tags=["check"]
q, k, v = jax.random.normal(jax.random.key(5), (3, 4, 2))
match = jnp.sum(q[graph.receivers] * k[graph.senders], -1)
by_edges = jb.layers.aggregate(
    v[graph.senders], graph.receivers, 4, how="softmax", logits=match
)
assert np.allclose(attention_on_graph(q, k, v, adjacency), by_edges, atol=1e-5), (
    "where there is no edge, the score must be -inf before the softmax"
)

# %% [markdown]
# ## 4. Comparison of the matrices
#
# Five layers on six positions. Attention (notebook 6) has a full matrix as a dense layer has, but it is computed from
# the data. The number of free parameters: 36, 3, 1, 1 (a ring with one weight), and for attention a number that does
# not depend on the length.

# %%
ring = np.roll(np.eye(6), 1, 0) + np.roll(np.eye(6), -1, 0)
data = jax.random.normal(jax.random.key(3), (6, 1))
same_length = lambda x: jb.conv(x[:, None], w[:, None, None], padding="same")[:, 0]
matrices = {
    "dense": jax.random.normal(jax.random.key(4), (6, 6)),
    "convolution": jb.inspection.as_dense(same_length, (6,)),
    "recurrence": M,
    "graph (a ring)": ring,
    "attention": jax.jit(jb.attention_weights)(data[:, None], data[:, None])[0],
}
figure, axes = plt.subplots(2, 3, figsize=(6.5, 4.4), layout="constrained")
for ax, (name, matrix) in zip(axes.flat, matrices.items(), strict=False):
    plotting.matrix(matrix, ax, numbers="").set_title(name)
    ax.set(xlabel="input", ylabel="output")
axes[1, 2].set_axis_off()
filled = {name: np.count_nonzero(matrix) for name, matrix in matrices.items()}
assert list(filled.values()) == [36, 16, 21, 12, 36]

# %% [markdown]
# **Exercise 4.** Complete the matrix of a convolution with zero padding ("same") of a signal of length $n$, for a
# kernel of size 3.


# %% tags=["exercise"]
def toeplitz(kernel, n):
    return np.eye(n)  # complete this line


# %% tags=["solution"]
def toeplitz(kernel, n):
    return sum(kernel[j] * np.eye(n, k=j - 1) for j in range(3))


# %% tags=["check"]
assert np.allclose(toeplitz(np.asarray(w), 6), matrices["convolution"]), (
    "each weight is on one diagonal; the middle weight is on the main diagonal"
)

# %% [markdown]
# ## 5. Feature maps
#
# An older way to use prior knowledge is a **feature map** $\Phi$ before a linear layer, $f(x) = w^\top \Phi(x) + b$.
#
# **Generic** features, such as random Fourier features (Rahimi and Recht 2007), assume that nearby inputs have similar
# outputs. In one dimension this is a strong assumption. In many dimensions few points are near each other: for two
# uniform points of the unit cube $E \|x - y\|^2 = D / 6$, so the Gaussian kernel $e^{-\|x - y\|^2}$ is about
# $e^{-D/6}$. (The sum of $D$ independent terms is concentrated around its mean.)

# %%
line = jnp.linspace(-1, 1, 40)[:, None]
random_waves = jb.layers.RandomFourierFeatures(30, gamma=4.0)
features_at = lambda key: random_waves.apply(random_waves.init(key, line), line)
waves = jax.jit(features_at)(jax.random.key(0))  # random, not trained
best = jb.layers.linear_regression(waves, jnp.sin(5 * line), ridge=1e-6)
assert abs(jb.affine(waves, **best) - jnp.sin(5 * line)).max() < 0.05
pairs = np.random.default_rng(0).random((2, 200, 1000))
for D in (10, 100, 1000):
    distance = np.sum((pairs[0, :, :D] - pairs[1, :, :D]) ** 2, 1)
    assert abs(distance.mean() / (D / 6) - 1) < 0.1

# %% [markdown]
# **Hand-crafted** features use domain knowledge. The next cell computes the main part of a descriptor of images (SIFT,
# Lowe 2004): how strong the edges are in each direction. By construction it does not depend on brightness and contrast.


# %%
def orientations(image, bins=4):
    down, across = np.gradient(image)
    angle = np.degrees(np.arctan2(down, across)) % 180
    nearest = np.round(angle / (180 / bins)) % bins
    strength = [np.hypot(down, across)[nearest == k].sum() for k in range(bins)]
    return np.array(strength) / np.sum(strength)


waves_at = lambda degrees: np.sin(
    np.cos(np.radians(degrees)) * columns + np.sin(np.radians(degrees)) * rows
)
stripes = {degrees: waves_at(degrees) for degrees in (0, 45, 90)}
described = {f"{d} degrees": orientations(image) for d, image in stripes.items()}
assert [int(value.argmax()) for value in described.values()] == [0, 1, 2]
assert np.allclose(orientations(0.3 * stripes[45] + 7), described["45 degrees"])
figure, (left, right) = plt.subplots(2, 1, figsize=(5.5, 4), layout="constrained")
plotting.tiles(list(stripes.values()), left, columns=3)
plotting.bars(described, ["0", "45", "90", "135"], right, numbers="")
right.set(xlabel="direction of the gradient, degrees", ylabel="share", ylim=(0, 1.4))
legend = right.legend(ncols=3, loc="upper center")

# %% [markdown]
# **Learned** features: $\Phi$ has params, too. If they are learned *without labels*, for example as principal
# components, they keep what varies most, and this need not be what the labels depend on. In this constructed example
# nine inputs have a large variance, and the label is the sign of the tenth, which has a small one. In each of five
# draws a classifier on the two principal components is near chance, and the same number of features, trained *jointly*
# with the classifier, is correct for more than 85 % of the test data.

# %%
joint_net = jb.Serial(phi=jb.Serial(jb.Dense(2), jb.tanh), classify=jb.Dense(2))
adam = optax.adam(2e-2)


@jax.jit
@jax.vmap
def two_ways(key):
    data_key, init_key = jax.random.split(key)
    x = jax.random.normal(data_key, (600, 10)) * jnp.array([3.0] * 9 + [0.5])
    y = (x[:, 9] > 0).astype(jnp.int32)
    score = lambda net, params, x: jnp.mean(
        net.apply(params, x[400:]).argmax(-1) == y[400:]
    )

    def fitted(net, x):
        loss = lambda p: jb.softmax_cross_entropy(net.apply(p, x[:400]), y[:400]).mean()

        def step(carry, _):
            params, state = carry
            updates, state = adam.update(jax.grad(loss)(params), state)
            return (optax.apply_updates(params, updates), state), None

        params = net.init(init_key, x)
        carry = params, adam.init(params)
        return jax.lax.scan(step, carry, None, length=400)[0][0]

    components = jnp.linalg.svd(x[:400], full_matrices=False)[2][:2]
    linear, reduced = jb.Dense(2), x @ components.T
    return (
        score(linear, fitted(linear, reduced), reduced),
        score(joint_net, fitted(joint_net, x), x),
    )


separate, jointly = map(np.asarray, two_ways(jax.random.split(jax.random.key(1), 5)))
print("separate:", separate.round(2), " joint:", jointly.round(2))
assert (separate < 0.65).all() and (jointly > 0.85).all()

# %% [markdown]
# The structured layers of this notebook are between the two: their form is designed, and their params are learned.
#
# **Exercise 5.** Complete the expected squared distance of two uniform points of the cube $[0, a]^D$.


# %% tags=["exercise"]
def expected_distance(side, dimensions):
    return 0.0  # complete this line


# %% tags=["solution"]
def expected_distance(side, dimensions):
    # In one dimension twice the variance of a uniform number, side ** 2 / 12.
    return dimensions * side**2 / 6


# %% tags=["check"]
both = 2 * np.random.default_rng(3).random((2, 20_000, 5))
mean_distance = np.sum((both[0] - both[1]) ** 2, 1).mean()
assert np.isclose(expected_distance(2.0, 5), mean_distance, rtol=0.05), (
    "begin with one dimension: twice the variance of a uniform number"
)
