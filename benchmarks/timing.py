"""Times that can be compared on a machine that does other things too."""

import time
from collections.abc import Callable, Mapping


def interleaved(tasks: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The shortest of `repeats` times of each task, in seconds.

    The tasks take turns, so that a slow spell of the machine meets all of them, and the minimum
    leaves it out. Each task runs once before, for what happens only the first time.
    """
    for task in tasks.values():
        task()
    best = dict.fromkeys(tasks, float("inf"))
    for _ in range(repeats):
        for name, task in tasks.items():
            start = time.perf_counter()
            task()
            best[name] = min(best[name], time.perf_counter() - start)
    return best
