"""Attention: averages of values, weighted by how well their keys match a query.

Read ``dot_product`` first: the functions. ``scores`` computes softmax and averages of the keys that ``masks`` allows,
``tiles`` does it in parts; ``projections`` are the learned maps of heads, ``multi_head`` is the layer, ``cache`` its
decoder, ``padding`` what it does with padded positions; ``ring`` is attention over several devices, ``fused`` the
kernel of cuDNN, and ``lookup`` has the lecture's tables.

Axis letters: q query positions (``time_q``), k key and value positions (``time_k``), h heads, g heads of keys and
values (``kv_heads``), d features that queries and keys share (``head_dim``), v features of a value (``value_dim``).

``hard_lookup`` and ``soft_lookup`` are the lecture's lookup tables, with one head and the layout (position, features).
``attention``, ``attention_weights`` and ``attention_with_weights`` take heads, in the layout of ``jax.nn``:
(position, heads, features). All take projected queries, keys and values. The layer ``Attention`` has the learned maps
W^Q, W^K, W^V and the output map as params; ``CachedAttention`` is the same layer with a key-value cache as state.
"""

from jaxblocks.layers.attention.cache import CachedAttention
from jaxblocks.layers.attention.dot_product import attention, attention_weights, attention_with_weights
from jaxblocks.layers.attention.lookup import hard_lookup, soft_lookup
from jaxblocks.layers.attention.multi_head import Attention
from jaxblocks.layers.attention.ring import ring_attention

__all__ = [
    "Attention",
    "CachedAttention",
    "attention",
    "attention_weights",
    "attention_with_weights",
    "hard_lookup",
    "ring_attention",
    "soft_lookup",
]
