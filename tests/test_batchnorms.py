"""Batch norms that are folded together: each as if it were alone."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

import pathspace as ps
from natives import torch_only
from pathspace.absorption import Absorption
from pathspace.flow import path_slopes
from pathspace.penalties import PathNormPenalty


def norm(channels, **options):
    """A batch norm with statistics and parameters that are not those of the start."""
    found = nn.BatchNorm2d(channels, **options).double().eval()
    generator = torch.Generator().manual_seed(channels)
    for name, tensor in found.state_dict().items():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand(channels, generator=generator).add_(0.3 + len(name) / 20))
    return found


def convolution(*channels, **options):
    return nn.Conv2d(*channels, 3, padding=1, **options).double().eval()


class Mixed(nn.Module):
    """Batch norms of several kinds: their own ε, without weight and bias, behind biases."""

    def __init__(self, norms):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([convolution(2, 3), convolution(3, 4, bias=False)])
        self.layers.append(convolution(4, 2))
        self.norms = nn.ModuleList(norms)

    def forward(self, x):
        for layer, normalize in zip(self.layers, self.norms, strict=True):
            x = normalize(layer(x)).relu()
        return x


def mixed():
    return Mixed([norm(3, eps=0.1), norm(4, affine=False), norm(2, eps=1e-3)])


def fused(model):
    pairs = zip(model.layers, model.norms, strict=True)
    layers = [[fuse_conv_bn_eval(*pair), nn.ReLU()] for pair in pairs]
    return nn.Sequential(*(part for pair in layers for part in pair))


@pytest.mark.parametrize("p", [1, 2, 3.5, float("inf")])
@pytest.mark.parametrize("biases", [True, False])
def test_norms_are_those_of_the_fused_network(p, biases):
    x, model = torch.ones(1, 2, 4, 4, dtype=torch.float64), mixed()
    found, expected = (
        ps.path_norm(ps.trace(m, x), p, biases=biases) for m in (model, fused(model))
    )
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("is_native", [True, False])
def test_slopes_that_were_raised_on_the_way_are_powers_of_the_others(is_native):
    network = ps.trace(mixed(), torch.ones(1, 2, 4, 4, dtype=torch.float64))
    with torch_only(not is_native):
        plain, raised = (path_slopes(network, p=2, power=power) for power in (1.0, -0.5))
    assert (
        plain.keys()
        == raised.keys()
        == {n for n, _ in mixed().named_parameters()}
        - {
            "layers.0.bias",  # part of the folded bias
            "layers.2.bias",
        }
    )
    for name, slope in plain.items():
        torch.testing.assert_close(raised[name].dense(), slope.dense().pow(-0.5))


class Twice(nn.Module):
    """One batch norm behind two layers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = (convolution(2, 2, bias=False) for _ in range(2))
        self.norm = norm(2)

    def forward(self, x):
        return self.norm(self.second(self.norm(self.first(x)).relu())).relu()


def test_slopes_of_a_batch_norm_that_is_used_twice_are_raised_as_sums():
    x = torch.ones(1, 2, 4, 4, dtype=torch.float64)
    shared, apart = Twice(), Mixed([norm(2), norm(2), norm(2)])
    shared_slopes = path_slopes(ps.trace(shared, x), p=2, power=-1.0)
    apart.layers = nn.ModuleList([shared.first, shared.second])
    apart.norms = nn.ModuleList([shared.norm, copy.deepcopy(shared.norm)])
    slopes = path_slopes(ps.trace(apart, x), p=2)
    for name in ("weight", "bias"):
        both = slopes[f"norms.0.{name}"].dense() + slopes[f"norms.1.{name}"].dense()
        torch.testing.assert_close(shared_slopes[f"norm.{name}"].dense(), 1 / both)


class Unread(nn.Module):
    """A batch norm that nothing comes of."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.read, self.unread = convolution(2, 2), norm(2), norm(2)

    def forward(self, x):
        x = self.layer(x)
        self.unread(x)
        return self.read(x)


def test_a_batch_norm_that_no_output_depends_on_has_no_slopes():
    network = ps.trace(Unread(), torch.ones(1, 2, 4, 4, dtype=torch.float64))
    assert {name.split(".")[0] for name in path_slopes(network)} == {"layer", "read"}


# Layers and batch norms that are used several times ----------------------------------------------


class Wired(nn.Module):
    """Modules, and how values go through them."""

    def __init__(self, wires, *parts):
        super().__init__()
        self.wires, self.parts = wires, nn.ModuleList(parts)

    def forward(self, x):
        return self.wires(*self.parts, x)


def in_a_row(*names):
    """Modules by name one behind the other; "." is a ReLU, "-" dropout."""

    def wires(a, b, n, k, x):
        parts = {"a": a, "b": b, "n": n, "k": k, ".": torch.relu, "-": nn.functional.dropout2d}
        for name in names:
            x = parts[name](x, training=False) if name == "-" else parts[name](x)
        return x

    return wires


def side_by_side(a, b, n, k, x):
    z = a(x)
    return n(z).relu() + k(z).relu()


def around(a, b, n, k, x):
    """The layer's output is read by another layer too, whose weights were met before."""
    z = a(b(x).relu())
    return n(z).relu() + b(z).relu()


# What is wired; the same with the batch norms fused into copies of the layers, and these copies.
WIRINGS = {
    "a norm twice": (in_a_row(*"an.bn."), ("an", "bn")),
    "a layer twice, two norms": (in_a_row(*"an.ak."), ("an", "ak")),
    "a layer twice, the first with a norm": (in_a_row(*"an.a."), ("an", "a")),
    "a layer twice, the second with a norm": (in_a_row(*"a.an."), ("a", "an")),
    "both twice": (in_a_row(*"an.an."), ("an", "an")),
    "a norm three times, dropout between": (in_a_row(*"a-n.bn.a-k."), ("an", "bn", "ak")),
    "two norms behind one layer": (side_by_side, None),
}


def wired(name):
    """The network, and that with fused layers."""
    torch.manual_seed(1)
    parts = {"a": convolution(2, 2), "b": convolution(2, 2), "n": norm(2), "k": norm(2, eps=0.2)}
    with torch.no_grad():
        parts["k"].running_mean.mul_(-2)
    wires, pairs = WIRINGS[name]

    def fuse(pair):
        layer = parts[pair[0]]
        return fuse_conv_bn_eval(layer, parts[pair[1]]) if pair[1:] else copy.deepcopy(layer)

    if pairs is None:
        fused = Wired(lambda a, b, x: a(x).relu() + b(x).relu(), fuse("an"), fuse("ak"))
    else:
        fused = nn.Sequential(*(part for pair in pairs for part in (fuse(pair), nn.ReLU())))
    return Wired(wires, *parts.values()), fused


@pytest.mark.parametrize("p", [1, 2, 3.5, float("inf")])
@pytest.mark.parametrize("name", WIRINGS)
def test_what_is_used_twice_has_the_norm_of_its_fused_form(name, p):
    """Biases in front of a batch norm that was used twice counted by themselves, and those of a
    layer that was used twice did not count where no batch norm was behind it."""
    x = torch.randn(2, 2, 4, 4, dtype=torch.float64)
    model, fused = wired(name)
    torch.testing.assert_close(model(x), fused(x))
    found, expected = (ps.path_norm(ps.trace(m, x), p) for m in (model, fused))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", WIRINGS)
def test_penalties_of_what_is_used_twice(name, exact):
    """Closed gradients are those of autograd, and values those of rescaled networks."""
    model, _ = wired(name)
    network = ps.trace(model, torch.ones(1, 2, 4, 4, dtype=torch.float64))
    state = ps.rescale(network, torch.linspace(0.5, 2, network.H, dtype=torch.float64))
    for penalty in (PathNormPenalty(network), ps.BasisPathPenalty(network, 0.3, 0.7, exact=exact)):
        parameters = network.parameters()
        expected = torch.autograd.grad(penalty(), list(parameters.values()), allow_unused=True)
        for (key, weight), gradient in zip(parameters.items(), expected, strict=True):
            found = penalty.gradients().get(key, torch.zeros_like(weight))
            gradient = torch.zeros_like(weight) if gradient is None else gradient
            torch.testing.assert_close(found, gradient, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(penalty(state).detach(), penalty().detach(), rtol=1e-9, atol=0)


def test_a_bias_that_is_read_elsewhere_too_stays_a_path_of_its_own():
    torch.manual_seed(1)
    model = Wired(around, convolution(2, 2), convolution(2, 2), norm(2), norm(2))
    network = ps.trace(model, torch.ones(1, 2, 4, 4, dtype=torch.float64))
    assert not Absorption.of(network).norms
    with torch.no_grad():
        before = ps.path_norm(network)
        model.parts[0].bias.mul_(-1)  # to which |b|^p does not matter
    torch.testing.assert_close(ps.path_norm(network), before, rtol=1e-12, atol=0)
