"""Weights in and out, without PyTorch: fixtures of transformers, damaged files, rules over paths."""

import errno
import json
import re
import shutil
import struct
import sys
import tempfile
import weakref
from pathlib import Path
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import for_each
from repository import ROOT

from jaxblocks import (
    GRU,
    LSTM,
    MLP,
    Attention,
    BatchNorm,
    Conv,
    Dense,
    Embedding,
    Layer,
    Repeat,
    Residual,
    Serial,
    interop,
    select,
)
from jaxblocks.interop.families import Config, family_of
from jaxblocks.models import GPT2
from jaxblocks.text import generate

FIXTURES = ROOT / "tests" / "support" / "fixtures"
CONFIG = dict(model_type="gpt2", vocab_size=9, n_positions=8, n_embd=4, n_layer=2, n_head=2)


def same_bits(one, other):
    """Whether two files, or dicts of tensors, have the same names, dtypes, shapes and bits."""
    one, other = (x if isinstance(x, dict) else interop.read_tensors(x) for x in (one, other))
    assert one.keys() == other.keys(), one.keys() ^ other.keys()
    for name in one:
        a, b = (np.asarray(x.read() if isinstance(x, interop.Tensor) else x) for x in (one[name], other[name]))
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()), name


# ---- folders of Hugging Face -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_fixtures_are_loaded_decoded_and_saved(name, tmp_path):
    net, params, tokenizer = interop.load(FIXTURES / name)
    expected = {key: x.read() for key, x in interop.read_tensors(FIXTURES / name / "expected.safetensors").items()}
    tokens, logits = expected["tokens"], expected["logits"]
    actual = jax.jit(net.apply)(params, tokens)
    np.testing.assert_allclose(actual, logits, rtol=0, atol=1e-5)
    decoder = interop.build(FIXTURES / name, cache=9)
    state = jax.jit(lambda key: decoder.init(key, tokens)[1])(jax.random.key(0))
    apply = jax.jit(decoder.apply)
    for t in range(0, 9, 3):
        piece, state = apply(params, state, tokens[:, t : t + 3])
        np.testing.assert_allclose(piece, logits[:, t : t + 3], rtol=0, atol=1e-5)
    interop.save(tmp_path, net, params, like=FIXTURES / name)
    assert (tmp_path / "model.safetensors").read_bytes() == (FIXTURES / name / "model.safetensors").read_bytes()
    assert json.loads((tmp_path / "config.json").read_text()) == json.loads(
        (FIXTURES / name / "config.json").read_text()
    )
    assert (tmp_path / "tokenizer.json").exists()
    assert interop.match(FIXTURES / name).ok
    assert tokenizer.decode(tokenizer.encode("to be or not to be")) == "to be or not to be"
    assert (tokenizer.vocab_size, repr(tokenizer)) == (16, "Tokenizer(16 tokens: tokenizer.json)")


def test_the_unet_of_diffusers_is_loaded_and_saved(tmp_path):
    """Its epsilon, padding and time embedding are not those of Ho et al., which are the defaults here."""
    folder = FIXTURES / "unet"
    expected = {key: x.read() for key, x in interop.read_tensors(folder / "expected.safetensors").items()}
    channels_last = lambda x: np.moveaxis(x, 1, -1)
    net, params, _ = interop.load(folder)
    time = (expected["steps"] / 1000).astype(np.float32)
    actual = jax.jit(net.apply)(params, channels_last(expected["images"]), time=time)
    np.testing.assert_allclose(actual, channels_last(expected["outputs"]), rtol=0, atol=2e-5)
    interop.save(tmp_path / "again", net, params, like=folder)
    same_bits(tmp_path / "again", folder)
    read = lambda path: json.loads((path / "config.json").read_text())
    assert read(tmp_path / "again") == read(folder)
    old = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}  # as in google/ddpm-cifar10-32
    copied("unet", tmp_path / "old")
    tensors = {name: x.read() for name, x in interop.read_tensors(folder).items()}
    for new, name in old.items():
        tensors = {key.replace(f".{new}.", f".{name}."): x for key, x in tensors.items()}
    interop.write_tensors(tmp_path / "old" / "diffusion_pytorch_model.safetensors", tensors)
    again = interop.load(tmp_path / "old").params
    chex.assert_trees_all_equal(again, params)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"act_fn": "mish"}, "act_fn to be 'silu' in the configuration, got 'mish'; the library computes"),
        ({"num_class_embeds": 3}, "num_class_embeds to be absent or null in the configuration, got 3"),
        ({"block_out_channels": [4, 6]}, r"block_out_channels to be multiples of the first .*, got \[4, 6\]"),
        ({"block_out_channels": 1}, "block_out_channels to be a list of 1 to 12 entries, .*, got 1"),
        ({"up_block_types": ["UpBlock2D"] * 2}, "up_block_types with attention at the same levels"),
        (
            {"attention_head_dim": 3},
            "attention_head_dim to divide block_out_channels in the .*, got attention_head_dim=3",
        ),
        ({"norm_eps": "a"}, "norm_eps to be a number from 0 to 1 in the configuration, got 'a'"),
    ],
)
def test_unets_that_are_not_computed_are_rejected(change, message, sentences):
    config = json.loads((FIXTURES / "unet" / "config.json").read_text())
    with pytest.raises((ValueError, TypeError), match=message):
        interop.build(config | change)


def test_generation_continues_a_prompt():
    net, params, tokenizer = interop.load(FIXTURES / "gpt2", dropout=0.0)
    assert repr(net).endswith("dropout=0.0)")
    prompt = tokenizer.encode("to be")
    key = jax.random.key(0)
    cached = generate(interop.build(FIXTURES / "gpt2", cache=8), params, prompt, key=key, steps=4, temperature=0)
    logits = jax.jit(net.apply)(params, cached[:-1])
    assert (logits.argmax(-1)[1:] == cached[2:]).all()


def copied(name, folder):
    return Path(shutil.copytree(FIXTURES / name, folder, dirs_exist_ok=True))


def rewritten(folder, change):
    """A folder whose tensors are changed: ``change`` maps the dict of arrays to another one."""
    arrays = {name: x.read() for name, x in interop.read_tensors(folder).items()}
    interop.write_tensors(folder / "model.safetensors", change(arrays))
    return folder


def test_files_in_other_forms_have_the_same_params(tmp_path):
    """Shards with an index, names without the prefix of the base model, tied weights and buffers."""
    expected = interop.load(FIXTURES / "gpt2").params
    arrays = {name: x.read() for name, x in interop.read_tensors(FIXTURES / "gpt2").items()}
    tied = arrays | {
        "lm_head.weight": arrays["transformer.wte.weight"],
        "transformer.h.0.attn.bias": np.ones((1, 2, 2), bool),
    }
    head_alone = {name: x for name, x in tied.items() if name != "transformer.wte.weight"}
    short = {name.removeprefix("transformer."): x for name, x in arrays.items()}
    for number, form in enumerate((tied, head_alone, short)):
        folder = rewritten(copied("gpt2", tmp_path / str(number)), lambda _, form=form: form)
        net, params, _ = interop.load(folder)
        chex.assert_trees_all_equal(params, expected)
        interop.save(tmp_path / "back", net, params, like=folder)
        same_bits(tmp_path / "back", folder)
    assert [row.status for row in interop.match(tmp_path / "0").rows][-2:] == ["ignored"] * 2
    sharded = copied("gpt2", tmp_path / "sharded")
    (sharded / "model.safetensors").unlink()
    files = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(arrays)}
    for file in set(files.values()):
        interop.write_tensors(sharded / file, {name: x for name, x in arrays.items() if files[name] == file})
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    params = interop.load(sharded, dtype=jnp.bfloat16).params
    assert params["blocks"]["mlp"]["up"]["kernel"].dtype == jnp.bfloat16
    same_bits(interop.read_tensors(sharded), arrays)


def test_the_names_of_tied_weights_are_all_saved(tmp_path):
    """A file with two other names for the shared embedding of T5; a GPT-2 without prefix, with its head."""
    sizes = dict(vocab_size=5, d_model=4, d_kv=2, d_ff=4, num_layers=1, num_heads=2)
    t5 = dict(model_type="t5", tie_word_embeddings=False, **sizes)
    names = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"]
    cases = [(t5, "shared.weight", names), (CONFIG, "transformer.wte.weight", ["wte.weight", "lm_head.weight"])]
    for config, name, others in cases:
        folder, net = tmp_path / config["model_type"], interop.build(config)
        tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
        inputs = (tokens, tokens) if config is t5 else (tokens,)
        interop.save(folder, net, drawn(net, *inputs), like=config)
        rename = lambda arrays, name=name, others=others: (
            {key.removeprefix("transformer."): x for key, x in arrays.items() if key != name}
            | dict.fromkeys(others, arrays[name])
        )
        params = interop.load(rewritten(folder, rename)).params
        params["tokens"]["embedding"] += 1
        interop.save(folder, net, params, like=folder)
        saved = {key: x.read() for key, x in interop.read_tensors(folder).items()}
        assert name not in saved
        assert all((saved[other] == params["tokens"]["embedding"]).all() for other in others)


def test_folders_that_are_none_are_rejected(tmp_path, sentences):
    with pytest.raises(FileNotFoundError, match=r"load expected a file gpt2/config.json, got no such file; .*download"):
        interop.load("gpt2")
    with pytest.raises(FileNotFoundError, match=r"config.json, got no such file; pass a folder with config.json and"):
        interop.load(tmp_path)
    for name in ("config.json", "model.safetensors"):
        with pytest.raises(ValueError, match=f"load expected a folder, got the file .*{name}; pass the folder"):
            interop.load(FIXTURES / "gpt2" / name)
    shutil.copyfile(FIXTURES / "gpt2" / "config.json", tmp_path / "config.json")
    with pytest.raises(FileNotFoundError, match=r"load expected weights at .*model.safetensors, got no such file"):
        interop.load(tmp_path)
    with pytest.raises(
        TypeError, match=r"load expected the path of a folder, got a dict; build\(config\) makes the net"
    ):
        interop.load(CONFIG)
    with pytest.raises(
        ValueError, match="write_tensors expected the path of a file, got the folder .*; pass .*safetensors"
    ):
        interop.write_tensors(tmp_path, {})
    with pytest.raises(TypeError, match="write_tensors expected tensors or arrays by name, got a list; pass module"):
        interop.write_tensors(tmp_path / "x.safetensors", [np.ones(2)])
    for metadata in ("pt", {"a": 1}):
        with pytest.raises(TypeError, match="expected metadata of strings by name, got .*; pass a dict"):
            interop.write_tensors(tmp_path / "x.safetensors", {"a": np.ones(2)}, metadata=metadata)
    with pytest.raises(FileNotFoundError, match="expected a folder .*, got no such folder; make it first"):
        interop.write_tensors(tmp_path / "none" / "x.safetensors", {"a": np.ones(2)})
    with pytest.raises(TypeError, match="read_tensors expected the path of a file or folder, got None; pass a string"):
        interop.read_tensors(None)
    with pytest.raises(TypeError, match=r"expected an array of numbers for 'key', got .*; pass jax.random.key_data"):
        interop.write_tensors(tmp_path / "x.safetensors", {"key": jax.random.key(0)})
    loaded = interop.load(FIXTURES / "gpt2")
    with pytest.raises(TypeError, match=r"save expected a net, got a Pretrained; write net, params, tokenizer = load"):
        interop.save(tmp_path, loaded, loaded.params, like=FIXTURES / "gpt2")
    with pytest.raises(ValueError, match=r"save expected a folder, got the file .*config.json; pass the folder"):
        interop.save(tmp_path / "config.json", loaded.net, loaded.params, like=FIXTURES / "gpt2")


def test_tokenizers_neither_pad_nor_truncate(tmp_path, sentences):
    file = json.loads((FIXTURES / "gpt2" / "tokenizer.json").read_text())
    file["truncation"] = dict(direction="Right", max_length=2, strategy="LongestFirst", stride=0)
    file["padding"] = dict(strategy=dict(Fixed=20), direction="Right", pad_id=0, pad_type_id=0, pad_token="x")
    file["padding"]["pad_to_multiple_of"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(file))
    tokens = [interop.load_tokenizer(path).encode("to be or not to be") for path in (FIXTURES / "gpt2", tmp_path)]
    assert len(tokens[0]) > 2
    np.testing.assert_array_equal(*tokens)
    del file["model"]["vocab"]["?"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(file))
    with pytest.raises(
        ValueError, match=r"a token of .*tokenizer.json for each part of the text, got .*; get the file"
    ):
        interop.load_tokenizer(tmp_path).encode("to sleep")


def test_tied_weights_that_differ_are_rejected(tmp_path, sentences):
    change = lambda arrays: arrays | {"lm_head.weight": arrays["transformer.wte.weight"] + 1}
    folder = rewritten(copied("gpt2", tmp_path), change)
    with pytest.raises(ValueError, match=r"load expected lm_head.weight to equal transformer.wte.weight"):
        interop.load(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(model_type="mamba"), "model_type to be one of .*, gpt2, .* in .*config.json, got 'mamba'; .* load_torch"),
        (dict(model_type=None), "model_type to be one of .*, got None"),
        (dict(activation_function="mish"), "activation_function to be 'gelu' or .*, got 'mish'"),
        (dict(architectures=["GPT2DoubleHeadsModel"]), 'pass architecture="GPT2LMHeadModel"'),
        (dict(n_layer=3), "a param for every tensor of .*, got 16 missing, the first blocks/attention/key/bias"),
        (dict(n_layer=1001), "n_layer to be an integer from 1 to 1000 in .*config.json, got 1001; correct the"),
        (dict(n_embd=16), "wrong shape, the first blocks/attention/key/bias"),
        (dict(n_layer="2"), "n_layer to be an integer from 1 to 1000 in .*config.json, got '2'"),
        (dict(layer_norm_epsilon=10**400), "layer_norm_epsilon to be a number from 0 to 1 in .*config.json, got 1000"),
        (dict(architectures={}), "architectures to be one of GPT2LMHeadModel, GPT2Model, .* in .*config.json, got {}"),
        (dict(n_head=3), "n_head to divide n_embd in .*config.json, got n_head=3 and n_embd=8"),
        (
            dict(model_type="resnet", architectures=None, embedding_size=4, depths=3),
            "depths to be a list of 1 to 16 entries, each an integer from 1 to 1000 in .*config.json, got 3",
        ),
        (dict(architectures="GPT2LMHeadModel"), "architectures to be one of GPT2LMHeadModel, GPT2Model"),
        (dict(vocab_size=10**9), "1 wrong shape, the first tokens/embedding"),
        (dict(quantization_config={"bits": 4}), "quantization_config to be absent or null in .*; the library does not"),
    ],
    ids=str,
)
def test_configurations_that_do_not_fit_are_rejected(change, message, tmp_path, sentences):
    folder = copied("gpt2", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ValueError, match=message):
        interop.load(folder)


ENCODER = dict(vocab_size=5, max_position_embeddings=8, type_vocab_size=2, num_hidden_layers=1, num_attention_heads=2)
ENCODER |= dict(hidden_size=4, intermediate_size=4)
DECODER = dict(num_hidden_layers=1, num_attention_heads=2, hidden_size=4, intermediate_size=4, vocab_size=5)
PATCHES = {key: value for key, value in DECODER.items() if key != "vocab_size"} | dict(patch_size=2, image_size=4)
ROPE = dict(rope_type="llama3", factor=2.0, low_freq_factor=1.0, high_freq_factor=4.0)
ROPE |= dict(original_max_position_embeddings=4, rope_theta=100.0)
CONFIGURATIONS = {
    "bert": ENCODER,
    "clip": dict(projection_dim=3, text_config=ENCODER | dict(eos_token_id=4), vision_config=PATCHES),
    "convnext": dict(depths=[1, 1], hidden_sizes=[2, 3], patch_size=2, image_size=8),
    "deit": PATCHES,
    "distilbert": dict(vocab_size=5, max_position_embeddings=8, n_layers=1, n_heads=2, dim=4, hidden_dim=4),
    "gemma": DECODER | dict(head_dim=4, num_key_value_heads=1),
    "gpt2": CONFIG,
    "llama": DECODER | dict(num_key_value_heads=1, rope_parameters=ROPE),
    "mistral": DECODER | dict(num_key_value_heads=1, sliding_window=2),
    "mixtral": DECODER | dict(num_key_value_heads=1, num_local_experts=3, num_experts_per_tok=2),
    "phi3": DECODER
    | dict(max_position_embeddings=16, original_max_position_embeddings=4)
    | dict(rope_scaling=dict(rope_type="longrope", short_factor=[1.0], long_factor=[2.0], rope_theta=100.0)),
    "qwen2": DECODER | dict(num_key_value_heads=2, use_sliding_window=True, max_window_layers=0),
    "resnet": dict(depths=[1, 1], hidden_sizes=[4, 8], embedding_size=4, image_size=8),
    "roberta": ENCODER | dict(pad_token_id=1),
    "t5": dict(vocab_size=5, d_model=4, d_kv=2, d_ff=4, num_layers=1, num_heads=2, relative_attention_num_buckets=6),
    "vit": PATCHES,
    "whisper": dict(vocab_size=5, max_source_positions=4, max_target_positions=4, encoder_layers=1, decoder_layers=1)
    | dict(encoder_attention_heads=2, d_model=4, encoder_ffn_dim=4, num_mel_bins=2),
    "UNet2DModel": dict(block_out_channels=[4, 8], down_block_types=["DownBlock2D", "AttnDownBlock2D"])
    | dict(up_block_types=["AttnUpBlock2D", "UpBlock2D"], norm_num_groups=2, out_channels=1, layers_per_block=1)
    | dict(attention_head_dim=4),
}


def test_the_parts_of_clip_are_among_its_architectures(sentences):
    config = {"model_type": "clip", **CONFIGURATIONS["clip"]}
    names = "CLIPModel, CLIPTextModel, CLIPTextModelWithProjection, CLIPVisionModel, CLIPVisionModelWithProjection"
    with pytest.raises(ValueError, match=f'one of {names} .*; pass architecture="CLIPTextModel", or another one'):
        interop.build(config, architecture="clip_text_model")
    for name in names.split(", "):
        interop.build(config, architecture=name)


def test_the_encoder_of_t5_is_no_decoder(sentences):
    config = dict(model_type="t5", architectures=["T5EncoderModel"]) | CONFIGURATIONS["t5"]
    interop.build(config)
    with pytest.raises(ValueError, match="is_decoder to be false"):
        interop.build(config | dict(is_decoder=True))


WRONG = (None, "x", -1, 10**9, ...)


def damaged(config):
    """A key and a configuration for each value that is replaced by a wrong one, or left out."""
    for key, value in config.items():
        for wrong in WRONG:
            changed = {name: each for name, each in config.items() if name != key}
            yield key, changed if wrong is ... else changed | {key: wrong}
        if isinstance(value, dict):
            for inner, changed in damaged(value):
                yield inner, config | {key: changed}
        if isinstance(value, list):
            yield from ((key, config | {key: [wrong, *value[1:]]}) for wrong in WRONG[:-1])


@pytest.mark.usefixtures("sentences")
@for_each({family: (family, config) for family, config in CONFIGURATIONS.items()})
def test_wrong_values_of_a_configuration_name_their_key(case):
    """Each makes a net, in little time and memory, or an error with the key."""
    family, config = case
    name, errors = "_class_name" if family[0].isupper() else "model_type", []
    for key, changed in damaged(config):
        changed = Config.of({name: family} | changed)
        try:
            net = interop.build(changed)
            if 10**9 in changed.values():
                family_of(changed).shapes(net, changed)
        except ValueError as error:
            errors.append((key, str(error)))
    unclear = [(key, text) for key, text in errors if not re.search(rf"expected .*{key}.* in the config.*, got", text)]
    assert not unclear
    assert len(errors) > 2 * len(config)


def test_the_path_of_config_json_is_a_configuration(tmp_path):
    config = dict(model_type="bert") | ENCODER
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert repr(interop.build(tmp_path / "config.json")) == repr(interop.build(tmp_path)) == repr(interop.build(config))


def test_a_configuration_without_an_option_names_it(sentences):
    with pytest.raises(
        ValueError, match=r"n_embd to be an integer from 1 to 1048576 in the configuration, got no such key; correct it"
    ):
        interop.build(dict(model_type="gpt2", vocab_size=3, n_positions=4, n_layer=1, n_head=1))


def test_save_rejects_another_net_and_other_params(tmp_path, sentences):
    net = interop.build(CONFIG)
    params = jax.eval_shape(net.init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), params)
    with pytest.raises(
        ValueError, match=r"save expected the net of the configuration, GPT2\(.*change the configuration"
    ):
        interop.save(tmp_path, GPT2(vocab_size=9, max_length=8, layers=2, heads=4, features=4), zeros, like=CONFIG)
    with pytest.raises(ValueError, match=r"save expected params with norm/bias of shape \(4,\), got None"):
        interop.save(tmp_path, net, {**zeros, "norm": {}}, like=CONFIG)
    interop.save(tmp_path, interop.build(CONFIG, dropout=0.5), zeros, like=CONFIG)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["GPT2LMHeadModel"]
    assert interop.match(tmp_path).ok


# ---- files -----------------------------------------------------------------------------------


def test_safetensors_agree_with_the_library(tmp_path):
    library = pytest.importorskip("safetensors.numpy")
    rng = np.random.default_rng(0)
    dtypes = [np.float64, np.float32, np.float16, np.int64, np.int32, np.int8, np.uint8, bool]
    arrays = {f"x{i}": rng.normal(size=(3, i)).astype(dtype) for i, dtype in enumerate(dtypes)}
    arrays |= {"scalar": np.array(2.5, np.float32), "half": rng.normal(size=5).astype(jnp.bfloat16)}
    interop.write_tensors(tmp_path / "ours.safetensors", arrays, metadata={"format": "pt"})
    found = library.load_file(tmp_path / "ours.safetensors")
    same_bits(found, arrays)
    library.save_file(arrays, tmp_path / "theirs.safetensors", metadata={"format": "pt"})
    same_bits(tmp_path / "theirs.safetensors", arrays)


def file_of(header, values=bytes(24), length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + values


A = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
B = {"dtype": "F32", "shape": [2, 2], "data_offsets": [8, 24]}
DAMAGED = {
    "empty": b"",
    "short": b"\x01\x00\x00",
    "a pointer of Git LFS": b"version https://git-lfs.github.com/spec/v1\nsize 12\n",
    "long name": file_of({"a" * 1000: 1}),
    "huge header": file_of({"a": A, "b": B}, length=2**63),
    "header beyond the end": file_of({"a": A, "b": B}, length=1000),
    "no header": file_of(b"", b""),
    "not JSON": file_of(b"{'a': 1}"),
    "not UTF-8": file_of(b'{"\xff": 1}'),
    "deep": file_of(b"[" * 100_000),
    "huge number": file_of(b'{"a": ' + b"9" * 5000 + b"}"),
    "a list": file_of([]),
    "twice": file_of(b'{"a": 1, "a": 2}'),
    "metadata": file_of({"__metadata__": {"format": 1}, "a": A, "b": B}),
    "a number": file_of({"a": 1, "b": B}),
    "without shape": file_of({"a": {"dtype": "F32", "data_offsets": [0, 8]}, "b": B}),
    "unknown dtype": file_of({"a": A | {"dtype": "F31"}, "b": B}),
    "dtype a list": file_of({"a": A | {"dtype": ["F32"]}, "b": B}),
    "wrong dtype": file_of({"a": A | {"dtype": "F64"}, "b": B}),
    "negative size": file_of({"a": A | {"shape": [-2]}, "b": B}),
    "fraction as size": file_of({"a": A | {"shape": [2.0]}, "b": B}),
    "flag as size": file_of({"a": A | {"shape": [True, 2]}, "b": B}),
    "huge shape": file_of({"a": A | {"shape": [2**62, 2**62]}, "b": B}),
    "huge size": file_of({"a": A | {"shape": [2**70]}, "b": B}),
    "one offset": file_of({"a": A | {"data_offsets": [0]}, "b": B}),
    "tensor a, reversed": file_of({"a": A | {"data_offsets": [8, 0]}, "b": B}),
    "negative offset": file_of({"a": A | {"data_offsets": [-8, 0]}, "b": B}),
    "tensor b beyond the end": file_of({"a": A, "b": B | {"data_offsets": [16, 32]}}),
    "tensor b overlaps": file_of({"a": A, "b": B | {"data_offsets": [4, 20]}}, bytes(20)),
    "tensor b after a gap": file_of({"a": A, "b": B | {"data_offsets": [12, 28]}}, bytes(28)),
    "truncated": file_of({"a": A, "b": B}, bytes(23)),
    "trailing bytes": file_of({"a": A, "b": B}, bytes(25)),
}


@pytest.mark.usefixtures("sentences")
@for_each({name: (name, file) for name, file in DAMAGED.items()})
def test_damaged_files_are_rejected_by_name(case):
    damage, contents = case
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "model.safetensors").write_bytes(contents)
        with pytest.raises(
            ValueError, match="read_tensors expected .*model.safetensors to have .*, got .*; the file is damaged"
        ) as error:
            interop.read_tensors(folder)
    assert len(str(error.value)) < 800 and ("Git LFS" in damage) == ("Git LFS" in str(error.value))
    if damage.startswith("tensor"):
        assert f"tensor `{damage[7]}`" in str(error.value)


def test_every_other_damage_is_a_sentence_or_harmless(tmp_path, sentences):
    """Each byte of the header changed, and the file cut at many places: an error that names the file, or values."""
    good = (FIXTURES / "gpt2" / "expected.safetensors").read_bytes()
    file = tmp_path / "model.safetensors"
    rng = np.random.default_rng(0)
    damaged = [good[:end] for end in range(0, len(good), 37)]
    for place in range(8 + struct.unpack("<Q", good[:8])[0]):
        damaged.append(good[:place] + bytes([rng.integers(256)]) + good[place + 1 :])
    rejected = harmless = 0
    for contents in damaged:
        file.write_bytes(contents)
        try:
            for tensor in interop.read_tensors(file).values():
                assert tensor.read().shape == tensor.shape
        except ValueError as error:
            rejected += "model.safetensors" in str(error)
        else:
            harmless += 1
    assert rejected + harmless == len(damaged) and rejected > harmless


def test_an_index_stays_in_its_folder(tmp_path, sentences):
    (tmp_path / "inside").mkdir()
    interop.write_tensors(tmp_path / "outside.safetensors", {"a": np.zeros(2)})
    interop.write_tensors(tmp_path / "inside" / "one.safetensors", {"a": np.zeros(2), "b": np.zeros(1)})
    index = tmp_path / "inside" / "model.safetensors.index.json"
    cases = {
        "../outside.safetensors": "index.json to have a file in the same folder for tensor 'a', got '../outside",
        str(tmp_path / "outside.safetensors"): "a file in the same folder for tensor 'a'",
        "..": "a file in the same folder",
        "": "a file in the same folder",
        "a" * 300: "a file in the same folder for tensor 'a', got 'aaa",
        "two.safetensors": "the file two.safetensors with tensor 'a', got no such file",
    }
    for file, message in cases.items():
        index.write_text(json.dumps({"weight_map": {"a": file}}))
        with pytest.raises(ValueError, match=message):
            interop.read_tensors(index.parent)
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors", "c": "one.safetensors"}}))
    with pytest.raises(ValueError, match="tensor 'c' in one.safetensors, got no such tensor there"):
        interop.read_tensors(index.parent)
    for text in ('{"weight_map": 3}', "{}", '{"weight_map": {"a": 1}}', "[]", "{"):
        index.write_text(text)
        with pytest.raises(ValueError, match="index.json to have"):
            interop.read_tensors(index.parent)
    with pytest.raises(
        FileNotFoundError, match="expected weights at .*model.safetensors, got no such file; pass a folder"
    ):
        interop.read_tensors(tmp_path)


def test_an_error_of_the_system_names_its_file(tmp_path, sentences, monkeypatch):
    folder, read = copied("gpt2", tmp_path), open
    message = "load expected .*%s to be readable, got Permission denied; check its permissions"

    def open_or_raise(path, *args, **options):  # in place of chmod, which does not bind a superuser
        if Path(path).name == unreadable:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return read(path, *args, **options)

    monkeypatch.setattr("builtins.open", open_or_raise)
    monkeypatch.setattr("io.open", open_or_raise)
    for unreadable in ("config.json", "model.safetensors"):
        with pytest.raises(PermissionError, match=message % unreadable):
            interop.load(folder)


def test_a_file_that_changes_while_it_is_read_is_rejected(tmp_path, sentences):
    interop.write_tensors(tmp_path / "x.safetensors", {"a": np.zeros(100)})
    tensor = interop.read_tensors(tmp_path / "x.safetensors")["a"]
    (tmp_path / "x.safetensors").write_bytes((tmp_path / "x.safetensors").read_bytes()[:-8])
    with pytest.raises(ValueError, match="x.safetensors to have the values of tensor 'a', got Could not read"):
        tensor.read()


def test_no_more_than_one_tensor_is_in_memory():
    """Reading makes a new array, and those made before must be gone."""
    living = weakref.WeakValueDictionary()

    class Lazy(NamedTuple):
        shape: tuple
        dtype: np.dtype = np.dtype(np.float32)

        def __array__(self, dtype=None, copy=None):
            most.append(len(living))
            living[len(most)] = array = np.full(self.shape, len(most), np.float32)
            return array

    most = []
    net, x = Serial(Dense(4), Repeat(Residual(Dense(4)), 3), Dense(2)), jnp.zeros(3)
    arrays = {"0.weight": Lazy((4, 3)), "0.bias": Lazy((4,)), "2.weight": Lazy((2, 4)), "2.bias": Lazy((2,))}
    arrays |= {f"1.{i}.weight": Lazy((4, 4)) for i in range(3)} | {f"1.{i}.bias": Lazy((4,)) for i in range(3)}
    params = interop.load_torch(net, arrays, {"1/0": "1.{i}", "*": "*"}, x)
    assert len(most) == 10 and max(most) <= 1
    assert [leaf.flatten()[0] for leaf in jax.tree.leaves(params)] == [1, 2, 3, 6, 9, 10]


def test_numbers_of_eight_bits_are_written_and_not_read(tmp_path, sentences):
    """NumPy does not have them; other tensors of the file are read."""
    path = tmp_path / "x.safetensors"
    interop.write_tensors(path, {"a": np.ones(2, jnp.float8_e4m3fn), "b": np.ones(2, np.float32)})
    tensors = interop.read_tensors(path)
    assert (tensors["a"].dtype, tensors["a"].shape) == (jnp.float8_e4m3fn, (2,))
    np.testing.assert_array_equal(tensors["b"].read(), [1, 1])
    with pytest.raises(ValueError, match="a dtype of NumPy for tensor 'a' of .*, got F8_E4M3; read the file by saf"):
        tensors["a"].read()
    with pytest.raises(ValueError, match="a dtype that safetensors has for c, got int4; use one of bool, uint8,"):
        interop.write_tensors(path, {"c": np.ones(2, jnp.int4)})


def test_arrays_in_any_order_are_written_by_value(tmp_path):
    """The library writes the memory of an array, whatever its strides are."""
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    arrays = {"moved": x.transpose(2, 0, 1), "every other": x[..., ::2], "one": np.broadcast_to(x[0, 0, 0], (2, 2))}
    arrays |= {"reversed": x[::-1], "scalar": np.float32(3), "bfloat16": x.T.astype(jnp.bfloat16), ">": x.astype(">f4")}
    interop.write_tensors(tmp_path / "x.safetensors", arrays)
    for name, tensor in interop.read_tensors(tmp_path / "x.safetensors").items():
        np.testing.assert_array_equal(tensor.read(), arrays[name])


def test_an_interrupted_write_keeps_the_file(tmp_path, monkeypatch):
    path = tmp_path / "x.safetensors"
    interop.write_tensors(path, {"a": np.ones(2)})

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        interop.write_tensors(path, {"a": np.zeros(2)})
    np.testing.assert_array_equal(interop.read_tensors(path)["a"].read(), [1, 1])


def test_without_the_library_the_extra_is_named(tmp_path, monkeypatch, sentences):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match=r'^read_tensors expected safetensors, .* pip install "jaxblocks\[interop\]"'):
        interop.read_tensors(FIXTURES / "gpt2")


# ---- rules -----------------------------------------------------------------------------------


def drawn(net, *inputs):
    """Random params, as `load_torch` returns them."""
    shapes = jax.eval_shape(net.init, jax.random.key(0), *inputs)
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda s: jnp.asarray(rng.normal(size=s.shape) * 3 + 5).astype(s.dtype), shapes)


X = jnp.zeros((2, 8, 8, 3))
SEQUENCE = jnp.zeros((2, 5, 4))
ROUND_TRIPS = {
    "names by wildcards": (
        Serial(stem=Serial(Conv(4, (3, 3)), BatchNorm()), head=Dense(2)),
        X,
        {"stem/0": "features.conv", "stem/?": "features.norm?", "he*/**": "classifier_he*"},
        {
            "features.conv.weight": (4, 3, 3, 3),
            "features.norm1.num_batches_tracked": (),
            "classifier_head.kernel": (4, 2),
        },
    ),
    "stacked": (
        Repeat(Repeat(Residual(inner=Dense(4)), 2), 3),
        SEQUENCE,
        {"inner": "stage.{i+1}.block.{j}.fc"},
        {"stage.1.block.0.fc.weight": (4, 4), "stage.3.block.1.fc.bias": (4,)},
    ),
    "merged, grouped heads": (
        Attention(4, kv_heads=2, head_dim=2),
        SEQUENCE,
        {**interop.merge_qkv("", "in_proj_{leaf}"), "out": "out_proj"},
        {"in_proj_weight": (16, 4), "in_proj_bias": (16,), "out_proj.weight": (4, 8)},
    ),
    "LSTM": (
        LSTM(3),
        SEQUENCE,
        {"": "rnn.{leaf}_l0"},
        {"rnn.weight_ih_l0": (12, 4), "rnn.weight_hh_l0": (12, 3), "rnn.bias_ih_l0": (12,), "rnn.bias_hh_l0": (12,)},
    ),
    "GRU": (GRU(3), SEQUENCE, {"**": "rnn"}, {"rnn.weight_ih": (9, 4)}),
}


@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_rules_and_layouts_are_inverted_exactly(name):
    net, x, rules, shapes = ROUND_TRIPS[name]
    if name == "names by wildcards":
        rules = {**rules, "head/kernel": ("classifier_head.kernel", interop.keep), "head/*": "classifier_head.*"}
        del rules["he*/**"]
    params = drawn(net, x)
    state_dict = interop.save_torch(net, params, rules)
    assert {key: state_dict[key].shape for key in shapes} == shapes
    back = interop.load_torch(net, state_dict, rules, x)
    trained = lambda path, leaf: jnp.int32(1_000_000) if jax.tree_util.keystr(path).endswith("['updates']") else leaf
    chex.assert_trees_all_equal(back, jax.tree.map_with_path(trained, params), strict=True)
    assert interop.match_torch(net, state_dict, rules, x).ok


NET, INPUT = Serial(hidden=Dense(5), out=Dense(1)), jnp.zeros(2)
RULES = {"hidden": "fc1", "out": "fc2"}
WEIGHTS = {"fc1.weight": (5, 2), "fc1.bias": (5,), "fc2.weight": (1, 5), "fc2.bias": (1,)}
ARRAYS = {name: np.ones(shape, np.float32) for name, shape in WEIGHTS.items()}


@pytest.mark.parametrize(
    ("rules", "change", "status", "path", "note"),
    [
        (RULES, {"fc2.bias": None, "fc2.bais": np.ones(1)}, "missing", "out/bias", "near fc2.bais"),
        (RULES, {"fc1.weight": np.ones((6, 2), np.float32)}, "wrong shape", "hidden/kernel", r"should be \(5, 2\)"),
        (RULES, {"fc1.weight": np.ones((2, 5), np.float32)}, "wrong shape", "hidden/kernel", r"write \(name, keep\)"),
        (RULES, {"fc1.bias": np.ones(5, np.int32)}, "wrong dtype", "hidden/bias", "is int32, not float32"),
        (RULES, {"fc3.bias": np.ones(5, np.float32)}, "left over", "fc3.bias", ""),
        ({"hidden": "fc1"}, {}, "missing", "out/bias", "path; of its shape: fc2.bias"),
        ({**RULES, "hiden": "fc1"}, {}, "unused", "hiden", "near hidden"),
        ({"hidden": "fc1.weight", "out": "fc2"}, {}, "missing", "hidden/bias", "for a layer name its module, 'fc1'"),
        ({"hidden": "fc1", "out": "fc3"}, {}, "missing", "out/bias", "near fc2.bias"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_reported_and_rejected(rules, change, status, path, note, sentences):
    arrays = {name: x for name, x in {**ARRAYS, **change}.items() if x is not None}
    report = interop.match_torch(NET, arrays, rules, INPUT)
    assert not report.ok
    row = report.of(status)[0]
    assert (row.path or row.source) == path
    with pytest.raises(
        ValueError, match=f"(?s)load_torch expected a tensor for every param .* {status}.*see the table.*{note}"
    ):
        interop.load_torch(NET, arrays, rules, INPUT)


def test_strict_is_offered_only_where_it_is_not_yet_off(sentences):
    arrays = {"fc3.bias": np.ones(5, np.float32)}
    with pytest.raises(ValueError, match="below; strict=False leaves out"):
        interop.load_torch(NET, arrays, RULES, INPUT)
    with pytest.warns(UserWarning, match="leaves out 1 tensors"), pytest.raises(ValueError, match=r"below(?!; strict)"):
        interop.load_torch(NET, arrays, RULES, INPUT, strict=False)


def test_options_of_load(sentences, tmp_path):
    """Its own stand in the list; another number of classes needs a net with a new head."""
    for name in ("torch_dtype", "dtyp"):
        with pytest.raises(TypeError, match=f"got '{name}'; did you mean dtype.* are architecture, strict, dtype, "):
            interop.load(FIXTURES / "gpt2", **{name: "auto"})
    with pytest.raises(
        TypeError, match="build expected .*'torch_dtype'; leave it out. The options are architecture, vocab_size, "
    ):
        interop.build(FIXTURES / "gpt2", torch_dtype="auto")
    sizes = dict(hidden_size=4, num_hidden_layers=1, num_attention_heads=1, intermediate_size=4)
    config = dict(model_type="bert", architectures=["BertForSequenceClassification"], vocab_size=5, **sizes)
    config |= dict(max_position_embeddings=2, type_vocab_size=2)
    net = interop.build(config)
    shapes = jax.eval_shape(net.init, jax.random.key(0), np.zeros((1, 1), np.int32))
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
    interop.save(tmp_path, net, zeros, like=config)
    with pytest.raises(ValueError, match=r"2 wrong shape, .*; for a new head, init the net of build\(.*, classes=3\)"):
        interop.load(tmp_path, classes=3)


def test_what_is_wrong_for_one_reason_is_said_once(sentences):
    """A prefix, rules from the wrong side, a net of other sizes; copies that are not counted, or too few."""
    for rules, arrays, sizes, advice in (
        (RULES, {f"module.{name}": x for name, x in ARRAYS.items()}, 5, "names of the tensors begin with 'module.'"),
        ({"fc1": "hidden", "fc2": "out"}, ARRAYS, 5, "write paths of params, such as hidden/bias, on the left"),
        (RULES, ARRAYS, 6, "the net may have other sizes than the weights"),
    ):
        with pytest.raises(ValueError, match=f"see the table below.*; .*{advice}"):
            interop.load_torch(Serial(hidden=Dense(sizes), out=Dense(1)), arrays, rules, INPUT)
    stack, kernels = Repeat(Serial(fc=Dense(2, use_bias=False)), 3), {f"fc.{i}.weight": np.ones((2, 2)) for i in (0, 1)}
    for name, note in (
        ("fc.{i}", "no fc.2.weight: 2 of 3 copies"),
        ("fc.0", "write {i} in the name: a tensor for"),
    ):
        assert note in interop.match_torch(stack, kernels, {"fc": name}, INPUT).rows[0].note


def test_params_with_one_tensor_have_their_own_layouts(sentences):
    """Tied weights: an embedding, and the kernel of the logits, which is transposed."""
    net, x = Serial(tokens=Embedding(5, 3), out=Dense(5, use_bias=False)), jnp.zeros(2, jnp.int32)
    rules, table = {"*": "wte"}, np.arange(15, dtype=np.float32).reshape(5, 3)
    params = interop.load_torch(net, {"wte.weight": table}, rules, x)
    assert (params["tokens"]["embedding"] == table).all() and (params["out"]["kernel"] == table.T).all()
    same_bits(interop.save_torch(net, params, rules), {"wte.weight": table})
    params["out"]["kernel"] += 1
    with pytest.raises(ValueError, match="equal params for the one tensor wte.weight, got other values of out/kernel"):
        interop.save_torch(net, params, rules)


def test_copies_are_numbered_by_letters_in_the_order_of_the_alphabet():
    net, x = Repeat(Repeat(Residual(inner=Dense(2)), 2), 2), jnp.zeros(2)
    params = drawn(net, x)
    rules = {"inner": "block.{j}.stage.{i}"}
    arrays = interop.save_torch(net, params, rules)
    assert (arrays["block.1.stage.0.bias"] == params["inner"]["bias"][0, 1]).all()
    back = interop.load_torch(net, arrays, rules, x)
    chex.assert_trees_all_equal(back, params)


@pytest.mark.parametrize("pattern", ["f[!o]1", "f[a-c]?", "f**", "f[!c]", "[!f]*"])
def test_patterns_of_rules_are_those_of_select(pattern):
    params = {name: {"kernel": jnp.zeros((2, 2))} for name in ("fc1", "fc2", "fo", "out")}
    kernel, others = f"{pattern}/kernel", {"**/kernel": ("other", interop.keep)}
    report = interop.match_torch(Layer(lambda key: params, None), {}, {kernel: "here"} | others)
    chosen = select(params, kernel)
    assert {row.path: row.source == "here" for row in report.of("missing")} == {
        f"{name}/kernel": chosen[name]["kernel"] for name in params
    }


def test_layouts_that_do_not_fit_are_rejected(sentences):
    flipped = interop.Layout("flipped", lambda x: np.flip(x, 0), lambda x: np.flip(x, 0))
    rules = {"hidden/kernel": ("fc1.weight", flipped), "*": "*"}
    params = drawn(NET, INPUT)
    arrays = interop.save_torch(NET, params, rules)
    assert (arrays["fc1.weight"] == params["hidden"]["kernel"][::-1]).all()
    chex.assert_trees_all_equal(interop.load_torch(NET, arrays, rules, INPUT), params)
    one_way = interop.Layout("one_way", lambda x: x.T, lambda x: x)
    with pytest.raises(
        ValueError,
        match=r"load of the layout one_way to make \(2, 5\) of \(2, 5\) for hidden/kernel, got \(5, 2\); make",
    ):
        interop.match_torch(NET, arrays, {"hidden/kernel": ("fc1.weight", one_way), "*": "*"}, INPUT)
    heads = interop.Layout("heads", lambda x: x.reshape(len(x), -1), lambda x: x.reshape(len(x), 3, -1))
    for layout in (heads, interop.Layout("row", lambda x: x[None], lambda x: x[0, 0, 0])):
        with pytest.raises(
            ValueError, match=f"layout {re.escape(layout.name)} to fit hidden/kernel, got .*; pass another"
        ):
            interop.load_torch(NET, arrays, {"hidden/kernel": ("fc1.weight", layout), "*": "*"}, INPUT)
    with pytest.raises(TypeError, match=r"a name, \(name, layout\) or a Source on the right of a rule"):
        interop.load_torch(NET, arrays, {"hidden": ("fc1", lambda x: x.T), "out": "out"}, INPUT)


def test_nothing_is_lost_without_an_error(sentences):
    """Statistics without a rule, rules that match nothing, and casts that change values."""
    net, x = Serial(norm=BatchNorm(use_scale=False, use_bias=False)), jnp.ones((2, 3))
    trees = net.init(jax.random.key(0), x)
    assert [row.path for row in interop.match_torch(net, {}, {}, x).of("missing")] == ["norm/mean", "norm/variance"]
    with pytest.raises(ValueError, match="a rule for every param, got none for norm/mean, norm/variance"):
        interop.save_torch(net, trees, {})
    with pytest.raises(ValueError, match="rules that match params, got 'hiden' near hidden; correct its path"):
        interop.save_torch(NET, NET.init(jax.random.key(0), INPUT), {"*": "*", "hiden": "fc1"})
    with pytest.raises(ValueError, match="a dtype of floating-point numbers, got dtype=int32"):
        interop.load_torch(NET, ARRAYS, RULES, INPUT, dtype=jnp.int32)
    arrays = interop.save_torch(net, trees, {"norm": "bn"}) | {"bn.num_batches_tracked": np.int64(2**40)}
    with pytest.raises(ValueError, match="integers of int32 in bn.num_batches_tracked, got larger ones of int64"):
        interop.load_torch(net, arrays, {"norm": "bn"}, x)


@pytest.mark.parametrize(("own", "dtype", "value"), [(jnp.bfloat16, "float16", 2.0**16), ("float64", "float32", 1e39)])
def test_numbers_that_a_dtype_does_not_have_are_rejected(own, dtype, value, sentences):
    net, x = Serial(out=Dense(1, use_bias=False)), jnp.ones(2)
    load = lambda *values: interop.load_torch(net, {"out.weight": np.array([values], own)}, {"*": "*"}, x, dtype=dtype)
    message = f"numbers of {dtype} in out.weight, got larger ones of {np.dtype(own)}; load it into a param of"
    with pytest.raises(ValueError, match=message):
        load(value, 1.0)
    np.testing.assert_array_equal(load(np.inf, value / 4)["out"]["kernel"], np.array([[np.inf], [value / 4]], dtype))


def test_save_rejects_numbers_that_the_folder_does_not_have(tmp_path, sentences):
    half = lambda arrays: {name: array.astype(np.float16) for name, array in arrays.items()}
    folder = copied("gpt2", tmp_path / "half")
    arrays = {name: tensor.read() for name, tensor in interop.read_tensors(folder).items()}
    interop.write_tensors(folder / "model.safetensors", half(arrays))
    net, params, _ = interop.load(folder)
    params["norm"]["bias"] = params["norm"]["bias"].at[0].set(70000.0)
    message = "numbers of float16 in [a-z.]*ln_f.bias, got larger ones of float32; pass the configuration as like"
    with pytest.raises(ValueError, match=message):
        interop.save(tmp_path / "saved", net, params, like=folder)
    interop.save(tmp_path / "saved", net, params, like=json.loads((folder / "config.json").read_text()))
    assert interop.load(tmp_path / "saved").params["norm"]["bias"][0] == 70000.0


def test_left_over_tensors_are_a_warning_without_strict(sentences):
    arrays = ARRAYS | {"fc3.bias": np.ones(5)}
    with pytest.warns(UserWarning, match=r"load_torch leaves out 1 tensors: fc3.bias\.") as said:
        params = interop.load_torch(NET, arrays, RULES, INPUT, strict=False)
    assert said[0].filename == __file__
    assert float(NET.apply(params, jnp.ones(2))[0]) == 16
    with pytest.raises(ValueError, match="missing"):
        interop.load_torch(NET, {}, RULES, INPUT, strict=False)


def test_rules_that_cannot_be_read_are_rejected(sentences):
    with pytest.raises(TypeError, match=r"a name, \(name, layout\) or a Source on the right of a rule, got 3"):
        interop.load_torch(NET, ARRAYS, {"hidden": 3}, INPUT)
    with pytest.raises(TypeError, match="rules, a dict from paths to names of tensors, got a list"):
        interop.load_torch(NET, ARRAYS, [("hidden", "fc1")], INPUT)
    with pytest.raises(ValueError, match=r"a pattern of paths, got 'h\[z-a\]': bad character range"):
        interop.load_torch(NET, ARRAYS, {"h[z-a]": "fc1"}, INPUT)
    with pytest.raises(ValueError, match=r"no more wildcards in a name than in its path, got 'fc\*.weight'"):
        interop.load_torch(NET, ARRAYS, {"hidden/kernel": "fc*.weight"}, INPUT)
    with pytest.raises(TypeError, match=r"a state dict of tensors by name, or the path .*; pass module.state_dict\(\)"):
        interop.load_torch(NET, [1], RULES, INPUT)
    with pytest.raises(
        ValueError, match="save_torch expected a rule for every param, got none for out/bias, out/kernel"
    ):
        interop.save_torch(NET, NET.init(jax.random.key(0), INPUT), {"hidden": "fc1"})
    shared = {"hidden/bias": "bias", "out/bias": "bias", "*": "*"}
    net = Serial(hidden=Dense(2), out=Dense(2))
    params = net.init(jax.random.key(0), INPUT)
    assert set(interop.save_torch(net, params, shared)) == {"hidden.weight", "out.weight", "bias"}
    params["out"]["bias"] += 1
    with pytest.raises(
        ValueError, match="equal params for the one tensor bias, got other values of hidden/bias, out/bias"
    ):
        interop.save_torch(net, params, shared)


def test_params_are_placed_with_their_sharding_and_dtype(sentences):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    arrays = {"0.weight": np.ones((4, 2)), "0.bias": np.ones(4), "2.weight": np.ones((2, 4)), "2.bias": np.ones(2)}
    options = dict(mesh=mesh, sharding={"**/kernel": jax.P(None, "data")}, dtype=jnp.bfloat16)
    params = interop.load_torch(MLP(4, 2), arrays, {"*": "*"}, jnp.zeros(2), **options)
    assert params[0]["kernel"].sharding == jax.NamedSharding(mesh, jax.P(None, "data"))
    assert params[0]["bias"].sharding == jax.NamedSharding(mesh, jax.P())
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.bfloat16)}
    with pytest.raises(ValueError, match="load_torch expected a mesh with sharding, got none; pass mesh="):
        interop.load_torch(MLP(4, 2), arrays, {"*": "*"}, jnp.zeros(2), sharding={"**": jax.P()})
    with pytest.raises(ValueError, match="a dtype that JAX has, float64, got 64 bits switched off"):
        interop.load_torch(MLP(4, 2), arrays, {"*": "*"}, jnp.zeros(2), dtype=np.float64)
    norm = {f"0.{name}": np.ones(2) for name in ("weight", "bias", "running_mean", "running_var")}
    _, state = interop.load_torch(Serial(BatchNorm()), norm, {"*": "*"}, jnp.zeros((2, 2)), mesh=mesh)
    assert {leaf.sharding for leaf in jax.tree.leaves(state)} == {jax.NamedSharding(mesh, jax.P())}


def test_running_statistics_count_as_trained():
    """Whatever the file counts, the next batch has the weight 1 - momentum, as in PyTorch."""
    net, x = Serial(norm=BatchNorm(momentum=0.9)), jnp.array([[1.0, 2.0, 3.0], [3.0, 2.0, 7.0]])
    arrays = {"bn.weight": np.ones(3), "bn.bias": np.ones(3), "bn.running_mean": np.full(3, 9.0)}
    arrays["bn.running_var"] = np.full(3, 4.0)
    for count in ({}, {"bn.num_batches_tracked": np.int64(0)}, {"bn.num_batches_tracked": np.int64(7)}):
        params, state = interop.load_torch(net, arrays | count, {"norm": "bn"}, x)
        np.testing.assert_allclose(
            net.apply(params, state, x)[0], 1 + (x - 9) / np.sqrt(4 + 1e-3), rtol=1e-5, atol=1e-6
        )
        _, after = net.apply(params, state, x, train=True)
        np.testing.assert_allclose(after["norm"]["mean"], 0.9 * 9 + 0.1 * x.mean(0), rtol=1e-6)
        np.testing.assert_allclose(after["norm"]["variance"], 0.9 * 4 + 0.1 * x.var(0), rtol=1e-6)


def test_nan_and_8_bit_floats_are_reported():
    """A warning names the tensors with NaN; numbers of 8 bits mean nothing without their scales."""
    net, x = Serial(a=Dense(2), b=Dense(2)), np.zeros((1, 2), np.float32)
    rules, zeros = {"*": "*"}, np.zeros((2, 2), np.float32)
    state = {f"{layer}.{leaf}": zeros[0] if leaf == "bias" else zeros for layer in "ab" for leaf in ("bias", "weight")}
    interop.load_torch(net, state, rules, x)
    holed = state | {"b.weight": np.array([[0, np.nan], [0, 0]], np.float32)}
    for dtype in (jnp.float32, jnp.bfloat16):
        with pytest.warns(UserWarning, match=r"load_torch found NaN in b.weight\."):
            interop.load_torch(net, holed, rules, x, dtype=dtype)
    with pytest.raises(ValueError, match="1 wrong dtype, the first a/kernel"):
        interop.load_torch(net, state | {"a.weight": zeros.astype(jnp.float8_e4m3fn)}, rules, x)
