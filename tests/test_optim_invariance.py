"""Training from w and from c·w: the same function all the way, and for torch's SGD not."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pathspace as ps
from cases import Concatenation, Residual, conv, mlp

OPTIMIZERS = {
    "PathSGD": (ps.optim.PathSGD, {"lr": 0.02}),
    "PathSGD, p = 1": (ps.optim.PathSGD, {"lr": 0.02, "p": 1.0}),
    "PathSGD, momentum, every 3": (ps.optim.PathSGD, {"lr": 0.01, "momentum": 0.9, "every": 3}),
    "PathAdagrad": (ps.optim.PathAdagrad, {"lr": 0.02}),
    "PathAdam": (ps.optim.PathAdam, {"lr": 0.005}),
    "GSGD": (ps.optim.GSGD, {"lr": 0.05}),
    "GSGD, largest": (ps.optim.GSGD, {"lr": 0.05, "skeleton": "largest"}),
    "GSGD, momentum": (ps.optim.GSGD, {"lr": 0.01, "momentum": 0.9}),
    "GSGD, Nesterov": (ps.optim.GSGD, {"lr": 0.01, "momentum": 0.9, "nesterov": True}),
    "GSGD, bp_decay": (ps.optim.GSGD, {"lr": 0.05, "bp_decay": 0.01}),
    "GSGD, additive": (ps.optim.GSGD, {"lr": 0.01, "roots": "additive"}),
    "GAdagrad": (ps.optim.GAdagrad, {"lr": 0.02}),
    "GAdam": (ps.optim.GAdam, {"lr": 0.005}),
    "BalancedSGD": (ps.optim.BalancedSGD, {"lr": 0.05}),
}


def norm_net():
    model = nn.Sequential(
        nn.Conv1d(2, 3, 3, padding=1), nn.BatchNorm1d(3, eps=1e-12), nn.ReLU(),
        nn.Conv1d(3, 4, 1), nn.BatchNorm1d(4, eps=1e-12), nn.ReLU(),
        nn.Flatten(), nn.Linear(12, 3),
    )  # fmt: skip
    return model.train()


NETWORKS = {
    "mlp": (lambda: mlp(6, 9, 5, 7, 3, bias=True), (6,), "pinned"),
    "conv": (lambda: conv(3), (2, 4, 4), "pinned"),
    "residual": (Residual, (3,), "shared"),
    "concatenation": (Concatenation, (3,), "pinned"),
    "batch norm": (norm_net, (2, 3), "pinned"),
}


def train(make, model, network, data):
    optimizer = make(model, network)
    for x in data:
        optimizer.zero_grad()
        output = model(x)
        F.mse_loss(output, x.reshape(len(x), -1)[:, : output.shape[1]].sin()).backward()
        optimizer.step()
    with torch.no_grad():
        return model(data[0]), optimizer


def start(name, how):
    """The model and one that computes the same with other weights, data for 200 steps."""
    build, shape, streams = NETWORKS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build().double()
        data = torch.randn(200, 16, *shape, dtype=torch.float64)
    network = ps.trace(model, data[0], streams=streams)
    other = copy.deepcopy(model)
    scaled = ps.trace(other, data[0], streams=streams)
    generator = torch.Generator().manual_seed(1)
    if how == "unbalanced":
        c = ps.unbalanced_rescaling(scaled, generator=generator)
    else:
        c = ps.random_rescaling(scaled, how, generator=generator, normalized=True)
    ps.rescale_(scaled, c)
    return model, network, other, scaled, data


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", NETWORKS)
def test_200_steps_stay_the_same_function(name, optimizer):
    cls, settings = OPTIMIZERS[optimizer]
    model, network, other, scaled, data = start(name, 1.0)
    with torch.no_grad():
        before = model(data[0])

    def make(model, network):
        return cls(model.parameters(), network=network, **settings)

    one, used = train(make, model, network, data)
    two, _ = train(make, other, scaled, data)
    assert used.skipped == 0
    assert (one - before).abs().max() > 1e-2  # it has trained
    torch.testing.assert_close(two, one, rtol=1e-6, atol=1e-6 * float(one.abs().max()))


@pytest.mark.parametrize("optimizer", ["PathSGD", "GSGD", "BalancedSGD"])
def test_the_unbalanced_recipe(optimizer):
    cls, settings = OPTIMIZERS[optimizer]
    model, network, other, scaled, data = start("mlp", "unbalanced")
    one, two = (
        train(lambda m, n: cls(m.parameters(), network=n, **settings), *pair, data)[0]
        for pair in ((model, network), (other, scaled))
    )
    torch.testing.assert_close(two, one, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("rule", [torch.optim.SGD, torch.optim.Adam])
def test_torch_notices(rule):
    model, network, other, scaled, data = start("mlp", 1.0)
    one, two = (
        train(lambda m, _: rule(m.parameters(), lr=0.01), *pair, data)[0]
        for pair in ((model, network), (other, scaled))
    )
    assert (two - one).abs().max() > 0.1 * one.abs().max()
