"""What comparisons over widths say about the influence of the invariance, in claims and words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean

from pathspace.experiments.data.errors import require
from pathspace.experiments.reproduce.controls import (
    GSGD,
    METRICS,
    SGD,
    Comparison,
    Rate,
    rate_words,
)
from pathspace.experiments.reproduce.findings import Claim, Findings, directed_claim
from pathspace.experiments.reproduce.meng2019.gaps import (
    DELTA,
    GAPS,
    OWN_START,
    SPACE,
    START,
    TABLE5,
    Size,
    size_of,
)
from pathspace.experiments.reproduce.meng2019.views import (
    gaps_figure,
    gaps_table,
    levels_curves,
    levels_figure,
    levels_table,
)
from pathspace.experiments.reproduce.shares import FIELLER, share_of, share_words
from pathspace.experiments.reproduce.statistics import Difference, Sample, paired_difference
from pathspace.experiments.reproduce.words import grid_ends


def influence(
    comparisons: Mapping[int, Comparison], epochs: int, tuning_epochs: int | None = None
) -> Findings:
    """Findings from one comparison per width."""
    sizes = {width: size_of(width) for width in comparisons}
    first = next(iter(comparisons.values()))
    rate = first.common_rate
    said = rate_words(rate)
    if not first.is_tuned:
        del said["best"]
    return Findings(
        claims=(*_gap_claims(comparisons, rate), *_size_claims(sizes)),
        statements=tuple(_statements(comparisons, sizes, rate, epochs)),
        figures=(levels_figure(comparisons, said), gaps_figure(comparisons, sizes, said)),
        tables=(levels_table(comparisons, said), gaps_table(comparisons, said)),
        blocks=tuple(levels_curves(comparisons, name, said["common"]) for name in METRICS),
        deviations=(
            "“Normalized” inputs are taken as pixels scaled to [0, 1].",
            "The paper does not say how many seeds its curves are of, and prints no numbers: only "
            "directions can be compared.",
            "The paper has neither control: SGD from G-SGD's initial weights, and G-SGD from "
            "SGD's.",
            FIELLER,
            _tuning(first, epochs if tuning_epochs is None else tuning_epochs),
        ),
    )


# Claims and words --------------------------------------------------------------------------------


def _gap_claims(comparisons: Mapping[int, Comparison], rate: float) -> list[Claim]:
    claims = []
    for name, said in METRICS.items():
        for width, comparison in comparisons.items():
            gap = comparison.difference(GSGD, SGD, name, "common")
            what = f"Δ {said}, h = {width}"
            group = f"Figure 4: G-SGD − SGD, both at rate {rate:g}"
            claims.append(directed_claim(what, "below 0", gap, group))
    return claims


def _size_claims(sizes: Mapping[int, Size]) -> list[Claim]:
    claims = []
    for width, size in sizes.items():
        weights, ratio = TABLE5[width]
        group = "Table 5: the networks"
        claims.append(Claim(f"weights m, h = {width}", weights, size.weights, group=group))
        claims.append(Claim(f"H/m, h = {width}", ratio, size.ratio, group=group, digits=3))
    return claims


def _statements(
    comparisons: Mapping[int, Comparison], sizes: Mapping[int, Size], rate: float, epochs: int
) -> list[str]:
    seeds = len(next(iter(comparisons.values())).seeds)
    said = [
        f"After {epochs} epochs at rate {rate:g}, test errors of G-SGD minus those of SGD are "
        f"{_by_width(comparisons, DELTA, 'common')}: percentage points, means of {seeds} seeds; "
        "a sign is said where the 95 % confidence interval of the paired differences is on one "
        "side of 0.",
        "SGD that starts from G-SGD's initial weights already differs from SGD by "
        f"{_by_width(comparisons, START, 'common')}: {_share(comparisons)}",
        "From the same skeleton weights, G-SGD minus SGD is "
        f"{_by_width(comparisons, SPACE, 'common')}; from SGD's own start, with the normalised "
        f"metric, {_by_width(comparisons, OWN_START, 'common')}.",
    ]
    if all(comparison.is_tuned for comparison in comparisons.values()):
        said.append(
            "With the best rate of the grid for each, G-SGD minus SGD is "
            f"{_by_width(comparisons, DELTA, 'best')}: {_of_the_rate(comparisons)}"
        )
    return [*said, *_edges(comparisons), _trend(comparisons, sizes), *_ratios(sizes)]


def _tuning(comparison: Comparison, epochs: int) -> str:
    """How best rates were found."""
    if not comparison.is_tuned:
        return "No arm has been tuned: all are at the paper's rate only."
    seeds = max(len(found) for rates in comparison.tuning.values() for found in rates.values())
    return (
        "Best rates are chosen by the error on 10,000 of the training images after "
        f"{epochs} epochs on the others, {'one seed' if seeds == 1 else f'mean of {seeds} seeds'}; "
        "final trainings use all of them."
    )


def _by_width(comparisons: Mapping[int, Comparison], gap: str, rate: Rate) -> str:
    """The range of a gap over widths, and where its sign is sure; the table has all of them."""
    found = {width: _gap(one, gap, rate) for width, one in comparisons.items()}
    means = sorted(one.mean for one in found.values() if len(one))
    if not means:
        return "unknown, as all diverged"
    told = f"{means[0]:+.3g}" if len(means) == 1 else f"{means[0]:+.3g} to {means[-1]:+.3g}"
    signs = {"seen": "below", "contrary": "above"}
    sides: dict[str, list[str]] = {}
    for width, one in found.items():
        if side := signs.get(one.verdict("below 0")):
            sides.setdefault(side, []).append(str(width))
    sure = [f"{side} 0 at h = {', '.join(widths)}" for side, widths in sorted(sides.items())[::-1]]
    lost = sum(one.dropped for one in found.values())
    diverged = f"; {lost} of {sum(len(one) for one in found.values()) + lost} diverged" * bool(lost)
    return f"{told} ({'; '.join(sure) or 'undecided at every h'}{diverged})"


def _share(comparisons: Mapping[int, Comparison]) -> str:
    """How much of the paper's gap the start alone explains, over all widths."""
    start, delta = (_over_widths(comparisons, gap, "common") for gap in (START, DELTA))
    if not all(map(math.isfinite, (*start.values, *delta.values))):
        return "some trainings diverged."
    if delta.mean >= 0:
        return "as G-SGD gains nothing on average, there is no gain to be explained."
    return share_words(share_of(start, delta), "G-SGD's mean gain over all widths") + "."


def _over_widths(comparisons: Mapping[int, Comparison], gap: str, rate: Rate) -> Sample:
    """The mean of a gap over widths, by seed; not finite where a training diverged."""
    found = [one.gaps(*GAPS[gap], "test_error", rate).values for one in comparisons.values()]
    return Sample(tuple(map(fmean, zip(*found, strict=True))))


def _of_the_rate(comparisons: Mapping[int, Comparison]) -> str:
    """Whether the gap is still there when every arm has its best rate."""
    common, best = (_over_widths(comparisons, DELTA, rate) for rate in ("common", "best"))
    if not all(map(math.isfinite, (*common.values, *best.values))):
        return "some trainings diverged."
    rates = {arm: {one.best_rates[arm] for one in comparisons.values()} for arm in (SGD, GSGD)}
    told = "; ".join(
        f"{arm} takes {' or '.join(f'{rate:g}' for rate in sorted(found))}"
        for arm, found in rates.items()
    )
    none, half = (Sample(tuple(k * value for value in common.values)) for k in (0, 0.5))
    means = [paired_difference(sample, none) for sample in (best, common)]
    size = f"on average {means[0]} instead of {means[1]} ({told})"
    if means[1].mean >= 0 or means[0].mean < half.mean:
        return f"{size}."
    is_most = paired_difference(best, half).low > 0
    unsure = "" if is_most else "; whether that is most of it, these seeds do not tell"
    much = "most" if is_most else "some"
    return f"{size}, so {much} of the gap at the common rate is a matter of the rate{unsure}."


def _trend(comparisons: Mapping[int, Comparison], sizes: Mapping[int, Size]) -> str:
    """Whether the gap grows with the invariant ratio."""
    ratios = [sizes[width].ratio for width in comparisons]
    gaps = [-_gap(one, DELTA, "common").mean for one in comparisons.values()]
    if len(gaps) < 3 or not all(map(math.isfinite, gaps)):
        return "There are too few widths, or trainings diverged, to speak of a trend with H/m."
    tau = float(require("scipy.stats").kendalltau(ratios, gaps).statistic)
    if math.isnan(tau):
        return "The gap is the same at every width, so there is no trend with H/m."
    paper = "as the paper says" if tau > 0 else "other than the paper says"
    return (
        f"Kendall's τ between H/m and G-SGD's mean gain in test error over {len(gaps)} widths is "
        f"{tau:+.2f} ({paper}, the gain should grow with H/m)."
    )


def _edges(comparisons: Mapping[int, Comparison]) -> list[str]:
    """Where the grid of rates may have been too small."""
    return grid_ends(
        [f"{arm} at h = {h}" for h, one in comparisons.items() for arm in one.at_the_edge]
    )


def _ratios(sizes: Mapping[int, Size]) -> list[str]:
    """What Table 5 prints as the invariant ratio."""
    printed = {width: TABLE5[width][1] / size.ratio for width, size in sizes.items()}
    if not printed or any(f"{ratio:.2f}" != "0.50" for ratio in printed.values()):
        return []
    return [
        "Table 5 counts the weights as we do, but the invariant ratio that it prints is half of "
        "H/m for the H and m of its own rows, at every width: it is h/m. Figures here use H/m."
    ]


def _gap(comparison: Comparison, gap: str, rate: Rate) -> Difference:
    return comparison.difference(*GAPS[gap], "test_error", rate)
