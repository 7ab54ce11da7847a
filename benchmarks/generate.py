"""Generation with a cache: `text.generate` against a scan written by hand, and Hugging Face's where it is installed.

    python benchmarks/generate.py [--rounds 15] [--new 64] [--cpu-time] [part of a name ...]

The net is GPT-2 with features 256, 8 heads and 1,024 tokens; the prompts have 32 tokens. The program by hand is one
jitted function: a pass over the prompt, then a scan over tokens with all layers unrolled and a cache of (batch, heads,
time, features). Its params and those of Hugging Face's ``GPT2LMHeadModel`` (torch, eager) are ours, and greedy texts
are compared first. The calls of a round follow one another; medians of the ratios to the program by hand are printed
with their quartiles, and milliseconds of the program by hand.
"""

import argparse
import functools
import importlib.util
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from timing import chosen, in_turns, ratio

from jaxblocks.models import GPT2
from jaxblocks.text import generate

VOCAB, FEATURES, HEADS, TIME, EPSILON = 1024, 256, 8, 32, 1e-5


def norm(p, x):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + EPSILON) * p["scale"] + p["bias"]


def dense(p, x):
    return x @ p["kernel"] + p["bias"]


def block(p, x, cache, position):
    """A block for the tokens x from position on, and its cache."""
    batch, time, _ = x.shape
    y, own = norm(p["attention_norm"], x), p["attention"]
    q, k, v = (dense(own[n], y).reshape(batch, time, HEADS, -1).swapaxes(1, 2) for n in ("query", "key", "value"))
    keys, values = (lax.dynamic_update_slice(c, x, (0, 0, position, 0)) for c, x in zip(cache, (k, v), strict=True))
    scores = q @ keys.mT / q.shape[-1] ** 0.5
    visible = jnp.arange(keys.shape[2]) <= position + jnp.arange(time)[:, None]
    weights = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), -1)
    x = x + dense(own["out"], (weights @ values).swapaxes(1, 2).reshape(x.shape))
    y = norm(p["mlp_norm"], x)
    return x + dense(p["mlp"]["down"], jax.nn.gelu(dense(p["mlp"]["up"], y))), (keys, values)


def forward(params, blocks, tokens, caches, position):
    """Logits after the last of the tokens, and the caches."""
    places = lax.dynamic_slice_in_dim(params["positions"]["embedding"], position, tokens.shape[1])
    x = params["tokens"]["embedding"][tokens] + places
    after = []
    for own, cache in zip(blocks, caches, strict=True):
        x, cache = block(own, x, cache, position)
        after.append(cache)
    return norm(params["norm"], x[:, -1]) @ params["tokens"]["embedding"].T, after


def pick(logits, key, top_k, top_p):
    """The token drawn from the logits; the likeliest one without a key."""
    if key is None:
        return logits.argmax(-1)
    if top_k is not None:
        logits = jnp.where(logits < lax.top_k(logits, top_k)[0][:, -1:], -jnp.inf, logits)
    if top_p is not None:
        ordered = jnp.sort(logits, -1, descending=True)
        p = jax.nn.softmax(ordered, -1)
        count = (jnp.cumsum(p, -1) - p < top_p).sum(-1, keepdims=True)
        logits = jnp.where(logits < jnp.take_along_axis(ordered, count - 1, -1), -jnp.inf, logits)
    return jax.random.categorical(key, logits)


@functools.partial(jax.jit, static_argnames=("layers", "new", "top_k"))
def by_hand(params, prompts, key, *, layers, new, top_k=None, top_p=None):
    batch, time = prompts.shape
    blocks = [jax.tree.map(lambda a, i=i: a[i], params["blocks"]) for i in range(layers)]
    empty = jnp.zeros((batch, HEADS, time + new, FEATURES // HEADS))
    logits, caches = forward(params, blocks, prompts, [(empty, empty)] * layers, 0)
    at = lambda t: None if key is None else jax.random.fold_in(key, t)
    first = pick(logits, at(time), top_k, top_p)

    def step(carry, t):
        token, caches = carry
        logits, caches = forward(params, blocks, token[:, None], caches, t)
        token = pick(logits, at(t + 1), top_k, top_p)
        return (token, caches), token

    _, drawn = lax.scan(step, (first, caches), time + jnp.arange(new - 1))
    return jnp.concatenate([prompts, first[:, None], drawn.T], -1)


def hugging_face(params, layers):
    """The same model in torch."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCAB, n_positions=1024, n_embd=FEATURES, n_layer=layers, n_head=HEADS, eos_token_id=None
    )
    model = GPT2LMHeadModel(config).eval()
    to = lambda x: torch.tensor(np.asarray(x))
    state = {
        "transformer.wte.weight": to(params["tokens"]["embedding"]),
        "transformer.wpe.weight": to(params["positions"]["embedding"]),
        "transformer.ln_f.weight": to(params["norm"]["scale"]),
        "transformer.ln_f.bias": to(params["norm"]["bias"]),
    }
    for i in range(layers):
        p, at = jax.tree.map(lambda a, i=i: np.asarray(a[i]), params["blocks"]), f"transformer.h.{i}."
        qkv = [p["attention"][name] for name in ("query", "key", "value")]
        state |= {
            f"{at}ln_1.weight": to(p["attention_norm"]["scale"]),
            f"{at}ln_1.bias": to(p["attention_norm"]["bias"]),
            f"{at}ln_2.weight": to(p["mlp_norm"]["scale"]),
            f"{at}ln_2.bias": to(p["mlp_norm"]["bias"]),
            f"{at}attn.c_attn.weight": to(np.concatenate([one["kernel"] for one in qkv], 1)),
            f"{at}attn.c_attn.bias": to(np.concatenate([one["bias"] for one in qkv])),
            f"{at}attn.c_proj.weight": to(p["attention"]["out"]["kernel"]),
            f"{at}attn.c_proj.bias": to(p["attention"]["out"]["bias"]),
            f"{at}mlp.c_fc.weight": to(p["mlp"]["up"]["kernel"]),
            f"{at}mlp.c_fc.bias": to(p["mlp"]["up"]["bias"]),
            f"{at}mlp.c_proj.weight": to(p["mlp"]["down"]["kernel"]),
            f"{at}mlp.c_proj.bias": to(p["mlp"]["down"]["bias"]),
        }
    model.load_state_dict(state, strict=False)
    return model


def row(layers, batch, new, options, rounds, clock):
    """Seconds of each program in each round."""
    sizes = dict(vocab_size=VOCAB, max_length=1024, layers=layers, heads=HEADS, features=FEATURES, dropout=0.0)
    prompts = jax.random.randint(jax.random.key(1), (batch, TIME), 0, VOCAB)
    params = jax.jit(GPT2(**sizes).init)(jax.random.key(0), prompts)
    params = jax.tree.map(lambda x: 3 * x if x.ndim > 2 else x, params)  # texts that do not repeat one token
    model, key, greedy = GPT2(**sizes, cache=TIME + new), jax.random.key(2), options == {"temperature": 0}
    own = {name: value for name, value in options.items() if name != "temperature"}
    calls = {
        "jaxblocks": lambda: generate(model, params, prompts, key=key, steps=new, **options),
        "by hand": lambda: by_hand(params, prompts, None if greedy else key, layers=layers, new=new, **own),
    }
    np.testing.assert_array_equal(calls["jaxblocks"](), calls["by hand"]())
    if importlib.util.find_spec("transformers") is not None:
        import torch

        other, tokens = hugging_face(params, layers), torch.tensor(np.asarray(prompts))
        draw = dict(do_sample=not greedy, max_new_tokens=new, min_new_tokens=new, pad_token_id=0)
        draw |= {} if greedy else {"top_k": own.get("top_k", 0), "top_p": own.get("top_p", 1.0)}
        mask = torch.ones_like(tokens)

        def torch_generate():
            with torch.inference_mode():
                return other.generate(tokens, attention_mask=mask, **draw).numpy()

        if greedy:
            np.testing.assert_array_equal(calls["by hand"](), torch_generate())
        calls["Hugging Face"] = torch_generate
    return in_turns(calls, rounds=rounds, clock=clock)


GREEDY, SAMPLED = {"temperature": 0}, {}
ROWS = {
    f"{layers} layer{'s' * (layers > 1)}, batch {batch}, {name}": (layers, batch, options)
    for layers in (4, 1)
    for batch in (1, 4, 8)
    for name, options in (("greedy", GREEDY), ("sampled", SAMPLED))
} | {
    "4 layers, batch 4, top-k": (4, 4, {"top_k": 40}),
    "4 layers, batch 4, top-p": (4, 4, {"top_p": 0.9}),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--cpu-time", action="store_true", help="compare processor time, for a machine that is busy")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    clock = time.process_time if options.cpu_time else time.perf_counter
    for name in chosen(ROWS, options.names):
        layers, batch, own = ROWS[name]
        seconds = row(layers, batch, options.new, own, options.rounds, clock)
        line = f"{name:28s} by hand {1e3 * np.median(seconds['by hand']):6.1f} ms"
        for other in [one for one in seconds if one != "by hand"]:
            middle, low, high = ratio(seconds, other, "by hand")
            line += f" | {other} {middle:.2f} ({low:.2f} to {high:.2f})"
        print(line, flush=True)


if __name__ == "__main__":
    main()
