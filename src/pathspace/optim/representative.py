r"""The representative of a network's class whose coordinates a step is measured in.

Every class has one network in which the weights that enter a unit have the norm
:math:`\sqrt 2` (the norm they have on average after He's initialisation). In its weights a gradient
step is what SGD would do after such an initialisation, however the network is scaled at present.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from pathspace import native
from pathspace.network import Edge
from pathspace.weightgraph import sum_to

_TINY = 1e-30  # smaller sums of squares are looked at in float64
HE = math.sqrt(2)  # the norm of what enters a unit, on average, after He's initialisation


def he_scales(edges: Sequence[Edge], weights: Mapping[str, Tensor], size: int) -> Tensor:
    r"""Logarithms of the scales that give what enters every unit the norm :math:`\sqrt 2`.

    One sweep in the order of computation. What counts for a unit are the weights of the first
    tensor that writes it, biases apart; a unit that only constants enter before it is read (behind
    a batch norm, also where a residual stream begins there) gets the norm 1, as its initial weight
    has. Weights that leave a unit of unknown norm do not count: they are scaled as it is. Scales
    that nothing enters stay as they are.

    Args:
        edges: the edges, in the order in which the network computes.
        weights: the weights by name.
        size: number of scales, the pinned one included.

    Returns:
        (size,) logarithms, 0 for the pinned scale.
    """
    logs = torch.zeros(size, dtype=torch.float64)
    known = torch.zeros(size, dtype=torch.bool)
    known[0] = True
    constants = torch.zeros(size, dtype=torch.float64)
    from_constants = _squares([edge for edge in edges if edge.from_constant], weights)
    # Edges whose sums nobody has asked for yet, and the scales that follow from these: all layers
    # of a network with batch norms are summed in one pass.
    waiting: list[Edge] = []
    awaited = torch.zeros_like(known)
    for edge in edges:
        targets, sources = edge.target_scale.reshape(-1), edge.source_scale.reshape(-1)
        if edge.from_constant:
            constants.index_add_(0, targets, next(from_constants))
            continue
        if waiting and bool(awaited.index_select(0, torch.cat([sources, targets])).any()):
            _settle_all(waiting, weights, logs, known)
            waiting, awaited = [], torch.zeros_like(known)
        if not bool(known.index_select(0, sources).all()):
            _settle(logs, known, sources, constants, 0.0)
        if not bool(known.index_select(0, targets).all()):
            waiting.append(edge)
            awaited.index_fill_(0, targets, True).logical_and_(~known)
    _settle_all(waiting, weights, logs, known)
    _settle(logs, known, torch.arange(size), constants, 0.0)
    return logs


def _settle_all(
    edges: Sequence[Edge], weights: Mapping[str, Tensor], logs: Tensor, known: Tensor
) -> None:
    """Give the targets of edges, which they have not in common, the norm of He."""
    if edges:
        targets = torch.cat([edge.target_scale.reshape(-1) for edge in edges])
        found = _entering(edges, weights, logs, known)
        total = torch.zeros_like(logs).index_add_(0, targets, found)
        _settle(logs, known, targets, total, math.log(HE))


def _squares(edges: Sequence[Edge], weights: Mapping[str, Tensor]) -> Iterator[Tensor]:
    """Sums of squares of weights over each target; of all edges at once, because most are small."""
    flat = [weights[e.parameter].detach().reshape(-1).to("cpu", torch.float64) for e in edges]
    squares = torch.cat(flat).square_().split([len(part) for part in flat]) if flat else ()
    for edge, square in zip(edges, squares, strict=True):
        is_whole = edge.target_scale.numel() == len(square)
        yield (
            square
            if is_whole
            else sum_to(square.view(edge.shape), edge.target_scale.shape).reshape(-1)
        )


def _entering(
    edges: Sequence[Edge], weights: Mapping[str, Tensor], logs: Tensor, known: Tensor
) -> Tensor:
    """Sums of squares over what enters each unit from known ones, sources rescaled.

    In the dtype of the weights first, which is faster, and in float64 where that is too narrow.
    """
    sources = torch.cat([edge.source_scale.reshape(-1) for edge in edges])
    factors = logs.index_select(0, sources).mul_(-2).exp_().mul_(known.index_select(0, sources))
    parts = factors.split([edge.source_scale.numel() for edge in edges])
    scales = [p.view(e.source_scale.shape) for p, e in zip(parts, edges, strict=True)]
    given = [weights[edge.parameter].detach().cpu() for edge in edges]
    found = _weighted(edges, given, scales)
    flat = torch.cat([sums.reshape(-1).double() for sums in found])
    if not bool(((flat > _TINY) & flat.isfinite()).all()):
        found = _weighted(edges, [weight.double() for weight in given], scales)
        flat = torch.cat([sums.reshape(-1) for sums in found])
    return flat


def _weighted(
    edges: Sequence[Edge], weights: Sequence[Tensor], scales: Sequence[Tensor]
) -> list[Tensor]:
    """Sums of squares times scales over what enters the same target, for each edge."""
    result: list[Tensor] = []
    jobs: dict[torch.dtype, list[native.Job]] = {}
    for edge, weight, scale in zip(edges, weights, scales, strict=True):
        shape = edge.target_scale.shape
        if weight.dtype in (torch.float16, torch.bfloat16):
            weight = weight.float()
        is_by_row = weight.dim() and shape.numel() == len(weight) == shape[0] and len(scale) == 1
        if is_by_row and weight.numel() and native.fits(weight):
            row = scale.to(weight).expand(1, *weight.shape[1:]).contiguous().view(-1)
            found, matrix = weight.new_empty(shape), weight.view(len(weight), -1)
            job = native.Job(matrix, power=2, row=row, along=found.view(-1))
            jobs.setdefault(weight.dtype, []).append(job)
        else:
            square = weight.square()
            both = [d for d in range(weight.dim()) if shape[d] == 1 and scale.shape[d] == 1]
            if both and weight.dim():  # a kernel, before anything is multiplied
                square = square.sum(both, keepdim=True)
            found = sum_to(square * scale.to(square), shape)
        result.append(found)
    for some in jobs.values():
        native.sums(some)
    return result


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
