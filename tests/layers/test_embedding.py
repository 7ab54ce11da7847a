"""Embeddings: rows of a table, tied output logits, ids out of range."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled, drawn
from jax.experimental import checkify

from jaxblocks import Dense, Embedding, Serial, Wire, count_params, embed, layer_outputs, unembed

TABLE = np.random.default_rng(0).normal(size=(7, 3))
IDS = np.array([[2, 0, 6, 2], [5, 5, 5, 1]])


# ---- values and gradients


@pytest.mark.parametrize("ids", [IDS[0, 0], IDS[:0]], ids=["one", "none"])
def test_rows_of_the_table_for_ids_of_any_shape(ids):
    table = jnp.asarray(TABLE, jnp.float32)
    expected = np.zeros((*np.shape(ids), 3), np.float32)
    for place in np.ndindex(np.shape(ids)):
        expected[place] = np.asarray(table)[ids[place]]
    np.testing.assert_array_equal(embed(jnp.asarray(ids), table), expected)
    np.testing.assert_array_equal(jax.jit(embed)(jnp.asarray(ids), table), expected)


@pytest.mark.parametrize("dtype", ["int8", "uint32"])
def test_ids_may_have_every_integer_type(dtype):
    """This includes tables with more rows than the type can represent."""
    table = jnp.arange(300.0)[:, None]
    ids = jnp.array([0, 127], dtype)
    np.testing.assert_array_equal(embed(ids, table)[:, 0], [0, 127])
    np.testing.assert_array_equal(jax.jit(embed)(ids, table)[:, 0], [0, 127])


def test_the_row_of_padding_begins_at_zero_and_has_no_gradient():
    """As torch.nn.Embedding(padding_idx=2), also for a table from elsewhere, whose row for padding is not 0."""
    torch = pytest.importorskip("torch", reason="PyTorch is the reference; install the parity extra")
    table = Embedding(4, 3, tied=True, padding_idx=2)
    ids, others = np.array([[0, 2, 1], [2, 2, 0]]), np.array([0, 1, 3])
    weight = np.array(compiled(table.init)(jax.random.key(0), ids)["embedding"])
    assert not weight[2].any() and weight[others].all()
    g = np.random.default_rng(0).normal(size=(2, 3, 3)).astype(np.float32)
    weight[2] = [5, -6, 7]

    @compiled
    def derived(weight, ids, g):
        rows, pull_rows = jax.vjp(lambda w: table.apply({"embedding": w}, ids), weight)
        logits, pull_logits = jax.vjp(lambda w: table.apply({"embedding": w}, g), weight)
        return rows, pull_rows(g)[0], logits, pull_logits(jnp.ones_like(logits))[0]

    rows, of_rows, logits, of_logits = derived(weight, ids, g)
    theirs = torch.nn.Embedding(4, 3, padding_idx=2, _weight=torch.tensor(weight))
    looked_up = theirs(torch.tensor(ids))
    looked_up.backward(torch.tensor(g))
    np.testing.assert_array_equal(rows, looked_up.detach().numpy())
    np.testing.assert_allclose(of_rows, theirs.weight.grad.numpy(), rtol=1e-6)
    # Logits of a tied table: all of its rows count, and that of padding has no gradient (in PyTorch it has one).
    np.testing.assert_allclose(logits, g @ weight.T, rtol=1e-5)
    assert not of_logits[2].any() and of_logits[others].all()


def test_padding_beyond_the_ids_of_8_bits():
    """The last 8 bits of 299 are those of 43, which is no padding."""
    ids, table = np.array([43, 7], np.uint8), np.ones((300, 1), np.float32)
    gradient = compiled(jax.grad(lambda table, ids: embed(ids, table, padding_idx=299).sum()))(table, ids)
    assert gradient.sum() == 2 and gradient[43] == 1


def test_an_explicit_mesh():
    """With ids that are sharded over an explicit mesh, the output has the sharding of the ids."""
    table, ids = jnp.asarray(TABLE, jnp.float32), jnp.asarray(np.tile(IDS, (4, 1)))
    f = jax.jit(jax.value_and_grad(lambda table, ids: (embed(ids, table) ** 2).sum()))
    expected = f(table, ids)
    mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        ids = jax.device_put(ids, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d")))
        assert jax.typeof(embed(ids, table)).sharding.spec == jax.sharding.PartitionSpec("d", None, None)
        ours = f(table, ids)
    for a, b in zip(ours, expected, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5)


# ---- tied


def test_tied_input_and_output_embeddings():
    """Logits are tanh(E[ids] W + b) E^T; there is one table, and its gradient is the sum over both uses."""
    tied = Wire(
        lambda f, ids: f.table(f.body(f.table(ids))),
        table=Embedding(7, 3, tied=True),
        body=Serial(Dense(3), jnp.tanh),
    )
    apart = Serial(Embedding(7, 3), Dense(3), jnp.tanh, Dense(7, use_bias=False))
    params = drawn(tied, IDS)
    assert count_params(params) == 21 + 12
    E, (body, _) = params["table"]["embedding"], params["body"]
    hidden = np.tanh(E[IDS] @ body["kernel"] + body["bias"])
    np.testing.assert_allclose(compiled(tied.apply)(params, IDS), hidden @ E.T, rtol=1e-5, atol=1e-6)
    rows, logits = jax.eval_shape(lambda ids: layer_outputs(tied, params, ids)["table"], IDS)
    assert (rows.shape, logits.shape) == ((2, 4, 3), (2, 4, 7))
    gradient_of = lambda net: compiled(jax.grad(lambda p: (net.apply(p, IDS) ** 2).sum()))
    gradient = gradient_of(tied)(params)
    both = gradient_of(apart)(({"embedding": E}, body, (), {"kernel": E.T}))
    np.testing.assert_allclose(
        gradient["table"]["embedding"], both[0]["embedding"] + both[3]["kernel"].T, rtol=1e-4, atol=1e-6
    )


def test_rows_have_norm_one_and_logits_variance_one_at_init():
    layer = Embedding(500, 200, tied=True)
    params = layer.init(jax.random.key(0), jnp.zeros((), jnp.int32))
    assert float((params["embedding"] ** 2).sum(-1).mean()) == pytest.approx(1, abs=0.01)
    logits = layer.apply(params, np.random.default_rng(1).normal(size=(100, 200)).astype(np.float32))
    assert float(logits.var()) == pytest.approx(1, abs=0.03)


def test_dtype_and_param_dtype():
    layer = Embedding(7, 3, tied=True, dtype=jnp.bfloat16, param_dtype=jnp.float16)
    params = jax.eval_shape(layer.init, jax.random.key(0), IDS)
    assert params["embedding"].dtype == jnp.float16
    dtype_of = lambda layer, x: jax.eval_shape(layer.apply, params, x).dtype
    assert dtype_of(layer, IDS) == jnp.bfloat16
    assert dtype_of(layer, np.ones((2, 3), np.float32)) == jnp.float32
    assert dtype_of(Embedding(7, 3), IDS) == jnp.float16


# ---- ids out of range


@pytest.mark.parametrize("bad", [7, -1])
def test_ids_out_of_range(bad):
    """Eager calls raise; under jit the row is NaN, also for a negative id; with check=True checkify reports it."""
    ids, table = jnp.array([0, bad, 6]), jnp.asarray(TABLE, jnp.float32)
    sentence = rf"ids from 0 to 6, got ids from {min(bad, 0)} to {max(bad, 6)}; make the table larger, or map"
    for call in (
        lambda ids: embed(ids, table),
        lambda ids: Embedding(7, 3).apply({"embedding": table}, ids),
        lambda ids: jax.grad(lambda t: embed(ids, t).sum())(table),
    ):
        with pytest.raises(ValueError, match=sentence):
            call(ids)
        assert np.isfinite(call(jnp.where((ids < 0) | (ids > 6), 0, ids))).all()  # as the error advises
    assert embed(jnp.array([0, 7, 6]), jnp.ones((8, 3))).shape == (3, 3)  # as the error also advises
    with jax.debug_nans(False):
        rows = np.asarray(jax.jit(embed)(ids, table))
    assert np.isnan(rows[1]).all()
    np.testing.assert_array_equal(rows[[0, 2]], np.asarray(table)[[0, 6]])
    layer = Embedding(7, 3, check=True)
    with jax.debug_nans(False):
        error, _ = checkify.checkify(jax.jit(layer.apply))({"embedding": table}, ids)
    with pytest.raises(ValueError, match=sentence):
        error.throw()
    error, _ = checkify.checkify(jax.jit(layer.apply))({"embedding": table}, ids.at[1].set(3))
    assert error.get() is None


@pytest.mark.usefixtures("sentences")
def test_errors_distinguish_ids_from_features():
    table, params = jnp.asarray(TABLE, jnp.float32), {"embedding": jnp.asarray(TABLE, jnp.float32)}
    floats = jnp.asarray(IDS, jnp.float32)
    advice = (
        r"expected ids to be an integer array, got float32 \(2, 4\); convert (it|them) with ids.astype\(jnp.int32\)"
    )
    with pytest.raises(TypeError, match=f"embed {advice}"):
        embed(floats, table)
    with pytest.raises(TypeError, match=f"Embedding {advice}, or pass tied=True to compute logits"):
        Embedding(7, 3).apply(params, floats)
    with pytest.raises(TypeError, match=f"Embedding {advice}"):
        Embedding(7, 3).init(jax.random.key(0), floats)
    assert Embedding(7, 3).apply(params, floats.astype(jnp.int32)).shape == (2, 4, 3)
    with pytest.raises(TypeError, match="bool"):
        embed(jnp.array([True]), table)
    with pytest.raises(TypeError, match=r"ids to be an integer array, got a list; convert it with jnp.asarray\(ids\)"):
        embed([1, 2], table)
    assert embed(jnp.asarray([1, 2]), table).shape == (2, 3)
    with pytest.raises(ValueError, match=r"ids, an integer array, or features \(\*batch, 3\), got float32 \(2, 4\)"):
        Embedding(7, 3, tied=True).apply(params, floats)
    with pytest.raises(ValueError, match="unembed expected .* same size of features"):
        unembed(floats, table)
    assert unembed(floats[:, :3], table).shape == (2, 7)
    with pytest.raises(TypeError, match="unembed expected x to be a floating-point array"):
        unembed(jnp.asarray(IDS[:, :3]), table)


@pytest.mark.usefixtures("sentences")
def test_invalid_options_are_rejected():
    for size, features in ((0, 3), (7, 2.0), (True, 3)):
        with pytest.raises((TypeError, ValueError), match="to be an integer >= 1"):
            Embedding(size, features)
    with pytest.raises(ValueError, match=r"padding_idx among the ids 0, ..., 6, got 7; make size one larger"):
        Embedding(7, 3, padding_idx=7)
    Embedding(8, 3, padding_idx=7)
    with pytest.raises((TypeError, ValueError), match="tied to be True or False"):
        Embedding(7, 3, tied="yes")
    params = drawn(Embedding(7, 4), IDS)
    with pytest.raises(ValueError, match=r"of shape \(7, 3\), got float32 \(7, 4\); pass params that init made"):
        Embedding(7, 3).apply(params, jnp.asarray(IDS))


def test_ids_of_64_bits_are_not_cut():
    """2**32 is not the id 0: an error where JAX has 32 bits, and NaN under jit where it has 64."""
    ids, table = np.array([2**32, 1]), np.ones((3, 2), np.float32)
    with pytest.raises(
        ValueError, match="ids from -2147483648 to 2147483647, got ids from 1 to 4294967296; pass smaller"
    ):
        embed(ids, jnp.asarray(table))
    with jax.enable_x64(True), jax.debug_nans(False):
        np.testing.assert_array_equal(jax.jit(embed)(ids, table), [[np.nan, np.nan], [1, 1]])
