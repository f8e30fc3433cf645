"""Parameters as matrices, cut into blocks that fit the cache.

An elementwise step over large tensors is bound by memory: every full-size temporary costs as much
as the arithmetic. So a step goes through a large parameter block by block, with all operations on
one block while it is in the cache. For small parameters the calls themselves cost more than the
arithmetic; so these are laid end to end and stepped as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from pathspace.network import Edge
from pathspace.optim.lists import Group, settings_at
from pathspace.weightgraph import WeightGraph

SIZE = 2**17  # scalars in a block: with its gradient and a product 1.5 MB, a second-level cache
SMALL = 2**14  # parameters with fewer scalars are laid end to end
Side = Literal["target", "source"]
Matrices = Sequence[Tensor | None]  # one per sheet
Result = TypeVar("Result")


class Leaf:
    """A parameter seen as a matrix: its first axis, and all others flattened, in memory order.

    Attributes:
        parameter: the parameter.
        name: its name in the model, or its number for a parameter outside of it.
        group: the number of its group.
        edge: its edges in the graph; ``None`` if the graph does not reach it.
        order: the axes of the parameter, longest stride first.
        dtype: what it is stepped in: its own dtype, or float32 if that is coarser.
    """

    def __init__(self, parameter: Tensor, name: str, group: int, edge: Edge | None) -> None:
        self.parameter, self.name, self.group, self.edge = parameter, name, group, edge
        strides = parameter.stride()
        self.order = sorted(range(parameter.dim()), key=lambda d: -strides[d])
        self.rows = parameter.shape[self.order[0]] if parameter.dim() else 1
        self.columns = parameter.numel() // max(self.rows, 1)
        self.is_matrix = self.order == [0, 1]
        coarse = torch.finfo(parameter.dtype).bits < 32
        self.dtype = torch.float32 if coarse else parameter.dtype

    def matrix(self, tensor: Tensor) -> Tensor:
        """A tensor of the parameter's shape as a matrix: a view if its memory allows it."""
        if self.is_matrix:
            return tensor.contiguous()
        return tensor.permute(self.order).reshape(self.rows, self.columns)

    def unmatrix(self, matrix: Tensor) -> Tensor:
        """A matrix as a tensor of the parameter's shape; inverse of :meth:`matrix`."""
        shape = [self.parameter.shape[axis] for axis in self.order]
        back = sorted(range(len(self.order)), key=lambda place: self.order[place])
        return matrix.reshape(shape).permute(back)

    def factor(self, tensor: Tensor) -> Tensor:
        """A tensor that broadcasts against the parameter, as one that broadcasts as a matrix."""
        tensor = tensor.reshape((1,) * (self.parameter.dim() - tensor.dim()) + tensor.shape)
        if not tensor.dim():
            return tensor.reshape(1, 1)
        tensor = tensor.permute(self.order)
        if tensor.shape.numel() == tensor.shape[0]:
            return tensor.reshape(-1, 1)
        shape = [self.parameter.shape[axis] for axis in self.order]
        return tensor.expand(tensor.shape[0], *shape[1:]).reshape(tensor.shape[0], -1)

    def index(self, flat: Tensor) -> Tensor:
        """Places in the parameter, counted in its own order, as places in the matrix."""
        if not self.parameter.dim():
            return flat
        places = torch.unravel_index(flat, self.parameter.shape)
        result = torch.zeros_like(flat)
        for axis in self.order:
            result = result * self.parameter.shape[axis] + places[axis]
        return result

    def scales(self, side: Side) -> Tensor:
        """The scales at one end, (rows or 1, columns or 1)."""
        if self.edge is None:
            return torch.zeros(1, 1, dtype=torch.long)
        table = self.edge.scale(side)
        if not table.dim() or bool((table == 0).all()):
            return table.reshape(-1)[:1].reshape(1, 1)
        return self.factor(table)


class Sheet:
    """What a step works on as one matrix: a leaf, or several small ones end to end in one row.

    Where several networks lie side by side, all leaves are laid end to end, with one row for each
    of the networks.

    Attributes:
        leaves: the leaves, of one group, dtype and device.
        starts: where each begins in a row.
        single: whether it is one leaf, whose rows are those of the sheet.
        weight: their values: a view of the parameter, or a copy (:attr:`is_copy`) where there are
            several, memory is not contiguous, or the dtype too coarse to step in.
    """

    def __init__(self, leaves: Sequence[Leaf], copies: int = 1) -> None:
        self.leaves = list(leaves)
        first = self.leaves[0]
        self.group, self.dtype, self.device = first.group, first.dtype, first.parameter.device
        self.copies, self.single = copies, len(self.leaves) == 1 and copies == 1
        self.rows = first.rows if self.single else copies
        self._counts = [leaf.rows * leaf.columns // max(self.rows, 1) for leaf in self.leaves]
        self.starts = [sum(self._counts[:place]) for place in range(len(self._counts))]
        self.columns = sum(self._counts)
        self._parameters = [leaf.parameter.detach() for leaf in self.leaves]
        self.weight = self.join(self._parameters)
        self.is_copy = self.weight.data_ptr() != first.parameter.data_ptr()
        self._views = self.split(self.weight)
        self.kept: dict[str, Tensor] = {}  # state, as matrices
        self._gradient: Tensor | None = None

    @property
    def name(self) -> str:
        """The names of its leaves."""
        return ", ".join(leaf.name for leaf in self.leaves)

    def join(self, tensors: Sequence[Tensor]) -> Tensor:
        """One tensor per leaf as one matrix."""
        if self.single:
            matrix = self.leaves[0].matrix(tensors[0])
            return matrix if matrix.dtype == self.dtype else matrix.to(self.dtype)
        parts = [
            (tensor if self.copies > 1 else leaf.matrix(tensor)).reshape(self.rows, -1)
            for leaf, tensor in zip(self.leaves, tensors, strict=True)
        ]
        whole = side_by_side(parts)
        matrix = torch.cat(parts, 1) if whole is None else whole
        return matrix if matrix.dtype == self.dtype else matrix.to(self.dtype)

    def split(self, matrix: Tensor) -> list[Tensor]:
        """The parts of a matrix, as views of the parameters' shapes; inverse of :meth:`join`."""
        if self.single:
            return [self.leaves[0].unmatrix(matrix)]
        parts = matrix.split(self._counts, 1)
        return [leaf.unmatrix(part) for leaf, part in zip(self.leaves, parts, strict=True)]

    def gradient(self) -> Tensor | None:
        """The gradients as a matrix; ``None`` if there is none."""
        gradients = [leaf.parameter.grad for leaf in self.leaves]
        if gradients[0] is None:
            return None
        if self.single:
            return self.join(gradients)  # type: ignore[arg-type]
        if self._gradient is None:
            self._gradient = torch.empty_like(self.weight)
            self._slots = self.split(self._gradient)
        torch._foreach_copy_(self._slots, gradients)  # type: ignore[arg-type]
        return self._gradient

    def load(self) -> None:
        """Copy the parameters' values into :attr:`weight`, where that is a copy."""
        if self.is_copy:
            torch._foreach_copy_(self._views, self._parameters)

    def store(self) -> None:
        """Copy them back."""
        if self.is_copy:
            torch._foreach_copy_(self._parameters, self._views)

    def scales(self, side: Side) -> Tensor:
        """The scales at one end: broadcastable for a leaf, one per entry for several."""
        if self.single:
            return self.leaves[0].scales(side)
        return self.spread([leaf.scales(side) for leaf in self.leaves])

    def spread(self, factors: Sequence[Tensor]) -> Tensor:
        """One factor per leaf, of which each broadcasts, as one entry per weight."""
        parts = [
            factor.expand(leaf.rows, leaf.columns).reshape(self.rows, -1)
            for leaf, factor in zip(self.leaves, factors, strict=True)
        ]
        return torch.cat(parts, 1)

    def place(self, number: int, places: Tensor) -> Tensor:
        """Places in the matrix of a leaf as places in that of the sheet."""
        count = self._counts[number]
        return places // count * self.columns + self.starts[number] + places % count


def side_by_side(parts: Sequence[Tensor]) -> Tensor | None:
    """The matrix whose columns these matrices are, if they lie so in memory."""
    first, columns, start = parts[0], 0, parts[0].data_ptr()
    for part in parts:
        if part.stride() != first.stride() or part.data_ptr() != start + columns * part.itemsize:
            return None
        columns += part.shape[1]
    if first.stride(1) != 1 or columns > first.stride(0):
        return None
    return first.as_strided((len(first), columns), first.stride())


def lay_out(leaves: Iterable[tuple[Leaf, object]], copies: int = 1) -> list[Sheet]:
    """Put small leaves end to end, as far as they have a common group, dtype, device and key."""
    sheets: list[list[Leaf]] = []
    unfilled: dict[object, list[Leaf]] = {}
    for leaf, key in leaves:
        is_small = leaf.parameter.numel() < SMALL and leaf.parameter.device.type == "cpu"
        if copies == 1 and not is_small:
            sheets.append([leaf])
            continue
        whole = (leaf.group, leaf.dtype, leaf.parameter.dtype, key)
        members = unfilled.get(whole)
        full = copies == 1 and members and sum(m.parameter.numel() for m in members) >= SIZE
        if members is None or full:
            members = unfilled[whole] = []
            sheets.append(members)
        members.append(leaf)
    return [Sheet(members, copies) for members in sheets]


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
            found = [_present(indices[place]) for place in places]
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
            numbers = by_scale if by_scale.dtype == dtype else by_scale.to(dtype)
            torch.index_select(numbers, 0, index, out=self.memory[dtype])
        for dtype, repeated in self.repeated:
            repeated.fill(by_scale.to(dtype))

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
    skeleton weights. So little has to be looked up.
    """

    def __init__(self, sheet: Sheet, index: Tensor, part: Tensor) -> None:
        self.device, self._flat = part.device, part.view(-1)
        self._views: list[tuple[Tensor, Tensor, int]] = []
        rule = torch.empty_like(index)
        for found, base, view in zip(
            sheet.split(index), sheet.split(rule), sheet.split(part), strict=True
        ):
            axis, common = min(
                (_common(found, axis) for axis in range(1, found.dim())),
                key=lambda pair: int((pair[1] != found).sum()),
            )
            base.copy_(common)
            self._views.append((view, common.to(self.device), axis))
        self._where = (index != rule).view(-1).nonzero().squeeze(1).to(self.device)
        self._own = index.view(-1)[self._where.cpu()].to(self.device)
        self._wrong = rule.view(-1)[self._where.cpu()].to(self.device)

    def fill(self, numbers: Tensor) -> None:
        """Write the numbers of all scales."""
        for view, common, _ in self._views:
            view.copy_(numbers[common])
        self._flat.index_copy_(0, self._where, numbers[self._own])

    def sum_into(self, total: Tensor) -> None:
        """Add what was written to the sums by scale."""
        for view, common, axis in self._views:
            found = view if common.shape == view.shape else view.sum(axis, keepdim=True)
            total.index_add_(0, common.reshape(-1), found.reshape(-1).to(total.dtype))
        values = self._flat.index_select(0, self._where).to(total.dtype)
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


def _present(index: Tensor | None) -> Tensor:
    assert index is not None
    return index


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
    _held: dict[str, tuple[object, Any]] = field(default_factory=dict, repr=False)

    def keep(self, what: str, take: Callable[[Matrices], Result], matrices: Matrices) -> Result:
        """What was taken from these very matrices before: slices cost as much as small sums."""
        if torch.compiler.is_compiling():
            return take(matrices)
        held = self._held.get(what)
        if held is None or held[0] is not matrices:
            held = self._held[what] = (matrices, take(matrices))
        result: Result = held[1]
        return result

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


_ONE = torch.ones(1, 1)


def cut(sheets: Iterable[Sheet], size: int = SIZE) -> list[Batch]:
    """Cut sheets into blocks, and put small ones together."""
    batches: list[Batch] = []
    unfilled: dict[object, tuple[Batch, int]] = {}
    for place, sheet in enumerate(sheets):
        count = sheet.rows * sheet.columns
        if not count:
            continue
        rows = max(1, size // sheet.columns) if sheet.device.type == "cpu" else sheet.rows
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

    def only(self, kept: Sequence[bool]) -> Entries:
        """Those in some of the sheets; the others count as absent."""
        result = object.__new__(Entries)
        result.__dict__ |= self.__dict__
        result.parts = [part for part in self.parts if kept[part[0]]]
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
