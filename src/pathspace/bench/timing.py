"""Times and memory that can be compared on a machine that does other things too."""

from __future__ import annotations

import ctypes
import gc
import itertools
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

Tasks = Mapping[str, Callable[[], object]]
STATUS, MARK = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def interleaved(tasks: Tasks, repeats: int, limit: float = math.inf) -> dict[str, float]:
    """The shortest of ``repeats`` times of each task, in seconds.

    The tasks take turns, so that a slow spell of the machine meets all of them, and the minimum
    leaves it out. Each task runs once before, for what happens only the first time.

    Args:
        tasks: what to time, by name.
        repeats: how often.
        limit: after so many seconds no further turn begins; there are at least two.

    Example:
        >>> list(interleaved({"one": lambda: sum(range(10)), "two": lambda: None}, repeats=3))
        ['one', 'two']
    """
    for task in tasks.values():
        task()
    best = dict.fromkeys(tasks, math.inf)
    end = time.perf_counter() + limit
    for turn in range(repeats):
        if turn > 1 and time.perf_counter() > end:
            break
        for name, task in tasks.items():
            start = time.perf_counter()
            task()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def interleaved_parts(
    tasks: Mapping[str, Sequence[Callable[[], object]]], repeats: int
) -> dict[str, tuple[float, ...]]:
    """The same for tasks that consist of parts: the shortest time of each part, and of the whole.

    What two tasks differ by may be one part of many times less than the whole, whose shortest
    times are not so close to each other.

    Args:
        tasks: the parts of each, by name, in the order in which they run.
        repeats: how often.

    Returns:
        by name, the seconds of every part, and behind them those of the whole.

    Example:
        >>> times = interleaved_parts({"both": (lambda: sum(range(10)), lambda: None)}, repeats=3)
        >>> first, second, whole = times["both"]
    """
    best = {name: [math.inf] * (len(parts) + 1) for name, parts in tasks.items()}
    for turn in range(repeats + 1):
        for name, parts in tasks.items():
            times = [time.perf_counter()]
            for part in parts:
                part()
                times.append(time.perf_counter())
            taken = [after - before for before, after in itertools.pairwise(times)]
            if turn:  # the first one is for what happens only then
                best[name] = [*map(min, best[name], [*taken, times[-1] - times[0]])]
    return {name: tuple(seconds) for name, seconds in best.items()}


def peak_memory(task: Callable[[], object]) -> float:
    """Bytes by which the memory of this process rises above its start during a task.

    Read from the kernel's high-water mark, so what torch allocates and frees in between counts,
    what Python and torch keep for later does too, and steps are those of pages. NaN on systems
    other than Linux.
    """
    if not sys.platform.startswith("linux"):
        task()
        return math.nan
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # freed memory that is kept would hide what the task takes
    MARK.write_text("5")  # start the high-water mark anew
    before = _status("VmRSS")
    result = task()
    peak = _status("VmHWM")
    del result
    return peak - before


def free_memory() -> float:
    """Bytes that new programs could take; infinity where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return math.inf
    found = [line for line in lines if line.startswith("MemAvailable")]
    return 1024.0 * int(found[0].split()[1]) if found else math.inf


def _status(key: str) -> float:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(key))
    return 1024.0 * int(line.split()[1])
