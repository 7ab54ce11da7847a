"""The base class of the records of linear regions: their counts, and the table that prints them."""

from collections.abc import Iterator

import numpy as np

__all__ = ["RegionCounts"]


class RegionCounts:
    """The counts of a record with the attributes ``slopes`` and ``linear_region``."""

    slopes: np.ndarray
    linear_region: np.ndarray

    def __len__(self):
        return self.activation_count

    def __repr__(self):
        return self._table("plain")

    def _repr_html_(self) -> str:
        return self._table("html")

    @property
    def activation_count(self) -> int:
        """The number of activation regions."""
        return len(self.slopes)

    @property
    def linear_count(self) -> int:
        """The number of linear regions."""
        return int(self.linear_region.max()) + 1

    def _lines(self) -> Iterator[tuple[int, str]]:
        raise NotImplementedError

    def _table(self, style):
        from tabulate import tabulate

        rows = [[f"{count:,}", what] for count, what in self._lines()]
        return tabulate(rows, tablefmt=style, colalign=["right", "left"])
