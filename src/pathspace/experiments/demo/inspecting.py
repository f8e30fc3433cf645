"""Networks before and after training: norms, flatness and landscapes in both spaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import cross_entropy

from pathspace.experiments.demo.settings import OPTIMIZERS, STARTS, Start
from pathspace.experiments.demo.trainings import Trainings
from pathspace.flatnesses import Flatness, flatness
from pathspace.flatnesses.coordinates import Space
from pathspace.losslandscape import Landscape, landscapes
from pathspace.measuring import measure
from pathspace.progress import Step
from pathspace.tracing import trace

MEASURES = ("loss", "weight norm (p=2)", "path norm (p=2)", "basis-path norm")
SPACES: tuple[Space, ...] = ("weights", "paths")
BEFORE = "before training"


@dataclass(frozen=True, eq=False)
class Look:
    """What was measured about one network.

    Attributes:
        name: the optimizer that trained it, or :data:`BEFORE`.
        start: where its weights began.
        measures: values by name, on the training images; None for what this network has not.
        flatness: the trace of the Hessian, by space.
    """

    name: str
    start: Start
    measures: Mapping[str, float | None]
    flatness: Mapping[Space, Flatness]


def inspect_networks(trainings: Trainings, step: Step = lambda _: None) -> list[Look]:
    """Measure the networks of the first seed before training and after, each at its best rate.

    A training that diverged left nothing to measure, and is left out.
    """
    looks = []
    for name, start, weights in _networks(trainings):
        step(f"measuring {name}, {start}")
        looks.append(_look(trainings, name, start, weights))
    return looks


def draw_landscapes(
    trainings: Trainings, step: Step = lambda _: None
) -> dict[Space, Sequence[Landscape]]:
    """The landscapes of what G-SGD came to from both starts, by space.

    Both are the same function in different weights, trained at one rate. Within a space both have
    the same directions.
    """
    rate, seed = trainings.best_rate("gsgd", "balanced"), trainings.settings.seeds[0]
    states = {
        f"G-SGD from {start}": dict(trainings.outcomes["gsgd", start, rate, seed].weights)
        for start in STARTS
    }
    train = trainings.dataset.train
    network = trace(trainings.model(next(iter(states.values()))), train.inputs[:1])
    found: dict[Space, Sequence[Landscape]] = {}
    for space in SPACES:
        step(f"landscapes over {space}")
        both = landscapes(
            network,
            states,
            cross_entropy,
            (train.inputs, train.targets),
            space=space,
            grid=trainings.settings.grid,
            seed=seed,
        )
        found[space] = tuple(both.values())
    return found


def largest_rise(landscape: Landscape) -> float:
    """How far the loss rises above that of the model within the plane."""
    return landscape.range[1] - landscape.center


# Helpers -----------------------------------------------------------------------------------------


def _networks(trainings: Trainings) -> list[tuple[str, Start, Mapping[str, Tensor]]]:
    seed = trainings.settings.seeds[0]
    found: list[tuple[str, Start, Mapping[str, Tensor]]] = [
        (BEFORE, start, trainings.initial_weights(start, seed)) for start in STARTS
    ]
    for optimizer, name in OPTIMIZERS.items():
        for start in STARTS:
            rate = trainings.best_rate(optimizer, start)
            outcome = trainings.outcomes[optimizer, start, rate, seed]
            if outcome.status == "finished":
                found.append((name, start, outcome.weights))
    return found


def _look(trainings: Trainings, name: str, start: Start, weights: Mapping[str, Tensor]) -> Look:
    train, seed = trainings.dataset.train, trainings.settings.seeds[0]
    data = (train.inputs, train.targets)
    network = trace(trainings.model(weights), train.inputs[:1])
    report = measure(network, data, cross_entropy, measures=MEASURES, progress=False)
    values = {measured: report[measured].value for measured in MEASURES}
    return Look(
        name,
        start,
        values,
        {
            space: flatness(
                network,
                cross_entropy,
                data,
                space=space,
                kind="trace",
                seed=seed,
            )
            for space in SPACES
        },
    )
