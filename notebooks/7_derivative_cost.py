# %% [markdown]
# # The cost of derivatives
#
# A net is a composition of functions, and the chain rule turns its derivative into a product of matrices. The product
# does not depend on the order of multiplication, but the number of operations does: in section 1 by a factor of ninety.
# **What does a derivative cost, compared with the function itself, and in which order should the matrices be
# multiplied?**
#
# Costs are counted, not timed, by `chain_cost` and `count_flops`: counts are the same on every machine. Where section 4
# measures time, the result is that of one run.

# %%
import math
from itertools import pairwise, product

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxblocks as jb
from jaxblocks.ad import (
    binomial_steps,
    bracketings,
    chain_cost,
    cost_table,
    count_flops,
    hvp,
    jacobian,
    jacobian_chain,
    jacobian_plan,
    memory_curve,
    multiply_chain,
    optimal_order,
    saved_numbers,
    trace_table,
)

key = jax.random.key(0)
quick = False  # True: small nets in the measurements, for a fast run

# %% [markdown]
# ## 1. The chain rule as a product of matrices
#
# Take functions $f_1, \dots, f_L$, applied one after the other, with $d_0$ inputs and $d_l$ outputs of $f_l$. The
# **Jacobian** $J_l$ of $f_l$ has a row for each output and a column for each input. The chain rule says
#
# $$ \frac{\partial f_L(\cdots f_2(f_1(x)))}{\partial x} = J_L\, J_{L-1} \cdots J_2\, J_1 , $$
#
# with each $J_l$ evaluated at its own input. The function that is applied first is on the right.

# %%
widths = (4, 3, 5, 2)
layers = [jb.Serial(jb.Dense(d), jb.tanh) for d in widths[1:]]
net, x = jb.Serial(*layers), jnp.array([0.5, -1.0, 2.0, 0.1])
params = jax.jit(net.init)(key, x)
fs = [lambda h, i=i: layers[i].apply(params[i], h) for i in range(3)]  # f_1, f_2, f_3
J1, J2, J3 = jax.jit(lambda x: jacobian_chain(fs, x))(x)
whole = jax.jit(jax.jacobian(lambda x: net.apply(params, x)))(x)
assert (J1.shape, J2.shape, J3.shape) == ((3, 4), (5, 3), (2, 5))
assert np.allclose(J3 @ J2 @ J1, whole, atol=1e-6)

# %% [markdown]
# The product of an $m \times k$ and a $k \times n$ matrix takes $m k n$ multiplications. For the dimensions $1000, 500,
# 100, 1$, a net with a scalar output:
#
# | order | first product | second product | multiplications |
# |---|---|---|---|
# | $J_3 (J_2 J_1)$, from right to left | $100 \cdot 500 \cdot 1000$ | $1 \cdot 100 \cdot 1000$ | 50 100 000 |
# | $(J_3 J_2) J_1$, from left to right | $1 \cdot 100 \cdot 500$ | $1 \cdot 500 \cdot 1000$ | 550 000 |
#
# From **right to left** is the direction from input to output: **forward mode**. From **left to right** starts at the
# output: **reverse mode**. For a chain of any length
#
# $$ \text{forward:}\quad d_0 \sum_{l=2}^{L} d_l\, d_{l-1}, \qquad\qquad
#    \text{reverse:}\quad d_L \sum_{l=0}^{L-2} d_l\, d_{l+1} , $$
#
# since in forward mode every intermediate product has $d_0$ columns, and in reverse mode $d_L$ rows. Where
# $d_1 = d_{L-1}$ both cost the same exactly at $d_0 = d_L$: the figure shows the chain $256, 512, 512, d_3$.

# %%
dims = (1000, 500, 100, 1)
in_forward, in_reverse = (chain_cost(dims, order=o) for o in ("forward", "reverse"))
assert in_forward == 100 * 500 * 1000 + 1 * 100 * 1000 == 50_100_000
assert in_reverse == 1 * 100 * 500 + 1 * 500 * 1000 == 550_000
assert 91 < in_forward / in_reverse < 92
crossing = optimal_order((256, 512, 512, 256))
assert crossing.crossover == 256
figure, ax = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
axes = crossing.plot(ax)

# %% [markdown]
# **Exercise 1.** Complete the two formulas.


# %% tags=["exercise"]
def forward_cost(d):
    return 0  # complete this line


def reverse_cost(d):
    return 0  # complete this line


# %% tags=["solution"]
def forward_cost(d):
    return d[0] * sum(d[i] * d[i - 1] for i in range(2, len(d)))


def reverse_cost(d):
    return d[-1] * sum(d[i] * d[i + 1] for i in range(len(d) - 2))


# %% tags=["check"]
for chain in [dims, (784, 128, 64, 10, 1), (2, 5, 10, 5, 2), (3, 9, 2)]:
    assert forward_cost(chain) == chain_cost(chain, order="forward"), "count forward"
    assert reverse_cost(chain) == chain_cost(chain, order="reverse"), "count reverse"

# %% [markdown]
# ## 2. The best order
#
# Forward and reverse mode are two of many orders: four matrices have five bracketings, five have 14, six have 42 (the
# Catalan numbers). For a chain with a bottleneck neither mode is the best.

# %%
assert [sum(1 for _ in bracketings(n)) for n in (2, 3, 4, 5, 6)] == [1, 2, 5, 14, 42]
narrow = (50, 1, 50, 50, 50)  # a bottleneck of one number
best = optimal_order(narrow)
assert (best.cost, best.reverse, best.forward) == (7_500, 130_000, 252_500)
assert best.bracketing == "(J4 (J3 J2)) J1"
rng = np.random.default_rng(0)
factors = [jnp.asarray(rng.normal(size=(m, n)), "f4") for n, m in pairwise(narrow)]
products = [multiply_chain(factors, order=order) for order in bracketings(4)]
assert all(np.allclose(p, products[0], rtol=1e-3, atol=1e-3) for p in products)
best

# %% [markdown]
# **Dynamic programming.** The number of bracketings grows like $4^L$ up to a power of $L$. But the *last* product of a
# bracketing multiplies some $J_L \cdots J_{k+1}$ by $J_k \cdots J_1$, and in a cheapest order both parts have minimal
# cost. So the minimal cost $C(i, j)$ of $J_j \cdots J_{i+1}$ satisfies
#
# $$ C(i, j) = \min_{i < k < j}\; C(k, j) + C(i, k) + d_j\, d_k\, d_i , \qquad C(i, i + 1) = 0 , $$
#
# and each of the about $L^2/2$ values is computed once.
#
# **Theorem.** If $d_L = 1$ and all other dimensions are at least 2, no order is cheaper than reverse mode.
#
# *Proof.* First a bound for any order of a part whose dimensions are all at least 2:
#
# $$ C(i, j) + d_i d_j \;\ge\; \sum_{l=i}^{j-1} d_l d_{l+1} . \tag{$*$} $$
#
# By induction. For one factor both sides are equal. Let the last product join the parts at $k$. By $(*)$ for both parts
# $C(k, j) + C(i, k) \ge \sum_l d_l d_{l+1} - d_k d_j - d_i d_k$, so $d_i d_k d_j + d_i d_j \ge d_i d_k + d_k d_j$ is
# sufficient. Divided by $d_i d_j$ it is $d_k + 1 \ge d_k (1/d_j + 1/d_i)$, and $1/d_i + 1/d_j \le 1$.
#
# For the chain, by induction on its length: let the last product join at $k$, at the cost $d_k d_0$. The left part ends
# in 1 and costs at least $\sum_{l=k}^{L-2} d_l d_{l+1}$. The right part costs at least
# $\sum_{l=0}^{k-1} d_l d_{l+1} - d_0 d_k$ by $(*)$. The sum is the cost of reverse mode. $\square$
#
# The condition is needed: for the dimensions 1, 100, 2, 1 forward mode is cheaper. A loss of a net has many parameters
# and layers wider than one unit, so the theorem holds for training. The cell checks all 1360 chains of two to five
# factors with dimensions 2, 3, 4 or 7.

# %%
exception = optimal_order((1, 100, 2, 1))
assert (exception.forward, exception.reverse) == (202, 300)
chains = [(*d, 1) for L in (2, 3, 4, 5) for d in product((2, 3, 4, 7), repeat=L)]
orders = [optimal_order(chain) for chain in chains]
assert len(orders) == 1360 and all(order.cost == order.reverse for order in orders)

# %% [markdown]
# **Nets with a bottleneck.** An autoencoder compresses an image to a few numbers. The best order for its Jacobian
# starts at the bottleneck: 8 rows back to the input, 8 columns forward to the output, and one product at the end.
# `jacobian_plan` finds it for any function, and `jacobian` computes it. In the figure the bars are the values between
# the layers, and each line below is one step. By count it needs about 40 times fewer operations than `jax.jacfwd`.

# %%
image = jax.random.normal(key, (784,))
autoencoder = jb.MLP(256, 64, 8, 64, 256, 784, activation=jb.tanh)
its_params = jax.jit(autoencoder.init)(key, image)
reconstruct = lambda x: autoencoder.apply(its_params, x)
plan = jacobian_plan(reconstruct, image)
assert plan.mode == "mixed"
assert plan.bracketing == optimal_order((784, 256, 64, 8, 64, 256, 784)).bracketing
modes = {"jacfwd": jax.jacfwd, "jacrev": jax.jacrev, "jacobian": jacobian}
flops = {
    name: count_flops(mode(reconstruct), image).flops for name, mode in modes.items()
}
ratio = flops["jacfwd"] / flops["jacobian"]
print(f"jacfwd / jacobian: {ratio:.1f}")
assert 35 < ratio < 45
by_reverse, by_plan = (jax.jit(f(reconstruct))(image) for f in (jax.jacrev, jacobian))
assert np.allclose(by_reverse, by_plan, atol=1e-5)
figure, ax = plt.subplots(figsize=(6.5, 3.6), layout="constrained")
axes = plan.plot(ax)

# %% [markdown]
# **Exercise 2.** Complete the dynamic program (it fills the table `C` for longer and longer parts).


# %% tags=["exercise"]
def cheapest(d):
    C = {(i, i + 1): 0 for i in range(len(d) - 1)}
    for part in range(2, len(d)):
        for i in range(len(d) - part):
            C[i, i + part] = 0  # complete this line
    return C[0, len(d) - 1]


# %% tags=["solution"]
def cheapest(d):
    C = {(i, i + 1): 0 for i in range(len(d) - 1)}
    for part in range(2, len(d)):
        for i in range(len(d) - part):
            j = i + part
            C[i, j] = min(
                C[m, j] + C[i, m] + d[j] * d[m] * d[i] for m in range(i + 1, j)
            )
    return C[0, len(d) - 1]


# %% tags=["check"]
for chain in [narrow, dims, (784, 128, 64, 10, 1), (3, 9, 2, 8, 2, 7, 5)]:
    least = min(chain_cost(chain, order=o) for o in bracketings(len(chain) - 1))
    assert cheapest(chain) == least, "the minimum over the place of the last product"

# %% [markdown]
# ## 3. Forward and reverse mode without matrices
#
# The Jacobian of a layer with a thousand inputs and outputs has a million entries. Neither mode forms it:
#
# * forward mode propagates a vector: $v \mapsto J_1 v \mapsto J_2 (J_1 v) \mapsto \dots$ One pass computes $J v$
#   (`jax.jvp`); for a unit vector $v$ it is one **column** of $J$;
# * reverse mode propagates a vector backward: $u \mapsto u^\top J_L \mapsto (u^\top J_L) J_{L-1} \mapsto \dots$ One
#   pass computes $u^\top J$ (`jax.vjp`); for a unit vector $u$ it is one **row** of $J$.

# %%
f = lambda x: net.apply(params, x)
first_of_four, first_of_two = jnp.eye(4)[0], jnp.eye(2)[0]
_, column = jax.jvp(f, (x,), (first_of_four,))
_, pull_back = jax.vjp(f, x)
(row,) = pull_back(first_of_two)
assert np.allclose(column, whole[:, 0], atol=1e-6)
assert np.allclose(row, whole[0], atol=1e-6)

# %% [markdown]
# Both modes split a function into elementary operations. For $y = \ln x_1 + x_1 x_2 - \sin x_2$ at $(2, 5)$ (the
# example of the survey by Baydin et al. 2018), with $v_{-1} = x_1$, $v_0 = x_2$: the **primal trace** has the values;
# the **tangent trace** $\dot v_k = \partial v_k / \partial x_1$ runs in the same order; the **adjoint trace** $\bar v_k
# = \partial y / \partial v_k$ runs backward from $\bar v_5 = 1$. There each line adds to the adjoints of its operands
# its own adjoint times its derivative. A variable that is used twice gets two contributions, and they are **added**.

# %%
v_m1, v0 = 2.0, 5.0
v1, v2, v3 = math.log(v_m1), v_m1 * v0, math.sin(v0)
v4 = v1 + v2
v5 = v4 - v3
assert [round(v, 3) for v in (v1, v2, v3, v4, v5)] == [
    0.693,
    10,
    -0.959,
    10.693,
    11.652,
]
adj5 = 1.0
adj4, adj3 = adj5, -adj5  # v5 = v4 - v3
adj1 = adj2 = adj4  # v4 = v1 + v2
adj0 = adj3 * math.cos(v0)  # v3 = sin v0
adj0 = adj0 + adj2 * v_m1  # v2 = v_{-1} v0: added to the contribution of v3
adj_m1 = adj2 * v0
adj_m1 = adj_m1 + adj1 / v_m1  # v1 = ln v_{-1}
assert (adj_m1, round(adj0, 3)) == (5.5, 1.716)
survey = lambda x1, x2: jnp.log(x1) + x1 * x2 - jnp.sin(x2)
trace = trace_table(survey, 2.0, 5.0)
assert np.allclose(trace.gradient, (adj_m1, adj0))
trace

# %% [markdown]
# One reverse pass computes *both* partial derivatives; forward mode needs one pass for each input. The figure is the
# same computation as a graph, with the values below the nodes and the adjoints above them.

# %%
figure, ax = plt.subplots(figsize=(6.5, 3.6), layout="constrained")
axes = trace.plot(ax)

# %% [markdown]
# ### Backpropagation
#
# Backpropagation is the reverse mode for a net (Linnainmaa 1970; Werbos 1974; Rumelhart, Hinton and Williams 1986). The
# **forward pass** computes and stores $u_l = X_l\, a_{l-1} + \mu_l$ and $a_l = \sigma(u_l)$; the last layer has no
# activation. The **backward pass** starts with $\partial L / \partial a_k$ and computes for $l = k, \dots, 1$
#
# $$ \frac{\partial L}{\partial u_l} = \frac{\partial L}{\partial a_l} \odot \sigma'(u_l), \qquad
#    \frac{\partial L}{\partial X_l} = \frac{\partial L}{\partial u_l}\, a_{l-1}^\top, \qquad
#    \frac{\partial L}{\partial \mu_l} = \frac{\partial L}{\partial u_l}, \qquad
#    \frac{\partial L}{\partial a_{l-1}} = X_l^\top \frac{\partial L}{\partial u_l} . $$
#
# A common error is to use $\partial L / \partial a_l$ instead of $\partial L / \partial u_l$ in the second and third
# formula.
#
# **Exercise 3.** Complete the backward pass for tanh ($\sigma' = 1 - \tanh^2$).


# %%
def forward_pass(X, mu, a):
    stored = []
    for i in range(len(X)):
        u = X[i] @ a + mu[i]
        stored.append((a, u))  # the input of the layer and its pre-activation
        a = u if i == len(X) - 1 else jnp.tanh(u)
    return a, stored


# %% tags=["exercise"]
def backward_pass(X, stored, dL_da):
    dX = [jnp.zeros_like(kernel) for kernel in X]
    dmu = [jnp.zeros(len(kernel)) for kernel in X]
    return dX, dmu  # complete this function


# %% tags=["solution"]
def backward_pass(X, stored, dL_da):
    dX, dmu = [], []
    for layer_number in reversed(range(len(X))):
        before, pre = stored[layer_number]
        last = layer_number == len(X) - 1
        dL_du = dL_da if last else dL_da * (1 - jnp.tanh(pre) ** 2)
        dX.insert(0, jnp.outer(dL_du, before))
        dmu.insert(0, dL_du)
        dL_da = X[layer_number].T @ dL_du
    return dX, dmu


# %% tags=["check"]
normal = np.random.default_rng(1).normal
kernels = [jnp.asarray(normal(size=s), "f4") for s in ((7, 5), (3, 7), (2, 3))]
shifts = [jnp.asarray(normal(size=s), "f4") for s in (7, 3, 2)]
a0, b = jnp.asarray(normal(size=5), "f4"), jnp.asarray(normal(size=2), "f4")
squared = lambda X, mu: jnp.sum((forward_pass(X, mu, a0)[0] - b) ** 2)
by_jax = jax.jit(jax.grad(squared, (0, 1)))(kernels, shifts)
output, stored = forward_pass(kernels, shifts, a0)
by_hand = backward_pass(kernels, stored, 2 * (output - b))
for mine, true in zip(*map(jax.tree.leaves, (by_hand, by_jax)), strict=True):
    assert np.allclose(mine, true, atol=1e-4), "compare with the four formulas"

# %% [markdown]
# ## 4. What a derivative costs
#
# **A pass.** For each elementary operation a pass of either mode does a bounded number of operations more. So $J v$,
# $u^\top J$, and the **gradient** of a scalar function cost a small multiple of the function, *for any number of
# variables*: the cheap gradient principle (Baur and Strassen 1983: at most 5 times for rational functions). The whole
# Jacobian takes $d_0$ columns (`jacfwd`) or $d_L$ rows (`jacrev`). The table counts a net from 784 to 10.

# %%
wide = jb.MLP(128, 64, 10, activation=jb.tanh)
wide_params = jax.jit(wide.init)(key, image)
table = cost_table(lambda x: wide.apply(wide_params, x), image, measure=False)
assert 1.9 < table.jvp.flops_ratio < 2.1 and 1.9 < table.vjp.flops_ratio < 2.1
assert 780 < table.jacfwd.flops_ratio < 790 and 10 < table.jacrev.flops_ratio < 12
table

# %% [markdown]
# **All layers at once.** If the derivative with respect to each of $k$ matrices of size $m \times m$ is computed by its
# own pass, up to $k$ layers are passed $k$ times: $O(k^2 m^2)$. Backpropagation computes each product once: $O(k m^2)$,
# as the function itself. It cannot be less: the gradient has $k m^2$ entries. The counts agree: for twice the number of
# layers backpropagation costs twice as much and single passes four times; for twice the width backpropagation costs
# four times as much.


# %%
def loss(X):
    a = jnp.ones(X[0].shape[1])
    for matrix in X:
        a = jnp.tanh(matrix @ a)
    return jnp.sum(a**2)


def one_by_one(X):
    of = lambda i: jax.grad(lambda own: loss([*X[:i], own, *X[i + 1 :]]))(X[i])
    return [of(i) for i in range(len(X))]


depths = (2, 4, 8, 16)
chains = [[jnp.ones((64, 64))] * k for k in depths]
shared = [count_flops(jax.grad(loss), X).flops for X in chains]
separate = [count_flops(one_by_one, X).flops for X in chains]
assert 1.9 < shared[-1] / shared[-2] < 2.15 and 3.7 < separate[-1] / separate[-2] < 4.1
twice_as_wide = [jnp.ones((128, 128))] * 4
assert 3.9 < count_flops(jax.grad(loss), twice_as_wide).flops / shared[1] < 4.05
figure, ax = plt.subplots(figsize=(5, 3), layout="constrained")
ax.loglog(depths, separate, "s--", label="one by one")
ax.loglog(depths, shared, "o-", label="backpropagation")
ax.set(xlabel="layers", ylabel="operations")
legend = ax.legend()

# %% [markdown]
# **Time.** Counts say little about the time of small programs: a call of less than a millisecond is mainly the start of
# the program. Here the function is the mean loss of a classifier over a batch, the variables are 16 numbers. The table
# has the counted operations and, for this run and machine, the median times of five rounds.

# %%
batch, hidden = (8, 16) if quick else (256, 256)
classifier = jb.MLP(hidden, hidden, 10, activation=jb.tanh)
examples = jax.random.normal(key, (batch, 16))
batch_params = jax.jit(classifier.init)(key, examples)


def mean_loss(shift, params):
    scores = classifier.apply(params, examples + shift)
    return jb.softmax_cross_entropy(scores, jnp.ones(batch, jnp.int32)).mean()


rows = ("gradient", "jacfwd", "hessian", "hvp")
timed = cost_table(mean_loss, jnp.zeros(16), batch_params, rows=rows, repeats=5)
assert timed.gradient.flops_ratio < 2.4 and timed.hvp.flops_ratio < 4.6
assert 15 < timed.jacfwd.flops_ratio < 20 and timed.hessian.flops_ratio > 16 * 2
timed

# %% [markdown]
# **Exercise 4.** For $s = W h$ with $W$ of $m \times n$, $\partial L / \partial W$ can be computed as $\partial L /
# \partial s$ times the full Jacobian $\partial s / \partial \operatorname{vec} W$, or as the outer product of section
# 3. Complete the number of multiplications of each.


# %% tags=["exercise"]
def by_full_jacobian(m, n):
    return 0  # complete this line


def by_outer_product(m, n):
    return 0  # complete this line


# %% [markdown] tags=["solution"]
# Row $i$ of $s$ depends only on row $i$ of $W$, with the weights $h$: the full Jacobian is $I \otimes h^\top$, a matrix
# of $m \times m n$ entries, of which only a fraction $1/m$ is nonzero. The outer product leaves out the zeros.


# %% tags=["solution"]
def by_full_jacobian(m, n):
    return m * m * n


def by_outer_product(m, n):
    return m * n


# %% tags=["check"]
of_s, of_h, of_full = jnp.ones(100), jnp.ones(50), jnp.ones((100, 5000))
full_count = count_flops(jnp.matmul, of_s, of_full).multiplications
assert by_full_jacobian(100, 50) == full_count, "a row times a matrix of m x (m n)"
outer_count = count_flops(jnp.outer, of_s, of_h).multiplications
assert by_outer_product(100, 50) == outer_count, "one product for each entry of W"

# %% [markdown]
# ## 5. Memory, and second derivatives
#
# Forward mode needs only the current value and its tangent. Reverse mode needs the intermediate values in reverse
# order: **they must be stored**, so its memory grows linearly with the depth. **Checkpointing** (Griewank and Walther
# 2000; Chen et al. 2016) stores some and recomputes the others: with about $2 \sqrt n$ of $n$ layers each layer is
# evaluated about once more. The figure has the memory that the compiler allocates for a residual net of width 64, in
# this version of JAX: it is constant for `jvp`, linear for the gradient, and grows about like the square root with
# `checkpoint="sqrt"`.


# %%
def tanhs(n):
    def f(x):
        for _ in range(n):
            x = jnp.tanh(x)
        return x

    return f


thousand = jnp.ones(1000)
kept = [saved_numbers(tanhs(n), thousand) for n in (2, 8, 32)]
assert kept[1] == 4 * kept[0] and kept[2] == 16 * kept[0]  # linear in the depth
once = [saved_numbers(jax.checkpoint(tanhs(n)), thousand) for n in (2, 8, 32)]
assert once == [1_000] * 3  # the input alone


def make(depth, checkpoint=None):
    block = jb.Residual(jb.Dense(64), jb.tanh)
    deep, h = jb.Repeat(block, depth, checkpoint=checkpoint), jnp.ones((32, 64))
    energy = lambda params: jnp.sum(deep.apply(params, h) ** 2)
    return energy, jax.eval_shape(deep.init, key, h)  # shapes suffice


curve = memory_curve(make, (16, 128), checkpoints=("sqrt",))
assert curve.growth("jvp") == 0 and 0.9 < curve.growth("gradient") < 1.1
assert 0.3 < curve.growth("gradient, checkpoint='sqrt'") < 0.6
figure, ax = plt.subplots(figsize=(5.5, 3.4), layout="constrained")
axes = curve.plot(ax)

# %% [markdown]
# **Hessian-vector products.** The Hessian $H$ of a net with a million params has $10^{12}$ entries. Methods that use
# curvature often need only products $H v$ (Pearlmutter 1994):
#
# $$ H v = \frac{\partial}{\partial x} \big( g(x)^\top v \big) = \frac{d}{d\epsilon}\, g(x + \epsilon v)
#    \Big|_{\epsilon = 0} , $$
#
# the derivative of the gradient $g$ along $v$ (for a twice continuously differentiable function, since $H$ is then
# symmetric). This is one `jvp` of `grad`, forward over reverse mode, and forms no matrix. With respect to the 109 386
# params of the classifier of section 4 it takes less than two gradients by count; the full Hessian would take 109 386
# products and 48 gigabytes.

# %%
point, v = jnp.array([2.0, 5.0]), jnp.array([1.0, -2.0])
y = lambda x: survey(x[0], x[1])
H = jax.jit(jax.hessian(y))(point)
assert np.allclose(H, jnp.array([[-0.25, 1.0], [1.0, -0.9589243]]))
Hv = jax.jit(lambda v: hvp(y, point, v))(v)
assert np.allclose(Hv, H @ v) and np.allclose(Hv, [-2.25, 2.9178485])
of_params = lambda p: jb.softmax_cross_entropy(wide.apply(p, image), jnp.int32(3))
n = jb.count_params(wide_params)
second = cost_table(of_params, wide_params, rows=("gradient", "hvp"), measure=False)
assert n == 109_386 and round(4 * n**2 / 1e9) == 48
assert second.hvp.flops < 2 * second.gradient.flops
second

# %% [markdown]
# **Exercise 5.** With $c$ stored values at a time, at optimal positions, `binomial_steps(n, c)` forward steps reach all
# $n$ layers from last to first. With one stored value, the input, the pass restarts for every layer. Complete the
# number of steps for $c = 1$; and the product $H v$ without `hvp` and without a matrix.


# %% tags=["exercise"]
def steps_with_one_value(n):
    return n  # complete this line


def hessian_times(f, x, v):
    return 0 * v  # complete this line


# %% tags=["solution"]
def steps_with_one_value(n):
    return n * (n - 1) // 2


def hessian_times(f, x, v):
    return jax.jvp(jax.grad(f), (x,), (v,))[1]


# %% tags=["check"]
assert all(steps_with_one_value(N) == binomial_steps(N, 1) for N in (2, 16, 256)), (
    "to reach layer i from the input takes i steps"
)
assert np.allclose(hessian_times(y, point, v), Hv), "differentiate the gradient along v"

# %% [markdown]
# ## Summary
#
# | derivative | cost |
# |---|---|
# | $Jv$ or $u^\top J$, one pass | about 2 functions in the table of section 4 |
# | gradient of a scalar function | a small multiple of the function; memory grows with depth |
# | Jacobian, forward (reverse) mode | $d_0$ ($d_L$) passes |
# | Jacobian, best order | less for nets with a bottleneck: about 40 times less than `jacfwd` for the autoencoder |
# | Hessian-vector product | less than two gradients for the classifier; the Hessian is $n$ products |
#
# On the site, <a href="../ad_cost.html">The cost of derivatives</a> is a page with sliders for the widths of a chain.
# `jaxblocks.ad.explore(f, x).save("page.html")` writes it for your own function.
