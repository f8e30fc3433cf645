"""Landscapes against as many forward passes: a perceptron, many points at once, and a PlainNet.

The 625 points of the PlainNet are not all computed: one point and the set-up are timed on a quarter
of the 1,000 images, and added up, so that what a point costs beside its forward pass weighs four
times as much as it should. The setting is the papers': skeleton initialisation, rule and scale.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pathspace as ps
from pathspace.bench import Measurement, interleaved
from pathspace.evaluation import Objective
from pathspace.experiments import models
from pathspace.losslandscape import landscape
from pathspace.losslandscape.chart import Coordinates
from pathspace.losslandscape.directions import random_directions
from pathspace.losslandscape.strategies import PointByPoint

SPACES = ("paths", "weights")
PAPERS = {"skeleton": "modulo", "scale": 0.05}


def setting(name: str, batch: int) -> tuple[nn.Module, ps.Network, Tensor, Tensor]:
    model = models.build(name, torch.Generator().manual_seed(0)).eval()
    network = ps.trace(model, models.example_input(name))
    ps.skeleton_init_(network)
    x = models.example_input(name, batch)
    return model, network, x, torch.arange(batch) % 10


def perceptron(repeats: int) -> list[Measurement]:
    """40 × 40 points of 784-64-64-10 on 512 samples."""
    model, network, x, y = setting("mlp:784-64-64-10", 512)

    def forwards() -> None:
        for _ in range(1600):
            F.cross_entropy(model(x), y)

    tasks: dict[str, Callable[[], object]] = {"forwards": forwards}
    for space in SPACES:
        for name, chunk in (("", None), (", one by one", 1)):
            tasks[f"{space}{name}"] = lambda space=space, chunk=chunk: landscape(
                network, F.cross_entropy, (x, y), space=space, grid=40, chunk=chunk, **PAPERS
            )
    seconds = interleaved(tasks, repeats)
    return [
        Measurement(
            f"784-64-64-10, 40×40, {name}",
            seconds[name] / seconds["forwards"],
            "× forwards",
            0.4 if name in SPACES else None,
        )
        for name in tasks
        if name != "forwards"
    ]


def plain_net(repeats: int) -> list[Measurement]:
    """25 × 25 points of PlainNet-18, on one of the four batches of 1,000 images."""
    model, network, x, y = setting("plainnet18", 250)

    def forward() -> None:
        F.cross_entropy(model(x), y)

    basis = ps.BasisPaths(network, "modulo")
    state = {name: tensor.detach() for name, tensor in network.state().items()}
    objective = Objective(network, F.cross_entropy, (x, y))
    tasks: dict[str, Callable[[], object]] = {"forward": forward}
    for space in SPACES:
        coordinates = Coordinates(basis.graph, state, basis if space == "paths" else None)
        vectors = random_directions(coordinates, "random", 2, 0)
        chart = coordinates.chart([1e-3 * vector for vector in vectors])
        one = PointByPoint(objective, list(objective.batches()), chart)
        point = torch.tensor([[0.5, -0.5]], dtype=torch.float64)
        tasks[f"{space} point"] = lambda one=one, point=point: _evaluated(objective, one, point)
        tasks[f"{space} set-up"] = lambda space=space: landscape(
            network, F.cross_entropy, (x[:1], y[:1]), space=space, grid=2, skeleton="modulo",
            scale=1e-3,
        )  # fmt: skip
    seconds = interleaved(tasks, min(repeats, 5))
    results = []
    for space in SPACES:
        total = 625 * seconds[f"{space} point"] + seconds[f"{space} set-up"] + seconds["forward"]
        ratio = total / (625 * seconds["forward"])
        results.append(Measurement(f"plainnet18, 25×25, {space}", ratio, "× forwards", 1.1))
        setup = seconds[f"{space} set-up"]
        results.append(Measurement(f"plainnet18, set-up, {space}", setup, "s"))
    return [
        *results,
        Measurement("plainnet18, forward pass of 250 images", seconds["forward"], "s"),
    ]


def _evaluated(objective: Objective, one: PointByPoint, point: Tensor) -> Tensor:
    with objective.evaluating():
        return one.losses(point)


@torch.no_grad()
def measure(repeats: int) -> list[Measurement]:
    return [*perceptron(repeats), *plain_net(repeats)]
