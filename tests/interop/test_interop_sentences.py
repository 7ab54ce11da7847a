"""Folders of sentence-transformers, against transformers and the formulas of its modules in NumPy."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxblocks import interop, models
from jaxblocks.models.sentence_encoder import pooled
from tests.interop.test_interop_transformers import (
    DECODER,
    SMALL,
    TOKENS,
    close,
    outputs_of,
    reference,
    same_files,
    saved,
    transformers,
)

__all__ = ["transformers"]  # the fixture

MASK = np.arange(9) < np.array([[9], [5]])
POOLED = {  # of the features x of one text without its padding
    "cls": lambda x: x[0],
    "max": lambda x: x.max(0),
    "mean": lambda x: x.mean(0),
    "mean_sqrt_len_tokens": lambda x: x.sum(0) / len(x) ** 0.5,
    "weightedmean": lambda x: np.average(x, 0, np.arange(1, len(x) + 1)),
    "lasttoken": lambda x: x[-1],
}
DENSE = dict(in_features=48, out_features=3, bias=True, activation_function="torch.nn.modules.activation.Tanh")


def written(folder, *modules, **options):
    """The files beside those of the encoder, as the library writes them; a module is its kind and its options."""
    kinds = [dict(idx=0, name="0", path="", type="sentence_transformers.models.Transformer")]
    for k, (kind, values) in enumerate(modules, 1):
        name = kind.rpartition(".")[2]
        kind = kind if "." in kind else f"sentence_transformers.models.{kind}"
        kinds.append(dict(idx=k, name=f"{k}", path=f"{k}_{name}", type=kind))
        (folder / f"{k}_{name}").mkdir(exist_ok=True)
        (folder / f"{k}_{name}" / "config.json").write_text(json.dumps(values))
    (folder / "modules.json").write_text(json.dumps(kinds))
    (folder / "sentence_bert_config.json").write_text(json.dumps(dict(max_seq_length=9) | options))
    return folder


def test_sentence_encoders(transformers, tmp_path):
    """All ways of pooling side by side, a dense layer, and vectors of length 1; padding on either side."""
    module = reference(transformers, "BertModel", **SMALL)
    folder = written(
        saved(module, tmp_path / "theirs"),
        ("Pooling", dict(word_embedding_dimension=8, pooling_mode=[*POOLED])),
        ("Dense", DENSE),
        ("sentence_transformers.base.modules.normalize.Normalize", {}),
    )
    rng = np.random.default_rng(0)
    dense = {
        "linear.weight": rng.normal(0, 0.1, (3, 48)).astype(np.float32),
        "linear.bias": np.float32([0.1, 0.2, 0.3]),
    }
    interop.write_tensors(folder / "2_Dense" / "model.safetensors", dense)
    net, params, _ = interop.load(folder)
    assert interop.match(folder).ok and repr(net) == repr(interop.build(folder))
    for mask in (MASK, MASK[:, ::-1]):
        features = outputs_of(module, input_ids=TOKENS, attention_mask=mask.astype(np.int32))[0].numpy()
        pooled = [np.concatenate([f(x[m]) for f in POOLED.values()]) for x, m in zip(features, mask, strict=True)]
        expected = np.tanh(np.stack(pooled) @ dense["linear.weight"].T + dense["linear.bias"])
        expected /= np.linalg.norm(expected, axis=-1, keepdims=True)
        np.testing.assert_allclose(jax.jit(net.apply)(params, TOKENS, mask=mask), expected, rtol=0, atol=1e-5)
    interop.save(tmp_path / "ours", net, params, like=folder)
    same_files(tmp_path / "ours", folder)
    same_files(tmp_path / "ours" / "2_Dense", folder / "2_Dense")
    assert repr(interop.load(tmp_path / "ours").net) == repr(net)


def test_options_of_older_and_newer_files(transformers, tmp_path):
    """A decoder in a folder of its own is loaded without its head; flags name the pooling."""
    module = reference(transformers, "Qwen3Model", **DECODER | dict(head_dim=8))
    folder = saved(module, tmp_path / "0_Transformer").parent
    written(folder, ("Pooling", dict(pooling_mode_mean_tokens=False, pooling_mode_lasttoken=True)))
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    config = json.loads((folder / "0_Transformer" / "config.json").read_text())
    (folder / "0_Transformer" / "config.json").write_text(json.dumps(config | dict(architectures=["Qwen3ForCausalLM"])))
    model = {"type": "WordLevel", "vocab": {"a": 7, "?": 0}, "unk_token": "?"}
    words = {"model": model, "pre_tokenizer": {"type": "Whitespace"}}
    (folder / "0_Transformer" / "tokenizer.json").write_text(json.dumps(words))
    lowers = folder / "0_Transformer" / "sentence_bert_config.json"
    lowers.write_text(json.dumps(dict(do_lower_case=True, max_seq_length=3)))
    net, params, tokenizer = interop.load(folder)
    assert tokenizer.encode("A").tolist() == [7] and tokenizer.encode("a b A a a").tolist() == [7, 0, 7]
    features = outputs_of(module, input_ids=TOKENS, attention_mask=MASK.astype(np.int32))[0]
    close(jax.jit(net.apply)(params, TOKENS, mask=MASK), features[[0, 1], [8, 4]])
    interop.save(tmp_path / "ours", net, params, like=folder)
    same_files(tmp_path / "ours" / "0_Transformer", folder / "0_Transformer")
    assert interop.load(tmp_path / "ours").tokenizer.encode("A").tolist() == [7]


MEAN = ("Pooling", dict(pooling_mode="mean"))
REFUSED = {
    "other.Module": (
        [MEAN, ("other.Module", {})],
        {},
        "Transformer, Pooling, Dense, Normalize in .* got 'other.Module'",
    ),
    "WordWeights": ([MEAN, ("WordWeights", {})], {}, "got 'sentence_transformers.models.WordWeights'"),
    "order": ([("Normalize", {}), MEAN], {}, "Normalize at the end in .* got Transformer, Normalize, Pooling"),
    "pooling": (
        [("Pooling", dict(pooling_mode="median"))],
        {},
        "pooling_mode to be a list of .* lasttoken in .*median",
    ),
    "prompt": ([("Pooling", dict(include_prompt=False))], {}, "include_prompt to be true in .* got False"),
    "activation": ([MEAN, ("Dense", DENSE | dict(activation_function="torch.nn.modules.activation.Mish"))], {}, "Mish"),
    "residual": ([MEAN, ("Dense", DENSE | dict(use_residual=True))], {}, "use_residual to be absent or null in"),
    "input": ([MEAN, ("Dense", DENSE | dict(module_input_name="token_embeddings"))], {}, "module_input_name to be"),
    "task": ([MEAN], dict(transformer_task="text-generation"), "transformer_task to be 'feature-extraction'"),
    "output": (
        [MEAN],
        dict(modality_config=dict(text=dict(method="forward", method_output_name="pooler_output"))),
        "modality_config.text.method_output_name to be 'last_hidden_state' in",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.usefixtures("sentences")
def test_modules_that_are_not_computed_are_refused(what, tmp_path):
    modules, options, message = REFUSED[what]
    config = dict(model_type="bert", **SMALL, type_vocab_size=2)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=f"build expected .*{message}"):
        interop.build(written(tmp_path, *modules, **options))


def test_files_outside_of_the_folder_are_not_read(tmp_path):
    (tmp_path / "modules.json").write_text(
        json.dumps([dict(type="sentence_transformers.models.Transformer", path="../x")])
    )
    with pytest.raises(ValueError, match="path to be a path inside of the folder in .*modules.json, got '../x'"):
        interop.load(tmp_path)
    (tmp_path / "modules.json").write_text("{}")
    with pytest.raises(ValueError, match="modules.json to have a list in JSON, got {}"):
        interop.load(tmp_path)


def test_texts_without_tokens_and_padding_of_nan():
    features = np.float32([[1, -2], [np.nan, np.nan]])
    net = models.SentenceEncoder(lambda x: x, pool=("first", "last", "max", "mean", "weighted_mean"), normalize=False)
    for mask, expected in (([True, False], [1, -2] * 5), ([False, False], [0] * 10)):
        with jax.debug_nans(False):
            apply = functools.partial(net.apply, net.init(jax.random.key(0), features), mask=jnp.array(mask))
            got, back = jax.vjp(apply, features)
            assert got.tolist() == expected and np.isfinite(back(jnp.ones(10))[0]).all()


def test_weights_count_tokens_and_not_positions():
    """Also where padding is between tokens."""
    found = pooled(jnp.array([[1.0], [9.0], [3.0]]), jnp.array([True, False, True]), "weighted_mean")
    np.testing.assert_allclose(found, [(1 * 1 + 2 * 3) / 3], rtol=1e-6)


@pytest.mark.usefixtures("sentences")
def test_encoders_without_features_are_refused():
    words = jnp.zeros((1, 2), jnp.int32)
    bert = models.BERT(vocab_size=5, max_length=8, layers=1, heads=2, features=4, hidden=4)
    with pytest.raises(
        ValueError, match=r"SentenceEncoder expected encoder to return features .*; build it with head=None"
    ):
        jax.eval_shape(models.SentenceEncoder(bert).init, jax.random.key(0), words)
    cached = models.GPT2(vocab_size=5, max_length=8, layers=1, heads=2, features=4, cache=8)
    with pytest.raises(ValueError, match=r"an encoder without state, got one with state; build it without cache="):
        models.SentenceEncoder(cached)
    with pytest.raises(ValueError, match=r"at least one kind of pooling, got pool=\(\); pass pool=\(\"mean\",\)"):
        models.SentenceEncoder(bert, pool=())
    with pytest.raises(
        ValueError, match=r"SentenceEncoder expected pool to be .* got 'mean'; pass one such as pool=\('mean',\)"
    ):
        models.SentenceEncoder(bert, pool="mean")
