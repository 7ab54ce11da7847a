"""The fused attention kernel of cuDNN, behind ``jax.nn.dot_product_attention``."""

import math

import jax
import jax.numpy as jnp

from jaxblocks.backend.platforms import platform
from jaxblocks.checks.errors import require

__all__ = ["fused_attention"]


def fused_attention(q, k, v, offset, scale, causal, window, bias, **not_supported):
    """`attention` by cuDNN's kernel; raises an error that lists the unsupported arguments."""
    # Each condition that jax.nn's cuDNN path does not compute, as the words of the error.
    conditions = {
        "bias as a function (pass an array)": callable(bias),
        "sliding_window without causal": window is not None and not causal,
        # Its causal mask and windows count positions of queries from the first key: offset 0.
        "causal with different numbers of queries and keys": (causal or window is not None)
        and not (isinstance(offset, int) and offset == 0),
        "no keys": k.shape[-3] == 0,
        f"{q.dtype} (cast to jnp.bfloat16)": q.dtype not in (jnp.bfloat16, jnp.float16),
        "values with other features than the keys": q.shape[-1] != v.shape[-1],
        f"a head_dim of {q.shape[-1]} (a multiple of 8 up to 256)": q.shape[-1] % 8 > 0 or not 0 < q.shape[-1] <= 256,
        f"the backend {platform()!r}": platform() != "gpu",
    }
    reasons = [f"{name}=" for name, value in not_supported.items() if value is not None]
    reasons += [reason for reason, applies in conditions.items() if applies]
    repair = "pass implementation=None, which supports everything"
    require(not reasons, "arguments that implementation='fused' supports", ", ".join(reasons), repair)
    batch = q.shape[:-3]
    flat = [x.reshape(math.prod(batch), *x.shape[-3:]) for x in (q, k, v)]  # the kernel has one batch axis
    if bias is not None:
        bias = (
            jnp.broadcast_to(bias, (*batch, *bias.shape[-3:]))
            .reshape(math.prod(batch), *bias.shape[-3:])
            .astype(q.dtype)  # cuDNN takes one dtype
        )
    out = jax.nn.dot_product_attention(
        *flat,
        bias=bias,
        # None is 1 here, and in jax.nn 1 / sqrt(head_dim).
        scale=max(q.shape[-1], 1) ** -0.5 if isinstance(scale, str) else 1.0 if scale is None else scale,
        is_causal=causal,
        local_window_size=window,  # (before, after) in both
        implementation="cudnn",
    )
    return out.reshape(*batch, *out.shape[-3:])
