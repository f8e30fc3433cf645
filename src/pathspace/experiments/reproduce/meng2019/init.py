"""Section 11.3: do signs and sizes of the skeleton weights matter to G-SGD?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pathspace.experiments.reproduce.cifar.figures import curves_figure
from pathspace.experiments.reproduce.cifar.images import Case, Images, network_title
from pathspace.experiments.reproduce.cifar.pages import Layout, images_page
from pathspace.experiments.reproduce.cifar.presets import PAPER, QUICK
from pathspace.experiments.reproduce.controls import (
    PUBLISHED,
    Comparison,
    Rate,
    compare,
    rate_words,
)
from pathspace.experiments.reproduce.experiment import Experiment, Plan, Preset
from pathspace.experiments.reproduce.figures import Figure, sample_curve
from pathspace.experiments.reproduce.findings import Claim, Findings
from pathspace.experiments.reproduce.meng2019 import starts
from pathspace.experiments.reproduce.panels import Panel, draw_panels
from pathspace.experiments.reproduce.statistics import Difference, metric
from pathspace.experiments.reproduce.words import listed
from pathspace.experiments.training import Trial
from pathspace.plot.measures import INK

ONES = "all 1 (the paper's)"
# Arms, each by the method of Starts that makes its model.
SIGNS = {"signs as drawn, sizes 1": "drawn_signs", "signs at random, sizes 1": "random_signs"}
SIZES = {"all 1/2": "halves", "all 2": "twos"}
SAME = {"all 1, then rescaled at random": "random_sizes"}
ARMS = {ONES: "ones", **SIGNS, **SIZES, **SAME}
GAPS = {f"{arm} − {ONES}": (arm, ONES) for arm in ARMS if arm != ONES}


def plan(settings: Images) -> Plan[Findings]:
    """Published G-SGD from every start, at the common rate and at the best one for each."""
    (case,) = settings.cases
    comparison = yield from compare(
        arms_of(settings, case),
        seeds=settings.seeds,
        rates=settings.rates,
        common=settings.common,
        validation=settings.held_out,
    )
    return findings(settings, case, comparison)


def arms_of(settings: Images, case: Case) -> dict[str, Trial]:
    """G-SGD as published from each start; only the model differs."""
    base = replace(settings.trial(case), optimizer="gsgd", options=PUBLISHED, init="as-built")
    place = f"{starts.__name__}:{case.network.replace('-', '_')}"
    return {arm: replace(base, model=f"{place}.{method}") for arm, method in ARMS.items()}


def findings(settings: Images, case: Case, comparison: Comparison) -> Findings:
    """What the starts came to."""
    own = Findings(
        claims=tuple(_claims(case, comparison)),
        statements=(*_sign_words(comparison), *_size_words(comparison)),
        figures=(
            curves_figure(
                "curves",
                {
                    f"{case.title}, {said}": comparison.lines(tuple(ARMS), rate)
                    for rate, said in rate_words(settings.common).items()
                },
                "Training loss and test accuracy of G-SGD over epochs from skeleton weights of "
                "several signs and sizes; means over seeds, in bands of one standard deviation.",
            ),
            _rates_figure(comparison),
        ),
        deviations=(
            "The paper gives no numbers and does not say which signs it tried, nor where.",
            "“Section 5.2”, to which it refers for image classification, is that on perceptrons; "
            f"here it is the classification of images of section 5.1, with "
            f"{network_title(case.network)}.",
            *(
                text
                for text in settings.deviations(("cifar10",), len(PAPER.seeds))
                if not text.startswith("The papers have")
            ),
            "G-SGD as published looks through batch norms. A rescaling that multiplies the gain of "
            "one and divides the weights behind keeps the function, but not the values that are "
            "trained; so here sizes at random are not exactly without effect.",
            f"Best rates are those of {listed(settings.rates)} by validation error of the first "
            "seed.",
        ),
    )
    arms = tuple(ARMS)
    return images_page(own, {case: comparison}, Layout(arms, GAPS, arms=arms, tuned=arms))


def _gap(comparison: Comparison, arm: str, rate: Rate = "common") -> Difference:
    return comparison.difference(arm, ONES, "test_error", rate)


def _claims(case: Case, comparison: Comparison) -> list[Claim]:
    claims = [
        Claim(
            f"{arm}, test error (%)",
            "no number",
            comparison.sample(arm, "test_error", "common"),
            group=f"G-SGD, {case.title}, rate {comparison.common_rate:g}",
        )
        for arm in ARMS
    ]
    said = {**dict.fromkeys(SIGNS, "no differences"), **dict.fromkeys(SIZES, "another rate")}
    said |= dict.fromkeys(SAME, "can be randomly set")
    for rate, words in rate_words(comparison.common_rate).items():
        for arm, paper in said.items():
            gap = _gap(comparison, arm, rate)
            claims.append(
                Claim(
                    f"{arm} − all 1, test error (% points)",
                    paper,
                    gap,
                    # Another size is another rate: so it is seen at one rate, and not at the best.
                    "seen"
                    if arm in SIZES and rate == "common" and _differs(gap)
                    else _sameness(gap),
                    f"Section 11.3: {words}",
                )
            )
    return claims


def _differs(gap: Difference) -> bool:
    """Whether there is a difference: an interval on one side of 0, or trainings that diverged."""
    return gap.dropped > 0 or gap.verdict("below 0") != "undecided"


def _sameness(gap: Difference) -> str:
    """Whether a difference is 0 as far as can be told."""
    return "contrary" if _differs(gap) else "no difference seen"


def _sign_words(comparison: Comparison) -> list[str]:
    gaps = {arm: _gap(comparison, arm) for arm in SIGNS}
    best = {arm: _gap(comparison, arm, "best") for arm in SIGNS}
    listed = ", ".join(f"{arm}: {gap}" for arm, gap in gaps.items())
    tuned = ", ".join(f"{arm}: {gap}" for arm, gap in best.items())
    found = [arm for arm in SIGNS if _differs(gaps[arm]) or _differs(best[arm])]
    verdict = (
        f"So signs do matter here, contrary to the paper ({'; '.join(found)})."
        if found
        else "As the paper says, no difference can be told; the intervals show what "
        f"{len(comparison.seeds)} seeds could have missed."
    )
    return [
        "Test errors of G-SGD compared with skeleton weights that are all 1, in percentage points "
        f"at rate {comparison.common_rate:g}: {listed}; each at its best rate: {tuned}. {verdict}"
    ]


def _size_words(comparison: Comparison) -> list[str]:
    told = []
    for arm in SIZES:
        common, best = (_gap(comparison, arm, rate) for rate in ("common", "best"))
        if not _differs(common):
            verdict = "the size makes no difference that could be told"
        elif not _differs(best):
            verdict = "the size acts like another rate, as the paper says"
        else:
            verdict = "the size makes a difference that the rate does not make up for"
        told.append(
            f"Skeleton weights {arm} instead of 1, in percentage points: {common} at rate "
            f"{comparison.common_rate:g}, {best} at the best rates "
            f"({comparison.best_rates[arm]:g} and {comparison.best_rates[ONES]:g}): {verdict}."
        )
    for arm in SAME:
        gap = _gap(comparison, arm)
        verdict = (
            "the function is the same, but what G-SGD makes of it is not"
            if _differs(gap)
            else "sizes that leave the function as it is make no difference that could be told"
        )
        told.append(f"Skeleton weights {arm}: {gap} points: {verdict}.")
    return told


def _rates_figure(comparison: Comparison) -> Figure:
    """Validation error against the rate, while rates were chosen."""

    def finish(ax: Any) -> None:
        ax.axvline(comparison.common_rate, color=INK, linewidth=0.8, linestyle=":")

    curves = [
        sample_curve(
            arm, sorted(tried), [metric(tried[rate], "validation_error") for rate in sorted(tried)]
        )
        for arm, tried in comparison.tuning.items()
    ]
    panel = Panel(
        curves,
        "rate",
        "validation error (%)",
        log_x=True,
        markers=True,
        ticks=curves[0].x,
        finish=finish,
    )
    return Figure(
        "rates",
        lambda: draw_panels([[panel]], (6.5, 4.3), legend=2),
        "Validation error of the first seed at the end of training against the rate, by start; "
        "dotted the common rate.",
        "One line per start over the grid of rates.",
    )


EXPERIMENT = Experiment(
    name="meng2019 init",
    title="Signs and sizes of the skeleton weights",
    where="Section 11.3",
    shows=(
        "G-SGD leaves the free skeleton weights as they begin. The paper says that signs make no "
        "difference on image classification, that sizes may be set at random and act as another "
        "rate, and takes 1 for all."
    ),
    plan=plan,
    quick=Preset(
        replace(QUICK, networks=("plainnet8-thin-small",), rates=(0.3, 1.0)),
        jobs=36,
        time="1 minute on 2 cores",
    ),
    paper=Preset(
        replace(PAPER, networks=("plainnet34",), data=("cifar10",)),
        jobs=84,
        time="about four days on one GPU, at an hour per training (estimated)",
    ),
)
