"""Theorem 3.2 and Eq. (6): weight flatness driven up at will, PSI-flatness constant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from pathspace.experiments.executors import Result, compute
from pathspace.experiments.reproduce.experiment import Experiment, Plan, Preset
from pathspace.experiments.reproduce.findings import Claim, Findings
from pathspace.experiments.reproduce.statistics import Sample
from pathspace.experiments.reproduce.yi2019.drivenviews import (
    change_of_function,
    constant_in_ball,
    driven_figure,
    equation_error,
    largest_change,
    layer_table,
    ratios,
    unit_table,
)
from pathspace.experiments.reproduce.yi2019.driving import driven
from pathspace.experiments.reproduce.yi2019.measuring import KINDS, SPACES, Effort
from pathspace.experiments.reproduce.yi2019.pairs import measure_name
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
        claims=tuple(_claims(results, settings)),
        statements=tuple(_statements(results, settings)),
        figures=(driven_figure(results, settings.factors),),
        tables=(
            layer_table(results, settings.factors, settings.effort),
            unit_table(results, settings.factors),
        ),
        deviations=_deviations(settings),
    )


# Claims and words --------------------------------------------------------------------------------


def _claims(results: Sequence[Result], settings: Settings) -> list[Claim]:
    least = min(settings.factors)
    claims = []
    for space in SPACES:
        for kind in KINDS:
            sample = Sample(tuple(ratios(results, space, kind, least)))
            above = all(value > 1.5 for value in sample.values)
            claims.append(
                Claim(
                    f"{measure_name(space, kind)}, times",
                    1.0 if space == "paths" else "any size",
                    sample,
                    "" if space == "paths" else ("seen" if above else "not seen"),
                    f"Theorems 3.2 and 4.1: first hidden layer rescaled by α = {least:g}",
                )
            )
    proof = constant_in_ball(results)
    group = "Proof of Theorem 3.2"
    return [
        *claims,
        Claim(
            "Eq. (6), one unit: largest relative error of the trace",
            0.0,
            equation_error(results),
            group=group,
            digits=3,
        ),
        Claim(
            "ball with the proof's factors: flatness found",
            "at least the constant function's",
            Sample(tuple(found for found, _ in proof)),
            "seen" if all(found >= 0.99 * said for found, said in proof) else "not found",
            group,
        ),
        Claim(
            "the same of the constant function in that ball",
            "a lower bound",
            Sample(tuple(said for _, said in proof)),
            group=group,
        ),
    ]


def _statements(results: Sequence[Result], settings: Settings) -> list[str]:
    least = min(settings.factors)
    grown = ", ".join(
        f"{kind} {Sample(tuple(ratios(results, 'weights', kind, least)))}" for kind in KINDS
    )
    change = largest_change(results, settings.factors, "paths")
    psi = "stays" if change < 1e-6 else "moves"
    proof = constant_in_ball(results)
    held = sum(found >= 0.99 * said for found, said in proof)
    return [
        f"With the weights into the first hidden layer times α = {least:g} and those out of it "
        f"divided by it, outputs change by at most {change_of_function(results):.1g} (relative), "
        f"and the weight flatnesses are multiplied by: {grown} ({len(results)} seeds).",
        f"PSI-flatness {psi}: over all α, all three kinds and all seeds the largest relative "
        f"change is {change:.1g}.",
        f"Eq. (6) gives the trace after rescaling one unit to within {equation_error(results):.1g}"
        " (relative), from the blocks of the Hessian before it.",
        "With the factors of the proof the ball holds a constant function, whose rise of the loss "
        f"is {Sample(tuple(said for _, said in proof))} over 1 + loss; the search finds "
        f"{Sample(tuple(found for found, _ in proof))}, at least as much in {held} of {len(proof)} "
        "seeds (it is a lower bound of the maximum, found by gradient ascent).",
    ]


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
