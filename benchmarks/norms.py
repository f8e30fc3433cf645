"""Path norms against one forward pass, slopes and penalties against a training step."""

from collections.abc import Callable

import torch
from torch import nn

import pathspace as ps
from pathspace.bench import Measurement, interleaved, interleaved_parts
from pathspace.experiments import models
from pathspace.flow import path_slopes
from pathspace.penalties import PathNormPenalty

NETWORKS = ("resnet18-imagenet", "resnet50-imagenet", "resnet152-imagenet")
EXPONENTS = (1, 1.5, 2, 3, 4)
WIDE = "mlp:784-4000-4000-10"
DECAY = 1e-4
Parts = tuple[Callable[[], object], ...]


def measure(repeats: int) -> list[Measurement]:
    # First: what large networks leave to the allocator makes later steps faster by a fifth.
    results = slopes(repeats) + penalties(2 * repeats)
    for spec in NETWORKS:
        results += norms(spec, max(2, repeats // 2))
    return results


def norms(spec: str, repeats: int) -> list[Measurement]:
    """Path norms in float64 against a forward pass of one image in float64."""
    model = models.build(spec).double().eval()
    x = models.example_input(spec).double()[:1]
    network = ps.trace(model, x)

    def forward() -> None:
        with torch.no_grad():
            model(x)

    def gradient() -> None:
        state = network.state()
        log = ps.path_norm(network, 2, log=True, state=state)
        torch.autograd.grad(log, list(model.parameters()))

    seconds = interleaved(
        {
            "forward": forward,
            "norm": lambda: ps.path_norm(network, 2),
            "with trace": lambda: ps.path_norm(ps.trace(model, x), 2),
            "norm and gradient": gradient,
            "five exponents": lambda: ps.path_norm(network, EXPONENTS),
        },
        repeats,
    )
    goals = {"norm": 1.5, "with trace": 2.0, "norm and gradient": 4.0, "five exponents": 6.0}
    return [
        Measurement(f"{spec}: {what}", seconds[what] / seconds["forward"], "× forward", goal)
        for what, goal in goals.items()
    ]


def slopes(repeats: int) -> list[Measurement]:
    """The slopes that Path-SGD divides by, against a step of SGD."""
    network, step = training(batch=100)
    state = network.state()
    tasks = {"step": step, "slopes": (lambda: path_slopes(network, state, 2.0),)}
    seconds = interleaved_parts(tasks, repeats)
    ratio = seconds["slopes"][-1] / seconds["step"][-1]
    return [Measurement("784-4000-4000-10: slopes", 100 * ratio, "% of a step", 10.0)]


def penalties(repeats: int) -> list[Measurement]:
    """What a penalty adds to a step of SGD."""
    network, step = training(batch=128)
    kinds: dict[str, tuple[Callable[[], object], float | None]] = {
        f"basis-path penalty, {form}": (
            ps.BasisPathPenalty(network, exact=form == "exact").add_to_gradients_,
            goal,
        )
        for form, goal in (("cheap", 5.0), ("exact", 15.0))
    }
    kinds |= {
        "path-norm penalty": (PathNormPenalty(network).add_to_gradients_, None),
        "one pass w.add_(g)": (adding(network), None),
    }
    tasks = {"step": step, **{kind: (task,) for kind, (task, _) in kinds.items()}}
    tasks |= {f"G-SGD {decay}": training(128, decay)[1] for decay in (0.0, DECAY)}
    seconds = interleaved_parts(tasks, repeats)
    shares = {kind: (seconds[kind][-1], goal) for kind, (_, goal) in kinds.items()}
    (_, plain, _), (_, decayed, _) = (seconds[f"G-SGD {decay}"] for decay in (0.0, DECAY))
    shares["basis-path penalty inside G-SGD (bp_decay)"] = decayed - plain, 5.0
    whole = seconds["step"][-1]
    return [
        Measurement(f"784-4000-4000-10: {kind}", 100 * share / whole, "% of a step", goal)
        for kind, (share, goal) in shares.items()
    ]


def training(batch: int, decay: float | None = None) -> tuple[ps.Network, Parts]:
    """A wide network and a step of SGD on it, or of G-SGD with a basis-path penalty.

    The step is in two parts: gradients, and what the optimizer does with them.
    """
    torch.manual_seed(0)  # the spread of the skeleton's weights is part of the cost
    model = models.build(WIDE)
    x = torch.randn(batch, *models.example_input(WIDE).shape[1:])
    y = torch.randint(10, (batch,))
    network = ps.trace(model, x[:1])
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1e-9, foreach=True)
    if decay is not None:
        optimizer = ps.optim.GSGD(model.parameters(), 1e-9, network=network, bp_decay=decay)

    def gradients() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()

    return network, (gradients, optimizer.step)


def adding(network: ps.Network) -> Callable[[], None]:
    """The least that anything costs that changes all gradients by all weights."""
    parameters = list(network.model.parameters())

    @torch.no_grad()
    def add() -> None:
        for parameter in parameters:
            parameter.grad.add_(parameter, alpha=1e-9)

    return add
