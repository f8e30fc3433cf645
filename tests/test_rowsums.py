"""Sums of the squares of what enters units: in C and by torch, from weights that stay or move."""

import copy
import pickle

import pytest
import torch
from torch import nn

import pathspace as ps
from natives import needs_compiler, torch_only
from pathspace.optim.rowsums import EnteringSums


class Gain(nn.Module):
    """One number for all units: a weight without axes."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return self.gain * x


def edges_and_weights(dtype=torch.float64):
    """A convolution, a number, groups, a transposed one, whose rows are inputs, a linear map."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False),
        nn.ReLU(),
        Gain(),
        nn.Conv2d(4, 6, 3, padding=1, groups=2, bias=False),
        nn.ReLU(),
        nn.ConvTranspose2d(6, 3, 2, bias=False),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(75, 5, bias=False),
    ).to(dtype)
    network = ps.trace(model, torch.ones(1, 2, 4, 4, dtype=dtype))
    return network.edges, [network.state()[edge.parameter].detach() for edge in network.edges]


def expected(edges, weights, scales):
    """Every weight by itself."""
    parts = scales.split([edge.source_scale.numel() for edge in edges])
    result = []
    for edge, weight, part in zip(edges, weights, parts, strict=True):
        product = weight.double().square() * part.view(edge.source_scale.shape)
        axes = [d for d, size in enumerate(edge.target_scale.shape) if size == 1]
        result.append(product.sum(axes).reshape(-1) if axes else product.reshape(-1))
    return torch.cat(result)


def scales_of(edges, seed):
    size = sum(edge.source_scale.numel() for edge in edges)
    return torch.rand(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("is_native", [pytest.param(True, marks=needs_compiler), False])
def test_they_are_sums_over_what_enters(is_native):
    edges, weights = edges_and_weights()
    sums = EnteringSums(edges)
    with torch_only(not is_native):
        for seed in range(2):  # the second time, everything is there already
            scales = scales_of(edges, seed)
            torch.testing.assert_close(sums(weights, scales), expected(edges, weights, scales))


@needs_compiler
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_weights_may_change_and_move(copied):
    edges, weights = edges_and_weights()
    sums, scales = EnteringSums(edges), scales_of(edges, 0)
    sums(weights, scales)
    weights[0].mul_(2)
    torch.testing.assert_close(sums(weights, scales), expected(edges, weights, scales))
    moved = [weight.clone().add_(1) for weight in weights]
    torch.testing.assert_close(sums(moved, scales), expected(edges, moved, scales))
    torch.testing.assert_close(copied(sums)(weights, scales), expected(edges, weights, scales))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_coarse_weights_are_squared_in_float32(dtype):
    edges, weights = edges_and_weights(torch.float32)
    coarse, scales = [weight.to(dtype) for weight in weights], scales_of(edges, 0)
    found = EnteringSums(edges)(coarse, scales)
    torch.testing.assert_close(found, expected(edges, coarse, scales), rtol=1e-5, atol=0)
