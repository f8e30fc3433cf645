"""Time and memory of basis-path values against one clone of the parameters."""

from collections.abc import Callable

import torch

import pathspace as ps
from pathspace.bench import Measurement, interleaved, peak_memory
from pathspace.experiments import models

SUBJECTS = {"784-4000-4000-10": "mlp:784-4000-4000-10", "resnet34": "resnet34"}


@torch.no_grad()
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
        extra = peak_memory(basis.values) / size
        results.append(Measurement(f"{label}: values, peak memory", extra, "× weights", 3.0))
    return results
