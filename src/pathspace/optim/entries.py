"""Single weights of several sheets as one vector."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pathspace.optim.sheets import Sheet
from pathspace.weightgraph import WeightGraph


class Entries:
    """Single weights of several sheets, given by their numbers in the graph, as one vector.

    Attributes:
        parts: by sheet that has any: its place, the rows of the vector, the places in the matrix.
    """

    def __init__(self, graph: WeightGraph, sheets: Sequence[Sheet], numbers: Tensor) -> None:
        self.size = len(numbers)
        self.device = sheets[0].device if sheets else torch.device("cpu")
        homes = {
            leaf.name: (place, leaf, number)
            for place, sheet in enumerate(sheets)
            for number, leaf in enumerate(sheet.leaves)
        }
        owner = torch.searchsorted(graph.start, numbers, right=True) - 1
        found: dict[int, list[tuple[Tensor, Tensor]]] = {}
        for k in torch.unique(owner[numbers >= 0]).tolist():
            place, leaf, number = homes[graph.edges[k].parameter]
            rows = ((owner == k) & (numbers >= 0)).nonzero().squeeze(1)
            where = leaf.index(numbers[rows] - graph.start[k])
            found.setdefault(place, []).append((rows, sheets[place].place(number, where)))
        self.parts: list[tuple[int, Tensor, Tensor]] = []
        for place, pairs in found.items():
            rows, where = (torch.cat(column).to(self.device) for column in zip(*pairs, strict=True))
            self.parts.append((place, rows, where))
        # Entry i of the vector is entry origin[i] of the parts one after the other and a last 0.
        origin = torch.full((self.size,), sum(len(rows) for _, rows, _ in self.parts))
        if self.parts:
            rows = torch.cat([rows.cpu() for _, rows, _ in self.parts])
            origin[rows] = torch.arange(len(rows))
        self._origin = origin.to(self.device)
        self._zero = torch.zeros(1, dtype=torch.float64, device=self.device)

    def only(self, sheets: Sequence[Sheet], kept: Sequence[bool]) -> Entries:
        """Those in some of the sheets, in their dtype; the others count as absent."""
        result = object.__new__(Entries)
        result.__dict__ |= self.__dict__
        result.parts = [part for part in self.parts if kept[part[0]]]
        dtypes = {sheets[place].dtype for place, _, _ in result.parts}
        if len(dtypes) == 1:  # what is multiplied once needs no more digits
            result._zero = self._zero.to(dtypes.pop())
        rows = [rows for _, rows, _ in result.parts]
        count = sum(map(len, rows))
        result._origin = torch.full_like(self._origin, count)
        if rows:
            result._origin[torch.cat(rows)] = torch.arange(count, device=self.device)
        return result

    def take(self, matrices: Sequence[Tensor | None]) -> Tensor:
        """The entries in float64; 0 where there is none."""
        found = []
        for place, _, where in self.parts:
            matrix = matrices[place]
            found.append(
                self._zero.expand(len(where))
                if matrix is None
                else matrix.reshape(-1).index_select(0, where)
            )
        return torch.cat([*found, self._zero]).index_select(0, self._origin)

    def put_(self, matrices: Sequence[Tensor | None], values: Tensor) -> None:
        """Write the entries."""
        for place, rows, where in self.parts:
            matrix = matrices[place]
            if matrix is not None:
                new = values.index_select(0, rows).to(matrix.dtype)
                matrix.view(-1).index_copy_(0, where, new)
