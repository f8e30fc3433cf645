"""Time and memory of basis-path values against one clone of the parameters.

Run from the root of the repository: python -m benchmarks.basis [--repeats N] [--json FILE]
"""

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

import torch
from benchmarks.report import Measurement, main
from benchmarks.timing import interleaved

import pathspace as ps
from pathspace.experiments import models

SUBJECTS = {"784-4000-4000-10": "mlp:784-4000-4000-10", "resnet34": "resnet34"}


def measure(repeats: int) -> list[Measurement]:
    results = []
    for label, spec in SUBJECTS.items():
        model = models.build(spec).eval()
        basis = ps.BasisPaths(ps.trace(model, models.example_input(spec)))
        values = basis.values()
        gradients = {name: value.clone() for name, value in values.items()}
        tasks: dict[str, Callable[[], object]] = {
            "clone": lambda model=model: [p.detach().clone() for p in model.parameters()],
            "values": basis.values,
            "weights": lambda basis=basis, values=values: basis.weights(values),
            "pull": lambda basis=basis, gradients=gradients: basis.pull(gradients),
        }
        seconds = interleaved(tasks, repeats)
        goals = {"values": 4.0}
        for name in ("values", "weights", "pull"):
            ratio = seconds[name] / seconds["clone"]
            results.append(Measurement(f"{label}: {name}", ratio, "× clone", goals.get(name)))
        size = sum(p.numel() * p.element_size() for p in model.parameters())
        extra = peak_extra_memory(basis.values) / size
        results.append(Measurement(f"{label}: values, peak memory", extra, "× weights", 3.0))
    return results


def peak_extra_memory(task: Callable[[], object]) -> float:
    """Bytes by which the resident memory of this process rises above its start during a task."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # freed memory that is kept would hide what the task takes
    Path("/proc/self/clear_refs").write_text("5")  # start the high-water mark anew
    before = _memory("VmRSS")
    result = task()
    peak = _memory("VmHWM")
    del result
    return peak - before


def _memory(key: str) -> float:
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith(key))
    return 1024.0 * int(line.split()[1])


if __name__ == "__main__":
    with torch.no_grad():
        main(__doc__, measure)
