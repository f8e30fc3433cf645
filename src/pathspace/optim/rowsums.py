"""Sums of the squares of what enters every unit, over all layers in one pass in C."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pathspace import native
from pathspace.network import Edge
from pathspace.weightgraph import sum_to


class EnteringSums:
    """Sums of squares times scales over what enters the same target, for some weight tensors.

    Where a row of a matrix is what enters a unit, a pass in C does it. What that reads and writes
    is put down once, for as long as the weights stay where they are.

    Args:
        edges: whose weights these are.
    """

    def __init__(self, edges: Sequence[Edge]) -> None:
        self.edges = edges
        self._pass: _RowPass | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_pass": None}

    def __call__(self, weights: Sequence[Tensor], scales: Tensor) -> Tensor:
        """The sums of all edges in a row, in float64.

        Args:
            weights: on the CPU, one for each edge.
            scales: a factor of the squares for each source, of all edges in a row; in float64.
        """
        places = [k for k in range(len(weights)) if self._is_by_row(k, weights)]
        if not places:
            return torch.cat(self._by_torch(range(len(weights)), weights, scales))
        if self._pass is None or not self._pass.is_for(places, weights):
            self._pass = _RowPass(places, weights, self._index(places))
        found = self._pass(scales)
        if len(places) == len(weights):
            return found
        parts = dict(zip(places, found.split([len(weights[k]) for k in places]), strict=True))
        others = [k for k in range(len(weights)) if k not in parts]
        parts |= zip(others, self._by_torch(others, weights, scales), strict=True)
        return torch.cat([parts[k] for k in range(len(weights))])

    def _is_by_row(self, place: int, weights: Sequence[Tensor]) -> bool:
        """Whether a pass in C can do it, in the dtype of the first weight."""
        edge, weight = self.edges[place], weights[place]
        shape, source = edge.target_scale.shape, edge.source_scale
        return (
            weight.dim() > 0
            and weight.numel() > 0
            and shape.numel() == len(weight) == shape[0]
            and len(source) == 1
            and native.fits(weight, weights[0])
        )

    def _index(self, places: Sequence[int]) -> Tensor:
        """Which of all scales belongs to each entry of a row, for matrices one after the other."""
        sources = [edge.source_scale for edge in self.edges]
        parts = torch.arange(sum(map(Tensor.numel, sources))).split([*map(Tensor.numel, sources)])
        rows = [parts[k].view(sources[k].shape).expand(1, *self.edges[k].shape[1:]) for k in places]
        return torch.cat([row.reshape(-1) for row in rows])

    def _by_torch(
        self, places: Sequence[int], weights: Sequence[Tensor], scales: Tensor
    ) -> list[Tensor]:
        """The same for some edges in torch's operations."""
        parts = scales.split([edge.source_scale.numel() for edge in self.edges])
        result = []
        for place in places:
            edge, weight = self.edges[place], weights[place]
            scale, shape = parts[place].view(edge.source_scale.shape), edge.target_scale.shape
            square = weight.to(torch.promote_types(weight.dtype, torch.float32)).square()
            both = [d for d in range(weight.dim()) if shape[d] == 1 and scale.shape[d] == 1]
            if both and weight.dim():  # a kernel, before anything is multiplied
                square = square.sum(both, keepdim=True)
            result.append(sum_to(square * scale.to(square), shape).reshape(-1).double())
        return result


class _RowPass:
    """A pass over rows of some of the weights.

    Args:
        places: which ones.
        weights: all weights.
        index: which scales belong to the entries of a row of each, one after the other.
    """

    def __init__(self, places: list[int], weights: Sequence[Tensor], index: Tensor) -> None:
        self._key = self._key_of(places, weights)
        given = [weights[k].view(len(weights[k]), -1) for k in places]
        self._index, self._rows = index, given[0].new_empty(len(index))
        self._sums = given[0].new_empty(sum(map(len, given)))
        rows = self._rows.split([matrix.shape[1] for matrix in given])
        sums = self._sums.split([len(matrix) for matrix in given])
        self._pass = native.Sums(
            [
                native.Job(matrix, power=2, row=row, along=along)
                for matrix, row, along in zip(given, rows, sums, strict=True)
            ]
        )

    def is_for(self, places: list[int], weights: Sequence[Tensor]) -> bool:
        """Whether this is still where the weights are."""
        return self._key == self._key_of(places, weights)

    @staticmethod
    def _key_of(places: list[int], weights: Sequence[Tensor]) -> list[object]:
        return [(k, weights[k].data_ptr(), weights[k].shape, weights[k].dtype) for k in places]

    def __call__(self, scales: Tensor) -> Tensor:
        """The sums, in float64."""
        torch.index_select(scales.to(self._rows), 0, self._index, out=self._rows)
        self._pass.run()
        return self._sums.double()
