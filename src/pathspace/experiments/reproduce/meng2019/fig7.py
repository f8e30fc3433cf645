"""Figures 7 and 8: SGD with weight decay against G-SGD with the basis-path penalty, on CIFAR."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pathspace.experiments.reproduce.cifar.figures import curves_figure
from pathspace.experiments.reproduce.cifar.images import Case, Images, network_title
from pathspace.experiments.reproduce.cifar.pages import POINTS, REGULARIZERS, regularized_page
from pathspace.experiments.reproduce.cifar.presets import PAPER_REGULARIZED, QUICK_REGULARIZED
from pathspace.experiments.reproduce.cifar.regularizing import (
    GSGD_BPR,
    NORMALIZED_BPR,
    SGD_WD,
    SKELETON_WD,
    Regularization,
    regularizations,
)
from pathspace.experiments.reproduce.cifar.words import (
    attribution,
    overview,
    regularizer_deviations,
)
from pathspace.experiments.reproduce.controls import GSGD, SGD, rate_words
from pathspace.experiments.reproduce.experiment import Experiment, Plan, Preset
from pathspace.experiments.reproduce.findings import Claim, Findings
from pathspace.experiments.reproduce.shares import FIELLER
from pathspace.experiments.reproduce.statistics import accuracy
from pathspace.experiments.reproduce.words import BANDS

LINES = (SGD, SGD_WD, GSGD, GSGD_BPR)  # the paper's
CONTROLS = (SGD_WD, SKELETON_WD, GSGD_BPR, NORMALIZED_BPR)
GAPS = {
    "G-SGD + BPR − SGD + WD (the paper's)": (GSGD_BPR, SGD_WD),
    "start: SGD from skeleton weights + WD − SGD + WD": (SKELETON_WD, SGD_WD),
    "rest: G-SGD + BPR − SGD from skeleton weights + WD": (GSGD_BPR, SKELETON_WD),
    "G-SGD from SGD's start + BPR − SGD + WD": (NORMALIZED_BPR, SGD_WD),
    "what WD does: SGD + WD − SGD": (SGD_WD, SGD),
    "what BPR does: G-SGD + BPR − G-SGD": (GSGD_BPR, GSGD),
}
# Section 11.5 gives test accuracies (%) of ResNet-34; of PlainNet-34 there are curves only.
PRINTED = {
    ("cifar10", SGD_WD): 94.29,
    ("cifar10", GSGD_BPR): 94.67,
    ("cifar100", SGD_WD): 74.39,
    ("cifar100", GSGD_BPR): 75.20,
}


def plan(settings: Images) -> Plan[Findings]:
    """All arms, with and without regularizers."""
    found = yield from regularizations(settings)
    return findings(settings, found)


def findings(settings: Images, found: Mapping[Case, Regularization]) -> Findings:
    """What the regularized trainings came to."""
    comparisons = {case: one.comparison for case, one in found.items()}
    numbers = " and ".join(str(7 + number) for number in range(len(settings.data)))
    shown = {
        "curves": (
            LINES,
            f"Figure{'s' if ' ' in numbers else ''} {numbers}. Training loss and test accuracy "
            "over epochs of SGD and G-SGD with and without regularizer",
        ),
        "controls": (
            CONTROLS,
            "Training loss and test accuracy over epochs of regularized arms and their controls",
        ),
    }
    own = Findings(
        claims=tuple(claim for case, one in found.items() for claim in _claims(case, one)),
        statements=(
            overview(comparisons, REGULARIZERS),
            *(attribution(case, one, REGULARIZERS) for case, one in comparisons.items()),
            *(_effects(case, one) for case, one in found.items()),
        ),
        figures=tuple(
            curves_figure(
                name,
                {case.title: one.lines(arms, "common") for case, one in comparisons.items()},
                f"{said}, {rate_words(settings.common)['common']}. {BANDS}.",
            )
            for name, (arms, said) in shown.items()
        ),
        deviations=(
            *settings.deviations(PAPER_REGULARIZED.data, len(PAPER_REGULARIZED.seeds)),
            *regularizer_deviations(settings),
            FIELLER,
        ),
    )
    said = "the paper's, what it is made of, and what regularizers do"
    return regularized_page(own, found, lines=LINES, gaps=GAPS, said=said)


# Claims and words --------------------------------------------------------------------------------


def _claims(case: Case, one: Regularization) -> Iterable[Claim]:
    comparison = one.comparison
    group = f"{case.title}, rate {comparison.common_rate:g}"
    for arm in (SGD_WD, GSGD_BPR):
        printed: float | str = "a curve only"
        if case.is_residual:
            number = PRINTED[case.data, arm]
            same = network_title(case.network) == "ResNet-34"
            printed = number if same else f"{number:.2f} (ResNet-34)"
        ours = accuracy(comparison.common[arm])
        yield Claim(f"{arm}, test accuracy (%)", printed, ours, group=group, digits=4)
    for name, label in POINTS.items():
        gap = comparison.difference(GSGD_BPR, SGD_WD, name, "common")
        paper = "below 0" if name == "test_error" else "a curve only"
        verdict = gap.verdict("below 0") if name == "test_error" else ""
        yield Claim(f"{GSGD_BPR} − {SGD_WD}, {label}", paper, gap, verdict, group)


def _effects(case: Case, one: Regularization) -> str:
    """What the regularizers do to their own arms."""
    wd, bpr = (
        one.comparison.difference(arm, base, "test_error", "common")
        for arm, base in ((SGD_WD, SGD), (GSGD_BPR, GSGD))
    )
    return (
        f"{case.title}: weight decay (λ = {one.lambdas[SGD_WD, 'common']:g}) changes the test "
        f"error of SGD by {wd} points, BPR (λ = {one.lambdas[GSGD_BPR, 'common']:g}) that of G-SGD "
        f"by {bpr}."
    )


EXPERIMENT = Experiment(
    name="meng2019 fig7",
    also=("meng2019 fig8",),
    title="SGD with weight decay against G-SGD with the basis-path penalty, on CIFAR",
    where="Figures 7 and 8; section 11.5",
    shows=(
        "PlainNet-34 and ResNet-34 learn CIFAR-10 (Figure 7) and CIFAR-100 (Figure 8) by SGD and "
        "G-SGD, alone and with weight decay (SGD + WD) or the basis-path penalty (G-SGD + BPR), "
        "λ from a grid by validation error on CIFAR-10. G-SGD + BPR has the best test accuracy "
        "everywhere: for ResNet-34 94.67 % against 94.29 % of SGD + WD on CIFAR-10, and 75.20 % "
        "against 74.39 % on CIFAR-100."
    ),
    plan=plan,
    quick=Preset(
        QUICK_REGULARIZED,
        jobs=136,
        time="4 minutes on 2 cores, of which 1 is shared with meng2019 table1",
    ),
    paper=Preset(
        PAPER_REGULARIZED,
        jobs=664,
        time="about a month on one GPU, at an hour per training (estimated)",
    ),
)
