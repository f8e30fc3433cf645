"""Downloads: official files, checked before they are used."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pathspace.experiments.data.archives import unpack
from pathspace.experiments.data.catalogue import find_source
from pathspace.experiments.data.copies import Folder, data_folder, is_official, sha256
from pathspace.experiments.data.errors import DataError, require
from pathspace.experiments.data.sources import File, Source

CHUNK = 1 << 16  # bytes between two steps of the progress bar
TIMEOUT = 30  # seconds without an answer


def fetch(name: str, folder: Folder = None, *, progress: bool | None = None) -> Path:
    """Download a data set, unless its official files are already there.

    A file is used only after its SHA-256 was found right; one that is there and is not the official
    one is replaced. An archive that lies in the data folder is not downloaded again.

    Args:
        name: of the data set.
        folder: the data folder to write to; else ``$PATHSPACE_DATA``, else the user's cache.
        progress: show a bar; by default if the error stream is a terminal.

    Returns:
        The folder of its files.

    Raises:
        DataError: no connection, or not the official content; no file is left behind then.
    """
    source = find_source(name)
    root = data_folder(folder)
    target = root / source.folder
    if _is_official(source, target):
        return target
    shown = sys.stderr.isatty() if progress is None else progress
    for file in source.downloads:
        _download(source, file, target if source.archive is None else root, shown)
    if source.archive is not None:
        archive = root / source.archive.name
        unpack(archive, root, {f"{source.folder}/{f.name}": f.size for f in source.files})
        if not _is_official(source, target):
            raise DataError(f"{archive} is the official archive, but not so the files inside it")
    return target


def _is_official(source: Source, folder: Path) -> bool:
    return all(is_official(file, folder / file.name) for file in source.files)


def _download(source: Source, file: File, folder: Path, progress: bool) -> None:
    """Have a file in a folder, from the first host that gives it."""
    pooch = require("pooch")
    failures = []
    for host in source.hosts:
        url = f"{host}/{file.name}"
        try:
            with _quiet():
                pooch.retrieve(
                    url,
                    known_hash=f"sha256:{file.sha256}",
                    fname=file.name,
                    path=folder,
                    downloader=_Downloader(file, progress),
                )
            return
        except (OSError, DataError) as error:  # the errors of requests are OSErrors
            failures.append((url, error))
    reasons = "".join(f"\n  {url}: {_reason(error)}" for url, error in failures)
    raise DataError(
        f"cannot download {file.name}{reasons}\nTry again later, or put the file (sha256 "
        f"{file.sha256}) into {folder} yourself and run the same command again"
    ) from failures[-1][1]


def _reason(error: Exception) -> str:
    """Why a download failed, in a few words."""
    exceptions = require("requests").exceptions
    if isinstance(error, exceptions.HTTPError) and error.response is not None:
        return f"the server says {error.response.status_code} {error.response.reason}"
    if isinstance(error, exceptions.Timeout):
        return "no answer in time"
    if isinstance(error, exceptions.ConnectionError):
        return "no connection"
    if isinstance(error, exceptions.ChunkedEncodingError):
        return "the connection broke off"
    return str(error)


class _Downloader:
    """What pooch calls to fill a temporary file, which it keeps if this returns.

    Its own one leaves the connection open after an error, and does not say what it got when that is
    not what it should be.
    """

    def __init__(self, file: File, progress: bool) -> None:
        self.file, self.progress = file, progress

    def __call__(self, url: str, output_file: str, pooch: Any) -> None:
        path = Path(output_file)
        plain = {"Accept-Encoding": "identity"}  # requests would unpack a .gz file on the way
        with (
            require("requests").get(url, headers=plain, stream=True, timeout=TIMEOUT) as response,
            path.open("wb") as output,
            _bar(self.file, self.progress) as advance,
        ):
            response.raise_for_status()
            for chunk in response.iter_content(CHUNK):
                output.write(chunk)
                advance(len(chunk))
        found = sha256(path)
        if found != self.file.sha256:
            raise DataError(
                f"{self.file.name} is not the official file: sha256 expected {self.file.sha256}, "
                f"found {found}; bytes expected {self.file.size:,}, found {path.stat().st_size:,}"
            )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No lines of pooch's own between ours."""
    logger = require("pooch").get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def _bar(file: File, wanted: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar on the error stream, and what moves it; rich need not be installed."""
    if not wanted or importlib.util.find_spec("rich") is None:
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn(file.name), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as display:
        task = display.add_task(file.name, total=file.size)
        yield lambda count: display.advance(task, count)
