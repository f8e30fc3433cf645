"""A landscape of PlainNet-18 on 1,000 images of CIFAR-10 against its 625 forward passes.

Landscapes of 3×3 and of 5×5 points by the public call. What 16 more points cost is what a point
costs, so a landscape of 25×25 points costs that of 3×3 and 616 points more. Needs CIFAR-10
(`pathspace data fetch`, or PATHSPACE_DATA).
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from benchmarks.landscape import PAPERS, SPACES, setting

from pathspace.bench import Measurement, interleaved
from pathspace.experiments import data
from pathspace.losslandscape import landscape

ON_REQUEST = "a quarter of an hour on CIFAR-10; `landscape` estimates the same on 250 images"
POINTS, SMALL, LARGE = 625, 3, 5
IMAGES, BATCH = 1_000, 250


@torch.no_grad()
def measure(repeats: int) -> list[Measurement]:
    model, network, *_ = setting("plainnet18", 2)
    sets = data.load("cifar10").apply(data.standardize())
    images = data.Split(sets.train.inputs[:IMAGES], sets.train.targets[:IMAGES])
    batches = list(images.batches(BATCH))

    def forwards() -> None:
        for _ in range(SMALL**2):
            for inputs, targets in batches:
                F.cross_entropy(model(inputs), targets)

    tasks: dict[str, Callable[[], object]] = {"forwards": forwards}
    for space in SPACES:
        for grid in (SMALL, LARGE):
            tasks[f"{space} {grid}"] = lambda space=space, grid=grid: landscape(
                network, F.cross_entropy, batches, space=space, grid=grid, **PAPERS
            )
    seconds = interleaved(tasks, max(1, repeats // 5))
    forward = seconds["forwards"] / SMALL**2
    results = []
    for space in SPACES:
        small, large = seconds[f"{space} {SMALL}"], seconds[f"{space} {LARGE}"]
        point = (large - small) / (LARGE**2 - SMALL**2)
        whole = small + (POINTS - SMALL**2) * point
        ratio = whole / (POINTS * forward)
        note = f"a point {point:.2f} s, the first {SMALL}×{SMALL} {small:.1f} s"
        results.append(Measurement(f"25×25, {space}", ratio, "× forwards", 1.1, note))
    return [*results, Measurement("forward pass of 1,000 images", forward, "s")]
