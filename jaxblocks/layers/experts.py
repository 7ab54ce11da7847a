r"""Mixtures of experts: a router sends each token to a few of many layers with equal structure.

Read `top_k_routing` first, then the two losses of the router, then `MixtureOfExperts`.

Axis letters: ``...`` batch (all its entries are tokens), ``features``, ``experts``, ``top_k`` choices of a token.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jaxblocks import initializers
from jaxblocks.backend.linear_maps import affine_map
from jaxblocks.backend.precision import widen
from jaxblocks.backend.symbolic_sizes import at_most, check_integer
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import PositiveFloat, PositiveInt, check_params, checked
from jaxblocks.checks.layer_inputs import check_features
from jaxblocks.checks.values import as_int32
from jaxblocks.core.children import apply_child, child_of, init_child, make_combinator
from jaxblocks.core.keys import child_key
from jaxblocks.core.pairs import Layer, StatelessLike, builder
from jaxblocks.core.shapes import as_shapes, split_side
from jaxblocks.probabilities import logsumexp, softmax

__all__ = ["MixtureOfExperts", "load_balancing_loss", "router_z_loss", "top_k_routing"]


@checked
def top_k_routing(
    logits: Float[Array, "*batch experts"], top_k: PositiveInt
) -> tuple[Float[Array, "*batch top_k"], Int[Array, "*batch top_k"]]:
    r"""The weights and the indices of the ``top_k`` experts with the largest logits, for each token.

    The weights are the softmax of the chosen logits, so that they sum to 1; the first choice comes first. Of equal
    logits the first expert is chosen. The choice has no derivative; the weights have that of the softmax.

    >>> weights, chosen = top_k_routing(jnp.array([0.0, 2.0, 2.0, -1.0]), 2)
    >>> weights, chosen
    (Array([0.5, 0.5], dtype=float32), Array([1, 2], dtype=int32))

    Source: Shazeer et al. 2017, Outrageously large neural networks: the sparsely-gated mixture-of-experts layer,
    arXiv:1701.06538; Jiang et al. 2024, Mixtral of experts, arXiv:2401.04088.
    """
    expected = f"top_k of at most {logits.shape[-1]}, the number of experts"
    require(top_k <= logits.shape[-1], expected, top_k, "pass more experts or a smaller top_k")
    chosen, indices = lax.top_k(logits, top_k)
    return softmax(chosen), indices


@checked
def load_balancing_loss(
    logits: Float[Array, "*batch experts"], indices: Int[Array, "*batch top_k"]
) -> Float[Array, "*batch"]:
    r"""How much a token adds to the load of its likely experts: $E ∑_e f_e p_e$, with the mean 1 for even loads.

    $p_e$ is the probability of expert e for the token, the softmax of its ``logits``, and $f_e$ the fraction of the
    choices of all tokens that are expert e. The mean over tokens is the loss of the switch transformer, at most the
    number of experts E. Its derivative is that of p, since choices have none. The usual factor is about 0.01.

    >>> logits = jnp.array([[5.0, 0.0], [0.0, 5.0]])
    >>> load_balancing_loss(logits, jnp.array([[0], [1]]))
    Array([1., 1.], dtype=float32)

    Source: Fedus, Zoph & Shazeer 2021, Switch transformers, arXiv:2101.03961, equation 4.
    """
    experts, wide = logits.shape[-1], widen(logits)
    chosen = jax.nn.one_hot(as_int32(indices), experts, dtype=wide.dtype)  # 8 bits may not hold their number
    choices = jnp.sum(chosen, tuple(range(indices.ndim)))
    fractions = choices / max(indices.size, 1)
    return (experts * jnp.matmul(softmax(wide), fractions, precision="highest")).astype(logits.dtype)


@checked
def router_z_loss(logits: Float[Array, "*batch experts"]) -> Float[Array, "*batch"]:
    r"""$(log ∑_e e^{z_e})^2$ for each token, z the ``logits``: it keeps the logits of a router small.

    The usual factor of its mean over tokens is about 0.001.

    >>> print(router_z_loss(jnp.zeros((2, 4))))
    [1.921812 1.921812]

    Source: Zoph et al. 2022, ST-MoE: designing stable and transferable sparse expert models, arXiv:2202.08906,
    equation 5.
    """
    return jnp.square(logsumexp(widen(logits))).astype(logits.dtype)


@builder
def MixtureOfExperts(
    expert: StatelessLike,
    experts: PositiveInt,
    *,
    top_k: PositiveInt = 2,
    capacity_factor: PositiveFloat | None = None,
    block: PositiveInt = 64,
    mesh_axis: str | None = None,
    router_init: Callable = initializers.lecun_normal(),
    param_dtype: DTypeLike = jnp.float32,
) -> Layer[tuple]:
    r"""A weighted sum of the few experts that a router chooses for each token, and the two losses of the router.

    $y = ∑_{e ∈ K} w_e f_e(x)$, where K are the ``top_k`` experts with the largest entries of $x W$, w is the
    softmax of these entries, and W is ``router/kernel``, without bias. Returns y and ``{"load_balancing_loss",
    "z_loss"}``, one number for each token, whose means are added to the loss of training::

        loss = task + 0.01 * losses["load_balancing_loss"].mean() + 0.001 * losses["z_loss"].mean()

    Params are ``{"experts", "router"}``; those of the experts are stacked along their first axis.

    Args:
        expert: any layer without state that acts on the last axis of ``(tokens, features)``.
        experts: their number. Each has params of its own.
        top_k: experts for each token. With all experts, y is the sum weighted by the softmax of all entries.
        capacity_factor: ``None`` drops no choice. A number limits each expert to ``capacity_factor * top_k * tokens /
            experts`` choices, rounded up: all first choices come before all second ones, earlier tokens before later
            ones, and a choice beyond the limit adds 0 to y. Each expert then computes that many tokens, and the output
            of a token may depend on those before it in the batch.
        block: without capacity, the choices are sorted by expert, those of each expert are filled up to a multiple of
            ``block`` tokens, and each block is computed with a copy of the params of its expert. So about ``top_k *
            tokens + experts * block / 2`` tokens are computed, and memory is needed for ``top_k * tokens / block +
            experts`` copies of the params of an expert. Where that is not less work, every expert computes all tokens.
        mesh_axis: an axis of the mesh over whose devices the experts and the tokens are shared; needs
            ``capacity_factor``, which then holds for the tokens of each device. Where the mesh in context (that of a
            training step, or of ``jax.set_mesh`` with ``axis_types=(AxisType.Auto,)``) has this axis, two all-to-alls
            send the choices to the devices of their experts and back; elsewhere it has no effect.
            ``{"**/experts/**": PartitionSpec(mesh_axis)}`` is the rule for the params (see `jaxblocks.sharding`; inside
            of a `Repeat` ``PartitionSpec(None, mesh_axis)``).
        router_init: of W.
        param_dtype: of W. The router computes in float32 for half precision.

    Side inputs are those of the expert; each expert has a key of its own. Shapes: ``(..., features)`` to
    ``(..., features')``.

    Raises:
        TypeError: for an expert with state.
        ValueError: for ``top_k`` above the number of experts; for numbers of experts or tokens that the mesh axis does
            not divide.

    >>> expert = Serial(GLU(8, activation=silu), Dense(4))
    >>> net = MixtureOfExperts(expert, 3, top_k=2)
    >>> params = net.init(jax.random.key(0), jnp.zeros((5, 4)))
    >>> y, losses = jax.jit(net.apply)(params, jnp.ones((5, 4)))
    >>> y.shape, params["experts"][1]["kernel"].shape, sorted(losses)
    ((5, 4), (3, 8, 4), ['load_balancing_loss', 'z_loss'])

    Source: Shazeer et al. 2017, arXiv:1701.06538; Lepikhin et al. 2020, GShard, arXiv:2006.16668 (capacity, devices);
    Jiang et al. 2024, arXiv:2401.04088; Gale et al. 2022, MegaBlocks, arXiv:2211.15841 (blocks).
    """
    child = child_of(None, expert)
    got, repair = f"{child.kind}, which has state", "use layers without state, such as LayerNorm in place of BatchNorm"
    require(not child.has_state, "an expert without state", got, repair, error=TypeError)
    require(top_k <= experts, f"top_k of at most {experts}, the number of experts", top_k, "pass a smaller top_k")
    limited = mesh_axis is None or capacity_factor is not None
    require(limited, "a capacity_factor with mesh_axis", "none", "pass capacity_factor=1.25")

    def init(key, inputs, side):
        [x] = _one_input(inputs)
        check_features("x", x)
        inputs, side = as_shapes(inputs), as_shapes(side)
        made = lambda i: init_child(child, child_key(child_key(key, "experts"), i), inputs, side)[0]
        kernel = router_init(child_key(key, "router"), (x.shape[-1], experts), param_dtype)
        return {"experts": lax.map(made, jnp.arange(experts)), "router": {"kernel": kernel}}, (), None

    def apply(params, state, inputs, side):
        [x] = _one_input(inputs)
        _check_params(params, x, experts)
        tokens = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        mesh = jax.sharding.get_abstract_mesh()
        on_mesh = mesh_axis in mesh.axis_names and mesh_axis not in mesh.manual_axes
        y, logits, chosen = (over_devices if on_mesh else mixed)(params, tokens, side)
        losses = {"load_balancing_loss": load_balancing_loss(logits, chosen), "z_loss": router_z_loss(logits)}
        losses = jax.tree.map(lambda loss: loss.reshape(x.shape[:-1]).astype(x.dtype), losses)
        return (y.reshape(*x.shape[:-1], y.shape[-1]), losses), state

    def over_devices(params, tokens, side):
        """`mixed` with the tokens and the experts of each device."""
        n = jax.sharding.get_abstract_mesh().shape[mesh_axis]
        fits = experts % n == 0 and tokens.shape[0] % n == 0
        got = f"{experts} experts and {tokens.shape[0]} tokens"
        require(fits, f"numbers that the {n} devices of {mesh_axis} divide", got, "change the mesh or the numbers")
        parts, static = split_side(side)

        def on_device(params, tokens, parts):
            if "key" in parts:
                parts = {**parts, "key": jax.random.fold_in(parts["key"], lax.axis_index(mesh_axis))}
            return mixed(params, tokens, {**parts, **static}, all_to_all=True)

        own, whole = PartitionSpec(mesh_axis), PartitionSpec()
        specs = {"experts": own, "router": whole}, own, whole
        return jax.shard_map(on_device, in_specs=specs, out_specs=own, axis_names={mesh_axis})(params, tokens, parts)

    def mixed(params, tokens, side, all_to_all=False):
        """The sum, the logits and the choices; with all_to_all for the tokens of this device, by experts of all."""
        with jax.named_scope("router"):
            logits = affine_map(widen(tokens), params["router"]["kernel"])
            weights, chosen = top_k_routing(logits, top_k)
        with jax.named_scope("experts"):
            count, choices = tokens.shape[0], chosen.size
            if capacity_factor is not None:
                check_integer(count, tokens, f"capacity_factor={capacity_factor}")
                # Rounded first: 1.1 * 100 / 10 is slightly above 11.
                capacity = min(max(1, math.ceil(round(capacity_factor * choices / experts, 6))), count)
                place = _places(chosen, experts)
                # A choice beyond the capacity of its expert has a row beyond the end of the array.
                row = jnp.where(place < capacity, chosen * capacity + place, experts * capacity)
                run = lambda slots: run_all(params["experts"], slots, side, all_to_all)
                y = _by_rows(run, tokens, row, weights, experts, capacity)
            elif at_most(choices + experts * block, experts * count - 1):
                row, owners = _rows_in_blocks(chosen, experts, block)
                own = jax.tree.map(lambda stacked: jnp.asarray(stacked)[owners], params["experts"])
                run = lambda slots: run_all(own, slots, side)
                y = _by_rows(run, tokens, row, weights, owners.size, block)
            else:
                one_hot = jax.nn.one_hot(chosen, experts, dtype=weights.dtype)
                by_expert = jnp.sum(one_hot * weights[..., None], 1).T[..., None]
                # As in the rows of the others, an expert gets zeros in place of tokens that did not choose it: the
                # derivative of a result that overflows is not finite, and times 0 it would be NaN.
                taken = jnp.any(one_hot > 0, 1).T[..., None]
                y = run_all(params["experts"], jnp.where(taken, tokens[None], 0), side)
                y = jnp.sum(jnp.where(taken, y * by_expert.astype(y.dtype), 0), 0)
        return y, logits, chosen

    def run_all(params, inputs, side, all_to_all=False):
        """Each copy of the expert on its own inputs: (copies, rows, features)."""
        if all_to_all:  # to the devices of the experts: (experts, rows) to (experts here, rows of all devices)
            inputs = lax.all_to_all(inputs, mesh_axis, 0, 1, tiled=True)
        copies = inputs.shape[0]
        keyed = side.get("key") is not None
        keys = jax.random.split(side["key"], copies) if keyed else jnp.arange(copies)

        def run(params, inputs, key):
            given = {**side, "key": key} if keyed else side
            return apply_child(child, params, (), (inputs,), given)[0]

        y = jax.vmap(run)(params, inputs, keys)
        return lax.all_to_all(y, mesh_axis, 1, 0, tiled=True) if all_to_all else y

    return make_combinator((child,), init, apply)  # type: ignore[return-value]


def _one_input(inputs):
    require(len(inputs) == 1, "one input (..., features)", f"{len(inputs)}", "concatenate them", error=TypeError)
    has_axis = bool(getattr(inputs[0], "shape", ()))
    require(has_axis, "x (..., features), an array", inputs[0], "put features on its last axis", error=TypeError)
    return inputs


def _check_params(params, x, experts):
    check_params(params, experts=None, router=None)
    check_params(params["router"], kernel=(x.shape[-1], experts))
    for leaf in jax.tree.leaves(params["experts"]):
        expected = f"params of experts, stacked {experts} times along their first axis"
        require(leaf.shape[:1] == (experts,), expected, leaf, "pass those that its own init made: apply(params, x)")


def _places(chosen, experts):
    """The place of each choice among those of its expert: all first choices come before all second ones."""
    one_hot = jax.nn.one_hot(chosen.T.ravel(), experts, dtype=jnp.int32)
    return jnp.sum((jnp.cumsum(one_hot, 0) - 1) * one_hot, -1, dtype=jnp.int32).reshape(chosen.shape[::-1]).T


def _rows_in_blocks(chosen, experts, block):
    """The row of each choice in blocks of rows of one expert, and the expert of each block."""
    counts = jnp.sum(jax.nn.one_hot(chosen.ravel(), experts, dtype=jnp.int32), 0, dtype=jnp.int32)
    ends = jnp.cumsum(-(-counts // block))  # in blocks
    # At most one block of each expert is not full.
    blocks = jnp.arange(chosen.size // block + experts, dtype=ends.dtype)
    # A search in `ends`, by operations that every JAX has: `jnp.searchsorted` of the newest is opaque in a jaxpr.
    owners = jnp.sum(ends[None] <= blocks[:, None], -1, dtype=ends.dtype)
    starts = jnp.concatenate([jnp.zeros_like(ends[:1]), ends[:-1]])
    return starts[chosen] * block + _places(chosen, experts), jnp.minimum(owners, experts - 1)


def _by_rows(run, tokens, row, weights, groups, size):
    """The sum over choices of the outputs of ``run``, for arrays of (groups, size) rows with one choice each."""
    of_choice = jnp.broadcast_to(jnp.arange(row.shape[0], dtype=jnp.int32)[:, None], row.shape)
    # The token of each row, and a number without token where there is no choice.
    token = jnp.full(groups * size, row.shape[0], jnp.int32).at[row.ravel()].set(of_choice.ravel(), mode="drop")
    slots = tokens.at[token].get(mode="fill", fill_value=0)
    y = run(slots.reshape(groups, size, tokens.shape[-1]))
    each = y.reshape(groups * size, y.shape[-1]).at[row].get(mode="fill", fill_value=0)
    return jnp.sum(each * weights[..., None].astype(y.dtype), 1)
