"""The task of ranking items for users: hit ratio and discounted cumulative gain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Generator, Tensor, nn

from pathspace.experiments.data import Interactions
from pathspace.experiments.training.distributed import ALONE, Ranks
from pathspace.experiments.training.errors import TrialError
from pathspace.experiments.training.losses import Kind, Loss
from pathspace.experiments.training.task import CHUNK, Batch, Check, asked, batches_per_epoch

TOP = range(1, 11)  # the lengths of the lists of recommendations (000, Fig. 3)


class Ranking:
    """Pairs of users and items: hit ratio and discounted gain of the item left out.

    Args:
        pairs: on the device of the model.
        batch: examples per batch, positives and negatives together.
        negatives: drawn per positive example, afresh in each epoch.
        drop_last: leave out a last batch that is not full.
    """

    kind: Kind = "ranking"

    def __init__(
        self, pairs: Interactions, batch: int, *, negatives: int = 4, drop_last: bool = False
    ) -> None:
        self.pairs, self.batch, self.negatives = pairs, batch, negatives
        self.drop_last, self.notes = drop_last, pairs.notes
        self.columns = tuple(f"test_{what}@{k}" for k in TOP for what in ("hr", "ndcg"))
        self.per_epoch = batches_per_epoch(len(pairs) * (1 + negatives), batch, drop_last)

    def example(self) -> tuple[Tensor, ...]:
        """The first pair."""
        return self.pairs.users[:1], self.pairs.items[:1]

    def model_options(self, builder: Callable[..., Any]) -> dict[str, Any]:
        """How many users and items there are, where the builder asks for it."""
        sizes = {"users": len(self.pairs.user_ids), "items": len(self.pairs.item_ids)}
        return asked(builder, sizes)

    def check_outputs(self, outputs: Tensor, model: str) -> None:
        """One logit."""
        if outputs.numel() != 1:
            raise TrialError(
                f"{model} gives outputs of shape {tuple(outputs.shape[1:])}; to rank, it should "
                "give one logit per pair of a user and an item"
            )

    def batches(self, generator: Generator) -> Iterator[Batch]:
        """One epoch in random order, with fresh negatives."""
        return self.pairs.batches(
            self.batch,
            generator=generator,
            num_negatives=self.negatives,
            drop_last=self.drop_last,
        )

    @torch.no_grad()
    def evaluate(
        self, model: nn.Module, loss: Loss, check: Check, ranks: Ranks = ALONE
    ) -> dict[str, float]:
        """HR@K and NDCG@K for all K up to 10, mean over users."""
        candidates = self.pairs.candidates  # (U, 1 + negatives), the test item in front
        users = torch.arange(len(candidates), device=candidates.device)
        found = torch.zeros_like(users)
        for chunk in users.split(CHUNK):
            check()
            who = chunk[ranks.part(len(chunk))]
            if not len(who):
                continue
            items = candidates[who]
            scores = model(who.repeat_interleave(items.shape[1]), items.flatten())
            found[who] = item_ranks(scores.view(items.shape), items)
        found = ranks.sum(found)  # zero where another rank, of the other kind, has the number
        return {f"test_{name}": value for name, value in top_scores(found).items()}


def item_ranks(scores: Tensor, items: Tensor) -> Tensor:
    """The rank of the first item of each row, from 0, by its score.

    Equal scores count against it, so that a model that says the same of all items hits nothing.
    The item itself may be in the row a second time, as in the published test of MovieLens; that
    entry does not count.

    Args:
        scores: (U, C), the item in question in front.
        items: (U, C), which items they are of.

    Returns:
        (U,), int64.

    Example:
        >>> scores = torch.tensor([[0.5, 0.9, 0.1, 0.5], [0.5, 0.9, 0.1, 0.5]])
        >>> item_ranks(scores, torch.tensor([[7, 1, 2, 3], [7, 1, 2, 7]]))
        tensor([2, 1])
    """
    ahead = (scores[:, 1:] >= scores[:, :1]) & (items[:, 1:] != items[:, :1])
    # NaN is no score: it is behind everything, and so is what it is compared with.
    return (ahead | scores[:, :1].isnan()).sum(1)


def top_scores(ranks: Tensor) -> dict[str, float]:
    r"""HR@K and NDCG@K, mean over users.

    With one relevant item of rank r (from 0), HR@K is 1 and NDCG@K is
    :math:`\ln 2/\ln(r + 2)` if r < K, else both are 0.

    Example:
        >>> found = top_scores(torch.tensor([0, 2, 50]))
        >>> round(found["hr@10"], 3), round(found["ndcg@10"], 3), round(found["hr@1"], 3)
        (0.667, 0.5, 0.333)

    Reference: He et al., WWW 2017, section 4.1.
    """
    counts = ranks.bincount(minlength=TOP[-1])[: TOP[-1]].cpu().double()
    places = counts.new_tensor(TOP) + 1  # r + 2
    gains = counts * counts.new_tensor(2.0).log() / places.log()
    hits, gain = (part.cumsum(0) / len(ranks) for part in (counts, gains))
    found: dict[str, float] = {}
    for k in TOP:
        found |= {f"hr@{k}": float(hits[k - 1]), f"ndcg@{k}": float(gain[k - 1])}
    return found
