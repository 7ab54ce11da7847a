# %% [markdown]
# # Learning: losses and divergences
#
# Notebook 1 asked which functions a network *can* compute. Now a network has to approximate a function that is
# known only from examples. A number, the **loss**, measures the error of the network, and training minimizes it.
# **Which loss should we minimize?** For a temperature, the squared error is a natural choice. For the label of an
# image, a loss with a logarithm is used. Where does the logarithm come from?
#
# **Prerequisites:** notebook 0, calculus, basic probability. Labels start at 0. Every section ends with an
# exercise: a cell to complete, and a cell that checks it.
#
# **Sources:** Vapnik 1998 (empirical risk); Huber 1964 (robust losses); Shannon 1948, Kullback and Leibler 1951
# (entropy and divergence); Cover and Thomas 2006; Diehl, *lecture notes* (2023), sections 1.3 and 1.4; Krapac and
# Šegvić, *Deep feed-forward models*.

# %%
import heapq
import itertools
import math

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import jaxblocks as jb
from jaxblocks import plotting
from jaxblocks.datasets import digits
from jaxblocks.theory import degree_sweep, polynomial_fit

# %% [markdown]
# ## 1. Empirical risk minimization
#
# **Given** are pairs $(x_i, y_i)$, $i = 1, \dots, N$, of inputs and targets. If the target is a vector of numbers,
# the task is *regression*; if it is one of $n$ classes, the task is *classification*. **Chosen** are a family of
# functions $f_\theta$, for instance all nets of some architecture with params $\theta$, and a loss for a single
# example. Training minimizes the mean loss over the data:
#
# $$ \theta^* \in \operatorname{argmin}_\theta\; \frac1N \sum_{i=1}^N \mathrm{loss}\big(f_\theta(x_i), y_i\big)
#    \;\;\Big(+\; \lambda\, \Omega(\theta)\Big) . $$
#
# The last term is optional. It penalizes params that are unlikely a priori, such as large ones.
#
# **The targets of the training data are already known; the goal is a small error on *new* inputs.** Therefore some
# data are held out; the mean loss on them is the **test loss**. The next cell fits polynomials of increasing degree
# to 16 noisy points of a curve.

# %%
curve = lambda x: np.sin(3 * x)


def noisy(seed):
    """16 points to fit and 500 to test, on the curve and with noise."""
    rng = np.random.default_rng(seed)
    x, test_x = np.sort(rng.uniform(-1, 1, 16)), rng.uniform(-0.95, 0.95, 500)
    noise, test_noise = 0.25 * rng.normal(size=16), 0.25 * rng.normal(size=500)
    return x, curve(x) + noise, test_x, curve(test_x) + test_noise


data = noisy(1)
sweep = degree_sweep(*data, degrees=range(13))
line = np.linspace(-1, 1, 301)
fits = {f"degree {d}": polynomial_fit(*data[:2], d)(line) for d in (1, sweep.best, 12)}
figure, (left, right) = plt.subplots(1, 2, figsize=(6.5, 2.9), layout="constrained")
plotting.curves(line, fits, left)
left.plot(*data[:2], "ko", markersize=4, label="_points")
left.set(ylim=(-2, 3.2), xlabel="$x$", ylabel="$y$")
left.legend(loc="upper center", ncols=2, fontsize=8)
losses = {"training": sweep.train, "test": sweep.test}
axes = plotting.curves(sweep.complexity, losses, right)
named = axes.set(yscale="log", xlabel="degree", ylabel="mean squared error")

# %% [markdown]
# The training loss never increases with the degree, because the polynomials of a degree contain those of smaller
# degree. The test loss decreases and then increases: from some degree on, the polynomial fits the noise. This is
# **overfitting**. It is not special to these 16 points; the next cell repeats the experiment 50 times.

# %%
sweeps = [degree_sweep(*noisy(seed), degrees=range(13)) for seed in range(50)]
assert all((np.diff(sweep.train) <= 1e-12).all() for sweep in sweeps)
best = np.array([sweep.best for sweep in sweeps])
over = np.array([sweep.test[12] / sweep.test[sweep.best] for sweep in sweeps])
print(f"best degree: {best.min()} to {best.max()}; the test loss of degree 12 is more")
print(f"than three times that of the best degree in {(over > 3).sum()} of 50 cases")
assert best.min() >= 3 and best.max() <= 7 and (over > 3).sum() >= 48
assert all(sweep.test[1] > 1.5 * sweep.test[sweep.best] for sweep in sweeps)

# %% [markdown]
# **Three parts.** If the test loss selects the degree, then the test loss of the selected model is too small an
# estimate. How much, shows an example: $K$ classifiers guess, each right with probability $\tfrac12$. Test all on
# the same 100 examples and report the best accuracy. If $F$ is the distribution function of the number of right
# answers of one of them, the maximum of $K$ independent ones has the distribution function $F^K$.

# %%
ways = np.array([math.comb(100, k) / 2**100 for k in range(101)])
for K in (1, 10, 100, 1000):
    expected = np.sum(1 - np.cumsum(ways)[:-1] ** K) / 100  # E max = sum of P(max > k)
    # one column per classifier, 400 repetitions
    hits = np.random.default_rng(0).binomial(100, 0.5, size=(400, K))
    print(f"best of {K:4}: {expected:.3f}, simulated {hits.max(1).mean() / 100:.3f}")
    assert abs(hits.max(1).mean() / 100 - expected) < 0.01
assert expected > 0.66

# %% [markdown]
# The best of 1000 guessers has almost two thirds, but on new data its accuracy is one half. The data are therefore
# split into **three** parts: one for training, one for model selection (*validation*), and one for a single test at
# the end.

# %%
images, labels = digits()
whole = images.reshape(-1, 64), labels
train, validation, test = jb.train_val_test_split(jax.random.key(0), whole)
sizes = [len(part[1]) for part in (train, validation, test)]
print("digits to train, to select and to test:", sizes)
assert sum(sizes) == 1797

# %% [markdown]
# **Sum or mean.** The sum of the losses and their mean have the same minimum, but not the same gradient: the sum's
# is $N$ times as long. A step size that works with the mean has to be divided by $N$ for the sum. The gradient of
# the mean is the mean of the gradients of the examples, so a random subset gives an estimate of it.

# %%
targets = jnp.ones(10)
for how, factor in ((jnp.mean, 0.5), (jnp.sum, -4.0)):
    risk = lambda theta, how=how: how((theta - targets) ** 2 / 2)
    after = 3.0 - 0.5 * jax.grad(risk)(3.0)
    assert abs((after - 1) - factor * (3.0 - 1)) < 1e-5  # the distance to the minimum

# %% [markdown]
# **Exercise 1.** Write the gradient of the mean loss as the mean of the gradients of the examples, with `jax.vmap`.


# %% tags=["exercise"]
def mean_of_gradients(loss, theta, x, y):
    """For a loss(theta, x_i, y_i) and a number theta."""
    return 0.0 * theta  # complete this line


# %% tags=["solution"]
def mean_of_gradients(loss, theta, x, y):
    """For a loss(theta, x_i, y_i) and a number theta."""
    return jax.vmap(jax.grad(loss), (None, 0, 0))(theta, x, y).mean()


# %% tags=["check"]
line_loss = lambda theta, x, y: (theta * x - y) ** 2
xs, ys = jnp.arange(4.0), jnp.array([1.0, 0.0, 2.0, 5.0])
whole_gradient = jax.grad(lambda t: line_loss(t, xs, ys).mean())(2.0)
found = mean_of_gradients(line_loss, 2.0, xs, ys)
assert np.isclose(found, whole_gradient), f"expected {whole_gradient}, got {found}"

# %% [markdown]
# ## 2. Regression losses
#
# For vectors $v$ (predicted) and $w$ (true) with $d$ entries,
#
# $$ \mathrm{MSE} = \frac1d \sum_j (v_j - w_j)^2, \qquad \mathrm{MAE} = \frac1d \sum_j |v_j - w_j| . $$
#
# The losses differ in the *constant* $c$ that best predicts a set of numbers $w_j$. The derivative of $\sum (c -
# w_j)^2$ is 0 at the mean. The derivative of $\sum |c - w_j|$ is the number of $w_j$ below $c$ minus the number
# above, so it changes its sign at the median, on which the size of an outlier has no influence. The loss of Huber
# (1964), `huber_loss`, is quadratic for errors up to 1 and linear beyond.

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
axes.legend(loc="upper center", ncols=3)
labeled = axes.set(
    xlabel="constant prediction", ylabel="loss / its minimum", ylim=(0.9, 3.4)
)

# %% [markdown]
# Libraries and texts take sums or means over examples, over entries, or over both, so always state the reduction. In
# jaxblocks, a loss returns one number per example, and you write `.mean()`.
#
# **Losses from likelihoods.** Many losses are derived from a probability model. The network outputs a probability
# distribution of $y$, and training makes the observed $y$ probable: it minimizes $-\log P(y \mid x; \theta)$, the
# **negative log-likelihood**. (The logarithm turns products over independent examples into sums.) For a Gaussian
# distribution with the output $f \in \mathbb R^D$ as its mean and unit covariance, it is
#
# $$ \tfrac12 \lVert y - f \rVert^2 + \tfrac D2 \log 2\pi . $$
#
# The factor and the constant do not change the minimizer: the squared error is the loss for Gaussian noise. For a
# Laplace distribution, $\tfrac12 e^{-|y - f|}$, it is the absolute error.

# %%
y, f = jnp.array([1.0, 2.0]), jnp.array([0.5, 1.0])
density = math.exp(-0.5 * 1.25) / (2 * math.pi)
assert abs(jb.gaussian_nll(f, y) + math.log(density)) < 1e-6
assert abs(0.5 * 1.25 + math.log(2 * math.pi) + math.log(density)) < 1e-9

# %% [markdown]
# **Exercise 2.** The *pinball loss* of an error $e = w - c$ is $\tau e$ for $e \ge 0$ and $(\tau - 1) e$ for $e <
# 0$, with $0 < \tau < 1$. Write it. Which constant minimizes its mean?


# %% tags=["exercise"]
def pinball(c, w, tau):
    return (w - c) ** 2  # complete this line


# %% [markdown] tags=["solution"]
# The minimizer is the quantile: the share $\tau$ of the numbers lies below it. The derivative of the sum with
# respect to $c$ is $(1 - \tau)$ times the number of $w_j$ below $c$ minus $\tau$ times the number above.


# %% tags=["solution"]
def pinball(c, w, tau):
    return jnp.maximum(tau * (w - c), (tau - 1) * (w - c))


# %% tags=["check"]
sample = jnp.asarray(np.random.default_rng(0).normal(size=999), jnp.float32)
candidates = jnp.linspace(-3, 3, 601)
means = jax.vmap(lambda c: pinball(c, sample, 0.9).mean())(candidates)
found = candidates[means.argmin()]
expected = jnp.quantile(sample, 0.9)
assert abs(found - expected) < 0.02, (
    f"the minimum is at {found:.2f}, not at {expected:.2f}"
)

# %% [markdown]
# ## 3. From logits to probabilities
#
# For classes, the network should output probabilities, which are at least 0 and have sum 1. The network computes any
# real numbers $z$, the **logits** (also called **scores**), and the **softmax** converts them to probabilities:
#
# $$ \mathrm{softmax}(z)_i = \frac{e^{z_i}}{\sum_j e^{z_j}} . $$
#
# Each is positive, so for two or more classes each is less than 1. (In floating point they round to 0 and 1.) The
# softmax does not change if the same number is added to all logits. Implementations use this: they first subtract
# the largest logit, so that nothing overflows.

# %%
z = jnp.array([1000.0, 1001.0, 1002.0])
assert jnp.isnan(jnp.exp(z) / jnp.exp(z).sum()).all()  # inf / inf
assert np.allclose(jb.softmax(z), jnp.array([0.0900306, 0.2447285, 0.6652410]))
assert np.allclose(jb.softmax(z), jb.softmax(z - 1000))
assert jb.softmax(jnp.array([0.0, 200.0])).tolist() == [0, 1]  # rounded

# %% [markdown]
# Only $C - 1$ of $C$ logits are therefore free. For two classes one can be fixed at 0, and the softmax of $(0, z)$
# gives the second class the probability $\sigma(z)$, the sigmoid.
#
# **A soft maximum.** The softmax is a soft *argmax*. The soft maximum is the logarithm of the sum of exponentials,
# $\mathrm{LSE}(z) = \log \sum_i e^{z_i}$; its gradient is the softmax. For $C$ logits
#
# $$ \max z \;\le\; \mathrm{LSE}(z) \;\le\; \max z + \log C . $$
#
# *Proof.* With $m = \max z$, the sum $\sum_i e^{z_i}$ has a term $e^m$, and each of its $C$ terms is at most $e^m$;
# take logarithms. $\square$ Another soft maximum is the mean of the logits under their own softmax, which is at
# most the maximum.

# %%
assert np.allclose(jb.softmax(jnp.array([0.0, 1.5]))[1], jb.sigmoid(jnp.array(1.5)))
z = jnp.array([1.0, 2.0, 3.0])
assert np.allclose(jax.jit(jax.grad(jb.logsumexp))(z), jb.softmax(z))
assert np.allclose(jb.logsumexp(jnp.full(3, 7.0)), 7 + math.log(3))  # the upper bound
line = np.linspace(-5, 5, 201)
pairs = jnp.asarray(np.stack([line, 0 * line], -1), jnp.float32)  # (z, 0) for many z
soft = {
    "LSE(z, 0)": np.asarray(jb.logsumexp(pairs)),
    "max(z, 0)": np.maximum(line, 0),
    "softmax-mean of (z, 0)": np.asarray(jb.probabilities.softmax_mean(pairs, pairs)),
}
assert (soft["max(z, 0)"] <= soft["LSE(z, 0)"] + 1e-6).all()
assert (soft["softmax-mean of (z, 0)"] <= soft["max(z, 0)"] + 1e-6).all()
figure, axes = plt.subplots(figsize=(5, 2.8), layout="constrained")
axes = plotting.curves(line, soft, axes)
axes.legend(loc="upper left")
named = axes.set(xlabel="$z$", ylabel="value")

# %% [markdown]
# **Exercise 3.** Write $\log \mathrm{softmax}$ such that it is right for large logits as well.


# %% tags=["exercise"]
def log_softmax(z):
    return jnp.log(jnp.exp(z) / jnp.exp(z).sum())  # complete: nan for large logits


# %% tags=["solution"]
def log_softmax(z):
    shifted = z - z.max()
    return shifted - jnp.log(jnp.exp(shifted).sum())


# %% tags=["check"]
large = jnp.array([1000.0, 0.0, 999.0])
found = log_softmax(large)
assert jnp.isfinite(found).all(), f"expected finite numbers, got {found}"
assert np.allclose(found, jax.nn.log_softmax(large)), "compare with jax.nn.log_softmax"

# %% [markdown]
# ## 4. Divergences between distributions
#
# The network predicts $Q$, and the true distribution is $P$; both are probabilities of $n$ classes. A true label
# $i$ is also a distribution, $e_i = (0, \dots, 1, \dots, 0)$, called **one-hot**. A loss is thus a kind of distance
# between distributions.
#
# **Total variation** is the largest difference between the probabilities of an event. There are $2^n$ events, the sets
# $A$ of classes. It is not necessary to evaluate all of them: the best $A$ contains the classes for which $P$ is
# larger, and because both have sum 1,
#
# $$ \sup_A |P(A) - Q(A)| = \sum_{i: P_i > Q_i} (P_i - Q_i) = \tfrac12 \sum_i |P_i - Q_i| . $$

# %%
events = [list(A) for size in range(7) for A in itertools.combinations(range(6), size)]
assert len(events) == 2**6
for seed in range(20):
    P, Q = np.random.default_rng(seed).dirichlet(np.ones(6), size=2)
    largest = max(abs(P[A].sum() - Q[A].sum()) for A in events)
    assert np.isclose(largest, 0.5 * abs(P - Q).sum())

# %% [markdown]
# **Entropy and code lengths.** Messages consist of letters with probabilities $P_i$. A good code gives short code
# words to frequent letters. For the probabilities $\tfrac12, \tfrac14, \tfrac18, \tfrac18$ take 0, 10, 110, 111: a
# letter of probability $p$ has $\log_2 (1/p)$ bits. The mean length is then the **entropy** $H(P) = -\sum_i P_i
# \log_2 P_i$, and no code that can be decoded uniquely has a smaller mean length (Shannon 1948). If the $P_i$ are
# not powers of $\tfrac12$, the entropy is not reached letter by letter, but as closely as one likes, per letter, by
# codes of long blocks of letters.
#
# If letters from $P$ are encoded for the probabilities $Q$ in this sense, the mean length per letter is the
# **cross-entropy** $\mathrm{CE}(P, Q) = -\sum_i P_i \log Q_i$. The excess over the entropy is the
# **Kullback-Leibler divergence**
#
# $$ D_{\mathrm{KL}}(P \,\|\, Q) = \sum_i P_i \log \frac{P_i}{Q_i} = \mathrm{CE}(P, Q) - H(P) . $$

# %%
P = jnp.array([1 / 2, 1 / 4, 1 / 8, 1 / 8])
Q = P[::-1]  # the code for the letters in reverse order
code_lengths = jnp.array([1, 2, 3, 3])
assert P @ code_lengths == 1.75 and P @ code_lengths[::-1] == 2.625
assert np.allclose(jb.entropy(P, base=2), 1.75)
assert np.allclose(jb.cross_entropy(P, Q, base=2), 2.625)
assert np.allclose(jb.kl_divergence(P, Q, base=2), 2.625 - 1.75)
message = np.random.default_rng(0).choice(4, size=10_000, p=np.asarray(P))
for name, lengths in (("its own code", [1, 2, 3, 3]), ("the other code", [3, 3, 2, 1])):
    print(
        f"10,000 letters in {name}: {np.array(lengths)[message].mean():.3f} bits each"
    )

# %% [markdown]
# With natural logarithms the unit is the *nat*, $1 / \log 2 = 1.44$ bits; losses are given in nats. Zeros need
# conventions: $0 \log(0/q) = 0$, and $p \log(p/0) = \infty$ for $p > 0$, because an event of probability 0 under
# $Q$ has no code word.
#
# For probabilities that are not powers of $\tfrac12$, the excess is that of long blocks. Two letters with $P =
# (\tfrac12, \tfrac12)$ and $Q = (0.9, 0.1)$ have the divergence 0.737 bits. Letter by letter, the best code for two
# letters has one bit each, so nothing is lost. Codes of blocks of $k$ letters with the lengths $\lceil -\log_2 Q
# \rceil$ (which exist by Kraft's inequality) lose between 0.737 and $0.737 + 1/k$ bits per letter; the next cell
# prints this loss, and that of the best codes for $Q$ (Huffman 1952).


# %%
def huffman(probabilities):
    """The lengths of the code words of a best code."""
    lengths = np.zeros(len(probabilities), int)
    heap = [(p, [i]) for i, p in enumerate(probabilities)]
    heapq.heapify(heap)
    while len(heap) > 1:
        (p, one), (q, other) = heapq.heappop(heap), heapq.heappop(heap)
        lengths[one + other] += 1
        heapq.heappush(heap, (p + q, one + other))
    return lengths


p, q = jnp.array([0.5, 0.5]), jnp.array([0.9, 0.1])
divergence = jb.kl_divergence(p, q, base=2)
assert (
    abs(jb.kl_divergence(p, q) - 0.5108256) < 1e-6 and abs(divergence - 0.736966) < 1e-5
)
for k in (1, 2, 4, 8):
    blocks = [math.prod(block) for block in itertools.product([0.9, 0.1], repeat=k)]
    # under P all blocks are equally frequent; its entropy is 1 bit per letter
    rounded = np.ceil(-np.log2(blocks)).mean() / k - 1
    excess = huffman(blocks).mean() / k - 1
    print(
        f"blocks of {k}: {rounded:.3f} bits too many per letter, Huffman {excess:.3f}"
    )
    assert divergence <= rounded + 1e-6 <= divergence + 1 / k + 1e-5
certain = jnp.array([1.0, 0.0])
assert np.allclose(jb.kl_divergence(certain, p), math.log(2))
assert jb.kl_divergence(p, certain) == jnp.inf

# %% [markdown]
# **The divergence is never negative**, and 0 only for $P = Q$. *Proof.* A function $\varphi$ is convex if its graph
# lies below its chords, and then $\varphi(\sum_i w_i x_i) \le \sum_i w_i \varphi(x_i)$ for weights $w_i \ge 0$ with
# sum 1 (**Jensen's inequality**), with equality for a strictly convex $\varphi$ only if all $x_i$ with $w_i > 0$
# are equal. Take $\varphi(x) = x \log x$, whose second derivative $1/x$ is positive, the points $P_i / Q_i$ and the
# weights $Q_i > 0$: the right side is $D_{\mathrm{KL}}(P \| Q)$ and the left side $\varphi(1) = 0$. (If some $Q_i =
# 0 < P_i$, the divergence is infinite; classes with $P_i = Q_i = 0$ can be left out.) $\square$
#
# **It is not a metric**: it is not symmetric, and it violates the triangle inequality.

# %%
xlogx = lambda x: x * jnp.log(x)
gap = jb.losses.jensen_gap(xlogx, p / q, q)
assert np.allclose(gap, jb.kl_divergence(p, q), atol=1e-6)
r = jnp.array([0.7, 0.3])
assert abs(jb.kl_divergence(q, p) - 0.3680642) < 1e-6  # not 0.5108256
detour = jb.kl_divergence(p, r) + jb.kl_divergence(r, q)
assert detour < jb.kl_divergence(p, q)

# %% [markdown]
# The plots compare six quantities for $P = (0.3, 0.7)$ and $Q = (q, 1 - q)$. All except the cross-entropy are 0 at
# $q = 0.3$. The cross-entropy has its minimum $H(P) = 0.611$ there.

# %%
grid = jnp.linspace(0.005, 0.995, 199)
Qs = jnp.stack([grid, 1 - grid], -1)
Ps = jnp.broadcast_to(jnp.array([0.3, 0.7]), Qs.shape)
distances = {
    "total variation": jb.losses.total_variation(Ps, Qs),
    "$L^1$": jb.losses.lp_distance(Ps, Qs, 1),
    "$L^2$": jb.losses.lp_distance(Ps, Qs, 2),
}
divergences = {
    "KL(P, Q)": jb.kl_divergence(Ps, Qs),
    "KL(Q, P)": jb.kl_divergence(Qs, Ps),
    "cross-entropy(P, Q)": jb.cross_entropy(Ps, Qs),
}
figure, axes = plt.subplots(1, 2, figsize=(6.5, 3.2), layout="constrained", sharey=True)
for ax, values in zip(axes, (distances, divergences), strict=True):
    plotting.curves(grid, values, ax).set(xlabel="$q$", ylim=(0, 3.2))
    ax.legend(loc="upper left")
axes[0].set_ylabel("value, in nats where it has a logarithm")
axes[0].yaxis.label.set_fontsize(8)
for name, values in (distances | divergences).items():
    assert abs(grid[values.argmin()] - 0.3) < 0.003
    least = jb.entropy(Ps[0]) if name.startswith("cross") else 0.0
    assert abs(values.min() - least) < 1e-3

# %% [markdown]
# **Exercise 4.** Write the divergence in bits, with the two conventions for zeros. What is
# $\mathrm{CE}(P, Q) - D_{\mathrm{KL}}(P \| Q)$, and what follows for the minimum of both in $Q$?


# %% tags=["exercise"]
def divergence_in_bits(P, Q):
    """For NumPy arrays of probabilities."""
    return np.sum(P - Q)  # complete


# %% [markdown] tags=["solution"]
# The difference is the entropy $H(P)$, which does not depend on $Q$. So both have the same minimizer and the same
# gradients in $Q$. For a one-hot $P = e_y$ the entropy is 0, and both are $-\log Q_y$.


# %% tags=["solution"]
def divergence_in_bits(P, Q):
    """For NumPy arrays of probabilities."""
    if (Q[P > 0] == 0).any():
        return np.inf
    return np.sum(P[P > 0] * np.log2(P[P > 0] / Q[P > 0]))


# %% tags=["check"]
for P, Q, expected in (
    ([0.5, 0.5], [0.9, 0.1], 0.7369656),
    ([1.0, 0.0], [0.5, 0.5], 1.0),
    ([0.5, 0.5], [1.0, 0.0], np.inf),
):
    found = divergence_in_bits(np.array(P), np.array(Q))
    assert np.isclose(found, expected), f"D({P}, {Q}) is {expected} bits, not {found}"

# %% [markdown]
# ## 5. Classification losses
#
# The goal is a small number of wrong predictions. The **0-1 loss** is 1 for a wrong class and 0 for the right one. But
# a small change of the params does not change the predicted class, so the derivative of this loss is 0 almost
# everywhere: gradient descent cannot minimize it.
#
# Instead, the loss is a divergence between the label, as a distribution, and the predicted probabilities. For a
# one-hot label KL and cross-entropy are the same,
#
# $$ \mathrm{CE}(e_y, Q) = -\log Q_y = \mathrm{LSE}(z) - z_y , $$
#
# the last for $Q = \mathrm{softmax}(z)$. This is also the negative log-likelihood of the label. The label is the
# *first* argument: as the second it assigns probability 0 to all other classes, and the loss is infinite unless the
# prediction is one-hot as well.

# %%
scores, label = jnp.array([0.1, -0.8, 1.4, 1.1]), jnp.array(2)
one_hot, predicted = jb.one_hot(label, 4), jb.softmax(scores)
ways = [
    jb.softmax_cross_entropy(scores, label),
    jb.cross_entropy(one_hot, predicted),
    jb.kl_divergence(one_hot, predicted),
    jb.nll(jb.log_softmax(scores), label),
    jb.logsumexp(scores) - scores[2],
]
assert np.allclose(jnp.array(ways), 0.7533732)
assert jb.cross_entropy(predicted, one_hot) == jnp.inf

# %% [markdown]
# A common mistake is to pass probabilities to a loss that expects logits: it applies the softmax a second time, and
# returns a number like any other. `jb.softmax_cross_entropy` takes logits (as `torch.nn.CrossEntropyLoss` does),
# `jb.cross_entropy` takes probabilities, and raises an error if an argument is not a distribution.

# %%
twice = jb.softmax_cross_entropy(predicted, label)
print(f"right {ways[0]:.3f}, with the softmax applied twice {twice:.3f}")
assert twice - ways[0] > 0.4
try:
    jb.cross_entropy(one_hot, jnp.ones(4))
except ValueError as error:
    print(error)

# %% [markdown]
# **The loss and the number of errors.** If the class of the largest probability is wrong, then $Q_y \le \tfrac12$,
# and the loss is at least $\log 2$ nats, which is 1 *bit*. Hence the loss in bits is an upper bound of the 0-1
# loss; in nats it is not. A right class does not mean a small loss: if its logit exceeds all others by at least
# $\delta$, the loss is at most $\log(1 + (C - 1) e^{-\delta})$, which is $\log C$ for $\delta = 0$.

# %%
zero = jnp.array(0)
close = jb.softmax_cross_entropy(jnp.array([0.0, 0.1]), zero)
assert math.log(2) < close < 1  # a wrong class, but less than 1 nat
right = jb.softmax_cross_entropy(jnp.array([1.2, 1.0, 0.9]), zero)
assert abs(right - 0.939831) < 1e-5 and right <= math.log(1 + 2 * math.exp(-0.2))
many = np.random.default_rng(0).normal(size=(20_000, 3)).astype(np.float32)
losses = np.asarray(jb.softmax_cross_entropy(many, jnp.zeros(20_000, jnp.int32)))
wrong = many.argmax(-1) != 0
assert (losses / math.log(2) >= wrong - 1e-6).all() and (losses < wrong).any()

# %% [markdown]
# **Cross-entropy and squared error.** For two classes with one logit $z$ and $Q_1 = \sigma(z)$, and the label $y = 1$,
#
# $$ \frac{d}{dz}\, \mathrm{CE} = \sigma - 1, \qquad
#    \frac{d}{dz}\, (1 - \sigma)^2 = -2\, (1 - \sigma)^2\, \sigma , $$
#
# since $\sigma' = \sigma (1 - \sigma)$. For large negative $z$ the network is confident and wrong. There, the
# derivative of the cross-entropy is close to $-1$, while the derivative of the squared error is close to 0; its
# size is largest, $\tfrac{8}{27}$, at $\sigma = \tfrac13$. The right plot shows sixty steps of gradient descent
# with step size 1 from $z = -10$.

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
assert paths["cross-entropy"][-1] > 3 and (paths["squared error"] < -9.9).all()
figure, (left, right) = plt.subplots(1, 2, figsize=(6.5, 2.9), layout="constrained")
plotting.curves(z, {"cross-entropy": slope_ce(z), "squared error": slope_mse(z)}, left)
left.set(xlabel="logit $z$", ylabel="derivative of the loss", ylim=(-1.1, 0.4))
left.legend(loc="upper left")
axes = plotting.curves(np.arange(60), paths, right)
assert paths["cross-entropy"][12] > 0
labeled = axes.set(xlabel="step of gradient descent", ylabel="logit $z$")
legend = axes.legend(loc="center right")

# %% [markdown]
# The cross-entropy passes 0 within twelve steps; with the squared error the logit moves by less than 0.1 in sixty.
#
# **Soft labels.** The loss of a one-hot label is positive for all finite logits; if the training data can be
# classified without error, training drives the logits to infinity (notebook 8). With **label smoothing** (Szegedy
# et al. 2016) the target is $(1 - \varepsilon)\, e_y + \varepsilon / C$ instead, and the best logits are finite:
# their softmax is the target. **Distillation** (Hinton et al. 2015) uses the probabilities of another network as
# targets, with a temperature that makes them more uniform.

# %%
smooth = jb.smooth_labels(one_hot, 0.1)
assert np.allclose(smooth, jnp.array([0.025, 0.025, 0.925, 0.025]))
# the best difference between the right logit and the others
best_gap = math.log(0.925 / 0.025)
ideal = jnp.array([0.0, 0.0, best_gap, 0.0])
assert abs(jax.grad(jb.softmax_cross_entropy)(ideal, smooth)).max() < 1e-6
warm = jb.softmax(scores / 10)
assert warm.max() < predicted.max() and jb.entropy(warm) > jb.entropy(predicted)

# %% [markdown]
# **Semi-supervised learning.** Labels are expensive, inputs are cheap. A model can predict labels for unlabeled
# inputs and be trained on them; such labels are called *pseudo-labels*. If a model learns from its *own* labels, it
# should start with the predictions of highest confidence. In this example two points of 300 have labels (the
# squares). Left: the label of the nearest of the two, by which about a third of the points are wrong. Right: the
# points are labeled one after the other, in the order of their distance to a labeled point, with its label.


# %%
def two_moons(seed):
    rng = np.random.default_rng(seed)
    moon, angle = rng.integers(0, 2, 300), np.pi * rng.random(300)
    x = np.cos(angle) + moon, (1 - 2 * moon) * np.sin(angle) + 0.5 * moon
    return np.stack(x, -1) + 0.08 * rng.normal(size=(300, 2)), moon


def guess_labels(moons, moon):
    """The two labeled points, the labels of the nearer one, and the pseudo-labels."""
    between = np.linalg.norm(moons[:, None] - moons[None], axis=-1)  # distances
    given = [np.hypot(*(moons - tip).T).argmin() for tip in ([-1, 0], [2, 0.5])]
    pseudo = np.where(np.isin(np.arange(300), given), moon, -1)
    while (pseudo < 0).any():
        gaps = np.where((pseudo >= 0)[:, None] & (pseudo < 0)[None], between, np.inf)
        # the closest pair of a labeled and an unlabeled point
        teacher, pupil = np.unravel_index(gaps.argmin(), gaps.shape)
        pseudo[pupil] = pseudo[teacher]
    return given, moon[given][between[:, given].argmin(1)], pseudo


moons, moon = two_moons(0)
given, from_two, pseudo = guess_labels(moons, moon)
figure, axes = plt.subplots(1, 2, figsize=(6.5, 2.6), layout="constrained", sharey=True)
titles = "nearest of the two labels", "pseudo-labels"
for ax, guess, title in zip(axes, (from_two, pseudo), titles, strict=True):
    plotting.points(moons, guess, ax)
    ax.plot(*moons[given].T, "ks", markersize=8, label="_given")
    ax.set(title=f"{title}: {(guess == moon).mean():.0%} right", xlabel="$x_1$")
    ax.title.set_fontsize(9)
named = axes[0].set_ylabel("$x_2$")

# %% [markdown]
# How often does it work? The clusters must be farther apart than neighboring points of a cluster; one wrong link
# labels the rest of a moon wrongly.

# %%
shares = []
for seed in range(20):
    sample, truth = two_moons(seed)
    _, nearer, pseudo_labels = guess_labels(sample, truth)
    shares.append([(nearer == truth).mean(), (pseudo_labels == truth).mean()])
nearest, chained = np.transpose(shares)
print(
    f"nearest of two: {nearest.min():.0%} to {nearest.max():.0%} right; pseudo-labels:"
)
print(
    f"all 300 right in {(chained == 1).sum()} of 20 samples, least {chained.min():.1%}"
)
assert nearest.max() < 0.75 and (chained == 1).sum() >= 16

# %% [markdown]
# **Exercise 5.** Derive and write the gradient of the softmax cross-entropy with respect to the logits, without
# `jax.grad`.


# %% tags=["exercise"]
def logit_gradient(z, y):
    return jnp.zeros_like(z)  # complete this line


# %% [markdown] tags=["solution"]
# The loss is $\log \sum_j e^{z_j} - z_y$. The derivative of the first term with respect to $z_i$ is
# $e^{z_i} / \sum_j e^{z_j}$, that of the second is $-[y = i]$. The entries sum to 0, because adding the same number to
# all logits does not change the loss.


# %% tags=["solution"]
def logit_gradient(z, y):
    return jb.softmax(z) - jb.one_hot(y, z.shape[-1])


# %% tags=["check"]
found = logit_gradient(scores, jnp.array(1))
expected = jax.grad(jb.softmax_cross_entropy)(scores, jnp.array(1))
assert np.allclose(found, expected, atol=1e-6), (
    "expected softmax(z) minus the one-hot label"
)

# %% [markdown]
# ## 6. A complete example
#
# The digits of notebook 0, in the three parts of section 1. A net with one hidden layer computes ten logits, the
# loss is the cross-entropy, and `fit` runs the training steps. After each epoch it computes the validation loss,
# and it keeps the params that were best on the validation data. The test data are used once, at the end.
# `Dense(10)` alone is a linear model.


# %%
def learn(net, seed=0, loss=jb.softmax_cross_entropy):
    """The fitted model, and its accuracy on the test data."""
    fitted = jb.fit(
        net,
        loss,
        optax.adam(3e-3),
        train,
        key=jax.random.key(seed),
        epochs=20,
        validation=validation,
        metrics={"accuracy": jb.accuracy},
        progress=False,
    )
    scores = net.apply(fitted.params, jnp.asarray(test[0]))
    return fitted, float(jb.accuracy(scores, jnp.asarray(test[1])))


net = jb.MLP(64, 10)
runs = [learn(net, seed) for seed in range(3)]

# %%
linear = [learn(jb.Dense(10), seed) for seed in range(3)]
for name, found in (("one hidden layer", runs), ("linear", linear)):
    accuracies = [accuracy for _, accuracy in found]
    print(f"{name:17} {min(accuracies):.1%} to {max(accuracies):.1%} on 3 seeds")
assert min(a for _, a in runs) > max(a for _, a in linear) > 0.85

# %% [markdown]
# The left plot shows the losses of the first run, the right one its confusion matrix on the test data: rows are the
# true digits, columns the predicted ones.

# %%
fitted, accuracy = runs[0]
guesses = jb.predict_class(net.apply(fitted.params, jnp.asarray(test[0])))
confusion = np.asarray(jb.confusion_matrix(guesses, jnp.asarray(test[1]), 10))
assert confusion.sum() == len(test[1])
assert np.isclose(np.trace(confusion) / confusion.sum(), accuracy)
history = fitted.history
figure, (left, right) = plt.subplots(1, 2, figsize=(6.5, 3.0), layout="constrained")
left.plot(
    history.step_epoch, history.step_loss, color="0.7", label="training, each step"
)
look = dict(color="black", marker="o", markersize=3, label="validation")
left.plot(history.epoch, history.validation["loss"], **look)
left.set(xlabel="epoch", ylabel="loss", yscale="log")
legend = left.legend(loc="upper right")
plotting.matrix(confusion, right, numbers="{:.0f}")
labeled = right.set(xlabel="predicted digit", ylabel="true digit")

# %% [markdown]
# **Exercise 6.** Train the same net with the mean squared error between the softmax and the one-hot label, and
# store its test accuracy. Is the loss as bad as section 5 suggests?

# %% tags=["exercise"]
squared_accuracy = 0.0  # complete: learn(net, loss=...)


# %% tags=["solution"]
def squared_loss(z, y):
    return jb.mse(jb.softmax(z), jb.one_hot(y, 10))


squared_accuracy = learn(net, loss=squared_loss)[1]
print(f"test accuracy with the squared error: {squared_accuracy:.1%}")
# Not here: at the start no prediction is confident, so none is confident and wrong.

# %% tags=["check"]
assert squared_accuracy > 0.9, f"expected more than 90 %, got {squared_accuracy:.1%}"

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
