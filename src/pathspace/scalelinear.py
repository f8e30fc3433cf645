r"""Linear equations along a network: x = f + S x + g x_0, with one number x_0 = f_0 + q·x per part.

S holds the shares of weights in what enters the scales, q those in what leaves a part, and
:math:`x_0` is one number per part. The steps of :mod:`pathspace.scaleloops` are their solutions.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pathspace.scaleflow import Flow

DENSE = 500  # so many looped scales of one part are eliminated directly, more of them iteratively


class LinearFlow:
    """The equations of one step.

    Where no loops are, x follows by one sweep in the order of computation. Unknown are the x of
    looped scales and x_0: rows of ``width`` + 1 numbers, one row per part. Parts do not meet, so
    they share the columns.

    Args:
        flow: the weights, and which scales the equations are about.
        log_z: (H+1,) the scales that weights are read at.
        enters: (H+1,) log of what the weights into each scale are shares of.
        leaves: (parts,) log of what the weights that leave are shares of.
    """

    def __init__(self, flow: Flow, log_z: Tensor, enters: Tensor, leaves: Tensor) -> None:
        self.flow, self.log_z = flow, log_z
        self.enters = torch.where(flow.scales, enters, 0.0)
        self.exits = (flow.outflow + log_z - leaves[flow.part]).exp()
        self.shares: list[Tensor] | None = None  # kept where they are used often
        self.looped = flow.looped.nonzero().squeeze(1)
        self.part = flow.part[self.looped]
        self.column = _rank(self.part)
        self.parts = len(leaves)
        self.width = int(self.column.max()) + 1 if len(self.column) else 0

    def solve(self, f: Tensor, g: Tensor, f_0: Tensor) -> tuple[Tensor, Tensor]:
        """x, 0 for scales that the equations are not about, and x_0."""
        method = self._eliminate if self.width <= DENSE else self._iterate
        x, x_0 = method(f, g, f_0)
        return torch.where(self.flow.scales, x, 0.0), x_0

    def _eliminate(self, f: Tensor, g: Tensor, f_0: Tensor) -> tuple[Tensor, Tensor]:
        """One sweep with a column for each unknown and one for f, then a matrix for each part."""
        known = f.new_zeros(len(self.looped), self.width + 2)
        known[torch.arange(len(known)), self.column] = 1
        start = f.new_zeros(len(f), self.width + 2)
        start[:, -2], start[:, -1] = g, f
        x, total = self._sweep(known, start)
        rows = self._rows(x, total)
        rows[:, -1, -1] += f_0
        matrix = torch.eye(self.width + 1, dtype=f.dtype) - rows[..., :-1]
        unknown = torch.linalg.solve_ex(matrix, rows[..., -1])[0]
        return (x[:, :-1] * unknown[self.flow.part]).sum(1) + x[:, -1], unknown[:, -1]

    def _iterate(self, f: Tensor, g: Tensor, f_0: Tensor) -> tuple[Tensor, Tensor]:
        """Sweeps with one column, as many as GMRES needs."""
        self.shares = [self._share(place) for place in range(len(self.flow.blocks))]

        def image(unknown: Tensor, f: Tensor | float = 0.0) -> tuple[Tensor, Tensor]:
            known = unknown[self.part, self.column, None]
            start = (f + g * unknown[:, -1][self.flow.part])[:, None]
            x, total = self._sweep(known, start)
            return x[:, 0], self._rows(x, total)[..., 0]

        right = image(zero := f.new_zeros(self.parts, self.width + 1), f)[1]
        right[:, -1] += f_0
        unknown = _gmres(lambda v: v - image(v.view_as(zero))[1].view(-1), right.view(-1))
        unknown = unknown.view_as(zero)
        return image(unknown, f)[0], unknown[:, -1]

    def _sweep(self, known: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """Columns of x and of ``start`` + S x, for columns ``known`` of x on looped scales."""
        total, x = start.clone(), start.clone()
        x[self.looped] = known
        for place, block in enumerate(self.flow.blocks):
            fresh = block.read[~self.flow.looped[block.read]]
            x[fresh] = total[fresh]
            shape = [size for size in block.source.shape if size > 1]
            read = x[block.source.reshape(-1)].view(*shape, -1)
            into = torch.einsum(block.product, self._share(place), read)
            total.index_add_(0, block.target.reshape(-1), into.reshape(-1, total.shape[1]))
        return torch.where(self.flow.looped[:, None], x, total), total

    def _share(self, place: int) -> Tensor:
        """The share of each weight in what enters its target."""
        if self.shares is not None:
            return self.shares[place]
        block = self.flow.blocks[place]
        return (block.log + self.log_z[block.source] - self.enters[block.target]).exp()

    def _rows(self, x: Tensor, total: Tensor) -> Tensor:
        """(parts, width + 1, columns): the right sides for looped scales and for x_0."""
        rows = x.new_zeros(self.parts, self.width + 1, x.shape[1])
        rows[self.part, self.column] = total[self.looped]
        rows[:, -1].index_add_(0, self.flow.part, self.exits[:, None] * x)
        return rows


def _rank(part: Tensor) -> Tensor:
    """The number of each entry among those of its part."""
    order = part.argsort(stable=True)
    ordered = part[order].contiguous()
    rank = torch.empty_like(part)
    rank[order] = torch.arange(len(part)) - torch.searchsorted(ordered, ordered)
    return rank


def _gmres(apply: Callable[[Tensor], Tensor], right: Tensor, memory: int = 200) -> Tensor:
    """The solution of linear equations from products with their matrix, to eight digits at best."""
    solution, size = torch.zeros_like(right), float(right.norm())
    new, basis, images = right, list[Tensor](), list[Tensor]()
    while len(images) < memory and float(new.norm()) > 1e-12 * size:
        basis.append(new / new.norm())
        images.append(new := apply(basis[-1]))
        stacked = torch.stack(images, 1)
        weights = torch.linalg.lstsq(stacked, right[:, None]).solution
        solution = (torch.stack(basis, 1) @ weights)[:, 0]
        if float((right - (stacked @ weights)[:, 0]).norm()) <= 1e-8 * size:
            break
        for vector in basis * 2:  # twice: once leaves rounding errors
            new = new - (vector @ new) * vector
    return solution
