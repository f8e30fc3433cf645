"""The Perron vector of a network's weights: one positive number per scale, found by sweeps.

Let M be the non-negative matrix of the sums of |w|^p between scales, with one more node for
everything that does not move. Its positive eigenvector z says how to scale the network so that all
incoming norms are equal (:mod:`pathspace.balancing`). Numbers range over more than floating point
can hold (deep networks, unbalanced ones), so everything here is in logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pathspace.errors import RescalingError
from pathspace.network import Edge
from pathspace.units import ZERO, Partition


class ScaleMatrix:
    """The matrix M of |w|^p between scales, in logarithms, and its Perron vector z.

    For a given t, one sweep through the graph in the order of computation takes z to M z / t^p. A
    scale that is complete before it is read needs no old value; those on a loop (a shared stream,
    a weight used repeatedly) do, and so does the pinned node. On these the sweep is a matrix whose
    eigenvalue falls as t rises and is 1 at the t that is sought.

    Attributes:
        movable: (H+1,) the scales that move: allowed to, and reached by non-zero weights.
        live: (H+1,) those of them from which non-zero weights lead on to pinned units.
        part: (H+1,) the part of every scale.
        inflow: (H+1,) log of what pinned units send into each scale.
        outflow: (H+1,) log of what each scale, at z = 1, sends into pinned units.
        blocks: the weights between movable scales.
        complete: for each block, the scales that are complete after it.
        looped: (H+1,) scales that are read before they are complete.
    """

    def __init__(
        self, edges: Sequence[Edge], weights: Mapping[str, Tensor], movable: Tensor, p: float
    ) -> None:
        self.p, self.size = p, len(movable)
        edges = [
            edge
            for edge in edges
            if bool(movable[edge.target_scale].any() | movable[edge.source_scale].any())
        ]
        blocks = [Block.of(edge, weights[edge.parameter], p) for edge in edges]
        self.movable = movable & _reached(blocks, ~movable)
        self.live = self.movable & _reached([b.reversed() for b in blocks[::-1]], ~movable)
        self.inflow = torch.full((self.size,), -math.inf, dtype=torch.float64)
        self.outflow = self.inflow.clone()
        self.blocks, exits = [], []
        one = torch.zeros(self.size, dtype=torch.float64)  # log z for z = 1
        for block in blocks:
            if into := block.only(self.movable, ~movable):  # what is not reached sends nothing
                self.inflow = torch.logaddexp(self.inflow, into.times(one))
            if out := block.only(~movable, self.movable):
                exits.append(out.reversed().times(one))
                self.outflow = torch.logaddexp(self.outflow, exits[-1])
            if inside := block.only(self.movable, self.movable):
                self.blocks.append(inside)
        self.part = self._parts(exits)
        self.complete, self.looped = self._schedule()
        logs = (self.inflow, self.outflow, *(block.log for block in self.blocks))
        self.largest = max(_largest(log) for log in logs)

    def _parts(self, exits: Sequence[Tensor]) -> Tensor:
        """Scales are in one part if weights connect them, or lead from both to pinned units."""
        partition = Partition()
        own = torch.full((self.size,), ZERO)
        own[self.movable] = partition.fresh(int(self.movable.sum()))
        for block in self.blocks:
            partition.tie(own[block.target], own[block.source])
        for exit_ in exits:
            leaving = own[exit_ > -math.inf]
            partition.tie(leaving, leaving[:1])
        return partition.scales()[0][own]

    def _schedule(self) -> tuple[list[Tensor], Tensor]:
        last = torch.full((self.size,), -1)
        for place, block in enumerate(self.blocks):
            last[block.target.reshape(-1)] = place
        looped = torch.zeros(self.size, dtype=torch.bool)
        for place, block in enumerate(self.blocks):
            read = block.source.reshape(-1)
            looped[read[last[read] >= place]] = True
        complete = [(last == place).nonzero().squeeze(1) for place in range(len(self.blocks))]
        return complete, looped & self.movable

    def sweep(self, log_z: Tensor, log_t: Tensor) -> tuple[Tensor, Tensor]:
        """Log of M z / t^p: for every scale, and for the pinned node of every part."""
        shift = self.p * log_t
        total = self.inflow
        log_z = torch.where(self.looped, log_z, total - shift[self.part])
        for block, complete in zip(self.blocks, self.complete, strict=True):
            total = torch.logaddexp(total, block.times(log_z))
            log_z[complete] = (total - shift[self.part])[complete]
        return log_z, _log_sum(self.outflow + log_z, self.part, self.size) - shift

    def settle(self, log_z: Tensor, log_t: Tensor) -> tuple[Tensor, Tensor]:
        """For given t: log z such that a sweep multiplies z by one number per part, and its log.

        That is the power method with :class:`_Mixing`; without loops it takes one sweep.
        """
        unknown = self.looped & self.live
        mixing = _Mixing()
        for _ in range(_PASSES):
            swept, growth = self.sweep(log_z, log_t)
            new = swept - growth.nan_to_num(neginf=0.0)[self.part]
            change = (new - log_z)[unknown]
            if self._is_small(change, swept, log_t):
                return swept, growth
            new[unknown] = mixing.step(new[unknown], change)
            log_z = new
        raise RescalingError(f"no balanced weights found in {_PASSES} passes over the weights")

    def solve(self) -> Tensor:
        """Log z, by secant steps on log t (in which the log eigenvalue is decreasing, convex)."""
        log_t = torch.zeros(self.size, dtype=torch.float64)  # by part
        log_z, growth = self.settle(torch.zeros_like(log_t), log_t)
        has_exit = growth > -math.inf
        slope = torch.full_like(log_t, -2 * self.p)
        for _ in range(_PASSES):
            step = torch.where(has_exit, -growth / slope, 0.0)
            if bool((step.abs() <= 1e-13 * (1 + log_t.abs())).all()):
                return self._with_dead_ends(log_z, log_t)
            log_z, after = self.settle(log_z, log_t + step)
            measured = (after - growth) / step
            slope = torch.where(measured < -self.p / 2, measured, slope)  # else rounding errors
            log_t, growth = log_t + step, after
        raise RescalingError(f"no balanced weights found in {_PASSES} steps of the secant rule")

    def _with_dead_ends(self, log_z: Tensor, log_t: Tensor) -> Tensor:
        """Let loops that lead nowhere settle at the t of their part, or keep what they feed."""
        dead_end = self.movable & ~self.live
        unknown = self.looped & dead_end
        settled = not bool(unknown.any())
        for _ in range(100):
            if settled:
                break
            swept, _ = self.sweep(log_z, log_t)
            settled = self._is_small((swept - log_z)[unknown], swept, log_t)
            log_z = torch.where(dead_end, swept, log_z)
        return torch.where(self.movable if settled else self.live, log_z, 0.0)

    def _is_small(self, change: Tensor, log_z: Tensor, log_t: Tensor) -> bool:
        """Whether a change is of the order of the rounding errors of a sweep."""
        if not len(change):
            return True
        largest = max(self.largest, _largest(log_z), self.p * _largest(log_t))
        return float(change.abs().max()) <= 1e-14 * (10 + largest)


@dataclass(frozen=True)
class Block:
    """The weights of one edge: log |w|^p, from scale ``source`` to scale ``target``."""

    target: Tensor
    source: Tensor
    log: Tensor

    @classmethod
    def of(cls, edge: Edge, weight: Tensor, p: float) -> Block:
        """Sum over the axes on which both ends are constant (the kernel of a convolution)."""
        log = p * weight.detach().to("cpu", torch.float64).abs().log()
        if not bool((log < math.inf).all()):
            raise RescalingError(f"`{edge.parameter}` holds values that are not finite")
        ends = torch.broadcast_shapes(edge.target_scale.shape, edge.source_scale.shape)
        return cls(edge.target_scale, edge.source_scale, _log_sum_to(log, ends))

    def reversed(self) -> Block:
        """The same weights in the opposite direction."""
        return Block(self.source, self.target, self.log)

    def only(self, targets: Tensor, sources: Tensor) -> Block | None:
        """The weights between the given scales; ``None`` if there are none."""
        kept = targets[self.target] & sources[self.source]
        if bool(kept.all()):
            return self
        return replace(self, log=torch.where(kept, self.log, -math.inf)) if kept.any() else None

    def times(self, log_z: Tensor) -> Tensor:
        """(H+1,) log of the sum of |w|^p z over the sources, by target."""
        into = _log_sum_to(self.log + log_z[self.source], self.target.shape)
        return _log_sum(into.reshape(-1), self.target.reshape(-1), len(log_z))


class _Mixing:
    """Anderson's acceleration of a fixed-point iteration, from the last few steps."""

    def __init__(self, memory: int = 8) -> None:
        self.memory = memory
        self.values: list[Tensor] = []
        self.changes: list[Tensor] = []
        self.limit = 1.0  # far away the map is not linear

    def step(self, value: Tensor, change: Tensor) -> Tensor:
        """The next argument, from the value of the map and its change to the last argument."""
        size = float(change.abs().max())
        if size > self.limit:  # begin anew; the mean with the last argument cannot go in circles
            self.values, self.changes = [], []
            return value - change / 2
        self.limit = min(self.limit, 10 * size)
        self.values = [*self.values, value][-self.memory :]
        self.changes = [*self.changes, change][-self.memory :]
        if len(self.changes) == 1:
            return value
        values, changes = (torch.stack(x, 1).diff() for x in (self.values, self.changes))
        weights = torch.linalg.lstsq(changes, change[:, None], driver="gelsd").solution
        return value - (values @ weights).squeeze(1)


# Helpers ---------------------------------------------------------------------------------------

_PASSES = 1000


def _reached(blocks: Sequence[Block], start: Tensor) -> Tensor:
    """The scales that non-zero weights lead to from the given ones."""
    reached, before = start.clone(), 0
    while before < (before := int(reached.sum())):
        for block in blocks:
            if not bool(reached[block.target].all()):
                hit = (block.log > -math.inf) & reached[block.source]
                reached[block.target.expand_as(hit)[hit]] = True
    return reached


def _largest(log: Tensor) -> float:
    """The largest size of a logarithm, apart from that of 0."""
    return float(torch.where(log == -math.inf, 0.0, log).abs().max())


def _log_sum_to(log: Tensor, shape: torch.Size) -> Tensor:
    """Sum over the axes on which ``shape`` has size 1, in logarithms."""
    dims = [d for d, size in enumerate(shape) if size == 1 and log.shape[d] > 1]
    return (log.logsumexp(dims, keepdim=True) if dims else log).expand(shape)


def _log_sum(log: Tensor, index: Tensor, size: int) -> Tensor:
    """Sum the values of equal index, in logarithms."""
    top = torch.full((size,), -math.inf, dtype=log.dtype).scatter_reduce(0, index, log, "amax")
    base = top.nan_to_num(neginf=0.0)
    return torch.zeros_like(base).index_add_(0, index, (log - base[index]).exp()).log() + base
