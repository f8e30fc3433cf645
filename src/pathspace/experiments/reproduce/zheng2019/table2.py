"""Table 2 and Figure 4: weight decay and the basis-path penalty on CIFAR-10."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pathspace.experiments.reproduce.cifar.figures import (
    curves_figure,
    gaps_figure,
    lines_of,
    loss_curves,
)
from pathspace.experiments.reproduce.cifar.images import Case, Images, network_title
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
from pathspace.experiments.reproduce.cifar.tables import gaps_table, levels_table, words_of
from pathspace.experiments.reproduce.cifar.words import (
    Question,
    attribution,
    edges,
    lambda_edges,
    regularizer_deviations,
    unlearned,
)
from pathspace.experiments.reproduce.controls import GSGD, SGD, SGD_SKELETON, Rate
from pathspace.experiments.reproduce.experiment import Experiment, Plan, Preset
from pathspace.experiments.reproduce.findings import Claim, Findings
from pathspace.experiments.reproduce.meng2019.gaps import ARMS
from pathspace.experiments.reproduce.statistics import Sample
from pathspace.page import DataTable
from pathspace.tables import Column, Row, Table

LINES = (SGD, SGD_WD, SGD_BPR, GSGD, GSGD_BPR)  # the paper's, which calls G-SGD Q-SGD
QUESTION = Question(GSGD_BPR, SGD_WD, SKELETON_WD, NORMALIZED_BPR)
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
    """The comparisons without regularizers, then λ, then the regularized arms."""
    comparisons = yield from settings.comparisons()
    found = yield from regularizations(settings, comparisons)
    return findings(settings, found)


def findings(settings: Images, found: Mapping[Case, Regularization]) -> Findings:
    """What the regularized trainings came to."""
    words = words_of(settings.common)
    comparisons = {case: one.comparison for case, one in found.items()}
    rows = {case.title: lines_of(one, LINES, "common") for case, one in comparisons.items()}
    shown = (*ARMS, *REGULARIZED)
    return Findings(
        claims=tuple(_claims(found)),
        statements=(
            *(_effects(case, one) for case, one in found.items()),
            *(_ranking(case, one) for case, one in found.items()),
            *(attribution(case, one, QUESTION) for case, one in comparisons.items()),
            *unlearned(comparisons, shown),
            *edges(comparisons, (SGD, SGD_SKELETON, GSGD)),
            *lambda_edges(found),
        ),
        figures=(
            curves_figure(
                "curves",
                rows,
                "Figure 4. Training loss and test accuracy over epochs, "
                f"{words['common']}; means over seeds, in bands of one standard deviation.",
            ),
            gaps_figure(
                comparisons,
                GAPS,
                "Differences of test errors: what regularizers and optimizers do. Paired over "
                "seeds, with 95 % confidence intervals; below 0 is better.",
            ),
        ),
        tables=(
            _errors_table(found, shown),
            levels_table(comparisons, shown, {case: one.lambdas for case, one in found.items()}),
            gaps_table(comparisons, GAPS),
        ),
        blocks=tuple(
            loss_curves(case, lines_of(one, LINES, "common"), words["common"])
            for case, one in comparisons.items()
        ),
        deviations=(
            "The paper calls G-SGD Q-SGD. Its text does not give the training (it is in a "
            "supplement); it is taken from Meng et al., sections 11.4 and 11.5, with which Table 2 "
            "shares its numbers for SGD and G-SGD.",
            *settings.deviations(("cifar10",), None),
            *regularizer_deviations(settings),
        ),
    )


def _samples(one: Regularization, arm: str, rate: Rate) -> tuple[Sample, Sample, Sample]:
    train, test = (one.comparison.sample(arm, n, rate) for n in ("train_error", "test_error"))
    return train, test, one.generalization_gap(arm, rate)


def _errors_table(found: Mapping[Case, Regularization], arms: tuple[str, ...]) -> DataTable:
    """Table 2 for all arms, at the common rate."""
    columns = (Column("algorithm"), *(Column(name, number=True) for name in COLUMNS))
    rows, records = [], []
    for case, one in found.items():
        for arm in arms:
            samples = _samples(one, arm, "common")
            rows.append(Row((arm, *map(str, samples)), case.title))
            records += [
                {"network": case.network, "algorithm": arm, "quantity": name, **sample.record}
                for name, sample in zip(COLUMNS, samples, strict=True)
            ]  # fmt: skip
    caption = (
        "Errors at the end of training at the common rate, mean ± standard deviation over seeds; "
        "Δ is the difference of test and training error."
    )
    table = Table("Table 2 for all arms", columns, tuple(rows))
    return DataTable(table, caption, tuple(records), "errors")


# Claims and words --------------------------------------------------------------------------------


def _claims(found: Mapping[Case, Regularization]) -> list[Claim]:
    claims = []
    for case, one in found.items():
        kind = "ResNet-34" if case.is_residual else "PlainNet-34"
        same = network_title(case.network) == kind
        group = f"Table 2: {case.title}, rate {one.comparison.common_rate:g}"
        for arm in LINES:
            printed = TABLE2[kind][arm]
            for name, said, ours in zip(
                COLUMNS, printed, _samples(one, arm, "common"), strict=True
            ):
                paper: float | str = float(said) if same else f"{said} ({kind})"
                claims.append(Claim(f"{arm}, {name}", paper, ours, group=group, digits=3))
        for gap in ("SGD + BPR − SGD", "SGD + BPR − SGD + WD", "G-SGD + BPR − SGD + BPR"):
            found_gap = one.comparison.difference(*GAPS[gap], "test_error", "common")
            what = f"{gap}, test error (% points)"
            claims.append(Claim(what, "below 0", found_gap, found_gap.verdict("below 0"), group))
    return claims


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
        time="10 minutes on 2 cores; all trainings are shared with meng2019 fig7",
    ),
    paper=Preset(
        replace(PAPER_REGULARIZED, data=("cifar10",)),
        jobs=452,
        time="about three weeks on one GPU, at an hour per training (estimated); all "
        "are shared with meng2019 fig7",
    ),
)
