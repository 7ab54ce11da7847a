# %% [markdown]
# # Inductive bias: what may a layer take for granted?
#
# A dense layer connects everything with everything. It can do whatever the layers of this notebook can do, and it
# believes nothing: shuffle the pixels of all images alike, and it learns as well, or as badly, as before. "So are deep
# feed-forward nets what we should work with?" the lecture notes ask, and answer: usually not. Images, sequences and
# graphs have structure, and a layer that takes it for granted need not learn it.
#
# **Which structure can be built in, and what does that look like in the weight matrix?** Every answer here is a dense
# layer with a restricted matrix, and `as_dense` shows it.
#
# What is claimed in the text is checked by an `assert` in the cell below it. At the end there is homework, with
# solutions. The lectures behind it: Diehl, *lecture notes* (2023), section 1.1; Cevher, *Mathematics of Data*; Krapac &
# Šegvić, *Deep feed-forward models* (features). Where a printed formula slips, you find the printed form, a number that
# breaks it, and the corrected form.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import jaxblocks as jb
from jaxblocks import plotting

# %% [markdown]
# ## 1. Convolution: the same small map everywhere
#
# A signal $x = (1, -1, 2, 0, 3)$ and a **kernel** $w = (1, 2, -1)$. Lay the kernel on the first three numbers, multiply
# and add; move it by one; again. After a rectifier, that is a convolutional layer:

# %%
x, w = jnp.array([1.0, -1.0, 2.0, 0.0, 3.0]), jnp.array([1.0, 2.0, -1.0])
layer = lambda x: jb.conv(x[:, None], w[:, None, None])[:, 0]  # (time, channels); window, channels in, channels out
assert layer(x).tolist() == [-3, 3, -1]
assert jb.relu(layer(x)).tolist() == [0, 3, 0]
assert np.allclose(layer(x), np.correlate(x, w))

# %% [markdown]
# As a matrix it has two properties. It is **banded**: an output sees only neighbors. And its diagonals are constant:
# the same weights everywhere. It is called a Toeplitz matrix, and has 3 parameters in place of 15.

# %%
A = jb.structure.as_dense(layer, (5,))
assert jnp.allclose(A @ x, layer(x))
assert all(len(set(np.diagonal(A, k).tolist())) == 1 for k in range(-2, 5))
figure, axes = plt.subplots(figsize=(4, 2.6), layout="constrained")
axes = plotting.matrix(A, axes)

# %% [markdown]
# Sharing weights has a simple consequence for learning: the gradient with respect to a shared weight is the *sum* of
# the gradients at all the places where it stands.

# %%
loss = lambda w: jnp.sum(jb.conv(x[:, None], w[:, None, None])[:, 0] ** 2)
dense_gradient = jax.grad(lambda A: jnp.sum((A @ x) ** 2))(A)
summed = [np.diagonal(dense_gradient, k).sum() for k in range(3)]
assert np.allclose(jax.grad(loss)(w), summed)

# %% [markdown]
# > **One lecture prints** $(x \star a)_i = \sum_j x_{i+j-1} a_j$, with the signal first, and then the layer as
# > $X \star a$, with the kernel first; sizes as "$H\, k + 1$"; and calls the layer "an MLP across spatial locations".
#
# **Numbers that break it.** Signal and kernel cannot change places: the signal does not fit into the kernel. A signal
# of 5 with a kernel of 3 gives 3 outputs, not $5 \cdot 3 + 1 = 16$: a minus sign was lost. And the layer has one affine
# map per window, no hidden layer. **Corrected:** $(x \star w)_i = \sum_{j=1}^{k} x_{i+j-1}\, w_j$ with signal $x$ and
# kernel $w$; output size $H - k + 1$; the same *affine map* at all locations.

# %%
assert layer(x).shape == (5 - 3 + 1,)
try:
    jb.conv(w[:, None], x[:, None, None])
except ValueError as error:
    print(error)
windows = jnp.stack([x[i : i + 3] for i in range(3)])  # one window in each row
assert jnp.allclose(windows @ w, layer(x))

# %% [markdown]
# A word about the word. Mathematicians flip the kernel before they convolve, and call what we do a cross-correlation.
# For $(1, \dots, 5)$ and $(1, 0, -1)$ the two differ in sign. A net learns its kernels, so it does not mind.

# %%
ramp, difference = jnp.arange(1.0, 6.0)[:, None], jnp.array([1.0, 0.0, -1.0])[:, None, None]
assert jb.conv(ramp, difference)[:, 0].tolist() == [-2, -2, -2]
assert (
    jb.conv(ramp, difference[::-1])[:, 0].tolist() == np.convolve(ramp[:, 0], [1, 0, -1], "valid").tolist() == [2, 2, 2]
)

# %% [markdown]
# ### Images
#
# With two axes and several channels it is the same. A layer from $28 \times 28$ pixels of 3 colors to 8 channels with
# $3 \times 3$ windows has 224 parameters. The dense layer between the same shapes has 12,725,024.

# %%
images = jnp.zeros((28, 28, 3))
convolution = jb.Conv(8, (3, 3))
conv_params = convolution.init(jax.random.key(0), images)
out_shape = convolution.apply(conv_params, images).shape
assert jb.count_params(conv_params) == (3 * 3 * 3 + 1) * 8 == 224
assert out_shape == (26, 26, 8) and (images.size + 1) * np.prod(out_shape) == 12_725_024

# %% [markdown]
# What do kernels see? A picture, and what three kernels by hand make of it. One finds edges between left and right, one
# between above and below, one blurs. Kernels that are learned from photographs often look like these.

# %%
rows, columns = np.mgrid[:24, :24]
picture = (
    ((rows - 8) ** 2 + (columns - 8) ** 2 < 30) | ((rows > 13) & (columns > 13) & (rows < 21) & (columns < 21))
).astype(np.float32)
upright = np.outer([1, 2, 1], [-1, 0, 1]) / 4
kernels = np.stack([upright, upright.T, np.full((3, 3), 1 / 9)], -1)[:, :, None].astype(np.float32)
maps = jb.conv(jnp.asarray(picture)[..., None], jnp.asarray(kernels), padding="same")
figure, axes = plt.subplots(figsize=(8, 2.4), layout="constrained")
axes = plotting.tiles([picture, *np.moveaxis(maps, -1, 0)], axes)
assert maps[8, 8, :2].tolist() == [0, 0]  # in the middle of the disc there is no edge

# %% [markdown]
# ### Equivariant, not invariant
#
# > **The lecture notes print** that convolution learns "translation-*invariant* features".
#
# **A number that breaks it:** move the picture by three pixels, and the output changes. It moves by three pixels, too.
# **Corrected:** it is **equivariant**, $\mathrm{conv}(\mathrm{shift}(x)) = \mathrm{shift}(\mathrm{conv}(x))$. Invariant
# is what comes after it if one forgets the place, by a maximum or a mean over all positions.

# %%
small = jnp.pad(jnp.asarray(picture)[2:14, 2:14], 6)[..., None]  # a margin, so that nothing leaves the picture
moved = jnp.roll(small, 3, axis=1)
detect = lambda x: jb.relu(jb.conv(x, jnp.asarray(kernels), padding="same"))
assert abs(detect(moved) - detect(small)).max() > 0.5  # not invariant
assert jnp.allclose(detect(moved), jnp.roll(detect(small), 3, axis=1), atol=1e-6)  # equivariant
pooled = [jb.layers.global_max_pool(detect(x), 2) for x in (small, moved)]
assert jnp.allclose(*pooled, atol=1e-6)  # invariant

# %% [markdown]
# ### How far an output sees
#
# One layer with windows of 3 sees 3 numbers, two see 5, $L$ layers $2L + 1$. `receptive_field` finds it by
# differentiating. That is the hierarchy: first edges, then corners, then eyes.


# %%
def blurs(depth):
    def f(x):
        for _ in range(depth):
            x = jb.conv(x, jnp.ones((3, 1, 1)), padding="same")
        return x

    return f


seen = np.stack([jb.structure.receptive_field(blurs(depth), (15, 1), 7)[:, 0] for depth in range(1, 6)])
figure, axes = plt.subplots(figsize=(5, 2), layout="constrained")
axes = plotting.matrix(seen, axes, rows=range(1, 6), numbers="")
axes.set(ylabel="layers", xlabel="position")
assert seen.sum(1).tolist() == [2 * depth + 1 for depth in range(1, 6)]

# %% [markdown]
# ### Is it worth it?
#
# The task: a bump "up, then down" or "down, then up", in noise; which one is it? In the training data bumps occur in
# the left half only, in the test data in the right half. The convolutional net was never told about the right half. It
# need not be.


# %%
def bumps(key, low, high, n=256):
    kind_key, place_key, noise_key = jax.random.split(key, 3)
    kind = jax.random.bernoulli(kind_key, 0.5, (n,)).astype(jnp.int32)
    place = jax.random.randint(place_key, (n, 1), low, high)
    t = jnp.arange(32) - place
    shape = jnp.where((t >= 0) & (t < 3), 1.0, 0.0) - jnp.where((t >= 3) & (t < 6), 1.0, 0.0)
    return (2 * kind[:, None] - 1) * shape + 0.2 * jax.random.normal(noise_key, (n, 32)), kind


training, testing = bumps(jax.random.key(0), 0, 10), bumps(jax.random.key(1), 16, 26)
nets = {
    "dense": jb.MLP(32, 2),
    "convolutional": jb.Serial(lambda x: x[..., None], jb.Conv(8, 6), jb.relu, jb.GlobalMaxPool(1), jb.Dense(2)),
}
scores = {}
for name, net in nets.items():
    fitted = jb.fit(
        net, jb.softmax_cross_entropy, optax.adam(1e-2), training, key=jax.random.key(2), epochs=20, progress=False
    )
    right = [jnp.mean(net.apply(fitted.params, x).argmax(-1) == y) for x, y in (training, testing)]
    scores[name] = [float(r) for r in right]
figure, axes = plt.subplots(figsize=(5, 2.6), layout="constrained")
axes = plotting.bars(scores, ["left half, trained", "right half, new"], axes)
axes.set_ylim(0, 1.4)  # room for the legend
assert min(scores["convolutional"]) > 0.95 and scores["dense"][0] > 0.95 and scores["dense"][1] < 0.8

# %% [markdown]
# ### And back: the transposed convolution
#
# The transposed matrix $A^\top$ takes a small signal to a larger one: each number spreads a copy of the kernel. It is
# used to make images. It is the adjoint, $\langle A x, y \rangle = \langle x, A^\top y \rangle$, and not the inverse.
#
# > **One lecture prints** for it $(x \star a)_i = \sum_{i=1}^{k} x_j a_{i+j-1}$, the sum running over the free index.
#
# Even with a sum over $j$ that is an ordinary correlation. **A number that breaks it:** for $x = w = (1, 2, 3)$ it
# gives $(14, 8, 3)$, which is no longer than $x$. **Corrected:** $y_i = \sum_j x_{i-j+1} w_j$, which is $(1, 4, 10, 12,
# 9)$, of length $H + k - 1$.

# %%
x3 = jnp.array([1.0, 2.0, 3.0])
assert [sum(x3[j] * x3[i + j] for j in range(3 - i)) for i in range(3)] == [14, 8, 3]  # as printed, over j
assert jb.conv_transpose(x3[:, None], x3[:, None, None])[:, 0].tolist() == [1, 4, 10, 12, 9]
back = lambda y: jb.conv_transpose(y[:, None], w[:, None, None])[:, 0]
assert jnp.allclose(jb.structure.as_dense(back, (3,)), A.T)

# %% [markdown]
# ## 2. Recurrence: the same map at every time
#
# A sequence may have any length. A recurrent layer reads one step at a time and remembers in a **state** $h$:
# $(y_t, h_t) = g(a_t, h_{t-1})$ with one and the same $g$, and $h_0 = 0$ unless told otherwise.
#
# > **One lecture prints** $f_l(a_t)$ with $h_t = g(a_{t-1}, h_{t-1})$, and "MLPs" for the gates.
#
# **A number that breaks it:** with $g(a, h) = a + h/2$ and $a = (1, 0, 0)$ the printed form has not heard of the 1 when
# it answers at time 1: it says $0, 1, 0.5$. **Corrected:** $(y_t, h_t) = g(a_t, h_{t-1})$ says $1, 0.5, 0.25$. A gate
# is one affine map and a sigmoid.

# %%
halving = jb.RNN(1, activation=jb.identity, use_bias=False, recurrent_bias=False)
halving_params = {"kernel": jnp.ones((1, 1)), "recurrent_kernel": jnp.full((1, 1), 0.5)}
run = lambda a: halving.apply(halving_params, a[:, None])[:, 0]
assert run(jnp.array([1.0, 0.0, 0.0])).tolist() == [1, 0.5, 0.25]
assert run(jnp.ones(4)).tolist() == [1, 1.5, 1.75, 1.875]
h, late = 0.0, []
for a in (0.0, 1.0, 0.0):  # as printed: at each time the input of the time before
    h = a + h / 2
    late.append(h)
assert late == [0, 1, 0.5]

# %% [markdown]
# As a matrix (this one is linear): lower triangular, since no output depends on the future, and constant along
# diagonals, since the map is the same at all times. It is a convolution, as long as the past.

# %%
M = jb.structure.as_dense(run, (6,))
assert jnp.allclose(M, jnp.tril(0.5 ** (jnp.arange(6)[:, None] - jnp.arange(6.0))))
figure, axes = plt.subplots(figsize=(4, 3), layout="constrained")
axes = plotting.matrix(M, axes)

# %% [markdown]
# The number of parameters does not depend on the length. The gated recurrent unit (GRU) and long short-term memory
# (LSTM) are larger cells of the same kind. With 2 inputs and 3 numbers to remember:

# %%
sequence = jnp.zeros((7, 2))
sizes = {
    layer.__name__: jb.count_params(layer(3).init(jax.random.key(0), sequence)) for layer in (jb.RNN, jb.GRU, jb.LSTM)
}
assert sizes == {"RNN": 21, "GRU": 63, "LSTM": 84}
sizes

# %% [markdown]
# Why gates? Learning that something at the beginning mattered takes $\partial h_T / \partial h_0$, a product of $T$
# matrices. In the simple cell each holds a $\tanh' < 1$, and the product vanishes. The LSTM's cell is multiplied by a
# forget gate, which can stay near 1. Here with random params, the LSTM's forget gate opened by a bias of 5.


# %%
def memory(cell, part, steps=60):
    inputs = jax.random.normal(jax.random.key(1), (steps, 2))
    cell_params, carry = cell.init(jax.random.key(0), inputs[0])

    def states(first):
        start = first if part is None else {**carry, part: first}
        step = lambda h, a: (lambda after: (after, after if part is None else after[part]))(
            cell.apply(cell_params, h, a)[1]
        )
        return jax.lax.scan(step, start, inputs)[1]

    jacobians = jax.jit(jax.jacfwd(states))(carry if part is None else carry[part])  # (steps, 8, 8)
    return np.linalg.norm(jacobians, axis=(1, 2))


norms = {"RNN": memory(jb.RNNCell(8), None), "LSTM": memory(jb.LSTMCell(8, forget_bias=5.0), "cell")}
figure, axes = plt.subplots(figsize=(5, 2.8), layout="constrained")
plotting.curves(range(1, 61), {name: np.log10(norm) for name, norm in norms.items()}, axes)
axes.set(xlabel="T", ylabel="log10 of the size of dh_T / dh_0")
assert norms["RNN"][-1] < 1e-3 < 0.1 < norms["LSTM"][-1]

# %% [markdown]
# ## 3. Graphs: the same map along every edge
#
# Molecules, roads, friends: things with neighbors, but without left and right. The template of a graph layer is
# $x' = \mathrm{Agg}(\mathrm{Proj}(\mathrm{Neigh}(x)))$: take what lies next to you, send it through a small net,
# aggregate by a sum, mean or maximum. Here is a path of four nodes; each sums its neighbors.

# %%
adjacency = jnp.array([[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]])
features = jnp.array([[1.0, 0.0], [2.0, 1.0], [3.0, 0.0], [4.0, 1.0]])
graph = jb.layers.adjacency_graph(features, adjacency)
neighbors = jb.layers.aggregate(features[graph.senders], graph.receivers, n=4)
assert jnp.allclose(neighbors, adjacency @ features)

# %% [markdown]
# With a kernel $W$ behind it, the layer is $X \mapsto A X W$, as a matrix the Kronecker product $A \otimes W^\top$:
# zero wherever there is no edge, and the same block $W^\top$ wherever there is one.

# %%
W = jnp.array([[1.0, 2.0], [0.5, -1.0]])
graph_layer = lambda X: jb.layers.aggregate(X[graph.senders], graph.receivers, n=4) @ W
K = jb.structure.as_dense(graph_layer, (4, 2))
assert jnp.allclose(K, jnp.kron(adjacency, W.T))
figure, axes = plt.subplots(figsize=(4, 3.2), layout="constrained")
axes = plotting.matrix(K, axes)

# %% [markdown]
# The full form has features of edges, of nodes and of the whole graph, and a net for each.
#
# > **One lecture prints** $E_{l-1}, V_{-1}, u_{-1} \to E_l, V_l, u^l$.
#
# Two indices slipped; it is $(E_{l-1}, V_{l-1}, u_{l-1}) \mapsto (E_l, V_l, u_l)$. With $V_{-1}$ a second layer would
# forget the first one. `GraphBlock` is that map. Nodes have no order, so renumbering them must renumber the outputs and
# leave the whole as it is:

# %%
block = jb.GraphBlock(edge=jb.MLP(8, 3), node=jb.MLP(8, 3), graph=jb.Dense(2))
block_params = block.init(jax.random.key(0), graph)
order = jnp.array([2, 0, 3, 1])  # the new node i is the old node order[i]
place = jnp.argsort(order)
renumbered = graph._replace(nodes=features[order], senders=place[graph.senders], receivers=place[graph.receivers])
run_block = jax.jit(block.apply)
before, after = run_block(block_params, graph), run_block(block_params, renumbered)
assert jnp.allclose(after.nodes, before.nodes[order], atol=1e-5)
assert jnp.allclose(after.global_features, before.global_features, atol=1e-5)

# %% [markdown]
# ## 4. All of them side by side
#
# Five layers on six positions: which output depends on which input, and how. Attention is the subject of notebook 6;
# its matrix is full, like the dense layer's, but it is made from the data, not learned entry by entry.

# %%
ring = jnp.roll(jnp.eye(6), 1, 0) + jnp.roll(jnp.eye(6), -1, 0)
data = jax.random.normal(jax.random.key(3), (6, 1))
matrices = {
    "dense": jax.random.normal(jax.random.key(4), (6, 6)),
    "convolution": jb.structure.as_dense(lambda x: jb.conv(x[:, None], w[:, None, None], padding="same"), (6,)),
    "recurrence": M,
    "graph (a ring)": ring,
    "attention": jb.attention_weights(data[:, None], data[:, None])[0],
}
figure, axes = plt.subplots(1, 5, figsize=(11, 2.4), layout="constrained")
for ax, (name, matrix) in zip(axes, matrices.items(), strict=True):
    plotting.matrix(matrix, ax, numbers="").set_title(name)
filled = {name: int((abs(matrix) > 0).sum()) for name, matrix in matrices.items()}
assert filled == {"dense": 36, "convolution": 16, "recurrence": 21, "graph (a ring)": 12, "attention": 36}

# %% [markdown]
# ## 5. Before: features
#
# Structured layers are one way to tell a net what is known. Older is another: a **feature map** $\Phi$ in front of a
# linear layer, $f(x) = w^\top \Phi(x) + b$. In code `Serial(phi, Dense(1))`, where `phi` is any function or any layer.
# There are three ways to come by one.
#
# **Generic**: bumps around examples, or random waves. They say only that near inputs have near answers. In one
# dimension that is a lot. In many nothing is near anything: for two random points of the unit cube the Gaussian kernel
# $e^{-\|x - y\|^2}$ is typically $e^{-D/6}$.

# %%
line = jnp.linspace(-1, 1, 40)[:, None]
random_waves = jb.layers.RandomFourierFeatures(30, gamma=4.0)
waves = random_waves.apply(random_waves.init(jax.random.key(0), line), line)  # drawn, and never trained
best = jb.layers.linear_regression(waves, jnp.sin(5 * line), ridge=1e-6)
assert abs(jb.affine(waves, **best) - jnp.sin(5 * line)).max() < 0.05
pair = np.random.default_rng(0).random((2, 1000))
kernel_at = {D: np.exp(-np.sum((pair[0, :D] - pair[1, :D]) ** 2)) for D in (10, 1000)}
print({D: f"{value:.0e}" for D, value in kernel_at.items()})
assert kernel_at[10] > 0.01 and kernel_at[1000] < 1e-60

# %% [markdown]
# **Made by hand**, from what one knows of the matter: for texts, words in lower case without their endings; for sounds,
# the strength of each pitch; for images, in which directions edges run. Below is the heart of such a descriptor
# (SIFT, 2004), in four lines. It does not depend on brightness and contrast, because it was made so. Nothing has to be
# learned for that, and nothing better can be.


# %%
def orientations(image, bins=4):
    down, across = np.gradient(image)
    angle = np.round(np.degrees(np.arctan2(down, across)) % 180 / (180 / bins)) % bins  # 0 and 180 degrees are alike
    strength = np.array([np.hypot(down, across)[angle == k].sum() for k in range(bins)])
    return strength / strength.sum()


stripes = {
    angle: np.sin(np.cos(np.radians(angle)) * columns + np.sin(np.radians(angle)) * rows) for angle in (0, 45, 90)
}
described = {f"{angle} degrees": orientations(image) for angle, image in stripes.items()}
assert [int(value.argmax()) for value in described.values()] == [0, 1, 2]
assert np.allclose(orientations(0.3 * stripes[45] + 7), described["45 degrees"])
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 2.6), layout="constrained")
plotting.tiles(list(stripes.values()), left, columns=3)
axes = plotting.bars(described, ["0", "45", "90", "135"], right, numbers="")
axes.set(xlabel="direction of the gradient, degrees", ylabel="share")

# %% [markdown]
# **Learned**: $\Phi$ has params, too. For a long time they were learned *separately*, layer by layer, without labels,
# for instance such that inputs can be restored from features; the labels came last. Few got past two layers. Here is
# why it can fail: of ten inputs nine are loud, and one is quiet; the label depends on the quiet one. The best
# two features for restoring the inputs are loud ones, and on them a classifier only guesses. The same net, with both
# parts trained *jointly*, by the gradient of the one loss, finds what matters.

# %%
loud_key, label_key = jax.random.split(jax.random.key(1))
ten = jax.random.normal(loud_key, (600, 10)) * jnp.array([3.0] * 9 + [0.5])
which = (ten[:, 9] > 0).astype(jnp.int32)
known, fresh = slice(0, 400), slice(400, 600)
restoring = jnp.linalg.svd(ten[known], full_matrices=False)[2][:2].T  # the two principal directions
classifier = jb.layers.logistic_regression(ten[known] @ restoring, which[known])
separately = jnp.mean((jb.affine(ten[fresh] @ restoring, **classifier)[:, 0] > 0) == which[fresh])
net = jb.Serial(phi=jb.Serial(jb.Dense(2), jb.tanh), classify=jb.Dense(2))
how = dict(key=jax.random.key(2), epochs=20, progress=False)
fitted = jb.fit(net, jb.softmax_cross_entropy, optax.adam(2e-2), (ten[known], which[known]), **how)
jointly = jb.accuracy(net.apply(fitted.params, ten[fresh]), which[fresh])
print(f"new examples right: features first {separately:.0%}, all at once {jointly:.0%}")
assert separately < 0.65 and jointly > 0.9

# %% [markdown]
# Joint training has a price: the loss is no longer convex, also where the classifier is linear. And it needs data.
# Layers with structure, the subject of this notebook, are the compromise: the form is made by hand, the numbers are
# learned.

# %% [markdown]
# ## Homework
#
# **1.** Stride and dilation: "look them up online", one lecture says. What do they do, and how long is the output?
#
# **2.** One lecture says that a convolution without padding "effectively subsamples". Does it?
#
# **3.** Graph layers "generalize attention". In which sense?
#
# **4.** "So are deep feed-forward nets what we should work with?" Answer with the numbers of this notebook.
#
# ## Solutions
#
# ### 1. Stride and dilation
#
# With *stride* $s$ the window moves by $s$ at a time. With *dilation* $d$ its entries lie $d$ apart, so that it covers
# $d(k-1) + 1$ numbers. With $p$ zeros at both ends the window's first entry can stand at
#
# $$ \left\lfloor \frac{H + 2p - d(k-1) - 1}{s} \right\rfloor + 1 $$
#
# places. The transposed convolution undoes that: $(H - 1)s - 2p + d(k-1) + 1$.

# %%
for H, k, s, p, d, expected in ((5, 3, 1, 0, 1, 3), (28, 5, 1, 0, 1, 24), (32, 3, 2, 1, 1, 16), (32, 3, 1, 0, 2, 28)):
    kernel = jnp.ones((k, 1, 1))
    y = jb.conv(jnp.zeros((H, 1)), kernel, stride=s, padding=p, dilation=d)
    assert len(y) == expected == (H + 2 * p - d * (k - 1) - 1) // s + 1
assert len(jb.conv_transpose(jnp.zeros((4, 1)), jnp.ones((3, 1, 1)), stride=2)) == (4 - 1) * 2 + 3 == 9

# %% [markdown]
# ### 2. No
#
# Without padding the output loses $k - 1$ positions at the border: 28 become 24 with a window of 5. The rest stays as
# dense as it was: next outputs look at windows that differ by one step. Subsampling is what a stride does, 32 to 16
# above.
#
# ### 3. Attention is a graph layer
#
# Take the graph in which every node is a neighbor of every node, itself included. Let the aggregation be a mean with
# weights $\mathrm{softmax}_j \langle q_i, k_j \rangle$. That is attention, number by number. On a sparse graph it is
# attention with a mask: nodes look at their neighbors only.

# %%
q, k, v = jax.random.normal(jax.random.key(5), (3, 4, 2))
everyone = jb.layers.complete_graph(v)
match = jnp.sum(q[everyone.receivers] * k[everyone.senders], -1)
by_graph = jb.layers.aggregate(v[everyone.senders], everyone.receivers, 4, how="softmax", logits=match)
assert jnp.allclose(by_graph, jb.layers.soft_lookup(q, k, v), atol=1e-6)

match = jnp.sum(q[graph.receivers] * k[graph.senders], -1)
sparse = jb.layers.aggregate(v[graph.senders], graph.receivers, 4, how="softmax", logits=match)
masked = jb.attention(q[:, None], k[:, None], v[:, None], scale=None, mask=(adjacency > 0)[None])[:, 0]
assert jnp.allclose(sparse, masked, atol=1e-6)

# %% [markdown]
# ### 4. Usually not
#
# A dense layer *can* compute all that a convolution, a recurrence or a graph layer computes: their matrices were shown
# above. But it must learn each entry: 12,725,024 numbers instead of 224 for one layer of images, and in the right half
# of the signals, where it had seen no bump, it was no better than a guess. What is known about the data (neighbors
# matter; the place does not; the order of nodes does not) is better built in.

# %%
assert scores["convolutional"][1] - scores["dense"][1] > 0.2
