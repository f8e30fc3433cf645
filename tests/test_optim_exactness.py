"""G-SGD and its family against torch's optimizers on explicit coordinates, in float64."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

import pathspace as ps
from cases import CASES
from optimizers import apart
from pathspace.optim.representative import he_scales

PLAIN = [case for case in CASES if "batch norm" not in case.name]  # those are in another test


class Explicit:
    """The coordinates of a network as one vector x, and its state as a function of x."""

    def __init__(self, network, skeleton, metric, roots):
        self.basis = ps.BasisPaths(network, skeleton)
        self.state = {k: v.detach().clone() for k, v in network.state().items()}
        values = self.basis.flat(self.basis.values(self.state))
        kappa = torch.ones_like(values)
        if metric == "normalized":
            c = he_scales(network.edges, self.state, network.H + 1)
            ratio = {e.parameter: (-e.ratio(c)).exp().expand(e.shape) for e in network.edges}
            ones = {k: torch.ones_like(v) for k, v in self.basis.values(self.state).items()}
            weights = self.basis.graph.weights(self.state)
            products = {k: v / weights[k] for k, v in self.basis.values(self.state).items()}
            kappa = self.basis.flat({k: products[k] * ratio[k] * ones[k] for k in ones})
        self.kappa, self.sign = kappa, values.sign()
        self.is_log = torch.zeros(len(values), dtype=torch.bool)
        if roots == "multiplicative":
            self.is_log[self.basis.roots] = True
        logs = math.sqrt(2) * values.abs().log()
        self.x = torch.where(self.is_log, logs, values / kappa).requires_grad_()

    def values(self):
        logs = self.sign * (self.x / math.sqrt(2)).exp()
        return torch.where(self.is_log, logs, self.kappa * self.x)

    def __call__(self):
        return self.basis.weights(self.values(), state=self.state)


# eps is large because a slope that is 0 up to rounding must not become a step of size 1.
RULES = {
    "sgd": (ps.optim.GSGD, torch.optim.SGD, {"lr": 0.01}),
    "momentum": (ps.optim.GSGD, torch.optim.SGD, {"lr": 0.01, "momentum": 0.9, "dampening": 0.2}),
    "nesterov": (ps.optim.GSGD, torch.optim.SGD, {"lr": 0.01, "momentum": 0.8, "nesterov": True}),
    "adagrad": (ps.optim.GAdagrad, torch.optim.Adagrad, {"lr": 0.01, "lr_decay": 0.1, "eps": 1e-3}),
    "adam": (ps.optim.GAdam, torch.optim.Adam, {"lr": 0.003, "amsgrad": True, "eps": 1e-3}),
}
WAYS = [
    ("modulo", "normalized", "multiplicative"),
    ("largest", "normalized", "multiplicative"),
    ("modulo", "normalized", "additive"),
    ("largest", "paper", "additive"),
]


def smaller(model):
    """Weights at which a few steps stay far from the end of the coordinates."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.sign() * (0.5 + 0.5 * parameter.abs().clamp_max(1)))
    return model


TOGETHER = [(rule, way, "together") for rule in RULES for way in WAYS]
APART = [(rule, way, "apart") for rule in ("sgd", "adam") for way in WAYS if way[1] != "paper"]


@pytest.mark.parametrize(("rule", "way", "layout"), [*TOGETHER, *APART])
@pytest.mark.parametrize("case", PLAIN, ids=lambda case: case.name)
def test_steps_are_those_of_torch_on_explicit_coordinates(case, rule, way, layout, monkeypatch):
    if layout == "apart":
        apart(monkeypatch)
    ours, torchs, settings = RULES[rule]
    skeleton, metric, roots = way
    if roots == "additive":
        settings = settings | {"lr": settings["lr"] / 100}  # stay away from R = 0
    model, x = case.make()
    network = ps.trace(smaller(model), x)
    with torch.no_grad():
        target = model(x) + 0.1
    explicit = Explicit(network, skeleton, metric, roots)
    reference = torchs([explicit.x], **settings)
    optimizer = ours(
        model.parameters(), **settings, network=network, skeleton=skeleton, metric=metric,
        roots=roots,
    )  # fmt: skip
    for _ in range(4):
        optimizer.zero_grad()
        F.mse_loss(model(x), target).backward()
        optimizer.step()
        reference.zero_grad()
        F.mse_loss(functional_call(model, explicit(), (x,)), target).backward()
        reference.step()
    found, expected = network.state(), explicit()
    if layout == "apart":  # what enters a unit may have moved in place of what leaves it
        found, expected = explicit.basis.values(found), explicit.basis.values(expected)
    for name in found:
        one, other = found[name].detach(), expected[name].detach()
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    assert any(not torch.equal(explicit.state[n], p) for n, p in model.named_parameters())
    assert optimizer.space.rechosen == 0  # else this test would compare other coordinates
