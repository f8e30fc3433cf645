"""MovieLens-1M with the leave-one-out test of neural collaborative filtering."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import Tensor

from pathspace.experiments.data import formats
from pathspace.experiments.data.catalogue import find_source
from pathspace.experiments.data.copies import Copy, Folder, find
from pathspace.experiments.data.errors import DataError, FormatError
from pathspace.experiments.data.fetching import fetch
from pathspace.experiments.data.interactions import Interactions
from pathspace.experiments.data.loading import unverified

NEGATIVES = 99
PUBLISHED = "ncf-test.tsv"  # user, test item, its negatives, by MovieLens ids
# of the authors' test in this format, one line per user in the order of their ids
PUBLISHED_SHA256 = "711eb0cd063927b05af7a1a32738625527d89ad6d4e73ac66137c035d8dab043"


def load_movielens(
    folder: Folder = None, *, download: bool = False, verify: bool = True, seed: int = 0
) -> Interactions:
    """Load MovieLens-1M, every user's latest rating left out for the test.

    Beside ``ratings.dat`` there may be ``ncf-test.tsv`` with the published test: per line a user,
    the test item and its negatives, by MovieLens ids. It is not part of the official archive; the
    notes say if it is another test than the authors'. 156 of its users have the test item among
    their negatives, where it does not count. Without the file, the test item is the latest rating
    (of several at the same time the first in the file), and the negatives are drawn without
    repetition from the items the user has not rated.

    Args:
        folder: the data folder, see :func:`~pathspace.experiments.data.load`.
        download: fetch what is not there.
        verify: refuse a ``ratings.dat`` that is not the official one.
        seed: of the local generator that draws the negatives.

    Returns:
        The interactions; users and items are numbered in the order of their MovieLens ids.

    Raises:
        DataError: a file is missing, cut off or altered.
    """
    source = find_source("ml-1m")
    if download and find(source, folder) is None:
        fetch(source.name, folder)
    copy = Copy(source, folder, verify=verify)
    ratings: Tensor = copy("ratings.dat", formats.read_ratings)
    user_ids, users = ratings[:, 0].unique(return_inverse=True)
    item_ids, items = ratings[:, 1].unique(return_inverse=True)
    table = _Table(user_ids, item_ids, users, items)
    published = copy.folder / PUBLISHED
    if published.is_file():
        left_out, negatives, notes = _published_test(published, table)
    else:
        left_out = _latest(users, ratings[:, 3])
        negatives = _drawn_negatives(table, seed)
        notes = (f"test drawn with seed {seed}: there is no {published}",)
    kept = torch.ones(len(users), dtype=torch.bool)
    kept[left_out] = False
    return Interactions(
        users=users[kept],
        items=items[kept],
        test_items=items[left_out],
        test_negatives=negatives,
        user_ids=user_ids,
        item_ids=item_ids,
        name=source.name,
        notes=(*notes, *unverified(copy)),
    )


class _Table:
    """Users and items of the ratings, and each pair as one number."""

    def __init__(self, user_ids: Tensor, item_ids: Tensor, users: Tensor, items: Tensor) -> None:
        self.user_ids, self.item_ids, self.users, self.items = user_ids, item_ids, users, items
        self.pairs, self.rows = self.numbered(users, items).sort()
        if (self.pairs[1:] == self.pairs[:-1]).any():
            raise DataError("a user has rated a movie twice, which the test cannot leave out once")

    def numbered(self, users: Tensor, items: Tensor) -> Tensor:
        return users * len(self.item_ids) + items

    def find(self, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """Which rating each pair is, and whether it is one at all."""
        at = torch.searchsorted(self.pairs, pairs).clamp(max=len(self.pairs) - 1)
        return self.rows[at], self.pairs[at] == pairs


def _published_test(path: Path, table: _Table) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """The ratings to leave out, their negatives, and what is to be noted."""
    content = path.read_bytes()
    try:
        lines = formats.read_candidates(content)
        lines = lines[lines[:, 0].argsort()]
        if not torch.equal(lines[:, 0], table.user_ids):
            raise FormatError("its users are not those of ratings.dat, each once")
        items = torch.searchsorted(table.item_ids, lines[:, 1:].contiguous())
        if (table.item_ids[items.clamp(max=len(table.item_ids) - 1)] != lines[:, 1:]).any():
            raise FormatError("it has movies that nobody rated")
        users = torch.arange(len(lines))[:, None]
        rows, rated = table.find(table.numbered(users, items))
        if not rated[:, 0].all():
            raise FormatError("it has test items that their users have not rated")
        # The published negatives were drawn without regard to the test item.
        repeated = items[:, 1:] == items[:, :1]
        if (rated[:, 1:] & ~repeated).any():
            raise FormatError("it has negatives that their users have rated")
    except FormatError as error:
        raise DataError(f"{path}: {error}; without that file the test is drawn") from error
    notes = []
    if count := int(repeated.any(1).sum()):
        users_have = "1 user has its" if count == 1 else f"{count:,} users have their"
        notes.append(f"{users_have} test item among the negatives too, where it does not count")
    found = hashlib.sha256(content).hexdigest()
    if found != PUBLISHED_SHA256:
        notes.append(f"{path.name} is not the published test: it has sha256 {found}")
    return rows[:, 0], items[:, 1:], tuple(notes)


def _latest(users: Tensor, times: Tensor) -> Tensor:
    """For each user the row of the latest rating, of equal ones the first."""
    order = times.argsort(descending=True, stable=True)
    order = order[users[order].argsort(stable=True)]
    counts = torch.bincount(users)
    return order[counts.cumsum(0) - counts]


def _drawn_negatives(table: _Table, seed: int) -> Tensor:
    """Unrated items of each user, without repetition: those with the largest random numbers."""
    shape = len(table.user_ids), len(table.item_ids)
    unrated = shape[1] - int(torch.bincount(table.users).max())
    if unrated < NEGATIVES:
        raise DataError(f"a user has only {unrated} unrated items, but {NEGATIVES} are needed")
    scores = torch.rand(shape, generator=torch.Generator().manual_seed(seed))
    scores[table.users, table.items] = -1
    return scores.topk(NEGATIVES).indices
