"""Small random networks: a description that can be printed and pasted, and the model it describes.

`random_network(random.Random(seed))` draws a description; `networks()` is the same as a hypothesis
strategy, which can shrink it. `build` makes the model and `example_input` a batch for it, both in
float64. Everything random about the model comes from the description's own `seed`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from random import Random
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

Shape = tuple[int, ...]  # channels, then the lengths of the spatial axes


class _Described:
    """Prints as the call that makes it, without arguments that have their default."""

    def __repr__(self) -> str:
        given = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields(self)  # type: ignore[arg-type]
            if getattr(self, field.name) != field.default
        ]
        return f"{type(self).__name__}({', '.join(given)})"


@dataclass(frozen=True, repr=False)
class Map(_Described):
    """A Linear, or a convolution padded so that stride 1 keeps the lengths."""

    width: int
    bias: bool = True
    kernel: int = 1
    stride: int = 1
    dilation: int = 1
    groups: int = 1
    transposed: bool = False


@dataclass(frozen=True, repr=False)
class BatchNorm(_Described):
    affine: bool = True
    running: bool = True
    eps: float = 1e-5


@dataclass(frozen=True, repr=False)
class Act(_Described):
    """`relu`, `leaky`, `prelu`, or one that pins: `sigmoid`, `gelu`."""

    name: str = "relu"
    inplace: bool = False


@dataclass(frozen=True, repr=False)
class LayerNorm(_Described):
    """Over channels and space; pins what it reads."""

    affine: bool = True


@dataclass(frozen=True, repr=False)
class Pool(_Described):
    """`max`, `avg`, `adaptive_max` or `adaptive_avg`; the size of the window or of the result."""

    kind: str
    size: int = 2


@dataclass(frozen=True, repr=False)
class Upsample(_Described):
    mode: str = "nearest"


@dataclass(frozen=True, repr=False)
class Dropout(_Described):
    p: float = 0.5
    channels: bool = False


@dataclass(frozen=True, repr=False)
class Flatten(_Described):
    pass


@dataclass(frozen=True, repr=False)
class Shuffle(_Described):
    """The channel shuffle of ShuffleNet."""

    groups: int


@dataclass(frozen=True, repr=False)
class Residual(_Described):
    """`body(x) + projection(x)`; an empty projection is the identity."""

    body: tuple["Layer", ...]
    projection: tuple["Layer", ...] = ()


@dataclass(frozen=True, repr=False)
class Concat(_Described):
    """All branches read the same input; their results side by side."""

    branches: tuple[tuple["Layer", ...], ...]


@dataclass(frozen=True, repr=False)
class Split(_Described):
    """Chunks of the channels, one for each branch; their results side by side."""

    branches: tuple[tuple["Layer", ...], ...]


class Custom(_Described):
    """A layer that says itself what it is: for descriptions that are at home elsewhere."""

    def module(self, shape: Shape) -> nn.Module:
        """The module for samples of a shape, of any weights."""
        raise NotImplementedError

    def after(self, shape: Shape) -> Shape:
        """The shape of one sample behind it."""
        raise NotImplementedError


Layer = (
    Map
    | BatchNorm
    | Act
    | LayerNorm
    | Pool
    | Upsample
    | Dropout
    | Flatten
    | Shuffle
    | Residual
    | Concat
    | Split
    | Custom
)


@dataclass(frozen=True, repr=False)
class Spec(_Described):
    """A network: the shape of one sample, the layers, and the seed of weights and inputs."""

    shape: Shape
    layers: tuple[Layer, ...]
    seed: int = 0


# What a description means ------------------------------------------------------------------------


def shape_after(layers: Layer | tuple[Layer, ...], shape: Shape) -> Shape:
    """The shape of one sample after the layers."""
    if isinstance(layers, tuple):
        for layer in layers:
            shape = shape_after(layer, shape)
        return shape
    channels, *lengths = shape
    match layers:
        case Map(width=width, stride=stride, transposed=True):
            return (width, *(n * stride for n in lengths))
        case Map(width=width, stride=stride):
            return (width, *((n - 1) // stride + 1 for n in lengths))
        case Pool(kind="max" | "avg", size=size):
            return (channels, *(n // size for n in lengths))
        case Pool(size=size):
            return (channels, *(size for _ in lengths))
        case Upsample():
            return (channels, *(2 * n for n in lengths))
        case Flatten():
            return (math.prod(shape),)
        case Residual(body=body):
            return shape_after(body, shape)
        case Concat(branches=branches):
            after = [shape_after(branch, shape) for branch in branches]
            return (sum(s[0] for s in after), *after[0][1:])
        case Split(branches=branches):
            parts = [(channels // len(branches), *lengths)] * len(branches)
            after = [shape_after(b, part) for b, part in zip(branches, parts, strict=True)]
            return (sum(s[0] for s in after), *after[0][1:])
        case Custom():
            return layers.after(shape)
    return shape


def build(spec: Spec) -> nn.Module:
    """The model, float64, in eval mode, with random weights and running statistics."""
    model = sequence(spec.layers, spec.shape).double()
    _randomize(model, torch.Generator().manual_seed(spec.seed))
    return model.eval()


def example_input(spec: Spec, batch: int = 6) -> Tensor:
    """A batch that goes with the model; the same for the same description."""
    generator = torch.Generator().manual_seed(spec.seed + 1)
    return torch.randn(batch, *spec.shape, dtype=torch.float64, generator=generator)


def layers_of(layers: tuple[Layer, ...]) -> list[Layer]:
    """All layers, those inside blocks included."""
    found: list[Layer] = []
    for layer in layers:
        found.append(layer)
        match layer:
            case Residual(body=body, projection=projection):
                found += layers_of(body) + layers_of(projection)
            case Concat(branches=branches) | Split(branches=branches):
                found += [inner for branch in branches for inner in layers_of(branch)]
    return found


class _Residual(nn.Module):
    def __init__(self, body: nn.Module, projection: nn.Module) -> None:
        super().__init__()
        self.body, self.projection = body, projection

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + self.projection(x)


class _Branches(nn.Module):
    def __init__(self, branches: list[nn.Module], split: bool) -> None:
        super().__init__()
        self.branches, self.split = nn.ModuleList(branches), split

    def forward(self, x: Tensor) -> Tensor:
        parts = x.chunk(len(self.branches), 1) if self.split else [x] * len(self.branches)
        return torch.cat([f(part) for f, part in zip(self.branches, parts, strict=True)], 1)


class _Shuffle(nn.Module):
    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        grouped = x.view(len(x), self.groups, -1, *x.shape[2:])
        return grouped.transpose(1, 2).reshape(x.shape)


def sequence(layers: tuple[Layer, ...], shape: Shape) -> nn.Sequential:
    """One module for each layer, with the weights it starts with."""
    modules = []
    for layer in layers:
        modules.append(_module(layer, shape))
        shape = shape_after(layer, shape)
    return nn.Sequential(*modules)


def _module(layer: Layer, shape: Shape) -> nn.Module:
    channels, axes = shape[0], len(shape) - 1
    match layer:
        case Map(width=width, bias=bias) if axes == 0:
            return nn.Linear(channels, width, bias)
        case Map():
            return _convolution(layer, channels, axes)
        case BatchNorm(affine=affine, running=running, eps=eps):
            kinds = (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
            return kinds[axes](channels, eps, affine=affine, track_running_stats=running)
        case Act(name=name, inplace=inplace):
            return {
                "relu": lambda: nn.ReLU(inplace),
                "leaky": lambda: nn.LeakyReLU(0.1, inplace),
                "prelu": lambda: nn.PReLU(channels),
                "sigmoid": nn.Sigmoid,
                "gelu": nn.GELU,
            }[name]()
        case LayerNorm(affine=affine):
            return nn.LayerNorm(shape, elementwise_affine=affine)
        case Pool(kind=kind, size=size):
            name = "".join(part.capitalize() for part in kind.split("_"))
            return getattr(nn, f"{name}Pool{axes}d")(size)
        case Upsample(mode=mode):
            return nn.Upsample(scale_factor=2, mode=mode)
        case Dropout(p=p, channels=whole):
            kinds = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
            return kinds[axes if whole else 0](p)
        case Flatten():
            return nn.Flatten()
        case Shuffle(groups=groups):
            return _Shuffle(groups)
        case Residual(body=body, projection=projection):
            return _Residual(sequence(body, shape), sequence(projection, shape))
        case Concat(branches=branches):
            return _Branches([sequence(branch, shape) for branch in branches], False)
        case Split(branches=branches):
            part = (channels // len(branches), *shape[1:])
            return _Branches([sequence(branch, part) for branch in branches], True)
        case Custom():
            return layer.module(shape)
    raise TypeError(f"no layer: {layer!r}")


def _convolution(layer: Map, channels: int, axes: int) -> nn.Module:
    same: dict[str, Any] = {
        "stride": layer.stride,
        "padding": layer.dilation * (layer.kernel // 2),
        "dilation": layer.dilation,
        "groups": layer.groups,
        "bias": layer.bias,
    }
    if layer.transposed:
        kind = (nn.ConvTranspose1d, nn.ConvTranspose2d)[axes - 1]
        return kind(channels, layer.width, layer.kernel, output_padding=layer.stride - 1, **same)
    return (nn.Conv1d, nn.Conv2d)[axes - 1](channels, layer.width, layer.kernel, **same)


def _randomize(model: nn.Module, generator: torch.Generator) -> None:
    """Weights of the size that keeps activations of order 1; statistics of order 1."""
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if not tensor.is_floating_point():
                continue
            noise = torch.randn(tensor.shape, dtype=torch.float64, generator=generator)
            if tensor.dim() > 1:
                tensor.copy_(noise * (2 / tensor[0].numel()) ** 0.5)
            elif name.endswith("running_var"):
                tensor.copy_(noise.abs() + 0.5)
            elif name.endswith("weight"):  # of a normalisation, or slopes of a PReLU
                tensor.copy_(0.2 + 0.3 * noise.abs())
            else:
                tensor.copy_(0.5 * noise)


# Drawing -----------------------------------------------------------------------------------------


def random_network(random: Random) -> Spec:
    """Draw a description: 1 to 6 weighted layers or blocks, widths 1 to 6."""
    axes = random.choice([0, 0, 1, 2])
    shape: Shape = (random.randint(1, 4), *(random.randint(2, 6) for _ in range(axes)))
    layers: list[Layer] = []
    here = shape
    for _ in range(random.randint(1, 6)):
        step = _step(random, here)
        layers += step
        here = shape_after(tuple(step), here)
    if len(here) > 1 and _one_in(random, 2):
        layers += [Pool("adaptive_avg", random.randint(1, 2))] * random.randint(0, 1)
        layers.append(Flatten())
        here = shape_after(tuple(layers), shape)
    if random.randint(0, 3):
        layers.append(_map(random, here, strided=False))
    return Spec(shape, tuple(layers), random.randint(0, 2**16))


@st.composite
def networks(draw: st.DrawFn) -> Spec:
    """Descriptions of small networks, as a hypothesis strategy."""
    return random_network(draw(st.randoms(use_true_random=False)))


def _one_in(random: Random, n: int) -> bool:
    return random.randint(1, n) == n


def _step(random: Random, shape: Shape) -> list[Layer]:
    """A few layers that may follow values of the given shape."""
    kinds: list[Callable[[Random, Shape], list[Layer]]] = [_plain, _plain, _plain]
    kinds += [_residual, _residual, _concat, _pin]
    if shape[0] % 2 == 0:
        kinds.append(_split)
    if len(shape) > 1:
        kinds.append(_resize)
    return random.choice(kinds)(random, shape)


def _plain(random: Random, shape: Shape) -> list[Layer]:
    """A weighted layer with what usually follows it."""
    first = _map(random, shape)
    layers: list[Layer] = [first]
    if _one_in(random, 3):
        layers.append(_norm(random))
    layers += [Act(_activation(random), _one_in(random, 3))] * (random.randint(0, 7) > 0)
    if _one_in(random, 6):
        layers.append(Dropout(0.5, _one_in(random, 2)))
    return layers


def _residual(random: Random, shape: Shape) -> list[Layer]:
    """Before activation or after it, with or without projection."""
    body: list[Layer] = [Act()] * random.randint(0, 1)
    inner = _map(random, shape, strided=False)
    body += [inner, Act(_activation(random))]
    if _one_in(random, 3):
        body.insert(-1, _norm(random))
    projected = _one_in(random, 3)
    width = random.randint(1, 6) if projected else shape[0]
    body.append(_map(random, shape_after(inner, shape), strided=False, width=width))
    if _one_in(random, 4):
        body.append(_norm(random))
    projection = (Map(width, random.choice([True, False])),) if projected else ()
    return [Residual(tuple(body), projection), *([Act()] * random.randint(0, 1))]


def _concat(random: Random, shape: Shape) -> list[Layer]:
    branches = [_branch(random, shape) for _ in range(random.randint(1, 2))]
    return [Concat((*branches, ())) if _one_in(random, 2) else Concat(tuple(branches))]


def _split(random: Random, shape: Shape) -> list[Layer]:
    half = (shape[0] // 2, *shape[1:])
    split = Split((_branch(random, half), random.choice([(), _branch(random, half)])))
    width = shape_after(split, shape)[0]
    return [split, Shuffle(2)] if width % 2 == 0 else [split]


def _branch(random: Random, shape: Shape) -> tuple[Layer, ...]:
    return (_map(random, shape, strided=False, width=random.randint(1, 3)), Act())


def _resize(random: Random, shape: Shape) -> list[Layer]:
    choices: list[Layer] = [Pool("adaptive_avg", 2), Pool("adaptive_max", random.randint(1, 3))]
    if min(shape[1:]) > 1:
        choices += [Pool("max"), Pool("avg")]
    if max(shape[1:]) < 5:
        choices += [Upsample(), Upsample("linear" if len(shape) == 2 else "bilinear")]
    return [random.choice(choices)]


def _pin(random: Random, shape: Shape) -> list[Layer]:
    pins: list[Layer] = [Act("sigmoid"), Act("gelu"), LayerNorm(_one_in(random, 2))]
    return [_map(random, shape), random.choice(pins)]


def _map(random: Random, shape: Shape, *, strided: bool = True, width: int | None = None) -> Map:
    width = width or random.randint(1, 6)
    bias = random.choice([True, False])
    if len(shape) == 1:
        return Map(width, bias)
    common = [g for g in range(1, 7) if shape[0] % g == 0 and width % g == 0]
    return Map(
        width,
        bias,
        kernel=random.choice([1, 3, 5]),
        stride=random.choice([1, 2]) if strided and max(shape[1:]) < 7 else 1,
        dilation=random.choice([1, 1, 2]),
        groups=random.choice(common),
        transposed=strided and max(shape[1:]) < 5 and _one_in(random, 5),
    )


def _norm(random: Random) -> BatchNorm:
    return BatchNorm(not _one_in(random, 4), not _one_in(random, 4))


def _activation(random: Random) -> str:
    return random.choice(["relu", "relu", "relu", "leaky", "prelu"])
