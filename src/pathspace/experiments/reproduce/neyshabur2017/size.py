"""What happens to training and test error as a network grows: samples, claims, words, pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pathspace.experiments.reproduce.figures import Figure, draw_curves, sample_curve
from pathspace.experiments.reproduce.findings import Claim, Findings
from pathspace.experiments.reproduce.neyshabur2017.naming import NAMES
from pathspace.experiments.reproduce.statistics import (
    Difference,
    Sample,
    metric,
    paired_difference,
)
from pathspace.experiments.training import Outcome
from pathspace.page import Curve, Curves, DataTable
from pathspace.plot.backend import pyplot
from pathspace.summary.metrics import value
from pathspace.tables import Column, Row, Table

TRAINING = "training error"
CONVERGENCE = "test error at convergence"
ZERO = "test error at zero training error"
EARLY = "test error with early stopping"
RULES = (CONVERGENCE, ZERO, EARLY)
ENOUGH = 32  # units that give zero training error on MNIST, section 2


@dataclass(frozen=True, eq=False)
class Sweep:
    """Trainings of one data set over widths.

    Attributes:
        per_unit: weights of a hidden unit: inputs and classes.
        outcomes: by width, in the order of the seeds.
    """

    per_unit: int
    outcomes: Mapping[int, list[Outcome]]

    @property
    def widths(self) -> list[int]:
        """The widths, in their order."""
        return sorted(self.outcomes)

    def sample(self, width: int, curve: str) -> Sample:
        """One of the errors in percent, by seed; NaN where a rule was never met."""
        outcomes = self.outcomes[width]
        if curve == ZERO:
            return Sample(tuple(map(_at_zero, outcomes)))
        name = "train_error" if curve == TRAINING else "test_error"
        return metric(outcomes, name, "best" if curve == EARLY else "final")

    def change(self, start: int, curve: str) -> Difference:
        """From that width to the largest."""
        return paired_difference(self.sample(self.widths[-1], curve), self.sample(start, curve))

    @property
    def enough(self) -> int | None:
        """The least width with which all seeds reach zero training error."""
        fitting = (width for width in self.widths if not self.sample(width, ZERO).diverged)
        return next(fitting, None)


def effect_of_size(sweeps: Mapping[str, Sweep]) -> Findings:
    """Findings from one sweep per data set."""
    return Findings(
        claims=tuple(claim for data, sweep in sweeps.items() for claim in _claims(data, sweep)),
        statements=tuple(text for data, one in sweeps.items() for text in _statements(data, one)),
        figures=(_figure(sweeps),),
        tables=(_table(sweeps),),
        blocks=tuple(_block(data, sweep) for data, sweep in sweeps.items()),
        deviations=("No optimizers are compared here, so there is nothing to be controlled for.",),
    )


# Claims and words --------------------------------------------------------------------------------


def _claims(data: str, sweep: Sweep) -> list[Claim]:
    group, claims, enough = NAMES[data], [], sweep.enough
    if data == "mnist":
        found: float | str = "none" if enough is None else enough
        claims.append(Claim("least H with zero training error", ENOUGH, found, group=group))
        if ENOUGH in sweep.outcomes:
            error = sweep.sample(ENOUGH, TRAINING)
            claims.append(Claim(f"training error (%), H = {ENOUGH}", 0.0, error, group=group))
    for curve in (CONVERGENCE, EARLY):
        if enough is None or enough == sweep.widths[-1]:
            gap: Difference | str = "no smaller H reaches zero training error"
            verdict, start = "undecided", "least H with zero training error"
        else:
            gap = sweep.change(enough, curve)
            verdict, start = gap.verdict("below 0"), f"H = {enough}"
        what = f"{curve} (%), H = {sweep.widths[-1]} minus {start}"
        claims.append(Claim(what, "below 0", gap, verdict, group))
    return claims


def _statements(data: str, sweep: Sweep) -> list[str]:
    widths, enough, name = sweep.widths, sweep.enough, NAMES[data]
    if enough is None:
        error = sweep.sample(widths[-1], TRAINING)
        return [
            f"{name}: no network reaches zero training error with all seeds (H = {widths[-1]}: "
            f"{error} %), so what happens beyond cannot be said.",
            _of_the_largest(name, sweep),
        ]
    if enough == widths[-1]:
        first = f"{name}: only the largest network, H = {enough}, reaches zero training error."
        return [first, _of_the_largest(name, sweep)]
    changes = {curve: sweep.change(enough, curve) for curve in RULES}
    told = "; ".join(f"{curve} {change}" for curve, change in changes.items())
    return [
        f"{name}: H = {enough} is the least width with zero training error for all seeds. From "
        f"there to H = {widths[-1]} the errors change by (percentage points, with the 95 % "
        f"confidence interval of paired differences): {told}. {_verdict(changes[CONVERGENCE])}",
        _of_the_largest(name, sweep),
    ]


def _verdict(change: Difference) -> str:
    if change.high < 0:
        return "So the test error goes on falling past zero training error, as the paper says."
    if change.low > 0:
        return "So the test error rises past zero training error, other than the paper says."
    return "So whether the test error goes on falling is not decided by these seeds."


def _of_the_largest(name: str, sweep: Sweep) -> str:
    """Whether the error goes up again at the largest networks."""
    means = {width: sweep.sample(width, CONVERGENCE).mean for width in sweep.widths}
    finite = {width: mean for width, mean in means.items() if math.isfinite(mean)}
    largest = sweep.widths[-1]
    if largest not in finite:
        return f"{name}: trainings of the largest network diverged."
    least = min(finite, key=lambda width: finite[width])
    where = (
        "the least of all widths"
        if least == largest
        else f"the least is {sweep.sample(least, CONVERGENCE)} % at H = {least}"
    )
    return (
        f"{name}: the test error at convergence of the largest network, with "
        f"{largest * sweep.per_unit:,} weights, is {sweep.sample(largest, CONVERGENCE)} % "
        f"({where}); with early stopping {sweep.sample(largest, EARLY)} %."
    )


# Tables and figures ------------------------------------------------------------------------------


def _curves(sweep: Sweep) -> list[Curve]:
    return [
        sample_curve(curve, sweep.widths, [sweep.sample(width, curve) for width in sweep.widths])
        for curve in (TRAINING, *RULES)
    ]


def _ends(curves: list[Curve]) -> str:
    """The first and the last point of each curve that has any."""
    known = {c.name: [y for y in c.y if math.isfinite(y)] for c in curves}
    return ", ".join(f"{name} from {y[0]:.3g} to {y[-1]:.3g}" for name, y in known.items() if y)


def _block(data: str, sweep: Sweep) -> Curves:
    curves = _curves(sweep)
    return Curves(
        tuple(curves),
        "hidden units, H",
        "error (%)",
        f"{NAMES[data]}: errors against the number of hidden units; mean over seeds, in a band of "
        "one standard deviation. A rule that some seed never met has no point.",
        f"From the least to the largest width, {_ends(curves)}.",
        log_x=True,
        file=f"errors by width {data}",
    )


def _figure(sweeps: Mapping[str, Sweep]) -> Figure:
    def draw() -> Any:
        plt = pyplot()
        figure, axes = plt.subplots(
            1, len(sweeps), figsize=(9, 3.9), layout="constrained", squeeze=False
        )
        for ax, (data, sweep) in zip(axes[0], sweeps.items(), strict=True):
            draw_curves(
                ax, _curves(sweep), "hidden units, H", "error (%)", log_x=True, markers=True
            )
            ax.set_xticks(sweep.widths, [str(width) for width in sweep.widths], fontsize=8)
            ax.minorticks_off()
            if sweep.enough is not None:
                ax.axvline(sweep.enough, color="#333333", linewidth=0.8, linestyle=":")
            ax.set_ylim(bottom=0)
            ax.set_title(NAMES[data], fontsize=10)
        figure.legend(
            *axes[0][0].get_legend_handles_labels(),
            loc="outside lower center", ncols=2, frameon=False, fontsize=8,
        )  # fmt: skip
        return figure

    said = "; ".join(f"{NAMES[data]}: {_ends(_curves(one))}" for data, one in sweeps.items())
    return Figure(
        "errors",
        draw,
        "Training error, and test error by three rules of when to stop, against the number of "
        "hidden units. Means over seeds, in bands of one standard deviation; the dotted line is "
        "the least width with zero training error for all seeds. Test errors at zero training "
        "error are shown where all seeds reach it.",
        f"From the least to the largest width, in percent: {said}.",
    )


def _table(sweeps: Mapping[str, Sweep]) -> DataTable:
    curves = (TRAINING, *RULES)
    columns = (
        Column("H", number=True),
        Column("weights", number=True),
        *(Column(f"{curve} (%)", number=True) for curve in curves),
        Column("epochs", number=True),
    )
    rows, records = [], []
    for data, sweep in sweeps.items():
        for width in sweep.widths:
            weights = width * sweep.per_unit
            found = {curve: sweep.sample(width, curve) for curve in curves}
            epochs = Sample(tuple(float(one.final["epoch"]) for one in sweep.outcomes[width]))
            cells = [_cell(curve, sample) for curve, sample in found.items()]
            rows.append(Row((str(width), f"{weights:,}", *cells, str(epochs)), NAMES[data]))
            records += [
                {"data": data, "H": width, "weights": weights, "curve": curve,
                 **sample.record}
                for curve, sample in found.items()
            ]  # fmt: skip
    caption = "Mean ± standard deviation over seeds."
    table = Table("Errors at every width", columns, tuple(rows))
    return DataTable(table, caption, tuple(records), "errors by width")


def _cell(curve: str, sample: Sample) -> str:
    if curve == ZERO and sample.diverged:
        return f"reached by {len(sample) - sample.diverged} of {len(sample)}"
    return str(sample)


def _at_zero(outcome: Outcome) -> float:
    """The test error when the training error is zero for the first time."""
    rows = (row for row in outcome.curves if row.get("train_error") == 0)
    return value(next(rows, None), "test_error")
