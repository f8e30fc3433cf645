"""Figure 3: basis-path landscapes of networks trained with small and with large batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from pathspace.experiments.executors import Result, compute
from pathspace.experiments.reproduce.experiment import Experiment, Plan, Preset
from pathspace.experiments.reproduce.findings import Findings
from pathspace.experiments.reproduce.yi2019.effort import Effort
from pathspace.experiments.reproduce.yi2019.measuring import (
    flatnesses,
    pictures,
    rescaled_flatnesses,
    root_sizes,
)
from pathspace.experiments.reproduce.yi2019.pairs import Pair, batch_name
from pathspace.experiments.reproduce.yi2019.sharpness import sharpness
from pathspace.experiments.training import Outcome, Trial

THIN = "pathspace.experiments.reproduce.yi2019.trained:thin_plainnet18"


@dataclass(frozen=True)
class Settings:
    """What is trained, and how it is measured.

    Attributes:
        model: the network.
        preprocess: of the images.
        batches: the small and the large one.
        seeds: a pair of trainings each.
        lr: learning rate, the same for both.
        epochs: of each training, at most.
        effort: how flatness is measured, with the largest perturbations that are taken; σ is the
            scale of the landscapes' directions too.
        rescaled: the same where networks are rescaled, which is done in float64.
        grid: points of a landscape per axis.
        schedule: of the rate.
        augment: augmentation.
        stop: when a training ends.
        evaluate_every: epochs between evaluations.
        spread: standard deviation of the logarithms of the factors of rescalings.
        deviations: what is not as in the paper because of these settings.
    """

    model: str
    preprocess: tuple[str, ...]
    batches: tuple[int, int]
    seeds: tuple[int, ...]
    lr: float
    epochs: int
    effort: Effort
    rescaled: Effort
    grid: int
    schedule: str = "constant"
    augment: str | None = None
    stop: str = "never"
    evaluate_every: int = 5
    spread: float = 1.0
    deviations: tuple[str, ...] = ()

    def trial(self, batch: int, seed: int, init: str = "skeleton") -> Trial:
        """SGD with a batch."""
        return Trial(
            self.model,
            "cifar10",
            preprocess=self.preprocess,
            augment=self.augment,
            init=init,
            lr=self.lr,
            schedule=self.schedule,
            batch=batch,
            epochs=self.epochs,
            stop=self.stop,
            evaluate_every=self.evaluate_every,
            seed=seed,
        )


def plan(settings: Settings) -> Plan[Findings]:
    """Train pairs; choose perturbations that all networks bear; measure, draw, rescale."""
    names = tuple(map(batch_name, settings.batches))
    asked = [settings.trial(batch, seed) for seed in settings.seeds for batch in settings.batches]
    usual = settings.trial(settings.batches[0], settings.seeds[0], init="he")
    *found, usual_outcome = yield [*asked, usual]
    trained: list[tuple[Outcome, Outcome]] = list(zip(found[::2], found[1::2], strict=True))
    kept = [pair for pair in trained if all(one.status != "diverged" for one in pair)]
    networks = [one.trial for pair in kept for one in pair]
    started = [usual] if usual_outcome.status != "diverged" else []
    roots: list[Result] = yield [compute(root_sizes, [one]) for one in (*networks, *started)]
    sizes = [float(one["least"]) for one in roots[: len(networks)]]
    least = min(sizes, default=math.inf)
    effort, rescaled = (fitting(one, least) for one in (settings.effort, settings.rescaled))
    measuring = [compute(flatnesses, [one], effort=asdict(effort)) for one in networks]
    drawing = [
        compute(
            pictures,
            [one.trial for one in pair],
            images=effort.images,
            grid=settings.grid,
            scale=effort.sigma,
            names=list(names),
        )
        for pair in kept
    ]
    moving = [
        compute(rescaled_flatnesses, [one], effort=asdict(rescaled), spread=settings.spread)
        for one in networks[:2]
    ]
    results: list[Result] = yield [*measuring, *drawing, *moving]
    measured, rest = _cut(results, len(measuring))
    drawn, moved = _cut(rest, len(drawing))
    pairs = [
        Pair(
            outcomes,
            (measured[2 * k], measured[2 * k + 1]),
            drawn[k],
            (sizes[2 * k], sizes[2 * k + 1]),
        )
        for k, outcomes in enumerate(kept)
    ]
    at_start = roots[len(networks) :]
    return sharpness(names, trained, pairs, moved, at_start, least, effort, settings.deviations)


def fitting(effort: Effort, least: float) -> Effort:
    """The same effort, with perturbations no larger than the least root of all networks bears.

    A ball of a quarter of it, and noise of a tenth: then every root keeps at least half of its
    value (which noise of five standard deviations would take), and nothing is cut off.
    """
    return replace(
        effort, epsilon=min(effort.epsilon, least / 4), sigma=min(effort.sigma, least / 10)
    )


def _cut(results: Sequence[Result], count: int) -> tuple[list[Result], list[Result]]:
    return list(results[:count]), list(results[count:])


QUICK = Settings(
    model=THIN,
    preprocess=("subset:train=1024:test=2000", "average_pool:16", "unit_interval"),
    batches=(64, 1024),
    seeds=(0, 1, 2, 3, 4, 5),  # with five, a sign test has no p below 0.05
    lr=0.1,
    epochs=120,
    stop="training-loss:0.1",
    effort=Effort(images=128, epsilon=0.05, sigma=0.05),
    rescaled=Effort(images=32, epsilon=0.05, sigma=0.05),
    grid=13,
    deviations=(
        "The preset is a small one: PlainNet-18 with a quarter of the channels learns 1,024 images "
        "of CIFAR-10, averaged to 16×16 pixels and not augmented, with batches of 64 and 1,024 "
        "(the latter is gradient descent on all of them) at rate 0.1 instead of 1.0, until the "
        "training loss is at most 0.1; the paper's end below 0.001. Accuracies are therefore not "
        "comparable, directions are.",
        "Rate, sizes of perturbations and the definition of the height were settled after looking "
        "at a smaller trial of other batches and rates, in which roots were near zero; the tests "
        "are not corrected for that, nor for their number.",
    ),
)
PAPER = Settings(
    model="plainnet18",
    preprocess=("unit_interval",),
    batches=(128, 2048),
    seeds=(0, 1, 2, 3, 4, 5),
    lr=1.0,
    epochs=164,
    schedule="steps:82:123:unit=epochs",
    augment="crop_and_flip:4",
    effort=Effort(
        images=2048, epsilon=0.05, sigma=0.05, restarts=4, steps=30, probes=128, pairs=64
    ),
    rescaled=Effort(images=256, epsilon=0.05, sigma=0.05),
    grid=25,
    deviations=(
        "64k iterations with a batch of 128 are 164 passes over the images; both batches get as "
        "many passes, with the rate divided by 10 after a half and three quarters of them. The "
        "paper does not say whether its large batch had as many passes or as many iterations.",
    ),
)
FEW = Effort(images=4, epsilon=0.05, sigma=0.05, restarts=1, steps=2, probes=10, pairs=2)
LIGHT = replace(  # a small network, for rehearsals
    PAPER, model="plainnet8-thin", effort=FEW, rescaled=FEW, grid=3
)

EXPERIMENT = Experiment(
    name="yi2019 fig3",
    title="Landscapes in basis-path space of networks trained with small and large batches",
    where="Figure 3; section 6, with the definitions of sections 2 and 4",
    shows=(
        "PlainNet-18 learns CIFAR-10 by SGD with batches of 128 (test accuracy 87.78 %) and of "
        "2048 (86.3 %). The loss around both networks, along two random directions of basis-path "
        "values and on one height scale, is flatter around the one that generalizes better. The "
        "paper concludes that minima with a smaller PSI-flatness generalize better."
    ),
    plan=plan,
    quick=Preset(
        QUICK,
        jobs=46,
        time="10 minutes on 2 cores",
        rehearsal=LIGHT,
    ),
    paper=Preset(
        PAPER,
        jobs=46,
        time="about two days on a GPU (estimated)",
        rehearsal=LIGHT,
    ),
)
