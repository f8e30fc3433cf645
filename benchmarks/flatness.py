"""Flatness in path space: its time against a plain loop, and its change under rescaling.

The trace is timed against a plain weight-space loop with as many probes, which knows nothing of
paths: for every batch it builds the graph of the gradient once and takes one Hessian-vector product
per probe through it. It is also timed with the whole graph built anew for every probe, as such
loops are often written; that one is shown without a goal.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import pathspace as ps
from pathspace.bench import Measurement, interleaved
from pathspace.evaluation import Objective
from pathspace.experiments import models
from pathspace.flatnesses import PathCoordinates, WeightCoordinates, flatness, trace_flatness
from pathspace.flatnesses.sampling import random_probes

PROBES = 20
OPTIONS = {"method": "hutchinson", "rtol": 0.0, "max_probes": PROBES}
Data = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Subject:
    model: str
    samples: int
    batch: int


SUBJECTS = (
    Subject("mlp:784-64-64-10", 512, 512),
    Subject("mlp:784-64-64-10", 512, 128),
    Subject("plainnet8-thin", 64, 32),
)


def measure(repeats: int) -> list[Measurement]:
    results = []
    for subject in SUBJECTS:
        torch.manual_seed(0)
        model = models.build(subject.model).eval()
        example = models.example_input(subject.model)
        x = torch.randn(subject.samples, *example.shape[1:])
        y = torch.randint(10, (subject.samples,))
        data = list(zip(x.split(subject.batch), y.split(subject.batch), strict=True))
        network = ps.trace(model, example)
        objective = Objective(network, F.cross_entropy, data)
        paths, weights = PathCoordinates(network), WeightCoordinates(network)
        tasks: dict[str, Callable[[], object]] = {
            "plain": lambda model=model, data=data: plain(model, data),
            "plain anew": lambda model=model, data=data: anew(model, data),
            "paths": lambda o=objective, c=paths: trace_flatness(o, c, **OPTIONS),
            "weights": lambda o=objective, c=weights: trace_flatness(o, c, **OPTIONS),
            "basis": lambda network=network: PathCoordinates(network),
        }
        seconds = interleaved(tasks, repeats)
        label = f"{subject.model}, {subject.samples}/{subject.batch}"
        unit = "× plain"
        results += [
            Measurement(f"{label}: plain loop", 1000 * seconds["plain"] / PROBES, "ms/probe"),
            Measurement(f"{label}: paths, trace", seconds["paths"] / seconds["plain"], unit, 1.2),
            Measurement(f"{label}: weights, trace", seconds["weights"] / seconds["plain"], unit),
            Measurement(
                f"{label}: plain, graph anew", seconds["plain anew"] / seconds["plain"], unit
            ),
            Measurement(
                f"{label}: paths, with basis",
                (seconds["basis"] + seconds["paths"]) / seconds["plain"],
                unit,
            ),
            Measurement(f"{label}: basis, once", 1000 * seconds["basis"], "ms"),
        ]
    return results + rescaled()


def rescaled() -> list[Measurement]:
    """How much every measure changes when a trained network is rescaled by e^N(0, 1)."""
    digits = load_digits()
    x = torch.tensor(digits.data / 16)  # float64
    y = torch.tensor(digits.target)
    torch.manual_seed(0)
    model = models.build("mlp:64-32-32-10").double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    for _ in range(200):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    network = ps.trace(model, x)
    kinds = ("ball", "trace", "expected", "adaptive")
    cells = [(space, kind) for space in ("paths", "weights") for kind in kinds]

    def values() -> dict[tuple[str, str], float]:
        return {
            (space, kind): flatness(network, F.cross_entropy, (x, y), space=space, kind=kind).value
            for space, kind in cells
        }

    before = values()
    ps.rescale_(network, ps.random_rescaling(network, generator=torch.Generator().manual_seed(0)))
    after = values()
    return [
        Measurement(
            f"rescaled: {space}, {kind}",
            abs(after[space, kind] / before[space, kind] - 1) * 1e6,
            "× 1e-6",
            1.0 if space == "paths" else None,
            f"{before[space, kind]:.4g} → {after[space, kind]:.4g}",
        )
        for space, kind in cells
    ]


def plain(model: nn.Module, data: Data) -> float:
    """Hutchinson's method in the parameters, as one would write it without this package."""
    parameters = list(model.parameters())
    probes = [split(row, parameters) for row in draw(parameters)]
    total = 0.0
    for x, y in data:
        loss = F.cross_entropy(model(x), y)
        gradient = torch.autograd.grad(loss, parameters, create_graph=True)
        for probe in probes:
            product = torch.autograd.grad(gradient, parameters, probe, retain_graph=True)
            form = sum(float((z * hz).sum()) for z, hz in zip(probe, product, strict=True))
            total += form * len(x)
    return total / sum(len(x) for x, _ in data) / PROBES


def anew(model: nn.Module, data: Data) -> float:
    """The same with the graph of the gradient built for every probe."""
    parameters = list(model.parameters())
    total = 0.0
    for row in draw(parameters):
        probe = split(row, parameters)
        for x, y in data:
            loss = F.cross_entropy(model(x), y)
            gradient = torch.autograd.grad(loss, parameters, create_graph=True)
            product = torch.autograd.grad(gradient, parameters, probe)
            form = sum(float((z * hz).sum()) for z, hz in zip(probe, product, strict=True))
            total += form * len(x)
    return total / sum(len(x) for x, _ in data) / PROBES


def draw(parameters: list[Tensor]) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = PROBES, sum(p.numel() for p in parameters)
    return random_probes(shape, parameters[0].detach(), generator)


def split(vector: Tensor, parameters: list[Tensor]) -> list[Tensor]:
    parts = vector.split([p.numel() for p in parameters])
    return [part.view(p.shape) for part, p in zip(parts, parameters, strict=True)]
