"""Every official format: what was written is read, and nothing else is accepted."""

import gzip
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import scipy.io
import torch
from torch.testing import assert_close

from data_files import cifar, idx, samples, svhn
from pathspace.experiments.data import FormatError, formats

READERS: dict[str, Callable[[bytes], Any]] = {
    "idx": formats.read_idx,
    "cifar10": partial(formats.read_cifar, classes=10),
    "cifar100": partial(formats.read_cifar, classes=100),
    "svhn": formats.read_svhn,
    "ratings": formats.read_ratings,
    "candidates": formats.read_candidates,
}


@pytest.mark.parametrize("shape", [(5,), (2, 3), (4, 3, 2)])
def test_idx(shape: tuple[int, ...]) -> None:
    array, _ = samples(shape, 10, seed=0)
    assert_close(formats.read_idx(idx(array)), array)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (idx(torch.zeros(3, 4, dtype=torch.uint8))[:-9], "not a whole gzip file"),
        (b"not gzip at all", "not a whole gzip file"),
        (gzip.compress(b""), "does not start like an IDX file"),
        (gzip.compress(bytes([0, 0, 13, 1, 0, 0, 0, 1, 9])), "does not start like an IDX file"),
        (gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 3, 1, 2])), r"\(3,\), 3 bytes, but 2 follow"),
        (gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 1, 1, 2])), r"\(1,\), 1 bytes, but 2 follow"),
        (gzip.compress(bytes([0, 0, 8, 3, 0, 0])), "but 0 follow"),
        (gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 0])), "empty"),
    ],
)
def test_idx_refuses(content: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        formats.read_idx(content)


@pytest.mark.parametrize("classes", [10, 100])
def test_cifar(classes: int) -> None:
    images, labels = samples((6, 3, 32, 32), classes, seed=1)
    content = cifar(images, labels, coarse=classes == 100)
    found_images, found_labels = formats.read_cifar(content, classes=classes)
    assert_close(found_images, images)
    assert_close(found_labels, labels)


def test_cifar_refuses_other_sizes_and_labels() -> None:
    images, labels = samples((2, 3, 32, 32), 10, seed=1)
    content = cifar(images, labels)
    with pytest.raises(FormatError, match="6,145 bytes are no whole number of records of 3,073"):
        formats.read_cifar(content[:-1], classes=10)
    with pytest.raises(FormatError, match="0 bytes"):
        formats.read_cifar(b"", classes=10)
    with pytest.raises(FormatError, match="none of the 10 classes"):
        formats.read_cifar(bytes([10]) + content[1:], classes=10)


@pytest.mark.parametrize("compressed", [True, False])
def test_svhn(tmp_path: Path, compressed: bool) -> None:
    images, labels = samples((11, 3, 32, 32), 10, seed=2)
    assert 0 in labels  # which the file calls 10
    content = svhn(images, labels, tmp_path / "x.mat", compressed=compressed)
    found_images, found_labels = formats.read_svhn(content)
    assert_close(found_images, images)
    assert_close(found_labels, labels)
    with pytest.raises(FormatError, match="not a whole MATLAB 5 file"):
        formats.read_svhn(content[: len(content) // 2])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"X": torch.zeros(32, 32, 3, 2).byte()}, "lacks the variables"),
        (
            {"X": torch.zeros(2, 3, 32, 32).byte(), "y": torch.ones(2, 1).byte()},
            r"X has shape \(2, 3, 32, 32\)",
        ),
        (
            {"X": torch.zeros(32, 32, 3, 2).byte(), "y": torch.ones(3, 1).byte()},
            r"y \(3, 1\)",
        ),
        ({"X": torch.zeros(32, 32, 3, 2), "y": torch.ones(2, 1).byte()}, "X holds float32"),
        (
            {"X": torch.zeros(32, 32, 3, 2).byte(), "y": torch.full((2, 1), 11).byte()},
            "none of the 10 classes",
        ),
        (
            {"X": torch.zeros(32, 32, 3, 2).byte(), "y": torch.zeros(2, 1).byte()},
            "none of the 10 classes",
        ),
    ],
)
def test_svhn_refuses(tmp_path: Path, arrays: dict[str, torch.Tensor], message: str) -> None:
    path = tmp_path / "x.mat"
    scipy.io.savemat(path, {name: array.numpy() for name, array in arrays.items()})
    with pytest.raises(FormatError, match=message):
        formats.read_svhn(path.read_bytes())


def test_ratings() -> None:
    expected = torch.tensor([[1, 1193, 5, 978300760], [6040, 3952, 1, 956703932]])
    content = b"1::1193::5::978300760\n6040::3952::1::956703932\n"
    assert_close(formats.read_ratings(content), expected)
    assert_close(formats.read_ratings(content.rstrip()), expected)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1::2::3\n",
        b"1::2::3::4::5\n",
        b"1::2::3::4\n5::6",
        b"1 2 3 4\n",
        b"1::2::6::4\n",
        b"0::2::3::4\n",
        b"1::2::x::4\n",
        b"1::2::3.5::4\n",
        b"\xff\xfe::2::3::4\n",
    ],
)
def test_ratings_refuse(content: bytes) -> None:
    with pytest.raises(FormatError, match=r"it h|its lines"):
        formats.read_ratings(content)


@pytest.mark.parametrize("content", [b"", b"1\t2\n", b"1\t2\t3\n4\t5\n", b"1\t2\tx\n"])
def test_candidates_refuse(content: bytes) -> None:
    with pytest.raises(FormatError, match=r"it h|its lines"):
        formats.read_candidates(content)


class Attack:
    """When unpickled, makes a folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return Path.mkdir, (Path(self.folder),)  # type: ignore[return-value]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("zipped", [True, False])
def test_nothing_is_unpickled(reader: str, zipped: bool, tmp_path: Path) -> None:
    target = tmp_path / "attacked"
    content = pickle.dumps(Attack(str(target)))
    with pytest.raises(FormatError):
        READERS[reader](gzip.compress(content) if zipped else content)
    assert not target.exists()
    pickle.loads(content)
    assert target.exists()  # the attack itself works
