"""Figure 4 and Table 5: what G-SGD gains on SGD, against the invariant ratio H/m."""

from __future__ import annotations

from dataclasses import dataclass

from pathspace.experiments.reproduce.controls import Comparison, compare, sgd_and_gsgd
from pathspace.experiments.reproduce.experiment import Experiment, Plan, Preset, side_by_side
from pathspace.experiments.reproduce.findings import Findings
from pathspace.experiments.reproduce.meng2019.influence import influence
from pathspace.experiments.training import Trial

# Images of 28×28 pixels, averaged over squares of 4×4.
PREPROCESS = ("average_pool:7", "unit_interval", "flatten")


@dataclass(frozen=True)
class Settings:
    """What is trained.

    Attributes:
        widths: hidden units per layer, h.
        epochs: of each training.
        seeds: of each final training.
        rates: the grid from which each arm takes its best rate; none to leave that out.
        tuning_seeds: by which it is chosen.
        tuning_epochs: of the trainings by which it is chosen.
        common: the paper's rate.
        batch: the paper's batch.
        validation: training images set aside while rates are chosen.
        evaluate_every: epochs between evaluations.
    """

    widths: tuple[int, ...]
    epochs: int
    seeds: tuple[int, ...]
    rates: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 1.0)
    tuning_seeds: tuple[int, ...] = (0,)
    tuning_epochs: int | None = None
    common: float = 0.01
    batch: int = 64
    validation: int = 10_000
    evaluate_every: int = 1

    def trial(self, width: int) -> Trial:
        """SGD at the paper's rate."""
        return Trial(
            f"mlp-nobias:49-{width}-{width}-10",
            "fashion-mnist",
            preprocess=PREPROCESS,
            lr=self.common,
            batch=self.batch,
            epochs=self.epochs,
            evaluate_every=self.evaluate_every,
        )


def plan(settings: Settings) -> Plan[Findings]:
    """One comparison with all controls per width."""
    comparisons: dict[int, Comparison] = yield from side_by_side(
        {
            width: compare(
                sgd_and_gsgd(settings.trial(width)),
                seeds=settings.seeds,
                rates=settings.rates,
                common=settings.common,
                validation=settings.validation,
                tuning_seeds=settings.tuning_seeds,
                tuning_epochs=settings.tuning_epochs,
            )
            for width in settings.widths
        }
    )
    return influence(comparisons, settings.epochs, settings.tuning_epochs)


EXPERIMENT = Experiment(
    name="meng2019 fig4",
    also=("meng2019 table5",),
    title="What G-SGD gains on SGD, against the invariant ratio H/m",
    where="Figure 4 and Table 5; sections 5.2 and 11.6",
    shows=(
        "Perceptrons with two hidden layers of h units learn 7×7 Fashion-MNIST, by SGD and by "
        "G-SGD, both at rate 0.01. G-SGD has a lower training loss and a lower test error at every "
        "h, and the gap Δ shrinks as h grows and with it the invariant ratio H/m falls. The paper "
        "concludes that the scaling invariance of weight space harms optimization."
    ),
    plan=plan,
    quick=Preset(
        Settings(widths=(8, 32, 128), epochs=5, seeds=(0, 1, 2)),
        jobs=132,
        time="4 minutes on 2 cores",
    ),
    paper=Preset(
        Settings(
            widths=(8, 16, 32, 64, 128, 256, 512, 1024),
            epochs=100,
            seeds=(0, 1, 2, 3, 4),
            tuning_seeds=(0, 1, 2),
            tuning_epochs=20,
            evaluate_every=5,
        ),
        jobs=800,
        time="about a day on 2 cores (estimated), most of it for h = 512 and 1024",
    ),
)
