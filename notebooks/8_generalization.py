# %% [markdown]
# # Generalization: what the training error does not determine
#
# A net with zero training error may have a low or a high test error. **What decides which?** The classical answer is
# the complexity of the model (sections 1 and 2). It works for polynomials, but nets that fit any labels, even random
# ones, still generalize (sections 3 and 4). The answer must also consider the *algorithm*, which selects one of all
# models that fit (sections 5 and 6), and its noise (section 7). Section 8 has what can be guaranteed: a bound, and a
# theorem on what no learner can do.
#
# Experiments with random numbers are repeated for several draws, and the text states in how many of them a claim holds.
# What depends on one draw is stated as seen once.

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
from jaxblocks.theory import (
    batch_noise,
    conservation_drift,
    matrix_completion,
    max_margin_bias,
    min_norm_bias,
    no_free_lunch,
    random_labels,
    relu_covariance,
    selection_optimism,
    stationary_variance,
    width_sweep,
)

# %% [markdown]
# ## 1. Bias and variance
#
# A training set $D$ of 15 noisy values of a function $h$ is drawn, and a polynomial $f_D$ is fitted to it. Another
# training set gives another polynomial. Which error is to be expected?
#
# **Theorem.** At a fixed $x$ let $y = h(x) + \xi$ with noise of mean 0 and variance $\tau^2$ that is independent of
# $D$, and let $\bar f(x) = E_D f_D(x)$. Then
#
# $$ E\, (f_D(x) - y)^2 = \underbrace{(\bar f(x) - h(x))^2}_{\text{bias}^2}
#    + \underbrace{E_D (f_D(x) - \bar f(x))^2}_{\text{variance}} + \underbrace{\tau^2}_{\text{noise}} . $$
#
# *Proof.* Write $f_D - y = (f_D - \bar f) + (\bar f - h) - \xi$ and expand the square. The first and the third term
# have mean 0 and are independent, the second is a constant: all mixed terms have mean 0. $\square$
#
# The next cell draws 500 training sets with a fixed grid of $x$, fits polynomials of degree 0 to 12 to each, and
# averages over 200 points between the ends. The variance increases with the degree, and the bias does not (an even
# degree more changes nothing, since $h$ is odd): their sum is smallest at degree 3. To the left is **underfitting**, to
# the right **overfitting**.

# %%
x_train, x_test = np.linspace(-1, 1, 15), np.linspace(-1, 1, 200)
target = lambda x: np.sin(3 * x)
tau = 0.2
draws = np.random.default_rng(0)
y_train = target(x_train) + tau * draws.normal(size=(500, 15))  # 500 training sets
degrees = np.arange(13)


def features(x, degree):
    """Legendre polynomials: well conditioned on [-1, 1], unlike powers of x."""
    return np.polynomial.legendre.legvander(x, degree)


def predictions(degree, y):
    fit = np.linalg.pinv(features(x_train, degree))  # least squares
    return y @ (features(x_test, degree) @ fit).T  # (training sets, points)


fits = [predictions(degree, y_train) for degree in degrees]
# The fit is linear in y: its mean is the fit to the values without noise.
means = [predictions(degree, target(x_train)) for degree in degrees]
bias2 = np.array([np.mean((f - target(x_test)) ** 2) for f in means])
variance = np.array([np.mean(f.var(0)) for f in fits])
fresh_noise = tau * draws.normal(size=(500, 200))
measured = [np.mean((f - target(x_test) - fresh_noise) ** 2) for f in fits]
assert np.allclose(measured, bias2 + variance + tau**2, rtol=0.05)
assert (np.diff(bias2) < 1e-9).all() and (np.diff(variance) > 0).all()
best_degree = int(np.argmin(bias2 + variance))
assert best_degree == 3
figure, (left, right) = plt.subplots(1, 2, figsize=(6.5, 3), layout="constrained")
for degree in (1, 3, 12):
    label = {f"degree {degree}": fits[degree][0]}
    (line,) = plotting.curves(x_test, label, left).lines[-1:]
    line.set_linestyle({1: "--", 3: "-", 12: "-."}[degree])
    line.set_color({1: "#D55E00", 3: "#0072B2", 12: "#009E73"}[degree])
left.plot(x_train, y_train[0], "ko", markersize=3, label="training set")
left.set(xlabel="x", ylabel="y", ylim=(-2.7, 1.6))
left.legend(fontsize=8, loc="lower right")
errors = {"bias squared": bias2, "variance": variance, "sum": bias2 + variance}
plotting.curves(degrees, errors, right)
right.set(xlabel="degree", ylabel="mean squared error", yscale="log", ylim=(1e-4, 40))
right.set_xticks(range(0, 13, 3))
legend = right.legend(fontsize=8, loc="upper center")

# %% [markdown]
# For least squares the variance has a closed form: averaged over the *training* points it is $\tau^2\, p / n$ with $p$
# parameters and $n$ points, for every design with linearly independent features. (The prediction is $P y$ with a
# projection $P$ of rank $p$, and $\mathrm{tr}\, P P^\top = p$.)
#
# **Exercise 1.** Complete the two functions. Rows of `predicted` belong to training sets, columns to points.


# %% tags=["exercise"]
def squared_bias(predicted, truth):
    return 0.0  # complete this line


def variance_of_fit(parameters, points, noise_variance):
    return 0.0  # complete this line


# %% tags=["solution"]
def squared_bias(predicted, truth):
    return np.mean((predicted.mean(0) - truth) ** 2)


def variance_of_fit(parameters, points, noise_variance):
    return noise_variance * parameters / points


# %% tags=["check"]
by_hand = [squared_bias(f, target(x_test)) for f in fits[:4]]
assert np.allclose(by_hand, bias2[:4], rtol=0.1), (
    "first the mean over training sets, then the square"
)
for p in (1, 4, 9):
    basis = features(x_train, p - 1)
    at_train = y_train @ (basis @ np.linalg.pinv(basis)).T
    assert np.isclose(
        variance_of_fit(p, 15, tau**2), at_train.var(0).mean(), rtol=0.1
    ), "compare the number of parameters with the number of points"

# %% [markdown]
# ## 2. Regularization and early stopping
#
# A model can be kept complex and its variance reduced. **Ridge regression** minimizes $\|\Phi w - y\|^2 + \lambda
# \|w\|^2$. **Early stopping** takes $t$ steps of gradient descent on $\frac12 \|\Phi w - y\|^2$, from zero. Both shrink
# the solution of least squares, along the same directions:
#
# **Theorem.** Let $\Phi = \sum_i s_i u_i v_i^\top$ be the singular value decomposition. Then the fitted values are
# $\sum_i g_i\, \langle u_i, y \rangle\, u_i$ with the factors
#
# $$ g_i = \frac{s_i^2}{s_i^2 + \lambda} \ \text{(ridge)}, \qquad g_i = 1 - (1 - \eta s_i^2)^t \ \text{(early
#    stopping with step size } \eta) . $$
#
# *Proof.* Ridge: $w = (\Phi^\top \Phi + \lambda I)^{-1} \Phi^\top y$, and $v_i$ is an eigenvector of
# $\Phi^\top \Phi + \lambda I$ for $s_i^2 + \lambda$. Gradient descent: with $c_i = \langle v_i, w \rangle$ each step is
# $c_i \leftarrow c_i - \eta s_i (s_i c_i - \langle u_i, y \rangle)$, so the distance of $s_i c_i$ from
# $\langle u_i, y \rangle$ is multiplied by $1 - \eta s_i^2$ in each step, and it is $\langle u_i, y \rangle$ at the
# start. $\square$
#
# For $0 < \eta \le 1 / s_1^2$ both factors lie between 0 and 1 and are larger for larger $s_i$: directions in which the
# data vary most are fitted first. $\lambda = 1 / (\eta t)$ makes them similar, not equal. Below: polynomials of degree
# 12, in a basis in which higher degrees have smaller features.

# %%
weights_of_degree = 0.6 ** np.arange(13)
phi_train = features(x_train, 12) * weights_of_degree
phi_test = features(x_test, 12) * weights_of_degree
u, s, vt = np.linalg.svd(phi_train, full_matrices=False)
eta = 1 / s[0] ** 2
strengths = np.geomspace(1e-6, 1e2, 49)


def test_error(factors):
    fit = phi_test @ (vt.T * (factors / s)) @ u.T
    predicted = y_train @ fit.T
    return np.mean((predicted - target(x_test)) ** 2)


ridge_factors = lambda strength: s**2 / (s**2 + strength)
stop_factors = lambda steps: 1 - (1 - eta * s**2) ** steps
ridge_errors = np.array([test_error(ridge_factors(lam)) for lam in strengths])
stop_errors = np.array([test_error(stop_factors(1 / (eta * k))) for k in strengths])
unregularized = test_error(np.ones(13))
figure, (left, right) = plt.subplots(1, 2, figsize=(6.5, 3), layout="constrained")
middle = strengths[24]
plotting.curves(
    s,
    {"ridge": ridge_factors(middle), "stopping": stop_factors(1 / (eta * middle))},
    left,
)
left.set(xlabel="singular value", ylabel="factor", xscale="log", ylim=(0, 1.3))
left.legend(fontsize=8, loc="upper left")
plotting.curves(strengths, {"ridge": ridge_errors, "stopping": stop_errors}, right)
right.axhline(unregularized, color="0.4", linestyle=":", label="least squares")
right.set(
    xlabel="$\\lambda$, or $1/(\\eta t)$",
    ylabel="error",
    xscale="log",
    yscale="log",
    ylim=(1e-2, 5),
)
right.legend(fontsize=8, loc="upper center")
assert ridge_errors.min() < 0.2 * unregularized
assert stop_errors.min() < 0.2 * unregularized
assert 0.7 < ridge_errors.min() / stop_errors.min() < 1.4
assert ridge_errors[0] > 3 * ridge_errors.min() < ridge_errors[-1]

# %% [markdown]
# ### Early stopping of a net
#
# Now real data: 300 handwritten digits, of which 30 % get a random label. A net with 128 hidden units is trained, from
# five initializations and with five draws of the labels, and tested after every fifth step. In each of the five the
# test error is smallest between step 40 and step 80, and more than twice as large after 300 steps, when the net has
# fitted the wrong labels. A validation set finds the step; `jaxblocks.training.early_stopping` is the callback of
# `fit`.

# %%
images, digits = jb.datasets.digits()
mixed = np.random.default_rng(0).permutation(len(images))
pixels, digits = images.reshape(-1, 64)[mixed], digits[mixed]
few, known, held_out, held_digits = (
    pixels[:300],
    digits[:300],
    pixels[300:],
    digits[300:],
)
small = jb.MLP(128, 10)
adam = optax.adam(2e-3)


@jax.jit
@jax.vmap
def training_curves(key):
    init_key, which_key, label_key = jax.random.split(key, 3)
    wrong = jax.random.bernoulli(which_key, 0.3, (300,))
    labels = jnp.where(wrong, jax.random.randint(label_key, (300,), 0, 10), known)
    loss = lambda params: jb.softmax_cross_entropy(small.apply(params, few), labels)

    def step(carry, _):
        params, state = carry
        gradient = jax.grad(lambda params: loss(params).mean())(params)
        updates, state = adam.update(gradient, state)
        return (optax.apply_updates(params, updates), state), None

    def five_steps(carry, _):
        params, state = jax.lax.scan(step, carry, None, length=5)[0]
        wrong_on = lambda x, y: jnp.mean(small.apply(params, x).argmax(-1) != y)
        return (params, state), (wrong_on(few, labels), wrong_on(held_out, held_digits))

    params = small.init(init_key, few)
    return jax.lax.scan(five_steps, (params, adam.init(params)), None, length=60)[1]


of_training, of_test = map(
    np.asarray, training_curves(jax.random.split(jax.random.key(0), 5))
)
stopped = 5 * (of_test.argmin(1) + 1)
print("best steps:", stopped)
print("test error there:", of_test.min(1).round(3))
print("test error at the end:", of_test[:, -1].round(3))
assert ((stopped > 40) & (stopped < 80)).all()
assert (of_test[:, -1] > 2 * of_test.min(1)).all() and (of_training[:, -1] < 0.02).all()
figure, ax = plt.subplots(figsize=(5.5, 3), layout="constrained")
of_run = {"training labels": of_training[0], "test": of_test[0]}
plotting.curves(np.arange(5, 301, 5), of_run, ax)
ax.axvline(stopped[0], color="0.4", linestyle=":", label="smallest test error")
ax.set(xlabel="step", ylabel="share of errors", ylim=(0, 1))
legend = ax.legend()

# %% [markdown]
# **Exercise 2.** Complete the factors of ridge regression and of early stopping.


# %% tags=["exercise"]
def shrinkage(singular_values, strength):
    return 0 * singular_values  # complete this line


def after_steps(singular_values, step_size, steps):
    return 0 * singular_values  # complete this line


# %% tags=["solution"]
def shrinkage(singular_values, strength):
    return singular_values**2 / (singular_values**2 + strength)


def after_steps(singular_values, step_size, steps):
    return 1 - (1 - step_size * singular_values**2) ** steps


# %% tags=["check"]
y_one = y_train[0]
normal = phi_train.T @ phi_train
w_ridge = np.linalg.solve(normal + 0.1 * np.eye(13), phi_train.T @ y_one)
assert np.allclose(u @ (shrinkage(s, 0.1) * (u.T @ y_one)), phi_train @ w_ridge), (
    "compare with the solution of the normal equations"
)
w_descent = np.zeros(13)
for _ in range(50):
    w_descent = w_descent - eta * phi_train.T @ (phi_train @ w_descent - y_one)
assert np.allclose(
    u @ (after_steps(s, eta, 50) * (u.T @ y_one)), phi_train @ w_descent
), "each step multiplies the distance by 1 - eta * s ** 2"

# %% [markdown]
# ## 3. Double descent
#
# Section 1 suggests that a model with more parameters than data must fail. Take models of increasing width: $m$ random
# ReLU features, of which only the output layer is fitted, to 20 points, with minimum norm where the fit is not unique.
# Near $m = 20$ the model can just interpolate, with very large weights, and the test error has a peak. With fifty times
# as many units as points the error has *decreased again*: **double descent** (Belkin et al. 2019). In all six draws
# below the widest model is better than every model with at most 20 units, and the peak is at 18 to 30 units.
#
# It is not a law of nature: it needs a fit that selects a small norm, and with the best regularization the peak can
# vanish (Nakkiran et al. 2021).

# %%
widths = [2, 5, 10, 15, 18, 20, 22, 30, 50, 100, 300, 1000]
descents = []
for seed in range(6):
    drawn = np.random.default_rng(seed)
    inputs = drawn.normal(size=(220, 3))
    inputs /= np.linalg.norm(inputs, axis=1, keepdims=True)
    outputs = np.sin(2 * inputs[:, 0]) + inputs[:, 1] * inputs[:, 2]
    noisy = outputs[:20] + 0.1 * drawn.normal(size=20)
    descents.append(
        width_sweep(
            inputs[:20],
            noisy,
            inputs[20:],
            outputs[20:],
            widths=widths,
            key=jax.random.key(seed),
            samples=10,
        )
    )
test_errors = np.array([one.test for one in descents])  # (draws, widths)
narrow = np.array(widths) <= 20
assert (test_errors[:, -1] < test_errors[:, narrow].min(1)).all()
peaks = np.array(widths)[test_errors[:, 2:].argmax(1) + 2]
assert ((peaks >= 18) & (peaks <= 30)).all()
figure, ax = plt.subplots(figsize=(5.5, 3), layout="constrained")
ax.loglog(widths, test_errors.T, color="0.7", linewidth=0.8)
ax.loglog(widths, np.median(test_errors, 0), "o-", label="test, median of 6 draws")
train_errors = np.median([one.train for one in descents], 0)
visible = np.where(train_errors > 1e-6, train_errors, np.nan)
ax.loglog(widths, visible, "^--", label="training, median")
ax.axvline(20, color="0.4", linestyle=":", label="20 points")
ax.set(xlabel="units", ylabel="mean squared error", ylim=(1e-3, 60))
legend = ax.legend(fontsize=8, loc="upper right")

# %% [markdown]
# **Depth.** How many layers are best? No theorem answers this for a given task. In this experiment nets with 16 units
# per layer are trained with Adam for 250 steps on 64 noisy values of a sine, in 20 draws of data and initialization.
# Two hidden layers are better than one in most draws. Eight are better than four in some and worse in others, and the
# medians of four and eight are about equal; the cell prints the shares. Another task, or another number of steps, may
# give another result.

# %%
wave = lambda x: jnp.sin(8 * x[:, 0])
even = jnp.linspace(-1, 1, 200)[:, None]


def errors_at_depth(depth, keys):
    hidden = [layer for _ in range(depth) for layer in (jb.Dense(16), jb.relu)]
    net, optimizer = jb.Serial(*hidden, jb.Dense(1)), optax.adam(0.01)

    def trained(key):
        place_key, noise_key, init_key = jax.random.split(key, 3)
        x = jax.random.uniform(place_key, (64, 1), minval=-1, maxval=1)
        y = wave(x) + 0.1 * jax.random.normal(noise_key, (64,))
        error = lambda params: jnp.mean((net.apply(params, x)[:, 0] - y) ** 2)

        def step(carry, _):
            params, state = carry
            updates, state = optimizer.update(jax.grad(error)(params), state)
            return (optax.apply_updates(params, updates), state), None

        params = net.init(init_key, x)
        carry = params, optimizer.init(params)
        (params, _), _ = jax.lax.scan(step, carry, None, length=250)
        return jnp.mean((net.apply(params, even)[:, 0] - wave(even)) ** 2)

    return np.asarray(jax.jit(jax.vmap(trained))(keys))


depths, keys = (0, 1, 2, 4, 8), jax.random.split(jax.random.key(0), 20)
by_depth = {depth: errors_at_depth(depth, keys) for depth in depths}
two_wins = np.mean(by_depth[2] < by_depth[1])
eight_wins = np.mean(by_depth[8] < by_depth[4])
print(f"two layers better than one: {two_wins:.0%}; eight than four: {eight_wins:.0%}")
assert two_wins > 0.75 and 0.25 < eight_wins < 0.85
medians = np.array([np.median(by_depth[depth]) for depth in depths])
assert 0.7 < medians[4] / medians[3] < 1.4 and medians[2] < medians[1] < medians[0]
figure, ax = plt.subplots(figsize=(5.5, 2.8), layout="constrained")
for i, depth in enumerate(depths):
    ax.semilogy(np.full(20, i), by_depth[depth], "o", color="0.6", markersize=3)
ax.semilogy(range(5), medians, "_", color="#D55E00", markersize=18, label="median")
ax.set_xticks(range(5), depths)
ax.set(xlabel="hidden layers", ylabel="test error")
legend = ax.legend()

# %% [markdown]
# **Exercise 3.** The model of the figure has minimum norm. Complete the fit of $v$ to $F v = y$ with *more* columns
# than rows: the solution with the smallest norm, without `pinv` and `lstsq`. (It is a combination of the rows of $F$.)


# %% tags=["exercise"]
def smallest_solution(rows, values):
    return np.zeros(rows.shape[1])  # complete this line


# %% tags=["solution"]
def smallest_solution(rows, values):
    return rows.T @ np.linalg.solve(rows @ rows.T, values)


# %% tags=["check"]
wide = np.random.default_rng(1).normal(size=(5, 12))
goal = np.arange(5.0)
assert np.allclose(wide @ smallest_solution(wide, goal), goal), "the fit is not exact"
assert np.allclose(smallest_solution(wide, goal), np.linalg.pinv(wide) @ goal), (
    "the fit is exact, but its norm is not the smallest"
)

# %% [markdown]
# ## 4. Random labels
#
# Train a net with 256 hidden units on 500 handwritten digits. Then permute the labels at random, so that images and
# labels are independent, and train again from the same initial params (Zhang et al. 2017). In this run both nets reach
# a training accuracy of 100 %. On the other 1,297 digits the first is correct for 97 %, the second for 11 %, which is
# about chance.

# %%
memorized = random_labels(
    jb.MLP(256, 10),
    pixels[:500],
    jnp.asarray(digits[:500]),
    pixels[500:],
    jnp.asarray(digits[500:]),
    key=jax.random.key(0),
    optimizer=optax.adam(5e-3),
    steps=140,
)
print(memorized)
assert memorized.train.tolist() == [1, 1]
assert memorized.test[0] > 0.95 and 0.07 < memorized.test[1] < 0.13
figure, ax = plt.subplots(figsize=(5.5, 3), layout="constrained")
memorized.plot(ax)
ax.set_ylim(1e-4, 60)
legend = ax.legend(fontsize=8, loc="upper center")

# %% [markdown]
# Architecture, size, optimizer, initialization and training error of both nets are the same. So **no bound on the test
# error that depends only on these can explain the 97 %**: it would hold for the second net, too, whose error is 89 %.
# An explanation must use the data or what the algorithm does with them.
#
# **Exercise 4.** How well does memory alone generalize? Complete the rule of the nearest neighbor: the label of the
# training image with the smallest distance. It has training error 0 by construction.


# %% tags=["exercise"]
def nearest_label(image, training_images, training_labels):
    return training_labels[0]  # complete this line


# %% tags=["solution"]
def nearest_label(image, training_images, training_labels):
    return training_labels[np.sum((training_images - image) ** 2, 1).argmin()]


# %% tags=["check"]
by_memory = [nearest_label(one, pixels[:500], digits[:500]) for one in pixels[500:700]]
assert np.mean(by_memory == digits[500:700]) > 0.9, (
    "compute the distance to each training image, and take the label of the nearest"
)

# %% [markdown]
# ## 5. Implicit bias
#
# ### Minimum norm
#
# **Theorem.** Let $X$ have more columns than rows, and let $Xw = y$ have a solution. Gradient descent on $\frac12 \|X w
# - y\|^2$ with a step size $0 < \eta < 2 / s_1^2$ ($s_1$ is the largest singular value of $X$) converges to the
# solution nearest to its start $w_0$; from zero, to the solution of minimum norm.
#
# *Proof.* Each gradient $X^\top (Xw - y)$ lies in the row space of $X$, so $w - w_0$ does, too. Within the row space
# the distance from the solutions is multiplied by at most $\max_i |1 - \eta s_i^2| < 1$ in each step, over the nonzero
# $s_i$: it converges to some $w$ with $Xw = y$. For any other solution $w'$ the difference $w' - w$ is orthogonal to
# all rows, hence to $w - w_0$, and by Pythagoras $\|w' - w_0\|^2 = \|w - w_0\|^2 + \|w' - w\|^2$. $\square$
#
# A preference of the algorithm that is not part of the loss is called an **implicit bias**.

# %%
system = np.random.default_rng(2)
examples, answers = system.normal(size=(10, 30)), system.normal(size=10)
from_zero = min_norm_bias(examples, answers)
elsewhere = min_norm_bias(examples, answers, start=system.normal(size=30))
assert np.allclose(from_zero.weights, np.linalg.pinv(examples) @ answers, atol=1e-10)
assert max(from_zero.error, elsewhere.error) < 1e-20
assert max(from_zero.deviation, elsewhere.deviation) < 1e-9
norms = [np.linalg.norm(one.weights) for one in (from_zero, elsewhere)]
print(f"both fit exactly; norms {norms[0]:.2f} (from zero), {norms[1]:.2f} (elsewhere)")
assert norms[1] > norms[0]

# %% [markdown]
# ### Maximum margin
#
# **Theorem** (Soudry et al. 2018). Let the classes be linearly separable, and let the step size be below $2 / \beta$
# ($\beta$ is the smoothness of the loss). Then gradient descent on the logistic loss has $\|w\| \to \infty$, and for
# almost every data set $w / \|w\|$ converges to the direction of the largest margin, at the rate $1 / \log t$.
#
# The loss never stops the growth, since larger weights always have a lower loss. Below, the margin of the normalized
# weights approaches the largest margin and stays below it.

# %%
two_classes = np.random.default_rng(0)
side = np.where(two_classes.random(40) < 0.5, -1, 1)
cloud = two_classes.normal(size=(40, 2)) * [1, 0.3] + side[:, None] * [1.5, 0.8]
keep = side * cloud[:, 1] > 0.3  # a gap between the classes
separable, side = cloud[keep], side[keep]
margin = max_margin_bias(separable, (side > 0).astype(int), steps=10_000)
assert (margin.margins <= margin.best.margin).all() and (
    np.diff(margin.norms) > 0
).all()
assert 0.9 * margin.best.margin < margin.margins[-1]
assert (
    margin.angles[-1] < margin.angles[0] / 5 and margin.norms[-1] > 3 * margin.norms[0]
)
figure, (left, right) = plt.subplots(1, 2, figsize=(6.5, 3), layout="constrained")
for sign, marker, color in ((-1, "o", "#0072B2"), (1, "^", "#D55E00")):
    here = separable[side == sign]
    left.plot(*here.T, marker, color=color, markersize=4, label=f"class {sign:+d}")
across = np.array([-4.0, 4.0])
directions = {"descent": margin.weights, "largest margin": margin.best.direction}
for (name, w), dash in zip(directions.items(), ("-", "--"), strict=True):
    left.plot(across, -across * w[0] / w[1], "k" + dash, linewidth=1, label=name)
left.set(xlabel="$x_1$", ylabel="$x_2$", xlim=(-4, 4), ylim=(-2.2, 4.5))
left.legend(fontsize=8, loc="upper left", ncols=2)
margin.plot(right)
low, high = margin.margins.min(), margin.best.margin
right.set_ylim(low - 0.1 * (high - low), high + 0.1 * (high - low))
legend = right.legend(fontsize=8, loc="lower right")

# %% [markdown]
# ### Low rank
#
# A product $W_1 W_2 \cdots W_L$ of matrices without activations is a **deep linear net**. It represents the same
# functions as a single matrix of the same size, but gradient descent behaves differently (Arora et al. 2019). Take a
# $12 \times 12$ matrix of rank 2, of which about two thirds of the entries are observed, and fit the observed entries,
# from a small initialization. In six draws of matrix, mask and initialization, the error on the *unobserved* entries,
# relative to their size:
#
# * one factor: at least 0.7 in every draw. The gradient at an unobserved entry is 0, so it keeps its initial value.
# * two factors: from 0.05 to 0.61. Two factors do not recover the matrix reliably.
# * three factors: below 0.05 in all six.

# %%
completions = []
for seed in range(6):
    drawn = np.random.default_rng(seed)
    low_rank = drawn.normal(size=(12, 2)) @ drawn.normal(size=(2, 12))
    mask, key = drawn.random((12, 12)) < 0.67, jax.random.key(seed)
    completions.append(matrix_completion(low_rank, mask, key=key, steps=3000))
unobserved = np.array([one.unobserved_error for one in completions])
for factors, found in zip((1, 2, 3), unobserved.T, strict=True):
    print(f"{factors} factors: error on unobserved entries", found.round(2))
assert all((one.observed_error < 0.01).all() for one in completions)
assert (unobserved[:, 0] > 0.7).all() and (unobserved[:, 2] < 0.05).all()
assert unobserved[:, 1].min() < 0.1 and unobserved[:, 1].max() > 0.5
assert (unobserved[:, 2] < unobserved[:, 1]).all()
figure, ax = plt.subplots(figsize=(5.5, 3), layout="constrained")
completions[0].plot(ax)
legend = ax.legend(title="one draw")

# %% [markdown]
# **What is conserved.** Let $f(x) = x\, W_1 W_2 \cdots W_L$ for rows $x$. On every loss that depends only on the
# product, gradient flow, $\dot W_l = -\partial \mathcal L / \partial W_l$, conserves
#
# $$ W_l^\top W_l - W_{l+1} W_{l+1}^\top , \qquad l = 1, \dots, L - 1 . $$
#
# *Proof.* With $G$ the gradient with respect to the product, $\partial \mathcal L / \partial W_l = A^\top G B^\top$,
# where $A = W_1 \cdots W_{l-1}$ and $B = W_{l+1} \cdots W_L$. So $W_l^\top\, \partial_{W_l} \mathcal L =
# (A W_l)^\top G B^\top = \partial_{W_{l+1}} \mathcal L\; W_{l+1}^\top$ (the last factor of $B^\top$ is
# $W_{l+1}^\top$). Hence $\frac{d}{dt} W_l^\top W_l$ and $\frac{d}{dt} W_{l+1} W_{l+1}^\top$ are the same symmetric
# matrix. $\square$
#
# So factors that are balanced at the start stay balanced. Steps of finite size $\eta$ change the quantity by
# $O(\eta^2)$ each, in total by $O(\eta)$: below, steps that are ten times smaller give a tenth of the drift. With the
# factors in the wrong order, $W_l W_l^\top - W_{l+1}^\top W_{l+1}$, the drift does not depend on $\eta$: that matrix is
# not conserved.

# %%
drawn = np.random.default_rng(3)
factors = [drawn.normal(size=(4, 4)) / 2 for _ in range(3)]
rows, goals = drawn.normal(size=(2, 20, 4))
step_sizes = np.array([1e-2, 1e-3, 1e-4])
drift = conservation_drift(factors, rows, goals, step_sizes=[*step_sizes])


def descent_to_time_one(step_size):
    moved, gram, cross = list(factors), rows.T @ rows / 20, rows.T @ goals / 20
    for _ in range(round(1 / step_size)):
        one, two, three = moved
        g = gram @ one @ two @ three - cross
        gradients = g @ (two @ three).T, one.T @ g @ three.T, (one @ two).T @ g
        moved = [w - step_size * d for w, d in zip(moved, gradients, strict=True)]
    return moved


right_order = lambda ws: [a.T @ a - b @ b.T for a, b in itertools.pairwise(ws)]
wrong_order = lambda ws: [a @ a.T - b.T @ b for a, b in itertools.pairwise(ws)]
ends = [descent_to_time_one(size) for size in step_sizes]
change = lambda f, ws: np.max(np.abs(np.subtract(f(ws), f(factors))))
kept, lost = ([change(f, ws) for ws in ends] for f in (right_order, wrong_order))
assert np.allclose(kept, drift.drifts, rtol=1e-6) and abs(drift.order - 1) < 0.02
assert np.allclose(lost, lost[-1], rtol=0.05) and lost[-1] > 100 * kept[-1]
figure, ax = plt.subplots(figsize=(5, 2.8), layout="constrained")
ax.loglog(step_sizes, kept, "o-", label="$W_l^T W_l - W_{l+1} W_{l+1}^T$")
ax.loglog(step_sizes, lost, "^--", label="$W_l W_l^T - W_{l+1}^T W_{l+1}$")
ax.set(xlabel="step size", ylabel="change until time 1", ylim=(1e-6, 40))
legend = ax.legend(loc="lower right")

# %% [markdown]
# **Exercise 5.** Complete the solution of $Xw = y$ that is nearest to a given start.


# %% tags=["exercise"]
def nearest_solution(matrix, values, start):
    return start  # complete this line


# %% tags=["solution"]
def nearest_solution(matrix, values, start):
    # The smallest change that fits the rest.
    return start + np.linalg.pinv(matrix) @ (values - matrix @ start)


# %% tags=["check"]
assert np.allclose(
    nearest_solution(examples, answers, elsewhere.start), elsewhere.weights, atol=1e-8
), "the change from the start is the solution of minimum norm of another system"

# %% [markdown]
# ## 6. Initialization and infinite width
#
# The initial params must not be *constant*: hidden units with equal weights compute the same, have equal gradients, and
# stay equal. A layer of 16 such units is equivalent to one unit.

# %%
net, three = jb.MLP(16, 1), jax.random.normal(jax.random.key(4), (32, 3))
same = jax.tree.map(
    lambda leaf: jnp.full(leaf.shape, 0.1), net.init(jax.random.key(0), three)
)
error = lambda params: jnp.mean((net.apply(params, three)[:, 0] - three[:, 0]) ** 2)


@jax.jit
def hundred_steps(params):
    step = lambda params, _: (
        jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(error)(params)),
        None,
    )
    return jax.lax.scan(step, params, None, length=100)[0]


hidden = np.asarray(hundred_steps(same)[0]["kernel"])  # (inputs, units)
assert np.ptp(hidden, axis=1).max() < 1e-6 and abs(hidden - 0.1).max() > 0.05

# %% [markdown]
# They must not be *too large or too small*. For a ReLU layer without biases, with independent weights of mean 0 and
# variance $c / n$ ($n$ inputs) and a symmetric distribution, the expected mean square of the outputs is $c / 2$ times
# that of the inputs: each pre-activation has a symmetric distribution with the second moment $\frac{c}{n} \|x\|^2$, and
# ReLU keeps half of it. Over 30 layers only $c = 2$ preserves it in expectation (He et al. 2015); $c = 1$ leaves
# $2^{-30} \approx 10^{-9}$. Below are 50 nets of width 60 for each $c$: the medians of $c = 1$ and $c = 3$ follow the
# dotted lines, and single nets of finite width fluctuate around them.

# %%
drawn = np.random.default_rng(5)
squares = {}
for c in (1, 2, 3):
    h = drawn.normal(size=(50, 1, 60))
    squares[c] = [np.mean(h**2, (1, 2))]
    for _ in range(30):
        h = np.maximum(0, h @ drawn.normal(size=(50, 60, 60)) * np.sqrt(c / 60))
        squares[c].append(np.mean(h**2, (1, 2)))
logs = {c: np.log10(found) for c, found in squares.items()}  # (layers, nets)
figure, ax = plt.subplots(figsize=(5, 3), layout="constrained")
plotting.curves(
    np.arange(31), {f"c = {c}": np.median(found, 1) for c, found in logs.items()}, ax
)
for c in (1, 2, 3):
    ax.plot(np.arange(31), np.arange(31) * np.log10(c / 2), ":", color="0.4")
ax.set(xlabel="layer", ylabel="log10 of the mean square")
for c in (1, 2, 3):
    assert abs(np.median(logs[c], 1)[-1] - 30 * np.log10(c / 2)) < 1
assert logs[1][-1].max() < -6 and logs[3][-1].min() > 2 and abs(logs[2][-1]).max() < 3

# %% [markdown]
# ### The limit of infinite width
#
# Take one hidden ReLU layer with independent standard normal weights and no biases, and output weights of variance $2 /
# m$. As the number $m$ of hidden units tends to infinity, the outputs at two unit vectors become jointly Gaussian (Neal
# 1996), with a covariance that depends on $u$, the cosine of the angle between them: $\kappa_1(u) = \big(u (\pi -
# \arccos u) + \sqrt{1 - u^2}\big) / \pi$ (Cho and Saul 2009). In the same limit, with this scaling of the weights and a
# small enough step size, training by gradient descent becomes equivalent to that of a model that is linear in its
# params, with the **neural tangent kernel** $\langle \partial_\theta f(x), \partial_\theta f(x') \rangle$, which no
# longer changes during training (Jacot et al. 2018). At $u = 0.6$ the two values are 0.67755 and 1.10045. The next cell
# compares them with a net of 200,000 random units.

# %%
one, two = jnp.array([[1.0, 0.0]]), jnp.array([[0.6, 0.8]])
kernels = jax.jit(lambda x, y: (relu_covariance(x, y), ntk_relu(x, y)))(one, two)
covariance, tangent = (found.item() for found in kernels)
cosine = 0.6
kappa_1 = (cosine * (np.pi - np.arccos(cosine)) + np.sqrt(1 - cosine**2)) / np.pi
assert abs(covariance - kappa_1) < 1e-6 and round(covariance, 5) == 0.67755
assert round(tangent, 5) == 1.10045
units = np.random.default_rng(6).normal(size=(2, 200_000))
first, second = (np.maximum(0, np.asarray(v) @ units) for v in (one, two))
both_active = np.mean((first > 0) & (second > 0))
assert abs(2 * np.mean(first * second) - covariance) < 0.01
assert abs(2 * np.mean(first * second) + 2 * cosine * both_active - tangent) < 0.01

# %% [markdown]
# **Exercise 6.** Which variance $c / n$ of the weights preserves the mean square through layers with the activation
# $\max(0.1 z, z)$ (leaky ReLU)? Complete `gain`.


# %% tags=["exercise"]
def gain(slope):
    return 1.0  # complete this line


# %% tags=["solution"]
def gain(slope):
    # Half of the second moment is kept, and the other half multiplied by slope ** 2.
    return 2 / (1 + slope**2)


# %% tags=["check"]
deep = np.random.default_rng(7).normal(size=(50, 1, 64))
for _ in range(20):
    deep = deep @ np.random.default_rng(_).normal(size=(50, 64, 64)) / 8
    deep = np.maximum(0.1 * deep, deep) * np.sqrt(gain(0.1))
assert abs(np.log10(np.median(np.mean(deep**2, (1, 2))))) < 0.6, (
    "which part of the second moment does the activation keep?"
)

# %% [markdown]
# ## 7. Gradient noise
#
# **Theorem.** The mean gradient of a minibatch of $B$ out of $N$ examples, drawn uniformly without replacement, is an
# unbiased estimate of the full gradient. With $\Sigma$ the covariance of the gradients of single examples
# (normalized by $N$) its covariance is
#
# $$ \frac{\Sigma}{B} \cdot \frac{N - B}{N - 1} . $$
#
# *Proof.* Let $g_i$ be the gradients minus their mean, so that $\sum_i g_i = 0$. The covariance of two different draws
# is $\frac{1}{N (N-1)} \sum_{i \ne j} g_i g_j^\top = -\frac{1}{N (N-1)} \sum_i g_i g_i^\top = -\frac{\Sigma}{N - 1}$.
# The mean of $B$ draws has the covariance $\frac{1}{B^2} \big(B \Sigma - B (B - 1) \frac{\Sigma}{N - 1}\big) =
# \frac{\Sigma}{B} \cdot \frac{N - B}{N - 1}$. $\square$
#
# Twice the batch size halves the covariance for $B \ll N$, and for the whole data set it is zero. First the exact
# formula, over all 15 batches of 2 out of 6 examples; then the figure, which estimates the noise from random batches.

# %%
drawn = np.random.default_rng(8)
six, six_y = drawn.normal(size=(6, 3)).astype("f4"), drawn.normal(size=6).astype("f4")
squared = lambda w, x, y: (jnp.vdot(w, x) - y) ** 2
of_each = jax.jit(lambda x, y: per_example_gradients(squared, jnp.ones(3), x, y))
singles = np.asarray(of_each(six, six_y), np.float64)
batches = np.array(
    [singles[[i, j]].mean(0) for i, j in itertools.combinations(range(6), 2)]
)
spread_of = lambda g: (g - g.mean(0)).T @ (g - g.mean(0)) / len(g)
assert len(batches) == 15 and np.allclose(batches.mean(0), singles.mean(0))
assert np.allclose(spread_of(batches), spread_of(singles) / 2 * (6 - 2) / (6 - 1))

many = jax.random.normal(jax.random.key(5), (128, 3))
wanted = many[:, 0] + jax.random.normal(jax.random.key(6), (128,))
noise = batch_noise(squared, jnp.zeros(3), many, wanted, key=jax.random.key(7))
assert np.allclose(noise.measured, noise.predicted, rtol=0.2)
figure, ax = plt.subplots(figsize=(5.5, 3), layout="constrained")
axes = noise.plot(ax)

# %% [markdown]
# Where the predicted line crosses the dotted one, the noise is as large as the gradient (McCandlish et al. 2018).
#
# **Exercise 7.** For $\frac{\lambda}{2} x^2$ and $x_{t+1} = x_t - \eta (\lambda x_t + \xi_t)$, with independent noise
# of mean 0 and variance $\sigma^2$ and $0 < \eta\lambda < 2$, complete the variance of $x_t$ as $t \to \infty$.


# %% tags=["exercise"]
def limit_variance(step_size, curvature, noise_variance):
    return 0.0  # complete this line


# %% [markdown] tags=["solution"]
# The variance $V$ obeys $V \leftarrow (1 - \eta\lambda)^2 V + \eta^2 \sigma^2$. It is stationary where
# $V = \eta^2 \sigma^2 / (1 - (1 - \eta\lambda)^2) = \eta\, \sigma^2 / (\lambda (2 - \eta\lambda))$. The iterates do not
# converge: they fluctuate around the minimum with a variance that is about proportional to the step size for small
# steps. So the step size must decrease, or the batch size increase.


# %% tags=["solution"]
def limit_variance(step_size, curvature, noise_variance):
    return step_size * noise_variance / (curvature * (2 - step_size * curvature))


# %% tags=["check"]
for size in (0.02, 0.2, 1.0):
    runs = np.zeros(10_000)
    for _ in range(400):
        runs = runs - size * (runs + np.random.default_rng(_).normal(size=10_000))
    assert np.isclose(limit_variance(size, 1.0, 1.0), runs.var(), rtol=0.05), (
        "write the variance after a step by the variance before it, and solve"
    )
assert np.isclose(limit_variance(0.5, 2.0, 3.0), stationary_variance(0.5, 2.0, 3.0)), (
    "the curvature and the variance of the noise are not 1 here"
)

# %% [markdown]
# ## 8. What can be guaranteed
#
# **Theorem** (Hoeffding and the union bound). Let $f_1, \dots, f_K$ be classifiers that are fixed *before* $n$
# independent examples are drawn. With probability at least $1 - \delta$ the true error of **every** $f_k$, hence of the
# one that is chosen with these examples, differs from its error on them by at most
#
# $$ \sqrt{\frac{\log(2 K / \delta)}{2 n}} . $$
#
# *Proof.* For one classifier the errors on the examples are independent and lie in $[0, 1]$, so by Hoeffding's
# inequality the mean deviates by more than $\epsilon$ with probability at most $2 e^{-2 n \epsilon^2}$. For any of $K$
# the probability is at most $K$ times as large. With the $\epsilon$ above this is $\delta$. $\square$
#
# **A use of it:** model selection. Let $K$ classifiers guess at random on 100 test examples. The best of 1,000 has an
# expected accuracy of 66 % on this test set, and of 50 % on a new one. The bound (dashed) says how large such a
# deviation can be; it is not far above. So three sets are needed: for training, for selection, and for the final
# evaluation (`train_val_test_split`).
#
# **Its limit:** a net with $P$ params of 32 bits is one of $K = 2^{32 P}$ classifiers. For the net of section 4 and its
# 500 training examples the bound is 21, and an error is at most 1: it says nothing. This is what section 4 predicts,
# since it uses only the model and the number of examples. For one fixed net and the 1,297 other digits it is 3.8 % with
# 95 % probability: **measure, on data that were not used**.

# %%
chosen = selection_optimism(key=jax.random.key(8))
bound = lambda count, n, delta=0.05: np.sqrt((np.log(2 / delta) + count) / (2 * n))
best_of = dict(zip(chosen.classifiers.tolist(), chosen.expected, strict=True))
assert round(best_of[1000], 2) == 0.66
assert np.allclose(chosen.simulated, chosen.expected, atol=0.02)
assert np.allclose(chosen.fresh, 0.5, atol=0.02)
limits = 0.5 + bound(np.log(chosen.classifiers), 100)
assert (chosen.simulated < limits).all()
params_of_net = 64 * 256 + 256 + 256 * 10 + 10
vacuous = bound(32 * params_of_net * np.log(2), 500)
useful = bound(0.0, 1297)
print(f"bound for the net as one of 2^(32 P): {vacuous:.0f}; for one net: {useful:.3f}")
assert 20 < vacuous and round(useful, 3) == 0.038
figure, ax = plt.subplots(figsize=(5.5, 3), layout="constrained")
found = {
    "best, same test set": chosen.simulated,
    "bound": limits,
    "the same, new test set": chosen.fresh,
}
plotting.curves(chosen.classifiers, found, ax)
ax.set(xlabel="classifiers", ylabel="accuracy", xscale="log", ylim=(0.45, 0.95))
legend = ax.legend(loc="upper left")

# %% [markdown]
# ### No free lunch
#
# **Theorem** (Wolpert 1996). Whatever a learner predicts on 10 unseen points, its accuracy averaged over all $2^{10}$
# labelings of these points is exactly one half.
#
# *Proof.* Pair each labeling with its complement. A prediction that is correct for one is wrong for the other, so in
# each pair the accuracies add up to 1. $\square$
#
# Without assumptions nothing can be learned. Learning works where real labelings are not uniformly random, and the
# biases of architecture (notebook 5), loss and algorithm match them.

# %%
clever = no_free_lunch(np.array([1, 0, 1, 1, 0, 1, 0, 0, 1, 1]))
silly = no_free_lunch(np.zeros(10, int))
assert clever.mean == silly.mean == 0.5 and len(clever.accuracies) == 1024
assert np.allclose(clever.accuracies + clever.accuracies[::-1], 1)  # complements

# %% [markdown]
# **Exercise 8.** How many test examples does one fixed classifier need, so that its error is known to 1 % with
# probability 95 %? Complete the function (the smallest integer).


# %% tags=["exercise"]
def examples_needed(deviation, delta):
    return 1  # complete this line


# %% tags=["solution"]
def examples_needed(deviation, delta):
    return int(np.ceil(np.log(2 / delta) / (2 * deviation**2)))


# %% tags=["check"]
needed = examples_needed(0.01, 0.05)
assert bound(0.0, needed) <= 0.01, "the bound is still larger than the deviation"
assert bound(0.0, needed - 1) > 0.01, "fewer examples suffice"
