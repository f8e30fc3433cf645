"""Files of landscapes: there as a whole or not at all; altered ones are noticed and set aside."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pathspace.errors import PathspaceError

SEAL = "sha256"  # the key of the checksum in a JSON file
DRAFT = ".part"  # ends the name of a file that is being written
PICTURES = ".pictures"  # begins the name of a folder of pictures that are being drawn
DAMAGED = "damaged"  # the folder of what was set aside
REMEDIES = {
    errno.ENOSPC: "free some space; the same command then goes on from what is kept",
    errno.EDQUOT: "free some of your quota; the same command then goes on from what is kept",
    errno.EROFS: "choose a folder on a disk that can be written",
    errno.EACCES: "choose a folder that you may write, or change its permissions",
    errno.EPERM: "choose a folder that you may write, or change its permissions",
}


class DamagedLandscape(PathspaceError):
    """A file of a landscape is not what was written: cut off, altered, or from somewhere else."""


def sealed(data: Mapping[str, Any]) -> bytes:
    """JSON that carries its own checksum.

    Example:
        >>> unsealed(sealed({"losses": [0.1, float("nan")]}))
        {'losses': [0.1, nan]}
        >>> unsealed(sealed({"losses": [0.1]}).replace(b"0.1", b"0.3"))
        Traceback (most recent call last):
        ValueError: the content does not match its checksum
    """
    return f"{json.dumps({**data, SEAL: _digest(data)}, indent=2, ensure_ascii=False)}\n".encode()


def unsealed(content: bytes) -> dict[str, Any]:
    """What was sealed.

    Raises:
        ValueError: it is something else, or was altered.
    """
    data = json.loads(content)
    seal = data.pop(SEAL, None) if isinstance(data, dict) else None
    if seal is None:
        raise ValueError("the content has no checksum")
    if _digest(data) != seal:
        raise ValueError("the content does not match its checksum")
    found: dict[str, Any] = data
    return found


def make_folder(folder: Path) -> None:
    """Create a folder, and remove what killed processes left there of files."""
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for draft in (*folder.glob(f".landscape.*{DRAFT}"), *folder.glob(f"{PICTURES}.*{DRAFT}")):
            if not _is_written(draft):
                shutil.rmtree(draft) if draft.is_dir() else draft.unlink(missing_ok=True)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file that is there as a whole or not at all: forced to the disk, then named."""
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


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what the system says about a file into an error with a remedy."""
    try:
        yield
    except OSError as error:
        said = error.strerror or str(error)
        remedy = REMEDIES.get(error.errno or 0, "choose another folder")
        raise PathspaceError(f"{path} cannot be written: {said}; {remedy}") from error


def damaged(said: str, *paths: Path) -> DamagedLandscape:
    """Set files aside, so that the same command begins anew; the error that says so."""
    folder = paths[0].parent / DAMAGED
    number = 1
    while any((folder / f"{path.stem}-{number}{path.suffix}").exists() for path in paths):
        number += 1
    try:
        folder.mkdir(exist_ok=True)
        for path in paths:
            if path.exists():
                os.replace(path, folder / f"{path.stem}-{number}{path.suffix}")
    except OSError:
        return DamagedLandscape(f"{said}; delete it to begin anew")
    return DamagedLandscape(
        f"{said}; set aside in {folder}, where you may delete it; the same command begins anew"
    )


def _digest(data: Mapping[str, Any]) -> str:
    """SHA-256 of data as JSON, in the one spelling with sorted keys and no spaces."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _is_written(draft: Path) -> bool:
    """Whether the process that a draft is named after is still there, so that it may write it."""
    number = draft.name.removesuffix(DRAFT).rpartition(".")[2]
    if os.name == "nt":  # where `kill` with signal 0 would end the process
        return True
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, ValueError, OverflowError):  # somebody else's, or no process at all
        return True
    return True
