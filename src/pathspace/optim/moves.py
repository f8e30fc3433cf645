"""How the factors of all weights follow when roots change."""

from __future__ import annotations

import math

import torch
from torch import Tensor


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

        # Of units, roots and free weights, of ρ of units, one of 1; of σ of units, and one of 0.
        self.logs = torch.zeros(5 * len(owner) + 2, dtype=entered.dtype, device=owner.device)
        self.logs[-1] = -math.inf
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
        size = len(change)
        moved, rho, sigma = (
            self.logs[a:b] for a, b in ((0, 3 * size), (3 * size, 4 * size), (4 * size + 1, -1))
        )
        torch.index_select(change, 0, self.first, out=moved).mul_(self.of_first)
        moved.addcmul_(change.index_select(0, self.second), self.of_second)
        torch.mul(source, power, out=rho)
        torch.mul(target, power, out=sigma)
        leaving = moved[:size]
        if self.is_any_entered:
            entering = leaving * self.entered
            leaving = leaving - entering
            target += entering
        source += leaving
        torch.exp(self.logs, out=self.exponentials)
