# %% [markdown]
# # Inductive bias: structure in the weight matrix
#
# A dense layer connects every input to every output. It can represent every layer of this notebook, but it assumes
# nothing about the data: if the pixels of all images are permuted in the same way, it learns equally well. "So are deep
# feed-forward nets what we should work with?" the lecture notes ask, and answer: usually not. Images, sequences and
# graphs have structure. A layer that assumes this structure does not have to learn it.
#
# **Which structure can be built into a layer, and what does it look like in the weight matrix?** Every layer below is a
# dense layer with a constrained matrix. `as_dense` shows this matrix.
#
# An `assert` in the next code cell checks each claim of the text. The homework at the end has solutions.
#
# **Sources:** Diehl, *lecture notes* (2023), section 1.1; Cevher, *Mathematics of Data*; Krapac & Šegvić, *Deep
# feed-forward models* (features). Some formulas in these sources contain errors. For each error, this notebook gives
# the printed form, a counterexample and the corrected form.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import jaxblocks as jb
from jaxblocks import plotting

# %% [markdown]
# ## 1. Convolution: weight sharing over positions
#
# Take a signal $x = (1, -1, 2, 0, 3)$ and a **kernel** $w = (1, 2, -1)$. Multiply the kernel with the first three
# entries and sum; shift the kernel by one position; repeat. Followed by a ReLU, this is a convolutional layer:

# %%
x, w = jnp.array([1.0, -1.0, 2.0, 0.0, 3.0]), jnp.array([1.0, 2.0, -1.0])
# w: (kernel size, in, out)
layer = lambda x: jb.conv(x[:, None], w[:, None, None])[:, 0]
assert layer(x).tolist() == [-3, 3, -1]
assert jb.relu(layer(x)).tolist() == [0, 3, 0]
assert np.allclose(layer(x), np.correlate(x, w))

# %% [markdown]
# The matrix of the layer has two properties. It is **banded**: each output depends only on neighboring inputs. And its
# diagonals are constant: the weights are the same at all positions. Such a matrix is called a Toeplitz matrix. It has 3
# parameters instead of 15.

# %%
A = jb.inspection.as_dense(layer, (5,))
assert np.allclose(A @ x, layer(x))
assert all(len(set(np.diagonal(A, k).tolist())) == 1 for k in range(-2, 5))
figure, axes = plt.subplots(figsize=(4, 2.6), layout="constrained")
axes = plotting.matrix(A, axes)

# %% [markdown]
# The gradient with respect to a shared weight is the *sum* of the gradients over all positions where it is used.

# %%
loss = lambda w: jnp.sum(jb.conv(x[:, None], w[:, None, None])[:, 0] ** 2)
dense_gradient = jax.grad(lambda A: jnp.sum((A @ x) ** 2))(A)
summed = [np.diagonal(dense_gradient, k).sum() for k in range(3)]
assert np.allclose(jax.grad(loss)(w), summed)

# %% [markdown]
# > **One lecture prints** $(x \star a)_i = \sum_j x_{i+j-1} a_j$, with the signal first, and then the layer as
# > $X \star a$, with the kernel first; the output size as "$H\, k + 1$"; and calls the layer "an MLP across spatial
# > locations".
#
# **Counterexample:** signal and kernel cannot be exchanged, since the kernel must not be longer than the signal. A
# signal of length 5 with a kernel of size 3 gives 3 outputs, not $5 \cdot 3 + 1 = 16$: a minus sign is missing. The
# layer applies one affine map per window and has no hidden layer. **Correction:**
# $(x \star w)_i = \sum_{j=1}^{k} x_{i+j-1}\, w_j$ with signal $x$ and kernel $w$; output size $H - k + 1$; the same
# *affine map* at all locations.

# %%
assert layer(x).shape == (5 - 3 + 1,)
try:
    jb.conv(w[:, None], x[:, None, None])
except ValueError as error:
    print(error)
windows = jnp.stack([x[i : i + 3] for i in range(3)])  # one window in each row
assert np.allclose(windows @ w, layer(x))

# %% [markdown]
# In mathematics a convolution flips the kernel; the operation of a convolutional layer is called a cross-correlation.
# For $(1, \dots, 5)$ and $(1, 0, -1)$ the two differ in sign. For a learned kernel the difference does not matter.

# %%
ramp, difference = (
    jnp.arange(1.0, 6.0)[:, None],
    jnp.array([1.0, 0.0, -1.0])[:, None, None],
)
assert jb.conv(ramp, difference)[:, 0].tolist() == [-2, -2, -2]
assert (
    jb.conv(ramp, difference[::-1])[:, 0].tolist()
    == np.convolve(ramp[:, 0], [1, 0, -1], "valid").tolist()
    == [2, 2, 2]
)

# %% [markdown]
# ### Images
#
# With two spatial axes and several channels the operation is the same. A layer from $28 \times 28$ pixels with 3 color
# channels to 8 channels with $3 \times 3$ kernels has 224 parameters. The dense layer between the same shapes has
# 12,725,024.

# %%
images = jnp.zeros((28, 28, 3))
convolution = jb.Conv(8, (3, 3))
conv_params = convolution.init(jax.random.key(0), images)
out_shape = convolution.apply(conv_params, images).shape
assert jb.count_params(conv_params) == (3 * 3 * 3 + 1) * 8 == 224
assert out_shape == (26, 26, 8) and (images.size + 1) * np.prod(out_shape) == 12_725_024

# %% [markdown]
# Feature maps of three fixed kernels: the first detects vertical edges, the second detects horizontal edges, the third
# blurs. Kernels learned from photographs often look like these.

# %%
rows, columns = np.mgrid[:24, :24]
picture = (
    ((rows - 8) ** 2 + (columns - 8) ** 2 < 30)
    | ((rows > 13) & (columns > 13) & (rows < 21) & (columns < 21))
).astype(np.float32)
upright = np.outer([1, 2, 1], [-1, 0, 1]) / 4
kernels = np.stack([upright, upright.T, np.full((3, 3), 1 / 9)], -1)[:, :, None].astype(
    np.float32
)
maps = jb.conv(jnp.asarray(picture)[..., None], jnp.asarray(kernels), padding="same")
figure, axes = plt.subplots(figsize=(8, 2.4), layout="constrained")
axes = plotting.tiles([picture, *np.moveaxis(maps, -1, 0)], axes)
assert maps[8, 8, :2].tolist() == [0, 0]  # no edge in the middle of the disc

# %% [markdown]
# ### Equivariance and invariance
#
# > **The lecture notes print** that convolution learns "translation-*invariant* features".
#
# **Counterexample:** shift the image by three pixels, and the output changes: it shifts by three pixels, too.
# **Correction:** a convolution is **equivariant**,
# $\mathrm{conv}(\mathrm{shift}(x)) = \mathrm{shift}(\mathrm{conv}(x))$. A maximum or a mean over all positions after it
# is invariant.

# %%
# a margin, so that the shift wraps around only zeros
small = jnp.pad(jnp.asarray(picture)[2:14, 2:14], 6)[..., None]
moved = jnp.roll(small, 3, axis=1)
detect = lambda x: jb.relu(jb.conv(x, jnp.asarray(kernels), padding="same"))
assert abs(detect(moved) - detect(small)).max() > 0.5  # not invariant
# equivariant
assert np.allclose(detect(moved), jnp.roll(detect(small), 3, axis=1), atol=1e-6)
pooled = [jb.layers.global_max_pool(detect(x), 2) for x in (small, moved)]
assert np.allclose(*pooled, atol=1e-6)  # invariant

# %% [markdown]
# ### Receptive field
#
# An output of one layer with kernel size 3 depends on 3 inputs, of two layers on 5, of $L$ layers on $2L + 1$.
# `receptive_field` computes this by differentiation. Deeper layers combine larger regions of the input.


# %%
def blurs(depth):
    def f(x):
        for _ in range(depth):
            x = jb.conv(x, jnp.ones((3, 1, 1)), padding="same")
        return x

    return f


seen = np.stack(
    [
        jb.inspection.receptive_field(blurs(depth), (15, 1), 7)[:, 0]
        for depth in range(1, 6)
    ]
)
figure, axes = plt.subplots(figsize=(5, 2), layout="constrained")
axes = plotting.matrix(seen, axes, rows=range(1, 6), numbers="")
axes.set(ylabel="layers", xlabel="position")
assert seen.sum(1).tolist() == [2 * depth + 1 for depth in range(1, 6)]

# %% [markdown]
# ### Comparison with a dense net
#
# The task: classify a noisy signal by its bump, "up, then down" or "down, then up". In the training data bumps occur
# only in the left half, in the test data only in the right half. The convolutional net generalizes to the right half
# without training data there; the dense net does not.


# %%
@jax.jit
def bumps(key, low, high, n=256):
    kind_key, place_key, noise_key = jax.random.split(key, 3)
    kind = jax.random.bernoulli(kind_key, 0.5, (n,)).astype(jnp.int32)
    place = jax.random.randint(place_key, (n, 1), low, high)
    t = jnp.arange(32) - place
    shape = jnp.where((t >= 0) & (t < 3), 1.0, 0.0) - jnp.where(
        (t >= 3) & (t < 6), 1.0, 0.0
    )
    return (2 * kind[:, None] - 1) * shape + 0.2 * jax.random.normal(
        noise_key, (n, 32)
    ), kind


training, testing = bumps(jax.random.key(0), 0, 10), bumps(jax.random.key(1), 16, 26)
nets = {
    "dense": jb.MLP(32, 2),
    "convolutional": jb.Serial(
        lambda x: x[..., None], jb.Conv(8, 6), jb.relu, jb.GlobalMaxPool(1), jb.Dense(2)
    ),
}
scores = {}
for name, net in nets.items():
    fitted = jb.fit(
        net,
        jb.softmax_cross_entropy,
        optax.adam(1e-2),
        training,
        key=jax.random.key(2),
        epochs=20,
        progress=False,
    )
    predict = jax.jit(lambda params, x, net=net: jb.predict_class(net.apply(params, x)))
    scores[name] = [
        float(np.mean(predict(fitted.params, x) == np.asarray(y)))
        for x, y in (training, testing)
    ]
figure, axes = plt.subplots(figsize=(5, 2.6), layout="constrained")
axes = plotting.bars(scores, ["left half (training)", "right half (test)"], axes)
axes.set_ylim(0, 1.4)  # room for the legend
assert (
    min(scores["convolutional"]) > 0.95
    and scores["dense"][0] > 0.95
    and scores["dense"][1] < 0.8
)

# %% [markdown]
# ### Transposed convolution
#
# The transposed matrix $A^\top$ maps a short signal to a longer one: each entry adds a scaled copy of the kernel.
# Generative models of images use it for upsampling. It is the adjoint,
# $\langle A x, y \rangle = \langle x, A^\top y \rangle$, and not the inverse.
#
# > **One lecture prints** for it $(x \star a)_i = \sum_{i=1}^{k} x_j a_{i+j-1}$: the sum runs over the free index.
#
# Even with a sum over $j$ this is an ordinary correlation. **Counterexample:** for $x = w = (1, 2, 3)$ it gives
# $(14, 8, 3)$, which is no longer than $x$. **Correction:** $y_i = \sum_j x_{i-j+1} w_j$, which is $(1, 4, 10, 12, 9)$,
# of length $H + k - 1$.

# %%
x3 = jnp.array([1.0, 2.0, 3.0])
# as printed, over j
assert [sum(x3[j] * x3[i + j] for j in range(3 - i)) for i in range(3)] == [14, 8, 3]
assert jb.conv_transpose(x3[:, None], x3[:, None, None])[:, 0].tolist() == [
    1,
    4,
    10,
    12,
    9,
]
back = lambda y: jb.conv_transpose(y[:, None], w[:, None, None])[:, 0]
assert np.allclose(jb.inspection.as_dense(back, (3,)), A.T)

# %% [markdown]
# ## 2. Recurrence: weight sharing over time
#
# A sequence may have any length. A recurrent layer reads one time step at a time and keeps a **state** $h$:
# $(y_t, h_t) = g(a_t, h_{t-1})$ with the same $g$ at all steps, and $h_0 = 0$ by default.
#
# > **One lecture prints** $f_l(a_t)$ with $h_t = g(a_{t-1}, h_{t-1})$, and "MLPs" for the gates.
#
# **Counterexample:** with $g(a, h) = a + h/2$ and $a = (1, 0, 0)$ the output of the printed form at the first step does
# not depend on the first input: it gives $0, 1, 0.5$. **Correction:** $(y_t, h_t) = g(a_t, h_{t-1})$ gives
# $1, 0.5, 0.25$. A gate is one affine map followed by a sigmoid.

# %%
halving = jb.RNN(1, activation=jb.identity, use_bias=False, recurrent_bias=False)
halving_params = {"kernel": jnp.ones((1, 1)), "recurrent_kernel": jnp.full((1, 1), 0.5)}
run = lambda a: halving.apply(halving_params, a[:, None])[:, 0]
assert run(jnp.array([1.0, 0.0, 0.0])).tolist() == [1, 0.5, 0.25]
assert run(jnp.ones(4)).tolist() == [1, 1.5, 1.75, 1.875]
h, late = 0.0, []
for a in (0.0, 1.0, 0.0):  # as printed: each step reads the input of the step before
    h = a + h / 2
    late.append(h)
assert late == [0, 1, 0.5]

# %% [markdown]
# The matrix of this linear layer is lower triangular, since no output depends on later inputs. Its diagonals are
# constant, since the map is the same at all steps. It is a convolution over all past inputs.

# %%
M = jb.inspection.as_dense(run, (6,))
assert np.allclose(M, np.tril(0.5 ** (np.arange(6)[:, None] - np.arange(6.0))))
figure, axes = plt.subplots(figsize=(4, 3), layout="constrained")
axes = plotting.matrix(M, axes)

# %% [markdown]
# The number of parameters does not depend on the length of the sequence. The gated recurrent unit (GRU) and the long
# short-term memory (LSTM) are larger cells of the same kind. With 2 inputs and 3 hidden units:

# %%
sequence = jax.ShapeDtypeStruct((7, 2), jnp.float32)
sizes = {
    layer.__name__: jb.count_params(
        jax.eval_shape(layer(3).init, jax.random.key(0), sequence)
    )
    for layer in (jb.RNN, jb.GRU, jb.LSTM)
}
assert sizes == {"RNN": 21, "GRU": 63, "LSTM": 84}
sizes

# %% [markdown]
# Why gates? The gradient with respect to an early input contains $\partial h_T / \partial h_0$, a product of $T$
# matrices. In the simple cell each factor contains $\tanh' < 1$, and the product vanishes. The LSTM multiplies its cell
# state by a forget gate, which can stay near 1. Below: random params; the LSTM's forget gate has a bias of 5.


# %%
def memory(cell, part, steps=60):
    inputs = jax.random.normal(jax.random.key(1), (steps, 2))
    cell_params, carry = cell.init(jax.random.key(0), inputs[0])

    def states(first):
        start = first if part is None else {**carry, part: first}
        step = lambda h, a: (
            lambda after: (after, after if part is None else after[part])
        )(cell.apply(cell_params, h, a)[1])
        return jax.lax.scan(step, start, inputs)[1]

    # (steps, 8, 8)
    jacobians = jax.jit(jax.jacfwd(states))(carry if part is None else carry[part])
    return np.linalg.norm(jacobians, axis=(1, 2))


norms = {
    "RNN": memory(jb.RNNCell(8), None),
    "LSTM": memory(jb.LSTMCell(8, forget_bias=5.0), "cell"),
}
figure, axes = plt.subplots(figsize=(5, 2.8), layout="constrained")
plotting.curves(
    range(1, 61), {name: np.log10(norm) for name, norm in norms.items()}, axes
)
axes.set(xlabel="T", ylabel="log10 of the norm of dh_T / dh_0")
assert norms["RNN"][-1] < 1e-3 < 0.1 < norms["LSTM"][-1]

# %% [markdown]
# ## 3. Graph layers: weight sharing over edges
#
# Molecules, road networks and social networks have neighbors but no order of them. The template of a graph layer is
# $x' = \mathrm{Agg}(\mathrm{Proj}(\mathrm{Neigh}(x)))$: take the features of the neighbors, apply a small net to each,
# and aggregate by a sum, mean or maximum. The example is a path of four nodes; each node sums the features of its
# neighbors.

# %%
adjacency = jnp.array([[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]])
features = jnp.array([[1.0, 0.0], [2.0, 1.0], [3.0, 0.0], [4.0, 1.0]])
graph = jb.layers.adjacency_graph(features, adjacency)
neighbors = jb.layers.aggregate(features[graph.senders], graph.receivers, n=4)
assert np.allclose(neighbors, adjacency @ features)

# %% [markdown]
# With a kernel $W$ the layer is $X \mapsto A X W$. Its matrix is the Kronecker product $A \otimes W^\top$: zero where
# there is no edge, and the same block $W^\top$ wherever there is one.

# %%
W = jnp.array([[1.0, 2.0], [0.5, -1.0]])
graph_layer = lambda X: jb.layers.aggregate(X[graph.senders], graph.receivers, n=4) @ W
K = jb.inspection.as_dense(graph_layer, (4, 2))
assert np.allclose(K, np.kron(adjacency, W.T))
figure, axes = plt.subplots(figsize=(4, 3.2), layout="constrained")
axes = plotting.matrix(K, axes)

# %% [markdown]
# The general form has features of edges, of nodes and of the whole graph, and a net for each.
#
# > **One lecture prints** $E_{l-1}, V_{-1}, u_{-1} \to E_l, V_l, u^l$.
#
# Two indices are wrong; the correct form is $(E_{l-1}, V_{l-1}, u_{l-1}) \mapsto (E_l, V_l, u_l)$. With $V_{-1}$ the
# second layer would not use the output of the first. `GraphBlock` computes this map. Nodes have no order, so a
# permutation of the nodes permutes the node outputs and leaves the global output unchanged:

# %%
block = jb.GraphBlock(edge=jb.MLP(8, 3), node=jb.MLP(8, 3), graph=jb.Dense(2))
block_params = jax.jit(block.init)(jax.random.key(0), graph)
order = jnp.array([2, 0, 3, 1])  # the new node i is the old node order[i]
place = jnp.argsort(order)
renumbered = graph._replace(
    nodes=features[order],
    senders=place[graph.senders],
    receivers=place[graph.receivers],
)
run_block = jax.jit(block.apply)
before, after = run_block(block_params, graph), run_block(block_params, renumbered)
assert np.allclose(after.nodes, before.nodes[order], atol=1e-5)
assert np.allclose(after.global_features, before.global_features, atol=1e-5)

# %% [markdown]
# ## 4. Comparison of the weight matrices
#
# The matrices of five layers on six positions. Attention is the subject of notebook 6: its matrix is full, as that of a
# dense layer, but it is computed from the data.

# %%
ring = np.roll(np.eye(6), 1, 0) + np.roll(np.eye(6), -1, 0)
data = jax.random.normal(jax.random.key(3), (6, 1))
matrices = {
    "dense": jax.random.normal(jax.random.key(4), (6, 6)),
    "convolution": jb.inspection.as_dense(
        lambda x: jb.conv(x[:, None], w[:, None, None], padding="same"), (6,)
    ),
    "recurrence": M,
    "graph (a ring)": ring,
    "attention": jax.jit(jb.attention_weights)(data[:, None], data[:, None])[0],
}
figure, axes = plt.subplots(1, 5, figsize=(11, 2.4), layout="constrained")
for ax, (name, matrix) in zip(axes, matrices.items(), strict=True):
    plotting.matrix(matrix, ax, numbers="").set_title(name)
filled = {name: np.count_nonzero(matrix) for name, matrix in matrices.items()}
assert filled == {
    "dense": 36,
    "convolution": 16,
    "recurrence": 21,
    "graph (a ring)": 12,
    "attention": 36,
}

# %% [markdown]
# ## 5. Feature maps
#
# Structured layers are one way to use prior knowledge. An older way is a **feature map** $\Phi$ before a linear layer,
# $f(x) = w^\top \Phi(x) + b$. In code this is `Serial(phi, Dense(1))`, where `phi` is any function or any layer. There
# are three kinds of feature maps.
#
# **Generic**: radial basis functions around examples, or random Fourier features. They assume only that nearby inputs
# have similar outputs. In one dimension this is a strong assumption. In many dimensions few points are close to each
# other: for two random points of the unit cube the Gaussian kernel $e^{-\|x - y\|^2}$ is typically $e^{-D/6}$.

# %%
line = jnp.linspace(-1, 1, 40)[:, None]
random_waves = jb.layers.RandomFourierFeatures(30, gamma=4.0)
# The features are random and not trained.
waves = jax.jit(lambda key: random_waves.apply(random_waves.init(key, line), line))(
    jax.random.key(0)
)
best = jb.layers.linear_regression(waves, jnp.sin(5 * line), ridge=1e-6)
assert abs(jb.affine(waves, **best) - jnp.sin(5 * line)).max() < 0.05
pair = np.random.default_rng(0).random((2, 1000))
kernel_at = {D: np.exp(-np.sum((pair[0, :D] - pair[1, :D]) ** 2)) for D in (10, 1000)}
print({D: f"{value:.0e}" for D, value in kernel_at.items()})
assert kernel_at[10] > 0.01 and kernel_at[1000] < 1e-60

# %% [markdown]
# **Hand-crafted**, from domain knowledge: for text, lower-case words without endings; for audio, the energy at each
# pitch; for images, the distribution of edge directions. The next cell computes the main part of such a descriptor
# (SIFT, 2004) in four lines. By construction it does not depend on brightness and contrast. It needs no training data,
# and it cannot adapt to them.


# %%
def orientations(image, bins=4):
    down, across = np.gradient(image)
    # modulo 180 degrees
    angle = np.round(np.degrees(np.arctan2(down, across)) % 180 / (180 / bins)) % bins
    strength = np.array([np.hypot(down, across)[angle == k].sum() for k in range(bins)])
    return strength / strength.sum()


stripes = {
    angle: np.sin(
        np.cos(np.radians(angle)) * columns + np.sin(np.radians(angle)) * rows
    )
    for angle in (0, 45, 90)
}
described = {
    f"{angle} degrees": orientations(image) for angle, image in stripes.items()
}
assert [int(value.argmax()) for value in described.values()] == [0, 1, 2]
assert np.allclose(orientations(0.3 * stripes[45] + 7), described["45 degrees"])
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 2.6), layout="constrained")
plotting.tiles(list(stripes.values()), left, columns=3)
axes = plotting.bars(described, ["0", "45", "90", "135"], right, numbers="")
axes.set(xlabel="direction of the gradient, degrees", ylabel="share")

# %% [markdown]
# **Learned**: $\Phi$ has params, too. Earlier methods learned them *separately*, layer by layer and without labels, for
# example by minimizing a reconstruction error, and used the labels only for the last layer. This rarely worked beyond
# two layers. The example shows how it can fail: nine of ten inputs have a large variance and one has a small variance;
# the label depends on the latter. The two features with the smallest reconstruction error are high-variance directions,
# and a classifier on them performs at chance level. The same net, with both parts trained *jointly* on the
# classification loss, finds the relevant input.

# %%
loud_key, label_key = jax.random.split(jax.random.key(1))
ten = np.asarray(jax.random.normal(loud_key, (600, 10))) * np.array(
    [3.0] * 9 + [0.5], np.float32
)
which = (ten[:, 9] > 0).astype(np.int32)
known, fresh = slice(0, 400), slice(400, 600)
# the two principal directions
restoring = np.linalg.svd(ten[known], full_matrices=False)[2][:2].T
classifier = jax.jit(jb.layers.logistic_regression)(
    ten[known] @ restoring, which[known]
)
separately = np.mean(
    (np.asarray(jb.affine(ten[fresh] @ restoring, **classifier))[:, 0] > 0)
    == which[fresh]
)
net = jb.Serial(phi=jb.Serial(jb.Dense(2), jb.tanh), classify=jb.Dense(2))
how = dict(key=jax.random.key(2), epochs=20, progress=False)
fitted = jb.fit(
    net, jb.softmax_cross_entropy, optax.adam(2e-2), (ten[known], which[known]), **how
)
jointly = jax.jit(lambda params, x, y: jb.accuracy(net.apply(params, x), y))(
    fitted.params, ten[fresh], which[fresh]
)
print(
    f"test accuracy: separate training {separately:.0%}, joint training {jointly:.0%}"
)
assert separately < 0.65 and jointly > 0.9

# %% [markdown]
# Joint training has two costs: the loss is not convex, even where the classifier is linear, and more data are needed.
# The structured layers of this notebook are a compromise: their form is designed, and their parameters are learned.

# %% [markdown]
# ## Homework
#
# **1.** Stride and dilation: "look them up online", one lecture says. What do they do, and how long is the output?
#
# **2.** One lecture says that a convolution without padding "effectively subsamples". Is this true?
#
# **3.** Graph layers "generalize attention". In which sense?
#
# **4.** "So are deep feed-forward nets what we should work with?" Answer with the numbers of this notebook.
#
# ## Solutions
#
# ### 1. Stride and dilation
#
# With *stride* $s$ the window moves by $s$ positions at a time. With *dilation* $d$ the entries of the kernel are $d$
# positions apart, so that it covers $d(k-1) + 1$ positions. With $p$ zeros at both ends the number of outputs is
#
# $$ \left\lfloor \frac{H + 2p - d(k-1) - 1}{s} \right\rfloor + 1 . $$
#
# The output of the transposed convolution has length $(H - 1)s - 2p + d(k-1) + 1$.

# %%
for H, k, s, p, d, expected in (
    (5, 3, 1, 0, 1, 3),
    (28, 5, 1, 0, 1, 24),
    (32, 3, 2, 1, 1, 16),
    (32, 3, 1, 0, 2, 28),
):
    kernel = jnp.ones((k, 1, 1))
    y = jb.conv(jnp.zeros((H, 1)), kernel, stride=s, padding=p, dilation=d)
    assert len(y) == expected == (H + 2 * p - d * (k - 1) - 1) // s + 1
assert (
    len(jb.conv_transpose(jnp.zeros((4, 1)), jnp.ones((3, 1, 1)), stride=2))
    == (4 - 1) * 2 + 3
    == 9
)

# %% [markdown]
# ### 2. Convolution without padding
#
# No. Without padding the output is $k - 1$ positions shorter: 28 inputs give 24 outputs with kernel size 5. Adjacent
# outputs still use windows that differ by one step. A stride subsamples: 32 to 16 above.
#
# ### 3. Attention is a graph layer
#
# Take the complete graph, in which every node is a neighbor of every node, itself included. Let the aggregation be a
# weighted mean with weights $\mathrm{softmax}_j \langle q_i, k_j \rangle$. This is attention, entry by entry. On a
# sparse graph it is attention with a mask: each node attends to its neighbors only.

# %%
q, k, v = jax.random.normal(jax.random.key(5), (3, 4, 2))
everyone = jb.layers.complete_graph(v)


@jax.jit
def over_edges(q, k, v, senders, receivers):
    match = jnp.sum(q[receivers] * k[senders], -1)
    return jb.layers.aggregate(v[senders], receivers, 4, how="softmax", logits=match)


by_graph = over_edges(q, k, v, everyone.senders, everyone.receivers)
assert np.allclose(by_graph, jax.jit(jb.layers.soft_lookup)(q, k, v), atol=1e-6)

sparse = over_edges(q, k, v, graph.senders, graph.receivers)
mask = (np.asarray(adjacency) > 0)[None]
masked = jax.jit(
    lambda q, k, v: jb.attention(
        q[:, None], k[:, None], v[:, None], scale=None, mask=mask
    )[:, 0]
)(q, k, v)
assert np.allclose(sparse, masked, atol=1e-6)

# %% [markdown]
# ### 4. Dense layers and structure
#
# Usually not. A dense layer *can* represent every convolution, recurrence or graph layer: the matrices are shown above.
# But it must learn each entry: 12,725,024 parameters instead of 224 for one layer on images. On bumps in the right half
# of the signals, which are not in the training data, it performs at chance level. It is better to build known structure
# into the layer: locality, translation equivariance, permutation equivariance.

# %%
assert scores["convolutional"][1] - scores["dense"][1] > 0.2
