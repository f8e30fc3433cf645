"""Sums of the squares of basis-path values by source and by target, some rows at a time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Piece:
    """Some rows of a matrix, and the flat places of skeleton weights in them."""

    some: slice
    skeleton: Tensor

    @property
    def rows(self) -> int:
        """How many."""
        return int(self.some.stop - self.some.start)

    def of(self, factor: Tensor) -> Tensor:
        """The same rows of a factor that broadcasts against the matrix."""
        return factor if len(factor) == 1 else factor[self.some]

    def off_skeleton(self, part: Tensor) -> Tensor:
        """Set these rows of a matrix to zero at the skeleton weights."""
        if len(self.skeleton):
            part.view(-1).index_fill_(0, self.skeleton.to(part.device), 0.0)
        return part


class SquareSums:
    """The sums of v² = (w I O)² by source and by target.

    Args:
        source: I² by source.
        target: O² by target.
        wanted: whether the sums by source are needed, and those by target.
    """

    def __init__(self, source: Tensor, target: Tensor, wanted: tuple[bool, bool]) -> None:
        self.factors, self.wanted = (source, target), wanted
        self.found = torch.zeros_like(source), torch.zeros_like(target)

    def add_(self, piece: Piece, squares: Tensor) -> None:
        """Add some rows, given w² (which is overwritten)."""
        for factor in self.factors:
            squares.mul_(piece.of(factor))
        for sums, is_wanted in zip(self.found, self.wanted, strict=True):
            part = piece.of(sums)
            if is_wanted:
                part.add_(squares.sum_to_size(part.shape))

    def by_end(self) -> tuple[Tensor, Tensor]:
        """The sums by source and by target, when all rows have been added."""
        return self.found


class OuterSums(SquareSums):
    """The same where one factor is a row and the other a column: products with vectors.

    Args:
        source: I² by source.
        target: O² by target.
        wanted: whether the sums by source are needed, and those by target.
        shape: of the matrix.
        swapped: whether the factor by target is the row.
    """

    def __init__(
        self,
        source: Tensor,
        target: Tensor,
        wanted: tuple[bool, bool],
        shape: tuple[int, int],
        swapped: bool,
    ) -> None:
        self.factors, self.swapped = (source, target), swapped
        self.wanted = wanted[::-1] if swapped else wanted
        row, column = (target, source) if swapped else (source, target)
        self.row = row.expand(1, shape[1]).reshape(-1).contiguous()
        self.column = column.expand(shape[0], 1).reshape(-1).contiguous()

    @cached_property
    def along(self) -> Tensor:
        """The sums along rows, to be written."""
        return torch.zeros_like(self.column)

    @cached_property
    def across(self) -> Tensor:
        """The sums over rows."""
        return torch.zeros_like(self.row)

    def add_(self, piece: Piece, squares: Tensor) -> None:
        """Add some rows, given w²."""
        by_row, by_column = self.wanted
        if by_column:
            torch.mv(squares, self.row, out=self.along[piece.some])
        if by_row:
            self.across.addmv_(squares.T, self.column[piece.some])

    def by_end(self) -> tuple[Tensor, Tensor]:
        """The sums by source and by target, when all rows have been added."""
        row, column = (self.across * self.row)[None], (self.along * self.column)[:, None]
        pair = (column, row) if self.swapped else (row, column)
        source, target = (t.sum_to_size(f.shape) for t, f in zip(pair, self.factors, strict=True))
        return source, target
