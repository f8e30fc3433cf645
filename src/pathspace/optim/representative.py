r"""The representative of a network's class whose coordinates a step is measured in.

Every class has one network in which the weights that enter a unit have the norm
:math:`\sqrt 2` (the norm they have on average after He's initialisation). In its weights a gradient
step is what SGD would do after such an initialisation, however the network is scaled at present.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pathspace.network import Edge
from pathspace.optim.rowsums import EnteringSums
from pathspace.weightgraph import sum_to

_TINY = 1e-30  # smaller sums of squares are looked at in float64
HE = math.sqrt(2)  # the norm of what enters a unit, on average, after He's initialisation


def he_scales(edges: Sequence[Edge], weights: Mapping[str, Tensor], size: int) -> Tensor:
    """What :class:`HeScales` finds for some weights."""
    return HeScales(edges, size)(weights)


class HeScales:
    r"""Logarithms of the scales that give what enters every unit the norm :math:`\sqrt 2`.

    One sweep in the order of computation. What counts for a unit are the weights of the first
    tensor that writes it, biases apart; a unit that only constants enter before it is read (behind
    a batch norm, also where a residual stream begins there) gets the norm 1, as its initial weight
    has. Weights that leave a unit of unknown norm do not count: they are scaled as it is. Scales
    that nothing enters stay as they are.

    Args:
        edges: the edges, in the order in which the network computes.
        size: number of scales, the pinned one included.
    """

    def __init__(self, edges: Sequence[Edge], size: int) -> None:
        self.edges, self.size = edges, size
        self.constants = [edge for edge in edges if edge.from_constant]
        ends = [_flat(edge.target_scale) for edge in self.constants]
        self.ends = torch.cat(ends) if ends else torch.zeros(0, dtype=torch.long)
        self.stages: list[_Stage] | None = None  # of the last sweep, if the next can follow it

    def __call__(self, weights: Mapping[str, Tensor]) -> Tensor:
        """Find them.

        Args:
            weights: the weights by name.

        Returns:
            (size,) logarithms, 0 for the pinned scale.
        """
        squares = _squares(self.constants, weights)
        logs = None if self.stages is None else self._follow(self.stages, squares, weights)
        return self._sweep(squares, weights) if logs is None else logs

    def _follow(
        self, stages: list[_Stage], squares: Tensor, weights: Mapping[str, Tensor]
    ) -> Tensor | None:
        """Do what another sweep did, unless a scale stays unknown that was found there."""
        logs, known = self._start()
        for stage in stages:
            self._settle_constants(stage, squares, logs, known)
            _settle_edges(stage, weights, logs, known)
            if not bool(known.index_select(0, stage.settled).all()):
                return None
        return self._finish(squares, logs, known)

    def _sweep(self, squares: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """Go through all edges; those whose sums nobody has asked for yet are summed together.

        With batch norms, these are all layers of the network.
        """
        logs, known = self._start()
        stages, waiting, constants = [], list[Edge](), list[_Stage]()
        awaited, before = torch.zeros_like(known), 0
        for edge in self.edges:
            if edge.from_constant:
                before += edge.target_scale.numel()
                continue
            targets, sources = _flat(edge.target_scale), _flat(edge.source_scale)
            if waiting and bool(awaited.index_select(0, torch.cat([sources, targets])).any()):
                stages.append(_Stage.of(constants, waiting))
                _settle_edges(stages[-1], weights, logs, known)
                waiting, constants, awaited = [], [], torch.zeros_like(known)
            unknown = sources[~known.index_select(0, sources)].unique()
            if len(unknown):
                counted = torch.isin(self.ends[:before], unknown).nonzero().view(-1)
                constants.append(_Stage([], unknown, counted))
                self._settle_constants(constants[-1], squares, logs, known)
            if not bool(known.index_select(0, targets).all()):
                waiting.append(edge)
                awaited.index_fill_(0, targets, True).logical_and_(~known)
        stages.append(_Stage.of(constants, waiting))
        _settle_edges(stages[-1], weights, logs, known)
        settled = torch.cat([stage.settled for stage in stages])
        self.stages = stages if bool(known.index_select(0, settled).all()) else None
        return self._finish(squares, logs, known)

    def _start(self) -> tuple[Tensor, Tensor]:
        """No logarithm but that of the pinned scale."""
        known = torch.zeros(self.size, dtype=torch.bool)
        known[0] = True
        return torch.zeros(self.size, dtype=torch.float64), known

    def _settle_constants(
        self, stage: _Stage, squares: Tensor, logs: Tensor, known: Tensor
    ) -> None:
        """Give units that only constants have entered the norm 1."""
        if len(stage.scales):
            ends, entering = (part.index_select(0, stage.counted) for part in (self.ends, squares))
            total = torch.zeros_like(logs).index_add_(0, ends, entering)
            _settle(logs, known, stage.scales, total, 0.0)

    def _finish(self, squares: Tensor, logs: Tensor, known: Tensor) -> Tensor:
        """The same for units that nobody reads."""
        every = _Stage([], torch.arange(self.size), torch.arange(len(squares)))
        self._settle_constants(every, squares, logs, known)
        return logs


@dataclass(frozen=True)
class _Stage:
    """Scales that can be found together.

    Attributes:
        edges: by them, behind the scales below; they have no targets in common.
        scales: by constants.
        counted: which of all constants enter these, before they are read.
    """

    edges: list[Edge]
    scales: Tensor
    counted: Tensor

    @classmethod
    def of(cls, constants: Sequence[_Stage], edges: list[Edge]) -> _Stage:
        """Several with constants, and edges."""
        nothing = [torch.zeros(0, dtype=torch.long)]
        scales = torch.cat([*nothing, *(stage.scales for stage in constants)])
        return cls(edges, scales, torch.cat([*nothing, *(stage.counted for stage in constants)]))

    @cached_property
    def sources(self) -> Tensor:
        """Where the edges start."""
        return torch.cat([_flat(edge.source_scale) for edge in self.edges])

    @cached_property
    def targets(self) -> Tensor:
        """Where they end."""
        return torch.cat([_flat(edge.target_scale) for edge in self.edges])

    @cached_property
    def sums(self) -> EnteringSums:
        """What sums the squares of the edges' weights."""
        return EnteringSums(self.edges)

    @cached_property
    def settled(self) -> Tensor:
        """All scales that are found."""
        return torch.cat([self.scales, self.targets]) if self.edges else self.scales


def _flat(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1)


def _squares(edges: Sequence[Edge], weights: Mapping[str, Tensor]) -> Tensor:
    """Sums of squares of weights over each target, of all edges in a row; most are small."""
    if not edges:
        return torch.zeros(0, dtype=torch.float64)
    given = [_flat(weights[edge.parameter].detach()) for edge in edges]
    flat = torch.cat([part.cpu() for part in given]).double().square_()
    if len(flat) == sum(edge.target_scale.numel() for edge in edges):
        return flat
    parts = flat.split([len(part) for part in given])
    pairs = [
        (part.view(e.shape), e.target_scale.shape) for part, e in zip(parts, edges, strict=True)
    ]
    return torch.cat([_flat(sum_to(part, shape)) for part, shape in pairs])


def _settle_edges(
    stage: _Stage, weights: Mapping[str, Tensor], logs: Tensor, known: Tensor
) -> None:
    """Give the targets of edges the norm of He."""
    if stage.edges:
        found = _entering(stage, weights, logs, known)
        total = torch.zeros_like(logs).index_add_(0, stage.targets, found)
        _settle(logs, known, stage.targets, total, math.log(HE))


def _entering(stage: _Stage, weights: Mapping[str, Tensor], logs: Tensor, known: Tensor) -> Tensor:
    """Sums of squares over what enters each unit from known ones, sources rescaled.

    In the dtype of the weights first, which is faster, and in float64 where that is too narrow.
    """
    sources = stage.sources
    factors = logs.index_select(0, sources).mul_(-2).exp_().mul_(known.index_select(0, sources))
    given = [weights[edge.parameter].detach().cpu() for edge in stage.edges]
    found = stage.sums(given, factors)
    if not bool(((found > _TINY) & found.isfinite()).all()):
        found = EnteringSums(stage.edges)([weight.double() for weight in given], factors)
    return found


def _settle(logs: Tensor, known: Tensor, scales: Tensor, squares: Tensor, norm: float) -> None:
    """Give scales that are not known yet the norm asked for, where anything enters them.

    Args:
        logs: by scale; changed.
        known: by scale; changed.
        scales: which ones; one may be there several times.
        squares: by scale, of the norm of what enters it.
        norm: its logarithm, as it is to be.
    """
    found, before = squares.index_select(0, scales), logs.index_select(0, scales)
    was_known = known.index_select(0, scales)
    new = (found > 0) & ~was_known
    # Indices would do the same, and take three times as long.
    logs.index_copy_(0, scales, torch.where(new, found.log_().mul_(-0.5).add_(norm), before))
    known.index_copy_(0, scales, new | was_known)
