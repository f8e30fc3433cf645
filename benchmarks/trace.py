"""How long `pathspace.trace` takes: residual nets at 224 × 224, perceptrons of growing depth."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

import pathspace as ps
from pathspace.bench import Measurement, interleaved
from pathspace.experiments import models

RESNETS = {"resnet18-imagenet": 0.15, "resnet50-imagenet": None, "resnet152-imagenet": 1.0}
DEPTHS = (100, 300, 1000)
WIDTH = 8


def tasks(name: str, model: nn.Module, x: Tensor) -> dict[str, Callable[[], object]]:
    model.eval()

    def forward() -> Tensor:
        with torch.inference_mode():
            return model(x)

    return {f"{name} trace": lambda: ps.trace(model, x), f"{name} forward": forward}


def measure(repeats: int) -> list[Measurement]:
    subjects = {name: (models.build(name), models.example_input(name)) for name in RESNETS}
    for depth in DEPTHS:
        subjects[str(depth)] = (models.mlp((WIDTH,) * (depth + 1)), torch.zeros(1, WIDTH))
    timed = {}
    for name, (model, x) in subjects.items():
        timed |= tasks(name, model, x)
    seconds = interleaved(timed, repeats)

    def forwards(name: str) -> str:
        ratio = seconds[f"{name} trace"] / seconds[f"{name} forward"]
        return f"{ratio:.3g} forward passes of one example"

    results = [
        Measurement(f"trace {name}", seconds[f"{name} trace"], "s", goal, forwards(name))
        for name, goal in RESNETS.items()
    ]
    per_layer = {depth: 1000 * seconds[f"{depth} trace"] / depth for depth in DEPTHS}
    results += [
        Measurement(
            f"trace mlp, {depth:,} layers, per layer", value, "ms", None, forwards(str(depth))
        )
        for depth, value in per_layer.items()
    ]
    growth = per_layer[DEPTHS[-1]] / per_layer[DEPTHS[0]]
    what = f"time per layer, {DEPTHS[-1]:,} : {DEPTHS[0]:,} layers"
    return [*results, Measurement(what, growth, "×", 1.5)]
