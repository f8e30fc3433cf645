"""Eq. (8) and Theorem 5.1 along training: the bounds, and how far they are from what they bound."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pathspace.experiments.executors import Result, compute
from pathspace.experiments.reproduce.experiment import Experiment, Plan, Preset
from pathspace.experiments.reproduce.findings import Claim, Findings
from pathspace.experiments.reproduce.statistics import Sample
from pathspace.experiments.reproduce.yi2019.along import bounds_of
from pathspace.experiments.reproduce.yi2019.boundviews import (
    bounds_figure,
    bounds_table,
)
from pathspace.experiments.reproduce.yi2019.checkpoints import Checkpoint, Course
from pathspace.experiments.training import Outcome, Trial

STARTS = {"skeleton": "skeleton weights", "he": "He's weights"}


@dataclass(frozen=True)
class Settings:
    """What is trained, and when it is looked at.

    Attributes:
        model: a perceptron without biases, of equal widths.
        preprocess: of the images.
        iterations: steps after which the bounds are computed. Trainings of growing length share
            their beginning.
        seeds: one course each.
        effort: arguments of :func:`bounds_of`.
        lr: learning rate.
        batch: images per step.
    """

    model: str
    preprocess: tuple[str, ...]
    iterations: tuple[int, ...]
    seeds: tuple[int, ...]
    effort: Mapping[str, int]
    lr: float = 0.1
    batch: int = 64

    def trial(self, init: str, seed: int, iterations: int) -> Trial:
        """SGD on MNIST, so far."""
        return Trial(
            self.model,
            "mnist",
            preprocess=self.preprocess,
            init=init,
            lr=self.lr,
            batch=self.batch,
            iterations=iterations,
            evaluate_every=1_000_000,
            seed=seed,
        )


def plan(settings: Settings) -> Plan[Findings]:
    """Train to every checkpoint, from both starts; compute the bounds of those that are finite."""
    places = [
        (init, seed, count)
        for init in STARTS
        for seed in settings.seeds
        for count in settings.iterations
    ]
    outcomes: list[Outcome] = yield [settings.trial(*place) for place in places]
    kept = [
        (place, one)
        for place, one in zip(places, outcomes, strict=True)
        if one.status != "diverged"
    ]
    results: list[Result] = yield [
        compute(bounds_of, [one.trial], **settings.effort) for _, one in kept
    ]
    courses = {init: Course(name) for init, name in STARTS.items()}
    for ((init, seed, count), one), result in zip(kept, results, strict=True):
        courses[init].add(Checkpoint(seed, count, one, result))
    found = [course for course in courses.values() if course.checkpoints]
    if not found:
        return Findings(
            claims=(Claim("bounds", "said to explain", "all trainings diverged"),),
            statements=("All trainings diverged.",),
            deviations=_deviations(settings),
        )
    return Findings(
        claims=tuple(claim for course in found for claim in _claims(course)),
        statements=tuple(said for course in found for said in _statements(course)),
        figures=(bounds_figure(found),),
        tables=(bounds_table(found),),
        deviations=_deviations(settings),
    )


# Claims and words --------------------------------------------------------------------------------


def _claims(course: Course) -> list[Claim]:
    last = course.last()
    eq8 = Sample(tuple(one.promised("start") for one in last))
    errors = Sample(tuple(one.test_error for one in last))
    bound, rise = (Sample(tuple(one.ball[name] for one in last)) for name in ("bound", "rise"))
    tau8, tau51 = course.agreement("pac-bayes"), course.agreement("ball")
    group = f"From {course.start}, at the end of training"
    return [
        Claim("Eq. (8), error promised (%)", "a bound", eq8, _vacuous(eq8), group),
        Claim("test error (%)", "below that bound, without noise", errors, "", group),
        Claim("Theorem 5.1, log₁₀ of the bound", "a bound", bound, "", group),
        Claim("log₁₀ of the rise found in that ball", "what it bounds", rise, "", group),
        _agreement("Kendall's τ, Eq. (8) and gap along training", tau8, group),
        _agreement("Kendall's τ, Theorem 5.1 and gap along training", tau51, group),
    ]


def _vacuous(sample: Sample) -> str:
    return "vacuous" if min(sample.values) >= 100 else "not vacuous"


def _agreement(what: str, tau: Sample, group: str) -> Claim:
    """Whether a bound grows with the gap along every training."""
    known = [value for value in tau.values if math.isfinite(value)]
    if len(known) < len(tau):
        return Claim(what, "above 0", "undefined: one of both is constant", "undecided", group)
    verdict = "undecided"
    if all(value > 0 for value in known):
        verdict = "seen"
    elif all(value < 0 for value in known):
        verdict = "contrary"
    return Claim(what, "above 0", tau, verdict, group)


def _statements(course: Course) -> list[str]:
    best = min(course.checkpoints, key=lambda one: one.promised("start"))
    zero = min(one.promised("zero") for one in course.checkpoints)
    vacuous = sum(one.promised("start") >= 100 for one in course.checkpoints)
    last, count = course.last(), len(course.checkpoints)
    orders = [float(one.ball["bound"]) - float(one.ball["rise"]) for one in last]
    epsilon = Sample(tuple(math.log10(one.ball["epsilon"]) for one in last))
    flat = Sample(tuple(100 * one.result["pac-bayes"]["start"]["flatness"] for one in last))
    promised, bound, errors = (
        Sample(tuple(values))
        for values in zip(
            *((one.promised("start"), one.pac_bayes("start"), one.test_error) for one in last),
            strict=True,
        )
    )
    said = (
        "it never says anything about an error"
        if vacuous == count
        else f"it says nothing at {vacuous} of {count} checkpoints"
    )
    return [
        f"From {course.start}, Eq. (8) with the best σ of its grid promises an error of at most "
        f"{best.promised('start'):.3g} % at best (after {best.iterations:,} steps; prior around "
        f"the initial values; {zero:.3g} % with a prior around 0): {said}. At the end it promises "
        f"{promised} %, of which {bound} % are the bound and of these {flat} % the expected "
        f"flatness at that σ; the test error is {errors} %.",
        f"From {course.start}, Theorem 5.1 allows balls of log₁₀ ε = {epsilon} at the end; its "
        f"bound is {_decimals(orders)} orders of magnitude above the rise of the loss that is "
        "found there.",
    ]


def _decimals(orders: Sequence[float]) -> str:
    finite = [order for order in orders if math.isfinite(order)]
    if not finite:
        return "infinitely many"
    low, high = f"{min(finite):.0f}", f"{max(finite):.0f}"
    return low if low == high else f"{low} to {high}"


def _deviations(settings: Settings) -> tuple[str, ...]:
    return (
        "The paper states both bounds and evaluates neither; networks and data are ours: "
        f"{settings.model} on MNIST.",
        "Eq. (8) leaves the prior open. It is normal around 0 or around the initial values; KL "
        "pays besides for cutting the noise of roots off and for the signs of free weights. The "
        "loss is the error, which is between 0 and 1, as the bound assumes.",
        "Theorem 5.1 is evaluated as published, although its proof has gaps, with ε half of what "
        "its condition allows on the images it is measured on.",
    )


QUICK = Settings(
    model="mlp-nobias:49-32-32-10",
    preprocess=("subset:train=10000", "average_pool:7", "unit_interval", "flatten"),
    iterations=(1, 10, 100, 1000, 5000),
    seeds=(0, 1, 2),
    effort={"images": 1000, "pairs": 8, "restarts": 2, "steps": 15},
)
PAPER = Settings(
    model="mlp-nobias:784-64-64-10",
    preprocess=("unit_interval", "flatten"),
    iterations=(1, 10, 100, 1000, 10_000, 100_000),
    seeds=(0, 1, 2, 3, 4),
    effort={"images": 10_000, "pairs": 32, "restarts": 4, "steps": 30},
)
LIGHT: dict[str, Any] = {"images": 24, "pairs": 2, "restarts": 1, "steps": 2}

EXPERIMENT = Experiment(
    name="yi2019 bounds",
    title="The PAC-Bayes bound and Theorem 5.1 along training",
    where="Equation (8) and Theorem 5.1; section 5",
    shows=(
        "The error of the perturbed network beyond the training loss is at most its PSI-expected "
        "flatness and a term of the Kullback–Leibler divergence from a prior (Eq. 8). The rise of "
        "the loss in a ball of basis-path values is bounded by powers of the ratio of the largest "
        "to the smallest value (Theorem 5.1). The paper concludes that minima with balanced values "
        "are flatter and generalize better."
    ),
    plan=plan,
    quick=Preset(
        QUICK, jobs=60, time="2 minutes on 2 cores", rehearsal=replace(QUICK, effort=LIGHT)
    ),
    paper=Preset(
        PAPER,
        jobs=120,
        time="a few hours on 2 cores (estimated)",
        rehearsal=replace(PAPER, model=QUICK.model, preprocess=QUICK.preprocess, effort=LIGHT),
    ),
)
