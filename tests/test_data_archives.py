"""Archives cannot write outside their folder, whatever they contain."""

import io
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pathspace.experiments.data import DataError, unpack

Make = Callable[[Path], None]


def tar(path: Path, *members: tuple[str, bytes | tarfile.TarInfo]) -> None:
    with tarfile.open(path, "w:gz") as tape:
        for name, content in members:
            if isinstance(content, tarfile.TarInfo):
                tape.addfile(content)
            else:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tape.addfile(info, io.BytesIO(content))


def tar_link(name: str, target: str, kind: bytes) -> tuple[str, tarfile.TarInfo]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return name, info


def zipped(path: Path, *members: tuple[str, bytes], link: str | None = None) -> None:
    with zipfile.ZipFile(path, "w") as bundle:
        for name, content in members:
            bundle.writestr(name, content)
        if link is not None:
            info = zipfile.ZipInfo("set/link")
            info.external_attr = (stat.S_IFLNK | 0o777) << 16
            bundle.writestr(info, link)


ATTACKS: dict[str, tuple[str, Make]] = {
    "tar, parent": ("a.tar.gz", lambda p: tar(p, ("../evil", b"x"))),
    "tar, parent inside": ("a.tar.gz", lambda p: tar(p, ("set/../../evil", b"x"))),
    "tar, absolute": ("a.tar.gz", lambda p: tar(p, (str(p.parent / "evil"), b"x"))),
    "tar, Windows parent": ("a.tar.gz", lambda p: tar(p, ("..\\evil", b"x"))),
    "tar, Windows drive": ("a.tar.gz", lambda p: tar(p, ("C:\\evil", b"x"))),
    "tar, symbolic link": (
        "a.tar.gz",
        lambda p: tar(p, tar_link("set", str(p.parent), tarfile.SYMTYPE), ("set/evil", b"x")),
    ),
    "tar, hard link": (
        "a.tar.gz",
        lambda p: tar(p, tar_link("set/evil", "../secret", tarfile.LNKTYPE)),
    ),
    "tar, device": ("a.tar.gz", lambda p: tar(p, tar_link("set/evil", "", tarfile.CHRTYPE))),
    "zip, parent": ("a.zip", lambda p: zipped(p, ("../evil", b"x"))),
    "zip, absolute": ("a.zip", lambda p: zipped(p, (str(p.parent / "evil"), b"x"))),
    "zip, symbolic link": ("a.zip", lambda p: zipped(p, link="/etc/passwd")),
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("some", [True, False], ids=["some members", "all members"])
def test_attacks_write_nothing(attack: str, some: bool, tmp_path: Path) -> None:
    name, make = ATTACKS[attack]
    archive, folder = tmp_path / name, tmp_path / "data"
    make(archive)
    folder.mkdir()
    (tmp_path / "secret").write_bytes(b"secret")
    with pytest.raises(DataError, match=r"member .* (outside its folder|link or a device)"):
        unpack(archive, folder, {"set/good": 4} if some else None)
    assert not list(folder.iterdir())
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "data", "secret"])


@pytest.mark.parametrize(("name", "write"), [("a.tar.gz", tar), ("a.zip", zipped)])
def test_good_archives(name: str, write: Callable[..., None], tmp_path: Path) -> None:
    archive = tmp_path / name
    write(archive, ("set/a.bin", b"aaaa"), ("set/deep/b.bin", b"bb"))
    written = unpack(archive, tmp_path / "all")
    assert [path.relative_to((tmp_path / "all").resolve()) for path in written] == [
        Path("set/a.bin"),
        Path("set/deep/b.bin"),
    ]
    assert (tmp_path / "all/set/deep/b.bin").read_bytes() == b"bb"
    unpack(archive, tmp_path / "one", {"set/a.bin": 4})
    files = [path for path in (tmp_path / "one").rglob("*") if path.is_file()]
    assert [path.name for path in files] == ["a.bin"]
    with pytest.raises(DataError, match=r"no member 'set/c\.bin'"):
        unpack(archive, tmp_path / "none", {"set/c.bin": 4})
    with pytest.raises(DataError, match=r"'set/a\.bin' has 4 bytes, expected are 5"):
        unpack(archive, tmp_path / "none", {"set/a.bin": 5})
    assert not (tmp_path / "none").exists()


def test_links_on_the_disk_are_not_followed_outside(tmp_path: Path) -> None:
    archive, folder, outside = tmp_path / "a.zip", tmp_path / "data", tmp_path / "outside"
    zipped(archive, ("set/a.bin", b"aaaa"))
    folder.mkdir()
    outside.mkdir()
    (folder / "set").symlink_to(outside)
    with pytest.raises(DataError, match=r"leads outside .* by a link; remove the link"):
        unpack(archive, folder)
    assert not list(outside.iterdir())


@pytest.mark.parametrize(("name", "write"), [("a.tar.gz", tar), ("a.zip", zipped)])
def test_cut_off_archives(name: str, write: Callable[..., None], tmp_path: Path) -> None:
    archive = tmp_path / name
    write(archive, ("set/a.bin", bytes(range(256)) * 64))
    archive.write_bytes(archive.read_bytes()[:-120])
    with pytest.raises(DataError, match="not a whole archive"):
        unpack(archive, tmp_path / "data")
    assert not list((tmp_path / "data").rglob("*.part"))
