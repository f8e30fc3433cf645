"""Downloads, from a server on this machine."""

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from data_files import Server, cifar, described, idx, official, packed_anew, samples, serving
from pathspace.experiments import data

RATINGS = b"1::10::5::3\n1::20::4::9\n2::10::3::1\n2::30::2::2\n"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.delenv(data.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving() as running:
        yield running


@pytest.fixture
def mnist(server: Server, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """A small MNIST that the server has; its contents by name."""
    contents = {}
    for part, count in (("train", 12), ("t10k", 5)):
        images, labels = samples((count, 28, 28), 10, seed=count)
        contents[f"{part}-images-idx3-ubyte.gz"] = idx(images)
        contents[f"{part}-labels-idx1-ubyte.gz"] = idx(labels.byte())
    entry = official(
        "mnist", contents, rows=(12, 5), hosts=(f"{server.url}/first", f"{server.url}/second")
    )
    monkeypatch.setitem(data.SOURCES, "mnist", entry)
    server.contents = {f"/first/{name}": content for name, content in contents.items()}
    return contents


def test_files_are_fetched_once(server: Server, mnist: dict[str, bytes], tmp_path: Path) -> None:
    folder = data.fetch("mnist", tmp_path)
    assert folder == tmp_path / "mnist"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == mnist
    assert len(server.asked) == 4
    assert data.fetch("mnist", tmp_path) == folder
    assert len(server.asked) == 4
    assert data.load("mnist", tmp_path).notes == ()


def test_load_downloads_only_when_asked(
    server: Server, mnist: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(data.DataError, match="mnist is not here"):
        data.load("mnist")
    assert not server.asked
    assert len(data.load("mnist", download=True).train) == 12
    assert (tmp_path / "cache/pathspace/mnist").is_dir()
    assert len(data.load("mnist").test) == 5
    monkeypatch.setenv(data.VARIABLE, str(tmp_path / "mine"))
    assert data.fetch("mnist") == tmp_path / "mine/mnist"


def test_altered_files_are_replaced(
    server: Server, mnist: dict[str, bytes], tmp_path: Path
) -> None:
    folder = data.fetch("mnist", tmp_path)
    name = "train-labels-idx1-ubyte.gz"
    (folder / name).write_bytes(mnist[name][:-1])
    server.asked.clear()
    data.fetch("mnist", tmp_path)
    assert (folder / name).read_bytes() == mnist[name]
    assert server.asked == [f"/first/{name}"]


def test_files_packed_anew_are_not_fetched_again(
    server: Server, mnist: dict[str, bytes], tmp_path: Path
) -> None:
    folder = tmp_path / "mnist"
    folder.mkdir()
    for name, content in mnist.items():
        (folder / name).write_bytes(packed_anew(content))
    assert data.fetch("mnist", tmp_path) == folder
    assert not server.asked


def test_the_next_host_is_asked(server: Server, mnist: dict[str, bytes], tmp_path: Path) -> None:
    name = "t10k-images-idx3-ubyte.gz"
    server.contents[f"/second/{name}"] = server.contents.pop(f"/first/{name}")
    folder = data.fetch("mnist", tmp_path)
    assert (folder / name).read_bytes() == mnist[name]
    server.contents.pop(f"/second/{name}")
    (folder / name).unlink()
    with pytest.raises(data.DataError) as caught:
        data.fetch("mnist", tmp_path)
    message = str(caught.value)
    for host in ("first", "second"):
        assert f"{server.url}/{host}/{name}: the server says 404 Not Found" in message
    assert hashlib.sha256(mnist[name]).hexdigest() in message
    assert f"into {folder} yourself" in message


def test_wrong_content_is_not_kept(server: Server, mnist: dict[str, bytes], tmp_path: Path) -> None:
    name = "train-images-idx3-ubyte.gz"
    wrong = mnist[name][:-1] + b"?"
    server.contents[f"/first/{name}"] = wrong
    with pytest.raises(data.DataError) as caught:
        data.fetch("mnist", tmp_path)
    expected, found = (hashlib.sha256(content).hexdigest() for content in (mnist[name], wrong))
    assert f"{name} is not the official file: sha256 expected {expected}, found {found}" in str(
        caught.value
    )
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_broken_connections(server: Server, mnist: dict[str, bytes], tmp_path: Path) -> None:
    server.missing_bytes = 10
    with pytest.raises(data.DataError, match="the connection broke off"):
        data.fetch("mnist", tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_no_server(
    mnist: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = replace(data.SOURCES["mnist"], hosts=("http://127.0.0.1:9",))  # nobody listens
    monkeypatch.setitem(data.SOURCES, "mnist", entry)
    with pytest.raises(data.DataError, match="no connection"):
        data.fetch("mnist", tmp_path)


def test_progress(
    mnist: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data.fetch("mnist", tmp_path, progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    for name, content in mnist.items():
        assert name in shown.err
        assert f"{len(content):,}" in shown.err or "kB" in shown.err
    data.fetch("mnist", tmp_path / "quietly", progress=False)
    assert capsys.readouterr() == ("", "")


def tar_of(contents: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tape:
        for name, content in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tape.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def zip_of(contents: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as bundle:
        for name, content in contents.items():
            bundle.writestr(name, content)
    return buffer.getvalue()


def test_archives_are_unpacked(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = samples((6, 3, 32, 32), 10, seed=0)
    files = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
    contents = {name: cifar(images[i : i + 1], labels[i : i + 1]) for i, name in enumerate(files)}
    archive = tar_of({f"cifar-10-batches-bin/{n}": c for n, c in contents.items()} | {"note": b"!"})
    name = "cifar-10-binary.tar.gz"
    entry = official(
        "cifar10", contents, rows=(5, 1), hosts=(server.url,), archive=described(name, archive)
    )
    monkeypatch.setitem(data.SOURCES, "cifar10", entry)
    server.contents[f"/{name}"] = archive
    loaded = data.load("cifar10", tmp_path, download=True)
    assert loaded.train.targets.tolist() == labels[:5].tolist()
    assert not (tmp_path / "note").exists()  # only what is needed
    # A file that was altered comes out of the archive again, without a download.
    (tmp_path / "cifar-10-batches-bin/test_batch.bin").write_bytes(b"")
    data.fetch("cifar10", tmp_path)
    assert data.load("cifar10", tmp_path).test.targets.tolist() == labels[5:].tolist()
    assert server.asked == [f"/{name}"]
    # The archive is not needed any more.
    (tmp_path / name).unlink()
    data.fetch("cifar10", tmp_path)
    assert server.asked == [f"/{name}"]


def test_a_hostile_archive_is_refused(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even one with the right checksum."""
    archive = zip_of({"ml-1m/ratings.dat": RATINGS, "../../evil": b"x"})
    entry = official(
        "ml-1m",
        {"ratings.dat": RATINGS},
        hosts=(server.url,),
        archive=described("ml-1m.zip", archive),
    )
    monkeypatch.setitem(data.SOURCES, "ml-1m", entry)
    server.contents["/ml-1m.zip"] = archive
    root = tmp_path / "a/b"
    with pytest.raises(data.DataError, match=r"'\.\./\.\./evil' would be written outside"):
        data.fetch("ml-1m", root)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files == [root / "ml-1m.zip"]
