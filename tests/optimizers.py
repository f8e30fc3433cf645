"""The table of all optimizers, with torch's counterpart of each, and a small network to train."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam

import pathspace as ps
from pathspace.optim import (
    GSGD,
    BalancedSGD,
    GAdagrad,
    GAdam,
    InvariantOptimizer,
    PathAdagrad,
    PathAdam,
    PathSGD,
)
from pathspace.optim.blocks import cut


def apart(monkeypatch: Any) -> None:
    """Step small parameters like large ones: none end to end, units moved on the cheaper side."""
    for module in ("sheets", "sides"):
        monkeypatch.setattr(f"pathspace.optim.{module}.SMALL", 0)
    for module in ("sheets", "blocks", "finite", "productsums"):
        monkeypatch.setattr(f"pathspace.optim.{module}.SIZE", 7)
    monkeypatch.setattr("pathspace.optim.optimizer.cut", partial(cut, size=7))


@dataclass(frozen=True)
class Kind:
    """An optimizer with settings, and torch's optimizer that has the same rule."""

    name: str
    make: type[InvariantOptimizer]
    plain: type[torch.optim.Optimizer]
    rule: dict[str, Any] = field(default_factory=dict)
    space: dict[str, Any] = field(default_factory=dict)

    def __call__(self, params: Any, network: ps.Network, **more: Any) -> InvariantOptimizer:
        return self.make(params, **{**self.rule, **self.space, **more}, network=network)

    def torchs(self, params: Any, **more: Any) -> torch.optim.Optimizer:
        return self.plain(params, **{**self.rule, **more})

    @property
    def unscaled(self) -> list[str]:
        """The parameters of :class:`Net` that get the plain rule."""
        return ["temperature"] if self.is_path else ["temperature", "c.bias"]

    @property
    def is_path(self) -> bool:
        return self.make.__name__.startswith("Path")


MOMENTUM = {"lr": 0.05, "momentum": 0.8, "dampening": 0.3}
NESTEROV = {"lr": 0.05, "momentum": 0.8, "nesterov": True}
ADAGRAD = {"lr": 0.02, "lr_decay": 0.1, "initial_accumulator_value": 0.01}
PAPER = {"metric": "paper", "roots": "additive", "skeleton": "largest"}
KINDS = [
    *(
        Kind(f"{make.__name__}{name}", make, SGD, rule)
        for make in (PathSGD, GSGD, BalancedSGD)
        for name, rule in (("", {"lr": 0.05}), ("-momentum", MOMENTUM), ("-nesterov", NESTEROV))
    ),
    *(
        kind
        for adagrad, adam in ((PathAdagrad, PathAdam), (GAdagrad, GAdam))
        for kind in (
            Kind(adagrad.__name__, adagrad, Adagrad, ADAGRAD),
            Kind(adam.__name__, adam, Adam, {"lr": 0.01}),
            Kind(f"{adam.__name__}-amsgrad", adam, Adam, {"lr": 0.01, "amsgrad": True}),
        )
    ),
    Kind("PathSGD-every2", PathSGD, SGD, MOMENTUM, {"every": 2, "p": 1.0}),
    Kind("BalancedSGD-every2", BalancedSGD, SGD, MOMENTUM, {"every": 2}),
    Kind("GSGD-paper", GSGD, SGD, {"lr": 1e-4, "momentum": 0.8}, PAPER),
    Kind("GSGD-decay", GSGD, SGD, MOMENTUM, {"bp_decay": (1e-3, 1e-3)}),
]


class Net(nn.Module):
    """4-5-6-3 with biases, and a temperature that ``forward`` does not use but the loss does."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 5), nn.Linear(5, 6), nn.Linear(6, 3)
        self.temperature = nn.Parameter(torch.zeros(()))
        fill(self, seed)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(self.a(x).relu()).relu())


def fill(model: nn.Module, seed: int = 0) -> nn.Module:
    """Random weights from a local seed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.7 * torch.randn(parameter.shape, generator=generator))
    return model


def batch(number: int, size: int = 8, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Inputs and labels of one step."""
    generator = torch.Generator().manual_seed(1000 + number)
    x = torch.randn(size, 4, generator=generator, dtype=torch.float64).to(dtype)
    return x, torch.randint(3, (size,), generator=generator)


def setting(
    kind: Kind, seed: int = 0, dtype: torch.dtype = torch.float64, **more: Any
) -> tuple[Net, InvariantOptimizer]:
    """A network with its optimizer."""
    model = Net(seed).to(dtype)
    network = ps.trace(model, batch(0, dtype=dtype)[0])
    return model, kind(model.parameters(), network, **more)


def loss_of(model: nn.Module, number: int) -> Tensor:
    """The loss on one batch, in the model's dtype."""
    x, y = batch(number, dtype=next(model.parameters()).dtype)
    temperature = next(p for n, p in model.named_parameters() if n.endswith("temperature"))
    return F.cross_entropy(model(x) * temperature.exp(), y)


def backward(model: nn.Module, number: int) -> Tensor:
    """Fresh gradients of one batch."""
    model.zero_grad()
    loss = loss_of(model, number)
    loss.backward()
    return loss.detach()


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    numbers: Iterable[int],
    after: Callable[[], Any] = lambda: None,
) -> None:
    """One step per number."""
    for number in numbers:
        backward(model, number)
        optimizer.step()
        after()


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """A copy of all weights."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def assert_identical(a: Any, b: Any) -> None:
    """The same to the last bit, with the same dtypes and keys."""
    assert type(a) is type(b)
    if isinstance(a, Tensor):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_identical(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            assert_identical(one, other)
    else:
        assert a == b


def stored(value: Any) -> Any:
    """What comes back from a file that holds nothing but weights."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)
