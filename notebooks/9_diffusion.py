# %% [markdown]
# # Diffusion models: from noise to data
#
# Adding noise turns data into noise. **Can this process be reversed?** If the direction toward the data is known at
# every noise level, one can start from pure noise, follow this direction in small steps, and arrive at new samples of
# the data distribution. This notebook derives each step before it uses it: the noise that a net predicts, the score,
# the ancestral sampler, and the probability flow.
#
# Papers: Sohl-Dickstein et al. 2015 and Ho et al. 2020 (DDPM), Song et al. 2021 (scores and the flow), Karras et al.
# 2022 (solvers), Ho and Salimans 2022 (guidance), Lipman et al. 2023 (flow matching).
#
# In sections 1 to 7 the data are one-dimensional, so that the whole process can be drawn, and their distribution is a
# mixture of three Gaussians, so that every density has a closed form and samples can be compared with it. Section 8
# generates handwritten digits.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from jax.scipy.stats import norm

import jaxblocks as jb
from jaxblocks import plotting
from jaxblocks.diffusion import (
    DenoisingLoss,
    add_noise,
    ancestral,
    classifier_free_guidance,
    convert,
    ddim,
    dpm_solver_pp_2m,
    euler,
    flow_matching_schedule,
    gaussian_mixture,
    heun,
    initial_noise,
    times,
    variance_preserving_schedule,
)

centers = np.array([-1.5, 0.5, 1.5], np.float32)
variances = np.array([0.04, 0.02, 0.04], np.float32)
shares = np.array([0.5, 0.2, 0.3], np.float32)
data = gaussian_mixture(jnp.asarray(centers)[:, None], variances, shares)
schedule = variance_preserving_schedule()
signal, noise_size = jax.jit(schedule.signal), jax.jit(schedule.noise)
density = jax.jit(lambda x, t: jnp.exp(data.at(t, schedule).log_density(x)))
line = np.linspace(-4, 4, 400, dtype=np.float32)

# %% [markdown]
# ## 1. The forward process
#
# At time $t$, from 0 to 1, the data $x_0$ become
#
# $$ x_t = \alpha(t)\, x_0 + \sigma(t)\, \varepsilon, \qquad \varepsilon \sim N(0, I) \text{ independent of } x_0 . $$
#
# The **schedule** used here has $\alpha^2 + \sigma^2 = 1$; $\alpha$ decreases from 1 to 0.0066, and $\sigma$ increases
# from 0 to 0.99998. (DDPM writes $\bar\alpha_t$ for $\alpha^2$.) The figure shows both, and histograms of 5,000 noised
# values with the exact densities: with noise, a mixture of Gaussians is again a mixture of Gaussians, with means
# $\alpha \mu_k$ and variances $\alpha^2 s_k^2 + \sigma^2$.

# %%
t_grid = np.linspace(0, 1, 101, dtype=np.float32)
alpha, sigma = np.asarray(signal(t_grid)), np.asarray(noise_size(t_grid))
assert np.allclose(alpha**2 + sigma**2, 1, atol=1e-6)
assert (np.diff(alpha) < 0).all() and (np.diff(sigma) >= 0).all()
assert alpha[0] == 1 and sigma[0] == 0
assert round(float(alpha[-1]), 4) == 0.0066 and round(float(sigma[-1]), 5) == 0.99998

x0 = np.asarray(jax.jit(data.sample, static_argnums=1)(jax.random.key(0), 5000))
eps = np.asarray(jax.random.normal(jax.random.key(10), x0.shape))
noised = jax.jit(lambda t: add_noise(x0, eps, t, schedule))
shown = (0.0, 0.1, 0.3, 1.0)
figure, axes = plt.subplots(2, 3, figsize=(6.5, 4), layout="constrained")
plotting.curves(t_grid, {"signal": alpha, "noise": sigma}, axes[0, 0])
axes[0, 0].set(xlabel="t", ylabel="coefficient")
for ax, time in zip(axes.flat[1:5], shown, strict=True):
    values = np.asarray(noised(time))[:, 0]
    ax.hist(values, bins=60, density=True, color="0.8", label="sample")
    plotting.curves(line, {"exact": density(line[:, None], time)}, ax)
    ax.set(title=f"t = {time}", xlim=(-3.5, 3.5), xlabel="x", ylabel="density")
    ax.get_legend().remove()
axes[1, 2].set_axis_off()

# %% [markdown]
# The pictures agree; a number says how well. The **Kolmogorov-Smirnov distance** is the largest difference between the
# distribution function of a sample and the exact one. For $n$ independent draws of the exact distribution it exceeds
# $1.36 / \sqrt n$ in about 5 % of all cases (for large $n$). It sees what means and variances do not see: a missing
# mode.


# %%
def exact_cdf(x, t):
    """The distribution function of x_t, from the means and variances of the text."""
    a, s = signal(t), noise_size(t)
    spread = jnp.sqrt(a**2 * variances + s**2)
    return norm.cdf(x[:, None], a * centers, spread) @ shares


@jax.jit
def ks_distance(sample, t=0.0):
    x = jnp.sort(sample.ravel())
    cdf, n = exact_cdf(x, t), len(x)
    below, above = jnp.arange(n) / n, jnp.arange(1, n + 1) / n
    return jnp.maximum(abs(cdf - below).max(), abs(cdf - above).max())


distances = [float(ks_distance(noised(time), time)) for time in shown]
print("distances:", np.round(distances, 4), " 5 % limit:", round(1.36 / 5000**0.5, 4))
assert max(distances) < 1.36 / 5000**0.5

# %% [markdown]
# **Exercise 1.** The data have variance $s^2$. Which variance has $x_t$? Complete `variance_at`.


# %% tags=["exercise"]
def variance_at(t, data_variance):
    return 0 * t  # complete this line


# %% tags=["solution"]
def variance_at(t, data_variance):
    # x_0 and the noise are independent, so the variances add.
    return signal(t) ** 2 * data_variance + noise_size(t) ** 2


# %% tags=["check"]
for check_time in (0.1, 0.3, 1.0):
    measured = noised(check_time).var()
    found = variance_at(jnp.float32(check_time), x0.var())
    assert abs(measured / found - 1) < 0.05 if found else False, (
        "x_t is a sum of two independent terms: add their variances"
    )

# %% [markdown]
# ## 2. The denoiser: a conditional mean
#
# A **denoiser** is a net that takes $x_t$ and $t$ and predicts the noise $\varepsilon$, with the squared error as its
# loss. The noise is not determined by $x_t$: many pairs of data and noise lead to the same $x_t$. Which prediction is
# best?
#
# **Theorem.** Let $m(x, t) = E[\varepsilon \mid x_t = x]$. For every function $f$ with a finite loss
#
# $$ E \lVert \varepsilon - f(x_t) \rVert^2
#    = E \lVert \varepsilon - m(x_t) \rVert^2 + E \lVert m(x_t) - f(x_t) \rVert^2 , $$
#
# so $m$ has the smallest loss, and the excess loss of $f$ is its mean squared distance from $m$.
#
# *Proof.* Write $\varepsilon - f = (\varepsilon - m) + (m - f)$ and expand the square. The mixed term is
# $2\, E \langle \varepsilon - m(x_t), m(x_t) - f(x_t) \rangle$. Take first the mean given $x_t$: the second factor is
# then fixed, and the first has mean 0 by the definition of $m$. $\square$
#
# For a mixture of Gaussians $m$ has a closed form, `data.predictor(schedule, "eps")`. The next cell compares it with
# the means of $\varepsilon$ within narrow bins of $x_t$, and checks the identity for four other predictions.

# %%
best = jax.jit(data.predictor(schedule, "eps"))
many_key, other_key = jax.random.split(jax.random.key(2))
many = np.asarray(jax.jit(data.sample, static_argnums=1)(many_key, 200_000))
many_eps = np.asarray(jax.random.normal(other_key, many.shape))
x_many = np.asarray(jax.jit(add_noise, static_argnums=3)(many, many_eps, 0.2, schedule))
m = np.asarray(best(x_many, 0.2))
edges = np.linspace(-2, 2, 41)
which_bin = np.digitize(x_many[:, 0], edges)
middles = (edges[1:] + edges[:-1]) / 2
bin_means = np.array([many_eps[which_bin == i].mean() for i in range(1, 41)])
at_middles = np.array([m[which_bin == i].mean() for i in range(1, 41)])
assert abs(bin_means - at_middles).max() < 0.1

loss_of = lambda f: np.mean((many_eps - f) ** 2)
for other in (0.9 * m, 1.1 * m, m + 0.1, np.zeros_like(m)):
    assert np.isclose(loss_of(other), loss_of(m) + np.mean((m - other) ** 2), atol=5e-3)
    assert loss_of(other) > loss_of(m)

figure, ax = plt.subplots(figsize=(5.5, 3), layout="constrained")
ax.plot(x_many[:1500, 0], many_eps[:1500, 0], ".", color="0.75", markersize=2)
plotting.curves(line, {"conditional mean": best(line[:, None], 0.2)[:, 0]}, ax)
ax.plot(middles, bin_means, "o", color="k", markersize=3, label="mean in a bin")
ax.set(xlabel="$x_t$ at t = 0.2", ylabel="noise", xlim=(-2.5, 2.5), ylim=(-3.5, 5))
legend = ax.legend(frameon=False, loc="upper left")

# %% [markdown]
# **Exercise 2.** The data are $N(\mu, s^2)$. Derive $m(x, t)$ and its loss, and complete both functions. ($\varepsilon$
# and $x_t$ are jointly Gaussian, and the conditional mean of such variables is
# $\mathrm{Cov}(\varepsilon, x_t)\, (x - E x_t) / \mathrm{Var}(x_t)$.) When is the loss 1, that of the prediction 0?


# %% tags=["exercise"]
def gaussian_noise_mean(x, alpha, sigma, mu, s):
    return 0 * x  # complete this line


def gaussian_noise_loss(alpha, sigma, s):
    return 0 * alpha  # complete this line


# %% [markdown] tags=["solution"]
# $\mathrm{Cov}(\varepsilon, x_t) = \sigma$, $E x_t = \alpha \mu$, $\mathrm{Var}(x_t) = \alpha^2 s^2 + \sigma^2$. The
# loss is $\mathrm{Var}(\varepsilon) - \mathrm{Cov}^2 / \mathrm{Var}(x_t) = \alpha^2 s^2 / (\alpha^2 s^2 + \sigma^2)$.
# It is 1 only for $\sigma = 0$: without noise $x_t$ contains no information on it.


# %% tags=["solution"]
def gaussian_noise_mean(x, alpha, sigma, mu, s):
    return sigma * (x - alpha * mu) / (alpha**2 * s**2 + sigma**2)


def gaussian_noise_loss(alpha, sigma, s):
    return alpha**2 * s**2 / (alpha**2 * s**2 + sigma**2)


# %% tags=["check"]
one_gaussian = gaussian_mixture(jnp.array([[1.0]]), jnp.array([0.25]))
nine = jnp.linspace(-2, 2, 9)[:, None]
a_here, s_here = float(signal(0.3)), float(noise_size(0.3))
assert np.allclose(
    gaussian_noise_mean(nine, a_here, s_here, 1.0, 0.5),
    jax.jit(one_gaussian.predictor(schedule, "eps"))(nine, 0.3),
    atol=1e-5,
), "compare the covariance of the noise and x_t, and the variance of x_t"
gauss = np.random.default_rng(0).normal(size=(2, 100_000))
both_mean = gaussian_noise_mean(
    a_here * (1 + gauss[0] / 2) + s_here * gauss[1], a_here, s_here, 1.0, 0.5
)
assert np.isclose(
    np.mean((gauss[1] - both_mean) ** 2),
    gaussian_noise_loss(a_here, s_here, 0.5),
    rtol=0.03,
), "the loss is the variance that is left"

# %% [markdown]
# ## 3. The score, derived from the noise
#
# The **score** is the gradient of the log density of the noised data, $\nabla_x \log p_t(x)$. It points in the
# direction in which the density increases most. Nobody knows $p_t$ for images. But the score is the predicted noise:
#
# **Theorem** (Vincent 2011; the identity is named after Tweedie). For every distribution of the data and every
# $\sigma > 0$
#
# $$ \nabla_x \log p_t(x) = -\frac{E[\varepsilon \mid x_t = x]}{\sigma(t)} . $$
#
# *Proof.* $p_t(x) = E_{x_0}\, g(x - \alpha x_0)$ with the density $g$ of $N(0, \sigma^2 I)$. Since
# $\nabla g(z) = -g(z)\, z / \sigma^2$ is bounded, differentiation and mean may be exchanged:
#
# $$ \nabla p_t(x) = -E_{x_0}\Big[ g(x - \alpha x_0)\, \frac{x - \alpha x_0}{\sigma^2} \Big]
#    = -\frac{p_t(x)}{\sigma}\, E\Big[ \frac{x - \alpha x_0}{\sigma} \,\Big|\, x_t = x \Big]
#    = -\frac{p_t(x)}{\sigma}\, E[\varepsilon \mid x_t = x] , $$
#
# where the second step is Bayes' rule: given $x_t = x$, the density of $x_0$ is proportional to $g(x - \alpha x_0)$.
# Divide by $p_t(x)$. $\square$
#
# The next cell differentiates the log density with `jax.grad`, and compares it with the denoiser at ten points.

# %%
noisy = jax.jit(lambda t: data.at(t, schedule))(0.2)
points = line[50:350:30, None]
by_jax = np.asarray(jax.jit(jax.vmap(jax.grad(noisy.log_density)))(points))
by_denoiser = -np.asarray(best(points, 0.2)) / float(noise_size(0.2))
assert np.allclose(by_jax, by_denoiser, atol=1e-4)
figure, ax = plt.subplots(figsize=(5.5, 3), layout="constrained")
plotting.curves(line, {"density at t = 0.2": density(line[:, None], 0.2)}, ax)
ax.quiver(points, 0 * points, by_jax, 0 * points, width=0.006, color="#D55E00")
ax.set(xlabel="x; arrows: the score", ylabel="density", xlim=(-3, 3))
legend = ax.legend(frameon=False, loc="upper right")

# %% [markdown]
# The noise also determines the data, $x_0 = (x_t - \sigma\varepsilon) / \alpha$. So a net may predict $\varepsilon$, or
# $x_0$, or $v = \alpha\varepsilon - \sigma x_0$, or the velocity $\alpha' x_0 + \sigma'\varepsilon$, or the score:
# `convert` converts between these five.
#
# **Exercise 3.** Express the mean of the data, $E[x_0 \mid x_t = x]$, by the score.


# %% tags=["exercise"]
def mean_of_data(x, score, alpha, sigma):
    return x  # complete this line


# %% tags=["solution"]
def mean_of_data(x, score, alpha, sigma):
    # E[noise | x] = -sigma * score, in x_0 = (x - sigma * noise) / alpha.
    return (x + sigma**2 * score) / alpha


# %% tags=["check"]
assert np.allclose(
    mean_of_data(points, by_jax, signal(0.2), noise_size(0.2)),
    convert(jnp.asarray(by_jax), points, 0.2, schedule, "score", "x0"),
    atol=1e-4,
), "insert the theorem into x_0 = (x_t - sigma * noise) / alpha"

# %% [markdown]
# ## 4. Training
#
# Any layer with the side input `time` can be a denoiser. `DenoisingLoss` makes a layer of it that maps data to losses:
# it draws a time for each example, and noise, from the key of the training step. `fit` trains this layer like any
# other. By section 2 the net tends to the conditional mean, if it can represent it and the optimizer finds it; neither
# is guaranteed.
#
# The same net is trained twice, with 400 and with 2,000 steps.


# %%
def forward(f, x, *, time):
    time = jnp.broadcast_to(time, x.shape[:-1])[..., None]
    waves = [
        wave(rate * jnp.pi * time)
        for rate in (0.5, 1, 2, 4)
        for wave in (jnp.sin, jnp.cos)
    ]
    return f.net(jnp.concatenate([x, *waves], -1))


net = jb.Wire(forward, net=jb.MLP(64, 64, 64, 1, activation=jb.silu))


def trained(steps):
    fitted = jb.fit(
        DenoisingLoss(net, schedule, "eps"),
        lambda losses, y: losses,
        optax.adam(optax.cosine_decay_schedule(1e-2, steps)),
        (jnp.asarray(x0), None),
        key=jax.random.key(4),
        batch_size=256,
        steps=steps,
        progress=False,
    )
    params = fitted.params["net"]
    return jax.jit(lambda x, t: net.apply(params, x, time=t))


nets = {f"{steps} steps": trained(steps) for steps in (400, 2000)}
learned = nets["2000 steps"]

# %% [markdown]
# The excess loss, $E(m - f)^2$, at three times, and the predictions themselves. At $t = 0.2$ and $0.5$ both nets are
# close to the conditional mean, and longer training does not help. At $t = 0.1$ the net with 400 steps is close where
# data are frequent, and misses the middle component: its excess is more than five times that of the other.

# %%
shown = (0.1, 0.2, 0.5)
excess = {}
figure, axes = plt.subplots(1, 3, figsize=(6.5, 3), layout="constrained", sharey=True)
for ax, time in zip(axes, shown, strict=True):
    predictions = {"conditional mean": best, **nets}
    plotting.curves(
        line,
        {name: f(line[:, None], time)[:, 0] for name, f in predictions.items()},
        ax,
    )
    ax.set(title=f"t = {time}", xlabel="x", xlim=(-3, 3), ylim=(-5, 5))
    ax.get_legend().remove()
    seen = np.asarray(noised(time))
    target = np.asarray(best(seen, time))
    excess[time] = {
        n: float(np.mean((f(seen, time) - target) ** 2)) for n, f in nets.items()
    }
axes[0].set_ylabel("prediction of the noise")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
for time, of_nets in excess.items():
    print(f"t = {time}:", {name: round(value, 4) for name, value in of_nets.items()})
    assert of_nets["2000 steps"] < 0.02
assert excess[0.1]["400 steps"] > 5 * excess[0.1]["2000 steps"]
assert max(excess[0.2]["400 steps"], excess[0.5]["400 steps"]) < 0.01

# %% [markdown]
# **Exercise 4.** A net predicts $\varepsilon$. Complete the function that turns its prediction into one of
# $v = \alpha\varepsilon - \sigma x_0$ (Salimans and Ho 2022).


# %% tags=["exercise"]
def noise_to_v(noise_prediction, x, alpha, sigma):
    return noise_prediction  # complete this line


# %% tags=["solution"]
def noise_to_v(noise_prediction, x, alpha, sigma):
    clean = (x - sigma * noise_prediction) / alpha
    return alpha * noise_prediction - sigma * clean


# %% tags=["check"]
assert np.allclose(
    noise_to_v(best(points, 0.2), points, signal(0.2), noise_size(0.2)),
    convert(best(points, 0.2), points, 0.2, schedule, "eps", "v"),
    atol=1e-4,
), "first compute the prediction of x_0, then combine the two"

# %% [markdown]
# ## 5. The ancestral sampler
#
# Let $s < t$ be two times. The forward process can be run from $s$ to $t$:
# $x_t = \frac{\alpha_t}{\alpha_s} x_s + \sigma_{t|s}\, z$ with new noise $z$ and
# $\sigma_{t|s}^2 = \sigma_t^2 - \frac{\alpha_t^2}{\alpha_s^2} \sigma_s^2$; the variances then add up to $\sigma_t^2$.
# For the way back we need the distribution of $x_s$, given $x_t$ and $x_0$.
#
# **Theorem.** Given $x_t$ and $x_0$, $x_s$ is Gaussian with
#
# $$ \text{mean } \frac{\alpha_t \sigma_s^2}{\alpha_s \sigma_t^2}\, x_t
#      + \frac{\alpha_s \sigma_{t|s}^2}{\sigma_t^2}\, x_0 , \qquad
#    \text{variance } \frac{\sigma_s^2\, \sigma_{t|s}^2}{\sigma_t^2} . $$
#
# *Proof.* By Bayes' rule its density is proportional to the product of two Gaussians in $x_s$: that of $x_s$ given
# $x_0$, with mean $\alpha_s x_0$ and variance $\sigma_s^2$, and that of $x_t$ given $x_s$, which as a function of $x_s$
# has its center at $\frac{\alpha_s}{\alpha_t} x_t$ and the variance
# $\frac{\alpha_s^2}{\alpha_t^2} \sigma_{t|s}^2$. In a product of Gaussians the inverse variances add,
#
# $$ \frac{1}{\sigma_s^2} + \frac{\alpha_t^2}{\alpha_s^2 \sigma_{t|s}^2}
#    = \frac{\alpha_s^2 \sigma_{t|s}^2 + \alpha_t^2 \sigma_s^2}{\alpha_s^2\, \sigma_s^2\, \sigma_{t|s}^2}
#    = \frac{\sigma_t^2}{\sigma_s^2\, \sigma_{t|s}^2} , $$
#
# and the mean is the mean of the two centers, weighted by the inverse variances. $\square$
#
# The **ancestral sampler** of DDPM goes backward in small steps: it replaces the unknown $x_0$ by the prediction, draws
# $x_s$, and repeats. With the true $x_0$ each step would be exact. With its conditional mean the variance of a step is
# too small, by an amount proportional to its square; so the sampler is exact only in the limit of many steps.
# The option `spread=0` of `ancestral` is this step; the default, `spread=1`, enlarges the variance to the one that is
# exact for data of variance 1. (They are the two variances of Ho et al.)

# %%
grid = times(schedule, 100)
start = initial_noise(jax.random.key(6), (4000, 1), schedule)


@jax.jit
def paths_of(start, key):
    f = lambda x, t: learned(x, t)
    return ancestral(f, start, grid, schedule, "eps", key=key, trajectory=True)


random_paths = np.asarray(paths_of(start, jax.random.key(7)))  # (times, n, 1)
figure, (left, right) = plt.subplots(1, 2, figsize=(6.5, 2.8), layout="constrained")
left.plot(grid, random_paths[:, :40, 0], color="#0072B2", linewidth=0.5, alpha=0.7)
left.set(xlabel="t", ylabel="x", xlim=(1, 0), ylim=(-3.5, 3.5))
bins = np.linspace(-2.5, 2.5, 61)
right.hist(random_paths[-1, :, 0], bins, density=True, color="0.8", label="samples")
plotting.curves(line, {"data": density(line[:, None], 0.0)}, right)
right.set(xlabel="x at t = 0", ylabel="density", xlim=(-2.5, 2.5))
legend = right.legend(frameon=False, loc="upper center")

# %% [markdown]
# Are these samples of the data distribution? Three numbers: the distance of section 1; the share of samples in $(0.3,
# 0.7)$, which contains most of the middle component; the share in the gap $(0.75, 1.05)$. The variance is printed too,
# because it is what one is tempted to check: that of the net with 400 steps is right to 2 %, and its middle component
# has only about a third of the samples that it should have.

# %%
within = lambda x, low, high: float(np.mean((x > low) & (x < high)))
exact_share = lambda low, high: float(
    np.diff(exact_cdf(jnp.array([low, high]), 0.0))[0]
)
data_variance = jax.jit(data.covariance)().item()


def report(name, samples):
    found = {
        "distance": float(ks_distance(samples)),
        "middle": within(samples, 0.3, 0.7),
        "gap": within(samples, 0.75, 1.05),
        "variance": float(samples.var() / data_variance),
    }
    print(f"{name:22}", {key: round(value, 3) for key, value in found.items()})
    return found


exact_shares = exact_share(0.3, 0.7), exact_share(0.75, 1.05)
print(f"data: middle {exact_shares[0]:.3f}, gap {exact_shares[1]:.3f}")


@jax.jit
def sample_short(start, key):
    f = lambda x, t: nets["400 steps"](x, t)
    return ancestral(f, start, grid, schedule, "eps", key=key)


@jax.jit
def sample_exact(start, key):
    return ancestral(best, start, grid, schedule, "eps", key=key)


short = report("net, 400 steps", np.asarray(sample_short(start, jax.random.key(7))))
long = report("net, 2000 steps", random_paths[-1])
ideal = report("exact denoiser", np.asarray(sample_exact(start, jax.random.key(7))))
assert abs(short["variance"] - 1) < 0.02  # passes
assert short["middle"] < 0.5 * exact_shares[0] and short["distance"] > 0.05  # fails
assert long["distance"] < 0.04 and abs(long["middle"] - exact_shares[0]) < 0.03
assert long["gap"] < 0.04
assert ideal["distance"] < 0.03 and abs(ideal["gap"] - exact_shares[1]) < 0.01

# %% [markdown]
# **Exercise 5.** Complete the mean and the variance of the theorem.


# %% tags=["exercise"]
def backward_step(x_t, clean, a_t, s_t, a_s, s_s):
    return 0 * x_t, 1.0  # complete the mean and the variance


# %% tags=["solution"]
def backward_step(x_t, clean, a_t, s_t, a_s, s_s):
    new = s_t**2 - (a_t / a_s * s_s) ** 2
    mean = a_t * s_s**2 / (a_s * s_t**2) * x_t + a_s * new / s_t**2 * clean
    return mean, s_s**2 * new / s_t**2


# %% tags=["check"]
later = float(signal(0.4)), float(noise_size(0.4))
earlier = float(signal(0.3)), float(noise_size(0.3))
draws = np.random.default_rng(1).normal(size=(2, 200_000))
x_s_drawn = earlier[0] * 0.7 + earlier[1] * draws[0]  # the data are 0.7
ratio = later[0] / earlier[0]
x_t_drawn = (
    ratio * x_s_drawn + np.sqrt(later[1] ** 2 - (ratio * earlier[1]) ** 2) * draws[1]
)
step_mean, step_variance = backward_step(x_t_drawn, 0.7, *later, *earlier)
left_over = x_s_drawn - step_mean
assert abs(left_over.mean()) < 0.01, "the mean of x_s minus its mean must be 0"
assert abs(np.cov(left_over, x_t_drawn)[0, 1]) < 0.01, "the rest must not depend on x_t"
assert abs(left_over.var() / step_variance - 1) < 0.02, "compare the variance"

# %% [markdown]
# ## 6. The probability flow
#
# The ancestral sampler is random. There is also a deterministic way back: an ordinary differential equation whose
# solutions have the same distribution at each time (Song et al. 2021).
#
# **Derivation.** For fixed data and noise $x_t$ moves with the velocity $\dot x_t = \alpha' x_0 + \sigma' \varepsilon$.
# Let $u(x, t) = E[\dot x_t \mid x_t = x]$ be its conditional mean. For a smooth function $h$ with compact support
#
# $$ \frac{d}{dt} E\, h(x_t) = E\, \langle \nabla h(x_t), \dot x_t \rangle
#    = E\, \langle \nabla h(x_t), u(x_t, t) \rangle , $$
#
# the second step by taking first the mean given $x_t$. Now let $y_t$ solve $\dot y = u(y, t)$, from the distribution of
# $x_1$ at $t = 1$. The chain rule gives the same equation for $y_t$. It determines the distributions at all times
# $t > 0$ if $u$ is Lipschitz continuous in $x$ with at most linear growth (true here: $u$ is smooth and close to linear
# for large $x$). So $y_t$ has the distribution of $x_t$, and
#
# $$ \frac{dx}{dt} = \alpha'(t)\, \hat x_0(x, t) + \sigma'(t)\, \hat\varepsilon(x, t) $$
#
# with the conditional means $\hat x_0$ and $\hat\varepsilon$ is the **probability flow**. `ddim` (Song, Meng and Ermon
# 2021), `euler`, `heun` and `dpm_solver_pp_2m` solve it from $t = 1$ to 0.


# %%
@jax.jit
def flow_paths(start):
    f = lambda x, t: learned(x, t)
    return heun(f, start, grid, schedule, "eps", trajectory=True)


smooth_paths = np.asarray(flow_paths(start))
figure, (left, right) = plt.subplots(1, 2, figsize=(6.5, 2.8), layout="constrained")
left.plot(grid, smooth_paths[:, :40, 0], color="#0072B2", linewidth=0.5, alpha=0.7)
left.set(xlabel="t", ylabel="x", xlim=(1, 0), ylim=(-3.5, 3.5))
right.hist(smooth_paths[-1, :, 0], bins, density=True, color="0.8", label="samples")
plotting.curves(line, {"data": density(line[:, None], 0.0)}, right)
right.set(xlabel="x at t = 0", ylabel="density", xlim=(-2.5, 2.5))
right.legend(frameon=False, loc="upper center")
print(f"data: middle {exact_shares[0]:.3f}, gap {exact_shares[1]:.3f}")
by_flow = report("net, 2000 steps, flow", smooth_paths[-1])
assert by_flow["distance"] < 0.04 and abs(by_flow["middle"] - exact_shares[0]) < 0.03
assert by_flow["gap"] < 0.04

# in one dimension solutions never cross: the order of the samples stays
order = np.argsort(smooth_paths[0, :, 0])
assert (np.diff(smooth_paths[-1, order, 0]) >= 0).all()

# %% [markdown]
# ### The number of steps
#
# The cost of sampling is the number of evaluations of the denoiser. For a single Gaussian the flow has a closed form
# (exercise 6), so the error of each solver can be measured. A method of order $p$ has an error proportional to $n^{-p}$
# for large $n$. From 32 to 64 steps the error of `ddim` and `euler` is halved, and that of `heun` (two evaluations a
# step) and `dpm_solver_pp_2m` (one) divided by about four.

# %%
single = gaussian_mixture(jnp.array([[1.0]]), jnp.array([0.25]))
nine = jnp.linspace(-2, 2, 9)[:, None]
first, last = (jax.jit(lambda t: single.at(t, schedule))(t) for t in (1.0, 0.0))
deviations = (nine - np.asarray(first.means)) / np.sqrt(np.ravel(first.variances))
exact_end = np.asarray(last.means) + deviations * np.sqrt(np.ravel(last.variances))
counts = (16, 32, 64)
grids = [times(schedule, n) for n in counts]
orders = {ddim: 1, euler: 1, heun: 2, dpm_solver_pp_2m: 2}
predict_single = single.predictor(schedule, "eps")


@jax.jit
def solver_errors(grids):
    ends = [
        [f(predict_single, nine, grid, schedule, "eps") for grid in grids]
        for f in orders
    ]
    return jnp.sqrt(jnp.mean((jnp.asarray(ends) - exact_end) ** 2, (2, 3)))


errors = {
    f.__name__: found
    for f, found in zip(orders, np.asarray(solver_errors(grids)), strict=True)
}
figure, ax = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
for (name, found), marker in zip(errors.items(), "o^sD", strict=True):
    ax.loglog(counts, found, marker=marker, label=name)
ax.set(xlabel="steps", ylabel="error", ylim=errors["heun"][-1] / 30)
ax.legend(frameon=False, loc="lower left")
for (name, found), order in zip(errors.items(), orders.values(), strict=True):
    assert abs(np.log2(found[-2] / found[-1]) - order) < 0.25, name

# %% [markdown]
# **Exercise 6.** For data $N(\mu, s^2)$ the flow keeps the distance from the mean in standard deviations,
# $(x - \alpha\mu) / \sqrt{\alpha^2 s^2 + \sigma^2}$. Prove it, and complete the end point of the flow from $x$ at
# $t = 1$ to $t = 0$. What does a *single* step of `ddim` from $t = 1$ to $0$ return instead?


# %% tags=["exercise"]
def end_of_flow(x, alpha_1, sigma_1, mu, s):
    return x  # complete this line


# %% [markdown] tags=["solution"]
# With $w^2 = \alpha^2 s^2 + \sigma^2$ and exercise 2, $\hat\varepsilon = \sigma (x - \alpha\mu) / w^2$ and
# $\hat x_0 = \mu + \alpha s^2 (x - \alpha\mu) / w^2$. So the derivative of $x - \alpha\mu$ along the flow is
# $(\alpha' \alpha s^2 + \sigma' \sigma)(x - \alpha\mu) / w^2 = \frac{w'}{w} (x - \alpha\mu)$: it grows like $w$. A
# single step of `ddim` returns the prediction of $x_0$ at pure noise, nearly $\mu$ for every start. The mean has the
# smallest squared error, but it is not a sample.


# %% tags=["solution"]
def end_of_flow(x, alpha_1, sigma_1, mu, s):
    return mu + s * (x - alpha_1 * mu) / np.sqrt(alpha_1**2 * s**2 + sigma_1**2)


# %% tags=["check"]
assert np.allclose(
    end_of_flow(nine, signal(1.0), noise_size(1.0), 1.0, 0.5),
    jax.jit(lambda x: heun(predict_single, x, times(schedule, 200), schedule, "eps"))(
        nine
    ),
    atol=2e-3,
), "the number of standard deviations from the mean must be the same at both ends"

# %% [markdown]
# ## 7. Guidance, and flow matching
#
# **Classifier-free guidance** (Ho and Salimans 2022). A denoiser that takes the class as an input generates samples of
# that class. Guidance extrapolates from the unconditional prediction through the conditional one:
# $\hat\varepsilon + w\, (\hat\varepsilon_c - \hat\varepsilon)$. Scale $w = 0$ ignores the class, and $w = 1$ is the
# conditional prediction. By Bayes' rule, $\nabla \log p_t(x \mid c) - \nabla \log p_t(x) = \nabla \log p_t(c \mid x)$:
# a scale $w > 1$ follows the direction in which the class becomes more certain more than the data do. The result is not
# a sample of the class. Here the condition is the rightmost component, $N(1.5, 0.2^2)$, and scale 3 makes its samples
# narrower.

# %%
right_only = gaussian_mixture(jnp.array([[1.5]]), jnp.array([0.04]))
of_class = right_only.predictor(schedule, "eps")
forty = times(schedule, 40)


@jax.jit
def guided(start, scale):
    f = classifier_free_guidance(of_class, best, scale)
    return dpm_solver_pp_2m(f, start, forty, schedule, "eps")


by_scale = {w: np.asarray(guided(start, w))[:, 0] for w in (0.0, 0.5, 1.0, 3.0)}
figure, axes = plt.subplots(1, 4, figsize=(6.5, 2.2), layout="constrained", sharey=True)
for ax, (scale, found) in zip(axes, by_scale.items(), strict=True):
    ax.hist(found, np.linspace(-2.5, 2.5, 61), color="0.6")
    ax.set(title=f"scale {scale:g}", xlabel="x")
axes[0].set_ylabel("samples")
share_right = {scale: np.mean(found > 1) for scale, found in by_scale.items()}
assert abs(share_right[0.0] - 0.3) < 0.03
assert share_right[0.0] < share_right[0.5] < share_right[1.0]
assert min(share_right[1.0], share_right[3.0]) > 0.98
assert abs(by_scale[1.0].mean() - 1.5) < 0.02 and abs(by_scale[1.0].std() - 0.2) < 0.02
assert by_scale[3.0].std() < 0.9 * by_scale[1.0].std()

# %% [markdown]
# **Flow matching** (Lipman et al. 2023; Liu et al. 2023). Other schedules are possible. The straight line
# $x_t = (1 - t)\, x_0 + t\, \varepsilon$ has the velocity $\varepsilon - x_0$ for fixed data and noise, and the net
# predicts it. Derivation, loss and solvers are the same. The solutions of the flow are *not* straight lines, since
# $u$ is a conditional mean over all data: the figure shows how they bend.

# %%
flow = flow_matching_schedule()
forty_flow, velocity = times(flow, 40), data.predictor(flow, "velocity")


@jax.jit
def straight_flow(start):
    return heun(velocity, start, forty_flow, flow, "velocity", trajectory=True)


flow_path = np.asarray(straight_flow(start))
figure, ax = plt.subplots(figsize=(4.5, 3), layout="constrained")
ax.plot(forty_flow, flow_path[:, :40, 0], color="#0072B2", linewidth=0.5, alpha=0.7)
ax.set(xlabel="t", ylabel="x", xlim=(1, 0))
assert float(ks_distance(flow_path[-1])) < 0.03
chord = (1 - forty_flow[:, None]) * flow_path[-1, :, 0] + forty_flow[:, None] * start.T
assert np.median(abs(flow_path[:, :, 0] - chord).max(0)) > 0.1  # not straight

# %% [markdown]
# **Exercise 7.** Complete one step of `ddim` for flow matching, from $t$ to $s$: it combines the two predictions at the
# new time. Why is it the step of Euler's method along the velocity?


# %% tags=["exercise"]
def combined_step(x, t, s, velocity_here):
    return x  # complete this line


# %% [markdown] tags=["solution"]
# `ddim` returns $(1 - s)\, \hat x_0 + s\, \hat\varepsilon$, and $x_t = (1 - t)\, \hat x_0 + t\, \hat\varepsilon$. The
# difference is $(s - t)(\hat\varepsilon - \hat x_0)$, the step of Euler's method.


# %% tags=["solution"]
def combined_step(x, t, s, velocity_here):
    clean, noise_here = x - t * velocity_here, x + (1 - t) * velocity_here
    return (1 - s) * clean + s * noise_here


# %% tags=["check"]
one_step = combined_step(nine, 0.7, 0.5, velocity(nine, 0.7))
two_times = jnp.array([0.7, 0.5])
for by_solver in (ddim, euler):
    same = by_solver(velocity, nine, two_times, flow, "velocity")
    assert np.allclose(one_step, same, atol=1e-5), (
        "predict x_0 and the noise from x and the velocity, then combine them at s"
    )

# %% [markdown]
# ## 8. Handwritten digits
#
# For images nothing changes but the data and the net. The digits of scikit-learn have 8 by 8 pixels; 1,400 of them
# train a net with three hidden layers of 256 units, which predicts $v$, and 397 are kept for comparison.
# (`examples/diffusion_digits.py` uses a U-Net with attention, and generates digits of a given class.)

# %%
images, labels = jb.datasets.digits()
mixed = np.random.default_rng(0).permutation(len(images))
pixels, labels = 2 * images.reshape(-1, 64)[mixed] - 1, labels[mixed]
train, test = pixels[:1400], pixels[1400:]
digit_net = jb.Wire(forward, net=jb.MLP(256, 256, 256, 64, activation=jb.silu))
fitted = jb.fit(
    DenoisingLoss(digit_net, schedule, "v"),
    lambda losses, y: losses,
    optax.adam(optax.cosine_decay_schedule(4e-3, 600)),
    (jnp.asarray(train), None),
    key=jax.random.key(1),
    batch_size=128,
    steps=600,
    progress=False,
)
digit_params = fitted.params["net"]


@jax.jit
def draw_digits(key):
    f = lambda x, t: digit_net.apply(digit_params, x, time=t)
    pure = initial_noise(key, (len(test), 64), schedule)
    return ddim(f, pure, times(schedule, 50), schedule, "v")


drawn = np.asarray(draw_digits(jax.random.key(6)))

# %% [markdown]
# The first row shows ten samples, the second the training image nearest to each. Are the samples copies? Their distance
# to the nearest training image is larger than that of real digits that were not trained on.

# %%
gaps = np.sqrt(np.sum((drawn[:, None] - train) ** 2, -1))
test_gaps = np.sqrt(np.sum((test[:, None] - train) ** 2, -1)).min(1)
nearest = train[gaps[:10].argmin(1)]
rows = np.concatenate([drawn[:10], nearest]).clip(-1, 1).reshape(20, 8, 8)
figure, ax = plt.subplots(figsize=(6.5, 1.7), layout="constrained")
ax = plotting.tiles(rows, ax, columns=10)
print(
    f"median distance to the nearest training image: samples "
    f"{np.median(gaps.min(1)):.2f}, other digits {np.median(test_gaps):.2f}"
)
assert np.median(gaps.min(1)) > np.median(test_gaps)

# %% [markdown]
# Is this the distribution of digits? No closed form tells, so compare with the 397 digits that were not trained on. The
# **maximum mean discrepancy** (Gretton et al. 2012) of two distributions is zero only if they are equal; its value for
# two sets of real digits is the scale, since that of finite samples is never exactly zero. A classifier tells how often
# each digit occurs. The result of this one run: the samples are much nearer to the real digits than noise is, and about
# one and a half times as far as real digits are from each other; all ten digits occur, but not equally often.


# %%
def discrepancy(a, b, size=8.0):
    square = lambda p, q: np.sum((p[:, None] - q) ** 2, -1)
    kernel = lambda p, q: np.exp(-square(p, q) / (2 * size**2)).mean()
    return kernel(a, a) + kernel(b, b) - 2 * kernel(a, b)


classifier = jb.MLP(128, 10)
read = jb.fit(
    classifier,
    jb.softmax_cross_entropy,
    optax.adam(5e-3),
    (jnp.asarray(train), jnp.asarray(labels[:1400])),
    key=jax.random.key(0),
    epochs=10,
    progress=False,
)
predict = jax.jit(lambda x: classifier.apply(read.params, x).argmax(-1))
accuracy = np.mean(np.asarray(predict(test)) == labels[1400:])
digit_shares = np.bincount(np.asarray(predict(drawn)), minlength=10) / len(drawn)
scale = discrepancy(train[: len(test)], test)
far = discrepancy(np.asarray(jax.random.normal(jax.random.key(9), test.shape)), test)
close = discrepancy(drawn, test)
print(f"discrepancy: samples {close:.4f}, real digits {scale:.4f}, noise {far:.4f}")
print(
    f"classifier: {accuracy:.1%} correct; shares of the digits {digit_shares.round(2)}"
)
assert accuracy > 0.95 and 0.03 < digit_shares.min() < 0.14 < digit_shares.max()
assert 1.2 * scale < close < 3 * scale < far / 20

# %% [markdown]
# **Exercise 8.** A sampler that returns training images with a little noise would pass a comparison of distributions.
# Complete `share_of_copies`: the share of samples that are nearer to a training image than `limit`.


# %% tags=["exercise"]
def share_of_copies(samples, training, limit):
    return 0.5  # complete this line


# %% tags=["solution"]
def share_of_copies(samples, training, limit):
    square = np.sum((samples[:, None] - training) ** 2, -1)
    return np.mean(square.min(1) < limit**2)


# %% tags=["check"]
copied = train[:100] + 0.05 * np.random.default_rng(2).normal(size=(100, 64))
assert share_of_copies(copied, train, 1.0) == 1, "these are all copies"
assert share_of_copies(drawn, train, 1.0) < 0.05, "hardly any of the samples is one"
