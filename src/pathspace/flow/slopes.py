r"""Slopes of the path norm: what the paths through a weight carry without it.

.. math:: \frac{\partial \phi_p^p}{\partial |w_e|^p}
    = \sum_{\text{paths} \ni e} \prod_{e' \ne e} |w_{e'}|^p
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from pathspace.flow.batchnorms import BatchNorm, BatchNorms, folded
from pathspace.flow.layers import Ahead, Linear
from pathspace.flow.program import Program
from pathspace.flow.raising import Raising, Slope
from pathspace.flow.running import evaluate
from pathspace.flow.sums import Sums
from pathspace.flow.values import Flow, exp
from pathspace.network import Network, Ref, StateRef
from pathspace.weightgraph import Weights


def path_slopes(
    network: Network,
    weights: Mapping[str, Tensor] | None = None,
    p: float = 2.0,
    *,
    biases: bool = True,
    dtype: torch.dtype | None = None,
    rooms: Mapping[str, Tensor] = MappingProxyType({}),
    power: float = 1.0,
    most: float = 0.0,
) -> dict[str, Slope]:
    r"""The derivatives of the path norm's p-th power by the p-th powers of all weights.

    .. math:: \frac{\partial \phi_p^p}{\partial |w_e|^p}
        = \sum_{\text{paths} \ni e} \prod_{e' \ne e} |w_{e'}|^p

    One pass forward and one back through the recorded program, on one sample of ones. Powers of
    weights are written into one buffer and made anew on the way back, so no copy of the weights is
    made; a large linear map that all paths go through is read once for both ways. Exact also where
    :math:`w_e = 0`. A weight that is used several times (in a convolution, or shared between
    layers) has the sum over its uses. Path-SGD's :math:`\gamma_p(e)` is the slope to the power 2/p.

    A batch norm is folded with the statistics in ``weights``: the slope of its weight γ is that
    by :math:`|\gamma|^p`, the slopes of weights in front of it take its gain as given, and the
    slope of its bias is that by :math:`|\beta - \mu\gamma/\sqrt{\sigma^2+\varepsilon}|^p`, the
    power of the folded bias (by :math:`|\beta|^p` if μ = 0). A bias in front of it is part of the
    folded bias and has no slope of its own.

    Args:
        network: the traced network.
        weights: parameters and buffers by name; by default the model's.
        p: finite exponent ≥ 1.
        biases: count paths that start at a bias.
        dtype: what to compute in; by default that of the parameters, at least float32. Slopes that
            are smaller than the largest by more than its range become 0.
        rooms: by name, memory that slopes may be written into, where it fits: tensors like the
            weights, in ``dtype``.
        power: what power of the slopes is asked for; 0 where that is infinite, which a negative
            one is where no path is alive.
        most: powers of slopes of large weights that are known to be at most as large may be found
            later (:attr:`Slope.later`), before any weight changes.

    Returns:
        by name, the :class:`Slope` of every parameter that paths run along.

    Raises:
        NoPathSum: where an operation is not positively homogeneous, naming the layer.

    Example:
        >>> import torch, pathspace as ps
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(2, 2, bias=False),
        ...     torch.nn.ReLU(),
        ...     torch.nn.Linear(2, 1, bias=False),
        ... )
        >>> with torch.no_grad():
        ...     _ = model[0].weight.copy_(torch.tensor([[1.0, 2.0], [0.0, -3.0]]))
        ...     _ = model[2].weight.copy_(torch.tensor([[2.0, -1.0]]))
        >>> slopes = path_slopes(ps.trace(model, torch.ones(1, 2)), p=1)
        >>> slopes["2.weight"].dense()  # |1| + |2| into the first unit, |0| + |3| into the second
        tensor([[3., 3.]])
        >>> slopes["0.weight"].dense()  # also of the weight that is 0
        tensor([[2., 2.],
                [1., 1.]])

    Reference: Neyshabur et al. 2015, Eq. (7) and Algorithm 1.
    """
    found = power_slopes(
        network, weights, p, biases=biases, dtype=dtype, rooms=rooms, power=power, most=most
    )
    slopes = dict(found.slopes)
    for fold in found.folds:
        if name := fold.names.get("bias"):
            uses = [slope for slope in (slopes.get(name), fold.slope) if slope]
            slopes[name] = _summed(uses, fold.slope.log)
    return {name: slope.raised(power) for name, slope in slopes.items()}


@dataclass(frozen=True)
class Fold:
    """The slope of one folded bias of a batch norm, which several parameters are part of.

    Attributes:
        slope: by its power.
        norm: the batch norm.
        names: its weight, its bias and what it absorbs, as far as they are parameters.
    """

    slope: Slope
    norm: BatchNorm
    names: dict[str, str]

    def value(self, state: Mapping[str, Tensor], dtype: torch.dtype) -> tuple[Tensor, Weights]:
        """The folded bias, computed by autograd from parameters, and these by name."""
        parts = {
            key: None if (part := self.norm.tensor(key, state)) is None else part.detach().to(dtype)
            for key in ("weight", "bias", "absorbed", "running_mean", "running_var")
        }
        mean, variance = parts.pop("running_mean"), parts.pop("running_var")
        assert mean is not None
        assert variance is not None
        given = {
            key: part.requires_grad_() for key in self.names if (part := parts[key]) is not None
        }
        value = folded(**parts, mean=mean, inverse=(variance + self.norm.eps).rsqrt())
        return value, {self.names[key]: part for key, part in given.items()}


@dataclass(frozen=True)
class PowerSlopes:
    r"""Slopes by the powers of parameters, those of folded biases, and :math:`\log \phi_p^p`."""

    slopes: dict[str, Slope]
    folds: list[Fold]
    log: float


def power_slopes(
    network: Network,
    weights: Mapping[str, Tensor] | None,
    p: float,
    *,
    biases: bool = True,
    dtype: torch.dtype | None = None,
    rooms: Mapping[str, Tensor] = MappingProxyType({}),
    power: float = 1.0,
    most: float = 0.0,
) -> PowerSlopes:
    """What :func:`path_slopes` returns, folded biases apart, not all raised yet; its arguments."""
    if not 1 <= p < math.inf:
        raise ValueError(f"p must be finite and at least 1, not {p}")
    given = network.state() if weights is None else weights
    state = {n: tensor.detach() if tensor.requires_grad else tensor for n, tensor in given.items()}
    names = network.parameters().keys()
    if dtype is None:
        dtype = _common_dtype(state[name] for name in names if name in state)
    with torch.enable_grad():
        return evaluate(
            network,
            lambda careful: _Forward(
                network, names, rooms, power, most, state, p, biases, dtype, careful
            ),
            _Forward.slopes,
        )


class _Forward(Sums):
    """The pass forward; it remembers where the derivatives by powers of parameters are to go."""

    def __init__(
        self,
        network: Network,
        parameters: Collection[str],
        rooms: Mapping[str, Tensor],
        wanted: float,
        most: float,
        *args: Any,
    ) -> None:
        super().__init__(network, *args)
        self.rooms = dict(rooms)  # of weights that have not been used yet
        self.raising = Raising(wanted, most=most)
        self.repeated: frozenset[str] = frozenset()
        self.parameters = parameters
        self.token = torch.zeros((), requires_grad=True)  # makes layers serve their sinks
        self.leaves: list[tuple[str, Tensor]] = []  # powers that are tensors of their own
        self.norms: BatchNorms | None = None
        self.gains = self.shifts = self.token  # powers of weights and folded biases of all of them
        self.found: dict[str, list[Slope]] = {}
        self.ahead: Ahead | None = None  # for the next layer

    def run(self, program: Program) -> list[Flow]:
        self.repeated = program.repeated
        if program.waist is None:
            return super().run(program)
        self.inputs = program.inputs
        self.run_on(program, 0, program.waist)
        self.ahead = self._ahead(program, program.waist)
        return self.run_on(program, program.waist, len(program.nodes))

    def _ahead(self, program: Program, place: int) -> Ahead | None:
        """What will come back to a linear map: the part behind it is run on ones, and back."""
        x, weight = program.nodes[place].args[:2]
        values, shape = self.whole(x).tensor, self.weights[weight.name].shape
        if not values.requires_grad or len(shape) != 2 or values.numel() != shape[1]:
            return None
        options = (self.p, self.biases, self.dtype, self.careful)
        behind = Sums(self.network, self.weights, *options)
        ones = values.new_ones(*values.shape[:-1], shape[0]).requires_grad_()
        behind.results[Ref(place)] = Flow(ones, 0.0, True)
        total, _ = _total(behind.run_on(program, place + 1, len(program.nodes)))
        if not total.requires_grad:
            return None
        gradient = torch.autograd.grad(total, ones)[0].view(-1)
        return Ahead(gradient) if 0 < float(gradient.sum()) < math.inf else None

    def layer(self, kind: type[Linear], x: Tensor, weight: StateRef, *options: Any) -> Tensor:
        if weight.name not in self.parameters:
            return super().layer(kind, x, weight, *options)
        sink = self.found.setdefault(weight.name, []).append
        ahead, self.ahead = self.ahead, None
        values, room = self.weights[weight.name], self.rooms.pop(weight.name, None)
        if room is not None and not _fits(room, values, self.dtype):
            room = None
        # What several uses add up to is raised in the end.
        is_raised = self.raising.power != 1 and weight.name not in self.repeated
        how = sink, ahead, room, self.raising if is_raised else None
        return kind(self.power, self.scratch, *how, *options)(x, values, self.token)

    def raised(self, tensor: Tensor, name: str | None = None) -> Tensor:
        result = super().raised(tensor)
        if name is not None and name in self.parameters:
            self.found.setdefault(name, [])
            self.leaves.append((name, result.requires_grad_()))
        return result

    def raised_gain(self, weight: Tensor, norms: BatchNorms) -> Tensor:
        self.gains = super().raised_gain(weight, norms).detach().requires_grad_()
        return self.gains

    def raised_shift(self, bias: Tensor, norms: BatchNorms) -> Tensor:
        self.shifts = super().raised_shift(bias, norms).detach().requires_grad_()
        self.norms = norms
        return self.shifts

    def slopes(self, flows: list[Flow]) -> PowerSlopes | None:
        """The pass back; ``None`` if not all slopes are finite."""
        total, log = _total(flows)
        log_total = float(total.detach().double().log()) + log
        if not total.requires_grad:
            return PowerSlopes({}, [], log_total)
        self.raising.scale = exp(self.raising.power * log)
        tensors = [self.token, self.gains, self.shifts, *(leaf for _, leaf in self.leaves)]
        _, *parts = torch.autograd.grad(total, tensors, allow_unused=True)
        both, others = parts[:2], parts[2:]
        for (name, _), gradient in zip(self.leaves, others, strict=True):
            if gradient is not None:
                self.found[name].append(Slope((gradient,)))
        found = [use for uses in self.found.values() for use in uses]
        gains, shifts = (self._by_norm(part, log, found) for part in both)
        for norm, slope in gains:
            if (name := norm.name("weight")) in self.parameters:
                self.found.setdefault(name, []).append(slope)
        slopes = {name: _summed(uses, log) for name, uses in self.found.items() if uses}
        found += [slope for name, slope in slopes.items() if len(self.found[name]) > 1]
        keys = ("weight", "bias", "absorbed")
        folds = [
            Fold(slope, norm, {k: n for k in keys if (n := norm.name(k)) in self.parameters})
            for norm, slope in shifts
        ]
        known = [slope.total for slope in found if slope.total is not None]
        sums = [factor.sum() for slope in found if slope.total is None for factor in slope.factors]
        finite = not sums or bool(torch.stack(sums).isfinite().all())
        finite = finite and math.isfinite(sum(known))
        return PowerSlopes(slopes, folds, log_total) if finite else None

    def _by_norm(
        self, gradient: Tensor | None, log: float, found: list[Slope]
    ) -> list[tuple[BatchNorm, Slope]]:
        """The slopes of every batch norm that is read, given all in a row; raised, if they can be.

        Args:
            gradient: these; ``None`` if there are none.
            log: of what they have in common.
            found: gets them as a whole.
        """
        if gradient is None or self.norms is None:
            return []
        norms, row = self.norms.norms, Slope((gradient,))
        names = {norm.name(key) for norm in norms for key in ("weight", "bias")}
        if self.raising.power != 1 and not names & self.repeated:
            row = self.raising.of(row.factors)
        found.append(row)
        parts = row.factors[0].split(self.norms.sizes(self.weights))
        own = log if row.power == 1 else 0.0  # what is raised has it already
        return [
            (norm, Slope((part,), own, row.power))
            for norm, part in zip(norms, parts, strict=True)
            if norm.is_read
        ]


def _total(flows: list[Flow]) -> tuple[Tensor, float]:
    """The sum over all outputs, and the logarithm of a factor."""
    log = max(flow.log for flow in flows)
    return torch.stack([flow.at(log).sum() for flow in flows]).sum(), log


def _summed(uses: list[Slope], log: float) -> Slope:
    """The slope of one use, or the sum over several uses as one tensor."""
    if len(uses) == 1:
        return uses[0] if uses[0].power != 1 else replace(uses[0], log=log)
    products = [math.prod(use.factors[1:], start=use.factors[0]) for use in uses]
    return Slope((sum(products[1:], start=products[0]),), log)


def _fits(room: Tensor, weight: Tensor, dtype: torch.dtype) -> bool:
    """Whether the slopes of a weight can be written into a tensor."""
    is_like = room.shape == weight.shape and room.device == weight.device
    return is_like and room.dtype == dtype and room.is_contiguous()


def _common_dtype(tensors: Iterable[Tensor]) -> torch.dtype:
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype
