"""Language models: published param counts, logits of PyTorch models, cached decoding against a full pass."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxblocks import GRU, Attention, RMSNorm, StatefulLayer, alibi, attention, count_params, side_inputs
from jaxblocks.core.selection import paths, select
from jaxblocks.layers import rotary
from jaxblocks.models.bert import BERT
from jaxblocks.models.context import KeptContext
from jaxblocks.models.gpt2 import GPT2
from jaxblocks.models.llama import Llama
from jaxblocks.models.recurrent_lm import RecurrentLM
from jaxblocks.models.t5 import T5
from jaxblocks.models.transformer import Transformer
from jaxblocks.models.transformer_block import TransformerBlock, TransformerMLP
from jaxblocks.models.vit import ViT
from jaxblocks.models.whisper import Whisper

IDS = jax.ShapeDtypeStruct((1, 4), jnp.int32)
TOKENS = np.random.default_rng(0).integers(0, 11, (2, 7)).astype(np.int32)


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="PyTorch is a reference here; install the parity extra")


def number_of_params(net, *inputs):
    return count_params(jax.eval_shape(net.init, jax.random.key(0), *inputs))


def drawn(net, *inputs, seed=1):
    """Random params with the shapes of the net: scales around 1, all others (including biases) around 0."""
    shapes = jax.eval_shape(net.init, jax.random.key(0), *inputs)
    rng = np.random.default_rng(seed)

    def one(path, leaf):
        return np.float32(0.3 * rng.normal(size=leaf.shape) + ("scale" in str(path[-1])))

    return jax.tree_util.tree_map_with_path(one, shapes)


def initial(net, *inputs):
    """The structure of the params and the state of init, under jit, which removes the sampling of the params."""
    structures = []

    @jax.jit
    def initial_state(key):
        params, state = net.init(key, *inputs)
        structures.append(jax.tree.structure(params))
        return state

    state = initial_state(jax.random.key(0))
    return structures[0], state


def in_pieces(net, params, state, tokens, *cuts):
    pieces = []
    apply = jax.jit(net.apply)
    for piece in np.split(tokens, cuts, -1):
        logits, state = apply(params, state, piece)
        pieces.append(logits)
    return np.concatenate(pieces, -2)


def close(actual, expected, tolerance=2e-5):
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=0, atol=tolerance)


def layer_of(params, i):
    """NumPy params of the i-th copy of a `Repeat`."""
    return jax.tree.map(lambda x: np.asarray(x[i]), params)


def load(module, weights):
    """Load weights by name into a PyTorch module; the names of the weights and of the module must be equal."""
    import torch

    with torch.no_grad():
        own = dict(module.named_parameters())
        assert own.keys() == weights.keys(), own.keys() ^ weights.keys()
        for name, value in weights.items():
            own[name].copy_(torch.tensor(np.asarray(value)))
    return module.eval()


def norm_weights(place, p):
    return {f"{place}.weight": p["scale"], f"{place}.bias": p["bias"]}


def linear_weights(place, p):
    return {f"{place}.weight": p["kernel"].T} | ({f"{place}.bias": p["bias"]} if "bias" in p else {})


# ---- published numbers -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("net", "published"),
    [
        (GPT2(), 124_439_808),
        (Llama(), 6_738_415_616),  # 7B
        (Llama(layers=80, heads=64, kv_heads=8, features=8192, hidden=28_672), 68_976_648_192),  # Llama 2 70B
        (BERT(), 109_482_240),
    ],
)
def test_published_numbers_of_params(net, published):
    assert number_of_params(net, IDS) == published


def test_t5_and_whisper_have_the_published_number_of_params():
    assert number_of_params(T5(), IDS, IDS) == 60_506_624  # small
    v1_1 = dict(layers=8, heads=6, hidden=1024, gated=True, tied=False)
    assert number_of_params(T5(**v1_1), IDS, IDS) == 76_961_152  # small, version 1.1
    assert number_of_params(Whisper(), jax.ShapeDtypeStruct((1, 3000, 80), jnp.float32), IDS) == 37_760_640


def test_recurrent_models_have_the_published_number_of_params():
    """Zaremba et al. 2014, large."""
    assert round(number_of_params(RecurrentLM(features=1500), IDS) / 1e6) == 66


# Vaswani et al. 2017, table 3: differences from the base model, and millions of params (65 for the base model).
TABLE_3 = [
    (dict(head_dim=16), 58),
    (dict(layers=2), 36),
]


@functools.cache
def count_transformer(**row):
    return number_of_params(Transformer(**row), IDS, IDS)


@pytest.mark.parametrize(("row", "millions"), TABLE_3, ids=str)
def test_rows_of_table_3_differ_as_printed(row, millions):
    """Both numbers are rounded to millions, so the error of their difference is at most one."""
    difference = count_transformer() - count_transformer(**row)
    assert abs(difference / 1e6 - (65 - millions)) <= 1


def test_absolute_numbers_of_table_3_need_different_vocabularies():
    """The base and narrow models have the printed size with 41, not 37, thousand symbols; the big model with 36."""

    def millions(vocab_size, features=512, **row):
        return round((count_transformer(features=features, **row) + (vocab_size - 37_000) * features) / 1e6)

    big = dict(features=1024, hidden=4096, heads=16)
    assert (millions(41_000), millions(41_000, 256), millions(36_000, **big)) == (65, 28, 213)
    assert (millions(37_000), millions(37_000, 256), millions(37_000, **big)) == (63, 27, 214)


# ---- GPT-2 -----------------------------------------------------------------------------------

GPT2_SIZES = dict(vocab_size=11, max_length=12, layers=2, heads=2, features=8)


def test_gpt2_is_initialized_as_published():
    """Deviation 0.02, positions 0.01; ends of residual branches divided by the square root of their number."""
    net = GPT2(vocab_size=50, max_length=40, layers=8, heads=2, features=64)
    params = jax.jit(net.init)(jax.random.key(0), TOKENS)
    attention, mlp = params["blocks"]["attention"], params["blocks"]["mlp"]
    wanted = {0.02: [params["tokens"]["embedding"], attention["query"]["kernel"], mlp["up"]["kernel"]]}
    wanted |= {0.01: [params["positions"]["embedding"]], 0.005: [attention["out"]["kernel"], mlp["down"]["kernel"]]}
    for deviation, arrays in wanted.items():
        for x in arrays:
            assert abs(float(x.std()) / deviation - 1) < 0.05


def test_gpt2_limits_the_length_of_cache_and_sequence(sentences):
    with pytest.raises(
        ValueError, match="a cache of at most max_length=8 positions, got cache=9; make the cache smaller"
    ):
        GPT2(max_length=8, cache=9)
    GPT2(max_length=8, cache=8)
    with pytest.raises(
        ValueError, match=r"sequences of at most 8 positions, got float32 \(2, 9, 8\); shorten the sequence"
    ):
        jax.eval_shape(GPT2(**{**GPT2_SIZES, "max_length": 8}).init, jax.random.key(0), np.zeros((2, 9), np.int32))


def test_program_does_not_grow_with_depth():
    """Blocks are one scan: the jaxprs for eight and for two blocks have equal length."""

    def equations(layers):
        net = GPT2(**{**GPT2_SIZES, "layers": layers})
        params = jax.eval_shape(net.init, jax.random.key(0), TOKENS)
        return len(str(jax.make_jaxpr(net.apply)(params, TOKENS)).splitlines())

    assert equations(2) == equations(8)


def test_dropout_acts_in_training_only(sentences):
    net = GPT2(**GPT2_SIZES)
    params = drawn(net, TOKENS)
    assert set(side_inputs(net)) == {"key", "train", "mask", "segment_ids"}
    with pytest.raises(ValueError, match="Dropout expected a key in training, got none"):
        jax.eval_shape(lambda params: net.apply(params, TOKENS, train=True), params)
    none = GPT2(**GPT2_SIZES, dropout=0.0)
    still, same, dropped = jax.jit(
        lambda params: (
            net.apply(params, TOKENS),
            none.apply(params, TOKENS, train=True),
            net.apply(params, TOKENS, train=True, key=jax.random.key(2)),
        )
    )(params)
    assert np.abs(np.asarray(still) - dropped).max() > 0.1
    close(same, still, 0)


SMALL_BLOCK = dict(vocab_size=11, layers=1, heads=8, features=16, hidden=8, dropout=0.5)
BRANCHES = {"attention weights": "blocks/attention/value/bias", "attention": "blocks/attention/out/bias"}
BRANCHES |= {"MLP": "blocks/mlp/down/bias"}
DROPOUTS = {  # the params whose gradient is zero where an entry is dropped, for a sequence of one position
    "GPT2": (GPT2(max_length=2, **SMALL_BLOCK), 1, {"embeddings": "positions/embedding", **BRANCHES}),
    "BERT": (BERT(max_length=2, head=None, **SMALL_BLOCK), 1, {"embeddings": "embedding_norm/bias", **BRANCHES}),
    "Transformer": (
        Transformer(**SMALL_BLOCK),
        2,
        {
            "source": "tokens/embedding",
            "target": "tokens/embedding",
            "attention of the encoder": "encoder/attention/out/kernel",
            "MLP of the encoder": "encoder/mlp/down/bias",
            "attention of the decoder": "decoder/attention/out/kernel",
            "cross-attention": "decoder/cross_attention/out/kernel",
            "MLP of the decoder": "decoder/mlp/down/bias",
        },
    ),
}


@pytest.mark.parametrize("name", DROPOUTS)
def test_every_dropout_of_the_papers_is_there(name):
    """Where entries are dropped, a map before them has no gradient; without that dropout no entry is zero."""
    net, inputs, places = DROPOUTS[name]
    tokens = [jnp.array([i]) for i in range(inputs)]
    params = drawn(net, *tokens)

    @jax.jit
    def gradients(params):
        def loss(params):  # of logits of other tokens, whose rows of a tied embedding are not those of the input
            y = net.apply(params, *tokens, train=True, key=jax.random.key(1))
            return jnp.sum(jnp.sin(jnp.arange(1.0, y.size - 1)) * y.ravel()[2:])

        return jax.grad(loss)(params)

    found = dict(zip(paths(params), jax.tree.leaves(gradients(params)), strict=True))
    for place, path in places.items():
        gradient = np.asarray(found[path]).reshape(-1, found[path].shape[-1])
        if path.endswith("embedding"):
            gradient = gradient[int(place == "target") :][:1]  # the row of the source or target token, or position
        zeros = np.sum(np.all(gradient == 0, 0))
        assert 0 < zeros < 16, (place, zeros)


# ---- the encoder-decoder ---------------------------------------------------------------------

SMALL = dict(vocab_size=11, layers=2, heads=2, features=8, hidden=12)
SOURCE = np.random.default_rng(1).integers(0, 11, (2, 5)).astype(np.int32)
SOURCE_MASK = np.arange(5)[None] < np.array([[5], [3]])


def pytorch_transformer(torch, vocab_size, layers, heads, features, hidden):
    nn = torch.nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(vocab_size, features)
            options = (features, heads, hidden, 0.0, "relu", 1e-6)
            self.reads = nn.ModuleList(nn.TransformerEncoderLayer(*options, batch_first=True) for _ in range(layers))
            self.writes = nn.ModuleList(nn.TransformerDecoderLayer(*options, batch_first=True) for _ in range(layers))

        def embed(self, ids):
            t, i = torch.arange(ids.shape[1])[:, None], torch.arange(0, features, 2)
            waves = torch.zeros(ids.shape[1], features)
            waves[:, 0::2], waves[:, 1::2] = (f(t / 10000 ** (i / features)) for f in (torch.sin, torch.cos))
            return self.table(ids) * features**0.5 + waves

        def forward(self, source, target, mask):
            y, x = self.embed(source), self.embed(target)
            for layer in self.reads:
                y = layer(y, src_key_padding_mask=~mask)
            later = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
            for layer in self.writes:
                x = layer(x, y, tgt_mask=later, memory_key_padding_mask=~mask)
            return x @ self.table.weight.T

    return Model()


def attention_weights_of(place, p):
    three = np.concatenate([p[name]["kernel"].T for name in ("query", "key", "value")])
    zeros = {f"{place}.in_proj_bias": np.zeros(len(three)), f"{place}.out_proj.bias": np.zeros(len(three) // 3)}
    return {f"{place}.in_proj_weight": three, **zeros} | linear_weights(f"{place}.out_proj", p["out"])


def test_transformer_matches_pytorch_with_and_without_cache(torch):
    net = Transformer(**SMALL)
    params = drawn(net, SOURCE, TOKENS)
    weights = {"table.weight": params["tokens"]["embedding"]}
    for i in range(2):
        p = layer_of(params["encoder"], i)
        own = attention_weights_of("self_attn", p["attention"])
        own |= norm_weights("norm1", p["attention_norm"]) | norm_weights("norm2", p["mlp_norm"])
        own |= linear_weights("linear1", p["mlp"]["up"]) | linear_weights("linear2", p["mlp"]["down"])
        weights |= {f"reads.{i}.{name}": value for name, value in own.items()}
        p = layer_of(params["decoder"], i)
        own = attention_weights_of("self_attn", p["attention"])
        own |= attention_weights_of("multihead_attn", p["cross_attention"])
        own |= norm_weights("norm1", p["attention_norm"]) | norm_weights("norm2", p["cross_attention_norm"])
        own |= norm_weights("norm3", p["mlp_norm"])
        own |= linear_weights("linear1", p["mlp"]["up"]) | linear_weights("linear2", p["mlp"]["down"])
        weights |= {f"writes.{i}.{name}": value for name, value in own.items()}
    reference = load(pytorch_transformer(torch, **SMALL), weights).train()
    inputs = SOURCE.astype(np.int64), TOKENS.astype(np.int64), SOURCE_MASK
    expected = reference(*map(torch.tensor, inputs)).detach()
    close(jax.jit(net.apply)(params, SOURCE, TOKENS, mask=SOURCE_MASK), expected)
    decoder = Transformer(**SMALL, cache=8)
    structure, state = initial(decoder, SOURCE, TOKENS)
    assert structure == jax.tree.structure(params)
    first, state = jax.jit(decoder.apply)(params, state, SOURCE, TOKENS[:, :2], mask=SOURCE_MASK)
    close(jnp.concatenate([first, in_pieces(decoder, params, state, TOKENS[:, 2:], 1, 2, 3, 4)], 1), expected)


def test_transformer_rejects_wrong_inputs(sentences):
    net, decoder = Transformer(**SMALL), Transformer(**SMALL, cache=8)
    params, state = jax.eval_shape(decoder.init, jax.random.key(0), SOURCE, TOKENS)
    assert set(side_inputs(net)) == {"key", "train", "mask"}
    with pytest.raises(TypeError, match="expected source and target, got 1 inputs"):
        jax.eval_shape(net.apply, params, TOKENS)
    with pytest.raises(TypeError, match="source and target, or a further piece of the target alone, got 3 inputs"):
        jax.eval_shape(decoder.apply, params, state, SOURCE, TOKENS, TOKENS)
    with pytest.raises(ValueError, match="heads to divide features, got heads=3 and features=8"):
        Transformer(**{**SMALL, "heads": 3})
    Transformer(**{**SMALL, "heads": 3}, head_dim=2, value_dim=2)
    masked = functools.partial(decoder.apply, mask=SOURCE_MASK)
    _, read = jax.eval_shape(masked, params, state, SOURCE, TOKENS[:, :2])
    with pytest.raises(ValueError, match="expected mask with the source only, .* leave it out"):
        jax.eval_shape(masked, params, read, TOKENS[:, 2:])
    jax.eval_shape(decoder.apply, params, read, TOKENS[:, 2:])
    _, state = initial(decoder, SOURCE, TOKENS)
    with jax.debug_nans(False):
        without_source, _ = jax.jit(decoder.apply)(drawn(net, SOURCE, TOKENS), state, TOKENS)
        assert jnp.isnan(without_source).all()


# ---- recurrent -------------------------------------------------------------------------------


def test_recurrent_models_match_pytorch_on_whole_and_split_sequences(torch):
    sizes = dict(vocab_size=11, features=6, layers=2, recurrent=GRU)
    net = RecurrentLM(**sizes)
    params = drawn(net, TOKENS)
    weights = {}
    for i in range(2):
        p = layer_of(params["blocks"]["recurrent"], i)
        weights |= {f"weight_ih_l{i}": p["kernel"].T, f"weight_hh_l{i}": p["recurrent_kernel"].T}
        weights |= {f"bias_ih_l{i}": p["bias"], f"bias_hh_l{i}": p["recurrent_bias"]}
    table, kernel, bias = params["tokens"]["embedding"], params["out"]["kernel"], params["out"]["bias"]
    reference = load(torch.nn.GRU(6, 6, 2, batch_first=True), weights)
    hidden = reference(torch.tensor(np.asarray(table)[TOKENS]))[0].detach().numpy()
    expected = hidden @ np.asarray(kernel) + np.asarray(bias)
    close(jax.jit(net.apply)(params, TOKENS), expected)
    stream = RecurrentLM(**sizes, stateful=True)
    assert isinstance(stream, StatefulLayer)
    structure, state = initial(stream, TOKENS)
    assert structure == jax.tree.structure(params)
    close(in_pieces(stream, params, state, TOKENS, 1, 4), expected)


# ---- transformer blocks and names of params --------------------------------------------------

TINY = dict(layers=2, heads=2, features=8, hidden=12)
TRANSFORMERS = {
    "GPT2": (GPT2(vocab_size=11, max_length=12, **TINY), (TOKENS,), ["blocks"]),
    "Llama": (Llama(vocab_size=11, **TINY), (TOKENS,), ["blocks"]),
    "BERT": (BERT(vocab_size=11, max_length=12, **TINY), (TOKENS,), ["blocks"]),
    "ViT": (ViT(patch_size=4, classes=5, **TINY), (np.zeros((8, 8, 3), np.float32),), ["blocks"]),
    "Transformer": (Transformer(vocab_size=11, **TINY), (SOURCE, TOKENS), ["encoder", "decoder"]),
}


def chosen_by(params, *patterns):
    """The paths and shapes of the params that ``select`` chooses."""
    chosen = jax.tree.leaves(select(params, *patterns))
    leaves = jax.tree.leaves(params)
    return {path: leaf.shape for path, leaf, yes in zip(paths(params), leaves, chosen, strict=True) if yes}


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_path_patterns_are_the_same_for_all_transformers(name):
    net, inputs, stacks = TRANSFORMERS[name]
    params = jax.eval_shape(net.init, jax.random.key(0), *inputs)
    kernels = {"mlp/up": (2, 8, 12), "mlp/down": (2, 12, 8)} | ({"mlp/gate": (2, 8, 12)} if name == "Llama" else {})
    kernels |= {f"attention/{part}": (2, 8, 8) for part in ("query", "key", "value", "out")}
    for part, shape in kernels.items():
        assert chosen_by(params, f"**/{part}/kernel") == {f"{stack}/{part}/kernel": shape for stack in stacks}
    for norm in ("attention_norm", "mlp_norm"):
        assert chosen_by(params, f"**/{norm}/scale") == {f"{stack}/{norm}/scale": (2, 8) for stack in stacks}
    parts = {"attention", "attention_norm", "mlp", "mlp_norm", "dropout"}
    assert set(params[stacks[0]]) == parts
    if name == "Transformer":
        assert set(params["decoder"]) == parts | {"cross_attention", "cross_attention_norm"}
        assert chosen_by(params, "**/cross_attention/out/kernel") == {"decoder/cross_attention/out/kernel": (2, 8, 8)}
    if name != "ViT":
        assert chosen_by(params, "tokens/embedding") == {"tokens/embedding": (11, 8)}
    if name in ("GPT2", "BERT", "ViT"):
        assert len(chosen_by(params, "positions/embedding")) == 1
    if name in ("GPT2", "Llama", "ViT"):
        assert chosen_by(params, "norm/scale") == {"norm/scale": (8,)}


@pytest.mark.parametrize(("norm_first", "gated"), [(True, True), (False, False)])
def test_block_matches_its_formula(norm_first, gated):
    """Compare with NumPy, for pre and post norm, gated and plain MLPs, with cross-attention."""
    mlp = TransformerMLP(6, 4, gated=gated, activation=jnp.tanh, use_bias=False)
    attention, cross = (Attention(2, use_bias=False) for _ in range(2))
    block = TransformerBlock(
        attention=attention, cross_attention=cross, mlp=mlp, norm=RMSNorm, norm_first=norm_first, dropout=0.5
    )
    rng = np.random.default_rng(3)
    x, context = (jnp.asarray(rng.normal(size=(2, n, 4)), jnp.float32) for n in (3, 5))
    params = drawn(block, x, context)
    mask, context_mask = (jnp.arange(n)[None] < jnp.array([[n], [2]]) for n in (3, 5))
    assert side_inputs(block) == ("context_mask", "key", "mask", "segment_ids", "train")
    y, same = jax.jit(block.apply)(params, x, context, mask=mask, context_mask=context_mask)
    np.testing.assert_array_equal(same, context)

    def norm(name, x):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * np.asarray(params[f"{name}_norm"]["scale"])

    def feed_forward(x):
        up, down = (np.asarray(params["mlp"][name]["kernel"]) for name in ("up", "down"))
        if gated:
            return (np.tanh(x @ np.asarray(params["mlp"]["gate"]["kernel"])) * (x @ up)) @ down
        return np.tanh(x @ up) @ down

    branches = {
        "attention": lambda x: np.asarray(jax.jit(attention.apply)(params["attention"], jnp.asarray(x), mask=mask)),
        "cross_attention": lambda x: np.asarray(
            jax.jit(cross.apply)(params["cross_attention"], jnp.asarray(x), context, mask=context_mask)
        ),
        "mlp": feed_forward,
    }
    wanted = np.asarray(x)
    for name, branch in branches.items():
        wanted = wanted + branch(norm(name, wanted)) if norm_first else norm(name, wanted + branch(wanted))
    close(y, wanted, 1e-5)
    in_training = jax.jit(functools.partial(block.apply, train=True))
    dropped, _ = in_training(params, x, context, key=jax.random.key(0))
    assert float(jnp.abs(dropped - y).max()) > 0.1


WITH_RULES = [
    {"causal": True},
    {"score_bias": alibi},
    {"dropout": 0.1},
    {"positions": rotary},
    *(
        {"attention_fn": functools.partial(attention, **rule)}
        for rule in ({"causal": True}, {"sliding_window": 2}, {"bias": alibi})
    ),
]


@pytest.mark.parametrize("options", WITH_RULES)
def test_a_kept_context_has_no_rules_of_positions(options):
    """They depend on the places of the queries, which later pieces do not state."""
    with pytest.raises(ValueError, match=r"expected an Attention without .*; pass for instance Attention\(2\)"):
        KeptContext(Attention(2, **options))
    KeptContext(Attention(2, attention_fn=functools.partial(attention, causal=False, sliding_window=None)))


def test_block_rejects_a_layer_that_changes_the_shape():
    block = TransformerBlock(attention=Attention(2), mlp=TransformerMLP(6, 5))
    x = jnp.zeros((3, 4))
    with pytest.raises(ValueError, match=r"mlp to keep shape and dtype, float32 \(3, 4\), got .* 4 features") as caught:
        jax.eval_shape(block.init, jax.random.key(0), x)
    assert str(caught.value).startswith("TransformerBlock expected")
    jax.eval_shape(TransformerBlock(attention=Attention(2), mlp=TransformerMLP(6, 4)).init, jax.random.key(0), x)
