"""Figures of trainings on images: curves in the papers' arrangement, and differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pathspace.experiments.reproduce.cifar.images import Case
from pathspace.experiments.reproduce.controls import Comparison, Gaps, rate_words
from pathspace.experiments.reproduce.figures import (
    Figure,
    Lines,
    learning_block,
    learning_curve,
    learning_curves,
)
from pathspace.experiments.reproduce.panels import (
    Panel,
    draw_differences,
    draw_panels,
    legend_below,
)
from pathspace.experiments.reproduce.statistics import accuracy
from pathspace.experiments.reproduce.words import IN_TABLES
from pathspace.experiments.training import Outcome
from pathspace.page import Curve, Curves
from pathspace.plot.backend import pyplot


def accuracy_curve(name: str, outcomes: Sequence[Outcome]) -> Curve:
    """Test accuracy in percent over epochs."""
    error = learning_curve(name, outcomes, "test_error")
    y, low, high = (tuple(100 - v for v in values) for values in (error.y, error.high, error.low))
    return replace(error, y=y, low=low, high=high)


def curves_figure(name: str, panels: Mapping[str, Lines], caption: str) -> Figure:
    """Training loss and test accuracy over epochs, a row of two panels for each title."""

    def row(title: str, lines: Lines) -> list[Panel]:
        losses = learning_curves(lines, "train_loss")
        accuracies = [accuracy_curve(arm, found) for arm, found in lines.items()]
        return [
            Panel(losses, "epoch", "training loss", title, log_y=True, finish=_plain_ticks),
            Panel(accuracies, "epoch", "test accuracy (%)", title),
        ]

    count = len(next(iter(panels.values())))
    ends = "; ".join(f"{title}: {_ends(lines)}" for title, lines in panels.items())
    return Figure(
        name,
        lambda: draw_panels(
            [row(title, lines) for title, lines in panels.items()],
            (9, 0.5 + 2.6 * len(panels)),
            legend=count if count < 5 else 3,
            share_x=True,
        ),
        caption,
        f"Curves over epochs. Test accuracy (%) at the end: {ends}.",
    )


def gaps_figure(comparisons: Mapping[Case, Comparison], gaps: Gaps, caption: str) -> Figure:
    """Paired differences of test errors, a row for each case, a panel for each kind of rate."""
    said = rate_words(next(iter(comparisons.values())).common_rate)
    size = (9, 1.6 + 0.22 * len(gaps) * len(comparisons) + 0.17 * len(gaps))

    def places(number: int) -> list[float]:
        return [k + 0.7 * ((number + 0.5) / len(gaps) - 0.5) for k in range(len(comparisons))]

    def draw() -> Any:
        figure, axes = pyplot().subplots(
            1, len(said), figsize=size, layout="constrained", sharex=True, sharey=True
        )
        for ax, (rate, words) in zip(axes, said.items(), strict=True):
            series = {
                gap: [one.difference(*pair, "test_error", rate) for one in comparisons.values()]
                for gap, pair in gaps.items()
            }
            draw_differences(ax, series, places, sideways=True)
            for k in range(1, len(comparisons)):
                ax.axhline(k - 0.5, color="#dddddd", linewidth=0.8)
            ax.set_yticks(range(len(comparisons)), [case.title for case in comparisons])
            ax.set_title(words, fontsize=10)
        axes[0].invert_yaxis()
        legend_below(figure, axes[0], 1 if len(gaps) > 4 else 2)
        return figure

    alt = f"Two panels with an interval per difference and network; {IN_TABLES}"
    return Figure("differences", draw, caption, alt)


def loss_curves(case: Case, lines: Lines, words: str) -> Curves:
    """Training losses of a case over epochs, for the web page."""
    return learning_block(
        lines,
        "train_loss",
        "training loss",
        f"Cross-entropy of {case.title}, {words}",
        log_y=True,
        file=f"loss {case.data} {case.network}",
    )


def _ends(lines: Lines) -> str:
    return ", ".join(f"{arm} {accuracy(found)}" for arm, found in lines.items())


def _plain_ticks(ax: Any) -> None:
    """Numbers instead of powers of ten where the axis spans less than one."""
    low, high = ax.get_ylim()
    if ax.get_yscale() == "log" and low > 0 and high / low < 30:
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())
