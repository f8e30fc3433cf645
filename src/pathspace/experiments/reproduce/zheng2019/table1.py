"""Table 1: the size of MovieLens-1M."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pathspace.experiments import data
from pathspace.experiments.executors import compute
from pathspace.experiments.reproduce.experiment import Experiment, Plan, Preset
from pathspace.experiments.reproduce.findings import Claim, Findings
from pathspace.experiments.training import Outcome

# As printed.
TABLE1 = {"interactions": 1_000_209, "items": 3_706, "users": 6_040, "sparsity (%)": 95.53}


@dataclass(frozen=True)
class Settings:
    """There is nothing to choose."""


def interaction_statistics(
    outcomes: Sequence[Outcome], data_dir: str | Path | None
) -> dict[str, Any]:
    """Count the interactions, items and users of MovieLens-1M."""
    pairs = data.load_movielens(data_dir)
    found = pairs.statistics
    return {
        "interactions": found.interactions,
        "items": found.items,
        "users": found.users,
        "sparsity (%)": 100 * found.sparsity,
        "candidates": list(pairs.candidates.shape),
        "notes": list(pairs.notes),
    }


def plan(settings: Settings) -> Plan[Findings]:
    """Count, and compare with what is printed."""
    (counted,) = yield [compute(interaction_statistics)]
    claims = tuple(
        Claim(what, float(printed), round(float(counted[what]), 2), digits=7)
        for what, printed in TABLE1.items()
    )
    other = [claim.what for claim in claims if claim.difference]
    users, candidates = counted["candidates"]
    said = (
        f"Not equal to what the paper prints: {', '.join(other)}."
        if other
        else "All four numbers are those that the paper prints."
    )
    return Findings(
        claims=claims,
        statements=(
            said,
            f"The test ranks {candidates} items for each of {users:,} users, one of which was left "
            "out of the training data.",
            *(f"{note[:1].upper()}{note[1:]}." for note in counted["notes"]),
        ),
        deviations=(
            "None: the ratings are counted, training and test together. The sparsity is rounded as "
            "the paper rounds it.",
        ),
    )


EXPERIMENT = Experiment(
    name="zheng2019 table1",
    title="The size of MovieLens-1M",
    where="Table 1; section “Recommendation system”",
    shows=(
        "MovieLens-1M has 1,000,209 interactions of 6,040 users with 3,706 items: 95.53 % of all "
        "pairs of a user and an item are not among them."
    ),
    plan=plan,
    quick=Preset(Settings(), jobs=1, time="2 seconds"),
    paper=Preset(Settings(), jobs=1, time="2 seconds"),
)
