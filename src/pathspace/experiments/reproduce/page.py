"""Reproductions as one web page."""

from __future__ import annotations

from collections.abc import Sequence

from pathspace import __version__
from pathspace.experiments.executors import Archive
from pathspace.experiments.reproduce.markdown import how_it_was_run
from pathspace.experiments.reproduce.running import Reproduction
from pathspace.experiments.reproduce.writing import summary
from pathspace.page import (
    Block,
    Bullets,
    Code,
    DataTable,
    Details,
    Image,
    Page,
    Paragraph,
    Section,
)
from pathspace.summary.groups import group_trials
from pathspace.summary.trials import trials_table


def reproduction_page(reproductions: Sequence[Reproduction], archive: Archive) -> Page:
    """A section per experiment, the data of all of it to save."""
    names = {one.experiment.name for one in reproductions}
    title = f"Reproduction of {names.pop()}" if len(names) == 1 else "Reproductions"
    return Page(
        title,
        [_section(one, archive) for one in reproductions],
        f"Written by pathspace {__version__}",
        [summary(one) for one in reproductions],
        "reproductions",
    )


def _section(one: Reproduction, archive: Archive) -> Section:
    experiment, findings = one.experiment, one.findings
    claims = tuple(claim.record() for claim in findings.claims)
    caption = (
        "Ours: mean ± standard deviation over seeds, or a paired difference with its 95 % "
        "confidence interval. Where the paper gives no number, the difference says whether what "
        "it says is seen: the whole interval is on the claimed side of 0, on the other (contrary), "
        "or neither (undecided)."
    )
    blocks: list[Block] = [
        Paragraph(f"{experiment.source}. {experiment.where}."),
        Section("What the paper shows", [Paragraph(experiment.shows)]),
        Section(
            "What we see",
            [
                Bullets(findings.statements),
                *([DataTable(findings.table(), caption, claims, "claims")] if claims else []),
                *(Image(f.render("png"), f.caption, f.alt) for f in findings.figures),
                *findings.blocks,
                *findings.tables,
            ],
        ),
        *(
            [Section("Where this differs from the paper", [Bullets(findings.deviations)])]
            if findings.deviations
            else []
        ),
        Section("How it was run", _how(one, archive)),
    ]
    return Section(f"{experiment.name}: {experiment.title}", blocks)


def _how(one: Reproduction, archive: Archive) -> list[Block]:
    command = one.experiment.command(one.preset)
    blocks: list[Block] = [Bullets(tuple(how_it_was_run(one))), Code(command, "the command")]
    if one.outcomes:
        records = [archive.record(outcome.trial) for outcome in one.outcomes]
        blocks.append(Details("Every trial on its own", [trials_table(group_trials(records))]))
    return blocks
