# %% [markdown]
# # Gradient descent, momentum and Adam
#
# Notebook 3 introduced the loss, a number that depends on all parameters of a net. Training minimizes it. The negative
# gradient is the direction of steepest descent. But it does not determine the step size, and it is a local quantity: it
# describes the loss only near the current point. This notebook answers two questions:
#
# 1. **How large may a step be**, and how fast does gradient descent converge?
# 2. **Which methods converge faster** with the same gradients?
#
# The methods are tested on functions with known minima. An `assert` in the next code cell checks each claim of the
# text. The homework at the end has solutions.
#
# **Prerequisites:** derivatives, eigenvalues and basic Python. **Sources:** Diehl, *lecture notes* (2023), section 1.5;
# Krapac & Šegvić, *Deep feed-forward models* (the "hello world" example and homework 2); Cevher, *Mathematics of Data*;
# Huszár, *DeepNN lecture 3*. Some formulas in these sources contain errors. For each error, this notebook gives the
# printed form, a counterexample and the corrected form.

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
# ## 1. Steepest descent
#
# Let $C(\theta)$ be the objective. The goal is an element of $\operatorname{argmin}_\theta C$. This is a *set*: it can
# contain one point, many points, or none. (The norm is $\|x\| = \sqrt{\sum_{i=1}^{d} x_i^2}$; the notes omit the upper
# limit of the sum.) Near $\theta$, the rate of change of $C$ along a direction $x$ of length 1 is
# $\langle \nabla C, x \rangle$. By the Cauchy-Schwarz inequality it is at least $-\|\nabla C\|$. Only
# $x = -\nabla C / \|\nabla C\|$ attains this value: it is the direction of **steepest descent**. With
# $\nabla C = (3, 4)$ the minimum is $-5$. Among a hundred thousand random directions, the smallest rate is close to
# this value and not below it.

# %%
gradient = np.array([3.0, 4.0])
directions = np.random.default_rng(0).normal(size=(100_000, 2))
slopes = directions / np.linalg.norm(directions, axis=1, keepdims=True) @ gradient
steepest = -gradient / np.linalg.norm(gradient)
assert abs(steepest @ gradient + 5) < 1e-12
assert -5 <= slopes.min() < -4.9999

# %% [markdown]
# **Gradient descent** takes repeated steps in this direction, with a **step size** $\eta$ (also called learning rate):
#
# $$ \theta_{t+1} = \theta_t - \eta\, \nabla C(\theta_t). $$
#
# The "hello world" example of the lecture is $x^4 - x^3 - 2x^2 + 3$ from $x = 2$ with $\eta = 0.13$. `descend` runs
# gradient descent and records all iterates. (The cells that check many digits use 64-bit floats.)


# %%
def quartic(x):
    return x**4 - x**3 - 2 * x**2 + 3


with jax.enable_x64(True):
    hello = descend(quartic, 2.0, 0.13, steps=100)
    other = descend(quartic, -1.0, 0.13, steps=100)
    print(hello)
    low, high = (3 - math.sqrt(73)) / 8, (3 + math.sqrt(73)) / 8
    assert np.allclose(
        hello.points[:5], [2, 0.44, 0.70000832, 1.07675083, 1.43966841], atol=1e-7
    )
    assert abs(hello.last - high) < 1e-14
    # correct to six digits after 21 steps
    assert int(np.argmax(abs(np.asarray(hello.points) - high) < 1e-6)) == 21

# %% [markdown]
# The derivative $x\,(4x^2 - 3x - 4)$ is zero at $0$, a maximum, and at $(3 \pm \sqrt{73})/8$. From 2, gradient descent
# converges to the right minimum, 1.4430, which is the lower one. From $-1$ it converges to the left minimum, $-0.6930$,
# where the value is 2.60 instead of 0.17. **Gradient descent finds a local minimum, not always the global minimum**;
# the result depends on the initial point.

# %%
assert abs(float(other.last) - low) < 1e-14
assert abs(quartic(high) - 0.166578) < 1e-6 and abs(quartic(low) - 2.602954) < 1e-6
figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
ways = {"from 2": hello.points, "from -1": other.points}
axes = plotting.trajectories(quartic, ways, axes, box=(-1.5, 2.1))

# %% [markdown]
# The same is true for nets. In notebook 1, two hidden rectifiers compute exclusive or. Gradient-based training finds
# such params from about one random initialization in five. The others converge to a larger loss, at most 0.25, which is
# the loss of the best constant. With eight hidden units every initialization reaches loss 0. The loss of a net is not
# convex, but this causes little difficulty if the net has enough units, as it often has in practice. For a single layer
# the usual losses *are* convex, and every initialization leads to the same loss.

# %%
bits, labels = (
    jnp.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]),
    jnp.array([0.0, 1.0, 1.0, 0.0]),
)


def last_losses(net):
    loss = lambda params: jnp.mean((net.apply(params, bits)[:, 0] - labels) ** 2)
    run = lambda key: descend(
        loss, net.init(key, bits), optax.adam(0.05), steps=300
    ).values[-1]
    return jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 20))


solved = {
    width: float((last_losses(jb.MLP(width, 1)) < 1e-3).mean()) for width in (2, 8)
}
print(
    {
        f"{width} hidden units": f"{share:.0%} of the initializations"
        for width, share in solved.items()
    }
)
assert 0 < solved[2] < 0.5 and solved[8] == 1
# convex: the same loss from every initialization
assert np.allclose(last_losses(jb.Dense(1)), 0.25, atol=1e-3)

# %% [markdown]
# ## 2. Step size
#
# Near a minimum, every smooth function is approximately a parabola $\frac{\lambda}{2} x^2$, whose gradient is
# $\lambda x$. A step maps $x$ to $(1 - \eta\lambda)\,x$. The error decreases if $|1 - \eta\lambda| < 1$:
#
# $$ 0 < \eta < \frac{2}{\lambda}. $$
#
# In the "hello world" example, $\lambda$ is the second derivative at the minimum, 12.329, and the limit is 0.16222. The
# step size 0.13 multiplies the error by $-0.60$ in each step, so the iterates oscillate around the minimum. Above the
# limit, gradient descent does not converge to this minimum: with 0.163 it converges to a cycle of two points, and with
# 0.17 it reaches the other minimum.

# %%
curvature = 12 * high**2 - 6 * high - 4
assert abs(curvature - 12.329001) < 1e-6
assert abs(stable_step_size(curvature) - 0.1622191) < 1e-6
assert abs((1 - 0.13 * curvature) + 0.6027702) < 1e-6

etas = jnp.array([0.16, 0.163, 0.17])
last_two = jax.vmap(lambda eta: descend(quartic, 2.0, eta, steps=2000).points[-2:])(
    etas
)
assert abs(last_two[0] - high).max() < 1e-4
assert abs(last_two[1, 1] - last_two[1, 0]) > 0.05  # a cycle of two points
assert abs(last_two[2] - low).max() < 1e-5
last_two

# %% [markdown]
# In several dimensions, the Hessian has one such parabola for each eigenvector, with the eigenvalue as $\lambda$. All
# directions share one step size. The **largest** eigenvalue $L$ limits the step size, and the **smallest** eigenvalue
# $\mu$ determines the slowest rate of convergence. Their ratio $\kappa = L / \mu$ is the condition number; a large
# $\kappa$ means slow convergence. `quadratic_objective` stores both eigenvalues, and `descend` warns if the step size
# is too large:

# %%
valley = quadratic_objective(jnp.array([1.0, 10.0]))  # (θ₁² + 10 θ₂²) / 2
assert valley.smoothness == 10 and valley.convexity == 1
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    too_far = descend(valley, jnp.ones(2), 0.21, steps=50)
assert too_far.values[-1] > 100 * too_far.values[0]
print(caught[0].message)

# %% [markdown]
# A common recommendation is "usually $\eta$ is between $10^{-3}$ and $10^{-4}$". This is a rule of thumb for certain
# nets. For this quadratic, every step size below 0.2 works, and 0.001 is slow. The suitable step size also depends on
# the reduction of the loss:
#
# > **Huszár states** the loss as a *sum* over the examples and updates with $\nabla L(\theta)$; the others take
# > the *mean*.
#
# **Counterexample:** 50 examples, step size 0.1. With the mean, gradient descent finds the slope of a line. With the
# sum, every gradient is 50 times as large, and the same step size diverges. **Correction:** state the reduction. With
# the mean, the step size does not depend on the number of examples. The gradient is evaluated at the current point
# $\theta_t$.

# %%
x = jax.random.normal(jax.random.key(0), (50,))
y = 3 * x
mean_loss = descend(lambda w: jnp.mean((w * x - y) ** 2), 0.0, 0.1, steps=60)
sum_loss = descend(lambda w: jnp.sum((w * x - y) ** 2), 0.0, 0.1, steps=30)
assert abs(mean_loss.last - 3) < 1e-4
assert sum_loss.values[-1] > 1e20 or not jnp.isfinite(sum_loss.values[-1])

# %% [markdown]
# ## 3. Convergence bounds
#
# For convex functions there is a convergence theorem. Let $C$ be convex and *$L$-smooth*: the change of its gradient is
# at most $L$ times the distance. Then
#
# $$ C(\theta_t) - \min C \;\le\; \frac{\|\theta_0 - \theta^*\|^2}{2 \eta t}. $$
#
# If $L$ and the minimum of the objective are known, `descend` also records this bound, and tighter bounds where they
# are known. For the quadratic with $\eta = 0.099$:

# %%
with jax.enable_x64(True):
    valley = quadratic_objective(jnp.array([1.0, 10.0]))
    seen = descend(valley, jnp.ones(2), 0.099, steps=50)
    print(seen)
    assert seen.holds
    for t, gap, bound in (
        (1, 0.4064005, 10.10101),
        (10, 0.0621535, 1.010101),
        (50, 1.484052e-5, 0.2020202),
    ):
        assert np.isclose(seen.gaps[t], gap, rtol=1e-6) and np.isclose(
            seen.bounds["convex"][t], bound, rtol=1e-6
        )

# %% [markdown]
# Here the bound is far from tight. A quadratic is *strongly* convex, and its error decreases by a constant factor in
# each step, which is a straight line on a logarithmic scale. A logistic regression is convex but not strongly convex.
# **Huber's function**, which is quadratic near 0 and linear further away, is the worst case: it attains the tighter
# bound $R^2 / (4 \eta t + 2 / L)$.

# %%
rng = np.random.default_rng(0)
points = rng.normal(size=(80, 2))
with jax.enable_x64(True):
    logistic = logistic_objective(
        jnp.asarray(points), jnp.asarray(points[:, 0] + rng.normal(size=80) > 0)
    )
    zeros = {"kernel": jnp.zeros((2, 1)), "bias": jnp.zeros(1)}
    runs = {
        "quadratic": seen,
        "logistic regression": descend(
            logistic, zeros, 1 / logistic.smoothness, steps=100
        ),
        "Huber, worst case for step 100": descend(
            huber_objective(knee=1 / 201), 1.0, 1.0, steps=100
        ),
    }
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    for ax, (name, run) in zip(axes, runs.items(), strict=True):
        run.plot(ax).set_title(name)
        assert run.holds
    assert np.isclose(
        runs["Huber, worst case for step 100"].gaps[100], 1 / (4 * 100 + 2), rtol=1e-12
    )

# %% [markdown]
# > **The lecture notes state** the theorem for $\eta < 1/L$.
#
# **Counterexample:** at $\eta = 1/L$, which the printed form excludes, Huber's function has the value $1/402 = 0.00249$
# after 100 steps. This is below the bound of $1/200$. By the tighter bound above, no smaller step size has a better
# worst case. **Correction:** $0 < \eta \le 1/L$. For the proof the notes say "see the appendix", but this appendix is
# missing. The proof is homework 1.

# %%
with jax.enable_x64(True):
    for t in (1, 10):
        worst = descend(huber_objective(knee=1 / (2 * t + 1)), 1.0, 1.0, steps=t).gaps[
            t
        ]
        assert np.isclose(worst, 1 / (4 * t + 2)) and worst <= convex_bound(t, 1.0, 1.0)

# %% [markdown]
# ## 4. Momentum
#
# On an ill-conditioned quadratic, gradient descent oscillates in the steep direction and moves slowly in the flat
# direction. Momentum (the heavy-ball method) reduces both problems. It keeps a velocity $v$: gradients with alternating
# signs cancel, and gradients with the same sign add up. With $0 \le m < 1$:
#
# $$ v_{t+1} = m\, v_t - \eta\, \nabla C(\theta_t), \qquad \theta_{t+1} = \theta_t + v_{t+1}. $$
#
# > **The lecture notes state** $m \in (0, 1]$ and $\eta$ as the constants, then
# > $v_{t+1} = m v_t - \gamma \nabla C(\theta_t)$ and $\theta_{t+1} = \theta_t + v_t$.
#
# There are three errors: $\gamma$ must be $\eta$; $m = 1$ never converges, because there is no friction; and with $v_t$
# in the second formula the gradient has an effect one step too late. **Counterexample:** $C = \theta^2 / 2$, $m = 0.9$,
# $\eta = 0.5$, 100 steps from 1.


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
# On a parabola with curvature $\lambda$ the method is linear,
# $(\theta_t, \theta_{t-1}) \mapsto M\,(\theta_t, \theta_{t-1})$. The largest absolute eigenvalue of the $2 \times 2$
# matrix $M$, its **spectral radius**, determines the convergence: the method converges if it is below 1. For the
# corrected form, this gives the limit $\eta\lambda < 2(1 + m)$. For the printed form it gives only
# $\eta\lambda < 1 - m$; the eigenvalues of that form solve $z^2 - (1 + m) z + m + \eta\lambda = 0$.


# %%
def radius_as_printed(a, m):
    return abs(np.roots([1, -(1 + m), m + a])).max()


m = 0.9
for a, corrected, printed in ((0.11, 0.948683, 1.004988), (3.7, 0.948683, 2.144761)):
    assert np.isclose(spectral_radius(a, 1.0, momentum=m), corrected, atol=1e-6)
    assert np.isclose(
        abs(np.linalg.eigvals(iteration_matrix(a, 1.0, momentum=m))).max(),
        corrected,
        atol=1e-5,
    )
    assert np.isclose(radius_as_printed(a, m), printed, atol=1e-6)
assert np.isclose(stable_step_size(1.0, momentum=m), 2 * (1 + m))
assert radius_as_printed(0.099, m) < 1 < radius_as_printed(0.101, m)
# m = 1: no growth and no decay
assert np.allclose(spectral_radius(np.array([0.1, 1.0, 3.0]), 1.0, momentum=1.0), 1)

# %% [markdown]
# The stability map shows the spectral radius for all step sizes and momenta. White is unstable; dark is fast.

# %%
figure, axes = plt.subplots(1, 2, figsize=(10, 3.2), layout="constrained")
stability_map(method="heavy ball").plot(axes[0])
axes[1] = stability_map(method="nesterov").plot(axes[1])

# %% [markdown]
# For curvatures from $\mu$ to $L$, the best step size of gradient descent multiplies the error per step by
# $\frac{\kappa - 1}{\kappa + 1}$. The best step size and momentum together multiply it by
# $\frac{\sqrt\kappa - 1}{\sqrt\kappa + 1}$. For $\kappa = 100$ the factors are 0.980 and 0.818: an error ten times
# smaller takes 116 steps without momentum and 12 steps with momentum.

# %%
plain, ball = (
    tuned_momentum(100.0, 1.0, method="gradient descent"),
    tuned_momentum(100.0, 1.0),
)
assert np.isclose(plain.rate, 99 / 101) and np.isclose(ball.rate, 9 / 11)
assert [int(np.ceil(np.log(0.1) / np.log(t.rate))) for t in (plain, ball)] == [116, 12]

with jax.enable_x64(True):
    narrow = quadratic_objective(jnp.array([1.0, 100.0]))
    runs = {
        "gradient descent": descend(narrow, jnp.ones(2), plain.step_size, steps=150),
        "momentum": descend(
            narrow,
            jnp.ones(2),
            optax.sgd(ball.step_size, momentum=ball.momentum),
            steps=150,
        ),
    }
    figure, axes = plt.subplots(figsize=(5.5, 3), layout="constrained")
    plotting.curves(
        range(151), {name: np.log10(run.gaps) for name, run in runs.items()}, axes
    )
    axes.set(xlabel="step", ylabel="log10 of the loss")
    assert runs["momentum"].gaps[100] < 1e-9 * runs["gradient descent"].gaps[100]

# %% [markdown]
# ### Momentum as a moving average
#
# Momentum is also written as a moving average of gradients, $v_{t+1} = \beta v_t + (1 - \beta) \nabla C(\theta_t)$ and
# $\theta_{t+1} = \theta_t - \eta\, v_{t+1}$.
#
# > **The lecture notes state** $\theta_{t+1} = \theta_t - \eta v_t$ here, with the same index error. (The sign differs
# > from the first form but is right: this $v$ has the direction of the gradient.)
#
# With the corrected index the two forms are the same method, where $m = \beta$ and the step size of the first form is
# $\gamma = \eta (1 - \beta)$. In optax, the first form is `sgd` and the second is a chain of `ema` and `scale`.

# %%
with jax.enable_x64(True):
    parabola = quadratic_objective(jnp.ones(1))
    first = descend(
        parabola, jnp.ones(1), optax.sgd(0.1, momentum=0.9), steps=6
    ).points[:, 0]
    averaging = optax.chain(optax.ema(0.9, debias=False), optax.scale(-1.0))
    second = descend(parabola, jnp.ones(1), averaging, steps=6).points[:, 0]
    assert np.allclose(
        first, [1, 0.9, 0.72, 0.486, 0.2268, -0.02916, -0.256608], atol=1e-12
    )
    assert np.allclose(first, second, atol=1e-12)

    theta, v, late = 1.0, 0.0, []
    for _ in range(6):  # as printed
        theta, v = theta - v, 0.9 * v + 0.1 * theta
        late.append(theta)
    assert late[0] == 1.0 != first[1]  # the first step does not move

# %% [markdown]
# ## 5. Adam
#
# A single step size for all parameters is a compromise, as the quadratic example shows. Adam scales the step of each
# parameter separately: it divides the moving average of the gradient by the root of the moving average of its square.
# Let $g_t = \nabla C(\theta_{t-1})$ for $t = 1, 2, \dots$; all operations are elementwise:
#
# $$ v_t = \beta_1 v_{t-1} + (1 - \beta_1)\, g_t, \quad s_t = \beta_2 s_{t-1} + (1 - \beta_2)\, g_t^2, \quad
# \hat v_t = \frac{v_t}{1 - \beta_1^t}, \quad \hat s_t = \frac{s_t}{1 - \beta_2^t}, \quad
# \theta_t = \theta_{t-1} - \eta\, \frac{\hat v_t}{\sqrt{\hat s_t} + \varepsilon}. $$
#
# > **The lecture notes state** "initial $x_0$", no values for $v_0$ and $s_0$, and the divisor $1 - \beta_1^t$ with $t$
# > from 0.
#
# **Counterexample:** $1 - \beta_1^0 = 0$, so the first step divides by zero. **Correction:** the initial point is
# $\theta_0$; $v_0 = s_0 = 0$; $t$ starts at 1.


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
    by_optax = descend(
        quadratic_objective(jnp.asarray(steep)), jnp.ones(2), optax.adam(0.1), steps=5
    ).points
    assert np.allclose(by_hand, by_optax, atol=1e-12)
    assert np.allclose(
        by_hand[[1, 5]],
        [[0.900000001, 0.9000000001], [0.5079636619, 0.5079636571]],
        atol=1e-9,
    )
    assert 1 - 0.9**0 == 0

# %% [markdown]
# The two columns of the path are nearly equal, although one direction is ten times as steep. The first step is
# $\eta\, g / (|g| + \varepsilon)$, which is approximately $\pm\eta$ for every size of $g$. If the loss is multiplied by
# 1000, the path does not change. The bias corrections $\hat v_t$ and $\hat s_t$ are also important: averages that start
# at 0 are too small in the first steps. Without the corrections the first step is
# $\eta \cdot 0.1 / \sqrt{0.001} = 0.316$ instead of 0.1.

# %%
assert np.allclose(
    adam(lambda theta: 1000 * steep * theta, np.ones(2), 50),
    adam(lambda t: steep * t, np.ones(2), 50),
)
uncorrected = adam(lambda theta: steep * theta, np.ones(2), 1, correct=False)
assert np.allclose(1 - uncorrected[1], 0.316228, atol=1e-5)

# %% [markdown]
# The next cell compares all of these methods on the quadratic. `descend` and `jb.fit` take any optax optimizer; this
# library has no optimizers of its own.

# %%
optimizers = {
    "gradient descent": 0.05,
    "momentum": optax.sgd(0.05, momentum=0.7),
    "Adam": optax.adam(0.1),
}
valley = quadratic_objective(jnp.asarray(steep, jnp.float32))
runs = {
    name: descend(valley, jnp.ones(2), optimizer, steps=60)
    for name, optimizer in optimizers.items()
}
figure, axes = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
plotting.trajectories(
    jax.vmap(valley.f), {name: run.points for name, run in runs.items()}, axes[0]
)
plotting.curves(
    range(61), {name: np.log10(run.gaps) for name, run in runs.items()}, axes[1]
)
axes[1].set(xlabel="step", ylabel="log10 of the loss")
assert runs["momentum"].gaps[-1] < runs["gradient descent"].gaps[-1] < 0.01

# %% [markdown]
# Adam is not the fastest method here. Its advantage is that one step size, often near 0.001, works for nets whose
# parameters have gradients of very different sizes. No optimizer is the best on all problems.
#
# ## 6. Normalization
#
# The condition number is a property of the objective, and normalization changes the objective. Example: a linear model
# has two inputs, one in meters with values near 1, one in millimeters with values near 1000. Its condition number
# $\kappa$ is over a million. After subtracting the mean of each input and dividing by its standard deviation, $\kappa$
# is nearly 1. Adam rescales each parameter separately, so it replaces only the division, not the subtraction of the
# mean.

# %%
meters, millimeters = (
    np.random.default_rng(0)
    .normal([2.0, 3000.0], [0.5, 800.0], (200, 2))
    .T.astype(np.float32)
)
raw = np.stack([meters, millimeters], -1)
target = (raw @ np.array([1.0, 0.002], np.float32))[:, None]
normal = jax.jit(
    lambda x: jb.statistics.standardize(x, **jb.statistics.fit_standardizer(x))
)(raw)
condition = lambda x: (lambda objective: objective.smoothness / objective.convexity)(
    least_squares_objective(x, target)
)
print(f"condition number {condition(raw):.1e}, normalized {condition(normal):.2f}")
assert condition(raw) > 1e6 and condition(normal) < 1.5

# %% [markdown]
# The inputs of a *later* layer change while the layers before it are trained. A normalization layer therefore
# normalizes them inside the net. **Batch normalization** uses the mean $\mu$ and the variance $\sigma^2$ over the
# batch,
#
# $$ y = \gamma\, \frac{x - \mu}{\sqrt{\sigma^2 + \varepsilon}} + \beta , $$
#
# with learned $\gamma$ and $\beta$. For sequences $T_{bnc}$ (example, position, channel) the axes of the statistics
# must be stated.
#
# > **The lecture notes state** statistics for each $(n, c)$, over $b$ alone, as the behavior of Keras'
# > `BatchNormalization`, and "default `scale=True`", with "what?" in the margin.
#
# **Counterexample:** two sequences of length 2, $(1, 2)$ and $(3, 6)$. With statistics over $b$ alone the outputs are
# $(-1, -1)$ and $(1, 1)$. Keras returns $(-1.07, -0.53)$ and $(0, 1.60)$. **Correction:** Keras computes the statistics
# over $b$ *and* $n$, so that each channel has one mean, one variance, one $\gamma$ and one $\beta$. The option `scale`
# enables $\gamma$, and `center` enables $\beta$; both are enabled by default.
#
# > **The lecture notes state** for *layer* normalization statistics of each example, over all $(n, c)$.
#
# **Counterexample:** transformers normalize each position separately, over its channels. This example has one channel,
# so the result is 0 everywhere; statistics over $(n, c)$ give $(-1, 1)$ for both sequences. **Correction:** both
# variants are used, so state the axes.

# %%
T = jnp.array([[[1.0], [2.0]], [[3.0], [6.0]]])  # (b, n, c)


def batch_normalized(**options):
    layer = jb.BatchNorm(epsilon=1e-5, **options)
    return jax.jit(
        lambda key: layer.apply(*layer.init(key, T), T, train=True)[0].ravel()
    )(jax.random.key(0))


# as printed
assert np.allclose(
    batch_normalized(axes=0), jnp.array([-1.0, -1.0, 1.0, 1.0]), atol=1e-4
)
assert np.allclose(
    batch_normalized(), jnp.array([-1.0690434, -0.5345217, 0.0, 1.6035652]), atol=1e-5
)
both, last = jax.jit(
    lambda x: [jb.layer_norm(x, axes=axes).ravel() for axes in ((-2, -1), -1)]
)(T)
assert np.allclose(both, [-1.0, 1.0, -1.0, 1.0], atol=1e-4)  # as printed
assert not np.asarray(last).any()

# %% [markdown]
# ## 7. Stochastic gradients
#
# The loss is a mean over examples, and so is its gradient. A **minibatch** is a small subset of the examples; its
# gradient costs only a fraction of the full gradient. The minibatch gradient is noisy but unbiased: the mean over all
# minibatches of an epoch is the full gradient.

# %%
params = jb.Dense(1).init(jax.random.key(1), jnp.zeros((1, 2)))
data = np.asarray(jax.random.normal(jax.random.key(2), (64, 2)))
target = data[:, :1] - 2 * data[:, 1:]
loss = lambda params, x, y: jnp.mean((jb.affine(x, **params) - y) ** 2)
gradient = jax.jit(jax.grad(loss))
full = gradient(params, data, target)
parts = [gradient(params, data[i : i + 8], target[i : i + 8]) for i in range(0, 64, 8)]
mean = jax.tree.map(lambda *leaves: np.mean(leaves, 0), *parts)
assert np.allclose(mean["kernel"], full["kernel"], atol=1e-5)
assert not np.allclose(parts[0]["kernel"], full["kernel"], atol=0.05)

# %% [markdown]
# Notebook 8 discusses the size and the effect of this noise.
#
# ## Homework
#
# **1.** Prove the bound of section 3.
#
# **2.** Solve $x^5 - x^4 - x = -1$ by gradient descent.
#
# **3.** For which step sizes does momentum with $m = 0.9$ oscillate on $\theta^2/2$? What is the rate of convergence
# for these step sizes?
#
# ## Solutions
#
# ### 1. Proof of the convex bound
#
# *Descent.* $L$-smooth means $C(y) \le C(x) + \langle \nabla C(x), y - x\rangle + \frac L2 \|y - x\|^2$. With
# $y = \theta_{t+1} = \theta_t - \eta g$, $g = \nabla C(\theta_t)$ and $\eta \le 1/L$,
#
# $$ C(\theta_{t+1}) \le C(\theta_t) - \eta \|g\|^2 + \tfrac{L \eta^2}{2} \|g\|^2 \le C(\theta_t) - \tfrac{\eta}{2}
# \|g\|^2 . $$
#
# *Convexity* means $C(\theta_t) \le C(\theta^*) + \langle g, \theta_t - \theta^* \rangle$. Insert this and complete the
# square:
#
# $$ C(\theta_{t+1}) - C(\theta^*) \le \langle g, \theta_t - \theta^* \rangle - \tfrac{\eta}{2} \|g\|^2
# = \tfrac{1}{2\eta} \big( \|\theta_t - \theta^*\|^2 - \|\theta_{t+1} - \theta^*\|^2 \big). $$
#
# *Telescoping sum.* Summed over $t$ steps, the right side is at most $\|\theta_0 - \theta^*\|^2 / 2\eta$. The values
# $C(\theta_t)$ do not increase, so the last of the $t$ terms on the left is at most their mean. $\square$
#
# The next cell checks the first and the third inequality at every step of the logistic regression.

# %%
with jax.enable_x64(True):
    eta = 1 / logistic.smoothness
    run = descend(logistic, zeros, eta, steps=100)
    rounding = 1e-12
    assert (
        run.values[1:]
        <= run.values[:-1] - eta / 2 * run.gradient_norms[:-1] ** 2 + rounding
    ).all()
    assert (
        run.gaps[1:]
        <= (run.distances[:-1] ** 2 - run.distances[1:] ** 2) / (2 * eta) + rounding
    ).all()

# %% [markdown]
# ### 2. The equation
#
# Let $r(x) = x^5 - x^4 - x + 1$. One approach is gradient descent on $r$ itself: at 1 it has a local minimum with the
# value 0. This works from the initial point 0. From $-0.6$ it diverges to $-\infty$, because $r$ has no lower bound.
# The boundary between the two cases is the local maximum, $-0.5316$.
#
# A better approach is gradient descent on $r^2$, whose minima with value 0 are the solutions.


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
    assert np.allclose(
        right.points[np.array([10, 100, 1000, 10_000])],
        [0.67218, 0.95181, 0.98683, 0.99599],
        atol=1e-5,
    )

# %% [markdown]
# The solutions are $-1$ and $1$. The rates of convergence differ: at $-1$ four decimals are right after ten steps, at 1
# the third decimal is still wrong after 10,000 steps. The reason is the factorization
# $r(x) = (x - 1)^2 (x + 1) (x^2 + 1)$: 1 is a double root of $r$, hence a root of multiplicity four of $r^2$. There
# $\nabla \propto (x - 1)^3$ decreases faster than the distance, and the distance decreases only like $1/\sqrt{t}$: one
# more digit needs a hundred times as many steps. Such sublinear convergence is also what the bound of section 3
# describes.

# %%
assert np.allclose(
    np.polymul([1, -2, 1], np.polymul([1, 1], [1, 0, 1])), [1, -1, 0, 0, -1, 1]
)
maximum = min(np.roots([5, -4, 0, 0, -1]).real)
assert abs(maximum + 0.5315644566) < 1e-9
distance = abs(1 - np.asarray(right.points))
assert 9 < distance[100] / distance[10_000] < 13
figure, axes = plt.subplots(1, 2, figsize=(10, 3), layout="constrained")
plotting.curves(
    np.linspace(-1.2, 1.4, 200), {"$r$": r, "$r^2$": lambda x: r(x) ** 2}, axes[0]
).axhline(0, color="0.6")
steps = np.arange(1, 10_001)
axes[1].loglog(steps, distance[1:], label="$r^2$ from 0 to 1")
axes[1].loglog(
    steps[:200],
    np.maximum(abs(np.asarray(left.points[1:]) + 1), 1e-16),
    "--",
    label="$r^2$ from -0.6 to -1",
)
axes[1].set(xlabel="step", ylabel="distance to the solution")
axes[1].legend()

# %% [markdown]
# ### 3. Oscillation
#
# The eigenvalues solve $z^2 - (1 + m - \eta)\, z + m = 0$. The iterates oscillate if the eigenvalues are complex, that
# is, if $(1 + m - \eta)^2 < 4m$. This is equivalent to $(1 - \sqrt m)^2 < \eta < (1 + \sqrt m)^2$. The product of the
# eigenvalues is $m$, so both have absolute value $\sqrt m = 0.949$: **between these limits the rate of convergence does
# not depend on the step size.** In the stability map above, this is the region in the middle where the color depends
# only on the momentum.

# %%
lower, upper = (1 - math.sqrt(m)) ** 2, (1 + math.sqrt(m)) ** 2
inside = np.linspace(lower * 1.001, upper * 0.999, 50)
radii = np.asarray(
    jax.jit(lambda a: spectral_radius(a, 1.0, momentum=m))(
        np.array([*inside, lower / 2, upper * 1.01])
    )
)
assert np.allclose(radii[:-2], math.sqrt(m), atol=1e-5)
assert (radii[-2:] > math.sqrt(m)).all()
