"""What checkpointing costs and what it saves: time against memory at one depth."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from jaxblocks.ad.checkpointing.binomial import binomial_schedule
from jaxblocks.ad.costs.cost_tables import table_of_programs
from jaxblocks.ad.costs.memory import check_takes_checkpoint, checkpointed, made
from jaxblocks.ad.costs.tables import CostTable
from jaxblocks.ad.counting.counts import Count
from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import NonNegativeInt, PositiveInt, checked

__all__ = ["checkpoint_table"]


@checked
def checkpoint_table(
    make: Callable[..., tuple[Callable, PyTree]],
    depth: PositiveInt,
    *,
    checkpoints: Sequence[str | int | Callable | None] = ("body", "sqrt", 8),
    measure: bool = True,
    repeats: NonNegativeInt = 10,
) -> CostTable:
    r"""The cost of a gradient with each way of checkpointing, at one depth: operations, time and memory.

    A checkpointed gradient stores fewer values and computes the others again. `CostTable.plot_frontier` draws the
    cost of each row over its memory. Here each recomputed step is counted each time it runs.
    `cost_table` and `count_flops` count the loop between two snapshots once, since its length varies.

    Args:
        make: ``make(depth, checkpoint=...)`` returns ``(f, x)``, as for `memory_curve`: a scalar-valued function and
            its point. All values of ``checkpoint`` make the same function, at the same point.
        depth: an integer >= 1.
        checkpoints: values of ``checkpoint`` for `jaxblocks.ad.scan` or `jaxblocks.layers.Repeat`.
        measure, repeats: as for `cost_table`.

    Returns:
        A `CostTable` with the rows ``"function"``, ``"gradient"``, ``"gradient, checkpoint='body'"`` and so on.

    Raises:
        ValueError: if ``f`` is not scalar-valued.
        TypeError: if ``make`` does not return a pair, or has no parameter ``checkpoint``.

    >>> from jaxblocks.ad.checkpointing.scans import scan
    >>> def make(depth, checkpoint=None):
    ...     def f(w):
    ...         layer = lambda h, w: (jnp.tanh(w @ h), None)
    ...         return jnp.sum(scan(layer, jnp.ones(8), w, checkpoint=checkpoint)[0])
    ...     return f, jnp.ones((depth, 8, 8))
    >>> table = checkpoint_table(make, 64, checkpoints=["body"], measure=False)
    >>> [round(row.flops_ratio, 1) for row in table]
    [1.0, 3.1, 4.1]

    Source: Griewank & Walther 2000, Algorithm 799: revolve (doi:10.1145/347837.347846); Chen et al. 2016, Training
    deep nets with sublinear memory cost (arXiv:1604.06174).
    """
    check_takes_checkpoint(make)
    is_list = not isinstance(checkpoints, str)
    require(is_list, "checkpoints to be a list", repr(checkpoints), f"write [{checkpoints!r}]", error=TypeError)
    f, x = made(make, depth)
    programs: dict[str, Callable] = {"function": f, "gradient": jax.value_and_grad(f)}
    for checkpoint in checkpoints:
        programs[checkpointed(checkpoint)] = jax.value_and_grad(made(make, depth, checkpoint=checkpoint)[0])
    table = table_of_programs(programs, x, measure=measure, repeats=repeats)
    rows = dict(table.rows)
    for checkpoint in checkpoints:
        if isinstance(checkpoint, int | np.integer):
            row = rows[checkpointed(checkpoint)]
            count = _with_loops(row.count, depth, int(checkpoint))
            whole = table.function.flops
            ratio = count.flops / whole if whole else math.nan
            rows[row.name] = dataclasses.replace(row, count=count, flops_ratio=ratio)
    return CostTable(rows)


def _with_loops(count: Count, depth: int, snapshots: Any) -> Count:
    """The count of a gradient with snapshots, with all steps that it computes again.

    They run in a ``while`` loop before each of the steps in reverse; how many they are in all follows from the
    schedule, and `count_flops`, which does not read it, counts one iteration of each loop.
    """
    again = int(np.sum(np.arange(depth) - binomial_schedule(depth, min(snapshots, depth)).begins))
    known = [loop for loop in count.loops if loop.times == depth]
    total = sum(((again - depth) * loop.once for loop in known), count)
    return dataclasses.replace(total, loops=tuple(loop for loop in count.loops if loop not in known))
