"""A step in basis-path values by passes in C: what is summed before it, and what its factors are.

The same in torch's operations is in :mod:`pathspace.optim.basis` and :mod:`pathspace.optim.moves`.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

import torch
from torch import Tensor

from pathspace import native
from pathspace.optim.lists import Group
from pathspace.optim.space import Step

if TYPE_CHECKING:
    from pathspace.optim.coordinates import Coordinates

Logs = tuple[Tensor, Tensor]  # (H+1,) log ρ and log σ, in float64
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
        *((name, _POINTER) for name in ("child", "own_scale")),
        ("tables", _Table * 2),
    )


class Passes:
    """What a step reads and writes and where, put down once for as long as that stays the same."""

    def __init__(self, space: Coordinates, step: Step) -> None:
        self._slopes = space._slopes
        dtype, flow = self._slopes.dtype, space._flow
        self._look, self._turn = (native.function(name, dtype) for name in ("look", "turn"))
        self._total = ctypes.c_double()
        jobs, given = [], []
        removed: list[tuple[Tensor, Tensor, Tensor | None]] = [
            (flow.memory[of], unit, where) for of, unit, where in space._small
        ]
        for place, weight in enumerate(step.weights):
            parts = space._flows[place]
            if step.gradients[place] is None:
                for part in parts:
                    if part is not None:
                        part.zero_()
                continue
            picked = None
            if place in space.apart:
                apart, rows = space.apart[place]
                picked = apart, torch.empty_like(self._slopes[: len(rows)])
                removed.append((picked[1], _owners(space, rows), None))
            power = 0 if space.seen[place] else -1
            jobs.append(native.Job(weight, power=power, picked=picked, **_named(weight, parts)))
            given.append(place)
        self._jobs = (native.SumsFields * len(jobs))(*(job.fields for job in jobs))
        self._given = list(zip(self._jobs, given, strict=True))
        self._most = native.threads([step.weights[place] for place in given])
        self._settings: list[tuple[float, float]] = []
        self._added = _table(flow.memory.get(dtype), flow.index.get(dtype))
        self._removed = (_Table * len(removed))(*(_table(*some) for some in removed))
        self._fields = _Turn(size=len(space.owner), slope=self._slopes.data_ptr())
        for name in ("first", "second", "of_first", "of_second", "entered", "exponentials"):
            setattr(self._fields, name, getattr(space._moves, name).data_ptr())
        if space.is_free_moving:
            self._fields.child = space.child.data_ptr()
            self._fields.own_scale = space._own_scale[len(space.owner) :].data_ptr()
        for slot, table in enumerate((space._factors, space._target)):
            self._fields.tables[slot] = _table(table.memory.get(dtype), table.index.get(dtype))
        self._targets = self._fields.tables[1].count
        tables = flow, space._factors, space._target
        self._kept = jobs, removed, space._moves, space.child, space._own_scale, tables

    def look(self, step: Step) -> bool:
        """Sum what slopes are made of; whether that and all gradients are finite."""
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

    def turn(self, change: Tensor, logs: Logs, power: float, fills_target: bool) -> None:
        """Write all factors, and move log ρ and log σ; see :meth:`Moves.write`."""
        self._fields.coefficient, self._fields.change = None, change.data_ptr()
        self._write(logs, power, fills_target)

    def turn_by(
        self, coefficient: Tensor, limit: float, logs: Logs, power: float, fills_target: bool
    ) -> None:
        """The same, with changes that are the slopes times a coefficient, within a limit."""
        self._fields.coefficient, self._fields.limit = coefficient.data_ptr(), limit
        self._write(logs, power, fills_target)

    def _write(self, logs: Logs, power: float, fills_target: bool) -> None:
        fields, (source, target) = self._fields, logs
        fields.power = power
        fields.log_source, fields.log_target = source.data_ptr(), target.data_ptr()
        fields.tables[1].count = self._targets if fills_target else 0
        worth = 1 + fields.size // _UNITS
        self._turn(ctypes.byref(fields), min(worth, torch.get_num_threads()))


def _owners(space: Coordinates, rows: Tensor) -> Tensor:
    """The units whose slopes products of roots and free weights belong to, given as entries."""
    size, owner = len(space.owner), space.owner.cpu()
    return torch.where(rows < size, rows, owner[(rows - size).clamp(min=0)])


def _table(values: Tensor | None, index: Tensor | None, place: Tensor | None = None) -> _Table:
    if values is None or index is None:
        return _Table()
    where = None if place is None else place.data_ptr()
    return _Table(values.data_ptr(), index.data_ptr(), where, len(index))


def _settings(group: Group) -> tuple[float, float]:
    """The sign of the gradients of a group, and the weight decay."""
    return -1.0 if group["maximize"] else 1.0, float(group["weight_decay"])


class Sums(TypedDict, total=False):
    """What the parts of a table are of the products of a matrix."""

    along: Tensor
    across: Tensor
    products: Tensor


def is_one_pass(weight: Tensor, parts: Sequence[Tensor | None]) -> bool:
    """Whether all parts of the products of a matrix can be written by one pass."""
    given = [part for part in parts if part is not None]
    found = _named(weight, given)
    return len(found) == len(given) and not {"products", "across"} <= found.keys()


def _named(weight: Tensor, parts: Sequence[Tensor | None]) -> Sums:
    """The parts that are sums along rows or over them, or the products themselves."""
    rows, columns = weight.shape
    found: Sums = {}
    for part in parts:
        if part is not None and part.shape == weight.shape:
            found["products"] = part
        elif part is not None and part.shape == (rows, 1):
            found["along"] = part
        elif part is not None and part.shape == (1, columns):
            found["across"] = part
    return found
