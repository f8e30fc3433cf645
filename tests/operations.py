"""The table of small models for `test_operations`: one or a few for every operation and its forms.

A case has the number of free scales that one counts by hand: H with sums pinned, and H with sums
shared where it is another. `beyond` says why the Jacobian of the outputs shows more dimensions than
the full group has, `apart` why the two are not to be compared.
"""

import collections
import copy
import dataclasses
import math
import operator
from collections.abc import Callable
from functools import partial as part
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils.checkpoint import checkpoint

from pathspace.network import Streams

Build = Callable[[], Any]


@dataclasses.dataclass(frozen=True)
class Case:
    build: Callable[[], nn.Module]
    draw: Callable[[int], Any]  # an example input with so many samples
    H: dict[Streams, int]
    beyond: str = ""
    apart: str = ""
    reason: str = ""  # part of a reason why something is pinned
    on_unknown: Any = "error"


CASES: dict[str, Case] = {}


def case(
    name: str, build: Build, draw: Any, H: int, shared: int | None = None, **more: Any
) -> None:
    """Enter a model; `draw` may be the shape of a sample."""
    assert name not in CASES, name
    if isinstance(draw, tuple):
        draw = part(lambda shape, samples: torch.randn(samples, *shape), draw)
    free: dict[Streams, int] = {"pinned": H, "shared": H if shared is None else shared}
    CASES[name] = Case(build, draw, free, **more)


class Net(nn.Module):
    """A forward function with its parts: modules, parameters, buffers."""

    def __init__(self, forward: Callable[..., Any], /, **parts: Any) -> None:
        super().__init__()
        self.run = forward
        for name, thing in parts.items():
            plain = isinstance(thing, Tensor) and not isinstance(thing, nn.Parameter)
            self.register_buffer(name, thing) if plain else setattr(self, name, thing)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self, *args, **kwargs)


def net(forward: Callable[..., Any], /, **parts: Build) -> Build:
    """A builder of a `Net`; the parts are built anew each time."""
    return lambda: Net(forward, **{name: build() for name, build in parts.items()})


def seq(*layers: Build) -> Build:
    """A builder of a `Sequential`."""
    return lambda: nn.Sequential(*(layer() for layer in layers))


def parameter(*shape: int) -> Build:
    return lambda: nn.Parameter(0.5 * torch.randn(shape))


def buffer(*shape: int) -> Build:
    return lambda: torch.rand(shape) + 0.5


def act(x: Tensor) -> Tensor:
    """Bent, but never dead, so that the Jacobian sees every weight."""
    return F.leaky_relu(x, 0.3)


L, C1, C2, C3 = (part(part, kind) for kind in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d))
R, A, Flat, Read = nn.ReLU, part(nn.LeakyReLU, 0.3), nn.Flatten, part(nn.LazyLinear, 2)
CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
BARE = {"bias": False}
OWN = "what is not homogeneous may have symmetries of its own"
COPIES = "copies are read apart"
CUT = "something is not read"
BASIS = "a change of basis in the layer behind makes up for it"

# Linear and convolution: every hidden channel is free --------------------------------------------

case("linear", seq(L(3, 4), R, L(4, 2)), (3,), 4)
case("linear, three", seq(L(3, 4), A, L(4, 5), A, L(5, 2)), (3,), 4 + 5)
case("linear, no bias", seq(L(3, 4, **BARE), R, L(4, 2, **BARE)), (3,), 4)
case("linear over tokens", seq(L(3, 4), A, L(4, 5), A, L(5, 2)), (6, 3), 4 + 5)
case("linear, no batch", seq(L(3, 4), R, L(4, 2)), lambda _: torch.randn(3), 4)
case("linear alone", seq(L(3, 2)), (3,), 0)

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"kernel_size": 2},
    "no bias": {"kernel_size": 2, "bias": False},
    "stride": {"kernel_size": 2, "stride": 2},
    "padding": {"kernel_size": 3, "padding": 1},
    "same": {"kernel_size": 3, "padding": "same"},
    "valid": {"kernel_size": 2, "padding": "valid"},
    "dilation": {"kernel_size": 2, "dilation": 2, "padding": 1},
    "groups": {"kernel_size": 2, "groups": 2},
    "reflect": {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
    "replicate": {"kernel_size": 3, "padding": 1, "padding_mode": "replicate"},
    "circular": {"kernel_size": 3, "padding": 1, "padding_mode": "circular"},
}
TRANSPOSED: dict[str, dict[str, Any]] = {
    "plain": {"kernel_size": 2},
    "no bias": {"kernel_size": 2, "bias": False},
    "stride and output padding": {"kernel_size": 2, "stride": 2, "output_padding": 1},
    "padding and dilation": {"kernel_size": 2, "padding": 1, "dilation": 2},
    "groups": {"kernel_size": 2, "groups": 2},
}
for dims, plain in CONVOLUTIONS.items():
    space, big = {1: (5,), 2: (3, 3), 3: (3, 2, 3)}[dims], "many weights" if dims == 3 else ""
    first = part(plain, 2, 4, 1)
    for form, options in OPTIONS.items():
        build = seq(first, A, part(plain, 4, 4, **options), A, Flat, Read)
        case(f"conv{dims}d: {form}", build, (2, *space), 4 + 4, apart=big)
    build = seq(first, A, part(plain, 4, 8, 2, groups=4), A, Flat, Read)
    case(f"conv{dims}d: depthwise", build, (2, *space), 4 + 8, apart=big)
    build = seq(first, A, part(plain, 4, 2, 2))
    case(f"conv{dims}d: no batch", build, part(lambda s, _: torch.randn(2, *s), space), 4)
    space = {1: (3,), 2: (2, 2), 3: (2, 1, 1)}[dims]
    for form, options in TRANSPOSED.items():
        layer = part(getattr(nn, f"ConvTranspose{dims}d"), 4, 4, **options)
        build = seq(first, A, layer, A, Flat, Read)
        beyond = "places that are constant" if "output" in form else ""
        case(f"conv_transpose{dims}d: {form}", build, (2, *space), 4 + 4, apart=big, beyond=beyond)

# Batch norm: a scale before it that it divides out, and one behind it -----------------------------

BN1, BN2, BN3 = (part(part, kind) for kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d))
before = L(3, 4, **BARE)  # a bias before a batch norm is one more redundancy, of another kind

case("batch norm 1d", seq(before, BN1(4), R, L(4, 2)), (3,), 4 + 4)
build = seq(C1(2, 4, 2, **BARE), BN1(4), R, Flat, Read)
case("batch norm 1d over space", build, (2, 5), 4 + 4)
case("batch norm 2d", seq(C2(2, 4, 2, **BARE), BN2(4), R, Flat, Read), (2, 2, 3), 4 + 4)
case("batch norm 3d", seq(C3(2, 4, 1, **BARE), BN3(4), R, Flat, Read), (2, 2, 2, 1), 4 + 4)
build = seq(before, BN1(4, affine=False), R, L(4, 2))
case("batch norm, no weight", build, (3,), 4, apart="this scale moves the running statistics")
build = seq(before, BN1(4, track_running_stats=False), R, L(4, 2))
case("batch norm, no running statistics", build, (3,), 4 + 4, apart="eps is not rescaled")
build = seq(before, BN1(4, affine=False, track_running_stats=False), R, L(4, 2))
case("batch norm, neither", build, (3,), 4, apart="eps is not rescaled")
build = seq(L(3, 4), BN1(4), R, L(4, 2))
case("batch norm after a bias", build, (3,), 4 + 4, beyond="both biases do the same")
build = seq(BN1(3), L(3, 4), R, L(4, 2))
case("batch norm of the input", build, (3,), 3 + 4, beyond="no ReLU before the linear layer")
build = seq(L(3, 4), R, BN1(4), L(4, 5), R, L(5, 2))
case("batch norm behind ReLU", build, (3,), 4 + 4 + 5, beyond="no ReLU before the linear layer")
case(
    "batch norm of two branches",
    net(
        lambda m, x: m.c(torch.cat([m.norm(m.a(x)).relu(), m.norm(m.b(x)).relu()], 1)),
        a=before, b=before, norm=BN1(4), c=L(8, 2),
    ),
    (3,), 4 + 4,
)  # fmt: skip
BATCH_NORM = {"a": before, "c": L(4, 2), "mean": buffer(4), "var": buffer(4), "g": parameter(4)}
build = net(
    lambda m, x: m.c(act(F.batch_norm(m.a(x), m.mean, m.var, m.g, m.b))),
    b=parameter(4), **BATCH_NORM,
)  # fmt: skip
case("functional batch norm", build, (3,), 4 + 4)
build = net(lambda m, x: m.c(F.batch_norm(m.a(x), m.mean, m.var, None, m.g).relu()), **BATCH_NORM)
case("batch norm with a bias only", build, (3,), 4, apart="this scale moves the statistics")
build = net(
    lambda m, x: m.c(F.batch_norm(m.a(x), m.mean, m.var, m.b(x).relu().mean(0)).relu()),
    b=L(3, 4), **BATCH_NORM,
)  # fmt: skip
case("batch norm whose weight is computed", build, (3,), 4, apart=OWN)
build = net(lambda m, x: m.c(F.batch_norm(m.a(x), 2 * m.mean, m.var, m.g).relu()), **BATCH_NORM)
case("batch norm whose statistics are computed", build, (3,), 0, apart=OWN)
build = net(
    lambda m, x: m.c((m.a(x) * (k := m.g * (m.var + 1e-5).rsqrt()) + m.b - m.mean * k).relu()),
    **BATCH_NORM | {"g": buffer(4), "b": buffer(4)},
)
case("frozen batch norm", build, (3,), 0)  # its shift is a buffer

# Activations --------------------------------------------------------------------------------------

for form, activation in {
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
    case(f"activation: {form}", seq(L(3, 4), activation, L(4, 2)), (3,), 4)
case("activation: Identity", seq(L(3, 4), nn.Identity, L(4, 2)), (3,), 4, beyond="linear")
case("activation: none", seq(L(3, 4), nn.Sequential, L(4, 2)), (3,), 4, beyond="linear")
case("activation: PReLU over space", seq(C1(2, 4, 2), part(nn.PReLU, 4), Flat, Read), (2, 5), 4)


class Rectify(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * (ctx.saved_tensors[0] > 0)


for form, relu in {
    "F.relu": F.relu,
    "F.relu in place": part(F.relu, inplace=True),
    "F.relu in place, by position": lambda x: F.relu(x, True),
    "F.relu_": lambda x: F.relu_(x),
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
    "mask as float": lambda x: x * (x > 0).double(),
    "masks combined": lambda x: x * ((x > 0) & ~(x <= 0)),
    "bool": lambda x: x.relu() * x.bool(),
    "where": lambda x: torch.where(x > 0, x, 0.1 * x),
    "Tensor.where": lambda x: x.where(x > 0, 0.0),
    "masked_fill": lambda x: x.masked_fill(x < 0, 0.0),
    "masked_fill_": lambda x: x.masked_fill_(x < 0, 0.0),
    "maximum": lambda x: torch.maximum(x, torch.zeros_like(x)),
    "max of two": lambda x: torch.max(x, 0 * x),
    "maxout with itself": lambda x: torch.maximum(x, -0.3 * x),
    "sign": lambda x: x * x.sign(),
    "custom autograd function": Rectify.apply,
}.items():
    build = net(part(lambda f, m, x: m.b(f(1 * m.a(x))), relu), a=L(3, 4), b=L(4, 2))
    case(f"rectifier: {form}", build, (3,), 4)


class Sandwich(nn.Module):
    """Four channels, the operation in question, and a linear read-out of all of it."""

    def __init__(self, op: Callable[[Tensor], Tensor], space: tuple[int, ...]) -> None:
        super().__init__()
        self.stem = CONVOLUTIONS[len(space)](2, 4, 1) if space else nn.Linear(3, 4)
        self.op = copy.deepcopy(op)
        self.read = nn.LazyLinear(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.op(act(self.stem(x))).flatten(1))


def between(
    name: str, op: Any, H: int, shared: int | None = None, space: Any = (), **more: Any
) -> None:
    """Enter an operation between four units and a read-out; `space` of more than none: channels."""
    space = space if isinstance(space, tuple) else (space,)
    case(name, part(Sandwich, op, space), (2, *space) if space else (3,), H, shared, **more)


between("dropout", nn.Dropout(), 4)
between("dropout in place", nn.Dropout(inplace=True), 4)
between("dropout 1d", nn.Dropout1d(), 4, space=4)
between("dropout 2d", nn.Dropout2d(), 4, space=(2, 2))
between("dropout 3d", nn.Dropout3d(), 4, space=(2, 1, 2))
between("F.dropout", lambda x: F.dropout(x, 0.4, training=False), 4)
between("F.dropout always on", lambda x: F.dropout(x, 0.4), 4)
between("torch.dropout", lambda x: torch.dropout(x, 0.4, False), 4)
between("alpha dropout", nn.AlphaDropout(), 0, reason="alpha_dropout", beyond="none in eval mode")
between("feature alpha dropout", nn.FeatureAlphaDropout(), 0, space=3, beyond="none in eval mode")

# Pooling over space: a channel keeps its unit -----------------------------------------------------

between("max_pool1d", nn.MaxPool1d(2), 4, space=6)
between("max_pool2d", nn.MaxPool2d(2, stride=1), 4, space=(3, 3))
between("max_pool3d", nn.MaxPool3d((2, 1, 1)), 4, space=(2, 1, 2))
between("max_pool: ceil mode", nn.MaxPool2d(2, ceil_mode=True), 4, space=(3, 3))
between("max_pool: padding and dilation", nn.MaxPool1d(3, 2, 1, 2), 4, space=7)
between("max_pool: all", nn.MaxPool2d((3, 2), (2, 1), (1, 0), 1, ceil_mode=True), 4, space=(4, 3))
between("max_pool: indices", lambda x: F.max_pool2d(x, 2, return_indices=True)[0], 4, space=(3, 3))
between("max_pool: torch.max_pool1d", lambda x: torch.max_pool1d(x, 2), 4, space=4)
between("avg_pool1d", nn.AvgPool1d(2), 4, space=6)
between("avg_pool2d", nn.AvgPool2d(2, stride=1), 4, space=(3, 3))
between("avg_pool3d", nn.AvgPool3d((2, 1, 2)), 4, space=(2, 2, 2))
between("avg_pool: ceil mode", nn.AvgPool2d(2, ceil_mode=True), 4, space=(3, 3))
between("avg_pool: padding", nn.AvgPool2d(3, 2, 1), 4, space=(3, 3))
between("avg_pool: pad not counted", nn.AvgPool1d(3, 2, 1, count_include_pad=False), 4, space=5)
between("avg_pool: divisor", nn.AvgPool2d(2, divisor_override=3), 4, space=(4, 2))
between("avg_pool: function", lambda x: F.avg_pool1d(x, 2), 4, space=4)
between("adaptive_avg_pool1d", nn.AdaptiveAvgPool1d(3), 4, space=7)
between("adaptive_avg_pool2d", nn.AdaptiveAvgPool2d((None, 1)), 4, space=(2, 3))
between("adaptive_avg_pool3d", nn.AdaptiveAvgPool3d((1, None, 2)), 4, space=(2, 1, 3))
between("adaptive_avg_pool: function", lambda x: F.adaptive_avg_pool2d(x, 1), 4, space=(2, 2))
between("adaptive_max_pool1d", nn.AdaptiveMaxPool1d(3), 4, space=7)
between("adaptive_max_pool2d", nn.AdaptiveMaxPool2d((2, None)), 4, space=(3, 2))
between("adaptive_max_pool3d", nn.AdaptiveMaxPool3d((1, None, 2)), 4, space=(2, 1, 2))
pool = part(F.adaptive_max_pool2d, output_size=(1, 2), return_indices=True)
between("adaptive_max_pool: indices", lambda x: pool(x)[0], 4, space=(2, 3))
single = lambda x: torch.stack([F.max_pool2d(sample, 2) for sample in x.unbind(0)])
between("pooling without batch", single, 4, space=(2, 4))
between("upsample: nearest", nn.Upsample(scale_factor=2), 4, space=3, beyond=COPIES)
between("upsample: nearest 2d", nn.UpsamplingNearest2d((3, 4)), 4, space=(2, 2), beyond=COPIES)
up = nn.Upsample(scale_factor=2, mode="bilinear")
between("upsample: bilinear", up, 4, space=(2, 2), beyond=COPIES)
up = part(F.interpolate, size=3, mode="linear", align_corners=True)
between("upsample: linear", up, 4, space=4)
between("upsample: area", part(F.interpolate, size=(2, 2), mode="area"), 4, space=(3, 3))
up = part(F.interpolate, size=(2, 2, 2), mode="trilinear")
between("upsample: trilinear", up, 4, space=(3, 3, 1), beyond=COPIES)
between("mean", lambda x: x.mean((2, 3)), 4, space=(2, 2))
between("mean: keepdim", lambda x: x.mean([-1], keepdim=True), 4, space=(2, 2))
between("sum", lambda x: torch.sum(x, dim=-1), 4, space=4)
between("sum: axis", lambda x: x.sum(axis=2), 4, space=4)
between("amax", lambda x: x.amax((2, 3)), 4, space=(2, 2))
between("max", lambda x: x.max(2).values, 4, space=4)
between("max: unpacked", lambda x: torch.max(x, dim=2, keepdim=True)[0], 4, space=4)
between("min", lambda x: x.min(-1)[0], 4, space=4)
between("norm", lambda x: x.norm(dim=2), 4, space=4)
between("norm: infinite", lambda x: torch.norm(x, math.inf, 2), 4, space=4)
between("norm: of order 0", lambda x: x.norm(0, 2), 0, space=4, reason="norm", beyond="it counts")
between("std", lambda x: x.std(2), 4, space=4)
between("std: biased", lambda x: x.std(2, False, keepdim=True), 4, space=4)
between("cumsum", lambda x: x.cumsum(2), 4, space=4)

# Pooling over units: they are tied window by window, and pinned where sums are --------------------


def over_units(name: str, op: Any, H: int, shared: int, **more: Any) -> None:
    """Six units as a row of six places, the operation, and a linear read-out."""
    build = net(lambda m, x: m.b(op(act(m.a(x))[:, None]).flatten(1)), a=L(3, 6), b=Read)
    case(f"over units: {name}", build, (3,), H, shared, **more)


over_units("max_pool", lambda x: F.max_pool1d(x, 2), 0, 3)  # 01 23 45
over_units("avg_pool", lambda x: F.avg_pool1d(x, 2), 0, 3)
over_units("overlap", lambda x: F.avg_pool1d(x, 3, 1), 0, 1, beyond=BASIS)
over_units("left over", lambda x: F.max_pool1d(x, 3, 2), 0 + 1, 1 + 1, beyond=CUT)  # 012 234, 5
over_units("ceil mode", lambda x: F.max_pool1d(x, 4, 4, ceil_mode=True), 0, 2)  # 0123 45
over_units("padding", lambda x: F.avg_pool1d(x, 2, 2, 1), 0 + 2, 4)  # 0 12 34 5
over_units("dilation", lambda x: F.max_pool1d(x, 2, 1, 0, 3), 0, 3)  # 03 14 25
over_units("adaptive", lambda x: F.adaptive_avg_pool1d(x, 3), 0, 3)
over_units("adaptive, unequal", lambda x: F.adaptive_max_pool1d(x, 4), 0, 2)  # 01 12 34 45
over_units("adaptive, 5 to 2", lambda x: F.adaptive_avg_pool1d(x[..., :5], 2), 1, 2, beyond=CUT)
over_units("adaptive, one to one", lambda x: F.adaptive_avg_pool1d(x, 6), 6, 6)
over_units("images", lambda x: F.max_pool2d(x.view(-1, 1, 2, 3), (2, 1)), 0, 3)  # 03 14 25
over_units("nearest", lambda x: F.interpolate(x, 12), 6, 6, beyond=COPIES)
over_units("nearest, fewer", lambda x: F.interpolate(x, 3), 6, 6, beyond=CUT)
over_units("interpolated", lambda x: F.interpolate(x, 5, mode="linear"), 0, 1, beyond=BASIS)
over_units("area", lambda x: F.interpolate(x, 3, mode="area"), 0, 3)
over_units("reflect", lambda x: F.pad(x, (1, 2), "reflect"), 6, 6, beyond=COPIES)
over_units("circular", lambda x: F.pad(x, (1, 2), "circular"), 6, 6, beyond=COPIES)
over_units("mean", lambda x: x.mean(2), 0, 1)
over_units("amax", lambda x: x.amax(-1), 0, 1, beyond=CUT)
over_units("max", lambda x: x.view(-1, 2, 3).max(1).values, 0, 3)
over_units("norm", lambda x: x.norm(dim=-1), 0, 1)
over_units("cumsum", lambda x: x.cumsum(-1), 0, 1, beyond=BASIS)
over_units("unfold", lambda x: x.unfold(2, 2, 2), 6, 6)
fixed = lambda x: F.conv1d(x, torch.ones(1, 1, 2), stride=2)
over_units("fixed kernel", fixed, 0, 1, beyond="a fixed kernel ties all that it might read")

# Movement that keeps channels whole ---------------------------------------------------------------

EVEN = torch.tensor([True, False, True, False])


def into(whole: Tensor, key: Any, piece: Any) -> Tensor:
    """`whole[key] = piece` as an expression."""
    whole[key] = piece
    return whole


def written_to(out: Tensor, x: Tensor) -> Tensor:
    torch.cat([x, x], 1, out=out)
    return out


def pads(x: Tensor) -> Tensor:
    """Room for six channels, all zero."""
    return torch.zeros(x.shape[0], 6, *x.shape[2:])


ALL = slice(None)
for form, move in {
    "flatten": lambda x: torch.flatten(x, 1),
    "Tensor.flatten": lambda x: x.flatten(1),
    "view": lambda x: x.view(x.size(0), -1),
    "reshape": lambda x: x.reshape(x.shape[0], 4, -1),
    "reshape_as": lambda x: x.reshape_as(x).view_as(x),
    "unflatten": lambda x: x.unflatten(1, (2, 2)),
    "nn.Unflatten": nn.Unflatten(1, (2, 2)),
    "ravel": lambda x: torch.stack([sample.ravel() for sample in x.unbind(0)]),
    "permute": lambda x: x.permute(0, 3, 1, 2),
    "transpose": lambda x: x.transpose(1, 2).contiguous(),
    "movedim": lambda x: x.movedim(1, -1),
    "swapaxes": lambda x: torch.swapaxes(x, 2, 3),
    "mT": lambda x: x.mT,
    "squeeze": lambda x: x.unsqueeze(1).squeeze(1),
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
    "lists side by side": lambda x: x[:, [0, 1, 2, 3, 0, 1, 2, 3], [0, 0, 0, 0, 1, 1, 1, 1]],
    "lists apart": lambda x: x.movedim(1, 3)[:, [0, 1, 0, 1], :, [0, 1, 2, 3]].transpose(0, 1),
    "identity": nn.Identity(),
    "clone": lambda x: x.clone().contiguous(),
    "to": lambda x: x.double().to(x).type_as(x).to(torch.float64),
    "detach": lambda x: x.detach(),
}.items():
    apart = "the Jacobian does not pass it" if form == "detach" else ""
    between(f"movement: {form}", move, 4, space=(2, 2), apart=apart)
for form, move in {
    "setitem": lambda x: into(pads(x), (ALL, slice(1, 5)), x),
    "setitem, twice": lambda x: into(
        into(pads(x), (ALL, slice(0, 2)), x[:, 2:]), (ALL, 5), x[:, 1]
    ),
    "setitem of a list": lambda x: into(pads(x), (ALL, [5, 0, 1, 3]), x),
    "setitem of a mask": lambda x: into(pads(x)[:, :4], (ALL, EVEN), x[:, :2]),
    "setitem, new_zeros": lambda x: into(x.new_zeros(len(x), 6, 2, 2), (ALL, slice(1, 5)), x),
    "setitem, zeros_like": lambda x: into(torch.zeros_like(x), (..., 0), x[..., 1]),
    "copy_": lambda x: torch.empty(x.shape).copy_(x).repeat(1, 2, 1, 1),
    "zero padding": nn.ZeroPad2d(1),
    "F.pad": lambda x: F.pad(x, (1, 0, 0, 2)),
    "cropping": lambda x: F.pad(x, (1, -1)),
    "constant padding": nn.ConstantPad2d(1, 0.5),
    "channel padding": lambda x: F.pad(x, (0, 0, 0, 0, 1, 2)),
    "cat of the same": lambda x: torch.cat([x, x], 1),
    "repeat": lambda x: x.repeat(1, 2, 1, 1),
    "tile": lambda x: x.tile(2, 1, 1),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "expand": lambda x: x[:, None].expand(-1, 3, -1, -1, -1),
    "F.unfold": lambda x: F.unfold(x, 2, padding=1),
    "list": lambda x: x[:, [2, 0, 1]],
    "slice": lambda x: x[:, :3],
    "step": lambda x: x[:, ::2],
    "integer": lambda x: x[:, 1],
    "last": lambda x: x[:, -1:],
    "tril": lambda x: x.tril(),
    "diagonal": lambda x: x.unflatten(1, (2, 2)).diagonal(0, 1, 2),
}.items():
    between(f"copies, choices, zeros: {form}", move, 4, space=(2, 2), beyond=f"{COPIES}, or {CUT}")

copied = lambda x: written_to(torch.empty(len(x), 8, 2, 2), x)
between("copies, choices, zeros: out=", copied, 4, space=(2, 2), apart="no gradient")

# Movement that does not keep channels whole -------------------------------------------------------


def read_by_conv(name: str, move: Any, H: int, shared: int, **more: Any) -> None:
    """Four channels on four places, moved, and read by a convolution with three channels."""
    run = lambda m, x: m.read(act(m.b(move(act(m.a(x))))).flatten(1))
    build = net(run, a=C1(2, 4, 1), b=part(nn.LazyConv1d, 3, 1), read=Read)
    case(f"read by a convolution: {name}", build, (2, 4), H, shared, **more)


read_by_conv("as it is", lambda x: x, 4 + 3, 4 + 3)
read_by_conv("channels cut in two", lambda x: x.view(-1, 8, 2), 4 + 3, 4 + 3)
read_by_conv("two channels in a row", lambda x: x.view(-1, 2, 8), 0 + 3, 2 + 3)
read_by_conv("channels and space exchanged", lambda x: x.transpose(1, 2), 0 + 3, 1 + 3)
read_by_conv("mixed", lambda x: x.transpose(1, 2).reshape(-1, 2, 8), 0 + 3, 1 + 3)
shuffle = lambda x: F.pixel_shuffle(x.view(-1, 4, 2, 2), 2).flatten(2)
read_by_conv("pixel shuffle", shuffle, 0 + 3, 1 + 3)
read_by_conv("padded with zeros", lambda x: F.pad(x, (1, 1)), 4 + 3, 4 + 3, beyond=CUT)
read_by_conv("padded with ones", lambda x: F.pad(x, (1, 1), value=1.0), 3, 3, beyond="biases do it")
read_by_conv("reflected", lambda x: F.pad(x, (1, 1), "reflect"), 4 + 3, 4 + 3, beyond=COPIES)
read_by_conv("zero channels", lambda x: F.pad(x, (0, 0, 1, 1)), 4 + 3, 4 + 3, beyond=CUT)
read_by_conv("rolled", lambda x: x.roll(1, 1), 4 + 3, 4 + 3)
read_by_conv("in two places", lambda x: torch.cat([x, x.roll(1, 1)], 2), 0 + 3, 1 + 3)
read_by_conv("in two channels", lambda x: torch.cat([x, 2 * x.roll(1, 2)], 1), 4 + 3, 4 + 3)
read_by_conv("mean of channels", lambda x: x.mean(1, keepdim=True), 0 + 3, 1 + 3)
read_by_conv("written", lambda x: into(pads(x), (ALL, slice(1, 5)), x), 4 + 3, 4 + 3, beyond=CUT)
written = lambda x: x + into(torch.zeros_like(x), (ALL, 0), x[:, 1])
read_by_conv("written over", written, 2 + 3, 1 + 2 + 3, beyond=BASIS)

# Sums, differences, products, quotients -----------------------------------------------------------

for form, scaled in {
    "times 2": lambda x: x * 2,
    "3 times": lambda x: 3 * x,
    "times -1": lambda x: x * -1,
    "negative": lambda x: -x,
    "torch.neg": torch.neg,
    "half": lambda x: x / 2,
    "in place": lambda x: x.mul_(2).div_(3),
    "operators in place": lambda x: operator.imul(operator.itruediv(x, 3), 2),
    "0-d tensor": lambda x: x * torch.tensor(0.3),
    "other names": lambda x: torch.multiply(torch.true_divide(x, 2.0), 4),
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
    "over integers": lambda x: x / torch.arange(1, 5),
    "compared with itself": lambda x: x * (x > 0.3 * x),
}.items():
    between(f"scaled: {form}", scaled, 4)
between("scaled: masked", lambda x: x * EVEN, 4, beyond=CUT)
between("scaled: repeated", lambda x: x[:, None] * torch.ones(2, 1), 4, beyond=COPIES)
for form, mixed in {
    "plus 1": lambda x: x + 1,
    "1 minus": lambda x: 1 - x,
    "plus a constant": lambda x: x + torch.arange(4.0),
    "plus a half constant": lambda x: x + F.one_hot(torch.tensor(1), 4),
    "add_": lambda x: x.add_(0.5),
    "maximum": lambda x: torch.maximum(x, torch.ones(4)),
    "written": lambda x: into(x, (ALL, [0, 1, 2, 3]), x + 1),
}.items():
    # The read-out's bias makes up for a shift; rescaling acts on weights one by one.
    apart = "a shift of the read-out's bias may make up for it"
    between(f"with a constant: {form}", mixed, 0, reason="added to other units", apart=apart)
KEEP = {"a": L(3, 4), "k": buffer(4), "b": L(4, 2)}
case("buffer times", net(lambda m, x: m.b(m.k * act(m.a(x)) / m.k[0]), **KEEP), (3,), 4)
build = net(lambda m, x: m.b(m.k + act(m.a(x))), **KEEP)
case("buffer plus", build, (3,), 0, beyond="the read-out's bias makes up for it")


def cached(m: Any, x: Tensor) -> Tensor:
    m.k[:2] = 0.5  # the buffer itself stays as it is
    m.k[2:] = act(m.a(x)).amax(0)[2:]
    return m.b(m.k * torch.ones_like(x[:, :1]))


case("buffer written", net(cached, **KEEP), (3,), 4, apart="the Jacobian mixes samples")


def joined(name: str, join: Any, H: int, shared: int, **more: Any) -> None:
    """Two branches of four channels each, joined, with a linear read-out."""
    run = lambda m, x: m.read(join(act(m.a(x)), act(m.b(x))).flatten(1))
    build = net(run, a=C1(2, 4, 1), b=C1(2, 4, 1), read=Read)
    case(f"two branches: {name}", build, (2, 2), H, shared, **more)


def add_in_place(a: Tensor, b: Tensor) -> Tensor:
    a += b
    return a


PRODUCT = "a product of units"
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
joined("compared", lambda a, b: torch.where(a > b, a, b), 0, 0, beyond="it is the maximum")
halves = lambda a, b: torch.cat([a[:, :2] + b[:, 2:], a[:, 2:]], 1)
joined("sum of halves", halves, 2 + 2, 2 + 2 + 2, beyond=CUT)
joined("sum of one channel", lambda a, b: a + b[:, :1], 0 + 3, 1 + 3, beyond=CUT)
joined("stack and sum", lambda a, b: torch.stack([a, b]).sum(0), 0, 4)
joined("stack and max", lambda a, b: torch.stack([a, b], -1).max(-1).values, 0, 4)
joined("stack", lambda a, b: torch.stack([a, b], 1), 8, 8)
joined("cat", lambda a, b: torch.cat((a, b), dim=1), 8, 8)
joined("cat backwards", lambda a, b: torch.concat((b, a), -2), 8, 8)
joined("cat over space", lambda a, b: torch.concatenate([a, b], axis=2), 8, 8)
joined("cat over space, pooled", lambda a, b: torch.cat([a, b], 2).mean(2), 0, 4)
joined("cat over the batch", lambda a, b: torch.cat([a, b]), 0, 4)
joined("hstack", lambda a, b: torch.hstack([a, b, a]), 8, 8, beyond=COPIES)
joined("setitem", lambda a, b: into(torch.cat([a, a], 2), (..., slice(0, 2)), b), 8, 8)
joined("product", lambda a, b: a * b, 0, 0, beyond=PRODUCT, reason="mul")
joined("product in place", lambda a, b: a.clone().mul_(b), 0, 0, beyond=PRODUCT, reason="mul")
joined("quotient by a pinned one", lambda a, b: a / (b.abs() + 1), 4, 4, reason="added to")
quotient = lambda a, b: a / b.norm(dim=(1, 2), keepdim=True)
joined("quotient", quotient, 4, 0, beyond="a quotient of units")  # in the first, b is a sum
joined("gate", lambda a, b: a * b.sigmoid(), 4, 4, reason="sigmoid")
joined("matrix product", lambda a, b: a.mT @ b, 0, 0, beyond=PRODUCT, reason="multiplied by")
inner = part(torch.einsum, "ncs,ncs->ns")
joined("einsum", inner, 0, 0, beyond=PRODUCT, reason="multiplied by another activation")
joined("attention", lambda a, b: a @ (b.mT @ b).softmax(-1), 4, 4, apart=OWN, reason="multiplied")


def residual(m: Any, x: Tensor) -> Tensor:
    return act(x + m.c(act(m.b(x))))


BLOCK = {"b": C1(4, 5, 1), "c": C1(5, 4, 1)}
case("residual block", seq(C1(2, 4, 1), A, net(residual, **BLOCK), Flat, Read), (2, 2), 5, 4 + 5)
one, two = net(residual, b=L(4, 5), c=L(5, 4)), net(residual, b=L(4, 3), c=L(3, 4))
case("two residual blocks", seq(L(3, 4), A, one, two, L(4, 2)), (3,), 5 + 3, 4 + 5 + 3)
shortcut = net(  # half of the space, channels padded with zeros
    lambda m, x: act(F.pad(x[..., ::2], (0, 0, 2, 2)) + m.c(x)), c=C1(4, 8, 1, stride=2)
)
SUM = "the kernel plus 1 is a kernel, too"
case(
    "shortcut A", seq(shortcut, Flat, Read), (4, 4), 4, beyond=SUM
)  # of eight channels, four meet the input
case("shortcut A, hidden", seq(C1(2, 4, 1), A, shortcut, Flat, Read), (2, 4), 4, 4 + 4, beyond=SUM)
dense = lambda m, x: m.c(torch.cat([x, h := act(m.a(x)), act(m.b(torch.cat([x, h], 1)))], 1))
case("densely connected", net(dense, a=L(3, 4), b=L(7, 5), c=L(12, 2)), (3,), 4 + 5)
excite = net(lambda m, x: x * m.g(x.mean(2))[..., None], g=seq(L(4, 3), A, L(3, 4), nn.Sigmoid))
build = seq(C1(2, 4, 1), A, excite, Flat, Read)
case("squeeze and excitation", build, (2, 2), 4 + 3, reason="sigmoid")

# Parameters used as they are ----------------------------------------------------------------------


def raw(name: str, run: Any, H: int, shared: int | None = None, **more: Any) -> None:
    """Four units, an expression with parameters, and a read-out."""
    parts = {key: more.pop(key) for key in list(more) if len(key) == 1}
    build = net(
        lambda m, x: m.read(act(run(m, act(m.a(x)))).flatten(1)), a=L(3, 4), read=Read, **parts
    )
    case(f"parameter: {name}", build, (3,), H, shared, **more)


P, B = parameter, buffer
TOKENS = "a factor for each place would do, too"
raw("F.linear", lambda m, x: F.linear(x, m.w, m.b), 4 + 5, w=P(5, 4), b=P(5))
raw("matmul", lambda m, x: x @ m.w + m.b, 4 + 5, w=P(4, 5), b=P(5))
raw("mm", lambda m, x: torch.mm(x, m.w), 4 + 5, w=P(4, 5))
raw("matmul from the left", lambda m, x: (m.w @ x.mT).mT, 4 + 5, w=P(5, 4))
raw("matmul of tokens", lambda m, x: x.view(-1, 2, 2) @ m.w, 5, 2 + 5, w=P(2, 5), beyond=TOKENS)
raw("matmul over tokens", lambda m, x: m.w @ x.view(-1, 2, 2), 5, 2 + 5, w=P(5, 2), beyond=TOKENS)
raw("matmul with a vector", lambda m, x: (x @ m.w)[:, None], 4 + 1, w=P(4))
raw("one matrix per head", lambda m, x: x.view(-1, 2, 1, 2) @ m.w, 4 + 6, w=P(2, 2, 3))
heads = lambda m, x: torch.bmm(x.view(-1, 2, 2).transpose(0, 1), m.w).transpose(0, 1)
raw("bmm", heads, 4 + 6, w=P(2, 2, 3))
raw(
    "one matrix for two heads",
    lambda m, x: x.view(-1, 2, 1, 2) @ m.w,
    3,
    2 + 3,
    w=P(1, 2, 3),
    beyond=TOKENS,
)
raw("addmm", lambda m, x: torch.addmm(m.b, x, m.w), 4 + 5, w=P(4, 5), b=P(5))
raw("einsum", lambda m, x: torch.einsum("ni,io->no", x, m.w), 4 + 5, w=P(4, 5))
heads = lambda m, x: torch.einsum("nhi,hio->nho", x.view(-1, 2, 2), m.w)
raw("einsum per head", heads, 4 + 6, w=P(2, 2, 3))
raw("einsum, parameter first", lambda m, x: torch.einsum("oi,ni->no", m.w, x), 4 + 5, w=P(5, 4))
summed = lambda m, x: torch.einsum("ni,iok->no", x, m.w)
raw("einsum over a parameter", summed, 4 + 5, w=P(4, 5, 2), beyond="entries that are only summed")
convolved = lambda m, x: F.conv1d(x[:, None], m.w, m.b, padding=1)
raw("F.conv1d", convolved, 0 + 3, 1 + 3, w=P(3, 1, 3), b=P(3))
raw("F.conv2d", lambda m, x: F.conv2d(x[..., None, None], m.w), 4 + 5, w=P(5, 4, 1, 1))
raw(
    "F.conv_transpose1d",
    lambda m, x: F.conv_transpose1d(x[..., None], m.w),
    4 + 5,
    w=P(4, 5, 2),
    beyond=TOKENS,
)
raw("gain", lambda m, x: x * m.g, 4 + 4, g=P(4))
raw("gain in place", lambda m, x: x.clone().mul_(m.g), 4 + 4, g=P(4))
raw("gain, first", lambda m, x: m.g * x[:, None], 4 + 8, g=P(2, 4), beyond=COPIES)
raw("gain of one unit", lambda m, x: x[:, :1] * m.g, 4 + 5, g=P(5), beyond=CUT)
raw("gain for all", lambda m, x: x * m.g, 4, g=P(1), beyond="one gain moves four scales")
raw("gain, 0-d", lambda m, x: x * m.g, 4, g=P(), beyond="one gain moves four scales")
raw("gain of a sum", lambda m, x: x + m.g * x, 0, 4, g=P(4), beyond="gain + 1 is a gain")
raw("quotient", lambda m, x: x / m.g, 0, g=P(4), reason="div", beyond="a quotient")
raw("bias", lambda m, x: x + m.b, 4, b=P(4))
raw("bias, first", lambda m, x: m.b + x, 4, b=P(4))
raw("bias, subtracted", lambda m, x: m.b - x, 4, b=P(4))
raw("bias in place", lambda m, x: x.add_(m.b), 4, b=P(4))
raw("bias for all", lambda m, x: x + m.b, 0, 1, b=P(1))
raw("bias, 0-d", lambda m, x: x + m.b, 0, 1, b=P())
raw("bias of a gate", lambda m, x: x * (m.b + x.sigmoid()), 0, b=P(4), reason="sigmoid")
raw("maximum", lambda m, x: torch.maximum(x, m.b), 4, b=P(4), beyond=CUT)
raw("position embedding", lambda m, x: x[:, None] + m.p, 4, p=P(1, 3, 4))
raw("position embedding, cut", lambda m, x: x[:, None] + m.p[:, :3], 4, p=P(1, 5, 4), beyond=CUT)
token = lambda m, x: torch.cat([m.t.expand(len(x), -1), x], 1)
raw("token", token, 4 + 2, t=P(1, 2), beyond="the read-out's bias does the same")
token = lambda m, x: m.l(torch.cat([m.t.expand(len(x), -1, -1), x[:, None]], 1))
raw("token read alike", token, 0 + 3, 4 + 3, t=P(1, 2, 4), l=L(4, 3), apart="constant tokens")
token = lambda m, x: torch.cat([act(m.t).repeat(len(x), 1), x], 1)
raw("token, bent", token, 4 + 2, t=P(2), beyond="the read-out's bias does the same")
raw("square", lambda m, x: x * m.g**2, 4, g=P(4), beyond="a square has a scale, too")
raw("absolute weights", lambda m, x: F.linear(x, m.w.abs()), 4 + 5, w=P(5, 4))
raw("rectified weights", lambda m, x: F.linear(x, F.relu(m.w)), 4 + 5, w=P(5, 4), beyond=CUT)
raw("scaled weights", lambda m, x: F.linear(x, -0.5 * m.w / 3), 4 + 5, w=P(5, 4))
raw("masked weights", lambda m, x: F.linear(x, m.w * m.k), 4 + 5, w=P(5, 4), k=B(5, 4))
raw("triangular weights", lambda m, x: x @ m.w.triu(), 4 + 5, w=P(4, 5), beyond=CUT)
raw("padded weights", lambda m, x: F.linear(x, F.pad(m.w, (1, 1))), 4 + 5, w=P(5, 2), beyond=CUT)
drop = lambda m, x: F.linear(x, F.dropout(m.w, 0.3, m.training))
raw("dropped weights", drop, 4 + 5, w=P(5, 4))
raw("W.t()", lambda m, x: F.linear(x, m.w.t()), 4 + 5, w=P(4, 5))
raw("W.T", lambda m, x: x @ m.w.T, 4 + 5, w=P(5, 4))
raw("W.mT", lambda m, x: x @ m.w.mT, 4 + 5, w=P(5, 4))
raw("W[:3]", lambda m, x: F.linear(x, m.w[:3], m.b[:3]), 4 + 3, w=P(5, 4), b=P(5), beyond=CUT)
slices = lambda m, x: torch.cat([F.linear(x, m.w[:3]), F.linear(x, m.w[3:])], 1)
raw("W[:3] and W[3:]", slices, 4 + 5, w=P(5, 4))
slices = lambda m, x: torch.cat([F.linear(x, w) for w in m.w.chunk(3)], 1)
raw("W.chunk", slices, 4 + 6, w=P(6, 4))
slices = lambda m, x: torch.cat([F.linear(x, w) for w in m.w], 1)
raw("for w in W", slices, 4 + 6, w=P(2, 3, 4))
slices = lambda m, x: torch.cat([F.linear(x, m.w[:3]), F.linear(x, m.w[1:])], 1)
raw("overlapping slices", slices, 4 + 4, w=P(4, 4), beyond=COPIES)
raw("W.view", lambda m, x: F.linear(x, m.w.view(5, 4)), 4 + 5, w=P(20))
raw("a row twice", lambda m, x: F.linear(x, m.w[[0, 1, 1]]), 4 + 2, w=P(2, 4), beyond=COPIES)
raw("W.expand", lambda m, x: F.linear(x, m.w.expand(5, 4)), 1 + 1, w=P(1), beyond=COPIES)
tied = lambda m, x: F.linear(act(F.linear(x, m.w)), m.w.t())
raw("W, then W.t()", tied, 1, w=P(3, 4), beyond="c(h)/c(x) = c(y)/c(h) has more solutions than 1")
several = lambda m, x: F.linear(x, torch.cat([m.w, m.v]))
raw("cat of weights", several, 0, w=P(2, 4), v=P(3, 4), beyond="several parameters in one weight")
raw("buffer as weight", lambda m, x: F.linear(x, m.k), 0, 1, k=B(5, 4))
mix = lambda m, x: m.k @ x[:, None].expand(-1, 3, -1)
raw("buffer over tokens", mix, 4, k=B(3, 3), beyond=COPIES)
mix = lambda m, x: torch.einsum("nc,ts->nct", x, m.k)
raw("buffer in einsum", mix, 4, k=B(3, 2), beyond=COPIES)
raw("bias of a fixed map", lambda m, x: F.linear(x, m.k, m.b), 0, 1, k=B(5, 4), b=P(5))
blur = lambda m, x: F.conv1d(x[..., None].expand(-1, -1, 4), m.k, groups=4)
kernel = lambda: torch.tensor([1.0, 2.0, 1.0]).repeat(4, 1, 1) / 4
raw("blur", blur, 4, k=kernel, beyond=COPIES)
kernel = lambda: torch.tensor([[1.0, 2.0], [2.0, -1.0], [1.0, -1.0], [1.0, 3.0]])[..., None]
raw("fixed groups", lambda m, x: F.conv1d(x[..., None], m.k, groups=2), 0, 2, k=kernel)
frozen = lambda: nn.Parameter(torch.randn(5, 4), requires_grad=False)
raw("frozen", lambda m, x: F.linear(x, m.w), 4 + 5, w=frozen, apart="no gradient")

# Modules used twice, tables, hooks ----------------------------------------------------------------

twins = net(lambda m, x, y: m.b(torch.cat([act(m.a(x)), act(m.a(y))], 1)), a=L(3, 4), b=L(8, 2))
case("twins", twins, lambda n: (torch.randn(n, 3), torch.randn(n, 3)), 4)
again = lambda m, x: m.c(act(m.b(act(m.b(x)))))
build = seq(L(3, 4), A, net(again, b=L(4, 4), c=L(4, 2)))
case("a layer twice", build, (3,), 4)  # W takes c(o)/c(i) both times
case("a layer twice, from the input on", net(again, b=L(3, 3), c=L(3, 2)), (3,), 0)
step = net(lambda m, x, h: act(m.a(x) + m.b(h)), a=L(3, 4), b=L(4, 4, **BARE))
loop = lambda m, x: m.c(m.f(x[:, 1], m.f(x[:, 0], m.h.expand(len(x), -1))))
case("a recurrence", net(loop, h=P(4), c=L(4, 2), f=step), (2, 3), 0, 4)


def tied_names() -> nn.Module:
    model = seq(L(3, 4), A, L(4, 4), A, L(4, 4), A, L(4, 2))()
    model[4].weight = model[2].weight
    return model


case("one parameter under two names", tied_names, (3,), 4, beyond="W may take a factor of its own")


def words(samples: int) -> Tensor:
    return torch.randint(5, (samples, 2))


FEW = "five words show little"
E4 = part(part, nn.EmbeddingBag, 5, 4)
case(
    "embedding", seq(part(nn.Embedding, 5, 4), A, L(4, 3), A, Flat, Read), words, 4 + 3, beyond=FEW
)
build = seq(part(nn.Embedding, 5, 4, padding_idx=1), A, Flat, Read)
case("embedding, padding", build, words, 4, beyond=FEW)
unembed = lambda m, x: act(m.b(act(m.e(x)))) @ m.e.weight.t()
build = net(unembed, e=part(nn.Embedding, 5, 4), b=L(4, 4))
case("tied embedding", build, words, 0, beyond="c(embedding) c(hidden) = 1 would do")
case("embedding bag, sum", seq(E4(mode="sum"), A, L(4, 2)), words, 4, beyond=FEW)
case("embedding bag, mean", seq(E4(mode="mean"), A, L(4, 2)), words, 4, beyond=FEW)
case("embedding bag, max", seq(E4(mode="max"), A, L(4, 2)), words, 4, beyond=FEW)
bags = lambda n: (torch.randint(5, (2 * n,)), torch.arange(0, 2 * n + 1, 2))
build = net(lambda m, x, o: m.b(act(m.e(x, o))), e=E4(include_last_offset=True), b=L(4, 2))
case("embedding bag, offsets", build, bags, 4, beyond=FEW)
build = net(lambda m, x: m.b(act(m.t[x])).flatten(1), t=P(5, 4), b=L(4, 2))
case("table indexed by the input", build, words, 4, beyond=FEW)
build = net(lambda m, x: m.b(act(m.t[:, x].movedim(0, -1))), t=P(4, 5), b=L(4, 2))
case("columns indexed by the input", build, words, 4, beyond=FEW)
pick = lambda m, x, i: m.b(act(m.a(x))[torch.arange(len(x)), i])
place = lambda n: (torch.randn(n, 2, 3), torch.randint(2, (n,)))
case("token picked by the input", net(pick, a=L(3, 4), b=L(4, 2)), place, 4)
pick = lambda m, x, i: m.b(act(m.a(x))[:, i])
place = lambda n: (torch.randn(n, 3), torch.randint(4, (5,)))
case("units picked by the input", net(pick, a=L(3, 4), b=L(5, 2)), place, 0, 1, beyond=CUT)


def pruned() -> nn.Module:
    model = seq(L(3, 4), A, L(4, 2))()
    prune.random_unstructured(model[0], "weight", 0.25)
    prune.l1_unstructured(model[0], "bias", 1)
    return model


case("pruned", pruned, (3,), 4, beyond=CUT)


def normed_layer(norm: Callable[[nn.Module], nn.Module]) -> nn.Module:
    return seq(L(3, 5), A, lambda: norm(nn.Linear(5, 4)), A, L(4, 3), A, L(3, 2))()


NORMED = "the normalised weight is taken as fixed: it ties what it reads"
case("spectral norm", part(normed_layer, nn.utils.spectral_norm), (3,), 3, 1 + 3, beyond=NORMED)
build = part(normed_layer, parametrizations.spectral_norm)
case("spectral norm, parametrized", build, (3,), 3, 1 + 3, beyond=NORMED)


def hooked(change: Callable[[Tensor], Any]) -> nn.Module:
    model = seq(L(3, 4), A, L(4, 2))()
    model[1].register_forward_hook(lambda module, args, output: change(output))
    model[2].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    return model


case("hook that scales", part(hooked, lambda y: 3 * y), (3,), 4)
case("hook that shifts", part(hooked, lambda y: y + 1), (3,), 0, beyond="the bias makes up for it")
case("hook that looks", part(hooked, lambda y: None), (3,), 4)
again = lambda m, x: m.c(checkpoint(lambda x: act(m.b(x)), m.a(x), use_reentrant=False))
case("checkpoint", net(again, a=seq(L(3, 4), A), b=L(4, 5), c=L(5, 2)), (3,), 4 + 5)
decide = lambda m, x: m.b(act(m.a(x)) if x.shape[1] == 3 and len(x) > 1 and x.ndim == 2 else x)
case("shapes decide", net(decide, a=L(3, 4), b=L(4, 2)), (3,), 4)

# What only train mode does: its weights do not move, so what they read is pinned

HEADS = {"a": L(3, 4), "b": L(4, 5), "c": L(5, 2), "aux": L(4, 2)}


def auxiliary(m: Any, x: Tensor) -> Any:
    h = act(m.a(x))
    y = m.c(act(m.b(h)))
    return (y, m.aux(h)) if m.training else y


def shown(m: Any, x: Tensor) -> Any:
    h = act(m.a(x))
    y = m.c(act(m.b(h)))
    return (y, h) if m.training else y


def squashed(m: Any, x: Tensor) -> Any:
    h = act(m.a(x))
    return m.c(act(m.b(h.tanh() if m.training else h)))


class Finish:
    """Neither a module nor a function."""

    def __call__(self, m: Any, y: Tensor, h: Tensor) -> Any:
        return (y, h) if m.training else y


def closure() -> Callable[..., Any]:
    def finish(m: Any, y: Tensor, h: Tensor) -> Any:
        return (y, h) if getattr(m, "train" + "ing") else y

    return lambda m, x: finish(m, m.c(act(m.b(h := act(m.a(x))))), h)


ONLY = "in train mode: weight `aux.weight`, which only this mode uses"
case("train mode: a head of its own", net(auxiliary, **HEADS), (3,), 5, reason=ONLY, apart=OWN)
SHOWN = "in train mode: output"
case("train mode: a layer is returned", net(shown, **HEADS), (3,), 5, reason=SHOWN, apart=OWN)
case("train mode: asked in a closure", net(closure(), **HEADS), (3,), 5, reason=SHOWN, apart=OWN)
build = net(lambda m, x: m.f(m, m.c(act(m.b(h := act(m.a(x))))), h), f=Finish, **HEADS)
case("train mode: asked by an object", build, (3,), 5, reason=SHOWN, apart=OWN)
build = net(
    lambda m, x: m.f["f"](m, m.c(act(m.b(h := act(m.a(x))))), h), f=lambda: {"f": Finish()}, **HEADS
)
case("train mode: asked from a dict", build, (3,), 5, reason=SHOWN, apart=OWN)
case("train mode: squashed", net(squashed, **HEADS), (3,), 5, reason="(tanh)", apart=OWN)
rows = lambda m, x: F.linear(act(m.a(x)), m.w if m.training else m.w[:2])
case("train mode: more of a weight", net(rows, a=L(3, 4), w=parameter(3, 4)), (3,), 0, apart=OWN)
skip = lambda m, x: m.c(act(m.b(x)) if m.training else act(m.b(act(m.a(x)))))
case(
    "train mode: a layer is left out",
    net(skip, a=L(4, 4), b=L(4, 5), c=L(5, 2)),
    (4,),
    5,
    apart=OWN,
)

# Inputs and outputs of all kinds ------------------------------------------------------------------


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


class Bag:
    def __init__(self, *things: Any) -> None:
        self.things = things
        self.me = self


TWO = {"a": L(3, 4), "b": L(4, 5), "c": L(5, 2)}
build = net(lambda m, x, y: m.c(act(m.b(act(m.a(x + y))))), **TWO)
case("dict of inputs", build, lambda n: {"x": torch.randn(n, 3), "y": torch.randn(n, 3)}, 4 + 5)
build = net(lambda m, d, n=1: m.c(act(m.b(act(m.a(d["x"][0]))))), **TWO)
case("nested inputs", build, lambda n: ({"x": [torch.randn(n, 3)], "n": 3, "s": None}, 2), 4 + 5)
for form, pack in {
    "tuple": lambda y, h: (y, h),
    "list": lambda y, h: [y, [h], None, 3],
    "dict": lambda y, h: {"y": y, "h": {"h": h}},
    "ordered dict": lambda y, h: collections.OrderedDict(y=y, h=h),
    "named tuple": lambda y, h: Outputs(y, h),
    "dataclass": lambda y, h: Record(y, h),
    "dataclass with slots": lambda y, h: Slotted(y, h),
    "tuple of dataclasses": lambda y, h: (Record(y, (h,)), 3),
    "dataclass of dataclasses": lambda y, h: Record(y, {"h": Slotted(y, h)}),
    "object": lambda y, h: Bag(y, {"h": h}),
}.items():
    run = part(lambda f, m, x: f(m.c(act(m.b(h := act(m.a(x))))), h), pack)
    case(f"outputs: {form}", net(run, **TWO), (3,), 5)  # the first hidden layer is an output

# Not positively homogeneous: what meets it is pinned, the rest counts -----------------------------

LAST = {"dim": -1}
for form, function in {
    **{name: getattr(F, name) for name in "relu6 hardtanh sigmoid tanh gelu silu elu selu".split()},
    **{name: getattr(F, name) for name in "celu softplus mish hardswish hardsigmoid".split()},
    **{name: getattr(F, name) for name in "softsign tanhshrink softshrink hardshrink".split()},
    **{name: part(getattr(F, name), **LAST) for name in "softmax log_softmax softmin".split()},
    "normalize": F.normalize,
    "log_sigmoid": F.logsigmoid,
    "hardtanh ": nn.ReLU6(inplace=True),
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
    "gt": lambda x: x * (x > 0.1),
    "round": lambda x: x.round(),
    "long": lambda x: x.long().to(x),
    "long ": lambda x: ((x > 0) * x).long().to(x),
    "int": lambda x: x.int().to(x.dtype),
    "to": lambda x: x.to(torch.int16) * 1.0,
    "sum": lambda x: (10 * x)[:, None].sum(1, dtype=torch.int64) * 1.0,
    "setitem": lambda x: into(torch.zeros(x.shape, dtype=int), ALL, 10 * x) * 1.0,
    "copy": lambda x: torch.zeros(x.shape, dtype=int).copy_(10 * x) * 1.0,
    "add": lambda x: 1 / (x.abs() + 1),
    "sort": lambda x: x.sort(1).values,
    "topk": lambda x: torch.topk(x, 5).values,
    "argmax": lambda x: F.one_hot(x.argmax(1), 5).to(x),
    "glu": lambda x: F.glu(torch.cat([x, x], 1)),
    "mul": lambda x: x * x.roll(1, 1),
    "floor_divide": lambda x: x // 1,
    "remainder": lambda x: x % 2,
    "local_response_norm": lambda x: nn.LocalResponseNorm(2)(x[..., None]),
}.items():
    run = part(lambda f, m, x: m.c(f(m.b(act(m.a(x)))).flatten(1)), function)
    more = {"reason": f"({form.strip()})", "apart": OWN}
    case(f"not homogeneous: {form}", net(run, **TWO), (3,), 4, **more)


def normed(name: str, layer: Build, own: int, reason: str) -> None:
    """Six channels that are normalised; a weight of the layer writes `own` new units."""
    build = seq(C1(2, 4, 1), A, C1(4, 6, 1), layer, A, Flat, Read)
    case(name, build, (2, 2), 4 + own, reason=reason, apart=OWN)


normed("LayerNorm", part(nn.LayerNorm, (6, 2)), 12, "layer_norm")
normed("LayerNorm over space", part(nn.LayerNorm, 2), 2, "layer_norm")
normed("LayerNorm, no bias", part(nn.LayerNorm, (6, 2), bias=False), 12, "layer_norm")
normed("LayerNorm, none", part(nn.LayerNorm, 2, elementwise_affine=False), 0, "layer_norm")
normed("RMSNorm", part(nn.RMSNorm, (6, 2)), 12, "rms_norm")
normed("GroupNorm", part(nn.GroupNorm, 3, 6), 6, "group_norm")
normed("GroupNorm, none", part(nn.GroupNorm, 3, 6, affine=False), 0, "group_norm")
norm = part(part, nn.InstanceNorm1d, 6)
normed("InstanceNorm", norm(affine=True), 6, "instance_norm")
normed("InstanceNorm, none", norm(), 0, "instance_norm")
normed("InstanceNorm, statistics", norm(affine=True, track_running_stats=True), 6, "instance_norm")
style = lambda m, x: m.c(F.layer_norm(act(m.a(x)), (4,), act(m.b(x)).mean(0), m.b(x)[0]))
case(
    "norm whose weight is computed", net(style, a=L(3, 4), b=L(3, 4), c=L(4, 2)), (3,), 0, apart=OWN
)
shift = lambda m, x: m.c(F.layer_norm(act(m.a(x)), (4,), None, m.b))
case("norm with a bias only", net(shift, a=L(3, 4), b=P(4), c=L(4, 2)), (3,), 0, apart=OWN)
attend = net(lambda m, x: m.f(x, x, x)[0], f=part(nn.MultiheadAttention, 4, 2, batch_first=True))
build = seq(L(3, 5), A, L(5, 4), attend, L(4, 2))
case("attention", build, (6, 3), 5, reason="multi_head_attention_forward", apart=OWN)
QKV = {"q": L(3, 4), "k": L(3, 4), "v": L(3, 4), "o": L(4, 2)}
build = net(lambda m, x: m.o((m.q(x) @ m.k(x).mT).softmax(-1) @ m.v(x)), **QKV)
case("attention by hand", build, (6, 3), 4, reason="multiplied by another", apart=OWN)  # the values
build = net(lambda m, x: m.o(F.scaled_dot_product_attention(m.q(x), m.k(x), m.v(x))), **QKV)
case("scaled_dot_product_attention", build, (6, 3), 0, reason="scaled_dot_product", apart=OWN)
layer = part(part, nn.TransformerEncoderLayer, 4, 2, 6, batch_first=True)
# Free are the six hidden units of the feed-forward part and the four of the last norm ...
case("encoder layer", seq(L(3, 4), layer(), L(4, 2)), (5, 3), 6 + 4, apart=OWN)
# ... or of the norm before that part; the norm before the attention is pinned by it.
build = seq(L(3, 4), layer(norm_first=True), L(4, 2))
case("encoder layer, norm first", build, (5, 3), 6 + 4, reason="layer_norm", apart=OWN)
for form, function in {
    "lstm": part(nn.LSTM, 4, 3),
    "gru": part(nn.GRU, 4, 3, num_layers=2, bidirectional=True),
    "rnn_tanh": part(nn.RNN, 4, 3),
    "lstm_cell": part(nn.LSTMCell, 4, 3),
    "gru_cell": net(lambda m, x: (m.f(x),), f=part(nn.GRUCell, 4, 3)),
}.items():
    last = net(lambda m, x: m.c(m.f(x)[0]), f=function, c=Read)
    case(f"recurrent: {form}", seq(L(3, 5), A, L(5, 4), last), (3,), 5, reason=form, apart=OWN)

# Unknown operations, pinned on request ------------------------------------------------------------

UNKNOWN: dict[str, Any] = {
    "fft_fft": lambda x: torch.view_as_real(torch.fft.fft(x)).sum(-1),
    "linalg_svd": lambda x: x + torch.linalg.svd(x)[1].sum(),
    "renorm": lambda x: x.renorm(2, 0, 1.0),
    "copysign": lambda x: torch.copysign(x, x),
    "gather": lambda x: x.gather(1, torch.zeros(len(x), 5, dtype=torch.long)),
}
for form, function in UNKNOWN.items():
    run = part(lambda f, m, x: m.c(f(m.b(act(m.a(x))))), function)
    more = {"reason": form, "on_unknown": "pin", "apart": OWN}
    case(f"unknown: {form}", net(run, **TWO), (3,), 4, **more)

# What is refused, by name -------------------------------------------------------------------------

REFUSED: dict[str, tuple[Build, Callable[[int], Any], str]] = {}
DATA = "depends on the data .control flow or shapes made from values."
INPLACE = "in-place operation changes units that another tensor still shares"
STALE = "reads memory that was written through another tensor"


def refused(name: str, run: Any, message: str, **parts: Build) -> None:
    """Four units, what cannot be traced, and a read-out."""
    build = net(lambda m, x: m.b(run(m, act(m.a(x)))), a=L(3, 4), b=L(4, 2), **parts)
    REFUSED[name] = (build, lambda n: torch.randn(n, 3), message)


def zeros_through_a_view(m: Any, x: Tensor) -> Tensor:
    whole = torch.zeros(x.shape)
    half = whole[:, :2]
    half += x[:, :2]
    return whole * 2


def view_of_what_is_written(m: Any, x: Tensor) -> Tensor:
    whole = torch.zeros(x.shape)
    same = whole.view(x.shape)
    whole[:] = x
    return same * 2


def buffer_through_a_view(m: Any, x: Tensor) -> Tensor:
    m.k[:2].add_(1)
    return x * m.k


for form, function in UNKNOWN.items():
    message = rf"`Net` \({form}\) cannot be traced: `{form}` is in no table .* on_unknown=\"pin\""
    refused(f"unknown: {form}", part(lambda f, m, x: f(x), function), message)
refused("item", lambda m, x: x * x.sum().item(), rf"\(item\) .* {DATA}")
refused("if", lambda m, x: x if x.sum() > 0 else -x, rf"\(__bool__\) .* {DATA}")
refused("max()", lambda m, x: max(x[0, 0], x[0, 1]) * x, rf"\(__bool__\) .* {DATA}")
refused("float()", lambda m, x: x * float(x.mean()), rf"\(__float__\) .* {DATA}")
refused("range()", lambda m, x: sum(x for _ in range(x.argmax())), rf"\(__index__\) .* {DATA}")
refused("in", lambda m, x: x if 3.0 in x else -x, rf"\(__contains__\) .* {DATA}")
refused("tolist", lambda m, x: x * x.tolist()[0][0], rf"\(tolist\) .* {DATA}")
refused("mask of activations", lambda m, x: x[x > 0], rf"\(getitem\) .* {DATA}")
refused("nonzero", lambda m, x: x.nonzero(), rf"\(nonzero\) .* {DATA}")
refused("negative step", lambda m, x: x[:, ::-1], "ValueError: step must be greater than zero")
refused("view as another dtype", lambda m, x: x.view(torch.int64), "reinterprets the bits")
refused("t_", lambda m, x: x.t_(), "changes a tensor's shape in place")
refused("unsqueeze_", lambda m, x: x.unsqueeze_(1)[:, 0], "changes a tensor's shape in place")
two_outs = lambda m, x: torch.max(x, 1, out=(torch.empty(3), torch.empty(3, dtype=int)))
refused("out= of two", two_outs, "several tensors as `out=` are not followed")
refused("add_ to a view", lambda m, x: (x[:, :2].add_(x[:, 2:]), x)[1], INPLACE)
refused("mul_ of a view", lambda m, x: (x.contiguous().mul_(m.g), x)[1], INPLACE, g=parameter(4))
refused("zero_ of a view", lambda m, x: (x[:, :2].zero_(), x)[1], INPLACE)
refused("setitem of a view", lambda m, x: into(x.view(-1, 4), 0, 0) + x, "another tensor shares")
refused("zeros through a view", zeros_through_a_view, STALE)
refused("view of what is written", view_of_what_is_written, STALE)
refused("buffer through a view", buffer_through_a_view, STALE, k=buffer(4))
refused(
    "parameter in place", lambda m, x: x * m.g.data.abs_(), "is changed in place", g=parameter(4)
)
TRANSFORMED = "the parameter `w` is transformed by `{}` before it is used as a weight"
weight = {"w": parameter(4, 4)}
refused("product of weights", lambda m, x: x @ (m.w @ m.w), TRANSFORMED.format("matmul"), **weight)
refused("sum of weights", lambda m, x: x @ (m.w + m.w.T), TRANSFORMED.format("add"), **weight)
refused("weight plus 1", lambda m, x: x * (1 + m.w[0]), TRANSFORMED.format("add"), **weight)
refused("custom operator", lambda m, x: torch.ops.aten.relu(x), r"\(relu\) .* in no table")
refused("vmap", lambda m, x: torch.vmap(torch.relu)(x), "no visible operation computed")


class Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).T


def symmetric() -> nn.Module:
    layer = parametrize.register_parametrization(nn.Linear(4, 4), "weight", Symmetric())
    return nn.Sequential(nn.Linear(3, 4), layer)


REMOVE = "parametrize.remove_parametrizations or torch.nn.utils.remove_weight_norm"
samples = lambda n: torch.randn(n, 3)
for form, build in {
    "weight norm, by hook": part(normed_layer, nn.utils.weight_norm),
    "weight norm, parametrized": part(normed_layer, parametrizations.weight_norm),
    "orthogonal": part(normed_layer, parametrizations.orthogonal),
    "parametrization": symmetric,
}.items():
    REFUSED[form] = (build, samples, f"is transformed by .* before .*{REMOVE}")
script = "is a TorchScript module, whose operations cannot be seen"
build = seq(L(3, 4), lambda: torch.jit.script(nn.ReLU()), L(4, 2))
REFUSED["TorchScript"] = (build, samples, f"`1` {script}")
build = seq(part(nn.Embedding, 5, 4, max_norm=1.0), Flat, L(8, 2))
REFUSED["max_norm"] = (build, words, r"`0` \(embedding\) .* max_norm rewrites the embedding")
build = net(lambda m, x: m.e(x, per_sample_weights=x.double()), e=E4(mode="sum"))
REFUSED["per_sample_weights"] = (build, words, "per_sample_weights are not followed")
