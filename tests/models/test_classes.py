"""The last token of a text, from which a decoder reads its class."""

import numpy as np

from jaxblocks.models.classes import at_last_token
from tests.support.arrays import normal
from tests.support.compiled import compiled

at_last_token = compiled(at_last_token)


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
        actual = at_last_token(x, tokens, masks[kind], pad_token=token)
        np.testing.assert_array_equal(actual, x[np.arange(3), last])
