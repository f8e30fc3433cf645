"""Test error of G-SGD against SGD from the same start, and whether all others stay finite.

Over learning rates and half as many seeds as repeats, at most five. Fashion-MNIST averaged to 7×7
pixels for MLPs of 2 to 5 hidden layers of 32 units, without and with momentum; the first 2,000
images of CIFAR-10 for thin PlainNets of 8 layers with and without batch norm. Two epochs, for the
others one. Needs the data sets (`pathspace data fetch`, or PATHSPACE_DATA).
"""

import itertools
import math
import statistics
import warnings
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn

import pathspace as ps
from pathspace.bench import Measurement
from pathspace.experiments import data, models

ON_REQUEST = "over a thousand trainings on Fashion-MNIST and CIFAR-10, two hours"
THREADS = 1
EPOCHS = 2
RATES = [1.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5]
RATES_WITH_MOMENTUM = [1.0, 0.3, 0.1, 0.01]
OTHERS = ("PathSGD", "PathAdagrad", "PathAdam", "GAdagrad", "GAdam", "BalancedSGD")


def optimizer_of(
    kind: str, model: nn.Module, network: ps.Network, lr: float, momentum: float
) -> torch.optim.Optimizer:
    options = {"momentum": momentum} if momentum else {}
    if kind == "SGD":
        return torch.optim.SGD(model.parameters(), lr, **options)
    return getattr(ps.optim, kind)(model.parameters(), lr, network=network, **options)


def trial(
    name: str,
    kind: str,
    settings: tuple[float, float],
    seed: int,
    sets: data.Dataset,
    epochs: int = EPOCHS,
) -> float:
    """Test error in percent; NaN if the weights are not finite in the end, or a step is refused."""
    generator = torch.Generator().manual_seed(seed)
    model = models.build(name, generator).train()
    network = ps.trace(model, sets.train.inputs[:2])
    optimizer = optimizer_of(kind, model, network, *settings)
    batch = 64 if name.startswith("mlp") else 128
    for _ in range(epochs):
        for inputs, targets in sets.train.batches(batch, generator=generator, drop_last=True):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            try:
                optimizer.step()
            except ps.PathspaceError:
                return math.nan
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
        sgd, ours = (
            [trial(name, kind, (lr, momentum), seed, sets) for seed in range(seeds)]
            for kind in ("SGD", "GSGD")
        )
        both = [b - a for a, b in zip(sgd, ours, strict=True) if not math.isnan(a + b)]
        mean = statistics.mean(both) if both else math.nan
        error = statistics.stdev(both) / math.sqrt(len(both)) if len(both) > 1 else math.nan
        lost = sum(math.isnan(b) and not math.isnan(a) for a, b in zip(sgd, ours, strict=True))
        note = f"± {error:.2f}; NaN where SGD is finite: {lost}"
        what = f"{name}, rate {lr:g}{f', momentum {momentum:g}' if momentum else ''}: G-SGD − SGD"
        yield Measurement(what, mean, "% test error", None, note)


def finite(name: str, kind: str, sets: data.Dataset, seeds: int) -> Measurement:
    """How often an optimizer does not stay finite where SGD does, and its best errors."""
    lost, errors = 0, []
    for lr in RATES:
        for seed in range(seeds):
            found = trial(name, kind, (lr, 0.0), seed, sets, 1)
            errors.append(found)
            if math.isnan(found):
                lost += not math.isnan(trial(name, "SGD", (lr, 0.0), seed, sets, 1))
    means = [statistics.mean(errors[k : k + seeds]) for k in range(0, len(errors), seeds)]
    note = f"of {len(errors)}; % test error by rate: " + " ".join(f"{mean:.1f}" for mean in means)
    return Measurement(f"{name}: {kind}, not finite where SGD is", lost, "trainings", 0.0, note)


def measure(repeats: int) -> Iterator[Measurement]:
    warnings.filterwarnings("ignore", message=".*not finite", category=RuntimeWarning)
    seeds = min(max(2, repeats // 2), 5)
    steps = (data.average_pool(7), data.standardize(), data.flatten())
    sets = data.load("fashion-mnist").apply(*steps)
    for momentum, depth in itertools.product((0.0, 0.9), (2, 3, 4, 5)):
        name = "mlp:" + "-".join(["49", *["32"] * depth, "10"])
        yield from compare(name, sets, seeds, momentum)
        if not momentum:
            yield from (finite(name, kind, sets, seeds) for kind in OTHERS)
    sets = data.load("cifar10").apply(data.subset(train=2000, test=1000), data.standardize())
    for name in ("plainnet8-thin", "plainnet8-thin-nobn"):
        yield from compare(name, sets, seeds)
        yield from (finite(name, kind, sets, seeds) for kind in OTHERS)
