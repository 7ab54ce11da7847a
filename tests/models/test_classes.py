"""The last token of a text, from which a decoder reads its class."""

import jax
import numpy as np
import pytest

from jaxblocks.models import BERT, CLIPText, Llama, SentenceEncoder
from jaxblocks.models.class_heads import _at_last_token
from tests.support.arrays import normal
from tests.support.compiled import compiled

at_last_token = compiled(_at_last_token)
SIZES = dict(vocab_size=9, layers=1, heads=2, features=4, hidden=6)


@pytest.mark.parametrize(
    ("name", "net"),
    [
        ("Llama", Llama(head="classes", **SIZES)),
        ("BERT", BERT(max_length=4, **SIZES)),
        ("SentenceEncoder", SentenceEncoder(BERT(max_length=4, head=None, **SIZES))),
        ("CLIPText", CLIPText(max_length=4, **SIZES)),
    ],
)
def test_a_text_without_tokens_has_no_summary(name, net, sentences):
    shape = lambda time: jax.ShapeDtypeStruct((1, time), np.int32)
    params = jax.eval_shape(net.init, jax.random.key(0), shape(3))
    with pytest.raises(ValueError, match=f"{name} expected texts of at least one token, got .*; pass padding for"):
        jax.eval_shape(net.apply, params, shape(0))


def test_the_last_token_is_neither_padding_nor_masked():
    x = normal(0, 3, 5, 2).astype(np.float32)
    tokens = np.array([[2, 7, 3, 4, 7], [7, 7, 5, 6, 8], [7, 7, 7, 7, 7]], np.int32)
    mask = np.array([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [0, 0, 0, 0, 0]], bool)
    cases = {
        (None, None): (4, 4, 4),
        (7, None): (3, 4, 0),
        (None, "keys"): (2, 4, 0),
        (8, "keys"): (2, 3, 0),
        (7, "scores"): (3, 4, 0),
    }
    masks = {None: None, "keys": mask, "scores": np.broadcast_to(mask[:, None, None], (3, 1, 5, 5))}
    for (token, kind), last in cases.items():
        actual = at_last_token(x, tokens, masks[kind], token)
        np.testing.assert_array_equal(actual, x[np.arange(3), last])
    # The last 8 bits of 263 are those of 7.
    np.testing.assert_array_equal(at_last_token(x, tokens.astype(np.int8), None, 256 + 7), x[:, -1])
