"""Parameters as matrices: one by one, or small ones end to end.

For small parameters the calls of a step cost more than the arithmetic; so these are laid end to end
and stepped as one. Where several networks lie side by side, all of their parameters are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor

from pathspace.errors import PathspaceError
from pathspace.network import Edge

SIZE = 2**18  # scalars in a block: with its gradient and a product 3 MB, a cache of two cores
SMALL = 2**13  # parameters with fewer scalars are laid end to end
Side = Literal["target", "source"]
SIDES: tuple[Side, Side] = ("source", "target")
Matrices = Sequence[Tensor | None]  # one per sheet


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
        for leaf, gradient in zip(self.leaves, gradients, strict=True):
            if gradient is not None and gradient.layout is not torch.strided:
                raise PathspaceError(
                    f"`{leaf.name}` has a sparse gradient; use sparse=False in its layer"
                )
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
