"""Table 1 and Figure 3: SGD against G-SGD in PlainNets and ResNets on CIFAR."""

from __future__ import annotations

from collections.abc import Mapping

from pathspace.experiments.reproduce.cifar.figures import (
    curves_figure,
    gaps_figure,
    lines_of,
    loss_curves,
)
from pathspace.experiments.reproduce.cifar.images import DATA, Case, Images, network_title
from pathspace.experiments.reproduce.cifar.presets import PAPER, QUICK
from pathspace.experiments.reproduce.cifar.tables import gaps_table, levels_table, words_of
from pathspace.experiments.reproduce.cifar.words import (
    Question,
    attribution,
    edges,
    overview,
    unlearned,
)
from pathspace.experiments.reproduce.controls import (
    GSGD,
    GSGD_NORMALIZED,
    SGD,
    SGD_SKELETON,
    Comparison,
)
from pathspace.experiments.reproduce.experiment import Experiment, Plan, Preset
from pathspace.experiments.reproduce.figures import Figure
from pathspace.experiments.reproduce.findings import Claim, Findings
from pathspace.experiments.reproduce.meng2019.gaps import ARMS, GAPS
from pathspace.experiments.reproduce.statistics import Difference, Sample, paired_difference

QUESTION = Question(GSGD, SGD, SGD_SKELETON, GSGD_NORMALIZED)
# Table 1 as printed: error (%) and its spread, by data, kind of network and arm.
TABLE1 = {
    ("cifar10", "PlainNet-34"): {SGD: ("7.76", "±0.17"), GSGD: ("7.00", "±0.10")},
    ("cifar10", "ResNet-34"): {SGD: ("7.13", "±0.22"), GSGD: ("6.66", "±0.13")},
    ("cifar100", "PlainNet-34"): {SGD: ("36.41", "±0.54"), GSGD: ("30.74", "±0.29")},
    ("cifar100", "ResNet-34"): {SGD: ("28.60", "±0.26"), GSGD: ("27.74", "±0.06")},
}


def plan(settings: Images) -> Plan[Findings]:
    """One comparison with all controls per network and data set."""
    comparisons = yield from settings.comparisons()
    return findings(settings, comparisons)


def findings(settings: Images, comparisons: Mapping[Case, Comparison]) -> Findings:
    """What the comparisons came to."""
    words = words_of(settings.common)
    caption = (
        "Training loss and test accuracy over epochs of {}; means over seeds, in bands of one "
        "standard deviation."
    )
    rows = {case.title: lines_of(one, ARMS, "common") for case, one in comparisons.items()}
    tuned = {case.title: lines_of(one, ARMS, "best") for case, one in comparisons.items()}
    return Findings(
        claims=tuple(_claims(comparisons)),
        statements=(
            overview(comparisons, QUESTION),
            *(attribution(case, one, QUESTION) for case, one in comparisons.items()),
            *_plain_and_residual(comparisons),
            *unlearned(comparisons, ARMS),
            *edges(comparisons, ARMS),
        ),
        figures=(
            _figure3(comparisons, caption),
            curves_figure("controls", rows, caption.format(f"all arms, {words['common']}")),
            curves_figure("best-rates", tuned, caption.format(f"all arms, {words['best']}")),
            gaps_figure(
                comparisons,
                GAPS,
                "Differences of test errors: the paper's, and what it is made of. Paired over "
                "seeds, with 95 % confidence intervals; below 0 is better.",
            ),
        ),
        tables=(levels_table(comparisons, ARMS), gaps_table(comparisons, GAPS)),
        blocks=tuple(
            loss_curves(case, lines_of(one, ARMS, "common"), words["common"])
            for case, one in comparisons.items()
        ),
        deviations=settings.deviations(PAPER.data, len(PAPER.seeds)),
    )


def _figure3(comparisons: Mapping[Case, Comparison], caption: str) -> Figure:
    """The paper's arrangement: a row for each data set, two networks in it."""
    panels = {}
    for plain, residual in _pairs(comparisons):
        both = {network_title(case.network): comparisons[case] for case in (plain, residual)}
        panels[DATA[plain.data]] = {
            f"{network}, {arm}": one.common[arm]
            for network, one in both.items()
            for arm in (SGD, GSGD)
        }
    return curves_figure("curves", panels, "Figure 3. " + caption.format("SGD and G-SGD"))


def _pairs(comparisons: Mapping[Case, Comparison]) -> list[tuple[Case, Case]]:
    """PlainNets that have a ResNet of their depth beside them."""
    pairs = ((case, Case(case.data, case.network.replace("plain", "res"))) for case in comparisons)
    return [(one, other) for one, other in pairs if other in comparisons and one != other]


# Claims and words --------------------------------------------------------------------------------


def _claims(comparisons: Mapping[Case, Comparison]) -> list[Claim]:
    claims = []
    for case, comparison in comparisons.items():
        kind = "ResNet-34" if case.is_residual else "PlainNet-34"
        rate = f"rate {comparison.common_rate:g}"
        group = f"Table 1: {case.title}, {rate}"
        for arm in (SGD, GSGD):
            printed, spread = TABLE1[case.data, kind][arm]
            same = network_title(case.network) == kind
            claims.append(
                Claim(
                    f"{arm}, test error (%)",
                    float(printed) if same else f"{printed} ({kind})",
                    comparison.sample(arm, "test_error", "common"),
                    group=group,
                    note=f"Table 1 prints {printed} ({spread}) for {kind}." if same else "",
                    digits=4,
                )
            )
        for name, label in (
            ("test_error", "test error (% points)"),
            ("train_loss", "training loss"),
        ):
            gap = comparison.difference(GSGD, SGD, name, "common")
            claims.append(
                Claim(f"G-SGD − SGD, {label}", "below 0", gap, gap.verdict("below 0"), group)
            )
    for plain, residual in _pairs(comparisons):
        group = f"Section 5.1: {DATA[plain.data]}, both kinds of networks"
        more = _gain_difference(comparisons[plain], comparisons[residual])
        claims.append(
            Claim(
                f"G-SGD − SGD, {network_title(plain.network)} less "
                f"{network_title(residual.network)}, test error (% points)",
                "below 0",
                more,
                more.verdict("below 0"),
                group,
            )
        )
        if plain.data == "cifar10":
            across = _across(comparisons[plain], comparisons[residual])
            claims.append(
                Claim(
                    f"{network_title(plain.network)} by G-SGD − {network_title(residual.network)} "
                    "by SGD, test error (% points)",
                    "below 0",
                    across,
                    across.verdict("below 0"),
                    group,
                )
            )
    return claims


def _gain_difference(plain: Comparison, residual: Comparison) -> Difference:
    """The gap in the PlainNet minus that in the ResNet, paired by seed."""
    return paired_difference(_gaps(plain), _gaps(residual))


def _across(plain: Comparison, residual: Comparison) -> Difference:
    """The PlainNet by G-SGD minus the ResNet by SGD."""
    return paired_difference(
        plain.sample(GSGD, "test_error", "common"), residual.sample(SGD, "test_error", "common")
    )


def _gaps(comparison: Comparison) -> Sample:
    one, other = (comparison.sample(arm, "test_error", "common").values for arm in (GSGD, SGD))
    return Sample(tuple(a - b for a, b in zip(one, other, strict=True)))


def _plain_and_residual(comparisons: Mapping[Case, Comparison]) -> list[str]:
    said = []
    for plain, residual in _pairs(comparisons):
        more = _gain_difference(comparisons[plain], comparisons[residual])
        verdict = {
            "seen": "the gain is larger without shortcuts, as the paper says",
            "contrary": "the gain is smaller without shortcuts, contrary to the paper",
            "undecided": "whether shortcuts matter for the gain cannot be told",
        }[more.verdict("below 0")]
        said.append(
            f"On {DATA[plain.data]}, G-SGD − SGD in {network_title(plain.network)} less that in "
            f"{network_title(residual.network)} is {more} points: {verdict}."
        )
    return said


EXPERIMENT = Experiment(
    name="meng2019 table1",
    also=("meng2019 fig3",),
    title="SGD against G-SGD in PlainNets and ResNets on CIFAR",
    where="Table 1 and Figure 3; sections 5.1 and 11.4",
    shows=(
        "PlainNet-34 and ResNet-34 learn CIFAR-10 and CIFAR-100 by SGD and by G-SGD, both at rate "
        "1.0 for 64,000 iterations. G-SGD has the lower training loss and the lower test error in "
        "all four, by 0.8 and 5.7 points in the PlainNet and by less in the ResNet, whose "
        "shortcuts leave less invariance; and PlainNet-34 by G-SGD beats ResNet-34 by SGD on "
        "CIFAR-10."
    ),
    plan=plan,
    quick=Preset(QUICK, jobs=112, time="12 minutes on 2 cores"),
    paper=Preset(
        PAPER, jobs=224, time="about ten days on one GPU, at an hour per training (estimated)"
    ),
)
