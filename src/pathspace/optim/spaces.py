r"""Where steps are taken by a diagonal metric: path-normalised weights.

A step is :math:`w_e \leftarrow w_e - \eta\,s_e u_e`, with u the rule's update for the
gradient :math:`s_e\,\partial l/\partial w_e`, which rescaling does not touch.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pathspace.flow.products import Later
from pathspace.flow.raising import Slope
from pathspace.flow.slopes import path_slopes
from pathspace.network import Network
from pathspace.optim.blocks import Batch
from pathspace.optim.heldnorms import HeldNorms
from pathspace.optim.lists import Group
from pathspace.optim.representative import HE, HeScales
from pathspace.optim.sheets import SIDES, Leaf, Sheet
from pathspace.optim.space import Space, Step, log_largest
from pathspace.tracing.reading import names


class WeightSpace(Space):
    """The weights themselves: every rule is the plain one, and nothing is looked at."""

    def __repr__(self) -> str:
        return "weights"

    def arrange(self, sheets: Sequence[Sheet], groups: Sequence[Group]) -> None:
        """No factors."""
        self.source = self.target = [None] * len(sheets)

    def inspect(self, step: Step) -> bool:
        """Look at nothing."""
        return True

    def prepare(self, step: Step) -> None:
        """Nothing to renew."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing to remember."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to take back."""


class DiagonalSpace(Space):
    """Weights, each divided by a factor that is measured anew every k-th step."""

    source: list[Tensor | None]
    target: list[Tensor | None]
    by_parts = False

    def __init__(self, network: Network, every: int = 1) -> None:
        super().__init__(network)
        if every < 1:
            raise ValueError(f"every must be at least 1, not {every}")
        self.every, self.taken, self.power = every, 0, 0.0
        self.layout: list[list[str]] = []
        self.source, self.target = [], []
        self.he = HeScales(network.edges, network.H + 1)
        self.held = HeldNorms(network)

    def arrange(self, sheets: Sequence[Sheet], groups: Sequence[Group]) -> None:
        """Forget the factors, unless the same parameters have just moved."""
        layout = [[leaf.name for leaf in sheet.leaves] for sheet in sheets]
        if layout != self.layout:
            self.layout, self.power = layout, 0.0
            self.source, self.target = [None] * len(sheets), [None] * len(sheets)
        self.sheets = sheets
        self._log_largest = log_largest(sheets)
        self.held.arrange(sheets)
        self.back = self.held.back

    def prepare(self, step: Step) -> None:
        """Measure the factors, if it is time."""
        power = 2.0 if step.linear else 1.0
        if self.taken % self.every == 0 or power != self.power:
            self.largest_of: list[tuple[Tensor, float]] = []
            weights = {name: tensor.detach() for name, tensor in self.network.state().items()}
            logs = self.he(weights) if self.network.normalizations else None
            self.by_parts = step.is_native and self.every == 1
            self.measure(weights, logs, power)
            # Networks side by side must not end each other: there, this one loses its loss.
            if self.network.copies == 1:
                largest = self._largest()
                if not math.isfinite(largest):
                    raise self.out_of_range()
                self.is_wide = largest > self.widest()
            self.held.renew(logs if step.is_complete and self.held.is_possible() else None)
        else:
            self.held.renew(None)
        self.power = power
        self.taken += 1

    @abstractmethod
    def measure(self, weights: dict[str, Tensor], logs: Tensor | None, power: float) -> None:
        r"""Renew the factors :math:`s_e^{\mathrm{power}}`.

        ``largest_of`` gets those of them whose largest entry is known by the way, with it. If
        factors need not outlive the step, and it goes :attr:`by_parts`, they may be left to
        :meth:`parts`.

        Args:
            weights: parameters and buffers by name.
            logs: the logarithms of the scales of He, if there are batch norms.
            power: 2 for a linear rule, else 1.
        """

    def widest(self) -> float:
        """How large a factor may be, so that no step overflows where gradients are finite."""
        return math.exp(self._log_largest[1] / 4)

    def _largest(self) -> float:
        """The largest entry of all factors; infinite, or no number, if one is."""
        known = {id(part): largest for part, largest in self.largest_of}
        parts = [part for part in (*self.source, *self.target) if part is not None]
        others = [part.amax().double() for part in parts if id(part) not in known and part.numel()]
        tops = [known[id(part)] for part in parts if id(part) in known]
        if others:
            tops.append(torch.stack(others).amax().item())
        return max(tops, key=lambda top: math.inf if math.isnan(top) else top, default=0.0)

    def state_dict(self) -> dict[str, Any]:
        """The number of steps, norms that are held, and factors where they outlive one step."""
        state: dict[str, Any] = {"taken": self.taken, "layout": self.layout}
        if self.held.start is not None:
            state["held"] = self.held.start.clone()
        if self.every > 1:
            factors = {"source": list(self.source), "target": list(self.target)}
            state |= {"power": self.power, **factors}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take them back."""
        self.taken, self.held.start = state["taken"], state.get("held")
        if state["layout"] == self.layout and "source" in state:
            self.power = state["power"]
            self.source, self.target = (
                [None if factor is None else factor.clone() for factor in state[side]]
                for side in SIDES
            )


class PathSpace(DiagonalSpace):
    r"""Path-normalised weights: :math:`s_e = \gamma_p(e)^{-1/2}`.

    :math:`\gamma_p(e) = (\sum_{\text{paths through }e} \prod_{e'\neq e} |w_{e'}|^p)^{2/p}`; 0 where
    no path through e is alive, so that such weights rest. A batch norm divides by what its batch
    gives; the norm of what enters it stands for that, in the representative of
    :mod:`pathspace.optim.representative`.

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
        self._rooms: dict[str, Tensor] = {}  # memory of the last slopes, for the next ones
        self._later: dict[int, Later] = {}  # by place of a sheet, what finds its factors
        self._norms = [norm for norm in network.normalizations if norm.mean and norm.variance]
        entered = [norm.input_scale.reshape(-1) for norm in self._norms]
        self._entered = torch.cat([torch.zeros(0, dtype=torch.long), *entered])
        bends = (node for node in network.program if node.operation == "prelu")
        self._bends = {name for node in bends for name in names((node.args, node.kwargs))}

    def __repr__(self) -> str:
        return f"path-normalised weights (p = {self.p:g}, every {self.every} steps)"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rooms": {}, "_later": {}}

    def is_plain(self, leaf: Leaf) -> bool:
        """Whether a leaf gets the plain rule: no path runs along it.

        Slopes of PReLU are on no path; γ, which counts them where they are larger than 1, would
        let all others rest.
        """
        return leaf.edge is None or leaf.name in self._bends

    def measure(self, weights: dict[str, Tensor], logs: Tensor | None, power: float) -> None:
        """One sweep forwards and one backwards through the network of path sums."""
        if logs is not None:
            weights = weights | self._statistics(weights, logs)
        most = self.widest() if self.by_parts else 0.0
        slopes = path_slopes(
            self.network, weights, self.p, rooms=self._rooms, power=-power / self.p, most=most
        )
        self._rooms = {
            name: slope.factors[0]
            for name, slope in slopes.items()
            if slope.factors and slope.factors[0].shape == weights[name].shape
        }
        found: list[tuple[Tensor | None, Tensor | None]] = []
        self._later = {}
        for place, sheet in enumerate(self.sheets):
            if (later := self._later_of(sheet, slopes)) is not None:
                self._later[place] = later
                found.append((None, None))
                continue
            parts = [
                [] if self.is_plain(leaf) else self._factors(slopes.get(leaf.name), leaf)
                for leaf in sheet.leaves
            ]
            if sheet.single:
                found.append(_two(parts[0]))
                continue
            one = torch.ones(1, 1, dtype=sheet.dtype, device=sheet.device)
            whole = [math.prod(part[1:], start=part[0]) if part else one for part in parts]
            found.append((sheet.spread(whole), None))
        self.target, self.source = [pair[0] for pair in found], [pair[1] for pair in found]

    def parts(self, batch: Batch) -> Iterator[tuple[Batch, Later | None]]:
        """All whose factors are there, and one by one those whose factors are found later."""
        there = batch.some(lambda place: place not in self._later)
        if there.blocks:
            yield there, None
        for block in batch.blocks:
            if (later := self._later.pop(block.place, None)) is not None:
                yield batch.alone(block), later

    def _later_of(self, sheet: Sheet, slopes: Mapping[str, Slope]) -> Later | None:
        """What finds the factors of a sheet when it steps these very weights, if that is left."""
        leaf = sheet.leaves[0]
        slope = slopes.get(leaf.name)
        is_it = sheet.single and not sheet.is_copy and not self.is_plain(leaf)
        return slope.later if slope is not None and is_it else None

    def _factors(self, slope: Slope | None, leaf: Leaf) -> list[Tensor]:
        r"""The factors :math:`\gamma^{-1/2}` of a leaf, as matrices."""
        if slope is None:
            return []
        if slope.later is not None:
            slope = slope.later.write()
        factors = [leaf.factor(factor.to(leaf.dtype)) for factor in slope.factors]
        if slope.largest is not None:
            self.largest_of.append((factors[0], slope.largest))
        return factors

    def _statistics(self, weights: dict[str, Tensor], logs: Tensor) -> dict[str, Tensor]:
        """Statistics with which batch norms divide by the norm of what enters them."""
        squares = logs.index_select(0, self._entered).mul_(-2).exp_().mul_(HE**2)
        result: dict[str, Tensor] = {}
        parts = squares.split([norm.input_scale.numel() for norm in self._norms])
        for norm, part in zip(self._norms, parts, strict=True):
            variance = weights[str(norm.variance)]
            result[str(norm.mean)] = torch.zeros_like(variance)
            result[str(norm.variance)] = part.to(variance) - norm.eps
        return result


def _two(factors: list[Tensor]) -> tuple[Tensor | None, Tensor | None]:
    """At most two factors with the same product."""
    while len(factors) > 2:
        factors = [factors[0] * factors[1], *factors[2:]]
    first, second = [*factors, None, None][:2]
    return first, second
