r"""Passes over matrices in C, where torch's operations would be several passes each.

``kernels.c`` beside this file is compiled when it is first needed, by the C compiler of the system,
in about a second and for its processor; nothing is kept on the disk. It works on the threads of
torch. Everything here has the same in torch's operations where it is used, for other devices and
dtypes, and for systems without a compiler; the environment variable ``PATHSPACE_NATIVE=0`` asks for
these everywhere.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

SOURCE = Path(__file__).with_name("kernels.c")
VARIABLE = "PATHSPACE_NATIVE"
# Nobody asks for floating-point exceptions or errno; with them, loops with conditions or roots are
# not made into vectors.
FLAGS = ("-O3", "-fopenmp-simd", "-fno-trapping-math", "-fno-math-errno", "-fPIC", "-shared")
GRAIN = 2**15  # entries that are worth another thread, as in torch
SINGLE = 2**11  # the same for entries that are scattered
POWERS = (1, 2, 4)
NO_MEMORY = "no memory for the sums over rows of large weights"
_DTYPES = {torch.float32: "float32", torch.float64: "float64"}
_PATIENCE = 60  # seconds for the compiler


class _Factor(ctypes.Structure):
    _fields_ = (("at", ctypes.c_void_p), ("row", ctypes.c_int64), ("column", ctypes.c_int64))


class _Step(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "gradient")),
        *((name, ctypes.c_int64) for name in ("rows", "columns")),
        *((name, ctypes.c_double) for name in ("rate", "sign", "decay")),
        *((name, _Factor * 2) for name in ("scale", "penalty", "back")),
        *((name, ctypes.c_void_p) for name in ("start", "apart", "owner", "own", "own_scale")),
    )


class SumsFields(ctypes.Structure):
    """What C is told of a :class:`Job`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "gradient", "added", "products")),
        *((name, ctypes.c_int64) for name in ("rows", "columns", "power")),
        *((name, ctypes.c_double) for name in ("sign", "decay", "scale")),
        *((name, ctypes.c_void_p) for name in ("row", "column", "start", "apart", "picks")),
        *((name, ctypes.c_void_p) for name in ("picked", "values", "along", "across", "sums")),
    )


class Apart(NamedTuple):
    """Single entries of a matrix.

    Attributes:
        start: (rows + 1,) where those of each row start in the lists of all.
        columns: their columns, in order within a row.
        order: which of the flat places that they were made of each of them is.
    """

    start: Tensor
    columns: Tensor
    order: Tensor

    @classmethod
    def at(cls, places: Tensor, shape: tuple[int, int]) -> Apart:
        """From flat places, all different."""
        rows, columns = shape
        found, order = places.sort()
        start = torch.searchsorted(found, torch.arange(rows + 1) * columns)
        return cls(start, found % max(1, columns), order)


def fits(*tensors: Tensor | None) -> bool:
    """Whether passes in C can be made over these tensors: matrices and vectors of one dtype."""
    given = [tensor for tensor in tensors if tensor is not None]
    dtype = given[0].dtype
    return (
        dtype in _DTYPES
        and all(
            type(tensor) in _TYPES
            and tensor.dtype == dtype
            and tensor.device.type == "cpu"
            and tensor.is_contiguous()
            for tensor in given
        )
        and is_available()
    )


def is_available() -> bool:
    """Whether there are passes in C here and now: not where torch follows what is done."""
    return (
        not torch.compiler.is_compiling()
        and torch._C._functorch.peek_interpreter_stack() is None
        and library() is not None
    )


class Steps:
    r"""A pass that steps weights.

    .. math:: w \leftarrow b\,(w - \eta\,s\,(\pm g + (\lambda + q)\,w))

    Args:
        weights: matrices w that fit (:func:`fits`); everything else is one per matrix too.
        scale: at most two factors of s, which broadcast and are contiguous.
        penalty: at most two factors of q, which is 0 if there is none.
        back: at most two factors of b.
        apart: single entries that have an s and a b of their own, and q = 0.
            With each of them where these stand.
        own: their b and their s.
    """

    def __init__(
        self,
        weights: Sequence[Tensor],
        scale: Sequence[Sequence[Tensor] | None],
        penalty: Sequence[Sequence[Tensor]],
        back: Sequence[Sequence[Tensor] | None],
        apart: Sequence[tuple[Apart, Tensor] | None] | None = None,
        own: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self._weights, self._kept = weights, (scale, penalty, back, apart, own)
        self._jobs = (_Step * len(weights))()
        for place, (job, weight) in enumerate(zip(self._jobs, weights, strict=True)):
            job.weight = weight.data_ptr()
            job.rows, job.columns = weight.shape
            for slots, lists in ((job.scale, scale), (job.penalty, penalty), (job.back, back)):
                factors = [factors[place] for factors in lists if factors is not None]
                for slot, factor in zip(slots, factors, strict=False):
                    slot.at = factor.data_ptr()
                    slot.row, slot.column = _strides(factor)
            some = apart[place] if apart is not None else None
            if some is not None and own is not None:
                (start, columns, _), owner = some
                job.start, job.apart = start.data_ptr(), columns.data_ptr()
                job.owner = owner.data_ptr()
                job.own, job.own_scale = (numbers.data_ptr() for numbers in own)
        self._list, self._settings = list(self._jobs), (math.nan,) * 3
        self._call, self._threads = function("step", weights[0].dtype), threads(weights)

    def run(
        self,
        gradients: Sequence[Tensor],
        rate: float,
        sign: float,
        decay: float,
        take: Callable[[ctypes.Structure], None] | None = None,
    ) -> None:
        """Take the step.

        Args:
            gradients: g.
            rate: η.
            sign: that of g.
            decay: λ.
            take: takes it with a single matrix, in place of this pass: it finds a factor of s.
        """
        if (settings := (rate, sign, decay)) != self._settings:
            self._settings = settings
            for job in self._list:
                job.rate, job.sign, job.decay = settings
        for job, gradient in zip(self._list, gradients, strict=True):
            job.gradient = gradient.data_ptr()
        if take is not None:
            (job,) = self._list
            take(job)
        else:
            self._call(self._jobs, len(self._jobs), min(self._threads, torch.get_num_threads()))
        torch.autograd.graph.increment_version(self._weights)


def _strides(factor: Tensor) -> tuple[int, int]:
    """How far apart the entries of a factor are that two rows meet, and two columns."""
    rows, columns = factor.shape
    return (columns if rows > 1 else 0), int(columns > 1)


class Job:
    r"""One matrix for :class:`Sums`, all of whose tensors fit (:func:`fits`).

    With f = :math:`\pm w g + \lambda w^2` if there is a gradient, or g for p = -1; else
    :math:`|w|^p`, or w for p = 0; 0 at what is apart.

    Args:
        weight: the matrix w.
        gradient: g.
        added: w · scale · row · column is added to it, if not apart; then f is w².
        power: p, one of :data:`POWERS`, 0 or -1.
        scale: of what is added.
        row: one number per column; 1 by default.
        column: one number per row; 1 by default.
        apart: entries that do not count.
        picked: entries whose :math:`\pm w g + \lambda w^2` is written down, and where that goes.
        products: gets f; then there are no sums over rows.
        along: gets the sums along rows of f times the row.
        across: gets the sums over rows of f times the column.
    """

    def __init__(
        self,
        weight: Tensor,
        *,
        gradient: Tensor | None = None,
        added: Tensor | None = None,
        power: int = 0,
        scale: float = 1.0,
        row: Tensor | None = None,
        column: Tensor | None = None,
        apart: Apart | None = None,
        picked: tuple[Apart, Tensor] | None = None,
        products: Tensor | None = None,
        along: Tensor | None = None,
        across: Tensor | None = None,
    ) -> None:
        self.weight, self.added = weight, added
        self.fields = SumsFields(power=power, sign=1.0, scale=scale)
        self.fields.rows, self.fields.columns = weight.shape
        given = {"weight": weight, "gradient": gradient, "added": added, "products": products}
        given |= {"row": row, "column": column, "along": along, "across": across}
        if apart is not None:
            given |= {"start": apart.start, "apart": apart.columns}
        if picked is not None:
            (start, columns, _), values = picked
            given |= {"picks": start, "picked": columns, "values": values}
        for name, tensor in given.items():
            if tensor is not None:
                setattr(self.fields, name, tensor.data_ptr())
        self._kept = given


class Sums:
    """A pass that writes the sums of matrices of one dtype; it may be made again and again.

    Args:
        jobs: one for each matrix, at least one.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        weights = [job.weight for job in jobs]
        self._jobs, self._written = jobs, [job.added for job in jobs if job.added is not None]
        self._fields = (SumsFields * len(jobs))(*(job.fields for job in jobs))
        self._call, self._threads = function("sums", weights[0].dtype), threads(weights)

    def run(self) -> float:
        """Write them; returns the sum of all f. What is only added to does not count."""
        total, most = ctypes.c_double(), min(self._threads, torch.get_num_threads())
        if self._call(self._fields, len(self._fields), most, ctypes.byref(total)):
            raise MemoryError(NO_MEMORY)
        if self._written:
            torch.autograd.graph.increment_version(self._written)
        return total.value


def sums(jobs: Sequence[Job]) -> float:
    """Make a pass once (:class:`Sums`)."""
    return Sums(jobs).run() if jobs else 0.0


def raise_(values: Tensor, exponent: float, scale: float) -> tuple[float, float]:
    """Raise positive numbers to a power in place, times a scale; 0 for others and for infinity.

    Returns:
        their sum before that, and the largest of them after it.
    """
    most = min(threads([values]), torch.get_num_threads())
    total, largest = ctypes.c_double(), ctypes.c_double()
    results = ctypes.byref(total), ctypes.byref(largest)
    call = function("raise", values.dtype)
    call(values.data_ptr(), values.numel(), most, exponent, scale, *results)
    return total.value, largest.value


def extremes(values: Tensor) -> tuple[float, float, float]:
    """The sum, the smallest positive entry (infinity without one) and the largest of a tensor."""
    found = (ctypes.c_double * 3)()
    function("extremes", values.dtype)(values.data_ptr(), values.numel(), found)
    total, smallest, largest = found
    return total, smallest, largest


def gather(source: Tensor, places: Tensor, to: Tensor, rows: Tensor) -> None:
    """``to[rows] = source[places]``, in flat places of a tensor that fits; ``to`` is in float64."""
    most = min(max(1, len(places) // SINGLE), torch.get_num_threads())
    pointers = [tensor.data_ptr() for tensor in (source, places, rows)]
    function("gather", source.dtype)(*pointers, len(places), to.data_ptr(), most)


def function(name: str, dtype: torch.dtype) -> Any:
    """A function of the library for a dtype that fits."""
    return getattr(library(), f"{name}_{_DTYPES[dtype]}")


def threads(weights: Sequence[Tensor]) -> int:
    """How many threads a pass over some matrices is worth, however many there are."""
    return max(1, sum(map(Tensor.numel, weights)) // GRAIN)


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled passes; ``None`` if there is no compiler for them, or they are not wanted."""
    if os.environ.get(VARIABLE) == "0":
        return None
    command = shlex.split(os.environ.get("CC", "")) or _found("cc", "gcc", "clang")
    try:
        return _compiled_by(command) if command else None
    except OSError:  # no place for a temporary file
        return None


def _compiled_by(command: list[str]) -> ctypes.CDLL | None:
    with tempfile.TemporaryDirectory(prefix="pathspace-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "kernels.so"
        for options in (("-march=native", *FLAGS), FLAGS):
            try:
                arguments = [*command, *options, str(SOURCE), "-o", str(path), "-lm"]
                subprocess.run(arguments, check=True, capture_output=True, timeout=_PATIENCE)
                result = ctypes.CDLL(str(path))
            except (OSError, subprocess.SubprocessError):
                continue
            _declare(result)
            _share_threads(result)
            return result
    return None


def _found(*names: str) -> list[str]:
    """The first of some programs that there is."""
    return [path for path in map(shutil.which, names) if path][:1]


def _declare(kernels: ctypes.CDLL) -> None:
    """Say what the functions take: p for a pointer, n for a number of things."""
    kinds = {"p": ctypes.c_void_p, "n": ctypes.c_int64, "i": ctypes.c_int, "d": ctypes.c_double}
    for dtype in _DTYPES.values():
        for name, arguments in _ARGUMENTS.items():
            declared = getattr(kernels, f"{name}_{dtype}")
            declared.argtypes = [kinds[kind] for kind in arguments]
            declared.restype = _RESULTS.get(name, ctypes.c_int)


def _share_threads(kernels: ctypes.CDLL) -> None:
    """Let them work on the threads of torch's OpenMP; without it, on one."""
    folder = Path(torch.__file__).parent / "lib"
    for path in folder.glob("libtorch_cpu.*"):
        try:
            of_torch = ctypes.CDLL(str(path))
            names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
            functions = [ctypes.cast(getattr(of_torch, name), ctypes.c_void_p) for name in names]
        except (OSError, AttributeError):
            continue
        kernels.use_threads(*functions)


_ARGUMENTS = {
    "step": "pni",
    "sums": "pnip",
    "raise": "pniddpp",
    "gather": "pppnpi",
    "look": "pnippnppn",
    "turn": "pi",
    "convolution": "pi",
    "convolution_room": "pi",
    "extremes": "pnp",
}
_RESULTS = {"convolution_room": ctypes.c_int64}
_TYPES = (Tensor, torch.nn.Parameter)
