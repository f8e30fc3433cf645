"""Reproductions as Markdown, for the documentation: written from the findings, never by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

from pathspace import __version__
from pathspace.experiments.reproduce.experiment import natural_order
from pathspace.experiments.reproduce.progress import in_words
from pathspace.experiments.reproduce.running import Reproduction
from pathspace.summary.groups import shown
from pathspace.tables import NOTHING, Table


def page_text(reproduction: Reproduction) -> str:
    """The page of one experiment."""
    experiment, findings = reproduction.experiment, reproduction.findings
    parts = [
        f"# {experiment.name}{_size(reproduction)}: {experiment.title}",
        f"{_escape(str(experiment.source))}. {_escape(experiment.where)}.",
        "## What the paper shows",
        _escape(experiment.shows),
        "## What we see",
        _bullets(findings.statements),
        *([table_text(findings.table())] if findings.claims else []),
        *(
            f"![{_escape(figure.alt)}]({figure.name}.png)\n\n*{_escape(figure.caption)}*"
            for figure in findings.figures
        ),
        *(f"{table_text(block.table)}\n\n*{_escape(block.caption)}*" for block in findings.tables),
        *(["## Where this differs from the paper"] if findings.deviations else []),
        _bullets(findings.deviations),
        "## How it was run",
        _bullets(how_it_was_run(reproduction)),
        "```console",
    ]
    body = "\n\n".join(part for part in parts if part)
    return f"{body}\n$ {experiment.command(reproduction.preset)}\n```\n"


def _size(reproduction: Reproduction) -> str:
    sizes = {"quick": "", "paper": " at the paper's size"}
    return sizes.get(reproduction.preset, f" at the size “{reproduction.preset}”")


def index_text(summaries: Mapping[str, Mapping[str, Any]]) -> str:
    """The list of pages, a line each; made of what ``summary.json`` files hold, by folder."""
    lines = [
        "| experiment | what | preset | trainings | of the paper's claims |",
        "|---|---|---|---:|---|",
    ]
    for folder in sorted(summaries, key=natural_order):
        one = summaries[folder]
        lines.append(
            f"| [{one['experiment']}]({folder}/README.md) | {_escape(one['title'])} "
            f"| {one['preset']} | {one['trials']} | {_verdicts(one['claims'])} |"
        )
    told = (
        "One page per table or figure: what the paper shows, what we see, seeds, time, and every "
        "difference that we know of. `pathspace reproduce` writes these pages."
    )
    return "\n".join(["# Reproductions", "", told, "", *lines, ""])


def table_text(table: Table) -> str:
    r"""A table; groups become rows in bold, notes stand below.

    Example:
        >>> from pathspace.tables import Column, Row
        >>> rows = (Row(("a|b", "1"), "first"), Row(("c", "2"), "first", ("why",)))
        >>> print(table_text(Table("Two", (Column("name"), Column("value", True)), rows)))
        **Two**
        <BLANKLINE>
        | name | value | note |
        |---|---:|---|
        | **first** |  |  |
        | a\|b | 1 |  |
        | c | 2 | [1] |
        <BLANKLINE>
        [1] why
    """
    heads = table.headings
    lines = [
        _line([column.name for column in heads]),
        "|" + "|".join("---:" if column.number else "---" for column in heads) + "|",
    ]
    group = ""
    for row, cells in table.lines():
        if row.group != group:
            group = row.group
            lines.append(f"| **{_escape(group)}** |" + "  |" * (len(heads) - 1))
        lines.append(_line(cells))
    below = [f"[{number}] {_escape(text)}" for text, number in table.notes().items()]
    below += map(_escape, table.remarks)
    return "\n\n".join([f"**{_escape(table.title)}**", "\n".join(lines), *below])


def how_it_was_run(reproduction: Reproduction) -> list[str]:
    """Settings, seeds, time and versions."""
    preset = reproduction.experiment.preset(reproduction.preset)
    told = [f"Preset `{reproduction.preset}`: {_settings(preset.settings)}."]
    outcomes = reproduction.outcomes
    if outcomes:
        seeds = sorted({outcome.trial.seed for outcome in outcomes})
        statuses = [outcome.status for outcome in outcomes]
        counts = ", ".join(f"{statuses.count(s)} {s}" for s in dict.fromkeys(statuses))
        told.append(f"{len(outcomes)} trainings ({counts}), seeds {', '.join(map(str, seeds))}.")
        told += dict.fromkeys(note for outcome in outcomes for note in outcome.notes)
    told.append(
        f"{in_words(reproduction.seconds)} of work in all jobs together; stated for the preset: "
        f"{preset.time}. pathspace {__version__}."
    )
    return told


# Helpers -----------------------------------------------------------------------------------------


def _settings(settings: object) -> str:
    if not (is_dataclass(settings) and not isinstance(settings, type)):
        return str(settings)
    return ", ".join(
        f"{name.replace('_', ' ')} {shown(value)}" for name, value in asdict(settings).items()
    )


def _verdicts(claims: Iterable[Mapping[str, Any]]) -> str:
    found = [claim["verdict"] for claim in claims if claim["verdict"]]
    return ", ".join(f"{found.count(v)} {v}" for v in dict.fromkeys(found)) or NOTHING


def _bullets(items: Sequence[str]) -> str:
    return "\n".join(f"- {_escape(item)}" for item in items)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_escape, cells)) + " |"


def _escape(text: str) -> str:
    """A text in which nothing is markup, but words such as `name` stay readable."""
    for character in "\\|*_<>":
        text = text.replace(character, f"\\{character}")
    return text
