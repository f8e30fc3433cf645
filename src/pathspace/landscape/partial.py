"""Landscapes that survive an interruption: a file with what is computed so far."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import Tensor

from pathspace.errors import PathspaceError
from pathspace.landscape.files import (
    damaged,
    explained,
    make_folder,
    replace_file,
    sealed,
    unsealed,
)
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
        make_folder(folder)
        if self.path.exists():
            held, losses = self._read()
            check_key(folder, held, key)
            if len(losses) > count:
                raise damaged(f"{self.path} is damaged (it holds too many points)", self.path)
            self.done = len(losses)
            self.losses[: self.done] = losses

    def _read(self) -> tuple[Key, Tensor]:
        """The key and the losses in the file."""
        try:
            held = unsealed(self.path.read_bytes())
            key, losses = dict(held["key"]), torch.tensor(held["losses"], dtype=torch.float64)
            if losses.dim() != 1:
                raise ValueError("it holds no list of losses")
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise damaged(f"{self.path} is damaged ({reason})", self.path) from error
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
        replace_file(self.path, sealed({"key": dict(self.key), "losses": losses}))
        self._written = time.monotonic()

    def remove(self) -> None:
        """Remove the file: the landscape is complete and saved."""
        with explained(self.path):
            self.path.unlink(missing_ok=True)


def check_key(folder: Path, held: Key, key: Key) -> None:
    """Refuse to mix two landscapes, saying in what they differ."""
    differing = [name for name in {**held, **key} if held.get(name) != key.get(name)]
    if differing:
        raise PathspaceError(
            f"{folder} holds a landscape of something else: it differs in "
            f"{', '.join(differing)}; take another folder, or delete that one"
        )
