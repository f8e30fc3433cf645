"""Landscapes that survive an interruption: a file with what is computed so far."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import torch
from torch import Tensor

from pathspace.errors import PathspaceError
from pathspace.landscape.fingerprints import Key

NAME = "landscape.partial.json"
INTERVAL = 1.0  # seconds between two writes


class Partial:
    """The losses computed so far, in a file of a folder that is replaced as a whole.

    Args:
        folder: where to keep the file; created if need be.
        key: what determines the losses; a file with another key is an error that says what differs.
        count: number of points.
    """

    def __init__(self, folder: Path, key: Key, count: int) -> None:
        self.path, self.key = folder / NAME, key
        self.losses = torch.full((count,), float("nan"), dtype=torch.float64)
        self.done = 0
        self._written = time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            held, losses = self._read()
            check_key(folder, held, key)
            self.done = len(losses)
            self.losses[: self.done] = losses

    def _read(self) -> tuple[Key, Tensor]:
        """The key and the losses in the file."""
        try:
            held = json.loads(self.path.read_text(encoding="utf-8"))
            key, losses = dict(held["key"]), torch.tensor(held["losses"], dtype=torch.float64)
            if losses.dim() != 1 or len(losses) > len(self.losses):
                raise ValueError("it holds more than the landscape has points")
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise PathspaceError(
                f"{self.path} is damaged ({type(error).__name__}: {error}); delete it to begin anew"
            ) from error
        return key, losses

    def add(self, losses: Tensor) -> None:
        """Note the losses of the next points; written at most once per :data:`INTERVAL`."""
        self.losses[self.done : self.done + len(losses)] = losses
        self.done += len(losses)
        if time.monotonic() - self._written > INTERVAL:
            self.write()

    def write(self) -> None:
        """Replace the file by what is known now."""
        losses = self.losses[: self.done].tolist()  # Python writes floats so that they come back
        write_text(self.path, json.dumps({"key": dict(self.key), "losses": losses}))
        self._written = time.monotonic()

    def remove(self) -> None:
        """Remove the file: the landscape is complete and saved."""
        self.path.unlink(missing_ok=True)


def check_key(folder: Path, held: Key, key: Key) -> None:
    """Refuse to mix two landscapes, saying in what they differ."""
    differing = [name for name in {**held, **key} if held.get(name) != key.get(name)]
    if differing:
        raise PathspaceError(
            f"{folder} holds a landscape of something else: it differs in "
            f"{', '.join(differing)}; take another folder, or delete that one"
        )


def write_text(path: Path, text: str) -> None:
    """Write a file that is there as a whole or not at all."""
    replace_file(path, text.encode())


def replace_file(path: Path, content: bytes) -> None:
    """Write bytes to a file of another name, then give it the name."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(content)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
