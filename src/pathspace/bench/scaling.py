r"""How cost grows: time and memory of the main operations against the number of weights and layers.

Everything here should take O(m) time and memory. What is measured is the exponent: the slope of
log cost against log size, by least squares,

.. math:: \text{cost} \approx c \cdot \text{size}^{\,\text{slope}} .

One series has four square layers that grow, the other layers of 64 units that become more. Small
networks cost what Python costs, so only the largest sizes count, those within a factor of 100 of
the largest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch

import pathspace as ps
from pathspace.bench.measurement import Measurement
from pathspace.bench.timing import free_memory, interleaved, peak_memory
from pathspace.experiments import models

LAYERS, WIDTH = 4, 64  # of the series of sizes, and of that of depths
DEPTHS = (10, 32, 100, 316, 1000)
BYTES_PER_WEIGHT = 32  # weights, gradients, a step, and the peak of what is measured
REFERENCE = "copy of the weights"
RETURNING = ("values", "pull", "push")  # as much as a copy, so they cannot grow slower than one
GOAL = 1.1
SERIES = {"m": "weights", "depth": "layers"}


@dataclass(frozen=True)
class Point:
    """What one operation cost on one network.

    Attributes:
        series: ``"m"`` or ``"depth"``.
        operation: what was done.
        size: the number of weights, or of layers.
        weights: the number of weights.
        seconds: the shortest time.
        bytes: peak memory beyond the network and its gradients; NaN if unknown.
    """

    series: str
    operation: str
    size: int
    weights: int
    seconds: float
    bytes: float


@dataclass(frozen=True)
class Growth:
    """All points of a study, and what was left out of it."""

    points: tuple[Point, ...]
    left_out: tuple[str, ...] = ()

    def series(self, name: str, operation: str) -> list[Point]:
        """The points of one curve, by size."""
        found = [p for p in self.points if (p.series, p.operation) == (name, operation)]
        return sorted(found, key=lambda point: point.size)

    @property
    def operations(self) -> list[str]:
        """What was done, in order."""
        return list(dict.fromkeys(point.operation for point in self.points))

    def slope(self, series: str, operation: str, cost: str = "seconds") -> float:
        """The exponent of one curve over its largest sizes; NaN from fewer than two points."""
        points = self.series(series, operation)
        largest = max((point.size for point in points), default=0)
        return slope(
            [
                (float(point.size), float(getattr(point, cost)))
                for point in points
                if point.size >= largest / 100
            ]
        )

    def rows(self) -> tuple[Measurement, ...]:
        """The exponents, with the goal that they are near 1 for time."""
        rows = []
        for series, unit in SERIES.items():
            for operation in self.operations:
                points = self.series(series, operation)
                if len(points) > 1:
                    last = points[-1]
                    note = f"{last.size:.3g} {unit}: {last.seconds * 1e3:.3g} ms"
                    note += f", {last.bytes / last.weights:.2g} bytes per weight"
                    goal = self._goal(series, operation)
                    what = f"time against {unit}: {operation}"
                    value = self.slope(series, operation)
                    rows.append(Measurement(what, value, "slope", goal, note))
        return tuple(rows)

    def _goal(self, series: str, operation: str) -> float | None:
        """Near 1; large tensors of new memory cost more than small ones, which a copy shows."""
        if operation == REFERENCE:
            return None
        copy = self.slope(series, REFERENCE)
        return copy if operation in RETURNING and copy > GOAL else GOAL

    def to_dict(self) -> dict[str, Any]:
        """Points and slopes as data."""
        return {
            "points": [asdict(point) for point in self.points],
            "left_out": list(self.left_out),
            "slopes": [
                {"series": series, "operation": name, **{
                    cost: self.slope(series, name, cost) for cost in ("seconds", "bytes")
                }}
                for series in SERIES
                for name in self.operations
            ],
        }  # fmt: skip

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Growth:
        """The study of :meth:`to_dict`."""
        return cls(tuple(Point(**p) for p in data["points"]), tuple(data["left_out"]))


def slope(points: Sequence[tuple[float, float]]) -> float:
    r"""Least-squares slope of log y against log x.

    Points where y is not a positive number do not count.

    Example:
        >>> round(slope([(1, 3.0), (10, 300.0), (100, 30000.0)]), 6)
        2.0
    """
    logs = [(math.log(x), math.log(y)) for x, y in points if y > 0 and math.isfinite(y)]
    if len(logs) < 2:
        return math.nan
    mean_x, mean_y = (sum(values) / len(logs) for values in zip(*logs, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in logs)
    return sum((x - mean_x) * (y - mean_y) for x, y in logs) / spread if spread else math.nan


def networks(largest: float) -> list[tuple[str, tuple[int, ...]]]:
    """The series and widths of all networks with at most so many weights, 10^4 and more.

    Example:
        >>> [len(widths) - 1 for series, widths in networks(1e5) if series == "depth"]
        [10]
    """
    sizes = [10 ** (k / 2) for k in range(8, 8 + 2 * 12)]
    square = [round(math.sqrt(size / LAYERS)) for size in sizes if size <= 1.01 * largest]
    found = [("m", (width,) * (LAYERS + 1)) for width in square]
    layer = WIDTH * (WIDTH + 1)
    return found + [
        ("depth", (WIDTH,) * (depth + 1)) for depth in DEPTHS if depth * layer <= largest
    ]


def measure_growth(
    largest: float = 1e8,
    repeats: int = 5,
    *,
    limit: float = 60.0,
    advance: Callable[[str], None] = lambda _: None,
) -> Growth:
    """Measure every operation on networks of growing size, small ones first.

    Args:
        largest: number of weights at which to stop.
        repeats: each time is the shortest of so many.
        limit: seconds for one network after which repetitions end early.
        advance: called before each network, with what it is.

    Returns:
        the points. A network that would not fit into the memory there is, is left out and named.
    """
    points: list[Point] = []
    left_out: list[str] = []
    for series, widths in networks(largest):
        weights = sum(o * (i + 1) for i, o in pairwise(widths))
        depth = len(widths) - 1
        what = f"{weights:,} weights in {depth:,} layers"
        advance(what)
        needed, free = BYTES_PER_WEIGHT * weights, free_memory()
        if needed > free:
            left_out.append(f"{what}: takes {needed / 1e9:.0f} GB, {free / 1e9:.0f} GB are free")
            continue
        tasks = operations(widths)
        seconds = interleaved(tasks, repeats, limit)
        bytes_ = {name: peak_memory(task) for name, task in tasks.items()}  # when all is warm
        size = weights if series == "m" else depth
        points += [
            Point(series, name, size, weights, seconds[name], bytes_[name]) for name in tasks
        ]
    return Growth(tuple(points), tuple(left_out))


def operations(widths: Sequence[int]) -> dict[str, Callable[[], object]]:
    """What is measured, on a perceptron whose values stay moderate at any depth.

    Skeleton weights are 1, so that basis-path values are weights; all others together have the
    same norm, so that what enters a unit is as large as after He's initialisation.
    """
    generator = torch.Generator().manual_seed(0)
    model = models.mlp(tuple(widths))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, parameter.shape[1] ** -0.5, generator=generator)
            else:
                parameter.zero_()
            parameter.grad = torch.empty_like(parameter).normal_(generator=generator)
    x = torch.zeros(1, widths[0])
    network = ps.trace(model, x)
    ps.skeleton_init_(network)
    basis = ps.BasisPaths(network)
    gradients = {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    steps = {name: 1e-6 * gradient for name, gradient in gradients.items()}
    log_norm = ps.path_norm(network, 2, log=True)
    # Path norms grow like 2^(layers/2); relative to them, gradients stay moderate too.
    path_penalty = ps.PathNormPenalty(network, float(torch.as_tensor(-2 * log_norm).exp()))
    g_sgd = ps.optim.GSGD(model.parameters(), 1e-12, network=network, nonfinite="raise")
    path_sgd = ps.optim.PathSGD(model.parameters(), 1e-12, network=network, nonfinite="raise")
    return {
        REFERENCE: lambda: [parameter.detach().clone() for parameter in model.parameters()],
        "trace": lambda: ps.trace(model, x),
        "choice of basis paths": lambda: ps.BasisPaths(network),
        "values": basis.values,
        "pull": lambda: basis.pull(gradients),
        "push": lambda: basis.push(steps),
        "path norm": lambda: ps.path_norm(network, 2, log=True),
        "basis-path penalty": ps.BasisPathPenalty(network, 1e-9, 1e-9).add_to_gradients_,
        "path-norm penalty": path_penalty.add_to_gradients_,
        "G-SGD step": g_sgd.step,
        "Path-SGD step": path_sgd.step,
    }
