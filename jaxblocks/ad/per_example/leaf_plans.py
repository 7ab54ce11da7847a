"""Plans for the gradient of each parameter leaf: records and tables for per-example norms and tangent kernels."""

import dataclasses
from collections.abc import Sequence

from jaxblocks.ad.per_example.sites import Site

__all__ = ["LeafPlan", "leaf_table", "site_labels"]


@dataclasses.dataclass(frozen=True)
class LeafPlan:
    """The method for the gradient of one leaf.

    Attributes:
        name: of the leaf, as in ``"['kernel']"``.
        method: ``"pairs"`` (of positions), ``"chain"`` (pairs summed over one position after the other), ``"product"``
            (of the factors), ``"rows"`` (of a table) or ``"formed"`` (the gradient itself).
        reason: the reason for this method.
        sites: the products in which the leaf is used, as in ``"dense (1, 5, 3, 4)"``: the sizes of b, p, c, n.
        operations: predicted multiplications besides the backward pass, for one example (or a pair of them).
    """

    name: str
    method: str
    reason: str
    sites: tuple[str, ...]
    operations: int


def site_labels(sites: Sequence[Site]) -> tuple[str, ...]:
    """The kind and the sizes of each site, as text."""
    return tuple(f"{site.kind} {site.sizes}" for site in sites)


def leaf_table(leaves: Sequence[LeafPlan], style: str) -> str:
    """The table that a plan prints, in a format of tabulate."""
    from tabulate import tabulate

    columns = {
        "leaf": [leaf.name or "params" for leaf in leaves],
        "method": [leaf.method for leaf in leaves],
        "used as": [_summary(leaf.sites) for leaf in leaves],
        "operations": [f"{leaf.operations:,}" for leaf in leaves],
        "reason": [leaf.reason for leaf in leaves],
    }
    return tabulate(columns, headers="keys", tablefmt=style, colalign=("left", "left", "left", "right", "left"))


def _summary(labels: Sequence[str]) -> str:
    counts = {label: labels.count(label) for label in dict.fromkeys(labels)}
    return ", ".join(label if n == 1 else f"{n} x {label}" for label, n in counts.items()) or "-"
