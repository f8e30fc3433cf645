"""Test error of G-SGD against SGD from the same start, over learning rates and seeds.

Run from the root of the repository:
    python -m benchmarks.stability [--nets mlp|plainnet] [--seeds N] [--epochs N] [--json FILE]

Fashion-MNIST averaged to 7×7 pixels for MLPs of 2 to 5 hidden layers of 32 units; the first 2,000
images of CIFAR-10 for thin PlainNets of 8 layers with and without batch norm. Needs the data sets
(`pathspace data fetch`, or PATHSPACE_DATA).
"""

import argparse
import json
import math
import statistics
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F

import pathspace as ps
from pathspace.experiments import data, models

RATES = [1.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5]
OPTIMIZERS = {
    "SGD": lambda model, network, lr: torch.optim.SGD(model.parameters(), lr),
    "G-SGD": lambda model, network, lr: ps.optim.GSGD(model.parameters(), lr, network=network),
}


def trial(name: str, make, lr: float, seed: int, sets: data.Dataset, epochs: int) -> float:
    """Test error in percent; NaN if the weights are not finite in the end."""
    generator = torch.Generator().manual_seed(seed)
    model = models.build(name, generator).train()
    network = ps.trace(model, sets.train.inputs[:2])
    optimizer = make(model, network, lr)
    batch = 64 if name.startswith("mlp") else 128
    for _ in range(epochs):
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


def compare(name: str, sets: data.Dataset, seeds: int, epochs: int) -> list[dict]:
    rows = []
    for lr in RATES:
        errors = {
            kind: [trial(name, make, lr, seed, sets, epochs) for seed in range(seeds)]
            for kind, make in OPTIMIZERS.items()
        }
        sgd, ours = errors["SGD"], errors["G-SGD"]
        both = [b - a for a, b in zip(sgd, ours, strict=True) if not math.isnan(a + b)]
        mean = statistics.mean(both) if both else math.nan
        error = statistics.stdev(both) / math.sqrt(len(both)) if len(both) > 1 else math.nan
        lost = sum(math.isnan(b) and not math.isnan(a) for a, b in zip(sgd, ours, strict=True))
        rows.append({"net": name, "lr": lr, **errors, "difference": mean, "standard error": error,
                     "NaN where SGD is finite": lost})  # fmt: skip
        cells = ["  ".join(f"{e:5.1f}" for e in errors[kind]) for kind in OPTIMIZERS]
        print(f"{name:<26} {lr:<7g} {cells[0]}  |  {cells[1]}  |  {mean:+6.2f} ± {error:4.2f}"
              f"  NaN {lost}", flush=True)  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nets", choices=["mlp", "plainnet", "all"], default="all")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*not finite", category=RuntimeWarning)
    print(f"{'net':<26} {'rate':<7} SGD, by seed  |  G-SGD, by seed  |  G-SGD − SGD")
    rows = []
    if options.nets in ("mlp", "all"):
        steps = (data.average_pool(7), data.standardize(), data.flatten())
        sets = data.load("fashion-mnist").apply(*steps)
        for depth in (2, 3, 4, 5):
            name = "mlp:" + "-".join(["49", *["32"] * depth, "10"])
            rows += compare(name, sets, options.seeds, options.epochs)
    if options.nets in ("plainnet", "all"):
        sets = data.load("cifar10").apply(data.subset(train=2000, test=1000), data.standardize())
        for name in ("plainnet8-thin", "plainnet8-thin-nobn"):
            rows += compare(name, sets, options.seeds, options.epochs)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
