"""MovieLens: the leave-one-out test, and negatives that were never seen."""

import hashlib
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from pathspace.experiments import data

USERS, ITEMS = 8, 140


def ratings() -> torch.Tensor:
    """Users 3, 5, ... have rated some of the movies 100, 102, ..., every movie by somebody."""
    generator = torch.Generator().manual_seed(0)
    rows = []
    for user in range(USERS):
        seen = torch.randperm(ITEMS, generator=generator)[: 10 + user]
        seen = torch.cat([seen, torch.arange(user, ITEMS, USERS)]).unique()
        seen = seen[torch.randperm(len(seen), generator=generator)]
        for item in seen.tolist():
            time = int(torch.randint(5, (), generator=generator))  # many at the same time
            rows.append((3 + 2 * user, 100 + 2 * item, 1 + item % 5, time))
    return torch.tensor(rows)


def write(root: Path, table: torch.Tensor, published: torch.Tensor | None = None) -> Path:
    folder = root / "ml-1m"
    folder.mkdir()
    lines = ("::".join(map(str, row)) for row in table.tolist())
    (folder / "ratings.dat").write_text("\n".join(lines) + "\n")
    if published is not None:
        lines = ("\t".join(map(str, row)) for row in published.tolist())
        (folder / "ncf-test.tsv").write_text("\n".join(lines) + "\n")
    return folder


def test_the_latest_rating_is_left_out(tmp_path: Path) -> None:
    table = ratings()
    folder = write(tmp_path, table)
    loaded = data.load_movielens(tmp_path, verify=False)
    assert loaded.user_ids.tolist() == [3 + 2 * user for user in range(USERS)]
    assert loaded.item_ids.tolist() == [100 + 2 * item for item in range(ITEMS)]
    rows = [tuple(row) for row in table.tolist()]
    for user, test_item in enumerate(loaded.test_items.tolist()):
        own = [row for row in rows if row[0] == 3 + 2 * user]
        latest = max(row[3] for row in own)
        first = next(row for row in own if row[3] == latest)
        assert first[1] == 100 + 2 * test_item
        rows.remove(first)
    pairs = torch.stack([loaded.user_ids[loaded.users], loaded.item_ids[loaded.items]], 1)
    assert pairs.tolist() == [[row[0], row[1]] for row in rows]
    assert loaded.statistics == (
        len(table),
        ITEMS,
        USERS,
        pytest.approx(1 - len(table) / (USERS * ITEMS)),
    )
    assert loaded.notes[0] == f"test drawn with seed 0: there is no {folder / 'ncf-test.tsv'}"
    assert loaded.notes[1].startswith("not verified: ratings.dat has sha256 ")


def test_drawn_negatives(tmp_path: Path) -> None:
    table = ratings()
    write(tmp_path, table)
    loaded = data.load_movielens(tmp_path, verify=False)
    assert loaded.test_negatives.shape == (USERS, 99)
    rated = {(user, item) for user, item, *_ in table.tolist()}
    for user, items in enumerate(loaded.test_negatives.tolist()):
        assert len(set(items)) == 99
        assert not any((3 + 2 * user, 100 + 2 * item) in rated for item in items)
    again = data.load_movielens(tmp_path, verify=False)
    other = data.load_movielens(tmp_path, verify=False, seed=1)
    assert_close(again.test_negatives, loaded.test_negatives)
    assert not torch.equal(other.test_negatives, loaded.test_negatives)
    assert_close(loaded.candidates[:, 0], loaded.test_items)
    assert_close(loaded.candidates[:, 1:], loaded.test_negatives)


def published_test(table: torch.Tensor, negatives: int = 4) -> torch.Tensor:
    """In reverse order of users: the second rating of each, and movies not rated."""
    lines = []
    for user in reversed(range(USERS)):
        own = table[table[:, 0] == 3 + 2 * user, 1].tolist()
        free = [100 + 2 * i for i in range(ITEMS) if 100 + 2 * i not in own]
        lines.append([3 + 2 * user, own[1], *free[:negatives]])
    return torch.tensor(lines)


def test_the_published_test_is_read(tmp_path: Path) -> None:
    table = ratings()
    expected = published_test(table)
    write(tmp_path, table, expected)
    loaded = data.load_movielens(tmp_path, verify=False)
    expected = expected.flip(0)
    assert_close(loaded.item_ids[loaded.test_items], expected[:, 1])
    assert_close(loaded.item_ids[loaded.test_negatives], expected[:, 2:])
    assert len(loaded) == len(table) - USERS
    assert all("drawn" not in note for note in loaded.notes)


def test_the_published_test_may_repeat_its_item(tmp_path: Path) -> None:
    table = ratings()
    lines = published_test(table)
    lines[2, 3] = lines[2, 1]
    folder = write(tmp_path, table, lines)
    notes = data.load_movielens(tmp_path, verify=False).notes
    assert notes[0] == "1 user has its test item among the negatives too, where it does not count"
    found = hashlib.sha256((folder / "ncf-test.tsv").read_bytes()).hexdigest()
    assert notes[1] == f"ncf-test.tsv is not the published test: it has sha256 {found}"
    lines[1, 3] = lines[1, 1]
    (folder / "ncf-test.tsv").unlink()
    folder.joinpath("ratings.dat").unlink()
    folder.rmdir()
    write(tmp_path, table, lines)
    notes = data.load_movielens(tmp_path, verify=False).notes
    assert notes[0].startswith("2 users have their test item among")


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        ((0, 0), 4, "its users are not those of ratings.dat"),
        ((0, 0), 3, "its users are not those of ratings.dat"),
        ((0, 1), 101, "movies that nobody rated"),
        ((0, 4), 9999, "movies that nobody rated"),
        ((0, 1), "unrated", "test items that their users have not rated"),
        ((0, 3), "rated", "negatives that their users have rated"),
    ],
)
def test_a_wrong_published_test_is_refused(
    at: tuple[int, int], value: int | str, message: str, tmp_path: Path
) -> None:
    table = ratings()
    lines = published_test(table, negatives=5)
    if value == "unrated":
        value = int(lines[at[0], -1])
    elif value == "rated":
        value = int(table[table[:, 0] == lines[at[0], 0]][0, 1])
    lines[at] = value
    folder = write(tmp_path, table, lines)
    with pytest.raises(data.DataError) as caught:
        data.load_movielens(tmp_path, verify=False)
    assert message in str(caught.value)
    assert str(folder / "ncf-test.tsv") in str(caught.value)


def test_altered_ratings_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, ratings())
    found = hashlib.sha256((folder / "ratings.dat").read_bytes()).hexdigest()
    with pytest.raises(data.DataError) as caught:
        data.load_movielens(tmp_path)
    assert f"found {found}" in str(caught.value)
    assert "pathspace data fetch ml-1m" in str(caught.value)


def test_ratings_that_do_not_fit_the_protocol(tmp_path: Path) -> None:
    table = ratings()
    folder = write(tmp_path, torch.cat([table, table[:1]]))
    with pytest.raises(data.DataError, match="rated a movie twice"):
        data.load_movielens(tmp_path, verify=False)
    (folder / "ratings.dat").write_text("1::1::1::1\n1::2::1::2\n")
    with pytest.raises(data.DataError, match="only 0 unrated items, but 99 are needed"):
        data.load_movielens(tmp_path, verify=False)


# Negatives ---------------------------------------------------------------------------------------


def interactions(seen: torch.Tensor, order: torch.Tensor | None = None) -> data.Interactions:
    """From a matrix of users and items."""
    users, items = seen.nonzero(as_tuple=True)
    if order is not None:
        users, items = users[order], items[order]
    count = len(seen)
    return data.Interactions(
        users=users,
        items=items,
        test_items=torch.zeros(count, dtype=torch.long),
        test_negatives=torch.zeros(count, 1, dtype=torch.long),
        user_ids=torch.arange(count),
        item_ids=torch.arange(seen.shape[1]),
    )


@given(st.integers(1, 6), st.integers(2, 9), st.floats(0, 0.95), st.integers(0, 999))
def test_negatives_are_never_seen_positives(
    users: int, items: int, density: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    seen = torch.rand(users, items, generator=generator) < density
    seen[:, int(torch.randint(items, (), generator=generator))] = False
    order = torch.randperm(int(seen.sum()), generator=generator)
    table = interactions(seen, order)
    asked = torch.randint(users, (7, 3), generator=generator)
    drawn = table.negatives(asked, generator)
    assert drawn.shape == asked.shape
    assert ((drawn >= 0) & (drawn < items)).all()
    assert not seen[asked, drawn].any()


def test_negatives_are_uniform_over_the_unseen() -> None:
    generator = torch.Generator().manual_seed(0)
    seen = torch.rand(5, 12, generator=generator) < 0.5
    seen[0], seen[1] = False, torch.arange(12) != 7  # nothing seen; all but one
    draws = 6000
    drawn = interactions(seen).negatives(torch.arange(5).repeat(draws), generator).view(-1, 5)
    for user in range(5):
        frequency = drawn[:, user].bincount(minlength=12) / draws
        unseen = ~seen[user]
        expected = 1 / int(unseen.sum())
        assert (frequency[~unseen] == 0).all()
        # five standard deviations
        tolerance = 5 * (expected * (1 - expected) / draws) ** 0.5 + 1e-9
        assert ((frequency[unseen] - expected).abs() <= tolerance).all()


def test_a_user_who_has_seen_everything() -> None:
    seen = torch.tensor([[True, False], [True, True]])
    table = interactions(seen)
    assert table.negatives(torch.tensor([0]), torch.Generator()).tolist() == [1]
    with pytest.raises(data.DataError, match="a user has seen every item"):
        table.negatives(torch.tensor([0, 1]), torch.Generator())


def test_epochs() -> None:
    generator = torch.Generator().manual_seed(0)
    seen = torch.rand(9, 20, generator=generator) < 0.3
    table = interactions(seen)
    state = torch.get_rng_state()
    users, items, labels = table.epoch(generator, num_negatives=4)
    assert len(users) == 5 * len(table)
    assert_close(seen[users, items], labels.bool())
    positives = labels == 1
    assert positives.sum() == len(table)
    # every positive comes with four negatives of its user
    assert_close(users[~positives].bincount(minlength=9), 4 * seen.sum(1))
    assert not torch.equal(table.epoch(generator)[1], items)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("drop_last", [True, False])
def test_batches(drop_last: bool) -> None:
    seen = torch.rand(9, 20, generator=torch.Generator().manual_seed(0)) < 0.3

    def epoch() -> list[tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]]:
        g = torch.Generator().manual_seed(3)
        table = interactions(seen)
        return list(table.batches(32, generator=g, num_negatives=2, drop_last=drop_last))

    batches = epoch()
    count = 3 * int(seen.sum())
    sizes = [len(labels) for _, labels in batches]
    assert sizes == [32] * (count // 32) + ([] if drop_last else [count % 32])
    for (users, items), labels in batches:
        assert_close(seen[users, items], labels.bool())
        assert 0 < labels.sum() < len(labels)  # mixed
    assert_close(epoch(), batches)
    with pytest.raises(data.DataError, match="at least one example"):
        next(interactions(seen).batches(0, generator=torch.Generator()))
    with pytest.raises(data.DataError, match="cannot be below 0"):
        interactions(seen).epoch(torch.Generator(), num_negatives=-1)
