"""Landscapes that survive an interruption: a file with what is computed so far."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import Tensor

from pathspace.durable.errors import Damaged, StoreError, explained
from pathspace.durable.files import (
    read_file,
    remove_drafts,
    sealed,
    set_aside,
    unsealed,
    write_file,
)
from pathspace.errors import PathspaceError
from pathspace.losslandscape.fingerprints import Key

NAME = "landscape.partial.json"
INTERVAL = 1.0  # seconds between two writes
DAMAGED = "damaged"  # the folder of what was set aside


class Partial:
    """The losses computed so far, in a file of a folder that is replaced as a whole.

    Args:
        folder: where to keep the file; nobody else may work there.
        key: what determines the losses; a file with another key is an error that says what differs.
        count: number of points.
    """

    def __init__(self, folder: Path, key: Key, count: int) -> None:
        self.path, self.key = folder / NAME, key
        self.losses = torch.full((count,), float("nan"), dtype=torch.float64)
        self.done = 0
        self._written = time.monotonic()
        remove_drafts(folder)
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
            held = unsealed(read_file(self.path))
            losses = [float(loss) for loss in held["losses"]]
            return dict(held["key"]), torch.tensor(losses, dtype=torch.float64)
        except (Damaged, KeyError, TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise damaged(f"{self.path} is damaged ({reason})", self.path) from error

    def add(self, losses: Tensor) -> None:
        """Note the losses of the next points; written at most once per :data:`INTERVAL`."""
        self.losses[self.done : self.done + len(losses)] = losses
        self.done += len(losses)
        if time.monotonic() - self._written > INTERVAL:
            self.write()

    def write(self) -> None:
        """Replace the file by what is known now."""
        # Python writes floats so that they come back; as text, because JSON has no NaN.
        losses = [str(loss) for loss in self.losses[: self.done].tolist()]
        write_file(self.path, sealed({"key": dict(self.key), "losses": losses}))
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


def damaged(said: str, *paths: Path) -> Damaged:
    """Set files aside, so that the same call begins anew; the error that says so."""
    folder = paths[0].parent / DAMAGED
    try:
        for path in paths:
            if path.exists():
                set_aside(path, folder, said)
    except StoreError:
        return Damaged(f"{said}; delete it to begin anew")
    return Damaged(
        f"{said}; set aside in {folder}, where you may delete it; the same command begins anew"
    )
