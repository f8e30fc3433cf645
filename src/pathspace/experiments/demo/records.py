"""The numbers behind the page of the demonstration, to save."""

from __future__ import annotations

import dataclasses
from typing import Any

from pathspace.experiments.demo.inspecting import Look
from pathspace.experiments.demo.running import Demo
from pathspace.experiments.demo.settings import OPTIMIZERS, Settings
from pathspace.experiments.demo.trainings import Trainings
from pathspace.plot.pages import landscape_data


def demo_data(demo: Demo) -> dict[str, Any]:
    """Everything as data for JSON."""
    settings: Settings = demo.trainings.settings
    return {
        "settings": dataclasses.asdict(settings),
        "environment": dict(demo.environment),
        "trainings": [outcome.to_dict() for outcome in demo.trainings.outcomes.values()],
        "networks": [look_record(look) for look in demo.looks],
        "landscapes": [landscape_data(one) for pair in demo.landscapes.values() for one in pair],
    }


def training_records(trainings: Trainings) -> tuple[dict[str, Any], ...]:
    """One row per training."""
    rows = []
    for (optimizer, start, rate, seed), outcome in trainings.outcomes.items():
        named = {"optimizer": OPTIMIZERS[optimizer], "start": start, "rate": rate, "seed": seed}
        metrics = {key: value for key, value in outcome.final.items() if "_" in key}
        rows.append({**named, "status": outcome.status, **metrics, "seconds": outcome.seconds})
    return tuple(rows)


def look_record(look: Look) -> dict[str, Any]:
    """What was measured about one network, in one row."""
    traces: dict[str, Any] = {}
    for space, found in look.flatness.items():
        traces |= {f"trace ({space})": found.value, f"error ({space})": found.standard_error}
    return {"network": look.name, "start": look.start, **look.measures, **traces}
