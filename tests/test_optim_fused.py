"""Steps compiled to one pass over every matrix: the same steps."""

import copy
import pickle

import pytest
import torch
from torch.optim.lr_scheduler import OneCycleLR

import pathspace as ps
from natives import torch_only
from optimizers import (
    KINDS,
    apart,
    assert_identical,
    backward,
    fill,
    setting,
    snapshot,
    stored,
    train,
)
from pathspace.errors import PathspaceError
from pathspace.optim import GSGD
from pathspace.optim.stepping import compiled_kernels, step_weights
from test_optimizer_integrations import fresh_compiler

__all__ = ["fresh_compiler"]


@pytest.fixture(autouse=True)
def compiled_by_torch():
    """Linear rules too, which are passes in C where these are possible."""
    with torch_only():
        yield


pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),  # torch's own compiler
]
NAMES = ("PathSGD", "PathAdam", "GSGD", "GSGD-momentum", "BalancedSGD-nesterov")
some_kinds = pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.name in NAMES], ids=lambda kind: kind.name
)


@some_kinds
def test_steps_are_those_of_blocks(kind, monkeypatch):
    if kind.name != "PathSGD":  # whose parameters stay together
        apart(monkeypatch)
    results = []
    for fused in (False, True):
        model, optimizer = setting(kind, fused=fused)
        train(model, optimizer, range(5))
        results.append((snapshot(model), stored(optimizer.state_dict()["state"])))
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("decay", "maximize"), [({"bp_decay": (0.1, 0.2)}, True), ({"weight_decay": 0.1}, False)]
)
def test_decays_and_signs_too(decay, maximize, monkeypatch):
    apart(monkeypatch)
    kind = next(kind for kind in KINDS if kind.name == "GSGD")
    results = []
    for fused in (False, True):
        model, optimizer = setting(kind, fused=fused, maximize=maximize, **decay)
        train(model, optimizer, range(3))
        results.append(snapshot(model))
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("cycle_momentum", [False, True])
def test_it_is_compiled_once_and_not_for_every_rate_and_momentum(cycle_momentum):
    kind = next(kind for kind in KINDS if kind.name == "GSGD-momentum")
    results, graphs = [], []
    for fused in (False, True):
        model, optimizer = setting(kind, fused=fused)
        schedule = OneCycleLR(optimizer, 0.1, total_steps=8, cycle_momentum=cycle_momentum)
        for number in range(6):
            train(model, optimizer, [number])
            schedule.step()
            graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
        results.append(snapshot(model))
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)
    assert graphs == [0] * 6 + [1] * 6


def test_a_resumed_run_is_the_uninterrupted_one_to_the_bit():
    kind = next(kind for kind in KINDS if kind.name == "GSGD-momentum")
    model, optimizer = setting(kind, fused=True)
    train(model, optimizer, range(2))
    twin, other = setting(kind, fused=True)
    twin.load_state_dict(copy.deepcopy(model.state_dict()))
    other.load_state_dict(stored(optimizer.state_dict()))
    for one, its in ((model, optimizer), (twin, other)):
        train(one, its, range(2, 4))
    assert_identical(snapshot(model), snapshot(twin))


def test_copies_and_pickles_are_fused_as_well():
    kind = next(kind for kind in KINDS if kind.name == "GSGD")
    model, optimizer = setting(kind, fused=True)
    train(model, optimizer, [0])
    both = pickle.loads(pickle.dumps((model, optimizer)))
    for number in (1, 2):
        train(model, optimizer, [number])
        train(*both, [number])
    assert both[1].fused
    assert_identical(snapshot(model), snapshot(both[0]))


def test_a_gradient_that_is_not_finite_costs_the_step():
    kind = next(kind for kind in KINDS if kind.name == "GSGD")
    model, optimizer = setting(kind, fused=True)
    train(model, optimizer, [0])
    before = snapshot(model)
    backward(model, 1)
    next(model.parameters()).grad.view(-1)[0] = float("nan")
    with pytest.warns(RuntimeWarning, match="not finite"):
        optimizer.step()
    assert_identical(snapshot(model), before)


def without_compiler(monkeypatch):
    """What ``torch.compile`` returns fails when it is called."""

    def fail(*args, **kwargs):
        def call(*args):
            raise torch._dynamo.exc.BackendCompilerFailed(fail, RuntimeError("no compiler"), None)

        return call

    monkeypatch.setattr(torch, "compile", fail)


def test_without_a_compiler_it_says_so(monkeypatch):
    without_compiler(monkeypatch)
    model = fill(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1)))
    model.double()
    optimizer = GSGD(
        model.parameters(), 0.1, network=ps.trace(model, torch.ones(1, 3).double()), fused=True
    )
    before = snapshot(model)
    model(torch.ones(2, 3).double()).sum().backward()
    with pytest.raises(PathspaceError, match="Leave fused out"):
        optimizer.step()
    assert_identical(snapshot(model), before)


def test_every_optimizer_compiles_for_itself():
    first, second = compiled_kernels(), compiled_kernels()
    assert first.step_weights is not second.step_weights is not step_weights
