"""What the shell offers after TAB: names that are known without loading models or data."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

Offers = list[tuple[str, str]]  # names, and what a shell that can show it says about each


def models(incomplete: str) -> Offers:
    """Built-in models."""
    from pathspace.experiments.models import catalogue

    return _offers(((entry.name, entry.description) for entry in catalogue()), incomplete)


def data_sets(incomplete: str) -> Offers:
    """Data sets that are known, here or not."""
    from pathspace.experiments import data

    known = {data.EMBEDDED: "handwritten digits, 8×8"}
    known |= {name: source.title for name, source in data.SOURCES.items()}
    return _offers(known.items(), incomplete)


def optimizers(incomplete: str) -> Offers:
    """Optimizers of a trial."""
    from pathspace.experiments.training import OPTIMIZERS

    return _offers(((name, entry.description) for name, entry in OPTIMIZERS.items()), incomplete)


def losses(incomplete: str) -> Offers:
    """Losses of a trial."""
    from pathspace.experiments.training import LOSSES

    return _offers(((name, entry.description) for name, entry in LOSSES.items()), incomplete)


def initialisations(incomplete: str) -> Offers:
    """Initialisations of a trial."""
    from pathspace.experiments.training import INITIALISATIONS

    return _documented(INITIALISATIONS, incomplete)


def schedules(incomplete: str) -> Offers:
    """Schedules of the learning rate."""
    from pathspace.experiments.training import SCHEDULES

    return _documented(SCHEDULES, incomplete)


def stopping_rules(incomplete: str) -> Offers:
    """Rules to stop a trial earlier."""
    from pathspace.experiments.training import RULES

    return _documented(RULES, incomplete)


def penalties(incomplete: str) -> Offers:
    """Penalties of a trial."""
    from pathspace.experiments.training import PENALTIES

    return _documented(PENALTIES, incomplete)


def experiments(ctx: Any, incomplete: str) -> Offers:
    """Papers, and behind a paper its experiments."""
    from pathspace.experiments.reproduce import PAPERS, find_experiments

    before = ctx.params.get("what") or []
    if not before:
        papers = {name: str(paper) for name, paper in PAPERS.items()}
        more = {"list": "what there is", "all": "everything"}
        return _offers((papers | more).items(), incomplete)
    named = ((*one.name.partition(" "), one.title) for one in find_experiments())
    of_paper = ((name, title) for paper, _, name, title in named if [paper] == before)
    return _offers(of_paper, incomplete)


def presets(incomplete: str) -> Offers:
    """Sizes of a reproduction."""
    known = {"quick": "minutes on two cores", "paper": "the published setting"}
    return _offers(known.items(), incomplete)


def benchmarks(incomplete: str) -> Offers:
    """Benchmarks, where there is a clone of the repository."""
    from pathspace.bench.repository import BenchmarkError, find_repository, listings

    known = {"scaling": "how cost grows with weights and layers"}
    with contextlib.suppress(BenchmarkError):
        known |= {name: one.title for name, one in listings(find_repository()).items()}
    return _offers(known.items(), incomplete)


def citations(incomplete: str) -> Offers:
    """What can be cited."""
    from pathspace.citing import WORKS

    return _offers(((key, work.title) for key, work in WORKS.items()), incomplete)


def _documented(builders: dict[str, Any], incomplete: str) -> Offers:
    return _offers(((name, doc_line(builder)) for name, builder in builders.items()), incomplete)


def doc_line(thing: Any) -> str:
    """The first line of a docstring, without marks of code."""
    return (thing.__doc__ or "").partition("\n")[0].replace("``", "")


def _offers(known: Iterable[tuple[str, str]], incomplete: str) -> Offers:
    return [(name, text) for name, text in known if name.startswith(incomplete)]
