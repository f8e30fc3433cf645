"""How the factors of all weights follow when roots change."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Slots(NamedTuple):
    r"""Where the numbers of units start in the list of all factors.

    Attributes:
        units: what is multiplied to weights that move with a unit.
        roots: what is multiplied to roots.
        free: what is multiplied to free weights.
        source: ρ.
        free_source: ρ of free weights: :math:`1/\sigma`, because no root divides them.
        one: a single 1.
        target: σ.
        zero: a single 0, which is the last.
    """

    units: int
    roots: int
    free: int
    source: int
    free_source: int
    one: int
    target: int
    zero: int

    @classmethod
    def of(cls, size: int) -> Slots:
        """For so many units, the pinned one included."""
        one = 5 * size
        return cls(0, size, 2 * size, 3 * size, 4 * size, one, one + 1, one + 1 + size)


class Moves:
    r"""How far factors move with the roots: sums of two of the roots' changes, with signs.

    With c(u) = log(1/R) of the root that unit u belongs to: units move by c; a root by c of the
    unit before it, if that is moved by what leaves it, and back by its own unless it is moved by
    what enters it; a free weight by c of the unit behind it and back by c of its own, as far as
    these are moved by what enters them.

    Args:
        owner: (H+1,) the root that a unit belongs to.
        parent: (H+1,) the unit before its in-edge.
        child: (H+1,) the unit behind its out-edge.
        entered: (H+1,) 1 for units that are moved by what enters them, else 0.
    """

    def __init__(self, owner: Tensor, parent: Tensor, child: Tensor, entered: Tensor) -> None:
        units, one = torch.arange(len(owner), device=owner.device), torch.ones_like(entered)
        self.first = torch.cat([owner, owner[parent], owner[child]])
        self.second = torch.cat([units, units, owner])
        self.of_first = torch.cat([one, 1 - entered[parent], entered[child]])
        self.of_second = torch.cat([0 * one, entered - 1, -entered])

        self.slots = Slots.of(len(owner))
        self.logs = torch.zeros(self.slots.zero + 1, dtype=entered.dtype, device=owner.device)
        self.logs[self.slots.zero] = -math.inf
        self.exponentials = torch.empty_like(self.logs)
        self.entered, self.is_any_entered = entered, bool(entered.any())

    def write(self, change: Tensor, logs: tuple[Tensor, Tensor], power: float) -> None:
        r"""Write all factors, and move log ρ and log σ.

        Args:
            change: (H+1,) log(1/R) by root; 0 for all others.
            logs: (H+1,) log ρ and log σ, in float64; moved.
            power: of ρ and σ, as factors.
        """
        source, target = logs
        at, size = self.slots, len(change)
        moved = self.logs[: at.source]
        torch.index_select(change, 0, self.first, out=moved).mul_(self.of_first)
        moved.addcmul_(change.index_select(0, self.second), self.of_second)
        torch.mul(source, power, out=self.logs[at.source : at.free_source])
        torch.mul(target, -power, out=self.logs[at.free_source : at.one])
        torch.mul(target, power, out=self.logs[at.target : at.zero])
        leaving = moved[:size]
        if self.is_any_entered:
            entering = leaving * self.entered
            leaving = leaving - entering
            target += entering
        source += leaving
        torch.exp(self.logs, out=self.exponentials)
