"""A reproduction as files: pictures, a table of all trials, a Markdown page, and the claims."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pathspace.durable.errors import StoreError, explained
from pathspace.durable.files import write_file
from pathspace.experiments.reproduce.markdown import index_text, page_text
from pathspace.experiments.reproduce.running import Reproduction
from pathspace.experiments.training import Outcome
from pathspace.page.downloads import csv_text, json_text
from pathspace.summary.groups import flatten

PAGE, TRIALS, SUMMARY = "README.md", "trials.csv", "summary.json"


def write_reproduction(reproduction: Reproduction, out: Path) -> Path:
    """Write everything about a reproduction but the web page; the folder.

    ::

        <out>/<experiment>/README.md      what the paper shows, what we see, how it was run
        <out>/<experiment>/<figure>.png   and .svg
        <out>/<experiment>/trials.csv     all trials: settings, last metrics, seconds
        <out>/<experiment>/summary.json   claims in full precision

    Preset ``paper`` has a folder of its own, ``<experiment>-paper``.

    Raises:
        StoreError: a file cannot be written.
        ImportError: matplotlib is not installed.
    """
    preset = "" if reproduction.preset == "quick" else f"-{reproduction.preset}"
    folder = out / f"{reproduction.experiment.slug}{preset}"
    files: dict[str, bytes] = {}
    for figure in reproduction.findings.figures:
        for kind in ("png", "svg"):
            files[f"{figure.name}.{kind}"] = figure.render(kind)
    if reproduction.outcomes:
        files[TRIALS] = csv_text([trial_record(one) for one in reproduction.outcomes]).encode()
    files[PAGE] = page_text(reproduction).encode()
    files[SUMMARY] = f"{json_text(summary(reproduction), 2)}\n".encode()
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_file(folder / name, content)
    return folder


def write_index(out: Path) -> Path:
    """Write a list of all reproductions below a folder, whenever they were written.

    Raises:
        StoreError: a file cannot be written, or a summary cannot be read.
    """
    file = out / PAGE
    found = {}
    for path in out.glob(f"*/{SUMMARY}"):
        try:
            found[path.parent.name] = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise StoreError(
                f"{path} is damaged ({error}); remove it, and reproduce the experiment again: "
                "nothing is computed twice"
            ) from None
    write_file(file, index_text(found).encode())
    return file


def summary(reproduction: Reproduction) -> dict[str, Any]:
    """What was found, as data."""
    experiment, findings = reproduction.experiment, reproduction.findings
    return {
        "experiment": experiment.name,
        "title": experiment.title,
        "paper": str(experiment.source),
        "where": experiment.where,
        "preset": reproduction.preset,
        "trials": len(reproduction.outcomes),
        "jobs": len(reproduction.answers),
        "seconds": reproduction.seconds,
        "shows": experiment.shows,
        "statements": list(findings.statements),
        "claims": [claim.record() for claim in findings.claims],
        "deviations": list(findings.deviations),
    }


def trial_record(outcome: Outcome) -> dict[str, Any]:
    """One line of the table of trials."""
    # Settings and metrics share names, such as `loss`.
    return {
        "key": outcome.trial.key[:16],
        **flatten(outcome.trial.to_dict()),
        "status": outcome.status,
        **{f"final_{name}": value for name, value in outcome.final.items()},
        **{f"best_{name}": value for name, value in (outcome.best or {}).items()},
        "seconds": round(outcome.seconds, 3),
    }
