"""Recommendation by regularized networks: who is ranked where, and which λ is taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pathspace.experiments.reproduce.statistics import Difference, Sample, paired_difference
from pathspace.experiments.training import Outcome, Ranking, Trial, prepare_step, prepare_task
from pathspace.experiments.training.ranking import TOP, item_ranks, top_scores

NONE, DECAY, PATH, BP = ARMS = (
    "no regularizer",
    "weight decay",
    "path-norm penalty",
    "basis-path penalty",
)
METRICS = {"hr": "HR", "ndcg": "NDCG"}
CHOICE = "hr@10"  # what λ is chosen by
FOLDS = 2
USERS = 512  # ranked at a time

Case = tuple[int, str, float]  # factors, arm, λ


def user_ranks(outcomes: Sequence[Outcome], data_dir: str | Path | None) -> dict[str, Any]:
    """The rank of every user's test item among the candidates, from 0.

    Args:
        outcomes: of one trial.
        data_dir: the data folder.

    Returns:
        ``ranks``: int64 (U,).
    """
    (outcome,) = outcomes
    task = prepare_task(outcome.trial, data_dir)
    assert isinstance(task, Ranking)
    model = prepare_step(outcome.trial, task).model
    model.load_state_dict(dict(outcome.weights))
    candidates = task.pairs.candidates  # (U, C)
    found = []
    with torch.no_grad():
        for who in torch.arange(len(candidates)).split(USERS):
            items = candidates[who]
            scores = model.eval()(who.repeat_interleave(items.shape[1]), items.flatten())
            found.append(item_ranks(scores.view(items.shape), items))
    return {"ranks": torch.cat(found)}


def regularized(base: Trial, arm: str, lam: float) -> Trial:
    """A trial with the regularizer of an arm.

    Example:
        >>> base = Trial("ncf:8", "ml-1m", optimizer="adam")
        >>> regularized(base, "basis-path penalty", 1e-6).penalties
        ('basis-path:1e-06',)
    """
    if arm == DECAY:
        return replace(base, weight_decay=lam)
    if arm == NONE:
        return base
    return replace(base, penalties=(f"{'path-norm' if arm == PATH else 'basis-path'}:{lam:g}",))


def folds(users: int) -> tuple[Tensor, ...]:
    """The users of each fold: every other one.

    Example:
        >>> folds(5)
        (tensor([ True, False,  True, False,  True]), tensor([False,  True, False,  True, False]))
    """
    number = torch.arange(users) % FOLDS
    return tuple(number == fold for fold in range(FOLDS))


def best_lambdas(tried: Mapping[float, Sequence[Tensor]]) -> tuple[float, ...]:
    """For each fold the λ with the largest mean HR@10 over its users; of equals the first.

    Args:
        tried: the ranks of all users by λ, one tensor per seed.
    """
    users = len(next(iter(tried.values()))[0])

    def mean(lam: float, fold: Tensor) -> float:
        return sum(top_scores(ranks[fold])[CHOICE] for ranks in tried[lam]) / len(tried[lam])

    def best(fold: Tensor) -> float:
        return max(tried, key=lambda lam: mean(lam, fold))

    return tuple(map(best, folds(users)))


def crossed(ranks: Sequence[Tensor]) -> Tensor:
    """The ranks of all users, each by the λ that the *other* fold chose.

    So no user has a say in the λ by which it is counted. Fold k is counted by the next fold's λ.

    Args:
        ranks: of all users, one tensor per fold that chose the λ.

    Example:
        >>> crossed([torch.tensor([0, 0, 0]), torch.tensor([9, 9, 9])])
        tensor([9, 0, 9])
    """
    parts = folds(len(ranks[0]))
    result = ranks[0].clone()
    for k, fold in enumerate(parts):
        result[fold] = ranks[(k + 1) % FOLDS][fold]
    return result


@dataclass(frozen=True, eq=False)
class Recommendations:
    """What all arms came to.

    Attributes:
        factors: in their order.
        seeds: in the order of all lists.
        chosen: λ of each fold, by factors and arm.
        ranks: of all users by the λ of the other fold, by factors and arm, one tensor per seed.
        tried: HR@10 over all users while λ was chosen, by factors, arm and λ, one per seed.
        outcomes: of the final trainings with the first fold's λ.
    """

    factors: tuple[int, ...]
    seeds: tuple[int, ...]
    chosen: Mapping[tuple[int, str], tuple[float, ...]]
    ranks: Mapping[tuple[int, str], list[Tensor]]
    tried: Mapping[Case, Sample]
    outcomes: Mapping[tuple[int, str], list[Outcome]]

    def score(self, factors: int, arm: str, metric: str, top: int) -> Sample:
        """HR@K or NDCG@K, mean over users, one per seed."""
        found = (top_scores(ranks)[f"{metric}@{top}"] for ranks in self.ranks[factors, arm])
        return Sample(tuple(found))

    def gain(self, factors: int, other: str, metric: str, top: int = TOP[-1]) -> Difference:
        """What the basis-path penalty gains on another arm, paired by seed."""
        return paired_difference(
            self.score(factors, BP, metric, top), self.score(factors, other, metric, top)
        )
