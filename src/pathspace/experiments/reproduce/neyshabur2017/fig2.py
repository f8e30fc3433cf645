"""Figure 2: SGD from balanced and unbalanced weights on MNIST, and one update worked out."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from pathspace.experiments.executors import compute
from pathspace.experiments.reproduce.controls import METRICS, Comparison, Rate, compare, rate_words
from pathspace.experiments.reproduce.experiment import Experiment, Plan, Preset
from pathspace.experiments.reproduce.figures import Figure, learning_block, learning_curves
from pathspace.experiments.reproduce.findings import Claim, Findings, directed_claim
from pathspace.experiments.reproduce.neyshabur2017.updates import (
    EXAMPLES,
    one_update,
    update_claims,
    update_statements,
    updates_figure,
)
from pathspace.experiments.reproduce.panels import Panel, draw_panels
from pathspace.experiments.reproduce.settings import POWERS_OF_TEN
from pathspace.experiments.reproduce.statistics import metric
from pathspace.experiments.reproduce.tables import Line, table_of
from pathspace.experiments.reproduce.words import BANDS
from pathspace.experiments.training import Trial
from pathspace.page import Curves, DataTable
from pathspace.tables import Column

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
            f"The common step size {settings.common:g} was chosen after looking at small trials.",
            "For (b) and (c) the caption gives input, output gradient and step size; the weights "
            "are ours.",
            f"Hidden layers of {settings.width} units (paper: 4,000), of which "
            f"{2 * settings.width // 4} are drawn and rescaled.",
            "The layers have biases, which begin at 0; the paper's examples have none.",
        ),
    )


# (a) ---------------------------------------------------------------------------------------------


def _said(comparison: Comparison) -> dict[Rate, str]:
    return rate_words(comparison.common_rate, "step size", "both")


def _training_claims(comparison: Comparison) -> list[Claim]:
    claims = []
    for rate, said in _said(comparison).items():
        for name, label in METRICS.items():
            gap = comparison.difference(UNBALANCED, BALANCED, name, rate)
            group = f"(a) SGD, unbalanced − balanced, {said}"
            if gap.values:
                claims.append(directed_claim(label, "above 0", gap, group))
            else:
                diverged = comparison.sample(UNBALANCED, name, rate)
                claims.append(Claim(label, "above 0", diverged, "seen", group))
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
    cases = [(name, arm) for name in names for arm in STARTS]
    return table_of(
        "Figure 2 (a): every step size",
        [Column("step size", number=True)],
        {(names[name], arm): f"{names[name]}, {arm}" for name, arm in cases},
        [
            Line(
                (f"{rate:g}",),
                {
                    (names[name], arm): metric(comparison.tuning[arm][rate], name)
                    for name, arm in cases
                },
                {"step size": rate},
            )
            for rate in comparison.tuning[BALANCED]
        ],
        "SGD at every step size of the grid, after training on all but the validation images. "
        "Rescaled units make the gradients of others larger: what is the best step size from "
        "balanced weights may be too large from unbalanced ones, and a small one may suit them.",
        across=("metric", "start"),
        file="step sizes",
    )


def _curves(comparison: Comparison, rate: Rate) -> Curves:
    return learning_block(
        comparison.lines(STARTS, rate),
        "train_loss",
        "training loss",
        f"Cross-entropy of SGD from both starts, {_said(comparison)[rate]}",
        log_y=True,
        file=f"loss {rate}",
    )


def _curves_figure(comparison: Comparison) -> Figure:
    panels = [
        Panel(
            learning_curves(comparison.lines(STARTS, rate), "train_loss"),
            "epoch",
            "training loss",
            said,
            log_y=True,
        )
        for rate, said in _said(comparison).items()
    ]
    return Figure(
        "training-a",
        lambda: draw_panels([panels], (9, 3.4), share_y=True),
        "Figure 2 (a): cross-entropy over epochs of SGD on MNIST from balanced weights, and from "
        f"unbalanced ones that are the same function. {BANDS}; a curve breaks off where a training "
        "diverged.",
        " ".join(f"{said}: {_curves(comparison, r).alt}" for r, said in _said(comparison).items()),
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
        Settings(width=4000, epochs=100, seeds=(0, 1, 2, 3, 4), rates=POWERS_OF_TEN),
        jobs=44,
        time="a few hours on a GPU (estimated)",
    ),
)
