"""Table 2 and Figure 4: weight decay and the basis-path penalty on CIFAR-10."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from pathspace.experiments.reproduce.cifar.figures import curves_figure
from pathspace.experiments.reproduce.cifar.images import Case, Images, network_title
from pathspace.experiments.reproduce.cifar.pages import REGULARIZERS, regularized_page
from pathspace.experiments.reproduce.cifar.presets import PAPER_REGULARIZED, QUICK_REGULARIZED
from pathspace.experiments.reproduce.cifar.regularizing import (
    GSGD_BPR,
    NORMALIZED_BPR,
    REGULARIZED,
    SGD_BPR,
    SGD_WD,
    SKELETON_WD,
    Regularization,
    regularizations,
)
from pathspace.experiments.reproduce.cifar.words import attribution, regularizer_deviations
from pathspace.experiments.reproduce.controls import ARMS, GSGD, SGD, Rate, rate_words
from pathspace.experiments.reproduce.experiment import Experiment, Plan, Preset
from pathspace.experiments.reproduce.findings import Claim, Findings, directed_claim
from pathspace.experiments.reproduce.shares import FIELLER
from pathspace.experiments.reproduce.statistics import Sample
from pathspace.experiments.reproduce.tables import Line, table_of
from pathspace.experiments.reproduce.words import BANDS
from pathspace.page import DataTable
from pathspace.tables import Column

LINES = (SGD, SGD_WD, SGD_BPR, GSGD, GSGD_BPR)  # the paper's, which calls G-SGD Q-SGD
GAPS = {
    "SGD + WD − SGD": (SGD_WD, SGD),
    "SGD + BPR − SGD": (SGD_BPR, SGD),
    "SGD + BPR − SGD + WD": (SGD_BPR, SGD_WD),
    "G-SGD + BPR − G-SGD": (GSGD_BPR, GSGD),
    "G-SGD + BPR − SGD + BPR": (GSGD_BPR, SGD_BPR),
    "start: SGD from skeleton weights + WD − SGD + WD": (SKELETON_WD, SGD_WD),
    "G-SGD from SGD's start + BPR − SGD + BPR": (NORMALIZED_BPR, SGD_BPR),
}
# Table 2 as printed: training error, test error and Δ (%).
TABLE2 = {
    "PlainNet-34": {
        SGD: ("0.06", "7.76", "7.70"),
        SGD_WD: ("0.06", "6.34", "6.27"),
        SGD_BPR: ("0.06", "5.99", "5.92"),
        GSGD: ("0.03", "7.00", "6.97"),
        GSGD_BPR: ("0.05", "5.73", "5.68"),
    },
    "ResNet-34": {
        SGD: ("0.01", "7.13", "7.12"),
        SGD_WD: ("0.01", "5.71", "5.70"),
        SGD_BPR: ("0.01", "5.62", "5.61"),
        GSGD: ("0.01", "6.66", "6.65"),
        GSGD_BPR: ("0.03", "5.36", "5.33"),
    },
}
COLUMNS = ("training error (%)", "test error (%)", "Δ (% points)")


def plan(settings: Images) -> Plan[Findings]:
    """All arms, with and without regularizers."""
    found = yield from regularizations(settings)
    return findings(settings, found)


def findings(settings: Images, found: Mapping[Case, Regularization]) -> Findings:
    """What the regularized trainings came to."""
    own = Findings(
        claims=tuple(claim for case, one in found.items() for claim in _claims(case, one)),
        statements=(
            *(_effects(case, one) for case, one in found.items()),
            *(_ranking(case, one) for case, one in found.items()),
            *(attribution(case, one.comparison, REGULARIZERS) for case, one in found.items()),
        ),
        figures=(
            curves_figure(
                "curves",
                {case.title: one.comparison.lines(LINES, "common") for case, one in found.items()},
                "Figure 4. Training loss and test accuracy over epochs, "
                f"{rate_words(settings.common)['common']}. {BANDS}.",
            ),
        ),
        tables=(_errors_table(found),),
        deviations=(
            "The paper calls G-SGD Q-SGD. Its text does not give the training (it is in a "
            "supplement); it is taken from Meng et al., sections 11.4 and 11.5, with which Table 2 "
            "shares its numbers for SGD and G-SGD.",
            *settings.deviations(("cifar10",), None),
            *regularizer_deviations(settings),
            FIELLER,
        ),
    )
    said = "what regularizers and optimizers do"
    return regularized_page(own, found, lines=LINES, gaps=GAPS, said=said)


def _samples(one: Regularization, arm: str, rate: Rate = "common") -> dict[str, Sample]:
    train, test = (one.comparison.sample(arm, n, rate) for n in ("train_error", "test_error"))
    return dict(zip(COLUMNS, (train, test, one.generalization_gap(arm, rate)), strict=True))


def _errors_table(found: Mapping[Case, Regularization]) -> DataTable:
    """Table 2 for all arms, at the common rate."""
    return table_of(
        "Table 2 for all arms",
        [Column("algorithm")],
        {name: name for name in COLUMNS},
        [
            Line(
                (arm,),
                _samples(one, arm),
                {"network": case.network, "algorithm": arm},
                case.title,
            )
            for case, one in found.items()
            for arm in (*ARMS, *REGULARIZED)
        ],
        "Errors at the end of training at the common rate, mean ± standard deviation over seeds; "
        "Δ is the difference of test and training error.",
        across="quantity",
        file="errors",
    )


# Claims and words --------------------------------------------------------------------------------


def _claims(case: Case, one: Regularization) -> Iterable[Claim]:
    kind = "ResNet-34" if case.is_residual else "PlainNet-34"
    same = network_title(case.network) == kind
    group = f"Table 2: {case.title}, rate {one.comparison.common_rate:g}"
    for arm in LINES:
        ours = _samples(one, arm)
        for (name, sample), said in zip(ours.items(), TABLE2[kind][arm], strict=True):
            paper: float | str = float(said) if same else f"{said} ({kind})"
            yield Claim(f"{arm}, {name}", paper, sample, group=group, digits=3)
    for gap in ("SGD + BPR − SGD", "SGD + BPR − SGD + WD", "G-SGD + BPR − SGD + BPR"):
        found = one.comparison.difference(*GAPS[gap], "test_error", "common")
        yield directed_claim(f"{gap}, test error (% points)", "below 0", found, group)


def _effects(case: Case, one: Regularization) -> str:
    """What both regularizers do to SGD, and which does more."""
    wd, bpr, between = (
        one.comparison.difference(*GAPS[gap], "test_error", "common")
        for gap in ("SGD + WD − SGD", "SGD + BPR − SGD", "SGD + BPR − SGD + WD")
    )
    verdict = {
        "seen": "BPR is the better of the two, as the paper says",
        "contrary": "weight decay is the better of the two, contrary to the paper",
        "undecided": "which is the better of the two cannot be told",
    }[between.verdict("below 0")]
    return (
        f"{case.title}: weight decay (λ = {one.lambdas[SGD_WD, 'common']:g}) changes SGD's test "
        f"error by {wd} points, BPR (λ = {one.lambdas[SGD_BPR, 'common']:g}) by {bpr}. BPR − WD is "
        f"{between}: {verdict}."
    )


def _ranking(case: Case, one: Regularization) -> str:
    """The arms in the order of their test errors, and what the paper has first."""
    errors = {arm: one.comparison.sample(arm, "test_error", "common").mean for arm in LINES}
    ranked = sorted((arm for arm in LINES if errors[arm] == errors[arm]), key=errors.__getitem__)
    if not ranked:
        return f"{case.title}: all arms diverged at the common rate."
    first = "as in the paper" if ranked[0] == GSGD_BPR else f"in the paper it is {GSGD_BPR}"
    listed = ", ".join(f"{arm} {errors[arm]:.3g} %" for arm in ranked)
    return f"{case.title}: the least mean test error has {ranked[0]} ({first}). In order: {listed}."


EXPERIMENT = Experiment(
    name="zheng2019 table2",
    also=("zheng2019 fig4",),
    title="Weight decay and the basis-path penalty on CIFAR-10",
    where="Table 2 and Figure 4; section “Image Classification”",
    shows=(
        "PlainNet-34 and ResNet-34 learn CIFAR-10 by SGD, with weight decay (WD) or the basis-path "
        "penalty (BPR), and by G-SGD (there called Q-SGD) with and without BPR. All come to "
        "training errors near 0; BPR lowers SGD's test error by nearly 1.8 and 1.5 points, more "
        "than weight decay does, and G-SGD + BPR has the lowest test errors, 5.73 % and 5.36 %."
    ),
    plan=plan,
    quick=Preset(
        QUICK_REGULARIZED,
        jobs=136,
        time="4 minutes on 2 cores; all trainings are shared with meng2019 fig7",
    ),
    paper=Preset(
        replace(PAPER_REGULARIZED, data=("cifar10",)),
        jobs=452,
        time="about three weeks on one GPU, at an hour per training (estimated); all "
        "are shared with meng2019 fig7",
    ),
)
