"""The steps of multi-head attention: project inputs to heads, let queries attend to keys, join heads to outputs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxblocks.backend.linear_maps import affine_map
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import check_params
from jaxblocks.core.keys import child_key
from jaxblocks.core.pairs import Layer, LayerLike

__all__ = ["MultiHead", "inputs_by_role"]


class MultiHead(NamedTuple):
    """The options of `Attention`, and the steps of its computation as methods."""

    heads: int
    kv_heads: int | None
    head_dim: int | None
    value_dim: int | None
    causal: bool
    positions: Callable | None
    score_bias: LayerLike | None
    dropout: float
    attention_fn: Callable
    use_bias: bool | Sequence[str]
    qk_norm: Callable | None
    qk_norm_axis: str
    use_sink: bool
    kernel_init: Callable
    query_kernel_init: Callable | None
    out_kernel_init: Callable | None
    dtype: Any
    param_dtype: Any

    def init(self, key, q, k, v) -> dict:
        """Params for these inputs; only their shapes are read."""
        self.width(q)  # raises unless heads divide the features
        params = {}
        own_init = {"query": self.query_kernel_init, "out": self.out_kernel_init}
        for name, shape in self.kernel_shapes(q, k, v).items():
            initialize = own_init.get(name) or self.kernel_init
            # Keys by name: the params of one map do not depend on which others exist.
            kernel = initialize(child_key(child_key(key, name), "kernel"), shape, self.param_dtype)
            bias = {"bias": jnp.zeros(shape[1:], self.param_dtype)} if self.has_bias(name) else {}
            params[name] = {"kernel": kernel} | bias
        for name, x, heads in (("query", q, self.heads), ("key", k, self.kv_heads or self.heads)):
            if self.qk_norm is not None:
                size = self.width(q) * (1 if self.qk_norm_axis == "head" else heads)
                like = jax.ShapeDtypeStruct((size,), self.dtype or x.dtype)
                params[f"{name}_norm"] = self.qk_norm().init(child_key(key, f"{name}_norm"), like)
        if self.use_sink:
            params["sink"] = jnp.zeros(self.heads, self.param_dtype)
        if isinstance(self.score_bias, Layer):
            # Positions instead of arrays of scores: a Layer of biases is initialized from the positions of queries and
            # keys.
            places = (jnp.arange(x.shape[-2], dtype=jnp.int32) for x in (q, k))
            params["score_bias"] = self.score_bias.init(child_key(key, "score_bias"), *places)
        return params

    def kernel_shapes(self, q, k, v) -> dict[str, tuple[int, int]]:
        """The shapes of the kernels for these inputs."""
        d, kv_heads = self.head_dim or -(-q.shape[-1] // self.heads), self.kv_heads or self.heads
        return {
            "query": (q.shape[-1], self.heads * d),
            "key": (k.shape[-1], kv_heads * d),
            "value": (v.shape[-1], kv_heads * (self.value_dim or d)),
            "out": (self.heads * (self.value_dim or d), q.shape[-1]),
        }

    def project(self, params, q, k, v, position=None):
        """Queries, keys and values of all heads; ``position`` is the first position of each, if these are equal."""
        self.validate(params, q, k, v)
        q = self.project_one(params, "query", q)  # (*batch, time_q, heads, head_dim)
        k = self.project_one(params, "key", k)  # (*batch, time_k, kv_heads, head_dim)
        v = self.project_one(params, "value", v)  # (*batch, time_k, kv_heads, value_dim)
        if self.positions is not None:
            # Without a cache the last query and the last key have the same position.
            first_q, first_k = (k.shape[-3] - q.shape[-3], 0) if position is None else (position, position)
            q = self.positions(q, jnp.arange(q.shape[-3], dtype=jnp.int32) + first_q)
            k = self.positions(k, jnp.arange(k.shape[-3], dtype=jnp.int32) + first_k)
        return q, k, v

    def project_one(self, params, name: str, x):
        """The queries, the keys or the values of all heads, without positions."""
        heads = self.heads if name == "query" else self.kv_heads or self.heads
        y = _affine(params[name], x if self.dtype is None else x.astype(self.dtype), heads)
        if self.qk_norm is None or name == "value":
            return y
        norm, own = self.qk_norm(), params[f"{name}_norm"]
        if self.qk_norm_axis == "head":
            return norm.apply(own, y)
        return norm.apply(own, y.reshape(*y.shape[:-2], y.shape[-2] * y.shape[-1])).reshape(y.shape)

    def attend(self, params, q, k, v, *, train=False, key=None, **given):
        """The ``attention_fn`` of queries, keys and values, with the options that are in use."""
        from jaxblocks.checks.signatures import arguments_of, takes  # not at import, which stays fast

        # Options that are not in use are not passed, so that a custom attention_fn need not have them.
        options = {name: value for name, value in given.items() if value is not None}
        if self.causal:
            options["causal"] = True
        if self.score_bias is not None:
            options["bias"] = self.bias(params)
        if self.use_sink:
            options["sink"] = params["sink"]
        if train:
            expected = f"a key in training for dropout={self.dropout}"
            require(key is not None, expected, "none", "pass key=jax.random.key(0) to apply")
            options |= {"dropout": self.dropout, "key": key}
        # functools.partial overwrites earlier keywords without an error, so an option given twice is an error.
        twice = sorted(options.keys() & getattr(self.attention_fn, "keywords", {}).keys() - {"causal"})
        repair = "write a rule of positions as score_bias, -inf where it forbids a key; pass masks as mask="
        require(not twice, "each option in attention_fn or from the layer", f"both for {', '.join(twice)}", repair)
        if not takes(self.attention_fn, 3, *options):
            expected = f"attention_fn to be a function of q, k, v{', *, ' * bool(options)}{', '.join(options)}"
            names = ", ".join(f"{name}=None" for name in options)
            repair = f"wrap it, as in lambda q, k, v{', *, ' * bool(options)}{names}: f(q, k, v), and let f use them"
            require(False, expected, arguments_of(self.attention_fn), repair, error=TypeError)
        return self.attention_fn(q, k, v, **options)

    def join(self, params, out) -> Any:
        """Concatenate heads along the features, and map them to the output; weights after ``out`` are kept."""
        out, *weights = out if isinstance(out, tuple) else (out,)
        # (*batch, time, heads, value_dim) to (*batch, time, heads * value_dim)
        out = out.reshape(*out.shape[:-2], out.shape[-2] * out.shape[-1])
        out = _affine(params["out"], out, 1)[..., 0, :]
        return (out, *weights) if weights else out

    def bias(self, params) -> Callable:
        """The function ``bias(heads, time_q, time_k, offset)`` of the scores."""
        if not isinstance(self.score_bias, Layer):
            return self.score_bias  # type: ignore[return-value]
        apply, own = self.score_bias.apply, params["score_bias"]
        return lambda heads, n_q, n_k, offset: apply(
            own, jnp.arange(n_q, dtype=jnp.int32) + offset, jnp.arange(n_k, dtype=jnp.int32)
        )

    def has_bias(self, name: str) -> bool:
        """Whether one of the maps has a bias."""
        return name in self.use_bias if isinstance(self.use_bias, Sequence) else bool(self.use_bias)

    def width(self, q) -> int:
        """Features of a query and a key, per head."""
        fits = self.head_dim is not None or q.shape[-1] % self.heads == 0
        expected = f"heads to divide the features of its input, heads={self.heads}"
        require(fits, expected, q, "choose a divisor, or pass head_dim=")
        return self.head_dim or q.shape[-1] // self.heads

    def validate(self, params, q, k, v) -> None:
        """Raise a ``ValueError`` unless ``params`` fit these inputs."""
        kernels = self.kernel_shapes(q, k, v)
        shapes: dict[str, Any] = {f"{name}/kernel": shape for name, shape in kernels.items()}
        shapes |= {f"{name}/bias": shape[1:] for name, shape in kernels.items() if self.has_bias(name)}
        shapes |= {"sink": (self.heads,)} if self.use_sink else {}
        # These check their own params.
        shapes |= {"query_norm": None, "key_norm": None} if self.qk_norm is not None else {}
        shapes |= {"score_bias": None} if isinstance(self.score_bias, Layer) else {}
        if isinstance(params, Mapping):
            maps = {name: own for name, own in params.items() if name not in shapes and isinstance(own, Mapping)}
            params = {name: own for name, own in params.items() if name not in maps}
            params |= {f"{name}/{leaf}": x for name, own in maps.items() for leaf, x in own.items()}
        check_params(params, **shapes)


def _affine(params, x, n: int):
    """Apply one affine map and split its outputs into n heads: (*batch, time, n, features of a head)."""
    y = affine_map(x, params["kernel"], params.get("bias"))
    return y.reshape(*y.shape[:-1], n, y.shape[-1] // n)


def inputs_by_role(inputs: tuple) -> tuple:
    """The inputs of the queries, keys and values, from ``x``, or ``x, context``, or ``q, k, v``."""
    expected = "x, or x and context, or q, k and v"
    require(1 <= len(inputs) <= 3, expected, f"{len(inputs)} inputs", "pass x for self-attention", error=TypeError)
    return (inputs * 3 if len(inputs) == 1 else (*inputs, inputs[-1]))[:3]
