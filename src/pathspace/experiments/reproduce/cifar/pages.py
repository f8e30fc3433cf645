"""The page of an experiment on images: what all of them show, besides what is their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pathspace.experiments.reproduce.cifar.figures import gaps_figure, loss_curves
from pathspace.experiments.reproduce.cifar.images import Case
from pathspace.experiments.reproduce.cifar.regularizing import (
    GSGD_BPR,
    NORMALIZED_BPR,
    REGULARIZED,
    SGD_WD,
    SKELETON_WD,
    Lambdas,
    Regularization,
)
from pathspace.experiments.reproduce.cifar.tables import gaps_table, levels_table
from pathspace.experiments.reproduce.cifar.words import Question, edges, lambda_edges, unlearned
from pathspace.experiments.reproduce.controls import ARMS, Comparison, Gaps, rate_words
from pathspace.experiments.reproduce.findings import Findings

POINTS = {"test_error": "test error (% points)", "train_loss": "training loss"}  # differences
# What regularized arms are asked: is G-SGD + BPR ahead of SGD + WD, and why.
REGULARIZERS = Question(GSGD_BPR, SGD_WD, SKELETON_WD, NORMALIZED_BPR)


@dataclass(frozen=True)
class Layout:
    """What a page shows of comparisons.

    Attributes:
        lines: arms whose training losses are shown over epochs.
        gaps: what is taken from what.
        said: what these differences are, for the caption of their figure; without, there is none.
        arms: all arms that were trained.
        tuned: those that have a best rate of their own.
    """

    lines: tuple[str, ...]
    gaps: Gaps
    said: str = ""
    arms: tuple[str, ...] = ARMS
    tuned: tuple[str, ...] = ARMS


def images_page(
    own: Findings,
    comparisons: Mapping[Case, Comparison],
    layout: Layout,
    lambdas: Mapping[Case, Lambdas] | None = None,
) -> Findings:
    """What an experiment found of its own, and then what is shown of all such comparisons.

    That is: which arms learned nothing, and which have a best rate at an end of the grid; the
    differences as a figure; tables of all arms and of their differences; losses over epochs.

    Args:
        own: claims, statements, figures, tables and deviations of the experiment.
        comparisons: by case.
        layout: what is shown of them.
        lambdas: those of regularized arms.
    """
    differences = []
    if layout.said:
        caption = (
            f"Differences of test errors: {layout.said}. Paired over seeds, with 95 % confidence "
            "intervals; below 0 is better."
        )
        differences = [gaps_figure(comparisons, layout.gaps, caption)]
    return replace(
        own,
        statements=(
            *own.statements,
            *unlearned(comparisons, layout.arms),
            *edges(comparisons, layout.tuned),
        ),
        figures=(*own.figures, *differences),
        tables=(
            *own.tables,
            levels_table(comparisons, layout.arms, lambdas),
            gaps_table(comparisons, layout.gaps),
        ),
        blocks=tuple(
            loss_curves(
                case, one.lines(layout.lines, "common"), rate_words(one.common_rate)["common"]
            )
            for case, one in comparisons.items()
        ),
    )


def regularized_page(
    own: Findings,
    found: Mapping[Case, Regularization],
    *,
    lines: Sequence[str],
    gaps: Gaps,
    said: str,
) -> Findings:
    """The same of regularized trainings, and where λ is at an end of its grid.

    Args:
        own: as for :func:`images_page`.
        found: by case.
        lines: see :class:`Layout`.
        gaps: see there.
        said: see there.
    """
    page = images_page(
        own,
        {case: one.comparison for case, one in found.items()},
        Layout(tuple(lines), gaps, said, arms=(*ARMS, *REGULARIZED)),
        {case: one.lambdas for case, one in found.items()},
    )
    return replace(page, statements=(*page.statements, *lambda_edges(found)))
