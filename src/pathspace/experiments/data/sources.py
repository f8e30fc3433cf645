"""What a data set that lives in files consists of, and how one is found by name."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from pathspace.experiments.data.dataset import Split


class Read(Protocol):
    """Gives what a parser makes of the file of that name, its checksum looked at."""

    def __call__(self, name: str, parse: Callable[[bytes], Any]) -> Any:
        """Read, check and parse one file."""


@dataclass(frozen=True)
class File:
    """A file as its authors published it.

    Attributes:
        name: as published.
        size: in bytes.
        sha256: its checksum.
        rows: how many it holds.
        unpacked: checksum of what is inside a gzip file; empty if it is none. Distributions and
            people pack files anew, which changes every other number but not this one.

    Example:
        >>> content = gzip.compress(b"abc", mtime=1)
        >>> inside = hashlib.sha256(b"abc").hexdigest()
        >>> file = File("a.gz", len(content), hashlib.sha256(content).hexdigest(), unpacked=inside)
        >>> again, other = gzip.compress(b"abc", 1, mtime=2), gzip.compress(b"abd", mtime=1)
        >>> file.is_held_by(content), file.is_held_by(again), file.is_held_by(other)
        (True, True, False)
    """

    name: str
    size: int
    sha256: str
    rows: int = 0
    unpacked: str = ""

    def is_held_by(self, content: bytes) -> bool:
        """Whether these bytes are the file, or the same content packed anew."""
        if hashlib.sha256(content).hexdigest() == self.sha256:
            return True
        if not self.unpacked:
            return False
        try:
            return hashlib.sha256(gzip.decompress(content)).hexdigest() == self.unpacked
        except (OSError, EOFError, zlib.error):  # not a whole gzip file
            return False


@dataclass(frozen=True)
class Source:
    """A data set that lives in files.

    Attributes:
        name: what a person types.
        title: what a person reads.
        folder: the folder of the files, as the official archive calls it.
        files: all that is needed of them.
        hosts: addresses that have the same downloads, tried in turn.
        rows: of training and of test.
        read: makes the two splits of the files; None if they are not images.
        classes: how many there are.
        terms: licence or condition of use.
        archive: what contains the files; None if they are downloaded one by one.
        partial: whether copies with fewer rows are common, and so accepted with a note.
        system: folders in which a distribution installs the files.
    """

    name: str
    title: str
    folder: str
    files: tuple[File, ...]
    hosts: tuple[str, ...]
    rows: tuple[int, int]
    read: Callable[[Read], tuple[Split, Split]] | None
    classes: int
    terms: str
    archive: File | None = None
    partial: bool = False
    system: tuple[str, ...] = ()

    @property
    def downloads(self) -> tuple[File, ...]:
        """What is fetched: the archive, or else the files themselves."""
        return self.files if self.archive is None else (self.archive,)

    @property
    def download_size(self) -> int:
        """Bytes to fetch."""
        return sum(file.size for file in self.downloads)

    def file(self, name: str) -> File:
        """The file of that name."""
        return next(file for file in self.files if file.name == name)
