r"""Basis-path values as coordinates: the space of G-SGD.

Edges, roots and the products I and O are those of :mod:`pathspace.basis`. A gradient in these
coordinates is :math:`\delta_e/(I(u)O(v))`; in units of :math:`\kappa_e =
\kappa_{in}(u)\kappa_{out}(v)` it is :math:`\delta_e\,\rho(u)\sigma(v)` with :math:`\rho =
\kappa_{in}/I` and :math:`\sigma = \kappa_{out}/O`. The root a of a unit moves in addition all that
leaves its units, so the slope of the loss along its logarithm is

.. math:: \delta_a w_a - \sum_{e \text{ leaving, not free}} \delta_e w_e .

A step multiplies its value by R. What leaves its units is divided by R, so that all other values
move by their own steps alone, and so is ρ of these units. Free weights are coordinates of their own
where they move, with s = σ(v)/σ(u): all else is the same as with the free weights of the start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pathspace.optim.blocks import Batch
from pathspace.optim.carrying import carry
from pathspace.optim.coordinates import Coordinates
from pathspace.optim.finite import is_finite
from pathspace.optim.lists import Tensors, by_row, settings_at
from pathspace.optim.passes import Passes
from pathspace.optim.productsums import sum_products
from pathspace.optim.sheets import SIDES
from pathspace.optim.skeleton import rechosen
from pathspace.optim.space import Step
from pathspace.signedlogs import log_product


class _Waiting(NamedTuple):
    """States to be written when all weights have been updated.

    Attributes:
        matrix: of a buffer.
        where: their places in it.
        values: what they will be.
        roots: the roots that they belong to, 0 for none, if they are averages of gradients.
    """

    matrix: Tensor
    where: Tensor
    values: Tensor
    roots: Tensor | None = None


class BasisSpace(Coordinates):
    """Basis-path values as coordinates, and a step in them."""

    def inspect(self, step: Step) -> bool:
        """Sum the products that every root's slope is made of; whether that is finite."""
        if self.metric == "paper" and self.network.normalizations and not step.is_weighed:
            self._weigh(step)
        if step.is_native:
            self._passes = self._passes or Passes(self, step)
            return self._passes.look(step)
        for place, parts in enumerate(self._flows):
            gradient = step.gradients[place]
            given = [part for part in parts if part is not None]
            if gradient is None:
                for part in given:
                    part.zero_()
            elif given:
                group = step.group(self.sheets[place])
                sum_products(step.weights[place], gradient, given, group, step.kernels)
        self._flow.sum_into(self._slopes)
        unseen = [g for g, seen in zip(step.gradients, self.seen, strict=True) if not seen]
        return is_finite([*unseen, self._slopes])

    def _weigh(self, step: Step) -> None:
        r"""Put :math:`\delta_e\|w_{in}(v)\|` in place of :math:`\delta_e` if v enters a batch norm.

        That is Eq. (40). Weights and biases of batch norms enter none by themselves.
        """
        norms = self._log_norms(step, torch.zeros_like(self.log_source)).exp()
        for place, gradient in enumerate(step.gradients):
            if gradient is not None:
                step.gradients[place] = gradient * norms[self._incoming[place]].to(gradient)
        step.is_weighed = True

    def prepare(self, step: Step) -> None:
        """Step the roots, and renew the factors of all other weights."""
        self._check_range(*self._largest_logs)
        if self.metric == "paper" or any(self.decays):
            self._measure(step)
        power = 2.0 if step.linear else 1.0
        if step.resting is not None:
            self._log_source_before = self.log_source.clone()
        logs = self.log_source, self.log_target
        if step.is_native and self._passes and self._is_simple(step):
            is_target_new = self._is_target_new(power)
            self._passes.turn_by(self._per_slope(step), _LIMIT, logs, power, is_target_new)
            return
        change = self._ratio(step).to(self._exponentials.dtype)  # log(1/R); it may choose anew
        logs = self.log_source, self.log_target
        is_target_new = self._is_target_new(power)
        if step.is_native and self._passes:
            self._passes.turn(change, logs, power, is_target_new)
            return
        self._step_free(step)
        self._moves.write(change, logs, power)
        self._factors.fill(self._exponentials)
        if is_target_new:
            self._target.fill(self._exponentials)

    def _is_target_new(self, power: float) -> bool:
        """Whether the factors by target are others than at the last step."""
        before, self._power = self._power, power
        return power != before or self._is_any_entered

    def _is_simple(self, step: Step) -> bool:
        """Whether :meth:`_ratio` is slopes times :meth:`_per_slope` within a limit, and no more."""
        return self.roots == "multiplicative" and not self.decays[1] and step.is_complete

    def _measure(self, step: Step) -> None:
        """The products I and O of the skeleton, and from them the paper's metric κ = 1."""
        incoming, outgoing = self._skeleton.take(step.weights).view(2, -1)
        inner = _log_products(incoming, self.parent)
        if self.metric != "paper" and self.network.normalizations:
            # What enters a batch norm leaves it with norm 1.
            outgoing = torch.where(self.has, outgoing, (-self._log_norms(step, inner)).exp())
        outer = _log_products(outgoing, self.child)
        if self.metric == "paper":
            self.log_source, self.log_target = -inner, -outer
            self._power = 0.0
            largest = float(torch.maximum(inner.abs(), outer.abs()).max())
            self._check_range(largest, largest)
        self.log_value = inner + outer
        if self.decays[0]:
            self._inner.fill((2 * inner).exp())
            # The squares of the values of paths that end at a batch norm sum to 1 in any case.
            outer = (2 * outer).exp() * ~self._read
            if not by_row(self.decay[0]):  # else see `penalty`: the pinned scale is common to all
                outer = outer * self.decay[0]
            self._outer.fill(torch.cat([outer, outer.new_zeros(1)]))

    def _log_norms(self, step: Step, log_source: Tensor) -> Tensor:
        """Log norms of what enters every unit that a batch norm reads, 0 for all others."""
        total = torch.zeros_like(log_source)
        for sheet, weight, target in zip(self.sheets, step.weights, self._incoming, strict=True):
            source = sheet.scales("source").to(self.device)
            square = (weight * log_source[source].exp().to(weight)).square()
            dims = [d for d in (0, 1) if target.shape[d] == 1]
            square = square.sum(dims, keepdim=True) if dims else square
            total.index_add_(0, target.reshape(-1), square.reshape(-1).to(total))
        return torch.where(self._read & (total > 0), total.log() / 2, 0.0)

    def _ratio(self, step: Step) -> Tensor:
        """Minus log R of every root; 0 for all other units."""
        change = self._change(step)
        if self.roots == "multiplicative":
            limited = change.clamp(-_LIMIT, _LIMIT)
            if not step.linear:
                self._forget(torch.where(limited == change, 1.0, limited / change))
            return limited
        if bool((change >= 1).any()):  # a root would go through zero: here the coordinates end
            self._revise((change >= 1)[self.owner], step)
            self.inspect(step)
            change = self._change(step)
            self.limited = self.limited + self._count(change >= 1)
            change = torch.where(change >= 1, 1 - math.exp(-_LIMIT), change)
        return -torch.log1p(-change)

    def _change(self, step: Step) -> Tensor:
        """The relative decrease of every root's value in a step; 0 for all other units."""
        slope = self._slopes[:-1]  # of minus the logarithm
        if not step.is_native:
            self._subtract(step, slope)
        if self.decays[1]:
            slope -= 2 * self._by_unit(self.decay[1]) * self.log_value
        if step.linear:
            change = slope * self._per_slope(step)
        else:
            unit = self._unit(step)
            along = torch.cat([-slope * unit, self._along_free()])
            of_roots, self._updates = self._ruled(along, step).view(2, -1)
            change = of_roots * unit * self._rates(step)
        if not step.is_complete:
            change.masked_fill_(self._blocked(step), 0.0)
        return change

    def _subtract(self, step: Step, slope: Tensor) -> None:
        """Subtract the products of roots and free weights with their gradients."""
        for dtype, units, places in self._small:
            products = self._flow.memory[dtype].index_select(0, places)
            slope.index_add_(0, units, products.to(slope.dtype), alpha=-1)
        if self._large.parts:
            self.old = self._large.take(step.weights)
            gradients = self._gradients(self.old, step)
            products = (self.old * gradients).view(2, -1).to(slope.dtype)
            slope -= products[0]
            slope.index_add_(0, self.owner, products[1], alpha=-1)
            self._updates = gradients[len(slope) :]

    def _along_free(self) -> Tensor:
        """The gradients in the coordinates of free weights; those of small leaves are not asked."""
        if not (self._large.parts and self.is_free_moving):
            return torch.zeros_like(self.log_source)
        return self._updates * self._free_length()

    def _free_length(self) -> Tensor:
        """The factors s of free weights; like σ, they move with what enters their units."""
        return (self.log_target[self.child] - self.log_target).exp_()

    def _step_free(self, step: Step) -> None:
        """Take the steps of the free weights of large leaves; those of small ones are updated."""
        if self._large.parts and self.is_free_moving:
            length = self._free_length()
            change = self._updates * (length.square() if step.linear else length)
            self.old[len(self.owner) :] -= change * self._rates(step, is_free=True)

    def _per_slope(self, step: Step) -> Tensor:
        """Minus the relative change of the roots' values per slope."""
        if self.roots == "multiplicative" and self.metric != "paper":
            rates = [
                group["lr"] if by_row(group["lr"]) else float(group["lr"]) for group in step.groups
            ]
            if not _same(rates, self._rates_used):
                self._rates_used = rates
                self._coefficient = -(self._he.square() * self._rates(step)).to(self._slopes)
            return self._coefficient
        return -(self._unit(step).square() * self._rates(step)).to(self._slopes)

    def _unit(self, step: Step) -> Tensor:
        r"""The slope along a root's coordinate over that along its logarithm.

        For the coordinate :math:`\tilde v_a` itself that is :math:`1/\tilde v_a`. The
        coordinate of a multiplicative root is its logarithm, in units such that scaling all that
        enters the unit, whose norm is He's, is a step of the same length.
        """
        if self.roots == "multiplicative" and self.metric != "paper":
            return self._he
        weights = self._entries.take(step.weights)[: len(self.is_root)]
        roots = torch.where(self.is_root, weights.abs(), math.inf)
        return (self.log_source[self.parent] + self.log_target).exp_().div_(roots)

    def _rates(self, step: Step, is_free: bool = False) -> Tensor | float:
        """The learning rates of the roots, or of the free weights."""
        rates = [group["lr"] for group in step.groups]
        if len(rates) == 1:
            return self._by_unit(rates[0])
        group = self._group.view(2, -1)[int(is_free)]
        return torch.tensor(rates, dtype=torch.float64, device=self.device)[group]

    def _count(self, units: Tensor) -> int | Tensor:
        """How many units these are, for each network."""
        if self.network.copies == 1:
            return int(units.sum())
        return torch.bincount(self.network.copy_of[units.cpu()], minlength=self.network.copies)

    def _by_unit(self, number: float | Tensor) -> float | Tensor:
        """A hyper-parameter; one per unit where there is one per network."""
        if not isinstance(number, Tensor) or not by_row(number):
            return float(number)
        return number.double().to(self.device).view(-1)[self.network.copy_of.to(self.device)]

    def _blocked(self, step: Step) -> Tensor:
        """The roots of units that a parameter without gradient meets: these do not move."""
        blocked = torch.zeros_like(self.log_source)
        for sheet, gradient in zip(self.sheets, step.gradients, strict=True):
            if gradient is None:
                for side in SIDES:
                    blocked[sheet.scales(side).reshape(-1).to(self.device)] = 1.0
        return torch.zeros_like(blocked).index_add_(0, self.owner, blocked) > 0

    def _gradients(self, weights: Tensor, step: Step) -> Tensor:
        """The gradients of roots and free weights, with sign and weight decay of their groups."""
        gradients = self._large.take(step.gradients)
        if any(group["maximize"] or group["weight_decay"] for group in step.groups):
            for place, rows, _ in self._large.parts:
                if step.gradients[place] is None:
                    continue
                group = step.group(self.sheets[place])
                if group["maximize"]:
                    gradients[rows] = -gradients[rows]
                gradients[rows] += float(group["weight_decay"]) * weights[rows]
        return gradients

    def _ruled(self, slope: Tensor, step: Step) -> Tensor:
        """The rule's updates of what has states of its own, which wait to be written.

        These are roots and, in large leaves, free weights that move; others have no state at all.
        """
        update = torch.zeros_like(slope)
        self.waiting: list[_Waiting] = []
        for place, rows, where in self._entries.parts:
            if step.gradients[place] is None:
                continue
            is_own = rows < len(self.owner)
            if self.is_free_moving and self.sheets[place].single:
                is_own = torch.ones_like(is_own)
            own, at = rows[is_own], where[is_own]
            resting = where[~is_own] if not self.is_free_moving else where[:0]
            roots = torch.where(own < len(self.owner), own, 0)
            state, group = dict(step.states[place]), step.group(self.sheets[place])
            for buffer in step.rule.buffers(group):
                matrix = step.states[place][buffer.name]
                values = state[buffer.name] = matrix.view(-1)[at].to(slope)
                self.waiting.append(
                    _Waiting(matrix, at, values, roots if buffer.power == 1 else None)
                )
                self.waiting.append(_Waiting(matrix, resting, slope.new_zeros(len(resting))))
            if self.network.copies > 1:
                group = settings_at(group, self.network.copy_of[own.cpu()], slope)
                group = {k: v.squeeze(1) if by_row(v) else v for k, v in group.items()}
            update[own] = step.rule.update([slope[own]], [state], group)[0]
        return update

    def _forget(self, shares: Tensor) -> None:
        """Let averages of gradients be those of the steps that are taken, where these are limited.

        Else a single large gradient would multiply the value of a root by 2 for hundreds of steps.
        """
        for waiting in self.waiting:
            if waiting.roots is not None:
                waiting.values.mul_(shares[waiting.roots])

    def penalty(self, batch: Batch) -> list[Tensors]:
        r"""The factors of :math:`\lambda_1 w_e (IO)^2`, the gradient of the penalty on values."""
        if not self.decays[0]:
            return []
        tables = (batch.of(table.parts) for table in (self._inner, self._outer))
        factors: list[Tensors] = [factor for factor in tables if factor is not None]
        if by_row(self.decay[0]):
            like = factors[0][0]
            factors.append([batch.settings({"decay": self.decay[0]}, like)["decay"]])
        return factors

    def finish(self, step: Step) -> None:
        """Give roots and free weights of large leaves their new values."""
        if self._large.parts and not step.is_native:  # else they have them
            self.old *= self._own
            self._large.put_(step.weights, self.old)
        if not step.linear:
            for waiting in self.waiting:
                waiting.matrix.view(-1)[waiting.where] = waiting.values.to(waiting.matrix)
        self.taken += 1
        if step.resting is not None:
            resting = step.resting[self.network.copy_of.to(self.device)]
            self.log_source = torch.where(resting, self._log_source_before, self.log_source)
        if self.metric != "paper" and self.taken % _EVERY == 0:
            # Roots that grew make steps of what leaves their units shorter, which keeps them safe.
            drift = self.log_source + self.log_target
            sizes = torch.linalg.vector_norm(
                torch.stack([self.log_source, self.log_target]), math.inf, 1
            )
            ends = torch.stack([drift.max(), self.log_source.max(), *sizes])
            farthest, largest, of_sources, of_targets = ends.tolist()
            self._largest_logs = max(largest, of_targets), max(of_sources, of_targets)
            if farthest > _DRIFT:
                self._revise(drift > _DRIFT, step)

    def _revise(self, units: Tensor, step: Step) -> None:
        """Choose the in-edges of some units anew, and measure what leaves them anew.

        The function does not move, and the momentum is carried over to the new coordinates.
        """
        for sheet in self.sheets:
            sheet.store()
        leaves = [leaf for sheet in self.sheets for leaf in sheet.leaves]
        weights = {leaf.name: leaf.parameter.detach() for leaf in leaves}
        concerned = (units & self.is_root).cpu()
        new = rechosen(self.skeleton, weights, self.log_source.cpu(), concerned)
        log_source = self.log_source
        if self.metric != "paper":
            log_source = torch.where(units & self.has, -self.log_target, log_source)
        with carry(self, step):
            self.rechosen = self.rechosen + self._count(new.incoming != self.skeleton.incoming)
            self.skeleton, self.log_source = new, log_source
            self._follow_skeleton()


def _log_products(weights: Tensor, forest: Tensor) -> Tensor:
    """Log sizes of the products along a forest; units without an edge count as 1."""
    return log_product(weights.masked_fill(weights == 0, 1.0), forest)[1]


_LIMIT = math.log(2)
_DRIFT = math.log(4)
_EVERY = 4  # steps between two looks at the drift


def _same(first: Sequence[float | Tensor], second: Sequence[float | Tensor]) -> bool:
    """Whether rates are the same, number by number or tensor by tensor."""
    return len(first) == len(second) and all(
        torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a is b or a == b
        for a, b in zip(first, second, strict=True)
    )
