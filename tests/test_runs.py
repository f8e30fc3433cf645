"""Runs of equal rows: leaving them out changes no sum."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pathspace as ps
from cases import Case
from pathspace.flow import path_slopes
from pathspace.flow.runs import Run, Window, aligned, whole
from pathspace.flow.sums import Sums
from pathspace.flow.values import Flow

GENERATOR = torch.Generator().manual_seed(0)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize(("size", "dilation"), [(1, 1), (2, 1), (3, 1), (2, 3), (4, 2)])
def test_windows_over_all_runs(size, dilation, stride):
    """A convolution of the short axis is that of the long one, for every place of the run."""
    kernel = torch.rand(1, 1, size, dtype=torch.float64, generator=GENERATOR)
    shorter = 0
    for start, extra, rest, padding in itertools.product(range(3), range(12), range(3), range(4)):
        short = torch.rand(1, 1, start + 1 + rest, dtype=torch.float64, generator=GENERATOR)
        flow = Flow(short, 0.0, True, (Run(start, extra),))
        long = flow.whole().tensor
        assert long.shape[-1] == short.shape[-1] + extra
        if long.shape[-1] + 2 * padding < dilation * (size - 1) + 1:
            continue
        options = (None, stride, padding, dilation)
        window = Window(dilation * (size - 1) + 1, stride, padding)
        found = flow.through([window], lambda t: F.conv1d(t, kernel, *options))  # noqa: B023
        expected = F.conv1d(long, kernel, *options)
        torch.testing.assert_close(found.whole().tensor, expected, rtol=1e-14, atol=0)
        shorter += found.tensor.numel() < expected.numel()
    assert shorter > 10


def test_sums_of_values_with_different_runs():
    runs = [Run(start, extra) for start in range(3) for extra in range(9 - start)]
    for one, other in itertools.product(runs, runs):
        tensors = [torch.rand(2, 9 - run.extra, generator=GENERATOR) for run in (one, other)]
        bias = torch.rand(2, 1, generator=GENERATOR)
        (a, b, c), common = aligned([*tensors, bias], [(one,), (other,), ()])
        expected = whole(tensors[0], (one,)) + whole(tensors[1], (other,)) + bias
        torch.testing.assert_close(whole(a + b + c, common), expected)
        both = max(one.start, other.start), min(one.stop, other.stop)
        assert common[0].extra == max(0, both[1] - both[0] - 1)


class Residual(nn.Module):
    """A block with a shortcut, and another whose shortcut has a stride."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(2, 3, 3, padding=1)
        self.a, self.norm = nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3)
        self.b, self.short = nn.Conv2d(3, 4, 5, 2, 2), nn.Conv2d(3, 4, 1, 2)
        self.scale = nn.Parameter(torch.randn(4, 1, 1))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = self.stem(x).relu()
        x = x - self.norm(self.a(x)).relu()
        x = self.b(x) / 2 + self.short(x) * self.scale
        return self.head(x.mean((2, 3)))


class Dense(nn.Module):
    """Values with different runs side by side, and a constant that is different everywhere."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(5, 2, 3, padding="same")
        self.register_buffer("places", torch.randn(1, 2, 21, 17))
        self.pool, self.head = nn.AvgPool2d(3, 2, 1, ceil_mode=True), nn.Conv2d(7, 1, 3)

    def forward(self, x):
        y = torch.cat([x, self.a(x).relu()], 1)
        z = torch.cat((y, self.b(y).relu() + self.places), dim=-3)
        return self.head(self.pool(z)), torch.cat([y, y], 2).sum(-1)


IMAGES = {
    "residual": (Residual, (2, 21, 18)),
    "dense": (Dense, (2, 21, 17)),
    "pools": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, (7, 4), (2, 1), (3, 2)), nn.MaxPool2d(3, 2, 1, ceil_mode=True),
            nn.LeakyReLU(-2.0), nn.Conv2d(3, 3, 3, padding=2, dilation=2, groups=3), nn.PReLU(3),
            nn.AvgPool2d(2, 2, 1, count_include_pad=False), nn.AdaptiveMaxPool2d(2), nn.Flatten(),
            nn.Linear(12, 2),
        ),
        (2, 30, 26),
    ),
    "upsampled": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 2, 3, padding=1), nn.ReLU(), nn.Upsample(scale_factor=2),
            nn.Conv2d(2, 1, 3, padding=1), nn.ConstantPad2d(1, 2.0), nn.Conv2d(1, 1, 3),
            nn.ConvTranspose2d(1, 1, 2),
        ),
        (2, 9, 9),
    ),
    "sequence": (
        lambda: nn.Sequential(
            nn.Conv1d(2, 3, 4, 3, 2), nn.BatchNorm1d(3), nn.ReLU(), nn.MaxPool1d(2),
            nn.Conv1d(3, 2, 3, padding=1), nn.Flatten(), nn.Linear(14, 2),
        ),
        (2, 40),
    ),
    "volume": (
        lambda: nn.Sequential(
            nn.Conv3d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(2, 1, (3, 2, 1))
        ),
        (1, 12, 9, 10),
    ),
}  # fmt: skip


@pytest.fixture(params=IMAGES)
def network(request):
    make, shape = IMAGES[request.param]
    model, x = Case(request.param, make, shape).make()
    return ps.trace(model, x[:1])


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("p", [1.0, 2.5, math.inf])
@pytest.mark.parametrize("biases", [True, False])
def test_norms_are_those_with_every_row_written_down(network, p, biases, monkeypatch):
    if math.isinf(p) and any("transpose" in node.operation for node in network.program):
        pytest.skip("refused: the largest path of a transposed convolution has no rule")
    found = ps.path_norm(network, p, per_output=True, biases=biases)
    monkeypatch.setattr(Sums, "WITH_RUNS", frozenset())
    expected = ps.path_norm(network, p, per_output=True, biases=biases)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


def test_slopes_are_those_with_every_row_written_down(network, monkeypatch):
    found = path_slopes(network, p=2)
    monkeypatch.setattr(Sums, "WITH_RUNS", frozenset())
    expected = path_slopes(network, p=2)
    assert found.keys() == expected.keys()
    for name, slope in found.items():
        torch.testing.assert_close(slope.dense(), expected[name].dense(), rtol=1e-11, atol=0)


def test_most_rows_of_a_large_image_are_left_out(monkeypatch):
    sizes = []
    through = Flow.through

    def seen(self, windows, function):
        result = through(self, windows, function)
        sizes.append(tuple(result.tensor.shape[2:]))
        return result

    monkeypatch.setattr(Flow, "through", seen)
    layers = [nn.Conv2d(1, 1, 3, padding=1) for _ in range(3)]
    network = ps.trace(nn.Sequential(*layers), torch.ones(1, 1, 100, 80))
    ps.path_norm(network, 1)
    assert sizes == [(3, 3), (5, 5), (7, 7)]  # one more on either side with every kernel
