r"""LoRA: fine-tuning by low-rank updates of chosen kernels, as a transformation of a net.

Axis letters: ``in`` and ``out`` features of a kernel, ``rank`` of its update.
"""

import inspect
from typing import Any

import jax
import jax.numpy as jnp

from jaxblocks.checks import PositiveFloat, PositiveInt, checked, require
from jaxblocks.children import apply_child, child_key, child_of, init_child, make_combinator
from jaxblocks.core import Layer, StatefulLayer, builder
from jaxblocks.selectors import paths, select

__all__ = ["LoRA", "merge_lora"]


@builder
def LoRA(
    net: Layer | StatefulLayer, *patterns: str, rank: PositiveInt = 8, alpha: PositiveFloat | None = None
) -> Layer | StatefulLayer:
    r"""A net whose params are frozen but for low-rank updates of chosen kernels: :math:`W + \frac{\alpha}{r} A B`.

    Params are ``{"base": params of the net, "lora": {path: {"down": A, "up": B}}}`` with :math:`A` ``(in, rank)`` and
    :math:`B` ``(rank, out)`` for each kernel, stacked like it inside a `Repeat`. B is zero at ``init``, so that the net
    computes what it did before. The base has no gradient; state, such as batch statistics, is that of the net.

    Args:
        net: the net.
        patterns: the layers, in the grammar of `select`, such as ``"**/attention/*"``; each has a ``kernel``.
        rank: r.
        alpha: :math:`\alpha`, by default ``rank``.

    Shapes and side inputs are those of the net.

    Raises:
        ValueError: for a pattern that matches no kernel, or no pattern.

    >>> backbone = MLP(5, 3)
    >>> pretrained = backbone.init(jax.random.key(0), jnp.zeros(2))
    >>> net = LoRA(backbone, "*", rank=1)
    >>> params = net.init(jax.random.key(1), jnp.zeros(2)) | {"base": pretrained}
    >>> jax.tree.map(jnp.shape, params["lora"]["0/kernel"])
    {'down': (2, 1), 'up': (1, 5)}
    >>> bool((net.apply(params, jnp.ones(2)) == backbone.apply(pretrained, jnp.ones(2))).all())
    True

    Source: Hu et al. 2021, LoRA: Low-rank adaptation of large language models, section 4.1, arXiv:2106.09685.
    """
    child = child_of(None, net)

    def init(key, inputs, side):
        base, state = init_child(child, child_key(key, "base"), inputs, side)
        return {"base": base, "lora": _updates(child_key(key, "lora"), base, patterns, rank)}, state

    def apply(params, state, inputs, side):
        named = isinstance(params, dict) and params.keys() == {"base", "lora"}
        require(named, "params named base and lora", params, 'write params | {"base": pretrained}')
        base = jax.lax.stop_gradient(params["base"])
        return apply_child(child, _merged(base, params["lora"], alpha), state, inputs, side)

    return make_combinator((child,), init, apply)


@checked
def merge_lora(net: Layer | StatefulLayer, params: Any) -> Any:
    """The params of the net inside of a `LoRA`, with the updates added: what ``apply`` computes with.

    Args:
        net: the result of `LoRA`.
        params: its params.

    >>> backbone = MLP(5, 3)
    >>> net = LoRA(backbone, "0", rank=1)
    >>> params = net.init(jax.random.key(1), jnp.zeros(2))
    >>> params["lora"]["0/kernel"]["up"] += 1.0
    >>> merged = merge_lora(net, params)
    >>> bool((net.apply(params, jnp.ones(2)) == backbone.apply(merged, jnp.ones(2))).all())
    True

    Source: Hu et al. 2021, section 4.1, arXiv:2106.09685.
    """
    call: Any = getattr(net, "call", None)
    is_lora = getattr(call, "function", None) is LoRA
    require(is_lora, "the result of LoRA", repr(net), "pass LoRA(net, ...)", error=TypeError)
    options = inspect.signature(LoRA).bind(*call.args, **call.kwargs).arguments
    return _merged(params["base"], params["lora"], options.get("alpha"))


def _updates(key, base, patterns, rank) -> dict[str, dict[str, jax.Array]]:
    """A and B of each kernel that a pattern matches."""
    require(len(patterns) > 0, "at least one pattern of layers", "none", 'pass "**/attention/*"')
    chosen = select(base, *(f"{pattern}/kernel" for pattern in patterns))
    updates = {}
    for path, kernel, is_chosen in zip(paths(base), jax.tree.leaves(base), jax.tree.leaves(chosen), strict=True):
        if is_chosen:
            *stack, features, out = kernel.shape
            down = jax.random.normal(child_key(key, path), (*stack, features, rank), kernel.dtype) * features**-0.5
            updates[path] = {"down": down, "up": jnp.zeros((*stack, rank, out), kernel.dtype)}
    return updates


def _merged(base, updates, alpha):
    def add(path, kernel):
        if path not in updates:
            return kernel
        down, up = (updates[path][name].astype(kernel.dtype) for name in ("down", "up"))
        factor = 1.0 if alpha is None else alpha / down.shape[-1]
        return kernel + factor * jnp.matmul(down, up)  # (..., in, out)

    leaves = [add(path, leaf) for path, leaf in zip(paths(base), jax.tree.leaves(base), strict=True)]
    return jax.tree.unflatten(jax.tree.structure(base), leaves)
