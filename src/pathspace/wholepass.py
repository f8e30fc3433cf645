"""The gradient of the basis-path penalty on whole matrices, for a compiler.

In :mod:`pathspace.basismatrix` every operation is a pass over some rows, which are few enough to
stay in the cache. A compiler makes one pass over the whole matrix of all operations, and a second
one of the sums of rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

LARGE = 2**15  # weights: what compiling is worth while for
FEW = 5  # rows that are added up in registers: the sums of so many are one pass


class SkeletonPlaces(NamedTuple):
    """Where a matrix has skeleton weights.

    A unit has one skeleton weight into it and one out of it. So there are two kinds of them in a
    matrix: at most one of the first in a row, at most one of the second in a column.

    Attributes:
        rows: (rows, 1) their numbers, which a compiled pass reads faster than it counts.
        columns: (1, columns) their numbers.
        in_row: (rows, 1) the column of the skeleton weight in each row, or -1.
        in_column: (1, columns) the row of the skeleton weight in each column, or -1.
    """

    rows: Tensor
    columns: Tensor
    in_row: Tensor
    in_column: Tensor

    @classmethod
    def of(
        cls,
        row_wise: Tensor,
        column_wise: Tensor,
        shape: tuple[int, int],
        device: torch.device,
    ) -> SkeletonPlaces:
        """From flat places.

        Args:
            row_wise: those into units (out of them, if a row is what leaves a unit).
            column_wise: the others.
            shape: of the matrix.
            device: where it is.
        """
        rows, columns = (torch.arange(n, dtype=torch.int32) for n in shape)
        in_row, in_column = torch.full_like(rows, -1), torch.full_like(columns, -1)
        in_row[row_wise // shape[1]] = (row_wise % shape[1]).int()
        in_column[column_wise % shape[1]] = (column_wise // shape[1]).int()
        return cls(
            *(
                t.to(device)
                for t in (rows[:, None], columns[None], in_row[:, None], in_column[None])
            )
        )


class Whole(NamedTuple):
    """A matrix of weights and what is done to it.

    Attributes:
        weight: the matrix; not changed.
        result: what the gradient is added to.
        scale: λ1 and what the other factors have in common.
        row: (1, columns) one of the factors I² and O².
        column: (rows, 1) the other.
        skeleton: where there are skeleton weights.
        along: whether sums along rows are wanted.
        across: whether sums of rows are wanted.
    """

    weight: Tensor
    result: Tensor
    scale: Tensor
    row: Tensor
    column: Tensor
    skeleton: SkeletonPlaces
    along: bool
    across: bool


def add_and_sum_along(wholes: list[Whole]) -> list[Tensor | None]:
    """Add λ1 w (I O)² off the skeleton to the results.

    Args:
        wholes: the matrices.

    Returns:
        For each the sums along rows of w² times the row; ``None`` where they are not wanted.
    """
    found: list[Tensor | None] = []
    for whole in wholes:
        off = _off_skeleton(whole)
        whole.result.add_(off * (whole.row * whole.column) * whole.scale)
        found.append((off.square() * whole.row).sum(1) if whole.along else None)
    return found


def sum_across(wholes: list[Whole]) -> list[list[Tensor]]:
    """Sums of rows of w² times the column, a few rows each; none where they are not wanted.

    Their own sum is left to the caller: torch is faster at it than what a compiler makes of it.
    """
    found: list[list[Tensor]] = []
    for whole in wholes:
        parts = []
        if whole.across:
            matrix = _off_skeleton(whole).square() * whole.column
            height, width = matrix.shape
            most = height // FEW * FEW
            parts.append(matrix[:most].reshape(-1, FEW, width).sum(1))
            if most < height:
                parts.append(matrix[most:].sum(0, keepdim=True))
        found.append(parts)
    return found


def _off_skeleton(whole: Whole) -> Tensor:
    rows, columns, in_row, in_column = whole.skeleton
    return torch.where((columns == in_row) | (rows == in_column), 0.0, whole.weight)
