# %% [markdown]
# # Expressiveness of neural networks
#
# A neural network is a function with many parameters. This notebook asks, before any training: **which functions can a
# network compute for some choice of its parameters, and how many units or layers does it need?**
#
# The answers in this notebook are exact. A ReLU network with one input computes a piecewise linear function.
# Conversely, every continuous piecewise linear function is computed by such a network. The universal approximation
# theorem follows from this result. The notebook then shows which functions need fewer units when the network has more
# layers. No network is trained here; training begins in notebook 3.
#
# **Prerequisites:** calculus, matrices and basic Python. An `assert` in the next code cell checks each claim of the
# text. The homework at the end has solutions.
#
# **Sources:** Diehl, *lecture notes* (2023), section 1; Huszár, *DeepNN lecture 3*; Krapac & Šegvić, *Deep feed-forward
# models*; Cevher, *Mathematics of Data*. "The lecture notes" are those of Diehl. Some formulas in these sources contain
# errors. For each error, this notebook gives the printed form, a counterexample and the corrected form.

# %%
import functools
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
from jaxblocks.theory.boolean import (
    bit_rows,
    minterm_network,
    parity_chain,
    parity_cosine,
    parity_shallow,
)
from jaxblocks.theory.depth import (
    pieces_bound,
    sawtooth,
    sawtooth_network,
    separation,
    separation_bound,
    triangle_network,
)
from jaxblocks.theory.explicit_weights import one_hidden_layer
from jaxblocks.theory.homogeneity import (
    euler_terms,
    norm_differences,
    rescale,
    unit_kernels,
)
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
# ## 1. Layers and networks
#
# ### Dense layers
#
# A **layer** multiplies its input by a matrix and adds a vector. With column vectors the formula is $y = A x + b$. In
# code, each example is a *row* of an array. The formula is then `y = x @ kernel + bias`, where the kernel is $A^\top$.
#
# In jaxblocks, a layer is a pair of functions. `init` reads the shape of an input and returns random params; `apply`
# computes the output. Params are plain dictionaries of arrays, so a layer has no hidden state. Random numbers in JAX
# come from an explicit *key*; the same key gives the same numbers.

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
# ### Composition of affine layers
#
# The composition of two such layers, $A_2 (A_1 x + b_1) + b_2 = A_2 A_1\, x + (A_2 b_1 + b_2)$, is again one such
# layer. `fuse_affine` computes it.

# %%
two = jb.Serial(jb.Dense(1), jb.Dense(2))  # widths 2 -> 1 -> 2, with a bottleneck
first = {"kernel": jnp.array([[1.0], [2.0]]), "bias": jnp.ones(1)}
second = {"kernel": jnp.ones((1, 2)), "bias": jnp.ones(2)}
fused = jb.layers.fuse_affine(first, second)
assert np.allclose(two.apply((first, second), x), jb.affine(x, **fused))
fused

# %% [markdown]
# > **Cevher states** that such a net is "a factored *linear* layer". Diehl calls the maps $\lambda x + c$ below
# > "linear".
#
# **Counterexample:** a linear map takes 0 to 0, but the net above takes 0 to $(2, 2)$. **Correction:** the net is
# *affine*; it is linear only if the biases are zero. It also cannot be every affine map: the rank of its matrix is at
# most the smallest width of its layers. Here this width is 1, but the identity of the plane has rank 2.

# %%
assert (two.apply((first, second), jnp.zeros(2)) == 2).all()
assert jnp.linalg.matrix_rank(fused["kernel"]) == 1

# %% [markdown]
# ### Activation functions
#
# Networks therefore apply a nonlinear function between the layers. This function is the **activation** $\sigma$; it
# acts on each number separately. The most common one is the *rectifier*, $\mathrm{ReLU}(s) = \max(0, s)$. (Krapac &
# Šegvić call it the hinge function. The hinge *loss* is a different function.)
#
# The following example is from the lecture notes. It has two inputs, five hidden units and one output, in short 2-5-1.
#
# $$ f(x) = A_2\, \mathrm{ReLU}(A_1 x + b_1) + b_2 $$

# %%
net = jb.Serial(jb.Dense(5), jb.relu, jb.Dense(1))
params = net.init(jax.random.key(1), x)
assert jb.count_params(params) == (2 * 5 + 5) + (5 * 1 + 1) == 21
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
axes = plotting.network(params, axes, names=["2 inputs", "5 rectifiers", "1 output"])

# %% [markdown]
# Each edge is a weight. `MLP` (multilayer perceptron) is a short way to write such nets. `summary` lists the layers of
# a net.

# %%
mlp = jb.MLP(5, 1)
assert np.allclose(mlp.apply(params, x), net.apply(params, x))
jb.summary(mlp, x)

# %% [markdown]
# Three notes on terminology, where the lectures disagree or contain errors:
#
# > **The lecture notes state** that $n$ layers have *depth* $n$, and three sentences later that the depth is $n - 1$.
#
# The net above has 2 layers and 1 hidden layer, and "depth" can mean either number. This notebook therefore counts
# *layers* or *hidden layers*.
#
# > **Cevher states** a scheme that applies $\sigma$ after every layer, but its example has no $\sigma$ after the
# > last layer.
#
# The difference matters: a net that ends with a rectifier never outputs a negative number. `MLP` has no activation
# after the last layer unless you set `last_activation=`.
#
# > **Krapac & Šegvić state** for the whole net
# > $f = o(f_L(f_{L-1}(\cdots(f_1(x, \Theta_1)),\cdots), \Theta_{L-1}), \Theta_L))$.
#
# This formula has five opening and six closing brackets. **Correction:**
# $o(f_L(f_{L-1}(\cdots f_1(x, \Theta_1) \cdots, \Theta_{L-1}), \Theta_L))$.

# %%
ends_with_relu = jb.MLP(5, 1, last_activation=jb.relu)
assert net.apply(params, x).min() < 0 == ends_with_relu.apply((*params, ()), x).min()

printed = "o(f_L(f_{L-1}(...(f_1(x, Θ_1)),...), Θ_{L-1}), Θ_L))"
corrected = "o(f_L(f_{L-1}(... f_1(x, Θ_1) ..., Θ_{L-1}), Θ_L))"
assert (printed.count("("), printed.count(")")) == (5, 6)
assert corrected.count("(") == corrected.count(")")

# %% [markdown]
# The plots show six random functions of this form, with all biases zero. Each consists of flat pieces that meet along
# lines through the origin.

# %%
init, apply = jax.jit(net.init), jax.jit(net.apply)
figure = plt.figure(figsize=(10, 5.5), layout="constrained")
for i in range(6):
    random_params = init(jax.random.key(i), x)
    axes = figure.add_subplot(2, 3, i + 1, projection="3d")
    plotting.surface(
        lambda x, p=random_params: apply(p, x), ((-2, 2), (-2, 2)), axes, samples=31
    )
    assert np.allclose(
        apply(random_params, 2 * x), 2 * apply(random_params, x), atol=1e-5
    )

# %% [markdown]
# If the input doubles, the output doubles: $\mathrm{ReLU}(\alpha x) = \alpha\, \mathrm{ReLU}(x)$ for $\alpha > 0$, and
# a net without biases has the same property. The lecture notes ask, "how does this help?" Homework 6 answers this
# question.
#
# ## 2. Common activation functions
#
# There are many other activations. Each plot shows one activation and its derivative (dashed). (Three JAX functions
# appear below: `jax.grad(f)` is the derivative of a function of one number, `jax.vmap` applies a function to each entry
# of an array, and `jax.jit` compiles a function.)

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
figure, axes = plt.subplots(2, 4, figsize=(10, 4.5), layout="constrained", sharex=True)
drawn = jax.jit(
    lambda x: {
        name: {"_f": f(x), "_derivative": jax.vmap(jax.grad(f))(x)}
        for name, f in shown.items()
    }
)(grid)
for ax, name in zip(axes.flat, shown, strict=True):
    plotting.curves(grid, drawn[name], ax)
    ax.set_title(name)

# %% [markdown]
# **The sigmoid** $\sigma(x) = 1/(1 + e^{-x})$ and **tanh** differ only by scaling and shifting:
# $\tanh(x) = 2 \sigma(2x) - 1$. Both *saturate*: far from 0 they are almost constant. The derivative of the sigmoid is
# at most $1/4$. Over ten layers this gives a factor of at most $(1/4)^{10} \approx 10^{-6}$, so the gradients vanish.
# An active rectifier has derivative 1, and so does a composition of any number of active rectifiers.

# %%
assert np.allclose(jb.tanh(grid), 2 * jb.sigmoid(2 * grid) - 1, atol=1e-6)
assert jax.grad(jb.sigmoid)(0.0) == 0.25 and 0.25**10 < 1e-6
assert jax.grad(jb.sigmoid)(10.0) < 5e-5


def ten_rectifiers(x):
    for _ in range(10):
        x = jb.relu(x)
    return x


assert jax.grad(ten_rectifiers)(0.7) == 1

# %% [markdown]
# **GELU** is $x\, \Phi(x)$, where $\Phi(x)$ is the probability that a standard normal variable is at most $x$. By
# default, `jax.nn.gelu` computes an approximation that differs by up to $5 \cdot 10^{-4}$; `jb.gelu` is exact. GELU is
# not injective: it decreases and then increases, so it takes some values twice.

# %%
one_high, low, lower = jb.gelu(jnp.array([1.0, -0.5, -1.0492931]))
assert abs(one_high - 0.8413447) < 1e-6 and abs(low - lower) < 1e-6
error = jax.jit(lambda x: jnp.max(abs(jb.gelu(x) - jax.nn.gelu(x))))(grid)
assert 4e-4 < error < 5e-4

# %% [markdown]
# ### Corrections about activations
#
# > **Krapac & Šegvić state:** implementations use the left (0) or the right (1) subgradient of the ReLU at 0.
#
# **Counterexample:** in JAX, three ways to write the ReLU give three different derivatives at 0. One of them is 0.5.
# **Correction:** every number from 0 to 1 is a subgradient, so state which one you use. `jb.relu` uses 0 unless you set
# another value.

# %%
assert jax.grad(lambda x: jnp.maximum(x, 0))(0.0) == 0.5
assert jax.grad(lambda x: jnp.where(x >= 0, x, 0))(0.0) == 1
assert (
    jax.grad(jb.relu)(0.0) == 0
    and jax.grad(lambda x: jb.relu(x, at_zero=1.0))(0.0) == 1
)

# %% [markdown]
# > **Krapac & Šegvić state** that leaky ReLU and softplus are "bijective generalizations" of the ReLU.
#
# **Counterexample:** no $x$ satisfies $\mathrm{softplus}(x) = \log(1 + e^x) = -1$, because softplus is positive.
# **Correction:** softplus is a bijection from $\mathbb R$ to $(0, \infty)$. Leaky ReLU is a bijection of $\mathbb R$ if
# its slope is positive.

# %%
assert (jb.softplus(grid) > 0).all()
assert np.allclose(jb.leaky_relu(jb.activations.leaky_relu_inverse(grid)), grid)

# %% [markdown]
# > **Krapac & Šegvić state** $\mathrm{ELU}(x; \alpha) = \lambda \cdot \{\alpha (e^x - 1)$ for $x < 0$, $x$ for
# > $x \ge 0\}$, and for ELU and GELU: "does not saturate; zero mean and unit variance".
#
# **Counterexample:** $\lambda$ is not an argument of the left side. For $x \to -\infty$, ELU tends to $-\alpha$ and
# GELU to 0, so both saturate. The next cell prints the mean and the variance of the output for standard normal input.
# **Correction:** ELU has $\lambda = 1$. With $\lambda \approx 1.0507$ and $\alpha \approx 1.6733$ the function is
# **SELU**, whose output has mean 0 and variance 1.

# %%
for f in (jb.relu, jb.gelu, jb.elu, jb.selu, jb.tanh):
    mean, variance = jb.activations.activation_moments(f)
    print(f"{f.__name__:5} mean {mean:8.4f}   variance {variance:.4f}")
moments = np.array(
    [jb.activations.activation_moments(f) for f in (jb.relu, jb.elu, jb.selu)]
)
assert np.allclose(
    moments, [[0.398942, 0.340845], [0.160521, 0.619179], [0, 1]], atol=1e-5
)
far_left = jnp.array(-20.0)
assert jb.elu(far_left) == -1 and abs(jb.gelu(far_left)) < 1e-6

# %% [markdown]
# > **Krapac & Šegvić state:** tanh has zero-mean outputs for zero-mean inputs; after a normalization to zero mean,
# > half of the rectifiers are active.
#
# **Counterexamples:** let $X = 2$ with probability $1/3$ and $X = -1$ with probability $2/3$. The mean of $X$ is 0, but
# $E \tanh X = -0.186$. Let $X + 1$ be exponentially distributed with mean 1. Then $X$ has mean 0 and variance 1, but it
# is positive with probability $1/e = 0.368$. **Correction:** the first statement holds for *symmetric* inputs. The
# second holds for inputs with *median* 0.

# %%
values, weights = jnp.array([2.0, -1.0]), jnp.array([1 / 3, 2 / 3])
assert abs(weights @ values) < 1e-6 and abs(weights @ jb.tanh(values) + 0.186387) < 1e-6
exponential = np.random.default_rng(0).exponential(size=100_000) - 1
assert (
    abs(exponential.mean()) < 0.02 and abs((exponential > 0).mean() - 1 / math.e) < 0.01
)

# %% [markdown]
# ## 3. Networks with one input: piecewise linear functions
#
# With one input, a hidden unit computes $\mathrm{ReLU}(a x + b)$. It is zero on one side of its **kink** at $x = -b/a$
# and linear on the other side. The net computes a weighted sum of such units,
#
# $$ f(x) = \sum_{i=1}^{n} a^{(2)}_i\, \mathrm{ReLU}\big(a^{(1)}_i x + b^{(1)}_i\big) + b^{(2)} , $$
#
# so it is affine between the kinks. The plots show eight units and a weighted sum of them.

# %%
rng = np.random.default_rng(56)
a, out = rng.normal(size=(2, 8))
b = -a * np.linspace(-3, 3, 8)  # so that the kinks lie between -3 and 3
net, params = one_hidden_layer(a[None], b, out, 0.0)
f = to_piecewise_linear(net, params)
line = np.linspace(-4, 4, 401)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.3), layout="constrained")
plotting.curves(
    line, {f"_unit {i}": np.maximum(a[i] * line + b[i], 0) for i in range(8)}, left
)
plotting.curves(line, {"_sum": f(line)}, right)
left.set(title="eight units", ylim=(-0.2, 4))
right.set_title("weighted sum of the units")
dots = right.plot(f.breakpoints, f.values, "ko", markersize=4)
assert np.allclose(f.breakpoints, np.sort(-b / a)) and count_kinks(net, params) == 8

# %% [markdown]
# `to_piecewise_linear` propagates each unit through the net and returns the *exact* function without sampling: the
# positions of the kinks (the breakpoints), the slopes between them, and one value. `count_kinks` returns the number of
# kinks.
#
# Conversely, take **any** continuous piecewise linear function with $p + 2$ pieces, breakpoints $t_0 < \dots < t_p$ and
# slopes $\lambda_0, \dots, \lambda_{p+1}$. A net that computes it exists (Lemma 1.3 of the lecture notes). Start with
# the first line. At each breakpoint, from left to right, add a rectifier whose coefficient is the change of the slope:
#
# $$ f(x) = \underbrace{\lambda_0 x + c_0}_{\text{the first line}}
#    + \sum_{\ell = 1}^{p+1} (\lambda_\ell - \lambda_{\ell - 1})\, \mathrm{ReLU}(x - t_{\ell - 1}) . $$
#
# The first line needs two rectifiers, $\lambda_0 x = \mathrm{ReLU}(\lambda_0 x) - \mathrm{ReLU}(-\lambda_0 x)$. The
# total is $p + 3$ units. `from_piecewise_linear` builds this net.

# %%
t = np.array([-1.0, 0.5, 2.0, 3.0])
slopes = np.array([0.7, -1.0, 2.0, 0.3, -0.4])
c0 = 1.3  # the first line is 0.7 x + 1.3
# the last argument is the value at the first breakpoint
f = PiecewiseLinear(t, slopes, c0 + slopes[0] * t[0])
with jax.enable_x64(True):  # JAX uses 32-bit floats by default
    net, params = from_piecewise_linear(*f, form="lecture")
    wide = np.linspace(-6, 8, 1401)
    error = abs(
        np.asarray(jax.jit(net.apply)(params, wide[:, None]))[:, 0] - f(wide)
    ).max()
assert params[0]["bias"].size == 3 + 3 and error < 1e-13
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
axes = f.plot(axes)

# %% [markdown]
# ### Corrections to the proof
#
# The indices in this proof are error-prone. The next cell evaluates the printed sums for the function above.
#
# > **The lecture notes state** first, with $u \wedge v$ for the smaller and $u \vee v$ for the larger of two numbers,
# >
# > $$ f(x) = \lambda_0 (x \wedge t_0) + c_0 + \sum_{\ell=1}^{p-1} \lambda_\ell
# >    \big((0 \vee (x - t_{\ell-1})) \wedge (t_{\ell+1} - t_{\ell-1})\big) + \lambda_p (0 \vee (x - t_p)) . $$
# >
# > Then $\sum_{\ell=1}^{p+1} (\lambda_\ell - \lambda_{\ell-1})\, \mathrm{ReLU}(x - t_\ell)$.
#
# **Counterexample:** the largest error of the first sum on $[-6, 8]$ is 3.7. The second sum needs a $t_{p+1}$, which
# does not exist; without this term the largest error is 3.25. **Correction:** piece $\ell$ is defined on
# $[t_{\ell-1}, t_\ell]$, so the slope changes from $\lambda_{\ell-1}$ to $\lambda_\ell$ at $t_{\ell-1}$. There are $p$
# inner pieces, and the last piece has the slope $\lambda_{p+1}$:
#
# $$ f(x) = \lambda_0 (x \wedge t_0) + c_0 + \sum_{\ell=1}^{p} \lambda_\ell
#    \big((0 \vee (x - t_{\ell-1})) \wedge (t_\ell - t_{\ell-1})\big) + \lambda_{p+1} (0 \vee (x - t_p)) . $$
#
# The corrected sum of rectifiers is the formula before the previous cell.

# %%
p, u = 3, wide
over = lambda place: np.maximum(0, u - place)
printed = slopes[0] * np.minimum(u, t[0]) + c0 + slopes[p] * over(t[p])
printed += sum(
    slopes[i] * np.minimum(over(t[i - 1]), t[i + 1] - t[i - 1]) for i in range(1, p)
)
corrected = slopes[0] * np.minimum(u, t[0]) + c0 + slopes[p + 1] * over(t[p])
corrected += sum(
    slopes[i] * np.minimum(over(t[i - 1]), t[i] - t[i - 1]) for i in range(1, p + 1)
)
worst = abs(printed - f(u)).max(), abs(corrected - f(u)).max()
print(
    f"sum of clipped pieces: error {worst[0]:.4f} as printed, {worst[1]:.0e} corrected"
)
assert abs(worst[0] - 3.7) < 1e-9 and worst[1] < 1e-13

first_line = slopes[0] * u + c0
printed = first_line + sum(
    (slopes[i] - slopes[i - 1]) * over(t[i]) for i in range(1, p + 1)
)
corrected = first_line + sum(
    (slopes[i] - slopes[i - 1]) * over(t[i - 1]) for i in range(1, p + 2)
)
worst = abs(printed - f(u)).max(), abs(corrected - f(u)).max()
print(f"sum of rectifiers: error {worst[0]:.4f} as printed, {worst[1]:.0e} corrected")
assert abs(worst[0] - 3.25) < 1e-9 and worst[1] < 1e-13

# %% [markdown]
# The lemma has two smaller errors. It says *linear* maps $L_0, \dots, L_{p+1}$ but means affine maps. It says "there
# exist $n, a^{(1)}, a^{(2)}, b^{(1)}_i, b^{(2)}$", but $a^{(1)}$ and $a^{(2)}$ also need an index $i$: there is one of
# each per unit.
#
# The first line does not need two additional rectifiers. Expand around $t_0$ instead: use one rectifier for the left
# side of $t_0$ and one for the right side. This gives $p + 2$ units. Fewer than $p + 1$ units never suffice, because
# each unit has one kink.

# %%
net, params = from_piecewise_linear(*f)
back = to_piecewise_linear(net, params)
assert params[0]["bias"].size == 3 + 2
assert np.allclose(back.breakpoints, t) and np.allclose(back.slopes, slopes, atol=1e-5)
params[0]

# %% [markdown]
# ## 4. Universal approximation
#
# A continuous function $g$ on $[0, 1]$ is in general not piecewise linear, but a piecewise linear function can
# approximate it. Take $N + 1$ equally spaced points of its graph and interpolate linearly. Section 3 turns the
# interpolant into a net with one hidden layer. `approximate` does both steps.
#
# The error is bounded as follows. Between two neighboring points, the value of the interpolant is an average of the
# values of $g$ at the two points. The value of $g$ at any place in between differs from these two values by at most
#
# $$ \omega_g(1/N) = \sup_{|x - y| \le 1/N} |g(x) - g(y)| , $$
#
# the **modulus of continuity**. Hence $\sup |g - f| \le \omega_g(1/N)$. A continuous function on a closed interval is
# *uniformly* continuous (Heine-Cantor theorem; an early print has "Heinor-Cantor"), so $\omega_g(1/N) \to 0$. This
# proves the **universal approximation theorem** in one dimension: nets with one hidden layer approximate every
# continuous function with arbitrarily small error.

# %%
g = lambda x: np.sin(6 * x) + 0.5 * np.cos(17 * x)
unit = np.linspace(0, 1, 2001)
errors = {}
figure, axes = plt.subplots(1, 3, figsize=(10, 3), layout="constrained", sharey=True)
for ax, N in zip(axes, (4, 8, 16), strict=True):
    f, bound = to_piecewise_linear(*approximate(g, N)), modulus_of_continuity(g, 1 / N)
    errors[N] = abs(g(unit) - f(unit)).max()
    plotting.curves(
        unit,
        {
            "error bound": (f(unit) - bound, f(unit) + bound),
            "g": g(unit),
            "net": f(unit),
        },
        ax,
    )
    ax.set_title(f"N = {N}: error {errors[N]:.3f}, bound {bound:.2f}")
    assert errors[N] <= bound
assert np.allclose(list(errors.values()), [0.970592, 0.293063, 0.078944], atol=1e-4)

# %% [markdown]
# > **The lecture notes state** a step of $\delta = T/N$ and points with $\ell \in \{0, \dots, N\}$, and obtain the
# > bound $2 \varepsilon$.
#
# **Errors:** $T$ is not defined (it is 1 on $[0, 1]$), and for $\ell = 0$ there is no interval $[t_{\ell-1}, t_\ell]$.
# **Correction:** choose $N$ with $1/N < \delta$, and take $\ell \in \{1, \dots, N\}$. The averaging argument above
# gives $\varepsilon$ instead of $2 \varepsilon$. Example: $\sqrt x$ is steepest at 0. Its error is
# $\tfrac14 / \sqrt N$, and $\omega(1/N) = 1/\sqrt N$.

# %%
for N in (4, 16, 64):
    f, dense = (
        to_piecewise_linear(*approximate(np.sqrt, N)),
        np.linspace(0, 1, 64 * 64 + 1),
    )
    assert abs(abs(np.sqrt(dense) - f(dense)).max() - 0.25 / math.sqrt(N)) < 1e-6
    assert abs(modulus_of_continuity(np.sqrt, 1 / N) - 1 / math.sqrt(N)) < 1e-3

# %% [markdown]
# A smooth function needs far fewer pieces, because the error is at most $\max |g''| / (8 N^2)$. For $e^x$ on $[0, 1]$
# and an error of 0.01 this bound gives 6 pieces. The modulus of continuity gives 278.

# %%
N = pieces_for(np.exp, 0.01, curvature=math.e)
f = to_piecewise_linear(*approximate(np.exp, N))
assert N == 6 and pieces_for(np.exp, 0.01) == 278
assert 0.0086 < abs(np.exp(unit) - f(unit)).max() < 0.0088

# %% [markdown]
# ### Conditions on the activation
#
# > **The lecture notes state** as the title of this theorem: "arbitrary width; ReLU activation".
#
# **Correction:** the statement below the title covers *every* continuous activation that is not a polynomial; only the
# proof uses ReLU. The exception for polynomials is necessary. With $\sigma(s) = s^2$, a net with one hidden layer
# computes only polynomials of degree at most 2, for every width. **Example:** the best such approximation of $|x|$ on
# $[-1, 1]$ is $x^2 + \tfrac18$, with error $\tfrac18$. The error reaches $\pm\tfrac18$ at five points with alternating
# sign, so no polynomial of degree 2 has a smaller maximal error. Two rectifiers compute $|x|$ exactly.

# %%
places = np.array([-1, -0.5, 0, 0.5, 1])
assert np.allclose(
    places**2 + 1 / 8 - abs(places), [1 / 8, -1 / 8, 1 / 8, -1 / 8, 1 / 8]
)
symmetric = np.linspace(-1, 1, 201, dtype=np.float32)
assert abs(symmetric**2 + 1 / 8 - abs(symmetric)).max() <= 1 / 8 + 1e-6
assert np.allclose(jb.relu(symmetric) + jb.relu(-symmetric), abs(symmetric))

# %% [markdown]
# ### Several inputs
#
# The proof reduces the problem to one variable. Sums of exponentials $\sum_i \gamma_i e^{\langle \nu_i, x \rangle}$
# approximate every continuous function on a closed bounded set. This is the Stone-Weierstraß theorem: products of
# exponentials are exponentials, and exponentials separate points. Each $e^{\langle \nu_i, x\rangle}$ is a function of
# *one* number, $\langle \nu_i, x \rangle$. The proof replaces it by its piecewise linear approximation.
#
# > **The lecture notes state** the result with $\mathrm{ReLU}(a t + b)$ for a function of $x$, and require that the
# > exponentials separate "all $x, y$".
#
# **Errors:** $t$ is not defined, and $x = y$ cannot be separated. **Correction:** $t$ is $\langle \nu_i, x \rangle$,
# the constant $d^{(i)}$ is added once for each $i$, and the exponentials separate all points $x \ne y$:
#
# $$ g(x) \approx \sum_i \Big[ \sum_\ell c^{(i)}_\ell\, \mathrm{ReLU}\big(a^{(i)}_\ell \langle \nu_i, x\rangle
#    + b^{(i)}_\ell\big) + d^{(i)} \Big] . $$

# %%
product = lambda x: x[:, 0] * x[:, 1]
square = np.stack(np.meshgrid(*2 * [np.linspace(-1, 1, 17)]), -1).reshape(-1, 2)
directions = [[i, j] for i in (-1, 0, 1) for j in (-1, 0, 1)]
found = approximate_by_ridges(product, directions, square, 0.1)
computed = np.asarray(jax.jit(found.layer.apply)(found.params, square))[:, 0]
error = abs(computed - product(square)).max()
assert error <= found.bound
print(
    f"{found.params[0]['bias'].size} units: error {error:.3f}, bound {found.bound:.3f}"
)

# %% [markdown]
# The condition that the functions separate points is necessary. Sums and products of $x^2$ are the even polynomials,
# which have the same value at $-1$ and at $1$. The function $x$ has the values $-1$ and $1$ there. The error of an even
# polynomial is therefore at least 1 at one of the two points, for every degree.
#
# Polynomials can approximate sharp transitions. Kuhn's elementary proof of the Weierstraß theorem (1964) uses one
# family of polynomials, $(1 - x^n)^{2^n}$. As $n$ grows, they approach a step function with its step at $\tfrac12$.

# %%
places = np.linspace(-1, 1, 201)
for degree in (2, 10, 20):
    even = np.polynomial.Polynomial.fit(places**2, places, degree // 2)(places**2)
    assert abs(even - places).max() > 1 - 1e-9
# log1p avoids rounding errors
kuhn = lambda n: jax.jit(lambda x: jnp.exp(2.0**n * jnp.log1p(-(x**n))))
assert np.allclose(
    [kuhn(10)(0.4), kuhn(10)(0.6), kuhn(20)(0.4)],
    [0.898184, 0.002008, 0.988537],
    atol=1e-5,
)
assert kuhn(20)(0.6) < 1e-16
figure, axes = plt.subplots(figsize=(5, 2.6), layout="constrained")
axes = plotting.curves(
    np.linspace(0, 1, 301), {f"n = {n}": kuhn(n) for n in (3, 10, 40)}, axes
)

# %% [markdown]
# ### Discontinuous functions
#
# > **Krapac & Šegvić state** that a net approximates every Borel measurable function "with arbitrarily small error".
#
# **Counterexample:** a function that jumps from 0 to 1 is measurable. A continuous function takes the value $\tfrac12$
# near the jump, and its error there is $\tfrac12$. **Correction:** for measurable functions, the error is small *on
# average* (in $L^1$), or outside a set of small measure. It is uniformly small only for continuous functions on closed
# bounded sets.

# %%
jump = lambda x: (np.asarray(x) > 0.5) * 1.0
for width in (0.1, 0.01, 0.001):
    # two breakpoints
    ramp = interpolate([0.5 - width / 2, 0.5 + width / 2], [0.0, 1.0])
    fine = np.linspace(0, 1, 100_001)
    gap = abs(ramp(fine) - jump(fine))
    print(
        f"ramp of width {width:5}: largest error {gap.max():.3f}, average error "
        f"{gap.mean():.6f}"
    )
    assert gap.max() > 0.4999 and gap.mean() < width / 2

# %% [markdown]
# The theorem says that suitable weights *exist*. It does not say that training finds them, that few units suffice, or
# how the net behaves away from the data. A net that fits any $n$ labels exactly has only $n + 1$ units:

# %%
noise = np.random.default_rng(0).normal(size=12)
f = interpolate(np.arange(12.0), noise)
net, params = from_piecewise_linear(*f)
assert params[0]["bias"].size == 12 + 1
computed = np.asarray(jax.jit(net.apply)(params, np.arange(12.0)[:, None]))[:, 0]
assert np.allclose(computed, noise, atol=1e-5)

# %% [markdown]
# ## 5. Depth and width
#
# One hidden layer suffices for every continuous function, but deeper networks can need far fewer units. The sawtooth
# function shows this. Each step folds the graph once more:
#
# $$ f_0(x) = x, \qquad f_l(x) = 2\, |f_{l-1}(x)| - 2 . $$
#
# Since $|s| = \mathrm{ReLU}(s) + \mathrm{ReLU}(-s)$, each fold is one hidden layer of two units. Each fold doubles the
# number of teeth.

# %%
figure, axes = plt.subplots(
    2, 3, figsize=(10, 4.5), layout="constrained", sharex=True, sharey=True
)
for levels, ax in enumerate(axes.flat):
    f = to_piecewise_linear(*sawtooth_network(levels))
    corners = np.unique([-2.0, *f.breakpoints, 2.0])
    plotting.curves(corners, {"_f": f(corners)}, ax)
    ax.set_title(f"hidden layers: {levels}, kinks: {len(f.breakpoints)}")
assert [count_kinks(*sawtooth_network(n)) for n in range(8)] == [
    2**n - 1 for n in range(8)
]
assert (
    jb.count_params(sawtooth_network(5)[1]) == 31
    and jb.count_params(sawtooth_network(20)[1]) == 121
)
assert np.allclose(sawtooth(jnp.array([0.3]), 5), 0.4, atol=1e-5)

# %% [markdown]
# A net with $l$ hidden layers of two units has $2^l - 1$ kinks. A net with one hidden layer needs one unit per kink.
# For 31 kinks, the deep net has 31 parameters; the shallow net has 31 *units* with three parameters each. For 20
# layers, the deep net has 121 parameters, and the shallow net needs a million units.
#
# > **Huszár states:** the number of kinks of a deep net is about $O(2^{\text{depth}})$.
#
# **Counterexample:** random nets with 8 units per layer have about as many kinks as units, while folding nets of the
# same size have millions. **Correction:** $2^{\text{depth}} - 1$ is the number of kinks that folding with two units per
# layer *can reach* (wider layers reach more). It is not the typical number of kinks of a net.


# %%
def random_deep_net(hidden_layers, key):
    draw = {
        "kernel_init": initializers.he_normal(),
        "bias_init": initializers.normal(1.0),
    }
    hidden = [
        layer for _ in range(hidden_layers) for layer in (jb.Dense(8, **draw), jb.relu)
    ]
    net = jb.Serial(*hidden, jb.Dense(1))
    return net, net.init(key, jnp.zeros(1))


for n in (1, 2, 4, 8):
    kinks = [count_kinks(*random_deep_net(n, jax.random.key(i))) for i in range(4)]
    reach = region_lower_bound((8,) * n, 1) - 1
    print(
        f"hidden layers: {n}, units: {8 * n:2}, kinks: {kinks}, reached by folding: "
        f"{reach:,}"
    )
    assert np.mean(kinks) < 1.5 * 8 * n

# %% [markdown]
# ### Depth separation
#
# A small shallow net cannot even *approximate* the sawtooth (Telgarsky 2016). Take the triangle wave $\Delta^k$ on
# $[0, 1]$, a net of $2k$ layers. It crosses $\tfrac12$ at $2^k$ places. A net $g$ with fewer pieces crosses less often,
# so between most crossings its error contains the area of a triangle. If $g$ has at most $L$ layers and $N$ nodes, it
# has at most $(2N/L)^L$ pieces.
#
# > **The lecture notes state** for the class of all $g$: depth $O(L)$ and $O(2 L^2)$ nodes.
#
# **This statement has no counterexample**, but it is weak. For $L = 20$ the deep net has $3k = 3 (L^2 + 2) = 1206$
# nodes, and the claim is about nets with $2 L^2 = 800$ nodes, which are smaller anyway. **Correction:** the nets $g$
# may have up to $2^L$ nodes, here a million, which is *exponentially* many. For $k = L^2 + 2$ and every ReLU net $g$
# with at most $L$ layers and $2^L$ nodes,
#
# $$ \int_0^1 |\Delta^k(x) - g(x)|\, dx > \tfrac1{32} . $$

# %%
for L in (2, 3, 4):
    k = L**2 + 2
    pieces = pieces_bound(L, 2**L)
    print(
        f"L = {L}: the deep net has {2**k:7,} pieces, shallow nets have at most "
        f"{pieces:7.1f}",
        end="",
    )
    print(f"; their error is at least {separation_bound(k, pieces):.4f}")
    assert pieces < 2**k and separation_bound(k, pieces) > 1 / 32
assert 3 * (20**2 + 2) == 1206 and 2 * 20**2 == 800 and 2**20 > 1_000_000
assert separation(11, lambda x: 0 * x + 0.5) == 0.25  # the constant 1/2, exactly
assert separation(4, *triangle_network(4)) < 1e-6  # the deep net itself

# %% [markdown]
# ### Two inputs
#
# With two inputs, a hidden unit of the first layer changes the gradient along a whole straight line. This restricts the
# functions that one hidden layer can compute. The gradient of $\max(0, x, y)$ changes along *half*-lines. Consider the
# jump of the slope in direction $x$ across the line $x = 0$: it is 1 at $y = -1$, and 0 at $y = +1$. A unit of one
# hidden layer has the same jump along its whole line. Hence no net with one hidden layer is equal to this function. A
# net with two hidden layers needs four units.

# %%
net, params = max_zero_x_y()
maximum = lambda x: jnp.maximum(0, x.max(-1))
assert np.allclose(net.apply(params, x)[:, 0], maximum(x), atol=1e-6)
slope = lambda x, y: jax.grad(maximum)(jnp.array([x, y]))[0]
assert (
    slope(0.1, -1.0) - slope(-0.1, -1.0) == 1
    and slope(0.1, 1.0) - slope(-0.1, 1.0) == 0
)
axes = plotting.surface(maximum, ((-1, 1), (-1, 1)))

# %% [markdown]
# `regions` divides the plane into the **linear regions** of a net: the polygons on which the net is one affine map.
# Like `to_piecewise_linear`, it is exact. The number of regions is bounded as follows.
#
# * One hidden layer of $n$ units defines $n$ lines, which divide the plane into at most $1 + n + \binom n2$ cells: 211
#   for 20 units.
# * A second layer divides the *image* of the first layer. If the first layer maps 25 parts of the plane onto the same
#   image, then a line of the second layer through this image divides all 25 parts.

# %%
assert arrangement_regions(20, 2) == 1 + 20 + math.comb(20, 2) == 211
random_net = jb.Serial(
    jb.Dense(20, bias_init=initializers.normal(0.5)), jb.relu, jb.Dense(1)
)
shallow = regions(
    random_net, random_net.init(jax.random.key(0), jnp.zeros(2)), box=((-2, 2), (-2, 2))
)
deep = regions(*folding_network((10, 10)), box=((0, 1), (0, 1)))
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4.2), layout="constrained")
shallow.plot(left)
axes = deep.plot(right)
assert (
    shallow.linear_count <= 211
    and deep.linear_count == 25 * arrangement_regions(10, 2) == 1400
)
assert (2 * 20 + 20) + (20 + 1) == 81 and jb.count_params(
    folding_network((10, 10))[1]
) == 151

# %% [markdown]
# Left: 20 random units in one layer. Right: $10 + 10$ units in two layers. The number of rectifiers is the same, but
# the right net has far more regions. (It also has more parameters: 151 instead of 81.)
#
# > **The lecture notes state** that the number of affine regions is
# > $O\big(\binom{\text{width}}{d}^{d (\text{depth} - 1)}\, \text{width}^d\big)$ for $d$ inputs.
#
# **Counterexample:** for $d = 2$ and widths 10, 10 the formula gives $\binom{10}{2}^2 \cdot 10^2 = 202\,500$. But no
# net of this size has more than $56^2 = 3136$ regions. **Correction:** the bracket is not a binomial coefficient but
# the *fraction* $\text{width}/d$. The formula is a *lower* bound $\Omega$ on the maximum, not an upper bound. The depth
# counts hidden layers:
#
# $$ \max \#\text{regions} \;\ge\; \Big(\prod_{i=1}^{L-1} \Big\lfloor \frac{n_i}{d} \Big\rfloor^{d}\Big)
#    \sum_{j=0}^{d} \binom{n_L}{j} . $$
#
# For the net on the right this bound is $25 \cdot 56 = 1400$, and the net reaches it exactly.

# %%
assert math.comb(10, 2) ** 2 * 10**2 == 202_500
assert region_upper_bound((10, 10), 2) == 56**2 == 3136
assert region_lower_bound((10, 10), 2) == (10 // 2) ** 2 * 56 == 1400

# %% [markdown]
# ### Deep narrow networks
#
# Depth can replace width. The identity $\max(y, \ell) = \ell + \mathrm{ReLU}(y - \ell)$ gives a net that passes $x$
# through every layer in $d$ units and stores $y$ in one more unit. Such a net computes any sequence of maxima and
# minima of affine functions. These functions approximate all continuous functions.
#
# > **The lecture notes state:** width $d_{\text{in}} + 1$ is enough.
#
# **Counterexample:** one input, three outputs, width 2. The outputs are an affine function of two units, so they all
# lie in one plane in space, for every depth. A path through the corners $(0,0,0)$, $(1,0,0)$, $(1,1,0)$, $(1,1,1)$ of a
# cube does not: every plane has distance at least $1/\sqrt{12} = 0.289$ from one of them. **Correction:** for *one*
# output width $d_{\text{in}} + 1$ is enough, and width $d_{\text{in}}$ is not. For several outputs, the theorem (Hanin
# and Sellke 2017) guarantees that width $d_{\text{in}} + d_{\text{out}}$ is enough.

# %%
corners = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1]])
normals = np.random.default_rng(0).normal(size=(100_000, 3))
# extent of the corners in each direction
apart = np.ptp(normals @ corners.T, 1) / np.linalg.norm(normals, axis=1)
assert 1 / math.sqrt(12) <= apart.min() / 2 < 0.3  # the best plane lies midway

# min(max(x, -x), 2): three affine functions x, -x, 2 of one input; every hidden layer
# has 1 + 1 units
net, params = max_min_string(
    [[1.0, -1.0, 0.0]], [0.0, 0.0, 2.0], ["max", "min"], radius=8.0
)
at = np.linspace(-8, 8, 65, dtype=np.float32)
assert np.allclose(
    jax.jit(net.apply)(params, at[:, None])[:, 0],
    np.minimum(np.maximum(at, -at), 2),
    atol=1e-5,
)
assert [p["bias"].size for p in params if p] == [2, 2, 1]

# %% [markdown]
# ## 6. Exclusive or
#
# Exclusive or is the smallest function that no linear model computes:
# $x_1 \oplus x_2 = (x_1 \wedge \neg x_2) \vee (\neg x_1 \wedge x_2)$ is 1 if exactly one of two bits is 1. The best
# affine model has weights 0 and bias $\tfrac12$ (the slides mark this result with "??!"). The reason is that the labels
# have no linear trend, so the best affine prediction is the mean of the labels.

# A short history: the *elementary perceptron* (Rosenblatt, 1958) is a linear classifier of fixed features. Minsky and
# Papert (*Perceptrons*, 1969) proved what such a classifier cannot compute if each feature depends on few inputs:
# parity is their first example, and exclusive or is parity of two bits. Hidden layers remove this limit, as the next
# cells show, but no method to train them was widely known before backpropagation (notebook 7).

# %%
bits, labels = jnp.asarray(bit_rows(2), jnp.float32), jnp.array([0.0, 1.0, 1.0, 0.0])
best = jb.layers.linear_regression(bits, labels[:, None])
assert np.allclose(best["kernel"], 0, atol=1e-6) and np.allclose(best["bias"], 0.5)
assert np.allclose(jnp.mean((jb.affine(bits, **best)[:, 0] - labels) ** 2), 0.25)

# %% [markdown]
# Two rectifiers compute it: $\mathrm{ReLU}(x_1 + x_2) - 2\, \mathrm{ReLU}(x_1 + x_2 - 1)$.
#
# > **The slides state** $w_1 X$ and $W_1^\top x$ for the hidden layer, with the four inputs in the *rows* of $X$.
#
# **Error:** $W_1$ is $2 \times 2$ and $X$ is $4 \times 2$, so $W_1 X$ is not defined. **Correction:**
# $H = \mathrm{ReLU}(X W_1 + b_1)$. The numbers on the slides are right.

# %%
net, params = parity_shallow(2)
W1, b1 = params[0]["kernel"], params[0]["bias"]
steps = [bits, bits @ W1, bits @ W1 + b1, jb.relu(bits @ W1 + b1)]
assert steps[1].tolist() == [[0, 0], [1, 1], [1, 1], [2, 2]]
assert steps[2].tolist() == [[0, -1], [1, 0], [1, 0], [2, 1]]
assert steps[3].tolist() == [[0, 0], [1, 0], [1, 0], [2, 1]]
assert net.apply(params, bits)[:, 0].tolist() == labels.tolist()
figure, axes = plt.subplots(
    1, 4, figsize=(11, 3), layout="constrained", sharex=True, sharey=True
)
for ax, points, title in zip(
    axes, steps, ("$X$", "$X W_1$", "$X W_1 + b_1$", "$ReLU(X W_1 + b_1)$"), strict=True
):
    plotting.points(points, labels, ax, names=["label 0", "label 1"])
    ax.set(title=title, xlim=(-0.5, 2.5), ylim=(-1.5, 2.5))
# h_1 - 2 h_2 = 1/2
separating = axes[-1].plot([-0.5, 2.5], [-0.5, 1.0], "--", color="black")

# %% [markdown]
# The layer *folds* the square: it maps both points with label 1 to the same point. A line then separates the labels.
#
# ### Parity of $n$ bits
#
# The exclusive or of $n$ bits, also called parity, is 1 if the number of ones is odd.
#
# > **Krapac & Šegvić state:** a shallow model needs $O(2^n)$ hidden units for $n$-way exclusive or.
#
# **Counterexample:** for $n = 8$, one hidden layer of eight rectifiers suffices. **Correction:** $2^{n-1}$ is the
# number of units for the *truth table*, with one unit for each true row (each bracket of the formula above). But parity
# depends only on the sum $s$ of the bits. As a function of $s$ it is a zigzag with $n - 1$ interior kinks:
# $\mathrm{ReLU}(s) + 2 \sum_{k=1}^{n-1} (-1)^k\, \mathrm{ReLU}(s - k)$. A single cosine unit also computes it.

# %%
n = 8
rows = np.asarray(bit_rows(n), np.float32)
parity = rows.sum(1) % 2
ways = {
    "truth table, one unit per true row": (minterm_network(parity), 2 ** (n - 1)),
    "one hidden layer of rectifiers": (parity_shallow(n), n),
    "chain of pairwise exclusive ors": (parity_chain(n), 2 * (n - 1)),
    "a cosine": (parity_cosine(n), 1),
}
for name, ((net, params), units) in ways.items():
    assert np.allclose(jax.jit(net.apply)(params, rows)[:, 0], parity, atol=1e-5)
    print(f"{name:34} {units:4} units")

# %% [markdown]
# These constructions use the *knowledge* that parity depends on the sum. The next cell tests two methods without this
# knowledge. They know the labels of half of the 256 rows and predict the others from similar rows. The first method
# uses the nearest row, the second a sum of Gaussian functions centered at the given rows. Both are wrong for most rows,
# so they are worse than random guessing. The reason is that the nearest rows differ in one bit, so they have the other
# parity. If the target function is not smooth in this sense, the model needs prior knowledge about it (notebook 5).

# %%
order = np.random.default_rng(0).permutation(256)
given, asked = rows[order[:128]], rows[order[128:]]
nearest = jax.jit(jb.layers.knn_predict)(asked, given, parity[order[:128]].astype(int))
kernel = jax.jit(lambda x, y: jb.layers.rbf_kernel(x, y, gamma=0.2))
bumps = np.linalg.solve(
    kernel(given, given) + 1e-3 * np.eye(128), 2 * parity[order[:128]] - 1
)
by_bumps = kernel(asked, given) @ bumps > 0
right = [float(np.mean(guess == parity[order[128:]])) for guess in (nearest, by_bumps)]
print(
    f"accuracy on new rows: nearest row {right[0]:.0%}, Gaussians {right[1]:.0%}, a "
    f"net that uses the sum 100%"
)
assert right[0] < 0.05 and right[1] < 0.4

# %% [markdown]
# ## Summary
#
# | network | functions it computes |
# |---|---|
# | affine layers only | affine maps; the rank is at most the smallest width |
# | one hidden layer of $n$ rectifiers, one input | piecewise linear: all with $n - 1$ kinks, none with $n + 1$ |
# | one hidden layer, any number of units | every continuous function on a closed bounded set, approximately |
# | any number of hidden layers of $d_{\text{in}} + 1$ rectifiers, one output | the same as in the previous row |
# | $l$ hidden layers of two rectifiers | among others, functions with $2^l - 1$ kinks |
#
# ## Homework
#
# 1. **Structure and parameters.** A net has two inputs and the widths 5, 10, 5, 2. Write its equations, and count its
#    parameters.
# 2. **A linear layer from `Bias`.** `jb.Bias` is the layer $x \mapsto x + b$. How do you have to change it to get a
#    linear layer? Write this layer as a pair of functions, without `jb.Dense`.
# 3. **An MLP.** Build an MLP from this layer, for any list of widths.
# 4. **Design.** Use a first level of five rectifiers and a second level that adds them. Build the function that is 0
#    for $x \le 0$, rises to 1 at $x = 1$, is constant until 2, rises to 3 at $x = 3$, falls to 0 at 6, and is 0 for
#    $x \ge 6$.
# 5. **Depth.** Why do we not always use one hidden layer? How deep should a net be? Use the numbers of this notebook.
# 6. **Homogeneity.** $\mathrm{ReLU}(\alpha x) = \alpha\,\mathrm{ReLU}(x)$ for $\alpha > 0$. How does this help? Find at
#    least three consequences for a net.
#
# Try to solve the exercises before you read the solutions.
#
# ## Solutions
#
# **1.** $h_1 = \sigma(W_1 x + b_1)$, $h_2 = \sigma(W_2 h_1 + b_2)$, $h_3 = \sigma(W_3 h_2 + b_3)$, $f = W_4 h_3 + b_4$,
# with $W_1 \in \mathbb R^{5 \times 2}$, $W_2 \in \mathbb R^{10 \times 5}$, $W_3 \in \mathbb R^{5 \times 10}$,
# $W_4 \in \mathbb R^{2 \times 5}$. Layer by layer, the number of parameters is $15 + 60 + 55 + 12 = 142$.

# %%
# computes shapes only
shapes = jax.eval_shape(jb.MLP(5, 10, 5, 2).init, jax.random.key(0), x)
assert [jb.count_params(p) for p in shapes if p] == [
    15,
    60,
    55,
    12,
] and jb.count_params(shapes) == 142

# %% [markdown]
# **2. and 3.** The params also contain a matrix, and `init` needs its number of columns. If the matrix is the identity,
# the layer is equal to `Bias`.


# %%
def Linear(features):
    def init(key, x):
        scale = 1 / math.sqrt(x.shape[-1])
        return {
            "kernel": scale * jax.random.normal(key, (x.shape[-1], features)),
            "bias": jnp.zeros(features),
        }

    def apply(params, x):
        return x @ params["kernel"] + params["bias"]

    return jb.Layer(init, apply)


def perceptron(*widths):
    layers = [layer for width in widths for layer in (Linear(width), jb.relu)]
    return jb.Serial(*layers[:-1])  # no activation after the last one


bias = jnp.array([1.0, -1.0])
assert (
    Linear(2).apply({"kernel": jnp.eye(2), "bias": bias}, x)
    == jb.Bias().apply({"bias": bias}, x)
).all()
assert (
    jb.count_params(jax.eval_shape(perceptron(5, 10, 5, 2).init, jax.random.key(0), x))
    == 142
)
params = perceptron(5, 1).init(jax.random.key(0), x)
assert np.allclose(
    perceptron(5, 1).apply(params, x), jb.MLP(5, 1).apply(params, x), atol=1e-6
)

# %% [markdown]
# **4.** The breakpoints are 0, 1, 2, 3, 6 and the slopes are 0, 1, 0, 2, $-1$, 0. The *changes* of the slope are the
# weights of the second level: $h_{21} = h_{10} - h_{11} + 2 h_{12} - 3 h_{13} + h_{14}$ with
# $h_{1j} = \max(x - s_j, 0)$, $s = (0, 1, 2, 3, 6)$. The weights sum to 0, because the last slope is 0. The area below
# the graph is 8.

# %%
f = PiecewiseLinear(
    np.array([0.0, 1.0, 2.0, 3.0, 6.0]), np.array([0.0, 1.0, 0.0, 2.0, -1.0, 0.0]), 0.0
)
assert (
    np.diff(f.slopes).tolist() == [1, -1, 2, -3, 1]
    and abs(f.integral(0, 6) - 8) < 1e-12
)
net, params = two_level_model()
at = jnp.array([-1.0, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 4.5, 5.0, 6.0, 9.0])
assert (
    net.apply(params, at[:, None])[:, 0].tolist()
    == [0, 0, 0.5, 1, 1, 1, 2, 3, 2, 1.5, 1, 0, 0]
    == f(at).tolist()
)
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
axes = f.plot(axes)

# %% [markdown]
# **5.** One hidden layer is always enough in principle, but its width can be too large in practice. Each kink needs one
# unit, and 20 folds of two units each give $2^{20} - 1$ kinks. A truth table needs one unit for each true row, which is
# $2^{n-1}$ units for parity. 20 units in one layer give at most 211 regions in the plane; $10 + 10$ units in two layers
# give 1400 and more. The textbook of Goodfellow, Bengio and Courville says: one layer suffices, but it may be
# infeasibly large and fail to learn; depth can reduce the number of units and the error on new data.
#
# Theory gives no number for the depth. Deep nets can compute more functions with fewer units. But random deep nets do
# not use this capacity (section 5), and it is a separate question whether training finds such functions. In practice
# the depth is chosen on validation data (notebooks 3 and 8). Prior knowledge about the problem should be built into the
# layers (notebooks 5 and 6).
#
# **6.** (a) *One input: kernels with entries $\pm 1$ suffice.*
# $a\,\mathrm{ReLU}(w x + b) = a |w|\, \mathrm{ReLU}(\pm x + b/|w|)$, so every net of section 3 is equal to a net with
# $a^{(1)}_i = \pm 1$.

# %%
net = jb.MLP(8, 1)
params = net.init(jax.random.key(0), jnp.zeros(1))
signs = unit_kernels(params)
assert np.allclose(abs(signs[0]["kernel"]), 1)
assert np.allclose(
    net.apply(signs, at[:, None]), net.apply(params, at[:, None]), atol=1e-5
)

# %% [markdown]
# (b) *Many params give the same function.* Multiply a hidden layer by $\alpha > 0$ and divide the next layer by
# $\alpha$: the function does not change. For $\alpha = 4$ the outputs are equal to the last bit. The scale of each
# layer can therefore be normalized. For tanh this property does not hold.

# %%
net, smooth = jb.MLP(8, 8, 1), jb.MLP(8, 8, 1, activation=jb.tanh)
params = net.init(jax.random.key(1), x)
scaled = rescale(params, [4.0, 0.5])
assert (net.apply(scaled, x) == net.apply(params, x)).all()
assert not np.allclose(smooth.apply(scaled, x), smooth.apply(params, x), atol=0.01)

# %% [markdown]
# (c) *Euler's identities.* Without biases, $f(\alpha x) = \alpha f(x)$. The derivative with respect to $\alpha$ at 1 is
# $\langle x, \nabla_x f \rangle = f$. In the same way, $\langle W_l, \nabla_{W_l} f \rangle = f$ for *every* layer.
# (`euler_terms` also adds the terms of the biases; they are zero here.)

# %%
terms = jax.jit(lambda params, x: euler_terms(net, params, x))(params, x)
assert np.allclose(terms.inputs, terms.output, atol=1e-5)
assert all(np.allclose(kernel, terms.output, atol=1e-5) for kernel in terms.kernels)

# %% [markdown]
# (d) *Gradient flow conserves* $\lVert W_l \rVert^2 + \lVert b_l \rVert^2 - \lVert W_{l+1} \rVert^2$: by (c), the
# squared norms of all layers change at the same rate. Gradient descent with step size $\eta$ changes this quantity by
# an amount proportional to $\eta$.


# %%
@functools.partial(jax.jit, static_argnums=0)
def drift(step_size, time=1.0):
    loss = lambda params: jnp.mean((net.apply(params, x) - 1) ** 2)
    step = lambda params, _: (
        jax.tree.map(lambda p, g: p - step_size * g, params, jax.grad(loss)(params)),
        None,
    )
    end = jax.lax.scan(step, params, length=round(time / step_size))[0]
    return abs(norm_differences(end) - norm_differences(params)).max()


coarse, fine = drift(0.01), drift(0.001)
print(f"drift {coarse:.2e} with steps of 0.01, {fine:.2e} with steps of 0.001")
assert 8 < coarse / fine < 12

# %% [markdown]
# (e) *Large outputs do not mean a better classifier.* If the weights of $L$ layers without biases are doubled, the
# outputs are multiplied by $2^L$ and the decisions stay the same. To compare the margins of two classifiers, first
# divide by the norms of the weights.
