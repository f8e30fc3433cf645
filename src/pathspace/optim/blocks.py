"""Parameters as matrices, cut into blocks that fit the cache.

An elementwise step over large tensors is bound by memory: every full-size temporary costs as much
as the arithmetic. So a step goes through the parameters block by block, with all operations on one
block while it is in the cache. Small parameters share a batch, so that a small network costs a few
calls and not a few per layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from pathspace.network import Edge
from pathspace.weightgraph import WeightGraph

SIZE = 2**18  # scalars in a block: 1 MB in float32, half of a common second-level cache
Side = Literal["target", "source"]


class Leaf:
    """A parameter seen as a matrix: its first axis, and all others flattened, in memory order.

    Attributes:
        parameter: the parameter.
        name: its name in the model, or its number for a parameter outside of it.
        group: the number of its group.
        edge: its edges in the graph; ``None`` if the graph does not reach it.
        order: the axes of the parameter, longest stride first.
        weight: its values as a matrix: a view of the parameter, or a copy (:attr:`is_copy`) where
            memory is not contiguous or the dtype too coarse to step in.
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
        self.weight = self.matrix(parameter.detach()).to(self.dtype)
        self.is_copy = self.weight.data_ptr() != parameter.data_ptr()

    def matrix(self, tensor: Tensor) -> Tensor:
        """A tensor of the parameter's shape as a matrix: a view if its memory allows it."""
        if self.is_matrix:
            return tensor.contiguous()
        return tensor.permute(self.order).reshape(self.rows, self.columns)

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

    def unmatrix(self, matrix: Tensor) -> Tensor:
        """A matrix as a tensor of the parameter's shape; inverse of :meth:`matrix`."""
        shape = [self.parameter.shape[axis] for axis in self.order]
        back = sorted(range(len(self.order)), key=lambda place: self.order[place])
        return matrix.reshape(shape).permute(back)

    def load(self) -> None:
        """Copy the parameter's values into :attr:`weight`, where that is a copy."""
        if self.is_copy:
            self.weight.copy_(self.matrix(self.parameter.detach()))

    def store(self) -> None:
        """Copy them back."""
        if self.is_copy:
            self.parameter.detach().copy_(self.unmatrix(self.weight))

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


class Table:
    """A number per scale, spread out along one end of every leaf's weights.

    Attributes:
        parts: by leaf, a factor that broadcasts against the matrix; ``None`` where all is pinned.
        index: by dtype, the scales in the order of memory.
    """

    def __init__(self, leaves: Sequence[Leaf], side: Side, device: torch.device) -> None:
        self.parts: list[Tensor | None] = [None] * len(leaves)
        self.index: dict[torch.dtype, Tensor] = {}
        self.memory: dict[torch.dtype, Tensor] = {}
        by_dtype: dict[torch.dtype, list[tuple[int, Tensor]]] = {}
        for place, leaf in enumerate(leaves):
            scales = leaf.scales(side)
            if bool((scales != 0).any()):
                by_dtype.setdefault(leaf.dtype, []).append((place, scales))
        for dtype, entries in by_dtype.items():
            index = torch.cat([scales.reshape(-1) for _, scales in entries])
            memory = torch.ones(len(index), dtype=dtype, device=device)
            self.index[dtype], self.memory[dtype] = index.to(device), memory
            start = 0
            for place, scales in entries:
                part = memory[start : start + scales.numel()]
                self.parts[place] = part.view(scales.shape)
                start += scales.numel()

    def fill(self, by_scale: Tensor) -> None:
        """Write the numbers of all scales."""
        for dtype, index in self.index.items():
            torch.index_select(by_scale.to(dtype), 0, index, out=self.memory[dtype])

    def gather(self, size: int) -> Tensor:
        """Sum what was written into the parts by scale, in float64."""
        device = next((index.device for index in self.index.values()), None)
        total = torch.zeros(size, dtype=torch.float64, device=device)
        for dtype, index in self.index.items():
            total.index_add_(0, index, self.memory[dtype].double())
        return total


@dataclass
class Block:
    """Some rows of a leaf, given by its place in the list of leaves."""

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

    def of(self, matrices: Sequence[Tensor | None]) -> list[Tensor] | None:
        """The rows of the blocks; 1 where there is no matrix, nothing if there is none at all."""
        first = next((m for b in self.blocks if (m := matrices[b.place]) is not None), None)
        if first is None:
            return None
        one, found = _ONE.to(first.device, self.dtype), []
        for block in self.blocks:
            matrix = matrices[block.place]
            found.append(one if matrix is None else block.of(matrix))
        return found

    def all_of(self, matrices: Sequence[Tensor | None]) -> list[Tensor]:
        """The rows of the blocks; all matrices must be there."""
        found = []
        for block in self.blocks:
            matrix = matrices[block.place]
            assert matrix is not None
            found.append(block.of(matrix))
        return found


_ONE = torch.ones(1, 1)


def cut(leaves: Iterable[Leaf], size: int = SIZE) -> list[Batch]:
    """Cut leaves into blocks, and put small ones together."""
    batches: list[Batch] = []
    unfilled: dict[object, tuple[Batch, int]] = {}
    for place, leaf in enumerate(leaves):
        count = leaf.rows * leaf.columns
        if not count:
            continue
        rows = max(1, size // leaf.columns) if leaf.weight.device.type == "cpu" else leaf.rows
        if count >= size:
            for start in range(0, leaf.rows, rows):
                stop = min(start + rows, leaf.rows)
                block = Block(place, start, stop, rows >= leaf.rows)
                batches.append(Batch(leaf.group, leaf.dtype, [block]))
            continue
        key = (leaf.group, leaf.dtype, leaf.weight.device)
        batch, filled = unfilled.get(key, (None, size))
        if batch is None or filled + count > size:
            batch, filled = Batch(leaf.group, leaf.dtype), 0
            batches.append(batch)
        batch.blocks.append(Block(place, 0, leaf.rows, whole=True))
        unfilled[key] = (batch, filled + count)
    return batches


class Entries:
    """Single weights of several leaves, given by their numbers in the graph, as one vector."""

    def __init__(
        self, graph: WeightGraph, leaves: Sequence[Leaf], numbers: Tensor, device: torch.device
    ) -> None:
        self.size, self.device = len(numbers), device
        places = {leaf.name: place for place, leaf in enumerate(leaves)}
        owner = torch.searchsorted(graph.start, numbers, right=True) - 1
        self.parts: list[tuple[int, Tensor, Tensor]] = []  # leaf, rows of the vector, places
        for k in torch.unique(owner[numbers >= 0]).tolist():
            place = places[graph.edges[k].parameter]
            rows = ((owner == k) & (numbers >= 0)).nonzero().squeeze(1)
            where = leaves[place].index(numbers[rows] - graph.start[k])
            self.parts.append((place, rows.to(device), where.to(device)))
        # Entry i of the vector is entry origin[i] of the parts one after the other and a last 0.
        rows = torch.cat([rows.cpu() for _, rows, _ in self.parts] or [torch.zeros(0).long()])
        origin = torch.full((self.size,), len(rows))
        origin[rows] = torch.arange(len(rows))
        self._origin = origin.to(device)
        self._zero = torch.zeros(1, dtype=torch.float64, device=device)

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
        """Write the entries of the matrices that are there."""
        for place, rows, where in self.parts:
            matrix = matrices[place]
            if matrix is None:
                continue
            matrix.view(-1).index_copy_(0, where, values.index_select(0, rows).to(matrix.dtype))
