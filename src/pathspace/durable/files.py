"""Files that are there as a whole or not at all, and that show whether they were altered.

A file is written under another name, forced to the disk, and then given its name, so that neither
a killed process nor a power cut leaves half of one.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pathspace.durable.errors import Damaged, explained

DRAFT = ".part"  # ends the name of a file that is being written
SEAL = "sha256"  # the key of the checksum in a sealed JSON file


def write_file(path: Path, content: bytes) -> None:
    """Write a file atomically and durably.

    Raises:
        StoreError: the disk is full, or cannot be written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}{DRAFT}")
    with explained(path):
        try:
            with draft.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)
        sync_folder(path.parent)


@contextlib.contextmanager
def drafted(path: Path) -> Iterator[Path]:
    """Another name, with the same ending, for a file that others write; then it has its own.

    Raises:
        StoreError: the disk is full, or cannot be written.
    """
    with explained(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        draft = path.with_name(f".{path.stem}.{os.getpid()}{DRAFT}{path.suffix}")
        try:
            yield draft
            with draft.open("rb+") as file:
                os.fsync(file.fileno())
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to the disk, where the system can do that."""
    if os.name == "nt":  # folders cannot be opened there
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def move(source: Path, target: Path) -> None:
    """Give a folder another name, durably."""
    with explained(target):
        os.rename(source, target)
        for parent in {source.parent, target.parent}:
            sync_folder(parent)


def remove_drafts(folder: Path, name: str = "*") -> None:
    """Remove what killed processes left of a file; only for who holds the lock on it."""
    with explained(folder):
        for draft in folder.glob(f".{name}.*{DRAFT}"):
            draft.unlink(missing_ok=True)


def set_aside(path: Path, folder: Path, reason: str) -> Path:
    """Move what is damaged, a file or a folder, to another folder, with the reason; where it is."""
    with explained(folder):
        folder.mkdir(exist_ok=True)
        number = 1
        while (target := folder / f"{path.stem}-{number}{path.suffix}").exists():
            number += 1
        move(path, target)
        beside = target / "reason.txt" if target.is_dir() else target.with_suffix(".txt")
        beside.write_text(f"{reason}\n", encoding="utf-8")
    return target


def read_file(path: Path) -> bytes:
    """The content of a file.

    Raises:
        Damaged: there is none.
        StoreError: it cannot be read.
    """
    if not path.is_file():
        raise Damaged(f"{path} is missing")
    with explained(path, "read"):
        return path.read_bytes()


def checksum(path: Path) -> str:
    """SHA-256 of a file."""
    with explained(path, "read"), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def canonical(data: Any) -> str:
    """The one spelling of data as JSON: keys sorted, no spaces.

    Example:
        >>> canonical({"b": 0.1, "a": (1, None)})
        '{"a":[1,null],"b":0.1}'
    """
    return json.dumps(
        data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def sealed(data: Mapping[str, Any]) -> bytes:
    """JSON that carries its own checksum.

    Example:
        >>> unsealed(sealed({"a": 1}))
        {'a': 1}
        >>> unsealed(sealed({"a": 1}).replace(b"1", b"2", 1))
        Traceback (most recent call last):
        pathspace.durable.errors.Damaged: the content does not match its checksum
    """
    seal = hashlib.sha256(canonical(data).encode()).hexdigest()
    text = json.dumps({**data, SEAL: seal}, indent=2, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode()


def unsealed(content: bytes) -> dict[str, Any]:
    """What was sealed.

    Raises:
        Damaged: it is not JSON, or was altered.
    """
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:  # of UTF-8 as well as of JSON
        raise Damaged(f"the content is not JSON: {error}") from error
    seal = data.pop(SEAL, None) if isinstance(data, dict) else None
    if seal is None:
        raise Damaged("the content has no checksum, so it is not from here")
    try:
        text = canonical(data)
    except ValueError as error:  # NaN, which is never written
        raise Damaged(f"the content is not JSON: {error}") from error
    if hashlib.sha256(text.encode()).hexdigest() != seal:
        raise Damaged("the content does not match its checksum")
    return data


def read_sealed(path: Path) -> dict[str, Any]:
    """The data of a sealed file; an error names the file."""
    content = read_file(path)
    try:
        return unsealed(content)
    except Damaged as error:
        raise Damaged(f"{path}: {error}") from None
