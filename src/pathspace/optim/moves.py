"""How the factors of all weights follow when roots change."""

from __future__ import annotations

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

    def write(self, change: Tensor, logs: Tensor) -> None:
        """Write the logarithms of units, roots and free weights."""
        torch.index_select(change, 0, self.first, out=logs).mul_(self.of_first)
        logs.addcmul_(change.index_select(0, self.second), self.of_second)
