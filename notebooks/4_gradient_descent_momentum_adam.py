# %% [markdown]
# # Gradient descent, momentum, Adam: which way down, and how far?
#
# Notebook 3 ended with a number, the loss, that depends on all parameters of a net. To learn is to make it small. The
# gradient says in which direction it falls fastest, but not how far to go, and it knows nothing beyond the spot where
# it was taken. So:
#
# 1. **How large may a step be**, and how fast does one arrive?
# 2. **What can be done better** with the same gradients?
#
# Everything is tried on functions small enough to know the answer. What is claimed in the text is checked by an
# `assert` in the cell below it. At the end there is homework, with solutions.
#
# You need to know derivatives, eigenvalues and a little Python. The lectures behind it: Diehl, *lecture notes* (2023),
# section 1.5; Krapac & Šegvić, *Deep feed-forward models* (the hello world and homework 2); Cevher, *Mathematics of
# Data*; Huszár, *DeepNN lecture 3*. Where a printed formula slips, you find the printed form, a number that breaks it,
# and the corrected form.

# %%
import math
import warnings

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import jaxblocks as jb
from jaxblocks import plotting
from jaxblocks.theory.convergence import (
    convex_bound,
    descend,
    huber_objective,
    iteration_matrix,
    least_squares_objective,
    logistic_objective,
    quadratic_objective,
    spectral_radius,
    stability_map,
    stable_step_size,
    tuned_momentum,
)

# %% [markdown]
# ## 1. Which way
#
# Let $C(\theta)$ be what should become small. We look for an element of $\operatorname{argmin}_\theta C$, which is a
# *set*: it may hold one point, many, or none. (Lengths are $\|x\| = \sqrt{\sum_{i=1}^{d} x_i^2}$; the notes print the
# sum without its upper limit.) Near $\theta$ it changes along a direction $x$ of length 1 by $\langle \nabla C, x
# \rangle$, and Cauchy and Schwarz tell that this is at least $-\|\nabla C\|$. It is attained by $x = -\nabla C /
# \|\nabla C\|$ and by no other: the direction of **steepest descent**. With $\nabla C = (3, 4)$ it is $-5$. A hundred
# thousand random directions come close and never get below.

# %%
gradient = np.array([3.0, 4.0])
directions = np.random.default_rng(0).normal(size=(100_000, 2))
slopes = directions / np.linalg.norm(directions, axis=1, keepdims=True) @ gradient
steepest = -gradient / np.linalg.norm(gradient)
assert abs(steepest @ gradient + 5) < 1e-12
assert -5 <= slopes.min() < -4.9999

# %% [markdown]
# **Gradient descent** goes that way again and again, with a **step size** $\eta$ (also called learning rate):
#
# $$ \theta_{t+1} = \theta_t - \eta\, \nabla C(\theta_t). $$
#
# Its hello world is $x^4 - x^3 - 2x^2 + 3$ from $x = 2$ with $\eta = 0.13$. `descend` takes the steps and records the
# way. (The cells that look at many digits compute in 64 bits.)


# %%
def quartic(x):
    return x**4 - x**3 - 2 * x**2 + 3


with jax.enable_x64(True):
    hello = descend(quartic, 2.0, 0.13, steps=100)
    other = descend(quartic, -1.0, 0.13, steps=100)
    print(hello)
    low, high = (3 - math.sqrt(73)) / 8, (3 + math.sqrt(73)) / 8
    assert np.allclose(hello.points[:5], [2, 0.44, 0.70000832, 1.07675083, 1.43966841], atol=1e-7)
    assert abs(hello.last - high) < 1e-14
    assert int(np.argmax(abs(np.asarray(hello.points) - high) < 1e-6)) == 21  # correct to six digits after 21 steps

# %% [markdown]
# The derivative $x\,(4x^2 - 3x - 4)$ is zero at $0$, a maximum, and at $(3 \pm \sqrt{73})/8$. The descent from 2 ends
# in the right minimum, 1.4430, the lower one. From $-1$ it ends in the left one, $-0.6930$, where the value is 2.60 and
# not 0.17. **Gradient descent finds a minimum, not the minimum**; which one depends on the start.

# %%
assert abs(float(other.last) - low) < 1e-14
assert abs(quartic(high) - 0.166578) < 1e-6 and abs(quartic(low) - 2.602954) < 1e-6
figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
ways = {"from 2": hello.points, "from -1": other.points}
axes = plotting.trajectories(quartic, ways, axes, box=(-1.5, 2.1))

# %% [markdown]
# With nets it is the same. In notebook 1 two hidden rectifiers compute exclusive or. Does a descent find them? From one
# random start in five; the others get stuck, up to a loss of 0.25, that of the best constant. With eight hidden units
# every start ends at 0. That the loss of a net is not convex does little harm where there is room, which is why it is
# no trouble in practice. For a single layer the usual losses *are* convex, and every start leads to the same loss.

# %%
bits, labels = jnp.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]), jnp.array([0.0, 1.0, 1.0, 0.0])


def last_losses(net):
    loss = lambda params: jnp.mean((net.apply(params, bits)[:, 0] - labels) ** 2)
    run = lambda key: descend(loss, net.init(key, bits), optax.adam(0.05), steps=300).values[-1]
    return jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 20))


solved = {width: float((last_losses(jb.MLP(width, 1)) < 1e-3).mean()) for width in (2, 8)}
print({f"{width} hidden units": f"{share:.0%} of the starts" for width, share in solved.items()})
assert 0 < solved[2] < 0.5 and solved[8] == 1
assert jnp.allclose(last_losses(jb.Dense(1)), 0.25, atol=1e-3)  # convex: the same from everywhere

# %% [markdown]
# ## 2. How far
#
# Near a minimum every smooth function looks like a parabola $\frac{\lambda}{2} x^2$, whose gradient is $\lambda x$. A
# step makes $x$ into $(1 - \eta\lambda)\,x$. It shrinks if $|1 - \eta\lambda| < 1$:
#
# $$ 0 < \eta < \frac{2}{\lambda}. $$
#
# For the hello world $\lambda$ is the second derivative at the minimum, 12.329, and the limit is 0.16222. The step 0.13
# multiplies the error by $-0.60$ each time: it jumps from side to side. What happens beyond the limit? With 0.163 the
# way ends in a cycle of two points. With 0.17 it leaves the valley, and ends up in the other minimum.

# %%
curvature = 12 * high**2 - 6 * high - 4
assert abs(curvature - 12.329001) < 1e-6
assert abs(stable_step_size(curvature) - 0.1622191) < 1e-6
assert abs((1 - 0.13 * curvature) + 0.6027702) < 1e-6

etas = jnp.array([0.16, 0.163, 0.17])
last_two = jax.vmap(lambda eta: descend(quartic, 2.0, eta, steps=2000).points[-2:])(etas)
assert abs(last_two[0] - high).max() < 1e-4
assert abs(last_two[1, 1] - last_two[1, 0]) > 0.05  # two points in turn, for ever
assert abs(last_two[2] - low).max() < 1e-5
last_two

# %% [markdown]
# In several dimensions each eigenvector of the Hessian is such a parabola, with its eigenvalue as $\lambda$. One step
# size serves all of them. So the **largest** eigenvalue, called $L$, says how large the step may be, and the
# **smallest**, $\mu$, how slow the slowest direction is. Their ratio $\kappa = L / \mu$, the condition number, is the
# trouble. `quadratic_objective` knows both, and warns:

# %%
valley = quadratic_objective(jnp.array([1.0, 10.0]))  # (θ₁² + 10 θ₂²) / 2
assert valley.smoothness == 10 and valley.convexity == 1
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    too_far = descend(valley, jnp.ones(2), 0.21, steps=50)
assert too_far.values[-1] > 100 * too_far.values[0]
print(caught[0].message)

# %% [markdown]
# "Usually $\eta$ is between $10^{-3}$ and $10^{-4}$", one reads. That is experience with a certain kind of net; on this
# valley everything below 0.2 works, and 0.001 would be slow. One more thing changes what a good step is:
#
# > **One lecture prints** the loss as a *sum* over the examples and updates with $\nabla L(\theta)$; the others take
# > the *mean*.
#
# **A number that breaks it:** 50 examples, step size 0.1. With the mean the slope of a line is found; with the sum
# every gradient is 50 times as large, and the same step size leads to infinity. **Corrected:** say which. With the mean
# the step size need not change with the amount of data. And the gradient is taken where one stands, at $\theta_t$.

# %%
x = jax.random.normal(jax.random.key(0), (50,))
y = 3 * x
mean_loss = descend(lambda w: jnp.mean((w * x - y) ** 2), 0.0, 0.1, steps=60)
sum_loss = descend(lambda w: jnp.sum((w * x - y) ** 2), 0.0, 0.1, steps=30)
assert abs(mean_loss.last - 3) < 1e-4
assert sum_loss.values[-1] > 1e20 or not jnp.isfinite(sum_loss.values[-1])

# %% [markdown]
# ## 3. How fast: a bound that holds at every step
#
# For convex functions there is a theorem. Let $C$ be convex and *$L$-smooth*, which means that its gradient changes by
# at most $L$ times the distance. Then
#
# $$ C(\theta_t) - \min C \;\le\; \frac{\|\theta_0 - \theta^*\|^2}{2 \eta t}. $$
#
# Beside an objective of which $L$ and the minimum are known, `descend` records this bound, and sharper ones where they
# are known. For the valley with $\eta = 0.099$:

# %%
with jax.enable_x64(True):
    valley = quadratic_objective(jnp.array([1.0, 10.0]))
    seen = descend(valley, jnp.ones(2), 0.099, steps=50)
    print(seen)
    assert seen.holds
    for t, gap, bound in ((1, 0.4064005, 10.10101), (10, 0.0621535, 1.010101), (50, 1.484052e-5, 0.2020202)):
        assert np.isclose(seen.gaps[t], gap, rtol=1e-6) and np.isclose(seen.bounds["convex"][t], bound, rtol=1e-6)

# %% [markdown]
# The bound is far from tight here. A quadratic is *strongly* convex, and its error falls by a factor at each step: a
# straight line on the right scale. A logistic regression is convex and no more. And **Huber's function**, a parabola
# that goes on as a straight line, is the worst case of all: it meets the sharper bound $R^2 / (4 \eta t + 2 / L)$.

# %%
rng = np.random.default_rng(0)
points = rng.normal(size=(80, 2))
with jax.enable_x64(True):
    logistic = logistic_objective(jnp.asarray(points), jnp.asarray(points[:, 0] + rng.normal(size=80) > 0))
    zeros = {"kernel": jnp.zeros((2, 1)), "bias": jnp.zeros(1)}
    runs = {
        "quadratic": seen,
        "logistic regression": descend(logistic, zeros, 1 / logistic.smoothness, steps=100),
        "Huber, worst at step 100": descend(huber_objective(1 / 201), 1.0, 1.0, steps=100),
    }
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    for ax, (name, run) in zip(axes, runs.items(), strict=True):
        run.plot(ax).set_title(name)
        assert run.holds
    assert np.isclose(runs["Huber, worst at step 100"].gaps[100], 1 / (4 * 100 + 2), rtol=1e-12)

# %% [markdown]
# > **The lecture notes print** the theorem for $\eta < 1/L$.
#
# **A number that breaks it:** at $\eta = 1/L$, excluded by the printed form, Huber's function is at $1/402 = 0.00249$
# after 100 steps, below the bound of $1/200$, and nothing converges faster in the worst case. **Corrected:**
# $0 < \eta \le 1/L$. For the proof the notes say "see the appendix", which has been lost; it is homework 1.

# %%
with jax.enable_x64(True):
    for t in (1, 10):
        worst = descend(huber_objective(1 / (2 * t + 1)), 1.0, 1.0, steps=t).gaps[t]
        assert np.isclose(worst, 1 / (4 * t + 2)) and worst <= convex_bound(t, 1.0, 1.0)

# %% [markdown]
# ## 4. Momentum
#
# In a narrow valley gradient descent zigzags across and creeps along. A heavy ball would do better: it keeps its
# velocity $v$, so pushes from alternating sides cancel and pushes in one direction add up. With $m$ from 0 up to, but
# without, 1:
#
# $$ v_{t+1} = m\, v_t - \eta\, \nabla C(\theta_t), \qquad \theta_{t+1} = \theta_t + v_{t+1}. $$
#
# > **The lecture notes print** $m \in (0, 1]$ and $\eta$ as the constants, then $v_{t+1} = m v_t - \gamma \nabla
# > C(\theta_t)$ and $\theta_{t+1} = \theta_t + v_t$.
#
# Three slips: $\gamma$ is $\eta$; $m = 1$ never converges, a ball without friction; and with $v_t$ in the second
# formula the gradient arrives one step late. **A number that breaks it:** $C = \theta^2 / 2$, $m = 0.9$, $\eta = 0.5$,
# 100 steps from 1.


# %%
def heavy_ball(stale, m=0.9, eta=0.5, steps=100):
    theta, v = 1.0, 0.0
    for _ in range(steps):
        next_v = m * v - eta * theta  # the gradient of θ² / 2 is θ
        theta, v = theta + (v if stale else next_v), next_v
    return abs(theta)


assert np.isclose(heavy_ball(stale=True), 1.158960e7, rtol=1e-4)  # as printed
assert np.isclose(heavy_ball(stale=False), 2.89005e-3, rtol=1e-4)  # corrected

# %% [markdown]
# On a parabola with curvature $\lambda$ the method is linear, $(\theta_t, \theta_{t-1}) \mapsto M\,(\theta_t,
# \theta_{t-1})$, so the largest eigenvalue of the $2 \times 2$ matrix $M$, in size, tells everything: the **spectral
# radius**. Below 1 it converges. That gives the limit $\eta\lambda < 2(1 + m)$ for the corrected form, and only
# $\eta\lambda < 1 - m$ for the printed one, whose eigenvalues solve $z^2 - (1 + m) z + m + \eta\lambda = 0$.


# %%
def radius_as_printed(a, m):
    return abs(np.roots([1, -(1 + m), m + a])).max()


m = 0.9
for a, corrected, printed in ((0.11, 0.948683, 1.004988), (3.7, 0.948683, 2.144761)):
    assert np.isclose(spectral_radius(a, 1.0, momentum=m), corrected, atol=1e-6)
    assert np.isclose(abs(np.linalg.eigvals(iteration_matrix(a, 1.0, momentum=m))).max(), corrected, atol=1e-5)
    assert np.isclose(radius_as_printed(a, m), printed, atol=1e-6)
assert np.isclose(stable_step_size(1.0, momentum=m), 2 * (1 + m))
assert radius_as_printed(0.099, m) < 1 < radius_as_printed(0.101, m)
assert np.allclose(spectral_radius(np.array([0.1, 1.0, 3.0]), 1.0, momentum=1.0), 1)  # m = 1: neither falls nor grows

# %% [markdown]
# The map of all step sizes and momenta. White is unstable; dark is fast.

# %%
figure, axes = plt.subplots(1, 2, figsize=(10, 3.2), layout="constrained")
stability_map(method="heavy ball").plot(axes[0])
axes[1] = stability_map(method="nesterov").plot(axes[1])

# %% [markdown]
# How much is gained? For curvatures from $\mu$ to $L$, the best step size shrinks the error per step by
# $\frac{\kappa - 1}{\kappa + 1}$; the best step size and momentum by $\frac{\sqrt\kappa - 1}{\sqrt\kappa + 1}$. With
# $\kappa = 100$ that is 0.980 against 0.818: 116 steps for a factor of ten, against 12.

# %%
plain, ball = tuned_momentum(100.0, 1.0, method="gradient descent"), tuned_momentum(100.0, 1.0)
assert np.isclose(plain.rate, 99 / 101) and np.isclose(ball.rate, 9 / 11)
assert [int(np.ceil(np.log(0.1) / np.log(t.rate))) for t in (plain, ball)] == [116, 12]

with jax.enable_x64(True):
    narrow = quadratic_objective(jnp.array([1.0, 100.0]))
    runs = {
        "gradient descent": descend(narrow, jnp.ones(2), plain.step_size, steps=150),
        "momentum": descend(narrow, jnp.ones(2), optax.sgd(ball.step_size, momentum=ball.momentum), steps=150),
    }
    figure, axes = plt.subplots(figsize=(5.5, 3), layout="constrained")
    plotting.curves(range(151), {name: np.log10(run.gaps) for name, run in runs.items()}, axes)
    axes.set(xlabel="step", ylabel="log10 of the loss")
    assert runs["momentum"].gaps[100] < 1e-9 * runs["gradient descent"].gaps[100]

# %% [markdown]
# ### The other form, which is the same method
#
# Momentum is also written as a running average of gradients, $v_{t+1} = \beta v_t + (1 - \beta) \nabla C(\theta_t)$ and
# $\theta_{t+1} = \theta_t - \eta\, v_{t+1}$.
#
# > **The lecture notes print** $\theta_{t+1} = \theta_t - \eta v_t$ here: the same late index. (The sign, which looks
# > different from the first form, is right: this $v$ points uphill.)
#
# With the corrected index the two are one method, where $m = \beta$ and the first form's step size is
# $\gamma = \eta (1 - \beta)$. In optax they are `sgd` and a chain of `ema` and `scale`.

# %%
with jax.enable_x64(True):
    parabola = quadratic_objective(jnp.ones(1))
    first = descend(parabola, jnp.ones(1), optax.sgd(0.1, momentum=0.9), steps=6).points[:, 0]
    averaging = optax.chain(optax.ema(0.9, debias=False), optax.scale(-1.0))
    second = descend(parabola, jnp.ones(1), averaging, steps=6).points[:, 0]
    assert np.allclose(first, [1, 0.9, 0.72, 0.486, 0.2268, -0.02916, -0.256608], atol=1e-12)
    assert np.allclose(first, second, atol=1e-12)

    theta, v, late = 1.0, 0.0, []
    for _ in range(6):  # as printed
        theta, v = theta - v, 0.9 * v + 0.1 * theta
        late.append(theta)
    assert late[0] == 1.0 != first[1]  # the first step goes nowhere

# %% [markdown]
# ## 5. Adam
#
# A single step size for all parameters is a compromise, as the valley shows. Adam gives each parameter its own: it
# divides the average gradient by the average *size* of the gradient. With $g_t = \nabla C(\theta_{t-1})$, for
# $t = 1, 2, \dots$, all operations entry by entry:
#
# $$ v_t = \beta_1 v_{t-1} + (1 - \beta_1)\, g_t, \quad s_t = \beta_2 s_{t-1} + (1 - \beta_2)\, g_t^2, \quad
# \hat v_t = \frac{v_t}{1 - \beta_1^t}, \quad \hat s_t = \frac{s_t}{1 - \beta_2^t}, \quad
# \theta_t = \theta_{t-1} - \eta\, \frac{\hat v_t}{\sqrt{\hat s_t} + \varepsilon}. $$
#
# > **The lecture notes print** "initial $x_0$", no values for $v_0$ and $s_0$, and the divisor $1 - \beta_1^t$ with $t$
# > from 0.
#
# **A number that breaks it:** $1 - \beta_1^0 = 0$: the first step divides by zero. **Corrected:** the start is
# $\theta_0$; $v_0 = s_0 = 0$; $t$ begins at 1.


# %%
def adam(gradient, theta, steps, eta=0.1, b1=0.9, b2=0.999, eps=1e-8, correct=True):
    v = s = 0.0
    path = [theta]
    for t in range(1, steps + 1):
        g = gradient(theta)
        v, s = b1 * v + (1 - b1) * g, b2 * s + (1 - b2) * g**2
        v_hat, s_hat = (v / (1 - b1**t), s / (1 - b2**t)) if correct else (v, s)
        theta = theta - eta * v_hat / (np.sqrt(s_hat) + eps)
        path.append(theta)
    return np.array(path)


steep = np.array([1.0, 10.0])
by_hand = adam(lambda theta: steep * theta, np.ones(2), 5)
with jax.enable_x64(True):
    by_optax = descend(quadratic_objective(jnp.asarray(steep)), jnp.ones(2), optax.adam(0.1), steps=5).points
    assert np.allclose(by_hand, by_optax, atol=1e-12)
    assert np.allclose(by_hand[[1, 5]], [[0.900000001, 0.9000000001], [0.5079636619, 0.5079636571]], atol=1e-9)
    assert 1 - 0.9**0 == 0

# %% [markdown]
# Look at the two columns of the path: they are nearly equal, though one direction is ten times as steep. The first
# step is $\eta\, g / (|g| + \varepsilon)$, which is $\pm\eta$ whatever the size of $g$. Multiply the loss by 1000 and
# the path stays what it is. The two hats matter, too: averages that begin at 0 are too small at first. Without them the
# first step is $\eta \cdot 0.1 / \sqrt{0.001} = 0.316$ instead of 0.1.

# %%
assert np.allclose(adam(lambda theta: 1000 * steep * theta, np.ones(2), 50), adam(lambda t: steep * t, np.ones(2), 50))
uncorrected = adam(lambda theta: steep * theta, np.ones(2), 1, correct=False)
assert np.allclose(1 - uncorrected[1], 0.316228, atol=1e-5)

# %% [markdown]
# All of them on the valley. `descend` takes any optimizer of optax, and so does `jb.fit`; this library writes none of
# its own.

# %%
optimizers = {
    "gradient descent": 0.05,
    "momentum": optax.sgd(0.05, momentum=0.7),
    "Adam": optax.adam(0.1),
}
valley = quadratic_objective(jnp.asarray(steep, jnp.float32))
runs = {name: descend(valley, jnp.ones(2), optimizer, steps=60) for name, optimizer in optimizers.items()}
figure, axes = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
plotting.trajectories(jax.vmap(valley.f), {name: run.points for name, run in runs.items()}, axes[0])
plotting.curves(range(61), {name: np.log10(run.gaps) for name, run in runs.items()}, axes[1])
axes[1].set(xlabel="step", ylabel="log10 of the loss")
assert runs["momentum"].gaps[-1] < runs["gradient descent"].gaps[-1] < 0.01

# %% [markdown]
# Adam is not the fastest here. Its strength is that one step size, often near 0.001, works for nets whose parameters
# have gradients of very different sizes. And no optimizer wins everywhere.
#
# ## 6. Rounder valleys: normalization
#
# The condition number belongs to the function, and the function can be changed. A line is fitted to two inputs, one in
# meters, about 1, one in millimeters, about 1000: $\kappa$ is over a million. Subtract from each input its mean, divide
# by its standard deviation, and $\kappa$ is nearly 1. Adam, which
# rescales parameters one by one, does only the second half of that.

# %%
meters, millimeters = np.random.default_rng(0).normal([2.0, 3000.0], [0.5, 800.0], (200, 2)).T.astype(np.float32)
raw = jnp.stack([meters, millimeters], -1)
target = (raw @ jnp.array([1.0, 0.002]))[:, None]
normal = jb.statistics.standardize(raw, **jb.statistics.fit_standardizer(raw))
condition = lambda x: (lambda objective: objective.smoothness / objective.convexity)(least_squares_objective(x, target))
print(f"condition number {condition(raw):.1e}, normalized {condition(normal):.2f}")
assert condition(raw) > 1e6 and condition(normal) < 1.5

# %% [markdown]
# The inputs of a *later* layer change while the layers before it learn. So the same is done inside of the net, over and
# over, by a layer. **Batch normalization** takes mean $\mu$ and variance $\sigma^2$ over the batch,
#
# $$ y = \gamma\, \frac{x - \mu}{\sqrt{\sigma^2 + \varepsilon}} + \beta , $$
#
# with $\gamma$ and $\beta$ to be learned. For sequences $T_{bnc}$ (example, position, channel) one must say over which
# axes.
#
# > **The lecture notes print** statistics for each $(n, c)$, over $b$ alone, as what Keras' `BatchNormalization` does,
# > and "default `scale=True`", with "what?" in the margin.
#
# **A number that breaks it:** two sequences of length 2, $(1, 2)$ and $(3, 6)$. Over $b$ alone they become $(-1, -1)$
# and $(1, 1)$. Keras gives $(-1.07, -0.53)$ and $(0, 1.60)$. **Corrected:** Keras pools over $b$ *and* $n$, so that
# each channel has one mean, one variance, one $\gamma$ and one $\beta$. What is `scale`? It switches $\gamma$ on, as
# `center` does $\beta$; both are on by default.
#
# > **The lecture notes print** for *layer* normalization statistics of each example, over all $(n, c)$.
#
# **A number that breaks it:** transformers normalize each position by itself, over its channels. With the one channel
# that there is here that gives 0 everywhere; over $(n, c)$ it gives $(-1, 1)$ for both. **Corrected:** both are in use;
# say the axes.

# %%
T = jnp.array([[[1.0], [2.0]], [[3.0], [6.0]]])  # (b, n, c)


def batch_normalized(**options):
    layer = jb.BatchNorm(epsilon=1e-5, **options)
    return layer.apply(*layer.init(jax.random.key(0), T), T, train=True)[0].ravel()


assert jnp.allclose(batch_normalized(axes=0), jnp.array([-1.0, -1.0, 1.0, 1.0]), atol=1e-4)  # as printed
assert jnp.allclose(batch_normalized(), jnp.array([-1.0690434, -0.5345217, 0.0, 1.6035652]), atol=1e-5)
assert jnp.allclose(jb.layer_norm(T, axes=(-2, -1)).ravel(), jnp.array([-1.0, 1.0, -1.0, 1.0]), atol=1e-4)  # as printed
assert (jb.layer_norm(T, axes=-1) == 0).all()

# %% [markdown]
# ## 7. Stochastic gradients
#
# The loss is a mean over examples, and so is its gradient. To take a step one may look at a few of them, a
# **minibatch**, at a fraction of the cost. Such a gradient is wrong, but not in any particular direction: the mean over
# all minibatches of an epoch is the full gradient.

# %%
params = jb.Dense(1).init(jax.random.key(1), jnp.zeros((1, 2)))
data = jax.random.normal(jax.random.key(2), (64, 2))
target = data[:, :1] - 2 * data[:, 1:]
loss = lambda params, x, y: jnp.mean((jb.affine(x, **params) - y) ** 2)
full = jax.grad(loss)(params, data, target)
parts = [jax.grad(loss)(params, data[i : i + 8], target[i : i + 8]) for i in range(0, 64, 8)]
mean = jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *parts)
assert jnp.allclose(mean["kernel"], full["kernel"], atol=1e-5)
assert not jnp.allclose(parts[0]["kernel"], full["kernel"], atol=0.05)

# %% [markdown]
# How large the noise is, and what it does, is part of notebook 8.
#
# ## Homework
#
# **1.** Prove the bound of section 3. ("For the proof, see the appendix.")
#
# **2.** Solve $x^5 - x^4 - x = -1$ by gradient descent.
#
# **3.** With $m = 0.9$, for which step sizes does momentum on $\theta^2/2$ oscillate? How fast does it converge there?
#
# ## Solutions
#
# ### 1. The proof
#
# *Descent.* $L$-smooth means $C(y) \le C(x) + \langle \nabla C(x), y - x\rangle + \frac L2 \|y - x\|^2$. With
# $y = \theta_{t+1} = \theta_t - \eta g$, $g = \nabla C(\theta_t)$ and $\eta \le 1/L$,
#
# $$ C(\theta_{t+1}) \le C(\theta_t) - \eta \|g\|^2 + \tfrac{L \eta^2}{2} \|g\|^2 \le C(\theta_t) - \tfrac{\eta}{2}
# \|g\|^2 . $$
#
# *Convexity* says $C(\theta_t) \le C(\theta^*) + \langle g, \theta_t - \theta^* \rangle$. Put it in and complete the
# square:
#
# $$ C(\theta_{t+1}) - C(\theta^*) \le \langle g, \theta_t - \theta^* \rangle - \tfrac{\eta}{2} \|g\|^2
# = \tfrac{1}{2\eta} \big( \|\theta_t - \theta^*\|^2 - \|\theta_{t+1} - \theta^*\|^2 \big). $$
#
# *Telescope.* Summed over $t$ steps the right side is at most $\|\theta_0 - \theta^*\|^2 / 2\eta$. The values fall, so
# the last of the $t$ terms on the left is at most their mean. $\square$
#
# Here are the first and the third line, at every step of the logistic regression.

# %%
with jax.enable_x64(True):
    eta = 1 / logistic.smoothness
    run = descend(logistic, zeros, eta, steps=100)
    rounding = 1e-12
    assert (run.values[1:] <= run.values[:-1] - eta / 2 * run.gradient_norms[:-1] ** 2 + rounding).all()
    assert (run.gaps[1:] <= (run.distances[:-1] ** 2 - run.distances[1:] ** 2) / (2 * eta) + rounding).all()

# %% [markdown]
# ### 2. The equation
#
# Let $r(x) = x^5 - x^4 - x + 1$. One idea is to descend on $r$ itself: at 1 it has a local minimum, which happens to
# have the value 0. From 0 that works. From $-0.6$ it runs to $-\infty$, for $r$ has no lower bound. The border is at
# the local maximum, $-0.5316$.
#
# The better idea is to descend on $r^2$, whose minima with value 0 are the solutions.


# %%
def r(x):
    return x**5 - x**4 - x + 1


with jax.enable_x64(True):
    lucky = descend(r, 0.0, 0.05, steps=200).last
    lost = descend(r, -0.6, 0.05, steps=40).last
    left = descend(lambda x: r(x) ** 2, -0.6, 0.01, steps=200)
    right = descend(lambda x: r(x) ** 2, 0.0, 0.05, steps=10_000)
    assert abs(lucky - 1) < 1e-14 and not lost > -1e6
    assert abs(left.points[10] + 1.0000546) < 1e-6 and abs(left.last + 1) < 1e-14
    assert np.allclose(right.points[np.array([10, 100, 1000, 10_000])], [0.67218, 0.95181, 0.98683, 0.99599], atol=1e-5)

# %% [markdown]
# So $-1$ and $1$. But look at the speed: at $-1$ four decimals are right after ten steps, at 1 the third is still wrong
# after 10,000. The reason is the factorization $r(x) = (x - 1)^2 (x + 1) (x^2 + 1)$: 1 is a double root, hence a
# fourfold root of $r^2$. There $\nabla \propto (x - 1)^3$ fades faster than the distance, and the distance falls only
# like $1/\sqrt{t}$: a hundred times as many steps for one more digit. That is a bound like that of section 3, met by
# nature.

# %%
assert np.allclose(np.polymul([1, -2, 1], np.polymul([1, 1], [1, 0, 1])), [1, -1, 0, 0, -1, 1])
maximum = min(np.roots([5, -4, 0, 0, -1]).real)
assert abs(maximum + 0.5315644566) < 1e-9
distance = abs(1 - np.asarray(right.points))
assert 9 < distance[100] / distance[10_000] < 13
figure, axes = plt.subplots(1, 2, figsize=(10, 3), layout="constrained")
plotting.curves(np.linspace(-1.2, 1.4, 200), {"$r$": r, "$r^2$": lambda x: r(x) ** 2}, axes[0]).axhline(0, color="0.6")
steps = np.arange(1, 10_001)
axes[1].loglog(steps, distance[1:], label="$r^2$ from 0 to 1")
axes[1].loglog(
    steps[:200], np.maximum(abs(np.asarray(left.points[1:]) + 1), 1e-16), "--", label="$r^2$ from -0.6 to -1"
)
axes[1].set(xlabel="step", ylabel="distance to the solution")
axes[1].legend()

# %% [markdown]
# ### 3. Oscillation
#
# The eigenvalues solve $z^2 - (1 + m - \eta)\, z + m = 0$. They are complex, and the way oscillates, where
# $(1 + m - \eta)^2 < 4m$, which is $(1 - \sqrt m)^2 < \eta < (1 + \sqrt m)^2$. Their product is $m$, so both have size
# $\sqrt m = 0.949$: **between these limits the speed does not depend on the step size at all.** That is why the map
# above has a plain region in the middle.

# %%
lower, upper = (1 - math.sqrt(m)) ** 2, (1 + math.sqrt(m)) ** 2
inside = np.linspace(lower * 1.001, upper * 0.999, 50)
assert np.allclose(spectral_radius(inside, 1.0, momentum=m), math.sqrt(m), atol=1e-5)
assert spectral_radius(lower / 2, 1.0, momentum=m) > math.sqrt(m) < spectral_radius(upper * 1.01, 1.0, momentum=m)
