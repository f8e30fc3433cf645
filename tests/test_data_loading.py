"""Data sets from folders: where they are found, what is accepted, and what the errors say."""

import hashlib
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from data_files import cifar, idx, official, packed_anew, samples, svhn
from pathspace.experiments import data

Pairs = dict[str, tuple[Tensor, Tensor]]


@pytest.fixture(autouse=True)
def empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data set anywhere but where a test puts it."""
    monkeypatch.delenv(data.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def pairs(shape: tuple[int, ...], classes: int) -> Pairs:
    return {
        "train": samples((12, *shape), classes, seed=0),
        "test": samples((5, *shape), classes, seed=1),
    }


def idx_files(splits: Pairs) -> dict[str, bytes]:
    contents = {}
    for part, name in (("train", "train"), ("t10k", "test")):
        images, labels = splits[name]
        contents[f"{part}-images-idx3-ubyte.gz"] = idx(images)
        contents[f"{part}-labels-idx1-ubyte.gz"] = idx(labels.to(torch.uint8))
    return contents


def write(folder: Path, contents: dict[str, bytes]) -> None:
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)


def write_small(name: str, root: Path) -> tuple[dict[str, bytes], Pairs]:
    """A small data set of this name in its official format below a data folder."""
    entry = data.find_source(name)
    splits = pairs((28, 28) if "mnist" in name else (3, 32, 32), entry.classes)
    if "mnist" in name:
        contents = idx_files(splits)
    elif name == "cifar10":
        images, labels = splits["train"]
        bounds = (0, 4, 6, 7, 11, 12)
        contents = {
            f"data_batch_{i}.bin": cifar(images[a:b], labels[a:b])
            for i, (a, b) in enumerate(pairwise(bounds), start=1)
        }
        contents["test_batch.bin"] = cifar(*splits["test"])
    elif name == "cifar100":
        contents = {f"{part}.bin": cifar(*splits[part], coarse=True) for part in splits}
    else:
        root.mkdir(exist_ok=True)
        contents = {
            f"{part}_32x32.mat": svhn(*splits[part], root / "scratch.mat") for part in splits
        }
    write(root / entry.folder, contents)
    return contents, splits


IMAGES = [name for name, entry in data.SOURCES.items() if entry.read is not None]


@pytest.mark.parametrize("name", IMAGES)
def test_every_format_is_loaded(name: str, tmp_path: Path) -> None:
    _, splits = write_small(name, tmp_path)
    loaded = data.load(name, tmp_path, verify=False)
    for part, split in (("train", loaded.train), ("test", loaded.test)):
        images, labels = splits[part]
        assert_close(split.inputs, images.view(split.inputs.shape))
        assert_close(split.targets, labels)
        assert split.inputs.dtype == torch.uint8
    assert loaded.shape == ((1, 28, 28) if "mnist" in name else (3, 32, 32))
    assert (loaded.name, loaded.maximum) == (name, 255)
    train, test = data.find_source(name).rows
    assert loaded.notes[:2] == (
        f"subset: 12 of {train:,} training images",
        f"subset: 5 of {test:,} test images",
    )
    assert len(loaded.notes[2:]) == len(data.find_source(name).files)
    assert all(note.startswith("not verified: ") for note in loaded.notes[2:])


@pytest.mark.parametrize("name", IMAGES)
def test_official_files_need_no_notes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents, _ = write_small(name, tmp_path)
    monkeypatch.setitem(data.SOURCES, name, official(name, contents, rows=(12, 5)))
    assert data.load(name, tmp_path).notes == ()
    assert data.look(data.find_source(name), tmp_path, verify=True).state == "verified"


@pytest.mark.parametrize("name", ["cifar100", "svhn"])
def test_subsets_are_noted(name: str, tmp_path: Path) -> None:
    write_small(name, tmp_path)
    train, test = data.find_source(name).rows
    assert data.load(name, tmp_path).notes == (
        f"subset: 12 of {train:,} training images",
        f"subset: 5 of {test:,} test images",
    )
    assert data.look(data.find_source(name), tmp_path).state == "subset"


@pytest.mark.parametrize("name", IMAGES)
def test_altered_files_are_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One bit of a file of the official size: the error names file, checksums and command."""
    contents, _ = write_small(name, tmp_path)
    entry = official(name, contents, rows=(12, 5))
    files = tuple(replace(file, rows=12 if "train" in file.name else 5) for file in entry.files)
    monkeypatch.setitem(data.SOURCES, name, replace(entry, files=files))
    path = tmp_path / entry.folder / entry.files[0].name
    altered = bytearray(path.read_bytes())
    altered[-5 if name != "svhn" else 20] ^= 1  # svhn: in the text of the header
    path.write_bytes(altered)
    found = hashlib.sha256(altered).hexdigest()
    with pytest.raises(data.DataError) as caught:
        data.load(name, tmp_path)
    message = str(caught.value)
    assert str(path) in message
    assert f"sha256 expected {entry.files[0].sha256}, found {found}" in message
    assert f"`pathspace data fetch {name} --data-dir {tmp_path}`" in message
    assert data.look(data.SOURCES[name], tmp_path, verify=True).state == "altered"
    assert data.look(data.SOURCES[name], tmp_path, verify=False).state == "present"


@pytest.mark.parametrize("name", IMAGES)
def test_cut_off_files_are_refused(name: str, tmp_path: Path) -> None:
    """Also where subsets are welcome: half a row is none."""
    write_small(name, tmp_path)
    entry = data.find_source(name)
    path = tmp_path / entry.folder / entry.files[0].name
    content = path.read_bytes()[:-100]
    path.write_bytes(content)
    found = hashlib.sha256(content).hexdigest()
    for verify in (True, False):
        with pytest.raises(data.DataError) as caught:
            data.load(name, tmp_path, verify=verify)
        message = str(caught.value)
        assert str(path) in message
        assert f"sha256 expected {entry.files[0].sha256}, found {found}" in message
        assert f"bytes expected {entry.files[0].size:,}, found {len(content):,}" in message
        assert "`pathspace data fetch" in message


@pytest.mark.parametrize("name", IMAGES)
def test_a_missing_file_is_named(name: str, tmp_path: Path) -> None:
    write_small(name, tmp_path)
    entry = data.find_source(name)
    path = tmp_path / entry.folder / entry.files[-1].name
    path.unlink()
    with pytest.raises(data.DataError) as caught:
        data.load(name, tmp_path, verify=False)
    message = str(caught.value)
    assert f"{path} cannot be read (No such file or directory)" in message
    assert entry.files[-1].sha256 in message
    assert f"`pathspace data fetch {name} --data-dir {tmp_path}` puts it right" in message
    assert data.look(entry, tmp_path).state == "incomplete"


# What a captive portal, a full disk and another data set leave behind.
FOREIGN = {
    "page": b"<!doctype html>\n<title>Log in</title>\n" * 9,
    "empty": b"",
    "zeros": bytes(512),
}


@pytest.mark.parametrize("content", FOREIGN)
@pytest.mark.parametrize("name", data.SOURCES)
def test_foreign_files_are_refused(name: str, content: str, tmp_path: Path) -> None:
    """Whether checksums are compared or not."""
    entry = data.find_source(name)
    write(tmp_path / entry.folder, {file.name: FOREIGN[content] for file in entry.files})
    load = data.load_movielens if entry.read is None else partial(data.load, name)
    for verify in (True, False):
        with pytest.raises(data.DataError) as caught:
            load(tmp_path, verify=verify)
        message = str(caught.value)
        assert str(tmp_path / entry.folder / entry.files[0].name) in message
        found = hashlib.sha256(FOREIGN[content]).hexdigest()
        assert f"sha256 expected {entry.files[0].sha256}, found {found}" in message
        assert f"`pathspace data fetch {name} --data-dir {tmp_path}` puts it right" in message


def test_files_that_a_distribution_packed_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian's Fashion-MNIST: other bytes and sizes, the same arrays."""
    contents = idx_files(pairs((28, 28), 10))
    system = tmp_path / "usr/share/datasets/fashion-mnist"
    entry = official("fashion-mnist", contents, rows=(12, 5), system=(str(system),))
    monkeypatch.setitem(data.SOURCES, "fashion-mnist", entry)
    anew = {name: packed_anew(content) for name, content in contents.items()}
    assert all(len(anew[name]) != len(contents[name]) for name in anew)
    write(system, anew)
    assert data.look(entry) == (system, "present")
    assert data.look(entry, verify=True) == (system, "verified")
    assert data.load("fashion-mnist").notes == ()
    labels = system / "train-labels-idx1-ubyte.gz"
    labels.write_bytes(idx(torch.zeros(12).byte()))  # a valid file with other labels
    assert data.look(entry).state == "altered"
    with pytest.raises(data.DataError, match=r"train-labels.* is not the official file"):
        data.load("fashion-mnist")


def test_a_missing_data_set_says_where_we_looked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(data.VARIABLE, str(tmp_path / "mine"))
    system = tmp_path / "system"
    entry = data.find_source("fashion-mnist")
    monkeypatch.setitem(data.SOURCES, "fashion-mnist", replace(entry, system=(str(system),)))
    with pytest.raises(data.DataError) as caught:
        data.load("fashion-mnist")
    message = str(caught.value)
    for folder in (
        tmp_path / "mine/fashion-mnist",
        tmp_path / "cache/pathspace/fashion-mnist",
        system,
    ):
        assert str(folder) in message
    assert "`pathspace data fetch fashion-mnist` downloads it (30.9 MB)" in message


def test_the_first_folder_that_has_it_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = replace(data.find_source("fashion-mnist"), system=(str(tmp_path / "system"),))
    monkeypatch.setitem(data.SOURCES, "fashion-mnist", entry)
    monkeypatch.setenv(data.VARIABLE, str(tmp_path / "mine"))
    contents = idx_files(pairs((28, 28), 10))
    places = [
        ("system", tmp_path / "system"),
        ("cache", tmp_path / "cache/pathspace/fashion-mnist"),
        ("variable", tmp_path / "mine/fashion-mnist"),
    ]
    for _, folder in places:  # from the last resort to the first choice
        write(folder, contents)
        assert data.look(entry).folder == folder
        assert len(data.load("fashion-mnist", verify=False).train) == 12
    given = tmp_path / "given"
    assert data.look(entry, given).folder is None  # a folder that is named is the only one
    write(given, contents)
    assert data.look(entry, given).folder == given  # the files themselves
    write(given / "fashion-mnist", contents)
    assert data.look(entry, given).folder == given / "fashion-mnist"


def test_images_and_labels_must_belong_together(tmp_path: Path) -> None:
    contents = idx_files(pairs((28, 28), 10))
    folder = tmp_path / "mnist"
    write(folder, contents)
    names = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"

    def refused(name: str, content: bytes, message: str) -> None:
        (folder / name).write_bytes(content)
        with pytest.raises(data.DataError, match=message):
            data.load("mnist", tmp_path, verify=False)
        (folder / name).write_bytes(contents[name])

    refused(names[0], contents[names[1]], r"shape \(12,\), which are no images")
    refused(names[1], contents[names[0]], r"shape \(12, 28, 28\), which are no labels")
    refused(names[1], idx(torch.full((12,), 10).byte()), "none of the 10 classes")
    refused(names[1], idx(torch.zeros(11).byte()), "12 inputs, but 11 targets")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: data.load("cifar-10"), "did you mean 'cifar10'?"),
        (lambda: data.load("MNIST"), "did you mean 'mnist'?"),
        (lambda: data.load("imagenet"), "known are digits, mnist"),
        (lambda: data.load("ml-1m"), "use load_movielens"),
    ],
)
def test_unknown_names(call: Callable[[], object], message: str) -> None:
    with pytest.raises(data.DataError, match=re.escape(message)):
        call()


def test_digits() -> None:
    digits = data.load("digits")
    assert (len(digits.train), len(digits.test)) == data.EMBEDDED_ROWS
    assert sum(data.EMBEDDED_ROWS) == 1797
    assert int(digits.train.inputs.max()) == digits.maximum == 16
    assert digits.test.targets.bincount().min() >= 34  # each class has about a fifth
    images = torch.cat([digits.train.inputs, digits.test.inputs])
    assert len(images.flatten(1).unique(dim=0)) == 1797  # no image in both
    assert_close(data.load("digits").test.inputs, digits.test.inputs)


EXTRAS = ["numpy", "scipy", "sklearn", "pooch", "requests", "rich", "typer"]


def test_importing_needs_torch_only() -> None:
    """What belongs to the extras is asked for when it is needed."""
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({EXTRAS}))\n"
        "from pathspace.experiments import data\n"
        "try:\n    data.load('digits')\nexcept data.DataError as error:\n    print(error)"
    )
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == (
        "this needs sklearn, which is not installed; pip install 'pathspace[experiments]'"
    )
