"""How long `pathspace.trace` takes: residual nets at 224 × 224, and perceptrons of growing depth.

Run from the root of the repository: python -m benchmarks.trace [--repeats N] [--json FILE]
"""

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from benchmarks.timing import interleaved
from torch import Tensor, nn

import pathspace as ps
from pathspace.experiments import models

RESNETS = {"resnet18-imagenet": 0.15, "resnet50-imagenet": None, "resnet152-imagenet": 1.0}
DEPTHS = (100, 300, 1000)
WIDTH = 8


@dataclass(frozen=True)
class Measurement:
    """One line of the table; a smaller value is better."""

    what: str
    value: float
    unit: str
    goal: float | None = None
    forwards: float | None = None  # time of trace / time of one forward pass on one example

    @property
    def verdict(self) -> str:
        if self.goal is None:
            return ""
        return "pass" if self.value <= self.goal else "falls short"

    def __str__(self) -> str:
        goal = "" if self.goal is None else f"≤ {self.goal:g} {self.unit}"
        forwards = "" if self.forwards is None else f"{self.forwards:.2f}"
        value = f"{self.value:.3f} {self.unit}"
        return f"{self.what:<34}{value:>14}{goal:>14}{forwards:>12}  {self.verdict}".rstrip()


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

    def ratio(name: str) -> float:
        return seconds[f"{name} trace"] / seconds[f"{name} forward"]

    results = [
        Measurement(f"trace {name}", seconds[f"{name} trace"], "s", goal, ratio(name))
        for name, goal in RESNETS.items()
    ]
    per_layer = {depth: 1000 * seconds[f"{depth} trace"] / depth for depth in DEPTHS}
    results += [
        Measurement(f"trace mlp, {depth:,} layers, per layer", value, "ms", None, ratio(str(depth)))
        for depth, value in per_layer.items()
    ]
    growth = per_layer[DEPTHS[-1]] / per_layer[DEPTHS[0]]
    what = f"time per layer, {DEPTHS[-1]:,} : {DEPTHS[0]:,} layers"
    return [*results, Measurement(what, growth, "×", 1.5)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=10, help="the shortest of so many times")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    arguments = parser.parse_args()
    results = measure(arguments.repeats)
    print(f"{'':<34}{f'min of {arguments.repeats}':>14}{'goal':>14}{'forwards':>12}")
    print(*results, sep="\n")
    about = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),  # more than there are cores: repeat when it is quiet
    }
    print("\nforwards: how many forward passes of one example take as long")
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    if arguments.json is not None:
        rows = [asdict(result) | {"verdict": result.verdict} for result in results]
        data = about | {"repeats": arguments.repeats, "results": rows}
        arguments.json.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
