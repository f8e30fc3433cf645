"""A step in basis-path values by passes in C: what is summed before it, and what its factors are.

The same in torch's operations is in :mod:`pathspace.optim.basis` and :mod:`pathspace.optim.moves`.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pathspace import native
from pathspace.optim.scaletables import Table
from pathspace.optim.space import Step

if TYPE_CHECKING:
    from pathspace.optim.coordinates import Coordinates

_POINTER, _COUNT, _NUMBER = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


class _Entries(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in ("weight", "gradient", "place", "unit")),
        ("count", _COUNT),
        *((name, _NUMBER) for name in ("sign", "decay")),
    )


class _Table(ctypes.Structure):
    _fields_ = (("values", _POINTER), ("index", _POINTER), ("count", _COUNT))


class _Turn(ctypes.Structure):
    _fields_ = (
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
        # Sheets with a gradient: those whose products are summed, and those that are only looked at.
        given = [n for n, gradient in enumerate(step.gradients) if gradient is not None]
        self._places = sorted(given, key=lambda place: not space.seen[place])
        self._summed = sum(space.seen[place] for place in given)
        self._weights = [step.weights[place] for place in self._places]
        wanted = [kinds(step.weights[n].shape, space._flows[n]) or {} for n in self._places]
        jobs = [native.Job(w, **parts) for w, parts in zip(self._weights, wanted, strict=True)]
        self._jobs = (native.SumsFields * len(jobs))(*(job.fields for job in jobs))
        self._kept = jobs
        self._flow, self._slopes = _table(space._flow, dtype), space._slopes
        self._own_products(space, step)
        moves = space._moves
        self._fields = _Turn(size=len(space.owner))
        for name in ("first", "second", "of_first", "of_second", "entered", "exponentials"):
            setattr(self._fields, name, getattr(moves, name).data_ptr())
        self._tables = [_table(table, dtype) for table in (space._factors, space._target)]
        self._fields.tables[0] = self._tables[0]

    def _own_products(self, space: Coordinates, step: Step) -> None:
        """Where the products of roots and free weights are: in the table, or to be computed."""
        size, owner = len(space.owner), space.owner.cpu()
        found = [
            (None, space._flow.memory[dtype], where, unit) for dtype, unit, where in space._small
        ]
        for place, rows, where in space._large.parts:
            if step.gradients[place] is not None:
                unit = torch.where(rows < size, rows, owner[(rows - size).clamp(min=0)])
                found.append((place, step.weights[place], where, unit))
        self._entries, self._owners = (_Entries * len(found))(), [place for place, *_ in found]
        for fields, (_, weight, where, unit) in zip(self._entries, found, strict=True):
            fields.weight, fields.count = weight.data_ptr(), len(where)
            fields.place, fields.unit = where.data_ptr(), unit.data_ptr()
        self._found = found

    def look(self, step: Step) -> bool:
        """Sum the products that the slopes are made of; whether these and all gradients are finite."""
        pointers = [None if g is None else g.data_ptr() for g in step.gradients]
        settings = [_settings(step, place) for place in range(len(step.sheets))]
        for number, (fields, place) in enumerate(zip(self._jobs, self._places, strict=True)):
            if number < self._summed:
                fields.gradient = pointers[place]
                fields.sign, fields.decay = settings[place]
            else:
                fields.weight = pointers[place]
        for entries, place in zip(self._entries, self._owners, strict=True):
            if place is not None:
                entries.gradient = pointers[place]
                entries.sign, entries.decay = settings[place]
        failed = self._look(
            self._jobs,
            len(self._jobs),
            native.threads(self._weights),
            ctypes.byref(self._total),
            ctypes.byref(self._flow),
            self._slopes.data_ptr(),
            len(self._slopes),
            self._entries,
            len(self._entries),
        )
        if failed:
            raise MemoryError(native.NO_MEMORY)
        return math.isfinite(self._total.value)

    def turn(self, change: Tensor, power: float, fills_target: bool) -> None:
        """Write all factors, and move log ρ and log σ; see :meth:`Moves.write`."""
        space, fields = self._space, self._fields
        fields.change, fields.power = change.data_ptr(), power
        fields.log_source = space.log_source.data_ptr()
        fields.log_target = space.log_target.data_ptr()
        fields.tables[1] = self._tables[1] if fills_target else _Table()
        self._turn(ctypes.byref(fields))


def _table(table: Table, dtype: torch.dtype) -> _Table:
    if dtype not in table.index:
        return _Table()
    memory, index = table.memory[dtype], table.index[dtype]
    return _Table(memory.data_ptr(), index.data_ptr(), len(memory))


def _settings(step: Step, place: int) -> tuple[float, float]:
    """The sign of the gradients of a sheet, and the weight decay."""
    group = step.group(step.sheets[place])
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
