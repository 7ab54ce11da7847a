import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from jaxblocks.layers.attention import attention, attention_weights, hard_lookup, soft_lookup


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="PyTorch is a reference here; install the parity extra")


def normal(seed, *shape, dtype=np.float64):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def heads(seed, batch=(2,), time_q=3, time_k=4, n=2, d=5, v=6, dtype=np.float64):
    """Random q, k, v."""
    return (
        normal(seed, *batch, time_q, n, d, dtype=dtype),
        normal(seed + 1, *batch, time_k, n, d, dtype=dtype),
        normal(seed + 2, *batch, time_k, n, v, dtype=dtype),
    )


def loops(q, k, v, scale, mask=None):
    """Attention of arrays without batch, one number at a time."""
    (time_q, n, d), (time_k, _, width) = q.shape, v.shape
    out, weights = np.zeros((time_q, n, width)), np.zeros((n, time_q, time_k))
    for h, i in itertools.product(range(n), range(time_q)):
        allowed = [j for j in range(time_k) if mask is None or mask[h, i, j]]
        scores = {j: scale * sum(q[i, h, c] * k[j, h, c] for c in range(d)) for j in allowed}
        total = sum(math.exp(s) for s in scores.values())
        for j, s in scores.items():
            weights[h, i, j] = math.exp(s) / total
            out[i, h] += weights[h, i, j] * v[j, h]
    return out, weights


def derivatives(f, cotangent, *x):
    """Value and gradients, compiled once."""

    @jax.jit
    def both(cotangent, *x):
        value, pullback = jax.vjp(f, *x)
        return value, *pullback(cotangent)

    return both(cotangent, *x)


TABLE = jnp.arange(10.0).reshape(5, 2)

# Lookup tables


def test_hard_lookup_returns_values_of_keys_and_is_linear():
    keys = jnp.eye(5)
    np.testing.assert_array_equal(hard_lookup(keys[2], keys, TABLE), [4, 5])
    np.testing.assert_array_equal(hard_lookup(keys[2] + 2 * keys[4], keys, TABLE), [20, 23])
    np.testing.assert_array_equal(hard_lookup(keys, keys, TABLE), TABLE)
    np.testing.assert_array_equal(jax.jacobian(hard_lookup)(keys[0], keys, TABLE), TABLE.T)  # d/dq_i is v_i
    with jax.enable_x64(True):
        for position in range(3):
            q, k, v = (jnp.asarray(normal(i, *s)) for i, s in enumerate([(3, 4), (6, 4), (6, 2)]))
            a, b = [q, k, v], [q, k, v]
            b[position] = jnp.asarray(normal(9, *b[position].shape))
            both = [2 * x + 3 * y if i == position else x for i, (x, y) in enumerate(zip(a, b, strict=True))]
            combined = 2 * hard_lookup(*a) + 3 * hard_lookup(*b)
            np.testing.assert_allclose(hard_lookup(*both), combined, rtol=1e-12, atol=1e-12)


def test_hard_lookup_with_any_orthonormal_keys():
    with jax.enable_x64(True):
        rotation = np.linalg.qr(normal(0, 5, 5))[0]
        query, values = normal(1, 3, 5), normal(2, 5, 2)
        turned = hard_lookup(jnp.asarray(query @ rotation), jnp.asarray(rotation), jnp.asarray(values))
        np.testing.assert_allclose(turned, query @ values, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("lookup", [hard_lookup, soft_lookup])
def test_lookups_take_one_query_or_many_for_one_table_or_many(lookup):
    query, keys, values = (
        jnp.asarray(normal(i, *s, dtype=np.float32)) for i, s in enumerate([(3, 2, 4, 5), (3, 6, 5), (3, 6, 7)])
    )
    lookup = jax.jit(lookup)
    grid = lookup(query, keys, values)
    assert grid.shape == (3, 2, 4, 7)
    for b, i, j in itertools.product(range(3), range(2), range(4)):
        close = {"rtol": 1e-5, "atol": 1e-6}
        np.testing.assert_allclose(lookup(query[b, i, j], keys[b], values[b]), grid[b, i, j], **close)
    np.testing.assert_allclose(lookup(query[:, 0, 0], keys, values), grid[:, 0, 0], **close)
    np.testing.assert_allclose(jax.vmap(lookup)(query, keys, values), grid, **close)


def test_soft_lookup_published_weights():
    keys = jnp.eye(5)

    def weights(q):
        return soft_lookup(q, keys, keys)  # values e_i read the weights off

    rest, third = 0.1488476, 0.4046097
    np.testing.assert_allclose(weights(keys[2]), [rest, rest, third, rest, rest], atol=5e-8)
    both = [0.0762931, 0.0762931, 0.2073863, 0.0762931, 0.5637343]
    np.testing.assert_allclose(weights(keys[2] + 2 * keys[4]), both, atol=1e-7)
    np.testing.assert_allclose(weights(10 * keys[2])[2], 0.9998184, atol=1e-7)
    expected = np.array([rest, rest, third, rest, rest]) @ np.asarray(TABLE)
    np.testing.assert_allclose(soft_lookup(keys[2], keys, TABLE), expected, rtol=1e-6)


def test_soft_lookup_stays_in_the_hull_and_tends_to_the_best_value():
    """All but the best match weigh less than (n - 1) exp(-scale gap)."""
    with jax.enable_x64(True):
        query, keys, values = normal(0, 4), normal(1, 6, 4), normal(2, 6, 3)
        matches = np.sort(keys @ query)
        gap, best = matches[-1] - matches[-2], values[np.argmax(keys @ query)]
        spread = np.abs(values[:, None] - values[None]).max()
        lookup = jax.jit(soft_lookup)
        for scale in (0.0, 1.0, 3.0, 10.0, 30.0, 100.0):
            found = lookup(jnp.asarray(scale * query), jnp.asarray(keys), jnp.asarray(values))
            assert np.all(found >= values.min(0) - 1e-14) and np.all(found <= values.max(0) + 1e-14)
            assert np.abs(found - best).max() <= 5 * math.exp(-scale * gap) * spread + 1e-14
            by_option = lookup(jnp.asarray(query), jnp.asarray(keys), jnp.asarray(values), scale)
            np.testing.assert_allclose(by_option, found, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(soft_lookup(jnp.zeros(4), jnp.asarray(keys), jnp.asarray(values)), values.mean(0))


def test_example_2_4():
    """One query, three keys, values 1..12: the entries that the lecture leaves open (errata 32)."""
    query, keys = (jnp.array([[1.0, 0.0]]), jnp.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))
    values = jnp.arange(1.0, 13.0).reshape(3, 4)
    for scale, expected in [
        (None, [0.4223188, 0.1553624, 0.4223188]),
        ("inverse_sqrt", [0.4011121, 0.1977758, 0.4011121]),
        (1 / math.sqrt(2), [0.4011121, 0.1977758, 0.4011121]),
    ]:
        weights = attention_weights(query[:, None], keys[:, None], scale)
        np.testing.assert_allclose(weights, [[expected]], atol=6e-8)
        np.testing.assert_allclose(soft_lookup(query, keys, values, scale), [[5, 6, 7, 8]], rtol=1e-6)
        heads_out = attention(query[:, None], keys[:, None], values[:, None], scale)
        np.testing.assert_array_equal(heads_out[:, 0], soft_lookup(query, keys, values, scale))
    # as printed, (Q W^Q)^T (K W^K) is a product of 2 x 1 and 3 x 2
    with pytest.raises(ValueError, match="mismatch"):
        np.asarray(query).T @ np.asarray(keys)


# The formula


@pytest.mark.parametrize("masked", [False, True])
def test_attention_is_the_triple_loop(masked):
    with jax.enable_x64(True):
        q, k, v = heads(0)
        mask = np.random.default_rng(5).random((2, 2, 3, 4)) < 0.6 if masked else None
        if masked:
            mask[1, 0, 2] = False  # a row with nothing to look at
        side = {} if mask is None else {"mask": jnp.asarray(mask)}
        for scale, number in [("inverse_sqrt", 1 / math.sqrt(5)), (None, 1.0), (0.3, 0.3), (2, 2.0)]:
            out = attention(*map(jnp.asarray, (q, k, v)), scale, **side)
            weights = attention_weights(jnp.asarray(q), jnp.asarray(k), scale, **side)
            for b in range(2):
                expected = loops(q[b], k[b], v[b], number, None if mask is None else mask[b])
                np.testing.assert_allclose(out[b], expected[0], rtol=1e-12, atol=1e-14)
                np.testing.assert_allclose(weights[b], expected[1], rtol=1e-12, atol=1e-14)
        default = attention(*map(jnp.asarray, (q, k, v)), **side)
        named = attention(*map(jnp.asarray, (q, k, v)), scale="inverse_sqrt", **side)
        np.testing.assert_array_equal(default, named)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("scale", ["inverse_sqrt", None])
def test_values_and_gradients_are_those_of_torch(torch, masked, scale):
    q, k, v = heads(3)
    weight = normal(9, 2, 3, 2, 6)
    mask = np.random.default_rng(1).random((2, 2, 3, 4)) < 0.7
    mask[..., 0] = True  # torch's answer for a row with nothing to look at depends on its version
    leaves = [torch.tensor(x).transpose(1, 2).detach().requires_grad_() for x in (q, k, v)]
    attend = torch.nn.functional.scaled_dot_product_attention
    options = {"attn_mask": torch.tensor(mask) if masked else None, "scale": 1.0 if scale is None else None}
    theirs = attend(*leaves, **options).transpose(1, 2)
    (theirs * torch.tensor(weight)).sum().backward()
    with jax.enable_x64(True):
        side = {"mask": jnp.asarray(mask)} if masked else {}
        f = functools.partial(attention, scale=scale, **side)
        ours, *gradients = derivatives(f, *map(jnp.asarray, (weight, q, k, v)))
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-12, atol=1e-13)
        for gradient, leaf in zip(gradients, leaves, strict=True):
            np.testing.assert_allclose(gradient, leaf.grad.transpose(1, 2).numpy(), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("masked", [False, True])
def test_values_and_gradients_are_those_of_jax_nn(masked):
    q, k, v = map(jnp.asarray, heads(3, v=5, dtype=np.float32))
    weight = jnp.asarray(normal(9, 2, 3, 2, 5, dtype=np.float32))
    mask = np.random.default_rng(1).random((2, 1, 3, 4)) < 0.7
    mask[..., 0] = True
    mask = jnp.asarray(mask) if masked else None
    for scale, theirs in [("inverse_sqrt", None), (None, 1.0), (0.5, 0.5)]:
        ours = derivatives(functools.partial(attention, scale=scale, mask=mask), weight, q, k, v)
        reference = functools.partial(jax.nn.dot_product_attention, mask=mask, scale=theirs)
        for a, b in zip(ours, derivatives(reference, weight, q, k, v), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-6)


def test_self_attention_is_equivariant_and_keys_are_a_set():
    """Two stacked self-attentions commute with permutations; keys and values may be permuted together."""
    with jax.enable_x64(True):
        x = jnp.asarray(normal(0, 7, 1, 4))
        order = np.random.default_rng(1).permutation(7)

        def stack(x):
            return attention(*[attention(x, x, x)] * 3)

        np.testing.assert_allclose(stack(x[order]), stack(x)[order], rtol=0, atol=1e-14)
        q, k, v = map(jnp.asarray, heads(4, batch=(), time_k=7))
        np.testing.assert_allclose(attention(q, k[order], v[order]), attention(q, k, v), rtol=0, atol=1e-14)
        assert np.abs(attention(q, k[order], v) - attention(q, k, v)).max() > 0.1


def test_the_printed_formula_compares_features_instead_of_positions():
    """softmax((Q)^T K) V runs where all sizes are equal, and is not a map of sets (errata 29)."""

    def printed(x):
        return softmax(x.T @ x) @ x

    with jax.enable_x64(True):
        for seed in range(5):
            x = normal(seed, 3, 3)
            order = [1, 2, 0]
            assert np.abs(printed(x[order]) - printed(x)[order]).max() > 0.3
            correct, permuted = soft_lookup(*[jnp.asarray(x)] * 3), soft_lookup(*[jnp.asarray(x[order])] * 3)
            assert np.abs(permuted - correct[jnp.array(order)]).max() < 2e-15


def test_attention_of_a_sequence():
    """softmax((a X_q)(a X_k)^T) a X_v is the same function (errata 61); as printed it is features by features."""
    with jax.enable_x64(True):
        a, xq, xk, xv = (normal(i, *s) for i, s in enumerate([(6, 3), (3, 4), (3, 4), (3, 5)]))
        expected = softmax(a @ xq @ xk.T @ a.T) @ a @ xv
        ours = soft_lookup(*(jnp.asarray(a @ x) for x in (xq, xk, xv)))
        np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-13)
        with pytest.raises(ValueError, match="mismatch"):
            xq @ a  # the printed order X_q a needs a with features first ...
        assert (xq.T @ a.T @ a @ xk).shape == (4, 4)  # ... and then compares features


def test_scaling_keeps_the_variance_of_scores_at_one():
    """Unscaled scores have variance d; with 1/sqrt(d) the rows stay close to uniform (errata 30)."""

    def entropy(weights):
        weights = np.asarray(weights, np.float64)
        return -(weights * np.log(np.maximum(weights, 1e-300))).sum(-1).mean()

    for d in (16, 64, 256):
        q, k = (normal(d, 4000, 1, d, dtype=np.float32), normal(d + 1, 50, 1, d, dtype=np.float32))
        pairs = (normal(d + 2, 20000, d) * normal(d + 3, 20000, d)).sum(-1)
        assert pairs.var() == pytest.approx(d, rel=0.05)
    unscaled = entropy(attention_weights(jnp.asarray(q), jnp.asarray(k), None))
    scaled = entropy(attention_weights(jnp.asarray(q), jnp.asarray(k)))
    assert unscaled == pytest.approx(0.2388, abs=0.03) and scaled == pytest.approx(3.438, abs=0.03)
    assert scaled < math.log(50)


def test_attention_is_not_entrywise():
    """The Jacobian with respect to one query reaches all its features: no affine map before an entrywise one."""
    q, k, v = map(jnp.asarray, heads(0, batch=(), time_q=1, n=1, d=3, v=3, dtype=np.float32))
    jacobian = jax.jacobian(lambda q: attention(q, k, v)[0, 0])(q)[:, 0, 0]
    assert jnp.all(jnp.abs(jacobian) > 1e-4)


def dot_operations(jaxpr):
    """Multiplications and additions of all matrix products in a jaxpr."""
    total = 0
    for equation in jaxpr.eqns:
        for value in equation.params.values():
            if hasattr(value, "jaxpr"):
                total += dot_operations(value.jaxpr)
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            inner = math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
            total += 2 * inner * math.prod(equation.outvars[0].aval.shape)
    return total


def test_cost_is_quadratic():
    def count(n, k=8, v=16):
        shapes = [jax.ShapeDtypeStruct((n, 1, width), jnp.float32) for width in (k, k, v)]
        return dot_operations(jax.make_jaxpr(attention)(*shapes).jaxpr)

    assert count(64) == 2 * 64**2 * 8 + 2 * 64**2 * 16
    assert count(128) == 4 * count(64)


# Masks


def test_masked_weights_are_zero_and_an_empty_row_gives_zeros():
    q, k, v = map(jnp.asarray, heads(0, dtype=np.float32))
    mask = np.random.default_rng(0).random((2, 2, 3, 4)) < 0.5
    mask[0, 1, 2] = False
    mask = jnp.asarray(mask)

    for f in (attention_weights, jax.jit(attention_weights)):
        weights = f(q, k, mask=mask)
        assert jnp.all(weights[~mask] == 0)
        np.testing.assert_allclose(weights.sum(-1), mask.any(-1), rtol=1e-6)
    out, dq, dk, dv = derivatives(functools.partial(attention, mask=mask), jnp.ones((2, 3, 2, 6)), q, k, v)
    assert jnp.all(out[0, 2, 1] == 0)
    assert all(jnp.all(jnp.isfinite(g)) for g in (dq, dk, dv)) and jnp.all(dq[0, 2, 1] == 0)
    nobody = jnp.zeros((2, 2, 3, 4), bool)
    for g in derivatives(functools.partial(attention, mask=nobody), jnp.ones((2, 3, 2, 6)), q, k, v):
        assert jnp.all(g == 0)
    tangents = jax.jit(lambda *x: jax.jvp(functools.partial(attention, mask=nobody), x, x)[1])(q, k, v)
    assert jnp.all(tangents == 0)


def test_what_is_masked_does_not_matter():
    q, k, v = map(jnp.asarray, heads(0, batch=(), dtype=np.float32))
    past = jnp.tril(jnp.ones((1, 3, 4), bool))
    out = attention(q, k, v, mask=past)
    other = attention(q, k.at[2:].set(1e4), v.at[2:].set(-7.0), mask=past)
    np.testing.assert_array_equal(out[:2], other[:2])
    assert not jnp.array_equal(out[2], other[2])
    np.testing.assert_allclose(out[:1], v[:1], rtol=1e-6)
    # a large negative number in place of -inf would lose against scores below it
    row = jnp.array([[[True, False, False, False]]])
    match = jnp.array([-1e4, 1e4, 0.0, 0.0])[:, None, None]
    np.testing.assert_array_equal(attention(jnp.full((1, 1, 1), 1e4), match, v[:, :1], None, mask=row)[0], v[0, :1])
    np.testing.assert_allclose(attention(q, k, v, mask=jnp.ones((1, 1, 4), bool)), attention(q, k, v), rtol=1e-6)


def test_masks_of_size_one_stand_for_all():
    q, k, v = map(jnp.asarray, heads(0, dtype=np.float32))
    for shape in [(1, 1, 3, 4), (2, 1, 3, 4), (1, 2, 3, 4), (2, 1, 1, 4), (1, 1, 1, 4)]:
        mask = jnp.asarray(np.random.default_rng(3).random(shape) < 0.6)
        full = jnp.broadcast_to(mask, (2, 2, 3, 4))
        np.testing.assert_array_equal(attention(q, k, v, mask=mask), attention(q, k, v, mask=full))


def test_no_keys_at_all_give_zeros():
    q, k, v = map(jnp.asarray, heads(0, time_k=0, dtype=np.float32))
    for mask in (None, jnp.ones((1, 1, 3, 0), bool)):
        np.testing.assert_array_equal(attention(q, k, v, mask=mask), np.zeros((2, 3, 2, 6)))


# Derivatives, dtypes, transforms


@pytest.mark.parametrize("masked", [False, True])
def test_derivatives_agree_with_finite_differences(masked):
    with jax.enable_x64(True):
        q, k, v = map(jnp.asarray, heads(0, batch=(), n=1, d=2, v=2))
        mask = jnp.array([[[True, False, True, True], [False] * 4, [True, True, False, False]]]) if masked else None
        f = jax.jit(lambda *x: attention(*x, mask=mask))
        check_grads(f, (q, k, v), order=2, atol=1e-6, rtol=1e-6)
        if not masked:  # a polynomial; and soft_lookup is attention
            check_grads(jax.jit(hard_lookup), (q[:, 0], k[:, 0], v[:, 0]), order=1, atol=1e-6, rtol=1e-6)


def test_a_scale_can_be_learned():
    q, k, v = map(jnp.asarray, heads(0, dtype=np.float32))
    gradient = jax.jit(jax.grad(lambda s: attention(q, k, v, s).sum()))(jnp.float32(0.7))
    step = 1e-2
    difference = (attention(q, k, v, 0.7 + step).sum() - attention(q, k, v, 0.7 - step).sum()) / (2 * step)
    np.testing.assert_allclose(gradient, difference, rtol=1e-3)


def test_extreme_scores_pick_one_key_and_stay_finite():
    q, k, v = map(jnp.asarray, heads(0, dtype=np.float32))
    mask = jnp.tril(jnp.ones((1, 1, 3, 4), bool), 1)
    f = functools.partial(attention, mask=mask)
    out, *gradients = derivatives(f, jnp.ones((2, 3, 2, 6)), 1e4 * q, -1e4 * k, v)
    best = jnp.argmax(jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, -k), -jnp.inf), -1)  # (batch, heads, time_q)
    for b, h, i in itertools.product(range(2), range(2), range(3)):
        np.testing.assert_allclose(out[b, i, h], v[b, int(best[b, h, i]), h], rtol=1e-6)
    assert all(jnp.all(jnp.isfinite(g)) for g in gradients)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_is_summed_in_float32(dtype):
    q, k, v = (jnp.asarray(x, dtype) for x in heads(0, dtype=np.float32))
    mask = jnp.tril(jnp.ones((1, 1, 3, 4), bool))
    out = attention(q, k, v, mask=mask)
    assert out.dtype == attention_weights(q, k).dtype == dtype
    everywhere = np.broadcast_to(mask[0], (2, 3, 4))
    wide = [np.asarray(x, np.float64) for x in (q, k, v)]
    exact = np.stack([loops(*(x[b] for x in wide), 5**-0.5, everywhere)[0] for b in range(2)])
    np.testing.assert_allclose(out.astype(jnp.float32), exact, atol=3 * float(jnp.finfo(dtype).eps))
    many = attention(jnp.zeros((1, 1, 4), dtype), jnp.zeros((4096, 1, 4), dtype), jnp.ones((4096, 1, 2), dtype))
    np.testing.assert_array_equal(many.astype(jnp.float32), np.ones((1, 1, 2)))

    def born(jaxpr, name):
        for equation in jaxpr.eqns:
            if equation.primitive.name == name:
                yield equation.outvars[0].aval.dtype
            for value in equation.params.values():
                if hasattr(value, "jaxpr"):
                    yield from born(value.jaxpr, name)

    jaxpr = jax.make_jaxpr(lambda *x: attention(*x, mask=mask))(q, k, v).jaxpr
    assert list(born(jaxpr, "dot_general")) == [jnp.float32] * 2 and list(born(jaxpr, "exp")) == [jnp.float32]
    for lookup in (hard_lookup, soft_lookup):
        assert lookup(q[0, :, 0], k[0, :, 0], v[0, :, 0]).dtype == dtype


def test_jit_vmap_and_single_examples_agree():
    q, k, v = map(jnp.asarray, heads(0, batch=(3, 2), dtype=np.float32))
    mask = jnp.asarray(np.random.default_rng(0).random((3, 2, 1, 3, 4)) < 0.6)

    def f(q, k, v, mask):
        return attention(q, k, v, mask=mask)

    out = f(q, k, v, mask)
    assert not out.weak_type
    close = {"rtol": 1e-5, "atol": 1e-6}
    np.testing.assert_allclose(jax.jit(f)(q, k, v, mask), out, **close)
    np.testing.assert_allclose(jax.vmap(jax.vmap(f))(q, k, v, mask), out, **close)
    np.testing.assert_allclose(f(q[1, 0], k[1, 0], v[1, 0], mask[1, 0]), out[1, 0], **close)
    np.testing.assert_allclose(jax.checkpoint(f)(q, k, v, mask), out, **close)


# Errors


def test_attention_says_what_does_not_fit(sentences):
    q, k, v = map(jnp.asarray, heads(0, dtype=np.float32))
    with pytest.raises(ValueError, match=r"equal features .* q is float32 \(2, 3, 2, 5\) and k float32 \(2, 4, 2, 4\)"):
        attention(q, k[..., :4], v)
    with pytest.raises(ValueError, match=r"one value per key .* k is float32 \(2, 4, 2, 5\) and v float32 \(2, 3, 2"):
        jax.jit(attention)(q, k, v[:, :3])
    with pytest.raises(ValueError, match="equal batch axes and heads"):
        attention(q, k[..., :1, :], v)
    shared = jnp.broadcast_to(k[..., :1, :], k.shape)  # the advice
    np.testing.assert_array_equal(attention(q, shared, v)[:, :, 0], attention(q, k, v)[:, :, 0])
    with pytest.raises(ValueError, match="q and v with equal batch axes and heads"):
        attention(q, k, v[:1])
    with pytest.raises(TypeError, match="floating-point k, but int32"):
        attention(q, k.astype(jnp.int32), v)
    with pytest.raises(ValueError, match="'inverse_sqrt', but 'sqrt' came"):
        attention(q, k, v, "sqrt")


def test_advice_for_a_missing_head_axis(sentences):
    q, k, v = map(jnp.asarray, heads(0, batch=(), n=1, dtype=np.float32))
    with pytest.raises(ValueError, match=r"q is float32 \(3, 5\); write q\[..., None, :\] for one head") as error:
        attention(q[:, 0], k[:, 0], v[:, 0])
    assert "(..., time, heads, features)" in str(error.value)
    single = attention(q[:, 0][..., None, :], k, v)
    np.testing.assert_array_equal(single, attention(q, k, v))


def test_advice_for_masks(sentences):
    q, k, v = map(jnp.asarray, heads(0, dtype=np.float32))
    mask = jnp.ones((2, 3, 4), bool)
    with pytest.raises(ValueError, match=r"= \(2, 2, 3, 4\), .* but bool \(2, 3, 4\) came; add missing axes"):
        attention(q, k, v, mask=mask)
    np.testing.assert_allclose(attention(q, k, v, mask=mask[..., None, :, :]), attention(q, k, v), rtol=1e-6)
    for wrong in [(2, 2, 4, 3), (2, 2, 3, 1), (3, 1, 3, 4), (1, 1, 1, 1, 4)]:
        with pytest.raises(ValueError, match="expects a mask of shape"):
            attention(q, k, v, mask=jnp.ones(wrong, bool))
    with pytest.raises(TypeError, match=r"boolean mask, .* but float32 \(2, 1, 3, 4\) came; write mask.astype"):
        attention_weights(q, k, mask=jnp.ones((2, 1, 3, 4)))
    with pytest.raises(ValueError, match="passed by name, mask="):
        attention(q, k, v, jnp.ones((2, 1, 3, 4), bool))
    with pytest.raises(ValueError, match="passed by name, mask="):
        attention(q, k, v, True)


@pytest.mark.parametrize("lookup", [hard_lookup, soft_lookup])
def test_lookups_say_what_does_not_fit(sentences, lookup):
    query, keys, values = jnp.ones((3, 5)), jnp.ones((4, 5)), jnp.ones((4, 2))
    with pytest.raises(ValueError, match=r"keys are float32 \(4, 5\) and values float32 \(3, 2\)"):
        lookup(query, keys, values[:3])
    with pytest.raises(ValueError, match=r"the 5 features of keys, float32 \(4, 5\), but query is float32 \(3, 4\)"):
        lookup(query[:, :4], keys, values)
    with pytest.raises(ValueError, match=r"with the batch \(2,\)"):
        lookup(query, jnp.ones((2, 4, 5)), jnp.ones((2, 4, 2)))
    with pytest.raises(TypeError, match="floating-point values"):
        lookup(query, keys, values.astype(jnp.int32))
