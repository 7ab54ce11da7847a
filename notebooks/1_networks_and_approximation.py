# %% [markdown]
# # Networks and approximation
#
# A neural network is a function with many parameters. Before any training: **which functions can a network compute for
# some choice of its parameters?**
#
# For networks with one input and one hidden layer of rectifiers the answer is exact: these are the continuous
# piecewise linear functions with finitely many pieces. From this follows the universal approximation theorem.
# Notebook 1b asks how many units and layers a function needs.
#
# **Prerequisites:** notebook 0, calculus, matrices. Every section ends with an exercise: a cell to complete, and a
# cell that checks it.
#
# **Sources:** Cybenko 1989; Leshno, Lin, Pinkus and Schocken 1993 (the universal approximation theorem); DeVore and
# Lorentz 1993 (rates of approximation); Diehl, *lecture notes* (2023), section 1.

# %%
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxblocks as jb
from jaxblocks import plotting
from jaxblocks.theory import (
    PiecewiseLinear,
    approximate,
    approximate_by_ridges,
    euler_terms,
    from_piecewise_linear,
    interpolate,
    modulus_of_continuity,
    norm_differences,
    pieces_for,
    to_piecewise_linear,
)

# %% [markdown]
# ## 1. Layers and networks
#
# ### Dense layers
#
# A **layer** multiplies its input by a matrix and adds a vector. With column vectors the formula is $y = A x + b$. In
# code, each example is a *row* of an array. The formula is then `y = x @ kernel + bias`, where the kernel is $A^\top$.
#
# In jaxblocks, a layer is a pair of functions. `init` reads the shape of an input and returns random params; `apply`
# computes the output. Params are dictionaries of arrays, and a layer has no hidden state.

# %%
# three examples with two features each
x = jnp.array([[1.0, 2.0], [0.0, -1.0], [-3.0, 0.5]])
layer = jb.Dense(5)
params = layer.init(jax.random.key(0), x)
y = layer.apply(params, x)
assert params["kernel"].shape == (2, 5) and params["bias"].shape == (5,)
assert np.allclose(y, x @ params["kernel"] + params["bias"])
y.shape

# %% [markdown]
# ### Layers without anything between them
#
# The composition of two such layers, $A_2 (A_1 x + b_1) + b_2 = A_2 A_1\, x + (A_2 b_1 + b_2)$, is again one such
# layer; `fuse_affine` computes it. Such a function is called *affine*. It is *linear* exactly if its value at 0 is
# 0, that is, if $A_2 b_1 + b_2 = 0$; the single biases need not be zero.
#
# Nor does it have every matrix: the rank of $A_2 A_1$ is at most the width of the layer in between. In the example
# this width is 1, so the net is not the identity of the plane, which has rank 2.

# %%
two = jb.Serial(jb.Dense(1), jb.Dense(2))  # widths 2 -> 1 -> 2
first = {"kernel": jnp.array([[1.0], [2.0]]), "bias": jnp.ones(1)}
second = {"kernel": jnp.ones((1, 2)), "bias": jnp.ones(2)}
fused = jb.layers.fuse_affine(first, second)
assert np.allclose(two.apply((first, second), x), jb.affine(x, **fused))
assert jnp.linalg.matrix_rank(fused["kernel"]) == 1
assert (two.apply((first, second), jnp.zeros(2)) == 2).all()  # affine, not linear
linear = second | {"bias": -first["bias"] @ second["kernel"]}  # b2 = -A2 b1
assert (two.apply((first, linear), jnp.zeros(2)) == 0).all() and linear["bias"].all()

# %% [markdown]
# ### Networks
#
# Networks therefore apply a function that is not affine between the layers, the **activation** $\sigma$; it acts on
# each number separately. A common one is the *rectifier*, $\mathrm{ReLU}(s) = \max(0, s)$. A net with two inputs,
# five hidden units and one output, in short 2-5-1, computes
#
# $$ f(x) = A_2\, \mathrm{ReLU}(A_1 x + b_1) + b_2 . $$

# %%
net = jb.Serial(jb.Dense(5), jb.relu, jb.Dense(1))
params = net.init(jax.random.key(1), x)
assert jb.count_params(params) == (2 * 5 + 5) + (5 * 1 + 1) == 21
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
axes = plotting.network(params, axes, names=["2 inputs", "5 rectifiers", "1 output"])

# %% [markdown]
# Each edge is a weight. `MLP` (multilayer perceptron) is a short way to write such nets; `summary` lists the layers.
#
# The last layer has no activation. If it had one, the outputs would be restricted to its values: a net that ends
# with a rectifier has no negative outputs. And "depth" is ambiguous, because this net has two layers and one hidden
# layer; this course says which of the two it counts.

# %%
mlp = jb.MLP(5, 1)
assert np.allclose(mlp.apply(params, x), net.apply(params, x))
ends_with_relu = jb.MLP(5, 1, last_activation=jb.relu)
assert net.apply(params, x).min() < 0 == ends_with_relu.apply((*params, ()), x).min()
jb.summary(mlp, x)

# %% [markdown]
# The plots show six random nets of this form, with all biases zero. Where a unit changes its sign, on a line
# through the origin, the gradient jumps; elsewhere the function is affine.

# %%
init, apply = jax.jit(net.init), jax.jit(net.apply)
figure = plt.figure(figsize=(6.5, 4.2), layout="constrained")
for i in range(6):
    random_params = init(jax.random.key(i), x)
    assert not random_params[0]["bias"].any() and not random_params[2]["bias"].any()
    axes = figure.add_subplot(2, 3, i + 1, projection="3d")
    plotting.surface(
        lambda x, p=random_params: apply(p, x), ((-2, 2), (-2, 2)), axes, samples=31
    )
    axes.set_xlabel("$x_1$", labelpad=-8)
    axes.set_ylabel("$x_2$", labelpad=-8)

# %% [markdown]
# **Exercise 1.** Count the parameters of a net of dense layers with the given widths, the number of inputs first. For
# $(2, 5, 1)$ there are 21. How many has the net with two inputs and the widths 5, 10, 5, 2?


# %% tags=["exercise"]
def count(widths):
    return 0  # complete this line


# %% tags=["solution"]
def count(widths):
    # each output of a layer has a weight for each of its inputs, and a bias
    return sum(n * (m + 1) for m, n in itertools.pairwise(widths))


# %% tags=["check"]
assert count([2, 5, 1]) == 21, f"2-5-1 has 21 parameters, not {count([2, 5, 1])}"
shapes = jax.eval_shape(jb.MLP(5, 10, 5, 2).init, jax.random.key(0), x)
found = count([2, 5, 10, 5, 2])
assert found == jb.count_params(shapes), f"15 + 60 + 55 + 12 = 142, got {found}"

# %% [markdown]
# **Exercise 2.** Write a dense layer as a pair of functions, without `jb.Dense`: complete `apply`.


# %% tags=["exercise"]
def Linear(features):
    def init(key, x):
        scale = 1 / math.sqrt(x.shape[-1])
        kernel = scale * jax.random.normal(key, (x.shape[-1], features))
        return {"kernel": kernel, "bias": jnp.zeros(features)}

    def apply(params, x):
        return jnp.zeros((*x.shape[:-1], features))  # complete this line

    return jb.Layer(init, apply)


# %% tags=["solution"]
def Linear(features):
    def init(key, x):
        scale = 1 / math.sqrt(x.shape[-1])
        kernel = scale * jax.random.normal(key, (x.shape[-1], features))
        return {"kernel": kernel, "bias": jnp.zeros(features)}

    def apply(params, x):
        return x @ params["kernel"] + params["bias"]

    return jb.Layer(init, apply)


# %% tags=["check"]
mine, bias = jb.Serial(Linear(5), jb.relu, Linear(1)), jnp.arange(5.0)
p = mine.init(jax.random.key(0), x)
p = ({**p[0], "bias": bias}, *p[1:])
same = np.allclose(mine.apply(p, x), jb.MLP(5, 1).apply(p, x), atol=1e-5)
assert same, "with the same params, the net must compute what jb.MLP(5, 1) computes"

# %% [markdown]
# ## 2. Activations
#
# Each plot shows an activation (solid) and its derivative (dashed).

# %%
shown = {
    "ReLU": jb.relu,
    "leaky ReLU, slope 0.1": lambda x: jb.leaky_relu(x, 0.1),
    "ELU": jb.elu,
    "GELU": jb.gelu,
    "softplus": jb.softplus,
    "sigmoid": jb.sigmoid,
    "tanh": jb.tanh,
    "cosine": jb.activations.cosine,
}
# without 0, where the rectifier has no derivative
grid = np.linspace(-4, 4, 400, dtype=np.float32)
figure, axes = plt.subplots(2, 4, figsize=(6.5, 3.8), layout="constrained", sharex=True)
for ax, (name, f) in zip(axes.flat, shown.items(), strict=True):
    values, slopes = jax.jit(lambda x, f=f: (f(x), jax.vmap(jax.grad(f))(x)))(grid)
    plotting.curves(grid, {"function": values, "derivative": slopes}, ax)
    ax.get_legend().remove()
    ax.set_title(name, fontsize=9)
figure.supxlabel("$s$", fontsize=9)
figure.supylabel(r"$\sigma(s)$ and $\sigma'(s)$", fontsize=9)
lines = axes[0, 0].get_legend_handles_labels()
legend = figure.legend(*lines, loc="outside upper center", ncols=2)

# %% [markdown]
# **The sigmoid** $1/(1 + e^{-s})$ and **tanh** differ only by scaling and shifting: $\tanh(s) = 2 \sigma(2s) - 1$.
# Both *saturate*: far from 0 they are almost constant. The derivative $\sigma (1 - \sigma)$ of the sigmoid is at
# most $\tfrac14$. The derivative of ten layers is a product of ten such factors *and* of the weights between them.
# With weights near 1 it is at most $4^{-10} \approx 10^{-6}$: the gradient **vanishes**. Weights of size 4 or more
# can make up for the factor, but only near $s = 0$. A rectifier with positive input has the factor 1, so the
# weights alone decide.

# %%
assert np.allclose(jb.tanh(grid), 2 * jb.sigmoid(2 * grid) - 1, atol=1e-6)
assert jax.grad(jb.sigmoid)(0.0) == 0.25 and jax.grad(jb.sigmoid)(10.0) < 5e-5


def chain(activation, weight):
    """The derivative at 0.7 of ten layers of one unit with this weight."""

    def ten(x):
        for _ in range(10):
            x = activation(weight * x)
        return x

    return float(jax.grad(ten)(0.7))


for name, activation in (("sigmoid", jb.sigmoid), ("ReLU", jb.relu)):
    products = [chain(activation, weight) for weight in (0.5, 1.0, 2.0)]
    print(f"{name:8} weights 0.5, 1, 2: " + ", ".join(f"{d:.1e}" for d in products))
assert chain(jb.sigmoid, 1.0) < 0.25**10 and chain(jb.relu, 1.0) == 1
assert math.isclose(chain(jb.relu, 0.5), 0.5**10) and chain(jb.relu, 2.0) == 2**10

# %% [markdown]
# **The rectifier has no derivative at 0**, only a set of subgradients, all numbers from 0 to 1. Programs pick one
# of them, and not all the same one: in JAX, three ways to write the rectifier give three values.

# %%
assert jax.grad(lambda s: jnp.maximum(s, 0))(0.0) == 0.5
assert jax.grad(lambda s: jnp.where(s >= 0, s, 0))(0.0) == 1
assert jax.grad(jb.relu)(0.0) == jax.grad(jax.nn.relu)(0.0) == 0

# %% [markdown]
# **GELU** is $s\, \Phi(s)$, where $\Phi(s)$ is the probability that a standard normal variable is at most $s$. By
# default `jax.nn.gelu` computes an approximation, which differs by up to $4.8 \cdot 10^{-4}$ at the points of the
# plot; `jb.gelu` is exact. GELU is not monotone: it takes the value at $-0.5$ a second time, near $-1.049$.

# %%
at_one, low, lower = jb.gelu(jnp.array([1.0, -0.5, -1.0492931]))
assert abs(at_one - 0.8413447) < 1e-6 and abs(low - lower) < 1e-6 and low < 0
error = jnp.max(abs(jb.gelu(grid) - jax.nn.gelu(grid)))
assert 4e-4 < error < 4.8e-4

# %% [markdown]
# **What a unit passes on.** If the input of an activation is standard normal, its output has another mean and
# another variance, and these are the inputs of the next layer. **SELU** (Klambauer et al. 2017) is ELU with two
# constants chosen such that the output has mean 0 and variance 1 again.

# %%
moments = {}
for f in (jb.relu, jb.gelu, jb.elu, jb.selu, jb.tanh):
    moments[f.__name__] = jb.activations.activation_moments(f)
    print(
        "{:5} mean {:7.4f}   variance {:.4f}".format(f.__name__, *moments[f.__name__])
    )
exact = (2 * math.pi) ** -0.5, 0.5 - 0.5 / math.pi  # of the rectifier
assert np.allclose(moments["relu"], exact, atol=1e-5)
assert np.allclose(moments["selu"], (0, 1), atol=1e-5)
assert all(abs(v - 1) > 0.3 for f, (_, v) in moments.items() if f != "selu")

# %% [markdown]
# A common misconception is that half of the rectifiers are active if their inputs have mean 0. What counts is the
# *median*: an exponential variable minus its mean has mean 0, but it is positive with probability $1/e = 0.37$ only.

# %%
shares = []
for seed in range(20):
    sample = np.random.default_rng(seed).exponential(size=100_000) - 1
    assert abs(sample.mean()) < 0.02
    shares.append((sample > 0).mean())
print(f"active: {min(shares):.3f} to {max(shares):.3f} in 20 samples")
assert max(abs(np.array(shares) - 1 / math.e)) < 0.01

# %% [markdown]
# **Exercise 3.** Softplus, $y = \log(1 + e^s)$, is a bijection from $\mathbb R$ to $(0, \infty)$. Write its inverse.


# %% tags=["exercise"]
def softplus_inverse(y):
    return y  # complete this line


# %% tags=["solution"]
def softplus_inverse(y):
    return jnp.log(jnp.expm1(y))  # e^y = 1 + e^s


# %% tags=["check"]
places = jnp.array([-3.0, 0.0, 1.0, 5.0])
back = softplus_inverse(jb.softplus(places))
assert np.allclose(back, places, atol=1e-4), f"expected {places}, got {back}"

# %% [markdown]
# ## 3. Networks with one input: piecewise linear functions
#
# With one input, a hidden unit computes $\mathrm{ReLU}(a x + b)$. It is zero on one side of its **kink** at $x = -b/a$
# and linear on the other side. The net computes a weighted sum of such units,
#
# $$ f(x) = \sum_{i=1}^{n} a^{(2)}_i\, \mathrm{ReLU}\big(a^{(1)}_i x + b^{(1)}_i\big) + b^{(2)} , $$
#
# so it is affine between the kinks. The plots show four units and a weighted sum of them.

# %%
a, b, out = np.array([[1, -1, 0.5, 2], [1, 0.5, -0.5, -5], [1.5, -1, -2, 1]])
weights = {"kernel": a[None], "bias": b}, (), {"kernel": out[:, None], "bias": [0.0]}
params = jax.tree.map(
    lambda p: jnp.asarray(p, jnp.float32),
    weights,
    is_leaf=lambda p: isinstance(p, list),
)
f = to_piecewise_linear(jb.MLP(4, 1), params)
line = np.linspace(-4, 4, 401)
units = {f"unit {i + 1}": np.maximum(a[i] * line + b[i], 0) for i in range(4)}
figure, (left, right) = plt.subplots(1, 2, figsize=(6.5, 2.8), layout="constrained")
plotting.curves(line, units, left)
left.set(title="four units", xlabel="$x$", ylabel="output of the unit", ylim=(-0.2, 9))
left.legend(loc="upper center", ncols=2, fontsize=8)
plotting.curves(line, {"_sum": f(line)}, right)
right.plot(f.breakpoints, f.values, "ko", markersize=4, label="_kinks")
named = right.set(title="weighted sum of the units", xlabel="$x$", ylabel="$f(x)$")
assert np.allclose(f.breakpoints, np.sort(-b / a))
assert np.allclose(f(line), out @ np.array(list(units.values())), atol=1e-4)

# %% [markdown]
# `to_piecewise_linear` propagates each unit through the net and returns the function without sampling: the
# positions of the kinks (the breakpoints), the slopes between them, and one value.
#
# **Theorem.** Every continuous piecewise linear function with breakpoints $t_0 < \dots < t_p$ and slopes
# $\lambda_0, \dots, \lambda_{p+1}$ is computed by a net with one hidden layer of $p + 2$ rectifiers. If neighboring
# slopes differ, no such net has fewer than $p + 1$.
#
# *Proof.* Start at the value at $t_0$. One rectifier makes the first piece, to the left of $t_0$, and one the
# second. At each later breakpoint, add a rectifier whose coefficient is the change of the slope:
#
# $$ f(x) = f(t_0) - \lambda_0\, \mathrm{ReLU}(t_0 - x) + \lambda_1\, \mathrm{ReLU}(x - t_0)
#    + \sum_{\ell = 1}^{p} (\lambda_{\ell+1} - \lambda_\ell)\, \mathrm{ReLU}(x - t_\ell) . $$
#
# Both sides have the value $f(t_0)$ at $t_0$ and the same slope on each piece. Conversely, a unit changes the slope
# at one point only, and there are $p + 1$ points. $\square$
#
# `from_piecewise_linear` builds this net. Here $p = 3$:

# %%
t = np.array([-1.0, 0.5, 2.0, 3.0])
slopes = np.array([0.7, -1.0, 2.0, 0.3, -0.4])
f = PiecewiseLinear(t, slopes, 0.6)  # the last argument is f(t_0)
net, params = from_piecewise_linear(*f)
back = to_piecewise_linear(net, params)
assert params[0]["bias"].size == 3 + 2
assert np.allclose(back.breakpoints, t) and np.allclose(back.slopes, slopes, atol=1e-5)
wide = np.linspace(-6, 8, 1401)
relu = lambda s: np.maximum(0, s)
by_formula = 0.6 - slopes[0] * relu(t[0] - wide) + slopes[1] * relu(wide - t[0])
by_formula += np.diff(slopes)[1:] @ relu(wide - t[1:, None])
assert abs(by_formula - f(wide)).max() < 1e-13
figure, axes = plt.subplots(figsize=(5, 2.8), layout="constrained")
axes = f.plot(axes)

# %% [markdown]
# **Exercise 4.** Choose the five output weights $w$ such that $\sum_j w_j\, \mathrm{ReLU}(x - s_j)$ with $s = (0,
# 1, 2, 3, 6)$ is the function that is 0 for $x \le 0$, rises to 1 at $x = 1$, is constant until 2, rises to 3 at $x =
# 3$, falls to 0 at 6, and is 0 for $x \ge 6$. What is the sum of the weights, and why?

# %% tags=["exercise"]
w = [0, 0, 0, 0, 0]  # complete this line

# %% tags=["solution"]
# The slopes are 0, 1, 0, 2, -1, 0; the weights are their changes. Their sum is the
# last slope, 0.
w = [1, -1, 2, -3, 1]

# %% tags=["check"]
drawn = interpolate([0.0, 1, 2, 3, 6], [0.0, 1, 1, 3, 0])
at = np.linspace(-2, 9, 111)
gap = abs(np.array(w) @ relu(at - np.array([[0], [1], [2], [3], [6]])) - drawn(at))
assert gap.max() < 1e-9, f"the first difference is at x = {at[gap > 1e-9][:1]}"

# %% [markdown]
# ## 4. Universal approximation
#
# A continuous function $g$ on $[0, 1]$ is in general not piecewise linear, but a piecewise linear function can
# approximate it: take $N + 1$ equally spaced points of its graph and interpolate. Section 3 turns the interpolant
# into a net with one hidden layer of $N + 2$ units. `approximate` does both steps.
#
# **The error.** Between two neighboring points, the value of the interpolant is an average of the values of $g$ at
# these two points. The value of $g$ in between differs from both by at most
#
# $$ \omega_g(1/N) = \sup_{|x - y| \le 1/N} |g(x) - g(y)| , $$
#
# the **modulus of continuity**. Hence $\sup |g - f| \le \omega_g(1/N)$. A continuous function on a closed bounded
# interval is *uniformly* continuous (Heine-Cantor theorem), so $\omega_g(1/N) \to 0$. This proves the **universal
# approximation theorem** in one dimension: for every continuous $g$ on $[0, 1]$ and every $\varepsilon > 0$ there
# is a net with one hidden layer whose largest error is at most $\varepsilon$.
#
# The plots show interpolants of one function, in the band of the bound. Errors and the modulus are computed on a grid.

# %%
g = lambda x: np.sin(6 * x) + 0.5 * np.cos(17 * x)
unit = np.linspace(0, 1, 2001)
errors, bounds = {}, {}
figure, axes = plt.subplots(1, 3, figsize=(6.5, 2.9), layout="constrained", sharey=True)
for ax, N in zip(axes, (4, 8, 16), strict=True):
    f = to_piecewise_linear(*approximate(g, N))
    bounds[N] = modulus_of_continuity(g, 1 / N)
    errors[N] = abs(g(unit) - f(unit)).max()
    band = f(unit) - bounds[N], f(unit) + bounds[N]
    plotting.curves(unit, {"bound": band, "g": g(unit), "net": f(unit)}, ax)
    ax.get_legend().remove()
    ax.set(title=f"N = {N}: error {errors[N]:.3f}", xlabel="$x$")
    ax.title.set_fontsize(9)
axes[0].set_ylabel("value")
lines = axes[0].get_legend_handles_labels()
figure.legend(*lines, loc="outside upper center", ncols=3)
assert all(errors[N] <= bounds[N] for N in (4, 8, 16))
assert np.allclose(list(errors.values()), [0.970592, 0.293063, 0.078944], atol=1e-4)

# %% [markdown]
# **How many units?** It depends on $g$. For $\sqrt x$ the error is $\tfrac14 / \sqrt N$ (on the first piece, at $x =
# 1/(4N)$), and $\omega(1/N) = 1/\sqrt N$: four times as many units halve the error. If $g$ has a continuous second
# derivative, the error is at most $\max |g''| / (8 N^2)$, and twice as many units divide this bound by four. For
# $e^x$ and an error of 0.01 this bound asks for 6 pieces, while the modulus of continuity, $e - e^{1 - 1/N} \le 0.01$,
# asks for 272.

# %%
for N in (4, 16, 64):
    f = to_piecewise_linear(*approximate(np.sqrt, N))
    fine = np.linspace(0, 1, 64 * 64 + 1)
    assert abs(abs(np.sqrt(fine) - f(fine)).max() - 0.25 / math.sqrt(N)) < 1e-6
N = pieces_for(np.exp, 0.01, curvature=math.e)
f = to_piecewise_linear(*approximate(np.exp, N))
assert N == 6 and 0.0086 < abs(np.exp(unit) - f(unit)).max() < 0.0088
by_modulus = math.ceil(-1 / math.log(1 - 0.01 / math.e))
omega = lambda N: math.e - math.exp(1 - 1 / N)
assert by_modulus == 272 and omega(272) <= 0.01 < omega(271)

# %% [markdown]
# **Conditions on the activation.** The theorem holds for *every* continuous activation that is not a polynomial,
# with real weights and biases, and for no polynomial (Leshno et al. 1993). The second half is easy: with $\sigma(s) =
# s^2$, a net with one hidden layer computes only polynomials of degree at most 2, whatever its width. For example,
# the best such approximation of $|x|$ on $[-1, 1]$ is $x^2 + \tfrac18$, with error $\tfrac18$: the error takes the
# values $\pm\tfrac18$ at five points with alternating sign, and a polynomial of degree 2 with a smaller maximal
# error would have to cross this one four times. Two rectifiers compute $|x|$ exactly.

# %%
places = np.array([-1, -0.5, 0, 0.5, 1])
signs = np.array([1, -1, 1, -1, 1])
assert np.allclose(places**2 + 1 / 8 - abs(places), signs / 8)
# with u = |x| the error is (u - 1/2)^2 - 1/8, which lies between -1/8 and 1/8
u = np.linspace(0, 1, 101)
assert np.allclose(u**2 + 1 / 8 - u, (u - 0.5) ** 2 - 1 / 8)
assert np.allclose(relu(places) + relu(-places), abs(places))

# %% [markdown]
# **Several inputs.** Let $K \subset \mathbb R^d$ be closed and bounded. The functions
# $\sum_i \gamma_i e^{\langle \nu_i, x \rangle}$ contain the constants, products of them have the same form, and they
# separate points: for $x \ne y$ one of them has different values at $x$ and $y$. By the Stone-Weierstraß theorem they
# approximate every continuous function on $K$ uniformly. Each exponential is a function of *one* number,
# $\langle \nu_i, x \rangle$, so by section 4 it is approximated by rectifiers of this number:
#
# $$ g(x) \approx \sum_i \Big[ \sum_\ell c^{(i)}_\ell\, \mathrm{ReLU}\big(a^{(i)}_\ell \langle \nu_i, x\rangle
#    + b^{(i)}_\ell\big) + d^{(i)} \Big] . $$
#
# `approximate_by_ridges` does this for given points and directions; its bound holds at these points.

# %%
product = lambda x: x[:, 0] * x[:, 1]
square = np.stack(np.meshgrid(*2 * [np.linspace(-1, 1, 17)]), -1).reshape(-1, 2)
directions = [[i, j] for i in (-1, 0, 1) for j in (-1, 0, 1)]
found = approximate_by_ridges(product, directions, square, 0.1)
computed = np.asarray(jax.jit(found.layer.apply)(found.params, square))[:, 0]
error, units = abs(computed - product(square)).max(), found.params[0]["bias"].size
assert error <= found.bound
print(f"{units} units: error {error:.3f}, bound {found.bound:.3f}, at 289 points")

# %% [markdown]
# The condition that functions separate points is necessary. Sums and products of $x^2$ are the even polynomials, which
# have the same value at $-1$ and at $1$; the function $x$ has the values $-1$ and $1$ there. So every even polynomial,
# of every degree, has an error of at least 1 at one of the two points.
#
# **Discontinuous functions.** Let $g$ jump from 0 to 1 at $\tfrac12$. A continuous function $f$ with $\sup|f - g| <
# \tfrac12$ would be less than $\tfrac12$ before the jump and more than $\tfrac12$ by a fixed amount after it, which
# contradicts its continuity. So the largest error is at least $\tfrac12$. The *average* error can be as small as
# one likes. For measurable functions, the theorem holds in this sense: in $L^1$, or outside of a set of small
# measure.

# %%
jump = lambda x: (np.asarray(x) > 0.5) * 1.0
fine = np.linspace(0, 1, 100_001)
for width in (0.1, 0.01, 0.001):
    ramp = interpolate([0.5 - width / 2, 0.5 + width / 2], [0.0, 1.0])
    gap = abs(ramp(fine) - jump(fine))
    print(f"ramp of width {width:5}: error {gap.max():.3f}, average {gap.mean():.6f}")
    assert gap.max() > 0.4999 and abs(gap.mean() - width / 4) < 1e-4

# %% [markdown]
# **What the theorem does not say.** Weights *exist*; that training finds them, that few units suffice, or that the
# net is right between the data, does not follow. $n + 1$ units can fit any $n$ labels at different inputs, random
# ones too:

# %%
for seed in range(20):
    noise = np.random.default_rng(seed).normal(size=12)
    f = interpolate(np.arange(12.0), noise)
    net, params = from_piecewise_linear(*f)
    assert params[0]["bias"].size == 12 + 1
    computed = to_piecewise_linear(net, params)(np.arange(12.0))
    assert np.allclose(computed, noise, atol=1e-4)

# %% [markdown]
# **Exercise 5.** For $g(x) = x^2$ on $[0, 1]$, the error of the interpolant with $N$ pieces is exactly $1/(4N^2)$.
# What is the smallest $N$ with an error of at most $\varepsilon$?


# %% tags=["exercise"]
def pieces(epsilon):
    return 1  # complete this line


# %% tags=["solution"]
def pieces(epsilon):
    # On a piece of width h around m the error is (h/2)^2 - (x - m)^2, at most h^2 / 4.
    return math.ceil(1 / (2 * math.sqrt(epsilon)))


# %% tags=["check"]
for epsilon in (0.03, 0.001):
    N = pieces(epsilon)
    interpolants = [
        to_piecewise_linear(*approximate(np.square, n)) for n in (N, N - 1 or 1)
    ]
    worst = [abs(unit**2 - f(unit)).max() for f in interpolants]
    assert worst[0] <= epsilon, f"{N} pieces have the error {worst[0]:.4f} > {epsilon}"
    assert worst[1] > epsilon * 0.99, f"fewer than {N} pieces suffice for {epsilon}"

# %% [markdown]
# ## 5. Homogeneity
#
# For $\alpha > 0$, $\mathrm{ReLU}(\alpha s) = \alpha\, \mathrm{ReLU}(s)$. Three consequences for nets of rectifiers:
#
# **(a) Many params give the same function.** Multiply the kernel and the bias of a hidden layer by $\alpha > 0$ and
# divide the kernel of the next layer by $\alpha$: the function does not change. So the size of a single layer's
# weights means nothing.
#
# **(b) Euler's identity.** Without biases, $f(\alpha x) = \alpha f(x)$. The derivative with respect to $\alpha$ at
# 1 is $\langle x, \nabla_x f \rangle = f$. In the same way, $\langle W_l, \nabla_{W_l} f \rangle = f$ for every
# layer $l$, wherever the derivatives exist. (`euler_terms` also adds the terms of the biases; they are zero here.)

# %%
net = jb.MLP(8, 8, 1)
for seed in range(5):
    params = net.init(jax.random.key(seed), x)
    terms = euler_terms(net, params, x)
    assert np.allclose(terms.inputs, terms.output, atol=1e-5)
    assert all(np.allclose(kernel, terms.output, atol=1e-5) for kernel in terms.kernels)

# %% [markdown]
# **(c) Gradient flow conserves** $\lVert W_l \rVert^2 + \lVert b_l \rVert^2 - \lVert W_{l+1} \rVert^2$ for
# neighboring layers (Du, Hu and Lee 2018): by (a), the loss does not change if layer $l$ grows and layer $l + 1$
# shrinks, so $\langle W_l, \nabla_{W_l} \rangle + \langle b_l, \nabla_{b_l} \rangle = \langle W_{l+1},
# \nabla_{W_{l+1}} \rangle$, and both sides are rates of change of the norms. Gradient *descent* with step size
# $\eta$ follows the flow with an error. The drift of the quantity in a fixed time is
# proportional to $\eta$, in the limit of small $\eta$; where a unit changes its sign on the way, the ratio can
# differ.


# %%
@functools.partial(jax.jit, static_argnums=1)
@functools.partial(jax.vmap, in_axes=(0, None))
def drift(key, step_size):
    """The drift in time 1, for one loss and each of several initializations."""
    params = jax.tree.map(lambda p: p.astype(float), net.init(key, x))
    loss = lambda params: jnp.mean((net.apply(params, x) - 1) ** 2)

    def step(params, _):
        gradient = jax.grad(loss)(params)
        return jax.tree.map(lambda p, g: p - step_size * g, params, gradient), None

    end = jax.lax.scan(step, params, length=round(1 / step_size))[0]
    return abs(norm_differences(end) - norm_differences(params)).max()


keys = jax.random.split(jax.random.key(0), 20)
with jax.enable_x64(True):  # the drift is so small that 32-bit floats would hide it
    coarse, fine = (np.asarray(drift(keys, eta)) for eta in (1e-3, 1e-4))
ratios = coarse / fine
print(f"drift with steps of 0.001: {coarse.min():.1e} to {coarse.max():.1e}")
print(f"with steps of 0.0001 it is smaller by a factor of {ratios.min():.1f}", end=" ")
print(f"to {ratios.max():.1f} in 20 initializations")
assert (abs(ratios - 10) < 1).all()

# %% [markdown]
# **Exercise 6.** Write the change of (a) for a net with one hidden layer: return params of `jb.MLP(8, 1)` that
# compute the same function, with a hidden layer that is four times as large. Does it work for tanh in place of the
# rectifier?


# %% tags=["exercise"]
def grow(params):
    hidden, between, last = params
    return hidden, between, last  # complete: factors of hidden and of last


# %% tags=["solution"]
def grow(params):
    hidden, between, last = params
    larger = {name: 4 * value for name, value in hidden.items()}
    return larger, between, {**last, "kernel": last["kernel"] / 4}
    # not for tanh: tanh(4 s) is not 4 tanh(s)


# %% tags=["check"]
small = jb.MLP(8, 1)
params = small.init(jax.random.key(0), x)
params = ({**params[0], "bias": jnp.ones(8)}, *params[1:])
grown = grow(params)
assert np.allclose(grown[0]["bias"], 4), "the hidden bias must be four times as large"
same = np.allclose(small.apply(grown, x), small.apply(params, x), atol=1e-5)
assert same, "the function changed; the next kernel must make up for the factor"

# %% [markdown]
# ## Summary
#
# | network | functions it computes |
# |---|---|
# | affine layers only | affine maps; the rank is at most the smallest width |
# | one hidden layer of $n$ rectifiers, one input | piecewise linear: all with $n - 1$ kinks, none with $n + 1$ |
# | one hidden layer, any number of units | every continuous function on a closed bounded set, approximately |
#
# Notebook 1b: when do more layers need fewer units?
