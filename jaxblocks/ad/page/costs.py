"""What derivatives cost, as data: the rows of the cost table, the share of each layer, and the plan of the Jacobian."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from jaxblocks.ad.costs.tables import CostTable
from jaxblocks.ad.counting.counts import Count
from jaxblocks.ad.jacobians.jacobians import jacobian_plan
from jaxblocks.ad.planning import JacobianPlan

__all__ = ["costs_of", "plan_of"]

MOST_LAYERS = 64  # rows of the table by layer

WORDS = {
    "function": "f(x)",
    "jvp": "f(x) and J v, one pass of forward mode",
    "vjp": "f(x) and uᵀJ, one pass of reverse mode",
    "gradient": "f(x) and its gradient, reverse mode from one number",
    "jacfwd": "the Jacobian J by forward mode, one pass for each entry of x",
    "jacrev": "the Jacobian J by reverse mode, one pass for each entry of f(x)",
    "hessian": "the Hessian H, one product for each entry of x",
    "hvp": "H v, forward over reverse mode",
    "hvp_reverse_over_forward": "H v, reverse over forward mode",
    "hvp_reverse_over_reverse": "H v, reverse over reverse mode",
    "directional_curvature": "vᵀH v, Taylor mode of order two: no value is stored",
}


def costs_of(table: CostTable, kind_of: Callable[[str], str]) -> dict[str, Any]:
    """The rows of a cost table as data, and the operations of each layer."""
    rows = [
        {
            "name": row.name,
            "words": WORDS.get(row.name, ""),
            "operations": row.flops,
            "multiplications": row.count.multiplications,
            "additions": row.count.additions,
            "transcendentals": row.count.transcendentals,
            "bytes": row.count.bytes,
            "ratio": _finite(row.flops_ratio),
            "seconds": row.seconds,
            "quartiles": row.quartiles,
            "timeRatio": row.time_ratio,
            "temporaryBytes": row.temporary_bytes,
        }
        for row in table
    ]
    scopes = _scopes({row.name: row.count for row in table})
    layers = [
        {
            "name": scope,
            "kind": kind_of(scope),
            "operations": {row.name: _within(row.count, scope, scopes) for row in table},
        }
        for scope in scopes
    ]
    return {"rows": rows, "notes": table.notes(), "layers": layers if any(scopes) else []}


def _scopes(counts: dict[str, Count]) -> list[str]:
    """The named scopes of the table by layer, as deep as at most `MOST_LAYERS` allow, in the order of the function."""
    paths = list(dict.fromkeys(path for count in counts.values() for path in count.scopes))
    deepest = max((path.count("/") + 1 for path in paths), default=1)
    cuts = [list(dict.fromkeys("/".join(path.split("/")[:depth]) for path in paths)) for depth in range(1, deepest + 1)]
    # The deepest level of nesting whose rows fit onto the page.
    few = [cut for cut in cuts if len(cut) <= MOST_LAYERS]
    return few[-1] if few else []


def _within(count: Count, scope: str, scopes: Sequence[str]) -> int:
    """The operations of a scope, without those of nested scopes that have rows of their own."""
    depth = max((path.count("/") + 1 for path in scopes if path), default=1)
    return sum(own.flops for path, own in count.scopes.items() if "/".join(path.split("/")[:depth]) == scope)


def plan_of(f: Callable, x: Any) -> tuple[dict[str, Any] | str, JacobianPlan | None]:
    """The plan of the Jacobian as data, or the reason why there is none; and the plan itself."""
    try:
        plan = jacobian_plan(f, x)
    except TypeError as error:
        return str(error), None
    stages = [
        {
            "name": stage.name,
            "kind": stage.kind,
            "inputs": stage.n_in,
            "outputs": stage.n_out,
            "operations": stage.operations,
            "primitives": stage.made_of,
        }
        for stage in plan.stages
    ]
    data = {
        "mode": plan.mode,
        "inputs": plan.n_in,
        "outputs": plan.n_out,
        "stages": stages,
        "bracketing": plan.bracketing,
        "operations": plan.operations,
        "times": {name: _finite(seconds / plan.seconds["chosen"]) for name, seconds in plan.seconds.items()},
        "sweeps": list(plan.sweeps),
        "chunkSize": plan.chunk_size,
        "temporaryBytes": plan.temporary_bytes,
        "gain": _finite(plan.gain),
        "reason": plan.reason,
    }
    return data, plan


def _finite(number: float | None) -> float | None:
    """A number, or ``None`` for what JSON does not have."""
    return number if number is not None and math.isfinite(number) else None
