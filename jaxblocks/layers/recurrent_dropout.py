r"""Noise on the carry of a recurrent cell in training: dropout with one mask for all steps, and zoneout.

Both are wrappers of a cell: its params and its carry are those of the wrapper too. Where a cell of this library is
wrapped, the outputs are its hidden state, also after the wrapper has changed it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxblocks.checks.errors import describe, public_name, require
from jaxblocks.core.children import Child, apply_child, child_of, error_context, init_child, make_combinator
from jaxblocks.core.keys import child_key
from jaxblocks.core.lifting import declared_by
from jaxblocks.core.pairs import StatefulLayer, builder
from jaxblocks.layers.dropout import dropout
from jaxblocks.layers.recurrent.gates import hidden_of, set_step_of_two_carries, step_of_two_carries
from jaxblocks.probabilities import Share

__all__ = ["RecurrentDropout", "Zoneout"]


@builder
def RecurrentDropout(cell: StatefulLayer, rate: Share) -> StatefulLayer:
    r"""A cell with dropout of the carry that its recurrent kernels multiply, by one mask for all time steps.

    In training $h_{t-1}$ is replaced by $h_{t-1} ⊙ m / (1 - p)$ in the products with recurrent kernels, with
    $m ∼ B(1 - p)$ for each entry of the carry of each sequence, the same m at all t. All else reads $h_{t-1}$
    itself: the mean $(1 - z) ⊙ n + z ⊙ h_{t-1}$ of the gated recurrent unit, and the cell of long short-term memory.
    For the same dropout of the inputs write ``Dropout(rate, axes=-2)`` before `Recurrent`.

    Args:
        cell: a recurrent cell. One that is not of this library reads the carry with dropout in all places. Wrap each
            cell of a ``Serial``, not the whole.
        rate: p, the probability of zero.

    Side inputs of ``apply``: ``train``, a Python bool, and ``sequence_key``, needed in training, from which the mask is
    drawn. `Recurrent` makes it from its ``key``; in a loop of your own pass the same one at each step.

    Shapes, params and carry are those of the cell.

    Raises:
        ValueError: for ``rate`` outside [0, 1], or training without a key.
        TypeError: for a layer without a carry, and for one with cells inside, such as ``Serial``.

    >>> net = Recurrent(RecurrentDropout(LSTMCell(3), 0.25))
    >>> params = net.init(jax.random.key(0), jnp.zeros((8, 5, 2)))
    >>> apply = jax.jit(net.apply, static_argnames="train")
    >>> apply(params, jnp.ones((8, 5, 2)), train=True, key=jax.random.key(1)).shape
    (8, 5, 3)

    Source: Gal & Ghahramani 2016, A theoretically grounded application of dropout in recurrent neural networks,
    arXiv:1512.05287.
    """
    child = _cell(cell)

    def step(params, read, carry, inputs, side):
        if not side.get("train", False) or (not isinstance(rate, jax.Array) and rate == 0):
            return _step(child, params, read, carry, inputs, side)
        key = side.get("sequence_key")
        repair = "pass key=jax.random.key(0) to Recurrent, or sequence_key=, the same at each step, to the cell"
        require(key is not None, "a key in training", "none", repair)
        own = child_key(key, "mask")
        leaves, structure = jax.tree.flatten(read)
        dropped = [
            dropout(child_key(own, i), leaf, rate) if _is_inexact(leaf) else leaf for i, leaf in enumerate(leaves)
        ]
        side = {**side, "sequence_key": child_key(key, "cell")}
        return _step(child, params, structure.unflatten(dropped), carry, inputs, side)

    return _wrapper(child, step, lambda *, train=False, sequence_key=None: None)


@builder
def Zoneout(cell: StatefulLayer, rate: Share, *, cell_rate: Share | None = None) -> StatefulLayer:
    r"""A cell whose carry keeps its old value, entry by entry and step by step, with a probability.

    With the next carry $g_t$ that the cell computes from $h_{t-1}$,

    .. math::

        h_t = m_t ⊙ h_{t-1} + (1 - m_t) ⊙ g_t in training, with m_t ∼ B(p),
        h_t = p h_{t-1} + (1 - p) g_t in evaluation,

    the second being the expectation of the first. Unlike dropout, the gradient flows through what is kept.

    Args:
        cell: a recurrent cell. The outputs of one that is not of this library are left as it computes them. Wrap each
            cell of a ``Serial``, not the whole.
        rate: p, from 0 to 1.
        cell_rate: p of the entry ``"cell"`` of the carry of `LSTMCell`, by default ``rate``. The paper has 0.5, and
            0.05 for the hidden state.

    Side inputs of ``apply``: ``train``, a Python bool, and ``key``, needed in training.

    Shapes, params and carry are those of the cell.

    Raises:
        ValueError: for rates outside [0, 1], for ``cell_rate`` without such an entry, or training without a key.
        TypeError: for a layer without a carry, and for one with cells inside, such as ``Serial``.

    >>> cell = Zoneout(GRUCell(3), 0.5)
    >>> params, carry = cell.init(jax.random.key(0), jnp.zeros(2))
    >>> apply = jax.jit(cell.apply, static_argnames="train")
    >>> y, _ = apply(
    ...     params, jnp.full(3, 2.0), jnp.ones(2), train=True, key=jax.random.key(0)
    ... )
    >>> (y == 2).sum()
    Array(2, dtype=int32)

    Source: Krueger et al. 2016, Zoneout: regularizing RNNs by randomly preserving hidden activations, arXiv:1606.01305.
    """
    child = _cell(cell)

    def step(params, read, carry, inputs, side):
        train, key = side.get("train", False), side.get("key")
        repair = "pass apply(..., train=True, key=jax.random.key(0)), and another key at every step"
        require(not train or key is not None, "a key in training", "none", repair)
        of_cell = side if key is None else {**side, "key": child_key(key, "cell")}
        outputs, after = _step(child, params, read, carry, inputs, of_cell)
        leaves, structure = jax.tree.flatten(after)
        rates = _rates_of(after, rate, cell_rate)
        mixed = []
        for i, (new, old, p) in enumerate(zip(leaves, jax.tree.leaves(carry), rates, strict=True)):
            if not _is_inexact(new):
                mixed.append(new)
            elif train:
                kept = jax.random.bernoulli(child_key(child_key(key, "zoneout"), i), p, new.shape)
                mixed.append(jnp.where(kept, old, new))
            else:
                mixed.append(new + jnp.asarray(p, new.dtype) * (old - new))
        after = structure.unflatten(mixed)
        is_ours = step_of_two_carries(child.functions[1]) is not None
        return hidden_of(after) if is_ours else outputs, after

    return _wrapper(child, step, lambda *, train=False, key=None: None)


def _cell(cell) -> Child:
    child = child_of(None, cell)
    repair = f"pass the cell, and the result to Recurrent: Recurrent({public_name()}(LSTMCell(8), 0.1))"
    require(child.has_state, "a recurrent cell", f"{child.kind}, which has no carry", repair, error=TypeError)
    # The carry of a layer around cells is read inside of it, where the wrapper changes neither products nor outputs.
    alone = step_of_two_carries(child.functions[1]) is not None or not _is_around_cells(cell, child)
    repair = f"wrap each cell itself, as in Serial({public_name()}(LSTMCell(8), 0.1), Dense(2))"
    require(alone, "a single recurrent cell", child.kind, repair, error=TypeError)
    return child


def _is_around_cells(cell, child: Child) -> bool:
    """Whether a layer of this library is made of others or loops over time; a cell of a user may be."""
    if cell.call is None or not cell.call.function.__module__.startswith("jaxblocks."):
        return False
    return "mask" in child.reads or any(
        hasattr(one, "apply") for one in (*cell.inner.values(), *cell.call.args, *cell.call.kwargs.values())
    )


def _wrapper(child: Child, step: Callable, reads: Callable) -> StatefulLayer:
    """The cell of ``step(params, read, carry, inputs, side)``, with the params and the carry of the child.

    ``reads`` has its own side inputs as parameters.
    """

    def init(key, inputs, side):
        return *init_child(child, key, inputs, side), None

    def apply(params, carry, inputs, side):
        return step(params, carry, carry, inputs, side)

    made: Any = make_combinator((child,), init, apply, declared_by(reads))
    if step_of_two_carries(child.functions[1]):
        set_step_of_two_carries(
            made.apply, lambda params, read, carry, *inputs, **side: step(params, read, carry, inputs, side)
        )
    return made


def _step(child: Child, params, read, carry, inputs, side):
    """One step of the cell, whose recurrent kernels multiply ``read``."""
    step = step_of_two_carries(child.functions[1])
    if read is carry or step is None:
        return apply_child(child, params, read, inputs, side)
    given = {name: side[name] for name in child.reads if name in side}
    # Traced for the checks in it.
    jax.eval_shape(lambda params, carry, inputs: apply_child(child, params, carry, inputs, side), params, carry, inputs)
    with error_context(child.label, child.layer):
        return step(params, read, carry, *inputs, **given)


def _rates_of(carry, rate, cell_rate) -> list:
    """The rate of each leaf of the carry."""
    if cell_rate is None:
        return [rate] * len(jax.tree.leaves(carry))
    expected, got = 'a cell with the entry "cell" in its carry', describe(carry)
    require(isinstance(carry, Mapping) and "cell" in carry, expected, got, "leave cell_rate out")
    return [cell_rate if name == "cell" else rate for name in sorted(carry) for _ in jax.tree.leaves(carry[name])]


def _is_inexact(x) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)
