# %% [markdown]
# # Tensors and `einsum`
#
# The data and the params of a network are arrays with several axes. Matrix products, traces, transposes, batched
# products and attention all have their own names and functions, and each function has its own convention for the axes.
# **Is there one notation for all of these operations, so that the code looks like the formula?**
#
# Einstein's summation convention is such a notation; `einsum` implements it. The second half of this notebook is about
# the structure of tensors. It explains which tensors are products of vectors, how many such products a tensor needs,
# and why this question is much harder than for matrices.
#
# **Prerequisites:** matrices and basic Python. An `assert` in the next code cell checks each claim of the text. The
# homework at the end has solutions. **Sources:** Diehl, *lecture notes* (2023), section 1.2; Cevher, *Mathematics of
# Data*; Krapac & Šegvić, *Deep feed-forward models*.

# %%
import itertools
import math

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxblocks as jb
from jaxblocks import plotting

# %% [markdown]
# ## 1. Terminology
#
# A **tensor** $T \in \mathbb R^{d_1 \times \dots \times d_n}$ is an array of numbers $T_{i_1 \dots i_n}$. It has $n$
# **axes**; $n$ is its **order**, $(d_1, \dots, d_n)$ its **shape**. A tensor of order 0 is a number, of order 1 a
# vector, of order 2 a matrix.

# %%
tensors = [
    jnp.array(7.0),
    jnp.arange(3.0),
    jnp.arange(6.0).reshape(2, 3),
    jnp.arange(24.0).reshape(2, 3, 4),
]
assert [T.ndim for T in tensors] == [0, 1, 2, 3] and tensors[3].shape == (2, 3, 4)
figure, axes = plt.subplots(1, 4, figsize=(9, 2.5), layout="constrained")
for ax, T in zip(axes, tensors, strict=True):
    plotting.cells(T, ax)
    ax.set_title(f"order {T.ndim}, shape {T.shape}")

# %% [markdown]
# > **Cevher states** "rank" for the number of indices; Diehl uses "rank" with a different meaning (section 5).
#
# **Counterexample:** the matrix $\begin{pmatrix} 1 & 2 \\ 2 & 4 \end{pmatrix}$ has two indices, but its rank in linear
# algebra is 1. **In this library:** *order* is the number of indices, `T.ndim`; *rank* is the least number of products
# of vectors that sum to the tensor.
#
# > **Krapac & Šegvić state** $X \in \mathbb R^{m_1} \times \mathbb R^{m_2} \times \cdots$ for the space of tensors.
#
# **Counterexample:** an element of $\mathbb R^2 \times \mathbb R^3$ is a pair of vectors, $2 + 3 = 5$ numbers. A
# $2 \times 3$ matrix has 6. **Correction:** $\mathbb R^{m_1 \times m_2 \times \cdots \times m_M}$; the *index ranges*
# are multiplied.

# %%
matrix = jnp.array([[1.0, 2.0], [2.0, 4.0]])
assert matrix.ndim == 2 and jnp.linalg.matrix_rank(matrix) == 1
assert jnp.zeros((2, 3)).size == 6 != 2 + 3

# %% [markdown]
# **The meaning of the axes** is a convention. In this library the batch axis (one entry per example) comes first;
# features or channels come last:
#
# | data | axes |
# |---|---|
# | examples with features | `(batch, features)` |
# | sequences | `(batch, time, features)` |
# | images | `(batch, height, width, channels)` |
#
# The layers of this library operate on the last axes and treat all other axes as batch axes, so the same layer applies
# to all of these shapes. Params are also tensors.

# %%
layer = jb.Dense(5)
params = layer.init(jax.random.key(0), jnp.zeros(3))
shapes = [(3,), (8, 3), (8, 20, 3)]
assert [layer.apply(params, jnp.zeros(s)).shape for s in shapes] == [
    (5,),
    (8, 5),
    (8, 20, 5),
]

# %% [markdown]
# ## 2. Einstein summation
#
# With indices, the product of a matrix and a vector is $(A v)_i = \sum_j A_{ij} v_j$. Einstein's convention omits the
# summation sign: $A_{ij} v_j$. `einsum` takes this notation as a string. The string has one term for each operand and
# one letter for each axis; the axes of the result follow the arrow. **Letters that do not appear after the arrow are
# summed.**

# %%
A, v = jnp.arange(6.0).reshape(2, 3), jnp.array([1.0, 0.0, -1.0])
assert (jb.tensors.einsum("ij,j->i", A, v) == A @ v).all()
jb.tensors.einsum("ij,j->i", A, v)

# %% [markdown]
# This is the complete rule. To read an einsum, write nested loops, one for each letter. The innermost statement
# computes one product and adds it to the entry of the result that the letters after the arrow select.


# %%
def einsum_by_loops(subscripts, *operands):
    terms, result = subscripts.split("->")[0].split(","), subscripts.split("->")[1]
    size = {
        letter: n
        for term, x in zip(terms, operands, strict=True)
        for letter, n in zip(term, x.shape, strict=True)
    }
    out = np.zeros([size[letter] for letter in result])
    for place in itertools.product(*(range(n) for n in size.values())):
        at = dict(zip(size, place, strict=True))  # the current value of each letter
        index = lambda term, at=at: tuple(at[letter] for letter in term)
        out[index(result)] += math.prod(
            x[index(term)] for term, x in zip(terms, operands, strict=True)
        )
    return out


rng = np.random.default_rng(0)
S, B, C = rng.normal(size=(3, 3)), rng.normal(size=(3, 4)), rng.normal(size=(2, 3))
T, U = rng.normal(size=(2, 3, 4)), rng.normal(size=(3, 4, 5))
table = {
    "ik,kj->ij": ((C, B), C @ B),  # matrix product
    # trace: a repeated index in one term selects the diagonal
    "ii->": ((S,), np.trace(S)),
    "ii->i": ((S,), np.diag(S)),
    "ji->ij": ((B,), B.T),  # transpose
    "ij->i": ((B,), B.sum(1)),  # sum over columns
    "ik,jk->ij": ((C, S), C @ S.T),
    "ikl,klj->ij": ((T, U), np.tensordot(T, U, 2)),  # two indices summed at once
    "ij,ij->": ((B, B), (B * B).sum()),  # inner product of matrices
    "i,j->ij": ((v, v), np.outer(v, v)),  # nothing is summed
}
for subscripts, (operands, expected) in table.items():
    assert np.allclose(einsum_by_loops(subscripts, *operands), expected)
    assert np.allclose(np.einsum(subscripts, *operands), expected)

# %% [markdown]
# ### The arrow
#
# > **The lecture notes state** the rule: every index that appears at least twice is summed.
#
# **Counterexamples:** let $u = v = (0, 1, 2)$. By this rule $u_i v_i$ is $0 + 1 + 4 = 5$, so the *entrywise* product
# $(0, 1, 4)$ cannot be written. A batch of matrix products, $A_{bik} B_{bkj}$ with $b$ kept, cannot be written either:
# $b$ appears twice, so it is summed. **Correction:** state which indices are kept. The arrow does this.

# %%
u = jnp.arange(3.0)
assert jb.tensors.einsum("i,i->", u, u) == 5
assert jb.tensors.einsum("i,i->i", u, u).tolist() == [0, 1, 4]
many, others = rng.normal(size=(6, 2, 3)), rng.normal(size=(6, 3, 4))
assert np.allclose(np.einsum("bik,bkj->bij", many, others), many @ others)

# %% [markdown]
# In NumPy and JAX the arrow is optional. Without it, they apply the printed rule and put the axes of the result in
# *alphabetical* order, so `"ji"` transposes and `"ij"` does not. `jb.tensors.einsum` raises an error that shows the
# correct form.

# %%
assert (jnp.einsum("ji", A) == A.T).all() and (jnp.einsum("ij", A) == A).all()
try:
    jb.tensors.einsum("bik,bkj", jnp.asarray(many), jnp.asarray(others))
except ValueError as error:
    print(error)

# %% [markdown]
# Each letter has one size. If two operands disagree about a size, the error states which axes differ:

# %%
try:
    jb.tensors.einsum("ik,kj->ij", A, A)
except ValueError as error:
    print(error)

# %% [markdown]
# ## 3. Layers as einsums
#
# **A dense layer** on a batch computes $y_{bo} = x_{bi} W_{io} + b_o$. An ellipsis (`...`) stands for any number of
# leading axes.

# %%
x = jnp.asarray(rng.normal(size=(8, 20, 3)), jnp.float32)
assert np.allclose(
    jb.tensors.einsum("...i,io->...o", x, params["kernel"]) + params["bias"],
    layer.apply(params, x),
    atol=1e-5,
)

# %% [markdown]
# **Attention** (notebook 6) compares each query $q$ with each key $k$, for each head $h$ and each example $b$ of a
# batch. It then computes a weighted sum of the values. With `@`, the same computation needs several transposes. As
# einsums:
#
# $$ s_{bhqk} = Q_{bqhd}\, K_{bkhd}, \qquad o_{bqhd} = w_{bhqk}\, V_{bkhd} . $$

# %%
# (batch, time, head, feature)
Q, K, V = (jnp.asarray(rng.normal(size=(2, n, 4, 5)), jnp.float32) for n in (3, 6, 6))
scores = jb.tensors.einsum("bqhd,bkhd->bhqk", Q, K) / math.sqrt(5)
weights = jb.softmax(scores)  # over the keys
outputs = jb.tensors.einsum("bhqk,bkhd->bqhd", weights, V)
assert np.allclose(outputs, jb.attention(Q, K, V), atol=1e-5)

# %% [markdown]
# **Cost.** An einsum computes one product per loop iteration, so the number of products is the product of the sizes of
# *all* letters. With three operands the order of the operations matters, as in the chain rule (notebook 7). Example:
# $A B v$ with $100 \times 100$ matrices takes $100^3$ products in one einsum with all letters. As two einsums it takes
# either $100^3 + 100^2$ or $2 \cdot 100^2$. (`jb.count_flops` counts the operations of any function.)

# %%
P, w = jnp.ones((100, 100)), jnp.ones(100)
left_first = lambda: jb.tensors.einsum(
    "ik,k->i", jb.tensors.einsum("ij,jk->ik", P, P), w
)
right_first = lambda: jb.tensors.einsum(
    "ij,j->i", P, jb.tensors.einsum("jk,k->j", P, w)
)
assert jb.count_flops(left_first).multiplications == 100**3 + 100**2
assert jb.count_flops(right_first).multiplications == 2 * 100**2

# %% [markdown]
# ## 4. Tensor products
#
# The tensor product contains all products of an entry of $S$ and an entry of $T$: $(S \otimes T)_{i j} = S_i T_j$. Its
# order is the sum of the orders, and its shape is the concatenation of the shapes.

# %%
a, b = jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0, 5.0])
assert jb.tensors.tensor_product(a, b).tolist() == [[3, 4, 5], [6, 8, 10]]
left = jb.tensors.tensor_product(jb.tensors.tensor_product(a, b), a)
# associative
assert (left == jb.tensors.tensor_product(a, jb.tensors.tensor_product(b, a))).all()
# not commutative: the axes are exchanged
assert jb.tensors.tensor_product(b, a).shape == (3, 2)
assert (jb.tensors.tensor_product(b, a) == jb.tensors.tensor_product(a, b).T).all()

# %% [markdown]
# A product of vectors, $v_1 \otimes \dots \otimes v_n$, is called a **pure tensor**. For $n = 2$ all its rows are
# multiples of one row, and all its columns are multiples of one column. The same holds for each axis of a pure tensor
# of higher order. It is described by $d_1 + \dots + d_n$ numbers instead of $d_1 \cdots d_n$.

# %%
pure = jb.tensors.pure_tensor(a, b, jnp.array([1.0, -1.0, 0.5, 2.0]))
assert pure.shape == (2, 3, 4) and pure.size == 24 and 2 + 3 + 4 == 9
assert np.allclose(pure[1], 2 * pure[0])

# %% [markdown]
# ## 5. Tensor rank
#
# Not every tensor is pure, but every tensor is a *sum* of pure tensors, for example with one summand for each entry.
# The least number of summands is the **rank**:
#
# $$ T = \sum_{r=1}^{R} u_r^{(1)} \otimes \dots \otimes u_r^{(n)}, \qquad \text{with the least } R . $$
#
# For matrices this is the usual rank, because a product of a column and a row is a pure tensor of order 2. `cp_tensor`
# computes a sum of pure tensors. It takes one matrix per axis; row $r$ of each matrix is a factor of summand $r$.
#
# > **The lecture notes state:** pure tensors have rank one.
#
# **Counterexample:** $0 = 0 \otimes 0$ is pure, and it is the sum of *no* products, so its rank is 0. **Correction:**
# pure tensors other than 0 have rank one.

# %%
zero = jb.tensors.pure_tensor(jnp.zeros(2), b)
assert (
    jb.tensors.rank_bounds(zero)[1] == 0
    and jb.tensors.rank_bounds(jb.tensors.pure_tensor(a, b))[1] == 1
)
summands = (
    jnp.asarray(rng.normal(size=(2, 4)), jnp.float32),
    jnp.asarray(rng.normal(size=(2, 4)), jnp.float32),
)
assert jnp.linalg.matrix_rank(jb.tensors.cp_tensor(summands)) == 2

# %% [markdown]
# ### Rank of tensors of order 3
#
# Elimination computes the rank of a matrix. For order 3 and higher, computing the rank is NP-hard. The ranks of the
# **flattenings** are easy to compute. A flattening is a matrix: one axis gives the rows, and all other axes together
# give the columns. The rank of each flattening is a lower bound on the rank of the tensor, because a sum of $R$ pure
# tensors flattens to a sum of $R$ pure matrices.
#
# The following tensor is the smallest one whose rank is larger than these bounds. Three of its eight entries are 1.
#
# $$ W = e_0 \otimes e_0 \otimes e_1 + e_0 \otimes e_1 \otimes e_0 + e_1 \otimes e_0 \otimes e_0 $$

# %%
e0, e1 = jnp.eye(2)
W = (
    jb.tensors.pure_tensor(e0, e0, e1)
    + jb.tensors.pure_tensor(e0, e1, e0)
    + jb.tensors.pure_tensor(e1, e0, e0)
)
assert jb.tensors.flattening(W, 0).tolist() == [[0, 1, 1, 0], [1, 0, 0, 0]]
assert jb.tensors.flattening_ranks(W).tolist() == [2, 2, 2]
lower, upper = jb.tensors.rank_bounds(W)
print(f"the rank is between {lower} and {upper}")
figure, axes = plt.subplots(figsize=(2.6, 2.6), layout="constrained")
axes = plotting.cells(W, axes)

# %% [markdown]
# $W$ is a sum of three pure tensors, so its rank is 2 or 3. Homework 5 shows that it is 3. However, there are tensors
# of rank 2 that are arbitrarily close to $W$:
#
# $$ \frac{(e_0 + \varepsilon e_1)^{\otimes 3} - e_0^{\otimes 3}}{\varepsilon} = W + \varepsilon\, (\text{something})
#    + \varepsilon^2 (\text{something}) $$
#
# Expanding the left side proves this identity. So $W$ is a limit of tensors of rank 2 (its *border rank* is 2), and a
# best approximation of rank 2 does not exist. For matrices this cannot happen: a limit of matrices of rank 2 has rank
# at most 2.

# %%
epsilons = np.array([1.0, 0.1, 0.01, 0.001])
cube = lambda v: np.einsum("i,j,k->ijk", v, v, v)
near = [
    (cube(np.array([1.0, eps])) - cube(np.array([1.0, 0.0]))) / eps for eps in epsilons
]
distance = [abs(tensor - np.asarray(W)).max() for tensor in near]
assert np.allclose(distance, epsilons)
print(dict(zip(epsilons.tolist(), np.round(distance, 6).tolist(), strict=True)))

# %% [markdown]
# The two summands have size $1/\varepsilon$ and nearly cancel. The same happens in a numerical search for two summands.
# `cp_decompose` optimizes the vectors of one axis at a time by least squares. With one summand it reaches the smallest
# possible error, $\sqrt 5 / 3$. With three summands it finds $W$. With two summands the error decreases slowly toward
# 0 but never reaches it.

# %%
found = {
    rank: jb.tensors.cp_decompose(jax.random.key(0), W, rank=rank, steps=500)
    for rank in (1, 2, 3)
}
for rank, (_, error) in found.items():
    print(f"{rank} summands: relative error {error:.1e}")
assert abs(found[1][1] - math.sqrt(5) / 3) < 1e-3
assert 1e-3 < found[2][1] < 0.02 and found[3][1] < 1e-4

# %% [markdown]
# ### The tensor of matrix multiplication
#
# Number the entries of a $2 \times 2$ matrix from 0 to 3. The product $C = A B$ is then $C_c = M_{abc} A_a B_b$ for a
# fixed tensor $M$ of shape $(4, 4, 4)$ with entries 0 and 1. **Each pure summand of $M$ is one multiplication:**
#
# $$ M = \sum_r \alpha_r \otimes \beta_r \otimes \gamma_r \quad\Longrightarrow\quad
#    C = \sum_r \langle \alpha_r, A \rangle\, \langle \beta_r, B \rangle\; \gamma_r . $$
#
# The standard method uses 8 multiplications: $M$ has eight ones. In 1969 Strassen found a method with 7, so the rank of
# $M$ is at most 7 (it is exactly 7).

# %%
M = np.zeros((4, 4, 4))
for i, j, k in itertools.product(range(2), repeat=3):
    M[2 * i + k, 2 * k + j, 2 * i + j] = 1  # A_ik B_kj goes to C_ij
alpha = [
    [1, 0, 0, 1],
    [0, 0, 1, 1],
    [1, 0, 0, 0],
    [0, 0, 0, 1],
    [1, 1, 0, 0],
    [-1, 0, 1, 0],
    [0, 1, 0, -1],
]
beta = [
    [1, 0, 0, 1],
    [1, 0, 0, 0],
    [0, 1, 0, -1],
    [-1, 0, 1, 0],
    [0, 0, 0, 1],
    [1, 1, 0, 0],
    [0, 0, 1, 1],
]
gamma = [
    [1, 0, 0, 1],
    [0, 0, 1, -1],
    [0, 1, 0, 1],
    [1, 0, 1, 0],
    [-1, 1, 0, 0],
    [0, 0, 0, 1],
    [1, 0, 0, 0],
]
strassen = [jnp.array(rows, jnp.float32) for rows in (alpha, beta, gamma)]
assert M.sum() == 8 and len(alpha) == 7
assert (jb.tensors.cp_tensor(strassen) == M).all()
A, B = rng.normal(size=(2, 2)), rng.normal(size=(2, 2))
assert np.allclose(
    np.einsum("abc,a,b->c", M, A.ravel(), B.ravel()).reshape(2, 2), A @ B
)
# the only multiplications of entries
seven = (np.array(alpha) @ A.ravel()) * (np.array(beta) @ B.ravel())
assert np.allclose((seven @ np.array(gamma)).reshape(2, 2), A @ B)

# %% [markdown]
# Applied recursively to block matrices, this method multiplies $n \times n$ matrices with $n^{\log_2 7} = n^{2.81}$
# multiplications instead of $n^3$. Thus the rank of a tensor of order 3 determines the cost of one of the most common
# operations.
#
# ## Summary
#
# | term | meaning |
# |---|---|
# | order, shape | number of axes; their sizes |
# | `einsum("...->...")` | one loop per letter; letters not after the arrow are summed; cost: the product of all sizes |
# | $S \otimes T$ | all products of two entries; the orders add up |
# | pure tensor | product of vectors; rank 1, or 0 if it is zero |
# | rank | least number of pure summands; hard to compute for order 3 and higher; bounded below by flattenings |
#
# ## Homework
#
# 1. **Read.** What do `"bij->bji"`, `"ij,jk,kl->il"`, `"bij,bij->b"` and `"ij,kl->ikjl"` compute? Give the NumPy
#    functions for them.
# 2. **Write** as einsum: the trace of $A B$; $x^\top A y$ for each $x$ and $y$ of a batch; the covariance matrix of the
#    rows of $X$; the sum of all entries of a tensor of order 3. Which letters are summed?
# 3. **Cost.** How many multiplications does the trace of $A B$ take for $n \times n$ matrices with your einsum? How
#    many if you compute the product $A B$ first?
# 4. **Rank of a matrix.** Write $\begin{pmatrix} 1 & 2 & 3 \\ 4 & 5 & 6 \\ 7 & 8 & 9 \end{pmatrix}$ as a sum of as few
#    products $u v^\top$ as possible.
# 5. **Prove** that $W$ has rank 3. *Hint:* if $W = \sum_{r=1}^2 a_r \otimes b_r \otimes c_r$, then its two slices are
#    $W_k = X D_k Y$ with diagonal $D_k$ and the same $X$, $Y$. What does this imply for $W_0^{-1} W_1$?
# 6. **Low-rank approximation of an image.** A gray image is a matrix; the singular value decomposition gives its best
#    approximation of rank $R$. How many numbers does rank 1 need for an image of $8 \times 8$ pixels? Which images have
#    rank 1?
#
# Try to solve the exercises before you read the solutions.
#
# ## Solutions
#
# **1.** The transpose of each matrix of a batch; the product of three matrices; the inner product of each pair of
# matrices in a batch; the Kronecker product before its axes are merged.

# %%
assert np.allclose(einsum_by_loops("bij->bji", many), many.swapaxes(1, 2))
assert np.allclose(einsum_by_loops("ij,jk,kl->il", C, S, S), C @ S @ S)
assert np.allclose(einsum_by_loops("bij,bij->b", many, many), (many * many).sum((1, 2)))
assert np.allclose(
    einsum_by_loops("ij,kl->ikjl", C, S).reshape(2 * 3, 3 * 3), np.kron(C, S)
)

# %% [markdown]
# **2.** `"ij,ji->"`: both letters are summed. `"bi,ij,bj->b"`: $i$ and $j$ are summed. `"ni,nj->ij"`: subtract the mean
# first, divide by the number of rows; $n$ is summed. `"ijk->"`: all letters are summed.

# %%
assert np.isclose(einsum_by_loops("ij,ji->", S, S), np.trace(S @ S))
rows = rng.normal(size=(6, 3))
assert np.allclose(
    einsum_by_loops("bi,ij,bj->b", rows, S, rows), [r @ S @ r for r in rows]
)
centered = rows - rows.mean(0)
assert np.allclose(
    einsum_by_loops("ni,nj->ij", centered, centered) / 6, np.cov(rows.T, bias=True)
)
assert np.isclose(einsum_by_loops("ijk->", T), T.sum())

# %% [markdown]
# **3.** The einsum has two letters: $n^2$ multiplications. The full product has three letters: $n^3$ multiplications.
# It computes $n^2 - n$ entries that the trace does not use.

# %%
assert (
    jb.count_flops(lambda: jb.tensors.einsum("ij,ij->", P, P.T)).multiplications
    == 100**2
)
assert (
    jb.count_flops(
        lambda: jnp.trace(jb.tensors.einsum("ij,jk->ik", P, P))
    ).multiplications
    == 100**3
)

# %% [markdown]
# **4.** The rows are $(1, 2, 3)$ plus 0, 3 and 6 times $(1, 1, 1)$, so two products suffice. One product does not
# suffice, because the rows are not multiples of one row.

# %%
numbers = jnp.arange(1.0, 10).reshape(3, 3)
two_products = jnp.array([[1.0, 1, 1], [0, 3, 6]]), jnp.array([[1.0, 2, 3], [1, 1, 1]])
assert (jb.tensors.cp_tensor(two_products) == numbers).all()
assert jb.tensors.flattening_ranks(numbers).tolist() == [2, 2]

# %% [markdown]
# **5.** The slices of $W$ along its last axis are $W_k = X D_k Y$. $X$ has the columns $a_1, a_2$, $Y$ the rows
# $b_1, b_2$, and $D_k$ the entries $c_{1k}, c_{2k}$ on its diagonal. $W_0$ is invertible, so $X$, $D_0$, $Y$ are
# invertible, and $W_0^{-1} W_1 = Y^{-1} D_0^{-1} D_1 Y$ is *diagonalizable*. But it is
# $\begin{pmatrix} 0 & 0 \\ 1 & 0 \end{pmatrix}$. Its square is 0, so its eigenvalues are 0. A diagonalizable matrix
# whose eigenvalues are all 0 is the zero matrix, which is a contradiction.

# %%
quotient = np.linalg.inv(np.asarray(W[:, :, 0])) @ np.asarray(W[:, :, 1])
assert quotient.tolist() == [[0, 0], [1, 0]] and not (quotient @ quotient).any()

# %% [markdown]
# **6.** Rank 1 needs $8 + 8 = 16$ numbers instead of 64. All rows of such an image are multiples of one row. Examples
# are stripes, a product of horizontal and vertical stripes, and a rectangle. A diagonal line has full rank. The plots
# show a ring of rank 3 and its best approximations with 1, 2 and 3 summands.

# %%
ring = np.zeros((8, 8))
ring[1:7, 1:7], ring[3:5, 3:5] = 1, 0
ring[[1, 1, 6, 6], [1, 6, 1, 6]] = 0
left, size, right = np.linalg.svd(ring)
best = [(left[:, :R] * size[:R]) @ right[:R] for R in (1, 2, 3)]
assert np.linalg.matrix_rank(ring) == 3 and np.allclose(best[2], ring)
assert np.linalg.matrix_rank(np.eye(8)) == 8
figure, axes = plt.subplots(figsize=(8, 2.2), layout="constrained")
axes = plotting.tiles([*best, ring], axes)
