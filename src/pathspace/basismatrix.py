"""The basis-path penalty on one weight tensor: what its positive paths add to gradients and sums.

In one pass in C over all matrices where that is possible (:mod:`pathspace.native`). Otherwise all
operations on some rows are done while they are in the cache, without full-size temporaries: the
weights are read once and the gradients read and written once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pathspace import native
from pathspace.flow.powers import rows
from pathspace.flow.values import exp
from pathspace.native import Apart, Job
from pathspace.network import Edge
from pathspace.squaresums import OuterSums, Piece, SquareSums


class Factors(NamedTuple):
    """λ1 (I O)² = λ1 e^middle · source · target.

    Attributes:
        lam1: λ1.
        middle: that of all log (I O)².
        source: I² by source, over their middle, in float64.
        target: O² by target, over their middle, in float64.
        reach: how far, in logarithms, any of this goes from 1.
    """

    lam1: float
    middle: float
    source: Tensor
    target: Tensor
    reach: float

    @property
    def scale(self) -> float:
        """What source and target leave."""
        return self.lam1 * exp(self.middle)

    def is_moderate(self, dtype: torch.dtype) -> bool:
        """Whether neither they nor their products leave the range of a dtype."""
        return self.reach < math.log(torch.finfo(dtype).max) / 2

    def wide(self) -> Factors:
        """The same with the middle in the factors, which reach as far as they can then."""
        half = exp(self.middle / 2)
        return self._replace(middle=0.0, source=half * self.source, target=half * self.target)


class BasisMatrix:
    """A weight tensor as a matrix: its first axis, and all others flattened.

    Args:
        edge: whose weights these are.
        incoming: flat places of skeleton weights into units.
        outgoing: flat places of skeleton weights out of units.
    """

    def __init__(self, edge: Edge, incoming: Tensor, outgoing: Tensor) -> None:
        self.edge = edge
        height = edge.shape[0] if edge.shape else 1
        self.shape = (height, edge.count // max(1, height))
        self.target = self._table(edge.target_scale)
        self.source = self._table(edge.source_scale)
        self.wanted = edge.from_free, edge.into_free
        self.is_swapped = self._is_swapped()
        self.pieces = []
        self.skeleton = torch.unique(torch.cat([incoming, outgoing]))
        for some in rows(torch.empty(self.shape, device="meta")):
            ends = torch.tensor([some.start, some.stop]) * self.shape[1]
            self.pieces.append(Piece(some, between(self.skeleton, *ends)))
        self._apart: Apart | None = None

    def _table(self, scales: Tensor) -> Tensor:
        """The scales at one end, (rows or 1, columns or 1)."""
        if scales.numel() == 1 or not bool(scales.any()):
            return scales.reshape(-1)[:1].view(1, 1)
        if len(scales) == scales.numel():
            return scales.reshape(-1, 1)
        return scales.expand(len(scales), *self.edge.shape[1:]).reshape(len(scales), -1)

    def _is_swapped(self) -> bool | None:
        """Whether the factor by target is a row and that by source a column, or the other way.

        ``None`` if they are more than a row and a column, as in convolutions with groups.
        """
        if len(self.source) == 1 and self.target.shape[1] == 1:
            return False
        return True if len(self.target) == 1 and self.source.shape[1] == 1 else None

    def add_(
        self,
        weight: Tensor,
        destination: Tensor | None,
        factors: Factors,
        sums: tuple[Tensor, Tensor] | None,
    ) -> None:
        """Add λ1 w (I O)² off the skeleton, and λ1 v² to the sums by source and by target."""
        if (destination is None and sums is None) or not self.pieces:
            return
        w = weight.detach().reshape(self.shape)
        result = None if destination is None else destination.reshape(self.shape)
        is_moderate = factors.is_moderate(w.dtype)
        factors = factors if is_moderate else factors.wide()
        found = self._pass(w, result, factors, sums is not None, is_moderate)
        if destination is not None and result is not None and _is_copy(result, destination):
            destination.copy_(result.view(destination.shape))  # its memory has another order
        if sums is not None and found is not None:
            self.collect_(found, w, factors, sums)

    def collect_(
        self, found: SquareSums, w: Tensor, factors: Factors, sums: tuple[Tensor, Tensor]
    ) -> None:
        """Add λ1 v² to the sums by source and by target; anew if they are beyond the dtype."""
        if not all(bool(part.isfinite().all()) for part in found.by_end()):
            factors = factors.wide()
            found = self._pass(w, None, factors, True, is_moderate=False) or found
        ends = (self.source, self.target)
        for total, scales, part in zip(sums, ends, found.by_end(), strict=True):
            total.index_add_(0, scales.reshape(-1), factors.scale * part.reshape(-1).to(total))

    def job(
        self, weight: Tensor, destination: Tensor | None, factors: Factors, summed: bool
    ) -> tuple[Job, OuterSums] | None:
        """What a pass in C does and where it leaves sums; ``None`` if it cannot do it."""
        if self.is_swapped is None or (destination is None and not summed):
            return None
        w = weight.detach().reshape(self.shape)
        result = None if destination is None else destination.reshape(self.shape)
        if destination is not None and result is not None and _is_copy(result, destination):
            return None
        if not (factors.is_moderate(w.dtype) and native.fits(w, result)):
            return None
        sums = self.outer_sums(factors, w)
        by_row, by_column = sums.wanted if summed else (False, False)
        if self._apart is None:
            self._apart = Apart.at(self.skeleton, self.shape)
        job = Job(
            w,
            added=result,
            power=2,
            scale=factors.scale,
            row=sums.row,
            column=sums.column,
            apart=self._apart,
            along=sums.along if by_column else None,
            across=sums.across if by_row else None,
        )
        return job, sums

    def outer_sums(self, factors: Factors, like: Tensor) -> OuterSums:
        """Where the sums of a matrix with a row and a column of factors are collected."""
        assert self.is_swapped is not None
        source, target = factors.source.to(like), factors.target.to(like)
        return OuterSums(source, target, self.wanted, self.shape, self.is_swapped)

    def _pass(
        self, w: Tensor, result: Tensor | None, factors: Factors, summed: bool, is_moderate: bool
    ) -> SquareSums | None:
        """One pass over the weights: add to the result, and collect the sums if they are wanted.

        Where factors are not moderate, in float64.
        """
        dtype = w.dtype if is_moderate else torch.float64
        like = w.new_empty(max(piece.rows for piece in self.pieces) * self.shape[1], dtype=dtype)
        found = self._sums(factors, like) if summed else None
        sides = [self._vectorized(side.to(like)) for side in (factors.target, factors.source)]
        for piece in self.pieces:
            part = w[piece.some].to(dtype)
            scratch = like[: part.numel()].view(part.shape)
            if result is not None:
                torch.mul(*(piece.of(side).expand(part.shape) for side in sides), out=scratch)
                factor = piece.off_skeleton(scratch)
                if is_moderate:
                    result[piece.some].addcmul_(part, factor, value=factors.scale)
                else:
                    added = factor.mul_(part).mul_(factors.scale).masked_fill_(part == 0, 0.0)
                    result[piece.some].add_(added.to(result))
            if found is not None and any(found.wanted):  # while the rows are in the cache
                found.add_(piece, piece.off_skeleton(torch.square(part, out=scratch)))
        return found

    def _sums(self, factors: Factors, like: Tensor) -> SquareSums:
        """Where the sums are collected."""
        if self.is_swapped is not None:
            return self.outer_sums(factors, like)
        return SquareSums(factors.source.to(like), factors.target.to(like), self.wanted)

    def _vectorized(self, factor: Tensor) -> Tensor:
        """A factor that is one number as a row: torch is slow if both factors stand still."""
        return factor.expand(1, self.shape[1]).contiguous() if factor.numel() == 1 else factor


class FactorTable:
    """The factors of several matrices, found together: for small ones it is calls that take time.

    Args:
        matrices: the matrices.
        size: number of scales, the pinned one included.
    """

    def __init__(self, matrices: Sequence[BasisMatrix], size: int) -> None:
        sides = [side for m in matrices for side in (m.source, m.target + size)]
        self._shapes = [side.shape for side in sides]
        self._counts = [side.numel() for side in sides]
        self._index = torch.cat([side.reshape(-1) for side in sides]) if sides else None

    def factors(self, logs: Tensor, lam1: float) -> Iterator[Factors]:
        """The factors of every matrix.

        Args:
            logs: (2, H+1) log|I| and log|O| by scale.
            lam1: λ1.
        """
        if self._index is None:
            return
        parts = (2 * logs.reshape(-1).index_select(0, self._index)).split(self._counts)
        ends = [torch.aminmax(part) for part in parts]
        least, most = torch.stack([end for pair in ends for end in pair]).view(-1, 2).T.tolist()
        middles = [(low + high) / 2 for low, high in zip(least, most, strict=True)]
        numbers = torch._foreach_exp(torch._foreach_sub(parts, middles))
        sides = [part.view(shape) for part, shape in zip(numbers, self._shapes, strict=True)]
        for k in range(0, len(sides), 2):
            middle = middles[k] + middles[k + 1]
            reach = (most[k] - least[k] + most[k + 1] - least[k + 1]) / 2
            yield Factors(lam1, middle, sides[k], sides[k + 1], reach=max(reach, abs(middle)))


def between(numbers: Tensor, start: Tensor, stop: Tensor) -> Tensor:
    """The numbers from start to stop, counted from start."""
    return numbers[(numbers >= start) & (numbers < stop)] - start


def _is_copy(tensor: Tensor, original: Tensor) -> bool:
    return tensor.data_ptr() != original.data_ptr()
