"""The real data sets, where they are present."""

import pytest
import torch
from torch.testing import assert_close

from pathspace.experiments import data


def present(name: str) -> str:
    if data.look(data.find_source(name)).folder is None:
        pytest.skip(f"{name} is not here")
    return name


@pytest.mark.parametrize(
    ("name", "shape", "mean", "deviation"),
    [
        # the published statistics of the training pixels, from 0 to 1
        ("mnist", (1, 28, 28), [0.1307], [0.3081]),
        ("fashion-mnist", (1, 28, 28), [0.2860], [0.3530]),
        ("cifar10", (3, 32, 32), [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
        ("cifar100", (3, 32, 32), [0.5071, 0.4865, 0.4409], [0.2673, 0.2564, 0.2762]),
        ("svhn", (3, 32, 32), [0.4377, 0.4438, 0.4728], [0.1980, 0.2010, 0.1970]),
    ],
)
def test_images(
    name: str, shape: tuple[int, ...], mean: list[float], deviation: list[float]
) -> None:
    loaded = data.load(present(name))
    rows = len(loaded.train), len(loaded.test)
    complete = rows == data.find_source(name).rows
    assert loaded.shape == shape
    assert complete == (not loaded.notes)
    assert loaded.train.targets.unique().tolist() == list(range(loaded.classes))
    assert loaded.test.targets.unique().tolist() == list(range(loaded.classes))
    # A subset has the statistics of the whole only nearly.
    tolerance = 1e-4 if complete else 0.02
    for found, published in zip(
        data.channel_statistics(loaded.train.inputs), (mean, deviation), strict=True
    ):
        expected = torch.tensor(published, dtype=torch.float64)
        assert_close(found / 255, expected, rtol=0, atol=tolerance)


def test_fashion_mnist_of_debian() -> None:
    """The package dataset-fashion-mnist, whose files are not those of the authors."""
    entry = data.find_source("fashion-mnist")
    (folder,) = entry.system
    if data.look(entry, folder).folder is None:
        pytest.skip("dataset-fashion-mnist is not installed")
    assert data.look(entry, folder, verify=True).state == "verified"
    assert data.load("fashion-mnist", folder).notes == ()


def test_movielens() -> None:
    present("ml-1m")
    loaded = data.load_movielens()
    assert loaded.statistics[:3] == (1_000_209, 3_706, 6_040)  # 000, Table 1
    assert f"{loaded.statistics.sparsity:.2%}" == "95.53%"
    assert len(loaded) == 994_169
    assert loaded.candidates.shape == (6_040, 100)
    repeated = (loaded.test_negatives == loaded.test_items[:, None]).any(1)
    published = not any("drawn" in note for note in loaded.notes)
    assert repeated.sum() == (156 if published else 0)
    if published:
        assert loaded.notes == (
            "156 users have their test item among the negatives too, where it does not count",
        )
    users, items, labels = loaded.epoch(torch.Generator().manual_seed(0))
    seen = torch.zeros(6_040, 3_706, dtype=torch.bool)
    seen[loaded.users, loaded.items] = True
    assert torch.equal(seen[users, items], labels.bool())
