"""Tables and figures of recommendations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pathspace.experiments.reproduce.figures import (
    Figure,
    draw_curves,
    learning_curve,
    sample_curve,
)
from pathspace.experiments.reproduce.statistics import Difference, Sample
from pathspace.experiments.reproduce.zheng2019.recommending import (
    ARMS,
    BP,
    METRICS,
    Recommendations,
)
from pathspace.experiments.training.ranking import TOP
from pathspace.page import Curve, Curves, DataTable
from pathspace.plot.backend import pyplot
from pathspace.plot.measures import MARKERS, SERIES
from pathspace.tables import Column, Row, Table

# Tables ------------------------------------------------------------------------------------------


def scores_table(found: Recommendations) -> DataTable:
    """HR@K and NDCG@K of every arm."""
    return _by_length(
        found,
        found.score,
        {arm: arm for arm in ARMS},
        "Hit ratio and discounted gain",
        "Mean over users, then mean ± standard deviation over seeds, at the end of training; "
        "each half of the users is counted by the λ that the other half chose.",
        "scores",
    )


def gains_table(found: Recommendations) -> DataTable:
    """What the basis-path penalty gains on every other arm, for every length of the list."""
    return _by_length(
        found,
        found.gain,
        {arm: f"on {arm}" for arm in ARMS if arm != BP},
        "What the basis-path penalty gains",
        "The basis-path penalty minus each other arm, paired over seeds, with 95 % confidence "
        "intervals.",
        "gains",
    )


def _by_length(
    found: Recommendations,
    number: Callable[[int, str, str, int], Sample | Difference],
    arms: Mapping[str, str],
    title: str,
    caption: str,
    file: str,
) -> DataTable:
    """A number of arms (by how they are called) for every length of the list."""
    heads = [f"{label}@K, {said}" for label in METRICS.values() for said in arms.values()]
    rows, records = [], []
    for factors in found.factors:
        for k in TOP:
            numbers = {
                (name, arm): number(factors, arm, name, k) for name in METRICS for arm in arms
            }
            rows.append(Row((str(k), *map(str, numbers.values())), f"{factors} factors"))
            records += [
                {"factors": factors, "K": k, "metric": METRICS[name], "arm": arms[arm]} | one.record
                for (name, arm), one in numbers.items()
            ]
    columns = (Column("K", number=True), *(Column(head, number=True) for head in heads))
    return DataTable(Table(title, columns, tuple(rows)), caption, tuple(records), file)


def lambdas_table(found: Recommendations) -> DataTable:
    """HR@10 at every λ, while it was chosen."""
    columns = (Column("arm"), Column("λ", number=True), Column("HR@10", number=True),
               Column("taken by"))  # fmt: skip
    rows, records = [], []
    for (factors, arm, lam), sample in found.tried.items():
        halves = [k + 1 for k, taken in enumerate(found.chosen[factors, arm]) if taken == lam]
        words = {0: "", 1: "one half of the users", 2: "both halves"}[len(halves)]
        rows.append(Row((arm, f"{lam:g}", str(sample), words), f"{factors} factors"))
        records.append({"factors": factors, "arm": arm, "λ": lam, "HR@10": sample.mean,
                        "taken by": words})  # fmt: skip
    caption = "HR@10 over all users at the end of the trainings by which λ was chosen."
    table = Table("The choice of λ", columns, tuple(rows))
    return DataTable(table, caption, tuple(records), "lambdas")


# Figures -----------------------------------------------------------------------------------------


def figure_3(found: Recommendations) -> Figure:
    """Factors on the left, lengths of the list on the right: the paper's arrangement."""
    largest = max(found.factors)

    def draw() -> Any:
        figure, axes = pyplot().subplots(1, 4, figsize=(13, 3.6), layout="constrained")
        for ax, letter, (name, label) in zip(axes[:2], "ab", METRICS.items(), strict=True):
            _factors_panel(ax, found, name, f"{label}@10")
            ax.set_title(f"({letter})", fontsize=10, loc="left")
        for ax, letter, (name, label) in zip(axes[2:], "cd", METRICS.items(), strict=True):
            curves = [_top_curve(found, largest, arm, name) for arm in ARMS]
            draw_curves(ax, curves, "K", f"{label}@K", markers=True)
            ax.set_xticks(list(TOP))
            ax.set_title(f"({letter}) {largest} factors", fontsize=10, loc="left")
        figure.legend(
            *axes[2].get_legend_handles_labels(),
            loc="outside lower center", ncols=len(ARMS), frameon=False, fontsize=9,
        )  # fmt: skip
        return figure

    return Figure(
        "figure-3",
        draw,
        "HR@10 (a) and NDCG@10 (b) for each number of factors, with the standard deviation over "
        f"seeds; HR@K (c) and NDCG@K (d) over the length K of the list with {largest} factors, in "
        "bands of one standard deviation.",
        "Four panels with one series per regularizer; the numbers are in the tables.",
    )


def training_figure(found: Recommendations) -> Figure:
    """HR@10 over epochs, a panel per number of factors."""

    def draw() -> Any:
        count = len(found.factors)
        figure, axes = pyplot().subplots(
            1, count, figsize=(1.5 + 3.6 * count, 3.4), layout="constrained", squeeze=False,
            sharey=True,
        )  # fmt: skip
        for ax, factors in zip(axes[0], found.factors, strict=True):
            draw_curves(ax, _training_curves(found, factors), "epoch", "HR@10")
            ax.set_title(f"{factors} factors", fontsize=10)
        axes[0][0].legend(frameon=False, fontsize=8)
        return figure

    return Figure(
        "training",
        draw,
        "HR@10 over all users during training, at the λ that the first half of the users chose: "
        "whether it is stable at the end. Means over seeds, in bands of one standard deviation.",
        "A panel per number of factors with one curve per regularizer.",
    )


def curves_block(found: Recommendations) -> Curves:
    """HR@10 over epochs with the largest number of factors, to zoom into."""
    factors = max(found.factors)
    curves = _training_curves(found, factors)
    return Curves(
        curves,
        "epoch",
        "HR@10",
        f"HR@10 over all users during training with {factors} factors: mean over seeds, in a band "
        "of one standard deviation.",
        "; ".join(f"{curve.name} ends at {curve.y[-1]:.3f}" for curve in curves if curve.y),
        file="hit ratio",
    )


def _training_curves(found: Recommendations, factors: int) -> tuple[Curve, ...]:
    return tuple(learning_curve(arm, found.outcomes[factors, arm], "test_hr@10") for arm in ARMS)


def _top_curve(found: Recommendations, factors: int, arm: str, name: str) -> Curve:
    return sample_curve(arm, list(TOP), [found.score(factors, arm, name, k) for k in TOP])


def _factors_panel(ax: Any, found: Recommendations, name: str, label: str) -> None:
    """A point per arm and number of factors, side by side, with its standard deviation."""
    for number, arm in enumerate(ARMS):
        samples = [found.score(factors, arm, name, TOP[-1]) for factors in found.factors]
        curve = sample_curve(arm, range(len(found.factors)), samples)
        ax.errorbar(
            [x + 0.12 * (number - (len(ARMS) - 1) / 2) for x in curve.x],
            curve.y,
            yerr=[high - y for high, y in zip(curve.high, curve.y, strict=True)],
            color=SERIES[number],
            marker=MARKERS[number],
            markersize=4.5,
            capsize=2,
            linewidth=1.2,
        )
    ax.set_xticks(range(len(found.factors)), [str(factors) for factors in found.factors])
    ax.set_xlim(-0.5, len(found.factors) - 0.5)
    ax.set_xlabel("factors")
    ax.set_ylabel(label)
    ax.grid(alpha=0.3)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
