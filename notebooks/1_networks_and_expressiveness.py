# %% [markdown]
# # Networks: which functions can they compute?
#
# A neural network is a function with many knobs. Before anything is learned one can ask: **which functions can be
# reached at all by turning them, and what does it take, many units side by side or many layers in a row?**
#
# The answers here are exact. A network of rectifiers with one input computes a function made of straight pieces, and
# every such function can be had. From there it is one step to all continuous functions, and a second one to what depth
# buys. In this notebook nothing is trained; training begins in notebook 3.
#
# You need to know calculus, matrices and a little Python. What is claimed in the text is checked by an `assert` in the
# cell below it. At the end there is homework, with solutions.
#
# The lectures behind it: Diehl, *lecture notes* (2023), section 1; Huszár, *DeepNN lecture 3*; Krapac & Šegvić, *Deep
# feed-forward models*; Cevher, *Mathematics of Data*. Where a printed formula slips, as happens in every set of lecture
# notes, you find the printed form, a number that breaks it, and the corrected form.

# %%
import math

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax.nn import initializers

import jaxblocks as jb
from jaxblocks import plotting
from jaxblocks.theory.approximation import (
    approximate,
    approximate_by_ridges,
    interpolate,
    modulus_of_continuity,
    pieces_for,
)
from jaxblocks.theory.boolean import bit_rows, minterm_network, parity_chain, parity_cosine, parity_shallow
from jaxblocks.theory.depth import (
    pieces_bound,
    sawtooth,
    sawtooth_network,
    separation,
    separation_bound,
    triangle_network,
)
from jaxblocks.theory.explicit_weights import one_hidden_layer
from jaxblocks.theory.homogeneity import euler_terms, norm_differences, rescale, unit_kernels
from jaxblocks.theory.linear_regions import (
    arrangement_regions,
    folding_network,
    region_lower_bound,
    region_upper_bound,
    regions,
)
from jaxblocks.theory.maxima import max_min_string, max_zero_x_y
from jaxblocks.theory.piecewise_linear import (
    PiecewiseLinear,
    count_kinks,
    from_piecewise_linear,
    to_piecewise_linear,
    two_level_model,
)

# %% [markdown]
# ## 1. What a network is
#
# ### One layer
#
# A **layer** multiplies its input by a matrix and adds a vector. On paper that is $y = A x + b$ with columns. In code,
# data come as the *rows* of an array, so it reads `y = x @ kernel + bias`, where the kernel is $A^\top$.
#
# In jaxblocks a layer is a pair of functions. `init` looks at the shape of an input and draws params, `apply` computes.
# Params are plain dictionaries of arrays: nothing is hidden inside of the layer. Random numbers in JAX come from an
# explicit *key*; the same key gives the same numbers.

# %%
x = jnp.array([[1.0, 2.0], [0.0, -1.0], [-3.0, 0.5]])  # three examples with two features each
layer = jb.Dense(5)
params = layer.init(jax.random.key(0), x)
y = layer.apply(params, x)
assert params["kernel"].shape == (2, 5) and params["bias"].shape == (5,)
assert jnp.allclose(y, x @ params["kernel"] + params["bias"])
y.shape

# %% [markdown]
# ### Two layers without anything between them are one
#
# Put two of them in a row, $A_2 (A_1 x + b_1) + b_2 = A_2 A_1\, x + (A_2 b_1 + b_2)$, and you have one such layer
# again. `fuse_affine` computes it.

# %%
two = jb.Serial(jb.Dense(1), jb.Dense(2))  # 2 -> 1 -> 2: through a bottleneck
first = {"kernel": jnp.array([[1.0], [2.0]]), "bias": jnp.ones(1)}
second = {"kernel": jnp.ones((1, 2)), "bias": jnp.ones(2)}
fused = jb.layers.fuse_affine(first, second)
assert jnp.allclose(two.apply((first, second), x), jb.affine(x, **fused))
fused

# %% [markdown]
# > **The lecture notes print** that such a net is "a factored *linear* layer", and call the maps $\lambda x + c$ below
# > "linear" too.
#
# **A number that breaks it:** a linear map takes 0 to 0, and the net above takes it to $(2, 2)$.
# **Corrected:** it is *affine*; linear only where the biases are zero. Nor is it any affine map, for its matrix has at
# most the rank of the narrowest layer on the way: here 1, where the identity of the plane would need 2.

# %%
assert (two.apply((first, second), jnp.zeros(2)) == 2).all()
assert jnp.linalg.matrix_rank(fused["kernel"]) == 1

# %% [markdown]
# ### So a nonlinear function goes between
#
# It is called the **activation**, $\sigma$, and is applied to each number on its own. The usual one is the *rectifier*,
# $\mathrm{ReLU}(s) = \max(0, s)$. (One lecture calls it the hinge function; the hinge *loss* is another thing.)
#
# Here is the example of the lecture notes: two inputs, five hidden units, one output, or 2-5-1 for short.
#
# $$ f(x) = A_2\, \mathrm{ReLU}(A_1 x + b_1) + b_2 $$

# %%
net = jb.Serial(jb.Dense(5), jb.relu, jb.Dense(1))
params = net.init(jax.random.key(1), x)
assert jb.count_params(params) == (2 * 5 + 5) + (5 * 1 + 1) == 21
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
axes = plotting.network(params, axes, names=["2 inputs", "5 rectifiers", "1 output"])

# %% [markdown]
# Each edge is a weight. `MLP` (multilayer perceptron) is a short way to write such nets. `summary` lists what they are
# made of.

# %%
mlp = jb.MLP(5, 1)
assert jnp.allclose(mlp.apply(params, x), net.apply(params, x))
jb.summary(mlp, x)

# %% [markdown]
# Three words about words, where the lectures trip one another:
#
# > **The lecture notes print** that $n$ layers have *depth* $n$, and three sentences later that it is $n - 1$.
#
# The net above has 2 layers and 1 hidden layer, and "depth" may mean either. So we say *layers* or *hidden layers*.
#
# > **One lecture prints** a scheme that applies $\sigma$ after every layer, and an example without $\sigma$ after the
# > last.
#
# It matters: a net that ends with a rectifier never outputs a negative number. `MLP` has no activation there unless you
# say `last_activation=`.
#
# > **One lecture prints** for the whole net
# > $f = o(f_L(f_{L-1}(\cdots(f_1(x, \Theta_1)),\cdots), \Theta_{L-1}), \Theta_L))$.
#
# Five brackets are opened and six closed. It is
# $o(f_L(f_{L-1}(\cdots f_1(x, \Theta_1) \cdots, \Theta_{L-1}), \Theta_L))$.

# %%
ends_with_relu = jb.MLP(5, 1, last_activation=jb.relu)
assert net.apply(params, x).min() < 0 == ends_with_relu.apply((*params, ()), x).min()

printed = "o(f_L(f_{L-1}(...(f_1(x, Θ_1)),...), Θ_{L-1}), Θ_L))"
corrected = "o(f_L(f_{L-1}(... f_1(x, Θ_1) ..., Θ_{L-1}), Θ_L))"
assert (printed.count("("), printed.count(")")) == (5, 6)
assert corrected.count("(") == corrected.count(")")

# %% [markdown]
# What does such a function look like? Six random ones, with biases zero. They are made of flat pieces that meet in
# creases, and the creases run through the origin.

# %%
figure = plt.figure(figsize=(10, 5.5), layout="constrained")
for i in range(6):
    random_params = net.init(jax.random.key(i), x)
    axes = figure.add_subplot(2, 3, i + 1, projection="3d")
    plotting.surface(lambda x, p=random_params: net.apply(p, x), ((-2, 2), (-2, 2)), axes, samples=31)
    assert jnp.allclose(net.apply(random_params, 2 * x), 2 * net.apply(random_params, x), atol=1e-5)

# %% [markdown]
# Twice the input gives twice the output: $\mathrm{ReLU}(\alpha x) = \alpha\, \mathrm{ReLU}(x)$ for $\alpha > 0$, and
# without biases the net inherits it. The lecture notes ask, "how does this help?" That is homework 6.
#
# ## 2. Activations
#
# The rectifier is not the only choice. Each curve with its derivative, dashed. (Three words of JAX: `jax.grad(f)` is
# the derivative of a function of one number, `jax.vmap` applies a function to each entry of an array, `jax.jit`
# compiles it.)

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
grid = jnp.linspace(-4, 4, 400)  # 0 is not among them: there the rectifier has no derivative
figure, axes = plt.subplots(2, 4, figsize=(10, 4.5), layout="constrained", sharex=True)
for ax, (name, f) in zip(axes.flat, shown.items(), strict=True):
    plotting.curves(grid, {"_f": f, "_derivative": jax.jit(jax.vmap(jax.grad(f)))}, ax)
    ax.set_title(name)

# %% [markdown]
# **The sigmoid** $\sigma(x) = 1/(1 + e^{-x})$ and **tanh** are one curve, stretched and shifted:
# $\tanh(x) = 2 \sigma(2x) - 1$. Both *saturate*: far from 0 they are flat. A derivative of at most $1/4$ at each
# sigmoid makes $(1/4)^{10} \approx 10^{-6}$ over ten layers: gradients vanish. An active rectifier has derivative 1,
# and so has a chain of any number of them.

# %%
assert jnp.allclose(jb.tanh(grid), 2 * jb.sigmoid(2 * grid) - 1, atol=1e-6)
assert jax.grad(jb.sigmoid)(0.0) == 0.25 and 0.25**10 < 1e-6
assert jax.grad(jb.sigmoid)(10.0) < 5e-5


def ten_rectifiers(x):
    for _ in range(10):
        x = jb.relu(x)
    return x


assert jax.grad(ten_rectifiers)(0.7) == 1

# %% [markdown]
# **GELU** is $x\, \Phi(x)$, with $\Phi$ the probability that a standard normal variable is at most $x$. Beware:
# `jax.nn.gelu` computes by default an approximation of it, which differs by up to $5 \cdot 10^{-4}$; `jb.gelu` is
# exact. It is not injective: it falls before it rises, and takes one value at two places.

# %%
one_high, low, lower = jb.gelu(jnp.array([1.0, -0.5, -1.0492931]))
assert abs(one_high - 0.8413447) < 1e-6 and abs(low - lower) < 1e-6
assert 4e-4 < abs(jb.gelu(grid) - jax.nn.gelu(grid)).max() < 5e-4

# %% [markdown]
# ### Slips about activations
#
# > **The lecture notes print:** implementations use the left (0) or the right (1) subgradient of the ReLU at 0.
#
# **A number that breaks it:** JAX gives three different answers for three ways to write it. One of them is 0.5.
# **Corrected:** any number from 0 to 1 is a subgradient; say which you want. `jb.relu` takes 0 unless told otherwise.

# %%
assert jax.grad(lambda x: jnp.maximum(x, 0))(0.0) == 0.5
assert jax.grad(lambda x: jnp.where(x >= 0, x, 0))(0.0) == 1
assert jax.grad(jb.relu)(0.0) == 0 and jax.grad(lambda x: jb.relu(x, at_zero=1.0))(0.0) == 1

# %% [markdown]
# > **The lecture notes print** that leaky ReLU and softplus are "bijective generalizations" of the ReLU.
#
# **A number that breaks it:** which $x$ has $\mathrm{softplus}(x) = \log(1 + e^x) = -1$? None: softplus is positive.
# **Corrected:** softplus is a bijection from $\mathbb R$ to $(0, \infty)$; leaky ReLU is one of $\mathbb R$ if its
# slope is positive.

# %%
assert (jb.softplus(grid) > 0).all()
assert jnp.allclose(jb.leaky_relu(jb.activations.leaky_relu_inverse(grid)), grid)

# %% [markdown]
# > **The lecture notes print** $\mathrm{ELU}(x; \alpha) = \lambda \cdot \{\alpha (e^x - 1)$ for $x < 0$, $x$ for
# > $x \ge 0\}$, and under ELU and GELU: "does not saturate; zero mean and unit variance".
#
# **Numbers that break it.** $\lambda$ is no argument of the left side. ELU tends to $-\alpha$ and GELU to 0 on the
# left: both saturate there. And here are mean and variance of the output where the input is standard normal.
# **Corrected:** ELU has $\lambda = 1$. With $\lambda \approx 1.0507$ and $\alpha \approx 1.6733$ it is called **SELU**,
# and that is the one with mean 0 and variance 1.

# %%
for f in (jb.relu, jb.gelu, jb.elu, jb.selu, jb.tanh):
    mean, variance = jb.activations.activation_moments(f)
    print(f"{f.__name__:5} mean {mean:8.4f}   variance {variance:.4f}")
moments = np.array([jb.activations.activation_moments(f) for f in (jb.relu, jb.elu, jb.selu)])
assert np.allclose(moments, [[0.398942, 0.340845], [0.160521, 0.619179], [0, 1]], atol=1e-5)
far_left = jnp.array(-20.0)
assert jb.elu(far_left) == -1 and abs(jb.gelu(far_left)) < 1e-6

# %% [markdown]
# > **The lecture notes print:** tanh has zero-mean outputs for zero-mean inputs; after a normalization to zero mean,
# > half of the rectifiers are active.
#
# **Numbers that break it.** Let $X = 2$ with probability $1/3$ and $-1$ with probability $2/3$: its mean is 0, and
# $E \tanh X = -0.186$. Let $X$ be exponentially distributed less 1: mean 0, variance 1, and it is positive with
# probability $1/e = 0.368$. **Corrected:** the first is true for *symmetric* inputs, the second for inputs whose
# *median* is 0.

# %%
values, weights = jnp.array([2.0, -1.0]), jnp.array([1 / 3, 2 / 3])
assert abs(weights @ values) < 1e-6 and abs(weights @ jb.tanh(values) + 0.186387) < 1e-6
exponential = np.random.default_rng(0).exponential(size=100_000) - 1
assert abs(exponential.mean()) < 0.02 and abs((exponential > 0).mean() - 1 / math.e) < 0.01

# %% [markdown]
# ## 3. One input: exactly the piecewise linear functions
#
# With one input, a hidden unit is $\mathrm{ReLU}(a x + b)$: zero on one side of its **kink** at $x = -b/a$, a straight
# line on the other. The net adds up a few of them,
#
# $$ f(x) = \sum_{i=1}^{n} a^{(2)}_i\, \mathrm{ReLU}\big(a^{(1)}_i x + b^{(1)}_i\big) + b^{(2)} , $$
#
# so it is straight between the kinks. Here are eight units and a weighted sum of them.

# %%
rng = np.random.default_rng(56)
a, out = rng.normal(size=(2, 8))
b = -a * np.linspace(-3, 3, 8)  # so that the kinks lie between -3 and 3
net, params = one_hidden_layer(a[None], b, out, 0.0)
f = to_piecewise_linear(net, params)
line = np.linspace(-4, 4, 401)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.3), layout="constrained")
plotting.curves(line, {f"_unit {i}": np.maximum(a[i] * line + b[i], 0) for i in range(8)}, left)
plotting.curves(line, {"_sum": f(line)}, right)
left.set(title="eight units", ylim=(-0.2, 4))
right.set_title("a weighted sum of them")
dots = right.plot(f.breakpoints, f.values, "ko", markersize=4)
assert np.allclose(f.breakpoints, np.sort(-b / a)) and count_kinks(net, params) == 8

# %% [markdown]
# `to_piecewise_linear` follows each unit through the net and reads off the function *exactly*, with no grid: places of
# the kinks (the breakpoints), slopes between them, one value. `count_kinks` counts.
#
# Now the other way round. Take **any** continuous function made of $p + 2$ straight pieces, with breakpoints
# $t_0 < \dots < t_p$ and slopes $\lambda_0, \dots, \lambda_{p+1}$. Is there a net that computes it? There is (Lemma 1.3
# of the lecture notes). Walk from left to right: begin with the first line, and at each breakpoint add a rectifier that
# changes the slope by what is missing:
#
# $$ f(x) = \underbrace{\lambda_0 x + c_0}_{\text{the first line}}
#    + \sum_{\ell = 1}^{p+1} (\lambda_\ell - \lambda_{\ell - 1})\, \mathrm{ReLU}(x - t_{\ell - 1}) . $$
#
# The first line itself takes two rectifiers, $\lambda_0 x = \mathrm{ReLU}(\lambda_0 x) - \mathrm{ReLU}(-\lambda_0 x)$:
# $p + 3$ units in all. `from_piecewise_linear` builds the net.

# %%
t = np.array([-1.0, 0.5, 2.0, 3.0])
slopes = np.array([0.7, -1.0, 2.0, 0.3, -0.4])
c0 = 1.3  # the first line is 0.7 x + 1.3
f = PiecewiseLinear(t, slopes, c0 + slopes[0] * t[0])  # the last argument is the value at the first breakpoint
with jax.enable_x64(True):  # JAX computes with 32 bits unless asked for 64
    net, params = from_piecewise_linear(*f, form="lecture")
    wide = np.linspace(-6, 8, 1401)
    error = abs(np.asarray(net.apply(params, wide[:, None]))[:, 0] - f(wide)).max()
assert params[0]["bias"].size == 3 + 3 and error < 1e-13
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
axes = f.plot(axes)

# %% [markdown]
# ### Slips in the proof
#
# In this proof indices are easily off by one. Let us put the printed sums to the test, on the function above.
#
# > **The lecture notes print** first, with $u \wedge v$ for the smaller and $u \vee v$ for the larger of two numbers,
# >
# > $$ f(x) = \lambda_0 (x \wedge t_0) + c_0 + \sum_{\ell=1}^{p-1} \lambda_\ell
# >    \big((0 \vee (x - t_{\ell-1})) \wedge (t_{\ell+1} - t_{\ell-1})\big) + \lambda_p (0 \vee (x - t_p)) . $$
# >
# > Then $\sum_{\ell=1}^{p+1} (\lambda_\ell - \lambda_{\ell-1})\, \mathrm{ReLU}(x - t_\ell)$.
#
# **Numbers that break it:** the first is wrong by 3.7 somewhere on $[-6, 8]$. The second needs a $t_{p+1}$, which does
# not exist; without that term it is wrong by 3.25. **Corrected:** piece $\ell$ lives on $[t_{\ell-1}, t_\ell]$, so the
# slope jumps from $\lambda_{\ell-1}$ to $\lambda_\ell$ at $t_{\ell-1}$; there are $p$ inner pieces, and the tail has
# the slope $\lambda_{p+1}$:
#
# $$ f(x) = \lambda_0 (x \wedge t_0) + c_0 + \sum_{\ell=1}^{p} \lambda_\ell
#    \big((0 \vee (x - t_{\ell-1})) \wedge (t_\ell - t_{\ell-1})\big) + \lambda_{p+1} (0 \vee (x - t_p)) , $$
#
# and the sum of rectifiers is the one of the last cell.

# %%
p, u = 3, wide
over = lambda place: np.maximum(0, u - place)
printed = slopes[0] * np.minimum(u, t[0]) + c0 + slopes[p] * over(t[p])
printed += sum(slopes[i] * np.minimum(over(t[i - 1]), t[i + 1] - t[i - 1]) for i in range(1, p))
corrected = slopes[0] * np.minimum(u, t[0]) + c0 + slopes[p + 1] * over(t[p])
corrected += sum(slopes[i] * np.minimum(over(t[i - 1]), t[i] - t[i - 1]) for i in range(1, p + 1))
worst = abs(printed - f(u)).max(), abs(corrected - f(u)).max()
print(f"sum of clipped pieces: printed off by {worst[0]:.4f}, corrected {worst[1]:.0e}")
assert abs(worst[0] - 3.7) < 1e-9 and worst[1] < 1e-13

first_line = slopes[0] * u + c0
printed = first_line + sum((slopes[i] - slopes[i - 1]) * over(t[i]) for i in range(1, p + 1))
corrected = first_line + sum((slopes[i] - slopes[i - 1]) * over(t[i - 1]) for i in range(1, p + 2))
worst = abs(printed - f(u)).max(), abs(corrected - f(u)).max()
print(f"sum of rectifiers: printed off by {worst[0]:.4f}, corrected {worst[1]:.0e}")
assert abs(worst[0] - 3.25) < 1e-9 and worst[1] < 1e-13

# %% [markdown]
# (Two smaller ones. The lemma speaks of *linear* maps $L_0, \dots, L_{p+1}$ where affine ones are meant, and says
# "there exist $n, a^{(1)}, a^{(2)}, b^{(1)}_i, b^{(2)}$", where the first two need an index $i$ as well: one for each
# unit.)
#
# Two rectifiers for the first line are one too many. Stand at $t_0$ and look both ways: one rectifier for the left,
# one for the right. That makes $p + 2$ units. Fewer than $p + 1$ never suffice, since each unit has one kink.

# %%
net, params = from_piecewise_linear(*f)
back = to_piecewise_linear(net, params)
assert params[0]["bias"].size == 3 + 2
assert np.allclose(back.breakpoints, t) and np.allclose(back.slopes, slopes, atol=1e-5)
params[0]

# %% [markdown]
# ## 4. All continuous functions, nearly
#
# A continuous function $g$ on $[0, 1]$ need not be made of straight pieces, but it can be approximated by such: take
# $N + 1$ equally spaced points of its graph and join them. Section 3 turns the result into a net with one hidden
# layer. `approximate` does both.
#
# How far off can it be? Between two neighboring points the line lies between the values of $g$ at both ends: it is an
# average of them. And $g$ at any place in between differs from these by at most
#
# $$ \omega_g(1/N) = \sup_{|x - y| \le 1/N} |g(x) - g(y)| , $$
#
# the **modulus of continuity**. So $\sup |g - f| \le \omega_g(1/N)$. A continuous function on a closed interval is
# *uniformly* continuous (theorem of Heine and Cantor; "Heinor-Cantor" in an early print): $\omega_g(1/N) \to 0$. Hence
# the **universal approximation theorem**: nets with one hidden layer come as close as you like to every continuous
# function, in one dimension so far.

# %%
g = lambda x: np.sin(6 * x) + 0.5 * np.cos(17 * x)
unit = np.linspace(0, 1, 2001)
errors = {}
figure, axes = plt.subplots(1, 3, figsize=(10, 3), layout="constrained", sharey=True)
for ax, N in zip(axes, (4, 8, 16), strict=True):
    f, bound = to_piecewise_linear(*approximate(g, N)), modulus_of_continuity(g, 1 / N)
    errors[N] = abs(g(unit) - f(unit)).max()
    plotting.curves(unit, {"allowed": (f(unit) - bound, f(unit) + bound), "g": g(unit), "net": f(unit)}, ax)
    ax.set_title(f"N = {N}: error {errors[N]:.3f}, bound {bound:.2f}")
    assert errors[N] <= bound
assert np.allclose(list(errors.values()), [0.970592, 0.293063, 0.078944], atol=1e-4)

# %% [markdown]
# > **The lecture notes print** a step of $\delta = T/N$, points with $\ell \in \{0, \dots, N\}$, and end at the bound
# > $2 \varepsilon$.
#
# **What is off:** there is no $T$ (it is 1 on $[0, 1]$), and for $\ell = 0$ there is no interval
# $[t_{\ell-1}, t_\ell]$. **Corrected:** choose $N$ with $1/N < \delta$, and take $\ell \in \{1, \dots, N\}$. The
# average argument above gives $\varepsilon$ instead of $2 \varepsilon$. For $\sqrt x$, whose steepest place is at 0:
# error $\tfrac14 / \sqrt N$, while $\omega(1/N) = 1/\sqrt N$.

# %%
for N in (4, 16, 64):
    f, dense = to_piecewise_linear(*approximate(np.sqrt, N)), np.linspace(0, 1, 64 * 64 + 1)
    assert abs(abs(np.sqrt(dense) - f(dense)).max() - 0.25 / math.sqrt(N)) < 1e-6
    assert abs(modulus_of_continuity(np.sqrt, 1 / N) - 1 / math.sqrt(N)) < 1e-3

# %% [markdown]
# For a smooth function far fewer pieces do, since the error is at most $\max |g''| / (8 N^2)$: for $e^x$ on $[0, 1]$
# and an error of 0.01 it takes 6 pieces, where the modulus asks for 278.

# %%
N = pieces_for(np.exp, 0.01, curvature=math.e)
f = to_piecewise_linear(*approximate(np.exp, N))
assert N == 6 and pieces_for(np.exp, 0.01) == 278
assert 0.0086 < abs(np.exp(unit) - f(unit)).max() < 0.0088

# %% [markdown]
# ### Which activations will do?
#
# > **The lecture notes print** as the title of this theorem: "arbitrary width; ReLU activation".
#
# **Corrected:** the statement below the title is for *every* continuous activation that is not a polynomial; only the
# proof takes ReLU. The one exception is needed. With $\sigma(s) = s^2$ a net with one hidden layer computes polynomials
# of degree 2, however wide. **A number:** the best of these for $|x|$ on $[-1, 1]$ is $x^2 + \tfrac18$, and it is off
# by $\tfrac18$, at five places in turn above and below, so nothing can be gained at one without losing at another. Two
# rectifiers compute $|x|$ exactly.

# %%
places = np.array([-1, -0.5, 0, 0.5, 1])
assert np.allclose(places**2 + 1 / 8 - abs(places), [1 / 8, -1 / 8, 1 / 8, -1 / 8, 1 / 8])
symmetric = jnp.linspace(-1, 1, 201)
assert abs(symmetric**2 + 1 / 8 - abs(symmetric)).max() <= 1 / 8 + 1e-6
assert jnp.allclose(jb.relu(symmetric) + jb.relu(-symmetric), abs(symmetric))

# %% [markdown]
# ### Several inputs
#
# The idea of the proof is to reduce everything to one variable. Sums of exponentials
# $\sum_i \gamma_i e^{\langle \nu_i, x \rangle}$ approximate every continuous function on a closed bounded set (theorem
# of Stone and Weierstraß: products of exponentials are exponentials, and they tell points apart). Each
# $e^{\langle \nu_i, x\rangle}$ is a function of *one* number, $\langle \nu_i, x \rangle$, and is replaced by its
# piecewise linear approximation.
#
# > **The lecture notes print** the result with $\mathrm{ReLU}(a t + b)$ in it, for a function of $x$, and ask that the
# > exponentials separate "all $x, y$".
#
# **What is off:** no $t$ was introduced, and $x = y$ cannot be separated. **Corrected:** $t$ is
# $\langle \nu_i, x \rangle$, the constant $d^{(i)}$ is added once for each $i$, and points are separated if $x \ne y$:
#
# $$ g(x) \approx \sum_i \Big[ \sum_\ell c^{(i)}_\ell\, \mathrm{ReLU}\big(a^{(i)}_\ell \langle \nu_i, x\rangle
#    + b^{(i)}_\ell\big) + d^{(i)} \Big] . $$

# %%
product = lambda x: x[:, 0] * x[:, 1]
square = np.stack(np.meshgrid(*2 * [np.linspace(-1, 1, 17)]), -1).reshape(-1, 2)
directions = [[i, j] for i in (-1, 0, 1) for j in (-1, 0, 1)]
found = approximate_by_ridges(product, directions, square, 0.1)
error = abs(found.layer.apply(found.params, jnp.asarray(square, jnp.float32))[:, 0] - product(square)).max()
assert error <= found.bound
print(f"{found.params[0]['bias'].size} units: error {error:.3f}, bound {found.bound:.3f}")

# %% [markdown]
# Must the functions tell points apart? Sums and products of $x^2$ are the even polynomials, which have one value at
# $-1$ and at $1$. The function $x$ has $-1$ and $1$ there, so at one of the two places an even polynomial is off by 1
# at least, whatever its degree.
#
# And how can something as smooth as a polynomial turn sharply at all? Kuhn's elementary proof of the theorem of
# Weierstraß (1964) needs one family of them, $(1 - x^n)^{2^n}$: the larger $n$, the closer to a step at $\tfrac12$.

# %%
places = np.linspace(-1, 1, 201)
for degree in (2, 10, 20):
    even = np.polynomial.Polynomial.fit(places**2, places, degree // 2)(places**2)
    assert abs(even - places).max() > 1 - 1e-9
kuhn = lambda n: lambda x: jnp.exp(2.0**n * jnp.log1p(-(x**n)))  # this way it is not lost in rounding
assert np.allclose([kuhn(10)(0.4), kuhn(10)(0.6), kuhn(20)(0.4)], [0.898184, 0.002008, 0.988537], atol=1e-5)
assert kuhn(20)(0.6) < 1e-16
figure, axes = plt.subplots(figsize=(5, 2.6), layout="constrained")
axes = plotting.curves(np.linspace(0, 1, 301), {f"n = {n}": kuhn(n) for n in (3, 10, 40)}, axes)

# %% [markdown]
# ### Functions with jumps
#
# > **The lecture notes print** that a net approximates every Borel measurable function "with arbitrarily small error".
#
# **A number that breaks it:** a function that jumps from 0 to 1 is measurable. A continuous function must pass
# through $\tfrac12$ near the jump, and there it is off by $\tfrac12$. **Corrected:** for measurable functions the error
# is small *on average* (in $L^1$), or outside of a small set; uniformly small it is for continuous functions on closed
# bounded sets.

# %%
jump = lambda x: (np.asarray(x) > 0.5) * 1.0
for width in (0.1, 0.01, 0.001):
    ramp = interpolate([0.5 - width / 2, 0.5 + width / 2], [0.0, 1.0])  # two breakpoints
    fine = np.linspace(0, 1, 100_001)
    gap = abs(ramp(fine) - jump(fine))
    print(f"ramp of width {width:5}: largest error {gap.max():.3f}, average error {gap.mean():.6f}")
    assert gap.max() > 0.4999 and gap.mean() < width / 2

# %% [markdown]
# The theorem says that weights *exist*. It does not say that training finds them, nor that few units are enough, nor
# what the net does away from the data. A net that goes through any $n$ labels exactly has only $n + 1$ units:

# %%
noise = np.random.default_rng(0).normal(size=12)
f = interpolate(np.arange(12.0), noise)
net, params = from_piecewise_linear(*f)
assert params[0]["bias"].size == 12 + 1
assert np.allclose(net.apply(params, jnp.arange(12.0)[:, None])[:, 0], noise, atol=1e-5)

# %% [markdown]
# ## 5. What depth buys
#
# If one hidden layer is enough for everything, why have more? Because of the price. Fold the line in the middle, and
# fold it again, and again:
#
# $$ f_0(x) = x, \qquad f_l(x) = 2\, |f_{l-1}(x)| - 2 . $$
#
# Since $|s| = \mathrm{ReLU}(s) + \mathrm{ReLU}(-s)$, each fold is one hidden layer of two units. And each fold doubles
# the number of teeth.

# %%
figure, axes = plt.subplots(2, 3, figsize=(10, 4.5), layout="constrained", sharex=True, sharey=True)
for levels, ax in enumerate(axes.flat):
    f = to_piecewise_linear(*sawtooth_network(levels))
    corners = np.unique([-2.0, *f.breakpoints, 2.0])
    plotting.curves(corners, {"_f": f(corners)}, ax)
    ax.set_title(f"hidden layers: {levels}, kinks: {len(f.breakpoints)}")
assert [count_kinks(*sawtooth_network(n)) for n in range(8)] == [2**n - 1 for n in range(8)]
assert jb.count_params(sawtooth_network(5)[1]) == 31 and jb.count_params(sawtooth_network(20)[1]) == 121
assert jnp.allclose(sawtooth(jnp.array([0.3]), 5), 0.4, atol=1e-5)

# %% [markdown]
# With $l$ hidden layers of two units there are $2^l - 1$ kinks. One hidden layer needs a unit for each kink: 31 numbers
# describe the deep net with 31 kinks; a shallow one needs 31 *units*, with three numbers each. At 20 layers it is 121
# numbers against a million units.
#
# > **The lecture notes print:** the number of kinks of a deep net is about $O(2^{\text{depth}})$.
#
# **Numbers that break it:** random nets with 8 units in each layer have about as many kinks as units, where folding
# would reach millions. **Corrected:** $2^{\text{depth}} - 1$ is what folding with two units a layer *can reach* (wider
# layers reach more), not what a net usually has.


# %%
def random_deep_net(hidden_layers, key):
    draw = {"kernel_init": initializers.he_normal(), "bias_init": initializers.normal(1.0)}
    hidden = [layer for _ in range(hidden_layers) for layer in (jb.Dense(8, **draw), jb.relu)]
    net = jb.Serial(*hidden, jb.Dense(1))
    return net, net.init(key, jnp.zeros(1))


for n in (1, 2, 4, 8):
    kinks = [count_kinks(*random_deep_net(n, jax.random.key(i))) for i in range(4)]
    reach = region_lower_bound((8,) * n, 1) - 1
    print(f"hidden layers: {n}, units: {8 * n:2}, kinks: {kinks}, folding would reach {reach:,}")
    assert np.mean(kinks) < 1.5 * 8 * n

# %% [markdown]
# ### Depth that width cannot replace
#
# Could a small shallow net at least come *close* to the sawtooth? No (Telgarsky 2016). Take the triangle wave
# $\Delta^k$ on $[0, 1]$, a net of $2k$ layers. It crosses $\tfrac12$ at $2^k$ places. A net $g$ with fewer pieces
# cannot follow, and misses by a triangle between most crossings. With at most $L$ layers and $N$ nodes, $g$ has at most
# $(2N/L)^L$ pieces.
#
# > **The lecture notes print** for the class of all $g$: depth $O(L)$ and $O(2 L^2)$ nodes.
#
# **No number breaks it**, but it says little. For $L = 20$ the deep net has $3k = 3 (L^2 + 2) = 1206$ nodes, and the
# claim would be about nets of $2 L^2 = 800$: small wonder that these do worse. **Corrected:** they may have up to $2^L$
# nodes, here a million, *exponentially* many. For $k = L^2 + 2$ and every ReLU net $g$ with at most $L$ layers and
# $2^L$ nodes,
#
# $$ \int_0^1 |\Delta^k(x) - g(x)|\, dx > \tfrac1{32} . $$

# %%
for L in (2, 3, 4):
    k = L**2 + 2
    pieces = pieces_bound(L, 2**L)
    print(f"L = {L}: the deep net has {2**k:7,} pieces, the shallow ones at most {pieces:7.1f}", end="")
    print(f"; they are off by at least {separation_bound(k, pieces):.4f}")
    assert pieces < 2**k and separation_bound(k, pieces) > 1 / 32
assert 3 * (20**2 + 2) == 1206 and 2 * 20**2 == 800 and 2**20 > 1_000_000
assert separation(11, lambda x: 0 * x + 0.5) == 0.25  # the constant 1/2, exactly
assert separation(4, *triangle_network(4)) < 1e-6  # the deep net itself

# %% [markdown]
# ### Two inputs: creases in the plane
#
# In the plane a hidden unit of the first layer bends the function along a whole straight line. That is a restriction:
# $\max(0, x, y)$ is bent along *half*-lines. Look at the jump of the slope in direction $x$ across the line $x = 0$: it
# is 1 at $y = -1$, and 0 at $y = +1$. A unit of one hidden layer bends by the same amount all along its line. So no
# net with one hidden layer is equal to this function; with two hidden layers it takes four units.

# %%
net, params = max_zero_x_y()
maximum = lambda x: jnp.maximum(0, x.max(-1))
assert jnp.allclose(net.apply(params, x)[:, 0], maximum(x), atol=1e-6)
slope = lambda x, y: jax.grad(maximum)(jnp.array([x, y]))[0]
assert slope(0.1, -1.0) - slope(-0.1, -1.0) == 1 and slope(0.1, 1.0) - slope(-0.1, 1.0) == 0
axes = plotting.surface(maximum, ((-1, 1), (-1, 1)))

# %% [markdown]
# `regions` cuts the plane into the **linear regions** of a net, the polygons on which it is one affine map; exactly,
# like `to_piecewise_linear` before. How many can there be?
#
# * One hidden layer of $n$ units draws $n$ lines, which cut the plane into at most $1 + n + \binom n2$ cells: 211 for
#   20 units.
# * A second layer cuts *what the first has folded*. If the first lays 25 sheets of the plane on one another, every cut
#   by the second goes through all 25 of them.

# %%
assert arrangement_regions(20, 2) == 1 + 20 + math.comb(20, 2) == 211
random_net = jb.Serial(jb.Dense(20, bias_init=initializers.normal(0.5)), jb.relu, jb.Dense(1))
shallow = regions(random_net, random_net.init(jax.random.key(0), jnp.zeros(2)), box=((-2, 2), (-2, 2)))
deep = regions(*folding_network((10, 10)), box=((0, 1), (0, 1)))
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4.2), layout="constrained")
shallow.plot(left)
axes = deep.plot(right)
assert shallow.linear_count <= 211 and deep.linear_count == 25 * arrangement_regions(10, 2) == 1400
assert (2 * 20 + 20) + (20 + 1) == 81 and jb.count_params(folding_network((10, 10))[1]) == 151

# %% [markdown]
# Left 20 random units in one layer, right $10 + 10$ in two: as many rectifiers, and far more regions. (More parameters
# too: 81 and 151.)
#
# > **The lecture notes print** that the number of affine regions is
# > $O\big(\binom{\text{width}}{d}^{d (\text{depth} - 1)}\, \text{width}^d\big)$ for $d$ inputs.
#
# **A number that breaks it:** for $d = 2$ and widths 10, 10 that is $\binom{10}{2}^2 \cdot 10^2 = 202\,500$. But no net
# of this size has more than $56^2 = 3136$ regions. **Corrected:** the bracket is not a binomial but the *fraction*
# $\text{width}/d$; it is a *lower* bound $\Omega$ on the maximum, not an upper one; and depth counts hidden layers:
#
# $$ \max \#\text{regions} \;\ge\; \Big(\prod_{i=1}^{L-1} \Big\lfloor \frac{n_i}{d} \Big\rfloor^{d}\Big)
#    \sum_{j=0}^{d} \binom{n_L}{j} . $$
#
# For our net this is $25 \cdot 56 = 1400$, and the folding net on the right has exactly so many.

# %%
assert math.comb(10, 2) ** 2 * 10**2 == 202_500
assert region_upper_bound((10, 10), 2) == 56**2 == 3136
assert region_lower_bound((10, 10), 2) == (10 // 2) ** 2 * 56 == 1400

# %% [markdown]
# ### Deep and narrow
#
# Depth can even stand in for width. With $\max(y, \ell) = \ell + \mathrm{ReLU}(y - \ell)$ a net that carries $x$ along
# in $d$ units, and $y$ in one more, computes any string of maxima and minima of affine functions, one after the other;
# and such strings approximate all continuous functions.
#
# > **The lecture notes print:** width $d_{\text{in}} + 1$ is enough.
#
# **A number that breaks it:** one input, three outputs, width 2. The outputs are an affine function of two units, so
# they all lie in one plane of space, however deep the net. A path through the corners $(0,0,0)$, $(1,0,0)$, $(1,1,0)$,
# $(1,1,1)$ of a cube does not: every plane misses one of them by $1/\sqrt{12} = 0.289$ at least. **Corrected:** for
# *one* output it is enough, and width $d_{\text{in}}$ is not. For several outputs the theorem (Hanin and Sellke 2017)
# guarantees width $d_{\text{in}} + d_{\text{out}}$.

# %%
corners = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1]])
normals = np.random.default_rng(0).normal(size=(100_000, 3))
apart = np.ptp(normals @ corners.T, 1) / np.linalg.norm(normals, axis=1)  # of the outermost corners, in this direction
assert 1 / math.sqrt(12) <= apart.min() / 2 < 0.3  # the best plane lies in the middle between them

# min(max(x, -x), 2): three affine functions x, -x, 2 of one input; every hidden layer has 1 + 1 units
net, params = max_min_string([[1.0, -1.0, 0.0]], [0.0, 0.0, 2.0], ["max", "min"], radius=8.0)
at = jnp.linspace(-8, 8, 65)
assert jnp.allclose(net.apply(params, at[:, None])[:, 0], jnp.minimum(jnp.maximum(at, -at), 2), atol=1e-5)
assert [p["bias"].size for p in params if p] == [2, 2, 1]

# %% [markdown]
# ## 6. Exclusive or
#
# The smallest function that no linear model computes: $x_1 \oplus x_2 = (x_1 \wedge \neg x_2) \vee (\neg x_1 \wedge
# x_2)$ is 1 where exactly one of two bits is 1. The best affine model has weights 0 and bias $\tfrac12$ (the slides put
# "??!" behind it). That is no accident: there is no linear trend in this table, and so the best that can be done is the
# mean of the labels.

# %%
bits, labels = jnp.asarray(bit_rows(2), jnp.float32), jnp.array([0.0, 1.0, 1.0, 0.0])
best = jb.layers.linear_regression(bits, labels[:, None])
assert jnp.allclose(best["kernel"], 0, atol=1e-6) and jnp.allclose(best["bias"], 0.5)
assert jnp.allclose(jnp.mean((jb.affine(bits, **best)[:, 0] - labels) ** 2), 0.25)

# %% [markdown]
# Two rectifiers do it: $\mathrm{ReLU}(x_1 + x_2) - 2\, \mathrm{ReLU}(x_1 + x_2 - 1)$.
#
# > **The slides print** $w_1 X$ and $W_1^\top x$ for the hidden layer, with the four inputs in the *rows* of $X$.
#
# **What breaks it:** $W_1$ is $2 \times 2$ and $X$ is $4 \times 2$, so $W_1 X$ does not exist. **Corrected:**
# $H = \mathrm{ReLU}(X W_1 + b_1)$. The numbers on the slides are right.

# %%
net, params = parity_shallow(2)
W1, b1 = params[0]["kernel"], params[0]["bias"]
steps = [bits, bits @ W1, bits @ W1 + b1, jb.relu(bits @ W1 + b1)]
assert steps[1].tolist() == [[0, 0], [1, 1], [1, 1], [2, 2]]
assert steps[2].tolist() == [[0, -1], [1, 0], [1, 0], [2, 1]]
assert steps[3].tolist() == [[0, 0], [1, 0], [1, 0], [2, 1]]
assert net.apply(params, bits)[:, 0].tolist() == labels.tolist()
figure, axes = plt.subplots(1, 4, figsize=(11, 3), layout="constrained", sharex=True, sharey=True)
for ax, points, title in zip(axes, steps, ("$X$", "$X W_1$", "$X W_1 + b_1$", "$ReLU(X W_1 + b_1)$"), strict=True):
    plotting.points(points, labels, ax, names=["label 0", "label 1"])
    ax.set(title=title, xlim=(-0.5, 2.5), ylim=(-1.5, 2.5))
separating = axes[-1].plot([-0.5, 2.5], [-0.5, 1.0], "--", color="black")  # h_1 - 2 h_2 = 1/2

# %% [markdown]
# The layer *folds* the square: both points of label 1 come to lie on one another, and a line separates what is left.
#
# ### $n$ bits
#
# Exclusive or of $n$ bits, parity, is 1 where their number of ones is odd.
#
# > **The lecture notes print:** a shallow model needs $O(2^n)$ hidden units for $n$-way exclusive or.
#
# **A number that breaks it:** for $n = 8$, eight rectifiers in one hidden layer do it. **Corrected:** $2^{n-1}$ units
# is what the *table* takes, one unit for each true row (each bracket of the formula above). But parity depends only on
# the sum $s$ of the bits, and is a zigzag of it with $n - 1$ kinks inside: $\mathrm{ReLU}(s) + 2 \sum_{k=1}^{n-1}
# (-1)^k\, \mathrm{ReLU}(s - k)$. A single cosine does it, too.

# %%
n = 8
rows = jnp.asarray(bit_rows(n), jnp.float32)
parity = rows.sum(1) % 2
ways = {
    "table, one unit for each true row": (minterm_network(np.asarray(parity)), 2 ** (n - 1)),
    "one hidden layer of rectifiers": (parity_shallow(n), n),
    "chain of pairwise exclusive ors": (parity_chain(n), 2 * (n - 1)),
    "a cosine": (parity_cosine(n), 1),
}
for name, ((net, params), units) in ways.items():
    assert jnp.allclose(net.apply(params, rows)[:, 0], parity, atol=1e-5)
    print(f"{name:34} {units:4} units")

# %% [markdown]
# Whoever builds these nets *knows* that it is about the sum. Can one do without, and go by similar rows? Here are the
# labels of half of the 256 rows. For the others two methods go by what is near: the nearest row, and a sum of Gaussian
# bumps around the given ones. Both are mostly wrong, worse than a coin! The nearest rows differ in one bit, and have
# the other parity. Where the world is not smooth in this sense, something must be known about it (notebook 5).

# %%
order = np.random.default_rng(0).permutation(256)
given, asked = rows[order[:128]], rows[order[128:]]
nearest = jb.layers.knn_predict(asked, given, parity[order[:128]].astype(int))
bumps = np.linalg.solve(jb.layers.rbf_kernel(given, given, gamma=0.2) + 1e-3 * np.eye(128), 2 * parity[order[:128]] - 1)
by_bumps = jb.layers.rbf_kernel(asked, given, gamma=0.2) @ bumps > 0
right = [float(jnp.mean(guess == parity[order[128:]])) for guess in (nearest, by_bumps)]
print(f"right on new rows: nearest {right[0]:.0%}, bumps {right[1]:.0%}, a net that takes the sum 100%")
assert right[0] < 0.05 and right[1] < 0.4

# %% [markdown]
# ## Summary
#
# | with | one computes |
# |---|---|
# | affine layers only | affine maps, of no more rank than the narrowest layer |
# | one hidden layer of $n$ rectifiers, one input | piecewise linear functions: all of $n - 1$ kinks, none of $n + 1$ |
# | one hidden layer, any number of units | every continuous function on a closed bounded set, approximately |
# | $l$ hidden layers of two rectifiers | among others, functions with $2^l - 1$ kinks |
# | any number of hidden layers of $d_{\text{in}} + 1$ rectifiers, one output | the same |
#
# ## Homework
#
# 1. **Structure and parameters.** Two inputs, then widths 5, 10, 5, 2. Write the equations, and count the parameters.
# 2. **A linear layer from `Bias`.** `jb.Bias` is the layer $x \mapsto x + b$. How must it be modified to become a
#    linear layer? Write it yourself, as a pair of functions, without `jb.Dense`.
# 3. **An MLP** from it, for any list of widths.
# 4. **Design.** With a first level of five rectifiers and a second level that adds them up, build the function that is
#    0 up to 0, climbs to 1 at $x = 1$, rests until 2, climbs to 3 at $x = 3$, falls to 0 at 6 and stays there.
# 5. **Why not always one hidden layer?** And how deep should a net be? Give the numbers of this notebook.
# 6. **Homogeneity:** $\mathrm{ReLU}(\alpha x) = \alpha\,\mathrm{ReLU}(x)$ for $\alpha > 0$. How does this help? Find at
#    least three things that follow for a net.
#
# Try them before you read on.
#
# ## Solutions
#
# **1.** $h_1 = \sigma(W_1 x + b_1)$, $h_2 = \sigma(W_2 h_1 + b_2)$, $h_3 = \sigma(W_3 h_2 + b_3)$,
# $f = W_4 h_3 + b_4$, with $W_1 \in \mathbb R^{5 \times 2}$, $W_2 \in \mathbb R^{10 \times 5}$,
# $W_3 \in \mathbb R^{5 \times 10}$, $W_4 \in \mathbb R^{2 \times 5}$. Layer by layer $15 + 60 + 55 + 12 = 142$
# parameters.

# %%
shapes = jax.eval_shape(jb.MLP(5, 10, 5, 2).init, jax.random.key(0), x)  # shapes only: nothing is drawn
assert [jb.count_params(p) for p in shapes if p] == [15, 60, 55, 12] and jb.count_params(shapes) == 142

# %% [markdown]
# **2. and 3.** The params get a matrix, and `init` must know how many columns. With the identity for a matrix it is
# `Bias` again.


# %%
def Linear(features):
    def init(key, x):
        scale = 1 / math.sqrt(x.shape[-1])
        return {"kernel": scale * jax.random.normal(key, (x.shape[-1], features)), "bias": jnp.zeros(features)}

    def apply(params, x):
        return x @ params["kernel"] + params["bias"]

    return jb.Layer(init, apply)


def perceptron(*widths):
    layers = [layer for width in widths for layer in (Linear(width), jb.relu)]
    return jb.Serial(*layers[:-1])  # no activation after the last one


bias = jnp.array([1.0, -1.0])
assert (Linear(2).apply({"kernel": jnp.eye(2), "bias": bias}, x) == jb.Bias().apply({"bias": bias}, x)).all()
assert jb.count_params(jax.eval_shape(perceptron(5, 10, 5, 2).init, jax.random.key(0), x)) == 142
params = perceptron(5, 1).init(jax.random.key(0), x)
assert jnp.allclose(perceptron(5, 1).apply(params, x), jb.MLP(5, 1).apply(params, x), atol=1e-6)

# %% [markdown]
# **4.** Breakpoints 0, 1, 2, 3, 6 and slopes 0, 1, 0, 2, $-1$, 0. The *changes* of slope are the weights of the second
# level: $h_{21} = h_{10} - h_{11} + 2 h_{12} - 3 h_{13} + h_{14}$ with $h_{1j} = \max(x - s_j, 0)$,
# $s = (0, 1, 2, 3, 6)$. They sum to 0, since the last slope is 0. The area below the graph is 8.

# %%
f = PiecewiseLinear(np.array([0.0, 1.0, 2.0, 3.0, 6.0]), np.array([0.0, 1.0, 0.0, 2.0, -1.0, 0.0]), 0.0)
assert np.diff(f.slopes).tolist() == [1, -1, 2, -3, 1] and abs(f.integral(0, 6) - 8) < 1e-12
net, params = two_level_model()
at = jnp.array([-1.0, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 4.5, 5.0, 6.0, 9.0])
assert net.apply(params, at[:, None])[:, 0].tolist() == [0, 0, 0.5, 1, 1, 1, 2, 3, 2, 1.5, 1, 0, 0] == f(at).tolist()
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
axes = f.plot(axes)

# %% [markdown]
# **5.** One hidden layer is always enough in principle, and may be hopelessly wide: each kink takes a unit (20 folds of
# two units each make $2^{20} - 1$ kinks); a table of bits takes a unit for each true row, $2^{n-1}$ for parity; 20
# units side by side make at most 211 regions in the plane, $10 + 10$ reach 1400 and more. As the textbook of
# Goodfellow, Bengio and Courville puts it: one layer suffices, but may be infeasibly large and fail to learn; depth can
# reduce the number of units, and the error on new data. How deep, then? Theory gives
# no number. Deep nets can express more with fewer units, but random ones do not (section 5), and whether training finds
# it is another question. In practice the depth is tried out on validation data (notebooks 3 and 8). And what is known
# about the problem is better built into the layers (notebooks 5 and 6).
#
# **6.** (a) *One input: kernels of signs suffice.* $a\,\mathrm{ReLU}(w x + b) = a |w|\, \mathrm{ReLU}(\pm x + b/|w|)$,
# so every net of section 3 is equal to one with $a^{(1)}_i = \pm 1$.

# %%
net = jb.MLP(8, 1)
params = net.init(jax.random.key(0), jnp.zeros(1))
signs = unit_kernels(params)
assert jnp.allclose(abs(signs[0]["kernel"]), 1)
assert jnp.allclose(net.apply(signs, at[:, None]), net.apply(params, at[:, None]), atol=1e-5)

# %% [markdown]
# (b) *Params of one function form a family.* Multiply a hidden layer by $\alpha > 0$ and divide the next one by it: the
# function stays, to the last bit for $\alpha = 4$. So the scale of each layer may be normalized. For tanh this fails.

# %%
net, smooth = jb.MLP(8, 8, 1), jb.MLP(8, 8, 1, activation=jb.tanh)
params = net.init(jax.random.key(1), x)
scaled = rescale(params, [4.0, 0.5])
assert (net.apply(scaled, x) == net.apply(params, x)).all()
assert not jnp.allclose(smooth.apply(scaled, x), smooth.apply(params, x), atol=0.01)

# %% [markdown]
# (c) *Euler's identities.* Without biases, $f(\alpha x) = \alpha f(x)$; differentiate by $\alpha$ at 1:
# $\langle x, \nabla_x f \rangle = f$. In the same way $\langle W_l, \nabla_{W_l} f \rangle = f$ for *every* layer.
# (`euler_terms` adds the terms of the biases; they are zero here.)

# %%
terms = jax.jit(lambda params, x: euler_terms(net, params, x))(params, x)
assert jnp.allclose(terms.inputs, terms.output, atol=1e-5)
assert all(jnp.allclose(kernel, terms.output, atol=1e-5) for kernel in terms.kernels)

# %% [markdown]
# (d) *Training by gradient flow conserves* $\lVert W_l \rVert^2 + \lVert b_l \rVert^2 - \lVert W_{l+1} \rVert^2$: by
# (c) all layers pull equally. Gradient descent with steps of size $\eta$ drifts away from that by an amount
# proportional to $\eta$.


# %%
def drift(step_size, time=1.0):
    loss = lambda params: jnp.mean((net.apply(params, x) - 1) ** 2)
    step = lambda params, _: (jax.tree.map(lambda p, g: p - step_size * g, params, jax.grad(loss)(params)), None)
    end = jax.lax.scan(step, params, length=round(time / step_size))[0]
    return abs(norm_differences(end) - norm_differences(params)).max()


coarse, fine = drift(0.01), drift(0.001)
print(f"drift {coarse:.2e} with steps of 0.01, {fine:.2e} with steps of 0.001")
assert 8 < coarse / fine < 12

# %% [markdown]
# (e) *Large outputs prove nothing.* Twice the weights of $L$ layers without biases give $2^L$ times the outputs, and
# the same decisions. Whoever compares how clearly two classifiers decide must first divide by the norms.
