"""Table 1 and Figure 3: SGD against G-SGD in PlainNets and ResNets on CIFAR."""

from __future__ import annotations

from collections.abc import Mapping

from pathspace.experiments.reproduce.cifar.figures import curves_figure
from pathspace.experiments.reproduce.cifar.images import DATA, Case, Images, network_title
from pathspace.experiments.reproduce.cifar.pages import POINTS, Layout, images_page
from pathspace.experiments.reproduce.cifar.presets import PAPER, QUICK
from pathspace.experiments.reproduce.cifar.words import Question, attribution, overview
from pathspace.experiments.reproduce.controls import (
    ARMS,
    GSGD,
    GSGD_NORMALIZED,
    SGD,
    SGD_SKELETON,
    Comparison,
    Rate,
    rate_words,
)
from pathspace.experiments.reproduce.experiment import Experiment, Plan, Preset
from pathspace.experiments.reproduce.figures import Figure
from pathspace.experiments.reproduce.findings import Claim, Findings, directed_claim
from pathspace.experiments.reproduce.meng2019.gaps import GAPS
from pathspace.experiments.reproduce.shares import FIELLER
from pathspace.experiments.reproduce.statistics import Difference, paired_difference

CURVES: dict[str, Rate] = {"controls": "common", "best-rates": "best"}
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
    caption = (
        "Training loss and test accuracy over epochs of {}; means over seeds, in bands of one "
        "standard deviation."
    )
    figures = [
        curves_figure(
            name,
            {case.title: one.lines(ARMS, rate) for case, one in comparisons.items()},
            caption.format(f"all arms, {rate_words(settings.common)[rate]}"),
        )
        for name, rate in CURVES.items()
    ]
    own = Findings(
        claims=tuple(_claims(comparisons)),
        statements=(
            overview(comparisons, QUESTION),
            *(attribution(case, one, QUESTION) for case, one in comparisons.items()),
            *_plain_and_residual(comparisons),
        ),
        figures=(_figure3(comparisons, caption), *figures),
        deviations=(*settings.deviations(PAPER.data, len(PAPER.seeds)), FIELLER),
    )
    return images_page(own, comparisons, Layout(ARMS, GAPS, "the paper's, and what it is made of"))


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
        for name, label in POINTS.items():
            gap = comparison.difference(GSGD, SGD, name, "common")
            claims.append(directed_claim(f"G-SGD − SGD, {label}", "below 0", gap, group))
    for plain, residual in _pairs(comparisons):
        group = f"Section 5.1: {DATA[plain.data]}, both kinds of networks"
        names = network_title(plain.network), network_title(residual.network)
        what = f"G-SGD − SGD, {names[0]} less {names[1]}, test error (% points)"
        more = _gain_difference(comparisons[plain], comparisons[residual])
        claims.append(directed_claim(what, "below 0", more, group))
        if plain.data == "cifar10":
            what = f"{names[0]} by G-SGD − {names[1]} by SGD, test error (% points)"
            across = _across(comparisons[plain], comparisons[residual])
            claims.append(directed_claim(what, "below 0", across, group))
    return claims


def _gain_difference(plain: Comparison, residual: Comparison) -> Difference:
    """The gap in the PlainNet minus that in the ResNet, paired by seed."""
    more, less = (one.gaps(GSGD, SGD, "test_error", "common") for one in (plain, residual))
    return paired_difference(more, less)


def _across(plain: Comparison, residual: Comparison) -> Difference:
    """The PlainNet by G-SGD minus the ResNet by SGD."""
    return paired_difference(
        plain.sample(GSGD, "test_error", "common"), residual.sample(SGD, "test_error", "common")
    )


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
    quick=Preset(QUICK, jobs=112, time="4 minutes on 2 cores"),
    paper=Preset(
        PAPER, jobs=224, time="about ten days on one GPU, at an hour per training (estimated)"
    ),
)
