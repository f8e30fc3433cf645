"""Test error of G-SGD against SGD from the same start, over learning rates and seeds.

Half as many seeds as repeats, at most five. Fashion-MNIST averaged to 7×7 pixels for MLPs of 2 to 5
hidden layers of 32 units, without and with momentum; the first 2,000
images of CIFAR-10 for thin PlainNets of 8 layers with and without batch norm. Needs the data sets
(`pathspace data fetch`, or PATHSPACE_DATA).
"""

import itertools
import math
import statistics
import warnings
from collections.abc import Iterator

import torch
import torch.nn.functional as F

import pathspace as ps
from pathspace.bench import Measurement
from pathspace.experiments import data, models

ON_REQUEST = "hundreds of trainings on Fashion-MNIST and CIFAR-10, an hour"
THREADS = 1
EPOCHS = 2
RATES = [1.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5]
RATES_WITH_MOMENTUM = [1.0, 0.3, 0.1, 0.01]
OPTIMIZERS = {
    "SGD": lambda model, network, lr, momentum: torch.optim.SGD(model.parameters(), lr, momentum),
    "G-SGD": lambda model, network, lr, momentum: ps.optim.GSGD(
        model.parameters(), lr, momentum, network=network
    ),
}


def trial(name: str, make, settings: tuple[float, float], seed: int, sets: data.Dataset) -> float:
    """Test error in percent; NaN if the weights are not finite in the end."""
    generator = torch.Generator().manual_seed(seed)
    model = models.build(name, generator).train()
    network = ps.trace(model, sets.train.inputs[:2])
    optimizer = make(model, network, *settings)
    batch = 64 if name.startswith("mlp") else 128
    for _ in range(EPOCHS):
        for inputs, targets in sets.train.batches(batch, generator=generator, drop_last=True):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        outputs = torch.cat([model(inputs) for inputs, _ in sets.test.batches(1000)])
        finite = all(bool(p.isfinite().all()) for p in model.parameters())
    wrong = (outputs.argmax(1) != sets.test.targets).float().mean().item()
    return 100 * wrong if finite and bool(outputs.isfinite().all()) else math.nan


def compare(
    name: str, sets: data.Dataset, seeds: int, momentum: float = 0.0
) -> Iterator[Measurement]:
    for lr in RATES_WITH_MOMENTUM if momentum else RATES:
        errors = {
            kind: [trial(name, make, (lr, momentum), seed, sets) for seed in range(seeds)]
            for kind, make in OPTIMIZERS.items()
        }
        sgd, ours = errors["SGD"], errors["G-SGD"]
        both = [b - a for a, b in zip(sgd, ours, strict=True) if not math.isnan(a + b)]
        mean = statistics.mean(both) if both else math.nan
        error = statistics.stdev(both) / math.sqrt(len(both)) if len(both) > 1 else math.nan
        lost = sum(math.isnan(b) and not math.isnan(a) for a, b in zip(sgd, ours, strict=True))
        note = f"± {error:.2f}; NaN where SGD is finite: {lost}"
        what = f"{name}, rate {lr:g}{f', momentum {momentum:g}' if momentum else ''}: G-SGD − SGD"
        yield Measurement(what, mean, "% test error", None, note)


def measure(repeats: int) -> Iterator[Measurement]:
    warnings.filterwarnings("ignore", message=".*not finite", category=RuntimeWarning)
    seeds = min(max(2, repeats // 2), 5)
    steps = (data.average_pool(7), data.standardize(), data.flatten())
    sets = data.load("fashion-mnist").apply(*steps)
    for momentum, depth in itertools.product((0.0, 0.9), (2, 3, 4, 5)):
        name = "mlp:" + "-".join(["49", *["32"] * depth, "10"])
        yield from compare(name, sets, seeds, momentum)
    sets = data.load("cifar10").apply(data.subset(train=2000, test=1000), data.standardize())
    for name in ("plainnet8-thin", "plainnet8-thin-nobn"):
        yield from compare(name, sets, seeds)
