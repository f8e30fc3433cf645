"""How the losses at points of a chart are computed: one after the other, or many at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathspace.evaluation import Batch, Loss, Objective
from pathspace.losslandscape.chart import Chart
from pathspace.losslandscape.partial import Partial
from pathspace.losslandscape.program import GridProgram, Prepared
from pathspace.network import InputSpec, Network
from pathspace.tracing import trace
from pathspace.tracing.values import leaves

Progress = Callable[[int, int], None]
MEMORY = 32 * 2**20  # bytes for the points that are evaluated together
KEPT = 256 * 2**20  # bytes for the first layer's products with all the data
IGNORED = -100  # the target that cross-entropy leaves out unless told otherwise


class Strategy(Protocol):
    """Evaluates the mean loss at points of a chart.

    Attributes:
        chunk: how many points it takes at once.
    """

    chunk: int

    def losses(self, points: Tensor) -> Tensor:
        """(P,) float64, the mean loss over all data at points (P, K) of the chart."""


def choose_strategy(
    objective: Objective,
    batches: Sequence[Batch],
    chart: Chart,
    points: Tensor,
    chunk: int | None = None,
) -> Strategy:
    """Many points at once where the program allows it and gives the same losses; else a loop.

    Args:
        objective: the loss as a function of the state; must be in :meth:`Objective.evaluating`.
        batches: the data.
        chart: the states.
        points: (P, K) points inside the chart that will be asked for.
        chunk: points at once; 1 is the loop. By default as many as fit into :data:`MEMORY`.
    """
    plain = PointByPoint(objective, batches, chart)
    if chunk == 1 or len(points) < 2:
        return plain
    together = ManyPoints.of(objective, batches, chart)
    if together is None:
        return plain
    try:
        trial = points[[0, -1]]
        found, per_point = together.on(0, trial)
    except RuntimeError:  # an operation that vmap does not know
        return plain
    expected = torch.stack([objective.on(batches[0], chart.at(point)) for point in trial])
    tolerance = 1e-9 if expected.dtype == torch.float64 else 1e-3
    if not torch.allclose(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True):
        return plain
    together.chunk = chunk or max(1, MEMORY // max(1, per_point))
    return together


def evaluate(
    strategy: Strategy, points: Tensor, kept: Partial | None, progress: Progress | None
) -> Tensor:
    """The losses at all points, chunk by chunk; what is done outlives an interruption."""
    losses = torch.empty(len(points), dtype=torch.float64)
    start = 0
    if kept is not None:
        start = kept.done
        losses[:start] = kept.losses[:start]
    try:
        while start < len(points):
            if progress is not None:
                progress(start, len(points))
            found = strategy.losses(points[start : start + strategy.chunk])
            losses[start : start + len(found)] = found
            start += len(found)
            if kept is not None:
                kept.add(found)
        if progress is not None:
            progress(start, len(points))
    finally:
        if kept is not None:
            kept.write()
    return losses


class PointByPoint:
    """One call of the model per point and batch: works for every model."""

    chunk = 1

    def __init__(self, objective: Objective, batches: Sequence[Batch], chart: Chart) -> None:
        self.objective, self.batches, self.chart = objective, batches, chart

    def losses(self, points: Tensor) -> Tensor:
        """(P,) float64, the mean loss over all data at points (P, K) of the chart."""
        return torch.stack([self.at(self.chart.at(point)) for point in points])

    def at(self, state: Mapping[str, Tensor]) -> Tensor:
        """The mean loss over all data for a state, float64."""
        total = torch.zeros((), dtype=torch.float64)
        for batch in self.batches:
            total += self.objective.on(batch, state).to(total) * batch.size
        return total / sum(batch.size for batch in self.batches)


class ManyPoints:
    """The recorded program with an axis for the points; see :class:`GridProgram`.

    Memory: the weights behind the first layer and the activations of ``chunk`` points, and the
    first layer's products with the data, up to :data:`KEPT` (beyond it they are computed anew).
    """

    def __init__(
        self, objective: Objective, batches: Sequence[Batch], programs: Sequence[GridProgram]
    ) -> None:
        self.objective, self.batches, self.programs = objective, batches, programs
        self.chunk = 1
        self._kept: dict[int, Prepared] = {}

    @classmethod
    def of(cls, objective: Objective, batches: Sequence[Batch], chart: Chart) -> ManyPoints | None:
        """This strategy, or ``None`` if the network's program does not allow it."""
        if not GridProgram(objective.network, chart).is_worthwhile:
            return None
        programs: dict[tuple[object, ...], GridProgram] = {}
        of_batch = []
        for batch in batches:
            shapes = tuple((tuple(x.shape), x.dtype) for x in _tensors(batch))
            if shapes not in programs:
                program = GridProgram(_retraced(objective.network, batch), chart)
                if not program.is_worthwhile:
                    return None
                programs[shapes] = program
            of_batch.append(programs[shapes])
        return cls(objective, batches, of_batch)

    def losses(self, points: Tensor) -> Tensor:
        """(P,) float64, the mean loss over all data at points (P, K) of the chart."""
        result = torch.zeros(len(points), dtype=torch.float64)
        for k, batch in enumerate(self.batches):
            result += self.on(k, points)[0].to(result) * batch.size
        return result / sum(batch.size for batch in self.batches)

    def on(self, number: int, points: Tensor) -> tuple[Tensor, int]:
        """(P,) the mean losses on one batch, and the bytes of all values per point."""
        batch = self.batches[number]
        outputs, per_point = self.programs[number].outputs(self._prepared(number), points)
        return _losses(self.objective.loss, outputs, batch.target), per_point

    def _prepared(self, number: int) -> Prepared:
        if number in self._kept:
            return self._kept[number]
        prepared = self.programs[number].prepare(_tensors(self.batches[number]))
        if prepared.nbytes + sum(kept.nbytes for kept in self._kept.values()) <= KEPT:
            self._kept[number] = prepared
        return prepared


def _losses(loss: Loss, outputs: Tensor, target: Any) -> Tensor:
    """(P,) the loss at every point.

    Cross-entropy takes all points in one call, the classes on the middle axis, where a softmax over
    few classes is several times as fast as on the last.
    """
    classes = isinstance(target, Tensor) and target.dim() == 1 and not target.is_floating_point()
    if _is_cross_entropy(loss) and outputs.dim() == 3 and classes:
        targets = target.expand(len(outputs), -1)
        by_class = outputs.transpose(1, 2).contiguous()  # (P, classes, samples)
        counted = (target != IGNORED).sum()
        return F.cross_entropy(by_class, targets, reduction="none").sum(1) / counted
    return torch.stack([loss(output, target) for output in outputs])


def _is_cross_entropy(loss: Loss) -> bool:
    """Whether a loss is cross-entropy with torch's defaults."""
    if type(loss) is nn.CrossEntropyLoss:
        plain = loss.weight is None and loss.reduction == "mean" and loss.ignore_index == IGNORED
        return plain and loss.label_smoothing == 0
    return loss is F.cross_entropy


def _tensors(batch: Batch) -> list[Tensor]:
    return [x for x in leaves((batch.args, batch.kwargs)) if isinstance(x, Tensor)]


def _retraced(network: Network, batch: Batch) -> Network:
    """The network traced with the shapes of a batch."""
    specs = [leaf for leaf in leaves(network.inputs) if isinstance(leaf, InputSpec)]
    tensors = _tensors(batch)
    same = [(s.shape, s.dtype) for s in specs] == [(tuple(x.shape), x.dtype) for x in tensors]
    if same and list(network.inputs[1]) == list(batch.kwargs):
        return network
    example = batch.kwargs or batch.args
    return trace(network.model, example, streams=network.streams, on_unknown="pin")
