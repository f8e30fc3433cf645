"""What the demonstration trains: all its choices in one frozen value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pathspace.experiments.training import Trial

Start = Literal["balanced", "unbalanced", "rounded"]

STARTS: tuple[Start, ...] = ("balanced", "unbalanced")
CONTROL: Start = "rounded"  # balanced, changed by nothing but rounding
OPTIMIZERS = {"sgd": "SGD", "adagrad": "AdaGrad", "pathsgd": "Path-SGD", "gsgd": "G-SGD"}
INVARIANT = ("pathsgd", "gsgd")  # those that should not notice a rescaling


@dataclass(frozen=True)
class Settings:
    """Everything that determines the demonstration.

    All optimizers have the same grid of rates and the same budget. Double precision, because there
    "the same function" can be told from "nearly the same" by ten digits.

    Attributes:
        model: what is trained.
        data: what it is trained on; digits come with scikit-learn, so that no network is needed.
        picks: hidden units that are drawn and rescaled to unbalance the network. Neyshabur et al.
            draw a quarter as many as there are units; so do we.
        rates: the grid of learning rates.
        common: one of them, the same for all optimizers, not chosen by any result.
        seeds: of initial weights, rescaling and order of the data.
        epochs: length of each training.
        batch: examples per step.
        validation: training examples set aside to choose rates by.
        grid: points per axis of the landscapes.

    Example:
        >>> QUICK.count, FULL.count
        (16, 120)
        >>> QUICK.trial("gsgd", "unbalanced", 0.1, 0).init
        'unbalanced:16'
    """

    model: str = "mlp:64-32-32-10"
    data: str = "digits"
    picks: int = 16
    rates: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 1.0)
    common: float = 0.1
    seeds: tuple[int, ...] = (0, 1, 2)
    epochs: int = 20
    batch: int = 64
    validation: int = 300
    grid: int = 25

    def __post_init__(self) -> None:
        if self.common not in self.rates:
            raise ValueError(f"the common rate {self.common} should be one of {self.rates}")

    @property
    def count(self) -> int:
        """How many trainings there are."""
        return len(list(self.cases()))

    def cases(self) -> Iterator[tuple[str, Start, float, int]]:
        """Optimizer, start, rate and seed of every training."""
        for optimizer in OPTIMIZERS:
            for start in STARTS:
                for rate in self.rates:
                    for seed in self.seeds:
                        yield optimizer, start, rate, seed

    def trial(self, optimizer: str, start: Start, rate: float, seed: int) -> Trial:
        """One training. The start changes the initial weights, but not the initial function.

        The control is unbalanced too, with factors that differ from 1 by a few roundings.
        """
        inits = {
            "balanced": "balanced",
            "unbalanced": f"unbalanced:{self.picks}",
            "rounded": f"unbalanced:{self.picks}:factor=1.0:spread=1e-15",
        }
        return Trial(
            self.model,
            self.data,
            preprocess=("unit_interval", "flatten", f"validation_split:{self.validation}"),
            init=inits[start],
            optimizer=optimizer,
            lr=rate,
            batch=self.batch,
            epochs=self.epochs,
            seed=seed,
            dtype="float64",
        )


FULL = Settings()
QUICK = Settings(rates=(0.1, 0.3), seeds=(0,), epochs=1, grid=5)
