"""Every family of `interop.load` against transformers: tiny models with random weights, in both directions."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxblocks import (
    GRU,
    LSTM,
    RNN,
    Attention,
    Bidirectional,
    Conv,
    ConvTranspose,
    GRUCell,
    LSTMCell,
    PReLU,
    Serial,
    StatefulLayer,
    gelu,
    interop,
    sinusoidal_positions,
    text,
)
from jaxblocks.models import Llama, ResNet, Transformer

TOKENS = np.random.default_rng(0).integers(2, 31, (2, 9)).astype(np.int32)
ROPE = dict(rope_theta=10_000.0)


@pytest.fixture(scope="module")
def transformers():
    pytest.importorskip("torch", reason="PyTorch is a reference here; install the parity extra")
    return pytest.importorskip("transformers", reason="transformers is a reference here; install the parity extra")


def reference(transformers, name, double=False, config=None, **options):
    """A model of transformers whose weights are all far from their initial values."""
    import torch

    model = getattr(transformers, name)
    torch.manual_seed(0)
    module = model(config or model.config_class(**options)).eval()
    with torch.no_grad():
        for weights in module.parameters():
            center = float(weights.ndim == 1 and bool((weights == 1).all()))
            weights.copy_(center + 0.3 * torch.randn(weights.shape))
        for key, statistic in module.named_buffers():
            if "running" in key:
                statistic.copy_(0.5 + torch.rand(statistic.shape))
            elif "num_batches" in key and name.endswith("Classification"):
                statistic += 1  # that of ResNetModel is 0, as transformers leaves it, and must remain so
    return module.double() if double else module


def outputs_of(module, **inputs):
    import torch

    with torch.no_grad():
        return module(
            **{name: torch.tensor(x, dtype=torch.int64 if x.dtype.kind in "ib" else None) for name, x in inputs.items()}
        )


def close(actual, expected, tolerance=1e-5):
    expected = expected.detach().numpy()
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=0, atol=tolerance * scale)


def same_files(folder, other):
    one, other = interop.read_tensors(folder), interop.read_tensors(other)
    assert one.keys() == other.keys()
    for name in one:
        a, b = one[name].read(), other[name].read()
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()), name


def saved(module, folder):
    module.save_pretrained(folder)
    return folder


LABELS = dict(id2label=dict(enumerate("abc")), label2id=dict(zip("abc", range(3), strict=True)))
DECODER = dict(vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4)
DECODER |= dict(num_key_value_heads=2, max_position_embeddings=64)
LLAMA3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
GEMMA2 = dict(head_dim=8, sliding_window=3, query_pre_attn_scalar=6, final_logit_softcapping=3.0)
LONGROPE = dict(rope_type="longrope", short_factor=[1.0, 1.2, 1.5, 2.0], long_factor=[1.0, 2.0, 3.0, 8.0])
PHI = DECODER | dict(hidden_size=32, original_max_position_embeddings=6, sliding_window=7, pad_token_id=0)
MIXTRAL = dict(num_local_experts=3, num_experts_per_tok=2, sliding_window=None)
SMALL_GPT2 = dict(vocab_size=32, n_positions=16, n_embd=8, n_layer=2, n_head=2, eos_token_id=0)
DECODERS = {
    "GPT-2": ("GPT2LMHeadModel", SMALL_GPT2),
    "Llama 2": ("LlamaForCausalLM", DECODER),
    "Llama 3.2": (
        "LlamaForCausalLM",
        DECODER
        | dict(tie_word_embeddings=True, attention_bias=True, mlp_bias=True, head_dim=8, hidden_act="gelu")
        | dict(rope_parameters=ROPE | dict(rope_type="linear", factor=2.0)),
    ),
    "GPT-2, untied": (
        "GPT2LMHeadModel",
        dict(vocab_size=32, n_positions=16, n_embd=8, n_layer=2, n_head=2, eos_token_id=0)
        | dict(tie_word_embeddings=False, n_inner=12, activation_function="relu"),
    ),
    "Gemma, features": ("GemmaModel", DECODER | dict(head_dim=8)),
    "Phi-3.5": ("Phi3ForCausalLM", PHI | dict(rope_parameters=ROPE | LONGROPE)),
    "Phi-4-mini": (
        "Phi3ForCausalLM",
        PHI
        | dict(hidden_size=64, tie_word_embeddings=True)
        | dict(rope_parameters=ROPE | LONGROPE | dict(partial_rotary_factor=0.5)),
    ),
    "Mistral": ("MistralForCausalLM", DECODER | dict(sliding_window=3, head_dim=8, rms_norm_eps=1e-2)),
    "Mixtral": ("MixtralForCausalLM", DECODER | MIXTRAL | dict(sliding_window=3)),
    "Qwen3": ("Qwen3ForCausalLM", DECODER | dict(head_dim=8, attention_bias=True)),
    "Gemma 2": ("Gemma2ForCausalLM", DECODER | GEMMA2 | dict(attn_logit_softcapping=2.0)),
    "Gemma 3": ("Gemma3ForCausalLM", DECODER | GEMMA2 | dict(sliding_window_pattern=2)),
}


# Other tests have the outputs of these, with and without a cache.
SELDOM = ("GPT-2", "Llama 2", "Phi-3.5")


def pieces_agree(decoder, params, tokens, expected, size):
    """A decoder with a cache has the expected outputs for pieces of a size."""
    shapes = jax.eval_shape(decoder.init, jax.random.key(0), tokens[:, :size])[1]
    state, apply = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes), jax.jit(decoder.apply)
    for begin in range(0, tokens.shape[1], size):
        outputs, state = apply(params, state, tokens[:, begin : begin + size])
        close(outputs, expected[:, begin : begin + size])


@pytest.mark.parametrize("family", [name for name in DECODERS if name not in SELDOM])
def test_decoders(family, transformers, tmp_path):
    """With a cache; the slow tests of test_interop_configurations.py compare them without one."""
    name, options = DECODERS[family]
    module = reference(transformers, name, **options)
    expected = outputs_of(module, input_ids=TOKENS)[0]  # logits, or the features of a base model
    net, params, _ = interop.load(saved(module, tmp_path / "theirs"))
    pieces_agree(interop.build(tmp_path / "theirs", cache=9), params, TOKENS, expected, 3)
    interop.save(tmp_path / "ours", net, params, like=tmp_path / "theirs")
    same_files(tmp_path / "ours", tmp_path / "theirs")
    again = type(module).from_pretrained(tmp_path / "ours").eval()
    assert (outputs_of(again, input_ids=TOKENS)[0] == expected).all()


def test_the_length_decides_on_the_factors_of_longrope(transformers, tmp_path):
    """Up to the original length the short ones, beyond it the long ones; with a cache its size decides."""
    name, options = DECODERS["Phi-3.5"]
    module = reference(transformers, name, **options)
    net, params, _ = interop.load(saved(module, tmp_path))
    for time in (6, 7):  # the original length is 6
        expected = outputs_of(module, input_ids=TOKENS[:, :time])[0]
        close(jax.jit(net.apply)(params, TOKENS[:, :time]), expected)
        pieces_agree(interop.build(tmp_path, cache=time), params, TOKENS[:, :time], expected, 4)
    with pytest.raises(ValueError, match="short_factor with 4 numbers, one for each pair in .*, got 3 of them"):
        interop.build(module.config.to_dict() | dict(rope_scaling=LONGROPE | dict(short_factor=[1.0] * 3)))
    with pytest.raises(ValueError, match="Llama expected rope_scaling with original_length, .* for longrope, got no"):
        Llama(rope_scaling=dict(scaling="longrope"))


PADDED = DECODER | dict(pad_token_id=1)
CLASSIFIERS = {
    "LlamaForSequenceClassification": PADDED | LABELS,
    "MistralForQuestionAnswering": PADDED,
    "Qwen3ForTokenClassification": PADDED | dict(head_dim=8) | LABELS,
    "Gemma3TextForSequenceClassification": PADDED | GEMMA2,
    "GPT2ForTokenClassification": SMALL_GPT2 | LABELS,
}


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_decoders_of_classes(name, transformers, tmp_path):
    """A text with padding after it, and one with padding before it."""
    module = reference(transformers, name, **CLASSIFIERS[name])
    mask = np.ones(TOKENS.shape, bool)
    mask[0, 6:] = mask[1, :2] = False
    tokens = np.where(mask, TOKENS, 1)
    expected = outputs_of(module, input_ids=tokens, attention_mask=mask.astype(np.int32)).to_tuple()
    net, params, _ = interop.load(saved(module, tmp_path / "theirs"))
    actual = jax.jit(net.apply)(params, tokens, mask=mask)
    if name.endswith("SequenceClassification"):
        close(actual, expected[0])
    else:
        kinds = actual.transpose(2, 0, 1) if name.endswith("QuestionAnswering") else [actual]
        for one, other in zip(kinds, expected[: len(kinds)], strict=True):
            close(one[mask], other[mask])
    interop.save(tmp_path / "ours", net, params, like=tmp_path / "theirs")
    same_files(tmp_path / "ours", tmp_path / "theirs")
    assert outputs_of(type(module).from_pretrained(tmp_path / "ours").eval(), input_ids=tokens)[0].shape


def writes_the_same(module, decoder, params, source, mask, steps=5, **inputs):
    """The source is read once, and each token once: greedy texts from a start token."""
    import torch

    inputs |= {} if mask is None else dict(attention_mask=mask.astype(np.int64))
    inputs = {name: torch.tensor(x, dtype=None if x.dtype.kind == "f" else torch.int64) for name, x in inputs.items()}
    start = np.ones((2, 1), np.int32)
    options = dict(do_sample=False, max_new_tokens=steps, eos_token_id=None, bos_token_id=None)
    options |= dict(forced_decoder_ids=None, begin_suppress_tokens=None, suppress_tokens=None, use_cache=True)
    config = type(module.generation_config)(**options, pad_token_id=0, decoder_start_token_id=1)
    theirs = module.generate(
        **inputs, decoder_input_ids=torch.tensor(start, dtype=torch.int64), generation_config=config
    )
    given = dict(source=source, source_mask=mask, steps=steps)
    ours = text.generate(decoder, params, start, key=jax.random.key(0), temperature=0, **given)
    np.testing.assert_array_equal(ours[:, -steps:], theirs[:, -steps:].numpy())  # Whisper's are without the start


def test_beam_search_of_gpt2(transformers, tmp_path):
    """Texts that end at different lengths, with penalties of length that prefer short and long ones."""
    import torch

    options = dict(vocab_size=12, n_positions=16, n_embd=8, n_layer=1, n_head=2, eos_token_id=5, bos_token_id=1)
    module = reference(transformers, "GPT2LMHeadModel", **options)
    params = interop.load(saved(module, tmp_path)).params
    decoder, prompts = interop.build(tmp_path, cache=11), np.arange(1, 13).reshape(4, 3) % 12
    lengths = set()
    for beams, penalty, early in ((2, -1.0, True), (4, 1.0, False), (4, -1.0, False)):
        settings = dict(length_penalty=penalty, early_stopping=early)
        theirs = module.generate(
            torch.tensor(prompts), attention_mask=torch.ones(4, 3), num_beams=beams, max_new_tokens=8, do_sample=False,
            eos_token_id=5, pad_token_id=5, **settings,
        ).numpy()  # fmt: skip
        ours = np.asarray(text.beam_search(decoder, params, prompts, steps=8, beams=beams, stop=5, **settings))
        time = theirs.shape[1]
        np.testing.assert_array_equal(ours[:, :time], theirs)
        assert (ours[:, time:] == 5).all()
        lengths |= {*(ours[:, 3:] != 5).sum(1)}
    assert len(lengths) > 1


SMALL = dict(vocab_size=32, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16)
SMALL |= dict(max_position_embeddings=20, layer_norm_eps=1e-3)
DISTILLED = dict(vocab_size=32, dim=8, n_layers=2, n_heads=2, hidden_dim=16, max_position_embeddings=20)
MODERN = dict(vocab_size=32, hidden_size=8, num_hidden_layers=4, num_attention_heads=2, intermediate_size=12)
MODERN |= dict(local_attention=4, norm_eps=1e-3) | {
    f"{name}_token_id": 0 for name in ("pad", "bos", "eos", "cls", "sep")
}
# With a mask, and the classes that test_interop_configurations.py does not compare.
ENCODERS = {
    "ModernBertForSequenceClassification": MODERN | LABELS | dict(classifier_pooling="mean"),
    "ModernBertForQuestionAnswering": MODERN | dict(layer_types=["sliding_attention"] * 4),
    "RobertaForTokenClassification": SMALL | LABELS,
    "XLMRobertaForMaskedLM": SMALL | dict(type_vocab_size=1, pad_token_id=1),
    "CamembertForSequenceClassification": SMALL | dict(type_vocab_size=1, pad_token_id=1),
    "BertForQuestionAnswering": SMALL | dict(hidden_act="gelu_new"),
    "MPNetForMaskedLM": SMALL,
}


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders(name, transformers, tmp_path):
    module = reference(transformers, name, **ENCODERS[name])
    mask = np.ones(TOKENS.shape, bool)
    mask[1, 5:] = False
    inputs = dict(input_ids=np.where(mask, TOKENS, 1), attention_mask=mask.astype(np.int32))
    theirs = outputs_of(module, **inputs)
    expected = theirs.to_tuple()
    net, params, _ = interop.load(saved(module, tmp_path / "theirs"))
    actual = jax.jit(net.apply)(params, TOKENS, mask=mask)
    if name.endswith("QuestionAnswering"):
        actual = actual[..., 0], actual[..., 1]  # of the first and of the last token of the answer
    actual = actual if isinstance(actual, tuple) else (actual,)
    for y, wanted in zip(actual, expected, strict=True):
        if wanted.shape[:2] == mask.shape:
            y, wanted = y[mask], wanted[mask]
        close(y, wanted)
    interop.save(tmp_path / "ours", net, params, like=tmp_path / "theirs")
    same_files(tmp_path / "ours", tmp_path / "theirs")


PATCHES = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, image_size=8)
PATCHES |= dict(patch_size=4) | LABELS
DINO = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, image_size=8, patch_size=4, mlp_ratio=3)
STAGES = dict(depths=[2, 2]) | LABELS
IMAGES = {
    "ViT, features": ("ViTModel", PATCHES | dict(qkv_bias=False)),
    "DeiT, teacher": ("DeiTForImageClassificationWithTeacher", PATCHES),
    "DINOv2, giant": ("Dinov2Model", DINO | dict(use_swiglu_ffn=True)),
    "ResNet, features": ("ResNetModel", dict(embedding_size=4, depths=[1, 1], hidden_sizes=[4, 8])),
    "ConvNeXt, features": (
        "ConvNextModel",
        dict(num_stages=2, hidden_sizes=[4, 6], depths=[1, 1], image_size=16, layer_scale_init_value=0.0),
    ),
    "ResNet, bottleneck": (
        "ResNetForImageClassification",
        STAGES
        | dict(embedding_size=8, hidden_sizes=[8, 12], downsample_in_first_stage=True)
        | dict(downsample_in_bottleneck=True),
    ),
}


@pytest.mark.parametrize("family", IMAGES)
def test_image_models(family, transformers, tmp_path):
    name, options = IMAGES[family]
    module = reference(transformers, name, **options)
    size = options.get("image_size", 16)
    images = np.random.default_rng(0).normal(size=(2, size, size, 3)).astype(np.float32)
    expected = outputs_of(module, pixel_values=images.transpose(0, 3, 1, 2)).to_tuple()
    net, params, _ = interop.load(saved(module, tmp_path / "theirs"))
    if isinstance(net, StatefulLayer):
        actual = jax.jit(net.apply)(*params, images)[0]
    else:
        actual = jax.jit(net.apply)(params, images)
    actual = actual if isinstance(actual, tuple) else (actual,)
    for y, wanted in zip(actual, expected[: len(actual)], strict=True):
        channels_last = wanted.permute(0, 2, 3, 1) if wanted.ndim == 4 else wanted
        close(y, channels_last.reshape(y.shape))
    interop.save(tmp_path / "ours", net, params, like=tmp_path / "theirs")
    same_files(tmp_path / "ours", tmp_path / "theirs")


TEXTS = dict(intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, hidden_size=8, vocab_size=32)
TEXTS |= dict(max_position_embeddings=12, bos_token_id=0, eos_token_id=31)
PICTURES = dict(intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, hidden_size=6)
PICTURES |= dict(image_size=8, patch_size=4)
T5_SIZES = dict(vocab_size=32, d_model=8, d_kv=3, d_ff=16, num_layers=2, num_decoder_layers=1, num_heads=2)
T5_SIZES |= dict(relative_attention_num_buckets=6, relative_attention_max_distance=5)
TOWERS = {
    "T5EncoderModel": T5_SIZES | dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "CLIPTextModelWithProjection": TEXTS | dict(projection_dim=5),
    "CLIPVisionModel": PICTURES,
}


@pytest.mark.parametrize("name", TOWERS)
def test_one_part_of_a_pair(name, transformers, tmp_path):
    module = reference(transformers, name, **TOWERS[name])
    images = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype(np.float32)
    tokens, mask = TOKENS.copy(), np.arange(9) < np.array([[9], [5]])
    tokens[:, 4] = 31
    side, kept = {}, slice(None)
    if "Vision" in name:
        x, inputs = images, dict(pixel_values=images.transpose(0, 3, 1, 2))
    else:
        x, inputs = tokens, dict(input_ids=tokens)
    if name == "T5EncoderModel":
        inputs["attention_mask"] = mask.astype(np.int32)
        side, kept = dict(mask=mask), mask
    expected = outputs_of(module, **inputs).to_tuple()
    net, params, _ = interop.load(saved(module, tmp_path / "theirs"))
    actual = jax.jit(net.apply)(params, x, **side)
    actual = actual if isinstance(actual, tuple) else (actual,)
    assert len(actual) == (2 if name == "CLIPVisionModel" else 1)
    for y, wanted in zip(actual, expected, strict=False):
        close(y[kept], wanted[kept])
    interop.save(tmp_path / "ours", net, params, like=tmp_path / "theirs")
    same_files(tmp_path / "ours", tmp_path / "theirs")
    again = type(module).from_pretrained(tmp_path / "ours").eval()
    assert (outputs_of(again, **inputs)[0] == expected[0]).all()


@pytest.mark.parametrize("name", [name for name in TOWERS if "CLIP" in name])
def test_one_transformer_of_a_folder_of_clip(name, transformers, tmp_path):
    both = dict(text_config=TEXTS | dict(projection_dim=5), vision_config=PICTURES | dict(projection_dim=5))
    folder = saved(reference(transformers, "CLIPModel", projection_dim=5, **both), tmp_path)
    module = getattr(transformers, name).from_pretrained(folder).eval()
    images = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype(np.float32)
    inputs = dict(pixel_values=images.transpose(0, 3, 1, 2)) if "Vision" in name else dict(input_ids=TOKENS)
    with pytest.warns(UserWarning, match=r"load leaves out \d+ tensors: logit_scale"):
        net, params, _ = interop.load(folder, architecture=name, strict=False)
    actual = jax.jit(net.apply)(params, images if "Vision" in name else TOKENS)
    expected = outputs_of(module, **inputs)
    expected = [expected[key] for key in ("text_embeds", "image_embeds") if key in expected] or expected.to_tuple()
    actual = actual if isinstance(actual, tuple) else (actual,)
    for y, wanted in zip(actual, expected, strict=False):
        close(y, wanted)


def test_positions_of_dinov2_are_resized(transformers, tmp_path):
    """To images that are larger, smaller, and no squares."""
    module = reference(transformers, "Dinov2Model", **DINO | dict(image_size=20))
    net, params, _ = interop.load(saved(module, tmp_path))
    for height, width in ((28, 20), (8, 12), (4, 100)):  # the last has as many patches as a square
        images = np.random.default_rng(0).normal(size=(2, height, width, 3)).astype(np.float32)
        expected = outputs_of(module, pixel_values=images.transpose(0, 3, 1, 2)).last_hidden_state
        close(jax.jit(net.apply)(params, images), expected)
    with pytest.raises(ValueError, match="a square grid of patches at init, got .*; call init with a square image"):
        jax.eval_shape(net.init, jax.random.key(0), images)


def test_t5(transformers, tmp_path):
    module = reference(transformers, "T5ForConditionalGeneration", **T5_SIZES)
    mask = np.arange(9) < np.array([[9], [5]])
    inputs = dict(input_ids=TOKENS, attention_mask=mask.astype(np.int32), decoder_input_ids=TOKENS[:, :4])
    expected = outputs_of(module, **inputs).logits
    net, params, _ = interop.load(saved(module, tmp_path / "theirs"))
    close(jax.jit(net.apply)(params, TOKENS, TOKENS[:, :4], mask=mask), expected)
    writes_the_same(module, interop.build(tmp_path / "theirs", cache=8), params, TOKENS, mask, input_ids=TOKENS)
    interop.save(tmp_path / "ours", net, params, like=tmp_path / "theirs")
    same_files(tmp_path / "ours", tmp_path / "theirs")


def test_clip(transformers, tmp_path):
    module = reference(transformers, "CLIPModel", text_config=TEXTS, vision_config=PICTURES, projection_dim=5)
    images = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype(np.float32)
    tokens = TOKENS.copy()
    tokens[:, 5:] = [[31, 2, 31, 1], [7, 31, 30, 3]]
    expected = outputs_of(module, input_ids=tokens, pixel_values=images.transpose(0, 3, 1, 2))
    net, params, _ = interop.load(saved(module, tmp_path / "theirs"))
    image, words, scale = jax.jit(net.apply)(params, images, tokens)
    close(image, expected.image_embeds)
    close(words, expected.text_embeds)
    close(scale[0] * image @ words.T, expected.logits_per_image)
    interop.save(tmp_path / "ours", net, params, like=tmp_path / "theirs")
    same_files(tmp_path / "ours", tmp_path / "theirs")


def test_siglip(transformers, tmp_path):
    sizes = dict(intermediate_size=16, num_hidden_layers=2, num_attention_heads=2)
    text = sizes | dict(hidden_size=8, vocab_size=32, max_position_embeddings=12, projection_size=6)
    vision = sizes | dict(hidden_size=6, image_size=8, patch_size=4, hidden_act="gelu", layer_norm_eps=1e-2)
    text |= dict(hidden_act="gelu", layer_norm_eps=1e-2)
    module = reference(transformers, "SiglipModel", text_config=text, vision_config=vision)
    images = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype(np.float32)
    expected = outputs_of(module, input_ids=TOKENS, pixel_values=images.transpose(0, 3, 1, 2))
    net, params, _ = interop.load(saved(module, tmp_path / "theirs"))
    image, words, scale, bias = jax.jit(net.apply)(params, images, TOKENS)
    close(image, expected.image_embeds)
    close(words, expected.text_embeds)
    close(scale[0] * image @ words.T + bias[0], expected.logits_per_image)
    interop.save(tmp_path / "ours", net, params, like=tmp_path / "theirs")
    same_files(tmp_path / "ours", tmp_path / "theirs")


def test_whisper(transformers, tmp_path):
    sizes = dict(encoder_layers=2, decoder_layers=1, encoder_ffn_dim=16, decoder_ffn_dim=16, d_model=8)
    sizes |= dict(encoder_attention_heads=2, decoder_attention_heads=2, max_source_positions=6, max_target_positions=12)
    ids = dict(vocab_size=32, pad_token_id=0, bos_token_id=0, eos_token_id=0, decoder_start_token_id=1)
    module = reference(transformers, "WhisperForConditionalGeneration", num_mel_bins=3, **sizes, **ids)
    sound = np.random.default_rng(0).normal(size=(2, 12, 3)).astype(np.float32)
    expected = outputs_of(module, input_features=sound.transpose(0, 2, 1), decoder_input_ids=TOKENS).logits
    net, params, _ = interop.load(saved(module, tmp_path / "theirs"))
    close(jax.jit(net.apply)(params, sound, TOKENS), expected)
    decoder = interop.build(tmp_path / "theirs", cache=8)
    writes_the_same(module, decoder, params, sound, None, input_features=sound.transpose(0, 2, 1))
    interop.save(tmp_path / "ours", net, params, like=tmp_path / "theirs")
    same_files(tmp_path / "ours", tmp_path / "theirs")


def test_the_base_model_of_a_larger_one(transformers, tmp_path):
    """Old names of norms; tensors of the head are left over, which is an error or a warning."""
    module = reference(transformers, "BertForSequenceClassification", **SMALL)
    saved(module, tmp_path)
    arrays = {name: x.read() for name, x in interop.read_tensors(tmp_path).items()}
    old = lambda name: name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
    interop.write_tensors(tmp_path / "model.safetensors", {old(name): x for name, x in arrays.items()})
    with pytest.raises(ValueError, match="2 left over, the first classifier.bias"):
        interop.load(tmp_path, architecture="BertModel")
    with pytest.warns(UserWarning, match="load leaves out 2 tensors: classifier.bias, classifier.weight"):
        net, params, _ = interop.load(tmp_path, architecture="BertModel", strict=False)
    expected = outputs_of(module.bert, input_ids=TOKENS, token_type_ids=TOKENS % 2)
    features, pooled = jax.jit(net.apply)(params, TOKENS, TOKENS % 2)
    close(features, expected[0])
    close(pooled, expected[1])
    base = transformers.BertModel(module.config, add_pooling_layer=False)
    base.load_state_dict(module.bert.state_dict(), strict=False)
    headless, params, _ = interop.load(saved(base, tmp_path / "base"))
    assert repr(headless) == repr(interop.build(tmp_path / "base")) and "head=None" in repr(headless)
    close(jax.jit(headless.apply)(params, TOKENS, TOKENS % 2), expected[0])
    interop.save(tmp_path / "again", headless, params, like=tmp_path / "base")
    same_files(tmp_path / "again", tmp_path / "base")


def test_the_features_of_gpt2(transformers, tmp_path):
    module = reference(transformers, "GPT2Model", vocab_size=32, n_positions=16, n_embd=8, n_layer=1, n_head=2)
    net, params, _ = interop.load(saved(module, tmp_path / "theirs"))
    close(jax.jit(net.apply)(params, TOKENS), outputs_of(module, input_ids=TOKENS).last_hidden_state)
    interop.save(tmp_path / "ours", net, params, like=tmp_path / "theirs")
    same_files(tmp_path / "ours", tmp_path / "theirs")


# transformers computes frequencies and RMS norms in float32.
@pytest.mark.parametrize(("family", "tolerance"), [("GPT-2", 1e-10), ("Mixtral", 1e-5)])
def test_gradients_and_64_bits(family, tolerance, transformers, tmp_path):
    import torch

    name, options = DECODERS[family]
    module = reference(transformers, name, double=True, **options)
    module.config._experts_implementation = "eager"  # the others have no 64 bits
    logits = module(input_ids=torch.tensor(TOKENS, dtype=torch.int64)).logits
    logits.sin().sum().backward()
    saved(module, tmp_path)
    with jax.enable_x64(True):
        net, params, _ = interop.load(tmp_path, dtype=np.float64)

        def loss(params):
            logits = net.apply(params, TOKENS)
            return jnp.sin(logits).sum(), logits

        gradients, found = jax.jit(jax.grad(loss, has_aux=True))(params)
        close(found, logits, tolerance)
        interop.save(tmp_path / "gradients", net, gradients, like=tmp_path)
    for weights in module.parameters():
        weights.data = weights.grad
    theirs = interop.read_tensors(saved(module, tmp_path / "theirs"))
    for name, gradient in interop.read_tensors(tmp_path / "gradients").items():
        close(gradient.read(), torch.tensor(theirs[name].read()), tolerance)


def test_half_precision_and_pickles(transformers, tmp_path):
    """A file in bfloat16 is loaded in float32 and saved in bfloat16; PyTorch's own format has the same params."""
    import torch

    name, options = DECODERS["Llama 2"]
    module = reference(transformers, name, **options).bfloat16()
    net, params, _ = interop.load(saved(module, tmp_path / "theirs"))
    assert params["out"]["kernel"].dtype == jnp.float32
    interop.save(tmp_path / "ours", net, params, like=tmp_path / "theirs")
    same_files(tmp_path / "ours", tmp_path / "theirs")
    (tmp_path / "theirs" / "model.safetensors").unlink()
    torch.save(module.state_dict(), tmp_path / "theirs" / "pytorch_model.bin")
    again = interop.load(tmp_path / "theirs").params
    chex.assert_trees_all_equal(again, params)
    torch.save({"model": module}, tmp_path / "theirs" / "pytorch_model.bin")
    with pytest.raises(
        ValueError, match=r"pytorch_model.bin to have tensors by name .* torch.load\(weights_only=True\)"
    ):
        interop.load(tmp_path / "theirs")


LAYERS = {
    "Attention": (
        Attention(2),
        lambda nn: nn.MultiheadAttention(4, 2, batch_first=True),
        {**interop.merge_qkv("", "in_proj_{leaf}"), "out": "out_proj"},
    ),
    "PReLU": (PReLU(), lambda nn: nn.PReLU(init=0.3), {"": "{leaf}"}),
    "Conv": (Conv(6, 3, groups=2), lambda nn: nn.Conv1d(4, 6, 3, groups=2), {"": "{leaf}"}),
    "ConvTranspose": (
        ConvTranspose(4, 3, stride=2, groups=2),
        lambda nn: nn.ConvTranspose1d(4, 4, 3, stride=2, groups=2),
        {"": "{leaf}"},
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_pytorch(name):
    torch = pytest.importorskip("torch", reason="PyTorch is a reference here; install the parity extra")
    net, module, rules = LAYERS[name]
    torch.manual_seed(0)
    module, x = module(torch.nn), torch.randn(2, 5, 4)
    params = interop.load_torch(net, module.state_dict(), rules, jnp.asarray(x.numpy()))
    if name.startswith("Conv"):
        expected = module(x.mT).mT
    else:
        expected = module(x, x, x) if name == "Attention" else module(x)
        expected = expected[0] if isinstance(expected, tuple) else expected
    close(jax.jit(net.apply)(params, x.numpy()), expected)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("norm_first", [False, True])
def test_the_transformer_of_pytorch(norm_first):
    """With two token embeddings and a linear layer: biases, final norms, and tables that are not tied."""
    torch = pytest.importorskip("torch", reason="PyTorch is a reference here; install the parity extra")
    torch.manual_seed(0)
    module = torch.nn.Transformer(8, 2, 2, 2, 12, 0.0, "gelu", batch_first=True, norm_first=norm_first)
    source, target, last = torch.nn.Embedding(7, 8), torch.nn.Embedding(5, 8), torch.nn.Linear(8, 5)
    weights = torch.nn.ModuleDict(dict(net=module, source=source, target=target, last=last))
    for one in weights.parameters():
        torch.nn.init.normal_(one)
    stack = lambda path, name: {
        **interop.merge_qkv(f"{path}/attention", f"{name}.self_attn.in_proj_{{leaf}}"),
        f"{path}/attention/out": f"{name}.self_attn.out_proj",
        f"{path}/mlp/up": f"{name}.linear1",
        f"{path}/mlp/down": f"{name}.linear2",
        f"{path}/attention_norm": f"{name}.norm1",
    }
    rules = {"tokens": "target", "source_tokens": "source", "out": "last", "norm": "net.decoder.norm"}
    rules |= stack("encoder", "net.encoder.layers.{i}") | {"encoder/mlp_norm": "net.encoder.layers.{i}.norm2"}
    rules |= stack("decoder", "net.decoder.layers.{i}") | {"decoder/mlp_norm": "net.decoder.layers.{i}.norm3"}
    rules |= interop.merge_qkv("decoder/cross_attention", "net.decoder.layers.{i}.multihead_attn.in_proj_{leaf}")
    rules |= {"decoder/cross_attention/out": "net.decoder.layers.{i}.multihead_attn.out_proj"}
    rules |= {"decoder/cross_attention_norm": "net.decoder.layers.{i}.norm2", "encoder_norm": "net.encoder.norm"}
    net = Transformer(
        vocab_size=5, source_vocab_size=7, layers=2, heads=2, features=8, hidden=12, activation=gelu, use_bias=True,
        tied=False, out_bias=True, norm_first=norm_first, final_norm=True, epsilon=1e-5, dropout=0.0,
    )  # fmt: skip
    ids = np.array([[0, 3, 1, 6], [5, 2, 2, 4]], np.int32), np.array([[0, 3, 1], [4, 2, 2]], np.int32)
    params = interop.load_torch(net, weights.state_dict(), rules, *ids)
    waves = torch.tensor(np.asarray(sinusoidal_positions(4, 8)))
    places = lambda x, table: table(torch.tensor(x)) * 8**0.5 + waves[: x.shape[1]]
    later = torch.ones(3, 3, dtype=torch.bool).triu(1)
    expected = last(module(places(ids[0], source), places(ids[1], target), tgt_mask=later))
    close(jax.jit(net.apply)(params, *ids), expected)


def test_tensors_of_pytorch(tmp_path, sentences):
    """Dtypes that NumPy does not have; tensors without values, and checkpoints with more than weights."""
    torch = pytest.importorskip("torch", reason="PyTorch is a reference here; install the parity extra")
    x = torch.tensor([[1.5, -2.0, 3.0]], requires_grad=True).T
    dtypes = {"half": torch.bfloat16, "eight": torch.float8_e4m3fn, "full": torch.float32}
    interop.write_tensors(tmp_path / "x.safetensors", {name: x.to(dtype) for name, dtype in dtypes.items()})
    tensors = interop.read_tensors(tmp_path / "x.safetensors")
    assert all(str(tensor.dtype) in str(dtypes[name]) for name, tensor in tensors.items())
    for name in ("half", "full"):
        np.testing.assert_array_equal(tensors[name].read().astype(np.float32), [[1.5], [-2.0], [3.0]])
    with pytest.raises(ValueError, match="a dtype of NumPy for tensor 'eight' of .*; read the file by safetensors"):
        tensors["eight"].read()
    for wrong in (torch.eye(2).to_sparse(), torch.zeros(2, device="meta")):
        with pytest.raises(TypeError, match="write_tensors expected a dense tensor with values for 'w', got one of"):
            interop.write_tensors(tmp_path / "y.safetensors", {"w": wrong})
    checkpoint = {"state_dict": {"weight": torch.ones(2)}, "step": 3}
    torch.save(checkpoint, tmp_path / "z.pt")
    with pytest.raises(
        ValueError, match=r"z.pt to have a state dict, .*'state_dict', 'step'.* in a dict; pass the state"
    ):
        interop.read_tensors(tmp_path / "z.pt")
    with pytest.raises(TypeError, match="an array for 'state_dict', got a dict; pass the values of 'state_dict' alone"):
        interop.load_torch(LSTM(3), checkpoint, {}, jnp.zeros((2, 4)))


def test_a_resnet_of_torchvision_is_loaded_by_nine_rules(transformers):
    """A module with the names of torchvision's ResNet-18."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, before, width, stride):
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
            self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
            if stride > 1:
                self.downsample = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))

        def forward(self, x):
            y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
            return (y + (self.downsample(x) if hasattr(self, "downsample") else x)).relu()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.bn1, self.pool = (
                nn.Conv2d(3, 4, 7, 2, 3, bias=False),
                nn.BatchNorm2d(4),
                nn.MaxPool2d(3, 2, 1),
            )
            for i, (before, width) in enumerate([(4, 4), (4, 8), (8, 16), (16, 32)], 1):
                setattr(self, f"layer{i}", nn.Sequential(Block(before, width, 1 + (i > 1)), Block(width, width, 1)))
            self.fc = nn.Linear(32, 5)

        def forward(self, x):
            x = self.pool(self.bn1(self.conv1(x)).relu())
            for i in range(1, 5):
                x = getattr(self, f"layer{i}")(x)
            return self.fc(x.mean((2, 3)))

    torch.manual_seed(0)
    module, images = Net(), torch.randn(2, 3, 16, 16)
    module(images)  # updates the running statistics
    module.eval()
    rules = {
        "stem/conv": "conv1",
        "stem/norm": "bn1",
        "stage_*/first/body/conv_*": "layer*.0.conv*",
        "stage_*/first/body/norm_*": "layer*.0.bn*",
        "stage_*/first/skip/conv": "layer*.0.downsample.0",
        "stage_*/first/skip/norm": "layer*.0.downsample.1",
        "stage_*/blocks/body/conv_*": "layer*.{i+1}.conv*",
        "stage_*/blocks/body/norm_*": "layer*.{i+1}.bn*",
        "out": "fc",
    }
    net, x = ResNet(18, classes=5, width=4), jnp.asarray(images.permute(0, 2, 3, 1).numpy())
    params, state = interop.load_torch(net, module.state_dict(), rules, x)
    close(jax.jit(net.apply)(params, state, x)[0], module(images))
    back = interop.save_torch(net, (params, state), rules)
    module.load_state_dict({name: torch.tensor(value) for name, value in back.items()})
    assert all((value.numpy() == back[name]).all() for name, value in module.state_dict().items())


def test_one_rule_loads_a_whole_recurrent_module_of_pytorch():
    torch = pytest.importorskip("torch", reason="PyTorch is a reference here; install the parity extra")
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    cells = LSTMCell(3), LSTMCell(3)
    gru = Bidirectional(GRUCell(3), GRUCell(3))
    modules = {
        "LSTM": (torch.nn.LSTM(4, 3, batch_first=True), LSTM(3), ""),
        "GRU": (torch.nn.GRU(4, 3, batch_first=True), GRU(3), ""),
        "RNN": (torch.nn.RNN(4, 3, batch_first=True), Serial(rnn=RNN(3)), "rnn"),
        "two directions": (
            torch.nn.LSTM(4, 3, batch_first=True, bidirectional=True),
            Bidirectional(*cells),
            "",
        ),
        "two layers": (
            torch.nn.LSTM(4, 3, 2, batch_first=True),
            Serial(LSTM(3), LSTM(3)),
            "",
        ),
        "both": (
            torch.nn.GRU(4, 3, 2, batch_first=True, bidirectional=True),
            Serial(encoder=Serial(gru, gru)),
            "encoder/*",
        ),
    }
    for what, (module, net, place) in modules.items():
        tensors = {f"m.{name}": tensor for name, tensor in module.state_dict().items()}
        params = interop.load_torch(net, tensors, {place: "m"}, x)
        expected = module(torch.from_numpy(x))[0].detach().numpy()
        np.testing.assert_allclose(jax.jit(net.apply)(params, x), expected, rtol=1e-5, atol=1e-6, err_msg=what)
        assert interop.match_torch(net, tensors, {place: "m"}, x).ok, what
    lstm = LSTM(3)
    written = interop.save_torch(lstm, lstm.init(jax.random.key(0), x), {"": "m.{leaf}_l0"})
    assert set(written) == {f"m.{name}_l0" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}


def test_one_rate_for_all_and_kinds_of_dropout_that_are_not_here(transformers, tmp_path):
    """``dropout=`` takes the place of all rates, and loads what has a kind of dropout that the net lacks."""
    module = reference(transformers, "GPT2LMHeadModel", vocab_size=32, n_positions=16, n_embd=8, n_layer=1, n_head=2)
    config = module.config.to_dict() | dict(attn_pdrop=0.3)
    assert "attention_dropout=0.3" in repr(interop.build(config)) and "embedding" not in repr(interop.build(config))
    assert "attention_dropout" not in repr(interop.build(config, dropout=0.0))
    sizes = dict(num_stages=1, hidden_sizes=[4], depths=[1], drop_path_rate=0.1)
    module = reference(transformers, "ConvNextModel", **sizes)
    saved(module, tmp_path)
    with pytest.raises(ValueError, match="drop_path_rate to be 0, .* got 0.1; pass dropout=0.0 to load"):
        interop.load(tmp_path)
    net, params, _ = interop.load(tmp_path, dropout=0.0)
    interop.save(tmp_path / "again", net, params, like=tmp_path)
    same_files(tmp_path / "again", tmp_path)
