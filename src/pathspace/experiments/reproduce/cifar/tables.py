"""Tables of comparisons on images: every arm, and the differences between arms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from pathspace.experiments.reproduce.cifar.images import Case
from pathspace.experiments.reproduce.cifar.regularizing import Lambdas
from pathspace.experiments.reproduce.controls import Comparison, Rate
from pathspace.page import DataTable
from pathspace.tables import Column, Row, Table

# What is taken from what.
Gaps: TypeAlias = Mapping[str, tuple[str, str]]

METRICS = {"train_loss": "training loss", "test_error": "test error (%)"}


def words_of(common: float) -> dict[Rate, str]:
    """Both kinds of rates in words."""
    return {"common": f"all at rate {common:g}", "best": "each at its best rate"}


def levels_table(
    comparisons: Mapping[Case, Comparison],
    arms: Sequence[str],
    lambdas: Mapping[Case, Lambdas] | None = None,
) -> DataTable:
    """Every arm of every case, at the common and at its best rate."""
    columns = [Column("arm"), Column("rate", number=True)]
    columns += [Column("λ", number=True)] if lambdas else []
    columns += [Column(label, number=True) for label in METRICS.values()]
    rows: list[Row] = []
    records: list[dict[str, Any]] = []
    for case, comparison in comparisons.items():
        for rate, words in words_of(comparison.common_rate).items():
            for arm in arms:
                used = comparison.best_rates[arm] if rate == "best" else comparison.common_rate
                lam = None if lambdas is None else lambdas[case].get((arm, rate))
                samples = {name: comparison.sample(arm, name, rate) for name in METRICS}
                cells = [arm, f"{used:g}"]
                cells += ["–" if lam is None else f"{lam:g}"] if lambdas else []
                rows.append(Row((*cells, *map(str, samples.values())), f"{case.title}, {words}"))
                records += [
                    {"data": case.data, "network": case.network, "arm": arm, "chosen": rate,
                     "rate": used, "λ": lam, "metric": name, **sample.record}
                    for name, sample in samples.items()
                ]  # fmt: skip
    caption = "Mean ± standard deviation over seeds at the end of training."
    return DataTable(
        Table("All arms", tuple(columns), tuple(rows)), caption, tuple(records), "arms"
    )


def gaps_table(comparisons: Mapping[Case, Comparison], gaps: Gaps) -> DataTable:
    """Paired differences of test errors."""
    common = next(iter(comparisons.values())).common_rate
    said = words_of(common)
    columns = (Column("difference"), *(Column(words, number=True) for words in said.values()))
    rows: list[Row] = []
    records: list[dict[str, Any]] = []
    for case, comparison in comparisons.items():
        for gap, pair in gaps.items():
            found = {rate: comparison.difference(*pair, "test_error", rate) for rate in said}
            rows.append(Row((gap, *map(str, found.values())), case.title))
            records += [
                {"data": case.data, "network": case.network, "difference": gap, "chosen": rate,
                 **one.record}
                for rate, one in found.items()
            ]  # fmt: skip
    caption = (
        "Paired differences of test errors in percentage points over seeds, with 95 % confidence "
        "intervals; below 0 the first is better."
    )
    table = Table("Where differences come from", columns, tuple(rows))
    return DataTable(table, caption, tuple(records), "differences")
