r"""Where steps are taken by a diagonal metric: path-normalised weights, balanced weights.

In both, a step is :math:`w_e \leftarrow w_e - \eta\,s_e u_e`, with u the rule's update for the
gradient :math:`s_e\,\partial l/\partial w_e`, which rescaling does not touch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pathspace.balancing import balance_weights
from pathspace.network import Network
from pathspace.optim.blocks import Leaf, Table
from pathspace.optim.optimizer import Space, Step
from pathspace.weightgraph import sum_to


class DiagonalSpace(Space):
    """Weights, each divided by a factor that is measured anew every k-th step."""

    def __init__(self, network: Network, every: int = 1) -> None:
        super().__init__(network)
        if every < 1:
            raise ValueError(f"every must be at least 1, not {every}")
        self.every, self.taken, self.power = every, 0, 0.0

    def prepare(self, step: Step) -> None:
        """Measure the factors, if it is time."""
        power = 2.0 if step.linear else 1.0
        if self.taken % self.every == 0 or power != self.power:
            self.measure(step, power)
        self.power = power
        self.taken += 1

    def measure(self, step: Step, power: float) -> None:
        r"""Renew the factors :math:`s_e^{\mathrm{power}}`."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """The number of steps, and the factors where they outlive one step."""
        state: dict[str, Any] = {"taken": self.taken, "power": self.power}
        if self.every > 1:
            state |= {"source": list(self.source), "target": list(self.target)}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take them back."""
        self.taken, self.power = state["taken"], state["power"]
        for side in ("source", "target"):
            if side in state:
                setattr(self, side, list(state[side]))


class PathSpace(DiagonalSpace):
    r"""Path-normalised weights: :math:`s_e = \gamma_p(e)^{-1/2}`.

    :math:`\gamma_p(e) = (\sum_{\text{paths through }e} \prod_{e'\neq e} |w_{e'}|^p)^{2/p}`; 0 where
    no path through e is alive, so that such weights rest. A batch norm divides by what its batch
    gives, which the norm of what enters it stands for.

    Args:
        network: the traced network.
        p: exponent of the path norm, finite.
        every: γ is computed anew every k-th step.
    """

    def __init__(self, network: Network, p: float = 2.0, every: int = 1) -> None:
        super().__init__(network, every)
        if not 1 <= p < math.inf:
            raise ValueError(f"p must be at least 1 and finite, not {p}")
        self.p = p

    def __repr__(self) -> str:
        return f"path-normalised weights (p = {self.p:g}, every {self.every} steps)"

    def arrange(self, leaves: Sequence[Leaf]) -> None:
        """Nothing but to start."""
        self.leaves, self.power = leaves, 0.0
        self.source = self.target = self.back = [None] * len(leaves)
        self.seen = [False] * len(leaves)

    def measure(self, step: Step, power: float) -> None:
        """One sweep forwards and one backwards through the network of path sums."""
        weights = {name: tensor.detach() for name, tensor in self.network.state().items()}
        weights |= self._deviations(weights)
        from pathspace.flow.slopes import path_slopes

        slopes = path_slopes(self.network, weights, self.p)
        found = [self._factors(slopes.get(leaf.name), leaf, power) for leaf in self.leaves]
        self.target, self.source = [pair[0] for pair in found], [pair[1] for pair in found]

    def _factors(self, slope: Any, leaf: Leaf, power: float) -> list[Tensor | None]:
        """The factors of a leaf, as matrices."""
        if slope is None or not slope.factors:
            return [None, None]
        exponent = -power / self.p
        first, *rest = (
            leaf.factor(f.to(leaf.dtype).pow(exponent)).nan_to_num_(posinf=0.0)
            for f in slope.factors
        )
        first.mul_(math.exp(slope.log * exponent))
        for factor in rest[1:]:
            first = first * factor
        return [first, rest[0] if rest else None]

    def _deviations(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Statistics of the batch norms as they are if all inputs are independent of norm 1."""
        found: dict[str, Tensor] = {}
        for norm in self.network.normalizations:
            if norm.mean is None or norm.variance is None:
                continue
            square = torch.zeros(len(self.network.scale), dtype=torch.float64)
            for edge in self.network.edges:
                if not edge.from_constant:
                    sums = sum_to(weights[edge.parameter].double().square(), edge.target.shape)
                    square.index_add_(0, edge.target.reshape(-1), sums.reshape(-1).cpu())
            variance = square[norm.input].clamp_min(torch.finfo(torch.float32).tiny)
            found[norm.variance] = (variance - norm.eps).to(weights[norm.variance])
            found[norm.mean] = torch.zeros_like(weights[norm.mean])
        return found


class BalancedSpace(DiagonalSpace):
    """The balanced representative: steps are those of the plain rule in its weights.

    Args:
        network: the traced network.
        every: the scales are computed anew every k-th step.
    """

    def __repr__(self) -> str:
        return f"balanced weights (every {self.every} steps)"

    def arrange(self, leaves: Sequence[Leaf]) -> None:
        """Prepare the tables."""
        device = leaves[0].weight.device
        self._source, self._target = (Table(leaves, s, device) for s in ("source", "target"))
        self.source, self.target = self._source.parts, self._target.parts
        self.back, self.seen = [None] * len(leaves), [False] * len(leaves)
        self.power = 0.0

    def measure(self, step: Step, power: float) -> None:
        """Balance the weights as they are now."""
        weights = {name: tensor.detach() for name, tensor in self.network.state().items()}
        movable = torch.ones(self.network.H + 1, dtype=torch.bool)
        movable[0] = False
        logs = balance_weights(self.network.edges, weights, movable)
        logs = power * torch.cat([logs.new_zeros(1), logs])
        self._source.fill(logs.exp())
        self._target.fill((-logs).exp())
