"""From runs to a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pathspace import __version__
from pathspace.losslandscape import Landscape
from pathspace.page import Block, Bullets, Code, Details, Page, Paragraph, Section
from pathspace.page.downloads import json_text
from pathspace.plot.pages import landscape_blocks, landscape_data
from pathspace.report import Report, compare
from pathspace.summary.groups import SEED, SPOKEN, Group, common_settings, group_trials
from pathspace.summary.reading import Runs
from pathspace.summary.trials import trial_sections


def summarize(runs: Runs, title: str = "", *, log: bool = False) -> Page:
    """Everything about the runs on one page.

    Trials that differ in their seed only are drawn as one curve with a band; several measured
    networks stand side by side; landscapes are surfaces to turn. Configurations and environments
    are folded at the end.

    Args:
        runs: see :func:`pathspace.summary.read_runs`.
        title: the heading; by default what there is.
        log: heights of landscapes on a logarithmic scale.
    """
    groups = group_trials(runs.trials)
    blocks: list[Block] = [Paragraph(_overview(runs, groups))]
    if runs.remarks:
        blocks.append(Bullets(runs.remarks))
    if groups:
        blocks += trial_sections(groups)
    if runs.reports:
        blocks.append(Section("Measures", _measures(runs.reports)))
    if runs.landscapes:
        blocks.append(Section("Loss landscapes", _landscapes(runs.landscapes, log)))
    blocks.append(Section("Configuration and environment", _settings(runs, groups)))
    return Page(
        title or f"Report of {_counts(runs)}",
        blocks,
        f"Written by pathspace {__version__}",
        _data(runs),
    )


# Helpers -----------------------------------------------------------------------------------------


def _counts(runs: Runs) -> str:
    kinds = (
        (len(runs.trials), "trial", "trials"),
        (len(runs.reports), "measured network", "measured networks"),
        (len(runs.landscapes), "landscape", "landscapes"),
    )
    named = [f"{count} {one if count == 1 else many}" for count, one, many in kinds if count]
    return ", ".join(named) or "nothing"


def _overview(runs: Runs, groups: Sequence[Group]) -> str:
    said = f"This page holds {_counts(runs)}."
    if groups:
        configs = "1 configuration" if len(groups) == 1 else f"{len(groups)} configurations"
        said += f" The trials are of {configs}; those that differ in their seed only are pooled."
        same = [f"{name} {value}" for name, value in common_settings(groups, SPOKEN).items()]
        said += f" All have {', '.join(same)}." if same else ""
    return said + (
        " Tables sort by their headings. Curves are read off by pointing or with the arrow keys, "
        "zoomed by dragging, and hidden by their names below. Every table and figure has its data "
        "to save."
    )


def _measures(reports: Sequence[Report]) -> list[Block]:
    if len(reports) == 1:
        return list(reports[0].blocks())
    comparison = compare(*reports)
    each: list[Block] = [
        Details(name, list(report.blocks()))
        for name, report in zip(comparison.names, reports, strict=True)
    ]
    return [comparison.block(), *each]


def _landscapes(landscapes: Sequence[Landscape], log: bool) -> list[Block]:
    """Side by side only what was made alike, because one caption speaks for all of it."""
    alike: dict[str, list[Landscape]] = {}
    for one in landscapes:
        made = [one.about.get(name) for name in ("scale", "seed", "samples")]
        sizes = [len(axis) for axis in one.axes]
        alike.setdefault(json_text([one.space, one.loss, sizes, *made]), []).append(one)
    return [block for group in alike.values() for block in landscape_blocks(group, log=log)]


def _settings(runs: Runs, groups: Sequence[Group]) -> list[Block]:
    """Configurations and environments, each text once."""
    found: list[Block] = []
    for group in groups:
        config = {**group.trials[0].config, SEED: list(group.seeds)}
        found.append(Details.of(f"Configuration: {group.name}", config))
    where: dict[str, list[str]] = {}
    for trial in runs.trials:
        same = {name: value for name, value in trial.environment.items() if name != "date"}
        where.setdefault(json_text(same, 2), []).append(str(trial.environment.get("date", "")))
    for k, (text, dates) in enumerate(where.items(), 1):
        count = f" {k}" if len(where) > 1 else ""
        span = f"{min(dates)} to {max(dates)}" if len(dates) > 1 else dates[0]
        label = f"Environment{count} of {len(dates)} trials, {span}"
        found.append(Details(label, [Code(text, label)]))
    for report in runs.reports:
        found.append(Details.of(f"How {report.name} was measured", report.settings))
    for landscape in runs.landscapes:
        found.append(Details.of(f"How the landscape of {landscape.name} was made", landscape.about))
    return found


def _data(runs: Runs) -> dict[str, Any]:
    return {
        "trials": [
            {
                "key": trial.key,
                "config": trial.config,
                "result": trial.result,
                "timings": trial.timings,
                "environment": trial.environment,
                "metrics": trial.rows,
            }
            for trial in runs.trials
        ],
        "reports": [report.to_dict() for report in runs.reports],
        "landscapes": [landscape_data(one) for one in runs.landscapes],
    }
