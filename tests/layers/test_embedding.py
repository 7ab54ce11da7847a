"""Embeddings: rows of a table, tied output logits, ids out of range."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify

from jaxblocks import Dense, Embedding, Serial, Wire, count_params, embed, layer_outputs, unembed

TABLE = np.random.default_rng(0).normal(size=(7, 3))
IDS = np.array([[2, 0, 6, 2], [5, 5, 5, 1]])


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="PyTorch is the reference; install the parity extra")


# ---- values and gradients


@pytest.mark.parametrize("ids", [IDS, IDS[0], IDS[0, 0], IDS[None], IDS[:0]], ids=lambda ids: str(np.shape(ids)))
def test_rows_of_the_table_for_ids_of_any_shape(ids):
    table = jnp.asarray(TABLE, jnp.float32)
    expected = np.zeros((*np.shape(ids), 3), np.float32)
    for place in np.ndindex(np.shape(ids)):
        expected[place] = np.asarray(table)[ids[place]]
    np.testing.assert_array_equal(embed(jnp.asarray(ids), table), expected)
    np.testing.assert_array_equal(jax.jit(embed)(jnp.asarray(ids), table), expected)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32"])
def test_ids_may_have_every_integer_type(dtype):
    """This includes tables with more rows than the type can represent."""
    table = jnp.arange(300.0)[:, None]
    ids = jnp.array([0, 127], dtype)
    np.testing.assert_array_equal(embed(ids, table)[:, 0], [0, 127])
    np.testing.assert_array_equal(jax.jit(embed)(ids, table)[:, 0], [0, 127])


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 1e-5)])
def test_values_and_gradients_equal_those_of_torch(torch, dtype, tolerance):
    """torch.nn.functional.embedding and linear on one table: gradients of equal ids and of both uses are summed."""
    with jax.enable_x64(dtype == "float64"):
        weights = np.random.default_rng(1).normal(size=(2, 4, 3)).astype(dtype)
        table = jnp.asarray(TABLE, dtype)

        def total(table):
            h = jnp.tanh(embed(jnp.asarray(IDS), table)) * jnp.asarray(weights)
            return (jax.nn.softmax(unembed(h, table)) ** 2).sum()

        value, gradient = jax.jit(jax.value_and_grad(total))(table)
        theirs = torch.tensor(TABLE.astype(dtype), requires_grad=True)
        h = torch.tanh(torch.nn.functional.embedding(torch.tensor(IDS), theirs)) * torch.tensor(weights)
        expected = (torch.softmax(torch.nn.functional.linear(h, theirs), -1) ** 2).sum()
        expected.backward()
        np.testing.assert_allclose(value, expected.item(), rtol=tolerance)
        np.testing.assert_allclose(gradient, theirs.grad.numpy(), rtol=tolerance, atol=tolerance)


def test_the_row_of_padding_begins_at_zero_and_has_no_gradient(torch):
    """As torch.nn.Embedding(padding_idx=2), also for a table from elsewhere, whose row for padding is not 0."""
    table = Embedding(4, 3, tied=True, padding_idx=2)
    ids = jnp.array([[0, 2, 1], [2, 2, 0]])
    params = table.init(jax.random.key(0), ids)
    assert not params["embedding"][2].any() and params["embedding"][jnp.array([0, 1, 3])].all()
    g = np.random.default_rng(0).normal(size=(2, 3, 3)).astype(np.float32)
    params["embedding"] = params["embedding"].at[2].set(jnp.array([5.0, -6.0, 7.0]))
    rows, pull = jax.vjp(lambda p: table.apply(p, ids), params)
    theirs = torch.nn.Embedding(4, 3, padding_idx=2, _weight=torch.tensor(np.array(params["embedding"])))
    looked_up = theirs(torch.tensor(np.array(ids)))
    looked_up.backward(torch.tensor(g))
    np.testing.assert_array_equal(rows, looked_up.detach().numpy())
    np.testing.assert_allclose(pull(jnp.asarray(g))[0]["embedding"], theirs.weight.grad.numpy(), rtol=1e-6)
    # Logits of a tied table: all of its rows count, and that of padding has no gradient (in PyTorch it has one).
    logits, pull = jax.vjp(lambda p: table.apply(p, jnp.asarray(g)), params)
    np.testing.assert_allclose(logits, g @ np.asarray(params["embedding"]).T, rtol=1e-5)
    gradient = pull(jnp.ones_like(logits))[0]["embedding"]
    assert not gradient[2].any() and gradient[jnp.array([0, 1, 3])].all()


def test_padding_beyond_the_ids_of_8_bits():
    """The last 8 bits of 299 are those of 43, which is no padding."""
    gradient = jax.grad(lambda table: embed(jnp.array([43, 7], jnp.uint8), table, padding_idx=299).sum())(
        jnp.ones(300)[:, None]
    )
    assert gradient.sum() == 2 and gradient[43] == 1


def test_a_lookup_equals_a_product_with_one_hot_rows():
    table = jnp.asarray(TABLE, jnp.float32)
    one_hot = jax.nn.one_hot(IDS, 7)
    np.testing.assert_allclose(embed(jnp.asarray(IDS), table), one_hot @ table, rtol=1e-6)
    gradient = jax.jit(jax.grad(lambda t: (embed(jnp.asarray(IDS), t) ** 2).sum() / 2))(table)
    counts = np.bincount(IDS.ravel(), minlength=7)
    np.testing.assert_allclose(gradient, counts[:, None] * np.asarray(table), rtol=1e-6)


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
    ids = jnp.asarray(IDS)
    params = tied.init(jax.random.key(0), ids)
    assert count_params(params) == 21 + 12
    E, (body, _) = params["table"]["embedding"], params["body"]
    hidden = np.tanh(np.asarray(E)[IDS] @ np.asarray(body["kernel"]))
    np.testing.assert_allclose(tied.apply(params, ids), hidden @ np.asarray(E).T, rtol=1e-5, atol=1e-6)
    rows, logits = layer_outputs(tied, params, ids)["table"]
    assert (rows.shape, logits.shape) == ((2, 4, 3), (2, 4, 7))
    gradient = jax.jit(jax.grad(lambda p: (tied.apply(p, ids) ** 2).sum()))(params)
    both = jax.jit(jax.grad(lambda p: (apart.apply(p, ids) ** 2).sum()))(({"embedding": E}, body, (), {"kernel": E.T}))
    np.testing.assert_allclose(
        gradient["table"]["embedding"], both[0]["embedding"] + both[3]["kernel"].T, rtol=1e-4, atol=1e-6
    )


def test_rows_have_norm_one_and_logits_variance_one_at_init():
    layer = Embedding(500, 200, tied=True)
    params = layer.init(jax.random.key(0), jnp.zeros((), jnp.int32))
    assert float((params["embedding"] ** 2).sum(-1).mean()) == pytest.approx(1, abs=0.01)
    logits = layer.apply(params, jax.random.normal(jax.random.key(1), (100, 200)))
    assert float(logits.var()) == pytest.approx(1, abs=0.03)


def test_dtype_and_param_dtype():
    layer = Embedding(7, 3, tied=True, dtype=jnp.bfloat16, param_dtype=jnp.float16)
    params = layer.init(jax.random.key(0), IDS)
    assert params["embedding"].dtype == jnp.float16
    assert layer.apply(params, jnp.asarray(IDS)).dtype == jnp.bfloat16
    assert layer.apply(params, jnp.ones((2, 3), jnp.float32)).dtype == jnp.float32
    assert Embedding(7, 3).apply(params, jnp.asarray(IDS)).dtype == jnp.float16


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
    params = Embedding(7, 4).init(jax.random.key(0), IDS)
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
