# %% [markdown]
# # The cost of derivatives
#
# A net is a composition of functions, and the chain rule turns its derivative into a product of matrices. The product
# does not depend on the order of multiplication, but the number of operations does: for the same net it can differ by a
# factor of ninety (section 2). This notebook answers two questions:
#
# 1. **What does a derivative cost**, compared with the function itself?
# 2. **In which order should the matrices of the chain rule be multiplied?**
#
# It also covers forward and reverse mode, the evaluation trace of a small function, backpropagation by hand, its
# memory, and products with a Hessian that is never formed. An `assert` in the next code cell checks each claim of the
# text. The homework at the end has solutions.
#
# **Prerequisites:** matrix products, partial derivatives and basic Python. **Sources:** Huszár, *DeepNN lecture 3*;
# Krapac & Šegvić, *Deep feed-forward models*; Cevher, *Mathematics of Data*. Some formulas in these sources contain
# errors. For each error, this notebook gives the printed form, a counterexample and the corrected form.

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
    checkpoint_table,
    cost_table,
    count_flops,
    hvp,
    jacobian,
    jacobian_chain,
    jacobian_plan,
    memory_curve,
    mode_grid,
    multiply_chain,
    optimal_order,
    saved_numbers,
    trace_table,
)
from jaxblocks.ad.costs.memory import compiled_bytes
from jaxblocks.ad.costs.timing import time_in_turns
from jaxblocks.plotting import PALETTE

key = jax.random.key(0)
quick = False  # True: small nets in the measurements, for a fast run

# %% [markdown]
# ## 1. The chain rule as a product of matrices
#
# Take functions $f_1, f_2, \dots, f_L$, applied one after the other. Let $d_0$ be the number of inputs and $d_l$ the
# number of outputs of $f_l$. The **Jacobian** $J_l$ of $f_l$ has a row for each output and a column for each input: it
# is a $d_l \times d_{l-1}$ matrix of partial derivatives. The chain rule says
#
# $$ \frac{\partial f_L(\cdots f_2(f_1(x)))}{\partial x} = J_L\, J_{L-1} \cdots J_2\, J_1 , $$
#
# with each $J_l$ evaluated at its own input. The function that is applied first is on the right. Sections 1 to 5
# differentiate with respect to the input $x$; section 6 adds the parameters of the layers.
#
# The next cell builds a chain of three layers, $4 \to 3 \to 5 \to 2$.

# %%
sizes = (4, 3, 5, 2)
layers = [jb.Serial(jb.Dense(d), jb.tanh) for d in sizes[1:]]
net = jb.Serial(*layers)
x = jnp.array([0.5, -1.0, 2.0, 0.1])
params = jax.jit(net.init)(key, x)
fs = [lambda h, i=i: layers[i].apply(params[i], h) for i in range(3)]  # f_1, f_2, f_3

# %% [markdown]
# `jacobian_chain` evaluates the chain and returns $J_1, J_2, J_3$. Their product is the Jacobian of the whole net, as
# `jax.jacobian` computes it.

# %%
J1, J2, J3 = jax.jit(lambda x: jacobian_chain(fs, x))(x)
print("shapes:", J1.shape, J2.shape, J3.shape)
whole = jax.jit(jax.jacobian(lambda x: net.apply(params, x)))(x)
assert (J1.shape, J2.shape, J3.shape) == ((3, 4), (5, 3), (2, 5))
assert np.allclose(J3 @ J2 @ J1, whole, atol=1e-6)

# %% [markdown]
# ## 2. Counting multiplications
#
# Each entry of the product of an $m \times k$ and a $k \times n$ matrix is a sum of $k$ products, and there are $m n$
# entries: the product takes **$m k n$ multiplications** (and about as many additions).
#
# There are two ways to multiply $J_3 J_2 J_1$. Take the dimensions $d_0, \dots, d_3 = 1000, 500, 100, 1$: a net with a
# scalar output, such as a loss.
#
# | order | first product | second product | multiplications |
# |---|---|---|---|
# | $J_3 (J_2 J_1)$, from right to left | $100 \cdot 500 \cdot 1000$ | $1 \cdot 100 \cdot 1000$ | 50 100 000 |
# | $(J_3 J_2) J_1$, from left to right | $1 \cdot 100 \cdot 500$ | $1 \cdot 500 \cdot 1000$ | 550 000 |
#
# The matrix is the same, and the first order takes 91 times the work.

# %%
dims = (1000, 500, 100, 1)
assert (
    100 * 500 * 1000 + 1 * 100 * 1000 == chain_cost(dims, order="forward") == 50_100_000
)
assert 1 * 100 * 500 + 1 * 500 * 1000 == chain_cost(dims, order="reverse") == 550_000
optimal_order(dims)

# %% [markdown]
# Multiplication from **right to left** proceeds from the input of the net to its output: **forward mode**.
# Multiplication from **left to right** starts at the output: **reverse mode**. For a chain of any length,
#
# $$ \text{forward:}\quad d_0 \sum_{l=2}^{L} d_l\, d_{l-1}, \qquad\qquad
#    \text{reverse:}\quad d_L \sum_{l=0}^{L-2} d_l\, d_{l+1} . $$
#
# In forward mode every intermediate product has $d_0$ columns, in reverse mode $d_L$ rows. This is the factor before
# the sum.


# %%
def forward_cost(d):
    return d[0] * sum(d[i] * d[i - 1] for i in range(2, len(d)))


def reverse_cost(d):
    return d[-1] * sum(d[i] * d[i + 1] for i in range(len(d) - 2))


for d in [(1000, 500, 100, 1), (784, 128, 64, 10, 1), (2, 5, 10, 5, 2)]:
    assert (forward_cost(d), reverse_cost(d)) == (
        chain_cost(d, order="forward"),
        chain_cost(d, order="reverse"),
    )
    print(
        f"{'-'.join(map(str, d)):18} forward {forward_cost(d):>12,}   reverse "
        f"{reverse_cost(d):>10,}"
    )

# %% [markdown]
# The last chain is symmetric, and both modes cost 220. For fixed inner dimensions, reverse mode is cheaper for a small
# output and forward mode for a small input. Where the first and the last inner dimension are equal, both cost the same
# at $d_L = d_0$.

# %%
square = optimal_order((256, 512, 512, 256))
axes = square.plot()
assert square.crossover == 256
assert (
    chain_cost((2, 5, 10, 5, 2), order="forward")
    == chain_cost((2, 5, 10, 5, 2), order="reverse")
    == 220
)

# %% [markdown]
# ## 3. All bracketings
#
# Forward and reverse mode are two of many orders. Four matrices have five bracketings, five have 14, six have 42: the
# Catalan numbers. By associativity all give the same matrix. Below, a bracketing is written as nested pairs:
# `((4, (3, 2)), 1)` is $(J_4 (J_3 J_2)) J_1$.

# %%
assert [sum(1 for _ in bracketings(n)) for n in (2, 3, 4, 5, 6)] == [1, 2, 5, 14, 42]
narrow = (50, 1, 50, 50, 50)  # a chain with a bottleneck of one number
for order in bracketings(4):
    print(f"{chain_cost(narrow, order=order):>8,} multiplications: {order}")

# %% [markdown]
# The chain has a bottleneck, $d_1 = 1$, and neither mode is optimal. The best order forms $50 \times 50$ results only
# in its last product: 7 500 multiplications, against 130 000 for reverse mode and 252 500 for forward mode.

# %%
best = optimal_order(narrow)
assert (best.cost, best.reverse, best.forward) == (7_500, 130_000, 252_500)
assert best.bracketing == "(J4 (J3 J2)) J1"
best

# %% [markdown]
# All five products are the same matrix, here for random factors:

# %%
rng = np.random.default_rng(0)
factors = [
    jnp.asarray(rng.normal(size=(m, n)), jnp.float32) for n, m in pairwise(narrow)
]
products = [multiply_chain(factors, order=order) for order in bracketings(4)]
assert all(np.allclose(p, products[0], rtol=1e-3, atol=1e-3) for p in products)

# %% [markdown]
# ### The optimal order by dynamic programming
#
# The number of bracketings grows like $4^L$, so trying all is not feasible for a deep net. But consider the *last*
# product of a bracketing: it multiplies some $J_L \cdots J_{k+1}$ by $J_k \cdots J_1$, and both parts should have
# minimal cost. So the minimal cost $C(i, j)$ of the part $J_j \cdots J_{i+1}$, which is $d_j \times d_i$, satisfies
#
# $$ C(i, j) = \min_{i < k < j}\; \underbrace{C(k, j)}_{\text{left part}} + \underbrace{C(i, k)}_{\text{right part}}
#    + \underbrace{d_j\, d_k\, d_i}_{\text{last product}}, \qquad C(i, i + 1) = 0 . $$
#
# Each $C(i, j)$ is computed once and stored. There are about $L^2/2$ of them, with at most $L$ choices each.


# %%
def cheapest(d):
    C = {(i, i + 1): 0 for i in range(len(d) - 1)}
    for length in range(2, len(d)):
        for i in range(len(d) - length):
            j = i + length
            C[i, j] = min(
                C[k, j] + C[i, k] + d[j] * d[k] * d[i] for k in range(i + 1, j)
            )
    return C[0, len(d) - 1]


for d in [narrow, (1000, 500, 100, 1), (784, 128, 64, 10, 1), (3, 9, 2, 8, 2, 7, 5)]:
    assert (
        cheapest(d)
        == optimal_order(d).cost
        == min(chain_cost(d, order=order) for order in bracketings(len(d) - 1))
    )

# %% [markdown]
# ### A correction: reverse mode for a scalar output
#
# > **Printed:** with a scalar objective, $d_L = 1$, the backward order is always optimal.
#
# **Counterexample:** dimensions 1, 100, 2, 1. Forward mode takes $1 \cdot (2 \cdot 100 + 1 \cdot 2) = 202$
# multiplications, reverse mode $1 \cdot (1 \cdot 100 + 100 \cdot 2) = 300$.

# %%
exception = optimal_order((1, 100, 2, 1))
assert (exception.forward, exception.reverse) == (202, 300)
exception

# %% [markdown]
# **Correction:** with $d_L = 1$ reverse mode is an optimal order *if no other dimension is 1*. A loss has many
# parameters, and layers are wider than one unit, so for training the statement holds. This is the reason for
# backpropagation. The next cell tries all 1360 chains of two to five Jacobians with dimensions 2, 3, 4 or 7; homework 2
# asks for a proof.

# %%
tried = 0
for L in (2, 3, 4, 5):
    for d in product((2, 3, 4, 7), repeat=L):
        order = optimal_order((*d, 1))
        assert order.cost == order.reverse
        tried += 1
assert tried == 4**2 + 4**3 + 4**4 + 4**5 == 1360

# %% [markdown]
# ## 4. Products without the factors: jvp and vjp
#
# $J_l$ of a layer with a thousand inputs and outputs has a million entries. Neither mode forms it:
#
# * Forward mode propagates a **vector** $v$ together with the values:
#   $v \mapsto J_1 v \mapsto J_2 (J_1 v) \mapsto \dots$. One pass computes $J v$, a *Jacobian-vector product*,
#   `jax.jvp`. For a unit vector $v$ it is one **column** of $J$.
# * Reverse mode propagates a vector $u$ backward: $u \mapsto u^\top J_L \mapsto (u^\top J_L) J_{L-1} \mapsto \dots$.
#   One pass computes $u^\top J$, a *vector-Jacobian product*, `jax.vjp`. For a unit vector $u$ it is one **row** of
#   $J$.

# %%
f = lambda x: net.apply(params, x)  # 4 numbers to 2

value, column = jax.jvp(f, (x,), (jnp.array([1.0, 0.0, 0.0, 0.0]),))
value, pull_back = jax.vjp(f, x)
(row,) = pull_back(jnp.array([1.0, 0.0]))
assert np.allclose(column, whole[:, 0], atol=1e-6)
assert np.allclose(row, whole[0], atol=1e-6)

# %% [markdown]
# Each pass costs about two function evaluations: one for the values, one for the propagated vector. The whole Jacobian
# takes $d_0$ columns in forward mode (`jax.jacfwd`), or $d_L$ rows in reverse mode (`jax.jacrev`). `cost_table` counts
# the operations of the programs; with `measure=False` it runs nothing.

# %%
wide = jb.MLP(128, 64, 10, activation=jb.tanh)
image = jax.random.normal(key, (784,))
wide_params = jax.jit(wide.init)(key, image)
table = cost_table(lambda x: wide.apply(wide_params, x), image, measure=False)
assert 1.9 < table.jvp.flops_ratio < 2.1 and 1.9 < table.vjp.flops_ratio < 2.1
assert 780 < table.jacfwd.flops_ratio < 790 and 10 < table.jacrev.flops_ratio < 12
table

# %% [markdown]
# For a scalar output the Jacobian has one row, the **gradient**. It costs one reverse pass: a small multiple of the
# function, *for any number of variables*. This is the cheap gradient principle, and it makes training possible.
#
# ## 5. The evaluation trace of a small function
#
# Reverse mode obtains the local derivatives by splitting the function into elementary operations. The example is from
# the survey by Baydin, Pearlmutter, Radul and Siskind, and the lectures use it, too:
#
# $$ y = \ln x_1 + x_1 x_2 - \sin x_2 \quad\text{at}\quad (x_1, x_2) = (2, 5) . $$
#
# **Forward primal trace.** The inputs are $v_{-1}$ and $v_0$, followed by one line for each operation.

# %%
v_m1 = 2.0  # v_{-1} = x1
v0 = 5.0  # x2
v1 = math.log(v_m1)
v2 = v_m1 * v0
v3 = math.sin(v0)
v4 = v1 + v2
v5 = v4 - v3  # y
assert [round(v, 3) for v in (v1, v2, v3, v4, v5)] == [
    0.693,
    10.0,
    -0.959,
    10.693,
    11.652,
]

# %% [markdown]
# > **Printed** in one lecture: $v_2 = v_{-1} \times v_{-1} = 2 \times 5$.
#
# **Counterexample:** $v_{-1} \times v_{-1} = 2 \times 2 = 4$, not 10. **Correction:** $v_2 = v_{-1} \times v_0$.

# %%
assert v_m1 * v_m1 == 4
assert v_m1 * v0 == v2 == 10

# %% [markdown]
# **Forward tangent trace.** $\dot v_k$ is the derivative of $v_k$ with respect to $x_1$. It starts with $\dot x_1 = 1$,
# $\dot x_2 = 0$, and each line differentiates the corresponding line of the primal trace.

# %%
t_m1, t0 = 1.0, 0.0
t1 = t_m1 / v_m1
t2 = t_m1 * v0 + t0 * v_m1
t3 = t0 * math.cos(v0)
t4 = t1 + t2
t5 = t4 - t3
assert t5 == 5.5  # dy/dx1; dy/dx2 needs another pass, from (0, 1)

# %% [markdown]
# **Reverse adjoint trace.** $\bar v_k = \partial y / \partial v_k$ is the sensitivity of $y$ to $v_k$. Start with
# $\bar v_5 = 1$ and process the lines in reverse order. Each line adds to the adjoints of its operands *its own adjoint
# times its derivative with respect to the operand*. A variable that is used twice ($v_0$ in $v_2$ and $v_3$; $v_{-1}$
# in $v_1$ and $v_2$) has two contributions, and they are **added**.

# %%
adj5 = 1.0
adj4, adj3 = adj5 * 1, adj5 * -1  # v5 = v4 - v3
adj1, adj2 = adj4 * 1, adj4 * 1  # v4 = v1 + v2
adj0 = adj3 * math.cos(v0)  # v3 = sin v0
assert round(adj0, 3) == -0.284
adj_m1 = adj2 * v0  # v2 = v_{-1} v0, first operand
adj0 = adj0 + adj2 * v_m1  # second operand: added to the adjoint from v3
assert adj_m1 == 5
adj_m1 = adj_m1 + adj1 / v_m1  # v1 = ln v_{-1}
assert (adj_m1, round(adj0, 3)) == (5.5, 1.716)  # dy/dx1 and dy/dx2

# %% [markdown]
# One reverse pass computes **both** partial derivatives; forward mode needs one pass for each input. `trace_table`
# computes the same three traces for any small function.

# %%
survey = lambda x1, x2: jnp.log(x1) + x1 * x2 - jnp.sin(x2)
trace = trace_table(survey, 2.0, 5.0)
assert np.allclose(trace.gradient, (adj_m1, adj0)) and np.allclose(trace.derivative, t5)
assert np.allclose(jax.grad(survey, (0, 1))(2.0, 5.0), (adj_m1, adj0))
trace

# %% [markdown]
# ### Where the graph comes from: tracing, or a graph for each run
#
# PyTorch builds its graph while the program runs: the graph is *dynamic*, and a Python `if` or `for` may depend on
# values. JAX **traces** the program once, with abstract values that have only a shape and a dtype. The graph is then
# fixed and compiled; a Python loop is unrolled into it, and a Python `if` on a traced value is an error. Decisions that
# depend on values are operations of their own, `lax.cond`, `lax.scan` and `lax.while_loop`, and stay in the graph:

# %%
calls = []


def signed_root(x):
    calls.append(x)  # Python runs only while JAX traces
    return jax.lax.cond(x >= 0, jnp.sqrt, lambda x: -jnp.sqrt(-x), x)


compiled = jax.jit(jax.grad(signed_root))
assert np.allclose([compiled(4.0), compiled(-4.0)], 0.25) and len(calls) == 1
try:
    jax.jit(lambda x: jnp.sqrt(x) if x >= 0 else -jnp.sqrt(-x))(4.0)
except jax.errors.TracerBoolConversionError as error:
    print(type(error).__name__)
else:
    raise AssertionError("a Python if on a traced value is an error")

# %% [markdown]
# The same traces as a computational graph. Left: the end of the forward pass, with the values below the nodes. Right:
# the end of the reverse pass, with the adjoints above the nodes in red. Each node is computed once and read by all
# nodes that depend on it: this is dynamic programming on a graph.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5))
trace.plot(left, step=len(trace.primal))
drawn = trace.plot(right)

# %% [markdown]
# ## 6. Backpropagation by hand
#
# Backpropagation is the reverse mode for a net. Linnainmaa described the reverse mode in his master's thesis (1970), to
# follow rounding errors through a program; Werbos (1974) proposed it for learning, and Rumelhart, Hinton and Williams
# (1986) showed that hidden layers trained by it learn useful features.
#
# Take a net of $k$ layers with matrices $X_l$ and biases $\mu_l$. The **forward pass** computes and *stores*
#
# $$ u_l = X_l\, a_{l-1} + \mu_l, \qquad a_l = \sigma(u_l), \qquad l = 1, \dots, k , $$
#
# where the last layer has no activation. The loss is $L = \lVert a_k - b \rVert^2$.


# %%
def forward_pass(X, mu, a):
    stored = []
    for i in range(len(X)):
        u = X[i] @ a + mu[i]
        stored.append((a, u))
        a = u if i == len(X) - 1 else jnp.tanh(u)
    return a, stored


widths = (5, 7, 3, 2)
draw = np.random.default_rng(1).normal
X = [jnp.asarray(draw(size=(n, m)), jnp.float32) for m, n in pairwise(widths)]
mu = [jnp.asarray(draw(size=n), jnp.float32) for n in widths[1:]]
a0, b = jnp.asarray(draw(size=5), jnp.float32), jnp.asarray(draw(size=2), jnp.float32)

# %% [markdown]
# The **backward pass** propagates $\partial L / \partial a_l$ from the last layer to the first. At each layer it
# computes
#
# $$ \frac{\partial L}{\partial u_l} = \frac{\partial L}{\partial a_l} \odot \sigma'(u_l), \qquad
#    \frac{\partial L}{\partial X_l} = \frac{\partial L}{\partial u_l}\, a_{l-1}^\top, \qquad
#    \frac{\partial L}{\partial \mu_l} = \frac{\partial L}{\partial u_l}, \qquad
#    \frac{\partial L}{\partial a_{l-1}} = X_l^\top \frac{\partial L}{\partial u_l} , $$
#
# where $\odot$ is the elementwise product. The second and the third are the derivatives with respect to the parameters
# of this layer; the last is passed to the layer before it. (All $\partial L/\partial \cdot$ are columns here, with the
# shape of the variable.)


# %%
def backward_pass(X, stored, dL_da):
    dX, dmu = [], []
    for i in reversed(range(len(X))):
        a, u = stored[i]  # the input of this layer and its pre-activation
        dL_du = dL_da if i == len(X) - 1 else dL_da * (1 - jnp.tanh(u) ** 2)
        dX.insert(0, jnp.outer(dL_du, a))
        dmu.insert(0, dL_du)
        dL_da = X[i].T @ dL_du
    return dX, dmu


output, stored = forward_pass(X, mu, a0)
by_hand = backward_pass(X, stored, 2 * (output - b))
automatic = jax.jit(
    jax.grad(lambda X, mu: jnp.sum((forward_pass(X, mu, a0)[0] - b) ** 2), (0, 1))
)(X, mu)
assert all(
    np.allclose(p, q, atol=1e-4)
    for p, q in zip(*map(jax.tree.leaves, (by_hand, automatic)), strict=True)
)

# %% [markdown]
# ### Corrections of these formulas
#
# > **Printed:** with $h_k = \sigma(W_k h_{k-1} + b_k)$, the efficient form is $\partial L/\partial W_k = [\partial
# > L/\partial h_k]^\top h_{k-1}^\top$.
#
# **Counterexample:** one unit, $W = 1$, $h_0 = 1$, $b = 0$, $\sigma = \tanh$, and $L = h_1$. The printed form gives
# $1 \cdot 1 = 1$. But $L = \tanh W$, whose derivative at 1 is $1 - \tanh^2 1 = 0.41997$.
#
# **Correction:** the factor is the derivative with respect to the *pre-activation* $s_k = W_k h_{k-1} + b_k$: $\partial
# L/\partial s_k = \partial L/\partial h_k \odot \sigma'(s_k)$.

# %%
true = jax.grad(lambda W: jnp.tanh(W * 1.0))(1.0)
printed, corrected = 1.0 * 1.0, 1.0 * (1 - math.tanh(1.0) ** 2) * 1.0
assert abs(true - printed) > 0.5
assert abs(true - corrected) < 1e-6 and round(corrected, 5) == 0.41997

# %% [markdown]
# > **Printed** elsewhere, for the parameters $\Theta^l$ of layer $l$:
# >
# > $$ \frac{\partial L}{\partial \Theta^l} = \frac{\partial L}{\partial \hat y}\,
# >    \frac{\partial \hat y}{\partial h^l}\, \frac{\partial h^l}{\partial h^{l-1}} \cdots
# >    \frac{\partial h^l}{\partial \Theta^l} $$
#
# The letter $l$ has two meanings: it is the layer of the parameters *and* the layer at which the product starts.
# **Counterexample:** for the first layer of the net 5-7-3-2, $l = 1$, the factors are
# $(1 \times 2)(2 \times 7)(7 \times 5)$, a row of 5 numbers, and then a last factor with 7 rows: the shapes do not
# match. **Correction**, with $L$ for the last layer:
#
# $$ \frac{\partial L}{\partial \Theta^l} = \frac{\partial L}{\partial h^L}\,
#    \frac{\partial h^L}{\partial h^{L-1}} \cdots
#    \frac{\partial h^{l+1}}{\partial h^l}\, \frac{\partial h^l}{\partial \Theta^l} $$

# %%
steps = [
    lambda a: jnp.tanh(X[0] @ a + mu[0]),
    lambda a: jnp.tanh(X[1] @ a + mu[1]),
    lambda a: X[2] @ a + mu[2],
]
first, second, third = jax.jit(lambda a: jacobian_chain(steps, a))(a0)
by_parameters = jax.jit(jax.jacobian(lambda X_1: jnp.tanh(X_1 @ a0 + mu[0])))(
    X[0]
).reshape(7, 35)
assert first.shape == (7, 5)  # its 5 columns do not match the 7 rows of by_parameters
assert np.allclose(
    (2 * (output - b) @ third @ second @ by_parameters).reshape(7, 5),
    by_hand[0][0],
    atol=1e-4,
)

# %% [markdown]
# Two minor errors: a slide that lists the required derivatives prints $\partial L/\partial u_l$ instead of
# $\partial L/\partial \mu_l$ (the two are equal). And the printed forward pass applies $\sigma$ after the last layer
# too, although the net has no activation there: with tanh its outputs would lie in $(-1, 1)$, and the outputs of the
# net above do not.

# %%
assert jnp.abs(output).max() > 1
assert jnp.abs(jnp.tanh(output)).max() <= 1

# %% [markdown]
# > **Printed** for $L = (b - h)^2$ with two layers and one output $h = X_2^\top \sigma(X_1 a)$: $\partial L/\partial
# > X_1 = -2\,(b - h)\, X_2 \odot \sigma'(X_1 a)\, a^\top$, without brackets (and elsewhere $X_2$ is a matrix, with no
# > transpose).
#
# **Counterexample:** $X_1 = 0$, $a = (1, 1)$, $X_2 = (1, 10)$, $b = -\tfrac12$. If the matrix product is computed
# first, as in the NumPy expression `X2 * (slope[:, None] * a)`, the *columns* are multiplied by 1 and 10. Correct are
# the *rows*, one for each hidden unit. **Correction:** $-2\,(b - h)\, \big(X_2 \odot \sigma'(X_1 a)\big)\, a^\top$.

# %%
X1, X2, a, target = jnp.zeros((2, 2)), jnp.array([1.0, 10.0]), jnp.ones(2), -0.5
h, slope = X2 @ jnp.tanh(X1 @ a), 1 - jnp.tanh(X1 @ a) ** 2
true = jax.grad(lambda X1: (target - X2 @ jnp.tanh(X1 @ a)) ** 2)(X1)
assert (
    (-2 * (target - h) * jnp.outer(X2 * slope, a)).tolist()
    == true.tolist()
    == [[1, 1], [10, 10]]
)
assert (-2 * (target - h) * (X2 * (slope[:, None] * a))).tolist() == [[1, 10], [1, 10]]

# %% [markdown]
# ## 7. The complexity of backpropagation
#
# If the derivative with respect to each $X_l$ is computed by its own formula, the same products occur many times. With
# $k$ layers of width $m$, each of the $k$ derivatives passes through up to $k$ layers, each with $m^2$ multiplications:
# $O(k^2 m^2)$. The backward pass computes each product once: $O(k m^2)$, as much as the forward pass up to a constant.
#
# `count_flops` counts the operations of both.


# %%
def loss(X):
    a = jnp.ones(X[0].shape[1])
    for matrix in X:
        a = jnp.tanh(matrix @ a)
    return jnp.sum(a**2)


def one_by_one(X):
    return [
        jax.grad(lambda own, i=i: loss([*X[:i], own, *X[i + 1 :]]))(X[i])
        for i in range(len(X))
    ]


depths = (2, 4, 8, 16) if quick else (2, 4, 8, 16, 32)
nets = [[jnp.ones((64, 64))] * k for k in depths]
shared = [count_flops(jax.grad(loss), X).flops for X in nets]
separate = [count_flops(one_by_one, X).flops for X in nets]
for k, s, n in zip(depths, shared, separate, strict=True):
    print(
        f"{k:3} layers of width 64: backpropagation {s:10,}   one by one {n:11,}   "
        f"ratio {n / s:5.1f}"
    )

# %% [markdown]
# For twice the number of layers backpropagation costs twice as much, and the separate derivatives cost four times as
# much.

# %%
assert 1.9 < shared[-1] / shared[-2] < 2.1
assert 3.8 < separate[-1] / separate[-2] < 4.1
figure, axes = plt.subplots(figsize=(5, 3.5))
axes.loglog(depths, separate, "s--", color=PALETTE[1], label="one by one")
axes.loglog(depths, shared, "o-", color=PALETTE[0], label="backpropagation")
axes.set(xlabel="layers $k$", ylabel="operations")
legend = axes.legend()

# %% [markdown]
# ### A correction: $O(k m)$ is impossible
#
# > **Printed:** automatic differentiation reduces the backward pass from $O(k m^2)$ to $O(k m)$.
#
# **Counterexample:** $O(k m)$ means that twice the width costs twice as much. It costs four times as much. The gradient
# of $k$ matrices of size $m \times m$ *has* $k m^2$ entries, so computing it takes at least $k m^2$ steps.
# **Correction:** the backward pass is $O(k m^2)$, a small constant times the forward pass.

# %%
narrow_net, wide_net = [jnp.ones((64, 64))] * 4, [jnp.ones((128, 128))] * 4
ratio = (
    count_flops(jax.grad(loss), wide_net).flops
    / count_flops(jax.grad(loss), narrow_net).flops
)
assert 3.9 < ratio < 4
assert sum(g.size for g in jax.grad(loss)(narrow_net)) == 4 * 64**2
constant = (
    count_flops(jax.grad(loss), wide_net).flops / count_flops(loss, wide_net).flops
)
assert 2 < constant < 4
print(
    f"twice the width: {ratio:.2f} times the operations; gradient / function: "
    f"{constant:.2f}"
)

# %% [markdown]
# ## 8. Operations and time
#
# Here `cost_table` also compiles and times the programs, and reports the memory that the compiler allocates for each.
# The function is the mean loss of a classifier over a batch, and the variables are a perturbation that all examples of
# the batch share, 16 numbers. All programs are timed once in each of five rounds. The table has the median time, and
# the median and the quartiles of the ratios to the time of the function in the same round: other programs that run on
# the machine slow down a whole round, and change its ratios little.

# %%
batch, hidden = (8, 16) if quick else (256, 512)
classifier = jb.MLP(hidden, hidden, 10, activation=jb.tanh)
examples = jax.random.normal(key, (batch, 16))
batch_params = jax.jit(classifier.init)(key, examples)


def mean_loss(shift, params):
    return jb.softmax_cross_entropy(
        classifier.apply(params, examples + shift), jnp.ones(batch, jnp.int32)
    ).mean()


rows = ("jvp", "gradient", "jacfwd", "jacrev", "hessian", "hvp")
table = cost_table(mean_loss, jnp.zeros(16), batch_params, rows=rows, repeats=5)
assert table.gradient.flops_ratio < 2.3 and table.hvp.flops_ratio < 4.5
assert 15 < table.jacfwd.flops_ratio < 20 and table.hessian.flops_ratio > 16 * 2
table

# %%
axes = table.plot()

# %% [markdown]
# Two observations:
#
# * A gradient, and even a Hessian-vector product (`hvp`, section 10), costs a few function evaluations. `jacfwd` takes
#   16 passes where `jacrev` takes one, and the Hessian 16 Hessian-vector products.
# * The time of a program is about proportional to its operations only if the program is large: a call of less than a
#   millisecond is mainly the start of the program, and a matrix-vector product is limited by the memory bandwidth. So
#   the batch is large. Where time and operations differ by more than a factor of 2, a sentence below the table states
#   the reason.
#
# ### Forward or reverse mode?
#
# Forward mode takes one pass for each of the $n$ inputs, and reverse mode one for each of the $m$ outputs. A pass of
# either mode costs about the same, so the ratio of the costs is about $n / m$. `mode_grid` computes it for nets with
# different numbers of inputs and outputs, counted and measured. In each cell is the factor by which the better mode is
# cheaper: blue for forward mode, orange for reverse mode. On the diagonal, $m = n$, both cost the same.


# %%
def constant_params(net, x):
    return jax.tree.map(
        lambda leaf: jnp.full(leaf.shape, 0.01, leaf.dtype),
        jax.eval_shape(net.init, key, x),
    )


def make_net(n, m):
    net, points = (
        jb.MLP(hidden // 2, hidden // 2, m, activation=jb.tanh),
        jnp.ones((32, n)),
    )
    net_params = constant_params(net, points)
    return lambda x: net.apply(net_params, points + x).mean(0), jnp.zeros(n)


entries = (2, 16) if quick else (4, 32, 256)
grid = mode_grid(make_net, entries, entries, repeats=3)
assert np.all(grid.ratio()[0, 1:] > 2) and np.all(grid.ratio()[1:, 0] < 1 / 2)
assert np.all(abs(np.log2(np.diagonal(grid.ratio()))) < 0.2)
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
axes = grid.plot(left), grid.plot(right, what="time")

# %% [markdown]
# ## 9. The memory of reverse mode
#
# Forward mode needs only the current value and its tangent. Reverse mode starts at the output and needs the
# intermediate values of the forward pass in reverse order: **they must be stored**. `saved_numbers` returns how many
# numbers `jax.vjp` stores, here for $n$ applications of tanh to a thousand numbers.


# %%
def tanhs(n):
    def f(x):
        for _ in range(n):
            x = jnp.tanh(x)
        return x

    return f


thousand = jnp.ones(1000)
kept = [saved_numbers(tanhs(n), thousand) for n in (2, 8, 32)]
assert kept == [4_000, 16_000, 64_000]  # linear in the depth: two numbers for each tanh
kept

# %% [markdown]
# **Checkpointing** (rematerialization) trades memory for time: it stores only some values and recomputes the others
# during the backward pass. `jax.checkpoint` around the whole function stores only the input.

# %%
assert [saved_numbers(jax.checkpoint(tanhs(n)), thousand) for n in (2, 8, 32)] == [
    1_000,
    1_000,
    1_000,
]

# %% [markdown]
# The next cell measures the memory of the compiled program of a deep net. `Repeat` stacks one block many times; its
# option `checkpoint` determines what is stored for the backward pass: with `"sqrt"` about $2\sqrt n$ of the $n$ layers,
# with an integer that number of layers.


# %%
def make(depth, checkpoint=None):
    block = jb.Residual(jb.Dense(64), jb.tanh)
    net, h = jb.Repeat(block, depth, checkpoint=checkpoint), jnp.ones((32, 64))
    # shapes suffice
    return lambda params: jnp.sum(net.apply(params, h) ** 2), jax.eval_shape(
        net.init, key, h
    )


curve = memory_curve(
    make, (64, 256) if quick else (16, 64, 256), checkpoints=("sqrt", 8)
)
assert curve.growth("jvp") == 0  # constant
assert 0.9 < curve.growth("gradient") < 1.1  # linear in the depth
# the square root of the depth
assert 0.3 < curve.growth("gradient, checkpoint='sqrt'") < 0.6
assert curve["gradient, checkpoint=8"][-1] < curve["gradient"][-1] / 20
curve

# %%
axes = curve.plot()

# %% [markdown]
# What does the saved memory cost? `checkpoint_table` measures the gradient of one net with each way of checkpointing,
# and `plot_frontier` draws time and operations over memory. A line joins those that no other one improves in
# both.


# %%
def make_wide(depth, checkpoint=None):
    net, h = (
        jb.Repeat(jb.Residual(jb.Dense(256), jb.tanh), depth, checkpoint=checkpoint),
        jnp.ones((128, 256)),
    )
    return lambda params: jnp.sum(net.apply(params, h) ** 2), constant_params(net, h)


ways = (4,) if quick else ("body", "sqrt", 2, 4, 8, 16)
frontier = checkpoint_table(make_wide, 16 if quick else 64, checkpoints=ways, repeats=3)
assert frontier["gradient"].flops < frontier["gradient, checkpoint=4"].flops
assert (
    frontier["gradient, checkpoint=4"].temporary_bytes
    < frontier["gradient"].temporary_bytes / 2
)
frontier

# %%
axes = frontier.plot_frontier()

# %% [markdown]
# How much is recomputed? With $c$ stored values at a time, at optimal positions, `binomial_steps` returns the number of
# forward steps needed to reach all 256 layers, from last to first (in addition to the one evaluation of each layer in
# which it is differentiated). With one stored value, the input, the forward pass restarts for every layer; with 16
# stored values each layer is evaluated between two and three times.

# %%
for c in (1, 2, 4, 8, 16):
    print(
        f"{c:3} stored: {binomial_steps(256, c):6,} forward steps, "
        f"{binomial_steps(256, c) / 256:6.1f} per layer"
    )
assert binomial_steps(256, 1) == sum(range(256)) == 32_640
assert 2 < binomial_steps(256, 16) / 256 < 3

# %% [markdown]
# ## 10. Hessian-vector products
#
# The Hessian $H$ contains all second derivatives, $n \times n$ for $n$ variables. At the point of section 5:
# $\partial^2 y/\partial x_1^2 = -1/x_1^2$, $\partial^2 y/\partial x_1 \partial x_2 = 1$,
# $\partial^2 y/\partial x_2^2 = \sin x_2$.

# %%
point = jnp.array([2.0, 5.0])
y = lambda x: survey(x[0], x[1])
H = jax.jit(jax.hessian(y))(point)
assert np.allclose(H, jnp.array([[-0.25, 1.0], [1.0, -0.9589243]]))

# %% [markdown]
# The Hessian of a net with a million parameters has $10^{12}$ entries. But methods that use curvature need only
# products $H v$, and
#
# $$ H v = \frac{\partial}{\partial x} \big( g(x)^\top v \big)
#        = \text{the derivative of the gradient } g \text{ along } v . $$
#
# This is one `jax.jvp` of `jax.grad`, forward mode over reverse mode: `hvp`. It forms no matrix.

# %%
v = jnp.array([1.0, -2.0])
Hv = jax.jit(lambda v: hvp(y, point, v))(v)
assert np.allclose(Hv, [-2.25, 2.9178485])
assert np.allclose(Hv, H @ v)
# the formula
assert np.allclose(Hv, jax.jit(jax.grad(lambda x: jax.grad(y)(x) @ v))(point))

# %% [markdown]
# With respect to the 109 386 parameters of the classifier of section 4, a product costs less than two gradients. The
# full Hessian takes one product for each parameter, and its $109\,386^2$ numbers of four bytes take 48 gigabytes.

# %%
classify = lambda x: jb.softmax_cross_entropy(wide.apply(wide_params, x), jnp.int32(3))
of_params = lambda params: jb.softmax_cross_entropy(
    wide.apply(params, image), jnp.int32(3)
)
n = sum(leaf.size for leaf in jax.tree.leaves(wide_params))
second = cost_table(of_params, wide_params, rows=("gradient", "hvp"), measure=False)
assert n == 784 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10 == 109_386
assert second.hvp.flops < 2 * second.gradient.flops
assert 47e9 < 4 * n**2 < 48e9
second

# %% [markdown]
# ## 11. The optimal bracketing of a net
#
# `jax.jacfwd` and `jax.jacrev` compute the two modes. Neither is optimal for the chain with a bottleneck in section 3.
# Some nets have a bottleneck: an **autoencoder** compresses an image to a few numbers and reconstructs the image from
# them. Its Jacobian shows how each output pixel depends on each input pixel.

# %%
autoencoder = jb.MLP(256, 64, 8, 64, 256, 784, activation=jb.tanh)
its_params = jax.jit(autoencoder.init)(key, image)
reconstruct = lambda x: autoencoder.apply(its_params, x)
best = optimal_order((784, 256, 64, 8, 64, 256, 784))
assert best.bracketing == "(J6 (J5 J4)) ((J3 J2) J1)"
assert 21 < best.forward / best.cost < 22 and best.forward == best.reverse
best

# %% [markdown]
# The optimal order starts at the bottleneck: it propagates 8 rows back to the input and 8 columns forward to the
# output, and multiplies the two at the end. `jacobian` of jaxblocks finds this order for any function with the dynamic
# program of section 3 and a cost model of time and memory. `jacobian_plan` returns the plan and its reason. (A *seed*
# is one propagated vector: a column in forward mode, a row in reverse mode.)

# %%
plan = jacobian_plan(reconstruct, image)
assert plan.mode == "mixed" and plan.bracketing == best.bracketing
plan

# %% [markdown]
# As a picture: the values between the layers are bars, and each line below is one step. The first two steps start at
# the bottleneck of 8 numbers; an arrow to the right is a sweep of forward mode, an arrow to the left one of reverse
# mode, and the cross is the product of the two matrices.

# %%
axes = plan.plot()

# %% [markdown]
# The result is the same matrix for a fraction of the operations. (The ratio is larger than that of the table above,
# because `jacfwd` and `jacrev` of JAX also multiply by the identity matrix that they start with.)

# %%
modes = {"jacfwd": jax.jacfwd, "jacrev": jax.jacrev, "jacobian": jacobian}
operations = {
    name: count_flops(mode(reconstruct), image).flops for name, mode in modes.items()
}
assert 35 < operations["jacfwd"] / operations["jacobian"] < 45
operations

# %%
both = {"jacrev": jax.jacrev(reconstruct), "jacobian": jacobian(reconstruct)}
programs = {name: jax.jit(way).lower(image).compile() for name, way in both.items()}
assert np.allclose(programs["jacrev"](image), programs["jacobian"](image), atol=1e-5)
for name, seconds in time_in_turns(programs, image).items():
    print(
        f"{name:9} {1e3 * np.median(seconds):6.2f} ms, temporary memory: "
        f"{compiled_bytes(programs[name])[0]:8,} bytes"
    )

# %% [markdown]
# Where one of the two modes is optimal, the plan is this mode, and the plan states the reason. The dimensions of a
# classifier decrease toward its ten outputs, so the plan is reverse mode.

# %%
plan = jacobian_plan(lambda x: wide.apply(wide_params, x), image)
assert plan.mode == "reverse"
print(plan.reason)

# %% [markdown]
# ## Summary
#
# | derivative | cost |
# |---|---|
# | $Jv$ or $u^\top J$, one pass | about 2 functions |
# | gradient of a scalar function | 2 to 4 functions, for any number of variables; memory grows with depth |
# | Jacobian, forward (reverse) mode | $d_0$ ($d_L$) passes |
# | Jacobian, optimal bracketing | less for nets with a bottleneck: 39 times less for the autoencoder |
# | Hessian-vector product | 1.5 to 3 gradients; the Hessian is $n$ products |
#
# Use forward mode for few inputs, reverse mode for few outputs, and a bracketing that starts at the bottleneck for nets
# with a bottleneck.
#
# On the site, <a href="../ad_cost.html">The cost of derivatives</a> is a page with sliders for the widths of a chain,
# and with the graph, the tape and the cost table of five functions, step by step.
# `jaxblocks.ad.explore(f, x).save("page.html")` writes it for your own function.
#
# ## Homework
#
# 1. **Optimal bracketing.** A net $784 \to 128 \to 64 \to 10$ followed by a loss: dimensions 784, 128, 64, 10, 1.
#    Compute by hand the multiplications of forward and reverse mode. Which of the five bracketings is the best?
# 2. **Prove** that with $d_L = 1$ and all other dimensions at least 2 no order is cheaper than reverse mode.
# 3. **Two forms of one gradient.** For a layer $s = W h$ with $W$ of $D_k \times D_{k-1}$, write
#    $\partial L/\partial \operatorname{vec} W$ as $\partial L/\partial s$ times the full Jacobian
#    $\partial s/\partial \operatorname{vec} W$, and compare with the outer product of section 6. Show that both give
#    the same result, and how many multiplications each takes, for $D_k = 100$, $D_{k-1} = 50$.
# 4. **A trace by hand.** $y = x_1 x_2 + \sin x_1$ at $(\pi/2, 2)$: write the forward and the reverse trace.
# 5. **A Hessian-vector product by hand.** For the function of section 5 at $(2, 5)$, compute $H v$ for $v = (1, -2)$
#    from the entries of $H$. Then count: which costs more, `hvp` or the gradient of $g^\top v$ by reverse mode over
#    reverse mode, for the loss `classify` of section 10?
# 6. **Memory.** A net has 1024 layers, and 16 values are stored at a time. How often is a layer evaluated, on average?
#
# ## Solutions
#
# **1.** Forward: $784\,(64 \cdot 128 + 10 \cdot 64 + 1 \cdot 10) = 784 \cdot 8842 = 6\,932\,128$. Reverse:
# $1 \cdot (784 \cdot 128 + 128 \cdot 64 + 64 \cdot 10) = 109\,184$. Reverse mode is the best of all five, as homework 2
# proves.

# %%
dims = (784, 128, 64, 10, 1)
assert 784 * (64 * 128 + 10 * 64 + 10) == chain_cost(dims, order="forward") == 6_932_128
assert 784 * 128 + 128 * 64 + 64 * 10 == chain_cost(dims, order="reverse") == 109_184
assert min(chain_cost(dims, order=order) for order in bracketings(4)) == 109_184
for order in sorted(bracketings(4), key=lambda order: chain_cost(dims, order=order)):
    print(f"{chain_cost(dims, order=order):>10,}  {order}")

# %% [markdown]
# **2.** Reverse mode costs $\sum_{l=0}^{L-2} d_l d_{l+1}$. First a lower bound for the cost $C(i, j)$ of *any* order of
# $J_j \cdots J_{i+1}$, where all dimensions are at least 2:
#
# $$ C(i, j) + d_i d_j \;\ge\; \sum_{l=i}^{j-1} d_l d_{l+1} . \tag{$*$} $$
#
# The proof is by induction. For one factor, $j = i + 1$, both sides are $d_i d_{i+1}$. For more factors, let the last
# product join the parts at $k$: $C(i, j) = C(k, j) + C(i, k) + d_i d_k d_j$. By $(*)$ for the two parts, $C(i, k) +
# C(k, j) \ge \sum_{l=i}^{j-1} d_l d_{l+1} - d_i d_k - d_k d_j$, so it is sufficient that
# $d_i d_k d_j + d_i d_j \ge d_i d_k + d_k d_j$. Divide by $d_i d_j$: $d_k + 1 \ge d_k (1/d_j + 1/d_i)$, and this holds,
# because $1/d_i + 1/d_j \le 1/2 + 1/2$.
#
# For the chain with $d_L = 1$ use induction on the number of factors; one factor costs nothing in any order. Let the
# last product join the parts at $k$. It costs $1 \cdot d_k d_0$. The left part ends in 1 and costs at least
# $\sum_{l=k}^{L-2} d_l d_{l+1}$ by induction; the right part has no dimension 1, and by $(*)$ it costs at least
# $\sum_{l=0}^{k-1} d_l d_{l+1} - d_0 d_k$. Together this is at least $\sum_{l=0}^{L-2} d_l d_{l+1}$. (For 1-100-2-1 the
# step fails because $1/d_0 = 1$.)
#
# The next cell checks the bound $(*)$:

# %%
for d in [(2, 2, 2), (2, 9, 3, 4), (5, 2, 2, 7, 3), (3, 8, 2, 9, 2, 6)]:
    assert cheapest(d) + d[0] * d[-1] >= sum(p * q for p, q in pairwise(d))
# does not hold with a dimension of 1
assert cheapest((1, 100, 2)) + 1 * 2 < 1 * 100 + 100 * 2

# %% [markdown]
# **3.** Row $i$ of $s = W h$ depends only on row $i$ of $W$, with the weights $h$. So the full Jacobian
# $\partial s / \partial \operatorname{vec} W$ (with the rows of $W$ one after the other) is $I \otimes h^\top$, a
# matrix of $D_k \times D_k D_{k-1}$ entries, of which only a fraction $1/D_k$ is nonzero. Multiplying by it takes
# $D_k \cdot D_k D_{k-1} = 500\,000$ multiplications; the outer product takes $D_k D_{k-1} = 5\,000$, that is
# $D_k = 100$ times fewer. It omits the products with zeros.

# %%
D, d = 100, 50
W, h = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((D, d), d))
by_s = jnp.asarray(rng.normal(size=D), jnp.float32)
full = np.asarray(jax.jit(jax.jacobian(lambda W: W @ h))(W)).reshape(D, D * d)
assert np.array_equal(full, np.kron(np.eye(D), h[None, :]))
assert np.count_nonzero(full) / full.size == 1 / D
assert np.allclose((by_s @ full).reshape(D, d), np.outer(by_s, h), atol=1e-5)
assert count_flops(jnp.matmul, by_s, full).multiplications == 500_000
assert count_flops(jnp.outer, by_s, h).multiplications == 5_000

# %% [markdown]
# **4.** $v_1 = x_1 x_2 = \pi$, $v_2 = \sin x_1 = 1$, $v_3 = v_1 + v_2 = \pi + 1$. In reverse: $\bar v_3 = 1$,
# $\bar v_1 = \bar v_2 = 1$, $\bar x_1 = \bar v_1 x_2 + \bar v_2 \cos x_1 = 2 + 0 = 2$,
# $\bar x_2 = \bar v_1 x_1 = \pi/2$.

# %%
trace = trace_table(lambda x1, x2: x1 * x2 + jnp.sin(x1), math.pi / 2, 2.0)
assert np.allclose(trace.value, math.pi + 1)
assert np.allclose(trace.gradient, (2, math.pi / 2), atol=1e-6)
trace

# %% [markdown]
# **5.** $H v = (-0.25 \cdot 1 + 1 \cdot (-2),\; 1 \cdot 1 - 0.9589 \cdot (-2)) = (-2.25,\; 2.9178)$. Both ways compute
# this vector. For `classify` both count as many operations. But reverse over reverse mode also stores the
# intermediate values of the backward pass: for a net of 64 layers it needs more than twice the memory. This is why
# `hvp` uses forward over reverse mode.

# %%
assert np.allclose((-0.25 * 1 + 1 * -2, 1 * 1 + math.sin(5) * -2), (-2.25, 2.9178485))
both = ("hvp", "hvp_reverse_over_reverse")
ways = cost_table(classify, image, rows=both, measure=False)
assert 0.99 < ways.hvp_reverse_over_reverse.flops / ways.hvp.flops < 1.01
deep = cost_table(*make(64), rows=both, repeats=0)  # compiled for its memory, not run
assert deep.hvp_reverse_over_reverse.temporary_bytes > 2 * deep.hvp.temporary_bytes
deep

# %% [markdown]
# **6.** `binomial_steps(1024, 16)` is 2956: 2.9 times on average (in addition to the evaluation in which each layer is
# differentiated), with 16 stored values instead of 1024.

# %%
assert binomial_steps(1024, 16) == 2956
assert round(2956 / 1024, 1) == 2.9
