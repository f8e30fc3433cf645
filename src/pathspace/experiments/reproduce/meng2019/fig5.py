"""Figure 5: SGD, Path-SGD and G-SGD on MNIST and CIFAR-10, each at its best step size."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pathspace.experiments.reproduce.controls import Comparison, compare, sgd_and_gsgd
from pathspace.experiments.reproduce.experiment import Experiment, Plan, Preset, side_by_side
from pathspace.experiments.reproduce.findings import Findings
from pathspace.experiments.reproduce.meng2019.contest import contest
from pathspace.experiments.reproduce.meng2019.rivals import PATHSGD, PATHSGD_SKELETON
from pathspace.experiments.reproduce.settings import (
    POWERS_OF_TEN,
    step_sizes_deviation,
    subset_step,
)
from pathspace.experiments.training import Trial

INPUTS = {"mnist": 784, "cifar10": 3072}
LAYERS, UNITS, CLASSES = 5, 64, 10


@dataclass(frozen=True)
class Settings:
    """What is trained.

    Attributes:
        epochs: of each training.
        seeds: of each final training.
        rates: the grid of step sizes, powers of ten in the paper.
        common: one of them, at which all are compared besides.
        images: training images; None for all.
        tests: test images; None for all.
        validation: training images set aside while rates are chosen.
        tuning_seeds: by which they are chosen.
        batch: the paper's batch.
    """

    epochs: int
    seeds: tuple[int, ...]
    rates: tuple[float, ...]
    common: float = 0.1
    images: int | None = None
    tests: int | None = None
    validation: int = 10_000
    tuning_seeds: tuple[int, ...] = (0,)
    batch: int = 64

    def trial(self, data: str) -> Trial:
        """SGD."""
        layers = "-".join(map(str, [INPUTS[data], *[UNITS] * LAYERS, CLASSES]))
        return Trial(
            f"mlp-nobias:{layers}",
            data,
            preprocess=("unit_interval", "flatten", *subset_step(self.images, self.tests)),
            batch=self.batch,
            epochs=self.epochs,
        )

    def arms(self, data: str) -> dict[str, Trial]:
        """The paper's three optimizers, and all of them from the other's start."""
        base = self.trial(data)
        return {
            **sgd_and_gsgd(base),
            PATHSGD: replace(base, optimizer="pathsgd"),
            PATHSGD_SKELETON: replace(base, optimizer="pathsgd", init="skeleton"),
        }


def plan(settings: Settings) -> Plan[Findings]:
    """One comparison with all controls per data set."""
    comparisons: dict[str, Comparison] = yield from side_by_side(
        {
            data: compare(
                settings.arms(data),
                seeds=settings.seeds,
                rates=settings.rates,
                common=settings.common,
                validation=settings.validation,
                tuning_seeds=settings.tuning_seeds,
            )
            for data in INPUTS
        }
    )
    findings = contest(comparisons, settings.epochs)
    return replace(findings, deviations=(*_deviations(settings), *findings.deviations))


def _deviations(settings: Settings) -> list[str]:
    told = []
    if settings.images is not None:
        told.append(
            f"{settings.images:,} training images (paper: 60,000 of MNIST, 50,000 of CIFAR-10), "
            f"of which {settings.validation:,} are set aside while step sizes are chosen"
            + (f", and {settings.tests:,} test images." if settings.tests is not None else ".")
        )
    return [
        *told,
        *step_sizes_deviation(settings.rates),
        f"The paper does not say how long it trains; here {settings.epochs:,} epochs.",
        "Images “of gray scale” are taken to be pixels scaled to [0, 1]; those of CIFAR-10 keep "
        "their colours.",
        "The paper does not say whether layers have biases, nor how weights begin: here there are "
        "no biases, and weights are He's, as in section 11.6.",
    ]


EXPERIMENT = Experiment(
    name="meng2019 fig5",
    title="SGD, Path-SGD and G-SGD, each at its best step size",
    where="Figure 5; sections 5.3 and 11.7",
    shows=(
        "Perceptrons with five hidden layers of 64 units learn MNIST and CIFAR-10, by SGD, "
        "Path-SGD and G-SGD, each at the best of the step sizes 10^0, …, 10^-10. Path-SGD is "
        "better than or as good as SGD in training loss and test accuracy, and G-SGD is better "
        "than Path-SGD. The paper concludes that it helps to consider the dependency between paths."
    ),
    plan=plan,
    quick=Preset(
        Settings(
            epochs=8,
            seeds=(0, 1, 2),
            rates=(1.0, 0.1, 0.01, 1e-3, 1e-4),
            images=8000,
            tests=4000,
            validation=2000,
            tuning_seeds=(0, 1),
        ),
        jobs=192,
        time="4 minutes on 2 cores",
    ),
    paper=Preset(
        Settings(epochs=100, seeds=(0, 1, 2, 3, 4), rates=POWERS_OF_TEN),
        jobs=252,
        time="about a day on 2 cores (estimated)",
    ),
)
