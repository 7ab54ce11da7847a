"""Dropout of the carry of a recurrent cell in training, with one mask for all steps."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxblocks.checks.errors import public_name, require
from jaxblocks.core.children import Child, apply_child, child_of, error_context, init_child, make_combinator
from jaxblocks.core.keys import child_key
from jaxblocks.core.lifting import declared_by
from jaxblocks.core.pairs import StatefulLayer, builder
from jaxblocks.layers.dropout import dropout
from jaxblocks.layers.scan_of_cells import parts_of
from jaxblocks.probabilities import Share

__all__ = ["RecurrentDropout"]


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
    parts = parts_of(child.functions[1])

    def init(key, inputs, side):
        return *init_child(child, key, inputs, side), None

    def apply(params, carry, inputs, side):
        if not side.get("train", False) or (not isinstance(rate, jax.Array) and rate == 0):
            return apply_child(child, params, carry, inputs, side)
        key = side.get("sequence_key")
        repair = "pass key=jax.random.key(0) to Recurrent, or sequence_key=, the same at each step, to the cell"
        require(key is not None, "a key in training", "none", repair)
        own = child_key(key, "mask")
        leaves, structure = jax.tree.flatten(carry)
        inexact = [jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in leaves]
        dropped = [dropout(child_key(own, i), leaf, rate) if inexact[i] else leaf for i, leaf in enumerate(leaves)]
        read, side = structure.unflatten(dropped), {**side, "sequence_key": child_key(key, "cell")}
        if parts is None:  # not a cell of this library: it reads one carry
            return apply_child(child, params, read, inputs, side)
        checked = lambda params, carry, inputs: apply_child(child, params, carry, inputs, side)
        jax.eval_shape(checked, params, carry, inputs)
        with error_context(child.label, child.layer):  # the recurrent kernels multiply ``read``
            return parts.update(params, parts.products(params, read, *inputs), carry)

    own_reads = declared_by(lambda *, train=False, sequence_key=None: None)
    made: Any = make_combinator((child,), init, apply, own_reads)
    return made


def _cell(cell) -> Child:
    child = child_of(None, cell)
    repair = f"pass the cell, and the result to Recurrent: Recurrent({public_name()}(LSTMCell(8), 0.1))"
    require(child.has_state, "a recurrent cell", f"{child.kind}, which has no carry", repair, error=TypeError)
    # The carry of a layer around cells is read inside of it, where the wrapper changes no products.
    alone = parts_of(child.functions[1]) is not None or not _is_around_cells(cell, child)
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
