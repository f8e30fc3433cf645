"""Sentences that stand on several pages."""

from __future__ import annotations

from collections.abc import Sequence

SPREAD = "Mean ± standard deviation over seeds at the end of training"
PAIRED = (
    "Paired differences of test errors in percentage points over seeds, with 95 % confidence "
    "intervals; below 0 the first is better."
)
BAND = "mean over seeds, in a band of one standard deviation."
BANDS = "Means over seeds, in bands of one standard deviation"
IN_TABLES = "the numbers are in the tables."


def grid_ends(places: Sequence[str], what: str = "best rate", separator: str = ", ") -> list[str]:
    """Where a grid may have been too small, in a sentence; none if nowhere.

    Args:
        places: those whose choice is an end of the grid.
        what: was chosen.
        separator: of the places.

    Example:
        >>> grid_ends(["SGD", "G-SGD"])
        ['The best rate is at an end of the grid, so that a better one may exist, for SGD, G-SGD.']
    """
    if not places:
        return []
    return [
        f"The {what} is at an end of the grid, so that a better one may exist, for "
        f"{separator.join(places)}."
    ]


def listed(numbers: Sequence[float]) -> str:
    """Numbers with commas between them.

    Example:
        >>> listed((0.1, 1.0, 1e-5))
        '0.1, 1, 1e-05'
    """
    return ", ".join(f"{number:g}" for number in numbers)
