"""Layers that networks are drawn from, beside those of `architectures`."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from architectures import Custom, Layer, Shape, sequence
from fuzz.unweighted import OPERATIONS
from operations import CASES


class Measured(Custom):
    """A layer whose result is looked at to know its shape."""

    def after(self, shape: Shape) -> Shape:
        with torch.no_grad():
            module = self.module(shape).double().eval()
            return tuple(module(torch.zeros(2, *shape, dtype=torch.float64)).shape[1:])


@dataclass(frozen=True, repr=False)
class Conv(Measured):
    """A convolution with all its options; numbers for all axes, or one for each."""

    width: int
    kernel: tuple[int, ...]
    stride: int = 1
    padding: Any = 0
    dilation: int = 1
    groups: int = 1
    bias: bool = True
    mode: str = "zeros"
    transposed: bool = False
    extra: int = 0  # output padding

    def module(self, shape: Shape) -> nn.Module:
        kind = getattr(nn, f"Conv{'Transpose' if self.transposed else ''}{len(shape) - 1}d")
        extra: dict[str, Any] = {"output_padding": self.extra} if self.transposed else {}
        return kind(
            shape[0], self.width, self.kernel, self.stride, self.padding, dilation=self.dilation,
            groups=self.groups, bias=self.bias, padding_mode=self.mode, **extra,
        )  # fmt: skip


@dataclass(frozen=True, repr=False)
class Window(Measured):
    """Pooling with all its options."""

    kind: str  # Max or Avg
    kernel: tuple[int, ...]
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    ceil: bool = False
    counted: bool = True
    divisor: int | None = None

    def module(self, shape: Shape) -> nn.Module:
        axes = len(shape) - 1
        if self.kind == "Max":
            kind = getattr(nn, f"MaxPool{axes}d")
            return kind(self.kernel, self.stride, self.padding, self.dilation, ceil_mode=self.ceil)
        more: dict[str, Any] = {"divisor_override": self.divisor} if axes > 1 else {}
        kind = getattr(nn, f"AvgPool{axes}d")
        return kind(self.kernel, self.stride, self.padding, self.ceil, self.counted, **more)


@dataclass(frozen=True, repr=False)
class Tokens(Measured):
    """A Linear along the last axis, whatever the others are."""

    width: int
    bias: bool = True

    def module(self, shape: Shape) -> nn.Module:
        return nn.Linear(shape[-1], self.width, self.bias)


@dataclass(frozen=True, repr=False)
class Embed(Custom):
    """A table of five rows, indexed by the input."""

    width: int
    bag: str = ""

    def module(self, shape: Shape) -> nn.Module:
        if self.bag:
            return nn.EmbeddingBag(5, self.width, mode=self.bag)
        return nn.Embedding(5, self.width)

    def after(self, shape: Shape) -> Shape:
        return (self.width,) if self.bag else (*shape, self.width)


class Apply(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@dataclass(frozen=True, repr=False)
class Op(Measured):
    """An operation without weights, of `fuzz.unweighted`."""

    name: str

    def module(self, shape: Shape) -> nn.Module:
        return Apply(OPERATIONS[self.name].function)


class RawParameters(nn.Module):
    """Parameters used as they are; see `RAW`."""

    def __init__(self, name: str, shapes: dict[str, Shape]) -> None:
        super().__init__()
        self.name = name
        for key, shape in shapes.items():
            setattr(self, key, nn.Parameter(torch.ones(shape)))

    def forward(self, x: Tensor) -> Tensor:
        return RAW[self.name](self, x)


# Every expression is such that |w|^p in place of w gives the sum over paths.
RAW: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "matmul": lambda m, x: x @ m.w + m.b,
    "addmm": lambda m, x: torch.addmm(m.b, x.flatten(0, -2), m.w).view(*x.shape[:-1], -1),
    "einsum": lambda m, x: torch.einsum("...i,io->...o", x, m.w),
    "transposed": lambda m, x: F.linear(x, m.w.t(), m.b),
    "abs": lambda m, x: F.linear(x, m.w.abs().T),
    "rows": lambda m, x: torch.cat([F.linear(x, w) for w in m.w.T.chunk(2)], -1),
    "gain": lambda m, x: x * m.g,
    "gain in place": lambda m, x: (1 * x).mul_(m.g),
    "bias": lambda m, x: m.g + x,
    "gain of a number": lambda m, x: x * m.n,
    "bias of a number": lambda m, x: x + m.n,
    "position": lambda m, x: x + m.p,
    "tied": lambda m, x: F.linear(F.linear(x, m.w.t(), m.b).relu(), m.w),
    "token": lambda m, x: torch.cat([m.t.expand(len(x), *m.t.shape), x], 1),
}


@dataclass(frozen=True, repr=False)
class Raw(Measured):
    """Parameters without a module, along the last axis."""

    name: str
    width: int = 1

    def module(self, shape: Shape) -> nn.Module:
        size = shape[-1]
        return RawParameters(
            self.name,
            {
                "w": (size, self.width), "b": (self.width,), "g": (size,), "n": (), "p": shape,
                "t": (1, *shape[1:]),
            },
        )  # fmt: skip


class Shared(nn.Module):
    """A module used twice: on its own result, or on two things side by side."""

    def __init__(self, body: nn.Module, how: str) -> None:
        super().__init__()
        self.body, self.how = body, how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "again":
            return self.body(self.body(x))
        one, other = self.body(x), self.body(2 * x.flip(1))
        return torch.cat([one, other], 1) if self.how == "cat" else one + other


@dataclass(frozen=True, repr=False)
class Sharing(Measured):
    """`again` on its own result; `cat` or `add` of the results on x and on another x."""

    body: tuple[Layer, ...]
    how: str = "again"

    def module(self, shape: Shape) -> nn.Module:
        return Shared(sequence(self.body, shape), self.how)


class Joined(nn.Module):
    """Branches that read the same, joined value by value."""

    def __init__(self, branches: list[nn.Module], how: str) -> None:
        super().__init__()
        self.branches, self.how = nn.ModuleList(branches), how

    def forward(self, x: Tensor) -> Tensor:
        one, other = (branch(x) for branch in self.branches)
        return JOINS[self.how](one, other)


JOINS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda a, b: a + b,
    "alpha": lambda a, b: torch.add(a, b, alpha=2),
    "sub": lambda a, b: a - b,
    "rsub": lambda a, b: torch.rsub(a, b, alpha=3),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "max": torch.max,
    "stacked": lambda a, b: torch.stack([a, b]).mean(0),
    "most": lambda a, b: torch.stack([a, b], -1).amax(-1),
    "add_": lambda a, b: (1 * a).add_(b),
    "where": lambda a, b: torch.where(a > 0, a, b),
    "gate": lambda a, b: a * b.sigmoid(),
    "product": lambda a, b: a * b,
}
# How much each of the two counts in a sum over paths, before it is raised to the power p.
SHARES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(["add", "sub", "maximum", "minimum", "max", "most", "add_"], (1.0, 1.0)),
    "alpha": (1.0, 2.0),
    "rsub": (3.0, 1.0),
    "stacked": (0.5, 0.5),
}


@dataclass(frozen=True, repr=False)
class Join(Measured):
    """Two branches with results of one shape; `how` is one of `JOINS`."""

    branches: tuple[tuple[Layer, ...], tuple[Layer, ...]]
    how: str = "add"

    def module(self, shape: Shape) -> nn.Module:
        return Joined([sequence(branch, shape) for branch in self.branches], self.how)


class Whole(nn.Module):
    """A model of the table of operations, behind a linear map to the shape that it takes."""

    def __init__(self, size: int, shape: Shape, model: nn.Module) -> None:
        super().__init__()
        self.stem, self.shape, self.model = nn.Linear(size, math.prod(shape)), shape, model

    def forward(self, x: Tensor) -> Tensor:
        y = self.model(self.stem(x.flatten(1)).view(len(x), *self.shape))
        return y.flatten(1)


@dataclass(frozen=True, repr=False)
class FromTable(Measured):
    """A model of `operations.CASES` in the middle of the network."""

    name: str

    def module(self, shape: Shape) -> nn.Module:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            case = CASES[self.name]
            inner = case.draw.args[0]
            model = Whole(math.prod(shape), inner, case.build())
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                model.eval()(torch.zeros(2, *shape))  # lazy layers
        finally:
            torch.set_default_dtype(before)
        return model
