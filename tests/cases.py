"""The table of small networks that the exact code is checked on, in float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


def mlp(*widths: int, bias: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Residual(nn.Module):
    """A stream of 4, one block through 3 units."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down = nn.Linear(3, 4), nn.Linear(4, 3)
        self.up, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x).relu()
        h = h + self.up(self.down(h).relu())
        return self.head(h.relu())


class ConvResidual(nn.Module):
    """Two blocks on feature maps, the second with a projection."""

    def __init__(self, batch_norm: bool = False) -> None:
        super().__init__()
        norm = nn.BatchNorm1d if batch_norm else lambda _: nn.Identity()
        self.stem = nn.Conv1d(1, 2, 3, padding=1)
        self.a, self.na = nn.Conv1d(2, 2, 1), norm(2)
        self.b, self.nb = nn.Conv1d(2, 2, 1), norm(2)
        self.c = nn.Conv1d(2, 3, 1, stride=2)
        self.project = nn.Conv1d(2, 3, 1, stride=2, bias=False)
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        x = (x + self.nb(self.b(self.na(self.a(x)).relu()))).relu()
        x = (self.project(x) + self.c(x)).relu()
        return self.head(x.mean(2))


class Concatenation(nn.Module):
    """Two branches of different width, then a dense connection back to the input."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 2), nn.Linear(3, 3), nn.Linear(5, 2)
        self.head = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        both = torch.cat([self.a(x).relu(), self.b(x).relu()], 1)
        return self.head(torch.cat([x, self.c(both).relu()], 1))


def conv(kernel: int, batch_norm: bool = False, bias: bool = True) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 2, kernel, padding=kernel // 2, bias=bias),
        nn.BatchNorm2d(2) if batch_norm else nn.Identity(),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(2, 3, 1, bias=bias),
        nn.LeakyReLU(0.1),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(3, 2, bias=bias),
    )


def grouped() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv1d(4, 4, 3, groups=2, padding=1),
        nn.ReLU(),
        nn.Conv1d(4, 4, 1, groups=4),
        nn.ReLU(),
        nn.ConvTranspose1d(4, 2, 2, stride=2, groups=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(12, 2),
    )


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of the input, without the batch

    def make(self, seed: int = 0) -> tuple[nn.Module, Tensor]:
        """The model in eval mode with random weights and statistics, and a batch of 8."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = self.build().double().eval()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.copy_(torch.randn_like(parameter))
                for name, buffer in model.named_buffers():
                    if "running" in name:
                        buffer.copy_(torch.rand_like(buffer) + 0.5)
            return model, torch.randn(8, *self.shape, dtype=torch.float64)


WIDTHS = {
    "equal": (3, 4, 4, 2),
    "growing": (2, 3, 5, 4),
    "shrinking": (5, 4, 3, 1),
    "bottleneck": (4, 5, 2, 6, 3),
    "hourglass": (3, 2, 6, 3, 2),
    "width one": (5, 1, 1, 1),
    "one input": (1, 4, 3),
    "more inputs than units": (6, 2, 2),
    "deep": (2, 3, 3, 3, 2),
}

CASES = [
    *(Case(f"mlp {name}", lambda w=w: mlp(*w), w[:1]) for name, w in WIDTHS.items()),
    *(
        Case(f"mlp {name}, bias", lambda w=w: mlp(*w, bias=True), w[:1])
        for name, w in WIDTHS.items()
    ),
    *(Case(f"conv {k}x{k}", lambda k=k: conv(k), (2, 4, 4)) for k in (1, 3, 5)),
    Case("conv, no bias", lambda: conv(3, bias=False), (2, 4, 4)),
    Case("conv, batch norm", lambda: conv(3, batch_norm=True), (2, 4, 4)),
    Case("grouped, depthwise, transposed", grouped, (4, 3)),
    Case("residual", Residual, (3,)),
    Case("conv residual", ConvResidual, (1, 4)),
    Case("conv residual, batch norm", lambda: ConvResidual(batch_norm=True), (1, 4)),
    Case("concatenation", Concatenation, (3,)),
]
