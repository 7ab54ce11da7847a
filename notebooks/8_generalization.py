# %% [markdown]
# # Generalization: what the training error does not determine
#
# A net with zero training error may have a low or a high test error. **What decides which?** The classical answer is
# the complexity of the model. This answer works for polynomials, but not for deep nets: they can fit any labels, even
# random ones, and still generalize. The newer answer also considers the *algorithm*, which selects one of all models
# that fit.
#
# Each section is a small numerical experiment. An `assert` in the next code cell checks each claim of the text. The
# homework at the end has solutions.
#
# **Sources:** Huszár, *DeepNN lecture 3* (its figures are not available, so the experiments are chosen here); Diehl,
# *lecture notes* (2023), section 1.3; Krapac & Šegvić, *Deep feed-forward models*.

# %%
import itertools

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import jaxblocks as jb
from jaxblocks import plotting
from jaxblocks.ad import ntk_relu, per_example_gradients
from jaxblocks.theory.generalization import (
    batch_noise,
    conservation_drift,
    degree_sweep,
    depth_sweep,
    matrix_completion,
    max_margin_bias,
    min_norm_bias,
    no_free_lunch,
    polynomial_fit,
    random_labels,
    relu_covariance,
    selection_optimism,
    stationary_variance,
    width_sweep,
)

rng = np.random.default_rng(0)

# %% [markdown]
# ## 1. Underfitting and overfitting
#
# Fit polynomials to fifteen noisy values of a sine. A straight line underfits; a polynomial of degree 14 interpolates
# every point, including the noise, and oscillates between them. A medium degree fits best.

# %%
x = np.linspace(-1, 1, 15)
y = np.sin(3 * x) + 0.2 * rng.normal(size=15)
grid = np.linspace(-1, 1, 200)
figure, axes = plt.subplots(1, 3, figsize=(11, 2.8), layout="constrained", sharey=True)
for ax, degree in zip(axes, (1, 5, 14), strict=True):
    fitted = polynomial_fit(x, y, degree)
    plotting.curves(grid, {"truth": np.sin(3 * grid), "fit": fitted(grid)}, ax)
    ax.plot(x, y, "ko", markersize=3)
    ax.set(title=f"degree {degree}", ylim=(-2, 2))
assert np.allclose(polynomial_fit(x, y, 14)(x), y)

# %% [markdown]
# The training error decreases with the degree. The test error decreases and then increases: **underfitting** at low
# degrees, **overfitting** at high degrees. This curve suggests that complex models do not generalize.

# %%
sweep = degree_sweep(x, y, grid, np.sin(3 * grid), degrees=range(15))
assert (np.diff(sweep.train) <= 1e-12).all() and sweep.train[-1] < 1e-20
assert 3 <= sweep.best <= 7 and sweep.test[14] > 10 * sweep.test.min()
figure, axes = plt.subplots(figsize=(5.5, 3), layout="constrained")
axes = sweep.plot(axes)
print(sweep)

# %% [markdown]
# ## 2. Double descent
#
# > **One lecture quotes** the claim: "complex models don't generalize".
#
# **Counterexample:** take models of increasing width: $m$ random ReLU features, of which only the output layer is
# fitted, to 20 points. Near $m = 20$ the model can just interpolate, with very large weights, and the test error has a
# peak. Up to here the claim holds. But with fifty times as many units as points, the test error has *decreased again*,
# below that of all narrow models. This is called **double descent**. **Correction:** the number of parameters alone
# does not determine the test error. Of the many interpolating solutions of a wide model the fit selects the one of
# *minimum norm*, and this one generalizes.

# %%
directions = rng.normal(size=(220, 3))
inputs = directions / np.linalg.norm(directions, axis=1, keepdims=True)
outputs = np.sin(2 * inputs[:, 0]) + inputs[:, 1] * inputs[:, 2]
noisy = outputs[:20] + 0.1 * rng.normal(size=20)
widths = [2, 5, 10, 15, 18, 20, 22, 30, 50, 100, 300, 1000]
double = width_sweep(
    inputs[:20],
    noisy,
    inputs[20:],
    outputs[20:],
    widths=widths,
    key=jax.random.key(0),
    samples=10,
)
figure, axes = plt.subplots(figsize=(5.5, 3), layout="constrained")
double.plot(axes).set_xscale("log")
print(double)
at = dict(zip(widths, double.test, strict=True))
assert at[20] > 10 * at[1000] and at[1000] < min(at[m] for m in widths if m <= 20)

# %% [markdown]
# The *depth* also has an optimum in practice, but no theorem determines it. Here nets with 16 units per layer are
# trained on 64 noisy values of a sine, with the same number of steps each: without hidden layers the test error is very
# high, with one hidden layer it is high, with two or four it is low. Eight layers cost twice as much as four and give
# no improvement (try it). For another task or another number of steps the result may differ.

# %%
wave = lambda x: jnp.sin(8 * x[:, 0])
few, fresh = (
    jax.random.uniform(jax.random.key(0), (64, 1), minval=-1, maxval=1),
    jnp.linspace(-1, 1, 200)[:, None],
)
noisy_wave = wave(few) + 0.1 * jax.random.normal(jax.random.key(1), (64,))
deeper = depth_sweep(
    few,
    noisy_wave,
    fresh,
    wave(fresh),
    depths=(0, 1, 2, 4),
    key=jax.random.key(2),
    optimizer=optax.adam(0.01),
    steps=400,
)
figure, axes = plt.subplots(figsize=(5.5, 3), layout="constrained")
axes = deeper.plot(axes)
print(deeper)
assert deeper.test[0] > 0.3 and deeper.test[1] > 0.1 and deeper.test[2:].max() < 0.05

# %% [markdown]
# ## 3. Random labels
#
# Train a net for two classes on 100 examples. Then permute the labels at random, so that inputs and labels are
# independent, and train again from the same initial params. Both nets classify all training examples correctly.

# %%
cloud = jax.random.normal(jax.random.key(1), (300, 20))
label = (cloud[:, 0] + cloud[:, 1] > 0).astype(jnp.int32)
memorized = random_labels(
    jb.MLP(128, 2),
    cloud[:100],
    label[:100],
    cloud[100:],
    label[100:],
    key=jax.random.key(2),
    optimizer=0.5,
    steps=400,
)
figure, axes = plt.subplots(figsize=(5.5, 3), layout="constrained")
axes = memorized.plot(axes)
assert memorized.train.tolist() == [1, 1]
assert memorized.test[0] > 0.75 > 0.65 > memorized.test[1]

# %% [markdown]
# On test data the first net is mostly correct, and the second performs at chance level. Architecture, size, optimizer
# and training error are the same. So **no argument that uses only the model and its training error can explain why nets
# generalize**.
#
# ## 4. Implicit bias
#
# ### Minimum norm
#
# Ten equations with thirty unknown weights have infinitely many exact solutions. Gradients of the squared error are
# linear combinations of the examples, so gradient descent stays in the affine subspace through its starting point that
# they span. From zero it converges to the solution of minimum norm; from another point, to the solution nearest to that
# point.

# %%
examples, targets = rng.normal(size=(10, 30)), rng.normal(size=10)
from_zero = min_norm_bias(examples, targets)
elsewhere = min_norm_bias(examples, targets, start=rng.normal(size=30))
assert np.allclose(from_zero.weights, np.linalg.pinv(examples) @ targets, atol=1e-10)
assert (
    max(from_zero.error, elsewhere.error) < 1e-20
    and max(from_zero.deviation, elsewhere.deviation) < 1e-9
)
assert np.linalg.norm(elsewhere.weights) > 2 * np.linalg.norm(from_zero.weights)
print(from_zero, elsewhere, sep="\n")

# %% [markdown]
# Both solutions have zero loss; they differ only through the starting point. A preference of the algorithm that is not
# part of the loss is called an **implicit bias**.
#
# ### Maximum margin
#
# For linearly separable classes the weights of logistic regression do not converge: larger weights always have a lower
# loss. But the *direction* of the weights converges to that of the maximum-margin hyperplane, at the slow rate
# $1/\log t$.

# %%
two_classes = np.random.default_rng(0)
side = np.where(two_classes.random(40) < 0.5, -1, 1)
separable = two_classes.normal(size=(40, 2)) * [1, 0.3] + side[:, None] * [1.5, 0.8]
keep = side * separable[:, 1] > 0.3  # a gap between the classes
margin = max_margin_bias(separable[keep], (side[keep] > 0).astype(int), steps=10_000)
print(margin)
assert (
    margin.margins[0]
    < 0
    < 0.9 * margin.best.margin
    < margin.margins[-1]
    <= margin.best.margin
)
assert (
    margin.angles[-1] < margin.angles[0] / 5 and margin.norms[-1] > 3 * margin.norms[0]
)
figure, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
plotting.points(separable[keep], side[keep] > 0, axes[0])
plotting.boundary(
    lambda z: z @ margin.weights, ((-4, 4), (-2, 2)), axes[0], samples=100
)
axes[1] = margin.plot(axes[1])

# %% [markdown]
# ### Low rank
#
# A product $W_1 W_2 \cdots W_L$ of matrices without activations is a **deep linear net**. It represents the same
# functions as a single matrix, but gradient descent behaves differently. Take a $12 \times 12$ matrix of rank 2, of
# which two thirds of the entries are observed, and fit the observed entries. With one factor the unobserved entries
# keep their initial values. With two or three factors and a small initialization the fit recovers them: large singular
# values grow faster than small ones, so the solution has low rank.

# %%
low_rank = rng.normal(size=(12, 2)) @ rng.normal(size=(2, 12))
visible = rng.random((12, 12)) < 0.67
filled = matrix_completion(
    low_rank, visible, depths=(1, 2, 3), key=jax.random.key(3), steps=3000
)
print(filled)
assert (filled.observed_error < 0.05).all()
assert filled.unobserved_error[0] > 0.8 > 0.2 > filled.unobserved_error[2]
assert filled.effective_rank[0] > 5 and filled.effective_rank[2] < 2.5
figure, axes = plt.subplots(figsize=(5.5, 3), layout="constrained")
axes = filled.plot(axes)

# %% [markdown]
# Gradient flow on a deep linear net conserves $W_{l+1}^\top W_{l+1} - W_l W_l^\top$ for each $l$, so factors that are
# balanced at the start stay balanced. With a finite step size this quantity drifts in proportion to the step size:
# steps that are ten times smaller give a tenth of the drift.

# %%
factors = [rng.normal(size=(4, 4)) / 2 for _ in range(3)]
drift = conservation_drift(
    factors,
    rng.normal(size=(20, 4)),
    rng.normal(size=(20, 4)),
    step_sizes=(1e-2, 1e-3, 1e-4),
)
assert abs(drift.order - 1) < 0.02
drift

# %% [markdown]
# ## 5. Initialization
#
# The result of training depends on the initial params. They must not be *constant*: hidden units with equal weights
# have equal gradients and stay equal. A layer of 16 units is then equivalent to one unit.

# %%
net = jb.MLP(16, 1)
same = jax.tree.map(
    lambda leaf: np.full(leaf.shape, 0.1, leaf.dtype),
    jax.eval_shape(net.init, jax.random.key(0), jnp.zeros((1, 3))),
)
batch = jax.random.normal(jax.random.key(4), (32, 3))
gradient = jax.jit(
    jax.grad(
        lambda params: jnp.mean((net.apply(params, batch)[:, 0] - batch[:, 0]) ** 2)
    )
)(same)
columns = np.asarray(gradient[0]["kernel"])
assert (
    np.allclose(columns, np.broadcast_to(columns[:, :1], columns.shape), atol=1e-6)
    and abs(columns).max() > 0.01
)

# %% [markdown]
# They must not be *too large or too small*: with variance $c / n$ for the weights of a unit with $n$ inputs, a ReLU
# layer multiplies the mean square of its inputs by $c / 2$. Over 30 layers only $c = 2$ (He initialization) preserves
# it; $c = 1$ leaves $2^{-30} \approx 10^{-9}$.

# %%
sizes = {}
for c in (1, 2, 3):
    h = rng.normal(size=(100, 100))
    sizes[f"c = {c}"] = [np.mean(h**2)]
    for _ in range(30):
        h = np.maximum(0, h @ rng.normal(size=(100, 100)) * np.sqrt(c / 100))
        sizes[f"c = {c}"].append(np.mean(h**2))
figure, axes = plt.subplots(figsize=(5, 2.8), layout="constrained")
plotting.curves(range(31), {name: np.log10(size) for name, size in sizes.items()}, axes)
axes.set(xlabel="layer", ylabel="log10 of the mean square")
assert (
    sizes["c = 1"][-1] < 1e-7
    and 0.05 < sizes["c = 2"][-1] < 20
    and sizes["c = 3"][-1] > 1e4
)

# %% [markdown]
# ### The infinite-width limit
#
# In the limit of infinitely many hidden units the outputs of a random net at two inputs are jointly Gaussian, with a
# covariance that depends on the angle $\arccos u$ between them,
# $\kappa_1(u) = \big(u (\pi - \arccos u) + \sqrt{1 - u^2}\big) / \pi$. Training is then equivalent to training a linear
# model, with the **neural tangent kernel** $\langle \partial_\theta f(x), \partial_\theta f(x') \rangle$. For $u = 0.6$
# the two values are 0.67755 and 1.10045. The next cell compares them with the average over 200,000 random units.

# %%
one, two = jnp.array([[1.0, 0.0]]), jnp.array([[0.6, 0.8]])
covariance, tangent = jax.jit(lambda x, y: (relu_covariance(x, y), ntk_relu(x, y)))(
    one, two
)
assert abs(covariance.item() - 0.6775476) < 1e-6
assert abs(tangent.item() - 1.1004472) < 1e-6
w = rng.normal(size=(2, 200_000))
first, second = np.maximum(0, np.asarray(one) @ w), np.maximum(0, np.asarray(two) @ w)
assert abs(2 * np.mean(first * second) - 0.6775476) < 0.01
both_active = np.mean((first > 0) & (second > 0))
assert abs(2 * np.mean(first * second) + 0.6 * 2 * both_active - 1.1004472) < 0.01

# %% [markdown]
# ## 6. Gradient noise
#
# The gradient of a minibatch of $B$ out of $N$ examples, drawn without replacement, is an unbiased estimate. Its
# covariance is
#
# $$ \mathrm{Cov} = \frac{\Sigma}{B} \cdot \frac{N - B}{N - 1} $$
#
# with $\Sigma$ the covariance of the gradients of single examples. Twice the batch size halves the covariance (for
# $B \ll N$), and for the whole data set it is zero. First the exact formula, over all 15 batches of 2 out of 6
# examples:

# %%
points, answers = (
    rng.normal(size=(6, 3)).astype(np.float32),
    rng.normal(size=6).astype(np.float32),
)
squared = lambda w, x, y: (jnp.vdot(w, x) - y) ** 2
of_each = jax.jit(lambda x, y: per_example_gradients(squared, jnp.ones(3), x, y))
singles = np.asarray(of_each(points, answers), np.float64)
batches = np.array(
    [singles[list(pair)].mean(0) for pair in itertools.combinations(range(6), 2)]
)
covariance = lambda g: (g - g.mean(0)).T @ (g - g.mean(0)) / len(g)
assert len(batches) == 15
assert np.allclose(batches.mean(0), singles.mean(0))
assert np.allclose(covariance(batches), covariance(singles) / 2 * (6 - 2) / (6 - 1))

# %% [markdown]
# The measured noise for all batch sizes. Where the curve crosses the dotted line, the noise of the gradient is as large
# as the gradient.

# %%
many = jax.random.normal(jax.random.key(5), (128, 3))
wanted = many[:, 0] + jax.random.normal(jax.random.key(6), (128,))
noise = batch_noise(squared, jnp.zeros(3), many, wanted, key=jax.random.key(7))
assert np.allclose(noise.measured, noise.predicted, rtol=0.2)
figure, axes = plt.subplots(figsize=(5.5, 3), layout="constrained")
axes = noise.plot(axes)

# %% [markdown]
# ## 7. Model selection
#
# The error on a test set is an unbiased estimate only *if the test set was not used to choose the model*. The first
# version of the lecture notes warns of "implicit hyperparameter optimization": try many settings, report the best. How
# large is this bias? Let $K$ classifiers guess at random, each correct with probability $1/2$, on 100 test examples.
# The best of 1000 has an accuracy of 66 % on this test set, and of 50 % on a new one.

# %%
chosen = selection_optimism(key=jax.random.key(8))
print(chosen)
assert np.allclose(chosen.expected, [0.5, 0.577, 0.625, 0.661], atol=1e-3)
assert np.allclose(chosen.simulated, chosen.expected, atol=0.02) and np.allclose(
    chosen.fresh, 0.5, atol=0.02
)
figure, axes = plt.subplots(figsize=(5.5, 3), layout="constrained")
axes = chosen.plot(axes)

# %% [markdown]
# So three disjoint sets are needed: for training, for model selection, and for the final evaluation.
# `train_val_test_split` returns them.

# %%
parts = jb.train_val_test_split(jax.random.key(9), jnp.arange(100))
train_part, validation_part, test_part = (
    set(np.asarray(jax.tree.leaves(part)[0]).tolist()) for part in parts
)
assert (
    not train_part & validation_part
    and not train_part & test_part
    and not validation_part & test_part
)
assert len(train_part | validation_part | test_part) == 100

# %% [markdown]
# ### No free lunch
#
# Without assumptions nothing can be learned. Whatever a learner predicts on 10 unseen points, its accuracy averaged
# over all $2^{10}$ labelings is exactly one half. This is the **no-free-lunch theorem**. Learning works because real
# labelings are not uniformly random, and because the biases of architectures (notebook 5), losses and algorithms match
# them.

# %%
clever, silly = (
    no_free_lunch(np.array([1, 0, 1, 1, 0, 1, 0, 0, 1, 1])),
    no_free_lunch(np.zeros(10, int)),
)
assert clever.mean == silly.mean == 0.5 and len(clever.accuracies) == 1024
figure, axes = plt.subplots(figsize=(5, 2.6), layout="constrained")
axes = clever.plot(axes)

# %% [markdown]
# ## Homework
#
# **1.** "The effect of gradient noise": for $\frac{\lambda}{2} x^2$ with noise of variance $\sigma^2$ in the gradient,
# what is the stationary distribution of stochastic gradient descent?
#
# **2.** Prove that gradient descent from zero on $\|Xw - y\|^2$ converges to the solution of minimum norm.
#
# **3.** Prove the no-free-lunch statement of section 7.
#
# ## Solutions
#
# ### 1. The stationary variance
#
# With $x_{t+1} = x_t - \eta (\lambda x_t + \xi_t)$ the variance $V$ obeys
# $V' = (1 - \eta\lambda)^2 V + \eta^2 \sigma^2$. It is stationary where
#
# $$ V = \frac{\eta^2 \sigma^2}{1 - (1 - \eta\lambda)^2} = \frac{\eta\, \sigma^2}{\lambda\, (2 - \eta\lambda)} . $$
#
# The iterates do not converge: they fluctuate around the minimum with a variance that is about proportional to the step
# size. For convergence, the step size must decrease or the batch size must increase. The noise can also help: the
# iterates leave narrow minima and stay in wide ones.

# %%
for eta in (0.02, 0.2, 1.0):
    cloud_of_runs = np.zeros(20_000)
    for _ in range(400):
        cloud_of_runs = cloud_of_runs - eta * (cloud_of_runs + rng.normal(size=20_000))
    assert np.isclose(
        cloud_of_runs.var(), stationary_variance(eta, 1.0, 1.0), rtol=0.05
    )
    assert np.isclose(stationary_variance(eta, 1.0, 1.0), eta / (2 - eta))

# %% [markdown]
# ### 2. Minimum norm
#
# Every gradient is $2 X^\top (Xw - y)$, in the row space of $X$; from zero, $w$ is always a sum of such vectors. Let
# $w$ be the limit, with $Xw = y$, and $w'$ any other solution. Then $X(w' - w) = 0$: the difference is orthogonal to
# all rows of $X$, hence to $w$. By Pythagoras $\|w'\|^2 = \|w\|^2 + \|w' - w\|^2 \ge \|w\|^2$. $\square$

# %%
difference = elsewhere.weights - from_zero.weights
assert (
    abs(examples @ difference).max() < 1e-8
    and abs(difference @ from_zero.weights) < 1e-8
)
norms = [np.sum(v**2) for v in (elsewhere.weights, from_zero.weights, difference)]
assert np.isclose(norms[0], norms[1] + norms[2])

# %% [markdown]
# ### 3. No free lunch
#
# Pair each labeling of the unseen points with its complement. A prediction that is correct for one is wrong for the
# other, so in each pair the accuracies add up to 1. $\square$

# %%
# complements are at mirrored positions
assert np.allclose(clever.accuracies + clever.accuracies[::-1], 1)
