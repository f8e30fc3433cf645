"""The Perron vector of a network's weights: one positive number per scale.

Let M be the non-negative matrix of the sums of |w|^p between scales, with one more node for
everything that does not move. Its positive eigenvector z says how to scale the network so that all
incoming norms are equal (:mod:`pathspace.balancing`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pathspace.network import Edge
from pathspace.scaleflow import Block, Flow
from pathspace.scaleloops import rise_in_loops, solve_loops
from pathspace.units import ZERO, Partition


class ScaleMatrix:
    """The matrix M of |w|^p between scales, in logarithms, and its Perron vector z.

    Scales from which weights lead on to pinned units decide; all others then follow from them.

    Attributes:
        movable: (H+1,) the scales that move: allowed to, and reached by non-zero weights.
        live: (H+1,) those of them from which non-zero weights lead on to pinned units.
        part: (H+1,) the part of every scale.
        inflow: (H+1,) log of what pinned units send into each scale.
        outflow: (H+1,) log of what each scale, at z = 1, sends into pinned units.
        blocks: the weights between movable scales.
    """

    def __init__(
        self, edges: Sequence[Edge], weights: Mapping[str, Tensor], movable: Tensor, p: float
    ) -> None:
        self.size = len(movable)
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

    def solve(self) -> Tensor:
        """(H+1,) log z, 0 for scales that do not move.

        Raises:
            RescalingError: if Newton's method does not settle, with the weights that hold it up.
        """
        flow = Flow(self.blocks, self.inflow, self.outflow, self.part, self.live)
        loops = bool(flow.looped.any())
        log_z, log_lambda, settled = flow.follow_to_lambda(0.1 if loops else 1e-13)
        log_z = torch.where(self.live, log_z, 0.0).nan_to_num(neginf=0.0)
        if loops or not settled:  # paths that take no loop twice are a good start
            log_z, log_lambda = solve_loops(flow, log_z)
        return self._with_dead_ends(log_z, log_lambda)

    def _with_dead_ends(self, log_z: Tensor, log_lambda: Tensor) -> Tensor:
        """Let what leads nowhere follow at the λ of its part; if loops cannot, nothing of it."""
        dead_end = self.movable & ~self.live
        if not dead_end.any():
            return log_z
        shift, inflow = log_lambda[self.part], self.inflow
        for block in self.blocks:
            if fed := block.only(dead_end, self.live):
                inflow = torch.logaddexp(inflow, fed.times(log_z))
        blocks = [replace(block, log=block.log - shift[block.target]) for block in self.blocks]
        flow = Flow(blocks, inflow - shift, self.outflow, self.part, dead_end)
        found: Tensor | None = flow.follow(torch.zeros_like(log_lambda))
        if found is not None and flow.looped.any():
            found = rise_in_loops(flow, torch.where(dead_end, found, 0.0))
        return log_z if found is None else torch.where(dead_end, found, log_z)


def _reached(blocks: Sequence[Block], start: Tensor) -> Tensor:
    """The scales that non-zero weights lead to from the given ones."""
    reached, before = start.clone(), 0
    while before < (before := int(reached.sum())):
        for block in blocks:
            if not bool(reached[block.target].all()):
                hit = (block.log > -math.inf) & reached[block.source]
                reached[block.target.expand_as(hit)[hit]] = True
    return reached
