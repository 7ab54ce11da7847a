# %% [markdown]
# # Tensors and `einsum`
#
# The data and the params of a network are arrays with several axes. Matrix products, traces, transposes, batched
# products and attention all have their own names and functions, and each function has its own convention for the axes.
# **Is there one notation for all of these operations, so that the code looks like the formula?**
#
# Einstein's summation convention is such a notation; `einsum` implements it. The second half of this notebook is about
# the structure of tensors: which tensors are products of vectors, how many such products a tensor needs, and why this
# question is much harder than for matrices.
#
# **Prerequisites:** matrices and basic Python. Every section ends with an exercise: a cell to complete, and a cell
# that checks it. **Sources:** Kolda and Bader 2009, *Tensor decompositions and applications*; de Silva and Lim 2008
# (best approximations need not exist); Strassen 1969; Diehl, *lecture notes* (2023), section 1.2.

# %%
import itertools
import math

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxblocks as jb
from jaxblocks import plotting
from jaxblocks.datasets import digits

# %% [markdown]
# ## 1. Arrays and their axes
#
# A **tensor** $T \in \mathbb R^{d_1 \times \dots \times d_n}$ is an array of numbers $T_{i_1 \dots i_n}$. It has $n$
# **axes**; $n$ is its **order**, $(d_1, \dots, d_n)$ its **shape**. A tensor of order 0 is a number, of order 1 a
# vector, of order 2 a matrix. It has $d_1 \cdots d_n$ entries. (The order is not the *rank*: the matrix
# $\begin{pmatrix} 1 & 2 \\ 2 & 4 \end{pmatrix}$ has order 2 and rank 1. Section 6 is about the rank.)

# %%
tensors = [
    jnp.array(7.0),
    jnp.arange(3.0),
    jnp.arange(6.0).reshape(2, 3),
    jnp.arange(24.0).reshape(2, 3, 4),
]
matrix = jnp.array([[1.0, 2.0], [2.0, 4.0]])
assert matrix.ndim == 2 and jnp.linalg.matrix_rank(matrix) == 1
assert [T.ndim for T in tensors] == [0, 1, 2, 3] and tensors[3].shape == (2, 3, 4)
figure, axes = plt.subplots(1, 4, figsize=(6.5, 2.2), layout="constrained")
for ax, T in zip(axes, tensors, strict=True):
    plotting.cells(T, ax)
    ax.set_title(f"order {T.ndim}\nshape {T.shape}", fontsize=9)

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
# A dense layer acts on the last axis and treats all others as batch axes, so the same layer applies to all of these.

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
# **Exercise 1.** Images of shape `(batch, height, width, channels)` have to be given to a program that expects the
# channels second, `(batch, channels, height, width)`. Complete the function.


# %% tags=["exercise"]
def channels_second(images):
    return images  # complete: jnp.transpose with the order of the axes


# %% tags=["solution"]
def channels_second(images):
    return jnp.transpose(images, (0, 3, 1, 2))


# %% tags=["check"]
pictures = jnp.arange(2 * 4 * 5 * 3).reshape(2, 4, 5, 3)
turned = channels_second(pictures)
assert turned.shape == (2, 3, 4, 5), (
    f"expected the shape (2, 3, 4, 5), got {turned.shape}"
)
assert turned[1, 2, 3, 4] == pictures[1, 3, 4, 2], "the entries are mixed up"

# %% [markdown]
# ## 2. Broadcasting and reshape
#
# **Reshape** keeps the entries in their order and changes the shape. The order is that of reading: the last index
# changes fastest. So a reshape can merge neighboring axes or split an axis, but it does not exchange axes; that is
# a transpose.

# %%
A = jnp.arange(6).reshape(2, 3)
assert A.tolist() == [[0, 1, 2], [3, 4, 5]]
assert A.reshape(3, 2).tolist() == [[0, 1], [2, 3], [4, 5]]  # not the transpose
assert A.T.tolist() == [[0, 3], [1, 4], [2, 5]]
heads = jnp.arange(24).reshape(2, 12).reshape(2, 3, 4)  # split an axis of 12 into 3 x 4
assert heads[1, 2, 3] == 1 * 12 + 2 * 4 + 3

# %% [markdown]
# **Broadcasting** is what happens if arrays of different shapes are added or multiplied. The shapes are aligned at the
# *last* axis. Two sizes fit if they are equal or if one of them is 1; missing axes count as 1. An axis of size 1 is
# repeated. The picture adds a column of shape $(3, 1)$ and a row of shape $(4,)$: the sum has the shape $(3, 4)$.

# %%
column, row = jnp.array([[0.0], [10.0], [20.0]]), jnp.arange(4.0)
table = column + row
assert table.shape == (3, 4) and table[2, 3] == 20 + 3
assert jnp.broadcast_shapes((8, 20, 3), (3,)) == (8, 20, 3)  # a bias of a layer
figure, axes = plt.subplots(1, 3, figsize=(6.5, 2.0), layout="constrained")
for ax, T in zip(axes, (column, row, table), strict=True):
    plotting.cells(T, ax)
    ax.set_title(f"shape {T.shape}", fontsize=9)

# %% [markdown]
# Broadcasting hides a common mistake. The predictions of a net with one output have the shape $(n, 1)$; with
# targets of shape $(n,)$ the difference has the shape $(n, n)$, and its mean square is a number like any other. It
# compares every prediction with every target.

# %%
predictions, targets = jnp.ones((5, 1)), jnp.arange(5.0)
assert (predictions - targets).shape == (5, 5)
right = jnp.mean((predictions[:, 0] - targets) ** 2)
wrong = jnp.mean((predictions - targets) ** 2)
print(
    f"right {right}, wrong {wrong}: here they agree, because all predictions are equal"
)
predictions = targets[:, None]  # perfect predictions
assert jnp.mean((predictions[:, 0] - targets) ** 2) == 0
assert jnp.mean((predictions - targets) ** 2) == 4

# %% [markdown]
# **Exercise 2.** Compute all distances between $n$ points and $m$ points of $\mathbb R^d$ without a loop, as an array
# $(n, m)$. *Hint:* insert axes of size 1 with `None`, `x[:, None]`.


# %% tags=["exercise"]
def distances(x, y):
    return jnp.zeros((len(x), len(y)))  # complete this line


# %% tags=["solution"]
def distances(x, y):
    return jnp.sqrt(((x[:, None] - y[None]) ** 2).sum(-1))  # (n, 1, d) - (1, m, d)


# %% tags=["check"]
p, q = (
    jnp.array([[0.0, 0.0], [3.0, 4.0]]),
    jnp.array([[0.0, 0.0], [0.0, 4.0], [6.0, 8.0]]),
)
found = distances(p, q)
assert found.shape == (2, 3), f"expected the shape (2, 3), got {found.shape}"
assert np.allclose(found, [[0, 4, 10], [5, 3, 5]]), (
    "the distances of p and q are [[0, 4, 10], [5, 3, 5]]"
)

# %% [markdown]
# ## 3. Einstein summation
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
# **The arrow.** Without it, it is unclear what is kept: in $u_i v_i$ the index can be summed (the inner product) or
# kept (the entrywise product); in a batch of matrix products, $A_{bik} B_{bkj}$, $b$ is kept and $k$ summed. NumPy
# and JAX allow strings without an arrow. They then sum every letter that appears twice, and sort the others by the
# alphabet, so `"ji"` transposes and `"ij"` does not. `jb.tensors.einsum` asks for the arrow, and its errors name
# the axes:

# %%
u = jnp.arange(3.0)
assert jb.tensors.einsum("i,i->", u, u) == 5
assert jb.tensors.einsum("i,i->i", u, u).tolist() == [0, 1, 4]
many, others = rng.normal(size=(6, 2, 3)), rng.normal(size=(6, 3, 4))
assert np.allclose(np.einsum("bik,bkj->bij", many, others), many @ others)
assert (jnp.einsum("ji", A) == A.T).all() and (jnp.einsum("ij", A) == A).all()
for subscripts, operands in (("bik,bkj", (many, others)), ("ik,kj->ij", (A, A))):
    try:
        jb.tensors.einsum(subscripts, *map(jnp.asarray, operands))
    except ValueError as error:
        print(error)

# %% [markdown]
# **Exercise 3.** Write as einsums: the trace of $A B$; $x^\top A y$ for each pair of rows $x, y$ of two batches;
# the matrix $\sum_n x_n x_n^\top$ of the rows of $X$. Which letters are summed?

# %% tags=["exercise"]
trace_of_product = "ij,jk->ik"  # complete: A, B
bilinear = "bi,ij,bj->bi"  # complete: X, A, Y
moments = "ni,nj->nij"  # complete: X, X

# %% tags=["solution"]
trace_of_product = "ij,ji->"  # both letters are summed
bilinear = "bi,ij,bj->b"  # i and j
moments = "ni,nj->ij"  # n

# %% tags=["check"]
X, Y = rng.normal(size=(6, 3)), rng.normal(size=(6, 3))
found = np.einsum(trace_of_product, S, S)
assert found.shape == () and np.isclose(found, np.trace(S @ S)), "trace: a number"
found = np.einsum(bilinear, X, S, Y)
expected = [x @ S @ y for x, y in zip(X, Y, strict=True)]
assert found.shape == (6,) and np.allclose(found, expected), "bilinear: a number a row"
assert np.allclose(np.einsum(moments, X, X), X.T @ X), (
    "moments: the matrix of shape (3, 3)"
)

# %% [markdown]
# ## 4. Layers as einsums
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
# batch, and then computes a weighted sum of the values. As einsums:
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
# **Cost.** An einsum of two operands computes one product per loop iteration, so the number of products is the
# product of the sizes of *all* letters. With more operands the order matters, as in the chain rule (notebook 7): $A
# B v$ with $100 \times 100$ matrices takes $100^3 + 100^2$ products if $A B$ is computed first, and $2 \cdot 100^2$
# if $B v$ is. (`jb.count_flops` counts the operations of any function.)

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
# **Exercise 4.** How many multiplications does the trace of $A B$ take for $n \times n$ matrices as an einsum, and
# how many if the whole product $A B$ is computed first?


# %% tags=["exercise"]
def multiplications(n):
    return 0, 0  # complete: by the einsum, by the product


# %% tags=["solution"]
def multiplications(n):
    return n**2, n**3  # the product has n^2 - n entries that the trace does not use


# %% tags=["check"]
by_einsum = jb.count_flops(lambda: jb.tensors.einsum("ij,ji->", P, P)).multiplications
whole = lambda: jnp.trace(jb.tensors.einsum("ij,jk->ik", P, P))
counted = by_einsum, jb.count_flops(whole).multiplications
assert multiplications(100) == counted, f"for n = 100 the counts are {counted}"
assert multiplications(7) == (49, 343), "for n = 7 there are 49 and 343"

# %% [markdown]
# ## 5. Tensor products
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
# **Exercise 5.** Given a pure tensor of order 2 that is not zero, find vectors $u$ and $v$ with $T = u \otimes v$.


# %% tags=["exercise"]
def factors(T):
    return T[:, 0], T[0]  # complete: correct the scale, and mind zeros


# %% tags=["solution"]
def factors(T):
    # the row and the column of the largest entry; their product is too large by it
    i, j = np.unravel_index(abs(T).argmax(), T.shape)
    return T[:, j], T[i] / T[i, j]


# %% tags=["check"]
for T in (np.outer([1.0, 2.0], [3.0, 4.0]), np.outer([0.0, 2.0], [0.0, -1.0, 5.0])):
    u, v = factors(T)
    assert np.allclose(np.outer(u, v), T), (
        f"the product of the factors differs from {T.tolist()}"
    )

# %% [markdown]
# ## 6. Tensor rank
#
# Not every tensor is pure, but every tensor is a *sum* of pure tensors, for example with one summand for each entry.
# The least number of summands is the **rank**:
#
# $$ T = \sum_{r=1}^{R} u_r^{(1)} \otimes \dots \otimes u_r^{(n)}, \qquad \text{with the least } R . $$
#
# For matrices this is the usual rank, because a product of a column and a row is a pure tensor of order 2. A pure
# tensor has rank 1, except for zero, which is the sum of *no* products and has rank 0. `cp_tensor` computes a sum
# of pure tensors. It takes one matrix per axis; row $r$ of each matrix is a factor of summand $r$.

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
# **Lower bounds.** Elimination computes the rank of a matrix. For order 3 it is NP-hard (Håstad 1990). The ranks of
# the **flattenings** are easy to compute. A flattening is a matrix: one axis gives the rows, and all other axes
# together give the columns. The rank of each flattening is a lower bound on the rank of the tensor, because a sum
# of $R$ pure tensors flattens to a sum of $R$ pure matrices.
#
# The bound can be too small. All three flattenings of the following tensor have rank 2, but its rank is 3:
#
# $$ W = e_0 \otimes e_0 \otimes e_1 + e_0 \otimes e_1 \otimes e_0 + e_1 \otimes e_0 \otimes e_0 . $$
#
# *Proof.* Let $W = \sum_{r=1}^2 a_r \otimes b_r \otimes c_r$. Its slices along the last axis are $W_k = X D_k Y$:
# $X$ has the columns $a_1, a_2$, $Y$ the rows $b_1, b_2$, and $D_k$ the entries $c_{1k}, c_{2k}$ on its diagonal.
# $W_0$ is invertible, so $X$, $D_0$, $Y$ are, and $W_0^{-1} W_1 = Y^{-1} D_0^{-1} D_1 Y$ is *diagonalizable*. But
# it is $\begin{pmatrix} 0 & 0 \\ 1 & 0 \end{pmatrix}$, whose square is 0 while it is not 0. $\square$

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
quotient = np.linalg.inv(W[:, :, 0]) @ np.asarray(W[:, :, 1])
assert quotient.tolist() == [[0, 0], [1, 0]] and not (quotient @ quotient).any()
figure, axes = plt.subplots(figsize=(2.6, 2.6), layout="constrained")
axes = plotting.cells(W, axes)

# %% [markdown]
# **Best approximations need not exist.** Tensors of rank 2 come arbitrarily close to $W$:
#
# $$ \frac{(e_0 + \varepsilon e_1)^{\otimes 3} - e_0^{\otimes 3}}{\varepsilon} = W
#    + \varepsilon\, (e_0 \otimes e_1 \otimes e_1 + e_1 \otimes e_0 \otimes e_1 + e_1 \otimes e_1 \otimes e_0)
#    + \varepsilon^2\, e_1^{\otimes 3} . $$
#
# So $W$, of rank 3, is a limit of tensors of rank 2, and none of these is closest to it. For matrices this cannot
# happen: a matrix has rank at most 2 exactly if all its $3 \times 3$ minors are 0, and the limits of such matrices
# have the same property.

# %%
epsilons = np.array([1.0, 0.1, 0.01, 0.001])
cube = lambda v: np.einsum("i,j,k->ijk", v, v, v)
near = [
    (cube(np.array([1.0, eps])) - cube(np.array([1.0, 0.0]))) / eps for eps in epsilons
]
distance = [abs(tensor - np.asarray(W)).max() for tensor in near]
assert np.allclose(distance, epsilons)
for eps, gap in zip(epsilons, distance, strict=True):
    print(f"epsilon = {eps:5}: largest difference {gap:.3f}")

# %% [markdown]
# The two summands have size $1/\varepsilon$ and nearly cancel. A numerical search for two summands can therefore
# not succeed. `cp_decompose` optimizes the vectors of one axis at a time by least squares (alternating least
# squares). The relative error with one summand is at least $\sqrt 5 / 3$: the largest inner product of $W$ with a
# pure tensor of length 1 is $\max_{a^2 + b^2 = 1} 3 a^2 b = 2 / \sqrt 3$, and $\lVert W \rVert^2 = 3$, so the
# squared error is $3 - \tfrac43$. (For a symmetric tensor the best pure tensor can be taken symmetric; Banach
# 1938.)

# %%
keys = jax.random.split(jax.random.key(0), 5)
for rank in (1, 2, 3):
    search = lambda key, rank=rank: jb.tensors.cp_decompose(
        key, W, rank=rank, steps=300
    )
    errors = np.asarray(jax.jit(jax.vmap(search))(keys)[1])
    print(f"{rank} summands: relative error {errors.min():.1e} to {errors.max():.1e}")
    if rank == 1:
        assert (errors > math.sqrt(5) / 3 - 1e-5).all()
        assert abs(errors.min() - math.sqrt(5) / 3) < 1e-3
    if rank == 2:
        assert (errors > 1e-3).all()
    if rank == 3:
        print(f"exact to 1e-4 in {(errors < 1e-4).sum()} of 5 starts")
        assert errors.min() < 1e-4

# %% [markdown]
# **Exercise 6.** A gray image is a matrix. Its best approximation of rank $R$ (in the mean square) is given by the
# singular value decomposition. Complete the function; how many numbers does rank $R$ need for an image of $8 \times
# 8$ pixels?


# %% tags=["exercise"]
def low_rank(image, R):
    return 0 * image  # complete: np.linalg.svd, and keep the R largest values


def numbers(R):
    return 64  # complete


# %% tags=["solution"]
def low_rank(image, R):
    left, size, right = np.linalg.svd(image)
    return (left[:, :R] * size[:R]) @ right[:R]


def numbers(R):
    return R * (8 + 8)  # rank 1: 16 instead of 64; from rank 4 on, nothing is saved


images = digits()[0][..., 0]
kept = {
    R: np.mean([np.sum(low_rank(image, R) ** 2) / np.sum(image**2) for image in images])
    for R in (1, 2, 3, 8)
}
print({f"rank {R}": f"{share:.0%} of the squares" for R, share in kept.items()})
figure, axes = plt.subplots(figsize=(6.5, 1.8), layout="constrained")
axes = plotting.tiles([*(low_rank(images[0], R) for R in (1, 2, 3)), images[0]], axes)

# %% tags=["check"]
zero_image = digits()[0][0, ..., 0]
assert np.linalg.matrix_rank(low_rank(zero_image, 2), tol=1e-5) == 2, "rank 2 expected"
gap = np.sum((low_rank(zero_image, 2) - zero_image) ** 2)
rest = np.sum(np.linalg.svd(zero_image)[1][2:] ** 2)
assert np.isclose(gap, rest, rtol=1e-4), (
    "the squared error is that of the omitted values"
)
assert numbers(1) == 16 and numbers(3) == 48, "a pure matrix is a column and a row"

# %% [markdown]
# ## 7. The tensor of matrix multiplication
#
# Number the entries of a $2 \times 2$ matrix from 0 to 3. The product $C = A B$ is then $C_c = M_{abc} A_a B_b$ for a
# fixed tensor $M$ of shape $(4, 4, 4)$ with entries 0 and 1. **Each pure summand of $M$ is one multiplication:**
#
# $$ M = \sum_r \alpha_r \otimes \beta_r \otimes \gamma_r \quad\Longrightarrow\quad
#    C = \sum_r \langle \alpha_r, A \rangle\, \langle \beta_r, B \rangle\; \gamma_r . $$
#
# The standard method uses 8 multiplications: $M$ has eight ones. In 1969 Strassen found a method with 7, so the
# rank of $M$ is at most 7; it is exactly 7 (Winograd 1971).

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
# Applied recursively to blocks, this method multiplies $n \times n$ matrices, $n$ a power of 2, with $7^{\log_2 n} =
# n^{\log_2 7} = n^{2.81}$ multiplications instead of $n^3$. Thus the rank of a tensor of order 3 bounds the cost of
# matrix multiplication.

# %% [markdown]
# **Exercise 7.** Write the recursion for the number of multiplications of the method for $n \times n$ matrices, $n$
# a power of 2.


# %% tags=["exercise"]
def strassen_count(n):
    return n**3  # complete: the recursion


# %% tags=["solution"]
def strassen_count(n):
    return 1 if n == 1 else 7 * strassen_count(n // 2)


# %% tags=["check"]
assert strassen_count(2) == 7, f"7 multiplications for n = 2, not {strassen_count(2)}"
assert strassen_count(1024) == 7**10, "ten halvings lead from 1024 to 1"

# %% [markdown]
# ## Summary
#
# | term | meaning |
# |---|---|
# | order, shape | number of axes; their sizes |
# | broadcasting | shapes are aligned at the last axis; an axis of size 1 is repeated |
# | `einsum("...->...")` | one loop per letter; letters not after the arrow are summed |
# | $S \otimes T$ | all products of two entries; the orders add up |
# | pure tensor | product of vectors; rank 1, or 0 if it is zero |
# | rank | least number of pure summands; bounded below by flattenings |
