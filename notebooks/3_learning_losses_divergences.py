# %% [markdown]
# # Learning: losses and divergences
#
# Notebook 1 asked which functions a network *can* compute. Now a network has to approximate a function that is known
# only from examples. A number, the **loss**, measures the error of the network, and training minimizes it. **Which loss
# should we minimize?** For a temperature, the squared error is a natural choice. For the label of an image, the squared
# error works badly, and a loss with a logarithm is used. Where does the logarithm come from? Is a small loss the only
# goal?
#
# **Prerequisites:** calculus, basic probability, basic Python, and nets as in notebook 1. An `assert` in the next code
# cell checks each claim of the text. The homework at the end has solutions.
#
# **Sources:** Diehl, *lecture notes* (2023), sections 1.3 and 1.4; Krapac & Šegvić, *Deep feed-forward models*; Cevher,
# *Mathematics of Data*; Huszár, *DeepNN lecture 3*. Labels start at 0 here, as indices in Python do; in Diehl and
# Cevher they start at 1. Some formulas in these sources contain errors. For each error, this notebook gives the printed
# form, a counterexample and the corrected form.

# %%
import itertools
import math

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import jaxblocks as jb
from jaxblocks import plotting
from jaxblocks.theory.generalization import degree_sweep, polynomial_fit

# %% [markdown]
# ## 1. Empirical risk minimization
#
# **Given** are pairs $(x_i, y_i)$, $i = 1, \dots, N$, of inputs and targets. If the target is a vector of numbers, the
# task is *regression*; if it is one of $n$ classes, the task is *classification*. **Chosen** are a family of functions
# $f_\theta$, for instance all nets of some architecture with params $\theta$, and a loss for a single example. Training
# minimizes the mean loss over the data:
#
# $$ \theta^* \in \operatorname{argmin}_\theta\; \frac1N \sum_{i=1}^N \mathrm{loss}\big(f_\theta(x_i), y_i\big)
#    \;\;\Big(+\; \lambda\, \Omega(\theta)\Big) . $$
#
# The last term is optional. It penalizes params that are unlikely a priori, such as large ones.
#
# The targets of the training data are already known. The goal is a small error on *new* inputs. Therefore some data are
# held out; the mean loss on them is the **test loss**. The next cell fits polynomials of increasing degree to 16 noisy
# points of a curve.

# %%
rng = np.random.default_rng(1)
curve = lambda x: np.sin(3 * x)
x, test_x = np.sort(rng.uniform(-1, 1, 16)), rng.uniform(-0.95, 0.95, 500)
y, test_y = (
    curve(x) + 0.25 * rng.normal(size=16),
    curve(test_x) + 0.25 * rng.normal(size=500),
)
sweep = degree_sweep(x, y, test_x, test_y, degrees=range(13))
line = np.linspace(-1, 1, 301)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.3), layout="constrained")
plotting.curves(
    line,
    {f"degree {d}": polynomial_fit(x, y, d)(line) for d in (1, sweep.best, 12)},
    left,
)
left.plot(x, y, "ko", markersize=4)
left.set_ylim(-2, 2)
axes = plotting.curves(
    sweep.complexity, {"training": sweep.train, "test": sweep.test}, right
)
axes.set(yscale="log", xlabel="degree", ylabel="mean squared error")
assert (np.diff(sweep.train) <= 1e-12).all()
assert (
    sweep.test[1] > 1.5 * sweep.test[sweep.best]
    and sweep.test[12] > 5 * sweep.test[sweep.best]
)

# %% [markdown]
# As the degree grows, the training loss never increases. The test loss decreases and then increases: from some degree
# on, the polynomial fits the noise. This is **overfitting**.
#
# If the test loss selects the degree, then the test loss of the selected model is a biased estimate. A simulation with
# random classifiers shows the size of this bias. Each classifier is right with probability one half. Test $K$ of them
# on 100 examples and report the best accuracy:

# %%
for K, expected in ((1, 0.5), (10, 0.58), (100, 0.625), (1000, 0.662)):
    # one column per classifier, 400 repetitions
    hits = np.random.default_rng(0).binomial(100, 0.5, size=(400, K))
    best = hits.max(1).mean() / 100
    print(f"best of {K:4}: accuracy {best:.3f}")
    assert abs(best - expected) < 0.015

# %% [markdown]
# The best of 1000 random classifiers reaches almost two thirds, but on new data its accuracy is one half. The data are
# therefore split into **three** parts: one for training, one for model selection (*validation*), and one for a single
# test at the end.

# %%
train, validation, test = jb.train_val_test_split(jax.random.key(0), (test_x, test_y))
assert [len(part[0]) for part in (train, validation, test)] == [350, 75, 75]
# no example in two parts
assert len({float(x) for part in (train, validation, test) for x in part[0]}) == 500

# %% [markdown]
# ### Sum or mean
#
# Gradient descent takes steps against the gradient (see notebook 4).
#
# > **Huszár states** $\theta \leftarrow \theta - \eta\, \nabla L(\theta)$ with a loss $L$ that is a *sum* over the
# > data; the others use means.
#
# **Counterexample:** let ten examples have the loss $\tfrac12 (\theta - 1)^2$ each, and let $\eta = 0.5$. With the
# mean, each step halves the distance from 1. With the sum, each step multiplies it by $1 - 10 \cdot 0.5 = -4$.
# **Correction:** both losses have the same minimum, but a change from the mean to the sum requires dividing $\eta$ by
# $N$. With the mean, $\eta$ does not depend on the number of examples. (The gradient is evaluated at the current point:
# $\theta_{t+1} = \theta_t - \eta \nabla L(\theta_t)$.)

# %%
targets = jnp.ones(10)
for how, factor in ((jnp.mean, 0.5), (jnp.sum, -4.0)):
    risk = lambda theta, how=how: how((theta - targets) ** 2 / 2)
    theta = 3.0
    after = theta - 0.5 * jax.grad(risk)(theta)
    assert abs((after - 1) - factor * (theta - 1)) < 1e-5

# %% [markdown]
# The gradient of the mean is the mean of the per-example gradients. A step can therefore use a random subset of the
# examples.

# %%
single = lambda theta, target: (theta - target) ** 2 / 2
gradients = jax.vmap(jax.grad(single), (None, 0))(3.0, targets)
assert np.allclose(
    gradients.mean(), jax.grad(lambda theta: jnp.mean(single(theta, targets)))(3.0)
)

# %% [markdown]
# ## 2. Regression losses
#
# For vectors $v$ (predicted) and $w$ (true) with $d$ entries,
#
# $$ \mathrm{MSE} = \frac1d \sum_j (v_j - w_j)^2, \qquad \mathrm{MAE} = \frac1d \sum_j |v_j - w_j| . $$
#
# The losses differ in the *constant* that best predicts a set of numbers. For the squared error it is the mean. For the
# absolute error it is the median, which is robust to a single outlier. `huber_loss` is quadratic near 0 and linear
# further away.

# %%
numbers = jnp.array([1.0, 2.0, 2.5, 3.0, 12.0])
guesses = jnp.linspace(0, 8, 801)
mean_loss = lambda loss: jax.jit(
    jax.vmap(lambda guess: loss(jnp.full(5, guess), numbers))
)(guesses)
curves = {
    name: mean_loss(loss)
    for name, loss in {"MSE": jb.mse, "MAE": jb.mae, "Huber": jb.huber_loss}.items()
}
best = {name: float(guesses[values.argmin()]) for name, values in curves.items()}
assert (
    abs(best["MSE"] - numbers.mean()) < 0.01
    and abs(best["MAE"] - jnp.median(numbers)) < 0.01
)
print({name: round(value, 2) for name, value in best.items()})
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
axes = plotting.curves(
    guesses, {name: values / values.min() for name, values in curves.items()}, axes
)
labeled = axes.set(
    xlabel="constant prediction", ylabel="loss, relative to its minimum", ylim=(0.9, 3)
)

# %% [markdown]
# > **Krapac & Šegvić state** for the target $(0, 0, 1)$ and the predictions $(0.8, 0, 0.2)$ and $(0.4, 0.4, 0.2)$:
# > $L_{\mathrm{MSE}} = 1.28$ and $0.96$.
#
# **Counterexample:** $(0.64 + 0 + 0.64) / 3 = 0.427$. **Correction:** 1.28 and 0.96 are *sums* of squares; the means
# are 0.427 and 0.320. Lectures and libraries take sums or means over examples, over entries, or over both, so always
# state the reduction. In jaxblocks, a loss returns one number per example, and you write `.mean()`.

# %%
truth, first, second = (
    jnp.array([0.0, 0, 1]),
    jnp.array([0.8, 0, 0.2]),
    jnp.array([0.4, 0.4, 0.2]),
)
square_sums = [jnp.sum((p - truth) ** 2) for p in (first, second)]
assert np.allclose(jnp.array(square_sums), jnp.array([1.28, 0.96]))
assert np.allclose(
    jnp.array([jb.mse(first, truth), jb.mse(second, truth)]),
    jnp.array([0.4266667, 0.32]),
)

# %% [markdown]
# ### Losses from likelihoods
#
# Many losses are derived from a probability model. The network outputs a probability distribution of $y$, and training
# makes the observed $y$ probable: it minimizes $-\log P(y \mid x; \theta)$, the **negative log-likelihood**. (The
# logarithm turns products over independent examples into sums.) Take a Gaussian distribution with the output $f$ as its
# mean and unit covariance:
#
# > **Krapac & Šegvić state** that the loss is then $(y - f)^2$.
#
# **Counterexample:** for $y = (1, 2)$, $f = (0.5, 1)$ the negative logarithm of the density is 2.4629, while
# $\lVert y - f \rVert^2 = 1.25$. **Correction:** $\tfrac12 \lVert y - f \rVert^2 + \tfrac D2 \log 2\pi$. The factor and
# the constant do not change the minimizer, so the conclusion remains true: the squared error is the loss for Gaussian
# noise.

# %%
y, f = jnp.array([1.0, 2.0]), jnp.array([0.5, 1.0])
density = math.exp(-0.5 * 1.25) / (2 * math.pi)
assert (
    abs(-math.log(density) - 2.462877) < 1e-6
    and abs(jb.gaussian_nll(f, y) - 2.462877) < 1e-6
)
assert abs(0.5 * 1.25 + math.log(2 * math.pi) - 2.462877) < 1e-6

# %% [markdown]
# ## 3. From logits to probabilities
#
# For classes, the network should output probabilities, which are at least 0 and have sum 1. The network computes any
# real numbers $z$, the **logits** (also called **scores**), and the **softmax** converts them to probabilities. (One
# lecture says *score-based classifier*; the "score" of diffusion models is a different quantity.)
#
# $$ \mathrm{softmax}(z)_i = \frac{e^{z_i}}{\sum_j e^{z_j}} . $$
#
# The softmax does not change if the same number is added to all logits. Implementations use this property: they first
# subtract the largest logit, so that nothing overflows.

# %%
z = jnp.array([1000.0, 1001.0, 1002.0])
assert jnp.isnan(jnp.exp(z) / jnp.exp(z).sum()).all()  # inf / inf
assert np.allclose(jb.softmax(z), jnp.array([0.0900306, 0.2447285, 0.6652410]))
assert np.allclose(jb.softmax(z), jb.softmax(z - 1000))

# %% [markdown]
# Only $C - 1$ of $C$ logits are therefore free, and the first one can be fixed at 0 (`softmax_fixed`). For two classes
# one logit remains, and the softmax is the sigmoid of it.

# %%
assert np.allclose(jb.softmax(jnp.array([0.0, 1.5]))[1], jb.sigmoid(jnp.array(1.5)))
assert np.allclose(
    jb.probabilities.softmax_fixed(jnp.array([1.5])), jb.softmax(jnp.array([0.4, 1.9]))
)

# %% [markdown]
# > **The lecture notes state** that the values of the softmax lie in $(0, 1]$.
#
# **Correction:** the value 1 occurs only if there is a single class. For two or more classes each value is strictly
# between 0 and 1. (Floating point arithmetic rounds: the logits 0 and 200 give exactly 0 and 1.)

# %%
assert jb.softmax(jnp.array([5.0])) == 1
assert jb.softmax(jnp.array([0.0, 5.0])).max() < 1
assert jb.softmax(jnp.array([0.0, 200.0])).tolist() == [0, 1]

# %% [markdown]
# The name is misleading: the softmax is a soft *argmax* (another name for it is `softargmax`). The soft **maximum** is
# the logarithm of the sum of exponentials, $\mathrm{LSE}(z) = \log \sum_i e^{z_i}$; its gradient is the softmax.
# Another soft maximum is the mean of the logits under their own softmax.
#
# > **Krapac & Šegvić state** softmax-mean$(z, q) = \mathrm{softmax}(z)^\top x$ for it, and
# > $\mathrm{LSE} \approx \max$.
#
# **Errors:** the second argument has two different names; the formula is $\mathrm{softmax}(z)^\top q$. The error of
# "$\approx$" is not stated: for $C$ equal logits, $\mathrm{LSE} = \max + \log C$. **Correction:**
# $0 \le \mathrm{LSE} - \max \le \log C$, while the softmax-mean is at most the maximum.

# %%
z = jnp.array([1.0, 2.0, 3.0])
assert (
    abs(jb.logsumexp(z) - 3.4076060) < 1e-6
    and abs(jb.probabilities.softmax_mean(z, z) - 2.5752104) < 1e-6
)
assert np.allclose(jax.jit(jax.grad(jb.logsumexp))(z), jb.softmax(z))
assert np.allclose(jb.logsumexp(jnp.full(3, 7.0)), 7 + math.log(3))
line = np.linspace(-5, 5, 201)
pairs = jnp.asarray(np.stack([line, 0 * line], -1), jnp.float32)  # (z, 0) for many z
soft = {
    "LSE(z, 0)": jb.logsumexp,
    "max(z, 0)": lambda x: x.max(-1),
    "softmax-mean": lambda x: jb.probabilities.softmax_mean(x, x),
}
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
axes = plotting.curves(
    line, {name: jax.jit(f)(pairs) for name, f in soft.items()}, axes
)

# %% [markdown]
# ## 4. Divergences between distributions
#
# The network predicts $Q$, and the true distribution is $P$; both are probabilities of $n$ classes. A true label $i$ is
# also a distribution, $e_i = (0, \dots, 1, \dots, 0)$, called **one-hot**. A loss is thus a kind of distance between
# distributions. There are several common choices.
#
# **Total variation** is the largest difference between the probabilities of an event. There are $2^n$ events, the sets
# $A$ of classes. It is not necessary to evaluate all of them: the best $A$ contains the classes for which $P$ is
# larger, and
#
# $$ \sup_A |P(A) - Q(A)| = \tfrac12 \sum_i |P_i - Q_i| . $$

# %%
rng = np.random.default_rng(0)
P, Q = rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(6))
events = [list(A) for size in range(7) for A in itertools.combinations(range(6), size)]
largest = max(abs(P[A].sum() - Q[A].sum()) for A in events)
assert len(events) == 2**6
assert np.isclose(largest, 0.7480686952) and np.isclose(largest, 0.5 * abs(P - Q).sum())
assert np.isclose(P[P >= Q].sum() - Q[P >= Q].sum(), largest)
assert (
    abs(
        jb.losses.total_variation(
            jnp.asarray(P, jnp.float32), jnp.asarray(Q, jnp.float32)
        )
        - largest
    )
    < 1e-6
)

# %% [markdown]
# ### Entropy and code lengths
#
# Messages consist of four letters with probabilities $\tfrac12, \tfrac14, \tfrac18, \tfrac18$. A good code gives short
# code words to frequent letters: 0, 10, 110, 111. A letter of probability $p$ gets $\log_2 (1/p)$ bits. The mean length
# is the **entropy** $H(P) = -\sum_i P_i \log P_i$, and no code has a smaller mean length.
#
# If the code of $Q$ encodes letters from $P$, the mean length is the **cross-entropy**
# $\mathrm{CE}(P, Q) = -\sum_i P_i \log Q_i$, which is at least the entropy. The excess length is the **Kullback-Leibler
# divergence**
#
# $$ D_{\mathrm{KL}}(P \,\|\, Q) = \sum_i P_i \log \frac{P_i}{Q_i} = \mathrm{CE}(P, Q) - H(P) . $$

# %%
P = jnp.array([1 / 2, 1 / 4, 1 / 8, 1 / 8])
Q = P[::-1]  # the code for the letters in reverse order
code_lengths = jnp.array([1, 2, 3, 3])
assert P @ code_lengths == 1.75 and P @ code_lengths[::-1] == 2.625
assert np.allclose(jb.entropy(P, base=2), 1.75) and np.allclose(
    jb.cross_entropy(P, Q, base=2), 2.625
)
assert np.allclose(jb.kl_divergence(P, Q, base=2), 2.625 - 1.75)
message = np.random.default_rng(0).choice(4, size=10_000, p=np.asarray(P))
print(
    f"bits per letter: {np.array([1, 2, 3, 3])[message].mean():.3f} and "
    f"{np.array([3, 3, 2, 1])[message].mean():.3f}"
)

# %% [markdown]
# > **The lecture notes state** natural logarithms but use *bits* as the unit. For zeros they state only the convention
# > $0 \log(0/0) = 0$.
#
# **Counterexample:** for $P = (0.5, 0.5)$, $Q = (0.9, 0.1)$ the printed formula gives 0.511, but the excess length is
# 0.737 bits. **Correction:** with natural logarithms the unit is the *nat*; bits need $\log_2$. Two more conventions
# are needed: $0 \log(0/q) = 0$, and $p \log(p/0) = \infty$, because an event of probability 0 under $Q$ has no code
# word.

# %%
p, q = jnp.array([0.5, 0.5]), jnp.array([0.9, 0.1])
assert (
    abs(jb.kl_divergence(p, q) - 0.5108256) < 1e-6
    and abs(jb.kl_divergence(p, q, base=2) - 0.7369656) < 1e-6
)
certain = jnp.array([1.0, 0.0])
assert np.allclose(jb.kl_divergence(certain, p), math.log(2))
assert (
    jb.kl_divergence(p, certain) == jnp.inf and jb.kl_divergence(certain, certain) == 0
)

# %% [markdown]
# **The divergence is not a metric.** It is never negative, and it is 0 only for $P = Q$. But it is not symmetric, and
# it violates the triangle inequality.

# %%
r = jnp.array([0.7, 0.3])
assert abs(jb.kl_divergence(q, p) - 0.3680642) < 1e-6
detour = jb.kl_divergence(p, r) + jb.kl_divergence(r, q)
assert abs(detour - 0.2408403) < 1e-6 and detour < jb.kl_divergence(p, q)

# %% [markdown]
# The plot compares all of these quantities for $P = (0.3, 0.7)$ and $Q = (q, 1 - q)$. (The lecture notes have a similar
# plot without the value of $P$; 0.3 is our choice.) All except the cross-entropy are 0 at $q = 0.3$. The cross-entropy
# has its minimum $H(P)$ there.

# %%
grid = jnp.linspace(0.005, 0.995, 199)
Qs = jnp.stack([grid, 1 - grid], -1)
Ps = jnp.broadcast_to(jnp.array([0.3, 0.7]), Qs.shape)
measures = {
    "total variation": jb.losses.total_variation,
    "$L^1$": lambda p, q: jb.losses.lp_distance(p, q, 1),
    "$L^2$": lambda p, q: jb.losses.lp_distance(p, q, 2),
    "KL(P, Q)": jb.kl_divergence,
    "KL(Q, P)": lambda p, q: jb.kl_divergence(q, p),
    "cross-entropy(P, Q)": jb.cross_entropy,
}
values = {name: jax.jit(measure)(Ps, Qs) for name, measure in measures.items()}
figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
axes = plotting.curves(grid, values, axes)
axes.set_ylim(0, 2.5)
assert all(abs(grid[of_q.argmin()] - 0.3) < 0.003 for of_q in values.values())
at_half = [round(float(of_q[99]), 4) for of_q in values.values()]  # q = 0.5
assert at_half == [0.2, 0.4, 0.2828, 0.0823, 0.0872, 0.6931]

# %% [markdown]
# ### Jensen's inequality
#
# A function $\varphi$ is convex if its graph lies below its chords. **Jensen's inequality** generalizes this to more
# than two points: $\varphi(\sum_i p_i x_i) \le \sum_i p_i \varphi(x_i)$ for weights $p_i \ge 0$ with sum 1. It implies
# that the divergence is never negative. With $\varphi(x) = x \log x$, points $P_i / Q_i$ and weights $Q_i$, the right
# side is $D_{\mathrm{KL}}(P \| Q)$, and the left side is $\varphi(1) = 0$.

# %%
xlogx = lambda x: x * jnp.log(x)
assert np.allclose(
    jb.losses.jensen_gap(xlogx, p / q, q), jb.kl_divergence(p, q), atol=1e-6
)

# %% [markdown]
# These pages contain three errors:
#
# > **The lecture notes state** $\varphi''(x) = \tfrac1x + 1$ for $\varphi(x) = x \log x$.
#
# **Counterexample:** at $x = 2$ the formula gives 1.5, but the second derivative is 0.5. **Correction:**
# $\varphi'(x) = \log x + 1$, $\varphi''(x) = \tfrac1x > 0$.
#
# > **The lecture notes state** in the induction from $n$ to $n + 1$ points the weights $p_i / (1 - p_n)$, $i \le n$.
#
# **Counterexample:** for $p = (0.2, 0.3, 0.5)$ and $n = 2$ these weights are $\tfrac27$ and $\tfrac37$, with sum
# $\tfrac57$. **Correction:** $p_i / (1 - p_{n+1})$, with sum 1.
#
# > **The lecture notes state** for the right side of the convexity inequality of the divergence
# > $\lambda D(P \| Q) + (1 - \lambda) D(P' \| Q)$.
#
# **Counterexample:** for $P = P' = Q = (\tfrac12, \tfrac12)$, $Q' = (0.9, 0.1)$, $\lambda = \tfrac12$ this is 0, but
# the left side, which should be smaller, is 0.0872. **Correction:** the last $Q$ is $Q'$,
#
# $$ D(\lambda P + (1 - \lambda) P' \,\|\, \lambda Q + (1 - \lambda) Q')
#    \le \lambda D(P \| Q) + (1 - \lambda) D(P' \| Q') . $$

# %%
assert np.allclose(jax.grad(jax.grad(xlogx))(2.0), 0.5)
assert math.isclose(0.2 / (1 - 0.3) + 0.3 / (1 - 0.3), 5 / 7) and math.isclose(
    0.2 / (1 - 0.5) + 0.3 / (1 - 0.5), 1
)
left_side = jb.kl_divergence(p, 0.5 * p + 0.5 * q)
printed = 0.5 * jb.kl_divergence(p, p) + 0.5 * jb.kl_divergence(p, p)
corrected = 0.5 * jb.kl_divergence(p, p) + 0.5 * jb.kl_divergence(p, q)
assert (
    abs(left_side - 0.0871767) < 1e-6
    and printed == 0
    and abs(corrected - 0.2554128) < 1e-6
)
assert printed < left_side < corrected

# %% [markdown]
# ## 5. Classification losses
#
# The goal is a small number of wrong predictions. The **0-1 loss** is 1 for a wrong class and 0 for the right one. But
# a small change of the params does not change the predicted class, so the derivative of this loss is 0 almost
# everywhere. Gradient descent cannot minimize it.
#
# Instead, the loss is a divergence between the label, as a distribution, and the predicted probabilities. For a one-hot
# label, $P = e_y$, the entropy is 0, and KL and cross-entropy are the same:
#
# $$ \mathrm{CE}(e_y, Q) = -\log Q_y . $$
#
# This is also the negative log-likelihood of the label, so all derivations give the same loss. With the softmax it is
#
# $$ -\log \mathrm{softmax}(z)_y = \mathrm{LSE}(z) - z_y . $$
#
# The label is the *first* argument. As the second argument it assigns probability 0 to all other classes, and the loss
# is infinite unless the prediction is one-hot as well.

# %%
scores, label = jnp.array([0.1, -0.8, 1.4, 1.1]), jnp.array(2)
one_hot, predicted = jb.one_hot(label, 4), jb.softmax(scores)
expected = 0.7533732
assert abs(jb.softmax_cross_entropy(scores, label) - expected) < 1e-6
assert abs(jb.cross_entropy(one_hot, predicted) - expected) < 1e-6
assert abs(jb.kl_divergence(one_hot, predicted) - expected) < 1e-6
assert abs(jb.nll(jb.log_softmax(scores), label) - expected) < 1e-6
assert abs(jb.logsumexp(scores) - scores[2] - expected) < 1e-6
assert jb.cross_entropy(predicted, one_hot) == jnp.inf
assert jb.predict_class(scores) == 2  # the largest logit; the first one of equal logits
# "label 2" if labels start at 1
assert abs(jb.softmax_cross_entropy(scores, jnp.array(1)) - 2.953373) < 1e-5

# %% [markdown]
# ### Corrections about the cross-entropy
#
# > **Cevher states** $H(a, b) = -\sum_i a_i \log b_i$ for $a, b \in [0, 1]^n$, and PyTorch's `CrossEntropyLoss` as
# > its implementation.
#
# **Counterexample:** $b = (1, 1, 1, 1)$ has all entries in $[0, 1]$ and the loss 0 for every label. **Correction:**
# both arguments must have sum 1. `CrossEntropyLoss` takes *logits* and applies the softmax itself. If you pass
# probabilities, it applies the softmax a second time, and the loss is 1.180 instead of 0.753. `jb.cross_entropy` takes
# probabilities, `jb.softmax_cross_entropy` takes logits; the former raises an error if an argument is not a
# distribution. (On the same slides: the class is `torch.nn.ReLU`, not `ReLu`, and MXNet was a project of Apache, not of
# Microsoft.)

# %%
assert abs(jb.softmax_cross_entropy(predicted, label) - 1.1796) < 1e-4
try:
    jb.cross_entropy(one_hot, jnp.ones(4))
except ValueError as error:
    print(error)

# %% [markdown]
# > **Krapac & Šegvić state** that for a deterministic prediction (a Dirac distribution) the negative log-likelihood
# > is the 0-1 loss.
#
# **Counterexample:** $-\log 0 = \infty$, not 1. **Correction:** it is the loss with the values 0 and $\infty$. The mean
# 0-1 loss of a class drawn from $Q$ is $1 - Q_y$.

# %%
certainly_wrong = jnp.log(jb.one_hot(jnp.array(3), 4))
assert (
    jb.nll(certainly_wrong, label) == jnp.inf
    and jb.zero_one_loss(label, jnp.array(3)) == 1
)
chances = np.asarray(predicted, np.float64)
draws = np.random.default_rng(0).choice(4, size=20_000, p=chances / chances.sum())
assert abs((draws != 2).mean() - (1 - chances[2])) < 0.02

# %% [markdown]
# > **Krapac & Šegvić state** that the negative log-likelihood is an upper bound of the 0-1 loss, and about 0 if the
# > class is right.
#
# **Counterexamples:** the logits $(0, 0.1)$ with label 0 give the wrong class, and the loss is 0.744 nats, less than 1.
# The logits $(1.2, 1, 0.9)$ with label 0 give the right class, and the loss is 0.940. **Correction:** for a wrong class
# $Q_y \le \tfrac12$, so the loss is at least $\log 2$ nats, which is *1 bit*. Hence the loss in bits is an upper bound
# of the 0-1 loss. If the logit of the right class exceeds all others by at least $\delta$, the loss is at most
# $\log(1 + (C - 1) e^{-\delta})$.

# %%
zero = jnp.array(0)
close = jb.softmax_cross_entropy(jnp.array([0.0, 0.1]), zero)
assert abs(close - 0.744397) < 1e-5 and abs(close / math.log(2) - 1.073937) < 1e-5
right = jb.softmax_cross_entropy(jnp.array([1.2, 1.0, 0.9]), zero)
assert abs(right - 0.939831) < 1e-5 and right <= math.log(1 + 2 * math.exp(-0.2))
assert jb.softmax_cross_entropy(jnp.array([10.0, 0.0, 0.0]), zero) < 1e-4

random_scores = jnp.asarray(
    np.random.default_rng(0).normal(size=(20_000, 3)), jnp.float32
)
losses = np.asarray(
    jax.jit(jb.softmax_cross_entropy)(random_scores, jnp.zeros(20_000, jnp.int32))
)
wrong = np.asarray(random_scores).argmax(-1) != 0
assert (losses / math.log(2) >= wrong - 1e-6).all() and (losses < wrong).any()

# %% [markdown]
# ### Cross-entropy and squared error
#
# For two classes with one logit $z$ and $Q_1 = \sigma(z)$, both losses have simple derivatives (homework 2 and 3). For
# $y = 1$:
#
# $$ \frac{d}{dz}\, \mathrm{CE} = \sigma - 1, \qquad
#    \frac{d}{dz}\, (1 - \sigma)^2 = -2\, (1 - \sigma)^2\, \sigma . $$
#
# For large negative $z$ the network is confident and wrong. There, the derivative of the cross-entropy is close to
# $-1$, while the derivative of the squared error is close to 0.

# %%
z = np.linspace(-10, 6, 321, dtype=np.float32)
squared = lambda z: (1 - jb.sigmoid(z)) ** 2
crossed = lambda z: jb.sigmoid_cross_entropy(z, jnp.ones_like(z))
slope_ce, slope_mse = (jax.jit(jax.vmap(jax.grad(loss))) for loss in (crossed, squared))
sigmoid = np.asarray(jb.sigmoid(z))
assert np.allclose(slope_ce(z), sigmoid - 1, atol=1e-6)
assert np.allclose(slope_mse(z), -2 * (1 - sigmoid) ** 2 * sigmoid, atol=1e-6)
assert abs(slope_mse(z)[0] + 9.07875e-5) < 1e-8 and slope_ce(z)[0] < -0.9999
assert (
    abs(slope_mse(z).min() + 8 / 27) < 1e-4
    and abs(z[slope_mse(z).argmin()] + math.log(2)) < 0.05
)


def descend(slope, z=-10.0, step=1.0):
    return jax.lax.scan(
        lambda z, _: (z - step * slope(z[None])[0], z), jnp.array(z), length=60
    )[1]


paths = {"cross-entropy": descend(slope_ce), "squared error": descend(slope_mse)}
assert paths["cross-entropy"][-1] > 3 and paths["squared error"][-1] < -9.9
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
plotting.curves(z, {"cross-entropy": slope_ce(z), "squared error": slope_mse(z)}, left)
left.set(xlabel="logit $z$", ylabel="derivative of the loss for $y = 1$")
axes = plotting.curves(np.arange(60), paths, right)
assert paths["cross-entropy"][12] > 0
labeled = axes.set(
    xlabel="steps of gradient descent from $z = -10$", ylabel="logit $z$"
)

# %% [markdown]
# The right plot shows sixty steps of gradient descent from a confident wrong prediction. The cross-entropy corrects it
# after about twelve steps. With the squared error the logit hardly changes.
#
# ### Soft labels
#
# With one-hot labels the loss is never 0, so the logits grow without bound. **Label smoothing** uses the target
# $(1 - \varepsilon)\, e_y + \varepsilon / C$ instead. **Distillation** uses the probabilities of another network, with
# a temperature that makes them more uniform. Both are cross-entropies with a target that is not one-hot.

# %%
smooth = jb.smooth_labels(one_hot, 0.1)
assert np.allclose(smooth, jnp.array([0.025, 0.025, 0.925, 0.025]))
assert abs(jb.softmax_cross_entropy(scores, smooth) - 0.8483732) < 1e-6
# optimal difference between the right logit and the others
best_gap = math.log(0.925 / 0.025)
ideal = jnp.array([0.0, 0.0, best_gap, 0.0])
gradient = jax.jit(jax.grad(jb.softmax_cross_entropy))(ideal, smooth)
assert abs(best_gap - 3.6109179) < 1e-6 and abs(gradient).max() < 1e-6
assert np.allclose(
    jb.softmax(scores / 10),
    jnp.array([0.2405043, 0.2198043, 0.2738931, 0.2657983]),
    atol=1e-6,
)

# %% [markdown]
# ### Semi-supervised learning
#
# Labels are expensive, inputs are cheap. In **semi-supervised** learning, a model predicts labels for unlabeled inputs
# and is trained on them; such labels are called *pseudo-labels*. If they are probabilities, the cross-entropy accepts
# them directly. If a model learns from its *own* labels, it should start with the predictions of highest confidence. In
# this example two points of 300 have labels (the squares). For about every third point, the nearest of the two has the
# wrong label. The algorithm instead labels the points in order of their distance to a labeled point and repeats this
# step; all 300 labels are then correct.

# %%
rng = np.random.default_rng(0)
moon, angle = rng.integers(0, 2, 300), np.pi * rng.random(300)
moons = np.stack(
    [np.cos(angle) + moon, (1 - 2 * moon) * np.sin(angle) + 0.5 * moon], -1
)
moons = moons + 0.08 * rng.normal(size=(300, 2))
between = np.linalg.norm(moons[:, None] - moons[None], axis=-1)  # pairwise distances
given = [np.hypot(*(moons - tip).T).argmin() for tip in ([-1, 0], [2, 0.5])]
from_two = moon[given][between[:, given].argmin(1)]
pseudo = np.where(np.isin(np.arange(300), given), moon, -1)
while (pseudo < 0).any():
    gaps = np.where((pseudo >= 0)[:, None] & (pseudo < 0)[None], between, np.inf)
    # the closest pair of a labeled and an unlabeled point
    teacher, pupil = np.unravel_index(gaps.argmin(), gaps.shape)
    pseudo[pupil] = pseudo[teacher]
print(
    f"accuracy: {(from_two == moon).mean():.0%} from two labels, "
    f"{(pseudo == moon).mean():.0%} with pseudo-labels"
)
assert (from_two == moon).mean() < 0.7 and (pseudo == moon).all()
figure, axes = plt.subplots(1, 2, figsize=(9, 2.8), layout="constrained", sharey=True)
for ax, labels, title in zip(
    axes,
    (from_two, pseudo),
    ("nearest of the two labels", "pseudo-labels"),
    strict=True,
):
    plotting.points(moons, labels, ax).set_title(title)
    ax.plot(*moons[given].T, "ks", markersize=8)

# %% [markdown]
# ## 6. A complete example
#
# The data are three spiral arms in the plane, and the label is the arm. They are not linearly separable. The code
# splits the data into three parts. A net with two hidden layers computes three logits, the loss is the cross-entropy,
# and `fit` runs the training steps. `fit` keeps the params that are best on the validation data.

# %%
rng = np.random.default_rng(0)
arm = np.repeat(np.arange(3), 200).astype(np.int32)
radius = rng.uniform(0.1, 1, 600)
angle = 2 * np.pi * arm / 3 + 6 * radius + rng.normal(0, 0.2, 600)
points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], -1).astype(
    np.float32
)
train, validation, test = jb.train_val_test_split(jax.random.key(1), (points, arm))

net = jb.MLP(32, 32, 3)
fitted = jb.fit(
    net,
    jb.softmax_cross_entropy,
    optax.adam(2e-2),
    train,
    key=jax.random.key(0),
    epochs=30,
    validation=validation,
    metrics={"accuracy": jb.accuracy},
    progress=False,
)


@jax.jit
def evaluate(params, x, y):
    scores = net.apply(params, x)
    return jb.accuracy(scores, y), jb.confusion_matrix(jb.predict_class(scores), y, 3)


test_accuracy, confusion = evaluate(fitted.params, *test)
print(f"test accuracy {test_accuracy:.3f}; confusion matrix:")
assert test_accuracy > 0.9
confusion

# %% [markdown]
# Rows are the true arms, columns the predicted arms. The left plot shows the loss, the right plot the predicted class
# for each point of the plane.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
fitted.history.plot(left)
plotting.boundary(
    jax.jit(lambda x: net.apply(fitted.params, x)), ((-1.2, 1.2), (-1.2, 1.2)), right
)
axes = plotting.points(test[0], test[1], right)

# %% [markdown]
# For comparison, train a *linear* model with the same call. Its accuracy is not much better than random guessing, which
# is right in a third of the cases.

# %%
layer = jb.Dense(3)
how = dict(key=jax.random.key(0), epochs=30, progress=False)
linear = jb.fit(layer, jb.softmax_cross_entropy, optax.adam(1e-2), train, **how)
linear_accuracy = jb.accuracy(
    layer.apply(linear.params, jnp.asarray(test[0])), jnp.asarray(test[1])
)
assert linear_accuracy < 0.6
print(f"test accuracy of the linear model: {linear_accuracy:.3f}")

# %% [markdown]
# ## Summary
#
# | target | output of the net | loss |
# |---|---|---|
# | numbers, Gaussian noise | their mean | `mse` |
# | numbers, with outliers | their median | `mae`, or `huber_loss` |
# | one of two classes | one logit | `sigmoid_cross_entropy` |
# | one of $C$ classes | $C$ logits | `softmax_cross_entropy` |
# | a distribution | $C$ logits | `softmax_cross_entropy` with soft targets |
#
# Minimizing the cross-entropy in $Q$ is equivalent to minimizing the Kullback-Leibler divergence from the true
# distribution, and to maximizing the likelihood of the observed labels. Notebook 4 shows how to *find* the minimum.
# Notebook 8 asks whether a small training loss implies a small test loss.
#
# ## Homework
#
# 1. **Cross-entropy and KL.** Show that the negative log-likelihood is a special case of both, and that minimizing
#    either in $Q$ is equivalent.
# 2. **Derive** $\partial \ell / \partial z_i = \mathrm{softmax}(z)_i - [y = i]$ for the softmax cross-entropy $\ell$.
# 3. **Derive** $\mathrm{d} \ell / \mathrm{d} z = \sigma(z) - y$ for the cross-entropy of $\sigma(z)$ with a label 0 or
#    1, and the derivative of $(y - \sigma(z))^2$. For which $z$ is the latter steepest?
# 4. **Two wrong predictions** of section 2: $(0.8, 0, 0.2)$ and $(0.4, 0.4, 0.2)$ with target $(0, 0, 1)$. Compare
#    their squared errors and their cross-entropies. Which loss is more suitable?
# 5. **The approximation** $\max \approx \mathrm{LSE}$. Prove $0 \le \mathrm{LSE}(z) - \max z \le \log C$. When are the
#    bounds reached, and how can the approximation be improved?
# 6. **Metrics.** Which of total variation, $L^2$, the square of $\sum_i |P_i - Q_i|^{1/2}$, and KL are metrics?
#
# Try to solve the exercises before you read the solutions.
#
# ## Solutions
#
# **1.** $\mathrm{CE}(P, Q) = D_{\mathrm{KL}}(P \| Q) + H(P)$, and $H(P)$ does not depend on $Q$, so both have the same
# minimizer and the same gradients. For $P = e_y$, $H = 0$ and both are $-\log Q_y$.

# %%
to_scores = lambda divergence: jax.jit(
    jax.grad(lambda z: divergence(smooth, jb.softmax(z)))
)(scores)
assert np.allclose(to_scores(jb.cross_entropy), to_scores(jb.kl_divergence), atol=1e-6)
difference = jb.cross_entropy(smooth, predicted) - jb.kl_divergence(smooth, predicted)
assert np.allclose(difference, jb.entropy(smooth), atol=1e-6)

# %% [markdown]
# **2.** $\ell = \log \sum_j e^{z_j} - z_y$. The derivative of the first term with respect to $z_i$ is
# $e^{z_i} / \sum_j e^{z_j} = \mathrm{softmax}(z)_i$, that of the second is $-[y = i]$. The entries sum to 0, because
# adding the same number to all logits does not change the loss.

# %%
gradient = jax.jit(jax.grad(jb.softmax_cross_entropy))(scores, jnp.array(1))
assert np.allclose(
    gradient, jnp.array([0.1283014, -0.9478365, 0.4707758, 0.3487593]), atol=1e-6
)
assert (
    np.allclose(gradient, predicted - jb.one_hot(jnp.array(1), 4), atol=1e-6)
    and abs(gradient.sum()) < 1e-6
)

# %% [markdown]
# **3.** $\ell = -y \log \sigma - (1 - y) \log (1 - \sigma)$ and $\sigma' = \sigma (1 - \sigma)$, so
# $\ell' = -y (1 - \sigma) + (1 - y) \sigma = \sigma - y$. For the squared error the derivative is
# $2 (\sigma - y)\, \sigma (1 - \sigma)$. For $y = 1$ its absolute value is $2 (1 - \sigma)^2 \sigma$. It is largest at
# $\sigma = \tfrac13$, where $z = -\log 2$, and its value there is $\tfrac{8}{27}$.

# %%
half = jnp.array(0.5)
value, slope = jax.jit(jax.value_and_grad(jb.sigmoid_cross_entropy))(
    half, jnp.array(0.0)
)
assert abs(value - 0.9740770) < 1e-6 and abs(slope - 0.6224593) < 1e-6
assert np.allclose(slope_mse(jnp.full(321, -math.log(2))), -8 / 27, atol=1e-6)

# %% [markdown]
# **4.** The squared error is smaller for the second prediction, 0.96 against 1.28; the cross-entropy is
# $-\log 0.2 = 1.609$ for both. The cross-entropy depends only on the probability of the true class, not on the
# distribution of the rest over the wrong classes. This is suitable for labels: no wrong class is better than another.

# %%
assert all(
    abs(jb.cross_entropy(truth, guess) - 1.6094379) < 1e-6 for guess in (first, second)
)

# %% [markdown]
# **5.** Let $m = \max z$. The sum $\sum_i e^{z_i}$ has a term $e^m$, and each of its $C$ terms is at most $e^m$. Hence
# $e^m \le \sum_i e^{z_i} \le C e^m$; take logarithms. The upper bound is reached for equal logits. The lower bound is
# reached only in the limit, as the differences between the logits tend to infinity. The error of
# $\mathrm{LSE}(\lambda z) / \lambda$ is at most $\log C / \lambda$.

# %%
for sharpness in (1, 10, 100):
    off = jb.logsumexp(sharpness * scores) / sharpness - scores.max()
    print(
        f"lambda = {sharpness:3}: error {off:.6f}, bound {math.log(4) / sharpness:.6f}"
    )
    assert -1e-6 < off <= math.log(4) / sharpness

# %% [markdown]
# **6.** Total variation and $L^2$ are metrics. The third is not, because it violates the triangle inequality. From
# $P = (\tfrac12, 0, \tfrac12, 0)$ via $R = (0, \tfrac12, \tfrac12, 0)$ to $Q = (0, \tfrac12, 0, \tfrac12)$ the sum is
# $2 + 2$, but the direct value is 8. (This is why $L^p$ requires $p \ge 1$.) KL is not symmetric and also violates the
# triangle inequality (section 4).

# %%
root = lambda a, b: (abs(np.asarray(a) - np.asarray(b)) ** 0.5).sum() ** 2
P, R, Q = [0.5, 0, 0.5, 0], [0, 0.5, 0.5, 0], [0, 0.5, 0, 0.5]
assert np.allclose([root(P, R), root(R, Q), root(P, Q)], [2, 2, 8])
