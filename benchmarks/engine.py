"""The training engine against a bare hand-written loop: 49-64-64-10, batch 64, Fashion-MNIST sizes.

Both take the same steps on the same data in the same order, which is checked. The engine runs
without evaluations, so that steps are compared with steps; it does sum up the losses, which the
loop by hand does not.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from pathspace.bench import Measurement, interleaved
from pathspace.experiments.data import Dataset, Split
from pathspace.experiments.models import build
from pathspace.experiments.training import OPTIMIZERS, Trial, loading, train
from pathspace.experiments.training.preparation import derived_generator
from pathspace.tracing import trace

MODEL, BATCH, EXAMPLES = "mlp:49-64-64-10", 64, 20_000
GOAL = 1.10
THREADS = 1


def measure(repeats: int) -> list[Measurement]:
    dataset = random_images()
    loading._dataset = lambda *arguments: dataset  # in place of a file
    results = []
    for optimizer in ("sgd", "adam", "gsgd", "pathsgd"):
        trial = Trial(MODEL, "fashion-mnist", optimizer=optimizer, lr=0.01, epochs=1, batch=BATCH)
        trial = Trial(**trial.to_dict() | {"evaluate_on": ()})
        results += compare(trial, dataset, repeats)
    return results


def compare(trial: Trial, dataset: Dataset, repeats: int) -> list[Measurement]:
    outcome, model = train(trial), by_hand(trial, dataset)
    for name, weight in model.state_dict().items():
        assert torch.equal(outcome.weights[name], weight), f"{trial.optimizer}: not the same steps"
    with tempfile.TemporaryDirectory() as folder:
        stores = iter(range(10**6))
        tasks_: dict[str, Callable[[], object]] = {
            "by hand": lambda: by_hand(trial, dataset),
            "engine": lambda: train(trial),
            "engine, store": lambda: train(trial, Path(folder) / str(next(stores))),
        }
        seconds = interleaved(tasks_, repeats)
    bare, name = seconds["by hand"], trial.optimizer
    extra = 1e3 * (seconds["engine, store"] - seconds["engine"])
    return [
        Measurement(f"{name}: step by hand", bare / -(-EXAMPLES // BATCH) * 1e6, "µs"),
        Measurement(f"{name}: engine", seconds["engine"] / bare, "× by hand", GOAL),
        Measurement(f"{name}: what a store adds to a trial", extra, "ms"),
    ]


def by_hand(trial: Trial, dataset: Dataset) -> nn.Module:
    """The loop that one would write for just this."""
    model = build(trial.model, torch.Generator().manual_seed(trial.seed))
    entry = OPTIMIZERS[trial.optimizer]
    extra = {"network": trace(model, dataset.train.inputs[:1])} if entry.needs_network else {}
    optimizer = entry.constructor(model.parameters(), lr=trial.lr, **extra)
    generator = derived_generator(trial.seed, "order")
    inputs, targets = dataset.train.inputs, dataset.train.targets
    for index in torch.randperm(len(targets), generator=generator).split(trial.batch):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs[index]), targets[index])
        loss.backward()
        optimizer.step()
    return model


def random_images() -> Dataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(EXAMPLES, 49, generator=generator)
    targets = torch.randint(10, (EXAMPLES,), generator=generator)
    split = Split(inputs, targets)
    return Dataset("fashion-mnist", train=split, test=split, classes=10, maximum=1)
