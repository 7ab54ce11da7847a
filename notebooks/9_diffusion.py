# %% [markdown]
# # Diffusion models: from noise to data
#
# Adding noise turns data into noise. **Can this process be reversed?** If the direction toward the data is known at
# every noise level, one can start from pure noise, follow this direction in small steps, and arrive at new samples of
# the data distribution.
#
# The lectures have diffusion in their title and announce a section on it that is missing. The formulas here are from
# the papers: Ho et al. 2020 (DDPM), Song et al. 2021, Karras et al. 2022. The data are one-dimensional, so that the
# whole process can be drawn, and their distribution is a mixture of Gaussians, so that all densities have a closed
# form. An `assert` in the next code cell checks each claim of the text. The homework at the end has solutions.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import jaxblocks as jb
from jaxblocks import plotting
from jaxblocks.diffusion import (
    DenoisingLoss,
    Schedule,
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

data = gaussian_mixture(
    jnp.array([[-1.5], [0.5], [1.5]]),
    jnp.array([0.04, 0.02, 0.04]),
    jnp.array([0.5, 0.2, 0.3]),
)
schedule = variance_preserving_schedule()
density = jax.jit(lambda x, t: jnp.exp(data.at(t, schedule).log_density(x)))
line = np.linspace(-4, 4, 400, dtype=np.float32)

# %% [markdown]
# ## 1. The forward process
#
# At time $t$, from 0 to 1, the data $x_0$ become
#
# $$ x_t = \alpha(t)\, x_0 + \sigma(t)\, \varepsilon, \qquad \varepsilon \sim N(0, I) . $$
#
# The signal coefficient $\alpha$ decreases from 1 to almost 0, the noise coefficient $\sigma$ increases from 0 to 1.
# Here $\alpha^2 + \sigma^2 = 1$, so data of variance 1 keep their variance. (DDPM writes $\bar\alpha_t$ for
# $\alpha^2$.)

# %%
t = np.linspace(0, 1, 101, dtype=np.float32)
figure, axes = plt.subplots(1, 5, figsize=(13, 2.4), layout="constrained")
plotting.curves(
    t,
    jax.jit(lambda t: {"signal": schedule.signal(t), "noise": schedule.noise(t)})(t),
    axes[0],
)
x0 = np.asarray(jax.jit(data.sample, static_argnums=1)(jax.random.key(0), 5000))
eps = np.asarray(jax.random.normal(jax.random.key(1), x0.shape))
noised = jax.jit(lambda t: add_noise(x0, eps, t, schedule))
for ax, time in zip(axes[1:], (0.0, 0.1, 0.3, 1.0), strict=True):
    ax.hist(np.asarray(noised(time))[:, 0], bins=60, density=True, color="0.8")
    ax.plot(line, density(line[:, None], time))
    ax.set(title=f"t = {time}", xlim=(-3.5, 3.5), yticks=[])

# %% [markdown]
# The curves are exact: with noise, a mixture of Gaussians is again a mixture of Gaussians. If the data have variance
# $s^2$, then $x_t$ has variance $\alpha^2 s^2 + \sigma^2$. For $s^2 = 4$ and $\alpha^2 = 0.37$ this is
# $0.37 \cdot 4 + 0.63 = 2.11$.

# %%
# a user-defined schedule with alpha^2 = 1 - t
root = Schedule(signal=lambda t: jnp.sqrt(1 - t), noise=jnp.sqrt)
wide = gaussian_mixture(jnp.array([[0.0]]), jnp.array([4.0]))


@jax.jit
def blurred(data_key, noise_key):
    x = wide.sample(data_key, 100_000)
    return add_noise(x, jax.random.normal(noise_key, x.shape), 0.63, root), wide.at(
        0.63, root
    ).covariance()


drawn, exact = map(np.asarray, blurred(jax.random.key(2), jax.random.key(3)))
assert abs(exact.item() - 2.11) < 1e-3
assert abs(drawn.var() - 2.11) < 4 * 2.11 * np.sqrt(2 / 100_000)

# %% [markdown]
# ## 2. The denoiser
#
# A denoiser is a net that takes $x_t$ and $t$ and predicts the noise $\varepsilon$. Its loss is
# $\lVert \varepsilon - \hat\varepsilon \rVert^2$. The noise is not determined by $x_t$; the optimal prediction is its
# conditional *mean* given $x_t$. For a mixture of Gaussians it has a closed form. No other prediction has a lower loss.

# %%
best = jax.jit(data.predictor(schedule, "eps"))
x = np.asarray(noised(0.2))
prediction = np.asarray(best(x, 0.2))
loss = lambda prediction: np.mean((eps - prediction) ** 2)
others = (
    0.9 * prediction,
    1.1 * prediction,
    prediction + 0.1,
    np.zeros_like(prediction),
)
assert loss(prediction) < min(loss(other) for other in others)
figure, ax = plt.subplots(figsize=(5.5, 3), layout="constrained")
ax.plot(x[:1000], eps[:1000], ".", color="0.7", markersize=2, label="true noise")
ax.plot(line, best(line[:, None], 0.2), label="optimal prediction")
ax.set(xlabel="x at t = 0.2", xlim=(-2.5, 2.5))
legend = ax.legend(frameon=False)

# %% [markdown]
# The noise determines the data: $x_0 = (x_t - \sigma\varepsilon) / \alpha$. So a net can also predict $x_0$, or
# $v = \alpha\varepsilon - \sigma x_0$, or the velocity $dx/dt = \alpha' x_0 + \sigma'\varepsilon$. `convert` converts
# between these predictions. A fifth one is the score.
#
# ### The score
#
# $-\hat\varepsilon / \sigma$ is the gradient of the log density: it points toward regions of higher density.
#
# $$ \nabla_x \log p_t(x) = -\frac{\hat\varepsilon(x, t)}{\sigma(t)} $$

# %%
noisy = jax.jit(lambda t: data.at(t, schedule))(0.2)
points = line[50:350:30, None]
by_jax = np.asarray(jax.jit(jax.vmap(jax.grad(noisy.log_density)))(points))
by_denoiser = jax.jit(
    lambda x: convert(best(x, 0.2), x, 0.2, schedule, "eps", "score")
)(points)
assert np.allclose(by_jax, by_denoiser, atol=1e-4)
figure, ax = plt.subplots(figsize=(5.5, 3), layout="constrained")
ax.plot(line, density(line[:, None], 0.2), label="density at t = 0.2")
ax.quiver(
    points[:, 0],
    0 * points[:, 0],
    by_jax[:, 0],
    0 * points[:, 0],
    width=0.006,
    color="#D55E00",
)
ax.set(xlim=(-3, 3), title="arrows: the score")
legend = ax.legend(frameon=False)

# %% [markdown]
# > **The lectures use the same word** with another meaning. A "score-based classifier" assigns a number to each class,
# > its *score*, and chooses the largest. (The usual name is logits.)
#
# A class score is a number per *class*, and only differences between classes matter: a constant added to all scores
# changes nothing. The score of diffusion is a gradient, with one number per *feature* of x. Bayes' rule relates the
# two: the score of one class is the score of all data plus the gradient of the log-softmax of the class scores.

# %%
first = gaussian_mixture(data.means[:1], data.variances[:1, 0])  # the first class
log_softmax = lambda x: jnp.log(noisy.responsibilities(x))


@jax.jit
def of_classes(x):
    gradient = jax.vmap(jax.grad(lambda x: log_softmax(x)[0]))(x)
    return log_softmax(x), gradient, first.at(0.2, schedule).score(x)


# class_scores: (points, classes)
class_scores, to_class, score_of_class = map(np.asarray, of_classes(points))
assert class_scores.shape == (10, 3) and by_jax.shape == (10, 1)
softmax = jax.jit(jb.softmax)
assert np.allclose(softmax(class_scores + 7), softmax(class_scores), atol=1e-6)
assert np.allclose(by_jax + to_class, score_of_class, atol=1e-2)

# %% [markdown]
# ## 3. Training
#
# Any layer with the side input `time` can be a denoiser. `DenoisingLoss` makes a layer of it that maps data to losses:
# it draws a time for each example, and noise, from the key of the training step. `fit` trains this layer like any
# other.


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
fitted = jb.fit(
    DenoisingLoss(net, schedule, "eps"),
    lambda losses, y: losses,
    optax.adam(optax.cosine_decay_schedule(5e-3, 600)),
    (x0, x0),
    key=jax.random.key(4),
    batch_size=256,
    steps=600,
    progress=False,
)
params = fitted.params["net"]
learned = jax.jit(lambda x, t: net.apply(params, x, time=t))
seen_at = jax.jit(lambda t: data.at(t, schedule).sample(jax.random.key(5), 2000))
figure, axes = plt.subplots(1, 3, figsize=(11, 2.6), layout="constrained", sharey=True)
for ax, time in zip(axes, (0.1, 0.2, 0.5), strict=True):
    drawn = {"optimal": best, "net": learned}
    plotting.curves(
        line,
        {name: np.asarray(f(line[:, None], time))[:, 0] for name, f in drawn.items()},
        ax,
    )
    ax.set(title=f"prediction of the noise at t = {time}", xlim=(-3, 3), ylim=(-4, 4))
    seen = seen_at(time)
    assert (
        np.mean((np.asarray(best(seen, time)) - np.asarray(learned(seen, time))) ** 2)
        < 0.1
    )

# %% [markdown]
# ## 4. Sampling
#
# ### Ancestral sampling
#
# Given $x_t$ and a prediction of $x_0$, the distribution of $x_s$ at an earlier time $s$ is Gaussian. Draw $x_s$ from
# it, predict $x_0$ again, and repeat. This is **ancestral sampling**, the sampler of DDPM.
#
# ### The probability-flow ODE
#
# There is a deterministic differential equation whose solutions have the same distribution at each time:
#
# $$ \frac{dx}{dt} = \alpha'(t)\, \hat x_0(x, t) + \sigma'(t)\, \hat\varepsilon(x, t), $$
#
# the **probability-flow ODE**. `ddim`, `euler`, `heun` and `dpm_solver_pp_2m` solve it, from $t = 1$ to $0$.

# %%
steps = times(schedule, 50)
noise = initial_noise(jax.random.key(6), (2000, 1), schedule)


@jax.jit
def sampled(noise, key):
    random_paths = ancestral(
        learned, noise, steps, schedule, "eps", key=key, trajectory=True
    )
    return random_paths, ddim(learned, noise, steps, schedule, "eps", trajectory=True)


# (times, n, 1)
random_paths, smooth_paths = map(np.asarray, sampled(noise, jax.random.key(7)))
figure, axes = plt.subplots(1, 3, figsize=(12, 3), layout="constrained")
for ax, paths, title in zip(
    axes, (random_paths, smooth_paths), ("ancestral", "ddim (ODE)"), strict=False
):
    ax.plot(steps, paths[:, :40, 0], linewidth=0.6)
    ax.set(title=title, xlabel="t", xlim=(1, 0), ylim=(-3.5, 3.5))
bins = np.linspace(-2.5, 2.5, 60)
for paths, name in ((random_paths, "ancestral"), (smooth_paths, "ddim (ODE)")):
    axes[2].hist(paths[-1, :, 0], bins, density=True, histtype="step", label=name)
axes[2].plot(line, density(line[:, None], 0.0), "k", linewidth=0.8, label="data")
axes[2].set(xlim=(-2.5, 2.5))
axes[2].legend(frameon=False)
shares = jax.jit(lambda x: data.responsibilities(x).mean(0))
variance = jax.jit(data.covariance)().item()
for paths in (random_paths, smooth_paths):
    assert np.allclose(shares(paths[-1]), data.weights, atol=0.06)
    assert abs(paths[-1].var() / variance - 1) < 0.15

# %% [markdown]
# ### The number of steps
#
# The cost of sampling is the number of denoiser evaluations. For a single Gaussian the flow has a closed form: it
# preserves the distance from the mean in standard deviations. So the error of each solver can be measured. Twice as
# many steps divide the error of a first-order method by two, and that of a second-order method by four.

# %%
single = gaussian_mixture(jnp.array([[1.0]]), jnp.array([0.25]))
start = np.linspace(-2, 2, 9, dtype=np.float32)[:, None]


@jax.jit
def exact_flow(x):
    first, last = single.at(1.0, schedule), single.at(0.0, schedule)
    deviations = (x - first.means) / jnp.sqrt(first.variances)
    return last.means + deviations * jnp.sqrt(last.variances)


exact = exact_flow(start)
counts = (16, 32, 64)
grids = [times(schedule, n) for n in counts]
solvers = (ddim, euler, heun, dpm_solver_pp_2m)
exact_predict = single.predictor(schedule, "eps")
error = lambda solver, grid: jnp.sqrt(
    jnp.mean((solver(exact_predict, start, grid, schedule, "eps") - exact) ** 2)
)
measure = jax.jit(
    lambda grids: {
        f.__name__: jnp.stack([error(f, grid) for grid in grids]) for f in solvers
    }
)
errors = {name: np.asarray(found) for name, found in measure(grids).items()}
figure, ax = plt.subplots(figsize=(5.5, 3), layout="constrained")
for name, (_, before, after) in errors.items():
    ax.loglog(
        counts, errors[name], ".-", label=f"{name}, order {np.log2(before / after):.2f}"
    )
ax.set(xlabel="steps", ylabel="error")
ax.legend(frameon=False)
for name, order in {"ddim": 1, "euler": 1, "heun": 2, "dpm_solver_pp_2m": 2}.items():
    assert abs(np.log2(errors[name][-2] / errors[name][-1]) - order) < 0.25

# %% [markdown]
# ## 5. Classifier-free guidance
#
# A denoiser that takes the class as an input generates samples of that class. **Classifier-free guidance** extrapolates
# from the unconditional prediction toward the conditional one and beyond. Scale 0 ignores the class, scale 1 is the
# conditional prediction, and larger scales amplify the condition. Here the condition is the rightmost component of the
# mixture.

# %%
right = gaussian_mixture(data.means[2:], data.variances[2:, 0]).predictor(
    schedule, "eps"
)
twenty = times(schedule, 20)
guided = lambda scale: dpm_solver_pp_2m(
    classifier_free_guidance(right, best, scale), noise, twenty, schedule, "eps"
)
sample = jax.jit(guided)
figure, axes = plt.subplots(1, 4, figsize=(12, 2.4), layout="constrained", sharey=True)
to_the_right = []
for ax, scale in zip(axes, (0.0, 0.5, 1.0, 3.0), strict=True):
    found = np.asarray(sample(scale))
    to_the_right.append((found > 1).mean())
    ax.hist(found[:, 0], np.linspace(-2.5, 2.5, 60), color="0.6")
    ax.set_title(f"scale {scale}")
assert (
    abs(to_the_right[0] - 0.3) < 0.05
    and to_the_right[0] < to_the_right[1] < to_the_right[2]
)
assert to_the_right[2] > 0.98 and to_the_right[3] > 0.98

# %% [markdown]
# ## 6. Flow matching
#
# Other schedules are possible. **Flow matching** uses the straight line $x_t = (1 - t)\, x_0 + t\, \varepsilon$ and
# learns the velocity $\varepsilon - x_0$. Loss and samplers are the same; only the schedule and the prediction type
# differ. (The sampling paths are not straight, since the net predicts a conditional mean over all data.)

# %%
flow = flow_matching_schedule()
forty, velocity = times(flow, 40), data.predictor(flow, "velocity")
paths = np.asarray(
    jax.jit(lambda x: heun(velocity, x, forty, flow, "velocity", trajectory=True))(
        noise
    )
)
figure, ax = plt.subplots(figsize=(4.5, 3), layout="constrained")
ax.plot(forty, paths[:, :40, 0], linewidth=0.6)
ax.set(xlabel="t", xlim=(1, 0), title="flow matching")
assert np.allclose(shares(paths[-1]), data.weights, atol=0.05)

# %% [markdown]
# For images only the net changes: `examples/diffusion_digits.py` uses a U-Net with attention as the denoiser, and
# generates digits of a given class.
#
# ## Homework
#
# **1.** The data are $N(\mu, s^2)$. Derive the optimal prediction $\hat\varepsilon(x, t)$ and its loss. When is the
# loss 1, which is the loss of the prediction 0?
#
# **2.** Show that for flow matching, `ddim` and `euler` take the same steps.
#
# **3.** What does a single step of `ddim` from $t = 1$ return? Why is it not a sample of the data, although it has the
# smallest squared error?
#
# ## Solutions
#
# ### 1. The optimal prediction for one Gaussian
#
# $\varepsilon$ and $x_t$ are jointly Gaussian, with covariance $\sigma$, and $x_t$ has the variance
# $\alpha^2 s^2 + \sigma^2$. So
#
# $$ \hat\varepsilon = \frac{\sigma\, (x - \alpha\mu)}{\alpha^2 s^2 + \sigma^2}, \qquad
# E (\varepsilon - \hat\varepsilon)^2 = 1 - \frac{\sigma^2}{\alpha^2 s^2 + \sigma^2}
# = \frac{\alpha^2 s^2}{\alpha^2 s^2 + \sigma^2} . $$
#
# It tends to 1 as $t \to 0$: at small noise levels $x_t$ contains almost no information on the noise.

# %%
a, s = jax.jit(lambda t: (schedule.signal(t), schedule.noise(t)))(0.3)
a, s = float(a), float(s)
formula = s * (start - a * 1.0) / (a**2 * 0.25 + s**2)
assert np.allclose(jax.jit(exact_predict)(start, 0.3), formula, atol=1e-5)

# %% [markdown]
# ### 2. Equality of the steps
#
# From $t$ to $s$, `ddim` computes $(1 - s)\,\hat x_0 + s\,\hat\varepsilon$, and
# $x_t = (1 - t)\,\hat x_0 + t\,\hat\varepsilon$. The difference is $(s - t)(\hat\varepsilon - \hat x_0)$, which is the
# Euler step along the velocity. $\square$

# %%
few = times(flow, 5)
one_way, other_way = jax.jit(
    lambda x: [f(velocity, x, few, flow, "velocity") for f in (ddim, euler)]
)(noise[:5])
assert np.allclose(one_way, other_way, atol=1e-5)

# %% [markdown]
# ### 3. A single step
#
# It returns $\hat x_0$ at pure noise: the mean of all data, for any noise. No prediction has a smaller squared error,
# but it is not similar to any data: the mean of $-0.2$ lies between the components, where the density is low. A sample
# requires several steps.

# %%
once = jax.jit(lambda x: ddim(best, x, jnp.array([1.0, 0.0]), schedule, "eps"))(noise)
mean = jax.jit(data.mean)()
assert np.allclose(once, mean, atol=0.1)
assert jax.jit(data.log_density)(mean) < -4
