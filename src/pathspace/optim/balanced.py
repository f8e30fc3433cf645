r"""The balanced representative as the place where steps are taken, no longer than is safe there.

A rule that is plain in balanced weights diverges at rates at which SGD still trains: one long step
makes all layers large together, and the next gradient is larger by the product of them. So the
length of :math:`\eta\,\tilde g`, with :math:`\tilde g = s\,\partial l/\partial w` the gradient in
balanced weights :math:`\tilde w`, is limited:

.. math:: \frac{\eta}{1-\mu}\|\tilde g\| \le \tau \max(\|\tilde w\|, \sqrt{2 n}),

with μ the momentum, n the number of units that weights enter and :math:`\sqrt{2n}` the norm of all
weights after He's initialisation, so that weights that start at 0 can leave it. A longer gradient,
coupled decay included, is shortened: that of all parameters alike which a scale touches. Rescaling
touches none of these numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pathspace.balancing import balance_weights
from pathspace.network import Network
from pathspace.optim.lists import Group
from pathspace.optim.representative import HE
from pathspace.optim.scaletables import Table, by_end
from pathspace.optim.sheets import SIDES, Sheet
from pathspace.optim.space import Step
from pathspace.optim.spaces import DiagonalSpace

LONGEST = 0.1  # τ: of a step, relative to the weights


class BalancedSpace(DiagonalSpace):
    """The balanced representative: steps are those of the plain rule in its weights.

    Attributes:
        limited: how many gradients were shortened so far.

    Args:
        network: the traced network.
        every: the scales are computed anew every k-th step.
    """

    def __init__(self, network: Network, every: int = 1) -> None:
        super().__init__(network, every)
        self.limited = 0
        entered = [e for e in network.edges if not (e.from_constant or e.is_fixed)]
        self._least = HE * math.sqrt(sum(edge.target.numel() for edge in entered))

    def __repr__(self) -> str:
        return f"balanced weights (every {self.every} steps), gradients shortened: {self.limited}"

    def measure(self, weights: dict[str, Tensor], logs: Tensor | None, power: float) -> None:
        """Balance the weights as they are now."""
        movable = torch.ones(self.network.H + 1, dtype=torch.bool)
        movable[0] = False
        logs = balance_weights(self.network.edges, weights, movable)
        logs = power * torch.cat([logs.new_zeros(1), logs])
        for side, sign in zip(SIDES, (1.0, -1.0), strict=True):
            table = Table(self.sheets, by_end(self.sheets, side))
            table.fill((sign * logs).exp())
            setattr(self, side, table.parts)

    def arrange(self, sheets: Sequence[Sheet], groups: Sequence[Group]) -> None:
        """Find the weights that are not plain: these count, and these are held back."""
        super().arrange(sheets, groups)
        self._inside = []
        for sheet in sheets:
            flags = [float(not self.is_plain(leaf)) for leaf in sheet.leaves]
            one = torch.ones(1, 1, dtype=sheet.dtype, device=sheet.device)
            is_mixed = len(set(flags)) > 1
            mask = sheet.spread([one * flag for flag in flags]) if is_mixed else flags[0]
            self._inside.append(mask)

    def prepare(self, step: Step) -> None:
        """Measure the factors, if it is time, and shorten gradients that are too long."""
        super().prepare(step)
        if not self.network.H:
            return  # this is the plain rule
        length, size = self._lengths(step)
        longest = LONGEST * max(size, self._least)
        if length > longest:
            self.limited += 1
            for place, gradient in enumerate(step.gradients):
                if gradient is not None:
                    inside, decay = self._inside[place], self._decay(step, place)
                    factor = inside * (longest / length) + (1 - inside)
                    step.gradients[place] = factor * gradient + (factor - 1) * decay

    def _lengths(self, step: Step) -> tuple[float, float]:
        """The length that steps have with gradients like these, and the norm of all weights."""
        steps, weights = [0.0], [0.0]
        for place, (sheet, weight) in enumerate(zip(self.sheets, step.weights, strict=True)):
            parts = (self.source[place], self.target[place])
            factor = math.prod((part for part in parts if part is not None), start=1.0)
            inside, group = self._inside[place], step.group(sheet)
            weights.append(self._square(weight * inside / factor, weight))
            gradient = step.gradients[place]
            if gradient is not None:
                rate = float(group["lr"]) / (1 - min(float(group.get("momentum", 0.0)), 0.99))
                found = gradient + self._decay(step, place)
                steps.append(rate**2 * self._square(found * inside * factor, found))
        return math.sqrt(sum(steps)), math.sqrt(sum(weights))

    def _decay(self, step: Step, place: int) -> Tensor | float:
        """What coupled decay, a term of the loss, will add to a gradient."""
        group = step.group(self.sheets[place])
        if not group["weight_decay"]:
            return 0.0
        sign = -1.0 if group["maximize"] else 1.0
        return step.weights[place] * (sign * float(group["weight_decay"]))

    def _square(self, scaled: Tensor, plain: Tensor) -> float:
        """The square of a norm of balanced numbers; factors may be squares, see ``measure``."""
        other = plain if self.power == 2 else scaled
        return float((scaled * other).sum(dtype=torch.float64))

    def state_dict(self) -> dict[str, Any]:
        """What every such space remembers, and the count."""
        return {**super().state_dict(), "limited": self.limited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it back."""
        super().load_state_dict(state)
        self.limited = state.get("limited", 0)
