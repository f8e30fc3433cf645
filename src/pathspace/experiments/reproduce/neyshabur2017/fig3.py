"""Figure 3: SGD, AdaGrad and Path-SGD from balanced and unbalanced weights, on four data sets."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pathspace.experiments.reproduce.experiment import Experiment, Plan, Preset, side_by_side
from pathspace.experiments.reproduce.findings import Findings
from pathspace.experiments.reproduce.neyshabur2017.learning import Key, learning
from pathspace.experiments.reproduce.neyshabur2017.race import (
    PATHSGD,
    PATHSGD_UNBALANCED,
    Race,
    race,
)
from pathspace.experiments.reproduce.settings import (
    POWERS_OF_TEN,
    step_sizes_deviation,
    subset_step,
)
from pathspace.experiments.training import Outcome, Trial

# Side, channels and classes.
SHAPES = {
    "mnist": (28, 1, 10),
    "cifar10": (32, 3, 10),
    "cifar100": (32, 3, 100),
    "svhn": (32, 3, 10),
}


@dataclass(frozen=True)
class Settings:
    """What is trained.

    Attributes:
        width: hidden units in each of the two layers.
        epochs: of each training.
        seeds: of each final training.
        rates: the grid of step sizes, powers of ten in the paper.
        side: pixels of the side that images of 32×32 are averaged to; None leaves them.
        images: training images; None for all.
        tests: test images; None for all.
        validation: training images set aside while step sizes are chosen.
        dropouts: probabilities of dropping a unit.
        batch: images per step.
    """

    width: int
    epochs: int
    seeds: tuple[int, ...]
    rates: tuple[float, ...]
    side: int | None = None
    images: int | None = None
    tests: int | None = None
    validation: int = 10_000
    dropouts: tuple[float, ...] = (0.0, 0.5)
    batch: int = 100

    @property
    def picks(self) -> int:
        """A quarter as many units are drawn and rescaled as there are, as in the paper."""
        return 2 * self.width // 4

    def trial(self, data: str, dropout: float) -> Trial:
        """SGD from balanced weights."""
        side, channels, classes = SHAPES[data]
        steps = ["standardize", "flatten"]
        if self.side is not None and self.side < side and channels > 1:
            steps, side = [f"downsample:{self.side}", *steps], self.side
        return Trial(
            f"mlp:{channels * side**2}-{self.width}-{self.width}-{classes}",
            data,
            preprocess=(*steps, *subset_step(self.images, self.tests)),
            init="balanced",
            dropout=dropout,
            batch=self.batch,
            epochs=self.epochs,
        )


def plan(settings: Settings) -> Plan[Findings]:
    """A race per data set, with and without dropout; then Path-SGD in double precision."""
    races: dict[Key, Race] = yield from side_by_side(
        {
            (data, dropout): race(
                settings.trial(data, dropout),
                picks=settings.picks,
                seeds=settings.seeds,
                rates=settings.rates,
                validation=settings.validation,
            )
            for dropout in settings.dropouts
            for data in SHAPES
        }
    )
    plain = [key for key in races if not key[1]]  # without dropout
    starts = (PATHSGD, PATHSGD_UNBALANCED)
    found: list[Outcome] = yield [
        replace(races[key].outcomes[arm][0].trial, dtype="float64")
        for key in plain
        for arm in starts
    ]
    pairs = zip(found[::2], found[1::2], strict=True)
    findings = learning(races, dict(zip(plain, pairs, strict=True)), settings.epochs)
    return replace(findings, deviations=(*_deviations(settings), *findings.deviations))


def _deviations(settings: Settings) -> list[str]:
    told = []
    if settings.width != 4000:
        told.append(
            f"Hidden layers of {settings.width} units (paper: 4,000), and {settings.picks} draws "
            "of units to rescale (paper: 2,000)."
        )
    if settings.images is not None:
        told.append(
            f"{settings.images:,} training images (paper: all, 50,000 to 73,257), of which "
            f"{settings.validation:,} are set aside while step sizes are chosen (paper: 10,000)"
            + (f"; {settings.tests:,} test images." if settings.tests is not None else ".")
        )
    if settings.side is not None:
        told.append(
            f"Colour images are averaged to {settings.side}×{settings.side} pixels (paper: 32×32)."
        )
    return [
        *told,
        *step_sizes_deviation(settings.rates),
        f"The text does not say how long the paper trains; here {settings.epochs} epochs.",
    ]


EXPERIMENT = Experiment(
    name="neyshabur2017 fig3",
    title="SGD, AdaGrad and Path-SGD from balanced and unbalanced weights",
    where="Figure 3; section 6",
    shows=(
        "Networks with two hidden layers of 4,000 units learn MNIST, CIFAR-10, CIFAR-100 and SVHN, "
        "with and without dropout, each optimizer at the step size that reaches the least "
        "validation error fastest. Path-SGD often gets to the same objective, training and test "
        "error sooner than SGD and AdaGrad, and to a lower test error. Unbalanced weights that are "
        "the same function slow SGD and AdaGrad down; Path-SGD's curves are exactly the same."
    ),
    plan=plan,
    quick=Preset(
        Settings(
            width=128,
            epochs=10,
            seeds=(0, 1, 2),
            rates=(1.0, 0.1, 0.01, 1e-3, 1e-4),
            side=16,
            images=5000,
            tests=2000,
            validation=1000,
        ),
        jobs=480,
        time="7 minutes on 2 cores",
    ),
    paper=Preset(
        Settings(width=4000, epochs=100, seeds=(0, 1, 2, 3, 4), rates=POWERS_OF_TEN),
        jobs=944,
        time="more than half a year on 2 cores (estimated): this is for many machines",
    ),
)
