"""Every field of every configuration of transformers is read or refused, in evaluation and in training.

The fields come from the classes of transformers, so that a field of a new release is tested too. Numbers are changed
all at once, and other fields one at a time; the net of jaxblocks must then have the outputs and the dropout of the
model of transformers, or be refused by a sentence that names the field.
"""

import collections
import copy
import importlib
import inspect
import json
import re
import typing
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxblocks import StatefulLayer, interop, side_inputs
from jaxblocks.interop.families.family import ACTIVATIONS, Config
from jaxblocks.layers.attention import dot_product, scores
from jaxblocks.layers.combinators import unstack_repeats
from tests.interop.test_interop_transformers import (
    DECODER,
    DINO,
    DISTILLED,
    GEMMA2,
    LABELS,
    LLAMA3,
    MIXTRAL,
    MODERN,
    PATCHES,
    ROPE,
    SMALL,
    SMALL_GPT2,
    TOKENS,
    outputs_of,
    reference,
    same_files,
    transformers,
)

__all__ = ["transformers"]  # the fixture

# Their names are those of functions too.
dropout_of_values, convolutions = (importlib.import_module(f"jaxblocks.layers.{name}") for name in ("dropout", "conv"))

IMAGE = np.random.default_rng(1).normal(size=(2, 8, 8, 3)).astype(np.float32)
SOUND = np.random.default_rng(2).normal(size=(2, 12, 3)).astype(np.float32)
first = lambda x: np.moveaxis(x, -1, 1)  # channels before space, as in PyTorch
WORDS = dict(input_ids=TOKENS)
PHI_LONG = ROPE | dict(rope_type="longrope", short_factor=[1.0, 1.5, 2.0, 2.5], long_factor=[1.0, 2.0, 3.0, 4.0])
PAD = int(TOKENS[0, -1])
# A family: the class of its model, the configuration that is changed, the inputs there and here.
# CamemBERT and XLM-RoBERTa run the code of RoBERTa, and the masked model of MPNet that of BERT.
# A part of a pair, and a head that a family shares with others, run the code of the whole and of the others.
FAMILIES = {
    "BertModel": (SMALL, WORDS, (TOKENS,)),
    "BertForMaskedLM": (SMALL, WORDS, (TOKENS,)),
    "BertForSequenceClassification": (SMALL, WORDS, (TOKENS,)),
    "BertForTokenClassification": (SMALL, WORDS, (TOKENS,)),
    "BertForQuestionAnswering": (SMALL, WORDS, (TOKENS,)),
    "RobertaForMaskedLM": (SMALL, WORDS, (TOKENS,)),
    "RobertaForSequenceClassification": (SMALL, WORDS, (TOKENS,)),
    "MPNetModel": (SMALL, WORDS, (TOKENS,)),
    "MPNetForSequenceClassification": (SMALL, WORDS, (TOKENS,)),
    "ElectraModel": (SMALL | dict(embedding_size=6), WORDS, (TOKENS,)),
    "ElectraForPreTraining": (SMALL | dict(embedding_size=6), WORDS, (TOKENS,)),
    "ElectraForMaskedLM": (SMALL | dict(embedding_size=6), WORDS, (TOKENS,)),
    "ElectraForSequenceClassification": (SMALL | dict(embedding_size=6), WORDS, (TOKENS,)),
    "ModernBertModel": (MODERN | dict(num_hidden_layers=2), WORDS, (TOKENS,)),
    "ModernBertForMaskedLM": (MODERN | dict(num_hidden_layers=2), WORDS, (TOKENS,)),
    "ModernBertForSequenceClassification": (MODERN | dict(num_hidden_layers=2), WORDS, (TOKENS,)),
    "DistilBertForMaskedLM": (DISTILLED, WORDS, (TOKENS,)),
    "DistilBertForSequenceClassification": (DISTILLED, WORDS, (TOKENS,)),
    "DistilBertForQuestionAnswering": (DISTILLED, WORDS, (TOKENS,)),
    "GPT2LMHeadModel": (SMALL_GPT2, WORDS, (TOKENS,)),
    "LlamaForCausalLM": (DECODER, WORDS, (TOKENS,)),
    "MistralForCausalLM": (DECODER | dict(sliding_window=3), WORDS, (TOKENS,)),
    "Qwen2ForCausalLM": (
        DECODER | dict(use_sliding_window=True, sliding_window=3, max_window_layers=0),
        WORDS,
        (TOKENS,),
    ),
    "Qwen3ForCausalLM": (
        DECODER | dict(use_sliding_window=True, sliding_window=3, max_window_layers=1, head_dim=8),
        WORDS,
        (TOKENS,),
    ),
    "MixtralForCausalLM": (DECODER | MIXTRAL, WORDS, (TOKENS,)),
    "MistralForTokenClassification": (DECODER | dict(sliding_window=3), WORDS, (TOKENS,)),
    "Qwen2ForQuestionAnswering": (DECODER, WORDS, (TOKENS,)),
    "GPT2ForSequenceClassification": (SMALL_GPT2 | dict(pad_token_id=PAD), WORDS, (TOKENS,)),
    "Olmo2ForCausalLM": (DECODER | dict(pad_token_id=0, eos_token_id=0), WORDS, (TOKENS,)),
    "Gemma2ForCausalLM": (DECODER | GEMMA2, WORDS, (TOKENS,)),
    "Gemma3ForCausalLM": (DECODER | GEMMA2 | dict(sliding_window_pattern=2), WORDS, (TOKENS,)),
    "GemmaForCausalLM": (DECODER | dict(head_dim=8), WORDS, (TOKENS,)),
    "Phi3ForCausalLM": (
        DECODER | dict(hidden_size=32, pad_token_id=0, original_max_position_embeddings=6, rope_parameters=PHI_LONG),
        WORDS,
        (TOKENS,),
    ),
    "ViTForImageClassification": (PATCHES, dict(pixel_values=first(IMAGE)), (IMAGE,)),
    "DeiTForImageClassification": (PATCHES, dict(pixel_values=first(IMAGE)), (IMAGE,)),
    "Dinov2Model": (DINO, dict(pixel_values=first(IMAGE)), (IMAGE,)),
    "Dinov2ForImageClassification": (DINO, dict(pixel_values=first(IMAGE)), (IMAGE,)),
    "ConvNextForImageClassification": (
        dict(num_stages=2, hidden_sizes=[6, 8], depths=[2, 1], image_size=8, patch_size=2) | LABELS,
        dict(pixel_values=first(IMAGE)),
        (IMAGE,),
    ),
    "ResNetForImageClassification": (
        dict(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic") | LABELS,
        dict(pixel_values=first(IMAGE)),
        (IMAGE,),
    ),
    "T5ForConditionalGeneration": (
        dict(vocab_size=32, d_model=8, d_kv=3, d_ff=16, num_layers=2, num_decoder_layers=1, num_heads=2)
        | dict(relative_attention_num_buckets=6, relative_attention_max_distance=5),
        dict(input_ids=TOKENS, decoder_input_ids=TOKENS[:, :4]),
        (TOKENS, TOKENS[:, :4]),
    ),
    "WhisperForConditionalGeneration": (
        dict(encoder_layers=1, decoder_layers=1, encoder_ffn_dim=16, decoder_ffn_dim=16, d_model=8, num_mel_bins=3)
        | dict(encoder_attention_heads=2, decoder_attention_heads=2, max_source_positions=6, max_target_positions=12)
        | dict(vocab_size=32, pad_token_id=0, bos_token_id=0, eos_token_id=0, decoder_start_token_id=1),
        dict(input_features=first(SOUND), decoder_input_ids=TOKENS),
        (SOUND, TOKENS),
    ),
    "CLIPVisionModelWithProjection": (
        dict(intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, hidden_size=6, projection_dim=5)
        | dict(image_size=8, patch_size=4),
        dict(pixel_values=first(IMAGE)),
        (IMAGE,),
    ),
    "SiglipModel": (
        dict(
            text_config=dict(intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, hidden_size=8)
            | dict(vocab_size=32, max_position_embeddings=12, projection_size=6),
            vision_config=dict(intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, hidden_size=6)
            | dict(image_size=8, patch_size=4),
        ),
        dict(input_ids=TOKENS, pixel_values=first(IMAGE)),
        (IMAGE, TOKENS),
    ),
    "CLIPModel": (
        dict(
            projection_dim=5,
            text_config=dict(intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, hidden_size=8)
            | dict(vocab_size=32, max_position_embeddings=12, bos_token_id=0, eos_token_id=31),
            vision_config=dict(intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, hidden_size=6)
            | dict(image_size=8, patch_size=4),
        ),
        dict(input_ids=TOKENS, pixel_values=first(IMAGE)),
        (IMAGE, TOKENS),
    ),
}

# The models of one configuration read it by one function: the first one tries all fields, and the others those that
# their heads read, all at once.
configuration_of = lambda name: re.split("For|Model|LMHead", name)[0]
FIRST = {configuration_of(name): name for name in reversed(FAMILIES)}.values()

YARN = dict(rope_type="yarn", factor=4.0)
LONG = dict(rope_type="longrope", short_factor=[1.0, 1.5], long_factor=[2.0, 4.0])
ROPES = [
    ROPE | dict(rope_theta=50.0),
    ROPE | dict(rope_type="linear", factor=2.0),
    ROPE | dict(rope_type="dynamic", factor=2.0),
    ROPE | LLAMA3 | dict(rope_type="llama3"),
    ROPE | YARN,
    ROPE | YARN | dict(attention_factor=1.5, beta_fast=3.0, beta_slow=0.5),
    ROPE | YARN | dict(mscale=0.5, mscale_all_dim=2.0, original_max_position_embeddings=8),
    ROPE | YARN | dict(truncate=False, beta_fast=3.0, original_max_position_embeddings=16),
    ROPE | LONG | dict(factor=4.0),
    ROPE | LONG | dict(original_max_position_embeddings=4, attention_factor=1.5),
    ROPE | {name: 2 * x if isinstance(x, list) else x for name, x in LONG.items()},
    dict(type="yarn", short_factor=[1.0, 1.5, 2.0, 2.5], long_factor=[1.0, 2.0, 3.0, 4.0]),
    ROPE | dict(partial_rotary_factor=0.5),
]
ROPES_OF_MOST = [ROPES[3] | dict(rope_theta=50.0)]
# The sizes that would be large: all that these dicts omit has the default of transformers, not the value beside them.
TOWER = dict(hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
GRID = TOWER | dict(image_size=8, patch_size=4)
# Spellings of other versions: transformers reads them, though no class declares them.
OLD = {
    "rope_scaling": [dict(type="linear", factor=2.0), ROPES[4]],
    "rope_theta": [50.0],
    "rope_local_base_freq": [50.0],
    "sliding_window_pattern": [3],
    "original_max_position_embeddings": [4, 16],
    "partial_rotary_factor": [0.5],
    "num_labels": [4],
    "classifier_dropout": [0.25],
    "hidden_dropout": [0.35],
    "token_classification_bias": [False],
    "head_dim": [8],
    "text_config_dict": [TOWER | dict(num_attention_heads=4), TOWER | dict(hidden_act="relu")],
    "vision_config_dict": [GRID | dict(num_attention_heads=1), GRID | dict(layer_norm_eps=0.1)],
}
NUMBERS_OF_STATE = (
    "transformers_version",
    "architectures",
    "dtype",
    "label2id",
    "problem_type",
    "id2label",
    "return_dict",
)


def values_for(name, value, annotation, ropes):
    """Other values of a field, admissible or not: the model of transformers decides."""
    from transformers.activations import ACT2FN

    if name in ("rope_parameters", "rope_scaling"):
        return ropes
    if name == "layer_types":
        return [["sliding_attention", "full_attention"], ["full_attention"] * 2, ["sliding_attention"] * 2]
    if name.endswith("token_id"):
        return [0, 31]
    if name == "feed_forward_proj":
        return ["gelu", "gated-gelu", "gated-silu", "gelu_new"]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, str):
        named = [x for each in (annotation, *typing.get_args(annotation)) for x in typing.get_args(each)]
        named = [x for x in named if isinstance(x, str)]
        return ["mish", "relu"] if value in ACT2FN else named or ["other"]
    if isinstance(value, int):
        return [2 * value, value + 1, 0]
    if isinstance(value, float):  # the rates of a configuration differ
        return [0.2 + sum(map(ord, name)) % 97 / 500] if 0 <= value < 0.5 else [2 * value]
    if isinstance(value, list | tuple):
        return [[*value][::-1], [*value][:1] * len(value), [2 * x if isinstance(x, int) else x for x in value]]
    if value is None:
        return [3, 0.25, "gelu", True]
    return []


def changes_of(config_class, base, ropes, inside=()):
    """Pairs of a path of keys in ``config.json``, and a value there."""
    hints = {}
    for parent in reversed(config_class.__mro__):
        hints |= vars(parent).get("__annotations__", {})
    own = config_class(**base)
    declared = {*inspect.signature(config_class.__init__).parameters, *hints, *config_class.attribute_map} - {"self"}
    public = {name for name in declared if not name.startswith("_")} & {*vars(own), *config_class.attribute_map}
    for name in sorted(public - {*NUMBERS_OF_STATE}):
        if name in getattr(config_class, "sub_configs", {}):
            yield from changes_of(config_class.sub_configs[name], base[name], ropes, (name,))
            continue
        value = getattr(own, name)
        for other in values_for(name, value, hints.get(name), ropes):
            if type(other) is not type(value) or other != value:
                yield (*inside, name), other
    if not inside:
        yield from (((name,), value) for name, values in OLD.items() for value in values)


def changed(base, path, value):
    """A configuration with one change. A new spelling that says the same takes the place of the old one."""
    *outer, name = path
    config = json.loads(json.dumps(base))
    inner = config
    for key in outer:
        inner = inner[key]
    inner[name] = json.loads(json.dumps(value))  # transformers changes what it is given
    return config


# ---- dropout ---------------------------------------------------------------------------------


def dropout_there(module, inputs):
    """How often each rate is applied to an array of a shape (its sizes in order), in training without pieces."""
    import torch

    module = copy.deepcopy(module)  # training changes running statistics
    for part in module.modules():
        if hasattr(part, "chunk_size_feed_forward"):
            part.chunk_size_feed_forward = 0
    found, plain = collections.Counter(), torch.nn.functional.dropout

    def record(x, p=0.5, training=True, inplace=False):
        if training and p > 0:
            found[round(p, 6), tuple(sorted(x.shape))] += 1
        return plain(x, p, training, inplace)

    with mock.patch("torch.nn.functional.dropout", record):
        outputs_of(module.train(), **inputs)
    return found


def dropout_here(net, trees, inputs):
    """The same of a net, from a trace without loops."""
    found = collections.Counter()
    values, weights = dropout_of_values._kept, scores._kept

    def record_values(key, x, keep, shared):
        found[round(1 - keep, 6), tuple(sorted(x.shape))] += 1
        return values(key, x, keep, shared)

    def record_weights(key, first, start, shape, rate):
        found[round(rate, 6), tuple(sorted(shape))] += 1
        return weights(key, first, start, shape, rate)

    if "train" not in side_inputs(net):
        return found
    stateful = isinstance(net, StatefulLayer)

    def apply(trees):
        trees = [unstack_repeats(net, tree) for tree in (trees if stateful else (trees,))]
        keyed = {"key": jax.random.key(0)} if "key" in side_inputs(net) else {}
        return net.apply(*trees, *map(jnp.asarray, inputs), train=True, **keyed)

    with (
        mock.patch.object(dropout_of_values, "_kept", record_values),
        mock.patch.object(scores, "_kept", record_weights),
        mock.patch.object(dot_product, "_jitted_parts", dot_product._of_parts),  # equal shapes would be traced once
    ):
        jax.eval_shape(apply, trees)
    return found


# ---- the law ---------------------------------------------------------------------------------


def difference(name, here, there):
    """The largest difference between outputs of the net and of the model, of which outputs up to 1 count as 1."""
    largest = 0.0
    for a, b in compared(name, here, there):
        a, b = np.asarray(a), b.detach().numpy()
        b = b if a.ndim != 4 else np.moveaxis(b, 1, -1)
        off = np.abs(a - b.reshape(a.shape)).max() / max(1.0, np.abs(b).max()) if a.size == b.size else np.inf
        largest = np.maximum(largest, off)
    return largest


def compared(name, here, there):
    """Pairs of outputs of the net and of the model."""
    if name in ("CLIPModel", "SiglipModel"):
        return [(here[0], there.image_embeds), (here[1], there.text_embeds)]
    if name.endswith("QuestionAnswering"):
        return [(here[..., 0], there.start_logits), (here[..., 1], there.end_logits)]
    here = here if isinstance(here, tuple) else (here,)
    return list(zip(here, there.to_tuple(), strict=False))


def evaluated(net, trees, inputs):
    with jax.debug_nans(False), jax.debug_key_reuse(False):
        if isinstance(net, StatefulLayer):
            return jax.jit(net.apply)(*trees, *inputs)[0]
        return jax.jit(net.apply)(trees, *inputs)


class _Model:
    """A model of transformers for ``config.json``, with weights that depend on their shapes alone."""

    def __init__(self, transformers, name, values, inputs):
        config = getattr(transformers, name).config_class.from_dict(values)
        config._attn_implementation = "eager"  # the kernels of the others have dropout inside
        self.module = reference(transformers, name, config=config)
        self.inputs = inputs
        self.outputs = outputs_of(self.module, **inputs)
        self.outputs.to_tuple()  # not admissible without names
        self.dropout = dropout_there(self.module, inputs)

    def shapes(self):
        return tuple((name, *x.shape) for name, x in self.module.named_parameters())


def without_rates(net):
    return re.sub(r", \w*dropout=[\d.]+|\w*dropout=[\d.]+, ", "", repr(net))


def halves(changes):
    middle = len(changes) // 2
    return (changes[:middle], changes[middle:]) if middle else ()


def keys_read(values):
    """The net, and the keys of the configuration that were looked up for it."""
    found, looks = set(), ("get", "__getitem__", "__contains__")

    def recorded(look):
        return lambda config, name, *default: found.add(name) or look(config, name, *default)

    with mock.patch.multiple(Config, create=True, **{look: recorded(getattr(dict, look)) for look in looks}):
        return interop.build(values), found


class _Comparison:
    """Compares one model with its net for changed configurations; ``wrong`` are sentences about the differences."""

    def __init__(self, transformers, name, folder):
        self.transformers, self.name, self.folder = transformers, name, folder
        base, self.inputs, own_inputs = FAMILIES[name]
        self.own_inputs = tuple(map(jnp.asarray, own_inputs))
        self.config_class = getattr(transformers, name).config_class
        start = _Model(transformers, name, self.config_class(**base).to_dict(), self.inputs).module.config
        self.start = json.loads(start.to_json_string(use_diff=False)) | dict(architectures=[name])
        net, self.keys = keys_read(self.start)
        self.net = repr(net)
        self.wrong, self.nets, self.models, self.known, self.params, self.outputs = [], {}, {}, {}, {}, {}

    def built(self, changes):
        """The net with changes, built once, or the error that refuses them."""
        text = json.dumps(self.changed(changes))
        if text not in self.nets:
            try:
                self.nets[text] = interop.build(json.loads(text))
            except ValueError as error:
                self.nets[text] = error
        return self.nets[text]

    def reads(self, change):
        """Whether one change makes another net; ``None`` where it is refused, by a sentence that must name it."""
        path, _ = change
        names = (*path, self.config_class.attribute_map.get(path[-1], path[-1]))
        if not self.keys & {*names}:
            return False
        net = self.built([change])
        if not isinstance(net, ValueError):
            return repr(net) != self.net
        if not any(key in str(net) for key in names) and self.model([change]):
            self.wrong.append(f"{change}: refused without its name: {net}")

    def fields_of_the_head(self):
        """Those in the source of what is around the base model, and the activation, which may be a fixed one there."""
        model = self.model([]).module
        classes = lambda modules: {parent for module in modules for parent in type(module).__mro__}
        kinds = classes(model.modules()) - classes(model.base_model.modules())
        source = "".join(inspect.getsource(kind) for kind in kinds if kind.__module__.startswith("transformers"))
        named = {*re.findall(r'config(?:\.|, ")(\w+)', source), "num_labels", "hidden_act", "activation"}
        alias = self.config_class.attribute_map
        return {alias.get(name, name) for name in named | {"hidden_activation"}} | {"num_labels"}

    def changed(self, changes):
        values = self.start
        for path, value in changes:
            values = changed(values, path, value)
        return values

    def model(self, changes):
        """The model with changes, made once; ``None`` where they are not admissible."""
        text = json.dumps(self.changed(changes))
        if text not in self.models:
            try:
                self.models[text] = _Model(self.transformers, self.name, json.loads(text), self.inputs)
            except Exception:
                self.models[text] = None
        return self.models[text]

    def admitted(self, changes):
        """The changes that both sides admit, in few groups: all at once, or what is left of two halves, joined."""
        if not isinstance(self.built(changes), ValueError) and self.model(changes):
            return [changes]
        groups = []
        for half in halves(changes):
            for group in self.admitted(half):
                joined = groups[-1] + group if groups else []
                if groups and not isinstance(self.built(joined), ValueError) and self.model(joined):
                    groups[-1] = joined
                else:
                    groups.append(group)
        return groups

    def check(self, changes):
        """The changes whose outputs were compared: together, and alone where the others hide them."""
        groups = self.admitted(changes)
        for group in groups:
            net = self.built(group)
            try:
                found = self.difference(net, group)
            except Exception as error:  # a fault of the net, with the change that shows it
                found = f"{type(error).__name__}: {str(error)[:300]}"
            if found:
                before = len(self.wrong)
                for half in halves(group):
                    self.check(half)
                if len(self.wrong) == before:
                    self.wrong.append(f"{group}: {found}")
            # Integers are sizes, which others do not hide.
            for change in [each for each in group if type(each[1]) is not int] if len(group) > 1 else ():
                others = [each for each in group if each is not change]
                if self.reads(change) and repr(self.built(others)) == repr(net):
                    self.check([change])
        return [change for group in groups for change in group]

    def difference(self, net, changes):
        """What differs, in words."""
        model, new = self.model(changes), {path[-1]: value for path, value in changes}
        given, shapes = self.own_inputs, model.shapes()
        if "patch_size" in new:  # what patches do not fill is cut off there, and rejected here
            size = 8 // new["patch_size"] * new["patch_size"]
            given = tuple(x[:, :size, :size] if x.ndim == 4 else x for x in given)
        same = without_rates(net), shapes
        try:  # weights and outputs as before, unless the net has other shapes or names
            trees = self.params[shapes]
            if same not in self.outputs:
                self.outputs[same] = evaluated(net, trees, given)
            off = difference(self.name, self.outputs[same], model.outputs)
        except Exception:
            off = np.inf
        if not off < 1e-5:
            model.module.save_pretrained(self.folder)
            (self.folder / "config.json").write_text(json.dumps(self.changed(changes)))
            loaded = interop.load(self.folder)
            interop.save(self.folder / "again", loaded.net, loaded.params, like=self.folder)
            same_files(self.folder / "again", self.folder)
            trees, _ = loaded.params, self.params.setdefault(shapes, loaded.params)
            self.outputs[same] = evaluated(loaded.net, trees, given)
            off = difference(self.name, self.outputs[same], model.outputs)
        if not off < 1e-5:
            return f"outputs off by {off:.1e}"
        if repr(net) not in self.known:
            self.known[repr(net)] = dropout_here(net, trees, given)
        # In the trace some loops are traced once.
        kind = set if any("layers" in name for name in new) else collections.Counter
        here, there = kind(self.known[repr(net)]), kind(model.dropout)
        if here != there:
            return f"dropout here {dict(here - there)}, there {dict(there - here)}"
        return ""


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_no_field_is_ignored(name, transformers, tmp_path, monkeypatch):
    # One operation for a depthwise convolution; the form of CPUs has some for each entry of a kernel.
    monkeypatch.setattr(convolutions, "platform", lambda: "gpu")
    comparison = _Comparison(transformers, name, tmp_path)
    assert comparison.check([]) == [] and not comparison.wrong, comparison.wrong  # counts what the layers drop
    ropes = ROPES if name.startswith(("Llama", "Phi3", "Gemma3")) else ROPES_OF_MOST
    alias = comparison.config_class.attribute_map
    needed = lambda change: (
        name in FIRST and (type(change[1]) not in (int, float) or change[1] == 0) and comparison.reads(change)
    )
    # Fields without a meaning are compared first: others would hide the effect of one that is ignored.
    inert, read = collections.defaultdict(list), collections.defaultdict(list)
    of_head = None if name in FIRST else comparison.fields_of_the_head()
    for path, value in changes_of(comparison.config_class, FAMILIES[name][0], ropes):
        if of_head and (path[-1] not in of_head or path[-1] in alias):
            continue
        has_meaning = comparison.reads((path, value))
        if has_meaning is not None:
            (read if has_meaning else inert)[*path[:-1], alias.get(path[-1], path[-1])].append((path, value))
    assert read
    for tried in (inert, read):
        while any(tried.values()):
            done = {path for path, _ in comparison.check([changes.pop(0) for changes in tried.values() if changes])}
            for own, changes in tried.items():  # where a value has been compared, not all of the others
                tried[own] = [each for each in changes if each[0] not in done or needed(each)]
    assert not comparison.wrong, "\n".join(comparison.wrong)


def test_activations_are_those_of_transformers(transformers):
    """By all names that both have."""
    import torch
    from transformers.activations import ACT2FN

    x, names = np.linspace(-4, 4, 81, dtype=np.float32), sorted(ACTIVATIONS.keys() & ACT2FN.keys())
    for name, found in zip(names, jax.jit(lambda x: [ACTIVATIONS[one](x) for one in names])(x), strict=True):
        expected = ACT2FN[name](torch.tensor(x)).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, err_msg=name)
