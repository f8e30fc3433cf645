"""Figure and table of bounds along training."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from pathspace.experiments.reproduce.figures import Figure
from pathspace.experiments.reproduce.panels import Panel, draw_panels
from pathspace.experiments.reproduce.statistics import Sample
from pathspace.experiments.reproduce.yi2019.checkpoints import Checkpoint, Course
from pathspace.page import Curve, DataTable, mean_curve
from pathspace.tables import Column, Row, Table

EQUATION8: dict[str, Callable[[Checkpoint], float]] = {
    "training error + Eq. (8), prior around 0": lambda one: one.promised("zero"),
    "training error + Eq. (8), prior around the start": lambda one: one.promised("start"),
    "expected flatness in the latter": lambda one: (
        100 * float(one.result["pac-bayes"]["start"]["flatness"])
    ),
    "test error": lambda one: one.test_error,
}
THEOREM51: dict[str, Callable[[Checkpoint], float]] = {
    "bound of Theorem 5.1": lambda one: float(one.ball["bound"]),
    "rise found in the ball": lambda one: float(one.ball["rise"]),
    "radius ε of the ball": lambda one: _log10(float(one.ball["epsilon"])),
    "largest over smallest |v|": lambda one: _log10(float(one.ball["balance"])),
}


def bounds_figure(courses: Sequence[Course]) -> Figure:
    """A row per start: Eq. (8) left, Theorem 5.1 right."""

    def row(course: Course) -> list[Panel]:
        def vacuous(ax: Any) -> None:
            ax.axhline(100, color="#333333", linewidth=0.8, linestyle=":")

        title = f"{{}}, from {course.start}"
        look: dict[str, Any] = {"log_x": True, "markers": True}
        return [
            Panel(
                _curves(course, EQUATION8),
                "steps",
                "error (%)",
                title.format("Eq. (8)"),
                finish=vacuous,
                **look,
            ),
            Panel(
                _curves(course, THEOREM51), "steps", "log₁₀", title.format("Theorem 5.1"), **look
            ),
        ]

    def draw() -> Any:
        count = len(courses)
        figure = draw_panels(
            [row(course) for course in courses], (10, 0.6 + 3.3 * count), share_x=True, legend=None
        )
        for ax in figure.axes[-2:]:  # both columns have other curves
            ax.legend(
                frameon=False, fontsize=8, ncols=2, columnspacing=1.0,
                loc="upper center", bbox_to_anchor=(0.5, -0.17),
            )  # fmt: skip
        return figure

    return Figure(
        "bounds",
        draw,
        "Left what Eq. (8) promises: the training error and the bound, with its part that is the "
        "expected flatness, and the test error; above the dotted line at 100 % a promise is "
        "vacuous. Right Theorem 5.1: the bound of "
        "the rise of the loss in a ball, the rise that is found there by search, the radius of the "
        "ball, and the ratio of basis-path values. Means over seeds, in bands of one standard "
        "deviation.",
        "; ".join(
            f"from {course.start}, {name} ends at "
            f"{Sample(tuple(value(one) for one in course.last()))}"
            for course in courses
            for name, value in (EQUATION8 | THEOREM51).items()
        ),
    )


def bounds_table(courses: Sequence[Course]) -> DataTable:
    """All numbers of the figure, and σ and KL of Eq. (8)."""
    columns = [Column("steps", number=True)]
    columns += [Column(f"{name} (%)", number=True) for name in EQUATION8]
    columns += [Column("σ", number=True), Column("log₁₀ KL", number=True)]
    columns += [Column(f"log₁₀ {name}", number=True) for name in THEOREM51]
    rows, records = [], []
    for course in courses:
        for count in course.iterations():
            here = course.at(count)
            cells = [f"{count:,}", *(_sample(here, value) for value in EQUATION8.values())]
            bayes = [one.result["pac-bayes"]["start"] for one in here]
            cells.append(" ".join(f"{s:.2g}" for s in sorted({float(b["sigma"]) for b in bayes})))
            cells.append(str(Sample(tuple(float(b["KL"]) for b in bayes))))
            cells += [_sample(here, value) for value in THEOREM51.values()]
            rows.append(Row(tuple(cells), f"from {course.start}"))
            records += [
                {
                    "start": course.start,
                    "steps": count,
                    "seed": one.seed,
                    **{name: value(one) for name, value in (EQUATION8 | THEOREM51).items()},
                }
                for one in here
            ]
    table = Table("Bounds along training", tuple(columns), tuple(rows))
    caption = (
        "Means ± standard deviations over seeds; σ and KL are those of Eq. (8) with its prior "
        "around the initial values. Checkpoints are trainings of growing length that share their "
        "beginning."
    )
    return DataTable(table, caption, tuple(records), "bounds")


def _curves(course: Course, what: dict[str, Callable[[Checkpoint], float]]) -> list[Curve]:
    return [
        mean_curve(
            name,
            [
                [(float(one.iterations), value(one)) for one in course.of(seed)]
                for seed in course.seeds()
            ],
        )
        for name, value in what.items()
    ]


def _sample(checkpoints: Sequence[Checkpoint], value: Callable[[Checkpoint], float]) -> str:
    numbers = [value(one) for one in checkpoints]
    if not all(map(math.isfinite, numbers)):
        return "not finite"
    return str(Sample(tuple(numbers)))


def _log10(value: float) -> float:
    return math.log10(value) if value > 0 else -math.inf
