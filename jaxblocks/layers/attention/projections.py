"""The learned maps of multi-head attention: inputs to queries, keys and values, and heads to outputs."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxblocks.checks import check_params, require
from jaxblocks.children import child_key

__all__ = ["Projections", "inputs_by_role"]


class Projections(NamedTuple):
    """The maps ``query``, ``key``, ``value`` and ``out``, with the options of `Attention` that they depend on."""

    heads: int
    kv_heads: int
    head_dim: int | None
    value_dim: int | None
    features: int | None
    positions: Callable | None
    use_bias: bool
    use_out: bool
    kernel_init: Callable
    out_kernel_init: Callable
    bias_init: Callable
    dtype: Any
    param_dtype: Any

    def init(self, key, q, k, v) -> dict:
        """Params for these inputs; only their shapes are read."""
        d = self.width(q)
        sizes = {
            "query": (q.shape[-1], self.heads * d),
            "key": (k.shape[-1], self.kv_heads * d),
            "value": (v.shape[-1], self.kv_heads * (self.value_dim or d)),
            "out": (self.heads * (self.value_dim or d), self.features or q.shape[-1]),
        }

        def dense(name, shape):
            initialize, own = self.out_kernel_init if name == "out" else self.kernel_init, child_key(key, name)
            params = {"kernel": initialize(child_key(own, "kernel"), shape, self.param_dtype)}
            if self.use_bias:
                params["bias"] = self.bias_init(child_key(own, "bias"), shape[1:], self.param_dtype)
            return params

        return {name: dense(name, shape) for name, shape in sizes.items() if name != "out" or self.use_out}

    def width(self, q) -> int:
        """Features of a query and a key, per head."""
        fits = self.head_dim is not None or q.shape[-1] % self.heads == 0
        expected = f"heads to divide the features of its input, heads={self.heads}"
        require(fits, expected, q, "choose a divisor, or pass head_dim=")
        return self.head_dim or q.shape[-1] // self.heads

    def split(self, params, q, k, v, position=None):
        """Queries, keys and values of all heads; ``position`` is the first position of each, if these are equal."""
        self.validate(params, q, k, v)
        q, k, v = (x if self.dtype is None else x.astype(self.dtype) for x in (q, k, v))
        q = self.apply(params["query"], q, self.heads)  # (*batch, time_q, heads, head_dim)
        k = self.apply(params["key"], k, self.kv_heads)  # (*batch, time_k, kv_heads, head_dim)
        v = self.apply(params["value"], v, self.kv_heads)  # (*batch, time_k, kv_heads, value_dim)
        if self.positions is not None:
            first_q, first_k = (k.shape[-3] - q.shape[-3], 0) if position is None else (position, position)
            q = self.positions(q, jnp.arange(q.shape[-3], dtype=jnp.int32) + first_q)
            k = self.positions(k, jnp.arange(k.shape[-3], dtype=jnp.int32) + first_k)
        return q, k, v

    def join(self, params, out):
        """Concatenate heads along the features, and map them to the output."""
        out = out.reshape(*out.shape[:-2], out.shape[-2] * out.shape[-1])
        return self.apply(params["out"], out, 1)[..., 0, :] if self.use_out else out

    def apply(self, params, x, n: int):
        """Apply one affine map and split its outputs into n heads: (*batch, time, n, features of a head)."""
        y = jnp.matmul(x, params["kernel"].astype(x.dtype))
        if self.use_bias:
            y = y + jnp.broadcast_to(params["bias"].astype(x.dtype), y.shape)
        return y.reshape(*y.shape[:-1], n, y.shape[-1] // n)

    def validate(self, params, q, k, v) -> None:
        """Raise a ``ValueError`` unless ``params`` fit these inputs."""
        rows = {"query": q.shape[-1], "key": k.shape[-1], "value": v.shape[-1]}
        rows |= {"out": None} if self.use_out else {}
        shapes = {f"{name}/kernel": (n, None) for name, n in rows.items()}
        shapes |= {f"{name}/bias": (None,) for name in rows if self.use_bias}
        nested = isinstance(params, Mapping) and all(isinstance(each, Mapping) for each in params.values())
        flat = {f"{a}/{b}": x for a, each in params.items() for b, x in each.items()} if nested else params
        check_params(flat, **shapes)
        for name, n in (("query", self.heads), ("key", self.kv_heads), ("value", self.kv_heads)):
            kernel = params[name]["kernel"]
            require(kernel.shape[1] % n == 0, f"{name}/kernel with columns for {n} heads", kernel)


def inputs_by_role(inputs: tuple) -> tuple:
    """The inputs of the queries, keys and values, from ``x``, or ``x, context``, or ``q, k, v``."""
    expected = "x, or x and context, or q, k and v"
    require(1 <= len(inputs) <= 3, expected, f"{len(inputs)} inputs", error=TypeError)
    return (inputs * 3 if len(inputs) == 1 else (*inputs, inputs[-1]))[:3]
