"""One law for every operation: a random rescaling keeps the function, in eval and in train mode.

The table lists small models by name with the number of free scales that one counts by hand, H. A
case is traced with both kinds of streams; the law, H, and the independence of the scales are
checked for both, and H of the full group is compared with the dimension of the invariance that the
Jacobian of the outputs shows. `beyond` says why that dimension is larger where it is.
"""

import collections
import copy
import dataclasses
import functools
import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune

import pathspace as ps
from pathspace.network import Streams
from reference import call, invariance_dimension, tensors_in

Draw = Callable[[int], Any]  # an example input with so many samples
BATCH = 3


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[], nn.Module]
    draw: Draw
    H: dict[Streams, int]
    beyond: str = ""  # why the Jacobian shows more dimensions than H
    apart: str = ""  # why it is not to be compared
    reason: str = ""
    on_unknown: Any = "error"


CASES: dict[str, Case] = {}


def case(
    name: str,
    build: Callable[[], nn.Module],
    draw: Draw | tuple[int, ...],
    pinned: int,
    shared: int | None = None,
    **more: Any,
) -> None:
    """Enter a model; the inputs are a shape without the batch, or a function that draws them."""
    assert name not in CASES, name
    if isinstance(draw, tuple):
        shape = draw
        draw = lambda samples: torch.randn(samples, *shape)  # noqa: E731
    H: dict[Streams, int] = {"pinned": pinned, "shared": pinned if shared is None else shared}
    CASES[name] = Case(name, build, draw, H, **more)


class Net(nn.Module):
    """A forward function with its parts: modules, parameters, buffers and anything else."""

    def __init__(self, forward: Callable[..., Any], /, **parts: Any) -> None:
        super().__init__()
        self.run = forward
        for name, part in parts.items():
            plain = isinstance(part, Tensor) and not isinstance(part, nn.Parameter)
            self.register_buffer(name, part) if plain else setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self, *args, **kwargs)


def net(forward: Callable[..., Any], /, **parts: Callable[[], Any]) -> Callable[[], nn.Module]:
    """A builder of a `Net`; the parts are built anew each time."""
    return lambda: Net(forward, **{name: part() for name, part in parts.items()})


def seq(*layers: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """A builder of a `Sequential`."""
    return lambda: nn.Sequential(*(layer() for layer in layers))


def part(kind: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[], Any]:
    return partial(kind, *args, **kwargs)


def parameter(*shape: int) -> Callable[[], nn.Parameter]:
    return lambda: nn.Parameter(torch.randn(shape))


def buffer(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.rand(shape) + 0.5


L, R, Flat = partial(part, nn.Linear), nn.ReLU, nn.Flatten
C1, C2, C3 = (partial(part, kind) for kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d))
CONVS = {0: nn.Linear, 1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


class Sandwich(nn.Module):
    """Four channels with ReLU, the operation in question, and a linear read-out of all of it."""

    def __init__(self, op: Callable[[Tensor], Tensor], space: tuple[int, ...]) -> None:
        super().__init__()
        stem = CONVS[len(space)]
        self.stem = stem(2, 4, 1) if space else stem(3, 4)
        self.op = copy.deepcopy(op)
        probe = self.body(torch.zeros(BATCH, *((2, *space) if space else (3,))))
        self.head = nn.Linear(probe.flatten(1).shape[1], 2)

    def body(self, x: Tensor) -> Tensor:
        return self.op(self.stem(x).relu())

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).flatten(1))


def between(
    name: str,
    op: Callable[[Tensor], Any],
    pinned: int,
    shared: int | None = None,
    *,
    space: tuple[int, ...] = (),
    **more: Any,
) -> None:
    """Enter a `Sandwich`: four units before the operation."""
    shape = (2, *space) if space else (3,)
    case(name, partial(Sandwich, op, space), shape, pinned, shared, **more)


# Linear and convolution: every hidden channel is free ------------------------------------------

case("linear", seq(L(3, 4), R, L(4, 2)), (3,), 4)
case("linear, three", seq(L(3, 4), R, L(4, 5), R, L(5, 2)), (3,), 4 + 5)
case("linear without bias", seq(L(3, 4, bias=False), R, L(4, 2, bias=False)), (3,), 4)
case("linear over tokens", seq(L(3, 4), R, L(4, 5), R, L(5, 2)), (6, 3), 4 + 5)
case("linear without batch", seq(L(3, 4), R, L(4, 2)), lambda _: torch.randn(3), 4)
case("one linear", seq(L(3, 2)), (3,), 0)

for convolution, space in ((nn.Conv1d, (5,)), (nn.Conv2d, (4, 3)), (nn.Conv3d, (3, 2, 3))):
    kind, rank = convolution.__name__, len(space)
    for label, options in {
        "plain": {"kernel_size": 2},
        "without bias": {"kernel_size": 2, "bias": False},
        "stride": {"kernel_size": 2, "stride": 2},
        "padding": {"kernel_size": 3, "padding": 1},
        "same": {"kernel_size": 3, "padding": "same"},
        "valid": {"kernel_size": 2, "padding": "valid"},
        "dilation": {"kernel_size": 2, "dilation": 2, "padding": 1},
        "groups": {"kernel_size": 2, "groups": 2},
    }.items():
        case(
            f"{kind} {label}",
            seq(
                part(convolution, 2, 4, 1),
                R,
                part(convolution, 4, 6, **options),
                R,
                Flat,
                part(nn.LazyLinear, 2),
            ),
            (2, *space),
            4 + 6,
        )
    case(
        f"{kind} depthwise",
        seq(
            part(convolution, 2, 4, 1),
            R,
            part(convolution, 4, 8, 2, groups=4),
            R,
            Flat,
            part(nn.LazyLinear, 2),
        ),
        (2, *space),
        4 + 8,
    )
    case(
        f"{kind} without batch",
        seq(part(convolution, 2, 4, 1), R, part(convolution, 4, 2, 2)),
        lambda _, space=space: torch.randn(2, *space),
        4,
    )
    for mode in ("reflect", "replicate", "circular"):
        case(
            f"{kind} {mode}",
            seq(
                part(convolution, 2, 4, 1),
                R,
                part(convolution, 4, 3, 3, padding=1, padding_mode=mode),
                R,
                Flat,
                part(nn.LazyLinear, 2),
            ),
            (2, *space),
            4 + 3,
        )

for convolution, space in (
    (nn.ConvTranspose1d, (3,)),
    (nn.ConvTranspose2d, (2, 2)),
    (nn.ConvTranspose3d, (2, 1, 1)),
):
    kind = convolution.__name__
    plain = CONVS[len(space)]
    for label, options in {
        "plain": {"kernel_size": 2},
        "stride and output padding": {"kernel_size": 3, "stride": 2, "output_padding": 1},
        "padding and dilation": {"kernel_size": 2, "padding": 1, "dilation": 2},
        "groups": {"kernel_size": 2, "groups": 2},
        "without bias": {"kernel_size": 2, "bias": False},
    }.items():
        case(
            f"{kind} {label}",
            seq(
                part(plain, 2, 4, 1),
                R,
                part(convolution, 4, 6, **options),
                R,
                Flat,
                part(nn.LazyLinear, 2),
            ),
            (2, *space),
            4 + 6,
        )

# Batch norm: a scale before it that it divides out, and one behind it ---------------------------

BN1, BN2, BN3 = (partial(part, kind) for kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d))
bare = {"bias": False}  # a bias before a batch norm is one more redundancy, of another kind

case("batch norm 1d", seq(L(3, 4, **bare), BN1(4), R, L(4, 2)), (3,), 4 + 4)
case(
    "batch norm 1d over space",
    seq(C1(2, 4, 2, **bare), BN1(4), R, Flat, L(4 * 4, 2)),
    (2, 5),
    4 + 4,
)
case("batch norm 2d", seq(C2(2, 4, 2, **bare), BN2(4), R, Flat, L(8, 2)), (2, 2, 3), 4 + 4)
case("batch norm 3d", seq(C3(2, 4, 1, **bare), BN3(4), R, Flat, L(16, 2)), (2, 2, 2, 1), 4 + 4)
case(
    "batch norm, not affine",
    seq(L(3, 4, **bare), BN1(4, affine=False), R, L(4, 2)),
    (3,),
    4,
    apart="without a weight of its own, the scale before it needs the running statistics",
)
case(
    "batch norm without running statistics",
    seq(L(3, 4, **bare), BN1(4, track_running_stats=False), R, L(4, 2)),
    (3,),
    4 + 4,
)
case(
    "batch norm, neither",
    seq(L(3, 4, **bare), BN1(4, affine=False, track_running_stats=False), R, L(4, 2)),
    (3,),
    4,
)
case(
    "batch norm after a bias",
    seq(L(3, 4), BN1(4), R, L(4, 2)),
    (3,),
    4 + 4,
    beyond="the bias before a batch norm and its own bias do the same",
)
case(
    "batch norm of the input",
    seq(BN1(3), L(3, 4), R, L(4, 2)),
    (3,),
    3 + 4,
    beyond="no ReLU between the batch norm and the linear layer",
)
case(
    "batch norm behind ReLU",
    seq(L(3, 4), R, BN1(4), L(4, 5), R, L(5, 2)),
    (3,),
    4 + 4 + 5,
    beyond="no ReLU between the batch norm and the linear layer",
)
case(
    "batch norm shared by two branches",
    net(
        lambda m, x: m.head(torch.cat([m.norm(m.a(x)).relu(), m.norm(m.b(x)).relu()], 1)),
        a=L(3, 4, **bare),
        b=L(3, 4, **bare),
        norm=BN1(4),
        head=L(8, 2),
    ),
    (3,),
    4 + 4,
)
case(
    "functional batch norm",
    net(
        lambda m, x: m.head(F.batch_norm(m.a(x), m.mean, m.var, m.gain, m.shift).relu()),
        a=L(3, 4, **bare),
        mean=buffer(4),
        var=buffer(4),
        gain=parameter(4),
        shift=parameter(4),
        head=L(4, 2),
    ),
    (3,),
    4 + 4,
)
case(
    "batch norm with a bias only",
    net(
        lambda m, x: m.head(F.batch_norm(m.a(x), m.mean, m.var, None, m.shift).relu()),
        a=L(3, 4, **bare),
        mean=buffer(4),
        var=buffer(4),
        shift=parameter(4),
        head=L(4, 2),
    ),
    (3,),
    4,
    apart="the scale before the batch norm needs the running statistics",
)
case(
    "batch norm whose weight is computed",
    net(
        lambda m, x: m.head(F.batch_norm(m.a(x), m.mean, m.var, m.b(x).relu().mean(0)).relu()),
        a=L(3, 4, **bare),
        b=L(3, 4),
        mean=buffer(4),
        var=buffer(4),
        head=L(4, 2),
    ),
    (3,),
    4,
    beyond="not counted: the product of two activations has one more scale",
)

# Activations -----------------------------------------------------------------------------------

for label, activation in {
    "ReLU": R,
    "ReLU in place": part(R, inplace=True),
    "LeakyReLU": part(nn.LeakyReLU, 0.2),
    "LeakyReLU in place": part(nn.LeakyReLU, 0.2, inplace=True),
    "PReLU": nn.PReLU,
    "PReLU per channel": part(nn.PReLU, 4),
    "RReLU": nn.RReLU,
    "RReLU in place": part(nn.RReLU, inplace=True),
    "Threshold": part(nn.Threshold, 0.0, 0.0),
    "Hardtanh": part(nn.Hardtanh, 0.0, math.inf),
}.items():
    case(f"activation: {label}", seq(L(3, 4), activation, L(4, 2)), (3,), 4)
case("activation: Identity", seq(L(3, 4), nn.Identity, L(4, 2)), (3,), 4, beyond="linear")
case("activation: none", seq(L(3, 4), nn.Sequential, L(4, 2)), (3,), 4, beyond="linear")
case("PReLU over space", seq(C1(2, 4, 2), part(nn.PReLU, 4), Flat, L(16, 2)), (2, 5), 4)
for name, relu in {
    "F.relu": F.relu,
    "F.relu in place": partial(F.relu, inplace=True),
    "F.relu_": F.relu_,
    "torch.relu": torch.relu,
    "torch.relu_": torch.relu_,
    "Tensor.relu": Tensor.relu,
    "Tensor.relu_": lambda x: x.relu_(),
    "clamp": lambda x: x.clamp(min=0),
    "clamp_min": lambda x: torch.clamp_min(x, 0.0),
    "clamp_": lambda x: x.clamp_(0),
    "threshold": lambda x: F.threshold(x, 0.0, 0.0, inplace=True),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1, True),
    "leaky_relu_": lambda x: F.leaky_relu_(x, 0.1),
    "rrelu": lambda x: F.rrelu(x, training=False),
    "abs": torch.abs,
    "abs()": lambda x: abs(x),
    "mask": lambda x: x * (x > 0),
    "mask first": lambda x: (x > 0) * x,
    "mask as float": lambda x: x * (x > 0).float(),
    "where": lambda x: torch.where(x > 0, x, 0.1 * x),
    "Tensor.where": lambda x: x.where(x > 0, 0.0),
    "masked_fill": lambda x: x.masked_fill(x < 0, 0.0),
    "masked_fill_": lambda x: x.masked_fill_(x < 0, 0.0),
    "maximum": lambda x: torch.maximum(x, torch.zeros_like(x)),
    "max of two": lambda x: torch.max(x, 0 * x),
    "maxout with itself": lambda x: torch.maximum(x, -0.3 * x),
    "sign": lambda x: x * x.sign(),
    "custom autograd function": lambda x: Rectify.apply(x),
}.items():
    case(
        f"rectifier: {name}",
        net(lambda m, x, f=relu: m.b(f(m.a(x))), a=L(3, 4), b=L(4, 2)),
        (3,),
        4,
    )


class Rectify(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grads[0] * (x > 0)

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> Any:
        return Rectify.apply(x), in_dims[0]


for dropout, space in (
    (nn.Dropout(), ()), (nn.Dropout(inplace=True), ()), (nn.Dropout1d(), (4,)),
    (nn.Dropout2d(), (2, 2)), (nn.Dropout3d(), (2, 1, 2)),
):  # fmt: skip
    between(str(dropout), dropout, 4, space=space)
between("F.dropout", lambda x: F.dropout(x, 0.4, training=False), 4)
between("F.dropout always on", lambda x: F.dropout(x, 0.4), 4, beyond="random")
between("torch.dropout", lambda x: torch.dropout(x, 0.4, False), 4)
between(
    "alpha dropout", nn.AlphaDropout(), 0, reason="alpha_dropout", beyond="identity in eval mode"
)
between("feature alpha dropout", nn.FeatureAlphaDropout(), 0, space=(3,), reason="alpha_dropout",
        beyond="identity in eval mode")  # fmt: skip

# Pooling over space: a channel keeps its unit --------------------------------------------------

between("max pool 1d", nn.MaxPool1d(2), 4, space=(6,))
between("max pool 2d", nn.MaxPool2d(2, stride=1), 4, space=(3, 3))
between("max pool 3d", nn.MaxPool3d(2), 4, space=(2, 2, 2))
between("max pool, ceil mode", nn.MaxPool2d(2, ceil_mode=True), 4, space=(3, 3))
between("max pool, padding and dilation", nn.MaxPool1d(3, 2, 1, 2), 4, space=(7,))
between(
    "max pool, all options",
    nn.MaxPool2d((3, 2), (2, 1), (1, 0), 1, ceil_mode=True),
    4,
    space=(4, 3),
)
between(
    "max pool with indices", lambda x: F.max_pool2d(x, 2, return_indices=True)[0], 4, space=(3, 3)
)
between(
    "max pool module with indices",
    net(lambda m, x: m.pool(x)[0], pool=part(nn.MaxPool1d, 2, return_indices=True))(),
    4,
    space=(4,),
)
between("average pool 1d", nn.AvgPool1d(2), 4, space=(6,))
between("average pool 2d", nn.AvgPool2d(2, stride=1), 4, space=(3, 3))
between("average pool 3d", nn.AvgPool3d((2, 1, 2)), 4, space=(2, 2, 2))
between("average pool, ceil mode", nn.AvgPool2d(2, ceil_mode=True), 4, space=(3, 3))
between("average pool, padding", nn.AvgPool2d(3, 2, 1), 4, space=(3, 3))
between(
    "average pool, padding not counted",
    nn.AvgPool1d(3, 2, 1, count_include_pad=False),
    4,
    space=(5,),
)
between("average pool, divisor", nn.AvgPool2d(2, divisor_override=3), 4, space=(4, 2))
between("adaptive average pool 1d", nn.AdaptiveAvgPool1d(3), 4, space=(7,))
between("adaptive average pool 2d", nn.AdaptiveAvgPool2d((None, 1)), 4, space=(2, 3))
between("adaptive average pool 3d", nn.AdaptiveAvgPool3d((1, None, 2)), 4, space=(2, 1, 3))
between("adaptive max pool 1d", nn.AdaptiveMaxPool1d(3), 4, space=(7,))
between("adaptive max pool 2d", nn.AdaptiveMaxPool2d((2, None)), 4, space=(3, 2))
between("adaptive max pool 3d", nn.AdaptiveMaxPool3d(1), 4, space=(2, 2, 2))
between(
    "adaptive max pool with indices",
    lambda x: F.adaptive_max_pool2d(x, (1, 2), return_indices=True)[0],
    4,
    space=(2, 3),
)
between(
    "pooling without batch",
    net(lambda m, x: torch.stack([m.pool(s) for s in x.unbind(0)]), pool=part(nn.MaxPool2d, 2))(),
    4,
    space=(2, 4),
)
between("F.avg_pool1d", lambda x: F.avg_pool1d(x, 2), 4, space=(4,))
between("F.adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, 1), 4, space=(2, 2))
between("torch.max_pool1d", lambda x: torch.max_pool1d(x, 2), 4, space=(4,))
between("nearest", nn.Upsample(scale_factor=2), 4, space=(3,), beyond="copies are read apart")
between(
    "nearest 2d",
    nn.UpsamplingNearest2d(size=(3, 4)),
    4,
    space=(2, 2),
    beyond="copies are read apart",
)
between(
    "bilinear",
    nn.Upsample(scale_factor=2, mode="bilinear"),
    4,
    space=(2, 2),
    beyond="more values than there were",
)
between("upsample: linear", partial(F.interpolate, size=3, mode="linear", align_corners=True), 4, space=(4,))
between("area", partial(F.interpolate, size=(2, 2), mode="area"), 4, space=(3, 3))
between(
    "trilinear",
    partial(F.interpolate, size=2, mode="trilinear"),
    4,
    space=(3, 3, 1),
    beyond="more values than there were",
)
between("mean over space", lambda x: x.mean((2, 3)), 4, space=(2, 2))
between("mean, keepdim", lambda x: x.mean([-1], keepdim=True), 4, space=(2, 2))
between("sum over space", lambda x: torch.sum(x, dim=-1), 4, space=(4,))
between("sum of an axis", lambda x: x.sum(axis=2), 4, space=(4,))
between("amax over space", lambda x: x.amax((2, 3)), 4, space=(2, 2))
between("max over space", lambda x: x.max(2).values, 4, space=(4,))
between("max over space, unpacked", lambda x: torch.max(x, dim=2, keepdim=True)[0], 4, space=(4,))
between("min over space", lambda x: x.min(-1)[0], 4, space=(4,))
between("norm over space", lambda x: x.norm(dim=2), 4, space=(4,))
between("maximum norm", lambda x: torch.norm(x, math.inf, 2), 4, space=(4,))
between("norm of order 0 counts", lambda x: x.norm(0, 2), 4, space=(4,), beyond="steps")
between("standard deviation", lambda x: x.std(2), 4, space=(4,))
between("running sum over space", lambda x: x.cumsum(2), 4, space=(4,))

# Pooling over units: they are tied window by window, and pinned where streams are ----------------

UNITS6 = {"a": L(3, 6), "b": part(nn.LazyLinear, 2)}


def over_units(
    name: str, op: Callable[[Tensor], Tensor], pinned: int, shared: int, **more: Any
) -> None:
    """Six units as a row of six places, the operation, and a linear read-out."""
    run = lambda m, x, f=op: m.b(f(m.a(x).relu()[:, None]).flatten(1))  # noqa: E731
    case(f"over units: {name}", net(run, **UNITS6), (3,), pinned, shared, **more)


over_units("pairs", lambda x: F.max_pool1d(x, 2), 0, 3)  # 01 23 45
over_units("pairs, average", lambda x: F.avg_pool1d(x, 2), 0, 3)
over_units("overlapping", lambda x: F.avg_pool1d(x, 3, 1), 0, 1)
over_units(
    "a unit left over",
    lambda x: F.max_pool1d(x, 3, 2),
    0 + 1,
    1 + 1,  # 012 234, 5
    beyond="unit 5 is not read",
)
over_units("ceil mode", lambda x: F.max_pool1d(x, 4, 4, ceil_mode=True), 0, 2)  # 0123 45
over_units("padding", lambda x: F.avg_pool1d(x, 2, 2, 1), 0 + 2, 4)  # 0 12 34 5
over_units("dilation", lambda x: F.max_pool1d(x, 2, 1, 0, 3), 0, 3)  # 03 14 25
over_units("adaptive", lambda x: F.adaptive_avg_pool1d(x, 3), 0, 3)
over_units("adaptive, unequal", lambda x: F.adaptive_max_pool1d(x, 4), 0, 2)  # 01 12 34 45
over_units(
    "adaptive, all overlap",
    lambda x: F.adaptive_avg_pool1d(x[..., :5], 2),
    0 + 1,
    1 + 1,
    beyond="unit 5 is not read",
)
over_units("adaptive, one to one", lambda x: F.adaptive_avg_pool1d(x, 6), 6, 6)
over_units("images", lambda x: F.max_pool2d(x.view(-1, 1, 2, 3), (2, 1)), 0, 3)  # 03 14 25
over_units("nearest", lambda x: F.interpolate(x, 12), 6, 6, beyond="copies are read apart")
over_units("nearest, fewer", lambda x: F.interpolate(x, 3), 6, 6, beyond="1, 3, 5 are not read")
over_units("linear", lambda x: F.interpolate(x, 5, mode="linear", align_corners=True), 0, 1)
over_units("area", lambda x: F.interpolate(x, 3, mode="area"), 0, 3)
over_units("reflect", lambda x: F.pad(x, (1, 2), "reflect"), 6, 6, beyond="copies are read apart")
over_units("circular", lambda x: F.pad(x, (1, 2), "circular"), 6, 6, beyond="copies are read apart")
over_units("mean", lambda x: x.mean(2), 0, 1)
over_units("amax", lambda x: x.amax(-1), 0, 1)
over_units("max of all", lambda x: x.view(-1, 2, 3).max(1).values, 0, 3)
over_units("norm of all", lambda x: x.norm(dim=-1), 0, 1)
over_units("running sum", lambda x: x.cumsum(-1), 0, 1)
over_units("unfold", lambda x: x.unfold(2, 2, 2), 6, 6)
over_units("as convolution", lambda x: F.conv1d(x, torch.ones(1, 1, 2), stride=2), 0, 3)

# Movement that keeps channels whole, and movement that does not ----------------------------------

for name, move in {
    "flatten": lambda x: torch.flatten(x, 1),
    "Tensor.flatten": lambda x: x.flatten(1),
    "view": lambda x: x.view(x.size(0), -1),
    "reshape": lambda x: x.reshape(x.shape[0], 4, -1),
    "reshape_as": lambda x: x.reshape_as(x).view_as(x),
    "unflatten": lambda x: x.unflatten(1, (2, 2)),
    "nn.Unflatten": nn.Unflatten(1, (2, 2)),
    "ravel of a sample": lambda x: torch.stack([s.ravel() for s in x.unbind(0)]),
    "permute": lambda x: x.permute(0, 3, 1, 2),
    "transpose": lambda x: x.transpose(1, 2).contiguous(),
    "movedim": lambda x: x.movedim(1, -1),
    "swapaxes": lambda x: torch.swapaxes(x, 2, 3),
    "mT": lambda x: x.mT,
    "squeeze": lambda x: x.unsqueeze(1).squeeze(1),
    "squeeze_": lambda x: x[:, None],
    "expand": lambda x: x[:, None].expand(-1, 1, -1, -1, -1),
    "flip": lambda x: x.flip(1),
    "roll": lambda x: x.roll(1, 1),
    "roll space": lambda x: torch.roll(x, (1, 1), (2, 3)),
    "rot90": lambda x: torch.rot90(x, 1, (2, 3)),
    "channel shuffle": lambda x: x.view(-1, 2, 2, 2, 2).transpose(1, 2).reshape(x.shape),
    "nn.ChannelShuffle": nn.ChannelShuffle(2),
    "pixel shuffle": nn.PixelShuffle(2),
    "pixel unshuffle": nn.PixelUnshuffle(2),
    "unbind and stack": lambda x: torch.stack(x.unbind(1), 2),
    "iteration": lambda x: torch.stack(list(x.transpose(0, 1)), 1),
    "chunk and cat": lambda x: torch.cat(x.chunk(2, 1)[::-1], 1),
    "split": lambda x: torch.cat(torch.split(x, [1, 3], dim=1), dim=1),
    "split evenly": lambda x: torch.cat(x.split(3, 1), -3),
    "tensor_split": lambda x: torch.hstack(torch.tensor_split(x, 3, dim=1)),
    "narrow": lambda x: torch.cat([x.narrow(1, 2, 2), x.select(1, 0)[:, None], x[:, 1:2]], 1),
    "slices": lambda x: torch.cat([x[:, ::2], x[:, 1::2]], 1),
    "ellipsis": lambda x: torch.cat([x[..., 0], x[..., 1]], 1),
    "None": lambda x: x[:, None, :, None],
    "list": lambda x: x[:, [2, 0, 3, 1]],
    "tensor": lambda x: x[:, torch.tensor([3, 2, 1, 0])],
    "index_select": lambda x: x.index_select(1, torch.tensor([3, 2, 1, 0])),
    "bool mask": lambda x: torch.cat([x[:, EVEN], x[:, ~EVEN]], 1),
    "two tensors": lambda x: x[:, [0, 1, 2, 3, 0, 1, 2, 3], [0, 0, 0, 0, 1, 1, 1, 1]],
    "setitem": lambda x: into_zeros(x),
    "setitem of a list": lambda x: into_zeros(x, [5, 0, 1, 3]),
    "zero padding": nn.ZeroPad2d(1),
    "F.pad": lambda x: F.pad(x, (1, 0, 0, 2)),
    "cropping": lambda x: F.pad(x, (1, -1)),
    "constant padding": nn.ConstantPad2d(1, 0.5),
    "channel padding": lambda x: F.pad(x, (0, 0, 0, 0, 1, 2)),
    "identity": nn.Identity(),
    "clone": lambda x: x.clone().contiguous(),
    "to": lambda x: x.float().to(x),
    "detach": lambda x: x.detach(),
}.items():
    apart = {
        "to": "rounds to single precision",
        "detach": "the Jacobian does not pass it",
    }.get(name, "")
    between(
        f"movement: {name}",
        move,
        4,
        space=(2, 2),
        apart=apart,
        beyond="half of it is cut off" if name == "cropping" else "",
    )
for name, copies in {
    "cat of the same": lambda x: torch.cat([x, x], 1),
    "repeat": lambda x: x.repeat(1, 2),
    "tile": lambda x: x.tile(2),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "expand": lambda x: x[:, None].expand(-1, 3, -1),
    "F.unfold": lambda x: F.unfold(x[:, :, None, None].expand(-1, -1, 2, 2), 2, padding=1),
}.items():
    between(f"copies: {name}", copies, 4, beyond="copies are read apart")
for name, choice in {
    "list": lambda x: x[:, [2, 0, 1]],
    "slice": lambda x: x[:, :3],
    "step": lambda x: x[:, ::2],
    "integer": lambda x: x[:, 1],
    "last": lambda x: x[..., -1:],
    "tril": lambda x: x[:, None].expand(-1, 2, -1).tril(),
    "diagonal": lambda x: x.unflatten(1, (2, 2)).diagonal(0, 1, 2),
}.items():
    between(f"choice: {name}", choice, 4, beyond="a unit is not read, or copies are read apart")

EVEN = torch.tensor([True, False, True, False])


def into_zeros(x: Tensor, places: Any = slice(1, 5)) -> Tensor:
    y = torch.zeros(x.shape[0], 6, *x.shape[2:], dtype=x.dtype)
    y[:, places] = x
    return y


def read_by_conv(name: str, move: Callable[[Tensor], Tensor], pinned: int, shared: int) -> None:
    """Four channels on four places, moved, and read by a convolution with three channels."""
    run = lambda m, x, f=move: m.head(m.b(f(m.a(x).relu())).relu().flatten(1))  # noqa: E731
    parts = {"a": C1(2, 4, 1), "b": part(nn.LazyConv1d, 3, 1), "head": part(nn.LazyLinear, 2)}
    case(f"read by a convolution: {name}", net(run, **parts), (2, 4), pinned, shared)


read_by_conv("as it is", lambda x: x, 4 + 3, 4 + 3)
read_by_conv("channels cut in two", lambda x: x.view(-1, 8, 2), 4 + 3, 4 + 3)
read_by_conv("two channels in a row", lambda x: x.view(-1, 2, 8), 0 + 3, 2 + 3)
read_by_conv("channels and space exchanged", lambda x: x.transpose(1, 2), 0 + 3, 1 + 3)
read_by_conv("mixed", lambda x: x.transpose(1, 2).reshape(-1, 2, 8), 0 + 3, 1 + 3)
read_by_conv(
    "pixel shuffle", lambda x: F.pixel_shuffle(x.view(-1, 4, 2, 2), 2).flatten(2), 3, 1 + 3
)
read_by_conv("padded with zeros", lambda x: F.pad(x, (1, 1)), 4 + 3, 4 + 3)
read_by_conv("padded with ones", lambda x: F.pad(x, (1, 1), value=1.0), 0 + 3, 0 + 3)
read_by_conv("reflected", lambda x: F.pad(x, (1, 1), "reflect"), 4 + 3, 4 + 3)
read_by_conv("zero channels", lambda x: F.pad(x, (0, 0, 1, 1)), 4 + 3, 4 + 3)
read_by_conv("rolled", lambda x: x.roll(1, 1), 4 + 3, 4 + 3)
read_by_conv("in two places", lambda x: torch.cat([x, x.roll(1, 1)], 2), 0 + 3, 1 + 3)
read_by_conv("in two channels", lambda x: torch.cat([x, 2 * x.roll(1, 2)], 1), 4 + 3, 4 + 3)
read_by_conv("mean of channels", lambda x: x.mean(1, keepdim=True), 0 + 3, 1 + 3)
read_by_conv("written over places",
             lambda x: torch.cat([into_zeros(x.mT, slice(0, 4))], 1).mT, 4 + 3, 4 + 3)  # fmt: skip

# Sums, differences, products, quotients ----------------------------------------------------------

for name, scaled in {
    "times 2": lambda x: x * 2,
    "3 times": lambda x: 3 * x,
    "times -1": lambda x: x * -1,
    "negative": lambda x: -x,
    "torch.neg": torch.neg,
    "half": lambda x: x / 2,
    "in place": lambda x: x.mul_(2).div_(3),
    "operators in place": lambda x: operator.imul(operator.itruediv(x, 3), 2),
    "0-d tensor": lambda x: x * torch.tensor(0.3),
    "numpy-like": lambda x: torch.multiply(torch.true_divide(x, 2.0), 4),
    "twice": lambda x: x + x,
    "difference": lambda x: x - 0.3 * x,
    "torch.add": lambda x: torch.add(x, x, alpha=2),
    "torch.sub": lambda x: torch.sub(x, x, alpha=0.5),
    "rsub": lambda x: torch.rsub(x, 2 * x),
    "plus zero": lambda x: 0 + x + 0.0,
    "sum()": lambda x: sum([x, x]),
    "plus zeros": lambda x: x + torch.zeros(4),
    "times a constant": lambda x: x * torch.arange(1.0, 5.0),
    "over a constant": lambda x: x / torch.arange(1.0, 5.0),
    "dropped by a mask": lambda x: x * EVEN,
    "compared with itself": lambda x: x * (x > 0.3 * x),
    "times a comparison": lambda x: (x > x.roll(0, 1)) * 1.0 + x,
    "matrix of constants": lambda x: x[:, None] * torch.ones(2, 1),
}.items():
    apart = "half of it is zero" if name == "dropped by a mask" else ""
    between(f"scaled: {name}", scaled, 4, apart=apart)
for name, mixed in {
    "plus 1": lambda x: x + 1,
    "1 minus": lambda x: 1 - x,
    "plus a constant": lambda x: x + torch.arange(4.0),
    "add_": lambda x: x.add_(0.5),
    "maximum with 1": lambda x: torch.maximum(x, torch.ones(4)),
}.items():
    between(f"mixed with a constant: {name}", mixed, 0, reason="added to other units")
between(
    "mixed with a constant: one unit",
    lambda x: x + torch.nn.functional.one_hot(torch.tensor(1), 4),
    0,
    beyond="three units meet zeros, seen as constants",
)
case("buffer times", net(lambda m, x: m.b(m.k * m.a(x).relu() / m.k[0]), a=L(3, 4), k=buffer(4),
     b=L(4, 2)), (3,), 4)  # fmt: skip
case("buffer plus", net(lambda m, x: m.b(m.k + m.a(x).relu()), a=L(3, 4), k=buffer(4), b=L(4, 2)),
     (3,), 0)  # fmt: skip


def joined(
    name: str, join: Callable[[Tensor, Tensor], Tensor], pinned: int, shared: int, **more: Any
) -> None:
    """Two branches of four channels each, joined, with a linear read-out."""
    run = lambda m, x, f=join: m.head(f(m.a(x).relu(), m.b(x).relu()).flatten(1))  # noqa: E731
    parts = {"a": C1(2, 4, 1), "b": C1(2, 4, 1), "head": part(nn.LazyLinear, 2)}
    case(f"two branches: {name}", net(run, **parts), (2, 2), pinned, shared, **more)


def add_in_place(a: Tensor, b: Tensor) -> Tensor:
    a += b
    return a


joined("sum", lambda a, b: a + b, 0, 4)
joined("difference", lambda a, b: a - 2 * b, 0, 4)
joined("torch.add with alpha", lambda a, b: torch.add(a, b, alpha=2), 0, 4)
joined("sum in place", add_in_place, 0, 4)
joined("operator.iadd", operator.iadd, 0, 4)
joined("Tensor.add_", lambda a, b: a.add_(b, alpha=0.5), 0, 4)
joined("Tensor.sub_", lambda a, b: a.sub_(b), 0, 4)
joined("maximum", torch.maximum, 0, 4)
joined("minimum", torch.minimum, 0, 4)
joined("where", lambda a, b: torch.where(a > 0, a, b), 0, 4)
joined(
    "where it matters",
    lambda a, b: torch.where(a > b, a, b),
    0,
    0,
    beyond="a comparison of two units pins them",
    reason="compared with another value",
)
joined(
    "sum of halves",
    lambda a, b: torch.cat([a[:, :2] + b[:, 2:], a[:, 2:]], 1),
    2 + 2,
    2 + 2 + 2,
    beyond="two units of b are not read",
)
joined("sum of one channel", lambda a, b: a + b[:, :1], 0 + 3, 1 + 3, beyond="b is not all read")
joined("stack and sum", lambda a, b: torch.stack([a, b]).sum(0), 0, 4)
joined("stack and max", lambda a, b: torch.stack([a, b], -1).max(-1).values, 0, 4)
joined("stack", lambda a, b: torch.stack([a, b], 1), 8, 8)
joined("cat", lambda a, b: torch.cat((a, b), dim=1), 8, 8)
joined("cat backwards", lambda a, b: torch.concat((b, a), -2), 8, 8)
joined("cat over space", lambda a, b: torch.concatenate([a, b], axis=2), 8, 8)
joined("cat over space, pooled", lambda a, b: torch.cat([a, b], 2).mean(2), 0, 4)
joined("cat over the batch", lambda a, b: torch.cat([a, b]), 0, 4)
joined("hstack", lambda a, b: torch.hstack([a, b, a]), 8, 8, beyond="a is read twice")
joined("setitem", lambda a, b: into(torch.cat([a, a], 2), b), 8, 8)
joined("product", lambda a, b: a * b, 0, 0, beyond="a product of units", reason="mul")
joined("product in place", lambda a, b: a.mul_(b), 0, 0, beyond="a product of units", reason="mul")
joined("quotient", lambda a, b: a / (b + 1), 0, 0, beyond="a quotient of units", reason="div")
joined("gate", lambda a, b: a * b.sigmoid(), 4, 4, reason="sigmoid")
joined("matrix product", lambda a, b: a.mT @ b, 0, 0, beyond="a product of units")
joined("einsum", lambda a, b: torch.einsum("ncs,ncs->ns", a, b), 0, 0, beyond="a product of units")


def into(whole: Tensor, piece: Tensor) -> Tensor:
    whole[:, :, : piece.shape[2]] = piece
    return whole


BLOCK = {"a": C1(2, 4, 1), "b": C1(4, 5, 1), "c": C1(5, 4, 1), "head": part(nn.LazyLinear, 2)}


def residual(m: Any, x: Tensor) -> Tensor:
    x = m.a(x).relu()
    return m.head((x + m.c(m.b(x).relu())).relu().flatten(1))


case("residual block", net(residual, **BLOCK), (2, 2), 5, 4 + 5)
case(
    "two residual blocks",
    net(
        lambda m, x: m.head(m.two(m.one(m.a(x)))),
        a=L(3, 4), head=L(4, 2),
        one=net(lambda m, x: (x + m.c(m.b(x).relu())).relu(), b=L(4, 5), c=L(5, 4)),
        two=net(lambda m, x: (x + m.c(m.b(x).relu())).relu(), b=L(4, 3), c=L(3, 4)),
    ),
    (3,),
    5 + 3,
    4 + 5 + 3,
)  # fmt: skip
case(
    "shortcut of option A",  # half of the space, channels padded with zeros
    net(
        lambda m, x: m.head((F.pad(x[..., ::2], (0, 0, 2, 2)) + m.c(x)).relu().flatten(1)),
        c=C1(4, 8, 1, stride=2), head=L(8 * 2, 2),
    ),
    (4, 4),
    4,  # of the eight channels, four meet the input
)  # fmt: skip
case(
    "shortcut of option A, hidden",
    net(
        lambda m, x: m.after(m.a(x).relu()),
        a=C1(2, 4, 1),
        after=net(
            lambda m, x: m.head((F.pad(x[..., ::2], (0, 0, 2, 2)) + m.c(x)).relu().flatten(1)),
            c=C1(4, 8, 1, stride=2), head=L(8 * 2, 2),
        ),
    ),
    (2, 4),
    4,
    4 + 4,
)  # fmt: skip
case(
    "densely connected",
    net(
        lambda m, x: m.c(torch.cat([x, h := m.a(x).relu(), m.b(torch.cat([x, h], 1)).relu()], 1)),
        a=L(3, 4), b=L(7, 5), c=L(12, 2),
    ),
    (3,),
    4 + 5,
)  # fmt: skip
case(
    "squeeze and excitation",
    net(
        lambda m, x: m.head((h := m.a(x).relu()) * m.gate(h.mean(2))[..., None]),
        a=C1(2, 4, 1), gate=seq(L(4, 3), R, L(3, 4), nn.Sigmoid), head=seq(Flat, L(8, 2)),
    ),
    (2, 2),
    4 + 3,
    reason="sigmoid",
)  # fmt: skip

# Parameters used as they are ---------------------------------------------------------------------


def raw(
    name: str, forward: Callable[..., Any], H: int, shared: int | None = None, **more: Any
) -> None:
    """Four units `m.a`, an expression with parameters, and a read-out `m.head`."""
    parts = {key: more.pop(key) for key in list(more) if key not in ("beyond", "apart", "reason")}
    run = lambda m, x, f=forward: m.head(f(m, m.a(x).relu()).relu().flatten(1))  # noqa: E731
    parts |= {"a": L(3, 4), "head": part(nn.LazyLinear, 2)}
    case(f"parameter: {name}", net(run, **parts), (3,), H, shared, **more)


raw("F.linear", lambda m, x: F.linear(x, m.w, m.b), 4 + 5, w=parameter(5, 4), b=parameter(5))
raw("matmul", lambda m, x: x @ m.w + m.b, 4 + 5, w=parameter(4, 5), b=parameter(5))
raw("torch.mm", lambda m, x: torch.mm(x, m.w), 4 + 5, w=parameter(4, 5))
raw("matmul from the left", lambda m, x: (m.w @ x.mT).mT, 4 + 5, w=parameter(5, 4))
raw("matmul of tokens", lambda m, x: x.view(-1, 2, 2) @ m.w, 0 + 5, 2 + 5, w=parameter(2, 5))
raw("matmul over tokens", lambda m, x: m.w @ x.view(-1, 2, 2), 0 + 5, 2 + 5, w=parameter(5, 2))
raw("matmul with a vector", lambda m, x: (x @ m.w)[:, None], 4 + 1, w=parameter(4))
raw("one matrix per head", lambda m, x: x.view(-1, 2, 1, 2) @ m.w, 4 + 6, w=parameter(2, 2, 3))
raw(
    "torch.bmm",
    lambda m, x: torch.bmm(x.view(-1, 2, 2).transpose(0, 1), m.w).transpose(0, 1),
    4 + 6,
    w=parameter(2, 2, 3),
)
raw("addmm", lambda m, x: torch.addmm(m.b, x, m.w), 4 + 5, w=parameter(4, 5), b=parameter(5))
raw("einsum", lambda m, x: torch.einsum("ni,io->no", x, m.w), 4 + 5, w=parameter(4, 5))
raw(
    "einsum per head",
    lambda m, x: torch.einsum("nhi,hio->nho", x.view(-1, 2, 2), m.w),
    4 + 6,
    w=parameter(2, 2, 3),
)
raw(
    "einsum, parameter first",
    lambda m, x: torch.einsum("oi,ni->no", m.w, x),
    4 + 5,
    w=parameter(5, 4),
)
raw(
    "einsum that sums a parameter",
    lambda m, x: torch.einsum("ni,iok->no", x, m.w),
    4 + 5,
    w=parameter(4, 5, 2),
    beyond="entries that are only summed",
)
raw(
    "F.conv1d",
    lambda m, x: F.conv1d(x[:, None], m.w, m.b, padding=1),
    0 + 3,
    1 + 3,
    w=parameter(3, 1, 3),
    b=parameter(3),
)
raw("F.conv2d", lambda m, x: F.conv2d(x[..., None, None], m.w), 4 + 5, w=parameter(5, 4, 1, 1))
raw(
    "F.conv_transpose1d",
    lambda m, x: F.conv_transpose1d(x[..., None], m.w),
    4 + 5,
    w=parameter(4, 5, 2),
)
raw("gain", lambda m, x: x * m.g, 4 + 4, g=parameter(4))
raw("gain in place", lambda m, x: x.mul_(m.g), 4 + 4, g=parameter(4))
raw("gain, first", lambda m, x: m.g * x[:, None], 4 + 8, g=parameter(2, 4))
raw(
    "gain of one unit",
    lambda m, x: x[:, :1] * m.g,
    4 + 5,
    g=parameter(5),
    beyond="three units are not read",
)
raw("gain for all", lambda m, x: x * m.g, 4, g=parameter(1), beyond="one gain moves four scales")
raw("gain, 0-d", lambda m, x: x * m.g, 4, g=parameter(), beyond="one gain moves four scales")
raw(
    "gain of a sum",
    lambda m, x: x + m.g * x,
    4,
    4,
    g=parameter(4),
    beyond="gain and read-out do the same on each unit",
)
raw("quotient", lambda m, x: x / m.g, 0, g=parameter(4), beyond="a quotient", reason="div")
raw("bias", lambda m, x: x + m.b, 4, b=parameter(4))
raw("bias, first", lambda m, x: m.b + x, 4, b=parameter(4))
raw("bias, subtracted", lambda m, x: m.b - x, 4, b=parameter(4))
raw("bias in place", lambda m, x: x.add_(m.b), 4, b=parameter(4))
raw("bias for all", lambda m, x: x + m.b, 0, 1, b=parameter(1))
raw("bias, 0-d", lambda m, x: x + m.b, 0, 1, b=parameter())
raw("bias of a product", lambda m, x: x * (m.b + x.sigmoid()), 0, b=parameter(4), reason="sigmoid")
raw("maximum", lambda m, x: torch.maximum(x, m.b), 4, b=parameter(4))
raw("position embedding", lambda m, x: x[:, None] + m.p, 4, p=parameter(1, 3, 4))
raw(
    "position embedding, cut",
    lambda m, x: x[:, None] + m.p[:, :3],
    4,
    p=parameter(1, 5, 4),
    beyond="positions that are not read",
)
raw("token", lambda m, x: torch.cat([m.t.expand(x.shape[0], -1), x], 1), 4 + 2, t=parameter(1, 2))
raw(
    "token, read like the others",
    lambda m, x: m.lin(torch.cat([m.t.expand(len(x), -1, -1), x[:, None]], 1)),
    0 + 3,
    4 + 3,
    t=parameter(1, 2, 4),
    lin=L(4, 3),
)
raw(
    "parameter alone",
    lambda m, x: torch.cat([m.t.relu().repeat(len(x), 1), x], 1),
    4 + 2,
    t=parameter(2),
)
raw("parameter squared", lambda m, x: x * m.g**2, 4, g=parameter(4), beyond="a square")
raw("absolute weights", lambda m, x: F.linear(x, m.w.abs()), 4 + 5, w=parameter(5, 4))
raw(
    "rectified weights",
    lambda m, x: F.linear(x, F.relu(m.w)),
    4 + 5,
    w=parameter(5, 4),
    beyond="weights that are not read",
)
raw("scaled weights", lambda m, x: F.linear(x, -0.5 * m.w / 3), 4 + 5, w=parameter(5, 4))
raw("masked weights", lambda m, x: F.linear(x, m.w * m.k), 4 + 5, w=parameter(5, 4), k=buffer(5, 4))
raw(
    "triangular weights",
    lambda m, x: x @ m.w.triu(),
    4 + 5,
    w=parameter(4, 5),
    beyond="weights that are not read",
)
raw(
    "padded weights",
    lambda m, x: F.linear(x, F.pad(m.w, (1, 1))),
    4 + 5,
    w=parameter(5, 2),
    beyond="two units are not read",
)
raw(
    "dropped weights",
    lambda m, x: F.linear(x, F.dropout(m.w, 0.3, m.training)),
    4 + 5,
    w=parameter(5, 4),
)
raw("W.t()", lambda m, x: F.linear(x, m.w.t()), 4 + 5, w=parameter(4, 5))
raw("W.T", lambda m, x: x @ m.w.T, 4 + 5, w=parameter(5, 4))
raw("W.mT", lambda m, x: x @ m.w.mT, 4 + 5, w=parameter(5, 4))
raw(
    "W[:3]",
    lambda m, x: F.linear(x, m.w[:3], m.b[:3]),
    4 + 3,
    w=parameter(5, 4),
    b=parameter(5),
    beyond="weights that are not read",
)
raw(
    "W[:3] and W[3:]",
    lambda m, x: torch.cat([F.linear(x, m.w[:3]), F.linear(x, m.w[3:])], 1),
    4 + 5,
    w=parameter(5, 4),
)
raw(
    "W.chunk",
    lambda m, x: torch.cat([F.linear(x, w) for w in m.w.chunk(3)], 1),
    4 + 6,
    w=parameter(6, 4),
)
raw(
    "for w in W",
    lambda m, x: torch.cat([F.linear(x, w) for w in m.w], 1),
    4 + 6,
    w=parameter(2, 3, 4),
)
raw(
    "overlapping slices",
    lambda m, x: torch.cat([F.linear(x, m.w[:3]), F.linear(x, m.w[1:])], 1),
    4 + 4,
    w=parameter(4, 4),
)
raw("W.view", lambda m, x: F.linear(x, m.w.view(5, 4)), 4 + 5, w=parameter(20))
raw("a row twice", lambda m, x: F.linear(x, m.w[[0, 1, 1]]), 4 + 2, w=parameter(2, 4))
raw("expanded", lambda m, x: F.linear(x, m.w.expand(5, 4)), 0 + 0, 1 + 0, w=parameter(1))
raw(
    "W and W.t() in sequence",
    lambda m, x: F.linear(F.linear(x, m.w).relu(), m.w.t()),
    0,
    0,
    w=parameter(3, 4),
    beyond="W(h, x) takes c(h)/c(x) and c(out)/c(h) at once",
)
raw(
    "cat of weights",
    lambda m, x: F.linear(x, torch.cat([m.w, m.v])),
    0 + 0,
    0 + 0,
    w=parameter(2, 4),
    v=parameter(3, 4),
    beyond="a weight of several parameters is taken as data",
)
raw("buffer as weight", lambda m, x: F.linear(x, m.k), 0, 1, k=buffer(5, 4))
raw(
    "buffer as weight of tokens", lambda m, x: m.k @ x[:, None].expand(-1, 3, -1), 4, k=buffer(3, 3)
)
raw("buffer in einsum", lambda m, x: torch.einsum("nc,ts->nct", x, m.k), 4, k=buffer(3, 2))
raw(
    "learnt bias of a fixed map",
    lambda m, x: F.linear(x, m.k, m.b),
    0,
    1,
    k=buffer(5, 4),
    b=parameter(5),
)
raw(
    "blur",
    lambda m, x: F.conv1d(x.repeat_interleave(3, 1).view(-1, 4, 3), m.k, groups=4),
    4,
    k=lambda: torch.tensor([1.0, 2.0, 1.0]).expand(4, 1, 3) / 4,
)
raw(
    "fixed convolution", lambda m, x: F.conv1d(x[..., None], m.k, groups=2), 0, 2, k=buffer(4, 2, 1)
)
raw(
    "frozen",
    lambda m, x: F.linear(x, m.w),
    4 + 5,
    w=lambda: nn.Parameter(torch.randn(5, 4), requires_grad=False),
)

# Modules used twice, and layers of other kinds -----------------------------------------------------

pair = lambda n: (torch.randn(n, 3), torch.randn(n, 3))  # noqa: E731
case(
    "twins",
    net(lambda m, x, y: m.b(torch.cat([m.a(x).relu(), m.a(y).relu()], 1)), a=L(3, 4), b=L(8, 2)),
    pair,
    4,
)
case(
    "a layer twice in sequence",
    net(lambda m, x: m.c(m.b(m.b(m.a(x).relu()).relu()).relu()), a=L(3, 4), b=L(4, 4), c=L(4, 2)),
    (3,),
    4,
)
case(
    "a layer twice, from the input on",
    net(lambda m, x: m.c(m.b(m.b(x).relu()).relu()), b=L(3, 3), c=L(3, 2)),
    (3,),
    0,
)
case(
    "a recurrence",
    net(
        lambda m, x: m.c(m.step(x[:, 1], m.step(x[:, 0], m.start.expand(len(x), -1)))),
        start=parameter(4), c=L(4, 2),
        step=net(lambda m, x, h: (m.a(x) + m.b(h)).relu(), a=L(3, 4), b=L(4, 4)),
    ),
    (2, 3),
    0,
    4,
    beyond="the biases of a and b do the same",
)  # fmt: skip


def tied_names() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4),
                          nn.ReLU(), nn.Linear(4, 2))  # fmt: skip
    model[4].weight = model[2].weight
    return model


case("one parameter under two names", tied_names, (3,), 4)  # 0, 2 and 4 share their scales
words = lambda n: torch.randint(5, (n, 2))  # noqa: E731
case("embedding", seq(part(nn.Embedding, 5, 4), R, L(4, 3), R, Flat, L(6, 2)), words, 4 + 3)
case(
    "embedding with padding",
    seq(part(nn.Embedding, 5, 4, padding_idx=1), R, Flat, L(8, 2)),
    words,
    4,
    beyond="the padding row is zero",
)
case(
    "tied embedding",
    net(
        lambda m, x: m.b(m.e(x).relu()).relu() @ m.e.weight.t(),
        e=part(nn.Embedding, 5, 4), b=L(4, 4),
    ),
    words,
    0,
    beyond="c(embedding) c(hidden) = 1 keeps the product",
)  # fmt: skip
for mode in ("sum", "mean", "max"):
    case(
        f"embedding bag, {mode}", seq(part(nn.EmbeddingBag, 5, 4, mode=mode), R, L(4, 2)), words, 4
    )
case(
    "embedding bag with offsets",
    net(
        lambda m, x, o: m.b(m.e(x, o).relu()),
        e=part(nn.EmbeddingBag, 5, 4, include_last_offset=True), b=L(4, 2),
    ),
    lambda n: (torch.randint(5, (2 * n,)), torch.arange(0, 2 * n + 1, 2)),
    4,
)  # fmt: skip
case(
    "table indexed by the input",
    net(lambda m, x: m.b(m.table[x].relu()), table=parameter(5, 4), b=L(4, 2)),
    lambda n: torch.randint(5, (n,)),
    4,
)


def pruned() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    prune.random_unstructured(model[0], "weight", 0.25)
    prune.l1_unstructured(model[0], "bias", 1)
    return model


case("pruned", pruned, (3,), 4, beyond="pruned weights do nothing")


def spectrally_normed() -> nn.Module:
    return nn.Sequential(
        nn.Linear(3, 5), nn.ReLU(), nn.utils.spectral_norm(nn.Linear(5, 4)), nn.ReLU(),
        nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2),
    )  # fmt: skip


case(
    "spectral norm, by hook",
    spectrally_normed,
    (3,),
    0 + 0 + 3,
    1 + 0 + 3,
    beyond="the norm takes a scale of its own",
)


def hooked(change: Callable[[Tensor], Any]) -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    model[1].register_forward_hook(lambda module, args, output: change(output))
    model[2].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    return model


case("hook that scales", partial(hooked, lambda y: 3 * y), (3,), 4)
case("hook that shifts", partial(hooked, lambda y: y + 1), (3,), 0)
case("hook that looks", partial(hooked, lambda y: None), (3,), 4)


def checkpointed(m: Any, x: Tensor) -> Tensor:
    from torch.utils.checkpoint import checkpoint

    return m.c(checkpoint(lambda x: m.b(m.a(x).relu()).relu(), x, use_reentrant=False))


case(
    "checkpoint",
    net(checkpointed, a=L(3, 4), b=L(4, 5), c=L(5, 2)),
    (3,),
    4 + 5,
    apart="not for torch.func",
)
case(
    "shapes decide",
    net(
        lambda m, x: m.b(m.a(x).relu() if x.shape[1] == 3 and len(x) > 1 and x.ndim == 2 else x),
        a=L(3, 4), b=L(4, 2),
    ),
    (3,),
    4,
)  # fmt: skip

# Inputs and outputs of all kinds --------------------------------------------------------------------


class Outputs(NamedTuple):
    mean: Tensor
    hidden: Tensor


@dataclasses.dataclass
class Record:
    mean: Tensor
    rest: Any
    note: str = "a dataclass"


@dataclasses.dataclass(slots=True)
class Slotted:
    mean: Tensor
    rest: Any


TWO = {"a": L(3, 4), "b": L(4, 5), "c": L(5, 2)}
case("dict of inputs", net(lambda m, x, y: m.c(m.b(m.a(x + y).relu()).relu()), **TWO),
     lambda n: {"x": torch.randn(n, 3), "y": torch.randn(n, 3)}, 4 + 5)  # fmt: skip
case("nested inputs", net(lambda m, d: m.c(m.b(m.a(d["x"][0]).relu()).relu()), **TWO),
     lambda n: ({"x": [torch.randn(n, 3)], "n": 3, "s": None},), 4 + 5)  # fmt: skip
for name, pack in {
    "tuple": lambda y, h: (y, h),
    "list": lambda y, h: [y, [h], None, 3],
    "dict": lambda y, h: {"y": y, "h": {"h": h}},
    "ordered dict": lambda y, h: collections.OrderedDict(y=y, h=h),
    "named tuple": lambda y, h: Outputs(y, h),
    "dataclass": lambda y, h: Record(y, h),
    "dataclass with slots": lambda y, h: Slotted(y, h),
    "tuple of dataclasses": lambda y, h: (Record(y, (h,)), 3),
    "dataclass of dataclasses": lambda y, h: Record(y, {"h": Slotted(y, h)}),
    "object": lambda y, h: Bag(y, h),
}.items():
    # the first hidden layer is an output, so only the second is free
    run = lambda m, x, f=pack: f(m.c(m.b(h := m.a(x).relu()).relu()), h)  # noqa: E731
    case(f"outputs: {name}", net(run, **TWO), (3,), 5)


class Bag:
    def __init__(self, *things: Any) -> None:
        self.things = things


# Not positively homogeneous: what meets it is pinned, the rest counts ---------------------------------

for function in """
    relu6 hardtanh sigmoid tanh gelu silu softmax log_softmax elu selu celu softplus mish hardswish
    hardsigmoid softsign tanhshrink softshrink hardshrink logsigmoid softmin normalize
""".split():
    options = {"dim": -1} if "softm" in function or function == "log_softmax" else {}
    # five units after the first four: those meet the function, these do not
    run = lambda m, x, f=getattr(F, function), o=options: m.c(f(m.b(m.a(x).relu()), **o))  # noqa: E731
    case(
        f"not homogeneous: {function}",
        net(run, **TWO),
        (3,),
        4,
        reason=function,
        apart="a function of its own may have symmetries of its own",
    )
for name, function in {
    "exp": torch.exp,
    "log1p": lambda x: torch.log1p(x.abs()),
    "sqrt": lambda x: x.abs().sqrt(),
    "pow": lambda x: x**2,
    "rpow": lambda x: 2**x,
    "sin": torch.sin,
    "var": lambda x: x.var(1, keepdim=True).expand_as(x),
    "prod": lambda x: x.prod(1, keepdim=True).expand(-1, 5),
    "logsumexp": lambda x: x.logsumexp(1, keepdim=True).expand(-1, 5),
    "clamp": lambda x: x.clamp(0, 1),
    "threshold": lambda x: F.threshold(x, 0.1, 0.0),
    "comparison": lambda x: x * (x > 0.1),
    "rounding": lambda x: x.round(),
    "cast": lambda x: x.long().to(x),
    "cast of a product": lambda x: ((x > 0) * x).long().to(x),
    "int": lambda x: x.int().to(x.dtype),
    "reciprocal": lambda x: 1 / (x.abs() + 1),
    "sort": lambda x: x.sort(1).values,
    "topk": lambda x: torch.topk(x, 5).values,
    "argmax": lambda x: F.one_hot(x.argmax(1), 5).to(x),
    "glu": lambda x: F.glu(torch.cat([x, x], 1)),
    "product with itself": lambda x: x * x.roll(1, 1),
    "floor division": lambda x: x // 1,
    "ReLU6 in place": nn.ReLU6(inplace=True),
    "local response norm": lambda x: nn.LocalResponseNorm(2)(x[..., None]),
}.items():
    run = lambda m, x, f=function: m.c(f(m.b(m.a(x).relu())).flatten(1))  # noqa: E731
    case(
        f"not homogeneous: {name}",
        net(run, **TWO),
        (3,),
        4,
        apart="a function of its own may have symmetries of its own",
    )


def normed(name: str, layer: Callable[[], nn.Module], own: int, reason: str) -> None:
    """Five channels that are normalised; a weight of the layer writes `own` new units."""
    layers = (C1(2, 4, 1), R, C1(4, 6, 1), layer, R, Flat, L(12, 2))
    case(
        name,
        seq(*layers),
        (2, 2),
        4 + own,
        reason=reason,
        apart="a normalisation may have symmetries of its own",
    )


normed(
    "LayerNorm", part(nn.LayerNorm, 2), 2 - 2, "layer_norm"
)  # over space: one gain, six channels
normed("LayerNorm of all", part(nn.LayerNorm, (6, 2)), 12, "layer_norm")
normed(
    "LayerNorm without weights", part(nn.LayerNorm, 2, elementwise_affine=False), 0, "layer_norm"
)
normed("LayerNorm without bias", part(nn.LayerNorm, (6, 2), bias=False), 12, "layer_norm")
normed("RMSNorm", part(nn.RMSNorm, (6, 2)), 12, "rms_norm")
normed("GroupNorm", part(nn.GroupNorm, 3, 6), 6, "group_norm")
normed("GroupNorm without weights", part(nn.GroupNorm, 3, 6, affine=False), 0, "group_norm")
normed("InstanceNorm", part(nn.InstanceNorm1d, 6, affine=True), 6, "instance_norm")
normed("InstanceNorm without weights", part(nn.InstanceNorm1d, 6), 0, "instance_norm")
normed("InstanceNorm with statistics", part(nn.InstanceNorm1d, 6, affine=True,
       track_running_stats=True), 6, "instance_norm")  # fmt: skip
case(
    "norm whose weight is computed",
    net(
        lambda m, x: m.c(F.layer_norm(m.a(x).relu(), (4,), m.b(x).relu().mean(0), m.b(x)[0])),
        a=L(3, 4), b=L(3, 4), c=L(4, 2),
    ),
    (3,),
    0,
    apart="a normalisation may have symmetries of its own",
)  # fmt: skip
case(
    "attention",
    net(
        lambda m, x: m.c(m.att(h := m.b(m.a(x).relu()), h, h)[0]),
        a=L(3, 5), b=L(5, 4), c=L(4, 2), att=part(nn.MultiheadAttention, 4, 2, batch_first=True),
    ),
    (6, 3),
    5,
    beyond="values and keys have scales of their own",
    reason="multi_head_attention_forward",
)  # fmt: skip
case(
    "attention by hand",
    net(
        lambda m, x: m.o((m.q(x) @ m.k(x).mT).softmax(-1) @ m.v(x)),
        q=L(3, 4, **bare), k=L(3, 4, **bare), v=L(3, 4), o=L(4, 2),
    ),
    (6, 3),
    0,
    beyond="values and keys have scales of their own",
    reason="multiplied by another activation",
)  # fmt: skip
case(
    "scaled dot product attention",
    net(
        lambda m, x: m.o(F.scaled_dot_product_attention(m.q(x), m.k(x), m.v(x))),
        q=L(3, 4, **bare), k=L(3, 4, **bare), v=L(3, 4), o=L(4, 2),
    ),
    (6, 3),
    0,
    beyond="values and keys have scales of their own",
    reason="scaled_dot_product_attention",
)  # fmt: skip
case(
    "transformer encoder layer",
    seq(
        L(3, 4), part(nn.TransformerEncoderLayer, 4, 2, 6, batch_first=True), L(4, 2),
    ),
    (5, 3),
    6 + 4,  # the hidden units of the feed-forward part; the last norm
    beyond="values and keys have scales of their own",
    reason="layer_norm",
)  # fmt: skip
case(
    "pre-norm transformer encoder layer",
    seq(
        L(3, 4),
        part(nn.TransformerEncoderLayer, 4, 2, 6, batch_first=True, norm_first=True),
        L(4, 2),
    ),
    (5, 3),
    6 + 4,  # the hidden units and the second norm; attention pins the first, norms pin the stream
    beyond="values and keys have scales of their own",
    reason="layer_norm",
)
for recurrent in (nn.LSTM, nn.GRU, nn.RNN):
    case(
        recurrent.__name__,
        net(
            lambda m, x: m.c(m.rnn(m.b(m.a(x).relu()))[0]),
            a=L(3, 5), b=L(5, 4), rnn=part(recurrent, 4, 3, batch_first=True), c=L(3, 2),
        ),
        (4, 3),
        5,
        reason=recurrent.__name__.lower(),
        beyond="no ReLU between the linear layer and the recurrence",
    )  # fmt: skip
case(
    "LSTM cell",
    net(
        lambda m, x: m.c(m.cell(m.b(m.a(x).relu()))[0]),
        a=L(3, 5), b=L(5, 4), cell=part(nn.LSTMCell, 4, 3), c=L(3, 2),
    ),
    (3,),
    5,
    reason="lstm_cell",
    beyond="no ReLU between the linear layer and the recurrence",
)  # fmt: skip

# Unknown operations, pinned on request ---------------------------------------------------------------

UNKNOWN = {
    "fft": ("fft_fft", lambda x: torch.view_as_real(torch.fft.fft(x)).sum(-1)),
    "svd": ("linalg_svd", lambda x: x + torch.linalg.svd(x)[1].sum()),
    "renorm": ("renorm", lambda x: x.renorm(2, 0, 1.0)),
    "copysign": ("copysign", lambda x: torch.copysign(x, x - 1)),
    "gather": ("gather", lambda x: x.gather(1, x.argsort(1))),
}
for name, (_, function) in UNKNOWN.items():
    run = lambda m, x, f=function: m.c(f(m.b(m.a(x).relu())).flatten(1))  # noqa: E731
    case(f"unknown: {name}", net(run, **TWO), (3,), 4, on_unknown="pin", reason=UNKNOWN[name][0],
         apart="a function of its own may have symmetries of its own")  # fmt: skip


# The law ------------------------------------------------------------------------------------------

STREAMS: tuple[Streams, ...] = ("pinned", "shared")


@pytest.fixture(autouse=True)
def double() -> Any:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@functools.cache
def made(name: str) -> tuple[nn.Module, Any]:
    """The model, with weights, biases and statistics that are all different, and an example."""
    torch.manual_seed(0)
    model, example = CASES[name].build(), CASES[name].draw(BATCH)
    with torch.no_grad():
        call(model.eval(), example)  # lazy layers
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                for key, tensor in module.named_parameters():
                    tensor.copy_(torch.rand(tensor.shape) + (key == "weight"))
                if module.running_mean is not None and module.running_var is not None:
                    module.running_mean.normal_()
                    module.running_var.uniform_(0.5, 2.0)
    return model.train(), example


@functools.cache
def traced(name: str, streams: Streams) -> ps.Network:
    model, example = made(name)
    return ps.trace(model, example, streams=streams, on_unknown=CASES[name].on_unknown)


@torch.no_grad()
def output(model: nn.Module, state: dict[str, Tensor], example: Any) -> list[Tensor]:
    """All outputs; state and example are copied, because a model may write into them."""
    state, example = copy.deepcopy((state, example))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return tensors_in(call(model, example, state))


def assert_same(new: list[Tensor], old: list[Tensor]) -> None:
    assert len(new) == len(old) > 0
    for a, b in zip(new, old, strict=True):
        assert a.shape == b.shape
        assert float((a - b).abs().max()) <= 1e-10 * (1 + float(b.abs().max()))


@pytest.mark.parametrize("streams", STREAMS)
@pytest.mark.parametrize("name", CASES)
def test_a_rescaling_keeps_the_function(name: str, streams: Streams) -> None:
    model, example = made(name)
    network = traced(name, streams)
    generator = torch.Generator().manual_seed(2)
    statistics = all(norm.mean is not None for norm in network.normalizations)
    for training in (False, True):
        # A scale that a batch norm divides out is exact with running statistics only.
        every = statistics and not training
        c = ps.random_rescaling(network, generator=generator, normalized=every)
        state = ps.rescale(network, c)
        model.train(training)
        assert_same(output(model, state, example), output(model, network.state(), example))
        moved = [n for n, p in network.parameters().items() if not torch.equal(state[n], p)]
        assert bool(moved) == bool(c.log.any())


@pytest.mark.parametrize("streams", STREAMS)
@pytest.mark.parametrize("name", CASES)
def test_the_free_scales_are_those_one_counts(name: str, streams: Streams) -> None:
    network = traced(name, streams)
    assert network.H == CASES[name].H[streams], str(network)
    # Every scale moves weights, and no two move them alike.
    unit = torch.eye(network.H + 1)[:, 1:]
    if network.H:
        maps = [
            edge.ratio(unit).expand(*edge.shape, network.H).reshape(-1, network.H)
            for edge in network.edges
        ]
        assert int(torch.linalg.matrix_rank(torch.cat(maps))) == network.H
    # Every space with pinned units says why.
    for space in network.spaces:
        assert bool(space.reasons) == bool((network.scale[space.units] == 0).any()), space
    reasons = [reason for space in network.spaces for reason in space.reasons]
    assert any(CASES[name].reason in reason for reason in reasons), reasons


@pytest.mark.parametrize("name", [name for name in CASES if not CASES[name].apart])
def test_the_full_group_is_all_that_the_jacobian_shows(name: str) -> None:
    case = CASES[name]
    model = made(name)[0].eval()
    torch.manual_seed(3)
    weights = sum(parameter.numel() for parameter in model.parameters())
    examples: list[Any] = []
    rows = 0
    while rows < 2 * weights + 40:
        examples.append(case.draw(64))
        rows += sum(tensor.numel() for tensor in tensors_in(call(model, examples[-1])))
    dimension = invariance_dimension(model, examples)
    assert dimension > case.H["shared"] if case.beyond else dimension == case.H["shared"]
