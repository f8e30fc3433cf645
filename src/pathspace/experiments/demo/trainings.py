"""All trainings of the demonstration, and what they say when put side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

import torch
from torch import Tensor, nn

from pathspace.experiments.data import Dataset
from pathspace.experiments.demo.settings import CONTROL, INVARIANT, Settings, Start
from pathspace.experiments.training import (
    Classification,
    Outcome,
    prepare_step,
    prepare_task,
    train,
)
from pathspace.progress import Step

Case = tuple[str, Start, float, int]

ROUNDING = 1e-9  # relative differences above this ask for a control


@dataclass(frozen=True)
class Errors:
    """One error per seed, as shares; infinite where a training diverged."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean; infinite if any training diverged."""
        return fmean(self.values)

    @property
    def deviation(self) -> float:
        """The standard deviation over seeds; NaN for one seed or after a divergence."""
        finite = len(self.values) > 1 and math.isfinite(self.mean)
        return stdev(self.values) if finite else math.nan

    def __str__(self) -> str:
        """As percentages.

        Example:
            >>> print(Errors((0.03, 0.05)), Errors((0.03,)), Errors((0.03, math.inf)), sep=", ")
            4.0 ± 1.4 %, 3.0 %, diverged
        """
        if not math.isfinite(self.mean):
            return "diverged"
        spread = "" if math.isnan(self.deviation) else f" ± {100 * self.deviation:.1f}"
        return f"{100 * self.mean:.1f}{spread} %"


@dataclass(frozen=True)
class Difference:
    r"""How far apart two networks are on the test images, the largest over seeds.

    Attributes:
        absolute: :math:`\max |f(x) - g(x)|` over images and scores.
        relative: the same divided by :math:`\max |f(x)|`.
        predictions: share of images that the two classify differently.
    """

    absolute: float
    relative: float
    predictions: float


@dataclass(frozen=True, eq=False)
class Trainings:
    """All trainings of the demonstration.

    Attributes:
        settings: what was trained.
        outcomes: by optimizer, start, rate and seed; controls only where they were asked for.
        dataset: what all of them were trained on.
    """

    settings: Settings
    outcomes: Mapping[Case, Outcome]
    dataset: Dataset = field(repr=False)

    def of(self, optimizer: str, start: Start, rate: float) -> list[Outcome]:
        """The outcomes of all seeds."""
        return [self.outcomes[optimizer, start, rate, seed] for seed in self.settings.seeds]

    def errors(self, optimizer: str, start: Start, rate: float, split: str = "test") -> Errors:
        """The errors after the last epoch, one per seed."""
        finals = [
            outcome.final.get(f"{split}_error") for outcome in self.of(optimizer, start, rate)
        ]
        return Errors(tuple(math.inf if error is None else error for error in finals))

    def best_rate(self, optimizer: str, start: Start) -> float:
        """The rate with the least mean validation error; test images have no say in it."""
        return min(
            self.settings.rates,
            key=lambda rate: self.errors(optimizer, start, rate, "validation").mean,
        )

    def difference(self, optimizer: str, rate: float, start: Start = "unbalanced") -> Difference:
        """What the start changes about the trained function: both trained at the same rate."""
        pairs = zip(
            self.of(optimizer, "balanced", rate), self.of(optimizer, start, rate), strict=True
        )
        return _farthest(
            [(self.outputs(one.weights), self.outputs(other.weights)) for one, other in pairs]
        )

    @property
    def controls(self) -> list[tuple[str, float]]:
        """Optimizers and rates for which there is a control."""
        cases = ((name, rate) for name, start, rate, _ in self.outcomes if start == CONTROL)
        return list(dict.fromkeys(cases))

    def initial_difference(self) -> Difference:
        """The same before training: nothing but rounding."""
        return _farthest(
            [
                (
                    self.outputs(self.initial_weights("balanced", seed)),
                    self.outputs(self.initial_weights("unbalanced", seed)),
                )
                for seed in self.settings.seeds
            ]
        )

    def initial_weights(self, start: Start, seed: int) -> Mapping[str, Tensor]:
        """The weights that all optimizers begin with."""
        return self._model(start, seed).state_dict()

    def model(self, weights: Mapping[str, Tensor]) -> nn.Module:
        """A model with these weights, in eval mode."""
        model = self._model("balanced", self.settings.seeds[0])
        model.load_state_dict(weights)
        return model.eval()

    @torch.no_grad()
    def outputs(self, weights: Mapping[str, Tensor]) -> Tensor:
        """The scores of the test images."""
        scores: Tensor = self.model(weights)(self.dataset.test.inputs)
        return scores

    def _model(self, start: Start, seed: int) -> nn.Module:
        trial = self.settings.trial("sgd", start, self.settings.common, seed)
        return prepare_step(trial, prepare_task(trial)).model


def train_all(settings: Settings, step: Step = lambda _: None) -> Trainings:
    """Train every case; ``step`` is told what comes next.

    Where an invariant optimizer came to another function from unbalanced weights, rounding must
    have been amplified, or the optimizer is not invariant. A control tells which: the same training
    from weights that rounding alone changed.

    Example:
        >>> from dataclasses import replace
        >>> from pathspace.experiments.demo import QUICK
        >>> trainings = train_all(replace(QUICK, rates=(0.1,)))
        >>> trainings.difference("gsgd", 0.1).relative < 1e-9
        True
        >>> trainings.difference("sgd", 0.1).relative > 1e-2
        True
    """
    outcomes: dict[Case, Outcome] = {}
    for case in settings.cases():
        trial = settings.trial(*case)
        step(trial.title)
        outcomes[case] = train(trial)
    task = prepare_task(trial)
    assert isinstance(task, Classification)  # digits are classified
    trainings = Trainings(settings, outcomes, task.dataset)
    step("control")
    for optimizer in INVARIANT:
        for rate in settings.rates:
            if trainings.difference(optimizer, rate).relative > ROUNDING:
                for seed in settings.seeds:
                    control = optimizer, CONTROL, rate, seed
                    outcomes[control] = train(settings.trial(*control))
    return trainings


def _farthest(pairs: Sequence[tuple[Tensor, Tensor]]) -> Difference:
    absolute = [float((one - other).abs().max()) for one, other in pairs]
    sizes = [float(one.abs().max()) for one, _ in pairs]
    changed = [float((one.argmax(1) != other.argmax(1)).double().mean()) for one, other in pairs]
    relative = [gap / size if size else math.nan for gap, size in zip(absolute, sizes, strict=True)]
    return Difference(_largest(absolute), _largest(relative), _largest(changed))


def _largest(values: Sequence[float]) -> float:
    """The maximum; NaN if one is, because a training that diverged is not to be hidden."""
    return math.nan if any(map(math.isnan, values)) else max(values)
