"""Implicit feedback: which users met which items, tested by leaving out one item of each user.

The protocol is that of neural collaborative filtering (He et al., WWW 2017), which 000 follows in
its recommendation experiments. In training each pair is a positive example and comes with a few
items drawn from those that are not in the user's training data; in the test the item left out is to
be ranked among 99 others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from pathspace.experiments.data.errors import DataError


class Statistics(NamedTuple):
    """The size of a table of interactions; sparsity is the share of pairs that are not in it."""

    interactions: int
    items: int
    users: int
    sparsity: float


@dataclass(frozen=True, eq=False, repr=False)
class Interactions:
    """Pairs of users and items, by ids from 0 without gaps.

    Attributes:
        users: of the training pairs, int64 (N,).
        items: of the training pairs, int64 (N,).
        test_items: the item left out of each user, int64 (U,).
        test_negatives: items to rank it among, int64 (U, 99).
        user_ids: the ids in the file, by our ids, int64 (U,).
        item_ids: the ids in the file, by our ids, int64 (I,).
        name: of the data set.
        notes: what a reader of results must know.

    Example:
        >>> pairs = Interactions(
        ...     users=torch.tensor([0, 0, 1]),
        ...     items=torch.tensor([0, 2, 1]),
        ...     test_items=torch.tensor([1, 2]),
        ...     test_negatives=torch.tensor([[3], [3]]),
        ...     user_ids=torch.tensor([1, 2]),
        ...     item_ids=torch.tensor([10, 20, 30, 40]),
        ... )
        >>> pairs.statistics
        Statistics(interactions=5, items=4, users=2, sparsity=0.375)
        >>> pairs.candidates
        tensor([[1, 3],
                [2, 3]])
    """

    users: Tensor
    items: Tensor
    test_items: Tensor
    test_negatives: Tensor
    user_ids: Tensor
    item_ids: Tensor
    name: str = "interactions"
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.users)

    def __repr__(self) -> str:
        sizes = self.statistics
        return (
            f"Interactions({self.name}: {sizes.interactions:,} of {sizes.users:,} users and "
            f"{sizes.items:,} items, sparsity {sizes.sparsity:.2%})"
        )

    @property
    def statistics(self) -> Statistics:
        """Training and test together (000, Table 1)."""
        count = len(self.users) + len(self.test_items)
        users, items = len(self.user_ids), len(self.item_ids)
        return Statistics(count, items, users, 1 - count / (users * items))

    @property
    def candidates(self) -> Tensor:
        """What to rank for each user, the test item in front, int64 (U, 100)."""
        return torch.cat([self.test_items[:, None], self.test_negatives], dim=1)

    def negatives(self, users: Tensor, generator: Generator) -> Tensor:
        """For each entry of ``users`` an item that is not in the training data of that user.

        Uniform over those items, the test item among them (as in the protocol: to leave it out
        would tell the model about it). No draw is rejected: r is uniform below the number of unseen
        items, and the r-th unseen item is r plus the number of seen items before it. With the seen
        items s_0 < s_1 < ... of the user these are the k with s_k - k <= r, found by bisection;
        O(log N) each.

        Args:
            users: ids, of any shape.
            generator: source of the draws.

        Returns:
            Item ids of the same shape.
        """
        keys, first, seen = self._gaps
        unseen = len(self.item_ids) - seen[users]
        if users.numel() and not unseen.all():
            raise DataError(f"{self.name}: a user has seen every item, so there is no negative")
        # From 2^62 numbers: the remainder favours no item by more than a part in 10^14.
        drawn = torch.randint(2**62, users.shape, generator=generator, device=generator.device)
        ranks = drawn.to(users.device) % unseen
        stride = len(self.item_ids) + 1
        position = torch.searchsorted(keys, users * stride + ranks, right=True)
        return ranks + position - first[users]

    def epoch(self, generator: Generator, num_negatives: int = 4) -> tuple[Tensor, Tensor, Tensor]:
        """The training examples of one epoch, with fresh negatives, not yet shuffled.

        Returns:
            Users, items and labels, each ((1 + num_negatives) N,): first all positives with label
            1, then the negatives with label 0 (float32, for binary cross-entropy).
        """
        if num_negatives < 0:
            raise DataError(f"num_negatives is {num_negatives}, but cannot be below 0")
        against = self.users.repeat(num_negatives)
        users = torch.cat([self.users, against])
        items = torch.cat([self.items, self.negatives(against, generator)])
        labels = torch.zeros(len(users), device=users.device)
        labels[: len(self)] = 1
        return users, items, labels

    def batches(
        self,
        batch_size: int,
        *,
        generator: Generator,
        num_negatives: int = 4,
        drop_last: bool = False,
    ) -> Iterator[tuple[tuple[Tensor, Tensor], Tensor]]:
        """One epoch in random order: ((users, items), labels) per batch."""
        if batch_size < 1:
            raise DataError(f"a batch has at least one example, not {batch_size}")
        columns = self.epoch(generator, num_negatives)
        count = len(columns[0])
        order = torch.randperm(count, generator=generator, device=generator.device)
        order = order.to(self.users.device)
        # One gather per epoch, then views: the whole epoch is some 100 MB.
        users, items, labels = (column.index_select(0, order) for column in columns)
        end = count - count % batch_size if drop_last else count
        for start in range(0, end, batch_size):
            part = slice(start, start + batch_size)
            yield (users[part], items[part]), labels[part]

    @cached_property
    def _gaps(self) -> tuple[Tensor, Tensor, Tensor]:
        """What :meth:`negatives` bisects: the s_k - k of all users in one ascending list."""
        stride = len(self.item_ids) + 1  # s_k - k and the ranks are smaller
        pairs = torch.unique(self.users * stride + self.items)  # sorted, each pair once
        users, items = pairs // stride, pairs % stride
        seen = torch.bincount(users, minlength=len(self.user_ids))
        first = seen.cumsum(0) - seen
        before = torch.arange(len(pairs), device=pairs.device) - first[users]
        return users * stride + items - before, first, seen
