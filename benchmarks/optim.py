"""Training iterations with the invariant optimizers against torch.optim.SGD(foreach=True).

Whole iterations (zero_grad, forward, backward, step) take turns; the ratio of the shortest counts.
"""

import itertools
from collections.abc import Callable

import torch
import torch.nn.functional as F

import pathspace as ps
from pathspace.bench import Measurement, interleaved, peak_memory
from pathspace.experiments import models

GSGD, PATH = "G-SGD", "Path-SGD"
SUBJECTS = [  # model, batch, repeats in units of those asked for, goals
    ("mlp:49-64-64-10", 64, 100, {GSGD: 1.35}),
    ("mlp:784-1024-1024-10", 128, 10, {GSGD: 1.08}),
    ("mlp:784-4000-4000-10", 100, 2, {GSGD: 1.10, PATH: 1.15}),
    ("plainnet34", 128, 0.3, {GSGD: 1.08, PATH: 1 + 2 / 128}),
    ("plainnet34", 32, 0.3, {GSGD: None, PATH: 1 + 2 / 32}),
]
KINDS: dict[str, Callable] = {
    "SGD": lambda params, network: torch.optim.SGD(params, 1e-6, foreach=True),
    GSGD: lambda params, network: ps.optim.GSGD(params, 1e-6, network=network),
    PATH: lambda params, network: ps.optim.PathSGD(params, 1e-12, network=network),
}


def iteration(name: str, kind: str, batch: int) -> tuple[Callable, object]:
    model = models.build(name, torch.Generator().manual_seed(0)).train()
    x = models.example_input(name, batch=batch)
    x, y = torch.randn(x.shape), torch.randint(10, (batch,))
    optimizer = KINDS[kind](model.parameters(), ps.trace(model, x[:2]))

    def run() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return run, optimizer


def measure(repeats: int) -> list[Measurement]:
    results = []
    for name, batch, factor, goals in SUBJECTS:
        tasks = {"SGD": iteration(name, "SGD", batch)[0]}
        for kind in goals:
            tasks[kind] = iteration(name, kind, batch)[0]
        for task in itertools.chain(tasks.values(), tasks.values()):
            task()
        seconds = interleaved(tasks, max(2, round(repeats * factor)))
        for kind in tasks:
            if kind != "SGD":
                ratio = seconds[kind] / seconds["SGD"]
                results.append(
                    Measurement(f"{name}, batch {batch}: {kind}", ratio, "× SGD", goals.get(kind))
                )
    for kind in (GSGD, PATH):
        run, optimizer = iteration("mlp:784-4000-4000-10", kind, 4)
        run()
        size = sum(p.numel() * p.element_size() for p in optimizer.param_groups[0]["params"])
        extra = peak_memory(optimizer.step) / size
        results.append(Measurement(f"{kind}: peak memory of a step", extra, "× weights", 1.0))
    return results
