"""Figure 1: training and test error against the number of hidden units."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pathspace.experiments.reproduce.experiment import Experiment, Plan, Preset
from pathspace.experiments.reproduce.findings import Findings
from pathspace.experiments.reproduce.neyshabur2017.growth import Sweep
from pathspace.experiments.reproduce.neyshabur2017.naming import STANDARDIZED
from pathspace.experiments.reproduce.neyshabur2017.size import effect_of_size
from pathspace.experiments.reproduce.settings import subset_step
from pathspace.experiments.training import Trial

# Inputs at 10×10 pixels, and classes.
SHAPES = {"mnist": (100, 10), "cifar10": (300, 10)}


@dataclass(frozen=True)
class Settings:
    """What is trained.

    Attributes:
        widths: hidden units, H.
        epochs: at most; a training ends before at zero training error and zero training loss.
        seeds: of each training.
        images: training images with those for validation; None for all.
        tests: test images; None for all.
        validation: training images set aside.
        rate: at the start.
        batch: images per step.
    """

    widths: tuple[int, ...]
    epochs: int
    seeds: tuple[int, ...]
    images: int | None = None
    tests: int | None = None
    validation: int = 10_000
    rate: float = 0.1
    batch: int = 100

    def trial(self, data: str, width: int) -> Trial:
        """SGD with the paper's schedule; the paper counts H (C + D) weights, so no biases."""
        inputs, classes = SHAPES[data]
        steps = ("downsample:10", "standardize", "flatten", *subset_step(self.images, self.tests))
        return Trial(
            f"mlp-nobias:{inputs}-{width}-{classes}",
            data,
            preprocess=(*steps, f"validation_split:{self.validation}"),
            lr=self.rate,
            schedule="diminishing",
            loss="truncated-softmax",
            batch=self.batch,
            epochs=self.epochs,
            stop="converged",
        )


def plan(settings: Settings) -> Plan[Findings]:
    """All widths of both data sets at once."""
    cases = [(data, width) for data in SHAPES for width in settings.widths]
    found = yield [
        replace(settings.trial(data, width), seed=seed)
        for data, width in cases
        for seed in settings.seeds
    ]
    count = len(settings.seeds)
    outcomes = {case: found[k * count : (k + 1) * count] for k, case in enumerate(cases)}
    findings = effect_of_size(
        {
            data: Sweep(
                sum(SHAPES[data]), {width: outcomes[data, width] for width in settings.widths}
            )
            for data in SHAPES
        }
    )
    return replace(findings, deviations=(*_deviations(settings), *findings.deviations))


def _deviations(settings: Settings) -> list[str]:
    told = []
    if settings.images is not None:
        left = settings.images - settings.validation
        told.append(
            f"{left:,} training images (paper: 50,000 of MNIST, 40,000 of CIFAR-10), "
            f"{settings.validation:,} for validation (paper: 10,000)"
            + (f", {settings.tests:,} for testing." if settings.tests is not None else ".")
        )
    return [
        *told,
        "The paper does not say how long it trains, except to convergence: here until training "
        f"error and truncated loss are zero, for at most {settings.epochs:,} epochs.",
        "Widths are powers of 2; the paper's text does not list its own.",
        "The paper draws weights from a Gaussian of a width that it does not say; here the "
        "variance is 2 / fan-in.",
        STANDARDIZED,
        "CIFAR-10 keeps its three colours at 10×10 pixels; the paper speaks of 100 pixels.",
        "The rule “zero training error” is ours: the paper shows convergence and early stopping.",
    ]


EXPERIMENT = Experiment(
    name="neyshabur2017 fig1",
    title="Training and test error against the number of hidden units",
    where="Figure 1; section 2",
    shows=(
        "Networks with one hidden layer of H units learn MNIST and CIFAR-10 at 100 pixels by SGD, "
        "with no regularization. Past the H that suffices for zero training error (32 on MNIST), "
        "the test error does not rise but goes on falling, both at convergence and with early "
        "stopping. The paper concludes that something other than size controls the capacity."
    ),
    plan=plan,
    quick=Preset(
        Settings(
            widths=(4, 8, 16, 32, 64, 128, 256, 512, 1024),
            epochs=100,
            seeds=(0, 1, 2),
            images=7000,
            tests=5000,
            validation=2000,
        ),
        jobs=54,
        time="3 minutes on 2 cores",
    ),
    paper=Preset(
        Settings(
            widths=tuple(2**k for k in range(2, 13)),
            epochs=500,
            seeds=(0, 1, 2, 3, 4),
        ),
        jobs=110,
        time="about half a day on 2 cores (estimated)",
    ),
)
