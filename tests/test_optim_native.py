"""Steps by passes in C: those of torch's operations in blocks."""

import copy

import pytest
import torch
from torch import nn

import pathspace as ps
from cases import CASES, Case, conv, mlp
from natives import needs_compiler, torch_only
from optimizers import KINDS, apart, assert_identical, backward, setting, snapshot, train
from pathspace.optim import GSGD, BalancedSGD, PathSGD
from pathspace.optim.optimizer import InvariantOptimizer

pytestmark = needs_compiler
SPACES = {
    "GSGD": (GSGD, {}),
    "GSGD, largest": (GSGD, {"skeleton": "largest"}),
    "GSGD, additive": (GSGD, {"roots": "additive"}),
    "GSGD, paper": (GSGD, {"roots": "additive", "metric": "paper"}),
    "GSGD, decay": (GSGD, {"bp_decay": (0.01, 0.02)}),
    "PathSGD": (PathSGD, {}),
    "PathSGD, p = 1": (PathSGD, {"p": 1.0, "every": 2}),
    "BalancedSGD": (BalancedSGD, {}),
}
SETTINGS = {
    "plain": {},
    "decay": {"weight_decay": 0.1},
    "maximize": {"maximize": True, "weight_decay": 0.1},
}
# Single parameters of these have sums that one pass cannot write.
UNUSUAL = ("mlp width one", "grouped, depthwise, transposed")
RATES = {GSGD: 1e-3, PathSGD: 1e-4, BalancedSGD: 1e-3}


@pytest.fixture
def natives(monkeypatch):
    """Counts the steps that were taken by a pass in C."""
    seen, update = [], InvariantOptimizer._update_natively

    def counted(self, batch, *others):
        seen.append(batch)
        update(self, batch, *others)

    monkeypatch.setattr(InvariantOptimizer, "_update_natively", counted)
    return seen


def trained(case, make, options, steps=3, dtype=torch.float64, change=lambda model: None):
    """The weights after some steps."""
    model, x = case.make()
    model, x = model.to(dtype).train(), x.to(dtype)
    change(model)
    network = ps.trace(model, x, streams="shared")
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = make(parameters, RATES[make], network=network, **options)
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return snapshot(model), optimizer


def both(*args, **kwargs):
    """The weights after steps by passes in C, and in blocks."""
    found = trained(*args, **kwargs)[0]
    with torch_only():
        return found, trained(*args, **kwargs)[0]


@pytest.mark.parametrize("together", [True, False], ids=["end to end", "one by one"])
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_steps_are_those_of_blocks(case, space, together, monkeypatch, natives):
    if not together:
        apart(monkeypatch)
    make, options = SPACES[space]
    torch.testing.assert_close(*both(case, make, options), rtol=1e-9, atol=1e-11)
    if together or case.name not in UNUSUAL:
        assert natives, "no step was taken by a pass in C"


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("make", [GSGD, PathSGD, BalancedSGD], ids=lambda make: make.__name__)
def test_signs_and_decays_too(make, settings, monkeypatch):
    apart(monkeypatch)
    found = both(CASES[3], make, SETTINGS[settings])
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("together", [True, False], ids=["end to end", "one by one"])
@pytest.mark.parametrize("make", [GSGD, PathSGD, BalancedSGD], ids=lambda make: make.__name__)
def test_large_layers_in_single_precision(make, together, monkeypatch, natives):
    if not together:
        apart(monkeypatch)
    case = Case("wide", lambda: mlp(40, 300, 200, 3, bias=True), (40,))
    found = trained(case, make, {}, dtype=torch.float32, change=smaller)[0]
    expected = trained(case, make, {}, change=smaller)[0]
    for name, weight in found.items():
        torch.testing.assert_close(weight.double(), expected[name], rtol=1e-3, atol=1e-4)
    assert natives


def smaller(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.1)


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_frozen_weights(frozen, monkeypatch, natives):
    apart(monkeypatch)

    def freeze(model):
        list(model.parameters())[frozen].requires_grad_(False)

    torch.testing.assert_close(*both(CASES[12], GSGD, {}, change=freeze), rtol=1e-9, atol=1e-11)
    assert natives


def test_channels_last(monkeypatch, natives):
    apart(monkeypatch)
    case = Case("", lambda: conv(3), (2, 4, 4))

    def reorder(model):
        model.to(memory_format=torch.channels_last)

    torch.testing.assert_close(*both(case, GSGD, {}, change=reorder), rtol=1e-9, atol=1e-11)
    assert natives


@pytest.mark.parametrize("missing", [0, 2, 5])
def test_missing_gradients(missing, monkeypatch):
    apart(monkeypatch)
    kind = next(kind for kind in KINDS if kind.name == "GSGD")
    results = []
    for is_native in (True, False):
        with torch_only(not is_native):
            model, optimizer = setting(kind)
            train(model, optimizer, [0])
            backward(model, 1)
            list(model.parameters())[missing].grad = None
            optimizer.step()
            train(model, optimizer, [2])
            results.append(snapshot(model))
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


def test_groups_with_settings_of_their_own():
    results = []
    for is_native in (True, False):
        model, x = CASES[10].make()
        network = ps.trace(model, x)
        first, *others = model.parameters()
        groups = [{"params": [first], "lr": 1e-2, "weight_decay": 0.1}, {"params": others}]
        with torch_only(not is_native):
            optimizer = GSGD(groups, 1e-3, network=network, bp_decay=0.01)
            for rate in (1e-2, 3e-3):
                optimizer.param_groups[0]["lr"] = rate
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
        results.append(snapshot(model))
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("place", range(7))
@pytest.mark.parametrize("together", [True, False], ids=["end to end", "one by one"])
def test_a_gradient_that_is_not_finite_costs_the_step(place, together, monkeypatch):
    if not together:
        apart(monkeypatch)
    kind = next(kind for kind in KINDS if kind.name == "GSGD")
    model, optimizer = setting(kind)
    train(model, optimizer, [0])
    before, space = snapshot(model), copy.deepcopy(optimizer.space.state_dict())
    backward(model, 1)
    list(model.parameters())[place].grad.view(-1)[-1] = float("nan")
    with pytest.warns(RuntimeWarning, match="not finite"):
        optimizer.step()
    assert_identical(snapshot(model), before)
    assert_identical(optimizer.space.state_dict(), space)


def test_autograd_notices_that_weights_have_moved():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = GSGD(model.parameters(), 0.1, network=ps.trace(model, torch.ones(1, 3)))
    loss = model(torch.ones(2, 3)).square().sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_weights_that_move_to_other_memory_are_followed():
    case = CASES[10]
    results = []
    for moves in (True, False):
        model, x = case.make()
        optimizer = GSGD(model.parameters(), 1e-2, network=ps.trace(model, x))
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            if moves:
                for parameter in model.parameters():
                    parameter.data = parameter.data.clone()
        results.append(snapshot(model))
    assert_identical(*results)
