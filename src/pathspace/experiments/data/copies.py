"""The copies of a data set on this machine: where they are, and whether they are the official ones.

A data folder has one folder per data set, named as in the official archives. We search the one that
is named, or else ``$PATHSPACE_DATA``, the cache that downloads go to, and the folders in which a
distribution installs the files.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pathspace.experiments.data.errors import DataError, FormatError, require
from pathspace.experiments.data.sources import File, Source

VARIABLE = "PATHSPACE_DATA"
Folder = str | os.PathLike[str] | None


class Copy:
    """The files of a data set in one folder; call it to read one of them.

    Attributes:
        source: the data set.
        folder: where its files are.
        verify: whether a wrong checksum is an error.
        differing: the SHA-256 of the files read so far that are not the official ones, by name.

    Args:
        source: the data set.
        given: the data folder a person named, if any: where a repair should go.
        verify: see the attribute.

    Raises:
        DataError: there is no copy; the message says where we looked and how to fetch it.
    """

    def __init__(self, source: Source, given: Folder = None, *, verify: bool = True) -> None:
        folder = find(source, given)
        if folder is None:
            raise DataError(
                f"{source.name} is not here: no {source.files[0].name} in "
                f"{', '.join(map(str, _candidates(source, given)))}; "
                f"`{fetch_command(source, given)}` downloads it "
                f"({size_in_words(source.download_size)}), or name the folder that has it by "
                f"--data-dir or {VARIABLE}"
            )
        self.source, self.folder, self.verify = source, folder, verify
        self.differing: dict[str, str] = {}
        self._given = given

    def __call__(self, name: str, parse: Callable[[bytes], Any]) -> Any:
        """Read, check and parse a file.

        Content other than the official one is an error, unless checks are switched off or the data
        set often comes with fewer rows and this file has fewer.
        """
        file = self.source.file(name)
        content = self._content(file)
        official = file.is_held_by(content)
        if not official:
            if self.verify and not self.source.partial:
                raise self._altered(file, content)
            self.differing[name] = hashlib.sha256(content).hexdigest()
        try:
            parsed = parse(content)
        except FormatError as error:
            raise self._altered(file, content, str(error)) from error
        rows = len(parsed[-1]) if isinstance(parsed, tuple) else len(parsed)
        if not official and self.verify and rows >= file.rows:
            raise self._altered(file, content, f"it has {rows:,} rows")
        return parsed

    def _content(self, file: File) -> bytes:
        path = self.folder / file.name
        try:
            return path.read_bytes()
        except OSError as error:
            raise DataError(
                f"{path} cannot be read ({error.strerror}); expected is a file with sha256 "
                f"{file.sha256}, found none; {self._remedy()}"
            ) from error

    def _altered(self, file: File, content: bytes, reason: str = "") -> DataError:
        found = hashlib.sha256(content).hexdigest()
        because = f" ({reason})" if reason else ""
        otherwise = "" if reason else ", verify=False accepts it as it is"
        return DataError(
            f"{self.folder / file.name} is not the official file{because}: sha256 expected "
            f"{file.sha256}, found {found}; bytes expected {file.size:,}, found {len(content):,}; "
            f"{self._remedy()}{otherwise}"
        )

    def _remedy(self) -> str:
        return f"`{fetch_command(self.source, self._given)}` puts it right"


class Finding(NamedTuple):
    """What :func:`look` saw: the folder, if there is one, and in what state its files are."""

    folder: Path | None
    state: str


def look(source: Source, given: Folder = None, *, verify: bool = False) -> Finding:
    """Whether there is a copy of a data set, and whether it is complete.

    Args:
        source: the data set.
        given: where to look; everywhere, if None.
        verify: compute checksums, not only compare sizes.

    Returns:
        The folder and one of "missing", "incomplete" (some files), "subset" (smaller files, of a
        data set that often comes so), "altered" (not the official files), "present" (the official
        sizes), "verified" (the official checksums). Of files packed anew, only those inside count.

    Example:
        >>> from pathspace.experiments.data.catalogue import find_source
        >>> look(find_source("mnist"), "/nowhere")
        Finding(folder=None, state='missing')
    """
    folder = find(source, given)
    if folder is None:
        return Finding(None, "missing")
    paths = {file: folder / file.name for file in source.files}
    if not all(path.is_file() for path in paths.values()):
        return Finding(folder, "incomplete")
    sizes = {file: path.stat().st_size for file, path in paths.items()}
    suspects = paths if verify else {f: path for f, path in paths.items() if sizes[f] != f.size}
    if all(is_official(file, path) for file, path in suspects.items()):
        return Finding(folder, "verified" if verify else "present")
    smaller = all(size <= file.size for file, size in sizes.items())
    smaller &= any(size < file.size for file, size in sizes.items())
    return Finding(folder, "subset" if source.partial and smaller else "altered")


def is_official(file: File, path: Path) -> bool:
    """Whether there is a file with the official content at this path."""
    if not path.is_file() or not (file.unpacked or path.stat().st_size == file.size):
        return False
    return file.is_held_by(path.read_bytes())


def find(source: Source, given: Folder = None) -> Path | None:
    """The first folder that has any file of the data set; the others are not asked for the rest."""
    return next(
        (
            folder
            for folder in _candidates(source, given)
            if any((folder / file.name).is_file() for file in source.files)
        ),
        None,
    )


def data_folder(given: Folder = None) -> Path:
    """Where downloads go: the folder given, or ``$PATHSPACE_DATA``, or the user's cache."""
    chosen = given if given is not None else os.environ.get(VARIABLE)
    return Path(chosen).expanduser() if chosen else _cache()


def fetch_command(source: Source, given: Folder = None) -> str:
    """What to type to have the official files where they are looked for."""
    option = "" if given is None else f" --data-dir {shlex.quote(os.fspath(given))}"
    return f"pathspace data fetch {source.name}{option}"


def sha256(path: Path) -> str:
    """The checksum of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def size_in_words(size: int) -> str:
    """A number of bytes for people.

    Example:
        >>> size_in_words(11_594_722)
        '11.6 MB'
    """
    return f"{size / 1e6:,.1f} MB"


def _candidates(source: Source, given: Folder) -> list[Path]:
    if given is not None:
        root = Path(given).expanduser()
        return [root / source.folder, root]
    roots = dict.fromkeys([data_folder(), _cache()])
    return [root / source.folder for root in roots] + [Path(folder) for folder in source.system]


def _cache() -> Path:
    return Path(require("pooch").os_cache("pathspace"))
