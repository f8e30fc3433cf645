"""Tables and figures of recommendations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pathspace.experiments.reproduce.figures import (
    Figure,
    Lines,
    finish_axes,
    learning_block,
    learning_curves,
    sample_curve,
)
from pathspace.experiments.reproduce.panels import (
    Panel,
    draw_panels,
    draw_points,
    legend_below,
    name_ticks,
)
from pathspace.experiments.reproduce.statistics import Difference, Sample
from pathspace.experiments.reproduce.tables import Line, table_of
from pathspace.experiments.reproduce.words import BANDS, IN_TABLES
from pathspace.experiments.reproduce.zheng2019.recommending import (
    ARMS,
    BP,
    METRICS,
    Recommendations,
)
from pathspace.experiments.training.ranking import TOP
from pathspace.page import Curve, Curves, DataTable
from pathspace.plot.backend import pyplot
from pathspace.tables import Column

HR = "test_hr@10"

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
    cases = [(name, arm) for name in METRICS for arm in arms]
    return table_of(
        title,
        [Column("K", number=True)],
        {(METRICS[name], arms[arm]): f"{METRICS[name]}@K, {arms[arm]}" for name, arm in cases},
        [
            Line(
                (str(k),),
                {(METRICS[name], arms[arm]): number(factors, arm, name, k) for name, arm in cases},
                {"factors": factors, "K": k},
                f"{factors} factors",
            )
            for factors in found.factors
            for k in TOP
        ],
        caption,
        across=("metric", "arm"),
        file=file,
    )


def lambdas_table(found: Recommendations) -> DataTable:
    """HR@10 at every λ, while it was chosen."""
    lines = []
    for (factors, arm, lam), sample in found.tried.items():
        halves = found.chosen[factors, arm].count(lam)
        words = {0: "", 1: "one half of the users", 2: "both halves"}[halves]
        about = {"factors": factors, "arm": arm, "λ": lam, "taken by": words}
        lines.append(Line((arm, f"{lam:g}", words), {"HR@10": sample}, about, f"{factors} factors"))
    return table_of(
        "The choice of λ",
        [Column("arm"), Column("λ", number=True), Column("taken by")],
        {"HR@10": "HR@10"},
        lines,
        "HR@10 over all users at the end of the trainings by which λ was chosen.",
        across="metric",
        file="lambdas",
    )


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
            title = f"({letter}) {largest} factors"
            Panel(
                _lengths(found, largest, name),
                "K",
                f"{label}@K",
                title,
                markers=True,
                ticks=TOP,
                title_at="left",
            ).draw(ax)
        legend_below(figure, axes[2], len(ARMS))
        return figure

    return Figure(
        "figure-3",
        draw,
        "HR@10 (a) and NDCG@10 (b) for each number of factors, with the standard deviation over "
        f"seeds; HR@K (c) and NDCG@K (d) over the length K of the list with {largest} factors, in "
        "bands of one standard deviation.",
        f"Four panels with one series per regularizer; {IN_TABLES}",
    )


def training_figure(found: Recommendations) -> Figure:
    """HR@10 over epochs, a panel per number of factors."""
    panels = [
        Panel(learning_curves(_lines(found, factors), HR), "epoch", "HR@10", f"{factors} factors")
        for factors in found.factors
    ]
    return Figure(
        "training",
        lambda: draw_panels([panels], (1.5 + 3.6 * len(panels), 3.8), legend=2, share_y=True),
        "HR@10 over all users during training, at the λ that the first half of the users chose: "
        f"whether it is stable at the end. {BANDS}.",
        "A panel per number of factors with one curve per regularizer.",
    )


def curves_block(found: Recommendations) -> Curves:
    """HR@10 over epochs with the largest number of factors, to zoom into."""
    factors = max(found.factors)
    said = f"HR@10 over all users during training with {factors} factors"
    return learning_block(_lines(found, factors), HR, "HR@10", said, file="hit ratio")


def _lines(found: Recommendations, factors: int) -> Lines:
    return {arm: found.outcomes[factors, arm] for arm in ARMS}


def _lengths(found: Recommendations, factors: int, name: str) -> list[Curve]:
    """A score over the length of the list, by arm."""
    return [
        sample_curve(arm, list(TOP), [found.score(factors, arm, name, k) for k in TOP])
        for arm in ARMS
    ]


def _factors_panel(ax: Any, found: Recommendations, name: str, label: str) -> None:
    """A point per arm and number of factors, side by side, with its standard deviation."""
    count = len(found.factors)
    for number, arm in enumerate(ARMS):
        samples = [found.score(factors, arm, name, TOP[-1]) for factors in found.factors]
        places = [x + 0.12 * (number - (len(ARMS) - 1) / 2) for x in range(count)]
        means, halves = [one.mean for one in samples], [one.deviation for one in samples]
        draw_points(ax, number, places, means, halves, arm)
    name_ticks(ax, range(count), [str(factors) for factors in found.factors])
    ax.set_xlim(-0.5, count - 0.5)
    finish_axes(ax, "factors", label)
