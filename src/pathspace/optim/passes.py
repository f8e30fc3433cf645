"""A step in basis-path values by passes in C: what is summed before it, and what its factors are.

The same in torch's operations is in :mod:`pathspace.optim.basis` and :mod:`pathspace.optim.moves`.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pathspace import native
from pathspace.optim.lists import Group
from pathspace.optim.scaletables import Table
from pathspace.optim.space import Step

if TYPE_CHECKING:
    from pathspace.optim.coordinates import Coordinates

_UNITS = 512  # that are worth another thread
_POINTER, _COUNT, _NUMBER = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


class _Table(ctypes.Structure):
    _fields_ = (*((name, _POINTER) for name in ("values", "index", "place")), ("count", _COUNT))


class _Turn(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in ("slope", "coefficient")),
        ("limit", _NUMBER),
        *((name, _POINTER) for name in ("change", "first", "second")),
        *((name, _POINTER) for name in ("of_first", "of_second", "entered")),
        ("size", _COUNT),
        ("power", _NUMBER),
        *((name, _POINTER) for name in ("exponentials", "log_source", "log_target")),
        ("tables", _Table * 2),
    )


class Passes:
    """What a step reads and writes and where, put down once for as long as that stays the same."""

    def __init__(self, space: Coordinates, step: Step) -> None:
        self._space, dtype = space, space._slopes.dtype
        self._look, self._turn = (native.function(name, dtype) for name in ("look", "turn"))
        self._total = ctypes.c_double()
        given = [n for n, gradient in enumerate(step.gradients) if gradient is not None]
        size, owner = len(space.owner), space.owner.cpu()
        jobs, removed = [], []
        for place in given:
            weight, options = step.weights[place], {}
            if not space.seen[place]:
                options["power"] = -1
            if place in space.apart:
                apart, rows = space.apart[place]
                values = torch.empty_like(space._slopes[: len(rows)])
                options["picked"] = apart, values
                unit = torch.where(rows < size, rows, owner[(rows - size).clamp(min=0)])
                removed.append((values, unit, None))
            wanted = kinds(weight.shape, space._flows[place]) or {}
            jobs.append(native.Job(weight, **wanted, **options))
        for of, unit, where in space._small:
            removed.append((space._flow.memory[of], unit, where))
        self._jobs = (native.SumsFields * len(jobs))(*(job.fields for job in jobs))
        self._removed = (_Table * len(removed))(*(_table(*parts) for parts in removed))
        self._kept = jobs, removed
        self._given = list(zip(self._jobs, given, strict=True))
        self._most = native.threads([step.weights[place] for place in given])
        self._settings: list[tuple[float, float]] = []
        flow = space._flow
        self._added = _table(flow.memory.get(dtype), flow.index.get(dtype))
        self._slopes = space._slopes
        moves = space._moves
        self._fields = _Turn(size=len(space.owner))
        for name in ("first", "second", "of_first", "of_second", "entered", "exponentials"):
            setattr(self._fields, name, getattr(moves, name).data_ptr())
        for slot, table in enumerate((space._factors, space._target)):
            self._fields.tables[slot] = _table(table.memory.get(dtype), table.index.get(dtype))
        self._targets = self._fields.tables[1].count
        self._change = torch.empty_like(space._slopes[:-1])
        self._fields.slope = space._slopes.data_ptr()

    def look(self, step: Step) -> bool:
        """Sum the products that the slopes are made of; whether these and all gradients are finite."""
        settings = [_settings(group) for group in step.groups]
        if settings != self._settings:
            self._set(settings, step)
        pointers = [None if g is None else g.data_ptr() for g in step.gradients]
        for fields, place in self._given:
            fields.gradient = pointers[place]
        failed = self._look(
            self._jobs,
            len(self._jobs),
            min(self._most, torch.get_num_threads()),
            ctypes.byref(self._total),
            self._slopes.data_ptr(),
            len(self._slopes),
            ctypes.byref(self._added),
            self._removed,
            len(self._removed),
        )
        if failed:
            raise MemoryError(native.NO_MEMORY)
        return math.isfinite(self._total.value)

    def _set(self, settings: list[tuple[float, float]], step: Step) -> None:
        """Put down the signs of gradients and the weight decays, when these have changed."""
        self._settings = settings
        for fields, place in self._given:
            fields.sign, fields.decay = settings[step.sheets[place].group]

    def turn(self, change: Tensor, power: float, fills_target: bool) -> None:
        """Write all factors, and move log ρ and log σ; see :meth:`Moves.write`."""
        self._fields.coefficient = None
        self._write(change, power, fills_target)

    def turn_by(self, coefficient: Tensor, limit: float, power: float, fills_target: bool) -> None:
        """The same, with changes that are the slopes times a coefficient, within a limit."""
        self._fields.coefficient, self._fields.limit = coefficient.data_ptr(), limit
        self._write(self._change, power, fills_target)

    def _write(self, change: Tensor, power: float, fills_target: bool) -> None:
        space, fields = self._space, self._fields
        fields.change, fields.power = change.data_ptr(), power
        fields.log_source = space.log_source.data_ptr()
        fields.log_target = space.log_target.data_ptr()
        fields.tables[1].count = self._targets if fills_target else 0
        worth = 1 + len(change) // _UNITS
        self._turn(ctypes.byref(fields), min(worth, torch.get_num_threads()))


def _table(values: Tensor | None, index: Tensor | None, place: Tensor | None = None) -> _Table:
    if values is None or index is None:
        return _Table()
    where = None if place is None else place.data_ptr()
    return _Table(values.data_ptr(), index.data_ptr(), where, len(index))


def _settings(group: Group) -> tuple[float, float]:
    """The sign of the gradients of a group, and the weight decay."""
    return -1.0 if group["maximize"] else 1.0, float(group["weight_decay"])


def kinds(shape: torch.Size, parts: Sequence[Tensor | None]) -> dict[str, Tensor] | None:
    """What parts are of the products of a matrix; ``None`` if one pass cannot write them."""
    rows, columns = shape
    known = {(rows, 1): "along", (1, columns): "across", (rows, columns): "products"}
    wanted: dict[str, Tensor] = {}
    for part in parts:
        if part is not None:
            kind = known.get((part.shape[0], part.shape[1]))
            if kind is None or kind in wanted:
                return None
            wanted[kind] = part
    return None if {"products", "across"} <= wanted.keys() else wanted
