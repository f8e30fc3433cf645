"""Path-SGD finds the factors of large kernels while it steps them: no copy of them is made."""

from __future__ import annotations

import copy
import math
import pickle
import sys
from unittest import mock

import pytest
import torch
from torch import nn

import pathspace as ps
from natives import needs_compiler, torch_only
from pathspace.bench import peak_memory
from pathspace.flow import layers, path_slopes
from pathspace.flow.powers import Scratch
from pathspace.flow.products import Later, Products
from pathspace.flow.raising import Raising
from pathspace.flow.unfolding import Windows
from pathspace.optim import PathSGD, sheets
from pathspace.optim.spaces import PathSpace

pytestmark = needs_compiler
EXACT = {"rtol": 1e-12, "atol": 0.0}


def network_of(norms=True, dtype=torch.float64, width=12, seed=0):
    """Convolutions whose kernels are larger than what they read and write."""
    torch.manual_seed(seed)
    parts, channels = [], 2
    for stride in (1, 2, 2):
        parts.append(nn.Conv2d(channels, width, 3, stride, 1, bias=not norms))
        parts += [nn.BatchNorm2d(width)] * norms + [nn.ReLU()]
        channels = width
    parts += [nn.Conv2d(width, width, (2, 1)), nn.ReLU(), nn.Flatten()]
    model = nn.Sequential(*parts, nn.Linear(2 * width, 3)).to(dtype).train()
    return model, torch.randn(5, 2, 8, 8, dtype=dtype)


@pytest.fixture
def found(monkeypatch):
    """Let small kernels be found later too; the steps in which some were, by their weights."""
    monkeypatch.setattr(layers, "WRITTEN", 0)
    seen, step = [], Later.step

    def counted(self, job):
        seen.append(tuple(self.products.weight.shape))
        step(self, job)

    monkeypatch.setattr(Later, "step", counted)
    return seen


def trained(model, x, make, steps=3, groups=None):
    """A model after some steps, and its optimizer."""
    model = copy.deepcopy(model)
    optimizer = make(groups(model) if groups else model.parameters(), ps.trace(model, x))
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return model.state_dict(), optimizer


def at_once(monkeypatch):
    """Have all factors written down before a step."""
    monkeypatch.setattr(layers, "LARGE", 0)
    monkeypatch.setattr(PathSpace, "widest", lambda self: 0.0)
    monkeypatch.setattr(
        PathSpace, "is_wide", property(lambda self: False, lambda self, value: None)
    )


SETTINGS = {
    "plain": {},
    "p = 1": {"p": 1},
    "p = 4": {"p": 4},
    "decay, maximize": {"weight_decay": 0.1, "maximize": True},
}


@pytest.mark.parametrize("together", [True, False], ids=["end to end", "one by one"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("norms", [True, False])
@pytest.mark.parametrize("settings", SETTINGS)
def test_steps_are_those_with_factors_written_down(
    settings, norms, dtype, together, monkeypatch, found
):
    if not together:
        monkeypatch.setattr(sheets, "SMALL", 0)
    model, x = network_of(norms, dtype)

    def make(parameters, network):
        return PathSGD(parameters, 1e-4, network=network, **SETTINGS[settings])

    later = trained(model, x, make)[0]
    assert together or len(found) >= 3
    assert not together or not found  # small parameters are laid end to end, and so are factors
    count = len(found)
    at_once(monkeypatch)
    torch.testing.assert_close(later, trained(model, x, make)[0], **EXACT)
    assert len(found) == count
    if dtype == torch.float64:
        with torch_only():
            torch.testing.assert_close(later, trained(model, x, make)[0], rtol=1e-9, atol=1e-11)


def test_groups_frozen_weights_and_missing_gradients(monkeypatch, found):
    monkeypatch.setattr(sheets, "SMALL", 0)
    model, x = network_of()
    model[3].weight.requires_grad_(False)
    model.unused = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def groups(model):
        rest = [p for n, p in model.named_parameters() if n != "6.weight" and p.requires_grad]
        return [{"params": rest}, {"params": [model[6].weight], "lr": 1e-3, "weight_decay": 0.2}]

    def make(parameters, network):
        return PathSGD(parameters, 1e-4, network=network)

    later = trained(model, x, make, groups=groups)[0]
    assert found
    assert torch.equal(later["3.weight"], model[3].weight)
    assert not torch.equal(later["6.weight"], model[6].weight)
    at_once(monkeypatch)
    torch.testing.assert_close(later, trained(model, x, make, groups=groups)[0], **EXACT)


@pytest.mark.parametrize("options", [{"every": 2}, {"momentum": 0.9}], ids=str)
def test_factors_that_outlive_a_pass_are_written_down(options, monkeypatch, found):
    """Those of several steps, and of rules that are no single pass."""
    monkeypatch.setattr(sheets, "SMALL", 0)
    model, x = network_of()
    trained(model, x, lambda p, network: PathSGD(p, 1e-4, network=network, **options))
    assert not found


def test_factors_that_may_be_large_are_written_down(monkeypatch, found):
    """Then the weights are looked at after the step, and all factors before it."""
    monkeypatch.setattr(sheets, "SMALL", 0)
    model, x = network_of(norms=False, dtype=torch.float32)
    with torch.no_grad():
        model[2].weight[0] *= 1e-7
        model[2].bias[0] *= 1e-7

    def make(parameters, network):
        return PathSGD(parameters, 1e-12, network=network)

    later = trained(model, x, make, steps=1)[0]
    assert 0 < len(found) < sum(isinstance(module, nn.Conv2d) for module in model)
    assert all(bool(tensor.isfinite().all()) for tensor in later.values())
    at_once(monkeypatch)
    torch.testing.assert_close(later, trained(model, x, make, steps=1)[0], rtol=1e-6, atol=0)


@pytest.mark.parametrize("geometry", [(9, 7, 4, 1), (20, 5, 3, 2), (6, 6, 2, 1)])
@pytest.mark.parametrize("zeros", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("power", [-0.5, -1.0, -2.0])
def test_bounds_hold(geometry, zeros, power):
    """What is said of powers before they are found."""
    out, channels, size, stride = geometry
    generator = torch.Generator().manual_seed(out)
    x, gradient = (
        10 ** torch.randn(1, n, s, s, generator=generator)
        for n, s in ((channels, size), (out, (size + 1) // stride))
    )
    for tensor in (x, gradient):
        tensor[torch.rand(tensor.shape, generator=generator) < zeros] = 0
    weight = torch.randn(out, channels, 3, 3, generator=generator)
    windows = Windows(tuple(x.shape), (3, 3), (stride, stride), (1, 1), (1, 1))
    gradient = gradient[:, :, : windows.places[0], : windows.places[1]]
    with torch.no_grad():
        products = Products.of(windows, x, weight, 2.0, Scratch(torch.float32))
        raising = Raising(power, 0.7, most=math.inf)
        slope = products.later(gradient, raising)
        written = slope.later.write()
    assert not slope.factors
    assert written.largest <= slope.largest * (1 + 1e-6)
    assert written.total <= slope.total * (1 + 1e-5)
    assert float(written.factors[0].amax()) == written.largest
    if zeros < 1:
        assert products.later(gradient, Raising(power, 0.7, most=slope.largest / 2)) is None


def test_powers_that_no_float_holds_are_written_down():
    x, weight = torch.ones(1, 4, 2, 2).double(), torch.randn(6, 4, 3, 3).double()
    windows = Windows((1, 4, 2, 2), (3, 3), (1, 1), (1, 1), (1, 1))
    with torch.no_grad():
        products = Products.of(windows, x, weight, 2.0, Scratch(torch.float64))
        for size in (1e-200, 1e-320):
            gradient = torch.full((1, 6, 2, 2), size, dtype=torch.float64)
            assert products.later(gradient, Raising(-2.0, most=1e70)) is None


def test_what_is_no_number_is_written_down():
    x, weight = torch.ones(1, 4, 2, 2), torch.randn(6, 4, 3, 3)
    windows = Windows((1, 4, 2, 2), (3, 3), (1, 1), (1, 1), (1, 1))
    for bad in (math.nan, math.inf, 1e38):
        gradient = torch.ones(1, 6, 2, 2)
        gradient[0, 1] = bad
        with torch.no_grad():
            products = Products.of(windows, x, weight, 2.0, Scratch(torch.float32))
            assert products.later(gradient, Raising(-1.0, most=math.inf)) is None


def test_slopes_that_come_later_are_the_same(found):
    model, x = network_of(norms=False)
    network = ps.trace(model, x)
    plain = path_slopes(network, power=-1.0)
    later = path_slopes(network, power=-1.0, most=math.inf)
    assert plain.keys() == later.keys()
    assert sum(slope.later is not None for slope in later.values()) >= 3
    for name, slope in later.items():
        whole = slope if slope.later is None else slope.later.write()
        torch.testing.assert_close(whole.dense(), plain[name].dense(), **EXACT)


def test_optimizers_are_copied_where_a_step_was_interrupted(monkeypatch, found):
    """What finds factors holds memory of C, which cannot be copied."""
    monkeypatch.setattr(sheets, "SMALL", 0)
    model, x = network_of()
    optimizer = PathSGD(model.parameters(), 1e-4, network=ps.trace(model, x))
    model(x).square().mean().backward()
    with monkeypatch.context() as patched:
        patched.setattr(PathSGD, "_update_natively", mock.Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            optimizer.step()
    assert optimizer.space._later
    assert not pickle.loads(pickle.dumps(optimizer)).space._later
    assert not copy.deepcopy(optimizer).space._later
    optimizer.step()
    assert not optimizer.space._later
    assert len(found) >= 3


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is measured on Linux only")
def test_a_step_takes_less_than_a_copy_of_the_weights():
    model = nn.Sequential(
        *(part for _ in range(6) for part in (nn.Conv2d(512, 512, 3, padding=1), nn.ReLU())),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, 3),
    )
    x = torch.randn(2, 512, 4, 4)
    optimizer = PathSGD(model.parameters(), 1e-4, network=ps.trace(model, x))
    model(x).square().mean().backward()
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    assert peak_memory(optimizer.step) < 0.6 * size
