# %% [markdown]
# # Gradient descent, momentum and Adam
#
# Notebook 3 introduced the loss, a number that depends on all parameters of a net. Training minimizes it. The
# negative gradient is the direction of steepest descent, but it does not determine the step size, and it describes
# the loss only near the current point. This notebook answers two questions:
#
# 1. **How large may a step be**, and how fast does gradient descent converge?
# 2. **Which methods converge faster** with the same gradients?
#
# The methods are tested on functions with known minima.
#
# **Prerequisites:** derivatives, eigenvalues, notebook 0. Every section ends with an exercise: a cell to complete,
# and a cell that checks it. **Sources:** Polyak 1964 (momentum); Nesterov 2004; Drori and Teboulle 2014 (worst
# cases); Lessard, Recht and Packard 2016 (rates on quadratics); Goh 2017; Kingma and Ba 2015 (Adam); Ioffe and
# Szegedy 2015 (batch normalization); Diehl, *lecture notes* (2023), section 1.5; Krapac and Šegvić (the first
# example and exercise 4).

# %%
import itertools
import math
import warnings

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import jaxblocks as jb
from jaxblocks import plotting
from jaxblocks.theory import (
    descend,
    huber_objective,
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
# Let $C(\theta)$ be the objective. The goal is an element of $\operatorname{argmin}_\theta C$. This is a *set*: it
# can contain one point, many points, or none. Near $\theta$, the rate of change of $C$ along a direction $x$ of
# length 1 is $\langle \nabla C, x \rangle$. By the Cauchy-Schwarz inequality it is at least $-\|\nabla C\|$, and
# where the gradient is not zero only $x = -\nabla C / \|\nabla C\|$ attains this value: it is the direction of
# **steepest descent**.
#
# **Gradient descent** takes repeated steps in this direction, with a **step size** $\eta$ (also called learning rate):
#
# $$ \theta_{t+1} = \theta_t - \eta\, \nabla C(\theta_t). $$
#
# The first example is $x^4 - x^3 - 2x^2 + 3$ with $\eta = 0.13$. `descend` runs gradient descent and records all
# iterates. (The cells that check many digits use 64-bit floats.) The derivative $x\,(4x^2 - 3x - 4)$ is zero at
# $0$, a local maximum, and at $(3 \pm \sqrt{73})/8$, that is $1.443$ and $-0.693$.


# %%
def quartic(x):
    return x**4 - x**3 - 2 * x**2 + 3


low, high = (3 - math.sqrt(73)) / 8, (3 + math.sqrt(73)) / 8
with jax.enable_x64(True):
    hello = descend(quartic, 2.0, 0.13, steps=100)
    other = descend(quartic, -1.0, 0.13, steps=100)
assert abs(float(hello.last) - high) < 1e-14 > abs(float(other.last) - low)
assert abs(quartic(high) - 0.166578) < 1e-6 and abs(quartic(low) - 2.602954) < 1e-6
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
ways = {"from 2": np.asarray(hello.points), "from -1": np.asarray(other.points)}
axes = plotting.trajectories(quartic, ways, axes, box=(-1.5, 2.1))
axes.legend(loc="upper center")
named = axes.set(xlabel="$x$", ylabel="objective")

# %% [markdown]
# From 2 (the dot), gradient descent converges to the right minimum (the star), which is the lower one; from $-1$ it
# converges to the left one, where the value is 2.60 instead of 0.17. **The limit depends on the initial point**,
# and it need not be the global minimum.
#
# The same is true for nets. In notebook 1b, two hidden rectifiers compute exclusive or. Does training find such
# params? The next cell trains nets of four widths from 1,000 random initializations each, by Adam (section 5). With
# two hidden units about one in five reaches the loss 0. The share grows with the width, but in this experiment even
# eight units fail sometimes. For a single layer these losses are *convex*, and all initializations lead to the same
# loss, $\tfrac14$.

# %%
bits = jnp.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
labels = jnp.array([0.0, 1.0, 1.0, 0.0])


def last_losses(net):
    """The losses after 300 steps from 1,000 initializations."""
    loss = lambda params: jnp.mean((net.apply(params, bits)[:, 0] - labels) ** 2)
    run = lambda key: descend(
        loss, net.init(key, bits), optax.adam(0.05), steps=300
    ).values[-1]
    return jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 1000))


solved = {}
for width in (2, 4, 8, 16):
    losses = last_losses(jb.MLP(width, 1))
    solved[width] = float((losses < 1e-3).mean())
    print(
        f"{width:2} hidden units: {solved[width]:.1%} of 1,000 reach the loss 0,",
        end=" ",
    )
    print(f"largest loss {losses.max():.3f}")
assert 0.15 < solved[2] < 0.3 and 0.9 < solved[8] < 1 and solved[16] > 0.98
assert solved[2] < solved[4] < solved[8] < solved[16]
assert np.allclose(last_losses(jb.Dense(1)), 0.25, atol=1e-3)

# %% [markdown]
# **Exercise 1.** Write gradient descent: return the list of all iterates, the first one included.


# %% tags=["exercise"]
def gradient_descent(f, theta, eta, steps):
    return [theta] * (steps + 1)  # complete: use jax.grad


# %% tags=["solution"]
def gradient_descent(f, theta, eta, steps):
    slope, path = jax.jit(jax.grad(f)), [theta]
    for _ in range(steps):
        path.append(path[-1] - eta * slope(path[-1]))
    return path


# %% tags=["check"]
path = gradient_descent(quartic, 2.0, 0.13, 5)
assert len(path) == 6, f"expected 6 iterates, got {len(path)}"
expected = [2, 0.44, 0.70000832, 1.07675083, 1.43966841]
assert np.allclose(path[:5], expected, atol=1e-5), f"the iterates begin {expected}"

# %% [markdown]
# ## 2. Step size
#
# Near a minimum with positive second derivative $\lambda$, a smooth function of one variable is approximately a
# parabola $\frac{\lambda}{2} x^2$ of the distance $x$, whose gradient is $\lambda x$. A step maps $x$ to $(1 -
# \eta\lambda)\,x$. The error decreases exactly if $|1 - \eta\lambda| < 1$:
#
# $$ 0 < \eta < \frac{2}{\lambda}. $$
#
# In the example, the second derivative at the right minimum is 12.329, and the limit is 0.16222. The step size 0.13
# multiplies the error by $-0.60$ in each step (asymptotically), so the iterates oscillate around the minimum. Above
# the limit the minimum repels: from 2, with 0.163 the iterates end in a cycle of two points, and with 0.17 at the
# other minimum.

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
# In several dimensions, the Hessian has one such parabola for each eigenvector, with the eigenvalue as $\lambda$.
# All directions share one step size. The **largest** eigenvalue $L$ limits the step size. For a step size of at
# most $2 / (L + \mu)$, the **smallest** eigenvalue $\mu$ has the factor $1 - \eta\mu$, the slowest. Their ratio
# $\kappa = L / \mu$ is the condition number. `quadratic_objective` stores both eigenvalues, and `descend` warns if
# the step size is too large:

# %%
valley = quadratic_objective(jnp.array([1.0, 10.0]))  # (θ₁² + 10 θ₂²) / 2
assert valley.smoothness == 10 and valley.convexity == 1
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    too_far = descend(valley, jnp.ones(2), 0.21, steps=50)
assert too_far.values[-1] > 100 * too_far.values[0]
print(caught[0].message)

# %% [markdown]
# **Exercise 2.** For a quadratic $\tfrac12 \theta^\top H \theta$ with a symmetric positive definite $H$, compute
# the largest step size for which gradient descent converges from every initial point (the limit itself excluded).


# %% tags=["exercise"]
def largest_step(H):
    return 1.0  # complete: np.linalg.eigvalsh


# %% tags=["solution"]
def largest_step(H):
    return 2 / np.linalg.eigvalsh(H).max()


# %% tags=["check"]
H = np.array([[2.0, 1.0], [1.0, 2.0]])  # eigenvalues 1 and 3
limit = largest_step(H)
factor = lambda eta: abs(np.linalg.eigvals(np.eye(2) - eta * H)).max()
assert factor(0.999 * limit) < 1, f"with the step size {limit:.3f} the iterates grow"
assert factor(1.001 * limit) > 1, f"step sizes larger than {limit:.3f} converge too"

# %% [markdown]
# ## 3. Convergence bounds
#
# **Theorem.** Let $C$ be convex and *$L$-smooth* (the change of its gradient is at most $L$ times the distance), let
# $\theta^*$ be a minimizer, and let $0 < \eta \le 1/L$. Then for every $t \ge 1$
#
# $$ C(\theta_t) - C(\theta^*) \;\le\; \frac{\|\theta_0 - \theta^*\|^2}{2 \eta t}. $$
#
# *Proof.* $L$-smooth implies $C(y) \le C(x) + \langle \nabla C(x), y - x\rangle + \frac L2 \|y - x\|^2$. With
# $y = \theta_{t+1} = \theta_t - \eta g$, $g = \nabla C(\theta_t)$ and $\eta \le 1/L$,
#
# $$ C(\theta_{t+1}) \le C(\theta_t) - \eta \|g\|^2 + \tfrac{L \eta^2}{2} \|g\|^2 \le C(\theta_t) - \tfrac{\eta}{2}
# \|g\|^2 . $$
#
# Convexity means $C(\theta_t) \le C(\theta^*) + \langle g, \theta_t - \theta^* \rangle$. Insert this and complete the
# square:
#
# $$ C(\theta_{t+1}) - C(\theta^*) \le \langle g, \theta_t - \theta^* \rangle - \tfrac{\eta}{2} \|g\|^2
# = \tfrac{1}{2\eta} \big( \|\theta_t - \theta^*\|^2 - \|\theta_{t+1} - \theta^*\|^2 \big). $$
#
# Summed over $t$ steps, the right side is at most $\|\theta_0 - \theta^*\|^2 / 2\eta$. The values $C(\theta_t)$ do not
# increase, so the last of the $t$ terms on the left is at most their mean. $\square$
#
# Under the same conditions the sharper bound $R^2 / (4 \eta t + 2 / L)$, $R = \|\theta_0 - \theta^*\|$, holds, and
# for $\eta = 1/L$ and each number of steps $t$ there is a function, one of **Huber's**, that attains it after these
# $t$ steps (Drori and Teboulle 2014). `descend` records the bounds if $L$ and the minimum are known. The plots show
# three objectives. A quadratic is *strongly* convex: with $\eta \le 1/L$, each step multiplies the gap to the
# minimum by at most $(1 - \eta\mu)^2$. The logistic regression is convex, and not strongly so. Huber's function is
# the worst case for step 100.

# %%
rng = np.random.default_rng(0)
points = rng.normal(size=(80, 2))
with jax.enable_x64(True):
    valley = quadratic_objective(jnp.array([1.0, 10.0]))
    logistic = logistic_objective(
        jnp.asarray(points), jnp.asarray(points[:, 0] + rng.normal(size=80) > 0)
    )
    zeros = {"kernel": jnp.zeros((2, 1)), "bias": jnp.zeros(1)}
    runs = {
        "quadratic": descend(valley, jnp.ones(2), 0.099, steps=50),
        "logistic regression": descend(
            logistic, zeros, 1 / logistic.smoothness, steps=100
        ),
        "Huber's function": descend(huber_objective(knee=1 / 201), 1.0, 1.0, steps=100),
    }
    figure, axes = plt.subplots(1, 3, figsize=(6.5, 3.0), layout="constrained")
    for ax, (name, run) in zip(axes, runs.items(), strict=True):
        run.plot(ax).set_title(name, fontsize=9)
        ax.get_legend().remove()
        ax.set_ylabel("")
        assert run.holds
    figure.supylabel("above the minimum", fontsize=9)
    lines = axes[0].get_legend_handles_labels()
    figure.legend(*lines, loc="outside upper center", ncols=2)
    assert np.isclose(runs["Huber's function"].gaps[100], 1 / (4 * 100 + 2), rtol=1e-12)

# %%
with jax.enable_x64(True):
    quadratic = runs["quadratic"]
    assert (quadratic.gaps[1:] <= (1 - 0.099) ** 2 * quadratic.gaps[:-1] + 1e-15).all()
    # the two inequalities of the proof, at every step of the logistic regression
    run, eta, rounding = runs["logistic regression"], 1 / logistic.smoothness, 1e-12
    descent = run.values[:-1] - eta / 2 * run.gradient_norms[:-1] ** 2
    assert (run.values[1:] <= descent + rounding).all()
    shrinking = (run.distances[:-1] ** 2 - run.distances[1:] ** 2) / (2 * eta)
    assert (run.gaps[1:] <= shrinking + rounding).all()
# Huber's function attains the sharper bound after t steps
with jax.enable_x64(True):
    for t in (1, 10, 100):
        worst = descend(huber_objective(knee=1 / (2 * t + 1)), 1.0, 1.0, steps=t)
        assert np.isclose(worst.gaps[t], 1 / (4 * t + 2), rtol=1e-12)

# %% [markdown]
# **Exercise 3.** The condition $\eta \le 1/L$ cannot be dropped. For $C = 5 x^2$, which has $L = 10$, from $x = 1$,
# find a step size with which the gap after one step is larger than the bound.

# %% tags=["exercise"]
eta = 0.1  # complete: a larger one

# %% tags=["solution"]
eta = 0.3  # x becomes 1 - 10 eta = -2, the gap 20; the bound is 1 / 0.6 = 1.67

# %% tags=["check"]
gap_after = 5 * (1 - 10 * eta) ** 2
assert gap_after > 1 / (2 * eta), (
    f"the gap {gap_after:.2f} is within {1 / (2 * eta):.2f}"
)

# %% [markdown]
# **Exercise 4.** Solve $x^5 - x^4 - x = -1$ by gradient descent, from two initial points. Complete the objective: a
# function whose minima with value 0 are the solutions.


# %% tags=["exercise"]
def r(x):
    return x**5 - x**4 - x + 1


def objective(x):
    return r(x)  # complete: r itself has no lower bound


# %% [markdown] tags=["solution"]
# Take $r^2$. The solutions are $-1$ and $1$. The rates of convergence differ: since $r(x) = (x - 1)^2 (x + 1) (x^2 +
# 1)$, 1 is a double root of $r$, hence a root of multiplicity four of $r^2$. There the gradient is about $64 (x -
# 1)^3$, and the distance decreases asymptotically like $1/\sqrt{128\, \eta\, t}$: one more digit needs a hundred
# times as many steps. At $-1$ the second derivative of $r^2$ is positive, and each step multiplies the distance by
# a constant factor.


# %% tags=["solution"]
def r(x):
    return x**5 - x**4 - x + 1


def objective(x):
    return r(x) ** 2


factors = np.polymul([1, -2, 1], np.polymul([1, 1], [1, 0, 1]))
assert factors.tolist() == [1, -1, 0, 0, -1, 1]
with jax.enable_x64(True):
    to_left = descend(objective, -0.6, 0.01, steps=200)
    to_right = descend(objective, 0.0, 0.05, steps=10_000)
steps = np.arange(1, 10_001)
slow = abs(1 - np.asarray(to_right.points))[1:]
fast = np.maximum(abs(np.asarray(to_left.points) + 1), 1e-16)[1:]
assert abs(slow[-1] * np.sqrt(128 * 0.05 * 10_000) - 1) < 0.03
figure, axes = plt.subplots(figsize=(5, 2.8), layout="constrained")
axes.loglog(steps, slow, "-", label="from 0 to 1")
axes.loglog(steps[:200], fast, "--", label="from -0.6 to -1")
axes.set(xlabel="step", ylabel="distance to the solution", ylim=(1e-17, 1e4))
legend = axes.legend(loc="upper right", ncols=2)

# %% tags=["check"]
with jax.enable_x64(True):
    left_end = descend(objective, -0.6, 0.01, steps=200).last
    right_end = descend(objective, 0.0, 0.05, steps=2000).last
left_end, right_end = float(left_end), float(right_end)
assert abs(left_end + 1) < 1e-6, f"from -0.6 the iterates reach {left_end:.3g}, not -1"
assert abs(right_end - 1) < 0.02, f"from 0 the iterates reach {right_end:.3g}, not 1"
assert objective(2.0) > 0, "the objective must be positive where r is not 0"

# %% [markdown]
# ## 4. Momentum
#
# On an ill-conditioned quadratic, gradient descent with a large step size oscillates in the steep direction and
# still moves slowly in the flat one. Momentum (the heavy-ball method, Polyak 1964) keeps a velocity $v$: gradients
# with alternating signs cancel, and gradients with the same sign add up. With $0 \le m < 1$:
#
# $$ v_{t+1} = m\, v_t - \eta\, \nabla C(\theta_t), \qquad \theta_{t+1} = \theta_t + v_{t+1}. $$
#
# Momentum is also written as a moving average of gradients, $w_{t+1} = \beta w_t + (1 - \beta) \nabla C(\theta_t)$
# and $\theta_{t+1} = \theta_t - \eta'\, w_{t+1}$. With $v = -\eta' w$, $m = \beta$ and $\eta = \eta' (1 - \beta)$
# it is the same method. In optax, the first form is `sgd`, and the second a chain of `ema` and `scale`.

# %%
with jax.enable_x64(True):
    parabola = quadratic_objective(jnp.ones(1))
    first = descend(parabola, jnp.ones(1), optax.sgd(0.1, momentum=0.9), steps=60)
    averaging = optax.chain(optax.ema(0.9, debias=False), optax.scale(-1.0))
    second = descend(parabola, jnp.ones(1), averaging, steps=60)
assert np.allclose(first.points, second.points, atol=1e-12)

# %% [markdown]
# **Rate on a parabola.** With curvature $\lambda$ the method is linear: $\theta_{t+1} = (1 + m - \eta\lambda)\,
# \theta_t - m\, \theta_{t-1}$. The distance decreases asymptotically by the larger absolute value of the roots of
# $z^2 - (1 + m - \eta\lambda)\, z + m = 0$, the **spectral radius**. It is less than 1 exactly for $0 < \eta\lambda
# < 2 (1 + m)$. If the roots are complex, that is for $(1 - \sqrt m)^2 < \eta\lambda < (1 + \sqrt m)^2$, their
# product is $m$, and both have the absolute value $\sqrt m$: the rate does not depend on the step size. For $m = 1$
# the radius is 1, and nothing converges.
#
# In the maps of the spectral radius over step sizes and momenta, white is unstable, and dark is fast. (Nesterov's
# method evaluates the gradient at $\theta_t + m v_t$.)

# %%
figure, axes = plt.subplots(1, 2, figsize=(6.5, 2.8), layout="constrained")
stability_map(method="heavy ball").plot(axes[0])
stability_map(method="nesterov").plot(axes[1])
for ax in axes:
    ax.get_legend().remove()
    ax.title.set_fontsize(9)
m, a = 0.9, np.linspace(0.01, 3.79, 100)  # step size times curvature
by_roots = [abs(np.roots([1, a_i - 1 - m, m])).max() for a_i in a]
radii = spectral_radius(a, 1.0, momentum=m)
assert np.allclose(radii, by_roots, atol=1e-5) and (radii < 1).all()
middle = ((1 - m**0.5) ** 2 < a) & (a < (1 + m**0.5) ** 2)
assert np.allclose(radii[middle], m**0.5, atol=1e-4)
assert spectral_radius(3.81, 1.0, momentum=m) > 1
assert np.isclose(stable_step_size(1.0, momentum=m), 2 * (1 + m))
assert np.allclose(spectral_radius(np.array([0.1, 1.0, 3.0]), 1.0, momentum=1.0), 1)

# %% [markdown]
# **Many curvatures.** For curvatures from $\mu$ to $L$, the best step size of gradient descent, $2 / (L + \mu)$,
# multiplies the error per step by $\frac{\kappa - 1}{\kappa + 1}$ in the worst case. The best step size and
# momentum together have the asymptotic factor $\frac{\sqrt\kappa - 1}{\sqrt\kappa + 1}$ (Polyak 1964). For $\kappa =
# 100$ these are 0.980 and 0.818. So one more digit takes 116 steps without momentum, and 12 with it *in the limit
# of many steps*; at first the error of the momentum method decreases more slowly, because its two roots coincide at
# both ends of the range.

# %%
plain = tuned_momentum(100.0, 1.0, method="gradient descent")
ball = tuned_momentum(100.0, 1.0)
assert np.isclose(plain.rate, 99 / 101) and np.isclose(ball.rate, 9 / 11)
with jax.enable_x64(True):
    narrow = quadratic_objective(jnp.array([1.0, 100.0]))
    heavy = optax.sgd(ball.step_size, momentum=ball.momentum)
    runs = {
        "gradient descent": descend(narrow, jnp.ones(2), plain.step_size, steps=300),
        "momentum": descend(narrow, jnp.ones(2), heavy, steps=300),
    }
distances = {name: np.asarray(run.distances) for name, run in runs.items()}
for name, distance in distances.items():
    tenths = [int(np.argmax(distance < distance[0] / 10**k)) for k in (1, 2, 10)]
    print(f"{name:17} steps to a tenth, a hundredth, 1e-10 (0: never):", tenths)
decay = np.log(distances["momentum"])
assert abs(np.exp((decay[140] - decay[120]) / 20) - ball.rate) < 0.01
figure, axes = plt.subplots(figsize=(5.5, 2.8), layout="constrained")
logs = {name: np.log10(distance) for name, distance in distances.items()}
plotting.curves(range(151), {name: log[:151] for name, log in logs.items()}, axes)
axes.set(xlabel="step", ylabel="log10 of the distance", ylim=(-12, 3))
legend = axes.legend(loc="upper right", ncols=2)
assert logs["momentum"][100] < logs["gradient descent"][100] - 4

# %% [markdown]
# **Exercise 5.** For which step sizes do the iterates of momentum on $\theta^2/2$ oscillate, that is, change their
# sign again and again? Complete the smallest such step size. (It is not only between the limits above: what happens
# for real negative roots?)


# %% tags=["exercise"]
def oscillates_from(m):
    return 0.0  # complete this line


# %% tags=["solution"]
def oscillates_from(m):
    # Complex roots rotate, and real negative roots alternate. Both roots are positive
    # (and real) only for a step size of at most (1 - sqrt(m))^2.
    return (1 - math.sqrt(m)) ** 2


# %% tags=["check"]
def changes(eta, m):
    """How often the sign changes in 400 steps."""
    theta, previous, count = 1.0, 1.0, 0
    for _ in range(400):
        theta, previous = (1 + m - eta) * theta - m * previous, theta
        count += theta * previous < 0
    return count


for momentum in (0.25, 0.64):
    start = oscillates_from(momentum)
    above = [start * 1.1, (1 + math.sqrt(momentum)) ** 2 * 1.02]
    assert all(changes(eta, momentum) > 5 for eta in above), f"none for m = {momentum}"
    assert changes(start * 0.99, momentum) <= 1, (
        f"also below {start:.3f}, m = {momentum}"
    )

# %% [markdown]
# ## 5. Adam
#
# A single step size for all parameters is a compromise. Adam (Kingma and Ba 2015) scales the step of each parameter
# separately: it divides a moving average of the gradient by the root of a moving average of its square. Let
# $g_t = \nabla C(\theta_{t-1})$ for $t = 1, 2, \dots$ and $v_0 = s_0 = 0$; all operations are elementwise:
#
# $$ v_t = \beta_1 v_{t-1} + (1 - \beta_1)\, g_t, \quad s_t = \beta_2 s_{t-1} + (1 - \beta_2)\, g_t^2, \quad
# \hat v_t = \frac{v_t}{1 - \beta_1^t}, \quad \hat s_t = \frac{s_t}{1 - \beta_2^t}, \quad
# \theta_t = \theta_{t-1} - \eta\, \frac{\hat v_t}{\sqrt{\hat s_t} + \varepsilon}. $$
#
# Averages that start at 0 are too small in the first steps; $\hat v_t$ and $\hat s_t$ correct this. The first step
# is $\eta\, g / (|g| + \varepsilon)$, nearly $\pm\eta$ for every gradient that is large compared to $\varepsilon$;
# without the corrections it would be $\eta\, (1 - \beta_1) / \sqrt{1 - \beta_2}$, which is $3.16\, \eta$ for
# $\beta_1 = 0.9$, $\beta_2 = 0.999$. If the loss is multiplied by a number, the path hardly changes.


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

# %%
assert np.allclose(
    adam(lambda theta: 1000 * steep * theta, np.ones(2), 50),
    adam(lambda t: steep * t, np.ones(2), 50),
)
uncorrected = adam(lambda theta: steep * theta, np.ones(2), 1, correct=False)
assert np.allclose(1 - uncorrected[1], 0.316228, atol=1e-5)

# %% [markdown]
# **A comparison.** On the quadratic $\tfrac12 (\theta_1^2 + 10\, \theta_2^2)$ from $(1, 1)$, each method with the
# step size, out of 40, that has the smallest loss after 60 steps. Momentum has the given constant $m = 0.6$, Adam
# its usual ones.

# %%
valley = quadratic_objective(jnp.asarray(steep, jnp.float32))
makers = {
    "gradient descent": optax.sgd,
    "momentum": lambda eta: optax.sgd(eta, momentum=0.6),
    "Adam": optax.adam,
}
grid = jnp.geomspace(1e-3, 1.0, 40)
runs = {}
for name, make in makers.items():
    try_all = jax.vmap(
        lambda e, make=make: descend(valley, jnp.ones(2), make(e), steps=60)
    )
    found = jax.jit(try_all)(grid)
    best = int(
        jnp.nanargmin(
            jnp.where(jnp.isfinite(found.gaps[:, -1]), found.gaps[:, -1], jnp.nan)
        )
    )
    runs[name] = found.points[best], np.asarray(found.gaps[best])
    print(f"{name:17} step size {grid[best]:.3f}, last loss {found.gaps[best, -1]:.1e}")
figure, axes = plt.subplots(1, 2, figsize=(6.5, 3.2), layout="constrained")
paths = {name: points[:25] for name, (points, _) in runs.items()}
plotting.trajectories(jax.vmap(valley.f), paths, axes[0])
axes[0].get_legend().remove()
axes[0].set(xlabel=r"$\theta_1$", ylabel=r"$\theta_2$")
curves = {name: np.log10(np.maximum(gaps, 1e-16)) for name, (_, gaps) in runs.items()}
plotting.curves(range(61), curves, axes[1])
axes[1].get_legend().remove()
axes[1].set(xlabel="step", ylabel="log10 of the loss")
lines = axes[1].get_legend_handles_labels()
legend = figure.legend(*lines, loc="outside upper center", ncols=3)
last = {name: gaps[-1] for name, (_, gaps) in runs.items()}
assert last["momentum"] < last["gradient descent"]

# %% [markdown]
# This is one problem with two parameters, on which all three work once the step size is tuned. No ranking of
# optimizers follows from it. That Adam often works with a step size near 0.001, the default of the paper, for nets
# whose parameters have gradients of different sizes, is experience and not a theorem; there are convex problems on
# which Adam does not converge (Reddi, Kale and Kumar 2018).

# %% [markdown]
# **Exercise 6.** Write one step of Adam: complete the function, which returns the new $\theta$, $v$ and $s$.


# %% tags=["exercise"]
def adam_step(theta, v, s, g, t, eta=0.1, b1=0.9, b2=0.999, eps=1e-8):
    return theta - eta * g, v, s  # complete


# %% tags=["solution"]
def adam_step(theta, v, s, g, t, eta=0.1, b1=0.9, b2=0.999, eps=1e-8):
    v, s = b1 * v + (1 - b1) * g, b2 * s + (1 - b2) * g**2
    v_hat, s_hat = v / (1 - b1**t), s / (1 - b2**t)
    return theta - eta * v_hat / (np.sqrt(s_hat) + eps), v, s


# %% tags=["check"]
theta, v, s = np.ones(2), 0.0, 0.0
for t in range(1, 6):
    theta, v, s = adam_step(theta, v, s, steep * theta, t)
    expected = by_hand[t]
    assert np.allclose(theta, expected), f"step {t}: expected {expected}, got {theta}"

# %% [markdown]
# ## 6. Normalization
#
# The condition number is a property of the objective, and normalization changes the objective. A linear model has
# two inputs, one in meters with values near 2, one in millimeters with values near 3000. The condition number
# $\kappa$ of its squared error is large, because the inputs differ in size and because their means are not 0.
# Subtract the mean of each input and divide by its standard deviation, and $\kappa$ is close to 1 if the inputs are
# nearly independent.


# %%
def condition(x, target):
    objective = least_squares_objective(x, target)
    return float(objective.smoothness / objective.convexity)


numbers = []
for seed in range(10):
    draw = np.random.default_rng(seed).normal([2.0, 3000.0], [0.5, 800.0], (200, 2))
    raw = draw.astype(np.float32)
    target = (raw @ np.array([1.0, 0.002], np.float32))[:, None]
    normal = jb.statistics.standardize(raw, **jb.statistics.fit_standardizer(raw))
    scaled = raw / raw.std(0)  # as Adam would, in effect
    numbers.append([condition(x, target) for x in (raw, scaled, normal)])
names = "raw inputs", "divided by their deviation", "mean subtracted as well"
for name, found in zip(names, np.transpose(numbers), strict=True):
    print(f"{name:27} condition number {found.min():.3g} to {found.max():.3g}")
raw_k, scaled_k, normal_k = np.transpose(numbers)
assert (
    raw_k.min() > 1e8
    and 1e4 > scaled_k.max() > scaled_k.min() > 100
    and normal_k.max() < 2
)

# %% [markdown]
# The inputs of a *later* layer change while the layers before it are trained. A normalization layer therefore
# normalizes them inside the net. **Batch normalization** (Ioffe and Szegedy 2015) uses the mean $\mu$ and the variance
# $\sigma^2$ over the batch,
#
# $$ y = \gamma\, \frac{x - \mu}{\sqrt{\sigma^2 + \varepsilon}} + \beta , $$
#
# with learned $\gamma$ and $\beta$, one of each per channel. For sequences $T_{bnc}$ (example, position, channel)
# the axes of the statistics must be stated. Usual are $b$ and $n$ together, so that each channel has one mean.
# **Layer normalization** (Ba, Kiros and Hinton 2016) uses the statistics of each example; in transformers those of
# each position, over its channels.

# %%
T = jnp.array([[[1.0], [2.0]], [[3.0], [6.0]]])  # (b, n, c)


def normalized(axes):
    """By hand, without learned numbers."""
    centered = T - T.mean(axes, keepdims=True)
    return centered / jnp.sqrt((centered**2).mean(axes, keepdims=True) + 1e-5)


layer = jb.BatchNorm(epsilon=1e-5)
params, state = layer.init(jax.random.key(0), T)
by_layer = layer.apply(params, state, T, train=True)[0]
assert np.allclose(by_layer, normalized((0, 1)), atol=1e-5)
assert np.allclose(
    jb.layer_norm(T, axes=(-2, -1), epsilon=1e-5), normalized((1, 2)), atol=1e-5
)
for axes_of in ((0, 1), (0,), (1, 2), (2,)):
    names = " and ".join("bnc"[axis] for axis in axes_of)
    print(f"statistics over {names:7}:", np.round(normalized(axes_of).ravel(), 2))

# %% [markdown]
# **Exercise 7.** Two inputs have the standard deviations 1 and 1000, mean 0, and correlation $\rho$. What is the
# condition number of their covariance matrix after division by the standard deviations?


# %% tags=["exercise"]
def condition_of(rho):
    return 1.0  # complete this line


# %% tags=["solution"]
def condition_of(rho):
    # The matrix [[1, rho], [rho, 1]] has the eigenvalues 1 + rho and 1 - rho.
    return (1 + abs(rho)) / (1 - abs(rho))


# %% tags=["check"]
for rho in (0.0, 0.5, -0.9):
    expected = np.linalg.cond(np.array([[1, rho], [rho, 1]]))
    found = condition_of(rho)
    assert np.isclose(found, expected), (
        f"for rho = {rho} it is {expected:.3f}, not {found}"
    )

# %% [markdown]
# ## 7. Stochastic gradients
#
# The loss is a mean over examples, and so is its gradient. A **minibatch** is a small subset of the examples; its
# gradient costs only a fraction of the full gradient. It is noisy but unbiased: if the examples are divided into
# minibatches of equal size, the mean of their gradients at the *same* params is the full gradient. (In an epoch of
# training the params change between the minibatches.)

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
differences = [part["kernel"] - full["kernel"] for part in parts]
print(
    "distances to the full gradient:", np.linalg.norm(differences, axis=(1, 2)).round(2)
)
assert not np.allclose(parts[0]["kernel"], full["kernel"], atol=0.05)

# %% [markdown]
# **Exercise 8.** $B$ of $N$ numbers with variance $\sigma^2$ (the mean squared deviation from their mean) are drawn
# without replacement. What is the variance of their mean? It is $\sigma^2 / B$ times a factor that is 0 for $B =
# N$.


# %% tags=["exercise"]
def variance_of_mean(variance, B, N):
    return variance / B  # complete: the factor


# %% tags=["solution"]
def variance_of_mean(variance, B, N):
    return variance / B * (N - B) / (N - 1)


# %% tags=["check"]
gradients = np.array([1.0, 2.0, 4.0, 9.0, 11.0])
for B in (1, 2, 4, 5):
    subsets = itertools.combinations(gradients, B)
    exact = np.var([np.mean(subset) for subset in subsets])
    found = variance_of_mean(gradients.var(), B, 5)
    assert np.isclose(found, exact), f"for B = {B} it is {exact:.4f}, not {found:.4f}"

# %% [markdown]
# ## Summary
#
# | method | condition | rate |
# |---|---|---|
# | gradient descent, parabola | $0 < \eta < 2 / \lambda$ | $\lvert 1 - \eta\lambda \rvert$ |
# | gradient descent, convex and $L$-smooth | $\eta \le 1 / L$ | gap at most $R^2 / (2 \eta t)$ |
# | gradient descent, quadratics | $\eta = 2 / (L + \mu)$ | $(\kappa - 1) / (\kappa + 1)$ |
# | momentum, quadratics | tuned | $(\sqrt\kappa - 1) / (\sqrt\kappa + 1)$, asymptotically |
#
# Notebook 8 discusses the size and the effect of the noise of minibatches.
