"""The tables of the demonstration, for the terminal and for the page."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pathspace.experiments.demo.inspecting import MEASURES, SPACES, Look
from pathspace.experiments.demo.settings import CONTROL, INVARIANT, OPTIMIZERS, STARTS, Settings
from pathspace.experiments.demo.trainings import Difference, Trainings
from pathspace.flatnesses import Flatness
from pathspace.tables import NOTHING, Column, Row, Table

BEST, COMMON = "at the best rate", "at the same rate"
HEADINGS = {"weight norm (p=2)": "weight norm", "path norm (p=2)": "path norm"}


def comparison_table(trainings: Trainings) -> Table:
    """Test errors of every optimizer from both starts, at its best rate and at the common one."""
    settings = trainings.settings
    columns = [Column("optimizer")]
    for start in STARTS:
        columns += [Column("rate", number=True), Column(f"from {start}", number=True)]
    rows = [_best_row(trainings, optimizer) for optimizer in OPTIMIZERS]
    for optimizer in OPTIMIZERS:
        cells = [OPTIMIZERS[optimizer]]
        for start in STARTS:
            errors = trainings.errors(optimizer, start, settings.common)
            cells += [f"{settings.common:g}", str(errors)]
        rows.append(Row(tuple(cells), COMMON, mark=_mark(optimizer)))
    seeds = len(settings.seeds)
    spread = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    title = f"Test error on {settings.data} after {_epochs(settings)}, {spread}"
    remark = "Best is the rate with the least mean validation error; test images have no say in it."
    return Table(title, tuple(columns), tuple(rows), (remark,))


def difference_table(trainings: Trainings) -> Table:
    """How much the rescaled start changes the trained function, by optimizer."""
    settings = trainings.settings
    columns = (
        Column("optimizer"),
        Column("rate", number=True),
        Column("max |Δ output|", number=True),
        Column("relative", number=True),
        Column("predictions changed", number=True),
    )
    initial = trainings.initial_difference()
    rows = [Row(("none", NOTHING, *_difference_cells(initial)), "before training")]
    for optimizer, name in OPTIMIZERS.items():
        best = trainings.best_rate(optimizer, "balanced")
        groups = {BEST: best, COMMON: settings.common}
        for group, rate in groups.items():
            cells = _difference_cells(trainings.difference(optimizer, rate))
            rows.append(Row((name, f"{rate:g}", *cells), group, mark=_mark(optimizer)))
    order = list(dict.fromkeys(row.group for row in rows))
    rows.sort(key=lambda row: order.index(row.group))
    title = "Balanced against unbalanced start: how far apart are the networks?"
    remark = (
        "Both starts are the same function, and each pair is trained alike, at the rate that is "
        "best from balanced or the same for all. A relative difference near 1e-15 is the rounding "
        "of double precision, one near 1 another function."
    )
    return Table(title, columns, tuple(rows), (remark,))


def rate_table(trainings: Trainings) -> Table:
    """The relative difference between the two starts, for every optimizer and rate."""
    columns = (Column("rate", number=True), *(Column(name, True) for name in OPTIMIZERS.values()))
    rows = []
    for rate in trainings.settings.rates:
        found = (trainings.difference(optimizer, rate) for optimizer in OPTIMIZERS)
        rows.append(Row((f"{rate:g}", *(_difference_cells(one)[1] for one in found))))
    remarks = []
    for optimizer, rate in trainings.controls:
        _, relative, _ = _difference_cells(trainings.difference(optimizer, rate, CONTROL))
        remarks.append(
            f"Control for {OPTIMIZERS[optimizer]} at rate {rate:g}: from balanced weights that "
            f"rounding alone changed, the relative difference is {relative}."
        )
    return Table("The relative difference at every rate", columns, tuple(rows), tuple(remarks))


def look_table(looks: Sequence[Look]) -> Table:
    """Norms and flatness of the networks before and after training."""
    columns = (
        Column("start"),
        *(Column(HEADINGS.get(name, name), number=True) for name in MEASURES),
        *(Column(f"tr H ({space})", number=True) for space in SPACES),
    )
    rows = []
    for look in looks:
        values = [look.measures[name] for name in MEASURES]
        cells = [NOTHING if value is None else f"{value:.5g}" for value in values]
        cells += [_flatness_cell(look.flatness[space]) for space in SPACES]
        rows.append(Row((look.start, *cells), look.name))
    return Table("Norms and flatness, before and after training", columns, tuple(rows))


def training_table(trainings: Trainings) -> Table:
    """The errors at every rate of the grid."""
    columns = (
        Column("rate", number=True),
        Column("validation error", number=True),
        Column("test error", number=True),
        Column("chosen"),
    )
    rows = []
    for optimizer, name in OPTIMIZERS.items():
        for start in STARTS:
            best = trainings.best_rate(optimizer, start)
            for rate in trainings.settings.rates:
                errors = (
                    str(trainings.errors(optimizer, start, rate, split))
                    for split in ("validation", "test")
                )
                chosen = "best" if rate == best else ""
                rows.append(Row((f"{rate:g}", *errors, chosen), f"{name}, {start} start"))
    return Table("Errors at every learning rate of the grid", columns, tuple(rows))


# Helpers -----------------------------------------------------------------------------------------


def _best_row(trainings: Trainings, optimizer: str) -> Row:
    cells, notes = [OPTIMIZERS[optimizer]], []
    rates = trainings.settings.rates
    for start in STARTS:
        rate = trainings.best_rate(optimizer, start)
        cells += [f"{rate:g}", str(trainings.errors(optimizer, start, rate))]
        if rate in (min(rates), max(rates)):
            notes.append("a rate at the edge of the grid: one beyond it might be better")
    return Row(tuple(cells), BEST, tuple(dict.fromkeys(notes)), _mark(optimizer))


def _difference_cells(difference: Difference) -> tuple[str, ...]:
    if math.isnan(difference.absolute):
        return ("diverged", "diverged", "diverged")
    return (
        f"{difference.absolute:.1e}",
        f"{difference.relative:.1e}",
        f"{100 * difference.predictions:.1f} %",
    )


def _flatness_cell(flatness: Flatness) -> str:
    error = f" ± {flatness.standard_error:.2g}" if flatness.standard_error else ""
    return f"{flatness.value:.4g}{error}"


def _mark(optimizer: str) -> str:
    return "invariant" if optimizer in INVARIANT else "moving"


def _epochs(settings: Settings) -> str:
    return "1 epoch" if settings.epochs == 1 else f"{settings.epochs} epochs"
