"""Numbers per scale, spread out along the weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pathspace.optim.sheets import Sheet, Side


class Table:
    """A number per scale, spread out along the weights of every sheet.

    Attributes:
        parts: by sheet, a factor that broadcasts against the matrix; ``None`` where there is none.
        index: by dtype, the scales in the order of memory.
        memory: by dtype, what the parts are views of.
        repeated: in place of an index, where networks lie side by side.
    """

    def __init__(self, sheets: Sequence[Sheet], indices: Sequence[Tensor | None]) -> None:
        self.parts: list[Tensor | None] = [None] * len(sheets)
        self.starts = [0] * len(sheets)
        self.index: dict[torch.dtype, Tensor] = {}
        self.memory: dict[torch.dtype, Tensor] = {}
        self.repeated: list[tuple[torch.dtype, Repeated]] = []
        for dtype in {sheet.dtype for sheet in sheets}:
            places = [
                place
                for place, (sheet, index) in enumerate(zip(sheets, indices, strict=True))
                if index is not None and sheet.dtype == dtype
            ]
            if not places:
                continue
            found = [index for index in (indices[place] for place in places) if index is not None]
            device = sheets[places[0]].device
            count = sum(index.numel() for index in found)
            memory = torch.ones(count, dtype=dtype, device=device)
            self.memory[dtype] = memory
            start = 0
            for place, index in zip(places, found, strict=True):
                part = memory[start : start + index.numel()].view(index.shape)
                self.parts[place], self.starts[place] = part, start
                start += index.numel()
                if sheets[place].copies > 1:
                    self.repeated.append((dtype, Repeated(sheets[place], index, part)))
            if not self.repeated:
                self.index[dtype] = torch.cat([index.reshape(-1) for index in found]).to(device)

    def fill(self, by_scale: Tensor) -> None:
        """Write the numbers of all scales."""
        for dtype, index in self.index.items():
            memory = self.memory[dtype]
            torch.index_select(by_scale.to(memory), 0, index, out=memory)
        for dtype, repeated in self.repeated:
            repeated.fill(by_scale.to(self.memory[dtype]))

    def sum_into(self, total: Tensor) -> Tensor:
        """Sum what was written into the parts by scale."""
        total.zero_()
        for dtype, index in self.index.items():
            memory = self.memory[dtype]
            total.scatter_add_(0, index, memory if dtype == total.dtype else memory.to(total.dtype))
        for _, repeated in self.repeated:
            repeated.sum_into(total)
        return total


class Repeated:
    """The scales along a sheet of several networks: the same along an axis, with few exceptions.

    A weight of shape (T, O, I) has sources (T, 1, I) and targets (T, O, 1), but for the entries of
    skeleton weights. So little has to be looked up, and all of it at once.
    """

    def __init__(self, sheet: Sheet, index: Tensor, part: Tensor) -> None:
        self._flat = part.view(-1)
        rule, chosen = torch.empty_like(index), []
        for found, base in zip(sheet.split(index), sheet.split(rule), strict=True):
            axis, common = min(
                (_common(found, axis) for axis in range(1, found.dim())),
                key=lambda pair: int((pair[1] != found).sum()),
            )
            base.copy_(common)
            chosen.append((axis, common))
        indices = [common.reshape(-1) for _, common in chosen]
        self._index = torch.cat(indices).to(part.device)
        self._numbers = part.new_empty(len(self._index))  # one for each that is looked up
        pieces = self._numbers.split([len(one) for one in indices])
        self._pieces = [one.view(c.shape) for one, (_, c) in zip(pieces, chosen, strict=True)]
        self._views, self._axes = sheet.split(part), [axis for axis, _ in chosen]
        where = (index != rule).view(-1).nonzero().squeeze(1)
        self._own, self._wrong = (one.view(-1)[where].to(part.device) for one in (index, rule))
        self._where = where.to(part.device)

    def fill(self, numbers: Tensor) -> None:
        """Write the numbers of all scales."""
        torch.index_select(numbers, 0, self._index, out=self._numbers)
        torch._foreach_copy_(self._views, self._pieces)
        self._flat.index_copy_(0, self._where, numbers.index_select(0, self._own))

    def sum_into(self, total: Tensor) -> None:
        """Add what was written to the sums by scale."""
        for view, piece, axis in zip(self._views, self._pieces, self._axes, strict=True):
            if piece.shape == view.shape:
                piece.copy_(view)
            else:
                torch.sum(view, axis, keepdim=True, out=piece)
        values = self._flat.index_select(0, self._where).to(total.dtype)
        total.index_add_(0, self._index, self._numbers.to(total.dtype))
        total.index_add_(0, self._own, values).index_add_(0, self._wrong, values, alpha=-1)


def _common(index: Tensor, axis: int) -> tuple[int, Tensor]:
    """What most entries along an axis are, going by the first three; all of them on a vector."""
    if index.dim() < 3 or index.shape[axis] < 3:
        return axis, index
    return axis, index.narrow(axis, 0, 3).median(axis, keepdim=True).values


def by_end(sheets: Sequence[Sheet], side: Side) -> list[Tensor | None]:
    """The index of a table along one end of all weights; nothing where all of it is pinned."""
    found = [sheet.scales(side) for sheet in sheets]
    return [scales if bool((scales != 0).any()) else None for scales in found]
