"""The report of the demonstration as one web page."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from pathspace import __version__
from pathspace.experiments.demo.inspecting import SPACES, largest_rise
from pathspace.experiments.demo.records import demo_data, look_record, training_records
from pathspace.experiments.demo.running import Demo
from pathspace.experiments.demo.settings import OPTIMIZERS, STARTS, Start
from pathspace.experiments.demo.tables import (
    comparison_table,
    difference_table,
    look_table,
    rate_table,
    training_table,
)
from pathspace.experiments.demo.trainings import Trainings
from pathspace.page import (
    Block,
    Bullets,
    Curve,
    Curves,
    DataTable,
    Details,
    Page,
    Paragraph,
    Section,
    mean_curve,
)
from pathspace.plot.pages import landscape_blocks

TITLE = "One function, two sets of weights, four optimizers"
SECTIONS = (
    "What was done",
    "Comparison",
    "Who notices the rescaling",
    "Training curves",
    "Before and after training",
    "Landscapes",
    "Every learning rate",
    "Configuration and environment",
)


def demo_page(demo: Demo) -> Page:
    """The page: one section per question, the data of all of it to save."""
    trainings = demo.trainings
    contents: tuple[list[Block], ...] = (
        _setting(trainings),
        _comparison(trainings),
        _differences(trainings),
        _curves(trainings),
        _looks(demo),
        _landscapes(demo),
        _rates(trainings),
        _settings(demo),
    )
    sections = [Section(title, blocks) for title, blocks in zip(SECTIONS, contents, strict=True)]
    return Page(TITLE, sections, f"pathspace {__version__} demo", demo_data(demo), "demo")


# Sections ----------------------------------------------------------------------------------------


def _setting(trainings: Trainings) -> list[Block]:
    settings, data = trainings.settings, trainings.dataset
    return [
        Paragraph(
            "Multiply the weights into a hidden ReLU unit by c > 0, divide those out of it by c: "
            "the network computes the same function as before. An optimizer that works on weights "
            "nevertheless takes other steps from there. Path-SGD and G-SGD do not."
        ),
        Bullets(
            (
                f"Model {settings.model} on {settings.data}: {len(data.train):,} images to train "
                f"on, {settings.validation} set aside to choose learning rates by, "
                f"{len(data.test)} to test on; cross-entropy, batches of {settings.batch}, "
                f"{settings.epochs} epochs, constant rates, no momentum, double precision.",
                "Balanced start: normal weights of variance 1 / fan-in, biases 0.",
                f"Unbalanced start: the same weights, then {settings.picks} hidden units drawn at "
                "random (a quarter as many as there are) are each scaled by 10·exp(N(0, 1)), as in "
                "Neyshabur et al. 2017. The function is the same; the first table row of “Who "
                "notices the rescaling” checks that.",
                f"Grid of learning rates, the same for all optimizers: "
                f"{', '.join(f'{rate:g}' for rate in settings.rates)}. The common rate "
                f"{settings.common:g} is one of the grid's, the same for all.",
                f"Seeds: {', '.join(map(str, settings.seeds))}. A seed determines the initial "
                "weights, the rescaling and the order of the images.",
            )
        ),
    ]


def _comparison(trainings: Trainings) -> list[Block]:
    caption = (
        "Share of test images classified wrongly after the last epoch. The best rate is chosen for "
        "each optimizer and start by the mean validation error; the test images play no part in "
        "it. Blue edge: optimizers that cannot notice a rescaling. One small data set and a short "
        "budget: the rows show what a rescaling does, not which optimizer is best in general."
    )
    return [
        DataTable(comparison_table(trainings), caption, training_records(trainings), "comparison")
    ]


def _differences(trainings: Trainings) -> list[Block]:
    settings = trainings.settings
    records = tuple(
        {
            "optimizer": name,
            "rate": rate,
            **dataclasses.asdict(trainings.difference(optimizer, rate)),
        }
        for optimizer, name in OPTIMIZERS.items()
        for rate in settings.rates
    )
    caption = (
        "Two networks that began as the same function are trained with the same rate on the same "
        "batches, one from balanced and one from unbalanced weights. Max |Δ output| is the largest "
        "difference of any score of any test image, relative is that divided by the largest score "
        "from the balanced start, and both are the largest over seeds."
    )
    at_every_rate = (
        "The relative difference at every rate of the grid. Path-SGD and G-SGD begin with a "
        "difference of one rounding, which training may enlarge. Where the rate is so large "
        "that training is chaotic (see the errors in “Every learning rate”), this ends in another "
        "function. A control below the table then trains from the balanced weights after a "
        "rescaling by factors that differ from 1 by 1e-15: a difference as large shows that "
        "rounding alone suffices."
    )
    return [
        DataTable(difference_table(trainings), caption),
        DataTable(rate_table(trainings), at_every_rate, records, "differences"),
    ]


def _curves(trainings: Trainings) -> list[Block]:
    def best(optimizer: str, start: Start) -> float:
        return trainings.best_rate(optimizer, start)

    def common(optimizer: str, start: Start) -> float:
        return trainings.settings.common

    at_best = "each at its best rate"
    at_common = f"all at rate {trainings.settings.common:g}"
    return [
        _figure(trainings, "train_loss", "training loss", best, at_best),
        _figure(trainings, "test_error", "test error (share)", best, at_best),
        _figure(trainings, "train_loss", "training loss", common, at_common),
    ]


def _looks(demo: Demo) -> list[Block]:
    caption = (
        f"Networks of seed {demo.trainings.settings.seeds[0]}, measured on the training images "
        "before training and after it, each at its best rate. A rescaling does not change the path "
        "norm (p=2) and the basis-path norm, but does change the weight norm. tr H is the trace of "
        "the Hessian of the loss (larger is sharper), over weights or over the values of the basis "
        "paths, estimated by Hutch++; ± is the standard error. The path-space trace belongs to a "
        "choice of basis paths, those through each network's own largest weights, so compare the "
        "two starts of one optimizer rather than optimizers. A training that diverged has no row."
    )
    records = tuple(map(look_record, demo.looks))
    return [DataTable(look_table(demo.looks), caption, records, "before and after")]


def _landscapes(demo: Demo) -> list[Block]:
    blocks: list[Block] = [
        Paragraph(
            "G-SGD came to the same function from both starts, in different weights. The loss is "
            "drawn around both, along the same random directions, first over weights, then over "
            "values of basis paths; heights are logarithmic."
        )
    ]
    titles = {"weights": "Over weights: two landscapes", "paths": "Over basis paths: one landscape"}
    for space in SPACES:
        first, second = demo.landscapes[space]
        gap = float((first.losses - second.losses).abs().nan_to_num(0.0).max())
        seen = Paragraph(
            f"Largest rise of the loss within the plane: {largest_rise(first):.4g} around "
            f"{first.name}, {largest_rise(second):.4g} around {second.name}. Largest difference "
            f"between the two at any point of the plane: {gap:.2g}."
        )
        blocks.append(Section(titles[space], [seen, *landscape_blocks([first, second], log=True)]))
    return blocks


def _rates(trainings: Trainings) -> list[Block]:
    caption = (
        "Errors after the last epoch at every rate that was tried. Validation errors choose the "
        "rate; test errors are shown for all, and decide nothing."
    )
    return [DataTable(training_table(trainings), caption, training_records(trainings), "trainings")]


def _settings(demo: Demo) -> list[Block]:
    settings = demo.trainings.settings
    optimizer, start, rate, seed = next(settings.cases())
    first = settings.trial(optimizer, start, rate, seed)
    return [
        Details.of("Configuration: choices of the demonstration", dataclasses.asdict(settings)),
        Details.of("Configuration: the first of the trainings, complete", first.to_dict()),
        Details.of("Environment", demo.environment),
    ]


# Parts -------------------------------------------------------------------------------------------


def _figure(
    trainings: Trainings,
    metric: str,
    label: str,
    rate: Callable[[str, Start], float],
    rates: str,
) -> Curves:
    """One metric over epochs, a curve per optimizer and start."""
    curves = tuple(
        mean_curve(
            f"{name}, {start}",
            [
                [(row["epoch"], _number(row.get(metric))) for row in outcome.curves]
                for outcome in trainings.of(optimizer, start, rate(optimizer, start))
            ],
        )
        for optimizer, name in OPTIMIZERS.items()
        for start in STARTS
    )
    pairs = zip(OPTIMIZERS.values(), curves[::2], curves[1::2], strict=True)
    gaps = ", ".join(f"{name} {_gap(one, other):.1e}" for name, one, other in pairs)
    seeds = len(trainings.settings.seeds)
    over = f"Means over {seeds} seeds; the band is one standard deviation." if seeds > 1 else ""
    caption = (
        f"{label[:1].upper()}{label[1:]} after each epoch, {rates}, from both starts. {over} "
        f"Largest distance between the two curves of an optimizer: {gaps}."
    )
    ends = "; ".join(f"{curve.name}: {curve.y[-1]:.3g}" for curve in curves if curve.y)
    return Curves(
        curves,
        "epoch",
        label,
        " ".join(caption.split()),
        f"{label} over epochs, {rates}, after the last epoch: {ends}.",
        log_y=metric.endswith("loss"),
        file=f"{label} {rates}",
    )


def _gap(one: Curve, other: Curve) -> float:
    """The largest distance between two curves; NaN if one of them broke off."""
    gaps = [abs(a - b) for a, b in zip(one.y, other.y, strict=False)]
    broken = len(one.y) != len(other.y) or any(map(math.isnan, gaps))
    return math.nan if broken else max(gaps)


def _number(value: float | None) -> float:
    """A metric that a curve can draw; where a training diverged there is none."""
    return math.nan if value is None else value
