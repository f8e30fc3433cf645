r"""Equations :math:`\lambda z = M z + b` between scales, in logarithms, block by block.

M holds the sums of |w|^p between scales, one block per tensor of weights; b is what comes in from
outside. Numbers range over more than floating point can hold (deep networks, unbalanced ones).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from pathspace.errors import RescalingError
from pathspace.network import Edge

SECANTS = 8


@dataclass(frozen=True)
class Block:
    """The weights of one edge: log |w|^p, from scale ``source`` to scale ``target``."""

    name: str
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
        into = _log_sum_to(log, ends)
        return cls(edge.parameter, edge.target_scale, edge.source_scale, into)

    def reversed(self) -> Block:
        """The same weights in the opposite direction."""
        return replace(self, target=self.source, source=self.target)

    def only(self, targets: Tensor, sources: Tensor) -> Block | None:
        """The weights between the given scales; ``None`` if there are none."""
        kept = targets[self.target] & sources[self.source]
        if bool(kept.all()):
            return self
        return replace(self, log=torch.where(kept, self.log, -math.inf)) if kept.any() else None

    def times(self, log_z: Tensor) -> Tensor:
        """(H+1,) log of the sum of |w|^p z over the sources, by target."""
        into = _log_sum_to(self.log + log_z[self.source], self.target.shape)
        return log_sum(into.reshape(-1), self.target.reshape(-1), len(log_z))

    @cached_property
    def read(self) -> Tensor:
        """The scales that are read, each once."""
        return self.source.unique()

    @cached_property
    def product(self) -> str:
        """The product with columns, by target, in the notation of einsum."""
        axes = [chr(ord("a") + axis) for axis in range(self.log.dim())]
        ends = [
            "".join(axis for axis, size in zip(axes, end.shape, strict=True) if size > 1)
            for end in (self.source, self.target)
        ]
        return f"{''.join(axes)},{ends[0]}z->{ends[1]}z"


class Flow:
    r"""The equations :math:`\lambda_{part} z = M z + b`, and :math:`\lambda_{part} = o \cdot z`.

    Attributes:
        blocks: M, in the order in which the network computes.
        inflow: (H+1,) log b.
        outflow: (H+1,) log o; a part that nothing leaves has λ = 1.
        part: (H+1,) the part of every scale.
        scales: (H+1,) those that the equations are about.
        looped: (H+1,) those of them that are read before they are complete.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        inflow: Tensor,
        outflow: Tensor,
        part: Tensor,
        scales: Tensor,
    ) -> None:
        self.blocks = [kept for block in blocks if (kept := block.only(scales, scales))]
        self.inflow = torch.where(scales, inflow, -math.inf)
        self.outflow = torch.where(scales, outflow, -math.inf)
        self.part, self.scales = part, scales
        last = torch.full(part.shape, -1)
        for place, block in enumerate(self.blocks):
            last[block.target.reshape(-1)] = place
        self.looped = torch.zeros_like(scales)
        for place, block in enumerate(self.blocks):
            self.looped[block.read[last[block.read] >= place]] = True
        self.looped &= scales

    def follow(self, log_lambda: Tensor) -> Tensor:
        """Log z, summed over the paths that follow the order of computation; all, without loops."""
        shift = log_lambda[self.part]
        log_z, before = torch.full_like(self.inflow, -math.inf), -1
        while before < (before := int((log_z > -math.inf).sum())):
            log_z = self._swept(log_z, shift)
            if bool((log_z[self.scales] > -math.inf).all()):
                break  # more than one sweep takes only an order that is not that of computation
        return log_z

    def _swept(self, log_z: Tensor, shift: Tensor) -> Tensor:
        total = self.inflow
        for block in self.blocks:
            log_z[block.read] = torch.maximum(log_z, total - shift)[block.read]
            total = torch.logaddexp(total, block.times(log_z))
        return torch.maximum(log_z, total - shift)

    def leaving(self, log_z: Tensor) -> Tensor:
        """(parts,) log of what leaves each part."""
        return log_sum(self.outflow + log_z, self.part, int(self.part.max()) + 1)

    def follow_to_lambda(self, tolerance: float = 1e-13) -> tuple[Tensor, Tensor, bool]:
        """Log z as in :meth:`follow`, log λ, and whether it settled, in a few secant steps.

        What leaves is decreasing and log-convex in λ, a power of it for a layered network without
        biases: three sweeps. For other deep networks Newton's steps on all scales come sooner to
        an end.
        """
        log_lambda = self.inflow.new_zeros(int(self.part.max()) + 1)
        log_z = self.follow(log_lambda)
        excess = self.leaving(log_z)
        has_exit = excess > -math.inf
        slope = torch.full_like(excess, -2.0)
        for _ in range(SECANTS):
            step = torch.where(has_exit, -excess / slope, 0.0)
            if bool((step.abs() <= tolerance * (1 + log_lambda.abs())).all()):
                return log_z, log_lambda, True
            log_lambda = log_lambda + step
            log_z = self.follow(log_lambda)
            after = self.leaving(log_z) - log_lambda
            measured = (after - excess) / step
            slope = torch.where(measured < -0.5, measured, slope)  # else rounding errors
            excess = after
        return log_z, log_lambda, False


def log_sum(log: Tensor, index: Tensor, size: int) -> Tensor:
    """Sum the values of equal index, in logarithms."""
    top = torch.full((size,), -math.inf, dtype=log.dtype).scatter_reduce(0, index, log, "amax")
    base = top.nan_to_num(neginf=0.0)
    return torch.zeros_like(base).index_add_(0, index, (log - base[index]).exp()).log() + base


def _log_sum_to(log: Tensor, shape: torch.Size) -> Tensor:
    """Sum over the axes on which ``shape`` has size 1, in logarithms."""
    dims = [d for d, size in enumerate(shape) if size == 1 and log.shape[d] > 1]
    return (log.logsumexp(dims, keepdim=True) if dims else log).expand(shape)
