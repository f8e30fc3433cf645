"""Tables of comparisons on images: every arm, and the differences between arms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pathspace.experiments.reproduce.cifar.images import Case
from pathspace.experiments.reproduce.cifar.regularizing import Lambdas
from pathspace.experiments.reproduce.comparisons import differences_table
from pathspace.experiments.reproduce.controls import METRICS, Comparison, Gaps, rate_words
from pathspace.experiments.reproduce.tables import Line, table_of
from pathspace.experiments.reproduce.words import SPREAD
from pathspace.page import DataTable
from pathspace.tables import NOTHING, Column


def levels_table(
    comparisons: Mapping[Case, Comparison],
    arms: Sequence[str],
    lambdas: Mapping[Case, Lambdas] | None = None,
) -> DataTable:
    """Every arm of every case, at the common and at its best rate."""
    lines = []
    for case, comparison in comparisons.items():
        for rate, words in rate_words(comparison.common_rate).items():
            for arm in arms:
                used = comparison.rate_of(arm, rate)
                lam = None if lambdas is None else lambdas[case].get((arm, rate))
                labels = [arm, f"{used:g}"]
                labels += [NOTHING if lam is None else f"{lam:g}"] if lambdas else []
                samples = {
                    label: comparison.sample(arm, name, rate) for name, label in METRICS.items()
                }
                about = {**_about(case), "arm": arm, "chosen": rate, "rate": used, "λ": lam}
                lines.append(Line(tuple(labels), samples, about, f"{case.title}, {words}"))
    heads = [Column("arm"), Column("rate", number=True)]
    heads += [Column("λ", number=True)] if lambdas else []
    columns = {label: label for label in METRICS.values()}
    return table_of("All arms", heads, columns, lines, f"{SPREAD}.", across="metric", file="arms")


def gaps_table(comparisons: Mapping[Case, Comparison], gaps: Gaps) -> DataTable:
    """Paired differences of test errors."""
    cases = [(one, _about(case), case.title) for case, one in comparisons.items()]
    return differences_table(cases, gaps, rate_words(cases[0][0].common_rate))


def _about(case: Case) -> dict[str, str]:
    return {"data": case.data, "network": case.network}
