"""What settings of several experiments share: parts of the images, and the grid of step sizes."""

from __future__ import annotations

from collections.abc import Sequence

from pathspace.experiments.reproduce.words import listed

# The step sizes of Neyshabur et al. 2017, section 6, and of Meng et al. 2019, section 11.7.
POWERS_OF_TEN = tuple(10.0**-alpha for alpha in range(11))


def subset_step(train: int | None, test: int | None) -> tuple[str, ...]:
    """The step that keeps so many images; none if all are kept.

    Args:
        train: training images, with those for validation; None for all.
        test: test images; None for all.

    Example:
        >>> subset_step(7000, 5000), subset_step(None, None)
        (('subset:train=7000:test=5000',), ())
    """
    sizes = {"train": train, "test": test}
    kept = "".join(f":{name}={count}" for name, count in sizes.items() if count is not None)
    return (f"subset{kept}",) if kept else ()


def step_sizes_deviation(rates: Sequence[float]) -> list[str]:
    """That a grid is not :data:`POWERS_OF_TEN`, in a sentence; none if it is.

    Example:
        >>> step_sizes_deviation((1.0, 0.1))
        ["Step sizes 1, 0.1; the paper's are 10^0, 10^-1, …, 10^-10."]
    """
    if len(rates) >= len(POWERS_OF_TEN):
        return []
    return [f"Step sizes {listed(rates)}; the paper's are 10^0, 10^-1, …, 10^-10."]
