"""Training iterations with the invariant optimizers against torch.optim.SGD(foreach=True).

Whole iterations (zero_grad, forward, backward, step) take turns. Gradients are the same work for
all optimizers, so the shortest time that any of them took counts, and the shortest step of each:
whole iterations of seconds differ by more from turn to turn than goals do. Their ratio is given
beside it.
"""

import itertools
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F

import pathspace as ps
from pathspace.bench import Measurement, interleaved, interleaved_parts, peak_memory
from pathspace.experiments import models

CNN = "plainnet34"
GSGD, PATH, FLOOR = "G-SGD", "Path-SGD", "G-SGD's arithmetic alone"
MOMENTUM, FUSED = "G-SGD with momentum", "G-SGD with momentum, fused"
SUBJECTS = [  # model, batch, repeats in units of those asked for, goals
    ("mlp:49-64-64-10", 64, 100, {GSGD: 1.35}),
    ("mlp:784-1024-1024-10", 128, 30, {GSGD: 1.08, FLOOR: None}),
    ("mlp:784-4000-4000-10", 100, 4, {GSGD: 1.10, PATH: 1.15, FLOOR: None}),
    (CNN, 128, 1, {GSGD: 1.08, PATH: 1 + 2 / 128}),
    (CNN, 32, 3, {GSGD: None, PATH: 1 + 2 / 32}),
]
KINDS: dict[str, Callable] = {
    "SGD": lambda params, network: torch.optim.SGD(params, 1e-6, foreach=True),
    GSGD: lambda params, network: ps.optim.GSGD(params, 1e-6, network=network),
    PATH: lambda params, network: ps.optim.PathSGD(params, 1e-12, network=network),
    "SGD with momentum": lambda params, network: torch.optim.SGD(params, 1e-6, 0.9, foreach=True),
    MOMENTUM: lambda params, network: ps.optim.GSGD(params, 1e-6, 0.9, network=network),
    FUSED: lambda params, network: ps.optim.GSGD(params, 1e-6, 0.9, network=network, fused=True),
    FLOOR: lambda params, network: Floor(params),
}


class Floor(torch.optim.Optimizer):
    """The least that G-SGD has to do with the weights, in torch's operations and nothing else.

    One pass for the flows of the hidden layers, and one that multiplies gradients by a column,
    adds them times a row and multiplies by another; blocks are cut once.
    """

    BLOCK = 2**17

    def __init__(self, params: Iterable[torch.Tensor]) -> None:
        super().__init__(params, {})
        self.blocks = []
        for weight in (p for p in self.param_groups[0]["params"] if p.dim() > 1):
            rows = max(1, self.BLOCK // weight.shape[1])
            parts = weight.detach().split(rows)
            room, total = (torch.zeros(rows, weight.shape[1]) for _ in range(2))
            rooms, totals = ([m[: len(part)] for part in parts] for m in (room, total))
            column, row = torch.ones(len(weight), 1), torch.ones(1, weight.shape[1])
            hidden = len(self.blocks) > 0
            pieces = [*zip(parts, rooms, totals, column.split(rows), strict=True)]
            self.blocks.append((weight, rows, pieces, row, hidden))

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Both passes."""
        for weight, rows, pieces, _, hidden in self.blocks:
            if hidden:
                for (part, _, total, _), slope in zip(pieces, weight.grad.split(rows), strict=True):
                    total.addcmul_(part, slope)
        for weight, rows, pieces, row, hidden in self.blocks:
            for (part, room, _, column), slope in zip(pieces, weight.grad.split(rows), strict=True):
                torch.mul(slope, column, out=room)
                if hidden:
                    part.addcmul_(room, row, value=-1e-6).mul_(row)
                else:
                    part.add_(room, alpha=-1e-6)


def iteration(name: str, kind: str, batch: int) -> tuple[Callable, torch.optim.Optimizer]:
    """The gradients of one iteration, and the optimizer whose step is the rest of it."""
    model = models.build(name, torch.Generator().manual_seed(0)).train()
    x = models.example_input(name, batch=batch)
    x, y = torch.randn(x.shape), torch.randint(10, (batch,))
    optimizer = KINDS[kind](model.parameters(), ps.trace(model, x[:2]))

    def gradients() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()

    return gradients, optimizer


def measure(repeats: int) -> list[Measurement]:
    results = []
    for name, batch, factor, goals in SUBJECTS:
        results += against("SGD", name, batch, goals, max(2, round(repeats * factor)))
    goals = {MOMENTUM: None, FUSED: None}
    results += against("SGD with momentum", "mlp:784-4000-4000-10", 100, goals, 2 * repeats)
    for name, kind in itertools.product(("mlp:784-4000-4000-10", CNN), (GSGD, PATH)):
        results.append(memory(name, kind))
    return results + bare_pass(max(2, repeats // 2))


def memory(name: str, kind: str) -> Measurement:
    """By how much memory rises in the first step, with all that is kept from then on."""
    gradients, optimizer = iteration(name, kind, 4)
    size = sum(p.numel() * p.element_size() for p in optimizer.param_groups[0]["params"])
    rises = []
    for _ in range(2):
        gradients()
        rises.append(peak_memory(optimizer.step) / size)
    note = f"{rises[1]:.3f} in the second one"
    return Measurement(f"{name}: memory of a step of {kind}", rises[0], "× weights", 1.0, note)


def against(
    base: str, name: str, batch: int, goals: dict[str, float | None], repeats: int
) -> list[Measurement]:
    """Iterations with some optimizers over those with another."""
    parts = {kind: iteration(name, kind, batch) for kind in (base, *goals)}
    tasks = {kind: (gradients, optimizer.step) for kind, (gradients, optimizer) in parts.items()}
    seconds = interleaved_parts(tasks, repeats)
    shared = min(gradients for gradients, _, _ in seconds.values())
    whole = {kind: shared + step for kind, (_, step, _) in seconds.items()}
    results = [
        Measurement(
            f"{name}, batch {batch}: {kind}",
            whole[kind] / whole[base],
            f"× {base}",
            goal,
            f"{seconds[kind][-1] / seconds[base][-1]:.2f} by whole ones",
        )
        for kind, goal in goals.items()
    ]
    if name == CNN and PATH in goals:  # one sample forwards and back
        what = f"{name}, batch {batch}: what a step of {PATH} adds"
        share = (whole[PATH] - whole[base]) / (whole[base] / batch)
        results.append(Measurement(what, share, "× a sample's share", 2.0))
    return results


def bare_pass(repeats: int) -> list[Measurement]:
    """One sample forwards and back: what Path-SGD's slopes cost at least, in torch's operations."""
    model = models.build(CNN, torch.Generator().manual_seed(0)).train()
    x = torch.randn(models.example_input(CNN, batch=32).shape)

    def through(batch: int) -> Callable[[], None]:
        def run() -> None:
            model.zero_grad()
            model(x[:batch]).square().sum().backward()

        return run

    seconds = interleaved({"1": through(1), "32": through(32)}, repeats)
    ratio = seconds["1"] / (seconds["32"] / 32)
    what = f"{CNN}: one sample forwards and back alone"
    return [Measurement(what, ratio, "× its share of 32", None)]
