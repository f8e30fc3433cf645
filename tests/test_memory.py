"""Views and in-place operations, drawn at random: the law holds, or the model is refused.

Whether two tensors share memory decides what an in-place operation does. Each drawn model is a
program on a pool of tensors, some of which are views of others, constants or an attribute of the
model; all of them are read out at the end.
"""

import copy
import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pathspace as ps
from operations import ALL, act, into
from reference import replay

Step = tuple[str, int, int]
STEPS: dict[str, Callable[[Any, Tensor, Tensor], Tensor | None]] = {
    "half": lambda m, a, b: a[:, :2],
    "every other": lambda m, a, b: a[:, ::2],
    "view": lambda m, a, b: a.view(a.shape[0], -1),
    "contiguous": lambda m, a, b: a.contiguous(),
    "dropout": lambda m, a, b: F.dropout(a, 0.5, False),
    "detach": lambda m, a, b: a.detach(),
    "column": lambda m, a, b: a.unbind(1)[0][:, None],
    "list": lambda m, a, b: a[:, [1, 0]],
    "flip": lambda m, a, b: a.flip(1),
    "clone": lambda m, a, b: a.clone(),
    "zeros": lambda m, a, b: torch.zeros(a.shape),
    "buffer": lambda m, a, b: m.k[:, : a.shape[1]],
    "relu_": lambda m, a, b: a.relu_(),
    "mul_": lambda m, a, b: a.mul_(2),
    "shift_": lambda m, a, b: a.add_(1),
    "sigmoid_": lambda m, a, b: a.sigmoid_(),
    "zero_": lambda m, a, b: a.zero_(),
    "setitem": lambda m, a, b: into(a, (ALL, 0), 0.0),
    "gain_": lambda m, a, b: a.mul_(m.g[: a.shape[1]]),
    "bias_": lambda m, a, b: a.add_(m.b[: a.shape[1]]),
    "add_": lambda m, a, b: a.add_(b),
    "copy_": lambda m, a, b: a.copy_(b),
    "assign": lambda m, a, b: into(a, (ALL, slice(0, b.shape[1])), b),
    "add": lambda m, a, b: a + b,
    "cat": lambda m, a, b: torch.cat([a, b], 1),
    "linear": lambda m, a, b: F.linear(a, m.w[:, : a.shape[1]]),
    "forget": lambda m, a, b: None,
}


class Program(nn.Module):
    def __init__(self, steps: list[Step]) -> None:
        super().__init__()
        self.steps = steps
        self.stem, self.read = nn.Linear(4, 4), nn.Linear(100, 2)
        self.g, self.b = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))
        self.w = nn.Parameter(torch.randn(4, 4))
        self.register_buffer("k", torch.randn(3, 4))
        self.plain = torch.zeros(3, 4)  # no buffer

    def forward(self, x: Tensor) -> Tensor:
        pool: list[Tensor | None] = [x.clone(), act(self.stem(x)), self.plain]
        for name, i, j in self.steps:
            a, b = pool[i], pool[j]
            if a is None or b is None:
                raise IndexError("forgotten")
            pool.append(STEPS[name](self, a, b))
            if name == "forget":
                pool[i] = None
        values = torch.cat([tensor for tensor in pool if tensor is not None], 1)
        return self.read(F.pad(values, (0, 100 - values.shape[1])))


@functools.cache
def drawn(seed: int) -> Program:
    """A program in which every step is possible and all values stay moderate."""
    choose = random.Random(seed)
    torch.manual_seed(seed)
    model = Program([])
    for _ in range(choose.randint(3, 9)):
        for _ in range(20):
            size = len(model.steps) + 3
            step = (choose.choice(list(STEPS)), choose.randrange(size), choose.randrange(size))
            longer = Program([*model.steps, step]).eval()
            try:
                with torch.no_grad():
                    y = copy.deepcopy(longer)(torch.randn(3, 4))
            except (IndexError, RuntimeError, ValueError):
                continue
            if float(y.abs().max()) < 1e4:
                model = longer
                break
    return model


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@torch.no_grad()
def output(model: nn.Module, x: Tensor, state: dict[str, Tensor] | None = None) -> Tensor:
    model, state = copy.deepcopy((model, state))
    return model(x) if state is None else torch.func.functional_call(model, state, (x,))


@pytest.mark.parametrize("streams", ["pinned", "shared"])
def test_in_place_operations_keep_the_law_or_are_refused(streams: Any) -> None:
    kept = moved = 0
    for seed in range(200):
        model = drawn(seed)
        x = torch.randn(3, 4)
        try:
            network = ps.trace(model, x, streams=streams)
        except ps.UnsupportedOperation:
            continue
        assert not model.plain.any(), model.steps
        assert model.plain._version == 0, model.steps
        c = ps.random_rescaling(network)
        old, new = output(model, x), output(model, x, ps.rescale(network, c))
        torch.testing.assert_close(new, old, rtol=1e-9, atol=1e-9, msg=str(model.steps))
        torch.testing.assert_close(replay(network, x), old, msg=str(model.steps))
        kept, moved = kept + 1, moved + bool(c.log.any())
    assert kept > 100
    assert moved > 100
