# %% [markdown]
# # A network that reads digits
#
# A network is a function with many parameters, and training chooses the parameters by derivatives. This notebook
# trains a network on images of handwritten digits, in thirty lines and without a library of layers. On the way it
# explains the three functions of JAX that all later notebooks use:
#
# * `jax.grad` computes derivatives,
# * `jax.vmap` turns a function of one example into a function of many,
# * `jax.jit` compiles a function.
#
# **Prerequisites:** derivatives, matrices, basic Python. Every section ends with an exercise: a cell to complete,
# and a cell that checks it. In the students' version the solutions are left out.
#
# The next cell installs what the course needs, where it is missing.

# %%
import importlib.util
import subprocess
import sys

if importlib.util.find_spec("jaxblocks") is None:
    install = [sys.executable, "-m", "pip", "install", "jaxblocks[data,plot]"]
    subprocess.run(install, check=True)

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import jaxblocks as jb
from jaxblocks import plotting
from jaxblocks.datasets import digits

# %% [markdown]
# ## 1. The data
#
# `digits` returns 1797 gray images of $8 \times 8$ pixels between 0 (white) and 1 (black), and the digit that each
# image shows (Alpaydin and Kaynak 1998). They come with scikit-learn, so nothing is downloaded. Each image becomes
# a vector $x$ of 64 numbers; the digit is the **label** $y$.

# %%
images, labels = digits()
x, y = images.reshape(1797, 64), labels
assert x.min() == 0 and x.max() == 1 and set(y) == set(range(10))
figure, axes = plt.subplots(figsize=(6.5, 1.8), layout="constrained")
axes = plotting.tiles(images[:20, :, :, 0], axes, columns=10)

# %% [markdown]
# Training must be judged on images that it has not seen. The images are therefore divided at random: 1437 to train,
# 360 to test.

# %%
order = np.random.default_rng(0).permutation(1797)
train_x, train_y = x[order[:1437]], y[order[:1437]]
test_x, test_y = x[order[1437:]], y[order[1437:]]
assert len(test_y) == 360 and not set(order[:1437]) & set(order[1437:])

# %% [markdown]
# How good is a rule without any learning? One rule always answers with the same digit. It is right for the share of
# this digit, which is about a tenth: the ten digits are nearly equally frequent.

# %%
shares = np.bincount(y) / len(y)
print(f"the rarest digit has {shares.min():.1%} of the images, the commonest", end=" ")
print(f"{shares.max():.1%}")
assert 0.096 < shares.min() < shares.max() < 0.102

# %% [markdown]
# **Exercise 1.** A better rule: compute the mean image of each digit from the training data, and answer with the digit
# whose mean image is nearest to the image (in Euclidean distance). Complete the function.


# %% tags=["exercise"]
def nearest_mean(images):
    """The digit of each row of ``images``, (n, 64)."""
    means = np.zeros((10, 64))  # complete: the mean training image of each digit
    distances = np.zeros((len(images), 10))  # complete: to each of the means
    assert means.shape == (10, 64)
    return distances.argmin(1)


# %% tags=["solution"]
def nearest_mean(images):
    """The digit of each row of ``images``, (n, 64)."""
    means = np.stack([train_x[train_y == digit].mean(0) for digit in range(10)])
    distances = np.linalg.norm(images[:, None] - means[None], axis=-1)
    return distances.argmin(1)


# %% tags=["check"]
found = np.mean(nearest_mean(test_x) == test_y)
assert found > 0.2, f"an accuracy of {found:.0%} is that of guessing; use the means"
assert abs(found - 325 / 360) < 0.01, (
    f"expected about 90 % of the test images, got {found:.0%}"
)

# %% [markdown]
# ## 2. A function with parameters
#
# The network computes ten numbers, the **scores** of the ten digits, in two steps: 64 **hidden units**, each the
# positive part $\mathrm{ReLU}(s) = \max(0, s)$ of a weighted sum of the pixels, and then ten weighted sums of the
# hidden units:
#
# $$ h = \mathrm{ReLU}(x A_1 + b_1), \qquad z = h A_2 + b_2 . $$
#
# The numbers in $A_1, b_1, A_2, b_2$ are the **parameters** (short: params). They are kept in a dictionary. At
# first they are random; random numbers in JAX come from an explicit *key*, and the same key gives the same numbers.


# %%
def init(key):
    first, second = jax.random.split(key)
    return {
        "A1": jax.random.normal(first, (64, 64)) * (2 / 64) ** 0.5,
        "b1": jnp.zeros(64),
        "A2": jax.random.normal(second, (64, 10)) * (1 / 64) ** 0.5,
        "b2": jnp.zeros(10),
    }


def scores(params, image):
    hidden = jnp.maximum(0, image @ params["A1"] + params["b1"])
    return hidden @ params["A2"] + params["b2"]


params = init(jax.random.key(0))
assert scores(params, train_x[0]).shape == (10,)
assert sum(leaf.size for leaf in params.values()) == 64 * 64 + 64 + 64 * 10 + 10

# %% [markdown]
# The scores become probabilities by the **softmax**, $q_i = e^{z_i} / \sum_j e^{z_j}$: they are positive and have
# sum 1. The **loss** of an image is $-\log q_y$. It is 0 if the network gives the right digit the probability 1,
# and large if it gives it a small one. (Notebook 3 says why the logarithm.) A network that gives each digit
# $\tfrac1{10}$ has the loss $\log 10 = 2.303$.


# %%
def loss_of_one(params, image, label):
    return -jax.nn.log_softmax(scores(params, image))[label]


zeros = jax.tree.map(jnp.zeros_like, params)
assert jnp.allclose(loss_of_one(zeros, train_x[0], train_y[0]), jnp.log(10.0))

# %% [markdown]
# **Exercise 2.** Write the probabilities $q$ of an image. Do they change if the same number is added to all scores?


# %% tags=["exercise"]
def probabilities(params, image):
    return scores(params, image)  # complete this line


# %% tags=["solution"]
def probabilities(params, image):
    powers = jnp.exp(scores(params, image))
    return powers / powers.sum()  # the added number is a factor of both: no change


# %% tags=["check"]
q = probabilities(params, train_x[0])
assert jnp.allclose(q.sum(), 1), f"the probabilities have the sum {q.sum():.3f}, not 1"
expected = jnp.exp(-loss_of_one(params, train_x[0], train_y[0]))
assert jnp.allclose(q[train_y[0]], expected), (
    "the loss must be the logarithm of 1 / q_y"
)

# %% [markdown]
# ## 3. `grad`: derivatives
#
# `jax.grad(f)` is the derivative of `f` with respect to its first argument. It is computed by the chain rule, not by
# differences, so it is exact up to the rounding of floating point numbers. For $f(x) = x^3$, $f'(2) = 12$:

# %%
cube = lambda x: x**3
assert jax.grad(cube)(2.0) == 12
for step in (1e-1, 1e-2, 1e-3):
    difference = (cube(2.0 + step) - cube(2.0)) / step
    print(f"difference quotient with step {step}: {difference:.4f}")

# %% [markdown]
# If the first argument is a dictionary of arrays, so is the derivative: one number for each parameter, together
# called the **gradient**. Each number says how the loss changes if this one parameter changes. The next cell tests
# one of the 4810 numbers with a difference quotient: that of a weight from the most active hidden unit to the right
# digit.

# %%
gradient = jax.grad(loss_of_one)(params, train_x[0], train_y[0])
assert gradient["A2"].shape == params["A2"].shape
hidden = jnp.maximum(0, train_x[0] @ params["A1"] + params["b1"])
place, step = (int(hidden.argmax()), int(train_y[0])), 1e-2
changed = params | {"A2": params["A2"].at[place].add(step)}
before, after = (loss_of_one(p, train_x[0], train_y[0]) for p in (params, changed))
print(f"derivative {gradient['A2'][place]:.4f}, quotient {(after - before) / step:.4f}")
assert abs((after - before) / step / gradient["A2"][place] - 1) < 0.02

# %% [markdown]
# The negative gradient is the direction in which the loss decreases fastest (notebook 4). **Gradient descent**
# moves the parameters by a small multiple of it.
#
# **Exercise 3.** Minimize $(w - 3)^2$ from $w = 0$: take 50 steps $w \leftarrow w - 0.1\, f'(w)$.

# %% tags=["exercise"]
w = 0.0
for _ in range(50):
    w = w + 0.0  # complete this line with jax.grad

# %% tags=["solution"]
w = 0.0
for _ in range(50):
    w = w - 0.1 * jax.grad(lambda w: (w - 3) ** 2)(w)

# %% tags=["check"]
assert abs(w - 3) < 1, f"w is {w:.3f}, far from the minimum at 3"
assert abs(w - 3 * (1 - 0.8**50)) < 1e-4, f"after 50 steps w is 2.99996, not {w:.5f}"

# %% [markdown]
# ## 4. `vmap`: many examples
#
# The function `scores` takes one image. `jax.vmap(scores, in_axes=(None, 0))` takes many: the same params for all
# (`None`), and images along axis 0. It computes what a loop computes, as operations on whole arrays. The mean loss
# over a set of images is then one line.


# %%
def mean_loss(params, images, labels):
    each = jax.vmap(loss_of_one, in_axes=(None, 0, 0))(params, images, labels)
    return each.mean()


by_loop = [loss_of_one(params, train_x[i], train_y[i]) for i in range(5)]
assert np.allclose(np.mean(by_loop), mean_loss(params, train_x[:5], train_y[:5]))
print(f"loss with random parameters: {mean_loss(params, train_x, train_y):.3f}")

# %% [markdown]
# **Exercise 4.** `vmap` and `grad` can be combined. Compute the length (Euclidean norm) of the gradient with
# respect to `A2` for each of the images, and find the image with the largest one.


# %% tags=["exercise"]
def gradient_lengths(params, images, labels):
    """One number for each image."""
    return jnp.zeros(len(images))  # complete: vmap of grad


# %% tags=["solution"]
def gradient_lengths(params, images, labels):
    """One number for each image."""
    gradients = jax.vmap(jax.grad(loss_of_one), (None, 0, 0))(params, images, labels)
    return jnp.sqrt((gradients["A2"] ** 2).sum((1, 2)))


# %% tags=["check"]
lengths = gradient_lengths(params, train_x[:100], train_y[:100])
one = jax.grad(loss_of_one)(params, train_x[7], train_y[7])["A2"]
assert lengths.shape == (100,), f"expected 100 numbers, got the shape {lengths.shape}"
assert np.allclose(lengths[7], jnp.linalg.norm(one), rtol=1e-4), (
    "image 7 differs from grad"
)

# %% [markdown]
# ## 5. `jit`: compilation
#
# `jax.jit(f)` compiles `f`. At the first call, JAX runs the Python function once, with placeholders for the arrays,
# and records the operations; XLA compiles them to one program. Later calls with arrays of the same shapes and types
# run the program and not the Python code. The next cell counts how often the Python code runs.

# %%
runs = []


@jax.jit
def double(x):
    runs.append(x.shape)  # a side effect: it happens when the Python code runs
    return 2 * x


for _ in range(5):
    double(jnp.ones(3))
assert runs == [(3,)]  # five calls, one run
double(jnp.ones(4))
assert runs == [(3,), (4,)]  # another shape: recorded and compiled again

# %% [markdown]
# **Exercise 5.** A compiled function must not depend on the *values* of its arguments in Python: `if x > 0` in a
# compiled function is an error, because `x` is a placeholder. Write the function $|x|$ without `if` and without
# `abs`, such that it can be compiled.


# %% tags=["exercise"]
def absolute(x):
    return x  # complete this line, for instance with jnp.where


# %% tags=["solution"]
def absolute(x):
    return jnp.where(x > 0, x, -x)


# %% tags=["check"]
values = jnp.array([-2.0, 0.0, 3.0])
assert jax.jit(absolute)(values).tolist() == [2, 0, 3], (
    "the absolute values of [-2, 0, 3] are [2, 0, 3]"
)

# %% [markdown]
# ## 6. Training in thirty lines
#
# All of it together. An **epoch** passes once through the training images, in random order. Each step takes 64 of
# them, a **minibatch**, computes the gradient of their mean loss, and moves the params. (The last, incomplete
# minibatch is left out.)


# %%
def train(seed, epochs=30, batch=64, step_size=0.5):
    first, second = jax.random.split(jax.random.key(seed))
    params = {
        "A1": jax.random.normal(first, (64, 64)) * (2 / 64) ** 0.5,
        "b1": jnp.zeros(64),
        "A2": jax.random.normal(second, (64, 10)) * (1 / 64) ** 0.5,
        "b2": jnp.zeros(10),
    }

    def scores(params, image):
        hidden = jnp.maximum(0, image @ params["A1"] + params["b1"])
        return hidden @ params["A2"] + params["b2"]

    def loss(params, images, labels):
        z = jax.vmap(scores, (None, 0))(params, images)
        right = jax.nn.log_softmax(z)[jnp.arange(len(labels)), labels]
        return -right.mean()

    @jax.jit
    def update(params, images, labels):
        value, gradient = jax.value_and_grad(loss)(params, images, labels)
        return jax.tree.map(lambda p, g: p - step_size * g, params, gradient), value

    shuffle, losses = np.random.default_rng(seed), []
    for _ in range(epochs):
        order = shuffle.permutation(len(train_x))
        for rows in order[: len(order) // batch * batch].reshape(-1, batch):
            params, value = update(params, train_x[rows], train_y[rows])
            losses.append(value)
    return params, np.array(losses)


# %%
@jax.jit
def answers(params, images):
    return jax.vmap(scores, (None, 0))(params, images).argmax(1)


def accuracy(params, images, labels):
    return float(np.mean(answers(params, images) == labels))


results = {seed: train(seed) for seed in range(5)}
tested = [accuracy(trained, test_x, test_y) for trained, _ in results.values()]
fitted = [accuracy(trained, train_x, train_y) for trained, _ in results.values()]
print(f"test accuracy of five initializations: {min(tested):.1%} to {max(tested):.1%}")
print(f"training accuracy: {min(fitted):.1%} to {max(fitted):.1%}")
assert min(tested) > 0.96 and min(fitted) > 0.985

# %% [markdown]
# All five networks read more than 96 % of the new images; the rule of exercise 1 reads 90 %. The left plot shows
# the loss of each step for one of them: it varies from minibatch to minibatch, and its mean falls from above 0.5 in
# the first epoch to below 0.05 in the last. The right plot shows the weights of eight hidden units as images, dark
# where they are large.

# %%
trained, losses = results[0]
epoch_means = losses.reshape(30, -1).mean(1)
figure, (left, right) = plt.subplots(1, 2, figsize=(6.5, 2.6), layout="constrained")
left.plot(np.arange(len(losses)) / 22, losses, color="0.75", label="each step")
means = dict(color="black", marker="o", markersize=3, label="mean of the epoch")
left.plot(np.arange(30) + 0.5, epoch_means, **means)
left.set(xlabel="epoch", ylabel="loss", yscale="log", title="training loss")
left.legend(loc="upper right")
plotting.tiles(trained["A1"].T[:8].reshape(8, 8, 8), right)
title = right.set_title("weights of eight hidden units")
assert epoch_means[-1] < 0.05 < 0.5 < epoch_means[0]

# %% [markdown]
# The images that the network reads wrongly. Some of them are hard for people as well; that is a judgment which you can
# make from the picture.

# %%
guesses = np.asarray(answers(trained, test_x))
wrong = np.flatnonzero(guesses != test_y)[:6]
figure, axes = plt.subplots(1, len(wrong), figsize=(6.5, 1.6), layout="constrained")
for ax, i in zip(np.atleast_1d(axes), wrong, strict=True):
    plotting.tiles(test_x[i].reshape(1, 8, 8), ax, columns=1)
    ax.set_title(f"{test_y[i]}, read as {guesses[i]}", fontsize=8)

# %% [markdown]
# **Exercise 6.** The *confusion matrix* has in row $i$ and column $j$ the number of images of digit $i$ that are
# read as digit $j$. Compute it from the labels and the answers.


# %% tags=["exercise"]
def confusion(labels, guesses):
    return np.zeros((10, 10), int)  # complete: count the pairs


# %% tags=["solution"]
def confusion(labels, guesses):
    counts = np.zeros((10, 10), int)
    np.add.at(counts, (labels, guesses), 1)
    return counts


# %% tags=["check"]
matrix = confusion(test_y, guesses)
assert matrix.sum() == 360, (
    f"the entries must count the 360 test images, not {matrix.sum()}"
)
assert np.trace(matrix) == (guesses == test_y).sum(), (
    "the diagonal counts the right answers"
)
assert (matrix.sum(1) == np.bincount(test_y)).all(), "rows are the true digits"

# %% [markdown]
# ## 7. The same with layers
#
# A library saves the parts that are the same in every program. In jaxblocks, a layer is a pair of functions: `init`
# makes random params, and `apply` computes the output. `MLP` is the network above, and `fit` is the loop.

# %%
net = jb.MLP(64, 10)
fitted = jb.fit(
    net,
    jb.softmax_cross_entropy,
    optax.sgd(0.5),
    (train_x, train_y),
    key=jax.random.key(0),
    epochs=30,
    progress=False,
)
found = float(jb.accuracy(net.apply(fitted.params, test_x), jnp.asarray(test_y)))
print(f"test accuracy {found:.1%}")
assert found > 0.95

# %% [markdown]
# **Exercise 7.** How much does the hidden layer improve the accuracy? Train a network without it, `jb.Dense(10)`,
# in the same way, and store its test accuracy.

# %% tags=["exercise"]
linear_accuracy = 0.0  # complete: train jb.Dense(10) with jb.fit

# %% tags=["solution"]
linear = jb.Dense(10)
same = dict(key=jax.random.key(0), epochs=30, progress=False)
linear_fit = jb.fit(
    linear, jb.softmax_cross_entropy, optax.sgd(0.5), (train_x, train_y), **same
)
linear_scores = linear.apply(linear_fit.params, test_x)
linear_accuracy = float(jb.accuracy(linear_scores, jnp.asarray(test_y)))
print(f"test accuracy without a hidden layer: {linear_accuracy:.1%}")
# little: with these data and this seed, a linear model reads almost as many digits

# %% tags=["check"]
assert linear_accuracy > 0.9, f"expected more than 90 %, got {linear_accuracy:.1%}"

# %% [markdown]
# ## Summary
#
# | function | what it returns |
# |---|---|
# | `jax.grad(f)` | the derivative of `f` with respect to its first argument, of the shape of this argument |
# | `jax.vmap(f, in_axes)` | `f` for many examples at once |
# | `jax.jit(f)` | `f` as a compiled program, one for each combination of shapes and types |
#
# Which functions can such a network compute? Notebook 1 answers this. Why this loss, and why a test on other images?
# Notebook 3. How large may a step be? Notebook 4.
