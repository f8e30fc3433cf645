"""What can be wrong with what is kept, in words that name the file and the remedy."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from pathspace.errors import PathspaceError


class StoreError(PathspaceError):
    """What is kept cannot be used as it is asked to: no space, no permission, not a store."""


class Damaged(StoreError):
    """A file is not what was written: cut off, altered, or from somewhere else."""


class Busy(StoreError):
    """Another process works on the same thing."""


REMEDIES = {
    errno.ENOSPC: "free some space; the same command then goes on where it was",
    errno.EDQUOT: "free some of your quota; the same command then goes on where it was",
    errno.EROFS: "choose a folder on a disk that can be written",
    errno.EACCES: "choose a folder that you may write, or change its permissions",
    errno.EPERM: "choose a folder that you may write, or change its permissions",
    errno.ENOTDIR: "a part of that path is a file; choose another folder",
}


@contextlib.contextmanager
def explained(path: Path, verb: str = "written") -> Iterator[None]:
    """Turn what the system says about a file into a :class:`StoreError` with a remedy.

    Example:
        >>> with explained(Path("runs/trials")):
        ...     raise OSError(errno.ENOSPC, "No space left on device")
        Traceback (most recent call last):
        pathspace.durable.errors.StoreError: runs/trials cannot be written: No space ...
    """
    try:
        yield
    except OSError as error:
        remedy = REMEDIES.get(error.errno or 0, "")
        said = error.strerror or str(error)
        raise StoreError(
            f"{path} cannot be {verb}: {said}{f'; {remedy}' if remedy else ''}"
        ) from error
