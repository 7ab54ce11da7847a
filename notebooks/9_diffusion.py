# %% [markdown]
# # Diffusion: how does noise become data?
#
# To turn data into noise is easy: add noise. **Can one go back?** If we knew, at every amount of noise, which way the
# data lie, we could start from pure noise, go a little way, look again, and arrive at data that nobody has seen before.
#
# The lectures have diffusion in their title and announce a section on it, which is not there. So the formulas here come
# from the papers: Ho et al. 2020 (DDPM), Song et al. 2021, Karras et al. 2022. Data are one number each, so that the
# whole process can be drawn, and a mixture of Gaussians, so that everything is known in closed form. What is claimed in
# the text is checked by an `assert` in the cell below it. At the end there is homework, with solutions.

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

data = gaussian_mixture(jnp.array([[-1.5], [0.5], [1.5]]), jnp.array([0.04, 0.02, 0.04]), jnp.array([0.5, 0.2, 0.3]))
schedule = variance_preserving_schedule()
density = jax.jit(lambda x, t: jnp.exp(data.at(t, schedule).log_density(x)))
line = jnp.linspace(-4, 4, 400)

# %% [markdown]
# ## 1. From data to noise
#
# At time $t$, from 0 to 1, the data $x_0$ have become
#
# $$ x_t = \alpha(t)\, x_0 + \sigma(t)\, \varepsilon, \qquad \varepsilon \sim N(0, I) . $$
#
# The signal $\alpha$ falls from 1 to almost 0, the noise $\sigma$ grows from 0 to 1. Here $\alpha^2 + \sigma^2 = 1$, so
# that data of variance 1 keep it. (DDPM writes $\bar\alpha_t$ for $\alpha^2$.)

# %%
t = jnp.linspace(0, 1, 101)
figure, axes = plt.subplots(1, 5, figsize=(13, 2.4), layout="constrained")
plotting.curves(t, {"signal": schedule.signal(t), "noise": schedule.noise(t)}, axes[0])
x0 = data.sample(jax.random.key(0), 5000)
eps = jax.random.normal(jax.random.key(1), x0.shape)
for ax, time in zip(axes[1:], (0.0, 0.1, 0.3, 1.0), strict=True):
    x = add_noise(x0, eps, time, schedule)
    ax.hist(np.asarray(x)[:, 0], bins=60, density=True, color="0.8")
    ax.plot(line, density(line[:, None], time))
    ax.set(title=f"t = {time}", xlim=(-3.5, 3.5), yticks=[])

# %% [markdown]
# The curves are exact: noise turns a mixture of Gaussians into another one. If the data have variance $s^2$, those at
# $t$ have $\alpha^2 s^2 + \sigma^2$. For $s^2 = 4$ and $\alpha^2 = 0.37$ that is $0.37 \cdot 4 + 0.63 = 2.11$.

# %%
root = Schedule(signal=lambda t: jnp.sqrt(1 - t), noise=jnp.sqrt)  # a schedule of our own: here 1 - t is alpha^2
wide = gaussian_mixture(jnp.array([[0.0]]), jnp.array([4.0]))
blurred = jax.random.normal(jax.random.key(3), (100_000, 1))
drawn = add_noise(wide.sample(jax.random.key(2), 100_000), blurred, 0.63, root)
assert abs(wide.at(0.63, root).covariance().item() - 2.11) < 1e-3
assert abs(drawn.var() - 2.11) < 4 * 2.11 * np.sqrt(2 / 100_000)

# %% [markdown]
# ## 2. The denoiser
#
# Show a net $x_t$ and $t$, and let it guess the noise $\varepsilon$ that was mixed in. It is charged by $\lVert
# \varepsilon - \hat\varepsilon \rVert^2$. It cannot know; the best that it can do is the *mean* of all the noise that
# may have led to $x_t$. For our mixture that is known, and no other guess is cheaper.

# %%
best = jax.jit(data.predictor(schedule, "eps"))
x = add_noise(x0, eps, 0.2, schedule)
guess = best(x, 0.2)
charge = lambda guess: jnp.mean((eps - guess) ** 2)
assert charge(guess) < min(charge(0.9 * guess), charge(1.1 * guess), charge(guess + 0.1), charge(jnp.zeros_like(guess)))
figure, ax = plt.subplots(figsize=(5.5, 3), layout="constrained")
ax.plot(x[:1000], eps[:1000], ".", color="0.7", markersize=2, label="noise that was mixed in")
ax.plot(line, best(line[:, None], 0.2), label="best guess")
ax.set(xlabel="x at t = 0.2", xlim=(-2.5, 2.5))
legend = ax.legend(frameon=False)

# %% [markdown]
# Who knows the noise knows the data too: $x_0 = (x_t - \sigma\varepsilon) / \alpha$. So a net may as well predict
# $x_0$, or $v = \alpha\varepsilon - \sigma x_0$, or the velocity $dx/dt = \alpha' x_0 + \sigma'\varepsilon$, and
# `convert` turns one into the other. And there is a fifth.
#
# ### The score
#
# $-\hat\varepsilon / \sigma$ is the gradient of the log density: it points to where the data are.
#
# $$ \nabla_x \log p_t(x) = -\frac{\hat\varepsilon(x, t)}{\sigma(t)} $$

# %%
noisy = data.at(0.2, schedule)
points = line[50:350:30, None]
by_jax = jax.vmap(jax.grad(lambda x: noisy.log_density(x)))(points)
by_denoiser = convert(best(points, 0.2), points, 0.2, schedule, "eps", "score")
assert jnp.allclose(by_jax, by_denoiser, atol=1e-4)
figure, ax = plt.subplots(figsize=(5.5, 3), layout="constrained")
ax.plot(line, density(line[:, None], 0.2), label="density at t = 0.2")
ax.quiver(points[:, 0], 0 * points[:, 0], by_jax[:, 0], 0 * points[:, 0], width=0.006, color="#D55E00")
ax.set(xlim=(-3, 3), title="arrows: the score")
legend = ax.legend(frameon=False)

# %% [markdown]
# > **The lectures use the same word** for something else. A "score-based classifier" gives each class a number, its
# > *score*, and chooses the largest. (Elsewhere they are called logits.)
#
# A score of a class is a number per *class*, and only differences between classes matter: add the same to all, and
# nothing changes. The score of diffusion is a number per *feature* of x, a gradient. They meet in Bayes' rule: the
# gradient of the log-softmax of class scores is what leads from the score of all data to that of one class.

# %%
class_scores = jnp.log(noisy.responsibilities(points))  # (points, classes)
assert class_scores.shape == (10, 3) and by_jax.shape == (10, 1)
assert jnp.allclose(jax.nn.softmax(class_scores + 7), jax.nn.softmax(class_scores), atol=1e-6)
one = gaussian_mixture(data.means[:1], data.variances[:1, 0]).at(0.2, schedule)
to_class = jax.vmap(jax.grad(lambda x: jnp.log(noisy.responsibilities(x)[0])))(points)
assert jnp.allclose(by_jax + to_class, one.score(points), atol=1e-2)

# %% [markdown]
# ## 3. Learn it
#
# Any pair that reads `time` is a denoiser. `DenoisingLoss` makes it a pair that takes data and returns losses: it draws
# a time for each example, and noise, from the key of the training step. The rest is `fit`, as ever.


# %%
def forward(f, x, *, time):
    time = jnp.broadcast_to(time, x.shape[:-1])[..., None]
    waves = [wave(rate * jnp.pi * time) for rate in (0.5, 1, 2, 4) for wave in (jnp.sin, jnp.cos)]
    return f.net(jnp.concatenate([x, *waves], -1))


net = jb.Wire(forward, net=jb.MLP(64, 64, 64, 1, activation=jb.silu))
fitted = jb.fit(
    DenoisingLoss(net, schedule, "eps"),
    lambda losses, y: losses,
    optax.adam(optax.cosine_decay_schedule(5e-3, 1500)),
    (x0, x0),
    key=jax.random.key(4),
    batch_size=256,
    steps=1500,
    progress=False,
)
params = fitted.params["net"]
learned = jax.jit(lambda x, t: net.apply(params, x, time=t))
figure, axes = plt.subplots(1, 3, figsize=(11, 2.6), layout="constrained", sharey=True)
for ax, time in zip(axes, (0.1, 0.2, 0.5), strict=True):
    plotting.curves(line, {"best": best(line[:, None], time)[:, 0], "learned": learned(line[:, None], time)[:, 0]}, ax)
    ax.set(title=f"guess of the noise at t = {time}", xlim=(-3, 3), ylim=(-4, 4))
    seen = data.at(time, schedule).sample(jax.random.key(5), 2000)
    assert jnp.mean((best(seen, time) - learned(seen, time)) ** 2) < 0.1

# %% [markdown]
# ## 4. From noise to data
#
# ### Step by step, at random
#
# Given $x_t$ and a guess of $x_0$, it is known how $x_s$ at an earlier time $s$ is distributed: it is Gaussian. Draw
# from it, guess again, and so on. This is **ancestral sampling**, the sampler of DDPM.
#
# ### Along a flow
#
# There is a differential equation without any randomness that carries noise to the same distribution:
#
# $$ \frac{dx}{dt} = \alpha'(t)\, \hat x_0(x, t) + \sigma'(t)\, \hat\varepsilon(x, t), $$
#
# the **probability-flow ODE**. `ddim`, `euler`, `heun` and `dpm_solver_pp_2m` solve it, from $t = 1$ to $0$.

# %%
steps = times(schedule, 100)
noise = initial_noise(jax.random.key(6), (2000, 1), schedule)
random_paths = ancestral(learned, noise, steps, schedule, "eps", key=jax.random.key(7), trajectory=True)
smooth_paths = ddim(learned, noise, steps, schedule, "eps", trajectory=True)
figure, axes = plt.subplots(1, 3, figsize=(12, 3), layout="constrained")
for ax, paths, title in zip(axes, (random_paths, smooth_paths), ("ancestral", "the flow"), strict=False):
    ax.plot(steps, paths[:, :40, 0], linewidth=0.6)
    ax.set(title=title, xlabel="t", xlim=(1, 0), ylim=(-3.5, 3.5))
bins = np.linspace(-2.5, 2.5, 60)
for paths, name in ((random_paths, "ancestral"), (smooth_paths, "the flow")):
    axes[2].hist(np.asarray(paths[-1, :, 0]), bins, density=True, histtype="step", label=name)
axes[2].plot(line, density(line[:, None], 0.0), "k", linewidth=0.8, label="data")
axes[2].set(xlim=(-2.5, 2.5))
axes[2].legend(frameon=False)
for paths in (random_paths, smooth_paths):
    share = data.responsibilities(paths[-1]).mean(0)
    assert jnp.allclose(share, data.weights, atol=0.06)
    assert abs(paths[-1].var() / data.covariance().item() - 1) < 0.15

# %% [markdown]
# ### How many steps?
#
# A call of the denoiser is what costs. For one Gaussian the flow is known: it keeps the number of standard deviations
# from the mean. So the error of each solver can be measured. Twice as many steps halve the error of a method of order
# one, and quarter that of order two.

# %%
single = gaussian_mixture(jnp.array([[1.0]]), jnp.array([0.25]))
start = jnp.linspace(-2, 2, 9)[:, None]
first, last = single.at(1.0, schedule), single.at(0.0, schedule)
deviations = (start - first.means) / jnp.sqrt(first.variances)
exact = last.means + deviations * jnp.sqrt(last.variances)
counts = (16, 32, 64)
grids = [times(schedule, n) for n in counts]
solvers = (ddim, euler, heun, dpm_solver_pp_2m)
exact_predict = single.predictor(schedule, "eps")
error = lambda solver, grid: jnp.sqrt(jnp.mean((solver(exact_predict, start, grid, schedule, "eps") - exact) ** 2))
errors = jax.jit(lambda grids: {f.__name__: [error(f, grid) for grid in grids] for f in solvers})(grids)
figure, ax = plt.subplots(figsize=(5.5, 3), layout="constrained")
for name, (_, before, after) in errors.items():
    ax.loglog(counts, errors[name], ".-", label=f"{name}, order {jnp.log2(before / after):.2f}")
ax.set(xlabel="steps", ylabel="error")
ax.legend(frameon=False)
for name, order in {"ddim": 1, "euler": 1, "heun": 2, "dpm_solver_pp_2m": 2}.items():
    assert abs(np.log2(errors[name][-2] / errors[name][-1]) - order) < 0.25

# %% [markdown]
# ## 5. To be asked for something
#
# A denoiser that is told the class draws that class. With **classifier-free guidance** one goes further than that: from
# the guess without the class, past the guess with it. Scale 0 ignores the class, 1 obeys, and more exaggerates. Here
# the wish is the component on the right.

# %%
right = gaussian_mixture(data.means[2:], data.variances[2:, 0]).predictor(schedule, "eps")
figure, axes = plt.subplots(1, 4, figsize=(12, 2.4), layout="constrained", sharey=True)
shares = []
for ax, scale in zip(axes, (0.0, 0.5, 1.0, 3.0), strict=True):
    found = dpm_solver_pp_2m(classifier_free_guidance(right, best, scale), noise, times(schedule, 20), schedule, "eps")
    shares.append(float((found > 1).mean()))
    ax.hist(np.asarray(found[:, 0]), np.linspace(-2.5, 2.5, 60), color="0.6")
    ax.set_title(f"scale {scale}")
assert abs(shares[0] - 0.3) < 0.05 and shares[0] < shares[1] < shares[2] and shares[2] > 0.98 and shares[3] > 0.98

# %% [markdown]
# ## 6. Straight lines
#
# Nothing forces the noise to come as it did. **Flow matching** takes the straight line $x_t = (1 - t)\, x_0 + t\,
# \varepsilon$ and learns the velocity $\varepsilon - x_0$. Loss and samplers stay what they were; only the schedule and
# the parametrization are others. (The lines from noise to data that one *gets* are not straight: the net predicts a
# mean over all data that may be meant.)

# %%
flow = flow_matching_schedule()
paths = heun(data.predictor(flow, "velocity"), noise, times(flow, 40), flow, "velocity", trajectory=True)
figure, ax = plt.subplots(figsize=(4.5, 3), layout="constrained")
ax.plot(times(flow, 40), paths[:, :40, 0], linewidth=0.6)
ax.set(xlabel="t", xlim=(1, 0), title="flow matching")
assert jnp.allclose(data.responsibilities(paths[-1]).mean(0), data.weights, atol=0.05)

# %% [markdown]
# That is all there is to it. What makes images out of it is the net: `examples/diffusion_digits.py` puts a U-Net with
# attention in the place of our little one, and draws the digit that is asked for.
#
# ## Homework
#
# **1.** Data are $N(\mu, s^2)$. Derive the best guess $\hat\varepsilon(x, t)$, and its loss. When is the loss 1, the
# charge for guessing 0?
#
# **2.** Show that for flow matching, `ddim` and `euler` take the same steps.
#
# **3.** What does a single step of `ddim` from $t = 1$ return? Why is it useless as a sample, and yet the best guess?
#
# ## Solutions
#
# ### 1. The best guess for one Gaussian
#
# $\varepsilon$ and $x_t$ are jointly Gaussian, with covariance $\sigma$, and $x_t$ has the variance $\alpha^2 s^2 +
# \sigma^2$. So
#
# $$ \hat\varepsilon = \frac{\sigma\, (x - \alpha\mu)}{\alpha^2 s^2 + \sigma^2}, \qquad
# E (\varepsilon - \hat\varepsilon)^2 = 1 - \frac{\sigma^2}{\alpha^2 s^2 + \sigma^2}
# = \frac{\alpha^2 s^2}{\alpha^2 s^2 + \sigma^2} . $$
#
# It tends to 1 as $t \to 0$: in clean data the noise cannot be seen.

# %%
a, s = schedule.signal(0.3), schedule.noise(0.3)
formula = s * (start - a * 1.0) / (a**2 * 0.25 + s**2)
assert jnp.allclose(exact_predict(start, 0.3), formula, atol=1e-5)

# %% [markdown]
# ### 2. One step, twice
#
# From $t$ to $s$, `ddim` goes to $(1 - s)\,\hat x_0 + s\,\hat\varepsilon$, and $x_t = (1 - t)\,\hat x_0 +
# t\,\hat\varepsilon$. The difference is $(s - t)(\hat\varepsilon - \hat x_0)$: Euler's step along the velocity.
# $\square$

# %%
few = times(flow, 5)
velocity = data.predictor(flow, "velocity")
one_way, other_way = (f(velocity, noise[:5], few, flow, "velocity") for f in (ddim, euler))
assert jnp.allclose(one_way, other_way, atol=1e-5)

# %% [markdown]
# ### 3. One step
#
# It returns $\hat x_0$ at pure noise: the mean of all data, whatever the noise was. No guess has a smaller squared
# error, and no data look like it: our mean of $-0.2$ lies in a gap. Samples come only from looking again and again.

# %%
once = ddim(best, noise, jnp.array([1.0, 0.0]), schedule, "eps")
assert jnp.allclose(once, data.mean(), atol=0.1)
assert data.log_density(data.mean()) < -4
