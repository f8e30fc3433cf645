"""Archives unpacked so that they cannot write outside their folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO

from pathspace.experiments.data.errors import DataError


def unpack(archive: Path, folder: Path, members: dict[str, int] | None = None) -> list[Path]:
    """Write the files of a ``.tar.gz`` or ``.zip`` below a folder, and nothing anywhere else.

    All names are looked at before the first byte is written: an absolute path, a ``..``, a link or
    a device is an error, whatever else is in the archive. Owners and permissions are ignored, and
    no more bytes are written than the archive announces.

    Args:
        archive: the file.
        folder: where to; created if need be.
        members: the files wanted, with their sizes; all if None.

    Returns:
        The files written.

    Raises:
        DataError: an unsafe or missing member, or one of another size, by name.
    """
    root = folder.resolve()
    try:
        with _opened(archive) as entries:
            for entry in entries:
                _refuse_unsafe(archive, entry, root)
            return [_write(archive, entry, root) for entry in _wanted(archive, entries, members)]
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DataError(f"{archive} is not a whole archive ({error}); fetch it again") from error


@dataclass(frozen=True)
class _Entry:
    """A member of an archive of either kind."""

    name: str
    size: int
    kind: str  # file, folder, or anything else: link
    open: Callable[[], IO[bytes]]


@contextlib.contextmanager
def _opened(archive: Path) -> Iterator[list[_Entry]]:
    if archive.name.endswith(".zip"):
        with zipfile.ZipFile(archive) as bundle:
            yield [_zip_entry(bundle, info) for info in bundle.infolist()]
    else:
        with tarfile.open(archive, "r:gz") as tape:
            yield [_tar_entry(tape, info) for info in tape.getmembers()]


def _zip_entry(bundle: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Entry:
    mode = info.external_attr >> 16 & 0o170000  # where Unix keeps the kind of file
    kind = "folder" if info.is_dir() else "file" if mode in (0, 0o100000) else "link"
    return _Entry(info.filename, info.file_size, kind, lambda: bundle.open(info))


def _tar_entry(tape: tarfile.TarFile, info: tarfile.TarInfo) -> _Entry:
    def content() -> IO[bytes]:
        stream = tape.extractfile(info)
        assert stream is not None  # it is a regular file
        return stream

    kind = "file" if info.isreg() else "folder" if info.isdir() else "link"
    return _Entry(info.name, info.size, kind, content)


def _refuse_unsafe(archive: Path, entry: _Entry, root: Path) -> None:
    names = PurePosixPath(entry.name), PureWindowsPath(entry.name)
    if any(".." in name.parts or name.is_absolute() or name.anchor for name in names):
        reason = "would be written outside its folder"
    elif entry.kind == "link":
        reason = "is a link or a device"
    else:
        return
    raise DataError(f"{archive}: member {entry.name!r} {reason}; nothing was unpacked to {root}")


def _write(archive: Path, entry: _Entry, root: Path) -> Path:
    target = root / entry.name
    if not target.resolve().is_relative_to(root):  # a link that was on the disk before
        raise DataError(f"{archive}: {target} leads outside {root} by a link; remove the link")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        with entry.open() as content, part.open("wb") as output:
            shutil.copyfileobj(content, output)
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
    return target


def _wanted(archive: Path, entries: list[_Entry], members: dict[str, int] | None) -> list[_Entry]:
    files = {entry.name: entry for entry in entries if entry.kind == "file"}
    if members is None:
        return list(files.values())
    for name, size in members.items():
        if name not in files:
            raise DataError(f"{archive} has no member {name!r}; fetch it again")
        if files[name].size != size:
            found = files[name].size
            raise DataError(f"{archive}: {name!r} has {found:,} bytes, expected are {size:,}")
    return [files[name] for name in members]
