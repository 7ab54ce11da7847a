r"""LoRA: fine-tuning by low-rank updates of chosen kernels, as a transformation of a net.

Axis letters: ``in`` and ``out`` features of a kernel, ``rank`` of its update.
"""

import inspect
from typing import Any, overload

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from jaxblocks.backend.precision import full_precision
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveFloat, PositiveInt, check_params, checked
from jaxblocks.core.children import (
    apply_child,
    child_of,
    constant_params,
    init_child,
    make_combinator,
    with_made_params,
)
from jaxblocks.core.keys import child_key
from jaxblocks.core.pairs import Layer, Out, Params, StatefulLayer, builder
from jaxblocks.core.selection import paths, select

__all__ = ["LoRA", "merge_lora"]


@overload
def LoRA(net: Layer[Out], *patterns: str, rank: PositiveInt = 8, alpha: PositiveFloat | None = None) -> Layer[Out]: ...
@overload
def LoRA(
    net: StatefulLayer[Out], *patterns: str, rank: PositiveInt = 8, alpha: PositiveFloat | None = None
) -> StatefulLayer[Out]: ...
@builder
def LoRA(
    net: Layer[Any] | StatefulLayer[Any], *patterns: str, rank: PositiveInt = 8, alpha: PositiveFloat | None = None
) -> Layer[Any] | StatefulLayer[Any]:
    r"""A net whose params are frozen but for low-rank updates of chosen kernels: $W + (α/r) A B$.

    Params are ``{"base": params of the net, "lora": {path: {"down": A, "up": B}}}`` with $A$ ``(in, rank)`` and
    $B$ ``(rank, out)`` for each kernel, stacked like it inside a `Repeat`. B is zero at ``init``, so that the net
    computes what it did before. The base has no gradient; weight decay would change it, so mask it out:
    ``optax.adamw(1e-3, mask=lambda params: select(params, "lora/**"))``. State, such as batch statistics, is that of
    the net. Around a `Frozen`, ``LoRA(Frozen(backbone), "**")``, the updates are trained and the net is in evaluation
    mode; ``Frozen(LoRA(...))`` trains nothing. A kernel of a convolution has an update for each place of its window.

    Args:
        net: the net.
        patterns: the layers, in the grammar of `select`, such as ``"**/attention/*"``; each has a ``kernel``.
        rank: r.
        alpha: $α$, by default ``rank``.

    Shapes and side inputs are those of the net.

    Raises:
        ValueError: for a pattern that matches no kernel, no pattern, and updates of other layers or shapes.

    >>> backbone = MLP(5, 3)
    >>> pretrained = backbone.init(jax.random.key(0), jnp.zeros(2))
    >>> net = LoRA(backbone, "*", rank=1)
    >>> params = net.init(jax.random.key(1), jnp.zeros(2)) | {"base": pretrained}
    >>> jax.tree.map(jnp.shape, params["lora"]["0/kernel"])
    {'down': (2, 1), 'up': (1, 5)}
    >>> x = jnp.ones(2)
    >>> y = jax.jit(backbone.apply)(pretrained, x)
    >>> bool((jax.jit(net.apply)(params, x) == y).all())
    True

    Source: Hu et al. 2021, LoRA: Low-rank adaptation of large language models, section 4.1, arXiv:2106.09685.
    """
    child = child_of(None, net)
    require(len(patterns) > 0, "at least one pattern of layers", "none", 'pass "**/attention/*"')
    for pattern in patterns:
        layer = pattern.removesuffix("/kernel")
        require(layer == pattern, "patterns of layers, each with a kernel", repr(pattern), f"write {layer!r}")

    def init(key, inputs, side):
        base, state = init_child(child, child_key(key, "base"), inputs, side)
        # No function of the output shapes: they are those of the net, found by a trace of apply.
        return {"base": base, "lora": _updates(child_key(key, "lora"), base, patterns, rank)}, state, None

    def apply(params, state, inputs, side):
        made = _merged(params, patterns, rank, alpha)
        with with_made_params("LoRA"):  # a Frozen inside leaves them their gradient
            return apply_child(child, made, state, inputs, side)

    return make_combinator((child,), init, apply)


@checked
def merge_lora(net: Layer[Any] | StatefulLayer[Any], params: PyTree) -> Params:
    """The params of the net inside of a `LoRA`, with the updates added: what ``apply`` computes with.

    Args:
        net: the result of `LoRA`.
        params: its params, without state.

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
    is_dict = isinstance(net, dict)
    repair = "the order is net, params" if is_dict else "pass LoRA(net, ...)"
    require(is_lora, "the result of LoRA", net if is_dict else repr(net), repair, error=TypeError)
    # The options are read from the recorded call, so that they are not passed a second time.
    bound = inspect.signature(LoRA).bind(*call.args, **call.kwargs)
    bound.apply_defaults()
    options = bound.arguments
    return _merged(params, options["patterns"], options["rank"], options["alpha"])


def _chosen(base, patterns) -> dict[str, Any]:
    """The kernels that a pattern matches, by their paths."""
    chosen = jax.tree.leaves(select(base, *(f"{pattern}/kernel" for pattern in patterns)))
    named = zip(paths(base), jax.tree.leaves(base), chosen, strict=True)
    return {path: kernel for path, kernel, is_chosen in named if is_chosen}


def _updates(key, base, patterns, rank) -> dict[str, dict[str, jax.Array]]:
    """A and B of each chosen kernel."""
    updates = {}
    for path, kernel in _chosen(base, patterns).items():
        *stack, features, out = kernel.shape  # "stack": the leading axis of a Repeat, one update for each copy
        # A has the variance of LeCun's initialization, 1 / features.
        down = jax.random.normal(child_key(key, path), (*stack, features, rank), kernel.dtype) * features**-0.5
        # "up" begins at 0, so that the net begins as the pretrained one; both at 0 would have gradient 0.
        updates[path] = {"down": down, "up": jnp.zeros((*stack, rank, out), kernel.dtype)}
    return updates


def _merged(params, patterns, rank, alpha):
    """The params of the net with the updates added, which alone have a gradient."""
    named = isinstance(params, dict) and params.keys() == {"base", "lora"} and isinstance(params["lora"], dict)
    require(named, "params named base and lora", params, 'write params | {"base": pretrained}')
    # The gradient of the base is 0, and the backward pass does not compute it.
    base, updates = constant_params(params["base"]), params["lora"]
    chosen = _chosen(base, patterns)
    expected, repair = f"updates of {', '.join(sorted(chosen))}", "use the lora of init"
    require(updates.keys() == chosen.keys(), expected, ", ".join(updates) or "none", repair)

    def add(path, kernel):
        if path not in chosen:
            return kernel
        *stack, features, out = kernel.shape
        check_params(updates[path], down=(*stack, features, rank), up=(*stack, rank, out))
        down, up = (updates[path][name].astype(kernel.dtype) for name in ("down", "up"))
        factor = 1.0 if alpha is None else alpha / rank
        with full_precision():  # so that merged params are the same net
            return kernel + factor * jnp.matmul(down, up)  # (..., in, out)

    leaves = [add(path, leaf) for path, leaf in zip(paths(base), jax.tree.leaves(base), strict=True)]
    return jax.tree.unflatten(jax.tree.structure(base), leaves)
