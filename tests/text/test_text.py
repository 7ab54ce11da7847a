"""Text: tokenizers, code lengths, truncation by its definition, and generation with and without cache."""

import functools
import inspect
import itertools
import math
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import for_each
from compiled import compiled

from jaxblocks import GRU, Attention, CachedAttention, Dense, Embedding, Layer, Serial, StatefulLayer
from jaxblocks.layers import rotary
from jaxblocks.models.gpt2 import GPT2
from jaxblocks.models.llama import Llama
from jaxblocks.models.recurrent_lm import RecurrentLM
from jaxblocks.models.transformer import Transformer
from jaxblocks.text import (
    ByteTokenizer,
    CharTokenizer,
    beam_search,
    beams,
    bits_per_token,
    generate,
    generation,
    pad_prompts,
    prompts,
    stream,
    truncate_logits,
)

# ---- tokens ----------------------------------------------------------------------------------


TEXTS = ["a", "to be, or not to be\n", "\x00\x7f\x80\xff", "Gödel, Кант, 数学, \ufffd", "😀e\u0301\U0010ffff" * 3]


@for_each({repr(text): text for text in ("", *TEXTS)})
def test_all_texts_can_be_encoded_as_bytes(text):
    """Encoding is UTF-8, and decoding inverts it."""
    tokens = ByteTokenizer().encode(text)
    assert tokens.dtype == np.int32 and tokens.tolist() == list(text.encode())
    assert ByteTokenizer().decode(tokens) == text


@for_each({repr(text): text for text in TEXTS})
def test_characters_are_numbered_by_code_point(text):
    """Includes NUL and characters outside of the basic plane; the symbols reconstruct the tokenizer."""
    tokenizer = CharTokenizer(text)
    order = sorted(set(text))
    assert tokenizer.symbols == "".join(order) and tokenizer.vocab_size == len(order)
    assert tokenizer.encode(text).tolist() == [order.index(c) for c in text]
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert CharTokenizer(tokenizer.symbols).encode(text).tolist() == tokenizer.encode(text).tolist()


def test_error_names_unknown_symbols_and_their_position():
    tokenizer = CharTokenizer("hello world")
    with pytest.raises(
        ValueError, match=r"the 8 symbols of the tokenizer, got 'x' at position 6 after 'hello '; remove or rep"
    ):
        tokenizer.encode("hello xylophone")
    assert tokenizer.encode("hello y".replace("y", "w")).size == 7  # the repairs: replace it,
    assert CharTokenizer("hello world" + "x").encode("hello x").size == 7  # build the tokenizer from more text,
    assert ByteTokenizer().encode("hello xylophone").size == 15  # or use bytes
    with pytest.raises(
        ValueError, match=r"characters that UTF-8 can encode, got '\\ud800' at position 1 after 'a'; remove the"
    ):
        ByteTokenizer().encode("a\ud800")
    with pytest.raises(
        ValueError, match="CharTokenizer expected a text that contains each symbol at least once, got ''; pass"
    ):
        CharTokenizer("")
    with pytest.raises(TypeError, match="expected a string to encode, got a list; call encode for each text"):
        tokenizer.encode(["h"])
    assert tokenizer.encode("").shape == (0,) and tokenizer.decode([]) == ""


def test_decoding():
    tokenizer = CharTokenizer("abc")
    assert tokenizer.decode(jnp.array([[0, 1], [2, 2]])) == ["ab", "cc"]
    assert ByteTokenizer().decode(np.array([97, 255])) == "a\ufffd"
    with pytest.raises(ValueError, match=r"^CharTokenizer expected tokens from 0 to 2, got 3 at position \(1, 0\)"):
        tokenizer.decode([[0, 1], [3, 0]])
    with pytest.raises(ValueError, match="^ByteTokenizer expected tokens from 0 to 255, got -1 at position 1"):
        ByteTokenizer().decode([0, -1])
    with pytest.raises(TypeError, match=r"expected integers \(time,\), got float"):
        tokenizer.decode([0.5])
    rows = [[0], [1, 2]]
    with pytest.raises(ValueError, match=r"expected rows of one length, got rows of several lengths; write \[token"):
        tokenizer.decode(rows)
    assert [tokenizer.decode(row) for row in rows] == ["a", "bc"]


def test_padding_of_prompts(sentences):
    prompts, lengths = pad_prompts([np.array([5, 6, 7]), np.array([8])])
    assert prompts.tolist() == [[5, 6, 7], [8, 0, 0]] and lengths.tolist() == [3, 1]
    with pytest.raises(ValueError, match="at least one prompt"):
        pad_prompts([])
    with pytest.raises(
        ValueError, match="pad_prompts expected prompts of integers .*, got .* for prompt 1; encode each text"
    ):
        pad_prompts([np.array([1]), np.array("a")])


# ---- bits ------------------------------------------------------------------------------------


def test_bits_are_minus_log2_of_the_probability(sentences):
    logits = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32) * 3
    tokens = np.random.default_rng(1).integers(0, 5, (3, 4)).astype(np.int32)
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = [[-np.log2(p[i, j, tokens[i, j]]) for j in range(4)] for i in range(3)]
    np.testing.assert_allclose(bits_per_token(jnp.asarray(logits), jnp.asarray(tokens)), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="logits .* and tokens .* with the same size|with the same"):
        bits_per_token(jnp.asarray(logits), jnp.asarray(tokens[:, 1:]))
    with pytest.raises(TypeError, match="bits_per_token expected tokens to be an integer array"):
        bits_per_token(jnp.asarray(logits), jnp.asarray(tokens, jnp.float32))
    with pytest.raises(ValueError, match="bits_per_token expected tokens from 0 to 4, got tokens from 0 to 5; encode"):
        bits_per_token(jnp.zeros((2, 5)), jnp.array([0, 5]))
    with jax.debug_nans(False):
        cost = jax.jit(bits_per_token)(jnp.zeros((3, 5)), jnp.array([0, 5, -1]))
    assert np.isnan(cost).tolist() == [False, True, True]


# ---- truncation -----------------------------------------------------------------------


def kept_by_definition(p, top_k, top_p):
    """The kept tokens, from sorted lists."""
    top_p = None if top_p == 1 else top_p  # all tokens, also those below the rounding of the sum
    order = sorted(range(len(p)), key=lambda i: -p[i])[: top_k or len(p)]
    if top_p is not None:
        total, mass, fewest = sum(p[i] for i in order), 0.0, []
        for i in order:
            fewest.append(i)
            mass += p[i] / total
            if mass >= top_p:
                break
        order = fewest
    return set(order)


def test_truncation_follows_its_definition():
    rows = np.random.default_rng(0).dirichlet(np.full(9, 0.5), 20)
    options = [(None, None), (1, None), (9, 0.93), (4, 0.5), (4, 0.93), (None, 1e-6), (None, 0.93), (None, 1.0)]
    every = jax.jit(lambda logits: [truncate_logits(logits, top_k=top_k, top_p=top_p) for top_k, top_p in options])
    for (top_k, top_p), got in zip(options, every(np.log(rows.astype(np.float32))), strict=True):
        for row, logits in zip(rows, np.asarray(got), strict=True):
            assert set(np.flatnonzero(logits > -np.inf)) == kept_by_definition(row, top_k, top_p)
            np.testing.assert_allclose(logits[logits > -np.inf], np.log(row)[logits > -np.inf], rtol=1e-5)


def test_top_p_of_one_keeps_tokens_below_the_rounding_of_the_sum():
    logits = np.array([0.0, -20.0, -30.0, -np.inf], np.float32)
    for top_p in (1, 1.0, jnp.float32(1)):
        np.testing.assert_array_equal(compiled(truncate_logits)(logits, top_p=top_p), logits)


def test_top_k_keeps_all_tokens_of_equal_probability(sentences):
    logits = np.array([1.0, 0.0, 1.0, 1.0], np.float32)
    assert (np.asarray(compiled(truncate_logits)(logits, top_k=2)) > -np.inf).tolist() == [True, False, True, True]
    with pytest.raises(ValueError, match="top_k to be at most 4, the vocabulary size, got 5; omit it"):
        truncate_logits(logits, top_k=5)
    for top_p in (0.0, 1.1):
        with pytest.raises(ValueError, match=r"top_p to be a number > 0 and <= 1"):
            truncate_logits(logits, top_p=top_p)
    compiled(truncate_logits)(logits, top_p=1)
    with pytest.raises(
        ValueError, match=r"truncate_logits expected logits of at least one token, got float32 \(2, 0\)"
    ):
        truncate_logits(jnp.ones((2, 0)), top_p=0.5)


def test_traced_shares_out_of_range_keep_the_likeliest_token():
    """Under jit they are not checked; without any token, sampling would take the first one."""
    truncated = jax.jit(lambda top_p, min_p: truncate_logits(jnp.array([1.0, 3.0, 2.0]), top_p=top_p, min_p=min_p))
    for top_p, min_p in ((0.0, 0.0), (-1.0, 0.0), (1.0, 1.5)):
        np.testing.assert_array_equal(truncated(top_p, min_p), [-np.inf, 3, -np.inf])


def test_top_p_keeps_the_first_of_equal_tokens_and_min_p_those_near_the_likeliest(sentences):
    p = np.array([[0.1, 0.2, 0.2, 0.3, 0.2], [0.2, 0.2, 0.2, 0.2, 0.2]], np.float32)
    kept = lambda **options: (np.asarray(compiled(truncate_logits)(np.log(p), **options)) > -np.inf).tolist()
    assert kept(top_p=0.6) == [[False, True, True, True, False], [True, True, True, False, False]]
    for least in (0.0, 0.5, 0.69, 1.0):
        assert kept(min_p=least) == (p >= least * p.max(-1, keepdims=True)).tolist()
    signed = np.array([-3.0, -np.inf, 2.0, -1.0, 0.0, -0.0], np.float32)
    with jax.debug_nans(False):
        four, one = jax.jit(lambda x: (truncate_logits(x, top_k=4), truncate_logits(jnp.bfloat16(x), top_k=1)))(signed)
    assert (np.asarray(four) > -np.inf).tolist() == [False, False, True, True, True, True]
    assert (np.float32(one) > -np.inf).sum() == 1
    with pytest.raises(ValueError, match=r"min_p to be a number >= 0 and <= 1.*, got 1.5"):
        truncate_logits(signed, min_p=1.5)


# ---- generation ------------------------------------------------------------------------------


def one_attention(cache=None, vocab_size=13):
    """The smallest model with a cache, of which most tests generate."""
    layer = Attention(2, causal=True, positions=rotary)
    layer = layer if cache is None else CachedAttention(layer, cache)
    return Serial(tokens=Embedding(vocab_size, 8), attention=layer, out=Dense(vocab_size))


SIZES = dict(vocab_size=13, heads=2, features=8)
OF_GPT2, OF_LLAMA = SIZES | dict(layers=1, max_length=20), SIZES | dict(layers=2, kv_heads=1, hidden=12)
MODELS = {
    "GPT2": (GPT2(**OF_GPT2), GPT2(**OF_GPT2, cache=18)),
    "Llama": (Llama(**OF_LLAMA), Llama(**OF_LLAMA, cache=18)),
    "attention": (one_attention(), one_attention(18)),
    "RecurrentLM": (
        RecurrentLM(vocab_size=13, features=8),
        RecurrentLM(vocab_size=13, features=8, stateful=True),
    ),
    "GRU in a tuple": tuple(Serial(Embedding(13, 8), GRU(8, stateful=kept), Dense(13)) for kept in (False, True)),
}
PROMPTS = np.random.default_rng(0).integers(0, 13, (3, 6)).astype(np.int32)
LENGTHS = np.array([6, 1, 4], np.int32)
# The program of a model is compiled once for all tests with these options.
SAMPLED = dict(steps=8, temperature=1.3, top_k=9, top_p=0.95, min_p=0.05, stop=12)


def confident(net, *inputs, deviation=4):
    """Params with large logits, so that samples depend on the prompt; drawn by NumPy, since `init` compiles long."""
    rng = np.random.default_rng(5)
    shapes = jax.eval_shape(net.init, jax.random.key(5), *inputs)

    def made(path, x):
        if x.ndim > 1 and x.shape[-2] > 2:
            return rng.normal(0, deviation / math.sqrt(x.shape[-1]), x.shape).astype(np.float32)
        return np.full(x.shape, "scale" in str(path[-1]), np.float32)

    return jax.tree_util.tree_map_with_path(made, shapes)


def by_hand(logits_of, prompts, lengths, steps, stop=None):
    """Greedy generation without cache: for each row, append the most probable token to the text."""
    rows = []
    for prompt, n in zip(prompts, lengths, strict=True):
        text = list(prompt[:n])
        while len(text) < len(prompt) + steps:
            if stop is not None and len(text) > n and text[-1] == stop:
                text.append(stop)
            else:
                text.append(int(np.argmax(logits_of(np.array(text + [0] * (30 - len(text)), np.int32))[len(text) - 1])))
        rows.append(text)
    return np.array(rows)


@pytest.mark.parametrize("name", ["Llama", "RecurrentLM", "GRU in a tuple"])
def test_generation_is_the_same_with_and_without_cache(name):
    """Equal tokens, sampled with one key, for prompts of several lengths; those of RecurrentLM have one."""
    plain, cached = MODELS[name]
    params, lengths = confident(plain, PROMPTS), None if name == "RecurrentLM" else LENGTHS
    draw = dict(lengths=lengths, key=jax.random.key(3), **SAMPLED)
    one, other = (np.asarray(generate(net, params, PROMPTS, **draw)) for net in (plain, cached))
    np.testing.assert_array_equal(one, other)
    assert one.shape == (3, 14) and one.dtype == np.int32
    for row, prompt, n in zip(one, PROMPTS, [6] * 3 if lengths is None else lengths, strict=True):
        np.testing.assert_array_equal(row[:n], prompt[:n])


def test_greedy_generation_matches_the_reference():
    """Without cache; with cache and a stop token; and for a single prompt without batch axis."""
    net, cached = MODELS["attention"]
    params = confident(net, PROMPTS, deviation=2)
    logits_of = jax.jit(lambda text: net.apply(params, text))
    draw = dict(steps=8, temperature=0)  # without a key
    expected = by_hand(logits_of, PROMPTS, LENGTHS, 8)
    padded = np.where(np.arange(6) < LENGTHS[:, None], PROMPTS, -7)  # values of the padding are not used
    np.testing.assert_array_equal(generate(net, params, padded, lengths=LENGTHS, **draw), expected)
    stop = int(expected[2, 7])  # generated in the reference, and also present in prompts
    prompts = PROMPTS.copy()
    prompts[0, 0] = stop
    stopped = np.asarray(
        generate(cached, params, np.where(padded < 0, -7, prompts), lengths=LENGTHS, stop=stop, **draw)
    )
    np.testing.assert_array_equal(stopped, by_hand(logits_of, prompts, LENGTHS, 8, stop))
    assert (stopped[2, 7:] == stop).all() and (stopped[0, 1:6] == prompts[0, 1:]).all()
    alone = generate(cached, params, PROMPTS[2, :4], **draw | {"steps": 10})  # no batch axis
    np.testing.assert_array_equal(alone, expected[2])


# The next token depends on the last one only, by the params, a table of logits.
TABLE = Layer(lambda key, tokens: (), lambda table, tokens: table.at[tokens].get(mode="fill", fill_value=jnp.nan))


def test_samples_have_the_requested_probabilities():
    """Frequencies of 5,000 samples against p^(1 / temperature), also truncated by top-k and top-p."""
    p = np.array([0.5, 0.25, 0.15, 0.08, 0.02])
    table = np.float32(np.log(np.tile(p, (5, 1))))
    prompts = np.zeros((5_000, 1), np.int32)
    for options, weights in (
        (dict(), p),
        (dict(temperature=2.0, top_k=3), np.sqrt(p) * [1, 1, 1, 0, 0]),
        (dict(temperature=2.0, top_p=0.7), np.sqrt(p) * [1, 1, 1, 0, 0]),  # without the temperature two suffice
        (dict(top_k=4, top_p=0.76), p * [1, 1, 0, 0, 0]),  # 0.75 out of 0.98 is sufficient
    ):
        drawn = generate(TABLE, table, prompts, key=jax.random.key(7), steps=1, **options)[:, 1]
        frequency = np.bincount(drawn, minlength=5) / len(drawn)
        expected = weights / weights.sum()
        assert np.all(np.abs(frequency - expected) <= 4 * np.sqrt(expected * (1 - expected) / len(drawn))), options


def test_samples_are_the_same_where_64_bits_are_enabled():
    """The logits keep their dtype beside numbers of Python."""
    table = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
    draw = functools.partial(generate, TABLE, table, np.int32([1, 2]), key=jax.random.key(0), steps=9)
    options = dict(temperature=0.7, top_p=0.9, repetition_penalty=1.1, stop=3)
    expected = draw(**options)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(draw(**options), expected)


def test_samples_differ_between_rows_steps_and_keys():
    table = np.zeros((50, 50), np.float32)
    a, b = (
        np.asarray(generate(TABLE, table, np.zeros((2, 1), np.int32), key=jax.random.key(seed), steps=20)[:, 1:])
        for seed in (0, 1)
    )
    assert len({tuple(row) for row in (*a, *b)}) == 4
    assert len(set(a[0].tolist())) > 5


def test_predictions_inside_of_a_prompt_are_not_drawn():
    """The model predicts the stop token 1 after the first token, which ends the shorter prompt only."""
    table = np.eye(4, dtype=np.float32)[[1, 2, 3, 2]]
    prompts, lengths = np.array([[0, 3, 3], [0, 0, 0]], np.int32), np.array([3, 1], np.int32)
    options = dict(key=jax.random.key(0), steps=2, lengths=lengths, stop=1)
    found = generate(TABLE, table, prompts, temperature=0, **options)
    np.testing.assert_array_equal(found, [[0, 3, 3, 2, 3], [0, 1, 1, 1, 1]])


def test_the_coldest_temperatures_take_the_likeliest_token():
    """Also where logits divided by them leave the range of float32, known and traced."""
    table, prompts = np.float32([[5, 10, 1, -3]] * 4), np.zeros((1, 1), np.int32)
    options = dict(key=jax.random.key(0), steps=3, top_p=0.5)
    draw = lambda temperature: generate(TABLE, table, prompts, temperature=temperature, **options)
    draw_without_key = lambda temperature: generate(TABLE, table, prompts, steps=1, temperature=temperature)
    for temperature in (1e-30, 1e-38, 1e-45, 0.0):
        for found in (draw(temperature), jax.jit(draw)(np.float32(temperature))):
            np.testing.assert_array_equal(found, [[0, 1, 1, 1]])
    np.testing.assert_array_equal(jax.jit(draw)(np.float16(0)), [[0, 1, 1, 1]])
    assert [int(token[0]) for token in stream(TABLE, table, prompts, steps=2, temperature=0.0)] == [1, 1]
    for wrong in (lambda: generate(TABLE, table, prompts, steps=1), lambda: jax.jit(draw_without_key)(0.0)):
        with pytest.raises(TypeError, match="the argument key, got none; write key=.*, or temperature=0 for the likel"):
            wrong()


def test_encoder_decoder_generates_with_and_without_cache():
    sizes = dict(vocab_size=13, layers=1, heads=2, features=8, hidden=12)
    plain, cached = Transformer(**sizes), Transformer(**sizes, cache=10)
    source = np.random.default_rng(1).integers(0, 13, (3, 5)).astype(np.int32)
    params = confident(plain, source, PROMPTS)
    draw = dict(lengths=np.array([2, 1, 1]), key=jax.random.key(3), steps=6)
    both = [generate(net, params, PROMPTS[:, :2], source=source, **draw) for net in (plain, cached)]
    np.testing.assert_array_equal(*both)
    other = generate(cached, params, PROMPTS[:, :2], source=source[::-1], **draw)
    assert (np.asarray(other) != np.asarray(both[1])).any()
    prompts, number = PROMPTS[:, :2], dict(steps=6, beams=3)
    best = [beam_search(net, params, prompts, source=source, **number) for net in (plain, cached)]
    np.testing.assert_array_equal(*best)  # candidates change places in the cache


def beams_by_hand(table, first, steps, k, stop, early_stopping=False):
    """The best text of a search with k beams in lists of Python; scores are divided by the number of tokens."""
    going, results, is_open = [(0.0, (first,))], [], True
    for n in range(1, steps + 1):
        grown = [(s + np.log(table[t[-1], j]), (*t, j)) for s, t in going for j in range(len(table))] if is_open else []
        grown = sorted(grown, reverse=True)[: 2 * k]
        ends = [text[-1] == stop or n == steps for _, text in grown]
        results += [(s / n, text) for (s, text), over in zip(grown[:k], ends, strict=False) if over]
        results = sorted(results, reverse=True)[:k]
        going = [one for one, over in zip(grown, ends, strict=True) if not over][:k]
        is_open = bool(going) and (len(results) < k or going[0][0] / n > results[-1][0])
        is_open = is_open and not (early_stopping and len(results) == k)
    return results[0][1]


def test_beam_search_goes_on_while_a_candidate_is_better_for_its_length():
    """For the last table the best text is found only if the candidates are compared with the results by length."""
    for seed in (0, 1, 4):
        table = np.random.default_rng(seed).dirichlet(np.ones(3), 3)
        found = beam_search(TABLE, np.float32(np.log(table)), np.zeros((1, 1), np.int32), steps=4, beams=2, stop=2)
        best = beams_by_hand(table, 0, 4, 2, 2)
        assert np.asarray(found)[0].tolist() == [*best, *[2] * (5 - len(best))]
    assert best == (0, 0, 0, 0, 0)


def test_a_text_is_a_result_only_if_it_is_among_the_best_candidates():
    """With early stopping, worse ones that end would fill the list of results too soon for each of these tables."""
    for seed in (13, 18):
        table = np.random.default_rng(seed).dirichlet(np.ones(4), 4)
        options = dict(steps=4, beams=2, stop=3, early_stopping=True)
        found = beam_search(TABLE, np.float32(np.log(table)), np.zeros((1, 1), np.int32), **options)
        best = beams_by_hand(table, 0, 4, 2, 3, early_stopping=True)
        assert np.asarray(found)[0].tolist() == [*best, *[3] * (5 - len(best))]
        assert best != beams_by_hand(table, 0, 4, 2, 3)


def test_beam_search_with_all_candidates_finds_the_likeliest_text(sentences):
    """All 27 texts of three tokens, of which those with token 2 end there; scores are divided by the length."""
    table = np.random.default_rng(5).dirichlet(np.ones(3), 3)
    texts = {(t[: t.index(2) + 1] if 2 in t else t) for t in itertools.product(range(3), repeat=3)}

    def score(first, text, penalty):
        return sum(np.log(table[i, j]) for i, j in itertools.pairwise((first, *text))) / len(text) ** penalty

    logits = np.float32(np.log(table))
    prompts = np.array([[1, 0], [0, 1]], np.int32)
    for penalty in (1.0, 0.0):
        found = beam_search(TABLE, logits, prompts, steps=3, beams=27, stop=2, length_penalty=penalty)
        for prompt, row in zip(prompts, np.asarray(found), strict=True):
            best = max(texts, key=lambda text: score(prompt[-1], text, penalty))
            assert row.tolist() == [*prompt, *best, *[2] * (3 - len(best))]
    with pytest.raises(ValueError, match="beam_search expected stop to be a token of the model, 0, ..., 2, got 3"):
        beam_search(TABLE, logits, prompts, steps=3, stop=3)
    with pytest.raises(ValueError, match="expected source_mask with a source, got a mask alone; pass source= too"):
        beam_search(TABLE, logits, prompts, steps=3, source_mask=np.ones((2, 4), bool))
    unknown = np.full_like(table, np.nan, dtype=np.float32)
    with pytest.raises(ValueError, match="beam_search expected finite logits, got NaN from position 2 on in 2 of"):
        beam_search(TABLE, unknown, prompts, steps=3)
    for undefined in (np.nan, -np.inf):  # of a processor: no token can be chosen
        processors = (lambda log_probs, tokens, t, undefined=undefined: jnp.full_like(log_probs, undefined),)
        with pytest.raises(ValueError, match=r"beam_search expected finite logits, got NaN .* -inf for all tokens"):
            beam_search(TABLE, logits, prompts, steps=3, processors=processors)
    assert beam_search(TABLE, logits, prompts[:0], steps=3).shape == (0, 5)


def test_second_call_compiles_nothing():
    """Prompts, keys, temperatures, top-p and stop tokens are traced arguments: the model is not retraced."""
    traced = []
    table = jnp.log(jnp.asarray(np.random.default_rng(0).dirichlet(np.ones(5), 5), jnp.float32))

    def apply(params, tokens):
        traced.append(tokens.shape)
        return table.at[tokens].get(mode="fill", fill_value=jnp.nan)

    model = Layer(lambda key, tokens: (), apply)
    options = dict(steps=3, lengths=np.array([2, 1]), top_k=3)
    prompts = np.zeros((2, 2), np.int32)
    generate(model, (), prompts, key=jax.random.key(0), temperature=0.7, top_p=0.9, stop=1, **options)
    before = len(traced)
    generate(model, (), prompts + 1, key=jax.random.key(1), temperature=1, top_p=0.5, stop=2, **options)
    assert len(traced) == before


def test_other_lengths_compile_nothing():
    """Prompts of other lengths are padded to one length, which does not change the texts."""
    traced = []
    plain, model = MODELS["attention"]
    params = confident(plain, PROMPTS, deviation=2)

    def apply(params, state, tokens):
        traced.append(tokens.shape)
        return model.apply(params, state, tokens)

    counted = StatefulLayer(model.init, apply)
    draw = dict(key=jax.random.key(3), steps=3)
    write = lambda time, **options: generate(counted, params, PROMPTS[:, :time], **draw, **options)
    write(6, bucket=8)
    before = len(traced)
    text = write(5, bucket=8)
    assert {(3, 8), (3, 1)} <= set(traced)
    assert set(traced[before:]) <= {(3, 8), (3, 4)}  # the shapes of the check of the room, whose last one is new
    np.testing.assert_array_equal(text, write(5, bucket=1))


def test_repetition_penalty_and_processors_follow_their_definition():
    """Greedy texts of a table of logits against a loop in NumPy, also for prompts of different lengths."""
    table = np.random.default_rng(2).normal(size=(7, 7)).astype(np.float32)
    prompts, lengths = np.array([[0, 3, 1], [2, 0, 0]]), np.array([3, 1])

    def forbid_even(logits, tokens, t):
        return jnp.where((t % 3 == 0) & (jnp.arange(7) % 2 == 0), -jnp.inf, logits)

    for penalty in (1.0, 3.0):
        expected = []
        for prompt, n in zip(prompts, lengths, strict=True):
            text = list(prompt[:n])
            while len(text) < 9:
                z = table[text[-1]].copy()
                for token in set(text):
                    z[token] = z[token] / penalty if z[token] > 0 else z[token] * penalty
                if len(text) % 3 == 0:
                    z[::2] = -np.inf
                text.append(int(z.argmax()))
            expected.append(text)
        options = dict(temperature=0, repetition_penalty=penalty, processors=(forbid_even,), lengths=lengths)
        found = generate(TABLE, table, prompts, key=jax.random.key(0), steps=6, **options)
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(ValueError, match=r"processors to return logits \(2, 7\), got int32 \(\); write f\(logits"):
        generate(TABLE, table, prompts, key=jax.random.key(0), steps=1, processors=(lambda z, tokens, t: t,))


def test_processors_force_a_token_and_exclude_tokens_at_every_temperature():
    """A logit of +inf has the probability 1; one of -inf is never drawn."""
    table, prompts = np.random.default_rng(3).normal(size=(5, 5)).astype(np.float32), np.array([[0, 1], [2, 3]])
    force = lambda logits, tokens, t: jnp.where((t == 3) & (jnp.arange(5) == 4), jnp.inf, logits)
    exclude = lambda logits, tokens, t: jnp.where(jnp.arange(5) == 2, -jnp.inf, logits)
    for options in (dict(temperature=0), dict(top_p=0.9), dict(temperature=0.5, top_k=3, top_p=0.5, min_p=0.1)):
        options |= dict(key=jax.random.key(0), steps=4)
        plain = generate(TABLE, table, prompts, **options)
        found = np.asarray(generate(TABLE, table, prompts, processors=(force,), **options))
        assert (found[:, 3] == 4).all() and (found[:, 2] == plain[:, 2]).all() and (found[:, 4:] >= 0).all()
    found = np.asarray(beam_search(TABLE, table, prompts, steps=2, beams=3, processors=(force,)))
    assert (found[:, 3] == 4).all() and (found[:, 2] == table[prompts[:, 1]].argmax(-1)).all()
    hot = dict(key=jax.random.key(1), steps=20, temperature=np.inf, processors=(exclude,))
    assert (np.asarray(generate(TABLE, table, prompts, **hot))[:, 2:] != 2).all()
    kept = np.asarray(truncate_logits(np.float32([0, np.inf, 1]), top_p=0.5)) > -np.inf
    assert kept.tolist() == [False, True, False]


def test_ctrl_c_takes_effect_between_parts_of_a_loop_and_parts_draw_the_same(monkeypatch):
    """The signal arrives inside of the first part; a single loop would be complete before Python receives it."""
    model, made = one_attention(64, vocab_size=7), []
    params = confident(one_attention(vocab_size=7), np.zeros((1, 2), np.int32), deviation=2)
    options = dict(key=jax.random.key(1), steps=48)
    call = lambda params: generate(model, params, np.zeros((1, 2), np.int32), **options)
    whole = jax.jit(call)(params)  # one loop
    real = generation._continue

    def counted(*arguments):
        made.append(int(arguments[4]))
        carry = real(*arguments)
        if interrupts:
            signal.raise_signal(signal.SIGINT)
        return carry

    monkeypatch.setattr(generation, "_continue", counted)
    interrupts = False
    np.testing.assert_array_equal(call(params), whole)
    assert made[0] == 16 < options["steps"] and len(made) > 1
    interrupts, made[:] = True, []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background ignores it
    with pytest.raises(KeyboardInterrupt):
        call(params)
    signal.signal(signal.SIGINT, before)
    assert len(made) == 1


def test_the_programs_of_few_nets_are_kept():
    """A net that is made again, as in a cell of a notebook, has programs of its own, 15 MiB for a small one."""
    programs = (generation._start, generation._continue, prompts.initial_state, beams._beam_search)
    kept = [inspect.getclosurevars(one).nonlocals["program"] for one in programs]
    assert {one.cache_info().maxsize for one in (*kept, prompts._calls_of)} == {16}


def test_stream_yields_the_tokens_of_generate():
    """With a cache, and for a recurrent model, which reads its prompt exactly; it ends with the last text."""
    for name in ("attention", "RecurrentLM"):
        net, model = MODELS[name]
        params = confident(net, PROMPTS, deviation=2)
        draw = dict(key=jax.random.key(3), **SAMPLED)
        expected = np.asarray(generate(model, params, PROMPTS, **draw))[:, 6:]
        assert (expected[:, -1] != SAMPLED["stop"]).any()  # the iterator does not end early
        np.testing.assert_array_equal(np.stack(list(stream(model, params, PROMPTS, **draw)), -1), expected)
    ends = np.float32(9 * np.eye(4)[[1, 2, 3, 3]])
    greedy = dict(key=jax.random.key(0), temperature=0, stop=3, steps=50)
    assert [int(token) for token in stream(TABLE, ends, np.array([0]), **greedy)] == [1, 2, 3]
    assert generate(TABLE, ends, np.array([0]), **greedy).tolist() == [0, 1, 2] + [3] * 48


def test_generation_under_vmap_donates_nothing_and_stream_takes_no_traced_array(sentences):
    """A warning of JAX about donated buffers is an error in tests."""
    table, prompt = np.eye(4, dtype=np.float32)[[1, 2, 3, 3]], np.array([0])
    write = lambda key: generate(TABLE, table, prompt, key=key, steps=5, stop=3)
    keys = jax.random.split(jax.random.key(0), 3)
    np.testing.assert_array_equal(jax.vmap(write)(keys), np.stack([write(key) for key in keys]))
    with pytest.raises(TypeError, match="^stream expected arrays with values, got a traced array; call it outside"):
        jax.jit(lambda key: next(stream(TABLE, table, prompt, key=key, steps=5)))(keys[0])


def test_generation_works_under_jit():
    """Every option as a Python number and as an array that may be traced: one text with and without jit."""
    net, cached = MODELS["attention"]
    params = confident(net, PROMPTS, deviation=2)
    options = SAMPLED | dict(lengths=LENGTHS)
    write = lambda t, **options: generate(
        cached, params, PROMPTS, key=jax.random.key(3), **options | dict(temperature=t)
    )
    greedy, drawn = write(0, **options), write(3.0, **options)
    assert (greedy != drawn).any()

    def inside(t, top_p, lengths):
        same = options | {"lengths": lengths, "top_p": top_p}
        return write(0, **options), write(t, **same)

    run = jax.jit(inside)
    for t, expected in ((0.0, greedy), (3.0, drawn)):
        fixed_greedy, traced = run(t, SAMPLED["top_p"], LENGTHS)
        np.testing.assert_array_equal(fixed_greedy, greedy)
        np.testing.assert_array_equal(traced, expected)


REJECTED = [
    (dict(steps=13), "got 13 tokens after prompts of 6, 19 together; use fewer steps.* 18 positions"),
    (dict(prompts=np.full((3, 6), 13)), "tokens of prompts from 0 to 12, got .* from 13 to 13; encode"),
    (dict(prompts=np.full((3, 6), -1)), "tokens of prompts from 0 to 12, got .* from -1 to -1"),
    (dict(prompts=np.zeros((3, 0), int)), "at least one token, got int32 .* begin an empty one with a token"),
    (dict(lengths=np.array([6, 0, 4])), "lengths from 1 to 6, .* got 0 to 6; make them with pad_prompts"),
    (dict(lengths=np.array([6, 7, 4])), "lengths from 1 to 6, .* got 4 to 7"),
    (
        dict(lengths=np.array([6])),
        r"prompts \(\*batch, time\) and lengths \(\*batch,\) with the same size of batch|same size of",
    ),
    (dict(temperature=-1.0), "generate expected temperature to be a number >= 0.*, got -1.0"),
    (dict(top_k=14), "top_k to be at most 13"),
    (dict(top_p=1.5), "top_p to be a number > 0 and <= 1.*, got 1.5"),
    (dict(stop=13), "stop to be a token of the model, 0, ..., 12, got 13"),
    (dict(stop="."), "stop to be an integer or None, got '.'"),
    (dict(steps=0), "generate expected steps to be an integer >= 1, got 0"),
]


def test_generate_rejects_wrong_arguments_before_any_computation(sentences):
    cached = MODELS["GPT2"][1]
    params = jax.eval_shape(cached.init, jax.random.key(0), PROMPTS)[0]  # shapes only: computations would fail
    for change, sentence in REJECTED:
        given = dict(prompts=PROMPTS, key=jax.random.key(0), steps=12) | change
        with pytest.raises(ValueError, match=sentence):
            generate(cached, params, **given)


def test_other_errors_of_generate(sentences):
    plain, cached = MODELS["GPT2"]
    params = confident(plain, PROMPTS)
    draw = dict(key=jax.random.key(0), steps=2)
    with pytest.raises(ValueError, match=r"21 together; .* 20 positions, .* larger max_length\.$"):
        generate(plain, params, PROMPTS, key=jax.random.key(0), steps=15)
    assert generate(plain, params, PROMPTS, key=jax.random.key(0), steps=14).shape == (3, 20)
    with pytest.raises(
        TypeError, match="generate expected a model that is a pair, got .*; the order is model, params, prompts"
    ):
        generate(params, plain, PROMPTS, **draw)
    with pytest.raises(
        TypeError, match="generate expected prompts to be an integer array, got 'once'; .*tokenizer.encode"
    ):
        generate(plain, params, "once", **draw)
    with pytest.raises(TypeError, match="a model from tokens .* to logits .*, got float32"):
        generate(Layer(lambda key, x: (), lambda params, x: jnp.zeros((3,))), (), PROMPTS, **draw)
    assert isinstance(cached, StatefulLayer)


def test_a_batch_without_prompts_has_no_texts():
    def read(params, state, tokens):
        return jax.nn.one_hot(tokens, 4), {"position": state["position"] + tokens.shape[-1]}

    counting = StatefulLayer(lambda key, tokens: ((), {"position": jnp.zeros((), jnp.int32)}), read)
    for model, params in ((TABLE, np.eye(4, dtype=np.float32)), (counting, ())):
        options = dict(key=jax.random.key(0), steps=3, stop=1, repetition_penalty=2.0)
        assert generate(model, params, np.zeros((0, 2), np.int32), **options).shape == (0, 5)


def test_padding_does_not_lead_to_errors_of_the_model(sentences):
    """A table of positions that is added raises a TypeError of JAX for longer texts."""
    add = lambda params, tokens: jax.nn.one_hot(tokens, 4) + jnp.eye(6, 4)[None, : tokens.shape[-1]]
    model, prompts = Layer(lambda key, tokens: (), add), np.zeros((1, 2), np.int32)
    with jax.numpy_rank_promotion("allow"):
        assert generate(model, (), prompts, key=jax.random.key(0), steps=4).shape == (1, 6)
        with pytest.raises(ValueError, match="generate expected prompts and steps that fit .*, got 5 tokens after"):
            generate(model, (), prompts, key=jax.random.key(0), steps=5)


def test_nan_params_raise():
    """An eager call raises; under jit the tokens are -1 from there on."""
    net, cached = MODELS["attention"]
    params = confident(net, PROMPTS, deviation=2)
    draw = dict(key=jax.random.key(0), **SAMPLED)
    params["out"]["bias"] = np.full(13, np.nan, np.float32)
    with jax.debug_nans(False):
        with pytest.raises(
            ValueError, match="generate expected finite logits, got NaN from position 6 on in 3 of the texts"
        ):
            generate(cached, params, PROMPTS, **draw)
        tokens = jax.jit(lambda params: generate(cached, params, PROMPTS, **draw))(params)
    assert (tokens[:, 6:] == -1).all() and (tokens[:, :6] == PROMPTS).all()


def test_texts_stay_on_their_devices():
    """Of one device or several, where NaN is reported too."""
    mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2], axis_types=(jax.sharding.AxisType.Auto,))
    on_both, on_second = jax.NamedSharding(mesh, jax.P("data")), jax.devices()[1]
    model = Layer(lambda key, tokens: (), lambda params, tokens: params["table"].at[tokens].get(mode="clip"))
    for where in (on_both, on_second):
        prompts = jax.device_put(np.zeros((4, 1), np.int32), where)
        texts = generate(model, {"table": jnp.eye(3)}, prompts, key=jax.random.key(0), steps=2, temperature=0)
        assert texts.shape == (4, 3) and texts.devices() == prompts.devices()
        with jax.debug_nans(False), pytest.raises(ValueError, match="got NaN from position 1 on in 4 of the texts"):
            generate(model, {"table": jnp.full((3, 3), jnp.nan)}, prompts, key=jax.random.key(0), steps=2)


@pytest.mark.parametrize("wide", [False, True])
def test_tokens_of_64_bits_are_not_cut(wide, sentences):
    """2**32 + k is not the token k, and no length; padding may have any number that JAX can hold."""
    model, big, rows = Embedding(3, 3), np.array([1, 2**32 + 1]), np.array([[1, 2], [1, 2]])
    params, key = {"embedding": np.eye(3, dtype=np.float32)}, jax.random.key(0)
    expected = "from (0 to 2|1 to 2|-2147483648 to 2147483647).*, got .*429496729"
    calls = [
        lambda: pad_prompts([big]),
        lambda: generate(model, params, big, key=key, steps=1),
        lambda: generate(model, params, rows, key=key, steps=1, lengths=big),
        lambda: beam_search(model, params, big, steps=1, beams=2),
    ]
    with jax.enable_x64(wide):
        for call in calls:
            with pytest.raises(ValueError, match=expected):
                call()
        if wide:
            padded = np.array([[1, 2], [2, 2**32 + 1]])
            found = generate(model, params, padded, key=key, steps=1, lengths=np.array([2, 1]), temperature=0.0)
            np.testing.assert_array_equal(found[:, :2], [[1, 2], [2, 2]])
