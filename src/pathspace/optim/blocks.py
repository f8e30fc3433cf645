"""Sheets cut into blocks that fit the cache.

An elementwise step over large tensors is bound by memory: every full-size temporary costs as much
as the arithmetic. So a step goes through a large parameter block by block, with all operations on
one block while it is in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from pathspace.optim.lists import Group, settings_at
from pathspace.optim.sheets import SIZE, Matrices, Sheet

Result = TypeVar("Result")


@dataclass
class Block:
    """Some rows of a sheet, given by its place in the list of sheets."""

    place: int
    start: int
    stop: int
    whole: bool

    def of(self, matrix: Tensor) -> Tensor:
        """The same rows of a matrix, or of a factor for all rows."""
        if self.whole or matrix.shape[0] == 1:
            return matrix
        return matrix[self.start : self.stop]


@dataclass
class Batch:
    """Blocks that are worked on together: of one group, dtype and device."""

    group: int
    dtype: torch.dtype
    blocks: list[Block] = field(default_factory=list)
    _held: dict[str, tuple[tuple[object, ...], Any]] = field(default_factory=dict, repr=False)

    def keep(self, what: str, take: Callable[[Matrices], Result], matrices: Matrices) -> Result:
        """What was taken from these very matrices before: slices cost as much as small sums."""
        if torch.compiler.is_compiling():
            return take(matrices)
        return self.keep_all(what, lambda: take(matrices), (matrices,))

    def keep_all(self, what: str, make: Callable[[], Result], parts: tuple[object, ...]) -> Result:
        """What was made of these very parts before."""
        held = self._held.get(what)
        if held is None or list(map(id, held[0])) != list(map(id, parts)):
            held = self._held[what] = (parts, make())
        result: Result = held[1]
        return result

    def given(self, gradients: Matrices) -> Batch:
        """The blocks that have a gradient."""
        return self.some(lambda place: gradients[place] is not None)

    def some(self, is_wanted: Callable[[int], bool]) -> Batch:
        """The blocks of some sheets."""
        found = [block for block in self.blocks if is_wanted(block.place)]
        return self if len(found) == len(self.blocks) else Batch(self.group, self.dtype, found)

    def alone(self, block: Block) -> Batch:
        """One of the blocks; always the same batch."""
        what = f"block {block.place}, {block.start}"
        return self.keep_all(what, lambda: Batch(self.group, self.dtype, [block]), ())

    def of(self, matrices: Matrices) -> list[Tensor] | None:
        """The rows of the blocks; 1 where there is no matrix, nothing if there is none at all."""
        found = [matrices[block.place] for block in self.blocks]
        first = next((matrix for matrix in found if matrix is not None), None)
        if first is None:
            return None
        return [
            _ONE.to(first.device, self.dtype) if matrix is None else block.of(matrix)
            for block, matrix in zip(self.blocks, found, strict=True)
        ]

    def settings(self, group: Group, like: Tensor) -> Group:
        """The hyper-parameters of the blocks; where they differ by row, there is one block."""
        block = self.blocks[0]
        return settings_at(group, slice(block.start, block.stop), like)

    def all_of(self, matrices: Matrices) -> list[Tensor]:
        """The rows of the blocks; all matrices must be there."""
        return [block.of(_present(matrices[block.place])) for block in self.blocks]


def _present(matrix: Tensor | None) -> Tensor:
    assert matrix is not None
    return matrix


_ONE = torch.ones(1, 1)


def cut(sheets: Iterable[Sheet], size: float = SIZE) -> list[Batch]:
    """Cut sheets into blocks, and put small ones together."""
    batches: list[Batch] = []
    unfilled: dict[object, tuple[Batch, float]] = {}
    for place, sheet in enumerate(sheets):
        count = sheet.rows * sheet.columns
        if not count:
            continue
        blocks = max(1, round(count / size)) if sheet.device.type == "cpu" else 1
        rows = -(-sheet.rows // blocks)
        if count >= size:
            for start in range(0, sheet.rows, rows):
                stop = min(start + rows, sheet.rows)
                block = Block(place, start, stop, rows >= sheet.rows)
                batches.append(Batch(sheet.group, sheet.dtype, [block]))
            continue
        key = (sheet.group, sheet.dtype, sheet.device)
        batch, filled = unfilled.get(key, (None, size))
        if batch is None or filled + count > size:
            batch, filled = Batch(sheet.group, sheet.dtype), 0
            batches.append(batch)
        batch.blocks.append(Block(place, 0, sheet.rows, whole=True))
        unfilled[key] = (batch, filled + count)
    return batches


def uncut(sheets: Iterable[Sheet]) -> list[Batch]:
    """Whole sheets, all together that may be."""
    return cut(sheets, math.inf)
