"""One process at a time: locks that end with the process that holds them.

Where the system has it, the lock is ``flock``, which a killed process cannot leave behind. Where it
has not (or the file system refuses), the file itself is the lock; one whose process is gone from
this host is removed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pathspace.durable.errors import Busy, explained

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
POLL = 0.1  # seconds between two looks at a lock that is waited for


@contextlib.contextmanager
def locked(
    path: Path, what: str, *, wait: bool = True, note: Callable[[str], object] = lambda said: None
) -> Iterator[None]:
    """Hold the lock on something, so that no other process works on it.

    Args:
        path: of the lock file.
        what: the other process does to what, in words.
        wait: until the other one is done.
        note: is told whom we wait for.

    Raises:
        Busy: another process has it, and ``wait`` is off.
    """
    lock = Lock(path)
    if not lock.acquire():
        who = f"{lock.holder()} {what} ({path})"
        if not wait:
            raise Busy(f"{who}; wait for it, or end it")
        note(f"{who}; waiting for it")
        while not lock.acquire():
            time.sleep(POLL)
    try:
        yield
    finally:
        lock.release()


class Lock:
    """A lock between processes, on this host or on all that see the same disk.

    Args:
        path: of the lock file; it says who holds the lock, and is removed at the end.
        flock: use the system's locks; otherwise the file itself is the lock.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "trial.lock"
        >>> first, second = Lock(path), Lock(path)
        >>> first.acquire(), second.acquire()
        (True, False)
        >>> first.release()
        >>> second.acquire()
        True
        >>> second.release()
    """

    def __init__(self, path: Path, *, flock: bool = True) -> None:
        self.path = path
        self._flock = flock and fcntl is not None
        self._handle: int | None = None

    def acquire(self) -> bool:
        """Take the lock if nobody has it."""
        with explained(self.path):
            if self._flock:
                try:
                    return self._acquire_flock()
                except OSError as error:
                    if error.errno not in UNSUPPORTED:
                        raise
                    self._flock = False
            return self._acquire_file()

    def release(self) -> None:
        """Give the lock back."""
        if self._handle is None:
            return
        self.path.unlink(missing_ok=True)  # while it is still ours
        os.close(self._handle)
        self._handle = None

    def holder(self) -> str:
        """Who has the lock, in words."""
        held = self._read()
        return f"process {held['pid']} on {held['host']}" if held else "another process"

    def _acquire_flock(self) -> bool:
        while True:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                return False
            except OSError:
                os.close(handle)
                raise
            if self._is_current(handle):
                os.ftruncate(handle, 0)
                self._sign(handle)
                return True
            os.close(handle)  # the holder removed the file between our two calls: try the new one

    def _is_current(self, handle: int) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), os.stat(self.path))
        except FileNotFoundError:
            return False

    def _acquire_file(self) -> bool:
        for _ in range(2):
            try:
                handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            except FileExistsError:
                if not self._remove_stale():
                    return False
                continue
            self._sign(handle)
            return True
        return False

    def _remove_stale(self) -> bool:
        """Remove the file of a process that is gone; whether it was."""
        held = self._read()
        if held is None or held["host"] != socket.gethostname() or _is_alive(held["pid"]):
            return False
        aside = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            os.rename(self.path, aside)  # only one process can do that
            aside.unlink()
        return True

    def _sign(self, handle: int) -> None:
        self._handle = handle
        signature = json.dumps({"pid": os.getpid(), "host": socket.gethostname()})
        try:
            os.write(handle, signature.encode())
        except OSError:  # no space: nobody must wait for a lock that was not taken
            self.release()
            raise

    def _read(self) -> dict[str, Any] | None:
        try:
            held = json.loads(self.path.read_text(encoding="utf-8"))
            return held if {"pid", "host"} <= held.keys() else None
        except (OSError, ValueError, AttributeError):
            return None


def _is_alive(pid: int) -> bool:
    if os.name == "nt":  # where `kill` with signal 0 would end the process
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True
