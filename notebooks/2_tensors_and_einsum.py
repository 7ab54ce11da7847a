# %% [markdown]
# # Tensors, and one notation for all their products
#
# Data, params and everything in between are arrays with several axes. Matrix products, traces, transposes, batches of
# products, attention: each has a name and a function of its own, and each time one wonders which axis goes where.
# **Is there one way to write them all, such that the code looks like the formula?**
#
# There is: Einstein's summation, `einsum`. The second half of the notebook asks what tensors are made of: which are
# products of vectors, how many such products a tensor needs, and why that question is much harder than for matrices.
#
# You need to know matrices and a little Python. What is claimed in the text is checked by an `assert` in the cell below
# it. At the end there is homework, with solutions. The lectures behind it: Diehl, *lecture notes* (2023), section 1.2;
# Cevher, *Mathematics of Data*; Krapac & Šegvić, *Deep feed-forward models*.

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
# ## 1. Words
#
# A **tensor** $T \in \mathbb R^{d_1 \times \dots \times d_n}$ is an array of numbers $T_{i_1 \dots i_n}$. It has $n$
# **axes**; $n$ is its **order**, $(d_1, \dots, d_n)$ its **shape**. Order 0 is a number, order 1 a vector, order 2 a
# matrix.

# %%
tensors = [jnp.array(7.0), jnp.arange(3.0), jnp.arange(6.0).reshape(2, 3), jnp.arange(24.0).reshape(2, 3, 4)]
assert [T.ndim for T in tensors] == [0, 1, 2, 3] and tensors[3].shape == (2, 3, 4)
figure, axes = plt.subplots(1, 4, figsize=(9, 2.5), layout="constrained")
for ax, T in zip(axes, tensors, strict=True):
    plotting.cells(T, ax)
    ax.set_title(f"order {T.ndim}, shape {T.shape}")

# %% [markdown]
# > **One lecture prints** "rank" for the number of indices; another keeps "rank" for something else (section 5).
#
# **A number that breaks it:** the matrix $\begin{pmatrix} 1 & 2 \\ 2 & 4 \end{pmatrix}$ has two indices, and every book
# on linear algebra gives it rank 1. **In this library:** *order* is the number of indices, `T.ndim`; *rank* is the
# number of products that are needed.
#
# > **One lecture prints** $X \in \mathbb R^{m_1} \times \mathbb R^{m_2} \times \cdots$ for the space of tensors.
#
# **A number that breaks it:** an element of $\mathbb R^2 \times \mathbb R^3$ is a pair of vectors, $2 + 3 = 5$ numbers.
# A $2 \times 3$ matrix has 6. **Corrected:** $\mathbb R^{m_1 \times m_2 \times \cdots \times m_M}$; the *index ranges*
# are multiplied.

# %%
matrix = jnp.array([[1.0, 2.0], [2.0, 4.0]])
assert matrix.ndim == 2 and jnp.linalg.matrix_rank(matrix) == 1
assert jnp.zeros((2, 3)).size == 6 != 2 + 3

# %% [markdown]
# **Which axis means what** is a matter of agreement. Here the batch (many examples at once) comes first, features or
# channels last:
#
# | data | axes |
# |---|---|
# | examples with features | `(batch, features)` |
# | sequences | `(batch, time, features)` |
# | images | `(batch, height, width, channels)` |
#
# Layers of this library work on the last axes and leave all others alone, so that one layer fits them all. Params are
# tensors as well.

# %%
layer = jb.Dense(5)
params = layer.init(jax.random.key(0), jnp.zeros(3))
shapes = [(3,), (8, 3), (8, 20, 3)]
assert [layer.apply(params, jnp.zeros(s)).shape for s in shapes] == [(5,), (8, 5), (8, 20, 5)]

# %% [markdown]
# ## 2. Einstein's summation
#
# Write the product of a matrix and a vector with indices: $(A v)_i = \sum_j A_{ij} v_j$. Einstein's convention is to
# drop the sum sign, $A_{ij} v_j$. `einsum` takes this as a string: a term for each operand, a letter for each axis, and
# behind the arrow the axes of the result. **Letters that are not behind the arrow are summed.**

# %%
A, v = jnp.arange(6.0).reshape(2, 3), jnp.array([1.0, 0.0, -1.0])
assert (jb.tensors.einsum("ij,j->i", A, v) == A @ v).all()
jb.tensors.einsum("ij,j->i", A, v)

# %% [markdown]
# That is all. To read an einsum, write the loops: one for each letter. Inside, one product, added to the place that the
# letters behind the arrow name.


# %%
def einsum_by_loops(subscripts, *operands):
    terms, result = subscripts.split("->")[0].split(","), subscripts.split("->")[1]
    size = {letter: n for term, x in zip(terms, operands, strict=True) for letter, n in zip(term, x.shape, strict=True)}
    out = np.zeros([size[letter] for letter in result])
    for place in itertools.product(*(range(n) for n in size.values())):
        at = dict(zip(size, place, strict=True))  # which number each letter is just now
        index = lambda term, at=at: tuple(at[letter] for letter in term)
        out[index(result)] += math.prod(x[index(term)] for term, x in zip(terms, operands, strict=True))
    return out


rng = np.random.default_rng(0)
S, B, C = rng.normal(size=(3, 3)), rng.normal(size=(3, 4)), rng.normal(size=(2, 3))
T, U = rng.normal(size=(2, 3, 4)), rng.normal(size=(3, 4, 5))
table = {
    "ik,kj->ij": ((C, B), C @ B),  # matrix product
    "ii->": ((S,), np.trace(S)),  # trace: an index that comes twice in one term is a diagonal
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
# ### Why the arrow is required
#
# > **The lecture notes print** the rule: every index that appears at least twice is summed.
#
# **Numbers that break it.** Let $u = v = (0, 1, 2)$. By this rule $u_i v_i$ is $0 + 1 + 4 = 5$, and there is no way
# left to write the *entrywise* product $(0, 1, 4)$. Nor can one write a batch of matrix products, $A_{bik} B_{bkj}$
# with $b$ kept: $b$ appears twice, so it is summed. **Corrected:** say which indices stay. That is the arrow.

# %%
u = jnp.arange(3.0)
assert jb.tensors.einsum("i,i->", u, u) == 5
assert jb.tensors.einsum("i,i->i", u, u).tolist() == [0, 1, 4]
many, others = rng.normal(size=(6, 2, 3)), rng.normal(size=(6, 3, 4))
assert np.allclose(np.einsum("bik,bkj->bij", many, others), many @ others)

# %% [markdown]
# NumPy and JAX let you leave out the arrow, and follow the printed rule then. They also put the axes of the result in
# *alphabetical* order, so that `"ji"` transposes and `"ij"` does not. `jb.tensors.einsum` refuses, and says what to write.

# %%
assert (jnp.einsum("ji", A) == A.T).all() and (jnp.einsum("ij", A) == A).all()
try:
    jb.tensors.einsum("bik,bkj", jnp.asarray(many), jnp.asarray(others))
except ValueError as error:
    print(error)

# %% [markdown]
# A letter stands for one size. Where two operands disagree the sentence says where:

# %%
try:
    jb.tensors.einsum("ik,kj->ij", A, A)
except ValueError as error:
    print(error)

# %% [markdown]
# ## 3. Layers as einsums
#
# **A dense layer** on a batch: $y_{bo} = x_{bi} W_{io} + b_o$. Three dots stand for whatever axes are in front.

# %%
x = jnp.asarray(rng.normal(size=(8, 20, 3)), jnp.float32)
assert jnp.allclose(
    jb.tensors.einsum("...i,io->...o", x, params["kernel"]) + params["bias"], layer.apply(params, x), atol=1e-5
)

# %% [markdown]
# **Attention** (notebook 6) compares each query $q$ with each key $k$, for each head $h$ and each example $b$ of a
# batch, and adds up values with the weights that come out of it. Try to write this with `@` and transposes:
#
# $$ s_{bhqk} = Q_{bqhd}\, K_{bkhd}, \qquad o_{bqhd} = w_{bhqk}\, V_{bkhd} . $$

# %%
Q, K, V = (jnp.asarray(rng.normal(size=(2, n, 4, 5)), jnp.float32) for n in (3, 6, 6))  # (batch, time, head, feature)
scores = jb.tensors.einsum("bqhd,bkhd->bhqk", Q, K) / math.sqrt(5)
weights = jb.softmax(scores)  # over the keys
outputs = jb.tensors.einsum("bhqk,bkhd->bqhd", weights, V)
assert jnp.allclose(outputs, jb.attention(Q, K, V), atol=1e-5)

# %% [markdown]
# **What does an einsum cost?** One product for each turn of the loops: the product of the sizes of *all* letters. With
# three operands the order of work matters, just as in the chain rule (notebook 7). For $A B v$ with $100 \times 100$
# matrices: all at once $100^3$ products, one after the other either $100^3 + 100^2$ or $2 \cdot 100^2$. (`jb.count_flops`
# counts the operations of any function.)

# %%
P, w = jnp.ones((100, 100)), jnp.ones(100)
left_first = lambda: jb.tensors.einsum("ik,k->i", jb.tensors.einsum("ij,jk->ik", P, P), w)
right_first = lambda: jb.tensors.einsum("ij,j->i", P, jb.tensors.einsum("jk,k->j", P, w))
assert jb.count_flops(left_first).multiplications == 100**3 + 100**2
assert jb.count_flops(right_first).multiplications == 2 * 100**2

# %% [markdown]
# ## 4. The tensor product
#
# Multiply each number of $S$ by each number of $T$, and keep all the results: $(S \otimes T)_{i j} = S_i T_j$. Orders
# add up, shapes are put behind one another.

# %%
a, b = jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0, 5.0])
assert jb.tensors.tensor_product(a, b).tolist() == [[3, 4, 5], [6, 8, 10]]
left = jb.tensors.tensor_product(jb.tensors.tensor_product(a, b), a)
assert (left == jb.tensors.tensor_product(a, jb.tensors.tensor_product(b, a))).all()  # associative
assert jb.tensors.tensor_product(b, a).shape == (3, 2)  # not commutative: the axes are exchanged
assert (jb.tensors.tensor_product(b, a) == jb.tensors.tensor_product(a, b).T).all()

# %% [markdown]
# A product of vectors, $v_1 \otimes \dots \otimes v_n$, is called a **pure tensor**. All its rows are multiples of one
# row, all its columns of one column, and so on for each axis. It is described by $d_1 + \dots + d_n$ numbers instead of
# $d_1 \cdots d_n$.

# %%
pure = jb.tensors.pure_tensor(a, b, jnp.array([1.0, -1.0, 0.5, 2.0]))
assert pure.shape == (2, 3, 4) and pure.size == 24 and 2 + 3 + 4 == 9
assert jnp.allclose(pure[1], 2 * pure[0])

# %% [markdown]
# ## 5. Rank
#
# Not every tensor is pure, but every tensor is a *sum* of pure ones; at worst one for each entry. The least number of
# them is the **rank**:
#
# $$ T = \sum_{r=1}^{R} u_r^{(1)} \otimes \dots \otimes u_r^{(n)}, \qquad \text{with the least } R . $$
#
# For matrices this is the rank that you know: a product of a column and a row is a pure tensor of order 2. `cp_tensor`
# adds up pure tensors, given as the rows of one matrix for each axis.
#
# > **The lecture notes print:** pure tensors have rank one.
#
# **A number that breaks it:** $0 = 0 \otimes 0$ is pure, and it is the sum of *no* products: rank 0.
# **Corrected:** pure tensors other than 0 have rank one.

# %%
zero = jb.tensors.pure_tensor(jnp.zeros(2), b)
assert jb.tensors.rank_bounds(zero)[1] == 0 and jb.tensors.rank_bounds(jb.tensors.pure_tensor(a, b))[1] == 1
summands = jnp.asarray(rng.normal(size=(2, 4)), jnp.float32), jnp.asarray(rng.normal(size=(2, 4)), jnp.float32)
assert jnp.linalg.matrix_rank(jb.tensors.cp_tensor(summands)) == 2

# %% [markdown]
# ### Order 3 is another world
#
# For matrices the rank is found by elimination. For order 3 and more it is NP-hard to compute. What can be computed are
# the ranks of the **flattenings**: keep one axis for the rows, line up all others for the columns. Each is a lower
# bound of the rank, since a sum of $R$ pure tensors flattens to a sum of $R$ pure matrices.
#
# Here is the smallest tensor for which that is not the whole story: of the eight entries three are 1.
#
# $$ W = e_0 \otimes e_0 \otimes e_1 + e_0 \otimes e_1 \otimes e_0 + e_1 \otimes e_0 \otimes e_0 $$

# %%
e0, e1 = jnp.eye(2)
W = jb.tensors.pure_tensor(e0, e0, e1) + jb.tensors.pure_tensor(e0, e1, e0) + jb.tensors.pure_tensor(e1, e0, e0)
assert jb.tensors.flattening(W, 0).tolist() == [[0, 1, 1, 0], [1, 0, 0, 0]]
assert jb.tensors.flattening_ranks(W).tolist() == [2, 2, 2]
lower, upper = jb.tensors.rank_bounds(W)
print(f"the rank is between {lower} and {upper}")
figure, axes = plt.subplots(figsize=(2.6, 2.6), layout="constrained")
axes = plotting.cells(W, axes)

# %% [markdown]
# It is a sum of three, so its rank is 2 or 3. Homework 5 shows that it is 3. And now the strange part: there are
# tensors of rank 2 as close to $W$ as you like!
#
# $$ \frac{(e_0 + \varepsilon e_1)^{\otimes 3} - e_0^{\otimes 3}}{\varepsilon} = W + \varepsilon\, (\text{something})
#    + \varepsilon^2 (\text{something}) $$
#
# Multiply it out and see. So $W$ is a limit of tensors of rank 2 (its *border rank* is 2), and "the best approximation
# of rank 2" does not exist. For matrices this cannot happen: a limit of matrices of rank 2 has at most rank 2.

# %%
epsilons = np.array([1.0, 0.1, 0.01, 0.001])
cube = lambda v: np.einsum("i,j,k->ijk", v, v, v)
near = [(cube(np.array([1.0, eps])) - cube(np.array([1.0, 0.0]))) / eps for eps in epsilons]
distance = [abs(tensor - np.asarray(W)).max() for tensor in near]
assert np.allclose(distance, epsilons)
print(dict(zip(epsilons.tolist(), np.round(distance, 6).tolist(), strict=True)))

# %% [markdown]
# The price: the two summands, each of size $1/\varepsilon$, nearly cancel. Whoever *searches* for two summands sees the
# same. `cp_decompose` improves the vectors of one axis after the other by least squares. With one summand it stops at
# the best possible error, $\sqrt 5 / 3$; with three it finds $W$; with two the error creeps towards 0 and never gets
# there.

# %%
found = {rank: jb.tensors.cp_decompose(jax.random.key(0), W, rank=rank, steps=500) for rank in (1, 2, 3)}
for rank, (_, error) in found.items():
    print(f"{rank} summands: relative error {error:.1e}")
assert abs(found[1][1] - math.sqrt(5) / 3) < 1e-3
assert 1e-3 < found[2][1] < 0.02 and found[3][1] < 1e-4

# %% [markdown]
# ### A tensor worth decomposing
#
# Number the entries of a $2 \times 2$ matrix from 0 to 3. The product $C = A B$ is then $C_c = M_{abc} A_a B_b$ for a
# fixed tensor $M$ of shape $(4, 4, 4)$, with entries 0 and 1. **Each pure summand of $M$ is one multiplication:**
#
# $$ M = \sum_r \alpha_r \otimes \beta_r \otimes \gamma_r \quad\Longrightarrow\quad
#    C = \sum_r \langle \alpha_r, A \rangle\, \langle \beta_r, B \rangle\; \gamma_r . $$
#
# The school method uses 8 multiplications: $M$ has eight ones. Strassen found in 1969 a way with 7, so the rank of $M$
# is at most 7 (it is exactly 7).

# %%
M = np.zeros((4, 4, 4))
for i, j, k in itertools.product(range(2), repeat=3):
    M[2 * i + k, 2 * k + j, 2 * i + j] = 1  # A_ik B_kj goes to C_ij
alpha = [[1, 0, 0, 1], [0, 0, 1, 1], [1, 0, 0, 0], [0, 0, 0, 1], [1, 1, 0, 0], [-1, 0, 1, 0], [0, 1, 0, -1]]
beta = [[1, 0, 0, 1], [1, 0, 0, 0], [0, 1, 0, -1], [-1, 0, 1, 0], [0, 0, 0, 1], [1, 1, 0, 0], [0, 0, 1, 1]]
gamma = [[1, 0, 0, 1], [0, 0, 1, -1], [0, 1, 0, 1], [1, 0, 1, 0], [-1, 1, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0]]
strassen = [jnp.array(rows, jnp.float32) for rows in (alpha, beta, gamma)]
assert M.sum() == 8 and len(alpha) == 7
assert (jb.tensors.cp_tensor(strassen) == M).all()
A, B = rng.normal(size=(2, 2)), rng.normal(size=(2, 2))
assert np.allclose(np.einsum("abc,a,b->c", M, A.ravel(), B.ravel()).reshape(2, 2), A @ B)
seven = (np.array(alpha) @ A.ravel()) * (np.array(beta) @ B.ravel())  # all the multiplications there are
assert np.allclose((seven @ np.array(gamma)).reshape(2, 2), A @ B)

# %% [markdown]
# Apply this to matrices of matrices, again and again, and $n \times n$ matrices take $n^{\log_2 7} = n^{2.81}$
# multiplications instead of $n^3$. A question about the rank of a tensor of order 3 is a question about the cost of the
# most common operation there is.
#
# ## Summary
#
# | | |
# |---|---|
# | order, shape | number of axes, their sizes |
# | `einsum("...->...")` | a loop for each letter; what is not behind the arrow is summed; cost: all sizes multiplied |
# | $S \otimes T$ | each number with each; orders add up |
# | pure tensor | product of vectors; rank 1, or 0 if it is zero |
# | rank | least number of pure summands; for order 3 and more hard to find, bounded below by flattenings |
#
# ## Homework
#
# 1. **Read:** what do `"bij->bji"`, `"ij,jk,kl->il"`, `"bij,bij->b"` and `"ij,kl->ikjl"` compute? Give the functions of
#    NumPy for them.
# 2. **Write** as einsum: the trace of $A B$; $x^\top A y$ for each of a batch of $x$ and $y$; the covariance matrix of
#    the rows of $X$; the sum of all entries of a tensor of order 3. Which letters are summed?
# 3. **Cost:** how many multiplications does the trace of $A B$ take for $n \times n$ matrices, by your einsum, and by
#    multiplying first?
# 4. **Rank of a matrix:** write $\begin{pmatrix} 1 & 2 & 3 \\ 4 & 5 & 6 \\ 7 & 8 & 9 \end{pmatrix}$ as a sum of as few
#    products $u v^\top$ as possible.
# 5. **Prove** that $W$ has rank 3. *Hint:* if $W = \sum_{r=1}^2 a_r \otimes b_r \otimes c_r$, then its two slices are
#    $W_k = X D_k Y$ with diagonal $D_k$ and the same $X$, $Y$. What does that say about $W_0^{-1} W_1$?
# 6. **A picture with factors:** a gray image is a matrix; its best approximation of rank $R$ comes from the singular
#    values. How many numbers does rank 1 take for an image of $8 \times 8$ pixels, and of which images is it all?
#
# Try them before you read on.
#
# ## Solutions
#
# **1.** The transpose of each matrix of a batch; the product of three matrices; the inner product of each pair of
# matrices in a batch; the Kronecker product, before its axes are merged.

# %%
assert np.allclose(einsum_by_loops("bij->bji", many), many.swapaxes(1, 2))
assert np.allclose(einsum_by_loops("ij,jk,kl->il", C, S, S), C @ S @ S)
assert np.allclose(einsum_by_loops("bij,bij->b", many, many), (many * many).sum((1, 2)))
assert np.allclose(einsum_by_loops("ij,kl->ikjl", C, S).reshape(2 * 3, 3 * 3), np.kron(C, S))

# %% [markdown]
# **2.** `"ij,ji->"`, both letters are summed; `"bi,ij,bj->b"`, sums over $i$ and $j$; with the mean subtracted
# `"ni,nj->ij"`, divided by the number of rows, sum over $n$; `"ijk->"`, all are summed.

# %%
assert np.isclose(einsum_by_loops("ij,ji->", S, S), np.trace(S @ S))
rows = rng.normal(size=(6, 3))
assert np.allclose(einsum_by_loops("bi,ij,bj->b", rows, S, rows), [r @ S @ r for r in rows])
centered = rows - rows.mean(0)
assert np.allclose(einsum_by_loops("ni,nj->ij", centered, centered) / 6, np.cov(rows.T, bias=True))
assert np.isclose(einsum_by_loops("ijk->", T), T.sum())

# %% [markdown]
# **3.** Two letters: $n^2$. Multiplying first takes three letters, $n^3$, and computes $n^2 - n$ entries that nobody
# needs.

# %%
assert jb.count_flops(lambda: jb.tensors.einsum("ij,ij->", P, P.T)).multiplications == 100**2
assert jb.count_flops(lambda: jnp.trace(jb.tensors.einsum("ij,jk->ik", P, P))).multiplications == 100**3

# %% [markdown]
# **4.** The rows are $(1, 2, 3)$ plus 0, 3 and 6 times $(1, 1, 1)$: two products. One is not enough, since the rows are
# not multiples of one another.

# %%
numbers = jnp.arange(1.0, 10).reshape(3, 3)
two_products = jnp.array([[1.0, 1, 1], [0, 3, 6]]), jnp.array([[1.0, 2, 3], [1, 1, 1]])
assert (jb.tensors.cp_tensor(two_products) == numbers).all()
assert jb.tensors.flattening_ranks(numbers).tolist() == [2, 2]

# %% [markdown]
# **5.** Slice $W$ along its last axis: $W_k = X D_k Y$, where $X$ has the columns $a_1, a_2$, $Y$ the rows
# $b_1, b_2$, and $D_k$ the entries $c_{1k}, c_{2k}$ on its diagonal. $W_0$ is invertible, so $X$, $D_0$, $Y$ are, and
# $W_0^{-1} W_1 = Y^{-1} D_0^{-1} D_1 Y$ is *diagonalizable*. But it is $\begin{pmatrix} 0 & 0 \\ 1 & 0 \end{pmatrix}$:
# its square is 0, so its eigenvalues are 0, and a diagonalizable matrix with eigenvalues 0 is 0, which it is not.

# %%
quotient = np.linalg.inv(np.asarray(W[:, :, 0])) @ np.asarray(W[:, :, 1])
assert quotient.tolist() == [[0, 0], [1, 0]] and not (quotient @ quotient).any()

# %% [markdown]
# **6.** $8 + 8 = 16$ numbers instead of 64. All rows are multiples of one row then: stripes, checked cloth, a
# rectangle, but no diagonal line, which has full rank. Below, a ring of rank 3 with 1, 2 and 3 summands.

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
