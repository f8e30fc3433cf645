"""Figure 2: SGD from balanced and unbalanced weights on MNIST, and one update worked out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pathspace.experiments.executors import compute
from pathspace.experiments.reproduce.controls import Comparison, Rate, compare
from pathspace.experiments.reproduce.experiment import Experiment, Plan, Preset
from pathspace.experiments.reproduce.figures import Figure, draw_curves, learning_curve
from pathspace.experiments.reproduce.findings import Claim, Findings
from pathspace.experiments.reproduce.neyshabur2017.updates import (
    EXAMPLES,
    one_update,
    update_claims,
    update_statements,
    updates_figure,
)
from pathspace.experiments.reproduce.statistics import metric
from pathspace.experiments.training import Trial
from pathspace.page import Curves, DataTable
from pathspace.plot.backend import pyplot
from pathspace.tables import Column, Row, Table

STARTS = BALANCED, UNBALANCED = "balanced", "unbalanced"


@dataclass(frozen=True)
class Settings:
    """What is trained for panel (a); the worked examples have no settings.

    Attributes:
        width: hidden units in each of the two layers.
        epochs: of each training.
        seeds: of each final training.
        rates: the grid of step sizes, powers of ten in the paper.
        common: one of them, the same from both starts.
        batch: images per step.
        validation: training images set aside while rates are chosen.
    """

    width: int
    epochs: int
    seeds: tuple[int, ...]
    rates: tuple[float, ...]
    common: float = 0.1
    batch: int = 100
    validation: int = 10_000

    def trial(self, init: str) -> Trial:
        """SGD from these initial weights."""
        return Trial(
            f"mlp:784-{self.width}-{self.width}-10",
            "mnist",
            preprocess=("unit_interval", "flatten"),
            init=init,
            batch=self.batch,
            epochs=self.epochs,
        )

    @property
    def arms(self) -> dict[str, Trial]:
        """A quarter as many units are drawn and rescaled as there are, as in the paper."""
        picks = 2 * self.width // 4
        return {
            BALANCED: self.trial("balanced"),
            UNBALANCED: self.trial(f"unbalanced:{picks}"),
        }


def plan(settings: Settings) -> Plan[Findings]:
    """The worked examples, then the trainings."""
    updates = yield [compute(one_update, example=asdict(example)) for example in EXAMPLES]
    comparison = yield from compare(
        settings.arms,
        seeds=settings.seeds,
        rates=settings.rates,
        common=settings.common,
        validation=settings.validation,
    )
    found = {example.name: result for example, result in zip(EXAMPLES, updates, strict=True)}
    return Findings(
        claims=(*_training_claims(comparison), *update_claims(found)),
        statements=(*_statements(comparison, settings), *update_statements(found)),
        figures=(
            _curves_figure(comparison),
            *(updates_figure(example, found[example.name].values) for example in EXAMPLES),
        ),
        tables=(_rates_table(comparison),),
        blocks=tuple(_curves(comparison, rate) for rate in _said(comparison)),
        deviations=(
            "The paper gives no numbers for (a), nor its step size and length; both starts are "
            "shown at one common step size and each at its best one by validation error.",
            "For (b) and (c) the caption gives input, output gradient and step size; the weights "
            "are ours.",
            f"Hidden layers of {settings.width} units (paper: 4,000), of which "
            f"{2 * settings.width // 4} are drawn and rescaled.",
            "The layers have biases, which begin at 0; the paper's examples have none.",
        ),
    )


# (a) ---------------------------------------------------------------------------------------------


def _said(comparison: Comparison) -> dict[Rate, str]:
    return {
        "common": f"both at step size {comparison.common_rate:g}",
        "best": "each at its best step size",
    }


def _training_claims(comparison: Comparison) -> list[Claim]:
    claims = []
    for rate, said in _said(comparison).items():
        for name, label in (("train_loss", "training loss"), ("test_error", "test error (%)")):
            gap = comparison.difference(UNBALANCED, BALANCED, name, rate)
            ours: Any = gap if gap.values else comparison.sample(UNBALANCED, name, rate)
            verdict = gap.verdict("above 0") if gap.values else "seen"
            group = f"(a) SGD, unbalanced − balanced, {said}"
            claims.append(Claim(label, "above 0", ours, verdict, group))
    return claims


def _statements(comparison: Comparison, settings: Settings) -> list[str]:
    told = []
    for rate, said in _said(comparison).items():
        balanced, unbalanced = (comparison.sample(arm, "train_loss", rate) for arm in STARTS)
        told.append(
            f"(a) After {settings.epochs} epochs of SGD, {said}, the training loss is {balanced} "
            f"from balanced and {unbalanced} from unbalanced weights, which are the same function "
            f"({len(comparison.seeds)} seeds)."
        )
    rates = ", ".join(f"{rate:g} from {arm}" for arm, rate in comparison.best_rates.items())
    best = comparison.best_rates[BALANCED]
    there = metric(comparison.tuning[UNBALANCED][best], "train_loss")
    return [
        *told,
        f"(a) The best step sizes by validation error are {rates}. At the one from balanced, the "
        f"training loss from unbalanced weights is {there} (while rates were chosen).",
    ]


def _rates_table(comparison: Comparison) -> DataTable:
    """What both starts came to at every step size, while these were chosen."""
    names = {"train_loss": "training loss", "validation_error": "validation error (%)"}
    columns = [Column("step size", number=True)]
    columns += [Column(f"{label}, {arm}", True) for label in names.values() for arm in STARTS]
    rows, records = [], []
    for rate in comparison.tuning[BALANCED]:
        found = {
            (label, arm): metric(comparison.tuning[arm][rate], name)
            for name, label in names.items()
            for arm in STARTS
        }
        rows.append(Row((f"{rate:g}", *map(str, found.values()))))
        records += [
            {"step size": rate, "metric": label, "start": arm, "mean": sample.mean}
            for (label, arm), sample in found.items()
        ]
    caption = (
        "SGD at every step size of the grid, after training on all but the validation images. "
        "Rescaled units make the gradients of others larger: what is the best step size from "
        "balanced weights may be too large from unbalanced ones, and a small one may suit them."
    )
    table = Table("Figure 2 (a): every step size", tuple(columns), tuple(rows))
    return DataTable(table, caption, tuple(records), "step sizes")


def _curves(comparison: Comparison, rate: Rate) -> Curves:
    curves = tuple(
        learning_curve(arm, comparison.outcomes(arm, rate), "train_loss") for arm in STARTS
    )
    said = _said(comparison)[rate]
    return Curves(
        curves,
        "epoch",
        "training loss",
        f"Cross-entropy of SGD from both starts, {said}: mean over seeds, in a band of one "
        "standard deviation. A curve breaks off where a training diverged.",
        "; ".join(f"{c.name} ends at {c.y[-1]:.3g}" for c in curves if c.y),
        log_y=True,
        file=f"loss {rate}",
    )


def _curves_figure(comparison: Comparison) -> Figure:
    def draw() -> Any:
        figure, axes = pyplot().subplots(1, 2, figsize=(9, 3.4), layout="constrained", sharey=True)
        for ax, (rate, said) in zip(axes, _said(comparison).items(), strict=True):
            curves = [
                learning_curve(arm, comparison.outcomes(arm, rate), "train_loss") for arm in STARTS
            ]
            draw_curves(ax, curves, "epoch", "training loss", log_y=True)
            ax.set_title(said, fontsize=10)
        axes[0].legend(frameon=False)
        return figure

    return Figure(
        "training-a",
        draw,
        "Figure 2 (a): cross-entropy over epochs of SGD on MNIST from balanced weights, and from "
        "unbalanced ones that are the same function. Means over seeds, in bands of one standard "
        "deviation; a curve breaks off where a training diverged.",
        " ".join(f"{said}: {_curves(comparison, r).alt}." for r, said in _said(comparison).items()),
    )


EXPERIMENT = Experiment(
    name="neyshabur2017 fig2",
    title="SGD from balanced and unbalanced weights, and one update worked out",
    where="Figure 2; section 3",
    shows=(
        "(a) SGD on MNIST learns far more slowly from unbalanced weights than from balanced ones "
        "that are the same function. (b) In an unbalanced network, one step of gradient descent "
        "blows up the small weight and leaves the large one almost unchanged. (c) Two networks "
        "that are one function compute very different functions after a single step."
    ),
    plan=plan,
    quick=Preset(
        Settings(width=128, epochs=5, seeds=(0, 1, 2), rates=(0.001, 0.01, 0.1, 1.0)),
        jobs=22,
        time="3 minutes on 2 cores",
    ),
    paper=Preset(
        Settings(
            width=4000,
            epochs=100,
            seeds=(0, 1, 2, 3, 4),
            rates=tuple(10.0**-alpha for alpha in range(11)),
        ),
        jobs=44,
        time="a few hours on a GPU (estimated)",
    ),
)
