"""Theorem 3.2 and Eq. (6): weight flatness driven up at will, PSI-flatness constant."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from pathspace.experiments.executors import Result, compute
from pathspace.experiments.reproduce.experiment import Experiment, Plan, Preset
from pathspace.experiments.reproduce.findings import Claim, Findings
from pathspace.experiments.reproduce.yi2019.drivenclaims import driven_claims, driven_statements
from pathspace.experiments.reproduce.yi2019.drivenviews import (
    driven_figure,
    layer_table,
    unit_table,
)
from pathspace.experiments.reproduce.yi2019.driving import driven
from pathspace.experiments.reproduce.yi2019.effort import Effort
from pathspace.experiments.training import Trial


@dataclass(frozen=True)
class Settings:
    """What is trained and rescaled.

    Attributes:
        model: a perceptron without biases.
        preprocess: of the images.
        epochs: of each training.
        seeds: one training each.
        factors: α, the first of which is 1.
        effort: how flatness is measured.
        lr: learning rate.
    """

    model: str
    preprocess: tuple[str, ...]
    epochs: int
    seeds: tuple[int, ...]
    factors: tuple[float, ...]
    effort: Effort
    lr: float = 0.1

    def trial(self, seed: int) -> Trial:
        """SGD on MNIST."""
        return Trial(
            self.model,
            "mnist",
            preprocess=self.preprocess,
            lr=self.lr,
            epochs=self.epochs,
            evaluate_every=self.epochs,
            seed=seed,
        )


def plan(settings: Settings) -> Plan[Findings]:
    """Train, rescale, measure."""
    trials = [settings.trial(seed) for seed in settings.seeds]
    outcomes = yield trials
    kept = [one.trial for one in outcomes if one.status != "diverged"]
    effort, factors = asdict(settings.effort), list(settings.factors)
    results: list[Result] = yield [
        compute(driven, [trial], effort=effort, factors=factors) for trial in kept
    ]
    if not results:
        return Findings(
            claims=(Claim("weight flatness", "unbounded", "all trainings diverged"),),
            statements=("All trainings diverged: there is nothing to rescale.",),
            deviations=_deviations(settings),
        )
    return Findings(
        claims=tuple(driven_claims(results, settings.factors)),
        statements=tuple(driven_statements(results, settings.factors)),
        figures=(driven_figure(results, settings.factors),),
        tables=(
            layer_table(results, settings.factors, settings.effort),
            unit_table(results, settings.factors),
        ),
        deviations=_deviations(settings),
    )


def _deviations(settings: Settings) -> tuple[str, ...]:
    return (
        "The paper proves the theorem and shows no experiment; networks, data and measurements are "
        f"ours: {settings.model} on MNIST.",
        "The theorem is about minima. The networks are trained for a few epochs, and their trace "
        "is that of the whole Hessian.",
    )


QUICK = Settings(
    model="mlp-nobias:49-16-16-10",
    preprocess=("average_pool:7", "unit_interval", "flatten"),
    epochs=3,
    seeds=(0, 1, 2),
    factors=(1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001),
    effort=Effort(
        images=256,
        epsilon=0.05,
        sigma=0.02,
        weight_sigma=0.02,
        restarts=4,
        steps=30,
        pairs=64,
        method="exact",
    ),
)
PAPER = replace(
    QUICK,
    model="mlp-nobias:49-64-64-10",
    epochs=100,
    seeds=(0, 1, 2, 3, 4),
    factors=(*QUICK.factors, 0.0003, 0.0001),
    effort=replace(QUICK.effort, images=1024, pairs=128),
)
LIGHT = replace(
    QUICK,
    factors=(1.0, 0.1),
    effort=replace(QUICK.effort, images=8, restarts=1, steps=2, probes=10, pairs=2, method="auto"),
)

EXPERIMENT = Experiment(
    name="yi2019 theorem32",
    title="Weight flatness driven up at will, PSI-flatness constant",
    where="Theorem 3.2 with Equation (6), and Theorem 4.1; sections 3 and 4",
    shows=(
        "The three weight flatnesses (ball, trace, expected) change under positive rescaling, "
        "which does not change the function: by rescaling a hidden layer or a single unit they can "
        "be made as large as one likes, so that they say nothing about generalization. Flatness in "
        "the values of basis paths does not change."
    ),
    plan=plan,
    quick=Preset(QUICK, jobs=6, time="1 minute on 2 cores", rehearsal=LIGHT),
    paper=Preset(
        PAPER,
        jobs=10,
        time="half an hour on 2 cores (estimated)",
        rehearsal=replace(LIGHT, seeds=PAPER.seeds),
    ),
)
